//! MVTSO-Check: Algorithm 1 of Basil up to L14, one rule a function, each branch with its line number. What follows a check that
//! passed, L14 to L19, is in [`crate::replica`]: there a transaction is prepared, waits for its dependencies, and is voted on.
//!
//! The check decides from the replica's `Knowledge`, and from nothing else: it changes nothing and asks no store. Whoever calls it looks up the newest versions of the keys read first, which is the only part that can fail.

use mutants::{Mutant, broken};
use types::{Cluster, Key, ShardId, Timestamp, TransactionId};

use crate::transaction::{Read, Transaction, Write};

/// What a replica knows that bears on one transaction.
pub(crate) trait Knowledge {
    /// The key is of this replica's shard. The other shards judge the rest.
    fn holds(&self, key: &Key) -> bool;
    /// Another transaction with the same timestamp that is prepared or committed here.
    fn timestamp_holder(&self) -> Option<TransactionId>;
    /// The state of the transaction that is said to have written `version` of `key`.
    fn dependency(&self, id: TransactionId, key: &Key, version: Timestamp) -> Dependency;
    /// The newest committed version below the transaction's timestamp of the key that its read number `read` names.
    fn newest_committed(&self, read: usize) -> Option<Timestamp>;
    /// The newest prepared, undecided write of that key below the transaction's timestamp.
    fn newest_prepared(&self, read: usize) -> Option<(Timestamp, TransactionId)>;
    /// What has a value, or may get one, below the transaction's timestamp in its range number `range`, though the transaction does not say
    /// to have read it.
    fn unread(&self, range: usize) -> Unread;
    /// The committed transaction that wrote a version, where it is still known.
    fn writer_of(&self, version: Timestamp) -> Option<TransactionId>;
    /// Whether a prepared or committed transaction above `timestamp` read a version of `key` below it.
    fn reader_past(&self, key: &Key, timestamp: Timestamp) -> ReaderPast;
    /// `RTS`: the newest timestamp at which anybody may have read the key that the transaction's write number `write` names, by itself or in
    /// a range.
    fn read_timestamp(&self, write: usize) -> Timestamp;
}

/// What a replica knows of a transaction that another one read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependency {
    Committed,
    Prepared,
    Aborted,
    /// It is not known here, or it did not write that version.
    Invalid,
}

/// What a replica knows of those who read past a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderPast {
    /// There is none.
    None,
    /// This transaction is one.
    Is(TransactionId),
    /// There are more readers than are looked at for one vote, and so there may be one.
    Unknown,
}

/// What a replica knows in a range that a transaction read, beside what the transaction says to have read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// No key has a value.
    Nothing,
    /// This transaction, which is prepared and undecided, writes one.
    Prepared(TransactionId),
    /// One has a value, committed with this timestamp.
    Committed(Timestamp),
    /// There are more keys than are looked at for one vote.
    Unknown,
}

/// What a replica's own clock and memory let it judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// `localClock + δ`, in nanoseconds: no transaction may lie above.
    pub newest: u64,
    /// Nothing below this is judged, in nanoseconds: versions there have been checkpointed, or this replica's process began later.
    pub oldest: u64,
    /// Writes below this may have been read without the replica remembering (it restarted, or let read
    /// timestamps go to bound its memory), so it votes against them. In nanoseconds.
    pub write_floor: u64,
}

/// L14: the transaction may be prepared, and committed once these dependencies are (L15). Or the vote is to abort, for this reason.
pub(crate) type CheckResult = Result<Vec<TransactionId>, AbortReason>;

/// Why a transaction is voted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// L1: its timestamp lies too far in the future.
    TooNew,
    /// Its author came so late with it, or it waited for its author or for somebody to finish it so long, that it is not judged any more; or
    /// it was there before the replica's process.
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
    /// A range that it read holds more deleted keys than are looked at for one vote.
    RangeTooLong,
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
    pub const LABELS: [&'static str; 12] = [
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
        "range_too_long",
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
            Self::RangeTooLong => 11,
        }
    }
}

/// Algorithm 1. Only keys of the replica's own shard are judged.
pub(crate) fn check(known: &impl Knowledge, transaction: &Transaction, bounds: Bounds) -> CheckResult {
    check_timestamp(known, transaction.timestamp(), bounds)?;
    let mut pending = Vec::new();
    for (number, read) in transaction.reads().iter().enumerate() {
        if known.holds(&read.key) {
            pending.extend(check_read(known, transaction.timestamp(), number, read)?);
        }
    }
    for range in 0..transaction.ranges().len() {
        check_range(known, range)?;
    }
    for (number, write) in transaction.writes().iter().enumerate() {
        if known.holds(&write.key) {
            check_write(known, transaction.timestamp(), bounds, number, write)?;
        }
    }
    pending.sort_unstable();
    pending.dedup();
    Ok(pending) // L14
}

