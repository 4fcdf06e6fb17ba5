//! A replica and its journal: the machine that a driver runs where nothing else shares the store.

use std::sync::Arc;

use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{SegmentNumber, StorageBackend, Store, StoreError};
use types::{Cluster, ReplicaId};

use super::application::{Application, Said};
use super::message::{Message, Unsigned};
use super::replica::{JournalOp, OpenError, Options, Replica};

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The replica cannot be made of what it holds.
    #[error(transparent)]
    Replica(#[from] OpenError),
}

/// A replica of an application whose answers go to clients, with a store of its own.
pub struct Node<A: Application<Answer = Said>, B: StorageBackend> {
    replica: Replica<A>,
    store: Store<B>,
    /// The part of the journal that is not needed once what is written is durable.
    releasable: Option<SegmentNumber>,
    failure: Option<StoreError>,
}

impl<A: Application<Answer = Said>, B: StorageBackend> Node<A, B> {
    /// Goes on from what `store` holds, which was not replayed yet.
    ///
    /// # Errors
    /// When the store is damaged, or holds something else.
    pub fn open(cluster: Arc<Cluster>, me: ReplicaId, options: Options, application: A, mut store: Store<B>) -> Result<Self, NodeError> {
        let mut replica = Replica::new(cluster, me, options, application)?;
        let mut records = Vec::new();
        while let Some(batch) = store.replay()? {
            records.extend(batch.records);
        }
        replica.replay(records)?;
        Ok(Self { replica, store, releasable: None, failure: None })
    }

    /// The application, for whoever damages it on purpose.
    pub fn application_mut(&mut self) -> &mut A {
        self.replica.application_mut()
    }

    /// The replica.
    #[must_use]
    pub fn replica(&self) -> &Replica<A> {
        &self.replica
    }

    /// Whether something that it wrote is not durable yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.store.is_pending()
    }

    /// How large its journal is.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        self.store.journal_bytes()
    }

    /// Stops it in good order.
    ///
    /// # Errors
    /// When what it wrote cannot be made durable.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.store.close()
    }

    fn write(&mut self) -> Result<(), StoreError> {
        for op in self.replica.take_journal() {
            match op {
                JournalOp::Append(record) => self.store.append(&record),
                JournalOp::Rotate => {
                    let before = self.store.current_segment();
                    self.store.rotate()?;
                    self.releasable = Some(before);
                }
            }
        }
        Ok(())
    }
}

impl<A: Application<Answer = Said>, B: StorageBackend> Machine for Node<A, B> {
    type Command = std::convert::Infallible;
    type Received = <Replica<A> as Machine>::Received;
    type Message = Message;
    type Unsigned = <Replica<A> as Machine>::Unsigned;
    type Event = std::convert::Infallible;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let input: InputOf<Replica<A>> = match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => Input::Message { from, message },
            Input::Tick => Input::Tick,
        };
        self.speak(outbox, |replica, outbox| replica.step(now, input, outbox));
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.speak(outbox, |replica, outbox| replica.end_turn(now, outbox));
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.speak(outbox, |replica, outbox| replica.leave(now, outbox));
    }

    fn deadline(&self) -> Option<Time> {
        self.replica.deadline()
    }
}

impl<A: Application<Answer = Said>, B: StorageBackend> Node<A, B> {
    /// Lets the replica speak: what it answers goes to clients, and what it writes to the store.
    fn speak(&mut self, outbox: &mut OutboxOf<Self>, speak: impl FnOnce(&mut Replica<A>, &mut OutboxOf<Replica<A>>)) {
        for answer in outbox.lend(|outbox| speak(&mut self.replica, outbox)) {
            let (to, number, Said { bytes: answer, leaf }) = (answer.key.origin(), answer.key.number, answer.answer);
            outbox.bytes = outbox.bytes.saturating_add(answer.len());
            match leaf {
                Some(leaf) => outbox.sign(to, Unsigned::Reply { signer: self.replica.id(), number, answer, leaf }),
                None => outbox.send(to, Message::Reply { number, answer, signed: None }),
            }
        }
        if let Err(failure) = self.write() {
            self.failure.get_or_insert(failure);
        }
    }
}

impl<A: Application<Answer = Said>, B: StorageBackend> Durable for Node<A, B> {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.store.sync()?;
        match self.releasable.take() {
            Some(segment) => self.store.release(segment),
            None => Ok(()),
        }
    }
}
