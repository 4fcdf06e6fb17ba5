//! A client's session, behind the engine interface ([`engine`]).
//!
//! It asks one server, and goes to another where that does not lead or says nothing. What it asks again under the same number is the same
//! question: reads change nothing, and a commit has its place in a slot of the session that the servers know, so that it takes place
//! once. That session is begun with the first commit, and ends when it is unheard of for [`ENGINE_SESSION_MS`](crate::limits::ENGINE_SESSION_MS):
//! whoever commits later begins another. What was asked in one that is gone may be asked in another only where it was asked once: else it may have taken
//! place before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;

use crypto::Verified;
use engine::{
    Ask, Capabilities, Commit, CommitPath, CommitRequest, Evidence, Found, Private, Profile, ReadMode, Refusal, Request, Response,
    Statistics, Tell,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use mutants::{Mutant, broken};
use types::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_RANGES_MAX, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, Direction, KeyRange, Party, ReplicaId, ShardId, Timestamp, TransactionId};

use crate::limits::ENGINE_SLOTS_MAX;

use super::message::{Answer, Message, Question, Reason, Row, Seen, SeenRange, Version, Write};

/// What there is to know of Sentinel before it runs.
pub static PROFILE: Profile = Profile {
    name: "sentinel",
    shape: "2f+1",
    shard_size: |faults| 2 * faults + 1,
    quorum: |faults| faults + 1,
    while_incomplete: "commits take as long as before, or wait for a few seconds while a leader is replaced",
    shards_max: 1,
    capabilities: Capabilities { interactive: true, one_shot: false, ranges: true, as_of: false, pool: false, receipts: false },
    tells_time: false,
    settings: &[],
    pending_room: None,
};

/// A server that says nothing for so long, in milliseconds, may be gone: the next one is asked.
const SILENCE_MS: u64 = 1_000;
/// Where nobody leads, it is asked again after so long, in milliseconds.
const LEADERLESS_MS: u64 = 100;

/// A client's session.
#[derive(Debug)]
pub struct Session {
    servers: Vec<ReplicaId>,
    /// The server that is asked.
    asked: u16,
    /// Those with which the process is not connected, as far as it was told.
    away: BTreeSet<u16>,
    timeout_ms: u64,
    next_number: u64,
    under_way: BTreeMap<u64, UnderWay>,
    /// When something is to be done for what is under way.
    timers: BTreeSet<(Time, u64)>,
    slots: Slots,
    /// Commits that wait for a session, or a slot of it.
    waiting: VecDeque<u64>,
    /// The question that begins a session, while it is under way.
    beginning: Option<u64>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    committed: u64,
    conflicts: u64,
    read_alone: u64,
    asked_again: u64,
}

/// The slots of the session that the servers know.
#[derive(Debug, Default)]
struct Slots {
    session: Option<i64>,
    /// Those below have been used, and these are free.
    used: u16,
    free: BTreeSet<u16>,
    /// The last number of a commit.
    sequence: u64,
}

