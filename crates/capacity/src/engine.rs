//! What an engine brings to be predicted, beside what it brings to be simulated.

use std::sync::Arc;

use crypto::Verified;
use engine::{Request, Session};
use simulator::System;
use types::Cluster;

use crate::ClusterSpec;

/// A kind of step of a machine, by its name in files of prices. What is rare is of kind [`OTHER`], which has no price.
pub type Step = &'static str;

/// Anything but what an engine names: timers, recovery, refusals.
pub const OTHER: Step = "other";

/// An engine whose clusters can be predicted: the replicas that it brings to the simulator, and the session that its clients really
/// have.
pub trait Engine: System<Message: PartialEq> {
    /// A client's side.
    type Session: Session<Received = Verified<Self::Message>, Message = Self::Message>;

    /// Every kind of step, each with about what it takes, in nanoseconds. `ask_read` and `ask_commit` are the session's, when
    /// it is asked; the others are named by [`Engine::step`].
    const STEPS: &'static [(Step, f64)];

    /// The kind of step that it is to hear this.
    fn step(message: &Self::Message) -> Step;

    /// What one replica's process is started with. `seed` is its own.
    fn process_options(spec: &ClusterSpec, seed: u64) -> Self::Options;

    /// A client's session.
    fn session(cluster: &Arc<Cluster>, spec: &ClusterSpec) -> Self::Session;
}

/// The kind of step that it is to be asked this.
pub(crate) fn step_of(request: &Request) -> Step {
    match request {
        Request::Read { .. } => "ask_read",
        Request::Commit(_) => "ask_commit",
        Request::Scan { .. } | Request::Submit { .. } | Request::Private(_) => OTHER,
    }
}
