//! Which versions are not checkpointed yet, by stretches of time.
//!
//! What they hold stands in their keys' entries, where they stay until the base table has them.

use std::collections::BTreeMap;

use types::{ClientId, Key, Timestamp};

use crate::table::EntryId;

/// The length of a time bucket as a power of two in nanoseconds: 67 ms.
const BUCKET_BITS: u32 = 26;
/// About how much memory a version takes besides its value: here, and in its key's entry.
const VERSION_BYTES: usize = 112;
/// About how much more it takes that its key is new, as that stands in an ordered set.
const NEW_KEY_BYTES: usize = 64;

/// The versions committed within one time bucket.
#[derive(Debug, Default)]
pub(crate) struct Log {
    versions: Vec<Logged>,
    /// Which of them are the first that came of new keys, by their places in ascending order.
    firsts: Vec<u32>,
    /// Keys that are new with one of them that came late, or that was not the first, each with its time.
    listed: Vec<(Timestamp, Key)>,
    /// How much memory their values take.
    value_memory: usize,
    /// How many bytes the listed keys have.
    listed_bytes: usize,
}

/// A version in a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    pub timestamp: Timestamp,
    /// The entry of its key.
    pub entry: EntryId,
    pub value_memory: u32,
}

impl Log {
    fn push(&mut self, logged: Logged, is_first: bool) {
        if is_first {
            self.firsts.push(u32::try_from(self.versions.len()).expect("so many versions do not fit in memory"));
        }
        self.versions.push(logged);
        self.value_memory += logged.value_memory as usize;
    }

    fn list(&mut self, timestamp: Timestamp, key: Key) {
        self.listed_bytes += key.as_bytes().len();
        self.listed.push((timestamp, key));
    }

    /// How many versions there are, and what they take.
    fn size(&self) -> Size {
        let new_keys = self.firsts.len() + self.listed.len();
        let memory = self.versions.len() * VERSION_BYTES + self.value_memory + new_keys * NEW_KEY_BYTES + self.listed_bytes;
        Size { versions: self.versions.len(), value_memory: self.value_memory, memory }
    }

    fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.listed.is_empty()
    }

    /// The keys that are listed.
    pub fn into_listed(self) -> impl Iterator<Item = Key> {
        self.listed.into_iter().map(|(_, key)| key)
    }

    /// Splits off what is above `watermark`.
    fn split_above(&mut self, watermark: Timestamp) -> Self {
        let (mut below, mut above) = (Self::default(), Self::default());
        let Self { versions, firsts, listed, .. } = std::mem::take(self);
        let mut firsts = firsts.into_iter().peekable();
        for (place, logged) in (0..).zip(versions) {
            let is_first = firsts.next_if_eq(&place).is_some();
            if logged.timestamp <= watermark { &mut below } else { &mut above }.push(logged, is_first);
        }
        for (timestamp, key) in listed {
            if timestamp <= watermark { &mut below } else { &mut above }.list(timestamp, key);
        }
        *self = below;
        above
    }
}

/// How far one has come who goes through logs.
#[derive(Default)]
pub(crate) struct LogPlace {
    log: usize,
    version: usize,
    /// How many versions before it in its log are first ones.
    firsts: usize,
}

impl LogPlace {
    /// The next version in `logs`, which are the same each time, and whether it is the first that came of a new key; nothing at the end.
    pub fn next(&mut self, logs: &[Log]) -> Option<(Logged, bool)> {
        while let Some(log) = logs.get(self.log) {
            if let Some(logged) = log.versions.get(self.version) {
                let is_first = log.firsts.get(self.firsts).is_some_and(|first| *first as usize == self.version);
                self.firsts += usize::from(is_first);
                self.version += 1;
                return Some((*logged, is_first));
            }
            *self = Self { log: self.log + 1, version: 0, firsts: 0 };
        }
        None
    }
}

/// All versions that no checkpoint has taken, and the size of these and of those that the running checkpoint is writing.
#[derive(Default)]
pub(crate) struct Unflushed {
    buckets: BTreeMap<u64, Log>,
    size: Size,
}

/// An amount of versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Versions.
    pub versions: usize,
    /// The memory of their values.
    pub value_memory: usize,
    /// About how much memory they take.
    pub memory: usize,
}

impl Size {
    /// The size of all `logs`.
    pub fn of(logs: &[Log]) -> Self {
        logs.iter().map(Log::size).fold(Self::default(), |sum, size| Self {
            versions: sum.versions + size.versions,
            value_memory: sum.value_memory + size.value_memory,
            memory: sum.memory + size.memory,
        })
    }
}

impl Unflushed {
    /// Adds a version of a key that has this entry, with the memory that its value takes. The first that came of a new key stays in that entry until the
    /// base table has it.
    pub fn push(&mut self, entry: EntryId, timestamp: Timestamp, value_memory: usize, is_first: bool) {
        let value_memory = u32::try_from(value_memory).expect("VALUE_BYTES_MAX fits in u32");
        self.change(timestamp, |log| log.push(Logged { timestamp, entry, value_memory }, is_first));
    }

    /// The key of a version that is there is new with it, too: it came late, or was not the first.
    pub fn list(&mut self, timestamp: Timestamp, key: Key) {
        self.change(timestamp, |log| log.list(timestamp, key));
    }

    /// Adds to the log of this time.
    fn change(&mut self, timestamp: Timestamp, add: impl FnOnce(&mut Log)) {
        let log = self.buckets.entry(timestamp.time >> BUCKET_BITS).or_default();
        let before = log.size();
        add(log);
        let after = log.size();
        self.size.versions += after.versions - before.versions;
        self.size.value_memory += after.value_memory - before.value_memory;
        self.size.memory += after.memory - before.memory;
    }

