//! Whole clusters of Augustus under simulation: clients' sessions, and replicas with the executor above the order, as they run for real.
//!
//! Replicas lie as they do in the order's own scenarios; clients cheat as there, and with transactions that they leave. `checker.rs` says what all of it is held to.

mod cheat;
mod checker;
mod client;
mod plan;

use std::sync::Arc;

use ::augustus::limits::PENDING_MIN;
use ::augustus::multicast::{Message, Options, Unsigned, rebuild};
use ::augustus::{PROFILE, Server, Settings, Shard, Structural};
use crypto::{Signatures, Verifier};
use machine::Time;
use random::Random;
use simulator::dictionary::{number, set};
use simulator::{Clients, EVERYTHING, EngineSetting, FaultClass, ScenarioKind, System, scenario};
use store::{Memory, Store};
use types::{ClientId, Cluster, Key, ReplicaId};

use crate::application::keys;

use super::liar::OrderLiar;
use super::{Order, OrderSetting, ReplicaStrategy};

use checker::Checker;
use client::AugustusClient;

pub use cheat::CheatStrategy;

/// A scenario of whole clusters.
pub type Scenario = simulator::Scenario<Augustus>;
/// What a run found.
pub type Report = simulator::Report<()>;

type Replica = Server<Memory>;

/// How many good roots of signatures a replica remembers.
const ROOT_CACHE_MAX: usize = 1 << 10;

/// Augustus, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Augustus;

/// What is decided of it before the first event.
#[derive(Clone, Copy, Debug)]
pub struct AugustusSetting {
    order: OrderSetting,
    /// After how long sessions give up.
    request_timeout_ms: u64,
}

impl EngineSetting for AugustusSetting {
    fn describe(&self) -> Vec<String> {
        let mut words = self.order.describe();
        words.push(format!("request-timeout-ms={}", self.request_timeout_ms));
        words
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        match key {
            "request-timeout-ms" => Some(set(&mut self.request_timeout_ms, number(value, 1, 600_000))),
            _ => self.order.apply(key, value),
        }
    }
}

impl System for Augustus {
    type Message = Message;
    type Unsigned = Unsigned;
    type Replica = Replica;
    type Client = AugustusClient;
    type Liar = OrderLiar;
    type NetworkAdversary = ();
    type Checker = Checker;
    type Setting = AugustusSetting;
    type Options = Options;
    type ReplicaStrategy = ReplicaStrategy;
    type ClientStrategy = CheatStrategy;
    type Counts = ();

