//! What a replica still knows of transactions that it has forgotten otherwise: their tombstones. And what it has to forget of those that it knows.

use mutants::{Mutant, broken};
use store::StorageBackend;
use types::codec::Encode as _;
use types::{Cluster, ReplicaId, TransactionId};

use super::TransactionTable;
use crate::commit_relay::Relays;
use crate::record::{Record, TOMBSTONES_MAX};
use crate::tombstones::{RememberedOutcome, Tombstone};
use crate::transaction::Transaction;

impl<M: StorageBackend> TransactionTable<M> {
    /// Logs the tombstones again: a segment of the journal that held some of them is about to be released.
    pub fn log_tombstones(&mut self) {
        let (salt, complete_from) = (self.tombstones.salt(), self.tombstones.logged_from());
        let mut logged = self.tombstones.logged();
        while logged.len() > 0 {
            let record = Record::Tombstones { salt, complete_from, tombstones: logged.by_ref().take(TOMBSTONES_MAX).collect() };
            self.store.append_with(|bytes| record.encode(bytes));
        }
    }

    /// An earlier incarnation kept these tombstones. What else it forgot is older than `complete_from`, or in the journal.
    pub fn restore_tombstones(&mut self, salt: u64, complete_from: u64, tombstones: Vec<Tombstone>) {
        self.tombstones.restore(salt, complete_from, tombstones);
        self.has_logged_tombstones = true;
    }

    /// Earlier incarnations may have forgotten anything up to `time`, unless they logged their tombstones.
    pub fn may_have_forgotten_up_to(&mut self, time: u64) {
        if !self.has_logged_tombstones {
            self.tombstones.anything_up_to(time);
        }
    }

    /// True if this replica retains every statement it made about `transaction`, except possibly a vote to abort.
    pub fn remembers(&self, transaction: &Transaction) -> bool {
        !self.tombstones.may_have(transaction) && !self.lost_what_was_said_at(transaction.timestamp().time)
    }

    /// How `id` ended, as far as this replica remembers.
    pub fn remembered_outcome(&self, id: TransactionId) -> Option<RememberedOutcome> {
        self.tombstones.remembered_outcome(id).or_else(|| {
            let state = self.states.get(id)?;
            let RememberedOutcome { decision, view } = state.outcome()?;
            // Where it may have been forgotten before, and has come back, what it once logged is not known.
            Some(RememberedOutcome { decision, view: view.filter(|_| self.remembers(&state.transaction)) })
        })
    }

    /// What is forgotten but for its outcome comes to `view`, or what is about to be: it lies below the watermark, and has its tombstone from now on.
    pub fn raise_tombstone(&mut self, id: TransactionId, view: u32) {
        if let Some(state) = self.states.get(id)
            && self.remembers(&state.transaction)
            && !broken(Mutant::ViewUnremembered)
        {
            self.tombstones.note(&state.transaction, |_| state.outcome());
        }
        let Some(tombstone) = self.tombstones.raise(id, view).filter(|_| !broken(Mutant::TombstoneViewUnlogged)) else { return };
        let (salt, complete_from) = (self.tombstones.salt(), self.tombstones.logged_from());
        let record = Record::Tombstones { salt, complete_from, tombstones: vec![tombstone] };
        self.store.append_with(|bytes| record.encode(bytes));
    }

    /// An earlier incarnation has logged its tombstones.
    pub fn has_logged_tombstones(&self) -> bool {
        self.has_logged_tombstones
    }

    /// What these replicas said of commits counts no more.
    pub fn forget_commit_notices_of(&mut self, cluster: &Cluster, replicas: &[ReplicaId]) {
        // In no order, since what is done to one is nothing to another.
        for state in self.states.iter_mut().filter(|state| state.commit_notices.count() > 0 && state.heeds_notices()) {
            let relays = Relays::of(cluster, &state.transaction);
            for replica in replicas.iter().filter(|replica| relays.is_some_and(|relays| relays.contains(**replica))) {
                state.commit_notices.remove(replica.index);
            }
        }
    }
}
