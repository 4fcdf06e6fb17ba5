//! What requests and replies are made of.

use crate::{Malformed, Reader, Writer};

/// What a node's ACL can allow, as bits.
pub mod permissions {
    /// Read the data, and list the children.
    pub const READ: i32 = 1;
    /// Write the data.
    pub const WRITE: i32 = 2;
    /// Create children.
    pub const CREATE: i32 = 4;
    /// Delete children.
    pub const DELETE: i32 = 8;
    /// Change the ACL.
    pub const ADMIN: i32 = 16;
    /// Everything.
    pub const ALL: i32 = 31;
}

/// Someone, as an authentication scheme knows them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// `world`, `auth`, `digest`, `ip` or `x509`.
    pub scheme: String,
    /// Who, in the scheme's words.
    pub id: String,
}

impl Id {
    /// `id`, as `scheme` knows them.
    #[must_use]
    pub fn new(scheme: &str, id: &str) -> Self {
        Self { scheme: scheme.to_owned(), id: id.to_owned() }
    }
}

/// One line of a node's ACL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// What is allowed, of [`permissions`].
    pub permissions: i32,
    /// To whom.
    pub id: Id,
}

impl Acl {
    /// Everything, for everybody.
    #[must_use]
    pub fn open() -> Self {
        Self { permissions: permissions::ALL, id: Id::new("world", "anyone") }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let permissions = reader.int()?;
        Ok(Self { permissions, id: Id { scheme: reader.string()?, id: reader.string()? } })
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.permissions);
        writer.string(&self.id.scheme);
        writer.string(&self.id.id);
    }
}

/// Writes an ACL.
pub fn write_acls(writer: &mut Writer<'_>, acls: &[Acl]) {
    writer.list(acls.iter(), |writer, acl| acl.encode(writer));
}

/// Reads an ACL.
///
/// # Errors
/// When it is none.
pub fn read_acls(reader: &mut Reader<'_>) -> Result<Vec<Acl>, Malformed> {
    reader.list(Acl::decode)
}

/// What a client is told of a node beside its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created it.
    pub czxid: i64,
    /// The transaction that wrote its data last.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data were written last.
    pub mtime: i64,
    /// How often its data were written.
    pub version: i32,
    /// How often its set of children has changed.
    pub cversion: i32,
    /// How often its ACL was changed.
    pub aversion: i32,
    /// The session that it lives as long as; 0 for all others.
    pub ephemeral_owner: i64,
    /// How many bytes of data it has.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The transaction that changed its set of children last.
    pub pzxid: i64,
}

impl Stat {
    /// Writes it.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        for long in [self.czxid, self.mzxid, self.ctime, self.mtime] {
            writer.long(long);
        }
        for int in [self.version, self.cversion, self.aversion] {
            writer.int(int);
        }
        writer.long(self.ephemeral_owner);
        writer.int(self.data_length);
        writer.int(self.num_children);
        writer.long(self.pzxid);
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the input is too short.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            czxid: reader.long()?,
            mzxid: reader.long()?,
            ctime: reader.long()?,
            mtime: reader.long()?,
            version: reader.int()?,
            cversion: reader.int()?,
            aversion: reader.int()?,
            ephemeral_owner: reader.long()?,
            data_length: reader.int()?,
            num_children: reader.int()?,
            pzxid: reader.long()?,
        })
    }
}

/// What a client watched for and happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum EventKind {
    /// A node was created.
    Created = 1,
    /// A node was deleted.
    Deleted = 2,
    /// A node's data were written.
    DataChanged = 3,
    /// A node's set of children changed.
    ChildrenChanged = 4,
}

/// The only state of a connection that servers speak of: it is well.
const CONNECTED: i32 = 3;

/// An event, as a client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedEvent {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub path: String,
}

impl WatchedEvent {
    /// Writes it.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.int(self.kind as i32);
        writer.int(CONNECTED);
        writer.string(&self.path);
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = match reader.int()? {
            1 => EventKind::Created,
            2 => EventKind::Deleted,
            3 => EventKind::DataChanged,
            4 => EventKind::ChildrenChanged,
            _ => return Err(Malformed::Unknown("an event")),
        };
        if reader.int()? != CONNECTED {
            return Err(Malformed::Unknown("a connection's state"));
        }
        Ok(Self { kind, path: reader.string()? })
    }
}
