//! The connections between members.
//!
//! There is one connection between any two members. A client dials every replica; of two replicas, the one with the
//! greater name dials the other. A lost connection is dialled again for ever, with jittered waits that
//! double up to a bound, so that a returning node is not overrun.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};
use types::codec::Decode;
use types::{Cluster, Party, ReplicaId};

use crate::changes::{ChangeOptions, Changes, View};
use crate::configuration::Configuration;
use crate::connection::{self, Intake, Stream, Wire};
use crate::frame::{FrameError, GREETING_BYTES_MAX, Greeting, HEADER_BYTES, Role, body_length};
use crate::half_open::{HalfOpen, Place};
use crate::injected_latency::Delays;
use crate::limits::{LEAVING_MAX, LOGGED_A_MINUTE_MAX};
use crate::link::{CloseReason, Links, NotOpened, OpenLink};
use crate::log_limit::LogLimit;
use crate::lookup::{Lookup, NoAddress};
use crate::member::{Member, Share};
use crate::metrics::{Peer, Taker};
use crate::priority::{USAGE_INTERVAL_MS, Usage, UsageMonitor};
use crate::quota::Totals;
use crate::read_buffer::READ_BYTES;
use crate::tls::{self, Identity, IdentityError};

/// How much plaintext TLS buffers before it must write.
const TLS_BUFFER_BYTES: usize = 256 << 10;
/// How long accepting pauses after the system failed to accept a connection, for example for lack of file descriptors.
const ACCEPT_PAUSE_MS: u64 = 50;
/// A connection that lasted this long was a good one: the next wait starts small again.
const GOOD_CONNECTION_MS: u64 = 1_000;
/// How long a refused peer may take to read the reason.
const REFUSAL_TIMEOUT_MS: u64 = 1_000;

/// How it stands with a replica that this node is to be connected with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Dialled, and not tried to the end yet.
    Connecting,
    /// It dials this node, and is not connected now.
    Awaited,
    /// Connected.
    Connected,
    /// It answered, and refused in these words. Trying goes on, but someone should read them. One replica may lie:
    /// believe what `f+1` say.
    Refused(String),
    /// Nobody listens at its address: the host there said so. Or its host's name has no address.
    Down(String),
    /// Who listens at its address holds another key.
    WrongKey(String),
    /// It could not be reached.
    Unreachable(String),
}

/// Whether `party` dials `replica`: a client dials every replica; of two replicas, the one with the greater name dials.
#[must_use]
pub fn dials(party: Party, replica: ReplicaId) -> bool {
    !matches!(party, Party::Replica(own) if own <= replica)
}

/// How it stands with all replicas that this node is to be connected with.
#[derive(Debug)]
pub(crate) struct PeerStates {
    own: Party,
    states: Mutex<BTreeMap<ReplicaId, PeerState>>,
    changed: Notify,
    connected: Family<Peer, Gauge>,
}

impl PeerStates {
    /// Nobody is dialled yet; those that dial this node are awaited.
    fn new(own: Party, cluster: &Cluster, connected: Family<Peer, Gauge>) -> Self {
        let states = Self { own, states: Mutex::default(), changed: Notify::new(), connected };
        for replica in cluster.replicas().filter(|replica| !dials(own, *replica) && own != Party::Replica(*replica)) {
            states.change(replica, PeerState::Awaited);
        }
        states
    }

    pub fn all(&self) -> BTreeMap<ReplicaId, PeerState> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `enough` is content.
    pub async fn until(&self, mut enough: impl FnMut(&BTreeMap<ReplicaId, PeerState>) -> bool) {
        let mut notified = std::pin::pin!(self.changed.notified());
        loop {
            notified.as_mut().enable();
            if enough(&self.all()) {
                return;
            }
            notified.as_mut().await;
            notified.set(self.changed.notified());
        }
    }

