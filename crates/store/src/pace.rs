//! How much whoever writes is slowed while checkpoints are late.
//!
//! What is written goes into the memtable, and a checkpoint takes it out again some time after it has left the window. Where the disk merges more slowly than
//! versions come, what is *overdue* grows, and would until there is no memory left. So each sync then waits a moment: in the long run no more is
//! written than checkpoints take.
//!
//! The wait follows the debt. With as much overdue as a healthy replica has now and then, there is none. From there on, versions may come at a multiple
//! of the rate at which checkpoints have lately taken them, and the multiple falls steadily as the debt grows: it is one halfway to
//! [`PaceOptions::full_bytes`], a half there, and less beyond. So the debt settles below that. Nothing happens all at once, and nothing ever stops: a sync waits
//! for [`WAIT_MAX`] at most, and what it should have waited beyond that is left to the next ones.

use std::time::{Duration, Instant};

/// How much may be overdue, in bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceOptions {
    /// So much is nobody's concern: a few checkpoints' worth.
    pub free_bytes: usize,
    /// With so much, versions are taken in half as fast as checkpoints take them out.
    pub full_bytes: usize,
}

impl Default for PaceOptions {
    fn default() -> Self {
        Self { free_bytes: 128 << 20, full_bytes: 384 << 20 }
    }
}

/// The longest wait of one sync. Others take a replica that says nothing for much longer for one that is gone.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(100);
/// A checkpoint that takes so few bytes a second has stopped, for what is counted here.
const RATE_MIN: f64 = 1024.0;

/// The pace of one store.
pub(crate) struct Pace {
    options: PaceOptions,
    /// How many bytes a second the last checkpoints took, once there was one.
    rate: Option<f64>,
    /// When the checkpoint that runs began, and the bytes that it takes.
    running: Option<(Instant, usize)>,
    /// What is still to be waited.
    owed: Duration,
}

impl Pace {
    pub fn new(options: PaceOptions) -> Self {
        Self { options, rate: None, running: None, owed: Duration::ZERO }
    }

    /// A checkpoint of so many bytes begins.
    pub fn begin(&mut self, now: Instant, bytes: usize) {
        self.running = Some((now, bytes));
    }

    /// It has ended.
    pub fn end(&mut self, now: Instant) {
        if let Some(found) = self.running.take().and_then(|running| rate_of(running, now)) {
            self.rate = Some(self.rate.map_or(found, |rate| (rate + found) / 2.0));
        }
    }

    /// How long to wait, now that `added` bytes have come and `overdue` are overdue.
    pub fn wait(&mut self, now: Instant, added: usize, overdue: usize) -> Duration {
        let above = overdue.saturating_sub(self.options.free_bytes) as f64;
        let full = self.options.full_bytes.saturating_sub(self.options.free_bytes).max(1) as f64;
        // One that takes longer than the last ones tells before it ends.
        let running = self.running.and_then(|running| rate_of(running, now));
        let rate = [self.rate, running].into_iter().flatten().fold(f64::INFINITY, f64::min).max(RATE_MIN);
        if above <= 0.0 || !rate.is_finite() {
            self.owed = Duration::ZERO;
            return Duration::ZERO;
        }
        let seconds = added as f64 / rate * 2.0 * above / full;
        self.owed += Duration::try_from_secs_f64(seconds).unwrap_or(WAIT_MAX);
        let wait = self.owed.min(WAIT_MAX);
        self.owed -= wait;
        wait
    }
}

/// The rate of a checkpoint that began at `began`, if it has run long enough to have one.
fn rate_of((began, bytes): (Instant, usize), now: Instant) -> Option<f64> {
    let seconds = now.saturating_duration_since(began).as_secs_f64();
    (seconds > 0.0 && bytes > 0).then(|| bytes as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: PaceOptions = PaceOptions { free_bytes: 1_000_000, full_bytes: 3_000_000 };

    /// A pace whose last checkpoint took a million bytes in a second, and the time after that.
    fn measured() -> (Pace, Instant) {
        let (mut pace, began) = (Pace::new(OPTIONS), Instant::now());
        pace.begin(began, 1_000_000);
        let ended = began + Duration::from_secs(1);
        pace.end(ended);
        (pace, ended)
    }

    #[test]
    fn the_wait_grows_steadily_with_what_is_overdue() {
        let (mut pace, now) = measured();
        let mut waits: Vec<u128> = [0, 500_000, 1_000_000, 1_100_000, 2_000_000, 3_000_000, 4_000_000]
            .map(|overdue| pace.wait(now, 10_000, overdue).as_micros())
            .to_vec();
        assert_eq!(waits, [0, 0, 0, 1_000, 10_000, 20_000, 30_000]);
        waits.dedup();
        assert!(waits.is_sorted());
    }

    #[test]
    fn no_sync_waits_long_and_the_next_ones_wait_for_it() {
        let (mut pace, now) = measured();
        assert_eq!(pace.wait(now, 250_000, 2_000_000), WAIT_MAX);
        assert_eq!(pace.wait(now, 0, 2_000_000), WAIT_MAX);
        assert_eq!(pace.wait(now, 0, 2_000_000), WAIT_MAX / 2);
        assert_eq!(pace.wait(now, 0, 2_000_000), Duration::ZERO);
        // Whatever was owed is forgiven with the debt.
        pace.wait(now, 9_000_000, 2_000_000);
        assert_eq!(pace.wait(now, 1, 1_000_000), Duration::ZERO);
        assert_eq!(pace.wait(now, 0, 2_000_000), Duration::ZERO);
    }

    #[test]
    fn a_checkpoint_that_does_not_end_tells_by_that() {
        let (mut pace, now) = measured();
        pace.begin(now, 1_000_000);
        assert_eq!(pace.wait(now + Duration::from_millis(500), 10_000, 2_000_000), Duration::from_millis(10));
        assert_eq!(pace.wait(now + Duration::from_secs(5), 10_000, 2_000_000), Duration::from_millis(50));
        // The first of a process, too.
        let mut first = Pace::new(OPTIONS);
        assert_eq!(first.wait(now, 10_000, 2_000_000), Duration::ZERO);
        first.begin(now, 1_000_000);
        assert_eq!(first.wait(now + Duration::from_secs(2), 10_000, 2_000_000), Duration::from_millis(20));
    }
}
