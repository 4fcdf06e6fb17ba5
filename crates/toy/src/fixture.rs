//! A small cluster whose keys everybody can work out.

use std::sync::Arc;

use crypto::SecretKey;
use types::{ClientId, Cluster, ClusterId, Permission, Placement, ReplicaId, ShardId};

/// The cluster's identity.
pub const CLUSTER: ClusterId = ClusterId::new([7; 16]);

/// A replica of the only shard.
#[must_use]
pub fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

/// A replica's key.
///
/// # Panics
/// When there cannot be so many replicas.
#[must_use]
pub fn replica_secret(index: u16) -> SecretKey {
    SecretKey::from_bytes([u8::try_from(index).expect("few replicas") + 1; 32])
}

/// A client's key.
#[must_use]
pub fn client_secret(client: u8) -> SecretKey {
    SecretKey::from_bytes([100 + client; 32])
}

/// One shard of six replicas, and clients 1 to `clients`.
///
/// # Panics
/// When there are too many clients for keys to be worked out.
#[must_use]
pub fn cluster(id: ClusterId, clients: u8) -> Arc<Cluster> {
    let replicas = (0..6).map(|index| replica_secret(index).public()).collect();
    let clients = (1..=clients)
        .map(|client| {
            let permission = Permission { public_key: client_secret(client).public(), ..Permission::default() };
            (ClientId(u64::from(client)), permission)
        })
        .collect();
    Arc::new(Cluster::new(id, 1, Placement::Hash, vec![replicas], clients).expect("the toy cluster is well-formed"))
}
