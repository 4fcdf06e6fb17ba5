//! A replica: answers reads, votes once on each transaction, writes down decisions, learns how transactions end.
//!
//! Here is what it is made of, and who handles which message. What it does lies in its folder: `reads` (basil.txt §4.1),
//! `voting` and `logging` (§4.2), `concluding` (§4.3), `fallback` and `stall_detector` (§5); what it lets in and shows in `admission` and
//! `rights`; how it lives with a finite memory and journal in `housekeeping`, `restart` and [`orphan_resolution`].

mod abandonment_limiter;
mod admission;
mod concluding;
mod housekeeping;
mod logging;
pub mod orphan_resolution;
mod reads;
mod recovery;
mod restart;
mod rights;
mod stall_detector;
mod voting;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::transaction::Transaction;
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{KeyMeta, SegmentNumber, StorageBackend, Store, StoreError};
use types::{ClientId, Cluster, Party, ReplicaId, TransactionId};

use self::abandonment_limiter::AbandonmentLimiter;
use self::housekeeping::Sweep;
use self::orphan_resolution::{Answer, StatusQueries};
use self::stall_detector::StallTimers;
use crate::check::AbortReason;
use crate::message::{Draft, Message, Refusal, Subject};
use crate::quorum::Quorums;
use crate::recovery::Ballots;
use crate::transaction_table::TransactionTable;

pub use self::restart::RecoverError;

/// How a replica is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaOptions {
    /// `δ`: how far ahead of its own clock a replica accepts timestamps.
    pub time_bound_ms: u64,
    /// How far back a timestamp may lie at all: decided transactions below are forgotten. A transaction that is only
    /// now prepared may lie back half as far, so that whoever has to finish it has the other half to reach everybody.
    pub window_ms: u64,
    /// After how long an undecided transaction is finished by the replica itself, or named to those it stops.
    pub stall_ms: u64,
    /// How long a transaction that somebody else brought waits for its author, or for evidence, before it is voted down.
    pub authorship_wait_ms: u64,
    /// How often versions are checkpointed, the journal is released, and old transactions are forgotten.
    pub checkpoint_ms: u64,
    /// The most undecided transactions held; more are refused as [`Refusal::Overloaded`]. One client may have a quarter.
    pub undecided_max: usize,
    /// The most bytes of undecided transactions held. One client may have a quarter.
    pub undecided_bytes_max: usize,
    /// How many of a client's transactions a second others may have to end; one that leaves more finds its next ones refused as
    /// [`Refusal::AbandonLimit`].
    pub abandoned_per_second: u32,
    /// So many seconds' worth of these may come at once.
    pub abandoned_burst_seconds: u32,
    /// The most transactions remembered, decided ones included.
    pub tracked_max: usize,
    /// Versions are checkpointed into the base table when those in memory take so many bytes,
    pub memtable_bytes_max: usize,
    /// or when the journal is so long.
    pub journal_bytes_max: u64,
    /// How many buckets the keys share for their read timestamps, of sixteen bytes each.
    pub read_timestamps: usize,
    /// A number nobody else knows, drawn by the shell: it decides which keys share a read timestamp.
    pub seed: u64,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            time_bound_ms: 500,
            window_ms: 30_000,
            stall_ms: 1_000,
            authorship_wait_ms: 2_000,
            checkpoint_ms: 5_000,
            undecided_max: 100_000,
            undecided_bytes_max: 1 << 30,
            abandoned_per_second: 50,
            abandoned_burst_seconds: 10,
            tracked_max: 2_000_000,
            memtable_bytes_max: 128 << 20,
            journal_bytes_max: 512 << 20,
            read_timestamps: 1 << 20,
            seed: 0,
        }
    }
}

/// What a replica tells its own side.
#[derive(Clone, Debug)]
pub enum ReplicaEvent {
    /// A transaction has been undecided for too long: somebody should finish it.
    Stalled(Transaction),
    /// A client claimed to have read from its own future: proof that it lies, kept with its name.
    Misbehavior {
        /// Whose transaction it is.
        client: ClientId,
        /// The transaction, which proves it.
        transaction: Transaction,
    },
}

/// What a replica has done since it started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Keys read for clients.
    pub keys_read: u64,
    /// Votes cast to commit.
    pub votes_commit: u64,
    /// Votes cast to abort.
    pub votes_abort: u64,
    /// Of these, how many for which [`AbortReason`], by [`AbortReason::number`].
    pub votes_abort_by: [u64; AbortReason::LABELS.len()],
    /// Votes repeated for those who asked again.
    pub votes_repeated: u64,
    /// Decisions written down, for clients on the slow path or for leaders.
    pub logged: u64,
    /// Times it was elected to reconcile a transaction's logged decisions.
    pub elected: u64,
    /// Transactions learned to have committed.
    pub committed: u64,
    /// Transactions learned to have aborted.
    pub aborted: u64,
    /// Transactions that somebody other than their author ended here.
    pub abandoned: u64,
    /// Requests refused.
    pub refused: u64,
    /// Transactions handed over to be finished because nobody else did.
    pub stalled: u64,
    /// Old transactions let go because the others had.
    pub orphans_released: u64,
}

