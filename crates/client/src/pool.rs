//! Many transactions as one: a pool joins transactions of one process, commits them together, and gives each its own result.

mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use engine::{
    Capability, Commit, Committed as Ended, NotTaken, Operation, PoolCounts, PoolOptions, PoolOutput, PoolRequest, Refusal, Work,
};
use machine::Time;
use rand::Rng as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use types::Value;

pub(crate) use metrics::PoolMetrics;

use crate::client::{Client, Committed};
use crate::connection::Connection;
use crate::error::Error;
use crate::transaction::Transaction;

/// Joins the transactions of one process into few. Cloning gives another handle to the same pool.
///
/// What a transaction costs the cluster is mostly what comes once for each: round trips, signatures, messages. In a pool many
/// share it. In exchange they share their fate at first: when a batch meets somebody else's transaction, it is tried
/// again in halves, until only those that really conflict are left to fail.
///
/// Transactions join at their commit. Until then they run on their own, as with [`Client::transact`]:
///
/// ```no_run
/// # async fn example(client: client::Client) -> Result<(), client::Error> {
/// use client::{PoolOptions, Error};
/// use types::Value;
///
/// let pool = client.pool(PoolOptions::default())?;
/// let visits = (0..100).map(|page| {
///     let pool = pool.clone();
///     tokio::spawn(async move {
///         pool.transact(|txn| async move {
///             let key = format!("visits/{page}");
///             let seen = txn.get(key.as_str()).await?.map_or(0, |value| value.as_bytes().len());
///             txn.put(key.as_str(), Value::from("x".repeat(seen + 1).as_str()));
///             Ok(())
///         })
///         .await
///     })
/// });
/// for visit in visits.collect::<Vec<_>>() {
///     let done = visit.await.map_err(Error::application)??;
///     println!("one of those at {:?}, in place {}", done.commit.timestamp, done.commit.place);
/// }
/// # Ok(())
/// # }
/// ```
///
/// A transaction whose operations are all known beforehand is [`Pool::run`]: it does not even read on its own. All reads of
/// a batch go out together, and it may read what another of its batch has written.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Arc<Connection>,
    retry: Duration,
    state: Mutex<State>,
    /// A place for each transaction that may be in the pool.
    places: Arc<Semaphore>,
    began: Instant,
    metrics: PoolMetrics,
}

struct State {
    machine: Box<dyn engine::Pool>,
    waiters: BTreeMap<u64, Waiter>,
    tickets: u64,
    /// Whether somebody is about to form batches.
    is_forming: bool,
    /// When somebody will look at what waits for its time.
    wakes_at: Option<Time>,
    /// The client's session has ended, or the pool has: nothing more is committed.
    is_closed: bool,
    /// What the metrics have been told.
    told: PoolCounts,
}

impl Pool {
    pub(crate) fn new(connection: Arc<Connection>, retry: Duration, options: PoolOptions) -> Result<Self, Error> {
        let members_max = options.members_max.clamp(1, Semaphore::MAX_PERMITS);
        let retry_ms = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
        let (keys_max, bytes_max) = connection.limits();
        let (batch_keys_max, batch_bytes_max) = (options.batch_keys_max.min(keys_max), options.batch_bytes_max.min(bytes_max));
        let options = PoolOptions { members_max, retry_ms, batch_keys_max, batch_bytes_max, seed: rand::rng().random(), ..options };
        let machine = connection.make_pool(options).ok_or_else(|| connection.error(Refusal::Unsupported(Capability::Pool)))?;
        let state = State {
            machine,
            waiters: BTreeMap::new(),
            tickets: 0,
            is_forming: false,
            wakes_at: None,
            is_closed: false,
            told: PoolCounts::default(),
        };
        let metrics = connection.pool_metrics();
        let shared = Shared {
            connection,
            retry,
            state: Mutex::new(state),
            places: Arc::new(Semaphore::new(members_max)),
            began: Instant::now(),
            metrics,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A client whose transactions join this pool: everything written for a [`Client`] runs on it unchanged.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::pooled(Arc::clone(&self.shared.connection), self.shared.retry, self.clone())
    }

    /// Like [`Client::transact`]; the transaction joins others at its commit.
    ///
    /// # Errors
    /// As [`Client::transact`], each transaction its own.
    pub async fn transact<T, F, W>(&self, work: W) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        self.client().transact(work).await
    }

