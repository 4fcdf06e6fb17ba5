//! A session that is looked at: its statistics are copied to a cell after each turn, where they can be read without waiting for it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Ask, Session, Statistics, Tell};
use machine::{Durable, InputOf, Machine, OutboxOf, Time};

/// Where a session's statistics are read.
#[derive(Debug, Default)]
pub(crate) struct StatisticsCell(Mutex<Statistics>);

impl StatisticsCell {
    pub fn get(&self) -> Statistics {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Statistics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session and its cell.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    pub session: S,
    pub cell: Arc<StatisticsCell>,
}

impl<S: Session> Machine for Watched<S> {
    type Command = Ask;
    type Received = S::Received;
    type Message = S::Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.session.step(now, input, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }
}

impl<S: Session> Durable for Watched<S> {
    type Failure = S::Failure;

    fn persist(&mut self) -> Result<(), Self::Failure> {
        self.session.persist()?;
        let mut statistics = self.cell.lock();
        statistics.clear();
        self.session.statistics(&mut statistics);
        Ok(())
    }
}
