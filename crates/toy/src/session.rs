//! The toy behind the engine interface: keys are numbers in decimal, and the value of each is its double.
//!
//! There is nothing to write, so a transaction that writes is refused. Nothing ever changes either, so every transaction that has
//! read commits, in the place of its timestamp. A read asks every replica and believes what `f + 1` of them say.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use crypto::Verified;
use engine::{
    Ask, Capabilities, Commit, CommitPath, CommitRequest, Evidence, Found, Notice, Operation, Profile, Refusal, Request, Response,
    Statistics, Tell,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use types::{Cluster, Key, Party, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::asker::RETRY_MS;
use crate::message::{Doubled, Message};

/// After how long a request is given up, in milliseconds.
pub const TIMEOUT_MS: u64 = 5_000;
/// The most operations of one transaction.
const OPERATIONS_MAX: usize = 4_096;

/// What there is to know of the toy before it runs.
pub static PROFILE: Profile = Profile {
    name: "toy",
    shape: "5f+1",
    shard_size: |faults| 5 * faults + 1,
    quorum: |faults| 2 * faults + 1,
    while_incomplete: "nothing changes",
    shards_max: 1,
    capabilities: Capabilities { interactive: true, one_shot: true, ranges: false, as_of: false, pool: false, receipts: false },
    tells_time: false,
    settings: &[],
    pending_room: None,
};

/// A client's session.
#[derive(Debug)]
pub struct Session {
    cluster: Arc<Cluster>,
    under_way: BTreeMap<u64, UnderWay>,
    answered: u64,
}

/// A request that waits for doubles.
#[derive(Debug)]
struct UnderWay {
    purpose: Purpose,
    /// What each replica said of each number.
    said: BTreeMap<u64, BTreeMap<ReplicaId, u64>>,
    doubles: BTreeMap<u64, u64>,
    retry_at: Time,
    gives_up_at: Time,
}

#[derive(Debug)]
enum Purpose {
    Read(Vec<(Key, u64)>),
    Submit(Timestamp, Vec<(Operation, u64)>),
}

impl Session {
    /// A session of a client of `cluster`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, under_way: BTreeMap::new(), answered: 0 }
    }

    /// Begins what is asked; or gives the answer, when nobody need be asked.
    fn begin(&mut self, now: Time, operation: u64, request: Request, outbox: &mut OutboxOf<Self>) -> Option<Result<Response, Refusal>> {
        let purpose = match request {
            Request::Scan { .. } | Request::Private(_) => Err(Refusal::Unsupported(request.capability())),
            Request::Read { mode, .. } if mode.is_as_of() => Err(Refusal::Unsupported(request.capability())),
            Request::Read { keys, .. } => {
                keys.into_iter().map(|key| Ok((key.clone(), number(&key)?))).collect::<Result<_, _>>().map(Purpose::Read)
            }
            Request::Submit { timestamp, operations } => reads(operations).map(|reads| Purpose::Submit(timestamp, reads)),
            Request::Commit(CommitRequest { writes, .. }) if !writes.is_empty() => Err(stores_nothing()),
            Request::Commit(CommitRequest { timestamp, .. }) => return Some(Ok(Response::Committed(commit(timestamp)))),
        };
        let purpose = match purpose {
            Ok(purpose) => purpose,
            Err(refusal) => return Some(Err(refusal)),
        };
        let numbers: BTreeSet<u64> = match &purpose {
            Purpose::Read(keys) => keys.iter().map(|(_, number)| *number).collect(),
            Purpose::Submit(_, operations) => operations.iter().map(|(_, number)| *number).collect(),
        };
        let said = numbers.into_iter().map(|number| (number, BTreeMap::new())).collect();
        let doubles = BTreeMap::new();
        let under_way = UnderWay { purpose, said, doubles, retry_at: now.after_ms(RETRY_MS), gives_up_at: now.after_ms(TIMEOUT_MS) };
        if under_way.said.is_empty() {
            return Some(under_way.outcome());
        }
        for replica in self.cluster.replicas_of(ShardId(0)) {
            under_way.said.keys().for_each(|number| outbox.send(Party::Replica(replica), Message::Ask(*number)));
        }
        self.under_way.insert(operation, under_way);
        None
    }

    fn on_answer(&mut self, from: Party, doubled: Doubled, outbox: &mut OutboxOf<Self>) {
        if from != Party::Replica(doubled.signer) {
            return;
        }
        let faults = self.cluster.faults();
        let mut done = Vec::new();
        for (operation, under_way) in &mut self.under_way {
            let Some(said) = under_way.said.get_mut(&doubled.number) else { continue };
            said.entry(doubled.signer).or_insert(doubled.double);
            if said.values().filter(|double| **double == doubled.double).count() > faults {
                under_way.said.remove(&doubled.number);
                under_way.doubles.insert(doubled.number, doubled.double);
                done.extend(under_way.said.is_empty().then_some(*operation));
            }
        }
        for operation in done {
            if let Some(under_way) = self.under_way.remove(&operation) {
                self.answered += 1;
                outbox.emit(Tell::Response { operation, outcome: under_way.outcome() });
            }
        }
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let late: Vec<u64> =
            self.under_way.iter().filter(|(_, under_way)| under_way.gives_up_at <= now).map(|(number, _)| *number).collect();
        for operation in late {
            self.under_way.remove(&operation);
            outbox.emit(Tell::Response { operation, outcome: Err(Refusal::Unavailable) });
        }
        for under_way in self.under_way.values_mut().filter(|under_way| under_way.retry_at <= now) {
            under_way.retry_at = now.after_ms(RETRY_MS);
            for (number, said) in &under_way.said {
                for replica in self.cluster.replicas_of(ShardId(0)).filter(|replica| !said.contains_key(replica)) {
                    outbox.send(Party::Replica(replica), Message::Ask(*number));
                }
            }
        }
    }
}

impl UnderWay {
    /// What came of it, once every double is known.
    fn outcome(self) -> Result<Response, Refusal> {
        let double = |number: &u64| self.doubles.get(number).map(|double| Value::from(double.to_string().as_str()));
        match self.purpose {
            Purpose::Read(keys) => {
                let found = keys.into_iter().map(|(key, number)| (key, double(&number))).collect();
                Ok(Response::Found(Found { found, evidence: Evidence::new(()) }))
            }
            Purpose::Submit(timestamp, operations) => {
                let fails = |(operation, number): &(Operation, u64)| matches!(operation, Operation::Compare(_, wanted) if *wanted != double(number));
                if let Some(operation) = operations.iter().position(fails) {
                    return Err(Refusal::CompareFailed { operation });
                }
                let gets = operations.iter().filter(|(operation, _)| matches!(operation, Operation::Get(_)));
                Ok(Response::Done { values: gets.map(|(_, number)| double(number)).collect(), commit: commit(timestamp) })
            }
        }
    }
}

fn reads(operations: Vec<Operation>) -> Result<Vec<(Operation, u64)>, Refusal> {
    if operations.len() > OPERATIONS_MAX {
        return Err(Refusal::Invalid(format!("a transaction may have at most {OPERATIONS_MAX} operations")));
    }
    let read = |operation: Operation| match number(operation.key()) {
        _ if operation.write().is_some() => Err(stores_nothing()),
        Ok(number) => Ok((operation, number)),
        Err(refusal) => Err(refusal),
    };
    operations.into_iter().map(read).collect()
}

fn number(key: &Key) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(key.as_bytes()).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Refusal::Invalid(format!("a key is a number, not {key}")))
}

