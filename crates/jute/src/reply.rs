//! What servers answer.

use bytes::Bytes;

use crate::records::{Acl, Stat, WatchedEvent, read_acls, write_acls};
use crate::request::{opcode, write_end, write_head};
use crate::{ErrorCode, MULTI_OPERATIONS_MAX, Malformed, Reader, Writer};

/// The number that events come under.
pub const EVENT_XID: i32 = -1;
/// The number that clients give their pings.
pub const PING_XID: i32 = -2;
/// The number that clients authenticate under.
pub const AUTH_XID: i32 = -4;
/// The number under which clients bring their watches.
pub const SET_WATCHES_XID: i32 = -8;

/// What one operation of a multi or a multi-read came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named as its operation is")]
pub enum OperationResult {
    Create {
        path: String,
    },
    /// Of a node whose stat was wanted, too; of whatever kind it is.
    CreateWithStat {
        path: String,
        stat: Stat,
    },
    Delete,
    SetData {
        stat: Stat,
    },
    Check,
    GetData {
        data: Option<Bytes>,
        stat: Stat,
    },
    GetChildren {
        children: Vec<String>,
    },
    /// It failed; or was undone because another one failed, which is 0 for those before it.
    Error(i32),
}

/// Who a client has shown to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// The scheme.
    pub scheme: String,
    /// The user, without any password.
    pub user: String,
}

/// The record of a reply without error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each says what it holds")]
pub enum Answer {
    /// Nothing more to say.
    Empty,
    /// To a create or a sync.
    Path(String),
    PathAndStat {
        path: String,
        stat: Stat,
    },
    Stat(Stat),
    Data {
        data: Option<Bytes>,
        stat: Stat,
    },
    Acl {
        acl: Vec<Acl>,
        stat: Stat,
    },
    /// Children, or ephemeral nodes.
    Names(Vec<String>),
    NamesAndStat {
        names: Vec<String>,
        stat: Stat,
    },
    Count(i32),
    Results(Vec<OperationResult>),
    Clients(Vec<ClientInfo>),
    Event(WatchedEvent),
}

/// A reply, or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's number.
    pub xid: i32,
    /// The newest state that the server has.
    pub zxid: i64,
    /// What came of it.
    pub answer: Result<Answer, ErrorCode>,
}

impl Reply {
    /// Writes a whole frame, its length first.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut writer = Writer::new(out);
        writer.int(0);
        writer.int(self.xid);
        writer.long(self.zxid);
        match &self.answer {
            Err(code) => writer.int(code.number()),
            Ok(answer) => {
                writer.int(0);
                answer.encode(&mut writer);
            }
        }
        let length = i32::try_from(out.len() - start - 4).expect("replies are bounded far below two gigabytes");
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Reads a frame's body, as the reply to a request of `opcode`.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8], opcode: i32) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (xid, zxid, error) = (reader.int()?, reader.long()?, reader.int()?);
        let answer = match error {
            0 if xid == EVENT_XID => Ok(Answer::Event(WatchedEvent::decode(&mut reader)?)),
            0 => Ok(Answer::decode(&mut reader, opcode)?),
            number => Err(ErrorCode::from_number(number).ok_or(Malformed::Unknown("an error code"))?),
        };
        reader.finish()?;
        Ok(Self { xid, zxid, answer })
    }
}

