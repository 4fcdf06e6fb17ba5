//! A client of Basil: the session that real clients have (`basil::Session`), and above it an application that has one task after the other. A task is one
//! transaction, or some beside one another, whose places in the order the session then chooses with what it knows of all of them.
//!
//! Clients that cheat have such a session too, around a coordinator that cheats, as `bezant_client::cheating` has it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;

use adversary::{AttackConfig, ByzantineClient, ClientStrategy};
use basil::{Certificate, Coordinator, CoordinatorOptions, Decision, Event, Failure, Message, ReadFound, Session, Transaction};
use crypto::Verified;
use engine::{
    Ask, ClusterClock, Commit, CommitPath, CommitRequest, Evidence, Found, ReadMode, Refusal, Request, Response, Tell, even_time_after,
    stretched,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use random::Random;
use simulator::{Client, Goal, Next};
use types::{ClientId, Cluster, Direction, Key, KeyRange, Timestamp, TransactionId};

use super::Basil;
use super::checker::{History, Scan, Seen};
use super::driver::{ClientDriver, Note};
use super::plan::{Known, Plan, Step};

type Scene<'a> = simulator::Scene<'a, Basil>;

/// Times in the past are multiples of this, in nanoseconds.
const PAST_NS: u64 = 100_000_000;
/// After a pause a client's clock goes again so much later than it would if it went right, at most.
const PAUSE_MORE_NS: u64 = 10_000_000;
/// Of a thousand tasks so many are several transactions.
const SEVERAL_PER_MILLE: u64 = 300;
/// How many transactions a task has at most.
const TRANSACTIONS_MAX: u64 = 4;

/// A client of Basil.
pub struct BasilClient {
    session: Session<ClientDriver>,
    cluster: Arc<Cluster>,
    options: CoordinatorOptions,
    /// The cluster's clock, as the session told it last.
    clock: Option<ClusterClock>,
    /// The time of the last timestamp.
    last_time: u64,
    task: Option<Task>,
    /// How many transactions it has begun, in all its processes.
    begun: u64,
    operations: u64,
}

/// What a client hears.
#[derive(Debug)]
pub enum Heard {
    /// What passed below its session, for the checkers.
    Passed(Note),
    /// What its session tells.
    Told(Tell),
}

/// What a client is at.
struct Task {
    strands: Vec<Strand>,
    /// What begins later, each as soon as something is told of what has begun.
    to_begin: Vec<Plan>,
    /// What was asked and is not answered: for which of the transactions.
    waits_for: BTreeMap<u64, usize>,
    came: Came,
    /// What nobody answered in time.
    unanswered: Vec<String>,
}

/// One transaction of the application, whatever becomes of it below.
struct Strand {
    plan: Plan,
    /// What no other transaction of this client has.
    number: u64,
    tag: String,
    timestamp: Timestamp,
    /// Whether it reads the past, and what the cluster's clock showed when it chose how long ago.
    as_of: Option<u64>,
    /// When it began, in true time; nothing where its machine was paused just before, so that nothing follows from it.
    began: Option<u64>,
    known: Known,
    seen: Seen,
    evidence: Vec<Evidence>,
    /// The range asked for, and how many keys of it.
    asked: Option<(KeyRange, Direction, usize)>,
    /// What its read has found, versions and all.
    found: Vec<ReadFound>,
    /// As which transactions its session has tried to commit it.
    attempts: Vec<(TransactionId, Timestamp)>,
    /// What proves that the last of these has committed.
    certificate: Option<Arc<Certificate>>,
}

/// What came of a transaction: of several in a task, the last of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Done,
    NotDone,
    Failed,
    /// Nobody answered in time, or nobody knows.
    Unanswered,
}

impl Task {
    fn new(to_begin: Vec<Plan>) -> Self {
        Self { strands: Vec::new(), to_begin, waits_for: BTreeMap::new(), came: Came::Done, unanswered: Vec::new() }
    }
}

impl Strand {
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

