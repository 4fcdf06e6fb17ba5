//! How much of the node loop's time members at low priority have.
//!
//! The loop's own priority is not low. Where all cores are busy, others wait for what it does for a flood. So while the loop has to wait
//! for a core itself, members at low priority have a budget: a turn takes up one round of one of them, and the next one that does comes
//! after nine times as long. What waits stays within a member's quota, and no more of it is read meanwhile. While there are cores to
//! spare, nothing waits.

use std::time::{Duration, Instant};

use crate::priority::USAGE_INTERVAL_MS;

/// After a turn that took up something of members at low priority, they wait so many times as long as it took.
const PAUSE_TIMES: u32 = 9;
/// However long it took, they wait no longer than this, in milliseconds: one of them may be held for a flood by mistake.
const PAUSE_MS_MAX: u64 = 200;
/// Where the loop waits for a core for more than this part of the time, there is none to spare.
const WAITED_PERCENT_MAX: u32 = 20;
/// For how long that counts after it was last found, in milliseconds: it is found no more as soon as those members are held back.
const CONTENDED_MS: u64 = 1_000;

/// When the node loop takes up what members at low priority have sent.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Not before this.
    next: Option<Instant>,
    /// When it was last looked how long the loop had waited for a core, and how long that was.
    looked: Option<(Instant, Duration)>,
    /// Until when cores count as busy.
    contended_until: Option<Instant>,
}

impl Budget {
    /// Looks whether there are cores to spare, unless that was done just before. `waited` says for how long the loop has waited for a core
    /// since it began, where that is known. To be called while anybody is served at low priority.
    pub fn look(&mut self, now: Instant, waited: impl FnOnce() -> Option<Duration>) {
        let interval = Duration::from_millis(USAGE_INTERVAL_MS);
        let since = self.looked.map(|(at, before)| (now.saturating_duration_since(at), before));
        if since.is_some_and(|(passed, _)| passed < interval) {
            return;
        }
        let waited = waited();
        if let (Some((passed, before)), Some(waited)) = (since, waited)
            && waited.saturating_sub(before) * 100 > passed * WAITED_PERCENT_MAX
        {
            self.contended_until = now.checked_add(Duration::from_millis(CONTENDED_MS));
        }
        self.looked = waited.map(|waited| (now, waited));
    }

    /// Whether there are no cores to spare.
    pub fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// Until when members at low priority wait, if they do.
    pub fn waits_until(&self, now: Instant) -> Option<Instant> {
        let until = self.next.min(self.contended_until)?;
        (now < until).then_some(until)
    }

    /// Notes that a turn which took so long has taken up something of theirs.
    pub fn spent(&mut self, now: Instant, spent: Duration) {
        self.next = now.checked_add(spent.saturating_mul(PAUSE_TIMES).min(Duration::from_millis(PAUSE_MS_MAX)));
    }
}

/// For how long this thread has waited for a core since it began.
#[cfg(target_os = "linux")]
pub(crate) fn waited_for_core() -> Option<Duration> {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    counts.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Nobody tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn waited_for_core() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A budget that has found no cores to spare.
    fn contended(now: Instant) -> Budget {
        let mut budget = Budget::default();
        budget.look(now - ms(USAGE_INTERVAL_MS), || Some(ms(700)));
        budget.look(now, || Some(ms(700 + USAGE_INTERVAL_MS / 2)));
        assert!(budget.is_contended(now));
        budget
    }

    #[test]
    fn after_a_turn_for_them_they_wait_nine_times_as_long() {
        let now = Instant::now();
        let mut budget = contended(now);
        assert_eq!(budget.waits_until(now), None, "they have had nothing yet");
        budget.spent(now, ms(2));
        assert_eq!(budget.waits_until(now), Some(now + ms(18)));
        assert_eq!(budget.waits_until(now + ms(17)), Some(now + ms(18)));
        assert_eq!(budget.waits_until(now + ms(18)), None);
    }

    #[test]
    fn they_do_not_wait_for_long_however_long_it_took() {
        let now = Instant::now();
        let mut budget = contended(now);
        budget.spent(now, Duration::from_secs(3_600));
        assert!(budget.waits_until(now) <= Some(now + ms(PAUSE_MS_MAX)));
    }

    #[test]
    fn with_cores_to_spare_nobody_waits() {
        let now = Instant::now();
        let mut budget = Budget::default();
        let waited = |at: u64| ms(at * u64::from(WAITED_PERCENT_MAX) / 100);
        for at in (0..1_000).step_by(20) {
            budget.look(now + ms(at), || Some(waited(at)));
            budget.spent(now + ms(at), ms(10));
            assert_eq!(budget.waits_until(now + ms(at)), None);
        }
    }

    #[test]
    fn nobody_waits_where_it_is_not_known_how_long_the_loop_does() {
        let now = Instant::now();
        let mut budget = Budget::default();
        for at in (0..1_000).step_by(20) {
            budget.look(now + ms(at), || None);
            budget.spent(now + ms(at), ms(10));
            assert_eq!(budget.waits_until(now + ms(at)), None);
        }
    }

    #[test]
    fn who_waits_goes_on_once_there_are_cores_to_spare() {
        let now = Instant::now();
        let mut budget = contended(now);
        let spare = now + ms(CONTENDED_MS);
        budget.spent(spare - ms(1), Duration::from_secs(1));
        assert!(budget.waits_until(spare - ms(1)).is_some());
        assert_eq!(budget.waits_until(spare), None);
        assert!(!budget.is_contended(spare));
    }

    #[test]
    fn it_is_looked_once_an_interval() {
        let now = Instant::now();
        let (mut budget, mut looks) = (Budget::default(), 0);
        for at in (0..10 * USAGE_INTERVAL_MS).step_by(10) {
            budget.look(now + ms(at), || {
                looks += 1;
                Some(Duration::ZERO)
            });
        }
        assert_eq!(looks, 10);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_tells_for_how_long_a_thread_has_waited() {
        // Not every kernel is built to count it.
        if std::path::Path::new("/proc/self/schedstat").exists() {
            assert!(waited_for_core().is_some());
        }
    }
}
