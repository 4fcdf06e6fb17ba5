//! Taking a backup.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use client::{AsOf, Client, Error as ClientError, Refusal};
use types::limits::KEY_BYTES_MAX;
use types::{Key, Value};

use crate::chain::Chain;
use crate::content::Content;
use crate::file::{Header, Writer};
use crate::{Error, Progress, Summary};

/// The most rows that are asked for at once.
const PAGE_ROWS_MAX: usize = 4_000;

/// Writes all rows of the database, as they are when this is called, to a new file; with backups of `before`, the oldest first, only what
/// has changed since the last of them.
///
/// # Errors
/// [`Error::Client`], as when the replicas do not keep what was there for as long as reading all of it takes (`window_ms`), or the client may
/// not read every key; [`Error::File`]; what [`Chain`] says of the files before.
pub async fn take(client: &Client, path: &Path, before: &[PathBuf], progress: Progress<'_>) -> Result<Summary, Error> {
    let cluster = hex::encode(client.cluster().id().as_bytes());
    let since = if before.is_empty() { None } else { Some(Chain::open(before)?.finish()?.content) };
    let mut old = if before.is_empty() { None } else { Some(Chain::open(before)?) };
    if old.as_ref().is_some_and(|old| old.header().cluster != cluster) {
        return Err(Error::Chain("the backups before are of another cluster".to_owned()));
    }
    // A time that the client chose by a clock that may have shown too little is found out by a read, and chosen anew.
    let begun = client.read_as_of(AsOf::Ago(Duration::ZERO), |txn| async move { txn.get(last_key()).await }).await?;
    // The timestamp of a transaction that reads the past is the first one after that time.
    let as_of = begun.commit.timestamp.time - 1;
    let header = Header { cluster, as_of, since };
    if let Some(old) = &old {
        old.header().check_next(&header, &format!("{} would follow the backups before", path.display()))?;
    }
    let mut writer = Writer::new(path, &header)?;
    let mut content = Content::default();
    let mut pages = Pages::new(client, Some(as_of));
    let mut next_old = match &mut old {
        Some(old) => old.next_row()?,
        None => None,
    };
    while let Some(rows) = pages.next().await? {
        for (key, value) in rows {
            content.add(&key, &value);
            while let (Some(old), Some((old_key, _))) = (&mut old, &next_old)
                && *old_key < key
            {
                writer.add(old_key, None)?;
                next_old = old.next_row()?;
            }
            let mut is_changed = true;
            if let (Some(old), Some((old_key, old_value))) = (&mut old, &next_old)
                && *old_key == key
            {
                is_changed = *old_value != value;
                next_old = old.next_row()?;
            }
            if is_changed {
                writer.add(&key, Some(&value))?;
            }
        }
        progress(content.rows());
    }
    while let (Some(old), Some((old_key, _))) = (&mut old, &next_old) {
        writer.add(old_key, None)?;
        next_old = old.next_row()?;
    }
    let rows = content.rows();
    let end = writer.end(rows, content.digest())?;
    Ok(Summary { as_of, rows, rows_written: end.rows, content: end.content })
}

/// All rows of a database, a page at a time, in the order of their keys.
pub(crate) struct Pages<'a> {
    client: &'a Client,
    /// When, and what is left of it but for the last key of all; nothing where it is read as it comes, and nobody writes.
    past: Option<(AsOf, client::Pages)>,
    /// The first key that was not read; nothing when all were.
    low: Option<Key>,
    rows_max: usize,
}

impl<'a> Pages<'a> {
    pub fn new(client: &'a Client, as_of: Option<u64>) -> Self {
        let as_of = as_of.map(|as_of| AsOf::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(as_of)));
        let past = as_of.map(|as_of| (as_of, client.pages(Key::default(), last_key(), as_of)));
        Self { client, past, low: Some(Key::default()), rows_max: PAGE_ROWS_MAX }
    }

    /// The next page; nothing after the last. None is empty.
    pub async fn next(&mut self) -> Result<Option<Vec<(Key, Value)>>, Error> {
        if let Some((as_of, pages)) = &mut self.past {
            if let Some(rows) = pages.next().await? {
                return Ok(Some(rows));
            }
            // All that is left is the last key of all, which no range that ends there holds.
            if self.low.take().is_none() {
                return Ok(None);
            }
            let value = self.client.read_as_of(*as_of, |txn| async move { txn.get(last_key()).await }).await?.value;
            return Ok(value.map(|value| vec![(last_key(), value)]));
        }
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

/// The last key that there may be.
pub(crate) fn last_key() -> Key {
    Key::new(vec![0xff; KEY_BYTES_MAX]).expect("it is as long as keys may be")
}
