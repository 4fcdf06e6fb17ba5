//! What clients see: connections, sessions, replies and events.
//!
//! A server by itself, or one that leads others, prepares, applies and answers a request in one step. The shell gives the answers out once
//! the transactions of the step are durable; among several servers, once a majority has them ([`crate::ensemble`]). Reads are answered from
//! the state at once, so that a read after a write of the same step waits with it. A server that follows has its clients' writes ordered by
//! the leader, and answers when they come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use jute::{
    Answer, ConnectRequest, ConnectResponse, ErrorCode, EventKind, Id, NotARequest, Numbered, PASSWORD_BYTES, Reply, WatchedEvent, Writer,
};
use mutants::{Mutant, broken};
use sha2::{Digest as _, Sha256};
use types::{ClientId, Party, Session};

use crate::acl;
use crate::commands::Fields;
use crate::ensemble::message::{Forward, Ordered, OrderedBody, Source};
use crate::expiry::Expiry;
use crate::limits::{EXPIRED_AT_ONCE_MAX, REAP_PARTS, REAPED_MAX, SESSIONS_SCRUBBED};
use crate::node::Lifetime;
use crate::prepare::{Origin, Preparer, Proposal};
use crate::requests::{Opening, Queued};
use crate::state::{Applied, Corruption, Event, State};
use crate::statistics::Statistics;
use crate::transaction::{Body, Transaction};
use crate::transactions::{self, Commits};
use crate::watches::Watches;
use crate::work::Work;

/// A connection, as the shell numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970, which may be set back: for stats, and for nodes with a time to live.
    pub wall_ms: i64,
    /// Milliseconds that only grow: for sessions.
    pub steady_ms: i64,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whom its certificate names, if it showed one.
    pub certificate: Option<String>,
}

/// What happens to a server.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum Input {
    /// Somebody connects.
    Opened { connection: ConnectionId, peer: Peer },
    /// A client begins or resumes a session.
    Connect { connection: ConnectionId, request: ConnectRequest },
    /// A client asks for something.
    Request { connection: ConnectionId, request: Result<Numbered, NotARequest> },
    /// An operator's command of four letters.
    Word { connection: ConnectionId, word: [u8; 4] },
    /// A connection is no more.
    Closed { connection: ConnectionId },
    /// Time has passed.
    Tick,
}

/// What leaves a server. Bytes go out after the transactions are durable.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To be made durable, in this order.
    pub transactions: Vec<Transaction>,
    /// To be sent.
    pub bytes: BTreeMap<ConnectionId, Vec<u8>>,
    /// To be closed after that.
    pub close: BTreeSet<ConnectionId>,
    /// Answers to clients of the engine.
    pub(crate) answers: Vec<(Party, u64, transactions::Answer)>,
    /// As the leader of others: to be proposed, in this order.
    pub(crate) ordered: Vec<Ordered>,
    /// As a follower: for the leader, in this order.
    pub(crate) forwards: Vec<Forward>,
}

/// What a server is among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// There are no others.
    Alone,
    /// It has no leader, and serves nobody.
    Looking,
    /// It follows, perhaps without a voice.
    Following { observes: bool },
    /// It leads.
    Leading,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's number; sessions begin with it.
    pub server_id: u8,
    /// The shortest timeout of a session.
    pub timeout_ms_min: i32,
    /// The longest.
    pub timeout_ms_max: i32,
    /// How often containers and nodes past their time are deleted.
    pub reap_every_ms: i64,
    /// Which commands of four letters are answered; `None` is all.
    pub words: Option<BTreeSet<String>>,
    /// `user:hash` of who may do everything.
    pub superuser: Option<String>,
    /// Unpredictable: sessions' passwords are made from it.
    pub secret: [u8; 32],
    /// Lines that `conf` shows.
    pub configuration: Vec<(String, String)>,
}

pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Shared with the requests that are being answered.
    pub(crate) identities: Arc<Vec<Id>>,
    pub(crate) session: Option<i64>,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// It is told nothing more.
    pub(crate) is_closing: bool,
    /// At a follower: what is not answered yet, in the order in which it is to be answered.
    pub(crate) queue: VecDeque<Queued>,
    /// How many of these wait, and must not be overtaken: they change who the client is, or are to be ordered.
    pub(crate) blocking_queued: usize,
}

