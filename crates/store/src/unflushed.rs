//! The versions that are not checkpointed yet, in the order of time, as encoded rows end to end.
//!
//! A checkpoint takes whole buckets of time and sorts their rows on its own thread; it needs no look-up.

use std::collections::BTreeMap;

use types::{ClientId, Key, Timestamp};

use crate::table::EntryId;
use crate::{Row, Version, row};

/// The length of a time bucket as a power of two in nanoseconds: 67 ms.
const BUCKET_BITS: u32 = 26;
/// The memory of one version besides its value.
const VERSION_BYTES: usize = 64;
/// A log grows by a chunk as large as it is, within these bounds. Nothing is copied when it grows, and chunks of one size are used again.
const CHUNK_BYTES_MIN: usize = 4 << 10;
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The two lengths and the number of the key's entry before each key and row.
const HEADER_BYTES: usize = 10;
/// In the length of a key: it was listed as new with this version.
const LISTED: u16 = 1 << 15;

/// The versions committed within one time bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// For each version: the length of its key (two bytes, the highest bit of which says whether the key was listed as new with it), the length of
    /// its row (four), the number of the key's entry (four), the key, the row. None lies in two chunks.
    chunks: Vec<Vec<u8>>,
    /// How many bytes there are.
    bytes: usize,
    /// The keys that were listed as new with one of these versions when that was here already.
    listed_again: Vec<(Timestamp, Key)>,
    /// How many versions there are.
    pub versions: usize,
    /// How many bytes their values have.
    pub value_bytes: usize,
}

impl Log {
    fn push(&mut self, entry: EntryId, key: &[u8], version: &Version, is_listed: bool) {
        let row_bytes = row::encoded_bytes(version);
        let chunk = self.begin(entry, key, row_bytes, is_listed);
        let row_at = chunk.len();
        row::encode(version, chunk);
        debug_assert_eq!(chunk.len() - row_at, row_bytes);
        let value_bytes = row::value_bytes(&chunk[row_at..]);
        self.count(value_bytes);
    }

    /// Appends what stands before a row, for which there is room behind it.
    fn begin(&mut self, EntryId(entry): EntryId, key: &[u8], row_bytes: usize, is_listed: bool) -> &mut Vec<u8> {
        let key_bytes = u16::try_from(key.len()).ok().filter(|bytes| bytes & LISTED == 0).expect("KEY_BYTES_MAX fits in 15 bits");
        let key_bytes = if is_listed { key_bytes | LISTED } else { key_bytes };
        let chunk = self.room(HEADER_BYTES + key.len() + row_bytes);
        chunk.extend_from_slice(&key_bytes.to_le_bytes());
        chunk.extend_from_slice(&u32::try_from(row_bytes).expect("VALUE_BYTES_MAX fits in u32").to_le_bytes());
        chunk.extend_from_slice(&entry.to_le_bytes());
        chunk.extend_from_slice(key);
        chunk
    }

    fn count(&mut self, value_bytes: usize) {
        self.value_bytes += value_bytes;
        self.versions += 1;
    }

    /// The last chunk, with room for so many bytes, which are counted.
    fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < bytes) {
            self.chunks.push(Vec::with_capacity(self.bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(bytes)));
        }
        self.bytes += bytes;
        self.chunks.last_mut().expect("there is one now")
    }

    /// About how much memory they take: here, and again in their keys' entries.
    pub fn memory(&self) -> usize {
        self.versions * VERSION_BYTES + 2 * self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.logged().map(|logged| logged.row)
    }

    fn logged(&self) -> impl Iterator<Item = Logged<'_>> {
        self.chunks.iter().flat_map(|chunk| {
            let mut rest = chunk.as_slice();
            std::iter::from_fn(move || {
                let (logged, after) = split(rest)?;
                rest = after;
                Some(logged)
            })
        })
    }

    /// The keys that were listed as new with one of these versions.
    pub fn listed(&self) -> impl Iterator<Item = Key> {
        let with_rows = self.logged().filter(|logged| logged.is_listed).map(|logged| key_of(logged.row.key));
        with_rows.chain(self.listed_again.iter().map(|(_, key)| key.clone()))
    }

    /// Splits off what is above `watermark`.
    fn split_above(&mut self, watermark: Timestamp) -> Self {
        let (mut below, mut above) = (Self::default(), Self::default());
        for Logged { row: Row { key, row }, entry, is_listed } in self.logged() {
            let part = if row::timestamp(row) <= watermark { &mut below } else { &mut above };
            part.begin(entry, key, row.len(), is_listed).extend_from_slice(row);
            part.count(row::value_bytes(row));
        }
        let again = std::mem::take(&mut self.listed_again);
        (below.listed_again, above.listed_again) = again.into_iter().partition(|(timestamp, _)| *timestamp <= watermark);
        *self = below;
        above
    }
}

