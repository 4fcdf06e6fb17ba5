//! One replica of the multicast: its state, its turns, its journal. What it does is in the files beside: `ordering.rs` the normal case,
//! `views.rs` the change of leaders, `checkpoints.rs` what becomes of old lists, `transfer.rs` how a replica that fell behind catches up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use crypto::{BatchSignature, Verified};
use engine::Divergences;
use machine::{Input, InputOf, Machine, Outbox, OutboxOf, Time};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode};
use types::{Cluster, Digest, Party, ReplicaId};

use super::application::{Answer, Application};
use super::checkpoints::OwnCheckpoint;
use super::choice::Beginning;
use super::message::{Certificate, LOG_WINDOW_MAX, Message, Status, Unsigned, ViewChange};
use super::paced::Paced;
use super::pool::{LeaderTimeout, Pool};
use super::queries::Queries;
use super::quorum::Quorum;
use super::rebuild::Rebuild;
use super::record::Record;
use super::request::{BATCH_REQUESTS_MAX, RequestId, RequestKey, list_digest, replica_of};
use super::slot::Slot;
use super::transfer::Transfer;
use super::windows::Windows;

/// How often a replica that waits for something asks for it, in milliseconds.
pub const TICK_MS: u64 = 50;
/// How often it says how far it is when it waits for nothing.
pub const IDLE_MS: u64 = 1_000;
/// How many ticks lie between two of its reports.
const TICKS_PER_STATUS: u64 = 2;
/// How often the time that a leader may take is doubled.
pub(super) const DOUBLINGS_MAX: u32 = 6;

/// What a replica is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// After so many lists there is a checkpoint. All replicas of a shard must have the same. At most half of [`LOG_WINDOW_MAX`].
    pub checkpoint_interval: u64,
    /// How long a leader may take before it is replaced, in milliseconds, at first.
    pub timeout_ms: u64,
    /// How many lists a leader has under way.
    pub pipeline: u64,
    /// The journal is written anew when it has grown by so many bytes, or to twice its snapshot.
    pub journal_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { checkpoint_interval: 128, timeout_ms: 500, pipeline: 8, journal_bytes_max: 16 << 20 }
    }
}

/// Why a replica cannot be opened. Trying again does not help.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The cluster is of another engine, or the options make no sense.
    #[error("{0}")]
    Setup(&'static str),
    /// A record of the journal is none of this version's.
    #[error("a record of the journal cannot be read: {0}")]
    Record(#[from] DecodeError),
    /// The application came to another state than before from the same requests.
    #[error("after list {0} the application has another state than it had before the restart")]
    Diverged(u64),
}

/// What is to be done with the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalOp {
    /// Append this record.
    Append(Vec<u8>),
    /// Begin a new part. What is in the parts before is not needed once all that follows now is durable.
    Rotate,
}

/// One replica.
pub struct Replica<A: Application> {
    pub(super) cluster: Arc<Cluster>,
    pub(super) me: ReplicaId,
    pub(super) quorum: Quorum,
    pub(super) options: Options,
    /// The digest of the empty list.
    pub(super) empty: Digest,
    pub(super) application: A,

    /// The view it is in, or is on its way to: it takes part in none before.
    pub(super) view: u64,
    /// The last view that it entered.
    pub(super) entered: u64,
    /// How the last view that it knows of began; nothing for view 0.
    pub(super) new_view: Option<Beginning>,
    /// How earlier ones began, as far as they show of a number what the last one does not.
    pub(super) earlier_views: Vec<Beginning>,
    /// The last view change of each replica.
    pub(super) view_changes: BTreeMap<u16, (ViewChange, BatchSignature)>,
    /// Until when it waits for the view to begin.
    pub(super) view_deadline: Option<Time>,
    /// For which view it has said, as its leader, how that begins.
    pub(super) led: Option<u64>,
    /// How many views have failed since the last that did not.
    pub(super) failed_views: u32,
    /// Since when that number has not changed.
    pub(super) calm_since: Time,

