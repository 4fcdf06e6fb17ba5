//! What a replica takes in at all: nothing too old, nothing from the future (basil.txt Alg. 1 L1-2), and no more than there is
//! room for.

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::Party;

use super::Replica;
use super::rights::is_author;
use crate::ledger::{Entry, Payer};
use crate::message::Refusal;

/// The most parties that may wait for one vote; those who come later ask again. The author always finds a place.
pub(super) const ASKERS_MAX: usize = 64;

impl<M: StorageBackend> Replica<M> {
    /// Nothing below is remembered or may be read, in nanoseconds. A clock set back does not lower it.
    pub(super) fn watermark(&self, now: Time) -> u64 {
        let by_clock = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        let horizon = if broken(Mutant::LowWatermarkIgnored) { 0 } else { self.ledger.horizon() };
        by_clock.max(self.ledger.store.watermark().time.saturating_add(1)).max(horizon)
    }

    /// No transaction below is voted on at its author's word alone, in nanoseconds.
    pub(super) fn youngest_watermark(&self, now: Time) -> u64 {
        self.watermark(now).max(now.0.saturating_sub(self.options.window_ms * 500_000))
    }

    /// Whether a transaction not known yet may be judged at all. Whatever is refused here gets no vote, now or later.
    pub(super) fn may_enter(&self, now: Time, oldest: u64, payer: Payer, transaction: &Transaction) -> Result<(), Refusal> {
        let timestamp = transaction.timestamp();
        if timestamp.time < oldest && !broken(Mutant::PastEntered) {
            return Err(Refusal::TooOld);
        }
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureEntered) {
            // Alg. 1 L1-2, but without a vote: the journal keeps no record from the future, whose segment could be let
            // go while the record still matters.
            return Err(Refusal::TooNew);
        }
        if !transaction.keys().any(|key| self.ledger.holds(key)) {
            return Err(Refusal::WrongShard);
        }
        let options = &self.options;
        let (all, own) = (self.ledger.undecided(), self.ledger.undecided_of(payer));
        let full = self.ledger.known() >= options.tracked_max
            || all.transactions >= options.undecided_max
            || all.bytes >= options.undecided_bytes_max
            || (own.transactions >= options.undecided_max / 4 && !broken(Mutant::ShareUnlimited))
            || (own.bytes >= options.undecided_bytes_max / 4 && !broken(Mutant::ShareUnlimited));
        if full && !broken(Mutant::LoadUnlimited) && self.ledger.entry(transaction.id()).is_none() {
            return Err(Refusal::Overloaded);
        }
        Ok(())
    }

    /// The same of one that comes with the proof that it aborted. Anybody can make up any number of transactions that conflict with
    /// a committed one, and so the proofs. They may take half the room at most.
    pub(super) fn may_enter_aborted(&self, now: Time, payer: Payer, transaction: &Transaction) -> Result<(), Refusal> {
        if self.ledger.known() >= self.options.tracked_max / 2 && !broken(Mutant::LoadUnlimited) {
            return Err(Refusal::Overloaded);
        }
        self.may_enter(now, self.watermark(now), payer, transaction)
    }

    pub(super) fn enter(&mut self, now: Time, from: Party, transaction: &Transaction) {
        if self.ledger.entry(transaction.id()).is_none() {
            self.watch.met(now, transaction.id());
        }
        let payer = if broken(Mutant::AuthorCharged) { author(transaction) } else { from.into() };
        note_asker(self.ledger.enter(transaction, now, payer), from);
    }
}

pub(super) fn note_asker(entry: &mut Entry, from: Party) {
    let authored = is_author(from, &entry.transaction);
    if !entry.askers.contains(&from) && (entry.askers.len() < ASKERS_MAX || (authored && entry.askers.len() < 2 * ASKERS_MAX)) {
        entry.askers.push(from);
    }
}

pub(super) fn author(transaction: &Transaction) -> Payer {
    Payer::Client(transaction.timestamp().client)
}
