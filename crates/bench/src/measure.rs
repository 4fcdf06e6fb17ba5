//! What is counted while the lanes run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use client::CommitPath;
use hdrhistogram::Histogram;
use workload::Done;

/// The longest latency told apart from longer ones, in microseconds: ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;
/// How many digits of a latency are kept.
const LATENCY_DIGITS: u8 = 3;

/// When what is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// From here transactions count.
    pub(crate) from: Instant,
    /// Up to here.
    pub(crate) until: Instant,
    /// No transaction begins after this.
    pub(crate) stop: Instant,
}

impl Window {
    pub(crate) fn new(begin: Instant, warmup: f64, seconds: f64, cooldown: f64) -> Self {
        let from = begin + Duration::from_secs_f64(warmup);
        let until = from + Duration::from_secs_f64(seconds);
        Self { from, until, stop: until + Duration::from_secs_f64(cooldown) }
    }

    /// How long was measured when measuring ended at `end`, which is early when somebody stopped it.
    pub(crate) fn measured_seconds(&self, end: Instant) -> f64 {
        end.min(self.until).saturating_duration_since(self.from).as_secs_f64()
    }

    /// Whether a transaction that ended at `end` counts.
    pub(crate) fn counts(&self, end: Instant) -> bool {
        self.from <= end && end < self.until
    }
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Transactions that committed in the window.
    pub(crate) committed: u64,
    /// Their attempts, and one for each that failed.
    pub(crate) attempted: u64,
    /// Of the committed, those decided in one round trip.
    pub(crate) fast: u64,
    /// Of the committed, those that there was something to decide on.
    pub(crate) decided: u64,
    /// Transactions given up, by kind.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// Latencies of the committed, in microseconds.
    pub(crate) latency_us: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("these bounds are fit for a histogram");
        Self { committed: 0, attempted: 0, fast: 0, decided: 0, errors: BTreeMap::new(), latency_us }
    }

    /// Counts a transaction that committed after `latency`.
    pub(crate) fn note_done(&mut self, done: &Done, latency: Duration) {
        self.committed += 1;
        self.attempted += u64::from(done.attempts.max(1));
        self.fast += u64::from(done.path == CommitPath::Fast);
        self.decided += u64::from(done.path != CommitPath::Empty);
        self.latency_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    /// Counts one that was given up. How often it was tried is lost with it, so that it counts as one attempt.
    pub(crate) fn note_error(&mut self, kind: &'static str) {
        self.attempted += 1;
        *self.errors.entry(kind).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_between_the_marks_counts() {
        let begin = Instant::now();
        let window = Window::new(begin, 2.0, 10.0, 1.0);
        let at = |seconds: f64| window.counts(begin + Duration::from_secs_f64(seconds));
        assert_eq!([1.9, 2.0, 11.9, 12.0, 12.5].map(at), [false, true, true, false, false]);
        assert_eq!(window.stop, begin + Duration::from_secs(13));
    }

    #[test]
    fn retries_and_failures_are_attempts() {
        let mut tally = Tally::new();
        let done = |path, attempts| Done { path, attempts, broken: None };
        tally.note_done(&done(CommitPath::Fast, 1), Duration::from_millis(2));
        tally.note_done(&done(CommitPath::Slow, 3), Duration::from_millis(4));
        tally.note_done(&done(CommitPath::Empty, 1), Duration::from_secs(7_200));
        tally.note_error("unavailable");
        assert_eq!((tally.committed, tally.attempted, tally.fast, tally.decided), (3, 6, 1, 2));
        assert_eq!(tally.errors, BTreeMap::from([("unavailable", 1)]));
        assert!(tally.latency_us.max() >= LATENCY_US_MAX);
    }
}
