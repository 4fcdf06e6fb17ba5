//! What a replica knows: of every key, who wrote, means to write and has read it; of every transaction, how far it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use machine::Time;
use smallvec::SmallVec;
use store::{Medium, Store, StoreError, Version};
use types::{Cluster, Key, Party, ShardId, Timestamp, Transaction, TransactionId};

use crate::certificate::{Certificate, Decision, Vote};
use crate::check::{Cause, Dependency};

/// The most read timestamps kept before the older half is let go and the floor rises over it.
const READ_TIMESTAMPS_MAX: usize = 1 << 20;

/// A transaction as this replica knows it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub transaction: Transaction,
    /// The replica's vote, once cast: final.
    pub vote: Option<Vote>,
    /// Why it was voted down, as far as this process remembers.
    pub cause: Option<Cause>,
    /// Whether its reads and writes count in the checks of others.
    pub prepared: bool,
    /// How many undecided transactions its vote waits for.
    pub waiting_for: usize,
    /// Transactions whose votes wait for this one.
    pub dependents: Vec<TransactionId>,
    /// The decision this replica, being of the logging shard, has written down, and in which view.
    pub logged: Option<(Decision, u32)>,
    /// How it ended, with the proof.
    pub outcome: Option<Arc<Certificate>>,
    /// Who waits to hear the vote.
    pub askers: SmallVec<[Party; 1]>,
    /// Since when it is known.
    pub since: Time,
}

impl Entry {
    pub fn new(transaction: Transaction, since: Time) -> Self {
        Self {
            transaction,
            vote: None,
            cause: None,
            prepared: false,
            waiting_for: 0,
            dependents: Vec::new(),
            logged: None,
            outcome: None,
            askers: SmallVec::new(),
            since,
        }
    }

    pub fn decision(&self) -> Option<Decision> {
        self.outcome.as_ref().map(|certificate| certificate.decision)
    }
}

/// Who means to write a key, and who has read it.
#[derive(Debug, Default)]
struct KeyState {
    /// Prepared, undecided writers.
    writers: SmallVec<[(Timestamp, TransactionId); 1]>,
    /// Prepared and committed readers: reader's timestamp, version read, reader.
    readers: SmallVec<[(Timestamp, Timestamp, TransactionId); 2]>,
}

/// The newest reader of each key, whether its transaction ever comes to prepare or not (§4.1, `RTS`).
///
/// Two generations bound its memory: when the newer is full or old enough, the older is let go, and nobody may
/// write any more below the highest timestamp it held.
#[derive(Debug, Default)]
struct ReadTimestamps {
    newer: HashMap<Key, Timestamp>,
    newer_highest: u64,
    older: HashMap<Key, Timestamp>,
    older_highest: u64,
}

/// Everything a replica knows.
pub(crate) struct Ledger<M: Medium> {
    pub store: Store<M>,
    cluster: Arc<Cluster>,
    shard: ShardId,
    keys: HashMap<Key, KeyState>,
    read_timestamps: ReadTimestamps,
    /// Writes below were perhaps read without this replica remembering, in nanoseconds.
    floor: u64,
    entries: HashMap<TransactionId, Entry>,
    by_timestamp: BTreeSet<(Timestamp, TransactionId)>,
    undecided: usize,
}

impl<M: Medium> Ledger<M> {
    pub fn new(cluster: Arc<Cluster>, shard: ShardId, store: Store<M>) -> Self {
        Self {
            store,
            cluster,
            shard,
            keys: HashMap::new(),
            read_timestamps: ReadTimestamps::default(),
            floor: 0,
            entries: HashMap::new(),
            by_timestamp: BTreeSet::new(),
            undecided: 0,
        }
    }

