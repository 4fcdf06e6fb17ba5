//! Changes of the cluster while it runs: how a node learns of a new configuration, keeps it, goes by it, and hands it on.
//!
//! ```text
//!   greeting: "I know version 7"  ─────────────────▶   a peer that knows more sends what follows, in order, a few at a time
//!   Control::Configuration(8)     ◀─────────────────
//!      checked against version 7 ([`crypto::Chain`]), written to disk, and only then:
//!        signatures are checked by its keys; who may connect is looked up in it; connections of those it took out are closed;
//!        the machine is told
//!   Control::Version(8), and Control::Configuration(8)  ──▶  everybody connected who is not known to have it
//! ```
//!
//! A configuration proves itself by its signatures. So it does not matter who hands it over, and one correct peer is enough to learn of it.
//! How it is taken over, and what a peer is handed next, is in [`crypto::takeover`]; this is the shell around that. Replicas hand on what they learn. A client hands over only what its own side brings: there may be thousands of clients.
//!
//! Two configurations of one version that enough operators have signed prove that some of these cheat. Whoever is handed the second tells [`ChangeOptions::forked`], and goes
//! on with the first. So that it is handed the second at all, members whose greetings name one version with different lists hand each other what they go by.
//!
//! All get the same bytes, encoded once. What waits to be written of them on all connections has a limit ([`HANDED_BYTES_MAX`]): beyond it clients get
//! theirs later, one after the other ([`Changes::hand_later`]). Nor does one connection of a client have much of that room, however little it reads
//! ([`HANDED_TO_ONE_BYTES_MAX`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crypto::configuration::CONFIGURATION_BYTES_MAX;
pub use crypto::takeover::Control;
use crypto::takeover::{AHEAD_MAX, Fault, Measured};
use crypto::{Chain, ChainError, Configuration as Members, Fork, Signatures, SignedConfiguration, Takeover, Verifier};
use mutants::{Mutant, broken};
use tokio::sync::watch;
use types::codec::{Decode as _, Encode as _};
use types::{Cluster, ClusterId, Digest, Party, ReplicaId};

use crate::configuration::Configuration;
use crate::frame::FrameError;
use crate::limits::{LOGGED_A_MINUTE_MAX, Limits};
use crate::link::{CloseReason, Link, Links};
use crate::log_limit::LogLimit;
use crate::member::{Member, Share};
use crate::quota::Totals;

/// What tells of configurations is no longer: a tag, and one configuration.
const CONTROL_BYTES_MAX: usize = 1 + CONFIGURATION_BYTES_MAX;
/// While so many bytes of configurations wait to be written, clients get no more of them.
const HANDED_BYTES_MAX: usize = 16 << 20;
/// A client gets no more of them over a connection on which so many bytes of them wait: one that reads slowly, or nothing, could otherwise take all the room
/// with a few of the longest. One that is alone loses nothing, as others follow while it reads.
const HANDED_TO_ONE_BYTES_MAX: usize = 1 << 20;
/// So long after that it is seen whether there is room again.
const HAND_AGAIN: Duration = Duration::from_millis(10);
/// So long after a round over all connections comes the next, while some client has to read first: there may be thousands of connections.
const GO_ROUND_AGAIN: Duration = Duration::from_millis(100);
/// For so long whoever was taken out may read why.
const FAREWELL: Duration = Duration::from_millis(500);
/// For so long after a place got another key, what its earlier key signed is dropped without blame: correct members may still pass it on.
/// Later it counts among what is bad otherwise.
const BLAMELESS: Duration = Duration::from_secs(60);
/// At most so many second configurations are told of that operators have signed: the first ones say more than one more would.
const FORKS_MAX: usize = 4;

/// The newest configuration that a node knows.
#[derive(Clone, Debug)]
pub struct Newest {
    /// The cluster that it describes.
    pub cluster: Arc<Cluster>,
    /// All up to it.
    pub chain: Arc<Chain>,
}

