//! The index of the table: entry numbers by hash.
//!
//! It uses open addressing with one word for each number, so a look-up waits for one cache line besides the entry itself.
//! Growing moves words and reads no key.

/// The word of a free position.
const EMPTY: u64 = 0;
/// The smallest index has this many bits.
const BITS_MIN: u32 = 4;

/// Numbers by hash. Several may have the same hash; the caller tells them apart. It takes eight bytes a word, and is three quarters full at most;
/// nothing that is taken out leaves anything behind, so that it is never put in order all at once.
#[derive(Debug)]
pub struct Index {
    /// The hash in the upper half and the number plus one in the lower. A word is at its hash's home position or behind it, with no gap between.
    words: Box<[u64]>,
    bits: u32,
    used: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self { words: vec![EMPTY; 1 << BITS_MIN].into(), bits: BITS_MIN, used: 0 }
    }
}

impl Index {
    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The number with this `hash` for which `is_it` is true.
    #[must_use]
    pub fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            match self.words[at] {
                EMPTY => return None,
                word if hash_of(word) == hash && is_it(number_of(word)) => return Some(number_of(word)),
                _ => at = self.next(at),
            }
        }
    }

    /// The word at the home position of `hash`. Reading it also caches its neighbours.
    #[must_use]
    pub fn first_word(&self, hash: u32) -> u64 {
        self.words[self.home(hash)]
    }

    /// Adds a number below `u32::MAX`, which must not be there.
    pub fn insert(&mut self, hash: u32, number: u32) {
        if (self.used + 1) * 4 > self.words.len() * 3 {
            self.grow();
        }
        self.put(u64::from(hash) << 32 | (u64::from(number) + 1));
        self.used += 1;
    }

    /// Takes a number out; `false` when it is not there.
    pub fn remove(&mut self, hash: u32, number: u32) -> bool {
        let mut at = self.home(hash);
        while self.words[at] != EMPTY && (hash_of(self.words[at]), number_of(self.words[at])) != (hash, number) {
            at = self.next(at);
        }
        if self.words[at] == EMPTY {
            return false;
        }
        self.used -= 1;
        // A word that could no longer be found behind the gap moves into it and leaves a new gap.
        let mut gap = at;
        loop {
            at = self.next(at);
            let word = self.words[at];
            if word == EMPTY {
                break;
            }
            let mask = self.words.len() - 1;
            let from_home = at.wrapping_sub(self.home(hash_of(word))) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.words[gap] = word;
                gap = at;
            }
        }
        self.words[gap] = EMPTY;
        true
    }

    fn grow(&mut self) {
        self.bits += 1;
        let words = std::mem::replace(&mut self.words, vec![EMPTY; 1 << self.bits].into());
        words.into_iter().filter(|word| *word != EMPTY).for_each(|word| self.put(word));
    }

    fn put(&mut self, word: u64) {
        let mut at = self.home(hash_of(word));
        while self.words[at] != EMPTY {
            at = self.next(at);
        }
        self.words[at] = word;
    }

    fn home(&self, hash: u32) -> usize {
        (u64::from(hash) << self.bits >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.words.len() - 1)
    }
}

fn hash_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn number_of(word: u64) -> u32 {
    (word as u32).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        /// Few hashes, all near the table's end, so that runs are long and go around it.
        #[test]
        fn the_index_agrees_with_a_set(steps in proptest::collection::vec((any::<bool>(), 0..6_u32, 0..40_u32), 1..400)) {
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            for (is_added, hash, number) in steps {
                let hash = u32::MAX - (hash << 27);
                if !is_added {
                    prop_assert_eq!(index.remove(hash, number), model.remove(&(hash, number)));
                } else if model.insert((hash, number)) {
                    index.insert(hash, number);
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for hash in (0..6).map(|hash| u32::MAX - (hash << 27)) {
                for number in 0..40 {
                    prop_assert_eq!(index.find(hash, |found| found == number).is_some(), model.contains(&(hash, number)));
                }
            }
        }
    }
}