    /// Whether `key` is of this shard.
    pub fn holds(&self, key: &Key) -> bool {
        self.cluster.shard_of(key) == self.shard
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    pub fn raise_floor(&mut self, to: u64) {
        self.floor = self.floor.max(to);
    }

    // What transactions are known.

    pub fn entry(&self, id: TransactionId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub fn entry_mut(&mut self, id: TransactionId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The entry of `transaction`, made now if there is none.
    pub fn enter(&mut self, transaction: &Transaction, now: Time) -> &mut Entry {
        let id = transaction.id();
        if !self.entries.contains_key(&id) {
            self.by_timestamp.insert((transaction.timestamp(), id));
            self.undecided += 1;
            self.entries.insert(id, Entry::new(transaction.detached(), now));
        }
        self.entries.get_mut(&id).expect("it was there or has just been entered")
    }

    pub fn known(&self) -> usize {
        self.entries.len()
    }

    pub fn undecided(&self) -> usize {
        self.undecided
    }

    /// Every undecided transaction, oldest first.
    pub fn undecided_ids(&self) -> Vec<TransactionId> {
        let ids = self.by_timestamp.iter().map(|(_, id)| *id);
        ids.filter(|id| self.entries.get(id).is_some_and(|entry| entry.outcome.is_none())).collect()
    }

    /// Another transaction with this very timestamp that is prepared or committed here.
    pub fn holder_of(&self, timestamp: Timestamp, id: TransactionId) -> Option<TransactionId> {
        self.at(timestamp)
            .filter(|other| *other != id)
            .find(|other| self.entries.get(other).is_some_and(|entry| entry.prepared || entry.vote == Some(Vote::Commit)))
    }

    /// The committed transaction that wrote version `timestamp`, as far as it is remembered.
    pub fn writer_at(&self, timestamp: Timestamp) -> Option<TransactionId> {
        self.at(timestamp).find(|id| self.entries.get(id).is_some_and(|entry| entry.decision() == Some(Decision::Commit)))
    }

    fn at(&self, timestamp: Timestamp) -> impl Iterator<Item = TransactionId> + '_ {
        let lowest = (timestamp, TransactionId([0; 32]));
        let highest = (timestamp, TransactionId([u8::MAX; 32]));
        self.by_timestamp.range(lowest..=highest).map(|(_, id)| *id)
    }

    /// L3: what is known of a transaction that wrote `version` of `key`, or is said to have.
    pub fn dependency(&mut self, id: TransactionId, key: &Key, version: Timestamp) -> Result<Dependency, StoreError> {
        let Some(entry) = self.entries.get(&id) else {
            // Long decided and forgotten: then the version itself is there.
            let after = Timestamp::new(version.time, types::ClientId(version.client.0.saturating_add(1)));
            let committed = self.store.latest_timestamp_before(key, after)? == Some(version);
            return Ok(if committed { Dependency::Committed } else { Dependency::Invalid });
        };
        if entry.transaction.timestamp() != version || entry.transaction.write_of(key).is_none() {
            return Ok(Dependency::Invalid);
        }
        Ok(match entry.decision() {
            Some(Decision::Commit) => Dependency::Committed,
            Some(Decision::Abort) => Dependency::Aborted,
            None if entry.prepared => Dependency::Prepared,
            None => Dependency::Invalid,
        })
    }

    // What is known of a key.

    /// L7, prepared: an undecided writer between `after` and `before`, both excluded.
    pub fn prepared_between(&self, key: &Key, after: Timestamp, before: Timestamp) -> Option<TransactionId> {
        let state = self.keys.get(key)?;
        state.writers.iter().find(|(timestamp, _)| after < *timestamp && *timestamp < before).map(|(_, id)| *id)
    }

    /// The newest undecided write of `key` between `after` and `before`, both excluded.
    pub fn prepared_newest(&self, key: &Key, after: Timestamp, before: Timestamp) -> Option<TransactionId> {
        let state = self.keys.get(key)?;
        let between = state.writers.iter().filter(|(timestamp, _)| after < *timestamp && *timestamp < before);
        between.max_by_key(|(timestamp, _)| *timestamp).map(|(_, id)| *id)
    }

    /// L7, committed: the newest committed version below `before`.
    pub fn committed_before(&mut self, key: &Key, before: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.store.latest_timestamp_before(key, before)
    }

    /// L10: a prepared or committed transaction above `timestamp` that read a version below it.
    pub fn reader_past(&self, key: &Key, timestamp: Timestamp) -> Option<TransactionId> {
        let state = self.keys.get(key)?;
        state.readers.iter().find(|(reader, version, _)| *version < timestamp && timestamp < *reader).map(|(_, _, id)| *id)
    }

    /// L12: the newest reader of `key` that is remembered.
    pub fn read_timestamp(&self, key: &Key) -> Timestamp {
        let newer = self.read_timestamps.newer.get(key).copied();
        let older = self.read_timestamps.older.get(key).copied();
        newer.max(older).unwrap_or(Timestamp::ZERO)
    }

    /// Remembers that `key` was read at `timestamp`.
    pub fn raise_read_timestamp(&mut self, key: &Key, timestamp: Timestamp) {
        let table = &mut self.read_timestamps;
        table.newer_highest = table.newer_highest.max(timestamp.time);
        match table.newer.get_mut(key) {
            Some(highest) => *highest = (*highest).max(timestamp),
            None => {
                table.newer.insert(key.detached(), timestamp);
            }
        }
        if self.read_timestamps.newer.len() >= READ_TIMESTAMPS_MAX {
            self.turn_read_timestamps();
        }
    }

    /// Lets the older read timestamps go; the floor rises over them.
    pub fn turn_read_timestamps(&mut self) {
        let table = &mut self.read_timestamps;
        if !table.older.is_empty() {
            self.floor = self.floor.max(table.older_highest.saturating_add(1));
        }
        table.older = std::mem::take(&mut table.newer);
        table.older_highest = std::mem::take(&mut table.newer_highest);
    }

    // How a transaction moves on.

    /// L14: its reads and writes now count in the checks of others.
    pub fn prepare(&mut self, id: TransactionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.prepared {
            return;
        }
        entry.prepared = true;
        let transaction = entry.transaction.clone();
        let timestamp = transaction.timestamp();
        for read in transaction.reads() {
            if self.cluster.shard_of(&read.key) == self.shard {
                self.keys.entry(read.key.clone()).or_default().readers.push((timestamp, read.version, id));
            }
        }
        for write in transaction.writes() {
            if self.cluster.shard_of(&write.key) == self.shard {
                self.keys.entry(write.key.clone()).or_default().writers.push((timestamp, id));
            }
        }
    }

    /// L17: its reads and writes count no more.
    pub fn unprepare(&mut self, id: TransactionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !std::mem::take(&mut entry.prepared) {
            return;
        }
        let transaction = entry.transaction.clone();
        for key in transaction.keys() {
            self.amend(key, |state| {
                state.readers.retain(|(_, _, reader)| *reader != id);
                state.writers.retain(|(_, writer)| *writer != id);
            });
        }
    }

    /// How it ended. A commit's writes become versions; its reads go on counting. Gives the transactions whose
    /// votes waited for it.
    pub fn conclude(&mut self, id: TransactionId, certificate: Arc<Certificate>) -> Vec<TransactionId> {
        let decision = certificate.decision;
        match decision {
            Decision::Commit => self.prepare(id),
            Decision::Abort => self.unprepare(id),
        }
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        if entry.outcome.is_none() {
            self.undecided -= 1;
        }
        entry.outcome = Some(certificate);
        let dependents = std::mem::take(&mut entry.dependents);
        if decision == Decision::Commit {
            let transaction = entry.transaction.clone();
            let timestamp = transaction.timestamp();
            for write in transaction.writes() {
                if self.cluster.shard_of(&write.key) == self.shard {
                    self.store.commit(&write.key, Version { timestamp, value: write.value.clone() });
                    self.amend(&write.key, |state| state.writers.retain(|(_, writer)| *writer != id));
                }
            }
        }
        dependents
    }

    fn amend(&mut self, key: &Key, change: impl FnOnce(&mut KeyState)) {
        if let Some(state) = self.keys.get_mut(key) {
            change(state);
            if state.readers.is_empty() && state.writers.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// Forgets every decided transaction below `watermark`, and gives the undecided ones there, which are never forgotten.
    pub fn forget_below(&mut self, watermark: Timestamp) -> Vec<TransactionId> {
        let below: Vec<TransactionId> = self.by_timestamp.range(..(watermark, TransactionId([0; 32]))).map(|(_, id)| *id).collect();
        let mut kept = Vec::new();
        for id in below {
            match self.entries.get(&id) {
                Some(entry) if entry.outcome.is_none() => kept.push(id),
                _ => self.forget(id),
            }
        }
        kept
    }

    /// Forgets one transaction altogether.
    pub fn forget(&mut self, id: TransactionId) {
        self.unprepare(id);
        if let Some(entry) = self.entries.remove(&id) {
            if entry.outcome.is_none() {
                self.undecided -= 1;
            }
            self.by_timestamp.remove(&(entry.transaction.timestamp(), id));
        }
    }
}
