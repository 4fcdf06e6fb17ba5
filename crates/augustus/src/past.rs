//! Reads of moments, as a session makes them ([`moment`](crate::moment)): which moments it has, which reads wait for one, and how pages of the shards
//! become the answer to a read.
//!
//! A moment has the time that its reader chose for it, which was the present then. Whoever reads as of the present has a cut made; who reads as of
//! that time again reads the same moment. There are no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use engine::Refusal;
use machine::{Outbox, Time};
use mutants::{Mutant, broken};
use types::codec::{Decode as _, Encode as _};
use types::{Cluster, Direction, Key, KeyRange, Party, ReplicaId, ShardId, TransactionId, Value};

use crate::limits::{RANGE_ROWS_MAX, RESULT_BYTES_MAX};
use crate::moment::{MomentAnswer, MomentPage, Question};
use crate::multicast::message::Message;
use crate::multicast::quorum::Quorum;
use crate::operation::{Operation, row_bytes, shards_of_range};
use crate::transaction::Name;

/// The numbers of its questions have this bit, those of other questions not.
const NUMBERS: u64 = 1 << 63;
/// For how long to wait for the replicas that reach further, once enough have answered, in milliseconds.
const WAIT_MS: u64 = 50;
/// After how long a question is asked again, in milliseconds.
const AGAIN_MS: u64 = 250;
/// So many cuts are tried without a pause: while one shard refuses a cut, others that took it refuse changes over both, so that what was in the way
/// ends and little comes after it.
const CUTS_AT_ONCE: u32 = 12;
/// How long the pause is then, in milliseconds: until then changes go on.
const PAUSE_MS: u64 = 200;
/// So many moments are remembered.
const MOMENTS_REMEMBERED_MAX: usize = 16;
/// So many reads are under way.
const READINGS_MAX: usize = 64;
/// The most keys of one read.
const KEYS_MAX: usize = 64;
/// How many rows more than its share each of several shards is asked for: rows are never spread quite evenly.
const ROWS_SPARE: usize = 16;
/// The most bytes of the rows that are put together for one answer.
const ROWS_BYTES_MAX: usize = 2 * RESULT_BYTES_MAX;

/// The reads of moments of one process.
#[derive(Debug)]
pub(crate) struct Past {
    cluster: Arc<Cluster>,
    quorum: Quorum,
    moments: BTreeMap<u64, Moment>,
    readings: BTreeMap<u64, Reading>,
    questions: BTreeMap<u64, Asked>,
    /// When each question is to be looked at again.
    timers: BTreeSet<(Time, u64)>,
    last_number: u64,
}

/// The moment of a time.
#[derive(Debug)]
enum Moment {
    /// So many cuts were refused; the next is made then, if none is under way.
    Begun { refused: u32, again_at: Option<Time>, name: Option<Name>, gives_up_at: Time },
    /// It was this cut's.
    Made(Name, TransactionId),
}

/// What is read of a moment.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These keys.
    Keys(Vec<Key>),
    /// So many rows of a range, from one of its ends.
    Rows(KeyRange, Direction, usize),
}

#[derive(Debug)]
struct Reading {
    time: u64,
    wanted: Wanted,
    /// A part for each key, or for each shard that may hold rows.
    parts: Vec<Part>,
    /// How many replicas said at least that they keep nothing of the moment any more.
    gone: usize,
    gives_up_at: Time,
}

/// What one shard has to say.
#[derive(Debug)]
struct Part {
    shard: ShardId,
    left: Option<Left>,
    rows: Vec<(Key, Value)>,
    is_asked: bool,
}

/// What is not read yet.
#[derive(Clone, Debug)]
enum Left {
    Key(Key),
    Range(KeyRange),
}

/// A question to one shard.
#[derive(Debug)]
struct Asked {
    reading: u64,
    part: usize,
    shard: ShardId,
    again_at: Time,
    answers: BTreeMap<u16, Option<MomentAnswer>>,
}

/// What a read needs next.
enum Next {
    /// Of these parts these operations; nothing where all that can be asked is under way.
    Ask(Vec<(usize, Operation)>),
    Done(Outcome),
}

type Outcome = Result<Vec<(Key, Option<Value>)>, Refusal>;

/// What came of a read, of the operation of this number.
pub(crate) type Came = (u64, Outcome);

impl Past {
    pub fn new(cluster: Arc<Cluster>, quorum: Quorum) -> Self {
        Self {
            cluster,
            quorum,
            moments: BTreeMap::new(),
            readings: BTreeMap::new(),
            questions: BTreeMap::new(),
            timers: BTreeSet::new(),
            last_number: NUMBERS,
        }
    }

    /// Whether the answer to a question of this number belongs here.
    pub fn has_asked(number: u64) -> bool {
        number >= NUMBERS
    }

