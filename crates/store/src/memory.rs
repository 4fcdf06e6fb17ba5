//! A backend that lives in memory and can be crashed and damaged: for tests and simulations.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use types::{Direction, Key, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use crate::{BaseRows, BaseTable, Checkpoint, Row, SegmentNumber, StorageBackend, StoreError, row};

/// A backend in memory. Clones share it, so that whoever keeps one still has it after the store is gone.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    owner: Arc<str>,
}

/// What survives a crash of that which was not durable. The default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// How many of the bytes written and not synced reached the backend: a torn write.
    pub journal_bytes_kept: usize,
    /// How many rows of an unfinished checkpoint reached the base table.
    pub checkpoint_rows_kept: usize,
}

#[derive(Clone, Default)]
struct State {
    segments: BTreeMap<SegmentNumber, Segment>,
    /// Bytes of removed segments, to be found stale in later ones, as on a real disk.
    spares: Vec<Vec<u8>>,
    salts: u64,
    /// Copied when it changes while somebody keeps it.
    base_table: Arc<BTreeMap<Key, Checked>>,
    has_lost_rows: bool,
    watermark: Option<Timestamp>,
    running: Option<Vec<(Key, Bytes)>>,
    checkpoints_held: bool,
    sync_fails: bool,
    syncs: u64,
    clean_end: Option<u64>,
}

#[derive(Clone, Default)]
struct Segment {
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

/// A row of the base table with its checksum, as the tables of a real base have them.
#[derive(Clone)]
struct Checked {
    row: Bytes,
    checksum: u64,
}

impl State {
    /// A row of the base table, which must not be damaged.
    fn row(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.base_table.get(key).map(|checked| checked.row(key)).transpose()
    }

    fn add_rows(&mut self, rows: impl Iterator<Item = (Key, Bytes)>) {
        Arc::make_mut(&mut self.base_table).extend(rows.map(|(key, row)| (key, Checked::new(row))));
    }
}

impl Checked {
    fn new(row: Bytes) -> Self {
        Self { checksum: xxh3_64(&row), row }
    }

    /// The row, which must not be damaged.
    fn row(&self, key: &Key) -> Result<Bytes, StoreError> {
        if xxh3_64(&self.row) != self.checksum {
            let location = format!("the base table's row of {key}");
            return Err(StoreError::Corrupt { location, offset: 0, reason: "its checksum does not match".to_owned() });
        }
        Ok(self.row.clone())
    }
}

impl Memory {
    /// An empty backend of `owner`.
    #[must_use]
    pub fn new(owner: &str) -> Self {
        Self { state: Arc::default(), owner: owner.into() }
    }

    /// Another backend that holds the same from here on, and shares nothing: to look what would become of this one.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state().clone())), owner: Arc::clone(&self.owner) }
    }

