//! What clients ask.

use bytes::Bytes;

use crate::records::{Acl, read_acls, write_acls};
use crate::{Malformed, Reader, Writer};

/// The numbers of operations.
#[expect(missing_docs, reason = "each is named as its request is")]
pub mod opcode {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const RECONFIG: i32 = 16;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SASL: i32 = 102;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub const SET_WATCHES2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
    pub const CLOSE_SESSION: i32 = -11;
    pub const ERROR: i32 = -1;
}

/// The most operations of a multi or a multi-read.
pub const MULTI_OPERATIONS_MAX: usize = 16_384;

/// What kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// It stays until it is deleted.
    Persistent,
    /// It stays as long as the session that creates it.
    Ephemeral,
    /// It goes after its last child went.
    Container,
    /// It goes when it has no children and was not written for so long.
    Ttl {
        /// For how long.
        ttl_ms: i64,
    },
}

/// Creates a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// Where; of a sequential node, what its number is appended to.
    pub path: String,
    /// With which data.
    pub data: Option<Bytes>,
    /// With which ACL.
    pub acl: Vec<Acl>,
    /// What kind of node.
    pub mode: CreateMode,
    /// Whether the parent's next number is appended to the path.
    pub sequential: bool,
    /// Whether the client wants the node's stat, too.
    pub wants_stat: bool,
}

/// One operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named as the request is that it is in a multi")]
pub enum Operation {
    Create(Create),
    Delete { path: String, version: i32 },
    SetData { path: String, data: Option<Bytes>, version: i32 },
    Check { path: String, version: i32 },
}

/// One operation of a multi-read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named as the request is that it is in a multi-read")]
pub enum ReadOperation {
    GetData { path: String },
    GetChildren { path: String },
}

/// Which of a client's watches are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum WatchKind {
    /// One-shot, on children.
    Children = 1,
    /// One-shot, on data or existence.
    Data = 2,
    /// Any.
    Any = 3,
    /// Lasting, on one node.
    Persistent = 4,
    /// Lasting, on a node and all below it.
    PersistentRecursive = 5,
}

/// How a watch lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum WatchMode {
    /// Until it is removed.
    Persistent = 0,
    /// Until it is removed, for everything below the node, too.
    PersistentRecursive = 1,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as ZooKeeper's documentation names them")]
pub enum Request {
    Create(Create),
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    GetChildren {
        path: String,
        watch: bool,
    },
    /// As [`Request::GetChildren`], with the node's stat.
    GetChildren2 {
        path: String,
        watch: bool,
    },
    Sync {
        path: String,
    },
    Ping,
    Check {
        path: String,
        version: i32,
    },
    Multi(Vec<Operation>),
    MultiRead(Vec<ReadOperation>),
    /// Changes the members. Nothing in it is read, because no client may.
    Reconfig,
    CheckWatches {
        path: String,
        kind: WatchKind,
    },
    RemoveWatches {
        path: String,
        kind: WatchKind,
    },
    Auth {
        scheme: String,
        credentials: Bytes,
    },
    Sasl,
    /// A client that has reconnected brings its watches, and is told what happened since `relative_zxid`.
    SetWatches(SetWatches),
    GetEphemerals {
        prefix: String,
    },
    GetAllChildrenNumber {
        path: String,
    },
    AddWatch {
        path: String,
        mode: WatchMode,
    },
    WhoAmI,
    CloseSession,
}

/// The watches of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetWatches {
    /// The newest state that the client has seen.
    pub relative_zxid: i64,
    /// One-shot watches on data.
    pub data: Vec<String>,
    /// One-shot watches on paths where no node was.
    pub exist: Vec<String>,
    /// One-shot watches on children.
    pub child: Vec<String>,
    /// Lasting watches.
    pub persistent: Vec<String>,
    /// Lasting watches on whole subtrees.
    pub persistent_recursive: Vec<String>,
}

/// A request and the number it is answered under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The number.
    pub xid: i32,
    /// The request.
    pub request: Request,
}

