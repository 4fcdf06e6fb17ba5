//! Ranges of keys, page by page and from either end: what the base table has and what is in memory, in the order of keys.

use std::ops::{Bound, Range};

use types::{Direction, Key, KeyRange, Timestamp};

use crate::table::KeyMeta;
use crate::{BaseRows, BaseTable, Row, StorageBackend, Store, StoreError, Version, VersionRef, row};

/// The versions of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Of each key in the range that has one, in the direction asked for: the newest version up to the time asked for, a deletion too.
    pub versions: Vec<(Key, Version)>,
    /// How far it has come in that [direction](Direction), so where the next page begins; nothing when this is the last.
    pub next: Option<Key>,
    /// How many keys were looked at for it.
    pub looked_at: usize,
    /// How many bytes of the base table's rows were read for it, or, if that is more, how many to get to where rows were read: many more than
    /// the page holds, where what is in memory has taken their place, or where much was passed over.
    pub read_bytes: usize,
}

/// How much one page may hold.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// About how many keys are looked at.
    pub keys: usize,
    /// The bytes of keys and values after which no more are taken, and of the base table's rows after which no more are read.
    pub bytes: usize,
}

impl PageLimits {
    /// Whether a page that has so much takes no more.
    fn are_reached(self, keys: usize, bytes: usize) -> bool {
        keys > 0 && (keys >= self.keys || bytes >= self.bytes)
    }
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEnd {
    /// As in [`Page`].
    pub next: Option<Key>,
    /// As in [`Page`].
    pub looked_at: usize,
    /// As in [`Page`].
    pub read_bytes: usize,
}

/// Where a visit ended: what [`PageEnd`] says, without what was read.
struct VisitEnd {
    next: Option<Key>,
    looked_at: usize,
}

/// Rows of the base table, in one direction.
#[derive(Default)]
struct Rows {
    keys: Vec<(Key, Range<usize>)>,
    /// The rows' bytes, one after the other.
    bytes: Vec<u8>,
    /// How far they have come, if there are more in the range.
    end: Option<Key>,
}

impl Rows {
    fn push(&mut self, key: Key, row: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(row);
        self.keys.push((key, begin..self.bytes.len()));
    }
}

/// What goes through the base table for one page.
struct BaseReader {
    rows: Box<dyn BaseRows>,
    direction: Direction,
    /// Whether it has all there is of the moment that is read, and what is in memory does not count.
    is_all: bool,
    /// How many bytes of rows were read.
    row_bytes: usize,
    /// How many bytes were read to get to where the page begins; nothing before it has begun.
    begin_bytes: Option<usize>,
    /// How many bytes were read to get from one part of it to the next.
    passing_bytes: usize,
}

impl BaseReader {
    fn new(table: &dyn BaseTable, direction: Direction, is_all: bool) -> Self {
        Self { rows: table.rows(direction), direction, is_all, row_bytes: 0, begin_bytes: None, passing_bytes: 0 }
    }

    /// Goes to where reading between these keys begins.
    fn seek(&mut self, (low, high): (&Key, Option<&Key>)) -> Result<(), StoreError> {
        let read_before = self.rows.read_bytes();
        self.rows.seek(if self.direction == Direction::Ascending { Some(low) } else { high })?;
        let read = self.rows.read_bytes() - read_before;
        match self.begin_bytes {
            None => self.begin_bytes = Some(read),
            Some(_) => self.passing_bytes += read,
        }
        Ok(())
    }

    /// How many bytes were read for the page, as far as they count. Rows may have been read to get to them.
    fn counted_bytes(&self) -> usize {
        self.row_bytes.max(self.begin_bytes.unwrap_or(0).min(BEGIN_BYTES_MAX) + self.passing_bytes)
    }
}

/// Keys met one after the other, in one direction, that are all deleted and have no newer versions.
struct Stretch {
    direction: Direction,
    /// Where it begins. Nothing while the last key met is another.
    begin: Option<Key>,
    /// How many there are. One whose row in the base table is large counts as several.
    keys: usize,
    /// The newest version in it.
    up_to: Timestamp,
}

/// A key whose row in the base table is read in vain counts once more for each so many bytes of it: that takes about as long as another key does.
const BYTES_FOR_A_KEY: usize = 4 << 10;

/// To get to where a page begins counts for no more than so many bytes. Of a table of large rows as many as it has runs are read for that, which
/// would leave next to nothing for the page itself.
const BEGIN_BYTES_MAX: usize = 256 << 10;

/// What is known of a range: it has so many keys, all deleted, and no version above this timestamp.
type Found = (KeyRange, usize, Timestamp);

impl Stretch {
    /// Nothing was met yet in `range`.
    fn new(direction: Direction, range: &KeyRange) -> Self {
        Self { direction, begin: Some(direction.begin(range).clone()), keys: 0, up_to: Timestamp::ZERO }
    }

