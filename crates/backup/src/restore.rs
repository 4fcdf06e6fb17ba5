//! Restoring a backup.

use std::path::PathBuf;

use client::{Client, Error as ClientError, Refusal};
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::chain::Chain;
use crate::content::Content;
use crate::take::last_key;
use crate::{Error, Progress, Summary};

/// How many rows are written in one transaction, at most, and how many bytes before another row.
const ROWS_A_TRANSACTION: usize = 1_000;
const BYTES_A_TRANSACTION: usize = 512 << 10;
/// How many transactions are under way.
const IN_FLIGHT: usize = 8;
/// How often one is tried: it may be done twice.
const TRIES: u32 = 5;
/// The most rows that are asked for at once.
const PAGE_ROWS_MAX: usize = 4_000;

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The backup.
    pub backup: Summary,
    /// How many transactions wrote it.
    pub transactions: u64,
}

/// Writes what the files hold, the oldest first, into a cluster that holds nothing, and then reads all of it again: it succeeds when the cluster
/// holds just that. With `over`, the cluster may hold part of it already, as after a restore that was cut short.
///
/// Nobody else should write meanwhile. All files are read and checked before anything is written: where one is damaged, the cluster stays as it was.
///
/// # Errors
/// [`Error::NotEmpty`], [`Error::Differs`], [`Error::Client`]; and what [`Chain`] says of the files.
pub async fn restore(client: &Client, paths: &[PathBuf], over: bool, progress: Progress<'_>) -> Result<Restored, Error> {
    // A file may show only at its end that it is damaged.
    let whole = Chain::open(paths)?.finish()?;
    if !over {
        let found = client.read(|txn| async move { txn.scan(Key::default(), last_key(), 1).await }).await?;
        if let Some((key, _)) = found.value.first() {
            return Err(Error::NotEmpty(if key.as_bytes().is_empty() { "''".to_owned() } else { key.to_string() }));
        }
    }
    let mut chain = Chain::open(paths)?;
    let (mut rows, mut transactions, mut under_way) = (0, 0, JoinSet::new());
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let row = chain.next_row()?;
        let is_last = row.is_none();
        if let Some((key, value)) = row {
            bytes += key.as_bytes().len() + value.as_bytes().len();
            batch.push((key, value));
            rows += 1;
        }
        if !batch.is_empty() && (is_last || batch.len() >= ROWS_A_TRANSACTION || bytes >= BYTES_A_TRANSACTION) {
            transactions += 1;
            bytes = 0;
            under_way.spawn(write(client.clone(), std::mem::take(&mut batch)));
            progress(rows);
        }
        while under_way.len() >= if is_last { 1 } else { IN_FLIGHT }
            && let Some(written) = under_way.join_next().await
        {
            written.map_err(|_| ClientError::Closed)??;
        }
        if is_last {
            break;
        }
    }
    let found = content(client, progress).await?;
    if found != whole.content {
        return Err(Error::Differs { found, expected: whole.content });
    }
    Ok(Restored { backup: whole, transactions })
}

async fn write(client: Client, rows: Vec<(Key, Value)>) -> Result<(), ClientError> {
    let rows = &rows;
    let mut tried = 1;
    loop {
        let written = client.transact(|txn| async move {
            rows.iter().for_each(|(key, value)| txn.put(key.clone(), value.clone()));
            Ok(())
        });
        match written.await {
            Ok(_) => return Ok(()),
            Err(ClientError::OutcomeUnknown { .. } | ClientError::Conflict | ClientError::Unavailable { .. }) if tried < TRIES => {
                tried += 1
            }
            Err(error) => return Err(error),
        }
    }
}

/// The digest of all rows that a cluster holds now, in which nobody writes.
async fn content(client: &Client, progress: Progress<'_>) -> Result<String, Error> {
    let (mut pages, mut content) = (Pages::new(client), Content::default());
    while let Some(rows) = pages.next().await? {
        rows.iter().for_each(|(key, value)| content.add(key, value));
        progress(content.rows());
    }
    Ok(content.digest())
}

/// All rows of a database to which nobody writes, a page at a time, in the order of their keys.
struct Pages<'a> {
    client: &'a Client,
    /// The first key that was not read; nothing when all were.
    low: Option<Key>,
    rows_max: usize,
}

impl<'a> Pages<'a> {
    fn new(client: &'a Client) -> Self {
        Self { client, low: Some(Key::default()), rows_max: PAGE_ROWS_MAX }
    }

    /// The next page; nothing after the last. None is empty.
    async fn next(&mut self) -> Result<Option<Vec<(Key, Value)>>, Error> {
        while let Some(low) = self.low.clone() {
            let last = last_key();
            let rows = if low == last {
                let value = self.client.begin_read_only().get(last.clone()).await?;
                value.map(|value| (last, value)).into_iter().collect()
            } else {
                match self.client.begin_read_only().scan(low, last.clone(), self.rows_max).await {
                    Ok(rows) => rows,
                    Err(ClientError::Refused(Refusal::AnswerTooLarge)) if self.rows_max > 1 => {
                        self.rows_max = (self.rows_max / 8).max(1);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            };
            self.rows_max = (self.rows_max * 2).min(PAGE_ROWS_MAX);
            self.low = match rows.last() {
                Some((key, _)) => key.successor(),
                // Only the last key of all is left.
                None => self.low.take().filter(|low| *low < last_key()).map(|_| last_key()),
            };
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }
}
