//! What was committed and not folded yet, in the order of time: rows ready to be written, end to end.
//!
//! A fold takes whole stretches of time, as they lie, and sorts them where nobody waits; nothing is looked up for it.

use std::collections::BTreeMap;

use types::{ClientId, Key, Timestamp};

use crate::{Row, Version, row};

/// About how long a stretch is, as a power of two in nanoseconds: 67 ms.
const STRETCH_BITS: u32 = 26;
/// What one version costs in memory beside its value.
const VERSION_BYTES: usize = 64;
/// A log that has no room for this much gets more.
const ROOM_BYTES: usize = 1_024;
/// The lengths before each key and row.
const HEADER_BYTES: usize = 6;

/// What was committed within one stretch of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Of each version the length of its key (two bytes) and of its row (four), the key, the row.
    bytes: Vec<u8>,
    /// How many versions there are.
    pub versions: usize,
    /// How many bytes their values have.
    pub value_bytes: usize,
}

impl Log {
    fn push(&mut self, key: &[u8], version: &Version) {
        let start = self.bytes.len();
        if self.bytes.capacity() - start < ROOM_BYTES {
            // By a quarter, or a little, rather than by half: there are as many logs as the window has stretches.
            self.bytes.reserve_exact((start / 4).max(ROOM_BYTES));
        }
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        self.bytes.extend_from_slice(key);
        let row_at = self.bytes.len();
        row::encode(version, &mut self.bytes);
        let key_bytes = u16::try_from(key.len()).expect("KEY_BYTES_MAX fits in u16");
        let row_bytes = u32::try_from(self.bytes.len() - row_at).expect("VALUE_BYTES_MAX fits in u32");
        self.bytes[start..start + 2].copy_from_slice(&key_bytes.to_le_bytes());
        self.bytes[start + 2..start + HEADER_BYTES].copy_from_slice(&row_bytes.to_le_bytes());
        self.versions += 1;
        self.value_bytes += row::value_bytes(&self.bytes[row_at..]);
    }

    /// About how much memory they take: here, and once more among their keys' versions.
    pub fn memory(&self) -> usize {
        self.versions * VERSION_BYTES + 2 * self.bytes.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (key_bytes, after) = rest.split_first_chunk::<2>()?;
            let (row_bytes, after) = after.split_first_chunk::<4>()?;
            let (key, after) = after.split_at(usize::from(u16::from_le_bytes(*key_bytes)));
            let (row, after) = after.split_at(u32::from_le_bytes(*row_bytes) as usize);
            rest = after;
            Some(Row { key, row })
        })
    }

    /// Splits off what is above `watermark`.
    fn split_above(&mut self, watermark: Timestamp) -> Self {
        let (mut below, mut above) = (Self::default(), Self::default());
        let mut from = 0;
        for Row { key, row } in self.iter() {
            let part = if row::timestamp(row) <= watermark { &mut below } else { &mut above };
            let to = from + HEADER_BYTES + key.len() + row.len();
            part.bytes.extend_from_slice(&self.bytes[from..to]);
            part.versions += 1;
            part.value_bytes += row::value_bytes(row);
            from = to;
        }
        *self = below;
        above
    }
}

/// All versions that no fold has taken, and how many there are of those that the running one has not brought to the base.
#[derive(Default)]
pub(crate) struct Unfolded {
    stretches: BTreeMap<u64, Log>,
    weight: Weight,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// Versions.
    pub versions: usize,
    /// Bytes of their values.
    pub value_bytes: usize,
    /// About how much memory they take.
    pub memory: usize,
}

impl Weight {
    /// What all of `logs` weigh.
    pub fn of(logs: &[Log]) -> Self {
        logs.iter().fold(Self::default(), |sum, log| Self {
            versions: sum.versions + log.versions,
            value_bytes: sum.value_bytes + log.value_bytes,
            memory: sum.memory + log.memory(),
        })
    }
}

impl Unfolded {
    /// Adds a version, which must not be there.
    pub fn push(&mut self, key: &Key, version: &Version) {
        let log = self.stretches.entry(version.timestamp.time >> STRETCH_BITS).or_default();
        let (memory, value_bytes) = (log.memory(), log.value_bytes);
        log.push(key.as_bytes(), version);
        self.weight.versions += 1;
        self.weight.value_bytes += log.value_bytes - value_bytes;
        self.weight.memory += log.memory() - memory;
    }

    /// How much there is, what a fold that runs has taken included, until it is [let go](Unfolded::let_go).
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// What was taken is in the base now.
    pub fn let_go(&mut self, taken: Weight) {
        self.weight.versions -= taken.versions;
        self.weight.value_bytes -= taken.value_bytes;
        self.weight.memory -= taken.memory;
    }

    /// Takes the versions up to `watermark`, oldest first, and gives the watermark they reach: when there are more than about
    /// `count`, a lower one, but never below `floor`. None at or below it is left.
    pub fn take(&mut self, floor: Timestamp, watermark: Timestamp, count: usize) -> (Timestamp, Vec<Log>) {
        assert!(floor <= watermark, "a watermark only rises");
        let (mut taken, mut versions) = (Vec::new(), 0);
        while let Some(mut stretch) = self.stretches.first_entry() {
            let number = *stretch.key();
            let start = number << STRETCH_BITS;
            if start > watermark.time {
                break;
            }
            if versions >= count && start > floor.time {
                return (Timestamp::new(start - 1, ClientId(u64::MAX)), taken);
            }
            let is_whole = start | ((1 << STRETCH_BITS) - 1) < watermark.time;
            let above = if is_whole { Log::default() } else { stretch.get_mut().split_above(watermark) };
            let log = stretch.remove();
            if above.versions > 0 {
                self.stretches.insert(number, above);
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

    const STRETCH: u64 = 1 << STRETCH_BITS;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    #[test]
    fn a_fold_that_is_cut_short_never_splits_a_timestamp_and_leaves_nothing_below() {
        let times = [1, 2, 2, 2, 3, STRETCH + 1, STRETCH + 5, 3 * STRETCH, 3 * STRETCH];
        for floor in [0, 2, STRETCH - 1, STRETCH, STRETCH + 5, 2 * STRETCH] {
            for watermark in [floor, floor + 2, STRETCH + 1, 2 * STRETCH, 3 * STRETCH, 9 * STRETCH].into_iter().filter(|to| *to >= floor) {
                for count in [1, 4, 6, 100] {
                    let mut unfolded = Unfolded::default();
                    for (number, time) in times.into_iter().enumerate() {
                        let key = Key::from(format!("key {number}").as_str());
                        unfolded.push(&key, &Version { timestamp: at(time), value: None });
                    }
                    let (reached, taken) = unfolded.take(at(floor), at(watermark), count);
                    assert!(at(floor) <= reached && reached <= at(watermark));
                    let taken: Vec<Timestamp> = taken.iter().flat_map(|log| log.iter().map(|row| row::timestamp(row.row))).collect();
                    let expected: Vec<Timestamp> = times.into_iter().map(at).filter(|timestamp| *timestamp <= reached).collect();
                    assert_eq!(taken, expected, "from {floor} to {watermark}, about {count}");
                    assert!(reached == at(watermark) || taken.len() >= count);
                    let (_, rest) = unfolded.take(reached, at(99 * STRETCH), 100);
                    assert_eq!(rest.iter().map(|log| log.versions).sum::<usize>(), times.len() - taken.len());
                }
            }
        }
    }
}
