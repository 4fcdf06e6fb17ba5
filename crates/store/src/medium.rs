//! What bytes are kept on. A medium moves bytes; it knows nothing of batches, checksums or versions.

use std::sync::Arc;

use bytes::Bytes;
use types::{Key, Timestamp};

use crate::{SegmentNumber, StoreError};

/// A row of the base: a key and its encoded newest version.
pub type Row = (Key, Bytes);

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
    /// any stale bytes.
    ///
    /// # Errors
    /// When the medium fails.
    fn create(&mut self, segment: SegmentNumber, header: &[u8]) -> Result<(), StoreError>;

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

    /// Begins to write `rows`, ascending by key, into the base, without waiting. First the watermark is made
    /// durable, then the rows, in any order: a crash may leave some.
    ///
    /// # Errors
    /// When the medium fails.
    fn begin_fold(&mut self, watermark: Timestamp, rows: Arc<Vec<Row>>) -> Result<(), StoreError>;

    /// Whether the fold that has begun is durable.
    ///
    /// # Errors
    /// When the fold failed.
    fn fold_done(&mut self) -> Result<bool, StoreError>;
}
