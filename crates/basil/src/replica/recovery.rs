//! A replica's part in the divergent case of recovery (§5). The rules, and why they are safe, are in [`crate::recovery`].

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::codec::Encode;
use types::{Party, ReplicaId, TransactionId};

use super::admission::REQUESTERS_MAX;
use super::{Out, Replica};
use crate::certificate::{Decision, LoggedStatement, SignedLogged};
use crate::message::{Message, Refusal, Subject, Unsigned};
use crate::record::Record;
use crate::recovery::{DecideStatement, ElectStatement, Pace, SignedElect, leader_of, majority, next_view, view_lasts_ms};
use crate::tombstones::RememberedOutcome;

impl<M: StorageBackend> Replica<M> {
    /// §5 (1) arrives. §5 (2): enters the view that the signed views call for, and elects its leader.
    pub(super) fn on_invoke_fallback(
        &mut self,
        now: Time,
        from: Party,
        transaction: &Transaction,
        justified: Option<Decision>,
        views: &[SignedLogged],
        out: &mut Out<M>,
    ) {
        let id = transaction.id();
        if self.log_from_tombstone(now, from, transaction, views, out) {
            return;
        }
        if justified.is_none() && self.table.get(id).is_none() {
            self.refuse(from, Subject::Transaction(id), Refusal::Unknown, out);
            return;
        }
        if !self.admit_decision(now, from, transaction, out) {
            return;
        }
        let justified = justified.or_else(|| self.logged_by_a_correct_one(views));
        // First a decision, as if ST2 had come: a replica without one would enter the view with nothing to elect with.
        if !broken(Mutant::UnloggedEntersView) {
            self.log_first_decision(id, justified);
        }
        let Some(state) = self.table.get_mut(id) else { return };
        let Some(election) = state.logged.as_mut().map(|logged| logged.election.get_or_insert_default()) else { return };
        if !election.interested.contains(&from) && election.interested.len() < REQUESTERS_MAX {
            election.interested.push(from);
        }
        let own = election.view;
        let pace =
            if election.entered.after_ms(view_lasts_ms(own)) <= now || broken(Mutant::ViewHurried) { Pace::Advance } else { Pace::CatchUp };
        let shown: Vec<u32> = views.iter().map(|logged| logged.statement.view_current).collect();
        let view = next_view(own, pace, &shown, self.quorums);
        if view > own {
            state.enter_view(view, now);
            let record = Record::ViewEntered { id, view };
            if !broken(Mutant::ViewEntryUnlogged) {
                self.table.store.append_with(|bytes| record.encode(bytes));
            }
        }
        // With the view it is in now, so that whoever waits in vain for this leader can call for the next one.
        self.tell_logged(from, id, out);
        self.elect(id, out);
    }

    /// What `f + 1` of the logging shard have signed to have logged: one of them is correct, and had the votes for it, or a leader's word. So those who
    /// have never logged anything may, when the votes are not remembered any more.
    fn logged_by_a_correct_one(&self, views: &[SignedLogged]) -> Option<Decision> {
        let count = |decision| views.iter().filter(|logged| logged.statement.decision == decision).count();
        let is_logged = |decision: &Decision| count(*decision) >= self.quorums.weak() && !broken(Mutant::LoggedByOthersIgnored);
        [Decision::Commit, Decision::Abort].into_iter().find(is_logged)
    }

    /// §5 (2): sends what it has logged to the leader of its view, unless that leader has been heard.
    fn elect(&mut self, id: TransactionId, out: &mut Out<M>) {
        let Some(statement) = self.table.get(id).and_then(crate::transaction_state::TransactionState::logged_statement) else { return };
        let view = statement.view_current;
        if statement.view_decision < view {
            self.sign_elect(ElectStatement { id, decision: statement.decision, view }, out);
        }
    }

    fn sign_elect(&self, statement: ElectStatement, out: &mut Out<M>) {
        let leader = ReplicaId { shard: self.me.shard, index: leader_of(statement.id, statement.view, self.quorums.replicas()) };
        out.sign(Party::Replica(leader), Unsigned::Elect { replica: self.me, statement });
    }

