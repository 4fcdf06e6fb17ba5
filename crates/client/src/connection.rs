//! One process's way to the cluster: a running session, the connections beneath it, and who waits for what.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use crypto::{Chain, SecretKey, SignedConfiguration, Verified, Verifier};
use engine::{
    Ask, Capability, ClusterClock, Notice, Pool, PoolMaker, PoolOptions, Profile, ReadMode, Request, Response, Session, Statistics, Tell,
    even_time_after,
};
use machine::turn::NoSigner;
use runtime::clock::SteadyClock;
use runtime::{
    ChangeOptions, Identity, KeepChain, Limits, Metrics, Newest, NodeHandle, NodeOptions, NotTaken, NotTakenOver, PeerState, RunOn, Wire,
};
use tokio::sync::{broadcast, oneshot, watch};
use types::{ClientId, Cluster, Key, KeyRange, Party, Permission, ReplicaId, ShardId, Timestamp};

use crate::admission::{Admission, Kind, Slot};
use crate::client::AsOf;
use crate::error::{ConnectError, Error};
use crate::metrics::CommitMetrics;
use crate::notices::{NOTICES_MAX, Notices};
use crate::pool::PoolMetrics;
use crate::session_handle::{Peers, RunningSession, SessionHandle};
use crate::turns::{KeyTurn, Turns};

/// How many checked roots a client remembers.
const ROOT_CACHE_MAX: usize = 16_384;
/// The number of requests that are not answered.
const UNANSWERED: u64 = u64::MAX;
/// How many of a client's prefixes are named when none of them covers a key.
const PREFIXES_SHOWN_MAX: usize = 8;

/// What came of a request.
pub(crate) type Outcome = Result<Response, engine::Refusal>;
type Waiters = Arc<Mutex<HashMap<u64, Waiter>>>;

/// Whoever waits for an answer; and the place of the request, which it has until it is answered: also when nobody waits any more, as the session works on
/// it all the same.
struct Waiter {
    teller: oneshot::Sender<(Outcome, Option<Place>)>,
    place: Option<Place>,
}

/// The place of a request in the window.
struct Place {
    slot: Slot,
    kind: Kind,
}

impl Place {
    /// The request has come to this.
    fn answered(self, outcome: &Outcome) {
        match outcome {
            Err(engine::Refusal::Overloaded { .. }) => self.slot.refused(),
            Ok(Response::Found(found)) if self.kind != Kind::Other => {
                self.slot.answered(Kind::read(found.found.len(), found.value_bytes()));
            }
            _ => self.slot.answered(self.kind),
        }
    }
}

/// Keeps configurations in a client's folder, so that its next process begins with them. One that cannot be written does not hold up the
/// client: it learns of them again from any replica.
fn keep_in(file: PathBuf) -> KeepChain {
    Box::new(move |chain| {
        if let Err(error) = config::write_chain(&file, chain) {
            tracing::warn!(file = %file.display(), %error, "a new configuration is gone by, but cannot be written");
        }
        Ok(())
    })
}

/// Tells the session of each new configuration. What it missed while it was told of one is in the next.
fn tell_of_changes<S: Session, W: Send + 'static>(handle: NodeHandle<Ask, W>, mut newest: watch::Receiver<Newest>) -> Telling {
    let telling = tokio::spawn(async move {
        while newest.changed().await.is_ok() {
            let cluster = newest.borrow_and_update().cluster.clone();
            let Some(request) = S::reconfigured(cluster) else { return };
            if handle.command(Ask { operation: UNANSWERED, request }).await.is_err() {
                return;
            }
        }
    });
    Telling(telling.abort_handle())
}