/// A version in a log.
struct Logged<'a> {
    row: Row<'a>,
    /// The entry that its key had.
    entry: EntryId,
    /// Its key was listed as new with it.
    is_listed: bool,
}

/// The first version in a part of a chunk, and what follows; nothing at the end.
fn split(chunk: &[u8]) -> Option<(Logged<'_>, &[u8])> {
    let (key_bytes, after) = chunk.split_first_chunk::<2>()?;
    let (row_bytes, after) = after.split_first_chunk::<4>()?;
    let (entry, after) = after.split_first_chunk::<4>()?;
    let key_bytes = u16::from_le_bytes(*key_bytes);
    let (key, after) = after.split_at(usize::from(key_bytes & !LISTED));
    let (row, after) = after.split_at(u32::from_le_bytes(*row_bytes) as usize);
    let entry = EntryId(u32::from_le_bytes(*entry));
    Some((Logged { row: Row { key, row }, entry, is_listed: key_bytes & LISTED != 0 }, after))
}

fn key_of(bytes: &[u8]) -> Key {
    Key::copied(bytes).expect("it was a key before it came here")
}

/// A key of a version that a checkpoint has taken.
#[derive(Clone, Copy)]
pub(crate) struct WrittenKey<'a> {
    pub key: &'a [u8],
    /// The entry that it had, if that is known.
    pub entry: Option<EntryId>,
    /// Whether it was listed as new with the version.
    pub is_listed: bool,
}

/// How far one has come who goes through the keys of the versions that a checkpoint has taken.
#[derive(Default)]
pub(crate) struct WrittenPlace {
    log: usize,
    chunk: usize,
    /// How far in the chunk.
    at: usize,
    /// How many of the log's keys that were listed again.
    again: usize,
}

impl WrittenPlace {
    /// The next key of `logs`, which are the same each time; nothing at the end.
    pub fn next<'a>(&mut self, logs: &'a [Log]) -> Option<WrittenKey<'a>> {
        loop {
            let log = logs.get(self.log)?;
            if let Some(chunk) = log.chunks.get(self.chunk) {
                if let Some((Logged { row, entry, is_listed }, rest)) = split(&chunk[self.at..]) {
                    self.at = chunk.len() - rest.len();
                    return Some(WrittenKey { key: row.key, entry: Some(entry), is_listed });
                }
                (self.chunk, self.at) = (self.chunk + 1, 0);
            } else if let Some((_, key)) = log.listed_again.get(self.again) {
                self.again += 1;
                return Some(WrittenKey { key: key.as_bytes(), entry: None, is_listed: true });
            } else {
                *self = Self { log: self.log + 1, ..Self::default() };
            }
        }
    }
}

/// All versions that no checkpoint has taken, and the size of these and of those that the running checkpoint is writing.
#[derive(Default)]
pub(crate) struct Unflushed {
    buckets: BTreeMap<u64, Log>,
    size: Size,
}

/// An amount of versions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// Versions.
    pub versions: usize,
    /// Bytes of their values.
    pub value_bytes: usize,
    /// About how much memory they take.
    pub memory: usize,
}

impl Size {
    /// The size of all `logs`.
    pub fn of(logs: &[Log]) -> Self {
        logs.iter().fold(Self::default(), |sum, log| Self {
            versions: sum.versions + log.versions,
            value_bytes: sum.value_bytes + log.value_bytes,
            memory: sum.memory + log.memory(),
        })
    }
}

impl Unflushed {
    /// Adds a version of a key that has this entry. It must not be there. With it, its key may have been listed as new.
    pub fn push(&mut self, entry: EntryId, key: &Key, version: &Version, is_listed_now: bool) {
        let log = self.buckets.entry(version.timestamp.time >> BUCKET_BITS).or_default();
        let (memory, value_bytes) = (log.memory(), log.value_bytes);
        log.push(entry, key.as_bytes(), version, is_listed_now);
        self.size.versions += 1;
        self.size.value_bytes += log.value_bytes - value_bytes;
        self.size.memory += log.memory() - memory;
    }

