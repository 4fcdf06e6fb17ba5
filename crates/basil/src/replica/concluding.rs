//! How a replica learns of a transaction's end, and what follows for those who wait for it: writeback (basil.txt §4.3).

use std::sync::Arc;

use machine::Time;
use store::Medium;
use types::codec::Encode as _;
use types::mutant::{Mutant, broken};
use types::{Party, Transaction};

use super::admission::author;
use super::rights::is_author;
use super::{Out, Replica};
use crate::certificate::{Certificate, Decision};
use crate::message::{Refusal, Subject};
use crate::record::Record;

impl<M: Medium> Replica<M> {
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
                    && !broken(Mutant::MadeUpKept)
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
            self.counts.left += 1;
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
        let alone = (late || !known_by_vote) && !broken(Mutant::EndNamedOnly);
        let record = Record::Decided { transaction: alone.then(|| transaction.clone()), id, decision };
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
