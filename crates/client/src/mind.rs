//! What drives a connection's transactions: a coordinator, or a client that cheats around one. Its counts are copied to a
//! board after each turn, where they can be read without waiting for it.

use std::sync::{Arc, Mutex, PoisonError};

use basil::coordinator::CoordinatorCounts;
use basil::{Command, Coordinator, CoordinatorOptions, Event, Message};
use crypto::Verified;
use machine::{Durable, InputOf, Machine, OutboxOf, Time};
use types::{ClientId, Cluster};

use crate::adversary::{Cheat, Cheating, MisbehaviorCounts};

/// What a client has done since it connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that only read, and on which nobody voted.
    pub validated: u64,
    /// Transactions decided in one round trip.
    pub fast: u64,
    /// Transactions whose decision was written down first.
    pub slow: u64,
    /// Transactions, its own and others', that somebody else had ended first.
    pub recovered: u64,
    /// Transactions of others that it set out to finish, because they stood in its way.
    pub finished_for_others: u64,
    /// Transactions for which the replicas had to elect a leader, because what they had written down differed.
    pub elections: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Reads that had to ask more replicas.
    pub read_escalations: u64,
}

impl From<CoordinatorCounts> for Counts {
    fn from(counts: CoordinatorCounts) -> Self {
        let CoordinatorCounts { validated, fast, slow, recovered, finishes, fallbacks, retries, read_escalations, .. } = counts;
        Self { validated, fast, slow, recovered, finished_for_others: finishes, elections: fallbacks, retries, read_escalations }
    }
}

/// Where the counts are read.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<(Counts, MisbehaviorCounts)>);

impl Board {
    pub fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    #[cfg(feature = "lab")]
    pub fn deeds(&self) -> MisbehaviorCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// What drives a connection's transactions.
#[derive(Debug)]
pub(crate) struct Mind {
    kind: Kind,
    board: Arc<Board>,
}

/// Which of the two it is.
#[derive(Debug)]
pub(crate) enum Kind {
    Honest(Box<Coordinator>),
    #[cfg_attr(not(feature = "lab"), expect(dead_code, reason = "nobody cheats in this build"))]
    Cheat(Cheat),
}

impl Mind {
    /// The mind of `me`, which is honest unless it is told how to cheat.
    pub fn new(cluster: &Arc<Cluster>, me: ClientId, options: CoordinatorOptions, cheating: Option<Cheating>, board: Arc<Board>) -> Self {
        let coordinator = Coordinator::new(cluster.clone(), options);
        let kind = match cheating {
            None => Kind::Honest(Box::new(coordinator)),
            Some(cheating) => cheating.around(coordinator, cluster, me),
        };
        Self { kind, board }
    }
}

impl Machine for Mind {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = std::convert::Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match &mut self.kind {
            Kind::Honest(coordinator) => coordinator.step(now, input, outbox),
            Kind::Cheat(cheat) => cheat.step(now, input, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.kind {
            Kind::Honest(coordinator) => coordinator.deadline(),
            Kind::Cheat(cheat) => cheat.deadline(),
        }
    }
}

impl Durable for Mind {
    type Failure = std::convert::Infallible;

    /// Nothing needs to last; but a turn is over, and what was counted may be looked at.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        let (counts, misbehavior) = match &self.kind {
            Kind::Honest(coordinator) => (coordinator.counts(), MisbehaviorCounts::default()),
            Kind::Cheat(cheat) => cheat.counts(),
        };
        *self.board.0.lock().unwrap_or_else(PoisonError::into_inner) = (counts.into(), misbehavior);
        Ok(())
    }
}
