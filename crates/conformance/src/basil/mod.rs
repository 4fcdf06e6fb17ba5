//! Basil under simulation: `basil::Node` above `store::Store`, clients with the session that real clients have (`basil::Session`), every message
//! through the codec, and every signature made and checked with Ed25519.
//!
//! Up to `f` replicas of each shard lie ([`ReplicaStrategy`]) and any number of clients cheat ([`ClientStrategy`]), each in named
//! ways. The network may read messages and delay those whose delay hurts most ([`DelayAttack`]). `checker` says what all of it is
//! held to.

mod checker;
mod client;
mod driver;
mod liar;
mod lying_leader;
mod network_adversary;
mod plan;
mod prediction;
mod setting;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::basil::{Coordinator, CoordinatorOptions, Message, Node, Replica, ReplicaOptions, Session, message};
pub use adversary::ClientStrategy;
use engine::Ask;
use machine::Time;
use random::Random;
use simulator::{Clients, EVERYTHING, FaultClass, ScenarioKind, System, scenario};
use store::{Memory, Options, Store, Version};
use types::{ClientId, Cluster, Key, ReplicaId, Timestamp};

pub use liar::ReplicaStrategy;
pub use network_adversary::DelayAttack;
pub use setting::BasilSetting;

use checker::Checker;
use client::BasilClient;
use liar::Liar;
use network_adversary::NetworkAdversary;

/// A scenario of Basil.
pub type Scenario = simulator::Scenario<Basil>;
/// What a run of Basil found.
pub type Report = simulator::Report<Counts>;
/// Everything decided before a run of Basil.
pub type Setting = simulator::Setting<Basil>;

/// How long a careful operator waits for a replica beyond its time bound, in milliseconds: by so much may clocks be apart.
const READY_MORE_MS: u64 = 200;

/// Basil, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Basil;

/// What a replica's process is started with.
#[derive(Clone, Copy, Debug)]
pub struct ProcessOptions {
    /// The replica's.
    pub replica: ReplicaOptions,
    /// The coordinator's that ends what others left.
    pub coordinator: CoordinatorOptions,
}

/// What is counted of Basil alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of the commits that honest clients were told of, those that took one round trip.
    pub fast: u64,
    /// Transactions of honest clients that only read, and committed without a vote.
    pub validated: u64,
    /// Times an honest client read the past to its end.
    pub past: u64,
    /// Times an honest client tried again at a later timestamp what was voted down.
    pub refreshed: u64,
    /// Times an honest client's session prepared at once at a later timestamp than the transaction began at, as others of its had used the keys.
    pub moved: u64,
    /// Transactions on which honest replicas logged different decisions, so that an election had to settle them.
    pub divided: u64,
    /// Transactions for which honest replicas elected a leader.
    pub elections: u64,
    /// Those of them that an honest leader decided.
    pub led: u64,
    /// The views these elections reached, all together.
    pub views: u64,
    /// The highest of them; of many runs, the highest in any.
    pub view_max: u64,
}

impl simulator::EngineCounts for Counts {
    fn add(&mut self, other: &Self) {
        self.fast += other.fast;
        self.validated += other.validated;
        self.past += other.past;
        self.refreshed += other.refreshed;
        self.moved += other.moved;
        self.divided += other.divided;
        self.elections += other.elections;
        self.led += other.led;
        self.views += other.views;
        self.view_max = self.view_max.max(other.view_max);
    }

    fn named(&self) -> Vec<(&'static str, u64)> {
        let Self { fast, validated, past, refreshed, moved, divided, elections, led, views, view_max } = *self;
        vec![
            ("fast", fast),
            ("validated", validated),
            ("past", past),
            ("refreshed", refreshed),
            ("moved", moved),
            ("divided", divided),
            ("elections", elections),
            ("led", led),
            ("views", views),
            ("view_max", view_max),
        ]
    }
}

impl System for Basil {
    type Message = Message;
    type Unsigned = message::Unsigned;
    type Replica = Node<Memory>;
    type Client = BasilClient;
    type Liar = Liar;
    type NetworkAdversary = NetworkAdversary;
    type Checker = Checker;
    type Setting = BasilSetting;
    type Options = ProcessOptions;
    type ReplicaStrategy = ReplicaStrategy;
    type ClientStrategy = ClientStrategy;
    type Counts = Counts;

