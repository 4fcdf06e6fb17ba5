//! A client: writes, and reads what was written, through one server after the other.

use std::convert::Infallible;
use std::sync::Arc;

use ::sentinel::order::Zxid;
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use simulator::{Client, Goal, Next};
use types::{Cluster, Digest, Party, ReplicaId};

use super::Zab;
use super::message::{Key, Link, Message};

type Scene<'a> = simulator::Scene<'a, Zab>;

/// After so long without an answer a client asks another server, in milliseconds.
const RETRY_MS: u64 = 250;
/// How often of a thousand it reads.
const READS_PER_MILLE: u64 = 400;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Write(Key),
    Read(u64),
}

/// What it is told.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    Delivered(Link),
    Known(Zxid, Digest),
}

/// A client.
pub struct ZabClient {
    cluster: Arc<Cluster>,
    numbers: u64,
    /// Which server it asks.
    server: usize,
    task: Option<(Task, Time)>,
    /// The last that it has seen.
    seen: Zxid,
    /// The last that was acknowledged to anybody before it began.
    acknowledged: Zxid,
}

impl ZabClient {
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, numbers: 0, server: 0, task: None, seen: Zxid::default(), acknowledged: Zxid::default() }
    }

    fn say(&self, task: Task, outbox: &mut OutboxOf<Self>) {
        let replicas: Vec<ReplicaId> = self.cluster.replicas().collect();
        let message = match task {
            Task::Write(key) => Message::Write(key),
            Task::Read(number) => Message::Read { number, seen: self.seen },
        };
        outbox.send(Party::Replica(replicas[self.server % replicas.len()]), message);
    }
}

impl Client<Zab> for ZabClient {
    fn is_honest(&self) -> bool {
        true
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Task> {
        self.numbers += 1;
        self.acknowledged = scene.checker.acknowledged();
        let Party::Client(client, session) = scene.party else { unreachable!("a client is one") };
        let reads = goal == Goal::Anything && scene.random.chance(READS_PER_MILLE);
        if scene.random.chance(100) {
            self.server = scene.random.index(64);
        }
        Next::Command(if reads {
            Task::Read(self.numbers)
        } else {
            scene.checker.asked();
            Task::Write(Key { client: client.0, session: session.0, number: self.numbers })
        })
    }

    fn told(&mut self, told: Told, scene: &mut Scene<'_>) -> Next<Task> {
        let zxid = match told {
            Told::Delivered(link) => {
                scene.checker.told_delivered(&link, self.acknowledged);
                link.zxid
            }
            Told::Known(zxid, digest) => {
                scene.checker.told_known(zxid, digest, self.seen);
                zxid
            }
        };
        self.seen = self.seen.max(zxid);
        Next::Done
    }

    fn forget(&mut self) {
        (self.numbers, self.task, self.seen) = (0, None, Zxid::default());
    }
}

impl Machine for ZabClient {
    type Command = Task;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let again = now.after_ms(RETRY_MS);
        match input {
            Input::Command(task) => {
                self.task = Some((task, again));
                self.say(task, outbox);
            }
            Input::Message { message, .. } => {
                let told = match (self.task, message.into_inner()) {
                    (Some((Task::Write(key), _)), Message::Delivered(link)) if link.key == key => Told::Delivered(link),
                    (Some((Task::Read(number), _)), Message::Known { number: of, zxid, digest }) if number == of => {
                        Told::Known(zxid, digest)
                    }
                    _ => return,
                };
                self.task = None;
                outbox.emit(told);
            }
            Input::Tick => {
                if let Some((task, _)) = self.task.filter(|(_, at)| *at <= now) {
                    self.server += 1;
                    self.task = Some((task, again));
                    self.say(task, outbox);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.task.map(|(_, at)| at)
    }
}

impl Durable for ZabClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
