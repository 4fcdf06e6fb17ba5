//! `bezant key`: each member draws its own secret key, on its own machine, and nobody else ever has it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bezant_client::ENGINES;
use clap::{Args, Subcommand};
use config::{Config, NodeConfig, Topology, chain_file, write_chain};
use crypto::SecretKey;
use types::{Cluster, ReplicaId};

use crate::failure::{Attempt as _, Done, Failure};
use crate::init::{self, Card};
use crate::node;
use crate::out;
use crate::tell;

/// In a replica's folder: the key that waits for a configuration to name it.
const WAITING: &str = "key.next";

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
    #[command(after_help = "Examples:\n\
        \x20 bezant key use my-key cluster/s0-r3 && bezant node cluster/s0-r3\n\
        \x20 bezant key use new-key cluster/s0-r3 --rotate\n\
        \x20 bezant key use new-key client-7 --rotate --from cluster")]
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
    /// Where the replica answers HTTP, to monitoring and to other replicas that ask how it is, without encryption or passwords; by default at the next port, to
    /// its own host alone
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
    /// Put it in the place of the member's earlier key. A replica's may be put there before the operators change it: the replica goes on with it when they do
    #[arg(long)]
    rotate: bool,
    /// With --rotate: a folder that knows newer configurations than FOLDER, with its `cluster.toml` and `configurations`; by default the one in which FOLDER lies
    #[arg(long, value_name = "DIR", requires = "rotate")]
    from: Option<PathBuf>,
}

