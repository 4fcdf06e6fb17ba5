//! Where bytes are kept. A backend moves bytes; it does not know about batches, checksums or versions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mutants::{Mutant, broken};
use types::{Direction, Key, Timestamp};

use crate::encoded_rows::EncodedRows;
use crate::{SegmentNumber, StoreError, Version, row};

/// What is to be checkpointed into the base table.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// All versions up to it are being checkpointed.
    pub watermark: Timestamp,
    /// What is at or below was committed late: the base table may have newer ones.
    late_to: Timestamp,
    /// The versions, and about how much memory they took where they were.
    versions: Arc<EncodedRows>,
    memory: usize,
    /// Rows that take the place of those of the same key and timestamp, which are wrong: here, or in the base table. Ascending by key.
    replaced: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A row of the base table: a key, and its encoded newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The key's bytes.
    pub key: &'a [u8],
    /// The row.
    pub row: &'a [u8],
}

impl Checkpoint {
    /// Checkpoints `versions`, at or below `watermark`, which have taken about so much memory.
    pub(crate) fn new(watermark: Timestamp, late_to: Timestamp, versions: Arc<EncodedRows>, memory: usize) -> Self {
        Self { watermark, late_to, versions, memory, replaced: Vec::new() }
    }

    /// The same with these versions in the place of what is wrong.
    pub(crate) fn replacing(mut self, replaced: &BTreeMap<Key, Version>) -> Self {
        self.replaced = replaced
            .iter()
            .map(|(key, version)| {
                let mut row = Vec::with_capacity(row::encoded_bytes(version.as_ref()));
                row::encode(version.as_ref(), &mut row);
                (key.as_bytes().to_vec(), row)
            })
            .collect();
        self
    }

    /// About how much memory its versions took where they were.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// The rows to write, ascending by key: the newest version of each. `base` says when the row was written that the base table has of a
    /// key; it is asked only about what was committed late. This sorts, so call it where nobody waits.
    ///
    /// # Errors
    /// When `base` fails.
    pub fn rows(&self, mut base: impl FnMut(&[u8]) -> Result<Option<Timestamp>, StoreError>) -> Result<Vec<Row<'_>>, StoreError> {
        let mut rows: Vec<(u128, Row<'_>)> = self.versions.iter().map(|found| (beginning(found.row.key), found.row)).collect();
        rows.sort_unstable_by(|(left, one), (right, other)| {
            let by_key = left.cmp(right).then_with(|| one.key.cmp(other.key));
            by_key.then_with(|| row::timestamp(other.row).cmp(&row::timestamp(one.row)))
        });
        rows.dedup_by(|(_, later), (_, kept)| later.key == kept.key);
        let mut newest = Vec::with_capacity(rows.len());
        for (_, row) in rows {
            let timestamp = row::timestamp(row.row);
            let is_late = timestamp <= self.late_to && !broken(Mutant::LateCheckpointWins);
            if !is_late || base(row.key)?.is_none_or(|known| known < timestamp) {
                newest.push(row);
            }
        }
        for (key, row) in &self.replaced {
            let timestamp = row::timestamp(row);
            match newest.binary_search_by(|other: &Row<'_>| other.key.cmp(key)) {
                Ok(at) if row::timestamp(newest[at].row) == timestamp => newest[at].row = row,
                Ok(_) => {}
                Err(at) if base(key)? == Some(timestamp) => newest.insert(at, Row { key, row }),
                Err(_) => {}
            }
        }
        Ok(newest)
    }
}

/// The first bytes of a key as a number that orders as they do: most keys are told apart without a look at their own bytes.
pub(crate) fn beginning(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let length = key.len().min(16);
    bytes[..length].copy_from_slice(&key[..length]);
    u128::from_be_bytes(bytes)
}

/// A base table as it was at one moment, for as long as this lives.
pub trait BaseTable: Send {
    /// Its rows, to be gone through in this direction. They are at their end until they [go to one](BaseRows::seek).
    fn rows(&self, direction: Direction) -> Box<dyn BaseRows>;

    /// The row of `key`.
    ///
    /// # Errors
    /// When the backend fails.
    fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError>;
}

/// The rows of a base table, gone through in one direction.
///
/// After any method failed, no other is called.
pub trait BaseRows {
    /// Goes to the first row, in this direction, that is not before `begin`: where it descends, the first below that. Without a `begin`, to the
    /// first of all. On its way on, passing rows costs no more than reading them.
    ///
    /// # Errors
    /// When the backend fails.
    fn seek(&mut self, begin: Option<&Key>) -> Result<(), StoreError>;

