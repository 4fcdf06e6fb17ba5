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
type Item = Arc<dyn Fn(u64) -> Vec<(Key, Value)> + Send + Sync>;

/// Rows of one shape, or groups of rows.
#[derive(Clone)]
pub(crate) struct Part {
    count: u64,
    rows: u64,
    item_bytes: usize,
    item: Item,
}

impl Part {
    /// Rows 0 to `count - 1`, each of about `row_bytes`.
    pub(crate) fn rows(count: u64, row_bytes: usize, row: impl Fn(u64) -> (Key, Value) + Send + Sync + 'static) -> Self {
        Self { count, rows: 1, item_bytes: row_bytes, item: Arc::new(move |index| vec![row(index)]) }
    }

    /// Groups 0 to `count - 1`, each of about `rows` rows of `row_bytes`.
    pub(crate) fn groups(
        count: u64,
        rows: u64,
        row_bytes: usize,
        group: impl Fn(u64) -> Vec<(Key, Value)> + Send + Sync + 'static,
    ) -> Self {
        Self { count, rows, item_bytes: row_bytes * rows as usize, item: Arc::new(group) }
    }

    /// All its rows, in order.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (Key, Value)> {
        (0..self.count).flat_map(|index| (self.item)(index))
    }
}

/// Puts all rows of all `parts`; gives how many that were. Progress is told in rows, of groups about as many.
pub(crate) async fn load(client: &Arc<Client>, parts: Vec<Part>, progress: Progress<'_>) -> Result<u64, Error> {
    let total = parts.iter().map(|part| part.count * part.rows).sum();
    let mut batches = parts.into_iter().flat_map(batches);
    let mut flights: JoinSet<Result<(u64, u64), Error>> = JoinSet::new();
    let (mut done, mut put) = (0, 0);
    progress(0, total);
    loop {
        while flights.len() < LOAD_IN_FLIGHT
            && let Some(batch) = batches.next()
        {
            let client = Arc::clone(client);
            flights.spawn(async move { Ok((batch.rows, put_batch(&client, &batch).await?)) });
        }
        let Some(flown) = flights.join_next().await else { return Ok(put) };
        // Dropping the set on the way out stops what else is in flight.
        let (rows, puts) = flown.expect("a batch neither panics nor is stopped while its set lives")?;
        (done, put) = (done + rows, put + puts);
        progress(done, total);
    }
}

/// What fits one transaction.
struct Batch {
    from: u64,
    to: u64,
    /// About how many rows that are.
    rows: u64,
    item: Item,
}

/// Cuts a part into pieces that each fit one transaction.
fn batches(part: Part) -> impl Iterator<Item = Batch> {
    let by_bytes = LOAD_BYTES_MAX / (part.item_bytes as u64).max(1);
    let batch = by_bytes.min(LOAD_PUTS_MAX / part.rows.max(1)).max(1);
    (0..part.count.div_ceil(batch)).map(move |number| {
        let from = number * batch;
        let to = (from + batch).min(part.count);
        Batch { from, to, rows: (to - from) * part.rows, item: Arc::clone(&part.item) }
    })
}

async fn put_batch(client: &Client, batch: &Batch) -> Result<u64, Error> {
    let puts = |txn: Transaction| async move {
        let mut puts = 0;
        for (key, value) in (batch.from..batch.to).flat_map(|index| (batch.item)(index)) {
            txn.put(key, value);
            puts += 1;
        }
        Ok(puts)
    };
    persist(client, puts).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_batch() {
        let row = |index: u64| (Key::from(index.to_string().as_str()), Value::from(""));
        for (count, bytes) in [(0, 1), (1, 1), (LOAD_PUTS_MAX, 1), (LOAD_PUTS_MAX + 1, 1), (10, 1 << 20), (7, 1 << 19)] {
            let part = Part::rows(count, bytes, row);
            let cut: Vec<Batch> = batches(part.clone()).collect();
            let rows: Vec<u64> = cut.iter().flat_map(|batch| batch.from..batch.to).collect();
            assert_eq!(rows, (0..count).collect::<Vec<_>>());
            assert!(cut.iter().all(|batch| batch.rows * bytes as u64 <= LOAD_BYTES_MAX && batch.rows <= LOAD_PUTS_MAX));
            assert_eq!(part.all().count() as u64, count);
        }
    }

    #[test]
    fn groups_stay_together() {
        let group = |index: u64| (0..3).map(|row| (Key::from(format!("{index}/{row}").as_str()), Value::from(""))).collect();
        let part = Part::groups(1_000, 3, 10, group);
        assert_eq!(part.all().count(), 3_000);
        let cut: Vec<Batch> = batches(part).collect();
        assert!(cut.iter().all(|batch| batch.rows == (batch.to - batch.from) * 3 && batch.rows <= LOAD_PUTS_MAX));
        assert_eq!(cut.iter().map(|batch| batch.rows).sum::<u64>(), 3_000);
    }
}
