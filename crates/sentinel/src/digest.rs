//! Digests of a state, kept up to date as it changes.
//!
//! The state is a set of *parts*: nodes and sessions. Each has a [`Leaf`], a hash of everything the part holds; the digest of the
//! state is the sum of its leaves (AdHash, Bellare and Micciancio 1997). So a change costs the hashes of what it changes: the old
//! leaf is subtracted, the new one added, and the order of parts does not matter.
//!
//! What a sum is worth depends on how wide it is. 64 bits find accidents, as in the thesis; anybody who tries finds another
//! state with the same sum within seconds. 256 bits ([`Profile::Sha256Wide`]) need about 2³² work, and a vector of 1,024 sums of
//! 16 bits ([`Profile::LtHash16`]) at least 2²⁰⁰.

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};

/// How parts are hashed and added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Profile {
    /// Not at all: to measure what digests cost.
    Off = 0,
    /// CRC-32 as a sum of 64 bits, as ZooKeeper has it.
    Crc32 = 1,
    /// The first 64 bits of MD5.
    Md5 = 2,
    /// The first 64 bits of SHA-1.
    Sha1 = 3,
    /// The first 64 bits of SHA-256.
    Sha256 = 4,
    /// The first 64 bits of SHA-512.
    Sha512 = 5,
    /// All 256 bits of SHA-256.
    #[default]
    Sha256Wide = 6,
    /// SHA-256, made as long as 2,048 bytes by BLAKE3, as 1,024 sums of 16 bits.
    LtHash16 = 7,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Off, Self::Crc32, Self::Md5, Self::Sha1, Self::Sha256, Self::Sha512, Self::Sha256Wide, Self::LtHash16];

    /// Its name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Crc32 => "crc32",
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Sha256Wide => "sha256-wide",
            Self::LtHash16 => "lthash16",
        }
    }

    /// The profile called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// The profile with this number in a snapshot.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| *profile as u8 == number)
    }

    /// The hash of `bytes`, its first 32 bytes if it is longer.
    #[must_use]
    pub(crate) fn hash(self, bytes: &[u8]) -> Leaf {
        let mut leaf = [0; 32];
        match self {
            Self::Off => {}
            Self::Crc32 => leaf[4..8].copy_from_slice(&crc32fast::hash(bytes).to_be_bytes()),
            Self::Md5 => leaf[..16].copy_from_slice(&Md5::digest(bytes)),
            Self::Sha1 => leaf[..20].copy_from_slice(&Sha1::digest(bytes)),
            Self::Sha256 | Self::Sha256Wide | Self::LtHash16 => leaf.copy_from_slice(&Sha256::digest(bytes)),
            Self::Sha512 => leaf.copy_from_slice(&Sha512::digest(bytes)[..32]),
        }
        if self.is_narrow() {
            leaf[8..].fill(0);
        }
        Leaf(leaf)
    }

    fn is_narrow(self) -> bool {
        matches!(self, Self::Off | Self::Crc32 | Self::Md5 | Self::Sha1 | Self::Sha256 | Self::Sha512)
    }
}

/// The hash of one part. Of a narrow profile only the first 8 bytes are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leaf(pub [u8; 32]);

/// A digest of a state, as it is sent, logged and compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub [u8; 32]);

impl std::fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// A sum modulo 2²⁵⁶, in words from the least significant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WideSum([u64; 4]);

impl WideSum {
    pub(crate) fn add(&mut self, leaf: &Leaf) {
        let mut carry = false;
        for (word, other) in self.0.iter_mut().zip(words(leaf)) {
            let (sum, first) = word.overflowing_add(other);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            (*word, carry) = (sum, first || second);
        }
    }

    pub(crate) fn subtract(&mut self, leaf: &Leaf) {
        let mut borrow = false;
        for (word, other) in self.0.iter_mut().zip(words(leaf)) {
            let (rest, first) = word.overflowing_sub(other);
            let (rest, second) = rest.overflowing_sub(u64::from(borrow));
            (*word, borrow) = (rest, first || second);
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

fn words(leaf: &Leaf) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(leaf.0.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight bytes"));
    }
    words
}

/// How many sums of 16 bits a lattice has.
const LANES: usize = 1_024;

/// The sum of all leaves of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StateDigest {
    Narrow(u64),
    Wide(WideSum),
    Lattice(Box<[u16; LANES]>),
}

impl StateDigest {
    /// The digest of nothing.
    pub(crate) fn new(profile: Profile) -> Self {
        match profile {
            Profile::Sha256Wide => Self::Wide(WideSum::default()),
            Profile::LtHash16 => Self::Lattice(Box::new([0; LANES])),
            _ => Self::Narrow(0),
        }
    }

