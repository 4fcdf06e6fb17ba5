//! A client: the session that real clients have (`sentinel::transactions::Session`), its links to servers, and above it an application that has one
//! task after the other. A task is one transaction, or some at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;

use ::sentinel::transactions::{Message as EngineMessage, Session};
use crypto::{Signatures, Verified, Verifier};
use engine::{Ask, CommitPath, CommitRequest, Evidence, ReadMode, Refusal, Request, Response, Tell};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use random::Random;
use simulator::{Client, Goal, Next};
use types::{Cluster, Direction, Key, KeyRange, Party, Timestamp, Value};

use super::Transactions;
use super::plan::{Found, Plan, Step};
use crate::application::history::{Record, Scan, Told};
use crate::sentinel::ensemble::link::Link;
use crate::sentinel::ensemble::message::Message;

type Scene<'a> = simulator::Scene<'a, Transactions>;

/// From this long on a request that is given up was kept waiting too long, unless something is wrong.
const PATIENT_MS: u64 = 30_000;
/// How much waits for a server that has not said which process it is.
const UNSENT_MAX: usize = 1_024;
/// How many transactions a task has at most.
const STRANDS_MAX: u64 = 4;

/// A client.
pub struct TransactionsClient {
    cluster: Arc<Cluster>,
    /// Nothing is signed: what comes over a connection is taken for what it is.
    verifier: Verifier,
    timeout_ms: u64,
    /// Nothing before a process's first task.
    session: Option<Box<Session>>,
    lines: BTreeMap<Party, Line>,
    task: Option<Task>,
    tasks: u64,
    operations: u64,
    /// What was read for later, of each key.
    kept: BTreeMap<Key, (Option<Value>, Evidence)>,
}

/// The connection to a server.
#[derive(Default)]
struct Line {
    /// Its process, once it is known.
    life: Option<u64>,
    link: Link,
    unsent: Vec<EngineMessage>,
}

/// What a client is at.
struct Task {
    strands: Vec<Strand>,
    /// What was asked and is not answered: for which of the transactions.
    waits_for: BTreeMap<u64, (usize, Waits)>,
    came: Came,
}

/// One transaction.
struct Strand {
    plan: Plan,
    tag: String,
    began: u64,
    timestamp: Timestamp,
    mode: ReadMode,
    found: Found,
    evidence: Vec<Evidence>,
}

/// What an answer is waited for.
#[derive(Debug)]
enum Waits {
    Read,
    Scan(KeyRange, Direction, usize),
    /// A commit, under its number at the checker.
    End(usize),
}

/// What came of a task: of several, the last of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Done,
    NotDone,
    /// Nobody answered in time, or nobody knows.
    Unanswered,
}

impl TransactionsClient {
    pub(super) fn new(cluster: Arc<Cluster>, timeout_ms: u64) -> Self {
        let verifier = Verifier::new(cluster.clone(), Signatures::Ed25519, 1).expect("the cluster's keys are good");
        Self {
            cluster,
            verifier,
            timeout_ms,
            session: None,
            lines: BTreeMap::new(),
            task: None,
            tasks: 0,
            operations: 0,
            kept: BTreeMap::new(),
        }
    }

    fn start(&mut self, plans: Vec<Plan>, tag: &str, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        let strands = plans.into_iter().enumerate().map(|(place, plan)| Strand::new(plan, format!("{tag}.{place}"), scene));
        let mut task = Task { strands: strands.collect(), waits_for: BTreeMap::new(), came: Came::Done };
        for strand in &mut task.strands {
            if let Some((key, (value, evidence))) = strand.plan.keeps().and_then(|key| self.kept.remove_entry(&key)) {
                strand.found.knows.insert(key, value);
                strand.found.is_kept = true;
                strand.evidence.push(evidence);
            }
        }
        let strands = 0..task.strands.len();
        self.task = Some(task);
        let asks: Vec<Ask> = strands.flat_map(|at| self.advance(at, scene)).collect();
        Next::Command(asks)
    }

