//! Votes, logged decisions, and the certificates made of them: values that anyone with the cluster's public
//! keys can check, at any time, without asking anybody (Basil §4.2, §4.3).

use std::sync::Arc;

use crate::transaction::Transaction;
use crypto::{BatchSignature, Claim, Compress, Rejection, SignatureClaims, SignatureCompression, Statement, encode_as_first, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::limits::SHARDS_MAX;
use types::{Cluster, ReplicaId, ShardId, TransactionId};

use crate::check;
use crate::quorum::Quorums;

/// No shard has more replicas than this, so no certificate names more.
pub(crate) const VOTERS_MAX: usize = 5 * types::limits::FAULTS_MAX + 1;

/// What one replica thinks of one transaction. A correct replica says it once and for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote {
    /// The transaction may commit.
    Commit,
    /// It may not.
    Abort,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// Its writes take place.
    Commit,
    /// It never happened.
    Abort,
}

/// The statement behind a vote: "of this transaction I think this". The signer is part of what is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteStatement {
    /// The transaction.
    pub id: TransactionId,
    /// What the signer thinks of it.
    pub vote: Vote,
}

impl Statement for VoteStatement {
    const KIND: &'static str = "basil/vote/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.vote.encode(out);
    }
}

/// The statement behind a logged decision: "I have logged that this transaction ends like this".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedStatement {
    /// The transaction.
    pub id: TransactionId,
    /// How it ends.
    pub decision: Decision,
    /// The view in which that was decided: 0 by a client, above by a fallback leader.
    pub view_decision: u32,
    /// The view the signer is in now.
    pub view_current: u32,
}

impl Statement for LoggedStatement {
    const KIND: &'static str = "basil/logged/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.decision.encode(out);
        self.view_decision.encode(out);
        self.view_current.encode(out);
    }
}

/// One replica's signed vote: ST1R.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedVote {
    /// Who votes.
    pub replica: ReplicaId,
    /// On what, and how.
    pub statement: VoteStatement,
    /// The proof that the replica said so.
    pub signature: BatchSignature,
}

/// One replica's signed logged decision: ST2R.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedLogged {
    /// Who logged it.
    pub replica: ReplicaId,
    /// What was logged.
    pub statement: LoggedStatement,
    /// The proof that the replica said so.
    pub signature: BatchSignature,
}

/// Equal votes of distinct replicas of one shard. How many there must be depends on what they are to prove.
#[derive(Clone, Debug, PartialEq)]
pub struct VoteSet {
    /// The shard that votes.
    pub shard: ShardId,
    /// What all of them vote.
    pub vote: Vote,
    /// Who, by index in strict order, and the signature of each.
    pub voters: Vec<(u16, BatchSignature)>,
}

/// Who logged a decision, by index; the view it was in; its signature.
pub type LoggedVoter = (u16, u32, BatchSignature);

/// Equal logged decisions of distinct replicas of the logging shard.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedSet {
    /// The logging shard.
    pub shard: ShardId,
    /// The view all of them decided in.
    pub view_decision: u32,
    /// Who, by index in strict order; the view each was in; the signature of each.
    pub voters: Vec<LoggedVoter>,
}

/// What shows that one shard's vote is durable: the paper's V-CERT on the fast path.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardProof {
    /// `5f + 1` votes to commit, or at least `3f + 1` to abort.
    Votes(VoteSet),
    /// A committed transaction that the aborted one conflicts with (§4.2 (5)).
    Conflict {
        /// The shard where they conflict.
        shard: ShardId,
        /// The committed transaction.
        transaction: Transaction,
        /// That it is committed.
        certificate: Arc<Certificate>,
    },
}

/// What a certificate rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Proof {
    /// Fast path. To commit: one proof for every shard, in shard order. To abort: one shard's.
    Fast(Vec<ShardProof>),
    /// Slow path: the decision was logged on one shard.
    Logged(LoggedSet),
}

/// C-CERT or A-CERT: proof of how a transaction ended. It names the transaction by the hash of its contents,
/// so it is also a receipt for exactly what was read and written.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// The transaction.
    pub id: TransactionId,
    /// How it ended.
    pub decision: Decision,
    /// Why that cannot change any more.
    pub proof: Proof,
}

