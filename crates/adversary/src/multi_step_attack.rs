//! Multi-step attacks: a client collects votes and logged decisions of one transaction to prove a wrong outcome.
//!
//! No attack can succeed. Each would succeed if one rule of replicas or of certificates were missing, so it tests that rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::certificate::{
    Certificate, Decision, LoggedSet, Proof, ShardProof, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement, logging_shard,
};
use basil::message::Justified;
use basil::{Message, Quorums, Transaction};
use crypto::{BatchSignature, SignedRoot, leaf};
use random::Random;
use types::{ClientId, Cluster, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId};

use crate::attack_primitives::{Heard, Sends};

/// How often one attack invokes the fallback, at most.
const CALLS_MAX: usize = 24;
/// How many replicas a forged certificate is sent to.
const SHOWN_TO: usize = 2;

/// The goal of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttackGoal {
    /// To prove both outcomes with valid certificates.
    DecideTwice,
    /// To prove the wrong outcome with an invalid certificate.
    Forge,
    /// To log decisions that no votes justify.
    LogFreely,
    /// To change views so fast that no leader can finish.
    Hurry,
    /// To commit a transaction in another client's name.
    Vouch,
}

/// An attack on one transaction, with all messages received about it.
#[derive(Debug)]
pub(crate) struct MultiStepAttack {
    goal: AttackGoal,
    cluster: Arc<Cluster>,
    transaction: Transaction,
    participants: Vec<ShardId>,
    votes: Heard,
    /// The last logged decision of each replica, for each decision: Byzantine replicas have two.
    logged: BTreeMap<(ReplicaId, Decision), SignedLogged>,
    /// The client to which certificates are sent.
    bystander: Option<ClientId>,
    proven: Vec<Decision>,
    has_logged: bool,
    calls: usize,
}

impl MultiStepAttack {
    pub fn new(goal: AttackGoal, cluster: Arc<Cluster>, transaction: Transaction, bystander: Option<ClientId>) -> Self {
        let participants = transaction.participants(&cluster);
        Self {
            goal,
            cluster,
            transaction,
            participants,
            votes: Heard::default(),
            logged: BTreeMap::new(),
            bystander,
            proven: Vec::new(),
            has_logged: false,
            calls: 0,
        }
    }

    pub fn id(&self) -> TransactionId {
        self.transaction.id()
    }

    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    fn quorums(&self) -> Quorums {
        Quorums::new(self.cluster.faults())
    }

    fn logging_shard(&self) -> Option<ShardId> {
        logging_shard(&self.participants, self.id())
    }

    /// The first messages of the attack.
    pub fn begin(&self, random: &mut Random) -> Sends {
        match self.goal {
            AttackGoal::LogFreely => {
                let decision = random.pick(&[Decision::Commit, Decision::Abort]);
                self.log(self.logging_shard(), |_| (decision, Vec::new()))
            }
            _ => Vec::new(),
        }
    }

    /// Hears whatever a replica says.
    pub fn hear(&mut self, message: &Message, random: &mut Random) -> Sends {
        match message {
            Message::Voted { vote, .. } if vote.statement.id == self.id() => {
                // Answering each vote with a request for votes would never end.
                if !self.votes.note(vote) {
                    return Vec::new();
                }
                match self.goal {
                    AttackGoal::Vouch => self.vouch(),
                    AttackGoal::DecideTwice | AttackGoal::Hurry => [self.log_both(random), self.show()].concat(),
                    AttackGoal::Forge | AttackGoal::LogFreely => self.show(),
                }
            }
            Message::Logged { logged } if logged.statement.id == self.id() => {
                self.logged.insert((logged.replica, logged.statement.decision), logged.clone());
                let mut sends = self.show();
                if matches!(self.goal, AttackGoal::DecideTwice | AttackGoal::Hurry) {
                    sends.extend(self.call(random));
                }
                sends
            }
            _ => Vec::new(),
        }
    }

