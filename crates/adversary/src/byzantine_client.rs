//! A cheating client as a machine: it stands where an honest client's coordinator would.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use basil::certificate::{Certificate, Decision};
use basil::{Command, Coordinator, Event, Message, Transaction};
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, Outbox, OutboxOf, Time, Timers};
use random::Random;
use types::{ClientId, Cluster, Party, Timestamp, TransactionId};

use crate::attack_primitives::{AttackPrimitives, Heard, Sends};
use crate::multi_step_attack::{AttackGoal, MultiStepAttack};
use crate::strategy::ClientStrategy;

/// How long whoever hopes to equivocate waits for the votes that would let it, in milliseconds.
const VOTE_WAIT_MS: u64 = 300;
/// How long it takes for sure until what was said has arrived where nothing is wrong, in milliseconds.
const SECOND_SEND_MS: u64 = 20;
/// How many transactions that have begun and not come to their commit are remembered.
const BEGUN_MAX: usize = 4_096;

/// How many transactions a client plots about at once.
const ATTACKS_MAX: usize = 4;

/// What a client that cheats makes a habit of.
#[derive(Clone, Debug)]
pub struct AttackConfig {
    /// The ways it cheats, of which each transaction takes one; at least one.
    pub strategies: Vec<ClientStrategy>,
    /// How many of a thousand transactions it cheats with.
    pub per_mille: u64,
    /// Whose names it may use for its lies.
    pub victims: Vec<ClientId>,
}

/// What was done to a transaction that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehavior {
    /// It was prepared, or something like it, and left.
    Stalled,
    /// It was decided, and nobody told.
    Hidden(Decision),
    /// Both ends were logged.
    Equivocated,
}

/// What a cheating client tells its own side.
#[derive(Clone, Debug)]
pub enum ByzantineEvent {
    /// What an honest client would be told.
    Honest(Event),
    /// It has left a transaction.
    Abandoned {
        /// The asker's number for it.
        operation: u64,
        /// As what.
        misbehavior: Misbehavior,
    },
}

/// What a cheating client has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MisbehaviorCounts {
    /// Transactions it ended as an honest client does.
    pub honest: u64,
    /// Those it left with votes asked for.
    pub stalled: u64,
    /// Those it left decided to commit, without telling.
    pub hidden_commits: u64,
    /// Those it left decided to abort, without telling.
    pub hidden_aborts: u64,
    /// Those it logged both ends of.
    pub equivocated: u64,
    /// Those it would have equivocated about, had the votes let it, and then ended as an honest client does.
    pub spared: u64,
}

impl MisbehaviorCounts {
    /// Transactions it meant to cheat with, whether it could or not.
    #[must_use]
    pub fn faulty(&self) -> u64 {
        self.abandoned() + self.spared
    }

    /// Transactions it left to others.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.stalled + self.hidden_commits + self.hidden_aborts + self.equivocated
    }
}

/// A transaction that is not gone about honestly.
#[derive(Debug)]
struct AttackState {
    strategy: ClientStrategy,
    operation: u64,
    transaction: Transaction,
    heard: Heard,
    /// What the coordinator says about it, and hears no answer to until it is clear whether a better lie can be told.
    held: Sends,
    /// Its end, held back with the rest.
    end: Option<Event>,
    /// Whether the coordinator works on it.
    is_driven: bool,
    /// Nothing more is said about it.
    is_abandoned: bool,
}

/// A client that cheats.
#[derive(Debug)]
pub struct ByzantineClient {
    config: AttackConfig,
    primitives: AttackPrimitives,
    coordinator: Coordinator,
    from_coordinator: OutboxOf<Coordinator>,
    /// How the transactions with these timestamps, which have begun, are going to be gone about; nothing is honestly.
    begun: BTreeMap<Timestamp, Option<ClientStrategy>>,
    attack_states: BTreeMap<TransactionId, AttackState>,
    operations: BTreeMap<u64, TransactionId>,
    /// Until when it is waited for votes.
    vote_deadlines: Timers<TransactionId>,
    /// What is said when that of before has arrived, and when.
    second_sends: BTreeMap<TransactionId, Sends>,
    second_send_timers: Timers<TransactionId>,
    attacks: VecDeque<MultiStepAttack>,
    /// A transaction of its own that committed, with the proof.
    committed: Option<(Transaction, Arc<Certificate>)>,
    cluster: Arc<Cluster>,
    counts: MisbehaviorCounts,
}

