//! The world: one line of events in virtual time, and everybody in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::{Command, Decision, Event, Failure, Message, Path};
use bytes::Bytes;
use crypto::{Sealer, SecretKey, Signatures, Verified, Verifier};
use machine::Voters;
use types::codec::{Decode, Encode};
use types::{ClientId, Cluster, ClusterId, Key, Party, Permission, Placement, ReplicaId, ShardId, Transaction};

use crate::adversary::{CheatEvent, Habits, Liar};
use crate::checker::{Checker, History, Told};
use crate::client::{ClientActor, Heard, Next};
use crate::clock::{Clock, EPOCH_NS};
use crate::network::Network;
use crate::random::Random;
use crate::replica::{Parts, ReplicaActor, friends_of};
use crate::report::{Counts, Report};
use crate::scenario::{Scenario, Setting};
use crate::trace::{Trace, Tracing};
use crate::trouble::Phase;
use crate::workload::Plan;

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
    pub checker: Checker,
    pub trace: Trace,
    pub counts: Counts,
    pub phase: Phase,
    spins: u64,
    #[cfg(test)]
    pub sabotage: Option<crate::sabotage::Sabotage>,
}

fn secret(seed: u64, name: &str) -> SecretKey {
    let mut random = Random::stream(seed, name);
    let mut bytes = [0; 32];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    SecretKey::from_bytes(bytes)
}

