//! `bezant key`: each member draws its own secret key, on its own machine, and nobody else ever has it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bezant_client::ENGINES;
use clap::{Args, Subcommand};
use config::{Config, NodeConfig, Topology};
use crypto::SecretKey;
use types::ReplicaId;

use crate::failure::{Attempt as _, Done, Failure};
use crate::init::{self, Card};
use crate::out;

/// What is done with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Draws a secret key, and prints the card by which others know its owner
    #[command(after_help = "Examples:\n\
        \x20 bezant key new my-key --replica db1.bank.example:7400\n\
        \x20 bezant key new my-key --client\n\
        \x20 bezant key new my-key --operator\n\n\
        Give the card to who makes the cluster, over a channel on which nobody can change it. The folder is secret.")]
    New(NewArgs),
    /// Puts a key into the folder that `bezant init --members` made for its owner
    #[command(after_help = "Example:\n\
        \x20 bezant key use my-key cluster/s0-r3 && bezant node cluster/s0-r3\n\
        \x20 bezant key use new-key cluster/s0-r3 --rotate")]
    Use(UseArgs),
}

/// Whose key to draw.
#[derive(Args, Debug)]
pub struct NewArgs {
    /// The folder to make
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    owner: Owner,
    /// Where the replica answers HTTP, for monitoring, without encryption or passwords; by default at the next port of its own host alone
    #[arg(long, value_name = "IP:PORT", requires = "replica")]
    http: Option<SocketAddr>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Owner {
    /// A replica's, which peers and clients reach there
    #[arg(long, value_name = "HOST:PORT", value_parser = init::address_from_text)]
    replica: Option<(String, u16)>,
    /// A client's
    #[arg(long)]
    client: bool,
    /// An operator's, who signs changes of the cluster
    #[arg(long)]
    operator: bool,
}

/// Which key goes where.
#[derive(Args, Debug)]
pub struct UseArgs {
    /// The folder that `bezant key new` made
    #[arg(value_name = "KEY-FOLDER")]
    key: PathBuf,
    /// The member's folder of the cluster
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Put it in the place of the member's earlier key, which the operators have changed
    #[arg(long)]
    rotate: bool,
}

/// Carries out `bezant key`.
pub fn run(command: &KeyCommand) -> Result<Done, Failure> {
    match command {
        KeyCommand::New(args) => new(args),
        KeyCommand::Use(args) if args.rotate => rotate(&args.key, &args.folder),
        KeyCommand::Use(args) => put(&args.key, &args.folder),
    }
}

fn new(args: &NewArgs) -> Result<Done, Failure> {
    let secret = SecretKey::generate();
    let public_key = secret.public();
    let card = match &args.owner.replica {
        Some((host, port)) => {
            let next = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port.checked_add(1).unwrap_or(port - 1)));
            Card::Replica { host: host.clone(), port: *port, http: args.http.unwrap_or_else(|| next(*port)), public_key }
        }
        None if args.owner.operator => Card::Operator { public_key },
        None => Card::Client { public_key },
    };
    let folder = &args.folder;
    fs::create_dir_all(folder).attempt("make the folder", folder.display())?;
    let key = folder.join("key");
    if key.exists() {
        return Err(Failure::wrong("there is a key here already").at(key.display()).help("name another folder"));
    }
    runtime::tls::write_private_key(&key, &secret).attempt("write the key", key.display())?;
    init::text(&folder.join("card"), &format!("{card}\n"))?;
    init::sync(folder)?;
    eprintln!("{} is secret. Give this card to who makes the cluster (it is in {}):", key.display(), folder.join("card").display());
    out!("{card}");
    Ok(Done::Well)
}

