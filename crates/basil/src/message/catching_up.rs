//! Catching up ([`crate::catch_up`]): what replicas of a shard compare and hand one another.

use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Key, Timestamp, TransactionId, Value};

use super::KeyVersion;
use crate::transaction::Transaction;

/// The most stretches of time whose commits are compared at once.
pub(crate) const COMMIT_SLOTS_MAX: usize = 1_024;
/// The most ids of committed transactions in one answer.
pub(crate) const COMMITTED_IDS_MAX: usize = 1 << 14;
/// The most transactions asked for at once.
pub(crate) const TRANSACTIONS_MAX: usize = 1_024;
/// The most keys in one page of versions.
pub(crate) const PAGE_KEYS_MAX: usize = 1_024;

/// The sum of the ids of what committed in a stretch of time, of their first sixteen bytes.
pub type CommitDigest = [u8; 16];

/// A key and its newest version up to some time.
#[derive(Clone, Debug, PartialEq)]
pub struct PageVersion {
    /// The key.
    pub key: Key,
    /// The version, a deletion too.
    pub version: KeyVersion,
}

impl Encode for PageVersion {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.version.encode(out);
    }
}

impl Decode for PageVersion {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, version: KeyVersion::decode(reader)? })
    }
}

/// A page of versions to be compared: the newest ones at or below a time of a range of keys.
#[derive(Clone, Debug, PartialEq)]
pub struct PageQuery {
    /// The asker's number of the page; the reply repeats it.
    pub page: u64,
    /// Its first key.
    pub from: Key,
    /// The key before which it ends; nothing when it has no end.
    pub to: Option<Key>,
    /// The time.
    pub up_to: Timestamp,
    /// What the asker has there, hashed.
    pub digest: [u8; 32],
}

impl PageQuery {
    /// Whether `version` of `key` may be in it.
    pub(crate) fn has(&self, key: &Key, version: Timestamp) -> bool {
        *key >= self.from && self.to.as_ref().is_none_or(|to| key < to) && version <= self.up_to
    }
}

impl Encode for PageQuery {
    fn encode(&self, out: &mut Vec<u8>) {
        self.page.encode(out);
        self.from.encode(out);
        self.to.encode(out);
        self.up_to.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for PageQuery {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            page: u64::decode(reader)?,
            from: Key::decode(reader)?,
            to: Option::decode(reader)?,
            up_to: Timestamp::decode(reader)?,
            digest: <[u8; 32]>::decode(reader)?,
        })
    }
}

/// The bytes of a value, if there is one.
pub(crate) fn value_bytes(value: Option<&Value>) -> usize {
    value.map_or(0, |value| value.as_bytes().len())
}

/// Where a transaction stands among those that a replica shows as undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its timestamp.
    pub timestamp: Timestamp,
    /// Its id.
    pub id: TransactionId,
}

impl Place {
    /// That of `transaction`.
    pub(crate) fn of(transaction: &Transaction) -> Self {
        Self { timestamp: transaction.timestamp(), id: transaction.id() }
    }
}

impl Encode for Place {
    fn encode(&self, out: &mut Vec<u8>) {
        self.timestamp.encode(out);
        self.id.encode(out);
    }
}

impl Decode for Place {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { timestamp: Timestamp::decode(reader)?, id: TransactionId::decode(reader)? })
    }
}

/// How far a replica's journal has come. It only grows, unless the replica's data are put back to what they once were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalEnd {
    /// Up to when it has forgotten what it said, in nanoseconds, since it lost its disk, or rows there; 0 if it never did.
    pub lost_up_to: u64,
    /// How many batches the journal has had.
    pub batches: u64,
}

impl Encode for JournalEnd {
    fn encode(&self, out: &mut Vec<u8>) {
        self.lost_up_to.encode(out);
        self.batches.encode(out);
    }
}

impl Decode for JournalEnd {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { lost_up_to: u64::decode(reader)?, batches: u64::decode(reader)? })
    }
}

/// Whether `transactions` come one after the other, and after that place.
pub(crate) fn are_in_order(after: Option<Place>, transactions: &[Transaction]) -> bool {
    let places = || transactions.iter().map(Place::of);
    places().is_sorted_by(|one, next| one < next) && places().next().is_none_or(|first| after.is_none_or(|after| after < first))
}
