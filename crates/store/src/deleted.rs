//! Ranges in which nothing but deleted keys was found, so that a scan passes each in one step.
//!
//! A deleted key keeps its row (`base.rs` says why), so a queue from whose beginning a million keys were taken has a million rows before its first. What a scan
//! has found there is remembered, in memory alone: of each key of such a range, the newest version of all is a deletion, and none is above a
//! timestamp. Whatever is committed in it splits it.

use std::collections::BTreeMap;
use std::ops::Bound;

use mutants::{Mutant, broken};
use types::{Direction, Key, KeyRange, Timestamp};

/// So many ranges are remembered at most, and so many bytes of keys.
const RANGES_MAX: usize = 16_384;
const KEY_BYTES_MAX: usize = 8 << 20;
/// So many ranges are looked at for one that a reader may pass over, and joined with it.
const LOOKED_AT_MAX: usize = 64;
/// A range of so many keys does not become younger by what is found beside it: who reads from further back could not pass over it any more, and a
/// vote cannot look at much more.
const YOUNGER_MAX: usize = 1_024;
/// Ranges that touch become one when they are so old that hardly anybody reads from before, in nanoseconds.
const JOINED_NS: u64 = 10_000_000_000;

/// A range in which nothing but deleted keys was found.
struct DeletedRange {
    high: Key,
    /// No version is above it.
    up_to: Timestamp,
    /// How many keys were found there, about.
    keys: usize,
    /// It is a part of what was found, which may have no keys at all.
    is_part: bool,
    /// When it was last found or passed over.
    used: u64,
}

/// The ranges of one store. No two of them overlap.
pub(crate) struct DeletedRanges {
    by_low: BTreeMap<Key, DeletedRange>,
    key_bytes: usize,
    /// A range of fewer keys is not worth it, unless it touches another.
    keys_min: usize,
    /// Counts the uses.
    now: u64,
}

impl DeletedRanges {
    pub fn new(keys_min: usize) -> Self {
        Self { by_low: BTreeMap::new(), key_bytes: 0, keys_min, now: 0 }
    }

    /// The part of `range` that comes first in this direction and has nothing but keys deleted at or before `by`, as far as is known; and whether
    /// that is all of what is left of a range that was split, so that it is not known whether there are any keys.
    pub fn first_in(&mut self, range: &KeyRange, direction: Direction, by: Timestamp) -> Option<(KeyRange, bool)> {
        if self.by_low.is_empty() {
            return None;
        }
        let begin = self.holder(range.low()).unwrap_or_else(|| range.low().clone());
        let is_known = |(_, one): &(&Key, &DeletedRange)| one.up_to <= by || broken(Mutant::DeletedLater);
        let found = direction.of(self.by_low.range(begin..range.high().clone())).take(LOOKED_AT_MAX).find(is_known);
        let low = found.map(|(low, _)| low.clone())?;
        self.join_old(&low, by);
        self.now += 1;
        let found = self.by_low.get_mut(&low)?;
        found.used = self.now;
        let is_whole = *range.low() <= low && found.high <= *range.high();
        let is_part = found.is_part && is_whole;
        let part = KeyRange::new((&low).max(range.low()).clone(), (&found.high).min(range.high()).clone())?;
        Some((part, is_part))
    }

    /// Makes one of that which begins at `low` and those which follow on it, as long as all are old to who reads from `by`.
    fn join_old(&mut self, low: &Key, by: Timestamp) {
        let is_old = |one: &&DeletedRange| !one.is_part && one.up_to.time.saturating_add(JOINED_NS) <= by.time;
        for _ in 0..LOOKED_AT_MAX {
            let Some(one) = self.by_low.get(low).filter(is_old) else { return };
            let next = one.high.clone();
            if self.by_low.get(&next).filter(is_old).is_none() {
                return;
            }
            let (Some(next), Some(one)) = (self.remove(&next), self.remove(low)) else { return };
            let (keys, up_to) = (one.keys + next.keys, one.up_to.max(next.up_to));
            self.insert(low.clone(), DeletedRange { keys, up_to, ..next });
        }
    }

    /// Whether a [part](Self::first_in) that begins at `low` has as many keys as are worth it.
    pub fn looked_into(&mut self, low: &Key, is_worth_it: bool) {
        match self.by_low.get_mut(low) {
            Some(part) if is_worth_it => part.is_part = false,
            _ => drop(self.remove(low)),
        }
    }

    /// A range of fewer keys is not worth it.
    pub fn keys_min(&self) -> usize {
        self.keys_min
    }

