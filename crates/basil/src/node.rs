//! A replica and, beside it, a coordinator that finishes what others left: its janitor.

use crypto::Verified;
use machine::{Durable, Input, Machine, Outbox, Time};
use store::{Medium, StoreError};
use types::{ClientId, Transaction};

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
pub struct Node<M: Medium> {
    replica: Replica<M>,
    janitor: Coordinator,
    from_replica: Outbox<Replica<M>>,
    from_janitor: Outbox<Coordinator>,
}

impl<M: Medium> Node<M> {
    /// Puts a replica and its janitor together.
    #[must_use]
    pub fn new(replica: Replica<M>, janitor: Coordinator) -> Self {
        Self { replica, janitor, from_replica: Outbox::default(), from_janitor: Outbox::default() }
    }

    /// The replica, for its counts.
    #[must_use]
    pub fn replica(&self) -> &Replica<M> {
        &self.replica
    }

    /// What the janitor has done.
    #[must_use]
    pub fn janitor_counts(&self) -> CoordinatorCounts {
        self.janitor.counts()
    }

    fn collect(&mut self, now: Time, outbox: &mut Outbox<Self>) {
        outbox.sends.append(&mut self.from_replica.sends);
        outbox.drafts.append(&mut self.from_replica.drafts);
        for event in self.from_replica.events.drain(..) {
            match event {
                ReplicaEvent::Stalled(transaction) => {
                    self.janitor.step(now, Input::Command(Command::Finish { transaction }), &mut self.from_janitor);
                }
                ReplicaEvent::Misbehavior { client, transaction } => outbox.emit(NodeEvent::Misbehavior { client, transaction }),
            }
        }
        outbox.sends.append(&mut self.from_janitor.sends);
        self.from_janitor.events.clear();
    }
}

impl<M: Medium> Machine for Node<M> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = Draft;
    type Event = NodeEvent;

    fn step(&mut self, now: Time, input: Input<Self>, outbox: &mut Outbox<Self>) {
        match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => {
                if message.is_reply() {
                    self.janitor.step(now, Input::Message { from, message }, &mut self.from_janitor);
                } else {
                    self.replica.step(now, Input::Message { from, message }, &mut self.from_replica);
                }
            }
            Input::Tick => {
                self.replica.step(now, Input::Tick, &mut self.from_replica);
                self.janitor.step(now, Input::Tick, &mut self.from_janitor);
            }
        }
        self.collect(now, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        [self.replica.deadline(), self.janitor.deadline()].into_iter().flatten().min()
    }
}

impl<M: Medium> Durable for Node<M> {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.replica.persist()
    }
}
