//! A clock that goes evenly, beside a wall clock that people and daemons set.

use crate::Time;

/// The wall clock is followed while it is off by less, in nanoseconds. By more, somebody has set it, and whether it was set right is not to be
/// known here.
const STEP_NS: u64 = 100_000_000;
/// How fast it is followed, in parts of a million.
const SLEW_PPM: u64 = 200;
const MILLION: u64 = 1_000_000;

/// Shows the wall clock's time when it is made, and goes on with the time that passes. It never steps: where the wall clock is off by a little,
/// this one is slewed towards it, and where that was set by more, it is not followed.
#[derive(Clone, Debug)]
pub struct EvenClock {
    shows: u64,
    passed: u64,
    /// By how much it may still be slewed, in millionths of a nanosecond: of the last moment.
    slewable: u64,
}

impl EvenClock {
    /// A clock that shows `wall` when `passed` nanoseconds have passed since some moment.
    #[must_use]
    pub fn new(passed: u64, wall: u64) -> Self {
        Self { shows: wall, passed, slewable: 0 }
    }

    /// What it shows when so much has passed, and the wall clock shows `wall`.
    pub fn read(&mut self, passed: u64, wall: u64) -> Time {
        let elapsed = passed.saturating_sub(self.passed);
        self.passed = self.passed.max(passed);
        self.shows = self.shows.saturating_add(elapsed);
        self.slewable = elapsed.saturating_mul(SLEW_PPM).saturating_add(self.slewable);
        let most = self.slewable / MILLION;
        self.slewable %= MILLION;
        let off = wall.abs_diff(self.shows);
        if off < STEP_NS {
            // Never backwards: what it falls back by is a small part of what has passed.
            self.shows = if wall < self.shows { self.shows - off.min(most) } else { self.shows.saturating_add(off.min(most)) };
        }
        Time(self.shows)
    }

    /// How much will have passed, about, when it shows `time`.
    #[must_use]
    pub fn when(&self, time: Time) -> u64 {
        self.passed.saturating_add(time.0.saturating_sub(self.shows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_000_000 * SECOND;

    /// How far ahead of true time it is after each second in which the wall clock is so far ahead.
    fn run(ahead: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut clock = EvenClock::new(0, START);
        let mut last = 0;
        let run = (1..).zip(ahead).map(|(second, ahead): (u64, i64)| {
            let mut shows = 0;
            for part in 0..1_000 {
                let passed = (second - 1) * SECOND + (part + 1) * (SECOND / 1_000);
                shows = clock.read(passed, (START + passed).saturating_add_signed(ahead)).0;
                assert!(shows > last, "it never goes back");
                last = shows;
            }
            i64::try_from(shows).expect("small") - i64::try_from(START + second * SECOND).expect("small")
        });
        run.collect()
    }

    #[test]
    fn a_wall_clock_that_is_set_for_a_while_is_not_followed() {
        for step in [600, 40, -40, -3_600] {
            let ahead = (0..20).map(|second| if (5..10).contains(&second) { step * 1_000_000_000 } else { 0 });
            assert!(run(ahead).iter().all(|off| *off == 0), "{step}");
        }
    }

    #[test]
    fn a_small_error_is_slewed_away() {
        for off in [2_000_000, -2_000_000] {
            let shown = run(std::iter::repeat_n(off, 12));
            assert_eq!((shown[0], shown[4], shown[11]), (off / 10, off / 2, off), "a fifth of a millisecond a second");
        }
    }

    #[test]
    fn the_end_of_time_is_no_end_of_the_process() {
        let mut clock = EvenClock::new(0, u64::MAX - 5);
        assert_eq!(clock.read(u64::MAX, u64::MAX), Time(u64::MAX));
        assert_eq!(clock.read(3, 0), Time(u64::MAX));
        assert_eq!(clock.when(Time(u64::MAX)), u64::MAX);
    }
}
