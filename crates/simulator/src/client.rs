//! A client's process in the world: the machine, honest or not, and the transaction it is at.

use std::sync::Arc;

use basil::{Buffer, Command, Coordinator, CoordinatorOptions, Message, Transaction};
use crypto::Verified;
use machine::{Input, Machine, Outbox, Time, Voters};
use types::{ClientId, Cluster, Key, Party, Session, Timestamp, Value};

use crate::adversary::{AttackConfig, ByzantineClient, ByzantineEvent};
use crate::clock::Clock;
use crate::workload::{Ask, Plan};
use random::Random;

/// A client.
pub(crate) struct ClientActor {
    pub id: ClientId,
    pub clock: Clock,
    mind: Mind,
    cluster: Arc<Cluster>,
    options: CoordinatorOptions,
    pub random: Random,
    /// How many processes it has been.
    pub lives: u64,
    pub armed: Option<u64>,
    pub job: Option<Job>,
    operations: u64,
    last_time: u64,
    /// Transactions committed since the trouble ended.
    pub committed_since_heal: u64,
}

/// What drives a client's transactions.
enum Mind {
    Honest(Box<Coordinator>),
    Cheat(Box<ByzantineClient>),
}

/// What a client is asked, or hears.
pub(crate) type Heard = Input<Command, Verified<Message>>;

/// What a client says, and what it is told.
#[derive(Default)]
pub(crate) struct Said {
    pub sends: Vec<(Party, Message)>,
    pub events: Vec<ByzantineEvent>,
}

/// The transaction a client is at.
#[derive(Debug)]
pub(crate) struct Job {
    pub plan: Plan,
    /// What no other job of this client has.
    pub number: u64,
    pub tag: String,
    /// The number of the operation it waits for.
    pub operation: u64,
    /// Gone once it is being committed.
    pub buffer: Option<Buffer>,
    pub reads: Vec<(Key, Timestamp, Option<Value>)>,
    pub transaction: Option<Transaction>,
    /// The true time at which it began.
    pub began: u64,
}

/// What a client does next.
pub(crate) enum Next {
    /// Hand this to its machine.
    Command(Command),
    /// Commit this, having read from these; or, when it has only read, knowing for whom its reads are settled.
    Commit(Transaction, Vec<Transaction>, Option<Vec<Voters>>),
}

impl ClientActor {
    pub fn new(
        id: ClientId,
        cluster: Arc<Cluster>,
        options: CoordinatorOptions,
        clock: Clock,
        random: Random,
        cheat: Option<(AttackConfig, Random)>,
    ) -> Self {
        let coordinator = Coordinator::new(cluster.clone(), options);
        let mind = match cheat {
            None => Mind::Honest(Box::new(coordinator)),
            Some((habits, random)) => Mind::Cheat(Box::new(ByzantineClient::new(cluster.clone(), coordinator, habits, random))),
        };
        Self {
            id,
            clock,
            mind,
            cluster,
            options,
            random,
            lives: 1,
            armed: None,
            job: None,
            operations: 0,
            last_time: 0,
            committed_since_heal: 0,
        }
    }

    pub fn is_honest(&self) -> bool {
        matches!(self.mind, Mind::Honest(_))
    }

    pub fn party(&self) -> Party {
        Party::Client(self.id, Session(self.lives))
    }

    /// The process ends and another takes its place, which knows nothing.
    pub fn restart(&mut self) {
        self.lives += 1;
        self.clock.forget();
        self.forget();
    }

    /// Leaves what it is at.
    pub fn forget(&mut self) {
        let coordinator = Coordinator::new(self.cluster.clone(), self.options);
        match &mut self.mind {
            Mind::Honest(honest) => **honest = coordinator,
            Mind::Cheat(cheater) => cheater.forget(coordinator),
        }
        self.armed = None;
        self.job = None;
    }

    /// Begins a transaction.
    pub fn begin(&mut self, now: u64, plan: Plan) -> Next {
        // A client's timestamps are its own: no two are alike, also when the process is new and its clock was put back.
        self.last_time = self.clock.read(now).0.max(self.last_time + 1);
        let mut timestamp = Timestamp::new(self.last_time, self.id);
        if let Mind::Cheat(cheater) = &mut self.mind {
            timestamp = cheater.begin(timestamp);
        }
        self.operations += 1;
        let tag = format!("{}.{}", self.id, self.operations);
        let buffer = Some(Buffer::new(timestamp));
        self.job = Some(Job { plan, number: self.operations, tag, operation: 0, buffer, reads: Vec::new(), transaction: None, began: now });
        self.advance().expect("a job has just been given")
    }

    /// Goes on with its transaction as far as it can; nothing when there is none.
    pub fn advance(&mut self) -> Option<Next> {
        let job = self.job.as_mut()?;
        let buffer = job.buffer.as_mut()?;
        self.operations += 1;
        job.operation = self.operations;
        match job.plan.advance(buffer, &job.tag) {
            Ask::Read(keys) => {
                // Whether a reader says so beforehand is up to it: here, to the transaction's number.
                let read_only = job.plan.only_reads() && job.number % 2 == 0;
                Some(Next::Command(Command::Read { operation: job.operation, timestamp: buffer.timestamp(), keys, read_only }))
            }
            Ask::Commit => {
                let buffer = job.buffer.take()?;
                let validated = buffer.validated();
                let (transaction, dependencies) = buffer.finish(self.cluster.id()).expect("what plans do is far below any limit");
                job.transaction = Some(transaction.clone());
                Some(Next::Commit(transaction, dependencies, validated))
            }
        }
    }

    /// Steps its machine.
    pub fn step(&mut self, now: Time, heard: Heard) -> Said {
        match &mut self.mind {
            Mind::Honest(coordinator) => {
                let mut outbox = Outbox::default();
                coordinator.step(now, heard, &mut outbox);
                Said { sends: outbox.sends, events: outbox.events.into_iter().map(ByzantineEvent::Honest).collect() }
            }
            Mind::Cheat(cheater) => {
                let mut outbox = Outbox::default();
                cheater.step(now, heard, &mut outbox);
                Said { sends: outbox.sends, events: outbox.events }
            }
        }
    }

    /// When it wants to be woken, in true time.
    pub fn wakes_at(&self) -> Option<u64> {
        let deadline = match &self.mind {
            Mind::Honest(coordinator) => coordinator.deadline(),
            Mind::Cheat(cheater) => cheater.deadline(),
        };
        deadline.map(|deadline| self.clock.when(deadline))
    }
}
