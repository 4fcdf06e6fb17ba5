//! Several runs as one: of each key the row of the newest run that has it.

use std::sync::Arc;

use mutants::{Mutant, broken};
use types::Direction;

use super::run::{Cursor, Run};
use crate::{Row, StoreError};

/// The rows of several runs, in one direction or the other.
pub(crate) struct Merge {
    direction: Direction,
    /// Newest first.
    cursors: Vec<Cursor>,
    /// The places of cursors that are not at their end: a heap with the next key on top, and of equal keys the newest.
    heap: Vec<u32>,
    /// The last key that was passed.
    passed: Vec<u8>,
}

impl Merge {
    /// Merges `runs`, newest first: the rows that are neither before `low` nor, where it reads in descending order, at or after `high`.
    /// It reads about `ahead` bytes of each at once.
    ///
    /// # Errors
    /// When a run is damaged, or the disk fails.
    pub fn new(runs: &[Arc<Run>], between: (&[u8], Option<&[u8]>), direction: Direction, ahead: usize) -> Result<Self, StoreError> {
        let cursors = runs.iter().map(|run| Cursor::seek(run.clone(), between, direction, ahead)).collect::<Result<Vec<_>, _>>()?;
        let heap = (0..).zip(&cursors).filter(|(_, cursor)| cursor.place.is_some()).map(|(number, _)| number).collect();
        let mut merge = Self { direction, cursors, heap, passed: Vec::new() };
        (0..merge.heap.len() / 2).rev().for_each(|at| merge.sink(at));
        Ok(merge)
    }

    /// The row that is next; nothing at the end.
    pub fn row(&self) -> Option<Row<'_>> {
        let cursor = &self.cursors[*self.heap.first()? as usize];
        Some(Row { key: cursor.key(), row: cursor.row() })
    }

    /// Passes the row that is next, and older ones of its key.
    ///
    /// # Errors
    /// As [`Merge::new`].
    pub fn advance(&mut self) -> Result<(), StoreError> {
        let Some(top) = self.heap.first() else { return Ok(()) };
        self.passed.clear();
        self.passed.extend_from_slice(self.cursors[*top as usize].key());
        while let Some(top) = self.heap.first().map(|top| *top as usize).filter(|top| self.cursors[*top].key() == self.passed) {
            self.cursors[top].advance()?;
            if self.cursors[top].place.is_none() {
                self.heap.swap_remove(0);
            }
            self.sink(0);
        }
        Ok(())
    }

    fn is_before(&self, one: u32, other: u32) -> bool {
        let (left, right) = (&self.cursors[one as usize], &self.cursors[other as usize]);
        let by_key = self.direction.order(&left.place, &right.place).then_with(|| self.direction.order(left.key(), right.key()));
        by_key.then(if broken(Mutant::OlderRunWins) { other.cmp(&one) } else { one.cmp(&other) }).is_lt()
    }

    /// Lets what is at `at` in the heap sink to its place.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < self.heap.len());
            let least = children.reduce(|one, other| if self.is_before(self.heap[other], self.heap[one]) { other } else { one });
            let Some(child) = least.filter(|child| self.is_before(self.heap[*child], self.heap[at])) else { return };
            self.heap.swap(at, child);
            at = child;
        }
    }
}
