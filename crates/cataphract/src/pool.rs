//! The pool: transactions in, one transaction at a time out, results back to their owners.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use basil::{Certificate, Decision, Failure, Path, ReadFound, Refusal, Transaction, TransactionError};
use engine::{ConflictRule, NotTaken, Operation, Order, PoolCounts, PoolOptions, ReadMode};
use foldhash::{HashMap, HashMapExt as _};
use machine::{Time, Voters};
use types::{ClusterId, Key, Timestamp, Value};

use crate::batch_builder::{BatchBuilder, Bounds, Fit};
use crate::rebuild::{Rebuilt, Recheck, Unready, outside, rebuild, take_stale};
use crate::size::Sizer;
use crate::work::{Member, Work};
use crate::writes::{Freshness, OwnWrites};

/// The shortest wait before half an aborted batch is begun again, in microseconds; doubled each time.
const BACKOFF_US_MIN: u64 = 500;
/// The longest.
const BACKOFF_US_MAX: u64 = 50_000;
/// How many waiting transactions are looked at for one batch, as a multiple of its size.
const LOOKED_AT_FACTOR: usize = 4;

/// What the pool asks of a coordinator.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Read keys at a timestamp; tell [`Pool::on_read`].
    Read {
        /// The batch.
        batch: u64,
        /// Its timestamp.
        timestamp: Timestamp,
        /// The keys, each once.
        keys: Vec<Key>,
        /// Whether any member writes.
        mode: ReadMode,
    },
    /// Commit a transaction; tell [`Pool::on_ended`].
    Commit {
        /// The batch.
        batch: u64,
        /// The transaction made of it.
        transaction: Transaction,
        /// The undecided transactions it read from.
        dependencies: Vec<Transaction>,
    },
    /// Commit a transaction that has only read; tell [`Pool::on_validated`], or [`Pool::on_ended`] when it had to be prepared.
    CommitReads {
        /// The batch.
        batch: u64,
        /// The transaction made of it.
        transaction: Transaction,
        /// For whom its reads are settled.
        validated: Vec<Voters>,
    },
}

/// A transaction that committed, by what its owner knows it: it may have been one of many.
#[derive(Clone, Debug)]
pub struct BatchedCommit {
    /// What its reads found, in the order of its `Get`s; nothing for one that ran on its own.
    pub values: Vec<Option<Value>>,
    /// The transaction that committed: the batch's. Its timestamp is the batch's place in the serial order.
    pub transaction: Transaction,
    /// Its place among those: it saw the writes of all with a lower one, and of none with a higher.
    pub place: u32,
    /// How many they are.
    pub size: u32,
    /// The proof, and how the batch came to it; none when it only read and nobody had to vote.
    pub proof: Option<(Arc<Certificate>, Path)>,
    /// How many batches it was part of, this one included.
    pub attempts: u32,
}

/// Why a transaction did not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It met another. None of it took place; its owner may begin it again.
    Conflict,
    /// By itself it is over a limit.
    TooLarge(TransactionError),
    /// Nothing was committed: its reads failed, or it was refused.
    NotCommitted(Failure),
    /// Nobody answered the commit in time: it may still take place.
    Unknown,
}

/// What comes of one call: what to ask the coordinator, and whom to tell what.
#[derive(Debug, Default)]
pub struct Output {
    /// To be asked.
    pub asks: Vec<Ask>,
    /// The ends of transactions, by ticket.
    pub outcomes: Vec<(u64, Result<BatchedCommit, Failed>)>,
}

/// A batch in flight.
#[derive(Debug)]
struct InFlightBatch {
    timestamp: Timestamp,
    members: Vec<Member>,
    recheck: Recheck,
    /// Whether any member writes.
    writes: bool,
    found: HashMap<Key, ReadFound>,
    stage: Stage,
    began: Time,
}

