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
use super::past_readers::PastReaders;
use super::rebuild::{self, Rebuild};
use super::stall_detector::StallTimers;
use super::{Replica, ReplicaCounts, ReplicaOptions};
use crate::quorum::Quorums;
use crate::record::{PeerJournal, Record};
use crate::recovery::Ballots;
use crate::transaction_state::{Quota, QuotaOwner, TransactionState};
use crate::transaction_table::{TOGETHER, TransactionTable};

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
            for together in batch.records.chunks(TOGETHER).filter(|_| !broken(Mutant::ReplaySkipped)) {
                // In memory of its own, so that what is kept of it does not keep the whole segment.
                let read = |record: &Bytes| Record::from_bytes(Bytes::copy_from_slice(record), cluster.id());
                let records: Vec<Record> = together.iter().map(read).collect::<Result<_, _>>()?;
                table.prefetch_records(&records);
                records.into_iter().try_for_each(|record| restore(&mut table, record, quota, now))?;
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
            has_time: false,
            judges_from: 0,
            table,
            counts: ReplicaCounts::default(),
            ballots: Ballots::default(),
            early: EarlyRequests::default(),
            past_readers: PastReaders::default(),
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
            checkpoint_at,
            sweep: None,
            expired_at: now,
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
        let serves_from = Time(now.0.saturating_add(relied_on_ns));
        self.early.keep_all_until(serves_from);
        if !std::mem::replace(&mut self.has_time, true) {
            self.begin_anew(serves_from);
        }
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

/// What was promised in this replica's place before this process began.
impl<M: StorageBackend> Replica<M> {
    /// This process knows the time, and reads and votes from `serves_from` on. Others may have been promised, in this replica's place, what its
    /// journal does not say: by whoever had stolen its earlier key, before the operators changed it. Who believed that went by the earlier
    /// key, so its timestamp lies below `serves_from` and the time bound ([`crate::replica_clocks`] has the same argument). So this replica
    /// votes down whatever lies there, unless it had voted on it before: whatever was read there stays as it was read. It serves when its clock
    /// has come so far. A later process keeps to that for writes, whatever its clock shows: it is in the journal as a read ceiling.
    fn begin_anew(&mut self, serves_from: Time) {
        // One that starts for the first time is not held to anything.
        if self.is_new || broken(Mutant::EarlierKeysPromiseBroken) || broken(Mutant::ServesAtOnce) {
            return;
        }
        let judges_from = serves_from.after_ms(self.options.time_bound_ms);
        self.judges_from = judges_from.0;
        self.table.raise_read_ceiling(judges_from.0);
        self.early.keep_all_until(judges_from);
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
    use machine::{Machine as _, Outbox};
    use store::{Memory, Options, Store};
    use types::{ClientId, ClientLimits, Key, Party, Permission, Placement, Session, ShardId, Timestamp, Value};

    use super::*;
    use crate::certificate::{Decision, Vote};
    use crate::check::AbortReason;
    use crate::message::{Message, Unsigned};
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

    const BEGUN: Time = Time(1_000_000_000_000);
    /// When the next process knows the time, and for how long clients rely on what its clock showed before.
    const STARTED: Time = Time(BEGUN.0 + 3_000_000_000);
    const RELIED_ON_NS: u64 = 2_000_000_000;
    const AUTHOR: Party = Party::Client(ClientId(1), Session(1));

    /// One shard of six replicas, and a client with all rights. Replica 0 has this key.
    fn with_key(key: u8) -> Arc<Cluster> {
        let keys = (0..6).map(|index| [if index == 0 { key } else { index }; 32]).collect();
        let all = vec![Key::from("")];
        let client = Permission { public_key: [9; 32], read_prefixes: all.clone(), write_prefixes: all, limits: ClientLimits::default() };
        let (id, permissions) = (one_shard().id(), vec![(ClientId(1), client)]);
        Arc::new(Cluster::new(id, 1, Placement::Hash, vec![keys], permissions).expect("the parts fit"))
    }

    /// Replica 0 on `disk`, whose clock is set at `now`.
    fn start(disk: &Memory, key: u8, now: Time, relied_on_ns: u64) -> Replica<Memory> {
        let store = Store::open(disk.clone(), Options::default()).expect("it opens");
        let me = ReplicaId { shard: ShardId(0), index: 0 };
        let mut replica = Replica::open(with_key(key), me, ReplicaOptions::default(), store, now).expect("it comes back");
        replica.set_clock(now, relied_on_ns);
        replica.table.store.sync().expect("memory does not fail");
        replica
    }

    fn write(key: &str, time: u64) -> Transaction {
        let write = Write { key: Key::from(key), value: Some(Value::from("1")) };
        Transaction::new(with_key(0).id(), Timestamp::new(time, ClientId(1)), vec![], vec![write]).expect("it is small")
    }

    /// What `replica` votes on `transaction` when its author brings it at `now`; nothing while it waits.
    fn vote(replica: &mut Replica<Memory>, now: u64, transaction: &Transaction) -> Option<Vote> {
        let mut out = Outbox::default();
        replica.receive(Time(now), AUTHOR, Message::Prepare { transaction: transaction.clone() }, &mut out).expect("memory does not fail");
        while let Some(from) = replica.take_due(Time(now)) {
            replica.serve_kept(Time(now), from, &mut out);
        }
        replica.table.store.sync().expect("memory does not fail");
        let vote = |(_, unsigned): &(Party, Unsigned)| match unsigned {
            Unsigned::Vote { statement, .. } if statement.id == transaction.id() => Some(statement.vote),
            _ => None,
        };
        out.unsigned.iter().find_map(vote)
    }

    /// Whoever had stolen the earlier key of replica 0 let a client read, at a time of which the journal of replica 0 says nothing. Were it to
    /// vote for a write below, one more liar could have that committed, and what was read would not have been the newest.
    #[test]
    fn what_was_there_before_a_replica_started_is_voted_down() {
        let disk = Memory::new("promises");
        let voted = write("voted", BEGUN.0);
        assert_eq!(vote(&mut start(&disk, 0, BEGUN, 0), BEGUN.0, &voted), Some(Vote::Commit), "who never was there waits for nothing");
        // Its operators give it another key. Clients may have been told so when nobody relies any more on what its clock showed.
        let mut replica = start(&disk, 10, STARTED, RELIED_ON_NS);
        let judges_from = STARTED.0 + RELIED_ON_NS + ReplicaOptions::default().time_bound_ms * 1_000_000;
        let (before, after) = (write("before", BEGUN.0 + 1_000_000), write("just before", judges_from - 1));
        assert_eq!(vote(&mut replica, judges_from - 1, &before), None, "EarlierKeysPromiseBroken: it serves too early");
        for transaction in [&before, &after] {
            let cast = vote(&mut replica, judges_from, transaction);
            assert_eq!(cast, Some(Vote::Abort), "EarlierKeysPromiseBroken: it may lie below what was promised to a reader");
            assert_eq!(replica.abort_reason_of(transaction.id()), Some(AbortReason::TooOld));
        }
        assert_eq!(vote(&mut replica, judges_from, &voted), Some(Vote::Commit), "what it voted on before keeps its vote");
        assert_eq!(vote(&mut replica, judges_from, &write("now", judges_from)), Some(Vote::Commit));
        // Whoever finishes what another began is told the same.
        let (recovered, mut out) = (write("recovered", judges_from - 2), Outbox::default());
        replica.enter(Time(judges_from), AUTHOR, crate::transaction_state::Purpose::Finish, recovered.clone());
        replica.note_authored(recovered.id(), true);
        replica.vote(Time(judges_from), &recovered, &mut out).expect("memory does not fail");
        assert_eq!(replica.abort_reason_of(recovered.id()), Some(AbortReason::TooOld));
    }

    #[test]
    fn a_later_process_keeps_to_what_an_earlier_one_took_for_promised() {
        let disk = Memory::new("promises");
        drop(start(&disk, 0, BEGUN, 0));
        assert_eq!(vote(&mut start(&disk, 0, BEGUN, 0), BEGUN.0 + 1, &write("a", BEGUN.0)), None, "something is in the journal");
        drop(start(&disk, 10, STARTED, RELIED_ON_NS));
        // Its clock shows less than it would have by then: so would those of all, if all were set back and started together.
        let mut replica = start(&disk, 10, STARTED, 0);
        let judges_from = STARTED.0 + ReplicaOptions::default().time_bound_ms * 1_000_000;
        let below = write("below", judges_from);
        assert_eq!(vote(&mut replica, judges_from, &below), Some(Vote::Abort));
        assert_eq!(replica.abort_reason_of(below.id()), Some(AbortReason::ReadTimestamp));
    }

    #[test]
    fn a_clock_that_is_set_forward_leaves_what_this_process_remembers() {
        let disk = Memory::new("forward");
        drop(start(&disk, 0, BEGUN, 0));
        let mut replica = start(&disk, 0, STARTED, 0);
        let later = STARTED.after_ms(10_000);
        replica.set_clock(later, RELIED_ON_NS);
        let serves_from = later.0 + RELIED_ON_NS;
        assert_eq!(vote(&mut replica, serves_from - 1, &write("a", later.0)), None);
        assert_eq!(vote(&mut replica, serves_from, &write("b", later.0)), Some(Vote::Commit));
    }
}
