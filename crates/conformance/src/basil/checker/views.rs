//! How honest replicas go from view to view (§5), from what they sign: the steps on which the argument in `basil::recovery`
//! rests, each of which a single step can break long before anybody comes to harm by it.

use std::collections::BTreeMap;

use basil::Decision;
use basil::message::Unsigned;
use basil::recovery::{DecideStatement, ElectStatement};
use types::{ReplicaId, TransactionId};

/// What one replica has shown of itself in one transaction.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// The highest view it said to be in.
    view: u32,
    /// What it last said to have logged, and in which view.
    logged: Option<(Decision, u32)>,
    /// What it last elected with, and in which view.
    elected: Option<(Decision, u32)>,
    /// What it decided as a leader, and in which view.
    decided: Option<(Decision, u32)>,
}

/// Every transaction that anybody has logged anything of.
#[derive(Debug, Default)]
pub(crate) struct Views(BTreeMap<TransactionId, BTreeMap<ReplicaId, Shown>>);

impl Views {
    /// An honest replica signs something about a transaction whose `outcome` is proven, or not yet. Gives a sentence for each step that it may
    /// not have made.
    pub fn signed(&mut self, faults: usize, outcome: Option<Decision>, by: ReplicaId, unsigned: &Unsigned) -> Vec<String> {
        let mut found = Vec::new();
        match unsigned {
            Unsigned::Vote { .. } => {}
            Unsigned::Logged { statement, .. } => {
                let (id, logged) = (statement.id, (statement.decision, statement.view_decision));
                if !self.goes_by_outcome(outcome, by, id, logged, statement.view_current) {
                    self.rise(faults, by, id, statement.view_current, &mut found);
                }
                let shown = self.shown(id, by);
                found.extend(shown.may_say(logged).err().map(|why| format!("{by} says to have logged {logged:?} of {id:?} {why}")));
                shown.logged = Some(logged);
            }
            Unsigned::Elect { statement: ElectStatement { id, decision, view }, .. } => {
                self.rise(faults, by, *id, *view, &mut found);
                let shown = self.shown(*id, by);
                if let Some((before, at)) = shown.elected
                    && at == *view
                    && before != *decision
                {
                    found.push(format!("{by} elects in view {view} of {id:?} with {before:?} and with {decision:?}"));
                }
                shown.elected = Some((*decision, *view));
            }
            Unsigned::Decide { statement: DecideStatement { id, decision, view }, .. } => {
                self.rise(faults, by, *id, *view, &mut found);
                let shown = self.shown(*id, by);
                if let Some((before, at)) = shown.decided
                    && at == *view
                    && before != *decision
                {
                    found.push(format!("{by} decides {before:?} and {decision:?} in view {view} of {id:?}"));
                }
                shown.decided = Some((*decision, *view));
            }
        }
        found
    }

    fn shown(&mut self, id: TransactionId, by: ReplicaId) -> &mut Shown {
        self.0.entry(id).or_default().entry(by).or_default()
    }

    /// Who has forgotten all but a proven outcome, and once logged otherwise, states the outcome in the next view: in one view it states one
    /// decision. Nothing can come of that but what has happened.
    fn goes_by_outcome(
        &mut self,
        outcome: Option<Decision>,
        by: ReplicaId,
        id: TransactionId,
        (decision, view_decision): (Decision, u32),
        view: u32,
    ) -> bool {
        let shown = self.shown(id, by);
        let has_logged_otherwise = shown.logged.is_some_and(|(before, _)| before != decision);
        let goes = outcome == Some(decision) && has_logged_otherwise && view_decision == view && view == shown.view + 1;
        if goes {
            shown.view = view;
        }
        goes
    }

    /// A replica says to be in `view`: it does not go back; and it is the first of the honest ones there only when `2f + 1` of
    /// them were in the view below, since `3f + 1` said so.
    fn rise(&mut self, faults: usize, by: ReplicaId, id: TransactionId, view: u32, found: &mut Vec<String>) {
        let before = self.shown(id, by).view;
        if view < before {
            found.push(format!("{by} was in view {before} of {id:?} and is in view {view} again"));
        }
        let of_shard = |least: u32| {
            let shown = self.0.get(&id).into_iter().flatten();
            shown.filter(|(replica, shown)| replica.shard == by.shard && shown.view >= least).count()
        };
        if view > before && of_shard(view) == 0 && of_shard(view - 1) < 2 * faults + 1 {
            let below = of_shard(view - 1);
            found.push(format!(
                "{by} rose from view {before} of {id:?} to {view}, where nobody is, with {below} of the honest in the view below"
            ));
        }
        let shown = self.shown(id, by);
        shown.view = shown.view.max(view);
    }
}

