//! The cache of verified signed roots, with the proven parts of their trees.
//!
//! Each signer has its own part. So a Byzantine signer can evict only its own roots, and threads that handle different
//! replicas do not wait for one another.
//!
//! Nothing is hashed while a part is locked: the thread that hashes may have the lowest priority, and not run for long. It takes the tree with it for that, and
//! whoever needs this tree meanwhile hashes a whole path.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mutants::{Mutant, broken};
use types::Digest;

use crate::proven_tree::{ProvenTree, TREE_NODES_MAX};
use crate::{BatchSignature, SignedRoot};

/// The memory for trees of all signers together, in nodes: 8 MiB. A tree is useful only for the short time in which its batch
/// circulates.
const TREES_NODES_MAX: usize = 262_144;

/// All signers' roots.
pub(crate) struct RootCache {
    parts: Vec<Mutex<Part>>,
}

impl RootCache {
    /// Room for `capacity` roots of `signers` signers in all; at least two for each.
    pub(crate) fn new(signers: usize, capacity: usize) -> Self {
        let roots_max = (capacity / signers.max(1) / 2).max(1);
        let memory_nodes_max = (TREES_NODES_MAX / signers.max(1)).max(2 * TREE_NODES_MAX);
        Self {
            parts: (0..signers).map(|_| Mutex::new(Part { roots: Roots::new(roots_max), trees: Trees::new(memory_nodes_max) })).collect(),
        }
    }

    /// Whether `leaf` stands at the signature's place under the signature's root; `None` when it is not known whether exactly this
    /// root with exactly this signature is good.
    pub(crate) fn covers(&self, signer: usize, signature: &BatchSignature, leaf: &Digest) -> Option<bool> {
        let mut part = self.part(signer);
        let number = part.roots.find(&signature.signed)?;
        let kept = part.trees.get_mut(number);
        if let Some(known) = kept.as_ref().and_then(|kept| kept.tree.as_ref()?.knows(leaf, signature)) {
            return Some(known);
        }
        let is_kept = kept.is_some();
        let taken = kept.and_then(|kept| kept.tree.take());
        drop(part);
        if signature.signed.count == 1 || (is_kept && taken.is_none()) {
            return Some(signature.covers(leaf));
        }
        let mut tree = taken.unwrap_or_else(|| ProvenTree::new(&signature.signed));
        let covers = tree.admits(leaf, signature);
        if is_kept {
            self.part(signer).trees.put_back(number, tree);
        } else if covers {
            let mut part = self.part(signer);
            let number = part.trees.push(tree);
            part.roots.plant(&signature.signed, number);
        }
        Some(covers)
    }

    /// Keeps a root that was just found good, and what was proven of its tree meanwhile.
    pub(crate) fn keep(&self, signer: usize, signed: &SignedRoot, tree: Option<ProvenTree>) {
        let mut part = self.part(signer);
        let tree = tree.map_or(NO_TREE, |tree| part.trees.push(tree));
        part.roots.keep(Entry { signed: signed.clone(), tree });
    }

    fn part(&self, signer: usize) -> MutexGuard<'_, Part> {
        // A panic of another holder loses at most a root or a tree: each is inserted whole.
        self.parts[signer].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is kept of one signer.
struct Part {
    roots: Roots,
    trees: Trees,
}

/// A root that was found good.
struct Entry {
    /// What was checked, but for the signer, whose part of the cache this is.
    ///
    /// It includes the signature on purpose. A Byzantine sender can attach an invalid signature to a root that is cached as good. If
    /// the cache ignored it, the claim would pass here, get into a certificate, and be refused by others without the cached root.
    signed: SignedRoot,
    /// The number of its tree, which may be forgotten by now, or [`NO_TREE`].
    tree: u64,
}

/// The roots of one signer, in two generations. A used root moves to the young one; when that is full, the old one is dropped.
/// This approximates LRU cheaply and in bounded memory.
struct Roots {
    young: HashMap<u64, Entry>,
    old: HashMap<u64, Entry>,
    generation_max: usize,
}

/// The hash key of a root: eight bytes of its signature's second half, which not even the signer can choose. Of two roots with the same
/// label, the later replaces the earlier; look-ups always compare the whole root.
fn label(signed: &SignedRoot) -> u64 {
    let bytes = signed.signature[32..40].try_into().expect("eight bytes are eight bytes");
    u64::from_le_bytes(bytes)
}

/// Whether what is known to be good is exactly what is asked for.
fn is_same(known: &SignedRoot, asked: &SignedRoot) -> bool {
    known == asked || (broken(Mutant::RootSignedAnyhow) && (known.root, known.count) == (asked.root, asked.count))
}

impl Roots {
    fn new(generation_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation_max }
    }

