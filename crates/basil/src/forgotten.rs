//! Telling what was forgotten from what was never known.
//!
//! Below the watermark a replica remembers nothing of what has ended, and must say nothing that could differ from what it once said. Of
//! what it never knew it said nothing. So it keeps of each transaction that it forgets eight bytes of its name, for as long as there is
//! room, and a time from which on this is all there was. Two names that begin alike only make it silent where it need not be.

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt as _};
use types::{Transaction, TransactionId};

/// The most transactions kept in mind.
const FORGOTTEN_MAX: usize = 1 << 20;

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
