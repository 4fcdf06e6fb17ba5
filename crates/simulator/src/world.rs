//! The world: one line of events in virtual time, and everybody in it.

mod clients;
mod messages;
mod setup;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use crypto::{SecretKey, Verifier};
use random::Random;
use types::{ClientId, Cluster, Party};

use crate::budget::Budget;
use crate::changes::{Changes, Told};
use crate::client::ClientActor;
use crate::clock::EPOCH_NS;
use crate::faults::Phase;
use crate::network::Network;
use crate::queue::Queue;
use crate::replica::ReplicaActor;
use crate::report::{Counts, Report};
use crate::scenario::Scenario;
use crate::self_test::BrokenRule;
use crate::setting::Setting;
use crate::system::{Checker as _, Outcomes, System};
use crate::trace::Trace;
use crate::upgrade::Rollout;

pub use setup::cluster;
pub(crate) use setup::secret;

/// Someone in the world, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    Replica(usize),
    Client(usize),
}

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Bytes arrive.
    Arrive { from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes },
    /// A participant takes its turn.
    Turn(Actor),
    /// A timer may be due.
    Wake(Actor),
    /// A client begins a task, if it still is the process that wanted to.
    Begin { client: usize, life: u64 },
    /// A Byzantine client leaves its task.
    Abandon { client: usize, task: u64 },
    /// Something goes wrong.
    Fault,
    /// A replica's process is started again.
    Restart(usize),
    /// A shard's upgrade goes on.
    Upgrade(usize),
    /// A replica is started with its new key.
    Rekey { at: usize, secret: Arc<SecretKey> },
    /// Somebody connects with somebody else.
    Greet(Actor),
    /// Somebody is told of configurations.
    Tell(Told),
    /// The faults are over.
    Heal,
    /// Somebody looks whether all is done.
    Look,
}

/// The most events of one run: a world that goes on for longer has lost its way.
const EVENTS_MAX: u64 = 5_000_000;
/// How often a participant may ask to be woken at once before it is said to spin.
const SPINS_MAX: u64 = 1_000;

/// The world.
pub(crate) struct World<S: System> {
    pub scenario: Scenario<S>,
    pub setting: Setting<S>,
    pub seed: u64,
    pub now: u64,
    queue: Queue<Event>,
    pub cluster: Arc<Cluster>,
    pub verifiers: Vec<Arc<Verifier>>,
    /// Where operators change the cluster.
    pub changes: Option<Changes>,
    pub replicas: Vec<ReplicaActor<S>>,
    pub clients: Vec<ClientActor<S>>,
    pub network: Network,
    pub disk: Random,
    pub faults: Random,
    network_adversary: S::NetworkAdversary,
    pub upgrades: Random,
    /// The upgrades that are under way, by shard.
    pub rollouts: BTreeMap<usize, Rollout<S::Options>>,
    /// Until when an upgrade in a hurry may have more than `f` of a shard away, at fault, or silent after a start.
    pub too_few_until: u64,
    /// Who is at fault, or may come to be.
    pub budget: Budget,
    pub checker: S::Checker,
    pub trace: Trace,
    pub counts: Counts,
    pub engine_counts: S::Counts,
    pub phase: Phase,
    /// Replicas in whose state a bit has flipped since all is quiet: how much each had noticed before, and where it was.
    pub unnoticed: BTreeMap<usize, (u64, String)>,
    spins: u64,
    /// What is broken on purpose, in tests of the checkers.
    pub broken: Option<BrokenRule<S::ReplicaStrategy>>,
}

impl<S: System> World<S> {
    /// Runs to the end, or to the first broken promise.
    pub fn run(mut self) -> Report<S::Counts> {
        for replica in 0..self.replicas.len() {
            self.restart(replica);
        }
        for client in 0..self.auditor() {
            self.begin_after(client, 1_000_000, 20_000_000);
        }
        if self.changes.is_some() {
            let replicas = (0..self.replicas.len()).map(Actor::Replica);
            replicas.chain((0..self.clients.len()).map(Actor::Client)).collect::<Vec<_>>().into_iter().for_each(|actor| self.greet(actor));
        }
        self.after(100_000_000, Event::Fault);
        self.after(self.setting.fault_phase_ms * 1_000_000, Event::Heal);
        while self.phase != Phase::Done && self.checker.violations().all().is_empty() {
            let Some((at, event)) = self.queue.pop() else { break };
            assert!(at >= self.now, "time does not run backwards");
            self.now = at;
            self.happen(event);
            if self.trace.events() > EVENTS_MAX {
                self.violation("progress", format!("the run has not ended after {EVENTS_MAX} events"));
            }
        }
        self.report()
    }

