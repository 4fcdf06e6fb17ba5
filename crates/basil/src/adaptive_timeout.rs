//! How long to wait: for the last votes of a shard, before the slow path is taken; for somebody who may have left; and for an
//! answer, before asking again.
//!
//! Waiting costs latency when a replica is down; not waiting costs a round trip when one is merely slow. So the
//! wait follows how late the last vote has been; who is late again and again is not waited for at all ([`crate::coordinator`]). It is never
//! longer than 50 ms or, where that takes longer, than the slow path itself: then a wait in vain costs at most what not waiting costs every time.

/// The longest wait where logging takes less, in microseconds.
const WAIT_US_MAX: u64 = 50_000;
/// The shortest wait, in microseconds.
pub(crate) const WAIT_US_MIN: u64 = 2_000;

/// What is known of one shard's last votes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveTimeout {
    /// How much later than the commit quorum the last vote came, on average, in nanoseconds.
    lag_ns: u64,
}

impl Default for AdaptiveTimeout {
    fn default() -> Self {
        Self { lag_ns: WAIT_US_MAX * 1_000 / 8 }
    }
}

impl AdaptiveTimeout {
    /// A quorum is there and the last votes are not: how long to wait for them, in microseconds. Logging would take `logging_us`.
    pub fn wait_us(&self, logging_us: u64) -> u64 {
        (8 * self.lag_ns / 1_000).clamp(WAIT_US_MIN, WAIT_US_MAX.max(logging_us))
    }

    /// All voted, the last one `lag_ns` after the quorum was there.
    pub fn unanimous(&mut self, lag_ns: u64) {
        self.lag_ns = self.lag_ns - self.lag_ns / 8 + lag_ns.min(WAIT_US_MAX * 1_000) / 8;
    }
}

/// How long a transaction usually takes that nobody holds up.
///
/// It follows the median, which a minority of transactions that were held up, by whomever, cannot move far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MedianDuration {
    median_ns: u64,
}

/// The median before anything has been seen, in nanoseconds.
const MEDIAN_NS_FIRST: u64 = 8_000_000;
/// The largest median, in nanoseconds: beyond, timeouts decide.
const MEDIAN_NS_MAX: u64 = 1_000_000_000;
/// It moves by this part of itself.
const MEDIAN_STEP: u64 = 16;

impl Default for MedianDuration {
    fn default() -> Self {
        Self { median_ns: MEDIAN_NS_FIRST }
    }
}

impl MedianDuration {
    /// A transaction took so long.
    pub fn took(&mut self, ns: u64) {
        let step = (self.median_ns / MEDIAN_STEP).max(1_000);
        self.median_ns = match ns.cmp(&self.median_ns) {
            std::cmp::Ordering::Greater => (self.median_ns + step).min(MEDIAN_NS_MAX),
            std::cmp::Ordering::Equal => self.median_ns,
            std::cmp::Ordering::Less => self.median_ns.saturating_sub(step),
        };
    }

    /// `times` as long as usual, in microseconds, but not less than `min_us`.
    pub fn times_us(&self, times: u64, min_us: u64) -> u64 {
        (times * self.median_ns / 1_000).max(min_us)
    }
}

/// How long to wait the time after `times` others: at first until answers are late, then twice as long each time. It is never
/// shorter than the least that is set, nor longer than that doubled as often as it may be, whatever was heard of a
/// network that loses much.
pub(crate) fn wait_us(late_us: u64, least_us: u64, times: u32, doubled_max: u32) -> u64 {
    let most_us = least_us << doubled_max;
    (late_us.clamp(least_us, most_us) << times.min(doubled_max)).min(most_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_time_follows_most_and_not_the_slowest() {
        let mut usual_time = MedianDuration::default();
        for at in 0..2_000_u64 {
            usual_time.took(if at % 3 == 0 { 900_000_000 } else { 2_000_000 + at % 7 * 100_000 });
        }
        let usual = usual_time.times_us(1, 0);
        assert!((1_500..4_000).contains(&usual), "{usual}");
        assert_eq!(usual_time.times_us(10, 50_000), 50_000);
    }

    #[test]
    fn where_logging_takes_long_the_last_vote_is_worth_waiting_for() {
        let mut adaptive_timeout = AdaptiveTimeout::default();
        for _ in 0..100 {
            adaptive_timeout.unanimous(120_000_000);
        }
        assert_eq!(adaptive_timeout.wait_us(0), WAIT_US_MAX);
        assert_eq!(adaptive_timeout.wait_us(231_000), 231_000);
    }

    #[test]
    fn the_wait_follows_the_last_vote() {
        let mut adaptive_timeout = AdaptiveTimeout::default();
        for _ in 0..100 {
            adaptive_timeout.unanimous(10_000);
        }
        assert_eq!(adaptive_timeout.wait_us(0), WAIT_US_MIN);
        for _ in 0..100 {
            adaptive_timeout.unanimous(4_000_000);
        }
        assert!(adaptive_timeout.wait_us(0) > 20_000);
    }
}
