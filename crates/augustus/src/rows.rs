//! The rows of a shard, in pages in the order of their keys.
//!
//! A page holds the rows from its first key up to the next page's, encoded one after the other: as they are hashed, sent and written to
//! the disk, and close together in memory, where looking for a key reads few cache lines. One that grows too large is split, and one that has shrunk takes in its neighbour. Which pages there are so depends on what was executed and on nothing else.

use std::hint::black_box;

use types::codec::{Decode as _, DecodeError, Encode as _, Reader};
use types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use types::{Direction, Key, KeyRange, Value};

use crate::limits::{PAGE_BYTES_MAX, PAGE_ROWS_MAX};
use crate::page_index::{Page, PageIndex, PagePosition};
use crate::pages::{Directory, Owner, PageNumber};

/// How many bytes the processor brings into its caches at once.
const CACHE_LINE_BYTES: usize = 64;
/// How much of a page is brought there ahead: all of one with small rows.
const PREFETCH_LINES_MAX: usize = 6;

/// All rows. The first page begins with the lowest key of all.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pages: PageIndex,
}

/// The keys of `stored` and of `over`, each once and in `direction`, with their values: what is in `over` counts. Nothing of what has no value there.
pub(crate) fn merged<'a>(
    direction: Direction,
    over: impl Iterator<Item = (&'a Key, Option<&'a Value>)>,
    stored: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
    let (mut over, mut stored) = (over.peekable(), stored.peekable());
    std::iter::from_fn(move || {
        let first: &'a [u8] = match (over.peek(), stored.peek()) {
            (None, None) => return None,
            (Some((over, _)), Some((stored, _))) if direction.order(over.as_bytes(), stored).is_lt() => over.as_bytes(),
            (_, Some((stored, _))) => stored,
            (Some((over, _)), None) => over.as_bytes(),
        };
        let value = stored.next_if(|(key, _)| *key == first).map(|(_, value)| value);
        let value = over.next_if(|(key, _)| key.as_bytes() == first).map_or(value, |(_, value)| value.map(Value::as_bytes));
        Some((first, value))
    })
}

/// A row within a page.
struct Row<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Where it begins and ends.
    low: usize,
    high: usize,
}

/// The rows that `bytes` begin with, up to the first that is not whole.
fn rows_of(bytes: &[u8]) -> impl Iterator<Item = Row<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let low = bytes.len() - rest.len();
        let (key, after) = part(rest)?;
        let (value, after) = part(after)?;
        rest = after;
        Some(Row { key, value, low, high: bytes.len() - rest.len() })
    })
}

/// Bytes behind their length.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn key_of(bytes: &[u8]) -> Key {
    Key::copied(bytes).expect("only keys are kept")
}

impl Page {
    fn is_too_large(&self) -> bool {
        let rows = self.rows as usize;
        rows > 1 && (rows > PAGE_ROWS_MAX || self.bytes.len() > PAGE_BYTES_MAX)
    }

    /// The row of `key`, or where it would be.
    fn find(&self, key: &Key) -> Result<Row<'_>, usize> {
        match rows_of(&self.bytes).find(|row| row.key >= key.as_bytes()) {
            Some(row) if row.key == key.as_bytes() => Ok(row),
            Some(row) => Err(row.low),
            None => Err(self.bytes.len()),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) {
        match self.find(key) {
            Ok(row) => {
                let (low, high) = (row.high - row.value.len(), row.high);
                if high - low != value.as_bytes().len() {
                    let length = u32::try_from(value.as_bytes().len()).expect("VALUE_BYTES_MAX fits in u32");
                    self.bytes[low - 4..low].copy_from_slice(&length.to_le_bytes());
                }
                splice(&mut self.bytes, low, high, value.as_bytes());
            }
            Err(at) => {
                let mut row = Vec::with_capacity(8 + key.as_bytes().len() + value.as_bytes().len());
                key.encode(&mut row);
                value.encode(&mut row);
                splice(&mut self.bytes, at, at, &row);
                self.rows += 1;
            }
        }
    }
}

fn splice(bytes: &mut Vec<u8>, low: usize, high: usize, new: &[u8]) {
    if high - low == new.len() {
        bytes[low..high].copy_from_slice(new);
    } else {
        bytes.splice(low..high, new.iter().copied());
    }
}

impl Rows {
    /// No rows.
    pub fn new(directory: &mut Directory) -> Self {
        let mut rows = Self::default();
        let number = directory.make(Owner::Rows(Key::default()));
        rows.pages.insert(Key::default(), Page { number, rows: 0, bytes: Vec::new() });
        rows
    }