    /// Goes on with one of its task's transactions.
    fn advance(&mut self, at: usize, scene: &mut Scene<'_>) -> Vec<Ask> {
        let Some(Task { strands, waits_for, .. }) = &mut self.task else { return Vec::new() };
        let strand = &mut strands[at];
        let (timestamp, mode) = (strand.timestamp, strand.mode);
        let mut asks = Vec::new();
        let mut ask = |request, waits| {
            self.operations += 1;
            asks.push(Ask { operation: self.operations, request });
            waits_for.insert(self.operations, (at, waits));
        };
        match strand.plan.advance(&strand.found, &strand.tag) {
            Step::Read(keys) => ask(Request::Read { timestamp, keys, mode }, Waits::Read),
            Step::Scan(range, direction, limit) => {
                let (low, high) = (range.low().clone(), range.high().clone());
                ask(Request::Scan { timestamp, low, high, direction, limit, mode }, Waits::Scan(range, direction, limit));
            }
            Step::Keep => {
                let kept = take(&mut strand.found.knows).into_iter().zip(take(&mut strand.evidence));
                self.kept.extend(kept.map(|((key, value), evidence)| (key, (value, evidence))));
            }
            Step::Commit(writes) => {
                let found = take(&mut strand.found);
                let record = strand.record(found.knows.into_iter().collect(), found.scans, writes.clone());
                let reads = take(&mut strand.evidence);
                ask(Request::Commit(CommitRequest { timestamp, reads, writes }), Waits::End(scene.checker.begins(record)));
            }
            Step::Burst(commits) => {
                for writes in commits {
                    let number = scene.checker.begins(strand.record(Vec::new(), Vec::new(), writes.clone()));
                    ask(Request::Commit(CommitRequest { timestamp, reads: Vec::new(), writes }), Waits::End(number));
                }
            }
        }
        let tag = strand.tag.clone();
        scene.line(|| format!("{tag} asks {asks:?}"));
        asks
    }

    /// What a transaction has read.
    fn found(&mut self, at: usize, waits: Waits, found: engine::Found) {
        let Some(Task { strands, .. }) = &mut self.task else { return };
        let strand = &mut strands[at];
        match waits {
            Waits::Scan(range, direction, limit) => {
                let rows = found.found.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                strand.found.scans.push(Scan { range, direction, limit, rows });
            }
            _ => strand.found.knows.extend(found.found),
        }
        strand.evidence.push(found.evidence);
    }

    fn send(&mut self, to: Party, message: EngineMessage, outbox: &mut OutboxOf<Self>) {
        let line = self.lines.entry(to).or_default();
        match line.life {
            Some(life) => outbox.send(to, Message::Engine { life, number: line.link.next(), message }),
            None => {
                if line.unsent.len() < UNSENT_MAX {
                    line.unsent.push(message);
                }
                outbox.send(to, Message::Hello);
            }
        }
    }

    /// A server says which process it is. What was said to another one is lost.
    fn welcomed(&mut self, from: Party, life: u64, outbox: &mut OutboxOf<Self>) {
        let line = self.lines.entry(from).or_default();
        if line.life != Some(life) {
            line.life = Some(life);
            let unsent = take(&mut line.unsent);
            unsent.into_iter().for_each(|message| self.send(from, message, outbox));
        }
    }

    /// Has the session take a step, and sends what it says.
    fn with_session(&mut self, now: Time, input: InputOf<Session>, outbox: &mut OutboxOf<Self>) {
        let Some(session) = &mut self.session else { return };
        let mut said = OutboxOf::<Session>::default();
        session.step(now, input, &mut said);
        outbox.events.append(&mut said.events);
        for (to, message) in said.sends {
            self.send(to, message, outbox);
        }
    }
}

impl Strand {
    fn new(plan: Plan, tag: String, scene: &mut Scene<'_>) -> Self {
        let mode = if plan.only_reads() && scene.random.chance(800) { ReadMode::ReadOnly } else { ReadMode::Interactive };
        let timestamp = Timestamp::new(scene.local.0, scene.id);
        Self { plan, tag, began: scene.now, timestamp, mode, found: Found::default(), evidence: Vec::new() }
    }

    fn record(&self, reads: Vec<(Key, Option<Value>)>, scans: Vec<Scan>, writes: Vec<(Key, Option<Value>)>) -> Record {
        Record { who: self.tag.clone(), began: self.began, ended: None, told: Told::Nothing, reads, scans, writes }
    }
}

/// What it means to be refused.
fn refused(refusal: &Refusal, scene: &mut Scene<'_>) -> Came {
    match refusal {
        Refusal::Conflict | Refusal::Overloaded { .. } => Came::NotDone,
        Refusal::OutcomeUnknown | Refusal::Unavailable => Came::Unanswered,
        _ => {
            scene.checker.refused(scene.id, refusal);
            Came::NotDone
        }
    }
}