    /// Takes in what it is told of keys, or of the range that it asked for.
    fn take_in(&mut self, Found { found, evidence }: Found) {
        let versions = take(&mut self.found);
        let version = |key: &Key| versions.iter().find(|one| one.key == *key).map_or(Timestamp::ZERO, |one| one.version);
        for (key, value) in &found {
            self.seen.read(key, version(key), value.as_ref());
        }
        self.evidence.push(evidence);
        let Some((range, direction, limit)) = self.asked.take() else { return self.known.read(found) };
        // What nobody may be told of, and the transaction goes by: there was something, and what is undecided takes it away.
        versions.iter().filter(|one| one.value.is_none()).for_each(|one| self.seen.read(&one.key, one.version, None));
        self.seen.scans.push(Scan { range, direction, limit, keys: found.iter().map(|(key, _)| key.clone()).collect() });
        self.known.scanned(found);
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
            None => ClientDriver::honest(coordinator),
            Some((strategies, random)) => {
                let config = AttackConfig { strategies, per_mille: 1_000, victims };
                ClientDriver::byzantine(ByzantineClient::new(cluster.clone(), coordinator, config, random))
            }
        };
        let session = Session::new(cluster.id(), driver);
        Self { session, cluster, options, clock: None, last_time: 0, task: None, begun: 0, operations: 0 }
    }

    /// Begins the next of its task's transactions, if one is left.
    fn begin_next(&mut self, scene: &mut Scene<'_>) -> Option<Ask> {
        let plan = self.task.as_mut()?.to_begin.pop()?;
        let party = scene.party;
        scene.line(|| format!("{party} begins: {plan:?}"));
        let now = self.clock?.read(scene.local);
        self.last_time = even_time_after(now, self.last_time);
        let mut timestamp = self.session.driver_mut().begin(Timestamp::new(self.last_time, scene.id));
        let mut as_of = None;
        if let Plan::Past { ago_ms } = plan
            && self.is_honest()
        {
            // Some read as of the very same time.
            let time = now.saturating_sub(ago_ms * 1_000_000);
            timestamp = Timestamp::above_all_before(time - time % PAST_NS);
            as_of = Some(now);
        }
        // What it heard of clocks before it was paused is good for a while, and it cannot see that it was.
        let good_ns = stretched(self.options.clock_good_ms * 1_000_000) + PAUSE_MORE_NS;
        let is_told = scene.paused_until == 0 || scene.now > scene.paused_until + good_ns;
        self.begun += 1;
        let number = self.begun;
        let task = self.task.as_mut()?;
        task.strands.push(Strand {
            plan,
            number,
            tag: format!("{}.{number}", scene.id),
            timestamp,
            as_of,
            began: is_told.then_some(scene.now),
            known: Known::default(),
            seen: Seen::default(),
            evidence: Vec::new(),
            asked: None,
            found: Vec::new(),
            attempts: Vec::new(),
            certificate: None,
        });
        let at = task.strands.len() - 1;
        self.advance(at, scene)
    }

    /// Goes on with one of its task's transactions.
    fn advance(&mut self, at: usize, scene: &mut Scene<'_>) -> Option<Ask> {
        let task = self.task.as_mut()?;
        let strand = &mut task.strands[at];
        let (timestamp, mode) = (strand.timestamp, strand.mode());
        let request = match strand.plan.advance(&strand.known, &strand.tag) {
            Step::Read(keys) => Request::Read { timestamp, keys, mode },
            Step::Scan(range, direction, limit) => {
                let (low, high) = (range.low().clone(), range.high().clone());
                strand.asked = Some((range, direction, limit));
                Request::Scan { timestamp, low, high, direction, limit, mode }
            }
            Step::Commit(writes) => {
                if strand.as_of.is_some() {
                    has_read_past(strand, scene);
                }
                Request::Commit(CommitRequest { timestamp, reads: take(&mut strand.evidence), writes })
            }
        };
        self.operations += 1;
        task.waits_for.insert(self.operations, at);
        Some(Ask { operation: self.operations, request })
    }

    /// Its session asks for a transaction to be committed, in the place of one that its application has begun.
    fn on_asked(&mut self, operation: u64, transaction: &Transaction, scene: &mut Scene<'_>) {
        let is_honest = self.is_honest();
        let Some(task) = &mut self.task else { return };
        let Some(at) = task.waits_for.get(&operation) else { return };
        let strand = &mut task.strands[*at];
        let (party, id, timestamp) = (scene.party, transaction.id(), transaction.timestamp());
        let is_again = !strand.attempts.is_empty();
        scene.line(|| format!("{party} {} {id:?} at {timestamp:?}", if is_again { "tries again" } else { "commits" }));
        strand.attempts.push((id, timestamp));
        if is_honest {
            scene.checker.issued(History::new(strand.plan.clone(), strand.began, strand.seen.clone(), transaction.clone()));
            scene.engine_counts.refreshed += u64::from(is_again);
            scene.engine_counts.moved += u64::from(!is_again && timestamp != strand.timestamp);
        }
    }

    /// What its session's coordinator has found, or what ended.
    fn on_said(&mut self, event: Event, scene: &mut Scene<'_>) {
        let is_honest = self.is_honest();
        let (Event::Read { operation, .. }
        | Event::Scanned { operation, .. }
        | Event::Ended { operation, .. }
        | Event::Validated { operation }) = &event;
        let Some(task) = &mut self.task else { return };
        let Some(at) = task.waits_for.get(operation) else { return };
        let strand = &mut task.strands[*at];
        let found = match event {
            Event::Read { result, .. } => result,
            Event::Scanned { result, .. } => result.map(|scan| scan.found),
            Event::Ended { result: Ok((certificate, path)), .. } => {
                let (id, of, decision) = (scene.id, certificate.id, certificate.decision);
                scene.line(|| format!("{id} is told {decision:?} of {of:?} ({path:?})"));
                match decision {
                    _ if !is_honest => scene.counts.byzantine_ended += 1,
                    Decision::Commit => strand.certificate = Some(certificate),
                    // Its session may try again, and its application does not hear of this one then.
                    Decision::Abort => scene.checker.told(scene.now, of, &certificate),
                }
                return;
            }
            Event::Ended { result: Err(failure), .. } => Err(failure),
            Event::Validated { .. } => return,
        };
        match found {
            Err(Failure::Refused(refusal)) if is_honest => scene.checker.told_refused(scene.id, refusal),
            Err(_) => {}
            Ok(found) => {
                if is_honest {
                    scene.checker.read(scene.id, &found);
                }
                strand.found = found;
            }
        }
    }

    /// Its session answers what was asked.
    fn on_answer(&mut self, operation: u64, outcome: Result<Response, Refusal>, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        let Some(at) = self.task.as_mut().and_then(|task| task.waits_for.remove(&operation)) else { return Next::Wait };
        let mut asks = Vec::new();
        let came = match outcome {
            Ok(Response::Found(found)) => {
                if let Some(task) = &mut self.task {
                    task.strands[at].take_in(found);
                }
                asks.extend(self.advance(at, scene));
                Came::Done
            }
            Ok(Response::Committed(commit)) => self.on_committed(at, &commit, scene),
            Ok(Response::Done { .. } | Response::Private(_)) => Came::NotDone,
            Err(refusal) => self.on_refused(at, &refusal, scene),
        };
        asks.extend(self.begin_next(scene));
        let Some(task) = &mut self.task else { return Next::Wait };
        task.came = task.came.max(came);
        if !asks.is_empty() {
            return Next::Command(asks);
        }
        if !task.waits_for.is_empty() {
            return Next::Wait;
        }
        let (came, unanswered) = (task.came, take(&mut task.unanswered));
        self.task = None;
        match came {
            Came::Done => Next::Done,
            Came::NotDone => Next::NotDone,
            Came::Failed => Next::Failed,
            Came::Unanswered => Next::TimedOut(unanswered.join(", ")),
        }
    }

    /// One of its transactions has committed.
    fn on_committed(&mut self, at: usize, commit: &Commit, scene: &mut Scene<'_>) -> Came {
        let is_honest = self.is_honest();
        let Some(task) = self.task.as_mut().filter(|_| is_honest) else { return Came::Done };
        let strand = &mut task.strands[at];
        let (party, id) = (scene.party, commit.id);
        let certificate = strand.certificate.take().filter(|certificate| certificate.id == id);
        match (strand.attempts.last(), certificate) {
            (None, _) if strand.as_of.is_some() => scene.engine_counts.past += 1,
            (Some(last), Some(certificate)) if *last == (id, commit.timestamp) => {
                scene.checker.told(scene.now, id, &certificate);
                scene.engine_counts.fast += u64::from(commit.path == CommitPath::Fast);
            }
            (Some(last), None) if *last == (id, commit.timestamp) && commit.path == CommitPath::ReadOnly => {
                scene.line(|| format!("{party} is told that {id:?}, which only read, has committed"));
                scene.checker.validated(scene.now, id);
                scene.engine_counts.validated += 1;
            }
            _ => scene.checker.told_of_another(scene.id, id),
        }
        Came::Done
    }

    /// What one of its transactions asked is refused.
    fn on_refused(&mut self, at: usize, refusal: &Refusal, scene: &mut Scene<'_>) -> Came {
        let is_honest = self.is_honest();
        let Some(task) = &mut self.task else { return Came::NotDone };
        let strand = &task.strands[at];
        let (party, plan) = (scene.party, strand.plan.name());
        scene.line(|| format!("{party} is refused its {plan}: {refusal}"));
        let came = match refusal {
            Refusal::Conflict => Came::NotDone,
            Refusal::OutcomeUnknown | Refusal::Unjudged(_) | Refusal::Unavailable if is_honest => Came::Unanswered,
            // It has left what it was at, and goes on to the next.
            Refusal::OutcomeUnknown => Came::NotDone,
            _ => Came::Failed,
        };
        if came == Came::Unanswered {
            let of = strand.attempts.last().map_or_else(|| "its reads".to_owned(), |(id, _)| format!("{id:?}"));
            task.unanswered.push(format!("a {plan} ({of})"));
        } else if is_honest {
            strand.attempts.iter().for_each(|(id, _)| scene.checker.told_never(*id));
        }
        came
    }

    /// Has its session speak, and tells what that says.
    fn with_session(
        &mut self,
        outbox: &mut OutboxOf<Self>,
        speak: impl FnOnce(&mut Session<ClientDriver>, &mut OutboxOf<Session<ClientDriver>>),
    ) {
        let tells = outbox.lend(|outbox| speak(&mut self.session, outbox));
        outbox.events.extend(self.session.driver_mut().take_notes().into_iter().map(Heard::Passed));
        for tell in tells {
            match tell {
                Tell::Clock(clock) => self.clock = Some(clock),
                tell => outbox.emit(Heard::Told(tell)),
            }
        }
    }
}

