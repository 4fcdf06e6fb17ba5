//! What clients may read and write, where that is not everything.
//!
//! Keys are of a few kinds, as their first bytes say ([`System::KINDS_OF_KEYS`]). A client has the first of these whatever else it may do, so that each gets
//! something done.

use random::Random;
use types::{ClientLimits, Key, Permission};

use crate::system::System;

/// How many of a thousand clients may do everything all the same.
const ALL_PER_MILLE: u64 = 250;

/// What one client may read and write: keys that begin so.
#[derive(Clone, Debug)]
pub(crate) struct Prefixes {
    pub read: Vec<Key>,
    pub write: Vec<Key>,
}

impl Prefixes {
    /// Everything.
    pub fn all() -> Self {
        Self { read: vec![Key::from("")], write: vec![Key::from("")] }
    }

    /// Some kinds of keys: to read, to write, or both.
    pub fn draw<S: System>(random: &mut Random) -> Self {
        let Some((first, others)) = S::KINDS_OF_KEYS.split_first() else { return Self::all() };
        if random.chance(ALL_PER_MILLE) {
            return Self::all();
        }
        let mut prefixes = Self { read: vec![Key::from(*first)], write: vec![Key::from(*first)] };
        for kind in others {
            if random.chance(500) {
                prefixes.read.push(Key::from(*kind));
            }
            if random.chance(500) {
                prefixes.write.push(Key::from(*kind));
            }
        }
        prefixes
    }

    /// These rights for whoever has `public_key`.
    pub fn of(self, public_key: [u8; 32]) -> Permission {
        let Self { read, write } = self;
        Permission { public_key, read_prefixes: read, write_prefixes: write, limits: ClientLimits::default() }
    }
}
