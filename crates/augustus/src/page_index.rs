//! Which page holds a key: the pages' first keys in order, so close together that looking one up reads little memory.
//!
//! With a million rows there are sixty thousand pages, and a look-up costs what it misses in the processor's caches. So the
//! first eight bytes of each page's first key stand side by side as numbers, and a key itself is looked at only where these are equal.

use types::Key;

use crate::pages::PageNumber;

/// A chunk with more pages is split.
const CHUNK_PAGES_MAX: usize = 128;

/// A page of rows.
#[derive(Debug)]
pub(crate) struct Page {
    pub number: PageNumber,
    pub rows: u32,
    /// Of each row in order: the length of its key in four bytes, its key, and likewise its value.
    pub bytes: Vec<u8>,
}

/// All pages of rows, by the first key that each may hold.
#[derive(Debug, Default)]
pub(crate) struct PageIndex {
    chunks: Vec<Chunk>,
}

/// Some neighbours: at least one.
#[derive(Debug)]
struct Chunk {
    /// The first key of the first page.
    first: Key,
    first_beginning: u64,
    beginnings: Vec<u64>,
    keys: Vec<Key>,
    pages: Vec<Page>,
}

/// Where a page stands, until one is inserted or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePosition {
    chunk: usize,
    at: usize,
}

/// The first bytes of a key as a number that orders as they do.
fn beginning(key: &Key) -> u64 {
    let bytes = key.as_bytes();
    match bytes.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => bytes.iter().chain(&[0; 8]).take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte)),
    }
}

impl Chunk {
    /// How many of its pages begin at or before `key`.
    fn count_to(&self, key: &Key, beginning: u64) -> usize {
        let below = self.beginnings.partition_point(|other| *other < beginning);
        let equal = self.beginnings[below..].iter().take_while(|other| **other == beginning).count();
        below + self.keys[below..below + equal].partition_point(|other| other <= key)
    }
}

impl PageIndex {
    /// The page that may hold `key`; nothing where all begin after it.
    pub fn find(&self, key: &Key) -> Option<PagePosition> {
        let beginning = beginning(key);
        let begins_to = |chunk: &Chunk| (chunk.first_beginning, &chunk.first) <= (beginning, key);
        let chunk = self.chunks.partition_point(begins_to).checked_sub(1)?;
        let at = self.chunks[chunk].count_to(key, beginning) - 1;
        Some(PagePosition { chunk, at })
    }

    /// The first key of a page.
    pub fn low(&self, place: PagePosition) -> &Key {
        &self.chunks[place.chunk].keys[place.at]
    }

    pub fn page(&self, place: PagePosition) -> &Page {
        &self.chunks[place.chunk].pages[place.at]
    }

    pub fn page_mut(&mut self, place: PagePosition) -> &mut Page {
        &mut self.chunks[place.chunk].pages[place.at]
    }

    /// The page after another.
    pub fn next(&self, place: PagePosition) -> Option<PagePosition> {
        let PagePosition { chunk, at } = place;
        if at + 1 < self.chunks[chunk].pages.len() {
            return Some(PagePosition { chunk, at: at + 1 });
        }
        (chunk + 1 < self.chunks.len()).then_some(PagePosition { chunk: chunk + 1, at: 0 })
    }

    /// The page before another.
    pub fn previous(&self, place: PagePosition) -> Option<PagePosition> {
        let PagePosition { chunk, at } = place;
        if let Some(at) = at.checked_sub(1) {
            return Some(PagePosition { chunk, at });
        }
        let chunk = chunk.checked_sub(1)?;
        Some(PagePosition { chunk, at: self.chunks[chunk].pages.len() - 1 })
    }

    /// Adds the page that begins with `low`; `false` where there is one.
    pub fn insert(&mut self, low: Key, page: Page) -> bool {
        let beginning = beginning(&low);
        let PagePosition { chunk, at } = match self.find(&low) {
            Some(place) if *self.low(place) == low => return false,
            Some(place) => PagePosition { at: place.at + 1, ..place },
            None => PagePosition { chunk: 0, at: 0 },
        };
        if self.chunks.is_empty() {
            self.chunks.push(Chunk { first: Key::default(), first_beginning: 0, beginnings: vec![], keys: vec![], pages: vec![] });
        }
        let into = &mut self.chunks[chunk];
        if at == 0 {
            (into.first, into.first_beginning) = (low.clone(), beginning);
        }
        into.beginnings.insert(at, beginning);
        into.keys.insert(at, low);
        into.pages.insert(at, page);
        if into.pages.len() > CHUNK_PAGES_MAX {
            let middle = into.pages.len() / 2;
            let (beginnings, keys, pages) = (into.beginnings.split_off(middle), into.keys.split_off(middle), into.pages.split_off(middle));
            let upper = Chunk { first: keys[0].clone(), first_beginning: beginnings[0], beginnings, keys, pages };
            self.chunks.insert(chunk + 1, upper);
        }
        true
    }

    /// Takes a page away.
    pub fn remove(&mut self, place: PagePosition) -> Page {
        let PagePosition { chunk, at } = place;
        let from = &mut self.chunks[chunk];
        from.beginnings.remove(at);
        from.keys.remove(at);
        let page = from.pages.remove(at);
        match from.keys.first() {
            Some(first) => (from.first, from.first_beginning) = (first.clone(), from.beginnings[0]),
            None => {
                self.chunks.remove(chunk);
            }
        }
        page
    }

    /// All pages with their first keys, in order, from `place` on.
    pub fn from(&self, place: PagePosition) -> impl Iterator<Item = (&Key, &Page)> {
        std::iter::successors(Some(place), |place| self.next(*place)).map(|place| (self.low(place), self.page(place)))
    }

    /// All pages with their first keys, in order.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Page)> {
        self.chunks.iter().flat_map(|chunk| chunk.keys.iter().zip(&chunk.pages))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_are_found_as_in_a_map(
            changes in proptest::collection::vec((proptest::collection::vec(0u8..3, 0..10), proptest::bool::weighted(0.8)), 1..900),
        ) {
            let (mut index, mut map) = (PageIndex::default(), BTreeMap::new());
            for (number, (bytes, is_inserted)) in (0..).zip(changes) {
                let key = Key::new(bytes).expect("short");
                if is_inserted {
                    let is_new = !map.contains_key(&key);
                    assert_eq!(index.insert(key.clone(), Page { number: PageNumber(number), rows: 0, bytes: Vec::new() }), is_new);
                    map.entry(key.clone()).or_insert(number);
                } else if let Some(place) = index.find(&key) {
                    let low = index.low(place).clone();
                    assert_eq!(Some(index.remove(place).number.0), map.remove(&low));
                }
                let expected = map.range(..=&key).next_back().map(|(low, number)| (low.clone(), PageNumber(*number)));
                let found = index.find(&key);
                assert_eq!(found.map(|place| (index.low(place).clone(), index.page(place).number)), expected);
                if let Some(place) = found {
                    let next = map.range((std::ops::Bound::Excluded(index.low(place)), std::ops::Bound::Unbounded)).next();
                    assert_eq!(index.next(place).map(|place| index.low(place)), next.map(|(low, _)| low));
                    let previous = map.range(..index.low(place)).next_back();
                    assert_eq!(index.previous(place).map(|place| index.low(place)), previous.map(|(low, _)| low));
                    assert!(index.from(place).count() <= map.len());
                }
            }
            assert!(index.all().map(|(low, page)| (low, page.number.0)).eq(map.iter().map(|(low, number)| (low, *number))));
        }
    }
}
