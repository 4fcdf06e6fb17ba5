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
    #[cfg(test)]
    pretended: Option<Took>,
}

/// What some work has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// For how long the thread worked.
    pub worked: Duration,
    /// How long it was from the beginning to the end, the time included in which the thread waited for a disk or for a core.
    pub lasted: Duration,
}

impl Worked {
    /// Work begins.
    pub fn begin() -> Self {
        Self::begin_at(Instant::now())
    }

    /// Work begins now, which is `begun`.
    fn begin_at(begun: Instant) -> Self {
        let shown = match READING.get() {
            Some((read, shown)) if begun.saturating_duration_since(read) < SHORT => Some(shown),
            _ => read(begun),
        };
        Self {
            begun,
            shown,
            #[cfg(test)]
            pretended: pretended::until_now(),
        }
    }

    /// For how long it was worked, on this thread, since it began.
    pub fn elapsed(&self) -> Duration {
        self.took().worked
    }

    /// What it has taken since it began. More work begins at that moment, so that the clock is read once for both.
    pub fn lap(&mut self) -> Took {
        let took = self.took();
        *self = Self::begin_at(self.begun + took.lasted);
        took
    }

    /// What it has taken since it began.
    fn took(&self) -> Took {
        #[cfg(test)]
        if let (Some(before), Some(now)) = (self.pretended, pretended::until_now()) {
            return Took { worked: now.worked - before.worked, lasted: now.lasted - before.lasted };
        }
        let lasted = self.begun.elapsed();
        let worked = match self.shown {
            Some(shown) if lasted >= SHORT => read(self.begun + lasted).map_or(lasted, |shows| lasted.min(shows.saturating_sub(shown))),
            _ => lasted,
        };
        Took { worked, lasted }
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

/// Work that a test only says was done, so that it does not depend on how fast the machine is.
#[cfg(test)]
pub(crate) mod pretended {
    use super::*;

    thread_local! {
        static UNTIL_NOW: Cell<Option<Took>> = const { Cell::new(None) };
    }

    /// While there is one, nothing on this thread takes any time but what is said to.
    pub(crate) struct Pretence(());

    impl Pretence {
        pub fn begin() -> Self {
            UNTIL_NOW.set(Some(Took::default()));
            Self(())
        }
    }

    impl Drop for Pretence {
        fn drop(&mut self) {
            UNTIL_NOW.set(None);
        }
    }

    /// Takes so long, without taking it.
    pub(crate) fn take(took: Took) {
        let before = until_now().expect("a test that says how long something takes has begun to");
        UNTIL_NOW.set(Some(Took { worked: before.worked + took.worked, lasted: before.lasted + took.lasted }));
    }

    pub(super) fn until_now() -> Option<Took> {
        UNTIL_NOW.get()
    }
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
        let took = worked.took();
        assert!(took.worked < worked.begun.elapsed() - 90 * SHORT);
        assert!(took.lasted >= 100 * SHORT, "but it lasted as long");
    }
}