impl Connection {
    /// How many bytes wait in its queue.
    fn queued_bytes(&self) -> usize {
        let bytes = |queued: &Queued| if let Queued::Request { bytes, .. } = queued { *bytes } else { 0 };
        self.queue.iter().map(bytes).sum()
    }
}

/// A transaction that was applied.
pub(crate) struct Committed {
    pub(crate) transaction: Transaction,
    /// What it came to.
    pub(crate) applied: Applied,
}

/// A server.
pub struct Server {
    pub(crate) state: State,
    pub(crate) preparer: Preparer,
    pub(crate) watches: Watches,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) by_session: BTreeMap<i64, ConnectionId>,
    pub(crate) expiry: Expiry,
    pub(crate) settings: Settings,
    pub(crate) statistics: Statistics,
    pub(crate) corruption: Option<Corruption>,
    next_session: i64,
    reap_at_ms: i64,
    scrubbed_shard: usize,
    /// The last session that was looked at, and none at the end.
    scrubbed_session: Option<i64>,
    /// What the shell has measured, for operators.
    pub(crate) measured: Fields,
    /// The subject of the certificate of who may do everything.
    superuser_certificate: Option<String>,
    pub(crate) role: Role,
    pub(crate) steady_ms: i64,
    /// As the leader: for whom it prepares.
    pub(crate) source: Source,
    /// As the leader: at which server each session was last heard of.
    pub(crate) owners: BTreeMap<i64, u16>,
    /// As a follower: the sessions heard of, for the leader to know.
    pub(crate) heard: BTreeSet<i64>,
    /// As a follower: the connections of the requests that were forwarded, with their bytes.
    pub(crate) forwarded: VecDeque<(ConnectionId, usize)>,
    pub(crate) forwarded_bytes: usize,
    /// As a follower: how many bytes of requests wait behind those.
    pub(crate) queued_bytes: usize,
    /// What operators are shown of the other servers.
    pub(crate) others: Fields,
    /// Whether writes fail that a hard quota forbids.
    pub(crate) enforces_quotas: bool,
    /// It was repaired and not compared with the others yet: it serves nobody, whatever its part is.
    pub(crate) is_uncompared: bool,
    /// What operators are told of its repair.
    pub(crate) repair: Option<String>,
    /// As the leader: the sessions of the engine's clients, by their processes.
    pub(crate) processes: BTreeMap<(ClientId, Session), i64>,
    pub(crate) commits: Commits,
    /// What this turn has done.
    pub(crate) work: Work,
}

impl Server {
    /// A server that goes on from `state`. Its sessions have all their time from now on.
    #[must_use]
    pub fn new(state: State, settings: Settings, now: Now) -> Self {
        let mut expiry = Expiry::default();
        for (id, session) in &state.sessions {
            expiry.begin(*id, session.timeout_ms, now.steady_ms);
        }
        let next_session = (now.wall_ms << 24).cast_unsigned() >> 8 & (u64::MAX >> 8) | u64::from(settings.server_id) << 56;
        Self {
            preparer: Preparer::new(&state),
            state,
            watches: Watches::default(),
            connections: BTreeMap::new(),
            by_session: BTreeMap::new(),
            expiry,
            reap_at_ms: now.steady_ms + settings.reap_every_ms,
            settings,
            statistics: Statistics::new(),
            corruption: None,
            next_session: next_session.cast_signed(),
            scrubbed_shard: 0,
            scrubbed_session: None,
            measured: Fields::new(),
            superuser_certificate: None,
            role: Role::Alone,
            steady_ms: now.steady_ms,
            source: Source::default(),
            owners: BTreeMap::new(),
            heard: BTreeSet::new(),
            forwarded: VecDeque::new(),
            forwarded_bytes: 0,
            queued_bytes: 0,
            others: Fields::new(),
            enforces_quotas: false,
            is_uncompared: false,
            repair: None,
            processes: BTreeMap::new(),
            commits: Commits::default(),
            work: Work::default(),
        }
    }

    /// Whether writes fail that a hard quota forbids: not, unless this is said.
    #[must_use]
    pub fn with_quotas_enforced(mut self, enforces_quotas: bool) -> Self {
        self.preparer = self.preparer.with_quotas_enforced(enforces_quotas);
        self.enforces_quotas = enforces_quotas;
        self
    }

