//! An interactive transaction: reads go to the cluster, writes wait for the commit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use engine::{Advice, Commit, CommitRequest, Evidence, Found, Operation, ReadMode, Refusal, Request, Response, Work};
use types::{Direction, Key, KeyRange, Timestamp, Value};

use crate::admission::Slot;
use crate::connection::Connection;
use crate::error::Error;
use crate::pool::Pool;
use crate::turns::KeyTurn;

/// A transaction that runs. Cloning gives another handle to the same one; dropping all of them abandons it.
///
/// What it reads is certain once it has committed: all of it is then of one state of the database, with the transaction's own writes.
/// Until then two reads may be of different moments, and a read may show a write that is taken back.
#[derive(Clone, Debug)]
pub struct Transaction {
    connection: Arc<Connection>,
    pool: Option<Pool>,
    mode: ReadMode,
    /// Since when somebody wants it done, where it was refused before as there was too much to do.
    wanted_since: Option<Instant>,
    /// `None` once committed or abandoned.
    progress: Arc<Mutex<Option<Progress>>>,
}

/// What a transaction has read and means to write.
#[derive(Debug, Default)]
struct Progress {
    /// Taken with the first read, or at the commit: the later, the less was acknowledged after it.
    timestamp: Option<Timestamp>,
    /// It has asked for something.
    has_begun: bool,
    /// How many reads have no answer yet, or will never have one.
    reading: usize,
    /// What is known of the keys that were read. The first read of a key counts; a later one cannot see another value.
    known: BTreeMap<Key, Option<Value>>,
    /// The engine's evidence for that, in the order in which reads returned.
    evidence: Vec<Evidence>,
    /// Some of that is of ranges.
    has_scanned: bool,
    writes: BTreeMap<Key, Option<Value>>,
    /// A read waits for its turn.
    waits: bool,
    /// Its turn at the keys that it has read.
    turn: Option<KeyTurn>,
}

impl Progress {
    /// What the transaction itself knows of `key`: its own write, else what it read before; `None` when it has to ask.
    fn known(&self, key: &Key) -> Option<&Option<Value>> {
        self.writes.get(key).or_else(|| self.known.get(key))
    }

    /// Whether all that it has read can be read again: single keys, and there is nothing under way.
    fn may_read_anew(&self) -> bool {
        !self.has_scanned && self.reading == 0
    }

    /// All keys that it has read, and `more`, each once and in order.
    fn keys_with(&self, more: &[Key]) -> Vec<Key> {
        self.known.keys().chain(more).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// As of when it has read, and how many answers.
    fn as_of(&self) -> (Option<Timestamp>, usize) {
        (self.timestamp, self.evidence.len())
    }

    fn take_in(&mut self, Found { found, evidence }: Found) {
        for (key, value) in found {
            self.known.entry(key).or_insert(value);
        }
        self.evidence.push(evidence);
    }
}

impl Transaction {
    pub(crate) fn begin(connection: Arc<Connection>, pool: Option<Pool>) -> Self {
        Self { connection, pool, mode: ReadMode::default(), wanted_since: None, progress: Arc::new(Mutex::new(Some(Progress::default()))) }
    }

    /// The same, which somebody wants done since then, if it was refused before ([`crate::admission`]).
    pub(crate) fn wanted_since(self, since: Option<Instant>) -> Self {
        Self { wanted_since: since, ..self }
    }

    /// The same, which will write nothing.
    pub(crate) fn only_reading(self) -> Self {
        Self { mode: ReadMode::ReadOnly, ..self }
    }

    /// The same, which reads what there was before `timestamp`, in such a way.
    pub(crate) fn reading_as_of(self, (timestamp, mode): (Timestamp, ReadMode)) -> Self {
        self.progress().iter_mut().for_each(|progress| progress.timestamp = Some(timestamp));
        Self { mode, ..self }
    }

    /// The value of `key`, or `None` when it has none.
    ///
    /// # Errors
    /// Any [`Error`]; a conflict shows at the commit, not here.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Value>, Error> {
        let mut values = self.get_many(std::slice::from_ref(&key.into())).await?;
        Ok(values.pop().flatten())
    }

