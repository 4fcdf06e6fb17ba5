//! What an interactive transaction has read and means to write, before it is prepared (Basil §4.1).

use std::collections::{BTreeMap, BTreeSet};

use crate::transaction::{RANGE_DELETED_MAX, Read, Transaction, TransactionError, Write};
use machine::Voters;
use mutants::{Mutant, broken};
use types::{ClusterId, Key, KeyRange, Timestamp, Value};

use crate::reading::{RangeFound, ReadFound};

/// The read set and the write buffer of one transaction.
#[derive(Clone, Debug)]
pub struct Buffer {
    timestamp: Timestamp,
    reads: BTreeMap<Key, ReadFound>,
    scans: Scans,
    writes: BTreeMap<Key, Option<Value>>,
}

/// What a transaction has read of ranges.
#[derive(Clone, Debug, Default)]
struct Scans {
    /// What has no read of its own in there has no value.
    ranges: Vec<KeyRange>,
    /// How many keys are known to have been deleted in them.
    deleted: usize,
    /// Not all of them are validated.
    is_open: bool,
    /// A read and a range, or two ranges, told of a key otherwise. It cannot have been shown one state.
    is_contradicted: bool,
}

impl Scans {
    /// Whether `key` was found to have no value, if it has no read of its own.
    fn hold(&self, key: &Key) -> bool {
        self.ranges.iter().any(|range| range.contains(key))
    }
}

impl Buffer {
    /// A transaction that begins at `timestamp`.
    #[must_use]
    pub fn new(timestamp: Timestamp) -> Self {
        Self { timestamp, reads: BTreeMap::new(), scans: Scans::default(), writes: BTreeMap::new() }
    }

    /// Its place in the serial order.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Moves it to another place. What it has read is checked for there when it is prepared.
    pub fn move_to(&mut self, timestamp: Timestamp) {
        self.timestamp = timestamp;
    }

    /// What the transaction itself knows of `key`: its own write, else what it read before; `None` when it has to ask.
    #[must_use]
    pub fn known(&self, key: &Key) -> Option<Option<Value>> {
        self.writes.get(key).cloned().or_else(|| self.reads.get(key).map(|found| found.value.clone()))
    }

    /// Takes in what a read found. The first read of a key counts; a later one cannot see another version.
    ///
    /// Whoever reads a range is not told of a key that has no value there, though the transaction may go by a version of it: one that is undecided
    /// and deletes it. So a read of it may come later, and must find no value either.
    pub fn found(&mut self, found: ReadFound) {
        let is_absent = self.reads.get(&found.key).is_none_or(|known| known.value.is_none());
        if found.value.is_some() && is_absent && self.scans.hold(&found.key) {
            self.scans.is_contradicted = true;
        }
        self.reads.entry(found.key.clone()).or_insert(found);
    }

    /// Takes in what a scan found.
    ///
    /// Of a key that was read before, the first read counts. Where the two do not agree on whether the key has a value, the transaction
    /// was shown more than one state: the replicas could not know, as it names one version of a key, so it must not be prepared.
    pub fn scanned(&mut self, scan: RangeFound) {
        let RangeFound { range, found, deleted, is_validated } = scan;
        let has_value: BTreeSet<&Key> = found.iter().filter(|found| found.value.is_some()).map(|found| &found.key).collect();
        let known = self.reads.range(range.low()..range.high());
        let read_otherwise = known.clone().any(|(key, read)| read.value.is_some() != has_value.contains(key));
        let is_new = |key: &&&Key| self.scans.hold(key) && !self.reads.contains_key(**key);
        self.scans.is_contradicted |= read_otherwise || has_value.iter().any(|key| is_new(&key));
        self.scans.deleted += deleted;
        self.scans.is_open |= !is_validated;
        self.scans.ranges.push(range);
        for found in found {
            self.reads.entry(found.key.clone()).or_insert(found);
        }
    }

    /// Whether it has read any range.
    #[must_use]
    pub fn has_scanned(&self) -> bool {
        !self.scans.ranges.is_empty()
    }

    /// Writes `key`; `None` deletes it. Nobody sees it before the transaction is prepared.
    pub fn write(&mut self, key: Key, value: Option<Value>) {
        self.writes.insert(key, value);
    }

    /// When it has only read, and only what is committed and may be validated: the replicas that validate each of its reads, in the order in
    /// which the finished transaction has them. It may then commit without being prepared ([`crate::read_only`]).
    #[must_use]
    pub fn validated(&self) -> Option<Vec<Voters>> {
        let depends = self.reads.values().any(|found| found.dependency.is_some()) && !broken(Mutant::DependencyValidated);
        let is_withheld = self.reads.values().any(|found| found.is_withheld);
        let may_be = self.writes.is_empty() && !depends && !is_withheld && !self.scans.is_open && !self.scans.is_contradicted;
        may_be.then(|| self.reads.values().map(|found| found.validated).collect())
    }

    /// How many keys it means to write.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    /// What it has read, in key order.
    pub fn read_set(&self) -> impl ExactSizeIterator<Item = &ReadFound> {
        self.reads.values()
    }