impl Answer {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Empty => {}
            Self::Path(path) => writer.string(path),
            Self::PathAndStat { path, stat } => {
                writer.string(path);
                stat.encode(writer);
            }
            Self::Stat(stat) => stat.encode(writer),
            Self::Data { data, stat } => {
                writer.buffer(data.as_deref());
                stat.encode(writer);
            }
            Self::Acl { acl, stat } => {
                write_acls(writer, acl);
                stat.encode(writer);
            }
            Self::Names(names) => write_names(writer, names),
            Self::NamesAndStat { names, stat } => {
                write_names(writer, names);
                stat.encode(writer);
            }
            Self::Count(count) => writer.int(*count),
            Self::Results(results) => {
                for result in results {
                    result.encode(writer);
                }
                write_end(writer);
            }
            Self::Clients(clients) => writer.list(clients.iter(), |writer, client| {
                writer.string(&client.scheme);
                writer.string(&client.user);
            }),
            Self::Event(event) => event.encode(writer),
        }
    }

    fn decode(reader: &mut Reader<'_>, opcode: i32) -> Result<Self, Malformed> {
        Ok(match opcode {
            opcode::CREATE | opcode::SYNC => Self::Path(reader.string()?),
            opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                Self::PathAndStat { path: reader.string()?, stat: Stat::decode(reader)? }
            }
            opcode::EXISTS | opcode::SET_DATA | opcode::SET_ACL => Self::Stat(Stat::decode(reader)?),
            opcode::GET_DATA => Self::Data { data: reader.buffer()?, stat: Stat::decode(reader)? },
            opcode::GET_ACL => Self::Acl { acl: read_acls(reader)?, stat: Stat::decode(reader)? },
            opcode::GET_CHILDREN | opcode::GET_EPHEMERALS => Self::Names(reader.list(Reader::string)?),
            opcode::GET_CHILDREN2 => Self::NamesAndStat { names: reader.list(Reader::string)?, stat: Stat::decode(reader)? },
            opcode::GET_ALL_CHILDREN_NUMBER | opcode::ADD_WATCH => Self::Count(reader.int()?),
            opcode::MULTI | opcode::MULTI_READ => Self::Results(OperationResult::decode_all(reader)?),
            opcode::WHO_AM_I => Self::Clients(reader.list(|reader| Ok(ClientInfo { scheme: reader.string()?, user: reader.string()? }))?),
            _ => Self::Empty,
        })
    }
}

fn write_names(writer: &mut Writer<'_>, names: &[String]) {
    writer.list(names.iter(), |writer, name| writer.string(name));
}

impl OperationResult {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create { path } => {
                write_head(writer, opcode::CREATE, 0);
                writer.string(path);
            }
            Self::CreateWithStat { path, stat } => {
                write_head(writer, opcode::CREATE2, 0);
                writer.string(path);
                stat.encode(writer);
            }
            Self::Delete => write_head(writer, opcode::DELETE, 0),
            Self::SetData { stat } => {
                write_head(writer, opcode::SET_DATA, 0);
                stat.encode(writer);
            }
            Self::Check => write_head(writer, opcode::CHECK, 0),
            Self::GetData { data, stat } => {
                write_head(writer, opcode::GET_DATA, 0);
                writer.buffer(data.as_deref());
                stat.encode(writer);
            }
            Self::GetChildren { children } => {
                write_head(writer, opcode::GET_CHILDREN, 0);
                write_names(writer, children);
            }
            Self::Error(number) => {
                write_head(writer, opcode::ERROR, *number);
                writer.int(*number);
            }
        }
    }

    fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        let mut results = Vec::new();
        loop {
            let (opcode, done, _error) = (reader.int()?, reader.boolean()?, reader.int()?);
            if done {
                return Ok(results);
            }
            if results.len() == MULTI_OPERATIONS_MAX {
                return Err(Malformed::Length("a multi"));
            }
            results.push(match opcode {
                opcode::CREATE => Self::Create { path: reader.string()? },
                opcode::CREATE2 => Self::CreateWithStat { path: reader.string()?, stat: Stat::decode(reader)? },
                opcode::DELETE => Self::Delete,
                opcode::SET_DATA => Self::SetData { stat: Stat::decode(reader)? },
                opcode::CHECK => Self::Check,
                opcode::GET_DATA => Self::GetData { data: reader.buffer()?, stat: Stat::decode(reader)? },
                opcode::GET_CHILDREN => Self::GetChildren { children: reader.list(Reader::string)? },
                opcode::ERROR => Self::Error(reader.int()?),
                _ => return Err(Malformed::Unknown("the result of an operation")),
            });
        }
    }
}
