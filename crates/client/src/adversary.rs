//! Clients that cheat, for trying what they cost the honest ones of a cluster of your own (`bezant-lab bench
//! --byzantine-clients`).
//!
//! Such a client holds its own key, and what it can do is what any holder of a key can do: replicas take its lies as
//! ordinary input. What it leaves unfinished stays so until an honest client or a replica finishes it, and its own
//! application is told [`OutcomeUnknown`](crate::Error::OutcomeUnknown). Never let an application use one.

pub use ::adversary::{ClientStrategy, MisbehaviorCounts};

/// How a client cheats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cheating {
    /// In which way.
    pub strategy: ClientStrategy,
    /// With which part of its transactions, from 0 to 1.
    pub share: f64,
    /// What its choices are drawn from.
    pub seed: u64,
}
