//! What a replica does by the clock: votes down what has waited too long for its author, forgets what is old, and releases old journal
//! segments (all beyond the paper).

use machine::Time;
use mutants::{Mutant, broken};
use store::{SegmentNumber, StorageBackend, StoreError};
use types::codec::Encode as _;
use types::{Cluster, ReplicaId, Timestamp, TransactionId};

use super::{Out, Replica};
use crate::certificate::Vote;
use crate::check::AbortReason;
use crate::record::Record;

/// How long the proof of a transaction's end is kept at hand, for those who come late, in milliseconds.
const PROOF_FRESH_MS: u64 = 3_000;
/// How often those are let go that are older.
const PROOF_STEP_MS: u64 = 250;
/// How often a checkpoint is looked after, in milliseconds.
const CHECKPOINT_POLL_MS: u64 = 3;
/// So many full checkpoints are waited for: what is released of the journal then is worth the tombstones that are logged again.
const FULL_CHECKPOINTS: usize = 1;
/// The journal's segment is closed when it has grown by so much since the last time, whether or not there is anything to checkpoint: a segment goes as a
/// whole, once the newest that it holds is checkpointed, so what lies in shorter ones goes sooner, and whoever starts again has less to read.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// With so many segments closed there is a checkpoint, of however little: some more than a window and the time between two clean-ups make.
const SEGMENTS_MAX: usize = 16;
/// How long others get between two steps of forgetting, in milliseconds.
const FORGET_PAUSE_MS: u64 = 2;
/// A step looks at this many transactions at least, which takes a tenth of a millisecond.
const FORGET_STEP_MIN: u64 = 32;
/// At so many keys in memory a step looks at most for readers that count no more.
const EXPIRE_STEP_MAX: u64 = 4_096;

/// Old transactions are being forgotten step by step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    began: Time,
    /// When the last step was.
    last: Time,
}

/// When replica `me` next cleans up. By the clock, the replicas of a shard begin that in turn, so that others are at hand while one is
/// busy with itself.
pub(super) fn next_checkpoint(now: Time, every_ms: u64, me: ReplicaId, cluster: &Cluster) -> Time {
    let every = every_ms.max(1).saturating_mul(1_000_000);
    let rank = every / cluster.replicas_per_shard() as u64 * u64::from(me.index);
    let since_turn = (now.0.saturating_add(every) - rank) % every;
    Time(now.0.saturating_add(every - since_turn))
}

