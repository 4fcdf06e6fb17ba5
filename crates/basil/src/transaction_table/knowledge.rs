//! What Algorithm 1 asks of the table ([`crate::check`]).

use std::cell::Cell;

use mutants::{Mutant, broken};
use smallvec::SmallVec;
use store::{StorageBackend, StoreError};
use types::{Key, Timestamp, TransactionId};

use super::TransactionTable;
use crate::certificate::Decision;
use crate::check::{Dependency, Knowledge, ReaderPast, Unread};
use crate::timestamp_index::OrderKey;
use crate::transaction::Transaction;
use crate::transaction_state::Phase;

/// The most readers that one vote looks at, and more for each write: a key may have very many, above a write that comes late.
pub(super) const READERS_MAX: usize = 256;
pub(super) const READERS_EACH_MAX: usize = 4;
/// The most bytes of rows that are read from the base table for one vote. It takes the loop a twentieth of a second, in which it does nothing else.
const READ_BYTES_MAX: usize = 64 << 20;

impl<M: StorageBackend> TransactionTable<M> {
    /// Looks up all that Algorithm 1 needs to judge `transaction`.
    pub fn knowledge(&mut self, transaction: &Transaction) -> Result<TableKnowledge<'_, M>, StoreError> {
        self.store.prefetch(transaction.writes().iter().map(|write| &write.key));
        self.store.prefetch_to_read(transaction.reads().iter().map(|read| &read.key), |_| true);
        let timestamp = transaction.timestamp();
        let mut newest = SmallVec::with_capacity(transaction.reads().len());
        let read_before = self.store.base_table_read_bytes();
        let bytes_left = |table: &Self| READ_BYTES_MAX.saturating_sub((table.store.base_table_read_bytes() - read_before) as usize);
        for read in transaction.reads() {
            newest.push(match self.holds(&read.key) {
                true if bytes_left(self) > 0 || broken(Mutant::VoteReadsAll) => {
                    self.newest_before(&read.key, timestamp, |committed| committed.timestamp)?
                }
                // As if a newer version were found: a vote to abort is always safe. What was read by now is in memory when it comes again.
                true => (Some(timestamp), None),
                false => (None, None),
            });
        }
        let left = bytes_left(self);
        let unread = self.unread(transaction, left)?;
        let read_timestamps = self.readers_of_each(transaction.writes().iter().map(|write| &write.key)).collect();
        let readers_max = READERS_MAX + READERS_EACH_MAX * transaction.writes().len();
        let readers_left = Cell::new(if broken(Mutant::ReadersUncounted) { usize::MAX } else { readers_max });
        Ok(TableKnowledge { table: self, id: transaction.id(), timestamp, newest, unread, read_timestamps, readers_left })
    }

    /// The newest reader of each of `keys`, by itself or in a range, or a later one.
    fn readers_of_each<'a>(&self, keys: impl Iterator<Item = &'a Key> + Clone) -> impl Iterator<Item = Timestamp> {
        let by_key = self.read_timestamps.get_each(keys.clone());
        by_key.into_iter().zip(keys).map(|(by_key, key)| by_key.max(self.range_timestamps.get(key)))
    }
}

/// What a replica knows of one transaction and its keys.
pub(crate) struct TableKnowledge<'a, M: StorageBackend> {
    table: &'a TransactionTable<M>,
    id: TransactionId,
    timestamp: Timestamp,
    /// The newest committed version and the newest prepared writer below `timestamp` of each key read.
    newest: SmallVec<[(Option<Timestamp>, Option<OrderKey>); 8]>,
    /// What there is in each range read, beside what was read there.
    unread: Vec<Unread>,
    /// When each key written was read last.
    read_timestamps: SmallVec<[Timestamp; 8]>,
    /// How many more readers are looked at.
    readers_left: Cell<usize>,
}

impl<M: StorageBackend> Knowledge for TableKnowledge<'_, M> {
    fn holds(&self, key: &Key) -> bool {
        self.table.holds(key)
    }

    fn timestamp_holder(&self) -> Option<TransactionId> {
        self.table.holder_of(self.timestamp).filter(|other| *other != self.id)
    }

    /// A transaction that is not known is no valid dependency: a version's timestamp alone does not tell who wrote it.
    fn dependency(&self, id: TransactionId, key: &Key, version: Timestamp) -> Dependency {
        let Some(state) = self.table.get(id) else { return Dependency::Invalid };
        let is_other = state.transaction.timestamp() != version || !state.transaction.does_write(key);
        if is_other && !broken(Mutant::DependencyOfOther) {
            return Dependency::Invalid;
        }
        match &state.phase {
            Phase::Concluded(conclusion) if conclusion.decision == Decision::Commit => Dependency::Committed,
            Phase::Concluded(_) => Dependency::Aborted,
            Phase::Waiting { .. } | Phase::VotedCommit => Dependency::Prepared,
            Phase::Unjudged | Phase::VotedAbort { .. } | Phase::Released { .. } => Dependency::Invalid,
        }
    }

    fn newest_committed(&self, read: usize) -> Option<Timestamp> {
        self.newest.get(read)?.0
    }

    fn newest_prepared(&self, read: usize) -> Option<(Timestamp, TransactionId)> {
        let writer = self.newest.get(read)?.1?;
        Some((writer.0, self.table.id_of(writer)))
    }

    fn unread(&self, range: usize) -> Unread {
        self.unread.get(range).copied().unwrap_or(Unread::Unknown)
    }

    fn writer_of(&self, version: Timestamp) -> Option<TransactionId> {
        let id = self.table.holder_of(version)?;
        (self.table.get(id)?.decision() == Some(Decision::Commit)).then_some(id)
    }

    fn reader_past(&self, key: &Key, timestamp: Timestamp) -> ReaderPast {
        let Some(meta) = self.table.store.meta(key) else { return ReaderPast::None };
        // Those below have expired. Nothing below them is judged.
        let timestamp = timestamp.max(self.table.store.meta_expired_below());
        for (reader, version) in meta.readers.above(timestamp) {
            if *version < timestamp {
                return ReaderPast::Is(self.table.id_of(*reader));
            }
            let Some(left) = self.readers_left.get().checked_sub(1) else { return ReaderPast::Unknown };
            self.readers_left.set(left);
        }
        ReaderPast::None
    }

    fn read_timestamp(&self, write: usize) -> Timestamp {
        self.read_timestamps[write]
    }
}
