//! What the coordinator does when the operators give a replica's place another key (`docs/protocols/basil.md`, "Changing the cluster while it runs").
//!
//! A vote, or a logged decision, that the earlier key signed counts for nobody who goes by the new one: a certificate with it would be refused. So it is
//! forgotten, and asked for again. The same replica under a new key says the same again; a replica that takes another's place says nothing, or what it
//! holds. Either way the place says one thing, or counts among the `f`.
//!
//! The shell checks what arrives by the new keys a little before or after this machine hears of them. So each message says by which keys it was checked, and what
//! is counted of a transaction was all checked by the same ones.

use std::sync::Arc;

use crypto::{ReplicaKeys, SignatureClaims as _, Verified};
use mutants::{Mutant, broken};
use types::{Cluster, ReplicaId, TransactionId};

use super::{CommitAttempt, Coordinator, FastPathWait, Out};
use crate::message::Message;
use crate::quorum::Quorums;

/// So many sets of keys that were gone by before are remembered: what was checked by one of them is soon here.
const EARLIER_KEYS_MAX: usize = 16;

/// The keys by which what is counted was checked.
#[derive(Debug)]
pub(super) struct CheckedBy {
    keys: ReplicaKeys,
    /// The ones before, the last of them last.
    earlier: Vec<ReplicaKeys>,
}

impl CheckedBy {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self { keys: ReplicaKeys::of(cluster), earlier: Vec::new() }
    }

    fn change(&mut self, keys: ReplicaKeys) {
        self.earlier.retain(|known| *known != keys);
        self.earlier.push(std::mem::replace(&mut self.keys, keys));
        if self.earlier.len() > EARLIER_KEYS_MAX {
            self.earlier.remove(0);
        }
    }
}

impl Coordinator {
    /// From now on goes by `cluster`.
    pub(super) fn on_reconfigure_command(&mut self, cluster: Arc<Cluster>, out: &mut Out) {
        // What was counted since by keys of which there was no news yet may be of any of them.
        let is_ahead = self.checked_by.keys != ReplicaKeys::of(&self.cluster);
        let has_changed = |replica: &ReplicaId| is_ahead || self.cluster.replica_key(*replica) != cluster.replica_key(*replica);
        let rotated: Vec<ReplicaId> = cluster.replicas().filter(has_changed).collect();
        rotated.iter().for_each(|replica| self.doubts.forget(*replica));
        let keys = ReplicaKeys::of(&cluster);
        self.cluster = cluster;
        if keys != self.checked_by.keys {
            self.go_by_keys(keys, &rotated, out);
        }
    }

    /// Whether `message` was checked by the keys by which all that is counted was, or bears no signature.
    pub(super) fn is_checked_alike(&mut self, message: &Verified<Message>, out: &mut Out) -> bool {
        let keys = message.checked_by();
        if keys == self.checked_by.keys || broken(Mutant::EarlierVoteHeard) {
            return true;
        }
        let mut claims = Vec::new();
        if message.claims(&self.cluster, &mut claims).is_ok() && claims.is_empty() {
            return true;
        }
        // The news may have passed over a change by whose keys something was checked: those that it told of are the newest all the same.
        let is_newest = keys == ReplicaKeys::of(&self.cluster);
        if self.checked_by.earlier.contains(&keys) && !is_newest {
            return false; // Whoever said it was asked again when the keys changed.
        }
        // Otherwise the news of a change is still on its way here, and which keys it changes with it.
        let all: Vec<ReplicaId> = self.cluster.replicas().collect();
        self.go_by_keys(keys, &all, out);
        true
    }

    /// From now on counts what is checked by `keys`, and no more what those of `rotated` said before. Asks again whoever is not heard.
    fn go_by_keys(&mut self, keys: ReplicaKeys, rotated: &[ReplicaId], out: &mut Out) {
        if broken(Mutant::EarlierVotesKept) {
            self.checked_by.keys = keys;
            return;
        }
        self.checked_by.change(keys);
        #[expect(clippy::disallowed_methods, reason = "they are sorted before anything depends on their order")]
        let mut ids: Vec<TransactionId> = self.attempts.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(attempt) = self.attempts.get_mut(&id) else { continue };
            let has_changed = attempt.recount(rotated, self.quorums);
            if has_changed || attempt.logging.is_none() {
                self.ask_votes(id, out);
            }
        }
    }
}

impl CommitAttempt {
    /// Forgets what those replicas have said; gives whether they had said anything. What is being logged is so no more, if the votes that are left do not
    /// justify it.
    fn recount(&mut self, replicas: &[ReplicaId], quorums: Quorums) -> bool {
        let mut has_changed = false;
        for replica in replicas {
            for tally in self.tallies.iter_mut().filter(|tally| tally.shard() == replica.shard) {
                has_changed |= tally.forget(replica.index);
            }
            if crate::certificate::logging_shard(&self.participants, self.transaction.id()) == Some(replica.shard) {
                has_changed |= self.logged.forget(replica.index);
            }
        }
        if has_changed {
            self.commit_quorum_at = None; // Nobody who says it again is late.
        }
        if has_changed && self.logging.is_some() && self.logging != self.slow_decision(quorums) {
            (self.logging, self.fast_path_wait) = (None, FastPathWait::NotBegun);
        }
        has_changed
    }
}
