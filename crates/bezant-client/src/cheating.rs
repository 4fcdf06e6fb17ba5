//! Clients that cheat, for trying what they cost the honest ones of a cluster of your own.
//!
//! Such a client holds its own key, and what it can do is what any holder of a key can do: replicas take its lies as
//! ordinary input. What it leaves unfinished stays so until an honest client or a replica finishes it, and its own
//! application is told [`OutcomeUnknown`](client::Error::OutcomeUnknown). Never let an application use one.

use adversary::{AttackConfig, ByzantineClient};
pub use adversary::{ClientStrategy, MisbehaviorCounts};
use basil::Coordinator;
use client::{Client, ConnectError};
use config::Config;
use random::Random;

/// How a client cheats. On a cluster of Augustus it leaves all that it begins over several shards pending (attack a.2 of its paper's §3.4),
/// whatever its strategy is: the engine knows no other that matters.
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
    /// Why clients of this cluster's engine cannot cheat so, in words for a command line, if they cannot.
    #[must_use]
    pub fn refusal(&self, config: &Config) -> Option<&'static str> {
        if config.topology.engine.name == sentinel::PROFILE.name {
            return Some("clients of this engine are not believed to lie, and none here cheats: take another --engine");
        }
        let leaves_all = self.strategy == ClientStrategy::StallEarly && self.share >= 1.0;
        (config.topology.engine.name == augustus::PROFILE.name && !leaves_all)
            .then_some("clients of this engine cheat by leaving all their transactions: --strategy stall-early, without --faulty-share")
    }
}

/// Connects as a client that cheats.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn connect(config: Config, cheating: Cheating) -> Result<Client, ConnectError> {
    let Cheating { strategy, share, seed } = cheating;
    let cluster = config.cluster().clone();
    if config.topology.engine.name == augustus::PROFILE.name {
        let session = crate::augustus_session(&config);
        return Client::start(config, move |party| session(party).leaving(), None).await;
    }
    let victims = cluster.clients().iter().map(|(client, _)| *client).filter(|client| *client != config.client).collect();
    // The part of a thousand: a cast of a float from 0 to 1000 loses nothing that matters.
    let per_mille = (share.clamp(0.0, 1.0) * 1_000.0).round() as u64;
    let habits = AttackConfig { strategies: vec![strategy], per_mille, victims };
    let coordinator = Coordinator::for_client(cluster.clone(), crate::basil_options(&config));
    let cheater = ByzantineClient::new(cluster.clone(), coordinator, habits, Random::stream(seed, "cheat"));
    let session = basil::Session::new(cluster.id(), adversary::Driver(cheater));
    let pools = crate::basil_pools(&config);
    Client::start(config, |_| session, Some(pools)).await
}

/// What a client that cheats has done.
#[must_use]
pub fn deeds(client: &Client) -> MisbehaviorCounts {
    MisbehaviorCounts::from_statistics(&client.statistics())
}
