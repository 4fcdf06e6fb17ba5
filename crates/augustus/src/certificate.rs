//! Signed votes, and the certificates made of them (§3.3): what proves to one shard how another has voted.
//!
//! A shard's vote is proven by `f+1` of its replicas: one of them is correct, and all correct ones vote alike, because they execute
//! the same transactions in the same order.

use crypto::{BatchSignature, Claim, Compress, Rejection, SignatureClaims, SignatureCompression, Statement, encode_as_first, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::limits::SHARDS_MAX;
use types::{ClientId, Cluster, ReplicaId, ShardId, TransactionId};

use crate::limits::VOTERS_MAX;

/// What a shard thinks of a transaction, for ever; and, where all that take part have said so, how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote {
    /// It holds all its locks here, and its comparisons held; it takes place.
    Commit,
    /// It does not take place.
    Abort,
}

/// The statement behind a vote. The signer, and so its shard, is part of what is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteStatement {
    /// The transaction.
    pub id: TransactionId,
    /// What the signer's shard thinks of it.
    pub vote: Vote,
}

/// The statement that no transaction of a session below a number is pending at the signer's shard, or will ever be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledStatement {
    /// Whose session.
    pub client: ClientId,
    /// The session.
    pub session: u64,
    /// The number.
    pub below: u64,
}

/// The statement that none of these transactions of a session is pending at the signer's shard, or will ever be. In contrast to the one above
/// it promises nothing: all of them have been seen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedStatement {
    /// Whose session.
    pub client: ClientId,
    /// The session.
    pub session: u64,
    /// The number that the first bit stands for.
    pub first: u64,
    /// Which numbers, a bit each.
    pub which: [u64; 4],
}

impl EndedStatement {
    /// None of the numbers from `first` on.
    #[must_use]
    pub fn none(client: ClientId, session: u64, first: u64) -> Self {
        Self { client, session, first, which: [0; 4] }
    }

    /// Adds a number, if it is near enough to the first.
    pub fn add(&mut self, number: u64) {
        let place = number.wrapping_sub(self.first);
        if let Some(word) = usize::try_from(place / 64).ok().and_then(|word| self.which.get_mut(word)) {
            *word |= 1 << (place % 64);
        }
    }

    /// The numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { first, which, .. } = *self;
        let places = (0..4u64).flat_map(move |word| (0..64).map(move |bit| (word, bit)));
        let set = places.filter(move |(word, bit)| which[*word as usize] >> bit & 1 == 1);
        set.filter_map(move |(word, bit)| first.checked_add(word * 64 + bit))
    }
}

impl Statement for EndedStatement {
    const KIND: &'static str = "augustus/ended/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

impl Encode for EndedStatement {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.0.encode(out);
        self.session.encode(out);
        self.first.encode(out);
        self.which.iter().for_each(|word| word.encode(out));
    }
}

impl Decode for EndedStatement {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut statement = Self::none(ClientId(u64::decode(reader)?), u64::decode(reader)?, u64::decode(reader)?);
        for word in &mut statement.which {
            *word = u64::decode(reader)?;
        }
        Ok(statement)
    }
}

impl Statement for VoteStatement {
    const KIND: &'static str = "augustus/vote/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.vote.encode(out);
    }
}

impl Statement for SettledStatement {
    const KIND: &'static str = "augustus/settled/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.client.0.encode(out);
        self.session.encode(out);
        self.below.encode(out);
    }
}

/// The same statement of several replicas of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Signers {
    /// Their shard.
    pub shard: ShardId,
    /// Who, by index in strict order, and the signature of each.
    pub signatures: Vec<(u16, BatchSignature)>,
}

