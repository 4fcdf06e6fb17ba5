//! A client: a session of Augustus and above it an application that has one plan after the other, or somebody who cheats.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use ::augustus::Session;
use ::augustus::multicast::Message;
use crypto::Verified;
use engine::{Ask, CommitRequest, Evidence, Found, Operation, ReadMode, Refusal, Request, Response, Tell};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use random::Random;
use simulator::{Client, Goal, Next};
use types::{ClientId, Cluster, Direction, Key, KeyRange, Timestamp, Value};

use super::Augustus;
use super::cheat::{Cheat, CheatStrategy};
use super::plan::{Plan, Step};
use crate::application::history::{Record, Scan, Told};

type Scene<'a> = simulator::Scene<'a, Augustus>;

/// From this long on a request that is given up was kept waiting too long, unless something is wrong.
const PATIENT_MS: u64 = 30_000;

/// A client.
pub struct AugustusClient {
    cluster: Arc<Cluster>,
    timeout_ms: u64,
    driver: Driver,
    task: Option<Task>,
    tasks: u64,
    operations: u64,
    /// What it saw last.
    saw: BTreeMap<Key, Option<Value>>,
}

/// What drives a client's requests.
enum Driver {
    /// Nothing before a process's first task.
    Honest(Option<Box<Session>>),
    Cheat(Box<Cheat>),
}

/// What a client is at.
#[derive(Debug)]
struct Task {
    plan: Plan,
    tag: String,
    began: u64,
    timestamp: Timestamp,
    knows: BTreeMap<Key, Option<Value>>,
    evidence: Vec<Evidence>,
    scans: Vec<Scan>,
    /// What was asked and is not answered.
    waits_for: BTreeMap<u64, Waits>,
    came: Came,
}

/// What an answer is waited for.
#[derive(Debug)]
enum Waits {
    Read,
    Scan(KeyRange, Direction, usize),
    /// A transaction, under its number at the checker, and the keys that it reads.
    End(usize, Vec<Key>),
}

/// What came of a request: of several in a task, the last of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Done,
    NotDone,
    /// Nobody answered in time.
    TimedOut,
}

impl AugustusClient {
    pub(super) fn new(cluster: Arc<Cluster>, id: ClientId, timeout_ms: u64, cheat: Option<(Vec<CheatStrategy>, Random)>) -> Self {
        let driver = match cheat {
            None => Driver::Honest(None),
            Some((strategies, random)) => Driver::Cheat(Box::new(Cheat::new(cluster.clone(), id, strategies, random))),
        };
        Self { cluster, timeout_ms, driver, task: None, tasks: 0, operations: 0, saw: BTreeMap::new() }
    }

    /// Goes on with its task as far as it can.
    fn advance(&mut self, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        let Some(task) = &mut self.task else { return Next::Wait };
        let timestamp = task.timestamp;
        let step = task.plan.advance(&task.knows, &self.saw, &task.tag);
        let mut asks = Vec::new();
        let mut ask = |request, waits| {
            self.operations += 1;
            asks.push(Ask { operation: self.operations, request });
            task.waits_for.insert(self.operations, waits);
        };
        let record = |reads, scans, writes| Record {
            who: task.tag.clone(),
            began: task.began,
            ended: None,
            told: Told::Nothing,
            reads,
            scans,
            writes,
        };
        match step {
            Step::Read(keys) => ask(Request::Read { timestamp, keys, mode: ReadMode::Interactive }, Waits::Read),
            Step::Scan(range, direction, limit) if task.scans.is_empty() => {
                let (low, high) = (range.low().clone(), range.high().clone());
                let request = Request::Scan { timestamp, low, high, direction, limit, mode: ReadMode::ReadOnly };
                ask(request, Waits::Scan(range, direction, limit));
            }
            Step::Scan(..) => {
                let number = scene.checker.begins(record(Vec::new(), std::mem::take(&mut task.scans), Vec::new()));
                let reads = std::mem::take(&mut task.evidence);
                ask(Request::Commit(CommitRequest { timestamp, reads, writes: Vec::new() }), Waits::End(number, Vec::new()));
            }
            Step::Commit(writes) => {
                let reads = task.knows.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                let number = scene.checker.begins(record(reads, Vec::new(), writes.clone()));
                let reads = std::mem::take(&mut task.evidence);
                ask(Request::Commit(CommitRequest { timestamp, reads, writes }), Waits::End(number, Vec::new()));
            }
            Step::Submit(transactions) => {
                for operations in transactions {
                    let number = scene.checker.begins(record(compared(&operations), Vec::new(), written(&operations)));
                    let gets = operations.iter().filter(|operation| matches!(operation, Operation::Get(_)));
                    let gets = gets.map(|operation| operation.key().clone()).collect();
                    ask(Request::Submit { timestamp, operations }, Waits::End(number, gets));
                }
            }
        }
        let tag = task.tag.clone();
        scene.line(|| format!("{tag} asks {asks:?}"));
        Next::Command(asks)
    }

    /// What was read, by a request that only reads.
    fn found(&mut self, waits: Waits, found: Found) {
        let Some(task) = &mut self.task else { return };
        self.saw.extend(found.found.iter().cloned());
        match waits {
            Waits::Scan(range, direction, limit) => {
                let rows = found.found.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                task.scans.push(Scan { range, direction, limit, rows });
            }
            _ => task.knows.extend(found.found),
        }
        task.evidence.push(found.evidence);
    }

