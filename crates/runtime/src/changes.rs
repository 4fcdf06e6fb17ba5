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

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crypto::{Chain, ChainError, Configuration as Members, Signatures, SignedConfiguration, Verifier};
use mutants::{Mutant, broken};
use tokio::sync::watch;
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ClusterId, Party, ReplicaId};

use crate::configuration::Configuration;
use crate::frame::FrameError;
use crate::limits::{LOGGED_A_MINUTE_MAX, Limits};
use crate::link::{CloseReason, Link, Links};
use crate::log_limit::LogLimit;
use crate::member::{Member, Share};
use crate::quota::Total;

/// So many configurations are on their way to one peer at most, before it says that it has the first.
const AHEAD_MAX: u64 = 4;
/// For so long whoever was taken out may read why.
const FAREWELL: Duration = Duration::from_millis(500);
/// For so long after a place got another key, what its earlier key signed is dropped without blame: correct members may still pass it on.
const BLAMELESS: Duration = Duration::from_secs(60);

/// What members tell one another of configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender knows all up to this version.
    Version(u64),
    /// The next one that the receiver may lack.
    Configuration(Box<SignedConfiguration>),
}

impl Encode for Control {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Version(version) => {
                out.push(1);
                version.encode(out);
            }
            Self::Configuration(signed) => {
                out.push(2);
                signed.encode(out);
            }
        }
    }
}

impl Decode for Control {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Version(u64::decode(reader)?)),
            2 => Ok(Self::Configuration(Box::new(SignedConfiguration::decode(reader)?))),
            _ => Err(DecodeError::UnknownTag("what is told of a configuration")),
        }
    }
}

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

