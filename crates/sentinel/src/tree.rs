//! The nodes, by path.
//!
//! They lie in shards chosen by a hash of the path. Each shard, and each node, is shared with the copies that were made of the tree, until it
//! is written: then the writer takes its own copy of that shard's list of pieces, of the piece and of the node alone. So a copy of a million nodes costs a few
//! thousand counters, and whoever writes a snapshot of it does so beside the server that goes on changing the tree.

use std::sync::Arc;

use foldhash::fast::FixedState;
use std::hash::BuildHasher as _;

use crate::node::Node;
use crate::text_map::TextMap;

/// How many shards there are.
const SHARDS: usize = 4_096;

pub(crate) type Shard = TextMap<Arc<Node>>;

/// The nodes of a state.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    shards: Vec<Arc<Shard>>,
    hash: FixedState,
    count: usize,
}

impl Nodes {
    /// No nodes. `seed` decides which shard each goes to, so that no client can choose paths that all go to one.
    pub(crate) fn new(seed: u64) -> Self {
        Self { shards: vec![Arc::default(); SHARDS], hash: FixedState::with_seed(seed), count: 0 }
    }

    fn shard_of(&self, path: &str) -> usize {
        usize::try_from(self.hash.hash_one(path) % SHARDS as u64).expect("there are few shards")
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Node> {
        self.shards[self.shard_of(path)].get(path).map(|node| &**node)
    }

    /// The node, to be changed.
    pub(crate) fn get_mut(&mut self, path: &str) -> Option<&mut Node> {
        let shard = self.shard_of(path);
        // A shard is not copied for a node that is not there.
        if !self.shards[shard].contains(path) {
            return None;
        }
        Arc::make_mut(&mut self.shards[shard]).get_mut(path).map(Arc::make_mut)
    }

    pub(crate) fn insert(&mut self, path: &str, node: Node) -> Option<Node> {
        let shard = self.shard_of(path);
        let before = Arc::make_mut(&mut self.shards[shard]).insert(path.into(), Arc::new(node));
        self.count += usize::from(before.is_none());
        before.map(Arc::unwrap_or_clone)
    }

    pub(crate) fn remove(&mut self, path: &str) -> Option<Node> {
        let shard = self.shard_of(path);
        let removed = Arc::make_mut(&mut self.shards[shard]).remove(path);
        self.count -= usize::from(removed.is_some());
        removed.map(Arc::unwrap_or_clone)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// All nodes, in an order that depends on the seed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|(path, node)| (path, &**node)))
    }

    /// All nodes, in the same order. What was given is let go of, so that whoever goes on changing the original has it alone again.
    pub(crate) fn into_shards(self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.into_iter()
    }

    /// The nodes of one shard, counted round and round.
    pub(crate) fn shard(&self, number: usize) -> impl Iterator<Item = (&str, &Node)> {
        self.shards[number % SHARDS].iter().map(|(path, node)| (path, &**node))
    }
}
