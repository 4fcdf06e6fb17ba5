//! How a replica of the logging shard writes decisions down: ST2 (basil.txt §4.2 (5), (6)).

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::codec::Encode as _;
use types::{Party, TransactionId};

use super::{Out, Replica};
use crate::certificate::{Decision, LoggedStatement, logging_shard};
use crate::message::{Draft, Message, Refusal, Subject};
use crate::record::Record;
use crate::tombstones::RememberedOutcome;
use crate::transaction_state::TransactionState;

impl<M: StorageBackend> Replica<M> {
    /// ST2 (§4.2 (5)), answered by ST2R (6).
    pub(super) fn on_log(&mut self, now: Time, from: Party, transaction: &Transaction, decision: Decision, out: &mut Out<M>) {
        if self.log_from_tombstone(now, from, transaction, out) {
            return;
        }
        // That the tallies are of the right shards and large enough was checked with their signatures.
        if self.admit_decision(now, from, transaction, out) {
            self.log_first_decision(transaction.id(), Some(decision));
            self.tell_logged(from, transaction.id(), out);
        }
    }

    /// Who has forgotten a transaction but remembers how it ended says that it has logged that, as it has or would have; unless it has
    /// logged otherwise. So those who hold it need not be as many as must log it.
    fn log_from_tombstone(&self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        let id = transaction.id();
        let is_forgotten = self.table.get(id).is_none() || self.is_resurrected(now, id);
        let end =
            self.table.remembered_outcome(id).filter(|_| is_forgotten && self.logs(transaction) && !broken(Mutant::TombstoneUnlogged));
        let Some(RememberedOutcome { decision, view: Some(view) }) = end else { return false };
        let statement = LoggedStatement { id, decision, view_decision: view, view_current: view };
        out.sign(from, Draft::Logged { replica: self.me, statement });
        true
    }

    /// Whether a decision on `transaction` is this replica's to write down and still open, so that it is now entered.
    /// Else `from` is told why not.
    pub(super) fn admit_decision(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> bool {
        let id = transaction.id();
        if !self.logs(transaction) {
            self.refuse(from, Subject::Transaction(id), Refusal::WrongShard, out);
            return false;
        }
        if self.table.get(id).is_none() {
            let oldest = if self.table.remembers(transaction) { 0 } else { self.watermark(now) };
            if let Err(refusal) = self.may_enter(now, oldest, from.into(), transaction) {
                self.refuse(from, Subject::Transaction(id), refusal, out);
                return false;
            }
            self.stall_timers.met(now, transaction.id());
        }
        let certificate = self.table.enter(transaction, now, from.into()).certificate().cloned();
        if let Some(certificate) = certificate.filter(|certificate| self.may_see_proof(from, certificate)) {
            out.send(from, Message::Decided { certificate });
            return false;
        }
        !self.is_resurrected(now, id)
    }

    /// What is written down first stays, until a leader says otherwise: how it has ended, if that is known here, else
    /// what `justified` votes allow. A replica without a decision is in view 0, so that is where this one belongs.
    pub(super) fn log_first_decision(&mut self, id: TransactionId, justified: Option<Decision>) {
        let Some(state) = self.table.get(id) else { return };
        if (state.logged.is_none() || broken(Mutant::LoggedTwice))
            && let Some(decision) = state.decision().or(justified)
        {
            self.log_decision(id, decision, 0);
        }
    }

    /// On the logging shard, what has ended without being written down is written down.
    ///
    /// How it ended is final, so there is nothing else it could ever log; and whoever missed the end and comes when its
    /// proof is no longer at hand may find too few votes, and then needs `n - f` replicas to say it.
    pub(super) fn log_outcome(&mut self, id: TransactionId) {
        let Some(state) = self.table.get(id) else { return };
        if let (None, Some(decision)) = (&state.logged, state.decision())
            && self.logs(&state.transaction)
            && !broken(Mutant::OutcomeUnrepeated)
        {
            self.log_decision(id, decision, 0);
        }
    }

    /// Writes down how a transaction ends, as a client (in view 0) or a leader decided: once in each view.
    pub(super) fn log_decision(&mut self, id: TransactionId, decision: Decision, view: u32) {
        let Some(state) = self.table.get_mut(id) else { return };
        assert!(
            state.view() <= view || broken(Mutant::LowerViewAdopted) || broken(Mutant::LoggedTwice),
            "nothing is adopted from a view that was left"
        );
        let is_new = state.logged_in().is_none_or(|earlier| earlier < view);
        assert!(is_new || broken(Mutant::LoggedTwice) || broken(Mutant::DecidedTwice), "one decision is written down in a view");
        // An earlier record names the whole transaction, unless it is known by hearsay only.
        let is_recorded = state.vote().is_some() || state.logged.is_some() || state.decision().is_some();
        let transaction = (!is_recorded).then(|| state.transaction.clone());
        state.set_logged(decision, view);
        let record = Record::Logged { transaction, id, decision, view };
        if !broken(Mutant::DecisionUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        self.counts.logged += 1;
    }

    /// Tells `party` under this replica's signature what it has written down, if anything.
    pub(super) fn tell_logged(&self, party: Party, id: TransactionId, out: &mut Out<M>) {
        if let Some(statement) = self.table.get(id).and_then(TransactionState::logged_statement) {
            out.sign(party, Draft::Logged { replica: self.me, statement });
        }
    }

    /// Whether decisions on `transaction` are logged on this replica's shard.
    pub(super) fn logs(&self, transaction: &Transaction) -> bool {
        logging_shard(&transaction.participants(&self.cluster), transaction.id()) == Some(self.me.shard)
            || (broken(Mutant::LoggedAnywhere) && transaction.participants(&self.cluster).contains(&self.me.shard))
    }
}
