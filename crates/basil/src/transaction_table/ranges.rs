//! What a replica knows of ranges of keys: what a scan is answered from, and what Algorithm 1 needs to judge one.

use mutants::{Mutant, broken};
use store::{PageLimits, StorageBackend, StoreError, Version};
use types::limits::RANGE_DELETED_MAX;
use types::{Direction, Key, KeyRange, Timestamp};

use super::TransactionTable;
use crate::check::Unread;
use crate::timestamp_index::OrderKey;
use crate::transaction::Transaction;

/// How much is looked at together when a transaction is judged: about so many keys, and bytes of keys and values.
const STEP: PageLimits = PageLimits { keys: 256, bytes: 1 << 20 };

/// Keys of a range, from one of its ends.
pub(crate) struct RangePage {
    /// Of each key that has a version or a prepared write below the reader, in that direction, what there is.
    pub rows: Vec<RangeRow>,
    /// Up to where, in that direction, this is all there is.
    pub end: Key,
    /// How many keys were looked at for it, about.
    pub looked_at: usize,
}

/// What there is of one key below a reader.
pub(crate) struct RangeRow {
    pub key: Key,
    /// The newest committed version.
    pub committed: Option<Version>,
    /// The newest undecided writer, if that is newer.
    pub prepared: Option<OrderKey>,
}

impl<M: StorageBackend> TransactionTable<M> {
    /// The keys of `range` that come first in this direction, as many as fit into `limits` but at least one, as a reader at `before` finds
    /// them, who must be above the store's watermark.
    pub fn range_page(
        &self,
        range: &KeyRange,
        direction: Direction,
        before: Timestamp,
        limits: PageLimits,
    ) -> Result<RangePage, StoreError> {
        let page = self.store.page((range.low(), Some(range.high())), direction, before.predecessor(), limits)?;
        let mut end = page.next.unwrap_or_else(|| direction.end(range).clone());
        let mut versions = page.versions.into_iter().peekable();
        let read = direction.read(range, &end);
        let written = read.iter().flat_map(|read| direction.of(self.written.range(read.low()..read.high())));
        let mut written = written.peekable();
        let mut last: Option<Key> = None;
        let (mut rows, mut written_only) = (Vec::with_capacity(versions.len()), 0);
        loop {
            let key = match (versions.peek(), written.peek()) {
                (None, None) => break,
                (Some((key, _)), None) => key.clone(),
                (None, Some(key)) => (*key).clone(),
                (Some((key, _)), Some(written)) if direction.order(*written, key).is_lt() => (*written).clone(),
                (Some((key, _)), Some(_)) => key.clone(),
            };
            if written_only >= limits.keys.max(1)
                && let Some(behind) = last.as_ref().and_then(|last| direction.behind(last))
            {
                end = behind;
                break;
            }
            last = Some(key.clone());
            let committed = versions.next_if(|(one, _)| *one == key).map(|(_, version)| version);
            let is_written = written.next_if(|one| **one == key).is_some();
            written_only += usize::from(committed.is_none());
            let newest = if is_written { self.store.meta(&key).and_then(|state| state.writers.newest_below(before)) } else { None };
            let prepared = newest.filter(|at| committed.as_ref().is_none_or(|version| version.timestamp < at.0));
            if committed.is_some() || prepared.is_some() {
                rows.push(RangeRow { key, committed, prepared });
            }
        }
        Ok(RangePage { rows, end, looked_at: page.looked_at + written_only })
    }

    /// For each range that `transaction` read: what there is of keys that it does not say to have read.
    pub(super) fn unread(&self, transaction: &Transaction) -> Result<Vec<Unread>, StoreError> {
        let mut left = if broken(Mutant::RangeUncounted) { usize::MAX } else { RANGE_DELETED_MAX };
        transaction.ranges().iter().map(|range| self.unread_in(transaction, range, &mut left)).collect()
    }

    /// Beside what the transaction reads, `left` keys may be looked at.
    fn unread_in(&self, transaction: &Transaction, range: &KeyRange, left: &mut usize) -> Result<Unread, StoreError> {
        let Some(mut rest) = self.cluster.part_of(self.shard, range) else { return Ok(Unread::Nothing) };
        let timestamp = transaction.timestamp();
        if timestamp <= self.store.watermark() {
            return Ok(Unread::Unknown); // It is too old to be judged, too.
        }
        loop {
            let page = self.range_page(&rest, Direction::Ascending, timestamp, STEP)?;
            let is_read = |row: &&RangeRow| transaction.read_of(&row.key).is_some();
            let read = page.rows.iter().filter(is_read).count();
            for row in page.rows.iter().filter(|row| !is_read(row)) {
                if let Some(writer) = row.prepared {
                    return Ok(Unread::Prepared(self.id_of(writer)));
                }
                if let Some(version) = row.committed.as_ref().filter(|version| version.value.is_some()) {
                    return Ok(Unread::Committed(version.timestamp));
                }
            }
            let Some(next) = KeyRange::new(page.end, rest.high().clone()) else { return Ok(Unread::Nothing) };
            let Some(fewer) = left.checked_sub(page.looked_at.saturating_sub(read)) else { return Ok(Unread::Unknown) };
            (*left, rest) = (fewer, next);
        }
    }
}
