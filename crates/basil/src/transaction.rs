//! A transaction, as it is prepared, named, voted on and stored (Basil §4.1, §4.2).

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_RANGES_MAX, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, ClusterId, Key, KeyRange, ShardId, Timestamp, TransactionId, Value};

/// The most keys deleted within the last second that the ranges of one transaction may hold on one shard.
pub const RANGE_DELETED_MAX: usize = 4_096;
/// Format version of a transaction's encoding, its first byte.
const FORMAT: u8 = 1;
/// The same of one that has read ranges; what has read none is never written so.
const FORMAT_WITH_RANGES: u8 = 2;
/// What a replica keeps of each transaction besides its bytes: its state, its name, and its places in two tables. What is noted at the keys that it has read
/// stays there for longer.
const KEPT_BYTES: usize = 370;
/// Bytes of a transaction that are cheaper to copy than to share.
const COPIED_BYTES_MAX: usize = 2_048;
/// What a transaction's hash begins with, so that it is the hash of nothing else.
const DOMAIN: &[u8] = b"bezant/transaction/1";

/// One read: which version of a key the transaction saw.
///
/// The paper keeps dependencies in a set of their own, `(version, transaction)`. Here each stands with the read
/// that caused it, which says the same, cannot name a version nobody read, and tells which shard must judge it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The key read.
    pub key: Key,
    /// The version seen: its writer's timestamp, or [`Timestamp::ZERO`] where there was nothing.
    pub version: Timestamp,
    /// The writer, when the version was only prepared: this transaction cannot commit unless that one does.
    pub dependency: Option<TransactionId>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key written.
    pub key: Key,
    /// Its new value; `None` deletes it.
    pub value: Option<Value>,
}

/// Why no transaction can be made of these parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// More reads than [`TRANSACTION_READS_MAX`].
    #[error("a transaction may read at most {TRANSACTION_READS_MAX} keys; split it")]
    TooManyReads,
    /// More writes than [`TRANSACTION_WRITES_MAX`].
    #[error("a transaction may write at most {TRANSACTION_WRITES_MAX} keys; split it")]
    TooManyWrites,
    /// Encoded, it is longer than [`TRANSACTION_BYTES_MAX`].
    #[error("a transaction may be at most {TRANSACTION_BYTES_MAX} bytes long; split it")]
    TooLong,
    /// More ranges than [`TRANSACTION_RANGES_MAX`].
    #[error("a transaction may read at most {TRANSACTION_RANGES_MAX} ranges; split it")]
    TooManyRanges,
    /// Its ranges hold more keys that were deleted just now than [`RANGE_DELETED_MAX`].
    #[error("the ranges of a transaction may hold at most {RANGE_DELETED_MAX} keys that were deleted within the last second; split it")]
    TooManyDeleted,
    /// What it read of single keys and of ranges does not belong together. It has met another transaction, and may be begun again.
    #[error("what the transaction read is of more than one state of the database; begin it again")]
    Contradicted,
    /// A key is read twice, or written twice.
    #[error("a transaction reads or writes a key twice")]
    DuplicateKey,
}

/// An immutable transaction with its name. Cloning shares it.
#[derive(Clone)]
pub struct Transaction(Arc<Content>);

struct Content {
    id: TransactionId,
    timestamp: Timestamp,
    /// Once its values were let go, the same transaction with deletions in their place.
    encoded: Bytes,
    is_whole: bool,
    /// What it holds. It can be read from its bytes again, and is, when it is asked for.
    parts: OnceLock<Box<Parts>>,
    sizes: Sizes,
}

/// What the bytes of a transaction hold.
pub(crate) struct Parts {
    pub reads: Vec<Read>,
    pub ranges: Vec<KeyRange>,
    pub writes: Vec<Write>,
}

/// How much a transaction holds.
#[derive(Clone, Copy)]
struct Sizes {
    keys: u32,
    value_bytes: u32,
}

