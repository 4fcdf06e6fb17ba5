//! The store: a journal, a table of keys and a base behind one owner.

use types::mutant::{Mutant, broken};
use types::{Key, Timestamp};

use crate::journal::Journal;
use crate::table::{Marks, Place, Slot, Table};
use crate::unfolded::{Unfolded, Weight};
use crate::versions::FoldNumber;
use crate::{Batch, Fold, Medium, SegmentNumber, StoreError, Version, row};

/// How much memory and how large steps a store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment of the journal is full at this size; [`Store::rotate`] may begin another before.
    pub segment_bytes_max: u64,
    /// About how much memory keys and those of their versions may take that the base has too. What is in memory alone is not counted.
    pub cache_bytes_max: usize,
    /// About how many versions one fold takes. It goes into the base as a table of its own, so larger folds make merging cheaper.
    pub fold_versions_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes_max: 16 << 20, cache_bytes_max: 32 << 20, fold_versions_max: 65_536 }
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
    /// Folds finished.
    pub folds: u64,
    /// Versions they took.
    pub versions_folded: u64,
    /// Reads that memory answered with what the base has too.
    pub cache_hits: u64,
    /// Reads that went to the base.
    pub base_reads: u64,
    /// Versions that are in memory alone now.
    pub overlay_versions: usize,
    /// About how much memory they take.
    pub overlay_bytes: usize,
    /// About how much memory keys take, and those of their versions that the base has too.
    pub cache_bytes: u64,
    /// Bytes of the journal in use now.
    pub journal_bytes: u64,
}

/// The store. See the crate's story for what it promises. With each key it keeps `K`, whatever its user wants to find there.
///
/// # Panics
/// Every method that writes, when the journal was not replayed to its end first.
pub struct Store<M: Medium, K: Marks = ()> {
    medium: M,
    journal: Journal,
    options: Options,
    table: Table<K>,
    unfolded: Unfolded,
    /// The keys of those of them that were committed at or below the watermark of their time.
    late_keys: Vec<Key>,
    /// What the slots weigh that hold versions, or know that there is none.
    rows_weight: usize,
    /// How many slots the hand is to go over, if there is no room.
    sweep_due: usize,
    /// Nobody reads at or below it. While a fold runs, that fold's.
    watermark: Timestamp,
    /// The last finished fold's: what is at or below it, and not late, is in the base, or a newer one is.
    folded: Timestamp,
    folding: Option<Folding>,
    next_fold: FoldNumber,
    /// Why the store is closed.
    closed: Option<String>,
    statistics: Statistics,
}

/// A fold that runs in the background, or is done and being cleaned up after.
struct Folding {
    number: FoldNumber,
    /// What it takes.
    taken: Weight,
    /// The keys of which it takes late versions, and that have not been looked after yet.
    late_keys: Vec<Key>,
    is_done: bool,
}

/// How many keys with late versions are looked after at once when a fold is done: it bounds the pause.
const LATE_STEP: usize = 1_024;
/// What a slot takes in memory, and its place in the index.
const SLOT_BYTES: usize = 272;
/// How many slots the hand looks at, while there is no room, for each one's worth of memory that is filled.
const SWEEP_STEP: usize = 16;

impl<M: Medium> Store<M> {
    /// Opens what `medium` holds. Then [`Store::replay`] must be called until it has nothing more.
    ///
    /// # Errors
    /// When the medium fails, or holds what cannot be used: damaged, foreign or too new.
    pub fn open(mut medium: M, options: Options) -> Result<Self, StoreError> {
        let journal = Journal::open(&mut medium, options.segment_bytes_max)?;
        let watermark = medium.watermark()?.unwrap_or(Timestamp::ZERO);
        medium.opened()?;
        Ok(Self::new(medium, journal, watermark, options))
    }

    /// The same store, for a user who keeps `K` with each key.
    ///
    /// # Panics
    /// When it has been used: it must just have been opened.
    #[must_use]
    pub fn marked<K: Marks>(self) -> Store<M, K> {
        assert!(self.table.is_empty() && !self.journal.is_replayed(), "a store is marked from its beginning");
        Store::new(self.medium, self.journal, self.watermark, self.options)
    }
}

