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
        self.table.raise_read_ceiling(timestamp.time);
        let limit = usize::try_from(limit).unwrap_or(SCAN_ROWS_MAX).clamp(1, SCAN_ROWS_MAX);
        let (mut rows, mut shown, mut live, mut looked_at): (Vec<ScanRow>, _, usize, usize) = (Vec::new(), Shown::default(), 0, 0);
        let behind_last = |rows: &[ScanRow]| rows.last().and_then(|last| direction.behind(&last.key));
        let mut rest = part.clone();
        // The page is complete up to here, in its direction.
        let end = 'page: loop {
            // Where hardly anything has a value, each step is as large as all before it.
            let keys = (limit - live).max(STEP_MIN).max(looked_at).min(LOOKED_AT_MAX - looked_at);
            let room = PageLimits { keys, bytes: PAGE_BYTES.saturating_sub(shown.bytes) };
            let step = self.table.range_page(&rest, direction, timestamp, room)?;
            looked_at += step.looked_at;
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
                Some(next) if looked_at < LOOKED_AT_MAX => rest = next,
                Some(_) | None => break step.end,
            }
        };
        let read = if broken(Mutant::RangeRaisedAtWrongEnd) { Direction::Ascending } else { direction }.read(&part, &end);
        let is_promised = read.as_ref().is_none_or(|read| self.may_promise_range(now, from, timestamp, (read, rows.len())));
        if let Some(read) = read.filter(|_| is_promised)
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
        let permission = self.may_read_at(now, from, timestamp)?;
        if !permission.may_read_range(range) && !broken(Mutant::SecretRange) {
            return Err(Refusal::NotPermitted);
        }
        self.cluster.part_of(self.me.shard, range).ok_or(Refusal::WrongShard)
    }
}
