//! A version, and its bytes in the base table.

use bytes::Bytes;
use types::codec::{Decode, Encode, Reader};
use types::{ClientId, ClusterId, Key, Timestamp, Value};

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

/// Appends a version as a row of the base table. A deletion is a row too, so that a late, older write stays older.
pub(crate) fn encode(version: &Version, out: &mut Vec<u8>) {
    ROW_FORMAT.encode(out);
    version.timestamp.encode(out);
    version.value.encode(out);
}

/// How many bytes [`encode`] writes.
pub(crate) fn encoded_bytes(version: &Version) -> usize {
    let value = version.value.as_ref().map_or(0, |value| 4 + value.as_bytes().len());
    18 + value
}

/// The timestamp of a row that [`encode`] has written.
pub(crate) fn timestamp(row: &[u8]) -> Timestamp {
    let number = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes are eight bytes"));
    Timestamp::new(number(1), ClientId(number(9)))
}

/// When a row of the base table was written. One that cannot be read is damage.
pub(crate) fn written_at(key: &[u8], row: Bytes) -> Result<Timestamp, StoreError> {
    decode(&key_of(key)?, row).map(|version| version.timestamp)
}

/// The key of a row of the base table. One that is longer than any that was taken in is damage.
pub(crate) fn key_of(key: &[u8]) -> Result<Key, StoreError> {
    Key::new(key.to_vec()).ok_or_else(|| {
        let reason = format!("it has {} bytes", key.len());
        StoreError::Corrupt { location: "a key of the base table".to_owned(), offset: 0, reason }
    })
}

/// How many bytes the value has of a row that [`encode`] has written.
pub(crate) fn value_bytes(row: &[u8]) -> usize {
    row.len().saturating_sub(22)
}

/// Reads a row of the base table back. The base table has checksums of its own, so a row that cannot be read is damage.
pub(crate) fn decode(key: &Key, row: Bytes) -> Result<Version, StoreError> {
    let corrupt = |reason: String| StoreError::Corrupt { location: format!("the base table's row of {key}"), offset: 0, reason };
    // Rows hold no identifiers, so no cluster is needed to read them.
    let mut reader = Reader::new(row, ClusterId::new([0; 16]));
    let mut read = || {
        let format = u8::decode(&mut reader)?;
        let version = Version { timestamp: Timestamp::decode(&mut reader)?, value: Option::<Value>::decode(&mut reader)? };
        reader.finish()?;
        Ok::<_, types::codec::DecodeError>((format, version))
    };
    match read() {
        Ok((ROW_FORMAT, version)) => Ok(version),
        Ok((format, _)) => Err(corrupt(format!("it has format {format}"))),
        Err(error) => Err(corrupt(error.to_string())),
    }
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
            encode(&version, &mut row);
            assert_eq!((timestamp(&row), row.len()), (version.timestamp, encoded_bytes(&version)));
            assert_eq!(value_bytes(&row), version.value.as_ref().map_or(0, |value| value.as_bytes().len()));
            let row = Bytes::from(row);
            assert_eq!(decode(&key, row.clone()).expect("a row just written"), version);
            for length in 0..row.len() {
                assert!(decode(&key, row.slice(..length)).is_err());
            }
            let mut other = row.to_vec();
            other[0] = 2;
            assert!(decode(&key, other.into()).is_err());
        }
    }
}
