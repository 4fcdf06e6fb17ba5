//! Whole servers of Sentinel under simulation: the machine that real servers run (`sentinel::ensemble`), with its disk, its snapshots and its
//! connections, and clients that hold sessions, move between servers, watch and read.
//!
//! Servers crash, lose what was not synced, lose their disks, are cut off and are paused; in some scenarios their memory is damaged, by what drills
//! use. `checker.rs` says what all of it is held to, `model.rs` is the tree's past that answers are held against, and `answers.rs` what each answer
//! must be.

mod answers;
mod app;
pub(super) mod checker;
mod client;
mod damage;
mod disk;
mod expiry;
pub(super) mod link;
pub(super) mod message;
mod model;
pub(super) mod server;
mod stream;

use std::sync::Arc;

use machine::Time;
use random::Random;
use simulator::dictionary::{number, set};
use simulator::{Clients, EngineCounts, EngineSetting, FaultClass, ReplicaFault, ScenarioKind, System, scenario};
use store::Memory;
use types::{ClientId, Cluster, ReplicaId};

use super::{NoLiar, NoStrategy, ZabSetting};
use app::EnsembleClient;
use checker::EnsembleChecker;
use client::SessionMachine;
pub use damage::Corruption;
use damage::DamagePlan;
pub use message::Message;
use server::Server;

/// A scenario of whole servers.
pub type Scenario = simulator::Scenario<Ensemble>;
/// What a run found.
pub type Report = simulator::Report<EnsembleCounts>;
type Nothing = super::Nothing<Message>;

/// Whole servers of Sentinel, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Ensemble;

/// What a server's process is started with.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    order: ::sentinel::order::Options,
    /// After so many records of the log a snapshot is taken.
    snapshot_every: u64,
    kept_snapshots: usize,
    scrub_ms: u64,
    /// Whether what comes late from another server is lost, as over one connection after the other, or may come at any time.
    has_ordered_links: bool,
    damage: Option<DamagePlan>,
    /// How long sessions may be unheard of, at most, in milliseconds.
    session_ms_max: i32,
    /// How many questions of the engine's clients may wait.
    questions_max: usize,
}

impl ServerOptions {
    /// The same for clients of the engine.
    pub(super) fn for_engine(self, session_ms_max: i32, questions_max: usize) -> Self {
        Self { session_ms_max, questions_max, ..self }
    }
}

/// What is decided of it before the first event.
#[derive(Clone, Copy, Debug)]
pub struct EnsembleSetting {
    order: ZabSetting,
    snapshot_every: u64,
    kept_snapshots: usize,
    scrub_ms: u64,
    has_ordered_links: bool,
    session_timeout_ms: u64,
}

impl EnsembleSetting {
    pub(super) fn draw(seed: u64) -> Self {
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        Self {
            order: ZabSetting::draw(seed),
            snapshot_every: knob("snapshots").pick(&[20, 100, 10_000]),
            kept_snapshots: knob("kept snapshots").pick(&[1, 3]),
            scrub_ms: knob("scrub").pick(&[50, 500]),
            has_ordered_links: knob("ordered links").chance(750),
            session_timeout_ms: knob("session timeout").pick(&[1_000, 1_500, 3_000]),
        }
    }

    /// What a server is started with whose memory nobody damages.
    pub(super) fn server(&self) -> ServerOptions {
        let Self { order, snapshot_every, kept_snapshots, scrub_ms, has_ordered_links, .. } = *self;
        ServerOptions {
            order: order.options.order,
            snapshot_every,
            kept_snapshots,
            scrub_ms,
            has_ordered_links,
            damage: None,
            session_ms_max: 600_000,
            questions_max: 0,
        }
    }
}

impl EngineSetting for EnsembleSetting {
    fn describe(&self) -> Vec<String> {
        let mut words = self.order.describe();
        words.retain(|word| !word.starts_with("journal-bytes"));
        words.push(format!("snapshot-every={}", self.snapshot_every));
        words.push(format!("kept-snapshots={}", self.kept_snapshots));
        words.push(format!("scrub-ms={}", self.scrub_ms));
        words.push(format!("ordered-links={}", u8::from(self.has_ordered_links)));
        words.push(format!("session-timeout-ms={}", self.session_timeout_ms));
        words
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        Some(match key {
            "snapshot-every" => set(&mut self.snapshot_every, number(value, 1, 1 << 30)),
            "kept-snapshots" => set(&mut self.kept_snapshots, number(value, 1, 100)),
            "scrub-ms" => set(&mut self.scrub_ms, number(value, 1, 600_000)),
            "ordered-links" => number(value, 0, 1).map(|links: u64| self.has_ordered_links = links == 1),
            "session-timeout-ms" => set(&mut self.session_timeout_ms, number(value, 200, 600_000)),
            "journal-bytes" => return None,
            _ => return self.order.apply(key, value),
        })
    }
}

