//! A replica: answers reads, votes once on each transaction, writes down decisions, learns how transactions end.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verified;
use machine::{Durable, Input, Machine, Outbox, Time};
use store::{Medium, SegmentNumber, Store, StoreError};
use types::codec::{Decode, DecodeError, Encode};
use types::{ClientId, Cluster, Key, Party, ReplicaId, Timestamp, Transaction, TransactionId};

use crate::certificate::{Certificate, Decision, LoggedStatement, SignedVote, Vote, VoteSet, VoteStatement, logging_shard};
use crate::check::{Bounds, Cause, Finding, check};
use crate::ledger::Ledger;
use crate::message::{Conflict, Draft, Message, ReadResult, Refusal, Subject};
use crate::quorum::Quorums;
use crate::record::Record;

/// How a replica is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaOptions {
    /// `δ`: how far ahead of its own clock a replica accepts timestamps.
    pub time_bound_ms: u64,
    /// How far back a transaction's timestamp may lie: older ones that are not known are refused, decided ones forgotten.
    pub window_ms: u64,
    /// After how long an undecided transaction is finished by the replica itself, or named to those it stops.
    pub stall_ms: u64,
    /// How long a transaction that somebody else brought waits for its author, or for evidence, before it is voted down.
    pub authorship_grace_ms: u64,
    /// How often versions are folded, the journal is let go, and old transactions are forgotten.
    pub checkpoint_ms: u64,
    /// The most undecided transactions held; more are refused as [`Refusal::Overloaded`].
    pub undecided_max: usize,
    /// The most transactions remembered, decided ones included.
    pub known_max: usize,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            time_bound_ms: 500,
            window_ms: 30_000,
            stall_ms: 1_000,
            authorship_grace_ms: 2_000,
            checkpoint_ms: 5_000,
            undecided_max: 100_000,
            known_max: 2_000_000,
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
    /// Votes repeated for those who asked again.
    pub votes_repeated: u64,
    /// Decisions written down for clients on the slow path.
    pub logged: u64,
    /// Transactions learned to have committed.
    pub committed: u64,
    /// Transactions learned to have aborted.
    pub aborted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Transactions handed over to be finished because nobody else did.
    pub stalled: u64,
}

/// Why a replica cannot come back from its journal.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record cannot be read: written by a newer version, or damaged in a way checksums do not show.
    #[error("the journal holds a record that this version cannot read: {0}")]
    Record(#[from] DecodeError),
}

/// One replica of one shard.
pub struct Replica<M: Medium> {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: ReplicaOptions,
    ledger: Ledger<M>,
    counts: ReplicaCounts,
    /// The first failure of the store; from then on nothing is done and nothing is said.
    failure: Option<StoreError>,
    /// Undecided transactions in the order in which they were met: when the janitor looks at them.
    watched: VecDeque<(Time, TransactionId)>,
    /// Transactions brought by others than their author, in the order in which they were.
    unauthored: VecDeque<(Time, TransactionId)>,
    checkpoint_at: Time,
    /// Closed journal segments, oldest first, each with the highest timestamp it can hold.
    segments: VecDeque<(SegmentNumber, u64)>,
    /// The newest watermark whose fold is known to be durable.
    folded: u64,
    fold_under_way: bool,
    read_timestamps_turn_at: Time,
}

type Out<M> = Outbox<Replica<M>>;

