//! What drives a connection's transactions: a coordinator, or a client that cheats around one. Its counts are copied to a
//! board after each turn, where they can be read without waiting for it.

use std::sync::{Arc, Mutex, PoisonError};

use ::adversary::{AttackConfig, ByzantineClient, ByzantineEvent, MisbehaviorCounts, Random};
use basil::coordinator::CoordinatorCounts;
use basil::{Command, Coordinator, CoordinatorOptions, Event, Failure, Message};
use crypto::Verified;
use machine::{Durable, InputOf, Machine, OutboxOf, Time};
use types::{ClientId, Cluster};

use crate::adversary::Cheating;

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

#[derive(Debug)]
enum Kind {
    Honest(Box<Coordinator>),
    Cheat(Box<ByzantineClient>),
}

impl Mind {
    /// The mind of `me`, which is honest unless it is told how to cheat.
    pub fn new(cluster: &Arc<Cluster>, me: ClientId, options: CoordinatorOptions, cheating: Option<Cheating>, board: Arc<Board>) -> Self {
        let coordinator = Coordinator::new(cluster.clone(), options);
        let kind = match cheating {
            None => Kind::Honest(Box::new(coordinator)),
            Some(Cheating { strategy, share, seed }) => {
                let victims = cluster.clients().iter().map(|(client, _)| *client).filter(|client| *client != me).collect();
                // The part of a thousand: a cast of a float from 0 to 1000 loses nothing that matters.
                let per_mille = (share.clamp(0.0, 1.0) * 1_000.0).round() as u64;
                let habits = AttackConfig { strategies: vec![strategy], per_mille, victims };
                Kind::Cheat(Box::new(ByzantineClient::new(cluster.clone(), coordinator, habits, Random::stream(seed, "cheat"))))
            }
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
            Kind::Cheat(cheater) => {
                let events = outbox.lend(|outbox| cheater.step(now, input, outbox));
                outbox.events.extend(events.into_iter().map(|event| match event {
                    ByzantineEvent::Honest(event) => event,
                    // What a client knows of what it left: nothing.
                    ByzantineEvent::Abandoned { operation, .. } => Event::Ended { operation, result: Err(Failure::TimedOut) },
                }));
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.kind {
            Kind::Honest(coordinator) => coordinator.deadline(),
            Kind::Cheat(cheater) => cheater.deadline(),
        }
    }
}

impl Durable for Mind {
    type Failure = std::convert::Infallible;

    /// Nothing needs to last; but a turn is over, and what was counted may be looked at.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        let look = match &self.kind {
            Kind::Honest(coordinator) => (coordinator.counts().into(), MisbehaviorCounts::default()),
            Kind::Cheat(cheater) => (cheater.coordinator().counts().into(), cheater.counts()),
        };
        *self.board.0.lock().unwrap_or_else(PoisonError::into_inner) = look;
        Ok(())
    }
}
