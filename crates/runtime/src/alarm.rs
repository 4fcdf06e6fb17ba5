//! Waits that end on time.
//!
//! Tokio's timer counts whole milliseconds, so that a task that waits for less than that wakes up late by up to twice what it waits for.
//! Requests that come a little before their time would all be answered as much later. So a replica's loop has a timer of the system's.

use std::time::Duration;

use tokio::time::sleep;

/// For a wait that is longer, tokio's timer is exact enough, and costs less.
const EXACT_BELOW: Duration = Duration::from_millis(5);

/// What a task waits with, one wait after the other.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    exact: Option<system::Timer>,
}

impl Alarm {
    /// One that is exact, where the system has such a timer. Needs a tokio runtime around it.
    pub fn exact() -> Self {
        Self { exact: system::Timer::new() }
    }

    /// Waits for so long. May be dropped before, and called again.
    pub async fn wait(&self, wait: Duration) {
        match self.exact.as_ref().filter(|_| wait < EXACT_BELOW) {
            Some(timer) if timer.wait(wait).await.is_some() => {}
            _ => sleep(wait).await,
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::io::read;
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// A timer of the system's: a file that can be read once it is time.
    #[derive(Debug)]
    pub(super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub fn new() -> Option<Self> {
            let file = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC).ok()?;
            #[expect(deprecated, reason = "a type that names another file later would be unsound, and a file of our own does not")]
            AsyncFd::with_interest(file, Interest::READABLE).ok().map(Self)
        }

        /// Waits for so long; nothing when the system refuses.
        pub async fn wait(&self, wait: Duration) -> Option<()> {
            // Zero would turn it off.
            let nanoseconds = wait.subsec_nanos().max(u32::from(wait.is_zero()));
            let it_value = Timespec { tv_sec: i64::try_from(wait.as_secs()).ok()?, tv_nsec: nanoseconds.into() };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value }).ok()?;
            loop {
                let mut ready = self.0.readable().await.ok()?;
                // An earlier wait that was given up may have left it ready: only reading tells.
                match ready.try_io(|file| Ok(read(file, &mut [0_u8; 8])?)) {
                    Ok(fired) => return fired.ok().map(drop),
                    Err(_would_block) => {}
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::time::Duration;

    /// There is none.
    #[derive(Debug)]
    pub(super) enum Timer {}

    impl Timer {
        pub fn new() -> Option<Self> {
            None
        }

        pub async fn wait(&self, _wait: Duration) -> Option<()> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn no_wait_ends_before_its_time() {
        for alarm in [Alarm::exact(), Alarm::default()] {
            for wait in [Duration::ZERO, MS / 4, MS, 3 * MS, 2 * EXACT_BELOW] {
                let begun = Instant::now();
                alarm.wait(wait).await;
                assert!(begun.elapsed() >= wait, "{wait:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_wait_that_was_given_up_does_not_end_the_next() {
        let alarm = Alarm::exact();
        for _ in 0..10 {
            // It is given up at once, unless this thread was held up until it had ended.
            drop(timeout(Duration::ZERO, alarm.wait(MS / 10)).await);
            tokio::time::sleep(2 * MS).await;
            let begun = Instant::now();
            alarm.wait(4 * MS).await;
            assert!(begun.elapsed() >= 4 * MS);
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_system_has_an_exact_timer() {
        assert!(Alarm::exact().exact.is_some());
    }
}