impl Newest {
    /// The end of `chain`.
    #[must_use]
    pub fn of(chain: Chain) -> Self {
        Self { cluster: Arc::new(chain.cluster()), chain: Arc::new(chain) }
    }
}

/// Keeps configurations where they outlive the process. What could not be kept is not gone by.
pub type KeepChain = Box<dyn Fn(&Chain) -> io::Result<()> + Send + Sync>;

/// Told what proves that operators have signed two configurations of one version: each such proof once, and few of them.
pub type TellOfFork = Box<dyn Fn(&Fork) + Send + Sync>;

/// How a node keeps configurations, and whom it tells.
pub struct ChangeOptions {
    /// All that are known.
    pub chain: Chain,
    /// Keeps a longer one where it outlives the process. What could not be kept is not gone by.
    pub keep: KeepChain,
    /// Told what the node goes by from now on.
    pub taken: watch::Sender<Newest>,
    /// Told when a peer hands over another configuration of a version that is known, and operators have signed both.
    pub forked: TellOfFork,
}

impl fmt::Debug for ChangeOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ChangeOptions").field("version", &self.chain.version()).finish_non_exhaustive()
    }
}

/// Why a configuration was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum NotTakenOver {
    /// It breaks a rule.
    #[error(transparent)]
    Refused(#[from] ChainError),
    /// It could not be kept.
    #[error("the configuration cannot be kept: {0}")]
    NotKept(#[from] io::Error),
    /// This node takes over none.
    #[error("this node's cluster cannot be changed")]
    Unchangeable,
}

/// Who is who, by one configuration.
#[derive(Debug)]
pub(crate) struct View {
    pub version: u64,
    pub cluster: Arc<Cluster>,
    pub configuration: Configuration,
    /// Each member's key, and what it may take of this node.
    pub members: BTreeMap<[u8; 32], (Member, Arc<Share>)>,
    /// Replicas that are elsewhere than at the start.
    moved: BTreeMap<ReplicaId, String>,
}

/// What a node goes by, and how it keeps what comes next.
struct State {
    takeover: Takeover,
    keep: KeepChain,
    taken: watch::Sender<Newest>,
    forked: TellOfFork,
    /// The second configurations of which that was told.
    forks: BTreeSet<Digest>,
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("State").field("version", &self.takeover.chain().version()).finish_non_exhaustive()
    }
}

/// What changes of the cluster, for all connections of a node.
#[derive(Debug)]
pub(crate) struct Changes {
    view: RwLock<Arc<View>>,
    state: Mutex<Option<State>>,
    signatures: Signatures,
    limits: Limits,
    totals: Totals,
    links: Arc<Links>,
    verifier: Arc<Verifier>,
    /// Which places got another key of late.
    rotated: Mutex<BTreeMap<ReplicaId, Instant>>,
    /// Whether this node is a client, and up to which version its own side has brought configurations.
    is_client: bool,
    brought: AtomicU64,
    /// The configurations that were handed over last, encoded.
    encoded: Mutex<BTreeMap<u64, Bytes>>,
    /// Whether some are handed over later, as there was no room. Changed only while the chain is locked.
    is_handing: AtomicBool,
    /// Where what comes later runs.
    runtime: tokio::runtime::Handle,
    /// Where replicas were at the start.
    addresses: BTreeMap<ReplicaId, String>,
    log: LogLimit,
}

fn addresses(members: &Members) -> BTreeMap<ReplicaId, String> {
    let shards = (0..).zip(&members.replicas);
    let all = shards.flat_map(|(shard, holders)| {
        (0..).zip(holders).map(move |(index, holder)| (ReplicaId { shard: types::ShardId(shard), index }, holder.address.clone()))
    });
    all.collect()
}

/// Who brings a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// This node's own side.
    OwnSide,
    /// A peer.
    Peer,
}

/// Whether a peer has been handed what it may get for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handed {
    /// It has.
    All,
    /// There was no room for anybody.
    Full,
    /// It has to read first.
    Unread,
}

