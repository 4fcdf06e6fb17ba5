//! Injected latency: frames wait before they are sent, as if their receivers were far away.
//!
//! It lets one machine measure and test a cluster across the world. It takes a build with the feature `lab`,
//! and is off unless a [`Delays`] is given.
//!
//! Each push to a connection is held until it is due; pushes leave in order, whatever jitter was drawn, as over one TCP
//! connection. Any number is in flight at once, so a connection's bandwidth does not change. Held bytes count as waiting to be
//! written and are bounded.
//! Connecting and heartbeats are not delayed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use types::Party;

use crate::frame::Frames;

/// The one-way delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// The least delay.
    pub least: Duration,
    /// The most that is added to it, drawn for each push.
    pub jitter: Duration,
}

/// The delays from one node to all parties.
#[derive(Clone)]
pub struct Delays(Arc<dyn Fn(Party) -> Delay + Send + Sync>);

impl Delays {
    /// Messages to a party take as long as `to` says.
    #[must_use]
    pub fn new(to: impl Fn(Party) -> Delay + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// The delay of messages to `party`.
    #[must_use]
    pub fn to(&self, party: Party) -> Delay {
        (self.0)(party)
    }
}

impl fmt::Debug for Delays {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Delays(..)")
    }
}

/// Injected latency, and what keeps them.
#[derive(Debug)]
pub(crate) struct Distance {
    delays: Delays,
    pacer: Arc<Pacer>,
}

impl Distance {
    pub fn new(delays: Delays) -> std::io::Result<Self> {
        Ok(Self { delays, pacer: Arc::new(Pacer::start()?) })
    }

    /// What a connection to `party` needs; `None` where there is no distance.
    pub fn hold(&self, party: Party) -> Option<DelayLine> {
        let delay = self.delays.to(party);
        (delay != Delay::default()).then(|| DelayLine { delay, pacer: Arc::clone(&self.pacer) })
    }
}

/// What one connection needs to hold back what it is given.
#[derive(Debug)]
pub(crate) struct DelayLine {
    delay: Delay,
    pacer: Arc<Pacer>,
}

impl DelayLine {
    /// When what is pushed at `now` may leave.
    pub fn due(&self, now: Instant) -> Instant {
        let jitter_us = u64::try_from(self.delay.jitter.as_micros()).unwrap_or(u64::MAX);
        let drawn_us = if jitter_us == 0 { 0 } else { rand::random_range(0..=jitter_us) };
        now + self.delay.least + Duration::from_micros(drawn_us)
    }

    /// Wakes `writer` at `due`.
    pub fn wake_at(&self, due: Instant, writer: Waker) {
        self.pacer.wake_at(due, writer);
    }
}

/// What is on its way over one connection and not due yet, first pushed first.
#[derive(Debug, Default)]
pub(crate) struct DelayedFrames {
    batches: VecDeque<(Instant, Frames)>,
    bytes: usize,
}

impl DelayedFrames {
    /// Room for a push that is due at `due`, or when the push before it is, if that is later. Tell [`DelayedFrames::grown`]
    /// what it took.
    pub fn push(&mut self, due: Instant) -> &mut Frames {
        let due = self.batches.back().map_or(due, |(before, _)| due.max(*before));
        self.batches.push_back((due, Frames::default()));
        &mut self.batches.back_mut().expect("one was just pushed").1
    }

    /// So many bytes were pushed.
    pub fn grown(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Moves what is due at `now` to the end of `frames`.
    pub fn take_due(&mut self, now: Instant, frames: &mut Frames) {
        while self.due().is_some_and(|due| due <= now) {
            let Some((_, batch)) = self.batches.pop_front() else { break };
            self.bytes -= batch.bytes().len();
            frames.join(batch);
        }
    }

    /// When the first of it is due.
    pub fn due(&self) -> Option<Instant> {
        self.batches.front().map(|(due, _)| *due)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn messages(&self) -> u64 {
        self.batches.iter().map(|(_, frames)| frames.messages()).sum()
    }
}

/// Wakes tasks at instants that are finer than the runtime's timers, which tick in milliseconds. One thread a node, and
/// only where there are delays.
#[derive(Debug)]
struct Pacer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

/// A connection sets one when it has something that is not due, and another at each heartbeat until then.
#[derive(Debug, Default)]
struct Alarms {
    wakers: BTreeMap<(Instant, u64), Waker>,
    set: u64,
    closed: bool,
}

impl Pacer {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::Builder::new().name("distance".to_owned()).spawn(move || own.run())?;
        Ok(Self { shared })
    }

    fn wake_at(&self, due: Instant, waker: Waker) {
        let mut alarms = self.shared.lock();
        alarms.set += 1;
        let set = alarms.set;
        let is_first = alarms.wakers.keys().next().is_none_or(|(first, _)| due < *first);
        alarms.wakers.insert((due, set), waker);
        drop(alarms);
        if is_first {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut alarms = self.lock();
        while !alarms.closed {
            let Some((due, _)) = alarms.wakers.keys().next().copied() else {
                alarms = self.changed.wait(alarms).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waker = alarms.wakers.pop_first();
                drop(alarms);
                if let Some((_, waker)) = waker {
                    waker.wake();
                }
                alarms = self.lock();
            } else {
                alarms = self.changed.wait_timeout(alarms, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Nothing is left half done when a waker panics, so poison means nothing here.
    fn lock(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::Number;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::task::Wake;

    #[test]
    fn a_push_never_leaves_before_the_one_before_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut held = DelayedFrames::default();
        for (due, number) in [(30, 1u64), (10, 2), (40, 3)] {
            let frames = held.push(at(due));
            assert!(frames.add(&Number(number, 0)));
            let bytes = frames.bytes().len();
            held.grown(bytes);
        }
        assert_eq!((held.due(), held.messages()), (Some(at(30)), 3));
        let mut frames = Frames::default();
        held.take_due(at(29), &mut frames);
        assert_eq!(frames.messages(), 0);
        held.take_due(at(30), &mut frames);
        assert_eq!((frames.frames(), frames.messages(), held.messages()), (2, 2, 1));
        held.take_due(at(40), &mut frames);
        assert_eq!((frames.messages(), held.bytes(), held.due()), (3, 0, None));
    }

    struct Note(SyncSender<u32>, u32);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.0.send(self.1).expect("the test listens");
        }
    }

    #[test]
    fn the_pacer_wakes_in_the_order_of_the_instants_and_never_early() {
        let pacer = Pacer::start().expect("a thread");
        let (sender, woken) = sync_channel(3);
        let start = Instant::now();
        for (ms, name) in [(40, 3), (5, 1), (20, 2)] {
            pacer.wake_at(start + Duration::from_millis(ms), Waker::from(Arc::new(Note(sender.clone(), name))));
        }
        for (ms, name) in [(5, 1), (20, 2), (40, 3)] {
            assert_eq!(woken.recv().expect("it wakes"), name);
            assert!(start.elapsed() >= Duration::from_millis(ms));
        }
    }
}
