//! What time it is in a cluster.

use machine::Time;

/// By how much two clocks that go evenly may run apart, in parts of a million: twice a crystal's error, and what they are corrected by.
pub const DRIFT_PPM: u64 = 500;

/// A time that lies above the timestamps of all that was acknowledged before, and about when the servers' clocks will have reached it
/// if a message is sent now. It goes by the local clock, and a little faster, so that it stays above while nothing new is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterClock {
    at: Time,
    shows: u64,
}

impl ClusterClock {
    /// A clock that shows `shows`, in nanoseconds, when the local one shows `at`.
    #[must_use]
    pub fn new(at: Time, shows: u64) -> Self {
        Self { at, shows }
    }

    /// What it shows when the local clock shows `now`.
    #[must_use]
    pub fn read(&self, now: Time) -> u64 {
        self.shows.saturating_add(stretched(now.since(self.at)))
    }
}

/// What a clock that runs as fast as one may can have gone on by while the local one went on by `elapsed_ns`.
#[must_use]
pub fn stretched(elapsed_ns: u64) -> u64 {
    elapsed_ns.saturating_add((elapsed_ns / 1_000).saturating_mul(DRIFT_PPM) / 1_000)
}

/// More timestamps than anybody takes ahead of time, in nanoseconds.
const NEAR_NS: u64 = 1_000_000;

/// The time of a process's next timestamp, where the cluster's clock shows `now` and the last one had the time `last`: above that, and even, as a
/// session may give odd times to what it tries again.
#[must_use]
pub fn even_time_after(now: u64, last: u64) -> u64 {
    // One far above now comes from a clock that was wrong: whoever went on from there would stay wrong.
    let last = if last.saturating_sub(now) < NEAR_NS { last } else { 0 };
    now.max(last.saturating_add(1)).checked_next_multiple_of(2).unwrap_or(u64::MAX - 1)
}

/// How it stands with a replica's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReport {
    /// Whether it is known well enough to go by it. Until then the replica does nothing.
    pub is_set: bool,
    /// What it shows.
    pub shows: Time,
    /// By how much it is ahead of the other replicas', in nanoseconds, if that is known.
    pub ahead_ns: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_even_and_rise_and_come_back_from_a_clock_that_was_wrong() {
        let after = even_time_after;
        assert_eq!([after(9, 0), after(10, 0), after(10, 10), after(10, 11)], [10, 10, 12, 12]);
        let now = 1_000_000_000;
        assert_eq!(after(now, now + NEAR_NS), now);
        assert_eq!(after(now, now + NEAR_NS - 2), now + NEAR_NS);
        assert_eq!(after(u64::MAX, u64::MAX), u64::MAX - 1);
    }
}
