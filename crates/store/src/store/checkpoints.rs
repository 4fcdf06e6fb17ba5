//! How versions come into the base table, step by step.
//!
//! A checkpoint has three parts. Its versions are encoded, as they stand in their keys' entries. The base table takes them, in the background. Then
//! what nobody reads any more is let go. Each call does a bounded part.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use types::{Key, Timestamp};

use super::{ENTRY_BYTES, Store, size};
use crate::encoded_rows::{EncodedRow, EncodedRows, RowPlace};
use crate::table::{EntryId, KeyMeta};
use crate::unflushed::{Log, LogPlace, Logged, Size};
use crate::versions::{CheckpointNumber, Versions};
use crate::{Checkpoint, StorageBackend, StoreError, Version, row};

/// How many keys with late versions are cleaned up in one call after a checkpoint. It bounds the pause.
const LATE_STEP: usize = 1_024;
/// Where many versions are in memory only, a call does this part of as many, lest there be more and more.
const STEP_PARTS: usize = 128;
/// A key that was new takes so much more.
pub(super) const NEW_KEY_COST: usize = 7;
/// Encoding so many bytes of a value costs as much as looking at another version.
const ENCODED_BYTES: usize = 1 << 10;
/// So many keys are looked at together, as their memory is read together.
const KEYS_TOGETHER: usize = 64;

/// A checkpoint that has begun and is not cleaned up.
pub(super) struct RunningCheckpoint {
    number: CheckpointNumber,
    /// The size of the versions it writes.
    taken: Size,
    /// What is at or below was committed late.
    late_to: Timestamp,
    /// What it writes in the place of rows that were wrong.
    replaced: BTreeMap<Key, Version>,
    /// The keys whose late versions it writes and that are not cleaned up yet.
    late_keys: Vec<Key>,
    /// The keys that were listed with its versions and are not cleaned up yet.
    listed_keys: Vec<Key>,
    stage: Stage,
}

/// How far it is.
enum Stage {
    /// These of its versions are encoded; those from the place on are not.
    Encoding { logs: Vec<Log>, next: LogPlace, rows: EncodedRows },
    /// The base table is taking them.
    Writing(Arc<EncodedRows>),
    /// The base table has them, and those up to the place are cleaned up.
    CleaningUp { rows: Arc<EncodedRows>, next: RowPlace },
}