impl Signers {
    /// Collects the claims that each of them made `statement`, when they are distinct and more than may lie.
    pub(crate) fn claims<'a, S: Statement>(&'a self, cluster: &Cluster, statement: &S, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        let (found, needed) = (self.signatures.len(), cluster.faults() + 1);
        if found < needed && !broken(Mutant::ShardVoteOfFew) {
            return Err(Rejection::TooFewSigners { found, needed });
        }
        for pair in self.signatures.windows(2) {
            if pair[0].0 >= pair[1].0 && !broken(Mutant::ShardVoterRepeated) {
                return Err(Rejection::NotDistinct { signer: ReplicaId { shard: self.shard, index: pair[1].0 } });
            }
        }
        for (index, signature) in &self.signatures {
            let signer = ReplicaId { shard: self.shard, index: *index };
            out.push(Claim { signer, leaf: leaf(cluster.id(), signer, statement), signature });
        }
        Ok(())
    }
}

/// Proof of how a transaction ends: every shard that takes part has voted to commit, or one of them to abort.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// The transaction.
    pub id: TransactionId,
    /// How it ends.
    pub decision: Vote,
    /// Who voted so, in the order of their shards.
    pub votes: Vec<Signers>,
}

impl Certificate {
    /// Whether this certificate, whose signatures have been checked, is about the transaction `id` and proves what it says, given who
    /// takes part in that.
    #[must_use]
    pub fn proves(&self, id: TransactionId, participants: &[ShardId]) -> bool {
        let is_its_own = self.id == id || broken(Mutant::VotesOfOther);
        let voted = || self.votes.iter().map(|signers| signers.shard);
        is_its_own
            && match self.decision {
                Vote::Commit => voted().eq(participants.iter().copied()) || broken(Mutant::VoteMissing),
                Vote::Abort => voted().any(|shard| participants.contains(&shard)) || broken(Mutant::StrangerVotes),
            }
    }
}

impl SignatureClaims for Certificate {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        // One shard's votes are enough to abort, so that nobody is made to check more.
        if self.votes.is_empty() || (self.decision == Vote::Abort && self.votes.len() > 1) {
            return Err(Rejection::Structure("a certificate has votes of no shard, or of several to abort"));
        }
        if !self.votes.is_sorted_by(|one, next| one.shard < next.shard) {
            return Err(Rejection::Structure("the votes of a certificate are not in strict order of their shards"));
        }
        let statement = VoteStatement { id: self.id, vote: self.decision };
        self.votes.iter().try_for_each(|signers| signers.claims(cluster, &statement, out))
    }
}

impl Encode for Vote {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Commit => 1,
            Self::Abort => 2,
        });
    }
}

impl Decode for Vote {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Commit),
            2 => Ok(Self::Abort),
            _ => Err(DecodeError::UnknownTag("a vote")),
        }
    }
}

impl Compress for Signers {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.shard.encode(out);
        encode_count(self.signatures.len(), out);
        for (index, signature) in &self.signatures {
            index.encode(out);
            compression.compress_signature(signature, out);
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        let shard = ShardId::decode(reader)?;
        let count = reader.count("the signers of a vote", VOTERS_MAX)?;
        let mut signatures = Vec::with_capacity(count);
        for _ in 0..count {
            signatures.push((u16::decode(reader)?, compression.decompress_signature(reader)?));
        }
        Ok(Self { shard, signatures })
    }
}

impl Compress for Certificate {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.decision.encode(out);
        compress_all(&self.votes, compression, out);
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Ok(Self { id: TransactionId::decode(reader)?, decision: Vote::decode(reader)?, votes: decompress_all(reader, compression)? })
    }
}

pub(crate) fn compress_all(all: &[Signers], compression: &mut SignatureCompression, out: &mut Vec<u8>) {
    encode_count(all.len(), out);
    for signers in all {
        signers.compress(compression, out);
    }
}

pub(crate) fn decompress_all(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Vec<Signers>, DecodeError> {
    let count = reader.count("the shards of a certificate", SHARDS_MAX)?;
    (0..count).map(|_| Signers::decompress(reader, compression)).collect()
}

encode_as_first!(Signers, Certificate);
