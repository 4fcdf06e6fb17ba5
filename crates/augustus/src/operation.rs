//! What a transaction does: table 1 of the paper.

use types::codec::{Decode, DecodeError, Encode, Reader, encode_count, encode_sequence};
use types::limits::SHARDS_MAX;
use types::{Cluster, ClusterId, Digest, Direction, Key, KeyRange, Placement, ShardId, Value};

use crate::limits::{RANGE_ROWS_MAX, RESULT_BYTES_MAX, RESULT_OVERHEAD_BYTES};

/// One operation of a short transaction (table 1).
///
/// Comparisons see the state before the transaction. The others take place one after the other, so that a query sees what an
/// earlier update of the same transaction did. An update that finds its key otherwise than it must be aborts the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The transaction takes place only if the key has this value before it, or none.
    Compare(Key, Option<Value>),
    /// The transaction takes place only if these are the rows of a range before it.
    CompareRange(KeyRange, Vec<RowsSeen>),
    /// Gives the key's value.
    Read(Key),
    /// Gives the keys of a range that have values, from one of its ends, and at most so many.
    ReadRange(KeyRange, Direction, u32),
    /// Gives a key its first value. The key must have none.
    Insert(Key, Value),
    /// Gives a key another value. The key must have one.
    Write(Key, Value),
    /// Gives a key a value, whether it has one or not: not in the paper, whose clients would have to know.
    Put(Key, Value),
    /// Removes a key. One that is not there stays away.
    Delete(Key),
}

impl Operation {
    /// The key it is about; none where it is about a range.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Compare(key, _)
            | Self::Read(key)
            | Self::Insert(key, _)
            | Self::Write(key, _)
            | Self::Put(key, _)
            | Self::Delete(key) => Some(key),
            Self::ReadRange(..) | Self::CompareRange(..) => None,
        }
    }

    /// The range it is about; none where it is about a key.
    #[must_use]
    pub fn range(&self) -> Option<&KeyRange> {
        match self {
            Self::ReadRange(range, ..) | Self::CompareRange(range, _) => Some(range),
            _ => None,
        }
    }

    /// That these are all rows of a range, in their order.
    #[must_use]
    pub fn compare_rows(cluster: &Cluster, range: KeyRange, rows: &[(Key, Value)]) -> Self {
        let seen = shards_of_range(&range, cluster).into_iter().map(|shard| {
            let own = rows.iter().filter(|(key, _)| cluster.shard_of(key) == shard);
            RowsSeen::of(cluster.id(), own.map(|(key, value)| (key.as_bytes(), value.as_bytes())))
        });
        let seen = seen.collect();
        Self::CompareRange(range, seen)
    }

    /// Whether it changes anything.
    #[must_use]
    pub fn is_update(&self) -> bool {
        matches!(self, Self::Insert(..) | Self::Write(..) | Self::Put(..) | Self::Delete(_))
    }
}

/// What one shard holds of a range: as much as tells it from anything else that the shard could hold there. The rows themselves would be
/// as long as what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsSeen {
    /// How many rows. Whoever compares reads one more at most.
    pub count: u32,
    /// The hash of all of them.
    pub digest: Digest,
}

impl RowsSeen {
    pub(crate) fn of<'a>(cluster: ClusterId, rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let parts: Vec<&[u8]> = rows.flat_map(|(key, value)| [key, value]).collect();
        let count = u32::try_from(parts.len() / 2).unwrap_or(u32::MAX);
        Self { count, digest: crypto::digest("augustus/rows/1", cluster, &parts) }
    }
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The value of a key that was read.
    Value(Option<Value>),
    /// The rows of a range, in the direction in which it was read.
    Rows(Vec<(Key, Value)>),
}

impl Found {
    /// About how many bytes it takes in an answer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Value(value) => RESULT_OVERHEAD_BYTES + value.as_ref().map_or(0, |value| value.as_bytes().len()),
            Self::Rows(rows) => {
                RESULT_OVERHEAD_BYTES + rows.iter().map(|(key, value)| row_bytes(key.as_bytes(), value.as_bytes())).sum::<usize>()
            }
        }
    }
}

/// About how many bytes a row of a range takes in an answer.
pub(crate) fn row_bytes(key: &[u8], value: &[u8]) -> usize {
    RESULT_OVERHEAD_BYTES + key.len() + value.len()
}

