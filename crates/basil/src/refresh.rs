//! Trying again what the replicas have voted down, without asking the application.
//!
//! A transaction is often voted down for its place in the order alone: what it read is still the newest, but somebody read or
//! wrote above its timestamp meanwhile. At a later timestamp the same reads and the same writes may well commit, so a session
//! prepares them once more, as another transaction. The replicas check it like any other (Algorithm 1): where what it read has
//! been overwritten they vote it down again. The first transaction is proven to have aborted, so that the two never both take
//! place. The paper's clients begin again from the first read instead.
//!
//! So is a transaction that stayed open for so long that the replicas refuse to judge it. `3f + 1` of a shard have refused it then, so that it
//! never takes place.

use crate::certificate::{Certificate, Proof, ShardProof};
use crate::transaction::Transaction;
use machine::Time;
use types::{ClusterId, Timestamp};

/// How often at most one commit is tried at a later timestamp.
const REFRESHES_MAX: u32 = 2;
/// For how long after a commit was asked for it may be tried again, in milliseconds: what took longer is stuck, not late.
const REFRESH_MS_MAX: u64 = 1_000;
/// What is older may have been voted down for that, in nanoseconds: half of the default window is twice as long.
const OLD_NS: u64 = 2_500_000_000;
/// What refreshes in one instant add up to is far below this, in nanoseconds.
const NEAR_NS: u64 = 1_000_000;

/// A transaction being committed, and what it takes to try it again.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The transaction.
    pub transaction: Transaction,
    /// The undecided transactions that it read from.
    pub dependencies: Vec<Transaction>,
    asked_at: Time,
    refreshes: u32,
}

impl Attempt {
    /// The first attempt at a commit that was asked for at `now`.
    #[must_use]
    pub fn first(now: Time, transaction: Transaction, dependencies: Vec<Transaction>) -> Self {
        Self { transaction, dependencies, asked_at: now, refreshes: 0 }
    }

    /// Whether to try again what `aborted` proves to have ended, where the cluster's clock shows `clock`.
    #[must_use]
    pub fn may_refresh(&self, now: Time, clock: u64, aborted: &Certificate) -> bool {
        let is_old = clock.saturating_sub(self.transaction.timestamp().time) > OLD_NS;
        // Later, whoever only reads has more in the way, not less, unless it was voted down for its age.
        let may_help = !self.transaction.writes().is_empty() || is_old;
        self.may_be_tried_later(now) && may_help && !self.is_overwritten(aborted)
    }

    /// Whether it may be tried once more, if it never takes place as it is.
    #[must_use]
    pub fn may_be_tried_later(&self, now: Time) -> bool {
        self.refreshes < REFRESHES_MAX && now.since(self.asked_at) < REFRESH_MS_MAX * 1_000_000
    }

    /// Whether the proof shows a write above what was read: at a later timestamp that is still in the way.
    fn is_overwritten(&self, aborted: &Certificate) -> bool {
        let Proof::Fast(proofs) = &aborted.proof else { return false };
        proofs.iter().any(|proof| {
            let ShardProof::Conflict { transaction: other, .. } = proof else { return false };
            let is_newer = |write: &crate::transaction::Write| {
                self.transaction.read_of(&write.key).is_some_and(|read| read.version < other.timestamp())
            };
            other.writes().iter().any(is_newer)
        })
    }

    /// The same reads, ranges and writes, to be tried at `timestamp`.
    ///
    /// # Panics
    /// When the same parts make no transaction, as they did before.
    pub fn refresh(&mut self, cluster: ClusterId, timestamp: Timestamp) {
        let (reads, writes) = (self.transaction.reads().to_vec(), self.transaction.writes().to_vec());
        let ranges = self.transaction.ranges().to_vec();
        let transaction = Transaction::with_ranges(cluster, timestamp, reads, ranges, writes);
        self.transaction = transaction.expect("the same parts made a transaction before");
        self.refreshes += 1;
    }
}

/// Times for one process's transactions, no two of which are the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct UniqueTimes {
    last: u64,
}

impl UniqueTimes {
    /// A timestamp above `earlier`, of when the cluster's clock shows `clock`.
    pub fn after(&mut self, clock: u64, earlier: Timestamp) -> Timestamp {
        // A last time far above the clock comes from a clock that was wrong: whoever went on from there would stay wrong.
        let is_near = self.last.saturating_sub(clock) < NEAR_NS;
        let last = if is_near { self.last } else { 0 };
        let least = clock.max(earlier.time.saturating_add(1)).max(last.saturating_add(1));
        // Odd, as those that a transaction begins with are even: the same process gives these elsewhere.
        self.last = least | 1;
        Timestamp::new(self.last, earlier.client)
    }
}