type Out = OutboxOf<ByzantineClient>;

impl ByzantineClient {
    /// A client that would be honest with `coordinator`, and has these habits.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, coordinator: Coordinator, config: AttackConfig, random: Random) -> Self {
        let primitives = AttackPrimitives::new(cluster.clone(), random, config.victims.clone());
        Self {
            config,
            primitives,
            coordinator,
            from_coordinator: Outbox::default(),
            begun: BTreeMap::new(),
            attack_states: BTreeMap::new(),
            operations: BTreeMap::new(),
            vote_deadlines: Timers::default(),
            second_sends: BTreeMap::new(),
            second_send_timers: Timers::default(),
            attacks: VecDeque::new(),
            committed: None,
            cluster,
            counts: MisbehaviorCounts::default(),
        }
    }

    /// What it has done since it started.
    #[must_use]
    pub fn counts(&self) -> MisbehaviorCounts {
        self.counts
    }

    /// The honest part of it.
    #[must_use]
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// It is another process from now on, with another `coordinator`, and knows nothing of what it was at.
    pub fn forget(&mut self, coordinator: Coordinator) {
        self.coordinator = coordinator;
        self.begun.clear();
        self.attack_states.clear();
        self.operations.clear();
        self.vote_deadlines = Timers::default();
        self.second_sends.clear();
        self.second_send_timers = Timers::default();
        self.attacks.clear();
    }

    /// A transaction begins, which an honest client would give the timestamp `honest`; gives the one it gets. Whoever does not
    /// ask for it gives up those ways to cheat that are about timestamps.
    pub fn begin(&mut self, honest: Timestamp) -> Timestamp {
        let strategy = self.choose();
        let timestamp = strategy.map_or(honest, |strategy| self.primitives.timestamp(strategy, honest));
        self.begun.insert(timestamp, strategy);
        while self.begun.len() > BEGUN_MAX {
            self.begun.pop_first();
        }
        timestamp
    }

    fn choose(&mut self) -> Option<ClientStrategy> {
        let AttackConfig { strategies, per_mille, .. } = &self.config;
        (*per_mille >= 1_000 || self.primitives.random.chance(*per_mille))
            .then(|| strategies[self.primitives.random.index(strategies.len())])
    }

    // What its own side asks.

    fn on_command(&mut self, now: Time, command: Command, out: &mut Out) {
        let Command::Commit { operation, transaction, dependencies } = command else {
            self.drive(now, Input::Command(command), out);
            return;
        };
        let chosen = self.begun.remove(&transaction.timestamp());
        let Some(strategy) = chosen.unwrap_or_else(|| self.choose()) else {
            self.counts.honest += 1;
            self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
            return;
        };
        let id = transaction.id();
        let state = |is_driven| AttackState {
            strategy,
            operation,
            transaction: transaction.clone(),
            heard: Heard::default(),
            held: Vec::new(),
            end: None,
            is_driven,
            is_abandoned: false,
        };
        match strategy {
            ClientStrategy::StallLate | ClientStrategy::EquivocateReal | ClientStrategy::EquivocateForced => {
                self.operations.insert(operation, id);
                self.attack_states.insert(id, state(true));
                self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
            }
            ClientStrategy::EquivocateSplit => {
                self.attack_states.insert(id, state(false));
                self.vote_deadlines.set(id, now.after_ms(VOTE_WAIT_MS));
                let (first, second) = self.primitives.divide(&transaction);
                out.sends.extend(first);
                self.second_sends.insert(id, second);
                self.second_send_timers.set(id, now.after_ms(SECOND_SEND_MS));
            }
            ClientStrategy::DecideTwice | ClientStrategy::HurryLeaders => {
                let goal = if strategy == ClientStrategy::DecideTwice { AttackGoal::DecideTwice } else { AttackGoal::Hurry };
                self.attack(goal, &transaction, out);
                let (first, second) = self.primitives.divide(&transaction);
                out.sends.extend(first);
                self.second_sends.insert(id, second);
                self.second_send_timers.set(id, now.after_ms(SECOND_SEND_MS));
                self.counts.stalled += 1;
                out.emit(ByzantineEvent::Abandoned { operation, misbehavior: Misbehavior::Stalled });
            }
            ClientStrategy::ForgeProofs | ClientStrategy::LogFreely => {
                let goal = if strategy == ClientStrategy::ForgeProofs { AttackGoal::Forge } else { AttackGoal::LogFreely };
                self.attack(goal, &transaction, out);
                self.counts.honest += 1;
                self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
            }
            ClientStrategy::VouchForLies => {
                if let Some((spoofed, lies)) = self.primitives.spoof(&transaction) {
                    self.attack(AttackGoal::Vouch, &spoofed, out);
                    out.sends.extend(lies);
                }
                self.counts.stalled += 1;
                out.emit(ByzantineEvent::Abandoned { operation, misbehavior: Misbehavior::Stalled });
            }
            _ => match self.primitives.lies(strategy, &transaction) {
                Some(lies) => {
                    out.sends.extend(lies);
                    self.counts.stalled += 1;
                    out.emit(ByzantineEvent::Abandoned { operation, misbehavior: Misbehavior::Stalled });
                }
                None => {
                    self.counts.honest += 1;
                    self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
                }
            },
        }
    }

    /// Begins to plot about a transaction, and leaves the oldest plot when there are too many.
    fn attack(&mut self, goal: AttackGoal, transaction: &Transaction, out: &mut Out) {
        let bystander = self.primitives.victim();
        let attack = MultiStepAttack::new(goal, self.cluster.clone(), transaction.clone(), bystander);
        out.sends.extend(attack.begin(&mut self.primitives.random));
        self.attacks.push_back(attack);
        if self.attacks.len() > ATTACKS_MAX {
            self.attacks.pop_front();
        }
    }

    // What replicas say.

    /// Notes a vote, and equivocates once the votes let it.
    fn hear(&mut self, from: Party, message: &Message, out: &mut Out) {
        for attack in &mut self.attacks {
            out.sends.extend(attack.hear(message, &mut self.primitives.random));
        }
        let Message::Voted { vote, .. } = message else { return };
        let id = vote.statement.id;
        let Some(state) = self.attack_states.get_mut(&id).filter(|state| !state.is_abandoned) else { return };
        if from != Party::Replica(vote.replica) {
            return;
        }
        state.heard.note(vote);
        if !matches!(state.strategy, ClientStrategy::EquivocateReal | ClientStrategy::EquivocateSplit) {
            return;
        }
        if let Some(lies) = self.primitives.equivocate(&state.transaction, &state.heard) {
            out.sends.extend(lies);
            self.abandon(id, Misbehavior::Equivocated, out);
        } else if state.heard.voters() == self.primitives.replicas_of(&state.transaction).count() {
            self.stop_waiting_for_votes(id, out);
        }
    }

    /// The votes will not let it equivocate: whatever the coordinator wanted to say is said.
    fn stop_waiting_for_votes(&mut self, id: TransactionId, out: &mut Out) {
        self.vote_deadlines.cancel(&id);
        match self.attack_states.get(&id) {
            Some(state) if !state.is_driven => self.abandon(id, Misbehavior::Stalled, out),
            Some(_) => {
                let Some(state) = self.attack_states.remove(&id) else { return };
                self.operations.remove(&state.operation);
                self.counts.spared += 1;
                out.sends.extend(state.held);
                if let Some(end) = state.end {
                    out.emit(ByzantineEvent::Honest(end));
                }
            }
            None => {}
        }
    }

    /// Nothing more is said about `id`.
    fn abandon(&mut self, id: TransactionId, misbehavior: Misbehavior, out: &mut Out) {
        self.vote_deadlines.cancel(&id);
        let Some(state) = self.attack_states.get_mut(&id) else { return };
        state.is_abandoned = true;
        state.held.clear();
        match misbehavior {
            Misbehavior::Stalled => self.counts.stalled += 1,
            Misbehavior::Hidden(Decision::Commit) => self.counts.hidden_commits += 1,
            Misbehavior::Hidden(Decision::Abort) => self.counts.hidden_aborts += 1,
            Misbehavior::Equivocated => self.counts.equivocated += 1,
        }
        out.emit(ByzantineEvent::Abandoned { operation: state.operation, misbehavior });
        // Kept until the coordinator is through with it, so that it is silenced until then.
        if !state.is_driven || state.end.is_some() {
            self.operations.remove(&state.operation);
            self.attack_states.remove(&id);
        }
    }

    // What the coordinator makes of it.

    fn drive(&mut self, now: Time, input: InputOf<Coordinator>, out: &mut Out) {
        let mut said = std::mem::take(&mut self.from_coordinator);
        self.coordinator.step(now, input, &mut said);
        for (to, message) in said.sends.drain(..) {
            self.forward(now, to, message, out);
        }
        for event in said.events.drain(..) {
            self.report(event, out);
        }
        self.from_coordinator = said;
    }

    /// Says what the coordinator wants to say, or does not, or not yet.
    fn forward(&mut self, now: Time, to: Party, message: Message, out: &mut Out) {
        let subject = subject_of(&message);
        let Some((id, state)) = subject.and_then(|id| self.attack_states.get_mut(&id).map(|state| (id, state))) else {
            out.send(to, message);
            return;
        };
        let asks_for_votes = matches!(message, Message::Prepare { .. } | Message::Recover { .. });
        match state.strategy {
            _ if state.is_abandoned => {}
            ClientStrategy::StallLate if matches!(message, Message::Writeback { .. }) => {}
            ClientStrategy::EquivocateReal if !asks_for_votes => {
                if state.held.is_empty() {
                    self.vote_deadlines.set(id, now.after_ms(VOTE_WAIT_MS));
                }
                state.held.push((to, message));
            }
            ClientStrategy::EquivocateForced if !asks_for_votes => {
                out.sends.extend(self.primitives.equivocate_anyway(&state.transaction, &state.heard));
                self.abandon(id, Misbehavior::Equivocated, out);
            }
            _ => out.send(to, message),
        }
    }

    fn report(&mut self, event: Event, out: &mut Out) {
        if let Event::Ended { result: Ok((certificate, _)), .. } = &event {
            for attack in self.attacks.iter_mut().filter(|attack| attack.id() == certificate.id) {
                out.sends.extend(attack.ended(certificate, self.committed.as_ref(), &mut self.primitives.random));
                if certificate.decision == Decision::Commit {
                    self.committed = Some((attack.transaction().clone(), certificate.clone()));
                }
            }
        }
        let Event::Ended { operation, result } = &event else {
            out.emit(ByzantineEvent::Honest(event));
            return;
        };
        let Some(id) = self.operations.get(operation).copied() else {
            out.emit(ByzantineEvent::Honest(event));
            return;
        };
        let Some(state) = self.attack_states.get_mut(&id) else { return };
        match (state.strategy, result) {
            _ if state.is_abandoned => {}
            (ClientStrategy::StallLate, Ok((certificate, _))) => {
                let misbehavior = Misbehavior::Hidden(certificate.decision);
                state.end = Some(event);
                self.abandon(id, misbehavior, out);
                return;
            }
            (ClientStrategy::EquivocateReal, Ok(_)) if !state.held.is_empty() => {
                state.end = Some(event);
                return;
            }
            _ => {
                self.counts.spared += 1;
                out.emit(ByzantineEvent::Honest(event));
            }
        }
        self.vote_deadlines.cancel(&id);
        if let Some(state) = self.attack_states.remove(&id) {
            self.operations.remove(&state.operation);
        }
    }
}

