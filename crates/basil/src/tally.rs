//! What a shard's votes amount to: the five outcomes of Basil §4.2 (4), and the sixth, "not yet".

use std::sync::Arc;

use crate::transaction::Transaction;
use crypto::BatchSignature;
use machine::Voters;
use mutants::{Mutant, broken};
use types::ShardId;

use crate::certificate::{Certificate, ShardProof, Vote, VoteSet};
use crate::quorum::Quorums;

/// The votes heard from one shard on one transaction.
#[derive(Clone, Debug)]
pub struct Tally {
    shard: ShardId,
    voters: Voters,
    commits: Vec<(u16, BatchSignature)>,
    aborts: Vec<(u16, BatchSignature)>,
    conflict: Option<(Transaction, Arc<Certificate>)>,
}

/// What the votes heard so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// (3) Every replica votes to commit: durable.
    CommitFast,
    /// (4) At least `3f + 1` vote to abort: durable.
    AbortFast,
    /// (5) A committed transaction is in the way: durable.
    AbortByConflict,
    /// (1) At least `3f + 1` vote to commit: must be logged to last.
    CommitSlow,
    /// (2) At least `f + 1` vote to abort, and too few to commit: must be logged to last.
    AbortSlow,
    /// Too few votes for anything.
    Open,
}

impl Tally {
    /// No votes yet from `shard`.
    #[must_use]
    pub fn new(shard: ShardId) -> Self {
        Self { shard, voters: Voters::default(), commits: Vec::new(), aborts: Vec::new(), conflict: None }
    }

    /// The shard whose votes these are.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Counts the vote of replica `index`; `false` when that replica has been counted before. Of a liar who
    /// says both things, the first counts.
    pub fn count(&mut self, index: u16, vote: Vote, signature: BatchSignature) -> bool {
        if !self.voters.insert(index) && !broken(Mutant::VoterCountedTwice) {
            return false;
        }
        let side = match vote {
            Vote::Commit => &mut self.commits,
            Vote::Abort => &mut self.aborts,
        };
        let at = side.partition_point(|(other, _)| *other < index);
        side.insert(at, (index, signature));
        true
    }

    /// Forgets what replica `index` has voted, and what was shown to be in the way: both may rest on a key that its place has no more. Gives whether
    /// anything was forgotten.
    pub fn forget(&mut self, index: u16) -> bool {
        let had_conflict = self.conflict.take().is_some();
        self.commits.retain(|(other, _)| *other != index);
        self.aborts.retain(|(other, _)| *other != index);
        let had_voted = self.voters.contains(index);
        self.voters.remove(index);
        had_voted || had_conflict
    }

    /// Notes a committed transaction, shown to conflict, that is in the way.
    pub fn conflicts_with(&mut self, transaction: Transaction, certificate: Arc<Certificate>) {
        self.conflict = Some((transaction, certificate));
    }

    /// Whether replica `index` has been heard.
    #[must_use]
    pub fn heard(&self, index: u16) -> bool {
        self.voters.contains(index)
    }

    /// How many replicas have been heard.
    #[must_use]
    pub fn count_heard(&self) -> usize {
        self.voters.count()
    }

    /// How many vote so.
    #[must_use]
    pub fn votes_to(&self, vote: Vote) -> usize {
        match vote {
            Vote::Commit => self.commits.len(),
            Vote::Abort => self.aborts.len(),
        }
    }

    /// What the votes amount to now.
    #[must_use]
    pub fn outcome(&self, quorums: Quorums) -> Outcome {
        if self.commits.len() >= quorums.commit_fast() {
            Outcome::CommitFast
        } else if self.conflict.is_some() {
            Outcome::AbortByConflict
        } else if self.aborts.len() >= quorums.abort_fast() {
            Outcome::AbortFast
        } else if self.commits.len() >= quorums.commit_slow() {
            Outcome::CommitSlow
        } else if self.aborts.len() >= quorums.abort_slow() {
            Outcome::AbortSlow
        } else {
            Outcome::Open
        }
    }

    /// Whether there are votes enough for a decision that has to be logged.
    #[must_use]
    pub fn is_slow(&self, quorums: Quorums) -> bool {
        matches!(self.outcome(quorums), Outcome::CommitSlow | Outcome::AbortSlow)
    }

    /// Whether votes still to come, of those who are `waited_for`, could turn a slow outcome into a better one.
    #[must_use]
    pub fn may_improve(&self, quorums: Quorums, waited_for: impl Fn(u16) -> bool) -> bool {
        let missing = (0..).zip(0..quorums.replicas()).filter(|(index, _)| !self.heard(*index) && waited_for(*index)).count();
        match self.outcome(quorums) {
            Outcome::CommitFast | Outcome::AbortFast | Outcome::AbortByConflict => false,
            Outcome::CommitSlow => self.commits.len() + missing >= quorums.commit_fast(),
            Outcome::AbortSlow => {
                self.aborts.len() + missing >= quorums.abort_fast() || self.commits.len() + missing >= quorums.commit_slow()
            }
            Outcome::Open => true,
        }
    }

    /// The votes on one side, as a set for a certificate or a decision to be logged.
    #[must_use]
    pub fn votes(&self, vote: Vote) -> VoteSet {
        let voters = match vote {
            Vote::Commit => self.commits.clone(),
            Vote::Abort => self.aborts.clone(),
        };
        VoteSet { shard: self.shard, vote, voters }
    }

    /// The proof of a fast outcome; `None` when the outcome is not fast.
    #[must_use]
    pub fn proof(&self, quorums: Quorums) -> Option<ShardProof> {
        match self.outcome(quorums) {
            Outcome::CommitFast => Some(ShardProof::Votes(self.votes(Vote::Commit))),
            Outcome::AbortFast => Some(ShardProof::Votes(self.votes(Vote::Abort))),
            Outcome::AbortByConflict => {
                self.conflict.clone().map(|(transaction, certificate)| ShardProof::Conflict { shard: self.shard, transaction, certificate })
            }
            Outcome::CommitSlow | Outcome::AbortSlow | Outcome::Open => None,
        }
    }
}