    /// Remembers `range`, in which `keys` keys were found, all deleted, and no version above `up_to`.
    pub fn remember(&mut self, range: &KeyRange, keys: usize, up_to: Timestamp) {
        let (mut low, mut high) = (range.low().clone(), range.high().clone());
        let (mut keys, mut up_to, mut touches) = (keys, up_to, false);
        let mut below = Bound::Included(high.clone());
        while let Some((met_low, met)) = self.by_low.range((Bound::Unbounded, below)).next_back().filter(|(_, met)| met.high >= low) {
            let overlap = *met_low < high && low < met.high;
            let met_low = met_low.clone();
            if overlap || met.keys + keys <= YOUNGER_MAX || up_to <= met.up_to {
                let Some(met) = self.remove(&met_low) else { return };
                keys = if overlap { keys.max(met.keys) } else { keys + met.keys };
                up_to = up_to.max(met.up_to);
                high = high.max(met.high);
                low = low.min(met_low.clone());
            }
            (below, touches) = (Bound::Excluded(met_low), true);
        }
        if keys >= self.keys_min || touches {
            self.now += 1;
            let used = self.now;
            self.insert(low.detached(), DeletedRange { high: high.detached(), up_to, keys, is_part: false, used });
        }
    }

    /// A version of `key` is committed.
    pub fn split_at(&mut self, key: &Key) {
        if self.by_low.is_empty() || broken(Mutant::DeletedForGood) {
            return;
        }
        let Some(low) = self.holder(key) else { return };
        let Some(DeletedRange { high, up_to, keys, used, .. }) = self.remove(&low) else { return };
        let before = KeyRange::new(low, key.detached());
        let behind = key.successor().and_then(|next| KeyRange::new(next, high));
        for part in [before, behind].into_iter().flatten() {
            let (low, high) = (part.low().clone(), part.high().clone());
            self.insert(low, DeletedRange { high, up_to, keys: keys.div_ceil(2), is_part: true, used });
        }
    }

    /// Where the range begins that holds `key`.
    fn holder(&self, key: &Key) -> Option<Key> {
        let (low, _) = self.by_low.range::<Key, _>(..=key).next_back().filter(|(_, one)| *key < one.high)?;
        Some(low.clone())
    }

    fn remove(&mut self, low: &Key) -> Option<DeletedRange> {
        let removed = self.by_low.remove(low)?;
        self.key_bytes -= low.as_bytes().len() + removed.high.as_bytes().len();
        Some(removed)
    }

    fn insert(&mut self, low: Key, range: DeletedRange) {
        if self.by_low.len() >= RANGES_MAX || self.key_bytes >= KEY_BYTES_MAX {
            self.make_room();
        }
        self.key_bytes += low.as_bytes().len() + range.high.as_bytes().len();
        self.by_low.insert(low, range);
    }

    /// Forgets the half that is worth least: first those with few keys, and of them those not used for longest.
    fn make_room(&mut self) {
        let mut worth: Vec<(bool, u64, Key)> =
            self.by_low.iter().map(|(low, one)| (!one.is_part && one.keys >= YOUNGER_MAX, one.used, low.clone())).collect();
        let half = worth.len().div_ceil(2);
        worth.select_nth_unstable(half.saturating_sub(1));
        for (_, _, low) in &worth[..half] {
            self.remove(low);
        }
    }
}

#[cfg(test)]
mod tests {
    use types::ClientId;

    use super::*;

    fn range(low: usize, high: usize) -> KeyRange {
        let key = |number: usize| Key::from(format!("{number:05}").as_str());
        KeyRange::new(key(low), key(high)).expect("it has keys")
    }

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn known(ranges: &mut DeletedRanges, range: &KeyRange, direction: Direction, by: u64) -> Option<KeyRange> {
        ranges.first_in(range, direction, at(by)).map(|(part, _)| part)
    }

    fn all(ranges: &DeletedRanges) -> Vec<String> {
        ranges.by_low.iter().map(|(low, one)| format!("{low}..{} {}", one.high, one.keys)).collect()
    }

    #[test]
    fn what_is_remembered_side_by_side_is_joined_unless_a_large_one_would_become_younger() {
        let mut ranges = DeletedRanges::new(1);
        ranges.remember(&range(0, 100), 100, at(1));
        ranges.remember(&range(100, 110), 10, at(2));
        assert_eq!(all(&ranges), ["00000..00110 110"]);
        ranges.remember(&range(110, 2_000), 1_890, at(3));
        assert_eq!(all(&ranges), ["00000..00110 110", "00110..02000 1890"]);
        ranges.remember(&range(2_000, 2_001), 1, at(4));
        ranges.remember(&range(2_001, 2_002), 1, at(3));
        assert_eq!(all(&ranges), ["00000..00110 110", "00110..02000 1890", "02000..02002 2"]);
        for direction in [Direction::Ascending, Direction::Descending] {
            assert_eq!(known(&mut ranges, &range(1_000, 3_000), direction, 3), Some(range(1_000, 2_000)));
            assert_eq!(known(&mut ranges, &range(2_000, 3_000), direction, 3), None, "the last keys were deleted later");
            assert_eq!(known(&mut ranges, &range(2_000, 3_000), direction, 4), Some(range(2_000, 2_002)));
            assert_eq!(known(&mut ranges, &range(0, 50), direction, 3), Some(range(0, 50)));
            assert_eq!(known(&mut ranges, &range(3_000, 3_001), direction, 4), None);
        }
        ranges.remember(&range(1_990, 2_001), 10, at(2));
        assert_eq!(all(&ranges), ["00000..00110 110", "00110..02002 1890"], "those that overlap are one in any case");
        // Old ones are joined when somebody passes over them.
        assert_eq!(known(&mut ranges, &range(0, 9_000), Direction::Ascending, JOINED_NS + 4), Some(range(0, 2_002)));
        assert_eq!(all(&ranges), ["00000..02002 2000"]);
    }

