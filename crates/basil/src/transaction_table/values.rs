//! What decided transactions take of the memory, and whose values are let go where that is much.

use mutants::{Mutant, broken};
use store::StorageBackend;
use types::TransactionId;

use super::TransactionTable;
use crate::certificate::{Decision, Vote};
use crate::transaction_state::Phase;

/// Shorter values of a decided transaction are not worth being let go.
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
