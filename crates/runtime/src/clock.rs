//! The node's clock: what has passed, as no one sets it, and the wall clock, which anybody may set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use machine::{EvenClock, Time};
use rustix::time::{ClockId, clock_gettime};

/// Time in nanoseconds, never earlier than before.
#[derive(Debug)]
pub(crate) enum Clock {
    /// A replica's: wall time, made even.
    Even(EvenClock),
    /// A client's.
    Steady(SteadyClock),
}

impl Clock {
    pub fn even() -> Self {
        Self::Even(EvenClock::new(passed(), wall()))
    }

    /// What time it is; never earlier than what it said before.
    pub fn now(&mut self) -> Time {
        match self {
            Self::Steady(clock) => clock.now(),
            Self::Even(clock) => clock.read(passed(), wall()),
        }
    }
}

/// A clock that showed the wall's time when it was made. It goes on evenly, also for as long as the process, or the machine,
/// stood still, as far as anything here shows that. Copies show the same.
#[derive(Clone, Debug)]
pub struct SteadyClock(Arc<Mutex<Steady>>);

impl Default for SteadyClock {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Steady::new(Reading::now()))))
    }
}

impl SteadyClock {
    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Time {
        // A panic elsewhere cannot leave it half changed.
        let mut steady = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steady.read(Reading::now())
    }
}

/// A wall clock that went ahead of what has passed by more was set forward, or the machine was paused and nothing here counted that, in
/// nanoseconds.
const STOOD_STILL_NS: u64 = 5_000_000;

/// What the clocks showed: how long the machine had run just before the wall clock was read, and just after. Whoever slews the wall clock slews that,
/// too. And what had passed, which nobody slews.
#[derive(Clone, Copy, Debug)]
struct Reading {
    before: u64,
    wall: u64,
    after: u64,
    passed: u64,
}

impl Reading {
    fn now() -> Self {
        let (before, wall, after) = (nanoseconds(ClockId::Boottime), wall(), nanoseconds(ClockId::Boottime));
        Self { before, wall, after, passed: passed_when(after) }
    }
}

#[derive(Debug)]
struct Steady {
    /// What is added to what has passed.
    added: u64,
    /// By how much the wall clock was ahead of what had passed.
    ahead: i128,
    shows: u64,
}

impl Steady {
    fn new(reading: Reading) -> Self {
        // Not too little, whenever between the other two readings the wall clock was read.
        let added = reading.wall.saturating_sub(reading.passed).saturating_add(reading.after.saturating_sub(reading.before));
        Self { added, ahead: i128::from(reading.wall) - i128::from(reading.before), shows: reading.wall }
    }

    fn read(&mut self, Reading { before, wall, after, passed }: Reading) -> Time {
        // If the wall clock was only set forward, this one is now ahead by that. It may be: what replicas say brings it back.
        let stood_still = i128::from(wall) - i128::from(after) - self.ahead;
        if stood_still > i128::from(STOOD_STILL_NS) {
            self.added = self.added.saturating_add(u64::try_from(stood_still).unwrap_or(u64::MAX));
            self.ahead += stood_still;
        }
        self.ahead = self.ahead.min(i128::from(wall) - i128::from(before));
        self.shows = self.shows.max(passed.saturating_add(self.added));
        Time(self.shows)
    }
}

/// How much has passed since the machine started, in nanoseconds, its sleep included. It goes as evenly as the machine's crystal: to set a
/// wall clock right, daemons let it go, and with it the system's other clocks, some thousands of millionths faster or slower.
fn passed() -> u64 {
    passed_when(nanoseconds(ClockId::Boottime))
}

/// The same, just after the machine had run for `ran`, its sleep included.
fn passed_when(ran: u64) -> u64 {
    static SLEPT: AtomicU64 = AtomicU64::new(0);
    // Less than that by what passes between the two readings, and never more.
    let slept = ran.saturating_sub(nanoseconds(ClockId::Monotonic));
    let slept = SLEPT.fetch_max(slept, Ordering::Relaxed).max(slept);
    nanoseconds(ClockId::MonotonicRaw).saturating_add(slept)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let shows = clock_gettime(clock);
    let (seconds, nanoseconds) = (u64::try_from(shows.tv_sec).unwrap_or(0), u64::try_from(shows.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn reading(passed: u64, wall: u64) -> Reading {
        Reading { before: passed, wall, after: passed + 1_000, passed: passed + 1_000 }
    }

    #[test]
    fn a_clients_clock_counts_what_was_slept_through() {
        let mut clock = Steady::new(reading(0, 100 * SECOND));
        assert!(clock.read(reading(SECOND, 101 * SECOND)).0 < 101 * SECOND + 5_000);
        // The machine was paused for a minute, and its wall clock was set right afterwards.
        assert!(clock.read(reading(2 * SECOND, 162 * SECOND)).0 >= 162 * SECOND);
        assert!(clock.read(reading(3 * SECOND, 163 * SECOND)).0 < 163 * SECOND + 5_000);
    }

    #[test]
    fn a_clock_that_is_slewed_is_not_followed() {
        let mut clock = Steady::new(reading(0, 100 * SECOND));
        for second in 1..100 {
            // A daemon lets the wall clock lose five thousandths, and the system lets what it counts as passed lose as much.
            let slewed = second * SECOND / 1_000 * 995;
            let reading = Reading { passed: second * SECOND + 1_000, ..reading(slewed, 100 * SECOND + slewed) };
            let ahead = clock.read(reading).0 - (100 + second) * SECOND;
            assert!(ahead < 5_000, "{ahead}");
        }
    }

    #[test]
    fn a_clients_clock_is_not_set_back_and_notices_a_pause_after_that() {
        let mut clock = Steady::new(reading(0, 100 * SECOND));
        let before = clock.read(reading(SECOND, 11 * SECOND)).0;
        assert!((101 * SECOND..101 * SECOND + 5_000).contains(&before));
        assert!(clock.read(reading(2 * SECOND, 72 * SECOND)).0 >= 162 * SECOND);
        let mut clock = Steady::new(reading(0, u64::MAX - SECOND));
        assert_eq!(clock.read(reading(9 * SECOND, u64::MAX)).0, u64::MAX);
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
        let mut clock = Clock::even();
        let mut before = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
    }
}
