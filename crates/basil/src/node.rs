//! A replica and, beside it, a coordinator that finishes what others left: its janitor.

use crate::transaction::Transaction;
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, Outbox, OutboxOf, Time};
use store::{StorageBackend, StoreError};
use types::ClientId;

use crate::coordinator::{Command, Coordinator, CoordinatorCounts};
use crate::message::{Draft, Message};
use crate::replica::{Replica, ReplicaEvent};

/// What a node tells its own side.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// A client claimed to have read from its own future: proof that it lies, kept with its name.
    Misbehavior {
        /// Whose transaction it is.
        client: ClientId,
        /// The transaction, which proves it.
        transaction: Transaction,
    },
}

/// One replica's process as a machine.
pub struct Node<M: StorageBackend> {
    replica: Replica<M>,
    janitor: Coordinator,
    from_janitor: OutboxOf<Coordinator>,
}

impl<M: StorageBackend> Node<M> {
    /// Puts a replica and its janitor together.
    #[must_use]
    pub fn new(replica: Replica<M>, janitor: Coordinator) -> Self {
        Self { replica, janitor, from_janitor: Outbox::default() }
    }

    /// The replica, for its counts.
    #[must_use]
    pub fn replica(&self) -> &Replica<M> {
        &self.replica
    }

    /// Stops it gracefully.
    ///
    /// # Errors
    /// When the store fails, or has failed.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.replica.close()
    }

    /// What the janitor has done.
    #[must_use]
    pub fn janitor_counts(&self) -> CoordinatorCounts {
        self.janitor.counts()
    }

    fn step_replica(&mut self, now: Time, input: InputOf<Replica<M>>, outbox: &mut OutboxOf<Self>) {
        let events = outbox.lend(|outbox| self.replica.step(now, input, outbox));
        for event in events {
            match event {
                ReplicaEvent::Stalled(transaction) => self.step_janitor(now, Input::Command(Command::Finish { transaction }), outbox),
                ReplicaEvent::Misbehavior { client, transaction } => outbox.emit(NodeEvent::Misbehavior { client, transaction }),
            }
        }
    }

    fn step_janitor(&mut self, now: Time, input: InputOf<Coordinator>, outbox: &mut OutboxOf<Self>) {
        self.janitor.step(now, input, &mut self.from_janitor);
        outbox.sends.append(&mut self.from_janitor.sends);
        self.from_janitor.events.clear();
    }
}

impl<M: StorageBackend> Machine for Node<M> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = Draft;
    type Event = NodeEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } if message.is_reply() => self.step_janitor(now, Input::Message { from, message }, outbox),
            Input::Message { from, message } => self.step_replica(now, Input::Message { from, message }, outbox),
            Input::Tick => {
                self.step_replica(now, Input::Tick, outbox);
                self.step_janitor(now, Input::Tick, outbox);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        [self.replica.deadline(), self.janitor.deadline()].into_iter().flatten().min()
    }
}

impl<M: StorageBackend> Durable for Node<M> {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.replica.persist()
    }
}