fn check_timestamp(known: &impl Knowledge, timestamp: Timestamp, bounds: Bounds) -> Result<(), AbortReason> {
    if timestamp.time > bounds.newest && !broken(Mutant::FutureEntered) {
        return Err(AbortReason::TooNew); // L1-2
    }
    if timestamp.time < bounds.oldest && !broken(Mutant::PastEntered) {
        return Err(AbortReason::TooOld);
    }
    match known.timestamp_holder() {
        // Beyond the paper, which takes timestamps to be unique. Of two transactions with one timestamp no correct replica votes for
        // both, so at most one gathers a quorum, and a version names one writer.
        Some(other) if !broken(Mutant::TimestampShared) => Err(AbortReason::TimestampTaken(other)),
        _ => Ok(()),
    }
}

/// Gives the dependency that the vote has to wait for, if the read has one.
fn check_read(known: &impl Knowledge, timestamp: Timestamp, number: usize, read: &Read) -> Result<Option<TransactionId>, AbortReason> {
    if read.version >= timestamp && !broken(Mutant::FutureRead) {
        return Err(AbortReason::Misbehavior); // L6
    }
    let pending = match read.dependency {
        Some(id) => check_dependency(known, id, read)?,
        None => None,
    };
    missed_write(known, number, read.version)?;
    Ok(pending)
}

/// L3-4.
fn check_dependency(known: &impl Knowledge, id: TransactionId, read: &Read) -> Result<Option<TransactionId>, AbortReason> {
    match known.dependency(id, &read.key, read.version) {
        Dependency::Committed => Ok(None),
        Dependency::Prepared => Ok(Some(id)),
        Dependency::Aborted if broken(Mutant::DependencyAbortForgotten) => Ok(None),
        Dependency::Aborted => Err(AbortReason::DependencyAborted), // L16, already known
        Dependency::Invalid if broken(Mutant::DependencyUnknown) => Ok(None),
        Dependency::Invalid => Err(AbortReason::InvalidDependency),
    }
}

/// L7-8: a committed or prepared write lies between the version read and the reader.
fn missed_write(known: &impl Knowledge, read: usize, version: Timestamp) -> Result<(), AbortReason> {
    if let Some((_, writer)) = known.newest_prepared(read).filter(|(newest, _)| version < *newest)
        && !broken(Mutant::PreparedWriteMissed)
    {
        return Err(AbortReason::MissedWrite(Some(writer)));
    }
    match known.newest_committed(read) {
        Some(newest) if newest > version && !broken(Mutant::CommittedWriteMissed) => Err(AbortReason::MissedWrite(known.writer_of(newest))),
        _ => Ok(()),
    }
}

/// L7-8 for the keys of a range (beyond the paper): one that the transaction does not say to have read has no value, and gets none.
fn check_range(known: &impl Knowledge, range: usize) -> Result<(), AbortReason> {
    match known.unread(range) {
        Unread::Prepared(writer) if !broken(Mutant::PreparedPhantom) => Err(AbortReason::MissedWrite(Some(writer))),
        Unread::Committed(version) if !broken(Mutant::CommittedPhantom) => Err(AbortReason::MissedWrite(known.writer_of(version))),
        Unread::Unknown => Err(AbortReason::RangeTooLong),
        Unread::Nothing | Unread::Prepared(_) | Unread::Committed(_) => Ok(()),
    }
}

fn check_write(known: &impl Knowledge, timestamp: Timestamp, bounds: Bounds, number: usize, write: &Write) -> Result<(), AbortReason> {
    match known.reader_past(&write.key, timestamp) {
        ReaderPast::Is(other) if !broken(Mutant::ReaderMissed) => return Err(AbortReason::ReadByOther(other)), // L10-11
        ReaderPast::Unknown => return Err(AbortReason::ReadTimestamp), // As if one were found: a vote to abort is always safe.
        ReaderPast::None | ReaderPast::Is(_) => {}
    }
    let is_read_past = known.read_timestamp(number) > timestamp && !broken(Mutant::ReadTimestampIgnored);
    if is_read_past || (timestamp.time < bounds.write_floor && !broken(Mutant::WriteFloorIgnored)) {
        return Err(AbortReason::ReadTimestamp); // L12-13
    }
    Ok(())
}

