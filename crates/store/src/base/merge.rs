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
    /// Where it stands, between two keys: all that comes lies behind that. Nothing where it has not gone anywhere yet, or to the first of all.
    place: Option<Vec<u8>>,
}

impl Merge {
    /// Merges `runs`, newest first. It is at its end, until it [goes elsewhere](Self::seek). Where it reads on, it reads about `ahead` bytes of
    /// each at once.
    pub fn new(runs: &[Arc<Run>], direction: Direction, ahead: usize) -> Self {
        let cursors = runs.iter().map(|run| Cursor::new(run.clone(), direction, ahead)).collect();
        Self { direction, cursors, heap: Vec::new(), passed: Vec::new(), place: None }
    }

    /// Goes to the first row, in its direction, that is not before `begin`: where it descends, the first below that. Without a `begin`, to the
    /// first of all. On its way on, only runs with rows in between are looked at, so that this costs no more than to read these rows.
    ///
    /// # Errors
    /// When a run is damaged, or the disk fails.
    pub fn seek(&mut self, begin: Option<&[u8]>) -> Result<(), StoreError> {
        let (direction, place) = (self.direction, self.place.take());
        match begin.filter(|begin| place.as_ref().is_some_and(|place| direction.order(place.as_slice(), *begin).is_le())) {
            Some(begin) => {
                let is_before = |key: &[u8]| match direction {
                    Direction::Ascending => key < begin,
                    Direction::Descending => key >= begin,
                };
                while let Some(top) = self.heap.first().map(|top| *top as usize).filter(|top| is_before(self.cursors[*top].key())) {
                    self.cursors[top].seek(Some(begin))?;
                    self.sift(top);
                }
            }
            None => {
                self.cursors.iter_mut().try_for_each(|cursor| cursor.seek(begin))?;
                self.heap = (0..).zip(&self.cursors).filter(|(_, cursor)| cursor.place.is_some()).map(|(number, _)| number).collect();
                (0..self.heap.len() / 2).rev().for_each(|at| self.sink(at));
            }
        }
        self.place = begin.map(<[u8]>::to_vec);
        Ok(())
    }

    /// How many bytes were read.
    pub fn read_bytes(&self) -> usize {
        self.cursors.iter().map(|cursor| cursor.read_bytes).sum()
    }

    /// The row that is next; nothing at the end.
    pub fn row(&self) -> Option<Row<'_>> {
        let cursor = &self.cursors[*self.heap.first()? as usize];
        Some(Row { key: cursor.key(), row: cursor.row() })
    }

    /// Passes the row that is next, and older ones of its key.
    ///
    /// # Errors
    /// As [`Merge::seek`].
    pub fn advance(&mut self) -> Result<(), StoreError> {
        let Some(top) = self.heap.first() else { return Ok(()) };
        self.passed.clear();
        self.passed.extend_from_slice(self.cursors[*top as usize].key());
        while let Some(top) = self.heap.first().map(|top| *top as usize).filter(|top| self.cursors[*top].key() == self.passed) {
            self.cursors[top].advance()?;
            self.sift(top);
        }
        let place = self.place.get_or_insert_default();
        place.clone_from(&self.passed);
        if self.direction == Direction::Ascending {
            place.push(0); // The next longer key comes next.
        }
        Ok(())
    }

    /// The cursor on top of the heap has moved.
    fn sift(&mut self, top: usize) {
        if self.cursors[top].place.is_none() {
            self.heap.swap_remove(0);
        }
        self.sink(0);
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
