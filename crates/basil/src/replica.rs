//! A replica: answers reads, votes once on each transaction, writes down decisions, learns how transactions end.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verified;
use machine::{Durable, Input, Machine, Outbox, Time};
use store::{Medium, SegmentNumber, Store, StoreError};
use types::codec::{Decode, DecodeError, Encode};
use types::mutant::{Mutant, broken};
use types::{ClientId, Cluster, Key, Party, ReplicaId, Timestamp, Transaction, TransactionId};

use crate::certificate::{Certificate, Decision, SignedVote, Vote, VoteStatement, logging_shard};
use crate::check::{Bounds, Cause, Finding, check};
use crate::ledger::{Entry, Ledger, Payer};
use crate::message::{Conflict, Draft, Message, Newer, ReadResult, Refusal, Subject};
use crate::quorum::Quorums;
use crate::record::Record;
use crate::recovery::Ballots;
use crate::rest::Inquiries;
use crate::stall::Watch;

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
    pub authorship_grace_ms: u64,
    /// How often versions are folded, the journal is let go, and old transactions are forgotten.
    pub checkpoint_ms: u64,
    /// The most undecided transactions held; more are refused as [`Refusal::Overloaded`]. One client may have a quarter.
    pub undecided_max: usize,
    /// The most bytes of undecided transactions held. One client may have a quarter.
    pub undecided_bytes_max: usize,
    /// The most transactions remembered, decided ones included.
    pub known_max: usize,
    /// Versions are folded into the base when those in memory take so many bytes,
    pub overlay_bytes_max: usize,
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
            authorship_grace_ms: 2_000,
            checkpoint_ms: 5_000,
            undecided_max: 100_000,
            undecided_bytes_max: 1 << 30,
            known_max: 2_000_000,
            overlay_bytes_max: 128 << 20,
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
    /// Requests refused.
    pub refused: u64,
    /// Transactions handed over to be finished because nobody else did.
    pub stalled: u64,
    /// Old transactions let go because the others had.
    pub rested: u64,
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
    pub(crate) me: ReplicaId,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) quorums: Quorums,
    pub(crate) options: ReplicaOptions,
    pub(crate) ledger: Ledger<M>,
    pub(crate) counts: ReplicaCounts,
    /// Election messages, for the transactions and views that this replica may lead.
    pub(crate) ballots: Ballots,
    /// What others have said of old transactions that this replica holds undecided.
    pub(crate) inquiries: Inquiries,
    /// The first failure of the store, until it is told; from then on nothing is done and nothing is said.
    failure: Option<StoreError>,
    failed: bool,
    /// When to look at undecided transactions, lest they were left.
    pub(crate) watch: Watch,
    /// Transactions brought by others than their author, in the order in which they were.
    unauthored: VecDeque<(Time, TransactionId)>,
    /// Transactions whose proof is fresh, in the order in which they ended.
    proven: VecDeque<(Time, TransactionId)>,
    checkpoint_at: Time,
    /// While a fold is under way: when to look after it.
    fold_poll_at: Option<Time>,
    /// Up to where the folds under way are to reach, in nanoseconds.
    fold_wanted: u64,
    /// Closed journal segments, oldest first, each with the highest timestamp it can hold.
    segments: VecDeque<(SegmentNumber, u64)>,
    /// The newest watermark whose fold is known to be durable.
    folded: u64,
}

pub(crate) type Out<M> = Outbox<Replica<M>>;

