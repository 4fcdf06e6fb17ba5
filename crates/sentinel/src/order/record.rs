//! What a server writes to its journal, in the order in which it happens.

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader};

use super::message::{Entry, FORMAT, PAGE_BYTES_MAX, Promise, Zxid, decode_bytes, encode_bytes};
use super::servers::Servers;

/// What a part of the journal begins with: all that stands for what was before, beside the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub incarnation: u64,
    pub is_member: bool,
    pub promise: Promise,
    pub accepted: u32,
    /// The entry after which the snapshot was taken.
    pub base: Zxid,
    /// The servers then.
    pub servers: Servers,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Head(Head),
    /// Before it is said.
    Promise(Promise),
    /// The beginning of an epoch is whole in the log, before that is said.
    Accepted(u32),
    /// Before it is acknowledged.
    Entry(Entry),
    /// What comes after this was never delivered.
    Truncate(Zxid),
    /// The entry is delivered that names this server's incarnation.
    Member,
    /// A piece of the snapshot that the head before it names, where the journal has snapshots too.
    Piece {
        is_last: bool,
        bytes: Bytes,
    },
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Head(Head { incarnation, is_member, promise, accepted, base, servers }) => {
                out.push(1);
                incarnation.encode(out);
                is_member.encode(out);
                promise.encode(out);
                accepted.encode(out);
                base.encode(out);
                servers.encode(out);
            }
            Self::Promise(promise) => {
                out.push(2);
                promise.encode(out);
            }
            Self::Accepted(epoch) => {
                out.push(3);
                epoch.encode(out);
            }
            Self::Entry(entry) => {
                out.push(4);
                entry.encode(out);
            }
            Self::Truncate(zxid) => {
                out.push(5);
                zxid.encode(out);
            }
            Self::Member => out.push(6),
            Self::Piece { is_last, bytes } => {
                out.push(7);
                is_last.encode(out);
                encode_bytes(bytes, out);
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
            1 => Self::Head(Head {
                incarnation: u64::decode(reader)?,
                is_member: bool::decode(reader)?,
                promise: Promise::decode(reader)?,
                accepted: u32::decode(reader)?,
                base: Zxid::decode(reader)?,
                servers: Servers::decode(reader)?,
            }),
            2 => Self::Promise(Promise::decode(reader)?),
            3 => Self::Accepted(u32::decode(reader)?),
            4 => Self::Entry(Entry::decode(reader)?),
            5 => Self::Truncate(Zxid::decode(reader)?),
            6 => Self::Member,
            7 => Self::Piece { is_last: bool::decode(reader)?, bytes: decode_bytes(reader, "a piece", PAGE_BYTES_MAX)? },
            _ => return Err(DecodeError::UnknownTag("a record of the order")),
        })
    }
}