/// What is counted of it in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnsembleCounts {
    /// Reads that were answered.
    pub reads: u64,
    /// Events that clients were told of.
    pub events: u64,
    /// How often a session came back to a server.
    pub moved: u64,
    /// How many sessions clients were told the end of.
    pub sessions_ended: u64,
    /// How often a server's memory was damaged on purpose.
    pub damaged: u64,
    /// How often one found itself to be wrong.
    pub stopped: u64,
    /// How often one began anew from its disk.
    pub reopened: u64,
}

impl EngineCounts for EnsembleCounts {
    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.events += other.events;
        self.moved += other.moved;
        self.sessions_ended += other.sessions_ended;
        self.damaged += other.damaged;
        self.stopped += other.stopped;
        self.reopened += other.reopened;
    }

    fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("reads", self.reads),
            ("events", self.events),
            ("moved", self.moved),
            ("sessions_ended", self.sessions_ended),
            ("damaged", self.damaged),
            ("stopped", self.stopped),
            ("reopened", self.reopened),
        ]
    }
}

impl System for Ensemble {
    type Message = Message;
    type Unsigned = Nothing;
    type Replica = Server;
    type Client = EnsembleClient;
    type Liar = NoLiar;
    type NetworkAdversary = ();
    type Checker = EnsembleChecker;
    type Setting = EnsembleSetting;
    type Options = ServerOptions;
    /// Nobody lies, but memory may be damaged.
    type ReplicaStrategy = Corruption;
    type ClientStrategy = NoStrategy;
    type Counts = EnsembleCounts;

    /// As for the order.
    const MAY_FORGET: bool = false;

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("ensemble-calm", 3_000, &[], "nothing goes wrong"),
        scenario(
            "ensemble-faults",
            8_000,
            &[FaultClass::Network, FaultClass::Clocks],
            "messages are lost and late, links are cut, machines are paused",
        ),
        scenario(
            "ensemble-crashes",
            8_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Clocks],
            "processes die in the middle of what they do, disks forget what was not synced, and some flip bits",
        ),
        scenario(
            "ensemble-rebuild",
            8_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::DiskLoss],
            "servers lose their disks and come back, beside crashes and a bad network",
        ),
        scenario(
            "ensemble-corruption",
            6_000,
            &[FaultClass::ByzantineReplicas],
            "the memory of f servers is damaged, and transactions are left out, doubled and moved",
        ),
        scenario(
            "ensemble",
            8_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::ByzantineReplicas],
            "damaged memory, crashes and a bad network at once",
        ),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        2 * faults + 1
    }

    fn draw(_scenario: &Scenario, seed: u64) -> EnsembleSetting {
        EnsembleSetting::draw(seed)
    }

    fn adjust(_scenario: &Scenario, setting: &mut simulator::Setting<Self>) {
        setting.shards = 1;
    }

    fn draw_replica_strategies(_scenario: &Scenario, random: &mut Random) -> Vec<Corruption> {
        vec![random.pick(<Corruption as random::Named>::ALL)]
    }

    fn draw_client_strategies(_scenario: &Scenario, _random: &mut Random) -> Vec<NoStrategy> {
        Vec::new()
    }

    fn options(setting: &simulator::Setting<Self>, replica: ReplicaId) -> ServerOptions {
        let damage = match setting.faulty.get(&replica) {
            Some(ReplicaFault::Lies(corruptions)) => corruptions.first().map(|corruption| DamagePlan { corruption: *corruption }),
            Some(ReplicaFault::DiskDamage) | None => None,
        };
        ServerOptions { damage, ..setting.engine.server() }
    }

    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &ServerOptions,
        disk: (&Memory, store::Options),
        now: Time,
    ) -> Result<Server, String> {
        Server::open(cluster, replica, *options, disk, now)
    }

    fn close(mut replica: Server) -> Result<(), String> {
        replica.close()
    }

    fn liar(_: &Arc<Cluster>, _: ReplicaId, _: Vec<Corruption>, _: Random, _: &Clients) -> NoLiar {
        NoLiar
    }

    fn client(
        cluster: &Arc<Cluster>,
        id: ClientId,
        setting: &simulator::Setting<Self>,
        _cheat: Option<(Vec<NoStrategy>, Random)>,
        _others: &Clients,
    ) -> EnsembleClient {
        let first = usize::try_from(id.0).unwrap_or_default();
        EnsembleClient::new(SessionMachine::new(cluster.replicas().collect(), setting.engine.session_timeout_ms, first))
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(_: &Arc<Cluster>, _: &Clients) -> EnsembleChecker {
        EnsembleChecker::new()
    }

    fn is_pending(replica: &Server) -> bool {
        replica.is_pending()
    }

    fn undecided(replica: &Server) -> Vec<String> {
        replica.unready()
    }

    fn differences(replicas: &[(ReplicaId, &Server)]) -> Vec<String> {
        Server::differences(replicas)
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