impl<M: StorageBackend> Replica<M> {
    /// When to look next.
    pub(super) fn due(&self) -> Option<Time> {
        let stalled = self.stall_timers.deadline(self.options.janitor_timeout_ms);
        let unauthored = self.unauthored.front().map(|(since, _)| since.after_ms(self.options.authorship_wait_ms));
        let stale = self.table.proofs.oldest().map(|since| since.after_ms(PROOF_FRESH_MS + PROOF_STEP_MS));
        let catch_up = self.catch_up.deadline(&self.options);
        let rebuild = self.rebuild_deadline();
        [Some(self.checkpoint_at), self.checkpoint_poll_at, stalled, unauthored, stale, self.early.deadline(), catch_up, rebuild]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn on_tick(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        while self.unauthored.front().is_some_and(|(since, _)| since.after_ms(self.options.authorship_wait_ms) <= now) {
            let Some((_, id)) = self.unauthored.pop_front() else { break };
            if self.is_unauthored(id) && !broken(Mutant::UnauthoredKept) {
                self.cast(id, Vote::Abort, Some(AbortReason::NotAuthored), None, out);
            }
        }
        self.step_rebuild(now, out)?;
        self.step_catch_up(now, out)?;
        self.status_queries.prune(now, &self.table);
        self.finish_stalled(now, out);
        self.table.proofs.drop_until(Time(now.0.saturating_sub(PROOF_FRESH_MS * 1_000_000)));
        if self.checkpoint_poll_at.is_some_and(|at| at <= now) {
            self.look_after_checkpoint(now)?;
        }
        if self.checkpoint_at <= now {
            self.clean_up(now)?;
        }
        Ok(())
    }

    /// Forgets what is old step by step, then comes to the checkpoint. The longer ago the last step, the larger the next: all that is known
    /// would take as long as it is between two checkpoints, and what is old is a small part of it. What is left after that time, because
    /// more grows old than a step takes, the checkpoint forgets at once: it is never put off for longer.
    fn clean_up(&mut self, now: Time) -> Result<(), StoreError> {
        let every_ms = self.options.checkpoint_ms.max(1);
        let Sweep { began, last } = *self.sweep.get_or_insert(Sweep { began: now, last: now });
        let waited_ms = (now.0.saturating_sub(last.0) / 1_000_000).clamp(FORGET_PAUSE_MS, every_ms.max(FORGET_PAUSE_MS));
        let step = (self.table.tracked() as u64).saturating_mul(waited_ms) / every_ms;
        let step = usize::try_from(step.max(FORGET_STEP_MIN)).unwrap_or(usize::MAX);
        let watermark = Timestamp::above_all_before(self.watermark(now));
        let is_left = [self.expire_readers(now), self.table.forget_some(watermark, step)].contains(&true);
        if now < began.after_ms(every_ms) && is_left {
            self.sweep = Some(Sweep { began, last: now });
            self.checkpoint_at = now.after_ms(FORGET_PAUSE_MS);
            return Ok(());
        }
        self.sweep = None;
        self.checkpoint(now)
    }

    /// Takes a step around all keys in memory, once in a window, to let go of readers of transactions that are forgotten. Gives whether it has fallen
    /// behind.
    fn expire_readers(&mut self, now: Time) -> bool {
        let (all, window_ns) = (self.table.store.keys_in_memory_max() as u128, u128::from(self.options.window_ms.max(1)) * 1_000_000);
        let due = all * u128::from(now.0.saturating_sub(self.expired_at.0)) / window_ns;
        let step = due.min(EXPIRE_STEP_MAX.into());
        if due > all || now < self.expired_at {
            self.expired_at = now; // It has not looked for a window, or the clock was set back.
        } else if due > 0 {
            self.expired_at.0 += u64::try_from(window_ns * step / all).unwrap_or_default();
        }
        self.table.store.expire_some(usize::try_from(step).unwrap_or_default());
        due > step
    }

    /// Forgets what is still left of the decided transactions below the watermark, releases segments, first writing the undecided ones there
    /// down anew so that they outlive them, and checkpoints when what is old makes a full checkpoint, when memory, journal or its number of segments have grown over their
    /// bounds, or when nothing else is to be done: it costs nothing then. So whoever starts again has little more to replay than a window.
    fn checkpoint(&mut self, now: Time) -> Result<(), StoreError> {
        self.expect_checkpointed(now);
        self.keep_moments(now);
        self.checkpoint_at = next_checkpoint(now, self.options.checkpoint_ms, self.me, &self.cluster);
        let undecided = self.table.forget_below(Timestamp::above_all_before(self.watermark(now)));
        let checkpointed = if broken(Mutant::ReleasedUnflushed) { u64::MAX } else { self.checkpointed };
        if self.segments.front().is_some_and(|(_, highest)| *highest < checkpointed) {
            undecided.into_iter().filter(|_| !broken(Mutant::UndecidedNotRewritten)).for_each(|id| self.rewrite(id));
            self.table.log_tombstones();
        }
        while self.segments.front().is_some_and(|(_, highest)| *highest < checkpointed) {
            let Some((segment, _)) = self.segments.pop_front() else { break };
            self.table.store.sync()?; // What was written anew is durable before its first copy goes.
            let before = self.table.store.journal_bytes();
            self.table.store.release(segment)?;
            self.journal_bytes_closed = self.journal_bytes_closed.saturating_sub(before - self.table.store.journal_bytes());
        }
        let store = &self.table.store;
        let grown = store.memtable_bytes() > self.options.memtable_bytes_max || store.journal_bytes() > self.options.journal_bytes_max;
        let checkpointable = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        let is_all_old = self.table.tracked() == 0 && self.table.highest() < checkpointable;
        let idle = is_all_old && store.memtable_bytes() > 0 && store.watermark().time < checkpointable;
        let full = store.full_checkpoints(Timestamp::above_all_before(checkpointable)) >= FULL_CHECKPOINTS;
        let is_long = store.journal_bytes().saturating_sub(self.journal_bytes_closed) >= SEGMENT_BYTES_MIN;
        if (grown || idle || full || is_long) && self.checkpoint_poll_at.is_none() {
            // Every segment before the new one is closed. No record there has a timestamp above the highest so far; and
            // however old what it holds is, only a checkpoint that begins from now on has all of it.
            let current = self.table.store.rotate()?;
            if !broken(Mutant::BoundsReleased) {
                self.table.log_bounds();
            }
            let highest = self.table.highest().max(self.checkpointed);
            self.segments.push_back((SegmentNumber(current.0.saturating_sub(1)), highest));
            self.journal_bytes_closed = self.table.store.journal_bytes();
            // A segment takes more of the disk than what is in it.
            let many = self.segments.len() >= SEGMENTS_MAX && !broken(Mutant::SegmentsUnbounded);
            if grown || idle || full || many {
                (self.checkpoint_wanted, self.checkpoint_all) = (checkpointable, grown || idle);
                self.begin_checkpoint(now)?;
            }
        }
        Ok(())
    }

    /// What has left the window should be in the base table. Where the disk is too slow for that, this replica does less in a turn, and takes in less.
    fn expect_checkpointed(&mut self, now: Time) {
        let checkpointable = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        self.table.store.expect_checkpointed(Timestamp::above_all_before(checkpointable));
    }

    fn begin_checkpoint(&mut self, now: Time) -> Result<(), StoreError> {
        let end = self.checkpoint_end(now, Timestamp::above_all_before(self.checkpoint_wanted));
        if self.table.store.begin_checkpoint(end)? {
            self.checkpoint_poll_at = Some(now.after_ms(CHECKPOINT_POLL_MS));
        }
        Ok(())
    }

    /// A checkpoint ends in bounded steps, and takes a bounded number of versions: the next begins at once until all are checkpointed, or those that are left
    /// would not make a full one.
    fn look_after_checkpoint(&mut self, now: Time) -> Result<(), StoreError> {
        self.checkpoint_poll_at = Some(now.after_ms(CHECKPOINT_POLL_MS));
        self.expect_checkpointed(now);
        if let Some(watermark) = self.table.store.checkpoint_finished()? {
            self.checkpointed = watermark.time;
            self.checkpoint_poll_at = None;
            self.keep_moments(now);
            let wanted = Timestamp::above_all_before(self.checkpoint_wanted);
            if watermark < wanted && (self.checkpoint_all || self.table.store.full_checkpoints(wanted) > 0) {
                self.begin_checkpoint(now)?;
            }
        }
        Ok(())
    }

    fn rewrite(&mut self, id: TransactionId) {
        let Some(state) = self.table.get(id) else { return };
        let transaction = state.transaction.clone();
        let voted = state.vote().map(|vote| Record::Voted { transaction: transaction.clone(), vote });
        let (logged, election) = (state.logged.as_ref(), state.logged.as_ref().and_then(|logged| logged.election.as_ref()));
        let logged =
            logged.map(|logged| Record::Logged { transaction: Some(transaction), id, decision: logged.decision, view: logged.view });
        let view_entered = election.map(|election| Record::ViewEntered { id, view: election.view });
        let released = state.is_released().then(|| Record::OrphanReleased { id, end: None, versions: Vec::new() });
        for record in voted.into_iter().chain(logged).chain(view_entered).chain(released) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
    }
}
