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
use crate::message::{Message, Refusal, Subject};
use crate::passing_on::Relays;
use crate::record::Record;

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
        match self.ledger.entry(id) {
            Some(entry) if entry.decision.is_some() => {
                self.comes_back(now, from, &certificate);
                return;
            }
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
    fn comes_back(&mut self, now: Time, from: Party, certificate: &Certificate) {
        if let Some(entry) = self.ledger.entry_mut(certificate.id)
            && let Some(until) = entry.left
            && is_author(from, &entry.transaction)
            && entry.decision == Some(certificate.decision)
            && certificate.fits(&self.cluster, &entry.transaction).is_ok()
        {
            entry.left = None;
            self.leavers.came_back(now, entry.transaction.timestamp().client, until);
        }
    }

    fn conclude(&mut self, now: Time, from: Party, transaction: Option<&Transaction>, certificate: Arc<Certificate>, out: &mut Out<M>) {
        let id = certificate.id;
        let transaction = match (self.ledger.entry(id), transaction) {
            (Some(entry), _) => entry.transaction.clone(),
            (None, Some(transaction)) => self.ledger.enter(transaction, now, author(transaction)).transaction.clone(),
            (None, None) => return,
        };
        if certificate.fits(&self.cluster, &transaction).is_err() {
            return;
        }
        self.end(now, &transaction, certificate.decision, Some(certificate), out);
        if let Some(entry) = self.ledger.entry_mut(id)
            && entry.authored
            && !is_author(from, &transaction)
        {
            entry.left = Some(self.leavers.left(now, transaction.timestamp().client));
            self.counts.abandoned += 1;
        }
    }

    /// The author of a transaction asks this replica, which it has shown the proof, to tell the others ([`crate::passing_on`]). Only the
    /// author's wish counts, and only with the proof, so that who is told knows that the author has not left it; and only once, so that
    /// nobody can have it said again and again.
    pub(super) fn relay(&mut self, from: Party, certificate: &Certificate, out: &mut Out<M>) {
        let id = certificate.id;
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        let transaction = &entry.transaction;
        let is_asked = Relays::of(&self.cluster, transaction).is_some_and(|relays| relays.contains(self.me)) && !entry.is_passed_on;
        let is_wished = is_author(from, transaction) || broken(Mutant::RelayedForAnyone);
        let is_proven = certificate.decision == Decision::Commit && certificate.fits(&self.cluster, transaction).is_ok();
        let is_known = entry.decision == Some(Decision::Commit) && (is_proven || broken(Mutant::RelayedUnproven));
        if !is_asked || !is_wished || !is_known || broken(Mutant::CommitUnrelayed) {
            return;
        }
        let participants = transaction.participants(&self.cluster);
        entry.is_passed_on = true;
        for replica in participants.into_iter().flat_map(|shard| self.cluster.replicas_of(shard)).filter(|replica| *replica != self.me) {
            out.send(Party::Replica(replica), Message::CommitNotice { id });
        }
    }

    /// Another replica says that `id` committed. It has, once `f + 1` of those who are to tell say so.
    pub(super) fn on_committed(&mut self, now: Time, from: Party, id: TransactionId, out: &mut Out<M>) {
        let Party::Replica(teller) = from else { return };
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        let is_open = entry.decision.is_none() || (entry.decision == Some(Decision::Commit) && entry.left.is_some());
        let tells = |relays: Relays| relays.contains(teller) || broken(Mutant::AnyoneRelays);
        if !is_open || !Relays::of(&self.cluster, &entry.transaction).is_some_and(tells) {
            return;
        }
        entry.told_by.insert(teller.index);
        let needed = if broken(Mutant::CommitNoticeOfOne) { 1 } else { self.quorums.weak() };
        if entry.told_by.count() < needed {
            return;
        }
        if let Some(until) = entry.left.take() {
            self.leavers.came_back(now, entry.transaction.timestamp().client, until);
        }
        if entry.decision.is_none() {
            let transaction = entry.transaction.clone();
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
        let known_by_vote = self.ledger.entry(id).is_some_and(|entry| entry.vote.is_some());
        // Late, its vote's segment may be let go before this record is folded: then it stands alone.
        let late = transaction.timestamp().time <= self.watermark(now);
        let alone = (late || !known_by_vote) && !broken(Mutant::OutcomeWithoutTransaction);
        let record = Record::Decided { transaction: alone.then(|| transaction.clone()), id, decision };
        if !broken(Mutant::OutcomeUnlogged) {
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
        if certificate.is_some() {
            self.proven.push_back((now, id));
        }
        for dependent in self.ledger.conclude(id, decision, certificate) {
            self.dependency_ended(dependent, decision, out);
        }
        for party in waiting {
            self.answer_known(now, party, id, out);
        }
    }
}