    /// Runs a transaction whose operations are all known, in their order; gives what its [`Operation::Get`]s found. Tries again
    /// when it conflicts with another.
    ///
    /// ```no_run
    /// # async fn example(pool: client::Pool) -> Result<(), client::Error> {
    /// use client::Operation::{Get, Put};
    ///
    /// let done = pool.run(vec![Get("a".into()), Put("b".into(), "1".into()), Get("b".into())]).await?;
    /// assert_eq!(done.value[1], Some("1".into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// When the future is dropped, the transaction leaves the pool if it waits there. If its batch is under way, the transaction may still take place with
    /// that, also after what is read in the meantime, as with [`Transaction::commit`]; it is not tried again in another batch.
    ///
    /// # Errors
    /// As [`Client::transact`], each transaction its own.
    pub async fn run(&self, operations: Vec<Operation>) -> Result<Committed<Vec<Option<Value>>>, Error> {
        let connection = &self.shared.connection;
        if operations.iter().any(|operation| matches!(operation, Operation::Compare(..))) {
            // It would have to leave a batch again when its comparison fails.
            return Box::pin(self.client().run(operations)).await;
        }
        let is_read = |operation: &&Operation| operation.write().is_none();
        connection.may_read(operations.iter().filter(is_read).map(Operation::key))?;
        connection.may_write(operations.iter().filter(|operation| !is_read(operation)).map(Operation::key))?;
        if operations.is_empty() {
            let commit = Transaction::begin(Arc::clone(connection), None).commit().await?;
            return Ok(Committed { value: Vec::new(), commit, attempts: 1 });
        }
        let (keys, bytes) = size_of(&operations);
        connection.within_limits(keys, bytes)?;
        // The pool itself tries again what meets others. What the replicas have no time for comes back, as a client's own transactions do.
        let once = |_| self.shared.join(Work::Declared(operations.clone()));
        let (Ended { values, commit, attempts }, refused) = self.client().retried(once).await?;
        Ok(Committed { value: values, commit, attempts: attempts + refused - 1 })
    }

    /// Commits a transaction that has run, and has the right to write what it writes.
    pub(crate) async fn commit(&self, work: Work) -> Result<Commit, Error> {
        Ok(self.shared.join(work).await?.commit)
    }

    /// What the pool has done so far.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        self.shared.lock().machine.counts().clone()
    }

    /// How many transactions a batch may have at present.
    #[must_use]
    pub fn batch_limit(&self) -> usize {
        self.shared.lock().machine.batch_limit()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        let (waiting, under_way) = (state.machine.waiting(), state.machine.under_way());
        formatter.debug_struct("Pool").field("waiting", &waiting).field("under_way", &under_way).finish_non_exhaustive()
    }
}

/// How many keys a transaction reads and writes, and how many bytes it writes, as replicas count them.
fn size_of(operations: &[Operation]) -> (usize, usize) {
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeMap::new());
    for operation in operations {
        match operation.write() {
            Some((key, value)) => drop(writes.insert(key, key.as_bytes().len() + value.map_or(0, |value| value.as_bytes().len()))),
            // It reads its own write.
            None if writes.contains_key(operation.key()) => {}
            None => drop(reads.insert(operation.key())),
        }
    }
    (reads.len() + writes.len(), writes.values().sum())
}

/// Whoever waits for a transaction, and its place in the pool: it has that for as long as the transaction is under way, also when
/// nobody waits any more.
struct Waiter {
    teller: oneshot::Sender<Result<Ended, Refusal>>,
    _place: OwnedSemaphorePermit,
}

/// Takes a transaction out of the pool again when nobody waits for it any more.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    ticket: u64,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let due = {
            let mut state = self.shared.lock();
            if !state.machine.withdraw(self.ticket) {
                return;
            }
            state.waiters.remove(&self.ticket);
            self.shared.due(&mut state)
        };
        self.shared.start(due);
    }
}

