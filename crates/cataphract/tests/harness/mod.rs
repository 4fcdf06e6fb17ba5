//! A store that keeps versions and refuses what is not serializable, as the replicas do together, and one that runs a
//! pool in front of it.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::certificate::Proof;
use basil::{Buffer, Certificate, Decision, Failure, Path, ReadFound, Refusal, Transaction};
use cataphract::{Ask, BatchedCommit, Failed, Operation, Output, Pool, PoolOptions, Work};
use machine::{Time, Voters};
use types::{ClientId, ClusterId, Key, Timestamp, Value};

pub const CLUSTER: ClusterId = ClusterId::new([7; 16]);

pub fn key(name: &str) -> Key {
    Key::from(name)
}

pub fn get(name: &str) -> Operation {
    Operation::Get(key(name))
}

pub fn put(name: &str, value: &str) -> Operation {
    Operation::Put(key(name), Value::from(value))
}

pub fn delete(name: &str) -> Operation {
    Operation::Delete(key(name))
}

/// Committed versions, and up to where each key was read.
#[derive(Debug, Default)]
pub struct Store {
    versions: BTreeMap<Key, BTreeMap<Timestamp, Option<Value>>>,
    read_at: BTreeMap<Key, Timestamp>,
    /// Who writes here is refused.
    pub forbidden: Option<Key>,
}

impl Store {
    pub fn read(&mut self, key: &Key, at: Timestamp) -> ReadFound {
        let read_at = self.read_at.entry(key.clone()).or_insert(Timestamp::ZERO);
        *read_at = at.max(*read_at);
        let newest = self.versions.get(key).and_then(|versions| versions.range(..at).next_back());
        let (version, value) = newest.map_or((Timestamp::ZERO, None), |(version, value)| (*version, value.clone()));
        ReadFound { key: key.clone(), version, value, dependency: None, validated: Voters::default(), is_withheld: false }
    }

    /// Algorithm 1 of the paper on Basil, among transactions of which each is decided at once.
    pub fn commit(&mut self, transaction: &Transaction) -> bool {
        let at = transaction.timestamp();
        let missed = |key: &Key, version: Timestamp| {
            let newest = self.versions.get(key).and_then(|versions| versions.range(..at).next_back());
            newest.is_some_and(|(newest, _)| *newest > version)
        };
        if transaction.reads().iter().any(|read| missed(&read.key, read.version)) {
            return false;
        }
        if transaction.writes().iter().any(|write| self.read_at.get(&write.key).is_some_and(|read_at| *read_at > at)) {
            return false;
        }
        for read in transaction.reads() {
            let read_at = self.read_at.entry(read.key.clone()).or_insert(Timestamp::ZERO);
            *read_at = at.max(*read_at);
        }
        for write in transaction.writes() {
            self.versions.entry(write.key.clone()).or_default().insert(at, write.value.clone());
        }
        true
    }

    /// Another transaction with the newest version's timestamp turns out to be the one that committed.
    pub fn replace(&mut self, name: &str, value: &str) {
        let versions = self.versions.get_mut(&key(name)).expect("it was written");
        *versions.values_mut().next_back().expect("it was written") = Some(Value::from(value));
    }

    pub fn newest(&self) -> BTreeMap<Key, Value> {
        let newest = |versions: &BTreeMap<Timestamp, Option<Value>>| versions.last_key_value().and_then(|(_, value)| value.clone());
        self.versions.iter().filter_map(|(key, versions)| Some((key.clone(), newest(versions)?))).collect()
    }
}

/// What the pool asked for, and how far it has come.
#[derive(Debug)]
enum Step {
    Asked(Ask),
    Found(u64, Result<Vec<ReadFound>, Failure>),
    Ended(u64, Result<(Arc<Certificate>, Path), Failure>),
    Validated(u64),
}

/// What the network does to an step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    Done,
    Fails(Failure),
}

fn aborted(transaction: &Transaction) -> Arc<Certificate> {
    Arc::new(Certificate { id: transaction.id(), decision: Decision::Abort, proof: Proof::Fast(Vec::new()) })
}

/// A pool, its store, and what lies between.
#[derive(Debug)]
pub struct World {
    pub pool: Pool,
    pub store: Store,
    steps: Vec<Step>,
    pub outcomes: BTreeMap<u64, Result<BatchedCommit, Failed>>,
    pub works: BTreeMap<u64, (Vec<Operation>, Option<Buffer>)>,
    /// Transactions that were sent to be committed, by batch.
    pub sent: Vec<Transaction>,
    pub reads_sent: usize,
    clock: u64,
}

impl World {
    pub fn new(options: PoolOptions) -> Self {
        Self {
            pool: Pool::new(CLUSTER, options),
            store: Store::default(),
            steps: Vec::new(),
            outcomes: BTreeMap::new(),
            works: BTreeMap::new(),
            sent: Vec::new(),
            reads_sent: 0,
            clock: 1,
        }
    }

    pub fn now(&self) -> Time {
        Time(self.clock * 1_000_000)
    }

    pub fn timestamp(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::new(self.clock, ClientId(1))
    }

    /// A transaction whose operations are known comes.
    pub fn submit(&mut self, operations: &[Operation]) -> u64 {
        self.enter(operations, Work::Declared(operations.to_vec()), None)
    }

    /// A transaction begins to run on its own, and has not read yet.
    pub fn begin(&mut self) -> Buffer {
        Buffer::new(self.timestamp())
    }

