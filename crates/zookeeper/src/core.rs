//! A server that runs: its sockets, and what drives its machine (`alone.rs`, or `member.rs` where there are others), on a thread of its own or as a
//! task beside the sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use machine::turn::{Bounds, NoSigner, Turns};
use machine::{Input as TurnInput, Time};
use runtime::{HalfOpen, LogLimit, LowPriority, Network, network};
use sentinel::{ConnectionId, Fields, Latency, Now, Peer, Server, Settings, State, latency_fields};
use store::StoreError;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use types::{Party, ReplicaId, ShardId};

use crate::Config;
use crate::admin;
use crate::alone::Alone;
use crate::clients::Clients;
use crate::connection::{self, Core, Counters, Event};
use crate::limits::{
    LAST_WORDS_TIMEOUT, LONG_BYTES_OF_ALL_MAX, LONG_BYTES_OF_NETWORK_MAX, STRANGERS_LOGGED_A_MINUTE_MAX, STRANGERS_PARTS, TURN_MAX,
    WAITING_AT_CORE_MAX, WAITING_BYTES_MAX, WAITING_MAX,
};
use crate::measure::{Walks, open_files_max};
use crate::member::{MemberDriver, Others};
use crate::peers::PeersError;
use crate::storage::OpenError;
use crate::tls::TlsError;
use crate::waiting::Waiting;

/// How long a server sleeps that has nothing to do at any time.
const FOREVER: Duration = Duration::from_secs(3_600);

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
    #[error("cannot keep the record of damage: {0}")]
    Evidence(io::Error),
    #[error("cannot serve over TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot speak to the other servers: {0}")]
    Peers(#[from] PeersError),
    #[error("{}: {why}", path.display())]
    MyId { path: PathBuf, why: String },
    #[error(
        "{}: the servers that decide were {before} when this server first ran, and are {now} now: which they are cannot change yet; give a server that \
         takes another's place its number",
        path.display()
    )]
    OtherVoters { path: PathBuf, before: String, now: String },
    #[error("cannot keep which servers decide in {}: {source}", path.display())]
    Voters { path: PathBuf, source: io::Error },
    #[error("cannot listen for the other servers on {host}:{port}: {source}; quorumListenOnAllIPs=true listens on every address")]
    ListenForPeers { host: String, port: u16, source: io::Error },
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
    secure: Option<SocketAddr>,
    admin: Option<(SocketAddr, LowPriority)>,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), StartError>>,
    /// Ends when it is dropped.
    accepting: JoinSet<()>,
}

impl Running {
    /// Comes back from the disk, listens, and serves.
    ///
    /// # Errors
    /// When the disk, or what is on it, or the address cannot be used.
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        let others = match config.ensemble.clone() {
            Some(ensemble) => Some(Others::start(&mut config, &ensemble).await?),
            None => None,
        };
        let acceptor = config.secure.as_ref().map(|(_, tls)| tls.acceptor()).transpose()?;
        let plain = listen(config.listen).await?;
        let secure = listen(config.secure.as_ref().map(|(address, _)| *address)).await?;
        let admin = listen(config.admin.as_ref().map(|admin| admin.listen)).await?;
        let (events, inbox) = mpsc::channel(WAITING_MAX);
        let counters = Arc::<Counters>::default();
        let core = Core {
            events,
            waiting: [(); 2].map(|()| Arc::new(Semaphore::new(WAITING_BYTES_MAX))),
            long: [LONG_BYTES_OF_NETWORK_MAX, LONG_BYTES_OF_ALL_MAX].map(|bytes| Arc::new(Semaphore::new(bytes))),
            frame_bytes_max: config.frame_bytes_max,
            allows_drills: config.allows_drills,
            counters: counters.clone(),
        };
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let room = Arc::new(Room::new(&config));
        let admin_config = config.admin.clone();
        let (others, mut accepting) = others.map_or_else(|| (None, JoinSet::new()), |(others, tasks)| (Some(others), tasks));
        let work = Work { inbox, stopping, ready, end };
        match others {
            None => work.begin(move || Driver::open(&config, counters)),
            Some(others) => work.begin(move || MemberDriver::open(config, counters, others)),
        }?;
        let mut ended = ended;
        if is_ready.await.is_err() {
            (&mut ended).await.unwrap_or(Err(StartError::Gone))?;
        }
        let (address, secure_address) = (address_of(plain.as_ref()), address_of(secure.as_ref()));
        let admin = match admin.zip(admin_config) {
            None => None,
            Some((listener, config)) => {
                let address = config.listen;
                let address = listener.local_addr().map_err(|source| StartError::Listen { address, source })?;
                Some((address, admin::serve(listener, config, core.events.clone()).map_err(StartError::Threads)?))
            }
        };
        if let Some(listener) = plain {
            accepting.spawn(accept(listener, None, core.clone(), room.clone()));
        }
        if let Some(listener) = secure {
            accepting.spawn(accept(listener, acceptor, core, room));
        }
        let address = address.or(secure_address).ok_or(StartError::Gone)?;
        Ok(Self { address, secure: secure_address, admin, stop: Some(stop), ended, accepting })
    }

    /// Where it listens; over TLS, if clients come so alone.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for clients over TLS.
    #[must_use]
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure
    }

    /// Where it answers operators over HTTP.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
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
        drop(self.admin.take());
        drop(self.stop.take());
        // Until then what was said is sent.
        let ended = (&mut self.ended).await.unwrap_or(Err(StartError::Gone));
        self.accepting.abort_all();
        ended
    }
}

