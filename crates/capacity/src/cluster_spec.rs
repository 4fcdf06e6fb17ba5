//! What is predicted: how large the cluster is, on which machines, and what it is given to do.

/// Who shares a machine with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    /// Everybody on one machine, clients too.
    OneHost {
        /// How many cores it has.
        cores: usize,
    },
    /// Replicas of a shard on machines of their own, and each client on one of its own.
    Apart {
        /// How many cores each machine has.
        cores: usize,
        /// Of how many shards a machine runs a replica.
        shards_a_host: usize,
    },
}

/// A cluster, its machines, and its load. Transactions are as those of `bezant bench rw-u`: so many keys are read together,
/// and so many others written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// How many shards.
    pub shards: usize,
    /// How many replicas of each may lie.
    pub faults: usize,
    /// Who shares a machine with whom.
    pub hosting: Hosting,
    /// One way between two machines, in microseconds. Within one there is no delay but what reading and writing cost.
    pub network_us: u64,
    /// How many client processes.
    pub clients: usize,
    /// How many transactions each of them has in flight: when one ends, the next begins.
    pub closed_loop_clients: usize,
    /// Keys read by a transaction.
    pub reads: usize,
    /// Keys written by a transaction.
    pub writes: usize,
    /// How many keys there are, all alike.
    pub keys: u64,
    /// From how many shards the keys of one transaction come, at most.
    pub spread: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The most statements under one signature.
    pub batch_max: usize,
    /// Whether a transaction may commit in as few round trips as the engine ever takes.
    pub fast_path: bool,
    /// Whether anything is signed.
    pub signatures: bool,
    /// Virtual time before anything is counted, in milliseconds.
    pub warmup_ms: u64,
    /// Virtual time in which everything is counted, in milliseconds.
    pub measured_ms: u64,
    /// The most steps of machines: warm-up ends after a third of them at the latest, and the run when they are used up.
    /// This bounds what a prediction for a large cluster takes.
    pub steps_max: u64,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            shards: 1,
            faults: 1,
            hosting: Hosting::Apart { cores: 8, shards_a_host: 1 },
            network_us: 75,
            clients: 1,
            closed_loop_clients: 512,
            reads: 2,
            writes: 2,
            keys: 1_000_000,
            spread: usize::MAX,
            value_bytes: 100,
            batch_max: machine::turn::BATCH_MAX,
            fast_path: true,
            signatures: true,
            warmup_ms: 300,
            measured_ms: 600,
            steps_max: 8_000_000,
        }
    }
}

impl ClusterSpec {
    /// How many machines run replicas, of which there are `a_shard` in each shard, and how many cores each of all machines has.
    pub(crate) fn machines(&self, a_shard: usize) -> (usize, usize) {
        match self.hosting {
            Hosting::OneHost { cores } => (1, cores),
            Hosting::Apart { cores, shards_a_host } => (self.shards.div_ceil(shards_a_host) * a_shard, cores),
        }
    }

    /// Where a replica runs, by its place among all.
    pub(crate) fn host_of_replica(&self, replica: usize, a_shard: usize) -> usize {
        match self.hosting {
            Hosting::OneHost { .. } => 0,
            Hosting::Apart { shards_a_host, .. } => replica / a_shard / shards_a_host * a_shard + replica % a_shard,
        }
    }

    /// Where a client runs.
    pub(crate) fn host_of_client(&self, client: usize, a_shard: usize) -> usize {
        match self.hosting {
            Hosting::OneHost { .. } => 0,
            Hosting::Apart { .. } => self.machines(a_shard).0 + client,
        }
    }
}
