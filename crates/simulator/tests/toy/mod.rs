//! The toy engine under simulation: what an engine has to bring, at its smallest.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use crypto::Verified;
use machine::{Durable, InputOf, Machine, OutboxOf, Time};
use random::{Named as _, Random, named};
use simulator::dictionary::{number, one, set};
use simulator::{
    Checker, Client, Clients, EVERYTHING, EngineSetting, FaultClass, Goal, Heard, Liar, Lies, Next, Outcomes, ScenarioKind, Scene, System,
    Violations,
};
use store::{Memory, Options};
use toy::{Answered, Asker, Doubled, Doubler, Flaw, Message};
use types::{ClientId, Cluster, Party, ReplicaId, ShardId};

/// The toy, as the simulator's engine.
#[derive(Clone, Copy, Debug)]
pub struct Toy;

named! {
    /// A way for a replica to lie.
    pub enum ReplicaStrategy {
        /// Says nothing.
        Silent,
        /// Signs doubles that are wrong.
        WrongDouble,
        /// Signs the right double and a wrong one, for the same question.
        TwoDoubles,
        /// Comes back from an empty disk, and says so to nobody.
        Forget,
    }
}

named! {
    /// A way for a client to cheat.
    pub enum ClientStrategy {
        /// Asks, and does not wait for the answer.
        AskAndLeave,
    }
}

named! {
    /// What is wrong with every replica, in a test that wants to see it noticed.
    pub enum Broken {
        /// Nothing.
        Nothing,
        /// See [`Flaw::WritesLate`].
        WritesLate,
        /// See [`Flaw::Forgets`].
        Forgets,
        /// See [`Flaw::IgnoresSome`].
        IgnoresSome,
    }
}

/// What is decided of the toy before the first event.
#[derive(Clone, Debug)]
pub struct ToySetting {
    numbers: u64,
    broken: Broken,
}

impl EngineSetting for ToySetting {
    fn describe(&self) -> Vec<String> {
        vec![format!("numbers={}", self.numbers), format!("broken={}", self.broken.name())]
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        Some(match key {
            "numbers" => set(&mut self.numbers, number(value, 1, 1 << 32)),
            "broken" => set(&mut self.broken, one(value)),
            _ => return None,
        })
    }
}

/// A client of the toy: asks for one double after the other.
pub struct ToyClient {
    asker: Asker,
    shard: ShardId,
    cluster: Arc<Cluster>,
    is_honest: bool,
}

impl Client<Toy> for ToyClient {
    fn is_honest(&self) -> bool {
        self.is_honest
    }

    fn begin(&mut self, _goal: Goal, scene: &mut Scene<'_, Toy>) -> Next<u64> {
        let number = scene.random.below(scene.setting.engine.numbers);
        let id = scene.id;
        scene.line(|| format!("{id} asks for twice {number}"));
        if self.is_honest {
            scene.checker.asked += 1;
        }
        Next::Command(number)
    }

    fn told(&mut self, Answered { number, double }: Answered, scene: &mut Scene<'_, Toy>) -> Next<u64> {
        let id = scene.id;
        scene.line(|| format!("{id} is told that twice {number} is {double}"));
        if self.is_honest {
            scene.checker.answered(id, number, double);
        }
        Next::Done
    }

    fn forget(&mut self) {
        self.asker = Asker::new(self.cluster.clone(), self.shard);
    }
}

impl Machine for ToyClient {
    type Command = u64;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Answered;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.asker.step(now, input, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        self.asker.deadline()
    }
}

impl Durable for ToyClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A replica that lies.
pub struct ToyLiar {
    strategies: Vec<ReplicaStrategy>,
}

impl ToyLiar {
    fn does(&self, strategy: ReplicaStrategy) -> bool {
        self.strategies.contains(&strategy)
    }
}

impl Liar<Toy> for ToyLiar {
    fn hear(&mut self, from: Party, message: &Message, lies: &mut Lies<Toy>) -> Heard {
        if let (true, Message::Ask(_)) = (self.does(ReplicaStrategy::Silent), message) {
            lies.sends.push((from, Message::Filling(Vec::new())));
            return Heard::Swallow;
        }
        Heard::Pass
    }

    fn speak(&mut self, _sends: &mut Vec<(Party, Message)>, unsigned: &mut Vec<(Party, Doubled)>) {
        let wrong = |doubled: Doubled| Doubled { double: doubled.double.wrapping_add(1), ..doubled };
        if self.does(ReplicaStrategy::WrongDouble) {
            unsigned.iter_mut().for_each(|(_, doubled)| *doubled = wrong(*doubled));
        }
        if self.does(ReplicaStrategy::TwoDoubles) {
            let more: Vec<(Party, Doubled)> = unsigned.iter().map(|(to, doubled)| (*to, wrong(*doubled))).collect();
            unsigned.extend(more);
        }
    }

    fn forgets(&self) -> bool {
        self.does(ReplicaStrategy::Forget)
    }
}

/// Who watches the toy.
///
/// | checker | what it holds everyone to |
/// |---|---|
/// | counts | an honest replica gives no two answers one number, in all its lives, and goes on counting upwards |
/// | doubles | what an honest client is told, on the word of `f + 1`, is right |
/// | forgery | whatever passes the check of signatures, its signer has signed |
#[derive(Debug, Default)]
pub struct ToyChecker {
    violations: Violations,
    counts: BTreeMap<ReplicaId, u64>,
    signed: BTreeSet<(ReplicaId, u64, u64, u64)>,
    asked: u64,
    told: u64,
}

impl ToyChecker {
    fn answered(&mut self, client: ClientId, number: u64, double: u64) {
        self.told += 1;
        if double != number.wrapping_mul(2) {
            self.violations.add("doubles", format!("{client} believes that twice {number} is {double}"));
        }
    }
}