async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else { return Ok(None) };
    TcpListener::bind(address).await.map(Some).map_err(|source| StartError::Listen { address, source })
}

fn address_of(listener: Option<&TcpListener>) -> Option<SocketAddr> {
    listener.and_then(|listener| listener.local_addr().ok())
}

/// Who may still connect.
struct Room {
    all: Arc<Semaphore>,
    an_address_max: usize,
    networks: Mutex<BTreeMap<Network, Here>>,
    /// Those that have not said yet who they are.
    strangers: Arc<HalfOpen>,
    next: AtomicU64,
}

impl Room {
    fn new(config: &Config) -> Self {
        Self {
            all: Arc::new(Semaphore::new(config.connections_max)),
            an_address_max: config.connections_an_address_max,
            networks: Mutex::default(),
            strangers: Arc::new(HalfOpen::unseen(config.connections_max / STRANGERS_PARTS)),
            next: AtomicU64::new(1),
        }
    }

    /// Counts a connection of `address`, or of the network of which anybody has all addresses. Gives the room for its long requests; nothing when it
    /// has as many connections as it may.
    fn enter(&self, address: IpAddr) -> Option<Arc<Semaphore>> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let here = networks.entry(network(address)).or_insert_with(Here::new);
        let has_room = self.an_address_max == 0 || here.connections < self.an_address_max;
        here.connections += usize::from(has_room);
        has_room.then(|| here.long.clone())
    }

    fn leave(&self, address: IpAddr) {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = networks.get_mut(&network(address)) {
            here.connections -= 1;
            if here.connections == 0 {
                networks.remove(&network(address));
            }
        }
    }
}

/// What comes from one network.
struct Here {
    connections: usize,
    /// A permit a byte of long requests.
    long: Arc<Semaphore>,
}

impl Here {
    fn new() -> Self {
        Self { connections: 0, long: Arc::new(Semaphore::new(LONG_BYTES_OF_NETWORK_MAX)) }
    }
}