impl Slots {
    /// A slot for a commit, and its number there.
    fn take(&mut self) -> Option<(i64, u16, u64)> {
        let session = self.session?;
        let slot = match self.free.pop_first() {
            Some(slot) => slot,
            None if self.used < ENGINE_SLOTS_MAX => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        self.sequence += 1;
        Some((session, slot, self.sequence))
    }

    fn free(&mut self, session: i64, slot: u16) {
        if self.session == Some(session) {
            self.free.insert(slot);
        }
    }

    /// The servers know another session from now on, or none.
    fn change(&mut self, session: Option<i64>) {
        *self = Self { session, sequence: self.sequence, ..Self::default() };
    }
}

/// Something that was asked.
#[derive(Debug)]
struct UnderWay {
    purpose: Purpose,
    question: Question,
    /// How often it was sent and nobody has said that nothing came of that.
    open: u32,
    asked: u16,
    /// Whether it was told in vain who leads.
    was_sent_on: bool,
    wakes_at: Time,
    gives_up_at: Time,
}

#[derive(Debug)]
enum Purpose {
    /// A session.
    Begin,
    /// To read, for this number of the application's.
    Read(u64),
    /// To scan at most so many rows of a range, from one of its ends.
    Scan(u64, KeyRange, Direction, usize),
    /// To commit what only reads.
    Check(u64, Timestamp),
    /// To commit.
    Commit(u64, Timestamp),
}

impl Purpose {
    fn operation(&self) -> Option<u64> {
        match self {
            Self::Begin => None,
            Self::Read(operation) | Self::Scan(operation, ..) | Self::Check(operation, _) | Self::Commit(operation, _) => Some(*operation),
        }
    }
}

/// With whom the process is connected now.
struct Connected(Vec<ReplicaId>);

/// The evidence of a read.
struct Evident {
    zxid: i64,
    is_settled: bool,
    seen: Seen,
}

impl Session {
    /// The session of a client of `cluster`. What is asked is given up after `timeout_ms`.
    #[must_use]
    pub fn new(cluster: &Cluster, timeout_ms: u64) -> Self {
        Self {
            servers: cluster.replicas_of(ShardId(0)).collect(),
            asked: 0,
            away: BTreeSet::new(),
            timeout_ms,
            next_number: 0,
            under_way: BTreeMap::new(),
            timers: BTreeSet::new(),
            slots: Slots::default(),
            waiting: VecDeque::new(),
            beginning: None,
            counts: Counts::default(),
        }
    }

    /// Takes what is asked, or gives the answer at once.
    fn ask(&mut self, now: Time, operation: u64, request: Request, outbox: &mut OutboxOf<Self>) -> Option<Result<Response, Refusal>> {
        let capability = request.capability();
        let (purpose, question) = match request {
            Request::Read { mode, .. } | Request::Scan { mode, .. } if mode.is_as_of() => {
                return Some(Err(Refusal::Unsupported(capability)));
            }
            Request::Private(private) => {
                let Ok(Connected(servers)) = private.take() else { return Some(Err(Refusal::Unsupported(capability))) };
                self.on_connected(now, &servers);
                return None;
            }
            Request::Submit { .. } => return Some(Err(Refusal::Unsupported(capability))),
            Request::Read { keys, .. } if keys.len() > TRANSACTION_READS_MAX => return Some(Err(too_many("reads", TRANSACTION_READS_MAX))),
            Request::Read { keys, mode, .. } => (Purpose::Read(operation), Question::Read { keys, is_settled: mode == ReadMode::ReadOnly }),
            Request::Scan { low, high, direction, limit, mode, .. } => {
                let Some(range) = KeyRange::new(low, high).filter(|_| limit > 0) else {
                    let evidence = Evidence::new(Evident { zxid: 0, is_settled: true, seen: Seen::default() });
                    return Some(Ok(Response::Found(Found { found: Vec::new(), evidence })));
                };
                // Where as many come as a transaction may read, there may be more: who asked for more is told so.
                let rows_max = u32::try_from(limit.min(TRANSACTION_READS_MAX)).expect("TRANSACTION_READS_MAX is less");
                let question = Question::Scan { range: range.clone(), direction, rows_max, is_settled: mode == ReadMode::ReadOnly };
                (Purpose::Scan(operation, range, direction, limit), question)
            }
            Request::Commit(commit) => match commit_of(operation, commit) {
                Ok(Begun::Done(commit)) => {
                    self.counts.read_alone += 1;
                    return Some(Ok(Response::Committed(commit)));
                }
                Ok(Begun::Question(purpose, question)) => (purpose, question),
                Err(refusal) => return Some(Err(refusal)),
            },
        };
        let number = self.take(now, purpose, question);
        match self.under_way[&number].purpose {
            Purpose::Commit(..) => {
                self.waiting.push_back(number);
                self.send_waiting(now, outbox);
            }
            _ => self.send(now, number, outbox),
        }
        None
    }

