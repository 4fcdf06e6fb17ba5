//! The rows of a shard, in pages in the order of their keys.
//!
//! A page holds the rows from its first key up to the next page's. One that grows too large is split in halves, and one that has
//! shrunk takes in its neighbour. Which pages there are so depends on what was executed and on nothing else.

use std::collections::BTreeMap;
use std::ops::Bound;

use types::codec::{Decode as _, DecodeError, Encode as _, Reader, encode_count};
use types::{Key, KeyRange, Value};

use crate::limits::{PAGE_BYTES_MAX, PAGE_ROWS_MAX};
use crate::pages::{Directory, Owner, PageNumber};

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// By the first key that each may hold. The first page begins with the lowest key of all.
    pages: BTreeMap<Low, Page>,
}

/// The first key of a page. Its beginning stands before it as a number, which is quicker to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Low {
    beginning: u128,
    key: Key,
}

impl Low {
    fn of(key: &Key) -> Self {
        let mut beginning = [0; 16];
        let length = key.as_bytes().len().min(16);
        beginning[..length].copy_from_slice(&key.as_bytes()[..length]);
        Self { beginning: u128::from_be_bytes(beginning), key: key.clone() }
    }
}

#[derive(Debug)]
struct Page {
    number: PageNumber,
    rows: Vec<(Key, Value)>,
    /// The bytes of its keys and values.
    bytes: usize,
}

impl Page {
    fn of(number: PageNumber, rows: Vec<(Key, Value)>) -> Self {
        let bytes = rows.iter().map(|(key, value)| size(key, value)).sum();
        Self { number, rows, bytes }
    }

    fn is_too_large(&self) -> bool {
        self.rows.len() > 1 && (self.rows.len() > PAGE_ROWS_MAX || self.bytes > PAGE_BYTES_MAX)
    }

    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.rows.binary_search_by(|(other, _)| other.cmp(key))
    }
}

fn size(key: &Key, value: &Value) -> usize {
    key.as_bytes().len() + value.as_bytes().len()
}

impl Rows {
    /// No rows.
    pub fn new(directory: &mut Directory) -> Self {
        let lowest = Key::default();
        let page = Page::of(directory.make(Owner::Rows(lowest.clone())), Vec::new());
        Self { pages: BTreeMap::from([(Low::of(&lowest), page)]) }
    }

    fn page(&self, key: &Key) -> &Page {
        self.pages.range(..=Low::of(key)).next_back().expect("the first page begins with the lowest key").1
    }

    pub fn get(&self, key: &Key) -> Option<&Value> {
        let page = self.page(key);
        page.find(key).ok().map(|at| &page.rows[at].1)
    }

