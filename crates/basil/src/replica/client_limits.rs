//! What one client may take of this replica, where its configuration says that it is less than what any client may.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, ClientLimits, Cluster, Party, ReplicaId};

use super::Replica;
use super::abandonment_limiter::whole_ms;
use super::admission::is_author;
use crate::message::{ClientLimit, Refusal};
use crate::transaction::Transaction;
use crate::transaction_state::{Quota, QuotaOwner};
use crate::transaction_table::Load;

/// So many seconds' worth of reads may come at once.
const READS_BURST_NS: u64 = 1_000_000_000;

/// What each client with such a limit has read of late, as the time up to which that takes it at its rate.
#[derive(Debug, Default)]
pub(super) struct ReadLimiter(BTreeMap<ClientId, Time>);

impl ReadLimiter {
    /// If `client`, which may read so many keys a second, may read nothing more for now: how many milliseconds it takes until it may read a second's worth at once again. Before that,
    /// what reads more than a few keys would be refused over and over.
    fn over_limit(&self, now: Time, client: ClientId) -> Option<u32> {
        let over_ns = self.0.get(&client)?.0.saturating_sub(now.0.saturating_add(READS_BURST_NS));
        (over_ns > 0).then(|| whole_ms(over_ns + READS_BURST_NS))
    }

    fn charge(&mut self, now: Time, client: ClientId, per_second: u32, reads: usize) {
        let each_ns = 1_000_000_000 / u64::from(per_second.max(1));
        let until = self.0.entry(client).or_default();
        *until = Time(until.0.max(now.0).saturating_add(each_ns.saturating_mul(reads as u64)));
    }

    /// Forgets clients that `cluster` does not limit.
    fn retain(&mut self, cluster: &Cluster) {
        self.0.retain(|client, _| cluster.permission(*client).is_some_and(|permission| permission.limits.reads_per_second.is_some()));
    }
}

impl<M: StorageBackend> Replica<M> {
    /// The operators have changed the cluster: from now on this replica goes by its clients and their rights. What it has voted stays. What was said
    /// under a key that was changed counts no more, so that at no time the words of more than `f` liars of a shard count together. What was
    /// asked under one ahead of time is not answered any more.
    pub fn reconfigure(&mut self, cluster: std::sync::Arc<Cluster>) {
        self.read_limiter.retain(&cluster);
        let changed = |it: &ReplicaId| cluster.replica_key(*it) != self.cluster.replica_key(*it);
        let changed: Vec<ReplicaId> = cluster.replicas().filter(changed).collect();
        if !changed.is_empty() {
            self.forget_words_of(&changed);
        }
        if !broken(Mutant::RevokedHeard) {
            let before = &self.cluster;
            let key_of = |cluster: &Cluster, client| cluster.permission(client).map(|permission| permission.public_key);
            self.early.drop_of(|owner| match owner {
                QuotaOwner::Client(client) => key_of(&cluster, client) != key_of(before, client),
                QuotaOwner::Replica(replica) => cluster.replica_key(replica) != before.replica_key(replica),
            });
        }
        self.liars.retain(|client, key| cluster.permission(*client).is_some_and(|permission| permission.public_key == *key));
        if !broken(Mutant::RightsKept) {
            self.cluster = cluster;
        }
    }

    fn forget_words_of(&mut self, changed: &[ReplicaId]) {
        let mut has_told = false;
        for replica in changed.iter().filter(|replica| replica.shard == self.me.shard) {
            self.ballots.forget_sender(replica.index);
            // Whoever had the earlier key may have lied about it, and whoever has this one is not to be held to that.
            has_told |= !broken(Mutant::JournalOfOldKey) && self.table.peer_journals.remove(&replica.index).is_some();
        }
        if has_told {
            self.table.log_peer_journals();
        }
        if broken(Mutant::WordsOfOldKey) {
            return;
        }
        for replica in changed.iter().filter(|replica| replica.shard == self.me.shard) {
            self.catch_up.forget_words_of(replica.index);
            self.older_copy.forget_words_of(replica.index);
            // What it has shown is counted together with what others have: they are asked anew.
            self.rebuild.begin_again();
        }
        self.status_queries.forget_words_of(changed);
        self.table.forget_commit_notices_of(&self.cluster, changed);
    }

