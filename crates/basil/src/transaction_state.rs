//! How far one transaction is at one replica.

use machine::{Time, Voters};
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::{ClientId, Party, ReplicaId, TransactionId};

use crate::certificate::{Decision, LoggedStatement, Vote};
use crate::check::AbortReason;
use crate::proofs::ProofNumber;
use crate::timestamp_index::OrderKey;
use crate::tombstones::RememberedOutcome;
use crate::transaction::Transaction;

/// A transaction as this replica knows it.
#[derive(Debug)]
pub(crate) struct TransactionState {
    pub transaction: Transaction,
    /// Which it is among the transactions of this replica.
    pub number: u64,
    /// When this replica, or this process of it, first met the transaction.
    pub since: Time,
    /// What its contents count as.
    pub counted_as: CountedAs,
    pub phase: Phase,
    /// What this replica has logged about it, as a member of the logging shard.
    pub logged: Option<LoggedDecision>,
    /// Who waits for it, while anybody does: of those that are kept for half a minute, hardly any.
    waiters: Option<Box<Waiters>>,
    /// The relays whose notice of its commit has arrived since this process started.
    pub commit_notices: Voters,
    /// Its author's own channel brought it, or enough votes showed that the author sent it.
    pub authored: bool,
    /// Somebody else brought it before its author did, or too late for a vote to commit.
    pub awaits_author: bool,
    /// The time at which this replica finishes it was already brought forward.
    pub is_expedited: bool,
}

/// Who waits for a transaction.
#[derive(Debug, Default)]
struct Waiters {
    /// Transactions whose votes wait for its outcome.
    dependents: Vec<TransactionId>,
    /// Who waits for the vote.
    requesters: SmallVec<[Party; 1]>,
}

/// What undecided work is taken in for. Each has room of its own, so that whoever prepares much keeps nobody from finishing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Prepare,
    /// Somebody else's, brought to be finished.
    Finish,
}

/// Whose quota undecided work takes, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quota {
    pub purpose: Purpose,
    pub owner: QuotaOwner,
}

impl Quota {
    pub fn prepare(owner: impl Into<QuotaOwner>) -> Self {
        Self { purpose: Purpose::Prepare, owner: owner.into() }
    }

    pub fn finish(owner: impl Into<QuotaOwner>) -> Self {
        Self { purpose: Purpose::Finish, owner: owner.into() }
    }
}

/// What the contents of a transaction count as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedAs {
    /// As undecided, in somebody's quota.
    Undecided(Quota),
    /// As voted down long ago, to be forgotten below the watermark.
    VotedDown,
    /// As a released orphan's.
    Released,
    /// As a decided transaction's.
    Decided,
    /// It is being forgotten.
    Nothing,
}

/// The states of a transaction at a replica. Each leads only to later ones.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The check has not run: the author has not been heard from, or only a decision was logged here.
    Unjudged,
    /// L14-15: prepared. The vote waits until this many dependencies are decided.
    Waiting { dependencies: usize },
    /// L19: prepared, and voted to commit.
    VotedCommit,
    /// Voted to abort; the reason is known to the process that cast the vote.
    VotedAbort { reason: Option<Box<AbortReason>> },
    /// Released as an orphan ([`crate::orphan_resolution`]): it counts in no check any more, but what was said of it stands.
    Released { vote: Vote },
    /// The outcome is known.
    Concluded(Conclusion),
}

/// A known outcome, and what belongs to it.
#[derive(Debug)]
pub(crate) struct Conclusion {
    pub decision: Decision,
    /// The replica's own vote, which may differ from the decision.
    pub vote: Option<Vote>,
    pub reason: Option<Box<AbortReason>>,
    /// The proof, at hand while others are likely to ask for it.
    pub proof: Option<ProofNumber>,
    /// Set when somebody else ended it and the author has not come since: until when it counts against the author.
    pub abandoned_until: Option<Time>,
    /// This process has sent commit notices to the other replicas.
    pub is_relayed: bool,
}

/// A decision that this replica has logged.
#[derive(Debug)]
pub(crate) struct LoggedDecision {
    pub decision: Decision,
    /// The view in which it was decided: 0 by a client, above by a fallback leader.
    pub view: u32,
    pub election: Option<Box<Election>>,
}

