//! Clocks that are wrong, within bounds.

use machine::{EvenClock, Time};
use random::Random;

use crate::setting::Clocks;

/// Where true time begins: no machine may depend on it, and some day in the future is as good as any.
pub const EPOCH_NS: u64 = 1_800_000_000_000_000_000;
const DAY_NS: u64 = 86_400_000_000_000;
/// How far a clock may be off, in milliseconds, and how far most are: in a world in which all waited for the worst, little would happen.
/// Two may differ by twice as much, which stays under the `δ` of 500 ms that replicas grant timestamps.
const SKEW_MS_MAX: u64 = 100;
const SKEW_MS: [u64; 4] = [1, 1, 10, SKEW_MS_MAX];
/// How far a wild one may be off, in milliseconds: more than `δ`, and less than half of any window.
const WILD_MS_MAX: u64 = 2_000;
/// After how long replicas whose clocks were wild agree again, in milliseconds: those that are ahead go at half speed, and those that are behind
/// wait for their turn to be set forward, two seconds each.
const RIGHT_AFTER_MS: u64 = 25_000;
/// How far clients' clocks are ahead, in seconds: those of replicas they may have to follow are none of them.
const CLIENT_AHEAD_S: [i64; 6] = [0, 1, 10, 3_600, -10, -3_600];
/// How long a client's clock stands still at most, in milliseconds.
const STOOD_STILL_MS_MAX: u64 = 2_000;
/// By how much a clock goes too fast, in parts of a million: with what it is slewed by, two go apart by no more than clients allow for.
const DRIFT_PPM: [i64; 4] = [0, 10, -50, 50];
/// How often a wild clock is as far off as that when it jumps, in a thousand.
const WILD_PER_MILLE: u64 = 400;

/// One participant's clocks, as its shell has them: a wall clock, which is true time and an error that may jump, and one that goes evenly from
/// what that showed when the process started.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ahead_ns: i64,
    /// For how long it stood still, in nanoseconds, as that of a machine that was paused: both clocks did.
    stood_still_ns: u64,
    /// By how much it goes too fast, in parts of a million.
    drift_ppm: i64,
    even: Option<EvenClock>,
}

impl Clock {
    pub fn new(random: &mut Random, clocks: Clocks) -> Self {
        let mut clock = Self { ahead_ns: signed(SKEW_MS_MAX * 1_000_000), stood_still_ns: 0, drift_ppm: 0, even: None };
        match clocks {
            Clocks::Exact => {}
            Clocks::Skewed | Clocks::Wild => {
                clock.jump(random, clocks);
                clock.drift_ppm = random.pick(&DRIFT_PPM);
            }
        }
        clock
    }

    /// A client's: it may show anything, as nobody goes by it.
    pub fn of_client(random: &mut Random, clocks: Clocks) -> Self {
        let mut clock = Self::new(random, clocks);
        if clocks != Clocks::Exact {
            clock.ahead_ns += random.pick(&CLIENT_AHEAD_S) * 1_000_000_000;
        }
        clock
    }

    /// The machine is paused for a while, and nothing on it shows that. Gives for how long, in nanoseconds.
    pub fn stand_still(&mut self, random: &mut Random) -> u64 {
        let stood_still_ns = random.below(STOOD_STILL_MS_MAX * 1_000_000);
        self.stood_still_ns += stood_still_ns;
        self.ahead_ns -= signed(stood_still_ns);
        stood_still_ns
    }

    /// How far somebody sets all wall clocks off, in nanoseconds: within their bounds, or, where clocks are wild, far out of them.
    pub fn error(random: &mut Random, clocks: Clocks) -> i64 {
        let most_ms = if clocks == Clocks::Wild { WILD_MS_MAX } else { SKEW_MS_MAX / 2 };
        signed(random.below(2 * most_ms * 1_000_000)) - signed(most_ms * 1_000_000)
    }

    /// Somebody sets the wall clock so far off. What the process goes by goes on evenly; the next one begins there.
    pub fn set(&mut self, ahead_ns: i64) {
        self.ahead_ns = signed(SKEW_MS_MAX * 1_000_000) + ahead_ns;
    }

    /// Puts the clock somewhere else: within its bounds, or, where clocks are wild, now and then far out of them.
    pub fn jump(&mut self, random: &mut Random, clocks: Clocks) {
        let skew_ms = random.pick(&SKEW_MS);
        self.ahead_ns = signed((SKEW_MS_MAX - skew_ms) * 1_000_000 + random.below(2 * skew_ms * 1_000_000));
        if clocks == Clocks::Wild && random.chance(WILD_PER_MILLE) {
            self.ahead_ns = signed(random.below(2 * WILD_MS_MAX * 1_000_000)) - signed(WILD_MS_MAX * 1_000_000);
        }
    }

    /// Somebody puts it right. Gives how long it may take until replicas go by it, in nanoseconds.
    pub fn put_right(&mut self, random: &mut Random, clocks: Clocks) -> u64 {
        if clocks != Clocks::Wild {
            return 0;
        }
        self.jump(random, Clocks::Skewed);
        RIGHT_AFTER_MS * 1_000_000
    }

    /// The process ended: the next one does not know what this one showed.
    pub fn forget(&mut self) {
        self.even = None;
    }

    /// What it shows at the true time `now`.
    pub fn read(&mut self, now: u64) -> Time {
        let drift = signed(now.saturating_sub(EPOCH_NS)) / 1_000_000 * self.drift_ppm;
        let passed = now.saturating_add_signed(drift).saturating_sub(self.stood_still_ns);
        let wall = now.saturating_add_signed(self.ahead_ns);
        self.even.get_or_insert_with(|| EvenClock::new(passed, wall)).read(passed, wall)
    }

    /// The true time at which it will show `local`, about, if nothing jumps: rather too early.
    pub fn when(&self, local: Time) -> u64 {
        match &self.even {
            None => local.0.saturating_add_signed(-self.ahead_ns),
            Some(even) => {
                let passed = even.when(local).saturating_add(self.stood_still_ns);
                let drift = signed(passed.saturating_sub(EPOCH_NS).min(DAY_NS)) / 1_000_000 * self.drift_ppm;
                passed.saturating_add_signed(-drift)
            }
        }
    }
}

fn signed(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds).expect("clocks are off by seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_when_it_is_set_and_stands_still_when_its_machine_is_paused() {
        let mut clock = Clock { ahead_ns: 1_000, stood_still_ns: 0, drift_ppm: 0, even: None };
        assert_eq!(clock.read(EPOCH_NS), Time(EPOCH_NS + 1_000));
        clock.ahead_ns = 3_000_000_000;
        assert_eq!(clock.read(EPOCH_NS + 500), Time(EPOCH_NS + 1_500));
        clock.stood_still_ns = 300;
        assert_eq!(clock.read(EPOCH_NS + 600), Time(EPOCH_NS + 1_500));
        assert_eq!(clock.when(Time(EPOCH_NS + 2_000)), EPOCH_NS + 1_300);
        assert_eq!(clock.read(EPOCH_NS + 1_300), Time(EPOCH_NS + 2_000));
    }
}
