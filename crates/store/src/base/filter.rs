//! Which keys a run does not have: a Bloom filter whose bits for one key lie in one cache line.

use bytes::Buf as _;
use types::codec::Encode as _;

/// The bits for each key. Of keys that are not there, about one in a hundred passes.
const BITS_PER_ROW: u64 = 10;
/// A line has 512 bits.
const LINE_WORDS: usize = 8;
/// How many bits of its line a key sets.
const PROBES: u32 = 6;
/// The number of lines is a multiple of this, so that a filter can be halved as often as it is a power of two.
const LINES_STEP: u64 = 16;

pub(crate) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// Has room for `rows` keys.
    pub fn for_rows(rows: u64) -> Self {
        Self { words: vec![0; lines(rows) as usize * LINE_WORDS] }
    }

    pub fn add(&mut self, hash: u64) {
        let line = self.line(hash);
        for (word, bits) in probes(hash) {
            self.words[line + word] |= bits;
        }
    }

    /// False only for keys that were not added.
    pub fn may_have(&self, hash: u64) -> bool {
        let line = self.line(hash);
        probes(hash).all(|(word, bits)| self.words[line + word] & bits != 0)
    }

    /// There were only `rows` keys: takes no more room than they need, if it is half or less. Of two lines next to each other one is made; a key's
    /// line in half as many is where either of these two lies.
    pub fn shrink_to(&mut self, rows: u64) {
        while self.lines() >= 2 * lines(rows) && self.lines().is_multiple_of(2) {
            let pairs = self.words.chunks_exact(2 * LINE_WORDS);
            self.words = pairs.flat_map(|pair| (0..LINE_WORDS).map(|word| pair[word] | pair[LINE_WORDS + word])).collect();
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        self.words.iter().for_each(|word| word.encode(out));
    }

    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(LINE_WORDS * 8) {
            return None;
        }
        let mut words = Vec::with_capacity(bytes.len() / 8);
        while let Ok(word) = bytes.try_get_u64_le() {
            words.push(word);
        }
        Some(Self { words })
    }

    fn lines(&self) -> u64 {
        (self.words.len() / LINE_WORDS) as u64
    }

    /// Where the key's line begins: by the upper half of its hash.
    fn line(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines()) >> 32) as usize * LINE_WORDS
    }
}

/// How many lines so many keys take.
fn lines(rows: u64) -> u64 {
    (rows.saturating_mul(BITS_PER_ROW) / 512 + 1).next_multiple_of(LINES_STEP)
}

/// The bits of a key in its line, by the lower half of its hash.
fn probes(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut bits = (hash as u32 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..PROBES).map(move |_| {
        let bit = bits >> 55;
        bits <<= 9;
        ((bit >> 6) as usize, 1 << (bit & 63))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_passes_and_little_else_also_after_shrinking() {
        let hash = |number: u64| super::super::run::hash(&number.to_le_bytes());
        for (expected, added) in [(1, 1), (1_000, 1_000), (40_000, 10_000), (100_000, 1), (0, 0)] {
            let mut filter = Filter::for_rows(expected);
            (0..added).for_each(|number| filter.add(hash(number)));
            let before = filter.words.len();
            filter.shrink_to(added);
            assert!(filter.words.len() <= before / if expected >= 40_000 { 2 } else { 1 });
            assert!((0..added).all(|number| filter.may_have(hash(number))));
            let others = (added..added + 10_000).filter(|number| filter.may_have(hash(*number))).count();
            assert!(others < 300, "{others} of 10,000 pass with {added} of {expected}");
            let mut bytes = Vec::new();
            filter.encode(&mut bytes);
            assert!(Filter::decode(&bytes[1..]).is_none());
            assert_eq!(Filter::decode(&bytes).map(|read| read.words), Some(filter.words));
        }
    }
}
