//! The store: a journal, a table of keys and a base behind one owner.

mod checkpoints;
mod keeping;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use mutants::{Mutant, broken};
use types::{Key, Timestamp};

use self::checkpoints::RunningCheckpoint;
use crate::deleted::DeletedRanges;
use crate::journal::Journal;
use crate::table::{Absent, Entry, EntryId, KeyMeta, Table};
use crate::unflushed::Unflushed;
use crate::versions::{CheckpointNumber, value_memory};
use crate::{BaseTable, Batch, SegmentNumber, StorageBackend, StoreError, Version, VersionRef, row};

/// How much memory and how large steps a store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment of the journal is full at this size; [`Store::rotate`] may begin another before.
    pub segment_bytes_max: u64,
    /// About how much memory keys and those of their versions may take that the base table has too. What is in memory alone is not counted.
    pub cache_bytes_max: usize,
    /// About how many versions one checkpoint takes. It goes into the base table as a table of its own, so larger checkpoints make merging cheaper.
    pub checkpoint_versions_max: usize,
    /// How many versions of a checkpoint one call looks at, about.
    pub checkpoint_step: usize,
    /// A range with nothing but deleted keys is remembered ([`Store::page_of_values`]) if it has so many: passing over it costs about as much as looking at them.
    pub deleted_keys_min: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes_max: 16 << 20,
            cache_bytes_max: 32 << 20,
            checkpoint_versions_max: 65_536,
            checkpoint_step: 8_192,
            deleted_keys_min: 16,
        }
    }
}

/// What a store has done since it was opened, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Batches made durable, each with one sync.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes written to the journal.
    pub journal_bytes_written: u64,
    /// Checkpoints finished.
    pub checkpoints: u64,
    /// Versions they took.
    pub versions_checkpointed: u64,
    /// Reads answered from memory with a version that is also in the base table.
    pub cache_hits: u64,
    /// Reads that went to the base table.
    pub base_table_reads: u64,
    /// Bytes of the rows that they found there.
    pub base_table_read_bytes: u64,
    /// Versions that are in memory only now.
    pub memtable_versions: usize,
    /// About how much memory they take.
    pub memtable_bytes: usize,
    /// About how much memory those of them take that should be in the base table by now.
    pub overdue_bytes: usize,
    /// How long syncs have waited since so much was overdue, in microseconds.
    pub paced_us: u64,
    /// About how much memory the cache takes: keys, and versions that are also in the base table.
    pub cache_bytes: u64,
    /// Bytes of the journal in use now.
    pub journal_bytes: u64,
    /// Moments that are [kept](Store::keep).
    pub kept_moments: usize,
}

/// The store. The crate's page says what it guarantees. With each key it keeps a `K` for its user.
///
/// # Panics
/// Every method that writes panics when the journal was not replayed to its end first.
pub struct Store<M: StorageBackend, K: KeyMeta = ()> {
    backend: M,
    journal: Journal,
    options: Options,
    table: Table<K>,
    unflushed: Unflushed,
    /// The keys that have versions and that the base table may lack, in order. A checkpoint leaves some that it has for a while.
    new_keys: BTreeSet<Key>,
    /// The keys of unflushed versions that were late: committed at or below the watermark of that moment.
    late_keys: Vec<Key>,
    /// Versions that take the place of the base table's rows with the same timestamps, until a checkpoint has written them there.
    replaced: BTreeMap<Key, Version>,
    /// What is known to be deleted.
    pub(crate) deleted: DeletedRanges,
    /// What is kept with keys of times below this counts no more.
    meta_expired_below: Timestamp,
    /// How much memory all entries take that have versions, or are known to have none.
    rows_bytes: usize,
    /// How many entries the clock hand passes at the next eviction, if the cache is full.
    sweep_due: usize,
    /// Nobody reads at or below it. While a checkpoint runs, it is that checkpoint's watermark.
    watermark: Timestamp,
    /// The watermark of the last finished checkpoint. Of each key, the base table has the newest version at or below it that was not late.
    checkpointed: Timestamp,
    running: Option<RunningCheckpoint>,
    /// What the base table had when it was at these watermarks.
    kept: BTreeMap<Timestamp, Box<dyn BaseTable>>,
    /// About how much memory the versions take that should be in the base table by now.
    overdue_bytes: usize,
    /// How much has come into memory since the last sync.
    added_bytes: usize,
    next_checkpoint: CheckpointNumber,
    /// Why the store is closed.
    closed: Option<String>,
    statistics: Statistics,
}

