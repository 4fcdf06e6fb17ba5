//! Every version committed since it was last folded, in memory.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;
use smallvec::SmallVec;
use types::{Key, Timestamp, Value};

use crate::Version;

/// What one version costs beside its key and value.
const VERSION_BYTES: usize = 256;

/// The versions of the keys that have any in memory.
#[derive(Default)]
pub(crate) struct Overlay {
    /// Each key's versions, ascending; mostly one or two.
    versions: HashMap<Key, SmallVec<[Version; 1]>>,
    /// What was written at each timestamp, as it came. Versions are folded in the order of timestamps, without another look at each
    /// key's.
    order: BTreeMap<Timestamp, VecDeque<(Key, Option<Value>)>>,
    count: usize,
    bytes: usize,
}

impl Overlay {
    /// Adds a version, in buffers of its own: a key or a value may be a slice of a whole frame. A version that
    /// is there already is left as it is.
    pub(crate) fn insert(&mut self, key: &Key, version: Version) {
        let Version { timestamp, value } = version;
        let held = self.versions.get(key);
        let place = held.map_or(0, |held| held.partition_point(|version| version.timestamp < timestamp));
        if held.and_then(|held| held.get(place)).is_some_and(|version| version.timestamp == timestamp) {
            return;
        }
        let (key, value) = (key.detached(), value.map(|value| value.detached()));
        self.versions.entry(key.clone()).or_default().insert(place, Version { timestamp, value: value.clone() });
        self.bytes += version_bytes(&key, value.as_ref());
        self.order.entry(timestamp).or_insert_with(|| VecDeque::with_capacity(1)).push_back((key, value));
        self.count += 1;
    }

    /// The newest version of `key` older than `before`.
    pub(crate) fn latest_before(&self, key: &Key, before: Timestamp) -> Option<&Version> {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|version| version.timestamp < before)
    }

    /// The versions up to `watermark`, oldest first, and the watermark they reach: when there are more than about
    /// `count`, a lower one, but never below `floor`. None at or below it is left out.
    pub(crate) fn oldest(&self, floor: Timestamp, watermark: Timestamp, count: usize) -> (Timestamp, Vec<(Key, Version)>) {
        assert!(floor <= watermark, "a watermark only rises");
        let mut oldest: Vec<(Key, Version)> = Vec::new();
        for (timestamp, written) in self.order.range(..=watermark) {
            // Cut only between two timestamps, and only above the floor.
            if let Some((_, last)) = oldest.last().filter(|_| oldest.len() >= count && *timestamp > floor) {
                return (last.timestamp.max(floor), oldest);
            }
            oldest.extend(written.iter().map(|(key, value)| (key.clone(), Version { timestamp: *timestamp, value: value.clone() })));
        }
        (watermark, oldest)
    }

    /// Forgets a version, which must be here, and gives it back.
    pub(crate) fn remove(&mut self, timestamp: Timestamp, key: &Key) -> Version {
        let versions = self.versions.get_mut(key).expect("a version in the order is among its key's versions");
        let place = versions.binary_search_by_key(&timestamp, |version| version.timestamp);
        let version = versions.remove(place.expect("a version in the order is among its key's versions"));
        self.bytes -= version_bytes(key, version.value.as_ref());
        if versions.is_empty() {
            self.versions.remove(key);
        }
        let written = self.order.get_mut(&timestamp).expect("a version is in the order");
        // They leave as they came, so it is mostly the first.
        let place = written.iter().position(|(other, _)| other == key).expect("a version is in the order");
        written.remove(place);
        if written.is_empty() {
            self.order.remove(&timestamp);
        }
        self.count -= 1;
        version
    }

    /// How many versions there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// About how much memory they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn version_bytes(key: &Key, value: Option<&Value>) -> usize {
    VERSION_BYTES + key.as_bytes().len() + value.map_or(0, |value| value.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    #[test]
    fn finds_the_newest_version_before_and_forgets_all_of_them() {
        let mut overlay = Overlay::default();
        let key = Key::from("k");
        for time in [30, 10, 20, 20] {
            overlay.insert(&key, Version { timestamp: at(time), value: Some(Value::from("v")) });
        }
        assert_eq!(overlay.len(), 3);
        assert_eq!(overlay.latest_before(&key, at(10)), None);
        assert_eq!(overlay.latest_before(&key, at(21)).map(|version| version.timestamp), Some(at(20)));
        assert_eq!(overlay.latest_before(&key, at(99)).map(|version| version.timestamp), Some(at(30)));
        for time in [10, 20, 30] {
            overlay.remove(at(time), &key);
        }
        assert_eq!((overlay.len(), overlay.bytes()), (0, 0));
    }

    #[test]
    fn a_fold_that_is_cut_short_never_splits_a_timestamp() {
        let mut overlay = Overlay::default();
        for (time, key) in [(1, "a"), (2, "a"), (2, "b"), (2, "c"), (3, "a")] {
            overlay.insert(&Key::from(key), Version { timestamp: at(time), value: None });
        }
        for (floor, count, expected) in
            [(0, 2, (at(2), 4)), (0, 100, (at(9), 5)), (1, 1, (at(1), 1)), (2, 1, (at(2), 4)), (5, 1, (at(9), 5))]
        {
            let (reached, versions) = overlay.oldest(at(floor), at(9), count);
            assert_eq!((reached, versions.len()), expected, "from {floor}, {count} at most");
        }
    }
}
