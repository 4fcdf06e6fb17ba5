//! How liars elect and lead, when what others have logged does not come together (Basil §5).

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::message::Unsigned;
use basil::recovery::{DecideStatement, ElectStatement, Elector, SignedElect, leader_of, majority};
use basil::{Decision, Quorums};
use crypto::BatchSignature;
use random::Random;
use types::{Cluster, Party, ReplicaId, TransactionId};

use super::ReplicaStrategy;

/// Of how many views of transactions a liar keeps what others elected it with.
const VIEWS_MAX: usize = 256;

type Statements = Vec<(Party, Unsigned)>;

/// What a liar knows of elections: everybody's word, and its own both ways.
#[derive(Debug)]
pub(crate) struct LyingLeader {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    heard: BTreeMap<(TransactionId, u32), BTreeMap<(u16, Decision), BatchSignature>>,
}

impl LyingLeader {
    pub fn new(me: ReplicaId, cluster: Arc<Cluster>) -> Self {
        Self { me, cluster, heard: BTreeMap::new() }
    }

    /// Notes an election message: who says both things is noted with both.
    pub fn hear(&mut self, elect: &SignedElect) {
        let ElectStatement { id, decision, view } = elect.statement;
        self.heard.entry((id, view)).or_default().insert((elect.replica.index, decision), elect.signature.clone());
        while self.heard.len() > VIEWS_MAX {
            self.heard.pop_first();
        }
    }

    /// In place of an honest election: in which views, and with what, it elects whom.
    pub fn elect(&self, strategies: &[ReplicaStrategy], to: Party, statement: ElectStatement, out: &mut Statements) {
        let unsigned = |statement| Unsigned::Elect { replica: self.me, statement };
        out.push((to, unsigned(statement)));
        let otherwise = ElectStatement { decision: opposite(statement.decision), ..statement };
        let leads = to == Party::Replica(self.me);
        if strategies.contains(&ReplicaStrategy::ElectTwice)
            || (leads && strategies.iter().any(|one| matches!(one, ReplicaStrategy::DecideBoth | ReplicaStrategy::DecideTwice)))
        {
            out.push((to, unsigned(otherwise)));
        }
        if strategies.contains(&ReplicaStrategy::ElectTwice) {
            for (view, statement) in [(statement.view.saturating_add(1), statement), (statement.view.saturating_add(2), otherwise)] {
                let index = leader_of(statement.id, view, self.cluster.replicas_per_shard());
                let leader = ReplicaId { shard: self.me.shard, index };
                out.push((Party::Replica(leader), unsigned(ElectStatement { view, ..statement })));
            }
        }
    }

    /// In place of an honest leader's decision to `to`: what it says instead.
    pub fn decide(
        &self,
        strategies: &[ReplicaStrategy],
        random: &mut Random,
        to: Party,
        (statement, electors): (DecideStatement, Vec<Elector>),
        out: &mut Statements,
    ) {
        let unsigned = |statement, electors| Unsigned::Decide { leader: self.me, statement, electors };
        if strategies.contains(&ReplicaStrategy::DecideNothing) {
            return;
        }
        if strategies.contains(&ReplicaStrategy::WrongElectors) {
            let (statement, electors) = self.wrong(random, statement, electors);
            out.push((to, unsigned(statement, electors)));
            return;
        }
        let both = [Decision::Commit, Decision::Abort].map(|side| {
            self.electors(statement.id, statement.view, side).map(|electors| (DecideStatement { decision: side, ..statement }, electors))
        });
        let to_first = matches!(to, Party::Replica(replica) if replica.index % 2 == 0);
        let [commit, abort] = both;
        if strategies.contains(&ReplicaStrategy::DecideTwice) {
            let mut sides: Vec<_> = commit.into_iter().chain(abort).collect();
            if sides.len() < 2 {
                // Two decisions in one view all the same, the second on the word of those who say otherwise.
                sides = vec![
                    (statement, electors.clone()),
                    (DecideStatement { decision: opposite(statement.decision), ..statement }, electors),
                ];
            }
            random.shuffle(&mut sides);
            out.extend(sides.into_iter().map(|(statement, electors)| (to, unsigned(statement, electors))));
        } else if strategies.contains(&ReplicaStrategy::DecideBoth) {
            let side = if to_first { commit } else { abort };
            let (statement, electors) = side.unwrap_or((statement, electors));
            out.push((to, unsigned(statement, electors)));
        } else {
            out.push((to, unsigned(statement, electors)));
        }
    }

    /// `4f + 1` electors most of whom say `side`, if it can find as many.
    fn electors(&self, id: TransactionId, view: u32, side: Decision) -> Option<Vec<Elector>> {
        let heard = self.heard.get(&(id, view))?;
        let needed = Quorums::new(self.cluster.faults()).elected();
        let mut chosen: BTreeMap<u16, (Decision, BatchSignature)> = BTreeMap::new();
        for wanted in [side, opposite(side)] {
            for ((index, decision), signature) in heard.iter().filter(|((_, decision), _)| *decision == wanted) {
                if chosen.len() < needed {
                    chosen.entry(*index).or_insert_with(|| (*decision, signature.clone()));
                }
            }
        }
        let electors: Vec<Elector> = chosen.into_iter().map(|(index, (decision, signature))| (index, decision, signature)).collect();
        let holds = electors.len() == needed && majority(electors.iter().map(|(_, decision, _)| *decision)) == side;
        holds.then_some(electors)
    }

    /// Electors that do not elect it, or not for what it says.
    fn wrong(&self, random: &mut Random, mut statement: DecideStatement, mut electors: Vec<Elector>) -> (DecideStatement, Vec<Elector>) {
        match random.below(6) {
            0 => {
                electors.pop();
            }
            1 => electors[0].0 = electors[1].0,
            2 => {
                statement.decision = opposite(statement.decision);
                electors.iter_mut().for_each(|elector| elector.1 = statement.decision);
            }
            3 => statement.view = statement.view.saturating_add(u32::try_from(self.cluster.replicas_per_shard()).unwrap_or(1)),
            4 => statement.decision = opposite(statement.decision),
            _ => {
                let others = self.heard.iter().filter(|((id, _), _)| *id != statement.id).flat_map(|(_, heard)| heard);
                let others: BTreeMap<u16, (Decision, BatchSignature)> =
                    others.map(|((index, decision), signature)| (*index, (*decision, signature.clone()))).collect();
                for elector in &mut electors {
                    if let Some((decision, signature)) = others.get(&elector.0) {
                        (elector.1, elector.2) = (*decision, signature.clone());
                    } else {
                        elector.1 = opposite(elector.1);
                    }
                }
            }
        }
        (statement, electors)
    }
}

fn opposite(decision: Decision) -> Decision {
    match decision {
        Decision::Commit => Decision::Abort,
        Decision::Abort => Decision::Commit,
    }
}
