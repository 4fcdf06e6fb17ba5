//! What proves to everybody that a replica lies: two statements of it on one transaction that no correct replica makes both.
//!
//! - *A vote to commit and a vote to abort* (ST1R). A vote is cast once and repeated from then on.
//! - *Two logged decisions, to commit and to abort, of one view* (ST2R). The first decision that is logged in a view stays, a client's (view 0) or a leader's. In
//!   different views they may differ: a later leader may decide otherwise, and the replica follows it. The view that it is in when it says so does not matter.
//!
//! Both hold after a crash and under another key, too; a replica that lost its disk never speaks again of what it may have said, and one that has forgotten a
//! transaction states its outcome in a view of which it has stated nothing else. So whoever holds both statements has proof, and needs nobody's word for it. (The
//! holder of the key may be to blame without meaning to: its disk may have forgotten.)
//!
//! A `Witness` looks at what a replica's process hears, and remembers a bounded number of statements. What it does not see it does not prove: it is a help for
//! operators, and no promise rests on it. Votes to commit, and logged decisions, that come in the proof of an outcome are not remembered, as that is what mostly
//! comes; they are compared with what is known.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use crypto::{BadMember, BatchSignature, Claim, Rejection, SignatureClaims, Signatures, Verifier, leaf};
use foldhash::HashMap;
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ReplicaId, TransactionId};

use crate::certificate::{
    Certificate, Decision, LoggedStatement, Proof, ShardProof, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement,
};
use crate::message::Message;

/// Of so many transactions statements are remembered, at most.
const TRANSACTIONS_MAX: usize = 1_024;
/// And so many votes, and as many logged decisions, of each, at most.
const STATEMENTS_MAX: usize = 64;
/// What the bytes of a proof begin with: a format version, and what it is.
const VOTES_HEADER: &[u8] = b"\x01basil votes\0";
const LOGGED_HEADER: &[u8] = b"\x01basil logged\0";
/// How many checked roots are remembered while one is checked.
const ROOTS_MAX: usize = 16;

/// Two statements of one replica on one transaction that no correct replica makes both.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// Who made them.
    pub replica: ReplicaId,
    /// On which transaction.
    pub id: TransactionId,
    /// What it stated.
    pub stated: Stated,
    /// The signature of its statement to commit, and of that to abort.
    pub signatures: (BatchSignature, BatchSignature),
}

/// What was stated both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    /// A vote.
    Votes,
    /// A logged decision.
    Logged {
        /// The view of both decisions.
        view_decision: u32,
        /// The views that it was in as it stated the one to commit, and that to abort.
        views_current: (u32, u32),
    },
}

impl Stated {
    /// What it did, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Votes => "this replica signed a vote to commit and a vote to abort one transaction: it lies, or its disk has forgotten",
            Self::Logged { .. } => {
                "this replica signed that it had logged one transaction to commit and to abort, in one view: it lies, or its disk has forgotten"
            }
        }
    }
}

/// Why bytes prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContradictionError {
    /// They do not begin as such a proof does.
    #[error("these are no two statements of a replica of basil's, or in a newer format")]
    Header,
    /// They cannot be read.
    #[error("it is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// The cluster's keys are no good keys.
    #[error("{0}")]
    Keys(#[from] BadMember),
    /// A signature is bad.
    #[error("it proves nothing: {0}")]
    Rejected(#[from] Rejection),
}

impl SignatureClaims for Contradiction {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        let (signer, id) = (self.replica, self.id);
        let (commit, abort) = match self.stated {
            Stated::Votes => {
                let of = |vote| leaf(cluster.id(), signer, &VoteStatement { id, vote });
                (of(Vote::Commit), of(Vote::Abort))
            }
            Stated::Logged { view_decision, views_current: (with_commit, with_abort) } => {
                let of =
                    |decision, view_current| leaf(cluster.id(), signer, &LoggedStatement { id, decision, view_decision, view_current });
                (of(Decision::Commit, with_commit), of(Decision::Abort, with_abort))
            }
        };
        out.push(Claim { signer, leaf: commit, signature: &self.signatures.0 });
        out.push(Claim { signer, leaf: abort, signature: &self.signatures.1 });
        Ok(())
    }
}

