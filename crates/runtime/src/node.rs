//! The node loop: where a machine meets the world.
//!
//! ```text
//!   connections ──┐                                            ┌── connections
//!                 ├─► mailbox ─► step, step, … ─► persist ─► sign ─► send
//!   commands ─────┘              (one turn)      (one write) (one root)   └─► events
//! ```
//!
//! A turn ([`machine::turn`], where the law is kept) takes everything that has arrived, steps through it, makes it durable
//! with one write, signs one root over what is to be signed, and only then lets anything out. Under load a turn is large
//! and its costs are shared; at rest it is one message long and nothing waits. When the write fails the node stops: it
//! says nothing that it might not remember.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crypto::{SignedConfiguration, Verified, Verifier};
pub use machine::Durable;
use machine::turn::{Bounds, Signer, Turns};
use machine::{Machine, Time};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use types::{ClientId, Cluster, ReplicaId};

use crate::alarm::Alarm;
use crate::changes::{ChangeOptions, Changes, NotTakenOver};
use crate::clock::{Clock, SteadyClock};
use crate::connection::{Intake, Wire};
use crate::inbox::Inbox;
use crate::injected_latency::Delays;
use crate::limits::{LOGGED_OF_ALL_A_MINUTE_MAX, Limits};
use crate::link::{CloseReason, Links};
use crate::log_limit::LogLimit;
use crate::mailbox::{Inbound, Mailbox};
use crate::metrics::Metrics;
use crate::priority::LowPriorities;
use crate::tls::{Identity, IdentityError};
use crate::transport::{PeerState, PeerStates, Transport, check_identity, dials};

/// Where the loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOn {
    /// On a thread of its own: for machines that write to disk, and would hold up the connections.
    Thread,
    /// As a task beside the connections: for machines that only compute, and for replicas that have less than a core each. Saves two thread
    /// switches a round trip.
    Task,
}

/// What a node needs beside its machine.
#[derive(Debug)]
pub struct NodeOptions {
    /// Who it is.
    pub identity: Identity,
    /// Whom it may meet.
    pub cluster: Arc<Cluster>,
    /// Checks what it hears.
    pub verifier: Arc<Verifier>,
    /// Where it listens ([`crate::listen`]); a client does not.
    pub listener: Option<TcpListener>,
    /// Where the replicas listen, each a host and a port; a host's name is looked up anew for each attempt to connect. A client dials all of them, a
    /// replica those with a smaller name than its own.
    pub replicas: BTreeMap<ReplicaId, String>,
    /// Its bounds.
    pub limits: Limits,
    /// Where the loop runs.
    pub run_on: RunOn,
    /// Where it counts.
    pub metrics: Metrics,
    /// The clock its machine goes by; an even one that starts with the wall's time when there is none.
    pub clock: Option<SteadyClock>,
    /// How far away everybody is to seem; for measuring and testing only.
    pub delays: Option<Delays>,
    /// How the cluster may change while the node runs; not at all where there is nothing.
    pub changes: Option<ChangeOptions>,
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot be who it is to be.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system gives no thread, or does not tell the listener's address.
    #[error("the system refuses what the node needs: {0}")]
    System(#[from] std::io::Error),
}

/// Why a node ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// What was written could not be made durable. Nothing after it was sent; restart the node once the disk is well.
    #[error("what was written could not be made durable, so the node stopped: {0}")]
    Persist(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The machine panicked. This is a bug.
    #[error("the node loop panicked")]
    Panicked,
    /// It had ended before, and [`Node::failed`] has said why.
    #[error("the node had ended before")]
    Over,
}

/// The node has stopped, or is stopping. The command is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped")]
pub struct Stopped<C>(pub C);

/// Why a command was not taken at once. The command is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken<C> {
    /// Too many wait already.
    #[error("too many commands wait already")]
    Busy(C),
    /// The node has stopped, or is stopping.
    #[error("the node has stopped")]
    Stopped(C),
}

/// A running node.
#[derive(Debug)]
pub struct Node<M: Machine, W> {
    handle: NodeHandle<M::Command, W>,
    local_address: Option<SocketAddr>,
    links: Arc<Links>,
    limits: Limits,
    stopping: watch::Sender<bool>,
    tasks: JoinSet<()>,
    /// `None` once it has been heard.
    ended: Option<oneshot::Receiver<Result<M, NodeError>>>,
}

