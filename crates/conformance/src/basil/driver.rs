//! What a simulated client's session runs around: an honest coordinator, or one that cheats. It does as that does, and notes for the checkers what
//! passes: which transactions the session asks for, what it is told, and by which proofs. Of this an application hears no more than the session says.

use std::convert::Infallible;

use adversary::ByzantineClient;
use basil::{Command, Coordinator, Event, Message, Transaction};
use crypto::Verified;
use machine::{Input, InputOf, Machine, OutboxOf, Time};
use types::Timestamp;

/// What a session runs around.
pub(super) struct ClientDriver {
    kind: Kind,
    notes: Vec<Note>,
}

enum Kind {
    Honest(Box<Coordinator>),
    Byzantine(Box<adversary::Driver>),
}

/// What passed between a session and its coordinator.
#[derive(Debug)]
pub enum Note {
    /// The session asks for a transaction to be committed, for the request of this number: for the first time or at another timestamp.
    Asked {
        /// The request's number.
        operation: u64,
        /// The transaction.
        transaction: Transaction,
    },
    /// The coordinator says something.
    Said(Event),
}

impl ClientDriver {
    /// An honest one.
    pub fn honest(coordinator: Coordinator) -> Self {
        Self { kind: Kind::Honest(Box::new(coordinator)), notes: Vec::new() }
    }

    /// One that cheats.
    pub fn byzantine(client: ByzantineClient) -> Self {
        Self { kind: Kind::Byzantine(Box::new(adversary::Driver(client))), notes: Vec::new() }
    }

    /// Whether it follows the protocol.
    pub fn is_honest(&self) -> bool {
        matches!(self.kind, Kind::Honest(_))
    }

    /// A transaction begins that would have the timestamp `honest`. Gives the one it is to have: one that cheats may want another.
    pub fn begin(&mut self, honest: Timestamp) -> Timestamp {
        match &mut self.kind {
            Kind::Honest(_) => honest,
            Kind::Byzantine(byzantine) => byzantine.0.begin(honest),
        }
    }

    /// The process ends. Its next one has this coordinator, and knows nothing.
    pub fn forget(&mut self, coordinator: Coordinator) {
        self.notes.clear();
        match &mut self.kind {
            Kind::Honest(honest) => **honest = coordinator,
            Kind::Byzantine(byzantine) => byzantine.0.forget(coordinator),
        }
    }

    /// What has passed since this was asked last.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}

impl Machine for ClientDriver {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        if let Input::Command(Command::Commit { operation, transaction, .. } | Command::CommitReads { operation, transaction, .. }) = &input
        {
            self.notes.push(Note::Asked { operation: *operation, transaction: transaction.clone() });
        }
        let heard = outbox.events.len();
        match &mut self.kind {
            Kind::Honest(coordinator) => coordinator.step(now, input, outbox),
            Kind::Byzantine(byzantine) => byzantine.step(now, input, outbox),
        }
        self.notes.extend(outbox.events[heard..].iter().cloned().map(Note::Said));
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        match &mut self.kind {
            Kind::Honest(coordinator) => coordinator.end_turn(now, outbox),
            Kind::Byzantine(byzantine) => byzantine.end_turn(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.kind {
            Kind::Honest(coordinator) => coordinator.deadline(),
            Kind::Byzantine(byzantine) => byzantine.deadline(),
        }
    }
}

impl basil::session::Driver for ClientDriver {
    fn coordinator(&self) -> &Coordinator {
        match &self.kind {
            Kind::Honest(coordinator) => coordinator,
            Kind::Byzantine(byzantine) => byzantine.coordinator(),
        }
    }
}
