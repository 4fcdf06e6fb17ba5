//! How a replica votes: ST1 (basil.txt §4.2), and RP (§5), by which somebody else asks for the same. Algorithm 1 itself is in
//! [`crate::check`].

use crate::transaction::Transaction;
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError};
use types::codec::Encode as _;
use types::{Party, TransactionId};

use super::admission::{author, note_requester};
use super::rights::is_author;
use super::{Out, Replica, ReplicaEvent};
use crate::certificate::{Decision, SignedVote, Vote, VoteStatement};
use crate::check::{AbortReason, Bounds, check};
use crate::message::{Conflict, Draft, Message, Refusal, Subject};
use crate::record::Record;
use crate::transaction_state::{Phase, TransactionState};

impl<M: StorageBackend> Replica<M> {
    /// ST1 (§4.2).
    pub(super) fn on_prepare(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.answer_known(now, from, transaction.id(), out) {
            return Ok(());
        }
        let authored = is_author(from, transaction);
        if !authored && self.vote_abort_late(now, from, transaction, out) {
            return Ok(());
        }
        let oldest = if authored && broken(Mutant::LateRefused) { self.youngest_watermark(now) } else { self.watermark(now) };
        let quota_owner = if broken(Mutant::AuthorCharged) { author(transaction) } else { from.into() };
        if let Err(refusal) = self.may_begin(now, from, transaction).and_then(|()| self.may_enter(now, oldest, quota_owner, transaction)) {
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, transaction);
        self.note_authored(transaction.id(), authored);
        if authored && transaction.timestamp().time < self.youngest_watermark(now) && !broken(Mutant::WindowUnhalved) {
            // Not refused: the author could take that to mean that it never happens, while others finish it with this vote.
            self.cast(transaction.id(), Vote::Abort, Some(AbortReason::TooOld), None, out);
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
    pub(super) fn on_recover(
        &mut self,
        now: Time,
        from: Party,
        transaction: &Transaction,
        evidence: &[SignedVote],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if evidence.is_empty() || self.table.get(transaction.id()).is_some_and(|state| state.vote().is_some() || state.is_prepared()) {
            return self.on_prepare(now, from, transaction, out);
        }
        if self.answer_known(now, from, transaction.id(), out) && !self.is_unauthored(transaction.id()) {
            return Ok(());
        }
        if self.vote_abort_late(now, from, transaction, out) {
            return Ok(());
        }
        let admitted = self.may_begin(now, from, transaction);
        if let Err(refusal) = admitted.and_then(|()| self.may_enter(now, self.watermark(now), from.into(), transaction)) {
            self.refuse(from, Subject::Transaction(transaction.id()), refusal, out);
            return Ok(());
        }
        self.enter(now, from, transaction);
        if self.shows_authorship(transaction, evidence) {
            self.note_authored(transaction.id(), true);
            self.vote(now, transaction, out)
        } else {
            self.await_author(now, transaction.id())
        }
    }

    /// Whether `from` may bring its own `transaction`: not while it has left too many for others to end.
    fn may_begin(&self, now: Time, from: Party, transaction: &Transaction) -> Result<(), Refusal> {
        let over_limit = is_author(from, transaction) && self.abandonment_limiter.over_limit(now, transaction.timestamp().client);
        if over_limit { Err(Refusal::AbandonLimit) } else { Ok(()) }
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
        if let Err(refusal) = self.may_enter(now, 0, from.into(), transaction) {
            self.refuse(from, Subject::Transaction(id), refusal, out);
            return true;
        }
        self.enter(now, from, transaction);
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

    pub(super) fn is_unauthored(&self, id: TransactionId) -> bool {
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

    /// Tells `from` how far a known transaction is, if its vote has been cast or it has ended; else notes that
    /// `from` wants to hear. `false` when it still has to be judged.
    pub(super) fn answer_known(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) -> bool {
        let Some(state) = self.table.get(id) else { return false };
        if let Some(certificate) = state.certificate().filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate: certificate.clone() }); // RPR (iii)
            return true;
        }
        if self.is_resurrected(now, id) {
            return true;
        }
        self.log_outcome(id);
        self.vote_for_outcome(id, out);
        self.tell_logged(from, id, out); // RPR (ii)
        if let Some(vote) = self.table.get(id).and_then(TransactionState::vote).filter(|_| !broken(Mutant::VoteReconsidered)) {
            self.counts.votes_repeated += 1;
            let statement = VoteStatement { id, vote };
            out.sign(from, Draft::Vote { replica: self.me, statement, conflict: None }); // RPR (i)
            return true;
        }
        let Some(state) = self.table.get_mut(id) else { return false };
        note_requester(state, from);
        state.is_prepared() // Else known by a logged decision alone, or still waiting for its author.
    }

    /// Whether it ended, and lies below the watermark: it may have been forgotten and come back with a late writeback,
    /// so what this replica once voted, logged or elected is not known, and nothing of the kind is said again.
    pub(super) fn is_resurrected(&self, now: Time, id: TransactionId) -> bool {
        let state = self.table.get(id);
        state.is_some_and(|state| state.decision().is_some() && state.transaction.timestamp().time < self.watermark(now))
            && !broken(Mutant::ResurrectedVotes)
    }

    /// A replica that learned the end before it voted votes for it. The end is final, so this vote changes nothing; but
    /// whoever missed the end, and comes when its proof is no longer at hand, may need it to find a quorum again.
    fn vote_for_outcome(&mut self, id: TransactionId, out: &mut Out<M>) {
        let Some(state) = self.table.get(id).filter(|state| state.vote().is_none() && !broken(Mutant::OutcomeUnvoted)) else { return };
        match state.decision() {
            Some(Decision::Commit) => self.cast(id, Vote::Commit, None, None, out),
            Some(Decision::Abort) => self.cast(id, Vote::Abort, None, None, out),
            None => {}
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
            oldest: self.watermark(now),
            write_floor: self.table.write_floor(),
        };
        match check(&self.table.view(transaction)?, transaction, bounds) {
            Ok(mut pending) => {
                if broken(Mutant::DependencyNotAwaited) {
                    pending.clear();
                }
                self.table.prepare(id, pending.len()); // L14-15
                for dependency in &pending {
                    if let Some(state) = self.table.get_mut(*dependency) {
                        state.dependents.push(id);
                    }
                }
                if pending.is_empty() {
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
            Err(abort_reason) => {
                if abort_reason == AbortReason::Misbehavior {
                    let client = transaction.timestamp().client;
                    out.emit(ReplicaEvent::Misbehavior { client, transaction: transaction.clone() });
                }
                let conflict = self.conflict_of(now, abort_reason);
                self.cast(id, Vote::Abort, Some(abort_reason), conflict, out);
            }
        }
        Ok(())
    }

    /// Casts the vote: on disk before anyone hears it, and never another. Who asked is told what stands in the way, if telling
    /// helps.
    pub(super) fn cast(
        &mut self,
        id: TransactionId,
        vote: Vote,
        abort_reason: Option<AbortReason>,
        conflict: Option<Conflict>,
        out: &mut Out<M>,
    ) {
        let Some(state) = self.table.get_mut(id) else { return };
        if state.vote().is_some() && !broken(Mutant::VoteReconsidered) {
            return;
        }
        let requesters = std::mem::take(&mut state.requesters);
        let record = Record::Voted { transaction: state.transaction.clone(), vote };
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
            out.sign(requester, Draft::Vote { replica: self.me, statement: VoteStatement { id, vote }, conflict });
        }
    }

    /// What stands in the way of a transaction that is voted down for `abort_reason`, if telling helps (L8, L11).
    fn conflict_of(&self, now: Time, abort_reason: AbortReason) -> Option<Conflict> {
        let other = abort_reason.conflicting()?;
        let state = self.table.get(other)?;
        let transaction = state.transaction.clone();
        match (state.decision(), state.certificate()) {
            (Some(Decision::Commit), Some(certificate)) => Some(Conflict::Committed { transaction, certificate: certificate.clone() }),
            (Some(_), _) => None,
            (None, _) => self.is_overdue(now, other).then_some(Conflict::Stalled { transaction }),
        }
    }

    /// L15 to L19, for a transaction whose vote waited.
    pub(super) fn dependency_ended(&mut self, id: TransactionId, decision: Decision, out: &mut Out<M>) {
        let Some(state) = self.table.get_mut(id) else { return };
        let Phase::Waiting { dependencies } = &mut state.phase else { return };
        match decision {
            Decision::Abort if !broken(Mutant::DependencyAbortForgiven) => {
                self.cast(id, Vote::Abort, Some(AbortReason::DependencyAborted), None, out); // L16-18
            }
            Decision::Abort | Decision::Commit => {
                *dependencies = dependencies.saturating_sub(1);
                if *dependencies == 0 {
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
        }
    }
}
