//! Running a workload over pools: how they are set, and what they did.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use client::{BATCH_MAX, BatchSize, ConflictRule, Order, Pool, PoolCounts, PoolOptions};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::round;

/// The most batches that may be in flight at once.
const IN_FLIGHT_MAX: u64 = 1_024;

/// How the pools are set, if there are any.
#[derive(Clone, Debug, Args)]
pub struct PoolArgs {
    /// Join the clients' transactions into few: one pool on each connection (Cataphract)
    #[arg(long)]
    pub pool: bool,
    /// How many transactions a batch may have: a number, or `auto` for as many as do well
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = batch, requires = "pool")]
    pub batch: Batch,
    /// When a batch reads: last thing before it commits, or first, while others are still in flight
    #[arg(long, value_enum, default_value_t = OrderArg::ReadAfterWrite, requires = "pool")]
    pub order: OrderArg,
    /// What happens to a transaction that reads what an earlier one of its batch writes, or writes what one reads
    #[arg(long, value_enum, default_value_t = ChainArg::On, requires = "pool")]
    pub chain: ChainArg,
    /// How many batches of each pool may be in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=IN_FLIGHT_MAX as i64), requires = "pool")]
    pub in_flight: u32,
}

/// How many transactions a batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// As many as do well.
    Auto,
    /// At most so many.
    Fixed(NonZeroUsize),
}

/// When a batch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// Last thing before it commits, as is best in the paper
    ReadAfterWrite,
    /// First, while others are still in flight
    WriteAfterRead,
}

/// What happens to a transaction that conflicts with an earlier one of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChainArg {
    /// It joins, and reads what the earlier one writes
    On,
    /// It waits for a later batch
    Off,
    /// The batch ends before it: the paper's rule
    Paper,
}

impl PoolArgs {
    /// What the pools are set to; none when there are to be none.
    pub(crate) fn options(&self) -> Option<PoolOptions> {
        let size = match self.batch {
            Batch::Auto => PoolOptions::default().size,
            Batch::Fixed(size) => BatchSize::Fixed(size.get()),
        };
        let order = match self.order {
            OrderArg::ReadAfterWrite => Order::ReadAfterWrite,
            OrderArg::WriteAfterRead => Order::WriteAfterRead,
        };
        let conflicts = match self.chain {
            ChainArg::On => ConflictRule::Chain,
            ChainArg::Off => ConflictRule::LeaveOut,
            ChainArg::Paper => ConflictRule::EndBatch,
        };
        let in_flight = self.in_flight as usize;
        self.pool.then(|| PoolOptions { size, order, conflicts, in_flight, ..PoolOptions::default() })
    }

    /// What was chosen, for the report.
    pub(crate) fn settings(&self) -> Vec<(&'static str, Json)> {
        if !self.pool {
            return Vec::new();
        }
        let name = |value: Option<clap::builder::PossibleValue>| value.map_or(Json::Null, |value| json!(value.get_name()));
        let batch = match self.batch {
            Batch::Auto => json!("auto"),
            Batch::Fixed(size) => json!(size),
        };
        vec![
            ("pool_batch", batch),
            ("pool_order", name(self.order.to_possible_value())),
            ("pool_chain", name(self.chain.to_possible_value())),
            ("pool_in_flight", json!(self.in_flight)),
        ]
    }
}

fn batch(text: &str) -> Result<Batch, String> {
    let wrong = || format!("`auto` or a number from 1 to {BATCH_MAX} was expected");
    match text {
        "auto" => Ok(Batch::Auto),
        _ => text.parse().ok().filter(|size: &NonZeroUsize| size.get() <= BATCH_MAX).map(Batch::Fixed).ok_or_else(wrong),
    }
}

/// What all pools together have done so far.
pub(crate) fn sample(pools: &[Pool]) -> PoolCounts {
    let mut sum = PoolCounts::default();
    for pool in pools {
        let counts = pool.counts();
        add(&mut sum, &counts, |sum, one| sum + one);
    }
    sum
}

fn add(sum: &mut PoolCounts, other: &PoolCounts, combine: impl Fn(u64, u64) -> u64) {
    sum.sizes.resize(sum.sizes.len().max(other.sizes.len()), 0);
    sum.sizes.iter_mut().zip(&other.sizes).for_each(|(sum, one)| *sum = combine(*sum, *one));
    for (sum, one) in [
        (&mut sum.committed, other.committed),
        (&mut sum.aborted, other.aborted),
        (&mut sum.split, other.split),
        (&mut sum.outside_reads, other.outside_reads),
        (&mut sum.own_reads, other.own_reads),
        (&mut sum.chained_reads, other.chained_reads),
        (&mut sum.deferred, other.deferred),
        (&mut sum.ended_at_conflict, other.ended_at_conflict),
        (&mut sum.stale, other.stale),
        (&mut sum.conflicts, other.conflicts),
    ] {
        *sum = combine(*sum, one);
    }
}

