//! `node.toml`: what one replica is told. Every setting but `replica`, `listen` and `http_listen` may be left out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use crypto::SecretKey;
use engine::Profile;
use serde::{Deserialize, Deserializer};
use tracing_subscriber::filter::{LevelFilter, Targets};
use types::ReplicaId;

use crate::text::{self, choice, parsed};
use crate::{
    ConfigError, Regions, Topology, chain_file, exists, from_str, read_certificate, read_secret_key, read_toml, replica_from_name,
};

/// The most replies under one signature.
const BATCH_MAX: u64 = machine::turn::BATCH_MAX as u64;
/// The largest time bound: past a minute, a client's clock is simply wrong.
const TIME_BOUND_MS_MAX: u64 = 60_000;
/// The longest window in which transactions must be decided: one day.
const WINDOW_MS_MAX: u64 = 86_400_000;
/// The shortest: a transaction takes a few round trips, and must not be refused as old meanwhile.
const WINDOW_MS_MIN: u64 = 1_000;
/// The longest that unfinished transactions may be left alone: one hour.
const JANITOR_TIMEOUT_MS_MAX: u64 = 3_600_000;
/// The most that a client may be allowed to leave a second: no limit that a client could reach.
const ABANDONED_PER_SECOND_MAX: u64 = 1_000_000;
/// The least memory that a cache can work with.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// One tebibyte: more is a slip of the keyboard.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// What may be tuned on a replica: flags of `init` and `dev`, and the table `[settings]` of `node.toml`.
#[derive(Args, Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The most replies a replica signs at once
    #[arg(long, value_name = "N", default_value_t = Self::default().batch_max, value_parser = number(1, BATCH_MAX))]
    #[serde(deserialize_with = "within::<1, BATCH_MAX, _>")]
    pub batch_max: u64,
    /// How far ahead of a replica's clock a transaction's timestamp may be, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = Self::default().time_bound_ms, value_parser = number(1, TIME_BOUND_MS_MAX))]
    #[serde(deserialize_with = "within::<1, TIME_BOUND_MS_MAX, _>")]
    pub time_bound_ms: u64,
    /// How far back the past may be read, and how long after its timestamp a transaction is remembered and may be finished, in milliseconds; it must be prepared within half of that
    #[arg(long, value_name = "MS", default_value_t = Self::default().window_ms, value_parser = number(WINDOW_MS_MIN, WINDOW_MS_MAX))]
    #[serde(deserialize_with = "within::<WINDOW_MS_MIN, WINDOW_MS_MAX, _>")]
    pub window_ms: u64,
    /// After how long a replica finishes a transaction that its client left unfinished, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = Self::default().janitor_timeout_ms, value_parser = number(1, JANITOR_TIMEOUT_MS_MAX))]
    #[serde(deserialize_with = "within::<1, JANITOR_TIMEOUT_MS_MAX, _>")]
    pub janitor_timeout_ms: u64,
    /// How many transactions a second one client may leave for others to end, before its next ones are refused for a while
    #[arg(long, value_name = "N", default_value_t = Self::default().abandoned_per_second, value_parser = number(1, ABANDONED_PER_SECOND_MAX))]
    #[serde(deserialize_with = "within::<1, ABANDONED_PER_SECOND_MAX, _>")]
    pub abandoned_per_second: u64,
    /// Memory of one replica for caching what lies on disk, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Self::default().cache_bytes, value_parser = number(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX))]
    #[serde(deserialize_with = "within::<MEMORY_BYTES_MIN, MEMORY_BYTES_MAX, _>")]
    pub cache_bytes: u64,
    /// Let `bezant drill flip` damage what replicas hold, on purpose; never where data matter
    #[arg(long)]
    pub drills: bool,
    /// What is logged: error, warn, info, debug, trace, off, or by module as in warn,runtime=debug
    #[arg(long, value_name = "LEVEL", default_value_t = Self::default().log_level)]
    #[serde(deserialize_with = "from_str")]
    pub log_level: LogLevel,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = Self::default().log_format)]
    #[serde(deserialize_with = "choice")]
    pub log_format: LogFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_max: 64,
            time_bound_ms: 500,
            window_ms: 10_000,
            janitor_timeout_ms: 1_000,
            abandoned_per_second: 50,
            cache_bytes: 512 << 20,
            drills: false,
            log_level: "info".parse().expect("info is a level"),
            log_format: LogFormat::Text,
        }
    }
}

impl Settings {
    /// Refuses settings that do not fit one another, and those by which no replica of `engine` goes; says what is wrong.
    pub fn check(&self, engine: &Profile) -> Result<(), String> {
        let default = Self::default();
        let of_some = [
            ("time_bound_ms", self.time_bound_ms, default.time_bound_ms),
            ("window_ms", self.window_ms, default.window_ms),
            ("janitor_timeout_ms", self.janitor_timeout_ms, default.janitor_timeout_ms),
            ("abandoned_per_second", self.abandoned_per_second, default.abandoned_per_second),
            ("cache_bytes", self.cache_bytes, default.cache_bytes),
        ];
        if let Some((name, ..)) = of_some.iter().find(|(name, value, default)| value != default && !engine.settings.contains(name)) {
            return Err(format!("replicas of the engine {} do not go by {name}: leave it out", engine.name));
        }
        if self.window_ms < 2 * self.time_bound_ms {
            return Err(format!("window_ms ({}) is less than twice time_bound_ms ({})", self.window_ms, self.time_bound_ms));
        }
        Ok(())
    }
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// As it is written in `node.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// What is logged: a level, or levels by module, as in `info` or `warn,runtime=debug`.
#[derive(Clone, Debug)]
pub struct LogLevel {
    text: String,
    targets: Targets,
}

impl LogLevel {
    /// The same, for a subscriber.
    #[must_use]
    pub fn targets(&self) -> &Targets {
        &self.targets
    }
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A word alone would pass for a module of that name, of which everything is logged, and of all others nothing.
        let is_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
        match text.parse::<Targets>() {
            Ok(targets) if text.split(',').all(is_level) => Ok(Self { text: text.to_owned(), targets }),
            _ => Err(format!(
                "a log level is error, warn, info, debug, trace or off, alone or by module as in warn,runtime=debug; not {text:?}"
            )),
        }
    }
}

