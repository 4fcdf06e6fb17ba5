//! The proven part of one signed tree, so that neighbours' paths are not hashed again.
//!
//! The leaves of a batch share most of their paths. After one path was followed to the root, all nodes on it and their siblings
//! are proven to belong to this tree. The next leaf is hashed upward only until it reaches a proven node; the rest of its path
//! must equal the proven siblings, byte for byte.
//!
//! So a claim is accepted exactly if its whole path leads to the root (or SHA-256 has a collision). In particular, a valid leaf
//! with an invalid upper path is refused: otherwise it would get into certificates that others, with less of this tree proven,
//! must refuse.

use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::Digest;
use types::limits::{BATCH_STATEMENTS_MAX, MERKLE_PATH_MAX};

use crate::merkle::{self, node};
use crate::{BatchSignature, SignedRoot};

/// The most nodes in one tree, which a full one has: each other level is at most half as wide as that below it, rounded up.
pub(crate) const TREE_NODES_MAX: usize = 2 * BATCH_STATEMENTS_MAX - 1;

/// What is proven of the tree under one root.
///
/// Of the proven nodes two things hold: the root is one of them, and the parent and the sibling of each are too.
pub(crate) struct ProvenTree {
    /// All levels, one after the other: the leaves first, the root last. What is not proven is zeros, and not looked at.
    nodes: Box<[Digest]>,
    /// One bit a node: whether it is proven.
    proven: [u64; TREE_NODES_MAX.div_ceil(64)],
    leaves: usize,
}

impl ProvenTree {
    /// The tree under a root, of which nothing else is proven.
    ///
    /// # Panics
    /// When no tree has as many leaves, which well-formed signatures exclude.
    pub(crate) fn new(signed: &SignedRoot) -> Self {
        let leaves = usize::from(signed.count);
        assert!(leaves > 0 && leaves <= BATCH_STATEMENTS_MAX, "a tree has from 1 to {BATCH_STATEMENTS_MAX} leaves");
        let nodes = nodes(leaves);
        let mut tree = Self { nodes: vec![[0; 32]; nodes].into_boxed_slice(), proven: Default::default(), leaves };
        tree.prove(nodes - 1, &signed.root);
        tree
    }

    /// Whether `leaf` stands at the signature's place in this tree: exactly what [`BatchSignature::covers`] would find, the signature's root being
    /// this tree's. When it does, its path is proven.
    pub(crate) fn admits(&mut self, leaf: &Digest, signature: &BatchSignature) -> bool {
        self.follows(leaf, usize::from(signature.index), &signature.path) || broken(Mutant::PathUnchecked)
    }

    /// What [`ProvenTree::admits`] would say, if it has nothing to hash for that.
    pub(crate) fn knows(&self, leaf: &Digest, signature: &BatchSignature) -> Option<bool> {
        let (index, path) = (usize::from(signature.index), &signature.path);
        if merkle::path_length(index, self.leaves) != Some(path.len()) {
            return None;
        }
        let position = NodePosition::leaf(index, self.leaves);
        let is_same = || self.nodes[position.node()] == *leaf && self.knows_siblings(position, path);
        self.is_proven(position.node()).then(|| is_same() || broken(Mutant::PathUnchecked))
    }

    fn follows(&mut self, leaf: &Digest, index: usize, path: &[Digest]) -> bool {
        if merkle::path_length(index, self.leaves) != Some(path.len()) {
            return false;
        }
        let mut climbed = SmallVec::<[Digest; MERKLE_PATH_MAX]>::new();
        let mut siblings = path.iter();
        let (mut hash, mut position) = (*leaf, NodePosition::leaf(index, self.leaves));
        // It ends at the root at the latest.
        while !self.is_proven(position.node()) {
            climbed.push(hash);
            if position.sibling().is_some() {
                let Some(sibling) = siblings.next() else { return false };
                hash = if position.is_left() { node(&hash, sibling) } else { node(sibling, &hash) };
            }
            position.climb();
        }
        if self.nodes[position.node()] != hash || !self.knows_siblings(position, siblings.as_slice()) {
            return false;
        }
        self.prove_path(index, &climbed, path);
        true
    }

    /// Whether `siblings` are what is proven of the way up from `position`, which is proven itself.
    fn knows_siblings(&self, mut position: NodePosition, siblings: &[Digest]) -> bool {
        let mut siblings = siblings.iter();
        while position.width > 1 {
            if let Some(at) = position.sibling() {
                assert!(self.is_proven(at), "the siblings of what is proven are proven");
                if siblings.next() != Some(&self.nodes[at]) {
                    return false;
                }
            }
            position.climb();
        }
        true
    }