    fn place(&self, key: &Key) -> PagePosition {
        self.pages.find(key).expect("the first page begins with the lowest key")
    }

    /// Brings the pages of `keys`, which are about to be read or written, into the processor's caches: all at once, since a look-up
    /// of one after the other waits for memory each time. It has no other effect.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let places: Vec<PagePosition> = keys.map(|key| self.place(key)).collect();
        let lines = |page: &Page| page.bytes.iter().step_by(CACHE_LINE_BYTES).take(PREFETCH_LINES_MAX).fold(0, |all, byte| all ^ byte);
        black_box(places.iter().fold(0, |all, place| all ^ lines(self.pages.page(*place))));
    }

    /// The bytes of the value of `key`.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.pages.page(self.place(key)).find(key).ok().map(|row| row.value)
    }

    /// The keys and values of `range`, in order.
    pub fn range<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let pages = self.pages.from(self.place(range.low())).take_while(|(low, _)| *low < range.high());
        let rows = pages.flat_map(|(_, page)| rows_of(&page.bytes)).map(|row| (row.key, row.value));
        rows.skip_while(|(key, _)| *key < range.low().as_bytes()).take_while(|(key, _)| *key < range.high().as_bytes())
    }

    /// The same, the highest key first.
    pub fn range_down<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let begins_above = |place: &PagePosition| self.pages.low(*place) > range.low();
        let before = move |place: &PagePosition| if begins_above(place) { self.pages.previous(*place) } else { None };
        let pages = std::iter::successors(Some(self.place(range.high())), before);
        let rows = pages.flat_map(|place| {
            let rows: Vec<_> = rows_of(&self.pages.page(place).bytes).map(|row| (row.key, row.value)).collect();
            rows.into_iter().rev()
        });
        rows.skip_while(|(key, _)| *key >= range.high().as_bytes()).take_while(|(key, _)| *key >= range.low().as_bytes())
    }

    /// The same in either direction.
    pub fn range_in<'a>(&'a self, direction: Direction, range: &'a KeyRange) -> Box<dyn Iterator<Item = (&'a [u8], &'a [u8])> + 'a> {
        match direction {
            Direction::Ascending => Box::new(self.range(range)),
            Direction::Descending => Box::new(self.range_down(range)),
        }
    }

    /// Gives `key` a value.
    pub fn put(&mut self, key: &Key, value: &Value, directory: &mut Directory) {
        let place = self.place(key);
        let page = self.pages.page_mut(place);
        page.put(key, value);
        directory.change(page.number);
        if page.is_too_large() {
            self.split(key, directory);
        }
    }

    /// Splits the page of `key`, which was just put there, and what becomes of it likewise while it is too large.
    fn split(&mut self, key: &Key, directory: &mut Directory) {
        let place = self.place(key);
        let page = self.pages.page_mut(place);
        let is_last = rows_of(&page.bytes).last().is_some_and(|last| last.key == key.as_bytes());
        // Keys that come in their order leave full pages behind.
        let lower_rows = if is_last { page.rows - 1 } else { page.rows / 2 };
        let middle = rows_of(&page.bytes).nth(lower_rows as usize).expect("it has several rows");
        let (at, low) = (middle.low, key_of(middle.key));
        let number = directory.make(Owner::Rows(low.clone()));
        let upper = Page { number, rows: page.rows - lower_rows, bytes: page.bytes.split_off(at) };
        page.rows = lower_rows;
        page.bytes.shrink_to_fit();
        let lower_key = page.is_too_large().then(|| rows_of(&page.bytes).next().map(|row| key_of(row.key))).flatten();
        let upper_key = upper.is_too_large().then(|| low.clone());
        self.pages.insert(low, upper);
        // One large value beside small ones may need more than one cut.
        for key in [lower_key, upper_key].into_iter().flatten() {
            self.split(&key, directory);
        }
    }

    /// Removes `key`, if it is there.
    pub fn remove(&mut self, key: &Key, directory: &mut Directory) {
        let place = self.place(key);
        let page = self.pages.page_mut(place);
        let Ok(row) = page.find(key) else { return };
        let (from, to) = (row.low, row.high);
        page.bytes.drain(from..to);
        page.rows -= 1;
        directory.change(page.number);
        let (number, rows, bytes) = (page.number, page.rows, page.bytes.len());
        if rows == 0 && !self.pages.low(place).as_bytes().is_empty() {
            // The page before holds its keys from now on.
            self.pages.remove(place);
            directory.free(number);
            return;
        }
        let fits = |next: &Page| (rows + next.rows) as usize <= PAGE_ROWS_MAX / 2 && bytes + next.bytes.len() <= PAGE_BYTES_MAX / 2;
        if let Some(next) = self.pages.next(place).filter(|next| rows as usize <= PAGE_ROWS_MAX / 4 && fits(self.pages.page(*next))) {
            let taken_in = self.pages.remove(next);
            directory.free(taken_in.number);
            let page = self.pages.page_mut(place);
            page.rows += taken_in.rows;
            page.bytes.extend_from_slice(&taken_in.bytes);
        }
    }

    /// Flips a bit in the value of `key` and notes nothing. Gives whether there is one to flip.
    pub fn flip_bit(&mut self, key: &Key, bit: usize) -> bool {
        let place = self.place(key);
        let page = self.pages.page_mut(place);
        let Ok(row) = page.find(key) else { return false };
        let (from, bits) = (row.high - row.value.len(), row.value.len() * 8);
        let Some(bit) = bit.checked_rem(bits) else { return false };
        page.bytes[from + bit / 8] ^= 1 << (bit % 8);
        true
    }

    /// Appends what the page that begins with `low` holds.
    pub fn encode_page(&self, low: &Key, out: &mut Vec<u8>) {
        let page = self.pages.page(self.place(low));
        low.encode(out);
        page.rows.encode(out);
        out.extend_from_slice(&page.bytes);
    }

    /// Adds a page that another replica encoded, and gives its first key.
    pub fn decode_page(&mut self, number: PageNumber, reader: &mut Reader) -> Result<Key, DecodeError> {
        let (low, rows) = (Key::decode(reader)?.detached(), u32::decode(reader)?);
        let bytes = reader.take(reader.remaining())?.to_vec();
        let (mut count, mut end, mut last) = (0, 0, None);
        for row in rows_of(&bytes) {
            let is_row = row.key.len() <= KEY_BYTES_MAX && row.value.len() <= VALUE_BYTES_MAX;
            if !is_row || last.is_some_and(|last| last >= row.key) || row.key < low.as_bytes() {
                return Err(DecodeError::NotCanonical("a page of rows"));
            }
            (count, end, last) = (count + 1, row.high, Some(row.key));
        }
        let page = Page { number, rows, bytes };
        let is_whole = count == rows && end == page.bytes.len() && !page.is_too_large();
        if !is_whole || !self.pages.insert(low.clone(), page) {
            return Err(DecodeError::NotCanonical("a page of rows"));
        }
        Ok(low)
    }

    /// Whether the pages that were decoded make up rows: the first begins with the lowest key, and none reaches into the next.
    pub fn is_whole(&self) -> bool {
        let ends_before = |page: &Page, next: &Key| rows_of(&page.bytes).last().is_none_or(|last| last.key < next.as_bytes());
        let mut neighbours = self.pages.all().zip(self.pages.all().skip(1));
        self.pages.find(&Key::default()).is_some() && neighbours.all(|((_, page), (next, _))| ends_before(page, next))
    }

    /// How many rows there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages.all().map(|(_, page)| page.rows as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use types::ClusterId;

    use super::*;

    fn key(at: u16) -> Key {
        Key::new(at.to_be_bytes().to_vec()).expect("short")
    }

    fn is_tidy(rows: &Rows) -> bool {
        rows.is_whole() && rows.pages.all().all(|(_, page)| !page.is_too_large() && rows_of(&page.bytes).count() == page.rows as usize)
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
                assert_eq!((rows.get(&key(at)), rows.len()), (model.get(&key(at)).map(Value::as_bytes), model.len()));
            }
            assert!(is_tidy(&rows));
            let empty = rows.pages.all().filter(|(_, page)| page.rows == 0).count();
            assert!(empty <= 1, "only the first page may be empty");
            for (low, high) in [(0, 200), (50, 51), (20, 120), (199, 300)] {
                let range = KeyRange::new(key(low), key(high)).expect("it has keys");
                let expected = model.range(key(low)..key(high)).map(|(key, value)| (key.as_bytes(), value.as_bytes()));
                assert!(rows.range(&range).eq(expected.clone()));
                assert!(rows.range_down(&range).eq(expected.rev()));
            }
            let mut read_back = Rows::default();
            for (low, page) in rows.pages.all() {
                let mut bytes = Vec::new();
                rows.encode_page(low, &mut bytes);
                let mut reader = Reader::new(bytes.into(), ClusterId::new([0; 16]));
                assert_eq!(read_back.decode_page(page.number, &mut reader).as_ref(), Ok(low));
                assert_eq!(directory.owner(page.number), &Owner::Rows(low.clone()));
            }
            assert!(is_tidy(&read_back) && read_back.len() == model.len());
        }
    }
}
