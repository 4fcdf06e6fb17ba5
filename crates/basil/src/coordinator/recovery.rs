//! How the coordinator finishes what others left (Basil §5): which transactions and when, and what it does where their logged
//! decisions do not come together. In between they take the same way as its own, in `deciding.rs`.

use std::sync::Arc;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use types::{Party, TransactionId};

use super::{Coordinator, Out, Path};
use crate::certificate::{Certificate, logging_shard};
use crate::message::{Justified, Message};

/// Transactions of others being finished at once; more wait until somebody meets them again.
pub(crate) const FINISHES_MAX: usize = 1_024;
/// What a transaction read from is given so many times as long to end as this process's own transactions usually take,
const DEPENDENCY_TIMES: u64 = 2;
/// but not less than this, in microseconds.
const DEPENDENCY_US_MIN: u64 = 2_000;

impl Coordinator {
    pub(super) fn on_finish_command(&mut self, now: Time, transaction: Transaction, out: &mut Out) {
        let id = transaction.id();
        if let Some(since) = self.recent_commits.unrelayed_since(id) {
            // Those who are to tell get the time for it that asking and telling all takes.
            if since.after_us(self.least_us(&transaction)) <= now {
                self.show_to_all(&transaction, out);
            }
            return;
        }
        if self.attempts.contains_key(&id) || self.finishing >= FINISHES_MAX {
            return;
        }
        self.finishing += 1;
        self.counts.finishes += 1;
        self.on_commit_command(now, None, transaction, Vec::new(), out);
    }

    /// Somebody waits for a commit of this process that was to be relayed: perhaps the relays failed. Sends everybody the proof.
    fn show_to_all(&mut self, transaction: &Transaction, out: &mut Out) {
        let Some(certificate) = self.recent_commits.take_proof(transaction.id()) else { return };
        for replica in transaction.participants(&self.cluster).into_iter().flat_map(|shard| self.cluster.replicas_of(shard)) {
            let (transaction, certificate) = (Some(transaction.clone()), certificate.clone());
            out.send(Party::Replica(replica), Message::Writeback { transaction, certificate, relay: false });
        }
    }

    /// Votes on `id` may be waiting for what it read from: finishes that (§5).
    pub(super) fn finish_dependencies(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if attempt.logging.is_some() || attempt.slow_decision(self.quorums).is_some() {
            return; // Nobody whose vote counts is waiting.
        }
        for dependency in attempt.dependencies.clone() {
            self.on_finish_command(now, dependency, out);
        }
    }

    /// §5: votes wait for what a transaction read from, and whoever meets what another left finishes it, one round trip more. Until
    /// when the writer of `dependency` has time to end it itself: for as long as that usually takes here, and as it takes
    /// to ask and tell all who are asked; but what began long ago has had its time. A timestamp may lie about that, to nobody's
    /// harm, for finishing what is about to end by itself is only work for nothing.
    pub(super) fn time_for(&self, now: Time, dependency: &Transaction) -> Time {
        let least_us = self.least_us(dependency);
        let usual_us = self.usual_lifetime.times_us(DEPENDENCY_TIMES, 2 * least_us);
        let left_us = usual_us.saturating_sub(self.age_ns(now, dependency) / 1_000);
        now.after_us(self.usual_commit.times_us(DEPENDENCY_TIMES, least_us).min(left_us))
    }

    /// What it takes to ask and tell all who take part in `transaction`, at least.
    fn least_us(&self, transaction: &Transaction) -> u64 {
        let shards = transaction.participants(&self.cluster);
        let round_us = shards.into_iter().map(|shard| self.round_trips.round_us(shard)).max().unwrap_or(0);
        DEPENDENCY_US_MIN.max(DEPENDENCY_TIMES * round_us)
    }

    /// RPR (iii): somebody else has ended it.
    pub(super) fn on_decided(&mut self, now: Time, certificate: Arc<Certificate>, out: &mut Out) {
        let Some(attempt) = self.attempts.get(&certificate.id) else { return };
        if certificate.fits(&self.cluster, &attempt.transaction).is_ok() {
            self.end_attempt(now, certificate, Path::Recovered, out);
        }
    }

    /// §5 (1): the decisions that the logging shard has logged cannot come together, so one replica is to be elected to reconcile them.
    /// The views heard last say which. Each call waits longer than the one before.
    pub(super) fn invoke_fallback(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let quorums = self.quorums;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(shard) = logging_shard(&attempt.participants, id).filter(|_| !broken(Mutant::LeaderUncalled)) else { return };
        if attempt.elections == 0 {
            self.counts.fallbacks += 1;
        }
        let times = attempt.elections;
        attempt.elections += 1;
        let decision = attempt.logging.or_else(|| attempt.slow_decision(quorums));
        let justified = decision.map(|decision| Justified { decision, tallies: attempt.justification(decision, quorums) });
        let views = attempt.logged.all();
        for replica in self.cluster.replicas_of(shard) {
            let (transaction, justified, views) = (attempt.transaction.clone(), justified.clone(), views.clone());
            out.send(Party::Replica(replica), Message::InvokeFallback { transaction, justified, views });
        }
        self.set_retry(now, id, times);
    }
}