    /// Notes what is asked under a new number.
    fn take(&mut self, now: Time, purpose: Purpose, question: Question) -> u64 {
        self.next_number += 1;
        let gives_up_at = now.after_ms(self.timeout_ms);
        let under_way = UnderWay { purpose, question, open: 0, asked: 0, was_sent_on: false, wakes_at: gives_up_at, gives_up_at };
        self.timers.insert((gives_up_at, self.next_number));
        self.under_way.insert(self.next_number, under_way);
        self.next_number
    }

    fn wake(&mut self, number: u64, at: Time) {
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        self.timers.remove(&(under_way.wakes_at, number));
        under_way.wakes_at = at.min(under_way.gives_up_at);
        self.timers.insert((under_way.wakes_at, number));
    }

    /// Takes out what has an end.
    fn end(&mut self, number: u64) -> Option<UnderWay> {
        let ended = self.under_way.remove(&number)?;
        self.timers.remove(&(ended.wakes_at, number));
        if self.beginning == Some(number) {
            self.beginning = None;
        }
        if let Question::Commit { session, slot, .. } = ended.question
            && session != 0
        {
            self.slots.free(session, slot);
        }
        Some(ended)
    }

    /// Sends what waits for a slot, as far as there are any.
    fn send_waiting(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while let Some(number) = self.waiting.front().copied() {
            if !self.under_way.contains_key(&number) {
                self.waiting.pop_front();
                continue;
            }
            if self.slots.session.is_none() {
                if self.beginning.is_none() {
                    let begin = self.take(now, Purpose::Begin, Question::Begin);
                    self.beginning = Some(begin);
                    self.send(now, begin, outbox);
                }
                return;
            }
            let Some((session, slot, sequence)) = self.slots.take() else { return };
            self.waiting.pop_front();
            if let Some(UnderWay { question: Question::Commit { session: of, slot: at, sequence: place, .. }, .. }) =
                self.under_way.get_mut(&number)
            {
                (*of, *at, *place) = (session, slot, sequence);
            }
            self.send(now, number, outbox);
        }
    }

    fn send(&mut self, now: Time, number: u64, outbox: &mut OutboxOf<Self>) {
        let (asked, server) = (self.asked, self.servers[usize::from(self.asked)]);
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        self.counts.asked_again += u64::from(under_way.open > 0);
        under_way.open += 1;
        under_way.asked = asked;
        outbox.send(Party::Replica(server), Message::Question { number, question: under_way.question.clone() });
        self.wake(number, now.after_ms(SILENCE_MS));
    }

    /// The server `asked` is no good: the next one is asked, of those that are connected if any is.
    fn turn_from(&mut self, asked: u16) {
        if self.asked == asked {
            let count = u16::try_from(self.servers.len()).expect("a shard is small");
            let mut next = (1..=count).map(|step| (asked + step) % count);
            self.asked = next.find(|server| !self.away.contains(server)).unwrap_or((asked + 1) % count);
        }
    }

    /// The process is connected with these: what was asked of others, which cannot answer any more, is asked again at once.
    fn on_connected(&mut self, now: Time, connected: &[ReplicaId]) {
        self.away = (0..).zip(&self.servers).filter(|(_, server)| !connected.contains(server)).map(|(at, _)| at).collect();
        if self.away.contains(&self.asked) {
            self.turn_from(self.asked);
        }
        let is_lost = |under_way: &UnderWay| under_way.open > 0 && self.away.contains(&under_way.asked);
        let lost: Vec<u64> = self.under_way.iter().filter(|(_, under_way)| is_lost(under_way)).map(|(number, _)| *number).collect();
        lost.into_iter().for_each(|number| self.wake(number, now));
    }

    fn on_answer(&mut self, now: Time, from: ReplicaId, number: u64, answer: Answer, outbox: &mut OutboxOf<Self>) {
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        match answer {
            Answer::NotLeading { leader } => {
                under_way.open = under_way.open.saturating_sub(1);
                self.on_not_leading(now, from, number, leader, outbox);
            }
            Answer::Busy { .. } if under_way.open > 1 && self.beginning != Some(number) => {}
            Answer::Expired => self.on_expired(now, number, outbox),
            Answer::Begun { session } if self.beginning == Some(number) => {
                self.end(number);
                self.slots.change(Some(session));
            }
            // Nobody waits for this but commits: it is asked for again, later.
            answer if self.beginning == Some(number) => {
                under_way.open = 0;
                let after_ms = if let Answer::Busy { after_ms } = answer { u64::from(after_ms.max(1)) } else { LEADERLESS_MS };
                self.wake(number, now.after_ms(after_ms));
            }
            answer => {
                if let Some(ended) = self.end(number) {
                    self.conclude(ended, answer, outbox);
                }
            }
        }
        self.send_waiting(now, outbox);
    }

