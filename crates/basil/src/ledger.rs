//! What a replica knows: of every key, who wrote, means to write and has read it; of every transaction, how far it is.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use crate::transaction::Transaction;
use foldhash::{HashMap, HashMapExt as _};
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use store::{KeyMeta, StorageBackend, Store, StoreError, Version};
use types::codec::Encode as _;
use types::{ClientId, Cluster, Key, Party, ReplicaId, ShardId, Timestamp, TransactionId};

use crate::certificate::{Certificate, Decision, LoggedStatement, Vote};
use crate::check::{AbortReason, Dependency};
use crate::forgotten::{End, Forgotten, Trace};
use crate::in_order::{At, InOrder};
use crate::message::KeyVersion;
use crate::record::{Record, TRACES_MAX};

/// How far ahead reading is allowed at once, in nanoseconds. A replica that comes back votes against writes for about as long;
/// one that lives writes a small record as often.
const READABLE_STEP_NS: u64 = 500_000_000;

/// So many keys are looked up together when transactions are forgotten.
const FORGET_KEYS: usize = 512;

/// A transaction as this replica knows it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub transaction: Transaction,
    /// Which it is of all that were ever entered here.
    number: u64,
    /// The replica's vote, once cast: final.
    pub vote: Option<Vote>,
    /// Why it was voted down, as far as this process remembers.
    pub cause: Option<AbortReason>,
    /// Whether its reads and writes count in the checks of others.
    pub prepared: bool,
    /// How many undecided transactions its vote waits for.
    pub waiting_for: usize,
    /// Transactions whose votes wait for this one.
    pub dependents: Vec<TransactionId>,
    /// The decision this replica, being of the logging shard, has written down, and in which view.
    pub logged: Option<(Decision, u32)>,
    /// How far its elections are, once there are any.
    pub fallback: Option<Box<Fallback>>,
    /// How it ended.
    pub decision: Option<Decision>,
    /// The proof of that, while it is fresh.
    pub certificate: Option<Arc<Certificate>>,
    /// Who waits to hear the vote.
    pub askers: SmallVec<[Party; 1]>,
    /// Since when it is known.
    pub since: Time,
    /// Whose share it counts against until it is decided.
    pub payer: Payer,
    /// Whether it waits for its author, or for evidence that its author sent it.
    pub awaits_author: bool,
    /// Whether it is known to be its author's: brought by it, or shown to be.
    pub authored: bool,
    /// Until when its author owes for it, if somebody else ended it and the author has not come since.
    pub left: Option<Time>,
    /// Which of those who tell of its commit have told this replica, as far as this process remembers.
    pub told_by: Voters,
    /// Whether this process has told the others of its commit.
    pub is_passed_on: bool,
    /// Whether its turn here is set already because somebody wants to finish what read from it.
    pub is_hurried: bool,
}

impl Entry {
    pub fn new(transaction: Transaction, number: u64, since: Time, payer: Payer) -> Self {
        Self {
            transaction,
            number,
            vote: None,
            cause: None,
            prepared: false,
            waiting_for: 0,
            dependents: Vec::new(),
            logged: None,
            fallback: None,
            decision: None,
            certificate: None,
            askers: SmallVec::new(),
            since,
            payer,
            awaits_author: false,
            authored: false,
            left: None,
            told_by: Voters::default(),
            is_passed_on: false,
            is_hurried: false,
        }
    }

    /// The view this replica is in: 0 until it elects or follows a leader.
    pub fn view(&self) -> u32 {
        self.fallback.as_ref().map_or(0, |fallback| fallback.view)
    }

    /// What it has to say of the decision it has written down.
    pub fn logged_statement(&self) -> Option<LoggedStatement> {
        let (decision, view_decision) = self.logged?;
        Some(LoggedStatement { id: self.transaction.id(), decision, view_decision, view_current: self.view() })
    }

    /// How it ended, and where this replica has logged or can log that: not where it has logged otherwise, or has left the view; nor
    /// where it will not remember having said so.
    pub fn end(&self) -> Option<End> {
        let (decision, view) = (self.decision?, self.view());
        let is_consistent = self.logged.map_or(view == 0, |logged| logged == (decision, view));
        Some(End { decision, view: (is_consistent && !self.is_hearsay()).then_some(view) })
    }

