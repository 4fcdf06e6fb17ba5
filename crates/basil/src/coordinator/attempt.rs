//! A transaction on its way to its end: what is known of it, and what that allows (basil.txt §4.2 (4), (5)).

use std::collections::BTreeMap;

use crate::transaction::Transaction;
use machine::{Time, Voters};
use smallvec::SmallVec;
use types::{ReplicaId, ShardId};

use crate::certificate::{Decision, ShardProof, SignedVote, Vote, VoteSet, VoteStatement};
use crate::quorum::Quorums;
use crate::recovery::LoggedReplies;
use crate::tally::{Outcome, Tally};

/// A transaction on its way to its end.
#[derive(Debug)]
pub(super) struct CommitAttempt {
    /// Whom to tell; nobody when it is finished for its own sake.
    pub operations: SmallVec<[u64; 1]>,
    pub transaction: Transaction,
    pub dependencies: Vec<Transaction>,
    pub participants: Vec<ShardId>,
    pub tallies: Vec<Tally>,
    /// ST2 replies.
    pub logged: LoggedReplies,
    /// How often a fallback leader was called for.
    pub elections: u32,
    /// What this process asks to be logged, once it does.
    pub logging: Option<Decision>,
    /// Who refuses to judge it for being too old, by shard.
    pub too_old: BTreeMap<ShardId, Voters>,
    /// Transactions said to stand in its way and to be stalled, and by whom.
    pub stalled: Vec<(Transaction, Voters)>,
    /// Whether it was begun to finish what somebody else left.
    pub was_finish: bool,
    pub fast_path_wait: FastPathWait,
    pub started: Time,
    /// When everybody was first asked to vote.
    pub asked_at: Time,
    pub retries: u32,
    pub commit_quorum_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastPathWait {
    NotBegun,
    Running,
    Over,
}

impl CommitAttempt {
    /// Votes to commit of `f + 1` replicas of one shard, if there are as many: they show that the transaction is its author's.
    pub fn evidence(&self, quorums: Quorums) -> Vec<SignedVote> {
        let id = self.transaction.id();
        for tally in &self.tallies {
            if tally.votes_to(Vote::Commit) >= quorums.weak() {
                let set = tally.votes(Vote::Commit);
                let signed = |(index, signature)| {
                    let replica = ReplicaId { shard: set.shard, index };
                    SignedVote { replica, statement: VoteStatement { id, vote: Vote::Commit }, signature }
                };
                return set.voters.into_iter().take(quorums.weak()).map(signed).collect();
            }
        }
        Vec::new()
    }

    /// A decision that needs no logging, with its proofs: (3) everywhere, or (4) or (5) anywhere.
    pub fn fast_decision(&self, quorums: Quorums) -> Option<(Decision, Vec<ShardProof>)> {
        let outcomes = self.tallies.iter().map(|tally| tally.outcome(quorums));
        if let Some(at) = outcomes.clone().position(|outcome| matches!(outcome, Outcome::AbortFast | Outcome::AbortByConflict)) {
            return Some((Decision::Abort, vec![self.tallies[at].proof(quorums)?]));
        }
        if outcomes.clone().all(|outcome| outcome == Outcome::CommitFast) {
            let proofs = self.tallies.iter().filter_map(|tally| tally.proof(quorums)).collect();
            return Some((Decision::Commit, proofs));
        }
        None
    }

    /// A decision that the votes justify, though it would have to be logged. One that the logging shard has begun to
    /// write down for somebody else is preferred, if these votes justify it too.
    pub fn slow_decision(&self, quorums: Quorums) -> Option<Decision> {
        let commit = self.tallies.iter().all(|tally| matches!(tally.outcome(quorums), Outcome::CommitFast | Outcome::CommitSlow));
        let abort = self.tallies.iter().any(|tally| tally.votes_to(Vote::Abort) >= quorums.abort_slow());
        let begun = |decision: Decision| self.logged.count_of(decision) >= quorums.weak();
        match (commit, abort) {
            (true, true) if begun(Decision::Abort) => Some(Decision::Abort),
            (true, _) => Some(Decision::Commit),
            (false, true) => Some(Decision::Abort),
            (false, false) => None,
        }
    }

    /// The votes that allow `decision` to be logged: of every shard to commit, of one to abort.
    pub fn justification(&self, decision: Decision, quorums: Quorums) -> Vec<VoteSet> {
        match decision {
            Decision::Commit => self.tallies.iter().map(|tally| tally.votes(Vote::Commit)).collect(),
            Decision::Abort => {
                let sets = self.tallies.iter().map(|tally| tally.votes(Vote::Abort));
                sets.filter(|set| set.voters.len() >= quorums.abort_slow()).take(1).collect()
            }
        }
    }

    /// Whether votes still to come could make `decision` end fast.
    pub fn may_end_fast(&self, decision: Decision, quorums: Quorums) -> bool {
        match decision {
            Decision::Commit => {
                self.tallies.iter().all(|tally| tally.outcome(quorums) == Outcome::CommitFast || tally.may_improve(quorums))
            }
            Decision::Abort => self.tallies.iter().any(|tally| tally.may_improve(quorums)),
        }
    }
}
