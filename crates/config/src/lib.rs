//! The files that say what a cluster is, where it is, and who this client is in it.
//!
//! A client's folder holds these files, made by `bezant init` and copyable to any host as they are:
//!
//! | file | what | secret |
//! |---|---|---|
//! | `client.toml` | who it is, how it reads, how long it waits ([`Config`]) | no |
//! | `cluster.toml` | the cluster as it was made: its shape, keys, addresses, clients and their rights ([`Topology`]) | no |
//! | `configurations` | what its operators have changed since, if anything | no |
//! | `key` | the client's Ed25519 secret key, in PEM | **yes**, mode 0600 |
//! | `certificate.pem` | the same key's certificate for TLS | no |
//!
//! A replica's folder has the others and its `node.toml` (`NodeConfig`, with the feature `node`). Files are TOML; an
//! unknown key is refused by name, and an error says which file, which line, and what to do ([`ConfigError`]).

mod chain_file;
mod cluster_text;
mod engine_options;
mod file;
#[cfg(feature = "node")]
mod node;
#[cfg(feature = "lab")]
mod regions;
#[cfg(not(feature = "lab"))]
#[path = "regions/none.rs"]
mod regions;
mod text;
mod topology;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crypto::SecretKey;
use engine::Profile;
use serde::Deserialize;
use types::{ClientId, Cluster};

pub use chain_file::{chain_file, write_chain};
pub use cluster_text::quoted;
pub use engine_options::{EngineOptions, FastPath, ReadOnly, ReadQuorum};
pub use file::{ConfigError, exists, read_certificate, read_secret_key, read_text, read_toml};
#[cfg(feature = "node")]
pub use node::{LogFormat, LogLevel, NodeConfig, Settings};
pub use regions::Regions;
pub use text::{bytes_from_text, from_str, key_from_text, replica_from_name, value_from_text};
pub use topology::{Endpoint, StructuralLocks, Topology};

/// The longest any of a client's waits may be set to: one hour.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;

/// What is said of `what`, which a file names and this build does not know.
#[cfg(not(feature = "lab"))]
pub(crate) fn laboratory_only(what: &str) -> String {
    format!("{what} is for experiments: only `bezant-lab` takes it")
}

/// How long a client waits, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For enough replicas to be connected, at the start.
    pub connect_ms: u64,
    /// For one read or one commit, before it is given up as unavailable.
    pub operation_ms: u64,
    /// For one transaction with all its retries.
    pub retry_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 5_000, operation_ms: 10_000, retry_ms: 30_000 }
    }
}

/// All that a client needs to know before it connects.
///
/// Applications get one by `bezant_client::load`, which knows the engines that a cluster may run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder it came from.
    pub folder: PathBuf,
    /// The cluster, and where its replicas are.
    pub topology: Arc<Topology>,
    /// Where it keeps configurations that followed the first.
    pub chain_file: PathBuf,
    /// Who this client is.
    pub client: ClientId,
    /// Its secret key, which signs and is its TLS identity.
    pub secret: SecretKey,
    /// The certificate of that key, in DER.
    pub certificate: Vec<u8>,
    /// What only some engines look at.
    pub options: EngineOptions,
    /// How long it waits.
    pub timeouts: Timeouts,
    /// How far away everybody is to seem: as the cluster was started, where it runs on this computer and under made-up
    /// distances; else not at all.
    pub regions: Option<Regions>,
}

impl Config {
    /// Reads the client's configuration in `folder`: a client's own folder, or a cluster's, whose `client/` is then taken. The
    /// cluster must run one of `engines`.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file, the line where there is one, and what to do.
    pub fn load(folder: &Path, engines: &[&'static Profile]) -> Result<Self, ConfigError> {
        let own = folder.join("client.toml");
        let is_own = exists(&own)?;
        let cluster_folder = if is_own { folder.parent().unwrap_or(folder) } else { folder };
        let regions = Regions::of_cluster(cluster_folder)?;
        let folder = if is_own { folder.to_path_buf() } else { folder.join("client") };
        let path = folder.join("client.toml");
        if !exists(&path)? {
            return Err(ConfigError {
                what: "there is no cluster here: client.toml is missing".to_owned(),
                file: own,
                line: None,
                help: "name the folder that `bezant init` or `bezant dev` made, with --cluster DIR".to_owned(),
            });
        }
        let file: ClientToml = read_toml(&path)?;
        let topology = Topology::load(&folder.join(&file.cluster), engines)?;
        let client = file.client;
        let secret = read_secret_key(&folder.join(&file.key))?;
        let refuse = |what: String, help: &str| ConfigError { what, file: path.clone(), line: None, help: help.to_owned() };
        let Some(permission) = topology.cluster.permission(client) else {
            if topology.chain.configurations().any(|earlier| earlier.clients.iter().any(|(other, _)| *other == client)) {
                return Err(refuse(
                    format!("client {} was taken out of the cluster: configuration {} has it no more", client.0, topology.chain.version()),
                    "ask the operators; a new client begins with bezant key new --client",
                ));
            }
            return Err(refuse(
                format!("the cluster knows no client {}", client.0),
                "take a number that cluster.toml lists under [[client]]",
            ));
        };
        if permission.public_key != secret.public() {
            return Err(refuse(
                format!("the key in {:?} is not the key that cluster.toml lists for client {}", file.key, client.0),
                "take the key file and cluster.toml that were made together",
            ));
        }
        Ok(Self {
            certificate: read_certificate(&folder.join(&file.certificate))?,
            chain_file: chain_file(&folder.join(&file.cluster)),
            folder,
            topology: Arc::new(topology),
            client,
            secret,
            options: EngineOptions { read_quorum: file.read_quorum, fast_path: file.fast_path, read_only: file.read_only },
            timeouts: Timeouts {
                connect_ms: file.connect_timeout_ms,
                operation_ms: file.operation_timeout_ms,
                retry_ms: file.retry_timeout_ms,
            },
            regions,
        })
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.topology.cluster
    }
}

/// `client.toml`, key by key. Every key but `client` may be left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientToml {
    #[serde(deserialize_with = "text::client_number")]
    client: ClientId,
    #[serde(default = "cluster_file")]
    cluster: PathBuf,
    #[serde(default = "key_file")]
    key: PathBuf,
    #[serde(default = "certificate_file")]
    certificate: PathBuf,
    #[serde(default, deserialize_with = "text::from_str")]
    read_quorum: ReadQuorum,
    #[serde(default, deserialize_with = "text::from_str")]
    fast_path: FastPath,
    #[serde(default, deserialize_with = "text::from_str")]
    read_only: ReadOnly,
    #[serde(default = "connect_ms", deserialize_with = "timeout_ms")]
    connect_timeout_ms: u64,
    #[serde(default = "operation_ms", deserialize_with = "timeout_ms")]
    operation_timeout_ms: u64,
    #[serde(default = "retry_ms", deserialize_with = "timeout_ms")]
    retry_timeout_ms: u64,
}

fn cluster_file() -> PathBuf {
    "cluster.toml".into()
}

fn key_file() -> PathBuf {
    "key".into()
}

fn certificate_file() -> PathBuf {
    "certificate.pem".into()
}

fn connect_ms() -> u64 {
    Timeouts::default().connect_ms
}

fn operation_ms() -> u64 {
    Timeouts::default().operation_ms
}

fn retry_ms() -> u64 {
    Timeouts::default().retry_ms
}

fn timeout_ms<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    text::number(deserializer, "a number of milliseconds", 1, TIMEOUT_MS_MAX)
}