    /// Cuts the power. What was not durable is lost, but for what `crash` says. Drop the store before.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.state();
        state.sync_fails = false;
        state.checkpoints_held = false;
        let mut kept = crash.journal_bytes_kept;
        for segment in state.segments.values_mut() {
            for (offset, bytes) in std::mem::take(&mut segment.unsynced) {
                let length = bytes.len().min(kept);
                kept -= length;
                patch(&mut segment.durable, offset, &bytes[..length]);
            }
        }
        if let Some(rows) = state.running.take() {
            state.add_rows(rows.into_iter().take(crash.checkpoint_rows_kept));
        }
    }

    /// Lets the next sync fail, as when the power goes in the middle of it: then drop the store and call
    /// [`Memory::crash`], which may keep a part of what was being written.
    pub fn fail_next_sync(&self) {
        self.state().sync_fails = true;
    }

    /// Keeps checkpoints from finishing until [`Memory::release_checkpoints`].
    pub fn hold_checkpoints(&self) {
        self.state().checkpoints_held = true;
    }

    /// Lets checkpoints finish again.
    pub fn release_checkpoints(&self) {
        self.state().checkpoints_held = false;
    }

    /// Flips a bit of a segment, which must be there.
    ///
    /// # Panics
    /// When `segment` has no byte at `offset`.
    pub fn flip_bit(&self, segment: SegmentNumber, offset: usize, bit: u8) {
        let mut state = self.state();
        let segment = state.segments.get_mut(&segment).expect("the caller names a segment that is there");
        segment.durable[offset] ^= 1 << (bit % 8);
    }

    /// Flips a bit of a key's row in the base table, which must be there.
    ///
    /// # Panics
    /// When `key` has no row with a byte at `offset`.
    pub fn flip_row_bit(&self, key: &Key, offset: usize, bit: u8) {
        let mut state = self.state();
        let checked = Arc::make_mut(&mut state.base_table).get_mut(key).expect("the caller names a row that is there");
        let mut bytes = checked.row.to_vec();
        bytes[offset] ^= 1 << (bit % 8);
        checked.row = bytes.into();
    }

    /// Gives up a key's row in the base table, as a directory that is opened gives up what cannot be read.
    pub fn lose_row(&self, key: &Key) {
        let mut state = self.state();
        Arc::make_mut(&mut state.base_table).remove(key);
        state.has_lost_rows = true;
    }

    /// The keys that have a row in the base table, each with the row's length.
    #[must_use]
    pub fn rows(&self) -> Vec<(Key, usize)> {
        self.state().base_table.iter().map(|(key, checked)| (key.clone(), checked.row.len())).collect()
    }

    /// A segment's durable bytes; nothing when there is no such segment.
    #[must_use]
    pub fn segment_bytes(&self, segment: SegmentNumber) -> Option<Vec<u8>> {
        self.state().segments.get(&segment).map(|segment| segment.durable.clone())
    }

    /// How many syncs have succeeded.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding this lock, but for a wrong call of flip_bit or flip_row_bit")
    }
}

impl StorageBackend for Memory {
    fn owner(&self) -> &str {
        &self.owner
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    /// Not random, so that runs can be repeated; nobody attacks a simulation from outside.
    fn salt(&mut self) -> Result<u64, StoreError> {
        let mut state = self.state();
        state.salts += 1;
        Ok(state.salts.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError> {
        Ok(self.state().segments.keys().copied().collect())
    }

    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let state = self.state();
        let segment = state.segments.get(&segment).ok_or_else(|| absent(segment))?;
        let mut bytes = segment.durable.clone();
        for (offset, unsynced) in &segment.unsynced {
            patch(&mut bytes, *offset, unsynced);
        }
        let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        let end = start.saturating_add(length).min(bytes.len());
        Ok(bytes[start..end].to_vec())
    }

    fn create(&mut self, segment: SegmentNumber, header: &[u8], _bytes_max: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut durable = state.spares.pop().unwrap_or_default();
        patch(&mut durable, 0, header);
        state.segments.insert(segment, Segment { durable, unsynced: Vec::new() });
        Ok(())
    }

    fn opened(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn clean_end(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.state().clean_end)
    }

    fn set_clean_end(&mut self, end: Option<u64>) -> Result<(), StoreError> {
        self.state().clean_end = end;
        Ok(())
    }

    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut state = self.state();
        let segment = state.segments.get_mut(&segment).ok_or_else(|| absent(segment))?;
        let offset = usize::try_from(offset).map_err(|_| absent(SegmentNumber(0)))?;
        segment.unsynced.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.sync_fails {
            return Err(StoreError::io("sync the journal")(io::Error::other("the test wants it to fail")));
        }
        state.syncs += 1;
        let segment = state.segments.get_mut(&segment).ok_or_else(|| absent(segment))?;
        for (offset, bytes) in std::mem::take(&mut segment.unsynced) {
            patch(&mut segment.durable, offset, &bytes);
        }
        Ok(())
    }

    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        let mut state = self.state();
        let removed = state.segments.remove(&segment).ok_or_else(|| absent(segment))?;
        if state.spares.is_empty() {
            state.spares.push(removed.durable);
        }
        Ok(())
    }

