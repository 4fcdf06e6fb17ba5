//! What proves to everybody that a replica lies: two votes of it on one transaction, to commit and to abort. A vote is cast once and repeated from then on, also
//! after a crash and under another key; a replica that lost its disk never speaks again of what it may have voted on. So whoever holds both has proof, and needs
//! nobody's word for it. (The holder of the key may be to blame without meaning to: its disk may have forgotten.)
//!
//! A `Witness` looks at what a replica's process hears, and remembers a bounded number of votes. What it does not see it does not prove: it is a help for
//! operators, and no promise rests on it. Votes to commit that come in the proof of a commit are not remembered, as that is what mostly comes; they are compared
//! with what is known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use crypto::{BadMember, BatchSignature, Claim, Rejection, SignatureClaims, Signatures, Verifier, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ReplicaId, TransactionId};

use crate::certificate::{Certificate, Proof, ShardProof, SignedVote, Vote, VoteSet, VoteStatement};
use crate::message::Message;

/// Of so many transactions votes are remembered, at most.
const TRANSACTIONS_MAX: usize = 1_024;
/// And so many votes of each, at most.
const VOTES_MAX: usize = 64;
/// What the bytes of a proof begin with: a format version, and what it is.
const HEADER: &[u8] = b"\x01basil votes\0";
/// How many checked roots are remembered while one is checked.
const ROOTS_MAX: usize = 16;

/// Two votes of one replica on one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// Who voted twice.
    pub replica: ReplicaId,
    /// On which transaction.
    pub id: TransactionId,
    /// The signatures of its vote to commit, and of that to abort.
    pub signatures: (BatchSignature, BatchSignature),
}

/// Why bytes prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContradictionError {
    /// They do not begin as such a proof does.
    #[error("these are no two votes of basil's, or in a newer format")]
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
        for (vote, signature) in [(Vote::Commit, &self.signatures.0), (Vote::Abort, &self.signatures.1)] {
            out.push(Claim { signer, leaf: leaf(cluster.id(), signer, &VoteStatement { id, vote }), signature });
        }
        Ok(())
    }
}

impl Contradiction {
    /// As it is kept.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = HEADER.to_vec();
        self.replica.encode(&mut bytes);
        self.id.encode(&mut bytes);
        self.signatures.0.encode(&mut bytes);
        self.signatures.1.encode(&mut bytes);
        bytes.into()
    }

    /// Reads one, and checks it with nothing but the cluster's public keys: both votes are by the key that the replica has in `cluster`.
    ///
    /// # Errors
    /// [`ContradictionError`], when it proves nothing.
    pub fn verify(bytes: &Bytes, cluster: Arc<Cluster>, signatures: Signatures) -> Result<Self, ContradictionError> {
        if !bytes.starts_with(HEADER) {
            return Err(ContradictionError::Header);
        }
        let mut reader = Reader::new(bytes.slice(HEADER.len()..), cluster.id());
        let (replica, id) = (ReplicaId::decode(&mut reader)?, TransactionId::decode(&mut reader)?);
        let both = (BatchSignature::decode(&mut reader)?, BatchSignature::decode(&mut reader)?);
        reader.finish()?;
        let found = Self { replica, id, signatures: both };
        Ok(Verifier::new(cluster, signatures, ROOTS_MAX)?.verify(found)?.into_inner())
    }
}

/// Remembers votes, to compare others with them.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    known: BTreeMap<TransactionId, Vec<(ReplicaId, Vote, BatchSignature)>>,
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
            Message::InvokeFallback { justified: Some(justified), .. } => self.note_sets(id_of(message), &justified.tallies, &mut found),
            Message::Writeback { certificate, .. } | Message::Decided { certificate } => self.note_certificate(certificate, &mut found),
            _ => {}
        }
        found.retain(|contradiction| self.caught.insert(contradiction.replica));
        found
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
        let Proof::Fast(proofs) = &certificate.proof else { return };
        let is_known = self.known.contains_key(&certificate.id);
        for proof in proofs {
            if let ShardProof::Votes(set) = proof
                && (is_known || set.vote == Vote::Abort)
            {
                self.note_sets(Some(certificate.id), std::slice::from_ref(set), found);
            }
        }
    }

    fn note(&mut self, id: TransactionId, replica: ReplicaId, vote: Vote, signature: &BatchSignature, found: &mut Vec<Contradiction>) {
        if !self.known.contains_key(&id) {
            self.order.push_back(id);
            if self.order.len() > TRANSACTIONS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        let votes = self.known.entry(id).or_default();
        match votes.iter().find(|(other, ..)| *other == replica) {
            Some((_, earlier, theirs)) if *earlier != vote || broken(Mutant::HonestConvicted) => {
                let (commit, abort) = if vote == Vote::Commit { (signature, theirs) } else { (theirs, signature) };
                found.push(Contradiction { replica, id, signatures: (commit.clone(), abort.clone()) });
            }
            Some(_) => {}
            None if votes.len() < VOTES_MAX => votes.push((replica, vote, signature.clone())),
            None => {}
        }
    }
}

fn id_of(message: &Message) -> Option<TransactionId> {
    match message {
        Message::Log { transaction, .. } | Message::InvokeFallback { transaction, .. } => Some(transaction.id()),
        _ => None,
    }
}