/// What the pools did in the window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReport {
    /// Batches that committed.
    pub batches: u64,
    /// The same a second.
    pub batches_per_second: f64,
    /// Of the batches that were tried, which part was aborted.
    pub batch_abort_rate: f64,
    /// How many transactions the batches had that committed.
    pub batch_size: BatchSizes,
    /// Batches that were parted in two and tried again.
    pub split: u64,
    /// Keys read from the store.
    pub outside_reads: u64,
    /// Reads of a write of the same transaction.
    pub own_reads: u64,
    /// Reads of a write of an earlier transaction of the batch.
    pub chained_reads: u64,
    /// Times that a transaction was left to a later batch.
    pub deferred: u64,
    /// Batches that ended at a conflict.
    pub ended_at_conflict: u64,
    /// Transactions known to have read what is no longer so.
    pub stale: u64,
    /// Transactions given back to be begun again.
    pub conflicts: u64,
}

/// How many transactions batches had; all 0 when there were none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchSizes {
    /// The mean.
    pub mean: f64,
    /// Half of the batches had no more.
    pub p50: usize,
    /// 95 of a hundred had no more.
    pub p95: usize,
    /// The largest.
    pub max: usize,
    /// How many batches had at most 1, 2, 4, 8… transactions and more than half as many, without trailing zeros.
    pub up_to_powers_of_two: Vec<u64>,
}

impl PoolReport {
    /// Between two samples, `seconds` apart.
    pub(crate) fn between(before: &PoolCounts, after: &PoolCounts, seconds: f64) -> Self {
        let mut counts = after.clone();
        add(&mut counts, before, u64::saturating_sub);
        let batches = counts.batches();
        let share = |part: u64, whole: u64| if whole > 0 { round(part as f64 / whole as f64, 4) } else { 0.0 };
        Self {
            batches,
            batches_per_second: if seconds > 0.0 { round(batches as f64 / seconds, 1) } else { 0.0 },
            batch_abort_rate: share(counts.aborted, counts.aborted + batches),
            batch_size: BatchSizes::of(&counts.sizes),
            split: counts.split,
            outside_reads: counts.outside_reads,
            own_reads: counts.own_reads,
            chained_reads: counts.chained_reads,
            deferred: counts.deferred,
            ended_at_conflict: counts.ended_at_conflict,
            stale: counts.stale,
            conflicts: counts.conflicts,
        }
    }
}

impl PoolReport {
    /// What people read of it.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let BatchSizes { mean, p50, p95, max, .. } = &self.batch_size;
        let aborted = self.batch_abort_rate * 100.0;
        let reads = format!("{} from the store, {} chained, {} own", self.outside_reads, self.chained_reads, self.own_reads);
        vec![
            (
                "batches",
                format!("{} ({:.0} a second), {aborted:.1} % aborted, {} split", self.batches, self.batches_per_second, self.split),
            ),
            ("batch size", format!("mean {mean:.1}   p50 {p50}   p95 {p95}   max {max}")),
            ("pool's reads", reads),
        ]
    }
}

impl BatchSizes {
    fn of(sizes: &[u64]) -> Self {
        let batches: u64 = sizes.iter().sum();
        let transactions: u64 = sizes.iter().enumerate().map(|(size, count)| size as u64 * count).sum();
        let quantile = |share: f64| {
            let wanted = (batches as f64 * share).ceil().max(1.0) as u64;
            let mut seen = 0;
            sizes.iter().position(|count| {
                seen += count;
                seen >= wanted
            })
        };
        let mut up_to_powers_of_two: Vec<u64> = Vec::new();
        for (size, count) in sizes.iter().enumerate().skip(1).filter(|(_, count)| **count > 0) {
            let power = size.next_power_of_two().trailing_zeros() as usize;
            up_to_powers_of_two.resize(up_to_powers_of_two.len().max(power + 1), 0);
            up_to_powers_of_two[power] += count;
        }
        Self {
            mean: if batches > 0 { round(transactions as f64 / batches as f64, 2) } else { 0.0 },
            p50: quantile(0.5).unwrap_or(0),
            p95: quantile(0.95).unwrap_or(0),
            max: sizes.iter().rposition(|count| *count > 0).unwrap_or(0),
            up_to_powers_of_two,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_done_between_the_samples_is_reported() {
        let before = PoolCounts { committed: 4, sizes: vec![0, 4], aborted: 2, chained_reads: 9, ..PoolCounts::default() };
        let sizes = vec![0, 5, 0, 0, 6, 3];
        let after = PoolCounts { committed: 44, sizes, aborted: 4, chained_reads: 10, ..PoolCounts::default() };
        let report = PoolReport::between(&before, &after, 2.0);
        assert_eq!((report.batches, report.batches_per_second, report.batch_abort_rate), (10, 5.0, 0.1667));
        assert_eq!(report.chained_reads, 1);
        let sizes = BatchSizes { mean: 4.0, p50: 4, p95: 5, max: 5, up_to_powers_of_two: vec![1, 0, 6, 3] };
        assert_eq!(report.batch_size, sizes);
    }

    #[test]
    fn no_batches_are_no_division_by_zero() {
        let report = PoolReport::between(&PoolCounts::default(), &PoolCounts::default(), 0.0);
        assert_eq!((report.batches_per_second, report.batch_abort_rate, report.batch_size.mean), (0.0, 0.0, 0.0));
        assert_eq!((report.batch_size.p50, report.batch_size.max), (0, 0));
    }
}
