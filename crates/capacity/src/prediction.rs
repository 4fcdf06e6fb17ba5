//! What comes of it.

/// A loop or a machine that works for so much of the time is what limits throughput.
const FULL: f64 = 0.9;

/// What a cluster would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Transactions committed a second.
    pub committed_per_second: f64,
    /// The mean latency of a transaction, retries included, in milliseconds.
    pub latency_ms: f64,
    /// Its median.
    pub p50_ms: f64,
    /// What 99 of 100 stay below.
    pub p99_ms: f64,
    /// CPU time of everybody for one committed transaction, in microseconds,
    pub cpu_us: f64,
    /// and that of the replicas.
    pub replicas_cpu_us: f64,
    /// Committed of all attempts that came to an end.
    pub commit_rate: f64,
    /// Statements under one signature, on average.
    pub statements_a_root: f64,
    /// How much of the time the cores of the replicas' machines work, on average.
    pub host_busy: f64,
    /// How much of the time the replicas' loops work or wait for the disk, on average.
    pub loop_busy: f64,
    /// How much of the time the busiest client's loop works.
    pub client_busy: f64,
    /// Virtual time in which this was counted, in milliseconds: less than was asked for when the steps were used up.
    pub measured_ms: f64,
    /// Every attempt of the whole run, counted or not.
    pub attempts: Attempts,
}

/// What became of attempts. Nothing is lost: those begun are those in the other four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// All that were begun.
    pub begun: u64,
    /// Those that committed.
    pub committed: u64,
    /// Those that met another transaction.
    pub aborted: u64,
    /// Those that could not be done.
    pub failed: u64,
    /// Those still in flight when the run ended: none, unless the steps were used up.
    pub under_way: u64,
}

/// What keeps a cluster from doing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// The cores of the replicas' machines.
    Cores,
    /// The replicas' loops, one thread each, or the disk that they wait for.
    Loops,
    /// A client's loop: more client processes would bring more.
    ClientLoop,
    /// Nothing: more transactions at once would bring more.
    Load,
}

impl Bottleneck {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Loops => "replicas' loops",
            Self::ClientLoop => "client's loop",
            Self::Load => "load",
        }
    }
}

impl Prediction {
    /// What keeps it from being more.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        match self {
            _ if self.host_busy >= FULL => Bottleneck::Cores,
            _ if self.loop_busy >= FULL => Bottleneck::Loops,
            _ if self.client_busy >= FULL => Bottleneck::ClientLoop,
            _ => Bottleneck::Load,
        }
    }
}
