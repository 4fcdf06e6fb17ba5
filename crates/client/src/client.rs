//! The way in: connect once, run many transactions at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng as _;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::{Advice, ConnectError, Error};
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
/// use client::{Client, Config};
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
}

impl Client {
    /// Connects to the cluster that `config` names, and waits until transactions can commit.
    ///
    /// # Errors
    /// [`ConnectError`], which says of every replica not reached why.
    pub async fn connect(config: Config) -> Result<Self, ConnectError> {
        let retry = Duration::from_millis(config.timeouts.retry_ms);
        Ok(Self { connection: Connection::open(config).await?, retry })
    }

    /// Begins a transaction now. Nothing is sent before its first read or its commit.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::begin(Arc::clone(&self.connection))
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
        let started = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(&work).await {
                Ok((value, commit)) => return Ok(Committed { value, commit, attempts }),
                Err(error) if error.advice() == Advice::Retry && started.elapsed() < self.retry => {
                    tokio::time::sleep(backoff(attempts)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn attempt<T, F, W>(&self, work: &W) -> Result<(T, Commit), Error>
    where
        W: Fn(Transaction) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let transaction = self.begin();
        let value = work(transaction.clone()).await?;
        let commit = transaction.commit().await?;
        Ok((value, commit))
    }

    /// What this process has counted, in Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.connection.metrics().to_text()
    }

    /// Writes what is queued and closes the connections. Transactions under way end with [`Error::Closed`].
    pub async fn close(&self) {
        self.connection.close().await;
    }
}

/// Between half and all of a wait that doubles.
fn backoff(attempts: u32) -> Duration {
    let longest = (BACKOFF_US_MIN << attempts.min(16)).min(BACKOFF_US_MAX);
    Duration::from_micros(rand::rng().random_range(longest / 2..=longest))
}
