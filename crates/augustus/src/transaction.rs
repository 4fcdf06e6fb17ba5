//! A short transaction, as its client sends it: all its operations, known beforehand.

use std::fmt;

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::{ClientId, Cluster, ClusterId, Permission, ShardId, TransactionId};

use crate::limits::{OPERATIONS_MAX, RANGES_MAX, TRANSACTION_BYTES_MAX};
use crate::operation::{Operation, shards_of_range};

/// Format version of a transaction's encoding, its first byte.
const FORMAT: u8 = 1;

/// Whose transaction it is, and which of theirs.
///
/// One process of a client is a *session*. It numbers its transactions upwards, and each shard executes one of a number at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The client.
    pub client: ClientId,
    /// The number of its process: above those of earlier ones, for a shard remembers the highest.
    pub session: u64,
    /// The transaction's number in it.
    pub number: u64,
}

/// A transaction. Its id is the hash of everything in it (§3.3), so that other operations make another transaction.
#[derive(Clone, PartialEq, Eq)]
pub struct Transaction {
    name: Name,
    operations: Vec<Operation>,
    id: TransactionId,
    encoded: Bytes,
}

/// Why no transaction can be made of these operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a transaction has from 1 to {OPERATIONS_MAX} operations, at most {RANGES_MAX} ranges and {TRANSACTION_BYTES_MAX} bytes; split it")]
pub struct TransactionError;

impl Transaction {
    /// The transaction `name` of these operations.
    ///
    /// # Errors
    /// When it would be over a limit, or empty.
    pub fn new(cluster: ClusterId, name: Name, operations: Vec<Operation>) -> Result<Self, TransactionError> {
        let mut encoded = vec![FORMAT];
        name.encode(&mut encoded);
        encode_sequence(&operations, &mut encoded);
        if !is_within_limits(&operations) || encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(TransactionError);
        }
        Ok(Self::of(cluster, name, operations, encoded.into()))
    }

    fn of(cluster: ClusterId, name: Name, operations: Vec<Operation>, encoded: Bytes) -> Self {
        let id = TransactionId(crypto::digest("augustus/transaction/1", cluster, &[&encoded]));
        Self { name, operations, id, encoded }
    }

    /// Whose it is, and which.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// The hash of everything in it.
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.id
    }

    /// What it does, in this order, but comparisons first.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Whether it changes anything, on any shard.
    #[must_use]
    pub fn is_update(&self) -> bool {
        self.operations.iter().any(Operation::is_update)
    }

    /// Its encoding.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// The shards that take part, in order: those that hold its keys, and all that may hold keys of its ranges.
    #[must_use]
    pub fn participants(&self, cluster: &Cluster) -> Vec<ShardId> {
        participants(&self.operations, cluster)
    }

    /// What `shard` has to do of it, with the place of each operation.
    pub fn operations_at<'a>(&'a self, cluster: &Cluster, shard: ShardId) -> impl Iterator<Item = (usize, &'a Operation)> {
        self.operations.iter().enumerate().filter(move |(_, operation)| match operation.range() {
            Some(range) => cluster.part_of(shard, range).is_some(),
            None => operation.key().is_some_and(|key| cluster.shard_of(key) == shard),
        })
    }

    /// Whether who has `permission` may do all of it.
    #[must_use]
    pub fn is_permitted(&self, permission: &Permission) -> bool {
        self.operations.iter().all(|operation| match operation {
            Operation::Compare(key, _) | Operation::Read(key) => permission.may_read(key),
            Operation::ReadRange(range, ..) | Operation::CompareRange(range, _) => permission.may_read_range(range),
            Operation::Insert(key, _) | Operation::Write(key, _) | Operation::Put(key, _) | Operation::Delete(key) => {
                permission.may_write(key)
            }
        })
    }

    /// Whether who has `permission` may see all of it: read every key that it is about.
    #[must_use]
    pub fn may_be_shown(&self, permission: &Permission) -> bool {
        self.operations.iter().all(|operation| match operation.range() {
            Some(range) => permission.may_read_range(range),
            None => operation.key().is_some_and(|key| permission.may_read(key)),
        })
    }

    /// The same transaction in a buffer of its own, so that keeping it does not keep a whole frame.
    #[must_use]
    pub fn detached(&self, cluster: ClusterId) -> Self {
        Self::from_bytes(Bytes::copy_from_slice(&self.encoded), cluster).expect("a transaction's own encoding can be read back")
    }
}

