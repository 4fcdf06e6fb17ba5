//! How a replica answers reads (basil.txt §4.1).

use std::collections::BTreeMap;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError, Version};
use types::{Key, Party, Timestamp, TransactionId};

use super::admission::is_author;
use super::{Out, Replica};
use crate::message::{Message, PendingWrite, ReadResult, Refusal, Subject};

/// The most bytes of values and transactions in one read reply.
pub(super) const READ_REPLY_BYTES_MAX: usize = 8 << 20;

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
        if let Err(refusal) = self.may_read(now, from, timestamp, keys) {
            self.refuse(from, Subject::Request(request), refusal, out);
            return Ok(());
        }
        self.table.raise_read_ceiling(timestamp.time);
        self.table.store.prefetch(keys.iter());
        let mut results = Vec::with_capacity(keys.len());
        let mut prepared: Vec<Transaction> = Vec::new();
        let mut places: BTreeMap<TransactionId, u16> = BTreeMap::new();
        let mut bytes = 0;
        for key in keys {
            if !broken(Mutant::ReadTimestampUnraised) {
                self.table.raise_read_timestamp(key, timestamp);
            }
            let (committed, prepared_last) = self.table.newest_before(key, timestamp, Version::clone)?;
            let (version, value) = committed.map_or((Timestamp::ZERO, None), |version| (version.timestamp, version.value));
            bytes += value.as_ref().map_or(0, |value| value.as_bytes().len());
            let pending = match prepared_last.filter(|at| version < at.0).and_then(|at| self.table.get(self.table.id_of(at))) {
                None => PendingWrite::None,
                Some(writer) if !self.may_see(from, &writer.transaction) && !is_author(from, &writer.transaction) => {
                    if broken(Mutant::HiddenDenied) { PendingWrite::None } else { PendingWrite::Hidden }
                }
                Some(writer) => {
                    let next = u16::try_from(prepared.len()).expect("a request names fewer keys");
                    let place = *places.entry(writer.transaction.id()).or_insert(next);
                    if place == next {
                        bytes += writer.transaction.encoded_bytes();
                        prepared.push(writer.transaction.clone());
                    }
                    PendingWrite::Prepared(place)
                }
            };
            results.push(ReadResult { version, value, pending });
            if bytes > READ_REPLY_BYTES_MAX {
                self.refuse(from, Subject::Request(request), Refusal::TooLarge, out);
                return Ok(());
            }
        }
        self.counts.keys_read += keys.len() as u64;
        out.send_large(from, Message::ReadReply { request, clock: self.table.clock(since), results, prepared }, bytes);
        Ok(())
    }

    pub(super) fn may_read(&self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> Result<(), Refusal> {
        let Party::Client(client, _) = from else { return Err(Refusal::NotPermitted) };
        let permission = self.cluster.permission(client).ok_or(Refusal::NotPermitted)?;
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureReader) {
            return Err(Refusal::TooNew);
        }
        if timestamp.time < self.watermark(now) {
            return Err(Refusal::TooOld);
        }
        if !keys.iter().all(|key| permission.may_read(key)) && !broken(Mutant::SecretRead) {
            return Err(Refusal::NotPermitted);
        }
        if !keys.iter().all(|key| self.table.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        Ok(())
    }
}
