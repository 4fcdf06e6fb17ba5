//! Moments that stay readable after checkpoints have passed them.
//!
//! The base table has one version of each key: the newest up to the watermark. So what it has right after a checkpoint is all there was at that watermark, and
//! whoever keeps its files can read that moment for as long as he likes, whatever is checkpointed later. It costs the disk what was merged since, and for each of
//! these rows the few bytes by which it is found in memory. A moment is not kept over a restart.

use std::collections::BTreeMap;

use mutants::{Mutant, broken};
use types::{Key, Timestamp};

use super::Store;
use crate::table::KeyMeta;
use crate::{BaseTable, StorageBackend, StoreError, row};

/// So many versions that came late are looked up before a moment is kept.
const LATE_MAX: usize = 1_024;

/// A version of that time came late: what is kept lacks it, unless it has that version of the key already, or a newer one.
pub(super) fn let_go(kept: &mut BTreeMap<Timestamp, Box<dyn BaseTable>>, key: &Key, timestamp: Timestamp) {
    kept.retain(|at, table| *at < timestamp || has(&**table, key, timestamp) || broken(Mutant::KeptWithoutLate));
}

/// Whether `table` has that version of the key, or a newer one. What cannot be read is not there.
fn has(table: &dyn BaseTable, key: &Key, timestamp: Timestamp) -> bool {
    let row = table.get(key).ok().flatten();
    row.and_then(|row| row::written_at(key.as_bytes(), &row).ok()).is_some_and(|written| written >= timestamp)
}

impl<M: StorageBackend, K: KeyMeta> Store<M, K> {
    /// Keeps what there is at the watermark, for [`Store::kept_page`], until it is [let go](Store::keep_only), or something that belongs there comes late. Gives
    /// `false`, and keeps nothing, while a checkpoint runs or the base table lacks something of it.
    pub fn keep(&mut self) -> bool {
        if self.running.is_some() || !self.replaced.is_empty() || self.late_keys.len() > LATE_MAX {
            return false;
        }
        let table = self.backend.base_table();
        let is_there = |key: &Key| self.in_memory(key, self.watermark).is_none_or(|late| has(&*table, key, late.timestamp));
        let is_all_there = self.late_keys.iter().all(is_there);
        if is_all_there {
            self.kept.entry(self.watermark).or_insert(table);
        }
        is_all_there
    }

    /// Whether the moment is kept whose newest timestamp is `up_to`.
    #[must_use]
    pub fn keeps(&self, up_to: Timestamp) -> bool {
        self.kept.contains_key(&up_to)
    }

    /// Lets go the moments for which `is_kept` does not hold.
    pub fn keep_only(&mut self, is_kept: impl Fn(Timestamp) -> bool) {
        self.kept.retain(|at, _| is_kept(*at));
    }

    pub(crate) fn kept(&self, up_to: Timestamp) -> Result<&dyn BaseTable, StoreError> {
        self.check_open()?;
        let kept = self.kept.get(&up_to).ok_or(StoreError::BelowWatermark { before: up_to, watermark: self.watermark })?;
        Ok(&**kept)
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Direction, Key, KeyRange, Value};

    use super::*;
    use crate::{Disk, DiskOptions, Memory, Options, PageLimits, Version};

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn write<M: StorageBackend>(store: &mut Store<M>, time: u64) {
        for number in 0..50_u64 {
            // One of ten is deleted at its time.
            let value = (number % 10 != time % 10).then(|| Value::from(format!("{number} at {time}").as_str()));
            store.commit(&Key::from(format!("{number:02}").as_str()), Version { timestamp: at(time), value });
        }
    }

    fn checkpoint<M: StorageBackend>(store: &mut Store<M>, up_to: u64) {
        assert!(store.begin_checkpoint(at(up_to)).expect("the medium does not fail"));
        while store.checkpoint_finished().expect("the medium does not fail").is_none() {
            std::thread::yield_now();
        }
    }

    /// All that there is at a moment that is kept, page by page.
    fn all<M: StorageBackend>(store: &Store<M>, up_to: u64, direction: Direction) -> Result<Vec<(Key, Version)>, StoreError> {
        let mut left = KeyRange::new(Key::from("0"), Key::from("9"));
        let mut found = Vec::new();
        while let Some(range) = left {
            let page = store.kept_page(&range, direction, at(up_to), PageLimits { keys: 7, bytes: 1 << 20 })?;
            left = page.next.and_then(|next| direction.left(&range, &next));
            found.extend(page.versions);
        }
        Ok(found)
    }

    fn is_read_as_it_was<M: StorageBackend>(mut store: Store<M>) {
        assert!(store.replay().expect("it is new").is_none());
        write(&mut store, 5);
        write(&mut store, 10);
        write(&mut store, 15);
        checkpoint(&mut store, 10);
        let range = KeyRange::new(Key::from("0"), Key::from("9")).expect("it has keys");
        let now = store.page((range.low(), Some(range.high())), Direction::Ascending, at(10), PageLimits { keys: 99, bytes: 1 << 20 });
        let now = now.expect("the medium does not fail").versions;
        assert!(now.len() == 50 && now.iter().all(|(_, version)| version.timestamp == at(10)));
        assert!(store.keep() && store.keeps(at(10)));
        // Many more checkpoints, so that all is merged.
        for time in 20..60 {
            write(&mut store, time);
            checkpoint(&mut store, time);
        }
        assert_eq!(all(&store, 10, Direction::Ascending).expect("it is kept"), now);
        let backwards: Vec<(Key, Version)> = now.into_iter().rev().collect();
        assert_eq!(all(&store, 10, Direction::Descending).expect("it is kept"), backwards);
        assert!(matches!(all(&store, 11, Direction::Ascending), Err(StoreError::BelowWatermark { .. })));
        store.keep_only(|up_to| up_to != at(10));
        assert!(matches!(all(&store, 10, Direction::Ascending), Err(StoreError::BelowWatermark { .. })));
    }

    #[test]
    fn a_moment_that_is_kept_is_read_as_it_was() {
        is_read_as_it_was(Store::open(Memory::new("kept"), Options::default()).expect("a new store opens"));
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("data");
        Disk::create(&place, "kept").expect("the disk is whole");
        let disk = Disk::open(&place, "kept", DiskOptions::default()).expect("the disk is whole");
        is_read_as_it_was(Store::open(disk, Options::default()).expect("a new store opens"));
    }

    #[test]
    fn what_comes_late_ends_what_is_kept() {
        let kept = |late: u64| {
            let mut store = Store::open(Memory::new("kept"), Options::default()).expect("a new store opens");
            assert!(store.replay().expect("it is new").is_none());
            for (written, up_to) in [(10, 15), (30, 40)] {
                write(&mut store, written);
                checkpoint(&mut store, up_to);
                assert!(store.keep());
            }
            write(&mut store, late);
            let is_kept = [15, 40].map(|moment| store.keeps(at(moment)));
            assert_eq!(store.keep(), is_kept[1], "the base table lacks it");
            is_kept
        };
        assert_eq!([12, 35].map(kept), [[false, true], [true, false]]);
        assert_eq!([5, 10, 20, 30, 41].map(kept), [[true, true]; 5], "it is there, or something newer is, or it lies above");
    }
}
