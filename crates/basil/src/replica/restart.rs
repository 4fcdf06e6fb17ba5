//! How a replica comes back from its journal (beyond the paper).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use engine::Divergences;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, Store, StoreError};
use types::codec::{Decode as _, DecodeError};
use types::{Cluster, ReplicaId, Timestamp};

use super::abandonment_limiter::AbandonmentLimiter;
use super::catch_up::CatchUp;
use super::client_limits::ReadLimiter;
use super::early_requests::EarlyRequests;
use super::held_off::HeldOff;
use super::housekeeping::next_checkpoint;
use super::older_copy::OlderCopy;
use super::orphan_resolution::StatusQueries;
use super::rebuild::{self, Rebuild};
use super::stall_detector::StallTimers;
use super::{Replica, ReplicaCounts, ReplicaOptions};
use crate::quorum::Quorums;
use crate::record::{PeerJournal, Record};
use crate::recovery::Ballots;
use crate::transaction_state::{Quota, QuotaOwner, TransactionState};
use crate::transaction_table::TransactionTable;

/// Why a replica cannot come back from its journal.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record cannot be read: written by a newer version, or damaged in a way checksums do not show.
    #[error("the journal holds a record that this version cannot read: {0}")]
    Record(#[from] DecodeError),
}

impl<M: StorageBackend> Replica<M> {
    /// Brings replica `me` back from its store: votes, decisions and versions are as they were when it last
    /// synced; read timestamps are gone, so it votes against all writes that someone may have read past.
    ///
    /// # Errors
    /// [`RecoverError`] when the store cannot be read; the message says where.
    pub fn open(cluster: Arc<Cluster>, me: ReplicaId, options: ReplicaOptions, store: Store<M>, now: Time) -> Result<Self, RecoverError> {
        let mut table = TransactionTable::new(cluster.clone(), me.shard, store, options.seed, options.read_timestamps);
        table.limit_decided_bytes(options.decided_bytes_max);
        // Who brought what is in the journal is not known any more. It may have been others than the authors, so it is not their quota's.
        let quota = Quota::prepare(QuotaOwner::Replica(me));
        table.begin_restoring();
        // Nothing is said before something is durable.
        let mut is_new = table.store.watermark().time == 0;
        while let Some(batch) = table.store.replay()? {
            is_new = false;
            for record in batch.records.into_iter().filter(|_| !broken(Mutant::ReplaySkipped)) {
                // In memory of its own, so that what is kept of it does not keep the whole segment.
                let record = Record::from_bytes(Bytes::copy_from_slice(&record), cluster.id())?;
                restore(&mut table, record, quota, now)?;
            }
        }
        // A place may have another key by now. Whoever holds it is not held to what was told under the earlier one.
        let has_key = |known: &PeerJournal| cluster.replica_key(ReplicaId { index: known.index, ..me }) == Some(&known.public_key);
        table.peer_journals.retain(|_, known| has_key(known) || broken(Mutant::JournalOfOldKeyRestored));
        // What ended below the watermark was to be forgotten; of its records some are gone with their segments already.
        // The clock may not be right yet: what is old by it alone is forgotten later.
        let checkpointed = table.store.watermark().time;
        table.may_have_forgotten_up_to(checkpointed);
        if !table.has_logged_tombstones() {
            table.log_bounds();
        }
        rebuild::note_lost_rows(&mut table);
        table.forget_below(Timestamp::above_all_before(checkpointed.saturating_add(1)));
        let undecided = table.undecided_ids();
        table.end_restoring(&undecided);
        undecided.iter().for_each(|id| table.set_aside(*id));
        let stall_timers = StallTimers::new(undecided, now);
        let quorums = Quorums::new(cluster.faults());
        let checkpoint_at = next_checkpoint(now, options.checkpoint_ms, me, &cluster);
        Ok(Self {
            me,
            cluster,
            quorums,
            options,
            is_new,
            table,
            counts: ReplicaCounts::default(),
            ballots: Ballots::default(),
            early: EarlyRequests::default(),
            held_off: HeldOff::default(),
            status_queries: StatusQueries::default(),
            catch_up: CatchUp::new(me, &options, now),
            divergences: Divergences::default(),
            rebuild: Rebuild::default(),
            older_copy: OlderCopy::new(now),
            abandonment_limiter: AbandonmentLimiter::new(options.abandoned_per_second, options.abandoned_burst_seconds),
            read_limiter: ReadLimiter::default(),
            liars: BTreeMap::new(),
            failure: None,
            failed: false,
            stall_timers,
            unauthored: VecDeque::new(),
            proven: VecDeque::new(),
            checkpoint_at,
            sweep: None,
            checkpoint_poll_at: None,
            checkpoint_wanted: 0,
            checkpoint_all: false,
            segments: VecDeque::new(),
            journal_bytes_closed: 0,
            checkpointed: 0,
        })
    }
}