    /// Refuses what `client` begins as long as it has this key. Only what a client's own channel brought is a reason, so that nobody is refused for what
    /// others say.
    pub(crate) fn refuse_liar(&mut self, client: ClientId, public_key: [u8; 32]) {
        if self.cluster.permission(client).is_some_and(|permission| permission.public_key == public_key) {
            self.liars.insert(client, public_key);
        }
    }

    pub(super) fn refuse_known_liar(&mut self, client: ClientId) {
        if let Some(permission) = self.cluster.permission(client) {
            self.liars.insert(client, permission.public_key);
        }
    }

    fn is_no_liar(&self, party: Party) -> Result<(), Refusal> {
        let is_liar = matches!(party, Party::Client(client, _) if self.liars.contains_key(&client));
        if is_liar && !broken(Mutant::LiarServed) { Err(Refusal::Liar) } else { Ok(()) }
    }

    fn limits_of(&self, party: Party) -> Option<(ClientId, ClientLimits)> {
        let Party::Client(client, _) = party else { return None };
        self.cluster.permission(client).map(|permission| (client, permission.limits))
    }

    /// Whether `from` may read at its rate.
    pub(super) fn may_read_more(&self, now: Time, from: Party) -> Result<(), Refusal> {
        self.is_no_liar(from)?;
        let limited = self.limits_of(from).filter(|(_, limits)| limits.reads_per_second.is_some());
        match limited.and_then(|(client, _)| self.read_limiter.over_limit(now, client)) {
            Some(after_ms) if !broken(Mutant::ClientLimitsIgnored) => {
                Err(Refusal::ClientLimit { limit: ClientLimit::ReadsPerSecond, after_ms })
            }
            _ => Ok(()),
        }
    }

    /// `from` has read so many keys.
    pub(super) fn charge_reads(&mut self, now: Time, from: Party, reads: usize) {
        if let Some((client, ClientLimits { reads_per_second: Some(per_second), .. })) = self.limits_of(from) {
            self.read_limiter.charge(now, client, per_second, reads);
        }
    }

    /// Whether `transaction`, which its author brings, is within the author's limits.
    pub(super) fn within_limits(&self, from: Party, transaction: &Transaction) -> Result<(), Refusal> {
        let Some((_, limits)) = self.limits_of(from).filter(|_| is_author(from, transaction)) else { return Ok(()) };
        // What it has begun goes on, for the sake of others.
        if self.table.get(transaction.id()).is_none() {
            self.is_no_liar(from)?;
        }
        if broken(Mutant::ClientLimitsIgnored) {
            return Ok(());
        }
        if let Some(limit) = Load::of(transaction).over(&limits) {
            return Err(Refusal::ClientLimit { limit, after_ms: 0 });
        }
        let own = self.table.undecided_of(Quota::prepare(from)).transactions;
        let is_over = limits.transactions.is_some_and(|limit| own >= limit as usize);
        if is_over && self.table.get(transaction.id()).is_none() {
            return Err(Refusal::ClientLimit { limit: ClientLimit::Transactions, after_ms: 0 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_reads_too_fast_waits_for_as_long_as_it_was_too_fast() {
        let (mut limiter, client, second) = (ReadLimiter::default(), ClientId(1), 1_000_000_000);
        let now = Time(5 * second);
        assert_eq!(limiter.over_limit(now, client), None);
        limiter.charge(now, client, 100, 100);
        assert_eq!(limiter.over_limit(now, client), None, "a second's worth may come at once");
        limiter.charge(now, client, 100, 150);
        assert_eq!([client, ClientId(2)].map(|client| limiter.over_limit(now, client)), [Some(2_500), None]);
        assert_eq!(limiter.over_limit(Time(now.0 + second), client), Some(1_500));
        assert_eq!(limiter.over_limit(Time(now.0 + 3 * second / 2), client), None);
    }
}
