//! Up to when ranges of keys have been read (beyond the paper): what read timestamps are to single keys.
//!
//! A writer has to know the newest timestamp at which anybody may have read a range that holds its key, whether that reader's transaction
//! ever comes to prepare or not. So keys are cut into pieces, each with the newest timestamp at which it was read. Whoever reads a range
//! takes out the pieces in it that were read earlier, and fills what lies between those that were read later. So nobody has writers voted
//! down but of keys that it has read, at the time at which it has read them.
//!
//! There is room for a bounded number of pieces. When they are more, the older half goes, and no write below those is let in any more,
//! whatever its key.

use std::collections::BTreeMap;
use std::ops::Bound;

use mutants::{Mutant, broken};
use types::{Key, KeyRange, Timestamp};

/// The most pieces, and the most bytes of their keys.
const PIECES_MAX: usize = 1 << 16;
const KEY_BYTES_MAX: usize = 8 << 20;

/// The newest reader of each range.
#[derive(Debug)]
pub(crate) struct RangeTimestamps {
    /// By its first key: where it ends, and when it was read.
    pieces: BTreeMap<Key, (Key, Timestamp)>,
    /// The bytes of their keys.
    key_bytes: usize,
    pieces_max: usize,
    /// Whatever was read in ranges that have gone, was read at or below this.
    floor: Timestamp,
}

impl RangeTimestamps {
    pub fn new() -> Self {
        Self { pieces: BTreeMap::new(), key_bytes: 0, pieces_max: PIECES_MAX, floor: Timestamp::ZERO }
    }

    /// The newest timestamp at which a range that holds `key` may have been read.
    pub fn get(&self, key: &Key) -> Timestamp {
        let piece = self.pieces.range::<Key, _>((Bound::Unbounded, Bound::Included(key))).next_back();
        let read_at = piece.filter(|(_, (high, _))| key < high).map_or(Timestamp::ZERO, |(_, (_, read_at))| *read_at);
        read_at.max(self.floor)
    }

    /// Whether all of `range` has been read at `timestamp` or later, as far as one look tells.
    pub fn has(&self, range: &KeyRange, timestamp: Timestamp) -> bool {
        let piece = self.pieces.range::<Key, _>((Bound::Unbounded, Bound::Included(range.low()))).next_back();
        timestamp <= self.floor || piece.is_some_and(|(_, (high, read_at))| range.high() <= high && timestamp <= *read_at)
    }

    /// `range` is read at `timestamp`.
    pub fn raise(&mut self, range: &KeyRange, timestamp: Timestamp) {
        if self.has(range, timestamp) {
            return;
        }
        self.cut(range.low());
        self.cut(range.high());
        let inside = self.pieces.range(range.low()..range.high());
        let inside: Vec<(Key, Key, Timestamp)> = inside.map(|(low, (high, read_at))| (low.clone(), high.clone(), *read_at)).collect();
        if broken(Mutant::PastRangeLifted) {
            let newest = inside.iter().map(|(_, _, read_at)| *read_at).fold(timestamp, Timestamp::max);
            inside.iter().for_each(|(low, _, _)| drop(self.remove(low)));
            self.insert(range.low().detached(), range.high().detached(), newest);
            return;
        }
        // Those that were read later stay as they are, so that nobody who reads the past holds writers off with what others have read.
        let mut from = range.low().clone();
        for (low, high, read_at) in inside {
            if read_at <= timestamp {
                self.remove(&low);
                continue;
            }
            self.fill(&from, &low, timestamp);
            from = high;
        }
        self.fill(&from, range.high(), timestamp);
        if self.pieces.len() > self.pieces_max || self.key_bytes > KEY_BYTES_MAX {
            self.forget_older_half();
        }
    }

    /// What lies between, where nothing is, is read at `timestamp`.
    fn fill(&mut self, from: &Key, to: &Key, timestamp: Timestamp) {
        if from < to {
            self.insert(from.detached(), to.detached(), timestamp);
        }
    }

