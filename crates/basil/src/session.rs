//! Basil behind the engine interface ([`engine`]): a client's session around a [`Coordinator`].
//!
//! A session turns a neutral request into a command, and the coordinator's event into a neutral answer. The evidence of a read
//! is what the coordinator found; a commit puts the transaction together from it. Basil has no one-shot transactions,
//! which the session says in a typed refusal.
//!
//! *One commit may be several transactions on the wire*, each with an id and a timestamp of its own, of which one at most commits:
//!
//! - the session may prepare it at a later timestamp than it began at (`later_place`, by `key_times`): nothing is prepared at the first;
//! - the session tries it again, at a later timestamp, when it was voted down (`refresh`, by [`crate::refresh`]); its application hears of the
//!   last attempt alone;
//! - after a conflict `transact` (`client/src/client.rs`, above this) runs the application's closure once more, with new reads;
//! - in a pool (`cataphract/src/pool.rs`) it is one of many in a batch, which is one transaction here, and goes into the next batch when that one
//!   aborts.
//!
//! So look for a commit in a log by the id in its answer ([`Commit::id`](engine::Commit)), not by the timestamp at which it began.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use crate::transaction::{Transaction, TransactionError};
use crypto::Verified;
use engine::{
    Ask, Capabilities, ClusterClock, Commit, CommitPath, CommitRequest, Evidence, Found, Private, Profile, ReadMode, Request, Response,
    Statistics, Tell,
};
use foldhash::{HashMap, HashMapExt as _};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time, Voters};
use types::{Cluster, ClusterId, Key, KeyRange, ReplicaId, Timestamp, Value};

use crate::buffer::Buffer;
use crate::certificate::Decision;
use crate::coordinator::{Command, Coordinator, Event, Failure, Path};
use crate::key_times::KeyTimes;
use crate::message::{ClientLimit, Message, Refusal};
use crate::quorum::Quorums;
use crate::reading::{RangeFound, ReadFound};
use crate::receipt::Receipt;
use crate::refresh::{Attempt, UniqueTimes};

/// What there is to know of Basil before it runs.
pub static PROFILE: Profile = Profile {
    name: "basil",
    shape: "5f+1",
    shard_size: |faults| Quorums::new(faults).replicas(),
    quorum: |faults| Quorums::new(faults).logged(),
    while_incomplete: "commits take two round trips",
    shards_max: usize::MAX,
    capabilities: Capabilities { interactive: true, one_shot: false, ranges: true, as_of: true, pool: true, receipts: true },
    tells_time: true,
    settings: &["time_bound_ms", "window_ms", "janitor_timeout_ms", "abandoned_per_second", "cache_bytes", "read_quorum"],
    pending_room: None,
};

/// What a session runs around: a [`Coordinator`], or a machine that speaks through one and does as a coordinator would.
pub trait Driver:
    Machine<Command = Command, Received = Verified<Message>, Message = Message, Unsigned = Infallible, Event = Event>
{
    /// The coordinator.
    fn coordinator(&self) -> &Coordinator;

    /// Adds what it counts beside the coordinator.
    fn more_statistics(&self, _out: &mut Statistics) {}
}

impl Driver for Coordinator {
    fn coordinator(&self) -> &Coordinator {
        self
    }
}

/// A client's session.
#[derive(Debug)]
pub struct Session<D = Coordinator> {
    cluster: ClusterId,
    driver: D,
    /// What the coordinator's events answer.
    under_way: HashMap<u64, UnderWay>,
    /// The clock that was told last.
    clock: Option<ClusterClock>,
    unique_times: UniqueTimes,
    key_times: KeyTimes,
    /// How often a transaction was prepared at a later timestamp than it began at.
    moved: u64,
    /// How often a transaction was tried again at a later timestamp.
    refreshes: u64,
}

#[derive(Debug)]
enum UnderWay {
    /// A read, at this timestamp.
    Read(Timestamp, ReadMode),
    Commit(Box<Attempt>),
    /// It was the pool's.
    Private,
}

/// What a request comes to at once.
enum Begun {
    /// The coordinator is to do this.
    Command(Command),
    /// It was done without asking anybody.
    Done(Response),
}

/// The evidence of a read.
struct ReadEvidence {
    timestamp: Timestamp,
    mode: ReadMode,
    what: What,
}