impl Changes {
    pub fn new(
        me: Party,
        cluster: Arc<Cluster>,
        options: Option<ChangeOptions>,
        limits: Limits,
        totals: Totals,
        links: Arc<Links>,
        verifier: Arc<Verifier>,
    ) -> Self {
        let version = options.as_ref().map_or(0, |options| options.chain.version());
        let addresses = options.as_ref().map(|options| addresses(options.chain.newest())).unwrap_or_default();
        let signatures = verifier.signatures();
        let configuration = Configuration::of(&cluster, signatures, version);
        let members = members(&cluster, &BTreeMap::new(), &limits, &totals);
        let view = RwLock::new(Arc::new(View { version, cluster, configuration, members, moved: BTreeMap::new() }));
        let log = LogLimit::new(LOGGED_A_MINUTE_MAX);
        let (rotated, encoded, runtime) = (Mutex::default(), Mutex::default(), tokio::runtime::Handle::current());
        let (is_client, brought, is_handing) = (matches!(me, Party::Client(..)), AtomicU64::new(0), AtomicBool::new(false));
        let state = options.map(|ChangeOptions { chain, keep, taken, forked }| State {
            takeover: Takeover::new(chain),
            keep,
            taken,
            forked,
            forks: BTreeSet::new(),
        });
        let changes = Self {
            view,
            state: Mutex::new(state),
            signatures,
            limits,
            totals,
            links,
            verifier,
            rotated,
            is_client,
            brought,
            encoded,
            is_handing,
            runtime,
            addresses,
            log,
        };
        changes.note_earlier();
        changes
    }

    /// What was on its way when this process started may be signed by keys that had gone shortly before.
    fn note_earlier(&self) {
        let guard = self.state();
        let Some(state) = guard.as_ref() else { return };
        let mut last: Vec<Cluster> =
            state.takeover.chain().clusters().take(crypto::EARLIER_KEYS_MAX + 1).map(|(_, cluster)| cluster).collect();
        last.reverse();
        for pair in last.windows(2) {
            self.verifier.note_earlier(&pair[0]);
            self.note_rotated(&pair[0], &pair[1]);
        }
    }

    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where `replica` is now, if that is elsewhere than at the start.
    pub fn moved(&self, replica: ReplicaId) -> Option<String> {
        self.view().moved.get(&replica).cloned()
    }

    /// A connection was opened by who showed `key` and goes by `theirs`; nothing when it is no member any more.
    pub fn opened(self: &Arc<Self>, link: &Link, key: &[u8; 32], theirs: &Configuration) -> bool {
        let guard = self.state();
        let (view, version) = (self.view(), theirs.version());
        // Who goes by another of the same version is handed this node's: the two together prove who is to blame.
        let is_another = version == view.version && view.configuration.difference(theirs).is_some();
        link.peer().knows(if is_another { version.saturating_sub(1) } else { version });
        // A configuration that took it out may have been taken over between its greeting and now.
        if view.members.get(key).is_none_or(|(member, _)| *member != link.party().into()) {
            link.close(CloseReason::Removed);
            return false;
        }
        if let Some(state) = guard.as_ref() {
            self.hand_in_turn(link, state.takeover.chain());
        }
        true
    }