    pub(super) slots: BTreeMap<u64, Slot>,
    /// Numbers that have a list in this view that this replica has not accepted.
    pub(super) waiting: BTreeSet<u64>,
    /// Which number each request has in this view that is not delivered.
    pub(super) ordered: BTreeMap<RequestKey, u64>,
    /// The next number that it gives as a leader.
    pub(super) next: u64,
    pub(super) pool: Pool,
    pub(super) windows: Windows,
    pub(super) delivered: u64,
    pub(super) queries: Queries,
    /// What it vouches for since this turn began, and says at its end.
    pub(super) vouches: Vec<RequestId>,
    /// What clients said again in this turn.
    pub(super) vouches_again: Vec<RequestId>,
    /// Whether more is believed or due since this turn began.
    pub(super) has_heard: bool,

    pub(super) stable: Option<Certificate>,
    /// Its own checkpoints, from the last stable one.
    pub(super) checkpoints: BTreeMap<u64, OwnCheckpoint>,
    /// Votes on checkpoints that are not stable yet.
    pub(super) checkpoint_votes: BTreeMap<u64, BTreeMap<u16, (Digest, BatchSignature)>>,
    pub(super) transfer: Option<Transfer>,
    /// Whether its own state was found to be wrong: it delivers nothing until it has another.
    pub(super) has_diverged: bool,
    /// What of its own state was found to be wrong.
    pub(super) divergences: Divergences,
    /// Up to where its journal says that it had another state than the same requests have led to now.
    pub(super) differs_at: Option<u64>,
    /// For how many ticks it has lacked what a stable checkpoint covers, and delivered nothing.
    pub(super) behind_ticks: u64,

    journal: Vec<JournalOp>,
    /// What is written with the next record.
    unwritten: Vec<Record>,
    pub(super) journal_bytes: usize,
    pub(super) snapshot_bytes: usize,
    is_replaying: bool,
    pub(super) ticks: u64,
    last_tick: Time,
    /// Up to which request it last said what it vouches for, if there were more.
    vouched_to: Option<RequestId>,
    /// Up to which request it last asked for what it lacks, if there were more.
    pub(super) wanted_to: Option<RequestId>,
    /// Who was told of late what it lacks, as it is not as far as this one; and how a view began that it has missed.
    pub(super) told_of_status: Paced,
    pub(super) shown_view: Paced,
    /// What it knows of the others while it comes back from an empty disk.
    pub(super) rebuild: Option<Rebuild>,
    /// Whether somebody who comes back has asked how far it is since it last proposed an empty list.
    pub(super) is_asked_to_pad: bool,
    /// The tick at which it last accepted an empty list.
    pub(super) padded_at: Option<u64>,
}

impl<A: Application> Replica<A> {
    /// A replica at the very beginning. Its journal is to be [replayed](Self::replay) before its first step.
    ///
    /// # Errors
    /// [`OpenError::Setup`].
    pub fn new(cluster: Arc<Cluster>, me: ReplicaId, options: Options, application: A) -> Result<Self, OpenError> {
        let quorum = Quorum::of(&cluster).ok_or(OpenError::Setup("the cluster's shards have not 3f+1 replicas"))?;
        if cluster.replica_key(me).is_none() {
            return Err(OpenError::Setup("the cluster has no such replica"));
        }
        if options.checkpoint_interval == 0 || 2 * options.checkpoint_interval > LOG_WINDOW_MAX || options.pipeline == 0 {
            return Err(OpenError::Setup("checkpoints are too far apart, or nothing may be under way"));
        }
        if cluster.clients().iter().any(|(client, _)| replica_of(*client).is_some()) {
            return Err(OpenError::Setup("a client has a number that is kept for replicas"));
        }
        let empty = list_digest(cluster.id(), &[]);
        let leader_timeout = LeaderTimeout { timeout_ms: options.timeout_ms, factor: 1 };
        Ok(Self {
            cluster,
            me,
            quorum,
            options,
            empty,
            application,
            view: 0,
            entered: 0,
            new_view: None,
            earlier_views: Vec::new(),
            view_changes: BTreeMap::new(),
            view_deadline: None,
            led: None,
            failed_views: 0,
            calm_since: Time(0),
            slots: BTreeMap::new(),
            waiting: BTreeSet::new(),
            ordered: BTreeMap::new(),
            next: 1,
            pool: Pool::new(me.index, quorum, leader_timeout),
            windows: Windows::default(),
            delivered: 0,
            queries: Queries::default(),
            vouches: Vec::new(),
            vouches_again: Vec::new(),
            has_heard: false,
            stable: None,
            checkpoints: BTreeMap::new(),
            checkpoint_votes: BTreeMap::new(),
            transfer: None,
            has_diverged: false,
            divergences: Divergences::default(),
            differs_at: None,
            behind_ticks: 0,
            journal: Vec::new(),
            unwritten: Vec::new(),
            journal_bytes: 0,
            snapshot_bytes: 0,
            is_replaying: false,
            ticks: 0,
            last_tick: Time(0),
            vouched_to: None,
            wanted_to: None,
            told_of_status: Paced::default(),
            shown_view: Paced::default(),
            rebuild: None,
            is_asked_to_pad: false,
            padded_at: None,
        })
    }

