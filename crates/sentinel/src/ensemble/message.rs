//! What the servers of an ensemble say to one another beside the order, and what they have ordered.

use bytes::Bytes;
use jute::{Id, NotARequest, Numbered, PASSWORD_BYTES};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};

use crate::digest::Checksum;
use crate::limits::{HEARD_SESSIONS_MAX, IDENTITIES_MAX};
use crate::order::{self, Zxid};
use crate::transaction::Transaction;

/// The version of the encoding, the first byte of each message and of all that is ordered.
const FORMAT: u8 = 1;
/// The longest scheme or name of an identity that is forwarded.
const IDENTITY_BYTES_MAX: usize = 64 << 10;
/// The longest request that is forwarded.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Whose request became what is ordered: nobody's where the leader had it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) server: u16,
    /// What that server sent under one leader, in order and with nothing missing.
    pub(crate) stream: u64,
    /// The request's number within it.
    pub(crate) number: u64,
}

impl Default for Source {
    fn default() -> Self {
        Self { server: u16::MAX, stream: 0, number: 0 }
    }
}

/// What is ordered.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) source: Source,
    pub(crate) body: OrderedBody,
}

#[derive(Clone, Debug)]
pub(crate) enum OrderedBody {
    Transaction(Transaction),
    /// Nothing changes. What was ordered before it is there when it is; and a session is at the source's server from now on, if one is named.
    Barrier {
        session: i64,
    },
    /// Nothing changes. Every server tells this one which digest its state has here.
    Comparison {
        server: u16,
    },
}

impl Ordered {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(256);
        out.push(FORMAT);
        self.source.server.encode(&mut out);
        self.source.stream.encode(&mut out);
        self.source.number.encode(&mut out);
        match &self.body {
            OrderedBody::Transaction(transaction) => {
                out.push(1);
                transaction.encode(&mut out);
            }
            OrderedBody::Barrier { session } => {
                out.push(2);
                session.cast_unsigned().encode(&mut out);
            }
            OrderedBody::Comparison { server } => {
                out.push(3);
                server.encode(&mut out);
            }
        }
        out.into()
    }

    pub(crate) fn decode(payload: &Bytes) -> Result<Self, String> {
        let mut reader = Reader::new(payload.clone(), types::ClusterId::new([0; 16]));
        let mut read = || -> Result<(Source, u8), DecodeError> {
            if u8::decode(&mut reader)? != FORMAT {
                return Err(DecodeError::UnknownTag("a format"));
            }
            let source = Source { server: u16::decode(&mut reader)?, stream: u64::decode(&mut reader)?, number: u64::decode(&mut reader)? };
            Ok((source, u8::decode(&mut reader)?))
        };
        let (source, kind) = read().map_err(|error| error.to_string())?;
        let body = match kind {
            1 => OrderedBody::Transaction(Transaction::decode(&reader.rest()).map_err(|error| error.to_string())?),
            2 => OrderedBody::Barrier { session: u64::decode(&mut reader).map_err(|error| error.to_string())?.cast_signed() },
            3 => OrderedBody::Comparison { server: u16::decode(&mut reader).map_err(|error| error.to_string())? },
            _ => return Err("it is of no known kind".to_owned()),
        };
        Ok(Self { source, body })
    }
}

/// What a follower's client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The session; 0 where there is none.
    pub session: i64,
    /// Who the client has shown to be.
    pub identities: Vec<Id>,
    /// What for.
    pub what: Forwarded,
}

/// What is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Forwarded {
    /// A request that writes.
    Request(Numbered),
    /// The session begins.
    CreateSession { timeout_ms: i32, password: [u8; PASSWORD_BYTES] },
    /// What was ordered before is to be known here; and the session is here from now on, if there is one and this is its password.
    Barrier { password: [u8; PASSWORD_BYTES] },
}

