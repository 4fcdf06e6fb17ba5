//! `cluster.toml`, and what its operators have changed since: the cluster as everybody in it knows it. Nothing in it is secret.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crypto::{Chain, Configuration, Holder, Operators, Signatures};
use engine::Profile;
use serde::{Deserialize, Deserializer};
use types::{ClientId, ClientLimits, Cluster, ClusterId, Key, Permission, Placement, ReplicaId};

use crate::chain_file::{chain_file, read_chain};
use crate::file::{ConfigError, read_toml};
use crate::text::{choice, client_number, key_from_text, parsed, replica_from_name};

/// The format of `cluster.toml` that is written and read here.
const FORMAT: u32 = 1;

/// Where a replica is reached, each as `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// By peers and clients, over mutual TLS.
    pub address: String,
    /// By people and monitoring, over HTTP; loopback of its own host unless told otherwise.
    pub http: String,
}

/// The cluster, and where its replicas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its shape, keys, clients and their rights.
    pub cluster: Arc<Cluster>,
    /// The protocol it runs.
    pub engine: &'static Profile,
    /// Whether statements are signed. Off is for measurement only: such a cluster survives no liar.
    pub signatures: Signatures,
    /// What an insertion and a range exclude each other in, on an engine that locks. The whole shard is for measurement only.
    pub structural_locks: StructuralLocks,
    /// Where each replica is.
    pub endpoints: BTreeMap<ReplicaId, Endpoint>,
    /// All configurations up to the one that the above is.
    pub chain: Chain,
}

/// What an insertion and a range exclude each other in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StructuralLocks {
    /// The range.
    #[default]
    Intervals,
    /// Their shard.
    WholeShard,
}

impl Topology {
    /// A cluster that was never changed, whose replicas are at `endpoints`.
    #[must_use]
    pub fn new(
        cluster: Arc<Cluster>,
        engine: &'static Profile,
        signatures: Signatures,
        endpoints: BTreeMap<ReplicaId, Endpoint>,
        operators: Operators,
    ) -> Self {
        let holder = |replica: ReplicaId| {
            let Endpoint { address, http } = endpoints.get(&replica).cloned().unwrap_or_default();
            Holder { public_key: cluster.replica_key(replica).copied().unwrap_or_default(), address, http }
        };
        let holders = cluster.shards().map(|shard| cluster.replicas_of(shard).map(holder).collect()).collect();
        let first = Configuration::first(&cluster, engine.name, signatures, holders, operators);
        let chain = Chain::new(Cluster::clone(&cluster), first);
        Self { cluster, engine, signatures, structural_locks: StructuralLocks::default(), endpoints, chain }
    }