    /// The transaction has this proven outcome: tries to prove the other one.
    pub fn ended(&self, certificate: &Arc<Certificate>, other: Option<&(Transaction, Arc<Certificate>)>, random: &mut Random) -> Sends {
        if self.goal != AttackGoal::Forge {
            return Vec::new();
        }
        let wanted = match certificate.decision {
            Decision::Commit => Decision::Abort,
            Decision::Abort => Decision::Commit,
        };
        let mut replicas: Vec<ReplicaId> = self.participants.iter().flat_map(|shard| self.cluster.replicas_of(*shard)).collect();
        random.shuffle(&mut replicas);
        replicas.truncate(SHOWN_TO);
        let mut sends = Vec::new();
        for certificate in self.forgeries(wanted, other) {
            let certificate = Arc::new(certificate);
            for replica in &replicas {
                let transaction = Some(self.transaction.clone());
                sends.push((Party::Replica(*replica), Message::Writeback { transaction, certificate: certificate.clone(), relay: false }));
            }
        }
        sends
    }

    // What votes and logged decisions are good for.

    /// Sends the bystander every valid certificate that can be made, once for each outcome.
    fn show(&mut self) -> Sends {
        let mut sends = Vec::new();
        for certificate in self.certificates() {
            if let Some(bystander) = self.bystander
                && !self.proven.contains(&certificate.decision)
            {
                self.proven.push(certificate.decision);
                sends.push((Party::Client(bystander, Session(1)), Message::Decided { certificate: Arc::new(certificate) }));
            }
        }
        sends
    }

    fn certificates(&self) -> Vec<Certificate> {
        let (id, quorums) = (self.id(), self.quorums());
        let mut certificates = Vec::new();
        let sets = |vote| self.participants.iter().map(move |shard| self.votes.set(*shard, vote));
        let commits: Vec<ShardProof> =
            sets(Vote::Commit).filter(|set| set.voters.len() >= quorums.commit_fast()).map(ShardProof::Votes).collect();
        if commits.len() == self.participants.len() {
            certificates.push(Certificate { id, decision: Decision::Commit, proof: Proof::Fast(commits) });
        }
        if let Some(set) = sets(Vote::Abort).find(|set| set.voters.len() >= quorums.abort_fast()) {
            certificates.push(Certificate { id, decision: Decision::Abort, proof: Proof::Fast(vec![ShardProof::Votes(set)]) });
        }
        for decision in [Decision::Commit, Decision::Abort] {
            let said = || self.logged.iter().filter(move |((_, said), _)| *said == decision).map(|(_, logged)| logged);
            for one in said() {
                let (shard, view_decision) = (one.replica.shard, one.statement.view_decision);
                let equal = said().filter(|other| (other.replica.shard, other.statement.view_decision) == (shard, view_decision));
                let voters: Vec<_> = equal.map(|one| (one.replica.index, one.statement.view_current, one.signature.clone())).collect();
                if voters.len() >= quorums.logged() {
                    certificates.push(Certificate { id, decision, proof: Proof::Logged(LoggedSet { shard, view_decision, voters }) });
                    break;
                }
            }
        }
        certificates
    }

    /// Once the votes justify both decisions, asks every replica to log both, in different orders; sometimes in two shards.
    fn log_both(&mut self, random: &mut Random) -> Sends {
        let quorums = self.quorums();
        let commits: Vec<VoteSet> = self.participants.iter().map(|shard| self.votes.set(*shard, Vote::Commit)).collect();
        let mut aborts = self.participants.iter().map(|shard| self.votes.set(*shard, Vote::Abort));
        let Some(abort) = aborts.find(|set| set.voters.len() >= quorums.abort_slow()) else { return Vec::new() };
        if self.has_logged || !commits.iter().all(|set| set.voters.len() >= quorums.commit_slow()) {
            return Vec::new();
        }
        self.has_logged = true;
        let why = |decision| match decision {
            Decision::Commit => (decision, commits.clone()),
            Decision::Abort => (decision, vec![abort.clone()]),
        };
        let elsewhere = self.participants.iter().copied().find(|shard| Some(*shard) != self.logging_shard());
        if elsewhere.is_some() && random.chance(500) {
            let here = self.log(self.logging_shard(), |_| why(Decision::Commit));
            return [here, self.log(elsewhere, |_| why(Decision::Abort))].concat();
        }
        // A correct replica logs the first decision; a Byzantine one may log both.
        let replicas = 5 * self.cluster.faults() + 1;
        let committed = u16::try_from(random.index(replicas + 1)).expect("shards are small");
        let first = |replica: ReplicaId| if replica.index < committed { Decision::Commit } else { Decision::Abort };
        let second = |replica: ReplicaId| if replica.index < committed { Decision::Abort } else { Decision::Commit };
        [self.log(self.logging_shard(), |to| why(first(to))), self.log(self.logging_shard(), |to| why(second(to)))].concat()
    }

