//! What an engine's pool offers: it joins transactions of one process into few.

use machine::Time;
use types::limits::TRANSACTION_BYTES_MAX;
use types::{Key, Timestamp, Value};

use crate::opaque::Evidence;
use crate::outcome::{Commit, Response};
use crate::refusal::Refusal;
use crate::request::{Operation, Request};

/// The most transactions any batch may have.
pub const BATCH_MAX: usize = 4_096;

/// Joins transactions into batches. It has no clock and does nothing by itself: its owner says what time it is, calls
/// [`Pool::advance`] when there is something to do, carries its [`PoolRequest`]s to the session, and brings the answers back.
pub trait Pool: Send {
    /// Takes in a transaction. Its end will be told under `ticket`, which no other may have.
    ///
    /// # Errors
    /// [`NotTaken`], when there is nothing to it, no room for it, or it came from another engine.
    fn submit(&mut self, now: Time, ticket: u64, work: Work) -> Result<(), NotTaken>;

    /// Takes a transaction out again that nobody waits for any more. `false` when it is under way: then it keeps its place in
    /// the pool until its batch ends, and is not tried again.
    fn withdraw(&mut self, ticket: u64) -> bool;

    /// Begins whatever can begin. `timestamp` gives a new one each time, above all before.
    fn advance(&mut self, now: Time, timestamp: &mut dyn FnMut() -> Timestamp, out: &mut PoolOutput);

    /// What came of a request: the session's answer, or, where the client was closed, [`Refusal::OutcomeUnknown`] when it gave none to a
    /// commit, and [`Refusal::Unavailable`] when it was not asked to commit.
    fn on_outcome(&mut self, now: Time, batch: u64, outcome: Result<Response, Refusal>, out: &mut PoolOutput);

    /// Whether [`Pool::advance`] might begin something at `now`.
    fn can_advance(&self, now: Time) -> bool;

    /// When to call [`Pool::advance`] at the latest, though nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// How many transactions wait to be part of a batch.
    fn waiting(&self) -> usize;

    /// How many batches are under way.
    fn under_way(&self) -> usize;

    /// How many transactions a batch may have at present.
    fn batch_limit(&self) -> usize;

    /// Whether as many wait as the next batch may have.
    fn has_full_batch(&self) -> bool;

    /// What has been done.
    fn counts(&self) -> &PoolCounts;
}

/// Makes an engine's pools.
pub type PoolMaker = Box<dyn Fn(PoolOptions) -> Box<dyn Pool> + Send + Sync>;

/// A transaction that wants to be part of a batch.
#[derive(Debug)]
pub enum Work {
    /// All its operations are known, and none has run. They compare nothing.
    Declared(Vec<Operation>),
    /// It ran on its own, and has only to commit.
    Interactive {
        /// The timestamp at which it ran.
        timestamp: Timestamp,
        /// The evidence of its reads.
        reads: Vec<Evidence>,
        /// What it writes, each key once, in key order; `None` deletes.
        writes: Vec<(Key, Option<Value>)>,
    },
}

/// Why a pool does not take a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// There are [`PoolOptions::members_max`] in the pool.
    Full,
    /// It does nothing.
    Empty,
    /// The pool cannot run it: it compares, it has read ranges, or its evidence is another engine's.
    Unfit,
}

/// Something for the session to do.
#[derive(Debug)]
pub struct PoolRequest {
    /// For which batch.
    pub batch: u64,
    /// Whether it commits: without an answer, nobody knows then whether the batch takes place.
    pub commits: bool,
    /// What to ask.
    pub request: Request,
}

/// What comes of one call: what to ask the session, and whom to tell what.
#[derive(Debug, Default)]
pub struct PoolOutput {
    /// To be asked.
    pub requests: Vec<PoolRequest>,
    /// The ends of transactions, by ticket.
    pub outcomes: Vec<(u64, Result<Committed, Refusal>)>,
}

