//! What tests of single parts have in common.

use std::sync::Arc;

use types::{Cluster, ClusterId, Placement};

/// One shard of six replicas, whose keys nobody signs with, and no clients.
pub fn one_shard() -> Arc<Cluster> {
    let keys = (0..6).map(|index| [index; 32]).collect();
    Arc::new(Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit"))
}
