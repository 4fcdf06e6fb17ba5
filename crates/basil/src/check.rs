//! MVTSO-Check: Algorithm 1 of basil.txt, one rule a function, each branch with its line number.

use crate::transaction::Transaction;
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError};
use types::{Cluster, Key, ShardId, Timestamp, TransactionId};

use crate::transaction_table::TransactionTable;

/// What a replica's own clock and memory let it judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// `localClock + δ`, in nanoseconds: no transaction may lie above.
    pub newest: u64,
    /// Versions below this have been folded into one another, so nothing there can be judged. In nanoseconds.
    pub oldest: u64,
    /// Writes below this may have been read without the replica remembering (it restarted, or let read
    /// timestamps go to bound its memory), so it votes against them. In nanoseconds.
    pub write_floor: u64,
}

/// What the check finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// L14: nothing stands against it; it is to be prepared, and committed once these are.
    Prepare {
        /// Transactions it read from that are not decided yet (L15).
        pending: Vec<TransactionId>,
    },
    /// It is to be voted down.
    Abort(AbortReason),
}

/// Why a transaction is voted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// L1: its timestamp lies too far in the future.
    TooNew,
    /// Its author came so late with it, or it waited for its author or for somebody to finish it so long, that it is not judged any more.
    TooOld,
    /// L3: it claims to have read from a transaction that is not prepared here, or did not write that.
    InvalidDependency,
    /// L6: it claims to have read a version above its own timestamp, which no correct client does.
    Misbehavior,
    /// L7: it missed a write of this transaction, where it is known.
    MissedWrite(Option<TransactionId>),
    /// L10: this transaction read past what it writes.
    ReadByOther(TransactionId),
    /// L12: somebody may have read past what it writes.
    ReadTimestamp,
    /// L16: a transaction it read from aborted.
    DependencyAborted,
    /// Another transaction with the very same timestamp is prepared or committed here.
    TimestampTaken(TransactionId),
    /// Its author has no right to a key it touches.
    NotPermitted,
    /// Nobody has shown that its author sent it.
    NotAuthored,
}

impl AbortReason {
    /// The transaction in the way, where there is one that could be finished or shown.
    #[must_use]
    pub fn conflicting(self) -> Option<TransactionId> {
        match self {
            Self::MissedWrite(other) => other,
            Self::ReadByOther(other) => Some(other),
            _ => None,
        }
    }

    /// Every short name, in the order of [`AbortReason::number`].
    pub const LABELS: [&'static str; 11] = [
        "too_new",
        "too_old",
        "invalid_dependency",
        "misbehavior",
        "missed_write",
        "read_by_other",
        "read_timestamp",
        "dependency_aborted",
        "timestamp_taken",
        "not_permitted",
        "not_authored",
    ];

    /// A short name that does not change, for metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self.number()]
    }

    /// Its place among the labels.
    #[must_use]
    pub fn number(self) -> usize {
        match self {
            Self::TooNew => 0,
            Self::TooOld => 1,
            Self::InvalidDependency => 2,
            Self::Misbehavior => 3,
            Self::MissedWrite(_) => 4,
            Self::ReadByOther(_) => 5,
            Self::ReadTimestamp => 6,
            Self::DependencyAborted => 7,
            Self::TimestampTaken(_) => 8,
            Self::NotPermitted => 9,
            Self::NotAuthored => 10,
        }
    }
}

