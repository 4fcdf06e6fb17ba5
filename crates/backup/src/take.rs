//! Taking a backup.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use client::{AsOf, Client, Error as ClientError, Pages};
use types::limits::KEY_BYTES_MAX;
use types::{Key, Value};

use crate::chain::Chain;
use crate::content::Content;
use crate::file::{Header, Writer};
use crate::{Error, Progress, Summary};

/// How often a page is asked for, each time for as long as an operation may take.
const PAGE_TRIES: u32 = 3;

/// Writes all rows of the database, as they are when this is called, to a new file; with backups of `before`, the oldest first, only what
/// has changed since the last of them.
///
/// # Errors
/// [`Error::Client`], as when too few replicas still have what was there, or the client may not read every key; [`Error::File`]; what [`Chain`] says of the files before.
pub async fn take(client: &Client, path: &Path, before: &[PathBuf], progress: Progress<'_>) -> Result<Summary, Error> {
    let cluster = hex::encode(client.cluster().id().as_bytes());
    let since = if before.is_empty() { None } else { Some(Chain::open(before)?.finish()?.content) };
    let mut old = if before.is_empty() { None } else { Some(Chain::open(before)?) };
    if old.as_ref().is_some_and(|old| old.header().cluster != cluster) {
        return Err(Error::Chain("the backups before are of another cluster".to_owned()));
    }
    // A time that the client chose by a clock that may have shown too little is found out by a read, and chosen anew. No range holds the last key of all.
    let begun = client.read_as_of(AsOf::Ago(Duration::ZERO), |txn| async move { txn.get(last_key()).await }).await?;
    // The timestamp of a transaction that reads the past is the first one after that time.
    let as_of = begun.commit.timestamp.time - 1;
    let header = Header { cluster, as_of, since };
    if let Some(old) = &old {
        old.header().check_next(&header, &format!("{} would follow the backups before", path.display()))?;
    }
    let mut writer = Writer::new(path, &header)?;
    let mut content = Content::default();
    let moment = AsOf::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(as_of));
    let mut pages = client.pages(Key::default(), last_key(), moment);
    let mut last = begun.value.map(|value| vec![(last_key(), value)]);
    let mut next_old = match &mut old {
        Some(old) => old.next_row()?,
        None => None,
    };
    while let Some(rows) = next(&mut pages).await?.or_else(|| last.take()) {
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

/// The next page. Where too few replicas answer, it is asked for again: the moment is kept for longer than that takes.
async fn next(pages: &mut Pages) -> Result<Option<Vec<(Key, Value)>>, Error> {
    let mut tried = 1;
    loop {
        match pages.next().await {
            Err(ClientError::Unavailable { .. }) if tried < PAGE_TRIES => tried += 1,
            answer => return Ok(answer?),
        }
    }
}

/// The last key that there may be.
pub(crate) fn last_key() -> Key {
    Key::new(vec![0xff; KEY_BYTES_MAX]).expect("it is as long as keys may be")
}
