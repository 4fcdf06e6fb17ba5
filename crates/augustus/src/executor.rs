//! The executor of one shard: the deterministic half of a replica, behind the multicast.
//!
//! It is handed batches of ordered requests and answers each. Two executors of a shard that are handed the same batches give the
//! same answers and have the same state, whatever is in the batches: nothing here depends on time, on who runs it, or on the order of
//! a hash map.
//!
//! ```text
//!   Run ──▶ all locks, comparisons, operations ──┬─▶ this shard alone: done, no lock outlives it (§3.5.1)
//!                         │                      └─▶ several shards: pending, holds its locks ──Decide──▶ committed or aborted
//!                         └─▶ a lock is taken, a comparison fails: voted down, which is final
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use machine::Time;
use mutants::{Mutant, broken};
use types::codec::{Decode as _, DecodeError, Encode as _, Reader};
use types::{ClientId, Cluster, Digest, Direction, Key, KeyRange, ShardId, TransactionId, Value};

use crate::certificate::{Certificate, EndedStatement, SettledStatement, Signers, Vote};
use crate::held::{Before, HeldMoments};
use crate::limits::{
    BATCH_CONFLICT_BYTES_MAX, BATCH_RESULT_BYTES_MAX, LOCKS_MAX, MOMENT_LOOKED_AT_MAX, MOMENT_PAGE_BYTES, PENDING_BYTES_MAX, PENDING_MAX,
    RANGE_ROWS_MAX, RANGES_LOCKED_MAX, RESULT_BYTES_MAX, STATE_PAGES_MAX, UNSETTLED_MAX,
};
use crate::locks::{Lock, LockTable, Structural};
use crate::moment::{MomentAnswer, MomentPage, Question, is_cut};
use crate::multicast::message::QUERY_ANSWER_BYTES_MAX;
use crate::operation::{Found, Operation, RowsSeen, row_bytes, shards_of_range};
use crate::pages::{Directory, Owner, PageNumber, Tree, page_digest};
use crate::request::{AbortReason, Answer, Ordered, Refusal, Reply, Request, Verdict};
use crate::rows::{Rows, merged};
use crate::sessions::{Clients, Entry, Known, Load, State};
use crate::state_transfer::{Checkpoint, Head};
use crate::transaction::{Name, Transaction};

/// What all executors of a shard are told alike.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// The shard.
    pub shard: ShardId,
    /// What structural locks are on.
    pub structural: Structural,
}

/// Executes the requests of one shard.
#[derive(Debug)]
pub struct Executor {
    settings: Settings,
    /// The last batch that was executed.
    sequence: u64,
    rows: Rows,
    clients: Clients,
    pending: BTreeMap<PageNumber, Pending>,
    /// The locks of what is pending: nothing that is not there, too.
    locks: LockTable,
    directory: Directory,
    tree: Tree,
    /// How many bytes each client's queries have given in this batch, and what was in the way of its requests.
    given: BTreeMap<(ClientId, Given), usize>,
    /// Moments of the past that are held for their readers. No part of the state.
    held: HeldMoments,
    /// The page that is hashed next of those that nobody changes. No part of the state.
    scrubbed: usize,
    /// With so many pages in use it takes no new keys.
    pages_max: usize,
}

/// A page that came to hold something else than at the last checkpoint, and no transaction has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongPage {
    pub number: PageNumber,
    pub owner: Owner,
    /// The digest of what it holds.
    pub own: Digest,
    /// The digest that it had at the checkpoint.
    pub agreed: Digest,
}

/// A transaction that was voted to commit, and waits for the other shards' votes.
#[derive(Debug)]
struct Pending {
    transaction: Transaction,
    /// The batch it came with.
    since: u64,
}

/// What executing a transaction on the present rows comes to.
#[derive(Debug)]
struct Effects<'a> {
    found: Vec<Found>,
    writes: BTreeMap<&'a Key, Option<&'a Value>>,
}

/// How many keys of a batch are looked up ahead.
const PREFETCH_KEYS_MAX: usize = 1_024;
/// To look at a page takes as long as to hash so many bytes.
const PAGE_LOOKED_AT_BYTES: usize = 512;
/// Why what is pending can be executed again.
const KEPT_AS_IT_WAS: &str = "what is pending was executed once, and its locks keep everything as it was";
/// Page formats, the first byte of each page.
const ROWS: u8 = 1;
const CLIENT: u8 = 2;
const SESSION: u8 = 3;
const PENDING: u8 = 4;