    /// Reads `cluster.toml`, and the configurations beside it that followed.
    ///
    /// # Errors
    /// [`ConfigError`] when it cannot be read, its parts do not make a cluster, it runs none of `engines`, or what stands beside it does not
    /// follow.
    pub fn load(path: &Path, engines: &[&'static Profile]) -> Result<Self, ConfigError> {
        let mut first = Self::read_first(path, engines)?;
        read_chain(&chain_file(path), &mut first.chain)?;
        Ok(first.as_newest())
    }

    /// The same cluster as the newest configuration of its chain describes it.
    #[must_use]
    pub fn as_newest(self) -> Self {
        let cluster = Arc::new(self.chain.cluster());
        let holders = self.chain.newest().replicas.iter().flatten();
        let endpoint = |holder: &Holder| Endpoint { address: holder.address.clone(), http: holder.http.clone() };
        let endpoints = cluster.replicas().zip(holders.map(endpoint)).collect();
        Self { cluster, endpoints, ..self }
    }

    /// Reads a file of the form of `cluster.toml` alone.
    ///
    /// # Errors
    /// As [`Topology::load`].
    pub fn read_first(path: &Path, engines: &[&'static Profile]) -> Result<Self, ConfigError> {
        let file: ClusterToml = read_toml(path)?;
        let refuse = |what: String, help: &str| ConfigError { what, file: path.to_path_buf(), line: None, help: help.to_owned() };
        let as_made = "take cluster.toml as `bezant init` made it, the same on every host";
        if file.format != FORMAT {
            return Err(refuse(
                format!("format {} of cluster.toml is not known here; {FORMAT} is", file.format),
                "use the program that made it",
            ));
        }
        let placement = match (file.placement, file.bounds) {
            (PlacementKind::Hash, bounds) if bounds.is_empty() => Placement::Hash,
            (PlacementKind::Hash, _) => {
                return Err(refuse("bounds are given, but keys are placed by hash".to_owned(), "set placement = \"ranges\""));
            }
            (PlacementKind::Ranges, bounds) => Placement::Ranges(bounds.into_iter().map(|bound| bound.0).collect()),
        };
        let mut members = BTreeMap::new();
        for replica in file.replica {
            let name = replica.name.0;
            if members.insert(name, (replica.public_key.0, Endpoint { address: replica.address.0, http: replica.http.0 })).is_some() {
                return Err(refuse(format!("{name} is listed twice"), as_made));
            }
        }
        if let Some(what) = shared_place(&members) {
            return Err(refuse(what, "give each its own host or port"));
        }
        let keys = shards(&members).map_err(|missing| refuse(format!("{missing} is not listed, though later ones are"), as_made))?;
        let clients = clients(file.client).map_err(|what| refuse(what, as_made))?;
        let signatures = match file.signatures {
            Switch::On => Signatures::Ed25519,
            #[cfg(feature = "lab")]
            Switch::Off => Signatures::Off,
            #[cfg(not(feature = "lab"))]
            Switch::Off => {
                let take_out = "take the line out, if all replicas and clients are to sign";
                return Err(refuse(crate::laboratory_only("signatures = \"off\""), take_out));
            }
        };
        #[cfg(not(feature = "lab"))]
        if file.structural_locks == StructuralLocks::WholeShard {
            return Err(refuse(crate::laboratory_only("structural_locks = \"whole-shard\""), "take the line out"));
        }
        let structural_locks = file.structural_locks;
        let cluster = Cluster::new(ClusterId::new(file.id.0), file.faults, placement, keys, clients)
            .map_err(|error| refuse(error.to_string(), as_made))?;
        let Some(engine) = engines.iter().find(|engine| engine.name == file.engine) else {
            let known: Vec<&str> = engines.iter().map(|engine| engine.name).collect();
            return Err(refuse(
                format!("engine {:?} is not known here; known are: {}", file.engine, known.join(", ")),
                "use the program that made it",
            ));
        };
        let (found, needed) = (cluster.replicas_per_shard(), (engine.shard_size)(cluster.faults()));
        if found != needed {
            let (faults, shape) = (cluster.faults(), engine.shape);
            let what = format!("a shard has {found} replicas; with faults = {faults}, {} needs {needed} ({shape})", engine.name);
            return Err(refuse(what, as_made));
        }
        let operators = operators(file.operator, file.operators_needed)
            .map_err(|what| refuse(what, "operators_needed must be more than half of them, and no more than there are"))?;
        if let Some(pending_min) = file.pending_min {
            let Some(room) = engine.pending_room else {
                return Err(refuse(format!("{} has no use for pending_min", engine.name), "take the line out"));
            };
            if !(room.least_min..=room.most).contains(&pending_min) {
                let what = format!("pending_min cannot be {pending_min}: it takes a number from {} to {}", room.least_min, room.most);
                return Err(refuse(what, as_made));
            }
        }
        let cluster = cluster.with_pending_min(file.pending_min);
        let endpoints = members.into_iter().map(|(name, (_, endpoint))| (name, endpoint)).collect();
        let topology = Self { structural_locks, ..Self::new(Arc::new(cluster), engine, signatures, endpoints, operators) };
        if let Some(twice) = crypto::configuration::shared_key(topology.chain.newest()) {
            return Err(refuse(format!("two members have the same public key {twice}"), as_made));
        }
        Ok(topology)
    }

    /// How many replicas, itself among them, are on the host that `replica` is on, by the names of hosts in the configuration.
    #[must_use]
    pub fn replicas_on_host_of(&self, replica: ReplicaId) -> usize {
        let host = |endpoint: &Endpoint| host_of(&endpoint.address).to_ascii_lowercase();
        let own = self.endpoints.get(&replica).map(host);
        self.endpoints.values().filter(|endpoint| Some(host(endpoint)) == own).count()
    }

    /// Where each replica listens, by number: a host, or its name, and a port.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<ReplicaId, String> {
        self.endpoints.iter().map(|(replica, endpoint)| (*replica, endpoint.address.clone())).collect()
    }
}

/// Which two places of the replicas are the same, in words, if any are.
fn shared_place(members: &BTreeMap<ReplicaId, ([u8; 32], Endpoint)>) -> Option<String> {
    let (mut listening, mut answering) = (BTreeMap::new(), BTreeMap::new());
    for (name, (_, Endpoint { address, http: _ })) in members {
        if let Some(other) = listening.insert(address.to_ascii_lowercase(), *name) {
            return Some(format!("{other} and {name} have the same address {address}"));
        }
    }
    for (name, (_, Endpoint { address, http })) in members {
        let place = http.to_ascii_lowercase();
        if let Some(other) = listening.get(&place) {
            return Some(format!("{name} is to answer HTTP at {http}, which is the address of {other}"));
        }
        // An address that names no host is another place on each.
        let host = if names_no_host(&place) { host_of(address).to_ascii_lowercase() } else { String::new() };
        if let Some(other) = answering.insert((place, host), *name) {
            return Some(format!("{other} and {name} have the same http {http}"));
        }
    }
    None
}

/// The host in `host:port`.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Whether an address means the host that goes there, as 127.0.0.1 does, or any, as 0.0.0.0.
fn names_no_host(address: &str) -> bool {
    let host = host_of(address).trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|host: IpAddr| host.is_loopback() || host.is_unspecified())
}

