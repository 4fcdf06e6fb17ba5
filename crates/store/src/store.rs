//! The store: a journal, an overlay and a base behind one owner.

use types::mutant::{Mutant, broken};
use types::{Key, Timestamp};

use crate::cache::BaseCache;
use crate::journal::Journal;
use crate::overlay::Overlay;
use crate::{Batch, Fold, Medium, SegmentNumber, StoreError, Version, row};

/// How much memory and how large steps a store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A segment of the journal is full at this size; [`Store::rotate`] may begin another before.
    pub segment_bytes_max: u64,
    /// The memory for cached rows of the base.
    pub cache_bytes_max: usize,
    /// About how many versions one fold takes: it bounds the pause that beginning and ending a fold cost.
    pub fold_versions_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes_max: 16 << 20, cache_bytes_max: 32 << 20, fold_versions_max: 16_384 }
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
    /// Versions they took from the overlay, apart from those the base had newer.
    pub versions_folded: u64,
    /// Reads that the overlay could not answer alone, and the cache could.
    pub cache_hits: u64,
    /// Reads that went to the base.
    pub base_reads: u64,
    /// Versions in the overlay now.
    pub overlay_versions: usize,
    /// About how much memory they take.
    pub overlay_bytes: usize,
    /// About how much memory the cached rows take.
    pub cache_bytes: u64,
    /// Bytes of the journal in use now.
    pub journal_bytes: u64,
}

/// The store. See the crate's story for what it promises.
///
/// # Panics
/// Every method that writes, when the journal was not replayed to its end first.
pub struct Store<M: Medium> {
    medium: M,
    journal: Journal,
    overlay: Overlay,
    cache: BaseCache,
    /// Nobody reads at or below it. While a fold runs, that fold's.
    watermark: Timestamp,
    folding: Option<Folding>,
    fold_versions_max: usize,
    /// Why the store is closed.
    closed: Option<String>,
    statistics: Statistics,
}

/// A fold that runs in the background, or is done and being cleaned up after.
struct Folding {
    /// What leaves the overlay when it is done, ascending by timestamp.
    versions: Vec<Folded>,
    /// How many of them have left, once it is done.
    left: Option<usize>,
    /// Base rows are at or below it, apart from those being folded, which the overlay still has.
    watermark_before: Timestamp,
}

struct Folded {
    timestamp: Timestamp,
    key: Key,
    /// It was committed late, and the base has a newer one: it only leaves.
    is_outdated: bool,
}

/// How many versions leave the overlay at once after a fold: it bounds the pause.
const LEAVING_VERSIONS_MAX: usize = 1_024;

impl<M: Medium> Store<M> {
    /// Opens what `medium` holds. Then [`Store::replay`] must be called until it has nothing more.
    ///
    /// # Errors
    /// When the medium fails, or holds what cannot be used: damaged, foreign or too new.
    pub fn open(mut medium: M, options: Options) -> Result<Self, StoreError> {
        let journal = Journal::open(&mut medium, options.segment_bytes_max)?;
        let watermark = medium.watermark()?.unwrap_or(Timestamp::ZERO);
        medium.opened()?;
        Ok(Self {
            medium,
            journal,
            overlay: Overlay::default(),
            cache: BaseCache::new(options.cache_bytes_max),
            watermark,
            folding: None,
            fold_versions_max: options.fold_versions_max.max(1),
            closed: None,
            statistics: Statistics::default(),
        })
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
        self.overlay.insert(key, version);
    }

    /// The newest version of `key` older than `before`, a deletion too. Nothing when there is none.
    ///
    /// # Errors
    /// When the base fails, and [`StoreError::BelowWatermark`] when only folded versions could tell.
    pub fn latest_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Version>, StoreError> {
        self.find_before(key, before, Version::clone)
    }