/// All that a replica needs to know before it runs.
#[derive(Debug)]
pub struct NodeConfig {
    /// The folder it came from.
    pub folder: PathBuf,
    /// Which replica it is.
    pub replica: ReplicaId,
    /// The cluster it belongs to, and where the others are.
    pub topology: Topology,
    /// Its secret key, which signs and is its TLS identity.
    pub secret: SecretKey,
    /// The certificate of that key, in DER.
    pub certificate: Vec<u8>,
    /// Where it keeps configurations that followed the first.
    pub chain_file: PathBuf,
    /// Where it keeps its data.
    pub data: PathBuf,
    /// Where it hears peers and clients.
    pub listen: SocketAddr,
    /// Where it answers HTTP: `/health`, `/status`, `/metrics`.
    pub http_listen: SocketAddr,
    /// What may be tuned.
    pub settings: Settings,
    /// How far away everybody is to seem; nowhere unless asked for on the command line.
    pub regions: Option<Regions>,
}

impl NodeConfig {
    /// Reads a replica's folder. Its cluster must run one of `engines`.
    pub fn load(folder: &Path, engines: &[&'static Profile]) -> Result<Self, ConfigError> {
        let path = folder.join("node.toml");
        let refuse = |what: String, help: &str| ConfigError { what, file: path.clone(), line: None, help: help.to_owned() };
        if !exists(&path)? {
            return Err(refuse(
                "there is no replica here: node.toml is missing".to_owned(),
                "name a replica's folder, as in bezant-data/s0-r3",
            ));
        }
        let file: NodeToml = read_toml(&path)?;
        let topology = Topology::load(&folder.join(&file.cluster), engines)?;
        let secret = read_secret_key(&folder.join(&file.key))?;
        let replica = file.replica;
        let Some(public_key) = topology.cluster.replica_key(replica) else {
            return Err(refuse(format!("the cluster has no replica {replica}"), "take a name that cluster.toml lists under [[replica]]"));
        };
        if *public_key != secret.public() {
            let version = topology.chain.version();
            if is_earlier(&topology, replica, &secret) {
                return Err(refuse(
                    format!("since configuration {version} at the latest, {replica} has another key than the one in {:?}", file.key),
                    "where only the key was changed, put the new one there: bezant key use --rotate; else this folder has had its day",
                ));
            }
            let what = format!("the key in {:?} is not the key that cluster.toml lists for {replica}", file.key);
            return Err(refuse(what, "take node.toml, key and cluster.toml that were made together"));
        }
        file.settings
            .check(topology.engine)
            .map_err(|what| refuse(what, "the table of node.toml in docs/running.md says what each is for"))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            replica,
            topology,
            secret,
            certificate: read_certificate(&folder.join(&file.certificate))?,
            chain_file: chain_file(&folder.join(&file.cluster)),
            data: folder.join(&file.data),
            listen: file.listen,
            http_listen: file.http_listen,
            settings: file.settings,
            regions: None,
        })
    }
}

impl NodeConfig {
    /// Whether a replica's folder is one whose place another key has by now, so that it cannot run.
    ///
    /// # Errors
    /// [`ConfigError`] when its files cannot be read.
    pub fn is_replaced(folder: &Path, engines: &[&'static Profile]) -> Result<bool, ConfigError> {
        let file: NodeToml = read_toml(&folder.join("node.toml"))?;
        let topology = Topology::load(&folder.join(&file.cluster), engines)?;
        let secret = read_secret_key(&folder.join(&file.key))?;
        Ok(topology.cluster.replica_key(file.replica) != Some(&secret.public()) && is_earlier(&topology, file.replica, &secret))
    }
}

/// Whether `secret` had the place of `replica` in an earlier configuration.
fn is_earlier(topology: &Topology, replica: ReplicaId, secret: &SecretKey) -> bool {
    topology.chain.clusters().any(|(_, earlier)| earlier.replica_key(replica) == Some(&secret.public()))
}

/// `node.toml`, key by key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeToml {
    #[serde(deserialize_with = "replica")]
    replica: ReplicaId,
    #[serde(default = "default_cluster")]
    cluster: PathBuf,
    #[serde(default = "default_key")]
    key: PathBuf,
    #[serde(default = "default_certificate")]
    certificate: PathBuf,
    #[serde(default = "default_data")]
    data: PathBuf,
    #[serde(deserialize_with = "address")]
    listen: SocketAddr,
    #[serde(deserialize_with = "address")]
    http_listen: SocketAddr,
    #[serde(default)]
    settings: Settings,
}

fn default_cluster() -> PathBuf {
    "cluster.toml".into()
}

fn default_key() -> PathBuf {
    "key".into()
}

fn default_certificate() -> PathBuf {
    "certificate.pem".into()
}

fn default_data() -> PathBuf {
    "data".into()
}

fn replica<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReplicaId, D::Error> {
    parsed(deserializer, replica_from_name)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parsed(deserializer, |text| text.parse().map_err(|_| format!("an address here is IP:PORT, as in 127.0.0.1:7400, not {text:?}")))
}

fn number(min: u64, max: u64) -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(min..=max)
}

fn within<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    text::number(deserializer, "a number", MIN, MAX)
}
