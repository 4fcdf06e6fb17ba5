//! The committed versions of one key that are in memory.

use std::num::NonZeroU32;

use smallvec::SmallVec;
use types::Timestamp;

use crate::Version;

/// The versions of a key, ascending. Most keys have one or two, stored inline. A hot key has as many as fit into the window, so
/// the operations of each transaction touch few of them.
#[derive(Default)]
pub(crate) struct Versions {
    held: SmallVec<[Held; 2]>,
    /// How many of them are late.
    late: usize,
    /// How many bytes their values have.
    value_bytes: usize,
}

/// Moving this many versions is cheap enough for any call.
const FEW: usize = 8;

struct Held {
    version: Version,
    /// The checkpoint that writes it, when it is late: committed below the watermark, so the base table may have a newer one.
    late_for: Option<CheckpointNumber>,
}

/// Checkpoints are numbered from 1.
pub(crate) type CheckpointNumber = NonZeroU32;

impl Held {
    fn value_bytes(&self) -> usize {
        self.version.value.as_ref().map_or(0, |value| value.as_bytes().len())
    }
}

impl Versions {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// About how much memory they take outside of the inline storage.
    pub fn memory(&self) -> usize {
        self.value_bytes + self.held.len().saturating_sub(self.held.inline_size()) * size_of::<Held>()
    }

    /// The newest one.
    pub fn newest(&self) -> Option<&Version> {
        self.held.last().map(|held| &held.version)
    }

    /// The newest one older than `before`, and whether it is late.
    pub fn newest_before(&self, before: Timestamp) -> Option<(&Version, bool)> {
        let last = self.held.last().filter(|held| held.version.timestamp < before);
        let found = last.or_else(|| {
            let older = self.held.partition_point(|held| held.version.timestamp < before);
            self.held[..older].last()
        });
        found.map(|held| (&held.version, held.late_for.is_some()))
    }

    /// The newest one at or below `timestamp`.
    pub fn newest_up_to(&self, timestamp: Timestamp) -> Option<&Version> {
        self.held[..self.up_to(timestamp)].last().map(|held| &held.version)
    }

    /// Whether some are not in the base table, whose newest checkpoint was up to `checkpointed`.
    pub fn is_unflushed(&self, checkpointed: Timestamp) -> bool {
        self.late > 0 || self.newest().is_some_and(|newest| newest.timestamp > checkpointed)
    }

    /// The newest version at or below `checkpointed` that is not late. After a checkpoint up to there, the base table has it.
    pub fn newest_checkpointed(&self, checkpointed: Timestamp) -> Option<&Version> {
        self.held[..self.up_to(checkpointed)].iter().rev().find(|held| held.late_for.is_none()).map(|held| &held.version)
    }

    /// Whether they show that the base table has a row of the key, after a checkpoint up to `checkpointed`.
    pub fn has_row(&self, checkpointed: Timestamp) -> bool {
        self.newest_checkpointed(checkpointed).is_some()
    }

    /// How many are at or below `timestamp`.
    fn up_to(&self, timestamp: Timestamp) -> usize {
        self.held.partition_point(|held| held.version.timestamp <= timestamp)
    }

    /// Adds a version and returns it; `None` when it is there already. Adding it again as not late makes it not late.
    pub fn insert(&mut self, version: Version, late_for: Option<CheckpointNumber>) -> Option<&Version> {
        let index = self.up_to(version.timestamp);
        if let Some(held) = self.held[..index].last_mut().filter(|held| held.version.timestamp == version.timestamp) {
            if late_for.is_none() && held.late_for.take().is_some() {
                self.late -= 1;
            }
            return None;
        }
        let held = Held { version, late_for };
        self.late += usize::from(late_for.is_some());
        self.value_bytes += held.value_bytes();
        self.held.insert(index, held);
        Some(&self.held[index].version)
    }

    /// Evicts versions at or below `checkpointed` that are not late: the base table has the newest of them.
    pub fn forget_checkpointed(&mut self, checkpointed: Timestamp) {
        self.forget(self.up_to(checkpointed), |held| held.late_for.is_none());
    }

    /// Removes versions older than the newest checkpointed one, which nobody reads. It does nothing while some are late, and waits until half
    /// of many versions can be removed, so that each is moved about once.
    pub fn trim(&mut self, checkpointed: Timestamp) {
        if self.held.len() < 2 || self.late > 0 {
            return;
        }
        let behind = self.up_to(checkpointed).saturating_sub(1);
        if behind > 0 && (self.held.len() <= FEW || behind * 2 >= self.held.len()) {
            self.forget(behind, |_| true);
        }
    }

    /// Checkpoint `number`, up to `checkpointed`, has finished. Versions that were late for it are kept and no longer late, if the other versions
    /// (or `complete`) show what the base table had before. Otherwise they are evicted: the base table may have a newer one and must be read.
    pub fn checkpoint_finished(&mut self, number: CheckpointNumber, checkpointed: Timestamp, complete: bool) {
        let is_told = complete || self.newest_checkpointed(checkpointed).is_some();
        if !is_told {
            self.forget(self.held.len(), |held| held.late_for.is_some_and(|late_for| late_for <= number));
            return;
        }
        for held in &mut self.held {
            if held.late_for.is_some_and(|late_for| late_for <= number) {
                held.late_for = None;
                self.late -= 1;
            }
        }
    }

