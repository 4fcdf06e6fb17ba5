//! Reading ahead what is about to be looked up, for many transactions together.
//!
//! Most of what a replica's loop takes is waiting for memory: a transaction and its keys lie in some thirty places that no cache has. One after
//! the other, each would be waited for. So they are read in steps, in each of which no read depends on another, and the CPU waits for many at a time.

use std::hint::black_box;

use smallvec::SmallVec;
use store::StorageBackend;
use types::{Key, TransactionId};

use super::TransactionTable;
use super::states::{StateNumber, TOGETHER, prefetched};
use crate::message::Message;
use crate::record::Record;
use crate::transaction::Transaction;
use crate::transaction_state::TransactionState;

/// So many keys are read ahead at most: they stay in the CPU's caches until their turn comes.
const KEYS_MAX: usize = 256;

impl<M: StorageBackend> TransactionTable<M> {
    /// What these messages will need, if they are reads, new transactions, or how transactions ended: also from the disk, of keys that `from_disk` holds of.
    pub fn prefetch<'a>(&self, next: impl Iterator<Item = &'a Message>, from_disk: impl Fn(&Key) -> bool) {
        let (mut entered, mut ended) = (SmallVec::<[&Transaction; TOGETHER]>::new(), SmallVec::<[TransactionId; TOGETHER]>::new());
        let mut read: SmallVec<[&Key; TOGETHER]> = SmallVec::new();
        for message in next {
            match message {
                Message::Read { keys, .. } => read.extend(keys.iter().take(KEYS_MAX - read.len())),
                Message::Prepare { transaction } => entered.push(transaction),
                Message::Writeback { certificate, .. } => ended.push(certificate.id),
                Message::CommitNotice { id } => ended.push(*id),
                _ => {}
            }
        }
        self.states.prefetch_places(entered.iter().map(|transaction| transaction.id()));
        let ended = self.states.prefetch(&ended);
        let written = || entered.iter().flat_map(|transaction| transaction.writes()).map(|write| &write.key);
        self.store.prefetch(written().chain(written_by(&ended)).take(KEYS_MAX));
        let read_by = entered.iter().flat_map(|transaction| transaction.reads()).map(|read| &read.key);
        self.store.prefetch_to_read(read_by.take(KEYS_MAX), &from_disk);
        self.read_timestamps.prefetch(read.iter().copied().chain(written()).take(KEYS_MAX));
        self.store.prefetch_values(read.into_iter(), from_disk);
    }

    /// What taking these records back will need.
    pub fn prefetch_records(&self, next: &[Record]) {
        let (mut entered, mut ended) = (SmallVec::<[TransactionId; TOGETHER]>::new(), SmallVec::<[TransactionId; TOGETHER]>::new());
        for record in next {
            match record {
                Record::Voted { transaction, .. } => entered.push(transaction.id()),
                Record::Decided { id, .. } => ended.push(*id),
                _ => {}
            }
        }
        self.states.prefetch_places(entered.into_iter());
        let ended = self.states.prefetch(&ended);
        self.store.prefetch(written_by(&ended).take(KEYS_MAX));
    }

    /// The states of these.
    pub fn prefetch_states(&self, ids: impl Iterator<Item = TransactionId>) {
        self.states.prefetch(&ids.collect::<SmallVec<[TransactionId; TOGETHER]>>());
    }

    /// What forgetting these transactions will need.
    pub(super) fn prefetch_forgotten(&self, numbers: impl Iterator<Item = StateNumber>) {
        let states = prefetched(numbers.map(|number| self.states.at(number)));
        self.states.prefetch_places(states.iter().map(|state| state.transaction.id()));
        black_box(states.iter().fold(0, |sum, state| sum ^ state.transaction.touch()));
    }
}

/// The keys that these write, as far as those are at hand.
fn written_by<'a>(states: &'a [&TransactionState]) -> impl Iterator<Item = &'a Key> {
    states.iter().filter_map(|state| state.transaction.kept_writes()).flatten().map(|write| &write.key)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine::Time;
    use store::Memory;
    use types::{ClientId, Timestamp, Value};

    use super::super::tests::empty_table;
    use super::*;
    use crate::certificate::{Certificate, Decision, Proof, Vote};
    use crate::testing::one_shard;
    use crate::transaction::{Read, Write};
    use crate::transaction_state::{Quota, QuotaOwner};

    #[test]
    fn reading_ahead_takes_anything_that_may_come_and_changes_nothing() {
        let mut table = empty_table();
        let at = |time| Timestamp::new(time, ClientId(1));
        let key = |number: usize| Key::from(format!("{number:05}").as_str());
        let transaction = |time, keys: std::ops::Range<usize>| {
            let reads = keys.clone().map(|number| Read { key: key(number), version: at(0), dependency: None });
            let writes = keys.clone().map(|number| Write { key: key(number + 1), value: Some(Value::from("v")) });
            Transaction::new(one_shard().id(), at(time), reads.collect(), writes.collect()).expect("it is small")
        };
        // One has ended, one is prepared, one is not known, and each has more keys than are read ahead.
        let known = [transaction(5, 0..300), transaction(6, 200..500)];
        for transaction in &known {
            table.enter(transaction, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))));
            table.restore_vote(transaction.id(), Vote::Commit);
        }
        table.conclude(known[0].id(), Decision::Commit, None);
        let new = transaction(7, 0..400);
        let ends = |id| Arc::new(Certificate { id, decision: Decision::Commit, proof: Proof::Fast(Vec::new()) });
        let mut messages = vec![
            Message::Read { request: 1, timestamp: at(9), keys: (0..500).map(key).collect() },
            Message::Read { request: 2, timestamp: at(9), keys: (0..500).map(key).collect() },
            Message::Prepare { transaction: known[1].clone() },
            Message::Prepare { transaction: new.clone() },
        ];
        let ended = known.iter().chain([&new]).map(Transaction::id);
        messages.extend(ended.map(|id| Message::Writeback { transaction: None, certificate: ends(id), relay: false }));
        let shown = |table: &TransactionTable<Memory>| {
            let states = known.iter().map(|known| format!("{:?}", table.get(known.id()))).collect::<Vec<_>>();
            (states, table.tracked(), table.store.statistics().cache_bytes, table.readers_of(&key(3)))
        };
        let before = shown(&table);
        table.prefetch(messages.iter(), |_| true);
        let mut records: Vec<Record> = known.iter().map(|known| Record::Voted { transaction: known.clone(), vote: Vote::Commit }).collect();
        records.extend(known.iter().chain([&new]).map(|known| Record::Decided {
            transaction: None,
            id: known.id(),
            decision: Decision::Commit,
        }));
        records.push(Record::LowWatermark { below: 5 });
        table.prefetch_records(&records);
        table.prefetch_states(known.iter().chain([&new]).map(Transaction::id));
        table.prefetch_forgotten(known.iter().filter_map(|known| table.states.number_of(known.id())));
        assert_eq!(shown(&table), before);
    }
}
