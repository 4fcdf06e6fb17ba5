//! When a replica finishes abandoned transactions (Basil §5; that replicas finish anything themselves is beyond the paper).
//!
//! A client that meets an abandoned transaction finishes it, as in the paper. Replicas finish the rest:
//!
//! - What has been undecided for `janitor_timeout_ms`, so that everything ends even if no client meets it. Nobody waits for it, so it is
//!   gathered for a while and finished many at a time: one signature then covers many votes.
//! - What stands in the way of a transaction that somebody else wants to finish, and what stands in the way of that. A client would
//!   learn of the links of such a chain one by one. The replicas know all of them, and expedite them.
//! - What waits for something that is finished, as soon as that has ended: never before, or what waits would take the places of what it waits for.
//! - What a transaction was voted down for whose author may not see it, and so cannot finish it.
//!
//! **Ranks.** If every replica of a shard finished what is abandoned there, each of them would ask all of them. So each has a rank for
//! each transaction, by its id. The first `f + 1` ranks act one after the other, and one of them is correct; the others follow together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, TransactionId};

use super::{Out, Replica, ReplicaEvent};
use crate::check::AbortReason;
use crate::coordinator::FINISHES_MAX;
use crate::quorum::Quorums;
use crate::recovery::leader_of;
use crate::transaction::Transaction;
use crate::transaction_state::{Phase, TransactionState};
use crate::transaction_table::TOGETHER;

/// What nobody waits for is gathered for this part of `janitor_timeout_ms`.
const GATHER_PART: u64 = 8;
/// A replica whose turn it is has this part of `janitor_timeout_ms` for it, before the next one's comes.
const RANK_PART: u64 = 4;
/// The same where somebody waits for it.
const EXPEDITED_RANK_PART: u64 = 20;
/// What somebody waits for may take this part of `janitor_timeout_ms` to end by itself.
const EXPEDITED_PART: u64 = 40;
/// One request expedites so many transactions at most, and looks at so many of their reads.
const EXPEDITED_MAX: usize = 64;
const EXPEDITED_READS_MAX: usize = 8_192;
/// So many hidden transactions are expedited for one client at most, in this part of `janitor_timeout_ms`.
const HIDDEN_MAX: u32 = 64;
const HIDDEN_PART: u64 = 10;

/// The undecided transactions, by when to look at them.
#[derive(Debug, Default)]
pub(super) struct StallTimers {
    /// All of them, in the order in which they were met or last looked at.
    all: VecDeque<(Time, TransactionId)>,
    /// Those that are to be finished here, unless they have ended by then.
    turns: BTreeSet<(Time, TransactionId)>,
    /// How many hidden transactions were expedited for each client since then.
    hidden: BTreeMap<ClientId, u32>,
    hidden_since: Time,
}

impl StallTimers {
    /// Looks at these from `now` on.
    pub fn new(undecided: impl IntoIterator<Item = TransactionId>, now: Time) -> Self {
        Self { all: undecided.into_iter().map(|id| (now, id)).collect(), ..Self::default() }
    }

    /// A transaction is met.
    pub fn met(&mut self, now: Time, id: TransactionId) {
        self.all.push_back((now, id));
    }

    /// Whether one more hidden transaction may be expedited for `client`, of so many in `every_ms`.
    fn may_expedite_hidden(&mut self, now: Time, client: ClientId, every_ms: u64) -> bool {
        if self.hidden_since.after_ms(every_ms) <= now {
            self.hidden.clear();
            self.hidden_since = now;
        }
        let count = self.hidden.entry(client).or_default();
        *count += 1;
        *count <= HIDDEN_MAX
    }

    /// When to look next.
    pub fn deadline(&self, janitor_timeout_ms: u64) -> Option<Time> {
        let met = self.all.front().map(|(since, _)| since.after_ms(janitor_timeout_ms));
        let rank = self.turns.first().map(|(at, _)| *at);
        [met, rank].into_iter().flatten().min()
    }
}

