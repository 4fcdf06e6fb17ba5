//! The way in: connect once, run many transactions at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use crypto::{Chain, SignedConfiguration, Verified};
use engine::{Advice, Capabilities, Commit, Operation, PoolMaker, PoolOptions, Refusal, Request, Response, Session, Statistics};
use rand::Rng as _;
use runtime::{NotTakenOver, Wire};
use types::{Cluster, Key, Party, ReplicaId, Value};

use crate::connection::Connection;
use crate::error::{ConnectError, Error};
use crate::notices::Notices;
use crate::pages::Pages;
use crate::pool::Pool;
use crate::transaction::{Transaction, run_alone};

/// The first wait before a transaction is begun again, in microseconds; doubled each time.
const BACKOFF_US_MIN: u64 = 500;
/// The longest wait before a transaction is begun again, in microseconds.
const BACKOFF_US_MAX: u64 = 100_000;

/// What a committed transaction came to.
#[derive(Clone, Debug)]
pub struct Committed<T> {
    /// What the closure returned.
    pub value: T,
    /// The commit.
    pub commit: Commit,
    /// How many times it was begun, the last included.
    pub attempts: u32,
}

impl<T> Committed<T> {
    fn new(((value, commit), attempts): ((T, Commit), u32)) -> Self {
        Self { value, commit, attempts }
    }
}

/// A time in the past, by the replicas' clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsOf {
    /// This time.
    Time(SystemTime),
    /// So long before now. Of no time at all, whatever was acknowledged before it is asked for is in it.
    Ago(Duration),
}

/// A connected client. Cloning shares the connections. `bezant-client`'s page has an example.
///
/// It works for as long as the tokio runtime on which it was connected, and no longer: its connections run there. When that runtime has ended, every call
/// ends with [`Error::Closed`], or with [`Error::OutcomeUnknown`] where a commit was under way. When the last handle is dropped without
/// [`Client::close`], what is queued for the replicas is lost: they may have to learn by themselves how its last transactions ended, which holds up others
/// that meet these, and counts as left to others. While that runtime stands still, as one of a single thread does
/// outside `block_on`, calls on other runtimes wait.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    retry: Duration,
    /// Where its transactions join others, if they do.
    pool: Option<Pool>,
}

impl Client {
    /// Connects to the cluster that `config` names by a session of its engine, and waits until transactions can commit. `session` makes
    /// that, of whose it is; `pools` makes the engine's pools, if it has any. Applications call `bezant_client::connect`, which knows the engines.
    ///
    /// # Errors
    /// [`ConnectError`], which says of every replica not reached why.
    pub async fn start<S, W>(config: Config, session: impl FnOnce(Party) -> S, pools: Option<PoolMaker>) -> Result<Self, ConnectError>
    where
        W: Wire,
        S: Session<Received = Verified<W>, Message = W> + Send + 'static,
    {
        let retry = Duration::from_millis(config.timeouts.retry_ms);
        Ok(Self { connection: Connection::open(config, session, pools).await?, retry, pool: None })
    }

    pub(crate) fn pooled(connection: Arc<Connection>, retry: Duration, pool: Pool) -> Self {
        Self { connection, retry, pool: Some(pool) }
    }

    /// All configurations of the cluster that this process knows, up to the newest.
    #[must_use]
    pub fn chain(&self) -> Arc<Chain> {
        self.connection.chain()
    }