/// A way to a running node from anywhere.
#[derive(Debug)]
pub struct NodeHandle<C, W> {
    mailbox: Arc<Mailbox<Inbound<C, W>>>,
    command_permits: Arc<Semaphore>,
    states: Arc<PeerStates>,
    changes: Arc<Changes>,
    metrics: Metrics,
}

impl<C, W> Clone for NodeHandle<C, W> {
    fn clone(&self) -> Self {
        Self {
            mailbox: Arc::clone(&self.mailbox),
            command_permits: Arc::clone(&self.command_permits),
            states: Arc::clone(&self.states),
            changes: Arc::clone(&self.changes),
            metrics: self.metrics.clone(),
        }
    }
}

impl<C, W> NodeHandle<C, W> {
    /// Gives the machine a command; waits while too many others wait.
    ///
    /// # Errors
    /// [`Stopped`] with the command, when the node takes no more.
    pub async fn command(&self, command: C) -> Result<(), Stopped<C>> {
        match self.command_permits.acquire().await {
            Ok(permit) => {
                // The loop gives the room back when it takes the command.
                permit.forget();
                self.push(command).map_err(Stopped)
            }
            Err(_) => Err(Stopped(command)),
        }
    }

    /// Gives the machine a command, if it can be taken at once.
    ///
    /// # Errors
    /// [`NotTaken`] with the command.
    pub fn try_command(&self, command: C) -> Result<(), NotTaken<C>> {
        match self.command_permits.try_acquire() {
            Ok(permit) => {
                permit.forget();
                self.push(command).map_err(NotTaken::Stopped)
            }
            Err(tokio::sync::TryAcquireError::NoPermits) => Err(NotTaken::Busy(command)),
            Err(tokio::sync::TryAcquireError::Closed) => Err(NotTaken::Stopped(command)),
        }
    }

    /// How it stands with each replica that the node is to be connected with.
    #[must_use]
    pub fn peers(&self) -> BTreeMap<ReplicaId, PeerState> {
        self.states.all()
    }

    /// Waits until `enough` is content with how it stands. Put a timeout around it.
    pub async fn peers_until(&self, enough: impl FnMut(&BTreeMap<ReplicaId, PeerState>) -> bool) {
        self.states.until(enough).await;
    }

    /// Takes over the next configuration, unless it is known already, and hands it to all peers that lack it. A client hands over nothing else.
    ///
    /// # Errors
    /// [`NotTakenOver`]; then nothing has changed.
    pub fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        self.changes.bring(next)
    }

    /// Up to which version each connected replica is known to have the configurations.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<ReplicaId, u64> {
        self.changes.versions()
    }

    fn push(&self, command: C) -> Result<(), C> {
        self.metrics.shell.commands_waiting.inc();
        self.mailbox.push(Inbound::Command(command)).map_err(|inbound| {
            self.metrics.shell.commands_waiting.dec();
            match inbound {
                Inbound::Command(command) => command,
                Inbound::Messages { .. } => unreachable!("a command was pushed"),
            }
        })
    }
}

