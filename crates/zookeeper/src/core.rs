//! The core: one thread that owns the server, its log and its clock.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sentinel::{ConnectionId, Input, Now, Outbox, Peer, Server, Settings};
use store::StoreError;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::Config;
use crate::connection::{Core, Event, Outgoing, serve};
use crate::limits::{SCRUB_EVERY, TURN_MAX, WAITING_BYTES_MAX, WAITING_MAX};
use crate::storage::{OpenError, Storage};

/// Why a server cannot start, or has stopped.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what is wrong")]
pub enum StartError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the system gives no threads: {0}")]
    Threads(io::Error),
    #[error("the system gives no randomness: {0}")]
    Randomness(String),
    #[error("the server's thread ended without a word")]
    Gone,
}

/// A server that runs.
pub struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), StartError>>,
    accepting: JoinHandle<()>,
}

impl Running {
    /// Comes back from the disk, listens, and serves.
    ///
    /// # Errors
    /// When the disk, or what is on it, or the address cannot be used.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let listener = TcpListener::bind(config.listen).await.map_err(|source| StartError::Listen { address: config.listen, source })?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { address: config.listen, source })?;
        let (events, inbox) = mpsc::channel(WAITING_MAX);
        let core = Core { events, waiting: Arc::new(Semaphore::new(WAITING_BYTES_MAX)), frame_bytes_max: config.frame_bytes_max };
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let limits = (config.connections_max, config.connections_an_address_max);
        thread::Builder::new()
            .name("core".to_owned())
            .spawn(move || {
                let result = Turns::open(&config).and_then(|turns| {
                    let _ = ready.send(());
                    turns.run(inbox, stopping)
                });
                // Nobody may be waiting for the end any more.
                let _ = end.send(result);
            })
            .map_err(StartError::Threads)?;
        let mut ended = ended;
        if is_ready.await.is_err() {
            (&mut ended).await.unwrap_or(Err(StartError::Gone))?;
        }
        let accepting = tokio::spawn(accept(listener, core, limits));
        Ok(Self { address, stop: Some(stop), ended, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for an end that nobody asked for.
    pub async fn failed(&mut self) -> StartError {
        match (&mut self.ended).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => StartError::Gone,
        }
    }

    /// Makes everything durable, and stops.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn stop(mut self) -> Result<(), StartError> {
        self.accepting.abort();
        drop(self.stop.take());
        (&mut self.ended).await.unwrap_or(Err(StartError::Gone))
    }
}

/// Accepts connections, within limits.
async fn accept(listener: TcpListener, core: Core, (all_max, an_address_max): (usize, usize)) {
    let counts: Arc<Mutex<BTreeMap<IpAddr, usize>>> = Arc::default();
    let all = Arc::new(Semaphore::new(all_max));
    for number in 1.. {
        let Ok(permit) = all.clone().acquire_owned().await else { return };
        let (stream, peer) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                // Out of files, or a client that was gone before it was accepted.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let address = peer.ip().to_canonical();
        let count = |change: fn(&mut usize)| {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let here = counts.entry(address).or_default();
            change(here);
            let count = *here;
            if count == 0 {
                counts.remove(&address);
            }
            count
        };
        if count(|count| *count += 1) > an_address_max && an_address_max > 0 {
            count(|count| *count -= 1);
            tracing::warn!(%address, "this address has as many connections as maxClientCnxns allows");
            continue;
        }
        let (core, counts) = (core.clone(), counts.clone());
        tokio::spawn(async move {
            serve(stream, ConnectionId(number), Peer { address, port: peer.port(), certificate: None }, core).await;
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&address);
                }
            }
            drop(permit);
        });
    }
}