    /// The values of `keys`, in their order, asked for in one round trip; in two, where it has waited for other transactions of this process, and
    /// what it had read before had changed meanwhile.
    ///
    /// # Errors
    /// Any [`Error`]; a conflict shows at the commit, not here.
    pub async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let missing = {
            let guard = self.progress();
            let progress = guard.as_ref().ok_or_else(ended)?;
            let mut missing: Vec<Key> = keys.iter().filter(|key| progress.known(key).is_none()).cloned().collect();
            missing.sort_unstable();
            missing.dedup();
            missing
        };
        if !missing.is_empty() {
            self.connection.may_read(missing.iter())?;
            if !self.read_anew(&missing).await? {
                let mode = self.mode;
                let found = self.read(|timestamp| Request::Read { timestamp, keys: missing.clone(), mode }).await?;
                self.take_in(found, false)?;
            }
        }
        let guard = self.progress();
        let progress = guard.as_ref().ok_or_else(ended)?;
        Ok(keys.iter().map(|key| progress.known(key).cloned().flatten()).collect())
    }

    /// The first `limit` keys from `low` (included) to `high` (excluded) that have values, in order, with their values.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Refusal::Unsupported`] on an engine that cannot read ranges, and with [`Refusal::AnswerTooLarge`] where the
    /// range holds more than a transaction can carry. Else any [`Error`]; a conflict shows at the commit, not here.
    pub async fn scan(&self, low: impl Into<Key>, high: impl Into<Key>, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        self.scan_in(Direction::Ascending, KeyRange::new(low.into(), high.into()), limit).await
    }

    /// The last `limit` keys from `low` (included) to `high` (excluded) that have values, the highest first, with their values. What the
    /// transaction has seen is the range from the last of them on; another that writes before it is no conflict where the engine can tell.
    ///
    /// # Errors
    /// As [`Transaction::scan`].
    pub async fn scan_last(&self, low: impl Into<Key>, high: impl Into<Key>, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        self.scan_in(Direction::Descending, KeyRange::new(low.into(), high.into()), limit).await
    }

    pub(crate) async fn scan_in(&self, direction: Direction, range: Option<KeyRange>, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let Some(range) = range.filter(|_| limit > 0) else { return Ok(Vec::new()) };
        let (low, high) = (range.low(), range.high());
        self.connection.may_read_range(low, high)?;
        // Its own deletions may take as many out of what the cluster holds.
        let deleted = {
            let guard = self.progress();
            let progress = guard.as_ref().ok_or_else(ended)?;
            progress.writes.range(low..high).filter(|(_, value)| value.is_none()).count()
        };
        let (mode, asked) = (self.mode, limit.saturating_add(deleted));
        let request = |timestamp| Request::Scan { timestamp, low: low.clone(), high: high.clone(), direction, limit: asked, mode };
        let answer = self.read(request).await?;
        let found: Vec<Key> = answer.found.iter().map(|(key, _)| key.clone()).collect();
        self.take_in(answer, true)?;
        let guard = self.progress();
        let progress = guard.as_ref().ok_or_else(ended)?;
        // Of what lies behind the last key found, nothing is known.
        let last = found.last().filter(|_| found.len() >= asked);
        let keys = found.iter().chain(progress.writes.range(low..high).map(|(key, _)| key));
        let mut keys: Vec<&Key> = keys.filter(|key| last.is_none_or(|last| direction.order(*key, last).is_le())).collect();
        keys.sort_unstable_by(|one, other| direction.order(*one, *other));
        keys.dedup();
        let entries = keys.into_iter().filter_map(|key| Some((key.clone(), progress.known(key)?.clone()?)));
        Ok(entries.take(limit).collect())
    }

    /// Waits for its turn before it reads `missing` ([`crate::turns`]). If it has a timestamp already, those that it waits for mostly write with later
    /// ones. So it takes another then, and reads all that it has read again, with these keys. Gives whether it has done so and found the same as
    /// before: if not, these keys are still to be read, at the timestamp that it has. In a pool transactions take turns otherwise.
    async fn read_anew(&self, missing: &[Key]) -> Result<bool, Error> {
        if self.mode.is_read_only() || self.pool.is_some() {
            return Ok(false);
        }
        let turns = self.connection.turns();
        let wanted = {
            let mut guard = self.progress();
            let progress = guard.as_mut().ok_or_else(ended)?;
            if progress.has_begun || progress.waits {
                let may_wait = progress.may_read_anew() && !progress.waits;
                let turn = progress.turn.get_or_insert_with(|| turns.none());
                if !may_wait || !turn.should_wait(missing) {
                    turn.add(missing);
                    return Ok(false);
                }
            }
            (progress.waits, progress.turn) = (true, None);
            progress.keys_with(missing)
        };
        let mut turn = turns.take(&wanted).await;
        let (known, before, keys) = {
            let mut guard = self.progress();
            let progress = guard.as_mut().ok_or_else(ended)?;
            // What was read meanwhile, too.
            let known = progress.known.clone();
            known.keys().for_each(|key| turn.add(std::slice::from_ref(key)));
            (progress.waits, progress.turn) = (false, Some(turn));
            if !progress.has_begun || !progress.may_read_anew() {
                return Ok(false);
            }
            progress.reading += 1;
            (known, progress.as_of(), progress.keys_with(missing))
        };
        let (slot, timestamp) = (self.next_slot().await?, self.connection.next_timestamp());
        let again = self.ask(slot, Request::Read { timestamp, keys, mode: self.mode }).await;
        let mut guard = self.progress();
        let progress = guard.as_mut().ok_or_else(ended)?;
        progress.reading -= 1;
        let again = match again {
            Ok(again) => again,
            // All together was too much for one answer.
            Err(error) if matches!(error.advice(), Advice::FixInput) => return Ok(false),
            Err(error) => return Err(error),
        };
        let found_again = |(key, value)| again.found.iter().any(|(other, now)| (other, now) == (key, value));
        // What it has read meanwhile is as of another timestamp.
        if progress.reading > 0 || progress.as_of() != before || !known.iter().all(found_again) {
            return Ok(false);
        }
        progress.timestamp = Some(timestamp);
        progress.evidence.clear();
        progress.take_in(again);
        Ok(true)
    }

    /// A slot for its first request.
    async fn begin_here(&self) -> Result<Slot, Error> {
        self.connection.begin(self.wanted_since.unwrap_or_else(Instant::now)).await
    }

    /// A slot for its next request. The first waits its turn while too many are under way, and only then is there a timestamp.
    async fn next_slot(&self) -> Result<Slot, Error> {
        let has_begun = self.progress().as_ref().ok_or_else(ended)?.has_begun;
        if has_begun {
            return Ok(self.connection.goes_on());
        }
        let slot = self.begin_here().await?;
        self.progress().as_mut().ok_or_else(ended)?.has_begun = true;
        Ok(slot)
    }

    /// Reads as of its timestamp. Where that has become too old to be read at, the transaction takes a later one: what it has read before is to be
    /// as it was when it commits, by the replicas' checks.
    async fn read(&self, request: impl Fn(Timestamp) -> Request) -> Result<Found, Error> {
        let slot = self.next_slot().await?;
        let timestamp = self.begin_read()?;
        match self.ask(slot, request(timestamp)).await {
            Err(Error::TooOld) if !self.mode.is_as_of() => {
                let later = self.later_than(timestamp)?;
                self.ask(self.next_slot().await?, request(later)).await
            }
            answer => answer,
        }
    }

    /// Its timestamp, which is a later one now than this.
    fn later_than(&self, too_old: Timestamp) -> Result<Timestamp, Error> {
        let mut guard = self.progress();
        let progress = guard.as_mut().ok_or_else(ended)?;
        let later = progress.timestamp.filter(|timestamp| *timestamp > too_old).unwrap_or_else(|| self.connection.next_timestamp());
        progress.timestamp = Some(later);
        Ok(later)
    }

    /// Asks for a read.
    async fn ask(&self, slot: Slot, request: Request) -> Result<Found, Error> {
        match self.connection.ask_in(slot, None, request).await? {
            Some(Ok(Response::Found(found))) => Ok(found),
            Some(Err(refusal)) => Err(self.connection.error(refusal)),
            Some(Ok(_)) | None => Err(Error::Closed),
        }
    }

    /// Its timestamp, for a read.
    fn begin_read(&self) -> Result<Timestamp, Error> {
        let mut guard = self.progress();
        let progress = guard.as_mut().ok_or_else(ended)?;
        progress.reading += 1;
        Ok(*progress.timestamp.get_or_insert_with(|| self.connection.next_timestamp()))
    }

    /// Takes in what a read has found.
    fn take_in(&self, found: Found, is_scan: bool) -> Result<(), Error> {
        let mut guard = self.progress();
        let progress = guard.as_mut().ok_or_else(ended)?;
        progress.reading -= 1;
        progress.has_scanned |= is_scan;
        progress.take_in(found);
        Ok(())
    }

    /// Writes `value` to `key` when the transaction commits. Once it has ended, by its commit or by [`Transaction::abandon`], this does nothing, and
    /// says nothing.
    pub fn put(&self, key: impl Into<Key>, value: impl Into<Value>) {
        self.write(key.into(), Some(value.into()));
    }

    /// Deletes `key` when the transaction commits. Once it has ended, this does nothing, as [`Transaction::put`].
    pub fn delete(&self, key: impl Into<Key>) {
        self.write(key.into(), None);
    }

    /// Writes into an ended transaction are lost with it.
    fn write(&self, key: Key, value: Option<Value>) {
        if let Some(progress) = self.progress().as_mut() {
            progress.writes.insert(key, value);
        }
    }

    /// The transaction's timestamp, which is its place in the serial order on an engine that orders by timestamps; `None` before its first
    /// read, and once it has ended. A further read may take a later one.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.progress().as_ref().and_then(|progress| progress.timestamp)
    }

    /// Commits. When it returns `Ok`, all of the transaction took place, and lasts.
    ///
    /// When the future is dropped before it has returned, as by a timeout around it, the session goes on with what it was asked for: the outcome is unknown
    /// then. The transaction may still take place, also after what is read in the meantime, as the session may try it again at a later timestamp. Who
    /// reads back and finds nothing of it does not know that nothing comes of it.
    ///
    /// # Errors
    /// [`Error::Conflict`]: none of it took place, begin again. [`Error::OutcomeUnknown`]: nobody knows yet, which is never said of one that
    /// writes nothing. Any other: none of it took place.
    pub async fn commit(&self) -> Result<Commit, Error> {
        let began = Instant::now();
        let commit = self.commit_untimed().await?;
        self.connection.commit_metrics().observe(commit.path, began.elapsed());
        Ok(commit)
    }

    async fn commit_untimed(&self) -> Result<Commit, Error> {
        let Progress { timestamp, has_begun, known, evidence: reads, has_scanned, writes, mut turn, .. } =
            self.progress().take().ok_or_else(ended)?;
        let timestamp = || timestamp.unwrap_or_else(|| self.connection.next_timestamp());
        if self.mode.is_read_only() && !writes.is_empty() {
            return Err(Error::Invalid(
                "a transaction that was begun to read only has written; begin it with `begin` or `transact`".to_owned(),
            ));
        }
        self.connection.may_write(writes.keys())?;
        let bytes = writes.iter().map(|(key, value)| key.as_bytes().len() + value.as_ref().map_or(0, |value| value.as_bytes().len()));
        // The rows of a range are not counted one by one.
        let read = if has_scanned { reads.len() } else { known.len() };
        self.connection.within_limits(read + writes.len(), bytes.sum())?;
        turn.iter_mut().for_each(|turn| turn.writes(|key| writes.contains_key(key)));
        let writes: Vec<(Key, Option<Value>)> = writes.into_iter().collect();
        // What only reads has mostly committed by now, and is cheap alone. What has read ranges goes alone, too: nobody could join it with
        // others that write there.
        if let Some(pool) = self.pool.as_ref().filter(|_| !writes.is_empty() && !has_scanned) {
            return pool.commit(Work::Interactive { timestamp: timestamp(), reads, writes }).await;
        }
        let slot = if has_begun { self.connection.goes_on() } else { self.begin_here().await? };
        let only_reads = writes.is_empty();
        let request = Request::Commit(CommitRequest { timestamp: timestamp(), reads, writes });
        match self.connection.ask_in(slot, turn, request).await? {
            Some(Ok(Response::Committed(commit))) => Ok(commit),
            Some(Err(refusal)) if only_reads => Err(self.connection.error(refusal.of_only_reads())),
            Some(Err(refusal)) => Err(self.connection.error(refusal)),
            None if only_reads => Err(Error::Closed),
            Some(Ok(_)) | None => Err(self.connection.error(Refusal::OutcomeUnknown)),
        }
    }

    /// Ends the transaction without a trace.
    pub fn abandon(&self) {
        self.progress().take();
    }

    fn progress(&self) -> MutexGuard<'_, Option<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ended() -> Error {
    Error::Invalid("the transaction has already ended".to_owned())
}

