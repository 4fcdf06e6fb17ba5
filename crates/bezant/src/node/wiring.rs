//! Which engine a server runs: the one file of the program that knows engines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use basil::{Coordinator, CoordinatorOptions, ReplicaOptions};
use config::{NodeConfig, StructuralLocks};
use crypto::Verifier;
use engine::Profile;
use machine::Time;
use store::{Disk, DiskOptions, Options, Store, StoreError};

use super::executes_with::executes_with;
use super::{HasRun, Launch, ROOT_CACHE_MAX, Running, owner};
use crate::evidence::{self, folder_of};
use crate::failure::{Attempt as _, Failure};
use crate::rebuild::{begin_anew_if_damaged, may_give_up_rows};

/// Runs a replica of the cluster's engine.
pub async fn run(config: &NodeConfig, launch: Launch) -> Result<Running, Failure> {
    match config.topology.engine.name {
        name if name == basil::PROFILE.name => {
            let node = brought_back(config, basil).await?;
            let votes_after = Duration::from_millis(node.ready_after_ms());
            launch.run(node, votes_after)
        }
        name if name == augustus::PROFILE.name => launch.run(brought_back(config, augustus).await?, Duration::ZERO),
        name if name == sentinel::PROFILE.name => launch.run(brought_back(config, sentinel).await?, Duration::ZERO),
        name => Err(Failure::wrong(format!("this program runs no replicas of the engine {name:?}")).at("cluster.toml")),
    }
}

/// What `open` brings back from a replica's data; from empty ones, where they are damaged and the others make up for that.
async fn brought_back<T>(config: &NodeConfig, open: impl AsyncFn(&NodeConfig) -> Result<T, Failure>) -> Result<T, Failure> {
    match open(config).await {
        Err(failure) if !begin_anew_if_damaged(config).await? => Err(failure),
        Err(_) => open(config).await,
        opened => opened,
    }
}

/// Whether replicas of `engine` go by a new configuration while they run. Where all must change at one place of their order, they do not.
pub fn changes_while_running(engine: &Profile) -> bool {
    // Sentinel's servers apply what one of them has prepared: rights are that one's business, at that moment.
    [basil::PROFILE.name, sentinel::PROFILE.name].contains(&engine.name)
}

/// Whether a replica of `engine` takes over from the others what it cannot read of its base table, and gives it up.
pub fn makes_up_for_rows(engine: &Profile) -> bool {
    engine.name == basil::PROFILE.name
}

/// Whether a replica of `engine` keeps the data of a server for ZooKeeper's clients.
pub fn serves_zookeepers_clients(engine: &Profile) -> bool {
    engine.name == sentinel::PROFILE.name
}

/// Whether the store in `data` is as it was made for `owner`, a replica of `engine` that had nothing before.
///
/// # Errors
/// When that cannot be told: nothing is there, another's, or it is damaged.
pub fn is_unused(engine: &str, data: &Path, owner: &str) -> Result<bool, StoreError> {
    if engine == sentinel::PROFILE.name { zookeeper::Replica::is_unused(data, owner) } else { Disk::is_unused(data, owner) }
}

/// Reads all of a replica's journal, as its start would.
///
/// # Errors
/// Why it could not start.
pub fn check_data(config: &NodeConfig) -> Result<(), StoreError> {
    let owner = owner(&config.topology.cluster, config.replica);
    if let Err(unused) = HasRun::of(config).refuse_unused() {
        // Unless it is in use, which is said first.
        drop(Disk::open(&config.data, &owner, DiskOptions::default())?);
        return Err(unused);
    }
    if config.topology.engine.name == sentinel::PROFILE.name {
        return zookeeper::Replica::check_data(&config.data, &owner);
    }
    let mut store = Store::open(Disk::open(&config.data, &owner, DiskOptions::default())?, Options::default())?;
    while store.replay()?.is_some() {}
    store.close()
}

/// Makes an empty store in `data` that bears the mark of a lost disk: whoever opens it rebuilds itself.
///
/// # Errors
/// When the disk fails.
pub fn create_marked_data(config: &NodeConfig, data: &Path) -> Result<(), StoreError> {
    let owner = owner(&config.topology.cluster, config.replica);
    Disk::create(data, &owner)?;
    if config.topology.engine.name == sentinel::PROFILE.name {
        // It has its log and snapshots in folders of their own, which it makes.
        return zookeeper::Replica::mark_lost(data);
    }
    let mut store = Store::open(Disk::open(data, &owner, DiskOptions::default())?, Options::default())?;
    match config.topology.engine.name {
        name if name == basil::PROFILE.name => basil::rebuild::mark(&mut store),
        name if name == augustus::PROFILE.name => augustus::multicast::rebuild::mark(&mut store),
        name => Err(StoreError::Closed(format!("this program rebuilds no replicas of the engine {name:?}"))),
    }
}