impl<M: StorageBackend, K: KeyMeta> Store<M, K> {
    /// Begins a checkpoint of the versions up to `watermark`, in the background. When there are many, it takes only the
    /// oldest, and the watermark rises less; begin another when it is done. Pending records are durable before the base table has anything of it.
    /// Returns `false` while another checkpoint runs, and when the watermark would not rise.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn begin_checkpoint(&mut self, watermark: Timestamp) -> Result<bool, StoreError> {
        self.check_open()?;
        assert!(self.journal.is_replayed(), "a checkpoint before the end of replay would miss versions");
        if self.running.is_some() || watermark <= self.watermark {
            return Ok(false);
        }
        let (reached, logs) = self.unflushed.take(self.watermark, watermark, self.options.checkpoint_versions_max);
        let mut late_keys = std::mem::take(&mut self.late_keys);
        late_keys.sort_unstable();
        late_keys.dedup();
        let mut running = RunningCheckpoint {
            number: self.next_checkpoint,
            taken: Size::of(&logs),
            late_to: self.watermark,
            replaced: self.replaced.clone(),
            late_keys,
            listed_keys: Vec::new(),
            stage: Stage::Encoding { logs, next: LogPlace::default(), rows: EncodedRows::default() },
        };
        self.next_checkpoint = self.next_checkpoint.checked_add(1).expect("a process lives for fewer checkpoints");
        self.watermark = reached;
        self.encode_some(&mut running)?;
        self.running = Some(running);
        Ok(true)
    }

    /// How many checkpoints up to `watermark` would take as many versions as one is to have.
    #[must_use]
    pub fn full_checkpoints(&self, watermark: Timestamp) -> usize {
        self.unflushed.versions_up_to(watermark) / self.options.checkpoint_versions_max.max(1)
    }

    /// What is at or below `watermark` should be in the base table by now. Say so every few milliseconds while a checkpoint runs: the more is overdue, the
    /// longer [`Store::sync`] waits, so that no more comes into memory than leaves it.
    pub fn expect_checkpointed(&mut self, watermark: Timestamp) {
        let is_taken = |running: &&RunningCheckpoint| matches!(running.stage, Stage::CleaningUp { .. });
        let taken = self.running.as_ref().filter(|running| !is_taken(running)).map_or(0, |running| running.taken.memory);
        self.overdue_bytes = taken + self.unflushed.memory_up_to(watermark);
    }

    /// Whether a checkpoint runs.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.running.is_some()
    }

    /// Goes on with the running checkpoint, and returns its watermark when it has ended: the versions up to there that were
    /// committed before it began no longer need the journal.
    ///
    /// Each call does a bounded part of it, so call it every few milliseconds or once a turn.
    ///
    /// # Errors
    /// When the checkpoint failed.
    pub fn checkpoint_finished(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.check_open()?;
        let Some(mut running) = self.running.take() else {
            return Ok(None);
        };
        let is_finished = self.encode_some(&mut running)? && self.is_written(&mut running)? && self.clean_up_some(&mut running);
        if !is_finished {
            self.running = Some(running);
            return Ok(None);
        }
        self.statistics.checkpoints += 1;
        Ok(Some(self.watermark))
    }

    /// How much is done in one call.
    fn step(&self) -> usize {
        self.options.checkpoint_step.max(self.unflushed.size().versions / STEP_PARTS).max(1)
    }

    /// Encodes some of the versions that are not encoded yet. When there are no more, the base table begins to take them. Gives whether it has begun.
    fn encode_some(&mut self, running: &mut RunningCheckpoint) -> Result<bool, StoreError> {
        let Stage::Encoding { logs, next, rows } = &mut running.stage else { return Ok(true) };
        let (most, mut done) = (self.step(), 0);
        while done < most {
            let mut some = SmallVec::<[(Logged, bool); KEYS_TOGETHER]>::new();
            while some.len() < KEYS_TOGETHER && done < most {
                let Some((logged, is_first)) = next.next(logs) else { break };
                done += 1 + logged.value_memory as usize / ENCODED_BYTES;
                some.push((logged, is_first));
            }
            if some.is_empty() {
                running.listed_keys = std::mem::take(logs).into_iter().flat_map(Log::into_listed).collect();
                let rows = Arc::new(std::mem::take(rows));
                running.stage = Stage::Writing(Arc::clone(&rows));
                // The base table must never have a version whose record may still be lost.
                self.sync()?;
                let checkpoint = Checkpoint::new(self.watermark, running.late_to, rows, running.taken.memory);
                let begun = self.backend.begin_checkpoint(checkpoint.replacing(&running.replaced));
                return self.close_on_error(begun).map(|()| true);
            }
            self.table.prefetch_entries(some.iter().map(|(logged, _)| logged.entry));
            self.table.prefetch_versions(some.iter().map(|(logged, _)| (logged.entry, logged.timestamp)));
            for (Logged { entry: id, timestamp, .. }, is_first) in some {
                let entry = self.table.entry(id);
                match entry.versions.at(timestamp) {
                    Some(version) => rows.push(id, is_first, entry.key.as_bytes(), version),
                    // It came late and was found to be in the base table already.
                    None => assert!(timestamp <= running.late_to, "a version stays in its entry until the base table has it"),
                }
            }
        }
        Ok(false)
    }

    /// Whether the base table has them.
    fn is_written(&mut self, running: &mut RunningCheckpoint) -> Result<bool, StoreError> {
        let Stage::Writing(rows) = &running.stage else { return Ok(true) };
        let done = self.backend.checkpoint_done();
        if !self.close_on_error(done)? {
            return Ok(false);
        }
        running.stage = Stage::CleaningUp { rows: Arc::clone(rows), next: RowPlace::default() };
        self.checkpointed = self.watermark;
        self.unflushed.release(running.taken);
        for (key, written) in std::mem::take(&mut running.replaced) {
            // What is above the watermark is not in the base table yet, and what was replaced again since is not right there.
            if written.timestamp <= self.checkpointed && self.replaced.get(&key) == Some(&written) {
                self.replaced.remove(&key);
            }
        }
        self.statistics.versions_checkpointed += running.taken.versions as u64;
        Ok(true)
    }

    /// Takes a step of what follows from what the base table has now. Gives whether nothing is left.
    ///
    /// Older versions of the keys that it has are removed, since nobody reads these any more. And keys are new no longer: it looks at those whose first
    /// versions it has and at those listed with its versions, and not at all that are new, as these may be as many as the window has writes.
    fn clean_up_some(&mut self, running: &mut RunningCheckpoint) -> bool {
        let Stage::CleaningUp { rows, next } = &mut running.stage else { return false };
        let left = running.late_keys.len().saturating_sub(LATE_STEP);
        for key in running.late_keys.drain(left..) {
            let Some(id) = self.table.find(&key) else { continue };
            let entry = self.table.entry_mut(id);
            let before = size(entry);
            entry.versions.checkpoint_finished(running.number, self.checkpointed, entry.is_complete);
            self.rows_bytes -= before - size(entry);
            self.table.remove_if_empty(id);
        }
        if left > 0 {
            return false;
        }
        let (most, mut done) = (self.step(), 0);
        while done < most {
            let together = KEYS_TOGETHER.min(most - done);
            let some: SmallVec<[EncodedRow<'_>; KEYS_TOGETHER]> = std::iter::from_fn(|| next.next(rows)).take(together).collect();
            if some.is_empty() {
                return self.clean_up_listed(&mut running.listed_keys, most - done);
            }
            self.table.prefetch_entries(some.iter().map(|found| found.entry));
            for EncodedRow { row, entry, is_first } in some {
                if let Some(id) = self.table.find_again(row.key, entry) {
                    done += self.trim(id) / ENTRY_BYTES;
                }
                if is_first {
                    self.new_keys.remove(&row::key_of(row.key).expect("it was encoded here"));
                    done += NEW_KEY_COST;
                }
                done += 1;
            }
        }
        false
    }

    /// Removes older versions than what the base table has. Gives how much memory that was.
    fn trim(&mut self, id: EntryId) -> usize {
        let entry = self.table.entry_mut(id);
        let before = size(entry);
        entry.versions.trim(self.checkpointed);
        let freed = before - size(entry);
        self.rows_bytes -= freed;
        freed
    }

    /// Takes some keys of the list out of those that are new. One that stays, since its row has left memory and another version came, is listed with that
    /// one. Gives whether nothing is left.
    fn clean_up_listed(&mut self, listed_keys: &mut Vec<Key>, at_most: usize) -> bool {
        let left = listed_keys.len().saturating_sub(at_most.div_ceil(NEW_KEY_COST));
        for key in listed_keys.drain(left..) {
            let versions = self.table.find(&key).map(|id| &self.table.entry(id).versions);
            let is_new = |versions: &&Versions| versions.is_unflushed(self.checkpointed) && !versions.has_row(self.checkpointed);
            match versions.filter(is_new).and_then(Versions::newest) {
                Some(newest) => self.unflushed.list(newest.timestamp, key),
                None => _ = self.new_keys.remove(&key),
            }
        }
        left == 0
    }
}
