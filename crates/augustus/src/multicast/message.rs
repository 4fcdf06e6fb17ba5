//! What replicas of a shard say to one another, and clients to them.
//!
//! | who | says | which means |
//! |---|---|---|
//! | client | [`Message::Request`] | order this |
//! | any replica | [`Message::Vouch`] | these requests are their clients': each gave it to me, or `f+1` of us say so |
//! | the leader | [`Message::Propose`] | this list has this number (the pre-prepare of the paper) |
//! | any replica | [`Message::Prepare`] | I have accepted that list for that number in that view, and no other ever |
//! | any replica | [`Message::Commit`] | `2f+1` of us accepted it |
//! | any replica | [`Message::Decided`] | that list is decided: `f+1` who say so are believed |
//! | any replica | [`Message::Checkpoint`] | my state after so many lists has this digest (signed) |
//! | any replica | [`Message::Stable`] | `2f+1` of us have said so |
//! | any replica | [`Message::ViewChange`] | I have left all views before this one; this is what I accepted and prepared (signed) |
//! | the leader | [`Message::NewView`] | `2f+1` of us have: so this view begins as follows (signed) |
//! | any replica | [`Message::Status`] | so far am I; say again what I lack |
//! | one that lost its disk | [`Message::FetchReached`] | how far are you? |
//! | client | [`Message::Query`] | answer this from your state, without ordering it |
//! | any replica | the others | give me, or here is, what was asked for by its digest |

use bytes::Bytes;
use crypto::{BatchSignature, Claim as SignatureClaim, Compress, Rejection, Signable, SignatureClaims, SignatureCompression, Statement};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count, encode_sequence};
use types::limits::SHARD_REPLICAS_MAX;
use types::{Cluster, ClusterId, Digest, ReplicaId, ShardId};

use super::quorum::Quorum;
use super::request::{BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, Request, RequestId};

/// Begins every message and every record.
pub(super) const FORMAT: u8 = 1;
/// How many lists may be under way between two checkpoints at most, and so how long each list of claims may be.
pub const LOG_WINDOW_MAX: u64 = 1_024;
/// The longest answer to a client, in bytes.
pub const ANSWER_BYTES_MAX: usize = 5 << 20;
/// The longest question that is answered without being ordered, in bytes.
pub const QUESTION_BYTES_MAX: usize = 64 << 10;
/// The longest answer to what could be ordered as well, in bytes: what is longer is ordered. Pages of the past are longer, up to
/// [`ANSWER_BYTES_MAX`].
pub const QUERY_ANSWER_BYTES_MAX: usize = 64 << 10;
/// The longest page of a state, in bytes.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// The longest head of a state, in bytes: the windows of the clients, and the digest of each page.
pub const HEAD_BYTES_MAX: usize = 12 << 20;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From a client to every replica: order this.
    Request(Request),
    /// To all: these requests are their clients'.
    Vouch(Vec<RequestId>),
    /// From the leader to all: in `view` the list `ids` has the number `sequence`.
    Propose {
        /// The view that it leads.
        view: u64,
        /// The list's number.
        sequence: u64,
        /// The list.
        ids: Vec<RequestId>,
    },
    /// To all: the sender has accepted the list in that view.
    Prepare(Claim),
    /// To all: the list is prepared at the sender in that view.
    Commit(Claim),
    /// To whoever is behind: the sender knows that this list is decided.
    Decided {
        /// Its number.
        sequence: u64,
        /// Its digest.
        digest: Digest,
    },
    /// To all: the digest of a state.
    Checkpoint(CheckpointVote, BatchSignature),
    /// To whoever is behind: a checkpoint that is stable.
    Stable(Certificate),
    /// To all: the sender has left the views before.
    ViewChange(ViewChange, BatchSignature),
    /// To all: a view begins.
    NewView(NewView, BatchSignature),
    /// To all, now and then: how far the sender is.
    Status(Status),
    /// To one replica: give me these requests.
    FetchRequests(Vec<RequestId>),
    /// The answer: some of them.
    Requests(Vec<Request>),
    /// To one replica: give me the list that has this digest.
    FetchList {
        /// Its number.
        sequence: u64,
        /// Its digest.
        digest: Digest,
    },
    /// The answer: the requests of the list, in its order.
    List {
        /// Its number.
        sequence: u64,
        /// The requests.
        requests: Vec<Request>,
    },
    /// To one replica: give me the head of the state at this checkpoint.
    FetchHead(u64),
    /// The answer.
    Head {
        /// Which checkpoint.
        sequence: u64,
        /// Windows and digests of pages, as the checkpoint's digest covers them.
        head: Bytes,
    },
    /// To one replica: give me a page of the state at this checkpoint.
    FetchPage {
        /// Which checkpoint.
        sequence: u64,
        /// Which page.
        index: u32,
    },
    /// The answer.
    Page {
        /// Which checkpoint.
        sequence: u64,
        /// Which page.
        index: u32,
        /// The page.
        bytes: Bytes,
    },
    /// To all, from a replica that lost its disk: how far are you? The question has a number, which no other question of that replica has.
    FetchReached(u64),
    /// The answer.
    Reached {
        /// The question's number.
        question: u64,
        /// The view that the sender is in, or on its way to.
        view: u64,
        /// How many lists it has delivered.
        delivered: u64,
    },
    /// From a replica to a client: what the application says of its request of this number.
    Reply {
        /// The request's number.
        number: u64,
        /// The answer.
        answer: Bytes,
        /// What the replica signs for it, where its client will have to show that to others.
        signed: Option<ReplySignature>,
    },
    /// From a client to every replica: what does your state say to this? It is not ordered.
    Query {
        /// The question's number, which its process gives to no other.
        number: u64,
        /// The question.
        question: Bytes,
    },
    /// The answer.
    QueryReply {
        /// The question's number.
        number: u64,
        /// What the state says; nothing where the question has to be ordered.
        answer: Option<Bytes>,
    },
}