/// The transaction that a request is about.
fn subject_of(message: &Message) -> Option<TransactionId> {
    match message {
        Message::Prepare { transaction }
        | Message::Recover { transaction, .. }
        | Message::Log { transaction, .. }
        | Message::InvokeFallback { transaction, .. } => Some(transaction.id()),
        Message::Writeback { certificate, .. } => Some(certificate.id),
        _ => None,
    }
}

impl Machine for ByzantineClient {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = std::convert::Infallible;
    type Event = ByzantineEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(command) => self.on_command(now, command, outbox),
            Input::Message { from, message } => {
                self.hear(from, &message, outbox);
                self.drive(now, Input::Message { from, message }, outbox);
            }
            Input::Tick => {
                while let Some(id) = self.second_send_timers.expire(now) {
                    outbox.sends.extend(self.second_sends.remove(&id).unwrap_or_default());
                }
                while let Some(id) = self.vote_deadlines.expire(now) {
                    self.stop_waiting_for_votes(id, outbox);
                }
                self.drive(now, Input::Tick, outbox);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        [self.coordinator.deadline(), self.vote_deadlines.next(), self.second_send_timers.next()].into_iter().flatten().min()
    }
}

impl Durable for ByzantineClient {
    type Failure = std::convert::Infallible;

    /// It keeps no more than an honest client does.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}