impl Checker<Toy> for ToyChecker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn signs(&mut self, by: ReplicaId, doubled: &Doubled, is_honest: bool) {
        self.signed.insert((by, doubled.number, doubled.double, doubled.count));
        if !is_honest {
            return;
        }
        let last = self.counts.entry(by).or_default();
        if doubled.count <= *last {
            self.violations.add("counts", format!("{by} gives an answer the number {}, after one with {last}", doubled.count));
        }
        *last = doubled.count.max(*last);
    }

    fn believed(&mut self, message: &Message) {
        let Message::Answer(Doubled { signer, number, double, count }, _) = message else { return };
        if !self.signed.contains(&(*signer, *number, *double, *count)) {
            self.violations.add("forgery", format!("somebody believed that {signer} doubled {number} to {double}, and it never did"));
        }
    }

    /// Any question will do: the answer's number must be a new one.
    fn questions(&self, _replica: ReplicaId) -> Vec<Message> {
        vec![Message::Ask(0)]
    }

    fn outcomes(&self) -> Outcomes {
        Outcomes { committed: self.told, aborted: 0, unknown: self.asked - self.told }
    }
}

const fn scenario(name: &'static str, faults: &'static [FaultClass], about: &'static str) -> ScenarioKind {
    ScenarioKind { name, fault_phase_ms: 2_000, faults, about }
}

impl System for Toy {
    type Message = Message;
    type Unsigned = Doubled;
    type Replica = Doubler;
    type Client = ToyClient;
    type Liar = ToyLiar;
    type NetworkAdversary = ();
    type Checker = ToyChecker;
    type Setting = ToySetting;
    type Options = Flaw;
    type ReplicaStrategy = ReplicaStrategy;
    type ClientStrategy = ClientStrategy;
    type Counts = ();

    const SCENARIOS: &'static [ScenarioKind] = &[
        scenario("calm", &[], "nothing goes wrong"),
        scenario("network", &[FaultClass::Network, FaultClass::Clocks], "messages are lost, late and doubled, links are cut"),
        scenario("crashes", &[FaultClass::Crashes, FaultClass::DiskDamage], "processes die in the middle of a turn, and disks tear"),
        scenario("upgrade", &[FaultClass::Upgrades], "replicas are stopped in good order, one after the other"),
        scenario("liars", &[FaultClass::ByzantineReplicas, FaultClass::ByzantineClients], "replicas lie and clients leave"),
        scenario("everything", EVERYTHING, "all of it at once"),
    ];

    fn replicas_per_shard(faults: usize) -> usize {
        5 * faults + 1
    }

    fn draw(_scenario: &simulator::Scenario<Self>, seed: u64) -> ToySetting {
        ToySetting { numbers: Random::stream(seed, "setting numbers").pick(&[3, 1_000, 1 << 32]), broken: Broken::Nothing }
    }

    fn draw_replica_strategies(_scenario: &simulator::Scenario<Self>, random: &mut Random) -> Vec<ReplicaStrategy> {
        vec![random.pick(ReplicaStrategy::ALL)]
    }

    fn draw_client_strategies(_scenario: &simulator::Scenario<Self>, random: &mut Random) -> Vec<ClientStrategy> {
        vec![random.pick(ClientStrategy::ALL)]
    }

    fn options(setting: &simulator::Setting<Self>, _replica: ReplicaId) -> Flaw {
        match setting.engine.broken {
            Broken::Nothing => Flaw::None,
            Broken::WritesLate => Flaw::WritesLate,
            Broken::Forgets => Flaw::Forgets,
            Broken::IgnoresSome => Flaw::IgnoresSome,
        }
    }

    fn open(
        _cluster: &Arc<Cluster>,
        replica: ReplicaId,
        flaw: &Flaw,
        (medium, options): (&Memory, Options),
        _now: Time,
    ) -> Result<Doubler, String> {
        Doubler::open(replica, medium, options, *flaw).map_err(|error| error.to_string())
    }

    fn close(mut replica: Doubler) -> Result<(), String> {
        replica.close().map_err(|error| error.to_string())
    }

    fn liar(_: &Arc<Cluster>, _: ReplicaId, strategies: Vec<ReplicaStrategy>, _: Random, _: &Clients) -> ToyLiar {
        ToyLiar { strategies }
    }

    fn client(
        cluster: &Arc<Cluster>,
        id: ClientId,
        setting: &simulator::Setting<Self>,
        cheat: Option<(Vec<ClientStrategy>, Random)>,
        _others: &Clients,
    ) -> ToyClient {
        let shard = ShardId(u16::try_from(id.0 % setting.shards as u64).expect("few shards"));
        ToyClient { asker: Asker::new(cluster.clone(), shard), shard, cluster: cluster.clone(), is_honest: cheat.is_none() }
    }

    fn network_adversary(_: &Cluster, _: &simulator::Setting<Self>, _: u64, _: u64) {}

    fn checker(_: &Arc<Cluster>, _: &Clients) -> ToyChecker {
        ToyChecker::default()
    }

    fn is_pending(replica: &Doubler) -> bool {
        replica.is_pending()
    }

    /// An answer is given in the turn in which the question is heard: nothing is ever left.
    fn undecided(_replica: &Doubler) -> Vec<String> {
        Vec::new()
    }

    fn describe(message: &Message) -> String {
        match message {
            Message::Ask(number) => format!("Ask {number}"),
            Message::Answer(doubled, _) => format!("Answer {doubled:?}"),
            Message::Fill(bytes) => format!("Fill {bytes}"),
            Message::Milestone(count) => format!("Milestone {count}"),
            Message::Filling(bytes) => format!("Filling of {} bytes", bytes.len()),
        }
    }
}
