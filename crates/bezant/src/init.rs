//! `bezant init`: draws a cluster's keys and writes its folder.
//!
//! ```text
//! DIR/cluster.toml                 the cluster: public, the same everywhere
//! DIR/s0-r0/                       one folder a replica, to be copied to its host as it is
//!     node.toml  cluster.toml  key (secret)  certificate.pem  data/      and has-run, from its first start on
//! DIR/client/  DIR/client-2/ …     one folder a client, the same
//!     client.toml  cluster.toml  key (secret)  certificate.pem
//! DIR/operator/ …                  one folder an operator: its key (secret), to be kept away from all members
//! ```
//!
//! Where members bring keys of their own (`--members`), operators have no folders, and no other folder has a key, a certificate or `data`: `bezant key use` adds these.

mod cards;
mod experiments;
mod ports;
mod write;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use config::{Endpoint, ReadQuorum, Topology, key_from_text};
use crypto::configuration::OPERATORS_MAX;
use crypto::{Operators, SecretKey};
use engine::Profile;
use types::limits::{FAULTS_MAX, SHARDS_MAX};
use types::{ClientId, ClientLimits, Cluster, ClusterId, Key, Permission, Placement, ReplicaId, ShardId};

use crate::failure::{Done, Failure};
use crate::given::Given;
use crate::node::ADDRESS_WAIT;
use crate::out;
use crate::tell;
use cards::Cards;
pub use cards::{Card, address_from_text};
use config::Settings;
use experiments::Experiments;
use ports::BasePort;
pub use write::{client_toml, empty_data, identity, node_toml, refuse_occupied, refuse_unfinished, sync, text};

/// The most clients `init` draws keys for; more can be added to `cluster.toml` by hand.
const CLIENTS_MAX: u64 = 10_000;
/// The most replicas one `init` makes: each has a folder, and two ports.
const REPLICAS_MAX: usize = 2_048;

/// What kind of cluster to make.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// The protocol
    #[arg(long, default_value = bezant_client::ENGINES[0].name, value_parser = PossibleValuesParser::new(bezant_client::ENGINES.iter().map(|engine| engine.name)))]
    engine: String,
    /// How many replicas of each shard may fail
    #[arg(long, help = faults_help(), value_name = "F", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=FAULTS_MAX as u64))]
    faults: u64,
    /// How many shards the keys are spread over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=SHARDS_MAX as u64))]
    shards: u64,
    /// How keys are placed on shards: hash, or ranges:KEY,KEY,… with the first key of each shard but the first
    #[arg(long, default_value = "hash")]
    placement: PlacementName,
    /// How many clients get keys; all may read and write everything, until their rights are changed (`bezant config`)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=CLIENTS_MAX))]
    clients: u64,
    /// How many operators get keys: who may change the cluster while it runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=OPERATORS_MAX as u64))]
    operators: u64,
    /// How many operators must sign a change; by default, and at least, more than half
    #[arg(long, value_name = "N")]
    operators_needed: Option<u16>,
    /// How many replicas the clients' reads ask: f+1, 2f+1 or 3f+1
    #[arg(long, default_value = "2f+1")]
    read_quorum: ReadQuorum,
    #[command(flatten)]
    experiments: Experiments,
    /// The first of the ports, two a replica; or `auto`: free ports of this computer, beside clusters that run already
    #[arg(long, value_name = "PORT", default_value = "7400")]
    base_port: BasePort,
    #[command(flatten)]
    settings: Settings,
}

fn faults_help() -> String {
    let shapes: Vec<String> = bezant_client::ENGINES.iter().map(|engine| format!("{} ({})", engine.shape, engine.name)).collect();
    format!(
        "How many replicas of each shard may fail: lie, or where a shard has 2f+1 only crash; a shard then has so many replicas: {}",
        shapes.join(", ")
    )
}

/// Makes a cluster: keys, certificates, one folder a replica.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// The folder to make
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The hosts to spread each shard's replicas over, by name or address. No host may hold more than F replicas of a shard, so that the
    /// loss of any one host stops nothing; with too few hosts `init` says how many it takes
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', default_value = "127.0.0.1")]
    hosts: Vec<String>,
    /// Let a host hold more than F replicas of a shard, and accept that the loss of that one host stops the shard
    #[arg(long)]
    allow_crowded_hosts: bool,
    /// Make the cluster of members who have drawn their own keys: a file with a line for each, as `bezant key new` prints it. The replicas
    /// of the first shard come first. No folder gets a key: each member puts its own there with `bezant key use`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "clients", "operators", "base_port"])]
    members: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Clone, Debug)]