/// What a read found, or a scan.
enum What {
    Keys(Vec<ReadFound>),
    Range(RangeFound),
}

impl<D: Driver> Session<D> {
    /// A session of a client of `cluster`.
    #[must_use]
    pub fn new(cluster: ClusterId, driver: D) -> Self {
        Self {
            cluster,
            driver,
            under_way: HashMap::new(),
            clock: None,
            unique_times: UniqueTimes::default(),
            key_times: KeyTimes::default(),
            moved: 0,
            refreshes: 0,
        }
    }

    /// What it runs around, for whoever brought that.
    #[must_use]
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The same, to be changed.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    fn begin(&mut self, now: Time, operation: u64, request: Request) -> Result<Begun, engine::Refusal> {
        match request {
            Request::Read { timestamp, keys, mode } => {
                if !mode.is_as_of() {
                    keys.iter().for_each(|key| self.key_times.read(key, timestamp));
                }
                self.under_way.insert(operation, UnderWay::Read(timestamp, mode));
                Ok(Begun::Command(Command::Read { operation, timestamp, keys, mode }))
            }
            Request::Commit(commit) => self.commit(now, operation, commit),
            Request::Private(private) => {
                let command = private.take::<Command>().map_err(|_| Foreign)?;
                if let Command::Reconfigure { .. } | Command::Connected { .. } = command {
                    return Ok(Begun::Command(command));
                }
                self.under_way.insert(operation, UnderWay::Private);
                Ok(Begun::Command(command.numbered(operation)))
            }
            Request::Scan { timestamp, low, high, direction, limit, mode } => {
                let Some(range) = KeyRange::new(low, high).filter(|_| limit > 0) else {
                    let evidence = Evidence::new(ReadEvidence { timestamp, mode, what: What::Keys(Vec::new()) });
                    return Ok(Begun::Done(Response::Found(Found { found: Vec::new(), evidence })));
                };
                self.under_way.insert(operation, UnderWay::Read(timestamp, mode));
                Ok(Begun::Command(Command::Scan { operation, timestamp, range, direction, limit, mode }))
            }
            Request::Submit { .. } => Err(engine::Refusal::Unsupported(request.capability())),
        }
    }

    fn commit(&mut self, now: Time, operation: u64, commit: CommitRequest) -> Result<Begun, engine::Refusal> {
        let timestamp = commit.timestamp;
        let (mut buffer, is_as_of) = gather(timestamp, commit.reads, commit.writes)?;
        if let Some(later) = self.later_place(now, &buffer) {
            buffer.move_to(later);
            self.moved += 1;
        }
        let (is_empty, validated) = (buffer.is_empty(), buffer.validated());
        let finished = buffer.finish(self.cluster);
        let (transaction, dependencies) = finished.map_err(engine::Refusal::from)?;
        let path = if is_empty { CommitPath::Empty } else { CommitPath::ReadOnly };
        if is_empty || (is_as_of && validated.is_some()) {
            let commit = Commit { id: transaction.id(), timestamp, place: 0, path, receipt: None };
            return Ok(Begun::Done(Response::Committed(commit)));
        }
        transaction.writes().iter().for_each(|write| self.key_times.written(&write.key, transaction.timestamp()));
        let attempt = Attempt::first(now, transaction.clone(), dependencies.clone());
        self.under_way.insert(operation, UnderWay::Commit(Box::new(attempt)));
        Ok(Begun::Command(match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        }))
    }

    /// Where to prepare a transaction instead of where it began, if there is a better place ([`crate::key_times`]). What it read of ranges
    /// is not known here, so a transaction with ranges stays.
    fn later_place(&mut self, now: Time, buffer: &Buffer) -> Option<Timestamp> {
        if buffer.has_scanned() {
            return None;
        }
        let (reads, writes) = (buffer.read_set().map(|found| &found.key), buffer.write_set().map(|(key, _)| key));
        let above = self.key_times.above(buffer.timestamp(), reads, writes)?;
        // Ahead of the clock, replicas would have to wait for it.
        let clock = self.driver.coordinator().clock()?.read(now);
        (above < clock).then(|| self.unique_times.after(clock, buffer.timestamp()))
    }

    /// What to try at a later timestamp, when `event` says that it never takes place and may be tried again ([`crate::refresh`]).
    fn refresh(&mut self, now: Time, event: &Event) -> Option<Command> {
        let Event::Ended { operation, result } = event else { return None };
        let Some(UnderWay::Commit(attempt)) = self.under_way.get_mut(operation) else { return None };
        let clock = self.driver.coordinator().clock()?.read(now);
        let is_tried_again = match result {
            Ok((certificate, _)) => certificate.decision == Decision::Abort && attempt.may_refresh(now, clock, certificate),
            Err(Failure::Refused(Refusal::TooOld)) => attempt.may_be_tried_later(now),
            Err(_) => false,
        };
        if !is_tried_again {
            return None;
        }
        let timestamp = self.unique_times.after(clock, attempt.transaction.timestamp());
        attempt.refresh(self.cluster, timestamp);
        let (transaction, dependencies) = (attempt.transaction.clone(), attempt.dependencies.clone());
        transaction.writes().iter().for_each(|write| self.key_times.written(&write.key, timestamp));
        self.refreshes += 1;
        Some(Command::Commit { operation: *operation, transaction, dependencies })
    }

    /// The answer that an event gives; none when it is about nothing that was asked here.
    fn on_event(&mut self, event: Event) -> Option<Tell> {
        let (Event::Read { operation, .. }
        | Event::Scanned { operation, .. }
        | Event::Ended { operation, .. }
        | Event::Validated { operation }) = &event;
        let operation = *operation;
        let outcome = match (self.under_way.remove(&operation), event) {
            (Some(UnderWay::Private), event) => Ok(Response::Private(Private::new(event))),
            (Some(UnderWay::Commit(attempt)), event) => committed(attempt.transaction, event),
            (Some(UnderWay::Read(timestamp, mode)), event) => found(timestamp, mode, event),
            (None, _) => return None,
        };
        Some(Tell::Response { operation, outcome })
    }
}