/// Tells the session with which replicas it is connected, and again whenever that changes. What it gives is how it stood when the session was last told:
/// whoever asks something of the session after looking there asks one that knows.
fn tell_of_peers<S: Session, W: Send + 'static>(handle: NodeHandle<Ask, W>) -> (Telling, watch::Receiver<Peers>) {
    let (teller, told) = watch::channel(Peers::new());
    let telling = tokio::spawn(async move {
        let mut known: Option<Vec<ReplicaId>> = None;
        loop {
            let peers = handle.peers();
            let is_connected = |(_, state): &(&ReplicaId, &PeerState)| **state == PeerState::Connected;
            let connected: Vec<ReplicaId> = peers.iter().filter(is_connected).map(|(replica, _)| *replica).collect();
            if known.as_ref() != Some(&connected) {
                if let Some(request) = S::connected(connected.clone())
                    && handle.command(Ask { operation: UNANSWERED, request }).await.is_err()
                {
                    return;
                }
                known = Some(connected);
            }
            teller.send_replace(peers.clone());
            handle.peers_until(|now| *now != peers).await;
        }
    });
    (Telling(telling.abort_handle()), told)
}

/// Ends with the connection, which it would keep alive.
struct Telling(tokio::task::AbortHandle);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A running session.
pub(crate) struct Connection {
    /// The cluster as this process knows it: operators may change it meanwhile.
    newest: watch::Receiver<Newest>,
    client: ClientId,
    profile: &'static Profile,
    timeout_ms: u64,
    session: Box<dyn SessionHandle>,
    waiters: Waiters,
    operations: AtomicU64,
    last_time: AtomicU64,
    /// The process's own clock, by which the session and everybody here go.
    clock: SteadyClock,
    /// What its session has told of the cluster's.
    cluster_clock: watch::Receiver<Option<ClusterClock>>,
    metrics: Metrics,
    /// The session's, as of its last turn: copied, so that nobody who looks makes it wait.
    statistics: Arc<Mutex<Statistics>>,
    notices: NoticeSender,
    pools: Option<PoolMaker>,
    pool_metrics: OnceLock<PoolMetrics>,
    commit_metrics: CommitMetrics,
    admission: Arc<Admission>,
    /// Who is between its reads and its commit.
    turns: Arc<Turns>,
    /// Where it was opened, and runs.
    runtime: tokio::runtime::Handle,
    /// How it stood with the replicas when the session was last told.
    told: watch::Receiver<Peers>,
    _telling: [Telling; 2],
}

impl Connection {
    /// Starts a session, and waits until it can commit: as many replicas of every shard are connected as its engine needs.
    pub async fn open<S, W>(config: Config, session: impl FnOnce(Party) -> S, pools: Option<PoolMaker>) -> Result<Arc<Self>, ConnectError>
    where
        W: Wire,
        S: Session<Received = Verified<W>, Message = W> + Send + 'static,
    {
        let cluster = config.cluster().clone();
        let verifier = Arc::new(Verifier::new(cluster.clone(), config.topology.signatures, ROOT_CACHE_MAX)?);
        let metrics = Metrics::default();
        metrics.show_verifier(verifier.clone());
        let identity = identity(&config)?;
        let session = session(identity.party());
        let profile = session.profile();
        let delays = config.regions.as_ref().map(|regions| regions.delays_from(identity.party()));
        let addresses = config.topology.addresses();
        let dialled = addresses.len();
        let clock = SteadyClock::default();
        let (taken, newest) = watch::channel(Newest { cluster: cluster.clone(), chain: Arc::new(config.topology.chain.clone()) });
        let node_options = NodeOptions {
            identity,
            cluster: cluster.clone(),
            verifier,
            listener: None,
            replicas: addresses,
            limits: Limits::default(),
            run_on: RunOn::Task,
            metrics: metrics.clone(),
            clock: Some(clock.clone()),
            delays,
            changes: Some(ChangeOptions {
                chain: config.topology.chain.clone(),
                keep: keep_in(config.chain_file.clone()),
                taken,
                // Replicas keep evidence; here the log names it.
                forked: Box::new(|_| {}),
            }),
        };
        let waiters: Waiters = Arc::default();
        let notices: NoticeSender = Arc::new(Mutex::new(Some(broadcast::Sender::new(NOTICES_MAX))));
        let (clock_teller, cluster_clock) = watch::channel(None);
        let audience = Audience { waiters: Arc::clone(&waiters), notices: Arc::clone(&notices), clock: clock_teller };
        let on_event = move |event| {
            audience.tell(event);
            None // Nobody is served here.
        };
        let statistics = Arc::new(Mutex::new(Statistics::default()));
        let copy = Arc::clone(&statistics);
        let on_written = move |session: &S| {
            let mut copy = lock(&copy);
            copy.clear();
            session.statistics(&mut copy);
        };
        let node = runtime::start(node_options, session, NoSigner, on_written, on_event)?;
        let changes_told = tell_of_changes::<S, W>(node.handle(), newest.clone());
        let (peers_told, told) = tell_of_peers::<S, W>(node.handle());
        let connection = Self {
            newest,
            client: config.client,
            profile,
            timeout_ms: config.timeouts.operation_ms,
            session: Box::new(RunningSession::new(node)),
            waiters,
            operations: AtomicU64::new(0),
            last_time: AtomicU64::new(0),
            clock,
            cluster_clock,
            commit_metrics: CommitMetrics::new(&metrics),
            admission: Admission::new(),
            turns: Arc::default(),
            metrics,
            statistics,
            notices,
            pools,
            pool_metrics: OnceLock::new(),
            runtime: tokio::runtime::Handle::current(),
            told,
            _telling: [changes_told, peers_told],
        };
        connection.ready(dialled, S::connected(Vec::new()).is_some(), Duration::from_millis(config.timeouts.connect_ms)).await?;
        if let Some(warning) = connection.clock_warning() {
            tracing::warn!("{warning}");
        }
        Ok(Arc::new(connection))
    }