/// How many others come before the replica at `index` to finish a transaction, among those whose turns are one after the other.
fn rank(id: TransactionId, index: u16, quorums: Quorums) -> u64 {
    let replicas = quorums.replicas() as u64;
    let place = (u64::from(index) + replicas - u64::from(leader_of(id, 0, quorums.replicas()))) % replicas;
    place.min(quorums.weak() as u64)
}

/// `at`, put off to the next of the moments that lie `us` microseconds apart.
fn gathered(at: Time, us: u64) -> Time {
    Time(at.0.checked_next_multiple_of((us * 1_000).max(1)).unwrap_or(u64::MAX))
}

impl<M: StorageBackend> Replica<M> {
    /// Whether `id` has been undecided for so long that whoever it stops should be told.
    pub(super) fn is_overdue(&self, now: Time, id: TransactionId) -> bool {
        let state = self.table.get(id);
        state.is_some_and(|state| state.decision().is_none() && state.since.after_ms(self.options.janitor_timeout_ms) <= now)
    }

    /// Somebody wants to finish `id`: what its vote waits for, and what stands behind that, is to end soon.
    pub(super) fn expedite(&mut self, now: Time, id: TransactionId, out: &mut Out<M>) {
        let (mut chain, mut looked_at, mut reads_left) = (vec![id], 0, EXPEDITED_READS_MAX);
        while let Some(id) = chain.get(looked_at).copied() {
            looked_at += 1;
            let Some(state) = self.table.get(id) else { continue };
            if !matches!(state.phase, Phase::Waiting { .. }) {
                continue;
            }
            let transaction = state.transaction.clone();
            for read in transaction.reads().iter().take(reads_left) {
                let is_judged = self.table.holds(&read.key) && chain.len() <= EXPEDITED_MAX;
                if let Some(dependency) = read.dependency.filter(|_| is_judged)
                    && self.expedite_one(now, dependency)
                {
                    chain.push(dependency);
                }
            }
            reads_left = reads_left.saturating_sub(transaction.reads().len());
        }
        self.finish_due(now, out);
    }

    /// Brings the time forward at which this replica finishes `id`; `false` if it was already, or `id` has ended.
    fn expedite_one(&mut self, now: Time, id: TransactionId) -> bool {
        let stall_us = self.options.janitor_timeout_ms * 1_000;
        let rank = rank(id, self.me.index, self.quorums);
        let Some(state) = self.table.get_mut(id).filter(|state| state.is_open() && !state.is_expedited) else { return false };
        state.is_expedited = true;
        let first = state.since.after_us(stall_us / EXPEDITED_PART).max(now);
        self.stall_timers.turns.insert((first.after_us(rank * stall_us / EXPEDITED_RANK_PART), id));
        true
    }

    /// `transaction` was voted down because of another that its author may not see. Whoever tries again would find the next of its kind in the
    /// way, if its author leaves them faster than they end by themselves. So this one ends soon.
    pub(super) fn expedite_hidden(&mut self, now: Time, transaction: &Transaction, abort_reason: AbortReason, out: &mut Out<M>) {
        let author = transaction.timestamp().client;
        let is_hidden = |state: &TransactionState| {
            state.is_open() && state.transaction.timestamp().client != author && !self.may_client_see(author, &state.transaction)
        };
        let hidden = abort_reason.conflicting().filter(|other| self.table.get(*other).is_some_and(is_hidden));
        let Some(hidden) = hidden.filter(|_| !broken(Mutant::HiddenLeft)) else { return };
        if self.stall_timers.may_expedite_hidden(now, author, self.options.janitor_timeout_ms / HIDDEN_PART)
            && self.expedite_one(now, hidden)
        {
            self.expedite(now, hidden, out);
        }
    }