/// Why a frame is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotARequest {
    /// Not even its head can be read.
    #[error("a request without head")]
    Head,
    /// There is no such operation.
    #[error("there is no operation {opcode}")]
    Unknown {
        /// The request's number.
        xid: i32,
        /// The operation's.
        opcode: i32,
    },
    /// The operation's record cannot be read.
    #[error("operation {opcode}: {reason}")]
    Record {
        /// The request's number.
        xid: i32,
        /// The operation's.
        opcode: i32,
        /// Why.
        reason: Malformed,
    },
}

impl Request {
    /// How many elements its lists have: each takes far more memory than it has bytes.
    #[must_use]
    pub fn elements(&self) -> usize {
        let of = |operation: &Operation| 1 + if let Operation::Create(create) = operation { create.acl.len() } else { 0 };
        match self {
            Self::Create(create) => create.acl.len(),
            Self::SetAcl { acl, .. } => acl.len(),
            Self::Multi(operations) => operations.iter().map(of).sum(),
            Self::MultiRead(operations) => operations.len(),
            Self::SetWatches(watches) => {
                let lists = [&watches.data, &watches.exist, &watches.child, &watches.persistent, &watches.persistent_recursive];
                lists.iter().map(|list| list.len()).sum()
            }
            _ => 0,
        }
    }
}

impl Numbered {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotARequest> {
        let mut reader = Reader::new(bytes);
        let (Ok(xid), Ok(opcode)) = (reader.int(), reader.int()) else { return Err(NotARequest::Head) };
        let decoded = Request::decode(opcode, &mut reader).ok_or(NotARequest::Unknown { xid, opcode })?;
        match decoded.and_then(|request| reader.finish().map(|()| request)) {
            Ok(request) => Ok(Self { xid, request }),
            Err(reason) => Err(NotARequest::Record { xid, opcode, reason }),
        }
    }

    /// Writes a frame's body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.int(self.xid);
        writer.int(self.request.opcode());
        self.request.encode(&mut writer);
    }
}

impl Create {
    /// The operation's number.
    #[must_use]
    pub fn opcode(&self) -> i32 {
        match self.mode {
            _ if !self.wants_stat => opcode::CREATE,
            CreateMode::Container => opcode::CREATE_CONTAINER,
            CreateMode::Ttl { .. } => opcode::CREATE_TTL,
            CreateMode::Persistent | CreateMode::Ephemeral => opcode::CREATE2,
        }
    }

    fn decode(opcode: i32, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (path, data, acl) = (reader.string()?, reader.buffer()?, read_acls(reader)?);
        let flags = reader.int()?;
        let ttl_ms = if opcode == opcode::CREATE_TTL { reader.long()? } else { -1 };
        let (mode, sequential) = match flags {
            0 => (CreateMode::Persistent, false),
            1 => (CreateMode::Ephemeral, false),
            2 => (CreateMode::Persistent, true),
            3 => (CreateMode::Ephemeral, true),
            4 => (CreateMode::Container, false),
            5 => (CreateMode::Ttl { ttl_ms }, false),
            6 => (CreateMode::Ttl { ttl_ms }, true),
            _ => return Err(Malformed::Unknown("the mode of a node")),
        };
        if ttl_ms >= 0 && !matches!(mode, CreateMode::Ttl { .. }) {
            return Err(Malformed::Unknown("the mode of a node with a time to live"));
        }
        Ok(Self { path, data, acl, mode, sequential, wants_stat: opcode != opcode::CREATE })
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.string(&self.path);
        writer.buffer(self.data.as_deref());
        write_acls(writer, &self.acl);
        let flags = match self.mode {
            CreateMode::Persistent => 0,
            CreateMode::Ephemeral => 1,
            CreateMode::Container => 4,
            CreateMode::Ttl { .. } => 5,
        };
        let of_sequence = match self.mode {
            _ if !self.sequential => 0,
            CreateMode::Ttl { .. } => 1,
            _ => 2,
        };
        writer.int(flags + of_sequence);
        // A plain create has no room for the time, and is refused for want of it.
        if let CreateMode::Ttl { ttl_ms } = self.mode
            && self.wants_stat
        {
            writer.long(ttl_ms);
        }
    }
}

