//! Every version committed since it was last folded, in memory.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;
use smallvec::{SmallVec, smallvec};
use types::{Key, Timestamp};

use crate::Version;

/// What one version costs beside its key and value.
const VERSION_BYTES: usize = 192;

/// The versions of the keys that have any in memory.
#[derive(Default)]
pub(crate) struct Overlay {
    /// Each key's versions, ascending; mostly one or two.
    versions: HashMap<Key, SmallVec<[Version; 1]>>,
    /// The keys that have a version of each timestamp, as they came. Versions are folded in the order of timestamps.
    order: BTreeMap<Timestamp, VecDeque<Key>>,
    count: usize,
    bytes: usize,
}

impl Overlay {
    /// Adds a version, in buffers of its own: a key or a value may be a slice of a whole frame. A version that
    /// is there already is left as it is.
    pub(crate) fn insert(&mut self, key: &Key, version: Version) {
        let Version { timestamp, value } = version;
        let version = || Version { timestamp, value: value.map(|value| value.detached()) };
        let key = if let Some(versions) = self.versions.get_mut(key) {
            let place = versions.partition_point(|held| held.timestamp < timestamp);
            if versions.get(place).is_some_and(|held| held.timestamp == timestamp) {
                return;
            }
            versions.insert(place, version());
            self.bytes += version_bytes(key, &versions[place]);
            key.detached()
        } else {
            let (key, version) = (key.detached(), version());
            self.bytes += version_bytes(&key, &version);
            self.versions.insert(key.clone(), smallvec![version]);
            key
        };
        self.order.entry(timestamp).or_insert_with(|| VecDeque::with_capacity(1)).push_back(key);
        self.count += 1;
    }

    /// The newest version of `key` older than `before`.
    pub(crate) fn latest_before(&self, key: &Key, before: Timestamp) -> Option<&Version> {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|version| version.timestamp < before)
    }

    /// The versions up to `watermark`, oldest first, and the watermark they reach: when there are more than about
    /// `count`, a lower one, but never below `floor`. None at or below it is left out.
    pub(crate) fn oldest(&self, floor: Timestamp, watermark: Timestamp, count: usize) -> (Timestamp, Vec<(Timestamp, Key)>) {
        assert!(floor <= watermark, "a watermark only rises");
        let mut oldest: Vec<(Timestamp, Key)> = Vec::new();
        for (timestamp, keys) in self.order.range(..=watermark) {
            // Cut only between two timestamps, and only above the floor.
            if let Some((last, _)) = oldest.last().filter(|_| oldest.len() >= count && *timestamp > floor) {
                return ((*last).max(floor), oldest);
            }
            oldest.extend(keys.iter().map(|key| (*timestamp, key.clone())));
        }
        (watermark, oldest)
    }

    /// The version of `key` at `timestamp`, which must be here.
    pub(crate) fn get(&self, timestamp: Timestamp, key: &Key) -> &Version {
        let versions = self.versions.get(key).expect("a version in the order is among its key's versions");
        &versions[place(versions, timestamp)]
    }

    /// Forgets a version, which must be here, and gives it back.
    pub(crate) fn remove(&mut self, timestamp: Timestamp, key: &Key) -> Version {
        let versions = self.versions.get_mut(key).expect("a version in the order is among its key's versions");
        let version = versions.remove(place(versions, timestamp));
        self.bytes -= version_bytes(key, &version);
        if versions.is_empty() {
            self.versions.remove(key);
        }
        let keys = self.order.get_mut(&timestamp).expect("a version is in the order");
        // They leave as they came, so it is mostly the first.
        let place = keys.iter().position(|other| other == key).expect("a version is in the order");
        keys.remove(place);
        if keys.is_empty() {
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

/// Where among `versions` the one at `timestamp` is, which must be there.
fn place(versions: &[Version], timestamp: Timestamp) -> usize {
    let place = versions.binary_search_by_key(&timestamp, |version| version.timestamp);
    place.expect("a version in the order is among its key's versions")
}

fn version_bytes(key: &Key, version: &Version) -> usize {
    VERSION_BYTES + key.as_bytes().len() + version.value.as_ref().map_or(0, |value| value.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Value};

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