    /// What the peer of `link` tells.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    pub fn hear(self: &Arc<Self>, link: &Link, control: Control) -> Result<(), CloseReason> {
        match control {
            // What says nothing new costs no more than a heartbeat.
            Control::Version(version) if version <= link.version() => return Ok(()),
            Control::Version(version) => link.peer().knows(version),
            Control::Configuration(signed) => {
                let version = signed.configuration.version;
                if version > self.view().version + 1 || !link.peer().hands_over(version) {
                    return Ok(());
                }
                self.hear_configuration(link, *signed)?;
            }
        }
        if let Some(state) = self.state().as_ref() {
            self.hand_in_turn(link, state.takeover.chain());
        }
        Ok(())
    }

    /// The peer of `link` hands over a configuration.
    fn hear_configuration(self: &Arc<Self>, link: &Link, signed: SignedConfiguration) -> Result<(), CloseReason> {
        let version = signed.configuration.version;
        let error = match self.take_over(signed, By::Peer) {
            Ok(()) | Err(NotTakenOver::Refused(ChainError::Old { .. })) => {
                link.peer().knows(version);
                return Ok(());
            }
            Err(error) => error,
        };
        match &error {
            NotTakenOver::NotKept(cause) => {
                let kind = cause.kind();
                self.warn(link, &error, "a configuration could not be written, and is not gone by");
                // It comes again with the next connection.
                Err(CloseReason::Broken(kind))
            }
            NotTakenOver::Unchangeable => Ok(()),
            NotTakenOver::Refused(cause) => match Fault::of(cause) {
                Fault::None => Ok(()),
                Fault::Apart => {
                    let what = "its configurations follow others than this node's: cluster.toml differs, operators signed two, or it lies";
                    self.warn(link, &error, what);
                    Ok(())
                }
                Fault::Operators => {
                    self.warn(link, &error, "operators signed two configurations of one version, and it goes by the other");
                    if let ChainError::Fork(fork) = cause {
                        self.note_fork(fork);
                    }
                    Ok(())
                }
                Fault::Lie => {
                    self.warn(link, &error, "a configuration was refused");
                    Err(CloseReason::Rejections)
                }
            },
        }
    }

    /// Tells of `fork`, unless it was told before or there were enough: whoever has such a proof may hand it over for ever.
    fn note_fork(&self, fork: &Fork) {
        let digest = fork.other_digest(self.id());
        let mut guard = self.state();
        let Some(state) = guard.as_mut() else { return };
        if state.forks.len() < FORKS_MAX && state.forks.insert(digest) {
            (state.forked)(fork);
        }
    }

    fn warn(&self, link: &Link, error: &NotTakenOver, what: &str) {
        if let Some(left_out) = self.log.admit(Instant::now()) {
            tracing::error!(party = %link.party(), %error, left_out = left_out.noted(), "{what}");
        }
    }

    /// Takes over the next configuration from this node's own side, unless it is known already, and hands it to everybody connected who lacks it.
    ///
    /// # Errors
    /// [`NotTakenOver`]; then nothing has changed.
    pub fn bring(self: &Arc<Self>, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        let version = next.configuration.version;
        match self.take_over(next, By::OwnSide) {
            Err(NotTakenOver::Refused(ChainError::Old { .. })) => {
                let guard = self.state();
                self.brought.fetch_max(version, Ordering::SeqCst);
                if let Some(state) = guard.as_ref() {
                    self.links.all().iter().for_each(|link| self.hand_in_turn(link, state.takeover.chain()));
                }
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Takes over the next configuration: keeps it, goes by it, and hands it to everybody connected.
    fn take_over(self: &Arc<Self>, next: SignedConfiguration, by: By) -> Result<(), NotTakenOver> {
        // Not under the lock, which each new connection needs.
        let next = Measured::new(next, self.id());
        let mut guard = self.state();
        let state = guard.as_mut().ok_or(NotTakenOver::Unchangeable)?;
        let pending = state.takeover.check_measured(next)?;
        let kept = (state.keep)(pending.chain());
        let cluster = state.takeover.go_by(pending, kept)?;
        self.verifier.reconfigure(Arc::clone(&cluster)).expect("its keys were checked with it");
        let chain = state.takeover.chain();
        let before = self.view();
        self.note_rotated(&before.cluster, &cluster);
        let moved = addresses(chain.newest()).into_iter().filter(|(replica, address)| self.addresses.get(replica) != Some(address));
        let view = View {
            version: chain.version(),
            configuration: Configuration::of(&cluster, self.signatures, chain.version()),
            members: members(&cluster, &before.members, &self.limits, &self.totals),
            moved: moved.collect(),
            cluster: Arc::clone(&cluster),
        };
        let version = view.version;
        // Before the node hears of the change: what it hears afterwards, nobody said under a key that it forgets then.
        before
            .members
            .iter()
            .filter(|(key, (member, _))| view.members.get(*key).is_none_or(|(same, _)| same != member))
            .for_each(|(_, (_, share))| share.incoming.revoke());
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        drop(state.taken.send_replace(Newest { cluster: Arc::clone(&cluster), chain: Arc::new(chain.clone()) }));
        if by == By::OwnSide {
            self.brought.fetch_max(version, Ordering::SeqCst);
        }
        let told = Control::Version(version).to_bytes();
        for link in self.links.all() {
            // In this order: whoever is taken out learns why, if it reads.
            link.send_control(&told);
            self.hand_in_turn(&link, chain);
            if !same_key(&before.cluster, &cluster, link.party()) && !broken(Mutant::RevokedStays) {
                self.take_out(link);
            }
        }
        tracing::info!(version, "goes by a new configuration");
        Ok(())
    }

    fn note_rotated(&self, before: &Cluster, after: &Cluster) {
        let mut rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        rotated.retain(|_, at| now.duration_since(*at) < BLAMELESS);
        rotated.extend(before.replicas().filter(|replica| before.replica_key(*replica) != after.replica_key(*replica)).map(|it| (it, now)));
    }

    /// Whether a correct member may still pass on what the earlier key of `signer` signed: it was changed of late.
    pub fn is_blameless(&self, signer: ReplicaId) -> bool {
        let rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        rotated.get(&signer).is_some_and(|at| at.elapsed() < BLAMELESS)
    }

    /// Whether the peer of `link` may go by keys that went before: it began to hear of those that followed not long ago.
    pub fn is_behind(&self, link: &Link) -> bool {
        link.version() < self.view().version && link.age() < BLAMELESS
    }

    /// Whether the peer of `link`, which has this `share`, may go by keys that this node does not know yet. What it says of that proves nothing: it is
    /// believed for as long as it takes to hand over what it knows.
    pub fn is_ahead(&self, link: &Link, share: &Share) -> bool {
        let own = self.view().version;
        link.version() > own && share.conduct().is_believed_ahead(own, Instant::now())
    }

    /// Hands over what the peer of `link` lacks: at once where there is room and nobody waits for room. Called with the chain locked.
    fn hand_in_turn(self: &Arc<Self>, link: &Link, chain: &Chain) {
        let is_handing = self.is_handing.load(Ordering::SeqCst);
        if (is_handing && matches!(link.party(), Party::Client(..))) || self.hand(link, chain) == Handed::All {
            return;
        }
        if !self.is_handing.swap(true, Ordering::SeqCst) {
            self.runtime.spawn(Arc::clone(self).hand_later());
        }
    }

    /// Hands over what the peer of `link` lacks, a few at a time. Called with the chain locked, so that all comes in order.
    fn hand(&self, link: &Link, chain: &Chain) -> Handed {
        while let Some(next) = self.next_for(link, chain) {
            // Replicas are few, and all others rest on what they know.
            let is_client = matches!(link.party(), Party::Client(..));
            if is_client && !broken(Mutant::ConfigurationsPileUp) {
                if self.links.handing_bytes() >= HANDED_BYTES_MAX {
                    return Handed::Full;
                }
                if link.handing_bytes() >= HANDED_TO_ONE_BYTES_MAX {
                    return Handed::Unread;
                }
            }
            let Some(configuration) = self.encoded(next, chain) else { break };
            link.send_configuration(&configuration);
            link.peer().is_handed(next);
        }
        Handed::All
    }

    /// The next configuration that the peer of `link` is to be handed.
    fn next_for(&self, link: &Link, chain: &Chain) -> Option<u64> {
        let own = self.is_client && !broken(Mutant::ClientHandsOn);
        let last = if own { self.brought.load(Ordering::SeqCst) } else { u64::MAX };
        link.peer().next_of(last.min(chain.version()))
    }

    /// The configuration `version`, as it is told to all.
    fn encoded(&self, version: u64, chain: &Chain) -> Option<Bytes> {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = encoded.get(&version) {
            return Some(known.clone());
        }
        let signed = chain.after(version.checked_sub(1)?).first()?;
        let bytes = Bytes::from(Control::Configuration(Box::new(signed.clone())).to_bytes());
        while encoded.len() >= AHEAD_MAX as usize {
            encoded.pop_first();
        }
        encoded.insert(version, bytes.clone());
        Some(bytes)
    }

    /// Goes round all connections, and waits at each until there is room for what its peer lacks, as long as anybody lacks anything. There will be
    /// room: who does not read is closed. Nobody waits for one that has to read first.
    async fn hand_later(self: Arc<Self>) {
        loop {
            for link in self.links.all() {
                while self.hand_locked(&link) == Handed::Full {
                    tokio::time::sleep(HAND_AGAIN).await;
                }
            }
            if self.is_done() {
                return;
            }
            tokio::time::sleep(GO_ROUND_AGAIN).await;
        }
    }

    /// Ends the handing over of what comes later, if nobody lacks anything.
    fn is_done(&self) -> bool {
        let guard = self.state();
        let is_owed =
            |link: Arc<Link>| link.is_open() && guard.as_ref().is_some_and(|state| self.next_for(&link, state.takeover.chain()).is_some());
        let is_done = !self.links.all().into_iter().any(is_owed);
        if is_done {
            self.is_handing.store(false, Ordering::SeqCst);
        }
        is_done
    }

    fn hand_locked(&self, link: &Link) -> Handed {
        match self.state().as_ref() {
            Some(state) if link.is_open() => self.hand(link, state.takeover.chain()),
            _ => Handed::All,
        }
    }

    /// Closes a connection whose owner was taken out; before that, its owner may read why. What it has sent is dropped.
    fn take_out(&self, link: Arc<Link>) {
        link.finish(CloseReason::Removed);
        self.runtime.spawn(async move {
            tokio::time::sleep(FAREWELL).await;
            link.close(CloseReason::Removed);
        });
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to which version each connected replica is known to have the configurations.
    pub fn versions(&self) -> BTreeMap<ReplicaId, u64> {
        let version = |link: Arc<Link>| match link.party() {
            Party::Replica(replica) => Some((replica, link.version())),
            Party::Client(..) => None,
        };
        self.links.all().into_iter().filter_map(version).collect()
    }

    /// The cluster's name.
    pub fn id(&self) -> ClusterId {
        self.verifier.cluster().id()
    }
}

/// Reads what a frame's body tells of configurations. What is longer than any that is right is not decoded: a prefix of a few bytes takes ten times
/// as many in memory.
pub(crate) fn read_control(body: bytes::Bytes, cluster: ClusterId) -> Result<Control, FrameError> {
    if body.len() > CONTROL_BYTES_MAX {
        return Err(FrameError::TooLong { length: body.len(), max: CONTROL_BYTES_MAX });
    }
    Ok(Control::from_bytes(body, cluster)?)
}

/// Whether `party` has the same key in both.
fn same_key(before: &Cluster, after: &Cluster, party: Party) -> bool {
    match party {
        Party::Replica(replica) => before.replica_key(replica) == after.replica_key(replica),
        Party::Client(client, _) => {
            let key = |cluster: &Cluster| cluster.permission(client).map(|permission| permission.public_key);
            key(before) == key(after)
        }
    }
}

/// The members of `cluster`; whoever was one before keeps what is counted of it.
fn members(
    cluster: &Cluster,
    before: &BTreeMap<[u8; 32], (Member, Arc<Share>)>,
    limits: &Limits,
    totals: &Totals,
) -> BTreeMap<[u8; 32], (Member, Arc<Share>)> {
    let share = |key: &[u8; 32], member: Member| match before.get(key) {
        Some((same, share)) if *same == member => Arc::clone(share),
        _ => Arc::new(Share::new(member, limits, totals)),
    };
    let mut members = BTreeMap::new();
    for replica in cluster.replicas() {
        if let Some(key) = cluster.replica_key(replica) {
            let member = Member::Replica(replica);
            members.insert(*key, (member, share(key, member)));
        }
    }
    for (client, permission) in cluster.clients() {
        let (key, member) = (permission.public_key, Member::Client(*client));
        members.insert(key, (member, share(&key, member)));
    }
    members
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use crypto::{Configuration as Members, Holder, Operators, SecretKey};
    use toy::fixture::{CLUSTER, cluster, replica};
    use types::{ClientId, Key, Session};

    use super::*;
    use crate::frame::Frames;
    use crate::metrics::Metrics;

    const CONNECTIONS: u64 = 40;

    /// A replica whose operators make a configuration of a megabyte, and which tells `forked` of two.
    fn changes(links: &Arc<Links>, forked: TellOfFork) -> (Arc<Changes>, SignedConfiguration) {
        let (cluster, operator) = (cluster(CLUSTER, 3), SecretKey::from_bytes([201; 32]));
        let holder = |replica| Holder {
            public_key: *cluster.replica_key(replica).expect("it has one"),
            address: "127.0.0.1:1".to_owned(),
            http: "127.0.0.1:2".to_owned(),
        };
        let holders = cluster.shards().map(|shard| cluster.replicas_of(shard).map(holder).collect()).collect();
        let operators = Operators { needed: 1, keys: vec![operator.public()] };
        let first = Members::first(&cluster, "toy", Signatures::Ed25519, holders, operators.clone());
        let chain = Chain::new((*cluster).clone(), first);
        let mut next = Members { version: 1, previous: chain.digest(), ..chain.newest().clone() };
        next.clients[0].1.read_prefixes = (0..1_000).map(|number: u16| Key::from(format!("{number:01000}").as_str())).collect();
        let signature = next.sign(CLUSTER, &operators, &operator).expect("an operator");
        let (taken, _) = watch::channel(Newest::of(chain.clone()));
        let options = ChangeOptions { chain, keep: Box::new(|_| Ok(())), taken, forked };
        let limits = Limits::default();
        let totals = Totals::new(&limits, &Default::default());
        let verifier = Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 16).expect("the keys are good"));
        let me = Party::Replica(replica(0));
        let changes = Arc::new(Changes::new(me, cluster, Some(options), limits, totals, Arc::clone(links), verifier));
        (changes, SignedConfiguration { configuration: next, signatures: vec![signature] })
    }

    #[tokio::test]
    async fn whoever_hands_over_another_configuration_of_a_known_version_lies_unless_operators_signed_it() {
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&metrics.shell)));
        let (tell, told) = std::sync::mpsc::sync_channel(FORKS_MAX);
        let (changes, next) = changes(&links, Box::new(move |fork| tell.try_send(fork.to_bytes()).expect("they are few")));
        changes.bring(next.clone()).expect("it is signed");
        let operator = SecretKey::from_bytes([201; 32]);
        let operators = Operators { needed: 1, keys: vec![operator.public()] };
        let hear = |session, other: &Members, signatures| {
            let open = links.open(Party::Client(ClientId(1), Session(session))).expect("there is a place");
            let signed = SignedConfiguration { configuration: other.clone(), signatures };
            changes.hear(&open.link(), Control::Configuration(Box::new(signed)))
        };
        let mut other = next.configuration.clone();
        other.clients.clear();
        let sign = |other: &Members| vec![other.sign(CLUSTER, &operators, &operator).expect("an operator")];
        assert!(matches!(hear(1, &other, Vec::new()), Err(CloseReason::Rejections)));
        assert!(matches!(hear(2, &other, next.signatures), Err(CloseReason::Rejections)), "that is a signature of something else");
        assert!(told.try_recv().is_err(), "nobody has signed two yet");
        // It is the operators who signed two; whoever says so again, and on other connections, adds nothing.
        for session in 3..9 {
            assert!(hear(session, &other, sign(&other)).is_ok());
        }
        let chain = changes.state().as_ref().expect("it may change").takeover.chain().clone();
        let fork = Fork::verify(&told.try_recv().expect("it is told"), &chain).expect("it proves it");
        assert_eq!((fork.version(), fork.signers()), (1, &[operator.public()][..]));
        assert!(told.try_recv().is_err(), "once is enough");
        // Nor do ever more configurations.
        for session in 9..30 {
            other.operators.needed += 1;
            assert!(hear(session, &other, sign(&other)).is_ok());
        }
        assert_eq!(told.try_iter().count(), FORKS_MAX - 1);
    }

    #[tokio::test]
    async fn a_long_configuration_reaches_all_and_never_fills_the_memory() {
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&metrics.shell)));
        let (changes, next) = changes(&links, Box::new(|_| {}));
        let party = |session| Party::Client(ClientId(1), Session(session));
        let open: Vec<_> = (0..CONNECTIONS).map(|session| links.open(party(session)).expect("there is a place")).collect();
        changes.bring(next).expect("it is signed");
        let mut frames = Frames::default();
        let mut waiting_max = 0;
        while open.iter().any(|open| open.link().peer().handed() < 1) || metrics.shell.outgoing_bytes.get() > 0 {
            waiting_max = metrics.shell.outgoing_bytes.get().max(waiting_max);
            for open in &open {
                while open.link().poll_next(&Context::from_waker(Waker::noop()), &mut frames).is_ready() {}
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!((16 << 20..18 << 20).contains(&waiting_max), "{waiting_max} bytes waited");
    }

    #[tokio::test]
    async fn clients_that_read_nothing_keep_no_configurations_from_others() {
        let metrics = Metrics::default();
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&metrics.shell)));
        let (changes, mut next) = changes(&links, Box::new(|_| {}));
        let party = |session| Party::Client(ClientId(1), Session(session));
        let open: Vec<_> = (0..CONNECTIONS).map(|session| links.open(party(session)).expect("there is a place")).collect();
        let operator = SecretKey::from_bytes([201; 32]);
        let operators = Operators { needed: 1, keys: vec![operator.public()] };
        for _ in 0..AHEAD_MAX {
            changes.bring(next.clone()).expect("it is signed");
            next.configuration.previous = next.configuration.digest(CLUSTER);
            next.configuration.version += 1;
            next.signatures = vec![next.configuration.sign(CLUSTER, &operators, &operator).expect("an operator")];
        }
        // Between them, these could be owed all the room there is.
        let (silent, others) = open.split_at(8);
        let mut frames = Frames::default();
        let handing = async {
            while others.iter().any(|open| open.link().peer().handed() < AHEAD_MAX) {
                for open in others {
                    while open.link().poll_next(&Context::from_waker(Waker::noop()), &mut frames).is_ready() {}
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), handing).await.expect("all others have all of them");
        assert!(silent.iter().all(|open| open.link().peer().handed() < AHEAD_MAX && open.link().handing_bytes() > 0));
    }

    #[tokio::test]
    async fn who_comes_and_is_behind_may_go_by_earlier_keys() {
        let links = Arc::new(Links::new(Limits::default(), Arc::clone(&Metrics::default().shell)));
        let (changes, next) = changes(&links, Box::new(|_| {}));
        let open = links.open(Party::Replica(replica(1))).expect("it has a place");
        assert!(!changes.is_behind(&open.link()));
        changes.bring(next).expect("it is signed");
        assert!(changes.is_behind(&open.link()));
        open.link().peer().knows(1);
        assert!(!changes.is_behind(&open.link()), "it has said that it knows them");
    }
}