/// It has read all it wants of the past. That is final, whatever it does next.
fn has_read_past(strand: &Strand, scene: &mut Scene<'_>) {
    if let (Some(began), ReadMode::Ago { now }) = (strand.began, strand.mode()) {
        scene.checker.has_counted_from(scene.id, began, now);
    }
    let (party, at) = (scene.party, strand.timestamp);
    scene.line(|| format!("{party} has read what there was at {at:?}"));
    scene.checker.has_read_past(scene.now, scene.id, at, strand.seen.clone());
}

impl Client<Basil> for BasilClient {
    fn is_honest(&self) -> bool {
        self.session.driver().is_honest()
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        if self.clock.is_none() {
            return Next::NotDone;
        }
        let kinds = &scene.setting.engine.plans;
        let plans: Vec<Plan> = match goal {
            Goal::Anything => {
                let is_several = self.is_honest() && scene.random.chance(SEVERAL_PER_MILLE);
                let count = if is_several { scene.random.between(2, TRANSACTIONS_MAX) } else { 1 };
                (0..count).map(|_| Plan::draw_of(scene.random, kinds)).collect()
            }
            Goal::Contended => vec![Plan::draw_contended(scene.random, kinds)],
            Goal::Audit => vec![Plan::Everything],
        };
        if self.is_honest() {
            scene.checker.began(scene.id);
        }
        // Some begin together, and some one after the other, so that who began later has read or written by then.
        let at_once = if plans.len() > 1 && scene.random.chance(500) { plans.len() } else { 1 };
        self.task = Some(Task::new(plans));
        Next::Command((0..at_once).filter_map(|_| self.begin_next(scene)).collect())
    }