/// The signature of a statement that somebody else than the multicast knows: who reads it works out its leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplySignature {
    /// Who signs.
    pub signer: ReplicaId,
    /// What stands for the statement and its signer ([`crypto::leaf`]).
    pub leaf: Digest,
    /// The signature.
    pub signature: BatchSignature,
}

/// That a list has a number in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The number.
    pub sequence: u64,
    /// The view.
    pub view: u64,
    /// The list's digest.
    pub digest: Digest,
}

/// The digest of a replica's state after it delivered the list `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointVote {
    /// Whose state.
    pub signer: ReplicaId,
    /// After which list.
    pub sequence: u64,
    /// Its digest.
    pub digest: Digest,
}

/// `2f+1` equal votes on a checkpoint: whoever has them knows that it is right, and that `f+1` honest replicas hold the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whose state.
    pub shard: ShardId,
    /// After which list.
    pub sequence: u64,
    /// Its digest.
    pub digest: Digest,
    /// Who says so, in the order of their indices.
    pub votes: Vec<(u16, BatchSignature)>,
}

/// What a replica tells when it leaves all views before `view`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewChange {
    /// Who leaves.
    pub signer: ReplicaId,
    /// Into which view.
    pub view: u64,
    /// Its last stable checkpoint; nothing at the very beginning.
    pub stable: Option<Certificate>,
    /// For each number above: the list that it last prepared, and in which view. The paper's P.
    pub prepared: Vec<Claim>,
    /// For each number above: the list that it last accepted, and in which view. The paper's Q.
    pub accepted: Vec<Claim>,
}

/// How a view begins: what it begins with follows from the votes ([`super::choice`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewView {
    /// Its leader.
    pub signer: ReplicaId,
    /// The view.
    pub view: u64,
    /// `2f+1` or more replicas that have left the views before, in the order of their indices.
    pub votes: Vec<(ViewChange, BatchSignature)>,
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The last view that it entered.
    pub entered: u64,
    /// Its last stable checkpoint; 0 at the very beginning.
    pub stable: u64,
    /// The last list that it delivered; 0 when none.
    pub delivered: u64,
}

