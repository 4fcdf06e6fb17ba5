//! What is counted while the loop clients run.

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

/// What was counted of all transactions together, and of each kind.
#[derive(Debug)]
pub(crate) struct Tally {
    /// All together.
    pub(crate) all: Counts,
    /// By kind, in the workload's order; empty when it has no kinds.
    pub(crate) kinds: Vec<(&'static str, Counts)>,
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Transactions that committed in the window.
    pub(crate) committed: u64,
    /// Their attempts, and one for each that failed.
    pub(crate) attempted: u64,
    /// Transactions that were to roll back, and did; they were not attempted to commit.
    pub(crate) rolled_back: u64,
    /// Of the committed, those decided in one round trip.
    pub(crate) fast: u64,
    /// Of the committed, those that there was something to decide on.
    pub(crate) decided: u64,
    /// Of the committed, those that only read and needed no vote.
    pub(crate) read_only: u64,
    /// Transactions given up, by the kind of error.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// Latencies of the committed, in microseconds.
    pub(crate) latency_us: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new(kinds: &[&'static str]) -> Self {
        Self { all: Counts::new(), kinds: kinds.iter().map(|kind| (*kind, Counts::new())).collect() }
    }

    /// Counts a transaction of `kind` that ended well after `latency`.
    pub(crate) fn note_done(&mut self, kind: usize, done: &Done, latency: Duration) {
        self.each(kind).for_each(|counts| counts.note_done(done, latency));
    }

    /// Counts one that was given up.
    pub(crate) fn note_error(&mut self, kind: usize, error: &'static str) {
        self.each(kind).for_each(|counts| counts.note_error(error));
    }

    /// Where a transaction of `kind` is counted.
    fn each(&mut self, kind: usize) -> impl Iterator<Item = &mut Counts> {
        std::iter::once(&mut self.all).chain(self.kinds.get_mut(kind).map(|(_, counts)| counts))
    }
}

impl Counts {
    pub(crate) fn new() -> Self {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("these bounds are fit for a histogram");
        Self { committed: 0, attempted: 0, rolled_back: 0, fast: 0, decided: 0, read_only: 0, errors: BTreeMap::new(), latency_us }
    }

    pub(crate) fn note_done(&mut self, done: &Done, latency: Duration) {
        let Some(path) = done.path else {
            self.rolled_back += 1;
            return;
        };
        self.committed += 1;
        self.attempted += u64::from(done.attempts.max(1));
        self.fast += u64::from(path == CommitPath::Fast);
        self.decided += u64::from(!matches!(path, CommitPath::Empty | CommitPath::ReadOnly));
        self.read_only += u64::from(path == CommitPath::ReadOnly);
        self.latency_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    /// How often a transaction that was given up was tried is lost with it, so that it counts as one attempt.
    pub(crate) fn note_error(&mut self, error: &'static str) {
        self.attempted += 1;
        *self.errors.entry(error).or_default() += 1;
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
    fn retries_and_failures_are_attempts_and_what_was_to_roll_back_is_not() {
        let mut tally = Tally::new(&["order", "payment"]);
        let done = |path, attempts| Done { path, attempts, broken: None };
        tally.note_done(0, &done(Some(CommitPath::Fast), 1), Duration::from_millis(2));
        tally.note_done(1, &done(Some(CommitPath::Slow), 3), Duration::from_millis(4));
        tally.note_done(0, &done(Some(CommitPath::Empty), 1), Duration::from_secs(7_200));
        tally.note_done(0, &done(None, 1), Duration::from_millis(1));
        tally.note_done(1, &done(Some(CommitPath::ReadOnly), 1), Duration::from_millis(1));
        tally.note_error(1, "unavailable");
        let all = &tally.all;
        assert_eq!((all.committed, all.attempted, all.rolled_back, all.fast, all.decided), (4, 7, 1, 1, 2));
        assert_eq!(all.read_only, 1);
        assert_eq!(all.errors, BTreeMap::from([("unavailable", 1)]));
        assert!(all.latency_us.max() >= LATENCY_US_MAX);
        let of_kind: Vec<(&str, u64, u64, u64)> =
            tally.kinds.iter().map(|(name, counts)| (*name, counts.committed, counts.attempted, counts.rolled_back)).collect();
        assert_eq!(of_kind, [("order", 2, 2, 1), ("payment", 2, 5, 0)]);
    }

    #[test]
    fn a_workload_without_kinds_is_counted_as_a_whole() {
        let mut tally = Tally::new(&[]);
        tally.note_done(0, &Done { path: Some(CommitPath::Fast), attempts: 2, broken: None }, Duration::from_millis(2));
        assert_eq!((tally.all.committed, tally.all.attempted, tally.kinds.len()), (1, 2, 0));
    }
}
