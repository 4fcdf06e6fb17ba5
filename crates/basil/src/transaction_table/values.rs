//! What decided transactions take of the memory.
//!
//! What a committed one wrote has become versions. Where this replica has all of these, they are not kept with the transaction, too: it is made whole from
//! them when somebody asks for it, for as long as the versions are there. Of others, values are let go where they are much.

use mutants::{Mutant, broken};
use store::{StorageBackend, VersionRef};
use types::{TransactionId, Value};

use super::TransactionTable;
use crate::certificate::{Decision, Vote};
use crate::transaction::Transaction;
use crate::transaction_state::{Phase, TransactionState};

/// Shorter values of a decided transaction are not worth being let go where they cannot be had again.
const VALUES_BYTES_MIN: usize = 512;
/// The same where they can.
const COPIES_BYTES_MIN: usize = 32;

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

    /// Keeps nothing of a transaction that has ended but its bytes, once nobody else has it, and of these no values that its versions have.
    pub fn pack(&mut self, id: TransactionId) {
        let Some(state) = self.states.get_mut(id) else { return };
        let (Some(decision), Some(writes)) = (state.decision(), state.transaction.kept_writes()) else { return };
        let are_here = writes.iter().all(|write| self.cluster.shard_of(&write.key) == self.shard);
        let has_copies = decision == Decision::Commit && are_here && state.transaction.value_bytes() >= COPIES_BYTES_MIN;
        if !has_copies || broken(Mutant::ValuesKept) {
            state.transaction.pack();
            return;
        }
        let before = state.transaction.memory_bytes();
        state.transaction.pack_without_values();
        self.decided_bytes = self.decided_bytes + state.transaction.memory_bytes() - before;
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

    /// `id` has ended. What a committed one wrote has become versions, so its values are let go when there is not room for all, the
    /// oldest first. Those of an aborted one are let go at once, unless this replica may yet have to write it down with its vote.
    pub(super) fn note_values(&mut self, id: TransactionId, decision: Decision, vote: Option<Vote>) {
        while self.valued.front().is_some_and(|oldest| !self.states.contains(*oldest)) {
            self.valued.pop_front();
        }
        if self.get(id).is_none_or(|state| state.transaction.value_bytes() < VALUES_BYTES_MIN) || broken(Mutant::ValuesKept) {
            return;
        }
        if decision == Decision::Abort && vote.is_some() {
            self.drop_values_of(id);
        } else {
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

    /// With the values goes the number of the proof, since whoever is shown that as a conflict is shown the transaction, too.
    fn drop_values_of(&mut self, id: TransactionId) {
        let Some(state) = self.states.get_mut(id).filter(|state| state.transaction.is_whole()) else { return };
        let Phase::Concluded(conclusion) = &mut state.phase else { return };
        conclusion.proof = conclusion.proof.take().filter(|_| conclusion.decision == Decision::Abort);
        let before = state.transaction.memory_bytes();
        state.transaction = state.transaction.without_values();
        self.decided_bytes = self.decided_bytes + state.transaction.memory_bytes() - before;
    }
}
