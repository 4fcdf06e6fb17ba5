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