    const MAKES_UP_FOR_ROWS: bool = true;
    const KINDS_OF_KEYS: &'static [&'static str] = &plan::KINDS_OF_KEYS;
    const BOUNDS: &'static [&'static str] = &["slot/06", "counter/", "account/4", "slot/03", "ring/3"];
    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("calm", 4_000, &[], "nothing goes wrong: what the others are measured against"),
        scenario(
            "faults",
            12_000,
            &[FaultClass::Network, FaultClass::Clocks],
            "messages are lost, late and doubled, links are cut, clocks jump",
        ),
        scenario(
            "clocks",
            12_000,
            &[FaultClass::FalseTimes, FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes],
            "clocks are set all at once, clients are wrong about the time, machines are paused, processes crash, links fail",
        ),
        scenario(
            "crashes",
            12_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Clocks],
            "replicas and clients crash in the middle of what they do, disks forget what was not synced, and some flip bits",
        ),
        scenario(
            "upgrade",
            7_000,
            &[FaultClass::Upgrades, FaultClass::Clocks],
            "replicas are stopped in good order, one after the other, and come back with other options, while clients go on",
        ),
        scenario(
            "rebuild",
            30_000,
            &[FaultClass::DiskLoss, FaultClass::Network, FaultClass::Crashes, FaultClass::Clocks],
            "replicas lose their disks, one after the other, and rebuild themselves from the others, while processes crash and links fail",
        ),
        scenario(
            "rebuild-liars",
            20_000,
            &[FaultClass::DiskLoss, FaultClass::ByzantineReplicas, FaultClass::Network, FaultClass::Crashes, FaultClass::Clocks],
            "replicas lose their disks, one after the other, and rebuild themselves while another lies to them, processes crash and links fail",
        ),
        scenario(
            "changes",
            20_000,
            &[FaultClass::Changes, FaultClass::Network, FaultClass::Crashes, FaultClass::Clocks, FaultClass::ByzantineClients],
            "operators change keys, replicas, limits and clients, while processes crash, links fail, and liars hand over other configurations",
        ),
        scenario(
            "rights",
            12_000,
            &[
                FaultClass::Rights,
                FaultClass::Changes,
                FaultClass::Network,
                FaultClass::Crashes,
                FaultClass::Clocks,
                FaultClass::ByzantineClients,
            ],
            "clients may read and write some keys only, operators change which, and cheats do what they have no right to",
        ),
        scenario(
            "flips",
            12_000,
            &[FaultClass::SilentFlips, FaultClass::Network, FaultClass::Crashes, FaultClass::Clocks],
            "bits flip in values that replicas hold, and nothing tells them, while processes crash and links fail",
        ),
        scenario("liars", 8_000, &[FaultClass::ByzantineReplicas], "f replicas of each shard lie, each in up to three ways"),
        scenario(
            "clients",
            8_000,
            &[FaultClass::ByzantineClients],
            "clients stall, equivocate, reuse timestamps and speak in others' names",
        ),
        scenario(
            "elections",
            8_000,
            &[FaultClass::Network, FaultClass::ByzantineReplicas, FaultClass::ByzantineClients, FaultClass::Elections],
            "clients log both ends of what they do, and replicas that lie elect and lead badly",
        ),
        scenario(
            "planet",
            60_000,
            &[FaultClass::Distance, FaultClass::Network, FaultClass::Clocks, FaultClass::ByzantineReplicas],
            "replicas and clients live in regions far from one another, links fail, and f replicas of each shard lie",
        ),
        scenario(
            "network",
            12_000,
            &[FaultClass::DelayAttacks, FaultClass::ByzantineReplicas],
            "the network reads what is under way and delays what hurts most, and f replicas of each shard lie",
        ),
        scenario("everything", 12_000, EVERYTHING, "all of it at once, replicas and clients that lie knowing each other"),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        (basil::PROFILE.shard_size)(faults)
    }

    fn draw(scenario: &Scenario, seed: u64) -> BasilSetting {
        BasilSetting::draw(scenario, seed)
    }

    fn adjust(scenario: &Scenario, setting: &mut Setting) {
        if setting.engine.delay_attacks.contains(&DelayAttack::LeadersLast) && !scenario.has(FaultClass::ByzantineClients) {
            // Few leaders are needed where nobody logs both ends.
            setting.byzantine_clients.push(vec![ClientStrategy::EquivocateSplit]);
        }
    }

    fn draw_replica_strategies(scenario: &Scenario, random: &mut Random) -> Vec<ReplicaStrategy> {
        if scenario.has(FaultClass::DiskLoss) {
            return random.pick(&ReplicaStrategy::BESIDE_LOST_DISKS).to_vec();
        }
        let strategies = ReplicaStrategy::draw(random);
        if scenario.has(FaultClass::Elections) {
            return vec![random.pick(&ReplicaStrategy::IN_ELECTIONS), ReplicaStrategy::EquivocateVotes];
        }
        strategies
    }

    fn draw_client_strategies(scenario: &Scenario, random: &mut Random) -> Vec<ClientStrategy> {
        let mut strategies = ClientStrategy::draw(random);
        if scenario.has(FaultClass::Rights) {
            strategies.extend([ClientStrategy::Overstep; 3]);
        }
        if scenario.has(FaultClass::Elections) {
            strategies.extend([ClientStrategy::EquivocateSplit; 3]);
        }
        strategies
    }

    fn options(setting: &Setting, replica: ReplicaId) -> ProcessOptions {
        let mut options = ProcessOptions { replica: setting.engine.replica, coordinator: setting.engine.coordinator };
        options.replica.seed ^= u64::from(replica.shard.0) << 32 | u64::from(replica.index);
        options
    }

    /// How far timestamps may lie ahead and behind stays.
    fn upgraded(options: ProcessOptions, random: &mut Random) -> ProcessOptions {
        ProcessOptions {
            replica: ReplicaOptions {
                janitor_timeout_ms: random.pick(&[250, 1_000, 2_000]),
                authorship_wait_ms: random.pick(&[400, 2_000]),
                checkpoint_ms: random.pick(&[200, 1_000, 5_000]),
                memtable_bytes_max: random.pick(&[2 << 10, 64 << 10, 64 << 20]),
                journal_bytes_max: random.pick(&[16 << 10, 256 << 10, 512 << 20]),
                read_timestamps: random.pick(&[64, 1 << 12]),
                ..options.replica
            },
            coordinator: CoordinatorOptions { retry_ms: random.pick(&[50, 100, 400]), ..options.coordinator },
        }
    }

    fn restarted(own: ProcessOptions, version: ProcessOptions, seed: u64) -> ProcessOptions {
        let ReplicaOptions { window_ms, time_bound_ms, clock_good_ms, .. } = own.replica;
        ProcessOptions { replica: ReplicaOptions { window_ms, time_bound_ms, clock_good_ms, seed, ..version.replica }, ..version }
    }

    /// Until then it votes for nothing, as it may have let it be read past before.
    fn ready_after_ms(setting: &Setting) -> u64 {
        setting.engine.replica.time_bound_ms + setting.engine.replica.clock_good_ms + READY_MORE_MS
    }

    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &ProcessOptions,
        (medium, store): (&Memory, Options),
        now: Time,
    ) -> Result<Node<Memory>, String> {
        let store = Store::open(medium.clone(), store).map_err(|error| error.to_string())?;
        let replica = Replica::open(cluster.clone(), replica, options.replica, store, now).map_err(|error| error.to_string())?;
        Ok(Node::with_peers(replica, Coordinator::new(cluster.clone(), options.coordinator), cluster, now))
    }

    fn close(mut node: Node<Memory>) -> Result<(), String> {
        engine::Replica::close(&mut node).map_err(|error| error.to_string())
    }

    fn liar(cluster: &Arc<Cluster>, replica: ReplicaId, strategies: Vec<ReplicaStrategy>, random: Random, clients: &Clients) -> Liar {
        let colluders = clients.byzantine.iter().copied().collect();
        Liar::new(replica, cluster.clone(), strategies, random, colluders, clients.honest.clone())
    }

    fn client(
        cluster: &Arc<Cluster>,
        _id: ClientId,
        setting: &Setting,
        cheat: Option<(Vec<ClientStrategy>, Random)>,
        clients: &Clients,
    ) -> BasilClient {
        BasilClient::new(cluster.clone(), setting.engine.coordinator, cheat, clients.honest.clone())
    }

    fn network_adversary(cluster: &Cluster, setting: &Setting, seed: u64, ends_at: u64) -> NetworkAdversary {
        let BasilSetting { delay_attacks, replica, .. } = &setting.engine;
        NetworkAdversary::new(seed, delay_attacks.clone(), cluster, replica.window_ms, ends_at)
    }

    fn checker(cluster: &Arc<Cluster>, clients: &Clients) -> Checker {
        let honest = clients.honest.iter().copied().chain([clients.auditor]).collect();
        Checker::new(cluster.clone(), honest, !clients.byzantine.is_empty())
    }

    fn is_pending(replica: &Node<Memory>) -> bool {
        replica.replica().store().is_pending()
    }

    fn undecided(replica: &Node<Memory>) -> Vec<String> {
        replica.replica().undecided().map(|transaction| format!("{:?}", transaction.id())).collect()
    }

    fn explain_undecided(replica: &Node<Memory>) -> Vec<String> {
        let explain = |transaction: &::basil::Transaction| {
            let dependencies: Vec<String> =
                transaction.reads().iter().filter_map(|read| Some(format!("{:?} of {}", read.dependency?, read.key))).collect();
            let writes: Vec<String> = transaction.writes().iter().map(|write| write.key.to_string()).collect();
            let (id, at) = (transaction.id(), transaction.timestamp());
            format!("{id:?} at {at:?}, which writes {}, and read from [{}]", writes.join(" "), dependencies.join(", "))
        };
        replica.replica().undecided().map(explain).collect()
    }

    /// Whoever missed something has taken it over.
    fn differences(replicas: &[(ReplicaId, &Node<Memory>)]) -> Vec<String> {
        let newest = Timestamp::new(u64::MAX, ClientId(u64::MAX));
        let held = |node: &Node<Memory>| -> BTreeMap<Key, Version> {
            node.replica().versions(newest).map(|versions| versions.into_iter().collect()).unwrap_or_default()
        };
        let Some(((_, first), others)) = replicas.split_first() else { return Vec::new() };
        let all = held(first);
        let mut differences = Vec::new();
        for (id, node) in others {
            let own = held(node);
            let differing = all.keys().chain(own.keys()).find(|key| all.get(key) != own.get(key));
            differences.extend(differing.map(|key| {
                let at = |versions: &BTreeMap<Key, Version>| versions.get(key).map(|version| version.timestamp);
                format!("of {key} {} has {:?}, and {id} {:?}", replicas[0].0, at(&all), at(&own))
            }));
        }
        differences
    }

    /// Of the newest version of any key.
    fn flip_at_rest(node: &mut Node<Memory>, random: &mut Random) -> Option<String> {
        let versions = node.replica().versions(Timestamp::new(u64::MAX, ClientId(u64::MAX))).ok()?;
        let filled = versions.into_iter().filter(|(_, version)| version.value.as_ref().is_some_and(|value| !value.as_bytes().is_empty()));
        let filled: Vec<(Key, Version)> = filled.collect();
        if filled.is_empty() {
            return None;
        }
        let (key, version) = &filled[random.index(filled.len())];
        let bit = random.index(1 << 16);
        node.flip_bit_at_rest(key, bit).ok()?.then(|| format!("{key} of {}", version.timestamp))
    }

    fn goes_by(node: &Node<Memory>, what: &str) -> bool {
        let Ok(versions) = node.replica().versions(Timestamp::new(u64::MAX, ClientId(u64::MAX))) else { return true };
        let flipped_at = |key: &Key| what.strip_prefix(&format!("{key} of "))?.split('@').next()?.parse::<u64>().ok();
        !versions.iter().any(|(key, version)| flipped_at(key).is_some_and(|time| version.timestamp.time > time))
    }

    fn noticed(node: &Node<Memory>) -> u64 {
        node.replica().divergences().noticed()
    }

    fn mark_lost((medium, options): (&Memory, Options)) -> Result<(), String> {
        let mut store = Store::open(medium.clone(), options).map_err(|error| error.to_string())?;
        basil::rebuild::mark(&mut store).map_err(|error| error.to_string())
    }

    fn is_rebuilding(replica: &Node<Memory>) -> bool {
        replica.replica().is_rebuilding()
    }

    fn replica_reconfigured(cluster: Arc<Cluster>) -> Option<engine::Instruction> {
        Some(engine::Instruction::Reconfigure(cluster))
    }

    /// It is not answered, so that it needs no number of its own.
    fn client_reconfigured(cluster: Arc<Cluster>) -> Option<Vec<Ask>> {
        <Session as engine::Session>::reconfigured(cluster).map(|request| vec![Ask { operation: 0, request }])
    }

    fn describe(message: &Message) -> String {
        client::describe(message)
    }
}