    /// Waits for as many replicas of every shard as a commit needs, for no longer than there is hope; and a little for the others of
    /// those `dialled`, until each has been tried once; and for the cluster's time. A session that `minds` with whom it is connected asks nothing of the
    /// others that it would wait for, so these are waited for only as long again as it took to connect with enough: one that hangs costs little
    /// where all are near, and one that is far away is not left out.
    async fn ready(&self, dialled: usize, minds: bool, longest: Duration) -> Result<(), ConnectError> {
        let began = Instant::now();
        let mut told = self.told.clone();
        let cluster = self.cluster();
        let needed = (self.profile.quorum)(cluster.faults());
        let connected = |peers: &Peers| self.fewest(peers, |state| *state == PeerState::Connected);
        let possible = |peers: &Peers| self.fewest(peers, |state| !has_said_no(state));
        let is_decided = |peers: &Peers| connected(peers) >= needed || (peers.len() == dialled && possible(peers) < needed);
        let _ = tokio::time::timeout(longest, told.wait_for(is_decided)).await;
        // Who is to hear that there are too few hears of all of them, if that is soon.
        let is_enough = connected(&told.borrow()) >= needed;
        let again = if is_enough && minds { began.elapsed() } else { ALL_CONNECTED_WAIT };
        let rest = again.min(longest.min(ALL_CONNECTED_WAIT).saturating_sub(began.elapsed()));
        let all_tried = |peers: &Peers| peers.len() == dialled && peers.values().all(|state| *state != PeerState::Connecting);
        let _ = tokio::time::timeout(rest, told.wait_for(all_tried)).await;
        let peers = told.borrow().clone();
        if connected(&peers) >= needed && self.knows_time(longest.saturating_sub(began.elapsed())).await {
            return Ok(());
        }
        let detail = self.missing_replicas();
        let may_miss = cluster.replicas_per_shard() - needed;
        if cluster.shards().any(|shard| count(&peers, shard, |state| matches!(state, PeerState::WrongKey(_))) > may_miss) {
            return Err(ConnectError::NotTheCluster { detail });
        }
        let waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Err(ConnectError::TooFew { connected: connected(&peers), needed, waited_ms, detail })
    }