    pub(crate) fn add(&mut self, leaf: &Leaf) {
        match self {
            Self::Narrow(sum) => *sum = sum.wrapping_add(narrow(leaf)),
            Self::Wide(sum) => sum.add(leaf),
            Self::Lattice(lanes) => lengthen(leaf, lanes, u16::wrapping_add),
        }
    }

    pub(crate) fn subtract(&mut self, leaf: &Leaf) {
        match self {
            Self::Narrow(sum) => *sum = sum.wrapping_sub(narrow(leaf)),
            Self::Wide(sum) => sum.subtract(leaf),
            Self::Lattice(lanes) => lengthen(leaf, lanes, u16::wrapping_sub),
        }
    }

    pub(crate) fn checksum(&self) -> Checksum {
        match self {
            Self::Narrow(sum) => {
                let mut bytes = [0; 32];
                bytes[24..].copy_from_slice(&sum.to_be_bytes());
                Checksum(bytes)
            }
            Self::Wide(sum) => Checksum(sum.to_bytes()),
            Self::Lattice(lanes) => {
                let bytes: Vec<u8> = lanes.iter().flat_map(|lane| lane.to_le_bytes()).collect();
                Checksum(Sha256::digest(&bytes).into())
            }
        }
    }
}

fn narrow(leaf: &Leaf) -> u64 {
    u64::from_be_bytes(leaf.0[..8].try_into().expect("a leaf has 32 bytes"))
}

/// Makes 2,048 bytes of a leaf with BLAKE3, whose output may be of any length, and combines them with `lanes`.
fn lengthen(leaf: &Leaf, lanes: &mut [u16; LANES], combine: fn(u16, u16) -> u16) {
    let mut bytes = [0; 2 * LANES];
    blake3::Hasher::new().update(&leaf.0).finalize_xof().fill(&mut bytes);
    for (lane, bytes) in lanes.iter_mut().zip(bytes.chunks_exact(2)) {
        *lane = combine(*lane, u16::from_le_bytes([bytes[0], bytes[1]]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_the_order_and_subtraction_undoes_addition() {
        for profile in Profile::ALL {
            let leaves: Vec<Leaf> = (0..50_u32).map(|number| profile.hash(&number.to_be_bytes())).collect();
            let mut sum = StateDigest::new(profile);
            leaves.iter().for_each(|leaf| sum.add(leaf));
            let mut backwards = StateDigest::new(profile);
            leaves.iter().rev().for_each(|leaf| backwards.add(leaf));
            assert_eq!(sum, backwards);
            assert_eq!(profile == Profile::Off, sum.checksum() == StateDigest::new(profile).checksum(), "{profile:?}");
            leaves.iter().for_each(|leaf| sum.subtract(leaf));
            assert_eq!(sum, StateDigest::new(profile), "{profile:?}");
        }
    }

    #[test]
    fn a_wide_sum_carries_through_all_words() {
        let mut sum = WideSum([u64::MAX; 4]);
        let mut one = Leaf::default();
        one.0[0] = 1;
        sum.add(&one);
        assert_eq!(sum, WideSum::default());
        sum.subtract(&one);
        assert_eq!(sum, WideSum([u64::MAX; 4]));
    }

    #[test]
    fn hashes_are_the_published_ones() {
        let first = |profile: Profile| narrow(&profile.hash(b"abc"));
        assert_eq!(first(Profile::Crc32), 0x3524_41c2);
        assert_eq!(first(Profile::Md5), 0x9001_5098_3cd2_4fb0);
        assert_eq!(first(Profile::Sha1), 0xa999_3e36_4706_816a);
        assert_eq!(first(Profile::Sha256), 0xba78_16bf_8f01_cfea);
        assert_eq!(first(Profile::Sha512), 0xddaf_35a1_9361_7aba);
        assert_eq!(Profile::Sha256Wide.hash(b"abc").0[24..], [0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad]);
    }

    #[test]
    fn names_are_read_back() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
            assert_eq!(Profile::from_number(profile as u8), Some(profile));
        }
        assert_eq!(Profile::from_name("sha3"), None);
    }
}