    /// The number of the root's tree; `None` when the root is not known.
    fn find(&mut self, signed: &SignedRoot) -> Option<u64> {
        let label = label(signed);
        if let Some(entry) = self.young.get(&label)
            && is_same(&entry.signed, signed)
        {
            return Some(entry.tree);
        }
        let tree = self.old.get(&label).filter(|entry| is_same(&entry.signed, signed))?.tree;
        self.keep(Entry { signed: signed.clone(), tree });
        Some(tree)
    }

    /// Gives a root that was found its tree, unless others have taken its place meanwhile.
    fn plant(&mut self, signed: &SignedRoot, tree: u64) {
        if let Some(entry) = self.young.get_mut(&label(signed)).filter(|entry| is_same(&entry.signed, signed)) {
            entry.tree = tree;
        }
    }

    fn keep(&mut self, entry: Entry) {
        if self.young.len() >= self.generation_max {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(label(&entry.signed), entry);
    }
}

/// The number of no tree.
const NO_TREE: u64 = 0;

/// A tree, unless a thread has taken it to hash a path, and how much memory it takes.
struct KeptTree {
    tree: Option<ProvenTree>,
    memory_nodes: usize,
}

/// The trees of one signer, numbered from 1 in the order of their making. When there is no room the oldest are forgotten.
struct Trees {
    row: VecDeque<KeptTree>,
    /// The number of the first in the row.
    first: u64,
    memory_nodes: usize,
    memory_nodes_max: usize,
}

impl Trees {
    fn new(memory_nodes_max: usize) -> Self {
        Self { row: VecDeque::new(), first: NO_TREE + 1, memory_nodes: 0, memory_nodes_max }
    }

    /// Tree `number`, unless it is forgotten.
    fn get_mut(&mut self, number: u64) -> Option<&mut KeptTree> {
        let at = number.checked_sub(self.first)?;
        self.row.get_mut(usize::try_from(at).ok()?)
    }

    /// Gives back tree `number`, which was taken.
    fn put_back(&mut self, number: u64, tree: ProvenTree) {
        if let Some(kept) = self.get_mut(number) {
            kept.tree = Some(tree);
        }
    }

