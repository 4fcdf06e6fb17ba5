//! What is going to happen.

use std::collections::BTreeMap;

/// Events in the order of their times; those of one time in the order in which they were added, so that a seed means one run.
#[derive(Debug)]
pub struct Queue<E> {
    events: BTreeMap<(u64, u64), E>,
    added: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), added: 0 }
    }
}

impl<E> Queue<E> {
    /// Something is going to happen, at this time.
    pub fn add(&mut self, at: u64, event: E) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    /// What happens next, and when.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}