/// One replica of one shard.
pub struct Replica<M: StorageBackend> {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: ReplicaOptions,
    table: TransactionTable<M>,
    counts: ReplicaCounts,
    /// Election messages, for the transactions and views that this replica may lead.
    ballots: Ballots,
    /// What clients have left to others.
    abandonment_limiter: AbandonmentLimiter,
    /// What others have said of old transactions that this replica holds undecided.
    status_queries: StatusQueries,
    /// The first failure of the store, until it is told; from then on nothing is done and nothing is said.
    failure: Option<StoreError>,
    failed: bool,
    /// When to look at undecided transactions, lest they were left.
    stall_timers: StallTimers,
    /// Transactions brought by others than their author, in the order in which they were.
    unauthored: VecDeque<(Time, TransactionId)>,
    /// Transactions whose proof is fresh, in the order in which they ended.
    proven: VecDeque<(Time, TransactionId)>,
    /// When to clean up, or to take the next step of it.
    checkpoint_at: Time,
    sweep: Option<Sweep>,
    /// While a fold is under way: when to look after it.
    fold_poll_at: Option<Time>,
    /// Up to where the running checkpoints are to reach, in nanoseconds.
    fold_wanted: u64,
    /// Closed journal segments, oldest first, each with the highest timestamp it can hold.
    segments: VecDeque<(SegmentNumber, u64)>,
    /// The newest watermark whose fold is known to be durable.
    checkpointed: u64,
}

type Out<M> = OutboxOf<Replica<M>>;

impl<M: StorageBackend> Replica<M> {
    /// Who this is.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.me
    }

    /// What has been done since the start.
    #[must_use]
    pub fn counts(&self) -> ReplicaCounts {
        self.counts
    }

    /// How many transactions are known, and how many of them undecided.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.table.tracked(), self.table.undecided().transactions)
    }

    /// Every transaction whose end is not known here, oldest first; for whoever wants to know what is stuck.
    pub fn undecided(&self) -> impl Iterator<Item = &Transaction> {
        self.table.undecided_ids().into_iter().filter_map(|id| self.table.get(id)).map(|state| &state.transaction)
    }

    /// Why this replica voted a transaction down, as far as this process remembers; for whoever wants to know. It proves nothing.
    #[must_use]
    pub fn abort_reason_of(&self, id: TransactionId) -> Option<AbortReason> {
        self.table.get(id)?.abort_reason()
    }

    /// Makes durable what is left, and notes in the store that it was stopped and did not crash. Nothing may be done afterwards.
    ///
    /// # Errors
    /// When the store fails, or has failed.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.persist()?;
        self.table.store.close()
    }

    /// The store, for its statistics.
    #[must_use]
    pub fn store(&self) -> &Store<M, impl KeyMeta> {
        &self.table.store
    }

    fn dispatch(&mut self, now: Time, from: Party, message: Message, out: &mut Out<M>) -> Result<(), StoreError> {
        if let Some(transaction) = message.asked_about().filter(|transaction| !self.may_ask(from, transaction)) {
            self.refuse(from, Subject::Transaction(transaction.id()), Refusal::NotPermitted, out);
            return Ok(());
        }
        match message {
            Message::Read { request, timestamp, keys } => self.on_read(now, from, request, timestamp, &keys, out),
            Message::Prepare { transaction } => self.on_prepare(now, from, &transaction, out),
            Message::Recover { transaction, evidence } => {
                self.on_recover(now, from, &transaction, &evidence, out)?;
                self.expedite(now, transaction.id(), out);
                Ok(())
            }
            Message::Log { transaction, decision, tallies: _ } => {
                self.on_log(now, from, &transaction, decision, out);
                Ok(())
            }
            Message::InvokeFallback { transaction, justified, views } => {
                let justified = justified.map(|justified| justified.decision);
                self.on_invoke_fallback(now, from, &transaction, justified, &views, out);
                Ok(())
            }
            Message::ElectFallback { elect } => {
                self.on_elect_fallback(now, from, elect, out);
                Ok(())
            }
            Message::DecideFallback { decide, .. } => {
                self.on_decide_fallback(now, from, decide.leader, decide.statement, out);
                Ok(())
            }
            Message::Writeback { transaction, certificate, relay } => {
                self.on_writeback(now, from, transaction.as_ref(), certificate.clone(), out);
                if relay {
                    self.relay(from, &certificate, out);
                }
                Ok(())
            }
            Message::CommitNotice { id } => {
                self.on_commit_notice(now, from, id, out);
                Ok(())
            }
            Message::StatusQuery { id, timestamp, keys } => self.on_status_query(now, from, id, timestamp, &keys, out),
            Message::StatusReply { id, end, versions } => self.on_status_reply(now, from, id, Answer { end, versions }, out),
            // Replies; the coordinator beside this machine hears those.
            Message::ReadReply { .. }
            | Message::Voted { .. }
            | Message::Logged { .. }
            | Message::Decided { .. }
            | Message::Refused { .. } => Ok(()),
        }
    }

    fn refuse(&mut self, to: Party, subject: Subject, refusal: Refusal, out: &mut Out<M>) {
        self.counts.refused += 1;
        out.send(to, Message::Refused { subject, refusal });
    }
}

impl<M: StorageBackend> Machine for Replica<M> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = Draft;
    type Event = ReplicaEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        if self.failed {
            return;
        }
        let done = match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.dispatch(now, from, message.into_inner(), outbox),
            Input::Tick => self.on_tick(now, outbox),
        };
        if let Err(failure) = done {
            self.failure = Some(failure);
            self.failed = true;
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.due()
    }
}

impl<M: StorageBackend> Durable for Replica<M> {
    type Failure = StoreError;

    /// The first failure of the store is final: the process must end, and come back from what is really on the disk.
    fn persist(&mut self) -> Result<(), StoreError> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.failed => Err(StoreError::Closed("an earlier failure ended this replica".to_owned())),
            None => self.table.store.sync(),
        }
    }
}