    fn on_not_leading(&mut self, now: Time, from: ReplicaId, number: u64, leader: Option<u16>, outbox: &mut OutboxOf<Self>) {
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        if under_way.asked != from.index {
            // An answer to what was asked before: it was asked again since.
            return;
        }
        let may_lead = |leader: &u16| usize::from(*leader) < self.servers.len() && *leader != from.index && !self.away.contains(leader);
        match leader.filter(may_lead) {
            Some(leader) => {
                if self.asked == from.index {
                    self.asked = leader;
                }
                // The second time it may be a server that has not heard of the end of another.
                if std::mem::replace(&mut under_way.was_sent_on, true) {
                    self.wake(number, now.after_ms(LEADERLESS_MS));
                } else {
                    self.send(now, number, outbox);
                }
            }
            None => {
                under_way.was_sent_on = false;
                self.turn_from(from.index);
                self.wake(number, now.after_ms(LEADERLESS_MS));
            }
        }
    }

    /// The session of a commit is gone.
    fn on_expired(&mut self, now: Time, number: u64, outbox: &mut OutboxOf<Self>) {
        let Some(under_way) = self.under_way.get_mut(&number) else { return };
        let Question::Commit { session, .. } = &mut under_way.question else { return };
        if self.slots.session == Some(*session) {
            self.slots.change(None);
        }
        if under_way.open > 1 && !broken(Mutant::UnknownTakenForUndone) {
            if let Some(ended) = self.end(number) {
                self.tell(&ended.purpose, Err(Refusal::OutcomeUnknown), outbox);
            }
            return;
        }
        (under_way.open, *session) = (0, 0);
        self.waiting.push_back(number);
        self.wake(number, now.after_ms(self.timeout_ms));
    }

    /// What is asked has come to its end.
    fn conclude(&mut self, ended: UnderWay, answer: Answer, outbox: &mut OutboxOf<Self>) {
        let outcome = match (&ended.purpose, answer) {
            (Purpose::Read(_), Answer::Found { zxid, rows }) => read(&ended.question, zxid, rows),
            (Purpose::Scan(_, range, direction, limit), Answer::Found { zxid, rows }) => {
                scanned(&ended.question, (range, *direction, *limit), zxid, rows)
            }
            (Purpose::Check(_, timestamp), Answer::Committed { zxid }) => {
                Ok(Response::Committed(commit(*timestamp, zxid, CommitPath::ReadOnly)))
            }
            (Purpose::Commit(_, timestamp), Answer::Committed { zxid }) => {
                self.counts.committed += 1;
                Ok(Response::Committed(commit(*timestamp, zxid, CommitPath::Fast)))
            }
            (_, Answer::Conflict) => {
                self.counts.conflicts += 1;
                Err(Refusal::Conflict)
            }
            (_, Answer::Busy { after_ms }) => Err(Refusal::Overloaded { after_ms }),
            // It may have taken place before the client's rights were taken.
            (Purpose::Commit(..), Answer::Refused(Reason::NotPermitted)) if ended.open > 1 => Err(Refusal::OutcomeUnknown),
            (_, Answer::Refused(Reason::NotPermitted)) => Err(Refusal::NotPermitted),
            (Purpose::Read(_) | Purpose::Scan(..), Answer::Refused(Reason::TooLarge)) => Err(Refusal::AnswerTooLarge),
            (_, Answer::Refused(Reason::TooLarge)) => Err(Refusal::Invalid("the transaction is too large: write less in it".to_owned())),
            (_, Answer::Refused(Reason::Occupied)) => Err(Refusal::Invalid(
                "the tree does not take what the transaction writes: a client of the tree has a node below a key's, or has taken its place"
                    .to_owned(),
            )),
            // No correct server says this.
            (purpose, _) => Err(purpose_unknown(purpose)),
        };
        self.tell(&ended.purpose, outcome, outbox);
    }