    /// Whether it aborted without this replica having said anything of it: then it is forgotten altogether.
    fn is_hearsay(&self) -> bool {
        self.decision == Some(Decision::Abort) && self.vote.is_none() && self.logged.is_none() && !broken(Mutant::FabricatedAbortKept)
    }

    /// Its place among those who read or mean to write a key.
    fn at(&self) -> At {
        (self.transaction.timestamp(), self.number)
    }

    /// Rises to `view`, or stays where it is.
    pub fn rise(&mut self, view: u32, now: Time) {
        if view > self.view() {
            let fallback = self.fallback.get_or_insert_default();
            (fallback.view, fallback.entered) = (view, now);
        }
    }
}

/// How far a transaction's elections are at one replica (§5).
#[derive(Debug, Default)]
pub(crate) struct Fallback {
    /// The view the replica is in.
    pub view: u32,
    /// Since when, as far as this process remembers.
    pub entered: Time,
    /// Who wants to hear what a leader decides.
    pub interested: SmallVec<[Party; 1]>,
}

impl Entry {
    /// Whether others here wait for its end, or it has been promised something that must be kept: all but a vote to
    /// abort that nothing hangs on.
    fn concerns_this_replica(&self) -> bool {
        self.vote != Some(Vote::Abort) || self.prepared || self.logged.is_some() || !self.dependents.is_empty()
    }
}

/// Who means to write a key, and who has read it.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    /// Prepared, undecided writers.
    writers: InOrder<()>,
    /// Prepared and committed readers, each with the version it read.
    readers: InOrder<Timestamp>,
}

impl KeyMeta for KeyState {
    fn is_empty(&self) -> bool {
        self.writers.is_empty() && self.readers.is_empty()
    }

    fn touch(&self) -> u64 {
        self.readers.oldest().map_or(0, |(timestamp, _)| timestamp.time)
    }
}

/// The newest reader of each key, whether its transaction ever comes to prepare or not (§4.1, `RTS`).
///
/// Keys share a fixed number of buckets, so the memory is fixed too, and nobody who reads much can make it forget.
/// A key whose bucket was raised by another key's reader may see a write voted down that need not have been: that
/// takes two clients at the same moment and one chance in a million. Nobody can aim at a bucket without the seed.
struct ReadTimestamps {
    seed: u64,
    /// Time and client of each.
    newest: Vec<[u64; 2]>,
}

impl ReadTimestamps {
    fn new(seed: u64, buckets: usize) -> Self {
        // All zero, so the system gives the memory only as it is used.
        Self { seed, newest: vec![[0; 2]; buckets.max(1)] }
    }

    fn bucket(&self, key: &Key) -> usize {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(key.as_bytes());
        usize::try_from(hasher.finish() % self.newest.len() as u64).expect("a bucket's number is small")
    }

    fn get(&self, key: &Key) -> Timestamp {
        let [time, client] = self.newest[self.bucket(key)];
        Timestamp::new(time, ClientId(client))
    }

    fn raise(&mut self, key: &Key, timestamp: Timestamp) {
        let bucket = self.bucket(key);
        let [time, client] = &mut self.newest[bucket];
        if Timestamp::new(*time, ClientId(*client)) < timestamp {
            (*time, *client) = (timestamp.time, timestamp.client.0);
        }
    }
}