    /// Whether the moment of a time is known, or a cut for it under way.
    pub fn knows(&self, time: u64) -> bool {
        self.moments.contains_key(&time)
    }

    /// A cut is made for the moment of `time`, which nobody waits for any more at `gives_up_at`.
    pub fn begin(&mut self, time: u64, gives_up_at: Time) {
        while self.moments.len() >= MOMENTS_REMEMBERED_MAX
            && let Some(oldest) = self.moments.iter().find(|(_, moment)| matches!(moment, Moment::Made(..))).map(|(time, _)| *time)
        {
            self.moments.remove(&oldest);
        }
        self.moments.insert(time, Moment::Begun { refused: 0, again_at: None, name: None, gives_up_at });
    }

    /// Whether another cut may be begun.
    pub fn has_room(&self) -> bool {
        self.readings.len() < READINGS_MAX
            && self.moments.values().filter(|moment| matches!(moment, Moment::Begun { .. })).count() < MOMENTS_REMEMBERED_MAX
    }

    /// Reads of the moment of `time`, once it is made.
    pub fn read<U, E>(
        &mut self,
        now: Time,
        operation: u64,
        (time, wanted): (u64, Wanted),
        gives_up_at: Time,
        outbox: &mut Outbox<Message, U, E>,
    ) -> Option<Came> {
        let cluster = &self.cluster;
        let part = |shard, left| Part { shard, left: Some(left), rows: Vec::new(), is_asked: false };
        let parts = match &wanted {
            Wanted::Keys(keys) if keys.len() > KEYS_MAX => return Some((operation, Err(Refusal::AnswerTooLarge))),
            Wanted::Keys(keys) => keys.iter().map(|key| part(cluster.shard_of(key), Left::Key(key.clone()))).collect(),
            Wanted::Rows(range, ..) => {
                let shards = shards_of_range(range, cluster).into_iter();
                shards.filter_map(|shard| Some(part(shard, Left::Range(cluster.part_of(shard, range)?)))).collect()
            }
        };
        self.readings.insert(operation, Reading { time, wanted, parts, gone: 0, gives_up_at });
        self.go_on(now, operation, outbox)
    }

    /// The cut for the moment of `time` has this name.
    pub fn named(&mut self, time: u64, cut: Name) {
        if let Some(Moment::Begun { name, .. }) = self.moments.get_mut(&time) {
            *name = Some(cut);
        }
    }

    /// The cut `id` has committed.
    pub fn made<U, E>(&mut self, now: Time, time: u64, id: TransactionId, outbox: &mut Outbox<Message, U, E>) -> Vec<Came> {
        let Some(Moment::Begun { name: Some(name), .. }) = self.moments.get(&time) else { return Vec::new() };
        self.moments.insert(time, Moment::Made(*name, id));
        let waiting: Vec<u64> = self.readings.iter().filter(|(_, reading)| reading.time == time).map(|(operation, _)| *operation).collect();
        waiting.into_iter().filter_map(|operation| self.go_on(now, operation, outbox)).collect()
    }

    /// A cut was voted down, as something was in its way. Whether another is to be made at once.
    pub fn refused(&mut self, now: Time, time: u64) -> bool {
        let Some(Moment::Begun { refused, again_at, .. }) = self.moments.get_mut(&time) else { return false };
        *refused += 1;
        let pauses = refused.is_multiple_of(CUTS_AT_ONCE);
        *again_at = pauses.then(|| now.after_ms(PAUSE_MS));
        !pauses
    }

    /// There will be no cut for that time.
    pub fn failed(&mut self, time: u64, refusal: Refusal) -> Vec<Came> {
        let Some(Moment::Begun { refused, .. }) = self.moments.get(&time) else { return Vec::new() };
        // The last one had no time left: it is those before that tell why.
        let refusal = if refusal == Refusal::Unavailable && *refused > 0 { Refusal::Conflict } else { refusal };
        self.moments.remove(&time);
        let waiting = self.readings.extract_if(.., |_, reading| reading.time == time);
        waiting.map(|(operation, _)| (operation, Err(refusal.clone()))).collect()
    }

    /// Asks what is not known yet of a read, or gives what it has found.
    fn go_on<U, E>(&mut self, now: Time, operation: u64, outbox: &mut Outbox<Message, U, E>) -> Option<Came> {
        let reading = self.readings.get_mut(&operation)?;
        let Some(Moment::Made(name, id)) = self.moments.get(&reading.time) else { return None };
        let asks = match reading.next() {
            Next::Ask(asks) => asks,
            Next::Done(outcome) => {
                self.readings.remove(&operation);
                return Some((operation, outcome));
            }
        };
        for (part, asked) in asks {
            let shard = reading.parts[part].shard;
            reading.parts[part].is_asked = true;
            self.last_number += 1;
            let number = self.last_number;
            let question = Bytes::from(Question::Page { name: *name, id: *id, operation: asked }.to_bytes());
            for replica in self.cluster.replicas_of(shard) {
                outbox.send(Party::Replica(replica), Message::Query { number, question: question.clone() });
            }
            self.timers.insert((now.after_ms(WAIT_MS), number));
            let again_at = now.after_ms(AGAIN_MS);
            self.questions.insert(number, Asked { reading: operation, part, shard, again_at, answers: BTreeMap::new() });
        }
        None
    }

