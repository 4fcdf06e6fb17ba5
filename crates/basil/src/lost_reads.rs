//! What this process has read and lost again and again, so that it is read another way (beyond the paper).
//!
//! Whoever reads what is only prepared depends on it (§4.1), and whoever reads past it may have missed it (Algorithm 1 L8): where some replicas hold
//! it and others have never heard of it, either costs the transaction enough votes to abort. A client that writes a key can leave such halves behind as
//! fast as others begin anew. So a coordinator counts, by key, how often its transactions aborted more than they committed. What has been lost
//! so often that it cannot be bad luck is *settled* when it is read next: the read finishes whatever stands undecided below its timestamp, and waits
//! until so many replicas validate the same committed version that the votes on it are certain. New halves come too late for that: whoever has
//! promised that nothing comes below the timestamp votes them down.
//!
//! Nothing rests on what is counted here: it is bounded, and may mistake one key for another.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use mutants::{Mutant, broken};
use types::Key;

use crate::certificate::Decision;
use crate::transaction::Transaction;

/// Of so many keys losses are told apart.
const SLOTS: usize = 4_096;
/// So many more aborts than commits are no bad luck,
const LOST: u8 = 3;
/// and so many are remembered.
const LOST_MAX: u8 = 6;

/// How often transactions of one process that read a key aborted, more than they committed.
#[derive(Clone, Debug)]
pub(crate) struct LostReads {
    hasher: FixedState,
    keys: Vec<u8>,
    /// The same of all ranges.
    ranges: u8,
}

impl Default for LostReads {
    fn default() -> Self {
        Self { hasher: FixedState::with_seed(0), keys: vec![0; SLOTS], ranges: 0 }
    }
}

impl LostReads {
    /// A transaction of this process has ended.
    pub fn note(&mut self, transaction: &Transaction, decision: Decision) {
        let note = |lost: &mut u8| match decision {
            Decision::Abort => *lost = LOST_MAX.min(*lost + 1),
            Decision::Commit => *lost = lost.saturating_sub(1),
        };
        for read in transaction.reads() {
            let index = self.index(&read.key);
            note(&mut self.keys[index]);
        }
        if !transaction.ranges().is_empty() {
            note(&mut self.ranges);
        }
    }

    /// Whether any of `keys` is to be settled.
    pub fn are_lost(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| self.keys[self.index(key)] >= LOST) && !broken(Mutant::LostReadsUnsettled)
    }

    /// Whether ranges are.
    pub fn are_ranges_lost(&self) -> bool {
        self.ranges >= LOST && !broken(Mutant::LostReadsUnsettled)
    }

    fn index(&self, key: &Key) -> usize {
        usize::try_from(self.hasher.hash_one(key) % SLOTS as u64).expect("there are few slots")
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, ClusterId, KeyRange, Timestamp};

    use super::*;
    use crate::transaction::Read;

    #[test]
    fn a_key_is_settled_while_its_readers_abort_more_than_they_commit() {
        let (a, b) = (Key::from("a"), Key::from("b"));
        let read = |key: &Key| vec![Read { key: key.clone(), version: Timestamp::ZERO, dependency: None }];
        let reader = Transaction::new(ClusterId::new([1; 16]), Timestamp::new(5, ClientId(1)), read(&a), Vec::new()).expect("it reads");
        let mut lost = LostReads::default();
        for times in 1..=LOST {
            assert!(!lost.are_lost(&[b.clone(), a.clone()]), "{times}");
            lost.note(&reader, Decision::Abort);
        }
        assert!(lost.are_lost(&[b.clone(), a.clone()]) && !lost.are_lost(&[b]) && !lost.are_ranges_lost());
        lost.note(&reader, Decision::Commit);
        assert!(!lost.are_lost(std::slice::from_ref(&a)));
        (0..100).for_each(|_| lost.note(&reader, Decision::Abort));
        (LOST..=LOST_MAX).for_each(|_| lost.note(&reader, Decision::Commit));
        assert!(!lost.are_lost(std::slice::from_ref(&a)), "it is forgotten in time");
        let range = KeyRange::new(a, Key::from("c")).expect("it has keys");
        let scanner = Transaction::with_ranges(ClusterId::new([1; 16]), Timestamp::new(5, ClientId(1)), Vec::new(), vec![range], Vec::new());
        let scanner = scanner.expect("it reads a range");
        (0..LOST).for_each(|_| lost.note(&scanner, Decision::Abort));
        assert!(lost.are_ranges_lost());
    }
}