#[derive(Debug)]
enum Stage {
    Reading,
    /// Put together, waiting for room.
    Ready(Rebuilt),
    Committing {
        transaction: Transaction,
        values: Vec<Vec<Option<Value>>>,
    },
}

/// Half of a batch that did not commit. It is tried by itself, so that a bad transaction does not sink the rest for long.
#[derive(Debug)]
struct Half {
    members: Vec<Member>,
    not_before: Time,
    /// When the first of them came.
    since: Time,
    /// What they are told if they wait for too long.
    why: Failed,
}

impl Half {
    fn new(members: Vec<Member>, not_before: Time, why: Failed) -> Self {
        let since = first_since(&members);
        Self { members, not_before, since, why }
    }
}

/// What is told who has waited for too long, and has met nobody.
const WAITED: Failed = Failed::NotCommitted(Failure::TimedOut(None));

/// When the first of `members` came.
fn first_since<'a>(members: impl IntoIterator<Item = &'a Member>) -> Time {
    members.into_iter().map(|member| member.since).min().unwrap_or(Time(u64::MAX))
}

/// The pool. It has no clock and does nothing by itself: its owner says what time it is, calls [`Pool::advance`] when
/// there is something to do, and carries its [`Ask`]s to a coordinator and the answers back.
#[derive(Debug)]
pub struct Pool {
    cluster: ClusterId,
    options: PoolOptions,
    /// How large batches may be, by queue: what only reads takes a fraction of the time, and would make all others seem slow.
    sizers: [Sizer; 2],
    /// Those that wait: one queue, or one for those that write and one for those that do not.
    queues: [VecDeque<Member>; 2],
    /// Which of them is looked at first for the next batch.
    next_queue: usize,
    /// Whether nobody who waits can join a batch before something else happens.
    nothing_fits: bool,
    halves: VecDeque<Half>,
    in_flight_batches: BTreeMap<u64, InFlightBatch>,
    batches_begun: u64,
    /// How many transactions are in all of these.
    members: usize,
    own: OwnWrites,
    /// Whether any transaction has come that ran on its own; else nobody asks what this pool's batches write.
    has_interactive: bool,
    random: u64,
    counts: PoolCounts,
}

impl Pool {
    /// An empty pool in front of `cluster`.
    #[must_use]
    pub fn new(cluster: ClusterId, options: PoolOptions) -> Self {
        let in_flight = options.in_flight.max(1);
        let batch_bytes_max = options.batch_bytes_max.min(types::limits::TRANSACTION_BYTES_MAX);
        Self {
            cluster,
            options: PoolOptions { in_flight, batch_bytes_max, ..options },
            sizers: [Sizer::new(options.size), Sizer::new(options.size)],
            queues: Default::default(),
            next_queue: 0,
            nothing_fits: false,
            halves: VecDeque::new(),
            in_flight_batches: BTreeMap::new(),
            batches_begun: 0,
            members: 0,
            own: OwnWrites::default(),
            has_interactive: false,
            random: options.seed | 1,
            counts: PoolCounts::default(),
        }
    }

    /// Takes in a transaction. Its end will be told under `ticket`, which no other may have.
    ///
    /// # Errors
    /// [`NotTaken`], when there is nothing to it or no room for it.
    pub fn submit(&mut self, now: Time, ticket: u64, work: Work) -> Result<(), NotTaken> {
        if work.is_empty() {
            return Err(NotTaken::Empty);
        }
        if matches!(&work, Work::Declared(operations) if operations.iter().any(|operation| matches!(operation, Operation::Compare(..)))) {
            return Err(NotTaken::Unfit);
        }
        // Whoever has read a range would have to be told apart from every member that writes there.
        if matches!(&work, Work::Interactive(buffer) if buffer.has_scanned()) {
            return Err(NotTaken::Unfit);
        }
        if self.members >= self.options.members_max {
            return Err(NotTaken::Full);
        }
        self.has_interactive |= matches!(work, Work::Interactive(_));
        self.members += 1;
        let queue = self.queue_of(work.writes().next().is_some());
        self.nothing_fits = false;
        self.queues[queue].push_back(Member { ticket, work, since: now, attempts: 0, is_withdrawn: false });
        Ok(())
    }

