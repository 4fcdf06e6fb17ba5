//! Relays of a commit (beyond the paper, which shows the proof to everybody).
//!
//! The proof holds a vote of every replica of every shard. If every replica checked it, that work would grow with the square of the
//! number of replicas. So the author sends it to `2f + 1` replicas of one shard, the *relays*. Each checks it, logs the outcome, and sends
//! all other replicas an unsigned [`crate::Message::CommitNotice`]. A replica believes that the transaction committed once `f + 1` of its
//! relays say so. `docs/protocols/basil.md` argues why that is safe, why it ends, and what it costs.
//!
//! A notice takes a hop more than a proof. Under [contention](Contention) somebody waits for it, and the proof of one shard, which is
//! short, goes to everybody.
//!
//! Who the relays are follows from the transaction. They stay the same for a client for a while, so that the notices of one turn leave
//! in few frames.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::transaction::Transaction;
use foldhash::HashMap;
use machine::Time;
use mutants::{Mutant, broken};
use types::{Cluster, ReplicaId, ShardId, TransactionId};

use crate::certificate::Certificate;
use crate::quorum::Quorums;

/// Relays rotate every 2^27 ns (134 ms).
const ROTATION_BITS: u32 = 27;

/// The relays of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relays {
    shard: ShardId,
    /// The index of the first; the others come after it, and after the last index the first.
    first: u16,
    quorums: Quorums,
}

impl Relays {
    /// Those of `transaction`; none where no shard takes part.
    pub fn of(cluster: &Cluster, transaction: &Transaction) -> Option<Self> {
        let (participants, quorums) = (transaction.participants(cluster), Quorums::new(cluster.faults()));
        if participants.is_empty() {
            return None;
        }
        let timestamp = transaction.timestamp();
        let rank = timestamp.client.0.wrapping_add(timestamp.time >> ROTATION_BITS);
        let (shards, replicas) = (participants.len() as u64, quorums.replicas() as u64);
        let shard = *participants.get(usize::try_from(rank % shards).ok()?)?;
        let first = u16::try_from(rank / shards % replicas).ok()?;
        Some(Self { shard, first, quorums })
    }

    /// Whether `replica` is one of them.
    pub fn contains(self, replica: ReplicaId) -> bool {
        let replicas = self.quorums.replicas();
        let place = (usize::from(replica.index) + replicas - usize::from(self.first)) % replicas;
        replica.shard == self.shard && place < self.quorums.relays()
    }
}

/// The proof of a commit of more keys goes to everybody where one shard takes part.
pub(crate) const RELAYED_KEYS_MAX: usize = 64;
/// How much each transaction that ends changes what is known of those before it: a part of so many.
const CONTENTION_REMEMBERED: u32 = 64;
/// It is high where more than one of so many contend with others.
const CONTENTION_HIGH: u32 = 8;

/// How many of one process's transactions contend with others of late: abort, or depend on what is prepared.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// The share, of 2^31.
    share: u32,
}

impl Contention {
    const ALL: u32 = 1 << 31;

    /// A transaction has ended, and has contended with others or not.
    pub fn note(&mut self, has_contended: bool) {
        let step = if has_contended { Self::ALL / CONTENTION_REMEMBERED } else { 0 };
        self.share = self.share - self.share / CONTENTION_REMEMBERED + step;
    }

    /// Whether more than an eighth do.
    pub fn is_high(&self) -> bool {
        self.share > Self::ALL / CONTENTION_HIGH
    }
}

/// For how long a commit is taken as recent, in milliseconds. Most replicas have its notices by then.
const RECENT_MS: u64 = 2_000;
/// The most commits remembered as fresh, with their proofs of some kilobytes.
const RECENT_MAX: usize = 1 << 13;

/// What this process has itself seen commit a moment ago, and had relayed. Replicas may still say that it is only prepared. A reader in
/// this process need not wait for it, nor finish it.
#[derive(Debug, Default)]
pub(crate) struct RecentCommits {
    /// Since when, and the proof, until all have been shown it.
    proofs: HashMap<TransactionId, (Time, Option<Arc<Certificate>>)>,
    by_time: VecDeque<(Time, TransactionId)>,
}

impl RecentCommits {
    /// The transaction of `certificate` has committed.
    pub fn note(&mut self, now: Time, certificate: &Arc<Certificate>) {
        let is_old = |(at, _): &(Time, TransactionId)| at.after_ms(RECENT_MS) <= now;
        while self.by_time.front().is_some_and(is_old) || self.by_time.len() >= RECENT_MAX {
            if let Some((_, old)) = self.by_time.pop_front() {
                self.proofs.remove(&old);
            }
        }
        if self.proofs.insert(certificate.id, (now, Some(certificate.clone()))).is_none() {
            self.by_time.push_back((now, certificate.id));
        }
    }