impl<M: Medium> Replica<M> {
    /// Brings replica `me` back from its store: votes, decisions and versions are as they were when it last
    /// synced; read timestamps are gone, so it votes against all writes that someone may have read past.
    ///
    /// # Errors
    /// [`RecoverError`] when the store cannot be read; the message says where.
    pub fn open(cluster: Arc<Cluster>, me: ReplicaId, options: ReplicaOptions, store: Store<M>, now: Time) -> Result<Self, RecoverError> {
        let mut ledger = Ledger::new(cluster.clone(), me.shard, store, options.seed, options.read_timestamps);
        while let Some(batch) = ledger.store.replay()? {
            for record in batch.records.into_iter().filter(|_| !broken(Mutant::ReplaySkipped)) {
                restore(&cluster, &mut ledger, record, now)?;
            }
        }
        // What ended below the watermark was to be forgotten; of its records some are gone with their segments already.
        let by_clock = now.0.saturating_sub(options.window_ms * 1_000_000);
        let folded = ledger.store.watermark().time;
        let watermark = by_clock.max(folded.saturating_add(1));
        ledger.may_have_forgotten_up_to(folded);
        ledger.forget_below(Timestamp::new(watermark, ClientId(0)));
        let watch = Watch::new(ledger.undecided_ids(), now);
        let quorums = Quorums::new(cluster.faults());
        Ok(Self {
            me,
            cluster,
            quorums,
            options,
            ledger,
            counts: ReplicaCounts::default(),
            ballots: Ballots::default(),
            inquiries: Inquiries::default(),
            failure: None,
            failed: false,
            watch,
            unauthored: VecDeque::new(),
            proven: VecDeque::new(),
            checkpoint_at: now.after_ms(options.checkpoint_ms),
            fold_poll_at: None,
            fold_wanted: 0,
            segments: VecDeque::new(),
            folded: 0,
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
        (self.ledger.known(), self.ledger.undecided().transactions)
    }

    /// Every transaction whose end is not known here, oldest first; for whoever wants to know what is stuck.
    pub fn undecided(&self) -> impl Iterator<Item = &Transaction> {
        self.ledger.undecided_ids().into_iter().filter_map(|id| self.ledger.entry(id)).map(|entry| &entry.transaction)
    }

    /// Why this replica voted a transaction down, as far as this process remembers; for whoever wants to know. It proves nothing.
    #[must_use]
    pub fn cause_of(&self, id: TransactionId) -> Option<Cause> {
        self.ledger.entry(id)?.cause
    }

    /// The store, for its statistics.
    #[must_use]
    pub fn store(&self) -> &Store<M> {
        &self.ledger.store
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
                self.hurry(now, transaction.id(), out);
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
            Message::Writeback { transaction, certificate } => {
                self.on_writeback(now, from, transaction.as_ref(), certificate, out);
                Ok(())
            }
            Message::Inquire { id, timestamp, keys } => self.on_inquire(now, from, id, timestamp, &keys, out),
            Message::Rested { id, versions } => self.on_rested(now, from, id, versions, out),
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
        self.ledger.make_readable(timestamp.time);
        let mut results = Vec::with_capacity(keys.len());
        let mut prepared: Vec<Transaction> = Vec::new();
        let mut bytes = 0;
        for key in keys {
            if !broken(Mutant::ReadTimestampUnraised) {
                self.ledger.raise_read_timestamp(key, timestamp);
            }
            let committed = self.ledger.store.latest_before(key, timestamp)?;
            let (version, value) = committed.map_or((Timestamp::ZERO, None), |version| (version.timestamp, version.value));
            bytes += value.as_ref().map_or(0, |value| value.as_bytes().len());
            let newer = match self.ledger.prepared_between(key, version, timestamp).and_then(|id| self.ledger.entry(id)) {
                None => Newer::Nothing,
                Some(writer) if !self.may_see(from, &writer.transaction) => {
                    if broken(Mutant::HiddenDenied) {
                        Newer::Nothing
                    } else {
                        Newer::Hidden
                    }
                }
                Some(writer) => {
                    let id = writer.transaction.id();
                    let place = prepared.iter().position(|known| known.id() == id).unwrap_or_else(|| {
                        bytes += writer.transaction.encoded_bytes();
                        prepared.push(writer.transaction.clone());
                        prepared.len() - 1
                    });
                    u16::try_from(place).map_or(Newer::Hidden, Newer::Prepared)
                }
            };
            results.push(ReadResult { version, value, newer });
            if bytes > READ_REPLY_BYTES_MAX {
                self.refuse(from, Subject::Request(request), Refusal::TooLarge, out);
                return Ok(());
            }
        }
        self.counts.keys_read += keys.len() as u64;
        out.send(from, Message::ReadReply { request, results, prepared });
        Ok(())
    }

    /// Whether `party` may be shown the whole of `transaction`: it may read all that the transaction touches.
    fn may_see(&self, party: Party, transaction: &Transaction) -> bool {
        match party {
            Party::Replica(_) => true,
            Party::Client(client, _) => {
                let permission = self.cluster.permission(client);
                permission.is_some_and(|permission| transaction.keys().all(|key| permission.may_read(key))) || broken(Mutant::SecretShown)
            }
        }
    }

    /// Whether `party` may hear of `transaction` at all. Else whoever may not read its keys could guess at it until an answer
    /// tells that the guess was right.
    fn may_ask(&self, party: Party, transaction: &Transaction) -> bool {
        is_author(party, transaction) || self.may_see(party, transaction) || broken(Mutant::GuessAnswered)
    }

    /// Whether `party` may be shown a proof: that of a conflict shows the other transaction, too. Who may not comes to the same
    /// end by votes and logged decisions, as whoever comes when the proof is no longer at hand.
    fn may_see_proof(&self, party: Party, certificate: &Certificate) -> bool {
        certificate.shows().is_none_or(|transaction| self.may_see(party, transaction)) || broken(Mutant::ProofShown)
    }

    fn may_read(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> Result<(), Refusal> {
        let Party::Client(client, _) = from else { return Err(Refusal::NotPermitted) };
        let permission = self.cluster.permission(client).ok_or(Refusal::NotPermitted)?;
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureReader) {
            return Err(Refusal::TooNew);
        }
        if timestamp.time < self.watermark(now) {
            return Err(Refusal::TooOld);
        }
        if !keys.iter().all(|key| permission.may_read(key)) && !broken(Mutant::SecretRead) {
            return Err(Refusal::NotPermitted);
        }
        if !keys.iter().all(|key| self.ledger.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        Ok(())
    }

    // Prepare phase, stage 1 (§4.2).

    fn on_prepare(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.answer_known(now, from, transaction.id(), out) {
            return Ok(());
        }
        let authored = is_author(from, transaction);
        if !authored && self.vote_down_late(now, from, transaction, out) {
            return Ok(());
        }
        let oldest = if authored && broken(Mutant::LateRefused) { self.youngest_watermark(now) } else { self.watermark(now) };
        let payer = if broken(Mutant::AuthorPays) { author(transaction) } else { from.into() };
        if let Err(refusal) = self.may_enter(now, oldest, payer, transaction) {
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, transaction);
        if authored && transaction.timestamp().time < self.youngest_watermark(now) && !broken(Mutant::WindowUnhalved) {
            // Not refused: the author could take that to mean that it never happens, while others finish it with this vote.
            self.cast(transaction.id(), Vote::Abort, Some(Cause::TooOld), None, out);
            return Ok(());
        }
        if authored || broken(Mutant::AuthorUnasked) { self.vote(now, transaction, out) } else { self.await_author(now, transaction.id()) }
    }

    /// RP (§5): like ST1 from somebody who need not be the author.
    ///
    /// The paper lets a replica vote on whatever a finisher brings. Here nobody signs a request, so a replica votes only on
    /// what the author's own channel brought, or what `f + 1` replicas of one shard voted to commit: one of them is
    /// correct, and the first correct one had it from the author. (A vote to abort shows nothing, being what a replica
    /// says of what no author brought.) What never gets there is voted down after a grace, so that everything ends
    /// and nobody commits in another's name.
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
        if self.answer_known(now, from, transaction.id(), out) && !self.is_unauthored(transaction.id()) {
            return Ok(());
        }
        if self.vote_down_late(now, from, transaction, out) {
            return Ok(());
        }
        if let Err(refusal) = self.may_enter(now, self.watermark(now), from.into(), transaction) {
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

    /// What comes to be finished when it can no longer be judged is voted down by a replica that surely never said anything else of it
    /// ([`crate::forgotten`]). So whoever was cut off, or down, for longer than the window still counts when others finish what they
    /// began meanwhile. `false` when it can be judged, or may have been forgotten.
    fn vote_down_late(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        if transaction.timestamp().time >= self.watermark(now) || !self.ledger.remembers(transaction) || broken(Mutant::PastEntered) {
            return false;
        }
        let id = transaction.id();
        if let Err(refusal) = self.may_enter(now, 0, from.into(), transaction) {
            self.refuse(from, Subject::Transaction(id), refusal, out);
            return true;
        }
        self.enter(now, from, transaction);
        if let Some(entry) = self.ledger.entry_mut(id) {
            entry.awaits_author = true; // Its end is a matter of those who hold it: the janitor here leaves it to them.
        }
        self.cast(id, Vote::Abort, Some(Cause::TooOld), None, out);
        true
    }

    /// `f + 1` distinct replicas of one shard that the transaction touches have voted to commit it.
    fn shows_authorship(&self, transaction: &Transaction, evidence: &[SignedVote]) -> bool {
        self.cluster.participants(transaction).into_iter().any(|shard| {
            let mut voters = machine::Voters::default();
            for vote in evidence.iter().filter(|vote| vote.replica.shard == shard && vote.statement.vote == Vote::Commit) {
                voters.insert(vote.replica.index);
            }
            voters.count() >= if broken(Mutant::EvidenceOfOne) { 1 } else { self.quorums.vouched() }
        })
    }

    fn is_unauthored(&self, id: TransactionId) -> bool {
        self.ledger.entry(id).is_some_and(|entry| entry.vote.is_none() && !entry.prepared && entry.decision.is_none())
    }

    /// Tells `from` how far a known transaction is, if its vote has been cast or it has ended; else notes that
    /// `from` wants to hear. `false` when it still has to be judged.
    fn answer_known(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) -> bool {
        let Some(entry) = self.ledger.entry(id) else { return false };
        if let Some(certificate) = entry.certificate.as_ref().filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate: certificate.clone() }); // RPR (iii)
            return true;
        }
        if self.is_remade(now, id) {
            return true;
        }
        self.write_down_end(id);
        self.vote_for_end(id, out);
        self.tell_logged(from, id, out); // RPR (ii)
        if let Some(vote) = self.ledger.entry(id).and_then(|entry| entry.vote).filter(|_| !broken(Mutant::VoteReconsidered)) {
            self.counts.votes_repeated += 1;
            let statement = VoteStatement { id, vote };
            out.sign(from, Draft::Vote { replica: self.me, statement, conflict: None }); // RPR (i)
            return true;
        }
        let Some(entry) = self.ledger.entry_mut(id) else { return false };
        note_asker(entry, from);
        entry.prepared // Else known by a logged decision alone, or still waiting for its author.
    }

    /// Whether it ended, and lies below the watermark: it may have been forgotten and come back with a late writeback,
    /// so what this replica once voted, logged or elected is not known, and nothing of the kind is said again.
    pub(crate) fn is_remade(&self, now: Time, id: TransactionId) -> bool {
        let entry = self.ledger.entry(id);
        entry.is_some_and(|entry| entry.decision.is_some() && entry.transaction.timestamp().time < self.watermark(now))
            && !broken(Mutant::RemadeSpeaks)
    }

    /// A replica that learned the end before it voted votes for it. The end is final, so this vote changes nothing; but
    /// whoever missed the end, and comes when its proof is no longer at hand, may need it to find a quorum again.
    fn vote_for_end(&mut self, id: TransactionId, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry(id).filter(|entry| entry.vote.is_none() && !broken(Mutant::EndUnvoted)) else { return };
        match entry.decision {
            Some(Decision::Commit) => self.cast(id, Vote::Commit, None, None, out),
            Some(Decision::Abort) => self.cast(id, Vote::Abort, None, None, out),
            None => {}
        }
    }

    /// On the logging shard, what has ended without being written down is written down.
    ///
    /// How it ended is final, so there is nothing else it could ever log; and whoever missed the end and comes when its
    /// proof is no longer at hand may find too few votes, and then needs `n - f` replicas to say it.
    fn write_down_end(&mut self, id: TransactionId) {
        let Some(entry) = self.ledger.entry(id) else { return };
        if let (None, Some(decision)) = (entry.logged, entry.decision)
            && self.logs(&entry.transaction)
            && !broken(Mutant::EndUnlogged)
        {
            self.write_down(id, decision, 0);
        }
    }

    /// Writes down how a transaction ends, as a client (in view 0) or a leader decided: once in each view.
    pub(crate) fn write_down(&mut self, id: TransactionId, decision: Decision, view: u32) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        assert!(
            entry.view() <= view || broken(Mutant::LowerViewAdopted) || broken(Mutant::LoggedTwice),
            "nothing is adopted from a view that was left"
        );
        let is_new = entry.logged.is_none_or(|(_, earlier)| earlier < view);
        assert!(is_new || broken(Mutant::LoggedTwice) || broken(Mutant::DecidedTwice), "one decision is written down in a view");
        // An earlier record names the whole transaction, unless it is known by hearsay only.
        let is_recorded = entry.vote.is_some() || entry.logged.is_some() || entry.decision.is_some();
        let transaction = (!is_recorded).then(|| entry.transaction.clone());
        entry.logged = Some((decision, view));
        let record = Record::Logged { transaction, id, decision, view };
        if !broken(Mutant::LoggedUnwritten) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
        self.counts.logged += 1;
    }

