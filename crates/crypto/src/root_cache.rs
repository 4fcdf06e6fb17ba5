//! Signed roots that were found good, so that none is checked twice.
//!
//! Each signer has a part of its own: a liar can only push out what it signed itself, and threads that hear
//! from different replicas do not wait for one another.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use types::Digest;

use crate::SignedRoot;

/// What a check was made of, but for the signer, whose part of the cache this is.
///
/// The signature belongs to it on purpose. A liar can put a garbage signature beside a root that is known to be
/// good; without this it would pass here, go into a certificate, and be refused by whoever has not cached the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    root: Digest,
    count: u16,
    signature: [u8; 64],
}

impl From<&SignedRoot> for Entry {
    fn from(signed: &SignedRoot) -> Self {
        Self { root: signed.root, count: signed.count, signature: signed.signature }
    }
}

/// The roots of one signer, in two generations: what is used moves to the young one, and when that is full the
/// old one is forgotten. Cheap, bounded, and what was used lately is kept as with a true order of use.
#[derive(Default)]
struct Part {
    young: HashSet<Entry>,
    old: HashSet<Entry>,
}

/// All signers' roots.
pub(crate) struct RootCache {
    parts: Vec<Mutex<Part>>,
    generation_roots_max: usize,
}

impl RootCache {
    /// Room for `capacity` roots of `signers` signers in all; at least two for each.
    pub(crate) fn new(signers: usize, capacity: usize) -> Self {
        let generation_roots_max = (capacity / signers.max(1) / 2).max(1);
        Self { parts: (0..signers).map(|_| Mutex::default()).collect(), generation_roots_max }
    }

    /// Whether exactly this root with exactly this signature was found good.
    pub(crate) fn knows(&self, signer: usize, signed: &SignedRoot) -> bool {
        let entry = Entry::from(signed);
        let mut part = self.part(signer);
        if part.young.contains(&entry) {
            return true;
        }
        if part.old.contains(&entry) {
            part.keep(entry, self.generation_roots_max);
            return true;
        }
        false
    }

    /// Keeps a root that was just found good.
    pub(crate) fn keep(&self, signer: usize, signed: &SignedRoot) {
        self.part(signer).keep(Entry::from(signed), self.generation_roots_max);
    }

    fn part(&self, signer: usize) -> std::sync::MutexGuard<'_, Part> {
        // A set is whole between any two of its operations, so a panic elsewhere leaves nothing broken here.
        self.parts[signer].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn keep(&mut self, entry: Entry, generation_roots_max: usize) {
        if self.young.len() >= generation_roots_max {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(number: u8) -> SignedRoot {
        SignedRoot { root: [number; 32], count: 1, signature: [number; 64] }
    }

    #[test]
    fn it_knows_what_it_kept_and_nothing_like_it() {
        let cache = RootCache::new(2, 100);
        cache.keep(0, &root(1));
        assert!(cache.knows(0, &root(1)));
        assert!(!cache.knows(1, &root(1)));
        assert!(!cache.knows(0, &SignedRoot { signature: [9; 64], ..root(1) }));
        assert!(!cache.knows(0, &SignedRoot { count: 2, ..root(1) }));
        assert!(!cache.knows(0, &SignedRoot { root: [9; 32], ..root(1) }));
    }

    #[test]
    fn it_stays_within_its_room_and_keeps_what_is_used() {
        let cache = RootCache::new(1, 8);
        for number in 0..100 {
            cache.keep(0, &root(number));
            assert!(cache.knows(0, &root(0)), "used after each of {number}");
            let part = cache.part(0);
            assert!(part.young.len() + part.old.len() <= 8);
        }
        assert!(!cache.knows(0, &root(50)));
    }

    #[test]
    fn one_signer_cannot_push_out_anothers_roots() {
        let cache = RootCache::new(2, 8);
        cache.keep(0, &root(0));
        for number in 0..100 {
            cache.keep(1, &root(number));
        }
        assert!(cache.knows(0, &root(0)));
    }
}