impl<D: Driver> Machine for Session<D> {
    type Command = Ask;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let input = match input {
            Input::Command(Ask { operation, request }) => match self.begin(now, operation, request) {
                Ok(Begun::Command(command)) => Input::Command(command),
                Ok(Begun::Done(response)) => return outbox.emit(Tell::Response { operation, outcome: Ok(response) }),
                Err(refusal) => return outbox.emit(Tell::Response { operation, outcome: Err(refusal) }),
            },
            Input::Message { from, message } => Input::Message { from, message },
            Input::Tick => Input::Tick,
        };
        let mut events = VecDeque::from(outbox.lend(|outbox| self.driver.step(now, input, outbox)));
        let clock = self.driver.coordinator().clock();
        if let Some(clock) = clock.filter(|_| self.clock != clock) {
            outbox.emit(Tell::Clock(clock));
        }
        self.clock = clock;
        while let Some(event) = events.pop_front() {
            match self.refresh(now, &event) {
                Some(command) => events.extend(outbox.lend(|outbox| self.driver.step(now, Input::Command(command), outbox))),
                None => outbox.events.extend(self.on_event(event)),
            }
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let events = outbox.lend(|outbox| self.driver.end_turn(now, outbox));
        outbox.events.extend(events.into_iter().filter_map(|event| self.on_event(event)));
    }

    fn deadline(&self) -> Option<Time> {
        self.driver.deadline()
    }
}

impl<D: Driver> Durable for Session<D> {
    type Failure = Infallible;