    #[test]
    fn the_first_in_a_direction_is_found_beside_those_of_later() {
        let mut ranges = DeletedRanges::new(1);
        for (number, time) in [(0, 5), (20, 9), (40, 5), (60, 9)] {
            ranges.remember(&range(number, number + 10), 10, at(time));
        }
        let mut first = |direction, by| known(&mut ranges, &range(5, 65), direction, by);
        assert_eq!(first(Direction::Ascending, 5), Some(range(5, 10)));
        assert_eq!(first(Direction::Descending, 5), Some(range(40, 50)));
        assert_eq!(first(Direction::Descending, 9), Some(range(60, 65)));
        assert_eq!(first(Direction::Ascending, 4), None);
        assert_eq!(known(&mut ranges, &range(10, 20), Direction::Ascending, 9), None);
    }

    #[test]
    fn what_is_committed_splits_the_range_that_holds_it() {
        let mut ranges = DeletedRanges::new(10);
        ranges.remember(&range(0, 100), 100, at(1));
        for outside in [range(100, 101), range(200, 201)] {
            ranges.split_at(outside.low());
        }
        assert_eq!(all(&ranges), ["00000..00100 100"]);
        ranges.split_at(range(30, 31).low());
        let behind =
            KeyRange::new(range(30, 31).low().successor().expect("it is short"), range(0, 90).high().clone()).expect("it has keys");
        for direction in [Direction::Ascending, Direction::Descending] {
            assert_eq!(ranges.first_in(&range(0, 30), direction, at(1)), Some((range(0, 30), true)));
            assert_eq!(ranges.first_in(&range(30, 90), direction, at(1)), Some((behind.clone(), false)), "it goes on behind that");
        }
        // Whoever looks into a part finds some keys in one, and not enough in the other.
        ranges.looked_into(range(0, 30).low(), true);
        ranges.looked_into(behind.low(), false);
        assert_eq!(ranges.first_in(&range(0, 100), Direction::Ascending, at(1)), Some((range(0, 30), false)));
        assert_eq!(known(&mut ranges, &range(30, 100), Direction::Ascending, 1), None);
    }

    #[test]
    fn a_few_keys_are_remembered_beside_others_alone() {
        let mut ranges = DeletedRanges::new(10);
        ranges.remember(&range(0, 9), 9, at(1));
        assert!(all(&ranges).is_empty(), "it is not worth it");
        ranges.remember(&range(10, 40), 2_000, at(1));
        ranges.remember(&range(9, 10), 1, at(2));
        assert_eq!(all(&ranges), ["00009..00010 1", "00010..00040 2000"]);
    }

    #[test]
    fn those_not_used_for_longest_make_room_and_large_ones_last() {
        let mut ranges = DeletedRanges::new(1);
        let one = |number: usize| range(4 * number, 4 * number + 1);
        (0..RANGES_MAX).for_each(|number| ranges.remember(&one(number), if number == 3 { 5_000 } else { 1 }, at(1)));
        for number in (0..RANGES_MAX).filter(|number| number % 3 == 0) {
            assert!(known(&mut ranges, &one(number), Direction::Ascending, 1).is_some());
        }
        ranges.remember(&range(99_998, 99_999), 1, at(1));
        assert!(all(&ranges).len() <= RANGES_MAX / 2 + 1);
        let mut is_known = |part: KeyRange| known(&mut ranges, &part, Direction::Ascending, 1).is_some();
        assert!(is_known(one(3)) && is_known(one(9_999)) && is_known(range(99_998, 99_999)) && !is_known(one(10_000)) && !is_known(one(1)));
        let bytes = |(low, one): (&Key, &DeletedRange)| low.as_bytes().len() + one.high.as_bytes().len();
        assert_eq!(ranges.key_bytes, ranges.by_low.iter().map(bytes).sum::<usize>());
    }
}
