//! What clients and replicas say.

use crypto::{BatchSignature, Claim, Compress, Rejection, Signable, SignatureClaims, Statement};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ClusterId, Digest, ReplicaId};

/// The most bytes a replica can be asked to send.
const FILLING_BYTES_MAX: usize = 1 << 20;

/// What is said between clients and replicas.
#[derive(Clone, Debug)]
pub enum Message {
    /// To a replica: double this.
    Ask(u64),
    /// From a replica: a double, signed.
    Answer(Doubled, Box<BatchSignature>),
    /// To a replica: send this many bytes.
    Fill(u32),
    /// From a replica, unasked: how many answers it has given.
    Milestone(u64),
    /// From a replica: as many bytes as it was asked for, which mean nothing.
    Filling(Vec<u8>),
}

/// What a replica signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubled {
    /// Who says so.
    pub signer: ReplicaId,
    /// What was asked.
    pub number: u64,
    /// Twice that, from an honest replica.
    pub double: u64,
    /// Which of the replica's answers it is: no two of an honest replica have the same number, in all its processes.
    pub count: u64,
}

impl Statement for Doubled {
    const KIND: &'static str = "doubled";

    fn encode_body(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.double.encode(out);
        self.count.encode(out);
    }
}

impl Signable for Doubled {
    type Message = Message;

    fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        crypto::leaf(cluster, signer, self)
    }

    fn with_signature(self, signature: BatchSignature) -> Message {
        Message::Answer(self, Box::new(signature))
    }
}

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        if let Self::Answer(doubled, signature) = self {
            out.push(Claim { signer: doubled.signer, leaf: crypto::leaf(cluster.id(), doubled.signer, doubled), signature });
        }
        Ok(())
    }
}

impl Compress for Message {}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ask(number) => {
                out.push(1);
                number.encode(out);
            }
            Self::Answer(doubled, signature) => {
                out.push(2);
                doubled.signer.encode(out);
                doubled.encode_body(out);
                signature.encode(out);
            }
            Self::Fill(bytes) => {
                out.push(3);
                bytes.encode(out);
            }
            Self::Milestone(count) => {
                out.push(5);
                count.encode(out);
            }
            Self::Filling(bytes) => {
                out.push(4);
                types::codec::encode_sequence(bytes, out);
            }
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Ask(u64::decode(reader)?)),
            2 => {
                let signer = ReplicaId::decode(reader)?;
                let (number, double, count) = (u64::decode(reader)?, u64::decode(reader)?, u64::decode(reader)?);
                Ok(Self::Answer(Doubled { signer, number, double, count }, Box::new(BatchSignature::decode(reader)?)))
            }
            3 => Ok(Self::Fill(u32::decode(reader)?)),
            5 => Ok(Self::Milestone(u64::decode(reader)?)),
            4 => Ok(Self::Filling(reader.sequence("filling", FILLING_BYTES_MAX)?)),
            _ => Err(DecodeError::UnknownTag("a toy's message")),
        }
    }
}