/// How a node keeps configurations, and whom it tells.
pub struct ChangeOptions {
    /// All that are known.
    pub chain: Chain,
    /// Keeps a longer one where it outlives the process. What could not be kept is not gone by.
    pub keep: KeepChain,
    /// Told what the node goes by from now on.
    pub taken: watch::Sender<Newest>,
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
    /// A replica's key cannot be used.
    #[error(transparent)]
    Member(#[from] crypto::BadMember),
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

/// What changes of the cluster, for all connections of a node.
#[derive(Debug)]
pub(crate) struct Changes {
    view: RwLock<Arc<View>>,
    options: Mutex<Option<ChangeOptions>>,
    signatures: Signatures,
    limits: Limits,
    total: Arc<Total>,
    links: Arc<Links>,
    verifier: Arc<Verifier>,
    /// Which places got another key of late.
    rotated: Mutex<BTreeMap<ReplicaId, Instant>>,
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

impl Changes {
    pub fn new(
        cluster: Arc<Cluster>,
        options: Option<ChangeOptions>,
        limits: Limits,
        total: Arc<Total>,
        links: Arc<Links>,
        verifier: Arc<Verifier>,
    ) -> Self {
        let version = options.as_ref().map_or(0, |options| options.chain.version());
        let addresses = options.as_ref().map(|options| addresses(options.chain.newest())).unwrap_or_default();
        let signatures = verifier.signatures();
        let configuration = Configuration::of(&cluster, signatures, version);
        let members = members(&cluster, &BTreeMap::new(), &limits, &total);
        let view = RwLock::new(Arc::new(View { version, cluster, configuration, members, moved: BTreeMap::new() }));
        let log = LogLimit::new(LOGGED_A_MINUTE_MAX);
        let rotated = Mutex::default();
        Self { view, options: Mutex::new(options), signatures, limits, total, links, verifier, rotated, addresses, log }
    }

    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where `replica` is now, if that is elsewhere than at the start.
    pub fn moved(&self, replica: ReplicaId) -> Option<String> {
        self.view().moved.get(&replica).cloned()
    }

    /// A connection was opened by who showed `key` and knows configurations up to `version`; nothing when it is no member any more.
    pub fn opened(&self, link: &Link, key: &[u8; 32], version: u64) -> bool {
        let options = self.options();
        link.knows(version);
        // A configuration that took it out may have been taken over between its greeting and now.
        if self.view().members.get(key).is_none_or(|(member, _)| *member != link.party().into()) {
            link.close(CloseReason::Removed);
            return false;
        }
        if let Some(options) = options.as_ref() {
            hand(link, &options.chain);
        }
        true
    }

    /// What the peer of `link` tells.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    pub fn hear(&self, link: &Link, control: Control) -> Result<(), CloseReason> {
        match control {
            // What says nothing new costs no more than a heartbeat.
            Control::Version(version) if version <= link.version() => return Ok(()),
            Control::Version(version) => link.knows(version),
            Control::Configuration(signed) => {
                let version = signed.configuration.version;
                if version > self.view().version + 1 || !link.is_sent_anew(version) {
                    return Ok(());
                }
                match self.take_over(*signed) {
                    Ok(()) => link.knows(version),
                    Err(NotTakenOver::Refused(ChainError::Old { .. })) => link.knows(version),
                    Err(NotTakenOver::Refused(ChainError::Early { .. })) | Err(NotTakenOver::Unchangeable) => {}
                    Err(
                        error @ NotTakenOver::Refused(ChainError::Fork { .. } | ChainError::OtherBefore { .. } | ChainError::NoOperators),
                    ) => {
                        self.warn(
                            link,
                            &error,
                            "its configurations are not this node's: operators signed two of one version, or cluster.toml differs",
                        );
                    }
                    Err(NotTakenOver::NotKept(error)) => {
                        let kind = error.kind();
                        self.warn(link, &NotTakenOver::NotKept(error), "a configuration could not be written, and is not gone by");
                        // It comes again with the next connection.
                        return Err(CloseReason::Broken(kind));
                    }
                    Err(error) => {
                        // Every correct member checks what it passes on.
                        self.warn(link, &error, "a configuration was refused");
                        return Err(CloseReason::Rejections);
                    }
                }
            }
        }
        if let Some(options) = self.options().as_ref() {
            hand(link, &options.chain);
        }
        Ok(())
    }

    fn warn(&self, link: &Link, error: &NotTakenOver, what: &str) {
        if let Some(left_out) = self.log.admit(Instant::now()) {
            tracing::error!(party = %link.party(), %error, left_out = left_out.noted(), "{what}");
        }
    }

    /// Takes over the next configuration: keeps it, goes by it, and hands it to everybody connected.
    ///
    /// # Errors
    /// [`NotTakenOver`]; then nothing has changed.
    pub fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        let mut guard = self.options();
        let options = guard.as_mut().ok_or(NotTakenOver::Unchangeable)?;
        // Checked before all of it is copied.
        options.chain.check(&next)?;
        let mut chain = options.chain.clone();
        let cluster = Arc::new(chain.extend(next)?);
        // Durable before it is gone by: a node that comes back never goes by an earlier one again.
        (options.keep)(&chain).or_else(|error| if broken(Mutant::ConfigurationUnkept) { Ok(()) } else { Err(error) })?;
        self.verifier.reconfigure(Arc::clone(&cluster))?;
        options.chain = chain;
        let before = self.view();
        self.note_rotated(&before.cluster, &cluster);
        let moved = addresses(options.chain.newest()).into_iter().filter(|(replica, address)| self.addresses.get(replica) != Some(address));
        let view = View {
            version: options.chain.version(),
            configuration: Configuration::of(&cluster, self.signatures, options.chain.version()),
            members: members(&cluster, &before.members, &self.limits, &self.total),
            moved: moved.collect(),
            cluster: Arc::clone(&cluster),
        };
        let version = view.version;
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        drop(options.taken.send_replace(Newest { cluster: Arc::clone(&cluster), chain: Arc::new(options.chain.clone()) }));
        for link in self.links.all() {
            // In this order: whoever is taken out learns why, if it reads.
            link.send_control(&Control::Version(version));
            hand(&link, &options.chain);
            if !same_key(&before.cluster, &cluster, link.party()) && !broken(Mutant::RevokedStays) {
                take_out(link);
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

    /// Whether a correct member may have passed on what `signer` signed, though the signature is bad by the keys that count here: the key was
    /// changed of late.
    pub fn is_blameless(&self, signer: ReplicaId) -> bool {
        let rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        rotated.get(&signer).is_some_and(|at| at.elapsed() < BLAMELESS)
    }

    /// Whether the peer of `link` may go by other keys: it is at another version.
    pub fn is_apart(&self, link: &Link) -> bool {
        link.version() != self.view().version
    }

    fn options(&self) -> MutexGuard<'_, Option<ChangeOptions>> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Reads what a frame's body tells of configurations.
pub(crate) fn read_control(body: bytes::Bytes, cluster: ClusterId) -> Result<Control, FrameError> {
    Ok(Control::from_bytes(body, cluster)?)
}

/// Closes a connection whose owner was taken out; before that, its owner may read why. What it asks meanwhile the machine refuses, which knows it
/// no more.
fn take_out(link: Arc<Link>) {
    link.finish();
    tokio::spawn(async move {
        tokio::time::sleep(FAREWELL).await;
        link.close(CloseReason::Removed);
    });
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

/// Hands over what the peer of `link` lacks, a few at a time. Called with the chain locked, so that all comes in order.
fn hand(link: &Link, chain: &Chain) {
    let known = link.version();
    let mut handed = link.handed().max(known);
    for signed in chain.after(handed) {
        if handed >= known + AHEAD_MAX {
            break;
        }
        handed = signed.configuration.version;
        link.send_control(&Control::Configuration(Box::new(signed.clone())));
    }
    link.set_handed(handed);
}

/// The members of `cluster`; whoever was one before keeps what is counted of it.
fn members(
    cluster: &Cluster,
    before: &BTreeMap<[u8; 32], (Member, Arc<Share>)>,
    limits: &Limits,
    total: &Arc<Total>,
) -> BTreeMap<[u8; 32], (Member, Arc<Share>)> {
    let share = |key: &[u8; 32], member: Member| match before.get(key) {
        Some((same, share)) if *same == member => Arc::clone(share),
        _ => Arc::new(Share::new(limits, total)),
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