impl Operation {
    /// The operation's number.
    #[must_use]
    pub fn opcode(&self) -> i32 {
        match self {
            Self::Create(create) => create.opcode(),
            Self::Delete { .. } => opcode::DELETE,
            Self::SetData { .. } => opcode::SET_DATA,
            Self::Check { .. } => opcode::CHECK,
        }
    }

    fn decode(opcode: i32, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match opcode {
            opcode::CREATE | opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                Self::Create(Create::decode(opcode, reader)?)
            }
            opcode::DELETE => Self::Delete { path: reader.string()?, version: reader.int()? },
            opcode::SET_DATA => Self::SetData { path: reader.string()?, data: reader.buffer()?, version: reader.int()? },
            opcode::CHECK => Self::Check { path: reader.string()?, version: reader.int()? },
            _ => return Err(Malformed::Unknown("an operation of a multi")),
        })
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create(create) => create.encode(writer),
            Self::Delete { path, version } | Self::Check { path, version } => write_versioned(writer, path, *version),
            Self::SetData { path, data, version } => write_data(writer, path, data.as_deref(), *version),
        }
    }
}

impl ReadOperation {
    fn decode(opcode: i32, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let path = reader.string()?;
        // Reads within a multi-read leave no watches.
        reader.boolean()?;
        match opcode {
            opcode::GET_DATA => Ok(Self::GetData { path }),
            opcode::GET_CHILDREN => Ok(Self::GetChildren { path }),
            _ => Err(Malformed::Unknown("an operation of a multi-read")),
        }
    }
}

/// Reads the operations of a multi: each behind a head that says what it is and whether it was the last.
fn read_operations<T>(reader: &mut Reader<'_>, read: impl Fn(i32, &mut Reader<'_>) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
    let mut operations = Vec::new();
    loop {
        let (opcode, done, _error) = (reader.int()?, reader.boolean()?, reader.int()?);
        if done {
            return Ok(operations);
        }
        if operations.len() == MULTI_OPERATIONS_MAX {
            return Err(Malformed::Length("a multi"));
        }
        operations.push(read(opcode, reader)?);
    }
}

/// Writes the head of an operation of a multi, or of its result.
pub(crate) fn write_head(writer: &mut Writer<'_>, opcode: i32, error: i32) {
    writer.int(opcode);
    writer.boolean(false);
    writer.int(error);
}

/// Writes what stands behind the last operation, or result, of a multi.
pub(crate) fn write_end(writer: &mut Writer<'_>) {
    writer.int(-1);
    writer.boolean(true);
    writer.int(-1);
}

fn write_versioned(writer: &mut Writer<'_>, path: &str, version: i32) {
    writer.string(path);
    writer.int(version);
}

fn write_data(writer: &mut Writer<'_>, path: &str, data: Option<&[u8]>, version: i32) {
    writer.string(path);
    writer.buffer(data);
    writer.int(version);
}

impl Request {
    /// The operation's number.
    #[must_use]
    pub fn opcode(&self) -> i32 {
        match self {
            Self::Create(create) => create.opcode(),
            Self::Delete { .. } => opcode::DELETE,
            Self::Exists { .. } => opcode::EXISTS,
            Self::GetData { .. } => opcode::GET_DATA,
            Self::SetData { .. } => opcode::SET_DATA,
            Self::GetAcl { .. } => opcode::GET_ACL,
            Self::SetAcl { .. } => opcode::SET_ACL,
            Self::GetChildren { .. } => opcode::GET_CHILDREN,
            Self::GetChildren2 { .. } => opcode::GET_CHILDREN2,
            Self::Sync { .. } => opcode::SYNC,
            Self::Ping => opcode::PING,
            Self::Check { .. } => opcode::CHECK,
            Self::Multi(_) => opcode::MULTI,
            Self::MultiRead(_) => opcode::MULTI_READ,
            Self::Reconfig => opcode::RECONFIG,
            Self::CheckWatches { .. } => opcode::CHECK_WATCHES,
            Self::RemoveWatches { .. } => opcode::REMOVE_WATCHES,
            Self::Auth { .. } => opcode::AUTH,
            Self::Sasl => opcode::SASL,
            Self::SetWatches(watches) if watches.is_one_shot() => opcode::SET_WATCHES,
            Self::SetWatches(_) => opcode::SET_WATCHES2,
            Self::GetEphemerals { .. } => opcode::GET_EPHEMERALS,
            Self::GetAllChildrenNumber { .. } => opcode::GET_ALL_CHILDREN_NUMBER,
            Self::AddWatch { .. } => opcode::ADD_WATCH,
            Self::WhoAmI => opcode::WHO_AM_I,
            Self::CloseSession => opcode::CLOSE_SESSION,
        }
    }