    /// Tells `party` under this replica's signature what it has written down, if anything.
    pub(crate) fn tell_logged(&self, party: Party, id: TransactionId, out: &mut Out<M>) {
        if let Some(statement) = self.ledger.entry(id).and_then(Entry::logged_statement) {
            out.sign(party, Draft::Logged { replica: self.me, statement });
        }
    }

    /// Whether decisions on `transaction` are logged on this replica's shard.
    pub(crate) fn logs(&self, transaction: &Transaction) -> bool {
        logging_shard(&self.cluster.participants(transaction), transaction.id()) == Some(self.me.shard)
            || (broken(Mutant::LoggedAnywhere) && self.cluster.participants(transaction).contains(&self.me.shard))
    }

    /// Whether a transaction not known yet may be judged at all. Whatever is refused here gets no vote, now or later.
    fn may_enter(&self, now: Time, oldest: u64, payer: Payer, transaction: &Transaction) -> Result<(), Refusal> {
        let timestamp = transaction.timestamp();
        if timestamp.time < oldest && !broken(Mutant::PastEntered) {
            return Err(Refusal::TooOld);
        }
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureEntered) {
            // Alg. 1 L1-2, but without a vote: the journal keeps no record from the future, whose segment could be let
            // go while the record still matters.
            return Err(Refusal::TooNew);
        }
        if !transaction.keys().any(|key| self.ledger.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        let options = &self.options;
        let (all, own) = (self.ledger.undecided(), self.ledger.undecided_of(payer));
        let full = self.ledger.known() >= options.known_max
            || all.transactions >= options.undecided_max
            || all.bytes >= options.undecided_bytes_max
            || (own.transactions >= options.undecided_max / 4 && !broken(Mutant::ShareUnlimited))
            || (own.bytes >= options.undecided_bytes_max / 4 && !broken(Mutant::ShareUnlimited));
        if full && !broken(Mutant::LoadUnlimited) && self.ledger.entry(transaction.id()).is_none() {
            return Err(Refusal::Overloaded);
        }
        Ok(())
    }

