//! How a replica answers reads (Basil §4.1).

use std::collections::BTreeMap;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError, Version};
use types::{ClientId, Key, Party, Permission, Timestamp, TransactionId};

use super::admission::is_author;
use super::{Out, Replica};
use crate::message::{Message, PendingWrite, ReadResult, Refusal, Subject};
use crate::timestamp_index::OrderKey;

/// The most bytes of values and transactions in one read reply.
pub(super) const READ_REPLY_BYTES_MAX: usize = 8 << 20;
/// So many keys are prefetched together: with their values they stay in the CPU's caches until each is read.
const PREFETCHED_KEYS: usize = 64;

/// What a reply shows.
#[derive(Default)]
pub(super) struct Shown {
    /// The prepared transactions, each once.
    pub prepared: Vec<Transaction>,
    /// Where each stands.
    places: BTreeMap<TransactionId, u16>,
    /// The bytes of values and transactions.
    pub bytes: usize,
}

impl<M: StorageBackend> Replica<M> {
    pub(super) fn on_read(
        &mut self,
        now: Time,
        since: Time,
        from: Party,
        (request, timestamp): (u64, Timestamp),
        keys: &[Key],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        if let Err(refusal) = self.may_read(now, from, timestamp, keys).and_then(|()| self.may_read_more(now, from)) {
            self.refuse(from, Subject::Request(request), refusal, out);
            return Ok(());
        }
        let is_promised = self.may_promise(now, from, timestamp, keys);
        self.table.raise_read_ceiling(timestamp.time);
        let mut results = Vec::with_capacity(keys.len());
        let mut shown = Shown::default();
        for (place, key) in keys.iter().enumerate() {
            if place % PREFETCHED_KEYS == 0 {
                self.table.store.prefetch_values(keys[place..].iter().take(PREFETCHED_KEYS), |_| true);
            }
            let (committed, prepared_last) = self.table.newest_before(key, timestamp, |committed| committed.to_version())?;
            results.push(self.show(from, committed, prepared_last, &mut shown));
            if shown.bytes > READ_REPLY_BYTES_MAX {
                self.refuse(from, Subject::Request(request), Refusal::TooLarge, out);
                return Ok(());
            }
        }
        if is_promised && !broken(Mutant::ReadTimestampUnraised) {
            self.table.raise_read_timestamps(keys, timestamp);
        }
        let Shown { prepared, bytes, .. } = shown;
        self.counts.keys_read += keys.len() as u64;
        self.counts.reads_unpromised += u64::from(!is_promised);
        self.charge_reads(now, from, keys.len());
        out.send_large(from, Message::ReadReply { request, clock: self.table.clock(since), results, prepared, is_promised }, bytes);
        Ok(())
    }

    /// What `from` is told of a key: its newest committed version, and the undecided write, if that is newer. Its value and a transaction
    /// that was not shown before are added to what is `shown`.
    pub(super) fn show(&self, from: Party, committed: Option<Version>, prepared_last: Option<OrderKey>, shown: &mut Shown) -> ReadResult {
        let (version, value) = committed.map_or((Timestamp::ZERO, None), |version| (version.timestamp, version.value));
        shown.bytes += value.as_ref().map_or(0, |value| value.as_bytes().len());
        let pending = match prepared_last.filter(|at| version < at.0).and_then(|at| self.table.get(self.table.id_of(at))) {
            None => PendingWrite::None,
            Some(writer) if !self.may_see(from, &writer.transaction) && !is_author(from, &writer.transaction) => {
                if broken(Mutant::HiddenDenied) { PendingWrite::None } else { PendingWrite::Hidden }
            }
            Some(writer) => {
                let next = u16::try_from(shown.prepared.len()).expect("a reply tells of fewer keys");
                let place = *shown.places.entry(writer.transaction.id()).or_insert(next);
                if place == next {
                    shown.bytes += writer.transaction.encoded_bytes();
                    shown.prepared.push(writer.transaction.clone());
                }
                PendingWrite::Prepared(place)
            }
        };
        ReadResult { version, value, pending }
    }

    /// What anybody may read that reads at `timestamp`, which may have left the window if it `is_kept` for that client.
    pub(super) fn may_read_at(
        &self,
        now: Time,
        from: Party,
        timestamp: Timestamp,
        is_kept: impl Fn(ClientId) -> bool,
    ) -> Result<&Permission, Refusal> {
        let Party::Client(client, _) = from else { return Err(Refusal::NotPermitted) };
        let permission = self.cluster.permission(client).ok_or(Refusal::NotPermitted)?;
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureReader) {
            return Err(Refusal::TooNew);
        }
        if timestamp.time < self.watermark(now) && !is_kept(client) && !broken(Mutant::UnkeptRead) {
            return Err(Refusal::NotKept { kept_ms: self.options.window_ms });
        }
        Ok(permission)
    }

    pub(super) fn may_read(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> Result<(), Refusal> {
        let permission = self.may_read_at(now, from, timestamp, |_| false)?;
        if !keys.iter().all(|key| permission.may_read(key)) && !broken(Mutant::SecretRead) {
            return Err(Refusal::NotPermitted);
        }
        if !keys.iter().all(|key| self.table.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        Ok(())
    }
}
