//! What is said in the world of whole servers: what servers say to one another, and the connections of clients.

use std::fmt;

use ::sentinel::ensemble;
use ::sentinel::order::{self, Zxid};
use ::sentinel::transactions;
use crypto::{Claim, Rejection, SignatureClaims};
use types::Cluster;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};

use super::stream::{Packet, Segment};

/// The longest text of a report.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What a server tells whoever watches, and nobody else: it says it to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It has delivered this entry, and all before it.
    Delivered(Zxid),
    /// Its state was damaged on purpose.
    Damaged(String),
    /// It has found its state to be wrong.
    Stopped(String),
    /// It begins anew from its disk.
    Reopens(String),
    /// It has seen a promise broken.
    Broken(String),
}

/// What is said.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "a connection has its client's number, a life that of the server's process, a packet what it carries")]
pub enum Message {
    /// Between servers.
    Peer {
        /// Which of the sender's processes says it.
        life: u64,
        /// Its number on this link.
        number: u64,
        /// What.
        message: ensemble::Message,
    },
    /// A client's process wants a connection; the number grows.
    Dial(u64),
    /// It has one, if it goes on with this number.
    Accepted { connection: u64, life: u64 },
    /// What a client says over a connection.
    Up { connection: u64, life: u64, packet: Packet },
    /// What a server says over a connection.
    Down { connection: u64, packet: Packet },
    /// The connection is no more.
    Reset(u64),
    /// For whoever watches.
    Report(Report),
    /// A client of the engine wants to know which process a server is: what it says is for that one, as over a connection.
    Hello,
    /// This one.
    Welcome { life: u64 },
    /// What the engine's clients ask, and what they are answered: the server's process, and the number on this link.
    Engine { life: u64, number: u64, message: transactions::Message },
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer { message: ensemble::Message::Order(order::Message::Page { zxid, offset, .. }), .. } => {
                write!(formatter, "Page from {offset} of {zxid}")
            }
            Self::Peer {
                message: ensemble::Message::Order(order::Message::Entries { leadership, previous, entries, committed }), ..
            } => {
                write!(formatter, "Entries {leadership:?} after {previous}, delivered {committed}:")?;
                entries.iter().try_for_each(|entry| match &entry.body {
                    order::Body::Payload(payload) => match ensemble::ordered_transaction(entry.zxid, payload) {
                        Ok(Some(transaction)) => write!(formatter, " {} {} {:?}", entry.zxid, transaction.session, transaction.body),
                        _ => write!(formatter, " {} changes nothing", entry.zxid),
                    },
                    body => write!(formatter, " {} {body:?}", entry.zxid),
                })
            }
            Self::Peer { message, .. } => write!(formatter, "{message:?}"),
            Self::Dial(connection) => write!(formatter, "Dial {connection}"),
            Self::Accepted { connection, .. } => write!(formatter, "Accepted {connection}"),
            Self::Up { connection, packet, .. } => write!(formatter, "Up {connection}: {packet:?}"),
            Self::Down { connection, packet } => write!(formatter, "Down {connection}: {packet:?}"),
            Self::Reset(connection) => write!(formatter, "Reset {connection}"),
            Self::Report(report) => write!(formatter, "{report:?}"),
            Self::Hello => write!(formatter, "Hello"),
            Self::Welcome { life } => write!(formatter, "Welcome to {life}"),
            Self::Engine { number, message, .. } => write!(formatter, "{number}: {message:?}"),
        }
    }
}

impl Encode for Report {
    fn encode(&self, out: &mut Vec<u8>) {
        let (tag, text) = match self {
            Self::Delivered(zxid) => {
                out.push(1);
                return zxid.encode(out);
            }
            Self::Damaged(text) => (2, text),
            Self::Stopped(text) => (3, text),
            Self::Reopens(text) => (4, text),
            Self::Broken(text) => (5, text),
        };
        out.push(tag);
        encode_count(text.len(), out);
        out.extend_from_slice(text.as_bytes());
    }
}

impl Decode for Report {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let tag = u8::decode(reader)?;
        if tag == 1 {
            return Ok(Self::Delivered(Zxid::decode(reader)?));
        }
        let count = reader.count("a report", TEXT_BYTES_MAX)?;
        let text = String::from_utf8(reader.take(count)?.to_vec()).map_err(|_| DecodeError::NotCanonical("a report"))?;
        Ok(match tag {
            2 => Self::Damaged(text),
            3 => Self::Stopped(text),
            4 => Self::Reopens(text),
            5 => Self::Broken(text),
            _ => return Err(DecodeError::UnknownTag("a report")),
        })
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Peer { life, number, message } => {
                out.push(1);
                life.encode(out);
                number.encode(out);
                message.encode(out);
            }
            Self::Dial(connection) => {
                out.push(2);
                connection.encode(out);
            }
            Self::Accepted { connection, life } => {
                out.push(3);
                connection.encode(out);
                life.encode(out);
            }
            Self::Up { connection, life, packet } => {
                out.push(4);
                connection.encode(out);
                life.encode(out);
                packet.encode(out);
            }
            Self::Down { connection, packet } => {
                out.push(5);
                connection.encode(out);
                packet.encode(out);
            }
            Self::Reset(connection) => {
                out.push(6);
                connection.encode(out);
            }
            Self::Report(report) => {
                out.push(7);
                report.encode(out);
            }
            Self::Hello => out.push(8),
            Self::Welcome { life } => {
                out.push(9);
                life.encode(out);
            }
            Self::Engine { life, number, message } => {
                out.push(10);
                life.encode(out);
                number.encode(out);
                message.encode(out);
            }
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::Peer { life: u64::decode(reader)?, number: u64::decode(reader)?, message: ensemble::Message::decode(reader)? },
            2 => Self::Dial(u64::decode(reader)?),
            3 => Self::Accepted { connection: u64::decode(reader)?, life: u64::decode(reader)? },
            4 => Self::Up { connection: u64::decode(reader)?, life: u64::decode(reader)?, packet: Packet::decode(reader)? },
            5 => Self::Down { connection: u64::decode(reader)?, packet: Packet::decode(reader)? },
            6 => Self::Reset(u64::decode(reader)?),
            7 => Self::Report(Report::decode(reader)?),
            8 => Self::Hello,
            9 => Self::Welcome { life: u64::decode(reader)? },
            10 => {
                Self::Engine { life: u64::decode(reader)?, number: u64::decode(reader)?, message: transactions::Message::decode(reader)? }
            }
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

/// Frames on their way.
pub(super) fn frames(bytes: Vec<u8>, is_damaged: bool) -> Segment {
    Segment::Frames { bytes: bytes.into(), is_damaged }
}