/// Starts a node: its loop, its listener if it has one, and its diallers. Two functions run in the loop, and must not block: `on_written`
/// looks at the machine after each durable write, and `on_event` hears an event after what was said before it has been handed to the
/// connections, and says which client has brought a transaction of its own to its end, if one has: what that costs is not held against
/// it. `on_event` is dropped when the loop has ended, for whatever reason, and no more commands are taken. Needs a tokio runtime around it, and
/// ends with that.
///
/// # Errors
/// [`StartError`] when the identity does not fit the cluster or the system refuses.
pub fn start<W, M, S, L, E>(node_options: NodeOptions, machine: M, signer: S, on_written: L, on_event: E) -> Result<Node<M, W>, StartError>
where
    W: Wire,
    M: Durable + Machine<Received = Verified<W>, Message = W> + Send + 'static,
    M::Command: Send + 'static,
    M::Unsigned: Send,
    M::Event: Send,
    S: Signer<M::Unsigned, W> + Send + 'static,
    L: FnMut(&M) + Send + 'static,
    E: FnMut(M::Event) -> Option<ClientId> + Send + 'static,
{
    let NodeOptions { identity, cluster, verifier, listener, replicas, limits, run_on, metrics, clock, delays, changes } = node_options;
    check_identity(&identity, &cluster)?;
    let me = identity.party();
    let local_address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let mailbox = Arc::new(Mailbox::default());
    let command_permits = Arc::new(Semaphore::new(limits.commands_max));
    let shell = Arc::clone(&metrics.shell);
    let log = LogLimit::new(LOGGED_OF_ALL_A_MINUTE_MAX);
    let low_priority = Arc::new(if listener.is_some() { LowPriorities::start()? } else { LowPriorities::none() });
    let intake =
        Intake { mailbox: Arc::clone(&mailbox), verifier: Arc::clone(&verifier), limits: limits.clone(), log, shell, low_priority };
    let transport = Transport::new(identity, cluster, Arc::new(intake), delays, changes)?;
    let (finished, ended) = oneshot::channel();
    let bounds = Bounds { inputs_max: limits.turn_inputs_max, batch_max: limits.batch_max };
    let node_loop = Loop {
        verifier,
        turns: Turns::new(machine, me, bounds),
        signer,
        on_written,
        on_event,
        inbox: Inbox::new(Arc::clone(&mailbox), Arc::clone(&command_permits), metrics.clone()),
        links: Arc::clone(&transport.links),
        metrics: metrics.clone(),
        clock: clock.map_or_else(Clock::even, Clock::Steady),
    };
    match run_on {
        RunOn::Task => {
            let alarm = if listener.is_some() { Alarm::exact() } else { Alarm::default() };
            drop(tokio::spawn(async move { drop(finished.send(node_loop.run_as_task(alarm).await)) }));
        }
        RunOn::Thread => {
            let run = move || drop(finished.send(node_loop.run_on_thread()));
            drop(thread::Builder::new().name(format!("loop {me}")).spawn(run)?);
        }
    }
    let (stopping, stop) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if let Some(listener) = listener {
        tasks.spawn(Arc::clone(&transport).listen(listener, stop.clone()));
    }
    for (replica, address) in replicas {
        if dials(me, replica) {
            tasks.spawn(Arc::clone(&transport).dial(replica, address, stop.clone()));
        }
    }
    let (states, changes) = (Arc::clone(&transport.states), Arc::clone(&transport.changes));
    let handle = NodeHandle { mailbox, command_permits, states, changes, metrics };
    Ok(Node { handle, local_address, links: Arc::clone(&transport.links), limits, stopping, tasks, ended: Some(ended) })
}

impl<M: Machine, W> Node<M, W> {
    /// A way to the node that can be given away.
    #[must_use]
    pub fn handle(&self) -> NodeHandle<M::Command, W> {
        self.handle.clone()
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Waits for the end that nobody asked for. May be dropped and called again.
    pub async fn failed(&mut self) -> NodeError {
        match self.end().await {
            Err(error) => error,
            // A loop that ends well without being asked to does not exist; nothing can be said of the machine.
            Ok(_) => NodeError::Over,
        }
    }

    /// Stops gracefully: takes in nothing more, finishes what has arrived, makes it durable, writes what is queued.
    /// Gives the machine back.
    ///
    /// # Errors
    /// [`NodeError`] when the last durable write failed or the loop had failed before.
    pub async fn stop(mut self) -> Result<M, NodeError> {
        self.stopping.send_replace(true);
        self.handle.mailbox.close();
        self.handle.command_permits.close();
        let machine = self.end().await;
        for link in self.links.stop_opening() {
            link.finish(CloseReason::Stopping);
        }
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(Duration::from_millis(self.limits.flush_timeout_ms), finished).await.is_err() {
            tracing::warn!("some peers did not take what was queued for them in time");
        }
        machine
    }
}

impl<M: Machine, W> Node<M, W> {
    /// How the loop ended. A loop that went without a word panicked.
    async fn end(&mut self) -> Result<M, NodeError> {
        let Some(ended) = &mut self.ended else { return Err(NodeError::Over) };
        let end = ended.await.unwrap_or(Err(NodeError::Panicked));
        self.ended = None;
        end
    }
}

impl<M: Machine, W> Drop for Node<M, W> {
    /// A node that is dropped stops at once; what is queued for the peers is lost.
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        self.handle.mailbox.close();
        self.handle.command_permits.close();
        self.links.close_all();
    }
}