    /// The same of one that comes with the proof that it aborted. Anybody can make up any number of transactions that conflict with
    /// a committed one, and so the proofs. They may take half the room at most.
    fn may_enter_aborted(&self, now: Time, payer: Payer, transaction: &Transaction) -> Result<(), Refusal> {
        if self.ledger.known() >= self.options.known_max / 2 && !broken(Mutant::LoadUnlimited) {
            return Err(Refusal::Overloaded);
        }
        self.may_enter(now, self.watermark(now), payer, transaction)
    }

    fn enter(&mut self, now: Time, from: Party, transaction: &Transaction) {
        if self.ledger.entry(transaction.id()).is_none() {
            self.watch.met(now, transaction.id());
        }
        let payer = if broken(Mutant::AuthorPays) { author(transaction) } else { from.into() };
        note_asker(self.ledger.enter(transaction, now, payer), from);
    }

    fn await_author(&mut self, now: Time, id: TransactionId) -> Result<(), StoreError> {
        if let Some(entry) = self.ledger.entry_mut(id)
            && !std::mem::replace(&mut entry.awaits_author, true)
        {
            self.unauthored.push_back((now, id));
        }
        Ok(())
    }

    /// Runs Algorithm 1, at most once a transaction.
    fn vote(&mut self, now: Time, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        let id = transaction.id();
        if !self.permitted(transaction) && !broken(Mutant::RightsIgnored) {
            self.cast(id, Vote::Abort, Some(Cause::NotPermitted), None, out);
            return Ok(());
        }
        let bounds = Bounds { newest: now.after_ms(self.options.time_bound_ms).0, oldest: self.watermark(now), floor: self.ledger.floor() };
        match check(&mut self.ledger, transaction, bounds)? {
            Finding::Prepare { mut pending } => {
                if broken(Mutant::DependencyNotAwaited) {
                    pending.clear();
                }
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
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
            Finding::Abort(cause) => {
                if cause == Cause::Misbehavior {
                    let client = transaction.timestamp().client;
                    out.emit(ReplicaEvent::Misbehavior { client, transaction: transaction.clone() });
                }
                let conflict = self.conflict_of(now, cause);
                self.cast(id, Vote::Abort, Some(cause), conflict, out);
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

    /// Casts the vote: on disk before anyone hears it, and never another. Who asked is told what stands in the way, if telling
    /// helps.
    fn cast(&mut self, id: TransactionId, vote: Vote, cause: Option<Cause>, conflict: Option<Conflict>, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() && !broken(Mutant::VoteReconsidered) {
            return;
        }
        entry.vote = Some(vote);
        entry.cause = cause;
        let askers = std::mem::take(&mut entry.askers);
        let record = Record::Voted { transaction: entry.transaction.clone(), vote };
        if !broken(Mutant::VoteUnwritten) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
        match vote {
            Vote::Commit => self.counts.votes_commit += 1,
            Vote::Abort => {
                self.counts.votes_abort += 1;
                self.ledger.unprepare(id);
            }
        }
        for asker in askers {
            // Told once: who asks again wants the vote.
            let conflict = conflict.clone().filter(|conflict| self.may_see(asker, conflict.transaction()));
            out.sign(asker, Draft::Vote { replica: self.me, statement: VoteStatement { id, vote }, conflict });
        }
    }

    /// What stands in the way of a transaction that is voted down for `cause`, if telling helps (L8, L11).
    fn conflict_of(&self, now: Time, cause: Cause) -> Option<Conflict> {
        let other = cause.conflicting()?;
        let entry = self.ledger.entry(other)?;
        let transaction = entry.transaction.clone();
        match (entry.decision, &entry.certificate) {
            (Some(Decision::Commit), Some(certificate)) => Some(Conflict::Committed { transaction, certificate: certificate.clone() }),
            (Some(_), _) => None,
            (None, _) => self.is_left(now, other).then_some(Conflict::Stalled { transaction }),
        }
    }

    // Prepare phase, stage 2 (§4.2 (5), (6)).

    fn on_log(&mut self, now: Time, from: Party, transaction: &Transaction, decision: Decision, out: &mut Out<M>) {
        // That the tallies are of the right shards and large enough was checked with their signatures.
        if self.admit_decision(now, from, transaction, out) {
            self.write_down_first(transaction.id(), Some(decision));
            self.tell_logged(from, transaction.id(), out);
        }
    }

    /// Whether a decision on `transaction` is this replica's to write down and still open, so that it is now entered.
    /// Else `from` is told why not.
    pub(crate) fn admit_decision(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        let id = transaction.id();
        if !self.logs(transaction) {
            self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
            return false;
        }
        if self.ledger.entry(id).is_none() {
            let oldest = if self.ledger.remembers(transaction) { 0 } else { self.watermark(now) };
            if let Err(refusal) = self.may_enter(now, oldest, from.into(), transaction) {
                self.refuse(from, Subject::Transaction(id), refusal, out);
                return false;
            }
            self.watch.met(now, transaction.id());
        }
        let certificate = self.ledger.enter(transaction, now, from.into()).certificate.clone();
        if let Some(certificate) = certificate.filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate });
            return false;
        }
        !self.is_remade(now, id)
    }

    /// What is written down first stays, until a leader says otherwise: how it has ended, if that is known here, else
    /// what `justified` votes allow. A replica without a decision is in view 0, so that is where this one belongs.
    pub(crate) fn write_down_first(&mut self, id: TransactionId, justified: Option<Decision>) {
        let Some(entry) = self.ledger.entry(id) else { return };
        if (entry.logged.is_none() || broken(Mutant::LoggedTwice))
            && let Some(decision) = entry.decision.or(justified)
        {
            self.write_down(id, decision, 0);
        }
    }

    // Writeback (§4.3).

    fn on_writeback(&mut self, now: Time, from: Party, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        match self.ledger.entry(id) {
            Some(entry) if entry.decision.is_some() => return,
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
                if certificate.decision == Decision::Abort
                    && !broken(Mutant::MadeUpKept)
                    && let Err(refusal) = self.may_enter_aborted(now, from.into(), transaction)
                {
                    self.refuse(from, Subject::Transaction(id), refusal, out);
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
            (None, Some(transaction)) => self.ledger.enter(transaction, now, author(transaction)).transaction.clone(),
            (None, None) => return,
        };
        if certificate.fits(&self.cluster, &transaction).is_err() {
            return;
        }
        // Late, its vote's segment may be let go before this record is folded: then it stands alone.
        let late = transaction.timestamp().time <= self.watermark(now);
        let decision = certificate.decision;
        let alone = (late || !known_by_vote) && !broken(Mutant::EndNamedOnly);
        let record = Record::Decided { transaction: alone.then_some(transaction), id, decision };
        if !broken(Mutant::EndUnwritten) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
        match decision {
            Decision::Commit => self.counts.committed += 1,
            Decision::Abort => self.counts.aborted += 1,
        }
        let mut waiting: Vec<Party> = Vec::new();
        if let Some(entry) = self.ledger.entry_mut(id) {
            waiting.extend(std::mem::take(&mut entry.askers));
            waiting.extend(entry.fallback.iter_mut().flat_map(|fallback| std::mem::take(&mut fallback.interested)));
        }
        self.ballots.forget(id);
        self.proven.push_back((now, id));
        for dependent in self.ledger.conclude(id, decision, Some(certificate)) {
            self.dependency_ended(dependent, decision, out);
        }
        for party in waiting {
            self.answer_known(now, party, id, out);
        }
    }

    /// L15 to L19, for a transaction whose vote waited.
    pub(crate) fn dependency_ended(&mut self, id: TransactionId, decision: Decision, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() || entry.decision.is_some() {
            return;
        }
        match decision {
            Decision::Abort if !broken(Mutant::DependencyAbortForgiven) => {
                self.cast(id, Vote::Abort, Some(Cause::DependencyAborted), None, out); // L16-18
            }
            Decision::Abort | Decision::Commit => {
                entry.waiting_for = entry.waiting_for.saturating_sub(1);
                if entry.waiting_for == 0 {
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
        }
    }

    pub(crate) fn refuse(&mut self, to: Party, subject: Subject, refusal: Refusal, out: &mut Out<M>) {
        self.counts.refused += 1;
        out.send(to, Message::Refused { subject, refusal });
    }

    // What time brings.

    /// Nothing below is remembered or may be read, in nanoseconds. A clock set back does not lower it.
    pub(crate) fn watermark(&self, now: Time) -> u64 {
        let by_clock = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        let horizon = if broken(Mutant::HorizonIgnored) { 0 } else { self.ledger.horizon() };
        by_clock.max(self.ledger.store.watermark().time.saturating_add(1)).max(horizon)
    }

    /// No transaction below is voted on at its author's word alone, in nanoseconds.
    fn youngest_watermark(&self, now: Time) -> u64 {
        self.watermark(now).max(now.0.saturating_sub(self.options.window_ms * 500_000))
    }

    fn on_tick(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        while self.unauthored.front().is_some_and(|(since, _)| since.after_ms(self.options.authorship_grace_ms) <= now) {
            let Some((_, id)) = self.unauthored.pop_front() else { break };
            if self.is_unauthored(id) && !broken(Mutant::StrangerKept) {
                self.cast(id, Vote::Abort, Some(Cause::NotAuthored), None, out);
            }
        }
        self.inquiries.prune(now, &self.ledger);
        self.look_after_left(now, out);
        let stale = self.proven.partition_point(|(since, _)| since.after_ms(PROOF_FRESH_MS) <= now);
        for (_, id) in self.proven.drain(..stale) {
            if let Some(entry) = self.ledger.entry_mut(id) {
                entry.certificate = None;
            }
        }
        if self.fold_poll_at.is_some_and(|at| at <= now) {
            self.look_after_fold(now)?;
        }
        if self.checkpoint_at <= now {
            self.checkpoint(now)?;
        }
        Ok(())
    }

    /// Forgets decided transactions below the watermark, lets go of segments, first writing the undecided ones there
    /// down anew so that they outlive them, and folds when memory or journal have grown over their bounds.
    fn checkpoint(&mut self, now: Time) -> Result<(), StoreError> {
        self.checkpoint_at = now.after_ms(self.options.checkpoint_ms);
        let undecided = self.ledger.forget_below(Timestamp::new(self.watermark(now), ClientId(0)));
        let folded = if broken(Mutant::ReleasedUnfolded) { u64::MAX } else { self.folded };
        if self.segments.front().is_some_and(|(_, highest)| *highest < folded) {
            undecided.into_iter().filter(|_| !broken(Mutant::AnewUnwritten)).for_each(|id| self.write_down_anew(id));
            self.ledger.write_forgotten();
        }
        while self.segments.front().is_some_and(|(_, highest)| *highest < folded) {
            let Some((segment, _)) = self.segments.pop_front() else { break };
            self.ledger.store.sync()?; // What was written anew is durable before its first copy goes.
            self.ledger.store.release(segment)?;
        }
        let store = &mut self.ledger.store;
        let grown = store.overlay_bytes() > self.options.overlay_bytes_max || store.journal_bytes() > self.options.journal_bytes_max;
        if grown && self.fold_poll_at.is_none() {
            // Every segment before the new one is closed. No record there has a timestamp above the highest so far; and
            // however old what it holds is, only a fold that begins from now on has all of it.
            let current = store.rotate()?;
            if !broken(Mutant::BoundsLetGo) {
                self.ledger.write_bounds();
            }
            let highest = self.ledger.highest().max(self.folded);
            self.segments.push_back((SegmentNumber(current.0.saturating_sub(1)), highest));
            self.fold_wanted = now.0.saturating_sub(self.options.window_ms * 1_000_000);
            self.begin_fold(now)?;
        }
        Ok(())
    }

    fn begin_fold(&mut self, now: Time) -> Result<(), StoreError> {
        if self.ledger.store.fold(Timestamp::new(self.fold_wanted, ClientId(0)))? {
            self.fold_poll_at = Some(now.after_ms(FOLD_POLL_MS));
        }
        Ok(())
    }

    /// A fold ends in bounded steps, and takes a bounded number of versions: the next begins at once until all are folded.
    fn look_after_fold(&mut self, now: Time) -> Result<(), StoreError> {
        self.fold_poll_at = Some(now.after_ms(FOLD_POLL_MS));
        if let Some(watermark) = self.ledger.store.fold_finished()? {
            self.folded = watermark.time;
            self.fold_poll_at = None;
            if watermark.time < self.fold_wanted {
                self.begin_fold(now)?;
            }
        }
        Ok(())
    }

    fn write_down_anew(&mut self, id: TransactionId) {
        let Some(entry) = self.ledger.entry(id) else { return };
        let transaction = entry.transaction.clone();
        let voted = entry.vote.map(|vote| Record::Voted { transaction: transaction.clone(), vote });
        let logged = entry.logged.map(|(decision, view)| Record::Logged { transaction: Some(transaction), id, decision, view });
        let risen = entry.fallback.as_ref().map(|fallback| Record::Risen { id, view: fallback.view });
        for record in voted.into_iter().chain(logged).chain(risen) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
    }
}

/// The most parties that may wait for one vote; those who come later ask again. The author always finds a place.
pub(crate) const ASKERS_MAX: usize = 64;
/// The most bytes of values and transactions in one read reply.
pub(crate) const READ_REPLY_BYTES_MAX: usize = 8 << 20;
/// How long the proof of a transaction's end is kept at hand, for those who come late, in milliseconds.
const PROOF_FRESH_MS: u64 = 3_000;
/// How often a fold is looked after, in milliseconds.
const FOLD_POLL_MS: u64 = 3;

fn note_asker(entry: &mut Entry, from: Party) {
    let authored = is_author(from, &entry.transaction);
    if !entry.askers.contains(&from) && (entry.askers.len() < ASKERS_MAX || (authored && entry.askers.len() < 2 * ASKERS_MAX)) {
        entry.askers.push(from);
    }
}

fn is_author(party: Party, transaction: &Transaction) -> bool {
    matches!(party, Party::Client(client, _) if client == transaction.timestamp().client)
}

fn author(transaction: &Transaction) -> Payer {
    Payer::Client(transaction.timestamp().client)
}

/// Takes one journal record back in.
fn restore<M: Medium>(cluster: &Arc<Cluster>, ledger: &mut Ledger<M>, record: Bytes, now: Time) -> Result<(), DecodeError> {
    match Record::from_bytes(record, cluster.id())? {
        Record::Voted { transaction, vote } => {
            let id = transaction.id();
            let entry = ledger.enter(&transaction, now, author(&transaction));
            if entry.vote.is_none() {
                entry.vote = Some(vote);
                if vote == Vote::Commit && entry.decision.is_none() {
                    ledger.prepare(id);
                }
            }
        }
        Record::Logged { transaction, id, decision, view } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now, author(transaction));
            }
            if let Some(entry) = ledger.entry_mut(id) {
                entry.logged = Some((decision, view));
                entry.rise(view, now);
            }
        }
        Record::Risen { id, view } => {
            // Whoever rises has a decision. Where there is none, its segment was let go after the transaction had ended.
            if let Some(entry) = ledger.entry_mut(id).filter(|entry| entry.logged.is_some()) {
                entry.rise(view, now);
            }
        }
        Record::Readable { up_to } => ledger.was_readable(up_to),
        Record::Horizon { below } => ledger.had_horizon(below),
        Record::Rested { id, versions } => ledger.rest(id, versions),
        Record::Forgotten { complete_from, names } => ledger.had_forgotten(complete_from, names),
        Record::Decided { transaction, id, decision } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now, author(transaction));
            }
            // Where the transaction is not known, its segment was let go after its writes were folded.
            if ledger.entry(id).is_some_and(|entry| entry.decision.is_none()) {
                ledger.conclude(id, decision, None);
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
        let stalled = self.watch.deadline(self.options.stall_ms);
        let unauthored = self.unauthored.front().map(|(since, _)| since.after_ms(self.options.authorship_grace_ms));
        let stale = self.proven.front().map(|(since, _)| since.after_ms(2 * PROOF_FRESH_MS));
        [Some(self.checkpoint_at), self.fold_poll_at, stalled, unauthored, stale].into_iter().flatten().min()
    }
}

impl<M: Medium> Durable for Replica<M> {
    type Failure = StoreError;

    /// The first failure of the store is final: the process must end, and come back from what is really on the disk.
    fn persist(&mut self) -> Result<(), StoreError> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.failed => Err(StoreError::Closed("an earlier failure ended this replica".to_owned())),
            None => self.ledger.store.sync(),
        }
    }
}