    /// Hands over what was left and is to be finished here.
    pub(super) fn finish_stalled(&mut self, now: Time, out: &mut Out<M>) {
        let janitor_timeout_ms = self.options.janitor_timeout_ms;
        let due = self.stall_timers.all.partition_point(|(since, _)| since.after_ms(janitor_timeout_ms) <= now);
        for place in 0..due {
            if place.is_multiple_of(TOGETHER) {
                self.table.prefetch_states(self.stall_timers.all.iter().take((due - place).min(TOGETHER)).map(|(_, id)| *id));
            }
            let Some((_, id)) = self.stall_timers.all.pop_front() else { break };
            let Some(state) = self.table.get(id).filter(|state| state.is_open()) else { continue };
            // Of the shards that it touches, the logging shard comes first.
            let is_first = self.logs(&state.transaction);
            let others = if is_first { 0 } else { self.quorums.weak() as u64 };
            let at = now.after_us((others + rank(id, self.me.index, self.quorums)) * janitor_timeout_ms * 1_000 / RANK_PART);
            self.stall_timers.turns.insert((gathered(at, janitor_timeout_ms * 1_000 / GATHER_PART), id));
            self.stall_timers.all.push_back((now, id));
            self.table.set_aside(id);
            if self.is_stalled(id) {
                self.query_status(now, id, out);
            }
        }
        self.finish_due(now, out);
    }

    /// Whether `id` is undecided and worth finishing: what nobody authored stops nobody here, and asking everybody about it would
    /// only do its maker's work.
    fn is_stalled(&self, id: TransactionId) -> bool {
        let Some(state) = self.table.get(id).filter(|state| state.is_open()) else { return false };
        (!state.awaits_author || state.is_prepared() || state.logged.is_some()) && !broken(Mutant::JanitorAsleep)
    }

    /// The vote on `id` waited for another, and does no more. Now it can be finished.
    pub(super) fn finish_next(&mut self, now: Time, id: TransactionId) {
        if self.is_overdue(now, id) {
            self.expedite_one(now, id);
        }
    }

    /// The oldest first: what reads from another is younger than that. What waits for another here gets a vote when that has ended,
    /// and not before; so nobody sets out to finish it, except within a chain that somebody waits for.
    fn finish_due(&mut self, now: Time, out: &mut Out<M>) {
        let mut due = Vec::new();
        while self.stall_timers.turns.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, id)) = self.stall_timers.turns.pop_first() else { break };
            let is_stalled = self.is_stalled(id);
            let Some(state) = self.table.get_mut(id) else { continue };
            let is_expedited = std::mem::take(&mut state.is_expedited);
            let is_waiting = matches!(state.phase, Phase::Waiting { .. }) && !broken(Mutant::WaitingFinished);
            if is_stalled && (!is_waiting || is_expedited) {
                due.push((state.order_key(), id, is_waiting));
            }
        }
        due.sort_unstable();
        for (_, id, is_waiting) in due.into_iter().take(FINISHES_MAX) {
            let Some(state) = self.table.get(id) else { continue };
            out.emit(ReplicaEvent::Stalled { transaction: state.transaction.clone(), is_waiting });
            self.counts.stalled += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_have_their_turn_alone_that_one_is_correct() {
        let turns = |name: u8, faults: u16| {
            let mut id = [7; 32];
            id[0] = name;
            let quorums = Quorums::new(faults.into());
            let mut turns: Vec<u64> = (0..5 * faults + 1).map(|index| rank(TransactionId(id), index, quorums)).collect();
            turns.sort_unstable();
            turns
        };
        assert!((0..20).all(|name| turns(name, 1) == [0, 1, 2, 2, 2, 2]));
        assert!((0..20).all(|name| turns(name, 2) == [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3]));
    }

    #[test]
    fn what_is_due_at_about_the_same_time_is_done_at_the_same_time() {
        let at = |us: u64| Time(us * 1_000);
        assert_eq!(gathered(at(1), 10), gathered(at(10), 10));
        assert_eq!(gathered(at(11), 10), at(20));
        assert_eq!(gathered(at(11), 0), at(11));
    }
}
