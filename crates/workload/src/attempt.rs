//! Running a transaction that may decide to roll back, or find what cannot be.

use client::{Client, Transaction};
use types::{Key, Value};

use crate::row::Cents;
use crate::{Done, Error, KEYS_A_REQUEST_MAX, Reading};

/// Why a transaction's work stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The client says so.
    Client(client::Error),
    /// It is to roll back: the application wants it so.
    RollBack,
    /// What it read cannot be. It must not have written anything yet.
    Broken(String),
}

impl From<client::Error> for Stop {
    fn from(error: client::Error) -> Self {
        Self::Client(error)
    }
}

/// What takes a transaction that rolls back out of the client's loop.
#[derive(Debug, thiserror::Error)]
#[error("the transaction was rolled back")]
struct RolledBack;

/// Reads `keys`, as many in one request as it takes, or one after another.
pub(crate) async fn read(txn: &Transaction, keys: &[Key], reading: Reading) -> Result<Vec<Option<Value>>, client::Error> {
    let mut values = Vec::with_capacity(keys.len());
    match reading {
        Reading::Together => {
            for keys in keys.chunks(KEYS_A_REQUEST_MAX) {
                values.extend(txn.get_many(keys).await?);
            }
        }
        Reading::OneByOne => {
            for key in keys {
                values.push(txn.get(key.clone()).await?);
            }
        }
    }
    Ok(values)
}

/// A count, one higher.
pub(crate) fn one_more(count: u32) -> Result<u32, Stop> {
    count.checked_add(1).ok_or_else(|| Stop::Broken("a count is at its end".to_owned()))
}

/// Two sums of money together.
pub(crate) fn sum(one: Cents, other: Cents) -> Result<Cents, Stop> {
    one.plus(other).ok_or_else(|| Stop::Broken(format!("{one} and {other} together are more than any row can hold")))
}

/// Runs `work` to its commit, retries included. Gives what it returned, if it committed to the end. Work that only reads says so beforehand.
///
/// Work that finds what cannot be is committed all the same, as far as it read: an attempt may well see such a thing by
/// reading at an unlucky moment, but then it cannot commit. What is reported has been committed.
pub(crate) async fn run<T, F, W>(client: &Client, only_reads: bool, work: W) -> Result<(Option<T>, Done), Error>
where
    W: Fn(Transaction) -> F,
    F: Future<Output = Result<T, Stop>>,
{
    let attempt = |txn: Transaction| {
        let work = work(txn);
        async move {
            match work.await {
                Ok(value) => Ok(Ok(value)),
                Err(Stop::Broken(what)) => Ok(Err(what)),
                Err(Stop::RollBack) => Err(client::Error::application(RolledBack)),
                Err(Stop::Client(error)) => Err(error),
            }
        }
    };
    let ended = if only_reads { client.read(attempt).await } else { client.transact(attempt).await };
    match ended {
        Ok(committed) => {
            let done = Done::committed(&committed);
            Ok(match committed.value {
                Ok(value) => (Some(value), done),
                Err(what) => (None, Done { broken: Some(what), ..done }),
            })
        }
        Err(client::Error::Application(error)) if error.is::<RolledBack>() => Ok((None, Done { path: None, attempts: 1, broken: None })),
        Err(error) => Err(error.into()),
    }
}