    /// A transaction has ended.
    fn ended(&mut self, (number, gets): (usize, Vec<Key>), outcome: Result<Response, Refusal>, scene: &mut Scene<'_>) -> Came {
        let (told, found) = match &outcome {
            Ok(Response::Done { values, .. }) => (Told::Committed, gets.into_iter().zip(values.iter().cloned()).collect()),
            Ok(_) => (Told::Committed, Vec::new()),
            Err(Refusal::OutcomeUnknown) => (Told::Nothing, Vec::new()),
            Err(_) => (Told::Aborted, Vec::new()),
        };
        scene.checker.ends(number, scene.now, told, found);
        outcome.map_or_else(|refusal| refused(&refusal, scene), |_| Came::Done)
    }
}

/// What it means to be refused.
fn refused(refusal: &Refusal, scene: &mut Scene<'_>) -> Came {
    match refusal {
        Refusal::Conflict | Refusal::CompareFailed { .. } | Refusal::Overloaded { .. } => Came::NotDone,
        Refusal::OutcomeUnknown | Refusal::Unavailable => Came::TimedOut,
        _ => {
            scene.checker.refused(scene.id, refusal);
            Came::NotDone
        }
    }
}

/// What a transaction compares: it has read that if it takes place.
fn compared(operations: &[Operation]) -> Vec<(Key, Option<Value>)> {
    let compared = operations.iter().filter_map(|operation| match operation {
        Operation::Compare(key, value) => Some((key.clone(), value.clone())),
        _ => None,
    });
    compared.collect()
}

fn written(operations: &[Operation]) -> Vec<(Key, Option<Value>)> {
    operations.iter().filter_map(Operation::write).map(|(key, value)| (key.clone(), value.cloned())).collect()
}

impl Client<Augustus> for AugustusClient {
    fn is_honest(&self) -> bool {
        matches!(self.driver, Driver::Honest(_))
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        match &mut self.driver {
            Driver::Cheat(cheat) => {
                cheat.begin(scene.party);
                return Next::Command(Vec::new());
            }
            Driver::Honest(session @ None) => {
                *session = Session::new(self.cluster.clone(), scene.party, self.timeout_ms).map(Box::new);
            }
            Driver::Honest(Some(_)) => {}
        }
        self.tasks += 1;
        let plan = match goal {
            Goal::Anything => Plan::draw(scene.random),
            Goal::Contended => Plan::draw_contended(scene.random),
            Goal::Audit => Plan::Everything,
        };
        self.task = Some(Task::new(plan, format!("{}-{}", scene.id, self.tasks), scene));
        self.advance(scene)
    }

    fn told(&mut self, tell: Tell, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        let Tell::Response { operation, outcome } = tell else { return Next::Wait };
        let Some(task) = &mut self.task else { return Next::Wait };
        let Some(waits) = task.waits_for.remove(&operation) else { return Next::Wait };
        let (tag, is_over) = (task.tag.clone(), matches!(waits, Waits::End(..)));
        scene.line(|| format!("{tag} is told {outcome:?}"));
        let came = match (waits, outcome) {
            (Waits::End(number, gets), outcome) => self.ended((number, gets), outcome, scene),
            (waits, Ok(Response::Found(found))) => {
                self.found(waits, found);
                Came::Done
            }
            (_, Ok(_)) => Came::NotDone,
            (_, Err(refusal)) => refused(&refusal, scene),
        };
        let Some(task) = &mut self.task else { return Next::Wait };
        task.came = task.came.max(came);
        match task.came {
            _ if !task.waits_for.is_empty() => return Next::Wait,
            Came::Done if !is_over => return self.advance(scene),
            // The log is read in a transaction of its own.
            Came::Done if matches!(task.plan, Plan::Everything) => {
                self.task =
                    Some(Task::new(Plan::Scan { from: 0, direction: Direction::Ascending, limit: 4_096 }, format!("{tag}-log"), scene));
                return self.advance(scene);
            }
            _ => {}
        }
        let (came, plan) = (task.came, task.plan.clone());
        self.task = None;
        match came {
            Came::Done => Next::Done,
            Came::NotDone => Next::NotDone,
            Came::TimedOut if self.timeout_ms >= PATIENT_MS => Next::TimedOut(format!("{plan:?}")),
            Came::TimedOut => Next::Failed,
        }
    }

    fn forget(&mut self) {
        self.task = None;
        self.saw.clear();
        if let Driver::Honest(session) = &mut self.driver {
            *session = None;
        }
    }
}

impl Task {
    fn new(plan: Plan, tag: String, scene: &Scene<'_>) -> Self {
        Self {
            plan,
            tag,
            began: scene.now,
            timestamp: Timestamp::new(scene.local.0, scene.id),
            knows: BTreeMap::new(),
            evidence: Vec::new(),
            scans: Vec::new(),
            waits_for: BTreeMap::new(),
            came: Came::Done,
        }
    }
}

impl Machine for AugustusClient {
    type Command = Vec<Ask>;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match (&mut self.driver, input) {
            (Driver::Honest(None), _) | (Driver::Cheat(_), Input::Message { .. }) => {}
            (Driver::Honest(Some(session)), Input::Command(asks)) => {
                asks.into_iter().for_each(|ask| session.step(now, Input::Command(ask), outbox));
            }
            (Driver::Honest(Some(session)), Input::Message { from, message }) => {
                session.step(now, Input::Message { from, message }, outbox);
            }
            (Driver::Honest(Some(session)), Input::Tick) => session.step(now, Input::Tick, outbox),
            (Driver::Cheat(cheat), Input::Command(_) | Input::Tick) => cheat.speak(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.driver {
            Driver::Honest(session) => session.as_ref()?.deadline(),
            Driver::Cheat(cheat) => cheat.deadline(),
        }
    }
}

impl Durable for AugustusClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
