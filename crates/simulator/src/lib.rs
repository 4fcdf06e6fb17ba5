//! A second shell around the same machines, in which everything that chance decides comes from a seed.
//!
//! The first shell is `runtime`: sockets, threads, a disk, the clock on the wall. This one has none of them. Time is a
//! number that jumps from one event to the next; the network loses, doubles, delays and cuts; disks forget what was not
//! synced, tear what was being written, and flip bits; clocks are off and jump; processes die in the middle of a turn. Up to `f` replicas
//! of each shard and any number of clients cheat, each in named ways ([`ReplicaStrategy`], [`ClientStrategy`]). What runs in
//! it is what runs for real: `basil::Node` above `store::Store`, `basil::Coordinator` and `basil::Buffer`, every message
//! through the codec and every signature made and checked with Ed25519.
//!
//! **The law** of the machines is kept here as in `runtime`: a turn steps through all that has arrived, makes it durable
//! with one write, seals all it says under signed roots, and only then sends.
//!
//! ```text
//!   trouble                            heal               quiet            power cut, audit
//!   ├──────────────────────────────────┼──────────────────┼────────────────┼──────────▶
//!   faults, liars, rogue clients       liars only;        nothing may be   all replicas at once;
//!   safety is watched                  all must end       left undecided   everything is still there
//! ```
//!
//! Checkers watch all of it (see `checker`). A run that fails is the same when it is run again with its seed, event for event:
//!
//! ```
//! use simulator::{Scenario, Tracing};
//!
//! let scenario = Scenario::named("calm").expect("it is one of ours").lasting_ms(200);
//! let report = simulator::run(&scenario, 1, Tracing::Off);
//! assert!(report.is_clean(), "{report}");
//! assert_eq!(simulator::run(&scenario, 1, Tracing::Off).fingerprint, report.fingerprint);
//! ```

mod adversary;
mod checker;
mod client;
mod clock;
mod disk;
mod faults;
mod foe;
#[cfg(feature = "mutants")]
pub mod mutants;
mod network;
mod replica;
mod report;
#[cfg(test)]
mod sabotage;
mod scenario;
mod setting;
mod shrink;
mod trace;
mod trouble;
mod upgrade;
mod words;
mod workload;
mod world;

pub use adversary::{ClientStrategy, ReplicaStrategy};
pub use checker::Violation;
pub use report::{Counts, Report};
pub use scenario::{Scenario, Trouble};
pub use shrink::{Smallest, shrink};
pub use trace::Tracing;

/// Runs `scenario` with `seed` to its end, or to the first broken promise.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64, tracing: Tracing) -> Report {
    world::World::new(scenario, seed, tracing).run()
}