    /// It runs some operations.
    pub fn run(&mut self, buffer: &mut Buffer, operations: &[Operation]) {
        for operation in operations {
            match operation {
                Operation::Get(key) if buffer.known(key).is_none() => {
                    let found = self.store.read(key, buffer.timestamp());
                    buffer.found(found);
                }
                Operation::Get(_) | Operation::Compare(..) => {}
                Operation::Put(key, value) => buffer.write(key.clone(), Some(value.clone())),
                Operation::Delete(key) => buffer.write(key.clone(), None),
            }
        }
    }

    /// It has run, and wants to commit.
    pub fn join(&mut self, buffer: Buffer) -> u64 {
        self.enter(&[], Work::Interactive(buffer.clone()), Some(buffer))
    }

    /// It runs and joins at once.
    pub fn submit_run(&mut self, operations: &[Operation]) -> u64 {
        let mut buffer = self.begin();
        self.run(&mut buffer, operations);
        self.join(buffer)
    }

    fn enter(&mut self, operations: &[Operation], work: Work, buffer: Option<Buffer>) -> u64 {
        let ticket = self.works.len() as u64;
        self.works.insert(ticket, (operations.to_vec(), buffer));
        self.pool.submit(self.now(), ticket, work).expect("there is room, and something to do");
        ticket
    }

    /// Somebody else's transaction commits.
    pub fn foreign_write(&mut self, name: &str, value: &str) {
        let at = self.timestamp();
        let write = basil::Write { key: key(name), value: Some(Value::from(value)) };
        let transaction = Transaction::new(CLUSTER, at, Vec::new(), vec![write]).expect("it is small");
        self.store.commit(&transaction);
    }

    /// Somebody else reads, with a clock that is ahead.
    pub fn foreign_read(&mut self, name: &str, ahead: u64) {
        let at = Timestamp::new(self.clock + ahead, ClientId(2));
        self.store.read(&key(name), at);
    }

    pub fn advance(&mut self) {
        let (now, mut clock) = (self.now(), self.clock);
        let mut out = Output::default();
        let timestamp = || {
            clock += 1;
            Timestamp::new(clock, ClientId(1))
        };
        self.pool.advance(now, timestamp, &mut out);
        self.clock = clock;
        self.take(out);
    }

    fn take(&mut self, out: Output) {
        self.steps.extend(out.asks.into_iter().map(Step::Asked));
        for (ticket, outcome) in out.outcomes {
            let earlier = self.outcomes.insert(ticket, outcome);
            assert!(earlier.is_none(), "{ticket} ended twice");
        }
    }

    /// Lets one step come one step further: to the store, or back from it.
    pub fn deliver(&mut self, which: usize, luck: Luck) {
        if self.steps.is_empty() {
            return;
        }
        let step = self.steps.remove(which % self.steps.len());
        let now = self.now();
        let mut out = Output::default();
        match step {
            Step::Asked(Ask::Read { batch, timestamp, keys, .. }) => {
                assert!(!keys.is_empty() && keys.is_sorted_by(|a, b| a < b), "a read names each key once");
                self.reads_sent += 1;
                let result = match luck {
                    Luck::Done => Ok(keys.iter().map(|key| self.store.read(key, timestamp)).collect()),
                    Luck::Fails(failure) => Err(failure),
                };
                self.steps.push(Step::Found(batch, result));
            }
            Step::Asked(Ask::Commit { batch, transaction, .. }) => {
                let id = transaction.id();
                let is_forbidden = self.store.forbidden.as_ref().is_some_and(|key| transaction.write_of(key).is_some());
                let result = match luck {
                    Luck::Done if is_forbidden => Err(Failure::Refused(Refusal::NotPermitted)),
                    Luck::Done => {
                        let decision = if self.store.commit(&transaction) { Decision::Commit } else { Decision::Abort };
                        Ok((Arc::new(Certificate { id, decision, proof: Proof::Fast(Vec::new()) }), Path::Fast))
                    }
                    Luck::Fails(failure) => Err(failure),
                };
                self.sent.push(transaction);
                self.steps.push(Step::Ended(batch, result));
            }
            Step::Asked(Ask::CommitReads { batch, transaction, validated }) => {
                assert!(transaction.writes().is_empty() && validated.len() == transaction.reads().len());
                let step = match luck {
                    Luck::Done if self.store.commit(&transaction) => Step::Validated(batch),
                    Luck::Done => Step::Ended(batch, Ok((aborted(&transaction), Path::Fast))),
                    Luck::Fails(failure) => Step::Ended(batch, Err(failure)),
                };
                self.sent.push(transaction);
                self.steps.push(step);
            }
            Step::Validated(batch) => self.pool.on_validated(now, batch, &mut out),
            Step::Found(batch, result) => self.pool.on_read(now, batch, result, &mut out),
            Step::Ended(batch, result) => self.pool.on_ended(now, batch, result, &mut out),
        }
        self.take(out);
    }

    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Delivers everything, and advances when the pool says that it can, until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.pool.can_advance(self.now()) {
                self.advance();
            }
            if self.steps.is_empty() {
                match self.pool.deadline() {
                    Some(deadline) => self.clock = self.clock.max(deadline.0 / 1_000_000 + 1),
                    None if self.pool.waiting() + self.pool.under_way() == 0 => return,
                    None => {}
                }
            }
            self.deliver(0, Luck::Done);
        }
        panic!("the pool does not come to rest: {:?}", self.pool);
    }

    pub fn committed(&self, ticket: u64) -> &BatchedCommit {
        self.outcomes[&ticket].as_ref().expect("it committed")
    }

    /// What a transaction's reads found, as text.
    pub fn values(&self, ticket: u64) -> Vec<Option<String>> {
        let text = |value: &Value| String::from_utf8(value.as_bytes().to_vec()).expect("tests write text");
        self.committed(ticket).values.iter().map(|value| value.as_ref().map(text)).collect()
    }
}