    /// Takes over what an earlier process wrote: all its records, in their order.
    ///
    /// # Errors
    /// [`OpenError::Record`] or [`OpenError::Diverged`].
    pub fn replay(&mut self, records: impl IntoIterator<Item = Bytes>) -> Result<(), OpenError> {
        self.is_replaying = true;
        // A snapshot counts once it is there to its end.
        let mut snapshot: Option<Vec<Record>> = None;
        for bytes in records {
            self.journal_bytes += bytes.len();
            let record = Record::from_bytes(bytes, self.cluster.id())?;
            match (record, &mut snapshot) {
                (Record::SnapshotBegin, _) => snapshot = Some(Vec::new()),
                (Record::SnapshotEnd, _) => {
                    for record in self.install_snapshot(snapshot.take().unwrap_or_default())? {
                        self.redo(record)?;
                    }
                }
                (Record::SnapshotCut, _) => snapshot = None,
                (record, Some(snapshot)) => snapshot.push(record),
                (record, None) => self.redo(record)?,
            }
        }
        self.is_replaying = false;
        if let Some(sequence) = self.differs_at {
            return Err(OpenError::Diverged(sequence));
        }
        self.resume();
        if snapshot.is_some() && !broken(Mutant::SnapshotCutUnsaid) {
            // Before anything else that this process writes, or the next one would take that for a part of the snapshot.
            self.log(&Record::SnapshotCut);
        }
        Ok(())
    }

    fn redo(&mut self, record: Record) -> Result<(), OpenError> {
        let mut quiet = Outbox::default();
        match record {
            Record::List { sequence, requests } => {
                let (digest, ids) = self.digest_of(&requests);
                let slot = self.slots.entry(sequence).or_default();
                slot.turn_to(digest);
                (slot.ids, slot.requests, slot.is_logged) = (Some(ids), Some(requests.into()), true);
            }
            Record::Accepted(claim) => {
                let slot = self.slots.entry(claim.sequence).or_default();
                slot.turn_to(claim.digest);
                if claim.digest == self.empty {
                    (slot.ids, slot.requests, slot.is_logged) = (Some([].into()), Some([].into()), true);
                }
                (slot.voted, slot.proposed) = (Some((claim.view, claim.digest)), Some(claim.view));
                slot.prepares.add(self.me.index, claim.view, claim.digest);
                self.waiting.remove(&claim.sequence);
            }
            Record::Prepared(claim) => {
                let slot = self.slots.entry(claim.sequence).or_default();
                slot.prepared = Some(claim.view);
                slot.commits.add(self.me.index, claim.view, claim.digest);
            }
            Record::Committed { sequence, digest } => {
                let slot = self.slots.entry(sequence).or_default();
                slot.turn_to(digest);
                if digest == self.empty {
                    (slot.ids, slot.requests) = (Some([].into()), Some([].into()));
                }
                slot.is_committed = true;
                self.deliver(Time(0), &mut quiet);
            }
            Record::Left(view) => self.view = view,
            Record::Entered(view, signature) => self.on_new_view(Time(0), view, signature, &mut quiet),
            Record::Checkpoint(vote) => {
                // Where a certificate came first, 2f+1 have said already what is right.
                let is_open = vote.sequence > self.stable_sequence();
                if is_open && self.checkpoints.get(&vote.sequence).is_some_and(|own| own.digest != vote.digest) {
                    self.differs_at = self.differs_at.max(Some(vote.sequence));
                }
            }
            Record::Stable(certificate) => {
                let own = self.checkpoints.get(&certificate.sequence);
                if own.is_some_and(|own| own.digest == certificate.digest) {
                    // 2f+1 say that it is right now: what it said before it ended was wrong.
                    self.differs_at = self.differs_at.filter(|at| *at > certificate.sequence);
                }
                self.on_stable(Time(0), certificate, &mut quiet);
            }
            Record::Lost => self.rebuild = Some(Rebuild::default()),
            Record::Rebuilt(view) => (self.rebuild, self.view) = (None, self.view.max(view)),
            Record::State { .. } | Record::Page(_) | Record::SnapshotBegin | Record::SnapshotEnd | Record::SnapshotCut => {}
        }
        Ok(())
    }

