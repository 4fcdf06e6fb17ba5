//! An interactive transaction: reads go to the cluster, writes wait for the commit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use basil::{Buffer, Certificate, Command, Decision, Event, Failure, Path};
use types::{Key, Timestamp, TransactionId, Value};

use crate::connection::Connection;
use crate::error::Error;
use crate::pool::Pool;

/// How a transaction came to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitPath {
    /// Every replica agreed at once: one round trip.
    Fast,
    /// The decision was written down first: two round trips.
    Slow,
    /// Another client or a replica finished it for this one.
    Recovered,
    /// It only read, and enough replicas vouch that what it read stays so: nothing had to be written anywhere, nobody voted.
    ReadOnly,
    /// It did nothing, so there was nothing to agree on.
    Empty,
}

/// A commit that the cluster has acknowledged: it lasts.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The transaction's name: the hash of all that it read and wrote. Those that committed together in a [`Pool`] share it.
    pub id: TransactionId,
    /// Its place in the serial order.
    pub timestamp: Timestamp,
    /// Its place among those that share the timestamp: 0, but for those that committed together in a [`Pool`].
    pub place: u32,
    /// How it came to be committed.
    pub path: CommitPath,
    /// The proof, which anyone with the cluster's public keys can check; none when there was nothing to vote on
    /// ([`CommitPath::ReadOnly`], [`CommitPath::Empty`]).
    pub certificate: Option<Arc<Certificate>>,
}

/// A transaction that runs. Cloning gives another handle to the same one; dropping all of them abandons it.
///
/// Every read sees the state as of the transaction's timestamp, and its own writes.
#[derive(Clone, Debug)]
pub struct Transaction {
    connection: Arc<Connection>,
    pool: Option<Pool>,
    read_only: bool,
    /// `None` once committed or abandoned.
    buffer: Arc<Mutex<Option<Buffer>>>,
}

impl Transaction {
    pub(crate) fn begin(connection: Arc<Connection>, pool: Option<Pool>, read_only: bool) -> Self {
        let buffer = Buffer::new(connection.next_timestamp());
        Self { connection, pool, read_only, buffer: Arc::new(Mutex::new(Some(buffer))) }
    }

    /// The value of `key`, or `None` when it has none.
    ///
    /// # Errors
    /// Any [`Error`]; a conflict shows at the commit, not here.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Value>, Error> {
        let mut values = self.get_many(std::slice::from_ref(&key.into())).await?;
        Ok(values.pop().flatten())
    }

    /// The values of `keys`, in their order, asked for in one round trip.
    ///
    /// # Errors
    /// Any [`Error`]; a conflict shows at the commit, not here.
    pub async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let (timestamp, missing) = {
            let slot = self.slot();
            let buffer = slot.as_ref().ok_or_else(ended)?;
            let mut missing: Vec<Key> = keys.iter().filter(|key| buffer.known(key).is_none()).cloned().collect();
            missing.sort_unstable();
            missing.dedup();
            (buffer.timestamp(), missing)
        };
        if !missing.is_empty() {
            self.connection.may_read(missing.iter())?;
            let waited_ms = self.connection.timeout_ms();
            let read_only = self.read_only;
            let event = self.connection.ask(|operation| Command::Read { operation, timestamp, keys: missing, read_only }).await?;
            let Some(Event::Read { result, .. }) = event else { return Err(Error::Closed) };
            let found = result.map_err(|failure| match failure {
                Failure::TimedOut => Error::Unavailable { waited_ms, detail: self.connection.troubles() },
                Failure::Refused(refusal) => Error::refused(refusal),
            })?;
            let mut slot = self.slot();
            let buffer = slot.as_mut().ok_or_else(ended)?;
            found.into_iter().for_each(|found| buffer.found(found));
        }
        let slot = self.slot();
        let buffer = slot.as_ref().ok_or_else(ended)?;
        Ok(keys.iter().map(|key| buffer.known(key).flatten()).collect())
    }

    /// Writes `value` to `key` when the transaction commits.
    pub fn put(&self, key: impl Into<Key>, value: impl Into<Value>) {
        self.write(key.into(), Some(value.into()));
    }

    /// Deletes `key` when the transaction commits.
    pub fn delete(&self, key: impl Into<Key>) {
        self.write(key.into(), None);
    }

    /// Writes into an ended transaction are lost with it: its commit has said so, or will.
    fn write(&self, key: Key, value: Option<Value>) {
        if let Some(buffer) = self.slot().as_mut() {
            buffer.write(key, value);
        }
    }

    /// The transaction's place in the serial order; `None` once it has ended.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.slot().as_ref().map(Buffer::timestamp)
    }

    /// Commits. When it returns `Ok`, all of the transaction took place, and lasts.
    ///
    /// # Errors
    /// [`Error::Conflict`]: none of it took place, begin again. [`Error::OutcomeUnknown`]: nobody knows yet. Any other: none
    /// of it took place.
    pub async fn commit(&self) -> Result<Commit, Error> {
        let began = Instant::now();
        let commit = self.commit_untimed().await?;
        self.connection.commit_metrics().observe(commit.path, began.elapsed());
        Ok(commit)
    }

    async fn commit_untimed(&self) -> Result<Commit, Error> {
        let buffer = self.slot().take().ok_or_else(ended)?;
        let timestamp = buffer.timestamp();
        let (empty, validated) = (buffer.is_empty(), buffer.validated());
        if self.read_only && buffer.writes() > 0 {
            return Err(Error::Invalid(
                "a transaction that was begun to read only has written; begin it with `begin` or `transact`".to_owned(),
            ));
        }
        // What only reads has mostly committed by now, and is cheap alone.
        if let Some(pool) = self.pool.as_ref().filter(|_| buffer.writes() > 0) {
            return pool.commit(buffer).await;
        }
        let (transaction, dependencies) =
            buffer.finish(self.connection.cluster().id()).map_err(|error| Error::Invalid(error.to_string()))?;
        let id = transaction.id();
        if empty {
            return Ok(Commit { id, timestamp, place: 0, path: CommitPath::Empty, certificate: None });
        }
        self.connection.may_write(transaction.writes().iter().map(|write| &write.key))?;
        let waited_ms = self.connection.timeout_ms();
        let ask = |operation| match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        };
        let result = match self.connection.ask(ask).await? {
            Some(Event::Ended { result, .. }) => result,
            Some(Event::Validated { .. }) => return Ok(Commit { id, timestamp, place: 0, path: CommitPath::ReadOnly, certificate: None }),
            Some(Event::Read { .. }) | None => return Err(Error::OutcomeUnknown { waited_ms }),
        };
        match result {
            Ok((certificate, path)) if certificate.decision == Decision::Commit => {
                let path = match path {
                    Path::Fast => CommitPath::Fast,
                    Path::Slow => CommitPath::Slow,
                    Path::Recovered => CommitPath::Recovered,
                };
                Ok(Commit { id, timestamp, place: 0, path, certificate: Some(certificate) })
            }
            Ok(_) => Err(Error::Conflict),
            Err(Failure::TimedOut) => Err(Error::OutcomeUnknown { waited_ms }),
            Err(Failure::Refused(refusal)) => Err(Error::refused(refusal)),
        }
    }

    /// Ends the transaction without a trace.
    pub fn abandon(&self) {
        self.slot().take();
    }

    fn slot(&self) -> MutexGuard<'_, Option<Buffer>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ended() -> Error {
    Error::Invalid("the transaction has already ended".to_owned())
}