struct PlacementName(Placement);

impl FromStr for PlacementName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "hash" => Ok(Self(Placement::Hash)),
            Some(("ranges", keys)) => Ok(Self(Placement::Ranges(keys.split(',').map(key_from_text).collect::<Result<_, _>>()?))),
            _ => Err(format!("a placement is hash, or ranges:KEY,KEY,…, not {text:?}")),
        }
    }
}

/// A cluster that is about to be written.
struct Plan {
    topology: Topology,
    members: Vec<Member>,
    /// Their secret keys, where they were drawn here.
    clients: Vec<(ClientId, Option<SecretKey>)>,
    /// The operators' secret keys, where they were drawn here.
    operators: Vec<SecretKey>,
    read_quorum: ReadQuorum,
    experiments: Experiments,
    settings: Settings,
}

impl Plan {
    /// An address of this computer that one of the replicas is to have, and another program has now.
    fn taken_address(&self) -> Option<SocketAddr> {
        let addresses = self.members.iter().flat_map(|member| [member.listen, member.http]);
        let is_taken = |address: &SocketAddr| TcpListener::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
        addresses.filter(|address| address.ip().is_loopback()).find(is_taken)
    }
}

struct Member {
    name: ReplicaId,
    public_key: [u8; 32],
    /// Where it was drawn here.
    secret: Option<SecretKey>,
    /// `host:port`, as others reach it.
    address: String,
    listen: SocketAddr,
    http: SocketAddr,
}

/// Carries out `bezant init`.
pub fn run(args: &InitArgs) -> Result<Done, Failure> {
    let cards = args.members.as_deref().map(Cards::read).transpose()?;
    let hosts = cards.as_ref().map_or_else(|| args.hosts.clone(), Cards::hosts);
    if !args.allow_crowded_hosts {
        refuse_crowded_hosts(&hosts, &args.shape)?;
    }
    write::refuse_occupied(&args.folder)?;
    let plan = plan(&hosts, &args.shape, cards.as_ref())?;
    write::folder(&args.folder, &plan)?;
    let folder = args.folder.display();
    if cards.is_some() {
        tell!("{folder} is made, without any key. Next: give each member its folder, and there run: bezant key use KEY-FOLDER FOLDER");
    } else if is_local(&args.hosts) {
        if let Some(address) = plan.taken_address() {
            tell!(
                "warning: another program has {address} now, one of the cluster's addresses: stop it first, or choose others with --base-port auto"
            );
        }
        tell!("{folder} is made. Next: bezant up {folder}, then bezant put a 1 --cluster {folder}");
    } else {
        tell!("{folder} is made. Next: copy each s*-r* folder to its host in cluster.toml, and there run: bezant node FOLDER");
    }
    out!("{folder}");
    Ok(Done::Well)
}

/// Refuses hosts too few for one of them to be lost. Replicas that all run on this computer are for trying things out, and are let be.
fn refuse_crowded_hosts(hosts: &[String], shape: &Shape) -> Result<(), Failure> {
    let (faults, per_shard) = (count(shape.faults), (shape.engine().shard_size)(count(shape.faults)));
    if is_local(hosts) {
        return Ok(());
    }
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for host in hosts.iter().cycle().take(per_shard) {
        *held.entry(host.to_ascii_lowercase()).or_default() += 1;
    }
    match held.iter().max_by_key(|(_, replicas)| **replicas) {
        Some((host, replicas)) if *replicas > faults => {
            let needed = per_shard.div_ceil(faults);
            Err(Failure::wrong(format!(
                "the host {host} would hold {replicas} replicas of each shard, and a shard of {per_shard} survives the loss of {faults}: \
                 should that host fail, every shard would stop"
            ))
            .at("--hosts")
            .help(format!("name {needed} different hosts; or accept it with --allow-crowded-hosts")))
        }
        _ => Ok(()),
    }
}

