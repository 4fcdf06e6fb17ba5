//! What the coordinator does when the operators give a replica's place another key (`docs/protocols/basil.md`, "Changing the cluster while it runs").
//!
//! A vote, or a logged decision, that the earlier key signed counts for nobody who goes by the new one: a certificate with it would be refused. So it is
//! forgotten, and asked for again. The same replica under a new key says the same again; a replica that takes another's place says nothing, or what it
//! holds. Either way the place says one thing, or counts among the `f`.

use std::sync::Arc;

use machine::Time;
use mutants::{Mutant, broken};
use types::{Cluster, ReplicaId, TransactionId};

use super::{CommitAttempt, Coordinator, FastPathWait, Out};
use crate::quorum::Quorums;

/// For so long after a change, what is asked again is counted anew, in nanoseconds: what the shell had checked by the earlier key may come a little later than
/// the news of the change.
const RECOUNT_NS: u64 = 2_000_000_000;

impl Coordinator {
    /// From now on goes by `cluster`.
    pub(super) fn on_reconfigure_command(&mut self, now: Time, cluster: Arc<Cluster>, out: &mut Out) {
        let has_changed = |replica: &ReplicaId| self.cluster.replica_key(*replica) != cluster.replica_key(*replica);
        let rotated: Vec<ReplicaId> = cluster.replicas().filter(has_changed).collect();
        self.cluster = cluster;
        if rotated.is_empty() || broken(Mutant::EarlierVotesKept) {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "they are sorted before anything depends on their order")]
        let mut ids: Vec<TransactionId> = self.attempts.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(attempt) = self.attempts.get_mut(&id) else { continue };
            if attempt.recount(&rotated, self.quorums) {
                self.ask_votes(id, out);
            }
        }
        self.rotated = Some((now, rotated));
    }

    /// A request goes out again: what came by an earlier key after the news of its change is forgotten, too.
    pub(super) fn recount_once_more(&mut self, now: Time, id: TransactionId) {
        let Some((at, rotated)) = &self.rotated else { return };
        if now.since(*at) > RECOUNT_NS {
            self.rotated = None;
        } else if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.recount(rotated, self.quorums);
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
        if has_changed && self.logging.is_some() && self.logging != self.slow_decision(quorums) {
            (self.logging, self.fast_path_wait) = (None, FastPathWait::NotBegun);
        }
        has_changed
    }
}
