//! The keys in memory, each with all its state in one entry.
//!
//! Most of the time that a replica spends on a key is waiting for memory. So a key has one entry, found by one look-up, instead
//! of one in a table of versions, one in a cache of rows and one in a table of readers. Entries do not move when the table
//! grows; only the index does.

use std::hash::BuildHasher as _;
use std::hint::black_box;

use foldhash::fast::RandomState;
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::{Key, Timestamp};

use crate::VersionRef;
use crate::index::Index;
use crate::versions::Versions;

/// Keys that have no entry.
pub(crate) type Absent<'a> = SmallVec<[&'a Key; PREFETCH_STEP]>;

/// What the store's user keeps with a key. The entry of a key stays in memory while this is not empty.
pub trait KeyMeta: Default {
    /// Whether there is nothing to keep.
    fn is_empty(&self) -> bool;

    /// Lets go what is of times below this: it counts no more ([`crate::Store::expire_meta_below`]).
    fn expire(&mut self, _below: Timestamp) {}

    /// Reads the memory it points to, so that the CPU caches it ([`crate::Store::prefetch`]). The result has no meaning.
    fn touch(&self) -> u64 {
        0
    }
}

/// No metadata.
impl KeyMeta for () {
    fn is_empty(&self) -> bool {
        true
    }
}

/// The number of a key's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(pub u32);

/// A key and its state.
#[derive(Default)]
pub(crate) struct Entry<K> {
    pub key: Key,
    pub versions: Versions,
    /// Whether the versions include the base table's row, or the base table is known to have none.
    pub is_complete: bool,
    /// Whether it was read since the clock hand last passed.
    pub is_referenced: bool,
    pub meta: K,
}

impl<K: KeyMeta> Entry<K> {
    /// The newest version before `before`, if this tells. A version that is not late does: it was newer than all that the base table had when it
    /// came, and what came since is here, unless the base table's row was forgotten, and then it went too.
    pub fn newest_before(&self, before: Timestamp) -> Option<Option<VersionRef<'_>>> {
        let newest = self.versions.newest_before(before);
        let is_told = self.is_complete || newest.is_some_and(|(_, is_late)| !is_late || broken(Mutant::LateTaken));
        is_told.then(|| newest.map(|(version, _)| version))
    }

    /// Reads each part of it. The result has no meaning.
    fn touch(&self) -> u64 {
        let newest = self.versions.newest().map_or(0, |version| version.timestamp.time);
        self.key.as_bytes().len() as u64 ^ newest ^ u64::from(self.meta.is_empty())
    }

    /// Reads the memory of its newest value, or the beginning of it where that is long. The result has no meaning.
    fn touch_value(&self) -> u64 {
        touch(self.versions.newest().and_then(|version| version.value).unwrap_or_default())
    }

    fn is_empty(&self) -> bool {
        !self.is_complete && self.versions.is_empty() && self.meta.is_empty()
    }
}

/// Reads the memory of a value, or the beginning of it where that is long. The result has no meaning.
fn touch(value: &[u8]) -> u64 {
    let read = value.iter().step_by(CACHE_LINE_BYTES).take(PREFETCH_LINES).chain(value.last());
    read.fold(0, |sum, byte| sum ^ u64::from(*byte))
}

/// Entries are allocated in chunks and never move.
const CHUNK_ENTRIES: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;
/// How many keys are prefetched together.
const PREFETCH_STEP: usize = 64;
/// What the CPU reads from memory at once, on most machines.
const CACHE_LINE_BYTES: usize = 64;
/// So much of a value is prefetched. The CPU finds the rest of a long one by itself, as it is read in order.
const PREFETCH_LINES: usize = 4;

/// All entries.
pub(crate) struct Table<K> {
    hasher: RandomState,
    ids: Index,
    chunks: Vec<Box<[Entry<K>]>>,
    /// How many entries were ever used.
    made: u32,
    free: Vec<EntryId>,
    /// The entry that CLOCK's hand points to.
    clock_hand: u32,
    /// How far [`Table::expire_some`] has come.
    expired_up_to: u32,
}

impl<K: KeyMeta> Default for Table<K> {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            ids: Index::default(),
            chunks: Vec::new(),
            made: 0,
            free: Vec::new(),
            clock_hand: 0,
            expired_up_to: 0,
        }
    }
}