fn stores_nothing() -> Refusal {
    Refusal::Invalid("the toy doubles numbers and stores none".to_owned())
}

/// The toy's transactions have no content worth hashing.
fn commit(timestamp: Timestamp) -> Commit {
    Commit { id: TransactionId([0; 32]), timestamp, place: 0, path: CommitPath::ReadOnly, receipt: None }
}

impl Machine for Session {
    type Command = Ask;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(Ask { operation, request }) => {
                if let Some(outcome) = self.begin(now, operation, request, outbox) {
                    outbox.emit(Tell::Response { operation, outcome });
                }
            }
            Input::Message { from, message } => match message.into_inner() {
                Message::Answer(doubled, _) => self.on_answer(from, doubled, outbox),
                Message::Milestone(count) => {
                    let detail = count.to_le_bytes().to_vec().into();
                    outbox.emit(Tell::Notice(Notice { kind: "milestone", key: Key::from(from.to_string().as_str()), detail }));
                }
                Message::Ask(_) | Message::Fill(_) | Message::Filling(_) => {}
            },
            Input::Tick => self.on_tick(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.under_way.values().map(|under_way| under_way.retry_at.min(under_way.gives_up_at)).min()
    }
}

impl Durable for Session {
    type Failure = Infallible;

    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl engine::Session for Session {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn statistics(&self, out: &mut Statistics) {
        out.counter("answered", "Requests answered", self.answered);
    }
}