    /// Keeps the nodes that were climbed from leaf `index` until one was proven, and their siblings.
    fn prove_path(&mut self, index: usize, climbed: &[Digest], path: &[Digest]) {
        let mut siblings = path.iter();
        let mut position = NodePosition::leaf(index, self.leaves);
        for hash in climbed {
            self.prove(position.node(), hash);
            if let Some(at) = position.sibling() {
                self.prove(at, siblings.next().expect("its length was compared with the tree's shape"));
            }
            position.climb();
        }
    }

    /// How much memory it takes, counted in nodes: those of its levels, and [`TREE_OVERHEAD_NODES`].
    pub(crate) fn memory_nodes(&self) -> usize {
        memory_nodes(self.leaves)
    }

    fn is_proven(&self, node: usize) -> bool {
        self.proven[node / 64] >> (node % 64) & 1 == 1
    }

    fn prove(&mut self, node: usize, digest: &Digest) {
        self.nodes[node] = *digest;
        self.proven[node / 64] |= 1 << (node % 64);
    }
}

/// What a tree takes beside its levels, counted in nodes.
const TREE_OVERHEAD_NODES: usize = 4;

/// The memory that the tree of `count` leaves will take: see [`ProvenTree::memory_nodes`].
pub(crate) fn memory_nodes(count: usize) -> usize {
    nodes(count) + TREE_OVERHEAD_NODES
}

/// How many nodes the tree of `count` leaves has.
fn nodes(count: usize) -> usize {
    let (mut nodes, mut width) = (count, count);
    while width > 1 {
        width = width.div_ceil(2);
        nodes += width;
    }
    nodes
}

/// A node's position in a tree, on the path from a leaf to the root.
#[derive(Clone, Copy)]
struct NodePosition {
    /// Where its level begins.
    level: usize,
    /// Where it stands in the level.
    at: usize,
    /// How many nodes the level has.
    width: usize,
}

impl NodePosition {
    fn leaf(index: usize, leaves: usize) -> Self {
        Self { level: 0, at: index, width: leaves }
    }

    fn node(self) -> usize {
        self.level + self.at
    }

    fn is_left(self) -> bool {
        self.at.is_multiple_of(2)
    }

    /// Its neighbour under the same parent; `None` when it goes up as it is.
    fn sibling(self) -> Option<usize> {
        let at = self.at ^ 1;
        (at < self.width).then_some(self.level + at)
    }