    /// What follows from all that was replayed.
    fn resume(&mut self) {
        self.rebuild_ordered();
        let above = self.slots.iter().rev().find(|(_, slot)| slot.proposed == Some(self.entered)).map_or(0, |(sequence, _)| *sequence);
        self.next = self.next.max(above + 1).max(self.stable_sequence() + 1);
    }

    /// Takes what is to be done with the journal before anything said up to now may be heard.
    pub fn take_journal(&mut self) -> Vec<JournalOp> {
        std::mem::take(&mut self.journal)
    }

    /// Writes a record.
    pub(super) fn log(&mut self, record: &Record) {
        self.log_unwritten();
        self.append(record);
    }

    /// Writes a record together with the next: nothing that is said depends on its being durable.
    pub(super) fn log_with_next(&mut self, record: Record) {
        if !self.is_replaying {
            self.unwritten.push(record);
        }
    }

    fn log_unwritten(&mut self) {
        std::mem::take(&mut self.unwritten).iter().for_each(|record| self.append(record));
    }

    fn append(&mut self, record: &Record) {
        if !self.is_replaying {
            let bytes = record.to_bytes();
            self.journal_bytes += bytes.len();
            self.journal.push(JournalOp::Append(bytes));
        }
    }

    pub(super) fn rotate_journal(&mut self) {
        self.log_unwritten();
        self.journal.push(JournalOp::Rotate);
        self.journal_bytes = 0;
    }

    /// Whether it only repeats what an earlier process did.
    pub(super) fn is_replaying(&self) -> bool {
        self.is_replaying
    }

    /// The application.
    #[must_use]
    pub fn application(&self) -> &A {
        &self.application
    }

    /// Which replica it is.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.me
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> Status {
        Status { entered: self.entered, stable: self.stable_sequence(), delivered: self.delivered }
    }

    /// The digest of its last own checkpoint, and after which list that was.
    #[must_use]
    pub fn last_checkpoint(&self) -> Option<(u64, Digest)> {
        self.checkpoints.last_key_value().map(|(sequence, own)| (*sequence, own.digest))
    }

    /// Who leads the view that it is in, or on its way to.
    #[must_use]
    pub fn leader(&self) -> u16 {
        self.quorum.leader(self.view)
    }

    /// What an honest leader could have delivered and did not: nothing, once all is quiet.
    pub fn undelivered(&self) -> Vec<String> {
        let mut undelivered: Vec<String> = self.pool.due().map(|id| format!("{:?}", id.key)).collect();
        if self.stable_sequence() > self.delivered {
            undelivered.push(format!("the state at {}", self.stable_sequence()));
        }
        if self.has_diverged {
            undelivered.push("a state that is not wrong".to_owned());
        }
        undelivered
    }

    /// What of its own state was found to be wrong.
    #[must_use]
    pub fn divergences(&self) -> &Divergences {
        &self.divergences
    }