    /// Whose certificate allows everything: nobody's, unless this is said.
    #[must_use]
    pub fn with_superuser_certificate(mut self, subject: Option<String>) -> Self {
        self.superuser_certificate = subject;
        self
    }

    /// Notes how long a request took, from its arrival to its answer.
    pub fn on_answered(&mut self, is_write: bool, took_ms: u64) {
        self.statistics.latency.add(took_ms);
        if is_write { &mut self.statistics.updates } else { &mut self.statistics.reads }.add(took_ms);
    }

    /// Notes what the shell has measured, to be shown to whoever asks next.
    pub fn on_measured(&mut self, measured: Fields) {
        self.measured = measured;
    }

    /// A turn begins: the shell takes inputs of clients as long as it [may](Self::may_do_more).
    pub fn begin_turn(&mut self) {
        self.work = Work::default();
    }

    /// Whether this turn takes more inputs of clients.
    #[must_use]
    pub fn may_do_more(&self) -> bool {
        !self.work.is_enough()
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Why the server answers nobody any more, if it does not.
    #[must_use]
    pub fn corruption(&self) -> Option<&Corruption> {
        self.corruption.as_ref()
    }

    /// What was counted.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// What was counted of the engine's commits, those of all servers.
    #[must_use]
    pub fn commits(&self) -> Commits {
        self.commits
    }

    /// When a [`Input::Tick`] has something to do, in steady time.
    #[must_use]
    pub fn deadline_ms(&self) -> i64 {
        if self.corruption.is_some() || !self.prepares() {
            return i64::MAX;
        }
        self.expiry.deadline_ms().map_or(self.reap_at_ms, |due| due.min(self.reap_at_ms))
    }

    /// Takes one input. When the state turns out to be wrong, nothing of what was to be said is said, and all connections are closed.
    pub fn step(&mut self, now: Now, input: Input, outbox: &mut Outbox) {
        self.steady_ms = now.steady_ms;
        if self.corruption.is_none() {
            let stepped = self.dispatch(now, input, outbox);
            if let Err(corruption) = stepped {
                self.stop(corruption, outbox);
            }
        } else {
            self.refuse(now, input, outbox);
        }
    }

    /// Hashes the nodes of the next shard anew, and the next sessions.
    pub fn scrub(&mut self, outbox: &mut Outbox) {
        if self.corruption.is_some() {
            return;
        }
        let nodes = self.state.scrub(self.scrubbed_shard);
        match nodes.and_then(|()| self.state.scrub_sessions(self.scrubbed_session, SESSIONS_SCRUBBED)) {
            Ok(last) => {
                self.statistics.shards_scrubbed += 1;
                self.scrubbed_session = last;
            }
            Err(corruption) => self.stop(corruption, outbox),
        }
        self.scrubbed_shard = self.scrubbed_shard.wrapping_add(1);
    }

    /// Answers nobody from now on, for a reason that was found here or elsewhere.
    pub fn stop(&mut self, corruption: Corruption, outbox: &mut Outbox) {
        self.corruption.get_or_insert(corruption);
        outbox.bytes.clear();
        self.close_all(outbox);
    }

    /// Whether clients have to go to another server for now.
    pub(crate) fn serves_nobody(&self) -> bool {
        self.role == Role::Looking || (self.is_uncompared && !broken(Mutant::UncomparedServes))
    }

    /// Whether it makes transactions of requests itself.
    pub(crate) fn prepares(&self) -> bool {
        matches!(self.role, Role::Alone | Role::Leading)
    }

    /// What a server whose state is wrong does with whoever comes: it says so to operators, and nothing to clients.
    fn refuse(&mut self, now: Now, input: Input, outbox: &mut Outbox) {
        match input {
            Input::Word { connection, word } => self.word(now, connection, word, outbox),
            Input::Connect { connection, .. } | Input::Request { connection, .. } => {
                outbox.close.insert(connection);
            }
            Input::Opened { .. } | Input::Closed { .. } | Input::Tick => {}
        }
    }

    fn dispatch(&mut self, now: Now, input: Input, outbox: &mut Outbox) -> Result<(), Corruption> {
        match input {
            Input::Opened { connection, peer } => self.on_opened(connection, peer),
            Input::Connect { connection, request } => return self.on_connect(now, connection, &request, outbox),
            Input::Request { connection, request } => return self.on_request(now, connection, request, outbox),
            Input::Word { connection, word } => self.word(now, connection, word, outbox),
            Input::Closed { connection } => self.on_closed(connection),
            Input::Tick if self.prepares() => return self.on_tick(now, outbox),
            Input::Tick => {}
        }
        Ok(())
    }

    fn on_opened(&mut self, connection: ConnectionId, peer: Peer) {
        let mut identities = vec![Id::new("ip", &peer.address.to_string())];
        identities.extend(peer.certificate.as_deref().map(|subject| Id::new("x509", subject)));
        if peer.certificate.is_some() && peer.certificate == self.superuser_certificate {
            identities.push(acl::superuser());
        }
        let opened = Connection {
            peer,
            identities: Arc::new(identities),
            session: None,
            received: 0,
            sent: 0,
            is_closing: false,
            queue: VecDeque::new(),
            blocking_queued: 0,
        };
        self.connections.insert(connection, opened);
    }

    fn on_closed(&mut self, connection: ConnectionId) {
        self.forget_watches(connection);
        let closed = self.connections.remove(&connection);
        self.queued_bytes -= closed.as_ref().map_or(0, Connection::queued_bytes);
        let session = closed.and_then(|closed| closed.session);
        if let Some(session) = session.filter(|session| self.by_session.get(session) == Some(&connection)) {
            self.by_session.remove(&session);
        }
    }

    pub(crate) fn forget_watches(&mut self, connection: ConnectionId) {
        self.work.nodes = self.work.nodes.saturating_add(self.watches.forget(connection));
    }

    pub(crate) fn close(&mut self, connection: ConnectionId, outbox: &mut Outbox) {
        if let Some(closing) = self.connections.get_mut(&connection) {
            closing.is_closing = true;
            outbox.close.insert(connection);
        }
    }

    fn on_connect(&mut self, now: Now, connection: ConnectionId, request: &ConnectRequest, outbox: &mut Outbox) -> Result<(), Corruption> {
        self.statistics.connected += 1;
        let is_first = self.connections.get(&connection).is_some_and(|known| known.session.is_none() && known.queue.is_empty());
        let has_seen_more = request.last_zxid_seen > self.state.zxid && !broken(Mutant::StaleServerTaken);
        if !is_first || self.serves_nobody() || (has_seen_more && self.prepares()) {
            // Whoever has seen more than this server would be shown the past.
            self.close(connection, outbox);
            return Ok(());
        }
        let read_only = request.read_only.map(|_| false);
        if request.session == 0 {
            let (session, proposal) = self.new_session(request.timeout_ms);
            let opening = Opening { session, password: None, last_zxid_seen: 0, read_only };
            if let Role::Following { .. } = self.role {
                self.forward_session(connection, proposal, opening, outbox);
                return Ok(());
            }
            let origin = Origin { session, xid: 0, identities: &[], time_ms: now.wall_ms };
            self.commit(proposal, origin, outbox)?;
            self.open_session(connection, opening, outbox);
            return Ok(());
        }
        let (session, last_zxid_seen) = (request.session, request.last_zxid_seen);
        let opening = Opening { session, password: Some(request.password.clone()), last_zxid_seen, read_only };
        match self.role {
            // The leader knows whether the session is still there, and where it was until now.
            Role::Following { .. } => self.forward_claim(connection, opening, &request.password, outbox),
            Role::Leading => {
                self.claim(Source::default(), session, &request.password, outbox);
                self.open_session(connection, opening, outbox);
            }
            Role::Alone | Role::Looking => self.open_session(connection, opening, outbox),
        }
        Ok(())
    }

    /// Answers a client that begins or resumes a session, which is there by now if it ever will be.
    pub(crate) fn open_session(&mut self, connection: ConnectionId, opening: Opening, outbox: &mut Outbox) {
        let Opening { session, password, last_zxid_seen, read_only } = opening;
        if last_zxid_seen > self.state.zxid && !broken(Mutant::StaleServerTaken) {
            self.close(connection, outbox);
            return;
        }
        let is_allowed = password.is_none_or(|password| self.is_password(session, &password));
        let allowed = self.state.sessions.get(&session).filter(|_| is_allowed);
        let response = match allowed {
            None => ConnectResponse::expired(read_only),
            Some(known) => ConnectResponse { timeout_ms: known.timeout_ms, session, password: known.password, read_only },
        };
        let is_allowed = allowed.is_some();
        self.send(connection, outbox, |out| response.encode(out));
        if !is_allowed {
            self.close(connection, outbox);
            return;
        }
        self.hear_of(session);
        if let Some(elsewhere) = self.by_session.insert(session, connection) {
            self.forget_watches(elsewhere);
            self.close(elsewhere, outbox);
        }
        if let Some(known) = self.connections.get_mut(&connection) {
            known.session = Some(session);
        }
    }

    /// The number of a new session, and what makes it.
    pub(crate) fn new_session(&mut self, timeout_ms: i32) -> (i64, Proposal) {
        let session = self.free_session();
        let mut drawn = Sha256::new();
        drawn.update(self.settings.secret);
        drawn.update(session.to_be_bytes());
        drawn.update(self.state.zxid.to_be_bytes());
        let mut password = [0; PASSWORD_BYTES];
        password.copy_from_slice(&drawn.finalize()[..PASSWORD_BYTES]);
        self.new_session_of(timeout_ms, password)
    }

    /// The number that the next session has.
    fn free_session(&mut self) -> i64 {
        while self.next_session == 0 || self.state.sessions.contains_key(&self.next_session) {
            self.next_session = self.next_session.wrapping_add(1);
        }
        self.next_session
    }

    /// The same with this password.
    pub(crate) fn new_session_of(&mut self, timeout_ms: i32, password: [u8; PASSWORD_BYTES]) -> (i64, Proposal) {
        let session = self.free_session();
        self.next_session = session.wrapping_add(1);
        let timeout_ms = timeout_ms.clamp(self.settings.timeout_ms_min, self.settings.timeout_ms_max);
        (session, Proposal::CreateSession { timeout_ms, password })
    }

    /// What nobody else can foresee, for the state after entry `zxid`.
    pub(crate) fn seed(&self, zxid: u64) -> u64 {
        let mut drawn = Sha256::new();
        drawn.update(self.settings.secret);
        drawn.update(b"state");
        drawn.update(zxid.to_be_bytes());
        u64::from_be_bytes(*drawn.finalize().first_chunk().expect("a hash is longer"))
    }

    /// A session's client was heard of.
    pub(crate) fn hear_of(&mut self, session: i64) {
        match self.role {
            Role::Following { .. } => {
                self.heard.insert(session);
            }
            Role::Alone | Role::Leading | Role::Looking => self.expiry.renew(session, self.steady_ms),
        }
    }

    /// Prepares, applies and logs, and tells who watches.
    pub(crate) fn commit(&mut self, proposal: Proposal, origin: Origin<'_>, outbox: &mut Outbox) -> Result<Committed, Corruption> {
        let paths = if self.state.is_realtime { proposal.paths() } else { Vec::new() };
        let operations = if let Proposal::Multi(operations) = &proposal { operations.len() } else { 1 };
        let ends_session = matches!(proposal, Proposal::CloseSession);
        let transaction = self.preparer.prepare(&self.state, proposal, origin);
        // What is counted now is counted again when it is applied.
        self.work.nodes += operations.max(transaction.body.nodes()) + 2 * self.preparer.take_counted() + self.preparer.take_checked();
        if let Body::Failed { code, .. } = transaction.body {
            self.state.look_at_met(&paths)?;
            if ends_session && code != ErrorCode::SessionExpired && !broken(Mutant::UnendingSession) {
                let what = format!("session {:#x} cannot end: one of its ephemeral nodes is not there", transaction.session);
                return Err(Corruption { zxid: transaction.zxid, path: None, what, digests: None });
            }
        }
        let mut applied = if self.role == Role::Leading {
            // Its followers hash everything.
            self.state.apply_prepared(&transaction, &self.preparer)?
        } else {
            self.state.apply(&transaction)?
        };
        self.state.check_applied(&transaction, &applied)?;
        self.preparer.applied(&transaction);
        self.statistics.transactions += 1;
        self.commits.count(&transaction);
        for event in std::mem::take(&mut applied.events) {
            self.fire(event, transaction.zxid, outbox);
        }
        match transaction.body {
            Body::CreateSession { timeout_ms, .. } => self.expiry.begin(transaction.session, timeout_ms, self.steady_ms),
            Body::CloseSession { .. } => {
                self.expiry.end(transaction.session);
                self.owners.remove(&transaction.session);
            }
            Body::Changes(_) | Body::Failed { .. } => {}
        }
        if self.role == Role::Leading {
            outbox.ordered.push(Ordered { source: self.source, body: OrderedBody::Transaction(transaction.clone()) });
        } else {
            outbox.transactions.push(transaction.clone());
        }
        Ok(Committed { transaction, applied })
    }

    pub(crate) fn fire(&mut self, event: Event, zxid: i64, outbox: &mut Outbox) {
        let watchers = self.watches.fire(event.kind, &event.path);
        if watchers.is_empty() {
            return;
        }
        self.work.nodes = self.work.nodes.saturating_add(watchers.len() + acl::lines_beside_one(&event.acl));
        let lines = acl::Lines::parse(&event.acl);
        for connection in watchers {
            if self.connections.get(&connection).is_some_and(|known| lines.may_read(&known.identities)) {
                self.tell(connection, event.kind, &event.path, zxid, outbox);
            }
        }
    }

    pub(crate) fn tell(&mut self, connection: ConnectionId, kind: EventKind, path: &str, zxid: i64, outbox: &mut Outbox) {
        let event = WatchedEvent { kind, path: path.to_owned() };
        self.put(connection, &Reply { xid: jute::EVENT_XID, zxid, answer: Ok(Answer::Event(event)) }, outbox);
    }

    pub(crate) fn reply(&mut self, connection: ConnectionId, xid: i32, answer: Result<Answer, ErrorCode>, outbox: &mut Outbox) {
        let zxid = self.state.zxid;
        self.put(connection, &Reply { xid, zxid, answer }, outbox);
    }

    fn put(&mut self, connection: ConnectionId, reply: &Reply, outbox: &mut Outbox) {
        if let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_closing) {
            known.sent += 1;
            let bytes = outbox.bytes.entry(connection).or_default();
            let before = bytes.len();
            reply.encode_frame(bytes);
            self.work.answer_bytes += bytes.len() - before;
            self.statistics.on_sent(bytes.len() - before);
        }
    }

