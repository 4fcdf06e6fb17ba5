//! A replica: answers reads, votes once on each transaction, logs decisions, and learns how transactions end.
//!
//! This file has a transaction's whole way at a replica: which message goes where, the vote (ST1, §4.2), the logged decision
//! (ST2), and the conclusion (§4.3). Algorithm 1 itself is in [`crate::check`], and what the replica knows in
//! `transaction_table.rs`. The folder has the rest: `reads` (§4.1), `scans` and `past_readers`; `recovery` and `stall_detector` (§5); `admission`, which
//! limits what is taken in and shown, `client_limits` and `held_off`; and what a finite memory and journal require: `housekeeping`, `restart`,
//! [`orphan_resolution`] and `abandonment_limiter`. Whoever missed something takes it over from the others by
//! [`catch_up`], whoever lost its disk comes back by [`rebuild`], and whoever was put back to an older copy of it stops (`older_copy`).

mod abandonment_limiter;
mod admission;
pub mod catch_up;
mod client_limits;
mod early_requests;
mod held_off;
mod housekeeping;
mod interface;
mod older_copy;
pub mod orphan_resolution;
mod past_readers;
mod reads;
pub mod rebuild;
mod recovery;
mod restart;
mod scans;
mod stall_detector;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crypto::Verified;
use engine::Divergences;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time, Voters};
use mutants::{Mutant, broken};
use store::{KeyMeta, SegmentNumber, StorageBackend, Store, StoreError};
use types::codec::Encode as _;
use types::{ClientId, Cluster, Party, ReplicaId, TransactionId};

use self::abandonment_limiter::AbandonmentLimiter;
use self::admission::{author, is_author, note_requester};
use self::catch_up::CatchUp;
use self::client_limits::ReadLimiter;
use self::early_requests::{EarlyRequest, EarlyRequests};
use self::held_off::HeldOff;
use self::housekeeping::Sweep;
use self::older_copy::OlderCopy;
use self::orphan_resolution::{Answer, StatusQueries};
use self::past_readers::PastReaders;
use self::rebuild::Rebuild;
use self::stall_detector::StallTimers;
use crate::certificate::{Certificate, Decision, SignedVote, Vote, VoteStatement, logging_shard};
use crate::check::{AbortReason, Bounds, check};
use crate::commit_relay::Relays;
use crate::message::{Conflict, Message, Refusal, Subject, Unsigned};
use crate::quorum::Quorums;
use crate::record::Record;
use crate::recovery::Ballots;
use crate::transaction::Transaction;
use crate::transaction_state::{Phase, Purpose, Quota, TransactionState};
use crate::transaction_table::TransactionTable;

pub use self::interface::{ReplicaCounts, ReplicaEvent, ReplicaOptions};
pub use self::restart::RecoverError;

/// One replica of one shard.
pub struct Replica<M: StorageBackend> {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: ReplicaOptions,
    is_new: bool,
    /// Whether its clock was set since this process began.
    has_time: bool,
    /// What lies below, in nanoseconds, is voted down, unless it was voted on before this process began.
    judges_from: u64,
    table: TransactionTable<M>,
    counts: ReplicaCounts,
    /// Election messages, for the transactions and views that this replica may lead.
    ballots: Ballots,
    /// What clients have left to others.
    abandonment_limiter: AbandonmentLimiter,
    /// What clients have read whom the configuration limits.
    read_limiter: ReadLimiter,
    /// Clients that were seen to lie, with the keys that they had.
    liars: BTreeMap<ClientId, [u8; 32]>,
    /// Requests that came before their time.
    early: EarlyRequests,
    /// Who reads the past page by page.
    past_readers: PastReaders,
    /// Keys whose writers were held off by readers of late.
    held_off: HeldOff,
    /// What others have said of old transactions that this replica holds undecided.
    status_queries: StatusQueries,
    /// What is compared with the others' of the shard, and what they say that this replica lacks.
    catch_up: CatchUp,
    /// What of its own was found to be wrong when it was compared.
    divergences: Divergences,
    /// What others have shown since this replica lost its disk.
    rebuild: Rebuild,
    /// Who knows that its data are an older copy.
    older_copy: OlderCopy,
    /// The first failure of the store, until it is told; from then on nothing is done and nothing is said.
    failure: Option<StoreError>,
    failed: bool,
    /// When to look at undecided transactions, lest they were left.
    stall_timers: StallTimers,
    /// Transactions brought by others than their author, in the order in which they were.
    unauthored: VecDeque<(Time, TransactionId)>,
    /// When to clean up, or to take the next step of it.
    checkpoint_at: Time,
    sweep: Option<Sweep>,
    /// Up to when [`Replica::expire_readers`] has done its part.
    expired_at: Time,
    /// While a checkpoint is under way: when to look after it.
    checkpoint_poll_at: Option<Time>,
    /// Up to where the running checkpoints are to reach, in nanoseconds.
    checkpoint_wanted: u64,
    /// Whether a checkpoint follows that takes less than a full one.
    checkpoint_all: bool,
    /// Closed journal segments, oldest first, each with the highest timestamp it can hold.
    segments: VecDeque<(SegmentNumber, u64)>,
    /// The bytes of the journal when the last of them was closed, less what was released since.
    journal_bytes_closed: u64,
    /// The newest watermark whose checkpoint is known to be durable.
    checkpointed: u64,
}

