//! A client of Basil: a coordinator, honest or not, and above it an application that has one plan after the other.

use std::convert::Infallible;
use std::sync::Arc;

use adversary::{AttackConfig, ByzantineClient, ByzantineEvent, ClientStrategy};
use basil::refresh::{Attempt, UniqueTimes};
use basil::{
    Buffer, Certificate, Command, Coordinator, CoordinatorOptions, Decision, Event, Failure, Message, Path, RangeFound, ReadFound,
    TransactionError,
};
use crypto::Verified;
use engine::{ReadMode, stretched};
use machine::{InputOf, Machine, OutboxOf, Time};
use random::Random;
use simulator::{Client, Goal, Next};
use types::{ClientId, Cluster, Key, KeyRange, Timestamp, Value};

use super::Basil;
use super::checker::{History, Scan, Seen};
use super::plan::{Ask, Plan};

type Scene<'a> = simulator::Scene<'a, Basil>;

/// Times in the past are multiples of this, in nanoseconds.
const PAST_NS: u64 = 100_000_000;

/// After a pause a client's clock goes again so much later than it would if it went right, at most.
const PAUSE_MORE_NS: u64 = 10_000_000;

/// A client of Basil.
pub struct BasilClient {
    driver: Driver,
    cluster: Arc<Cluster>,
    options: CoordinatorOptions,
    task: Option<Task>,
    operations: u64,
    unique_times: UniqueTimes,
}

/// What drives a client's transactions.
enum Driver {
    Honest(Box<Coordinator>),
    Byzantine(Box<ByzantineClient>),
}

/// The transaction a client is at.
#[derive(Debug)]
struct Task {
    plan: Plan,
    /// What no other task of this client has.
    number: u64,
    tag: String,
    /// Whether it reads the past, and what the cluster's clock showed when it chose how long ago.
    as_of: Option<u64>,
    /// When it began, in true time; nothing where its machine was paused just before, so that nothing follows from it.
    began: Option<u64>,
    /// The number of the operation it waits for.
    operation: u64,
    /// Gone once it is being committed.
    buffer: Option<Buffer>,
    reads: Vec<(Key, Timestamp, Option<Value>)>,
    scans: Vec<Scan>,
    /// The range asked for, and how many keys of it.
    asked: Option<(KeyRange, usize)>,
    /// Once it is being committed.
    attempt: Option<Attempt>,
}

impl Task {
    /// What it says of itself when it reads: whether a reader says that it writes nothing, or that it counts from now, is up to it, here to the
    /// transaction's number.
    fn mode(&self) -> ReadMode {
        if let Some(now) = self.as_of {
            if self.number.is_multiple_of(2) { ReadMode::Ago { now } } else { ReadMode::AsOf }
        } else if self.plan.only_reads() && self.number.is_multiple_of(2) {
            ReadMode::ReadOnly
        } else {
            ReadMode::Interactive
        }
    }

    fn seen(&self) -> Seen {
        Seen { reads: self.reads.clone(), scans: self.scans.clone() }
    }
}