    fn rows_about(&self) -> u64 {
        self.state().base_table.len() as u64
    }

    fn has_lost_rows(&self) -> bool {
        self.state().has_lost_rows
    }

    fn forget_lost_rows(&mut self) -> Result<(), StoreError> {
        self.state().has_lost_rows = false;
        Ok(())
    }

    fn get(&mut self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.state().row(key)
    }

    fn base_table(&self) -> Box<dyn BaseTable> {
        Box::new(Kept(Arc::clone(&self.state().base_table)))
    }

    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.state().watermark)
    }

    fn begin_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), StoreError> {
        let mut state = self.state();
        state.watermark = Some(checkpoint.watermark);
        let owned = |row: Row<'_>| (Key::new(row.key.to_vec()).expect("it was a key"), Bytes::copy_from_slice(row.row));
        let base_table = |key: &[u8]| {
            let known = Key::new(key.to_vec()).map_or(Ok(None), |key| state.row(&key))?;
            known.map(|row| row::written_at(key, &row)).transpose()
        };
        let rows = checkpoint.rows(base_table)?.into_iter().map(owned).collect();
        state.running = Some(rows);
        Ok(())
    }

    fn checkpoint_done(&mut self) -> Result<bool, StoreError> {
        let mut state = self.state();
        if state.checkpoints_held {
            return Ok(false);
        }
        if let Some(rows) = state.running.take() {
            state.add_rows(rows.into_iter());
        }
        Ok(true)
    }
}

/// A base table as it was.
struct Kept(Arc<BTreeMap<Key, Checked>>);

impl BaseTable for Kept {
    fn rows(&self, direction: Direction) -> Box<dyn BaseRows> {
        Box::new(Rows { table: Arc::clone(&self.0), direction, next: None, read_bytes: 0 })
    }

    fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.0.get(key).map(|checked| checked.row(key)).transpose()
    }
}

/// Its rows, gone through in one direction.
struct Rows {
    table: Arc<BTreeMap<Key, Checked>>,
    direction: Direction,
    next: Option<(Key, Bytes)>,
    read_bytes: usize,
}

impl Rows {
    /// Goes to the first in its direction between these keys.
    fn go_to(&mut self, between: (Bound<&Key>, Bound<&Key>)) -> Result<(), StoreError> {
        let next = self.direction.of(self.table.range::<Key, _>(between)).next();
        self.next = next.map(|(key, checked)| checked.row(key).map(|row| (key.clone(), row))).transpose()?;
        Ok(())
    }
}

impl BaseRows for Rows {
    fn seek(&mut self, begin: Option<&Key>) -> Result<(), StoreError> {
        self.go_to(match self.direction {
            Direction::Ascending => (begin.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded),
            Direction::Descending => (Bound::Unbounded, begin.map_or(Bound::Unbounded, Bound::Excluded)),
        })
    }

    fn row(&self) -> Option<Row<'_>> {
        self.next.as_ref().map(|(key, row)| Row { key: key.as_bytes(), row })
    }

    fn advance(&mut self) -> Result<(), StoreError> {
        let Some((passed, row)) = self.next.take() else { return Ok(()) };
        self.read_bytes += row.len();
        self.go_to(match self.direction {
            Direction::Ascending => (Bound::Excluded(&passed), Bound::Unbounded),
            Direction::Descending => (Bound::Unbounded, Bound::Excluded(&passed)),
        })
    }

    fn read_bytes(&self) -> usize {
        self.read_bytes
    }
}

/// Overwrites `bytes` from `offset` on, making them longer when need be.
fn patch(bytes: &mut Vec<u8>, offset: usize, patch: &[u8]) {
    let end = offset + patch.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(patch);
}

fn absent(segment: SegmentNumber) -> StoreError {
    StoreError::io(format!("find segment {segment}"))(io::ErrorKind::NotFound.into())
}