/// Makes the folder of a cluster that is to run here at once. It must not exist yet, or be empty.
pub async fn create(folder: &Path, shape: &Shape) -> Result<(), Failure> {
    write::refuse_occupied(folder)?;
    let plan = plan(&["127.0.0.1".to_owned()], shape, None)?;
    let give_up = Instant::now() + ADDRESS_WAIT;
    while let Some(address) = plan.taken_address() {
        if Instant::now() >= give_up {
            return Err(Failure::failed("another program has one of the ports that the cluster would take")
                .at(address)
                .help("stop it, or take free ports: --base-port auto"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    write::folder(folder, &plan)
}

/// Refuses what was asked of a cluster that is made already and is otherwise; says what can no longer be asked.
pub fn compare(folder: &Path, shape: &Given<Shape>) -> Result<(), Failure> {
    let file = folder.join("cluster.toml");
    let topology = Topology::load(&file, bezant_client::ENGINES)?;
    let (cluster, asked) = (&topology.cluster, &shape.value);
    let as_made = |name: &str| match name {
        "--engine" => Some(topology.engine == asked.engine()),
        "--faults" => Some(cluster.faults() == count(asked.faults)),
        "--shards" => Some(cluster.shards().count() == count(asked.shards)),
        "--placement" => Some(*cluster.placement() == asked.placement.0),
        "--clients" => Some(cluster.clients().len() == count(asked.clients)),
        "--operators" => Some(topology.chain.newest().operators.keys.len() == count(asked.operators)),
        "--operators-needed" => Some(asked.operators_needed.is_none_or(|needed| topology.chain.newest().operators.needed == needed)),
        _ => None,
    };
    let (comparable, late): (Vec<&String>, Vec<&String>) = shape.names.iter().partition(|name| as_made(name).is_some());
    if let Some(name) = comparable.into_iter().find(|name| as_made(name) == Some(false)) {
        return Err(Failure::wrong(format!("{name} says otherwise than the cluster that is made here already"))
            .at(file.display())
            .help(format!("leave {name} out, or name another folder for another cluster")));
    }
    if !late.is_empty() {
        let names: Vec<&str> = late.iter().map(|name| name.as_str()).collect();
        tell!(
            "warning: {} had no effect: the cluster in {} is made already; change node.toml or client.toml in its folders instead",
            names.join(", "),
            folder.display()
        );
    }
    Ok(())
}

impl Shape {
    fn engine(&self) -> &'static Profile {
        bezant_client::ENGINES.iter().find(|engine| engine.name == self.engine).expect("clap takes no other")
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).expect("clap bounds it")
}

fn plan(hosts: &[String], shape: &Shape, cards: Option<&Cards>) -> Result<Plan, Failure> {
    let engine = shape.engine();
    let [faults, shards] = [shape.faults, shape.shards].map(count);
    let per_shard = (engine.shard_size)(faults);
    let wrong = |what| Failure::wrong(what).help("`bezant init --help` says what each is for");
    shape.settings.check(engine).map_err(wrong)?;
    if shape.read_quorum != ReadQuorum::default() && !engine.settings.contains(&"read_quorum") {
        return Err(wrong(format!("clients of the engine {} do not go by read_quorum: leave it out", engine.name)));
    }
    if shards > engine.shards_max {
        return Err(Failure::wrong(format!("{} runs clusters of no more shards than {}, up to now", engine.name, engine.shards_max))
            .help("lower --shards, or take another --engine"));
    }
    if shards * per_shard > REPLICAS_MAX {
        return Err(Failure::wrong(format!("{shards} shards of {per_shard} replicas are more than {REPLICAS_MAX}"))
            .help("lower --shards or --faults"));
    }
    let members = match cards {
        Some(cards) => cards.members(shards, per_shard)?,
        None => members(hosts, shape.base_port, shards, per_shard)?,
    };
    let keys = members.chunks(per_shard).map(|shard| shard.iter().map(|member| member.public_key).collect()).collect();
    let clients: Vec<(ClientId, [u8; 32], Option<SecretKey>)> = match cards {
        Some(cards) => (1..).zip(cards.clients()).map(|(number, public_key)| (ClientId(number), public_key, None)).collect(),
        None => (1..=shape.clients)
            .map(|number| (ClientId(number), SecretKey::generate()))
            .map(|(id, key)| (id, key.public(), Some(key)))
            .collect(),
    };
    let everything = || vec![Key::from("")];
    let permissions = clients
        .iter()
        .map(|(number, public_key, _)| {
            let (read_prefixes, write_prefixes) = (everything(), everything());
            (*number, Permission { public_key: *public_key, read_prefixes, write_prefixes, limits: ClientLimits::default() })
        })
        .collect();
    let cluster = Cluster::new(ClusterId::new(rand::random()), faults, shape.placement.0.clone(), keys, permissions)
        .map_err(|error| Failure::wrong(error.to_string()).help("mend the flags --placement, --shards and --faults"))?
        .with_pending_min(engine.pending_room.map(|room| room.least));
    let (experiments, settings) = (shape.experiments.clone(), shape.settings.clone());
    let clients = clients.into_iter().map(|(number, _, secret)| (number, secret)).collect();
    let (operators, drawn) = operators(shape, cards)?;
    let endpoint = |member: &Member| (member.name, Endpoint { address: member.address.clone(), http: member.http.to_string() });
    let endpoints = members.iter().map(endpoint).collect();
    let topology = Topology {
        structural_locks: experiments.structural_locks(),
        ..Topology::new(Arc::new(cluster), engine, experiments.signatures(), endpoints, operators)
    };
    Ok(Plan { topology, members, clients, operators: drawn, read_quorum: shape.read_quorum, experiments, settings })
}

/// The operators, and the secret keys that were drawn for them.
fn operators(shape: &Shape, cards: Option<&Cards>) -> Result<(Operators, Vec<SecretKey>), Failure> {
    let drawn: Vec<SecretKey> = match cards {
        Some(_) => Vec::new(),
        None => (0..shape.operators).map(|_| SecretKey::generate()).collect(),
    };
    let mut keys: Vec<[u8; 32]> = match cards {
        Some(cards) => cards.operators().collect(),
        None => drawn.iter().map(SecretKey::public).collect(),
    };
    keys.sort_unstable();
    if keys.len() > OPERATORS_MAX {
        return Err(Failure::wrong(format!("there are cards of more than {OPERATORS_MAX} operators")).at("--members"));
    }
    if keys.is_empty() {
        tell!("warning: there is no card of an operator, so nobody will ever be able to change this cluster");
        return Ok((Operators::default(), drawn));
    }
    let least = u16::try_from(keys.len() / 2 + 1).expect("OPERATORS_MAX fits");
    let needed = shape.operators_needed.unwrap_or(least);
    if needed < least || usize::from(needed) > keys.len() {
        return Err(Failure::wrong(format!("{needed} of {} operators cannot be asked for", keys.len()))
            .at("--operators-needed")
            .help(format!("name a number from {least} to {}", keys.len())));
    }
    Ok((Operators { needed, keys }, drawn))
}

fn members(hosts: &[String], base_port: BasePort, shards: usize, per_shard: usize) -> Result<Vec<Member>, Failure> {
    if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
        return Err(Failure::wrong(format!("{host:?} is not a host's name or address"))
            .help("name hosts as in --hosts 10.0.0.1,db2.example,[fd00::3]"));
    }
    let count = shards * per_shard;
    let ports = base_port.take(2 * count)?;
    let (peer_ports, http_ports) = ports.split_at(count);
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut members = Vec::with_capacity(count);
    for at in 0..count {
        // The same host for the same index of every shard, so that a host's loss costs each shard as little:
        // `refuse_crowded_hosts` counts on it.
        let host = &hosts[(at % per_shard) % hosts.len()];
        let listen = listen_ip(host);
        let secret = SecretKey::generate();
        members.push(Member {
            name: name(at, per_shard),
            public_key: secret.public(),
            secret: Some(secret),
            address: format!("{host}:{}", peer_ports[at]),
            listen: SocketAddr::new(listen, peer_ports[at]),
            http: SocketAddr::new(loopback, http_ports[at]),
        });
    }
    Ok(members)
}

/// The name of the replica at place `at`.
fn name(at: usize, per_shard: usize) -> ReplicaId {
    ReplicaId {
        shard: ShardId(u16::try_from(at / per_shard).expect("SHARDS_MAX fits")),
        index: u16::try_from(at % per_shard).expect("FAULTS_MAX bounds it"),
    }
}

/// Where a replica listens that others reach at `address` (`host:port`).
pub fn listen_at(address: &str) -> Result<SocketAddr, Failure> {
    let (host, port) = address_from_text(address).map_err(|what| Failure::wrong(what).at(address))?;
    Ok(SocketAddr::new(listen_ip(&host), port))
}

/// A loopback host hears only this computer; any other hears on all its addresses.
fn listen_ip(host: &str) -> IpAddr {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => address,
        Ok(IpAddr::V6(_)) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        _ if host == "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

fn is_local(hosts: &[String]) -> bool {
    hosts.iter().all(|host| listen_ip(host).is_loopback())
}

fn is_host(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inside {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter)),
    }
}