    /// Removes those of the first `count` versions for which `leaves` is true.
    fn forget(&mut self, count: usize, leaves: impl Fn(&Held) -> bool) {
        let mut index = 0;
        let (value_bytes, late) = (&mut self.value_bytes, &mut self.late);
        self.held.retain(|held| {
            index += 1;
            let is_left = index <= count && leaves(held);
            if is_left {
                *value_bytes -= held.value_bytes();
                *late -= usize::from(held.late_for.is_some());
            }
            !is_left
        });
        if self.held.spilled() && self.held.capacity() > 4 * self.held.len() || self.held.len() <= self.held.inline_size() {
            self.held.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use types::{ClientId, Value};

    use super::*;

    const FIRST: CheckpointNumber = CheckpointNumber::MIN;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    /// Newest first, and whether they are late.
    fn times(versions: &Versions) -> Vec<(u64, bool)> {
        versions.held.iter().rev().map(|held| (held.version.timestamp.time, held.late_for.is_some())).collect()
    }

    fn is_counted(versions: &Versions) -> bool {
        let late = times(versions).iter().filter(|(_, is_late)| *is_late).count();
        (versions.value_bytes, versions.late) == (versions.held.len(), late)
    }

    #[test]
    fn versions_agree_with_a_sorted_map() {
        // Every way to add five of four, late or not, by the digits of a number.
        for way in 0..8_u64.pow(5) {
            let (mut versions, mut model) = (Versions::default(), BTreeMap::new());
            for step in 0..5 {
                let digit = way / 8_u64.pow(step) % 8;
                let (time, is_late) = (digit / 2 * 10, digit % 2 == 1);
                let is_new = !model.contains_key(&time);
                let version = Version { timestamp: at(time), value: Some(Value::from("v")) };
                assert_eq!(versions.insert(version.clone(), is_late.then_some(FIRST)), is_new.then_some(&version));
                model.entry(time).and_modify(|was_late| *was_late &= is_late).or_insert(is_late);
            }
            let all: Vec<(u64, bool)> = model.iter().rev().map(|(time, is_late)| (*time, *is_late)).collect();
            assert!(times(&versions) == all && is_counted(&versions));
            assert_eq!(versions.newest().map(|version| version.timestamp.time), all.first().map(|(time, _)| *time));
            let settled_at = |bound: u64| all.iter().find(|(time, is_late)| *time <= bound && !is_late).map(|(time, _)| *time);
            for bound in [0, 5, 10, 20, 30, 99] {
                let below = all.iter().copied().find(|(time, _)| *time < bound);
                assert_eq!(versions.newest_before(at(bound)).map(|(version, is_late)| (version.timestamp.time, is_late)), below);
                assert_eq!(versions.newest_checkpointed(at(bound)).map(|version| version.timestamp.time), settled_at(bound));
            }
            versions.trim(at(20));
            let mut kept = all.clone();
            if !all.iter().any(|(_, is_late)| *is_late) {
                kept.retain(|(time, _)| *time >= settled_at(20).unwrap_or(0));
            }
            assert!(times(&versions) == kept && is_counted(&versions));
            // Where nothing tells what the base table has, those that were late leave.
            let is_told = settled_at(20).is_some();
            versions.checkpoint_finished(FIRST, at(20), false);
            kept.retain(|(_, is_late)| is_told || !is_late);
            kept.iter_mut().for_each(|(_, is_late)| *is_late = false);
            assert!(times(&versions) == kept && is_counted(&versions), "{all:?}");
            versions.forget_checkpointed(at(10));
            kept.retain(|(time, _)| *time > 10);
            assert!(times(&versions) == kept && is_counted(&versions));
        }
    }

    #[test]
    fn what_is_late_for_the_next_checkpoint_stays_so() {
        let (mut versions, second) = (Versions::default(), FIRST.saturating_add(1));
        for (time, late_for) in [(5, None), (6, Some(FIRST)), (7, Some(second))] {
            versions.insert(Version { timestamp: at(time), value: Some(Value::from("v")) }, late_for);
        }
        versions.checkpoint_finished(FIRST, at(9), false);
        assert!(times(&versions) == [(7, true), (6, false), (5, false)] && is_counted(&versions));
        versions.forget_checkpointed(at(9));
        versions.checkpoint_finished(second, at(9), false);
        assert!(versions.is_empty() && is_counted(&versions));
    }

    #[test]
    fn a_hot_key_keeps_only_versions_that_are_not_checkpointed() {
        let mut versions = Versions::default();
        for time in 1..10_000_u64 {
            versions.trim(at(time.saturating_sub(100)));
            assert!(versions.insert(Version { timestamp: at(time), value: Some(Value::from("v")) }, None).is_some());
            assert!(versions.held.len() <= 202 && versions.held.len() as u64 >= time.min(100), "{} at {time}", versions.held.len());
        }
        versions.trim(at(9_999));
        assert!(times(&versions) == [(9_999, false)] && is_counted(&versions));
        assert!(!versions.held.spilled());
    }
}