/// Everything a replica knows.
pub(crate) struct Ledger<M: StorageBackend> {
    /// With each key it keeps who reads and writes it.
    pub store: Store<M, KeyState>,
    cluster: Arc<Cluster>,
    shard: ShardId,
    read_timestamps: ReadTimestamps,
    /// Writes below were perhaps read past in an earlier life, which this one does not remember, in nanoseconds.
    floor: u64,
    /// Others were told that nothing new is judged below, in nanoseconds.
    horizon: u64,
    /// Nobody reads at or above it before a higher one is written down, in nanoseconds: after a crash it is the floor.
    ceiling: u64,
    /// Boxed, so that a table that grows moves little: with entries in place, a shard stood still for a third of a second.
    entries: HashMap<TransactionId, Box<Entry>>,
    by_timestamp: BTreeMap<At, TransactionId>,
    /// Up to where [`Ledger::forget_some`] has come.
    looked_at: At,
    /// How many transactions were ever entered.
    entered: u64,
    /// The prepared or committed transaction of each timestamp.
    holders: HashMap<Timestamp, TransactionId>,
    undecided: Load,
    undecided_of: BTreeMap<Payer, Load>,
    /// The highest timestamp ever entered, in nanoseconds.
    highest: u64,
    forgotten: Forgotten,
    /// Whether an earlier life has written down what it had forgotten.
    knows_forgotten: bool,
}

/// Whose share undecided work counts against: whoever brought it, who need not be the author it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Payer {
    Client(ClientId),
    Replica(ReplicaId),
}

impl From<Party> for Payer {
    fn from(party: Party) -> Self {
        match party {
            Party::Client(client, _) => Self::Client(client),
            Party::Replica(replica) => Self::Replica(replica),
        }
    }
}

/// How much undecided work there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub transactions: usize,
    pub bytes: usize,
}

impl<M: StorageBackend> Ledger<M> {
    pub fn new(cluster: Arc<Cluster>, shard: ShardId, store: Store<M>, seed: u64, read_timestamps: usize) -> Self {
        Self {
            store: store.with_key_meta(),
            cluster,
            shard,
            read_timestamps: ReadTimestamps::new(seed, read_timestamps),
            floor: 0,
            horizon: 0,
            ceiling: 0,
            entries: HashMap::new(),
            by_timestamp: BTreeMap::new(),
            looked_at: (Timestamp::ZERO, 0),
            entered: 0,
            holders: HashMap::new(),
            undecided: Load::default(),
            undecided_of: BTreeMap::new(),
            highest: 0,
            forgotten: Forgotten::new(seed),
            knows_forgotten: false,
        }
    }