impl Shown {
    /// Whether it may say now that it has logged `decision`, decided in `view`.
    fn may_say(&self, (decision, view): (Decision, u32)) -> Result<(), String> {
        if let Some((earlier, at)) = self.logged
            && at > view
        {
            return Err(format!("after {earlier:?} in view {at}"));
        }
        if let Some((elected, at)) = self.elected
            && view < at
            && elected != decision
        {
            return Err(format!("from below view {at}, in which it has elected with {elected:?}"));
        }
        match self.decided {
            Some((decided, at)) if view < at => Err(format!("after it has led view {at} to {decided:?} and should have logged that")),
            Some((decided, at)) if view == at && decided != decision => {
                Err(format!("after it has decided {decided:?} in that view itself"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use basil::certificate::LoggedStatement;
    use types::ShardId;

    use super::*;

    const ID: TransactionId = TransactionId([1; 32]);

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn logged(views: &mut Views, index: u16, decision: Decision, view_decision: u32, view_current: u32) -> Vec<String> {
        let statement = LoggedStatement { id: ID, decision, view_decision, view_current };
        views.signed(1, None, replica(index), &Unsigned::Logged { replica: replica(index), statement })
    }

    fn elect(views: &mut Views, index: u16, decision: Decision, view: u32) -> Vec<String> {
        views.signed(
            1,
            None,
            replica(index),
            &Unsigned::Elect { replica: replica(index), statement: ElectStatement { id: ID, decision, view } },
        )
    }

    #[test]
    fn who_follows_the_rules_is_left_alone() {
        let mut views = Views::default();
        for index in 0..4 {
            assert_eq!(logged(&mut views, index, Decision::Commit, 0, 0), Vec::<String>::new());
        }
        assert_eq!(elect(&mut views, 0, Decision::Commit, 1), Vec::<String>::new());
        assert_eq!(logged(&mut views, 5, Decision::Abort, 0, 1), Vec::<String>::new(), "it follows the first");
        assert_eq!(logged(&mut views, 5, Decision::Commit, 1, 1), Vec::<String>::new());
    }

    #[test]
    fn nobody_is_first_in_a_view_before_three_of_six_are_in_the_one_below() {
        let mut views = Views::default();
        logged(&mut views, 0, Decision::Commit, 0, 0);
        logged(&mut views, 1, Decision::Commit, 0, 0);
        assert_eq!(elect(&mut views, 0, Decision::Commit, 1).len(), 1);
        assert_eq!(elect(&mut views, 1, Decision::Commit, 3).len(), 1);
    }

    #[test]
    fn nobody_goes_back() {
        let mut views = Views::default();
        for index in 0..4 {
            logged(&mut views, index, Decision::Commit, 0, 0);
        }
        elect(&mut views, 0, Decision::Commit, 1);
        assert_eq!(logged(&mut views, 0, Decision::Commit, 0, 0).len(), 1);
        assert_eq!(logged(&mut views, 0, Decision::Abort, 0, 1).len(), 1, "not what it elected with");
    }

    #[test]
    fn who_goes_by_a_proven_outcome_may_be_the_first_in_the_next_view() {
        let said = |outcome, view_decision, view_current| {
            let mut views = Views::default();
            logged(&mut views, 0, Decision::Abort, 0, 0);
            let statement = LoggedStatement { id: ID, decision: Decision::Commit, view_decision, view_current };
            views.signed(1, outcome, replica(0), &Unsigned::Logged { replica: replica(0), statement }).len()
        };
        assert_eq!(said(Some(Decision::Commit), 1, 1), 0);
        assert_eq!([said(None, 1, 1), said(Some(Decision::Abort), 1, 1), said(Some(Decision::Commit), 2, 2)], [1, 1, 1]);
        assert_eq!(said(Some(Decision::Commit), 0, 1), 1, "it has logged the outcome in no view before");
    }

    #[test]
    fn a_leader_keeps_to_what_it_decides() {
        let mut views = Views::default();
        for index in 0..4 {
            logged(&mut views, index, Decision::Commit, 0, 0);
        }
        let statement = DecideStatement { id: ID, decision: Decision::Commit, view: 1 };
        let unsigned = Unsigned::Decide { leader: replica(0), statement, electors: Vec::new() };
        assert_eq!(views.signed(1, None, replica(0), &unsigned), Vec::<String>::new());
        assert_eq!(logged(&mut views, 0, Decision::Commit, 0, 1).len(), 1, "it has not logged what it decided");
        assert_eq!(logged(&mut views, 0, Decision::Abort, 1, 1).len(), 1);
        assert_eq!(logged(&mut views, 0, Decision::Commit, 1, 1), Vec::<String>::new());
    }
}
