//! The tree under a signed root.
//!
//! Neighbouring nodes are hashed together, level by level, until one is left. A node without a neighbour (the last of an
//! odd level) moves up unchanged. So the number of leaves determines the tree's shape, and the length of a path follows from
//! that number and the leaf's index.

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use types::Digest;
use types::limits::{BATCH_STATEMENTS_MAX, MERKLE_PATH_MAX};

use crate::hash::TAG_NODE;

/// The siblings on the way from a leaf to the root, from the bottom up.
pub(crate) type Path = SmallVec<[Digest; MERKLE_PATH_MAX]>;

/// A whole tree, from which paths are read.
pub(crate) struct Tree {
    /// All levels, one after the other: the leaves first, the root last.
    nodes: Vec<Digest>,
    leaves: usize,
}

impl Tree {
    /// The tree over `leaves`.
    pub(crate) fn new(leaves: &[Digest]) -> Self {
        assert!(!leaves.is_empty() && leaves.len() <= BATCH_STATEMENTS_MAX, "a tree has from 1 to {BATCH_STATEMENTS_MAX} leaves");
        let mut nodes = Vec::with_capacity(2 * leaves.len() + MERKLE_PATH_MAX);
        nodes.extend_from_slice(leaves);
        let mut width = leaves.len();
        while width > 1 {
            let level = nodes.len() - width;
            for at in (level..level + width).step_by(2) {
                let parent = if at + 1 < level + width { node(&nodes[at], &nodes[at + 1]) } else { nodes[at] };
                nodes.push(parent);
            }
            width = width.div_ceil(2);
        }
        Self { nodes, leaves: leaves.len() }
    }

    /// What is signed.
    pub(crate) fn root(&self) -> Digest {
        *self.nodes.last().expect("a tree has at least one leaf")
    }

    /// The siblings of leaf `index` on its way up.
    pub(crate) fn path(&self, index: usize) -> Path {
        assert!(index < self.leaves, "a path begins at a leaf");
        let mut path = Path::new();
        let (mut level, mut at, mut width) = (0, index, self.leaves);
        while width > 1 {
            if (at ^ 1) < width {
                path.push(self.nodes[level + (at ^ 1)]);
            }
            level += width;
            at /= 2;
            width = width.div_ceil(2);
        }
        path
    }
}

/// How many siblings the path of leaf `index` among `count` has; `None` when there is no such leaf or no such tree.
pub(crate) fn path_length(index: usize, count: usize) -> Option<usize> {
    if index >= count || count > BATCH_STATEMENTS_MAX {
        return None;
    }
    let (mut length, mut at, mut width) = (0, index, count);
    while width > 1 {
        length += usize::from((at ^ 1) < width);
        at /= 2;
        width = width.div_ceil(2);
    }
    Some(length)
}

/// The root that `leaf` and its path lead to; `None` when the path is not as long as `index` and `count` say.
pub(crate) fn fold(leaf: &Digest, index: usize, count: usize, path: &[Digest]) -> Option<Digest> {
    if path_length(index, count)? != path.len() {
        return None;
    }
    let mut siblings = path.iter();
    let (mut hash, mut at, mut width) = (*leaf, index, count);
    while width > 1 {
        if (at ^ 1) < width {
            let sibling = siblings.next()?;
            hash = if at % 2 == 0 { node(&hash, sibling) } else { node(sibling, &hash) };
        }
        at /= 2;
        width = width.div_ceil(2);
    }
    Some(hash)
}

/// The hash of two neighbours.
pub(crate) fn node(left: &Digest, right: &Digest) -> Digest {
    let mut input = [TAG_NODE; 65];
    input[1..33].copy_from_slice(left);
    input[33..].copy_from_slice(right);
    Sha256::digest(input).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: usize) -> Vec<Digest> {
        (0..count).map(|at| Sha256::digest((at as u64).to_le_bytes()).into()).collect()
    }

    #[test]
    fn roots_are_fixed() {
        let roots: Vec<String> = [1, 2, 3, 5, 64, 256].map(|count| hex::encode(Tree::new(&leaves(count)).root())).to_vec();
        assert_eq!(
            roots,
            [
                "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc",
                "9e6a773c549c501e3a5b364e99d8fb8682f5da2a51e111789a8eada7780ed38a",
                "ad1e358188524d1e96a9c022a23af2128cc0718ce375feec855d65c98f34353b",
                "70075a174e5f7c8fca446914162619d4b2d0aa78bc93749a27690243730ee182",
                "bc52d53f660bdae30fec0d554c077e1082f5a150cf3f0798bd13ae2c8f39679a",
                "de069d702e49cc24a12c7994bffbe566581c89f64d5b596b0b2a710bc0f1a48e",
            ]
        );
    }

    #[test]
    fn a_node_without_neighbour_moves_up_unchanged() {
        let leaves = leaves(3);
        assert_eq!(Tree::new(&leaves).root(), node(&node(&leaves[0], &leaves[1]), &leaves[2]));
        assert_eq!(Tree::new(&leaves[..1]).root(), leaves[0]);
    }

    #[test]
    fn in_trees_of_every_size_each_path_leads_to_the_root_from_its_own_index_alone() {
        for count in 1..=BATCH_STATEMENTS_MAX {
            let leaves = leaves(count);
            let tree = Tree::new(&leaves);
            for (index, leaf) in leaves.iter().enumerate() {
                let path = tree.path(index);
                assert!(path.len() <= MERKLE_PATH_MAX);
                assert_eq!(path_length(index, count), Some(path.len()));
                assert_eq!(fold(leaf, index, count, &path), Some(tree.root()));
                // All indices in small trees; in large ones the neighbours and some far ones.
                let far = if count <= 40 { 1 } else { 29 };
                for other in (0..count).step_by(far).chain([index ^ 1, index + 1]).filter(|other| *other != index) {
                    assert_ne!(fold(leaf, other, count, &path), Some(tree.root()), "leaf {index} of {count} at {other}");
                }
            }
        }
    }

    #[test]
    fn a_path_of_another_length_leads_nowhere() {
        let leaves = leaves(5);
        let tree = Tree::new(&leaves);
        let mut path = tree.path(1);
        path.push([0; 32]);
        assert_eq!(fold(&leaves[1], 1, 5, &path), None);
        path.truncate(2);
        assert_eq!(fold(&leaves[1], 1, 5, &path), None);
        assert_eq!(path_length(0, 0), None);
        assert_eq!(path_length(5, 5), None);
        assert_eq!(path_length(0, BATCH_STATEMENTS_MAX + 1), None);
        // An inner node offered as a leaf leads to the root only in a tree of another size, which is signed too.
        let inner = node(&leaves[0], &leaves[1]);
        assert_eq!(fold(&inner, 0, 5, &tree.path(0)[1..]), None);
    }
}