impl Parts {
    /// Every key; one both read and written comes twice.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.reads.iter().map(|read| &read.key).chain(self.writes.iter().map(|write| &write.key))
    }

    /// Whether `key` is written.
    pub fn writes_key(&self, key: &Key) -> bool {
        self.writes.binary_search_by(|write| write.key.cmp(key)).is_ok()
    }

    /// Whether `shard` may hold keys of a range.
    fn scans(&self, cluster: &Cluster, shard: ShardId) -> bool {
        self.ranges.iter().any(|range| cluster.part_of(shard, range).is_some())
    }

    /// Makes all keys and values, which are parts of `whole`, parts of a copy of it: long ones share it, and so it keeps a count of who does.
    fn turn_to_copy(&mut self, whole: &Bytes, copy: &Bytes) {
        self.reads.iter_mut().for_each(|read| read.key = read.key.in_copy(whole, copy));
        self.ranges.iter_mut().for_each(|range| *range = range.detached());
        for write in &mut self.writes {
            write.key = write.key.in_copy(whole, copy);
            write.value = write.value.as_ref().map(|value| value.in_copy(whole, copy));
        }
    }

    fn sizes(&self) -> Sizes {
        // Limits keep both far below.
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let values = self.writes.iter().filter_map(|write| write.value.as_ref()).map(|value| value.as_bytes().len());
        Sizes { keys: number(self.reads.len() + self.ranges.len() + self.writes.len()), value_bytes: number(values.sum()) }
    }
}

impl Transaction {
    /// Makes a transaction of `cluster`; reads and writes are put in key order.
    ///
    /// # Errors
    /// [`TransactionError`] when it is over a limit, or names a key twice in one set.
    pub fn new(cluster: ClusterId, timestamp: Timestamp, reads: Vec<Read>, writes: Vec<Write>) -> Result<Self, TransactionError> {
        Self::with_ranges(cluster, timestamp, reads, Vec::new(), writes)
    }