    /// The entries of new keys whose first versions these are.
    pub fn firsts(&self) -> impl Iterator<Item = EntryId> {
        self.buckets.values().flat_map(|log| log.firsts.iter().map(|place| log.versions[*place as usize].entry))
    }

    /// All keys that are listed.
    pub fn listed(&self) -> impl Iterator<Item = Key> {
        self.buckets.values().flat_map(|log| log.listed.iter().map(|(_, key)| key.clone()))
    }

    /// The size of all versions, including those of a running checkpoint until they are [released](Unflushed::release).
    pub fn size(&self) -> Size {
        self.size
    }

    /// How many versions no checkpoint has taken whose time bucket ends at or below `watermark`.
    pub fn versions_up_to(&self, watermark: Timestamp) -> usize {
        let end = watermark.time >> BUCKET_BITS;
        self.buckets.range(..end).map(|(_, log)| log.versions.len()).sum()
    }

    /// About how much memory these take.
    pub fn memory_up_to(&self, watermark: Timestamp) -> usize {
        let end = watermark.time >> BUCKET_BITS;
        self.buckets.range(..end).map(|(_, log)| log.size().memory).sum()
    }

    /// The base table now has the versions that were taken.
    pub fn release(&mut self, taken: Size) {
        self.size.versions -= taken.versions;
        self.size.value_memory -= taken.value_memory;
        self.size.memory -= taken.memory;
    }

    /// Takes the versions up to `watermark`, oldest first, and returns the watermark they reach. When there are more than about
    /// `count`, that is lower than `watermark`, but never below `floor`. No version at or below it remains.
    pub fn take(&mut self, floor: Timestamp, watermark: Timestamp, count: usize) -> (Timestamp, Vec<Log>) {
        assert!(floor <= watermark, "a watermark only rises");
        let (mut taken, mut versions) = (Vec::new(), 0);
        while let Some(mut bucket) = self.buckets.first_entry() {
            let number = *bucket.key();
            let start = number << BUCKET_BITS;
            if start > watermark.time {
                break;
            }
            if versions >= count && start > floor.time {
                return (Timestamp::new(start - 1, ClientId(u64::MAX)), taken);
            }
            let is_whole = start | ((1 << BUCKET_BITS) - 1) < watermark.time;
            let above = if is_whole { Log::default() } else { bucket.get_mut().split_above(watermark) };
            let log = bucket.remove();
            if !above.is_empty() {
                self.buckets.insert(number, above);
            }
            versions += log.versions.len();
            if !log.is_empty() {
                taken.push(log);
            }
            if !is_whole {
                break;
            }
        }
        (watermark, taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: u64 = 1 << BUCKET_BITS;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn key(number: usize) -> Key {
        Key::from(format!("key {number}").as_str())
    }

    #[test]
    fn a_checkpoint_that_is_cut_short_never_splits_a_timestamp_and_leaves_nothing_below() {
        let is_first = |number: usize| number % 3 == 1;
        let is_listed = |number: usize| number % 3 == 2;
        let times = [1, 2, 2, 2, 3, BUCKET + 1, BUCKET + 5, 3 * BUCKET, 3 * BUCKET];
        for floor in [0, 2, BUCKET - 1, BUCKET, BUCKET + 5, 2 * BUCKET] {
            for watermark in [floor, floor + 2, BUCKET + 1, 2 * BUCKET, 3 * BUCKET, 9 * BUCKET].into_iter().filter(|to| *to >= floor) {
                for count in [1, 4, 6, 100] {
                    let mut unflushed = Unflushed::default();
                    for (number, time) in times.into_iter().enumerate() {
                        unflushed.push(EntryId(number as u32), at(time), number, is_first(number));
                        if is_listed(number) {
                            unflushed.list(at(time), key(number));
                        }
                    }
                    let (reached, taken) = unflushed.take(at(floor), at(watermark), count);
                    let size = Size::of(&taken);
                    let expected: Vec<(usize, u64)> = times.into_iter().enumerate().filter(|(_, time)| at(*time) <= reached).collect();
                    let mut place = LogPlace::default();
                    let logged = std::iter::from_fn(|| place.next(&taken));
                    let found = logged.map(|(logged, is_first)| (logged.entry.0 as usize, logged.timestamp.time, is_first));
                    let right = expected.iter().map(|(number, time)| (*number, *time, is_first(*number)));
                    assert!(found.eq(right), "from {floor} to {watermark}, about {count}");
                    let rest = unflushed.firsts().map(|entry| entry.0 as usize);
                    assert!(rest.eq((expected.len()..times.len()).filter(|number| is_first(*number))));
                    assert_eq!((size.versions, size.value_memory), (expected.len(), expected.iter().map(|(number, _)| number).sum()));
                    let listed = taken.into_iter().flat_map(Log::into_listed);
                    assert!(listed.eq(expected.iter().map(|(number, _)| *number).filter(|number| is_listed(*number)).map(key)));
                    assert!(at(floor) <= reached && reached <= at(watermark));
                    assert!(reached == at(watermark) || expected.len() >= count);
                    let (_, rest) = unflushed.take(reached, at(99 * BUCKET), 100);
                    assert_eq!(Size::of(&rest).versions, times.len() - expected.len());
                    unflushed.release(size);
                    unflushed.release(Size::of(&rest));
                    assert_eq!(unflushed.size(), Size::default(), "nothing is left");
                }
            }
        }
    }
}
