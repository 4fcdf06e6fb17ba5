//! Filling a table: many puts a transaction, several transactions in flight.

use std::sync::Arc;

use client::{Client, Transaction};
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::{Error, Progress, persist};

/// The most puts one loading transaction carries.
pub const LOAD_PUTS_MAX: u64 = 500;
/// The most bytes of values one loading transaction carries; large values mean fewer puts.
const LOAD_BYTES_MAX: u64 = 1 << 20;
/// How many loading transactions are in flight at once.
pub const LOAD_IN_FLIGHT: usize = 8;
/// What to put at an index. It must give the same for the same index: a batch may be written twice.
pub(crate) type Item = Arc<dyn Fn(u64) -> (Key, Value) + Send + Sync>;

/// Puts items 0 to `count - 1`, each of about `item_bytes`; gives how many that were.
pub(crate) async fn load(client: &Arc<Client>, count: u64, item_bytes: usize, item: Item, progress: Progress<'_>) -> Result<u64, Error> {
    let batch = (LOAD_BYTES_MAX / (item_bytes as u64).max(1)).clamp(1, LOAD_PUTS_MAX);
    let mut flights: JoinSet<Result<u64, Error>> = JoinSet::new();
    let (mut next, mut done) = (0, 0);
    progress(0, count);
    while done < count {
        while next < count && flights.len() < LOAD_IN_FLIGHT {
            let (from, to) = (next, (next + batch).min(count));
            let (client, item) = (Arc::clone(client), Arc::clone(&item));
            flights.spawn(async move { put_batch(&client, from, to, &item).await });
            next = to;
        }
        let flown = flights.join_next().await.expect("something is in flight while not all is done");
        // Dropping the set on the way out stops what else is in flight.
        done += flown.expect("a batch neither panics nor is stopped while its set lives")?;
        progress(done, count);
    }
    Ok(done)
}

async fn put_batch(client: &Client, from: u64, to: u64, item: &Item) -> Result<u64, Error> {
    let puts = |txn: Transaction| async move {
        for index in from..to {
            let (key, value) = item(index);
            txn.put(key, value);
        }
        Ok(())
    };
    persist(client, puts).await?;
    Ok(to - from)
}