    /// Whether the session has told the cluster's time, for which it waits so long, or its engine needs none.
    async fn knows_time(&self, longest: Duration) -> bool {
        let mut clock = self.cluster_clock.clone();
        !self.profile.tells_time || matches!(tokio::time::timeout(longest, clock.wait_for(Option::is_some)).await, Ok(Ok(_)))
    }

    /// Of how many replicas `counts` holds, in the shard where it holds of the fewest.
    fn fewest(&self, peers: &Peers, counts: impl Fn(&PeerState) -> bool) -> usize {
        self.cluster().shards().map(|shard| count(peers, shard, &counts)).min().unwrap_or(0)
    }

    /// Whether too few replicas of some shard are connected for anything to commit.
    pub fn is_cut_off(&self) -> bool {
        let connected = self.fewest(&self.told.borrow(), |state| *state == PeerState::Connected);
        connected < (self.profile.quorum)(self.cluster().faults())
    }

    /// Where commits are counted.
    pub fn commit_metrics(&self) -> &CommitMetrics {
        &self.commit_metrics
    }

    /// What is known of the replicas that are not connected, for people.
    pub fn missing_replicas(&self) -> String {
        let mut text = String::new();
        for (replica, state) in self.session.peers() {
            match state {
                PeerState::Connected | PeerState::Awaited => {}
                PeerState::Connecting => write!(text, "\n  {replica}: no answer yet").expect("writing to a string succeeds"),
                PeerState::Refused(why) => write!(text, "\n  {replica} refuses: {why}").expect("writing to a string succeeds"),
                PeerState::Down(why) | PeerState::WrongKey(why) | PeerState::Unreachable(why) => {
                    write!(text, "\n  {replica}: {why}").expect("writing to a string succeeds");
                }
            }
        }
        text
    }

    /// A place for the first request of a transaction that somebody wants to begin since `since`: waits while too many are under way
    /// ([`crate::admission`]).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`engine::Refusal::Overloaded`] when it would have to wait too long; [`Error::Unavailable`] when nothing moves.
    pub async fn begin(&self, since: Instant) -> Result<Slot, Error> {
        self.admission.begin(since, Duration::from_millis(self.timeout_ms)).await.map_err(|refusal| self.error(refusal))
    }

    /// A place for a further request of a transaction: it does not wait.
    pub fn goes_on(&self) -> Slot {
        self.admission.at_once()
    }

    /// Who is between its reads and its commit.
    pub fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// [`Connection::ask`], in a place that it has until it is answered. Others have their turns at what it has read as soon as the request is on its
    /// way: what they ask from then on comes after it.
    ///
    /// # Errors
    /// Those of [`Connection::ask`].
    pub async fn ask_in(&self, slot: Slot, mut turn: Option<KeyTurn>, request: Request) -> Result<Option<Outcome>, Error> {
        let kind = match &request {
            Request::Read { mode: ReadMode::Interactive | ReadMode::ReadOnly, keys, .. } => Kind::read(keys.len(), 0),
            Request::Commit(_) | Request::Submit { .. } => Kind::Commit,
            Request::Read { .. } | Request::Scan { .. } | Request::Private(_) => Kind::Other,
        };
        let place = Some(Place { slot, kind });
        let answer = self.ask_then(request, place, || turn.iter_mut().for_each(KeyTurn::asked)).await?;
        drop(turn);
        Ok(answer.map(|(outcome, place)| {
            if let Some(place) = place {
                place.answered(&outcome);
            }
            outcome
        }))
    }

    /// Gives the session a request and waits for what it comes to. Nothing when the session has ended meanwhile: what was asked may
    /// have been done.
    ///
    /// # Errors
    /// [`Error::Closed`], when the session had ended before: nothing was asked.
    pub async fn ask(&self, request: Request) -> Result<Option<Outcome>, Error> {
        Ok(self.ask_then(request, None, || ()).await?.map(|(outcome, _)| outcome))
    }

