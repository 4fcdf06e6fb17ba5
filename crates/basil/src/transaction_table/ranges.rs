//! What a replica knows of ranges of keys: what a scan is answered from, and what Algorithm 1 needs to judge one.

use mutants::{Mutant, broken};
use store::{PageLimits, StorageBackend, StoreError, Version};
use types::{Direction, Key, KeyRange, Timestamp};

use super::TransactionTable;
use crate::check::Unread;
use crate::timestamp_index::OrderKey;
use crate::transaction::{RANGE_DELETED_MAX, Transaction};

/// How much is looked at together when a transaction is judged: about so many keys, and bytes of keys and values.
const STEP: PageLimits = PageLimits { keys: 256, bytes: 1 << 20 };

/// A key that was deleted so long before the reader's timestamp is not told of. By then mostly all replicas have the deletion; sooner, those that
/// lack it would often cost a question to all (`docs/protocols/basil.md`, "Deleted keys").
const DELETED_TOLD_NS: u64 = 1_000_000_000;

/// Who reads at `timestamp` is not told of what was deleted at this one or before.
pub(crate) fn untold_by(timestamp: Timestamp) -> Timestamp {
    Timestamp { time: timestamp.time.saturating_sub(DELETED_TOLD_NS), ..timestamp }
}

/// So many deleted keys may lie beside each key that a transaction has read in a range, before they count: fewer together are not remembered.
const DELETED_BESIDE_READ: usize = 16;

/// Where undecided transactions have more keys, these are always kept in order, so that putting them in order never takes long.
const IN_ORDER_KEYS: usize = 16_384;

/// Keys of a range, from one of its ends.
pub(crate) struct RangePage {
    /// Of each key that has a version or a prepared write below the reader, in that direction, what there is.
    pub rows: Vec<RangeRow>,
    /// Up to where, in that direction, this is all there is.
    pub end: Key,
    /// How many keys were looked at for it, about.
    pub looked_at: usize,
    /// How many bytes of rows were read for it.
    pub read_bytes: usize,
}

/// What there is of one key below a reader.
pub(crate) struct RangeRow {
    pub key: Key,
    /// The newest committed version, a deletion too if it is not left out.
    pub committed: Option<Version>,
    /// The newest undecided writer, if that is newer.
    pub prepared: Option<OrderKey>,
}

