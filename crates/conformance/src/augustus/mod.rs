//! The order of requests in Augustus' shards under simulation: `augustus::multicast` above `store::Store`, with an application that remembers what
//! was delivered.
//!
//! Up to `f` replicas of each shard lie ([`ReplicaStrategy`]) and any number of clients cheat ([`ClientStrategy`]), each in named ways. `checker.rs`
//! says what all of it is held to.

mod checker;
mod client;
mod liar;
mod statements;
pub mod whole;

use std::sync::Arc;

use ::augustus::multicast::history::History;
use ::augustus::multicast::{Message, Node, Options, Unsigned, rebuild};
use machine::Time;
use random::Random;
use simulator::dictionary::{number, set};
use simulator::{Clients, EVERYTHING, EngineSetting, FaultClass, ScenarioKind, System, scenario};
use store::{Memory, Store};
use types::{ClientId, Cluster, ReplicaId};

pub use client::ClientStrategy;
pub use liar::ReplicaStrategy;

use checker::OrderChecker;
use client::OrderClient;
use liar::OrderLiar;

/// A scenario of Augustus' order.
pub type Scenario = simulator::Scenario<Order>;
/// What a run found.
pub type Report = simulator::Report<()>;

type Replica = Node<History, Memory>;

/// Augustus' order, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Order;

/// What is decided of it before the first event.
#[derive(Clone, Copy, Debug)]
pub struct OrderSetting {
    options: Options,
}

impl OrderSetting {
    fn draw(seed: u64) -> Self {
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        Self {
            options: Options {
                checkpoint_interval: knob("checkpoints").pick(&[1, 2, 4, 16, 128]),
                timeout_ms: knob("leader timeout").pick(&[300, 500, 800]),
                pipeline: knob("pipeline").pick(&[1, 2, 8]),
                journal_bytes_max: knob("journal").pick(&[1, 8 << 10, 16 << 20]),
            },
        }
    }
}

impl EngineSetting for OrderSetting {
    fn describe(&self) -> Vec<String> {
        let Options { checkpoint_interval, timeout_ms, pipeline, journal_bytes_max } = self.options;
        vec![
            format!("checkpoint-interval={checkpoint_interval}"),
            format!("leader-timeout-ms={timeout_ms}"),
            format!("pipeline={pipeline}"),
            format!("journal-bytes={journal_bytes_max}"),
        ]
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let options = &mut self.options;
        Some(match key {
            "checkpoint-interval" => set(&mut options.checkpoint_interval, number(value, 1, 512)),
            "leader-timeout-ms" => set(&mut options.timeout_ms, number(value, 1, 60_000)),
            "pipeline" => set(&mut options.pipeline, number(value, 1, 64)),
            "journal-bytes" => set(&mut options.journal_bytes_max, number(value, 1, 1 << 30)),
            _ => return None,
        })
    }
}

impl System for Order {
    type Message = Message;
    type Unsigned = Unsigned;
    type Replica = Replica;
    type Client = OrderClient;
    type Liar = OrderLiar;
    type NetworkAdversary = ();
    type Checker = OrderChecker;
    type Setting = OrderSetting;
    type Options = Options;
    type ReplicaStrategy = ReplicaStrategy;
    type ClientStrategy = ClientStrategy;
    type Counts = ();

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("order-calm", 3_000, &[], "nothing goes wrong"),
        scenario(
            "order-faults",
            10_000,
            &[FaultClass::Network, FaultClass::Clocks],
            "messages are lost, late and doubled, links are cut, clocks jump",
        ),
        scenario(
            "order-crashes",
            10_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Clocks],
            "processes die in the middle of what they do, disks forget what was not synced, and some flip bits",
        ),
        scenario(
            "order-upgrade",
            7_000,
            &[FaultClass::Upgrades, FaultClass::Clocks],
            "replicas are stopped in good order, one after the other",
        ),
        scenario(
            "order-rebuild",
            10_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::DiskLoss],
            "replicas lose their disks and come back, beside crashes and a bad network",
        ),
        scenario("order-liars", 8_000, &[FaultClass::ByzantineReplicas], "f replicas of each shard lie, each in up to three ways"),
        scenario("order-clients", 6_000, &[FaultClass::ByzantineClients], "clients say different things to different replicas, and leave"),
        scenario("order", 10_000, EVERYTHING, "all of it at once"),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        3 * faults + 1
    }

    fn draw(_scenario: &Scenario, seed: u64) -> OrderSetting {
        OrderSetting::draw(seed)
    }

    fn draw_replica_strategies(_scenario: &Scenario, random: &mut Random) -> Vec<ReplicaStrategy> {
        ReplicaStrategy::draw(random)
    }

    fn draw_client_strategies(_scenario: &Scenario, random: &mut Random) -> Vec<ClientStrategy> {
        ClientStrategy::draw(random)
    }

    fn options(setting: &simulator::Setting<Self>, _replica: ReplicaId) -> Options {
        setting.engine.options
    }

    fn upgraded(options: Options, random: &mut Random) -> Options {
        Options {
            timeout_ms: random.pick(&[300, 500]),
            pipeline: random.pick(&[1, 8]),
            journal_bytes_max: random.pick(&[1, 16 << 20]),
            ..options
        }
    }

    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &Options,
        (medium, store): (&Memory, store::Options),
        _now: Time,
    ) -> Result<Replica, String> {
        let store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        Node::open(cluster.clone(), replica, *options, History::new(cluster.id()), store).map_err(|error| error.to_string())
    }

    fn close(mut replica: Replica) -> Result<(), String> {
        replica.close().map_err(|error| error.to_string())
    }

    fn liar(cluster: &Arc<Cluster>, replica: ReplicaId, strategies: Vec<ReplicaStrategy>, random: Random, clients: &Clients) -> OrderLiar {
        OrderLiar::new(cluster.clone(), replica, strategies, random, clients.honest.clone())
    }

    fn client(
        cluster: &Arc<Cluster>,
        id: ClientId,
        _setting: &simulator::Setting<Self>,
        cheat: Option<(Vec<ClientStrategy>, Random)>,
        _others: &Clients,
    ) -> OrderClient {
        OrderClient::new(cluster.clone(), id, cheat)
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(cluster: &Arc<Cluster>, clients: &Clients) -> OrderChecker {
        OrderChecker::new(cluster, clients.honest.iter().copied().chain([clients.auditor]).collect())
    }

    fn is_pending(replica: &Replica) -> bool {
        replica.is_pending()
    }

    fn undecided(replica: &Replica) -> Vec<String> {
        replica.replica().undelivered()
    }

    fn explain_undecided(replica: &Replica) -> Vec<String> {
        replica.replica().unsettled()
    }

    /// Whoever missed something has it.
    fn differences(replicas: &[(ReplicaId, &Replica)]) -> Vec<String> {
        let Some(((first, one), others)) = replicas.split_first() else { return Vec::new() };
        let history = |node: &Replica| node.replica().application().delivered().to_vec();
        let differing = others.iter().filter(|(_, other)| history(other) != history(one));
        let lengths =
            differing.map(|(id, other)| format!("{first} has delivered {}, and {id} {}", history(one).len(), history(other).len()));
        lengths.collect()
    }

    fn mark_lost((medium, store): (&Memory, store::Options)) -> Result<(), String> {
        let mut store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        rebuild::mark(&mut store).map_err(|error| error.to_string())
    }

    fn is_rebuilding(replica: &Replica) -> bool {
        replica.replica().is_rebuilding()
    }

    fn describe(message: &Message) -> String {
        client::describe(message)
    }
}