    /// `true` when it is news.
    fn change(&self, replica: ReplicaId, state: PeerState) -> bool {
        let before = self.states.lock().unwrap_or_else(PoisonError::into_inner).insert(replica, state.clone());
        let is_news = before.as_ref() != Some(&state);
        if is_news {
            let direction = if dials(self.own, replica) { "dialed" } else { "accepted" };
            let label = Peer { peer: replica.to_string(), direction };
            self.connected.get_or_create(&label).set(i64::from(state == PeerState::Connected));
            self.changed.notify_waiters();
        }
        is_news
    }
}

/// Everything the listener and the diallers share.
#[derive(Debug)]
pub(crate) struct Transport<C, W> {
    identity: Identity,
    /// Its name and shape, which stay.
    cluster: Arc<Cluster>,
    /// Who is who in it, which changes.
    pub changes: Arc<Changes>,
    /// The members of whom it was told that theirs differs.
    told: Mutex<BTreeSet<[u8; 32]>>,
    /// What those take whose keys are not known yet.
    strangers: Arc<Usage>,
    /// Lines in the log about who is served at low priority.
    low_logged: LogLimit,
    half_open: Arc<HalfOpen>,
    pub links: Arc<Links>,
    pub states: Arc<PeerStates>,
    intake: Arc<Intake<C, W>>,
}

