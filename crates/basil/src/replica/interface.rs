//! What a replica is set to, what it tells its own side, and what it counts.

use engine::Durations;
use types::ClientId;

use crate::certificate::{Certificate, Decision, Proof};
use crate::check::AbortReason;
use crate::coordinator::CoordinatorOptions;
use crate::transaction::Transaction;

/// How a replica is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaOptions {
    /// `δ`: how far ahead of its own clock a replica accepts timestamps.
    pub time_bound_ms: u64,
    /// How far back a timestamp may lie at all: decided transactions below are forgotten. A transaction that is only
    /// now prepared may lie back half as far, so that whoever has to finish it has the other half to reach everybody.
    pub window_ms: u64,
    /// For how long, in milliseconds, clients rely on what a replica has said of its clock: what [`CoordinatorOptions::clock_good_ms`] is for them.
    /// For so long a replica whose clock was set answers no read and casts no vote.
    ///
    /// [`CoordinatorOptions::clock_good_ms`]: crate::CoordinatorOptions::clock_good_ms
    pub clock_good_ms: u64,
    /// After how long an undecided transaction is finished by the replica itself, or named to those it stops.
    pub janitor_timeout_ms: u64,
    /// How long a transaction that somebody else brought waits for its author, or for evidence, before it is voted down.
    pub authorship_wait_ms: u64,
    /// How often versions are checkpointed, the journal is released, and old transactions are forgotten.
    pub checkpoint_ms: u64,
    /// How often another replica is asked for what this one lacks, where a shard has six; every page of what it has is compared half as often,
    /// or oftener while something differs. 0 is never.
    pub catch_up_ms: u64,
    /// The most undecided transactions held; more are refused as [`Refusal::Overloaded`](crate::Refusal::Overloaded).
    /// One client may have 2,048 with 65,000 keys, a quarter, and half of what is free. What others finish has room of its own, a quarter as much.
    pub undecided_max: usize,
    /// The most bytes of undecided transactions held. One client may have a quarter, and half of what is free.
    pub undecided_bytes_max: usize,
    /// How many of a client's transactions a second others may have to end; one that leaves more finds its next ones refused as
    /// [`Refusal::AbandonLimit`](crate::Refusal::AbandonLimit).
    pub abandoned_per_second: u32,
    /// So many seconds' worth of these may come at once.
    pub abandoned_burst_seconds: u32,
    /// The most transactions remembered, decided ones included.
    pub tracked_max: usize,
    /// The most memory that decided transactions take; beyond, values are let go of the oldest of those that wrote on other shards, too. Nothing new is
    /// prepared when they take twice as much.
    pub decided_bytes_max: usize,
    /// Versions are checkpointed into the base table when those in memory take so many bytes,
    pub memtable_bytes_max: usize,
    /// or when the journal is so long.
    pub journal_bytes_max: u64,
    /// How many buckets the keys share for their read timestamps, of sixteen bytes each.
    pub read_timestamps: usize,
    /// A number nobody else knows, drawn by the shell: it decides which keys share a read timestamp.
    pub seed: u64,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            time_bound_ms: 500,
            window_ms: 10_000,
            clock_good_ms: CoordinatorOptions::default().clock_good_ms,
            janitor_timeout_ms: 1_000,
            authorship_wait_ms: 2_000,
            checkpoint_ms: 5_000,
            catch_up_ms: 1_000,
            undecided_max: 100_000,
            undecided_bytes_max: 1 << 30,
            abandoned_per_second: 50,
            abandoned_burst_seconds: 10,
            tracked_max: 2_000_000,
            decided_bytes_max: 1 << 30,
            memtable_bytes_max: 128 << 20,
            journal_bytes_max: 512 << 20,
            read_timestamps: 1 << 20,
            seed: 0,
        }
    }
}

/// What a replica tells its own side.
#[derive(Clone, Debug)]
pub enum ReplicaEvent {
    /// A transaction has been undecided for too long: somebody should finish it.
    Stalled {
        /// The transaction.
        transaction: Transaction,
        /// This replica's vote on it waits for another transaction.
        is_waiting: bool,
    },
    /// A client claimed to have read from its own future: proof that it lies, kept with its name.
    Misbehavior {
        /// Whose transaction it is.
        client: ClientId,
        /// That client's key, by which this replica has judged it.
        public_key: Option<[u8; 32]>,
        /// The transaction, which proves it.
        transaction: Transaction,
    },
    /// A client has brought a transaction of its own to its end: it committed.
    Committed {
        /// The client.
        client: ClientId,
    },
}

/// What a replica has done since it started, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Keys read for clients.
    pub keys_read: u64,
    /// Answers to reads without a promise, as a writer of one of the keys was held off of late.
    pub reads_unpromised: u64,
    /// Votes cast to commit.
    pub votes_commit: u64,
    /// Votes cast to abort.
    pub votes_abort: u64,
    /// Of these, how many for which [`AbortReason`], by [`AbortReason::number`].
    pub votes_abort_by: [u64; AbortReason::LABELS.len()],
    /// Votes repeated for those who asked again.
    pub votes_repeated: u64,
    /// Decisions logged, for clients on the slow path or for leaders.
    pub logged: u64,
    /// Times it was elected to reconcile a transaction's logged decisions.
    pub elected: u64,
    /// Transactions learned to have committed.
    pub committed: u64,
    /// Transactions learned to have aborted.
    pub aborted: u64,
    /// Of both, how long after the replica met the transaction: by [`ReplicaCounts::PATHS`], and by the decision.
    pub concluded_after: [[Durations; 2]; Self::PATHS.len()],
    /// Transactions that somebody other than their author ended here.
    pub abandoned: u64,
    /// Requests refused.
    pub refused: u64,
    /// Transactions handed over to be finished because nobody else did.
    pub stalled: u64,
    /// Orphans released.
    pub orphans_released: u64,
    /// Commits learned from what others of the shard remember.
    pub commits_taken_over: u64,
    /// Versions taken over from others of the shard.
    pub versions_taken_over: u64,
    /// Versions of its own that were wrong, and were put right.
    pub versions_mended: u64,
    /// Pages of versions compared with others'.
    pub pages_compared: u64,
    /// Times that all versions were compared.
    pub passes: u64,
    /// Times that it was rebuilt after it lost its disk.
    pub rebuilt: u64,
}

impl ReplicaCounts {
    /// What shows a replica an outcome: a proof of votes alone, of a decision that was logged, of one that a fallback leader made, or
    /// no proof, but the word of enough other replicas.
    pub const PATHS: [&str; 4] = ["fast", "slow", "fallback", "unproven"];

    /// A transaction has ended that the replica met `elapsed_ns` nanoseconds before.
    pub(super) fn count_conclusion(&mut self, decision: Decision, certificate: Option<&Certificate>, elapsed_ns: u64) {
        let path = match certificate.map(|certificate| &certificate.proof) {
            Some(Proof::Fast(_)) => 0,
            Some(Proof::Logged(logged)) if logged.view_decision == 0 => 1,
            Some(Proof::Logged(_)) => 2,
            None => 3,
        };
        let outcome = match decision {
            Decision::Commit => 0,
            Decision::Abort => 1,
        };
        *[&mut self.committed, &mut self.aborted][outcome] += 1;
        self.concluded_after[path][outcome].add(elapsed_ns / 1_000);
    }
}