/// The shards that take part in these operations, in order.
pub(crate) fn participants(operations: &[Operation], cluster: &Cluster) -> Vec<ShardId> {
    let mut shards = cluster.shards_of(operations.iter().filter_map(Operation::key));
    for range in operations.iter().filter_map(Operation::range) {
        shards.extend(shards_of_range(range, cluster));
    }
    shards.sort_unstable();
    shards.dedup();
    shards
}

fn is_within_limits(operations: &[Operation]) -> bool {
    let ranges = operations.iter().filter(|operation| operation.key().is_none()).count();
    (1..=OPERATIONS_MAX).contains(&operations.len()) && ranges <= RANGES_MAX
}

impl fmt::Debug for Transaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {:?} {:?}", self.id, self.name, self.operations)
    }
}

impl Encode for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.0.encode(out);
        self.session.encode(out);
        self.number.encode(out);
    }
}

impl Decode for Name {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { client: ClientId(u64::decode(reader)?), session: u64::decode(reader)?, number: u64::decode(reader)? })
    }
}

impl Encode for Transaction {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encoded);
    }
}

impl Decode for Transaction {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let whole = reader.rest();
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a transaction's format"));
        }
        let name = Name::decode(reader)?;
        let operations: Vec<Operation> = reader.sequence("the operations of a transaction", OPERATIONS_MAX)?;
        let encoded = whole.slice(..whole.len() - reader.remaining());
        if !is_within_limits(&operations) || encoded.len() > TRANSACTION_BYTES_MAX {
            return Err(DecodeError::OverLimit("a transaction"));
        }
        Ok(Self::of(reader.cluster(), name, operations, encoded))
    }
}

#[cfg(test)]
mod tests {
    use types::{Direction, Key, KeyRange, Placement};

    use super::*;

    #[test]
    fn all_shards_take_part_that_hold_a_key_or_a_part_of_a_range() {
        let keys = (0..3).map(|shard: u8| (0..4).map(|index| [shard * 4 + index + 1; 32]).collect());
        let cluster =
            |placement| Cluster::new(ClusterId::new([1; 16]), 1, placement, keys.clone().collect(), vec![]).expect("its parts fit");
        let ranges = cluster(Placement::Ranges(vec![Key::from("h"), Key::from("p")]));
        let participants = |cluster: &Cluster, operations: Vec<Operation>| -> Vec<u16> {
            let name = Name { client: ClientId(1), session: 1, number: 1 };
            let transaction = Transaction::new(cluster.id(), name, operations).expect("within limits");
            let shards = transaction.participants(cluster);
            for shard in cluster.shards() {
                assert_eq!(shards.contains(&shard), transaction.operations_at(cluster, shard).next().is_some());
            }
            shards.into_iter().map(|shard| shard.0).collect()
        };
        let range = |low: &str, high: &str| {
            let range = KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys");
            Operation::ReadRange(range, Direction::Descending, 10)
        };
        let read = |key: &str| Operation::Read(Key::from(key));
        for (operations, expected) in [
            (vec![read("z"), read("a")], vec![0, 2]),
            (vec![range("a", "h")], vec![0]),
            (vec![range("a", "i")], vec![0, 1]),
            (vec![range("a", "q"), read("b")], vec![0, 1, 2]),
            (vec![range("h", "p"), range("i", "j"), read("z")], vec![1, 2]),
        ] {
            assert_eq!(participants(&ranges, operations.clone()), expected, "{operations:?}");
        }
        assert_eq!(participants(&cluster(Placement::Hash), vec![range("a", "b")]), [0, 1, 2]);
    }
}
