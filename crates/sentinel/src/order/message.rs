//! What servers say to one another, and its encoding.

use std::fmt;

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count, encode_sequence};

use super::servers::{Servers, Standing};

/// The version of the encoding, the first byte of each message and record.
pub(super) const FORMAT: u8 = 1;
/// The most bytes that one entry carries.
pub const PAYLOAD_BYTES_MAX: usize = 32 << 20;
/// The most entries of one message.
pub const ENTRIES_MAX: usize = 1_024;
/// With so many bytes a message takes no further entry.
pub const ENTRIES_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a page of a snapshot.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// The longest snapshot that is taken over.
pub const SNAPSHOT_BYTES_MAX: u64 = 16 << 30;
/// The last epoch: transactions have their places in 64 bits with a sign.
pub const EPOCH_MAX: u32 = i32::MAX as u32;
/// The most servers.
pub const SERVERS_MAX: u16 = 63;

/// The place of an entry: the epoch of its leader, and its number within the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zxid(pub u64);

impl Zxid {
    /// Entry `counter` of `epoch`.
    #[must_use]
    pub const fn new(epoch: u32, counter: u32) -> Self {
        Self((epoch as u64) << 32 | counter as u64)
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number within the epoch.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    pub const fn counter(self) -> u32 {
        self.0 as u32
    }

    /// Whether `next` may follow directly.
    #[must_use]
    pub const fn is_followed_by(self, next: Self) -> bool {
        if next.epoch() == self.epoch() { next.0 == self.0 + 1 } else { next.epoch() > self.epoch() && next.counter() == 1 }
    }
}

impl fmt::Display for Zxid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// How new a server's history is. Of two histories the greater has everything that was delivered by anybody before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct History {
    /// The last epoch whose beginning it has whole.
    pub accepted: u32,
    /// Its last entry.
    pub last: Zxid,
}

/// To whom a server has promised what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// It obeys no lower epoch.
    pub epoch: u32,
    /// And in this one this server alone.
    pub to: u16,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// What somebody proposed.
    Payload(Bytes),
    /// The incarnations of all servers, in order: the very first entry.
    Founders(Vec<u64>),
    /// A server counts from now on that began with an empty disk.
    Joins {
        /// Which.
        server: u16,
        /// Its incarnation.
        incarnation: u64,
    },
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub zxid: Zxid,
    /// What it is.
    pub body: Body,
}

impl Entry {
    /// About how much memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        64 + match &self.body {
            Body::Payload(payload) => payload.len(),
            Body::Founders(incarnations) => incarnations.len() * 8,
            Body::Joins { .. } => 0,
        }
    }
}

/// Who leads, as each of its messages says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Its epoch.
    pub epoch: u32,
    /// Its history when the epoch began.
    pub beginning: History,
    /// Whether a majority has accepted the epoch.
    pub is_established: bool,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Message {
    /// I look for a leader, and vote for this one; or I am a leader, and you look for one.
    Vote { round: u64, candidate: u16, history: History, is_leader: bool },
    /// You are my leader. This is what I have promised so far.
    Follow { promised: Promise, history: History, standing: Standing },
    /// This is my epoch.
    NewEpoch { epoch: u32 },
    /// I obey no lower one from now on.
    Promise { epoch: u32, history: History, standing: Standing },
    /// These come after `previous`; and up to `committed` all is delivered.
    Entries { leadership: Leadership, previous: Zxid, entries: Vec<Entry>, committed: Zxid },
    /// My log goes as far as this, on the disk.
    Ack { epoch: u32, last: Zxid, has_accepted: bool, standing: Standing },
    /// Your log goes as far as `from`, which I do not have: what comes after `to` was never delivered.
    Truncate { leadership: Leadership, from: Zxid, to: Zxid },
    /// I no longer have what you lack: take over the state after this entry.
    Snapshot { leadership: Leadership, zxid: Zxid, bytes: u64, servers: Servers },
    /// Give me the state from this byte on.
    FetchPage { epoch: u32, zxid: Zxid, offset: u64 },
    /// Here it is.
    Page { epoch: u32, zxid: Zxid, offset: u64, bytes: Bytes },
}

/// Appends bytes behind their length.
pub(super) fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    encode_count(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Reads what [`encode_bytes`] wrote.
pub(super) fn decode_bytes(reader: &mut Reader, what: &'static str, max: usize) -> Result<Bytes, DecodeError> {
    let count = reader.count(what, max)?;
    reader.take(count)
}

fn decode_epoch(reader: &mut Reader) -> Result<u32, DecodeError> {
    let epoch = u32::decode(reader)?;
    if epoch > EPOCH_MAX { Err(DecodeError::OverLimit("an epoch")) } else { Ok(epoch) }
}

impl Encode for Zxid {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for Zxid {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let zxid = u64::decode(reader).map(Self)?;
        if zxid.epoch() > EPOCH_MAX { Err(DecodeError::OverLimit("an epoch")) } else { Ok(zxid) }
    }
}

impl Encode for History {
    fn encode(&self, out: &mut Vec<u8>) {
        self.accepted.encode(out);
        self.last.encode(out);
    }
}

impl Decode for History {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { accepted: decode_epoch(reader)?, last: Zxid::decode(reader)? })
    }
}