impl<C: Send + 'static, W: Wire> Transport<C, W> {
    pub fn new(
        identity: Identity,
        cluster: Arc<Cluster>,
        intake: Arc<Intake<C, W>>,
        delays: Option<Delays>,
        changes: Option<ChangeOptions>,
    ) -> std::io::Result<Arc<Self>> {
        let totals = Totals::new(&intake.limits, &intake.shell.incoming_bytes);
        let links = Links::new(intake.limits.clone(), Arc::clone(&intake.shell));
        let links = match delays {
            None => links,
            Some(delays) => links.with_delays(delays)?,
        };
        let states = Arc::new(PeerStates::new(identity.party(), &cluster, intake.shell.peers.clone()));
        let links = Arc::new(links);
        let (limits, verifier) = (intake.limits.clone(), Arc::clone(&intake.verifier));
        let changes = Arc::new(Changes::new(identity.party(), Arc::clone(&cluster), changes, limits, totals, Arc::clone(&links), verifier));
        Ok(Arc::new(Self {
            identity,
            changes,
            strangers: Arc::default(),
            low_logged: LogLimit::new(LOGGED_A_MINUTE_MAX),
            told: Mutex::default(),
            cluster,
            half_open: Arc::new(HalfOpen::new(intake.limits.unauthenticated_max, intake.shell.unauthenticated.clone())),
            links,
            states,
            intake,
        }))
    }

    /// Whoever may take too much, in the order in which they are watched.
    fn takers<'a>(&'a self, view: &'a View) -> impl Iterator<Item = (Option<Member>, &'a Arc<Usage>)> {
        let members = view.members.values().map(|(member, share)| (Some(*member), &share.usage));
        members.chain([(None, &self.strangers)])
    }

    /// Watches all of them.
    fn monitor(&self, view: &View) -> UsageMonitor {
        UsageMonitor::new(self.takers(view).map(|(member, usage)| (Arc::clone(usage), member)), self.intake.limits.core_percent)
    }

    /// The priority of one of them has changed.
    fn note_priority(&self, view: &View, taker: usize) {
        let Some((member, usage)) = self.takers(view).nth(taker) else { return };
        let (name, is_low) = (member.map_or_else(|| "strangers".to_owned(), |member| member.to_string()), usage.is_low());
        if is_low && let Some(left_out) = self.intake.may_log(&self.low_logged) {
            tracing::warn!(member = %name, left_out = left_out.noted(), "takes far more than others, and is served at low priority");
        }
        self.intake.shell.low_priority.get_or_create(&Taker { member: name }).set(i64::from(is_low));
    }

    /// Accepts connections until `stopping`, then waits for those that are open to end.
    pub async fn listen(self: Arc<Self>, listener: TcpListener, mut stopping: watch::Receiver<bool>) {
        let mut connections = JoinSet::new();
        let mut view = self.changes.view();
        let mut monitor = self.monitor(&view);
        let mut looking = interval(Duration::from_millis(USAGE_INTERVAL_MS));
        looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Each has a file descriptor until it is closed, not only until its place is taken: the journal needs some too.
        let failures = LogLimit::new(LOGGED_A_MINUTE_MAX);
        let sockets = Arc::new(Semaphore::new(self.intake.limits.unauthenticated_max + LEAVING_MAX));
        loop {
            let accepting = async {
                let socket = Arc::clone(&sockets).acquire_owned().await.expect("it is never closed");
                listener.accept().await.map(|(stream, address)| (stream, address, socket))
            };
            tokio::select! {
                accepted = accepting => match accepted {
                    Ok((stream, address, socket)) => {
                        let place = self.half_open.enter(address.ip());
                        connections.spawn(Arc::clone(&self).receive(stream, address, place, socket));
                    }
                    Err(error) => {
                        if let Some(left_out) = self.intake.may_log(&failures) {
                            tracing::warn!(%error, left_out = left_out.noted(), "a connection could not be accepted");
                        }
                        sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                now = looking.tick() => {
                    let newest = self.changes.view();
                    let mut former = None;
                    if newest.version != view.version {
                        former = Some(std::mem::replace(&mut monitor, self.monitor(&newest)));
                        view = newest;
                    }
                    monitor.look(now.into_std()).into_iter().for_each(|taker| self.note_priority(&view, taker));
                    // Nobody looks any more at those that were taken out.
                    former.iter().for_each(UsageMonitor::stop);
                }
                () = stopped(&mut stopping) => break,
            }
        }
        drop(listener);
        monitor.stop();
        while connections.join_next().await.is_some() {}
    }

    /// Dials `replica` for ever, until `stopping`: at `first`, a host and a port, unless a later configuration says where else.
    pub async fn dial(self: Arc<Self>, replica: ReplicaId, first: String, mut stopping: watch::Receiver<bool>) {
        let limits = &self.intake.limits;
        let mut lookup = Lookup::default();
        let mut wait_ms = limits.redial_ms;
        self.set_state(replica, PeerState::Connecting);
        loop {
            let reached = tokio::select! {
                reached = self.reach(replica, &first, &mut lookup) => reached,
                () = stopped(&mut stopping) => return,
            };
            match reached {
                Ok(Reached { stream, address, share, key, theirs }) => {
                    let Ok(open) = self.links.open(Party::Replica(replica)) else { return };
                    self.set_state(replica, PeerState::Connected);
                    let opened = Instant::now();
                    self.changes.opened(&open.link(), &key, &theirs);
                    let (intake, changes) = (Arc::clone(&self.intake), Arc::clone(&self.changes));
                    let close_reason = connection::run(stream, open.link(), Arc::clone(&share), intake, changes).await;
                    drop(open);
                    self.count(&close_reason, Some((Party::Replica(replica), &share)), &address);
                    // `count` has logged it.
                    self.states.change(replica, PeerState::Unreachable(format!("{address}: {close_reason}")));
                    if opened.elapsed() >= Duration::from_millis(GOOD_CONNECTION_MS) {
                        wait_ms = limits.redial_ms;
                    }
                }
                Err(state) => {
                    self.intake.shell.dials_failed.inc();
                    self.set_state(replica, state);
                }
            }
            let jittered = Duration::from_millis(rand::random_range(wait_ms / 2..=wait_ms));
            wait_ms = wait_ms.saturating_mul(2).min(limits.redial_max_ms);
            let expelled = self.share_of(replica).and_then(|share| share.expelled_for(Instant::now()));
            tokio::select! {
                () = sleep(jittered.max(expelled.unwrap_or_default())) => {}
                () = stopped(&mut stopping) => return,
            }
        }
    }

    /// What a replica may take of this node.
    fn share_of(&self, replica: ReplicaId) -> Option<Arc<Share>> {
        let view = self.changes.view();
        let key = view.cluster.replica_key(replica)?;
        view.members.get(key).map(|(_, share)| Arc::clone(share))
    }

    /// One attempt to connect to `replica`, up to its welcome, of which is known that it was at `first`.
    async fn reach(&self, replica: ReplicaId, first: &str, lookup: &mut Lookup) -> Result<Reached, PeerState> {
        let limit = Duration::from_millis(self.intake.limits.greeting_timeout_ms);
        let place = self.changes.moved(replica).unwrap_or_else(|| first.to_owned());
        let addresses = lookup.addresses(&place, limit).await.map_err(|error| match error {
            NoAddress::None(error) => PeerState::Down(format!("{place}: {error}")),
            NoAddress::NoAnswer => PeerState::Unreachable(format!("{place}: the host's name was not looked up in time")),
        })?;
        let (address, view) = (at(&place, &addresses), self.changes.view());
        let unreachable = |error: String| PeerState::Unreachable(format!("{address}: {error}"));
        let Some((key, (_, share))) = view.cluster.replica_key(replica).and_then(|key| Some((*key, view.members.get(key)?))) else {
            return Err(unreachable(format!("the cluster has no replica {replica}")));
        };
        let config = self.identity.client_config(key).map_err(|error| unreachable(error.to_string()))?;
        let stream = match timeout(limit, TcpStream::connect(&*addresses)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Err(PeerState::Down(format!("{address}: {error}")));
            }
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(_) => return Err(unreachable("no answer to connecting".to_owned())),
        };
        let reached = stream.peer_addr().map_err(|error| unreachable(error.to_string()))?;
        let connecting = TlsConnector::from(config).connect(ServerName::from(reached.ip()), buffered(stream));
        let mut stream = match timeout(limit, connecting).await {
            Ok(Ok(mut stream)) => {
                stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
                Stream::from(stream)
            }
            Ok(Err(error)) => {
                return Err(match wrong_key(&error) {
                    Some(wrong) => PeerState::WrongKey(format!("{address}: {wrong}")),
                    None => unreachable(error.to_string()),
                });
            }
            Err(_) => return Err(unreachable("no answer to the TLS handshake".to_owned())),
        };
        let role = match self.identity.party() {
            Party::Replica(_) => Role::Replica,
            Party::Client(_, session) => Role::Client(session),
        };
        let hello = Greeting::Hello { cluster: self.cluster.id(), configuration: view.configuration, role };
        let theirs = match timeout(limit, self.introduce(&mut stream, &hello)).await {
            Ok(Ok(Greeting::Welcome(theirs))) => theirs,
            Ok(Ok(Greeting::Refused(reason))) => return Err(PeerState::Refused(reason)),
            Ok(Ok(Greeting::Hello { .. })) => return Err(unreachable("it answered a greeting with a greeting".to_owned())),
            Ok(Err(error)) => return Err(unreachable(error)),
            Err(_) => return Err(unreachable("no answer to the greeting".to_owned())),
        };
        self.compare(&view, &key, Party::Replica(replica), &theirs);
        Ok(Reached { stream, share: Arc::clone(share), key, theirs, address })
    }

    async fn introduce(&self, stream: &mut Stream, hello: &Greeting) -> Result<Greeting, String> {
        // A listener that refuses at once may have closed its side already; its reason can still be read.
        let written = async {
            stream.write_all(&hello.to_frame()).await?;
            stream.flush().await
        }
        .await;
        match (read_greeting(stream, &self.cluster).await, written) {
            (Ok(greeting), _) => Ok(greeting),
            (Err(GreetingError::Io(_)), Err(error)) => Err(error.to_string()),
            (Err(error), _) => Err(error.to_string()),
        }
    }

    /// Takes an accepted connection through handshake and greeting, and then runs it to its end.
    async fn receive(self: Arc<Self>, stream: TcpStream, address: SocketAddr, mut place: Place, socket: OwnedSemaphorePermit) {
        let meeting = Arc::clone(&self).meet(stream, address);
        let known = tokio::select! {
            known = self.intake.low_priority.strangers.run(&self.strangers, meeting) => known.unwrap_or(Err(CloseReason::Stopping)),
            () = place.taken() => Err(CloseReason::TooManyUnauthenticated),
        };
        drop((place, socket));
        let Known { stream, open, share } = match known {
            Ok(known) => known,
            Err(close_reason) => return self.count(&close_reason, None, address),
        };
        let link = open.link();
        let party = link.party();
        if let Party::Replica(replica) = party {
            self.set_state(replica, PeerState::Connected);
        }
        let (intake, changes) = (Arc::clone(&self.intake), Arc::clone(&self.changes));
        let close_reason = connection::run(stream, link, Arc::clone(&share), intake, changes).await;
        drop(open);
        if let Party::Replica(replica) = party
            && self.links.get(party).is_none()
        {
            self.states.change(replica, PeerState::Awaited);
        }
        self.count(&close_reason, Some((party, &share)), address);
    }

    /// Handshake and greeting, within the time that both may take.
    async fn meet(self: Arc<Self>, stream: TcpStream, address: SocketAddr) -> Result<Known, CloseReason> {
        let meeting = async {
            let failed = |error| CloseReason::Handshake(describe(&error));
            let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), buffered(stream)).await.map_err(failed)?;
            // Not before it has said something: who is silent holds up nobody.
            let turn = self.half_open.turn(address.ip()).await;
            let accepting = hello.into_stream(self.identity.server_config());
            drop(turn);
            let mut stream = accepting.await.map_err(failed)?;
            stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            let mut stream = Stream::from(stream);
            let known = self.recognise(&mut stream).await;
            Ok((stream, known))
        };
        let limit = Duration::from_millis(self.intake.limits.greeting_timeout_ms);
        match timeout(limit, meeting).await.unwrap_or(Err(CloseReason::GreetingTimeout))? {
            (stream, Ok((open, share))) => Ok(Known { stream, open, share }),
            (stream, Err((close_reason, reason))) => {
                refuse(stream, reason).await;
                Err(close_reason)
            }
        }
    }

    /// Identifies the peer by its key, checks its greeting, and gives it its place among the links. A refusal has a reason that says what
    /// to do; `None` closes without a message.
    async fn recognise(&self, stream: &mut Stream) -> Result<(OpenLink, Arc<Share>), (CloseReason, Option<String>)> {
        let key = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(tls::public_key_of);
        let cluster = self.cluster.id();
        let Some(key) = key else {
            let reason = "no client certificate was presented; use the client folder that `bezant init` made".to_owned();
            return Err((CloseReason::NoCertificate, Some(reason)));
        };
        let view = self.changes.view();
        let member = key.as_ref().ok().and_then(|key| view.members.get(key));
        let Some((member, share)) = member else {
            let shown = key.map(hex::encode).unwrap_or_default();
            let reason = format!(
                "the key {shown} is not a member of cluster {cluster}: the certificate belongs to another cluster or was removed \
                         (its configuration is version {} here)",
                view.version
            );
            return Err((CloseReason::UnknownKey, Some(reason)));
        };
        if let Some(left) = share.expelled_for(Instant::now()) {
            let reason = format!("{member} sent what no correct member sends, and is refused for another {} s", left.as_secs() + 1);
            return Err((CloseReason::Expelled, Some(reason)));
        }
        let (meant, theirs, role) = match read_greeting(stream, &self.cluster).await {
            Ok(Greeting::Hello { cluster, configuration, role }) => (cluster, configuration, role),
            Ok(_) => {
                let error = FrameError::Body(types::codec::DecodeError::UnknownTag("a first greeting"));
                return Err((CloseReason::Greeting(error), None));
            }
            Err(GreetingError::Frame(error)) => {
                let reason = matches!(error, FrameError::Version(_)).then(|| error.to_string());
                return Err((CloseReason::Greeting(error), reason));
            }
            Err(GreetingError::Io(_)) => return Err((CloseReason::Cut, None)),
        };
        if meant != cluster {
            let reason = format!("this is cluster {cluster}, not {meant}: check the addresses");
            return Err((CloseReason::WrongCluster, Some(reason)));
        }
        let party = self.party_of(*member, role)?;
        if let Ok(key) = &key {
            self.compare(&view, key, party, &theirs);
        }
        if !view.configuration.fits(&theirs) {
            let differs = view.configuration.difference(&theirs).unwrap_or_default();
            let reason = format!("your cluster.toml differs from this replica's in {differs}: take the same file on every host");
            return Err((CloseReason::WrongConfiguration, Some(reason)));
        }
        // Before the welcome: whoever is welcomed has a place.
        let open = self.links.open(party).map_err(|error| match error {
            NotOpened::Stopping => (CloseReason::Stopping, None),
            NotOpened::ClientFull { .. } | NotOpened::ClientsFull { .. } => (CloseReason::TooManyConnections, Some(error.to_string())),
        })?;
        let welcome = async {
            stream.write_all(&Greeting::Welcome(view.configuration).to_frame()).await?;
            stream.flush().await
        };
        match welcome.await {
            Ok(()) => {
                if let Ok(key) = &key {
                    self.changes.opened(&open.link(), key, &theirs);
                }
                Ok((open, Arc::clone(share)))
            }
            Err(error) => Err((CloseReason::Broken(error.kind()), None)),
        }
    }

    /// What a member is here, if it may be that.
    fn party_of(&self, member: Member, role: Role) -> Result<Party, (CloseReason, Option<String>)> {
        match (member, role) {
            (Member::Replica(replica), Role::Replica) if Party::Replica(replica) != self.identity.party() => Ok(Party::Replica(replica)),
            (Member::Client(client), Role::Client(session)) => Ok(Party::Client(client, session)),
            (Member::Replica(_), _) => {
                Err((CloseReason::WrongRole, Some(format!("this key is that of {member}, which may be nothing else here"))))
            }
            (Member::Client(_), _) => Err((CloseReason::WrongRole, Some(format!("this key is that of {member}, which is no replica")))),
        }
    }

    /// Says once of a member that its `cluster.toml` differs from this one's.
    fn compare(&self, view: &View, key: &[u8; 32], party: Party, theirs: &Configuration) {
        if let Some(differs) = view.configuration.difference(theirs)
            && self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(*key)
        {
            tracing::warn!(%party, "its cluster.toml differs from this one's in {differs}: take the same file on every host");
        }
    }

    /// Notes how it stands with `replica`, and logs it if it is news.
    fn set_state(&self, replica: ReplicaId, state: PeerState) {
        if !self.states.change(replica, state.clone()) || matches!(state, PeerState::Connecting | PeerState::Awaited) {
            return;
        }
        let Some(left_out) = self.share_of(replica).and_then(|share| self.intake.may_log(&share.log)) else { return };
        match &state {
            PeerState::Connecting | PeerState::Awaited => {}
            PeerState::Connected => tracing::info!(%replica, left_out = left_out.noted(), "connected"),
            PeerState::Refused(reason) => tracing::warn!(%replica, reason, left_out = left_out.noted(), "refused"),
            // Any peer may be down or stopping, and the cluster is made for that; status and metrics show who is.
            PeerState::Down(reason) | PeerState::WrongKey(reason) | PeerState::Unreachable(reason) => {
                tracing::info!(%replica, reason, left_out = left_out.noted(), "not reached");
            }
        }
    }

    /// Counts and logs the end of a connection; a member that has misbehaved is refused for a while.
    fn count(&self, close_reason: &CloseReason, member: Option<(Party, &Share)>, address: impl fmt::Display) {
        self.intake.shell.count_closed(close_reason.label());
        if let Some((party, share)) = member
            && close_reason.is_misbehavior()
        {
            share.expel(Instant::now(), Duration::from_millis(self.intake.limits.expelled_ms));
            self.links.expel(party.into());
        }
        let party = member.map(|(party, _)| party);
        match (party, close_reason) {
            // Clients come and go, and a stopping node says so once.
            (Some(party @ Party::Client(..)), CloseReason::Ended) => tracing::debug!(%party, %address, %close_reason, "a connection ended"),
            (Some(party), CloseReason::Stopping) => tracing::debug!(%party, %address, %close_reason, "a connection ended"),
            (Some(party), _) => match member.and_then(|(_, share)| self.intake.may_log(&share.log)) {
                Some(left_out) => tracing::info!(%party, %address, %close_reason, left_out = left_out.noted(), "a connection ended"),
                None => tracing::debug!(%party, %address, %close_reason, "a connection ended"),
            },
            // Anybody can cause these, so they stay out of the log of a node in use; the metric counts them.
            (None, _) => tracing::debug!(%address, %close_reason, "a connection was refused"),
        }
    }
}