    /// A replica has answered a question.
    pub fn on_answer<U, E>(
        &mut self,
        now: Time,
        from: ReplicaId,
        (number, answer): (u64, Option<Bytes>),
        outbox: &mut Outbox<Message, U, E>,
    ) -> Option<Came> {
        let asked = self.questions.get_mut(&number).filter(|asked| asked.shard == from.shard)?;
        let answer = answer.and_then(|answer| MomentAnswer::from_bytes(answer, self.cluster.id()).ok());
        asked.answers.entry(from.index).or_insert(answer);
        let is_last = asked.answers.len() == self.quorum.all();
        self.judge(now, number, is_last, outbox)
    }

    /// Takes a page that enough have given alike. One that some say they could prolong waits for theirs, but for `is_last`.
    fn judge<U, E>(&mut self, now: Time, number: u64, is_last: bool, outbox: &mut Outbox<Message, U, E>) -> Option<Came> {
        let asked = self.questions.get(&number)?;
        let (operation, at) = (asked.reading, asked.part);
        let Some(reading) = self.readings.get_mut(&operation) else {
            self.questions.remove(&number);
            return None;
        };
        let pages: Vec<&MomentPage> = asked.answers.values().flatten().filter_map(MomentAnswer::page).collect();
        let gone = asked.answers.values().flatten().filter(|answer| **answer == MomentAnswer::Gone).count();
        let direction = reading.direction();
        let needed = if broken(Mutant::MomentPagesOfFew) { 1 } else { self.quorum.weak() };
        let agreed = MomentPage::agreed(direction, &pages, needed).filter(|page| is_last || page.is_furthest(direction, &pages));
        if let Some(page) = agreed {
            self.questions.remove(&number);
            reading.take(at, page);
            return self.go_on(now, operation, outbox);
        }
        reading.gone = gone;
        if gone >= self.quorum.strong() {
            // Too few are left who could say something else.
            self.questions.remove(&number);
            self.readings.remove(&operation);
            return Some((operation, Err(Refusal::NotHeld)));
        }
        None
    }

    /// Time has passed. What came of reads, and for which times another cut is to be made, and until when.
    pub fn on_tick<U, E>(&mut self, now: Time, outbox: &mut Outbox<Message, U, E>) -> (Vec<Came>, Vec<(u64, Time)>) {
        let mut came = Vec::new();
        while let Some((at, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, number));
            came.extend(self.judge(now, number, true, outbox));
            let Some(asked) = self.questions.get(&number) else { continue };
            if now < asked.again_at {
                self.timers.insert((asked.again_at, number));
                continue;
            }
            // Whoever has not executed the cut by then may have now, and what was lost is said again.
            let (operation, part) = (asked.reading, asked.part);
            self.questions.remove(&number);
            if let Some(reading) = self.readings.get_mut(&operation) {
                reading.parts[part].is_asked = false;
            }
            came.extend(self.go_on(now, operation, outbox));
        }
        let weak = self.quorum.weak();
        let late = self.readings.extract_if(.., |_, reading| reading.gives_up_at <= now);
        came.extend(late.map(|(operation, reading)| {
            let is_made = matches!(self.moments.get(&reading.time), Some(Moment::Made(..)));
            let refusal = match is_made {
                true if reading.gone >= weak => Refusal::NotHeld,
                true => Refusal::Unavailable,
                // Somebody was in the way of each cut.
                false => Refusal::Conflict,
            };
            (operation, Err(refusal))
        }));
        let mut again = Vec::new();
        self.moments.retain(|time, moment| {
            let Moment::Begun { again_at, gives_up_at, .. } = moment else { return true };
            if again_at.is_none_or(|at| now < at) {
                return true;
            }
            *again_at = None;
            let is_awaited = now < *gives_up_at;
            again.extend(is_awaited.then_some((*time, *gives_up_at)));
            is_awaited
        });
        (came, again)
    }

    pub fn deadline(&self) -> Option<Time> {
        let again = self.moments.values().filter_map(|moment| match moment {
            Moment::Begun { again_at, .. } => *again_at,
            Moment::Made(..) => None,
        });
        let readings = self.readings.values().map(|reading| reading.gives_up_at);
        again.chain(readings).chain(self.timers.first().map(|(at, _)| *at)).min()
    }

    /// Until when a cut for that time is awaited, if it is.
    pub fn awaited(&self, time: u64) -> Option<Time> {
        match self.moments.get(&time) {
            Some(Moment::Begun { gives_up_at, .. }) => Some(*gives_up_at),
            _ => None,
        }
    }

    /// Tells the replicas that nobody will ask for more of the last moment: of each client they hold no other.
    pub fn leave<U, E>(&self, outbox: &mut Outbox<Message, U, E>) {
        let Some(Moment::Made(_, id)) = self.moments.values().rev().find(|moment| matches!(moment, Moment::Made(..))) else { return };
        let question = Bytes::from(Question::Drop(*id).to_bytes());
        for replica in self.cluster.replicas() {
            outbox.send(Party::Replica(replica), Message::Query { number: NUMBERS, question: question.clone() });
        }
    }
}

