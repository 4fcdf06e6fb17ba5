//! Telling what was forgotten from what was never known.
//!
//! Below the watermark a replica remembers nothing of what has ended, and must say nothing that could differ from what it once said. Of
//! what it never knew it said nothing. So it keeps of each transaction that it forgets eight bytes of its name, for as long as there is
//! room, and a time from which on this is all there was. What is in the journal comes back from there; before a part of the journal is let
//! go, the names of what it held are written down again. Two names that begin alike only make it silent where it need not be.

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt as _};
use types::{Transaction, TransactionId};

/// The most transactions kept in mind.
const FORGOTTEN_MAX: usize = 1 << 20;

/// The most that are written down again when a part of the journal is let go.
const WRITTEN_MAX: usize = 1 << 17;

/// What has ended and was forgotten.
#[derive(Debug)]
pub(crate) struct Forgotten {
    /// Each with the latest time of those that have it: whoever works at it finds two transactions whose names begin alike.
    names: HashMap<u64, u64>,
    /// The same in the order in which they were first forgotten.
    order: VecDeque<u64>,
    /// Whatever was forgotten with a time from here on is among the names, in nanoseconds.
    complete_from: u64,
    names_max: usize,
}

impl Forgotten {
    pub fn new() -> Self {
        Self { names: HashMap::new(), order: VecDeque::new(), complete_from: 0, names_max: FORGOTTEN_MAX }
    }

    /// Earlier lives may have forgotten anything up to `time`.
    pub fn anything_up_to(&mut self, time: u64) {
        self.complete_from = self.complete_from.max(time.saturating_add(1));
    }

    /// `transaction` has ended and is forgotten.
    pub fn note(&mut self, transaction: &Transaction) {
        self.note_name(name(transaction.id()), transaction.timestamp().time);
    }

    fn note_name(&mut self, name: u64, time: u64) {
        match self.names.get_mut(&name) {
            Some(latest) => *latest = time.max(*latest),
            None => {
                self.names.insert(name, time);
                self.order.push_back(name);
            }
        }
        while self.order.len() > self.names_max {
            let Some(latest) = self.order.pop_front().and_then(|name| self.names.remove(&name)) else { break };
            self.anything_up_to(latest);
        }
    }

    /// The latest names, each with its time, and from which time on they are all there are.
    pub fn latest(&self) -> (u64, Vec<(u64, u64)>) {
        let pair = |name: &u64| (*name, self.names.get(name).copied().unwrap_or_default());
        let left_out = self.order.len().saturating_sub(WRITTEN_MAX);
        let before = self.order.iter().take(left_out).map(|name| pair(name).1.saturating_add(1)).max().unwrap_or(0);
        (self.complete_from.max(before), self.order.iter().skip(left_out).map(pair).collect())
    }

    /// Takes back what an earlier life has written down.
    pub fn restore(&mut self, complete_from: u64, names: Vec<(u64, u64)>) {
        self.complete_from = self.complete_from.max(complete_from);
        names.into_iter().for_each(|(name, time)| self.note_name(name, time));
    }

    /// Whether `transaction` may have been forgotten.
    pub fn may_have(&self, transaction: &Transaction) -> bool {
        transaction.timestamp().time < self.complete_from || self.names.contains_key(&name(transaction.id()))
    }
}

fn name(id: TransactionId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use types::{ClientId, ClusterId, Timestamp};

    use super::*;

    fn transaction(time: u64) -> Transaction {
        let timestamp = Timestamp::new(time, ClientId(1));
        Transaction::new(ClusterId::new([1; 16]), timestamp, Vec::new(), Vec::new()).expect("it is small")
    }

    #[test]
    fn what_was_never_known_is_told_from_what_was_forgotten() {
        let mut forgotten = Forgotten::new();
        forgotten.note(&transaction(5));
        assert!(forgotten.may_have(&transaction(5)));
        assert!(!forgotten.may_have(&transaction(4)) && !forgotten.may_have(&transaction(6)));
        forgotten.anything_up_to(4);
        assert!(forgotten.may_have(&transaction(4)) && !forgotten.may_have(&transaction(6)));
    }

    #[test]
    fn where_there_is_no_room_anything_may_have_been_forgotten() {
        let mut forgotten = Forgotten { names_max: 3, ..Forgotten::new() };
        for time in [10, 30, 20, 40, 50] {
            forgotten.note(&transaction(time));
            forgotten.note(&transaction(time));
        }
        for (time, may_be) in [(9, true), (10, true), (25, true), (30, true), (31, false), (40, true), (45, false), (50, true)] {
            assert_eq!(forgotten.may_have(&transaction(time)), may_be, "{time}");
        }
        assert_eq!((forgotten.names.len(), forgotten.order.len()), (3, 3));
    }

    #[test]
    fn what_is_written_down_and_read_back_is_remembered_as_well() {
        let mut forgotten = Forgotten::new();
        forgotten.anything_up_to(4);
        forgotten.note(&transaction(5));
        let (complete_from, names) = forgotten.latest();
        let mut again = Forgotten::new();
        again.restore(complete_from, names);
        for (time, may_be) in [(4, true), (5, true), (6, false)] {
            assert_eq!(again.may_have(&transaction(time)), may_be, "{time}");
        }
    }

    #[test]
    fn a_name_that_begins_like_an_older_one_does_not_go_before_its_time() {
        let mut forgotten = Forgotten { names_max: 3, ..Forgotten::new() };
        let (older, later) = (transaction(10), transaction(30));
        forgotten.note(&older);
        // As if both began alike, which a liar can bring about with some work.
        forgotten.note_name(name(older.id()), 30);
        for time in [11, 12, 13] {
            forgotten.note(&transaction(time));
        }
        assert!(!forgotten.names.contains_key(&name(older.id())));
        assert!(forgotten.may_have(&later));
    }
}
