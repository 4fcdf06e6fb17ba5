//! What this process has read and lost again and again, so that it is read another way (beyond the paper).
//!
//! Whoever reads what is only prepared depends on it (§4.1), and whoever reads past it may have missed it (Algorithm 1 L8): where some replicas hold
//! it and others have never heard of it, either costs the transaction enough votes to abort. A client that writes a key can leave such halves behind as
//! fast as others begin anew. So a coordinator counts, by key, how often its transactions aborted, and half as often as they committed less. What has
//! been lost so often that it is hardly bad luck is *settled* when it is read next: the read finishes whatever stands undecided below its timestamp, and
//! waits until so many replicas validate the same committed version that the votes on it are certain. New halves come too late for that: whoever has
//! promised that nothing comes below the timestamp votes them down.
//!
//! Nothing rests on what is counted here: it is bounded, and may mistake one key for another.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use machine::Voters;
use mutants::{Mutant, broken};
use types::{Key, TransactionId};

use crate::certificate::Decision;
use crate::transaction::Transaction;

/// Of so many keys losses are told apart.
const SLOTS: usize = 4_096;
/// So many aborts are hardly bad luck, where a commit makes up for so many.
const LOST: u8 = 3;
const WON: u8 = 2;
/// So many writers at most does one read set out to finish on the word of one replica, and none that has more keys.
const ON_ONE_WORD_MAX: usize = 8;
const ON_ONE_WORD_KEYS_MAX: usize = 256;
/// The most that are remembered.
const LOST_MAX: u8 = 6;

/// How often transactions of one process that read a key aborted, and were not made up for.
#[derive(Clone, Debug)]
pub(crate) struct LostReads {
    hasher: FixedState,
    keys: Vec<u8>,
    /// The same of all ranges.
    ranges: u8,
    /// Whose transaction was the last that aborted.
    last: Option<u64>,
}

impl Default for LostReads {
    fn default() -> Self {
        Self { hasher: FixedState::with_seed(0), keys: vec![0; SLOTS], ranges: 0, last: None }
    }
}

impl LostReads {
    /// A transaction of this process has ended, that of `operation`.
    pub fn note(&mut self, operation: u64, transaction: &Transaction, decision: Decision) {
        self.last = (decision == Decision::Abort).then_some(operation);
        self.change(transaction, |lost| match decision {
            Decision::Abort => LOST_MAX.min(lost + 1),
            Decision::Commit => lost.saturating_sub(WON),
        });
    }

    /// What `operation` asks for is tried once more, with the same reads ([`crate::refresh`]): it was not lost then.
    pub fn begins(&mut self, operation: u64, transaction: &Transaction) {
        if self.last.take_if(|last| *last == operation).is_some() {
            self.change(transaction, |lost| lost.saturating_sub(1));
        }
    }

    fn change(&mut self, transaction: &Transaction, change: impl Fn(u8) -> u8) {
        for read in transaction.reads() {
            let index = self.index(&read.key);
            self.keys[index] = change(self.keys[index]);
        }
        if !transaction.ranges().is_empty() {
            self.ranges = change(self.ranges);
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

/// What one read, or one page, that is settled has set out to finish.
#[derive(Debug, Default)]
pub(crate) struct Finishes {
    known: BTreeSet<TransactionId>,
    /// How many of them on the word of each replica alone.
    on_one_word: BTreeMap<u16, usize>,
    /// For how many rounds of asking nothing new was named.
    pub idle_rounds: u32,
}

impl Finishes {
    /// Of what is `named`, what is to be finished now: what a correct replica names, and a little of what others name. What was lost again and
    /// again may be so for writers of which each is at one replica only; but one replica may lie.
    pub fn take<'a>(&mut self, named: impl Iterator<Item = (&'a Transaction, Voters)>, weak: usize) -> Vec<Transaction> {
        let mut taken = Vec::new();
        for (transaction, voters) in named {
            let id = transaction.id();
            if self.known.contains(&id) {
                continue;
            }
            if voters.count() < weak {
                let Some(by) = (0..u16::MAX).find(|index| voters.contains(*index)) else { continue };
                let by = self.on_one_word.entry(by).or_default();
                if *by >= ON_ONE_WORD_MAX || transaction.keys().nth(ON_ONE_WORD_KEYS_MAX).is_some() {
                    continue;
                }
                *by += 1;
            }
            self.known.insert(id);
            taken.push(transaction.clone());
        }
        self.idle_rounds = if taken.is_empty() { self.idle_rounds.saturating_add(1) } else { 0 };
        taken
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
            lost.begins(9, &reader);
            lost.note(7, &reader, Decision::Abort);
        }
        assert!(lost.are_lost(&[b.clone(), a.clone()]) && !lost.are_lost(&[b]) && !lost.are_ranges_lost());
        lost.note(7, &reader, Decision::Commit);
        assert!(!lost.are_lost(std::slice::from_ref(&a)));
        (0..100).for_each(|_| lost.note(7, &reader, Decision::Abort));
        (LOST..=LOST_MAX).for_each(|_| lost.note(7, &reader, Decision::Commit));
        assert!(!lost.are_lost(std::slice::from_ref(&a)), "it is forgotten in time");
        let range = KeyRange::new(a, Key::from("c")).expect("it has keys");
        let scanner =
            Transaction::with_ranges(ClusterId::new([1; 16]), Timestamp::new(5, ClientId(1)), Vec::new(), vec![range], Vec::new());
        let scanner = scanner.expect("it reads a range");
        (0..LOST).for_each(|_| lost.note(7, &scanner, Decision::Abort));
        assert!(lost.are_ranges_lost());
    }

    #[test]
    fn what_is_tried_again_at_once_was_not_lost() {
        let a = [Key::from("a")];
        let reads = vec![Read { key: a[0].clone(), version: Timestamp::ZERO, dependency: None }];
        let reader = Transaction::new(ClusterId::new([1; 16]), Timestamp::new(5, ClientId(1)), reads, Vec::new()).expect("it reads");
        let mut lost = LostReads::default();
        for _ in 0..LOST_MAX {
            lost.begins(7, &reader);
            lost.note(7, &reader, Decision::Abort);
        }
        assert_eq!(lost.keys[lost.index(&a[0])], 1);
        for _ in 0..LOST {
            lost.begins(8, &reader);
            lost.note(9, &reader, Decision::Abort);
        }
        assert!(lost.are_lost(&a));
    }
}