/// A transaction's elections at one replica (§5).
#[derive(Debug, Default)]
pub(crate) struct Election {
    /// The view the replica is in.
    pub view: u32,
    /// When this process entered it.
    pub entered: Time,
    /// Who wants to hear what a leader decides.
    pub interested: SmallVec<[Party; 1]>,
}

/// The party that brought undecided work, which need not be the author it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuotaOwner {
    Client(ClientId),
    Replica(ReplicaId),
}

impl From<Party> for QuotaOwner {
    fn from(party: Party) -> Self {
        match party {
            Party::Client(client, _) => Self::Client(client),
            Party::Replica(replica) => Self::Replica(replica),
        }
    }
}

impl TransactionState {
    pub fn new(transaction: Transaction, number: u64, since: Time, quota: Quota) -> Self {
        Self {
            transaction,
            number,
            since,
            counted_as: CountedAs::Undecided(quota),
            phase: Phase::Unjudged,
            logged: None,
            waiters: None,
            commit_notices: Voters::default(),
            authored: false,
            awaits_author: false,
            is_expedited: false,
        }
    }

    /// Its place among the transactions of this replica.
    pub fn order_key(&self) -> OrderKey {
        (self.transaction.timestamp(), self.number)
    }

    /// The vote of `dependent` waits for its outcome.
    pub fn add_dependent(&mut self, dependent: TransactionId) {
        self.waiters.get_or_insert_default().dependents.push(dependent);
    }

    /// Those whose votes wait for its outcome. They wait no more.
    pub fn take_dependents(&mut self) -> Vec<TransactionId> {
        let dependents = self.waiters.as_mut().map(|waiters| std::mem::take(&mut waiters.dependents)).unwrap_or_default();
        self.waiters.take_if(|waiters| waiters.requesters.is_empty());
        dependents
    }

    /// Who waits for the vote.
    pub fn requesters(&self) -> &[Party] {
        self.waiters.as_ref().map_or(&[], |waiters| &waiters.requesters)
    }

    /// `party` waits for the vote.
    pub fn add_requester(&mut self, party: Party) {
        self.waiters.get_or_insert_default().requesters.push(party);
    }

    /// Who has waited for the vote. They wait no more.
    pub fn take_requesters(&mut self) -> SmallVec<[Party; 1]> {
        let requesters = self.waiters.as_mut().map(|waiters| std::mem::take(&mut waiters.requesters)).unwrap_or_default();
        self.waiters.take_if(|waiters| waiters.dependents.is_empty());
        requesters
    }

    /// The vote, once cast: it is final.
    pub fn vote(&self) -> Option<Vote> {
        match &self.phase {
            Phase::Unjudged | Phase::Waiting { .. } => None,
            Phase::VotedCommit => Some(Vote::Commit),
            Phase::VotedAbort { .. } => Some(Vote::Abort),
            Phase::Released { vote } => Some(*vote),
            Phase::Concluded(conclusion) => conclusion.vote,
        }
    }

    /// Why the vote is to abort, if this process cast it.
    pub fn abort_reason(&self) -> Option<AbortReason> {
        match &self.phase {
            Phase::VotedAbort { reason } => reason.as_deref().copied(),
            Phase::Concluded(conclusion) => conclusion.reason.as_deref().copied(),
            Phase::Unjudged | Phase::Waiting { .. } | Phase::VotedCommit | Phase::Released { .. } => None,
        }
    }

    /// Sets the vote. A known outcome stays known.
    pub fn set_vote(&mut self, vote: Vote, reason: Option<AbortReason>) {
        let reason = reason.map(Box::new);
        match (&mut self.phase, vote) {
            (Phase::Concluded(conclusion), _) => (conclusion.vote, conclusion.reason) = (Some(vote), reason),
            (phase, Vote::Commit) => *phase = Phase::VotedCommit,
            (phase, Vote::Abort) => *phase = Phase::VotedAbort { reason },
        }
    }