impl<M: StorageBackend> TransactionTable<M> {
    /// The keys of `range` that come first in this direction, as many as fit into `limits` but at least one, as a reader at `before` finds
    /// them, who must be above the store's watermark, or at a moment that the store keeps, and is not told of all that was deleted ([`untold_by`]).
    pub fn range_page(
        &mut self,
        range: &KeyRange,
        direction: Direction,
        before: Timestamp,
        limits: PageLimits,
    ) -> Result<RangePage, StoreError> {
        let deleted_by = untold_by(before);
        self.keep_in_order();
        self.writing.note_asked();
        let (up_to, is_kept) = (before.predecessor(), before <= self.store.watermark());
        let page = match is_kept {
            true => self.store.kept_page(range, direction, up_to, limits)?,
            false => self.store.page_of_values(range, direction, (up_to, deleted_by), limits)?,
        };
        let mut end = page.next.unwrap_or_else(|| direction.end(range).clone());
        let mut versions = page.versions.into_iter().peekable();
        let read = direction.read(range, &end);
        let written = self.writing.keys().zip(read.as_ref()).map(|(keys, read)| direction.of(keys.range(read.low()..read.high())));
        let mut written = written.into_iter().flatten().peekable();
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
            let mut committed = versions.next_if(|(one, _)| *one == key).map(|(_, version)| version);
            let is_written = written.next_if(|one| **one == key).is_some();
            written_only += usize::from(committed.is_none());
            let newest = if is_written { self.store.meta(&key).and_then(|state| state.writers.newest_below(before)) } else { None };
            if committed.is_none() && !is_kept && newest.is_some_and(|at| at.0 <= deleted_by) && !broken(Mutant::DeletionHidden) {
                // The writer may lie below a deletion that was left out.
                committed = self.store.latest_before(&key, before)?;
            }
            let prepared = newest.filter(|at| committed.as_ref().is_none_or(|version| version.timestamp < at.0));
            let is_untold = |version: &Version| version.value.is_none() && version.timestamp <= deleted_by;
            if prepared.is_some() || committed.as_ref().is_some_and(|version| !is_untold(version)) {
                rows.push(RangeRow { key, committed, prepared });
            }
        }
        Ok(RangePage { rows, end, looked_at: page.looked_at + written_only, read_bytes: page.read_bytes })
    }

    /// From now on the keys that have undecided writers are kept in order.
    fn keep_in_order(&mut self) {
        if self.writing.keys().is_none() {
            let writers = self.writing.transactions().filter_map(|at| self.get(self.id_of(at)));
            let keys = writers.flat_map(|state| state.transaction.writes()).map(|write| &write.key);
            let keys = keys.filter(|key| self.holds(key)).map(Key::detached).collect();
            self.writing.keep(keys);
        }
    }

    /// The same if they are very many.
    pub(super) fn keep_very_many_in_order(&mut self) {
        if self.undecided_keys() > IN_ORDER_KEYS {
            self.keep_in_order();
        }
    }

    /// To be called now and then: the keys are not kept in order any more if nobody has asked for them since, and they are not very many.
    pub(super) fn forget_unasked_order(&mut self) {
        if self.undecided_keys() <= IN_ORDER_KEYS {
            self.writing.forget_unasked();
        }
    }

    /// How many keys undecided transactions have, each as often as it is in one.
    fn undecided_keys(&self) -> usize {
        self.undecided.values().map(|load| load.keys).sum()
    }

    /// For each range that `transaction` read: what there is of keys that it does not say to have read. So many bytes may be read for that.
    pub(super) fn unread(&mut self, transaction: &Transaction, bytes_left: usize) -> Result<Vec<Unread>, StoreError> {
        let mut left = if broken(Mutant::RangeUncounted) { (usize::MAX, usize::MAX) } else { (RANGE_DELETED_MAX, bytes_left) };
        transaction.ranges().iter().map(|range| self.unread_in(transaction, range, &mut left)).collect()
    }

    /// Beside what the transaction reads, so many keys may be looked at, and so many bytes be read.
    fn unread_in(
        &mut self,
        transaction: &Transaction,
        range: &KeyRange,
        (left, bytes_left): &mut (usize, usize),
    ) -> Result<Unread, StoreError> {
        let Some(mut rest) = self.cluster.part_of(self.shard, range) else { return Ok(Unread::Nothing) };
        let timestamp = transaction.timestamp();
        if timestamp <= self.store.watermark() {
            return Ok(Unread::Unknown); // It is too old to be judged, too.
        }
        loop {
            let page = self.range_page(&rest, Direction::Ascending, timestamp, STEP)?;
            let is_read = |row: &&RangeRow| transaction.read_of(&row.key).is_some();
            for row in page.rows.iter().filter(|row| !is_read(row)) {
                if let Some(writer) = row.prepared {
                    return Ok(Unread::Prepared(self.id_of(writer)));
                }
                if let Some(version) = row.committed.as_ref().filter(|version| version.value.is_some()) {
                    return Ok(Unread::Committed(version.timestamp));
                }
            }
            let reads_before = |key: &Key| transaction.reads().partition_point(|read| read.key < *key);
            let read = reads_before(&page.end) - reads_before(rest.low());
            let Some(next) = KeyRange::new(page.end, rest.high().clone()) else { return Ok(Unread::Nothing) };
            let allowed = read * (1 + DELETED_BESIDE_READ);
            let Some(fewer) = left.checked_sub(page.looked_at.saturating_sub(allowed)) else { return Ok(Unread::Unknown) };
            let Some(fewer_bytes) = bytes_left.checked_sub(page.read_bytes) else { return Ok(Unread::Unknown) };
            (*left, *bytes_left, rest) = (fewer, fewer_bytes, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use machine::Time;
    use store::Memory;
    use types::{ClientId, Value};

    use super::super::tests::empty_table;
    use super::*;
    use crate::certificate::{Decision, Vote};
    use crate::check::Knowledge as _;
    use crate::transaction::Write;
    use crate::transaction_state::{Quota, QuotaOwner};

    /// Well after what is left out was deleted.
    const NOW: u64 = 10 * DELETED_TOLD_NS;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn key(number: usize) -> Key {
        Key::from(format!("k{number:05}").as_str())
    }

    fn commit(table: &mut TransactionTable<Memory>, number: usize, time: u64, value: Option<&str>) {
        table.store.commit(&key(number), Version { timestamp: at(time), value: value.map(Value::from) });
    }

    #[test]
    fn keys_deleted_some_time_ago_are_looked_at_once() {
        let (mut table, count) = (empty_table(), 3 * RANGE_DELETED_MAX);
        (0..count).for_each(|number| commit(&mut table, number, 100 + number as u64, None));
        let range = KeyRange::new(key(0), key(99_999)).expect("it has keys");
        let vote = |table: &mut TransactionTable<Memory>, time: u64| {
            let reader = Transaction::with_ranges(table.cluster.id(), at(time), vec![], vec![range.clone()], vec![]).expect("it is small");
            table.knowledge(&reader).expect("memory does not fail").unread(0)
        };
        // Each goes on from where the one before had to stop.
        assert_eq!([0, 1, 2].map(|time| vote(&mut table, NOW + time)), [Unread::Unknown, Unread::Unknown, Unread::Nothing]);
        assert_eq!(vote(&mut table, 2 * DELETED_TOLD_NS), Unread::Nothing, "all were deleted before that, too");
        commit(&mut table, 5_000, NOW - 5, Some("1"));
        assert_eq!(vote(&mut table, NOW), Unread::Committed(at(NOW - 5)));
        commit(&mut table, 5_000, NOW - 4, None);
        assert_eq!(vote(&mut table, NOW), Unread::Nothing);
        assert_eq!(vote(&mut table, NOW - 4), Unread::Committed(at(NOW - 5)));
    }

    #[test]
    fn a_deletion_that_is_not_told_of_still_hides_what_is_older() {
        let mut table = empty_table();
        commit(&mut table, 0, 10, Some("1"));
        // The first is undecided below a deletion, the second above one, and the third is where nothing was.
        for (number, time) in [(1, 50), (2, 70), (3, 50)] {
            let write = Write { key: key(number), value: Some(Value::from("2")) };
            let writer = Transaction::new(table.cluster.id(), at(time + number as u64), vec![], vec![write]).expect("it is small");
            table.enter(&writer, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))));
            table.restore_vote(writer.id(), Vote::Commit);
        }
        (1..3).for_each(|number| commit(&mut table, number, 60, None));
        let range = KeyRange::new(key(0), key(9)).expect("it has keys");
        for direction in [Direction::Ascending, Direction::Descending] {
            let page = table.range_page(&range, direction, at(NOW), STEP).expect("memory does not fail");
            let rows = page.rows.iter().map(|row| (row.key.clone(), row.prepared.map(|prepared| prepared.0.time)));
            let mut rows: Vec<(Key, Option<u64>)> = rows.collect();
            rows.sort();
            assert_eq!(rows, [(key(0), None), (key(2), Some(72)), (key(3), Some(53))]);
        }
    }

    #[test]
    fn where_very_many_keys_are_being_written_they_are_always_in_order() {
        let mut table = empty_table();
        let step = IN_ORDER_KEYS / 8;
        for number in 0..9 {
            assert!(table.writing.keys().is_none(), "{number} before");
            let write = |at: usize| Write { key: key(number * step + at), value: None };
            let writer = Transaction::new(table.cluster.id(), at(100 + number as u64), vec![], (0..step).map(write).collect());
            let writer = writer.expect("it is small");
            table.enter(&writer, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))));
            table.restore_vote(writer.id(), Vote::Commit);
        }
        let in_order = |table: &TransactionTable<Memory>| table.writing.keys().map(BTreeSet::len);
        (0..3).for_each(|_| drop(table.forget_below(Timestamp::ZERO)));
        assert_eq!(in_order(&table), Some(9 * step));
        let first = *table.by_timestamp.keys().next().expect("there are nine");
        let first = table.id_of(first);
        table.conclude(first, Decision::Commit, None);
        table.forget_below(Timestamp::ZERO);
        assert_eq!(in_order(&table), None, "few enough, and nobody has asked");
    }

    #[test]
    fn undecided_writes_are_found_whether_their_keys_were_kept_in_order_or_not() {
        let all = KeyRange::new(key(0), key(99)).expect("it has keys");
        let found = |table: &mut TransactionTable<Memory>| -> Vec<Key> {
            let page = table.range_page(&all, Direction::Ascending, at(NOW), STEP).expect("memory does not fail");
            page.rows.into_iter().filter(|row| row.prepared.is_some()).map(|row| row.key).collect()
        };
        // Each bit of `way` says whether the range is read after that step, or what is old is forgotten.
        for way in 0..1 << 10 {
            let mut table = empty_table();
            let mut prepared: Vec<(Transaction, usize)> = Vec::new();
            for step in 0..10_usize {
                // Two transactions write each key; two of three end, one of these by an abort.
                let number = step / 2;
                let write = Write { key: key(number), value: Some(Value::from("1")) };
                let writer = Transaction::new(table.cluster.id(), at(100 + step as u64), vec![], vec![write]).expect("it is small");
                table.enter(&writer, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))));
                table.restore_vote(writer.id(), Vote::Commit);
                prepared.push((writer, number));
                if step % 3 > 0 {
                    let (ended, _) = prepared.remove(0);
                    table.conclude(ended.id(), if step % 3 == 1 { Decision::Commit } else { Decision::Abort }, None);
                }
                if way >> step & 1 == 1 {
                    let mut keys: Vec<Key> = prepared.iter().map(|(_, number)| key(*number)).collect();
                    keys.dedup();
                    assert_eq!(found(&mut table), keys, "way {way}, step {step}");
                } else {
                    table.forget_below(Timestamp::ZERO);
                }
            }
        }
    }
}