    fn log(&self, shard: Option<ShardId>, what: impl Fn(ReplicaId) -> (Decision, Vec<VoteSet>)) -> Sends {
        let replicas = shard.into_iter().flat_map(|shard| self.cluster.replicas_of(shard));
        let log = |replica| {
            let (decision, tallies) = what(replica);
            (Party::Replica(replica), Message::Log { transaction: self.transaction.clone(), decision, tallies })
        };
        replicas.map(log).collect()
    }

    /// Invokes the fallback with the views received: with all of them, or with just enough to end a view.
    fn call(&mut self, random: &mut Random) -> Sends {
        let quorums = self.quorums();
        let mut latest: BTreeMap<u16, SignedLogged> = BTreeMap::new();
        for logged in self.logged.values().filter(|logged| Some(logged.replica.shard) == self.logging_shard()) {
            let known = latest.entry(logged.replica.index).or_insert_with(|| logged.clone());
            if known.statement.view_current < logged.statement.view_current {
                *known = logged.clone();
            }
        }
        if self.calls >= CALLS_MAX || latest.len() < quorums.view_passed() {
            return Vec::new();
        }
        self.calls += 1;
        let mut views: Vec<SignedLogged> = latest.into_values().collect();
        if random.chance(500) {
            random.shuffle(&mut views);
            views.truncate(quorums.view_passed());
            views.sort_by_key(|logged| logged.replica.index);
        }
        let sets = [self.votes_for(Decision::Commit), self.votes_for(Decision::Abort)];
        let justified = sets.into_iter().flatten().next();
        let replicas = self.logging_shard().into_iter().flat_map(|shard| self.cluster.replicas_of(shard));
        let call = |replica| {
            let (justified, views) = (justified.clone(), views.clone());
            (Party::Replica(replica), Message::InvokeFallback { transaction: self.transaction.clone(), justified, views })
        };
        replicas.map(call).collect()
    }

    fn votes_for(&self, decision: Decision) -> Option<Justified> {
        let quorums = self.quorums();
        let set = |shard: &ShardId, vote| self.votes.set(*shard, vote);
        let tallies: Vec<VoteSet> = match decision {
            Decision::Commit => self.participants.iter().map(|shard| set(shard, Vote::Commit)).collect(),
            Decision::Abort => {
                let aborts = self.participants.iter().map(|shard| set(shard, Vote::Abort));
                aborts.filter(|set| set.voters.len() >= quorums.abort_slow()).take(1).collect()
            }
        };
        let enough =
            !tallies.is_empty() && (decision == Decision::Abort || tallies.iter().all(|set| set.voters.len() >= quorums.commit_slow()));
        enough.then_some(Justified { decision, tallies })
    }

    /// Shows the votes received as evidence that the author sent the transaction.
    fn vouch(&self) -> Sends {
        let evidence: Vec<SignedVote> = self.participants.iter().flat_map(|shard| self.votes.signed(*shard, Vote::Commit)).collect();
        let replicas = self.participants.iter().flat_map(|shard| self.cluster.replicas_of(*shard));
        let recover = |replica| {
            let (transaction, evidence) = (self.transaction.clone(), evidence.clone());
            (Party::Replica(replica), Message::Recover { transaction, evidence })
        };
        if evidence.is_empty() { Vec::new() } else { replicas.map(recover).collect() }
    }

