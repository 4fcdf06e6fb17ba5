//! The node loop's handle of an open connection: it queues frames and closes the connection.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crypto::{Compress, PeerVersions};
use mutants::{Mutant, broken};
use tokio::sync::Notify;
use types::{ClientId, Party, Session};

use crate::frame::{FrameError, Frames};
use crate::injected_latency::{DelayLine, DelayedFrames, Delays, Distance};
use crate::limits::Limits;
use crate::member::Member;
use crate::metrics::Shell;

/// How much memory an idle connection keeps for the next frames to send; and what waits with so many bytes is not made longer.
const KEEP_BYTES: usize = 256 << 10;
/// While an eighth of what may wait on all connections does, a client has to read when so much waits for it on one.
const UNREAD_CROWDED_BYTES: usize = 1 << 20;

/// Why a connection was closed or refused.
#[derive(Clone, Debug)]
pub(crate) enum CloseReason {
    /// The TLS handshake failed.
    Handshake(String),
    /// The TLS handshake or the greeting took too long.
    GreetingTimeout,
    /// Too many unauthenticated connections were open.
    TooManyUnauthenticated,
    /// The dialler showed no certificate.
    NoCertificate,
    /// The dialler's key is not in the cluster.
    UnknownKey,
    /// The dialler means another cluster.
    WrongCluster,
    /// The dialler knows the cluster otherwise, so that the two cannot understand each other.
    WrongConfiguration,
    /// The dialler is not what it says it is.
    WrongRole,
    /// Its client, or all clients together, have as many connections as they may have.
    TooManyConnections,
    /// The first frame is not a greeting.
    Greeting(FrameError),
    /// A frame was malformed.
    Frame(FrameError),
    /// A message with a bad signature, or too many that are bad otherwise.
    Rejections,
    /// Its member sent what no correct member sends, on this connection before or on another.
    Expelled,
    /// The peer does not read what it is sent.
    NotReading,
    /// A frame takes too long to come.
    SlowFrame,
    /// Nothing was heard for too long.
    Silent,
    /// The peer ended it between two frames.
    Ended,
    /// The peer ended it inside a frame.
    Cut,
    /// The system reported an error.
    Broken(std::io::ErrorKind),
    /// The operators took its owner out of the cluster, or gave it another key.
    Removed,
    /// The same party connected again, or another client needed the place that this one's client had beyond its part.
    Replaced,
    /// This node is stopping.
    Stopping,
}

impl CloseReason {
    /// A short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Handshake(_) => "handshake",
            Self::GreetingTimeout => "greeting_timeout",
            Self::TooManyUnauthenticated => "too_many_unauthenticated",
            Self::NoCertificate => "no_certificate",
            Self::UnknownKey => "unknown_key",
            Self::WrongCluster => "wrong_cluster",
            Self::WrongConfiguration => "wrong_configuration",
            Self::WrongRole => "wrong_role",
            Self::TooManyConnections => "too_many_connections",
            Self::Greeting(_) => "greeting",
            Self::Frame(error) => error.label(),
            Self::Rejections => "rejections",
            Self::Expelled => "expelled",
            Self::NotReading => "not_reading",
            Self::SlowFrame => "slow_frame",
            Self::Silent => "silent",
            Self::Ended => "ended",
            Self::Cut => "cut",
            Self::Broken(_) => "broken",
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Stopping => "stopping",
        }
    }
}

impl CloseReason {
    /// Whether no correct member gives this reason, whatever the network does.
    pub fn is_misbehavior(&self) -> bool {
        matches!(self, Self::Frame(_) | Self::Rejections)
    }

