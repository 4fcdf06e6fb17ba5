//! What applications link to use a Bezant cluster.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = bezant_client::connect(bezant_client::load("bezant-data")?).await?;
//! let done = client
//!     .transact(|txn| async move {
//!         let seen = txn.get("visits").await?;
//!         let visits = seen.and_then(|value| std::str::from_utf8(value.as_bytes()).ok()?.parse().ok()).unwrap_or(0u64);
//!         txn.put("visits", (visits + 1).to_string().as_str());
//!         Ok(visits + 1)
//!     })
//!     .await?;
//! println!("visit {} is transaction {}", done.value, done.commit.id);
//! # Ok(())
//! # }
//! ```
//!
//! This crate is the wiring of the client's side: it knows every engine, chooses the one that `cluster.toml` names, and gives its
//! session to [`Client::start`]. Everything that it re-exports knows none. Whoever adds an engine adds its profile to [`ENGINES`],
//! its session to [`connect`], what its receipts are to [`verify_receipt`], and what its proofs of lies are to [`verify_lie`].

#[cfg(feature = "lab")]
pub mod cheating;

use std::path::Path;
use std::sync::Arc;

use basil::{Coordinator, CoordinatorOptions};
use bytes::Bytes;
pub use client::*;
pub use config::{Config, ConfigError, Topology};
pub use engine::ProvenCommit;
use engine::{PoolMaker, Profile};
pub use types::{ClientId, Key, KeyRange, ReplicaId, Timestamp, TransactionId, Value};
use types::{Cluster, Party};

/// The engines that a cluster may run.
pub static ENGINES: &[&Profile] = &[&basil::PROFILE, &augustus::PROFILE, &sentinel::PROFILE];

/// Reads the client's configuration in `folder`: a client's own folder, or a cluster's, as `bezant init` or `bezant dev` made it.
///
/// # Errors
/// [`ConfigError`], which names the file, the line where there is one, and what to do.
pub fn load(folder: impl AsRef<Path>) -> Result<Config, ConfigError> {
    Config::load(folder.as_ref(), ENGINES)
}

/// Reads what is public of a cluster, for whoever has no folder of it: `path` is its `cluster.toml`, or a folder with it. Where the file
/// `configurations` lies beside it, what operators have changed since is taken from there.
///
/// # Errors
/// [`ConfigError`], which names the file, the line where there is one, and what to do.
pub fn load_topology(path: impl AsRef<Path>) -> Result<Topology, ConfigError> {
    let path = path.as_ref();
    if path.is_dir() { Topology::load(&path.join("cluster.toml"), ENGINES) } else { Topology::load(path, ENGINES) }
}

/// Connects to the cluster that `config` names, and waits until transactions can commit. The client works for as long as the tokio runtime on
/// which this is called, and no longer ([`Client`]).
///
/// # Errors
/// [`ConnectError`], which says of every replica not reached why.
pub async fn connect(config: Config) -> Result<Client, ConnectError> {
    match config.topology.engine.name {
        name if name == basil::PROFILE.name => {
            let coordinator = Coordinator::for_client(config.cluster().clone(), basil_options(&config));
            let pools = basil_pools(&config);
            let session = basil::Session::new(config.cluster().id(), coordinator);
            Client::start(config, |_| session, Some(pools)).await
        }
        name if name == augustus::PROFILE.name => {
            let session = augustus_session(&config);
            Client::start(config, session, None).await
        }
        name if name == sentinel::PROFILE.name => {
            let session = sentinel::Session::new(config.cluster(), config.timeouts.operation_ms);
            Client::start(config, |_| session, None).await
        }
        name => Err(ConnectError::UnknownEngine(name.to_owned())),
    }
}

