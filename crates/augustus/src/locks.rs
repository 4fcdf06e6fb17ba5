//! The lock table: table 2 of the paper.
//!
//! Only pending transactions hold locks, those over several shards that were voted to commit and have not ended. Whoever comes next
//! gets all its locks at once or is aborted, so that nobody waits and there is no deadlock. A transaction does not conflict with
//! itself: one that reads and writes a key holds the stronger lock, if nobody else holds either (lock upgrade).
//!
//! ```text
//!   wants \ held   read     write    range (struct read)     structural (struct write)
//!   read           yes      no       yes                     yes
//!   write          no       no       no, in the range        yes
//!   range          yes      no, ...  yes                     no: anywhere, or in the range
//!   structural     yes      yes      no: anywhere, or ...    yes
//! ```
//!
//! A range lock is the paper's structural read lock with its read locks on all keys in the range. Where structural locks are on
//! the whole shard, an insertion or a deletion anywhere conflicts with any range. As intervals, one does so only in the range:
//! it adds or removes no key in any other, which is all that a range's reader could notice.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use mutants::{Mutant, broken};
use types::{Key, KeyRange};

use crate::pages::PageNumber;

/// Who holds a lock: the page of a pending transaction.
pub type Holder = PageNumber;

/// What structural locks are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Structural {
    /// The keys that are inserted or deleted, and the ranges that are read.
    #[default]
    Intervals,
    /// All keys of the shard, as in the paper.
    WholeShard,
}

/// A lock that a transaction needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock<'a> {
    /// For `cmp` and `read`.
    Read(&'a Key),
    /// For updates.
    Write(&'a Key),
    /// For `read-range`.
    Range(KeyRange),
    /// For `insert` and `delete`, beside the write lock.
    Structural(&'a Key),
}

/// The locks of all pending transactions of a shard.
#[derive(Debug, Default)]
pub struct LockTable {
    structural: Structural,
    writers: BTreeMap<Key, Holder>,
    readers: BTreeMap<Key, BTreeSet<Holder>>,
    /// Who inserts or deletes.
    structural_writers: BTreeSet<Holder>,
    ranges: RangeLocks,
}

impl LockTable {
    /// An empty table.
    #[must_use]
    pub fn new(structural: Structural) -> Self {
        Self { structural, ..Self::default() }
    }

    /// Whether nobody holds a lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writers.is_empty() && self.readers.is_empty() && self.ranges.held.is_empty()
    }

    /// How many ranges are locked.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.ranges.held.len()
    }

    /// Somebody who holds a lock that is not compatible with `lock` (table 2). Of several the same one at every replica.
    #[must_use]
    pub fn conflict(&self, lock: &Lock<'_>) -> Option<Holder> {
        match lock {
            Lock::Read(key) => self.writer(key).filter(|_| !broken(Mutant::ReadOverWriteLock)),
            Lock::Write(key) => {
                let writer = self.writer(key).filter(|_| !broken(Mutant::WriteOverWriteLock));
                let reader = || self.readers.get(key).and_then(BTreeSet::first).copied().filter(|_| !broken(Mutant::WriteOverReadLock));
                let ranger = || self.ranges.holder_at(key).filter(|_| !broken(Mutant::WriteOverRangeLock));
                writer.or_else(reader).or_else(ranger)
            }
            Lock::Range(range) => {
                let mut inside = self.writers.range::<Key, _>((Bound::Included(range.low()), Bound::Excluded(range.high())));
                let writer = inside.next().map(|(_, holder)| *holder).filter(|_| !broken(Mutant::RangeOverWriteLock));
                let anywhere = || match self.structural {
                    // Whoever inserts or deletes in the range has a write lock there, too.
                    Structural::Intervals => None,
                    Structural::WholeShard => self.structural_writers.first().copied(),
                };
                writer.or_else(|| anywhere().filter(|_| !broken(Mutant::RangeOverStructuralLock)))
            }
            Lock::Structural(key) => match self.structural {
                Structural::Intervals => self.ranges.holder_at(key),
                Structural::WholeShard => self.ranges.first(),
            }
            .filter(|_| !broken(Mutant::StructuralOverRangeLock)),
        }
    }

    /// Gives `holder` a lock that nobody's conflicts with.
    pub fn acquire(&mut self, holder: Holder, lock: Lock<'_>) {
        match lock {
            Lock::Read(key) => {
                self.readers.entry(key.detached()).or_default().insert(holder);
            }
            Lock::Write(key) => {
                self.writers.insert(key.detached(), holder);
            }
            Lock::Range(range) => self.ranges.insert(range.detached(), holder),
            Lock::Structural(_) => {
                self.structural_writers.insert(holder);
            }
        }
    }

    /// Takes away a lock that `holder` was given, who keeps no other. Taking away one twice, as where a key is read twice, does nothing.
    pub fn release(&mut self, holder: Holder, lock: &Lock<'_>) {
        match lock {
            Lock::Read(key) => {
                let Some(readers) = self.readers.get_mut(*key) else { return };
                readers.remove(&holder);
                if readers.is_empty() {
                    self.readers.remove(*key);
                }
            }
            Lock::Write(key) => {
                if self.writer(key) == Some(holder) {
                    self.writers.remove(*key);
                }
            }
            Lock::Range(range) => self.ranges.remove(range, holder),
            Lock::Structural(_) => {
                self.structural_writers.remove(&holder);
            }
        }
    }

    fn writer(&self, key: &Key) -> Option<Holder> {
        self.writers.get(key).copied()
    }
}

