//! The node's clock: wall time that never runs backwards.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::Time;

/// Wall time in nanoseconds, made monotonic.
///
/// When the system's clock is set back, this one neither stops (timers would) nor stays ahead for ever: it runs at
/// half speed until the wall has caught up.
#[derive(Debug)]
pub struct Clock {
    last: u64,
    read_at: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { last: wall(), read_at: Instant::now() }
    }
}

impl Clock {
    /// What time it is; never earlier than what it said before.
    pub fn now(&mut self) -> Time {
        let read_at = Instant::now();
        self.last = advance(self.last, wall(), read_at.duration_since(self.read_at));
        self.read_at = read_at;
        Time(self.last)
    }
}

fn wall() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

fn advance(last: u64, wall: u64, elapsed: Duration) -> u64 {
    let slow = u64::try_from(elapsed.as_nanos() / 2).unwrap_or(u64::MAX);
    wall.max(last.saturating_add(slow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_set_back_is_caught_up_with_at_half_speed() {
        assert_eq!(advance(1_000, 1_500, Duration::from_nanos(500)), 1_500);
        assert_eq!(advance(1_000, 400, Duration::from_nanos(500)), 1_250);
        assert_eq!(advance(1_250, 1_300, Duration::from_nanos(20)), 1_300);
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut clock = Clock::default();
        let mut before = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
    }
}