/// Judges `transaction` against everything this replica has prepared, committed and shown to readers.
/// Only keys of the replica's own shard are judged; the other shards judge the rest.
pub(crate) fn check<M: StorageBackend>(
    table: &mut TransactionTable<M>,
    transaction: &Transaction,
    bounds: Bounds,
) -> Result<CheckResult, StoreError> {
    let timestamp = transaction.timestamp();
    if timestamp.time > bounds.newest && !broken(Mutant::FutureEntered) {
        return Ok(CheckResult::Abort(AbortReason::TooNew)); // L1-2
    }
    if timestamp.time < bounds.oldest && !broken(Mutant::PastEntered) {
        return Ok(CheckResult::Abort(AbortReason::TooOld));
    }
    if let Some(other) = table.timestamp_holder(timestamp, transaction.id())
        && !broken(Mutant::TimestampShared)
    {
        // Beyond the paper, which takes timestamps to be unique: of two transactions with one timestamp no
        // correct replica votes for both, so at most one gathers a quorum and a version names one writer.
        return Ok(CheckResult::Abort(AbortReason::TimestampTaken(other)));
    }
    table.store.prefetch(transaction.keys());
    let mut pending = Vec::new();
    for read in transaction.reads() {
        if !table.holds(&read.key) {
            continue;
        }
        if read.version >= timestamp && !broken(Mutant::FutureRead) {
            return Ok(CheckResult::Abort(AbortReason::Misbehavior)); // L6
        }
        if let Some(dependency) = read.dependency {
            // L3-4
            match table.dependency(dependency, &read.key, read.version) {
                Dependency::Committed => {}
                Dependency::Prepared => pending.push(dependency),
                Dependency::Aborted if broken(Mutant::DependencyAbortForgotten) => {}
                Dependency::Aborted => return Ok(CheckResult::Abort(AbortReason::DependencyAborted)), // L16, already known
                Dependency::Invalid if broken(Mutant::DependencyUnknown) => {}
                Dependency::Invalid => return Ok(CheckResult::Abort(AbortReason::InvalidDependency)),
            }
        }
        if let Some(abort_reason) = missed_write(table, &read.key, read.version, timestamp)? {
            return Ok(CheckResult::Abort(abort_reason)); // L7-8
        }
    }
    for write in transaction.writes() {
        if !table.holds(&write.key) {
            continue;
        }
        if let Some(other) = table.reader_past(&write.key, timestamp)
            && !broken(Mutant::ReaderMissed)
        {
            return Ok(CheckResult::Abort(AbortReason::ReadByOther(other))); // L10-11
        }
        let is_read_past = table.read_timestamp(&write.key) > timestamp && !broken(Mutant::ReadTimestampIgnored);
        if is_read_past || (timestamp.time < bounds.write_floor && !broken(Mutant::WriteFloorIgnored)) {
            return Ok(CheckResult::Abort(AbortReason::ReadTimestamp)); // L12-13
        }
    }
    pending.sort_unstable();
    pending.dedup();
    Ok(CheckResult::Prepare { pending }) // L14
}

/// What a replica knows of a transaction that another one read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependency {
    Committed,
    Prepared,
    Aborted,
    Invalid,
}

/// L7: a committed or prepared write between the version read and the reader.
fn missed_write<M: StorageBackend>(
    table: &mut TransactionTable<M>,
    key: &Key,
    version: Timestamp,
    timestamp: Timestamp,
) -> Result<Option<AbortReason>, StoreError> {
    let (committed, prepared) = table.newest_before(key, timestamp, |committed| committed.timestamp)?;
    if let Some(other) = prepared.filter(|other| version < other.0)
        && !broken(Mutant::PreparedWriteMissed)
    {
        return Ok(Some(AbortReason::MissedWrite(Some(table.id_of(other)))));
    }
    match committed {
        Some(newest) if newest > version && !broken(Mutant::CommittedWriteMissed) => {
            Ok(Some(AbortReason::MissedWrite(table.writer_at(newest))))
        }
        _ => Ok(None),
    }
}

/// Whether `transaction` cannot commit because `other`, which did, conflicts with it at a key of `shard`: it
/// missed a write of the other, or the other read past what it writes (L7, L10). Needs no replica's state, so
/// anyone can check a certificate that says so.
#[must_use]
pub fn conflict_at(cluster: &Cluster, shard: ShardId, transaction: &Transaction, other: &Transaction) -> bool {
    if transaction.id() == other.id() {
        return false;
    }
    let missed = other.timestamp() < transaction.timestamp()
        && transaction
            .reads()
            .iter()
            .any(|read| cluster.shard_of(&read.key) == shard && read.version < other.timestamp() && other.write_of(&read.key).is_some());
    let read_past = transaction.timestamp() < other.timestamp()
        && other.reads().iter().any(|read| {
            cluster.shard_of(&read.key) == shard && read.version < transaction.timestamp() && transaction.write_of(&read.key).is_some()
        });
    missed || read_past || broken(Mutant::ConflictInvented)
}
