//! A cheating client as a machine: it stands where an honest client's coordinator would.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use basil::certificate::{Certificate, Decision};
use basil::{Command, Coordinator, Event, Message, Transaction};
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, Outbox, OutboxOf, Time, Timers};
use random::Random;
use types::{ClientId, Cluster, Party, Timestamp, TransactionId};

use crate::plot::{Aim, Plot};
use crate::rogue::{Heard, Rogue, Sends};
use crate::strategy::ClientStrategy;

/// How long whoever hopes to equivocate waits for the votes that would let it, in milliseconds.
const HOPE_MS: u64 = 300;
/// How long it takes for sure until what was said has arrived where nothing is wrong, in milliseconds.
const FOLLOW_MS: u64 = 20;
/// How many transactions that have begun and not come to their commit are remembered.
const BEGUN_MAX: usize = 4_096;

/// How many transactions a client plots about at once.
const PLOTS_MAX: usize = 4;

/// What a client that cheats makes a habit of.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The ways it cheats, of which each transaction takes one; at least one.
    pub strategies: Vec<ClientStrategy>,
    /// How many of a thousand transactions it cheats with.
    pub per_mille: u64,
    /// Whose names it may use for its lies.
    pub victims: Vec<ClientId>,
}

/// What was done to a transaction that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It was prepared, or something like it, and left.
    Stalled,
    /// It was decided, and nobody told.
    Untold(Decision),
    /// Both ends were logged.
    Equivocated,
}

/// What a cheating client tells its own side.
#[derive(Clone, Debug)]
pub enum CheatEvent {
    /// What an honest client would be told.
    Honest(Event),
    /// It has left a transaction.
    Left {
        /// The asker's number for it.
        operation: u64,
        /// As what.
        deed: Deed,
    },
}

/// What a cheating client has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeedCounts {
    /// Transactions it ended as an honest client does.
    pub honest: u64,
    /// Those it left with votes asked for.
    pub stalled: u64,
    /// Those it left decided to commit, without telling.
    pub untold_commits: u64,
    /// Those it left decided to abort, without telling.
    pub untold_aborts: u64,
    /// Those it logged both ends of.
    pub equivocated: u64,
    /// Those it would have equivocated about, had the votes let it, and then ended as an honest client does.
    pub spared: u64,
}

impl DeedCounts {
    /// Transactions it meant to cheat with, whether it could or not.
    #[must_use]
    pub fn faulty(&self) -> u64 {
        self.left() + self.spared
    }

    /// Transactions it left to others.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.stalled + self.untold_commits + self.untold_aborts + self.equivocated
    }
}

/// A transaction that is not gone about honestly.
#[derive(Debug)]
struct Scheme {
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
    is_left: bool,
}

/// A client that cheats.
#[derive(Debug)]
pub struct Cheater {
    habits: Habits,
    rogue: Rogue,
    coordinator: Coordinator,
    from_coordinator: OutboxOf<Coordinator>,
    /// How the transactions with these timestamps, which have begun, are going to be gone about; nothing is honestly.
    begun: BTreeMap<Timestamp, Option<ClientStrategy>>,
    schemes: BTreeMap<TransactionId, Scheme>,
    operations: BTreeMap<u64, TransactionId>,
    /// Until when it is waited for votes.
    hopes: Timers<TransactionId>,
    /// What is said when that of before has arrived, and when.
    followers: BTreeMap<TransactionId, Sends>,
    follow: Timers<TransactionId>,
    plots: VecDeque<Plot>,
    /// A transaction of its own that committed, with the proof.
    committed: Option<(Transaction, Arc<Certificate>)>,
    cluster: Arc<Cluster>,
    counts: DeedCounts,
}

type Out = OutboxOf<Cheater>;