impl Contradiction {
    /// As it is kept.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = match self.stated {
            Stated::Votes => VOTES_HEADER,
            Stated::Logged { .. } => LOGGED_HEADER,
        }
        .to_vec();
        self.replica.encode(&mut bytes);
        self.id.encode(&mut bytes);
        if let Stated::Logged { view_decision, views_current: (with_commit, with_abort) } = self.stated {
            [view_decision, with_commit, with_abort].iter().for_each(|view| view.encode(&mut bytes));
        }
        self.signatures.0.encode(&mut bytes);
        self.signatures.1.encode(&mut bytes);
        bytes.into()
    }

    /// Reads one, and checks it with nothing but the cluster's public keys: both statements are by the key that the replica has in `cluster`.
    ///
    /// # Errors
    /// [`ContradictionError`], when it proves nothing.
    pub fn verify(bytes: &Bytes, cluster: Arc<Cluster>, signatures: Signatures) -> Result<Self, ContradictionError> {
        let is_logged = bytes.starts_with(LOGGED_HEADER);
        if !is_logged && !bytes.starts_with(VOTES_HEADER) {
            return Err(ContradictionError::Header);
        }
        let header = if is_logged { LOGGED_HEADER } else { VOTES_HEADER };
        let mut reader = Reader::new(bytes.slice(header.len()..), cluster.id());
        let (replica, id) = (ReplicaId::decode(&mut reader)?, TransactionId::decode(&mut reader)?);
        let stated = if is_logged {
            let mut view = || u32::decode(&mut reader);
            Stated::Logged { view_decision: view()?, views_current: (view()?, view()?) }
        } else {
            Stated::Votes
        };
        let both = (BatchSignature::decode(&mut reader)?, BatchSignature::decode(&mut reader)?);
        reader.finish()?;
        let found = Self { replica, id, stated, signatures: both };
        Ok(Verifier::new(cluster, signatures, ROOTS_MAX)?.verify(found)?.into_inner())
    }
}

/// What is remembered of a transaction.
#[derive(Debug, Default)]
struct Known {
    votes: Vec<(ReplicaId, Vote, BatchSignature)>,
    logged: Vec<SignedLogged>,
}

impl Known {
    fn forget(&mut self, has_changed: impl Fn(ReplicaId) -> bool) {
        self.votes.retain(|(replica, ..)| !has_changed(*replica));
        self.logged.retain(|logged| !has_changed(logged.replica));
    }
}

/// Remembers statements, to compare others with them.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    known: HashMap<TransactionId, Known>,
    /// In the order in which they came.
    order: VecDeque<TransactionId>,
    /// Who was caught: once is enough.
    caught: BTreeSet<ReplicaId>,
}

impl Witness {
    /// Looks at a message whose signatures are good. Gives what it proves.
    pub fn hear(&mut self, message: &Message) -> Vec<Contradiction> {
        let mut found = Vec::new();
        match message {
            Message::Voted { vote, .. } => self.note_all([vote], &mut found),
            Message::Recover { evidence, .. } => self.note_all(evidence, &mut found),
            Message::Log { tallies, .. } => self.note_sets(id_of(message), tallies, &mut found),
            Message::Logged { logged } => self.note_logged(logged, &mut found),
            Message::InvokeFallback { justified, views, .. } => {
                justified.iter().for_each(|justified| self.note_sets(id_of(message), &justified.tallies, &mut found));
                views.iter().for_each(|logged| self.note_logged(logged, &mut found));
            }
            Message::Writeback { certificate, .. } | Message::Decided { certificate } => self.note_certificate(certificate, &mut found),
            _ => {}
        }
        found.retain(|contradiction| self.caught.insert(contradiction.replica));
        found
    }

    /// Forgets what those have said, and that they were caught, who have another key now: another may have it, and no proof holds that rests on keys of
    /// two configurations.
    pub fn forget(&mut self, has_changed: impl Fn(ReplicaId) -> bool) {
        self.caught.retain(|replica| !has_changed(*replica));
        for id in &self.order {
            if let Some(known) = self.known.get_mut(id) {
                known.forget(&has_changed);
            }
        }
    }