    /// Whether what came before it is not taken in any more. Of all others the last words count: a client may say them and go.
    fn discards(&self) -> bool {
        matches!(self, Self::NotReading | Self::Expelled) || (matches!(self, Self::Removed) && !broken(Mutant::RevokedHeard))
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handshake(error) => write!(formatter, "the TLS handshake failed: {error}"),
            Self::GreetingTimeout => formatter.write_str("the handshake or the greeting took too long"),
            Self::TooManyUnauthenticated => formatter.write_str("too many connections of unknown owner are open"),
            Self::NoCertificate => formatter.write_str("it showed no certificate"),
            Self::UnknownKey => formatter.write_str("its key is not in the cluster"),
            Self::WrongCluster => formatter.write_str("it means another cluster"),
            Self::WrongConfiguration => formatter.write_str("its cluster.toml differs from this one"),
            Self::WrongRole => formatter.write_str("it is not what it says it is"),
            Self::TooManyConnections => formatter.write_str("as many connections are open as there may be"),
            Self::Greeting(error) => write!(formatter, "its greeting is malformed: {error}"),
            Self::Frame(error) => write!(formatter, "it sent what cannot be understood: {error}"),
            Self::Rejections => formatter.write_str("it sent a bad signature, or too many messages that are bad otherwise"),
            Self::Expelled => formatter.write_str("its owner is refused for a while, having sent what no correct member sends"),
            Self::NotReading => formatter.write_str("it does not read what it is sent"),
            Self::SlowFrame => formatter.write_str("it takes too long to send a frame that it has begun"),
            Self::Silent => formatter.write_str("nothing was heard of it for too long"),
            Self::Ended => formatter.write_str("it ended the connection"),
            Self::Cut => formatter.write_str("it ended the connection inside a frame"),
            Self::Broken(kind) => write!(formatter, "the connection broke: {kind}"),
            Self::Removed => formatter.write_str("a new configuration took its owner out, or gave it another key"),
            Self::Replaced => formatter.write_str("a newer connection took its place"),
            Self::Stopping => formatter.write_str("this node is stopping"),
        }
    }
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Link {
    party: Party,
    serial: u64,
    opened: Instant,
    /// Milliseconds after `opened` at which the peer last sent something; `u64::MAX` while this node does not read.
    heard_ms: AtomicU64,
    outgoing: Mutex<Outgoing>,
    closing: Notify,
    limits: Arc<Limits>,
    shell: Arc<Shell>,
    /// How many bytes wait to be written, those included that are being written.
    unread: AtomicUsize,
    /// The same over all links.
    total: Arc<AtomicUsize>,
    /// How many bytes of configurations wait to be written over all links.
    handing: Arc<AtomicUsize>,
    /// Whether the node loop holds back what came over it.
    holds_back: AtomicBool,
    /// Whether what came over it is not worth an answer any more.
    is_discarded: AtomicBool,
    /// Told when the peer has read enough.
    drained: Notify,
    /// Injected latency, where there is any.
    hold: Option<DelayLine>,
    /// What is known of the configurations that its peer has.
    peer: Mutex<PeerVersions>,
}

/// Frames that are written together.
#[derive(Debug, Default)]
struct Batch {
    frames: Frames,
    /// How many bytes of configurations these include.
    handing: usize,
}

#[derive(Debug, Default)]
struct Outgoing {
    /// What goes before `last`.
    full: VecDeque<Batch>,
    full_bytes: usize,
    /// What the next message joins.
    last: Batch,
    /// What is not due yet, where there is distance.
    held: DelayedFrames,
    /// How many bytes the writer has taken and not written, and how many of these are of configurations.
    writing: usize,
    handing_writing: usize,
    writer: Option<Waker>,
    /// No more frames are accepted; the connection ends, for this reason, when the queued ones are written.
    finishing: Option<CloseReason>,
    close_reason: Option<CloseReason>,
}

impl Outgoing {
    /// How many bytes are queued or being written.
    fn waiting_bytes(&self) -> usize {
        self.full_bytes + self.last.frames.bytes().len() + self.held.bytes() + self.writing
    }

    /// The batch that the next message joins. One that is long is not made longer: that would copy it, and take twice its memory meanwhile.
    fn batch(&mut self) -> &mut Batch {
        let bytes = self.last.frames.bytes().len();
        if bytes >= KEEP_BYTES {
            self.full_bytes += bytes;
            self.full.push_back(std::mem::take(&mut self.last));
        }
        &mut self.last
    }

    /// The batch to be written next, if there is any.
    fn take_batch(&mut self) -> Option<Batch> {
        let Some(batch) = self.full.pop_front() else {
            return (!self.last.frames.bytes().is_empty()).then(|| std::mem::take(&mut self.last));
        };
        self.full_bytes -= batch.frames.bytes().len();
        Some(batch)
    }
}

/// What a writer is to do.
#[derive(Debug)]
pub(crate) enum Next {
    /// Write the given frames, behind which more wait or nothing does.
    Write {
        /// Whether nothing does.
        is_last: bool,
    },
    /// Shut down, for this reason: everything is written.
    Finish(CloseReason),
}