    /// Whether `key` is of this shard.
    pub fn holds(&self, key: &Key) -> bool {
        self.cluster.shard_of(key) == self.shard
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// An earlier life may have let keys be read up to this.
    pub fn was_readable(&mut self, up_to: u64) {
        self.floor = self.floor.max(up_to);
        self.ceiling = self.ceiling.max(up_to);
    }

    /// Before keys are read at `time`: writes down that they may be, and some more. The law that nothing leaves the node before
    /// everything written is durable does the rest, so that no read timestamp is ever forgotten that a reader could rely on,
    /// whatever the clock says after a crash.
    pub fn make_readable(&mut self, time: u64) {
        if time >= self.ceiling {
            self.ceiling = time.saturating_add(READABLE_STEP_NS);
            let record = Record::Readable { up_to: self.ceiling };
            if !broken(Mutant::ReadCeilingUnlogged) {
                self.store.append_with(|bytes| record.encode(bytes));
            }
        }
    }

    /// Nothing new is judged below, in nanoseconds.
    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    /// From now on nothing new is judged below `to`, whatever clocks say: it is written down.
    pub fn raise_horizon(&mut self, to: u64) {
        if to > self.horizon {
            self.horizon = to;
            let record = Record::Horizon { below: to };
            if !broken(Mutant::LowWatermarkUnlogged) {
                self.store.append_with(|bytes| record.encode(bytes));
            }
        }
    }

    /// An earlier life has promised to judge nothing new below this.
    pub fn had_horizon(&mut self, below: u64) {
        self.horizon = self.horizon.max(below);
    }

    /// Writes ceiling and horizon down again: the journal's part that held them may be let go. So what names are hashed with
    /// stands at the beginning of the journal, whatever part that is by then.
    pub fn write_bounds(&mut self) {
        let (complete_from, _) = self.forgotten.latest();
        let forgotten = Record::Forgotten { salt: self.forgotten.salt(), complete_from, traces: Vec::new() };
        for record in [Record::Readable { up_to: self.ceiling }, Record::Horizon { below: self.horizon }, forgotten] {
            self.store.append_with(|bytes| record.encode(bytes));
        }
    }

    /// Writes down what was forgotten: a part of the journal that held some of it is about to be let go.
    pub fn write_forgotten(&mut self) {
        let (complete_from, traces) = self.forgotten.latest();
        for traces in traces.chunks(TRACES_MAX) {
            let record = Record::Forgotten { salt: self.forgotten.salt(), complete_from, traces: traces.to_vec() };
            self.store.append_with(|bytes| record.encode(bytes));
        }
    }

    /// An earlier life has forgotten these, and nothing else that is neither before that time nor in the journal.
    pub fn had_forgotten(&mut self, salt: u64, complete_from: u64, traces: Vec<Trace>) {
        self.forgotten.restore(salt, complete_from, traces);
        self.knows_forgotten = true;
    }

    /// Forgets a transaction, and takes over committed versions of its keys ([`crate::rest`]).
    pub fn rest(&mut self, id: TransactionId, end: Option<Decision>, versions: Vec<(Key, KeyVersion)>) {
        if let Some(entry) = self.entries.get(&id) {
            self.forgotten.note(&entry.transaction, end.map(|decision| End { decision, view: None }));
        }
        self.forget(id);
        for (key, taken) in versions {
            self.highest = self.highest.max(taken.version.time);
            self.store.commit(&key, Version { timestamp: taken.version, value: taken.value.map(|value| value.detached()) });
        }
    }

    // What transactions are known.

    pub fn entry(&self, id: TransactionId) -> Option<&Entry> {
        self.entries.get(&id).map(Box::as_ref)
    }

    pub fn entry_mut(&mut self, id: TransactionId) -> Option<&mut Entry> {
        self.entries.get_mut(&id).map(Box::as_mut)
    }

    /// The entry of `transaction`, made now if there is none.
    pub fn enter(&mut self, transaction: &Transaction, now: Time, payer: Payer) -> &mut Entry {
        let id = transaction.id();
        if !self.entries.contains_key(&id) {
            self.highest = self.highest.max(transaction.timestamp().time);
            let bytes = transaction.encoded_bytes();
            for load in [&mut self.undecided, self.undecided_of.entry(payer).or_default()] {
                load.transactions += 1;
                load.bytes += bytes;
            }
            self.entered += 1;
            self.by_timestamp.insert((transaction.timestamp(), self.entered), id);
            self.entries.insert(id, Box::new(Entry::new(transaction.detached(), self.entered, now, payer)));
        }
        self.entries.get_mut(&id).expect("it was there or has just been entered")
    }

    pub fn known(&self) -> usize {
        self.entries.len()
    }

    pub fn undecided(&self) -> Load {
        self.undecided
    }

    pub fn undecided_of(&self, payer: Payer) -> Load {
        self.undecided_of.get(&payer).copied().unwrap_or_default()
    }

    /// The highest timestamp ever entered, in nanoseconds: no record holds a higher one.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    fn release_quota(&mut self, payer: Payer, bytes: usize) {
        self.undecided.transactions -= 1;
        self.undecided.bytes -= bytes;
        if let Some(load) = self.undecided_of.get_mut(&payer) {
            load.transactions -= 1;
            load.bytes -= bytes;
            if load.transactions == 0 {
                self.undecided_of.remove(&payer);
            }
        }
    }

    /// Every undecided transaction, oldest first.
    pub fn undecided_ids(&self) -> Vec<TransactionId> {
        let ids = self.by_timestamp.values().copied();
        ids.filter(|id| self.entries.get(id).is_some_and(|entry| entry.decision.is_none())).collect()
    }

    /// Another transaction with this very timestamp that is prepared or committed here.
    pub fn holder_of(&self, timestamp: Timestamp, id: TransactionId) -> Option<TransactionId> {
        self.holders.get(&timestamp).copied().filter(|other| *other != id)
    }

