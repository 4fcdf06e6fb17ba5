//! With which rights a replica executes its journal, where all replicas of a shard come to the same state by doing so alike, at whatever time each of them does.
//!
//! They stand in a file beside the journal, which is in the form of `cluster.toml`: the configuration with which the replica first ran, and all clients that
//! were added since. A client that was taken out of `cluster.toml` gets no connection, but what it had ordered before is executed as it was. So what a client
//! may read and write never changes, nor do the replicas' keys, by which votes in the journal are checked, nor where keys are. Which keys clients have does not
//! matter there: the file has others in their places, so that a key may go from one client to another.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use bezant_client::ENGINES;
use config::{NodeConfig, Topology};
use crypto::SecretKey;
use types::{ClientId, Cluster, Permission};

use super::HasRun;
use super::has_run::write;
use crate::failure::{Attempt as _, Failure};

/// Its name in the folder of the data.
const NAME: &str = "executes-with.toml";
const HEAD: &str = "# By these rights this replica executes its journal, clients among them that were taken out of cluster.toml since.\n\
                    # The clients' keys here are nobody's. Leave this file as it is.\n";

/// The cluster by which the replica of this folder executes what was ordered.
///
/// # Errors
/// When `cluster.toml` has changed in what must not, or the file cannot be read or written.
pub fn executes_with(config: &NodeConfig) -> Result<Arc<Cluster>, Failure> {
    let (path, topology) = (config.data.join(NAME), &config.topology);
    let before = match fs::metadata(&path) {
        Ok(_) => Some(Topology::read_first(&path, ENGINES)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::failed(format!("it cannot be looked at: {error}")).at(path.display())),
    };
    if before.as_ref().is_some_and(|before| before.structural_locks != topology.structural_locks) {
        return Err(refused("structural_locks is another", &path));
    }
    let known = before.as_ref().map_or(&topology.cluster, |before| &before.cluster);
    let cluster = Arc::new(joined(known, &topology.cluster).map_err(|what| refused(&what, &path))?);
    // Where there are no data, whoever opens them says so.
    if before.is_none_or(|before| before.cluster.clients().len() < cluster.clients().len()) && config.data.is_dir() {
        if HasRun::of(config).is_noted() && !path.exists() {
            tracing::warn!(
                file = %path.display(),
                "it is not there, though this replica has run: its journal is executed by cluster.toml as it is now, which must not have changed since"
            );
        }
        let text = Topology { cluster: cluster.clone(), ..topology.clone() }.to_toml();
        write(&path, &format!("{HEAD}{text}")).attempt("write", path.display())?;
    }
    Ok(cluster)
}

/// A replica that gives up its data goes on executing as it did.
///
/// # Errors
/// When the file is there and cannot be copied.
pub fn carry_over(data: &Path, new: &Path) -> io::Result<()> {
    match fs::read_to_string(data.join(NAME)) {
        Ok(text) => write(&new.join(NAME), &text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
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
    let rights = |permission: &Permission| (permission.read_prefixes.clone(), permission.write_prefixes.clone());
    let changed = now
        .clients()
        .iter()
        .find(|(client, permission)| before.permission(*client).is_some_and(|known| rights(known) != rights(permission)));
    if let Some((client, _)) = changed {
        return Err(format!("client {} has other rights", client.0));
    }
    let added = now.clients().iter().filter(|(client, _)| before.permission(*client).is_none());
    let clients = before.clients().iter().chain(added).map(|(client, permission)| {
        let (read_prefixes, write_prefixes) = rights(permission);
        (*client, Permission { public_key: nobodys_key(*client), read_prefixes, write_prefixes, ..Permission::default() })
    });
    let keys = now.shards().map(|shard| now.replicas_of(shard).filter_map(|replica| now.replica_key(replica).copied()).collect());
    let joined = Cluster::new(now.id(), now.faults(), now.placement().clone(), keys.collect(), clients.collect());
    Ok(joined.map_err(|error| error.to_string())?.with_pending_min(now.pending_min()))
}

/// A key that is no other client's here.
fn nobodys_key(client: ClientId) -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&client.0.to_be_bytes());
    SecretKey::from_bytes(seed).public()
}

fn refused(what: &str, path: &Path) -> Failure {
    Failure::wrong(format!("cluster.toml has changed in what a cluster of this engine cannot change: {what}")).at(path.display()).help(
        "undo that; clients may be taken out, and added with other rights under numbers that were never used (the engine's page of the documentation says why)",
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
        let first = joined(&first, &first).expect("it is itself");
        // One was taken out, and its key went to one that was added.
        let second = joined(&first, &cluster(1, &[(1, 111, ""), (3, 102, "b/")])).expect("the others keep their rights");
        let of = |client| second.permission(ClientId(client)).map(|permission| permission.write_prefixes.clone());
        assert_eq!([1, 2, 3].map(of), ["", "a/", "b/"].map(|prefix| Some(vec![Key::from(prefix)])));
        assert_eq!((second.pending_min(), second.clients().len()), (Some(16), 3));
        let refused = |now: &Cluster| joined(&second, now).expect_err("that must not change");
        assert!(refused(&cluster(1, &[(1, 111, "a/")])).contains("client 1 has other rights"));
        assert!(refused(&cluster(1, &[(2, 102, "")])).contains("client 2 has other rights"), "though it was taken out");
        assert!(refused(&cluster(9, &[(1, 111, "")])).contains("replica s0-r0 has another key"));
    }
}