impl<M: Medium> Replica<M> {
    /// Brings replica `me` back from its store: votes, decisions and versions are as they were when it last
    /// synced; read timestamps are gone, so for `δ` it votes against writes that someone may have read past.
    ///
    /// # Errors
    /// [`RecoverError`] when the store cannot be read; the message says where.
    pub fn open(cluster: Arc<Cluster>, me: ReplicaId, options: ReplicaOptions, store: Store<M>, now: Time) -> Result<Self, RecoverError> {
        let folded = store.watermark().time;
        let mut ledger = Ledger::new(cluster.clone(), me.shard, store);
        while let Some(batch) = ledger.store.replay()? {
            for record in batch.records {
                restore(&cluster, &mut ledger, record, now)?;
            }
        }
        ledger.raise_floor(now.after_ms(options.time_bound_ms).0);
        let watched = ledger.undecided_ids().into_iter().map(|id| (now, id)).collect();
        let quorums = Quorums::new(cluster.faults());
        Ok(Self {
            me,
            cluster,
            quorums,
            options,
            ledger,
            counts: ReplicaCounts::default(),
            failure: None,
            watched,
            unauthored: VecDeque::new(),
            checkpoint_at: now.after_ms(options.checkpoint_ms),
            segments: VecDeque::new(),
            folded,
            fold_under_way: false,
            read_timestamps_turn_at: now.after_ms(options.window_ms),
        })
    }

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
        (self.ledger.known(), self.ledger.undecided())
    }

    /// The store, for its statistics.
    #[must_use]
    pub fn store(&self) -> &Store<M> {
        &self.ledger.store
    }

    fn dispatch(&mut self, now: Time, from: Party, message: Message, out: &mut Out<M>) -> Result<(), StoreError> {
        match message {
            Message::Read { request, timestamp, keys } => self.on_read(now, from, request, timestamp, &keys, out),
            Message::Prepare { transaction } => self.on_prepare(now, from, &transaction, out),
            Message::Recover { transaction, evidence } => self.on_recover(now, from, &transaction, &evidence, out),
            Message::Log { transaction, decision, tallies } => {
                self.on_log(now, from, &transaction, decision, &tallies, out);
                Ok(())
            }
            Message::Writeback { transaction, certificate } => {
                self.on_writeback(now, from, transaction.as_ref(), certificate, out);
                Ok(())
            }
            // Replies; the coordinator beside this machine hears those.
            Message::ReadReply { .. }
            | Message::Voted { .. }
            | Message::Logged { .. }
            | Message::Decided { .. }
            | Message::Refused { .. } => Ok(()),
        }
    }

    // Execution phase (§4.1).

    fn on_read(
        &mut self,
        now: Time,
        from: Party,
        request: u64,
        timestamp: Timestamp,
        keys: &[Key],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if let Err(refusal) = self.may_read(now, from, timestamp, keys) {
            self.refuse(from, Subject::Request(request), refusal, out);
            return Ok(());
        }
        let mut results = Vec::with_capacity(keys.len());
        for key in keys {
            self.ledger.raise_read_timestamp(key, timestamp);
            let committed = self.ledger.store.latest_before(key, timestamp)?;
            let (version, value) = committed.map_or((Timestamp::ZERO, None), |version| (version.timestamp, version.value));
            let prepared = self.ledger.prepared_newest(key, version, timestamp);
            let prepared = prepared.and_then(|id| self.ledger.entry(id)).map(|entry| entry.transaction.clone());
            results.push(ReadResult { version, value, prepared });
        }
        self.counts.keys_read += keys.len() as u64;
        out.send(from, Message::ReadReply { request, results });
        Ok(())
    }

    fn may_read(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> Result<(), Refusal> {
        let Party::Client(client, _) = from else { return Err(Refusal::NotPermitted) };
        let permission = self.cluster.permission(client).ok_or(Refusal::NotPermitted)?;
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 {
            return Err(Refusal::TooNew);
        }
        if timestamp.time < self.watermark(now) {
            return Err(Refusal::TooOld);
        }
        if !keys.iter().all(|key| permission.may_read(key)) {
            return Err(Refusal::NotPermitted);
        }
        if !keys.iter().all(|key| self.ledger.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        Ok(())
    }

    // Prepare phase, stage 1 (§4.2).

    fn on_prepare(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.answer_known(from, transaction.id(), out) {
            return Ok(());
        }
        let authored = matches!(from, Party::Client(client, _) if client == transaction.timestamp().client);
        if let Err(refusal) = self.may_enter(now, transaction) {
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, transaction);
        if authored { self.vote(now, transaction, out) } else { self.await_author(now, transaction.id()) }
    }

    /// RP (§5): like ST1 from somebody who need not be the author.
    ///
    /// The paper lets a replica vote on whatever a finisher brings. Here nobody signs a request, so a replica votes only on
    /// what the author's own channel brought, or what `f + 1` replicas of one shard voted on: one of them is correct,
    /// and had it from the author. What never gets there is voted down after a grace, so that everything ends and
    /// nobody commits in another's name.
    fn on_recover(
        &mut self,
        now: Time,
        from: Party,
        transaction: &Transaction,
        evidence: &[SignedVote],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if evidence.is_empty() || self.ledger.entry(transaction.id()).is_some_and(|entry| entry.vote.is_some() || entry.prepared) {
            return self.on_prepare(now, from, transaction, out);
        }
        if self.answer_known(from, transaction.id(), out) && !self.is_unauthored(transaction.id()) {
            return Ok(());
        }
        if let Err(refusal) = self.may_enter(now, transaction) {
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, transaction);
        if self.shows_authorship(transaction, evidence) {
            self.vote(now, transaction, out)
        } else {
            self.await_author(now, transaction.id())
        }
    }

    /// `f + 1` distinct replicas of one shard that the transaction touches have voted on it.
    fn shows_authorship(&self, transaction: &Transaction, evidence: &[SignedVote]) -> bool {
        self.cluster.participants(transaction).into_iter().any(|shard| {
            let mut voters = machine::Voters::default();
            for vote in evidence.iter().filter(|vote| vote.replica.shard == shard) {
                voters.insert(vote.replica.index);
            }
            voters.count() >= self.quorums.vouched()
        })
    }

    fn is_unauthored(&self, id: TransactionId) -> bool {
        self.ledger.entry(id).is_some_and(|entry| entry.vote.is_none() && !entry.prepared && entry.outcome.is_none())
    }

    /// Tells `from` how far a known transaction is, if its vote has been cast or it has ended; else notes that
    /// `from` wants to hear. `false` when it still has to be judged.
    fn answer_known(&mut self, from: Party, id: TransactionId, out: &mut Out<M>) -> bool {
        let Some(entry) = self.ledger.entry_mut(id) else { return false };
        if let Some(certificate) = &entry.outcome {
            out.send(from, Message::Decided { certificate: certificate.clone() }); // RPR (iii)
            return true;
        }
        let logged = entry.logged;
        let vote = entry.vote;
        if vote.is_none() {
            if !entry.askers.contains(&from) && entry.askers.len() < ASKERS_MAX {
                entry.askers.push(from);
            }
            // Prepared and waiting for what it read from, or known only by a logged decision.
            if !entry.prepared && logged.is_none() {
                return false;
            }
        }
        if let Some((decision, view)) = logged {
            let statement = LoggedStatement { id, decision, view_decision: view, view_current: view };
            out.sign(from, Draft::Logged { replica: self.me, statement }); // RPR (ii)
        }
        if let Some(vote) = vote {
            self.counts.votes_repeated += 1;
            self.say_vote(from, id, vote, out); // RPR (i)
        }
        vote.is_some() || self.ledger.entry(id).is_some_and(|entry| entry.prepared)
    }

    /// Whether a transaction not known yet may be judged at all. Whatever is refused here gets no vote, now or later.
    fn may_enter(&self, now: Time, transaction: &Transaction) -> Result<(), Refusal> {
        if transaction.timestamp().time < self.watermark(now) {
            return Err(Refusal::TooOld);
        }
        if !transaction.keys().any(|key| self.ledger.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        let full = self.ledger.undecided() >= self.options.undecided_max || self.ledger.known() >= self.options.known_max;
        if full && self.ledger.entry(transaction.id()).is_none() {
            return Err(Refusal::Overloaded);
        }
        Ok(())
    }

    fn enter(&mut self, now: Time, from: Party, transaction: &Transaction) {
        if self.ledger.entry(transaction.id()).is_none() {
            self.watched.push_back((now, transaction.id()));
        }
        let entry = self.ledger.enter(transaction, now);
        if !entry.askers.contains(&from) && entry.askers.len() < ASKERS_MAX {
            entry.askers.push(from);
        }
    }

    fn await_author(&mut self, now: Time, id: TransactionId) -> Result<(), StoreError> {
        self.unauthored.push_back((now, id));
        Ok(())
    }

    /// Runs Algorithm 1, at most once a transaction.
    fn vote(&mut self, now: Time, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        let id = transaction.id();
        if !self.permitted(transaction) {
            self.cast(id, Vote::Abort, Some(Cause::NotPermitted), out);
            return Ok(());
        }
        let bounds = Bounds { newest: now.after_ms(self.options.time_bound_ms).0, floor: self.ledger.floor() };
        match check(&mut self.ledger, transaction, bounds)? {
            Finding::Prepare { pending } => {
                self.ledger.prepare(id); // L14
                for dependency in &pending {
                    if let Some(entry) = self.ledger.entry_mut(*dependency) {
                        entry.dependents.push(id);
                    }
                }
                if let Some(entry) = self.ledger.entry_mut(id) {
                    entry.waiting_for = pending.len(); // L15
                }
                if pending.is_empty() {
                    self.cast(id, Vote::Commit, None, out); // L19
                }
            }
            Finding::Abort(cause) => {
                if cause == Cause::Misbehavior {
                    let client = transaction.timestamp().client;
                    out.emit(ReplicaEvent::Misbehavior { client, transaction: transaction.clone() });
                }
                self.cast(id, Vote::Abort, Some(cause), out);
            }
        }
        Ok(())
    }

    fn permitted(&self, transaction: &Transaction) -> bool {
        self.cluster.permission(transaction.timestamp().client).is_some_and(|permission| {
            transaction.reads().iter().all(|read| permission.may_read(&read.key))
                && transaction.writes().iter().all(|write| permission.may_write(&write.key))
        })
    }

    /// Casts the vote: on disk before anyone hears it, and never another.
    fn cast(&mut self, id: TransactionId, vote: Vote, cause: Option<Cause>, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() {
            return;
        }
        entry.vote = Some(vote);
        entry.cause = cause;
        let askers = std::mem::take(&mut entry.askers);
        let record = Record::Voted { transaction: entry.transaction.clone(), vote };
        self.ledger.store.append_with(|bytes| record.encode(bytes));
        match vote {
            Vote::Commit => self.counts.votes_commit += 1,
            Vote::Abort => {
                self.counts.votes_abort += 1;
                self.ledger.unprepare(id);
            }
        }
        for asker in askers {
            self.say_vote(asker, id, vote, out);
        }
    }

    fn say_vote(&self, to: Party, id: TransactionId, vote: Vote, out: &mut Out<M>) {
        let conflict = if vote == Vote::Abort { self.conflict_of(id) } else { None };
        out.sign(to, Draft::Vote { replica: self.me, statement: VoteStatement { id, vote }, conflict });
    }

    /// What stands in the way of a transaction that was voted down, if telling helps (L8, L11).
    fn conflict_of(&self, id: TransactionId) -> Option<Conflict> {
        let other = self.ledger.entry(id)?.cause?.conflicting()?;
        let entry = self.ledger.entry(other)?;
        let transaction = entry.transaction.clone();
        match &entry.outcome {
            Some(certificate) if certificate.decision == Decision::Commit => {
                Some(Conflict::Committed { transaction, certificate: certificate.clone() })
            }
            Some(_) => None,
            None => self.is_stalled(other).then_some(Conflict::Stalled { transaction }),
        }
    }

    /// Undecided for so long that the janitor has looked at it.
    fn is_stalled(&self, id: TransactionId) -> bool {
        match (self.watched.front(), self.ledger.entry(id)) {
            (Some((oldest, _)), Some(entry)) => entry.since < *oldest,
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }

    // Prepare phase, stage 2 (§4.2 (5), (6)).

    fn on_log(&mut self, now: Time, from: Party, transaction: &Transaction, decision: Decision, tallies: &[VoteSet], out: &mut Out<M>) {
        let id = transaction.id();
        let participants = self.cluster.participants(transaction);
        if logging_shard(&participants, id) != Some(self.me.shard) {
            self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
            return;
        }
        // That the tallies are of the right shards and large enough was checked with their signatures.
        debug_assert!(!tallies.is_empty(), "verified tallies justify the decision");
        if self.ledger.entry(id).is_none() {
            if let Err(refusal) = self.may_enter(now, transaction) {
                self.refuse(from, Subject::Transaction(id), refusal, out);
                return;
            }
            self.watched.push_back((now, id));
        }
        let known_by_vote = self.ledger.entry(id).is_some_and(|entry| entry.vote.is_some());
        let entry = self.ledger.enter(transaction, now);
        if let Some(certificate) = &entry.outcome {
            out.send(from, Message::Decided { certificate: certificate.clone() });
            return;
        }
        let (decision, view) = match entry.logged {
            Some(logged) => logged, // The first decision in a view stays.
            None => {
                entry.logged = Some((decision, 0));
                let transaction = (!known_by_vote).then(|| transaction.clone());
                let record = Record::Logged { transaction, id, decision, view: 0 };
                self.ledger.store.append_with(|bytes| record.encode(bytes));
                self.counts.logged += 1;
                (decision, 0)
            }
        };
        let statement = LoggedStatement { id, decision, view_decision: view, view_current: view };
        out.sign(from, Draft::Logged { replica: self.me, statement });
    }

    // Writeback (§4.3).

    fn on_writeback(&mut self, now: Time, from: Party, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        match self.ledger.entry(id) {
            Some(entry) if entry.outcome.is_some() => return,
            Some(_) => {}
            None => {
                let Some(transaction) = transaction else {
                    self.refuse(from, Subject::Transaction(id), Refusal::Unknown, out);
                    return;
                };
                if !transaction.keys().any(|key| self.ledger.holds(key)) {
                    self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
                    return;
                }
                if transaction.timestamp().time > now.after_ms(self.options.time_bound_ms).0 {
                    // A certificate cannot exist for it yet among correct replicas whose clocks agree with ours.
                    self.refuse(from, Subject::Transaction(id), Refusal::TooNew, out);
                    return;
                }
            }
        }
        self.conclude(now, transaction, certificate, out);
    }

    fn conclude(&mut self, now: Time, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        let known_by_vote = self.ledger.entry(id).is_some_and(|entry| entry.vote.is_some());
        let transaction = match (self.ledger.entry(id), transaction) {
            (Some(entry), _) => entry.transaction.clone(),
            (None, Some(transaction)) => self.ledger.enter(transaction, now).transaction.clone(),
            (None, None) => return,
        };
        if certificate.fits(&self.cluster, &transaction).is_err() {
            return;
        }
        // Late, its vote's segment may be let go before this record is folded: then it stands alone.
        let late = transaction.timestamp().time <= self.watermark(now);
        let record = Record::Decided { transaction: (late || !known_by_vote).then_some(transaction), certificate: certificate.clone() };
        self.ledger.store.append_with(|bytes| record.encode(bytes));
        let decision = certificate.decision;
        match decision {
            Decision::Commit => self.counts.committed += 1,
            Decision::Abort => self.counts.aborted += 1,
        }
        if let Some(entry) = self.ledger.entry_mut(id) {
            for asker in std::mem::take(&mut entry.askers) {
                out.send(asker, Message::Decided { certificate: certificate.clone() });
            }
        }
        for dependent in self.ledger.conclude(id, certificate) {
            self.dependency_ended(dependent, decision, out);
        }
    }

    /// L15 to L19, for a transaction whose vote waited.
    fn dependency_ended(&mut self, id: TransactionId, decision: Decision, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() || entry.outcome.is_some() {
            return;
        }
        match decision {
            Decision::Abort => self.cast(id, Vote::Abort, Some(Cause::DependencyAborted), out), // L16-18
            Decision::Commit => {
                entry.waiting_for = entry.waiting_for.saturating_sub(1);
                if entry.waiting_for == 0 {
                    self.cast(id, Vote::Commit, None, out); // L19
                }
            }
        }
    }

    fn refuse(&mut self, to: Party, subject: Subject, refusal: Refusal, out: &mut Out<M>) {
        self.counts.refused += 1;
        out.send(to, Message::Refused { subject, refusal });
    }

    // What time brings.

    /// Transactions below are refused unless known, in nanoseconds.
    fn watermark(&self, now: Time) -> u64 {
        now.0.saturating_sub(self.options.window_ms * 1_000_000)
    }

    fn on_tick(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        while self.unauthored.front().is_some_and(|(since, _)| since.after_ms(self.options.authorship_grace_ms) <= now) {
            let Some((_, id)) = self.unauthored.pop_front() else { break };
            if self.is_unauthored(id) {
                self.cast(id, Vote::Abort, Some(Cause::NotAuthored), out);
            }
        }
        while self.watched.front().is_some_and(|(since, _)| since.after_ms(self.options.stall_ms) <= now) {
            let Some((_, id)) = self.watched.pop_front() else { break };
            let Some(entry) = self.ledger.entry(id) else { continue };
            if entry.outcome.is_none() {
                self.counts.stalled += 1;
                out.emit(ReplicaEvent::Stalled(entry.transaction.clone()));
                self.watched.push_back((now, id));
            }
        }
        if self.checkpoint_at <= now {
            self.checkpoint(now)?;
        }
        Ok(())
    }

    /// Folds versions below the watermark, lets go of journal segments that only hold such, forgets decided
    /// transactions below it, and writes the undecided ones among them down anew, so that they outlive their segments.
    fn checkpoint(&mut self, now: Time) -> Result<(), StoreError> {
        self.checkpoint_at = now.after_ms(self.options.checkpoint_ms);
        if let Some(watermark) = self.ledger.store.fold_finished()? {
            self.folded = watermark.time;
            self.fold_under_way = false;
        }
        if !self.fold_under_way {
            // Segments are let go by the fold that is already durable, before a new one begins.
            while self.segments.front().is_some_and(|(_, highest)| *highest < self.folded) {
                let Some((segment, _)) = self.segments.pop_front() else { break };
                self.ledger.store.release(segment)?;
            }
            let watermark = Timestamp::new(self.watermark(now), ClientId(0));
            for id in self.ledger.forget_below(watermark) {
                self.write_down_anew(id);
            }
            // Every segment before the new one is closed; what it holds was written by now, so lies below now + δ.
            let current = self.ledger.store.rotate()?;
            self.segments.push_back((SegmentNumber(current.0.saturating_sub(1)), now.after_ms(self.options.time_bound_ms).0));
            self.fold_under_way = self.ledger.store.fold(watermark)?;
            if self.read_timestamps_turn_at <= now {
                self.read_timestamps_turn_at = now.after_ms(self.options.window_ms);
                self.ledger.turn_read_timestamps();
            }
        }
        Ok(())
    }

    fn write_down_anew(&mut self, id: TransactionId) {
        let Some(entry) = self.ledger.entry(id) else { return };
        let transaction = entry.transaction.clone();
        let voted = entry.vote.map(|vote| Record::Voted { transaction: transaction.clone(), vote });
        let logged = entry.logged.map(|(decision, view)| Record::Logged { transaction: Some(transaction), id, decision, view });
        for record in voted.into_iter().chain(logged) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
    }
}

/// The most parties that may wait for one vote; those who come later ask again.
const ASKERS_MAX: usize = 64;

/// Takes one journal record back in.
fn restore<M: Medium>(cluster: &Arc<Cluster>, ledger: &mut Ledger<M>, record: Bytes, now: Time) -> Result<(), DecodeError> {
    match Record::from_bytes(record, cluster.id())? {
        Record::Voted { transaction, vote } => {
            let id = transaction.id();
            let entry = ledger.enter(&transaction, now);
            if entry.vote.is_none() {
                entry.vote = Some(vote);
                if vote == Vote::Commit && entry.outcome.is_none() {
                    ledger.prepare(id);
                }
            }
        }
        Record::Logged { transaction, id, decision, view } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now);
            }
            if let Some(entry) = ledger.entry_mut(id) {
                entry.logged = Some((decision, view));
            }
        }
        Record::Decided { transaction, certificate } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now);
            }
            // Where the transaction is not known, its segment was let go after its writes were folded.
            if ledger.entry(certificate.id).is_some_and(|entry| entry.outcome.is_none()) {
                ledger.conclude(certificate.id, certificate);
            }
        }
    }
    Ok(())
}

impl<M: Medium> Machine for Replica<M> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = Draft;
    type Event = ReplicaEvent;

    fn step(&mut self, now: Time, input: Input<Self>, outbox: &mut Outbox<Self>) {
        if self.failure.is_some() {
            return;
        }
        let done = match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.dispatch(now, from, message.into_inner(), outbox),
            Input::Tick => self.on_tick(now, outbox),
        };
        if let Err(failure) = done {
            self.failure = Some(failure);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let stalled = self.watched.front().map(|(since, _)| since.after_ms(self.options.stall_ms));
        let unauthored = self.unauthored.front().map(|(since, _)| since.after_ms(self.options.authorship_grace_ms));
        [Some(self.checkpoint_at), stalled, unauthored].into_iter().flatten().min()
    }
}

impl<M: Medium> Durable for Replica<M> {
    type Failure = StoreError;

    /// The first failure of the store is final: the process must end, and come back from what is really on the disk.
    fn persist(&mut self) -> Result<(), StoreError> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.ledger.store.sync(),
        }
    }
}