/// The server and all that it owns.
struct Turns {
    server: Server,
    storage: Storage,
    clients: BTreeMap<ConnectionId, Arc<Outgoing>>,
    snapshot_every: u64,
    started: Instant,
    is_evidence_kept: bool,
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Turns {
    fn open(config: &Config) -> Result<Self, StartError> {
        let mut drawn = [0; 40];
        getrandom::fill(&mut drawn).map_err(|error| StartError::Randomness(error.to_string()))?;
        let (secret, seed) = drawn.split_first_chunk::<32>().expect("forty bytes were drawn");
        let seed = u64::from_le_bytes(seed.try_into().expect("eight are left"));
        let (storage, state) = Storage::open(&config.data, &config.log, config.profile, config.snapshots_kept, seed, None)?;
        tracing::info!(zxid = state.zxid(), nodes = state.node_count(), digest = %state.checksum(), "came back from the disk");
        let settings = Settings {
            server_id: 0,
            timeout_ms_min: config.timeout_ms_min,
            timeout_ms_max: config.timeout_ms_max,
            reap_every_ms: config.reap_every_ms,
            words: config.words.clone(),
            superuser: config.superuser.clone(),
            secret: *secret,
            configuration: shown(config),
        };
        let server = Server::new(state, settings, Now { wall_ms: wall_ms(), steady_ms: 0 });
        Ok(Self {
            server,
            storage,
            clients: BTreeMap::new(),
            snapshot_every: config.snapshot_every,
            started: Instant::now(),
            is_evidence_kept: false,
        })
    }

    fn run(mut self, inbox: mpsc::Receiver<Event>, stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(StartError::Threads)?;
        runtime.block_on(self.turns(inbox, stopping))?;
        Ok(self.storage.close()?)
    }

    async fn turns(&mut self, mut inbox: mpsc::Receiver<Event>, mut stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let mut events = Vec::with_capacity(TURN_MAX);
        let mut scrubbing = tokio::time::interval(SCRUB_EVERY);
        scrubbing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut outbox = Outbox::default();
            tokio::select! {
                biased;
                _ = &mut stopping => return Ok(()),
                _ = scrubbing.tick() => {
                    self.server.scrub(&mut outbox);
                    let now = self.now();
                    if now.steady_ms >= self.server.deadline_ms() {
                        self.server.step(now, Input::Tick, &mut outbox);
                    }
                }
                count = inbox.recv_many(&mut events, TURN_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.take(&mut events, &mut outbox);
                }
            }
            self.conclude(outbox)?;
        }
    }

    fn now(&self) -> Now {
        Now { wall_ms: wall_ms(), steady_ms: i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX) }
    }

    fn take(&mut self, events: &mut Vec<Event>, outbox: &mut Outbox) {
        let now = self.now();
        for event in events.drain(..) {
            match event {
                Event::Opened { connection, peer, outgoing } => {
                    self.clients.insert(connection, outgoing);
                    self.server.step(now, Input::Opened { connection, peer }, outbox);
                }
                Event::Input(input, _counted) => self.server.step(now, input, outbox),
                Event::Closed(connection) => {
                    self.clients.remove(&connection);
                    self.server.step(now, Input::Closed { connection }, outbox);
                }
            }
        }
    }

    /// Makes the turn's transactions durable, and only then says what is to be said.
    fn conclude(&mut self, mut outbox: Outbox) -> Result<(), StartError> {
        for transaction in &outbox.transactions {
            self.storage.append(transaction);
        }
        self.storage.sync()?;
        match self.storage.check_snapshot() {
            Err(OpenError::Corrupt(corruption)) => self.server.stop(corruption, &mut outbox),
            checked => drop(checked?),
        }
        if let Some(corruption) = self.server.corruption().filter(|_| !self.is_evidence_kept) {
            self.is_evidence_kept = true;
            let record = self.storage.keep_evidence(corruption, wall_ms())?;
            tracing::error!(%corruption, record = %record.display(), "this server's state is wrong: it answers no client any more");
        }
        for (connection, bytes) in outbox.bytes {
            if let Some(client) = self.clients.get(&connection) {
                client.put(bytes);
            }
        }
        for connection in outbox.close {
            if let Some(client) = self.clients.get(&connection) {
                client.close();
            }
        }
        if self.server.corruption().is_none() && self.storage.is_snapshot_due(self.snapshot_every) {
            self.storage.begin_snapshot(self.server.state())?;
        }
        Ok(())
    }
}

/// What `conf` shows.
fn shown(config: &Config) -> Vec<(String, String)> {
    let lines = [
        ("clientPort", config.listen.port().to_string()),
        ("clientPortAddress", config.listen.ip().to_string()),
        ("dataDir", config.data.display().to_string()),
        ("dataLogDir", config.log.display().to_string()),
        ("maxClientCnxns", config.connections_an_address_max.to_string()),
        ("minSessionTimeout", config.timeout_ms_min.to_string()),
        ("maxSessionTimeout", config.timeout_ms_max.to_string()),
        ("jute.maxbuffer", config.frame_bytes_max.to_string()),
        ("snapCount", config.snapshot_every.to_string()),
        ("bezant.digest", config.profile.name().to_owned()),
        ("serverId", "0".to_owned()),
    ];
    lines.map(|(key, value)| (key.to_owned(), value)).to_vec()
}