impl Cheater {
    /// A client that would be honest with `coordinator`, and has these habits.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, coordinator: Coordinator, habits: Habits, random: Random) -> Self {
        let rogue = Rogue::new(cluster.clone(), random, habits.victims.clone());
        Self {
            habits,
            rogue,
            coordinator,
            from_coordinator: Outbox::default(),
            begun: BTreeMap::new(),
            schemes: BTreeMap::new(),
            operations: BTreeMap::new(),
            hopes: Timers::default(),
            followers: BTreeMap::new(),
            follow: Timers::default(),
            plots: VecDeque::new(),
            committed: None,
            cluster,
            counts: DeedCounts::default(),
        }
    }

    /// What it has done since it started.
    #[must_use]
    pub fn counts(&self) -> DeedCounts {
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
        self.schemes.clear();
        self.operations.clear();
        self.hopes = Timers::default();
        self.followers.clear();
        self.follow = Timers::default();
        self.plots.clear();
    }

    /// A transaction begins, which an honest client would give the timestamp `honest`; gives the one it gets. Whoever does not
    /// ask for it gives up those ways to cheat that are about timestamps.
    pub fn begin(&mut self, honest: Timestamp) -> Timestamp {
        let strategy = self.choose();
        let timestamp = strategy.map_or(honest, |strategy| self.rogue.timestamp(strategy, honest));
        self.begun.insert(timestamp, strategy);
        while self.begun.len() > BEGUN_MAX {
            self.begun.pop_first();
        }
        timestamp
    }

    fn choose(&mut self) -> Option<ClientStrategy> {
        let Habits { strategies, per_mille, .. } = &self.habits;
        (*per_mille >= 1_000 || self.rogue.random.chance(*per_mille)).then(|| strategies[self.rogue.random.index(strategies.len())])
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
        let scheme = |is_driven| Scheme {
            strategy,
            operation,
            transaction: transaction.clone(),
            heard: Heard::default(),
            held: Vec::new(),
            end: None,
            is_driven,
            is_left: false,
        };
        match strategy {
            ClientStrategy::StallLate | ClientStrategy::EquivocateReal | ClientStrategy::EquivocateForced => {
                self.operations.insert(operation, id);
                self.schemes.insert(id, scheme(true));
                self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
            }
            ClientStrategy::EquivocateSplit => {
                self.schemes.insert(id, scheme(false));
                self.hopes.set(id, now.after_ms(HOPE_MS));
                let (first, second) = self.rogue.divide(&transaction);
                out.sends.extend(first);
                self.followers.insert(id, second);
                self.follow.set(id, now.after_ms(FOLLOW_MS));
            }
            ClientStrategy::DecideTwice | ClientStrategy::HurryLeaders => {
                let aim = if strategy == ClientStrategy::DecideTwice { Aim::DecideTwice } else { Aim::Hurry };
                self.plot(aim, &transaction, out);
                let (first, second) = self.rogue.divide(&transaction);
                out.sends.extend(first);
                self.followers.insert(id, second);
                self.follow.set(id, now.after_ms(FOLLOW_MS));
                self.counts.stalled += 1;
                out.emit(CheatEvent::Left { operation, deed: Deed::Stalled });
            }
            ClientStrategy::ForgeProofs | ClientStrategy::LogFreely => {
                let aim = if strategy == ClientStrategy::ForgeProofs { Aim::Forge } else { Aim::LogFreely };
                self.plot(aim, &transaction, out);
                self.counts.honest += 1;
                self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
            }
            ClientStrategy::VouchForLies => {
                if let Some((spoofed, lies)) = self.rogue.spoof(&transaction) {
                    self.plot(Aim::Vouch, &spoofed, out);
                    out.sends.extend(lies);
                }
                self.counts.stalled += 1;
                out.emit(CheatEvent::Left { operation, deed: Deed::Stalled });
            }
            _ => match self.rogue.lies(strategy, &transaction) {
                Some(lies) => {
                    out.sends.extend(lies);
                    self.counts.stalled += 1;
                    out.emit(CheatEvent::Left { operation, deed: Deed::Stalled });
                }
                None => {
                    self.counts.honest += 1;
                    self.drive(now, Input::Command(Command::Commit { operation, transaction, dependencies }), out);
                }
            },
        }
    }

    /// Begins to plot about a transaction, and leaves the oldest plot when there are too many.
    fn plot(&mut self, aim: Aim, transaction: &Transaction, out: &mut Out) {
        let bystander = self.rogue.victim();
        let plot = Plot::new(aim, self.cluster.clone(), transaction.clone(), bystander);
        out.sends.extend(plot.begin(&mut self.rogue.random));
        self.plots.push_back(plot);
        if self.plots.len() > PLOTS_MAX {
            self.plots.pop_front();
        }
    }

    // What replicas say.

    /// Notes a vote, and equivocates once the votes let it.
    fn hear(&mut self, from: Party, message: &Message, out: &mut Out) {
        for plot in &mut self.plots {
            out.sends.extend(plot.hear(message, &mut self.rogue.random));
        }
        let Message::Voted { vote, .. } = message else { return };
        let id = vote.statement.id;
        let Some(scheme) = self.schemes.get_mut(&id).filter(|scheme| !scheme.is_left) else { return };
        if from != Party::Replica(vote.replica) {
            return;
        }
        scheme.heard.note(vote);
        if !matches!(scheme.strategy, ClientStrategy::EquivocateReal | ClientStrategy::EquivocateSplit) {
            return;
        }
        if let Some(lies) = self.rogue.equivocate(&scheme.transaction, &scheme.heard) {
            out.sends.extend(lies);
            self.leave(id, Deed::Equivocated, out);
        } else if scheme.heard.voters() == self.rogue.replicas_of(&scheme.transaction).count() {
            self.give_up_hope(id, out);
        }
    }

    /// The votes will not let it equivocate: whatever the coordinator wanted to say is said.
    fn give_up_hope(&mut self, id: TransactionId, out: &mut Out) {
        self.hopes.cancel(&id);
        match self.schemes.get(&id) {
            Some(scheme) if !scheme.is_driven => self.leave(id, Deed::Stalled, out),
            Some(_) => {
                let Some(scheme) = self.schemes.remove(&id) else { return };
                self.operations.remove(&scheme.operation);
                self.counts.spared += 1;
                out.sends.extend(scheme.held);
                if let Some(end) = scheme.end {
                    out.emit(CheatEvent::Honest(end));
                }
            }
            None => {}
        }
    }

    /// Nothing more is said about `id`.
    fn leave(&mut self, id: TransactionId, deed: Deed, out: &mut Out) {
        self.hopes.cancel(&id);
        let Some(scheme) = self.schemes.get_mut(&id) else { return };
        scheme.is_left = true;
        scheme.held.clear();
        match deed {
            Deed::Stalled => self.counts.stalled += 1,
            Deed::Untold(Decision::Commit) => self.counts.untold_commits += 1,
            Deed::Untold(Decision::Abort) => self.counts.untold_aborts += 1,
            Deed::Equivocated => self.counts.equivocated += 1,
        }
        out.emit(CheatEvent::Left { operation: scheme.operation, deed });
        // Kept until the coordinator is through with it, so that it is silenced until then.
        if !scheme.is_driven || scheme.end.is_some() {
            self.operations.remove(&scheme.operation);
            self.schemes.remove(&id);
        }
    }

    // What the coordinator makes of it.

    fn drive(&mut self, now: Time, input: InputOf<Coordinator>, out: &mut Out) {
        let mut said = std::mem::take(&mut self.from_coordinator);
        self.coordinator.step(now, input, &mut said);
        for (to, message) in said.sends.drain(..) {
            self.let_out(now, to, message, out);
        }
        for event in said.events.drain(..) {
            self.tell(event, out);
        }
        self.from_coordinator = said;
    }

    /// Says what the coordinator wants to say, or does not, or not yet.
    fn let_out(&mut self, now: Time, to: Party, message: Message, out: &mut Out) {
        let subject = subject_of(&message);
        let Some((id, scheme)) = subject.and_then(|id| self.schemes.get_mut(&id).map(|scheme| (id, scheme))) else {
            out.send(to, message);
            return;
        };
        let asks_for_votes = matches!(message, Message::Prepare { .. } | Message::Recover { .. });
        match scheme.strategy {
            _ if scheme.is_left => {}
            ClientStrategy::StallLate if matches!(message, Message::Writeback { .. }) => {}
            ClientStrategy::EquivocateReal if !asks_for_votes => {
                if scheme.held.is_empty() {
                    self.hopes.set(id, now.after_ms(HOPE_MS));
                }
                scheme.held.push((to, message));
            }
            ClientStrategy::EquivocateForced if !asks_for_votes => {
                out.sends.extend(self.rogue.equivocate_anyway(&scheme.transaction, &scheme.heard));
                self.leave(id, Deed::Equivocated, out);
            }
            _ => out.send(to, message),
        }
    }

    fn tell(&mut self, event: Event, out: &mut Out) {
        if let Event::Ended { result: Ok((certificate, _)), .. } = &event {
            for plot in self.plots.iter_mut().filter(|plot| plot.id() == certificate.id) {
                out.sends.extend(plot.ended(certificate, self.committed.as_ref(), &mut self.rogue.random));
                if certificate.decision == Decision::Commit {
                    self.committed = Some((plot.transaction().clone(), certificate.clone()));
                }
            }
        }
        let Event::Ended { operation, result } = &event else {
            out.emit(CheatEvent::Honest(event));
            return;
        };
        let Some(id) = self.operations.get(operation).copied() else {
            out.emit(CheatEvent::Honest(event));
            return;
        };
        let Some(scheme) = self.schemes.get_mut(&id) else { return };
        match (scheme.strategy, result) {
            _ if scheme.is_left => {}
            (ClientStrategy::StallLate, Ok((certificate, _))) => {
                let deed = Deed::Untold(certificate.decision);
                scheme.end = Some(event);
                self.leave(id, deed, out);
                return;
            }
            (ClientStrategy::EquivocateReal, Ok(_)) if !scheme.held.is_empty() => {
                scheme.end = Some(event);
                return;
            }
            _ => {
                self.counts.spared += 1;
                out.emit(CheatEvent::Honest(event));
            }
        }
        self.hopes.cancel(&id);
        if let Some(scheme) = self.schemes.remove(&id) {
            self.operations.remove(&scheme.operation);
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

impl Machine for Cheater {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = std::convert::Infallible;
    type Event = CheatEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(command) => self.on_command(now, command, outbox),
            Input::Message { from, message } => {
                self.hear(from, &message, outbox);
                self.drive(now, Input::Message { from, message }, outbox);
            }
            Input::Tick => {
                while let Some(id) = self.follow.expire(now) {
                    outbox.sends.extend(self.followers.remove(&id).unwrap_or_default());
                }
                while let Some(id) = self.hopes.expire(now) {
                    self.give_up_hope(id, outbox);
                }
                self.drive(now, Input::Tick, outbox);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        [self.coordinator.deadline(), self.hopes.next(), self.follow.next()].into_iter().flatten().min()
    }
}

impl Durable for Cheater {
    type Failure = std::convert::Infallible;

    /// It keeps no more than an honest client does.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}
