//! The committed versions of one key that are in memory.

use types::{Timestamp, Value};

use crate::{Version, VersionRef};

/// The versions of a key, ascending. Most keys have one, which stands in place. A hot key has as many as fit into the window, so
/// the operations of each transaction touch few of them.
#[derive(Default)]
pub(crate) enum Versions {
    #[default]
    None,
    One(Held),
    Many(Many),
}

/// Moving this many versions is cheap enough for any call.
const FEW: usize = 8;
/// The memory of values is counted in steps of so many bytes, as allocators give it.
const VALUE_STEP: usize = 16;

/// About how much memory a value of so many bytes takes.
pub(crate) fn value_memory(bytes: usize) -> usize {
    bytes.next_multiple_of(VALUE_STEP)
}

/// A version in memory. A table of a million keys has a million of these: each byte is a megabyte.
pub(crate) struct Held {
    timestamp: Timestamp,
    value: Option<Box<[u8]>>,
    /// The checkpoint that writes it, when it is late: committed below the watermark, so the base table may have a newer one.
    late_for: Option<CheckpointNumber>,
}

/// The versions of a key that has several. In its entry they take no more room than one.
pub(crate) struct Many {
    held: Vec<Held>,
    /// How many of them are late.
    late: u32,
    /// How much memory their values take, in [steps](VALUE_STEP).
    value_steps: u32,
}

/// Checkpoints are numbered from 1.
pub(crate) type CheckpointNumber = u32;

impl Held {
    fn value_memory(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value_memory(value.len()))
    }

    fn value_steps(&self) -> u32 {
        u32::try_from(self.value_memory() / VALUE_STEP).expect("VALUE_BYTES_MAX fits in u32")
    }

    fn show(&self) -> VersionRef<'_> {
        VersionRef { timestamp: self.timestamp, value: self.value.as_deref() }
    }
}

impl Versions {
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    fn held(&self) -> &[Held] {
        match self {
            Self::None => &[],
            Self::One(held) => std::slice::from_ref(held),
            Self::Many(many) => &many.held,
        }
    }

