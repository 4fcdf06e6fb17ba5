//! Augustus behind the neutral seam ([`engine`]): a client's session, over one shard.
//!
//! Every request is a short transaction, sent to all replicas under a number of its own, until `f+1` of them give the same answer. A
//! one-shot transaction is one of them. An interactive one takes several (§4.5): each read is one that only reads, and the commit
//! compares what was read before it writes. So nothing is locked while the application thinks.
//!
//! A transaction that only read, and all in one request, has committed with that: it was one moment of the shard's order.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verified;
use engine::{
    Ask, Capabilities, Capability, Commit, CommitPath, CommitRequest, Evidence, Operation as Asked, Profile, Refusal, Request as Wanted,
    Response, Statistics, Tell,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, Key, KeyRange, Party, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::limits::{RANGE_ROWS_MAX, REPLIES_MAX};
use crate::multicast::message::Message;
use crate::multicast::quorum::Quorum;
use crate::multicast::request::{PAYLOAD_BYTES_MAX, Request as Sent, RequestKey};
use crate::operation::{Found, Operation};
use crate::request::{AbortReason, Answer, Refusal as Refused, Request, Verdict};
use crate::transaction::{Name, Transaction};

/// What there is to know of Augustus before it runs.
pub static PROFILE: Profile = Profile {
    name: "augustus",
    shape: "3f+1",
    shard_size: |faults| 3 * faults + 1,
    quorum: |faults| 2 * faults + 1,
    while_incomplete: "commits take as long as before, or some moments longer while a leader is replaced",
    shards_max: 1,
    capabilities: Capabilities { interactive: true, one_shot: true, ranges: true, as_of: false, pool: false },
    tells_time: false,
};

/// How long a session waits before it asks again, in milliseconds.
const RETRY_MS: u64 = 500;
/// How far the numbers of what is under way may lie apart. Replicas remember what became of the last [`REPLIES_MAX`] transactions of a
/// session, so that none is forgotten while its answer may still be on its way.
const SPAN_MAX: u64 = REPLIES_MAX as u64 / 2;

/// A client's session.
#[derive(Debug)]
pub struct Session {
    cluster: Arc<Cluster>,
    quorum: Quorum,
    client: ClientId,
    session: types::Session,
    timeout_ms: u64,
    /// The number of the next transaction.
    next: u64,
    under_way: BTreeMap<u64, UnderWay>,
    /// What waits for a number, in its order.
    waiting: VecDeque<Waiting>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    executed: u64,
    read_alone: u64,
    aborted: u64,
    retries: u64,
}

/// A transaction that has no number yet.
#[derive(Debug)]
struct Waiting {
    operation: u64,
    purpose: Purpose,
    operations: Vec<Operation>,
    gives_up_at: Time,
}

/// A transaction that was sent.
#[derive(Debug)]
struct UnderWay {
    operation: u64,
    purpose: Purpose,
    id: TransactionId,
    message: Message,
    /// The last answer of each replica.
    answers: BTreeMap<ReplicaId, Bytes>,
    retry_at: Time,
    gives_up_at: Time,
}

/// What a transaction is for.
#[derive(Debug)]
enum Purpose {
    /// To read these keys.
    Read(Vec<Key>),
    /// To read a range.
    Scan,
    /// To commit an interactive transaction, which writes or does not.
    Commit(Timestamp, bool),
    /// To run a one-shot transaction, which writes or does not.
    Submit(Timestamp, bool),
}

impl Purpose {
    fn writes(&self) -> bool {
        matches!(self, Self::Commit(_, true) | Self::Submit(_, true))
    }
}

/// The evidence of a read: what was found, in which transaction.
struct Seen {
    id: TransactionId,
    values: Vec<(Key, Option<Value>)>,
    is_range: bool,
}

impl Session {
    /// The session of `party`, a client of `cluster`; none where that is no cluster of Augustus, or `party` no client. What is asked is
    /// given up after `timeout_ms`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, party: Party, timeout_ms: u64) -> Option<Self> {
        let Party::Client(client, session) = party else { return None };
        let quorum = Quorum::of(&cluster)?;
        let (under_way, waiting) = (BTreeMap::new(), VecDeque::new());
        Some(Self { cluster, quorum, client, session, timeout_ms, next: 1, under_way, waiting, counts: Counts::default() })
    }

    /// Begins what is asked, or gives the answer at once.
    fn begin(&mut self, now: Time, operation: u64, request: Wanted, outbox: &mut OutboxOf<Self>) -> Option<Result<Response, Refusal>> {
        let (purpose, operations) = match request {
            Wanted::Read { keys, .. } => {
                let reads = keys.iter().cloned().map(Operation::Read).collect();
                (Purpose::Read(keys), reads)
            }
            Wanted::Scan { low, high, limit, .. } => {
                let Some(range) = KeyRange::new(low, high).filter(|_| limit > 0) else {
                    return Some(Ok(nothing(Purpose::Scan)));
                };
                let limit = u32::try_from(limit.min(RANGE_ROWS_MAX)).expect("RANGE_ROWS_MAX is less");
                (Purpose::Scan, vec![Operation::ReadRange(range, limit)])
            }
            Wanted::Commit(commit) => match self.commit(commit) {
                Ok(Begun::Done(response)) => return Some(Ok(response)),
                Ok(Begun::Transaction(purpose, operations)) => (purpose, operations),
                Err(refusal) => return Some(Err(refusal)),
            },
            Wanted::Submit { timestamp, operations } => {
                let writes = operations.iter().any(|operation| operation.write().is_some());
                (Purpose::Submit(timestamp, writes), operations.into_iter().map(Operation::from).collect())
            }
            Wanted::Private(_) => return Some(Err(Refusal::Unsupported(Capability::Pool))),
        };
        if operations.is_empty() {
            return Some(Ok(nothing(purpose)));
        }
        self.waiting.push_back(Waiting { operation, purpose, operations, gives_up_at: now.after_ms(self.timeout_ms) });
        self.send_waiting(now, outbox);
        None
    }

    /// What an interactive transaction commits with.
    fn commit(&mut self, commit: CommitRequest) -> Result<Begun, Refusal> {
        let CommitRequest { timestamp, reads, writes } = commit;
        let seen: Result<Vec<Seen>, Evidence> = reads.into_iter().map(Evidence::take).collect();
        let seen = seen.map_err(|_| Refusal::Invalid("the request holds what another engine's session gave".to_owned()))?;
        if writes.is_empty()
            && let [Seen { id, .. }] = seen[..]
        {
            self.counts.read_alone += 1;
            let commit = Commit { id, timestamp, place: 0, path: CommitPath::ReadOnly, receipt: None };
            return Ok(Begun::Done(Response::Committed(commit)));
        }
        if seen.iter().any(|seen| seen.is_range) {
            return Err(Refusal::Unsupported(Capability::Ranges));
        }
        // Of two reads of one key the first counts; another value in the second says that it has changed meanwhile.
        let mut compared: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        for (key, value) in seen.into_iter().flat_map(|seen| seen.values) {
            let first = compared.entry(key).or_insert_with(|| value.clone());
            if *first != value {
                return Err(Refusal::Conflict);
            }
        }
        let compares = compared.into_iter().map(|(key, value)| Operation::Compare(key, value));
        let purpose = Purpose::Commit(timestamp, !writes.is_empty());
        let writes = writes.into_iter().map(|(key, value)| match value {
            Some(value) => Operation::Put(key, value),
            None => Operation::Delete(key),
        });
        Ok(Begun::Transaction(purpose, compares.chain(writes).collect()))
    }

    /// Sends what waits, as far as its numbers are near enough to those under way.
    fn send_waiting(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while self.under_way.first_key_value().is_none_or(|(oldest, _)| self.next - oldest < SPAN_MAX)
            && let Some(Waiting { operation, purpose, operations, gives_up_at }) = self.waiting.pop_front()
        {
            let number = self.next;
            let name = Name { client: self.client, session: self.session.0, number };
            let transaction = match Transaction::new(self.cluster.id(), name, operations) {
                Ok(transaction) => transaction,
                Err(error) => {
                    outbox.emit(Tell::Response { operation, outcome: Err(Refusal::Invalid(error.to_string())) });
                    continue;
                }
            };
            if let Some(refusal) = self.misplaced(&transaction) {
                outbox.emit(Tell::Response { operation, outcome: Err(refusal) });
                continue;
            }
            let id = transaction.id();
            let payload: Bytes = Request::Run(transaction).to_bytes().into();
            if payload.len() > PAYLOAD_BYTES_MAX {
                let refusal = Refusal::Invalid(format!("a transaction may have {PAYLOAD_BYTES_MAX} bytes; split it"));
                outbox.emit(Tell::Response { operation, outcome: Err(refusal) });
                continue;
            }
            self.next += 1;
            let key = RequestKey { client: self.client, session: self.session, number };
            let message = Message::Request(Sent { key, payload });
            self.replicas().for_each(|replica| outbox.send(Party::Replica(replica), message.clone()));
            let retry_at = now.after_ms(RETRY_MS);
            let answers = BTreeMap::new();
            self.under_way.insert(number, UnderWay { operation, purpose, id, message, answers, retry_at, gives_up_at });
        }
    }

    /// Why the transaction cannot be run, if more than one shard takes part in it.
    fn misplaced(&self, transaction: &Transaction) -> Option<Refusal> {
        (transaction.participants(&self.cluster) != [SHARD])
            .then(|| Refusal::Invalid("this engine runs clusters of one shard only, up to now".to_owned()))
    }

    fn replicas(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        self.cluster.replicas_of(SHARD).collect::<Vec<_>>().into_iter()
    }

    fn on_reply(&mut self, now: Time, from: ReplicaId, number: u64, answer: Bytes, outbox: &mut OutboxOf<Self>) {
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        under_way.answers.insert(from, answer.clone());
        // One of f+1 is honest.
        if under_way.answers.values().filter(|other| **other == answer).count() < self.quorum.weak() {
            return;
        }
        let Ok(answer) = Answer::from_bytes(answer, self.cluster.id()) else { return };
        let UnderWay { operation, purpose, id, .. } = self.under_way.remove(&number).expect("it is there");
        let outcome = outcome(purpose, id, answer);
        let count = if outcome.is_ok() { &mut self.counts.executed } else { &mut self.counts.aborted };
        *count += 1;
        outbox.emit(Tell::Response { operation, outcome });
        self.send_waiting(now, outbox);
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let late: Vec<u64> = self.under_way.iter().filter(|(_, one)| one.gives_up_at <= now).map(|(number, _)| *number).collect();
        for number in late {
            let UnderWay { operation, purpose, .. } = self.under_way.remove(&number).expect("it is there");
            let refusal = if purpose.writes() { Refusal::OutcomeUnknown } else { Refusal::Unavailable };
            outbox.emit(Tell::Response { operation, outcome: Err(refusal) });
        }
        while self.waiting.front().is_some_and(|waiting| waiting.gives_up_at <= now) {
            let Waiting { operation, .. } = self.waiting.pop_front().expect("there is one");
            outbox.emit(Tell::Response { operation, outcome: Err(Refusal::Unavailable) });
        }
        let replicas: Vec<ReplicaId> = self.replicas().collect();
        for under_way in self.under_way.values_mut().filter(|under_way| under_way.retry_at <= now) {
            under_way.retry_at = now.after_ms(RETRY_MS);
            self.counts.retries += 1;
            for replica in &replicas {
                outbox.send(Party::Replica(*replica), under_way.message.clone());
            }
        }
        self.send_waiting(now, outbox);
    }
}

