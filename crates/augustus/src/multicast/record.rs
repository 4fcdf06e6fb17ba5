//! What a replica writes to its journal, in the order in which it happens.

use bytes::Bytes;
use crypto::BatchSignature;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::{Digest, ReplicaId};

use super::message::{Certificate, CheckpointVote, Claim, FORMAT, NewView, PAGE_BYTES_MAX, decode_bytes, decode_requests, encode_bytes};
use super::request::Request;

/// The longest head of a state: what this replica wrote itself it reads, though it be too long to be shown to others.
const STATE_BYTES_MAX: usize = 192 << 20;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The requests of a list, before anything is said of it.
    List { sequence: u64, requests: Vec<Request> },
    /// It is accepted, before the vote for it is said.
    Accepted(Claim),
    /// It is prepared, before that is said.
    Prepared(Claim),
    /// It is decided, before anybody is told what came of it.
    Committed { sequence: u64, digest: Digest },
    /// All views before this one are left, before the view change is said.
    Left(u64),
    /// How a view begins, before anything is said in it.
    Entered(NewView, BatchSignature),
    /// The digest of a state, before it is said.
    Checkpoint(CheckpointVote),
    /// A checkpoint is stable.
    Stable(Certificate),
    /// All that follows up to the end stands for everything before.
    SnapshotBegin,
    /// The state at a stable checkpoint, but for its pages.
    State { certificate: Option<Certificate>, head: Bytes },
    /// The state's next page.
    Page(Bytes),
    /// From here on the snapshot counts.
    SnapshotEnd,
    /// The process that wrote the snapshot before this ended within it, so that it never counts; what follows counts by itself.
    SnapshotCut,
    /// The disk was lost: what was said before is forgotten.
    Lost,
    /// It takes part again, in this view and later ones, before it does.
    Rebuilt(u64),
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::List { sequence, requests } => {
                out.push(1);
                sequence.encode(out);
                encode_sequence(requests, out);
            }
            Self::Accepted(claim) => {
                out.push(2);
                claim.encode(out);
            }
            Self::Prepared(claim) => {
                out.push(3);
                claim.encode(out);
            }
            Self::Committed { sequence, digest } => {
                out.push(4);
                sequence.encode(out);
                digest.encode(out);
            }
            Self::Left(view) => {
                out.push(5);
                view.encode(out);
            }
            Self::Entered(view, signature) => {
                out.push(6);
                view.encode(out);
                signature.encode(out);
            }
            Self::Checkpoint(vote) => {
                out.push(7);
                vote.signer.encode(out);
                vote.sequence.encode(out);
                vote.digest.encode(out);
            }
            Self::Stable(certificate) => {
                out.push(8);
                certificate.encode(out);
            }
            Self::SnapshotBegin => out.push(9),
            Self::State { certificate, head } => {
                out.push(10);
                certificate.encode(out);
                encode_bytes(head, out);
            }
            Self::Page(bytes) => {
                out.push(11);
                encode_bytes(bytes, out);
            }
            Self::SnapshotEnd => out.push(12),
            Self::SnapshotCut => out.push(15),
            Self::Lost => out.push(13),
            Self::Rebuilt(view) => {
                out.push(14);
                view.encode(out);
            }
        }
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a format"));
        }
        Ok(match u8::decode(reader)? {
            1 => Self::List { sequence: u64::decode(reader)?, requests: decode_requests(reader)? },
            2 => Self::Accepted(Claim::decode(reader)?),
            3 => Self::Prepared(Claim::decode(reader)?),
            4 => Self::Committed { sequence: u64::decode(reader)?, digest: reader.array()? },
            5 => Self::Left(u64::decode(reader)?),
            6 => Self::Entered(NewView::decode(reader)?, BatchSignature::decode(reader)?),
            7 => {
                let signer = ReplicaId::decode(reader)?;
                Self::Checkpoint(CheckpointVote { signer, sequence: u64::decode(reader)?, digest: reader.array()? })
            }
            8 => Self::Stable(Certificate::decode(reader)?),
            9 => Self::SnapshotBegin,
            10 => Self::State { certificate: Option::decode(reader)?, head: decode_bytes(reader, "a head", STATE_BYTES_MAX)? },
            11 => Self::Page(decode_bytes(reader, "a page", PAGE_BYTES_MAX)?),
            12 => Self::SnapshotEnd,
            13 => Self::Lost,
            14 => Self::Rebuilt(u64::decode(reader)?),
            15 => Self::SnapshotCut,
            _ => return Err(DecodeError::UnknownTag("a record of the multicast")),
        })
    }
}
