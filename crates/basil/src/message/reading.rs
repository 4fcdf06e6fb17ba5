//! Reading (Basil §4.1): what a replica says of a key.

use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Key, Timestamp, Value};

use crate::transaction::Transaction;

/// What a replica has of one key, below the reader's timestamp.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadResult {
    /// The newest committed version; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value; `None` when the key is deleted or was never written.
    pub value: Option<Value>,
    /// Whether a newer version, still below the reader's timestamp, is prepared.
    pub pending: PendingWrite,
}

/// Whether a prepared, undecided transaction writes a version of a key between the newest committed one and the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingWrite {
    /// None does: the committed version is validated, as far as this replica is concerned. Having raised the key's read
    /// timestamp it votes for none that would come between from now on.
    None,
    /// One does, by its place in [`Message::ReadReply`](crate::Message::ReadReply)'s list.
    Prepared(u16),
    /// One does, and touches keys that the reader may not read, so it is not shown.
    Hidden,
}

impl PendingWrite {
    /// Whose version it is, of the transactions that came with it.
    pub(crate) fn writer(self, prepared: &[Transaction]) -> Option<&Transaction> {
        match self {
            Self::Prepared(place) => prepared.get(usize::from(place)),
            Self::None | Self::Hidden => None,
        }
    }
}

/// What a replica has of one key of a range.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRow {
    /// The key.
    pub key: Key,
    /// As in the answer to a read of it.
    pub result: ReadResult,
}

/// What a result takes on the wire beside its value, generously.
const RESULT_BYTES: usize = 64;

impl ScanRow {
    /// How many bytes it takes on the wire: hardly ever more than this.
    pub(super) fn bytes_about(&self) -> usize {
        self.key.as_bytes().len() + self.result.bytes_about()
    }
}

impl ReadResult {
    /// Whether the key has a value, or may get one or lose it by what is prepared.
    pub(crate) fn has_value_perhaps(&self) -> bool {
        self.value.is_some() || self.pending != PendingWrite::None
    }

    /// How many bytes it takes on the wire: hardly ever more than this.
    pub(super) fn bytes_about(&self) -> usize {
        RESULT_BYTES + self.value.as_ref().map_or(0, |value| value.as_bytes().len())
    }
}

impl Encode for ReadResult {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
        self.pending.encode(out);
    }
}

impl Decode for ReadResult {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)?, pending: PendingWrite::decode(reader)? })
    }
}

impl Encode for ScanRow {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.result.encode(out);
    }
}

impl Decode for ScanRow {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, result: ReadResult::decode(reader)? })
    }
}

impl Encode for PendingWrite {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(0),
            Self::Prepared(place) => {
                out.push(1);
                place.encode(out);
            }
            Self::Hidden => out.push(2),
        }
    }
}

impl Decode for PendingWrite {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Prepared(u16::decode(reader)?)),
            2 => Ok(Self::Hidden),
            _ => Err(DecodeError::UnknownTag("whether a newer version is prepared")),
        }
    }
}