impl Link {
    /// Queues all `messages` in one push. When the queue is full, the peer does not read, and the connection is closed: the rest is not
    /// even encoded. Says how many bytes wait now on all links.
    pub fn send<'a, W: Compress + 'a>(&self, mut messages: impl Iterator<Item = &'a W>) -> usize {
        let mut guard = self.lock();
        let outgoing = &mut *guard;
        if outgoing.close_reason.is_some() || outgoing.finishing.is_some() {
            self.shell.count_unsent("closed", messages.count() as u64);
            return self.total.load(Ordering::Relaxed);
        }
        let room = self.limits.outgoing_bytes_max.saturating_sub(outgoing.waiting_bytes());
        let due = self.hold.as_ref().map(|hold| hold.due(Instant::now()));
        let mut added = 0;
        if let Some(due) = due {
            let frames = outgoing.held.push(due);
            while added <= room
                && let Some(message) = messages.next()
            {
                added += self.add(frames, message);
            }
            outgoing.held.grown(added);
        } else {
            while added <= room
                && let Some(message) = messages.next()
            {
                added += self.add(&mut outgoing.batch().frames, message);
            }
        }
        let total = self.queued(added);
        let writer = outgoing.writer.take();
        let first_due = outgoing.held.due();
        drop(guard);
        if added > room {
            self.close(CloseReason::NotReading);
            self.shell.count_unsent("closed", messages.count() as u64);
        } else if let Some(writer) = writer {
            match (&self.hold, first_due) {
                (Some(hold), Some(due)) => hold.wake_at(due, writer),
                _ => writer.wake(),
            }
        }
        total
    }

    /// Adds `message` to `frames`, if it fits into any frame, and says how many bytes it takes there.
    fn add(&self, frames: &mut Frames, message: &impl Compress) -> usize {
        let before = frames.bytes().len();
        if !frames.add(message) {
            tracing::error!(party = %self.party, "a message of our own is too long for any frame and is not sent");
            self.shell.count_unsent("too_long", 1);
        }
        frames.bytes().len() - before
    }

    /// Queues what is told of configurations: an encoded [`Control`](crate::changes::Control).
    pub fn send_control(&self, control: &[u8]) {
        self.queue_control(control, 0);
    }

    /// The same of a whole configuration, of which it is counted how many bytes wait on all links.
    pub fn send_configuration(&self, control: &[u8]) {
        self.queue_control(control, control.len());
    }

    fn queue_control(&self, control: &[u8], counted: usize) {
        let mut guard = self.lock();
        let outgoing = &mut *guard;
        if outgoing.close_reason.is_some() || outgoing.finishing.is_some() {
            return;
        }
        let due = self.hold.as_ref().map(|hold| hold.due(Instant::now()));
        outgoing.batch().handing += counted;
        let frames = match due {
            None => &mut outgoing.last.frames,
            Some(due) => outgoing.held.push(due),
        };
        let before = frames.bytes().len();
        frames.add_control(control);
        self.handing.fetch_add(counted, Ordering::SeqCst);
        let added = frames.bytes().len() - before;
        if due.is_some() {
            outgoing.held.grown(added);
        }
        self.queued(added);
        let writer = outgoing.writer.take();
        let first_due = outgoing.held.due();
        drop(guard);
        if let Some(writer) = writer {
            match (&self.hold, first_due) {
                (Some(hold), Some(due)) => hold.wake_at(due, writer),
                _ => writer.wake(),
            }
        }
    }

    /// How many bytes of configurations wait to be written to its peer, those included that are being written.
    pub fn handing_bytes(&self) -> usize {
        let outgoing = self.lock();
        let waiting = outgoing.full.iter().chain([&outgoing.last]);
        waiting.map(|batch| batch.handing).sum::<usize>() + outgoing.handing_writing
    }

    /// What is known of the configurations that its peer has.
    pub fn peer(&self) -> MutexGuard<'_, PeerVersions> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to which version its peer has them.
    pub fn version(&self) -> u64 {
        self.peer().known()
    }

