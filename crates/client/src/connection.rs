//! One process's way to the cluster: its coordinator, the connections beneath it, and who waits for what.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use basil::{Command, CoordinatorOptions, Event, Message, Quorums};
use config::Config;
use crypto::{SecretKey, Verifier};
use machine::turn::NoSigner;
use runtime::{Identity, Limits, Metrics, NodeHandle, NodeOptions, PeerState, RunOn};
use tokio::sync::oneshot;
use types::{ClientId, Cluster, Key, Party, ReplicaId, Session, ShardId, Timestamp};

use crate::adversary::Cheating;
use crate::error::{ConnectError, Error};
use crate::metrics::CommitMetrics;
use crate::mind::{Board, Mind};
use crate::pool::PoolMetrics;

/// How many checked roots a client remembers.
const ROOT_CACHE_MAX: usize = 16_384;

type Waiters = Arc<Mutex<HashMap<u64, oneshot::Sender<Event>>>>;
type Node = runtime::Node<Mind, Message>;

/// A connected coordinator.
#[derive(Debug)]
pub(crate) struct Connection {
    cluster: Arc<Cluster>,
    client: ClientId,
    timeout_ms: u64,
    handle: NodeHandle<Command, Message>,
    node: Mutex<Option<Node>>,
    waiters: Waiters,
    operations: AtomicU64,
    last_time: AtomicU64,
    metrics: Metrics,
    board: Arc<Board>,
    pool_metrics: OnceLock<PoolMetrics>,
    commit_metrics: CommitMetrics,
    /// Where it was opened, and runs.
    runtime: tokio::runtime::Handle,
}

impl Connection {
    /// Starts what drives transactions, honestly or not, and waits until it can commit: `4f + 1` replicas of every shard are
    /// connected.
    pub async fn open(config: Config, cheating: Option<Cheating>) -> Result<Arc<Self>, ConnectError> {
        let cluster = config.cluster().clone();
        let options = CoordinatorOptions {
            read_quorum: match config.read_quorum {
                #[cfg(feature = "lab")]
                config::ReadQuorum::One => basil::ReadQuorum::One,
                config::ReadQuorum::FaultsPlusOne => basil::ReadQuorum::WeakQuorum,
                config::ReadQuorum::TwoFaultsPlusOne => basil::ReadQuorum::Majority,
                config::ReadQuorum::ThreeFaultsPlusOne => basil::ReadQuorum::Commit,
            },
            fast_path: match config.fast_path {
                config::FastPath::On => basil::FastPath::On,
                #[cfg(feature = "lab")]
                config::FastPath::Off => basil::FastPath::Off,
            },
            read_only: match config.read_only {
                config::ReadOnly::Validated => basil::ReadOnly::Validated,
                #[cfg(feature = "lab")]
                config::ReadOnly::Voted => basil::ReadOnly::Voted,
            },
            timeout_ms: config.timeouts.operation_ms,
            ..CoordinatorOptions::default()
        };
        let verifier = Arc::new(Verifier::new(cluster.clone(), config.topology.signatures, ROOT_CACHE_MAX)?);
        let metrics = Metrics::default();
        metrics.show_verifier(verifier.clone());
        let identity = identity(&config)?;
        let delays = config.regions.as_ref().map(|regions| regions.delays_from(identity.party()));
        let node_options = NodeOptions {
            identity,
            cluster: cluster.clone(),
            verifier,
            listener: None,
            replicas: config.topology.resolve().await,
            limits: Limits::default(),
            run_on: RunOn::Task,
            metrics: metrics.clone(),
            delays,
        };
        let waiters: Waiters = Arc::default();
        let woken = waiters.clone();
        let on_event = move |event: Event| {
            let (Event::Read { operation, .. } | Event::Ended { operation, .. } | Event::Validated { operation }) = &event;
            let waiter = lock(&woken).remove(operation);
            if let Some(waiter) = waiter {
                // Whoever asked may have gone away meanwhile.
                drop(waiter.send(event));
            }
        };
        let board = Arc::new(Board::default());
        let mind = Mind::new(&cluster, config.client, options, cheating, board.clone());
        let node = runtime::start(node_options, mind, NoSigner, on_event)?;
        let connection = Self {
            cluster,
            client: config.client,
            timeout_ms: config.timeouts.operation_ms,
            handle: node.handle(),
            node: Mutex::new(Some(node)),
            waiters,
            operations: AtomicU64::new(0),
            last_time: AtomicU64::new(0),
            commit_metrics: CommitMetrics::new(&metrics),
            metrics,
            board,
            pool_metrics: OnceLock::new(),
            runtime: tokio::runtime::Handle::current(),
        };
        connection.ready(config.timeouts.connect_ms).await?;
        Ok(Arc::new(connection))
    }

