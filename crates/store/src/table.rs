//! The keys in memory, each with all that is known of it in one place.
//!
//! What a replica does with a key (read it, judge it, write it, forget who read it) is mostly waiting for memory. So
//! a key has one slot, found by one look-up, rather than an entry in a table of versions, one in a cache of rows and one
//! in a table of readers. Slots stay where they are while the table grows; only the numbers they are found by move.

use std::hash::BuildHasher as _;
use std::hint::black_box;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use types::mutant::{Mutant, broken};
use types::{Key, Timestamp};

use crate::Version;
use crate::index::Index;
use crate::versions::Versions;

/// What whoever uses the store keeps with a key. A key that is marked stays in memory.
pub trait Marks: Default {
    /// Whether there is nothing to keep.
    fn is_empty(&self) -> bool;

    /// Looks at what it keeps elsewhere in memory, so that this is near ([`crate::Store::warm`]). What it gives means nothing.
    fn look(&self) -> u64 {
        0
    }
}

/// Keeps nothing.
impl Marks for () {
    fn is_empty(&self) -> bool {
        true
    }
}

/// Where a key's slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// A key, and what is known of it.
#[derive(Default)]
pub(crate) struct Slot<K> {
    pub key: Key,
    pub versions: Versions,
    /// Whether the versions include the base's row, or the base is known to have none.
    pub is_complete: bool,
    /// Whether it was read since the hand last passed.
    pub is_touched: bool,
    pub marks: K,
}

impl<K: Marks> Slot<K> {
    /// The newest version before `before`, if this tells. A version that is not late does: it was newer than all that the base had when it
    /// came, and what came since is here, unless the base's row was forgotten, and then it went too.
    pub fn newest_before(&self, before: Timestamp) -> Option<Option<&Version>> {
        let newest = self.versions.newest_before(before);
        let is_told = self.is_complete || newest.is_some_and(|(_, is_late)| !is_late || broken(Mutant::LateTaken));
        is_told.then(|| newest.map(|(version, _)| version))
    }

    /// Looks at each part of it. What it gives means nothing.
    fn look(&self) -> u64 {
        let newest = self.versions.newest().map_or(0, |version| version.timestamp.time);
        self.key.as_bytes().len() as u64 ^ newest ^ u64::from(self.marks.is_empty())
    }

    fn is_empty(&self) -> bool {
        !self.is_complete && self.versions.is_empty() && self.marks.is_empty()
    }
}

/// Slots are made so many at once, and never move.
const CHUNK_SLOTS: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;
/// How many keys are brought near together.
const WARM_STEP: usize = 64;

/// All slots.
pub(crate) struct Table<K> {
    hasher: RandomState,
    places: Index,
    chunks: Vec<Box<[Slot<K>]>>,
    /// How many slots were ever used.
    made: u32,
    free: Vec<Place>,
    /// Where the hand stands that goes over all slots in turn.
    hand: u32,
}

impl<K: Marks> Default for Table<K> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), places: Index::default(), chunks: Vec::new(), made: 0, free: Vec::new(), hand: 0 }
    }
}

impl<K: Marks> Table<K> {
    /// The key's place, if it has one.
    pub fn find(&self, key: &Key) -> Option<Place> {
        self.find_hashed(key, self.hash(key))
    }

    fn find_hashed(&self, key: &Key, hash: u32) -> Option<Place> {
        self.places.find(hash, |number| self.slot(Place(number)).key == *key).map(Place)
    }

    /// The key's place, made now if it has none. It keeps a copy of the key, in a buffer of its own.
    pub fn find_or_make(&mut self, key: &Key) -> Place {
        let hash = self.hash(key);
        if let Some(place) = self.find_hashed(key, hash) {
            return place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            if self.made as usize == self.chunks.len() << CHUNK_BITS {
                self.chunks.push(std::iter::repeat_with(Slot::default).take(CHUNK_SLOTS).collect());
            }
            let place = Place(self.made);
            self.made = self.made.checked_add(1).expect("so many keys do not fit in memory");
            place
        });
        self.places.insert(hash, place.0);
        self.slot_mut(place).key = key.detached();
        place
    }

    /// Brings near what is known of `keys`. One after the other, each would wait for memory; here they wait together.
    pub fn warm<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let hashes: SmallVec<[u32; WARM_STEP]> = keys.by_ref().take(WARM_STEP).map(|key| self.hash(key)).collect();
            // What is added up does not matter: that it was looked at does, and that no look waits for another.
            black_box(hashes.iter().fold(0, |sum, hash| sum ^ self.places.first_word(*hash)));
            let found = hashes.iter().filter_map(|hash| self.places.find(*hash, |_| true));
            let slots: SmallVec<[&Slot<K>; WARM_STEP]> = found.map(|number| self.slot(Place(number))).collect();
            black_box(slots.iter().fold(0, |sum, slot| sum ^ slot.look()));
            black_box(slots.iter().fold(0, |sum, slot| sum ^ slot.marks.look()));
        }
    }

    pub fn slot(&self, place: Place) -> &Slot<K> {
        &self.chunks[place.0 as usize >> CHUNK_BITS][place.0 as usize % CHUNK_SLOTS]
    }

    pub fn slot_mut(&mut self, place: Place) -> &mut Slot<K> {
        &mut self.chunks[place.0 as usize >> CHUNK_BITS][place.0 as usize % CHUNK_SLOTS]
    }

    /// Gives the slot up if nothing is known in it.
    pub fn tidy(&mut self, place: Place) {
        if !self.slot(place).is_empty() {
            return;
        }
        let hash = self.hash(&self.slot(place).key);
        if self.places.remove(hash, place.0) {
            *self.slot_mut(place) = Slot::default();
            self.free.push(place);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.places.len() == 0
    }

    /// The next place the hand comes to, in use or not; nothing when there are none.
    pub fn next_in_turn(&mut self) -> Option<Place> {
        self.hand = (self.hand + 1).checked_rem(self.made)?;
        Some(Place(self.hand))
    }

    fn hash(&self, key: &Key) -> u32 {
        self.hasher.hash_one(key.as_bytes()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Mark(bool);

    impl Marks for Mark {
        fn is_empty(&self) -> bool {
            !self.0
        }
    }

    #[test]
    fn keys_are_found_until_nothing_is_known_of_them() {
        let mut table = Table::<Mark>::default();
        let keys: Vec<Key> = (0..5_000).map(|number| Key::from(format!("key {number}").as_str())).collect();
        let places: Vec<Place> = keys.iter().map(|key| table.find_or_make(key)).collect();
        for (key, place) in keys.iter().zip(&places) {
            assert_eq!((table.find(key), table.find_or_make(key)), (Some(*place), *place));
            assert_eq!(table.slot(*place).key, *key);
        }
        table.slot_mut(places[7]).marks = Mark(true);
        places.iter().for_each(|place| table.tidy(*place));
        assert_eq!(table.find(&keys[7]), Some(places[7]));
        table.slot_mut(places[7]).marks = Mark(false);
        table.tidy(places[7]);
        table.tidy(places[7]);
        assert!(keys.iter().all(|key| table.find(key).is_none()));
        // Their slots are used again, and the hand passes each once in a turn.
        let again = keys.iter().map(|key| table.find_or_make(key));
        assert_eq!((again.count(), table.chunks.len()), (5_000, 5));
        let turn: std::collections::BTreeSet<u32> = (0..5_000).filter_map(|_| Some(table.next_in_turn()?.0)).collect();
        assert_eq!(turn.len(), 5_000);
    }
}
