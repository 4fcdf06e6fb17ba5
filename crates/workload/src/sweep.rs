//! Reading a whole table, to check it: many keys a transaction, several transactions in flight.

use std::ops::Range;
use std::sync::Arc;

use client::{Client, Transaction};
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::{Error, KEYS_A_REQUEST_MAX, Progress, persist};

/// How many transactions are in flight at once.
const SWEEP_IN_FLIGHT: usize = 8;

/// What one of them read.
type Piece = (Range<u64>, Vec<Option<Value>>);

/// Reads the keys of rows 0 to `count - 1` and hands each row's number and value to `take`, in no order. The rows are read
/// in several transactions, so that they belong together only if nobody writes meanwhile.
pub(crate) async fn sweep(
    client: &Client,
    count: u64,
    key: impl Fn(u64) -> Key,
    progress: Progress<'_>,
    mut take: impl FnMut(u64, Option<Value>),
) -> Result<(), Error> {
    let mut flights: JoinSet<Result<Piece, Error>> = JoinSet::new();
    let (mut next, mut done) = (0, 0);
    loop {
        while next < count && flights.len() < SWEEP_IN_FLIGHT {
            let rows = next..(next + KEYS_A_REQUEST_MAX as u64).min(count);
            let keys: Arc<[Key]> = rows.clone().map(&key).collect();
            let client = client.clone();
            next = rows.end;
            flights.spawn(async move { Ok((rows, read(&client, keys).await?)) });
        }
        let Some(flown) = flights.join_next().await else { return Ok(()) };
        // Dropping the set on the way out stops what else is in flight.
        let (rows, values) = flown.expect("a read neither panics nor is stopped while its set lives")?;
        done += rows.end - rows.start;
        rows.zip(values).for_each(|(row, value)| take(row, value));
        progress(done, count);
    }
}

/// The values of `keys`, read in one transaction.
pub(crate) async fn read(client: &Client, keys: Arc<[Key]>) -> Result<Vec<Option<Value>>, Error> {
    let read = |txn: Transaction| {
        let keys = Arc::clone(&keys);
        async move {
            let mut values = Vec::with_capacity(keys.len());
            for keys in keys.chunks(KEYS_A_REQUEST_MAX) {
                values.extend(txn.get_many(keys).await?);
            }
            Ok(values)
        }
    };
    persist(client, read).await
}
