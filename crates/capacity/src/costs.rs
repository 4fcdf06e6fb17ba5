//! Prices.

use std::collections::BTreeMap;

use crate::engine::{Engine, Step};

/// What things cost, in nanoseconds of one core, but for `sync_ns` and `slice_ns`. `bezant-lab predict --measure` measures
/// them, but for those that say that they are set by hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Waking a thread.
    pub wake_ns: f64,
    /// For how long a thread keeps a core that others want: not a price, but a habit of the system, set by hand. Linux gives 0.7 ms
    /// times one and log2 of the cores (of eight at most).
    pub slice_ns: f64,
    /// One turn of a loop, beside its steps: set by hand.
    pub turn_ns: f64,
    /// One signature.
    pub sign_ns: f64,
    /// One statement more under a signature: its leaf, and its part of the tree.
    pub leaf_ns: f64,
    /// Checking new roots together, however many,
    pub check_batch_ns: f64,
    /// and each of them.
    pub check_root_ns: f64,
    /// Reading and checking one claim under a root that is known.
    pub claim_ns: f64,
    /// Encoding one message.
    pub encode_ns: f64,
    /// Decoding one message.
    pub decode_ns: f64,
    /// One write to a connection: the system call, and the system's part in delivering it.
    pub write_ns: f64,
    /// One read from a connection.
    pub read_ns: f64,
    /// One byte, at each end, encrypted and copied: set by hand.
    pub byte_ns: f64,
    /// What a sync takes of a core,
    pub sync_cpu_ns: f64,
    /// and for how long it waits for the disk beside.
    pub sync_ns: f64,
    /// What an application's loop client does between two answers: set by hand.
    pub loop_client_ns: f64,
    /// One step of each kind; a kind that is not here costs nothing.
    pub steps: BTreeMap<Step, f64>,
}

impl Costs {
    /// About what `bezant-lab predict --measure` measured on the two-core machine of the page on capacity, before a fit to real runs:
    /// what comes of it is too good.
    #[must_use]
    pub fn rough<S: Engine>() -> Self {
        Self {
            wake_ns: 3_200.0,
            slice_ns: 1_400_000.0,
            turn_ns: 2_000.0,
            sign_ns: 13_000.0,
            leaf_ns: 250.0,
            check_batch_ns: 20_000.0,
            check_root_ns: 9_500.0,
            claim_ns: 340.0,
            encode_ns: 5.0,
            decode_ns: 340.0,
            write_ns: 3_200.0,
            read_ns: 3_000.0,
            byte_ns: 0.8,
            sync_cpu_ns: 60_000.0,
            sync_ns: 60_000.0,
            loop_client_ns: 2_000.0,
            steps: S::STEPS.iter().copied().collect(),
        }
    }
}