/// What is to be begun on the client's runtime, as soon as the state is no longer locked: a runtime that has ended drops a task at once, and
/// what the [`Task`] does then needs the state.
#[derive(Debug, Default)]
struct Due {
    work: Option<DueWork>,
    requests: Vec<PoolRequest>,
}

#[derive(Debug)]
enum DueWork {
    /// Form batches.
    Form,
    /// Look again at this time.
    Look(Time),
}

/// Something that the pool does on the client's runtime. When the runtime ends, it drops what has not ended yet: then the pool is over, and
/// all who wait are told.
struct Task {
    /// One that only waits for its time keeps nothing alive.
    shared: Weak<Shared>,
    /// The batch whose request it carries.
    batch: Option<u64>,
    /// It has asked for a commit, and has no answer.
    is_committing: bool,
    is_over: bool,
}

impl Task {
    fn new(shared: &Arc<Shared>, batch: Option<u64>) -> Self {
        Self { shared: Arc::downgrade(shared), batch, is_committing: false, is_over: false }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        if !self.is_over {
            let refusal = if self.is_committing { Refusal::OutcomeUnknown } else { Refusal::Unavailable };
            shared.end(self.batch.map(|batch| (batch, refusal)));
        }
    }
}

impl Shared {
    /// Lets a transaction into the pool, and waits for its end.
    async fn join(self: &Arc<Self>, work: Work) -> Result<Ended, Error> {
        let entering = tokio::time::timeout(self.retry, Arc::clone(&self.places).acquire_owned());
        let place = entering.await.map_err(|_| self.error(Refusal::Unavailable))?.map_err(|_| Error::Closed)?;
        let (ticket, outcome) = self.enter(work, place)?;
        let mut waiting = Waiting { shared: self, ticket, is_over: false };
        let outcome = outcome.await;
        waiting.is_over = true;
        outcome.map_err(|_| Error::Closed)?.map_err(|refusal| self.error(refusal))
    }

