//! The queue of a node loop's input.
//!
//! Many connections and callers push; one loop takes. A push holds a lock for a short time; the loop takes all items with
//! one lock a turn, and is woken only when it sleeps. This is cheaper than a channel, which hands over items one by one.
//! The queue itself is unbounded, because all its items hold permits: messages by bytes, separately for each member
//! ([`Permit`]), commands by count.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crypto::Verified;
use types::Party;

use crate::link::Link;
use crate::quota::Permit;

/// One input for the loop.
#[derive(Debug)]
pub(crate) enum Inbound<C, W> {
    /// A command of the node's own side.
    Command(C),
    /// The messages that one read from another party's connection brought.
    Messages {
        from: Party,
        /// When they came.
        at: Instant,
        messages: Vec<Verified<W>>,
        /// The connection that they came over, and that answers go over; none for what the machine says to itself.
        link: Option<Arc<Link>>,
        /// Returned when the machine has processed the last of them.
        permit: Option<Permit>,
    },
}

/// A queue with many writers and one reader.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// The reader, when it sleeps.
    reader: Option<Waker>,
    /// Whether the reader has something to do besides taking.
    woken: bool,
    closed: bool,
}

/// How it stands with a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// More may come.
    pub is_open: bool,
    /// [`Mailbox::wake`] was called.
    pub was_woken: bool,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { items: VecDeque::new(), reader: None, woken: false, closed: false }) }
    }
}

impl<T> Mailbox<T> {
    /// Adds `item`; returns it when the mailbox is closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }

    /// Has the reader look at what it has, although nothing new has come.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.woken = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Moves everything to the back of `into`.
    pub fn take(&self, into: &mut VecDeque<T>) -> Taken {
        let mut state = self.lock();
        if into.is_empty() {
            std::mem::swap(into, &mut state.items);
        } else {
            into.append(&mut state.items);
        }
        Taken { is_open: !state.closed, was_woken: std::mem::take(&mut state.woken) }
    }

    /// Ready when there is something to take or to look at, or the mailbox is closed.
    pub fn poll_ready(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.items.is_empty() || state.woken || state.closed {
            return Poll::Ready(());
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    /// Closes the mailbox for further items.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// A panic elsewhere cannot leave the queue inconsistent, so a poisoned lock is safe to use.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_taken_at_once_in_order() {
        let mailbox = Mailbox::default();
        let context = Context::from_waker(Waker::noop());
        assert_eq!(mailbox.poll_ready(&context), Poll::Pending);
        assert_eq!(mailbox.push(1), Ok(()));
        assert_eq!(mailbox.push(2), Ok(()));
        assert_eq!(mailbox.poll_ready(&context), Poll::Ready(()));
        let mut taken = VecDeque::from([0]);
        assert_eq!(mailbox.take(&mut taken), Taken { is_open: true, was_woken: false });
        // Woken before the reader sleeps, it does not fall asleep.
        mailbox.wake();
        assert_eq!(mailbox.poll_ready(&context), Poll::Ready(()));
        assert!(mailbox.take(&mut taken).was_woken);
        assert_eq!(mailbox.poll_ready(&context), Poll::Pending);
        assert_eq!(taken, [0, 1, 2]);
        mailbox.close();
        assert_eq!(mailbox.push(3), Err(3));
        assert!(!mailbox.take(&mut taken).is_open);
    }
}
