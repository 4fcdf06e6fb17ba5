//! The world: one line of events in virtual time, and everybody in it.

mod clients;
mod messages;
mod people;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verifier;
use types::{ClientId, Cluster, Party};

use crate::checker::{Checker, Told};
use crate::client::{ClientActor, Heard};
use crate::clock::EPOCH_NS;
use crate::faults::Budget;
use crate::foe::Foe;
use crate::network::Network;
use crate::replica::ReplicaActor;
use crate::report::{Counts, Report};
use crate::scenario::Scenario;
use crate::setting::Setting;
use crate::trace::Trace;
use crate::trouble::Phase;
use crate::upgrade::Rollout;
use random::Random;

/// Someone in the world, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    Replica(usize),
    Client(usize),
}

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// Bytes arrive.
    Arrive { from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes },
    /// A replica takes its turn.
    Turn(usize),
    /// A timer may be due.
    Wake(Actor),
    /// A client begins a transaction, if it still is the process that wanted to.
    Begin { client: usize, life: u64 },
    /// A rogue client loses patience with its transaction.
    Abandon { client: usize, job: u64 },
    /// Something goes wrong.
    Trouble,
    /// A replica's process is started again.
    Restart(usize),
    /// A shard's upgrade goes on.
    Upgrade(usize),
    /// The trouble is over.
    Heal,
    /// Somebody looks whether all is done.
    Look,
}

/// The most events of one run: a world that goes on for longer has lost its way.
const EVENTS_MAX: u64 = 5_000_000;
/// How often a participant may ask to be woken at once before it is said to spin.
const SPINS_MAX: u64 = 1_000;

/// The world.
pub(crate) struct World {
    pub scenario: Scenario,
    pub setting: Setting,
    seed: u64,
    pub now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    happenings: u64,
    cluster: Arc<Cluster>,
    verifiers: Vec<Arc<Verifier>>,
    pub replicas: Vec<ReplicaActor>,
    pub clients: Vec<ClientActor>,
    pub network: Network,
    pub disk: Random,
    pub faults: Random,
    /// What looks at what is under way and is late where it hurts.
    foe: Foe,
    pub upgrades: Random,
    /// The upgrades that are under way, by shard.
    pub rollouts: BTreeMap<usize, Rollout>,
    /// Who is at fault, or may come to be.
    pub budget: Budget,
    pub checker: Checker,
    pub trace: Trace,
    pub counts: Counts,
    pub phase: Phase,
    spins: u64,
    #[cfg(test)]
    pub sabotage: Option<crate::sabotage::Sabotage>,
}

impl World {
    /// Runs to the end, or to the first broken promise.
    pub fn run(mut self) -> Report {
        for replica in 0..self.replicas.len() {
            self.restart(replica);
        }
        for client in 0..self.auditor() {
            self.begin_after(client, 1_000_000, 20_000_000);
        }
        self.after(100_000_000, Happening::Trouble);
        self.after(self.setting.trouble_ms * 1_000_000, Happening::Heal);
        while self.phase != Phase::Done && self.checker.violations.is_empty() {
            let Some(((at, _), happening)) = self.queue.pop_first() else { break };
            assert!(at >= self.now, "time does not run backwards");
            self.now = at;
            self.happen(happening);
            if self.trace.events() > EVENTS_MAX {
                self.checker.violation("progress", format!("the run has not ended after {EVENTS_MAX} events"));
            }
        }
        self.report()
    }

    fn report(mut self) -> Report {
        self.checker.finish();
        self.count_faults();
        let (committed, aborted) = self.checker.outcomes();
        let unknown = self.checker.histories.values().filter(|history| history.told == Told::Nothing).count();
        self.counts.virtual_ms = (self.now - EPOCH_NS) / 1_000_000;
        self.counts.events = self.trace.events();
        self.counts.committed = committed as u64;
        self.counts.aborted = aborted as u64;
        self.counts.unknown = unknown as u64;
        self.counts.divided = self.checker.divided() as u64;
        (self.counts.elections, self.counts.led, self.counts.views, self.counts.view_max) = self.checker.elections();
        for violation in &self.checker.violations {
            self.trace.line(self.now, || format!("BROKEN {}: {}", violation.checker, violation.what));
        }
        if !self.checker.violations.is_empty() {
            self.trace_undecided();
        }
        Report {
            scenario: self.scenario.name,
            seed: self.seed,
            words: self.scenario.words().to_vec(),
            violations: self.checker.violations,
            counts: self.counts,
            fingerprint: self.trace.fingerprint(),
            trace: self.trace.into_lines(),
        }
    }

    /// What replicas hold undecided when a run ends badly, and what each of it waits for: mostly that is the reason.
    fn trace_undecided(&mut self) {
        for replica in &self.replicas {
            for transaction in replica.undecided() {
                let dependencies: Vec<String> =
                    transaction.reads().iter().filter_map(|read| Some(format!("{:?} of {}", read.dependency?, read.key))).collect();
                let writes: Vec<String> = transaction.writes().iter().map(|write| write.key.to_string()).collect();
                self.trace.line(self.now, || {
                    let (id, at) = (transaction.id(), transaction.timestamp());
                    format!(
                        "{} holds {id:?} at {at:?}, which writes {}, and read from [{}]",
                        replica.id,
                        writes.join(" "),
                        dependencies.join(", ")
                    )
                });
            }
        }
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
                self.checker.violation("faults", what);
            }
        }
    }

    /// The last client, which only looks at the end.
    pub fn auditor(&self) -> usize {
        self.clients.len() - 1
    }

    // Time.

    /// Has something happen so many nanoseconds from now.
    pub fn after(&mut self, nanoseconds: u64, happening: Happening) {
        self.at(self.now + nanoseconds, happening);
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.happenings += 1;
        self.queue.insert((at.max(self.now), self.happenings), happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { from, from_party, to, to_party, bytes } => self.arrive(from, from_party, to, to_party, bytes),
            Happening::Turn(replica) => self.turn(replica),
            Happening::Wake(actor) => self.wake(actor),
            Happening::Begin { client, life } => {
                if self.clients[client].lives == life && self.clients[client].job.is_none() {
                    self.begin(client);
                }
            }
            Happening::Abandon { client, job } => self.abandon(client, job),
            Happening::Trouble => self.trouble(),
            Happening::Restart(replica) => self.restart(replica),
            Happening::Upgrade(shard) => self.upgrade(shard),
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
        }
    }

    /// Arranges for an actor to be woken when its machine wants to be.
    fn arm(&mut self, actor: Actor) {
        let now = self.now;
        let (wakes_at, armed) = match actor {
            Actor::Replica(at) => (self.replicas[at].wakes_at(), &mut self.replicas[at].armed),
            Actor::Client(at) => (self.clients[at].wakes_at(), &mut self.clients[at].armed),
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
            self.at(at, Happening::Wake(actor));
        }
        if self.spins > SPINS_MAX {
            self.checker.violation("progress", format!("{actor:?} wants to be woken again and again, and time stands still"));
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
                    self.step_client(at, Heard::Tick);
                }
            }
        }
    }
}

pub(crate) fn client_id(at: usize) -> ClientId {
    ClientId(at as u64 + 1)
}
