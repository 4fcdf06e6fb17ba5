//! Augustus behind the engine interface ([`engine`]): a client's session.
//!
//! Every request is a short transaction, which the session's [`Coordinator`] brings to its shards. A one-shot transaction is one of them. An
//! interactive one takes several (§4.5): each read is one that only reads, and the commit compares what was read before it writes. So
//! nothing is locked while the application thinks.
//!
//! What only reads, and one shard alone, is asked of its replicas in one step first ([`Queries`]), and is ordered where they do not agree.
//!
//! Of the past there are moments: who reads what is there now as of a moment makes one, and may read on there ([`Past`]).
//!
//! A transaction that only read, and all in one request, has committed with that: what it read was so at one moment.
//!
//! The application is answered in time, whatever replicas do. What the coordinator still has to end then it goes on with for
//! [`UNAWAITED_TIMEOUT_MS`]; and what it leaves unfinished, replicas finish.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verified;
use engine::{
    Ask, Capabilities, Capability, Commit, CommitPath, CommitRequest, Evidence, Operation as Asked, PendingRoom, Profile, ReadMode,
    Refusal, Request as Wanted, Response, Statistics, Tell,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use mutants::{Mutant, broken};
use types::{Cluster, Direction, Key, KeyRange, Party, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::coordinator::{CannotBegin, Coordinator, Outcome, Output};
use crate::limits::{FINISHING_MAX, PENDING_MAX, PENDING_MIN, PENDING_PARTS, RANGE_ROWS_MAX};
use crate::moment;
use crate::multicast::message::Message;
use crate::multicast::quorum::Quorum;
use crate::operation::{Found, Operation};
use crate::orders::Orders;
use crate::past::{self, Came, Past};
use crate::queries::{self, Queries};
use crate::request::{AbortReason, Refusal as Refused};
use crate::transaction::{Transaction, participants};

/// What there is to know of Augustus before it runs.
pub static PROFILE: Profile = Profile {
    name: "augustus",
    shape: "3f+1",
    shard_size: |faults| 3 * faults + 1,
    quorum: |faults| 2 * faults + 1,
    while_incomplete: "commits take as long as before, or some moments longer while a leader is replaced",
    shards_max: SHARDS_MAX,
    capabilities: Capabilities { interactive: true, one_shot: true, ranges: true, as_of: true, pool: false, receipts: false },
    tells_time: false,
    settings: &[],
    pending_room: Some(PendingRoom { most: PENDING_MAX as u32, least: PENDING_MIN as u32, least_min: PENDING_PARTS as u32 }),
};

/// A certificate of so many shards' votes is a request that a shard takes.
const SHARDS_MAX: usize = 64;
/// For how long the session goes on with what its application does not wait for any more, in milliseconds.
const UNAWAITED_TIMEOUT_MS: u64 = 10_000;
/// Who is met in the way so long after it was met first, in milliseconds, is finished. Until then its own process is given the time to do it.
const FINISH_AFTER_MS: u64 = 50;
/// Who was met so long ago, in milliseconds, was not in the way again.
const MET_MS: u64 = 2_000;
/// A process that has only read for so long, in milliseconds, has its next read of a shard ordered. What is answered in one step is not ordered, so
/// the shard would not know of the process, and take it for one that it has forgotten when others of its client have come and gone.
const UNKNOWN_MS: u64 = 60_000;
/// Why a time is refused.
const NO_SUCH_MOMENT: &str = "this cluster's engine keeps no past but moments that a client has read as the present: read as of now (`0s ago`), or all of a range or of the database at once";
/// When who is refused for want of room is to come again, in milliseconds.
const OVERLOADED_MS: u32 = 100;

/// A client's session.
#[derive(Debug)]
pub struct Session {
    cluster: Arc<Cluster>,
    timeout_ms: u64,
    coordinator: Coordinator,
    orders: Orders,
    /// What is read in one step.
    queries: Queries<Waiting>,
    /// What is read of moments.
    past: Past,
    under_way: BTreeMap<TransactionId, UnderWay>,
    /// By when the application is answered of what is under way.
    timeouts: BTreeSet<(Time, TransactionId)>,
    /// What has not begun, by its shards, and then in its order: a shard that does not answer is in nobody's way at others.
    waiting: BTreeMap<Vec<ShardId>, VecDeque<Waiting>>,
    /// When others' transactions were first in the way.
    met: BTreeMap<TransactionId, Time>,
    /// When this process was first asked something, and when each shard last had something of it to order.
    began: Option<Time>,
    ordered: BTreeMap<ShardId, Time>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    executed: u64,
    one_step: u64,
    read_alone: u64,
    aborted: u64,
    finished: u64,
}

/// A transaction that has not begun.
#[derive(Debug)]
struct Waiting {
    operation: u64,
    purpose: Purpose,
    operations: Vec<Operation>,
    gives_up_at: Time,
}

/// A transaction whose end the application waits for.
#[derive(Debug)]
struct UnderWay {
    operation: u64,
    purpose: Purpose,
    gives_up_at: Time,
}

/// What a transaction is for.
#[derive(Debug)]
enum Purpose {
    /// To read these keys.
    Read(Vec<Key>),
    /// To read so many rows of a range, from one of its ends.
    Scan(KeyRange, Direction, usize),
    /// To commit an interactive transaction, which writes or does not.
    Commit(Timestamp, bool),
    /// To run a one-shot transaction, which writes or does not.
    Submit(Timestamp, bool),
    /// To make the moment of this time.
    Cut(u64),
}

impl Purpose {
    fn writes(&self) -> bool {
        matches!(self, Self::Commit(_, true) | Self::Submit(_, true))
    }

    /// What the application is told when nobody knows what came of it.
    fn unknown(&self) -> Refusal {
        if self.writes() { Refusal::OutcomeUnknown } else { Refusal::Conflict }
    }
}

/// The evidence of a read: what was found, in which transaction.
struct Seen {
    id: TransactionId,
    values: Vec<(Key, Option<Value>)>,
    /// These are all rows of this range.
    rows: Option<(KeyRange, Vec<(Key, Value)>)>,
    /// It is of a moment, and so final.
    is_of_past: bool,
}

impl Session {
    /// The session of `party`, a client of `cluster`; none where that is no cluster of Augustus, or `party` no client. What is asked is
    /// given up after `timeout_ms`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, party: Party, timeout_ms: u64) -> Option<Self> {
        let Party::Client(client, session) = party else { return None };
        let quorum = Quorum::of(&cluster)?;
        Some(Self {
            queries: Queries::new(cluster.clone(), quorum),
            past: Past::new(cluster.clone(), quorum),
            timeout_ms,
            coordinator: Coordinator::new(cluster.clone(), client, session.0),
            orders: Orders::new(cluster.clone(), client, session, timeout_ms.saturating_add(UNAWAITED_TIMEOUT_MS)),
            under_way: BTreeMap::new(),
            timeouts: BTreeSet::new(),
            waiting: BTreeMap::new(),
            met: BTreeMap::new(),
            began: None,
            ordered: BTreeMap::new(),
            counts: Counts::default(),
            cluster,
        })
    }

    /// The same, of a client that ends no transaction that is over several shards (attack a.2 of §3.4): for experiments.
    #[cfg(feature = "lab")]
    #[must_use]
    pub fn leaving(mut self) -> Self {
        self.coordinator.left = Some(0);
        self
    }

    /// Takes what is asked, or gives the answer at once.
    fn ask(&mut self, now: Time, operation: u64, request: Wanted, outbox: &mut OutboxOf<Self>) -> Option<Result<Response, Refusal>> {
        let (purpose, operations) = match request {
            Wanted::Read { timestamp, keys, mode } if mode.is_as_of() => {
                return self.ask_past(now, operation, (timestamp, mode), past::Wanted::Keys(keys), outbox);
            }
            Wanted::Scan { timestamp, low, high, direction, limit, mode } if mode.is_as_of() => {
                let Some(range) = KeyRange::new(low, high).filter(|_| limit > 0) else {
                    return Some(Ok(nothing(&Purpose::Read(Vec::new()))));
                };
                return self.ask_past(now, operation, (timestamp, mode), past::Wanted::Rows(range, direction, limit), outbox);
            }
            Wanted::Read { keys, .. } => {
                let reads = keys.iter().cloned().map(Operation::Read).collect();
                (Purpose::Read(keys), reads)
            }
            Wanted::Scan { low, high, direction, limit, .. } => {
                let Some(range) = KeyRange::new(low, high).filter(|_| limit > 0) else {
                    return Some(Ok(nothing(&Purpose::Read(Vec::new()))));
                };
                let rows_max = u32::try_from(limit.min(RANGE_ROWS_MAX)).expect("RANGE_ROWS_MAX is less");
                (Purpose::Scan(range.clone(), direction, limit), vec![Operation::ReadRange(range, direction, rows_max)])
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
            return Some(Ok(nothing(&purpose)));
        }
        let gives_up_at = now.after_ms(self.timeout_ms);
        let waiting = Waiting { operation, purpose, operations, gives_up_at };
        let shards = participants(&waiting.operations, &self.cluster);
        if let Err(waiting) = self.query(now, &shards, waiting, outbox) {
            self.waiting.entry(shards).or_default().push_back(waiting);
        }
        None
    }

    /// Reads of the moment whose time a transaction has; makes it, where that time is the present.
    fn ask_past(
        &mut self,
        now: Time,
        operation: u64,
        (timestamp, mode): (Timestamp, ReadMode),
        wanted: past::Wanted,
        outbox: &mut OutboxOf<Self>,
    ) -> Option<Result<Response, Refusal>> {
        let gives_up_at = now.after_ms(self.timeout_ms);
        let time = timestamp.time;
        if !self.past.has_room() {
            return Some(Err(Refusal::Overloaded { after_ms: OVERLOADED_MS }));
        }
        if !self.past.knows(time) {
            // What is read as of a time lies before the next.
            if !matches!(mode, ReadMode::Ago { now } if now.checked_add(1) == Some(time)) {
                return Some(Err(Refusal::Invalid(NO_SUCH_MOMENT.to_owned())));
            }
            self.past.begin(time, gives_up_at);
            self.cut(now, time, gives_up_at, outbox);
        }
        let came = self.past.read(now, operation, (time, wanted), gives_up_at, outbox);
        self.tell_past(came, outbox);
        None
    }

    /// Has a cut made for the moment of `time`, at once if that is possible: what comes before others' transactions keeps them from coming between.
    fn cut(&mut self, now: Time, time: u64, gives_up_at: Time, outbox: &mut OutboxOf<Self>) {
        let operations = moment::cut();
        let shards = participants(&operations, &self.cluster);
        let has_room = self.coordinator.has_room() && shards.iter().all(|shard| self.orders.has_room(*shard));
        let waiting = Waiting { operation: 0, purpose: Purpose::Cut(time), operations, gives_up_at };
        if has_room {
            self.ordered.extend(shards.iter().map(|shard| (*shard, now)));
            self.begin(now, waiting, outbox);
        } else {
            self.waiting.entry(shards).or_default().push_back(waiting);
        }
    }

    /// A cut has ended, or too few have said how. One that something was in the way of is made again.
    fn on_cut(&mut self, now: Time, time: u64, id: TransactionId, outcome: Outcome, outbox: &mut OutboxOf<Self>) {
        match outcome {
            Outcome::Committed(_) => {
                let came = self.past.made(now, time, id, outbox);
                self.tell_past(came, outbox);
            }
            Outcome::Aborted(AbortReason::Conflict(..) | AbortReason::VotedDown | AbortReason::TooMuchPending) => {
                if self.past.refused(now, time)
                    && let Some(gives_up_at) = self.past.awaited(time)
                {
                    self.cut(now, time, gives_up_at, outbox);
                }
            }
            Outcome::Aborted(reason) => self.tell(0, &Purpose::Cut(time), Err(refusal(&Purpose::Cut(time), reason)), outbox),
            Outcome::Refused(refused) => self.tell(0, &Purpose::Cut(time), Err(refused_as(&Purpose::Cut(time), refused)), outbox),
            Outcome::Unknown => self.tell(0, &Purpose::Cut(time), Err(Refusal::Unavailable), outbox),
        }
    }

    fn tell_past(&mut self, came: impl IntoIterator<Item = Came>, outbox: &mut OutboxOf<Self>) {
        for (operation, outcome) in came {
            let outcome = outcome.map(|found| {
                let seen = Seen { id: TransactionId([0; 32]), values: Vec::new(), rows: None, is_of_past: true };
                Response::Found(engine::Found { found, evidence: Evidence::new(seen) })
            });
            outbox.emit(Tell::Response { operation, outcome });
        }
    }

    /// Answers who waits for a transaction, or for a cut.
    fn tell(&mut self, operation: u64, purpose: &Purpose, outcome: Result<Response, Refusal>, outbox: &mut OutboxOf<Self>) {
        match (purpose, outcome) {
            (Purpose::Cut(time), Err(refusal)) => {
                let came = self.past.failed(*time, refusal);
                self.tell_past(came, outbox);
            }
            (_, outcome) => outbox.emit(Tell::Response { operation, outcome }),
        }
    }

    /// Asks in one step what only reads, and one shard alone; gives back anything else.
    fn query(&mut self, now: Time, shards: &[ShardId], waiting: Waiting, outbox: &mut OutboxOf<Self>) -> Result<(), Waiting> {
        let [shard] = *shards else { return Err(waiting) };
        let known_at = self.ordered.get(&shard).copied().unwrap_or(*self.began.get_or_insert(now));
        let is_unknown = now >= known_at.after_ms(UNKNOWN_MS) && !broken(Mutant::ReaderUnknown);
        if waiting.operations.iter().any(Operation::is_update) || is_unknown || !self.queries.may_ask(now, shard) {
            return Err(waiting);
        }
        match self.coordinator.transaction(waiting.operations.clone()) {
            Ok(transaction) => self.queries.ask(now, (shard, &transaction), waiting, outbox),
            // Whoever begins it says what is wrong with it.
            Err(_) => Err(waiting),
        }
    }

    /// A replica has answered a question.
    fn on_answer(&mut self, from: ReplicaId, number: u64, answer: Option<Bytes>, outbox: &mut OutboxOf<Self>) {
        match self.queries.on_answer(from, number, answer) {
            None => {}
            Some(queries::Came::Order(waiting)) => self.order(waiting),
            Some(queries::Came::Found(Waiting { operation, purpose, .. }, id, found)) => {
                let found = found.into_iter().enumerate().collect();
                self.counts.one_step += 1;
                let outcome = response(purpose, id, Outcome::Committed(Some(found)));
                outbox.emit(Tell::Response { operation, outcome });
            }
        }
    }

    /// Has it ordered, which was asked in one step before: it is older than what else waits.
    fn order(&mut self, waiting: Waiting) {
        let shards = participants(&waiting.operations, &self.cluster);
        self.waiting.entry(shards).or_default().push_front(waiting);
    }

    /// What an interactive transaction commits with.
    fn commit(&mut self, commit: CommitRequest) -> Result<Begun, Refusal> {
        let CommitRequest { timestamp, reads, writes } = commit;
        let seen: Result<Vec<Seen>, Evidence> = reads.into_iter().map(Evidence::take).collect();
        let seen = seen.map_err(|_| Refusal::Invalid("the request holds what another engine's session gave".to_owned()))?;
        if seen.iter().any(|seen| seen.is_of_past) {
            if !writes.is_empty() || seen.iter().any(|seen| !seen.is_of_past) {
                return Err(Refusal::Invalid("what was read of the past commits by itself alone, and writes nothing".to_owned()));
            }
            let id = TransactionId([0; 32]);
            let commit = Commit { id, timestamp, place: 0, path: CommitPath::ReadOnly, receipt: None };
            return Ok(Begun::Done(Response::Committed(commit)));
        }
        if writes.is_empty()
            && let [Seen { id, .. }] = seen[..]
        {
            self.counts.read_alone += 1;
            let commit = Commit { id, timestamp, place: 0, path: CommitPath::ReadOnly, receipt: None };
            return Ok(Begun::Done(Response::Committed(commit)));
        }
        // Of two reads of one key the first counts; another value in the second says that it has changed meanwhile.
        let mut compared: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        let mut ranges = Vec::new();
        for Seen { values, rows, .. } in seen {
            for (key, value) in values {
                let first = compared.entry(key).or_insert_with(|| value.clone());
                if *first != value {
                    return Err(Refusal::Conflict);
                }
            }
            ranges.extend(rows.map(|(range, rows)| Operation::compare_rows(&self.cluster, range, &rows)));
        }
        let compares = compared.into_iter().map(|(key, value)| Operation::Compare(key, value));
        let purpose = Purpose::Commit(timestamp, !writes.is_empty());
        let writes = writes.into_iter().map(|(key, value)| match value {
            Some(value) => Operation::Put(key, value),
            None => Operation::Delete(key),
        });
        Ok(Begun::Transaction(purpose, ranges.into_iter().chain(compares).chain(writes).collect()))
    }

    /// Begins what waits, as far as there is room for it.
    fn begin_waiting(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while self.coordinator.has_room()
            && let Some((shards, mut queue)) = self.first_waiting().and_then(|shards| self.waiting.remove_entry(&shards))
        {
            let next = queue.pop_front().expect("something waits in each queue");
            self.ordered.extend(shards.iter().map(|shard| (*shard, now)));
            if !queue.is_empty() {
                self.waiting.insert(shards, queue);
            }
            self.begin(now, next, outbox);
        }
    }

    /// Where what has waited longest waits, of what there is room for at its shards.
    fn first_waiting(&self) -> Option<Vec<ShardId>> {
        let can_begin = self.waiting.iter().filter(|(shards, _)| shards.iter().all(|shard| self.orders.has_room(*shard)));
        let (shards, _) = can_begin.min_by_key(|(_, queue)| queue.front().map(|waiting| waiting.gives_up_at))?;
        Some(shards.clone())
    }

    fn begin(&mut self, now: Time, waiting: Waiting, outbox: &mut OutboxOf<Self>) {
        let Waiting { operation, purpose, operations, gives_up_at } = waiting;
        let mut out = Vec::new();
        match self.coordinator.run(operations, &mut out) {
            Ok(id) => {
                if let Purpose::Cut(time) = purpose {
                    self.past.named(time, self.coordinator.last_name());
                }
                self.under_way.insert(id, UnderWay { operation, purpose, gives_up_at });
                self.timeouts.insert((gives_up_at, id));
                self.take(now, out, outbox);
            }
            Err(CannotBegin::Transaction(error)) => self.tell(operation, &purpose, Err(Refusal::Invalid(error.to_string())), outbox),
            Err(CannotBegin::TooMany) => {
                self.tell(operation, &purpose, Err(Refusal::Overloaded { after_ms: OVERLOADED_MS }), outbox);
            }
        }
    }

    /// Does what the coordinator wants.
    fn take(&mut self, now: Time, out: Vec<Output>, outbox: &mut OutboxOf<Self>) {
        for output in out {
            match output {
                Output::Order(order) => self.orders.send(now, order, outbox),
                Output::Answered(number) => self.orders.end(number),
                Output::Met(transaction, shard) => self.on_met(now, *transaction, shard, outbox),
                Output::Ended(id, outcome) => self.on_ended(now, id, outcome, outbox),
            }
        }
    }

    /// Another's transaction is in the way. Mostly its own process is about to end it.
    fn on_met(&mut self, now: Time, transaction: Transaction, shard: ShardId, outbox: &mut OutboxOf<Self>) {
        let id = transaction.id();
        match self.met.get(&id) {
            Some(first) if now >= first.after_ms(FINISH_AFTER_MS) => {
                self.met.remove(&id);
                self.counts.finished += 1;
                let mut out = Vec::new();
                self.coordinator.finish(transaction, shard, &mut out);
                self.take(now, out, outbox);
            }
            Some(_) => {}
            None => {
                if self.met.len() >= FINISHING_MAX {
                    self.met.retain(|_, first| now < first.after_ms(MET_MS));
                }
                if self.met.len() < FINISHING_MAX {
                    self.met.insert(id, now);
                }
            }
        }
    }

    fn on_ended(&mut self, now: Time, id: TransactionId, outcome: Outcome, outbox: &mut OutboxOf<Self>) {
        // Without one, the application was answered before.
        let Some(UnderWay { operation, purpose, gives_up_at }) = self.under_way.remove(&id) else { return };
        self.timeouts.remove(&(gives_up_at, id));
        if let Purpose::Cut(time) = purpose {
            self.on_cut(now, time, id, outcome, outbox);
            return;
        }
        let outcome = response(purpose, id, outcome);
        let count = if outcome.is_ok() { &mut self.counts.executed } else { &mut self.counts.aborted };
        *count += 1;
        outbox.emit(Tell::Response { operation, outcome });
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while let Some((at, id)) = self.timeouts.first().copied().filter(|(at, _)| *at <= now) {
            self.timeouts.remove(&(at, id));
            if let Some(UnderWay { operation, purpose, .. }) = self.under_way.remove(&id) {
                let refusal = if purpose.writes() { Refusal::OutcomeUnknown } else { Refusal::Unavailable };
                self.tell(operation, &purpose, Err(refusal), outbox);
            }
        }
        let mut late = Vec::new();
        for queue in self.waiting.values_mut() {
            while queue.front().is_some_and(|waiting| waiting.gives_up_at <= now)
                && let Some(waiting) = queue.pop_front()
            {
                late.push(waiting);
            }
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        for Waiting { operation, purpose, .. } in late {
            self.tell(operation, &purpose, Err(Refusal::Unavailable), outbox);
        }
        let (came, again) = self.past.on_tick(now, outbox);
        self.tell_past(came, outbox);
        for (time, gives_up_at) in again {
            self.cut(now, time, gives_up_at, outbox);
        }
        self.queries.on_tick(now).into_iter().rev().for_each(|late| self.order(late));
        let mut out = Vec::new();
        for order in self.orders.on_tick(now, outbox) {
            self.coordinator.give_up(order, &mut out);
        }
        self.take(now, out, outbox);
    }
}

/// What a commit comes to.
enum Begun {
    Done(Response),
    Transaction(Purpose, Vec<Operation>),
}

/// The response to what has nothing to do.
fn nothing(purpose: &Purpose) -> Response {
    let empty = |timestamp| Commit { id: TransactionId([0; 32]), timestamp, place: 0, path: CommitPath::Empty, receipt: None };
    match *purpose {
        Purpose::Read(_) | Purpose::Scan(..) => {
            let seen = Seen { id: TransactionId([0; 32]), values: Vec::new(), rows: None, is_of_past: false };
            Response::Found(engine::Found { found: Vec::new(), evidence: Evidence::new(seen) })
        }
        Purpose::Commit(timestamp, _) => Response::Committed(empty(timestamp)),
        Purpose::Submit(timestamp, _) => Response::Done { values: Vec::new(), commit: empty(timestamp) },
        Purpose::Cut(_) => unreachable!("a cut always has operations, so it is never answered as what has nothing to do"),
    }
}

/// What the application is told of the transaction `id`.
fn response(purpose: Purpose, id: TransactionId, outcome: Outcome) -> Result<Response, Refusal> {
    let found = match outcome {
        Outcome::Committed(found) => found,
        Outcome::Aborted(reason) => return Err(refusal(&purpose, reason)),
        Outcome::Unknown => return Err(purpose.unknown()),
        Outcome::Refused(refused) => return Err(refused_as(&purpose, refused)),
    };
    let commit = |timestamp, path| Commit { id, timestamp, place: 0, path, receipt: None };
    let path = |writes| if writes { CommitPath::Fast } else { CommitPath::ReadOnly };
    let unknown = purpose.unknown();
    let found = match (&purpose, found) {
        (Purpose::Commit(timestamp, writes), _) => return Ok(Response::Committed(commit(*timestamp, path(*writes)))),
        // What was found was too much to be kept for those who ask again.
        (_, None) => return Err(unknown),
        (_, Some(found)) => found.into_iter().map(|(_, found)| found),
    };
    match purpose {
        Purpose::Commit(..) => unreachable!("it was answered before"),
        Purpose::Cut(_) => unreachable!("`on_ended` hands a cut to `on_cut` before it comes to this"),
        Purpose::Read(keys) => {
            let values: Option<Vec<Option<Value>>> = found.map(value_of).collect();
            let found: Vec<(Key, Option<Value>)> = keys.into_iter().zip(values.ok_or(unknown)?).collect();
            let seen = Seen { id, values: found.clone(), rows: None, is_of_past: false };
            Ok(Response::Found(engine::Found { found, evidence: Evidence::new(seen) }))
        }
        Purpose::Scan(range, direction, limit) => {
            let Some(Found::Rows(mut rows)) = { found }.next() else { return Err(unknown) };
            // There may be more of what was asked for.
            if rows.len() >= RANGE_ROWS_MAX && limit > RANGE_ROWS_MAX {
                return Err(Refusal::AnswerTooLarge);
            }
            let found = rows.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            // A scan that found as many as it asked for has seen no further than the last of them.
            let is_cut = rows.len() >= limit && !(direction == Direction::Descending && broken(Mutant::LastRowsUncut));
            let end = rows.last().filter(|_| is_cut).and_then(|(last, _)| direction.behind(last));
            let range = end.and_then(|end| direction.read(&range, &end)).unwrap_or(range);
            rows.sort_unstable();
            let seen = Seen { id, values: Vec::new(), rows: Some((range, rows)), is_of_past: false };
            Ok(Response::Found(engine::Found { found, evidence: Evidence::new(seen) }))
        }
        Purpose::Submit(timestamp, writes) => {
            let values = found.map(value_of).collect::<Option<_>>().ok_or(unknown)?;
            Ok(Response::Done { values, commit: commit(timestamp, path(writes)) })
        }
    }
}

fn value_of(found: Found) -> Option<Option<Value>> {
    match found {
        Found::Value(value) => Some(value),
        Found::Rows(_) => None,
    }
}

/// What a caller is told whose transaction was not voted on.
fn refused_as(purpose: &Purpose, refused: Refused) -> Refusal {
    match refused {
        Refused::UnknownClient => Refusal::NotPermitted,
        Refused::WrongShard => Refusal::WrongShard,
        Refused::TooOld => Refusal::Invalid(
            "the replicas have forgotten this process, as later ones of the same client have taken its place, or its machine's clock was set \
             back when it began; start it again"
                .to_owned(),
        ),
        _ => purpose.unknown(),
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
        AbortReason::TooMuchPending | AbortReason::Unsettled => Refusal::Overloaded { after_ms: OVERLOADED_MS },
        AbortReason::Full => Refusal::Invalid("a shard has no room for new keys: delete some".to_owned()),
        // With several shards it has not taken place, but that was the coordinator's to know.
        AbortReason::NumberReused | AbortReason::Forgotten => purpose.unknown(),
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
                if let Some(outcome) = self.ask(now, operation, request, outbox) {
                    outbox.emit(Tell::Response { operation, outcome });
                }
            }
            Input::Message { from: Party::Replica(replica), message } => {
                let (number, answer, signed) = match message.into_inner() {
                    Message::Reply { number, answer, signed } => (number, answer, signed),
                    Message::QueryReply { number, answer } if Past::has_asked(number) => {
                        let came = self.past.on_answer(now, replica, (number, answer), outbox);
                        self.tell_past(came, outbox);
                        return;
                    }
                    Message::QueryReply { number, answer } => {
                        self.on_answer(replica, number, answer, outbox);
                        self.begin_waiting(now, outbox);
                        return;
                    }
                    _ => return,
                };
                let Some(answered) = self.orders.answer(replica, number, answer, signed) else { return };
                let mut out = Vec::new();
                self.coordinator.on_checked(answered, &mut out);
                self.take(now, out, outbox);
            }
            Input::Message { .. } => {}
            Input::Tick => self.on_tick(now, outbox),
        }
        self.begin_waiting(now, outbox);
    }

    fn leave(&mut self, _now: Time, outbox: &mut OutboxOf<Self>) {
        self.past.leave(outbox);
    }

    fn deadline(&self) -> Option<Time> {
        let waiting = self.waiting.values().filter_map(|queue| Some(queue.front()?.gives_up_at)).min();
        let under_way = self.timeouts.first().map(|(at, _)| *at);
        [waiting, under_way, self.orders.deadline(), self.queries.deadline(), self.past.deadline()].into_iter().flatten().min()
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
        out.counter("one_step", "Transactions that were read in one step, without being ordered", self.counts.one_step);
        out.counter("read_alone", "Transactions that committed with the one read that they made", self.counts.read_alone);
        out.counter("voted_down", "Transactions that replicas have voted down", self.counts.aborted);
        out.counter("finished", "Transactions of others that were in the way and were finished", self.counts.finished);
        out.counter("retries", "Requests sent again", self.orders.retried);
        #[cfg(feature = "lab")]
        if let Some(left) = self.coordinator.left {
            out.counter("cheat_stalled", "Transactions that it left pending", left);
            out.counter("cheat_honest", "Transactions that it left nobody", self.counts.executed.saturating_sub(left));
        }
    }
}

#[cfg(test)]
mod tests {
    use machine::Outbox;
    use types::{ClientId, Permission, Placement};

    use super::*;
    use crate::limits::UNDER_WAY_MAX;

    const SHARDS: u16 = 8;

    fn session() -> Session {
        let key = |number: u16| crypto::SecretKey::from_bytes([u8::try_from(number).expect("few"); 32]).public();
        let keys = (0..SHARDS).map(|shard| (1..=4).map(|index| key(shard * 4 + index)).collect()).collect();
        let everything = vec![Key::from("")];
        let permission =
            Permission { public_key: key(99), read_prefixes: everything.clone(), write_prefixes: everything, ..Permission::default() };
        let cluster = Cluster::new(types::ClusterId::new([7; 16]), 1, Placement::Hash, keys, vec![(ClientId(1), permission)]);
        Session::new(Arc::new(cluster.expect("its parts fit")), Party::Client(ClientId(1), types::Session(1)), 10_000)
            .expect("of this engine")
    }

    #[test]
    fn more_than_can_be_under_way_waits_for_its_turn_and_is_not_refused() {
        let (mut session, mut outbox) = (session(), Outbox::default());
        let count = UNDER_WAY_MAX + 200;
        for number in 0..count {
            let write = engine::Operation::Put(Key::from(format!("key {number}").as_str()), Value::from("1"));
            let timestamp = Timestamp::new(1, ClientId(1));
            let request = engine::Request::Submit { timestamp, operations: vec![write] };
            let operation = u64::try_from(number).expect("few");
            session.step(Time(1 + operation), Input::Command(Ask { operation, request }), &mut outbox);
        }
        assert!(outbox.events.is_empty(), "nobody is refused");
        assert_eq!((session.under_way.len(), outbox.sends.len()), (UNDER_WAY_MAX, 4 * UNDER_WAY_MAX));
        // All wait for the same reason, so who has waited longest is next, at whatever shard.
        let oldest = session.waiting.values().flatten().map(|waiting| waiting.gives_up_at).min();
        let next = session.first_waiting().expect("there is room at all shards");
        assert_eq!(session.waiting[&next].front().map(|waiting| waiting.gives_up_at), oldest);
        assert_eq!(oldest, Some(Time(1 + UNDER_WAY_MAX as u64).after_ms(10_000)));
    }
}