    /// The application, for whoever damages it on purpose.
    pub fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }

    /// What is under way here, for people: nothing, once all is quiet.
    pub fn unsettled(&self) -> Vec<String> {
        let mut unsettled: Vec<String> = self.pool.keys().map(|key| format!("{key:?} is not delivered")).collect();
        unsettled.extend(self.slots.keys().filter(|sequence| **sequence > self.delivered).map(|sequence| format!("list {sequence}")));
        if self.is_rebuilding() {
            unsettled.push("it is not rebuilt".to_owned());
        } else if !self.is_in_view() {
            unsettled.push(format!("view {} has not begun", self.view));
        }
        if self.stable_sequence() > self.delivered {
            unsettled.push(format!("the state at {} is not here", self.stable_sequence()));
        }
        unsettled
    }

    pub(super) fn is_in_view(&self) -> bool {
        let takes_part = self.rebuild.is_none() || broken(Mutant::LostVotes);
        takes_part && (self.view == self.entered || broken(Mutant::LeftStillActive))
    }

    pub(super) fn stable_sequence(&self) -> u64 {
        self.stable.as_ref().map_or(0, |stable| stable.sequence)
    }

    /// The last number that may be used before the next checkpoint is stable.
    pub(super) fn high_watermark(&self) -> u64 {
        self.stable_sequence().saturating_add(2 * self.options.checkpoint_interval)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = Party> + use<A> {
        let me = self.me;
        self.cluster.replicas_of(me.shard).filter(move |replica| *replica != me).map(Party::Replica)
    }

    /// One after the other of the other replicas.
    pub(super) fn peer(&self, turn: u64) -> u16 {
        let others = self.quorum.all() as u64 - 1;
        let step = 1 + turn % others;
        u16::try_from((u64::from(self.me.index) + step) % self.quorum.all() as u64).expect("a shard has few replicas")
    }

    pub(super) fn party(&self, index: u16) -> Party {
        Party::Replica(ReplicaId { shard: self.me.shard, index })
    }

    pub(super) fn say(&self, message: &Message, outbox: &mut OutboxOf<Self>) {
        self.others().for_each(|other| outbox.send(other, message.clone()));
    }

    /// Signs a statement for every replica, itself too: what it hears of itself is as good as what it hears of others.
    pub(super) fn sign(&self, statement: &Unsigned, outbox: &mut OutboxOf<Self>) {
        if !self.is_replaying {
            self.cluster.replicas_of(self.me.shard).for_each(|replica| outbox.sign(Party::Replica(replica), statement.clone()));
        }
    }

    /// How long leaders may take now.
    pub(super) fn leader_timeout(&self) -> LeaderTimeout {
        LeaderTimeout { timeout_ms: self.options.timeout_ms, factor: 1 << self.failed_views.min(DOUBLINGS_MAX) }
    }

    fn on_message(&mut self, now: Time, from: Party, message: Message, outbox: &mut OutboxOf<Self>) {
        if let Message::Request(request) = message {
            self.on_request(now, from, &request, outbox);
            return;
        }
        if let Message::Query { number, question } = message {
            self.on_query(from, number, question, outbox);
            return;
        }
        let Party::Replica(replica) = from else { return };
        if replica.shard != self.me.shard {
            return;
        }
        let index = replica.index;
        match message {
            // What needs no signature counts from its sender's channel only, and nobody has one to itself.
            Message::Checkpoint(vote, signature) => self.on_checkpoint(now, vote, signature, outbox),
            Message::ViewChange(vote, signature) => self.on_view_change(now, index, vote, signature, outbox),
            Message::NewView(view, signature) => self.on_new_view(now, view, signature, outbox),
            Message::Stable(certificate) => self.on_stable(now, certificate, outbox),
            _ if replica == self.me => {}
            Message::Vouch(ids) => self.on_vouch(now, index, &ids),
            Message::Propose { view, sequence, ids } => self.on_propose(now, index, (view, sequence), ids, outbox),
            Message::Prepare(claim) => self.on_prepare(now, index, claim, outbox),
            Message::Commit(claim) => self.on_commit(now, index, claim, outbox),
            Message::Decided { sequence, digest } => self.on_decided(now, index, (sequence, digest), outbox),
            Message::Status(status) => self.on_status(now, index, status, outbox),
            Message::FetchRequests(ids) => self.on_fetch_requests(from, &ids, outbox),
            Message::Requests(requests) => self.on_requests(now, &requests),
            Message::FetchList { sequence, digest } => self.on_fetch_list(from, sequence, digest, outbox),
            Message::List { sequence, requests } => self.on_list(now, sequence, requests, outbox),
            Message::FetchHead(sequence) => self.on_fetch_head(from, sequence, outbox),
            Message::Head { sequence, head } => self.on_head(now, index, sequence, head, outbox),
            Message::FetchPage { sequence, index } => self.on_fetch_page(from, sequence, index, outbox),
            Message::Page { sequence, index: page, bytes } => self.on_page(now, index, (sequence, page), bytes, outbox),
            Message::FetchReached(question) => self.on_fetch_reached(from, question, outbox),
            Message::Reached { question, view, delivered } => self.on_reached(index, question, (view, delivered)),
            Message::Request(_) | Message::Reply { .. } | Message::Query { .. } | Message::QueryReply { .. } => {}
        }
    }

    /// Tells the leader of the view that this replica is in, or on its way to, what it vouches for.
    pub(super) fn vouch_to_leader(&self, ids: &[RequestId], outbox: &mut OutboxOf<Self>) {
        let leader = self.quorum.leader(self.view);
        if leader != self.me.index {
            ids.chunks(BATCH_REQUESTS_MAX).for_each(|ids| outbox.send(self.party(leader), Message::Vouch(ids.to_vec())));
        }
    }

    /// Tells all others.
    pub(super) fn vouch_to_all(&self, ids: &[RequestId], outbox: &mut OutboxOf<Self>) {
        ids.chunks(BATCH_REQUESTS_MAX).for_each(|ids| self.say(&Message::Vouch(ids.to_vec()), outbox));
    }

    fn tick_due(&self) -> Time {
        self.last_tick.after_ms(if self.is_settled() { IDLE_MS } else { TICK_MS })
    }

    fn is_settled(&self) -> bool {
        self.is_in_view()
            && self.pool.is_empty()
            && self.transfer.is_none()
            && !self.has_diverged
            && self.rebuild.is_none()
            && !self.is_asked_to_pad
            && self.stable_sequence() <= self.delivered
            && self.slots.last_key_value().is_none_or(|(sequence, _)| *sequence <= self.delivered)
            && self.checkpoints.last_key_value().is_none_or(|(sequence, _)| *sequence <= self.stable_sequence())
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        if self.view_deadline.is_some_and(|deadline| deadline <= now) {
            self.give_up_view(now, outbox);
        }
        if self.pool.deadline().is_some_and(|deadline| deadline <= now) {
            self.on_overdue(now, outbox);
        }
        self.answer_queries(outbox);
        if self.tick_due() > now {
            return;
        }
        let is_idle = self.is_settled();
        self.last_tick = now;
        self.ticks += 1;
        self.fetch_missing(outbox);
        self.go_on_transferring(now, outbox);
        self.go_on_rebuilding(now, outbox);
        self.pad(now, outbox);
        self.scrub(now, if is_idle { IDLE_MS / TICK_MS } else { 1 });
        // A state that was taken over is delivered, too.
        self.answer_queries(outbox);
        if is_idle || self.ticks.is_multiple_of(TICKS_PER_STATUS) {
            self.say(&Message::Status(self.status()), outbox);
            self.repeat(outbox);
        }
    }

    /// Says again what others may have missed and that nobody asks for.
    fn repeat(&mut self, outbox: &mut OutboxOf<Self>) {
        self.sign_checkpoints(outbox);
        if !self.is_in_view() {
            self.sign_view_change(outbox);
        }
        // What is due goes first, the longest due before all: its leader is blamed only once enough have said it again.
        let due = self.pool.due().filter(|id| self.pool.believes(id) && !broken(Mutant::DueRepeatedInTurn));
        let mut ids: Vec<RequestId> = due.take(BATCH_REQUESTS_MAX / 2).copied().collect();
        let room = BATCH_REQUESTS_MAX - ids.len();
        let others = self.pool.own_vouches(self.vouched_to.take(), room);
        self.vouched_to = others.get(room - 1).copied();
        ids.extend(others);
        if !ids.is_empty() && !broken(Mutant::VouchesUnrepeated) {
            self.say(&Message::Vouch(ids), outbox);
        }
    }
}

impl<A: Application> Machine for Replica<A> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Unsigned;
    type Event = Answer<A::Answer>;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.on_message(now, from, message.into_inner(), outbox),
            Input::Tick => self.on_tick(now, outbox),
        }
    }

    /// Vouches for all that clients said in this turn at once, and proposes what has become due. The others hear of it only if it is still pending
    /// when vouches are repeated, or its client says it again: mostly it is delivered by then, and they had it from the client themselves.
    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let vouches = std::mem::take(&mut self.vouches);
        self.vouch_to_leader(&vouches, outbox);
        let again = std::mem::take(&mut self.vouches_again);
        self.vouch_to_all(&again, outbox);
        if std::mem::take(&mut self.has_heard) {
            self.after_vouching(now, outbox);
        }
        self.queries.end_turn();
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.hand_over(now, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        let queries = self.queries.is_ready(self.delivered).then_some(self.last_tick);
        [Some(self.tick_due()), self.pool.deadline(), self.view_deadline, queries].into_iter().flatten().min()
    }
}
