//! A table that grows while it is read: which keys are new, and which of them may be read already.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Hands out indexes past the end of a table, and knows up to where all that were handed out are settled.
///
/// Loop clients insert at once and end in any order. A reader of the latest keys reads below the first index that is still
/// in flight, as YCSB's acknowledged counter has it, so that it reads what is there.
#[derive(Debug)]
pub(crate) struct Growth(Mutex<State>);

#[derive(Debug)]
struct State {
    next: u64,
    /// Everything below is settled.
    settled: u64,
    /// Settled indexes above that.
    ahead: BTreeSet<u64>,
}

impl Growth {
    /// For a table that ends before index `count`.
    pub(crate) fn new(count: u64) -> Self {
        Self(Mutex::new(State { next: count, settled: count, ahead: BTreeSet::new() }))
    }

    /// The next index to insert at.
    pub(crate) fn next(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next - 1
    }

    /// What was inserted at `index` is there, or was given up.
    pub(crate) fn settle(&self, index: u64) {
        let mut state = self.state();
        state.ahead.insert(index);
        while let Some(first) = state.ahead.first().copied()
            && first == state.settled
        {
            state.ahead.pop_first();
            state.settled += 1;
        }
    }

    /// Where the settled part of the table ends.
    pub(crate) fn end(&self) -> u64 {
        self.state().settled
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_is_settled_without_gaps() {
        let growth = Growth::new(10);
        assert_eq!([growth.next(), growth.next(), growth.next(), growth.end()], [10, 11, 12, 10]);
        growth.settle(12);
        growth.settle(11);
        assert_eq!(growth.end(), 10);
        growth.settle(10);
        assert_eq!((growth.end(), growth.next()), (13, 13));
        assert!(growth.state().ahead.is_empty());
    }
}