/// The memory of an entry and its word in the index.
pub(crate) const ENTRY_BYTES: usize = 112;
/// How many entries the clock hand passes, while the cache is full, for each entry's worth of memory that is added.
const SWEEP_STEP: usize = 16;

impl<M: StorageBackend> Store<M> {
    /// Opens what `backend` holds. Then [`Store::replay`] must be called until it has nothing more.
    ///
    /// # Errors
    /// When the backend fails, or its data are damaged, another owner's, or of a newer format.
    pub fn open(mut backend: M, options: Options) -> Result<Self, StoreError> {
        let journal = Journal::open(&mut backend, options.segment_bytes_max)?;
        let watermark = backend.watermark()?.unwrap_or(Timestamp::ZERO);
        backend.opened()?;
        Ok(Self::new(backend, journal, watermark, options))
    }

    /// The same store, with a `K` for each key.
    ///
    /// # Panics
    /// When the store was used after it was opened.
    #[must_use]
    pub fn with_key_meta<K: KeyMeta>(self) -> Store<M, K> {
        assert!(self.table.is_empty() && !self.journal.is_replayed(), "a store is marked from its beginning");
        Store::new(self.backend, self.journal, self.watermark, self.options)
    }
}

impl<M: StorageBackend, K: KeyMeta> Store<M, K> {
    fn new(backend: M, journal: Journal, watermark: Timestamp, options: Options) -> Self {
        Self {
            backend,
            journal,
            options,
            table: Table::default(),
            unflushed: Unflushed::default(),
            new_keys: BTreeSet::new(),
            late_keys: Vec::new(),
            replaced: BTreeMap::new(),
            deleted: DeletedRanges::new(options.deleted_keys_min),
            meta_expired_below: Timestamp::ZERO,
            rows_bytes: 0,
            sweep_due: 0,
            watermark,
            checkpointed: watermark,
            running: None,
            kept: BTreeMap::new(),
            overdue_bytes: 0,
            added_bytes: 0,
            next_checkpoint: 1,
            closed: None,
            statistics: Statistics::default(),
        }
    }

    /// The next batch of records that an earlier process made durable; nothing at the end.
    ///
    /// The caller commits again what these records committed. The sync of the last batch may never have been confirmed;
    /// the batch is durable now.
    ///
    /// # Errors
    /// When the backend fails or the journal is damaged.
    pub fn replay(&mut self) -> Result<Option<Batch>, StoreError> {
        self.check_open()?;
        let result = self.journal.replay(&mut self.backend);
        if self.journal.is_replayed() {
            let firsts = self.unflushed.firsts().map(|id| self.table.entry(id).key.clone());
            self.new_keys = firsts.chain(self.unflushed.listed()).collect();
            self.added_bytes = 0; // Nobody has written this now.
        }
        self.close_on_error(result)
    }

    /// Appends a record to what the next [`Store::sync`] makes durable.
    pub fn append(&mut self, record: &[u8]) {
        self.append_with(|out| out.extend_from_slice(record));
    }