impl Forward {
    /// About how many bytes it takes.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        let mut out = Vec::new();
        self.encode(&mut out);
        out.len()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.session.cast_unsigned().encode(out);
        encode_count(self.identities.len(), out);
        for id in &self.identities {
            for part in [&id.scheme, &id.id] {
                encode_count(part.len(), out);
                out.extend_from_slice(part.as_bytes());
            }
        }
        match &self.what {
            Forwarded::Request(numbered) => {
                out.push(1);
                let mut body = Vec::new();
                numbered.encode(&mut body);
                encode_count(body.len(), out);
                out.extend_from_slice(&body);
            }
            Forwarded::CreateSession { timeout_ms, password } => {
                out.push(2);
                timeout_ms.cast_unsigned().encode(out);
                out.extend_from_slice(password);
            }
            Forwarded::Barrier { password } => {
                out.push(3);
                out.extend_from_slice(password);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let session = u64::decode(reader)?.cast_signed();
        let mut identities = Vec::new();
        for _ in 0..reader.count("identities", IDENTITIES_MAX + 3)? {
            let mut part = || -> Result<String, DecodeError> {
                let count = reader.count("an identity", IDENTITY_BYTES_MAX)?;
                String::from_utf8(reader.take(count)?.to_vec()).map_err(|_| DecodeError::NotCanonical("an identity"))
            };
            identities.push(Id { scheme: part()?, id: part()? });
        }
        let what = match u8::decode(reader)? {
            1 => {
                let count = reader.count("a request", REQUEST_BYTES_MAX)?;
                let body = reader.take(count)?;
                let malformed = |_: NotARequest| DecodeError::NotCanonical("a request");
                Forwarded::Request(Numbered::decode(&body).map_err(malformed)?)
            }
            2 => Forwarded::CreateSession { timeout_ms: u32::decode(reader)?.cast_signed(), password: reader.array()? },
            3 => Forwarded::Barrier { password: reader.array()? },
            _ => return Err(DecodeError::UnknownTag("what is forwarded")),
        };
        Ok(Self { session, identities, what })
    }
}

/// What servers say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Message {
    /// Of the order.
    Order(order::Message),
    /// A client of mine asks for this, and you lead.
    Forward { stream: u64, number: u64, forward: Forward },
    /// Something of that stream is missing, or I do not lead. Begin another one, after the one that I know.
    Refused { stream: u64, known: u64 },
    /// These sessions were heard of here.
    Heard { sessions: Vec<i64> },
    /// What you propose at this place does not make the digest that you foresee: I do not acknowledge it.
    Disagree { epoch: u32, zxid: Zxid, found: Checksum },
    /// I was repaired, and you lead: have an entry ordered at which all compare their states with mine.
    Compare,
    /// At the entry of a comparison my state has this digest.
    Digest { zxid: Zxid, found: Checksum },
    /// I cannot go on from my log. Does anybody lead a majority without me?
    WhoLeads,
    /// I do.
    LeadsWithout,
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Order(message) => {
                out.push(1);
                message.encode(out);
            }
            Self::Forward { stream, number, forward } => {
                out.push(2);
                stream.encode(out);
                number.encode(out);
                forward.encode(out);
            }
            Self::Refused { stream, known } => {
                out.push(3);
                stream.encode(out);
                known.encode(out);
            }
            Self::Heard { sessions } => {
                out.push(4);
                encode_count(sessions.len(), out);
                sessions.iter().for_each(|session| session.cast_unsigned().encode(out));
            }
            Self::Disagree { epoch, zxid, found } => {
                out.push(5);
                epoch.encode(out);
                zxid.encode(out);
                out.extend_from_slice(&found.0);
            }
            Self::Compare => out.push(6),
            Self::Digest { zxid, found } => {
                out.push(7);
                zxid.encode(out);
                out.extend_from_slice(&found.0);
            }
            Self::WhoLeads => out.push(8),
            Self::LeadsWithout => out.push(9),
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a format"));
        }
        Ok(match u8::decode(reader)? {
            1 => Self::Order(order::Message::decode(reader)?),
            2 => Self::Forward { stream: u64::decode(reader)?, number: u64::decode(reader)?, forward: Forward::decode(reader)? },
            3 => Self::Refused { stream: u64::decode(reader)?, known: u64::decode(reader)? },
            4 => {
                let sessions: Vec<u64> = reader.sequence("sessions", HEARD_SESSIONS_MAX)?;
                Self::Heard { sessions: sessions.into_iter().map(u64::cast_signed).collect() }
            }
            5 => Self::Disagree { epoch: u32::decode(reader)?, zxid: Zxid::decode(reader)?, found: Checksum(reader.array()?) },
            6 => Self::Compare,
            7 => Self::Digest { zxid: Zxid::decode(reader)?, found: Checksum(reader.array()?) },
            8 => Self::WhoLeads,
            9 => Self::LeadsWithout,
            _ => return Err(DecodeError::UnknownTag("a message")),
        })
    }
}