    /// Its reads and writes count in the checks of others.
    pub fn is_prepared(&self) -> bool {
        match &self.phase {
            Phase::Unjudged | Phase::VotedAbort { .. } | Phase::Released { .. } => false,
            Phase::Waiting { .. } | Phase::VotedCommit => true,
            Phase::Concluded(conclusion) => conclusion.decision == Decision::Commit,
        }
    }

    /// The check has not run and the outcome is not known.
    pub fn is_unjudged(&self) -> bool {
        matches!(self.phase, Phase::Unjudged)
    }

    /// It is kept for what was said of it alone.
    pub fn is_released(&self) -> bool {
        matches!(self.phase, Phase::Released { .. })
    }

    /// Undecided, and this replica's concern: not released.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Released { .. } | Phase::Concluded(_))
    }

    pub fn conclusion(&self) -> Option<&Conclusion> {
        match &self.phase {
            Phase::Concluded(conclusion) => Some(conclusion),
            _ => None,
        }
    }

    pub fn conclusion_mut(&mut self) -> Option<&mut Conclusion> {
        match &mut self.phase {
            Phase::Concluded(conclusion) => Some(conclusion),
            _ => None,
        }
    }

    pub fn decision(&self) -> Option<Decision> {
        self.conclusion().map(|conclusion| conclusion.decision)
    }

    /// Whether relays' notices of its commit change anything.
    pub fn heeds_notices(&self) -> bool {
        self.conclusion().is_none_or(|known| known.decision == Decision::Commit && known.abandoned_until.is_some())
    }

    /// The view this replica is in: 0 until it elects or follows a leader.
    pub fn view(&self) -> u32 {
        self.logged.as_ref().and_then(|logged| logged.election.as_ref()).map_or(0, |election| election.view)
    }

    /// The view in which the logged decision was made.
    pub fn logged_in(&self) -> Option<u32> {
        self.logged.as_ref().map(|logged| logged.view)
    }

    /// Notes what this replica logs.
    pub fn set_logged(&mut self, decision: Decision, view: u32) {
        let election = self.logged.take().and_then(|logged| logged.election);
        self.logged = Some(LoggedDecision { decision, view, election });
    }

    /// The statement this replica signs about its logged decision.
    pub fn logged_statement(&self) -> Option<LoggedStatement> {
        let LoggedDecision { decision, view, .. } = *self.logged.as_ref()?;
        Some(LoggedStatement { id: self.transaction.id(), decision, view_decision: view, view_current: self.view() })
    }

    /// Enters `view` if it is higher than the present one. A replica that has logged nothing stays in view 0.
    pub fn enter_view(&mut self, view: u32, now: Time) {
        if view > self.view()
            && let Some(logged) = &mut self.logged
        {
            let election = logged.election.get_or_insert_default();
            (election.view, election.entered) = (view, now);
        }
    }

    /// The outcome, and the first view in which this replica may state that it has logged it: not before the view that it has come to, and after it if
    /// it may have stated otherwise there. There is none if it will not remember having said so.
    pub fn outcome(&self) -> Option<RememberedOutcome> {
        let (decision, view) = (self.decision()?, self.view());
        let states_otherwise = self.logged.as_ref().is_some_and(|logged| logged.decision != decision);
        let first = if states_otherwise { view.saturating_add(1) } else { view };
        Some(RememberedOutcome { decision, view: (!self.is_unattested()).then_some(first) })
    }

    /// It aborted, and this replica never made a statement about it. No tombstone is kept for it.
    pub fn is_unattested(&self) -> bool {
        let is_silent = self.vote().is_none() && self.logged.is_none();
        self.decision() == Some(Decision::Abort) && is_silent && !broken(Mutant::FabricatedAbortKept)
    }

    /// It must be kept while it is undecided: others here wait for it, or the replica's statements about it bind. Only a vote to
    /// abort on which nothing depends does not.
    pub fn is_binding(&self) -> bool {
        self.vote() != Some(Vote::Abort)
            || self.is_prepared()
            || self.logged.is_some()
            || self.waiters.as_ref().is_some_and(|waiters| !waiters.dependents.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_nobody_waits_for_takes_two_cache_lines() {
        // There may be half a million in the window: each byte is half a megabyte.
        assert!(size_of::<TransactionState>() <= 128, "{} bytes", size_of::<TransactionState>());
    }
}
