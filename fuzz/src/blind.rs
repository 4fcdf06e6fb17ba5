//! Changes inputs without looking: what is left of fuzzing where libFuzzer cannot be built.

/// A small generator of numbers (SplitMix64), so that a run is its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `count`; 0 when that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % (count.max(1) as u64)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// The most changes made to one input.
const CHANGES_MAX: usize = 8;
/// Numbers at which code changes its mind, more often than at others.
const EDGES: [u64; 12] = [0, 1, 2, 127, 128, 255, 256, 65_535, 65_536, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// A changed copy of one of `inputs`, at most `bytes_max` long.
#[must_use]
pub fn change(inputs: &[Vec<u8>], bytes_max: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs.get(random.below(inputs.len())).cloned().unwrap_or_default();
    for _ in 0..=random.below(CHANGES_MAX) {
        change_once(&mut bytes, inputs, random);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn change_once(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => set(bytes, at, |byte| byte ^ (1 << (at % 8))),
        1 => {
            let value = random.byte();
            set(bytes, at, |_| value);
        }
        2 => bytes.insert(at, random.byte()),
        3 => drop(bytes.drain(at..(at + random.below(16)).min(bytes.len()))),
        4 => {
            // A number of one, two, four or eight bytes.
            let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
            let width = (1 << random.below(4)).min(bytes.len() - at.min(bytes.len()));
            bytes[at..at + width].copy_from_slice(&edge[..width]);
        }
        5 => {
            // A piece of the input itself, once more and elsewhere.
            let end = (at + 1 + random.below(32)).min(bytes.len());
            let piece = bytes[at.min(end)..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        6 => {
            // The end of another input.
            let other = &inputs[random.below(inputs.len()).min(inputs.len().saturating_sub(1))..];
            let other = other.first().map_or(&[][..], |other| &other[random.below(other.len())..]);
            bytes.truncate(at);
            bytes.extend_from_slice(other);
        }
        _ => bytes.truncate(at),
    }
}

fn set(bytes: &mut [u8], at: usize, value: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = value(*byte);
    }
}