    /// Lets no piece reach over `at`.
    fn cut(&mut self, at: &Key) {
        let before = self.pieces.range::<Key, _>((Bound::Unbounded, Bound::Excluded(at))).next_back();
        let Some(low) = before.filter(|(_, (high, _))| at < high).map(|(low, _)| low.clone()) else { return };
        if let Some((high, read_at)) = self.remove(&low) {
            self.insert(low, at.detached(), read_at);
            self.insert(at.detached(), high, read_at);
        }
    }

    fn forget_older_half(&mut self) {
        let mut times: Vec<Timestamp> = self.pieces.values().map(|(_, read_at)| *read_at).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        if !broken(Mutant::RangeFloorForgotten) {
            self.floor = self.floor.max(*median);
        }
        let median = *median;
        self.pieces.retain(|_, (_, read_at)| *read_at > median);
        self.key_bytes = self.pieces.iter().map(|(low, (high, _))| low.as_bytes().len() + high.as_bytes().len()).sum();
    }

    fn insert(&mut self, low: Key, high: Key, read_at: Timestamp) {
        self.key_bytes += low.as_bytes().len() + high.as_bytes().len();
        self.pieces.insert(low, (high, read_at));
    }

    fn remove(&mut self, low: &Key) -> Option<(Key, Timestamp)> {
        let (high, read_at) = self.pieces.remove(low)?;
        self.key_bytes -= low.as_bytes().len() + high.as_bytes().len();
        Some((high, read_at))
    }
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn key(number: u64) -> Key {
        Key::new(number.to_be_bytes().to_vec()).expect("it is short")
    }

    fn range(low: u64, high: u64) -> KeyRange {
        KeyRange::new(key(low), key(high)).expect("it has keys")
    }

    /// Numbers that look random.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 7_u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn a_key_was_read_when_the_last_range_was_that_holds_it() {
        let mut timestamps = RangeTimestamps::new();
        timestamps.raise(&range(10, 20), at(5));
        timestamps.raise(&range(15, 30), at(7));
        timestamps.raise(&range(12, 13), at(3));
        let times: Vec<u64> = [9, 10, 14, 15, 29, 30].iter().map(|number| timestamps.get(&key(*number)).time).collect();
        assert_eq!(times, [0, 5, 5, 7, 7, 0]);
        assert_eq!(timestamps.pieces.len(), 2, "what was read again is no piece of its own");
        assert!(timestamps.has(&range(16, 30), at(7)) && !timestamps.has(&range(16, 30), at(8)) && !timestamps.has(&range(16, 31), at(7)));
    }

    #[test]
    fn no_reader_is_forgotten_and_none_reaches_beyond_its_range() {
        for pieces_max in [4, 16, PIECES_MAX] {
            let (mut timestamps, mut below) = (RangeTimestamps { pieces_max, ..RangeTimestamps::new() }, numbers());
            let (mut model, mut newest_near) = ([0; 64], [0; 64]);
            for step in 1..2_000 {
                let low = below(60);
                let high = low + 1 + below(3);
                let time = step + below(50);
                timestamps.raise(&range(low, high), at(time));
                let inside = low as usize..high as usize;
                let newest = newest_near[inside.clone()].iter().copied().max().unwrap_or(0).max(time);
                model[inside.clone()].iter_mut().for_each(|known: &mut u64| *known = time.max(*known));
                newest_near[inside].iter_mut().for_each(|known: &mut u64| *known = newest);
                for number in 0..64_u64 {
                    let (found, slot) = (timestamps.get(&key(number)).time, number as usize);
                    assert!(found >= model[slot], "{number} was read at {}, not {found}", model[slot]);
                    assert!(found <= newest_near[slot].max(timestamps.floor.time));
                }
                let bytes: usize = timestamps.pieces.iter().map(|(low, (high, _))| low.as_bytes().len() + high.as_bytes().len()).sum();
                assert!(timestamps.pieces.len() <= pieces_max && timestamps.key_bytes == bytes);
            }
            assert_eq!(timestamps.floor > Timestamp::ZERO, pieces_max < 64, "with {pieces_max} pieces");
        }
    }
}