    /// The request that `opcode` and the record behind it are; nothing when there is no such operation.
    fn decode(opcode: i32, reader: &mut Reader<'_>) -> Option<Result<Self, Malformed>> {
        let decode: fn(i32, &mut Reader<'_>) -> Result<Self, Malformed> = match opcode {
            opcode::CREATE
            | opcode::CREATE2
            | opcode::CREATE_CONTAINER
            | opcode::CREATE_TTL
            | opcode::DELETE
            | opcode::SET_DATA
            | opcode::CHECK => |opcode, reader| Ok(Self::from(Operation::decode(opcode, reader)?)),
            opcode::EXISTS => |_, reader| Ok(Self::Exists { path: reader.string()?, watch: reader.boolean()? }),
            opcode::GET_DATA => |_, reader| Ok(Self::GetData { path: reader.string()?, watch: reader.boolean()? }),
            opcode::GET_ACL => |_, reader| Ok(Self::GetAcl { path: reader.string()? }),
            opcode::SET_ACL => |_, reader| Ok(Self::SetAcl { path: reader.string()?, acl: read_acls(reader)?, version: reader.int()? }),
            opcode::GET_CHILDREN => |_, reader| Ok(Self::GetChildren { path: reader.string()?, watch: reader.boolean()? }),
            opcode::GET_CHILDREN2 => |_, reader| Ok(Self::GetChildren2 { path: reader.string()?, watch: reader.boolean()? }),
            opcode::SYNC => |_, reader| Ok(Self::Sync { path: reader.string()? }),
            opcode::PING => |_, _| Ok(Self::Ping),
            opcode::MULTI => |_, reader| Ok(Self::Multi(read_operations(reader, Operation::decode)?)),
            opcode::MULTI_READ => |_, reader| Ok(Self::MultiRead(read_operations(reader, ReadOperation::decode)?)),
            opcode::RECONFIG => |_, reader| reader.take(reader.remaining()).map(|_| Self::Reconfig),
            opcode::CHECK_WATCHES => |_, reader| Ok(Self::CheckWatches { path: reader.string()?, kind: read_kind(reader)? }),
            opcode::REMOVE_WATCHES => |_, reader| Ok(Self::RemoveWatches { path: reader.string()?, kind: read_kind(reader)? }),
            opcode::AUTH => |_, reader| {
                reader.int()?;
                Ok(Self::Auth { scheme: reader.string()?, credentials: reader.buffer()?.unwrap_or_default() })
            },
            opcode::SASL => |_, reader| reader.take(reader.remaining()).map(|_| Self::Sasl),
            opcode::SET_WATCHES | opcode::SET_WATCHES2 => |opcode, reader| Ok(Self::SetWatches(SetWatches::decode(opcode, reader)?)),
            opcode::GET_EPHEMERALS => |_, reader| Ok(Self::GetEphemerals { prefix: reader.optional_string()?.unwrap_or_default() }),
            opcode::GET_ALL_CHILDREN_NUMBER => |_, reader| Ok(Self::GetAllChildrenNumber { path: reader.string()? }),
            opcode::ADD_WATCH => |_, reader| {
                let path = reader.string()?;
                let mode = match reader.int()? {
                    0 => WatchMode::Persistent,
                    1 => WatchMode::PersistentRecursive,
                    _ => return Err(Malformed::Unknown("the mode of a watch")),
                };
                Ok(Self::AddWatch { path, mode })
            },
            opcode::WHO_AM_I => |_, _| Ok(Self::WhoAmI),
            opcode::CLOSE_SESSION => |_, _| Ok(Self::CloseSession),
            _ => return None,
        };
        Some(decode(opcode, reader))
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create(create) => create.encode(writer),
            Self::Delete { path, version } | Self::Check { path, version } => write_versioned(writer, path, *version),
            Self::SetData { path, data, version } => write_data(writer, path, data.as_deref(), *version),
            Self::Exists { path, watch }
            | Self::GetData { path, watch }
            | Self::GetChildren { path, watch }
            | Self::GetChildren2 { path, watch } => {
                writer.string(path);
                writer.boolean(*watch);
            }
            Self::GetAcl { path } | Self::Sync { path } | Self::GetAllChildrenNumber { path } => writer.string(path),
            Self::SetAcl { path, acl, version } => {
                writer.string(path);
                write_acls(writer, acl);
                writer.int(*version);
            }
            Self::Multi(operations) => {
                for operation in operations {
                    write_head(writer, operation.opcode(), -1);
                    operation.encode(writer);
                }
                write_end(writer);
            }
            Self::MultiRead(operations) => {
                for operation in operations {
                    let (opcode, path) = match operation {
                        ReadOperation::GetData { path } => (opcode::GET_DATA, path),
                        ReadOperation::GetChildren { path } => (opcode::GET_CHILDREN, path),
                    };
                    write_head(writer, opcode, -1);
                    writer.string(path);
                    writer.boolean(false);
                }
                write_end(writer);
            }
            Self::CheckWatches { path, kind } | Self::RemoveWatches { path, kind } => write_versioned(writer, path, *kind as i32),
            Self::Auth { scheme, credentials } => {
                writer.int(0);
                writer.string(scheme);
                writer.buffer(Some(credentials));
            }
            Self::SetWatches(watches) => watches.encode(writer),
            Self::GetEphemerals { prefix } => writer.string(prefix),
            Self::AddWatch { path, mode } => write_versioned(writer, path, *mode as i32),
            Self::Ping | Self::Reconfig | Self::Sasl | Self::WhoAmI | Self::CloseSession => {}
        }
    }
}

