//! A Byzantine client as a machine, in the place of a correct client's coordinator.

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

/// How long an equivocating client waits for votes that justify both decisions, in milliseconds.
const VOTE_WAIT_MS: u64 = 300;
/// How long the second half of split sends is delayed, in milliseconds: the first has arrived by then, if nothing is wrong.
const SECOND_SEND_MS: u64 = 20;
/// How many transactions that have begun and not reached their commit are remembered.
const BEGUN_MAX: usize = 4_096;

/// How many multi-step attacks a client runs at once.
const ATTACKS_MAX: usize = 4;

/// How a Byzantine client misbehaves.
#[derive(Clone, Debug)]
pub struct AttackConfig {
    /// Its strategies, at least one; each attacked transaction takes one of them.
    pub strategies: Vec<ClientStrategy>,
    /// How many of a thousand transactions it attacks.
    pub per_mille: u64,
    /// The clients whose names it may use.
    pub victims: Vec<ClientId>,
}

/// How a transaction was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehavior {
    /// It was prepared, at least partly, and abandoned.
    Stalled,
    /// It was decided, and the decision was sent to nobody.
    Hidden(Decision),
    /// Both decisions were logged.
    Equivocated,
}

/// What a Byzantine client reports to its own side.
#[derive(Clone, Debug)]
pub enum ByzantineEvent {
    /// What a correct client would report.
    Honest(Event),
    /// It has abandoned a transaction.
    Abandoned {
        /// The asker's number for it.
        operation: u64,
        /// How.
        misbehavior: Misbehavior,
    },
}

/// What a Byzantine client has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MisbehaviorCounts {
    /// Transactions it finished correctly without an attack.
    pub honest: u64,
    /// Those it abandoned after requesting votes.
    pub stalled: u64,
    /// Those it abandoned decided to commit, without informing any replica.
    pub hidden_commits: u64,
    /// Those it abandoned decided to abort, without informing any replica.
    pub hidden_aborts: u64,
    /// Those of which it logged both decisions.
    pub equivocated: u64,
    /// Those it finished correctly because the votes did not justify both decisions.
    pub spared: u64,
}

impl MisbehaviorCounts {
    /// Transactions it attacked, successfully or not.
    #[must_use]
    pub fn faulty(&self) -> u64 {
        self.abandoned() + self.spared
    }

    /// Transactions it abandoned.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.stalled + self.hidden_commits + self.hidden_aborts + self.equivocated
    }
}

/// The state of an attack on one transaction.
#[derive(Debug)]
struct AttackState {
    strategy: ClientStrategy,
    operation: u64,
    transaction: Transaction,
    heard: Heard,
    /// The coordinator's messages about it, held back until it is clear whether the client can equivocate.
    held: Sends,
    /// Its outcome, held back as well.
    end: Option<Event>,
    /// Whether the coordinator works on it.
    is_driven: bool,
    /// Nothing more is said about it.
    is_abandoned: bool,
}

/// A Byzantine client.
#[derive(Debug)]
pub struct ByzantineClient {
    config: AttackConfig,
    primitives: AttackPrimitives,
    coordinator: Coordinator,
    from_coordinator: OutboxOf<Coordinator>,
    /// The strategy chosen for each transaction that has begun, by timestamp; `None` for correct behaviour.
    begun: BTreeMap<Timestamp, Option<ClientStrategy>>,
    attack_states: BTreeMap<TransactionId, AttackState>,
    operations: BTreeMap<u64, TransactionId>,
    /// Until when the client waits for votes.
    vote_deadlines: Timers<TransactionId>,
    /// The second half of split sends, and when it is sent.
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
    /// A client around `coordinator` that misbehaves as configured.
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

    /// The correct client inside.
    #[must_use]
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Restarts the client with another `coordinator` and without any state.
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

    /// Begins a transaction to which a correct client would give the timestamp `honest`, and returns the timestamp to use. Without
    /// this call, strategies about timestamps have no effect.
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
            self.stay_honest(now, Command::Commit { operation, transaction, dependencies }, out);
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
                self.send_twin_first(now, &transaction, out);
            }
            ClientStrategy::DecideTwice | ClientStrategy::HurryLeaders => {
                let goal = if strategy == ClientStrategy::DecideTwice { AttackGoal::DecideTwice } else { AttackGoal::Hurry };
                self.attack(goal, &transaction, out);
                self.send_twin_first(now, &transaction, out);
                self.stall(operation, out);
            }
            ClientStrategy::ForgeProofs | ClientStrategy::LogFreely => {
                let goal = if strategy == ClientStrategy::ForgeProofs { AttackGoal::Forge } else { AttackGoal::LogFreely };
                self.attack(goal, &transaction, out);
                self.stay_honest(now, Command::Commit { operation, transaction, dependencies }, out);
            }
            ClientStrategy::VouchForLies => {
                if let Some((spoofed, lies)) = self.primitives.spoof(&transaction) {
                    self.attack(AttackGoal::Vouch, &spoofed, out);
                    out.sends.extend(lies);
                }
                self.stall(operation, out);
            }
            _ => match self.primitives.lies(strategy, &transaction) {
                Some(lies) => {
                    out.sends.extend(lies);
                    self.stall(operation, out);
                }
                None => {
                    self.stay_honest(now, Command::Commit { operation, transaction, dependencies }, out);
                }
            },
        }
    }

    fn stay_honest(&mut self, now: Time, command: Command, out: &mut Out) {
        self.counts.honest += 1;
        self.drive(now, Input::Command(command), out);
    }

    /// Says nothing more about a transaction that was asked for.
    fn stall(&mut self, operation: u64, out: &mut Out) {
        self.counts.stalled += 1;
        out.emit(ByzantineEvent::Abandoned { operation, misbehavior: Misbehavior::Stalled });
    }

    /// Sends a few replicas a twin of the transaction, and a little later all of them the transaction itself.
    fn send_twin_first(&mut self, now: Time, transaction: &Transaction, out: &mut Out) {
        let id = transaction.id();
        let (first, second) = self.primitives.divide(transaction);
        out.sends.extend(first);
        self.second_sends.insert(id, second);
        self.second_send_timers.set(id, now.after_ms(SECOND_SEND_MS));
    }

    /// Begins a multi-step attack on a transaction, and drops the oldest one when there are too many.
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

    /// The votes do not justify both decisions: sends what the coordinator wanted to send.
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
        // Kept until the coordinator has finished it, so that its messages are suppressed until then.
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

    /// Sends a message of the coordinator, suppresses it, or holds it back.
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
    type Unsigned = std::convert::Infallible;
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
