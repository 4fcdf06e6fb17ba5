//! The cluster's shape: whatever it is made of, it is refused in words or keeps its promises.

use std::collections::BTreeSet;

use basil::{Read, Transaction, Write};
use types::limits::{FAULTS_MAX, SHARD_REPLICAS_MAX};
use types::{ClientId, Cluster, Key, Permission, Placement, ShardId, Timestamp};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::CLUSTER;
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "cluster",
    what: "makes clusters of arbitrary parts, and asks where keys live and who may touch them",
    bytes_max: 512,
    runs: 20_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let faults = choices.below(13);
    let shards: Vec<usize> = (0..choices.below(5)).map(|_| if choices.rarely(8) { choices.below(70) } else { 5 * faults + 1 }).collect();
    let mut number = 0_u64;
    let mut key = |choices: &mut Choices<'_>| {
        number += 1;
        let mut key = [0; 32];
        // Now and then somebody's key once more.
        key[..8].copy_from_slice(&if choices.rarely(64) { 1 } else { number }.to_le_bytes());
        key
    };
    let replicas: Vec<Vec<[u8; 32]>> = shards.iter().map(|count| (0..*count).map(|_| key(&mut choices)).collect()).collect();
    let placement =
        if choices.rarely(2) { Placement::Ranges((0..choices.below(5)).map(|_| text(&mut choices)).collect()) } else { Placement::Hash };
    let clients: Vec<(ClientId, Permission)> = (0..choices.below(4))
        .map(|_| {
            let prefixes = |choices: &mut Choices<'_>| (0..choices.below(3)).map(|_| text(choices)).collect();
            let (read_prefixes, write_prefixes) = (prefixes(&mut choices), prefixes(&mut choices));
            (
                ClientId(u64::from(choices.byte() % 8)),
                Permission { public_key: key(&mut choices), read_prefixes, write_prefixes, limits: types::ClientLimits::default() },
            )
        })
        .collect();
    let keys: BTreeSet<[u8; 32]> =
        replicas.iter().flatten().copied().chain(clients.iter().map(|(_, permission)| permission.public_key)).collect();
    let replica_count = shards.iter().sum::<usize>();
    let members = replica_count + clients.len();
    let cluster = match Cluster::new(CLUSTER, faults, placement, replicas, clients) {
        Ok(cluster) => cluster,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!((1..=FAULTS_MAX).contains(&faults) && keys.len() == members);
    // How many replicas a shard takes is the engine's to say: here, only that every shard has as many.
    assert!(shards.iter().all(|count| (1..=SHARD_REPLICAS_MAX).contains(count) && *count == cluster.replicas_per_shard()));
    assert_eq!(cluster.replicas().count(), replica_count);
    assert_eq!(cluster.replicas().filter_map(|replica| cluster.replica_key(replica)).collect::<BTreeSet<_>>().len(), replica_count);
    assert_eq!(cluster.replicas_of(ShardId(u16::try_from(shards.len()).expect("there are few"))).count(), 0);
    check_keys(&mut choices, &cluster);
}

fn text(choices: &mut Choices<'_>) -> Key {
    let length = choices.below(4);
    Key::new(choices.take(length).to_vec()).expect("three bytes are within the limit")
}

fn check_keys(choices: &mut Choices<'_>, cluster: &Cluster) {
    let keys: BTreeSet<Key> = (0..choices.below(8)).map(|_| text(choices)).collect();
    for key in &keys {
        let shard = cluster.shard_of(key);
        assert!(cluster.shards().any(|known| known == shard));
        if let Placement::Ranges(bounds) = cluster.placement() {
            // The shard's number is how many bounds lie at or below the key.
            assert_eq!(usize::from(shard.0), bounds.iter().filter(|bound| *bound <= key).count());
        }
        for (_, permission) in cluster.clients() {
            let read = permission.read_prefixes.iter().any(|prefix| key.as_bytes().starts_with(prefix.as_bytes()));
            assert_eq!(permission.may_read(key), read);
        }
    }
    let (read, written): (Vec<_>, Vec<_>) = keys.into_iter().partition(|_| choices.rarely(2));
    let reads = read.into_iter().map(|key| Read { key, version: Timestamp::ZERO, dependency: None }).collect();
    let writes = written.into_iter().map(|key| Write { key, value: None }).collect();
    let transaction = Transaction::new(CLUSTER, Timestamp::ZERO, reads, writes).expect("keys are distinct");
    if cluster.shards().count() > 1 {
        assert_eq!(transaction.participants(cluster), reference::shards_of(cluster, &transaction));
    } else {
        assert_eq!(transaction.participants(cluster), [ShardId(0)]);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (faults, shards) in [(1, 1), (1, 3), (2, 2)] {
        let mut bytes = vec![faults, shards];
        bytes.resize(2 + usize::from(shards) + usize::from(shards) * (5 * usize::from(faults) + 1), 0);
        bytes.extend_from_slice(&[1, shards - 1, 1, b'h', 1, b'q', 2, 1, 0, 1, 1, b'a', 7, 0, 0, 0, 3, 0]);
        bytes.extend_from_slice(&[5, 1, b'a', 2, b'h', b'i', 1, b'z', 0, 3, b'q', b'q', b'q', 1, 0, 1, 0]);
        seeds.push(bytes);
    }
    seeds
}
