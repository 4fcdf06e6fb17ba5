//! The end of the log, in memory.
//!
//! It goes from `base`, before which everything is in a snapshot or on the disk alone, to the last entry. Two logs that have the same entry have
//! the same entries up to it: an epoch has one leader, a leader proposes on top of its own log, and whoever appends has what was before.

use std::collections::VecDeque;

use super::message::{ENTRIES_BYTES_MAX, ENTRIES_MAX, Entry, Zxid};
use super::servers::Servers;

/// So many bytes of delivered entries are kept for servers that lag behind.
pub(super) const KEPT_BYTES_MAX: usize = 64 << 20;
/// So many bytes, while somebody takes over a snapshot to which they are the end.
pub(super) const HELD_BYTES_MAX: usize = 512 << 20;

#[derive(Debug)]
pub(super) struct Log {
    base: Zxid,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The servers as of an entry, the oldest first: never empty.
    servers: Vec<(Zxid, Servers)>,
}

impl Log {
    pub fn new(base: Zxid, servers: Servers) -> Self {
        Self { base, entries: VecDeque::new(), bytes: 0, servers: vec![(base, servers)] }
    }

    /// What lies before the first entry that is kept.
    pub fn base(&self) -> Zxid {
        self.base
    }

    pub fn last(&self) -> Zxid {
        self.entries.back().map_or(self.base, |entry| entry.zxid)
    }

    /// The servers as of the last entry.
    pub fn servers(&self) -> &Servers {
        self.servers.last().map(|(_, servers)| servers).expect("the oldest always stays")
    }

    /// The servers as of entry `zxid`, which is not before what was trimmed.
    pub fn servers_at(&self, zxid: Zxid) -> &Servers {
        let at = self.servers.partition_point(|(since, _)| *since <= zxid);
        &self.servers[at.saturating_sub(1)].1
    }

    /// The last entry at or before `zxid`; nothing when that is before the base.
    pub fn at_or_before(&self, zxid: Zxid) -> Option<Zxid> {
        match self.behind(zxid) {
            0 => (self.base <= zxid).then_some(self.base),
            count => Some(self.entries[count - 1].zxid),
        }
    }

    pub fn has(&self, zxid: Zxid) -> bool {
        self.at_or_before(zxid) == Some(zxid)
    }

    /// How many entries are at or before `zxid`.
    fn behind(&self, zxid: Zxid) -> usize {
        self.entries.partition_point(|entry| entry.zxid <= zxid)
    }

    /// The entries after `zxid`, up to `to`.
    pub fn between(&self, zxid: Zxid, to: Zxid) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.behind(zxid)..).take_while(move |entry| entry.zxid <= to)
    }

    /// As many of the entries after `zxid` as one message takes.
    pub fn page(&self, zxid: Zxid) -> Vec<Entry> {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let is_full = bytes >= ENTRIES_BYTES_MAX;
            bytes += entry.bytes();
            !is_full
        };
        self.entries.range(self.behind(zxid)..).take(ENTRIES_MAX).take_while(fits).cloned().collect()
    }

    pub fn push(&mut self, entry: Entry) {
        assert!(self.last().is_followed_by(entry.zxid), "an entry follows the one before it");
        let mut servers = self.servers().clone();
        if servers.note(&entry) {
            self.servers.push((entry.zxid, servers));
        }
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    /// Takes back everything after `zxid`.
    pub fn truncate(&mut self, zxid: Zxid) {
        assert!(zxid >= self.base, "what is before the base was delivered");
        let kept = self.behind(zxid);
        self.bytes -= self.entries.drain(kept..).map(|entry| entry.bytes()).sum::<usize>();
        self.servers.retain(|(since, _)| *since <= zxid);
    }

    /// Forgets old entries but for `most`: up to `delivered` at most, and while there is room not those after `held`.
    pub fn trim(&mut self, most: usize, delivered: Zxid, held: Zxid) {
        while self.entries.len() > most || self.bytes > KEPT_BYTES_MAX {
            let is_needed = |first: &Entry| first.zxid > delivered || (first.zxid > held && self.bytes <= HELD_BYTES_MAX);
            if self.entries.front().is_none_or(is_needed) {
                break;
            }
            let Some(first) = self.entries.pop_front() else { break };
            self.bytes -= first.bytes();
            self.base = first.zxid;
        }
        let old = self.servers.partition_point(|(since, _)| *since <= self.base);
        self.servers.drain(..old.saturating_sub(1));
    }
}
