//! The node's clock: wall time that never runs backwards; or, for who asks others what time it is, time that just goes on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::Time;

/// Time in nanoseconds.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Wall time, made monotonic.
    ///
    /// When the system's clock is set back, this one neither stops (timers would) nor stays ahead for ever: it runs at
    /// half speed until the wall has caught up.
    Wall { last: u64, read_at: Instant },
    /// Nobody sets it.
    Steady(SteadyClock),
}

impl Clock {
    pub fn wall() -> Self {
        Self::Wall { last: wall(), read_at: Instant::now() }
    }

    /// What time it is; never earlier than what it said before.
    pub fn now(&mut self) -> Time {
        match self {
            Self::Steady(clock) => clock.now(),
            Self::Wall { last, read_at } => {
                let now = Instant::now();
                *last = advance(*last, wall(), now.duration_since(*read_at));
                *read_at = now;
                Time(*last)
            }
        }
    }
}

/// A clock that showed the wall's time when it was made, and goes on evenly whatever becomes of that. Copies show the same.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    began: u64,
    began_at: Instant,
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self { began: wall(), began_at: Instant::now() }
    }
}

impl SteadyClock {
    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Time {
        let elapsed = u64::try_from(self.began_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Time(self.began.saturating_add(elapsed))
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
        let mut clock = Clock::wall();
        let mut before = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
    }
}