/// Accepts connections, within limits.
async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, core: Core, room: Arc<Room>) {
    let [failures, refusals] = [(); 2].map(|()| LogLimit::new(STRANGERS_LOGGED_A_MINUTE_MAX));
    loop {
        let Ok(permit) = room.all.clone().acquire_owned().await else { return };
        let (stream, peer) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                // Out of files, or a client that was gone before it was accepted.
                Err(error) => {
                    if let Some(left_out) = failures.admit(Instant::now()) {
                        tracing::warn!(%error, left_out = left_out.noted(), "cannot accept a connection");
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let address = peer.ip().to_canonical();
        let Some(here) = room.enter(address) else {
            core.counters.rejected.fetch_add(1, Ordering::Relaxed);
            if let Some(left_out) = refusals.admit(Instant::now()) {
                tracing::warn!(%address, left_out = left_out.noted(), "this address, or its IPv6 network of 64 bits, has as many connections as maxClientCnxns allows");
            }
            continue;
        };
        let (mut core, room, acceptor) = (core.clone(), room.clone(), acceptor.clone());
        core.long[0] = here;
        let number = ConnectionId(room.next.fetch_add(1, Ordering::Relaxed));
        let place = room.strangers.enter(address);
        tokio::spawn(async move {
            let peer = Peer { address, port: peer.port(), certificate: None };
            connection::accept(stream, acceptor, number, peer, place, core).await;
            room.leave(address);
            drop(permit);
        });
    }
}

pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time as the servers have it, of a clock that shows how long this process has run.
pub(crate) fn now_of(time: Time) -> Now {
    Now { wall_ms: wall_ms(), steady_ms: i64::try_from(time.0 / 1_000_000).unwrap_or(i64::MAX) }
}

/// And back, of something that is due.
pub(crate) fn time_of(steady_ms: i64) -> Time {
    Time(steady_ms.unsigned_abs().saturating_mul(1_000_000))
}

/// How long it is since `started`.
pub(crate) fn time_since(started: Instant) -> Time {
    Time(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// How long a machine may sleep that wants its next turn then.
pub(crate) fn sleep_for(wakes_at: Option<Time>, now: Time) -> Duration {
    wakes_at.map_or(FOREVER, |at| Duration::from_nanos(at.since(now)).min(FOREVER))
}

/// What drives a server's machine.
pub(crate) trait Drive: Send + 'static {
    /// Takes turns until it is to stop.
    fn run(self, inbox: mpsc::Receiver<Event>, stopping: oneshot::Receiver<()>) -> impl Future<Output = Result<(), StartError>> + Send;
}

/// A server's work, from its start to its end.
struct Work {
    inbox: mpsc::Receiver<Event>,
    stopping: oneshot::Receiver<()>,
    ready: oneshot::Sender<()>,
    end: oneshot::Sender<Result<(), StartError>>,
}

impl Work {
    /// Comes back from the disk on a thread of its own, and goes on there: or as a task, where the process does all else on one thread as well.
    fn begin<D: Drive>(self, open: impl FnOnce() -> Result<D, StartError> + Send + 'static) -> Result<(), StartError> {
        let Self { inbox, stopping, ready, end } = self;
        let handle = Handle::current();
        let is_task = handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let work = move || {
            let run = |driver: D| {
                // Nobody may be waiting for it any more, nor for the end.
                let _ = ready.send(());
                driver.run(inbox, stopping)
            };
            match open().map(run) {
                Err(error) => drop(end.send(Err(error))),
                Ok(running) if is_task => drop(handle.spawn(async move { drop(end.send(running.await)) })),
                Ok(running) => {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(StartError::Threads);
                    let _ = end.send(runtime.and_then(|runtime| runtime.block_on(running)));
                }
            }
        };
        thread::Builder::new().name("core".to_owned()).spawn(work).map(drop).map_err(StartError::Threads)
    }
}

/// Waits until what a server that stops has said is sent, but not for long.
pub(crate) async fn last_words(are_sent: impl Fn() -> bool) {
    let said = Instant::now();
    while !are_sent() && said.elapsed() < LAST_WORDS_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Drives a server by itself.
struct Driver {
    turns: Turns<Alone>,
    clients: Clients,
    /// What clients asked that waits for its turn.
    waiting: Waiting,
    started: Instant,
}

impl Driver {
    fn open(config: &Config, counters: Arc<Counters>) -> Result<Self, StartError> {
        let started = Instant::now();
        let machine = Alone::open(config, counters, time_since(started))?;
        let me = Party::Replica(ReplicaId { shard: ShardId(0), index: 0 });
        let turns = Turns::new(machine, me, Bounds::default());
        Ok(Self { turns, clients: Clients::default(), waiting: Waiting::default(), started })
    }

    async fn turns(&mut self, mut inbox: mpsc::Receiver<Event>, mut stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let mut events = Vec::with_capacity(TURN_MAX);
        loop {
            let room = WAITING_AT_CORE_MAX.saturating_sub(self.waiting.len()).min(WAITING_MAX);
            let wait = sleep_for(self.turns.wakes_at(), time_since(self.started));
            let goes_on = !self.waiting.is_empty();
            tokio::select! {
                biased;
                _ = &mut stopping => return Ok(()),
                count = inbox.recv_many(&mut events, room), if room > 0 => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                () = std::future::ready(()), if goes_on => {}
                () = tokio::time::sleep(wait) => {}
            }
            events.drain(..).for_each(|event| self.waiting.push(event));
            self.turn(!inbox.is_empty())?;
            // Others of this thread have their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Takes a turn. `is_behind` says whether more has come than it is given.
    fn turn(&mut self, is_behind: bool) -> Result<(), StartError> {
        let now = time_since(self.started);
        self.turns.machine_mut().note_behind(is_behind || self.waiting.len() > TURN_MAX);
        let mut turn = self.turns.begin(now);
        let mut taken = 0;
        while taken < TURN_MAX
            && turn.machine().may_take()
            && let Some(event) = self.waiting.pop()
        {
            if self.clients.has_given_up(&event) {
                continue;
            }
            self.clients.note(&event);
            turn.step(now, TurnInput::Command(event));
            taken += 1;
        }
        let said = turn.stepped(now).persist()?.sign(&mut NoSigner);
        said.events.drain(..).for_each(|told| self.clients.tell(told));
        drop(said);
        if let Some(rest) = self.turns.machine_mut().take_rest() {
            self.waiting.push_rest(rest);
        }
        Ok(())
    }
}

impl Drive for Driver {
    async fn run(mut self, inbox: mpsc::Receiver<Event>, stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        self.turns(inbox, stopping).await?;
        let now = time_since(self.started);
        let said = self.turns.begin(now).stepped_last(now).persist()?.sign(&mut NoSigner);
        said.events.drain(..).for_each(|told| self.clients.tell(told));
        drop(said);
        last_words(|| self.clients.have_all()).await;
        Ok(self.turns.into_machine().close()?)
    }
}

/// What operators are shown of the process, its folders and its disk.
pub(crate) fn measured(walks: &mut Walks, now: Now, counters: &Counters, syncs: &Latency, snapshots: &Latency) -> Fields {
    let walked = walks.walked(now.steady_ms);
    let [data_bytes, log_bytes] = walked.folder_bytes;
    let measured: [(&str, sentinel::Value); 9] = [
        ("datadir_size", data_bytes.into()),
        ("logdir_size", log_bytes.into()),
        ("open_file_descriptor_count", walked.open_files.into()),
        ("max_file_descriptor_count", open_files_max().into()),
        ("bytes_received_count", counters.received_bytes.load(Ordering::Relaxed).into()),
        ("connection_rejected", counters.rejected.load(Ordering::Relaxed).into()),
        ("unsuccessful_handshake", counters.handshakes_failed.load(Ordering::Relaxed).into()),
        ("outstanding_tls_handshake", counters.handshakes.load(Ordering::Relaxed).into()),
        ("snap_count", snapshots.count.into()),
    ];
    let measured = measured.into_iter().map(|(name, value)| (name.to_owned(), value));
    measured.chain(latency_fields("fsynctime", syncs)).chain(latency_fields("snapshottime", snapshots)).collect()
}

pub(crate) fn ms_since(instant: Instant) -> u64 {
    u64::try_from(instant.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What a process draws when it starts: the secret of its sessions' passwords, and what its state's hashing is seeded with.
pub(crate) fn drawn() -> Result<([u8; 32], u64), StartError> {
    let (mut secret, mut seed) = ([0; 32], [0; 8]);
    for bytes in [&mut secret[..], &mut seed[..]] {
        getrandom::fill(bytes).map_err(|error| StartError::Randomness(error.to_string()))?;
    }
    Ok((secret, u64::from_le_bytes(seed)))
}

/// A server of this state, set up as `config` says, with this number.
pub(crate) fn server(config: &Config, state: State, server_id: u8, secret: [u8; 32], now: Now) -> Server {
    let settings = Settings {
        server_id,
        timeout_ms_min: config.timeout_ms_min,
        timeout_ms_max: config.timeout_ms_max,
        reap_every_ms: config.reap_every_ms,
        words: config.words.clone(),
        superuser: config.superuser.clone(),
        secret,
        configuration: shown(config).into_iter().chain([("serverId".to_owned(), server_id.to_string())]).collect(),
    };
    Server::new(state.with_realtime(config.is_realtime), settings, now)
        .with_quotas_enforced(config.enforces_quotas)
        .with_superuser_certificate(config.superuser_certificate.clone())
}

/// What `conf` shows.
fn shown(config: &Config) -> Vec<(String, String)> {
    let port = |address: Option<SocketAddr>| address.map_or(-1, |address| i32::from(address.port())).to_string();
    let lines = [
        ("clientPort", port(config.listen)),
        ("clientPortAddress", config.listen.map_or_else(String::new, |address| address.ip().to_string())),
        ("secureClientPort", port(config.secure.as_ref().map(|(address, _)| *address))),
        ("dataDir", config.data.display().to_string()),
        ("dataLogDir", config.log.display().to_string()),
        ("maxClientCnxns", config.connections_an_address_max.to_string()),
        ("minSessionTimeout", config.timeout_ms_min.to_string()),
        ("maxSessionTimeout", config.timeout_ms_max.to_string()),
        ("jute.maxbuffer", config.frame_bytes_max.to_string()),
        ("snapCount", config.snapshot_every.to_string()),
        ("enforceQuota", config.enforces_quotas.to_string()),
        ("bezant.digest", config.profile.name().to_owned()),
        ("bezant.detection", if config.is_realtime { "realtime" } else { "online" }.to_owned()),
    ];
    let others = config.ensemble.iter().flat_map(|ensemble| &ensemble.servers).map(|server| {
        let role = if server.observes { "observer" } else { "participant" };
        (format!("server.{}", server.id), format!("{}:{}:{role}", server.host, server.port))
    });
    lines.map(|(key, value)| (key.to_owned(), value)).into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_an_ipv6_network_has_no_more_connections_than_an_address_may() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!("clientPort=0\nmaxClientCnxns=2\ndataDir={}\n", folder.path().display());
        let room = Room::new(&Config::parse(&text).expect("it is a good file"));
        let enter = |address: &str| room.enter(address.parse().expect("an address")).is_some();
        assert_eq!(["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"].map(enter), [true, true, false, true]);
        assert_eq!(["192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(enter), [true, true, false, true]);
        room.leave("2001:db8::7".parse().expect("an address"));
        assert!(enter("2001:db8::4"));
    }
}
