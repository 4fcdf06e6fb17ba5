//! The coordinator: drives reads and decisions for one process, as many at once as it is given (basil.txt §4, §5).
//!
//! A client runs one for its own transactions. A replica runs one beside itself, to finish those that others left.
//!
//! Here is what it is asked and what it tells, and who handles which message. What it does lies in its folder: `reads` (§4.1),
//! `settling` of what has only read, `deciding` (§4.2, §4.3), for which `attempt` says what the answers allow, and `finishing` (§5).

mod attempt;
mod deciding;
mod reads;
mod recovery;
mod settling;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::transaction::Transaction;
use crypto::Verified;
use foldhash::{HashMap, HashMapExt as _};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time, Timers, Voters};
use types::{Cluster, Key, Party, Timestamp, TransactionId};

use self::attempt::CommitAttempt;
use self::reads::{ReadOperation, ReadRequest};
use crate::adaptive_timeout::{AdaptiveTimeout, MedianDuration};
use crate::certificate::Certificate;
use crate::commit_relay::RecentCommits;
use crate::message::{Message, Refusal, Subject};
use crate::quorum::Quorums;
use crate::read_only::ReadValidation;
use crate::reading::{ReadFound, ReadQuorum};
use crate::round_trip::RoundTrips;

/// How a coordinator is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorOptions {
    /// How many replicas a read asks at first.
    pub read_quorum: ReadQuorum,
    /// Whether unanimous votes end a transaction without logging; off only to measure what that saves (figure 6a).
    pub fast_path: FastPath,
    /// How a transaction that writes nothing commits; by votes only to measure what that costs.
    pub read_only: ReadOnly,
    /// After how long at least a read asks the replicas it has not asked yet: later where they are known to be farther away.
    pub read_escalation_ms: u64,
    /// After how long at least an unanswered request is sent again, likewise; doubled each time.
    pub retry_ms: u64,
    /// After how long an operation is given up. The outcome of a commit is then unknown to this process.
    pub timeout_ms: u64,
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        Self {
            read_quorum: ReadQuorum::default(),
            fast_path: FastPath::On,
            read_only: ReadOnly::Validated,
            read_escalation_ms: 20,
            retry_ms: 100,
            timeout_ms: 10_000,
        }
    }
}

/// How a transaction that writes nothing commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOnly {
    /// When enough replicas have settled what it read ([`crate::read_only`]).
    #[default]
    Validated,
    /// Like any other, by their votes, as in the paper.
    Voted,
}

/// Whether unanimous votes are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPath {
    /// They are (§4.2).
    #[default]
    On,
    /// Every decision is logged.
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
        /// Whether the transaction is known to write nothing: so many replicas are asked at once that it may then
        /// commit by this alone ([`crate::read_only`]).
        read_only: bool,
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
        /// For whom its reads are settled ([`crate::Buffer::validated`]).
        validated: Vec<Voters>,
    },
    /// Finish a transaction that somebody else left (§5). Nobody is told.
    Finish {
        /// The transaction.
        transaction: Transaction,
    },
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
    /// Too few replicas answered in time. A commit may still take place.
    TimedOut,
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
    /// Times a replica took no transaction, because this client has left too many for others to end.
    pub abandon_limited: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    ReadEscalation(u64),
    ReadValidation(u64),
    FastPathWait(TransactionId),
    Dependencies(TransactionId),
    Retry(TransactionId),
}

/// Drives transactions for one process.
#[derive(Debug)]
pub struct Coordinator {
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: CoordinatorOptions,
    operations: HashMap<u64, ReadOperation>,
    requests: BTreeMap<u64, ReadRequest>,
    requests_made: u64,
    /// Read-only transactions that ask for what their reads lack, by the number of the request.
    read_validations: BTreeMap<u64, ReadValidation>,
    attempts: HashMap<TransactionId, CommitAttempt>,
    /// How many of them are finished for others.
    finishing: usize,
    timers: Timers<Timer>,
    adaptive_timeout: Vec<AdaptiveTimeout>,
    round_trips: RoundTrips,
    /// How long this process's own transactions take from ST1 to their end, when they wait for nobody else's,
    usual_commit: MedianDuration,
    /// and from their timestamps.
    usual_lifetime: MedianDuration,
    /// What has just committed, and not all replicas have heard of.
    recent_commits: RecentCommits,
    suspects: Vec<Voters>,
    counts: CoordinatorCounts,
}