impl Certificate {
    /// Whether this certificate, whose signatures and quorums have been checked, is about all of `transaction`:
    /// its name, every shard it touches, its logging shard, a conflict that is one.
    ///
    /// # Errors
    /// [`Rejection`] that says what does not fit.
    pub fn fits(&self, cluster: &Cluster, transaction: &Transaction) -> Result<(), Rejection> {
        if self.id != transaction.id() && !broken(Mutant::CertificateOfOther) {
            return Err(Rejection::Structure("a certificate is about another transaction"));
        }
        let participants = transaction.participants(cluster);
        match (&self.proof, self.decision) {
            (Proof::Fast(proofs), Decision::Commit) => {
                let covers = proofs.iter().map(ShardProof::shard).eq(participants.iter().copied());
                if !covers && !broken(Mutant::ShardUncovered) {
                    return Err(Rejection::Structure("a commit certificate does not cover every shard once"));
                }
            }
            (Proof::Fast(proofs), Decision::Abort) => {
                let [proof] = proofs.as_slice() else {
                    return Err(Rejection::Structure("an abort certificate rests on one shard"));
                };
                if !participants.contains(&proof.shard()) {
                    return Err(Rejection::Structure("an abort certificate is from a shard not touched"));
                }
                if let ShardProof::Conflict { shard, transaction: other, certificate } = proof {
                    certificate.fits(cluster, other)?;
                    if !check::conflict_at(cluster, *shard, transaction, other) {
                        return Err(Rejection::Structure("the transactions of a conflict do not conflict"));
                    }
                }
            }
            (Proof::Logged(set), _) => {
                let anywhere = broken(Mutant::LoggedAnywhere) && participants.contains(&set.shard);
                if Some(set.shard) != logging_shard(&participants, self.id) && !anywhere {
                    return Err(Rejection::Structure("a decision was logged on the wrong shard"));
                }
            }
        }
        Ok(())
    }

    /// The transaction whose whole it shows, besides naming its own: the one that an aborted transaction conflicts with.
    #[must_use]
    pub fn shows(&self) -> Option<&Transaction> {
        let Proof::Fast(proofs) = &self.proof else { return None };
        proofs.iter().find_map(|proof| match proof {
            ShardProof::Votes(_) => None,
            ShardProof::Conflict { transaction, .. } => Some(transaction),
        })
    }
}

impl ShardProof {
    /// The shard it is about.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Votes(set) => set.shard,
            Self::Conflict { shard, .. } => *shard,
        }
    }
}

/// The shard that logs the decision on a transaction, drawn from its name (§4.2 (5)); `None` when it touches no shard.
#[must_use]
pub fn logging_shard(participants: &[ShardId], id: TransactionId) -> Option<ShardId> {
    let count = u64::try_from(participants.len()).ok().filter(|count| *count > 0)?;
    participants.get(usize::try_from(id.prefix() % count).ok()?).copied()
}

impl VoteSet {
    /// Collects the set's claims, if it has at least `quorum` distinct voters.
    pub(crate) fn claims<'a>(
        &'a self,
        cluster: &Cluster,
        id: TransactionId,
        quorum: usize,
        out: &mut Vec<Claim<'a>>,
    ) -> Result<(), Rejection> {
        distinct(self.shard, self.voters.iter().map(|(index, _)| *index), quorum)?;
        let statement = VoteStatement { id, vote: self.vote };
        for (index, signature) in &self.voters {
            let signer = ReplicaId { shard: self.shard, index: *index };
            out.push(Claim { signer, leaf: leaf(cluster.id(), signer, &statement), signature });
        }
        Ok(())
    }
}

/// Voters stand in strict order, so each once, and are enough.
pub(crate) fn distinct(shard: ShardId, mut indices: impl ExactSizeIterator<Item = u16>, needed: usize) -> Result<(), Rejection> {
    if indices.len() < needed && !broken(Mutant::SignersUncounted) {
        return Err(Rejection::TooFewSigners { found: indices.len(), needed });
    }
    let Some(mut previous) = indices.next() else { return Ok(()) };
    for index in indices {
        if index <= previous && !broken(Mutant::SignerRepeated) {
            return Err(Rejection::NotDistinct { signer: ReplicaId { shard, index } });
        }
        previous = index;
    }
    Ok(())
}

