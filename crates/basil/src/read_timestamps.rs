//! Until when each key has been read.

use std::hash::{DefaultHasher, Hasher};
use std::hint::black_box;

use smallvec::SmallVec;
use types::{ClientId, Key, Timestamp};

/// The newest reader of each key, whether its transaction ever comes to prepare or not (§4.1, `RTS`).
///
/// Keys share a fixed number of buckets, so the memory is fixed too, and nobody who reads much can make it forget.
/// A key whose bucket was raised by another key's reader may see a write voted down that need not have been: that
/// takes two clients at the same moment and one chance in a million. Nobody can aim at a bucket without the seed.
pub(crate) struct ReadTimestamps {
    seed: u64,
    /// Time and client of each.
    newest: Vec<[u64; 2]>,
}

impl ReadTimestamps {
    /// So many buckets. `seed` is a number that nobody else knows.
    pub fn new(seed: u64, buckets: usize) -> Self {
        // All zero, so the system gives the memory only as it is used.
        Self { seed, newest: vec![[0; 2]; buckets.max(1)] }
    }

    fn bucket(&self, key: &Key) -> usize {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(key.as_bytes());
        usize::try_from(hasher.finish() % self.newest.len() as u64).expect("a bucket's number is small")
    }

    /// The timestamp of the newest reader of `key`, or a later one.
    pub fn get(&self, key: &Key) -> Timestamp {
        let [time, client] = self.newest[self.bucket(key)];
        Timestamp::new(time, ClientId(client))
    }

    /// The same of each of `keys`.
    pub fn get_each<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> SmallVec<[Timestamp; 16]> {
        let newest = self.prefetched(keys).into_iter().map(|bucket| self.newest[bucket]);
        newest.map(|[time, client]| Timestamp::new(time, ClientId(client))).collect()
    }

    /// Reads the buckets of `keys`, so that the CPU caches them. It has no other effect.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        self.prefetched(keys);
    }

    /// The buckets of `keys`, read together, so that the waits for memory overlap.
    fn prefetched<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> SmallVec<[usize; 16]> {
        let buckets: SmallVec<[usize; 16]> = keys.map(|key| self.bucket(key)).collect();
        // The sum does not matter.
        black_box(buckets.iter().fold(0, |sum, bucket| sum ^ self.newest[*bucket][0]));
        buckets
    }

    /// Remembers that `keys` were read at `timestamp`.
    pub fn raise(&mut self, keys: &[Key], timestamp: Timestamp) {
        for bucket in self.prefetched(keys.iter()) {
            let [time, client] = &mut self.newest[bucket];
            if Timestamp::new(*time, ClientId(*client)) < timestamp {
                (*time, *client) = (timestamp.time, timestamp.client.0);
            }
        }
    }
}
