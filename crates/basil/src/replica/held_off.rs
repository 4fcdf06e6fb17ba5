//! Writers that readers hold off (beyond the paper).
//!
//! An answer to a read is a promise: the replica votes for no write that would come between what it shows and the reader's timestamp
//! (Algorithm 1 L12, and [`crate::read_only`]). Who reads the same keys all the time would thus keep everybody from writing them. So a
//! reader that held off another client's writer of a key gets answers without that promise when it reads the key again, for
//! [`WITHOUT_PROMISE_NS`]. Such an answer holds nobody off, and validates nothing: the reader's transaction is prepared, and the replicas
//! vote on what it read. Without a promise for one of its keys a read has none for any.
//!
//! What is read of the past is promised always, since who writes it is late by its own fault, and counts for nobody. So is what was promised
//! before, to whomever: that holds nobody off who is not held off already.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, Key, KeyRange, Party, Timestamp};

use super::Replica;
use crate::transaction::Transaction;

/// For how long a reader gets no promise for a key after it held off a writer of it.
const WITHOUT_PROMISE_NS: u64 = 10_000_000_000;
/// What lies so far back is the past.
const RECENT_NS: u64 = 1_000_000_000;
/// Of so many readers of keys it is told apart whether they held off a writer; a power of two.
const SLOTS: usize = 1 << 16;

/// Who held off writers of late.
#[derive(Debug)]
pub(super) struct HeldOff {
    /// With a seed that nobody else knows.
    hasher: FixedState,
    /// Until when each reader of a key gets no promise for it, in nanoseconds. Those that share a slot may get none by mistake.
    until: Vec<u64>,
    /// The latest of them.
    last: u64,
}

impl HeldOff {
    pub fn new(seed: u64) -> Self {
        // All zero, so the system gives the memory only as it is used.
        Self { hasher: FixedState::with_seed(seed), until: vec![0; SLOTS], last: 0 }
    }

    /// `reader` has held off a writer of `key`; of any key in a range that it read, when that is none.
    fn note(&mut self, now: Time, reader: ClientId, key: Option<&Key>) {
        let slot = self.slot(reader, key);
        self.last = now.0.saturating_add(WITHOUT_PROMISE_NS);
        self.until[slot] = self.last;
    }

    /// Whether `reader` has done so of late.
    fn is_noted(&self, now: Time, reader: ClientId, key: Option<&Key>) -> bool {
        // What lies further ahead is from a clock that was wrong.
        let is_ahead = |until: u64| until > now.0 && until - now.0 <= WITHOUT_PROMISE_NS;
        self.last > now.0 && is_ahead(self.until[self.slot(reader, key)]) && !broken(Mutant::HeldOffForgotten)
    }

    fn slot(&self, reader: ClientId, key: Option<&Key>) -> usize {
        let hash = self.hasher.hash_one((reader.0, key.map(Key::as_bytes)));
        usize::try_from(hash % SLOTS as u64).expect("there are few slots")
    }
}

impl<M: StorageBackend> Replica<M> {
    /// Whether `from`, which reads `keys` at `timestamp`, is promised that nothing comes between what it is shown and that timestamp.
    pub(super) fn may_promise(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> bool {
        let is_new = |key: &Key| self.table.readers_of(key).0 < timestamp;
        let is_noted = |key: &Key| self.held_off.is_noted(now, timestamp.client, Some(key)) && is_new(key);
        is_past(now, timestamp) || (is_own(from, timestamp) && !keys.iter().any(is_noted))
    }

    /// The same of a range.
    pub(super) fn may_promise_range(&self, now: Time, from: Party, timestamp: Timestamp, range: &KeyRange) -> bool {
        let is_noted = self.held_off.is_noted(now, timestamp.client, None) && !self.table.is_range_read(range, timestamp);
        is_past(now, timestamp) || (is_own(from, timestamp) && !is_noted)
    }

    /// `transaction` was voted down, since what it writes may have been read above its timestamp.
    pub(super) fn note_held_off(&mut self, now: Time, transaction: &Transaction) {
        let timestamp = transaction.timestamp();
        if is_past(now, timestamp) {
            return;
        }
        let holds_off = |reader: Timestamp| reader > timestamp && reader.client != timestamp.client;
        for write in transaction.writes().iter().filter(|write| self.table.holds(&write.key)) {
            let (by_key, by_range) = self.table.readers_of(&write.key);
            if holds_off(by_key) {
                self.held_off.note(now, by_key.client, Some(&write.key));
            }
            if holds_off(by_range) {
                self.held_off.note(now, by_range.client, None);
            }
        }
    }
}

/// Whether the timestamp names the reader, or nobody, as those of the past do. Else one client could hold writers off in another's name.
fn is_own(from: Party, timestamp: Timestamp) -> bool {
    matches!(from, Party::Client(client, _) if client == timestamp.client) || timestamp.client == ClientId(0)
}

fn is_past(now: Time, timestamp: Timestamp) -> bool {
    timestamp.time.saturating_add(RECENT_NS) < now.0 && !broken(Mutant::PastUnpromised)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_held_off_a_writer_is_known_for_a_while_for_that_key_alone() {
        let (mut held_off, a, b) = (HeldOff::new(7), Key::from("a"), Key::from("b"));
        let (one, other, now) = (ClientId(1), ClientId(2), Time(5_000_000_000));
        held_off.note(now, one, Some(&a));
        let last = Time(now.0 + WITHOUT_PROMISE_NS - 1);
        assert!(held_off.is_noted(now, one, Some(&a)) && held_off.is_noted(last, one, Some(&a)));
        assert!(!held_off.is_noted(Time(last.0 + 1), one, Some(&a)), "it is over");
        assert!(!held_off.is_noted(Time(1), one, Some(&a)), "the clock was set back");
        for (reader, key) in [(one, Some(&b)), (one, None), (other, Some(&a))] {
            assert!(!held_off.is_noted(now, reader, key));
        }
        held_off.note(now, other, None);
        assert!(held_off.is_noted(now, other, None) && !held_off.is_noted(now, other, Some(&a)));
    }
}