impl BasilClient {
    /// An honest client, or one that cheats in these ways.
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        options: CoordinatorOptions,
        cheat: Option<(Vec<ClientStrategy>, Random)>,
        victims: Vec<ClientId>,
    ) -> Self {
        let coordinator = Coordinator::for_client(cluster.clone(), options);
        let driver = match cheat {
            None => Driver::Honest(Box::new(coordinator)),
            Some((strategies, random)) => {
                let config = AttackConfig { strategies, per_mille: 1_000, victims };
                Driver::Byzantine(Box::new(ByzantineClient::new(cluster.clone(), coordinator, config, random)))
            }
        };
        Self { driver, cluster, options, task: None, operations: 0, unique_times: UniqueTimes::default() }
    }

    /// Goes on with its transaction as far as it can.
    fn advance(&mut self, scene: &mut Scene<'_>) -> Next<Command> {
        let Some(task) = self.task.as_mut() else { return Next::Wait };
        let mode = task.mode();
        let Some(buffer) = task.buffer.as_mut() else { return Next::Wait };
        self.operations += 1;
        task.operation = self.operations;
        match task.plan.advance(buffer, &task.tag) {
            Ask::Read(keys) => Next::Command(Command::Read { operation: task.operation, timestamp: buffer.timestamp(), keys, mode }),
            Ask::Scan(range, limit) => {
                task.asked = Some((range.clone(), limit));
                Next::Command(Command::Scan { operation: task.operation, timestamp: buffer.timestamp(), range, limit, mode })
            }
            Ask::Commit if task.as_of.is_some() => self.has_read_past(scene),
            Ask::Commit => self.commit(scene),
        }
    }

    /// What it read of the past is final: there is nothing to commit.
    fn has_read_past(&mut self, scene: &mut Scene<'_>) -> Next<Command> {
        let task = self.task.take();
        if let Some((began, ReadMode::Ago { now })) = task.as_ref().and_then(|task| Some((task.began?, task.mode()))) {
            scene.checker.has_counted_from(scene.id, began, now);
        }
        let Some(Task { buffer: Some(buffer), reads, scans, .. }) = task else { return Next::Wait };
        let (party, at) = (scene.party, buffer.timestamp());
        scene.line(|| format!("{party} has read what there was at {at:?}"));
        scene.checker.has_read_past(scene.now, scene.id, at, Seen { reads, scans });
        scene.engine_counts.past += 1;
        Next::Done
    }

    fn coordinator(&self) -> &Coordinator {
        match &self.driver {
            Driver::Honest(coordinator) => coordinator,
            Driver::Byzantine(byzantine) => byzantine.coordinator(),
        }
    }

    fn commit(&mut self, scene: &mut Scene<'_>) -> Next<Command> {
        let is_honest = self.is_honest();
        let Some(task) = self.task.as_mut() else { return Next::Wait };
        let Some(buffer) = task.buffer.take() else { return Next::Wait };
        let validated = buffer.validated();
        let (transaction, dependencies) = match buffer.finish(self.cluster.id()) {
            Ok(finished) => finished,
            Err(TransactionError::Contradicted) => {
                let party = scene.party;
                scene.line(|| format!("{party} was shown more than one state"));
                self.task = None;
                return Next::NotDone;
            }
            Err(error) => panic!("what plans do is far below any limit: {error}"),
        };
        task.attempt = Some(Attempt::first(scene.local, transaction.clone(), dependencies.clone()));
        let party = scene.party;
        scene.line(|| format!("{party} commits {:?} at {:?}", transaction.id(), transaction.timestamp()));
        if is_honest {
            scene.checker.issued(History::new(task.plan.clone(), task.began, task.seen(), transaction.clone()));
        }
        let operation = task.operation;
        Next::Command(match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        })
    }

    fn on_read(&mut self, found: Vec<ReadFound>, scene: &mut Scene<'_>) -> Next<Command> {
        let is_honest = self.is_honest();
        let Some(task) = &mut self.task else { return Next::Wait };
        task.reads.extend(found.iter().map(|one| (one.key.clone(), one.version, one.value.clone())));
        if is_honest {
            scene.checker.read(scene.id, &found);
        }
        if let Some(buffer) = &mut task.buffer {
            found.into_iter().for_each(|one| buffer.found(one));
        }
        self.advance(scene)
    }

    fn on_scanned(&mut self, scan: RangeFound, scene: &mut Scene<'_>) -> Next<Command> {
        let is_honest = self.is_honest();
        let Some(task) = &mut self.task else { return Next::Wait };
        task.reads.extend(scan.found.iter().map(|one| (one.key.clone(), one.version, one.value.clone())));
        if let Some((range, limit)) = task.asked.take() {
            let keys = scan.found.iter().filter(|one| one.value.is_some()).map(|one| one.key.clone()).collect();
            task.scans.push(Scan { range, limit, keys });
        }
        if is_honest {
            scene.checker.read(scene.id, &scan.found);
        }
        if let Some(buffer) = &mut task.buffer {
            buffer.scanned(scan);
        }
        self.advance(scene)
    }

    fn on_ended(&mut self, certificate: &Certificate, path: Path, scene: &mut Scene<'_>) -> Next<Command> {
        let id = scene.id;
        scene.line(|| format!("{id} is told {:?} of {:?} ({path:?})", certificate.decision, certificate.id));
        if self.is_honest() {
            scene.checker.told(scene.now, certificate.id, certificate);
            scene.engine_counts.fast += u64::from(path == Path::Fast && certificate.decision == Decision::Commit);
        } else {
            scene.counts.byzantine_ended += 1;
        }
        if certificate.decision == Decision::Abort
            && let Some(command) = self.refresh(certificate, scene)
        {
            return Next::Command(command);
        }
        self.task = None;
        if certificate.decision == Decision::Commit { Next::Done } else { Next::NotDone }
    }

    /// Tries again at a later timestamp what was voted down, as a session does.
    fn refresh(&mut self, aborted: &Certificate, scene: &mut Scene<'_>) -> Option<Command> {
        let clock = self.coordinator().clock().filter(|_| self.is_honest())?;
        let task = self.task.as_mut()?;
        let attempt = task.attempt.as_mut().filter(|attempt| attempt.may_refresh(scene.local, aborted))?;
        let timestamp = self.unique_times.after(clock.read(scene.local), attempt.transaction.timestamp());
        attempt.refresh(self.cluster.id(), timestamp);
        let (transaction, dependencies) = (attempt.transaction.clone(), attempt.dependencies.clone());
        let party = scene.party;
        scene.line(|| format!("{party} tries again {:?} at {:?}", transaction.id(), transaction.timestamp()));
        scene.checker.issued(History::new(task.plan.clone(), task.began, task.seen(), transaction.clone()));
        scene.engine_counts.refreshed += 1;
        self.operations += 1;
        task.operation = self.operations;
        Some(Command::Commit { operation: task.operation, transaction, dependencies })
    }

    /// Its transaction, which only read, has committed.
    fn on_validated(&mut self, scene: &mut Scene<'_>) -> Next<Command> {
        let transaction = self.task.take().and_then(|task| task.attempt).map(|attempt| attempt.transaction.id());
        let id = scene.id;
        scene.line(|| format!("{id} is told that {transaction:?}, which only read, has committed"));
        if let (true, Some(transaction)) = (self.is_honest(), transaction) {
            scene.checker.validated(scene.now, transaction);
            scene.engine_counts.validated += 1;
        }
        Next::Done
    }

    fn on_failure(&mut self, failure: Failure, scene: &mut Scene<'_>) -> Next<Command> {
        let Some(task) = self.task.take() else { return Next::Wait };
        let (id, plan) = (scene.id, task.plan.name());
        scene.line(|| format!("{id} fails: {failure:?} of {plan}"));
        if let (true, Failure::Refused(refusal)) = (self.is_honest(), failure) {
            scene.checker.told_refused(id, refusal);
        }
        if let (true, Some(attempt)) = (self.is_honest() && !matches!(failure, Failure::TimedOut(_)), &task.attempt) {
            scene.checker.told_never(attempt.transaction.id());
        }
        if !matches!(failure, Failure::TimedOut(_)) {
            return Next::Failed;
        }
        let name = task.attempt.map_or_else(|| "its reads".to_owned(), |attempt| format!("{:?}", attempt.transaction.id()));
        Next::TimedOut(format!("a {plan} ({name})"))
    }

    fn on_event(&mut self, event: Event, scene: &mut Scene<'_>) -> Next<Command> {
        let Some(waiting_for) = self.task.as_ref().map(|task| task.operation) else { return Next::Wait };
        match event {
            Event::Read { operation, result } if operation == waiting_for => match result {
                Ok(found) => self.on_read(found, scene),
                Err(failure) => self.on_failure(failure, scene),
            },
            Event::Scanned { operation, result } if operation == waiting_for => match result {
                Ok(scan) => self.on_scanned(scan, scene),
                Err(failure) => self.on_failure(failure, scene),
            },
            Event::Ended { operation, result } if operation == waiting_for => match result {
                Ok((certificate, path)) => self.on_ended(&certificate, path, scene),
                Err(failure) => self.on_failure(failure, scene),
            },
            Event::Validated { operation } if operation == waiting_for => self.on_validated(scene),
            _ => Next::Wait,
        }
    }
}

