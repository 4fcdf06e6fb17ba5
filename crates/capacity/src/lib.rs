//! What a cluster would do on machines that are not here.
//!
//! The real machines of an engine ([`Engine`]: the replicas that it brings to the simulator, and the sessions of its clients) are
//! stepped in virtual time: real transactions, real votes, real batches, messages as long as real ones. What they would cost is
//! charged at prices that were measured on a real machine ([`Costs`]), to hosts with so many cores. So queues, batches and
//! conflicts come out of the protocol itself, and only prices are put in.
//!
//! ```text
//!   loop client ─► client's loop ─► write ─► (network) ─► read, check ─► replica's loop ─► sync ─► write ─► …
//!            one thread      any core               any core       one thread       no core
//! ```
//!
//! As in the real shell, a loop takes all that has arrived, a write all that is queued, and a read all that has come, so
//! each batch is as large as the load makes it. A thread keeps its core until it has nothing to do or its slice is over.
//! Nothing is signed here: a batch signature has its real length and a root of its own, and
//! each receiver pays for the roots that it does not know yet, all of one read together.
//!
//! **What is left out**: faults; checkpoints and reads from disk (nothing is loaded, every key is read as empty until it is
//! written); memory, caches and what they miss on other machines; the width of the network, which has a delay only. Prices
//! are the same on all machines.

mod closed_loop_clients;
mod cluster_spec;
mod costs;
mod encoded_message;
mod engine;
mod host;
mod prediction;
mod process;
mod world;

pub use crate::engine::{Engine, OTHER, Step};
pub use cluster_spec::{ClusterSpec, Hosting};
pub use costs::Costs;
pub use prediction::{Attempts, Bottleneck, Prediction};

use world::World;

/// What a cluster of this shape would do at these prices. The same seed gives the same prediction.
///
/// # Panics
/// When a number of the shape is 0 that counts something there must be, or when a cluster may not be so large.
#[must_use]
pub fn predict<S: Engine>(spec: &ClusterSpec, costs: &Costs, seed: u64) -> Prediction {
    World::<S>::new(spec, costs, seed, None).run().0
}

/// What steps of the machines take on this machine, on average, by `watch`, which says how late it is in nanoseconds: the same
/// run as [`predict`] makes, each step timed.
pub fn time_steps<S: Engine>(spec: &ClusterSpec, costs: &Costs, seed: u64, watch: &mut dyn FnMut() -> u64) -> Vec<(Step, f64)> {
    World::<S>::new(spec, costs, seed, Some(watch)).run().1
}
