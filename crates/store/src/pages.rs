//! Ranges of keys, page by page and from either end: what the base table has and what is in memory, in the order of keys.

use std::ops::{Bound, Range};

use types::{Direction, Key, Timestamp};

use crate::table::KeyMeta;
use crate::{Row, StorageBackend, Store, StoreError, Version, VersionRef, row};

/// The versions of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Of each key in the range that has one, in the direction asked for: the newest version up to the time asked for, a deletion too.
    pub versions: Vec<(Key, Version)>,
    /// How far it has come in that [direction](Direction), so where the next page begins; nothing when this is the last.
    pub next: Option<Key>,
    /// How many keys were looked at for it.
    pub looked_at: usize,
}

/// How much one page may hold.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// About how many keys are looked at.
    pub keys: usize,
    /// The bytes of keys and values after which no more are taken.
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
        let end = self.visit(between, direction, up_to, limits, |key, version| versions.push((key.clone(), version.to_version())))?;
        Ok(Page { versions, next: end.next, looked_at: end.looked_at })
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
        look: impl FnMut(&Key, VersionRef<'_>),
    ) -> Result<PageEnd, StoreError> {
        self.visit((from, to), Direction::Ascending, up_to, limits, look)
    }

    fn visit(
        &self,
        (low, high): (&Key, Option<&Key>),
        direction: Direction,
        up_to: Timestamp,
        limits: PageLimits,
        mut look: impl FnMut(&Key, VersionRef<'_>),
    ) -> Result<PageEnd, StoreError> {
        self.check_page(up_to)?;
        if high.is_some_and(|high| high <= low) {
            return Ok(PageEnd { next: None, looked_at: 0 });
        }
        let rows = self.base_rows((low, high), direction, limits)?;
        self.prefetch(rows.keys.iter().map(|(key, _)| key));
        // What the base table may lack.
        let (low, high) = match direction {
            Direction::Ascending => (low, rows.end.as_ref().or(high)),
            Direction::Descending => (rows.end.as_ref().unwrap_or(low), high),
        };
        let new_keys = self.new_keys((Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded)));
        let (mut new_keys, mut old) = (direction.of(new_keys).peekable(), rows.keys.iter().peekable());
        let mut page = PageEnd { next: rows.end.clone(), looked_at: 0 };
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
            let replaced; // The row as it should be, if it is not.
            let row = match old.next_if(|(old, _)| old == key) {
                Some((_, row)) => {
                    let row = row::decode(key, &rows.bytes[row.clone()])?;
                    replaced = self.replacing(key, row.timestamp);
                    Some(replaced.map_or(row, Version::as_ref))
                }
                None => None,
            };
            // What is in memory is newer than the row, or it is the row, or an older version that came late.
            let newest = [row, self.in_memory(key, up_to)].into_iter().flatten().max_by_key(|version| version.timestamp);
            if let Some(version) = newest {
                bytes += key.as_bytes().len() + version.value.map_or(0, <[u8]>::len);
                look(key, version);
            }
        }
        Ok(page)
    }

    /// The base table's rows, as many as fit into `limits`, but at least one.
    fn base_rows(&self, between: (&Key, Option<&Key>), direction: Direction, limits: PageLimits) -> Result<Rows, StoreError> {
        let (mut rows, mut bytes, mut damage) = (Rows::default(), 0, None);
        self.scan_base(between, direction, &mut |Row { key, row }| {
            let copied = match row::key_of(key) {
                Ok(copied) => copied,
                Err(error) => {
                    damage = Some(error);
                    return false;
                }
            };
            if limits.are_reached(rows.keys.len(), bytes) {
                rows.end = match direction {
                    Direction::Ascending => Some(copied),
                    Direction::Descending => rows.keys.last().map(|(last, _)| last.clone()),
                };
                return false;
            }
            bytes += key.len() + row.len();
            rows.push(copied, row);
            true
        })?;
        damage.map_or(Ok(rows), Err)
    }
}
