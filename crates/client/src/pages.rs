//! Reads of ranges of any size.

use std::sync::Arc;

use engine::ReadMode;
use types::{Direction, Key, KeyRange, Timestamp, Value};

use crate::{AsOf, Client, Error, Refusal, Transaction};

/// How many rows the first page has.
const ROWS_FIRST: usize = 64;
/// The most rows of a page.
const ROWS_MAX: usize = 1_024;
/// A page is to hold about so many bytes of keys and values, if its rows are like those of the page before.
const PAGE_BYTES: usize = 4 << 20;

/// The rows of a range as of one moment, a page at a time ([`Client::pages`]). The moment is chosen when the first page is read.
///
/// In memory is one page: 64 rows at first, 1,024 at most, and so many that it takes about 4 MiB if its rows are as long as those of the page before. A page that nobody asks for is not read.
#[derive(Debug)]
pub struct Pages {
    client: Client,
    as_of: AsOf,
    /// The moment, once the first page was read there.
    place: Option<(Timestamp, ReadMode)>,
    direction: Direction,
    /// What is not read yet, if anything may be there.
    left: Option<KeyRange>,
    size: PageSize,
}

impl Pages {
    pub(crate) fn new(client: Client, low: Key, high: Key, as_of: AsOf) -> Self {
        let (direction, left) = (Direction::Ascending, KeyRange::new(low, high));
        Self { client, as_of, place: None, direction, left, size: PageSize { rows: ROWS_FIRST, rows_max: ROWS_MAX } }
    }

    /// The same from the end of the range: the highest keys first.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { direction: Direction::Descending, ..self }
    }

    /// The next rows, in order, or from the end where it is [reversed](Self::reversed); none when there are no more. After an error, the same page may be asked for again.
    ///
    /// # Errors
    /// [`Refusal::NotKept`] in [`Error::Refused`] when too few replicas keep the moment: it is older than their `window_ms`, and the client may not read every key, or has not read on for half a minute. Else as [`Client::read_as_of`].
    pub async fn next(&mut self) -> Result<Option<Vec<(Key, Value)>>, Error> {
        while let Some(left) = self.left.clone() {
            let rows = self.size.rows;
            match self.page(&left, rows).await {
                Ok((timestamp, found)) => {
                    // From its first page on the moment is known to have been right.
                    self.place = Some((timestamp, ReadMode::AsOf));
                    let end = found.last().filter(|_| found.len() == rows).and_then(|(last, _)| self.direction.behind(last));
                    self.left = end.and_then(|end| self.direction.left(&left, &end));
                    let bytes: usize = found.iter().map(|(key, value)| key.as_bytes().len() + value.as_bytes().len()).sum();
                    self.size.after(bytes);
                    return Ok((!found.is_empty()).then_some(found));
                }
                Err(Error::Refused(Refusal::AnswerTooLarge)) if rows > 1 => self.size.after_too_large(),
                Err(error) => {
                    self.size.after_error();
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// What it reads is final, and nothing is left to be committed.
    async fn page(&self, left: &KeyRange, rows: usize) -> Result<(Timestamp, Vec<(Key, Value)>), Error> {
        let connection = self.client.connection();
        let once = |since| async move {
            let place = self.place.map_or_else(|| connection.as_of(self.as_of), Ok)?;
            let txn = Transaction::begin(Arc::clone(connection), None).reading_as_of(place).wanted_since(since);
            Ok((place.0, txn.scan_in(self.direction, Some(left.clone()), rows).await?))
        };
        Ok(self.client.retried(once).await?.0)
    }
}

/// How many rows the next page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageSize {
    rows: usize,
    rows_max: usize,
}

impl PageSize {
    /// The page had so many bytes of keys and values.
    fn after(&mut self, bytes: usize) {
        let fitting = self.rows.saturating_mul(PAGE_BYTES) / bytes.max(1);
        self.rows = fitting.clamp(1, self.rows_max.min(2 * self.rows));
    }

    /// Each of many shards is asked for as many rows, and together that was more than one answer takes.
    fn after_too_large(&mut self) {
        self.rows_max = (self.rows / 2).max(1);
        self.rows = self.rows_max;
    }

    /// Rows that are suddenly long may take longer than there is time for.
    fn after_error(&mut self) {
        self.rows = (self.rows / 8).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rows: usize, step: impl Fn(&mut PageSize)) -> usize {
        let mut size = PageSize { rows, rows_max: ROWS_MAX };
        step(&mut size);
        size.rows
    }

    #[test]
    fn pages_grow_to_what_their_rows_allow_and_shrink_at_once() {
        let mut size = PageSize { rows: ROWS_FIRST, rows_max: ROWS_MAX };
        (0..9).for_each(|_| size.after(size.rows * 100));
        assert_eq!(size.rows, ROWS_MAX);
        assert_eq!(after(1_024, |size| size.after(1_024 << 20)), 4, "of 1 MiB each");
        assert_eq!(after(4, |size| size.after(4 * (8 << 20))), 1);
        assert_eq!(after(1, |size| size.after(0)), 2);
        assert_eq!(after(1_024, PageSize::after_error), 128);
        assert_eq!(after(1, PageSize::after_error), 1);
    }

    #[test]
    fn what_was_too_large_once_is_not_asked_for_again() {
        let mut size = PageSize { rows: 1_024, rows_max: ROWS_MAX };
        size.after_too_large();
        (0..9).for_each(|_| size.after(100));
        assert_eq!(size, PageSize { rows: 512, rows_max: 512 });
    }
}
