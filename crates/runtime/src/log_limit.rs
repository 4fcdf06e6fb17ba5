//! How many lines go to the log about what others do: it must not fill the disk, nor hide what matters.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many lines a minute, and a count of those left out.
#[derive(Debug)]
pub struct LogLimit {
    a_minute_max: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    minute_began: Instant,
    lines: u32,
    left_out: u64,
}

/// How many lines were left out before one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(u64);

impl LeftOut {
    /// Those of two limits.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// For the line: nothing where there is nothing to say.
    #[must_use]
    pub fn noted(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl LogLimit {
    /// A limit of so many lines a minute.
    #[must_use]
    pub fn new(a_minute_max: u32) -> Self {
        Self { a_minute_max, state: Mutex::new(State { minute_began: Instant::now(), lines: 0, left_out: 0 }) }
    }

    /// Whether one more line may go to the log at `now`: then how many were left out since the last one that did.
    pub fn admit(&self, now: Instant) -> Option<LeftOut> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(state.minute_began) >= Duration::from_secs(60) {
            (state.minute_began, state.lines) = (now, 0);
        }
        if state.lines >= self.a_minute_max {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(LeftOut(std::mem::take(&mut state.left_out)))
    }

    /// Counts so many as left out that were admitted here and not elsewhere.
    pub(crate) fn leave_out(&self, lines: LeftOut) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).left_out += lines.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_minute_and_a_count_of_the_others() {
        let limit = LogLimit::new(8);
        let now = Instant::now();
        let logged = |at: Instant| (0..1_000).filter(|_| limit.admit(at).is_some()).count();
        assert_eq!(logged(now), 8);
        assert_eq!(logged(now + Duration::from_secs(59)), 0);
        assert_eq!(limit.admit(now + Duration::from_secs(120)), Some(LeftOut(1_992)));
        assert_eq!(limit.admit(now + Duration::from_secs(120)), Some(LeftOut(0)));
    }
}