    /// Whether `id` is known to have committed.
    pub fn contains(&self, id: TransactionId) -> bool {
        self.proofs.contains_key(&id) || broken(Mutant::AllCommitsRecent)
    }

    /// Since when `id` is known to have committed, while not all have been shown the proof.
    pub fn unrelayed_since(&self, id: TransactionId) -> Option<Time> {
        self.proofs.get(&id).filter(|(_, proof)| proof.is_some()).map(|(since, _)| *since)
    }

    /// The proof that `id` committed, to be shown to all, once.
    pub fn take_proof(&mut self, id: TransactionId) -> Option<Arc<Certificate>> {
        self.proofs.get_mut(&id)?.1.take()
    }
}

#[cfg(test)]
mod tests {
    use crate::transaction::Write;
    use types::{ClientId, ClusterId, Key, Placement, Timestamp, Value};

    use super::*;
    use crate::certificate::{Decision, Proof};

    fn cluster() -> Cluster {
        let keys = |shard: u8| (0..6).map(|index| [shard * 10 + index; 32]).collect();
        let placement = Placement::Ranges(vec![Key::from("n")]);
        Cluster::new(ClusterId::new([1; 16]), 1, placement, vec![keys(1), keys(2)], vec![]).expect("the parts fit")
    }

    fn relays(cluster: &Cluster, time: u64, client: u64, keys: &[&str]) -> Vec<ReplicaId> {
        let writes = keys.iter().map(|key| Write { key: Key::from(*key), value: Some(Value::from("1")) }).collect();
        let transaction = Transaction::new(cluster.id(), Timestamp::new(time, ClientId(client)), vec![], writes).expect("it is small");
        let relays = Relays::of(cluster, &transaction);
        cluster.replicas().filter(|replica| relays.is_some_and(|relays| relays.contains(*replica))).collect()
    }

    #[test]
    fn they_are_enough_of_one_shard_and_everybody_has_a_turn() {
        let cluster = cluster();
        assert!(relays(&cluster, 5, 1, &[]).is_empty(), "nobody takes part");
        let alone = relays(&cluster, 5, 1, &["a", "b"]);
        assert!(alone.len() == 3 && alone.iter().all(|replica| replica.shard == ShardId(0)), "{alone:?}");
        let mut all = std::collections::BTreeSet::new();
        for rank in 0..12 {
            let those = relays(&cluster, rank << ROTATION_BITS, 1, &["a", "z"]);
            assert!(those.len() == 3 && those.iter().all(|replica| replica.shard == those[0].shard), "{those:?}");
            assert_eq!(those, relays(&cluster, (rank << ROTATION_BITS) + 100_000_000, 1, &["b", "y"]));
            assert_ne!(those, relays(&cluster, rank << ROTATION_BITS, 2, &["a", "z"]));
            all.extend(those);
        }
        assert_eq!(all.len(), 12);
    }

    #[test]
    fn contention_is_high_while_more_than_an_eighth_contend() {
        let mut contention = Contention::default();
        let mut after = |count: usize, has_contended: fn(usize) -> bool| {
            (0..count).for_each(|number| contention.note(has_contended(number)));
            contention.is_high()
        };
        assert!(!after(1_000, |number| number % 9 == 0));
        assert!(after(1_000, |number| number % 7 == 0));
        assert!(!after(1_000, |number| number % 9 == 0));
        assert!(after(20, |_| true) && !after(200, |_| false));
        assert!(after(1_000_000, |_| true), "it stays within its bounds");
    }

    #[test]
    fn what_is_fresh_grows_old_and_is_bounded() {
        let mut fresh = RecentCommits::default();
        let id = |number: usize| TransactionId(std::array::from_fn(|at| number.to_le_bytes().get(at).copied().unwrap_or_default()));
        let proof = |number| Arc::new(Certificate { id: id(number), decision: Decision::Commit, proof: Proof::Fast(Vec::new()) });
        fresh.note(Time(0), &proof(0));
        fresh.note(Time(0).after_ms(RECENT_MS - 1), &proof(1));
        assert!(fresh.contains(id(0)) && fresh.contains(id(1)));
        assert_eq!(fresh.unrelayed_since(id(1)), Some(Time(0).after_ms(RECENT_MS - 1)));
        assert!(fresh.take_proof(id(1)).is_some() && fresh.take_proof(id(1)).is_none() && fresh.contains(id(1)));
        assert_eq!(fresh.unrelayed_since(id(1)), None);
        fresh.note(Time(0).after_ms(RECENT_MS), &proof(2));
        assert!(!fresh.contains(id(0)) && fresh.contains(id(1)) && fresh.contains(id(2)));
        (3..2 * RECENT_MAX).for_each(|number| fresh.note(Time(0).after_ms(RECENT_MS), &proof(number)));
        assert!(fresh.proofs.len() == RECENT_MAX && fresh.by_time.len() == RECENT_MAX && !fresh.contains(id(1)));
    }
}
