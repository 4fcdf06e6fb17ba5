//! Versions as rows of the base table, end to end: what a checkpoint sorts and writes.

use crate::table::EntryId;
use crate::{Row, VersionRef, row};

/// Rows are allocated in chunks of so many bytes, or larger ones for larger rows.
const CHUNK_BYTES: usize = 64 << 10;
/// Two lengths, the number of an entry, and whether its key is new.
const HEADER_BYTES: usize = 11;

/// Rows, each with its key.
#[derive(Debug, Default)]
pub(crate) struct EncodedRows {
    /// For each row: the length of its key (two bytes), its own (four), the number of the key's entry (four), whether it is the first that came of a new key (one),
    /// the key, the row. None lies in two chunks.
    chunks: Vec<Vec<u8>>,
}

/// A row, and the entry that its key had.
#[derive(Clone, Copy)]
pub(crate) struct EncodedRow<'a> {
    pub row: Row<'a>,
    pub entry: EntryId,
    /// It is the first that came of a new key.
    pub is_first: bool,
}

impl EncodedRows {
    /// Appends a version of a key that has this entry. It may be the first that came of a new one.
    pub fn push(&mut self, EntryId(entry): EntryId, is_first: bool, key: &[u8], version: VersionRef<'_>) {
        let row_bytes = row::encoded_bytes(version);
        let chunk = self.room(HEADER_BYTES + key.len() + row_bytes);
        chunk.extend_from_slice(&u16::try_from(key.len()).expect("KEY_BYTES_MAX fits in u16").to_le_bytes());
        chunk.extend_from_slice(&u32::try_from(row_bytes).expect("VALUE_BYTES_MAX fits in u32").to_le_bytes());
        chunk.extend_from_slice(&entry.to_le_bytes());
        chunk.push(is_first.into());
        chunk.extend_from_slice(key);
        let row_at = chunk.len();
        row::encode(version, chunk);
        debug_assert_eq!(chunk.len() - row_at, row_bytes);
    }

    /// The last chunk, with room for so many bytes.
    fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < bytes) {
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES.max(bytes)));
        }
        self.chunks.last_mut().expect("there is one now")
    }

    pub fn iter(&self) -> impl Iterator<Item = EncodedRow<'_>> {
        let mut place = RowPlace::default();
        std::iter::from_fn(move || place.next(self))
    }
}

/// How far one has come who goes through rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowPlace {
    chunk: usize,
    /// How far in the chunk.
    at: usize,
}

impl RowPlace {
    /// The next one of `rows`, which are the same each time; nothing at the end.
    pub fn next<'a>(&mut self, rows: &'a EncodedRows) -> Option<EncodedRow<'a>> {
        while let Some(chunk) = rows.chunks.get(self.chunk) {
            if let Some((row, rest)) = split(&chunk[self.at..]) {
                self.at = chunk.len() - rest.len();
                return Some(row);
            }
            *self = Self { chunk: self.chunk + 1, at: 0 };
        }
        None
    }
}

/// The first row in a part of a chunk, and what follows; nothing at the end.
fn split(chunk: &[u8]) -> Option<(EncodedRow<'_>, &[u8])> {
    let (key_bytes, after) = chunk.split_first_chunk::<2>()?;
    let (row_bytes, after) = after.split_first_chunk::<4>()?;
    let (entry, after) = after.split_first_chunk::<4>()?;
    let (is_first, after) = after.split_first()?;
    let (key, after) = after.split_at(u16::from_le_bytes(*key_bytes).into());
    let (row, after) = after.split_at(u32::from_le_bytes(*row_bytes) as usize);
    Some((EncodedRow { row: Row { key, row }, entry: EntryId(u32::from_le_bytes(*entry)), is_first: *is_first != 0 }, after))
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Timestamp};

    use super::*;

    #[test]
    fn rows_come_back_in_their_order_with_their_keys_and_entries() {
        let mut rows = EncodedRows::default();
        let value = |number: u32| {
            let bytes = if number == 700 { 3 * CHUNK_BYTES } else { number as usize * 97 % 9_000 };
            (!number.is_multiple_of(3)).then(|| vec![number as u8; bytes])
        };
        let at = |number: u32| Timestamp::new(number.into(), ClientId(7));
        let key = |number: u32| format!("{number}").repeat(number as usize % 4);
        for number in 0..1_000 {
            let value = value(number);
            let version = VersionRef { timestamp: at(number), value: value.as_deref() };
            rows.push(EntryId(number), number.is_multiple_of(5), key(number).as_bytes(), version);
        }
        assert_eq!(rows.iter().count(), 1_000);
        for (number, found) in (0..1_000).zip(rows.iter()) {
            let version = row::decode(&row::key_of(found.row.key).expect("it is a key"), found.row.row).expect("it was encoded here");
            assert_eq!((found.entry, found.is_first, found.row.key), (EntryId(number), number.is_multiple_of(5), key(number).as_bytes()));
            assert_eq!((version.timestamp, version.value), (at(number), value(number).as_deref()));
        }
    }
}
