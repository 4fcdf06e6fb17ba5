//! How a replica votes: ST1 (basil.txt §4.2), and RP (§5), by which somebody else asks for the same. Algorithm 1 itself is in
//! [`crate::check`].

use crate::transaction::Transaction;
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError};
use types::codec::Encode as _;
use types::{Party, TransactionId};

use super::admission::{author, note_asker};
use super::rights::is_author;
use super::{Out, Replica, ReplicaEvent};
use crate::certificate::{Decision, SignedVote, Vote, VoteStatement};
use crate::check::{AbortReason, Bounds, CheckResult, check};
use crate::message::{Conflict, Draft, Message, Refusal, Subject};
use crate::record::Record;

impl<M: StorageBackend> Replica<M> {
    /// ST1 (§4.2).
    pub(super) fn on_prepare(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.answer_known(now, from, transaction.id(), out) {
            return Ok(());
        }
        let authored = is_author(from, transaction);
        if !authored && self.vote_down_late(now, from, transaction, out) {
            return Ok(());
        }
        let oldest = if authored && broken(Mutant::LateRefused) { self.youngest_watermark(now) } else { self.watermark(now) };
        let payer = if broken(Mutant::AuthorCharged) { author(transaction) } else { from.into() };
        if let Err(refusal) = self.may_begin(now, from, transaction).and_then(|()| self.may_enter(now, oldest, payer, transaction)) {
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
        if evidence.is_empty() || self.ledger.entry(transaction.id()).is_some_and(|entry| entry.vote.is_some() || entry.prepared) {
            return self.on_prepare(now, from, transaction, out);
        }
        if self.answer_known(now, from, transaction.id(), out) && !self.is_unauthored(transaction.id()) {
            return Ok(());
        }
        if self.vote_down_late(now, from, transaction, out) {
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
        let owes = is_author(from, transaction) && self.leavers.owes(now, transaction.timestamp().client);
        if owes { Err(Refusal::AbandonLimit) } else { Ok(()) }
    }

    fn note_authored(&mut self, id: TransactionId, authored: bool) {
        if let Some(entry) = self.ledger.entry_mut(id) {
            entry.authored |= authored;
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
        self.ledger.entry(id).is_some_and(|entry| entry.vote.is_none() && !entry.prepared && entry.decision.is_none())
    }

    fn await_author(&mut self, now: Time, id: TransactionId) -> Result<(), StoreError> {
        if let Some(entry) = self.ledger.entry_mut(id)
            && !std::mem::replace(&mut entry.awaits_author, true)
        {
            self.unauthored.push_back((now, id));
        }
        Ok(())
    }

    /// Tells `from` how far a known transaction is, if its vote has been cast or it has ended; else notes that
    /// `from` wants to hear. `false` when it still has to be judged.
    pub(super) fn answer_known(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) -> bool {
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
    pub(super) fn is_remade(&self, now: Time, id: TransactionId) -> bool {
        let entry = self.ledger.entry(id);
        entry.is_some_and(|entry| entry.decision.is_some() && entry.transaction.timestamp().time < self.watermark(now))
            && !broken(Mutant::ResurrectedVotes)
    }

    /// A replica that learned the end before it voted votes for it. The end is final, so this vote changes nothing; but
    /// whoever missed the end, and comes when its proof is no longer at hand, may need it to find a quorum again.
    fn vote_for_end(&mut self, id: TransactionId, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry(id).filter(|entry| entry.vote.is_none() && !broken(Mutant::OutcomeUnvoted)) else { return };
        match entry.decision {
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
        let bounds = Bounds { newest: now.after_ms(self.options.time_bound_ms).0, oldest: self.watermark(now), floor: self.ledger.floor() };
        match check(&mut self.ledger, transaction, bounds)? {
            CheckResult::Prepare { mut pending } => {
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
            CheckResult::Abort(cause) => {
                if cause == AbortReason::Misbehavior {
                    let client = transaction.timestamp().client;
                    out.emit(ReplicaEvent::Misbehavior { client, transaction: transaction.clone() });
                }
                let conflict = self.conflict_of(now, cause);
                self.cast(id, Vote::Abort, Some(cause), conflict, out);
            }
        }
        Ok(())
    }

    /// Casts the vote: on disk before anyone hears it, and never another. Who asked is told what stands in the way, if telling
    /// helps.
    pub(super) fn cast(&mut self, id: TransactionId, vote: Vote, cause: Option<AbortReason>, conflict: Option<Conflict>, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() && !broken(Mutant::VoteReconsidered) {
            return;
        }
        entry.vote = Some(vote);
        entry.cause = cause;
        let askers = std::mem::take(&mut entry.askers);
        let record = Record::Voted { transaction: entry.transaction.clone(), vote };
        if !broken(Mutant::VoteUnlogged) {
            self.ledger.store.append_with(|bytes| record.encode(bytes));
        }
        match vote {
            Vote::Commit => self.counts.votes_commit += 1,
            Vote::Abort => {
                self.counts.votes_abort += 1;
                if let Some(cause) = cause {
                    self.counts.votes_abort_by[cause.number()] += 1;
                }
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
    fn conflict_of(&self, now: Time, cause: AbortReason) -> Option<Conflict> {
        let other = cause.conflicting()?;
        let entry = self.ledger.entry(other)?;
        let transaction = entry.transaction.clone();
        match (entry.decision, &entry.certificate) {
            (Some(Decision::Commit), Some(certificate)) => Some(Conflict::Committed { transaction, certificate: certificate.clone() }),
            (Some(_), _) => None,
            (None, _) => self.is_left(now, other).then_some(Conflict::Stalled { transaction }),
        }
    }

    /// L15 to L19, for a transaction whose vote waited.
    pub(super) fn dependency_ended(&mut self, id: TransactionId, decision: Decision, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        if entry.vote.is_some() || entry.decision.is_some() {
            return;
        }
        match decision {
            Decision::Abort if !broken(Mutant::DependencyAbortForgiven) => {
                self.cast(id, Vote::Abort, Some(AbortReason::DependencyAborted), None, out); // L16-18
            }
            Decision::Abort | Decision::Commit => {
                entry.waiting_for = entry.waiting_for.saturating_sub(1);
                if entry.waiting_for == 0 {
                    self.cast(id, Vote::Commit, None, None, out); // L19
                }
            }
        }
    }
}