/// What a replica signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsigned {
    /// The digest of its state.
    Checkpoint(CheckpointVote),
    /// That it has left views.
    ViewChange(ViewChange),
    /// That a view begins.
    NewView(NewView),
    /// What goes with an answer.
    Reply {
        /// Who answers.
        signer: ReplicaId,
        /// The request's number.
        number: u64,
        /// The answer.
        answer: Bytes,
        /// What stands for the statement that is signed.
        leaf: Digest,
    },
}

impl Certificate {
    /// What each of the voters has signed.
    fn vote(&self, index: u16) -> CheckpointVote {
        let signer = ReplicaId { shard: self.shard, index };
        CheckpointVote { signer, sequence: self.sequence, digest: self.digest }
    }

    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<SignatureClaim<'a>>) -> Result<(), Rejection> {
        let quorum = quorum(cluster)?;
        check_voters(cluster, self.votes.iter().map(|(index, _)| ReplicaId { shard: self.shard, index: *index }), self.shard)?;
        let needed = if broken(Mutant::StableQuorum) { quorum.weak() - 1 } else { quorum.strong() };
        if self.votes.len() < needed {
            return Err(Rejection::TooFewSigners { found: self.votes.len(), needed });
        }
        for (index, signature) in &self.votes {
            let vote = self.vote(*index);
            out.push(SignatureClaim { signer: vote.signer, leaf: crypto::leaf(cluster.id(), vote.signer, &vote), signature });
        }
        Ok(())
    }
}

impl ViewChange {
    fn claims<'a>(&'a self, cluster: &Cluster, signature: &'a BatchSignature, out: &mut Vec<SignatureClaim<'a>>) -> Result<(), Rejection> {
        let from = self.stable.as_ref().map_or(0, |stable| stable.sequence);
        for claims in [&self.prepared, &self.accepted] {
            let ascends = claims.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
            let above = claims.first().is_none_or(|claim| claim.sequence > from);
            let within = claims.last().is_none_or(|claim| claim.sequence.saturating_sub(from) <= LOG_WINDOW_MAX);
            if !(ascends && above && within && claims.iter().all(|claim| claim.view < self.view)) {
                return Err(Rejection::Structure("a view change claims what nobody can have prepared"));
            }
        }
        if let Some(stable) = &self.stable {
            if stable.shard != self.signer.shard {
                return Err(Rejection::Structure("a view change names another shard's checkpoint"));
            }
            stable.claims(cluster, out)?;
        }
        out.push(SignatureClaim { signer: self.signer, leaf: crypto::leaf(cluster.id(), self.signer, self), signature });
        Ok(())
    }
}

fn quorum(cluster: &Cluster) -> Result<Quorum, Rejection> {
    Quorum::of(cluster).ok_or(Rejection::Structure("the cluster's shards are not of this engine"))
}

/// Voters stand in the order of their indices, each once, and all are of one shard.
fn check_voters(cluster: &Cluster, voters: impl Iterator<Item = ReplicaId>, shard: ShardId) -> Result<(), Rejection> {
    let mut last = None;
    for voter in voters {
        if voter.shard != shard || cluster.replica_key(voter).is_none() {
            return Err(Rejection::UnknownSigner { signer: voter });
        }
        if last.is_some_and(|last| last >= voter.index) {
            return Err(Rejection::NotDistinct { signer: voter });
        }
        last = Some(voter.index);
    }
    Ok(())
}

impl Statement for CheckpointVote {
    const KIND: &'static str = "augustus checkpoint";

    fn encode_body(&self, out: &mut Vec<u8>) {
        self.sequence.encode(out);
        self.digest.encode(out);
    }
}

impl Statement for ViewChange {
    const KIND: &'static str = "augustus view change";