struct Loop<M: Machine, W, S, L, E> {
    verifier: Arc<Verifier>,
    turns: Turns<M>,
    signer: S,
    on_written: L,
    /// Dropped, and so closed, before what hears events: whoever learns there that the loop has ended misses no command that was taken.
    inbox: Inbox<M::Command, W>,
    on_event: E,
    links: Arc<Links>,
    metrics: Metrics,
    clock: Clock,
}

impl<W, M, S, L, E> Loop<M, W, S, L, E>
where
    W: Wire,
    M: Durable + Machine<Received = Verified<W>, Message = W>,
    S: Signer<M::Unsigned, W>,
    L: FnMut(&M),
    E: FnMut(M::Event) -> Option<ClientId>,
{
    fn run_on_thread(mut self) -> Result<M, NodeError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let context = Context::from_waker(&waker);
        let mailbox = self.inbox.mailbox();
        while !self.inbox.is_done() {
            self.turn()?;
            if !self.inbox.is_idle() {
                continue;
            }
            let wait = self.wait();
            if wait != Some(Duration::ZERO) && mailbox.poll_ready(&context).is_pending() {
                // Woken for nothing is no harm: the turn will be empty.
                match wait {
                    None => thread::park(),
                    Some(wait) => thread::park_timeout(wait),
                }
            }
        }
        Ok(self.turns.into_machine())
    }

    async fn run_as_task(mut self, alarm: Alarm) -> Result<M, NodeError> {
        let mailbox = self.inbox.mailbox();
        while !self.inbox.is_done() {
            self.turn()?;
            if !self.inbox.is_idle() {
                tokio::task::yield_now().await;
                continue;
            }
            let inbound = std::future::poll_fn(|context| mailbox.poll_ready(context));
            match self.wait() {
                None => inbound.await,
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(wait) => {
                    // Looked at first: setting a timer that an arrival cancels at once is the dearer way.
                    let mut inbound = pin!(inbound);
                    tokio::select! {
                        biased;
                        () = &mut inbound => {}
                        () = alarm.wait(wait) => {}
                    }
                }
            }
        }
        Ok(self.turns.into_machine())
    }

    /// One turn of the machine: `machine::turn` says when it writes, and that it writes before anything leaves.
    fn turn(&mut self) -> Result<(), NodeError> {
        let mut turn = self.turns.begin_unserved(self.clock.now());
        self.inbox.fill(&mut turn, &mut self.clock);
        let now = self.clock.now();
        let stepped = if self.inbox.is_done() { turn.stepped_last(now) } else { turn.stepped(now) };
        let started = stepped.writes().then(Instant::now);
        let written = match stepped.persist() {
            Ok(written) => written,
            Err(failure) => {
                self.links.close_all();
                self.inbox.close();
                return Err(NodeError::Persist(Box::new(failure)));
            }
        };
        let shell = &self.metrics.shell;
        let writing = started.map(|started| started.elapsed());
        if let Some(writing) = writing {
            shell.persist_seconds.observe(writing.as_secs_f64());
            (self.on_written)(written.machine());
        }
        let said = written.sign(&mut self.signer);
        if said.inputs == 0 && said.sends.is_empty() {
            return Ok(());
        }
        shell.turns.inc();
        shell.turn_inputs.observe(said.inputs as f64);
        shell.statements_signed.inc_by(said.statements as u64);
        shell.roots_signed.inc_by(said.signatures as u64);
        // Each party gets all that is for it with one push. What is lost here, the machine's own timers say again.
        for group in said.sends.chunk_by(|(one, _), (other, _)| one == other) {
            self.links.send(group[0].0, group.iter().map(|(_, message)| message));
        }
        if !said.own.is_empty() {
            let messages = self.verifier.verify_all(std::mem::take(said.own)).into_iter().filter_map(Result::ok).collect();
            self.inbox.push_own(said.me, messages);
        }
        said.events.drain(..).filter_map(&mut self.on_event).for_each(|client| self.inbox.note_commit(client));
        Ok(())
    }

    /// How long until a turn is due; `None` when none is.
    fn wait(&mut self) -> Option<Duration> {
        self.turns.wakes_at().map(|Time(at)| Duration::from_nanos(at.saturating_sub(self.clock.now().0)))
    }
}

/// Wakes a sleeping thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
