//! A transaction, as it is prepared, named, voted on and stored (basil.txt §4.1, §4.2).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::{RANGE_DELETED_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_RANGES_MAX, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, ClusterId, Key, KeyRange, ShardId, Timestamp, TransactionId, Value};

/// Format version of a transaction's encoding, its first byte.
const FORMAT: u8 = 1;
/// The same of one that has read ranges; what has read none is never written so.
const FORMAT_WITH_RANGES: u8 = 2;
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
    /// Its ranges hold more deleted keys than [`RANGE_DELETED_MAX`].
    #[error("the ranges of a transaction may hold at most {RANGE_DELETED_MAX} deleted keys; split it")]
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
    reads: Vec<Read>,
    ranges: Vec<KeyRange>,
    writes: Vec<Write>,
    encoded: Bytes,
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
        encoded.push(if ranges.is_empty() { FORMAT } else { FORMAT_WITH_RANGES });
        timestamp.encode(&mut encoded);
        encode_sequence(&reads, &mut encoded);
        encode_sequence(&writes, &mut encoded);
        if !ranges.is_empty() {
            encode_sequence(&ranges, &mut encoded);
        }
        if encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(TransactionError::TooLong);
        }
        let id = name(cluster, &encoded);
        Ok(Self(Arc::new(Content { id, timestamp, reads, ranges, writes, encoded: encoded.into() })))
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
        &self.0.reads
    }

    /// The ranges that it read, in order and apart: in these, no key has a value but those among its reads.
    #[must_use]
    pub fn ranges(&self) -> &[KeyRange] {
        &self.0.ranges
    }

    /// Whether `key` lies in a range that it read, and is not among its reads: it found no value there.
    #[must_use]
    pub fn found_absent(&self, key: &Key) -> bool {
        let before = self.0.ranges.partition_point(|range| range.low() <= key);
        before.checked_sub(1).is_some_and(|at| self.0.ranges[at].contains(key)) && self.read_of(key).is_none()
    }

    /// What it writes, in strict key order.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.0.writes
    }

    /// The read of `key`, if it read it.
    #[must_use]
    pub fn read_of(&self, key: &Key) -> Option<&Read> {
        self.0.reads.binary_search_by(|read| read.key.cmp(key)).ok().map(|at| &self.0.reads[at])
    }

    /// The write of `key`, if it writes it.
    #[must_use]
    pub fn write_of(&self, key: &Key) -> Option<&Write> {
        self.0.writes.binary_search_by(|write| write.key.cmp(key)).ok().map(|at| &self.0.writes[at])
    }

    /// Every key it touches; one both read and written comes twice.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.reads.iter().map(|read| &read.key).chain(self.0.writes.iter().map(|write| &write.key))
    }

    /// The shards that it touches, in order, each once.
    ///
    /// They follow from the keys and are never claimed, so no client can leave one out (§4.2 (1)).
    #[must_use]
    pub fn participants(&self, cluster: &Cluster) -> Vec<ShardId> {
        let mut shards = cluster.shards_of(self.keys());
        if !self.0.ranges.is_empty() {
            shards = cluster.shards().filter(|shard| shards.contains(shard) || self.scans(cluster, *shard)).collect();
        }
        shards
    }

    /// Whether `shard` is one of them.
    #[must_use]
    pub fn touches(&self, cluster: &Cluster, shard: ShardId) -> bool {
        self.keys().any(|key| cluster.shard_of(key) == shard) || self.scans(cluster, shard)
    }

    /// Whether `shard` may hold keys of a range that it read.
    fn scans(&self, cluster: &Cluster, shard: ShardId) -> bool {
        self.0.ranges.iter().any(|range| cluster.part_of(shard, range).is_some())
    }

    /// The length of its encoding, in bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.0.encoded.len()
    }

    /// The same transaction in memory of its own, so that keeping it does not keep a whole received frame.
    #[must_use]
    pub fn detached(&self) -> Self {
        let encoded = Bytes::copy_from_slice(&self.0.encoded);
        // The id is known, so the cluster does not matter here.
        let mut reader = Reader::new(encoded.clone(), ClusterId::new([0; 16]));
        let (timestamp, reads, writes, ranges) = parse(&mut reader).expect("these bytes were made or parsed here before");
        Self(Arc::new(Content { id: self.0.id, timestamp, reads, ranges, writes, encoded }))
    }
}

/// What a replica needs no more of a transaction that has ended.
impl Transaction {
    /// The same transaction without the values that it writes, in memory of its own: it has its name and its keys, and cannot be encoded.
    pub(crate) fn without_values(&self) -> Self {
        let Content { id, timestamp, reads, ranges, writes, .. } = &*self.0;
        let reads = reads.iter().map(|read| Read { key: read.key.detached(), ..*read }).collect();
        let writes = writes.iter().map(|write| Write { key: write.key.detached(), value: None }).collect();
        let ranges = ranges.iter().map(KeyRange::detached).collect();
        Self(Arc::new(Content { id: *id, timestamp: *timestamp, reads, ranges, writes, encoded: Bytes::new() }))
    }

    /// Its values were not let go.
    pub(crate) fn is_whole(&self) -> bool {
        !self.0.encoded.is_empty()
    }

    /// The bytes of the values that it writes.
    pub(crate) fn value_bytes(&self) -> usize {
        self.0.writes.iter().filter_map(|write| write.value.as_ref()).map(|value| value.as_bytes().len()).sum()
    }

    /// About how much memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let keys = if self.is_whole() { self.0.encoded.len() } else { self.key_bytes() };
        keys + size_of_val(self.reads()) + size_of_val(self.ranges()) + size_of_val(self.writes())
    }

    /// The bytes of all its keys.
    fn key_bytes(&self) -> usize {
        let keys: usize = self.keys().map(|key| key.as_bytes().len()).sum();
        keys + self.ranges().iter().map(KeyRange::key_bytes).sum::<usize>()
    }
}

fn name(cluster: ClusterId, encoded: &[u8]) -> TransactionId {
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
            .field("reads", &self.0.reads)
            .field("ranges", &self.0.ranges)
            .field("writes", &self.0.writes)
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
        let (timestamp, reads, writes, ranges) = parse(reader)?;
        let encoded = start.slice(..start.len() - reader.remaining());
        if encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(DecodeError::OverLimit("a transaction"));
        }
        let id = name(reader.cluster(), &encoded);
        Ok(Self(Arc::new(Content { id, timestamp, reads, ranges, writes, encoded })))
    }
}

/// What the bytes of a transaction hold.
type Parts = (Timestamp, Vec<Read>, Vec<Write>, Vec<KeyRange>);

fn parse(reader: &mut Reader) -> Result<Parts, DecodeError> {
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
    Ok((timestamp, reads, writes, ranges))
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
