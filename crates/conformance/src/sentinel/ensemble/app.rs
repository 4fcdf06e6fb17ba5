//! What clients do all day.

use std::convert::Infallible;

use bytes::Bytes;
use crypto::Verified;
use jute::{Acl, Create, CreateMode, Operation, ReadOperation, Request};
use machine::{Durable, InputOf, Machine, OutboxOf, Time};
use random::Random;
use simulator::{Client, EPOCH_NS, Goal, Next};
use types::ClientId;

use super::Ensemble;
use super::answers::AnswerChecker;
use super::checker::EnsembleChecker;
use super::client::{Ended, SessionMachine, Task};
use super::message::Message;

type Scene<'a> = simulator::Scene<'a, Ensemble>;

/// How long after the faults clocks may still be put right, in milliseconds.
const HEALED_AFTER_MS: u64 = 30_000;
/// How long the auditor waits for sessions that nobody has any more to end before it looks again, in milliseconds.
const LOOK_AGAIN_MS: u64 = 200;

/// A client with what it does.
pub struct EnsembleClient {
    session: SessionMachine,
    answers: AnswerChecker,
    goal: Goal,
    number: u64,
}

impl EnsembleClient {
    pub(super) fn new(session: SessionMachine) -> Self {
        Self { session, answers: AnswerChecker::default(), goal: Goal::Anything, number: 0 }
    }

    /// Judges what it has seen since it was last asked.
    fn look(&mut self, scene: &mut Scene<'_>) {
        let healed_at = EPOCH_NS + (scene.setting.fault_phase_ms + HEALED_AFTER_MS) * 1_000_000;
        let is_healed = scene.now > healed_at;
        for seen in self.session.take_seen() {
            let id = scene.id;
            scene.line(|| format!("{id} sees {seen:?}"));
            self.answers.see(scene.id, seen, is_healed, scene.checker);
        }
    }

    fn task(&mut self, requests: Vec<Request>, after_ms: u64, scene: &mut Scene<'_>) -> Task {
        scene.checker.asked(&requests);
        let acknowledged = scene.checker.acknowledged();
        Task { requests, after_ms, acknowledged, intrudes: None, moves: false }
    }

    fn audit(&mut self, after_ms: u64, scene: &mut Scene<'_>) -> Task {
        let paths: Vec<String> = scene.checker.model.paths().filter(|path| !path.starts_with("/zookeeper")).map(str::to_owned).collect();
        let mut requests = vec![create("/audit", None, CreateMode::Persistent), Request::Sync { path: "/".to_owned() }];
        requests.extend(paths.iter().map(|path| Request::GetChildren2 { path: path.clone(), watch: false }));
        requests.extend(paths.into_iter().map(|path| Request::GetData { path, watch: false }));
        self.task(requests, after_ms, scene)
    }
}

