//! How a replica learns of a transaction's end, and what follows for those who wait for it: writeback (basil.txt §4.3).

use std::sync::Arc;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::codec::Encode as _;
use types::{Party, TransactionId};

use super::admission::author;
use super::rights::is_author;
use super::{Out, Replica};
use crate::certificate::{Certificate, Decision};
use crate::commit_relay::Relays;
use crate::message::{Message, Refusal, Subject};
use crate::record::Record;
use crate::transaction_state::{Phase, TransactionState};

impl<M: StorageBackend> Replica<M> {
    pub(super) fn on_writeback(
        &mut self,
        now: Time,
        from: Party,
        transaction: Option<&Transaction>,
        certificate: Arc<Certificate>,
        out: &mut Out<M>,
    ) {
        let id = certificate.id;
        match self.table.get(id) {
            Some(state) if state.decision().is_some() => {
                self.author_came_back(now, from, &certificate);
                return;
            }
            Some(_) => {}
            None => {
                let Some(transaction) = transaction else {
                    self.refuse(from, Subject::Transaction(id), Refusal::Unknown, out);
                    return;
                };
                if !transaction.keys().any(|key| self.table.holds(key)) {
                    self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
                    return;
                }
                if transaction.timestamp().time > now.after_ms(self.options.time_bound_ms).0 {
                    // A certificate cannot exist for it yet among correct replicas whose clocks agree with ours.
                    self.refuse(from, Subject::Transaction(id), Refusal::TooNew, out);
                    return;
                }
                if certificate.decision == Decision::Abort
                    && !broken(Mutant::FabricatedAbortKept)
                    && let Err(refusal) = self.may_enter_aborted(now, from.into(), transaction)
                {
                    self.refuse(from, Subject::Transaction(id), refusal, out);
                    return;
                }
            }
        }
        self.conclude(now, from, transaction, certificate, out);
    }

    /// Who ends its transaction itself has not left it, however late it is.
    fn author_came_back(&mut self, now: Time, from: Party, certificate: &Certificate) {
        if let Some(TransactionState { transaction, phase: Phase::Concluded(conclusion), .. }) = self.table.get_mut(certificate.id)
            && let Some(until) = conclusion.abandoned_until
            && is_author(from, transaction)
            && conclusion.decision == certificate.decision
            && certificate.fits(&self.cluster, transaction).is_ok()
        {
            conclusion.abandoned_until = None;
            self.abandonment_limiter.forgive(now, transaction.timestamp().client, until);
        }
    }

    fn conclude(&mut self, now: Time, from: Party, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        let transaction = match (self.table.get(id), transaction) {
            (Some(state), _) => state.transaction.clone(),
            (None, Some(transaction)) => self.table.enter(transaction, now, author(transaction)).transaction.clone(),
            (None, None) => return,
        };
        if certificate.fits(&self.cluster, &transaction).is_err() {
            return;
        }
        self.end(now, &transaction, certificate.decision, Some(certificate), out);
        if let Some(state) = self.table.get_mut(id)
            && state.authored
            && !is_author(from, &transaction)
            && let Some(conclusion) = state.conclusion_mut()
        {
            conclusion.abandoned_until = Some(self.abandonment_limiter.left(now, transaction.timestamp().client));
            self.counts.abandoned += 1;
        }
    }

    /// The author of a transaction asks this replica, which it has shown the proof, to tell the others ([`crate::commit_relay`]). Only the
    /// author's wish counts, and only with the proof, so that who is told knows that the author has not left it; and only once, so that
    /// nobody can have it said again and again.
    pub(super) fn relay(&mut self, from: Party, certificate: &Certificate, out: &mut Out<M>) {
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
        let participants = transaction.participants(&self.cluster);
        conclusion.is_relayed = true;
        for replica in participants.into_iter().flat_map(|shard| self.cluster.replicas_of(shard)).filter(|replica| *replica != self.me) {
            out.send(Party::Replica(replica), Message::CommitNotice { id });
        }
    }

    /// Another replica says that `id` committed. It has, once `f + 1` of those who are to tell say so.
    pub(super) fn on_commit_notice(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) {
        let Party::Replica(teller) = from else { return };
        let Some(state) = self.table.get_mut(id) else { return };
        let is_open =
            state.conclusion().is_none_or(|conclusion| conclusion.decision == Decision::Commit && conclusion.abandoned_until.is_some());
        let tells = |relays: Relays| relays.contains(teller) || broken(Mutant::AnyoneRelays);
        if !is_open || !Relays::of(&self.cluster, &state.transaction).is_some_and(tells) {
            return;
        }
        state.commit_notices.insert(teller.index);
        let needed = if broken(Mutant::CommitNoticeOfOne) { 1 } else { self.quorums.weak() };
        if state.commit_notices.count() < needed {
            return;
        }
        if let Some(until) = state.conclusion_mut().and_then(|conclusion| conclusion.abandoned_until.take()) {
            self.abandonment_limiter.forgive(now, state.transaction.timestamp().client, until);
        }
        if state.decision().is_none() {
            let transaction = state.transaction.clone();
            self.end(now, &transaction, Decision::Commit, None, out);
        }
    }

    /// `transaction`, which is entered here, has ended.
    pub(super) fn end(
        &mut self,
        now: Time,
        transaction: &Transaction,
        decision: Decision,
        certificate: Option<Arc<Certificate>>,
        out: &mut Out<M>,
    ) {
        let id = transaction.id();
        let known_by_vote = self.table.get(id).is_some_and(|state| state.vote().is_some());
        // Late, its vote's segment may be released before this record is checkpointed: then it stands alone.
        let late = transaction.timestamp().time <= self.watermark(now);
        let alone = (late || !known_by_vote) && !broken(Mutant::OutcomeWithoutTransaction);
        let record = Record::Decided { transaction: alone.then(|| transaction.clone()), id, decision };
        if !broken(Mutant::OutcomeUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        match decision {
            Decision::Commit => self.counts.committed += 1,
            Decision::Abort => self.counts.aborted += 1,
        }
        let mut waiting: Vec<Party> = Vec::new();
        if let Some(state) = self.table.get_mut(id) {
            waiting.extend(std::mem::take(&mut state.requesters));
            waiting.extend(
                state
                    .logged
                    .iter_mut()
                    .filter_map(|logged| logged.election.as_mut())
                    .flat_map(|election| std::mem::take(&mut election.interested)),
            );
        }
        self.ballots.forget(id);
        if certificate.is_some() {
            self.proven.push_back((now, id));
        }
        for dependent in self.table.conclude(id, decision, certificate) {
            self.dependency_ended(dependent, decision, out);
        }
        for party in waiting {
            self.answer_known(now, party, id, out);
        }
    }
}