    /// A replica that has forgotten a transaction but remembers its outcome states that it has logged that, and elects with it, in the view to
    /// which those that are `shown` bring it. So fewer than `4f + 1` need to hold the transaction. It never states anything else,
    /// as it remembers the outcome for good or says nothing more. It follows at once: what it gives no time to is a leader that it does not need.
    pub(super) fn log_from_tombstone(
        &mut self,
        now: Time,
        from: Party,
        transaction: &Transaction,
        shown: &[SignedLogged],
        out: &mut Out<M>,
    ) -> bool {
        let id = transaction.id();
        let is_forgotten = self.table.get(id).is_none() || self.is_resurrected(now, id);
        let end =
            self.table.remembered_outcome(id).filter(|_| is_forgotten && self.logs(transaction) && !broken(Mutant::TombstoneUnlogged));
        let Some(RememberedOutcome { decision, view: Some(own) }) = end else { return false };
        let shown: Vec<u32> = shown.iter().map(|logged| logged.statement.view_current).collect();
        let view = if broken(Mutant::TombstoneStays) { own } else { next_view(own, Pace::Advance, &shown, self.quorums) };
        if view > own {
            // Also when the clock is set back it is not known otherwise than by its tombstone.
            self.table.raise_low_watermark(transaction.timestamp().time.saturating_add(1));
            self.table.raise_tombstone(id, view);
            self.sign_elect(ElectStatement { id, decision, view }, out);
        }
        let statement = LoggedStatement { id, decision, view_decision: view, view_current: view };
        out.sign(from, Unsigned::Logged { replica: self.me, statement });
        true
    }

    /// §5 (3): who is elected by `4f + 1` decides what most of them have logged.
    pub(super) fn on_elect_fallback(&mut self, now: Time, from: Party, elect: SignedElect, out: &mut Out<M>) {
        let ElectStatement { id, view, .. } = elect.statement;
        let is_own = from == Party::Replica(elect.replica) && elect.replica.shard == self.me.shard;
        if !is_own || leader_of(id, view, self.quorums.replicas()) != self.me.index {
            return;
        }
        let Some(state) = self.table.get(id) else { return };
        if let Some(certificate) = self.table.proof_of(state) {
            out.send(from, Message::Writeback { transaction: None, certificate: certificate.clone(), relay: false });
            return;
        }
        if !self.logs(&state.transaction) || self.is_resurrected(now, id) {
            return;
        }
        self.ballots.note(elect);
        let Some(electors) = self.ballots.electors(id, view, self.quorums) else { return };
        let decision = majority(electors.iter().map(|(_, decision, _)| *decision));
        let is_first = match self.table.get(id) {
            Some(state) if view < state.view() => return, // It has left the view it would lead, as others have.
            Some(state) => match &state.logged {
                // It has led already, and may have forgotten with whose votes: it decides the same again or nothing.
                Some(logged) if logged.view == view && logged.decision != decision => return,
                Some(logged) => logged.view < view,
                None => true,
            },
            None => return,
        };
        if is_first {
            // Written down like anybody's, and so before anybody hears it: a leader that crashes does not change its mind.
            if !broken(Mutant::LeaderUnbound) {
                self.adopt(now, id, decision, view, out);
            }
            self.counts.elected += 1;
        }
        let statement = DecideStatement { id, decision, view };
        for replica in self.cluster.replicas_of(self.me.shard).filter(|replica| *replica != self.me) {
            // To all at first; later to whoever still elects, who must have missed it.
            if is_first || from == Party::Replica(replica) {
                let unsigned = Unsigned::Decide { leader: self.me, statement, electors: electors.clone() };
                out.sign(Party::Replica(replica), unsigned);
            }
        }
    }

    /// §5 (4): logs what the leader of this view, or of a later one, has decided, and tells who is interested.
    /// That the leader was elected and says what its electors say was checked with the signatures.
    pub(super) fn on_decide_fallback(&mut self, now: Time, from: Party, leader: ReplicaId, decide: DecideStatement, out: &mut Out<M>) {
        let DecideStatement { id, decision, view } = decide;
        let Some(state) = self.table.get(id) else { return };
        if leader.shard != self.me.shard || !self.logs(&state.transaction) {
            return;
        }
        if let (Some(certificate), Party::Replica(_)) = (self.table.proof_of(state), from) {
            out.send(from, Message::Writeback { transaction: None, certificate: certificate.clone(), relay: false });
            return;
        }
        // The first decision in a view stays, whatever else a lying leader may show.
        let may_follow = state.view() <= view || broken(Mutant::LowerViewAdopted);
        let is_first = state.logged_in().is_none_or(|earlier| earlier < view || broken(Mutant::DecidedTwice));
        if may_follow && is_first && !self.is_resurrected(now, id) {
            self.adopt(now, id, decision, view, out);
        }
    }

    fn adopt(&mut self, now: Time, id: TransactionId, decision: Decision, view: u32, out: &mut Out<M>) {
        self.log_decision(id, decision, view);
        let Some(state) = self.table.get_mut(id) else { return };
        state.enter_view(view, now);
        let interested = state
            .logged
            .as_ref()
            .and_then(|logged| logged.election.as_ref())
            .map(|election| election.interested.clone())
            .unwrap_or_default();
        for party in interested {
            self.tell_logged(party, id, out);
        }
    }
}