    fn told(&mut self, heard: Heard, scene: &mut Scene<'_>) -> Next<Vec<Ask>> {
        match heard {
            Heard::Passed(Note::Asked { operation, transaction }) => self.on_asked(operation, &transaction, scene),
            Heard::Passed(Note::Said(event)) => self.on_said(event, scene),
            Heard::Told(Tell::Response { operation, outcome }) => return self.on_answer(operation, outcome, scene),
            Heard::Told(Tell::Clock(_) | Tell::Notice(_)) => {}
        }
        Next::Wait
    }

    fn forget(&mut self) {
        let coordinator = || Coordinator::for_client(self.cluster.clone(), self.options);
        let mut driver = std::mem::replace(self.session.driver_mut(), ClientDriver::honest(coordinator()));
        driver.forget(coordinator());
        self.session = Session::new(self.cluster.id(), driver);
        (self.clock, self.last_time, self.task) = (None, 0, None);
    }
}

impl Machine for BasilClient {
    type Command = Vec<Ask>;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Heard;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.with_session(outbox, |session, outbox| match input {
            Input::Command(asks) => asks.into_iter().for_each(|ask| session.step(now, Input::Command(ask), outbox)),
            Input::Message { from, message } => session.step(now, Input::Message { from, message }, outbox),
            Input::Tick => session.step(now, Input::Tick, outbox),
        });
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.with_session(outbox, |session, outbox| session.end_turn(now, outbox));
    }

    fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }
}

impl Durable for BasilClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
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
        Message::UndecidedQuery { up_to, after } => format!("UndecidedQuery up to {up_to} after {after:?}"),
        Message::UndecidedReply { up_to, transactions, is_last, .. } => {
            format!("UndecidedReply of {} up to {up_to}, {}", transactions.len(), if *is_last { "all" } else { "and more" })
        }
        Message::ReadReply { request, results, prepared, .. } => {
            format!("ReadReply {request} of {} keys, {} prepared", results.len(), prepared.len())
        }
        Message::Scan { request, timestamp, range, direction, limit } => {
            format!("Scan {request} at {timestamp} of {range}, {direction:?}, {limit} keys")
        }
        Message::ScanReply { request, rows, end, prepared, .. } => {
            format!("ScanReply {request} of {} keys up to {end}, {} prepared", rows.len(), prepared.len())
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
