//! Which keys there are, which are chosen, and what is written to them.

use rand::distr::Distribution as _;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use types::{Key, Value};

use crate::Zipf;

/// The most keys a table may have: as many as eight digits can name.
pub const KEYS_MAX: u64 = 100_000_000;
/// The largest value a workload writes, in bytes, so that ten of them still fit a transaction with ease.
pub const VALUE_BYTES_MAX: usize = 100_000;
/// Behind every key of a table, and of what it grows by.
pub(crate) const TABLE_END: &str = "user:";
/// How often a key that was chosen already is drawn anew before its free neighbour is taken instead.
const REDRAWS_MAX: usize = 64;

/// A table of keys, `user00000000` to `user<count - 1>` or the numbers themselves, all of one width, so that every transaction of a
/// workload has one size.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    count: u64,
    is_binary: bool,
    /// Prime to `count`, so that multiplying by it is a permutation of the indexes.
    stride: u64,
}

impl Table {
    /// A table of `count` keys, or `None` when that is 0 or over [`KEYS_MAX`].
    #[must_use]
    pub fn new(count: u64) -> Option<Self> {
        if count == 0 || count > KEYS_MAX {
            return None;
        }
        // Steps of the golden section spread neighbouring ranks as evenly as any.
        let mut stride = (count as f64 * 0.618_033_988_749_895) as u64 | 1;
        while common_divisor(stride, count) != 1 {
            stride += 1;
        }
        Some(Self { count, is_binary: false, stride })
    }

    /// The same, but each key is its index as four bytes.
    #[must_use]
    pub fn binary(count: u64) -> Option<Self> {
        Some(Self { is_binary: true, ..Self::new(count)? })
    }

    /// What the table is called where its sizes are noted.
    pub(crate) fn name(&self) -> &'static str {
        if self.is_binary { "numbers" } else { "user" }
    }

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The key at `index`.
    #[must_use]
    pub fn key(&self, index: u64) -> Key {
        if self.is_binary {
            let number = u32::try_from(index).expect("KEYS_MAX is less");
            return Key::new(number.to_be_bytes().to_vec()).expect("four bytes are a key");
        }
        Key::from(format!("user{index:08}").as_str())
    }

    /// Where the key of popularity `rank` (from 0) stands: a fixed permutation, so that the hot keys are spread
    /// over the table and thus over shards, and so that no two ranks share a key, as they do when YCSB hashes.
    #[must_use]
    pub fn scramble(&self, rank: u64) -> u64 {
        let place = u128::from(rank) * u128::from(self.stride) % u128::from(self.count);
        place as u64
    }
}

/// How keys are chosen from a table.
#[derive(Clone, Copy, Debug)]
pub enum Distribution {
    /// Every key as often as any other.
    Uniform,
    /// By Zipf's law, the hot keys spread over the table.
    Zipf(Zipf),
}

impl Distribution {
    /// One index of `table`.
    pub fn choose(&self, table: &Table, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Uniform => rng.random_range(0..table.count()),
            Self::Zipf(zipf) => table.scramble((zipf.draw(rng) - 1) % table.count()),
        }
    }

    /// `wanted` indexes, all different. The caller sees to it that the table has so many.
    pub fn choose_distinct(&self, table: &Table, wanted: usize, rng: &mut SmallRng) -> Vec<u64> {
        assert!(wanted as u64 <= table.count(), "nobody may want more distinct keys than there are");
        let mut chosen = Vec::with_capacity(wanted);
        while chosen.len() < wanted {
            let mut index = self.choose(table, rng);
            let mut redraws = 0;
            while chosen.contains(&index) {
                redraws += 1;
                index = if redraws <= REDRAWS_MAX { self.choose(table, rng) } else { (index + 1) % table.count() };
            }
            chosen.push(index);
        }
        chosen
    }
}