impl Encode for Promise {
    fn encode(&self, out: &mut Vec<u8>) {
        self.epoch.encode(out);
        self.to.encode(out);
    }
}

impl Decode for Promise {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { epoch: decode_epoch(reader)?, to: u16::decode(reader)? })
    }
}

impl Encode for Leadership {
    fn encode(&self, out: &mut Vec<u8>) {
        self.epoch.encode(out);
        self.beginning.encode(out);
        self.is_established.encode(out);
    }
}

impl Decode for Leadership {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { epoch: decode_epoch(reader)?, beginning: History::decode(reader)?, is_established: bool::decode(reader)? })
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.zxid.encode(out);
        match &self.body {
            Body::Payload(payload) => {
                out.push(1);
                encode_bytes(payload, out);
            }
            Body::Founders(incarnations) => {
                out.push(2);
                encode_sequence(incarnations, out);
            }
            Body::Joins { server, incarnation } => {
                out.push(3);
                server.encode(out);
                incarnation.encode(out);
            }
        }
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let zxid = Zxid::decode(reader)?;
        let body = match u8::decode(reader)? {
            1 => Body::Payload(decode_bytes(reader, "a payload", PAYLOAD_BYTES_MAX)?),
            2 => Body::Founders(reader.sequence("founders", usize::from(SERVERS_MAX))?),
            3 => Body::Joins { server: u16::decode(reader)?, incarnation: u64::decode(reader)? },
            _ => return Err(DecodeError::UnknownTag("an entry")),
        };
        Ok(Self { zxid, body })
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Vote { round, candidate, history, is_leader } => {
                out.push(1);
                round.encode(out);
                candidate.encode(out);
                history.encode(out);
                is_leader.encode(out);
            }
            Self::Follow { promised, history, standing } => {
                out.push(2);
                promised.encode(out);
                history.encode(out);
                standing.encode(out);
            }
            Self::NewEpoch { epoch } => {
                out.push(3);
                epoch.encode(out);
            }
            Self::Promise { epoch, history, standing } => {
                out.push(4);
                epoch.encode(out);
                history.encode(out);
                standing.encode(out);
            }
            Self::Entries { leadership, previous, entries, committed } => {
                out.push(5);
                leadership.encode(out);
                previous.encode(out);
                encode_sequence(entries, out);
                committed.encode(out);
            }
            Self::Ack { epoch, last, has_accepted, standing } => {
                out.push(6);
                epoch.encode(out);
                last.encode(out);
                has_accepted.encode(out);
                standing.encode(out);
            }
            Self::Truncate { leadership, from, to } => {
                out.push(7);
                leadership.encode(out);
                from.encode(out);
                to.encode(out);
            }
            Self::Snapshot { leadership, zxid, bytes, servers } => {
                out.push(8);
                leadership.encode(out);
                zxid.encode(out);
                bytes.encode(out);
                servers.encode(out);
            }
            Self::FetchPage { epoch, zxid, offset } => {
                out.push(9);
                epoch.encode(out);
                zxid.encode(out);
                offset.encode(out);
            }
            Self::Page { epoch, zxid, offset, bytes } => {
                out.push(10);
                epoch.encode(out);
                zxid.encode(out);
                offset.encode(out);
                encode_bytes(bytes, out);
            }
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a format"));
        }
        Ok(match u8::decode(reader)? {
            1 => Self::Vote {
                round: u64::decode(reader)?,
                candidate: u16::decode(reader)?,
                history: History::decode(reader)?,
                is_leader: bool::decode(reader)?,
            },
            2 => {
                Self::Follow { promised: Promise::decode(reader)?, history: History::decode(reader)?, standing: Standing::decode(reader)? }
            }
            3 => Self::NewEpoch { epoch: decode_epoch(reader)? },
            4 => Self::Promise { epoch: decode_epoch(reader)?, history: History::decode(reader)?, standing: Standing::decode(reader)? },
            5 => Self::Entries {
                leadership: Leadership::decode(reader)?,
                previous: Zxid::decode(reader)?,
                entries: reader.sequence("entries", ENTRIES_MAX)?,
                committed: Zxid::decode(reader)?,
            },
            6 => Self::Ack {
                epoch: decode_epoch(reader)?,
                last: Zxid::decode(reader)?,
                has_accepted: bool::decode(reader)?,
                standing: Standing::decode(reader)?,
            },
            7 => Self::Truncate { leadership: Leadership::decode(reader)?, from: Zxid::decode(reader)?, to: Zxid::decode(reader)? },
            8 => Self::Snapshot {
                leadership: Leadership::decode(reader)?,
                zxid: Zxid::decode(reader)?,
                bytes: u64::decode(reader)?,
                servers: Servers::decode(reader)?,
            },
            9 => Self::FetchPage { epoch: decode_epoch(reader)?, zxid: Zxid::decode(reader)?, offset: u64::decode(reader)? },
            10 => Self::Page {
                epoch: decode_epoch(reader)?,
                zxid: Zxid::decode(reader)?,
                offset: u64::decode(reader)?,
                bytes: decode_bytes(reader, "a page", PAGE_BYTES_MAX)?,
            },
            _ => return Err(DecodeError::UnknownTag("a message of the order")),
        })
    }
}
