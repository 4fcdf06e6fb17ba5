//! A second shell around the machines of any engine, in which everything that chance decides comes from a seed.
//!
//! The first shell is `runtime`: sockets, threads, a disk, the clock on the wall. This one has none of them. Time is a
//! number that jumps from one event to the next; the network loses, doubles, delays and cuts; disks forget what was not
//! synced, tear what was being written, and flip bits; clocks are off and jump; processes die in the middle of a turn. Up to `f`
//! replicas of each shard and any number of clients lie. The machines that run here are the ones that run for real, with every
//! message through the codec and every signature made and checked.
//!
//! This crate is the kernel and knows no engine. An engine is one implementation of [`System`]: its machines, its lies, its
//! checkers, its scenarios. `conformance` holds those of the real engines; `tests` here run the toy. `capacity` runs what an engine brings
//! in a world of its own, which has prices and no faults.
//!
//! ```text
//!   kernel                                   engine
//!   world: time, queue, phases               machines of replicas and clients
//!   network, disks, clocks, crashes          lies, delay attacks
//!   operators who change the cluster
//!   upgrades, fault budget                   checkers, what is undecided
//!   settings in words, shrinking, traces     scenarios, its own settings and counts
//! ```
//!
//! A run has four phases:
//!
//! ```text
//!   faults                             heal               quiet            power cut, audit
//!   ├──────────────────────────────────┼──────────────────┼────────────────┼──────────▶
//!   faults, lies, cheating clients     lies only;         nothing may be   all replicas at once;
//!   safety is watched                  all must end       left undecided   everything is still there
//! ```
//!
//! A run that fails is the same when it is run again with its seed, event for event ([`run`]), and can be made smaller ([`shrink`]).

mod budget;
mod changes;
mod client;
mod clock;
pub mod dictionary;
mod disk;
mod faults;
mod network;
mod queue;
mod replica;
mod report;
mod rights;
mod scenario;
mod self_test;
mod setting;
mod shrink;
mod system;
mod trace;
mod upgrade;
mod world;

pub use clock::EPOCH_NS;
pub use faults::FaultKind;
pub use network::LinkProfile;
pub use queue::Queue;
pub use report::{Counts, Report, Violation, Violations};
pub use scenario::{EVERYTHING, FaultClass, Scenario, ScenarioKind, scenario};
pub use self_test::BrokenRule;
pub use setting::{Clocks, Placing, ReplicaFault, Rights, Setting, Verifiers};
pub use shrink::{Smallest, shrink, shrink_with, subsets};
pub use system::{
    Checker, Client, Clients, EngineCounts, EngineSetting, Goal, Heard, Liar, Lies, NetworkAdversary, Next, Outcomes, Scene, System,
};
pub use trace::{Trace, Tracing};
pub use world::cluster;

/// Runs `scenario` with `seed` to its end, or to the first broken promise.
#[must_use]
pub fn run<S: System>(scenario: &Scenario<S>, seed: u64, tracing: Tracing) -> Report<S::Counts> {
    world::World::new(scenario, seed, tracing, None).run()
}

/// The same with one checker listened to and no other, for tests that want to see what that one notices by itself.
#[must_use]
pub fn run_watched_by<S: System>(checker: &'static str, scenario: &Scenario<S>, seed: u64, tracing: Tracing) -> Report<S::Counts> {
    world::World::new(scenario, seed, tracing, None).listening_only_to(checker).run()
}

/// The same with a rule of the world broken, for tests that want to see the checkers notice.
#[must_use]
pub fn run_broken<S: System>(
    scenario: &Scenario<S>,
    seed: u64,
    tracing: Tracing,
    broken: BrokenRule<S::ReplicaStrategy>,
) -> Report<S::Counts> {
    world::World::new(scenario, seed, tracing, Some(broken)).run()
}