impl Client<Transactions> for TransactionsClient {
    fn is_honest(&self) -> bool {
        true
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        self.session.get_or_insert_with(|| Box::new(Session::new(&self.cluster, self.timeout_ms)));
        self.tasks += 1;
        let tag = format!("{}-{}", scene.id, self.tasks);
        let plans = match goal {
            Goal::Anything => {
                let strands = if scene.random.chance(300) { scene.random.between(2, STRANDS_MAX) } else { 1 };
                let crowded = scene.setting.engine.crowded;
                let draw = |random: &mut Random| if random.chance(crowded) { Plan::draw_crowded(random) } else { Plan::draw(random) };
                (0..strands).map(|_| draw(scene.random)).collect()
            }
            Goal::Contended => vec![Plan::draw_contended(scene.random)],
            Goal::Audit => vec![Plan::Everything],
        };
        self.start(plans, &tag, scene)
    }

    fn told(&mut self, tell: Tell, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        let Tell::Response { operation, outcome } = tell else { return Next::Wait };
        let Some((at, waits)) = self.task.as_mut().and_then(|task| task.waits_for.remove(&operation)) else { return Next::Wait };
        let tag = self.task.as_ref().map_or_else(String::new, |task| task.strands[at].tag.clone());
        scene.line(|| format!("{tag} is told {outcome:?}"));
        let is_over = matches!(waits, Waits::End(_));
        let came = match (waits, outcome) {
            (Waits::End(number), outcome) => {
                if let Ok(Response::Committed(commit)) = &outcome
                    && commit.path == CommitPath::Fast
                {
                    scene.checker.placed(commit);
                }
                let told = match &outcome {
                    Ok(_) => Told::Committed,
                    Err(Refusal::OutcomeUnknown) => Told::Nothing,
                    Err(_) => Told::Aborted,
                };
                scene.checker.ends(number, scene.now, told, Vec::new());
                outcome.map_or_else(|refusal| refused(&refusal, scene), |_| Came::Done)
            }
            (waits, Ok(Response::Found(found))) => {
                self.found(at, waits, found);
                Came::Done
            }
            (_, Ok(_)) => Came::NotDone,
            (_, Err(refusal)) => refused(&refusal, scene),
        };
        let asks = if came == Came::Done && !is_over { self.advance(at, scene) } else { Vec::new() };
        let Some(task) = &mut self.task else { return Next::Wait };
        task.came = task.came.max(came);
        if !asks.is_empty() {
            return Next::Command(asks);
        }
        if !task.waits_for.is_empty() {
            return Next::Wait;
        }
        // The log is read in a transaction of its own.
        if task.came == Came::Done && task.strands.iter().any(|strand| matches!(strand.plan, Plan::Everything)) {
            return self.start(vec![Plan::Scan { from: 0, direction: Direction::Ascending, limit: 4_096 }], &format!("{tag}-log"), scene);
        }
        let (came, plans) = (task.came, task.strands.iter().map(|strand| format!("{:?}", strand.plan)).collect::<Vec<_>>());
        let took_ms = scene.now.saturating_sub(task.strands.first().map_or(scene.now, |strand| strand.began)) / 1_000_000;
        self.task = None;
        match came {
            Came::Done => Next::Done,
            Came::NotDone => Next::NotDone,
            Came::Unanswered if took_ms >= PATIENT_MS => Next::TimedOut(plans.join(", ")),
            Came::Unanswered => Next::Failed,
        }
    }

    fn forget(&mut self) {
        self.task = None;
        self.session = None;
        self.lines.clear();
        self.kept.clear();
    }
}

impl Machine for TransactionsClient {
    type Command = Vec<Ask>;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(asks) => asks.into_iter().for_each(|ask| self.with_session(now, Input::Command(ask), outbox)),
            Input::Message { from, message } => match message.into_inner() {
                Message::Welcome { life } => self.welcomed(from, life, outbox),
                Message::Engine { life, number, message } => {
                    let line = self.lines.entry(from).or_default();
                    let is_heard = line.link.takes((life, number));
                    if let Some(message) = self.verifier.verify(message).ok().filter(|_| is_heard) {
                        self.with_session(now, Input::Message { from, message }, outbox);
                    }
                }
                _ => {}
            },
            Input::Tick => self.with_session(now, Input::Tick, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.session.as_ref()?.deadline()
    }
}

impl Durable for TransactionsClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
