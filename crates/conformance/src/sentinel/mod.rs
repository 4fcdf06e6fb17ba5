//! The order among Sentinel's servers under simulation: `sentinel::order` above `store::Store`, with an application that remembers what was
//! delivered.
//!
//! Servers crash, lose what was not synced, lose their disks or have them damaged, and are cut off; none lies. `checker.rs` says what all of it is
//! held to.

mod checker;
mod client;
pub mod detection;
pub mod ensemble;
mod message;
mod server;
pub mod transactions;

use std::sync::Arc;

use ::sentinel::order::Options;
use machine::Time;
use random::{Named, Random};
use simulator::dictionary::{number, set};
use simulator::{Clients, EngineSetting, FaultClass, Liar, ScenarioKind, System, scenario};
use store::{Memory, Store};
use types::{ClientId, Cluster, ReplicaId};

use checker::ZabChecker;
use client::ZabClient;
pub use message::{Message, Nothing};
use server::Server;

/// A scenario of Sentinel's order.
pub type Scenario = simulator::Scenario<Zab>;
/// What a run found.
pub type Report = simulator::Report<()>;

/// Sentinel's order, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Zab;

/// Nobody lies: there is no way to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoStrategy {}

impl Named for NoStrategy {
    const ALL: &'static [Self] = &[];

    fn name(self) -> String {
        match self {}
    }
}

/// Nobody lies.
#[derive(Clone, Copy, Debug)]
pub struct NoLiar;

impl<S: System> Liar<S> for NoLiar {}

/// What a server's process is started with.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    order: Options,
    journal_bytes_max: u64,
}

/// What is decided of it before the first event.
#[derive(Clone, Copy, Debug)]
pub struct ZabSetting {
    options: ServerOptions,
}

impl ZabSetting {
    fn draw(seed: u64) -> Self {
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        let order = Options {
            tick_ms: knob("tick").pick(&[20, 50, 100]),
            timeout_ms: knob("leader timeout").pick(&[300, 600, 1_000]),
            settle_ms: knob("settle").pick(&[0, 20, 60]),
            proposals_max: knob("proposals").pick(&[1, 4, 8_192]),
            kept_max: knob("kept").pick(&[0, 4, 64, 16_384]),
            ..Options::default()
        };
        Self { options: ServerOptions { order, journal_bytes_max: knob("journal").pick(&[1 << 10, 16 << 10, 16 << 20]) } }
    }
}

impl EngineSetting for ZabSetting {
    fn describe(&self) -> Vec<String> {
        let ServerOptions { order, journal_bytes_max } = self.options;
        vec![
            format!("tick-ms={}", order.tick_ms),
            format!("leader-timeout-ms={}", order.timeout_ms),
            format!("settle-ms={}", order.settle_ms),
            format!("proposals={}", order.proposals_max),
            format!("kept={}", order.kept_max),
            format!("journal-bytes={journal_bytes_max}"),
        ]
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let ServerOptions { order, journal_bytes_max } = &mut self.options;
        Some(match key {
            "tick-ms" => set(&mut order.tick_ms, number(value, 1, 10_000)),
            "leader-timeout-ms" => set(&mut order.timeout_ms, number(value, 1, 60_000)),
            "settle-ms" => set(&mut order.settle_ms, number(value, 0, 10_000)),
            "proposals" => set(&mut order.proposals_max, number(value, 1, 1 << 16)),
            "kept" => set(&mut order.kept_max, number(value, 0, 1 << 20)),
            "journal-bytes" => set(journal_bytes_max, number(value, 1, 1 << 30)),
            _ => return None,
        })
    }
}

impl System for Zab {
    type Message = Message;
    type Unsigned = Nothing<Message>;
    type Replica = Server;
    type Client = ZabClient;
    type Liar = NoLiar;
    type NetworkAdversary = ();
    type Checker = ZabChecker;
    type Setting = ZabSetting;
    type Options = ServerOptions;
    type ReplicaStrategy = NoStrategy;
    type ClientStrategy = NoStrategy;
    type Counts = ();

    /// What a server has acknowledged it must remember: a bit that flips in the last batch of its log, which nobody can tell from a torn write, is
    /// beyond what is promised.
    const MAY_FORGET: bool = false;

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("zab-calm", 3_000, &[], "nothing goes wrong"),
        scenario(
            "zab-faults",
            10_000,
            &[FaultClass::Network, FaultClass::Clocks],
            "messages are lost, late and doubled, links are cut, clocks jump",
        ),
        scenario(
            "zab-crashes",
            10_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Clocks],
            "processes die in the middle of what they do, disks forget what was not synced, and some flip bits",
        ),
        scenario(
            "zab-upgrade",
            7_000,
            &[FaultClass::Upgrades, FaultClass::Clocks],
            "servers are stopped in good order, one after the other",
        ),
        scenario(
            "zab-rebuild",
            10_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::DiskLoss],
            "servers lose their disks and come back, beside crashes and a bad network",
        ),
        scenario(
            "zab",
            10_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::Distance],
            "crashes, a bad network and servers far apart",
        ),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        2 * faults + 1
    }

    fn draw(_scenario: &Scenario, seed: u64) -> ZabSetting {
        ZabSetting::draw(seed)
    }

    fn adjust(_scenario: &Scenario, setting: &mut simulator::Setting<Self>) {
        setting.shards = 1;
    }

    fn draw_replica_strategies(_scenario: &Scenario, _random: &mut Random) -> Vec<NoStrategy> {
        Vec::new()
    }

    fn draw_client_strategies(_scenario: &Scenario, _random: &mut Random) -> Vec<NoStrategy> {
        Vec::new()
    }

    fn options(setting: &simulator::Setting<Self>, _replica: ReplicaId) -> ServerOptions {
        setting.engine.options
    }

    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &ServerOptions,
        (medium, store): (&Memory, store::Options),
        now: Time,
    ) -> Result<Server, String> {
        let store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        Server::open(cluster, replica, options.order, options.journal_bytes_max, store, now)
    }

    fn close(mut replica: Server) -> Result<(), String> {
        replica.close()
    }

    fn liar(_: &Arc<Cluster>, _: ReplicaId, _: Vec<NoStrategy>, _: Random, _: &Clients) -> NoLiar {
        NoLiar
    }

    fn client(
        cluster: &Arc<Cluster>,
        _id: ClientId,
        _setting: &simulator::Setting<Self>,
        _cheat: Option<(Vec<NoStrategy>, Random)>,
        _others: &Clients,
    ) -> ZabClient {
        ZabClient::new(cluster.clone())
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(_: &Arc<Cluster>, _: &Clients) -> ZabChecker {
        ZabChecker::default()
    }

    fn is_pending(replica: &Server) -> bool {
        replica.is_pending()
    }

    fn undecided(replica: &Server) -> Vec<String> {
        replica.unready()
    }

    /// Whoever missed something has it.
    fn differences(replicas: &[(ReplicaId, &Server)]) -> Vec<String> {
        let Some(((first, one), others)) = replicas.split_first() else { return Vec::new() };
        let differing = others.iter().filter(|(_, other)| other.history() != one.history());
        differing.map(|(id, other)| format!("{first} has delivered {}, and {id} {}", one.history().len(), other.history().len())).collect()
    }

    fn mark_lost(_disk: (&Memory, store::Options)) -> Result<(), String> {
        // An empty disk says so by itself.
        Ok(())
    }

    fn is_rebuilding(replica: &Server) -> bool {
        !replica.is_member()
    }

    fn describe(message: &Message) -> String {
        format!("{message:?}")
    }
}