    /// Nothing needs to last: what a client leaves, the replicas finish.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<D: Driver> engine::Session for Session<D> {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn reconfigured(cluster: Arc<Cluster>) -> Option<Request> {
        Some(Request::Private(Private::new(Command::Reconfigure { cluster })))
    }

    fn connected(replicas: Vec<ReplicaId>) -> Option<Request> {
        Some(Request::Private(Private::new(Command::Connected { replicas })))
    }

    fn statistics(&self, out: &mut Statistics) {
        let counts = self.driver.coordinator().counts();
        out.counter("validated", "Transactions that only read, and on which nobody voted", counts.validated);
        out.counter("fast", "Transactions decided in one round trip", counts.fast);
        out.counter("slow", "Transactions whose decision was logged first", counts.slow);
        out.counter("recovered", "Transactions, its own and others', that somebody else had ended first", counts.recovered);
        out.counter(
            "finished_for_others",
            "Transactions of others that it set out to finish, because they stood in its way",
            counts.finishes,
        );
        out.counter("elections", "Transactions for which the replicas had to elect a leader", counts.fallbacks);
        out.counter(
            "moved",
            "Transactions prepared at a later timestamp than they began at, as others of the session had used their keys",
            self.moved,
        );
        out.counter(
            "refreshes",
            "Times a transaction was voted down, or refused for its age, and tried again at a later timestamp",
            self.refreshes,
        );
        out.counter("retries", "Requests sent again", counts.retries);
        out.counter("read_escalations", "Reads that had to ask more replicas", counts.read_escalations);
        out.counter(
            "settled_reads",
            "Reads that waited until nothing was undecided, as such reads had been lost again and again",
            counts.settled_reads,
        );
        self.driver.more_statistics(out);
    }
}

/// Something that came from another engine's session, or from another kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

impl From<Foreign> for engine::Refusal {
    fn from(_: Foreign) -> Self {
        Self::Invalid("the request holds what another engine's session gave".to_owned())
    }
}

/// A transaction that has run, from the evidence of its reads.
///
/// # Errors
/// [`Foreign`], when the evidence is not this engine's.
pub fn buffer(timestamp: Timestamp, reads: Vec<Evidence>, writes: Vec<(Key, Option<Value>)>) -> Result<Buffer, Foreign> {
    Ok(gather(timestamp, reads, writes)?.0)
}

/// The same, and whether it has read the past and nothing else: then nothing is left to be decided.
fn gather(timestamp: Timestamp, reads: Vec<Evidence>, writes: Vec<(Key, Option<Value>)>) -> Result<(Buffer, bool), Foreign> {
    let mut buffer = Buffer::new(timestamp);
    let mut is_as_of = true;
    for evidence in reads {
        let ReadEvidence { timestamp: read_at, mode, what } = evidence.take().map_err(|_| Foreign)?;
        // What was validated holds at the timestamp of the read alone.
        let is_of_now = read_at == timestamp;
        is_as_of &= is_of_now && mode.is_as_of();
        let at_commit = |found: ReadFound| ReadFound { validated: if is_of_now { found.validated } else { Voters::default() }, ..found };
        match what {
            What::Keys(found) => found.into_iter().for_each(|found| buffer.found(at_commit(found))),
            What::Range(scan) => {
                let (found, is_validated) = (scan.found.into_iter().map(at_commit).collect(), scan.is_validated && is_of_now);
                buffer.scanned(RangeFound { found, is_validated, ..scan });
            }
        }
    }
    for (key, value) in writes {
        buffer.write(key, value);
    }
    Ok((buffer, is_as_of))
}

/// What a read of the session's found.
fn found(timestamp: Timestamp, mode: ReadMode, event: Event) -> Result<Response, engine::Refusal> {
    let what = match event {
        Event::Read { result, .. } => What::Keys(result.map_err(|failure| failure.refusal_of_read(mode))?),
        Event::Scanned { result, .. } => What::Range(result.map_err(|failure| failure.refusal_of_read(mode))?),
        Event::Ended { .. } | Event::Validated { .. } => return Err(engine::Refusal::Unavailable),
    };
    let value = |found: &ReadFound| (found.key.clone(), found.value.clone());
    let values = match &what {
        What::Keys(found) => found.iter().map(value).collect(),
        What::Range(scan) => scan.found.iter().filter(|found| found.value.is_some()).map(value).collect(),
    };
    Ok(Response::Found(Found { found: values, evidence: Evidence::new(ReadEvidence { timestamp, mode, what }) }))
}

/// How a transaction of the session's ended.
fn committed(transaction: Transaction, event: Event) -> Result<Response, engine::Refusal> {
    let (id, timestamp) = (transaction.id(), transaction.timestamp());
    let (path, receipt) = match event {
        Event::Validated { .. } => (CommitPath::ReadOnly, None),
        Event::Ended { result: Ok((certificate, path)), .. } if certificate.decision == Decision::Commit => {
            (path.into(), Some(Receipt { transaction, certificate }.into()))
        }
        Event::Ended { result: Ok(_), .. } => return Err(engine::Refusal::Conflict),
        // Of what only reads nothing is left that could take place.
        Event::Ended { result: Err(failure), .. } if transaction.writes().is_empty() => {
            return Err(failure.refusal_of_commit().of_only_reads());
        }
        Event::Ended { result: Err(failure), .. } => return Err(failure.refusal_of_commit()),
        Event::Read { .. } | Event::Scanned { .. } => return Err(engine::Refusal::OutcomeUnknown),
    };
    Ok(Response::Committed(Commit { id, timestamp, place: 0, path, receipt }))
}

