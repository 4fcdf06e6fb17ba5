//! When the transactions of one session last used keys, so that one that is about to be prepared takes its place above them.
//!
//! A transaction has its timestamp from when it began. By the time it is prepared, another one that began later may have read a key
//! that it writes. Then the replicas have to vote down one of the two, often both, and whoever has read what they wrote. Where both
//! are of one session, the session knows, and prepares the writer at a timestamp of now, as it would do after having been voted down
//! ([`crate::refresh`]). What the transaction read is checked up to that timestamp (Algorithm 1), so nothing rests on what is kept
//! here: it is bounded, and may mistake one key for another.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use types::{Key, Timestamp};

/// Of so many keys the times are told apart; a power of two.
const SLOTS: usize = 8_192;

/// The newest times at which keys were used.
#[derive(Clone, Debug)]
pub struct KeyTimes {
    hasher: FixedState,
    slots: Vec<Times>,
}

/// In nanoseconds since the Unix epoch, of all keys that share the slot.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    used: u64,
    written: u64,
}

impl Default for KeyTimes {
    fn default() -> Self {
        Self { hasher: FixedState::with_seed(0), slots: vec![Times::default(); SLOTS] }
    }
}

impl KeyTimes {
    /// A transaction at `timestamp` has asked for `key`.
    pub fn read(&mut self, key: &Key, timestamp: Timestamp) {
        let times = self.slot(key);
        times.used = times.used.max(timestamp.time);
    }

    /// A transaction that writes `key` is being prepared at `timestamp`.
    pub fn written(&mut self, key: &Key, timestamp: Timestamp) {
        let times = self.slot(key);
        times.used = times.used.max(timestamp.time);
        times.written = times.written.max(timestamp.time);
    }

    /// The time above which a transaction at `timestamp` had better be prepared, with these reads and writes; none when it may stay where
    /// it is. It stays, too, when something that it read was written later: that will be in its way at any later time.
    pub fn above<'a>(
        &self,
        timestamp: Timestamp,
        mut reads: impl Iterator<Item = &'a Key>,
        writes: impl Iterator<Item = &'a Key>,
    ) -> Option<u64> {
        let used = writes.map(|key| self.times(key).used).max().filter(|used| *used > timestamp.time)?;
        reads.all(|key| self.times(key).written <= timestamp.time).then_some(used)
    }

    fn times(&self, key: &Key) -> Times {
        self.slots[self.index(key)]
    }

    fn slot(&mut self, key: &Key) -> &mut Times {
        let index = self.index(key);
        &mut self.slots[index]
    }

    fn index(&self, key: &Key) -> usize {
        usize::try_from(self.hasher.hash_one(key) % SLOTS as u64).expect("there are few slots")
    }
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    #[test]
    fn a_writer_goes_above_later_readers_unless_what_it_read_was_written() {
        let (a, b) = (Key::from("a"), Key::from("b"));
        let mut times = KeyTimes::default();
        assert_ne!(times.index(&a), times.index(&b));
        let above = |times: &KeyTimes, timestamp| times.above(at(timestamp), [&a].into_iter(), [&b].into_iter());
        assert_eq!(above(&times, 5), None, "nobody has used anything");
        times.read(&b, at(7));
        times.read(&b, at(6));
        assert_eq!((above(&times, 5), above(&times, 7)), (Some(7), None));
        times.read(&a, at(8));
        assert_eq!(above(&times, 5), Some(7), "who reads what it reads is not in its way");
        times.written(&b, at(9));
        assert_eq!(above(&times, 7), Some(9), "nor would it be seen below a later write");
        times.written(&a, at(6));
        assert_eq!((above(&times, 5), above(&times, 6)), (None, Some(9)), "what it read is not the newest");
    }
}