impl MomentAnswer {
    fn page(&self) -> Option<&MomentPage> {
        match self {
            Self::Page(page) => Some(page),
            Self::Gone => None,
        }
    }
}

impl Reading {
    fn direction(&self) -> Direction {
        match self.wanted {
            Wanted::Keys(_) => Direction::Ascending,
            Wanted::Rows(_, direction, _) => direction,
        }
    }

    /// A part was read on.
    fn take(&mut self, at: usize, page: MomentPage) {
        let direction = self.direction();
        let part = &mut self.parts[at];
        part.is_asked = false;
        part.rows.extend(page.rows);
        part.left = match (part.left.take(), page.last.as_ref().and_then(|last| direction.behind(last))) {
            (Some(Left::Range(range)), Some(end)) => direction.left(&range, &end).map(Left::Range),
            _ => None,
        };
    }

    fn next(&self) -> Next {
        match &self.wanted {
            Wanted::Keys(keys) => self.next_of_keys(keys),
            Wanted::Rows(_, direction, limit) => self.next_of_rows(*direction, *limit),
        }
    }

    fn next_of_keys(&self, keys: &[Key]) -> Next {
        if self.parts.iter().all(|part| part.left.is_none()) {
            let value = |part: &Part| part.rows.first().map(|(_, value)| value.clone());
            return Next::Done(Ok(keys.iter().zip(&self.parts).map(|(key, part)| (key.clone(), value(part))).collect()));
        }
        let ask = |(at, part): (usize, &Part)| match &part.left {
            Some(Left::Key(key)) if !part.is_asked => Some((at, Operation::Read(key.clone()))),
            _ => None,
        };
        Next::Ask(self.parts.iter().enumerate().filter_map(ask).collect())
    }

    /// Asks the shards on that are behind the others, until enough rows are known, or all.
    fn next_of_rows(&self, direction: Direction, limit: usize) -> Next {
        let rows_max = limit.min(RANGE_ROWS_MAX);
        // Up to there all shards have said all.
        let begin = |part: &Part| match &part.left {
            Some(Left::Range(range)) => Some(direction.begin(range).clone()),
            _ => None,
        };
        let reached = self.parts.iter().filter_map(begin).min_by(|one, other| direction.order(one, other));
        let is_known = |key: &Key| reached.as_ref().is_none_or(|end| direction.has_passed(key, end));
        let mut known: Vec<&(Key, Value)> = self.parts.iter().flat_map(|part| &part.rows).filter(|(key, _)| is_known(key)).collect();
        if known.len() < rows_max && reached.is_some() {
            let bytes: usize =
                self.parts.iter().flat_map(|part| &part.rows).map(|(key, value)| row_bytes(key.as_bytes(), value.as_bytes())).sum();
            if bytes > ROWS_BYTES_MAX && rows_max > 1 {
                return Next::Done(Err(Refusal::AnswerTooLarge));
            }
            let is_next = |part: &Part| begin(part) == reached;
            let count = self.parts.iter().filter(|part| is_next(part)).count().max(1);
            let missing = rows_max - known.len();
            let rows = if count == 1 { missing } else { missing.min(missing.div_ceil(count) + ROWS_SPARE) };
            let rows = u32::try_from(rows).expect("there are no more missing than RANGE_ROWS_MAX, which is less");
            let ask = |(at, part): (usize, &Part)| match &part.left {
                Some(Left::Range(range)) if !part.is_asked && is_next(part) => {
                    Some((at, Operation::ReadRange(range.clone(), direction, rows)))
                }
                _ => None,
            };
            return Next::Ask(self.parts.iter().enumerate().filter_map(ask).collect());
        }
        // There may be more of what was asked for.
        if known.len() >= RANGE_ROWS_MAX && limit > RANGE_ROWS_MAX {
            return Next::Done(Err(Refusal::AnswerTooLarge));
        }
        known.sort_unstable_by(|(one, _), (other, _)| direction.order(one, other));
        Next::Done(Ok(known.into_iter().take(rows_max).map(|(key, value)| (key.clone(), Some(value.clone()))).collect()))
    }
}