/// Runs a transaction whose operations are known by itself: its reads together, its comparisons, then its writes. Of a comparison
/// that fails it gives the number, and writes nothing: that it failed is certain once the transaction has committed.
pub(crate) async fn run_alone(txn: Transaction, operations: Arc<[Operation]>) -> Result<Result<Vec<Option<Value>>, usize>, Error> {
    let reads = operations.iter().filter(|operation| operation.write().is_none());
    let keys: Vec<Key> = reads.map(|operation| operation.key().clone()).collect();
    let mut found = txn.get_many(&keys).await?.into_iter();
    let mut values = Vec::with_capacity(keys.len());
    let mut written: HashMap<&Key, Option<&Value>> = HashMap::new();
    for (number, operation) in operations.iter().enumerate() {
        match operation {
            Operation::Get(key) => {
                let before = found.next().flatten();
                values.push(written.get(key).map_or(before, |value| value.cloned()));
            }
            // It is about what was there before the transaction.
            Operation::Compare(_, wanted) => {
                if found.next().flatten() != *wanted {
                    return Ok(Err(number));
                }
            }
            Operation::Put(key, value) => drop(written.insert(key, Some(value))),
            Operation::Delete(key) => drop(written.insert(key, None)),
        }
    }
    for (key, value) in operations.iter().filter_map(Operation::write) {
        match value {
            Some(value) => txn.put(key.clone(), value.clone()),
            None => txn.delete(key.clone()),
        }
    }
    Ok(Ok(values))
}