/// Whether `transaction` cannot commit because `other`, which did, conflicts with it at a key of `shard`: it
/// missed a write of the other, or the other read past what it writes (L7, L10). Needs no replica's state, so
/// anyone can check a certificate that says so.
///
/// A range is never part of such a proof: a value that the transaction does not say to have read there may have been deleted again
/// below its timestamp, by a transaction that the proof does not show. Then both may commit.
#[must_use]
pub fn conflict_at(cluster: &Cluster, shard: ShardId, transaction: &Transaction, other: &Transaction) -> bool {
    if transaction.id() == other.id() {
        return false;
    }
    // Whether `writer`, which comes first, writes a key there of which `reader` read an older version.
    let misses = |reader: &Transaction, writer: &Transaction| {
        let is_older = |read: &&Read| cluster.shard_of(&read.key) == shard && read.version < writer.timestamp();
        writer.timestamp() < reader.timestamp()
            && reader.examine(|parts| writer.examine(|other| parts.reads.iter().filter(is_older).any(|read| other.writes_key(&read.key))))
    };
    misses(transaction, other) || misses(other, transaction) || broken(Mutant::ConflictInvented)
}

/// Whether `other` may stand in the way of `transaction` at a key of `shard`, for all that the two show: they conflict, or one writes in
/// a range where the other found nothing. That proves nothing, but is reason enough to finish `other`.
pub(crate) fn may_conflict_at(cluster: &Cluster, shard: ShardId, transaction: &Transaction, other: &Transaction) -> bool {
    let writes_into = |writer: &Transaction, reader: &Transaction| {
        writer.timestamp() < reader.timestamp()
            && writer.writes().iter().any(|write| cluster.shard_of(&write.key) == shard && reader.found_absent(&write.key))
    };
    conflict_at(cluster, shard, transaction, other) || writes_into(transaction, other) || writes_into(other, transaction)
}

#[cfg(test)]
mod tests {
    use types::{ClientId, ClusterId, KeyRange};

    use super::*;
    use crate::testing::one_shard;

    const OTHER: TransactionId = TransactionId([7; 32]);
    const BOUNDS: Bounds = Bounds { newest: 1_000, oldest: 10, write_floor: 0 };

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    /// A replica that knows one thing at most about each line. Key `z` is of another shard.
    #[derive(Default)]
    struct Known {
        timestamp_holder: Option<TransactionId>,
        dependency: Option<Dependency>,
        committed: Option<u64>,
        prepared: Option<u64>,
        unread: Option<Unread>,
        reader_past: Option<ReaderPast>,
        read_timestamp: u64,
    }

    impl Knowledge for Known {
        fn holds(&self, key: &Key) -> bool {
            *key != Key::from("z")
        }
        fn timestamp_holder(&self) -> Option<TransactionId> {
            self.timestamp_holder
        }
        fn dependency(&self, _: TransactionId, _: &Key, _: Timestamp) -> Dependency {
            self.dependency.unwrap_or(Dependency::Invalid)
        }
        fn newest_committed(&self, _: usize) -> Option<Timestamp> {
            self.committed.map(at)
        }
        fn newest_prepared(&self, _: usize) -> Option<(Timestamp, TransactionId)> {
            self.prepared.map(|time| (at(time), OTHER))
        }
        fn unread(&self, _: usize) -> Unread {
            self.unread.unwrap_or(Unread::Nothing)
        }
        fn writer_of(&self, _: Timestamp) -> Option<TransactionId> {
            None
        }
        fn reader_past(&self, _: &Key, _: Timestamp) -> ReaderPast {
            self.reader_past.unwrap_or(ReaderPast::None)
        }
        fn read_timestamp(&self, _: usize) -> Timestamp {
            at(self.read_timestamp)
        }
    }

    fn transaction(time: u64, reads: Vec<Read>, writes: &[&str]) -> Transaction {
        let writes = writes.iter().map(|key| Write { key: Key::from(*key), value: None }).collect();
        Transaction::new(ClusterId::new([1; 16]), at(time), reads, writes).expect("it is small")
    }

    fn read(key: &str, version: u64, dependency: Option<TransactionId>) -> Read {
        Read { key: Key::from(key), version: at(version), dependency }
    }

    #[test]
    fn lines_1_and_2_bound_the_timestamp() {
        let result = |time| check(&Known::default(), &transaction(time, vec![], &["a"]), BOUNDS);
        assert_eq!(result(1_001), Err(AbortReason::TooNew));
        assert_eq!(result(1_000), Ok(vec![]));
        assert_eq!(result(9), Err(AbortReason::TooOld));
        let known = Known { timestamp_holder: Some(OTHER), ..Known::default() };
        assert_eq!(check(&known, &transaction(50, vec![], &["a"]), BOUNDS), Err(AbortReason::TimestampTaken(OTHER)));
    }