type Out<M> = OutboxOf<Replica<M>>;

impl<M: StorageBackend> Replica<M> {
    /// Who this is.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.me
    }

    /// What it was started with.
    pub(crate) fn options(&self) -> &ReplicaOptions {
        &self.options
    }

    /// What has been done since the start.
    #[must_use]
    pub fn counts(&self) -> &ReplicaCounts {
        &self.counts
    }

    /// How many transactions are known, and how many of them undecided.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.table.tracked(), self.table.undecided())
    }

    /// The memory that decided transactions take, in bytes.
    #[must_use]
    pub fn decided_bytes(&self) -> usize {
        self.table.decided_bytes()
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

    /// The cluster that it goes by.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The store, for its statistics.
    #[must_use]
    pub fn store(&self) -> &Store<M, impl KeyMeta> {
        &self.table.store
    }

    /// Takes in a message that has just come.
    fn receive(&mut self, now: Time, from: Party, message: Message, out: &mut Out<M>) -> Result<(), StoreError> {
        let Some(message) = self.hear_while_rebuilding(from, message, out) else { return Ok(()) };
        match self.keep_early(now, from, message, out) {
            Some(message) => self.dispatch(now, now, from, message, out),
            None => Ok(()),
        }
    }

    /// Does what a message wants that came at `since`.
    fn dispatch(&mut self, now: Time, since: Time, from: Party, message: Message, out: &mut Out<M>) -> Result<(), StoreError> {
        if let Some(transaction) = message.asked_about().filter(|transaction| !self.may_ask(from, transaction)) {
            self.refuse(from, Subject::Transaction(transaction.id()), Refusal::NotPermitted, out);
            return Ok(());
        }
        if let Some(transaction) =
            message.asked_about().filter(|transaction| self.table.lost_what_was_said_at(transaction.timestamp().time))
        {
            // Nothing but the proof of its end. No refusal, either: enough of these would say that nobody voted for it.
            self.repeat_answer(now, from, transaction.id(), out);
            return Ok(());
        }
        match message {
            Message::Read { request, timestamp, keys } => self.on_read(now, since, from, (request, timestamp), &keys, out),
            Message::Scan { request, timestamp, range, direction, limit } => {
                self.on_scan(now, since, from, (request, timestamp), (&range, direction, limit), out)
            }
            Message::ClockQuery { asked_at, journal: _ } => {
                out.send(from, Message::ClockReply { asked_at, clock: self.table.clock(now) });
                Ok(())
            }
            Message::Prepare { transaction } => self.on_prepare(now, from, Purpose::Prepare, transaction, out),
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
            Message::CommitsQuery { first, digests } => {
                self.on_commits_query(now, from, first, &digests, out);
                Ok(())
            }
            Message::CommitsReply { ids } => {
                self.on_commits_reply(now, from, &ids, out);
                Ok(())
            }
            Message::TransactionsQuery { ids } => {
                self.on_transactions_query(now, from, &ids, out);
                Ok(())
            }
            Message::TransactionsReply { transactions } => {
                self.on_transactions_reply(now, from, &transactions, out);
                Ok(())
            }
            Message::VersionsQuery { query } => self.on_versions_query(now, from, &query, out),
            Message::VersionsReply { page, versions, next } => self.on_versions_reply(now, from, page, versions, next),
            Message::UndecidedQuery { up_to, after } => {
                self.on_undecided_query(now, from, up_to, after, out);
                Ok(())
            }
            Message::UndecidedReply { up_to, after, transactions, is_last } => {
                self.on_undecided_reply(now, from, (up_to, after), &transactions, is_last, out)
            }
            // Replies; the coordinator beside this machine hears those, or the clock.
            Message::ReadReply { .. }
            | Message::ScanReply { .. }
            | Message::ClockProposal { .. }
            | Message::JournalKnown { .. }
            | Message::ClockReply { .. }
            | Message::Voted { .. }
            | Message::Logged { .. }
            | Message::Decided { .. }
            | Message::Refused { .. } => Ok(()),
        }
    }

    fn note_failure(&mut self, done: Result<(), StoreError>) {
        if let Err(failure) = done {
            self.failure = Some(failure);
            self.failed = true;
        }
    }

    /// Something of a client's was refused before it came here.
    pub(crate) fn note_refused(&mut self) {
        self.counts.refused += 1;
    }

    fn refuse(&mut self, to: Party, subject: Subject, refusal: Refusal, out: &mut Out<M>) {
        self.counts.refused += 1;
        out.send(to, Message::Refused { subject, refusal });
    }
}