impl Executor {
    /// An executor that has executed nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let mut directory = Directory::default();
        Self {
            sequence: 0,
            rows: Rows::new(&mut directory),
            clients: Clients::default(),
            pending: BTreeMap::new(),
            locks: LockTable::new(settings.structural),
            directory,
            tree: Tree::new(settings.cluster.id()),
            given: BTreeMap::new(),
            held: HeldMoments::default(),
            scrubbed: 0,
            pages_max: STATE_PAGES_MAX,
            settings,
        }
    }

    /// The same with room for fewer pages: for tests. All replicas of a shard must have the same.
    #[must_use]
    pub fn with_pages_max(mut self, pages_max: usize) -> Self {
        self.pages_max = pages_max;
        self
    }

    /// The last batch that was executed.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The transactions that wait for other shards' votes, the oldest of them not necessarily first, and the batch each came with. What
    /// has been pending for long was left by its client.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = (&Transaction, u64)> {
        self.pending.values().map(|pending| (&pending.transaction, pending.since))
    }

    /// What there is to say to `client` of a request that may have been executed before, without executing it: what was said then, as far
    /// as that is remembered. It promises nothing new, so that it need not be ordered.
    #[must_use]
    pub fn answered(&self, client: ClientId, request: &Request) -> Reply {
        let nothing = || refused(Refusal::TooOld);
        match request {
            Request::Run(transaction) if transaction.name().client != client => nothing(),
            Request::Run(transaction) | Request::Finish(transaction, _) => {
                let Some(verdict) = self.known(transaction) else { return nothing() };
                let asked = if matches!(request, Request::Run(_)) { Asked::ByAuthor } else { Asked::ToFinish(None) };
                voted(client, (transaction, &transaction.participants(&self.settings.cluster)), asked, verdict)
            }
            Request::Decide(name, Certificate { id, .. }) | Request::Release(name, id) => match self.clients.find(*name) {
                Known::Entry(entry) if entry.id == *id => entry.state.end().map_or_else(nothing, |decision| ended(*id, decision)),
                _ => refused(Refusal::Unknown),
            },
            Request::Settle { session, below } => {
                settled(SettledStatement { client, session: *session, below: self.clients.settled(client, *session, *below) })
            }
            Request::Forget(statement, _) => Reply { answer: Answer::Settled(*statement), statement: None },
            Request::CheckEnded(statement) => self.on_check_ended(statement),
            Request::ForgetEnded(statement, _) => Reply { answer: Answer::Gone(*statement), statement: None },
        }
    }

    /// What a transaction of `client` would be answered that only reads, and only here, if it were the next: then it need not be ordered. Nothing
    /// where it does more, would not commit, or meets what is pending.
    #[must_use]
    pub fn answer_query(&self, client: ClientId, transaction: &Transaction) -> Option<Answer> {
        let Settings { cluster, shard, .. } = &self.settings;
        let is_its = transaction.name().client == client && transaction.participants(cluster) == [*shard];
        if !is_its || transaction.is_update() {
            return None;
        }
        if let Err(reason) = self.admit(transaction, true)
            && !(broken(Mutant::QueryOverLocks) && matches!(reason, AbortReason::Conflict(..)))
        {
            return None;
        }
        let found = self.effects_within(transaction, QUERY_ANSWER_BYTES_MAX).ok()?.found;
        Some(Answer::Voted(transaction.id(), Verdict::Commit(Some(found))))
    }

    /// What there is to say to `client` about a moment. Nothing where its cut was not executed here yet.
    pub fn answer_moment(&mut self, client: ClientId, question: &Question) -> Option<MomentAnswer> {
        let (name, id, operation) = match question {
            Question::Page { name, id, operation } => (*name, *id, operation),
            Question::Drop(id) => {
                self.held.drop_of(*id, client);
                return None;
            }
        };
        let Self { held, rows, settings: Settings { cluster, shard, .. }, .. } = self;
        let Some(before) = held.read(id, client) else {
            return match self.clients.find(name) {
                Known::Entry(entry) if entry.id == id => Some(MomentAnswer::Gone),
                Known::Forgotten => Some(MomentAnswer::Gone),
                Known::Entry(_) | Known::New => None,
            };
        };
        let page = match operation {
            Operation::ReadRange(range, direction, rows_max) => {
                // A page of no rows would not say how far it goes.
                let rows_max = (*rows_max as usize).clamp(1, RANGE_ROWS_MAX);
                cluster.part_of(*shard, range).map(|range| moment_page(rows, before, (&range, *direction), rows_max)).unwrap_or_default()
            }
            operation => {
                let key = operation.key()?;
                let value = before.get(key).cloned().unwrap_or_else(|| rows.get(key).map(value_of));
                MomentPage { rows: value.map(|value| (key.clone(), value)).into_iter().collect(), last: None }
            }
        };
        Some(MomentAnswer::Page(page))
    }

    /// How many moments are held.
    #[must_use]
    pub fn moments(&self) -> usize {
        self.held.len()
    }

    /// Lets go of moments that nobody reads, as time has passed.
    pub(crate) fn on_tick(&mut self, now: Time) {
        self.held.on_tick(now);
    }

    /// The value of a key, as of the last batch.
    #[must_use]
    pub fn value(&self, key: &Key) -> Option<Value> {
        self.rows.get(key).map(value_of)
    }

    /// Executes the next batch, and answers its requests in their order.
    ///
    /// # Panics
    /// When it is not the next batch: the multicast delivers each once, in order.
    pub fn deliver(&mut self, sequence: u64, batch: &[Ordered]) -> Vec<Reply> {
        assert_eq!(sequence, self.sequence + 1, "batches are delivered once, in order");
        (self.sequence, self.clients.sequence) = (sequence, sequence);
        self.given.clear();
        self.prefetch(batch);
        let mut replies = Vec::with_capacity(batch.len());
        for ordered in batch {
            let reply = self.execute(ordered);
            replies.push(self.bounded(ordered.client, reply));
        }
        replies
    }

    /// The answer without what was found, or without the transaction that was in the way, where that is more than one client may have of a batch: all
    /// answers of a batch are there at once.
    fn bounded(&mut self, client: ClientId, reply: Reply) -> Reply {
        let Answer::Voted(id, verdict) = &reply.answer else { return reply };
        let (given, bytes, max, shortened) = match verdict {
            Verdict::Commit(Some(found)) => {
                (Given::Found, found.iter().map(Found::bytes).sum(), BATCH_RESULT_BYTES_MAX, Verdict::Commit(None))
            }
            Verdict::Abort(AbortReason::Conflict(name, other, Some(transaction))) if !broken(Mutant::ConflictsUnlimited) => {
                let shortened = Verdict::Abort(AbortReason::Conflict(*name, *other, None));
                (Given::InTheWay, transaction.encoded().len(), BATCH_CONFLICT_BYTES_MAX, shortened)
            }
            Verdict::Commit(None) | Verdict::Abort(_) => return reply,
        };
        let given = self.given.entry((client, given)).or_default();
        if *given + bytes > max && bytes > 0 && !broken(Mutant::BatchUnlimited) {
            return Reply { answer: Answer::Voted(*id, shortened), ..reply };
        }
        *given += bytes;
        reply
    }

    fn prefetch(&self, batch: &[Ordered]) {
        let transactions = batch.iter().filter_map(|ordered| match ordered.request.as_deref() {
            Ok(Request::Run(transaction)) => Some(transaction),
            _ => None,
        });
        let keys = transactions.flat_map(Transaction::operations).filter_map(Operation::key);
        self.rows.prefetch(keys.take(PREFETCH_KEYS_MAX));
    }

    fn execute(&mut self, ordered: &Ordered) -> Reply {
        let Ok(request) = &ordered.request else { return refused(Refusal::Unreadable) };
        match &**request {
            Request::Run(transaction) => {
                if transaction.name().client != ordered.client && !broken(Mutant::AnyoneRuns) {
                    return refused(Refusal::NotTheAuthor);
                }
                self.on_run(ordered.client, transaction, Asked::ByAuthor)
            }
            Request::Finish(transaction, evidence) => self.on_run(ordered.client, transaction, Asked::ToFinish(evidence.as_ref())),
            Request::Decide(name, certificate) => self.on_decide(ordered.client, *name, certificate),
            Request::Release(name, id) => self.on_release(ordered.client, *name, *id),
            Request::Settle { session, below } => self.on_settle(ordered.client, *session, *below),
            Request::Forget(statement, settled) => self.on_forget(statement, settled),
            Request::CheckEnded(statement) => self.on_check_ended(statement),
            Request::ForgetEnded(statement, others) => {
                let shards: Vec<ShardId> = others.iter().map(|signers| signers.shard).collect();
                self.clients.forget_ended(statement, &shards, &mut self.directory);
                Reply { answer: Answer::Gone(*statement), statement: None }
            }
        }
    }

    /// §3.3, second and third step.
    fn on_run(&mut self, asker: ClientId, transaction: &Transaction, asked: Asked<'_>) -> Reply {
        let name = transaction.name();
        let participants = transaction.participants(&self.settings.cluster);
        if !participants.contains(&self.settings.shard) {
            return refused(Refusal::WrongShard);
        }
        let verdict = match self.known(transaction).filter(|_| !broken(Mutant::VoteRetaken)) {
            Some(verdict) => verdict,
            None => {
                if let Asked::ToFinish(evidence) = asked
                    && asker != name.client
                    && !evidence.is_some_and(|signers| participants.contains(&signers.shard))
                    && !broken(Mutant::FinishUnproven)
                {
                    return refused(Refusal::NotTheAuthor);
                }
                if self.settings.cluster.permission(name.client).is_none() {
                    return refused(Refusal::UnknownClient);
                }
                self.run(transaction, &participants)
            }
        };
        voted(asker, (transaction, &participants), asked, verdict)
    }

    /// How the shard has voted on a transaction, if it has.
    fn known(&self, transaction: &Transaction) -> Option<Verdict> {
        match self.clients.find(transaction.name()) {
            Known::New => None,
            Known::Forgotten => Some(Verdict::Abort(AbortReason::Forgotten)),
            Known::Entry(entry) if entry.id != transaction.id() && !broken(Mutant::NumberUnchecked) => {
                Some(Verdict::Abort(AbortReason::NumberReused))
            }
            Known::Entry(entry) => Some(self.verdict_of(&entry.state)),
        }
    }

    /// What was voted on a transaction before.
    fn verdict_of(&self, state: &State) -> Verdict {
        match state {
            State::Done(verdict) => verdict.clone(),
            // Its locks see to it that its queries find what they found.
            State::Pending(page) => {
                let effects = self.effects(&self.pending[page].transaction).expect(KEPT_AS_IT_WAS);
                Verdict::Commit(Some(effects.found))
            }
            State::Unsettled(_) | State::Ended(Vote::Commit) => Verdict::Commit(None),
            State::Ended(Vote::Abort) => Verdict::Abort(AbortReason::VotedDown),
        }
    }

    /// Executes a transaction that is new here, and notes what came of it.
    fn run(&mut self, transaction: &Transaction, participants: &[ShardId]) -> Verdict {
        let name = transaction.name();
        if !self.clients.make_room(name.client, name.session, &mut self.directory) {
            return Verdict::Abort(AbortReason::TooMuchPending);
        }
        let is_alone = participants.len() == 1;
        let executed = self.admit(transaction, is_alone).and_then(|locks| Ok((locks, self.effects(transaction)?)));
        let (verdict, state) = match executed {
            Err(reason) => {
                let verdict = Verdict::Abort(reason);
                let state = State::Done(verdict.kept());
                (verdict, state)
            }
            Ok((_, Effects { found, writes })) if is_alone => {
                for (key, value) in writes {
                    self.write(key, value);
                }
                let verdict = Verdict::Commit(Some(found));
                let state = State::Done(verdict.kept());
                (verdict, state)
            }
            Ok((load, Effects { found, .. })) => {
                let page = self.directory.make(Owner::Pending);
                let transaction = transaction.detached(self.settings.cluster.id());
                self.hold(page, transaction, load, self.sequence);
                (Verdict::Commit(Some(found)), State::Pending(page))
            }
        };
        if verdict.vote() == Vote::Commit && is_cut(transaction) {
            self.held.begin(transaction.id(), name.client);
        }
        self.clients.set(name, Entry { id: transaction.id(), state }, &mut self.directory);
        verdict
    }

    /// Whether the transaction may be executed now: its author has the right and the room, and all its locks can be had. Gives what it
    /// will hold.
    fn admit(&self, transaction: &Transaction, is_alone: bool) -> Result<Load, AbortReason> {
        let author = transaction.name().client;
        let permission = self.settings.cluster.permission(author);
        if !permission.is_some_and(|permission| transaction.is_permitted(permission)) && !broken(Mutant::RightsUnasked) {
            return Err(AbortReason::NotPermitted);
        }
        if self.directory.used() >= self.pages_max && self.has_new_keys(transaction) && !broken(Mutant::StateUnbounded) {
            return Err(AbortReason::Full);
        }
        if is_alone && self.locks.is_empty() {
            return Ok(Load::default());
        }
        let locks = self.locks_of(transaction);
        if let Some(holder) = locks.iter().find_map(|lock| self.locks.conflict(lock)) {
            let in_the_way = &self.pending[&holder].transaction;
            let shown = permission.filter(|permission| in_the_way.may_be_shown(permission) || broken(Mutant::PendingShown));
            return Err(AbortReason::Conflict(in_the_way.name(), in_the_way.id(), shown.map(|_| Box::new(in_the_way.clone()))));
        }
        if is_alone {
            return Ok(Load::default());
        }
        let load = Load { transactions: 1, locks: locks.len(), bytes: transaction.encoded().len() };
        let ranges = locks.iter().filter(|lock| matches!(lock, Lock::Range(_))).count();
        let client = self.clients.client(author).expect("room was made for its session");
        let Load { transactions, locks, bytes } = client.pending;
        let is_too_much = !client.has_room() || locks + load.locks > LOCKS_MAX || bytes + load.bytes > PENDING_BYTES_MAX;
        if (is_too_much || self.locks.ranges() + ranges > RANGES_LOCKED_MAX) && !broken(Mutant::PendingUnlimited) {
            return Err(AbortReason::TooMuchPending);
        }
        // What is pending may be unsettled soon.
        if transaction.is_update() && client.unsettled + transactions >= UNSETTLED_MAX {
            return Err(AbortReason::Unsettled);
        }
        Ok(load)
    }

    /// Whether it has keys here that are not there yet.
    fn has_new_keys(&self, transaction: &Transaction) -> bool {
        let Settings { cluster, shard, .. } = &self.settings;
        transaction.operations_at(cluster, *shard).any(|(_, operation)| match operation {
            Operation::Insert(key, _) | Operation::Put(key, _) => self.rows.get(key).is_none(),
            _ => false,
        })
    }

    /// The locks of a transaction here (table 1).
    fn locks_of<'a>(&self, transaction: &'a Transaction) -> Vec<Lock<'a>> {
        let Settings { cluster, shard, .. } = &self.settings;
        let mut locks = Vec::with_capacity(transaction.operations().len());
        for (_, operation) in transaction.operations_at(cluster, *shard) {
            match operation {
                Operation::Compare(key, _) | Operation::Read(key) => locks.push(Lock::Read(key)),
                Operation::ReadRange(range, ..) | Operation::CompareRange(range, _) => {
                    locks.extend(cluster.part_of(*shard, range).map(Lock::Range));
                }
                Operation::Write(key, _) => locks.push(Lock::Write(key)),
                Operation::Insert(key, _) | Operation::Delete(key) => locks.extend([Lock::Write(key), Lock::Structural(key)]),
                Operation::Put(key, _) => {
                    locks.push(Lock::Write(key));
                    // It inserts. The write lock keeps the key away.
                    if self.rows.get(key).is_none() {
                        locks.push(Lock::Structural(key));
                    }
                }
            }
        }
        locks
    }

    /// What the transaction finds and changes here: comparisons first, on the state before it, then everything else in its order.
    fn effects<'a>(&self, transaction: &'a Transaction) -> Result<Effects<'a>, AbortReason> {
        self.effects_within(transaction, RESULT_BYTES_MAX)
    }

    /// The same, for one that reads at most so many bytes.
    fn effects_within<'a>(&self, transaction: &'a Transaction, bytes_max: usize) -> Result<Effects<'a>, AbortReason> {
        let Settings { cluster, shard, .. } = &self.settings;
        let mismatch = |place: usize| AbortReason::Mismatch(u32::try_from(place).expect("OPERATIONS_MAX is less"));
        // What is compared counts like what is found: both are read.
        let mut bytes = 0;
        for (place, operation) in transaction.operations_at(cluster, *shard) {
            let holds = match operation {
                Operation::Compare(key, value) => self.rows.get(key) == value.as_ref().map(Value::as_bytes),
                Operation::CompareRange(range, seen) => {
                    self.holds(range, seen, &mut bytes, bytes_max)? || broken(Mutant::RangeComparisonSkipped)
                }
                _ => true,
            };
            if !holds && !broken(Mutant::ComparisonSkipped) {
                return Err(mismatch(place));
            }
        }
        let mut effects = Effects { found: Vec::new(), writes: BTreeMap::new() };
        for (place, operation) in transaction.operations_at(cluster, *shard) {
            match operation {
                Operation::Compare(..) | Operation::CompareRange(..) => {}
                Operation::Read(_) | Operation::ReadRange(..) => {
                    let found = self.query(operation, &effects.writes, bytes_max);
                    bytes += found.bytes();
                    if bytes > bytes_max {
                        return Err(AbortReason::AnswerTooLarge);
                    }
                    effects.found.push(found);
                }
                Operation::Insert(key, value) | Operation::Write(key, value) => {
                    let is_there = self.at(key, &effects.writes).is_some();
                    if is_there != matches!(operation, Operation::Write(..)) {
                        return Err(mismatch(place));
                    }
                    effects.writes.insert(key, Some(value));
                }
                Operation::Put(key, value) => {
                    effects.writes.insert(key, Some(value));
                }
                Operation::Delete(key) => {
                    effects.writes.insert(key, None);
                }
            }
        }
        Ok(effects)
    }

    /// Whether this shard holds exactly these rows of a range.
    fn holds(&self, range: &KeyRange, seen: &[RowsSeen], bytes: &mut usize, bytes_max: usize) -> Result<bool, AbortReason> {
        let Settings { cluster, shard, .. } = &self.settings;
        let shards = shards_of_range(range, cluster);
        let own = shards.iter().position(|other| other == shard).filter(|_| seen.len() == shards.len());
        let (Some(own), Some(part)) = (own.map(|own| seen[own]), cluster.part_of(*shard, range)) else { return Ok(false) };
        let mut rows = Vec::new();
        for (key, value) in self.rows.range(&part).take(own.count as usize + 1) {
            *bytes += row_bytes(key, value);
            if *bytes > bytes_max {
                return Err(AbortReason::AnswerTooLarge);
            }
            rows.push((key, value));
        }
        Ok(RowsSeen::of(cluster.id(), rows.into_iter()) == own)
    }

    /// The bytes of the value of `key` after `writes`.
    fn at<'a>(&'a self, key: &Key, writes: &BTreeMap<&'a Key, Option<&'a Value>>) -> Option<&'a [u8]> {
        match writes.get(key) {
            Some(written) => written.map(Value::as_bytes),
            None => self.rows.get(key),
        }
    }

    /// What a query finds after `writes`.
    fn query(&self, operation: &Operation, writes: &BTreeMap<&Key, Option<&Value>>, bytes_max: usize) -> Found {
        let Settings { cluster, shard, .. } = &self.settings;
        let Operation::ReadRange(range, direction, rows_max) = operation else {
            return Found::Value(operation.key().and_then(|key| self.at(key, writes)).map(value_of));
        };
        let Some(range) = cluster.part_of(*shard, range) else { return Found::Rows(Vec::new()) };
        let rows_max = (*rows_max as usize).min(RANGE_ROWS_MAX);
        let written = direction.of(writes.range::<Key, _>(range.low()..range.high())).map(|(key, value)| (*key, *value));
        let mut merged = merged(*direction, written, self.rows.range_in(*direction, &range));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        // One row more bytes than an answer may have are enough to see that it is too large.
        while rows.len() < rows_max
            && bytes <= bytes_max
            && let Some((key, value)) = merged.next()
        {
            if let Some(value) = value {
                bytes += row_bytes(key, value);
                rows.push((key_of(key), value_of(value)));
            }
        }
        Found::Rows(rows)
    }

    fn write(&mut self, key: &Key, value: Option<&Value>) {
        if self.held.len() > 0 {
            self.held.note(key, self.rows.get(key));
        }
        match value {
            Some(value) => self.rows.put(key, value, &mut self.directory),
            None => self.rows.remove(key, &mut self.directory),
        }
    }

    /// Makes a transaction pending: it holds its locks from now on.
    fn hold(&mut self, page: PageNumber, transaction: Transaction, load: Load, since: u64) {
        for lock in self.locks_of(&transaction) {
            self.locks.acquire(page, lock);
        }
        let author = transaction.name().client;
        let pending = &mut self.clients.client_mut(author).expect("its session was made").pending;
        pending.transactions += load.transactions;
        pending.locks += load.locks;
        pending.bytes += load.bytes;
        self.pending.insert(page, Pending { transaction, since });
    }

    /// §3.3, fourth step, of a transaction that changes several shards, or that others finish.
    fn on_decide(&mut self, client: ClientId, name: Name, certificate: &Certificate) -> Reply {
        let id = certificate.id;
        let entry = match self.clients.find(name) {
            Known::Entry(entry) if entry.id == id || broken(Mutant::VotesOfOther) => entry,
            _ => return refused(Refusal::Unknown),
        };
        match &entry.state {
            State::Pending(page) => {
                let (page, id) = (*page, entry.id);
                let participants = self.pending[&page].transaction.participants(&self.settings.cluster);
                if !certificate.proves(id, &participants) {
                    return refused(Refusal::Unproven);
                }
                self.end(page, certificate.decision, &participants);
                self.note_end(name.client, client == name.client);
                ended(id, certificate.decision)
            }
            ended_before => ended(id, ended_before.end().expect("it is not pending")),
        }
    }

    /// The same, of a transaction that only reads (§3.5.2). Its author need prove nothing: without its locks it reads inconsistently
    /// at most, and no one else does.
    fn on_release(&mut self, client: ClientId, name: Name, id: TransactionId) -> Reply {
        let entry = match self.clients.find(name) {
            Known::Entry(entry) if entry.id == id => entry,
            _ => return refused(Refusal::Unknown),
        };
        let State::Pending(page) = entry.state else { return refused(Refusal::Unknown) };
        let is_update = self.pending[&page].transaction.is_update();
        if (is_update && !broken(Mutant::UpdateReleased)) || (client != name.client && !broken(Mutant::ReleasedByAnyone)) {
            return refused(Refusal::Unproven);
        }
        self.end(page, Vote::Commit, &[]);
        self.note_end(name.client, true);
        ended(id, Vote::Commit)
    }

    fn note_end(&mut self, client: ClientId, by_itself: bool) {
        let pending_min = self.settings.cluster.pending_min().and_then(|least| usize::try_from(least).ok()).unwrap_or(PENDING_MAX);
        self.clients.note_end(client, by_itself, pending_min, &mut self.directory);
    }

    /// Ends what is pending: its writes take place or not, and its locks are released.
    fn end(&mut self, page: PageNumber, decision: Vote, participants: &[ShardId]) {
        let pending = self.pending.remove(&page).expect("who ends it has found it");
        let transaction = &pending.transaction;
        // Before its writes, since what they change decides which locks it took.
        let locks = self.locks_of(transaction);
        let load = Load { transactions: 1, locks: locks.len(), bytes: transaction.encoded().len() };
        for lock in &locks {
            self.locks.release(page, lock);
        }
        self.directory.free(page);
        let is_update = transaction.is_update();
        if decision == Vote::Commit && is_update {
            let writes = self.effects(transaction).expect(KEPT_AS_IT_WAS).writes;
            for (key, value) in writes {
                self.write(key, value);
            }
        }
        let name = transaction.name();
        if decision == Vote::Abort {
            // Another shard may have had changes pending: if it was a cut, it is no moment.
            self.held.drop_of(transaction.id(), name.client);
        }
        let client = self.clients.client_mut(name.client).expect("it has something pending");
        client.pending.transactions -= load.transactions;
        client.pending.locks -= load.locks;
        client.pending.bytes -= load.bytes;
        let state = if decision == Vote::Commit && is_update {
            client.unsettled += 1;
            State::Unsettled(participants.iter().copied().filter(|shard| *shard != self.settings.shard).collect())
        } else {
            State::Ended(decision)
        };
        self.clients.set(name, Entry { id: transaction.id(), state }, &mut self.directory);
    }

    /// Says which transactions have ended here. That changes nothing, and stays so.
    fn on_check_ended(&self, asked: &EndedStatement) -> Reply {
        let EndedStatement { client, session, first, .. } = *asked;
        let mut gone = EndedStatement::none(client, session, first);
        for number in asked.numbers() {
            let is_gone = match self.clients.find(Name { client, session, number }) {
                Known::Entry(entry) => !matches!(entry.state, State::Pending(_)) || broken(Mutant::PendingCalledEnded),
                Known::Forgotten => true,
                // It may still come.
                Known::New => broken(Mutant::UnseenCalledEnded),
            };
            if is_gone {
                gone.add(number);
            }
        }
        let answer = Answer::Gone(gone);
        Reply { statement: answer.statement(), answer }
    }

    /// Committed transactions that other shards may ask for: of each session the first ones, and these shards.
    pub fn unsettled(&self) -> impl Iterator<Item = (EndedStatement, &[ShardId])> {
        self.clients.unsettled()
    }

    fn on_settle(&mut self, client: ClientId, session: u64, below: u64) -> Reply {
        if self.settings.cluster.permission(client).is_none() {
            return refused(Refusal::UnknownClient);
        }
        // A session for which there is no room is forgotten as a whole, so that nothing of it is pending, or will be.
        let below = match self.clients.make_room(client, session, &mut self.directory) {
            true => self.clients.settle(client, session, below, &mut self.directory).expect("room was made for it"),
            false => below,
        };
        settled(SettledStatement { client, session, below })
    }

    fn on_forget(&mut self, statement: &SettledStatement, others: &[Signers]) -> Reply {
        let shards: Vec<ShardId> = others.iter().map(|signers| signers.shard).collect();
        let SettledStatement { client, session, below } = *statement;
        self.clients.forget(client, session, below, &shards, &mut self.directory);
        Reply { answer: Answer::Settled(*statement), statement: None }
    }
}

