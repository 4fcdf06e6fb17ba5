//! How a replica answers reads of ranges (beyond the paper).

use machine::Time;
use mutants::{Mutant, broken};
use store::{PageLimits, StorageBackend, StoreError};
use types::limits::SCAN_ROWS_MAX;
use types::{Direction, KeyRange, Party, Timestamp};

use super::reads::Shown;
use super::{Out, Replica};
use crate::message::{Message, Refusal, ScanRow, Subject};

/// The bytes of values and transactions after which a page takes no more keys.
const PAGE_BYTES: usize = 1 << 20;
/// The most keys that are looked at for one page, with or without anything to tell of them.
const LOOKED_AT_MAX: usize = 4_096;
/// So many bytes of rows are read from disk for one page: many more than it can tell of, where most were deleted or written over since.
const READ_BYTES_MAX: usize = 8 << 20;
/// How many keys are looked up together, at least.
const STEP_MIN: usize = 16;

impl<M: StorageBackend> Replica<M> {
    pub(super) fn on_scan(
        &mut self,
        now: Time,
        since: Time,
        from: Party,
        (request, timestamp): (u64, Timestamp),
        (range, direction, limit): (&KeyRange, Direction, u32),
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        let may_scan = self.may_scan(now, from, timestamp, range);
        let part = match may_scan.and_then(|part| self.may_read_more(now, from).map(|()| part)) {
            Ok(part) => part,
            Err(refusal) => {
                self.refuse(from, Subject::Request(request), refusal, out);
                return Ok(());
            }
        };
        if !self.note_past_reader(now, from, timestamp, limit) {
            return Ok(());
        }
        self.table.raise_read_ceiling(timestamp.time);
        let limit = usize::try_from(limit).unwrap_or(SCAN_ROWS_MAX).clamp(1, SCAN_ROWS_MAX);
        let (mut rows, mut shown, mut live, mut looked_at): (Vec<ScanRow>, _, usize, usize) = (Vec::new(), Shown::default(), 0, 0);
        let behind_last = |rows: &[ScanRow]| rows.last().and_then(|last| direction.behind(&last.key));
        let (mut rest, mut read_bytes) = (part.clone(), 0);
        // The page is complete up to here, in its direction.
        let end = 'page: loop {
            // Where hardly anything has a value, each step is as large as all before it.
            let keys = (limit - live).max(STEP_MIN).max(looked_at).min(LOOKED_AT_MAX - looked_at);
            let room = PageLimits { keys, bytes: PAGE_BYTES.saturating_sub(shown.bytes) };
            let step = self.table.range_page(&rest, direction, timestamp, room)?;
            (looked_at, read_bytes) = (looked_at + step.looked_at, read_bytes + step.read_bytes);
            for row in step.rows {
                if live >= limit || rows.len() >= SCAN_ROWS_MAX || shown.bytes >= PAGE_BYTES {
                    // What lies between the last key and this one may come into being: that is left to who reads on.
                    break 'page behind_last(&rows).unwrap_or_else(|| direction.begin(&part).clone());
                }
                let result = self.show(from, row.committed, row.prepared, &mut shown);
                live += usize::from(result.has_value_perhaps());
                rows.push(ScanRow { key: row.key, result });
            }
            if live >= limit
                && let Some(behind) = behind_last(&rows)
            {
                break behind;
            }
            match direction.left(&part, &step.end) {
                Some(next) if looked_at < LOOKED_AT_MAX && (read_bytes < READ_BYTES_MAX || broken(Mutant::ScanReadsAll)) => rest = next,
                Some(_) | None => break step.end,
            }
        };
        let read = if broken(Mutant::RangeRaisedAtWrongEnd) { Direction::Ascending } else { direction }.read(&part, &end);
        let is_promised = read.as_ref().is_none_or(|read| self.may_promise_range(now, from, timestamp, (read, rows.len())));
        // Nobody is voted for any more below the store's watermark.
        let may_be_written = timestamp > self.table.store.watermark();
        if let Some(read) = read.filter(|_| is_promised && may_be_written)
            && !broken(Mutant::RangeTimestampUnraised)
        {
            self.table.raise_range_timestamp(&read, timestamp);
        }
        self.counts.keys_read += rows.len() as u64;
        self.counts.reads_unpromised += u64::from(!is_promised);
        self.charge_reads(now, from, 1 + rows.len().max(looked_at.saturating_sub(STEP_MIN)));
        let (clock, bytes, prepared) = (self.table.clock(since), shown.bytes, shown.prepared);
        // Keys without values take room, too.
        let bytes = bytes + rows.iter().map(|row| row.key.as_bytes().len()).sum::<usize>();
        out.send_large(from, Message::ScanReply { request, clock, direction, rows, end, prepared, is_promised }, bytes);
        Ok(())
    }

    /// The part of `range` that this replica's shard may hold, if it may be read.
    pub(super) fn may_scan(&self, now: Time, from: Party, timestamp: Timestamp, range: &KeyRange) -> Result<KeyRange, Refusal> {
        let permission = self.may_read_at(now, from, timestamp, |client| self.has_kept(now, client, timestamp))?;
        if !permission.may_read_range(range) && !broken(Mutant::SecretRange) {
            return Err(Refusal::NotPermitted);
        }
        self.cluster.part_of(self.me.shard, range).ok_or(Refusal::WrongShard)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine::Outbox;
    use store::{Memory, Options, Store, Version};
    use types::limits::VALUE_BYTES_MAX;
    use types::{ClientId, Cluster, ClusterId, Key, Permission, Placement, ReplicaId, Session, ShardId, TransactionId, Value};

    use super::*;
    use crate::check::Knowledge as _;
    use crate::replica::ReplicaOptions;
    use crate::transaction::{Read, Transaction};

    const READER: Party = Party::Client(ClientId(1), Session(1));
    /// So many keys have the longest values: more than may be read for one message.
    const KEYS: usize = 70;

    fn key(number: usize) -> Key {
        Key::from(format!("k{number:02}").as_str())
    }

    /// A replica that has all values on disk and none in memory.
    fn replica(now: Time, written: Timestamp) -> Replica<Memory> {
        let anything = Permission { public_key: [9; 32], read_prefixes: vec![Key::from("")], ..Permission::default() };
        let keys = (0..6).map(|index| [index; 32]).collect();
        let cluster = Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], vec![(ClientId(1), anything)]);
        let store = Store::open(Memory::new("bytes"), Options { cache_bytes_max: 0, ..Options::default() }).expect("a new store opens");
        let (cluster, me) = (Arc::new(cluster.expect("the parts fit")), ReplicaId { shard: ShardId(0), index: 0 });
        let mut replica = Replica::open(cluster, me, ReplicaOptions::default(), store, now).expect("it is new");
        let store = &mut replica.table.store;
        let value = Value::from("7".repeat(VALUE_BYTES_MAX).as_str());
        (0..KEYS).for_each(|number| store.commit(&key(number), Version { timestamp: written, value: Some(value.clone()) }));
        store.sync().expect("memory does not fail");
        assert!(store.begin_checkpoint(written).expect("memory does not fail"));
        while store.checkpoint_finished().expect("memory does not fail").is_none() {}
        // Whoever comes to a row that is not in memory makes room for it.
        for number in 0..1_000 {
            let none = Key::from(format!("none {number}").as_str());
            store.latest_timestamp_before(&none, Timestamp::new(written.time + 1, ClientId(1))).expect("memory does not fail");
        }
        replica
    }

    #[test]
    fn what_one_message_has_read_from_disk_is_bounded() {
        let begun = Time(0).after_ms(1_000_000);
        let now = begun.after_ms(60_000);
        let at = |time: Time| Timestamp::new(time.0, ClientId(1));
        let mut replica = replica(begun, at(begun));

        // A vote.
        let reads = (0..KEYS).map(|number| Read { key: key(number), version: at(begun), dependency: None }).collect();
        let transaction = Transaction::new(replica.cluster.id(), at(now), reads, vec![]).expect("it is small");
        let known = replica.table.knowledge(&transaction).expect("memory does not fail");
        let newest = [0, KEYS - 1].map(|number| known.newest_committed(number));
        assert_eq!(newest, [Some(at(begun)), Some(at(now))], "what is not looked at may be newer");

        // Another replica's question.
        let orphan = Timestamp::new(begun.0 + 1, ClientId(1));
        let mut answers = |after_ms: u64, index: u16, keys: usize| {
            let (mut out, keys) = (Outbox::default(), (0..keys).map(key).collect::<Vec<Key>>());
            let from = Party::Replica(ReplicaId { shard: ShardId(0), index });
            replica
                .on_status_query(now.after_ms(after_ms), from, TransactionId([5; 32]), orphan, &keys, &mut out)
                .expect("memory does not fail");
            out.sends.len()
        };
        assert_eq!([answers(0, 1, 10), answers(0, 1, KEYS)], [1, 0]);
        // It pays for that, and no other does.
        assert_eq!([answers(1, 1, 10), answers(1, 2, 10), answers(5_000, 1, 10)], [0, 1, 1]);

        // A scan over what was deleted since.
        let deleted = Timestamp::new(begun.0 + 2, ClientId(1));
        (0..KEYS).for_each(|number| replica.table.store.commit(&key(number), Version { timestamp: deleted, value: None }));
        let range = KeyRange::new(key(0), key(99)).expect("it has keys");
        let mut ends = Vec::new();
        let mut rest = Some(range.clone());
        while let Some(part) = rest {
            let mut out = Outbox::default();
            let scanned = replica.on_scan(now, now, READER, (1, at(now)), (&part, Direction::Ascending, 1), &mut out);
            scanned.expect("memory does not fail");
            let Some((_, Message::ScanReply { end, .. })) = out.sends.pop() else { panic!("it answers") };
            rest = KeyRange::new(end.clone(), range.high().clone());
            ends.push(end);
        }
        assert!(ends.len() > 5, "{ends:?}");
        // It remembers what it has found.
        let mut out = Outbox::default();
        let again = replica.on_scan(now, now, READER, (2, at(now)), (&range, Direction::Ascending, 1), &mut out);
        again.expect("memory does not fail");
        assert!(matches!(out.sends.pop(), Some((_, Message::ScanReply { end, .. })) if end == *range.high()));
    }
}