    fn encode_body(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

impl Statement for NewView {
    const KIND: &'static str = "augustus new view";

    fn encode_body(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

impl Signable for Unsigned {
    type Message = Message;

    fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        match self {
            Self::Checkpoint(vote) => crypto::leaf(cluster, signer, vote),
            Self::ViewChange(vote) => crypto::leaf(cluster, signer, vote),
            Self::NewView(view) => crypto::leaf(cluster, signer, view),
            Self::Reply { leaf, .. } => *leaf,
        }
    }

    fn with_signature(self, signature: BatchSignature) -> Message {
        match self {
            Self::Checkpoint(vote) => Message::Checkpoint(vote, signature),
            Self::ViewChange(vote) => Message::ViewChange(vote, signature),
            Self::NewView(view) => Message::NewView(view, signature),
            Self::Reply { signer, number, answer, leaf } => {
                Message::Reply { number, answer, signed: Some(ReplySignature { signer, leaf, signature }) }
            }
        }
    }
}

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<SignatureClaim<'a>>) -> Result<(), Rejection> {
        match self {
            Self::Checkpoint(vote, signature) => {
                out.push(SignatureClaim { signer: vote.signer, leaf: crypto::leaf(cluster.id(), vote.signer, vote), signature });
            }
            Self::Stable(certificate) => certificate.claims(cluster, out)?,
            Self::ViewChange(vote, signature) => vote.claims(cluster, signature, out)?,
            Self::NewView(view, signature) => {
                let quorum = quorum(cluster)?;
                check_voters(cluster, view.votes.iter().map(|(vote, _)| vote.signer), view.signer.shard)?;
                if view.votes.len() < quorum.strong() && !broken(Mutant::NewViewQuorum) {
                    return Err(Rejection::TooFewSigners { found: view.votes.len(), needed: quorum.strong() });
                }
                if view.signer.index != quorum.leader(view.view) || view.votes.iter().any(|(vote, _)| vote.view != view.view) {
                    return Err(Rejection::Structure("a new view is not its leader's, or its votes are of another"));
                }
                for (vote, signature) in &view.votes {
                    vote.claims(cluster, signature, out)?;
                }
                out.push(SignatureClaim { signer: view.signer, leaf: crypto::leaf(cluster.id(), view.signer, view), signature });
            }
            Self::Reply { signed: Some(ReplySignature { signer, leaf, signature }), .. } => {
                out.push(SignatureClaim { signer: *signer, leaf: *leaf, signature });
            }
            _ => {}
        }
        Ok(())
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        self.compress(&mut SignatureCompression::default(), out);
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::decompress(reader, &mut SignatureCompression::default())
    }
}

impl Compress for Message {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Request(request) => tagged(1, request, out),
            Self::Vouch(ids) => {
                out.push(2);
                encode_sequence(ids, out);
            }
            Self::Propose { view, sequence, ids } => {
                out.push(3);
                view.encode(out);
                sequence.encode(out);
                encode_sequence(ids, out);
            }
            Self::Prepare(claim) => tagged(4, claim, out),
            Self::Commit(claim) => tagged(5, claim, out),
            Self::Checkpoint(vote, signature) => {
                out.push(6);
                vote.signer.encode(out);
                vote.encode_body(out);
                signature.encode(out);
            }
            Self::Stable(certificate) => tagged(7, certificate, out),
            Self::ViewChange(vote, signature) => {
                out.push(8);
                vote.encode(out);
                signature.encode(out);
            }
            Self::NewView(view, signature) => {
                out.push(9);
                view.encode(out);
                signature.encode(out);
            }
            Self::Status(status) => {
                out.push(10);
                status.entered.encode(out);
                status.stable.encode(out);
                status.delivered.encode(out);
            }
            Self::FetchRequests(ids) => {
                out.push(11);
                encode_sequence(ids, out);
            }
            Self::Requests(requests) => {
                out.push(12);
                encode_sequence(requests, out);
            }
            Self::FetchList { sequence, digest } => {
                out.push(13);
                sequence.encode(out);
                digest.encode(out);
            }
            Self::List { sequence, requests } => {
                out.push(14);
                sequence.encode(out);
                encode_sequence(requests, out);
            }
            Self::FetchHead(sequence) => tagged(15, sequence, out),
            Self::Head { sequence, head } => {
                out.push(16);
                sequence.encode(out);
                encode_bytes(head, out);
            }
            Self::FetchPage { sequence, index } => {
                out.push(17);
                sequence.encode(out);
                index.encode(out);
            }
            Self::Page { sequence, index, bytes } => {
                out.push(18);
                sequence.encode(out);
                index.encode(out);
                encode_bytes(bytes, out);
            }
            Self::Reply { number, answer, signed } => {
                out.push(19);
                number.encode(out);
                encode_bytes(answer, out);
                signed.is_some().encode(out);
                // The answers of a turn share one signature.
                if let Some(ReplySignature { signer, leaf, signature }) = signed {
                    signer.encode(out);
                    leaf.encode(out);
                    compression.compress_signature(signature, out);
                }
            }
            Self::Decided { sequence, digest } => {
                out.push(20);
                sequence.encode(out);
                digest.encode(out);
            }
            Self::FetchReached(question) => tagged(21, question, out),
            Self::Reached { question, view, delivered } => {
                out.push(22);
                question.encode(out);
                view.encode(out);
                delivered.encode(out);
            }
            Self::Query { number, question } => {
                out.push(23);
                number.encode(out);
                encode_bytes(question, out);
            }
            Self::QueryReply { number, answer } => {
                out.push(24);
                number.encode(out);
                answer.is_some().encode(out);
                if let Some(answer) = answer {
                    encode_bytes(answer, out);
                }
            }
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a format"));
        }
        Ok(match u8::decode(reader)? {
            1 => Self::Request(Request::decode(reader)?),
            2 => Self::Vouch(reader.sequence("vouched requests", BATCH_REQUESTS_MAX)?),
            3 => {
                let (view, sequence) = (u64::decode(reader)?, u64::decode(reader)?);
                Self::Propose { view, sequence, ids: reader.sequence("a list", BATCH_REQUESTS_MAX)? }
            }
            4 => Self::Prepare(Claim::decode(reader)?),
            5 => Self::Commit(Claim::decode(reader)?),
            6 => {
                let signer = ReplicaId::decode(reader)?;
                let vote = CheckpointVote { signer, sequence: u64::decode(reader)?, digest: reader.array()? };
                Self::Checkpoint(vote, BatchSignature::decode(reader)?)
            }
            7 => Self::Stable(Certificate::decode(reader)?),
            8 => Self::ViewChange(ViewChange::decode(reader)?, BatchSignature::decode(reader)?),
            9 => Self::NewView(NewView::decode(reader)?, BatchSignature::decode(reader)?),
            10 => {
                let (entered, stable) = (u64::decode(reader)?, u64::decode(reader)?);
                Self::Status(Status { entered, stable, delivered: u64::decode(reader)? })
            }
            11 => Self::FetchRequests(reader.sequence("requests to fetch", BATCH_REQUESTS_MAX)?),
            12 => Self::Requests(decode_requests(reader)?),
            13 => Self::FetchList { sequence: u64::decode(reader)?, digest: reader.array()? },
            14 => Self::List { sequence: u64::decode(reader)?, requests: decode_requests(reader)? },
            15 => Self::FetchHead(u64::decode(reader)?),
            16 => Self::Head { sequence: u64::decode(reader)?, head: decode_bytes(reader, "a head", HEAD_BYTES_MAX)? },
            17 => Self::FetchPage { sequence: u64::decode(reader)?, index: u32::decode(reader)? },
            18 => {
                let (sequence, index) = (u64::decode(reader)?, u32::decode(reader)?);
                Self::Page { sequence, index, bytes: decode_bytes(reader, "a page", PAGE_BYTES_MAX)? }
            }
            19 => {
                let (number, answer) = (u64::decode(reader)?, decode_bytes(reader, "an answer", ANSWER_BYTES_MAX)?);
                let signed = match bool::decode(reader)? {
                    true => {
                        let (signer, leaf) = (ReplicaId::decode(reader)?, reader.array()?);
                        Some(ReplySignature { signer, leaf, signature: compression.decompress_signature(reader)? })
                    }
                    false => None,
                };
                Self::Reply { number, answer, signed }
            }
            20 => Self::Decided { sequence: u64::decode(reader)?, digest: reader.array()? },
            21 => Self::FetchReached(u64::decode(reader)?),
            22 => {
                let (question, view) = (u64::decode(reader)?, u64::decode(reader)?);
                Self::Reached { question, view, delivered: u64::decode(reader)? }
            }
            23 => Self::Query { number: u64::decode(reader)?, question: decode_bytes(reader, "a question", QUESTION_BYTES_MAX)? },
            24 => {
                let (number, is_answered) = (u64::decode(reader)?, bool::decode(reader)?);
                let answer = is_answered.then(|| decode_bytes(reader, "an answer", ANSWER_BYTES_MAX)).transpose()?;
                Self::QueryReply { number, answer }
            }
            _ => return Err(DecodeError::UnknownTag("a message of the multicast")),
        })
    }
}

