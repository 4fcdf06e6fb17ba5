//! How many replicas must agree.
//!
//! Of `n = 3f+1` replicas `f` may lie. Any two sets of `2f+1` have `f+1` in common, so an honest one; any `f+1` have an honest one;
//! and all honest ones together are `2f+1`, so nobody waits for a liar.

use types::Cluster;

/// The sizes that follow from `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    faults: usize,
}

impl Quorum {
    /// The quorums of a cluster's shards; nothing when those have not `3f+1` replicas.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Option<Self> {
        (cluster.replicas_per_shard() == 3 * cluster.faults() + 1).then(|| Self { faults: cluster.faults() })
    }

    /// `3f+1`: all replicas.
    #[must_use]
    pub fn all(self) -> usize {
        3 * self.faults + 1
    }

    /// `2f+1`: any two such sets share an honest replica.
    #[must_use]
    pub fn strong(self) -> usize {
        2 * self.faults + 1
    }

    /// `f+1`: one of them is honest.
    #[must_use]
    pub fn weak(self) -> usize {
        self.faults + 1
    }

    /// Who leads `view`.
    #[must_use]
    pub fn leader(self, view: u64) -> u16 {
        u16::try_from(view % self.all() as u64).expect("a shard has few replicas")
    }
}
