//! Clocks that are wrong, within bounds.

use machine::Time;
use random::Random;

use crate::setting::Clocks;

/// Where true time begins: no machine may depend on it, and some day in the future is as good as any.
pub const EPOCH_NS: u64 = 1_800_000_000_000_000_000;
/// How far a clock may be off, in milliseconds, and how far most are: in a world in which all waited for the worst, little would happen.
/// Two may differ by twice as much, which stays under the `δ` of 500 ms that replicas grant timestamps.
const SKEW_MS_MAX: u64 = 100;
const SKEW_MS: [u64; 4] = [1, 1, 10, SKEW_MS_MAX];
/// How far a wild one may be off, in milliseconds: more than `δ`, and less than half of any window.
const WILD_MS_MAX: u64 = 2_000;
/// How far clients' clocks are ahead, in seconds: those of replicas they may have to follow are none of them.
const CLIENT_AHEAD_S: [i64; 6] = [0, 1, 10, 3_600, -10, -3_600];
/// How long a client's clock stands still at most, in milliseconds.
const STOOD_STILL_MS_MAX: u64 = 2_000;
/// How often a wild clock is as far off as that when it jumps, in a thousand.
const WILD_PER_MILLE: u64 = 400;

/// One participant's clock: true time and an error that may jump. It never shows an earlier time than before, and when it is ahead, it
/// runs at half speed until it is right again, as the real shell's.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ahead_ns: i64,
    shown: u64,
    shown_at: u64,
}

impl Clock {
    pub fn new(random: &mut Random, clocks: Clocks) -> Self {
        let mut clock = Self { ahead_ns: signed(SKEW_MS_MAX * 1_000_000), shown: 0, shown_at: 0 };
        match clocks {
            Clocks::Exact => {}
            Clocks::Skewed | Clocks::Wild => clock.jump(random, clocks),
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

    /// A client's stands still for a while, as that of a machine that is paused.
    pub fn stand_still(&mut self, random: &mut Random) {
        self.ahead_ns -= signed(random.below(STOOD_STILL_MS_MAX * 1_000_000));
    }

    /// Puts the clock somewhere else: within its bounds, or, where clocks are wild, now and then far out of them.
    pub fn jump(&mut self, random: &mut Random, clocks: Clocks) {
        let skew_ms = random.pick(&SKEW_MS);
        self.ahead_ns = signed((SKEW_MS_MAX - skew_ms) * 1_000_000 + random.below(2 * skew_ms * 1_000_000));
        if clocks == Clocks::Wild && random.chance(WILD_PER_MILLE) {
            self.ahead_ns = signed(random.below(2 * WILD_MS_MAX * 1_000_000)) - signed(WILD_MS_MAX * 1_000_000);
        }
    }

    /// Somebody puts it right. Gives how long it may take until it shows that, in nanoseconds.
    pub fn put_right(&mut self, random: &mut Random, clocks: Clocks) -> u64 {
        if clocks != Clocks::Wild {
            return 0;
        }
        self.jump(random, Clocks::Skewed);
        2 * (WILD_MS_MAX + SKEW_MS_MAX) * 1_000_000
    }

    /// The process ended: the next one does not know what this one showed.
    pub fn forget(&mut self) {
        self.shown = 0;
    }

    /// What it shows at the true time `now`.
    pub fn read(&mut self, now: u64) -> Time {
        let wall = now.saturating_add_signed(self.ahead_ns);
        let slow = if self.shown == 0 { 0 } else { self.shown + now.saturating_sub(self.shown_at) / 2 };
        (self.shown, self.shown_at) = (wall.max(slow), now);
        Time(self.shown)
    }

    /// The true time at which it will show `local`, if nothing jumps.
    pub fn when(&self, local: Time) -> u64 {
        let wall = local.0.saturating_add_signed(-self.ahead_ns);
        let slow = self.shown_at.saturating_add(2 * local.0.saturating_sub(self.shown));
        if self.shown == 0 { wall } else { wall.min(slow) }
    }
}

fn signed(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds).expect("clocks are off by seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_ahead_goes_on_at_half_speed_until_it_is_right() {
        let mut clock = Clock { ahead_ns: 1_000, shown: 0, shown_at: 0 };
        assert_eq!(clock.read(EPOCH_NS), Time(EPOCH_NS + 1_000));
        clock.ahead_ns = -1_000;
        for (after, shown) in [(0, 1_000), (1_000, 1_500), (3_000, 2_500), (4_000, 3_000), (5_000, 4_000)] {
            let local = Time(EPOCH_NS + shown);
            assert_eq!(clock.when(local), EPOCH_NS + after, "{after}");
            assert_eq!(clock.read(EPOCH_NS + after), local, "{after}");
        }
    }
}
