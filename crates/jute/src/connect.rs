//! How a connection begins.

use crate::{Malformed, Reader, Writer};

/// How many bytes a session's password has.
pub const PASSWORD_BYTES: usize = 16;
/// The longest password that is read at all.
const PASSWORD_BYTES_MAX: usize = 64;

/// The client begins, or resumes, a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Zero.
    pub protocol_version: i32,
    /// The newest state that the client has seen: a server that is behind it must refuse.
    pub last_zxid_seen: i64,
    /// For how long the client wants to be unheard of before its session ends.
    pub timeout_ms: i32,
    /// The session to resume; zero for a new one.
    pub session: i64,
    /// That session's password.
    pub password: Vec<u8>,
    /// Whether the client can do with a server that only reads. Clients before 3.4 do not say.
    pub read_only: Option<bool>,
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// For how long the client may be unheard of; zero when there is no such session any more.
    pub timeout_ms: i32,
    /// The session; zero when there is none.
    pub session: i64,
    /// Its password, with which it may be resumed.
    pub password: [u8; PASSWORD_BYTES],
    /// Whether the server only reads; said to those who know the field.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Writes a frame's body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.int(self.protocol_version);
        writer.long(self.last_zxid_seen);
        writer.int(self.timeout_ms);
        writer.long(self.session);
        writer.buffer(Some(&self.password));
        if let Some(flag) = self.read_only {
            writer.boolean(flag);
        }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let protocol_version = reader.int()?;
        let last_zxid_seen = reader.long()?;
        let timeout_ms = reader.int()?;
        let session = reader.long()?;
        let password = reader.buffer()?.unwrap_or_default();
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Malformed::Length("a password"));
        }
        let read_only = if reader.remaining() > 0 { Some(reader.boolean()?) } else { None };
        reader.finish()?;
        Ok(Self { protocol_version, last_zxid_seen, timeout_ms, session, password: password.to_vec(), read_only })
    }
}

impl ConnectResponse {
    /// What is said to whose session is no more.
    #[must_use]
    pub fn expired(read_only: Option<bool>) -> Self {
        Self { timeout_ms: 0, session: 0, password: [0; PASSWORD_BYTES], read_only }
    }

    /// Writes a frame's body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.int(0);
        writer.int(self.timeout_ms);
        writer.long(self.session);
        writer.buffer(Some(&self.password));
        if let Some(flag) = self.read_only {
            writer.boolean(flag);
        }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        reader.int()?;
        let timeout_ms = reader.int()?;
        let session = reader.long()?;
        let password = reader.buffer()?.unwrap_or_default();
        let password = password.as_ref().try_into().map_err(|_| Malformed::Length("a password"))?;
        let read_only = if reader.remaining() > 0 { Some(reader.boolean()?) } else { None };
        reader.finish()?;
        Ok(Self { timeout_ms, session, password, read_only })
    }
}
