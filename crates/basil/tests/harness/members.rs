//! A cluster whose every key comes from a fixed seed, so that two runs are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use types::{ClientId, Cluster, ClusterId, Key, Permission, Placement, ReplicaId};

/// How many clients the cluster knows, numbered from 1.
const CLIENTS: u64 = 9;
/// The client that may write only keys that begin with `x`.
const WRITES_X: ClientId = ClientId(9);
/// The client that may read only keys that begin with `x`.
const READS_X: ClientId = ClientId(7);

/// A cluster and what its members sign with.
pub struct Members {
    pub cluster: Arc<Cluster>,
    pub batch_signers: BTreeMap<ReplicaId, BatchSigner>,
}

/// `shards` shards of six replicas, which survive one fault each. With two, keys before `n` are the first shard's.
pub fn members(shards: u8) -> Members {
    let id = ClusterId::new([7; 16]);
    let keys = (0..shards).map(|shard| (0..6).map(|index| secret(shard + 1, index).public()).collect()).collect();
    let placement = if shards == 2 { Placement::Ranges(vec![Key::from("n")]) } else { Placement::Hash };
    let clients = (1..=CLIENTS).map(|number| {
        let seed = u8::try_from(number).expect("there are few clients");
        let only_x = |client| vec![Key::from(if ClientId(number) == client { "x" } else { "" })];
        let (read_prefixes, write_prefixes) = (only_x(READS_X), only_x(WRITES_X));
        (
            ClientId(number),
            Permission { public_key: secret(100, seed).public(), read_prefixes, write_prefixes, limits: types::ClientLimits::default() },
        )
    });
    let cluster = Arc::new(Cluster::new(id, 1, placement, keys, clients.collect()).expect("the parts fit"));
    let batch_signers = cluster.replicas().map(|replica| {
        let shard = u8::try_from(replica.shard.0 + 1).expect("there are few shards");
        let index = u8::try_from(replica.index).expect("there are six");
        (replica, BatchSigner::new(secret(shard, index), id, replica, Signatures::Ed25519))
    });
    let batch_signers = batch_signers.collect();
    Members { cluster, batch_signers }
}

impl Members {
    /// Somebody who has the public keys and nothing else.
    pub fn stranger(&self) -> Verifier {
        Verifier::new(self.cluster.clone(), Signatures::Ed25519, 256).expect("keys from seeds are good keys")
    }
}

fn secret(group: u8, index: u8) -> SecretKey {
    let mut seed = [17; 32];
    seed[0] = group;
    seed[1] = index;
    SecretKey::from_bytes(seed)
}