impl<K: KeyMeta> Table<K> {
    /// The key's entry, if it has one.
    pub fn find(&self, key: &Key) -> Option<EntryId> {
        self.find_bytes(key.as_bytes())
    }

    fn find_bytes(&self, key: &[u8]) -> Option<EntryId> {
        self.find_hashed(key, self.hash(key))
    }

    fn find_hashed(&self, key: &[u8], hash: u32) -> Option<EntryId> {
        self.ids.find(hash, |number| self.entry(EntryId(number)).key.as_bytes() == key).map(EntryId)
    }

    /// The key's entry, made now if it has none. It keeps a copy of the key in a buffer of its own.
    pub fn find_or_make(&mut self, key: &Key) -> EntryId {
        let hash = self.hash(key.as_bytes());
        if let Some(id) = self.find_hashed(key.as_bytes(), hash) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            if self.made as usize == self.chunks.len() << CHUNK_BITS {
                self.chunks.push(std::iter::repeat_with(Entry::default).take(CHUNK_ENTRIES).collect());
            }
            let id = EntryId(self.made);
            self.made = self.made.checked_add(1).expect("so many keys do not fit in memory");
            id
        });
        self.ids.insert(hash, id.0);
        self.entry_mut(id).key = key.detached();
        id
    }

    /// Prefetches the entries of `keys`. One after the other, each would wait for memory; here the waits overlap. Gives those that have none.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Absent<'a> {
        self.prefetch_with(keys, |_| 0)
    }

    /// The same, and their newest values.
    pub fn prefetch_values<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Absent<'a> {
        self.prefetch_with(keys, Entry::touch_value)
    }

    /// `touch_more` reads memory that an entry points to.
    fn prefetch_with<'a>(&self, keys: impl Iterator<Item = &'a Key>, touch_more: impl Fn(&Entry<K>) -> u64) -> Absent<'a> {
        let (mut keys, mut absent) = (keys.peekable(), SmallVec::new());
        while keys.peek().is_some() {
            let hashed = keys.by_ref().take(PREFETCH_STEP).map(|key| (key, self.hash(key.as_bytes())));
            let hashed: SmallVec<[(&Key, u32); PREFETCH_STEP]> = hashed.collect();
            // The sum does not matter: each word must be read, and no read depends on another.
            black_box(hashed.iter().fold(0, |sum, (_, hash)| sum ^ self.ids.first_word(*hash)));
            let mut entries: SmallVec<[&Entry<K>; PREFETCH_STEP]> = SmallVec::new();
            for (key, hash) in hashed {
                match self.ids.find(hash, |_| true) {
                    Some(number) => entries.push(self.entry(EntryId(number))),
                    None => absent.push(key),
                }
            }
            black_box(entries.iter().fold(0, |sum, entry| sum ^ entry.touch()));
            black_box(entries.iter().fold(0, |sum, entry| sum ^ entry.meta.touch() ^ touch_more(entry)));
        }
        absent
    }

    /// The entry of a key that had `entry` when it had a version there, if it has one.
    pub fn find_again(&self, key: &[u8], entry: EntryId) -> Option<EntryId> {
        // Freed since, it may be another key's, and what is free looks like the empty key's.
        let is_same = !self.entry(entry).versions.is_empty() && self.entry(entry).key.as_bytes() == key;
        if is_same { Some(entry) } else { self.find_bytes(key) }
    }

    /// Prefetches entries that there are, as [`Table::prefetch`] does.
    pub fn prefetch_entries(&self, ids: impl Iterator<Item = EntryId>) {
        let entries: SmallVec<[&Entry<K>; PREFETCH_STEP]> = ids.map(|id| self.entry(id)).collect();
        black_box(entries.iter().fold(0, |sum, entry| sum ^ entry.touch()));
    }

    /// Prefetches the values of those versions in the entries that there are.
    pub fn prefetch_versions(&self, versions: impl Iterator<Item = (EntryId, Timestamp)>) {
        let values: SmallVec<[&[u8]; PREFETCH_STEP]> =
            versions.filter_map(|(id, timestamp)| self.entry(id).versions.at(timestamp)?.value).collect();
        black_box(values.iter().fold(0, |sum, value| sum ^ touch(value)));
    }

    pub fn entry(&self, id: EntryId) -> &Entry<K> {
        &self.chunks[id.0 as usize >> CHUNK_BITS][id.0 as usize % CHUNK_ENTRIES]
    }

    pub fn entry_mut(&mut self, id: EntryId) -> &mut Entry<K> {
        &mut self.chunks[id.0 as usize >> CHUNK_BITS][id.0 as usize % CHUNK_ENTRIES]
    }

    /// Frees the entry if it is empty.
    pub fn remove_if_empty(&mut self, id: EntryId) {
        if !self.entry(id).is_empty() {
            return;
        }
        let hash = self.hash(self.entry(id).key.as_bytes());
        if self.ids.remove(hash, id.0) {
            *self.entry_mut(id) = Entry::default();
            self.free.push(id);
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the clock hand to the next entry, in use or not; `None` when there is none.
    pub fn advance_clock_hand(&mut self) -> Option<EntryId> {
        self.clock_hand = (self.clock_hand + 1).checked_rem(self.made)?;
        Some(EntryId(self.clock_hand))
    }

    /// How many entries were ever used.
    pub fn made(&self) -> usize {
        self.made as usize
    }

    /// Has the metadata of the next so many entries let go what is of times below this, and frees those that are empty then.
    pub fn expire_some(&mut self, at_most: usize, below: Timestamp) {
        let mut left = at_most.min(self.made());
        while left > 0 {
            let first = self.expired_up_to.checked_rem(self.made).unwrap_or_default();
            let end = first + (self.made - first).min(left.min(PREFETCH_STEP) as u32);
            let with_meta = (first..end).map(EntryId).filter(|id| !self.entry(*id).meta.is_empty());
            let with_meta: SmallVec<[EntryId; PREFETCH_STEP]> = with_meta.collect();
            black_box(with_meta.iter().fold(0, |sum, id| sum ^ self.entry(*id).meta.touch()));
            for id in with_meta {
                self.entry_mut(id).meta.expire(below);
                self.remove_if_empty(id);
            }
            left -= (end - first) as usize;
            self.expired_up_to = end;
        }
    }

    fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash_one(key) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Mark(bool);

    impl KeyMeta for Mark {
        fn is_empty(&self) -> bool {
            !self.0
        }
    }

    #[test]
    fn an_entry_takes_what_is_counted_for_it() {
        // With what a replica keeps with a key, two words, and its word in an index that is half full.
        assert_eq!(size_of::<Entry<[u64; 2]>>() + 2 * size_of::<u64>(), crate::store::ENTRY_BYTES);
    }

    #[test]
    fn keys_are_found_until_their_entries_are_empty() {
        let mut table = Table::<Mark>::default();
        let keys: Vec<Key> = (0..5_000).map(|number| Key::from(format!("key {number}").as_str())).collect();
        let ids: Vec<EntryId> = keys.iter().map(|key| table.find_or_make(key)).collect();
        for (key, id) in keys.iter().zip(&ids) {
            assert_eq!((table.find(key), table.find_or_make(key)), (Some(*id), *id));
            assert_eq!(table.entry(*id).key, *key);
        }
        table.entry_mut(ids[7]).meta = Mark(true);
        ids.iter().for_each(|id| table.remove_if_empty(*id));
        assert_eq!(table.find(&keys[7]), Some(ids[7]));
        let found_again = |number: usize| table.find_again(keys[number].as_bytes(), ids[number]);
        assert_eq!((found_again(7), found_again(8)), (Some(ids[7]), None));
        table.entry_mut(ids[7]).meta = Mark(false);
        table.remove_if_empty(ids[7]);
        table.remove_if_empty(ids[7]);
        assert!(keys.iter().all(|key| table.find(key).is_none()));
        // Their entries are used again, and the clock hand passes each once in a round.
        let again = keys.iter().map(|key| table.find_or_make(key));
        assert_eq!((again.count(), table.chunks.len()), (5_000, 5));
        let turn: std::collections::BTreeSet<u32> = (0..5_000).filter_map(|_| Some(table.advance_clock_hand()?.0)).collect();
        assert_eq!(turn.len(), 5_000);
    }
}
