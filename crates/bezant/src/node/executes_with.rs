//! With which rights a replica executes its journal, where all replicas of a shard come to the same state by doing so alike, at whatever time each of them does.
//!
//! They stand in a file beside `node.toml`, which is in the form of `cluster.toml`: the configuration with which the replica first ran, and all clients that
//! were added since. A client that was taken out of `cluster.toml` gets no connection, but what it had ordered before is executed as it was. So what a client
//! may read and write never changes, nor do the replicas' keys, by which votes in the journal are checked, nor where keys are.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bezant_client::ENGINES;
use config::{NodeConfig, Topology};
use types::{ClientId, Cluster, Permission};

use super::has_run::write;
use crate::failure::{Attempt as _, Failure};

/// Its name in the replica's folder.
const NAME: &str = "executes-with.toml";
const HEAD: &str = "# By these rights and keys this replica executes its journal, clients among them that were taken out of cluster.toml since.\n\
                    # Leave this file as it is.\n";

/// The cluster by which the replica of this folder executes what was ordered.
///
/// # Errors
/// When `cluster.toml` has changed in what must not, or the file cannot be read or written.
pub fn executes_with(config: &NodeConfig) -> Result<Arc<Cluster>, Failure> {
    let (path, topology) = (config.folder.join(NAME), &config.topology);
    let before = match fs::metadata(&path) {
        Ok(_) => Some(Topology::read_first(&path, ENGINES)?.cluster),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::failed(format!("it cannot be looked at: {error}")).at(path.display())),
    };
    let cluster = match &before {
        None => topology.cluster.clone(),
        Some(before) => Arc::new(joined(before, &topology.cluster).map_err(|what| refused(&what, &path))?),
    };
    if before.as_ref().is_none_or(|before| before.clients().len() < cluster.clients().len()) {
        let text = Topology { cluster: cluster.clone(), ..topology.clone() }.to_toml();
        write(&path, &format!("{HEAD}{text}")).attempt("write", path.display())?;
    }
    Ok(cluster)
}

/// The clients of both, as they were before and as they have come; or what has changed that must not.
fn joined(before: &Cluster, now: &Cluster) -> Result<Cluster, String> {
    let is_same_shape = before.placement() == now.placement() && before.faults() == now.faults() && before.replicas().eq(now.replicas());
    if !is_same_shape || before.id() != now.id() {
        return Err("its shards, or which keys they have, are others".to_owned());
    }
    if let Some(replica) = now.replicas().find(|replica| before.replica_key(*replica) != now.replica_key(*replica)) {
        return Err(format!("replica {replica} has another key"));
    }
    let mut clients: Vec<(ClientId, Permission)> = before.clients().to_vec();
    for (client, permission) in now.clients() {
        match clients.iter_mut().find(|(known, _)| known == client) {
            None => clients.push((*client, permission.clone())),
            Some((_, known)) => {
                let rights = |permission: &Permission| (permission.read_prefixes.clone(), permission.write_prefixes.clone());
                if rights(known) != rights(permission) {
                    return Err(format!("client {client} has other rights"));
                }
                known.clone_from(permission);
            }
        }
    }
    let keys = now.shards().map(|shard| now.replicas_of(shard).filter_map(|replica| now.replica_key(replica).copied()).collect());
    let joined = Cluster::new(now.id(), now.faults(), now.placement().clone(), keys.collect(), clients);
    let joined = joined.map_err(|error| format!("it does not go together with clients that were taken out: {error}"))?;
    Ok(joined.with_pending_min(now.pending_min()))
}

fn refused(what: &str, path: &Path) -> Failure {
    Failure::wrong(format!("cluster.toml has changed in what a cluster of this engine cannot change: {what}")).at(path.display()).help(
        "undo that; clients may be taken out, and added with other rights under numbers that were never used (docs/protocols/augustus.md)",
    )
}

#[cfg(test)]
mod tests {
    use types::{ClusterId, Key, Placement};

    use super::*;

    fn cluster(first_key: u8, clients: &[(u64, u8, &str)]) -> Cluster {
        let permission = |key: u8, prefix: &str| {
            let prefixes = vec![Key::from(prefix)];
            Permission { public_key: [key; 32], read_prefixes: prefixes.clone(), write_prefixes: prefixes, ..Permission::default() }
        };
        let keys = vec![vec![[first_key; 32], [2; 32], [3; 32], [4; 32]]];
        let clients = clients.iter().map(|(number, key, prefix)| (ClientId(*number), permission(*key, prefix))).collect();
        Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, keys, clients).expect("its parts fit").with_pending_min(Some(16))
    }

    #[test]
    fn clients_come_and_go_and_keep_their_rights() {
        let first = cluster(1, &[(1, 101, ""), (2, 102, "a/")]);
        let second = joined(&first, &cluster(1, &[(1, 111, ""), (3, 103, "b/")])).expect("one was taken out and one added");
        assert_eq!(second, cluster(1, &[(1, 111, ""), (2, 102, "a/"), (3, 103, "b/")]), "and one has another key");
        let refused = |now: &Cluster| joined(&second, now).expect_err("that must not change");
        assert!(refused(&cluster(1, &[(1, 111, "a/")])).contains("client 1 has other rights"));
        assert!(refused(&cluster(1, &[(2, 102, "")])).contains("client 2 has other rights"), "though it was taken out");
        assert!(refused(&cluster(9, &[(1, 111, "")])).contains("replica s0-r0 has another key"));
        assert!(refused(&cluster(1, &[(4, 102, "")])).contains("taken out"), "with the key of another");
    }
}