/// A transaction that committed in a batch.
#[derive(Clone, Debug)]
pub struct Committed {
    /// What its reads found, in the order of its `Get`s; nothing for one that ran on its own.
    pub values: Vec<Option<Value>>,
    /// The batch's commit, and the transaction's place in it.
    pub commit: Commit,
    /// How many batches it was part of, this one included.
    pub attempts: u32,
}

/// How many transactions a batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// At most so many, always: the paper's batch size. A batch does not wait to be full.
    Fixed(usize),
    /// Found out while it runs: more while batches commit and transactions wait, fewer when batches abort or take long.
    Adaptive {
        /// Never more than this.
        max: usize,
    },
}

/// In which order a batch reads and writes (Cataphract §3.2, figure 8c).
///
/// Writes cost nothing before the commit, so that what the order decides is how long before the check the reads are.
/// Results are the same: each read is resolved by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Reads last, right before the commit: what was read has the least time to become stale. The paper's default.
    #[default]
    ReadAfterWrite,
    /// Reads first: the next batch is formed and read while others are still under way, and commits when there is room.
    WriteAfterRead,
}

/// What happens to a transaction that reads what an earlier member of the batch writes, or writes what one reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictRule {
    /// It joins, and reads the earlier member's buffered write.
    #[default]
    Chain,
    /// It waits for a later batch; others may still join this one.
    LeaveOut,
    /// The batch ends before it: the paper's rule.
    EndBatch,
}

/// How a pool is set. The defaults suit most: batches as large as the load makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// How many transactions a batch may have.
    pub size: BatchSize,
    /// Whether a batch reads right before it commits, or while others still are under way.
    pub order: Order,
    /// What happens to a transaction that conflicts with an earlier one of the same batch.
    pub conflicts: ConflictRule,
    /// How many batches may be under way at once. While they are, the next one forms.
    pub in_flight: usize,
    /// How many bytes a batch may have; the engine's own limit holds as well. The client library lowers it to what its operators allow the client.
    pub batch_bytes_max: usize,
    /// How many keys a batch may read and write, together; the engine's own limits hold as well. The client library lowers it likewise.
    pub batch_keys_max: usize,
    /// How many transactions may be in the pool, under way or waiting; more wait outside.
    pub members_max: usize,
    /// For how long a transaction whose operations are known is tried again when it meets another, and any may wait to be part of a batch, in
    /// milliseconds. The client library sets it to its own.
    pub retry_ms: u64,
    /// What waits before retries are drawn from: two pools with the same seed would wait alike. The client library draws it.
    pub seed: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            size: BatchSize::Adaptive { max: 1_024 },
            order: Order::default(),
            conflicts: ConflictRule::default(),
            in_flight: 4,
            batch_bytes_max: TRANSACTION_BYTES_MAX / 4,
            batch_keys_max: usize::MAX,
            members_max: 65_536,
            retry_ms: 10_000,
            seed: 0,
        }
    }
}

/// What a pool has done since it began, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Transactions that committed.
    pub committed: u64,
    /// How many batches of 0, 1, 2… transactions committed.
    pub sizes: Vec<u64>,
    /// Batches that were aborted.
    pub aborted: u64,
    /// Batches that were parted in two, aborted or refused.
    pub split: u64,
    /// Keys read from the store.
    pub outside_reads: u64,
    /// Reads of a write of the same transaction.
    pub own_reads: u64,
    /// Reads of a write of an earlier transaction of the batch.
    pub chained_reads: u64,
    /// Times that a transaction did not fit into a batch beside those in it, and was left to a later one.
    pub deferred: u64,
    /// Batches that ended at a conflict: only by the paper's rule.
    pub ended_at_conflict: u64,
    /// Transactions sent back because a write of this pool made stale what they read.
    pub stale: u64,
    /// Transactions given back to their owner to be begun again.
    pub conflicts: u64,
}

impl PoolCounts {
    /// Batches that committed.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Counts a batch that committed.
    pub fn note_committed(&mut self, size: usize) {
        if self.sizes.len() <= size {
            self.sizes.resize(size + 1, 0);
        }
        self.sizes[size] += 1;
        self.committed += size as u64;
    }
}