    fn tell(&self, purpose: &Purpose, outcome: Result<Response, Refusal>, outbox: &mut OutboxOf<Self>) {
        if let Some(operation) = purpose.operation() {
            outbox.emit(Tell::Response { operation, outcome });
        }
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while let Some((_, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            let Some(under_way) = self.under_way.get(&number) else { break };
            if under_way.gives_up_at <= now {
                if let Some(ended) = self.end(number) {
                    let refusal = if ended.open > 0 { purpose_unknown(&ended.purpose) } else { Refusal::Unavailable };
                    self.tell(&ended.purpose, Err(refusal), outbox);
                }
                continue;
            }
            if under_way.open > 0 {
                // It said nothing.
                self.turn_from(under_way.asked);
            }
            if let Some(under_way) = self.under_way.get_mut(&number) {
                under_way.was_sent_on = false;
            }
            self.send(now, number, outbox);
        }
        self.send_waiting(now, outbox);
    }
}

/// What the application is told when nobody knows what came of it.
fn purpose_unknown(purpose: &Purpose) -> Refusal {
    if matches!(purpose, Purpose::Commit(..)) { Refusal::OutcomeUnknown } else { Refusal::Unavailable }
}

fn too_many(what: &str, max: usize) -> Refusal {
    Refusal::Invalid(format!("a transaction has at most {max} {what}"))
}

/// What becomes of a transaction that is to commit.
enum Begun {
    Done(Commit),
    Question(Purpose, Question),
}

fn commit_of(operation: u64, request: CommitRequest) -> Result<Begun, Refusal> {
    let CommitRequest { timestamp, reads, writes } = request;
    let evident: Result<Vec<Evident>, Evidence> = reads.into_iter().map(Evidence::take).collect();
    let evident = evident.map_err(|_| Refusal::Invalid("the request holds what another engine's session gave".to_owned()))?;
    match &evident[..] {
        [] if writes.is_empty() => return Ok(Begun::Done(commit(timestamp, 0, CommitPath::Empty))),
        [Evident { zxid, is_settled: true, .. }] if writes.is_empty() => {
            return Ok(Begun::Done(commit(timestamp, *zxid, CommitPath::ReadOnly)));
        }
        _ => {}
    }
    let mut seen = Seen::default();
    for part in evident {
        seen.keys.extend(part.seen.keys);
        seen.ranges.extend(part.seen.ranges);
    }
    let reads = seen.keys.len() + seen.ranges.iter().map(|range| range.rows.len()).sum::<usize>();
    if reads > TRANSACTION_READS_MAX {
        return Err(too_many("reads, with all that its ranges hold", TRANSACTION_READS_MAX));
    }
    if seen.ranges.len() > TRANSACTION_RANGES_MAX {
        return Err(too_many("ranges", TRANSACTION_RANGES_MAX));
    }
    if writes.len() > TRANSACTION_WRITES_MAX {
        return Err(too_many("writes", TRANSACTION_WRITES_MAX));
    }
    let key_bytes = |versions: &[Version]| versions.iter().map(|version| version.key.as_bytes().len()).sum::<usize>();
    let written = writes.iter().map(|(key, value)| key.as_bytes().len() + value.as_ref().map_or(0, |value| value.as_bytes().len()));
    let in_ranges = seen.ranges.iter().map(|range| range.range.key_bytes() + key_bytes(&range.rows));
    if key_bytes(&seen.keys) + in_ranges.sum::<usize>() + written.sum::<usize>() > TRANSACTION_BYTES_MAX {
        return Err(too_many("bytes", TRANSACTION_BYTES_MAX));
    }
    Ok(match writes.is_empty() {
        true => Begun::Question(Purpose::Check(operation, timestamp), Question::Check { seen }),
        false => {
            let writes = writes.into_iter().map(|(key, value)| Write { key, value }).collect();
            let question = Question::Commit { session: 0, slot: 0, sequence: 0, seen, writes };
            Begun::Question(Purpose::Commit(operation, timestamp), question)
        }
    })
}

fn is_settled(question: &Question) -> bool {
    matches!(question, Question::Read { is_settled: true, .. } | Question::Scan { is_settled: true, .. })
}

/// What a read found, where that is what was asked for.
fn read(question: &Question, zxid: i64, rows: Vec<Row>) -> Result<Response, Refusal> {
    let Question::Read { keys, .. } = question else { return Err(Refusal::Unavailable) };
    if !rows.iter().map(|row| &row.key).eq(keys) {
        return Err(Refusal::Unavailable);
    }
    let keys = rows.iter().map(|row| Version { key: row.key.clone(), version: row.version }).collect();
    let evident = Evident { zxid, is_settled: is_settled(question), seen: Seen { keys, ranges: Vec::new() } };
    Ok(response(rows, evident))
}

/// What a scan found, where it may be that.
fn scanned(
    question: &Question,
    (range, direction, limit): (&KeyRange, Direction, usize),
    zxid: i64,
    rows: Vec<Row>,
) -> Result<Response, Refusal> {
    let is_one = |row: &Row| range.contains(&row.key) && row.value.is_some();
    if rows.len() > limit || !rows.iter().all(is_one) || !rows.is_sorted_by(|one, next| direction.order(&one.key, &next.key).is_lt()) {
        return Err(Refusal::Unavailable);
    }
    if rows.len() == TRANSACTION_READS_MAX && limit > TRANSACTION_READS_MAX {
        return Err(Refusal::AnswerTooLarge);
    }
    // Of what lies behind the last row nothing is known where there are as many as were asked for.
    let is_cut = rows.len() == limit && !(direction == Direction::Descending && broken(Mutant::LastKeysUncut));
    let end = rows.last().filter(|_| is_cut).and_then(|row| direction.behind(&row.key));
    let range = end.and_then(|end| direction.read(range, &end)).unwrap_or_else(|| range.clone());
    let seen = direction.of(rows.iter()).map(|row| Version { key: row.key.clone(), version: row.version }).collect();
    let seen = Seen { keys: Vec::new(), ranges: vec![SeenRange { range, rows: seen }] };
    Ok(response(rows, Evident { zxid, is_settled: is_settled(question), seen }))
}

fn response(rows: Vec<Row>, evident: Evident) -> Response {
    let found = rows.into_iter().map(|row| (row.key, row.value)).collect();
    Response::Found(Found { found, evidence: Evidence::new(evident) })
}

/// A commit is known by its place in the order, and by its client's name for it.
fn commit(timestamp: Timestamp, zxid: i64, path: CommitPath) -> Commit {
    let mut id = [0; 32];
    let parts = [zxid.to_be_bytes(), timestamp.time.to_be_bytes(), timestamp.client.0.to_be_bytes()];
    id.iter_mut().zip(parts.as_flattened()).for_each(|(byte, part)| *byte = *part);
    Commit { id: TransactionId(id), timestamp, place: 0, path, receipt: None }
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
            Input::Message { from: Party::Replica(from), message } => {
                if let Message::Answer { number, answer } = message.into_inner() {
                    self.on_answer(now, from, number, answer, outbox);
                }
            }
            Input::Message { .. } => {}
            Input::Tick => self.on_tick(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
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

    fn connected(replicas: Vec<ReplicaId>) -> Option<Request> {
        Some(Request::Private(Private::new(Connected(replicas))))
    }

    fn statistics(&self, out: &mut Statistics) {
        out.counter("transactions_committed", "Transactions of this session that took place and wrote", self.counts.committed);
        out.counter("transactions_conflicts", "Transactions that were turned down because of another one", self.counts.conflicts);
        out.counter("transactions_read_alone", "Transactions that only read, all in one request", self.counts.read_alone);
        out.counter("questions_asked_again", "Questions that were sent again because nobody answered", self.counts.asked_again);
    }
}

#[cfg(test)]
mod tests;