/// Public keys by shard and index, or the first name that is missing before a later one of its shard.
fn shards(members: &BTreeMap<ReplicaId, ([u8; 32], Endpoint)>) -> Result<Vec<Vec<[u8; 32]>>, ReplicaId> {
    let mut shards: Vec<Vec<[u8; 32]>> = Vec::new();
    for (name, (key, _)) in members {
        let at = usize::from(name.shard.0);
        shards.resize_with(shards.len().max(at + 1), Vec::new);
        if usize::from(name.index) != shards[at].len() {
            let index = u16::try_from(shards[at].len()).expect("a shard has few replicas: replica_from_name bounds the index");
            return Err(ReplicaId { shard: name.shard, index });
        }
        shards[at].push(*key);
    }
    Ok(shards)
}

/// The clients and their rights, or what is wrong with them.
fn clients(listed: Vec<ClientToml>) -> Result<Vec<(ClientId, Permission)>, String> {
    let mut clients: Vec<(ClientId, Permission)> = Vec::with_capacity(listed.len());
    let mut numbers = BTreeSet::new();
    for client in listed {
        if !numbers.insert(client.number) {
            return Err(format!("client {} is listed twice", client.number.0));
        }
        let [read_prefixes, write_prefixes] = [client.read, client.write].map(|list| list.into_iter().map(|prefix| prefix.0).collect());
        let limits = ClientLimits {
            transactions: client.transactions_max,
            keys: client.keys_max,
            bytes: client.bytes_max,
            reads_per_second: client.reads_per_second,
        };
        let permission = Permission { public_key: client.public_key.0, read_prefixes, write_prefixes, limits };
        clients.push((client.number, permission));
    }
    Ok(clients)
}

/// The operators, of whom one must sign where nothing else is said and there is one; or what is wrong with them.
fn operators(listed: Vec<OperatorToml>, needed: Option<u16>) -> Result<Operators, String> {
    let mut keys: Vec<[u8; 32]> = listed.into_iter().map(|operator| operator.public_key.0).collect();
    keys.sort_unstable();
    let needed = needed.unwrap_or(u16::from(!keys.is_empty()));
    if !keys.is_empty() && (usize::from(needed) * 2 <= keys.len() || usize::from(needed) > keys.len()) {
        return Err(format!("operators_needed is {needed}, and there are {} operators", keys.len()));
    }
    Ok(Operators { needed, keys })
}

/// `cluster.toml`, key by key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterToml {
    format: u32,
    id: HexBytes<16>,
    engine: String,
    faults: usize,
    #[serde(default, deserialize_with = "choice")]
    signatures: Switch,
    #[serde(default, deserialize_with = "choice")]
    structural_locks: StructuralLocks,
    pending_min: Option<u32>,
    #[serde(deserialize_with = "choice")]
    placement: PlacementKind,
    #[serde(default)]
    bounds: Vec<KeyText>,
    operators_needed: Option<u16>,
    #[serde(default)]
    operator: Vec<OperatorToml>,
    replica: Vec<ReplicaToml>,
    #[serde(default)]
    client: Vec<ClientToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatorToml {
    public_key: PublicKey,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaToml {
    name: ReplicaName,
    address: HostPort,
    http: HostPort,
    public_key: PublicKey,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientToml {
    #[serde(deserialize_with = "client_number")]
    number: ClientId,
    public_key: PublicKey,
    read: Vec<KeyText>,
    write: Vec<KeyText>,
    transactions_max: Option<u32>,
    keys_max: Option<u32>,
    bytes_max: Option<u32>,
    reads_per_second: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlacementKind {
    Hash,
    Ranges,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Switch {
    #[default]
    On,
    Off,
}

struct HexBytes<const N: usize>([u8; N]);
struct PublicKey([u8; 32]);
struct KeyText(Key);
struct ReplicaName(ReplicaId);
struct HostPort(String);

impl<'de, const N: usize> Deserialize<'de> for HexBytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| hex_bytes(text).map(Self))
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| {
            let bytes = hex_bytes(text)?;
            crypto::check_public_key(&bytes).map_err(|error| error.to_string())?;
            Ok(Self(bytes))
        })
    }
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| key_from_text(text).map(Self))
    }
}

impl<'de> Deserialize<'de> for ReplicaName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| replica_from_name(text).map(Self))
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| {
            let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
            let fits = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
            if fits { Ok(Self(text.to_owned())) } else { Err(format!("an address is host:port, not {text:?}")) }
        })
    }
}

fn hex_bytes<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| format!("this takes {} hexadecimal digits", 2 * N))?;
    Ok(bytes)
}