/// Carries out `bezant key`.
pub fn run(command: &KeyCommand) -> Result<Done, Failure> {
    match command {
        KeyCommand::New(args) => new(args),
        KeyCommand::Use(args) if args.rotate => rotate(args),
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
    tell!("{} is secret. Give this card to who makes the cluster (it is in {}):", key.display(), folder.join("card").display());
    out!("{card}");
    Ok(Done::Well)
}

/// Puts a new key in the place of the earlier one, or, in a replica's folder, leaves it until a configuration names it.
fn rotate(args: &UseArgs) -> Result<Done, Failure> {
    let folder = args.folder.as_path();
    let secret = read_secret(&args.key.join("key"))?;
    let topology = brought_forward(folder, args.from.as_deref())?;
    let own = folder.join("key");
    if is_in_place(folder) && read_secret(&own)?.public() == secret.public() {
        return Err(Failure::wrong("this key is in its place already").at(own.display()));
    }
    match put_in_place(&secret, &topology, folder)? {
        Some(name) => tell!("{name} has its new key; the earlier one is beside it, and of no use any more. Start it again if it ran"),
        None if may_wait(&secret, &topology, folder)? => leave_waiting(&secret, folder)?,
        None => {
            return Err(Failure::wrong("no configuration that is known here lists this key for a member of this kind")
                .at(folder.display())
                .help(
                    "apply the configuration that names the new key first; where it is applied, name a folder that knows it: --from DIR",
                ));
        }
    }
    Ok(Done::Well)
}

/// What `folder` knows of its cluster, once it has taken over what the folder `from` knows beyond that: a member whose key was changed while it did not run is
/// told of nothing any more.
///
/// # Errors
/// When a file cannot be read or written, or the two follow different configurations.
pub fn brought_forward(folder: &Path, from: Option<&Path>) -> Result<Topology, Failure> {
    let own = folder.join("cluster.toml");
    let mut topology = Topology::load(&own, ENGINES)?;
    let other = match from {
        Some(from) => Topology::load(&from.join("cluster.toml"), ENGINES)?,
        None => match Topology::load(&folder.join("../cluster.toml"), ENGINES) {
            Ok(around) if around.cluster.id() == topology.cluster.id() => around,
            _ => return Ok(topology),
        },
    };
    if other.cluster.id() != topology.cluster.id() {
        return Err(Failure::wrong("this is another cluster's folder").at(from.unwrap_or(folder).display()));
    }
    let missing = other.chain.after(topology.chain.version()).to_vec();
    if missing.is_empty() {
        return Ok(topology);
    }
    for next in missing {
        topology.chain.extend(next).map_err(|error| Failure::wrong(error.to_string()).at(from.unwrap_or(folder).display()))?;
    }
    let path = chain_file(&own);
    write_chain(&path, &topology.chain).attempt("write the configurations", path.display())?;
    tell!("{} knows configuration {}", folder.display(), topology.chain.version());
    Ok(Topology::load(&own, ENGINES)?)
}

/// Whether the member of this folder can begin with the key that is there.
fn is_in_place(folder: &Path) -> bool {
    if folder.join("node.toml").exists() { NodeConfig::load(folder, ENGINES).is_ok() } else { Config::load(folder, ENGINES).is_ok() }
}

/// Whether a key may wait in this folder until a configuration names it: in that of a replica which has its place and goes by new configurations while it runs; and
/// nobody has or had the key.
fn may_wait(secret: &SecretKey, topology: &Topology, folder: &Path) -> Result<bool, Failure> {
    if !folder.join("node.toml").exists() || !node::changes_while_running(topology.engine) {
        return Ok(false);
    }
    NodeConfig::load(folder, ENGINES)?;
    let public = secret.public();
    let is_members = |cluster: &Cluster| {
        cluster.replicas().any(|replica| cluster.replica_key(replica) == Some(&public))
            || cluster.clients().iter().any(|(_, permission)| permission.public_key == public)
    };
    let is_operators = topology.chain.configurations().any(|configuration| configuration.operators.keys.contains(&public));
    if is_operators || topology.chain.clusters().any(|(_, cluster)| is_members(&cluster)) {
        return Err(Failure::wrong("somebody has, or had, this key already").at(folder.display()).help("draw another: bezant key new"));
    }
    Ok(true)
}

/// Leaves a key in a replica's folder that no configuration names yet.
fn leave_waiting(secret: &SecretKey, folder: &Path) -> Result<(), Failure> {
    let waiting = folder.join(WAITING);
    let found = waiting.exists().then(|| runtime::tls::read_private_key(&waiting));
    match found {
        Some(Ok(found)) if found.public() == secret.public() => {}
        Some(_) => {
            return Err(Failure::wrong("another key waits here already").at(waiting.display()).help("remove it first if it is of no use"));
        }
        None => {
            // Whole before it gets its name.
            let made = folder.join("key.made");
            if made.exists() {
                fs::remove_file(&made).attempt("remove the file", made.display())?;
            }
            runtime::tls::write_private_key(&made, secret).attempt("write the key", made.display())?;
            fs::rename(&made, &waiting).attempt("put the key in its place", waiting.display())?;
        }
    }
    init::sync(folder)?;
    tell!("no configuration names this key yet: it waits in {}, and the replica goes on with it when one does", waiting.display());
    Ok(())
}

/// Takes the key that waits in a replica's folder, if the one there has lost its place and a configuration that is known there names the other. After a crash in
/// between, the same goes on from there.
///
/// # Errors
/// When the waiting key is another replica's, or a file cannot be read or written.
pub fn take_waiting_key(folder: &Path) -> Result<(), Failure> {
    let waiting = folder.join(WAITING);
    if !waiting.exists() {
        return Ok(());
    }
    if !is_in_place(folder) {
        let topology = Topology::load(&folder.join("cluster.toml"), ENGINES)?;
        put_in_place(&read_secret(&waiting)?, &topology, folder)?;
    }
    // Unless it waits for its configuration.
    let key = |path: &Path| runtime::tls::read_private_key(path).ok().map(|key| key.public());
    if is_in_place(folder) && key(&waiting) == key(&folder.join("key")) {
        fs::remove_file(&waiting).attempt("remove the file", waiting.display())?;
        init::sync(folder)?;
    }
    Ok(())
}

fn read_secret(key: &Path) -> Result<SecretKey, Failure> {
    runtime::tls::read_private_key(key).map_err(|error| Failure::wrong(error.to_string()).at(key.display()))
}

/// Puts a new key and its certificate in the place of the earlier ones, which are kept beside them, if a configuration names it for a member of this folder's kind:
/// gives its name. A crash in between leaves the old key, or none with the old one beside it, or the new one: doing it again goes on from there.
fn put_in_place(secret: &SecretKey, topology: &Topology, folder: &Path) -> Result<Option<String>, Failure> {
    let cluster = &topology.cluster;
    let replica = cluster.replicas().find(|replica| cluster.replica_key(*replica) == Some(&secret.public()));
    let client = cluster.clients().iter().find(|(_, permission)| permission.public_key == secret.public()).map(|(client, _)| *client);
    let name = match (folder.join("node.toml").exists(), replica, client) {
        (true, Some(replica), _) => replica.to_string(),
        (false, _, Some(client)) => client.to_string(),
        _ => return Ok(None),
    };
    if let Some(replica) = replica {
        held_the_place(topology, replica, secret, folder)?;
    }
    // Whole before it gets its name.
    let made = folder.join("identity.made");
    if made.exists() {
        fs::remove_dir_all(&made).attempt("remove the folder", made.display())?;
    }
    fs::create_dir(&made).attempt("make the folder", made.display())?;
    init::identity(&made, secret, &name, cluster.id())?;
    init::sync(&made)?;
    let own = folder.join("key");
    if own.exists() && read_secret(&own)?.public() != secret.public() {
        for file in [&own, &folder.join("certificate.pem")] {
            let kept = file.with_extension("old");
            fs::rename(file, &kept).attempt("keep the old file", kept.display())?;
        }
    }
    // The key comes last: who finds the new one finds its certificate.
    for file in ["certificate.pem", "key"] {
        fs::rename(made.join(file), folder.join(file)).attempt("put the new file in its place", folder.join(file).display())?;
    }
    fs::remove_dir(&made).attempt("remove the folder", made.display())?;
    init::sync(folder)?;
    if replica.is_some() { NodeConfig::load(folder, ENGINES).map(drop) } else { Config::load(folder, ENGINES).map(drop) }?;
    Ok(Some(name))
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
    let secret = read_secret(&key.join("key"))?;
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
    tell!("{name} has its key. Next: {next}");
    Ok(Done::Well)
}
