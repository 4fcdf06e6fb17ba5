//! How many transactions a batch may have.

use engine::{BATCH_MAX, BatchSize};

/// What an adaptive size begins with.
const ADAPTIVE_START: usize = 16;
/// How many times as long as the quickest a batch may take, before batches are made smaller.
///
/// A batch of `n` takes about `a + b·n`: the round trips, and the work on each transaction. At eight times the quickest,
/// the round trips are about an eighth of it, so that there is little left to win by larger ones.
const STRETCH_MAX: u64 = 8;
/// The quickest is forgotten by this part of it with each batch, since a network or a machine may become slower.
const FORGET_SHARE: u64 = 256;

/// Chooses the size of the next batch.
#[derive(Clone, Debug)]
pub(crate) struct Sizer {
    limit: usize,
    /// `None` when the size is fixed.
    max: Option<usize>,
    quickest_ns: u64,
}

impl Sizer {
    pub fn new(size: BatchSize) -> Self {
        match size {
            BatchSize::Fixed(limit) => Self { limit: limit.clamp(1, BATCH_MAX), max: None, quickest_ns: 0 },
            BatchSize::Adaptive { max } => {
                let max = max.clamp(1, BATCH_MAX);
                Self { limit: ADAPTIVE_START.min(max), max: Some(max), quickest_ns: u64::MAX }
            }
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A batch of `size` committed after `took_ns`, and `waiting` transactions wait for the next.
    pub fn committed(&mut self, size: usize, took_ns: u64, waiting: usize) {
        let Some(max) = self.max else { return };
        let forgotten = self.quickest_ns.saturating_add(self.quickest_ns / FORGET_SHARE + 1);
        self.quickest_ns = forgotten.min(took_ns.max(1));
        let is_slow = took_ns / STRETCH_MAX > self.quickest_ns;
        if is_slow && size > self.limit / 2 {
            self.limit = (self.limit - self.limit.div_ceil(8)).max(1);
        } else if !is_slow && size >= self.limit && waiting >= self.limit {
            self.limit = (self.limit + self.limit.div_ceil(2)).min(max);
        }
    }

    /// A batch of `size` was aborted, or nobody answered it.
    pub fn aborted(&mut self, size: usize) {
        if self.max.is_some() {
            // A small one says little of large ones: not less than half at once.
            self.limit = self.limit.min((size / 2).max(self.limit / 2)).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_size_stays() {
        let mut sizer = Sizer::new(BatchSize::Fixed(12));
        sizer.aborted(12);
        sizer.committed(12, 1, 1_000);
        assert_eq!(sizer.limit(), 12);
    }

    #[test]
    fn every_batch_size_is_at_least_one_and_bounded() {
        assert_eq!(Sizer::new(BatchSize::Fixed(0)).limit(), 1);
        assert_eq!(Sizer::new(BatchSize::Fixed(usize::MAX)).limit(), BATCH_MAX);
        let mut sizer = Sizer::new(BatchSize::Adaptive { max: 100 });
        (0..100).for_each(|_| sizer.committed(sizer.limit(), 1_000, 10_000));
        assert_eq!(sizer.limit(), 100);
        (0..100).for_each(|_| sizer.aborted(sizer.limit()));
        assert_eq!(sizer.limit(), 1);
    }

    #[test]
    fn a_small_batch_that_aborts_halves_what_large_ones_may_have() {
        let mut sizer = Sizer::new(BatchSize::Adaptive { max: 1_000 });
        (0..100).for_each(|_| sizer.committed(sizer.limit(), 1_000, 10_000));
        sizer.aborted(1);
        assert_eq!(sizer.limit(), 500);
    }

    #[test]
    fn it_grows_only_while_full_batches_commit_and_others_wait() {
        let mut sizer = Sizer::new(BatchSize::Adaptive { max: 1_000 });
        let start = sizer.limit();
        sizer.committed(start - 1, 1_000, 500);
        sizer.committed(start, 1_000, 0);
        assert_eq!(sizer.limit(), start);
        sizer.committed(start, 1_000, 500);
        assert!(sizer.limit() > start);
    }

    #[test]
    fn it_shrinks_when_batches_take_long_and_comes_back() {
        let mut sizer = Sizer::new(BatchSize::Adaptive { max: 1_000 });
        (0..20).for_each(|_| sizer.committed(sizer.limit(), 1_000_000, 5_000));
        let large = sizer.limit();
        sizer.committed(large, 30_000_000, 5_000);
        assert!(sizer.limit() < large);
        (0..20).for_each(|_| sizer.committed(sizer.limit(), 2_000_000, 5_000));
        assert_eq!(sizer.limit(), 1_000);
    }

    #[test]
    fn the_size_adapts_to_a_network_that_became_slower() {
        let mut sizer = Sizer::new(BatchSize::Adaptive { max: 1_000 });
        sizer.committed(16, 1_000_000, 5_000);
        // Ten times slower from now on: at first too slow, later what there is.
        (0..2_000).for_each(|_| sizer.committed(sizer.limit(), 10_000_000, 5_000));
        assert_eq!(sizer.limit(), 1_000);
    }
}