    /// A key is met that was deleted then, and for which a row of so many bytes was read.
    fn take_in(&mut self, key: &Key, deleted: Timestamp, row_bytes: usize) {
        if self.begin.is_none() {
            self.begin = self.side_before(key);
        }
        self.keys += 1 + row_bytes / BYTES_FOR_A_KEY;
        self.up_to = self.up_to.max(deleted);
    }

    /// Another key is met.
    fn end_before(&mut self, key: &Key) -> Option<Found> {
        let end = self.side_before(key).filter(|_| self.keys > 0);
        let found = end.and_then(|end| self.end_at(&end));
        (self.begin, self.keys, self.up_to) = (None, 0, Timestamp::ZERO);
        found
    }

    /// There is no more up to `end`.
    fn end_at(&mut self, end: &Key) -> Option<Found> {
        let (begin, keys) = (self.begin.take(), std::mem::take(&mut self.keys));
        let up_to = std::mem::replace(&mut self.up_to, Timestamp::ZERO);
        let (low, high) = match self.direction {
            Direction::Ascending => (begin?, end.clone()),
            Direction::Descending => (end.clone(), begin?),
        };
        KeyRange::new(low, high).filter(|_| keys > 0).map(|range| (range, keys, up_to))
    }

    /// How far one has come who is about to meet `key`. Nothing where that is no key.
    fn side_before(&self, key: &Key) -> Option<Key> {
        match self.direction {
            Direction::Ascending => Some(key.clone()),
            Direction::Descending => key.successor(),
        }
    }
}

impl<M: StorageBackend, K: KeyMeta> Store<M, K> {
    /// The newest versions at or below `up_to` of the keys from `low` on, and before `high` where that is given: those that come first in this
    /// direction, as many as fit into `limits`, but at least one.
    ///
    /// # Errors
    /// When the base table fails, and [`StoreError::BelowWatermark`] when `up_to` is below the watermark.
    pub fn page(
        &self,
        between: (&Key, Option<&Key>),
        direction: Direction,
        up_to: Timestamp,
        limits: PageLimits,
    ) -> Result<Page, StoreError> {
        let mut versions = Vec::new();
        let look =
            |key: &Key, version: Option<VersionRef<'_>>, _| versions.extend(version.map(|version| (key.clone(), version.to_version())));
        let PageEnd { next, looked_at, read_bytes } = self.visit_once(between, direction, up_to, limits, look)?;
        Ok(Page { versions, next, looked_at, read_bytes })
    }