    #[test]
    fn lines_3_and_4_judge_the_dependency() {
        let result = |dependency| {
            let known = Known { dependency: Some(dependency), ..Known::default() };
            check(&known, &transaction(50, vec![read("a", 40, Some(OTHER)), read("b", 40, Some(OTHER))], &[]), BOUNDS)
        };
        assert_eq!(result(Dependency::Committed), Ok(vec![]));
        assert_eq!(result(Dependency::Prepared), Ok(vec![OTHER]), "it is waited for once");
        assert_eq!(result(Dependency::Aborted), Err(AbortReason::DependencyAborted));
        assert_eq!(result(Dependency::Invalid), Err(AbortReason::InvalidDependency));
    }

    #[test]
    fn lines_5_to_8_judge_the_version_read() {
        let result = |known: &Known, version| check(known, &transaction(50, vec![read("a", version, None)], &[]), BOUNDS);
        assert_eq!(result(&Known::default(), 50), Err(AbortReason::Misbehavior));
        let prepared = Known { prepared: Some(40), ..Known::default() };
        assert_eq!((result(&prepared, 40), result(&prepared, 39)), (Ok(vec![]), Err(AbortReason::MissedWrite(Some(OTHER)))));
        let committed = Known { committed: Some(40), ..Known::default() };
        assert_eq!((result(&committed, 40), result(&committed, 39)), (Ok(vec![]), Err(AbortReason::MissedWrite(None))));
    }

    #[test]
    fn a_range_has_no_value_that_was_not_read() {
        let range = KeyRange::new(Key::from("a"), Key::from("c")).expect("it has keys");
        let reader = |ranges| Transaction::with_ranges(ClusterId::new([1; 16]), at(50), vec![], ranges, vec![]).expect("it is small");
        let result = |unread| check(&Known { unread: Some(unread), ..Known::default() }, &reader(vec![range.clone()]), BOUNDS);
        assert_eq!(result(Unread::Nothing), Ok(vec![]));
        assert_eq!(result(Unread::Prepared(OTHER)), Err(AbortReason::MissedWrite(Some(OTHER))));
        assert_eq!(result(Unread::Committed(at(40))), Err(AbortReason::MissedWrite(None)));
        assert_eq!(result(Unread::Unknown), Err(AbortReason::RangeTooLong));
        let without = Known { unread: Some(Unread::Unknown), ..Known::default() };
        assert_eq!(check(&without, &reader(vec![]), BOUNDS), Ok(vec![]));
    }

    #[test]
    fn a_write_into_a_range_proves_no_conflict_but_is_worth_finishing() {
        let cluster = one_shard();
        let range = KeyRange::new(Key::from("a"), Key::from("c")).expect("it has keys");
        let reader = Transaction::with_ranges(cluster.id(), at(50), vec![read("b", 20, None)], vec![range], vec![]).expect("it is small");
        let judged = |time, key| {
            let writer = transaction(time, vec![], &[key]);
            let may = may_conflict_at(&cluster, ShardId(0), &reader, &writer);
            assert_eq!(may, may_conflict_at(&cluster, ShardId(0), &writer, &reader));
            (conflict_at(&cluster, ShardId(0), &reader, &writer), may)
        };
        assert_eq!((judged(40, "a"), judged(60, "a"), judged(40, "c")), ((false, true), (false, false), (false, false)));
        assert_eq!((judged(40, "b"), judged(10, "b")), ((true, true), (false, false)));
    }

    #[test]
    fn lines_9_to_13_judge_the_key_written() {
        let result = |known: &Known, bounds| check(known, &transaction(50, vec![], &["a"]), bounds);
        let read_past = Known { reader_past: Some(ReaderPast::Is(OTHER)), ..Known::default() };
        assert_eq!(result(&read_past, BOUNDS), Err(AbortReason::ReadByOther(OTHER)));
        let unknown = Known { reader_past: Some(ReaderPast::Unknown), ..Known::default() };
        assert_eq!(result(&unknown, BOUNDS), Err(AbortReason::ReadTimestamp));
        let read_at = |read_timestamp| Known { read_timestamp, ..Known::default() };
        assert_eq!((result(&read_at(50), BOUNDS), result(&read_at(51), BOUNDS)), (Ok(vec![]), Err(AbortReason::ReadTimestamp)));
        assert_eq!(result(&read_at(0), Bounds { write_floor: 51, ..BOUNDS }), Err(AbortReason::ReadTimestamp));
    }

    #[test]
    fn keys_of_other_shards_are_left_to_them() {
        let known = Known {
            committed: Some(40),
            prepared: Some(40),
            reader_past: Some(ReaderPast::Is(OTHER)),
            read_timestamp: 60,
            ..Known::default()
        };
        let elsewhere = transaction(50, vec![read("z", 99, Some(OTHER))], &["z"]);
        assert_eq!(check(&known, &elsewhere, BOUNDS), Ok(vec![]));
    }
}
