//! What an interactive transaction has read and means to write, before it is prepared (basil.txt §4.1).

use std::collections::BTreeMap;

use crate::transaction::{Read, Transaction, TransactionError, Write};
use machine::Voters;
use mutants::{Mutant, broken};
use types::{ClusterId, Key, Timestamp, Value};

use crate::reading::ReadFound;

/// The read set and the write buffer of one transaction.
#[derive(Clone, Debug)]
pub struct Buffer {
    timestamp: Timestamp,
    reads: BTreeMap<Key, ReadFound>,
    writes: BTreeMap<Key, Option<Value>>,
}

impl Buffer {
    /// A transaction that begins at `timestamp`.
    #[must_use]
    pub fn new(timestamp: Timestamp) -> Self {
        Self { timestamp, reads: BTreeMap::new(), writes: BTreeMap::new() }
    }

    /// Its place in the serial order.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// What the transaction itself knows of `key`: its own write, else what it read before; `None` when it has to ask.
    #[must_use]
    pub fn known(&self, key: &Key) -> Option<Option<Value>> {
        self.writes.get(key).cloned().or_else(|| self.reads.get(key).map(|found| found.value.clone()))
    }

    /// Takes in what a read found. The first read of a key counts; a later one cannot see another version.
    pub fn found(&mut self, found: ReadFound) {
        self.reads.entry(found.key.clone()).or_insert(found);
    }

    /// Writes `key`; `None` deletes it. Nobody sees it before the transaction is prepared.
    pub fn write(&mut self, key: Key, value: Option<Value>) {
        self.writes.insert(key, value);
    }

    /// When it has only read, and only what is committed: the replicas that validate each of its reads, in the order in which
    /// the finished transaction has them. It may then commit without being prepared ([`crate::read_only`]).
    #[must_use]
    pub fn validated(&self) -> Option<Vec<Voters>> {
        let depends = self.reads.values().any(|found| found.dependency.is_some()) && !broken(Mutant::DependencyValidated);
        let may_be = self.writes.is_empty() && !depends;
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
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// The finished transaction, and the undecided ones it read from.
    ///
    /// # Errors
    /// [`TransactionError`] when it has grown over a limit.
    pub fn finish(self, cluster: ClusterId) -> Result<(Transaction, Vec<Transaction>), TransactionError> {
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
        Ok((Transaction::new(cluster, self.timestamp, reads, writes)?, dependencies))
    }
}