    async fn ask_then(
        &self,
        request: Request,
        place: Option<Place>,
        asked: impl FnOnce(),
    ) -> Result<Option<(Outcome, Option<Place>)>, Error> {
        self.can(request.capability())?;
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        let (teller, outcome) = oneshot::channel();
        lock(&self.waiters).insert(operation, Waiter { teller, place });
        let mut asking = Asking { waiters: &self.waiters, operation, is_asked: false };
        match self.session.try_ask(Ask { operation, request }).map_err(|not_taken| *not_taken) {
            Ok(()) => {}
            Err(NotTaken::Busy(ask)) => self.session.ask(ask).await.map_err(|_| Error::Closed)?,
            Err(NotTaken::Stopped(_)) => return Err(Error::Closed),
        }
        asking.is_asked = true;
        asked();
        Ok(outcome.await.ok())
    }

    /// Whether the engine can do that.
    fn can(&self, capability: Capability) -> Result<(), Error> {
        let is_able = self.profile.capabilities.include(capability);
        is_able.then_some(()).ok_or_else(|| self.error(engine::Refusal::Unsupported(capability)))
    }

    /// What a refusal means here.
    pub fn error(&self, refusal: engine::Refusal) -> Error {
        let waited_ms = self.timeout_ms;
        match refusal {
            engine::Refusal::Conflict => Error::Conflict,
            engine::Refusal::TooOld => Error::TooOld,
            engine::Refusal::Unavailable => Error::Unavailable { waited_ms, detail: self.missing_replicas() },
            engine::Refusal::OutcomeUnknown => Error::OutcomeUnknown { waited_ms, detail: String::new() },
            engine::Refusal::Unjudged(why) => {
                Error::OutcomeUnknown { waited_ms, detail: format!("; the replicas refused to judge it, as {why}") }
            }
            engine::Refusal::Invalid(_) => Error::Invalid(refusal.to_string()),
            refusal => Error::Refused(refusal),
        }
    }