    /// What [`Store::page`] gives of `range`, without the keys whose newest versions are deletions at or before `deleted_by`. Where it finds nothing
    /// but such keys, this is remembered, and from then on it is passed over as one key is, by those whose `deleted_by` is no earlier.
    ///
    /// # Errors
    /// As [`Store::page`].
    ///
    /// # Panics
    /// When the journal was not replayed to its end.
    pub fn page_of_values(
        &mut self,
        range: &KeyRange,
        direction: Direction,
        (up_to, deleted_by): (Timestamp, Timestamp),
        limits: PageLimits,
    ) -> Result<Page, StoreError> {
        assert!(self.is_replayed(), "what is still to be replayed may lie in what is remembered");
        self.check_page(up_to)?;
        let mut page = Page { versions: Vec::new(), next: None, looked_at: 0, read_bytes: 0 };
        // One for the whole page: to go to each key between two that are passed over anew, in each run, would take far longer than to look at all.
        let mut reader = self.reader(direction);
        let (mut rest, mut bytes, mut found) = (range.clone(), 0, Vec::new());
        loop {
            if limits.are_reached(page.looked_at, bytes.max(reader.row_bytes).max(reader.passing_bytes)) {
                page.next = Some(direction.begin(&rest).clone());
                break;
            }
            let (passed, is_part) = self.deleted.first_in(&rest, direction, deleted_by).unzip();
            let before = passed.as_ref().map_or(Some(rest.clone()), |passed| direction.read(&rest, direction.begin(passed)));
            let end = if let Some(before) = before {
                let room = PageLimits { keys: limits.keys.saturating_sub(page.looked_at), bytes: limits.bytes.saturating_sub(bytes) };
                let mut stretch = Stretch::new(direction, &before);
                let look = |key: &Key, version: Option<VersionRef<'_>>, row_bytes| {
                    bytes += key.as_bytes().len() + version.and_then(|version| version.value).map_or(0, <[u8]>::len);
                    let deletion = version.filter(|version| version.value.is_none() && version.timestamp <= deleted_by);
                    match deletion.filter(|deletion| self.is_newest(key, deletion.timestamp)) {
                        Some(deletion) => stretch.take_in(key, deletion.timestamp, row_bytes),
                        None => found.extend(stretch.end_before(key)),
                    }
                    if deletion.is_none() {
                        page.versions.extend(version.map(|version| (key.clone(), version.to_version())));
                    }
                };
                let VisitEnd { next, looked_at } = self.visit(&mut reader, (before.low(), Some(before.high())), up_to, room, look)?;
                page.looked_at += looked_at;
                found.extend(stretch.end_at(next.as_ref().unwrap_or(direction.end(&before))));
                if next.is_some() {
                    page.next = next;
                    break;
                }
                before
            } else {
                // Nothing lies before it, so there is one: without one, all of the rest would.
                let Some(passed) = passed else { break };
                page.looked_at += 1;
                if is_part == Some(true) {
                    let few = PageLimits { keys: self.deleted.keys_min(), bytes: limits.bytes };
                    let looked_into = self.visit(&mut reader, (passed.low(), Some(passed.high())), up_to, few, |_, _, _| {})?;
                    page.looked_at += looked_into.looked_at;
                    self.deleted.looked_into(passed.low(), looked_into.next.is_some());
                    continue;
                }
                passed
            };
            let Some(left) = direction.left(&rest, direction.end(&end)) else { break };
            rest = left;
        }
        page.read_bytes = reader.counted_bytes();
        for (range, keys, up_to) in found {
            self.deleted.remember(&range, keys, up_to);
        }
        Ok(page)
    }

    /// What [`Store::page`] gave of a moment that is [kept](Store::keep), whose newest timestamp is `up_to`.
    ///
    /// # Errors
    /// When the base table fails, and [`StoreError::BelowWatermark`] when the moment is not kept.
    pub fn kept_page(&self, range: &KeyRange, direction: Direction, up_to: Timestamp, limits: PageLimits) -> Result<Page, StoreError> {
        let mut reader = BaseReader::new(self.kept(up_to)?, direction, true);
        let mut versions = Vec::new();
        let look =
            |key: &Key, version: Option<VersionRef<'_>>, _| versions.extend(version.map(|version| (key.clone(), version.to_version())));
        let VisitEnd { next, looked_at } = self.visit(&mut reader, (range.low(), Some(range.high())), up_to, limits, look)?;
        Ok(Page { versions, next, looked_at, read_bytes: reader.counted_bytes() })
    }