    /// What it means to write, in key order; `None` deletes.
    pub fn write_set(&self) -> impl ExactSizeIterator<Item = (&Key, &Option<Value>)> {
        self.writes.iter()
    }

    /// Whether it has neither read nor written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.scans.ranges.is_empty()
    }

    /// The finished transaction, and the undecided ones it read from.
    ///
    /// # Errors
    /// [`TransactionError`] when it has grown over a limit, and [`TransactionError::Contradicted`] when it cannot have been shown one state.
    pub fn finish(self, cluster: ClusterId) -> Result<(Transaction, Vec<Transaction>), TransactionError> {
        if self.scans.is_contradicted && !broken(Mutant::RangeContradicted) {
            return Err(TransactionError::Contradicted);
        }
        if self.scans.deleted > RANGE_DELETED_MAX {
            return Err(TransactionError::TooManyDeleted);
        }
        let mut dependencies: Vec<Transaction> = Vec::new();
        let mut reads = Vec::with_capacity(self.reads.len());
        for (key, found) in self.reads {
            let dependency = found.dependency.map(|transaction| {
                let id = transaction.id();
                if dependencies.iter().all(|known| known.id() != id) {
                    dependencies.push(transaction);
                }
                id
            });
            reads.push(Read { key, version: found.version, dependency });
        }
        let writes = self.writes.into_iter().map(|(key, value)| Write { key, value }).collect();
        Ok((Transaction::with_ranges(cluster, self.timestamp, reads, self.scans.ranges, writes)?, dependencies))
    }
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    fn found(key: &str, value: Option<&str>) -> ReadFound {
        let version = Timestamp::new(u64::from(value.is_some()), ClientId(1));
        let (value, validated) = (value.map(Value::from), Voters::default());
        ReadFound { key: Key::from(key), version, value, dependency: None, validated, is_withheld: false }
    }

    fn scan(low: &str, high: &str, keys: &[&str]) -> RangeFound {
        let range = KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys");
        RangeFound { range, found: keys.iter().map(|key| found(key, Some("1"))).collect(), deleted: 0, is_validated: true }
    }

    /// Whether it may be prepared.
    fn ends(read: impl FnOnce(&mut Buffer)) -> bool {
        let mut buffer = Buffer::new(Timestamp::new(9, ClientId(1)));
        read(&mut buffer);
        let validated = buffer.validated();
        let finished = buffer.finish(ClusterId::new([1; 16]));
        assert_eq!(validated.is_some(), finished.is_ok());
        finished.is_ok()
    }

    #[test]
    fn reads_and_ranges_that_contradict_one_another_are_not_prepared() {
        assert!(ends(|buffer| {
            buffer.found(found("a", Some("1")));
            buffer.found(found("b", None));
            buffer.scanned(scan("a", "c", &["a"]));
            buffer.scanned(scan("b", "e", &["d"]));
            buffer.scanned(scan("a", "e", &["a", "d"]));
            buffer.found(found("c", None));
            buffer.found(found("z", Some("1")));
        }));
        let read_and_left_out = |buffer: &mut Buffer| {
            buffer.found(found("a", Some("1")));
            buffer.scanned(scan("a", "c", &[]));
        };
        let absent_and_found = |buffer: &mut Buffer| {
            buffer.found(found("a", None));
            buffer.scanned(scan("a", "c", &["a"]));
        };
        let left_out_and_read = |buffer: &mut Buffer| {
            buffer.scanned(scan("a", "c", &[]));
            buffer.found(found("b", Some("1")));
        };
        let deleted_and_read = |buffer: &mut Buffer| {
            buffer.scanned(RangeFound { found: vec![found("b", None)], ..scan("a", "c", &[]) });
            buffer.found(found("b", Some("1")));
        };
        let scanned_twice = |buffer: &mut Buffer| {
            buffer.scanned(scan("a", "c", &[]));
            buffer.scanned(scan("b", "d", &["b"]));
        };
        assert!(!ends(read_and_left_out) && !ends(absent_and_found) && !ends(left_out_and_read) && !ends(scanned_twice));
        assert!(!ends(deleted_and_read));
    }

    #[test]
    fn a_range_that_not_all_validate_has_to_be_prepared() {
        let mut buffer = Buffer::new(Timestamp::new(9, ClientId(1)));
        buffer.scanned(scan("a", "c", &[]));
        assert_eq!((buffer.is_empty(), buffer.validated()), (false, Some(Vec::new())));
        buffer.scanned(RangeFound { is_validated: false, ..scan("d", "e", &[]) });
        assert_eq!(buffer.validated(), None);
    }

    #[test]
    fn a_transaction_holds_a_bounded_number_of_deleted_keys() {
        let deleted = |deleted: usize| {
            let mut buffer = Buffer::new(Timestamp::new(9, ClientId(1)));
            buffer.scanned(RangeFound { deleted, ..scan("a", "c", &[]) });
            buffer.scanned(RangeFound { deleted: 1, ..scan("d", "e", &[]) });
            buffer.finish(ClusterId::new([1; 16])).err()
        };
        assert_eq!((deleted(RANGE_DELETED_MAX - 1), deleted(RANGE_DELETED_MAX)), (None, Some(TransactionError::TooManyDeleted)));
    }
}
