//! With which replicas a coordinator's process is connected, as far as it is told.
//!
//! What is sent to a replica without a connection is lost, so there is nothing to wait for. It is asked last where not all are asked; a decision
//! is logged without waiting for its vote; and whoever has asked everybody waits for no answer of its. The same holds for a vote that was asked for
//! before the connection was there, or while it was another one: nobody knows what became of the question. All are asked nevertheless, and again
//! later, and what they answer counts.
//!
//! A replica does not gain by this. One that gives its connection up is not waited for; and if a transaction waited for its vote just then, it has
//! been late ([`super::slow_replicas`]), or it could have one transaction after the other wait by connecting anew each time.
//!
//! **Invariant.** Nothing here decides anything, as in `slow_replicas`: a mistake costs latency, and nothing else.

use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::{Party, ReplicaId, ShardId, TransactionId};

use super::{Coordinator, FastPathWait, Out};
use crate::message::Message;

/// Since when each replica is connected; nothing where it is not. Until anything is told, all have always been.
#[derive(Debug)]
pub(super) struct Connections {
    shards: Vec<Vec<Option<Time>>>,
}

impl Connections {
    pub fn new(shards: usize, replicas: usize) -> Self {
        Self { shards: vec![vec![Some(Time(0)); replicas]; shards] }
    }

    /// Whether what is sent to `replica` now may reach it.
    pub fn has(&self, replica: ReplicaId) -> bool {
        self.since(replica.shard, replica.index).is_some()
    }

    /// Whether what was sent to replica `index` of `shard` at `at` may be answered.
    pub fn has_had(&self, shard: ShardId, index: u16, at: Time) -> bool {
        self.since(shard, index).is_some_and(|since| since <= at) || broken(Mutant::DisconnectedWaitedFor)
    }

    /// Whether all of `shard` that were `asked`, and may answer, have `replied`.
    pub fn have_all_replied(&self, shard: ShardId, asked: Voters, replied: Voters) -> bool {
        let is_awaited = |index: &u16| asked.contains(*index) && !replied.contains(*index);
        let indexes = 0..u16::try_from(self.shards[usize::from(shard.0)].len()).unwrap_or(u16::MAX);
        !indexes.filter(is_awaited).any(|index| self.since(shard, index).is_some())
    }

    fn since(&self, shard: ShardId, index: u16) -> Option<Time> {
        *self.shards.get(usize::from(shard.0))?.get(usize::from(index))?
    }

    /// Now these are connected, and no others. Who is so newly, and who is no more and since when it was.
    fn change(&mut self, now: Time, connected: &[ReplicaId]) -> (Vec<ReplicaId>, Vec<(ReplicaId, Time)>) {
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for (shard, replicas) in (0..).map(ShardId).zip(&mut self.shards) {
            for (index, since) in (0..).zip(replicas) {
                let replica = ReplicaId { shard, index };
                match (connected.contains(&replica), *since) {
                    (true, None) => {
                        *since = Some(now);
                        found.push(replica);
                    }
                    (false, Some(was)) => {
                        *since = None;
                        lost.push((replica, was));
                    }
                    (true, Some(_)) | (false, None) => {}
                }
            }
        }
        (found, lost)
    }
}

impl Coordinator {
    /// These replicas are connected now. Whoever is so newly has not heard what it was asked before, not even what time it is.
    pub(super) fn on_connected_command(&mut self, now: Time, replicas: &[ReplicaId], out: &mut Out) {
        let (found, lost) = self.connections.change(now, replicas);
        for replica in found.into_iter().filter(|_| self.clocks.is_some()) {
            out.send(Party::Replica(replica), Message::ClockQuery { asked_at: now.0, journal: None });
        }
        if lost.is_empty() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "they are sorted before anything depends on their order")]
        let mut ids: Vec<TransactionId> = self.attempts.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.wait_no_longer(now, id, &lost, out);
        }
    }

    /// The transaction may be waiting for the votes of those whose connections are `lost`.
    fn wait_no_longer(&mut self, now: Time, id: TransactionId, lost: &[(ReplicaId, Time)], out: &mut Out) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if attempt.fast_path_wait != FastPathWait::Running || attempt.logging.is_some() {
            return;
        }
        for tally in attempt.tallies.iter().filter(|tally| tally.is_slow(self.quorums)) {
            let was_awaited = |(replica, since): &&(ReplicaId, Time)| {
                replica.shard == tally.shard() && *since <= attempt.asked_at && !tally.heard(replica.index)
            };
            lost.iter().filter(was_awaited).for_each(|(replica, _)| self.slow_replicas.late(*replica, now, attempt.waits_since));
        }
        self.evaluate(now, id, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn those(indexes: &[u16]) -> Voters {
        indexes.iter().fold(Voters::default(), |voters, index| voters.or(Voters::of(*index)))
    }

    #[test]
    fn whoever_is_not_connected_does_not_answer() {
        let mut connections = Connections::new(1, 6);
        let all = those(&[0, 1, 2, 3, 4, 5]);
        assert!(connections.has(replica(5)) && !connections.have_all_replied(ShardId(0), all, those(&[0, 1, 2, 3, 4])));
        let five: Vec<ReplicaId> = (0..5).map(replica).collect();
        assert_eq!(connections.change(Time(7), &five), (vec![], vec![(replica(5), Time(0))]));
        assert!(
            !connections.has(replica(5)) && !connections.has_had(ShardId(0), 5, Time(9)) && connections.has_had(ShardId(0), 4, Time(7))
        );
        assert!(connections.have_all_replied(ShardId(0), all, those(&[0, 1, 2, 3, 4])));
        assert!(!connections.have_all_replied(ShardId(0), all, those(&[0, 1, 2, 3])));
        // What it was asked before it came back was lost.
        assert_eq!(connections.change(Time(9), &[five, vec![replica(5)]].concat()), (vec![replica(5)], vec![]));
        assert!(connections.has(replica(5)) && !connections.has_had(ShardId(0), 5, Time(8)) && connections.has_had(ShardId(0), 5, Time(9)));
    }

    #[test]
    fn nobody_is_known_beyond_the_cluster() {
        let mut connections = Connections::new(1, 6);
        let other = ReplicaId { shard: ShardId(9), index: 9 };
        let all: Vec<ReplicaId> = (0..6).map(replica).chain([other]).collect();
        assert_eq!(connections.change(Time(1), &all), (vec![], vec![]));
        assert!(!connections.has(other) && !connections.has_had(other.shard, other.index, Time(1)));
    }
}
