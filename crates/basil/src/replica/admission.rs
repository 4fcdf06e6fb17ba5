//! What a replica takes in at all: nothing too old, nothing from the future (basil.txt Alg. 1 L1-2), and no more than there is
//! room for.

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::Party;

use super::Replica;
use super::rights::is_author;
use crate::message::Refusal;
use crate::transaction_state::{QuotaOwner, TransactionState};

/// The most parties that may wait for one vote; those who come later ask again. The author always finds a place.
pub(super) const REQUESTERS_MAX: usize = 64;

impl<M: StorageBackend> Replica<M> {
    /// Nothing below is remembered or may be read, in nanoseconds. A clock set back does not lower it.
    pub(super) fn watermark(&self, now: Time) -> u64 {
        let by_clock = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        let low_watermark = if broken(Mutant::LowWatermarkIgnored) { 0 } else { self.table.low_watermark() };
        by_clock.max(self.table.store.watermark().time.saturating_add(1)).max(low_watermark)
    }

    /// No transaction below is voted on at its author's word alone, in nanoseconds.
    pub(super) fn youngest_watermark(&self, now: Time) -> u64 {
        self.watermark(now).max(now.0.saturating_sub(self.options.window_ms * 500_000))
    }

    /// Whether a transaction not known yet may be judged at all. Whatever is refused here gets no vote, now or later.
    pub(super) fn may_enter(&self, now: Time, oldest: u64, quota_owner: QuotaOwner, transaction: &Transaction) -> Result<(), Refusal> {
        let timestamp = transaction.timestamp();
        if timestamp.time < oldest && !broken(Mutant::PastEntered) {
            return Err(Refusal::TooOld);
        }
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureEntered) {
            // Alg. 1 L1-2, but without a vote: the journal keeps no record from the future, whose segment could be let
            // go while the record still matters.
            return Err(Refusal::TooNew);
        }
        if !transaction.keys().any(|key| self.table.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        let options = &self.options;
        let (all, own) = (self.table.undecided(), self.table.undecided_of(quota_owner));
        let full = self.table.tracked() >= options.tracked_max
            || all.transactions >= options.undecided_max
            || all.bytes >= options.undecided_bytes_max
            || (own.transactions >= options.undecided_max / 4 && !broken(Mutant::ShareUnlimited))
            || (own.bytes >= options.undecided_bytes_max / 4 && !broken(Mutant::ShareUnlimited));
        if full && !broken(Mutant::LoadUnlimited) && self.table.get(transaction.id()).is_none() {
            return Err(Refusal::Overloaded);
        }
        Ok(())
    }

    /// The same of one that comes with the proof that it aborted. Anybody can make up any number of transactions that conflict with
    /// a committed one, and so the proofs. They may take half the room at most.
    pub(super) fn may_enter_aborted(&self, now: Time, quota_owner: QuotaOwner, transaction: &Transaction) -> Result<(), Refusal> {
        if self.table.tracked() >= self.options.tracked_max / 2 && !broken(Mutant::LoadUnlimited) {
            return Err(Refusal::Overloaded);
        }
        self.may_enter(now, self.watermark(now), quota_owner, transaction)
    }

    pub(super) fn enter(&mut self, now: Time, from: Party, transaction: &Transaction) {
        if self.table.get(transaction.id()).is_none() {
            self.stall_timers.met(now, transaction.id());
        }
        let quota_owner = if broken(Mutant::AuthorCharged) { author(transaction) } else { from.into() };
        note_requester(self.table.enter(transaction, now, quota_owner), from);
    }
}

pub(super) fn note_requester(state: &mut TransactionState, from: Party) {
    let authored = is_author(from, &state.transaction);
    if !state.requesters.contains(&from)
        && (state.requesters.len() < REQUESTERS_MAX || (authored && state.requesters.len() < 2 * REQUESTERS_MAX))
    {
        state.requesters.push(from);
    }
}

pub(super) fn author(transaction: &Transaction) -> QuotaOwner {
    QuotaOwner::Client(transaction.timestamp().client)
}