/// What `open` brings back from a replica's data, on a thread that may block.
async fn come_back<T, E>(config: &NodeConfig, open: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, Failure>
where
    T: Send + 'static,
    E: ToString,
{
    let (place, has_run) = (config.data.display().to_string(), HasRun::of(config));
    let opened = tokio::task::spawn_blocking(move || {
        has_run.refuse_unused().map_err(|error| error.to_string())?;
        let opened = open().map_err(|error| error.to_string())?;
        has_run.keep();
        Ok::<_, String>(opened)
    });
    opened.await.attempt("open the data", &place)?.map_err(|error| Failure::failed(error).at(place))
}

/// A replica of Basil on its disk, with all that runs beside it, brought back on a thread that may block.
async fn basil(config: &NodeConfig) -> Result<basil::Node<Disk>, Failure> {
    let settings = &config.settings;
    let replica = config.replica;
    let cluster = config.topology.cluster.clone();
    let data = config.data.clone();
    let owner = owner(&cluster, replica);
    let cache_bytes_max = usize::try_from(settings.cache_bytes).unwrap_or(usize::MAX);
    let options = Options { cache_bytes_max, ..Options::default() };
    let replica_options = ReplicaOptions {
        time_bound_ms: settings.time_bound_ms,
        window_ms: settings.window_ms,
        janitor_timeout_ms: settings.janitor_timeout_ms,
        abandoned_per_second: u32::try_from(settings.abandoned_per_second).unwrap_or(u32::MAX),
        // Drawn anew at each start and told to nobody, so that no client can aim at another's place in a table.
        seed: rand::random(),
        ..ReplicaOptions::default()
    };
    let evidence = folder_of(&data);
    let refused = evidence::refused(&evidence).attempt("read what was kept of lies", evidence.display())?;
    // Where nobody can tell, the data are opened as they are, and that tells.
    let gives_up_rows = Disk::has_damaged_rows(&data).unwrap_or(false) && may_give_up_rows(config).await;
    let open = move || {
        let disk_options = DiskOptions { gives_up_rows, ..DiskOptions::default() };
        let disk = Disk::open(data, &owner, disk_options).map_err(|error| error.to_string())?;
        let store = Store::open(disk, options).map_err(|error| error.to_string())?;
        let now = || Time(runtime::clock::wall());
        if store.has_lost_rows() {
            tracing::warn!(
                "rows that could not be read were given up: this replica is silent until it has taken them over from the others"
            );
        }
        let opened = basil::Replica::open(cluster.clone(), replica, replica_options, store, now()).map_err(|error| error.to_string())?;
        let janitor = Coordinator::new(cluster.clone(), CoordinatorOptions::default());
        let mut node = basil::Node::with_peers(opened, janitor, &cluster, now());
        refused.into_iter().for_each(|(client, key)| node.refuse_liar(client, key));
        Ok::<_, String>(node)
    };
    come_back(config, open).await
}

/// A replica of Augustus on its disk, brought back on a thread that may block.
async fn augustus(config: &NodeConfig) -> Result<augustus::Server<Disk>, Failure> {
    let replica = config.replica;
    let (cluster, executing) = (config.topology.cluster.clone(), executes_with(config)?);
    let structural = match config.topology.structural_locks {
        StructuralLocks::Intervals => augustus::Structural::Intervals,
        StructuralLocks::WholeShard => augustus::Structural::WholeShard,
    };
    let verifier = Verifier::new(cluster.clone(), config.topology.signatures, ROOT_CACHE_MAX);
    let verifier = Arc::new(verifier.map_err(|error| Failure::wrong(error.to_string()).at("cluster.toml"))?);
    let data = config.data.clone();
    let owner = owner(&cluster, replica);
    let open = move || {
        let disk = Disk::open(data, &owner, DiskOptions::default()).map_err(|error| error.to_string())?;
        let store = Store::open(disk, Options::default()).map_err(|error| error.to_string())?;
        let settings = augustus::Settings { cluster: executing, shard: replica.shard, structural };
        let shard = augustus::Shard::new(settings, replica.index, verifier);
        let now = Time(runtime::clock::wall());
        augustus::Server::open(cluster, replica, augustus::multicast::Options::default(), shard, store, now)
            .map_err(|error| error.to_string())
    };
    come_back(config, open).await
}

/// A replica of Sentinel on its disk, brought back on a thread that may block.
async fn sentinel(config: &NodeConfig) -> Result<zookeeper::Replica, Failure> {
    let (me, cluster, data) = (config.replica, config.topology.cluster.clone(), config.data.clone());
    let options = zookeeper::ReplicaOptions { owner: owner(&cluster, me), cluster, me, data };
    come_back(config, move || zookeeper::Replica::open(options, Time(runtime::clock::wall()))).await
}