    /// A timestamp of now by the cluster's clock, above every one given before.
    pub fn next_timestamp(&self) -> Timestamp {
        let now = self.clock.now();
        let now = self.cluster_clock.borrow().map_or(now.0, |clock| clock.read(now));
        let mut time = now;
        let _ = self.last_time.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            time = even_time_after(now, last);
            Some(time)
        });
        Timestamp::new(time, self.client)
    }

    /// The timestamp above all that had a time of `as_of` or before it, and below all that came later, and how to read there.
    pub fn as_of(&self, as_of: AsOf) -> Result<(Timestamp, ReadMode), Error> {
        self.can(Capability::AsOf)?;
        let local = self.clock.now();
        let now = self.cluster_clock.borrow().map_or(local.0, |clock| clock.read(local));
        let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let (time, mode) = match as_of {
            AsOf::Ago(ago) => (now.saturating_sub(nanoseconds(ago)), ReadMode::Ago { now }),
            // What was before 1970 is no longer kept.
            AsOf::Time(time) => (time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds), ReadMode::AsOf),
        };
        let after = time.checked_add(1).filter(|_| time <= now).ok_or_else(|| self.error(engine::Refusal::NotPast))?;
        Ok((Timestamp::above_all_before(after), mode))
    }

    /// What to tell people when this machine's clock was far from the replicas' as the client connected.
    pub fn clock_warning(&self) -> Option<String> {
        let now = self.clock.now();
        let cluster = self.cluster_clock.borrow().as_ref()?.read(now);
        let (off_ms, side) = match cluster.abs_diff(now.0) / 1_000_000 {
            off_ms if off_ms < CLOCK_OFF_MS => return None,
            off_ms if cluster < now.0 => (off_ms, "ahead of"),
            off_ms => (off_ms, "behind"),
        };
        let tenths = off_ms.saturating_add(50) / 100;
        let (seconds, tenths) = (tenths / 10, tenths % 10);
        Some(format!(
            "this machine's clock is {seconds}.{tenths} s {side} the replicas' clocks; transactions go by theirs, but set it right"
        ))
    }

    /// Refuses here what every replica would refuse.
    pub fn may_read<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), Error> {
        let cluster = self.cluster();
        let permission = cluster.permission(self.client);
        match keys.find(|key| !permission.is_some_and(|permission| permission.may_read(key))) {
            None => Ok(()),
            Some(key) => Err(self.not_permitted("read", permission, |permission| &permission.read_prefixes, key)),
        }
    }

    /// Refuses here what every replica would refuse: a range of which some keys may not be read.
    pub fn may_read_range(&self, low: &Key, high: &Key) -> Result<(), Error> {
        let cluster = self.cluster();
        let (permission, range) = (cluster.permission(self.client), KeyRange::new(low.clone(), high.clone()));
        match range.filter(|range| !permission.is_some_and(|permission| permission.may_read_range(range))) {
            None => Ok(()),
            Some(_) => {
                let what = format!("all keys from {low} to {high}");
                Err(self.not_permitted("read", permission, |permission| &permission.read_prefixes, what))
            }
        }
    }

    /// In words: what the client wanted, and the rule that forbids it.
    fn not_permitted(
        &self,
        verb: &str,
        permission: Option<&Permission>,
        prefixes: impl Fn(&Permission) -> &Vec<Key>,
        what: impl fmt::Display,
    ) -> Error {
        let (client, version) = (self.client, self.newest.borrow().chain.version());
        let rule = match permission.map(prefixes).map(Vec::as_slice) {
            None => "it is no client of this cluster".to_owned(),
            Some([]) => format!("it may {verb} nothing"),
            Some(prefixes) => {
                let some = prefixes.iter().take(PREFIXES_SHOWN_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let more = if prefixes.len() > PREFIXES_SHOWN_MAX { ", …" } else { "" };
                format!("it may {verb} keys that begin with {some}{more}")
            }
        };
        Error::NotPermitted(format!("{client} has no right to {verb} {what}: {rule} (configuration {version}; see bezant config show)"))
    }

    /// How many keys a transaction may read and write, and how many bytes it may write, by what the operators allow this client.
    pub fn limits(&self) -> (usize, usize) {
        let cluster = self.cluster();
        let limits = cluster.permission(self.client).map(|permission| permission.limits).unwrap_or_default();
        let most = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
        (most(limits.keys), most(limits.bytes))
    }

    /// Refuses here a transaction that every replica would refuse, since the operators limit this client.
    pub fn within_limits(&self, keys: usize, bytes: usize) -> Result<(), Error> {
        let (keys_max, bytes_max) = self.limits();
        let named = [("keys_max", keys > keys_max), ("bytes_max", bytes > bytes_max)];
        match named.into_iter().find(|(_, is_over)| *is_over) {
            None => Ok(()),
            Some((name, _)) => Err(self.error(engine::Refusal::ClientLimit { name, after_ms: 0 })),
        }
    }

    /// Refuses here what every replica would vote down.
    pub fn may_write<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), Error> {
        let cluster = self.cluster();
        let permission = cluster.permission(self.client);
        match keys.find(|key| !permission.is_some_and(|permission| permission.may_write(key))) {
            None => Ok(()),
            Some(key) => Err(self.not_permitted("write", permission, |permission| &permission.write_prefixes, key)),
        }
    }

    /// The counts of this connection's pools, shown from the first one on.
    pub fn pool_metrics(&self) -> PoolMetrics {
        self.pool_metrics.get_or_init(|| PoolMetrics::new(&self.metrics)).clone()
    }

    pub fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.newest.borrow().cluster)
    }

    /// All configurations that this process knows.
    pub fn chain(&self) -> Arc<Chain> {
        Arc::clone(&self.newest.borrow().chain)
    }

    /// Takes over the next configuration, and hands it to all replicas.
    pub fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        self.session.take_over(next)
    }

    /// Up to which version each connected replica is known to have the configurations.
    pub fn versions(&self) -> BTreeMap<ReplicaId, u64> {
        self.session.versions()
    }

    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// A pool of the engine's, where it has any.
    pub fn make_pool(&self, options: PoolOptions) -> Option<Box<dyn Pool>> {
        self.pools.as_ref().map(|make| make(options))
    }

    pub fn notices(&self) -> Notices {
        // A closed client gives one that ends at once.
        Notices(lock(&self.notices).as_ref().map_or_else(|| broadcast::Sender::new(1).subscribe(), broadcast::Sender::subscribe))
    }

    /// Where what belongs to nobody's call runs: whoever calls may be gone before it ends.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn statistics(&self) -> Statistics {
        lock(&self.statistics).clone()
    }

    /// Writes what is queued and closes the connections; whoever waits hears [`Error::Closed`], or [`Error::OutcomeUnknown`] when a
    /// commit was under way.
    pub async fn close(&self) {
        self.session.close().await;
    }
}