/// The requests of one list, or fewer: they are together no longer than a list may be.
pub(super) fn decode_requests(reader: &mut Reader) -> Result<Vec<Request>, DecodeError> {
    let requests: Vec<Request> = reader.sequence("requests", BATCH_REQUESTS_MAX)?;
    let bytes: usize = requests.iter().map(|request| request.payload.len()).sum();
    if bytes > BATCH_BYTES_MAX { Err(DecodeError::OverLimit("requests")) } else { Ok(requests) }
}

pub(super) fn encode_bytes(bytes: &Bytes, out: &mut Vec<u8>) {
    encode_count(bytes.len(), out);
    out.extend_from_slice(bytes);
}

pub(super) fn decode_bytes(reader: &mut Reader, what: &'static str, max: usize) -> Result<Bytes, DecodeError> {
    let length = reader.count(what, max)?;
    reader.take(length)
}

fn tagged<T: Encode>(tag: u8, value: &T, out: &mut Vec<u8>) {
    out.push(tag);
    value.encode(out);
}

impl Encode for Claim {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sequence.encode(out);
        self.view.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for Claim {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { sequence: u64::decode(reader)?, view: u64::decode(reader)?, digest: reader.array()? })
    }
}

impl Encode for Certificate {
    fn encode(&self, out: &mut Vec<u8>) {
        self.shard.encode(out);
        self.sequence.encode(out);
        self.digest.encode(out);
        encode_count(self.votes.len(), out);
        for (index, signature) in &self.votes {
            index.encode(out);
            signature.encode(out);
        }
    }
}