    /// The row that is next; nothing at the end.
    fn row(&self) -> Option<Row<'_>>;

    /// Passes it.
    ///
    /// # Errors
    /// When the backend fails.
    fn advance(&mut self) -> Result<(), StoreError>;

    /// How many bytes of rows, or of the blocks that have them, were read so far.
    fn read_bytes(&self) -> usize;
}

/// What a [`crate::Store`] keeps its bytes on: [`crate::Disk`] or [`crate::Memory`].
///
/// After any method failed, the store calls no other: what is on the backend is then unknown.
pub trait StorageBackend: Send {
    /// Whose data these are; part of every segment's header.
    fn owner(&self) -> &str;

    /// Where the journal is, for messages to people.
    fn location(&self) -> String;

    /// An unpredictable number. Checksums start from it, so that no client can put bytes into a record that
    /// would pass for a batch, and no batch of a recycled segment passes for one of the new.
    ///
    /// # Errors
    /// When there is no randomness.
    fn salt(&mut self) -> Result<u64, StoreError>;

    /// The journal's segments, ascending.
    ///
    /// # Errors
    /// When the backend fails, or its journal is lost.
    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError>;

    /// Bytes of a segment from `offset`, at most `length`, fewer at its end.
    ///
    /// # Errors
    /// When the backend fails.
    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError>;

    /// Begins a segment, durably: it exists with all of `header`, or not at all. Behind the header may lie
    /// any stale bytes. It will grow to about `bytes_max`.
    ///
    /// # Errors
    /// When the backend fails.
    fn create(&mut self, segment: SegmentNumber, header: &[u8], bytes_max: u64) -> Result<(), StoreError>;

    /// The store has opened, and so has a journal: from now on, a part that is missing is a loss.
    ///
    /// # Errors
    /// When the backend fails.
    fn opened(&mut self) -> Result<(), StoreError>;

    /// How many batches the journal has had, if the last process stopped gracefully and said so with [`StorageBackend::set_clean_end`].
    ///
    /// # Errors
    /// When the medium fails.
    fn clean_end(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Keeps, durably, how many batches the journal has had; or forgets it, before more are written.
    ///
    /// # Errors
    /// When the medium fails.
    fn set_clean_end(&mut self, _end: Option<u64>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Writes into a segment. Durable only after [`StorageBackend::sync`].
    ///
    /// # Errors
    /// When the backend fails.
    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes what was written into `segment` durable.
    ///
    /// # Errors
    /// When the backend fails.
    fn sync(&mut self, segment: SegmentNumber) -> Result<(), StoreError>;

    /// Removes a segment, durably. Its bytes may be recycled.
    ///
    /// # Errors
    /// When the backend fails.
    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError>;

    /// Whether rows of the base table were given up as they could not be read, and nobody has made up for them.
    fn has_lost_rows(&self) -> bool {
        false
    }

    /// Somebody has made up for them, durably.
    ///
    /// # Errors
    /// When the backend fails.
    fn forget_lost_rows(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// About how many rows the base table has: one that was written anew may count for each time. 0 where nobody knows.
    fn rows_about(&self) -> u64 {
        0
    }

    /// The row of `key` in the base table.
    ///
    /// # Errors
    /// When the backend fails.
    fn get(&mut self, key: &Key) -> Result<Option<Bytes>, StoreError>;

    /// The rows of these keys are about to be read: a disk can read them all at once, where it would read one after the other. Nobody waits for that.
    fn read_ahead(&self, _keys: &[&Key]) {}

    /// The base table as it is now. What is checkpointed later does not change it, and what it has takes room on the medium for as long as it lives.
    fn base_table(&self) -> Box<dyn BaseTable>;

    /// The watermark of the newest checkpoint that has begun, durably.
    ///
    /// # Errors
    /// When the backend fails.
    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError>;

    /// Begins to write a checkpoint's rows into the base table, without waiting. First the watermark is made durable, then
    /// the rows, in any order: a crash may leave some.
    ///
    /// # Errors
    /// When the backend fails.
    fn begin_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), StoreError>;

    /// Whether the checkpoint that has begun is durable.
    ///
    /// # Errors
    /// When the checkpoint failed.
    fn checkpoint_done(&mut self) -> Result<bool, StoreError>;

    /// Versions of `added` bytes of memory have come since this was called last, and `overdue` bytes of memory should have been checkpointed by now.
    /// Where checkpoints take time, whoever writes waits a moment, the more the more is overdue. Gives how long it waited.
    fn pace(&mut self, _added: usize, _overdue: usize) -> Duration {
        Duration::ZERO
    }
}
