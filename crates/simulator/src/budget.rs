//! How many replicas are at fault. A protocol promises nothing when more than `f` replicas of a shard are, so that a world with
//! one too many would prove nothing. Whoever is to be at fault is counted here first, and refused when there is no room.

use std::collections::BTreeSet;

use types::{ReplicaId, ShardId};

/// The replicas that are at fault, or may come to be.
#[derive(Debug)]
pub(crate) struct Budget {
    faults: usize,
    blamed: BTreeSet<ReplicaId>,
}

impl Budget {
    /// Nobody yet, and at most `faults` of each shard.
    pub fn new(faults: usize) -> Self {
        Self { faults, blamed: BTreeSet::new() }
    }

    /// Whether `replica` may be at fault. Once it may, it always may.
    #[must_use]
    pub fn blame(&mut self, replica: ReplicaId) -> bool {
        let room = self.count(replica.shard) < self.faults;
        if room {
            self.blamed.insert(replica);
        }
        self.blamed.contains(&replica)
    }

    /// How many of a shard are at fault.
    pub fn count(&self, shard: ShardId) -> usize {
        self.blamed.iter().filter(|replica| replica.shard == shard).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_than_a_shard_survives_is_refused() {
        let replica = |shard, index| ReplicaId { shard: ShardId(shard), index };
        let mut budget = Budget::new(2);
        assert!(budget.blame(replica(0, 3)) && budget.blame(replica(0, 5)));
        assert!(budget.blame(replica(0, 3)), "it is at fault already");
        assert!(!budget.blame(replica(0, 0)));
        assert!(budget.blame(replica(1, 0)), "each shard has its own");
        assert_eq!((budget.count(ShardId(0)), budget.count(ShardId(1))), (2, 1));
    }
}