/// Puts a new key and its certificate in the place of the earlier ones, which are kept beside them. A crash in between leaves the old key, or
/// none with the new one beside it: the same command goes on from there.
fn rotate(key: &Path, folder: &Path) -> Result<Done, Failure> {
    let key = key.join("key");
    let secret = runtime::tls::read_private_key(&key).map_err(|error| Failure::wrong(error.to_string()).at(key.display()))?;
    let topology = Topology::load(&folder.join("cluster.toml"), ENGINES)?;
    let cluster = &topology.cluster;
    let replica = cluster.replicas().find(|replica| cluster.replica_key(*replica) == Some(&secret.public()));
    let client = cluster.clients().iter().find(|(_, permission)| permission.public_key == secret.public()).map(|(client, _)| *client);
    let name = match (folder.join("node.toml").exists(), replica, client) {
        (true, Some(replica), _) => replica.to_string(),
        (false, _, Some(client)) => client.to_string(),
        _ => {
            return Err(Failure::wrong(format!("configuration {} lists this key for nobody of this kind", topology.chain.version()))
                .at(folder.display())
                .help("apply the configuration that names the new key first; this folder learns of it when its member runs, or by bezant config apply"));
        }
    };
    let (old, certificate) = (folder.join("key"), folder.join("certificate.pem"));
    if let Some(replica) = replica {
        held_the_place(&topology, replica, &secret, folder)?;
    }
    for file in [&old, &certificate] {
        if file.exists() {
            let kept = file.with_extension("old");
            fs::rename(file, &kept).attempt("keep the old file", kept.display())?;
        }
    }
    init::identity(folder, &secret, &name, cluster.id())?;
    init::sync(folder)?;
    let loaded = if replica.is_some() { NodeConfig::load(folder, ENGINES).map(drop) } else { Config::load(folder, ENGINES).map(drop) };
    loaded?;
    eprintln!("{name} has its new key; the earlier one is beside it, and of no use any more. Start it again if it ran");
    Ok(Done::Well)
}

/// Whether the key in `folder` had the replica's place until `secret` got it. Another journal than the last holder's does not know what was said in
/// that place, and might contradict it.
fn held_the_place(topology: &Topology, replica: ReplicaId, secret: &SecretKey, folder: &Path) -> Result<(), Failure> {
    let holders: Vec<[u8; 32]> = topology.chain.clusters().filter_map(|(_, cluster)| cluster.replica_key(replica).copied()).collect();
    // The newest comes first.
    let last = holders.into_iter().find(|holder| *holder != secret.public());
    // After a crash in between, the old key stands beside the new one, or alone.
    let kept = ["key", "key.old"].map(|name| runtime::tls::read_private_key(&folder.join(name)).ok().map(|key| key.public()));
    if last.is_some_and(|last| kept.contains(&Some(last))) {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "this folder's key was not the last one in the place of {replica}, so its data are not what was said there"
    ))
    .at(folder.display())
    .help("begin with an empty store, which rebuilds itself from the others: bezant config join"))
}

fn put(key: &Path, folder: &Path) -> Result<Done, Failure> {
    let key = key.join("key");
    let secret = runtime::tls::read_private_key(&key).map_err(|error| Failure::wrong(error.to_string()).at(key.display()))?;
    let own = folder.join("key");
    if own.exists() {
        return Err(Failure::wrong("this folder has its key already").at(own.display()));
    }
    let topology = Topology::load(&folder.join("cluster.toml"), ENGINES)?;
    let cluster = &topology.cluster;
    let is_replica = folder.join("node.toml").exists();
    let replica = cluster.replicas().find(|replica| cluster.replica_key(*replica) == Some(&secret.public()));
    let client = cluster.clients().iter().find(|(_, permission)| permission.public_key == secret.public()).map(|(client, _)| *client);
    let name = match (is_replica, replica, client) {
        (true, Some(replica), _) => replica.to_string(),
        (false, _, Some(client)) => client.to_string(),
        _ => {
            return Err(Failure::wrong("cluster.toml lists this key for nobody of this kind")
                .at(folder.display())
                .help("make the cluster with this key's card, and take the folder of the member whose card it is"));
        }
    };
    if let (true, Some(replica)) = (is_replica, replica) {
        init::empty_data(folder, cluster, replica)?;
    }
    init::identity(folder, &secret, &name, cluster.id())?;
    init::sync(folder)?;
    // The folder may be another member's.
    let loaded = if is_replica { NodeConfig::load(folder, ENGINES).map(drop) } else { Config::load(folder, ENGINES).map(drop) };
    if let Err(error) = loaded {
        for file in [own, folder.join("certificate.pem")] {
            fs::remove_file(&file).attempt("remove the file", file.display())?;
        }
        if is_replica {
            let data = folder.join("data");
            fs::remove_dir_all(&data).attempt("remove the folder", data.display())?;
        }
        return Err(error.into());
    }
    let next =
        if is_replica { format!("bezant node {}", folder.display()) } else { format!("bezant get KEY --cluster {}", folder.display()) };
    eprintln!("{name} has its key. Next: {next}");
    Ok(Done::Well)
}