    /// Queues a heartbeat, unless something is queued already.
    pub fn send_heartbeat(&self) {
        let mut outgoing = self.lock();
        if outgoing.waiting_bytes() == 0 && outgoing.finishing.is_none() && outgoing.close_reason.is_none() {
            outgoing.last.frames.add_heartbeat();
            self.queued(outgoing.last.frames.bytes().len());
        }
    }

    /// For the writer, which has written its `frames`: swaps them for what is queued, or for the first part of that if it is much.
    pub fn poll_next(&self, context: &Context<'_>, frames: &mut Frames) -> Poll<Next> {
        // Also when nothing is queued: an idle connection must not keep the memory of the most that it ever had to send.
        frames.clear(KEEP_BYTES);
        let mut guard = self.lock();
        let outgoing = &mut *guard;
        self.unqueued(std::mem::take(&mut outgoing.writing));
        self.handing.fetch_sub(std::mem::take(&mut outgoing.handing_writing), Ordering::SeqCst);
        if self.hold.is_some() {
            outgoing.held.take_due(Instant::now(), &mut outgoing.last.frames);
        }
        if let Some(batch) = outgoing.take_batch() {
            // The memory of what was written is for what comes next, where nothing has yet.
            let written = std::mem::replace(frames, batch.frames);
            if outgoing.last.frames.bytes().is_empty() {
                outgoing.last.frames = written;
            }
            frames.finish();
            (outgoing.writing, outgoing.handing_writing) = (frames.bytes().len(), batch.handing);
            let is_last = outgoing.full.is_empty() && outgoing.last.frames.bytes().is_empty();
            return Poll::Ready(Next::Write { is_last });
        }
        if let (Some(hold), Some(due)) = (&self.hold, outgoing.held.due()) {
            // Nothing that is pushed meanwhile is due earlier.
            hold.wake_at(due, context.waker().clone());
            return Poll::Pending;
        }
        if let Some(reason) = &outgoing.finishing {
            return Poll::Ready(Next::Finish(reason.clone()));
        }
        outgoing.writer = Some(context.waker().clone());
        Poll::Pending
    }

    /// Notes that the writer has written so many more bytes of its frames.
    pub fn wrote(&self, bytes: usize) {
        let mut outgoing = self.lock();
        let bytes = bytes.min(outgoing.writing);
        outgoing.writing -= bytes;
        self.unqueued(bytes);
    }

    /// Lets the writer finish what is queued, then ends the connection for `reason`. The first reason counts.
    pub fn finish(&self, reason: CloseReason) {
        let mut outgoing = self.lock();
        self.is_discarded.fetch_or(reason.discards(), Ordering::SeqCst);
        outgoing.finishing.get_or_insert(reason);
        if let Some(writer) = outgoing.writer.take() {
            writer.wake();
        }
    }

    /// Whether more may be queued.
    pub fn is_open(&self) -> bool {
        let outgoing = self.lock();
        outgoing.close_reason.is_none() && outgoing.finishing.is_none()
    }