    /// Appends a record that `encode` appends to the buffer it is given.
    ///
    /// # Panics
    /// When the record is longer than [`crate::RECORD_BYTES_MAX`], or `encode` removed what was there.
    pub fn append_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.journal.is_replayed(), "a journal is replayed to its end before it is written");
        self.journal.append_with(encode);
        self.statistics.records += 1;
    }

    /// Whether there are records that are not durable yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.journal.is_pending()
    }

    /// Makes all appended records durable with one write and one sync; does nothing when there are none. While much is
    /// [overdue](Store::expect_checkpointed), it waits a moment.
    ///
    /// # Errors
    /// When the backend fails. Nobody knows then what is durable, so the store closes.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.check_open()?;
        if !self.journal.is_pending() {
            return Ok(());
        }
        let result = self.journal.sync(&mut self.backend);
        let (batches, bytes) = self.close_on_error(result)?;
        self.statistics.batches += batches;
        self.statistics.journal_bytes_written += bytes;
        let waited = self.backend.pace(std::mem::take(&mut self.added_bytes), self.overdue_bytes);
        self.statistics.paced_us += u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Whether rows that were checkpointed were given up, as they could not be read: some keys are lacking, or have older versions. It is so for every process, until one
    /// has taken them over from others and [says so](Store::forget_lost_rows).
    #[must_use]
    pub fn has_lost_rows(&self) -> bool {
        self.backend.has_lost_rows()
    }

    /// What was lost was taken over. What was appended for that is made durable first.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn forget_lost_rows(&mut self) -> Result<(), StoreError> {
        self.sync()?;
        self.backend.forget_lost_rows()
    }

    /// About how many keys were checkpointed: one that was written anew may count for each time. 0 where nobody knows.
    #[must_use]
    pub fn rows_about(&self) -> u64 {
        self.backend.rows_about()
    }

    /// How many batches the journal has had, durably, since the store was made.
    #[must_use]
    pub fn journal_batches(&self) -> u64 {
        self.journal.batches()
    }

    /// What is said of data that are an older copy.
    #[must_use]
    pub fn older_copy(&self) -> StoreError {
        StoreError::OlderCopy { location: self.backend.location(), batches: self.journal_batches() }
    }

    /// Makes all appended records durable, and notes that there are no more: the next process takes a last batch that is not whole for
    /// damage, and not for one that a crash has torn.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.sync()?;
        self.closed = Some("it was stopped".to_owned());
        self.journal.close(&mut self.backend)
    }

    /// Adds a committed version. It is durable as soon as its record in the journal is. Adding it again changes
    /// nothing, not even after it was checkpointed.
    pub fn commit(&mut self, key: &Key, version: Version) {
        self.commit_with_meta(key, version.as_ref(), |_| {});
    }

    /// [Adds](Store::commit) a copy of a version and changes the key's `K`.
    pub fn commit_with_meta(&mut self, key: &Key, version: VersionRef<'_>, change: impl FnOnce(&mut K)) {
        let id = self.table.find_or_make(key);
        change(&mut self.table.entry_mut(id).meta);
        self.commit_at(id, version);
        self.table.remove_if_empty(id);
        self.evict();
    }

    fn commit_at(&mut self, id: EntryId, version: VersionRef<'_>) {
        let late_for = (version.timestamp <= self.watermark).then_some(self.next_checkpoint);
        let entry = self.table.entry_mut(id);
        self.deleted.split_at(&entry.key);
        let before = size(entry);
        let has_row = entry.versions.has_row(self.checkpointed);
        let is_new = !has_row && !entry.versions.is_unflushed(self.checkpointed);
        if has_row && late_for.is_none() && entry.versions.are_few() {
            // The few that read before this version find the row in the base table.
            entry.versions.forget_checkpointed(self.checkpointed);
            entry.is_complete &= broken(Mutant::RowStillKnown);
        } else {
            entry.versions.trim(self.checkpointed);
        }
        if entry.versions.insert(version, late_for) {
            let before = self.unflushed.size().memory;
            let value_memory = version.value.map_or(0, |value| value_memory(value.len()));
            // A late one leaves its entry where the base table turns out to have it.
            self.unflushed.push(id, version.timestamp, value_memory, is_new && late_for.is_none());
            if is_new && late_for.is_some() {
                self.unflushed.list(version.timestamp, entry.key.clone());
            }
            self.added_bytes += self.unflushed.size().memory - before;
            if is_new && self.journal.is_replayed() {
                self.new_keys.insert(entry.key.clone());
            }
            if late_for.is_some() {
                keeping::let_go(&mut self.kept, &entry.key, version.timestamp);
                if self.late_keys.last() != Some(&entry.key) {
                    self.late_keys.push(entry.key.clone());
                }
            }
        }
        let after = size(entry);
        self.resize(before, after);
    }

    /// Puts `version` in the place of one of the same key and timestamp, which is wrong: in memory at once, and in the base table with the next
    /// checkpoint that takes it. Gives `false` where there is no such version, or it is the same. Its record in the journal is the caller's to append.
    ///
    /// # Errors
    /// When the base table fails.
    pub fn replace(&mut self, key: &Key, version: &Version) -> Result<bool, StoreError> {
        self.check_open()?;
        let held = |store: &Self| store.table.find(key).filter(|id| store.table.entry(*id).versions.at(version.timestamp).is_some());
        let id = match held(self) {
            Some(id) => id,
            None => {
                self.read_base_table(key)?;
                let Some(id) = held(self) else { return Ok(false) };
                id
            }
        };
        let entry = self.table.entry_mut(id);
        let before = size(entry);
        if !entry.versions.replace(version) {
            return Ok(false);
        }
        self.deleted.split_at(key);
        self.kept.retain(|at, _| *at < version.timestamp);
        let after = size(entry);
        self.resize(before, after);
        self.replaced.insert(key.detached(), version.clone());
        Ok(true)
    }

    /// What the base table's row of `key` of that time should be, if it is not.
    pub(crate) fn replacing(&self, key: &Key, timestamp: Timestamp) -> Option<&Version> {
        let replaced = if self.replaced.is_empty() { None } else { self.replaced.get(key) };
        replaced.filter(|version| version.timestamp == timestamp)
    }

    /// Prefetches the entries of `keys`, which are about to be read or written, into the CPU's caches. It has no other effect.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        self.table.prefetch(keys);
    }

    /// The same of keys that are about to be read. Of those that have no entry, and that `from_disk` holds of, the disk reads the rows meanwhile, all of
    /// them at once.
    pub fn prefetch_to_read<'a>(&self, keys: impl Iterator<Item = &'a Key>, from_disk: impl Fn(&Key) -> bool) {
        self.read_ahead(self.table.prefetch(keys), from_disk);
    }

    /// The same, where the newest value of each is about to be read, too.
    pub fn prefetch_values<'a>(&self, keys: impl Iterator<Item = &'a Key>, from_disk: impl Fn(&Key) -> bool) {
        self.read_ahead(self.table.prefetch_values(keys), from_disk);
    }

    fn read_ahead(&self, mut absent: Absent<'_>, from_disk: impl Fn(&Key) -> bool) {
        absent.retain(|key| from_disk(key));
        if !absent.is_empty() {
            self.backend.read_ahead(&absent);
        }
    }

    /// The `K` of `key`.
    pub fn meta(&self, key: &Key) -> Option<&K> {
        self.table.find(key).map(|id| &self.table.entry(id).meta)
    }

    /// Changes the `K` of `key`, whose entry stays in memory while that is not empty.
    pub fn update_meta(&mut self, key: &Key, change: impl FnOnce(&mut K)) {
        let id = self.table.find_or_make(key);
        change(&mut self.table.entry_mut(id).meta);
        self.table.remove_if_empty(id);
    }

    /// What is kept with keys of times below this counts no more. It [goes](KeyMeta::expire) with [`Store::expire_some`], or when the cache looks for
    /// room; whoever changes a `K` may let it go before.
    pub fn expire_meta_below(&mut self, below: Timestamp) {
        self.meta_expired_below = self.meta_expired_below.max(below);
    }

    /// How many keys are in memory.
    #[must_use]
    pub fn keys_in_memory(&self) -> usize {
        self.table.len()
    }

    /// The most that were there at once.
    #[must_use]
    pub fn keys_in_memory_max(&self) -> usize {
        self.table.made()
    }

    /// Looks at so many entries, from where the last call has ended, and lets go what is kept with their keys and counts no more.
    pub fn expire_some(&mut self, at_most: usize) {
        self.table.expire_some(at_most, self.meta_expired_below);
    }

    /// What is kept with keys of times below this is let go by and by.
    #[must_use]
    pub fn meta_expired_below(&self) -> Timestamp {
        self.meta_expired_below
    }

    /// Changes the `K` of `key`, if the key is in memory.
    pub fn update_meta_if_present(&mut self, key: &Key, change: impl FnOnce(&mut K)) {
        if let Some(id) = self.table.find(key) {
            change(&mut self.table.entry_mut(id).meta);
            self.table.remove_if_empty(id);
        }
    }

    /// The newest version of `key` older than `before`, a deletion too. Nothing when there is none.
    ///
    /// # Errors
    /// When the base table fails, and [`StoreError::BelowWatermark`] when a checkpoint has removed the version asked for.
    pub fn latest_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Version>, StoreError> {
        self.with_latest_before(key, before, |newest, _| newest.map(VersionRef::to_version))
    }

    /// When the newest version of `key` older than `before` was written. Nothing when there is none.
    ///
    /// # Errors
    /// As [`Store::latest_before`].
    pub fn latest_timestamp_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.with_latest_before(key, before, |newest, _| newest.map(|version| version.timestamp))
    }

    /// Calls `look` with the newest version of `key` older than `before`, if there is one, and the key's `K`.
    ///
    /// # Errors
    /// As [`Store::latest_before`].
    pub fn with_latest_before<T>(
        &mut self,
        key: &Key,
        before: Timestamp,
        look: impl FnOnce(Option<VersionRef<'_>>, &K) -> T,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let known = self.table.find(key).filter(|id| self.table.entry(*id).newest_before(before).is_some());
        let id = match known {
            Some(id) => id,
            None => self.read_base_table(key)?,
        };
        let (checkpointed, watermark, entry) = (self.checkpointed, self.watermark, self.table.entry_mut(id));
        entry.is_referenced |= known.is_some();
        // Versions older than the base table's row may be evicted already.
        if before <= watermark && entry.versions.newest_checkpointed(watermark).is_some_and(|row| row.timestamp >= before) {
            return Err(StoreError::BelowWatermark { before, watermark });
        }
        let found = entry.newest_before(before).flatten();
        if known.is_some() && found.is_none_or(|version| version.timestamp <= checkpointed) {
            self.statistics.cache_hits += 1;
        }
        Ok(look(found, &entry.meta))
    }

    /// Reads the base table's row of `key`, or that there is none, into memory.
    fn read_base_table(&mut self, key: &Key) -> Result<EntryId, StoreError> {
        let read = self.backend.get(key);
        let bytes = read.as_ref().map_or(0, |row| row.as_ref().map_or(0, |row| row.len()));
        let row = read.and_then(|row| row.map(|row| row::decode(key, &row).map(VersionRef::to_version)).transpose());
        let row = self.close_on_error(row)?.map(|row| self.replacing(key, row.timestamp).cloned().unwrap_or(row));
        self.statistics.base_table_reads += 1;
        self.statistics.base_table_read_bytes += bytes as u64;
        self.evict();
        let id = self.table.find_or_make(key);
        let entry = self.table.entry_mut(id);
        let before = size(entry);
        entry.is_complete = true;
        if let Some(row) = row {
            entry.versions.insert(row.as_ref(), None);
        }
        let after = size(entry);
        self.resize(before, after);
        Ok(id)
    }

    /// Accounts for an entry whose size has changed. Growth makes the next eviction pass more entries.
    fn resize(&mut self, before: usize, after: usize) {
        self.rows_bytes = self.rows_bytes + after - before;
        self.sweep_due += if after > before { SWEEP_STEP * (1 + (after - before) / ENTRY_BYTES) } else { 0 };
    }

    /// How much memory keys take, and versions that are also in the base table.
    fn cache_bytes(&self) -> usize {
        // Unflushed versions of the running checkpoint may be in the base table already, and evicted here.
        self.rows_bytes.saturating_sub(self.unflushed.size().value_memory)
    }

    /// Evicts checkpointed versions with CLOCK, when the cache is full: those of entries not read since the clock hand last passed.
    /// Entry ids found before are invalid afterwards.
    fn evict(&mut self) {
        for _ in 0..std::mem::take(&mut self.sweep_due) {
            let Some(id) = self.table.advance_clock_hand().filter(|_| self.cache_bytes() > self.options.cache_bytes_max) else { return };
            let entry = self.table.entry_mut(id);
            let before = size(entry);
            let has_meta = !entry.meta.is_empty();
            entry.meta.expire(self.meta_expired_below);
            if before == 0 {
                if has_meta {
                    self.table.remove_if_empty(id);
                }
                continue;
            }
            // First the versions that nobody can read any more.
            entry.versions.trim(self.checkpointed);
            let is_trimmed = size(entry) < before;
            if !std::mem::take(&mut entry.is_referenced) && !is_trimmed {
                entry.versions.forget_checkpointed(if broken(Mutant::UnflushedEvicted) { self.watermark } else { self.checkpointed });
                entry.is_complete = false;
            }
            self.rows_bytes -= before - size(entry);
            self.table.remove_if_empty(id);
        }
    }

    /// Nobody may read at or below it: of each key, a checkpoint keeps or is about to keep only the newest version there.
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.watermark
    }

    /// Whether the journal was replayed to its end.
    pub(crate) fn is_replayed(&self) -> bool {
        self.journal.is_replayed()
    }

    /// Whether a page up to `up_to` can be told.
    pub(crate) fn check_page(&self, up_to: Timestamp) -> Result<(), StoreError> {
        self.check_open()?;
        if up_to < self.watermark {
            return Err(StoreError::BelowWatermark { before: up_to, watermark: self.watermark });
        }
        Ok(())
    }

    /// The base table as it is now.
    pub(crate) fn base_table(&self) -> Box<dyn BaseTable> {
        self.backend.base_table()
    }

    /// The keys in `range` that have versions and that the base table may lack.
    pub(crate) fn new_keys(&self, range: (Bound<&Key>, Bound<&Key>)) -> impl DoubleEndedIterator<Item = &Key> {
        self.new_keys.range::<Key, _>(range)
    }

    /// The version of `key` of that time, if it is in memory.
    #[must_use]
    pub fn version_at(&self, key: &Key, timestamp: Timestamp) -> Option<VersionRef<'_>> {
        self.table.find(key).and_then(|id| self.table.entry(id).versions.at(timestamp))
    }

    /// The newest version of `key` in memory at or below `up_to`.
    pub(crate) fn in_memory(&self, key: &Key, up_to: Timestamp) -> Option<VersionRef<'_>> {
        self.table.find(key).and_then(|id| self.table.entry(id).versions.newest_up_to(up_to))
    }

    /// Whether no version of `key` is newer than the one of `timestamp`, which there is.
    pub(crate) fn is_newest(&self, key: &Key, timestamp: Timestamp) -> bool {
        let newest = self.table.find(key).and_then(|id| self.table.entry(id).versions.newest());
        newest.is_none_or(|newest| newest.timestamp <= timestamp) || broken(Mutant::NewerPassed)
    }

    /// Begins a new segment of the journal and returns its number. All records not yet durable go there. Older segments
    /// can be released when they are no longer needed.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn rotate(&mut self) -> Result<SegmentNumber, StoreError> {
        self.check_open()?;
        let result = self.journal.rotate(&mut self.backend);
        self.close_on_error(result)
    }

    /// Releases the segments up to `through`, which are not needed after a crash. The segment being written always stays.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn release(&mut self, through: SegmentNumber) -> Result<(), StoreError> {
        self.check_open()?;
        let result = self.journal.release(&mut self.backend, through);
        self.close_on_error(result)
    }

    /// The segment being written.
    #[must_use]
    pub fn current_segment(&self) -> SegmentNumber {
        self.journal.current()
    }

    /// The journal's segments, oldest first, with the bytes in use in each.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentNumber, u64)> + '_ {
        self.journal.segments()
    }

    /// How many bytes of the journal are in use.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        self.segments().map(|(_, bytes)| bytes).sum()
    }

    /// About how much memory the versions take that are in memory only.
    #[must_use]
    pub fn memtable_bytes(&self) -> usize {
        self.unflushed.size().memory
    }

    /// What the store has done and what it holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            memtable_versions: self.unflushed.size().versions,
            memtable_bytes: self.unflushed.size().memory,
            overdue_bytes: self.overdue_bytes,
            cache_bytes: self.cache_bytes() as u64,
            journal_bytes: self.journal_bytes(),
            kept_moments: self.kept.len(),
            ..self.statistics
        }
    }

    /// How many bytes of rows reads have found in the base table since the store was opened.
    #[must_use]
    pub fn base_table_read_bytes(&self) -> u64 {
        self.statistics.base_table_read_bytes
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match &self.closed {
            None => Ok(()),
            Some(reason) => Err(StoreError::Closed(reason.clone())),
        }
    }

    /// Closes the store when `result` is an error.
    fn close_on_error<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.closed = Some(error.to_string());
        }
        result
    }
}

