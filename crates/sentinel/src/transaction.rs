//! What is ordered: changes with everything fixed that could differ between replicas.
//!
//! Whoever leads makes a transaction of a request ([`crate::Preparer`]): the time, the number in a sequential node's path, the
//! versions after it, or that the request fails. So all that apply it come to the same state, or notice that they do not.

use std::sync::Arc;

use bytes::Bytes;
use jute::{Acl, ErrorCode, Malformed, PASSWORD_BYTES, Reader, Writer, read_acls, write_acls};

use crate::digest::Checksum;

/// A change of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node is created.
    Create {
        /// Where.
        path: String,
        /// With which data.
        data: Option<Bytes>,
        /// With which ACL.
        acl: Arc<Vec<Acl>>,
        /// The `ephemeral_owner` of its stat.
        owner: i64,
        /// How many children its parent has then ever had.
        parent_cversion: i32,
    },
    /// A node is deleted.
    Delete {
        /// Which.
        path: String,
    },
    /// A node's data are written.
    SetData {
        /// Whose.
        path: String,
        /// What.
        data: Option<Bytes>,
        /// Its version then.
        version: i32,
    },
    /// A node gets another ACL.
    SetAcl {
        /// Which node.
        path: String,
        /// Which ACL.
        acl: Arc<Vec<Acl>>,
        /// Its ACL's version then.
        version: i32,
    },
    /// A node had the version asked for. Nothing changes.
    Check {
        /// Which.
        path: String,
    },
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// All of these, in this order.
    Changes(Vec<Change>),
    /// Nothing: the request failed, or the change of a multi at this place.
    Failed {
        /// Why.
        code: ErrorCode,
        /// At which change.
        at: u32,
    },
    /// A session begins.
    CreateSession {
        /// For how long it may be unheard of.
        timeout_ms: i32,
        /// What is needed to resume it.
        password: [u8; PASSWORD_BYTES],
    },
    /// A session ends, and its ephemeral nodes with it.
    CloseSession {
        /// These nodes.
        paths: Vec<String>,
    },
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its place in the order.
    pub zxid: i64,
    /// When it was prepared, in milliseconds since 1970.
    pub time_ms: i64,
    /// The session that asked for it; 0 for the service itself.
    pub session: i64,
    /// The number of the client's request.
    pub xid: i32,
    /// What it does.
    pub body: Body,
    /// The digest of the state after it, as whoever prepared it foresees; zeros where it was not foreseen.
    pub foreseen: Checksum,
}

/// The format of the encoding, its first byte.
const FORMAT: u8 = 1;

impl Body {
    /// About how many bytes it takes in a record: not less, and little more.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.iter().map(Change::bytes).sum(),
            Self::CloseSession { paths } => paths.iter().map(|path| 4 + path.len()).sum(),
            Self::Failed { .. } | Self::CreateSession { .. } => 0,
        }
    }

    /// How many nodes it is about.
    pub(crate) fn nodes(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.len(),
            Self::CloseSession { paths } => paths.len(),
            Self::Failed { .. } | Self::CreateSession { .. } => 1,
        }
    }
}

impl Transaction {
    /// Whether a node gets data, and so a time.
    pub(crate) fn writes(&self) -> bool {
        let writes = |change: &Change| matches!(change, Change::Create { .. } | Change::SetData { .. });
        matches!(&self.body, Body::Changes(changes) if changes.iter().any(writes))
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.byte(FORMAT);
        writer.long(self.zxid);
        writer.long(self.time_ms);
        writer.long(self.session);
        writer.int(self.xid);
        writer.raw(&self.foreseen.0);
        match &self.body {
            Body::Changes(changes) => {
                writer.byte(1);
                writer.list(changes.iter(), |writer, change| change.encode(writer));
            }
            Body::Failed { code, at } => {
                writer.byte(2);
                writer.int(code.number());
                writer.raw(&at.to_be_bytes());
            }
            Body::CreateSession { timeout_ms, password } => {
                writer.byte(3);
                writer.int(*timeout_ms);
                writer.raw(password);
            }
            Body::CloseSession { paths } => {
                writer.byte(4);
                writer.list(paths.iter(), |writer, path| writer.string(path));
            }
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.byte()? != FORMAT {
            return Err(Malformed::Unknown("the format of a transaction"));
        }
        let (zxid, time_ms, session, xid) = (reader.long()?, reader.long()?, reader.long()?, reader.int()?);
        let foreseen = Checksum(reader.array()?);
        let body = match reader.byte()? {
            1 => Body::Changes(reader.list(Change::decode)?),
            2 => Body::Failed {
                code: ErrorCode::from_number(reader.int()?).ok_or(Malformed::Unknown("an error code"))?,
                at: u32::from_be_bytes(reader.array()?),
            },
            3 => Body::CreateSession { timeout_ms: reader.int()?, password: reader.array()? },
            4 => Body::CloseSession { paths: reader.list(Reader::string)? },
            _ => return Err(Malformed::Unknown("the kind of a transaction")),
        };
        reader.finish()?;
        Ok(Self { zxid, time_ms, session, xid, body, foreseen })
    }
}

impl Change {
    /// The node that it is about.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Create { path, .. }
            | Self::Delete { path }
            | Self::SetData { path, .. }
            | Self::SetAcl { path, .. }
            | Self::Check { path } => path,
        }
    }

    fn bytes(&self) -> usize {
        let (data, acl) = match self {
            Self::Create { data, acl, .. } => (data.as_ref(), &acl[..]),
            Self::SetData { data, .. } => (data.as_ref(), &[][..]),
            Self::SetAcl { acl, .. } => (None, &acl[..]),
            Self::Delete { .. } | Self::Check { .. } => (None, &[][..]),
        };
        let lines = acl.iter().map(|line| 12 + line.id.scheme.len() + line.id.id.len()).sum::<usize>();
        32 + self.path().len() + data.map_or(0, Bytes::len) + lines
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create { path, data, acl, owner, parent_cversion } => {
                writer.byte(1);
                writer.string(path);
                writer.buffer(data.as_deref());
                write_acls(writer, acl);
                writer.long(*owner);
                writer.int(*parent_cversion);
            }
            Self::Delete { path } => {
                writer.byte(2);
                writer.string(path);
            }
            Self::SetData { path, data, version } => {
                writer.byte(3);
                writer.string(path);
                writer.buffer(data.as_deref());
                writer.int(*version);
            }
            Self::SetAcl { path, acl, version } => {
                writer.byte(4);
                writer.string(path);
                write_acls(writer, acl);
                writer.int(*version);
            }
            Self::Check { path } => {
                writer.byte(5);
                writer.string(path);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match reader.byte()? {
            1 => Self::Create {
                path: reader.string()?,
                data: reader.buffer()?,
                acl: read_acls(reader)?.into(),
                owner: reader.long()?,
                parent_cversion: reader.int()?,
            },
            2 => Self::Delete { path: reader.string()? },
            3 => Self::SetData { path: reader.string()?, data: reader.buffer()?, version: reader.int()? },
            4 => Self::SetAcl { path: reader.string()?, acl: read_acls(reader)?.into(), version: reader.int()? },
            5 => Self::Check { path: reader.string()? },
            _ => return Err(Malformed::Unknown("a change")),
        })
    }
}
