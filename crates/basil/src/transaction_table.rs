//! What a replica knows: of every key, who wrote, means to write and has read it; of every transaction, how far it is.

mod key_state;
mod knowledge;
mod prefetching;
mod ranges;
mod remembering;
mod same_time;
mod states;
mod values;
mod writing;

pub(crate) use ranges::untold_by;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, Store, StoreError, Version, VersionRef};
use types::codec::Encode as _;
use types::{ClientId, ClientLimits, Cluster, Key, KeyRange, ShardId, Timestamp, TransactionId, Value};

pub(crate) use self::key_state::KeyState;
use self::same_time::SameTime;
pub(crate) use self::states::TOGETHER;
use self::states::{StateNumber, States, prefetched};
use self::writing::Writing;
use crate::certificate::{Certificate, Decision, Vote};
use crate::check::AbortReason;
use crate::message::{ClientLimit, CommitDigest, KeyVersion, Place};
use crate::proofs::{ProofNumber, Proofs};
use crate::range_timestamps::RangeTimestamps;
use crate::read_timestamps::ReadTimestamps;
use crate::record::{PeerJournal, Record};
use crate::timestamp_index::OrderKey;
use crate::tombstones::{RememberedOutcome, Tombstones};
use crate::transaction_state::{Conclusion, CountedAs, Phase, Purpose, Quota, TransactionState};

/// How far ahead reading is allowed at once, in nanoseconds. A replica that comes back votes against writes for about as long;
/// one that lives writes a small record as often.
const READ_CEILING_STEP_NS: u64 = 500_000_000;

/// The most orphans that are kept after their release, for what was said of them, and their bytes. Where there is no room for more, the
/// oldest is forgotten but for its tombstone. Then this replica says nothing of it any more.
const RELEASED_MAX: usize = 1 << 15;
const RELEASED_BYTES_MAX: usize = 32 << 20;

/// The most bytes of transactions that were voted down long ago and count as undecided no more. Others go on to count.
const VOTED_DOWN_BYTES_MAX: usize = 64 << 20;

/// The stretches of time whose commits are compared with others', as a power of two in nanoseconds: 134 ms.
const COMMIT_SLOT_BITS: u32 = 27;

/// Everything a replica knows.
pub(crate) struct TransactionTable<M: StorageBackend> {
    /// With each key it keeps who reads and writes it.
    pub store: Store<M, KeyState>,
    cluster: Arc<Cluster>,
    shard: ShardId,
    read_timestamps: ReadTimestamps,
    range_timestamps: RangeTimestamps,
    /// The keys that have undecided writers.
    writing: Writing,
    /// An earlier incarnation may have let keys be read above writes below this, in nanoseconds.
    write_floor: u64,
    /// The highest timestamp for which this replica has voted, in nanoseconds.
    voted_up_to: u64,
    /// Others were told that nothing new is judged below, in nanoseconds.
    low_watermark: u64,
    /// What this replica said up to this time, in nanoseconds, was on a disk that it lost ([`crate::rebuild`]); 0 if it lost none. Whether it
    /// is being rebuilt still.
    disk_lost: Option<(u64, bool)>,
    /// How far others of the shard have told that their journals have come, by their places there.
    pub peer_journals: BTreeMap<u16, PeerJournal>,
    /// Nobody reads at or above this before a higher one is logged, in nanoseconds. After a crash it is the write floor.
    read_ceiling: u64,
    states: States,
    by_timestamp: BTreeMap<OrderKey, StateNumber>,
    same_time: SameTime,
    /// Up to where [`TransactionTable::forget_some`] has come.
    forgotten_up_to: OrderKey,
    /// How many transactions were ever entered.
    entered: u64,
    undecided: BTreeMap<Purpose, Load>,
    undecided_of: BTreeMap<Quota, Load>,
    /// Orphans that were released and are undecided, oldest first, and their bytes.
    released: BTreeSet<OrderKey>,
    released_bytes: usize,
    /// The bytes of what was voted down long ago.
    voted_down_bytes: usize,
    /// The memory of decided transactions, and the most that may be before values are let go.
    decided_bytes: usize,
    decided_bytes_max: usize,
    /// Decided transactions that keep long values, in the order in which they ended.
    valued: VecDeque<TransactionId>,
    /// The highest timestamp ever entered, in nanoseconds.
    highest: u64,
    /// What is known to have committed in each stretch of time: the sum of the first sixteen bytes of the ids, and how many there are.
    commit_digests: BTreeMap<u64, (u128, usize)>,
    tombstones: Tombstones,
    /// How transactions have ended of late.
    pub proofs: Proofs,
    /// An earlier incarnation has logged its tombstones.
    has_logged_tombstones: bool,
    /// It takes back what an earlier incarnation has logged, and judges nothing meanwhile.
    is_restoring: bool,
}

/// How much undecided work there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub transactions: usize,
    pub keys: usize,
    pub bytes: usize,
}

impl Load {
    pub fn of(transaction: &Transaction) -> Self {
        Self { transactions: 1, keys: transaction.count_keys(), bytes: transaction.encoded_bytes() }
    }

    /// Which limit on a single transaction is below this one's size.
    pub fn over(&self, limits: &ClientLimits) -> Option<ClientLimit> {
        let over = |limit: Option<u32>, found: usize| limit.is_some_and(|limit| found > limit as usize);
        if over(limits.keys, self.keys) {
            return Some(ClientLimit::Keys);
        }
        over(limits.bytes, self.bytes).then_some(ClientLimit::Bytes)
    }