/// Checks a receipt ([`Commit::receipt`]) with nothing but what `cluster.toml` says, and the configurations that followed ([`load_topology`]).
/// Gives what it proves, and the newest configuration by whose keys it does: all its signatures must be by the keys of one.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let topology = bezant_client::load_topology("cluster.toml")?;
/// let receipt = std::fs::read("paid.receipt")?;
/// let (proven, configuration) = bezant_client::verify_receipt(&receipt.into(), &topology)?;
/// println!("{} committed at {}, by the keys of configuration {configuration}", proven.id, proven.timestamp);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Why it proves nothing, in words: it is damaged, or another cluster's, or a signature is missing.
pub fn verify_receipt(receipt: &Bytes, topology: &Topology) -> Result<(ProvenCommit, u64), String> {
    if topology.engine.name != basil::PROFILE.name {
        return Err(format!("commits of the engine {} leave no receipts", topology.engine.name));
    }
    let keys = |cluster: &Cluster| cluster.replicas().map(|replica| cluster.replica_key(replica).copied()).collect::<Vec<_>>();
    let (mut tried, mut why) = (None, None);
    for (version, cluster) in topology.chain.clusters() {
        // Most configurations leave the replicas' keys as they were.
        if tried.replace(keys(&cluster)).is_some_and(|tried| tried == keys(&cluster)) {
            continue;
        }
        match basil::Receipt::verify_by_keys(receipt, Arc::new(cluster), topology.signatures) {
            Ok(receipt) => return Ok(((&receipt).into(), version)),
            Err(error) => why = why.or(Some(error.to_string())),
        }
    }
    Err(why.unwrap_or_default())
}

/// A lie that is proven by what was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenLie {
    /// Which replica.
    pub who: ReplicaId,
    /// About which transaction.
    pub transaction: TransactionId,
    /// What it did, in words.
    pub what: &'static str,
    /// By the keys of which configuration.
    pub configuration: u64,
}

/// Checks what a replica kept of another's lie, with nothing but what `cluster.toml` says and the configurations that followed: all that is signed must be by the
/// keys of one of these.
///
/// # Errors
/// Why it proves nothing, in words.
pub fn verify_lie(bytes: &Bytes, topology: &Topology) -> Result<ProvenLie, String> {
    if topology.engine.name != basil::PROFILE.name {
        return Err(format!("replicas of {} sign nothing that is kept as evidence", topology.engine.name));
    }
    let mut first = None;
    for (configuration, cluster) in topology.chain.clusters() {
        match basil::witness::Contradiction::verify(bytes, Arc::new(cluster), topology.signatures) {
            Ok(found) => {
                return Ok(ProvenLie { who: found.replica, transaction: found.id, what: found.stated.words(), configuration });
            }
            Err(error) => _ = first.get_or_insert(error.to_string()),
        }
    }
    Err(first.unwrap_or_default())
}

fn augustus_session(config: &Config) -> impl FnOnce(Party) -> augustus::Session + use<> {
    let (cluster, timeout_ms) = (config.cluster().clone(), config.timeouts.operation_ms);
    move |party| augustus::Session::new(cluster, party, timeout_ms).expect("the cluster is of this engine, and clients have clients' names")
}

fn basil_pools(config: &Config) -> PoolMaker {
    let cluster = config.cluster().id();
    Box::new(move |options| Box::new(cataphract::Pool::new(cluster, options)))
}

fn basil_options(config: &Config) -> CoordinatorOptions {
    CoordinatorOptions {
        read_quorum: match config.options.read_quorum {
            #[cfg(feature = "lab")]
            config::ReadQuorum::One => basil::ReadQuorum::One,
            config::ReadQuorum::FaultsPlusOne => basil::ReadQuorum::WeakQuorum,
            config::ReadQuorum::TwoFaultsPlusOne => basil::ReadQuorum::Majority,
            config::ReadQuorum::ThreeFaultsPlusOne => basil::ReadQuorum::Commit,
        },
        fast_path: match config.options.fast_path {
            config::FastPath::On => basil::FastPath::On,
            #[cfg(feature = "lab")]
            config::FastPath::Off => basil::FastPath::Off,
        },
        read_only: match config.options.read_only {
            config::ReadOnly::Validated => basil::ReadOnly::Validated,
            #[cfg(feature = "lab")]
            config::ReadOnly::Voted => basil::ReadOnly::Voted,
        },
        timeout_ms: config.timeouts.operation_ms,
        ..CoordinatorOptions::default()
    }
}