/// How much memory an entry's versions take.
fn size<K: KeyMeta>(entry: &Entry<K>) -> usize {
    if entry.versions.is_empty() && !entry.is_complete { 0 } else { ENTRY_BYTES + entry.key.as_bytes().len() + entry.versions.memory() }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Direction, Value};

    use super::checkpoints::NEW_KEY_COST;
    use super::*;
    use crate::Memory;
    use crate::PageLimits;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn numbered(number: u64) -> Key {
        Key::from(format!("{number:06}").as_str())
    }

    #[test]
    fn a_checkpoint_ends_in_as_many_steps_as_its_keys_take_however_many_others_are_new() {
        const LATER: u64 = 1 << 40;
        /// So many new keys are a step of what is done for new keys alone.
        const STEP_KEYS: usize = 8_192 / NEW_KEY_COST;
        let options = Options { checkpoint_step: 8_192, ..Options::default() };
        let mut store = Store::open(Memory::new("ledger"), options).expect("a new store opens");
        assert!(store.replay().expect("it is new").is_none());
        for number in 0..40 * STEP_KEYS as u64 {
            let time = if number < STEP_KEYS as u64 { number + 1 } else { LATER + number };
            store.commit(&numbered(number), Version { timestamp: at(time), value: Some(Value::from("v")) });
        }
        for (watermark, steps_max, left) in [(at(LATER / 2), 3, 39 * STEP_KEYS), (at(2 * LATER), 39 + 2 * 6, 0)] {
            assert!(store.begin_checkpoint(watermark).expect("memory does not fail"));
            let steps = (1..).find(|_| store.checkpoint_finished().expect("memory does not fail").is_some());
            assert!(steps.is_some_and(|steps| steps <= steps_max), "{steps:?} steps");
            assert_eq!(store.new_keys.len(), left);
        }
    }

    #[test]
    fn a_checkpoint_leaves_only_the_newest_version_of_each_key_that_it_has_written() {
        let of = |times: &[u64]| {
            let mut store = Store::open(Memory::new("ledger"), Options::default()).expect("a new store opens");
            assert!(store.replay().expect("it is new").is_none());
            for (number, time) in (0..3_000).flat_map(|number| times.iter().map(move |time| (number, *time))) {
                store.commit(&numbered(number), Version { timestamp: at(time), value: Some(Value::from("v")) });
            }
            assert!(store.begin_checkpoint(at(60)).expect("memory does not fail"));
            while store.checkpoint_finished().expect("memory does not fail").is_none() {}
            store
        };
        let (mut once, mut often) = (of(&[50]), of(&[5, 6, 50]));
        assert_eq!(often.statistics().cache_bytes, once.statistics().cache_bytes);
        assert_eq!(seen(&mut often), seen(&mut once));
        let newer = of(&[5, 6, 50, 70]);
        let kept = newer.table.find(&numbered(7)).map(|id| &newer.table.entry(id).versions).expect("it is in memory");
        assert!([50, 70].iter().all(|time| kept.at(at(*time)).is_some()) && kept.at(at(6)).is_none());
    }

    #[test]
    fn a_key_that_is_written_again_leaves_its_row_to_the_base_table() {
        let mut store = Store::open(Memory::new("ledger"), Options::default()).expect("a new store opens");
        assert!(store.replay().expect("it is new").is_none());
        let version = |time| Version { timestamp: at(time), value: Some(Value::from("v")) };
        let write = |store: &mut Store<Memory>, time| {
            store.commit(&numbered(1), version(time));
            store.statistics().cache_bytes
        };
        let once = write(&mut store, 10);
        assert!(store.begin_checkpoint(at(20)).expect("memory does not fail"));
        while store.checkpoint_finished().expect("memory does not fail").is_none() {}
        assert_eq!((write(&mut store, 30), store.statistics().base_table_reads), (once, 0));
        let mut read = |before| {
            let found = store.latest_before(&numbered(1), at(before)).expect("memory does not fail");
            (found.map(|version| version.timestamp.time), store.statistics().base_table_reads)
        };
        assert_eq!([40, 25, 26, 40].map(&mut read), [(Some(30), 0), (Some(10), 1), (Some(10), 1), (Some(30), 1)]);
        // A version that comes late stands for nothing that the base table has.
        store.commit(&numbered(1), version(5));
        store.commit(&numbered(1), version(50));
        let mut read =
            |before| store.latest_before(&numbered(1), at(before)).expect("memory does not fail").map(|found| found.timestamp.time);
        assert_eq!([60, 45, 25].map(&mut read), [Some(50), Some(30), Some(10)]);
    }

    /// What is kept with a key, each with its time.
    #[derive(Default)]
    struct Times(Vec<Timestamp>);

    impl KeyMeta for Times {
        fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        fn expire(&mut self, below: Timestamp) {
            self.0.retain(|time| *time >= below);
        }
    }

    #[test]
    fn what_has_expired_is_let_go_step_by_step_or_for_room() {
        let kept = |store: &Store<Memory, Times>| [0, 1, 2, 3].map(|number| store.meta(&numbered(number)).map(|times| times.0.len()));
        let expired = || {
            let options = Options { cache_bytes_max: 0, ..Options::default() };
            let mut store = Store::open(Memory::new("ledger"), options).expect("a new store opens").with_key_meta::<Times>();
            assert!(store.replay().expect("it is new").is_none());
            store.expire_some(9);
            for number in 0..4 {
                store.update_meta(&numbered(number), |times| times.0.extend([at(10), at(20 + 30 * (number % 2))]));
            }
            store.expire_meta_below(at(30));
            store.expire_meta_below(at(3));
            assert_eq!(kept(&store), [Some(2); 4], "nobody has looked");
            store
        };
        let mut store = expired();
        store.expire_some(2);
        assert_eq!(kept(&store), [None, Some(1), Some(2), Some(2)]);
        store.expire_some(100);
        assert_eq!(kept(&store), [None, Some(1), None, Some(1)]);
        store.expire_meta_below(at(60));
        (0..3).for_each(|_| store.expire_some(3));
        assert_eq!(kept(&store), [None; 4]);
        let mut store = expired();
        (10..20).for_each(|number| store.commit(&numbered(number), Version { timestamp: at(60), value: Some(Value::from("v")) }));
        assert_eq!(kept(&store), [None, Some(1), None, Some(1)], "the clock hand has passed them all");
    }

    /// The version of the first key, in memory, from the base table, and as it is compared.
    fn seen(store: &mut Store<Memory>) -> [Version; 2] {
        let read = store.latest_before(&numbered(1), at(1 << 40)).expect("memory does not fail").expect("it is there");
        let limits = PageLimits { keys: 9, bytes: 99 };
        let page = store.page((&Key::default(), None), Direction::Ascending, at(1 << 40), limits).expect("memory does not fail");
        [read, page.versions[0].1.clone()]
    }

    #[test]
    fn a_version_that_is_replaced_is_the_same_from_memory_and_from_the_base_table_before_and_after_a_checkpoint() {
        let version = |time, text: &str| Version { timestamp: at(time), value: Some(Value::from(text)) };
        for (is_checkpointed, replaced_while_one_runs) in [(false, false), (true, false), (true, true), (false, true)] {
            let options = Options { cache_bytes_max: 0, ..Options::default() };
            let mut store = Store::open(Memory::new("ledger"), options).expect("a new store opens");
            assert!(store.replay().expect("it is new").is_none());
            let finish = |store: &mut Store<Memory>| while store.checkpoint_finished().expect("memory does not fail").is_none() {};
            store.commit(&numbered(1), version(5, "wrong"));
            store.commit(&numbered(2), version(50, "other"));
            if is_checkpointed {
                assert!(store.begin_checkpoint(at(10)).expect("memory does not fail"));
                finish(&mut store);
            }
            if replaced_while_one_runs {
                assert!(store.begin_checkpoint(at(20)).expect("memory does not fail"));
            }
            assert!(!store.replace(&numbered(1), &version(6, "right")).expect("memory does not fail"), "there is none");
            assert!(!store.replace(&numbered(1), &version(5, "wrong")).expect("memory does not fail"), "it is the same");
            assert!(!store.replace(&numbered(3), &version(5, "right")).expect("memory does not fail"), "there is no such key");
            assert!(store.replace(&numbered(1), &version(5, "right")).expect("memory does not fail"));
            assert_eq!(seen(&mut store), [version(5, "right"), version(5, "right")]);
            if replaced_while_one_runs {
                finish(&mut store);
            }
            for (more, watermark) in [(3, 40), (4, 60), (5, 70)] {
                // Others come in, so that it is evicted.
                store.commit(&numbered(more), version(1_000 + more, "more"));
                assert_eq!(seen(&mut store), [version(5, "right"), version(5, "right")]);
                assert!(store.begin_checkpoint(at(watermark)).expect("memory does not fail"));
                finish(&mut store);
            }
            assert!(store.replaced.is_empty(), "the base table has it");
            assert_eq!(seen(&mut store), [version(5, "right"), version(5, "right")]);
        }
    }

    #[test]
    fn a_key_whose_late_version_was_evicted_is_listed_until_its_newer_one_is_checkpointed() {
        let options = Options { cache_bytes_max: 0, ..Options::default() };
        let mut store = Store::open(Memory::new("ledger"), options).expect("a new store opens");
        assert!(store.replay().expect("it is new").is_none());
        let finish = |store: &mut Store<Memory>, watermark| {
            assert!(store.begin_checkpoint(watermark).expect("memory does not fail"));
            while store.checkpoint_finished().expect("memory does not fail").is_none() {}
        };
        finish(&mut store, at(100));
        // Late, and then a newer one, so that the key is listed with the first alone.
        for time in [50, 300] {
            store.commit(&numbered(1), Version { timestamp: at(time), value: Some(Value::from("v")) });
        }
        finish(&mut store, at(200));
        assert_eq!(store.new_keys.len(), 1, "nothing shows that the base table has it");
        finish(&mut store, at(400));
        assert!(store.new_keys.is_empty());
    }
}
