//! What bytes are kept on. A medium moves bytes; it knows nothing of batches, checksums or versions.

use bytes::Bytes;
use types::{Key, Timestamp};

use crate::{SegmentNumber, StoreError, Version, row};

/// A row of the base: a key and its encoded newest version.
pub type Row = (Key, Bytes);

/// What is to be folded into the base.
#[derive(Clone, Debug)]
pub struct Fold {
    /// All versions up to it are being folded.
    pub watermark: Timestamp,
    /// The versions, ascending by timestamp.
    versions: Vec<(Key, Version)>,
}

impl Fold {
    /// Folds `versions`, ascending by timestamp, whose newest is at or below `watermark`.
    pub(crate) fn new(watermark: Timestamp, versions: Vec<(Key, Version)>) -> Self {
        assert!(versions.is_sorted_by_key(|(_, version)| version.timestamp), "versions are folded in their order");
        Self { watermark, versions }
    }

    /// The rows to write, ascending by key: the newest version of each. This sorts and encodes, so call it
    /// where nobody waits.
    #[must_use]
    pub fn into_rows(self) -> Vec<Row> {
        let mut versions = self.versions;
        versions.sort_by(|(left, one), (right, other)| left.cmp(right).then(other.timestamp.cmp(&one.timestamp)));
        versions.dedup_by(|(later, _), (kept, _)| later == kept);
        versions.into_iter().map(|(key, version)| (key, row::encode(&version))).collect()
    }
}

/// What a [`crate::Store`] keeps its bytes on: [`crate::Disk`] or [`crate::Memory`].
///
/// After any method failed, the store calls no other: what is on the medium is then unknown.
pub trait Medium: Send {
    /// Whose data these are; part of every segment's header.
    fn owner(&self) -> &str;

    /// Where the journal is, for messages to people.
    fn place(&self) -> String;

    /// An unpredictable number. Checksums start from it, so that no client can put bytes into a record that
    /// would pass for a batch, and no batch of a recycled segment passes for one of the new.
    ///
    /// # Errors
    /// When there is no randomness.
    fn salt(&mut self) -> Result<u64, StoreError>;

    /// The journal's segments, ascending.
    ///
    /// # Errors
    /// When the medium fails, or its journal is lost.
    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError>;

    /// Bytes of a segment from `offset`, at most `length`, fewer at its end.
    ///
    /// # Errors
    /// When the medium fails.
    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError>;

    /// Begins a segment, durably: it exists with all of `header`, or not at all. Behind the header may lie
    /// any stale bytes. It will grow to about `bytes_max`.
    ///
    /// # Errors
    /// When the medium fails.
    fn create(&mut self, segment: SegmentNumber, header: &[u8], bytes_max: u64) -> Result<(), StoreError>;

    /// The store has opened, and so has a journal: from now on, a part that is missing is a loss.
    ///
    /// # Errors
    /// When the medium fails.
    fn opened(&mut self) -> Result<(), StoreError>;

    /// Writes into a segment. Durable only after [`Medium::sync`].
    ///
    /// # Errors
    /// When the medium fails.
    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes what was written into `segment` durable.
    ///
    /// # Errors
    /// When the medium fails.
    fn sync(&mut self, segment: SegmentNumber) -> Result<(), StoreError>;

    /// Removes a segment, durably. Its bytes may be recycled.
    ///
    /// # Errors
    /// When the medium fails.
    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError>;

    /// The row of `key` in the base.
    ///
    /// # Errors
    /// When the medium fails.
    fn get(&mut self, key: &Key) -> Result<Option<Bytes>, StoreError>;

    /// The watermark of the newest fold that has begun, durably.
    ///
    /// # Errors
    /// When the medium fails.
    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError>;

    /// Begins to write a fold's rows into the base, without waiting. First the watermark is made durable, then
    /// the rows, in any order: a crash may leave some.
    ///
    /// # Errors
    /// When the medium fails.
    fn begin_fold(&mut self, fold: Fold) -> Result<(), StoreError>;

    /// Whether the fold that has begun is durable.
    ///
    /// # Errors
    /// When the fold failed.
    fn fold_done(&mut self) -> Result<bool, StoreError>;
}