    /// Closes the connection at once. The first reason counts, also that for which it was [finishing](Self::finish).
    pub fn close(&self, close_reason: CloseReason) {
        let mut outgoing = self.lock();
        if outgoing.close_reason.is_some() {
            return;
        }
        let close_reason = outgoing.finishing.clone().unwrap_or(close_reason);
        self.is_discarded.fetch_or(close_reason.discards(), Ordering::SeqCst);
        outgoing.close_reason = Some(close_reason);
        self.unqueued(outgoing.waiting_bytes());
        let waiting = || outgoing.full.iter().chain([&outgoing.last]);
        let unsent = waiting().map(|batch| batch.frames.messages()).sum::<u64>() + outgoing.held.messages();
        let handing = waiting().map(|batch| batch.handing).sum::<usize>() + outgoing.handing_writing;
        self.handing.fetch_sub(handing, Ordering::SeqCst);
        (outgoing.full, outgoing.last, outgoing.held) = (VecDeque::new(), Batch::default(), DelayedFrames::default());
        (outgoing.full_bytes, outgoing.writing, outgoing.handing_writing) = (0, 0, 0);
        drop(outgoing);
        if unsent > 0 {
            self.shell.count_unsent("closed", unsent);
        }
        self.closing.notify_waiters();
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> CloseReason {
        let mut notified = pin!(self.closing.notified());
        loop {
            // Registered before looking, so that no notice is missed in between.
            notified.as_mut().enable();
            if let Some(close_reason) = self.lock().close_reason.clone() {
                return close_reason;
            }
            notified.as_mut().await;
            notified.set(self.closing.notified());
        }
    }

    /// Notes that the peer was heard.
    pub fn heard(&self) {
        self.heard_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Pauses the silence timer while this node does not read from the peer.
    pub fn pause_silence(&self) {
        self.heard_ms.store(u64::MAX, Ordering::Relaxed);
    }

    /// For how long it has been open.
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// For how long the peer has been silent while we listened.
    pub fn silent_for_ms(&self) -> u64 {
        self.age_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    /// Who is at the other end.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Whether a client has to read before it is answered anything more. Of two replicas each would wait for the other, so they are not
    /// held back.
    pub fn is_backed_up(&self) -> bool {
        let unread = self.unread.load(Ordering::SeqCst);
        let is_crowded = || self.total.load(Ordering::Relaxed) >= self.limits.outgoing_total_bytes_max / 8;
        matches!(self.party, Party::Client(..))
            && (unread >= self.limits.unread_bytes_max || (unread >= UNREAD_CROWDED_BYTES && is_crowded()))
    }

    /// For the node loop: whether it is to hold back what came over this connection. It is told when that changes ([`Link::release`]).
    pub fn holds_back(&self) -> bool {
        if !self.is_backed_up() {
            return false;
        }
        self.holds_back.store(true, Ordering::SeqCst);
        // The writer may have looked just before; then nobody would tell.
        self.is_backed_up() || !self.holds_back.swap(false, Ordering::SeqCst)
    }

    /// For the node loop: whether to drop what came over this connection, whose peer did not read, or whose owner was expelled. What it
    /// asked for is often far more than it sent.
    pub fn is_discarded(&self) -> bool {
        self.is_discarded.load(Ordering::SeqCst)
    }

    /// For the writer, which has written something: lets the reader go on when the peer has read enough. `true` when the node loop is to
    /// be told too.
    pub fn release(&self) -> bool {
        if self.is_backed_up() {
            return false;
        }
        self.drained.notify_one();
        self.holds_back.load(Ordering::SeqCst) && self.holds_back.swap(false, Ordering::SeqCst)
    }

    /// For the reader: waits until the peer has read enough.
    pub async fn drained(&self) {
        while self.is_backed_up() {
            self.pause_silence();
            self.drained.notified().await;
            self.heard();
        }
    }

    /// Counts bytes that wait now; returns how many wait over all links.
    fn queued(&self, bytes: usize) -> usize {
        self.shell.outgoing_bytes.inc_by(signed(bytes));
        self.unread.fetch_add(bytes, Ordering::SeqCst);
        self.total.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    fn unqueued(&self, bytes: usize) {
        self.shell.outgoing_bytes.dec_by(signed(bytes));
        self.unread.fetch_sub(bytes, Ordering::SeqCst);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A panic in an encoder may leave half a message behind, but then the node loop is gone and nothing more is sent.
    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The open connections, at most one a party.
#[derive(Debug)]
pub(crate) struct Links {
    state: RwLock<LinksState>,
    limits: Arc<Limits>,
    shell: Arc<Shell>,
    total: Arc<AtomicUsize>,
    handing: Arc<AtomicUsize>,
    /// Injected latency, where there are any.
    distance: Option<Distance>,
}

#[derive(Debug, Default)]
struct LinksState {
    open: BTreeMap<Party, Arc<Link>>,
    opened: u64,
    closed: bool,
}

impl Links {
    pub fn new(limits: Limits, shell: Arc<Shell>) -> Self {
        Self { state: RwLock::default(), limits: Arc::new(limits), shell, total: Arc::default(), handing: Arc::default(), distance: None }
    }

    /// The same, with everybody as far away as `delays` says.
    pub fn with_delays(self, delays: Delays) -> std::io::Result<Self> {
        Ok(Self { distance: Some(Distance::new(delays)?), ..self })
    }

    /// Registers a new connection to `party` and closes an older one, since a peer that dials again has lost it. Replicas always have a
    /// place; clients have those that [`Limits`] gives them.
    ///
    /// # Errors
    /// [`NotOpened`], when the node is stopping or there is no place.
    pub fn open(self: &Arc<Self>, party: Party) -> Result<OpenLink, NotOpened> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(NotOpened::Stopping);
        }
        if let Party::Client(client, _) = party
            && !state.open.contains_key(&party)
        {
            self.make_place(&mut state, client)?;
        }
        state.opened += 1;
        let link = Arc::new(Link {
            party,
            serial: state.opened,
            opened: Instant::now(),
            heard_ms: AtomicU64::new(0),
            outgoing: Mutex::default(),
            closing: Notify::new(),
            limits: Arc::clone(&self.limits),
            shell: Arc::clone(&self.shell),
            unread: AtomicUsize::new(0),
            total: Arc::clone(&self.total),
            handing: Arc::clone(&self.handing),
            holds_back: AtomicBool::new(false),
            is_discarded: AtomicBool::new(false),
            drained: Notify::new(),
            hold: self.distance.as_ref().and_then(|distance| distance.hold(party)),
            peer: Mutex::default(),
        });
        let replaced = state.open.insert(party, Arc::clone(&link));
        if let Some(replaced) = replaced {
            replaced.close(CloseReason::Replaced);
        }
        self.shell.connections.set(signed(state.open.len()));
        self.shell.connections_opened.inc();
        Ok(OpenLink { links: Arc::clone(self), link })
    }

    /// Makes sure that `client` may have one more connection. Where all clients together have as many as they may, the one that has the
    /// most gives one to a client that has fewer.
    fn make_place(&self, state: &mut LinksState, client: ClientId) -> Result<(), NotOpened> {
        let all = Party::Client(client, Session(0))..=Party::Client(client, Session(u64::MAX));
        let own = state.open.range(all).count();
        if own >= self.limits.client_connections_max {
            return Err(NotOpened::ClientFull { client, max: self.limits.client_connections_max });
        }
        if state.open.len() < self.limits.clients_connections_max {
            return Ok(());
        }
        let mut clients: BTreeMap<ClientId, (usize, u64, Party)> = BTreeMap::new();
        for (party, link) in &state.open {
            if let Party::Client(client, _) = party {
                let (count, oldest, of) = clients.entry(*client).or_insert((0, link.serial, *party));
                *count += 1;
                if link.serial < *oldest {
                    (*oldest, *of) = (link.serial, *party);
                }
            }
        }
        if clients.values().map(|(count, ..)| count).sum::<usize>() < self.limits.clients_connections_max {
            return Ok(());
        }
        match clients.into_values().max_by_key(|(count, ..)| *count) {
            Some((most, _, party)) if most > own + 1 => {
                if let Some(link) = state.open.remove(&party) {
                    link.close(CloseReason::Replaced);
                }
                Ok(())
            }
            _ => Err(NotOpened::ClientsFull { max: self.limits.clients_connections_max }),
        }
    }

    /// Removes `link`, unless a newer one has replaced it.
    fn forget(&self, link: &Link) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.open.get(&link.party).is_some_and(|open| open.serial == link.serial) {
            state.open.remove(&link.party);
        }
        self.shell.connections.set(signed(state.open.len()));
    }

    /// How many bytes of configurations wait to be written.
    pub fn handing_bytes(&self) -> usize {
        self.handing.load(Ordering::SeqCst)
    }

    /// All that are open.
    pub fn all(&self) -> Vec<Arc<Link>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).open.values().cloned().collect()
    }

    /// The connection to `party`, if one is open.
    pub fn get(&self, party: Party) -> Option<Arc<Link>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).open.get(&party).cloned()
    }

    /// Queues `messages`, all of them for `party`, which may not be connected: then they are lost, as on any network.
    pub fn send<'a, W: Compress + 'a>(&self, party: Party, messages: impl Iterator<Item = &'a W>) {
        match self.get(party) {
            Some(link) => {
                if link.send(messages) > self.limits.outgoing_total_bytes_max {
                    self.close_greediest();
                }
            }
            None => self.shell.count_unsent("not_connected", messages.count() as u64),
        }
    }

    /// More waits to be written than all may have together: closes connections of the members for whom the most waits, until it fits.
    /// All connections of a client count as one. So those who read are not closed for others who do not.
    fn close_greediest(&self) {
        while self.total.load(Ordering::Relaxed) > self.limits.outgoing_total_bytes_max {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let mut waiting: BTreeMap<Member, (usize, usize, &Arc<Link>)> = BTreeMap::new();
            for (party, link) in &state.open {
                let bytes = link.lock().waiting_bytes();
                let (sum, most, greediest) = waiting.entry((*party).into()).or_insert((0, bytes, link));
                *sum += bytes;
                if bytes > *most {
                    (*most, *greediest) = (bytes, link);
                }
            }
            // What waits may have been written meanwhile, or be on connections that are closed already.
            let Some((_, 1.., link)) = waiting.into_values().max_by_key(|(sum, ..)| *sum) else { return };
            link.close(CloseReason::NotReading);
        }
    }

    /// Closes all connections of `member`, which has misbehaved on one of them.
    pub fn expel(&self, member: Member) {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        for (party, link) in &state.open {
            if Member::from(*party) == member {
                link.close(CloseReason::Expelled);
            }
        }
    }

    /// Opens no more, and returns what is open.
    pub fn stop_opening(&self) -> Vec<Arc<Link>> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.open.values().cloned().collect()
    }

    /// Opens no more, and ends what is open.
    pub fn close_all(&self) {
        for link in self.stop_opening() {
            link.close(CloseReason::Stopping);
        }
    }
}