    // What they are not good for.

    /// Certificates for `decision`, each invalid in another way.
    fn forgeries(&self, decision: Decision, other: Option<&(Transaction, Arc<Certificate>)>) -> Vec<Certificate> {
        let (id, quorums) = (self.id(), self.quorums());
        let (wanted, opposite, needed) = match decision {
            Decision::Commit => (Vote::Commit, Vote::Abort, quorums.commit_fast()),
            Decision::Abort => (Vote::Abort, Vote::Commit, quorums.abort_fast()),
        };
        // To commit, every shard must agree; to abort, one.
        let shards = match decision {
            Decision::Commit => &self.participants[..],
            Decision::Abort => &self.participants[..self.participants.len().min(1)],
        };
        let fast = |set: &dyn Fn(ShardId) -> VoteSet| {
            let proofs = shards.iter().map(|shard| ShardProof::Votes(set(*shard))).collect();
            Certificate { id, decision, proof: Proof::Fast(proofs) }
        };
        let of = |shard, vote| self.votes.set(shard, vote);
        let mut forgeries = vec![
            // Too few say so.
            fast(&|shard| of(shard, wanted)),
            // Nobody signs.
            fast(&|shard| VoteSet { shard, vote: wanted, voters: Vec::new() }),
            // Who votes says the opposite.
            fast(&|shard| of(shard, opposite)),
            // Their signatures, and what they do not say.
            fast(&|shard| VoteSet { vote: wanted, ..of(shard, opposite) }),
            // Everybody signs, with signatures that nobody made.
            fast(&|shard| {
                let voters = (0..needed).map(|index| u16::try_from(index).expect("shards are small"));
                VoteSet { shard, vote: wanted, voters: voters.map(|index| (index, self.forged_signature(shard, index, wanted))).collect() }
            }),
            // Whoever does say so says it often enough for all.
            fast(&|shard| {
                let set = of(shard, wanted);
                let voters = set.voters.iter().cycle().take(if set.voters.is_empty() { 0 } else { needed }).cloned().collect();
                VoteSet { voters, ..set }
            }),
        ];
        // Some shards agree.
        let agreed: Vec<ShardProof> = self
            .participants
            .iter()
            .map(|shard| of(*shard, wanted))
            .filter(|set| set.voters.len() >= needed)
            .map(ShardProof::Votes)
            .collect();
        if decision == Decision::Commit && !agreed.is_empty() {
            forgeries.push(Certificate { id, decision, proof: Proof::Fast(agreed) });
        }
        if let (Decision::Abort, Some((transaction, certificate))) = (decision, other) {
            for shard in &self.participants {
                let conflict = |transaction: Transaction| {
                    let proof = ShardProof::Conflict { shard: *shard, transaction, certificate: certificate.clone() };
                    Certificate { id, decision, proof: Proof::Fast(vec![proof]) }
                };
                // A committed transaction that is in nobody's way; and one that would be, if it had committed.
                forgeries.push(conflict(transaction.clone()));
                forgeries.extend(self.obstacle().map(conflict));
            }
        }
        forgeries
    }

    /// A forged batch signature: its root is the leaf itself, and its signature is invalid.
    fn forged_signature(&self, shard: ShardId, index: u16, vote: Vote) -> BatchSignature {
        let root = leaf(self.cluster.id(), ReplicaId { shard, index }, &VoteStatement { id: self.id(), vote });
        BatchSignature { signed: Arc::new(SignedRoot { root, count: 1, signature: [0; 64] }), index: 0, path: Arc::default() }
    }

    /// A transaction that was never sent, and whose write the plot's transaction would have missed.
    fn obstacle(&self) -> Option<Transaction> {
        let read = self.transaction.reads().first()?;
        let timestamp = Timestamp::new(self.transaction.timestamp().time.checked_sub(1)?, self.transaction.timestamp().client);
        let write = basil::Write { key: read.key.clone(), value: None };
        Transaction::new(self.cluster.id(), timestamp, Vec::new(), vec![write]).ok()
    }
}