    /// Shows `look` what [`Store::page`] gives in ascending order, where it stands.
    ///
    /// # Errors
    /// As [`Store::page`].
    pub fn visit_page(
        &self,
        from: &Key,
        to: Option<&Key>,
        up_to: Timestamp,
        limits: PageLimits,
        mut look: impl FnMut(&Key, VersionRef<'_>),
    ) -> Result<PageEnd, StoreError> {
        self.visit_once((from, to), Direction::Ascending, up_to, limits, |key, version, _| {
            version.into_iter().for_each(|version| look(key, version))
        })
    }

    /// What reads the base table's rows.
    fn reader(&self, direction: Direction) -> BaseReader {
        BaseReader::new(&*self.base_table(), direction, false)
    }

    /// What is [visited](Self::visit) with a reader of its own.
    fn visit_once(
        &self,
        between: (&Key, Option<&Key>),
        direction: Direction,
        up_to: Timestamp,
        limits: PageLimits,
        look: impl FnMut(&Key, Option<VersionRef<'_>>, usize),
    ) -> Result<PageEnd, StoreError> {
        let mut reader = self.reader(direction);
        let VisitEnd { next, looked_at } = self.visit(&mut reader, between, up_to, limits, look)?;
        Ok(PageEnd { next, looked_at, read_bytes: reader.counted_bytes() })
    }

    /// Shows `look` each key that is looked at, with its newest version up to `up_to` if it has one, and how many bytes of a row were read for it.
    fn visit(
        &self,
        reader: &mut BaseReader,
        (low, high): (&Key, Option<&Key>),
        up_to: Timestamp,
        limits: PageLimits,
        mut look: impl FnMut(&Key, Option<VersionRef<'_>>, usize),
    ) -> Result<VisitEnd, StoreError> {
        if !reader.is_all {
            self.check_page(up_to)?;
        }
        if high.is_some_and(|high| high <= low) {
            return Ok(VisitEnd { next: None, looked_at: 0 });
        }
        let (rows, direction, in_memory_too) = (rows_between(reader, (low, high), limits)?, reader.direction, !reader.is_all);
        if in_memory_too {
            self.prefetch(rows.keys.iter().map(|(key, _)| key));
        }
        // What the base table may lack.
        let (low, high) = match direction {
            Direction::Ascending => (low, rows.end.as_ref().or(high)),
            Direction::Descending => (rows.end.as_ref().unwrap_or(low), high),
        };
        let new_keys = in_memory_too.then(|| self.new_keys((Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded))));
        let new_keys = new_keys.into_iter().flatten();
        let (mut new_keys, mut old) = (direction.of(new_keys).peekable(), rows.keys.iter().peekable());
        let mut page = VisitEnd { next: rows.end.clone(), looked_at: 0 };
        let (mut bytes, mut last): (_, Option<&Key>) = (0, None);
        loop {
            let key = match (old.peek(), new_keys.peek()) {
                (None, None) => break,
                (Some((key, _)), Some(new)) if direction.order(*new, key).is_lt() => *new,
                (Some((key, _)), _) => key,
                (None, Some(new)) => *new,
            };
            if limits.are_reached(page.looked_at, bytes) {
                page.next = match direction {
                    Direction::Ascending => Some(key.clone()),
                    Direction::Descending => last.cloned(),
                };
                break;
            }
            page.looked_at += 1;
            last = Some(key);
            new_keys.next_if(|new| *new == key);
            let mut row_bytes = 0;
            let replaced; // The row as it should be, if it is not.
            let row = match old.next_if(|(old, _)| old == key) {
                Some((_, row)) => {
                    row_bytes = row.len();
                    let row = row::decode(key, &rows.bytes[row.clone()])?;
                    replaced = self.replacing(key, row.timestamp);
                    Some(replaced.map_or(row, Version::as_ref))
                }
                None => None,
            };
            // What is in memory is newer than the row, or it is the row, or an older version that came late.
            let in_memory = if in_memory_too { self.in_memory(key, up_to) } else { None };
            let newest = [row, in_memory].into_iter().flatten().max_by_key(|version| version.timestamp);
            if let Some(version) = newest {
                bytes += key.as_bytes().len() + version.value.map_or(0, <[u8]>::len);
            }
            look(key, newest, row_bytes);
        }
        Ok(page)
    }
}

/// The base table's rows, as many as fit into `limits`, but at least one.
fn rows_between(reader: &mut BaseReader, (low, high): (&Key, Option<&Key>), limits: PageLimits) -> Result<Rows, StoreError> {
    let (mut rows, mut bytes) = (Rows::default(), 0);
    reader.seek((low, high))?;
    let is_between = |key: &[u8]| key >= low.as_bytes() && high.is_none_or(|high| key < high.as_bytes());
    while let Some(Row { key, row }) = reader.rows.row().filter(|row| is_between(row.key)) {
        let copied = row::key_of(key)?;
        if limits.are_reached(rows.keys.len(), bytes) {
            rows.end = match reader.direction {
                Direction::Ascending => Some(copied),
                Direction::Descending => rows.keys.last().map(|(last, _)| last.clone()),
            };
            break;
        }
        bytes += key.len() + row.len();
        rows.push(copied, row);
        reader.rows.advance()?;
    }
    reader.row_bytes += rows.bytes.len();
    Ok(rows)
}
