//! What a coordinator is set to, what its own side asks of it and hears from it, and what it counts.

use std::sync::Arc;

use engine::ReadMode;
use machine::Voters;
use types::{Cluster, Direction, Key, KeyRange, ReplicaId, Timestamp};

use crate::certificate::Certificate;
use crate::message::Refusal;
use crate::reading::{RangeFound, ReadFound, ReadQuorum};
use crate::transaction::Transaction;

/// How a coordinator is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorOptions {
    /// How many replicas a read asks at first.
    pub read_quorum: ReadQuorum,
    /// Whether unanimous votes end a transaction without logging; off only to measure what that saves (figure 6a).
    pub fast_path: FastPath,
    /// How a transaction that writes nothing commits; by votes only to measure what that costs.
    pub read_only: ReadOnly,
    /// Whether the proof of a commit on one shard goes to relays alone, where contention is low. Scripts turn it off to
    /// follow the proof to each replica.
    pub relay_one_shard: bool,
    /// After how long at least a read asks the replicas it has not asked yet: later where they are known to be farther away.
    pub read_escalation_ms: u64,
    /// After how long at least an unanswered request is sent again, likewise; doubled each time.
    pub retry_ms: u64,
    /// After how long an operation is given up. The outcome of a commit is then unknown to this process.
    pub timeout_ms: u64,
    /// For how long a client takes timestamps from what a replica has said of its clock, in milliseconds from when it was asked. No client of a
    /// cluster may do so for longer than its replicas expect.
    pub clock_good_ms: u64,
}

impl CoordinatorOptions {
    /// How a reader is served that says this of its transaction.
    pub(super) fn mode(self, said: ReadMode) -> ReadMode {
        if said == ReadMode::ReadOnly && self.read_only != ReadOnly::Validated { ReadMode::Interactive } else { said }
    }
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        Self {
            read_quorum: ReadQuorum::default(),
            fast_path: FastPath::On,
            read_only: ReadOnly::Validated,
            relay_one_shard: true,
            read_escalation_ms: 20,
            retry_ms: 100,
            timeout_ms: 10_000,
            clock_good_ms: 2_000,
        }
    }
}

/// How a transaction that writes nothing commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOnly {
    /// When enough replicas have validated what it read ([`crate::read_only`]).
    #[default]
    Validated,
    /// Like any other, by their votes, as in the paper.
    #[cfg(feature = "lab")]
    Voted,
}

/// Whether unanimous votes are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPath {
    /// They are (§4.2).
    #[default]
    On,
    /// Every decision is logged.
    #[cfg(feature = "lab")]
    Off,
}

/// What its own side asks of a coordinator.
#[derive(Clone, Debug)]
pub enum Command {
    /// Read keys at a timestamp. Ends in [`Event::Read`].
    Read {
        /// The asker's number for it.
        operation: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys, each once.
        keys: Vec<Key>,
        /// What is known of the transaction. Of one that only reads so many replicas are asked at once that it may then commit by this
        /// alone ([`crate::read_only`]). One that reads the past is told what is validated, and nothing else.
        mode: ReadMode,
    },
    /// Read a range at a timestamp: the `limit` keys that have values and come first from one of its ends. Ends in [`Event::Scanned`].
    Scan {
        /// The asker's number for it.
        operation: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys.
        range: KeyRange,
        /// From which end.
        direction: Direction,
        /// How many of them at most, and at least one.
        limit: usize,
        /// As for [`Command::Read`].
        mode: ReadMode,
    },
    /// Bring a transaction to its end. Ends in [`Event::Ended`].
    Commit {
        /// The asker's number for it.
        operation: u64,
        /// The transaction.
        transaction: Transaction,
        /// The undecided transactions it read from, to be finished if nobody else does.
        dependencies: Vec<Transaction>,
    },
    /// Commit a transaction that has only read. Ends in [`Event::Validated`], or, when it had to be prepared, in [`Event::Ended`].
    CommitReads {
        /// The asker's number for it.
        operation: u64,
        /// The transaction.
        transaction: Transaction,
        /// The replicas that validate each of its reads ([`crate::Buffer::validated`]).
        validated: Vec<Voters>,
    },
    /// Finish a transaction that somebody else left (§5). Nobody is told.
    Finish {
        /// The transaction.
        transaction: Transaction,
    },
    /// The operators have changed the cluster, whose shape stays. What a key signed that is its place's no more is asked for again. Nobody is told.
    Reconfigure {
        /// The cluster as it is now.
        cluster: Arc<Cluster>,
    },
    /// This process is now connected with these replicas and no others; with all of them, until it is told so first. Nobody is told.
    Connected {
        /// The replicas, of all shards.
        replicas: Vec<ReplicaId>,
    },
}

impl Command {
    /// The same command under the asker's number `operation`.
    #[must_use]
    pub fn numbered(mut self, number: u64) -> Self {
        match &mut self {
            Self::Read { operation, .. }
            | Self::Scan { operation, .. }
            | Self::Commit { operation, .. }
            | Self::CommitReads { operation, .. } => *operation = number,
            Self::Finish { .. } | Self::Reconfigure { .. } | Self::Connected { .. } => {}
        }
        self
    }
}

/// How a transaction came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The votes alone were durable: one round trip.
    Fast,
    /// The decision was logged: two round trips.
    Slow,
    /// Somebody else had finished it.
    Recovered,
}

/// Why an operation did not end as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// So many replicas refuse it that it can never happen.
    Refused(Refusal),
    /// Its timestamp may lie below what was acknowledged before it began, as this process has noticed since. It never takes place.
    TooLow,
    /// Too few replicas answered in time, or enough of a commit's refused it for now, as told here. A commit may still take place.
    TimedOut(Option<Refusal>),
}

/// What a coordinator tells its own side.
#[derive(Clone, Debug)]
pub enum Event {
    /// A read is done.
    Read {
        /// The asker's number for it.
        operation: u64,
        /// What was found, in the order of the keys asked for.
        result: Result<Vec<ReadFound>, Failure>,
    },
    /// A range is read.
    Scanned {
        /// The asker's number for it.
        operation: u64,
        /// What was found.
        result: Result<RangeFound, Failure>,
    },
    /// A transaction has ended.
    Ended {
        /// The asker's number for it.
        operation: u64,
        /// How, with the proof and the way there.
        result: Result<(Arc<Certificate>, Path), Failure>,
    },
    /// A transaction that only read has committed, without being prepared.
    Validated {
        /// The asker's number for it.
        operation: u64,
    },
}

/// What a coordinator has done since it started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorCounts {
    /// Transactions that only read and were not prepared.
    pub validated: u64,
    /// Transactions that only read and had to ask once more at commit, however that went.
    pub validation_rounds: u64,
    /// Transactions ended over the fast path.
    pub fast: u64,
    /// Transactions ended over the slow path.
    pub slow: u64,
    /// Transactions that somebody else had ended.
    pub recovered: u64,
    /// Transactions of others it set out to finish.
    pub finishes: u64,
    /// Transactions whose logged decisions did not come together, so that a leader had to be elected.
    pub fallbacks: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Reads that had to ask more replicas.
    pub read_escalations: u64,
    /// Reads that were settled, as such reads had been lost again and again.
    pub settled_reads: u64,
    /// Times a replica took no transaction, because this client has left too many for others to end.
    pub abandon_limited: u64,
    /// Times a replica took no more of this client, because the operators limit it.
    pub client_limited: u64,
}