/// The first rows of a range as they were when `before` began to be noted: so many, or fewer.
fn moment_page(rows: &Rows, before: &Before, (range, direction): (&KeyRange, Direction), rows_max: usize) -> MomentPage {
    let over = direction.of(before.range::<Key, _>(range.low()..range.high())).map(|(key, value)| (key, value.as_ref()));
    let mut page = MomentPage::default();
    let (mut looked_at, mut bytes) = (0, 0);
    for (key, value) in merged(direction, over, rows.range_in(direction, range)) {
        if page.rows.len() == rows_max || looked_at == MOMENT_LOOKED_AT_MAX || bytes >= MOMENT_PAGE_BYTES {
            return page;
        }
        looked_at += 1;
        if let Some(value) = value {
            bytes += row_bytes(key, value);
            page.rows.push((key_of(key), value_of(value)));
        }
        page.last = Some(key_of(key));
    }
    MomentPage { last: None, ..page }
}

/// What a client is given of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Given {
    Found,
    InTheWay,
}

/// Who asks for a vote.
#[derive(Clone, Copy)]
enum Asked<'a> {
    ByAuthor,
    /// With another shard's votes to commit, whose signatures have been checked.
    ToFinish(Option<&'a Signers>),
}

fn key_of(bytes: &[u8]) -> Key {
    Key::copied(bytes).expect("only keys are kept")
}