    /// The committed transaction that wrote version `timestamp`, as far as it is remembered.
    pub fn writer_at(&self, timestamp: Timestamp) -> Option<TransactionId> {
        let holder = self.holders.get(&timestamp).copied();
        holder.filter(|id| self.entries.get(id).is_some_and(|entry| entry.decision == Some(Decision::Commit)))
    }

    /// L3: what is known of a transaction that wrote `version` of `key`, or is said to have. One that is not known
    /// is not valid: a version's timestamp alone does not tell who wrote it.
    pub fn dependency(&self, id: TransactionId, key: &Key, version: Timestamp) -> Dependency {
        let Some(entry) = self.entries.get(&id) else { return Dependency::Invalid };
        let is_other = entry.transaction.timestamp() != version || entry.transaction.write_of(key).is_none();
        if is_other && !broken(Mutant::DependencyOfOther) {
            return Dependency::Invalid;
        }
        match entry.decision {
            Some(Decision::Commit) => Dependency::Committed,
            Some(Decision::Abort) => Dependency::Aborted,
            None if entry.prepared => Dependency::Prepared,
            None => Dependency::Invalid,
        }
    }

    // What is known of a key.

    /// L7: what `take` makes of the newest committed version of `key` below `before`, and the newest undecided writer below it.
    pub fn newest_before<T>(
        &mut self,
        key: &Key,
        before: Timestamp,
        take: impl FnOnce(&Version) -> T,
    ) -> Result<(Option<T>, Option<At>), StoreError> {
        self.store.with_latest_before(key, before, |committed, state| (committed.map(take), state.writers.newest_below(before)))
    }

    /// L10: a prepared or committed transaction above `timestamp` that read a version below it.
    pub fn reader_past(&self, key: &Key, timestamp: Timestamp) -> Option<TransactionId> {
        let mut readers = self.store.meta(key)?.readers.above(timestamp);
        readers.find(|(_, version)| *version < timestamp).map(|(at, _)| self.name_of(*at))
    }

    /// The name of a transaction that reads or means to write a key.
    pub fn name_of(&self, at: At) -> TransactionId {
        *self.by_timestamp.get(&at).expect("who is forgotten counts at no key any more")
    }

    /// L12: the newest reader of `key`, or of a key that shares its bucket.
    pub fn read_timestamp(&self, key: &Key) -> Timestamp {
        self.read_timestamps.get(key)
    }

    /// Remembers that `key` was read at `timestamp`.
    pub fn raise_read_timestamp(&mut self, key: &Key, timestamp: Timestamp) {
        self.read_timestamps.raise(key, timestamp);
    }

    // How a transaction moves on.

    /// L14: its reads and writes now count in the checks of others.
    pub fn prepare(&mut self, id: TransactionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.prepared {
            return;
        }
        entry.prepared = true;
        if broken(Mutant::PreparedUnseen) {
            return;
        }
        let (transaction, at) = (entry.transaction.clone(), entry.at());
        let means_to_write = entry.decision != Some(Decision::Commit);
        self.holders.entry(at.0).or_insert(id);
        for read in transaction.reads() {
            if self.holds(&read.key) {
                self.store.update_meta(&read.key, |state| state.readers.add(at, read.version));
            }
        }
        for write in transaction.writes().iter().filter(|_| means_to_write) {
            if self.holds(&write.key) {
                self.store.update_meta(&write.key, |state| state.writers.add(at, ()));
            }
        }
    }

    /// L17: its reads and writes count no more.
    pub fn unprepare(&mut self, id: TransactionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !std::mem::take(&mut entry.prepared) {
            return;
        }
        let (transaction, at) = (entry.transaction.clone(), entry.at());
        // What a committed one wrote has become versions.
        let means_to_write = entry.decision != Some(Decision::Commit);
        if self.holders.get(&at.0) == Some(&id) {
            self.holders.remove(&at.0);
        }
        for read in transaction.reads() {
            self.store.update_meta_if_present(&read.key, |state| state.readers.remove(at));
        }
        for write in transaction.writes().iter().filter(|_| means_to_write) {
            self.store.update_meta_if_present(&write.key, |state| state.writers.remove(at));
        }
    }

