//! What was really signed. Whatever anybody shows under a replica's signature, and passes the check of signatures, that replica
//! has signed. So no checker needs to know how signatures are made: it is enough that nobody can make another's.

use std::collections::BTreeSet;

use basil::certificate::{
    Certificate, Decision, LoggedSet, LoggedStatement, Proof, ShardProof, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement,
};
use basil::message::{Conflict, Unsigned};
use basil::recovery::{DecideStatement, ElectStatement};
use basil::{Message, message};
use types::{ReplicaId, TransactionId};

/// One thing that one replica says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Statement {
    Vote(TransactionId, Vote),
    /// The transaction, the decision, and in which views it was decided and said.
    Logged(TransactionId, Decision, u32, u32),
    Elect(TransactionId, Decision, u32),
    Decide(TransactionId, Decision, u32),
}

impl From<VoteStatement> for Statement {
    fn from(VoteStatement { id, vote }: VoteStatement) -> Self {
        Self::Vote(id, vote)
    }
}

impl From<LoggedStatement> for Statement {
    fn from(LoggedStatement { id, decision, view_decision, view_current }: LoggedStatement) -> Self {
        Self::Logged(id, decision, view_decision, view_current)
    }
}

impl From<ElectStatement> for Statement {
    fn from(ElectStatement { id, decision, view }: ElectStatement) -> Self {
        Self::Elect(id, decision, view)
    }
}

impl From<DecideStatement> for Statement {
    fn from(DecideStatement { id, decision, view }: DecideStatement) -> Self {
        Self::Decide(id, decision, view)
    }
}

/// All that was ever signed, by whomever.
#[derive(Debug, Default)]
pub(crate) struct Signed(BTreeSet<(ReplicaId, Statement)>);

impl Signed {
    /// A replica signs something: it may be shown from now on.
    pub fn note(&mut self, by: ReplicaId, unsigned: &Unsigned) {
        self.0.insert(match unsigned {
            Unsigned::Vote { statement, .. } => (by, (*statement).into()),
            Unsigned::Logged { statement, .. } => (by, (*statement).into()),
            Unsigned::Elect { statement, .. } => (by, (*statement).into()),
            Unsigned::Decide { statement, .. } => (by, (*statement).into()),
        });
    }

    /// Everything in a message that was believed and that its signer never said, as sentences.
    pub fn made_up(&self, message: &Message) -> Vec<String> {
        let mut shown = Vec::new();
        in_message(message, &mut shown);
        let made_up = shown.into_iter().filter(|one| !self.0.contains(one));
        made_up.map(|(by, statement)| format!("somebody believed that {by} said {statement:?}, and it never did")).collect()
    }
}

type Shown = Vec<(ReplicaId, Statement)>;

fn in_message(message: &Message, out: &mut Shown) {
    match message {
        Message::Read { .. }
        | Message::Scan { .. }
        | Message::ScanReply { .. }
        | Message::Prepare { .. }
        | Message::StatusQuery { .. }
        | Message::ReadReply { .. }
        | Message::ClockQuery { .. }
        | Message::ClockReply { .. }
        | Message::ClockProposal { .. }
        | Message::JournalKnown { .. }
        | Message::StatusReply { .. }
        | Message::CommitsQuery { .. }
        | Message::CommitsReply { .. }
        | Message::TransactionsQuery { .. }
        | Message::TransactionsReply { .. }
        | Message::VersionsQuery { .. }
        | Message::VersionsReply { .. }
        | Message::UndecidedQuery { .. }
        | Message::UndecidedReply { .. }
        | Message::CommitNotice { .. }
        | Message::Refused { .. } => {}
        Message::Recover { evidence, .. } => evidence.iter().for_each(|vote| in_vote(vote, out)),
        Message::Log { transaction, tallies, .. } => tallies.iter().for_each(|set| in_votes(transaction.id(), set, out)),
        Message::InvokeFallback { transaction, justified, views } => {
            if let Some(message::Justified { tallies, .. }) = justified {
                tallies.iter().for_each(|set| in_votes(transaction.id(), set, out));
            }
            views.iter().for_each(|logged| in_logged(logged, out));
        }
        Message::ElectFallback { elect } => out.push((elect.replica, elect.statement.into())),
        Message::DecideFallback { decide, electors } => {
            out.push((decide.leader, decide.statement.into()));
            let DecideStatement { id, view, .. } = decide.statement;
            for (index, decision, _) in electors {
                out.push((ReplicaId { shard: decide.leader.shard, index: *index }, Statement::Elect(id, *decision, view)));
            }
        }
        Message::Voted { vote, conflict } => {
            in_vote(vote, out);
            if let Some(Conflict::Committed { certificate, .. }) = conflict {
                in_certificate(certificate, out);
            }
        }
        Message::Logged { logged } => in_logged(logged, out),
        Message::Writeback { certificate, .. } | Message::Decided { certificate } => in_certificate(certificate, out),
    }
}

fn in_vote(vote: &SignedVote, out: &mut Shown) {
    out.push((vote.replica, vote.statement.into()));
}

fn in_logged(logged: &SignedLogged, out: &mut Shown) {
    out.push((logged.replica, logged.statement.into()));
}

fn in_votes(id: TransactionId, set: &VoteSet, out: &mut Shown) {
    out.extend(set.voters.iter().map(|(index, _)| (ReplicaId { shard: set.shard, index: *index }, Statement::Vote(id, set.vote))));
}

fn in_certificate(certificate: &Certificate, out: &mut Shown) {
    match &certificate.proof {
        Proof::Fast(proofs) => {
            for proof in proofs {
                match proof {
                    ShardProof::Votes(set) => in_votes(certificate.id, set, out),
                    ShardProof::Conflict { certificate, .. } => in_certificate(certificate, out),
                }
            }
        }
        Proof::Logged(LoggedSet { shard, view_decision, voters }) => {
            let said = voters.iter().map(|(index, view_current, _)| {
                let statement = Statement::Logged(certificate.id, certificate.decision, *view_decision, *view_current);
                (ReplicaId { shard: *shard, index: *index }, statement)
            });
            out.extend(said);
        }
    }
}