/// The shard that there is.
const SHARD: ShardId = ShardId(0);

/// What a commit comes to.
enum Begun {
    Done(Response),
    Transaction(Purpose, Vec<Operation>),
}

/// The response to what has nothing to do.
fn nothing(purpose: Purpose) -> Response {
    let empty = |timestamp| Commit { id: TransactionId([0; 32]), timestamp, place: 0, path: CommitPath::Empty, receipt: None };
    match purpose {
        Purpose::Read(_) | Purpose::Scan => {
            let seen = Seen { id: TransactionId([0; 32]), values: Vec::new(), is_range: false };
            Response::Found(engine::Found { found: Vec::new(), evidence: Evidence::new(seen) })
        }
        Purpose::Commit(timestamp, _) => Response::Committed(empty(timestamp)),
        Purpose::Submit(timestamp, _) => Response::Done { values: Vec::new(), commit: empty(timestamp) },
    }
}

/// What `f+1` replicas said of the transaction `id`.
fn outcome(purpose: Purpose, id: TransactionId, answer: Answer) -> Result<Response, Refusal> {
    let unknown = if purpose.writes() { Refusal::OutcomeUnknown } else { Refusal::Conflict };
    let found = match answer {
        Answer::Voted(voted, Verdict::Commit(found)) if voted == id => found,
        Answer::Voted(voted, Verdict::Abort(reason)) if voted == id => return Err(refusal(&purpose, reason)),
        Answer::Refused(Refused::UnknownClient) => return Err(Refusal::NotPermitted),
        Answer::Refused(Refused::WrongShard) => return Err(Refusal::WrongShard),
        _ => return Err(unknown),
    };
    let commit = |timestamp, path| Commit { id, timestamp, place: 0, path, receipt: None };
    let path = |writes| if writes { CommitPath::Fast } else { CommitPath::ReadOnly };
    match purpose {
        Purpose::Commit(timestamp, writes) => Ok(Response::Committed(commit(timestamp, path(writes)))),
        // What was found was too much to be kept for those who ask again.
        _ if found.is_none() => Err(unknown),
        Purpose::Read(keys) => {
            let values: Option<Vec<(Key, Option<Value>)>> = keys.into_iter().zip(found.unwrap_or_default()).map(value_of).collect();
            let found = values.ok_or(unknown)?;
            let seen = Seen { id, values: found.clone(), is_range: false };
            Ok(Response::Found(engine::Found { found, evidence: Evidence::new(seen) }))
        }
        Purpose::Scan => {
            let Some([Found::Rows(rows)]) = found.as_deref() else { return Err(unknown) };
            let found = rows.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            let seen = Seen { id, values: Vec::new(), is_range: true };
            Ok(Response::Found(engine::Found { found, evidence: Evidence::new(seen) }))
        }
        Purpose::Submit(timestamp, writes) => {
            let values = found.unwrap_or_default().into_iter().map(|found| match found {
                Found::Value(value) => Some(value),
                Found::Rows(_) => None,
            });
            let values = values.collect::<Option<_>>().ok_or(unknown)?;
            Ok(Response::Done { values, commit: commit(timestamp, path(writes)) })
        }
    }
}