    fn add(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.keys += other.keys;
        self.bytes += other.bytes;
    }

    fn remove(&mut self, other: Self) {
        self.transactions -= other.transactions;
        self.keys -= other.keys;
        self.bytes -= other.bytes;
    }
}

impl<M: StorageBackend> TransactionTable<M> {
    pub fn new(cluster: Arc<Cluster>, shard: ShardId, store: Store<M>, seed: u64, read_timestamps: usize) -> Self {
        Self {
            store: store.with_key_meta(),
            cluster,
            shard,
            read_timestamps: ReadTimestamps::new(seed, read_timestamps),
            range_timestamps: RangeTimestamps::new(),
            writing: Writing::default(),
            write_floor: 0,
            voted_up_to: 0,
            low_watermark: 0,
            disk_lost: None,
            peer_journals: BTreeMap::new(),
            read_ceiling: 0,
            states: States::default(),
            by_timestamp: BTreeMap::new(),
            same_time: SameTime::default(),
            forgotten_up_to: (Timestamp::ZERO, 0),
            entered: 0,
            undecided: BTreeMap::new(),
            undecided_of: BTreeMap::new(),
            released: BTreeSet::new(),
            released_bytes: 0,
            voted_down_bytes: 0,
            decided_bytes: 0,
            decided_bytes_max: usize::MAX,
            valued: VecDeque::new(),
            highest: 0,
            commit_digests: BTreeMap::new(),
            tombstones: Tombstones::new(seed),
            proofs: Proofs::new(),
            has_logged_tombstones: false,
            is_restoring: false,
        }
    }

    /// From now on it takes back what an earlier incarnation has logged, until [`TransactionTable::end_restoring`]: nothing is judged meanwhile, so
    /// no reads and writes are entered at their keys.
    pub fn begin_restoring(&mut self) {
        self.is_restoring = true;
    }

    /// All is taken back. Reads and writes of `undecided` transactions count again. What has committed has made versions, and for what it
    /// read the write floor stands, which lies above.
    pub fn end_restoring(&mut self, undecided: &[TransactionId]) {
        self.is_restoring = false;
        for id in undecided {
            let Some(state) = self.get(*id).filter(|state| state.is_prepared()) else { continue };
            let (transaction, order_key) = (state.transaction.clone(), state.order_key());
            self.index(&transaction, order_key, Decision::Abort);
        }
    }

    /// Whether `key` is of this shard.
    pub fn holds(&self, key: &Key) -> bool {
        self.cluster.shard_of(key) == self.shard
    }

    pub fn write_floor(&self) -> u64 {
        self.write_floor
    }

    /// An earlier incarnation may have let keys be read up to this.
    pub fn restore_read_ceiling(&mut self, up_to: u64) {
        self.write_floor = self.write_floor.max(up_to);
        self.read_ceiling = self.read_ceiling.max(up_to);
    }

    /// Before keys are read at `time`: logs a ceiling above it. Nothing leaves the node before everything written is durable. So no read
    /// timestamp on which a reader relies is lost in a crash, whatever the clock says afterwards.
    pub fn raise_read_ceiling(&mut self, time: u64) {
        if time >= self.read_ceiling {
            self.read_ceiling = time.saturating_add(READ_CEILING_STEP_NS);
            let record = Record::ReadCeiling { up_to: self.read_ceiling };
            if !broken(Mutant::ReadCeilingUnlogged) {
                self.store.append_with(|bytes| record.encode(bytes));
            }
        }
    }

    /// What this replica says that its clock shows. When that was set back, it stays at what was voted for: others rely on having been
    /// told of a time above it ([`crate::replica_clocks`]). What is in the journal no more lies below the base table's watermark.
    pub fn clock(&self, now: Time) -> u64 {
        let voted_up_to = self.voted_up_to.max(self.store.watermark().time);
        if broken(Mutant::ClockSetBack) { now.0 } else { now.0.max(voted_up_to) }
    }

    /// Nothing new is judged below, in nanoseconds.
    pub fn low_watermark(&self) -> u64 {
        self.low_watermark
    }

    /// From now on nothing new is judged below `to`, whatever clocks say: it is logged.
    pub fn raise_low_watermark(&mut self, to: u64) {
        if to > self.low_watermark {
            self.low_watermark = to;
            let record = Record::LowWatermark { below: to };
            if !broken(Mutant::LowWatermarkUnlogged) {
                self.store.append_with(|bytes| record.encode(bytes));
            }
        }
    }

    /// An earlier incarnation has promised to judge nothing new below this.
    pub fn restore_low_watermark(&mut self, below: u64) {
        self.low_watermark = self.low_watermark.max(below);
    }

    /// An earlier incarnation lost its disk.
    pub fn restore_disk_lost(&mut self, up_to: u64, is_rebuilding: bool) {
        self.disk_lost = Some((up_to, is_rebuilding));
    }

    /// The same from now on: it is logged.
    pub fn set_disk_lost(&mut self, up_to: u64, is_rebuilding: bool) {
        self.restore_disk_lost(up_to, is_rebuilding);
        let record = Record::DiskLost { up_to, is_rebuilding };
        self.store.append_with(|bytes| record.encode(bytes));
    }

    /// Up to when this replica has forgotten what it said, once that is known, and whether it is being rebuilt still.
    pub fn disk_lost(&self) -> Option<(u64, bool)> {
        self.disk_lost
    }