/// Voting: ST1 (Basil §4.2), and RP (§5), by which somebody else asks for the same vote.
impl<M: StorageBackend> Replica<M> {
    /// ST1 (§4.2).
    fn on_prepare(
        &mut self,
        now: Time,
        from: Party,
        purpose: Purpose,
        transaction: Transaction,
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if self.repeat_answer(now, from, transaction.id(), out) {
            return Ok(());
        }
        let authored = is_author(from, &transaction);
        if !authored && self.vote_abort_late(now, from, &transaction, out) {
            return Ok(());
        }
        let oldest = if authored && broken(Mutant::LateRefused) { self.youngest_watermark(now) } else { self.watermark(now) };
        let owner = if broken(Mutant::AuthorCharged) { author(&transaction) } else { from.into() };
        let admitted = self.may_begin(now, from, &transaction);
        if let Err(refusal) = admitted.and_then(|()| self.may_enter(now, oldest, Quota { purpose, owner }, &transaction)) {
            if !authored && self.log_from_tombstone(now, from, &transaction, &[], out) {
                return Ok(());
            }
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        let transaction = self.enter(now, from, purpose, transaction);
        self.note_authored(transaction.id(), authored);
        if authored && transaction.timestamp().time < self.youngest_watermark(now) && !broken(Mutant::WindowUnhalved) {
            // Not refused: the author could take that to mean that it never happens, while others finish it with this vote.
            self.cast(transaction.id(), Vote::Abort, Some(AbortReason::TooOld), None, out);
            return Ok(());
        }
        if authored || broken(Mutant::AuthorUnasked) { self.vote(now, &transaction, out) } else { self.await_author(now, transaction.id()) }
    }

    /// RP (§5): like ST1 from somebody who need not be the author.
    ///
    /// The paper lets a replica vote on whatever a finisher brings. Here nobody signs a request, so a replica votes only on
    /// what the author's own channel brought, or what `f + 1` replicas of one shard voted to commit: one of them is
    /// correct, and the first correct one had it from the author. (A vote to abort shows nothing, being what a replica
    /// says of what no author brought.) What never gets there is voted down after a timeout, so that everything ends
    /// and nobody commits in another's name.
    fn on_recover(
        &mut self,
        now: Time,
        from: Party,
        transaction: &Transaction,
        evidence: &[SignedVote],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if evidence.is_empty() || self.table.get(transaction.id()).is_some_and(|state| state.vote().is_some() || state.is_prepared()) {
            let purpose = if is_author(from, transaction) { Purpose::Prepare } else { Purpose::Finish };
            return self.on_prepare(now, from, purpose, transaction.clone(), out);
        }
        if self.repeat_answer(now, from, transaction.id(), out) && !self.is_unauthored(transaction.id()) {
            return Ok(());
        }
        if self.vote_abort_late(now, from, transaction, out) {
            return Ok(());
        }
        let admitted = self.may_begin(now, from, transaction);
        if let Err(refusal) = admitted.and_then(|()| self.may_enter(now, self.watermark(now), Quota::finish(from), transaction)) {
            if self.log_from_tombstone(now, from, transaction, &[], out) {
                return Ok(());
            }
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, Purpose::Finish, transaction.clone());
        if self.shows_authorship(transaction, evidence) {
            self.note_authored(transaction.id(), true);
            self.vote(now, transaction, out)
        } else {
            self.await_author(now, transaction.id())
        }
    }

    /// Whether `from` may bring its own `transaction`: not while it has left too many for others to end.
    fn may_begin(&self, now: Time, from: Party, transaction: &Transaction) -> Result<(), Refusal> {
        let over_limit = self.abandonment_limiter.over_limit(now, transaction.timestamp().client);
        match over_limit.filter(|_| is_author(from, transaction)) {
            Some(after_ms) => Err(Refusal::AbandonLimit { after_ms }),
            None => self.within_limits(from, transaction),
        }
    }

    fn note_authored(&mut self, id: TransactionId, authored: bool) {
        if let Some(state) = self.table.get_mut(id) {
            state.authored |= authored;
        }
    }

    /// What comes to be finished when it can no longer be judged is voted down by a replica that surely never said anything else of it
    /// ([`crate::tombstones`]). So whoever was cut off, or down, for longer than the window still counts when others finish what they
    /// began meanwhile. `false` when it can be judged, or may have been forgotten.
    fn vote_abort_late(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        if transaction.timestamp().time >= self.watermark(now) || !self.table.remembers(transaction) || broken(Mutant::PastEntered) {
            return false;
        }
        let id = transaction.id();
        if let Err(refusal) = self.may_enter(now, 0, Quota::finish(from), transaction) {
            self.refuse(from, Subject::Transaction(id), refusal, out);
            return true;
        }
        self.enter(now, from, Purpose::Finish, transaction.clone());
        if let Some(state) = self.table.get_mut(id) {
            state.awaits_author = true; // Its end is a matter of those who hold it: the janitor here leaves it to them.
        }
        self.cast(id, Vote::Abort, Some(AbortReason::TooOld), None, out);
        true
    }

    /// `f + 1` distinct replicas of one shard that the transaction touches have voted to commit it.
    fn shows_authorship(&self, transaction: &Transaction, evidence: &[SignedVote]) -> bool {
        transaction.participants(&self.cluster).into_iter().any(|shard| {
            let mut voters = Voters::default();
            for vote in evidence.iter().filter(|vote| vote.replica.shard == shard && vote.statement.vote == Vote::Commit) {
                voters.insert(vote.replica.index);
            }
            voters.count() >= if broken(Mutant::EvidenceOfOne) { 1 } else { self.quorums.weak() }
        })
    }

    fn is_unauthored(&self, id: TransactionId) -> bool {
        self.table.get(id).is_some_and(TransactionState::is_unjudged)
    }

    fn await_author(&mut self, now: Time, id: TransactionId) -> Result<(), StoreError> {
        if let Some(state) = self.table.get_mut(id)
            && !std::mem::replace(&mut state.awaits_author, true)
        {
            self.unauthored.push_back((now, id));
        }
        Ok(())
    }

    /// A known transaction is not judged again: repeats to `from` what this replica has said of it, or notes that `from` waits for the
    /// vote; where it knows the outcome and has not voted, it votes accordingly now. `false` if the check still has to run.
    fn repeat_answer(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) -> bool {
        let Some(state) = self.table.get(id) else { return false };
        if let Some(certificate) = self.table.proof_of(state).filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate: certificate.clone() }); // RPR (iii)
            return true;
        }
        if self.is_resurrected(now, id) {
            return true;
        }
        self.state_outcome(id, out);
        self.tell_logged(from, id, out); // RPR (ii)
        if let Some(vote) = self.table.get(id).and_then(TransactionState::vote).filter(|_| !broken(Mutant::VoteReconsidered)) {
            self.counts.votes_repeated += 1;
            let statement = VoteStatement { id, vote };
            out.sign(from, Unsigned::Vote { replica: self.me, statement, conflict: None }); // RPR (i)
            return true;
        }
        let Some(state) = self.table.get_mut(id) else { return false };
        note_requester(state, from);
        // Else known by a logged decision alone, or still waiting for its author. One whose values were let go has ended, and is not judged.
        state.is_prepared() || !state.transaction.is_whole()
    }

    /// True if it ended and lies below the watermark, or this replica lost its disk since. Then it may have been forgotten and have come back with a late writeback, so this
    /// replica does not know what it once voted, logged or elected, and makes no such statement again.
    fn is_resurrected(&self, now: Time, id: TransactionId) -> bool {
        let Some(state) = self.table.get(id) else { return false };
        let time = state.transaction.timestamp().time;
        (state.decision().is_some() && time < self.watermark(now) && !broken(Mutant::ResurrectedVotes))
            || self.table.lost_what_was_said_at(time)
    }

    /// A replica that learned the outcome before it voted or logged now says so in both ways. The outcome is final, so neither statement
    /// changes anything. But whoever missed it, and comes when its proof is no longer kept, may need them to find a quorum again: too few
    /// may have voted, and then `n - f` logged decisions are the proof.
    fn state_outcome(&mut self, id: TransactionId, out: &mut Out<M>) {
        let Some(state) = self.table.get(id) else { return };
        let Some(decision) = state.decision() else { return };
        let (voted, is_logged_here) = (state.vote().is_some(), self.logs(&state.transaction));
        if state.logged.is_none() && is_logged_here && !broken(Mutant::OutcomeUnrepeated) {
            self.log_decision(id, decision, 0);
        }
        if !voted && !broken(Mutant::OutcomeUnvoted) {
            let vote = match decision {
                Decision::Commit => Vote::Commit,
                Decision::Abort => Vote::Abort,
            };
            self.cast(id, vote, None, None, out);
        }
    }

    /// Runs Algorithm 1, at most once a transaction.
    fn vote(&mut self, now: Time, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        let id = transaction.id();
        if !self.permitted(transaction) && !broken(Mutant::RightsIgnored) {
            self.cast(id, Vote::Abort, Some(AbortReason::NotPermitted), None, out);
            return Ok(());
        }
        let bounds = Bounds {
            newest: now.after_ms(self.options.time_bound_ms).0,
            oldest: self.watermark(now).max(self.judges_from),
            write_floor: self.table.write_floor(),
        };
        match check(&self.table.knowledge(transaction)?, transaction, bounds) {
            Ok(mut pending) => {
                if broken(Mutant::DependencyNotAwaited) {
                    pending.clear();
                }
                self.table.prepare(id, pending.len()); // L14-15
                for dependency in &pending {
                    if let Some(state) = self.table.get_mut(*dependency) {
                        state.add_dependent(id);
                    }
                }
                if pending.is_empty() {
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
            Err(abort_reason) => {
                if abort_reason == AbortReason::Misbehavior {
                    let client = transaction.timestamp().client;
                    let public_key = self.cluster.permission(client).map(|permission| permission.public_key);
                    out.emit(ReplicaEvent::Misbehavior { client, public_key, transaction: transaction.clone() });
                    self.refuse_known_liar(client);
                }
                if abort_reason == AbortReason::ReadTimestamp {
                    self.note_held_off(now, transaction);
                }
                let conflict = self.conflict_of(now, id, abort_reason);
                self.cast(id, Vote::Abort, Some(abort_reason), conflict, out);
                self.expedite_hidden(now, transaction, abort_reason, out);
            }
        }
        Ok(())
    }

    /// Casts the vote: on disk before anyone hears it, and never another. Who asked is told what stands in the way, if telling
    /// helps.
    fn cast(&mut self, id: TransactionId, vote: Vote, abort_reason: Option<AbortReason>, conflict: Option<Conflict>, out: &mut Out<M>) {
        let Some(state) = self.table.get(id) else { return };
        let is_cast = state.vote().is_some() && !broken(Mutant::VoteReconsidered);
        if is_cast || self.table.lost_what_was_said_at(state.transaction.timestamp().time) {
            return;
        }
        // Without its values it cannot be written down with a vote, and so gets none.
        let Some(transaction) = self.table.whole(state) else { return };
        let Some(state) = self.table.get_mut(id) else { return };
        let requesters = state.take_requesters();
        let record = Record::Voted { transaction, vote };
        if !broken(Mutant::VoteUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        match vote {
            Vote::Commit => self.counts.votes_commit += 1,
            Vote::Abort => {
                self.counts.votes_abort += 1;
                if let Some(abort_reason) = abort_reason {
                    self.counts.votes_abort_by[abort_reason.number()] += 1;
                }
            }
        }
        self.table.vote(id, vote, abort_reason);
        for requester in requesters {
            // Told once: who asks again wants the vote.
            let conflict = conflict.clone().filter(|conflict| self.may_see(requester, conflict.transaction()));
            out.sign(requester, Unsigned::Vote { replica: self.me, statement: VoteStatement { id, vote }, conflict });
        }
    }

    /// What stands in the way of transaction `id`, which is voted down for `abort_reason`, if telling helps (L8, L11) and anybody who asks may see it.
    fn conflict_of(&self, now: Time, id: TransactionId, abort_reason: AbortReason) -> Option<Conflict> {
        let other = abort_reason.conflicting()?;
        let (requesters, state) = (self.table.get(id)?.requesters(), self.table.get(other)?);
        if !requesters.iter().any(|requester| self.may_see(*requester, &state.transaction)) {
            return None;
        }
        match (state.decision(), self.table.proof_of(state)) {
            (Some(Decision::Commit), Some(certificate)) => {
                let transaction = self.table.whole(state)?;
                Some(Conflict::Committed { transaction, certificate: certificate.clone() })
            }
            (Some(_), _) => None,
            (None, _) => self.is_overdue(now, other).then(|| Conflict::Stalled { transaction: state.transaction.clone() }),
        }
    }

    /// L15 to L19, for a transaction whose vote waited.
    fn dependency_ended(&mut self, now: Time, id: TransactionId, decision: Decision, out: &mut Out<M>) {
        let Some(state) = self.table.get_mut(id) else { return };
        let Phase::Waiting { dependencies } = &mut state.phase else { return };
        match decision {
            Decision::Abort if !broken(Mutant::DependencyAbortForgiven) => {
                self.cast(id, Vote::Abort, Some(AbortReason::DependencyAborted), None, out); // L16-18
            }
            Decision::Abort | Decision::Commit => {
                *dependencies = dependencies.saturating_sub(1);
                if *dependencies > 0 {
                    return;
                }
                self.cast(id, Vote::Commit, None, None, out); // L19
            }
        }
        self.finish_next(now, id);
    }
}

/// Logging: ST2 (§4.2 (5), (6)), at the replicas of the logging shard.
impl<M: StorageBackend> Replica<M> {
    /// ST2 (§4.2 (5)), answered by ST2R (6).
    fn on_log(&mut self, now: Time, from: Party, transaction: &Transaction, decision: Decision, out: &mut Out<M>) {
        if self.log_from_tombstone(now, from, transaction, &[], out) {
            return;
        }
        // That the tallies are of the right shards and large enough was checked with their signatures.
        if self.admit_decision(now, from, transaction, out) {
            self.log_first_decision(transaction.id(), Some(decision));
            self.tell_logged(from, transaction.id(), out);
        }
    }

    /// Whether a decision on `transaction` is this replica's to log and still open, so that it is now entered.
    /// Else `from` is told why not.
    fn admit_decision(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        let id = transaction.id();
        if !self.logs(transaction) {
            self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
            return false;
        }
        if self.table.get(id).is_none() {
            let oldest = if self.table.remembers(transaction) { 0 } else { self.watermark(now) };
            if let Err(refusal) = self.may_enter(now, oldest, Quota::finish(from), transaction) {
                self.refuse(from, Subject::Transaction(id), refusal, out);
                return false;
            }
            self.stall_timers.met(now, transaction.id());
        }
        self.table.enter(transaction, now, Quota::finish(from));
        let certificate = self.table.get(transaction.id()).and_then(|state| self.table.proof_of(state)).cloned();
        if let Some(certificate) = certificate.filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate });
            return false;
        }
        !self.is_resurrected(now, id)
    }

    /// Logs a first decision: the outcome, if it is known here, else what `justified` votes allow. It stays until a leader decides
    /// otherwise. A replica without a decision is in view 0, so that is the view of this one.
    fn log_first_decision(&mut self, id: TransactionId, justified: Option<Decision>) {
        let Some(state) = self.table.get(id) else { return };
        if (state.logged.is_none() || broken(Mutant::LoggedTwice))
            && let Some(decision) = state.decision().or(justified)
        {
            self.log_decision(id, decision, 0);
        }
    }

    /// Logs how a transaction ends, as a client (in view 0) or a leader decided: once in each view.
    fn log_decision(&mut self, id: TransactionId, decision: Decision, view: u32) {
        if self.table.get(id).is_none_or(|state| self.table.lost_what_was_said_at(state.transaction.timestamp().time)) {
            return;
        }
        let Some(state) = self.table.get_mut(id) else { return };
        assert!(
            state.view() <= view || broken(Mutant::LowerViewAdopted) || broken(Mutant::LoggedTwice),
            "nothing is adopted from a view that was left"
        );
        let is_new = state.logged_in().is_none_or(|earlier| earlier < view);
        assert!(is_new || broken(Mutant::LoggedTwice) || broken(Mutant::DecidedTwice), "one decision is written down in a view");
        // An earlier record has the whole transaction if this replica voted on it, logged a decision on it, or knows how it ended.
        let is_recorded = state.vote().is_some() || state.logged.is_some() || state.decision().is_some();
        let transaction = (!is_recorded).then(|| state.transaction.clone());
        state.set_logged(decision, view);
        let record = Record::Logged { transaction, id, decision, view };
        if !broken(Mutant::DecisionUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        self.counts.logged += 1;
    }

    /// Tells `party` under this replica's signature what it has logged, if anything.
    fn tell_logged(&self, party: Party, id: TransactionId, out: &mut Out<M>) {
        if let Some(statement) = self.table.get(id).and_then(TransactionState::logged_statement) {
            out.sign(party, Unsigned::Logged { replica: self.me, statement });
        }
    }

    /// Whether decisions on `transaction` are logged on this replica's shard.
    fn logs(&self, transaction: &Transaction) -> bool {
        logging_shard(&transaction.participants(&self.cluster), transaction.id()) == Some(self.me.shard)
            || (broken(Mutant::LoggedAnywhere) && transaction.participants(&self.cluster).contains(&self.me.shard))
    }
}