impl Encode for Operation {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Compare(key, value) => (1u8, key, value.as_ref()).put(out),
            Self::Read(key) => (2u8, key, None).put(out),
            Self::ReadRange(range, direction, rows_max) => {
                // Journals and snapshots have the first from before ranges were read from their ends.
                out.push(if *direction == Direction::Ascending { 3 } else { 9 });
                range.encode(out);
                rows_max.encode(out);
            }
            Self::Insert(key, value) => (4u8, key, Some(value)).put(out),
            Self::Write(key, value) => (5u8, key, Some(value)).put(out),
            Self::Put(key, value) => (6u8, key, Some(value)).put(out),
            Self::Delete(key) => (7u8, key, None).put(out),
            Self::CompareRange(range, seen) => {
                out.push(8);
                range.encode(out);
                encode_sequence(seen, out);
            }
        }
    }
}

/// A tag, a key, and what follows them: of a comparison an optional value, of an update its value.
trait PutParts {
    fn put(self, out: &mut Vec<u8>);
}

impl PutParts for (u8, &Key, Option<&Value>) {
    fn put(self, out: &mut Vec<u8>) {
        let (tag, key, value) = self;
        out.push(tag);
        key.encode(out);
        if tag == 1 {
            value.is_some().encode(out);
        }
        if let Some(value) = value {
            value.encode(out);
        }
    }
}

impl Decode for Operation {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Compare(Key::decode(reader)?, Option::decode(reader)?)),
            2 => Ok(Self::Read(Key::decode(reader)?)),
            tag @ (3 | 9) => {
                let direction = if tag == 3 { Direction::Ascending } else { Direction::Descending };
                let (range, rows_max) = (KeyRange::decode(reader)?, u32::decode(reader)?);
                if rows_max as usize > RANGE_ROWS_MAX {
                    return Err(DecodeError::OverLimit("the rows of a range"));
                }
                Ok(Self::ReadRange(range, direction, rows_max))
            }
            4 => Ok(Self::Insert(Key::decode(reader)?, Value::decode(reader)?)),
            5 => Ok(Self::Write(Key::decode(reader)?, Value::decode(reader)?)),
            6 => Ok(Self::Put(Key::decode(reader)?, Value::decode(reader)?)),
            7 => Ok(Self::Delete(Key::decode(reader)?)),
            8 => Ok(Self::CompareRange(KeyRange::decode(reader)?, reader.sequence("the shards of a range", SHARDS_MAX)?)),
            _ => Err(DecodeError::UnknownTag("an operation")),
        }
    }
}

impl Encode for RowsSeen {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for RowsSeen {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (count, digest) = (u32::decode(reader)?, reader.array()?);
        if count as usize > RANGE_ROWS_MAX {
            return Err(DecodeError::OverLimit("the rows of a range"));
        }
        Ok(Self { count, digest })
    }
}

impl Encode for Found {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Value(value) => {
                out.push(1);
                value.encode(out);
            }
            Self::Rows(rows) => {
                out.push(2);
                encode_count(rows.len(), out);
                for (key, value) in rows {
                    key.encode(out);
                    value.encode(out);
                }
            }
        }
    }
}

impl Decode for Found {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Value(Option::decode(reader)?)),
            2 => {
                let count = reader.count("rows", RANGE_ROWS_MAX.min(RESULT_BYTES_MAX))?;
                reader.note_sequence::<(Key, Value)>(count);
                let rows = (0..count).map(|_| Ok((Key::decode(reader)?, Value::decode(reader)?)));
                Ok(Self::Rows(rows.collect::<Result<_, DecodeError>>()?))
            }
            _ => Err(DecodeError::UnknownTag("a result")),
        }
    }
}

impl Found {
    /// The same in buffers of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        match self {
            Self::Value(value) => Self::Value(value.as_ref().map(Value::detached)),
            Self::Rows(rows) => Self::Rows(rows.iter().map(|(key, value)| (key.detached(), value.detached())).collect()),
        }
    }
}

/// The shards that may hold a part of a range, in order.
pub(crate) fn shards_of_range(range: &KeyRange, cluster: &Cluster) -> Vec<ShardId> {
    if *cluster.placement() == Placement::Hash {
        return cluster.shards().collect();
    }
    let (first, last) = (cluster.shard_of(range.low()), cluster.shard_of(range.high()));
    let mut shards: Vec<ShardId> = (first.0..last.0).map(ShardId).collect();
    // The end of a range is not in it, and may be where the last shard begins.
    shards.extend(cluster.part_of(last, range).map(|_| last));
    shards
}