    /// Keeps a tree and says its number.
    fn push(&mut self, tree: ProvenTree) -> u64 {
        let memory_nodes = tree.memory_nodes();
        self.memory_nodes += memory_nodes;
        self.row.push_back(KeptTree { tree: Some(tree), memory_nodes });
        while self.memory_nodes > self.memory_nodes_max
            && let Some(oldest) = self.row.pop_front()
        {
            self.memory_nodes -= oldest.memory_nodes;
            self.first += 1;
        }
        self.first + self.row.len() as u64 - 1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::merkle::Tree;

    fn root(number: u8) -> SignedRoot {
        SignedRoot { root: [number; 32], count: 1, signature: [number; 64] }
    }

    impl RootCache {
        fn knows(&self, signer: usize, signed: &SignedRoot) -> bool {
            let signature = BatchSignature { signed: Arc::new(signed.clone()), index: 0, path: Arc::default() };
            self.covers(signer, &signature, &signed.root).is_some()
        }
    }

    #[test]
    fn the_cache_finds_exactly_the_roots_it_keeps() {
        let cache = RootCache::new(2, 100);
        cache.keep(0, &root(1), None);
        assert!(cache.knows(0, &root(1)));
        assert!(!cache.knows(1, &root(1)));
        assert!(!cache.knows(0, &SignedRoot { signature: [9; 64], ..root(1) }));
        assert!(!cache.knows(0, &SignedRoot { count: 2, ..root(1) }));
        assert!(!cache.knows(0, &SignedRoot { root: [9; 32], ..root(1) }));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_used_roots() {
        let cache = RootCache::new(1, 8);
        for number in 0..100 {
            cache.keep(0, &root(number), None);
            assert!(cache.knows(0, &root(0)), "used after each of {number}");
            let part = cache.part(0);
            assert!(part.roots.young.len() + part.roots.old.len() <= 8);
        }
        assert!(!cache.knows(0, &root(50)));
    }

    #[test]
    fn one_signer_cannot_evict_anothers_roots() {
        let cache = RootCache::new(2, 8);
        cache.keep(0, &root(0), None);
        for number in 0..100 {
            cache.keep(1, &root(number), None);
        }
        assert!(cache.knows(0, &root(0)));
    }

    /// All signatures of a batch of `count`, with a signature that only tells this batch from others.
    fn batch(number: u64, count: usize) -> Vec<(Digest, BatchSignature)> {
        let leaves: Vec<Digest> = (0..count).map(|at| [at.to_le_bytes()[0]; 32]).collect();
        let tree = Tree::new(&leaves);
        let mut signature = [0; 64];
        signature[32..40].copy_from_slice(&number.to_le_bytes());
        let count = u16::try_from(count).expect("a batch is small");
        let signed = Arc::new(SignedRoot { root: tree.root(), count, signature });
        let signatures = (0..count).map(|index| BatchSignature {
            signed: Arc::clone(&signed),
            index,
            path: tree.path(usize::from(index)).as_slice().into(),
        });
        leaves.into_iter().zip(signatures).collect()
    }

    #[test]
    fn trees_are_bounded_and_the_oldest_is_evicted_first() {
        let cache = RootCache::new(100, 1_000_000);
        let batches: Vec<_> = (0..200).map(|number| batch(number, 64)).collect();
        for batch in &batches {
            cache.keep(0, &batch[0].1.signed, None);
            assert_eq!(cache.covers(0, &batch[5].1, &batch[5].0), Some(true));
            assert_eq!(cache.covers(0, &batch[5].1, &batch[6].0), Some(false));
            let trees = &cache.part(0).trees;
            assert!(trees.memory_nodes <= trees.memory_nodes_max);
            assert_eq!(trees.memory_nodes, trees.row.iter().map(|kept| kept.memory_nodes).sum::<usize>());
        }
        let kept = cache.part(0).trees.row.len();
        assert_eq!(kept, TREES_NODES_MAX / 100 / 131);
        assert_eq!(cache.part(0).trees.first, 201 - kept as u64);
        // A root outlives its tree, and gets another when it is asked for.
        assert_eq!(cache.covers(0, &batches[0][5].1, &batches[0][5].0), Some(true));
        assert_eq!(cache.part(0).trees.first, 202 - kept as u64);
        assert_eq!(cache.covers(0, &batches[199][7].1, &batches[199][7].0), Some(true));
        assert_eq!(cache.part(0).trees.first, 202 - kept as u64, "the last batch still had its own");
    }

    #[test]
    fn a_claim_with_a_wrong_path_creates_no_tree() {
        let cache = RootCache::new(1, 8);
        let batch = batch(1, 64);
        cache.keep(0, &batch[0].1.signed, None);
        assert_eq!(cache.covers(0, &batch[5].1, &batch[6].0), Some(false));
        assert!(cache.part(0).trees.row.is_empty());
    }

    #[test]
    fn nobody_waits_for_a_tree_that_another_thread_has() {
        let cache = RootCache::new(1, 8);
        let batch = batch(1, 64);
        cache.keep(0, &batch[0].1.signed, None);
        assert_eq!(cache.covers(0, &batch[5].1, &batch[5].0), Some(true));
        let taken = cache.part(0).trees.get_mut(1).and_then(|kept| kept.tree.take()).expect("it is kept");
        assert_eq!(cache.covers(0, &batch[7].1, &batch[7].0), Some(true));
        assert_eq!(cache.covers(0, &batch[7].1, &batch[8].0), Some(false));
        assert_eq!((cache.part(0).trees.row.len(), taken.knows(&batch[7].0, &batch[7].1)), (1, None), "it is hashed without the tree");
        cache.part(0).trees.put_back(1, taken);
        assert_eq!(cache.covers(0, &batch[7].1, &batch[7].0), Some(true));
        let knows = |at: usize, leaf: usize| {
            let mut part = cache.part(0);
            part.trees.get_mut(1).and_then(|kept| kept.tree.as_ref()?.knows(&batch[leaf].0, &batch[at].1))
        };
        assert_eq!([knows(7, 7), knows(7, 8), knows(20, 20)], [Some(true), Some(false), None]);
        // One that was forgotten meanwhile is not kept.
        cache.part(0).trees.put_back(9, ProvenTree::new(&batch[0].1.signed));
        assert_eq!(cache.part(0).trees.row.len(), 1);
    }

    #[test]
    fn of_two_roots_with_one_label_the_later_is_known() {
        let cache = RootCache::new(1, 8);
        let (one, other) = (SignedRoot { root: [1; 32], ..root(7) }, SignedRoot { root: [2; 32], ..root(7) });
        cache.keep(0, &one, None);
        assert!(!cache.knows(0, &other));
        cache.keep(0, &other, None);
        assert!(cache.knows(0, &other) && !cache.knows(0, &one));
    }
}