/// Whoever is about to ask the session something. Unless it comes to that, it leaves nothing behind.
struct Asking<'a> {
    waiters: &'a Waiters,
    operation: u64,
    is_asked: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_asked {
            let waiter = lock(self.waiters).remove(&self.operation);
            drop(waiter);
        }
    }
}

/// Where notices go, until the session has ended.
type NoticeSender = Arc<Mutex<Option<broadcast::Sender<Notice>>>>;

/// Whoever waits for something that the session tells.
struct Audience {
    waiters: Waiters,
    notices: NoticeSender,
    clock: watch::Sender<Option<ClusterClock>>,
}

impl Audience {
    /// Gives what the session tells to whoever waits for it; nobody may.
    fn tell(&self, event: Tell) {
        match event {
            Tell::Response { operation, outcome } => {
                let waiter = lock(&self.waiters).remove(&operation);
                let Some(Waiter { teller, place }) = waiter else { return };
                // Who has gone away leaves it to this to give the place back. How long it took counts all the same.
                if let Err((outcome, Some(place))) = teller.send((outcome, place)) {
                    place.answered(&outcome);
                }
            }
            Tell::Clock(told) => drop(self.clock.send_replace(Some(told))),
            Tell::Notice(notice) => {
                if let Some(listeners) = lock(&self.notices).as_ref() {
                    drop(listeners.send(notice));
                }
            }
        }
    }
}

/// The session has ended: it was closed, or its runtime has ended, or it panicked. It takes nothing more by now, so nobody waits in vain.
impl Drop for Audience {
    fn drop(&mut self) {
        lock(&self.notices).take();
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        drop(waiters);
    }
}

/// A panic elsewhere cannot leave what is behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connection").field("client", &self.client).field("engine", &self.profile.name).finish_non_exhaustive()
    }
}

/// How long connecting waits at most for replicas that neither answer nor refuse, once it could go on without them.
const ALL_CONNECTED_WAIT: Duration = Duration::from_millis(500);
/// People are told of a clock that is off by so much, in milliseconds: more than a long way to the replicas explains.
const CLOCK_OFF_MS: u64 = 500;

/// Of how many replicas of `shard` `counts` holds.
fn count(peers: &Peers, shard: ShardId, counts: impl Fn(&PeerState) -> bool) -> usize {
    peers.iter().filter(|(replica, state)| replica.shard == shard && counts(state)).count()
}

/// Whether waiting is of no use: its own host, or who listens there, has said no, or there is no such host.
fn has_said_no(state: &PeerState) -> bool {
    matches!(state, PeerState::Down(_) | PeerState::WrongKey(_) | PeerState::Refused(_))
}

fn identity(config: &Config) -> Result<Identity, ConnectError> {
    let party = Party::Client(config.client, types::Session(session_number()));
    let secret: &SecretKey = &config.secret;
    Ok(Identity::new(party, secret, config.certificate.clone())?)
}

/// A number no other process of this client has drawn, as good as surely; above those that were drawn a moment before, as long as the
/// machine's clock is not set back: some engines forget the lowest.
fn session_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (runtime::clock::wall() & !0xffff) | (random & 0xffff)
}
