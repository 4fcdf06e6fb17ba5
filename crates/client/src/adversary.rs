//! Clients that cheat, for trying what they cost the honest ones of a cluster of your own (`bezant-lab bench
//! --byzantine-clients`).
//!
//! Such a client holds its own key, and what it can do is what any holder of a key can do: replicas take its lies as
//! ordinary input. What it leaves unfinished stays so until an honest client or a replica finishes it, and its own
//! application is told [`OutcomeUnknown`](crate::Error::OutcomeUnknown). Never let an application use one.

use std::sync::Arc;

use ::adversary::{AttackConfig, ByzantineClient, ByzantineEvent, Random};
pub use ::adversary::{ClientStrategy, MisbehaviorCounts};
use basil::coordinator::CoordinatorCounts;
use basil::{Coordinator, Event, Failure};
use machine::{InputOf, Machine as _, OutboxOf, Time};
use types::{ClientId, Cluster};

use crate::mind::{Kind, Mind};

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

impl Cheating {
    /// A client that cheats as `me`, around an honest one.
    pub(crate) fn around(self, coordinator: Coordinator, cluster: &Arc<Cluster>, me: ClientId) -> Kind {
        let Self { strategy, share, seed } = self;
        let victims = cluster.clients().iter().map(|(client, _)| *client).filter(|client| *client != me).collect();
        // The part of a thousand: a cast of a float from 0 to 1000 loses nothing that matters.
        let per_mille = (share.clamp(0.0, 1.0) * 1_000.0).round() as u64;
        let config = AttackConfig { strategies: vec![strategy], per_mille, victims };
        Kind::Cheat(Cheat(Box::new(ByzantineClient::new(cluster.clone(), coordinator, config, Random::stream(seed, "cheat")))))
    }
}

/// The machine of a client that cheats.
#[derive(Debug)]
pub(crate) struct Cheat(Box<ByzantineClient>);

impl Cheat {
    pub fn step(&mut self, now: Time, input: InputOf<Mind>, outbox: &mut OutboxOf<Mind>) {
        let events = outbox.lend(|outbox| self.0.step(now, input, outbox));
        outbox.events.extend(events.into_iter().map(|event| match event {
            ByzantineEvent::Honest(event) => event,
            // What a client knows of what it left: nothing.
            ByzantineEvent::Abandoned { operation, .. } => Event::Ended { operation, result: Err(Failure::TimedOut) },
        }));
    }

    pub fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }

    pub fn counts(&self) -> (CoordinatorCounts, MisbehaviorCounts) {
        (self.0.coordinator().counts(), self.0.counts())
    }
}