    /// Whether this replica may have said anything of a transaction at `time` that it has forgotten with its disk.
    pub fn lost_what_was_said_at(&self, time: u64) -> bool {
        self.disk_lost.is_some_and(|(up_to, _)| time <= up_to) && !broken(Mutant::LostSaidAgain)
    }

    /// What is undecided up to `up_to`, behind that place: by timestamp and id. What this replica voted down counts where more than the vote is to be said of it, and
    /// what it released where it is from `released_from` or later.
    pub fn undecided_up_to(&self, up_to: u64, after: Option<Place>, released_from: u64) -> Vec<Place> {
        let from = after.map_or(Timestamp::ZERO, |after| after.timestamp);
        let end = Timestamp::new(up_to, ClientId(u64::MAX));
        if from > end {
            return Vec::new();
        }
        let states = self.by_timestamp.range((from, 0)..=(end, u64::MAX)).map(|(_, number)| self.states.at(*number));
        let is_held = |state: &&TransactionState| {
            let is_open = state.is_open() && (state.is_prepared() || (state.is_binding() && !broken(Mutant::VotedDownUnshown)));
            is_open || (state.is_released() && state.transaction.timestamp().time >= released_from && !broken(Mutant::ReleasedUnshown))
        };
        let mut places: Vec<Place> = states.filter(is_held).map(|state| Place::of(&state.transaction)).collect();
        places.retain(|place| after.is_none_or(|after| *place > after));
        places.sort_unstable();
        places
    }

    /// Logs the read ceiling and the low watermark again: the segment that held them may be released. So the
    /// number that keys the tombstones' hashes stands at the beginning of the journal, whatever segment that is by then.
    pub fn log_bounds(&mut self) {
        let (salt, complete_from) = (self.tombstones.salt(), self.tombstones.logged_from());
        let tombstones = Record::Tombstones { salt, complete_from, tombstones: Vec::new() };
        for record in [Record::ReadCeiling { up_to: self.read_ceiling }, Record::LowWatermark { below: self.low_watermark }, tombstones] {
            self.store.append_with(|bytes| record.encode(bytes));
        }
        if let Some((up_to, is_rebuilding)) = self.disk_lost {
            self.set_disk_lost(up_to, is_rebuilding);
        }
        if !self.peer_journals.is_empty() {
            self.log_peer_journals();
        }
    }

    /// Logs how far others have told that their journals have come.
    pub fn log_peer_journals(&mut self) {
        if !broken(Mutant::PeerJournalsUnlogged) {
            let record = Record::PeerJournals { journals: self.peer_journals.values().copied().collect() };
            self.store.append_with(|bytes| record.encode(bytes));
        }
    }

    /// Takes over committed versions of an orphan's keys ([`crate::orphan_resolution`]), and releases it unless it is known how it ended.
    pub fn release_orphan(&mut self, id: TransactionId, end: Option<Decision>, versions: Vec<(Key, KeyVersion)>) {
        if end.is_none() {
            self.release(id);
        }
        for (key, taken) in versions {
            self.highest = self.highest.max(taken.version.time);
            self.store.commit(&key, Version { timestamp: taken.version, value: taken.value.map(|value| value.detached()) });
        }
    }

    /// Takes over a committed version of a key ([`crate::catch_up`]).
    pub fn take_over(&mut self, key: &Key, taken: KeyVersion) {
        self.highest = self.highest.max(taken.version.time);
        self.store.commit(key, Version { timestamp: taken.version, value: taken.value });
    }

    /// Puts a version in the place of one of the same time that was wrong ([`crate::catch_up`]).
    pub fn mend(&mut self, key: &Key, version: &KeyVersion) -> Result<bool, StoreError> {
        self.store.replace(key, &Version { timestamp: version.version, value: version.value.clone() })
    }

    /// The stretch of time in which `time` lies, in nanoseconds.
    pub fn commit_slot(time: u64) -> u64 {
        time >> COMMIT_SLOT_BITS
    }

    /// What is known to have committed in a stretch of time, and not forgotten.
    pub fn commit_digest(&self, slot: u64) -> CommitDigest {
        self.commit_digests.get(&slot).map_or(0, |(sum, _)| *sum).to_le_bytes()
    }

    /// The same, one by one.
    pub fn committed_in(&self, slot: u64) -> impl Iterator<Item = TransactionId> {
        let at = |slot: u64| (Timestamp::above_all_before(slot.saturating_mul(1 << COMMIT_SLOT_BITS)), 0);
        let slot = slot.min(u64::MAX >> COMMIT_SLOT_BITS);
        let states = self.by_timestamp.range(at(slot)..at(slot + 1)).map(|(_, number)| self.states.at(*number));
        states.filter(|state| state.decision() == Some(Decision::Commit)).map(|state| state.transaction.id())
    }

    /// One more is known to have committed.
    fn note_commit(&mut self, transaction: &Transaction) {
        let (sum, count) = self.commit_digests.entry(Self::commit_slot(transaction.timestamp().time)).or_default();
        (*sum, *count) = (sum.wrapping_add(digested(transaction.id())), *count + 1);
    }

    /// One that had committed is forgotten.
    fn forget_commit(&mut self, transaction: &Transaction) {
        let slot = Self::commit_slot(transaction.timestamp().time);
        let Some((sum, count)) = self.commit_digests.get_mut(&slot) else { return };
        (*sum, *count) = (sum.wrapping_sub(digested(transaction.id())), *count - 1);
        if *count == 0 {
            self.commit_digests.remove(&slot);
        }
    }

