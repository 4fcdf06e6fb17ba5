//! Writers that readers hold off (beyond the paper).
//!
//! An answer to a read is a promise: the replica votes for no write that would come between what it shows and the reader's timestamp
//! (Algorithm 1 L12, and [`crate::read_only`]). Who reads the same keys all the time would thus keep everybody from writing them. So when a
//! write of a key was voted down for what another client read, that key is promised to nobody for a while: its writer comes again, and nobody
//! holds it off by reading alone. An answer without a promise validates nothing: the reader's transaction is prepared, and the replicas vote on
//! what it read. Without a promise for one of its keys a read has none for any, and so has a page of a range.
//!
//! A while is short where that happens once, so that keys that are written now and then are hardly ever read without a promise, and grows where
//! it happens again soon, so that of a key's writes few are held off.
//!
//! What lies a second back is promised always: who writes there is late by its own fault. So is what was promised before, to whomever: that
//! holds nobody off who is not held off already.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, Key, KeyRange, Party, Timestamp};

use super::Replica;
use crate::transaction::Transaction;

/// For how long a key is promised to nobody when a writer of it was held off, in nanoseconds, so that there is time for another attempt where all are
/// busy; and for how long at most where it happens again and again.
const FIRST_NS: u64 = 2_000_000_000;
const MOST_NS: u64 = 60_000_000_000;
/// So many times as long each time, where it happens again within so many times as long.
const GROWTH: u64 = 8;
const SOON: u64 = 2;
/// What lies so far back is the past, in nanoseconds.
const RECENT_NS: u64 = 1_000_000_000;
/// The most keys that are remembered, and the most bytes of them.
const KEYS_MAX: usize = 1 << 14;
const KEY_BYTES_MAX: usize = 4 << 20;
/// The most keys of one transaction that are remembered: who writes more is remembered for the others when it comes again.
const KEYS_OF_ONE_MAX: usize = 64;

/// A key whose writer was held off.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Until when it is promised to nobody, and for how long that is, in nanoseconds.
    until: u64,
    length: u64,
}

impl Note {
    fn is_live(self, now: Time) -> bool {
        // What lies further ahead is from a clock that was wrong.
        self.until > now.0 && self.until - now.0 <= self.length
    }

    fn is_recent(self, now: Time) -> bool {
        let end = self.until.saturating_add(SOON * self.length);
        end > now.0 && self.until.saturating_sub(now.0) <= self.length
    }
}

/// The keys whose writers were held off of late.
#[derive(Debug, Default)]
pub(super) struct HeldOff {
    notes: BTreeMap<Key, Note>,
    key_bytes: usize,
    /// Until when the last of them is promised to nobody.
    last: u64,
}

impl HeldOff {
    /// A writer of `key` was held off.
    fn note(&mut self, now: Time, key: &Key) {
        let earlier = self.notes.get(key).filter(|note| note.is_recent(now));
        let length = earlier.map_or(FIRST_NS, |note| if note.is_live(now) { note.length } else { (GROWTH * note.length).min(MOST_NS) });
        let until = now.0.saturating_add(length);
        self.last = until.max(if self.last > now.0.saturating_add(MOST_NS) { 0 } else { self.last });
        if self.notes.insert(key.detached(), Note { until, length }).is_none() {
            self.key_bytes += key.as_bytes().len();
        }
        if self.notes.len() > KEYS_MAX || self.key_bytes > KEY_BYTES_MAX {
            self.make_room(now);
        }
    }

    /// Forgets what is over, and of the others half, and half again, those that are over first, until there is room.
    fn make_room(&mut self, now: Time) {
        self.retain(|note| note.is_recent(now));
        while self.notes.len() > KEYS_MAX / 2 || self.key_bytes > KEY_BYTES_MAX / 2 {
            let mut ends: Vec<u64> = self.notes.values().map(|note| note.until).collect();
            let middle = ends.len() / 2;
            let (_, median, _) = ends.select_nth_unstable(middle);
            self.retain(|note| note.until > *median);
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Note) -> bool) {
        self.notes.retain(|_, note| is_kept(note));
        self.key_bytes = self.notes.keys().map(|key| key.as_bytes().len()).sum();
    }

    /// Whether a writer of `key` was held off so recently that the key is promised to nobody.
    fn holds(&self, now: Time, key: &Key) -> bool {
        self.has_any(now) && self.notes.get(key).is_some_and(|note| note.is_live(now))
    }

    /// The same of any key in `range`.
    fn holds_any_of(&self, now: Time, range: &KeyRange) -> bool {
        self.has_any(now) && self.notes.range(range.low()..range.high()).any(|(_, note)| note.is_live(now))
    }

    fn has_any(&self, now: Time) -> bool {
        self.last > now.0 && !broken(Mutant::HeldOffForgotten)
    }
}