impl Decode for Certificate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (shard, sequence, digest) = (ShardId::decode(reader)?, u64::decode(reader)?, reader.array()?);
        let mut votes = Vec::new();
        for _ in 0..reader.count("the votes of a certificate", SHARD_REPLICAS_MAX)? {
            votes.push((u16::decode(reader)?, BatchSignature::decode(reader)?));
        }
        Ok(Self { shard, sequence, digest, votes })
    }
}

impl Encode for ViewChange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.signer.encode(out);
        self.view.encode(out);
        self.stable.encode(out);
        encode_sequence(&self.prepared, out);
        encode_sequence(&self.accepted, out);
    }
}

impl Decode for ViewChange {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let max = usize::try_from(LOG_WINDOW_MAX).expect("small");
        Ok(Self {
            signer: ReplicaId::decode(reader)?,
            view: u64::decode(reader)?,
            stable: Option::decode(reader)?,
            prepared: reader.sequence("what was prepared", max)?,
            accepted: reader.sequence("what was accepted", max)?,
        })
    }
}

impl Encode for NewView {
    fn encode(&self, out: &mut Vec<u8>) {
        self.signer.encode(out);
        self.view.encode(out);
        encode_count(self.votes.len(), out);
        for (vote, signature) in &self.votes {
            vote.encode(out);
            signature.encode(out);
        }
    }
}

impl Decode for NewView {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (signer, view) = (ReplicaId::decode(reader)?, u64::decode(reader)?);
        let mut votes = Vec::new();
        for _ in 0..reader.count("the votes of a new view", SHARD_REPLICAS_MAX)? {
            votes.push((ViewChange::decode(reader)?, BatchSignature::decode(reader)?));
        }
        Ok(Self { signer, view, votes })
    }
}