/// `wanted` indexes below `end`, all different, the last the likeliest: `law` draws how far from the end each is. Not all of
/// the table can be drawn, only as much of its end as `law` has ranks; the caller sees to it that these are enough.
pub(crate) fn choose_latest(law: &Zipf, end: u64, wanted: usize, rng: &mut SmallRng) -> Vec<u64> {
    let ranks = law.ranks().min(end);
    assert!(wanted as u64 <= ranks, "nobody may want more distinct keys than there are");
    let mut chosen = Vec::with_capacity(wanted);
    while chosen.len() < wanted {
        let mut back = law.draw(rng).min(ranks);
        while chosen.contains(&(end - back)) {
            back = back % ranks + 1;
        }
        chosen.push(end - back);
    }
    chosen
}

/// An index of `weights`, each as often as its weight says.
pub(crate) fn draw_weighted(weights: &[u32], rng: &mut SmallRng) -> usize {
    WeightedIndex::new(weights).expect("some weight is not 0").sample(rng)
}

/// A value of `bytes` random bytes: nothing on the way can win by compressing it.
pub fn random_value(bytes: usize, rng: &mut SmallRng) -> Value {
    let mut content = vec![0; bytes];
    rng.fill_bytes(&mut content);
    Value::new(content).expect("a workload's values are checked against VALUE_BYTES_MAX when it is made")
}

/// Turns numbers into one that looks random (the finaliser of SplitMix64): seeds for what must be found again.
#[must_use]
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x6a09_e667_f3bc_c908, |state: u64, part| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    #[test]
    fn keys_have_one_width() {
        let table = Table::new(KEYS_MAX).expect("a table");
        assert_eq!(table.key(12), Key::from("user00000012"));
        assert_eq!(table.key(KEYS_MAX - 1), Key::from("user99999999"));
        assert_eq!(Table::binary(KEYS_MAX).expect("a table").key(258).as_bytes(), [0, 0, 1, 2]);
        assert!(Table::new(0).is_none());
        assert!(Table::new(KEYS_MAX + 1).is_none());
    }

    #[test]
    fn the_latest_keys_are_the_likeliest_and_all_different() {
        let law = Zipf::new(100, 0.99).expect("a law");
        let mut rng = SmallRng::seed_from_u64(1);
        let mut last = 0;
        for _ in 0..1_000 {
            let chosen = choose_latest(&law, 150, 10, &mut rng);
            assert!(chosen.iter().all(|index| (50..150).contains(index)));
            assert_eq!(chosen.iter().collect::<std::collections::BTreeSet<_>>().len(), 10);
            last += usize::from(chosen.contains(&149));
        }
        assert!(last > 700, "{last} of 1000 read the last key, which every draw has a fifth of");
        assert_eq!(choose_latest(&law, 3, 3, &mut rng).len(), 3);
    }

    #[test]
    fn hot_keys_lie_far_apart() {
        let table = Table::new(10_000_000).expect("a table");
        let mut hot: Vec<u64> = (0..16).map(|rank| table.scramble(rank)).collect();
        hot.sort_unstable();
        assert!(hot.windows(2).all(|pair| pair[1] - pair[0] > 100_000), "{hot:?}");
    }

    #[test]
    fn uniform_choice_is_even() {
        let table = Table::new(10).expect("a table");
        let mut rng = SmallRng::seed_from_u64(3);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[Distribution::Uniform.choose(&table, &mut rng) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn every_key_can_be_wanted_at_once_even_under_a_steep_law() {
        let table = Table::new(20).expect("a table");
        let law = Distribution::Zipf(Zipf::new(20, 5.0).expect("a law"));
        let mut chosen = law.choose_distinct(&table, 20, &mut SmallRng::seed_from_u64(1));
        chosen.sort_unstable();
        assert_eq!(chosen, (0..20).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn scrambling_is_a_permutation(count in 1_u64..2_000) {
            let table = Table::new(count).expect("a table");
            let mut places: Vec<u64> = (0..count).map(|rank| table.scramble(rank)).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..count).collect::<Vec<_>>());
        }
    }
}