    fn climb(&mut self) {
        self.level += self.width;
        self.at /= 2;
        self.width = self.width.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::merkle::{Tree, fold};

    fn leaves(count: usize) -> Vec<Digest> {
        (0..count).map(|at| Sha256::digest((at as u64).to_le_bytes()).into()).collect()
    }

    fn tree_under(whole: &Tree, count: usize) -> ProvenTree {
        let count = u16::try_from(count).expect("trees are small");
        ProvenTree::new(&SignedRoot { root: whole.root(), count, signature: [0; 64] })
    }

    fn proven(tree: &ProvenTree) -> usize {
        (0..tree.nodes.len()).filter(|node| tree.is_proven(*node)).count()
    }

    #[test]
    fn in_trees_of_every_size_all_leaves_are_admitted_and_then_all_is_proven() {
        for count in 1..=BATCH_STATEMENTS_MAX {
            let leaves = leaves(count);
            let whole = Tree::new(&leaves);
            let mut tree = tree_under(&whole, count);
            assert!(tree.nodes.len() <= TREE_NODES_MAX && tree.memory_nodes() == memory_nodes(count));
            // From both ends, so that what is known lies now left, now right.
            for at in 0..count {
                let index = if at % 2 == 0 { at / 2 } else { count - 1 - at / 2 };
                assert!(tree.follows(&leaves[index], index, &whole.path(index)), "leaf {index} of {count}");
                assert!(tree.follows(&leaves[index], index, &whole.path(index)), "leaf {index} of {count}, again");
            }
            assert_eq!(proven(&tree), tree.nodes.len());
        }
    }

    #[test]
    fn a_path_proves_its_nodes_and_their_siblings_and_nothing_else() {
        let leaves = leaves(8);
        let whole = Tree::new(&leaves);
        let mut tree = tree_under(&whole, 8);
        assert_eq!(proven(&tree), 1);
        assert!(!tree.follows(&leaves[1], 0, &whole.path(0)));
        assert_eq!(proven(&tree), 1, "what leads elsewhere proves nothing");
        assert!(tree.follows(&leaves[0], 0, &whole.path(0)));
        assert_eq!(proven(&tree), 7);
        assert!(tree.follows(&leaves[2], 2, &whole.path(2)));
        assert_eq!(proven(&tree), 9);
    }

    #[test]
    fn a_known_leaf_with_a_garbage_upper_path_is_refused() {
        for count in [2, 3, 7, 64, 255, 256] {
            let leaves = leaves(count);
            let whole = Tree::new(&leaves);
            let mut tree = tree_under(&whole, count);
            for (index, leaf) in leaves.iter().enumerate() {
                let path = whole.path(index);
                for round in ["new", "known"] {
                    for level in 0..path.len() {
                        let mut garbage = path.clone();
                        garbage[level][level] ^= 1;
                        assert!(!tree.follows(leaf, index, &garbage), "{round} leaf {index} of {count}, level {level}");
                    }
                    assert!(!tree.follows(leaf, index, &path[..path.len().saturating_sub(1)]) || path.is_empty());
                    assert!(!tree.follows(leaf, index, &[&path[..], &[[0; 32]]].concat()));
                    assert!(!tree.follows(leaf, count, &path) && !tree.follows(leaf, usize::MAX, &path));
                    assert!(tree.follows(leaf, index, &path));
                }
            }
        }
    }

    /// What is done to an honest claim on its way.
    #[derive(Clone, Copy, Debug)]
    enum Harm {
        None,
        Leaf(u8),
        Sibling(usize, u8),
        /// A sibling is replaced by another node of the same tree.
        Borrowed(usize, usize),
        Swapped(usize, usize),
        Index(usize),
        PathOf(usize),
        LeafOf(usize),
        Shorter,
        Longer,
    }

    fn any_harm() -> impl Strategy<Value = Harm> {
        let number = 0..1_000usize;
        prop_oneof![
            8 => Just(Harm::None),
            1 => (0..=255u8).prop_map(Harm::Leaf),
            3 => (number.clone(), 0..=255u8).prop_map(|(level, bit)| Harm::Sibling(level, bit)),
            2 => (number.clone(), number.clone()).prop_map(|(level, node)| Harm::Borrowed(level, node)),
            1 => (number.clone(), number.clone()).prop_map(|(one, other)| Harm::Swapped(one, other)),
            1 => number.clone().prop_map(Harm::Index),
            1 => number.clone().prop_map(Harm::PathOf),
            1 => number.prop_map(Harm::LeafOf),
            1 => Just(Harm::Shorter),
            1 => Just(Harm::Longer),
        ]
    }

    /// The claim of leaf `index`, harmed; what a harm cannot be done to stays as it is.
    fn claim(leaves: &[Digest], whole: &Tree, index: usize, harm: Harm) -> (Digest, usize, merkle::Path) {
        let count = leaves.len();
        let (mut leaf, mut at, mut path) = (leaves[index], index, whole.path(index));
        let flip = |digest: &mut Digest, bit: u8| digest[usize::from(bit) / 8] ^= 1 << (bit % 8);
        let levels = path.len();
        match harm {
            Harm::None => {}
            Harm::Leaf(bit) => flip(&mut leaf, bit),
            Harm::Sibling(level, bit) if levels > 0 => flip(&mut path[level % levels], bit),
            Harm::Borrowed(level, node) if levels > 0 => {
                let others = whole.path(node % count);
                path[level % levels] = others[level % others.len().min(levels).max(1)];
            }
            Harm::Swapped(one, other) if levels > 0 => path.swap(one % levels, other % levels),
            Harm::Index(other) => at = other % (count + 2),
            Harm::PathOf(other) => path = whole.path(other % count),
            Harm::LeafOf(other) => leaf = leaves[other % count],
            Harm::Shorter => drop(path.pop()),
            Harm::Longer => path.push(whole.root()),
            Harm::Sibling(..) | Harm::Borrowed(..) | Harm::Swapped(..) => {}
        }
        (leaf, at, path)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(65), failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is proven already, the answer is that of the whole path.
        #[test]
        fn proven_nodes_never_change_a_verdict(
            count in prop_oneof![1..=9usize, 1..=BATCH_STATEMENTS_MAX],
            claims in prop::collection::vec((0..1_000usize, any_harm()), 1..60),
        ) {
            let leaves = leaves(count);
            let whole = Tree::new(&leaves);
            let mut tree = tree_under(&whole, count);
            for (index, harm) in claims {
                let (leaf, at, path) = claim(&leaves, &whole, index % count, harm);
                let plain = fold(&leaf, at, count, &path) == Some(whole.root());
                prop_assert_eq!(tree.follows(&leaf, at, &path), plain, "{:?} of leaf {} of {}", harm, index % count, count);
            }
            for (index, leaf) in leaves.iter().enumerate() {
                prop_assert!(tree.follows(leaf, index, &whole.path(index)), "an honest claim after all that");
            }
        }
    }
}