impl Client<Basil> for BasilClient {
    fn is_honest(&self) -> bool {
        matches!(self.driver, Driver::Honest(_))
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Command> {
        let Some(clock) = self.coordinator().clock() else { return Next::NotDone };
        let plans = &scene.setting.engine.plans;
        let plan = match goal {
            Goal::Anything => Plan::draw_of(scene.random, plans),
            Goal::Contended => Plan::draw_contended(scene.random, plans),
            Goal::Audit => Plan::Everything,
        };
        let party = scene.party;
        scene.line(|| format!("{party} begins: {plan:?}"));
        // A client's timestamps are its own: no two are alike.
        let mut timestamp = self.unique_times.after(clock.read(scene.local), Timestamp::new(0, scene.id));
        match &mut self.driver {
            Driver::Byzantine(byzantine) => timestamp = byzantine.begin(timestamp),
            Driver::Honest(_) => scene.checker.began(scene.id),
        }
        let mut as_of = None;
        if let Plan::Past { ago_ms } = plan
            && self.is_honest()
        {
            // Some read as of the very same time.
            let now = clock.read(scene.local);
            let time = now.saturating_sub(ago_ms * 1_000_000);
            timestamp = Timestamp::above_all_before(time - time % PAST_NS);
            as_of = Some(now);
        }
        self.operations += 1;
        let number = self.operations;
        let tag = format!("{}.{number}", scene.id);
        let buffer = Some(Buffer::new(timestamp));
        // What it heard of clocks before it was paused is good for a while, and it cannot see that it was.
        let good_ns = stretched(self.options.clock_good_ms * 1_000_000) + PAUSE_MORE_NS;
        let is_told = scene.paused_until == 0 || scene.now > scene.paused_until + good_ns;
        let began = is_told.then_some(scene.now);
        self.task = Some(Task {
            plan,
            number,
            tag,
            as_of,
            began,
            operation: 0,
            buffer,
            reads: Vec::new(),
            scans: Vec::new(),
            asked: None,
            attempt: None,
        });
        self.advance(scene)
    }

    fn told(&mut self, event: ByzantineEvent, scene: &mut Scene<'_>) -> Next<Command> {
        match event {
            ByzantineEvent::Honest(event) => self.on_event(event, scene),
            // It has left what it was at, and goes on to the next.
            ByzantineEvent::Abandoned { operation, .. } if self.task.as_ref().is_some_and(|task| task.operation == operation) => {
                self.task = None;
                Next::NotDone
            }
            ByzantineEvent::Abandoned { .. } => Next::Wait,
        }
    }

    fn forget(&mut self) {
        let coordinator = Coordinator::for_client(self.cluster.clone(), self.options);
        match &mut self.driver {
            Driver::Honest(honest) => **honest = coordinator,
            Driver::Byzantine(byzantine) => byzantine.forget(coordinator),
        }
        self.task = None;
    }
}

impl Machine for BasilClient {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = ByzantineEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match &mut self.driver {
            Driver::Honest(coordinator) => {
                let events = outbox.lend(|outbox| coordinator.step(now, input, outbox));
                outbox.events.extend(events.into_iter().map(ByzantineEvent::Honest));
            }
            Driver::Byzantine(byzantine) => byzantine.step(now, input, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.driver {
            Driver::Honest(coordinator) => coordinator.deadline(),
            Driver::Byzantine(byzantine) => byzantine.deadline(),
        }
    }
}

/// A message in a line.
pub(crate) fn describe(message: &Message) -> String {
    match message {
        Message::Read { request, timestamp, keys } => format!("Read {request} at {timestamp} of {} keys", keys.len()),
        Message::Prepare { transaction } => format!("Prepare {:?}", transaction.id()),
        Message::Recover { transaction, evidence } => format!("Recover {:?} with {} votes", transaction.id(), evidence.len()),
        Message::Log { transaction, decision, .. } => format!("Log {decision:?} of {:?}", transaction.id()),
        Message::Writeback { certificate, .. } => format!("Writeback {:?} of {:?}", certificate.decision, certificate.id),
        Message::CommitNotice { id } => format!("CommitNotice {id:?}"),
        Message::CommitsQuery { first, digests } => format!("CommitsQuery of {} from {first}", digests.len()),
        Message::CommitsReply { ids } => format!("CommitsReply of {}: {:?}", ids.len(), ids.first()),
        Message::TransactionsQuery { ids } => format!("TransactionsQuery of {}", ids.len()),
        Message::TransactionsReply { transactions } => format!("TransactionsReply of {}", transactions.len()),
        Message::VersionsQuery { query } => format!("VersionsQuery {} from {} to {:?}", query.page, query.from, query.to),
        Message::VersionsReply { page, versions, next } => format!("VersionsReply {page} of {} to {next:?}", versions.len()),
        Message::PreparedQuery { up_to, after } => format!("PreparedQuery up to {up_to} after {after:?}"),
        Message::PreparedReply { up_to, transactions, is_last, .. } => {
            format!("PreparedReply of {} up to {up_to}, {}", transactions.len(), if *is_last { "all" } else { "and more" })
        }
        Message::ReadReply { request, results, prepared, .. } => {
            format!("ReadReply {request} of {} keys, {} prepared", results.len(), prepared.len())
        }
        Message::Scan { request, timestamp, range, limit } => format!("Scan {request} at {timestamp} of {range}, {limit} keys"),
        Message::ScanReply { request, rows, end, prepared, .. } => {
            format!("ScanReply {request} of {} keys before {end}, {} prepared", rows.len(), prepared.len())
        }
        Message::Voted { vote, conflict } => {
            let why = if conflict.is_some() { ", with a conflict" } else { "" };
            format!("Voted {:?} on {:?}{why}", vote.statement.vote, vote.statement.id)
        }
        Message::Logged { logged } => format!("Logged {:?}", logged.statement),
        Message::Decided { certificate } => format!("Decided {:?} of {:?}", certificate.decision, certificate.id),
        other => format!("{other:?}").chars().take(160).collect(),
    }
}