    const BOUNDS: &'static [&'static str] = &["log/5", "counter/", "open/2", "log/8", "account/3"];

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("augustus-calm", 1_000, &[], "nothing goes wrong"),
        scenario(
            "augustus-crashes",
            6_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Network, FaultClass::Clocks],
            "processes die, disks forget what was not synced, some flip bits; messages are lost, late and doubled",
        ),
        scenario(
            "augustus-rebuild",
            8_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::DiskLoss],
            "replicas lose their disks and come back, beside crashes and a bad network",
        ),
        scenario(
            "augustus-liars",
            2_500,
            &[FaultClass::ByzantineReplicas, FaultClass::ByzantineClients],
            "f replicas of each shard lie, each in up to three ways, and clients cheat",
        ),
        scenario("augustus", 8_000, EVERYTHING, "all of it at once"),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        Order::replicas_per_shard(faults)
    }

    fn draw(_scenario: &Scenario, seed: u64) -> AugustusSetting {
        let request_timeout_ms = Random::stream(seed, "setting request timeout").pick(&[1_000, 4_000, 60_000]);
        AugustusSetting { order: OrderSetting::draw(seed), request_timeout_ms }
    }

    fn adjust(_scenario: &Scenario, setting: &mut simulator::Setting<Self>) {
        setting.shards = setting.shards.min(PROFILE.shards_max);
    }

    fn draw_replica_strategies(_scenario: &Scenario, random: &mut Random) -> Vec<ReplicaStrategy> {
        ReplicaStrategy::draw(random)
    }

    fn draw_client_strategies(_scenario: &Scenario, random: &mut Random) -> Vec<CheatStrategy> {
        CheatStrategy::draw(random)
    }

    fn options(setting: &simulator::Setting<Self>, _replica: ReplicaId) -> Options {
        setting.engine.order.options
    }

    fn upgraded(options: Options, random: &mut Random) -> Options {
        Order::upgraded(options, random)
    }

    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &Options,
        (medium, store): (&Memory, store::Options),
        now: Time,
    ) -> Result<Replica, String> {
        let store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        let verifier = Verifier::new(cluster.clone(), Signatures::Ed25519, ROOT_CACHE_MAX).map_err(|error| error.to_string())?;
        let limited = Cluster::clone(cluster).with_pending_min(u32::try_from(PENDING_MIN).ok());
        let settings = Settings { cluster: Arc::new(limited), shard: replica.shard, structural: Structural::default() };
        let shard = Shard::new(settings, replica.index, Arc::new(verifier));
        Server::open(cluster.clone(), replica, *options, shard, store, now).map_err(|error| error.to_string())
    }

    fn close(mut replica: Replica) -> Result<(), String> {
        engine::Replica::close(&mut replica).map_err(|error| error.to_string())
    }

    fn liar(cluster: &Arc<Cluster>, replica: ReplicaId, strategies: Vec<ReplicaStrategy>, random: Random, clients: &Clients) -> OrderLiar {
        OrderLiar::new(cluster.clone(), replica, strategies, random, clients.honest.clone())
    }

    fn client(
        cluster: &Arc<Cluster>,
        id: ClientId,
        setting: &simulator::Setting<Self>,
        cheat: Option<(Vec<CheatStrategy>, Random)>,
        _others: &Clients,
    ) -> AugustusClient {
        AugustusClient::new(cluster.clone(), id, setting.engine.request_timeout_ms, cheat)
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(cluster: &Arc<Cluster>, _clients: &Clients) -> Checker {
        Checker::new(cluster)
    }

    fn is_pending(replica: &Replica) -> bool {
        replica.node().is_pending()
    }

    /// What is not delivered, and what waits for other shards: janitors have to come to the end of that.
    fn undecided(replica: &Replica) -> Vec<String> {
        let replica = replica.node().replica();
        let pending = replica.application().executor().pending();
        let pending = pending.map(|(transaction, _)| format!("transaction {}", transaction.id()));
        replica.undelivered().into_iter().chain(pending).collect()
    }

    fn explain_undecided(replica: &Replica) -> Vec<String> {
        replica.node().replica().unsettled()
    }

    /// All have delivered as much, and have come to the same state: that of the last checkpoint as a whole, and the values since.
    fn differences(replicas: &[(ReplicaId, &Replica)]) -> Vec<String> {
        let Some(((first, one), others)) = replicas.split_first() else { return Vec::new() };
        let mut found = Vec::new();
        for (other, node) in others {
            let (mine, theirs) = (one.node().replica(), node.node().replica());
            if mine.status().delivered != theirs.status().delivered {
                found.push(format!("{first} has delivered {}, and {other} {}", mine.status().delivered, theirs.status().delivered));
            } else if mine.last_checkpoint() != theirs.last_checkpoint() {
                found.push(format!("{first} and {other} differ in their states at the last checkpoint"));
            } else {
                let value = |node: &Replica, key: &Key| node.node().replica().application().executor().value(key);
                let differing = keys::fixed_keys().into_iter().filter(|key| value(one, key) != value(node, key));
                found.extend(differing.map(|key| format!("{first} and {other} differ in {key}")));
            }
        }
        found
    }

    fn mark_lost((medium, store): (&Memory, store::Options)) -> Result<(), String> {
        let mut store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        rebuild::mark(&mut store).map_err(|error| error.to_string())
    }

    fn is_rebuilding(replica: &Replica) -> bool {
        replica.node().replica().is_rebuilding()
    }

    fn describe(message: &Message) -> String {
        super::client::describe(message)
    }
}