/// Conclusion (§4.3): how the replica learns an outcome, and what follows from it. Whatever it learns it from, one function
/// concludes: [`Replica::conclude`].
impl<M: StorageBackend> Replica<M> {
    /// Somebody brings the proof of an outcome.
    fn on_writeback(&mut self, now: Time, from: Party, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        match (self.table.get(id), transaction) {
            (Some(state), _) if state.decision().is_some() => {
                self.author_came_back(now, from, &certificate, out);
                return;
            }
            (Some(_), _) => {}
            (None, Some(transaction)) => {
                if let Err(refusal) = self.may_enter_concluded(now, Quota::prepare(from), transaction, certificate.decision) {
                    self.refuse(from, Subject::Transaction(id), refusal, out);
                    return;
                }
                self.table.enter(transaction, now, Quota::prepare(author(transaction)));
            }
            (None, None) => {
                self.refuse(from, Subject::Transaction(id), Refusal::Unknown, out);
                return;
            }
        }
        let Some(transaction) = self.table.get(id).map(|state| state.transaction.clone()) else { return };
        if certificate.fits(&self.cluster, &transaction).is_ok() {
            let (decision, timestamp, is_author) = (certificate.decision, transaction.timestamp(), is_author(from, &transaction));
            self.conclude(now, transaction, decision, Some(certificate), out);
            if !is_author {
                self.charge_author(now, id);
            } else if timestamp.time >= self.watermark(now) {
                // What is older may have been forgotten, and told of before.
                Self::tell_committed(timestamp.client, decision, out);
            }
        }
    }

