//! A server of the order with a store and an application of its own: what a driver runs where nothing else shares the store.

use bytes::Bytes;
use machine::Time;
use store::{SegmentNumber, StorageBackend, Store, StoreError};
use types::ClusterId;
use types::codec::{Decode, Encode};

use super::message::{Message, PAGE_BYTES_MAX, Zxid};
use super::record::Record;
use super::replica::{Event, JournalOp, Options, Output, Refused, ReplayError, Replica};

/// A deterministic state above the order.
pub trait Application {
    /// Takes in an entry.
    fn deliver(&mut self, zxid: Zxid, payload: &Bytes);

    /// The state, as it is now.
    fn snapshot(&self) -> Bytes;

    /// Takes over a state in place of its own.
    fn install(&mut self, zxid: Zxid, snapshot: &Bytes);
}

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum NodeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// A server with its store and its application.
pub struct Node<A: Application, B: StorageBackend> {
    replica: Replica,
    application: A,
    store: Store<B>,
    /// The part of the journal that is not needed once what is written is durable.
    releasable: Option<SegmentNumber>,
    /// After so many bytes the journal is begun anew.
    journal_bytes_max: u64,
    failure: Option<StoreError>,
}

impl<A: Application, B: StorageBackend> Node<A, B> {
    /// Goes on from what `store` holds, which was not replayed yet. `incarnation` is for an empty one.
    ///
    /// # Errors
    /// When the store is damaged, or holds something else.
    #[expect(clippy::too_many_arguments, reason = "all that a server is made of")]
    pub fn open(
        (me, count): (u16, u16),
        options: Options,
        mut application: A,
        mut store: Store<B>,
        journal_bytes_max: u64,
        incarnation: u64,
        now: Time,
        sends: &mut Vec<(u16, Message)>,
    ) -> Result<Self, NodeError> {
        let mut replica = Replica::new(me, count, options, Zxid::default())?;
        let (mut head, mut snapshot) = (Zxid::default(), Vec::new());
        while let Some(batch) = store.replay()? {
            for record in batch.records {
                let record = Record::from_bytes(record, ClusterId::new([0; 16])).map_err(ReplayError::Record)?;
                match &record {
                    Record::Piece { is_last, bytes } => {
                        snapshot.extend_from_slice(bytes);
                        if *is_last {
                            application.install(head, &Bytes::from(std::mem::take(&mut snapshot)));
                            replica.load(head);
                        }
                    }
                    Record::Head(found) => (head, snapshot) = (found.base, Vec::new()),
                    // A snapshot that a crash cut short is none.
                    _ => snapshot.clear(),
                }
                replica.take(record)?;
            }
        }
        let mut node = Self { replica, application, store, releasable: None, journal_bytes_max, failure: None };
        let mut output = Output::default();
        node.replica.begin(now, incarnation, &mut output)?;
        node.conclude(now, output, sends);
        Ok(node)
    }

    /// The server.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The application.
    #[must_use]
    pub fn application(&self) -> &A {
        &self.application
    }

    /// The application, to be asked.
    pub fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }

    /// Whether something that it wrote is not durable yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.store.is_pending()
    }

    /// Hears a message.
    pub fn hear(&mut self, now: Time, from: u16, message: Message, sends: &mut Vec<(u16, Message)>) {
        let mut output = Output::default();
        self.replica.hear(now, from, message, &mut output);
        self.conclude(now, output, sends);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, sends: &mut Vec<(u16, Message)>) {
        let mut output = Output::default();
        self.replica.tick(now, &mut output);
        self.conclude(now, output, sends);
    }

    /// It stops, in good order: no turn follows.
    pub fn leave(&mut self, now: Time, sends: &mut Vec<(u16, Message)>) {
        let mut output = Output::default();
        self.replica.leave(now, &mut output);
        self.conclude(now, output, sends);
    }

    /// Proposes an entry.
    ///
    /// # Errors
    /// When this server does not lead, or too much is under way.
    pub fn propose(&mut self, now: Time, payload: Bytes, sends: &mut Vec<(u16, Message)>) -> Result<Zxid, Refused> {
        let mut output = Output::default();
        let proposed = self.replica.propose(now, payload, &mut output);
        self.conclude(now, output, sends);
        proposed
    }

    /// Does what came of a step, and what comes of that.
    fn conclude(&mut self, _now: Time, mut output: Output, sends: &mut Vec<(u16, Message)>) {
        self.replica.flush(&mut output);
        loop {
            for event in std::mem::take(&mut output.events) {
                match event {
                    Event::Deliver { zxid, payload } => self.application.deliver(zxid, &payload),
                    Event::Install { zxid, bytes } => self.application.install(zxid, &bytes),
                    Event::WantSnapshot => {
                        let zxid = self.replica.delivered();
                        self.replica.offer(zxid, self.application.snapshot(), &mut output);
                    }
                }
            }
            if output.events.is_empty() {
                break;
            }
        }
        if self.store.journal_bytes() > self.journal_bytes_max && self.releasable.is_none() {
            let base = self.replica.delivered();
            self.replica.compact(base, &mut output);
        }
        sends.append(&mut output.sends);
        if let Err(failure) = self.write(output.journal) {
            self.failure.get_or_insert(failure);
        }
    }

    fn write(&mut self, ops: Vec<JournalOp>) -> Result<(), StoreError> {
        let mut begins = false;
        for op in ops {
            match op {
                JournalOp::Append(record) => {
                    self.store.append(&record);
                    // After its head a part has its snapshot.
                    if std::mem::take(&mut begins) {
                        self.write_snapshot(&self.application.snapshot());
                    }
                }
                JournalOp::Rotate(zxid) => {
                    let before = self.store.current_segment();
                    self.store.rotate()?;
                    self.releasable = Some(before);
                    assert_eq!(zxid, self.replica.delivered(), "a part begins with the state as it is");
                    begins = true;
                }
                // It is the application's own by now, and was written as such.
                JournalOp::Snapshot { .. } => {}
            }
        }
        Ok(())
    }

    fn write_snapshot(&mut self, bytes: &Bytes) {
        let mut rest = bytes.clone();
        loop {
            let piece = rest.split_to(rest.len().min(PAGE_BYTES_MAX));
            let is_last = rest.is_empty();
            self.store.append(&Record::Piece { is_last, bytes: piece }.to_bytes());
            if is_last {
                return;
            }
        }
    }

    /// Makes everything durable that was written.
    ///
    /// # Errors
    /// When the disk fails: nobody knows then what is on it.
    pub fn persist(&mut self) -> Result<(), StoreError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.store.sync()?;
        match self.releasable.take() {
            Some(segment) => self.store.release(segment),
            None => Ok(()),
        }
    }

    /// Stops it in good order.
    ///
    /// # Errors
    /// When what it wrote cannot be made durable.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.store.close()
    }
}