type Out = OutboxOf<Coordinator>;

impl Coordinator {
    /// A coordinator for `cluster`, with nothing to do yet.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, options: CoordinatorOptions) -> Self {
        let shards = cluster.shards().count();
        let quorums = Quorums::new(cluster.faults());
        Self {
            round_trips: RoundTrips::new(quorums, shards),
            quorums,
            cluster,
            options,
            operations: HashMap::new(),
            requests: BTreeMap::new(),
            requests_made: 0,
            read_validations: BTreeMap::new(),
            attempts: HashMap::new(),
            finishing: 0,
            timers: Timers::default(),
            adaptive_timeout: vec![AdaptiveTimeout::default(); shards],
            usual_commit: MedianDuration::default(),
            usual_lifetime: MedianDuration::default(),
            recent_commits: RecentCommits::default(),
            suspects: vec![Voters::default(); shards],
            counts: CoordinatorCounts::default(),
        }
    }

    /// What has been done since the start.
    #[must_use]
    pub fn counts(&self) -> CoordinatorCounts {
        self.counts
    }

    /// How many reads and how many transactions are under way.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.operations.len(), self.attempts.len())
    }
}

impl Machine for Coordinator {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = std::convert::Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(Command::Read { operation, timestamp, keys, read_only }) => {
                let read_only = read_only && self.options.read_only == ReadOnly::Validated;
                self.on_read_command(now, operation, timestamp, keys, read_only, outbox);
            }
            Input::Command(Command::CommitReads { operation, transaction, .. }) if self.options.read_only == ReadOnly::Voted => {
                self.on_commit_command(now, Some(operation), transaction, Vec::new(), outbox);
            }
            Input::Command(Command::CommitReads { operation, transaction, validated }) => {
                self.on_commit_reads_command(now, operation, transaction, validated, outbox);
            }
            Input::Command(Command::Commit { operation, transaction, dependencies }) => {
                self.on_commit_command(now, Some(operation), transaction, dependencies, outbox);
            }
            Input::Command(Command::Finish { transaction }) => self.on_finish_command(now, transaction, outbox),
            Input::Message { from: Party::Replica(from), message } => {
                match message.into_inner() {
                    Message::ReadReply { request, results, prepared } => {
                        self.on_read_reply(now, from, request, results, &prepared, outbox);
                    }
                    Message::Voted { vote, conflict } => self.on_voted(now, from, vote, conflict, outbox),
                    Message::Logged { logged } => self.on_logged(now, from, logged, outbox),
                    Message::Decided { certificate } => self.on_decided(now, certificate, outbox),
                    Message::Refused { subject: Subject::Request(number), refusal } => {
                        self.on_read_refused(now, from, number, refusal, outbox);
                    }
                    Message::Refused { subject: Subject::Transaction(id), refusal } => self.on_refused(from, id, refusal, outbox),
                    // Requests; the replica beside this machine hears those.
                    Message::Read { .. }
                    | Message::Prepare { .. }
                    | Message::Recover { .. }
                    | Message::Log { .. }
                    | Message::InvokeFallback { .. }
                    | Message::ElectFallback { .. }
                    | Message::DecideFallback { .. }
                    | Message::StatusQuery { .. }
                    | Message::StatusReply { .. }
                    | Message::Writeback { .. }
                    | Message::CommitNotice { .. } => {}
                }
            }
            Input::Message { from: Party::Client(..), .. } => {}
            Input::Tick => {
                while let Some(timer) = self.timers.expire(now) {
                    match timer {
                        Timer::ReadEscalation(number) => self.on_read_escalation(now, number, outbox),
                        Timer::ReadValidation(number) => self.on_confirmation_over(now, number, outbox),
                        Timer::FastPathWait(id) => self.on_fast_path_wait_over(now, id, outbox),
                        Timer::Dependencies(id) => self.finish_dependencies(now, id, outbox),
                        Timer::Retry(id) => self.on_retry(now, id, outbox),
                    }
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.timers.next()
    }
}

impl Durable for Coordinator {
    type Failure = std::convert::Infallible;

    /// A coordinator keeps nothing: whatever it leaves, the replicas can finish.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}