    fn enter(self: &Arc<Self>, work: Work, place: OwnedSemaphorePermit) -> Result<(u64, oneshot::Receiver<Result<Ended, Refusal>>), Error> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Error::Closed);
        }
        state.tickets += 1;
        let ticket = state.tickets;
        match state.machine.submit(self.now(), ticket, work) {
            Ok(()) => {}
            // Both are seen to before.
            Err(NotTaken::Full) => return Err(Error::Invalid("the pool is full".to_owned())),
            Err(NotTaken::Empty) => return Err(Error::Invalid("the transaction does nothing".to_owned())),
            Err(NotTaken::Unfit) => return Err(Error::Invalid("the pool cannot run the transaction".to_owned())),
        }
        let (teller, outcome) = oneshot::channel();
        state.waiters.insert(ticket, Waiter { teller, _place: place });
        let due = self.due(&mut state);
        drop(state);
        self.start(due);
        Ok((ticket, outcome))
    }

    /// Sees to it that batches are formed, now or when some of those that wait may begin again.
    fn due(&self, state: &mut State) -> Due {
        let mut due = Due::default();
        if state.is_forming {
            return due;
        }
        let now = self.now();
        if state.machine.can_advance(now) {
            state.is_forming = true;
            due.work = Some(DueWork::Form);
        } else if let Some(deadline) = state.machine.deadline().filter(|deadline| *deadline > now)
            && state.wakes_at.is_none_or(|wakes_at| deadline < wakes_at)
        {
            state.wakes_at = Some(deadline);
            due.work = Some(DueWork::Look(deadline));
        }
        due
    }

    /// Begins what is due, while the state is not locked.
    fn start(self: &Arc<Self>, Due { work, requests }: Due) {
        let runtime = self.connection.runtime();
        match work {
            Some(DueWork::Form) => drop(runtime.spawn(Arc::clone(self).form(Task::new(self, None)))),
            Some(DueWork::Look(at)) => drop(runtime.spawn(Self::look_at(Task::new(self, None), at))),
            None => {}
        }
        for request in requests {
            runtime.spawn(Arc::clone(self).carry(Task::new(self, Some(request.batch)), request));
        }
    }

    async fn look_at(mut task: Task, at: Time) {
        let Some(wait) = task.shared.upgrade().map(|this| at.since(this.now())) else { return };
        tokio::time::sleep(Duration::from_nanos(wait)).await;
        let Some(this) = task.shared.upgrade() else { return };
        let due = {
            let mut state = this.lock();
            if state.wakes_at == Some(at) {
                state.wakes_at = None;
            }
            this.due(&mut state)
        };
        task.is_over = true;
        this.start(due);
    }

    /// Forms batches. Those who are about to bring a transaction, such as all whose last one has just ended, come first: it waits
    /// as long as others do something and more keep coming, and not a moment longer.
    async fn form(self: Arc<Self>, mut task: Task) {
        let mut waiting = 0;
        loop {
            tokio::task::yield_now().await;
            let state = self.lock();
            let now_waiting = state.machine.waiting();
            if now_waiting <= waiting || state.machine.has_full_batch() {
                break;
            }
            waiting = now_waiting;
        }
        let due = {
            let mut state = self.lock();
            state.is_forming = false;
            let mut out = PoolOutput::default();
            state.machine.advance(self.now(), &mut || self.connection.next_timestamp(), &mut out);
            self.tell(&mut state, out)
        };
        task.is_over = true;
        self.start(due);
    }

    /// Carries a batch's requests to the session and back, one after the other.
    async fn carry(self: Arc<Self>, mut task: Task, request: PoolRequest) {
        let mut next = Some(request);
        while let Some(PoolRequest { batch, commits, request }) = next.take() {
            (task.batch, task.is_committing) = (Some(batch), commits);
            let answer = self.connection.ask(request).await;
            let mut due = {
                let mut state = self.lock();
                let mut out = PoolOutput::default();
                let outcome = match answer {
                    Ok(Some(outcome)) => outcome,
                    // The session has ended, and nobody will answer any more. What was asked may have been done.
                    Ok(None) if commits => Err(Refusal::OutcomeUnknown),
                    Ok(None) | Err(_) => {
                        state.is_closed = true;
                        Err(Refusal::Unavailable)
                    }
                };
                state.machine.on_outcome(self.now(), batch, outcome, &mut out);
                self.tell(&mut state, out)
            };
            // From here on nothing is under way that it would have to end.
            (task.batch, task.is_committing) = (None, false);
            next = (!due.requests.is_empty()).then(|| due.requests.remove(0));
            self.start(due);
        }
        task.is_over = true;
    }

    /// Tells those whose transactions have ended, and gives what is to be done.
    fn tell(&self, state: &mut State, out: PoolOutput) -> Due {
        for (ticket, outcome) in out.outcomes {
            if let Some(waiter) = state.waiters.remove(&ticket) {
                // Whoever asked may have gone away meanwhile.
                drop(waiter.teller.send(outcome));
            }
        }
        self.metrics.tell(state.machine.counts(), &mut state.told);
        Due { requests: out.requests, ..self.due(state) }
    }

    /// Nobody does anything for the pool any more. Ends the batch whose task is gone, and all that wait; what other tasks carry they end.
    fn end(&self, carried: Option<(u64, Refusal)>) {
        let mut state = self.lock();
        state.is_closed = true;
        if std::thread::panicking() {
            // Nothing is known of the machine then, and it must not panic once more.
            for waiter in std::mem::take(&mut state.waiters).into_values() {
                drop(waiter.teller.send(Err(Refusal::OutcomeUnknown)));
            }
            return;
        }
        let mut out = PoolOutput::default();
        if let Some((batch, refusal)) = carried {
            state.machine.on_outcome(self.now(), batch, Err(refusal), &mut out);
        }
        // What would be asked next is not.
        while let Some(PoolRequest { batch, .. }) = out.requests.pop() {
            state.machine.on_outcome(self.now(), batch, Err(Refusal::Unavailable), &mut out);
        }
        for (ticket, outcome) in out.outcomes {
            if let Some(waiter) = state.waiters.remove(&ticket) {
                drop(waiter.teller.send(outcome));
            }
        }
        let tickets: Vec<u64> = state.waiters.keys().copied().collect();
        for ticket in tickets {
            if state.machine.withdraw(ticket) {
                state.waiters.remove(&ticket);
            }
        }
    }

    fn error(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Unavailable if self.lock().is_closed => Error::Closed,
            refusal => self.connection.error(refusal),
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