fn value_of((key, found): (Key, Found)) -> Option<(Key, Option<Value>)> {
    match found {
        Found::Value(value) => Some((key, value)),
        Found::Rows(_) => None,
    }
}

/// What a caller is told whose transaction was voted down.
fn refusal(purpose: &Purpose, reason: AbortReason) -> Refusal {
    match reason {
        AbortReason::Mismatch(place) => match purpose {
            Purpose::Submit(..) => Refusal::CompareFailed { operation: place as usize },
            _ => Refusal::Conflict,
        },
        AbortReason::Conflict(..) | AbortReason::VotedDown => Refusal::Conflict,
        AbortReason::NotPermitted => Refusal::NotPermitted,
        AbortReason::AnswerTooLarge => Refusal::AnswerTooLarge,
        AbortReason::TooMuchPending | AbortReason::Unsettled => Refusal::Overloaded,
        AbortReason::NumberReused | AbortReason::Forgotten if purpose.writes() => Refusal::OutcomeUnknown,
        AbortReason::NumberReused | AbortReason::Forgotten => Refusal::Conflict,
    }
}

impl From<Asked> for Operation {
    fn from(operation: Asked) -> Self {
        match operation {
            Asked::Get(key) => Self::Read(key),
            Asked::Put(key, value) => Self::Put(key, value),
            Asked::Delete(key) => Self::Delete(key),
            Asked::Compare(key, value) => Self::Compare(key, value),
        }
    }
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
            Input::Message { from: Party::Replica(replica), message } => {
                if let Message::Reply { number, answer } = message.into_inner()
                    && replica.shard == SHARD
                {
                    self.on_reply(now, replica, number, answer, outbox);
                }
            }
            Input::Message { .. } => {}
            Input::Tick => self.on_tick(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let sent = self.under_way.values().map(|under_way| under_way.retry_at.min(under_way.gives_up_at)).min();
        sent.into_iter().chain(self.waiting.front().map(|waiting| waiting.gives_up_at)).min()
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
        out.counter("executed", "Transactions that replicas have executed", self.counts.executed);
        out.counter("read_alone", "Transactions that committed with the one read that they made", self.counts.read_alone);
        out.counter("voted_down", "Transactions that replicas have voted down", self.counts.aborted);
        out.counter("retries", "Transactions sent again", self.counts.retries);
    }
}