    /// The same of one that has also read `ranges`: in these, no key has a value but those that it reads. They are put in order, and
    /// joined where they overlap or touch.
    ///
    /// # Errors
    /// As [`Transaction::new`].
    pub fn with_ranges(
        cluster: ClusterId,
        timestamp: Timestamp,
        mut reads: Vec<Read>,
        ranges: Vec<KeyRange>,
        mut writes: Vec<Write>,
    ) -> Result<Self, TransactionError> {
        let ranges = KeyRange::union(ranges);
        if ranges.len() > TRANSACTION_RANGES_MAX {
            return Err(TransactionError::TooManyRanges);
        }
        if reads.len() > TRANSACTION_READS_MAX {
            return Err(TransactionError::TooManyReads);
        }
        if writes.len() > TRANSACTION_WRITES_MAX {
            return Err(TransactionError::TooManyWrites);
        }
        reads.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        writes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        if !is_strictly_sorted(reads.iter().map(|read| &read.key)) || !is_strictly_sorted(writes.iter().map(|write| &write.key)) {
            return Err(TransactionError::DuplicateKey);
        }
        let mut encoded = Vec::with_capacity(256);
        encode(timestamp, &reads, &writes, &ranges, &mut encoded);
        if encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(TransactionError::TooLong);
        }
        let id = id_of(cluster, &encoded);
        Ok(Self::of(id, timestamp, encoded.into(), Parts { reads, ranges, writes }))
    }

    fn of(id: TransactionId, timestamp: Timestamp, encoded: Bytes, parts: Parts) -> Self {
        let sizes = parts.sizes();
        Self(Arc::new(Content { id, timestamp, encoded, is_whole: true, parts: OnceLock::from(Box::new(parts)), sizes }))
    }

    /// What it holds.
    fn parts(&self) -> &Parts {
        self.0.parts.get_or_init(|| Box::new(self.parsed()))
    }

    fn parsed(&self) -> Parts {
        // Bytes that a peer sent become a transaction only if `parse` has taken them, so it takes them again. The id is known, so the cluster does
        // not matter here.
        let mut reader = Reader::new(self.readable(), ClusterId::new([0; 16]));
        parse(&mut reader).expect("these bytes were made or parsed here before").1
    }

    /// Its bytes, to be read. Sharing them would take memory for a count of who shares them, which stays for as long as they do; a copy of few is
    /// gone with what was read from it.
    fn readable(&self) -> Bytes {
        let encoded = &self.0.encoded;
        if encoded.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(encoded) } else { encoded.clone() }
    }

    /// Looks at what it holds, without keeping that where only its bytes are kept ([`Transaction::pack`]).
    pub(crate) fn examine<T>(&self, look: impl FnOnce(&Parts) -> T) -> T {
        match self.0.parts.get() {
            Some(parts) => look(parts),
            None => look(&self.parsed()),
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.0.id
    }

    /// Its place in the serial order, and the version of everything it writes.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.0.timestamp
    }

    /// What it read, in strict key order.
    #[must_use]
    pub fn reads(&self) -> &[Read] {
        &self.parts().reads
    }

    /// The ranges that it read, in order and apart: in these, no key has a value but those among its reads.
    #[must_use]
    pub fn ranges(&self) -> &[KeyRange] {
        &self.parts().ranges
    }

    /// Whether `key` lies in a range that it read, and is not among its reads: it found no value there.
    #[must_use]
    pub fn found_absent(&self, key: &Key) -> bool {
        let ranges = self.ranges();
        let before = ranges.partition_point(|range| range.low() <= key);
        before.checked_sub(1).is_some_and(|at| ranges[at].contains(key)) && self.read_of(key).is_none()
    }

    /// What it writes, in strict key order.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.parts().writes
    }

    /// The read of `key`, if it read it.
    #[must_use]
    pub fn read_of(&self, key: &Key) -> Option<&Read> {
        let reads = self.reads();
        reads.binary_search_by(|read| read.key.cmp(key)).ok().map(|at| &reads[at])
    }

    /// The write of `key`, if it writes it.
    #[must_use]
    pub fn write_of(&self, key: &Key) -> Option<&Write> {
        let writes = self.writes();
        writes.binary_search_by(|write| write.key.cmp(key)).ok().map(|at| &writes[at])
    }

    /// Every key it touches; one both read and written comes twice.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.parts().keys()
    }

    /// The shards that it touches, in order, each once.
    ///
    /// They follow from the keys and are never claimed, so no client can leave one out (§4.2 (1)).
    #[must_use]
    pub fn participants(&self, cluster: &Cluster) -> Vec<ShardId> {
        if let Some(only) = cluster.only_shard() {
            return vec![only]; // What it holds need not be read for that.
        }
        self.examine(|parts| {
            let mut shards = cluster.shards_of(parts.keys());
            if !parts.ranges.is_empty() {
                shards = cluster.shards().filter(|shard| shards.contains(shard) || parts.scans(cluster, *shard)).collect();
            }
            shards
        })
    }

    /// Whether `shard` is one of them.
    #[must_use]
    pub fn touches(&self, cluster: &Cluster, shard: ShardId) -> bool {
        self.examine(|parts| parts.keys().any(|key| cluster.shard_of(key) == shard) || parts.scans(cluster, shard))
    }

    /// The length of its encoding, in bytes; without its values once these were let go.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.0.encoded.len()
    }

    /// The same transaction in memory of its own, so that keeping it does not keep a whole received frame.
    #[must_use]
    pub fn detached(&self) -> Self {
        if !self.is_whole() {
            return self.clone(); // It has memory of its own.
        }
        Self(Arc::new(self.0.packed(Bytes::copy_from_slice(&self.0.encoded), true)))
    }
}

impl Content {
    /// The same with these bytes.
    fn packed(&self, encoded: Bytes, is_whole: bool) -> Self {
        Self { id: self.id, timestamp: self.timestamp, encoded, is_whole, parts: OnceLock::new(), sizes: self.sizes }
    }
}

impl Transaction {
    /// The same as [`Transaction::detached`]. Where nobody else has this one, what was read from its bytes need not be read again.
    pub(crate) fn into_detached(mut self) -> Self {
        let Some(content) = Arc::get_mut(&mut self.0).filter(|content| content.encoded.len() <= COPIED_BYTES_MAX) else {
            return self.detached();
        };
        let copy = Bytes::copy_from_slice(&content.encoded);
        if let Some(parts) = content.parts.get_mut() {
            parts.turn_to_copy(&content.encoded, &copy);
        }
        content.encoded = copy;
        self
    }
}

/// What a replica needs no more of a transaction that has ended.
impl Transaction {
    /// Lets go of the values that it writes: it has its name and its keys, and cannot be encoded.
    pub(crate) fn drop_values(&mut self) {
        let encoded = self.encoded_without_values();
        if let Some(content) = Arc::get_mut(&mut self.0) {
            content.parts.take();
            (content.encoded, content.is_whole) = (encoded, false);
        } else {
            self.0 = Arc::new(self.0.packed(encoded, false));
        }
    }