/// A replica that was dialled and has welcomed this node.
struct Reached {
    stream: Stream,
    /// Where, in words.
    address: String,
    share: Arc<Share>,
    key: [u8; 32],
    /// What it goes by.
    theirs: Configuration,
}

/// A member, welcomed.
struct Known {
    stream: Stream,
    open: OpenLink,
    share: Arc<Share>,
}

/// Where a replica is, in words: as the configuration has it, and at which addresses, if it names the host.
fn at(place: &str, addresses: &[SocketAddr]) -> String {
    if place.parse::<SocketAddr>().is_ok() {
        return place.to_owned();
    }
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!("{place} ({})", addresses.join(", "))
}

/// Waits until the node stops, or is gone.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    drop(stopping.wait_for(|stopping| *stopping).await);
}

/// Sends the reason and waits a moment for the peer to read it, because closing a socket with unread bytes would discard
/// the reason.
async fn refuse(mut stream: Stream, reason: Option<String>) {
    let Some(reason) = reason else { return };
    let farewell = async {
        stream.write_all(&Greeting::Refused(reason).to_frame()).await?;
        stream.shutdown().await?;
        let mut rest = [0; GREETING_BYTES_MAX];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    let _ = timeout(Duration::from_millis(REFUSAL_TIMEOUT_MS), farewell).await;
}

#[derive(Debug, thiserror::Error)]
enum GreetingError {
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Reads exactly one greeting.
async fn read_greeting(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), cluster: &Cluster) -> Result<Greeting, GreetingError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let length = body_length(&header, GREETING_BYTES_MAX)?.expect("the header is complete");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Greeting::from_bytes(Bytes::from(body), cluster.id()).map_err(FrameError::Body)?)
}