    /// Takes over the next configuration, which its operators signed, and hands it to all replicas that are connected.
    ///
    /// # Errors
    /// [`NotTakenOver`]: the rule that it breaks. Then nothing has changed.
    pub fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        self.connection.take_over(next)
    }

    /// Up to which version each replica that is connected has said to have the configurations.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<ReplicaId, u64> {
        self.connection.versions()
    }

    /// A new pool: transactions of this process that are given to it are joined into few, which is cheaper for all. [`Pool`] has
    /// an example.
    ///
    /// # Errors
    /// [`Error::Refused`], when the cluster's engine has no pool.
    pub fn pool(&self, options: PoolOptions) -> Result<Pool, Error> {
        Pool::new(Arc::clone(&self.connection), self.retry, options)
    }

    /// Begins a transaction now. Nothing is sent before its first read or its commit.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::begin(Arc::clone(&self.connection), self.pool.clone())
    }

    /// Begins a transaction that will only read. An engine that knows this beforehand may ask in another way, so that the
    /// transaction has mostly committed when its last read returns. Its commit refuses writes.
    #[must_use]
    pub fn begin_read_only(&self) -> Transaction {
        Transaction::begin(Arc::clone(&self.connection), None).only_reading()
    }

    /// Begins a transaction that reads the past: what was there at `as_of`. What it reads is final when it returns, and so is of one state
    /// of the database whether it commits or not. Its commit refuses writes.
    ///
    /// Of [`AsOf::Ago`] a read may end in [`Error::TooOld`]: what the replicas' clocks showed was not known well enough when this was called, as
    /// after a pause of this machine. Then begin it again; [`Client::read_as_of`] does so by itself.
    ///
    /// # Errors
    /// [`Refusal::NotPast`] in [`Error::Refused`], when the time has not come yet by the replicas' clocks.
    pub fn begin_as_of(&self, as_of: AsOf) -> Result<Transaction, Error> {
        let place = self.connection.as_of(as_of)?;
        Ok(Transaction::begin(Arc::clone(&self.connection), None).reading_as_of(place))
    }

    /// Runs `work` in a transaction and commits it; begins again, after a growing and jittered wait, when it conflicts with
    /// another. `work` may run many times: what it does beside its transaction should not matter.
    ///
    /// When the future is dropped, as by a timeout around it, the transaction is not begun again; but if it was being committed, it may still take
    /// place, as with [`Transaction::commit`].
    ///
    /// # Errors
    /// The first [`Error`] whose [advice](Error::advice) is not to begin again; or the last one, when the time for retries (`retry_timeout_ms` in
    /// `client.toml`) is over, or would be before it may be begun again.
    pub async fn transact<T, F, W>(&self, work: W) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        self.run_retried(work, || self.begin()).await
    }

    /// Like [`Client::transact`], for work that only reads ([`Client::begin_read_only`]): what it reads is one state of the whole
    /// database.
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
    /// use types::Key;
    ///
    /// let accounts: Vec<Key> = ["ann", "bob"].map(Key::from).to_vec();
    /// let seen = client.read(|txn| { let accounts = accounts.clone(); async move { txn.get_many(&accounts).await } }).await?;
    /// println!("{:?}, all at {:?}", seen.value, seen.commit.timestamp);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::transact`]; [`Error::Invalid`] when `work` writes.
    pub async fn read<T, F, W>(&self, work: W) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        self.run_retried(work, || self.begin_read_only()).await
    }

    /// Like [`Client::read`], of the past: `work` reads what was there at `as_of`, all that had committed by then and nothing later.
    /// Whoever reads as of the same time again reads the same. How far back the replicas keep it is a setting of theirs (`window_ms`).
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
    /// use std::time::Duration;
    ///
    /// use client::AsOf;
    ///
    /// let before = client.read_as_of(AsOf::Ago(Duration::from_secs(5)), |txn| async move { txn.get("ann").await }).await?;
    /// println!("five seconds ago Ann had {:?}", before.value);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotKept`] in [`Error::Refused`] when the replicas no longer keep so much, [`Refusal::NotPast`] when the time has not come
    /// yet, [`Refusal::NotHeld`] when replicas that hold single moments let go of this one, [`Error::Invalid`] for any other time on such an engine, and
    /// [`Refusal::Unsupported`] on one that cannot read the past. Else as [`Client::read`]; it never conflicts where replicas keep all of
    /// the past for a while.
    pub async fn read_as_of<T, F, W>(&self, as_of: AsOf, work: W) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let work = &work;
        let once = |since| {
            let begun = self.begin_as_of(as_of);
            async move { attempt(work, begun?.wanted_since(since)).await }
        };
        Ok(Committed::new(self.retried(once).await?))
    }

    /// The keys from `low` (included) to `high` (excluded) that had values at `as_of`, in order, with their values, however many they are: a page at a time, all as of
    /// one moment. [`AsOf::Ago`] with no time is now.
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
    /// use std::time::Duration;
    ///
    /// use client::AsOf;
    ///
    /// let mut pages = client.pages("account/", "account0", AsOf::Ago(Duration::ZERO));
    /// while let Some(rows) = pages.next().await? {
    ///     for (key, value) in rows {
    ///         println!("{key} {value}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A client that may read every key may take as long as it likes, as replicas keep the moment while it reads on. For others those of `basil` keep it for their window
    /// (`window_ms`, 10 s as a rule), and whoever takes longer is refused ([`Refusal::NotKept`]). Those of `augustus` hold it until it is not read for a minute, or too much is
    /// changed after it ([`Refusal::NotHeld`]).
    #[must_use]
    pub fn pages(&self, low: impl Into<Key>, high: impl Into<Key>, as_of: AsOf) -> Pages {
        Pages::new(self.clone(), low.into(), high.into(), as_of)
    }

    /// Runs a transaction whose operations are all known, in their order; gives what its [`Operation::Get`]s found. Tries again
    /// when it conflicts with another. An engine with one-shot transactions runs it in one step ([`Client::submit`]). In a pool, it
    /// may be part of a batch ([`Pool::run`]). Else its reads go out together, and then it commits.
    ///
    /// # Errors
    /// As [`Client::transact`]; [`Refusal::CompareFailed`] in [`Error::Refused`] when an [`Operation::Compare`] fails.
    pub async fn run(&self, operations: Vec<Operation>) -> Result<Committed<Vec<Option<Value>>>, Error> {
        let compares = operations.iter().any(|operation| matches!(operation, Operation::Compare(..)));
        if let Some(pool) = self.pool.as_ref().filter(|_| !compares) {
            return pool.run(operations).await;
        }
        if self.capabilities().one_shot {
            return Ok(Committed::new(self.retried(|since| self.submit_once(since, operations.clone())).await?));
        }
        let operations: Arc<[Operation]> = operations.into();
        let writes = operations.iter().any(|operation| operation.write().is_some());
        let begin = || {
            let alone = Transaction::begin(Arc::clone(&self.connection), None);
            if writes { alone } else { alone.only_reading() }
        };
        let Committed { value, commit, attempts } = self.run_retried(|txn| run_alone(txn, Arc::clone(&operations)), begin).await?;
        // What was compared has committed: until then it might have been taken back.
        let value = value.map_err(|operation| Error::Refused(Refusal::CompareFailed { operation }))?;
        Ok(Committed { value, commit, attempts })
    }

    /// Runs a transaction whose operations are all known in one step of the engine's order, once: comparisons first, then all
    /// others; none when a comparison fails. Gives what its [`Operation::Get`]s found.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Refusal::Unsupported`] on an engine without one-shot transactions, where [`Client::run`] does the
    /// same in more steps; with [`Refusal::CompareFailed`] when a comparison fails. Else as [`Client::transact`], without retries.
    pub async fn submit(&self, operations: Vec<Operation>) -> Result<Committed<Vec<Option<Value>>>, Error> {
        let (value, commit) = self.submit_once(None, operations).await?;
        Ok(Committed { value, commit, attempts: 1 })
    }

    async fn submit_once(&self, since: Option<Instant>, operations: Vec<Operation>) -> Result<(Vec<Option<Value>>, Commit), Error> {
        let connection = &self.connection;
        let (writes, reads): (Vec<&Operation>, Vec<&Operation>) = operations.iter().partition(|operation| operation.write().is_some());
        connection.may_read(reads.into_iter().map(Operation::key))?;
        connection.may_write(writes.into_iter().map(Operation::key))?;
        let only_reads = operations.iter().all(|operation| operation.write().is_none());
        let place = connection.begin(since.unwrap_or_else(Instant::now)).await?;
        let timestamp = connection.next_timestamp();
        match connection.ask_in(place, None, Request::Submit { timestamp, operations }).await? {
            Some(Ok(Response::Done { values, commit })) => Ok((values, commit)),
            Some(Err(refusal)) if only_reads => Err(connection.error(refusal.of_only_reads())),
            None if only_reads => Err(Error::Closed),
            Some(Ok(_)) | None => Err(connection.error(Refusal::OutcomeUnknown)),
            Some(Err(refusal)) => Err(connection.error(refusal)),
        }
    }

    /// The cluster: its shards, and which of them holds a key.
    #[must_use]
    pub fn cluster(&self) -> Arc<Cluster> {
        self.connection.cluster()
    }

    /// What the cluster's engine can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.connection.profile().capabilities
    }

    /// What to tell people when this machine's clock is far from the replicas'. Timestamps come from theirs, so it harms no
    /// transaction; but other programs go by it.
    #[must_use]
    pub fn clock_warning(&self) -> Option<String> {
        self.connection.clock_warning()
    }

    /// What servers say unasked, from now on.
    #[must_use]
    pub fn notices(&self) -> Notices {
        self.connection.notices()
    }

    async fn run_retried<T, F, W>(&self, work: W, begin: impl Fn() -> Transaction) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        Ok(Committed::new(self.retried(|since| attempt(&work, begin().wanted_since(since))).await?))
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Does something as often as its errors advise, within the time for that; gives how often it was done, too. It is told since when it wants
    /// to begin, where there was too much to do before.
    pub(crate) async fn retried<T, F>(&self, once: impl Fn(Option<Instant>) -> F) -> Result<(T, u32), Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = Instant::now();
        let (mut attempts, mut since) = (0, None);
        loop {
            attempts += 1;
            let began = Instant::now();
            match once(since).await {
                Ok(done) => return Ok((done, attempts)),
                Err(error) => {
                    let pause = match error.advice() {
                        Advice::Retry => {
                            since = None;
                            backoff(attempts)
                        }
                        // Never before that, and not all at once.
                        Advice::RetryAfter { ms } => {
                            let (pause, left) = (Duration::from_millis(ms.into()), self.retry.saturating_sub(started.elapsed()));
                            if pause > left {
                                // It would come back too late, and is told so now.
                                return Err(error);
                            }
                            since = since.or(Some(began));
                            pause.mul_f64(rand::rng().random_range(1.0..2.0)).min(left)
                        }
                        Advice::GiveUp | Advice::FixInput => return Err(error),
                    };
                    if started.elapsed() >= self.retry {
                        return Err(self.why_too_old(error, started.elapsed()));
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Who cannot reach enough replicas does not know what time it is there, either: each transaction is too old as long as that lasts.
    fn why_too_old(&self, error: Error, waited: Duration) -> Error {
        if !matches!(error, Error::TooOld) || !self.connection.is_cut_off() {
            return error;
        }
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        Error::Unavailable { waited_ms, detail: self.connection.missing_replicas() }
    }

    /// What this client's session has done since it connected, by its engine's names.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.connection.statistics()
    }

    /// What this process has counted, in Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.connection.metrics().to_text()
    }

    /// Writes what is queued and closes the connections. Call it before the last handle goes: what is queued tells the replicas how transactions
    /// have ended, and what they are not told they have to find out. Transactions under way end with [`Error::Closed`], or
    /// [`Error::OutcomeUnknown`] when they were being committed.
    pub async fn close(&self) {
        self.connection.close().await;
    }
}

async fn attempt<T, F, W>(work: &W, transaction: Transaction) -> Result<(T, Commit), Error>
where
    W: Fn(Transaction) -> F,
    F: Future<Output = Result<T, Error>>,
{
    let value = work(transaction.clone()).await?;
    let commit = transaction.commit().await?;
    Ok((value, commit))
}

/// Between half and all of a wait that doubles.
fn backoff(attempts: u32) -> Duration {
    let longest = (BACKOFF_US_MIN << attempts.min(16)).min(BACKOFF_US_MAX);
    Duration::from_micros(rand::rng().random_range(longest / 2..=longest))
}
