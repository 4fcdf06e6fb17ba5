//! What a pool has done.

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
    /// Transactions sent back because a write of this pool had overtaken what they read.
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

    pub(crate) fn note_committed(&mut self, size: usize) {
        if self.sizes.len() <= size {
            self.sizes.resize(size + 1, 0);
        }
        self.sizes[size] += 1;
        self.committed += size as u64;
    }
}
