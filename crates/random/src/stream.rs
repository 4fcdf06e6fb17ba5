//! Random numbers from a seed: one independent stream for each thing that is drawn.
//!
//! The generator is ours (xoshiro256++, seeded by SplitMix64), because a seed written down today must mean the same run for
//! ever: no crate promises that over its versions.

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Random {
    /// The stream called `name` of a run's seed. Drawing from one stream moves no other, so that a change to what one part
    /// of the world draws leaves the rest of the run as it was.
    #[must_use]
    pub fn stream(seed: u64, name: &str) -> Self {
        let mut mixed =
            name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Self { state: [(); 4].map(|()| split_mix(&mut mixed)) }
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "a stream has no end, so there is no `None` to look for")]
    pub fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ shifted, d.rotate_left(45)];
        result
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        // The bias is below bound / 2^64: no test could see it.
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits has 64")
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index below `length`, which is not 0.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }

    /// Whether something happens that happens `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of `choices`, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_every_time_and_unlike_its_neighbours() {
        let draw = |seed, name| {
            let mut random = Random::stream(seed, name);
            [(); 8].map(|()| random.next())
        };
        assert_eq!(draw(1, "network"), draw(1, "network"));
        assert_ne!(draw(1, "network"), draw(2, "network"));
        assert_ne!(draw(1, "network"), draw(1, "disk"));
        // Written down once: a seed means the same for ever.
        assert_eq!(Random::stream(7, "network").next(), 3_134_101_966_949_798_932);
    }

    #[test]
    fn numbers_stay_in_their_range_and_fill_it() {
        let mut random = Random::stream(3, "range");
        let mut seen = [false; 6];
        for _ in 0..1_000 {
            let number = random.between(10, 15);
            assert!((10..=15).contains(&number));
            seen[usize::try_from(number - 10).expect("small")] = true;
        }
        assert_eq!(seen, [true; 6]);
    }
}
