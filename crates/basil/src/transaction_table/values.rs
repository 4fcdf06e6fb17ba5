//! What decided transactions take of the memory.
//!
//! What a committed one wrote has become versions. Where this replica has all of them, the values are not kept a second time with the transaction: it is
//! made whole from its versions when somebody asks for it, for as long as they are there. Of others, values are let go where they are much.

use mutants::{Mutant, broken};
use store::{StorageBackend, VersionRef};
use types::{TransactionId, Value};

use super::TransactionTable;
use crate::certificate::{Decision, Vote};
use crate::transaction::{Transaction, Write};
use crate::transaction_state::TransactionState;

/// Shorter values are not worth being let go for room.
const VALUES_BYTES_MIN: usize = 512;

impl<M: StorageBackend> TransactionTable<M> {
    /// The most memory that decided transactions may take before values are let go.
    pub fn limit_decided_bytes(&mut self, max: usize) {
        self.decided_bytes_max = max;
        self.drop_values();
    }

    /// The memory that decided transactions take.
    pub fn decided_bytes(&self) -> usize {
        self.decided_bytes
    }

    /// Keeps nothing but the bytes of a transaction that has ended, if nobody else has it.
    pub(super) fn pack(&mut self, id: TransactionId) {
        if let Some(state) = self.states.get_mut(id).filter(|state| state.conclusion().is_some()) {
            state.transaction.pack();
        }
    }

    /// A transaction as it was prepared, while its values are kept with it or at its keys.
    pub fn whole(&self, state: &TransactionState) -> Option<Transaction> {
        let transaction = &state.transaction;
        if transaction.is_whole() {
            return Some(transaction.clone());
        }
        if broken(Mutant::ValuesNotFound) {
            return None;
        }
        let version = |key: &_| self.store.version_at(key, transaction.timestamp());
        transaction.with_values(self.cluster.id(), |key| version(key).map(|VersionRef { value, .. }| value.and_then(Value::copied)))
    }

    /// `id` has ended. Values that its versions have go at once. Where this replica has not all of them, values are let go when there is not room for all, the
    /// oldest first. Those of an aborted one are let go at once, unless this replica may yet have to write it down with its vote.
    pub(super) fn note_values(&mut self, id: TransactionId, decision: Decision, vote: Option<Vote>) {
        while self.valued.front().is_some_and(|oldest| !self.states.contains(*oldest)) {
            self.valued.pop_front();
        }
        let Some(transaction) = self.get(id).map(|state| &state.transaction) else { return };
        if transaction.value_bytes() == 0 || broken(Mutant::ValuesKept) {
            return;
        }
        let is_here = |write: &Write| self.holds(&write.key);
        let are_versions = decision == Decision::Commit && transaction.writes().iter().all(is_here);
        if are_versions || (decision == Decision::Abort && vote.is_some()) {
            self.drop_values_of(id);
        } else if transaction.value_bytes() >= VALUES_BYTES_MIN {
            self.valued.push_back(id);
        }
        self.drop_values();
    }

    fn drop_values(&mut self) {
        while self.decided_bytes > self.decided_bytes_max {
            let Some(oldest) = self.valued.pop_front() else { return };
            self.drop_values_of(oldest);
        }
    }

    fn drop_values_of(&mut self, id: TransactionId) {
        // It may have been forgotten, and have come back undecided, while it waited for its turn here.
        let has_ended = |state: &&mut TransactionState| state.decision().is_some() && state.transaction.is_whole();
        let Some(state) = self.states.get_mut(id).filter(has_ended) else { return };
        let before = state.transaction.memory_bytes();
        state.transaction.drop_values();
        self.decided_bytes = self.decided_bytes + state.transaction.memory_bytes() - before;
    }
}

#[cfg(test)]
mod tests {
    use machine::Time;
    use types::{ClientId, Key, Timestamp};

    use super::super::tests::empty_table;
    use super::*;
    use crate::testing::one_shard;
    use crate::transaction_state::{Quota, QuotaOwner};

    #[test]
    fn what_has_come_back_undecided_keeps_its_values() {
        let mut table = empty_table();
        let quota = Quota::prepare(QuotaOwner::Client(ClientId(1)));
        let written = |time: u64| {
            let write = Write { key: Key::from("a"), value: Some(Value::from(&*"v".repeat(VALUES_BYTES_MIN))) };
            Transaction::new(one_shard().id(), Timestamp::new(time, ClientId(1)), vec![], vec![write]).expect("it is small")
        };
        let (first, other) = (written(1), written(2));
        for transaction in [&first, &other] {
            table.enter(transaction, Time(0), quota);
            table.conclude(transaction.id(), Decision::Abort, None);
        }
        table.forget(other.id());
        table.enter(&other, Time(0), quota);
        table.limit_decided_bytes(0);
        let is_whole = |transaction: &Transaction| table.get(transaction.id()).map(|state| state.transaction.is_whole());
        assert_eq!([&first, &other].map(is_whole), [Some(false), Some(true)]);
    }
}