    /// How it ended. A commit's writes become versions; its reads go on counting. Gives the transactions whose
    /// votes waited for it.
    pub fn conclude(&mut self, id: TransactionId, decision: Decision, certificate: Option<Arc<Certificate>>) -> Vec<TransactionId> {
        match decision {
            Decision::Commit => self.prepare(id),
            Decision::Abort => self.unprepare(id),
        }
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        let (first, payer) = (entry.decision.replace(decision).is_none(), entry.payer);
        entry.certificate = certificate;
        let dependents = std::mem::take(&mut entry.dependents);
        let (transaction, at) = (entry.transaction.clone(), entry.at());
        let timestamp = at.0;
        if first {
            self.release_quota(payer, transaction.encoded_bytes());
        }
        if decision == Decision::Commit {
            self.holders.insert(timestamp, id);
            self.store.prefetch(transaction.writes().iter().map(|write| &write.key));
            if broken(Mutant::CommittedReaderMissed) {
                transaction.reads().iter().for_each(|read| self.store.update_meta_if_present(&read.key, |state| state.readers.remove(at)));
            }
            for write in transaction.writes() {
                if self.holds(&write.key) {
                    let version = Version { timestamp, value: write.value.clone() };
                    self.store.commit_with_meta(&write.key, version, |state| state.writers.remove(at));
                }
            }
        }
        dependents
    }

    /// Forgets every decided transaction below `watermark`, and those that were voted down and concern nobody here: down
    /// there no other vote is cast any more, so none can differ from the one forgotten. Gives the other undecided ones, which
    /// are never forgotten.
    pub fn forget_below(&mut self, watermark: Timestamp) -> Vec<TransactionId> {
        self.looked_at = (watermark, 0); // Lower than before, if the clock was set back: what is above grows old again.
        let below: Vec<TransactionId> = self.by_timestamp.range(..(watermark, 0)).map(|(_, id)| *id).collect();
        below.into_iter().filter(|id| !self.forget_ended(*id)).collect()
    }