impl<M: StorageBackend> Replica<M> {
    /// Whether `from`, which reads `keys` at `timestamp`, is promised that nothing comes between what it is shown and that timestamp.
    pub(super) fn may_promise(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> bool {
        let is_new = |key: &Key| self.table.readers_of(key).0 < timestamp;
        let is_refused = |key: &Key| self.held_off.holds(now, key) && is_new(key);
        is_past(now, timestamp) || (is_own(from, timestamp) && !keys.iter().any(is_refused))
    }

    /// The same of a range.
    pub(super) fn may_promise_range(&self, now: Time, from: Party, timestamp: Timestamp, range: &KeyRange) -> bool {
        let is_refused = self.held_off.holds_any_of(now, range) && !self.table.is_range_read(range, timestamp);
        is_past(now, timestamp) || (is_own(from, timestamp) && !is_refused)
    }

    /// `transaction` was voted down, since what it writes may have been read above its timestamp.
    pub(super) fn note_held_off(&mut self, now: Time, transaction: &Transaction) {
        let timestamp = transaction.timestamp();
        if is_past(now, timestamp) {
            return;
        }
        let is_held_off = |key: &Key| {
            let (by_key, by_range) = self.table.readers_of(key);
            [by_key, by_range].iter().any(|reader| *reader > timestamp && reader.client != timestamp.client)
        };
        let keys = transaction.writes().iter().map(|write| &write.key).filter(|key| self.table.holds(key) && is_held_off(key));
        for key in keys.take(KEYS_OF_ONE_MAX) {
            self.held_off.note(now, key);
        }
    }
}

/// Whether the timestamp names the reader, or nobody, as those of the past do. Else one could hold a client off in that client's own name, which
/// counts for nothing.
fn is_own(from: Party, timestamp: Timestamp) -> bool {
    let is_named = matches!(from, Party::Client(client, _) if client == timestamp.client);
    is_named || timestamp.client == ClientId(0) || broken(Mutant::OthersNamePromised)
}

fn is_past(now: Time, timestamp: Timestamp) -> bool {
    timestamp.time.saturating_add(RECENT_NS) < now.0 && !broken(Mutant::PastUnpromised)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000_000;

    fn key(number: usize) -> Key {
        Key::from(format!("{number:05}").as_str())
    }

    #[test]
    fn a_key_is_promised_to_nobody_for_a_while_and_longer_where_it_happens_again_soon() {
        let (mut held_off, one, other) = (HeldOff::default(), key(1), key(2));
        let range = |low, high| KeyRange::new(key(low), key(high)).expect("it has keys");
        held_off.note(Time(START), &one);
        let end = START + FIRST_NS;
        let holds = |held_off: &HeldOff, at| held_off.holds(Time(at), &one);
        assert!(holds(&held_off, START) && holds(&held_off, end - 1) && !holds(&held_off, end));
        assert!(!holds(&held_off, 1), "the clock was set back");
        assert!(!held_off.holds(Time(START), &other));
        assert!(held_off.holds_any_of(Time(START), &range(0, 2)) && !held_off.holds_any_of(Time(START), &range(2, 9)));
        // While it is promised to nobody, it is for others than readers that a write is voted down.
        held_off.note(Time(start_after(START, 1)), &one);
        assert!(!holds(&held_off, start_after(START, 1) + FIRST_NS));
        // It happens again soon, and then no more for long.
        let mut at = start_after(START, 1) + FIRST_NS + 1;
        for length in [GROWTH * FIRST_NS, MOST_NS, MOST_NS] {
            held_off.note(Time(at), &one);
            assert!(holds(&held_off, at + length - 1) && !holds(&held_off, at + length));
            at += length + SOON * length - 1;
        }
        held_off.note(Time(at + 2), &one);
        assert!(!holds(&held_off, at + 2 + FIRST_NS));
    }

    fn start_after(start: u64, ms: u64) -> u64 {
        start + ms * 1_000_000
    }

    #[test]
    fn what_lasts_longest_is_kept_where_there_is_no_room() {
        let mut held_off = HeldOff::default();
        held_off.note(Time(START), &key(0));
        let again = START + FIRST_NS + 1;
        held_off.note(Time(again), &key(0));
        (1..3 * KEYS_MAX).for_each(|number| held_off.note(Time(again + 1), &key(number)));
        assert!(held_off.notes.len() <= KEYS_MAX && held_off.holds(Time(again + 1), &key(0)));
        let long = |number: usize| Key::from(format!("{number:05}{}", "x".repeat(1_000)).as_str());
        (0..2 * KEY_BYTES_MAX / 1_000).for_each(|number| held_off.note(Time(again + 2), &long(number)));
        let bytes: usize = held_off.notes.keys().map(|key| key.as_bytes().len()).sum();
        assert!(held_off.key_bytes == bytes && bytes <= KEY_BYTES_MAX);
        assert!(held_off.holds(Time(again + 2), &key(0)), "long keys push out nothing that lasts longer, either");
    }
}