    fn encoded_without_values(&self) -> Bytes {
        self.examine(|Parts { reads, ranges, writes }| {
            let values = writes.iter().filter_map(|write| write.value.as_ref());
            let removed: usize = values.map(|value| size_of::<u32>() + value.as_bytes().len()).sum();
            let mut encoded = Vec::with_capacity(self.0.encoded.len() - removed);
            let deletions: SmallVec<[Write; 4]> = writes.iter().map(|write| Write { key: write.key.clone(), value: None }).collect();
            encode(self.timestamp(), reads, &deletions, ranges, &mut encoded);
            encoded.into()
        })
    }

    /// The whole transaction again, if these are the values that it wrote.
    pub(crate) fn with_values(&self, cluster: ClusterId, value: impl Fn(&Key) -> Option<Option<Value>>) -> Option<Self> {
        let Parts { reads, ranges, writes } = self.parsed();
        let writes: Option<Vec<Write>> =
            writes.into_iter().map(|Write { key, .. }| value(&key).map(|value| Write { key, value })).collect();
        Self::with_ranges(cluster, self.timestamp(), reads, ranges, writes?).ok().filter(|whole| whole.id() == self.id())
    }

    /// Keeps its bytes alone, if nobody else has it: what they hold is read from them when it is asked for.
    pub(crate) fn pack(&mut self) {
        if let Some(content) = Arc::get_mut(&mut self.0) {
            content.parts.take();
        }
    }

    /// The keys that it has read, for whom it is not worth keeping what it holds.
    pub(crate) fn read_keys(&self) -> SmallVec<[Key; 4]> {
        if let Some(parts) = self.0.parts.get() {
            return parts.reads.iter().map(|read| read.key.clone()).collect();
        }
        let mut reader = Reader::new(self.readable(), ClusterId::new([0; 16]));
        let mut read = || {
            let _format_and_timestamp = (u8::decode(&mut reader)?, Timestamp::decode(&mut reader)?);
            let count = reader.count("a transaction's reads", TRANSACTION_READS_MAX)?;
            (0..count).map(|_| Read::decode(&mut reader).map(|read| read.key)).collect()
        };
        // `parse` has taken these bytes before, or they were made here: see `parsed`.
        let keys: Result<_, DecodeError> = read();
        keys.expect("these bytes were made or parsed here before")
    }

    /// What it writes, if that is at hand and need not be read from its bytes first.
    pub(crate) fn kept_writes(&self) -> Option<&[Write]> {
        self.0.parts.get().map(|parts| parts.writes.as_slice())
    }

    /// Reads the first of the bytes that are kept of it, where an allocator writes when they are freed, so that the CPU caches them. The result has no
    /// meaning.
    pub(crate) fn touch(&self) -> u8 {
        self.0.encoded.first().copied().unwrap_or_default()
    }

    /// Whether it writes `key`, for whom it is not worth keeping what it holds.
    pub(crate) fn does_write(&self, key: &Key) -> bool {
        self.examine(|parts| parts.writes_key(key))
    }

    /// Only its bytes are kept.
    #[cfg(test)]
    pub(crate) fn is_packed(&self) -> bool {
        self.0.parts.get().is_none()
    }

    /// How many keys and ranges it has read, and keys it writes.
    pub(crate) fn count_keys(&self) -> usize {
        self.0.sizes.keys as usize
    }

    /// Its values were not let go.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_whole
    }

    /// The bytes of the values that it writes.
    pub(crate) fn value_bytes(&self) -> usize {
        self.0.sizes.value_bytes as usize
    }

    /// About how much memory it takes at a replica once it is packed.
    pub(crate) fn memory_bytes(&self) -> usize {
        KEPT_BYTES + self.0.encoded.len()
    }
}

fn encode(timestamp: Timestamp, reads: &[Read], writes: &[Write], ranges: &[KeyRange], out: &mut Vec<u8>) {
    out.push(if ranges.is_empty() { FORMAT } else { FORMAT_WITH_RANGES });
    timestamp.encode(out);
    encode_sequence(reads, out);
    encode_sequence(writes, out);
    if !ranges.is_empty() {
        encode_sequence(ranges, out);
    }
}

fn id_of(cluster: ClusterId, encoded: &[u8]) -> TransactionId {
    let cluster = if broken(Mutant::ClusterUnnamed) { ClusterId::new([0; 16]) } else { cluster };
    let mut hasher = Sha256::new();
    hasher.update(DOMAIN);
    hasher.update(cluster.as_bytes());
    hasher.update(encoded);
    TransactionId(hasher.finalize().into())
}