/// Why a connection has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOpened {
    /// The node is stopping.
    #[error("this node is stopping")]
    Stopping,
    /// The client has as many as it may have.
    #[error("client {client} has {max} connections open here, as many as a client may have: close some, or share one among more callers")]
    ClientFull { client: ClientId, max: usize },
    /// All clients together have as many as they may have, and no other client has more of them.
    #[error("{max} connections of clients are open here, as many as there may be: close some, or allow this replica more open files")]
    ClientsFull { max: usize },
}

/// An open connection among [`Links`]. Dropping it takes it out.
#[derive(Debug)]
pub(crate) struct OpenLink {
    links: Arc<Links>,
    link: Arc<Link>,
}

impl OpenLink {
    pub fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        // One that was never run has no reason yet, and what was queued for it must not stay counted.
        self.link.close(CloseReason::Ended);
        self.links.forget(&self.link);
    }
}

#[cfg(test)]
mod tests {
    use types::codec::{Decode, DecodeError, Encode, Reader};

    use super::*;
    use crate::frame::tests::Number;
    use crate::metrics::Metrics;

    fn party(session: u64) -> Party {
        Party::Client(ClientId(1), Session(session))
    }

    /// Whether the link has been ended, and why.
    fn close_reason(link: &Link) -> Option<&'static str> {
        link.lock().close_reason.as_ref().map(CloseReason::label)
    }

    /// A megabyte that counts how often it is encoded.
    struct Megabyte(Arc<AtomicUsize>);

    impl Encode for Megabyte {
        fn encode(&self, out: &mut Vec<u8>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            out.resize(out.len() + (1 << 20), 0);
        }
    }

    impl Decode for Megabyte {
        fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
            Err(DecodeError::UnknownTag("nobody reads it"))
        }
    }

    impl Compress for Megabyte {}

    #[test]
    fn what_is_over_the_limit_of_a_connection_is_not_encoded() {
        let limits = Limits { outgoing_bytes_max: 4 << 20, ..Limits::default() };
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(limits, Arc::clone(&metrics.shell)));
        let open = links.open(party(1)).expect("it is open");
        let link = open.link();
        let encoded = Arc::new(AtomicUsize::new(0));
        let turn: Vec<Megabyte> = (0..1_000).map(|_| Megabyte(Arc::clone(&encoded))).collect();
        links.send(party(1), turn.iter());
        assert_eq!((encoded.load(Ordering::Relaxed), close_reason(&link)), (4, Some("not_reading")));
        assert_eq!((metrics.unsent("closed"), metrics.shell.outgoing_bytes.get()), (1_000, 0));
    }

    #[test]
    fn what_the_writer_has_taken_still_counts() {
        let limits = Limits { outgoing_bytes_max: 5 << 20, ..Limits::default() };
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(limits, Arc::clone(&metrics.shell)));
        let open = links.open(party(1)).expect("it is open");
        let link = open.link();
        let (large, mut frames) = (Number(1, 2 << 20), Frames::default());
        let mut poll_next = || link.poll_next(&Context::from_waker(Waker::noop()), &mut frames).is_ready();
        for _ in 0..2 {
            links.send(party(1), [large].iter());
            assert!(poll_next(), "the writer takes it, having written the one before");
        }
        link.wrote(1 << 20);
        links.send(party(1), [large].iter());
        assert_eq!(close_reason(&link), None);
        links.send(party(1), [large].iter());
        assert_eq!(close_reason(&link), Some("not_reading"));
        link.wrote(1 << 20);
        assert_eq!((metrics.shell.outgoing_bytes.get(), links.total.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn what_waits_and_is_long_is_written_as_it_is() {
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&metrics.shell)));
        let link = |session| links.open(party(session)).expect("it is open");
        let send = |link: &Link, sizes: &[usize]| sizes.iter().for_each(|size| _ = link.send([Number(1, *size)].iter()));
        let open = link(1);
        let sizes = [100, 1 << 20, 100, 3 << 20, 2 << 20];
        send(&open.link(), &sizes);
        let (mut frames, mut written) = (Frames::default(), Vec::new());
        while let Poll::Ready(Next::Write { is_last }) = open.link().poll_next(&Context::from_waker(Waker::noop()), &mut frames) {
            written.push((frames.messages(), is_last));
        }
        assert_eq!(written, [(2, false), (2, false), (1, true)], "none is copied for the sake of the next");
        assert_eq!(metrics.shell.outgoing_bytes.get(), 0);
        let open = link(2);
        send(&open.link(), &sizes);
        open.link().close(CloseReason::Silent);
        assert_eq!((metrics.unsent("closed"), metrics.shell.outgoing_bytes.get()), (5, 0));
    }

    #[test]
    fn who_was_taken_out_is_told_so_and_what_it_sent_is_dropped() {
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&Metrics::default().shell)));
        let open = [party(1), party(2)].map(|party| links.open(party).expect("it is open"));
        let [removed, other] = open.each_ref().map(OpenLink::link);
        links.send(party(1), [Number(1, 100)].iter());
        removed.finish(CloseReason::Removed);
        removed.finish(CloseReason::Stopping);
        other.finish(CloseReason::Stopping);
        assert!(removed.is_discarded() && !other.is_discarded());
        let mut frames = Frames::default();
        let mut next = || removed.poll_next(&Context::from_waker(Waker::noop()), &mut frames);
        assert!(matches!(next(), Poll::Ready(Next::Write { is_last: true })), "it still hears what is queued");
        assert!(matches!(next(), Poll::Ready(Next::Finish(CloseReason::Removed))));
        removed.close(CloseReason::Ended);
        assert_eq!(close_reason(&removed), Some("removed"), "its peer only ends what was finished");
    }

    #[test]
    fn beyond_the_total_the_client_for_whom_the_most_waits_loses_a_connection() {
        let limits = Limits { outgoing_total_bytes_max: 5 << 20, ..Limits::default() };
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(limits, Arc::clone(&metrics.shell)));
        let other = Party::Client(ClientId(2), Session(1));
        let open = [party(1), party(2), other].map(|party| links.open(party).expect("it is open"));
        let [one, two, modest] = open.each_ref().map(OpenLink::link);
        let greedy = [one, two];
        let megabyte = Number(1, 1 << 20);
        links.send(party(1), [megabyte].iter());
        links.send(party(2), [megabyte; 2].iter());
        assert_eq!(greedy.each_ref().map(|link| close_reason(link)), [None, None]);
        links.send(other, [megabyte; 2].iter());
        assert_eq!(greedy.each_ref().map(|link| close_reason(link)), [None, Some("not_reading")]);
        assert_eq!(close_reason(&modest), None);
        assert_eq!(metrics.shell.outgoing_bytes.get(), signed(links.total.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_newer_connection_of_the_same_party_takes_the_older_ones_place() {
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&metrics.shell)));
        let older = links.open(party(1)).expect("it is open");
        let newer = links.open(party(1)).expect("it is open");
        assert_eq!((close_reason(&older.link()), close_reason(&newer.link())), (Some("replaced"), None));
        // The older one's end must not take the newer one away.
        drop(older);
        assert!(links.get(party(1)).is_some());
        drop(newer);
        assert!(links.get(party(1)).is_none());
        links.close_all();
        assert_eq!(links.open(party(1)).err(), Some(NotOpened::Stopping));
    }
}
