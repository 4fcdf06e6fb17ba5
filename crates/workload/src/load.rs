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

/// Rows of one shape.
#[derive(Clone)]
pub(crate) struct Part {
    /// How many there are.
    pub(crate) count: u64,
    /// About how many bytes each has.
    pub(crate) item_bytes: usize,
    /// Row 0 to row `count - 1`.
    pub(crate) item: Item,
}

/// Puts all rows of all `parts`; gives how many that were.
pub(crate) async fn load(client: &Arc<Client>, parts: Vec<Part>, progress: Progress<'_>) -> Result<u64, Error> {
    let total = parts.iter().map(|part| part.count).sum();
    let mut batches = parts.into_iter().flat_map(batches);
    let mut flights: JoinSet<Result<u64, Error>> = JoinSet::new();
    let mut done = 0;
    progress(0, total);
    loop {
        while flights.len() < LOAD_IN_FLIGHT
            && let Some((from, to, item)) = batches.next()
        {
            let client = Arc::clone(client);
            flights.spawn(async move { put_batch(&client, from, to, &item).await });
        }
        let Some(flown) = flights.join_next().await else { return Ok(done) };
        // Dropping the set on the way out stops what else is in flight.
        done += flown.expect("a batch neither panics nor is stopped while its set lives")?;
        progress(done, total);
    }
}

/// Cuts a part into pieces that each fit one transaction.
fn batches(part: Part) -> impl Iterator<Item = (u64, u64, Item)> {
    let batch = (LOAD_BYTES_MAX / (part.item_bytes as u64).max(1)).clamp(1, LOAD_PUTS_MAX);
    (0..part.count.div_ceil(batch)).map(move |number| {
        let from = number * batch;
        (from, (from + batch).min(part.count), Arc::clone(&part.item))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_batch() {
        let item: Item = Arc::new(|index| (Key::from(index.to_string().as_str()), Value::from("")));
        for (count, item_bytes) in [(0, 1), (1, 1), (LOAD_PUTS_MAX, 1), (LOAD_PUTS_MAX + 1, 1), (10, 1 << 20), (7, 1 << 19)] {
            let cut: Vec<(u64, u64)> =
                batches(Part { count, item_bytes, item: Arc::clone(&item) }).map(|(from, to, _)| (from, to)).collect();
            let rows: Vec<u64> = cut.iter().flat_map(|(from, to)| *from..*to).collect();
            assert_eq!(rows, (0..count).collect::<Vec<_>>());
            assert!(cut.iter().all(|(from, to)| (to - from) * item_bytes as u64 <= LOAD_BYTES_MAX && to - from <= LOAD_PUTS_MAX));
        }
    }
}