    fn report(mut self) -> Report<S::Counts> {
        self.checker.finish();
        self.count_faults();
        let Outcomes { committed, aborted, unknown } = self.checker.outcomes();
        self.counts.virtual_ms = (self.now - EPOCH_NS) / 1_000_000;
        self.counts.events = self.trace.events();
        (self.counts.committed, self.counts.aborted, self.counts.unknown) = (committed, aborted, unknown);
        self.checker.count(&mut self.engine_counts);
        let violations = self.checker.violations().all().to_vec();
        for violation in &violations {
            self.trace.line(self.now, || format!("BROKEN {}: {}", violation.checker, violation.what));
        }
        if !violations.is_empty() {
            self.trace_undecided();
        }
        Report {
            scenario: self.scenario.name,
            seed: self.seed,
            words: self.scenario.words().to_vec(),
            violations,
            counts: self.counts,
            engine: self.engine_counts,
            fingerprint: self.trace.fingerprint(),
            trace: self.trace.into_lines(),
        }
    }

    /// What replicas hold undecided when a run ends badly, and what each of it waits for: mostly that is the reason.
    fn trace_undecided(&mut self) {
        for replica in &self.replicas {
            for what in replica.node.as_ref().map(|node| S::explain_undecided(node.machine())).unwrap_or_default() {
                self.trace.line(self.now, || format!("{} holds {what}", replica.id));
            }
        }
    }

    /// Writes down a broken promise that the world itself has seen, which ends the run.
    pub fn violation(&mut self, checker: &'static str, what: String) {
        self.checker.violations().add(checker, what);
        self.phase = Phase::Done;
    }

    /// What other checkers see does not count, and does not end the run.
    pub fn listening_only_to(mut self, checker: &'static str) -> Self {
        self.checker.violations().listen_only_to(checker);
        self
    }

    /// A world with more at fault than its promises hold for would prove nothing, so that is a violation too.
    fn count_faults(&mut self) {
        for shard in self.cluster.shards() {
            let faulty: Vec<String> = self
                .replicas
                .iter()
                .filter(|replica| replica.id.shard == shard && replica.is_faulty())
                .map(|replica| replica.id.to_string())
                .collect();
            self.counts.faulty = self.counts.faulty.max(faulty.len() as u64);
            if faulty.len() > self.setting.faults {
                let what = format!("{shard} survives {}, and at fault are {}", self.setting.faults, faulty.join(", "));
                self.violation("faults", what);
            }
        }
    }

    /// The last client, which only looks at the end.
    pub fn auditor(&self) -> usize {
        self.clients.len() - 1
    }

    // Time.

    /// Has something happen so many nanoseconds from now.
    pub fn after(&mut self, nanoseconds: u64, event: Event) {
        self.at(self.now + nanoseconds, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.queue.add(at.max(self.now), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { from, from_party, to, to_party, bytes } => self.arrive(from, from_party, to, to_party, bytes),
            Event::Turn(Actor::Replica(at)) => self.turn(at),
            Event::Turn(Actor::Client(at)) => self.turn_of_client(at),
            Event::Wake(actor) => self.wake(actor),
            Event::Begin { client, life } => {
                if self.clients[client].lives == life && self.clients[client].task.is_none() {
                    self.begin(client);
                }
            }
            Event::Abandon { client, task } => self.abandon(client, task),
            Event::Fault => self.fault(),
            Event::Restart(replica) => self.restart(replica),
            Event::Upgrade(shard) => self.upgrade(shard),
            Event::Rekey { at, secret } => self.rekey(at, &secret),
            Event::Greet(actor) => self.greet(actor),
            Event::Tell(told) => self.hear_told(told),
            Event::Heal => self.heal(),
            Event::Look => self.look(),
        }
    }

    /// Arranges for an actor to be woken when its machine wants to be.
    fn arm(&mut self, actor: Actor) {
        let now = self.now;
        let (wakes_at, armed) = match actor {
            Actor::Replica(at) => (self.replicas[at].wakes_at(), &mut self.replicas[at].armed),
            Actor::Client(at) => {
                let client = &mut self.clients[at];
                (client.turns.wakes_at().map(|wakes_at| client.clock.when(wakes_at)), &mut client.armed)
            }
        };
        let Some(mut at) = wakes_at else { return };
        if at <= now {
            // What is due was just done: to want it again at once is to spin. Time goes on all the same.
            self.spins += 1;
            at = now + 50_000;
        } else {
            self.spins = 0;
        }
        if armed.is_none_or(|armed| at < armed || armed <= now) {
            *armed = Some(at);
            self.at(at, Event::Wake(actor));
        }
        if self.spins > SPINS_MAX {
            self.violation("progress", format!("{actor:?} wants to be woken again and again, and time stands still"));
        }
    }

    fn wake(&mut self, actor: Actor) {
        match actor {
            Actor::Replica(at) => {
                if self.replicas[at].armed == Some(self.now) {
                    self.replicas[at].armed = None;
                    self.want_turn(at);
                }
            }
            Actor::Client(at) => {
                if self.clients[at].armed == Some(self.now) {
                    self.clients[at].armed = None;
                    self.want_turn_of_client(at);
                }
            }
        }
    }
}

pub(crate) fn client_id(at: usize) -> ClientId {
    ClientId(at as u64 + 1)
}