    /// Tells its own side that this author has brought its transaction to its end, if that is a commit.
    fn tell_committed(author: ClientId, decision: Decision, out: &mut Out<M>) {
        if decision == Decision::Commit {
            out.emit_silently(ReplicaEvent::Committed { client: author });
        }
    }

    /// Another replica says that `id` committed. That is so once `f + 1` of its relays say it.
    fn on_commit_notice(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) {
        let Party::Replica(relay) = from else { return };
        let Some(state) = self.table.get_mut(id) else { return };
        let relays = |relays: Relays| relays.contains(relay) || broken(Mutant::AnyoneRelays);
        if !state.heeds_notices() || !Relays::of(&self.cluster, &state.transaction).is_some_and(relays) {
            return;
        }
        state.commit_notices.insert(relay.index);
        let needed = if broken(Mutant::CommitNoticeOfOne) { 1 } else { self.quorums.weak() };
        if state.commit_notices.count() < needed {
            return;
        }
        let (transaction, author) = (state.transaction.clone(), state.transaction.timestamp().client);
        match state.conclusion_mut() {
            Some(conclusion) => {
                if let Some(until) = conclusion.abandoned_until.take() {
                    self.abandonment_limiter.forgive(now, &transaction, until);
                    Self::tell_committed(author, Decision::Commit, out);
                }
            }
            None => {
                self.conclude(now, transaction, Decision::Commit, None, out);
                Self::tell_committed(author, Decision::Commit, out); // Relays tell at its author's wish alone.
            }
        }
    }

