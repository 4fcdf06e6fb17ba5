//! Transactions over keys on Sentinel under simulation: the servers of [`ensemble`](super::ensemble), and clients with the session that real clients
//! have, above which applications read, think and commit.
//!
//! Servers crash, lose what was not synced or their disks, are cut off and are paused; clients crash, and sessions end while commits are under way.
//! Nobody lies. `checker.rs` says what all of it is held to.

mod checker;
mod client;
mod plan;

use std::sync::Arc;

use machine::Time;
use random::Random;
use simulator::dictionary::{number, set};
use simulator::{Clients, EngineCounts, EngineSetting, FaultClass, ScenarioKind, System, scenario};
use store::Memory;
use types::{ClientId, Cluster, ReplicaId};

use super::ensemble::server::Server;
use super::ensemble::{EnsembleSetting, Message, ServerOptions};
use super::{NoLiar, NoStrategy};
use checker::TransactionsChecker;
use client::TransactionsClient;

/// A scenario of transactions on Sentinel.
pub type Scenario = simulator::Scenario<Transactions>;
/// What a run found.
pub type Report = simulator::Report<TransactionsCounts>;

/// Transactions on Sentinel, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Transactions;

/// What is decided of it before the first event.
#[derive(Clone, Copy, Debug)]
pub struct TransactionsSetting {
    servers: EnsembleSetting,
    /// After how long sessions give up what is asked.
    request_timeout_ms: u64,
    /// How long the sessions that the servers know may be unheard of.
    engine_session_ms: u64,
    /// How many questions wait at a server.
    questions_max: u64,
    /// How many of a thousand transactions take or leave a place that others take and leave.
    crowded: u64,
}

impl EngineSetting for TransactionsSetting {
    fn describe(&self) -> Vec<String> {
        let mut words = self.servers.describe();
        words.retain(|word| !word.starts_with("session-timeout-ms"));
        words.push(format!("request-timeout-ms={}", self.request_timeout_ms));
        words.push(format!("engine-session-ms={}", self.engine_session_ms));
        words.push(format!("questions={}", self.questions_max));
        words.push(format!("crowded={}", self.crowded));
        words
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        match key {
            "request-timeout-ms" => Some(set(&mut self.request_timeout_ms, number(value, 1, 600_000))),
            "engine-session-ms" => Some(set(&mut self.engine_session_ms, number(value, 100, 30_000))),
            "questions" => Some(set(&mut self.questions_max, number(value, 1, 1 << 20))),
            "crowded" => Some(set(&mut self.crowded, number(value, 0, 1_000))),
            "session-timeout-ms" => None,
            _ => self.servers.apply(key, value),
        }
    }
}

/// What is counted of it in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionsCounts {
    /// Transactions that only read.
    pub read_alone: u64,
    /// Sessions that the servers ended.
    pub sessions_ended: u64,
    /// How often a server began anew from its disk.
    pub reopened: u64,
}

impl EngineCounts for TransactionsCounts {
    fn add(&mut self, other: &Self) {
        self.read_alone += other.read_alone;
        self.sessions_ended += other.sessions_ended;
        self.reopened += other.reopened;
    }

    fn named(&self) -> Vec<(&'static str, u64)> {
        vec![("read_alone", self.read_alone), ("sessions_ended", self.sessions_ended), ("reopened", self.reopened)]
    }
}

impl System for Transactions {
    type Message = Message;
    type Unsigned = super::Nothing<Message>;
    type Replica = Server;
    type Client = TransactionsClient;
    type Liar = NoLiar;
    type NetworkAdversary = ();
    type Checker = TransactionsChecker;
    type Setting = TransactionsSetting;
    type Options = ServerOptions;
    type ReplicaStrategy = NoStrategy;
    type ClientStrategy = NoStrategy;
    type Counts = TransactionsCounts;

    /// As for the order.
    const MAY_FORGET: bool = false;

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("transactions-calm", 2_000, &[], "nothing goes wrong"),
        scenario(
            "transactions-crashes",
            8_000,
            &[FaultClass::Crashes, FaultClass::DiskDamage, FaultClass::Network, FaultClass::Clocks],
            "processes die, disks forget what was not synced, some flip bits; messages are lost and late, links are cut, machines are paused",
        ),
        scenario(
            "transactions-rebuild",
            8_000,
            &[FaultClass::Network, FaultClass::Clocks, FaultClass::Crashes, FaultClass::DiskLoss],
            "servers lose their disks and come back, beside crashes and a bad network",
        ),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        2 * faults + 1
    }

    fn draw(_scenario: &Scenario, seed: u64) -> TransactionsSetting {
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        TransactionsSetting {
            servers: EnsembleSetting::draw(seed),
            request_timeout_ms: knob("request timeout").pick(&[2_000, 6_000, 60_000]),
            engine_session_ms: knob("engine session").pick(&[200, 1_200, 30_000]),
            questions_max: knob("questions").pick(&[3, 40, 16_384]),
            crowded: knob("crowded").pick(&[0, 0, 500]),
        }
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
        let TransactionsSetting { servers, engine_session_ms, questions_max, .. } = setting.engine;
        let session_ms = i32::try_from(engine_session_ms).unwrap_or(i32::MAX);
        servers.server().for_engine(session_ms, usize::try_from(questions_max).unwrap_or(usize::MAX))
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

    fn liar(_: &Arc<Cluster>, _: ReplicaId, _: Vec<NoStrategy>, _: Random, _: &Clients) -> NoLiar {
        NoLiar
    }

    fn client(
        cluster: &Arc<Cluster>,
        _id: ClientId,
        setting: &simulator::Setting<Self>,
        _cheat: Option<(Vec<NoStrategy>, Random)>,
        _others: &Clients,
    ) -> TransactionsClient {
        TransactionsClient::new(cluster.clone(), setting.engine.request_timeout_ms)
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(_: &Arc<Cluster>, _: &Clients) -> TransactionsChecker {
        TransactionsChecker::new()
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