fn value_of(bytes: &[u8]) -> Value {
    Value::copied(bytes).expect("only values are kept")
}

fn refused(refusal: Refusal) -> Reply {
    Reply { answer: Answer::Refused(refusal), statement: None }
}

/// The answer to whoever asks for a vote on a transaction in which these shards take part.
fn voted(asker: ClientId, (transaction, participants): (&Transaction, &[ShardId]), asked: Asked<'_>, verdict: Verdict) -> Reply {
    // §3.5.1, §3.5.2: only what changes several shards needs signed votes, and what others finish.
    let is_proof = participants.len() > 1 && (transaction.is_update() || matches!(asked, Asked::ToFinish(_)));
    let verdict = if asker == transaction.name().client { verdict } else { verdict.without_results() };
    let answer = Answer::Voted(transaction.id(), verdict);
    let statement = answer.statement().filter(|_| is_proof);
    Reply { answer, statement }
}

fn settled(statement: SettledStatement) -> Reply {
    let answer = Answer::Settled(statement);
    Reply { statement: answer.statement(), answer }
}

fn ended(id: TransactionId, decision: Vote) -> Reply {
    Reply { answer: Answer::Ended(id, decision), statement: None }
}

/// Checkpoints, and how they are read back.
impl Executor {
    /// The state after the last batch: its digest, and the pages that were changed since this was last called.
    pub fn checkpoint(&mut self) -> Checkpoint {
        let cluster = self.settings.cluster.id();
        let mut buffer = Vec::new();
        let mut pages = Vec::new();
        for number in self.directory.take_changed() {
            buffer.clear();
            self.encode_page(number, &mut buffer);
            self.tree.set(number, page_digest(cluster, number, &buffer));
            pages.push((number, Bytes::copy_from_slice(&buffer)));
        }
        let head = self.head();
        Checkpoint { digest: head.digest(cluster), head, pages }
    }