impl World {
    pub fn new(scenario: &Scenario, seed: u64, tracing: Tracing) -> Self {
        let setting = Setting::draw(scenario, seed);
        // The auditor comes last: it does nothing before the end.
        let client_count = setting.clients + setting.rogues.len() + 1;
        let secrets: Vec<Vec<SecretKey>> = (0..setting.shards)
            .map(|shard| (0..5 * setting.faults + 1).map(|index| secret(seed, &format!("replica {shard} {index}"))).collect())
            .collect();
        let keys = secrets.iter().map(|shard| shard.iter().map(SecretKey::public).collect()).collect();
        let everywhere = vec![Key::from("")];
        let clients = (0..client_count).map(|at| {
            let public_key = secret(seed, &format!("client {at}")).public();
            let permission = Permission { public_key, read_prefixes: everywhere.clone(), write_prefixes: everywhere.clone() };
            (client_id(at), permission)
        });
        let id = ClusterId::new([7; 16]);
        let cluster = Arc::new(
            Cluster::new(id, setting.faults, Placement::Hash, keys, clients.collect()).expect("a setting describes a cluster that can be"),
        );
        let verifier = |cluster: &Arc<Cluster>| {
            Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 1 << 14).expect("keys drawn from a seed are good keys"))
        };
        let actors = setting.shards * (5 * setting.faults + 1) + client_count;
        let verifiers =
            if setting.verifier_each { (0..actors).map(|_| verifier(&cluster)).collect() } else { vec![verifier(&cluster); actors] };
        let mut world = Self {
            network: Network::new(Random::stream(seed, "network"), setting.weather),
            disk: Random::stream(seed, "disk"),
            faults: Random::stream(seed, "faults"),
            scenario: scenario.clone(),
            seed,
            now: EPOCH_NS,
            queue: BTreeMap::new(),
            happenings: 0,
            cluster,
            verifiers,
            replicas: Vec::new(),
            clients: Vec::new(),
            checker: Checker::default(),
            trace: Trace::new(tracing),
            counts: Counts::default(),
            phase: Phase::Trouble,
            spins: 0,
            #[cfg(test)]
            sabotage: None,
            setting,
        };
        world.people(secrets);
        world
    }

    /// A world in which a rule is broken.
    #[cfg(test)]
    pub fn sabotaged(scenario: &Scenario, seed: u64, tracing: Tracing, sabotage: crate::sabotage::Sabotage) -> Self {
        let mut world = Self::new(scenario, seed, tracing);
        world.sabotage = Some(sabotage);
        if sabotage == crate::sabotage::Sabotage::InventTogether {
            for at in 0..world.setting.shards * 6 {
                let replica = &mut world.replicas[at];
                let id = replica.id;
                let honest = world.clients[..world.setting.clients].iter().map(|client| client.id).collect();
                let strategies = vec![crate::adversary::ReplicaStrategy::InventVersions];
                let random = Random::stream(seed, "sabotage");
                replica.liar = (id.index < 2)
                    .then(|| Liar::new(id, world.cluster.clone(), strategies, random, std::collections::BTreeSet::new(), honest));
            }
        }
        for replica in &mut world.replicas {
            replica.speaks_before_writing = sabotage == crate::sabotage::Sabotage::SpeakBeforeWriting;
        }
        world
    }

    /// Puts everybody in their place.
    fn people(&mut self, secrets: Vec<Vec<SecretKey>>) {
        let (seed, setting) = (self.seed, self.setting.clone());
        let honest: Vec<ClientId> = (0..setting.clients).map(client_id).collect();
        let rogues: Vec<ClientId> = (setting.clients..setting.clients + setting.rogues.len()).map(client_id).collect();
        self.checker.honest_clients = honest.iter().copied().collect();
        let mut clocks = Random::stream(seed, "clocks");
        for (shard, secrets) in (0..).zip(secrets) {
            let liars = setting.liars.iter().filter(|(at, _, _)| *at == shard).count();
            assert!(liars <= setting.faults, "shard {shard} would have {liars} liars, and survives {}", setting.faults);
            for (index, secret) in (0..).zip(secrets) {
                let id = ReplicaId { shard: ShardId(shard), index };
                let lies = setting.liars.iter().find(|(at, place, _)| (*at, *place) == (shard, index));
                let liar = lies.map(|(_, _, strategies)| {
                    let random = Random::stream(seed, &format!("liar {id}"));
                    self.trace.line(self.now, || format!("{id} lies: {strategies:?}"));
                    Liar::new(id, self.cluster.clone(), strategies.clone(), random, friends_of(&rogues), honest.clone())
                });
                let mut options = setting.replica;
                options.seed ^= u64::from(shard) << 32 | u64::from(index);
                self.replicas.push(ReplicaActor::new(Parts {
                    id,
                    liar,
                    clock: Clock::new(&mut clocks, setting.exact_clocks),
                    sealer: Sealer::new(secret, self.cluster.id(), id, Signatures::Ed25519),
                    cluster: self.cluster.clone(),
                    options,
                    coordinator: setting.coordinator,
                    segment_bytes_max: setting.segment_bytes_max,
                }));
            }
        }
        for at in 0..=setting.clients + setting.rogues.len() {
            let id = client_id(at);
            let cheat = at.checked_sub(setting.clients).and_then(|at| setting.rogues.get(at)).map(|strategies| {
                self.trace.line(self.now, || format!("{id} cheats: {strategies:?}"));
                let habits = Habits { strategies: strategies.clone(), per_mille: 1_000, victims: honest.clone() };
                (habits, Random::stream(seed, &format!("rogue {id}")))
            });
            if at == setting.clients + setting.rogues.len() {
                self.checker.honest_clients.insert(id);
            }
            let random = Random::stream(seed, &format!("client {id}"));
            let clock = Clock::new(&mut clocks, setting.exact_clocks);
            self.clients.push(ClientActor::new(id, self.cluster.clone(), setting.coordinator, clock, random, cheat));
        }
    }

    /// Runs to the end, or to the first broken promise.
    pub fn run(mut self) -> Report {
        for replica in 0..self.replicas.len() {
            self.restart(replica);
        }
        for client in 0..self.auditor() {
            self.begin_after(client, 1_000_000, 20_000_000);
        }
        self.after(100_000_000, Happening::Trouble);
        self.after(self.scenario.trouble_ms * 1_000_000, Happening::Heal);
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
        let (committed, aborted) = self.checker.outcomes();
        let unknown = self.checker.histories.values().filter(|history| history.told == Told::Nothing).count();
        self.counts.virtual_ms = (self.now - EPOCH_NS) / 1_000_000;
        self.counts.events = self.trace.events();
        self.counts.committed = committed as u64;
        self.counts.aborted = aborted as u64;
        self.counts.unknown = unknown as u64;
        self.counts.divided = self.checker.divided() as u64;
        for violation in &self.checker.violations {
            self.trace.line(self.now, || format!("BROKEN {}: {}", violation.checker, violation.what));
        }
        Report {
            scenario: self.scenario.name,
            seed: self.seed,
            trouble_ms: self.scenario.trouble_ms,
            violations: self.checker.violations,
            counts: self.counts,
            fingerprint: self.trace.fingerprint(),
            trace: self.trace.into_lines(),
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

    // Messages.

    fn actor_of(&self, party: Party) -> Option<Actor> {
        match party {
            Party::Replica(id) => self.replicas.iter().position(|replica| replica.id == id).map(Actor::Replica),
            Party::Client(id, _) => self.clients.iter().position(|client| client.id == id).map(Actor::Client),
        }
    }

    fn is_honest(&self, actor: Actor) -> bool {
        match actor {
            Actor::Replica(at) => self.replicas[at].is_honest(),
            Actor::Client(at) => self.clients[at].is_honest(),
        }
    }

    /// Hands a message to the network, at the true time `departs`.
    fn send(&mut self, from: Actor, from_party: Party, departs: u64, to_party: Party, message: &Message) {
        let Some(to) = self.actor_of(to_party) else { return };
        if self.is_honest(from) {
            self.checker.seen(&self.cluster, message);
        }
        let mut bytes = message.to_bytes();
        if let Actor::Replica(at) = from
            && let Some(liar) = &mut self.replicas[at].liar
        {
            liar.garble(&mut bytes);
        }
        let bytes = Bytes::from(bytes);
        for delay in self.network.fate(from, to) {
            self.at(departs + delay, Happening::Arrive { from, from_party, to, to_party, bytes: bytes.clone() });
        }
    }

    fn arrive(&mut self, from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes) {
        let is_there = match to {
            Actor::Replica(at) => self.replicas[at].node.is_some(),
            Actor::Client(at) => self.clients[at].party() == to_party,
        };
        self.trace.mark(self.now, (bytes.len() as u64) << 8 | u64::from(is_there));
        if !is_there {
            return;
        }
        let Some(message) = self.believe(from, from_party, to, to_party, bytes) else { return };
        self.counts.messages += 1;
        self.checker.seen(&self.cluster, &message);
        self.trace.line(self.now, || format!("{to_party} hears {from_party}: {}", describe(&message)));
        match to {
            Actor::Replica(at) => {
                self.replicas[at].inbox.push((from_party, message));
                self.want_turn(at);
            }
            Actor::Client(at) => self.step_client(at, Heard::Message(from_party, message)),
        }
    }

    /// Decodes and verifies what arrived, as the real shell does. What honest participants say always passes.
    fn believe(&mut self, from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes) -> Option<Verified<Message>> {
        let verifier = match to {
            Actor::Replica(at) => &self.verifiers[at],
            Actor::Client(at) => &self.verifiers[self.replicas.len() + at],
        };
        let why = match Message::from_bytes(bytes, self.cluster.id()) {
            Ok(message) => match verifier.verify(message) {
                Ok(message) => return Some(message),
                Err(rejection) => rejection.to_string(),
            },
            Err(error) => error.to_string(),
        };
        self.counts.refused += 1;
        self.trace.line(self.now, || format!("{to_party} refuses what {from_party} says: {why}"));
        if self.is_honest(from) {
            self.checker.violation("messages", format!("{to_party} refused what {from_party}, which is honest, said: {why}"));
        }
        None
    }

    // Replicas.

    fn want_turn(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        if replica.turn_at.is_none() && replica.node.is_some() {
            let turn_at = self.now.max(replica.busy_until);
            replica.turn_at = Some(turn_at);
            self.at(turn_at, Happening::Turn(at));
        }
    }

    fn turn(&mut self, at: usize) {
        if self.replicas[at].turn_at != Some(self.now) {
            return; // Of a process that is no more.
        }
        let replica = &mut self.replicas[at];
        replica.turn_at = None;
        let turn = replica.turn(self.now, &mut self.disk);
        // A sync takes its time, and now and then a long one; what arrives meanwhile waits for the next turn.
        let sync_us = if self.disk.chance(3) { 20_000 } else { self.disk.between(20, 300) };
        let departs = self.now + sync_us * 1_000;
        replica.busy_until = departs;
        let (id, honest) = (replica.id, replica.is_honest());
        for draft in &turn.sealed {
            self.checker.sealed(id, draft);
        }
        for (to, message) in turn.sends {
            if let (true, Party::Client(client, _), Message::ReadReply { request, .. }) = (honest, to, &message)
                && let Some((timestamp, keys)) = turn.reads.get(&(to, *request))
            {
                self.checker.answered(id, client, *timestamp, keys, &message);
            }
            self.send(Actor::Replica(at), Party::Replica(id), departs, to, &message);
        }
        if turn.died {
            self.crash(at);
        } else {
            self.arm(Actor::Replica(at));
        }
    }

    /// Starts a replica's process, if it is down.
    pub fn restart(&mut self, at: usize) {
        if self.replicas[at].node.is_some() {
            return;
        }
        let id = self.replicas[at].id;
        match self.replicas[at].start(self.now) {
            Ok(()) => {
                self.trace.mark(self.now, 0xa11e ^ at as u64);
                self.trace.line(self.now, || format!("{id} starts"));
                self.arm(Actor::Replica(at));
                self.ask_again(at);
            }
            Err(error) => self.checker.violation("durability", format!("{id} cannot come back from its disk: {error}")),
        }
    }

    /// Somebody curious asks a replica that came back what it thinks of what it voted on before: it must think the same.
    fn ask_again(&mut self, at: usize) {
        let auditor = self.clients[self.auditor()].party();
        for transaction in self.checker.recent(self.replicas[at].id) {
            let message = Message::Recover { transaction, evidence: Vec::new() };
            let asked = self.verifiers[at].verify(message).expect("a message without a seal claims nothing");
            self.replicas[at].inbox.push((auditor, asked));
        }
        if !self.replicas[at].inbox.is_empty() {
            self.want_turn(at);
        }
    }

    // Clients.

    /// Has a client begin its next transaction after a while.
    pub fn begin_after(&mut self, client: usize, least_ns: u64, most_ns: u64) {
        let wait = self.clients[client].random.between(least_ns, most_ns);
        let life = self.clients[client].lives;
        self.after(wait, Happening::Begin { client, life });
    }

    fn begin(&mut self, at: usize) {
        let Some(plan) = self.next_plan(at) else { return };
        let client = &mut self.clients[at];
        let party = client.party();
        self.trace.line(self.now, || format!("{party} begins: {plan:?}"));
        let next = client.begin(self.now, plan);
        let (id, is_rogue) = (client.id, !client.is_honest());
        let job = client.job.as_ref().map_or(0, |job| job.number);
        if is_rogue {
            let patience = client.random.between(60, 500) * 1_000_000;
            self.after(patience, Happening::Abandon { client: at, job });
        } else {
            self.checker.began(id);
        }
        self.go_on(at, next);
    }

    fn go_on(&mut self, at: usize, next: Next) {
        match next {
            Next::Command(command) => self.step_client(at, Heard::Command(command)),
            Next::Commit(transaction, dependencies, settled) => self.commit(at, transaction, dependencies, settled),
        }
    }

    fn commit(&mut self, at: usize, transaction: Transaction, dependencies: Vec<Transaction>, settled: Option<Vec<Voters>>) {
        let client = &mut self.clients[at];
        let Some(job) = &client.job else { return };
        let (party, operation) = (client.party(), job.operation);
        self.trace.line(self.now, || format!("{party} commits {:?} at {:?}", transaction.id(), transaction.timestamp()));
        if client.is_honest() {
            let (plan, reads) = (job.plan.clone(), job.reads.clone());
            self.checker.issued(History { plan, reads, transaction: transaction.clone(), told: Told::Nothing });
        }
        let command = match settled {
            Some(settled) => Command::CommitReads { operation, transaction, settled },
            None => Command::Commit { operation, transaction, dependencies },
        };
        self.step_client(at, Heard::Command(command));
    }

    fn step_client(&mut self, at: usize, heard: Heard) {
        let client = &mut self.clients[at];
        let local = client.clock.read(self.now);
        let said = client.step(local, heard);
        let party = client.party();
        for (to, message) in said.sends {
            self.send(Actor::Client(at), party, self.now, to, &message);
        }
        self.arm(Actor::Client(at));
        for event in said.events {
            match event {
                CheatEvent::Honest(event) => self.on_event(at, event),
                CheatEvent::Left { operation, .. } => self.on_left(at, operation),
            }
        }
    }

    /// A client that cheats has left what it was at, and goes on to the next.
    fn on_left(&mut self, at: usize, operation: u64) {
        if self.clients[at].job.as_ref().is_some_and(|job| job.operation == operation) {
            self.clients[at].job = None;
            self.begin_after(at, 10_000, 40_000_000);
        }
    }

    fn on_event(&mut self, at: usize, event: Event) {
        let is_honest = self.clients[at].is_honest();
        let id = self.clients[at].id;
        let Some(job) = &mut self.clients[at].job else { return };
        match event {
            Event::Read { operation, result } if operation == job.operation => match result {
                Ok(found) => {
                    job.reads.extend(found.iter().map(|one| (one.key.clone(), one.version, one.value.clone())));
                    if is_honest {
                        self.checker.read(id, &found);
                    }
                    if let Some(buffer) = &mut job.buffer {
                        found.into_iter().for_each(|one| buffer.found(one));
                    }
                    if let Some(next) = self.clients[at].advance() {
                        self.go_on(at, next);
                    }
                }
                Err(failure) => self.on_failure(at, failure),
            },
            Event::Ended { operation, result } if operation == job.operation => match result {
                Ok((certificate, path)) => {
                    self.trace.line(self.now, || format!("{id} is told {:?} of {:?} ({path:?})", certificate.decision, certificate.id));
                    if is_honest {
                        self.checker.told(&self.cluster, certificate.id, &certificate);
                        self.counts.fast += u64::from(path == Path::Fast && certificate.decision == Decision::Commit);
                    } else {
                        self.counts.rogue_ended += 1;
                    }
                    let committed = certificate.decision == Decision::Commit;
                    self.clients[at].job = None;
                    self.clients[at].committed_since_heal += u64::from(committed && self.phase != Phase::Trouble);
                    self.begin_after(at, 10_000, if committed { 5_000_000 } else { 40_000_000 });
                }
                Err(failure) => self.on_failure(at, failure),
            },
            Event::Settled { operation } if operation == job.operation => {
                let transaction = job.transaction.as_ref().map(Transaction::id);
                self.trace.line(self.now, || format!("{id} is told that {transaction:?}, which only read, has committed"));
                if let (true, Some(transaction)) = (is_honest, transaction) {
                    self.checker.settled(&self.cluster, transaction);
                    self.counts.settled += 1;
                }
                self.clients[at].job = None;
                self.clients[at].committed_since_heal += u64::from(self.phase != Phase::Trouble);
                self.begin_after(at, 10_000, 5_000_000);
            }
            _ => {}
        }
    }

    fn on_failure(&mut self, at: usize, failure: Failure) {
        let client = &mut self.clients[at];
        let Some(job) = client.job.take() else { return };
        let (id, plan) = (client.id, job.plan.name());
        self.trace.line(self.now, || format!("{id} fails: {failure:?} of {plan}"));
        if client.is_honest() {
            if let (Failure::Refused(_), Some(transaction)) = (failure, &job.transaction) {
                self.checker.told_never(transaction.id());
            }
            if failure == Failure::TimedOut && self.phase.healed_before(job.began) {
                let name = job.transaction.map_or_else(|| "its reads".to_owned(), |transaction| format!("{:?}", transaction.id()));
                self.checker.violation("progress", format!("{id} began a {plan} after the trouble was over, and {name} timed out"));
            }
        }
        self.begin_after(at, 1_000_000, 40_000_000);
    }

    fn abandon(&mut self, at: usize, job: u64) {
        if self.clients[at].job.as_ref().is_some_and(|running| running.number == job) {
            self.clients[at].forget();
            self.begin_after(at, 10_000, 20_000_000);
        }
    }

    /// What a client is to do next; nothing when it is to rest.
    fn next_plan(&mut self, at: usize) -> Option<Plan> {
        let is_auditor = at == self.auditor();
        let client = &mut self.clients[at];
        match self.phase {
            Phase::Trouble => Some(Plan::draw(&mut client.random)),
            Phase::Healed { .. } if client.is_honest() && !is_auditor => {
                (client.committed_since_heal < crate::trouble::COMMITS_AFTER_HEAL).then(|| Plan::draw_contended(&mut client.random))
            }
            Phase::Audit { .. } if is_auditor => (client.committed_since_heal == 0).then_some(Plan::Everything),
            _ => None,
        }
    }
}

fn client_id(at: usize) -> ClientId {
    ClientId(at as u64 + 1)
}

/// A message in a line.
fn describe(message: &Message) -> String {
    match message {
        Message::Read { request, timestamp, keys } => format!("Read {request} at {timestamp} of {} keys", keys.len()),
        Message::Prepare { transaction } => format!("Prepare {:?}", transaction.id()),
        Message::Recover { transaction, evidence } => format!("Recover {:?} with {} votes", transaction.id(), evidence.len()),
        Message::Log { transaction, decision, .. } => format!("Log {decision:?} of {:?}", transaction.id()),
        Message::Writeback { certificate, .. } => format!("Writeback {:?} of {:?}", certificate.decision, certificate.id),
        Message::ReadReply { request, results, prepared } => {
            format!("ReadReply {request} of {} keys, {} prepared", results.len(), prepared.len())
        }
        Message::Voted { vote, conflict } => {
            let why = if conflict.is_some() { ", with a conflict" } else { "" };
            format!("Voted {:?} on {:?}{why}", vote.statement.vote, vote.statement.id)
        }
        Message::Logged { logged } => format!("Logged {:?}", logged.statement),
        Message::Decided { certificate } => format!("Decided {:?} of {:?}", certificate.decision, certificate.id),
        other => format!("{other:?}").chars().take(160).collect(),
    }
}