impl From<Operation> for Request {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Create(create) => Self::Create(create),
            Operation::Delete { path, version } => Self::Delete { path, version },
            Operation::SetData { path, data, version } => Self::SetData { path, data, version },
            Operation::Check { path, version } => Self::Check { path, version },
        }
    }
}

fn read_kind(reader: &mut Reader<'_>) -> Result<WatchKind, Malformed> {
    Ok(match reader.int()? {
        1 => WatchKind::Children,
        2 => WatchKind::Data,
        3 => WatchKind::Any,
        4 => WatchKind::Persistent,
        5 => WatchKind::PersistentRecursive,
        _ => return Err(Malformed::Unknown("the kind of a watch")),
    })
}

impl SetWatches {
    fn is_one_shot(&self) -> bool {
        self.persistent.is_empty() && self.persistent_recursive.is_empty()
    }

    fn lists(&self) -> [&Vec<String>; 5] {
        [&self.data, &self.exist, &self.child, &self.persistent, &self.persistent_recursive]
    }

    fn decode(opcode: i32, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut watches = Self { relative_zxid: reader.long()?, ..Self::default() };
        watches.data = reader.list(Reader::string)?;
        watches.exist = reader.list(Reader::string)?;
        watches.child = reader.list(Reader::string)?;
        if opcode == opcode::SET_WATCHES2 {
            watches.persistent = reader.list(Reader::string)?;
            watches.persistent_recursive = reader.list(Reader::string)?;
        }
        Ok(watches)
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.long(self.relative_zxid);
        let count = if self.is_one_shot() { 3 } else { 5 };
        for list in &self.lists()[..count] {
            writer.list(list.iter(), |writer, path| writer.string(path));
        }
    }
}