impl SignatureClaims for SignedVote {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        out.push(Claim { signer: self.replica, leaf: leaf(cluster.id(), self.replica, &self.statement), signature: &self.signature });
        Ok(())
    }
}

impl SignatureClaims for SignedLogged {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        out.push(Claim { signer: self.replica, leaf: leaf(cluster.id(), self.replica, &self.statement), signature: &self.signature });
        Ok(())
    }
}

impl SignatureClaims for Certificate {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        let quorums = Quorums::new(cluster.faults());
        match &self.proof {
            Proof::Fast(proofs) => {
                if proofs.is_empty() || (self.decision == Decision::Abort && proofs.len() > 1) {
                    return Err(Rejection::Structure("a certificate proves nothing, or an abort rests on more than one shard"));
                }
                // Before a signature is checked: a frame has room for hundreds of proofs of one shard.
                if !proofs.is_sorted_by(|proof, next| proof.shard() < next.shard()) && !broken(Mutant::ShardUncovered) {
                    return Err(Rejection::Structure("the proofs of a certificate are not in strict order of their shards"));
                }
                for proof in proofs {
                    match (proof, self.decision) {
                        (ShardProof::Votes(set), Decision::Commit) if set.vote == Vote::Commit || broken(Mutant::SideUnchecked) => {
                            set.claims(cluster, self.id, quorums.commit_fast(), out)?;
                        }
                        (ShardProof::Votes(set), Decision::Abort) if set.vote == Vote::Abort || broken(Mutant::SideUnchecked) => {
                            set.claims(cluster, self.id, quorums.abort_fast(), out)?;
                        }
                        (ShardProof::Conflict { certificate, .. }, Decision::Abort) if certificate.decision == Decision::Commit => {
                            certificate.claims(cluster, out)?;
                        }
                        _ => return Err(Rejection::Structure("a certificate's votes say otherwise than it does")),
                    }
                }
            }
            Proof::Logged(set) => {
                distinct(set.shard, set.voters.iter().map(|(index, _, _)| *index), quorums.logged())?;
                for (index, view_current, signature) in &set.voters {
                    let signer = ReplicaId { shard: set.shard, index: *index };
                    let statement = LoggedStatement {
                        id: self.id,
                        decision: self.decision,
                        view_decision: set.view_decision,
                        view_current: *view_current,
                    };
                    out.push(Claim { signer, leaf: leaf(cluster.id(), signer, &statement), signature });
                }
            }
        }
        Ok(())
    }
}

macro_rules! two_sided {
    ($type:ident, $what:literal) => {
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(match self {
                    Self::Commit => 1,
                    Self::Abort => 2,
                });
            }
        }
        impl Decode for $type {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                match u8::decode(reader)? {
                    1 => Ok(Self::Commit),
                    2 => Ok(Self::Abort),
                    _ => Err(DecodeError::UnknownTag($what)),
                }
            }
        }
    };
}

two_sided!(Vote, "a vote");
two_sided!(Decision, "a decision");

impl Compress for SignedVote {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.replica.encode(out);
        self.statement.id.encode(out);
        self.statement.vote.encode(out);
        compression.compress_signature(&self.signature, out);
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Ok(Self {
            replica: ReplicaId::decode(reader)?,
            statement: VoteStatement { id: TransactionId::decode(reader)?, vote: Vote::decode(reader)? },
            signature: compression.decompress_signature(reader)?,
        })
    }
}
encode_as_first!(SignedVote);

impl Encode for SignedLogged {
    fn encode(&self, out: &mut Vec<u8>) {
        self.replica.encode(out);
        self.statement.id.encode(out);
        self.statement.decision.encode(out);
        self.statement.view_decision.encode(out);
        self.statement.view_current.encode(out);
        self.signature.encode(out);
    }
}