    /// Hashes the next pages that were not changed since the last checkpoint, about so many bytes of them, and gives the first whose digest is not that
    /// of then: something changed it that is no transaction.
    pub(crate) fn scrub(&mut self, bytes_max: usize) -> Option<WrongPage> {
        let (cluster, count) = (self.settings.cluster.id(), self.directory.len());
        let (mut buffer, mut bytes) = (Vec::new(), 0);
        for _ in 0..count {
            if bytes >= bytes_max {
                break;
            }
            let at = self.scrubbed.checked_rem(count).unwrap_or_default();
            self.scrubbed = at + 1;
            let number = PageNumber(u32::try_from(at).expect("pages are counted with 32 bits"));
            // What was changed is hashed at the next checkpoint, and compared there.
            let Some(agreed) = self.tree.digest(0, at).copied().filter(|_| !self.directory.is_changed(number)) else {
                bytes += PAGE_LOOKED_AT_BYTES;
                continue;
            };
            buffer.clear();
            self.encode_page(number, &mut buffer);
            bytes += buffer.len() + PAGE_LOOKED_AT_BYTES;
            let own = page_digest(cluster, number, &buffer);
            if own != agreed {
                return Some(WrongPage { number, owner: self.directory.owner(number).clone(), own, agreed });
            }
        }
        None
    }