    /// How many are late.
    fn late(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(held) => usize::from(held.late_for.is_some()),
            Self::Many(many) => many.late as usize,
        }
    }

    /// About how much memory they take outside of what stands in place.
    pub fn memory(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(held) => held.value_memory(),
            Self::Many(many) => many.held.len() * size_of::<Held>() + many.value_steps as usize * VALUE_STEP,
        }
    }

    /// Whether moving all of them is cheap.
    pub fn are_few(&self) -> bool {
        self.held().len() <= FEW
    }

    /// The newest one.
    pub fn newest(&self) -> Option<VersionRef<'_>> {
        self.held().last().map(Held::show)
    }

    /// The newest one older than `before`, and whether it is late.
    pub fn newest_before(&self, before: Timestamp) -> Option<(VersionRef<'_>, bool)> {
        let all = self.held();
        let last = all.last().filter(|held| held.timestamp < before);
        let found = last.or_else(|| {
            let older = all.partition_point(|held| held.timestamp < before);
            all[..older].last()
        });
        found.map(|held| (held.show(), held.late_for.is_some()))
    }

    /// The newest one at or below `timestamp`.
    pub fn newest_up_to(&self, timestamp: Timestamp) -> Option<VersionRef<'_>> {
        self.held()[..self.up_to(timestamp)].last().map(Held::show)
    }

    /// Whether some are not in the base table, whose newest checkpoint was up to `checkpointed`.
    pub fn is_unflushed(&self, checkpointed: Timestamp) -> bool {
        self.late() > 0 || self.newest().is_some_and(|newest| newest.timestamp > checkpointed)
    }

    /// The newest version at or below `checkpointed` that is not late. After a checkpoint up to there, the base table has it.
    pub fn newest_checkpointed(&self, checkpointed: Timestamp) -> Option<VersionRef<'_>> {
        self.held()[..self.up_to(checkpointed)].iter().rev().find(|held| held.late_for.is_none()).map(Held::show)
    }

    /// Whether they show that the base table has a row of the key, after a checkpoint up to `checkpointed`.
    pub fn has_row(&self, checkpointed: Timestamp) -> bool {
        self.newest_checkpointed(checkpointed).is_some()
    }

    /// How many are at or below `timestamp`.
    fn up_to(&self, timestamp: Timestamp) -> usize {
        self.held().partition_point(|held| held.timestamp <= timestamp)
    }

    /// Adds a copy of a version. Gives `false` when it is there already. Adding it again as not late makes it not late.
    pub fn insert(&mut self, version: VersionRef<'_>, late_for: Option<CheckpointNumber>) -> bool {
        let index = self.up_to(version.timestamp);
        if let Some(same) = index.checked_sub(1).filter(|same| self.held()[*same].timestamp == version.timestamp) {
            if late_for.is_none() {
                self.be_not_late(same);
            }
            return false;
        }
        // In memory of its own, since it may be a slice of a whole frame.
        let value = version.value.map(Box::from);
        let held = Held { timestamp: version.timestamp, value, late_for };
        if matches!(self, Self::None) {
            *self = Self::One(held);
            return true;
        }
        let many = self.many();
        many.late += u32::from(held.late_for.is_some());
        many.value_steps += held.value_steps();
        if many.held.len() < FEW {
            many.held.reserve_exact(1);
        }
        many.held.insert(index, held);
        true
    }

    /// The one of this time.
    pub fn at(&self, timestamp: Timestamp) -> Option<VersionRef<'_>> {
        let index = self.up_to(timestamp).checked_sub(1)?;
        self.held().get(index).filter(|held| held.timestamp == timestamp).map(Held::show)
    }

    /// Gives the one of the same time another value. Gives `false` where there is none, or it has that value.
    pub fn replace(&mut self, version: &Version) -> bool {
        let value = version.value.as_ref().map(Value::as_bytes);
        if self.at(version.timestamp).is_none_or(|held| held.value == value) {
            return false;
        }
        let index = self.up_to(version.timestamp) - 1;
        let value: Option<Box<[u8]>> = value.map(Box::from);
        match self {
            Self::None => unreachable!("one of them was found"),
            Self::One(held) => held.value = value,
            Self::Many(many) => {
                many.value_steps -= many.held[index].value_steps();
                many.held[index].value = value;
                many.value_steps += many.held[index].value_steps();
            }
        }
        true
    }

    /// As many, whatever they were.
    fn many(&mut self) -> &mut Many {
        if !matches!(self, Self::Many(_)) {
            let (late, mut held) = (u32::from(self.late() > 0), Vec::with_capacity(2));
            if let Self::One(one) = std::mem::take(self) {
                held.push(one);
            }
            let value_steps = held.iter().map(Held::value_steps).sum();
            *self = Self::Many(Many { held, late, value_steps });
        }
        let Self::Many(many) = self else { unreachable!("it was made so above") };
        many
    }

    fn be_not_late(&mut self, index: usize) {
        match self {
            Self::None => {}
            Self::One(held) => held.late_for = None,
            Self::Many(many) => many.late -= u32::from(many.held[index].late_for.take().is_some()),
        }
    }

    /// Evicts versions at or below `checkpointed` that are not late: the base table has the newest of them.
    pub fn forget_checkpointed(&mut self, checkpointed: Timestamp) {
        self.forget(self.up_to(checkpointed), |held| held.late_for.is_none());
    }

    /// Removes versions older than the newest checkpointed one, which nobody reads. It does nothing while some are late, and waits until half
    /// of many versions can be removed, so that each is moved about once.
    pub fn trim(&mut self, checkpointed: Timestamp) {
        let count = self.held().len();
        if count < 2 || self.late() > 0 {
            return;
        }
        let behind = self.up_to(checkpointed).saturating_sub(1);
        if behind > 0 && (count <= FEW || behind * 2 >= count) {
            self.forget(behind, |_| true);
        }
    }

    /// Checkpoint `number`, up to `checkpointed`, has finished. Versions that were late for it are kept and no longer late, if the other versions
    /// (or `complete`) show what the base table had before. Otherwise they are evicted: the base table may have a newer one and must be read.
    pub fn checkpoint_finished(&mut self, number: CheckpointNumber, checkpointed: Timestamp, complete: bool) {
        let is_told = complete || self.newest_checkpointed(checkpointed).is_some();
        let count = self.held().len();
        if !is_told {
            self.forget(count, |held| held.late_for.is_some_and(|late_for| late_for <= number));
            return;
        }
        for index in 0..count {
            if self.held()[index].late_for.is_some_and(|late_for| late_for <= number) {
                self.be_not_late(index);
            }
        }
    }

    /// Removes those of the first `count` versions for which `leaves` is true.
    fn forget(&mut self, count: usize, leaves: impl Fn(&Held) -> bool) {
        let many = match self {
            Self::None => return,
            Self::One(held) => {
                if count > 0 && leaves(held) {
                    *self = Self::None;
                }
                return;
            }
            Self::Many(many) => many,
        };
        let mut index = 0;
        let (value_steps, late) = (&mut many.value_steps, &mut many.late);
        many.held.retain(|held| {
            index += 1;
            let is_left = index <= count && leaves(held);
            if is_left {
                *value_steps -= held.value_steps();
                *late -= u32::from(held.late_for.is_some());
            }
            !is_left
        });
        if many.held.len() < 2 {
            *self = many.held.pop().map_or(Self::None, Self::One);
        } else if many.held.capacity() > 4 * many.held.len() {
            many.held.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use types::ClientId;

    use super::*;

    const FIRST: CheckpointNumber = 1;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    /// Newest first, and whether they are late.
    fn times(versions: &Versions) -> Vec<(u64, bool)> {
        versions.held().iter().rev().map(|held| (held.timestamp.time, held.late_for.is_some())).collect()
    }

    fn is_counted(versions: &Versions) -> bool {
        let late = times(versions).iter().filter(|(_, is_late)| *is_late).count();
        let is_small = versions.held().len() > 1 || !matches!(versions, Versions::Many(_));
        let of_list = if let Versions::Many(many) = versions { many.held.len() * size_of::<Held>() } else { 0 };
        let memory = of_list + versions.held().len() * value_memory(1);
        is_small && (versions.memory(), versions.late()) == (memory, late)
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
                assert_eq!(versions.insert(version.as_ref(), is_late.then_some(FIRST)), is_new);
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
        let (mut versions, second) = (Versions::default(), FIRST + 1);
        for (time, late_for) in [(5, None), (6, Some(FIRST)), (7, Some(second))] {
            versions.insert(VersionRef { timestamp: at(time), value: Some(b"v") }, late_for);
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
            assert!(versions.insert(VersionRef { timestamp: at(time), value: Some(b"v") }, None));
            assert!(versions.held().len() <= 202 && versions.held().len() as u64 >= time.min(100), "{} at {time}", versions.held().len());
        }
        versions.trim(at(9_999));
        assert!(times(&versions) == [(9_999, false)] && is_counted(&versions));
        assert!(matches!(versions, Versions::One(_)));
    }
}