    /// Its reads and writes count no more, nor does it as undecided. What was said of it is kept.
    fn release(&mut self, id: TransactionId) {
        self.unindex(id);
        let Some(state) = self.states.get_mut(id).filter(|state| state.is_open()) else { return };
        state.phase = Phase::Released { vote: state.vote().unwrap_or(Vote::Abort) };
        self.count_as(id, CountedAs::Released);
        while self.released.len() > RELEASED_MAX || self.released_bytes > RELEASED_BYTES_MAX {
            let Some(oldest) = self.released.first().map(|oldest| self.id_of(*oldest)) else { break };
            self.forget(oldest);
        }
        if broken(Mutant::ReleasedForgotten) {
            self.forget(id);
        }
    }

    // What transactions are known.

    pub fn get(&self, id: TransactionId) -> Option<&TransactionState> {
        self.states.get(id)
    }

    pub fn get_mut(&mut self, id: TransactionId) -> Option<&mut TransactionState> {
        self.states.get_mut(id)
    }

    /// The proof of how the transaction ended whose state this is, while it is at hand.
    pub fn proof_of(&self, state: &TransactionState) -> Option<&Arc<Certificate>> {
        self.proofs.get(state.conclusion()?.proof?)
    }

    /// The entry of `transaction`, made now if there is none.
    pub fn enter(&mut self, transaction: &Transaction, now: Time, quota: Quota) -> &mut TransactionState {
        self.enter_as(transaction, Transaction::detached, now, quota)
    }

    /// The same of a transaction that nobody else needs.
    pub fn take_in(&mut self, transaction: Transaction, now: Time, quota: Quota) -> &mut TransactionState {
        self.enter_as(transaction, Transaction::into_detached, now, quota)
    }

    /// The same of a transaction that is in memory of its own already.
    pub fn enter_detached(&mut self, transaction: &Transaction, now: Time, quota: Quota) -> &mut TransactionState {
        self.enter_as(transaction, Transaction::clone, now, quota)
    }

    fn enter_as<T: Borrow<Transaction>>(
        &mut self,
        given: T,
        kept: impl FnOnce(T) -> Transaction,
        now: Time,
        quota: Quota,
    ) -> &mut TransactionState {
        let transaction = given.borrow();
        let id = transaction.id();
        let number = if let Some(number) = self.states.number_of(id) {
            number
        } else {
            self.highest = self.highest.max(transaction.timestamp().time);
            for load in [self.undecided.entry(quota.purpose).or_default(), self.undecided_of.entry(quota).or_default()] {
                load.add(Load::of(transaction));
            }
            self.entered += 1;
            let order_key = (transaction.timestamp(), self.entered);
            if let Some((other, claimant)) = self.by_timestamp.range((order_key.0, 0)..order_key).next_back() {
                let is_held = self.states.at(*claimant).is_prepared();
                self.same_time.claim(order_key.0, other.1, is_held);
            }
            let number = self.states.insert(TransactionState::new(kept(given), order_key.1, now, quota));
            self.by_timestamp.insert(order_key, number);
            number
        };
        self.states.at_mut(number)
    }

    pub fn tracked(&self) -> usize {
        self.states.len()
    }

    /// How many transactions were ever entered, by this process.
    pub fn entered(&self) -> u64 {
        self.entered
    }

    /// How many transactions are undecided, whoever brought them.
    pub fn undecided(&self) -> usize {
        self.undecided.values().map(|load| load.transactions).sum()
    }

    pub fn undecided_for(&self, purpose: Purpose) -> Load {
        self.undecided.get(&purpose).copied().unwrap_or_default()
    }

    pub fn undecided_of(&self, quota: Quota) -> Load {
        self.undecided_of.get(&quota).copied().unwrap_or_default()
    }

    /// The highest timestamp ever entered, in nanoseconds: no record holds a higher one.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// From now on `id` counts as something else.
    fn count_as(&mut self, id: TransactionId, what: CountedAs) {
        let Some(state) = self.states.get_mut(id) else { return };
        let (load, memory, order_key) = (Load::of(&state.transaction), state.transaction.memory_bytes(), state.order_key());
        let bytes = load.bytes;
        match std::mem::replace(&mut state.counted_as, what) {
            CountedAs::Undecided(quota) => self.release_quota(quota, load),
            CountedAs::VotedDown => self.voted_down_bytes -= bytes,
            CountedAs::Released => {
                self.released.remove(&order_key);
                self.released_bytes -= bytes;
            }
            CountedAs::Decided => self.decided_bytes -= memory,
            CountedAs::Nothing => {}
        }
        match what {
            CountedAs::Undecided(_) | CountedAs::Nothing => {}
            CountedAs::Decided => self.decided_bytes += memory,
            CountedAs::VotedDown => self.voted_down_bytes += bytes,
            CountedAs::Released => {
                self.released.insert(order_key);
                self.released_bytes += bytes;
            }
        }
    }

    /// `id` was voted down long ago. If nothing here depends on it, it counts as undecided no more: nobody can be kept out by what was
    /// made up. It is kept for the vote, which is final.
    pub fn set_aside(&mut self, id: TransactionId) {
        let Some(state) = self.get(id) else { return };
        let is_undecided = matches!(state.counted_as, CountedAs::Undecided(_)) && !state.is_binding();
        let fits = self.voted_down_bytes + state.transaction.encoded_bytes() <= VOTED_DOWN_BYTES_MAX;
        if is_undecided && fits && !broken(Mutant::VotedDownCounted) {
            self.count_as(id, CountedAs::VotedDown);
        }
    }

