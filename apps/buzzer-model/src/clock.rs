//! The time of posts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How far ahead of this machine's clock another's time is believed, in microseconds: a minute. What lies further ahead is a clock that is wrong, or
/// a liar's, and would carry everybody's posts along.
pub const AHEAD_US_MAX: u64 = 60_000_000;

/// Gives times that only go forward: past all that this process gave or has seen, so that an answer is later than the post that was read
/// before it, also when the two machines' clocks differ, and when a clock is set back.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The next time, in microseconds since 1970.
    pub fn next(&self) -> u64 {
        self.next_at(wall_us())
    }

    /// A post of this time was seen.
    pub fn observe(&self, time_us: u64) {
        self.observe_at(wall_us(), time_us);
    }

    fn next_at(&self, wall: u64) -> u64 {
        let later = |last: u64| Some(last.saturating_add(1).max(wall));
        // The closure always gives a time, so this never fails.
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later).unwrap_or_default();
        last.saturating_add(1).max(wall)
    }

    fn observe_at(&self, wall: u64, time_us: u64) {
        if time_us <= wall.saturating_add(AHEAD_US_MAX) {
            self.0.fetch_max(time_us, Ordering::Relaxed);
        }
    }
}

fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_only_goes_forward() {
        let clock = Clock::default();
        assert_eq!([clock.next_at(100), clock.next_at(100), clock.next_at(50), clock.next_at(200)], [100, 101, 102, 200]);
    }

    #[test]
    fn an_answer_is_later_than_what_was_seen_unless_that_is_absurd() {
        let clock = Clock::default();
        clock.observe_at(100, 500);
        assert_eq!(clock.next_at(100), 501);
        clock.observe_at(100, 101 + AHEAD_US_MAX);
        assert_eq!(clock.next_at(100), 502);
    }
}
