//! The writes of this pool's own batches, so that transactions with stale reads are not sent in vain.

use foldhash::{HashMap, HashMapExt as _};
use types::{Key, Timestamp};

/// How many keys are remembered in each of two generations.
const REMEMBERED_MAX: usize = 1 << 16;

/// Whether a transaction's reads are still current, as far as the pool knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// The pool knows of no newer version.
    Fresh,
    /// A batch in flight writes one of the keys: the reads are current if it aborts.
    InDoubt,
    /// A committed batch has written one of the keys.
    Stale,
}

/// The writes of batches in flight, and of those that committed lately.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites {
    under_way: HashMap<Key, Vec<Timestamp>>,
    /// The newest versions of keys; the younger generation first. When it is full it becomes the older one.
    committed: [HashMap<Key, Timestamp>; 2],
}

impl OwnWrites {
    pub fn begin<'a>(&mut self, keys: impl Iterator<Item = &'a Key>, timestamp: Timestamp) {
        for key in keys {
            let timestamps = self.under_way.entry(key.clone()).or_default();
            if timestamps.last() != Some(&timestamp) {
                timestamps.push(timestamp);
            }
        }
    }

    pub fn end<'a>(&mut self, keys: impl Iterator<Item = &'a Key>, timestamp: Timestamp, committed: bool) {
        for key in keys {
            if let Some(timestamps) = self.under_way.get_mut(key) {
                timestamps.retain(|other| *other != timestamp);
                if timestamps.is_empty() {
                    self.under_way.remove(key);
                }
            }
            if committed {
                self.remember(key, timestamp);
            }
        }
    }

    fn remember(&mut self, key: &Key, timestamp: Timestamp) {
        if self.committed[0].len() >= REMEMBERED_MAX {
            self.committed.swap(0, 1);
            self.committed[0] = HashMap::new();
        }
        let newest = self.committed[0].entry(key.clone()).or_insert(timestamp);
        *newest = timestamp.max(*newest);
    }

    /// Whether a transaction that read these versions can still commit, as far as is known here.
    pub fn freshness<'a>(&self, reads: impl Iterator<Item = (&'a Key, Timestamp)>) -> Freshness {
        reads.map(|(key, version)| self.freshness_of(key, version)).max().unwrap_or(Freshness::Fresh)
    }

    fn freshness_of(&self, key: &Key, version: Timestamp) -> Freshness {
        let is_newer = |known: &Timestamp| *known > version;
        if self.committed.iter().filter_map(|generation| generation.get(key)).any(is_newer) {
            Freshness::Stale
        } else if self.under_way.get(key).into_iter().flatten().any(is_newer) {
            Freshness::InDoubt
        } else {
            Freshness::Fresh
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ClientId;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    #[test]
    fn a_read_is_in_doubt_until_the_write_past_it_ends() {
        let (mut own, key) = (OwnWrites::default(), Key::from("k"));
        let freshness = |own: &OwnWrites, version| own.freshness([(&key, version)].into_iter());
        own.begin([&key, &key].into_iter(), at(5));
        own.begin([&key].into_iter(), at(7));
        assert_eq!(freshness(&own, at(3)), Freshness::InDoubt);
        assert_eq!(freshness(&own, at(7)), Freshness::Fresh);
        own.end([&key, &key].into_iter(), at(5), false);
        assert_eq!(freshness(&own, at(5)), Freshness::InDoubt);
        own.end([&key].into_iter(), at(7), true);
        assert_eq!((freshness(&own, at(6)), freshness(&own, at(7))), (Freshness::Stale, Freshness::Fresh));
        assert!(own.under_way.is_empty());
    }

    #[test]
    fn remembered_writes_are_bounded_and_the_newest_stay() {
        let mut own = OwnWrites::default();
        let key = |number: usize| Key::from(number.to_string().as_str());
        for number in 0..3 * REMEMBERED_MAX {
            own.end([&key(number)].into_iter(), at(number as u64 + 1), true);
        }
        assert!(own.committed.iter().map(HashMap::len).sum::<usize>() <= 2 * REMEMBERED_MAX);
        let last = 3 * REMEMBERED_MAX - 1;
        assert_eq!(own.freshness([(&key(last), at(1))].into_iter()), Freshness::Stale);
        assert_eq!(own.freshness([(&key(0), Timestamp::ZERO)].into_iter()), Freshness::Fresh);
    }
}