    fn note_all<'a>(&mut self, votes: impl IntoIterator<Item = &'a SignedVote>, found: &mut Vec<Contradiction>) {
        for SignedVote { replica, statement, signature } in votes {
            self.note(statement.id, *replica, statement.vote, signature, found);
        }
    }

    fn note_sets(&mut self, id: Option<TransactionId>, sets: &[VoteSet], found: &mut Vec<Contradiction>) {
        let Some(id) = id else { return };
        for set in sets {
            for (index, signature) in &set.voters {
                self.note(id, ReplicaId { shard: set.shard, index: *index }, set.vote, signature, found);
            }
        }
    }

    fn note_certificate(&mut self, certificate: &Certificate, found: &mut Vec<Contradiction>) {
        let is_known = self.known.contains_key(&certificate.id);
        let proofs = match &certificate.proof {
            Proof::Fast(proofs) => proofs,
            Proof::Logged(set) => {
                let (id, decision, view_decision) = (certificate.id, certificate.decision, set.view_decision);
                for (index, view_current, signature) in set.voters.iter().filter(|_| is_known) {
                    let statement = LoggedStatement { id, decision, view_decision, view_current: *view_current };
                    let replica = ReplicaId { shard: set.shard, index: *index };
                    self.note_logged(&SignedLogged { replica, statement, signature: signature.clone() }, found);
                }
                return;
            }
        };
        for proof in proofs {
            if let ShardProof::Votes(set) = proof
                && (is_known || set.vote == Vote::Abort)
            {
                self.note_sets(Some(certificate.id), std::slice::from_ref(set), found);
            }
        }
    }

    fn note(&mut self, id: TransactionId, replica: ReplicaId, vote: Vote, signature: &BatchSignature, found: &mut Vec<Contradiction>) {
        let votes = &mut self.known_of(id).votes;
        match votes.iter().find(|(other, ..)| *other == replica) {
            Some((_, earlier, theirs)) if *earlier != vote || broken(Mutant::HonestConvicted) => {
                let (commit, abort) = if vote == Vote::Commit { (signature, theirs) } else { (theirs, signature) };
                found.push(Contradiction { replica, id, stated: Stated::Votes, signatures: (commit.clone(), abort.clone()) });
            }
            Some(_) => {}
            None if votes.len() < STATEMENTS_MAX => votes.push((replica, vote, signature.clone())),
            None => {}
        }
    }

    fn note_logged(&mut self, logged: &SignedLogged, found: &mut Vec<Contradiction>) {
        let (replica, LoggedStatement { id, decision, view_decision, .. }) = (logged.replica, logged.statement);
        let all = &mut self.known_of(id).logged;
        // What it logged in another view may be otherwise.
        let is_of_view = |other: &&SignedLogged| {
            other.replica == replica && (other.statement.view_decision == view_decision || broken(Mutant::FollowerConvicted))
        };
        match all.iter().find(is_of_view) {
            Some(earlier) if earlier.statement.decision != decision => {
                let (commit, abort) = if decision == Decision::Commit { (logged, earlier) } else { (earlier, logged) };
                let views_current = (commit.statement.view_current, abort.statement.view_current);
                found.push(Contradiction {
                    replica,
                    id,
                    stated: Stated::Logged { view_decision, views_current },
                    signatures: (commit.signature.clone(), abort.signature.clone()),
                });
            }
            Some(_) => {}
            None if all.len() < STATEMENTS_MAX => all.push(logged.clone()),
            None => {}
        }
    }

    /// What is remembered of a transaction; the one that was met first is forgotten where there is no room.
    fn known_of(&mut self, id: TransactionId) -> &mut Known {
        if !self.known.contains_key(&id) {
            self.order.push_back(id);
            if self.order.len() > TRANSACTIONS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        self.known.entry(id).or_default()
    }
}

fn id_of(message: &Message) -> Option<TransactionId> {
    match message {
        Message::Log { transaction, .. } | Message::InvokeFallback { transaction, .. } => Some(transaction.id()),
        _ => None,
    }
}