    /// Has the next checkpoint hash a page anew.
    pub(crate) fn hash_again(&mut self, number: PageNumber) {
        self.directory.change(number);
    }

    /// Flips a bit in the value of `key`, and notes that nowhere: for tests and drills. Gives whether there is a value with a bit to flip.
    pub fn flip_bit_at_rest(&mut self, key: &Key, bit: usize) -> bool {
        self.rows.flip_bit(key, bit)
    }

    /// What a page holds, for people.
    pub(crate) fn place_of(page: &Bytes, cluster: types::ClusterId) -> String {
        let mut reader = Reader::new(page.get(1..).map_or_else(Bytes::new, |_| page.slice(1..)), cluster);
        match page.first() {
            Some(&ROWS) => Key::decode(&mut reader).map_or_else(|_| "rows".to_owned(), |low| format!("the rows from {low} on")),
            Some(&CLIENT) => "what is kept of a client".to_owned(),
            Some(&SESSION) => "what is kept of a session".to_owned(),
            Some(&PENDING) => "a pending transaction".to_owned(),
            _ => "a page that is free".to_owned(),
        }
    }

    fn head(&mut self) -> Head {
        Head {
            shard: self.settings.shard,
            structural: self.settings.structural,
            sequence: self.sequence,
            pages: u32::try_from(self.directory.len()).expect("pages are counted with 32 bits"),
            root: self.tree.root(),
        }
    }