impl<M: StorageBackend> Replica<M> {
    /// What this replica has voted for lies below; its clock never shows less.
    pub(crate) fn clock_floor(&self) -> u64 {
        self.table.clock(Time(0))
    }

    /// The same, if an earlier process of this replica may have said anything.
    pub(crate) fn earlier_process(&self) -> Option<u64> {
        (!self.is_new).then(|| self.clock_floor())
    }

    /// Its clock was set and shows `now`. For so many nanoseconds clients may rely on what it showed before.
    pub(crate) fn set_clock(&mut self, now: Time, relied_on_ns: u64) {
        self.early.keep_all_until(Time(now.0.saturating_add(relied_on_ns)));
        let undecided = self.table.undecided_ids();
        for id in &undecided {
            if let Some(state) = self.table.get_mut(*id) {
                state.since = now;
            }
        }
        self.stall_timers = StallTimers::new(undecided, now);
        self.catch_up = CatchUp::new(self.me, &self.options, now).after_page(self.catch_up.last_page());
        self.rebuild = Rebuild::default();
        self.checkpoint_at = next_checkpoint(now, self.options.checkpoint_ms, self.me, &self.cluster);
    }
}

/// Takes one journal record back in.
fn restore<M: StorageBackend>(table: &mut TransactionTable<M>, record: Record, quota: Quota, now: Time) -> Result<(), StoreError> {
    match record {
        Record::Voted { transaction, vote } => {
            let id = transaction.id();
            // Held anew since the row by which it was released was given up: nothing is said of it any more.
            if table.get(id).is_some_and(TransactionState::is_released) && table.lost_what_was_said_at(transaction.timestamp().time) {
                table.forget(id);
            }
            table.enter_detached(&transaction, now, quota);
            table.restore_vote(id, vote);
        }
        Record::Logged { transaction, id, decision, view } => {
            if let Some(transaction) = &transaction {
                table.enter_detached(transaction, now, quota);
            }
            if let Some(state) = table.get_mut(id) {
                state.set_logged(decision, view);
                state.enter_view(view, now);
            }
        }
        Record::ViewEntered { id, view } => {
            // A replica in a higher view has logged a decision. Where there is none, its segment was released after the transaction ended.
            if let Some(state) = table.get_mut(id) {
                state.enter_view(view, now);
            }
        }
        Record::ReadCeiling { up_to } => table.restore_read_ceiling(up_to),
        Record::LowWatermark { below } => table.restore_low_watermark(below),
        Record::DiskLost { up_to, is_rebuilding } => table.restore_disk_lost(up_to, is_rebuilding),
        Record::PeerJournals { journals } => {
            table.peer_journals = journals.into_iter().map(|journal| (journal.index, journal)).collect();
        }
        Record::OrphanReleased { id, end, versions } => {
            table.release_orphan(id, end, versions);
            if let Some(decision) = end.filter(|_| table.get(id).is_some_and(TransactionState::is_open)) {
                table.conclude(id, decision, None);
            }
        }
        Record::VersionTakenOver { key, version } => table.take_over(&key, version),
        Record::VersionMended { key, version } => _ = table.mend(&key, &version)?,
        Record::Tombstones { salt, complete_from, tombstones } => table.restore_tombstones(salt, complete_from, tombstones),
        Record::Decided { transaction, id, decision } => {
            if let Some(transaction) = &transaction {
                table.enter_detached(transaction, now, quota);
            }
            drop(transaction); // The table alone has it, and packs it.
            // Where the transaction is not known, its segment was released after its writes were checkpointed.
            if table.get(id).is_some_and(|state| state.decision().is_none()) {
                table.conclude(id, decision, None);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use store::{Memory, Options, Store};
    use types::{ClientId, Key, ShardId, Timestamp, Value};

    use super::*;
    use crate::certificate::Decision;
    use crate::testing::one_shard;
    use crate::transaction::{Transaction, Write};

    #[test]
    fn of_a_decision_that_stands_alone_only_the_bytes_are_kept() {
        let cluster = one_shard();
        let store = Store::open(Memory::new("restart"), Options::default()).expect("a new store opens");
        let mut table = TransactionTable::new(cluster.clone(), ShardId(0), store, 7, 16);
        assert!(table.store.replay().expect("it is new").is_none());
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(cluster.id(), Timestamp::new(5, ClientId(1)), vec![], vec![write]).expect("it is small");
        let id = transaction.id();
        let record = Record::Decided { transaction: Some(transaction), id, decision: Decision::Commit };
        restore(&mut table, record, Quota::prepare(QuotaOwner::Client(ClientId(1))), Time(0)).expect("memory does not fail");
        assert!(table.get(id).expect("it is there").transaction.is_packed());
    }
}
