//! The random numbers and texts of the TPC-C specification (revision 5.11, clauses 2.1.6 and 4.3.2).

use rand::Rng;
use rand::rngs::SmallRng;

use super::Size;
use crate::row::Text;

/// The syllables of customers' last names.
const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// The constant of last names while the tables are filled. It was drawn once; a run's own is drawn to differ from it.
const LAST_NAME_C_LOAD: u32 = 157;

/// A number from `x` to `y`, some far likelier than others: `NURand(a, x, y)` with the constant `c`.
pub(super) fn nurand(a: u32, c: u32, x: u32, y: u32, rng: &mut SmallRng) -> u32 {
    let mixed = u64::from(rng.random_range(0..=a) | rng.random_range(x..=y)) + u64::from(c);
    x + u32::try_from(mixed % u64::from(y - x + 1)).expect("a remainder of a 32-bit number has 32 bits")
}

/// One of the three non-uniform laws of the specification, for a table that may be smaller than there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Law {
    a: u32,
    c: u32,
    first: u32,
    last: u32,
}

/// The laws by which a run draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Laws {
    /// Numbers of last names.
    pub(super) names: Law,
    /// Customers' numbers.
    pub(super) customers: Law,
    /// Items' numbers.
    pub(super) items: Law,
}

impl Law {
    pub(super) fn draw(&self, rng: &mut SmallRng) -> u32 {
        nurand(self.a, self.c, self.first, self.last, rng)
    }
}

impl Laws {
    /// The laws of a run: their constants are drawn once, that of last names as clause 2.1.6.1 wants it.
    pub(super) fn draw(size: Size, rng: &mut SmallRng) -> Self {
        let names = last_names(size);
        // Scaled down there is no room for the distance that the specification wants.
        let c = if size.names() == 1_000 {
            loop {
                let c = rng.random_range(0..=names.a);
                if fits_load(c.abs_diff(names.c)) {
                    break c;
                }
            }
        } else {
            rng.random_range(0..=names.a)
        };
        let law = |a_full: u32, full: u32, count: u32, rng: &mut SmallRng| {
            let a = scaled_a(a_full, full, count);
            Law { a, c: rng.random_range(0..=a), first: 1, last: count }
        };
        Self { names: Law { c, ..names }, customers: law(1_023, 3_000, size.customers, rng), items: law(8_191, 100_000, size.items, rng) }
    }
}

/// The law of last names while the tables are filled.
pub(super) fn last_names(size: Size) -> Law {
    let a = scaled_a(255, 1_000, size.names());
    Law { a, c: LAST_NAME_C_LOAD % (a + 1), first: 0, last: size.names() - 1 }
}

/// Whether the constants of last names of a run and of the load may differ by so much.
fn fits_load(difference: u32) -> bool {
    (65..=119).contains(&difference) && difference != 96 && difference != 112
}

/// The specification's `a` for a range of `full` numbers, made smaller with it: one less than a power of two.
fn scaled_a(a_full: u32, full: u32, count: u32) -> u32 {
    let wanted = u64::from(a_full + 1) * u64::from(count) / u64::from(full);
    let power = u32::try_from(wanted.max(1)).map_or(31, u32::ilog2);
    (1 << power) - 1
}

/// The last name with this number, which is below 1,000.
pub(super) fn last_name(number: u32) -> String {
    let syllable = |digit: u32| SYLLABLES[(digit % 10) as usize];
    [syllable(number / 100), syllable(number / 10), syllable(number)].concat()
}

/// From `least` to `most` letters and digits.
pub(super) fn letters(least: usize, most: usize, rng: &mut SmallRng) -> Text {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let length = rng.random_range(least..=most);
    Text::new((0..length).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect())
}

/// So many digits.
pub(super) fn digits(count: usize, rng: &mut SmallRng) -> Text {
    Text::new((0..count).map(|_| char::from(rng.random_range(b'0'..=b'9'))).collect())
}

/// What marks goods as a brand's own.
const ORIGINAL: &str = "ORIGINAL";

/// From 26 to 50 letters, and in one of ten the word ORIGINAL among them.
pub(super) fn original_data(rng: &mut SmallRng) -> Text {
    let text = letters(26, 50, rng).to_string();
    if !rng.random_ratio(1, 10) {
        return Text::new(text);
    }
    let at = rng.random_range(0..=text.len() - ORIGINAL.len());
    Text::new(format!("{}{ORIGINAL}{}", &text[..at], &text[at + ORIGINAL.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const FULL: Size = Size { warehouses: 1, items: 100_000, customers: 3_000 };

    #[test]
    fn numbers_stay_in_their_range_and_are_not_uniform() {
        let mut rng = SmallRng::seed_from_u64(1);
        for (a, x, y) in [(255, 0, 999), (1_023, 1, 3_000), (8_191, 1, 100_000), (0, 1, 1), (7, 0, 9)] {
            for c in [0, a / 2, a] {
                let mut counts = vec![0_u32; (y + 1) as usize];
                (0..50_000).for_each(|_| counts[nurand(a, c, x, y, &mut rng) as usize] += 1);
                assert_eq!(counts[..x as usize].iter().sum::<u32>(), 0);
                assert_eq!(counts[x as usize..].iter().sum::<u32>(), 50_000);
                if a >= 255 {
                    counts.sort_unstable();
                    let likely: u32 = counts[counts.len() - counts.len() / 10..].iter().sum();
                    assert!(likely > 10_000, "the likeliest tenth of {x} to {y} came {likely} times of 50000");
                }
            }
        }
    }

    #[test]
    fn the_constants_are_the_specifications() {
        for seed in 0..200 {
            let laws = Laws::draw(FULL, &mut SmallRng::seed_from_u64(seed));
            assert_eq!((laws.names.a, laws.customers.a, laws.items.a), (255, 1_023, 8_191));
            assert!(fits_load(laws.names.c.abs_diff(last_names(FULL).c)), "{laws:?}");
        }
        assert!([64, 96, 112, 120].iter().all(|difference| !fits_load(*difference)) && fits_load(65) && fits_load(119));
        let small = Laws::draw(Size { warehouses: 1, items: 100, customers: 30 }, &mut SmallRng::seed_from_u64(1));
        assert_eq!((small.names.a, small.customers.a, small.items.a), (1, 7, 7));
        assert_eq!((small.names.first, small.names.last, small.customers.last, small.items.last), (0, 9, 30, 100));
    }

    #[test]
    fn last_names_are_made_of_syllables() {
        assert_eq!([0, 371, 999].map(last_name), ["BARBARBAR", "PRICALLYOUGHT", "EINGEINGEING"]);
    }

    #[test]
    fn one_of_ten_goods_is_original() {
        let mut rng = SmallRng::seed_from_u64(1);
        let texts: Vec<String> = (0..10_000).map(|_| original_data(&mut rng).to_string()).collect();
        assert!(texts.iter().all(|text| (26..=50).contains(&text.len())));
        let original = texts.iter().filter(|text| text.contains(ORIGINAL)).count();
        assert!((900..1_100).contains(&original), "{original}");
        assert_eq!(digits(16, &mut rng).to_string().len(), 16);
    }
}