    /// Waits for `4f + 1` replicas of every shard, and a little longer for all of them.
    async fn ready(&self, waited_ms: u64) -> Result<(), ConnectError> {
        let needed = Quorums::new(self.cluster.faults()).logged();
        let everyone = self.cluster.replicas_per_shard();
        let all = self.handle.peers_until(|peers| self.fewest_connected(peers) >= everyone);
        if tokio::time::timeout(Duration::from_millis(waited_ms.min(ALL_CONNECTED_WAIT_MS)), all).await.is_ok() {
            return Ok(());
        }
        let enough = self.handle.peers_until(|peers| self.fewest_connected(peers) >= needed);
        if tokio::time::timeout(Duration::from_millis(waited_ms), enough).await.is_ok() {
            return Ok(());
        }
        let connected = self.fewest_connected(&self.handle.peers());
        Err(ConnectError::TooFew { connected, needed, waited_ms, detail: self.troubles() })
    }

    fn fewest_connected(&self, peers: &BTreeMap<ReplicaId, PeerState>) -> usize {
        let connected = |shard: ShardId| {
            let of_shard = peers.iter().filter(|(replica, _)| replica.shard == shard);
            of_shard.filter(|(_, state)| matches!(state, PeerState::Connected)).count()
        };
        self.cluster.shards().map(connected).min().unwrap_or(0)
    }

    /// Where commits are counted.
    pub fn commit_metrics(&self) -> &CommitMetrics {
        &self.commit_metrics
    }

    /// What is known of the replicas that are not connected, for people.
    pub fn troubles(&self) -> String {
        let mut text = String::new();
        for (replica, state) in self.handle.peers() {
            match state {
                PeerState::Connected | PeerState::Awaited => {}
                PeerState::Connecting => write!(text, "\n  {replica}: no answer yet").expect("writing to a string succeeds"),
                PeerState::Refused(why) => write!(text, "\n  {replica} refuses: {why}").expect("writing to a string succeeds"),
                PeerState::Unreachable(why) => write!(text, "\n  {replica}: {why}").expect("writing to a string succeeds"),
            }
        }
        text
    }

    /// Gives the coordinator a command and waits for what it comes to. Nothing when the client was closed meanwhile: what was asked may
    /// have been done.
    ///
    /// # Errors
    /// [`Error::Closed`], when the client was closed before: nothing was asked.
    pub async fn ask(&self, command: impl FnOnce(u64) -> Command) -> Result<Option<Event>, Error> {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        let (waiter, event) = oneshot::channel();
        lock(&self.waiters).insert(operation, waiter);
        // Whoever goes away leaves nothing behind.
        let _waiting = Waiting { waiters: &self.waiters, operation };
        self.handle.command(command(operation)).await.map_err(|_| Error::Closed)?;
        Ok(event.await.ok())
    }

    /// A timestamp of now, above every one given before.
    pub fn next_timestamp(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let mut time = now;
        let _ = self.last_time.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            time = now.max(last.saturating_add(1));
            Some(time)
        });
        Timestamp::new(time, self.client)
    }

    /// Refuses here what every replica would refuse.
    pub fn may_read<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), Error> {
        let permission = self.cluster.permission(self.client);
        match keys.find(|key| !permission.is_some_and(|permission| permission.may_read(key))) {
            None => Ok(()),
            Some(key) => Err(Error::Refused(format!("{} has no right to read {key}; its rights stand in cluster.toml", self.client))),
        }
    }

    /// Refuses here what every replica would vote down.
    pub fn may_write<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), Error> {
        let permission = self.cluster.permission(self.client);
        match keys.find(|key| !permission.is_some_and(|permission| permission.may_write(key))) {
            None => Ok(()),
            Some(key) => Err(Error::Refused(format!("{} has no right to write {key}; its rights stand in cluster.toml", self.client))),
        }
    }

    /// The counts of this connection's pools, shown from the first one on.
    pub fn pool_metrics(&self) -> PoolMetrics {
        self.pool_metrics.get_or_init(|| PoolMetrics::new(&self.metrics)).clone()
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Where what belongs to nobody's call runs: whoever calls may be gone before it ends.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Writes what is queued and closes the connections; whoever waits hears [`Error::Closed`], or [`Error::OutcomeUnknown`] when a
    /// commit was under way.
    pub async fn close(&self) {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(node) = node {
            // A coordinator has nothing to make durable, so stopping it cannot fail but by a bug, which is logged there.
            drop(node.stop().await);
        }
        lock(&self.waiters).clear();
    }
}

/// Whoever waits for an operation.
struct Waiting<'a> {
    waiters: &'a Waiters,
    operation: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(self.waiters).remove(&self.operation);
    }
}

fn lock(waiters: &Waiters) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Event>>> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long connecting waits for the last replicas once it could go on without them, in milliseconds.
const ALL_CONNECTED_WAIT_MS: u64 = 500;

fn identity(config: &Config) -> Result<Identity, ConnectError> {
    let party = Party::Client(config.client, Session(session()));
    let secret: &SecretKey = &config.secret;
    Ok(Identity::new(party, secret, config.certificate.clone())?)
}

/// A number no other process of this client has drawn, as good as surely.
fn session() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
