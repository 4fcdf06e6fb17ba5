//! What pools count, for Prometheus.

use engine::PoolCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use runtime::Metrics;

/// The counts of all pools of one connection.
#[derive(Clone, Debug)]
pub(crate) struct PoolMetrics {
    transactions: Counter,
    batch_transactions: Histogram,
    aborted: Counter,
    split: Counter,
    outside_reads: Counter,
    own_reads: Counter,
    chained_reads: Counter,
    deferred: Counter,
    stale: Counter,
    conflicts: Counter,
}

impl PoolMetrics {
    /// New ones, shown among `metrics`.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            transactions: Counter::default(),
            batch_transactions: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            aborted: Counter::default(),
            split: Counter::default(),
            outside_reads: Counter::default(),
            own_reads: Counter::default(),
            chained_reads: Counter::default(),
            deferred: Counter::default(),
            stale: Counter::default(),
            conflicts: Counter::default(),
        };
        metrics.register(|registry| {
            let mut counter = |name: &str, help: &str, counter: &Counter| registry.register(name, help, counter.clone());
            counter("pool_transactions", "Transactions that committed in a batch", &own.transactions);
            counter("pool_batches_aborted", "Batches that were aborted", &own.aborted);
            counter("pool_batches_split", "Batches that were parted in two and tried again", &own.split);
            counter("pool_reads_outside", "Keys that batches read from the store", &own.outside_reads);
            counter("pool_reads_own", "Reads of a write of the same transaction", &own.own_reads);
            counter("pool_reads_chained", "Reads of a write of an earlier transaction of the batch", &own.chained_reads);
            counter("pool_deferred", "Times that a transaction was left to a later batch", &own.deferred);
            counter("pool_stale", "Transactions known here to have read what is no longer so", &own.stale);
            counter("pool_conflicts", "Transactions given back to be begun again", &own.conflicts);
            registry.register(
                "pool_batch_transactions",
                "How many transactions a batch that committed had",
                own.batch_transactions.clone(),
            );
        });
        own
    }

    /// Counts what `counts` has more than `told`, which it then equals.
    pub fn tell(&self, counts: &PoolCounts, told: &mut PoolCounts) {
        let more = |counter: &Counter, now: u64, before: &mut u64| {
            if now > *before {
                counter.inc_by(now - *before);
                *before = now;
            }
        };
        if counts.committed > told.committed {
            told.sizes.resize(counts.sizes.len(), 0);
            for (size, (now, before)) in counts.sizes.iter().zip(&mut told.sizes).enumerate() {
                while *before < *now {
                    self.batch_transactions.observe(size as f64);
                    *before += 1;
                }
            }
        }
        more(&self.transactions, counts.committed, &mut told.committed);
        more(&self.aborted, counts.aborted, &mut told.aborted);
        more(&self.split, counts.split, &mut told.split);
        more(&self.outside_reads, counts.outside_reads, &mut told.outside_reads);
        more(&self.own_reads, counts.own_reads, &mut told.own_reads);
        more(&self.chained_reads, counts.chained_reads, &mut told.chained_reads);
        more(&self.deferred, counts.deferred, &mut told.deferred);
        more(&self.stale, counts.stale, &mut told.stale);
        more(&self.conflicts, counts.conflicts, &mut told.conflicts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_told_once() {
        let metrics = Metrics::default();
        let pool = PoolMetrics::new(&metrics);
        let mut told = PoolCounts::default();
        let counts = PoolCounts { committed: 7, sizes: vec![0, 1, 0, 2], chained_reads: 5, ..PoolCounts::default() };
        pool.tell(&counts, &mut told);
        pool.tell(&counts, &mut told);
        assert_eq!(told, counts);
        let text = metrics.to_text();
        assert!(text.contains("bezant_pool_transactions_total 7"), "{text}");
        assert!(text.contains("bezant_pool_reads_chained_total 5"), "{text}");
        assert!(text.contains("bezant_pool_batch_transactions_count 3"), "{text}");
    }
}
