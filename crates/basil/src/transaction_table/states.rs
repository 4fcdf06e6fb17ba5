//! The states of all transactions that a replica knows.
//!
//! They stand in chunks and never move, and each has a number, so that whoever has that needs no look-up. Only the index moves when it grows, eight
//! bytes for each: with a hash table of all ids, a shard stood still for a tenth of a second each time that there were twice as many.

use std::hash::BuildHasher as _;
use std::hint::black_box;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use store::Index;
use types::TransactionId;

use crate::transaction_state::TransactionState;

/// So many states are allocated at once.
const CHUNK_STATES: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;
/// So many are read ahead together.
pub(crate) const TOGETHER: usize = 64;

/// The place of a transaction's state, for as long as the transaction is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateNumber(u32);

/// All states, by the ids of their transactions and by their numbers.
#[derive(Default)]
pub(super) struct States {
    hasher: RandomState,
    index: Index,
    chunks: Vec<Box<[Option<TransactionState>]>>,
    /// How many numbers were ever given, and those that may be given again.
    given: u32,
    free: Vec<StateNumber>,
}

impl States {
    pub fn len(&self) -> usize {
        self.index.len()
    }

    fn hash(&self, id: TransactionId) -> u32 {
        self.hasher.hash_one(id) as u32
    }

    /// The number of the state of transaction `id`, if that is known.
    pub fn number_of(&self, id: TransactionId) -> Option<StateNumber> {
        self.index.find(self.hash(id), |number| self.at(StateNumber(number)).transaction.id() == id).map(StateNumber)
    }

    pub fn contains(&self, id: TransactionId) -> bool {
        self.number_of(id).is_some()
    }

    /// The state of transaction `id`, if that is known.
    pub fn get(&self, id: TransactionId) -> Option<&TransactionState> {
        self.number_of(id).map(|number| self.at(number))
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: TransactionId) -> Option<&mut TransactionState> {
        self.number_of(id).map(|number| self.at_mut(number))
    }

    /// The state of this number.
    pub fn at(&self, StateNumber(number): StateNumber) -> &TransactionState {
        let state = self.chunks[number as usize >> CHUNK_BITS][number as usize % CHUNK_STATES].as_ref();
        state.expect("a number stands for a state until that is removed")
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, StateNumber(number): StateNumber) -> &mut TransactionState {
        let state = self.chunks[number as usize >> CHUNK_BITS][number as usize % CHUNK_STATES].as_mut();
        state.expect("a number stands for a state until that is removed")
    }

    /// All of them, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut TransactionState> {
        self.chunks.iter_mut().flatten().flatten()
    }

    /// Adds the state of a transaction, which must not be known.
    pub fn insert(&mut self, state: TransactionState) -> StateNumber {
        let hash = self.hash(state.transaction.id());
        let number = self.free.pop().unwrap_or_else(|| {
            if self.given as usize == self.chunks.len() << CHUNK_BITS {
                self.chunks.push(std::iter::repeat_with(|| None).take(CHUNK_STATES).collect());
            }
            self.given = self.given.checked_add(1).expect("so many transactions do not fit in memory");
            StateNumber(self.given - 1)
        });
        self.index.insert(hash, number.0);
        self.chunks[number.0 as usize >> CHUNK_BITS][number.0 as usize % CHUNK_STATES] = Some(state);
        number
    }

    /// Takes out the state of transaction `id`, if that is known.
    pub fn remove(&mut self, id: TransactionId) -> Option<TransactionState> {
        let number = self.number_of(id)?;
        self.index.remove(self.hash(id), number.0);
        self.free.push(number);
        self.chunks[number.0 as usize >> CHUNK_BITS][number.0 as usize % CHUNK_STATES].take()
    }

    /// Reads where these are looked up, so that the CPU caches it. It has no other effect.
    pub fn prefetch_places(&self, ids: impl Iterator<Item = TransactionId>) {
        // The sum does not matter: each word must be read, and no read depends on another.
        black_box(ids.fold(0, |sum, id| sum ^ self.index.first_word(self.hash(id))));
    }

    /// The same, and the states of those that are known, which it gives. Hardly ever another is among them.
    pub fn prefetch(&self, ids: &[TransactionId]) -> SmallVec<[&TransactionState; TOGETHER]> {
        self.prefetch_places(ids.iter().copied());
        let found = ids.iter().filter_map(|id| self.index.find(self.hash(*id), |_| true));
        prefetched(found.map(|number| self.at(StateNumber(number))))
    }
}

/// These states, once they are read ahead.
pub(super) fn prefetched<'a>(states: impl Iterator<Item = &'a TransactionState>) -> SmallVec<[&'a TransactionState; TOGETHER]> {
    let states: SmallVec<[&TransactionState; TOGETHER]> = states.collect();
    // The sums do not matter: each word must be read, and no read depends on another.
    black_box(states.iter().fold(0, |sum, state| sum ^ state.number));
    black_box(states.iter().fold(0, |sum, state| sum ^ state.transaction.timestamp().time));
    states
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use machine::Time;
    use types::{ClientId, ClusterId, Timestamp};

    use super::*;
    use crate::transaction::Transaction;
    use crate::transaction_state::{Quota, QuotaOwner};

    #[test]
    fn states_are_found_until_they_are_removed_and_their_numbers_are_given_again() {
        let state = |time: u64| {
            let timestamp = Timestamp::new(time, ClientId(1));
            let transaction = Transaction::new(ClusterId::new([1; 16]), timestamp, Vec::new(), Vec::new()).expect("it is small");
            TransactionState::new(transaction, time, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))))
        };
        let (mut states, mut numbers) = (States::default(), BTreeMap::new());
        for time in 0..3 * CHUNK_STATES as u64 {
            let state = state(time);
            let id = state.transaction.id();
            assert!(!states.contains(id) && states.remove(id).is_none());
            numbers.insert(time, (id, states.insert(state)));
        }
        for (time, (id, number)) in &numbers {
            assert_eq!((states.get(*id).map(|state| state.number), states.at(*number).number), (Some(*time), *time));
        }
        for time in (0..3 * CHUNK_STATES as u64).step_by(3) {
            let (id, number) = numbers[&time];
            assert_eq!(states.remove(id).map(|state| state.number), Some(time));
            assert!(states.get(id).is_none() && states.free.last() == Some(&number));
        }
        assert_eq!((states.len(), states.iter_mut().count()), (2 * CHUNK_STATES, 2 * CHUNK_STATES));
        (0..CHUNK_STATES as u64).for_each(|time| _ = states.insert(state(1_000_000 + time)));
        assert_eq!((states.len(), states.chunks.len(), states.free.len()), (3 * CHUNK_STATES, 3, 0));
        assert!(numbers.iter().all(|(time, (id, number))| time % 3 == 0 || states.number_of(*id) == Some(*number)));
    }
}
