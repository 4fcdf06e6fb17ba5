//! Resolution of orphans ([`crate::orphan_resolution`]): what a replica says of a key below its watermark.

use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Timestamp, Value};

/// The newest version of a key below a replica's watermark.
#[derive(Clone, Debug, PartialEq)]
pub struct OldVersion {
    /// Which; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value, `Some(None)` when the key is deleted: shown where it is not older than the transaction, to replicas of the same shard,
    /// as far as one answer holds.
    pub value: Option<Option<Value>>,
}

/// A committed version of some key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyVersion {
    /// Which; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value; `None` when the key is deleted or was never written.
    pub value: Option<Value>,
}

impl Encode for OldVersion {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
    }
}

impl Decode for OldVersion {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)? })
    }
}

impl Encode for KeyVersion {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
    }
}

impl Decode for KeyVersion {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)? })
    }
}