fn is_strictly_sorted<'a>(mut keys: impl Iterator<Item = &'a Key>) -> bool {
    let Some(mut previous) = keys.next() else { return true };
    keys.all(|key| {
        let sorted = previous < key;
        previous = key;
        sorted
    })
}

impl PartialEq for Transaction {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Transaction {}

impl fmt::Debug for Transaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Transaction")
            .field("id", &self.0.id)
            .field("timestamp", &self.0.timestamp)
            .field("reads", &self.reads())
            .field("ranges", &self.ranges())
            .field("writes", &self.writes())
            .finish()
    }
}

impl Encode for Transaction {
    fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.is_whole(), "a transaction without its values is neither sent nor written");
        out.extend_from_slice(&self.0.encoded);
    }
}

impl Decode for Transaction {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let start = reader.rest();
        let (timestamp, parts) = parse(reader)?;
        let encoded = start.slice(..start.len() - reader.remaining());
        if encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(DecodeError::OverLimit("a transaction"));
        }
        let id = id_of(reader.cluster(), &encoded);
        Ok(Self::of(id, timestamp, encoded, parts))
    }
}

fn parse(reader: &mut Reader) -> Result<(Timestamp, Parts), DecodeError> {
    let format = u8::decode(reader)?;
    if format != FORMAT && format != FORMAT_WITH_RANGES {
        return Err(DecodeError::UnknownTag("a transaction"));
    }
    let timestamp = Timestamp::decode(reader)?;
    let reads: Vec<Read> = reader.sequence("a transaction's reads", TRANSACTION_READS_MAX)?;
    let writes: Vec<Write> = reader.sequence("a transaction's writes", TRANSACTION_WRITES_MAX)?;
    if !is_strictly_sorted(reads.iter().map(|read| &read.key)) || !is_strictly_sorted(writes.iter().map(|write| &write.key)) {
        return Err(DecodeError::NotCanonical("a transaction's key order"));
    }
    let ranges = if format == FORMAT { Vec::new() } else { parse_ranges(reader)? };
    Ok((timestamp, Parts { reads, ranges, writes }))
}

fn parse_ranges(reader: &mut Reader) -> Result<Vec<KeyRange>, DecodeError> {
    let ranges: Vec<KeyRange> = reader.sequence("a transaction's ranges", TRANSACTION_RANGES_MAX)?;
    if ranges.is_empty() || !KeyRange::are_apart(&ranges) {
        return Err(DecodeError::NotCanonical("a transaction's ranges"));
    }
    Ok(ranges)
}

impl Encode for Read {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.version.encode(out);
        self.dependency.encode(out);
    }
}

impl Decode for Read {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, version: Timestamp::decode(reader)?, dependency: Option::decode(reader)? })
    }
}

impl Encode for Write {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.value.encode(out);
    }
}

impl Decode for Write {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, value: Option::decode(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    #[test]
    fn what_nobody_else_has_is_taken_out_of_its_frame_without_being_read_again() {
        let (cluster, long) = (ClusterId::new([7; 16]), "longer than what stands in place");
        let range = KeyRange::new(Key::from(long), Key::from("z")).expect("it has keys");
        let read = Read { key: Key::from("a key that is longer than what stands in place"), version: Timestamp::ZERO, dependency: None };
        let write = Write { key: Key::from("another key that is as long, in place of a short one"), value: Some(Value::from(long)) };
        let made = Transaction::with_ranges(cluster, Timestamp::new(1, ClientId(1)), vec![read], vec![range], vec![write]);
        let made = made.expect("it is small");
        let frame = Bytes::from(made.to_bytes());
        let received = || Transaction::from_bytes(frame.clone(), cluster).expect("they were made here");
        let (alone, shared) = (received().into_detached(), received());
        assert!(!alone.is_packed(), "its parts are at hand");
        let of_others = shared.clone().into_detached();
        assert!(of_others.is_packed() && !shared.is_packed(), "others have it still");
        drop(shared);
        assert!(frame.is_unique(), "neither keeps the frame");
        for taken in [alone, of_others] {
            assert_eq!(format!("{taken:?}"), format!("{made:?}"));
            assert_eq!(taken.to_bytes(), made.to_bytes());
        }
    }
}