    /// Sends a frame's body.
    fn send(&mut self, connection: ConnectionId, outbox: &mut Outbox, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut body = Vec::new();
        encode(&mut body);
        Writer::new(outbox.bytes.entry(connection).or_default()).buffer(Some(&body));
    }

    fn on_tick(&mut self, now: Now, outbox: &mut Outbox) -> Result<(), Corruption> {
        for _ in 0..EXPIRED_AT_ONCE_MAX {
            let Some(session) = self.expiry.next_expired(now.steady_ms) else { break };
            self.statistics.expired += 1;
            let origin = Origin { session, xid: 0, identities: &[], time_ms: now.wall_ms };
            self.commit(Proposal::CloseSession, origin, outbox)?;
            if let Some(connection) = self.by_session.remove(&session) {
                self.close(connection, outbox);
            }
            // One ends in each turn, however much that had to do already; the others are overdue, and end in the next ones.
            if self.work.is_enough() {
                break;
            }
        }
        if now.steady_ms >= self.reap_at_ms {
            // Where there are more, they do not wait for as long.
            let parts = if self.reap(now, outbox)? < REAPED_MAX { 1 } else { REAP_PARTS };
            self.reap_at_ms = now.steady_ms + self.settings.reap_every_ms / parts;
        }
        Ok(())
    }

    /// Deletes containers that have lost all children, and nodes without children that are past their time: so many of them, as it gives.
    fn reap(&mut self, now: Now, outbox: &mut Outbox) -> Result<usize, Corruption> {
        let is_over = |path: &str| {
            self.state.nodes.get(path).is_some_and(|node| match Lifetime::of_owner(node.stat.owner) {
                _ if node.children.len() > 0 => false,
                // One that never had a child may be about to get one.
                Lifetime::Container => node.stat.cversion > 0,
                Lifetime::Ttl(ttl_ms) => now.wall_ms - node.stat.mtime > ttl_ms,
                Lifetime::Persistent | Lifetime::Session(_) => false,
            })
        };
        let over = self.state.mortal.iter().filter(|path| is_over(path)).take(REAPED_MAX);
        let paths: Vec<String> = over.map(|path| path.to_string()).collect();
        let count = paths.len();
        for path in paths {
            let origin = Origin { session: 0, xid: 0, identities: &[], time_ms: now.wall_ms };
            self.commit(Proposal::Reap { path }, origin, outbox)?;
        }
        Ok(count)
    }
}
