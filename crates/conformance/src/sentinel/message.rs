//! What is said in the world of the order: the order's own messages, and what clients ask.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use ::sentinel::order::{self, Zxid};
use bytes::Bytes;
use crypto::{BatchSignature, Claim, Rejection, Signable, SignatureClaims};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ClusterId, Digest, ReplicaId};

/// How many bytes a [`Key`] has.
pub(super) const KEY_BYTES: usize = 24;

/// Which request of which client's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub(super) client: u64,
    pub(super) session: u64,
    pub(super) number: u64,
}

/// What was delivered: where, what, and what all before it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub(super) zxid: Zxid,
    pub(super) previous: Zxid,
    pub(super) key: Key,
    pub(super) digest: Digest,
}

/// What is said.
#[derive(Clone, PartialEq, Eq)]
pub enum Message {
    /// Between servers.
    Order(order::Message),
    /// Have this ordered.
    Write(Key),
    /// A client wants this ordered, and you lead.
    Forward(Key),
    /// Here it is.
    Delivered(Link),
    /// What have you delivered, if you know at least this?
    Read {
        /// The client's number.
        number: u64,
        /// What it has seen.
        seen: Zxid,
    },
    /// Up to here.
    Known {
        /// The client's number.
        number: u64,
        /// The last.
        zxid: Zxid,
        /// What all up to it came to.
        digest: Digest,
    },
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(order::Message::Page { zxid, offset, .. }) => write!(formatter, "Page from {offset} of {zxid}"),
            Self::Order(order::Message::Entries { leadership, previous, entries, committed }) => {
                let last = entries.last().map(|entry| entry.zxid);
                write!(formatter, "Entries {leadership:?} after {previous} to {last:?}, delivered {committed}")
            }
            Self::Order(message) => write!(formatter, "{message:?}"),
            Self::Write(key) => write!(formatter, "Write {key:?}"),
            Self::Forward(key) => write!(formatter, "Forward {key:?}"),
            Self::Delivered(link) => write!(formatter, "Delivered {:?} at {}", link.key, link.zxid),
            Self::Read { number, seen } => write!(formatter, "Read {number}, seen {seen}"),
            Self::Known { number, zxid, .. } => write!(formatter, "Known {number}: {zxid}"),
        }
    }
}

impl Key {
    pub(super) fn of(payload: &Bytes) -> Self {
        Self::from_bytes(payload.clone(), ClusterId::new([0; 16])).expect("payloads are keys")
    }
}

impl Encode for Key {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.session.encode(out);
        self.number.encode(out);
    }
}

impl Decode for Key {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { client: u64::decode(reader)?, session: u64::decode(reader)?, number: u64::decode(reader)? })
    }
}

impl Encode for Link {
    fn encode(&self, out: &mut Vec<u8>) {
        self.zxid.encode(out);
        self.previous.encode(out);
        self.key.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for Link {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { zxid: Zxid::decode(reader)?, previous: Zxid::decode(reader)?, key: Key::decode(reader)?, digest: reader.array()? })
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Order(message) => {
                out.push(1);
                message.encode(out);
            }
            Self::Write(key) => {
                out.push(2);
                key.encode(out);
            }
            Self::Forward(key) => {
                out.push(3);
                key.encode(out);
            }
            Self::Delivered(link) => {
                out.push(4);
                link.encode(out);
            }
            Self::Read { number, seen } => {
                out.push(5);
                number.encode(out);
                seen.encode(out);
            }
            Self::Known { number, zxid, digest } => {
                out.push(6);
                number.encode(out);
                zxid.encode(out);
                digest.encode(out);
            }
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::Order(order::Message::decode(reader)?),
            2 => Self::Write(Key::decode(reader)?),
            3 => Self::Forward(Key::decode(reader)?),
            4 => Self::Delivered(Link::decode(reader)?),
            5 => Self::Read { number: u64::decode(reader)?, seen: Zxid::decode(reader)? },
            6 => Self::Known { number: u64::decode(reader)?, zxid: Zxid::decode(reader)?, digest: reader.array()? },
            _ => return Err(DecodeError::UnknownTag("a message")),
        })
    }
}

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, _cluster: &Cluster, _out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        // Nothing is signed: channels prove who speaks.
        Ok(())
    }
}

/// What servers sign, in place of `M`: nothing.
pub struct Nothing<M> {
    never: Infallible,
    message: PhantomData<M>,
}

impl<M> Nothing<M> {
    /// There is none.
    pub(super) fn never(&self) {
        match self.never {}
    }
}

impl<M> Clone for Nothing<M> {
    fn clone(&self) -> Self {
        match self.never {}
    }
}

impl<M> fmt::Debug for Nothing<M> {
    fn fmt(&self, _formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.never {}
    }
}

impl<M> Signable for Nothing<M> {
    type Message = M;

    fn leaf(&self, _cluster: ClusterId, _signer: ReplicaId) -> Digest {
        match self.never {}
    }

    fn with_signature(self, _signature: BatchSignature) -> M {
        match self.never {}
    }
}