    /// `transaction`, which is in the table, has ended: logs that, concludes it in the table, lets those vote who waited for it, and
    /// answers whoever waited for this replica.
    fn conclude(
        &mut self,
        now: Time,
        transaction: Transaction,
        decision: Decision,
        certificate: Option<Arc<Certificate>>,
        out: &mut Out<M>,
    ) {
        let id = transaction.id();
        let known_by_vote = self.table.get(id).is_some_and(|state| state.vote().is_some());
        let is_authored = self.table.get(id).is_some_and(|state| state.authored) || broken(Mutant::TurnUnauthored);
        // The segment that holds an old transaction's vote may be released before this record is checkpointed. Then the record must
        // stand alone.
        let is_late = transaction.timestamp().time <= self.watermark(now);
        let stands_alone = (is_late || !known_by_vote) && !broken(Mutant::OutcomeWithoutTransaction);
        let record = Record::Decided { transaction: stands_alone.then(|| transaction.clone()), id, decision };
        if !broken(Mutant::OutcomeUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        let mut waiting: Vec<Party> = Vec::new();
        if let Some(state) = self.table.get_mut(id) {
            self.counts.count_conclusion(decision, certificate.as_deref(), now.since(state.since));
            waiting.extend(state.take_requesters());
            let election = state.logged.as_mut().and_then(|logged| logged.election.as_mut());
            waiting.extend(election.into_iter().flat_map(|election| std::mem::take(&mut election.interested)));
        }
        if is_authored && decision == Decision::Abort {
            self.note_aborted_reader(now, &transaction);
        }
        drop((record, transaction)); // Where nobody else has it, the table changes it in its place.
        self.ballots.forget(id);
        let proof = certificate.map(|certificate| self.table.proofs.keep(now, certificate));
        for dependent in self.table.conclude(id, decision, proof) {
            self.dependency_ended(now, dependent, decision, out);
        }
        for party in waiting {
            self.repeat_answer(now, party, id, out);
        }
    }

    /// Counts a transaction that somebody else ended against its author.
    fn charge_author(&mut self, now: Time, id: TransactionId) {
        if let Some(TransactionState { transaction, authored: true, phase: Phase::Concluded(conclusion), .. }) = self.table.get_mut(id) {
            conclusion.abandoned_until = Some(self.abandonment_limiter.abandoned(now, transaction));
            self.counts.abandoned += 1;
        }
    }

    /// An author that ends its own transaction has not abandoned it, however late it comes.
    fn author_came_back(&mut self, now: Time, from: Party, certificate: &Certificate, out: &mut Out<M>) {
        if let Some(TransactionState { transaction, phase: Phase::Concluded(conclusion), .. }) = self.table.get_mut(certificate.id)
            && let Some(until) = conclusion.abandoned_until
            && is_author(from, transaction)
            && conclusion.decision == certificate.decision
            && certificate.fits(&self.cluster, transaction).is_ok()
        {
            conclusion.abandoned_until = None;
            self.abandonment_limiter.forgive(now, transaction, until);
            Self::tell_committed(transaction.timestamp().client, certificate.decision, out);
        }
    }

    /// The author asks this replica to tell the others of a commit ([`crate::commit_relay`]). It does so only at the author's wish and
    /// with the proof, so that whoever is told knows that the author has not abandoned the transaction; and only once, so that nobody can
    /// have it repeated.
    fn relay(&mut self, from: Party, certificate: &Certificate, out: &mut Out<M>) {
        let id = certificate.id;
        let Some(state) = self.table.get_mut(id) else { return };
        let TransactionState { transaction, phase: Phase::Concluded(conclusion), .. } = state else { return };
        let is_asked = Relays::of(&self.cluster, transaction).is_some_and(|relays| relays.contains(self.me)) && !conclusion.is_relayed;
        let is_wished = is_author(from, transaction) || broken(Mutant::RelayedForAnyone);
        let is_proven = certificate.decision == Decision::Commit && certificate.fits(&self.cluster, transaction).is_ok();
        let is_known = conclusion.decision == Decision::Commit && (is_proven || broken(Mutant::RelayedUnproven));
        if !is_asked || !is_wished || !is_known || broken(Mutant::CommitUnrelayed) {
            return;
        }
        conclusion.is_relayed = true;
        let shards = transaction.participants(&self.cluster).into_iter();
        for replica in shards.flat_map(|shard| self.cluster.replicas_of(shard)).filter(|replica| *replica != self.me) {
            out.send(Party::Replica(replica), Message::CommitNotice { id });
        }
    }
}

impl<M: StorageBackend> Machine for Replica<M> {
    type Command = std::convert::Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Unsigned;
    type Event = ReplicaEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        if self.failed {
            return;
        }
        self.begin_rebuilding(now);
        let done = match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.receive(now, from, message.into_inner(), outbox),
            Input::Tick => self.on_tick(now, outbox),
        };
        self.note_failure(done);
    }

    fn prefetch(&self, now: Time, from: Party, next: &[Verified<Message>]) {
        let Party::Client(client, _) = from else { return self.table.prefetch(next.iter().map(|message| &**message), |_| false) };
        // What will be refused is not read from the disk.
        let permission = self.cluster.permission(client).filter(|_| self.may_read_more(now, from).is_ok());
        self.table.prefetch(next.iter().map(|message| &**message), |key| permission.is_some_and(|permission| permission.may_read(key)));
    }

    fn deadline(&self) -> Option<Time> {
        self.due()
    }

    fn take_due(&mut self, now: Time) -> Option<Party> {
        if self.failed { None } else { self.early.take_due(now) }
    }

    fn serve_kept(&mut self, now: Time, from: Party, outbox: &mut OutboxOf<Self>) {
        if self.failed {
            return;
        }
        let Some(EarlyRequest { from, message, since, .. }) = self.early.next_due_of(from.into()) else { return };
        self.begin_rebuilding(now);
        let done = self.dispatch(now, since, from, message, outbox);
        self.note_failure(done);
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