    /// The key of a version that is there is listed as new with it.
    pub fn list(&mut self, timestamp: Timestamp, key: Key) {
        let log = self.buckets.get_mut(&(timestamp.time >> BUCKET_BITS)).expect("the version is there");
        log.listed_again.push((timestamp, key));
    }

    /// All keys that are listed as new.
    pub fn listed(&self) -> impl Iterator<Item = Key> {
        self.buckets.values().flat_map(Log::listed)
    }

    /// The size of all versions, including those of a running checkpoint until they are [released](Unflushed::release).
    pub fn size(&self) -> Size {
        self.size
    }

    /// How many versions no checkpoint has taken whose time bucket ends at or below `watermark`.
    pub fn versions_up_to(&self, watermark: Timestamp) -> usize {
        let end = watermark.time >> BUCKET_BITS;
        self.buckets.range(..end).map(|(_, log)| log.versions).sum()
    }

    /// About how much memory these take.
    pub fn memory_up_to(&self, watermark: Timestamp) -> usize {
        let end = watermark.time >> BUCKET_BITS;
        self.buckets.range(..end).map(|(_, log)| log.memory()).sum()
    }

    /// The base table now has the versions that were taken.
    pub fn release(&mut self, taken: Size) {
        self.size.versions -= taken.versions;
        self.size.value_bytes -= taken.value_bytes;
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
            if above.versions > 0 {
                self.buckets.insert(number, above);
            }
            versions += log.versions;
            if log.versions > 0 {
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

    #[test]
    fn a_checkpoint_that_is_cut_short_never_splits_a_timestamp_and_leaves_nothing_below() {
        let times = [1, 2, 2, 2, 3, BUCKET + 1, BUCKET + 5, 3 * BUCKET, 3 * BUCKET];
        for floor in [0, 2, BUCKET - 1, BUCKET, BUCKET + 5, 2 * BUCKET] {
            for watermark in [floor, floor + 2, BUCKET + 1, 2 * BUCKET, 3 * BUCKET, 9 * BUCKET].into_iter().filter(|to| *to >= floor) {
                for count in [1, 4, 6, 100] {
                    let mut unflushed = Unflushed::default();
                    for (number, time) in times.into_iter().enumerate() {
                        let key = Key::from(format!("key {number}").as_str());
                        unflushed.push(EntryId(number as u32), &key, &Version { timestamp: at(time), value: None }, number < 8);
                    }
                    // All were listed with their versions, but for the last, which was listed again.
                    unflushed.list(at(times[8]), Key::from("again"));
                    let (reached, taken) = unflushed.take(at(floor), at(watermark), count);
                    let mut place = WrittenPlace::default();
                    let written: Vec<WrittenKey<'_>> = std::iter::from_fn(|| place.next(&taken)).collect();
                    let is_of_its_key = |written: &WrittenKey<'_>| {
                        written.entry.is_none_or(|EntryId(number)| written.key == format!("key {number}").as_bytes())
                    };
                    assert!(written.iter().all(is_of_its_key));
                    let listed: Vec<Key> = written.iter().filter(|written| written.is_listed).map(|written| key_of(written.key)).collect();
                    let is_taken = |number: usize| times.get(number).is_none_or(|time| at(*time) <= reached);
                    let number = |number: usize| Key::from(format!("key {number}").as_str());
                    let mut expected: Vec<Key> = (0..8).filter(|number| is_taken(*number)).map(number).collect();
                    expected.extend(is_taken(8).then(|| Key::from("again")));
                    assert_eq!(listed, expected);
                    assert!(at(floor) <= reached && reached <= at(watermark));
                    let taken: Vec<Timestamp> = taken.iter().flat_map(|log| log.iter().map(|row| row::timestamp(row.row))).collect();
                    let expected: Vec<Timestamp> = times.into_iter().map(at).filter(|timestamp| *timestamp <= reached).collect();
                    assert_eq!(taken, expected, "from {floor} to {watermark}, about {count}");
                    assert!(reached == at(watermark) || taken.len() >= count);
                    let (_, rest) = unflushed.take(reached, at(99 * BUCKET), 100);
                    assert_eq!(rest.iter().map(|log| log.versions).sum::<usize>(), times.len() - taken.len());
                }
            }
        }
    }
}