impl Decode for SignedLogged {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            replica: ReplicaId::decode(reader)?,
            statement: LoggedStatement {
                id: TransactionId::decode(reader)?,
                decision: Decision::decode(reader)?,
                view_decision: u32::decode(reader)?,
                view_current: u32::decode(reader)?,
            },
            signature: BatchSignature::decode(reader)?,
        })
    }
}

impl Compress for VoteSet {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.shard.encode(out);
        self.vote.encode(out);
        types::codec::encode_count(self.voters.len(), out);
        for (index, signature) in &self.voters {
            index.encode(out);
            compression.compress_signature(signature, out);
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        let shard = ShardId::decode(reader)?;
        let vote = Vote::decode(reader)?;
        let count = reader.count("a set of votes", VOTERS_MAX)?;
        let mut voters = Vec::with_capacity(count);
        for _ in 0..count {
            voters.push((u16::decode(reader)?, compression.decompress_signature(reader)?));
        }
        Ok(Self { shard, vote, voters })
    }
}
encode_as_first!(VoteSet);

impl Encode for LoggedSet {
    fn encode(&self, out: &mut Vec<u8>) {
        self.shard.encode(out);
        self.view_decision.encode(out);
        types::codec::encode_count(self.voters.len(), out);
        for (index, view_current, signature) in &self.voters {
            index.encode(out);
            view_current.encode(out);
            signature.encode(out);
        }
    }
}

impl Decode for LoggedSet {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let shard = ShardId::decode(reader)?;
        let view_decision = u32::decode(reader)?;
        let count = reader.count("a set of logged decisions", VOTERS_MAX)?;
        let mut voters = Vec::with_capacity(count);
        for _ in 0..count {
            voters.push((u16::decode(reader)?, u32::decode(reader)?, BatchSignature::decode(reader)?));
        }
        Ok(Self { shard, view_decision, voters })
    }
}

impl ShardProof {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        match self {
            Self::Votes(set) => {
                out.push(1);
                set.compress(compression, out);
            }
            Self::Conflict { shard, transaction, certificate } => {
                out.push(2);
                shard.encode(out);
                transaction.encode(out);
                certificate.compress(compression, out);
            }
        }
    }
}

impl Compress for Certificate {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.decision.encode(out);
        match &self.proof {
            Proof::Fast(proofs) => {
                out.push(1);
                types::codec::encode_count(proofs.len(), out);
                proofs.iter().for_each(|proof| proof.compress(compression, out));
            }
            Proof::Logged(set) => {
                out.push(2);
                set.encode(out);
            }
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        decompress_certificate(reader, compression, Depth::Outer)
    }
}
encode_as_first!(Certificate);

/// How deep certificates may stand in one another: an abort may rest on a commit, and a commit on none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Outer,
    InConflict,
}

fn decompress_certificate(reader: &mut Reader, compression: &mut SignatureCompression, depth: Depth) -> Result<Certificate, DecodeError> {
    let id = TransactionId::decode(reader)?;
    let decision = Decision::decode(reader)?;
    let proof = match u8::decode(reader)? {
        1 => {
            let count = reader.count("a certificate's shards", SHARDS_MAX)?;
            let mut proofs = Vec::with_capacity(count.min(16));
            for _ in 0..count {
                proofs.push(decompress_shard_proof(reader, compression, depth)?);
            }
            Proof::Fast(proofs)
        }
        2 => Proof::Logged(LoggedSet::decode(reader)?),
        _ => return Err(DecodeError::UnknownTag("a certificate's proof")),
    };
    Ok(Certificate { id, decision, proof })
}

fn decompress_shard_proof(reader: &mut Reader, compression: &mut SignatureCompression, depth: Depth) -> Result<ShardProof, DecodeError> {
    match u8::decode(reader)? {
        1 => Ok(ShardProof::Votes(VoteSet::decompress(reader, compression)?)),
        2 if depth == Depth::Outer => Ok(ShardProof::Conflict {
            shard: ShardId::decode(reader)?,
            transaction: Transaction::decode(reader)?,
            certificate: Arc::new(decompress_certificate(reader, compression, Depth::InConflict)?),
        }),
        _ => Err(DecodeError::UnknownTag("a shard's proof")),
    }
}
