//! Moments that stay readable after checkpoints have passed them.
//!
//! The base table has one version of each key: the newest up to the watermark. So what it has right after a checkpoint is all there was at that watermark, and
//! whoever keeps its files can read that moment for as long as he likes, whatever is checkpointed later. It costs memory for nothing, and the disk what
//! was merged since. A moment is not kept over a restart.

use types::Timestamp;

use super::Store;
use crate::table::KeyMeta;
use crate::{BaseTable, StorageBackend, StoreError};

impl<M: StorageBackend, K: KeyMeta> Store<M, K> {
    /// Keeps what there is at the watermark, for [`Store::kept_page`], until it is [let go](Store::keep_only), or something that belongs there comes late. Gives
    /// `false`, and keeps nothing, while a checkpoint runs or the base table lacks something of it.
    pub fn keep(&mut self) -> bool {
        let is_all_there = self.running.is_none() && self.late_keys.is_empty() && self.replaced.is_empty();
        if is_all_there {
            self.kept.entry(self.watermark).or_insert_with(|| self.backend.base_table());
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
            write(&mut store, 10);
            checkpoint(&mut store, 10);
            assert!(store.keep());
            write(&mut store, 30);
            checkpoint(&mut store, 30);
            assert!(store.keep());
            write(&mut store, late);
            let is_kept = [10, 30].map(|moment| store.keeps(at(moment)));
            assert_eq!(store.keep(), is_kept[1], "the base table lacks it");
            is_kept
        };
        let expected = [[false, false], [true, false], [true, true], [true, true]];
        assert_eq!([5, 11, 30, 31].map(kept), expected, "what is there already is not late");
    }
}
