//! The nodes, by path.
//!
//! They lie in shards chosen by a hash of the path. Each shard is shared with the copies that were made of the tree, until it is written:
//! then the writer takes its own copy of that shard alone. So a copy of a million nodes costs a few thousand counters, and whoever
//! writes a snapshot of it does so beside the server that goes on changing the tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use std::hash::BuildHasher as _;

use crate::node::Node;

/// How many shards there are.
const SHARDS: usize = 4_096;

type Shard = BTreeMap<Box<str>, Node>;

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
        self.shards[self.shard_of(path)].get(path)
    }

    /// The node, to be changed.
    pub(crate) fn get_mut(&mut self, path: &str) -> Option<&mut Node> {
        let shard = self.shard_of(path);
        // A shard is not copied for a node that is not there.
        if !self.shards[shard].contains_key(path) {
            return None;
        }
        Arc::make_mut(&mut self.shards[shard]).get_mut(path)
    }

    pub(crate) fn insert(&mut self, path: &str, node: Node) -> Option<Node> {
        let shard = self.shard_of(path);
        let before = Arc::make_mut(&mut self.shards[shard]).insert(path.into(), node);
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove(&mut self, path: &str) -> Option<Node> {
        let shard = self.shard_of(path);
        let removed = Arc::make_mut(&mut self.shards[shard]).remove(path);
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// All nodes, in an order that depends on the seed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|(path, node)| (&**path, node)))
    }

    /// The nodes of one shard, counted round and round.
    pub(crate) fn shard(&self, number: usize) -> impl Iterator<Item = (&str, &Node)> {
        self.shards[number % SHARDS].iter().map(|(path, node)| (&**path, node))
    }
}
