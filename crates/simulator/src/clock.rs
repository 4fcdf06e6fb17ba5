//! Clocks that are wrong, within bounds.

use machine::Time;

use crate::random::Random;
use crate::setting::Clocks;

/// Where true time begins: no machine may depend on it, and some day in the future is as good as any.
pub(crate) const EPOCH_NS: u64 = 1_800_000_000_000_000_000;
/// How far a clock may be off, in milliseconds. Two may differ by twice as much, which stays under the `δ` of 500 ms that
/// replicas grant timestamps.
const SKEW_MS_MAX: u64 = 100;

/// One participant's clock: true time and an error that may jump. It never shows an earlier time than before.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ahead_ns: u64,
    shown: u64,
}

impl Clock {
    pub fn new(random: &mut Random, clocks: Clocks) -> Self {
        let mut clock = Self { ahead_ns: SKEW_MS_MAX * 1_000_000, shown: 0 };
        match clocks {
            Clocks::Exact => {}
            Clocks::Skewed => clock.jump(random),
        }
        clock
    }

    /// Puts the clock somewhere else within its bounds.
    pub fn jump(&mut self, random: &mut Random) {
        self.ahead_ns = random.below(2 * SKEW_MS_MAX * 1_000_000);
    }

    /// The process ended: the next one does not know what this one showed.
    pub fn forget(&mut self) {
        self.shown = 0;
    }

    /// What it shows at the true time `now`.
    pub fn read(&mut self, now: u64) -> Time {
        self.shown = self.shown.max(now + self.ahead_ns);
        Time(self.shown)
    }

    /// The true time at which it will show `local`, if nothing jumps.
    pub fn when(&self, local: Time) -> u64 {
        local.0.saturating_sub(self.ahead_ns)
    }
}