    fn release_quota(&mut self, quota: Quota, released: Load) {
        self.undecided.entry(quota.purpose).or_default().remove(released);
        if let Some(load) = self.undecided_of.get_mut(&quota) {
            load.remove(released);
            if load.transactions == 0 {
                self.undecided_of.remove(&quota);
            }
        }
    }

    /// Every undecided transaction that was not released, oldest first.
    pub fn undecided_ids(&self) -> Vec<TransactionId> {
        let (mut all, mut undecided) = (self.by_timestamp.values(), Vec::new());
        loop {
            let together = prefetched(all.by_ref().take(TOGETHER).map(|number| self.states.at(*number)));
            if together.is_empty() {
                return undecided;
            }
            undecided.extend(together.iter().filter(|state| state.is_open()).map(|state| state.transaction.id()));
        }
    }

    // What is known of a key.

    /// L7: what `take` makes of the newest committed version of `key` below `before`, and the newest undecided writer below it.
    pub fn newest_before<T>(
        &mut self,
        key: &Key,
        before: Timestamp,
        take: impl FnOnce(VersionRef<'_>) -> T,
    ) -> Result<(Option<T>, Option<OrderKey>), StoreError> {
        self.store.with_latest_before(key, before, |committed, state| (committed.map(take), state.writers.newest_below(before)))
    }

    /// The prepared or committed transaction at `timestamp`.
    fn holder_of(&self, timestamp: Timestamp) -> Option<TransactionId> {
        if let Some(holder) = self.same_time.holder(timestamp) {
            return self.by_timestamp.get(&(timestamp, holder?)).map(|number| self.states.at(*number).transaction.id());
        }
        let (_, number) = self.by_timestamp.range((timestamp, 0)..).next().filter(|((other, _), _)| *other == timestamp)?;
        let state = self.states.at(*number);
        state.is_prepared().then(|| state.transaction.id())
    }

    /// The id of a transaction that is entered at a key and means to write, or has read and is not as old as what is forgotten.
    pub fn id_of(&self, at: OrderKey) -> TransactionId {
        let number = self.by_timestamp.get(&at).expect("who is forgotten counts at no key any more");
        self.states.at(*number).transaction.id()
    }

    /// Remembers that `keys` were read at `timestamp`.
    pub fn raise_read_timestamps(&mut self, keys: &[Key], timestamp: Timestamp) {
        self.read_timestamps.raise(keys, timestamp);
    }

    /// The newest reader of `key` and that of a range that holds it, or later ones.
    pub fn readers_of(&self, key: &Key) -> (Timestamp, Timestamp) {
        (self.read_timestamps.get(key), self.range_timestamps.get(key))
    }

    /// Whether all of `range` is known to have been read at `timestamp` or later.
    pub fn is_range_read(&self, range: &KeyRange, timestamp: Timestamp) -> bool {
        self.range_timestamps.has(range, timestamp)
    }

    /// Remembers that `range` was read at `timestamp`.
    pub fn raise_range_timestamp(&mut self, range: &KeyRange, timestamp: Timestamp) {
        self.range_timestamps.raise(range, timestamp);
    }

    // How a transaction moves on.

    /// L14-15: its reads and writes now count in the checks of others, and its vote waits for so many dependencies.
    pub fn prepare(&mut self, id: TransactionId, dependencies: usize) {
        let Some(state) = self.states.get_mut(id).filter(|state| !state.is_prepared() && state.decision().is_none()) else { return };
        state.phase = Phase::Waiting { dependencies };
        if !broken(Mutant::PreparedUnseen) {
            let (transaction, order_key) = (state.transaction.clone(), state.order_key());
            self.index(&transaction, order_key, Decision::Abort);
        }
    }

    /// Casts the replica's vote. L17: the reads and writes of a transaction that is voted down count no more.
    pub fn vote(&mut self, id: TransactionId, vote: Vote, reason: Option<AbortReason>) {
        if vote == Vote::Abort {
            self.unindex(id);
        }
        if let Some(state) = self.states.get_mut(id) {
            state.set_vote(vote, reason);
            if vote == Vote::Commit {
                self.voted_up_to = self.voted_up_to.max(state.transaction.timestamp().time);
            }
        }
    }

    /// Takes back a vote that an earlier process cast.
    pub fn restore_vote(&mut self, id: TransactionId, vote: Vote) {
        if self.get(id).is_some_and(|state| state.vote().is_none()) {
            if vote == Vote::Commit {
                self.prepare(id, 0);
            }
            self.vote(id, vote, None);
        }
    }

    /// Sets the outcome. A commit's writes become versions; its reads go on counting. Gives the transactions whose votes
    /// waited for it.
    pub fn conclude(&mut self, id: TransactionId, decision: Decision, proof: Option<ProofNumber>) -> Vec<TransactionId> {
        let Some(state) = self.states.get_mut(id) else { return Vec::new() };
        let (transaction, order_key, was_indexed) = (state.transaction.clone(), state.order_key(), state.is_prepared());
        match decision {
            Decision::Commit if !was_indexed || self.is_restoring => self.index(&transaction, order_key, Decision::Commit),
            Decision::Commit => {}
            Decision::Abort => self.unindex(id),
        }
        self.count_as(id, CountedAs::Decided);
        let Some(state) = self.states.get_mut(id) else { return Vec::new() };
        let (vote, reason, is_news) = (state.vote(), state.abort_reason().map(Box::new), state.decision().is_none());
        state.phase = Phase::Concluded(Conclusion { decision, vote, reason, proof, abandoned_until: None, is_relayed: false });
        let dependents = state.take_dependents();
        if decision == Decision::Commit {
            self.make_versions(&transaction, order_key);
            if is_news {
                self.note_commit(&transaction);
            }
        }
        drop(transaction); // If nobody else has it, it changes in its place.
        self.note_values(id, decision, vote);
        self.pack(id);
        dependents
    }

    fn make_versions(&mut self, transaction: &Transaction, order_key: OrderKey) {
        let timestamp = transaction.timestamp();
        self.same_time.committed(order_key);
        self.writing.end(order_key);
        self.store.prefetch(transaction.writes().iter().map(|write| &write.key));
        if broken(Mutant::CommittedReaderMissed) {
            transaction.reads().iter().for_each(|read| self.store.update_meta_if_present(&read.key, |key| key.readers.remove(order_key)));
        }
        for write in transaction.writes() {
            if self.holds(&write.key) {
                let version = VersionRef { timestamp, value: write.value.as_ref().map(Value::as_bytes) };
                let mut was_last = false;
                self.store.commit_with_meta(&write.key, version, |key| was_last = key.remove_writer(order_key));
                if was_last {
                    self.writing.leave(&write.key);
                }
            }
        }
    }

    /// Enters a transaction's reads at its keys, and its writes if it is still to commit.
    fn index(&mut self, transaction: &Transaction, order_key: OrderKey, decision: Decision) {
        if self.is_restoring {
            // As long as anything below is judged, nothing is written there that somebody may have read past.
            let has_read = !transaction.reads().is_empty() || !transaction.ranges().is_empty();
            if decision == Decision::Commit && has_read && !broken(Mutant::RestoredReaderMissed) {
                self.write_floor = self.write_floor.max(order_key.0.time.saturating_add(1));
            }
            return;
        }
        self.same_time.prepared(order_key);
        let expired_below = self.store.meta_expired_below();
        for read in transaction.reads() {
            if self.holds(&read.key) {
                self.store.update_meta(&read.key, |key| key.add_reader(order_key, read.version, expired_below));
            }
        }
        if decision != Decision::Commit && !transaction.writes().is_empty() {
            self.writing.begin(order_key);
            for write in transaction.writes() {
                if self.holds(&write.key) {
                    self.store.update_meta(&write.key, |key| key.writers.add(order_key, ()));
                    self.writing.enter(&write.key);
                }
            }
            self.keep_very_many_in_order();
        }
        // Nothing is written into these below its timestamp any more, for as long as anything that old is judged.
        for range in transaction.ranges().iter().filter(|_| !broken(Mutant::RangeUnprotected)) {
            self.range_timestamps.raise(range, order_key.0);
        }
    }

    /// Takes a transaction's reads and writes out again. What a committed one wrote has become versions and stays.
    fn unindex(&mut self, id: TransactionId) {
        let Some(state) = self.states.get(id).filter(|state| state.is_prepared()) else { return };
        let (transaction, order_key) = (state.transaction.clone(), state.order_key());
        let means_to_write = state.decision() != Some(Decision::Commit);
        self.same_time.let_go(order_key);
        if self.is_restoring {
            return; // It is at no key.
        }
        if !means_to_write && order_key.0 < self.store.meta_expired_below() {
            return; // It has expired at the keys that it has read.
        }
        for key in transaction.read_keys() {
            self.store.update_meta_if_present(&key, |key| key.readers.remove(order_key));
        }
        if !means_to_write {
            return;
        }
        self.writing.end(order_key);
        for write in transaction.writes() {
            let mut was_last = false;
            self.store.update_meta_if_present(&write.key, |key| was_last = key.remove_writer(order_key));
            if was_last {
                self.writing.leave(&write.key);
            }
        }
    }

    /// Forgets every decided transaction below `watermark`, and those that were voted down and concern nobody here: down
    /// there no other vote is cast any more, so none can differ from the one forgotten. Gives the other undecided ones, which
    /// are never forgotten. Keys being written are no longer kept in order if nobody has asked for them since the last call.
    pub fn forget_below(&mut self, watermark: Timestamp) -> Vec<TransactionId> {
        self.store.expire_meta_below(watermark);
        self.forgotten_up_to = (watermark, 0); // Lower than before, if the clock was set back: what is above grows old again.
        self.forget_unasked_order();
        let below: Vec<StateNumber> = self.by_timestamp.range(..(watermark, 0)).map(|(_, number)| *number).collect();
        let mut kept = Vec::new();
        for together in below.chunks(TOGETHER) {
            self.prefetch_forgotten(together.iter().copied());
            kept.extend(together.iter().filter_map(|number| self.forget_ended(*number).err()));
        }
        kept
    }

    /// Takes a step of what [`TransactionTable::forget_below`] would do, looking at `at_most` transactions, at least two, so that this need not be
    /// done all at once while others wait. Gives whether more steps are left. Those that are entered late, behind the last step, are left
    /// to [`TransactionTable::forget_below`].
    pub fn forget_some(&mut self, watermark: Timestamp, at_most: usize) -> bool {
        let (from, to) = (self.forgotten_up_to, (watermark, 0));
        if from >= to {
            return false; // Also when the clock was set back.
        }
        self.store.expire_meta_below(watermark);
        let at_most = at_most.max(2); // The first may be the last of the step before.
        let some: Vec<(OrderKey, StateNumber)> =
            self.by_timestamp.range(from..to).take(at_most).map(|(at, number)| (*at, *number)).collect();
        self.forgotten_up_to = some.last().filter(|_| some.len() == at_most).map_or(to, |(at, _)| *at);
        for together in some.chunks(TOGETHER) {
            self.prefetch_forgotten(together.iter().map(|(_, number)| *number));
            together.iter().for_each(|(_, number)| _ = self.forget_ended(*number));
        }
        self.forgotten_up_to < to
    }

    /// Forgets what lies below the watermark, unless it is undecided and of concern: gives its id then.
    fn forget_ended(&mut self, number: StateNumber) -> Result<(), TransactionId> {
        let state = self.states.at(number);
        let id = state.transaction.id();
        if state.decision().is_none() && state.is_binding() && !broken(Mutant::UndecidedForgotten) {
            return Err(id);
        }
        self.forget(id);
        Ok(())
    }

    /// Forgets one transaction altogether.
    pub fn forget(&mut self, id: TransactionId) {
        self.unindex(id);
        self.count_as(id, CountedAs::Nothing);
        let Some(state) = self.states.remove(id) else { return };
        let is_attested = if state.is_released() { state.is_binding() } else { !state.is_open() && !state.is_unattested() };
        if is_attested {
            let is_lost = self.lost_what_was_said_at(state.transaction.timestamp().time);
            // Where it may have been forgotten before, and has come back, what it once logged is not known.
            self.tombstones.note(&state.transaction, |is_first| {
                let RememberedOutcome { decision, view } = state.outcome()?;
                Some(RememberedOutcome { decision, view: view.filter(|_| is_first && !is_lost) })
            });
        }
        if state.decision() == Some(Decision::Commit) {
            self.forget_commit(&state.transaction);
        }
        self.by_timestamp.remove(&state.order_key());
        self.same_time.forget(state.transaction.timestamp());
    }
}

/// What `id` adds to the sum of its stretch of time.
fn digested(id: TransactionId) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&id.0[..16]);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use crate::transaction::{RANGE_DELETED_MAX, Read, Write};
    use crate::transaction_state::QuotaOwner;
    use store::{Memory, Options};
    use types::Value;

    use super::knowledge::{READERS_EACH_MAX, READERS_MAX};
    use super::*;
    use crate::check::{Dependency, Knowledge as _, ReaderPast, Unread};
    use crate::testing::one_shard;

    const AUTHOR: ClientId = ClientId(1);

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, AUTHOR)
    }

    /// Transactions at 0 to 99, of which every seventh is undecided, and one that came late.
    /// One that knows nothing, for the tests of its parts, too.
    pub(super) fn empty_table() -> TransactionTable<Memory> {
        let store = Store::open(Memory::new("ledger"), Options::default()).expect("a new store opens");
        let mut table = TransactionTable::new(one_shard(), ShardId(0), store, 7, 16);
        assert!(table.store.replay().expect("it is new").is_none());
        table
    }

    fn table() -> TransactionTable<Memory> {
        let mut table = empty_table();
        (0..100).for_each(|time| enter(&mut table, time, time % 7 != 0));
        table
    }

    fn enter(table: &mut TransactionTable<Memory>, time: u64, is_decided: bool) {
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(table.cluster.id(), at(time), vec![], vec![write]).expect("it is small");
        table.enter(&transaction, Time(0), Quota::prepare(QuotaOwner::Client(AUTHOR)));
        table.restore_vote(transaction.id(), Vote::Commit);
        if is_decided {
            table.conclude(transaction.id(), Decision::Commit, None);
        }
    }

    fn times(table: &TransactionTable<Memory>) -> Vec<u64> {
        table.by_timestamp.keys().map(|(timestamp, _)| timestamp.time).collect()
    }

    #[test]
    fn a_clock_that_is_set_back_stays_at_what_was_voted_for() {
        let table = table();
        assert_eq!((table.clock(Time(50)), table.clock(Time(200))), (99, 200));
    }

    #[test]
    fn of_what_has_ended_only_its_bytes_are_kept_whoever_looks_at_it() {
        let mut table = table();
        let id = table.id_of((at(1), 2));
        let read = Read { key: Key::from("a"), version: at(1), dependency: Some(id) };
        let reader = Transaction::new(table.cluster.id(), at(1_000), vec![read], vec![]).expect("it is small");
        let known = table.knowledge(&reader).expect("memory does not fail");
        assert_eq!(known.dependency(id, &Key::from("a"), at(1)), Dependency::Committed);
        assert_eq!(known.dependency(id, &Key::from("b"), at(1)), Dependency::Invalid);
        let ended = &table.get(id).expect("it has ended").transaction;
        assert_eq!(ended.participants(&table.cluster), [ShardId(0)]);
        assert!(!crate::check::conflict_at(&table.cluster, ShardId(0), &reader, ended));
        assert!(ended.is_packed());
        assert!(ended.reads().is_empty() && !ended.is_packed(), "this is kept");
    }

    #[test]
    fn what_is_without_its_values_can_be_taken_out_of_its_frame_and_is_whole_with_these_values_alone() {
        let (cluster, keys) = (one_shard().id(), ["a", "b"].map(Key::from));
        let values = [Some(Value::from("1")), None];
        let writes = keys.iter().cloned().zip(values).map(|(key, value)| Write { key, value }).collect();
        let range = KeyRange::new(Key::from("c"), Key::from("d")).expect("it has keys");
        let whole = Transaction::with_ranges(cluster, at(1), vec![], vec![range], writes).expect("it is small");
        let mut transaction = whole.clone();
        transaction.drop_values();
        assert_eq!(transaction.detached().writes(), keys.clone().map(|key| Write { key, value: None }));
        let with = |a: Option<&str>, b: Option<Option<&str>>| {
            let found = |key: &Key| if *key == keys[0] { Some(a.map(Value::from)) } else { b.map(|value| value.map(Value::from)) };
            transaction.with_values(cluster, found).map(|whole| whole.to_bytes())
        };
        assert_eq!(with(Some("1"), Some(None)), Some(whole.to_bytes()));
        for (a, b) in [(Some("2"), Some(None)), (None, Some(None)), (Some("1"), Some(Some(""))), (Some("1"), None)] {
            assert_eq!(with(a, b), None);
        }
    }

    #[test]
    fn a_vote_looks_at_a_bounded_number_of_readers() {
        let mut table = table();
        let read = |time: u64| {
            let read = Read { key: Key::from("b"), version: at(2_000), dependency: None };
            Transaction::new(table.cluster.id(), at(time), vec![read], vec![]).expect("it is small")
        };
        let readers: Vec<Transaction> = (3_000..4_000).map(read).collect();
        for (number, reader) in readers.iter().enumerate() {
            table.enter(reader, Time(0), Quota::prepare(QuotaOwner::Client(AUTHOR)));
            table.restore_vote(reader.id(), Vote::Commit);
            let write = Write { key: Key::from("b"), value: None };
            let late = Transaction::new(table.cluster.id(), at(1_000), vec![], vec![write]).expect("it is small");
            let known = table.knowledge(&late).expect("memory does not fail");
            let found = known.reader_past(&Key::from("b"), at(1_000));
            let is_looked_at = number < READERS_MAX + READERS_EACH_MAX;
            assert_eq!(found, if is_looked_at { ReaderPast::None } else { ReaderPast::Unknown }, "{number} before");
        }
    }

    #[test]
    fn a_vote_looks_at_a_bounded_number_of_deleted_keys() {
        let mut table = table();
        let key = |number: usize| Key::new(format!("k{number:05}")).expect("it is short");
        let range = KeyRange::new(key(0), key(99_999)).expect("it has keys");
        let reader = |table: &TransactionTable<Memory>, number: u64| {
            let reader = Transaction::with_ranges(table.cluster.id(), at(2_000 + number), vec![], vec![range.clone()], vec![]);
            reader.expect("it is small")
        };
        for number in 0..=RANGE_DELETED_MAX {
            let transaction = reader(&table, number as u64);
            if number % 512 == 0 {
                let known = table.knowledge(&transaction).expect("memory does not fail");
                assert_eq!(known.unread(0), Unread::Nothing, "{number} before");
            }
            table.store.commit(&key(number), Version { timestamp: at(100 + number as u64), value: None });
        }
        // The last step is taken whole.
        (0..512).for_each(|number| table.store.commit(&key(10_000 + number), Version { timestamp: at(9), value: None }));
        let transaction = reader(&table, 9_000);
        assert_eq!(table.knowledge(&transaction).expect("memory does not fail").unread(0), Unread::Unknown);
        table.store.commit(&key(1), Version { timestamp: at(5_000), value: Some(Value::from("1")) });
        assert_eq!(table.knowledge(&transaction).expect("memory does not fail").unread(0), Unread::Committed(at(5_000)));
    }

    #[test]
    fn what_is_about_to_be_forgotten_stays_in_the_view_to_which_it_has_come() {
        let mut table = table();
        let id = table.id_of((at(1), 2));
        let first = table.remembered_outcome(id).expect("it has ended");
        let view = first.view.expect("something was said of it") + 1;
        table.raise_tombstone(id, view);
        let raised = RememberedOutcome { view: Some(view), ..first };
        assert_eq!(table.remembered_outcome(id), Some(raised));
        table.forget_below(at(90));
        assert!(table.get(id).is_none());
        assert_eq!(table.remembered_outcome(id), Some(raised));
    }

    #[test]
    fn steps_forget_what_would_be_forgotten_at_once() {
        let mut at_once = table();
        let kept = at_once.forget_below(at(90));
        assert_eq!(kept.len(), 13);
        // A step of seven ends at an undecided one, one of two must get beyond the last of the step before.
        for at_most in [0, 2, 7, 8, 1_000] {
            let mut table = table();
            let mut steps = 1;
            while table.forget_some(at(90), at_most) {
                steps += 1;
            }
            assert_eq!(times(&table), times(&at_once), "{at_most} at most");
            assert!(at_most > 100 || steps > 10, "{steps} steps");
            assert!(!table.forget_some(at(90), at_most) && !table.forget_some(at(50), at_most), "also when the clock is set back");
            // Who comes late, and behind, is left to the end.
            enter(&mut table, 3, true);
            while table.forget_some(at(91), at_most) {}
            assert!(times(&table).contains(&3) && !times(&table).contains(&90));
            assert_eq!(table.forget_below(at(91)).len(), 13);
            assert!(!times(&table).contains(&3));
        }
    }
}