    /// Takes a step of what [`Ledger::forget_below`] would do, looking at `at_most` transactions, at least two, so that this need not be
    /// done all at once while others wait. Gives whether more steps are left. Those that are entered late, behind the last step, are left
    /// to [`Ledger::forget_below`].
    pub fn forget_some(&mut self, watermark: Timestamp, at_most: usize) -> bool {
        let (from, to) = (self.looked_at, (watermark, 0));
        if from >= to {
            return false; // Also when the clock was set back.
        }
        let at_most = at_most.max(2); // The first may be the last of the step before.
        let some: Vec<(At, TransactionId)> = self.by_timestamp.range(from..to).take(at_most).map(|(at, id)| (*at, *id)).collect();
        self.looked_at = some.last().filter(|_| some.len() == at_most).map_or(to, |(at, _)| *at);
        let mut rest = some.as_slice();
        while !rest.is_empty() {
            // As many together as stay near until it is their turn.
            let mut keys = 0;
            let reads = |id: &TransactionId| self.entries.get(id).map_or(0, |entry| entry.transaction.reads().len());
            let fits = |(_, id): &&(At, TransactionId)| {
                keys += reads(id);
                keys <= FORGET_KEYS
            };
            let (together, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let reads = together.iter().filter_map(|(_, id)| self.entries.get(id)).flat_map(|entry| entry.transaction.reads());
            self.store.prefetch(reads.map(|read| &read.key));
            for (_, id) in together {
                self.forget_ended(*id);
            }
            rest = later;
        }
        self.looked_at < to
    }

    /// Forgets what lies below the watermark, unless it is undecided and of concern. Gives whether it did.
    fn forget_ended(&mut self, id: TransactionId) -> bool {
        let is_kept = |entry: &Entry| entry.decision.is_none() && entry.concerns_this_replica() && !broken(Mutant::UndecidedForgotten);
        let is_forgotten = !self.entry(id).is_some_and(is_kept);
        if is_forgotten {
            self.forget(id);
        }
        is_forgotten
    }

    /// Earlier lives may have forgotten anything up to `time`, if they have not written down what.
    pub fn may_have_forgotten_up_to(&mut self, time: u64) {
        if !self.knows_forgotten {
            self.forgotten.anything_up_to(time);
        }
    }

    /// Whether this replica has, in all its lives, said nothing of `transaction` that it does not remember, but perhaps a vote to abort.
    pub fn remembers(&self, transaction: &Transaction) -> bool {
        !self.forgotten.may_have(transaction)
    }

    /// How `id` ended, as far as this replica remembers.
    pub fn end_of(&self, id: TransactionId) -> Option<End> {
        self.forgotten.end_of(id).or_else(|| {
            let entry = self.entries.get(&id)?;
            let End { decision, view } = entry.end()?;
            // Where it may have been forgotten before, and has come back, what it once logged is not known.
            Some(End { decision, view: view.filter(|_| self.remembers(&entry.transaction)) })
        })
    }

    /// Whether an earlier life has written down what it had forgotten.
    pub fn knows_forgotten(&self) -> bool {
        self.knows_forgotten
    }

    /// Forgets one transaction altogether.
    pub fn forget(&mut self, id: TransactionId) {
        self.unprepare(id);
        let end = self.end_of(id);
        if let Some(entry) = self.entries.remove(&id) {
            match entry.decision {
                None => self.release_quota(entry.payer, entry.transaction.encoded_bytes()),
                Some(_) if entry.is_hearsay() => {}
                Some(_) => self.forgotten.note(&entry.transaction, end),
            }
            self.by_timestamp.remove(&entry.at());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::transaction::Write;
    use store::{Memory, Options};
    use types::{ClusterId, Placement, Value};

    use super::*;

    const AUTHOR: ClientId = ClientId(1);

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, AUTHOR)
    }

    /// Transactions at 0 to 99, of which every seventh is undecided, and one that came late.
    fn ledger() -> Ledger<Memory> {
        let keys = (0..6).map(|index| [index; 32]).collect();
        let cluster = Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], vec![]);
        let cluster = Arc::new(cluster.expect("the parts fit"));
        let store = Store::open(Memory::new("ledger"), Options::default()).expect("a new store opens");
        let mut ledger = Ledger::new(cluster, ShardId(0), store, 7, 16);
        assert!(ledger.store.replay().expect("it is new").is_none());
        (0..100).for_each(|time| enter(&mut ledger, time, time % 7 != 0));
        ledger
    }

    fn enter(ledger: &mut Ledger<Memory>, time: u64, is_decided: bool) {
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(ledger.cluster.id(), at(time), vec![], vec![write]).expect("it is small");
        ledger.enter(&transaction, Time(0), Payer::Client(AUTHOR)).vote = Some(Vote::Commit);
        if is_decided {
            ledger.conclude(transaction.id(), Decision::Commit, None);
        }
    }

    fn times(ledger: &Ledger<Memory>) -> Vec<u64> {
        ledger.by_timestamp.keys().map(|(timestamp, _)| timestamp.time).collect()
    }

    #[test]
    fn steps_forget_what_would_be_forgotten_at_once() {
        let mut at_once = ledger();
        let kept = at_once.forget_below(at(90));
        assert_eq!(kept.len(), 13);
        // A step of seven ends at an undecided one, one of two must get beyond the last of the step before.
        for at_most in [0, 2, 7, 8, 1_000] {
            let mut ledger = ledger();
            let mut steps = 1;
            while ledger.forget_some(at(90), at_most) {
                steps += 1;
            }
            assert_eq!(times(&ledger), times(&at_once), "{at_most} at most");
            assert!(at_most > 100 || steps > 10, "{steps} steps");
            assert!(!ledger.forget_some(at(90), at_most) && !ledger.forget_some(at(50), at_most), "also when the clock is set back");
            // Who comes late, and behind, is left to the end.
            enter(&mut ledger, 3, true);
            while ledger.forget_some(at(91), at_most) {}
            assert!(times(&ledger).contains(&3) && !times(&ledger).contains(&90));
            assert_eq!(ledger.forget_below(at(91)).len(), 13);
            assert!(!times(&ledger).contains(&3));
        }
    }
}
