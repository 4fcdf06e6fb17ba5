//! Numbers found by hash: where each key's slot is.
//!
//! Open addressing, one word an entry, so that a look-up waits for one line of memory before the slot's own. Growing moves
//! words and looks at no key.

/// What stands in no entry.
const EMPTY: u64 = 0;
/// The table has at least as many words.
const BITS_MIN: u32 = 4;

/// Numbers, each under a hash; which of those under one hash is meant, the caller knows.
pub(crate) struct Index {
    /// Each entry: its hash above, its number plus one below. It stands at its hash's place or behind it, with no gap between.
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
    pub fn len(&self) -> usize {
        self.used
    }

    /// The number under `hash` that `is_it`.
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

    /// The word where `hash` is looked for first: a look at it brings the others near, too.
    pub fn first_word(&self, hash: u32) -> u64 {
        self.words[self.home(hash)]
    }

    /// Adds a number, which must not be there.
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
        // Whoever would no longer be found behind the gap moves into it, and leaves one of its own.
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
        fn is_as_a_set_is(steps in proptest::collection::vec((any::<bool>(), 0..6_u32, 0..40_u32), 1..400)) {
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
