//! The way in: connect once, run many transactions at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use rand::Rng as _;
use types::Value;

#[cfg(feature = "lab")]
use crate::adversary::{Cheating, MisbehaviorCounts};
use crate::connection::Connection;
use crate::error::{Advice, ConnectError, Error};
use crate::mind::Counts;
use crate::pool::{Operation, Pool, PoolOptions, run_alone};
use crate::transaction::{Commit, Transaction};

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

/// A connected client. Cloning shares the connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use client::Client;
/// use config::Config;
/// use types::{Key, Value};
///
/// let client = Client::connect(Config::load(std::path::Path::new("bezant-data"))?).await?;
/// let done = client
///     .transact(|txn| async move {
///         let seen = txn.get("visits").await?;
///         let visits = seen.and_then(|value| std::str::from_utf8(value.as_bytes()).ok()?.parse().ok()).unwrap_or(0u64);
///         txn.put("visits", Value::from((visits + 1).to_string().as_str()));
///         Ok(visits + 1)
///     })
///     .await?;
/// println!("visit {} is transaction {}", done.value, done.commit.id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    retry: Duration,
    /// Where its transactions join others, if they do.
    pool: Option<Pool>,
}

impl Client {
    /// Connects to the cluster that `config` names, and waits until transactions can commit.
    ///
    /// # Errors
    /// [`ConnectError`], which says of every replica not reached why.
    pub async fn connect(config: Config) -> Result<Self, ConnectError> {
        let retry = Duration::from_millis(config.timeouts.retry_ms);
        Ok(Self { connection: Connection::open(config, None).await?, retry, pool: None })
    }

    /// Connects as a client that cheats: see [`adversary`](crate::adversary). For tests and measurements only.
    ///
    /// # Errors
    /// As [`Client::connect`].
    #[cfg(feature = "lab")]
    pub async fn connect_cheating(config: Config, cheating: Cheating) -> Result<Self, ConnectError> {
        let retry = Duration::from_millis(config.timeouts.retry_ms);
        Ok(Self { connection: Connection::open(config, Some(cheating)).await?, retry, pool: None })
    }

    pub(crate) fn pooled(connection: Arc<Connection>, retry: Duration, pool: Pool) -> Self {
        Self { connection, retry, pool: Some(pool) }
    }

    /// A new pool: transactions of this process that are given to it are joined into few, which is cheaper for all. [`Pool`] has
    /// an example.
    #[must_use]
    pub fn pool(&self, options: PoolOptions) -> Pool {
        Pool::new(Arc::clone(&self.connection), self.retry, options)
    }

    /// Begins a transaction now. Nothing is sent before its first read or its commit.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::begin(Arc::clone(&self.connection), self.pool.clone(), false)
    }

    /// Begins a transaction that will only read. It asks `3f + 1` replicas at once instead of `2f + 1`, and so mostly has
    /// committed when its last read returns, without anybody voting. (Any transaction that turns out to have written nothing
    /// commits without votes, but then asks the others first.) Its commit refuses writes.
    #[must_use]
    pub fn begin_read_only(&self) -> Transaction {
        Transaction::begin(Arc::clone(&self.connection), None, true)
    }

    /// Runs `work` in a transaction and commits it; begins again, after a growing and jittered wait, when it conflicts with
    /// another. `work` may run many times: what it does beside its transaction should not matter.
    ///
    /// # Errors
    /// The first [`Error`] that is not a conflict; or the conflict, when the time for retries (`retry_ms` in `client.toml`) is over.
    pub async fn transact<T, F, W>(&self, work: W) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        self.persist(work, || self.begin()).await
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
        self.persist(work, || self.begin_read_only()).await
    }

    /// Runs a transaction whose operations are all known, in their order; gives what its [`Operation::Get`]s found. Tries again
    /// when it conflicts with another. In a pool, it may be part of a batch ([`Pool::run`]); else its reads go out together.
    ///
    /// # Errors
    /// As [`Client::transact`].
    pub async fn run(&self, operations: Vec<Operation>) -> Result<Committed<Vec<Option<Value>>>, Error> {
        if let Some(pool) = &self.pool {
            return pool.run(operations).await;
        }
        let operations: Arc<[Operation]> = operations.into();
        let writes = operations.iter().any(|operation| operation.write().is_some());
        let begin = || if writes { self.begin() } else { self.begin_read_only() };
        self.persist(|txn| run_alone(txn, Arc::clone(&operations)), begin).await
    }

    async fn persist<T, F, W>(&self, work: W, begin: impl Fn() -> Transaction) -> Result<Committed<T>, Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let started = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match attempt(&work, begin()).await {
                Ok((value, commit)) => return Ok(Committed { value, commit, attempts }),
                Err(error) if error.advice() == Advice::Retry && started.elapsed() < self.retry => {
                    tokio::time::sleep(backoff(attempts)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What this client has done since it connected.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.connection.board().counts()
    }

    /// What it has done in other ways than an honest client: nothing, unless it [cheats](Client::connect_cheating).
    #[cfg(feature = "lab")]
    #[must_use]
    pub fn deeds(&self) -> MisbehaviorCounts {
        self.connection.board().deeds()
    }

    /// What this process has counted, in Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.connection.metrics().to_text()
    }

    /// Writes what is queued and closes the connections. Transactions under way end with [`Error::Closed`], or
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
