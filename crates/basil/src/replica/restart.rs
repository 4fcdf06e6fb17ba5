//! How a replica comes back from its journal (beyond the paper).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, Store, StoreError};
use types::codec::{Decode, DecodeError};
use types::{ClientId, Cluster, ReplicaId, Timestamp};

use super::admission::author;
use super::housekeeping::next_checkpoint;
use super::leavers::Leavers;
use super::rest::Inquiries;
use super::stall::Watch;
use super::{Replica, ReplicaCounts, ReplicaOptions};
use crate::certificate::Vote;
use crate::ledger::Ledger;
use crate::quorum::Quorums;
use crate::record::Record;
use crate::recovery::Ballots;

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
        let mut ledger = Ledger::new(cluster.clone(), me.shard, store, options.seed, options.read_timestamps);
        while let Some(batch) = ledger.store.replay()? {
            for record in batch.records.into_iter().filter(|_| !broken(Mutant::ReplaySkipped)) {
                restore(&cluster, &mut ledger, record, now)?;
            }
        }
        // What ended below the watermark was to be forgotten; of its records some are gone with their segments already.
        let by_clock = now.0.saturating_sub(options.window_ms * 1_000_000);
        let checkpointed = ledger.store.watermark().time;
        let watermark = by_clock.max(checkpointed.saturating_add(1));
        ledger.may_have_forgotten_up_to(checkpointed);
        if !ledger.knows_forgotten() {
            ledger.write_bounds();
        }
        ledger.forget_below(Timestamp::new(watermark, ClientId(0)));
        let watch = Watch::new(ledger.undecided_ids(), now);
        let quorums = Quorums::new(cluster.faults());
        let checkpoint_at = next_checkpoint(now, options.checkpoint_ms, me, &cluster);
        Ok(Self {
            me,
            cluster,
            quorums,
            options,
            ledger,
            counts: ReplicaCounts::default(),
            ballots: Ballots::default(),
            inquiries: Inquiries::default(),
            leavers: Leavers::new(options.abandoned_per_second, options.abandoned_burst_seconds),
            failure: None,
            failed: false,
            watch,
            unauthored: VecDeque::new(),
            proven: VecDeque::new(),
            checkpoint_at,
            sweep: None,
            fold_poll_at: None,
            fold_wanted: 0,
            segments: VecDeque::new(),
            checkpointed: 0,
        })
    }
}

/// Takes one journal record back in.
fn restore<M: StorageBackend>(cluster: &Arc<Cluster>, ledger: &mut Ledger<M>, record: Bytes, now: Time) -> Result<(), DecodeError> {
    match Record::from_bytes(record, cluster.id())? {
        Record::Voted { transaction, vote } => {
            let id = transaction.id();
            let entry = ledger.enter(&transaction, now, author(&transaction));
            if entry.vote.is_none() {
                entry.vote = Some(vote);
                if vote == Vote::Commit && entry.decision.is_none() {
                    ledger.prepare(id);
                }
            }
        }
        Record::Logged { transaction, id, decision, view } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now, author(transaction));
            }
            if let Some(entry) = ledger.entry_mut(id) {
                entry.logged = Some((decision, view));
                entry.rise(view, now);
            }
        }
        Record::Risen { id, view } => {
            // Whoever rises has a decision. Where there is none, its segment was let go after the transaction had ended.
            if let Some(entry) = ledger.entry_mut(id).filter(|entry| entry.logged.is_some()) {
                entry.rise(view, now);
            }
        }
        Record::Readable { up_to } => ledger.was_readable(up_to),
        Record::Horizon { below } => ledger.had_horizon(below),
        Record::Rested { id, end, versions } => ledger.rest(id, end, versions),
        Record::Forgotten { salt, complete_from, traces } => ledger.had_forgotten(salt, complete_from, traces),
        Record::Decided { transaction, id, decision } => {
            if let Some(transaction) = &transaction {
                ledger.enter(transaction, now, author(transaction));
            }
            // Where the transaction is not known, its segment was let go after its writes were folded.
            if ledger.entry(id).is_some_and(|entry| entry.decision.is_none()) {
                ledger.conclude(id, decision, None);
            }
        }
    }
    Ok(())
}