impl<M: Medium, K: Marks> Store<M, K> {
    fn new(medium: M, journal: Journal, watermark: Timestamp, options: Options) -> Self {
        Self {
            medium,
            journal,
            options,
            table: Table::default(),
            unfolded: Unfolded::default(),
            late_keys: Vec::new(),
            rows_weight: 0,
            sweep_due: 0,
            watermark,
            folded: watermark,
            folding: None,
            next_fold: FoldNumber::MIN,
            closed: None,
            statistics: Statistics::default(),
        }
    }

    /// The next batch of records that an earlier process made durable; nothing at the end.
    ///
    /// What it committed must be committed again here. The last batch may be one whose sync was never confirmed:
    /// it is durable now.
    ///
    /// # Errors
    /// When the medium fails or the journal is damaged.
    pub fn replay(&mut self) -> Result<Option<Batch>, StoreError> {
        self.check_open()?;
        let result = self.journal.replay(&mut self.medium);
        self.close_on_error(result)
    }

    /// Appends a record to what the next [`Store::sync`] makes durable.
    pub fn append(&mut self, record: &[u8]) {
        self.append_with(|out| out.extend_from_slice(record));
    }

    /// Appends a record that `encode` writes straight behind what is in the buffer it is given.
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

    /// Makes all appended records durable with one write and one sync; does nothing when there are none.
    ///
    /// # Errors
    /// When the medium fails. Nobody knows then what is durable, so the store closes.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.check_open()?;
        if !self.journal.is_pending() {
            return Ok(());
        }
        let result = self.journal.sync(&mut self.medium);
        let (batches, bytes) = self.close_on_error(result)?;
        self.statistics.batches += batches;
        self.statistics.journal_bytes_written += bytes;
        Ok(())
    }

    /// Adds a committed version. It is durable when the record that tells of it is. Adding it again changes
    /// nothing; neither does adding it after it was folded.
    pub fn commit(&mut self, key: &Key, version: Version) {
        self.commit_marked(key, version, |_| {});
    }

    /// [Adds](Store::commit) a version, and changes what is kept with its key.
    pub fn commit_marked(&mut self, key: &Key, version: Version, change: impl FnOnce(&mut K)) {
        let place = self.table.find_or_make(key);
        change(&mut self.table.slot_mut(place).marks);
        self.commit_at(place, version);
        self.table.tidy(place);
        self.make_room();
    }

    fn commit_at(&mut self, place: Place, version: Version) {
        let late_for = (version.timestamp <= self.watermark).then_some(self.next_fold);
        // In a buffer of its own: it may be a slice of a whole frame.
        let version = Version { timestamp: version.timestamp, value: version.value.map(|value| value.detached()) };
        let slot = self.table.slot_mut(place);
        let before = weight(slot);
        slot.versions.trim(self.folded);
        let inserted = slot.versions.insert(version, late_for);
        if let Some(version) = inserted {
            self.unfolded.push(&slot.key, version);
            if late_for.is_some() && self.late_keys.last() != Some(&slot.key) {
                self.late_keys.push(slot.key.clone());
            }
        }
        let after = weight(slot);
        self.weigh(before, after);
    }

    /// Brings near what is known of `keys`, which are about to be read, marked or committed. Changes nothing but how long that takes.
    pub fn warm<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        self.table.warm(keys);
    }

    /// What is kept with `key`.
    pub fn marks(&self, key: &Key) -> Option<&K> {
        self.table.find(key).map(|place| &self.table.slot(place).marks)
    }

    /// Changes what is kept with `key`, which is in memory from now on.
    pub fn mark(&mut self, key: &Key, change: impl FnOnce(&mut K)) {
        let place = self.table.find_or_make(key);
        change(&mut self.table.slot_mut(place).marks);
        self.table.tidy(place);
    }

    /// Changes what is kept with `key`, if it is in memory. When nothing is left, it need not stay there.
    pub fn amend(&mut self, key: &Key, change: impl FnOnce(&mut K)) {
        if let Some(place) = self.table.find(key) {
            change(&mut self.table.slot_mut(place).marks);
            self.table.tidy(place);
        }
    }

    /// The newest version of `key` older than `before`, a deletion too. Nothing when there is none.
    ///
    /// # Errors
    /// When the base fails, and [`StoreError::BelowWatermark`] when only folded versions could tell.
    pub fn latest_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Version>, StoreError> {
        self.look_before(key, before, |newest, _| newest.cloned())
    }

    /// When the newest version of `key` older than `before` was written. Nothing when there is none.
    ///
    /// # Errors
    /// As [`Store::latest_before`].
    pub fn latest_timestamp_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.look_before(key, before, |newest, _| newest.map(|version| version.timestamp))
    }

    /// Looks at the newest version of `key` older than `before`, if there is one, and at what is kept with the key.
    ///
    /// # Errors
    /// As [`Store::latest_before`].
    pub fn look_before<T>(&mut self, key: &Key, before: Timestamp, look: impl FnOnce(Option<&Version>, &K) -> T) -> Result<T, StoreError> {
        self.check_open()?;
        let known = self.table.find(key).filter(|place| self.table.slot(*place).newest_before(before).is_some());
        let place = match known {
            Some(place) => place,
            None => self.read_base(key)?,
        };
        let (folded, watermark, slot) = (self.folded, self.watermark, self.table.slot_mut(place));
        slot.is_touched |= known.is_some();
        // Of what is older than the base's row, some may be forgotten.
        if before <= watermark && slot.versions.newest_settled(watermark).is_some_and(|row| row.timestamp >= before) {
            return Err(StoreError::BelowWatermark { before, watermark });
        }
        let found = slot.newest_before(before).flatten();
        if known.is_some() && found.is_none_or(|version| version.timestamp <= folded) {
            self.statistics.cache_hits += 1;
        }
        Ok(look(found, &slot.marks))
    }

    /// Brings the base's row of `key` into memory, or that there is none.
    fn read_base(&mut self, key: &Key) -> Result<Place, StoreError> {
        let read = self.medium.get(key).and_then(|bytes| bytes.map(|bytes| row::decode(key, bytes)).transpose());
        let row = self.close_on_error(read)?;
        self.statistics.base_reads += 1;
        self.make_room();
        let place = self.table.find_or_make(key);
        let slot = self.table.slot_mut(place);
        let before = weight(slot);
        slot.is_complete = true;
        if let Some(row) = row {
            slot.versions.insert(row, None);
        }
        let after = weight(slot);
        self.weigh(before, after);
        Ok(place)
    }

    /// A slot weighs something else now. The more is filled, the more the hand is to go over before the next.
    fn weigh(&mut self, before: usize, after: usize) {
        self.rows_weight = self.rows_weight + after - before;
        self.sweep_due += if after > before { SWEEP_STEP * (1 + (after - before) / SLOT_BYTES) } else { 0 };
    }

    /// How much memory keys take, and those of their versions that the base has too.
    fn cache_bytes(&self) -> usize {
        // Of what is to be folded, the base may have some already, and then it may be gone here.
        self.rows_weight.saturating_sub(self.unfolded.weight().value_bytes)
    }

    /// When there is no room, lets the hand go over some slots, and forget of each what the base has, if nobody has read it since it last
    /// passed. No place that was found before is good after it.
    fn make_room(&mut self) {
        for _ in 0..std::mem::take(&mut self.sweep_due) {
            let Some(place) = self.table.next_in_turn().filter(|_| self.cache_bytes() > self.options.cache_bytes_max) else { return };
            let slot = self.table.slot_mut(place);
            let before = weight(slot);
            if before == 0 {
                continue;
            }
            // First what nobody can read any more.
            slot.versions.trim(self.folded);
            let is_trimmed = weight(slot) < before;
            if !std::mem::take(&mut slot.is_touched) && !is_trimmed {
                slot.versions.forget_settled(if broken(Mutant::UnfoldedEvicted) { self.watermark } else { self.folded });
                slot.is_complete = false;
            }
            self.rows_weight -= before - weight(slot);
            self.table.tidy(place);
        }
    }

    /// Nobody may read at or below it: what is there is folded, or being folded, into its newest.
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.watermark
    }

    /// Begins to fold the versions up to `watermark` into the base, in the background. With many of them it
    /// takes only the oldest, and the watermark rises less; fold again when it is done. Records not yet durable
    /// are made so first. Says whether it began: not while another runs, nor when the watermark would not rise.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn fold(&mut self, watermark: Timestamp) -> Result<bool, StoreError> {
        self.check_open()?;
        assert!(self.journal.is_replayed(), "a fold before the end of replay would miss versions");
        if self.folding.is_some() || watermark <= self.watermark {
            return Ok(false);
        }
        // The base must never know what the journal may still forget.
        self.sync()?;
        let (reached, logs) = self.unfolded.take(self.watermark, watermark, self.options.fold_versions_max);
        let taken = Weight::of(&logs);
        let begun = self.medium.begin_fold(Fold::new(reached, self.watermark, logs));
        self.close_on_error(begun)?;
        let mut late_keys = std::mem::take(&mut self.late_keys);
        late_keys.sort_unstable();
        late_keys.dedup();
        self.folding = Some(Folding { number: self.next_fold, taken, late_keys, is_done: false });
        self.next_fold = self.next_fold.checked_add(1).expect("a process lives for fewer folds");
        self.watermark = reached;
        Ok(true)
    }

    /// Whether a fold runs.
    #[must_use]
    pub fn is_folding(&self) -> bool {
        self.folding.is_some()
    }

    /// Looks after the fold that runs, and gives its watermark when it has ended: the versions up to there that
    /// were committed before it began no longer need the journal.
    ///
    /// Each call does a bounded step of the cleaning up, so a fold takes several calls to end: one every few
    /// milliseconds, or at each turn, is right.
    ///
    /// # Errors
    /// When the fold failed.
    pub fn fold_finished(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.check_open()?;
        let Some(mut folding) = self.folding.take() else {
            return Ok(None);
        };
        if !folding.is_done {
            let done = self.medium.fold_done();
            folding.is_done = self.close_on_error(done)?;
            if !folding.is_done {
                self.folding = Some(folding);
                return Ok(None);
            }
            self.folded = self.watermark;
            self.unfolded.let_go(folding.taken);
            self.statistics.versions_folded += folding.taken.versions as u64;
        }
        let left = folding.late_keys.len().saturating_sub(LATE_STEP);
        for key in folding.late_keys.drain(left..) {
            let Some(place) = self.table.find(&key) else { continue };
            let slot = self.table.slot_mut(place);
            let before = weight(slot);
            slot.versions.caught_up(folding.number, self.folded, slot.is_complete);
            self.rows_weight -= before - weight(slot);
            self.table.tidy(place);
        }
        if left > 0 {
            self.folding = Some(folding);
            return Ok(None);
        }
        self.statistics.folds += 1;
        Ok(Some(self.watermark))
    }

    /// Begins a new segment of the journal, which takes all records not yet durable, and gives its number. What
    /// older segments hold can be released when it is no longer needed.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn rotate(&mut self) -> Result<SegmentNumber, StoreError> {
        self.check_open()?;
        let result = self.journal.rotate(&mut self.medium);
        self.close_on_error(result)
    }

    /// Gives up the segments up to `through`: nothing in them is needed after a crash. The one being written
    /// stays in any case.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn release(&mut self, through: SegmentNumber) -> Result<(), StoreError> {
        self.check_open()?;
        let result = self.journal.release(&mut self.medium, through);
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

    /// About how much memory the versions take that are in memory alone.
    #[must_use]
    pub fn overlay_bytes(&self) -> usize {
        self.unfolded.weight().memory
    }

    /// What the store has done and what it holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            overlay_versions: self.unfolded.weight().versions,
            overlay_bytes: self.unfolded.weight().memory,
            cache_bytes: self.cache_bytes() as u64,
            journal_bytes: self.journal_bytes(),
            ..self.statistics
        }
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

/// How much memory the rows of a slot take.
fn weight<K: Marks>(slot: &Slot<K>) -> usize {
    if slot.versions.is_empty() && !slot.is_complete { 0 } else { SLOT_BYTES + slot.key.as_bytes().len() + slot.versions.memory() }
}