    /// When the newest version of `key` older than `before` was written. Nothing when there is none.
    ///
    /// # Errors
    /// As [`Store::latest_before`].
    pub fn latest_timestamp_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.find_before(key, before, |version| version.timestamp)
    }

    fn find_before<T>(&mut self, key: &Key, before: Timestamp, take: impl Fn(&Version) -> T) -> Result<Option<T>, StoreError> {
        self.check_open()?;
        // Rows of the base are no newer than this, but for those of a running fold, which the overlay has too: as long as none
        // of them has left it.
        let running = self.folding.as_ref().filter(|folding| folding.left.is_none());
        let base_newest = running.map_or(self.watermark, |folding| folding.watermark_before);
        let in_overlay = self.overlay.latest_before(key, before).map(|version| (version.timestamp, take(version)));
        let in_overlay = match in_overlay {
            Some((timestamp, taken)) if timestamp > base_newest => return Ok(Some(taken)),
            older => older,
        };
        let watermark = self.watermark;
        let Some(row) = self.base_row(key)? else {
            return Ok(in_overlay.map(|(_, taken)| taken));
        };
        if row.timestamp >= before {
            return Err(StoreError::BelowWatermark { before, watermark });
        }
        // What the overlay has here was committed late, and may be older or newer than the row.
        Ok(Some(in_overlay.filter(|(timestamp, _)| *timestamp > row.timestamp).map_or_else(|| take(&row), |(_, taken)| taken)))
    }

    /// The base's row of `key`, from the cache or through it.
    fn base_row(&mut self, key: &Key) -> Result<Option<Version>, StoreError> {
        if let Some(row) = self.cache.get(key) {
            self.statistics.cache_hits += 1;
            return Ok(row.clone());
        }
        let read = self.medium.get(key).and_then(|bytes| bytes.map(|bytes| row::decode(key, bytes)).transpose());
        let row = self.close_on_error(read)?;
        self.statistics.base_reads += 1;
        self.cache.insert(key.detached(), row.clone());
        Ok(row)
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
        let (reached, oldest) = self.overlay.oldest(self.watermark, watermark, self.fold_versions_max);
        let mut versions = Vec::with_capacity(oldest.len());
        let mut folded = Vec::with_capacity(oldest.len());
        for (key, version) in oldest {
            let timestamp = version.timestamp;
            // Above the last watermark a version is newer than any row. Below, it was committed late.
            let is_late = timestamp <= self.watermark;
            let is_outdated =
                is_late && !broken(Mutant::LateFoldWins) && self.base_row(&key)?.is_some_and(|row| row.timestamp >= timestamp);
            versions.push(Folded { timestamp, key: key.clone(), is_outdated });
            if !is_outdated {
                folded.push((key, version));
            }
        }
        let begun = self.medium.begin_fold(Fold::new(reached, folded));
        self.close_on_error(begun)?;
        self.folding = Some(Folding { versions, left: None, watermark_before: self.watermark });
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
        if folding.left.is_none() {
            let done = self.medium.fold_done();
            folding.left = self.close_on_error(done)?.then_some(0);
        }
        let Some(left) = &mut folding.left else {
            self.folding = Some(folding);
            return Ok(None);
        };
        for Folded { timestamp, key, is_outdated } in folding.versions.iter().skip(*left).take(LEAVING_VERSIONS_MAX) {
            let version = self.overlay.remove(*timestamp, key);
            // Reads during the fold may have cached the row from before it. It is replaced here, before the
            // overlay no longer hides it, and from here on the base itself gives the new one.
            if !is_outdated && !broken(Mutant::CacheLeftOld) {
                self.cache.insert(key.clone(), Some(version));
                self.statistics.versions_folded += 1;
            }
            *left += 1;
        }
        if *left < folding.versions.len() {
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

    /// About how much memory the overlay takes.
    #[must_use]
    pub fn overlay_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// What the store has done and what it holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            overlay_versions: self.overlay.len(),
            overlay_bytes: self.overlay.bytes(),
            cache_bytes: self.cache.bytes(),
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
