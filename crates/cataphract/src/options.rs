//! How a pool is set.

use types::limits::TRANSACTION_BYTES_MAX;

use crate::batch_builder::ConflictRule;
use crate::size::BatchSize;

/// In which order a batch reads and writes (cataphract.txt §3.2, figure 8c).
///
/// Writes cost nothing before the commit, so that what the order decides is how long before the check the reads are.
/// Results are the same: each read is resolved by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Reads last, right before the commit: what was read has the least time to become stale. The paper's default.
    #[default]
    ReadAfterWrite,
    /// Reads first: the next batch is formed and read while others are still in flight, and commits when there is room.
    WriteAfterRead,
}

/// How a pool is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// How many transactions a batch may have.
    pub size: BatchSize,
    /// When a batch reads.
    pub order: Order,
    /// What happens to a transaction that conflicts with an earlier member of the batch.
    pub conflicts: ConflictRule,
    /// How many batches may be in flight at once. While they are, the next one forms.
    pub in_flight: usize,
    /// How many bytes a batch may have; no more than [`TRANSACTION_BYTES_MAX`].
    pub batch_bytes_max: usize,
    /// How many transactions may be in the pool, in flight or waiting.
    pub members_max: usize,
    /// For how long a transaction whose operations are known is tried again when it meets another, in milliseconds.
    pub retry_ms: u64,
    /// What waits before retries are drawn from: two pools with the same seed would wait alike.
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
            members_max: 65_536,
            retry_ms: 10_000,
            seed: 0,
        }
    }
}