impl Client<Ensemble> for EnsembleClient {
    fn is_honest(&self) -> bool {
        true
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Task> {
        self.look(scene);
        self.goal = goal;
        self.number += 1;
        if self.session.id().is_none() {
            scene.checker.has_none(scene.id);
        }
        let task = match goal {
            Goal::Audit => self.audit(0, scene),
            Goal::Contended => {
                let path = node(scene.random);
                let requests = vec![
                    create(&path, None, CreateMode::Persistent),
                    Request::SetData { path: path.clone(), data: value(scene.id, self.number), version: -1 },
                ];
                self.task(requests, 0, scene)
            }
            Goal::Anything => {
                let count = scene.random.pick(&[1, 1, 2, 4, 9]);
                let mut requests: Vec<Request> =
                    (0..count).map(|place| anything(scene.id, self.number * 16 + place, scene.random, scene.checker)).collect();
                if scene.random.chance(25) {
                    requests.push(Request::CloseSession);
                }
                let mut task = self.task(requests, 0, scene);
                task.moves = scene.random.chance(60);
                task.intrudes = scene.checker.session_of_other(scene.id).filter(|_| scene.random.chance(25));
                task
            }
        };
        Next::Command(task)
    }

    fn told(&mut self, ended: Ended, scene: &mut Scene<'_>) -> Next<Task> {
        self.look(scene);
        match ended {
            Ended::Lost if self.goal == Goal::Audit => Next::Command(self.audit(LOOK_AGAIN_MS, scene)),
            Ended::Lost => Next::Failed,
            Ended::Whole if self.goal == Goal::Audit && !scene.checker.orphans().is_empty() => {
                Next::Command(self.audit(LOOK_AGAIN_MS, scene))
            }
            Ended::Whole => Next::Done,
        }
    }

    fn forget(&mut self) {
        self.session.forget();
        self.answers = AnswerChecker::default();
    }
}

impl Machine for EnsembleClient {
    type Command = Task;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Ended;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.session.step(now, input, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }
}

impl Durable for EnsembleClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// What no other client ever writes.
fn value(client: ClientId, number: u64) -> Option<Bytes> {
    Some(format!("{client} {number}").into())
}

fn create(path: &str, data: Option<Bytes>, mode: CreateMode) -> Request {
    Request::Create(node_of(path, data, mode, false, false))
}

fn node_of(path: &str, data: Option<Bytes>, mode: CreateMode, sequential: bool, wants_stat: bool) -> Create {
    Create {
        path: path.to_owned(),
        data,
        acl: vec![Acl::open()],
        mode,
        sequential,
        wants_stat: wants_stat || mode == CreateMode::Container,
    }
}

/// A node that all know.
fn node(random: &mut Random) -> String {
    let path = format!("/n{}", random.below(3));
    if random.chance(300) { format!("{path}/c{}", random.below(2)) } else { path }
}

/// A request of any kind: much of it meets what others do, and some of it fails.
fn anything(client: ClientId, number: u64, random: &mut Random, checker: &EnsembleChecker) -> Request {
    let (path, watch) = (node(random), random.chance(400));
    let version = |path: &str, random: &mut Random| {
        let known = checker.model.at(path, checker.model.last());
        if random.chance(500) { -1 } else { known.map_or(0, |node| node.version) }
    };
    let sequential = |mode, random: &mut Random| {
        let below = format!("/n{}/s-", random.below(3));
        Request::Create(node_of(&below, None, mode, true, random.chance(500)))
    };
    match random.below(20) {
        0 | 1 => Request::Create(node_of(&path, value(client, number), CreateMode::Persistent, false, random.chance(500))),
        2 => Request::Create(node_of(&format!("/e{}", random.below(4)), None, CreateMode::Ephemeral, false, true)),
        3 => sequential(CreateMode::Ephemeral, random),
        4 | 5 => Request::SetData { version: version(&path, random), data: value(client, number), path },
        6 => Request::Delete { version: version(&path, random), path },
        7 => multi(client, number, path, version(&node(random), random), random),
        8 | 9 => Request::Exists { path: if random.chance(300) { format!("/e{}", random.below(4)) } else { path }, watch },
        10 | 11 => Request::GetData { path, watch },
        12 => Request::GetChildren { path: if random.chance(300) { "/".to_owned() } else { path }, watch },
        13 => Request::GetChildren2 { path, watch },
        14 | 15 => Request::Sync { path },
        16 => Request::MultiRead(vec![ReadOperation::GetData { path: path.clone() }, ReadOperation::GetChildren { path }]),
        17 => Request::SetAcl { path, acl: vec![Acl::open()], version: -1 },
        18 => Request::GetAcl { path },
        _ => Request::Create(node_of(&format!("/k{}", random.below(2)), None, CreateMode::Container, false, true)),
    }
}

fn multi(client: ClientId, number: u64, path: String, version: i32, random: &mut Random) -> Request {
    let check = Operation::Check { path: path.clone(), version: if random.chance(500) { -1 } else { version } };
    let set = Operation::SetData { path: path.clone(), data: value(client, number), version: -1 };
    let made = Operation::Create(node_of("/n0/m-", None, CreateMode::Ephemeral, true, random.chance(500)));
    let delete = Operation::Delete { path: path.clone(), version: -1 };
    let again = Operation::Create(node_of(&path, value(client, number), CreateMode::Persistent, false, false));
    Request::Multi(match random.below(4) {
        0 => vec![check, set.clone(), made, set],
        1 => vec![set, made.clone(), made],
        2 => vec![delete.clone(), again, delete],
        _ => vec![check, delete],
    })
}