    /// The rows of `range`, in order.
    pub fn range<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        let (low, high) = (Low::of(range.low()), Low::of(range.high()));
        let first = self.pages.range(..=&low).next_back().into_iter();
        let others = self.pages.range((Bound::Excluded(&low), Bound::Excluded(&high)));
        let rows = first.chain(others).flat_map(|(_, page)| &page.rows);
        rows.skip_while(|(key, _)| key < range.low()).take_while(|(key, _)| key < range.high()).map(|(key, value)| (key, value))
    }

    /// Gives `key` a value, in a buffer of its own.
    pub fn put(&mut self, key: &Key, value: &Value, directory: &mut Directory) {
        let (_, page) = self.pages.range_mut(..=Low::of(key)).next_back().expect("the first page begins with the lowest key");
        directory.change(page.number);
        match page.find(key) {
            Ok(at) => {
                let old = &mut page.rows[at].1;
                page.bytes = page.bytes + value.as_bytes().len() - old.as_bytes().len();
                *old = value.detached();
            }
            Err(at) => {
                page.bytes += size(key, value);
                page.rows.insert(at, (key.detached(), value.detached()));
            }
        }
        if page.is_too_large() {
            self.split(key, directory);
        }
    }

    /// Splits the page of `key`, and its halves likewise while they are too large.
    fn split(&mut self, key: &Key, directory: &mut Directory) {
        let (_, page) = self.pages.range_mut(..=Low::of(key)).next_back().expect("the first page begins with the lowest key");
        let upper = page.rows.split_off(page.rows.len() / 2);
        page.bytes = page.rows.iter().map(|(key, value)| size(key, value)).sum();
        let lower_key = page.is_too_large().then(|| page.rows[0].0.clone());
        let low = upper[0].0.clone();
        let upper = Page::of(directory.make(Owner::Rows(low.clone())), upper);
        let upper_key = upper.is_too_large().then(|| low.clone());
        self.pages.insert(Low::of(&low), upper);
        // One large value beside small ones may need more than one cut.
        for key in [lower_key, upper_key].into_iter().flatten() {
            self.split(&key, directory);
        }
    }

    /// Removes `key`, if it is there.
    pub fn remove(&mut self, key: &Key, directory: &mut Directory) {
        let (low, page) = self.pages.range_mut(..=Low::of(key)).next_back().expect("the first page begins with the lowest key");
        let Ok(at) = page.find(key) else { return };
        let (key, value) = page.rows.remove(at);
        page.bytes -= size(&key, &value);
        directory.change(page.number);
        if page.rows.len() > PAGE_ROWS_MAX / 4 {
            return;
        }
        let low = low.clone();
        let (rows, bytes) = (page.rows.len(), page.bytes);
        let next = self.pages.range((Bound::Excluded(&low), Bound::Unbounded)).next();
        let Some(next) = next.filter(|(_, next)| rows + next.rows.len() <= PAGE_ROWS_MAX / 2 && bytes + next.bytes <= PAGE_BYTES_MAX / 2)
        else {
            return;
        };
        let next = next.0.clone();
        let taken_in = self.pages.remove(&next).expect("it was just found");
        directory.free(taken_in.number);
        let page = self.pages.get_mut(&low).expect("it was just found");
        page.bytes += taken_in.bytes;
        page.rows.extend(taken_in.rows);
    }

    /// Appends what the page that begins with `low` holds.
    pub fn encode_page(&self, low: &Key, out: &mut Vec<u8>) {
        let page = self.pages.get(&Low::of(low)).expect("the directory knows which pages there are");
        low.encode(out);
        encode_count(page.rows.len(), out);
        for (key, value) in &page.rows {
            key.encode(out);
            value.encode(out);
        }
    }

    /// Adds a page that another replica encoded, and gives its first key.
    pub fn decode_page(&mut self, number: PageNumber, reader: &mut Reader) -> Result<Key, DecodeError> {
        let low = Key::decode(reader)?.detached();
        let count = reader.count("the rows of a page", PAGE_ROWS_MAX)?;
        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            rows.push((Key::decode(reader)?.detached(), Value::decode(reader)?.detached()));
        }
        let is_ordered = rows.is_sorted_by(|(one, _), (next, _)| one < next) && rows.first().is_none_or(|(first, _)| low <= *first);
        if !is_ordered || self.pages.insert(Low::of(&low), Page::of(number, rows)).is_some() {
            return Err(DecodeError::NotCanonical("a page of rows"));
        }
        Ok(low)
    }

    /// Whether the pages that were decoded make up rows: the first begins with the lowest key, and none reaches into the next.
    pub fn is_whole(&self) -> bool {
        let ends_before = |page: &Page, next: &Low| page.rows.last().is_none_or(|(last, _)| *last < next.key);
        let mut neighbours = self.pages.values().zip(self.pages.keys().skip(1));
        self.pages.contains_key(&Low::default()) && neighbours.all(|(page, next)| ends_before(page, next))
    }

    /// How many rows there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages.values().map(|page| page.rows.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use types::ClusterId;

    use super::*;

    fn key(at: u16) -> Key {
        Key::new(at.to_be_bytes().to_vec()).expect("short")
    }

    fn is_tidy(rows: &Rows) -> bool {
        rows.is_whole()
            && rows.pages.values().all(|page| page.rows.len() <= PAGE_ROWS_MAX && (page.rows.len() < 2 || page.bytes <= PAGE_BYTES_MAX))
    }

    proptest! {
        #[test]
        fn rows_in_pages_are_as_rows_in_one_map(changes in vec((0u16..200, proptest::option::of(0usize..1_500)), 1..600)) {
            let mut directory = Directory::default();
            let mut rows = Rows::new(&mut directory);
            let mut model = BTreeMap::new();
            for (at, length) in changes {
                match length {
                    Some(length) => {
                        let value = Value::new(vec![7; length]).expect("short");
                        rows.put(&key(at), &value, &mut directory);
                        model.insert(key(at), value);
                    }
                    None => {
                        rows.remove(&key(at), &mut directory);
                        model.remove(&key(at));
                    }
                }
                assert_eq!((rows.get(&key(at)), rows.len()), (model.get(&key(at)), model.len()));
            }
            assert!(is_tidy(&rows));
            for (low, high) in [(0, 200), (50, 51), (20, 120), (199, 300)] {
                let range = KeyRange::new(key(low), key(high)).expect("it has keys");
                assert!(rows.range(&range).eq(model.range(key(low)..key(high))));
            }
            let mut read_back = Rows::default();
            for (low, page) in &rows.pages {
                let mut bytes = Vec::new();
                rows.encode_page(&low.key, &mut bytes);
                let mut reader = Reader::new(bytes.into(), ClusterId::new([0; 16]));
                assert_eq!(read_back.decode_page(page.number, &mut reader).as_ref(), Ok(&low.key));
                assert_eq!(directory.owner(page.number), &Owner::Rows(low.key.clone()));
            }
            assert!(is_tidy(&read_back) && read_back.len() == model.len());
        }
    }
}