impl From<TransactionError> for engine::Refusal {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Contradicted => Self::Conflict,
            _ => Self::Invalid(error.to_string()),
        }
    }
}

impl From<Path> for CommitPath {
    fn from(path: Path) -> Self {
        match path {
            Path::Fast => Self::Fast,
            Path::Slow => Self::Slow,
            Path::Recovered => Self::Recovered,
        }
    }
}

impl Failure {
    /// What a caller is told whose read failed so: nothing was asked to be committed.
    #[must_use]
    pub fn refusal_of_read(self, mode: ReadMode) -> engine::Refusal {
        match self {
            Self::Refused(Refusal::NotKept { kept_ms }) if mode.is_as_of() => engine::Refusal::NotKept { kept_ms },
            Self::Refused(Refusal::TooNew) if mode.is_as_of() => engine::Refusal::NotPast,
            Self::TooLow => engine::Refusal::TooOld,
            Self::TimedOut(_) => engine::Refusal::Unavailable,
            Self::Refused(refusal) => refusal.into(),
        }
    }

    /// What a caller is told whose commit of writes failed so.
    #[must_use]
    pub fn refusal_of_commit(self) -> engine::Refusal {
        match self {
            Self::TooLow => engine::Refusal::TooOld,
            Self::TimedOut(None) => engine::Refusal::OutcomeUnknown,
            Self::TimedOut(Some(why)) => engine::Refusal::Unjudged(why_unjudged(why)),
            Self::Refused(refusal) => refusal.into(),
        }
    }
}

/// Why a commit was not judged until its time was over, in words that follow "the replicas refused it, as". Nothing of what to do: it may take place yet.
fn why_unjudged(why: Refusal) -> String {
    match why {
        Refusal::AbandonLimit { after_ms } => {
            format!("this client left too many of its transactions for others to end, which is held against it for {after_ms} ms more")
        }
        Refusal::ClientLimit { limit, .. } => format!("this client was over its limit {}", name_of(limit)),
        Refusal::Overloaded { .. } => "they had no room for more that is undecided".to_owned(),
        Refusal::Liar => "they have seen this client lie".to_owned(),
        Refusal::TooNew => "its timestamp was too far ahead of their clocks".to_owned(),
        Refusal::TooOld | Refusal::NotKept { .. } => "its timestamp had become too old".to_owned(),
        Refusal::NotPermitted | Refusal::WrongShard | Refusal::TooLarge | Refusal::Unknown => {
            "this client's configuration differs from theirs".to_owned()
        }
    }
}

/// A limit's name in the configuration.
fn name_of(limit: ClientLimit) -> &'static str {
    match limit {
        ClientLimit::Transactions => "transactions_max",
        ClientLimit::Keys => "keys_max",
        ClientLimit::Bytes => "bytes_max",
        ClientLimit::ReadsPerSecond => "reads_per_second",
    }
}

impl From<Refusal> for engine::Refusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            // What is too old to be read is begun again, unless it is read for being old.
            Refusal::TooOld | Refusal::NotKept { .. } => Self::TooOld,
            Refusal::TooNew => Self::TooNew,
            Refusal::NotPermitted => Self::NotPermitted,
            Refusal::WrongShard => Self::WrongShard,
            Refusal::Overloaded { after_ms } => Self::Overloaded { after_ms },
            Refusal::AbandonLimit { after_ms } => Self::AbandonLimit { after_ms },
            Refusal::ClientLimit { limit, after_ms } => Self::ClientLimit { name: name_of(limit), after_ms },
            Refusal::Liar => Self::Liar,
            Refusal::TooLarge => Self::AnswerTooLarge,
            Refusal::Unknown => Self::Unknown,
        }
    }
}
