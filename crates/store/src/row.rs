//! A version, and its bytes in the base table.

use types::codec::Encode as _;
use types::limits::VALUE_BYTES_MAX;
use types::{ClientId, Key, Timestamp, Value};

use crate::StoreError;

/// What a transaction wrote to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The transaction's place in the serial order.
    pub timestamp: Timestamp,
    /// What the key holds from then on; nothing when the transaction deleted it.
    pub value: Option<Value>,
}

/// The same in the store's memory, where its value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRef<'a> {
    /// As in [`Version`].
    pub timestamp: Timestamp,
    /// As in [`Version`].
    pub value: Option<&'a [u8]>,
}

impl Version {
    /// The same where it stands.
    #[must_use]
    pub fn as_ref(&self) -> VersionRef<'_> {
        VersionRef { timestamp: self.timestamp, value: self.value.as_ref().map(Value::as_bytes) }
    }
}

impl VersionRef<'_> {
    /// A copy.
    #[must_use]
    pub fn to_version(self) -> Version {
        let value = self.value.map(|value| Value::copied(value).expect("it was a value before it came here"));
        Version { timestamp: self.timestamp, value }
    }
}

/// The format of a row; its first byte.
const ROW_FORMAT: u8 = 1;
/// Format, timestamp, and whether there is a value.
const HEAD_BYTES: usize = 18;
/// The value's length, before it.
const LENGTH_BYTES: usize = 4;

/// Appends a version as a row of the base table. A deletion is a row too, so that a late, older write stays older.
///
/// # Panics
/// When the value is longer than a value may be.
pub(crate) fn encode(version: VersionRef<'_>, out: &mut Vec<u8>) {
    ROW_FORMAT.encode(out);
    version.timestamp.encode(out);
    version.value.is_some().encode(out);
    if let Some(value) = version.value {
        u32::try_from(value.len()).expect("VALUE_BYTES_MAX fits in u32").encode(out);
        out.extend_from_slice(value);
    }
}

/// How many bytes [`encode`] writes.
pub(crate) fn encoded_bytes(version: VersionRef<'_>) -> usize {
    let value = version.value.map_or(0, |value| LENGTH_BYTES + value.len());
    HEAD_BYTES + value
}

/// The timestamp of a row that [`encode`] has written.
pub(crate) fn timestamp(row: &[u8]) -> Timestamp {
    let number = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes are eight bytes"));
    Timestamp::new(number(1), ClientId(number(9)))
}

/// When a row of the base table was written. One that cannot be read is damage.
pub(crate) fn written_at(key: &[u8], row: &[u8]) -> Result<Timestamp, StoreError> {
    decode(&key_of(key)?, row).map(|version| version.timestamp)
}

/// The key of a row of the base table. One that is longer than any that was taken in is damage.
pub(crate) fn key_of(key: &[u8]) -> Result<Key, StoreError> {
    Key::copied(key).ok_or_else(|| {
        let reason = format!("it has {} bytes", key.len());
        StoreError::Corrupt { location: "a key of the base table".to_owned(), offset: 0, reason }
    })
}

/// Reads a row of the base table back. The base table has checksums of its own, so a row that cannot be read is damage.
pub(crate) fn decode<'a>(key: &Key, row: &'a [u8]) -> Result<VersionRef<'a>, StoreError> {
    let corrupt = |reason: String| StoreError::Corrupt { location: format!("the base table's row of {key}"), offset: 0, reason };
    let short = || corrupt("it is shorter than a row".to_owned());
    let (head, value) = row.split_at_checked(HEAD_BYTES).ok_or_else(short)?;
    if head[0] != ROW_FORMAT {
        return Err(corrupt(format!("it has format {}", head[0])));
    }
    let value = match (head[HEAD_BYTES - 1], value.split_first_chunk::<LENGTH_BYTES>()) {
        (0, None) if value.is_empty() => None,
        (1, Some((length, value))) if u32::from_le_bytes(*length) as usize == value.len() && value.len() <= VALUE_BYTES_MAX => Some(value),
        (0 | 1, _) => return Err(corrupt("its value has another length than it says".to_owned())),
        (flag, _) => return Err(corrupt(format!("it has neither a value nor none: {flag}"))),
    };
    Ok(VersionRef { timestamp: timestamp(row), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_as_written_and_refuse_anything_else() {
        let key = Key::from("k");
        for value in [None, Some(Value::from("")), Some(Value::from("seven"))] {
            let version = Version { timestamp: Timestamp::new(7, ClientId(9)), value };
            let mut row = Vec::new();
            encode(version.as_ref(), &mut row);
            assert_eq!((timestamp(&row), row.len()), (version.timestamp, encoded_bytes(version.as_ref())));
            assert_eq!(decode(&key, &row).expect("a row just written"), version.as_ref());
            for length in 0..row.len() {
                assert!(decode(&key, &row[..length]).is_err());
            }
            for (at, byte) in [(0, 2), (17, 2), (17, 1 - row[17])] {
                let mut other = row.clone();
                other[at] = byte;
                assert!(decode(&key, &other).is_err());
            }
            row.push(0);
            assert!(decode(&key, &row).is_err());
        }
    }
}