/// The ranges that are locked. How many cover a key is found without looking at all of them.
#[derive(Debug, Default)]
struct RangeLocks {
    held: BTreeSet<(KeyRange, Holder)>,
    /// From each of these keys to the next, so many ranges cover every key; before the first none does.
    cover: BTreeMap<Key, u32>,
}

impl RangeLocks {
    fn first(&self) -> Option<Holder> {
        self.held.first().map(|(_, holder)| *holder)
    }

    /// The first of those that cover `key`.
    fn holder_at(&self, key: &Key) -> Option<Holder> {
        if self.count_at(key) == 0 {
            return None;
        }
        self.held.iter().find(|(range, _)| range.contains(key)).map(|(_, holder)| *holder)
    }

    fn count_at(&self, key: &Key) -> u32 {
        self.cover.range::<Key, _>(..=key).next_back().map_or(0, |(_, count)| *count)
    }

    fn insert(&mut self, range: KeyRange, holder: Holder) {
        if self.held.insert((range.clone(), holder)) {
            self.change(&range, |count| *count += 1);
        }
    }

    fn remove(&mut self, range: &KeyRange, holder: Holder) {
        if self.held.remove(&(range.clone(), holder)) {
            self.change(range, |count| *count -= 1);
        }
    }

    fn change(&mut self, range: &KeyRange, change: impl Fn(&mut u32)) {
        for bound in [range.low(), range.high()] {
            let count = self.count_at(bound);
            self.cover.entry(bound.clone()).or_insert(count);
        }
        for (_, count) in self.cover.range_mut::<Key, _>((Bound::Included(range.low()), Bound::Excluded(range.high()))) {
            change(count);
        }
        // Bounds at which nothing changes any more are not kept.
        for bound in [range.low(), range.high()] {
            let before = self.cover.range::<Key, _>(..bound).next_back().map_or(0, |(_, count)| *count);
            if self.cover.get(bound) == Some(&before) {
                self.cover.remove(bound);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Holder = PageNumber(7);

    fn range(low: &str, high: &str) -> KeyRange {
        KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys")
    }

    /// Whether a lock may be had beside one that is held, in intervals and on the whole shard.
    #[track_caller]
    fn check(held: &[Lock<'_>], wanted: &Lock<'_>, intervals: bool, whole_shard: bool) {
        for (structural, expected) in [(Structural::Intervals, intervals), (Structural::WholeShard, whole_shard)] {
            let mut table = LockTable::new(structural);
            for lock in held {
                table.acquire(HOLDER, lock.clone());
            }
            let conflict = table.conflict(wanted);
            assert_eq!(conflict.is_none(), expected, "{wanted:?} beside {held:?}, {structural:?}");
            assert!(conflict.is_none_or(|holder| holder == HOLDER));
            for lock in held.iter().chain(held) {
                table.release(HOLDER, lock);
            }
            assert_eq!(table.conflict(wanted), None, "nobody holds a lock any more");
            assert!(table.is_empty() && table.ranges.cover.is_empty() && table.structural_writers.is_empty());
        }
    }

    #[test]
    fn a_read_lock_is_refused_beside_a_write_lock_alone() {
        let (k, l) = (&Key::from("k"), &Key::from("l"));
        check(&[Lock::Read(k)], &Lock::Read(k), true, true);
        check(&[Lock::Write(k)], &Lock::Read(k), false, false);
        check(&[Lock::Write(l)], &Lock::Read(k), true, true);
        check(&[Lock::Range(range("a", "z"))], &Lock::Read(k), true, true);
        check(&[Lock::Structural(k)], &Lock::Read(k), true, true);
    }

    #[test]
    fn a_write_lock_is_refused_beside_a_read_lock() {
        let (k, l) = (&Key::from("k"), &Key::from("l"));
        check(&[Lock::Read(k)], &Lock::Write(k), false, false);
        check(&[Lock::Read(l)], &Lock::Write(k), true, true);
    }

    #[test]
    fn a_write_lock_is_refused_beside_a_write_lock() {
        let (k, l) = (&Key::from("k"), &Key::from("l"));
        check(&[Lock::Write(k)], &Lock::Write(k), false, false);
        check(&[Lock::Write(l)], &Lock::Write(k), true, true);
        check(&[Lock::Structural(k)], &Lock::Write(k), true, true);
    }

    #[test]
    fn a_write_lock_is_refused_in_a_range() {
        let (j, k, l) = (&Key::from("j"), &Key::from("k"), &Key::from("l"));
        check(&[Lock::Range(range("k", "l"))], &Lock::Write(k), false, false);
        check(&[Lock::Range(range("k", "l"))], &Lock::Write(l), true, true);
        check(&[Lock::Range(range("k", "l"))], &Lock::Write(j), true, true);
    }

    #[test]
    fn a_range_is_refused_around_a_write_lock() {
        let (k, l) = (&Key::from("k"), &Key::from("l"));
        check(&[Lock::Read(k)], &Lock::Range(range("a", "z")), true, true);
        check(&[Lock::Range(range("a", "l"))], &Lock::Range(range("k", "z")), true, true);
        check(&[Lock::Write(k)], &Lock::Range(range("k", "l")), false, false);
        check(&[Lock::Write(l)], &Lock::Range(range("k", "l")), true, true);
    }

    #[test]
    fn a_range_is_refused_beside_insertions_anywhere_on_the_whole_shard() {
        let k = &Key::from("k");
        check(&[Lock::Structural(k), Lock::Write(k)], &Lock::Range(range("x", "z")), true, false);
        check(&[Lock::Structural(k), Lock::Write(k)], &Lock::Range(range("a", "z")), false, false);
    }

    #[test]
    fn an_insertion_is_refused_beside_a_range_anywhere_on_the_whole_shard() {
        let k = &Key::from("k");
        check(&[Lock::Range(range("x", "z"))], &Lock::Structural(k), true, false);
        check(&[Lock::Range(range("a", "z"))], &Lock::Structural(k), false, false);
        check(&[Lock::Read(k)], &Lock::Structural(k), true, true);
        check(&[Lock::Write(k)], &Lock::Structural(k), true, true);
        check(&[Lock::Structural(k)], &Lock::Structural(k), true, true);
    }

    /// One of the locks on a few keys and ranges.
    fn lock(keys: &[Key; 6], which: u8) -> Lock<'_> {
        let key = &keys[usize::from(which % 6)];
        match which / 6 {
            0 => Lock::Read(key),
            1 => Lock::Write(key),
            2 => Lock::Structural(key),
            _ => Lock::Range(KeyRange::new(key.clone(), Key::from("g")).expect("it has keys")),
        }
    }

    proptest::proptest! {
        #[test]
        fn the_whole_shard_refuses_whatever_intervals_refuse(held in proptest::collection::vec(0u8..24, 0..8), wanted in 0u8..24) {
            let keys = ["a", "b", "c", "d", "e", "f"].map(Key::from);
            let tables = [Structural::Intervals, Structural::WholeShard].map(|structural| {
                let mut table = LockTable::new(structural);
                for (holder, which) in (0..).zip(&held) {
                    // Who inserts or deletes has the write lock, too.
                    if let Lock::Structural(key) = lock(&keys, *which) {
                        table.acquire(PageNumber(holder), Lock::Write(key));
                    }
                    table.acquire(PageNumber(holder), lock(&keys, *which));
                }
                table
            });
            let [intervals, whole_shard] = tables.map(|table| table.conflict(&lock(&keys, wanted)).is_some());
            assert!(whole_shard || !intervals);
        }

        #[test]
        fn ranges_cover_what_any_of_them_contains(changes in proptest::collection::vec((0u8..12, 1u8..6, 0u32..3, proptest::bool::ANY), 1..60)) {
            let key = |at: u8| Key::new(vec![at]).expect("short");
            let (mut locks, mut held) = (RangeLocks::default(), BTreeSet::new());
            for (low, length, holder, is_held) in changes {
                let (range, holder) = (KeyRange::new(key(low), key(low + length)).expect("it has keys"), PageNumber(holder));
                if is_held {
                    locks.insert(range.clone(), holder);
                    held.insert((range, holder));
                } else {
                    locks.remove(&range, holder);
                    held.remove(&(range, holder));
                }
                for at in 0..20 {
                    let expected = held.iter().find(|(range, _)| range.contains(&key(at))).map(|(_, holder)| *holder);
                    assert_eq!(locks.holder_at(&key(at)), expected);
                }
                assert!(locks.cover.len() <= 2 * held.len());
            }
        }
    }
}
