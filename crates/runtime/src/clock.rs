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

/// What the machine's clock shows, in nanoseconds since the Unix epoch.
#[must_use]
pub fn wall() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX).saturating_add_signed(set_off_ns())
}

#[cfg(not(feature = "lab"))]
fn set_off_ns() -> i64 {
    0
}

#[cfg(feature = "lab")]
fn set_off_ns() -> i64 {
    static SET_OFF: std::sync::OnceLock<SetOff> = std::sync::OnceLock::new();
    SET_OFF.get_or_init(|| SetOff::from_environment().unwrap_or_default()).now_ns()
}

/// For experiments with clocks that are wrong: in how many milliseconds (signed) this process takes the machine's clock to be off, or after
/// an `@` the name of a file that says so and may change.
#[cfg(feature = "lab")]
pub const SET_OFF_VARIABLE: &str = "BEZANT_CLOCK_SET_OFF";

/// By how much this process sets the machine's clock off.
#[cfg(feature = "lab")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SetOff {
    /// Not at all.
    #[default]
    Not,
    /// So many milliseconds.
    Ms(i64),
    /// As many as this file says.
    File(std::path::PathBuf),
}

#[cfg(feature = "lab")]
impl SetOff {
    /// What the environment says.
    ///
    /// # Errors
    /// The words that make no sense.
    pub fn from_environment() -> Result<Self, String> {
        std::env::var_os(SET_OFF_VARIABLE).map_or(Ok(Self::Not), |text| Self::parse(&text.to_string_lossy()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(path) => Ok(Self::File(path.into())),
            None => text.trim().parse().map(Self::Ms).map_err(|_| text.to_owned()),
        }
    }

    fn now_ns(&self) -> i64 {
        match self {
            Self::Not => 0,
            Self::Ms(ms) => ms.saturating_mul(1_000_000),
            Self::File(path) => {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                text.trim().parse().unwrap_or(0_i64).saturating_mul(1_000_000)
            }
        }
    }
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
    #[cfg(feature = "lab")]
    fn a_clock_is_set_off_as_the_words_say() {
        assert_eq!(SetOff::parse("-450").map(|set_off| set_off.now_ns()), Ok(-450_000_000));
        assert_eq!(SetOff::parse("@nowhere").map(|set_off| set_off.now_ns()), Ok(0));
        assert_eq!(SetOff::parse("10 s"), Err("10 s".to_owned()));
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
