//! Data that are an older copy: who was put back to where it once was notices it, and stops (beyond the paper).
//!
//! Such a replica has forgotten what it said since, as one that lost its disk ([`super::rebuild`]), and nothing in its data says so. Others of its shard
//! know better: whenever a replica asks them for the time it tells how far its journal has come, and they remember the furthest. Who tells of less
//! is told of that ahead of the time, without which it neither answers nor votes. `f + 1` who say so are believed: one of them is correct.
//!
//! They keep it in their journals, now and then: when all of them are started anew at once, they have forgotten what came in the last minute or so.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::Party;

use super::Replica;
use super::rebuild::{BOUNDS_APART, Rebuild};
use crate::message::JournalEnd;
use crate::record::PeerJournal;

/// How often what others told is written down, in milliseconds.
const LOG_MS: u64 = 60_000;
/// For so long it counts that another knew of more, in milliseconds: who does says so each time that it is asked for the time.
const KNOWN_MS: u64 = 10_000;

/// What others say of this replica's data, and when it writes down what they say of theirs.
#[derive(Debug)]
pub(super) struct OlderCopy {
    /// By its place in the shard: when another last said that it knows of more, and of what.
    known_by: BTreeMap<u16, (Time, JournalEnd)>,
    log_at: Time,
    /// Whether others have told of more than is written down.
    is_unlogged: bool,
}

impl OlderCopy {
    pub(super) fn new(now: Time) -> Self {
        Self { known_by: BTreeMap::new(), log_at: now.after_ms(LOG_MS), is_unlogged: false }
    }

    /// What was said under the key that this replica of the shard had counts no more.
    pub(super) fn forget_words_of(&mut self, index: u16) {
        self.known_by.remove(&index);
    }
}

impl<M: StorageBackend> Replica<M> {
    /// How far this replica's journal has come; nothing before one that lost its disk knows up to when it has forgotten what it said.
    pub(crate) fn journal_end(&self) -> Option<JournalEnd> {
        let lost_up_to = match self.table.disk_lost() {
            Some((0, true)) => return None,
            lost => lost.map_or(0, |(up_to, _)| up_to),
        };
        Some(JournalEnd { lost_up_to, batches: self.table.store.journal_batches() })
    }

    /// Another tells how far its journal has come. Gives how far it had come before, if that was further. `clock` is what this replica's clock shows: nobody
    /// has lost what it is to say much later, so that whoever loses its disk after it has lied is not held to that.
    pub(crate) fn on_journal_end(&mut self, now: Time, clock: u64, from: Party, end: JournalEnd) -> Option<JournalEnd> {
        let peer = self.shard_peer(from)?;
        let known = self.table.peer_journals.get(&peer.index).map(|known| known.end);
        if let Some(known) = known.filter(|known| *known > end) {
            return Some(known);
        }
        let is_far = end.lost_up_to > Time(clock).after_ms(2 * BOUNDS_APART * self.options.time_bound_ms).0;
        if is_far && !broken(Mutant::FarJournalKept) {
            return None;
        }
        let public_key = *self.cluster.replica_key(peer)?;
        self.table.peer_journals.insert(peer.index, PeerJournal { index: peer.index, public_key, end });
        self.older_copy.is_unlogged |= known != Some(end);
        if self.older_copy.is_unlogged && now >= self.older_copy.log_at {
            (self.older_copy.log_at, self.older_copy.is_unlogged) = (now.after_ms(LOG_MS), false);
            self.table.log_peer_journals();
        }
        None
    }

    /// Another was told before of `known` as where this replica's journal ends. One that is being rebuilt has said nothing of late, and begins that anew, for all that
    /// it may have said by now; any other ends.
    pub(crate) fn on_journal_known(&mut self, now: Time, from: Party, known: JournalEnd) {
        let Some(peer) = self.shard_peer(from).filter(|_| self.journal_end().is_some_and(|own| known > own)) else { return };
        let known_by = &mut self.older_copy.known_by;
        known_by.insert(peer.index, (now, known));
        known_by.retain(|_, (heard, _)| heard.after_ms(KNOWN_MS) > now);
        let needed = if broken(Mutant::OlderCopyOfOne) { 1 } else { self.quorums.weak() };
        if known_by.len() < needed || broken(Mutant::OlderCopyUnnoticed) {
            return;
        }
        // What one of them says that is correct is no less.
        let told = known_by.values().map(|(_, known)| known.lost_up_to);
        let least = if broken(Mutant::OlderCopyOfMost) { told.max() } else { told.min() }.unwrap_or(0);
        known_by.clear();
        if self.is_rebuilding() {
            self.table.raise_low_watermark(least.saturating_add(1));
            self.table.set_disk_lost(0, true);
            self.rebuild = Rebuild::default();
        } else {
            let failure = self.table.store.older_copy();
            self.failure.get_or_insert(failure);
            self.failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::{Memory, Options, Store};
    use types::{Cluster, Placement, ReplicaId, ShardId};

    use super::*;
    use crate::replica::ReplicaOptions;
    use crate::testing::one_shard;

    const BEGUN: Time = Time(1_000_000_000_000);
    /// What whoever had stolen the key of replica 3 told: its journal has come as far as none can.
    const KNOWN: JournalEnd = JournalEnd { lost_up_to: 0, batches: u64::MAX };

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn open(disk: &Memory, cluster: &Arc<Cluster>) -> Replica<Memory> {
        let store = Store::open(disk.clone(), Options::default()).expect("it opens");
        Replica::open(cluster.clone(), replica(0), ReplicaOptions::default(), store, BEGUN).expect("it opens")
    }

    /// `one`, on its disk, is told how far the journal of replica 3 has come; gives what it holds against that.
    fn told(one: &mut Replica<Memory>, batches: u64) -> Option<JournalEnd> {
        let now = BEGUN.after_ms(LOG_MS);
        let known = one.on_journal_end(now, now.0, Party::Replica(replica(3)), JournalEnd { lost_up_to: 0, batches });
        one.table.store.sync().expect("memory does not fail");
        known
    }

    /// The cluster once the operators have given replica 3 another key.
    fn with_another_key(cluster: &Cluster) -> Arc<Cluster> {
        let keys = (0..6).map(|index| [if index == 3 { 33 } else { index }; 32]).collect();
        Arc::new(Cluster::new(cluster.id(), 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit"))
    }

    #[test]
    fn what_was_told_under_an_earlier_key_is_not_held_against_the_next() {
        let (cluster, disk) = (one_shard(), Memory::new("journals"));
        assert_eq!(told(&mut open(&disk, &cluster), u64::MAX), None);
        let mut one = open(&disk, &cluster);
        assert_eq!(told(&mut one, 5), Some(KNOWN), "it is kept");
        let next = with_another_key(&cluster);
        one.reconfigure(next.clone());
        assert_eq!(told(&mut one, 5), None);
        assert_eq!(told(&mut open(&disk, &next), 5), None, "and that it is not held against it");
    }

    #[test]
    fn nor_is_it_where_the_key_was_changed_while_this_replica_was_down() {
        let (cluster, disk) = (one_shard(), Memory::new("journals"));
        assert_eq!(told(&mut open(&disk, &cluster), u64::MAX), None);
        assert_eq!(told(&mut open(&disk, &cluster), 5), Some(KNOWN), "it is kept");
        let next = with_another_key(&cluster);
        assert_eq!(told(&mut open(&disk, &next), 5), None);
        let mut one = open(&disk, &next);
        assert_eq!(told(&mut one, 4), Some(JournalEnd { lost_up_to: 0, batches: 5 }), "what is told under the new key is kept");
    }
}