    /// What only reads commits without anybody voting, if its batch only reads. So it waits with its like, but for the
    /// paper's rule, which knows one queue.
    fn queue_of(&self, writes: bool) -> usize {
        let parted = self.options.conflicts != ConflictRule::EndBatch;
        usize::from(parted && !writes)
    }

    /// Takes a transaction out again that nobody waits for any more. `false` when it is in flight: then it keeps its place in the pool
    /// until its batch ends, and is not tried again.
    pub fn withdraw(&mut self, ticket: u64) -> bool {
        let is_it = |member: &Member| member.ticket == ticket;
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(is_it) {
                queue.remove(at);
                self.members -= 1;
                self.nothing_fits = false;
                return true;
            }
        }
        for half in &mut self.halves {
            if let Some(at) = half.members.iter().position(is_it) {
                half.members.remove(at);
                half.since = first_since(&half.members);
                self.members -= 1;
                self.halves.retain(|half| !half.members.is_empty());
                return true;
            }
        }
        let mut in_flight = self.in_flight_batches.values_mut().flat_map(|in_flight| &mut in_flight.members);
        if let Some(member) = in_flight.find(|member| is_it(member)) {
            member.is_withdrawn = true;
        }
        false
    }

    /// Ends those that have waited for too long to be part of a batch: nothing of them has been sent, or it is certain that it never takes place.
    fn expire(&mut self, now: Time, out: &mut Output) {
        let mut expired = Vec::new();
        for queue in &mut self.queues {
            // They stand in the order in which they came.
            while queue.front().is_some_and(|first| is_expired(first.since, now, self.options.retry_ms)) {
                expired.extend(queue.pop_front().map(|member| (member, WAITED)));
            }
        }
        for half in &mut self.halves {
            if is_expired(half.since, now, self.options.retry_ms) {
                let over = half.members.extract_if(.., |member| is_expired(member.since, now, self.options.retry_ms));
                expired.extend(over.map(|member| (member, half.why)));
                half.since = first_since(&half.members);
            }
        }
        self.halves.retain(|half| !half.members.is_empty());
        for (member, why) in expired {
            self.nothing_fits = false;
            self.fail(member, why, out);
        }
    }

    /// When the first of those that wait came.
    fn waits_since(&self) -> Option<Time> {
        let first = self.queues.iter().filter_map(|queue| queue.front()).map(|member| member.since);
        first.chain(self.halves.iter().map(|half| half.since)).min()
    }

    /// Begins whatever can begin: batches, as many as may be in flight. `timestamp` gives a new one each time, above all before.
    pub fn advance(&mut self, now: Time, mut timestamp: impl FnMut() -> Timestamp, out: &mut Output) {
        self.expire(now, out);
        self.commit_ready(out);
        while self.has_room()
            && let Some((members, recheck)) = self.form(now, out)
        {
            self.begin(now, timestamp(), members, recheck, out);
        }
    }

    /// Whether [`Pool::advance`] might begin something at `now`.
    #[must_use]
    pub fn can_advance(&self, now: Time) -> bool {
        let fits = || self.waiting() > 0 && !self.nothing_fits || self.halves.iter().any(|half| half.not_before <= now);
        self.has_room() && fits() || self.waits_since().is_some_and(|since| is_expired(since, now, self.options.retry_ms))
    }

    /// When to call [`Pool::advance`] at the latest, though nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let expires = self.waits_since().map(|since| since.after_ms(self.options.retry_ms));
        // What may begin again but finds no room waits for a batch to end.
        self.halves.iter().map(|half| half.not_before).filter(|_| self.has_room()).chain(expires).min()
    }

    /// How many transactions wait to be part of a batch.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// How many batches are in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.in_flight_batches.len()
    }

    /// Whether a batch is being committed, or has been.
    pub(crate) fn is_committing(&self, batch: u64) -> bool {
        self.in_flight_batches.get(&batch).is_none_or(|in_flight| matches!(in_flight.stage, Stage::Committing { .. }))
    }

    /// How many transactions a batch may have at present.
    #[must_use]
    pub fn batch_limit(&self) -> usize {
        self.sizers.iter().map(Sizer::limit).max().unwrap_or(1)
    }

    /// Whether as many wait as the next batch may have.
    #[must_use]
    pub fn has_full_batch(&self) -> bool {
        self.queues.iter().zip(&self.sizers).any(|(queue, sizer)| queue.len() >= sizer.limit())
    }

    /// What has been done.
    #[must_use]
    pub fn counts(&self) -> &PoolCounts {
        &self.counts
    }

    // Forming (Alg. 2).

    /// Whether another batch may begin.
    ///
    /// One batch reads at a time, unless it writes nothing. So a later batch's reads follow an earlier one's writes on
    /// every connection: it finds them prepared, and depends on them, where otherwise its reads would go past them and
    /// one of the two would have to be aborted.
    fn has_room(&self) -> bool {
        let is_reading = |in_flight: &&InFlightBatch| !matches!(in_flight.stage, Stage::Committing { .. });
        let mut reading = self.in_flight_batches.values().filter(is_reading);
        match self.options.order {
            Order::ReadAfterWrite => self.in_flight_batches.len() < self.options.in_flight && !reading.any(|in_flight| in_flight.writes),
            Order::WriteAfterRead => reading.next().is_none(),
        }
    }

    /// The next batch's members, in their order.
    fn form(&mut self, now: Time, out: &mut Output) -> Option<(Vec<Member>, Recheck)> {
        if let Some(at) = self.halves.iter().position(|half| half.not_before <= now) {
            return self.halves.remove(at).map(|half| (half.members, Recheck::Yes));
        }
        self.next_queue = 1 - self.next_queue;
        let formed = self.form_from(self.next_queue, out).or_else(|| self.form_from(1 - self.next_queue, out));
        self.nothing_fits = formed.is_none();
        formed
    }

    fn form_from(&mut self, queue: usize, out: &mut Output) -> Option<(Vec<Member>, Recheck)> {
        let limit = self.sizers[queue].limit();
        let PoolOptions { conflicts, batch_bytes_max: bytes, batch_keys_max: keys, .. } = self.options;
        let mut builder = BatchBuilder::new(conflicts, Bounds { members: limit, bytes, keys });
        let mut at = 0;
        // Those left waiting keep their place, so that each is the first of a batch sooner or later.
        while at < self.queues[queue].len().min(limit * LOOKED_AT_FACTOR) {
            match self.freshness(&self.queues[queue][at].work) {
                Freshness::Fresh => {}
                Freshness::InDoubt => {
                    at += 1;
                    continue;
                }
                Freshness::Stale => {
                    let member = self.queues[queue].remove(at)?;
                    self.counts.stale += 1;
                    self.fail(member, Failed::Conflict, out);
                    continue;
                }
            }
            match builder.fit(&self.queues[queue][at].work) {
                Fit::At(place) => builder.join(self.queues[queue].remove(at)?, place),
                Fit::Full => break,
                Fit::Conflict if self.options.conflicts == ConflictRule::EndBatch => {
                    self.counts.ended_at_conflict += 1;
                    break;
                }
                Fit::Conflict | Fit::CannotOrder => {
                    self.counts.deferred += 1;
                    at += 1;
                }
            }
        }
        (builder.len() > 0).then(|| (builder.finish(), Recheck::No))
    }

    fn freshness(&self, work: &Work) -> Freshness {
        match work {
            Work::Declared(_) => Freshness::Fresh,
            Work::Interactive(buffer) => self.own.freshness(buffer.read_set().map(|found| (&found.key, found.version))),
        }
    }

    // A batch's way (Alg. 3).

    fn begin(&mut self, now: Time, timestamp: Timestamp, mut members: Vec<Member>, recheck: Recheck, out: &mut Output) {
        self.batches_begun += 1;
        let batch = self.batches_begun;
        members.iter_mut().for_each(|member| member.attempts += 1);
        let keys = outside(&members, recheck);
        let writes = members.iter().any(|member| member.work.writes().next().is_some());
        if self.has_interactive {
            self.own.begin(members.iter().flat_map(|member| member.work.writes()), timestamp);
        }
        let in_flight = InFlightBatch { timestamp, members, recheck, writes, found: HashMap::new(), stage: Stage::Reading, began: now };
        self.in_flight_batches.insert(batch, in_flight);
        if keys.is_empty() {
            self.put_together(batch, out);
        } else {
            out.asks.push(Ask::Read { batch, timestamp, keys, mode: mode(writes) });
        }
    }

    /// What a batch's read came to.
    pub fn on_read(&mut self, now: Time, batch: u64, result: Result<Vec<ReadFound>, Failure>, out: &mut Output) {
        let Some(in_flight) = self.in_flight_batches.get_mut(&batch) else { return };
        let found = match result {
            Ok(found) => found,
            Err(failure) => {
                let in_flight = self.end(batch, Ended::Otherwise, out);
                self.failed(now, in_flight, failure, Failed::NotCommitted(failure), out);
                return;
            }
        };
        in_flight.found.extend(found.into_iter().map(|found| (found.key.clone(), found)));
        let stale = take_stale(&mut in_flight.members, &in_flight.found);
        if !stale.is_empty() && self.has_interactive {
            let timestamp = in_flight.timestamp;
            self.own.end(stale.iter().flat_map(|member| member.work.writes()), timestamp, false);
            // What others of the batch write as well is still in flight.
            self.own.begin(in_flight.members.iter().flat_map(|member| member.work.writes()), timestamp);
            self.nothing_fits = false;
        }
        let is_empty = in_flight.members.is_empty();
        for member in stale {
            self.counts.stale += 1;
            self.fail(member, Failed::Conflict, out);
        }
        if is_empty {
            self.end(batch, Ended::Otherwise, out);
        } else {
            self.put_together(batch, out);
        }
    }

    fn put_together(&mut self, batch: u64, out: &mut Output) {
        let Some(in_flight) = self.in_flight_batches.get_mut(&batch) else { return };
        match rebuild(&in_flight.members, &in_flight.found, in_flight.timestamp, self.cluster) {
            Ok(rebuilt) => {
                in_flight.stage = Stage::Ready(rebuilt);
                self.commit_ready(out);
            }
            // Members whose writes others were to read have been sent back meanwhile.
            Err(Unready::Missing(keys)) => {
                out.asks.push(Ask::Read { batch, timestamp: in_flight.timestamp, keys, mode: mode(in_flight.writes) });
            }
            Err(Unready::TooLarge(error)) => {
                // Several members never are: the draft counts at least what they take.
                let in_flight = self.end(batch, Ended::Otherwise, out);
                for member in in_flight.members {
                    self.fail(member, Failed::TooLarge(error), out);
                }
            }
        }
    }

    /// Commits batches that are put together, as far as there is room.
    fn commit_ready(&mut self, out: &mut Output) {
        let committing = self.in_flight_batches.values().filter(|in_flight| matches!(in_flight.stage, Stage::Committing { .. })).count();
        let room = self.options.in_flight.saturating_sub(committing);
        let ready = self.in_flight_batches.iter_mut().filter(|(_, in_flight)| matches!(in_flight.stage, Stage::Ready(_)));
        for (batch, in_flight) in ready.take(room) {
            let Stage::Ready(rebuilt) = std::mem::replace(&mut in_flight.stage, Stage::Reading) else { continue };
            let Rebuilt { transaction, validated, dependencies, values, resolved } = rebuilt;
            self.counts.outside_reads += resolved.outside;
            self.counts.own_reads += resolved.own;
            self.counts.chained_reads += resolved.chained;
            in_flight.stage = Stage::Committing { transaction: transaction.clone(), values };
            out.asks.push(match validated {
                Some(validated) => Ask::CommitReads { batch: *batch, transaction, validated },
                None => Ask::Commit { batch: *batch, transaction, dependencies },
            });
        }
    }

    /// A batch that only read has committed without being prepared.
    pub fn on_validated(&mut self, now: Time, batch: u64, out: &mut Output) {
        if self.in_flight_batches.contains_key(&batch) {
            let in_flight = self.end(batch, Ended::Committed, out);
            self.committed(now, in_flight, None, out);
        }
    }

    /// How a batch ended.
    pub fn on_ended(&mut self, now: Time, batch: u64, result: Result<(Arc<Certificate>, Path), Failure>, out: &mut Output) {
        if !self.in_flight_batches.contains_key(&batch) {
            return;
        }
        match result {
            Ok((certificate, path)) if certificate.decision == Decision::Commit => {
                let in_flight = self.end(batch, Ended::Committed, out);
                self.committed(now, in_flight, Some((certificate, path)), out);
            }
            Ok(_) => {
                let in_flight = self.end(batch, Ended::Otherwise, out);
                self.aborted(now, in_flight, Failed::Conflict, out);
            }
            Err(failure) => {
                let in_flight = self.end(batch, Ended::Otherwise, out);
                let otherwise = if matches!(failure, Failure::TimedOut(_)) { Failed::Unknown } else { Failed::NotCommitted(failure) };
                self.failed(now, in_flight, failure, otherwise, out);
            }
        }
    }

    /// What was to be asked for a batch was not: nothing of it takes place.
    pub fn on_unasked(&mut self, now: Time, batch: u64, out: &mut Output) {
        if self.in_flight_batches.contains_key(&batch) {
            let in_flight = self.end(batch, Ended::Otherwise, out);
            let failure = Failure::TimedOut(None);
            self.failed(now, in_flight, failure, Failed::NotCommitted(failure), out);
        }
    }

    /// Takes a batch out; another one that waits for room to commit then has some.
    fn end(&mut self, batch: u64, how: Ended, out: &mut Output) -> InFlightBatch {
        let in_flight = self.in_flight_batches.remove(&batch).expect("the caller has just found it");
        self.nothing_fits = false;
        if self.has_interactive {
            let keys = in_flight.members.iter().flat_map(|member| member.work.writes());
            self.own.end(keys, in_flight.timestamp, how == Ended::Committed);
        }
        self.commit_ready(out);
        in_flight
    }

    fn committed(&mut self, now: Time, in_flight: InFlightBatch, proof: Option<(Arc<Certificate>, Path)>, out: &mut Output) {
        let Stage::Committing { transaction, values } = in_flight.stage else { return };
        let size = in_flight.members.len();
        if in_flight.recheck == Recheck::No {
            let queue = self.queue_of(in_flight.writes);
            self.sizers[queue].committed(size, now.since(in_flight.began), self.queues[queue].len());
        }
        self.counts.note_committed(size);
        self.members -= size;
        let bounded = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        for (place, (member, values)) in in_flight.members.into_iter().zip(values).enumerate() {
            let committed = BatchedCommit {
                values,
                transaction: transaction.clone(),
                place: bounded(place),
                size: bounded(size),
                proof: proof.clone(),
                attempts: member.attempts,
            };
            out.outcomes.push((member.ticket, Ok(committed)));
        }
    }

    /// It met another transaction, or it took too long: none of it took place, for the reason told to who is not tried again.
    fn aborted(&mut self, now: Time, in_flight: InFlightBatch, why: Failed, out: &mut Output) {
        self.counts.aborted += 1;
        self.shrink(&in_flight);
        let is_alone = in_flight.members.len() == 1;
        let is_over = |member: &Member| {
            // What ran has to run again, unless it may be another member that was in the way.
            let must_run_again = is_alone && matches!(member.work, Work::Interactive(_));
            must_run_again || member.is_withdrawn || is_expired(member.since, now, self.options.retry_ms)
        };
        let (over, again): (Vec<Member>, Vec<Member>) = in_flight.members.into_iter().partition(is_over);
        for member in over {
            self.fail(member, why, out);
        }
        let attempts = again.iter().map(|member| member.attempts).max().unwrap_or(0);
        let waits_us = [self.backoff_us(attempts), self.backoff_us(attempts)];
        self.halve(again, waits_us.map(|wait_us| now.after_us(wait_us)), why);
    }

    /// It failed for another reason than a conflict.
    fn failed(&mut self, now: Time, in_flight: InFlightBatch, failure: Failure, otherwise: Failed, out: &mut Output) {
        match failure {
            Failure::Refused(Refusal::TooOld | Refusal::NotKept { .. }) | Failure::TooLow => self.aborted(now, in_flight, otherwise, out),
            // One of them may be the reason; alone, each gets its own answer.
            Failure::Refused(Refusal::NotPermitted | Refusal::TooLarge) if in_flight.members.len() > 1 => {
                let (withdrawn, again): (Vec<Member>, Vec<Member>) = in_flight.members.into_iter().partition(|member| member.is_withdrawn);
                for member in withdrawn {
                    self.fail(member, otherwise, out);
                }
                self.halve(again, [now, now], WAITED);
            }
            _ => {
                if matches!(failure, Failure::TimedOut(_)) {
                    // Perhaps it was too large to be answered in time.
                    self.shrink(&in_flight);
                }
                for member in in_flight.members {
                    // What only reads leaves nothing behind that could take place, whatever becomes of the others.
                    let only_reads = member.work.writes().next().is_none();
                    self.fail(member, if only_reads { Failed::NotCommitted(failure) } else { otherwise }, out);
                }
            }
        }
    }

    /// Makes batches smaller, unless this one was a part of another that did so.
    fn shrink(&mut self, in_flight: &InFlightBatch) {
        if in_flight.recheck == Recheck::No {
            let queue = self.queue_of(in_flight.writes);
            self.sizers[queue].aborted(in_flight.members.len());
        }
    }

    /// Parts a batch in two, to be tried again; `why` is told who waits for that for too long.
    fn halve(&mut self, mut members: Vec<Member>, not_before: [Time; 2], why: Failed) {
        if members.len() > 1 {
            self.counts.split += 1;
            let second = members.split_off(members.len().div_ceil(2));
            self.halves.push_back(Half::new(members, not_before[0], why));
            self.halves.push_back(Half::new(second, not_before[1], why));
        } else if !members.is_empty() {
            self.halves.push_back(Half::new(members, not_before[0], why));
        }
    }

    fn fail(&mut self, member: Member, why: Failed, out: &mut Output) {
        self.members -= 1;
        self.counts.conflicts += u64::from(why == Failed::Conflict);
        out.outcomes.push((member.ticket, Err(why)));
    }

    /// Between half and all of a wait that doubles.
    fn backoff_us(&mut self, attempts: u32) -> u64 {
        let longest = (BACKOFF_US_MIN << attempts.saturating_sub(1).min(16)).min(BACKOFF_US_MAX);
        // xorshift64*: good enough to keep two pools from meeting again and again.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        longest / 2 + self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) % (longest / 2)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Committed,
    Otherwise,
}

/// Whether who came at `since` has been in the pool for as long as it may be.
fn is_expired(since: Time, now: Time, retry_ms: u64) -> bool {
    now.since(since) >= retry_ms.saturating_mul(1_000_000)
}

fn mode(writes: bool) -> ReadMode {
    if writes { ReadMode::Interactive } else { ReadMode::ReadOnly }
}
