//! How long a thread works for somebody, without the time in which it waits for a core.
//!
//! The system's clock of a thread costs a microsecond to read, more than much of what is measured takes. So what is short is taken as it
//! seems, and what seems long is no longer than the thread had a core since that clock was last read, a moment before it began.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What takes less than this is taken as it seems; and this long before it begins the thread's clock may have been read.
const SHORT: Duration = Duration::from_millis(1);

thread_local! {
    /// When the thread's clock was last read, and what it showed.
    static READING: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Work that has begun, on the thread that does it.
#[derive(Debug)]
pub(crate) struct Worked {
    begun: Instant,
    /// What the thread's clock showed a moment before; nothing where the system has no such clock.
    shown: Option<Duration>,
}

impl Worked {
    /// Work begins.
    pub fn begin() -> Self {
        let begun = Instant::now();
        let shown = match READING.get() {
            Some((read, shown)) if begun.saturating_duration_since(read) < SHORT => Some(shown),
            _ => read(begun),
        };
        Self { begun, shown }
    }

    /// For how long it was worked, on this thread, since it began.
    pub fn elapsed(&self) -> Duration {
        let elapsed = self.begun.elapsed();
        match self.shown {
            Some(shown) if elapsed >= SHORT => read(self.begun + elapsed).map_or(elapsed, |shows| elapsed.min(shows.saturating_sub(shown))),
            _ => elapsed,
        }
    }
}

/// Reads the thread's clock: for how long this thread has had a core.
fn read(now: Instant) -> Option<Duration> {
    let shown = thread_time()?;
    READING.set(Some((now, shown)));
    Some(shown)
}

#[cfg(target_os = "linux")]
fn thread_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(not(target_os = "linux"))]
fn thread_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_is_worked_counts() {
        let worked = Worked::begin();
        while worked.begun.elapsed() < 3 * SHORT {}
        assert!(!worked.elapsed().is_zero());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_wait_does_not_count() {
        let worked = Worked::begin();
        thread::sleep(100 * SHORT);
        assert!(worked.elapsed() < worked.begun.elapsed() - 90 * SHORT);
    }
}