    fn encode_page(&self, number: PageNumber, out: &mut Vec<u8>) {
        match self.directory.owner(number) {
            Owner::Free => {}
            Owner::Rows(low) => {
                out.push(ROWS);
                self.rows.encode_page(low, out);
            }
            Owner::Client(client) => {
                out.push(CLIENT);
                self.clients.encode_client(*client, out);
            }
            Owner::Session(client, session) => {
                out.push(SESSION);
                self.clients.encode_session(*client, *session, out);
            }
            Owner::Pending => {
                out.push(PENDING);
                let pending = &self.pending[&number];
                pending.since.encode(out);
                pending.transaction.encode(out);
            }
        }
    }

    /// The executor whose checkpoint this is: `pages` are all its pages, by number, free ones empty. What they hold has been checked
    /// against the checkpoint's digest.
    ///
    /// # Errors
    /// When they are no checkpoint of an executor with these settings.
    pub fn install(settings: Settings, head: &Head, pages: &[Bytes]) -> Result<Self, DecodeError> {
        let cluster = settings.cluster.id();
        if head.shard != settings.shard || head.structural != settings.structural || head.pages as usize != pages.len() {
            return Err(DecodeError::NotCanonical("a checkpoint of this shard"));
        }
        let mut executor = Self::new(settings);
        (executor.rows, executor.sequence) = (Rows::default(), head.sequence);
        let mut owners = vec![Owner::Free; pages.len()];
        // Sessions come after their clients, and pending transactions after their sessions and all rows.
        for kind in [ROWS, CLIENT, SESSION, PENDING] {
            for (at, bytes) in pages.iter().enumerate().filter(|(_, bytes)| bytes.first() == Some(&kind)) {
                let number = PageNumber(u32::try_from(at).expect("the head counts them with 32 bits"));
                let mut reader = Reader::new(bytes.slice(1..), cluster);
                owners[at] = executor.install_page(kind, number, &mut reader)?;
                reader.finish()?;
            }
        }
        if pages.iter().zip(&owners).any(|(bytes, owner)| bytes.is_empty() != (*owner == Owner::Free)) || !executor.rows.is_whole() {
            return Err(DecodeError::NotCanonical("a checkpoint"));
        }
        for (at, bytes) in pages.iter().enumerate() {
            let number = PageNumber(u32::try_from(at).expect("the head counts them with 32 bits"));
            executor.tree.set(number, page_digest(cluster, number, bytes));
        }
        executor.directory = Directory::of(owners);
        if executor.head() != *head {
            return Err(DecodeError::NotCanonical("a checkpoint's digest"));
        }
        Ok(executor)
    }

    fn install_page(&mut self, kind: u8, number: PageNumber, reader: &mut Reader) -> Result<Owner, DecodeError> {
        Ok(match kind {
            ROWS => Owner::Rows(self.rows.decode_page(number, reader)?),
            CLIENT => Owner::Client(self.clients.decode_client(number, reader)?),
            SESSION => {
                let (client, session) = self.clients.decode_session(number, reader)?;
                Owner::Session(client, session)
            }
            _ => {
                let since = u64::decode(reader)?;
                let transaction = Transaction::decode(reader)?.detached(self.settings.cluster.id());
                let is_its = |entry: &Entry| entry.id == transaction.id() && entry.state == State::Pending(number);
                if !matches!(self.clients.find(transaction.name()), Known::Entry(entry) if is_its(entry)) {
                    return Err(DecodeError::NotCanonical("a pending transaction"));
                }
                let load = Load { transactions: 1, locks: self.locks_of(&transaction).len(), bytes: transaction.encoded().len() };
                self.hold(number, transaction, load, since);
                Owner::Pending
            }
        })
    }
}