fn buffered(stream: TcpStream) -> BufReader<TcpStream> {
    // Without it a small frame waits for the previous one's acknowledgement; failing to set it is no reason to fail.
    let _ = stream.set_nodelay(true);
    BufReader::with_capacity(READ_BYTES, stream)
}

/// The text of a TLS error.
fn describe(error: &std::io::Error) -> String {
    wrong_key(error).unwrap_or_else(|| error.to_string())
}

/// What is wrong with the key that the peer showed, if that is the error.
fn wrong_key(error: &std::io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(rustls::OtherError(own))) => Some(own.to_string()),
        _ => None,
    }
}

/// Listens at `address`.
///
/// # Errors
/// [`ListenError`], naming the address and what to do.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// An address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {source}; is another node running there? choose another port, or stop it")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    pub source: std::io::Error,
}

/// Whether an identity fits the cluster it is to be used in.
pub(crate) fn check_identity(identity: &Identity, cluster: &Cluster) -> Result<(), IdentityError> {
    let expected = match identity.party() {
        Party::Replica(replica) => cluster.replica_key(replica).copied(),
        Party::Client(client, _) => cluster.permission(client).map(|permission| permission.public_key),
    };
    if expected == Some(identity.public_key()) {
        Ok(())
    } else {
        Err(IdentityError::NotMember { party: identity.party(), cluster: cluster.id() })
    }
}
