//! The replicated state: nodes and sessions, and the digest over both.
//!
//! [`State::apply`] is all that changes it. What applies a transaction checks it against the state first: a transaction that does not
//! fit was prepared on another state, or this one is damaged. Both are [`Corruption`], after which the state is not to be used any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use jute::{Acl, EventKind, PASSWORD_BYTES, Stat};
use mutants::{Mutant, broken};

use crate::acl;
use crate::digest::{Checksum, Leaf, Profile, StateDigest};
use crate::drill::Damage;
use crate::limits::{DIGEST_EVERY_ZXIDS, DIGEST_LOG_MAX, EPHEMERAL_PATH_BYTES};
use crate::node::{Lifetime, Node, Part, Persisted, Prepared, session_leaf};
use crate::path::{CONFIG, QUOTA, ROOT, SERVICE, is_valid, split};
use crate::prepare::Preparer;
use crate::quota::{self, Record, Usage};
use crate::transaction::{Body, Change, Transaction};
use crate::tree::Nodes;

/// Something that must not be: this state is not the one that was agreed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at zxid {zxid:#x}: {what}{}", at(path.as_deref()))]
pub struct Corruption {
    /// The transaction at which it was noticed.
    pub zxid: i64,
    /// The node it was noticed at, if it was at one.
    pub path: Option<String>,
    /// What is wrong.
    pub what: String,
    /// The digest that was foreseen, and the one that came of it, where these differ.
    pub digests: Option<Box<(Checksum, Checksum)>>,
}

fn at(path: Option<&str>) -> String {
    path.map_or_else(String::new, |path| format!(" at {path:?}"))
}

/// A client's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) timeout_ms: i32,
    pub(crate) password: [u8; PASSWORD_BYTES],
    pub(crate) leaf: Leaf,
}

/// Something that clients may watch for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub path: String,
    /// Who may know: the node's ACL.
    pub acl: Arc<Vec<Acl>>,
}

/// What a transaction came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Of each change, the stat of its node right after it; a deleted node has none.
    pub stats: Vec<Option<Stat>>,
    /// The digest that the state has after it, where it was compared with the one that was foreseen.
    pub compared: Checksum,
}

/// The paths of a session's ephemeral nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ephemerals {
    pub(crate) paths: BTreeSet<Box<str>>,
    pub(crate) bytes: usize,
}

/// The state of a replica.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) profile: Profile,
    pub(crate) nodes: Nodes,
    pub(crate) sessions: BTreeMap<i64, Session>,
    /// The transaction that was applied last.
    pub(crate) zxid: i64,
    pub(crate) digest: StateDigest,
    /// Digests of the past, the oldest first, for whoever compares replicas.
    digest_log: VecDeque<(i64, Checksum)>,
    // What follows is found from the nodes.
    pub(crate) ephemerals: BTreeMap<i64, Ephemerals>,
    /// Containers, and nodes with a time to live.
    pub(crate) mortal: BTreeSet<Box<str>>,
    /// The paths that have a quota.
    pub(crate) limited: BTreeSet<Box<str>>,
    pub(crate) data_bytes: u64,
    /// Whether each transaction's digest is compared with the one foreseen.
    pub(crate) is_realtime: bool,
    /// How the next transaction is to be misapplied, in a drill.
    pub(crate) drill: Option<Damage>,
    /// The transaction that waits for the one behind it, in a drill.
    pub(crate) held: Option<Transaction>,
}

/// The nodes that a transaction touches.
struct Touched<'a> {
    zxid: i64,
    /// Who prepared the transaction here, and may have hashed what it writes.
    preparer: Option<&'a Preparer>,
    /// The leaf of each before it, which is stale now.
    leaves: BTreeMap<String, Option<Leaf>>,
    /// The first that did not hash to its leaf any more when it was touched.
    damaged: Option<(String, Checksum, Checksum)>,
}

impl Touched<'_> {
    /// What was hashed of the data when the transaction was prepared, and of the node after it.
    fn prepared(&self, path: &str) -> Option<Prepared> {
        self.preparer?.left_behind(self.zxid, path)
    }

    fn new_node(&mut self, path: &str) {
        self.leaves.entry(path.to_owned()).or_default();
    }
}

impl State {
    /// The state before the first transaction. `seed` only chooses where nodes lie in memory; nothing that is seen depends on it.
    #[must_use]
    pub fn new(profile: Profile, seed: u64) -> Self {
        let mut state = Self::empty(profile, seed);
        let read_only = Arc::new(vec![Acl { permissions: jute::permissions::READ, ..Acl::open() }]);
        let fixed = [(ROOT, acl::open()), (SERVICE, acl::open()), (QUOTA, acl::open()), (CONFIG, read_only)];
        for (path, acl) in fixed {
            // ZooKeeper sets this ACL without asking for a version, which leaves it at −1.
            let stat = Persisted { aversion: if path == CONFIG { -1 } else { 0 }, ..Persisted::default() };
            state.put(path, Node::new(profile, Some(&[]), acl, stat, None));
        }
        for path in [SERVICE, QUOTA, CONFIG] {
            let (parent, name) = split(path).expect("these are not the root");
            state.nodes.get_mut(parent).expect("parents were made first").children.insert(name, profile);
        }
        for path in [ROOT, SERVICE, QUOTA, CONFIG] {
            state.refresh(path, None, None);
        }
        state
    }

    /// No nodes at all: what a snapshot is read into.
    pub(crate) fn empty(profile: Profile, seed: u64) -> Self {
        Self {
            profile,
            nodes: Nodes::new(seed),
            sessions: BTreeMap::new(),
            zxid: 0,
            digest: StateDigest::new(profile),
            digest_log: VecDeque::new(),
            ephemerals: BTreeMap::new(),
            mortal: BTreeSet::new(),
            limited: BTreeSet::new(),
            data_bytes: 0,
            is_realtime: true,
            drill: None,
            held: None,
        }
    }

    /// The transaction that was applied last.
    #[must_use]
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// How digests are computed.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The digest of the state, as it was kept up to date.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        self.digest.checksum()
    }

    /// The digest of the state, computed from nothing that was kept of it.
    #[must_use]
    pub fn recomputed_checksum(&self) -> Checksum {
        let mut digest = StateDigest::new(self.profile);
        self.nodes.iter().for_each(|(path, node)| digest.add(&node.recomputed_leaf(self.profile, path)));
        for (id, session) in &self.sessions {
            digest.add(&session_leaf(self.profile, *id, session.timeout_ms, &session.password));
        }
        digest.checksum()
    }

    /// Digests of the past with their zxids, the oldest first.
    pub fn digest_log(&self) -> impl Iterator<Item = (i64, Checksum)> + '_ {
        self.digest_log.iter().copied()
    }

    /// Whether each transaction carries the digest that the state will have, which whoever applies it compares (§4.3): it does, unless this
    /// is taken back. Digests of the past are there without it too (§4.2).
    #[must_use]
    pub fn with_realtime(mut self, is_realtime: bool) -> Self {
        self.is_realtime = is_realtime;
        self
    }

    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the nodes of one shard, counted round and round, hash to the leaves that they have in the digest, and whether the ephemeral ones among them end
    /// with their sessions. A node that no transaction touches is looked at here alone.
    ///
    /// # Errors
    /// The first node that does not.
    pub fn scrub(&self, shard: usize) -> Result<(), Corruption> {
        self.nodes.shard(shard).try_for_each(|(path, node)| {
            self.scrub_node(path, node)?;
            let Lifetime::Session(session) = Lifetime::of_owner(node.stat.owner) else { return Ok(()) };
            if self.ephemerals.get(&session).is_some_and(|ephemerals| ephemerals.paths.contains(path)) {
                return Ok(());
            }
            let what = "an ephemeral node is not among those of its session, and would outlive it".to_owned();
            Err(Corruption { zxid: self.zxid, path: Some(path.to_owned()), what, digests: None })
        })
    }

    /// Whether so many sessions behind this one hash to the leaves that they have in the digest. Gives the last of them, if there are more.
    ///
    /// # Errors
    /// The first session that does not.
    pub(crate) fn scrub_sessions(&self, after: Option<i64>, at_most: usize) -> Result<Option<i64>, Corruption> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut looked_at, mut last) = (0, None);
        for (id, session) in self.sessions.range((from, Bound::Unbounded)).take(at_most) {
            self.scrub_session(*id, session)?;
            (looked_at, last) = (looked_at + 1, Some(*id));
        }
        Ok(last.filter(|_| looked_at == at_most))
    }

    pub(crate) fn scrub_session(&self, id: i64, session: &Session) -> Result<(), Corruption> {
        let recomputed = session_leaf(self.profile, id, session.timeout_ms, &session.password);
        if recomputed == session.leaf || broken(Mutant::SessionUnscrubbed) {
            return Ok(());
        }
        let digests = Some(Box::new((Checksum(session.leaf.0), Checksum(recomputed.0))));
        let what = format!("session {id:#x} does not hash to its leaf any more: it changed without a transaction");
        Err(Corruption { zxid: self.zxid, path: None, what, digests })
    }

    pub(crate) fn scrub_node(&self, path: &str, node: &Node) -> Result<(), Corruption> {
        let recomputed = node.recomputed_leaf(self.profile, path);
        if recomputed == node.leaf {
            return Ok(());
        }
        let digests = Some(Box::new((Checksum(node.leaf.0), Checksum(recomputed.0))));
        let what = "a node does not hash to its leaf any more: its data, stat, ACL or children changed without a transaction".to_owned();
        Err(Corruption { zxid: self.zxid, path: Some(path.to_owned()), what, digests })
    }

    /// Whether a node, before anything is said of it, is as transactions made it: a server that compares each transaction looks at all that it reads,
    /// too.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn look_at(&self, path: &str, part: Part) -> Result<(), Corruption> {
        if !self.is_realtime || self.profile == Profile::Off || broken(Mutant::ReadUnseen) {
            return Ok(());
        }
        let Some(node) = self.nodes.get(path) else { return self.look_for_lost(path) };
        if node.is_as_sealed(path, part) {
            return Ok(());
        }
        let recomputed = node.recomputed_leaf(self.profile, path);
        let what = "a node that is read does not hash to its leaf any more: its data, stat, ACL or children changed without a transaction";
        let digests = Some(Box::new((Checksum(node.leaf.0), Checksum(recomputed.0))));
        Err(Corruption { zxid: self.zxid, path: Some(path.to_owned()), what: what.to_owned(), digests })
    }

    /// Whether a node that is not there is named by its parent: then it was lost, as by a bit that flipped in its path.
    fn look_for_lost(&self, path: &str) -> Result<(), Corruption> {
        // "//a" is no path of the root's child.
        let parent = split(path).filter(|_| is_valid(path)).and_then(|(parent, name)| Some((self.nodes.get(parent)?, name)));
        if !parent.is_some_and(|(parent, name)| parent.children.contains(name)) {
            return Ok(());
        }
        let what = "a node that its parent names is not there".to_owned();
        Err(Corruption { zxid: self.zxid, path: Some(path.to_owned()), what, digests: None })
    }

    /// A copy to write a snapshot from, without what is found from the nodes. It costs nearly nothing.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            sessions: self.sessions.clone(),
            zxid: self.zxid,
            digest: self.digest.clone(),
            ..Self::empty(self.profile, 0)
        }
    }

    /// The same state under another profile.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self.digest = StateDigest::new(profile);
        self.digest_log.clear();
        let paths: Vec<String> = self.nodes.iter().map(|(path, _)| path.to_owned()).collect();
        for path in paths {
            let node = self.nodes.get_mut(&path).expect("it was there just now");
            node.rehash(profile);
            self.refresh(&path, None, None);
        }
        for (id, session) in &mut self.sessions {
            session.leaf = session_leaf(profile, *id, session.timeout_ms, &session.password);
            self.digest.add(&session.leaf);
        }
        self
    }

    /// The first node, by path, that differs between two states, and how; or that a session does.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<(String, &'static str)> {
        let differing = |one: &Self, other: &Self| {
            let found = one.nodes.iter().filter_map(|(path, node)| Some((path.to_owned(), node.difference(other.nodes.get(path))?)));
            found.min_by(|left, right| left.0.cmp(&right.0))
        };
        let first = [differing(self, other), differing(other, self)].into_iter().flatten().min_by(|left, right| left.0.cmp(&right.0));
        let sessions = || self.sessions.iter().find(|(id, session)| other.sessions.get(id) != Some(session)).map(|(id, _)| *id);
        let others = || other.sessions.keys().find(|id| !self.sessions.contains_key(id)).copied();
        first.or_else(|| Some((format!("session {:#x}", sessions().or_else(others)?), "the session")))
    }

    /// Applies the next transaction.
    ///
    /// # Errors
    /// When it does not fit this state, or its digest was foreseen otherwise. The state is then wrong, or half changed.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<Applied, Corruption> {
        if self.drill.is_some() || self.held.is_some() {
            return self.misapply(transaction, None);
        }
        self.apply_once(transaction, None)
    }

    /// As [`State::apply`], for whoever prepared it, and has others that apply it: what has the checksum that it had then is not hashed again.
    ///
    /// # Errors
    /// As there.
    pub fn apply_prepared(&mut self, transaction: &Transaction, preparer: &Preparer) -> Result<Applied, Corruption> {
        // Nothing was hashed where nothing is compared.
        let preparer = Some(preparer).filter(|_| self.is_realtime);
        if self.drill.is_some() || self.held.is_some() {
            return self.misapply(transaction, preparer);
        }
        self.apply_once(transaction, preparer)
    }

    pub(crate) fn apply_once(&mut self, transaction: &Transaction, preparer: Option<&Preparer>) -> Result<Applied, Corruption> {
        let corrupt = |path: Option<&str>, what: &str| Corruption {
            zxid: transaction.zxid,
            path: path.map(str::to_owned),
            what: what.to_owned(),
            digests: None,
        };
        if transaction.zxid <= self.zxid {
            return Err(corrupt(None, "a transaction is not newer than the last"));
        }
        let mut applied = Applied::default();
        let mut touched = Touched { zxid: transaction.zxid, preparer, leaves: BTreeMap::new(), damaged: None };
        match &transaction.body {
            Body::Failed { .. } => {}
            Body::Changes(changes) => {
                for change in changes {
                    let fits = self.change(change, transaction, &mut touched, &mut applied);
                    fits.map_err(|what| corrupt(Some(change.path()), what))?;
                }
            }
            Body::CreateSession { timeout_ms, password } => {
                let leaf = session_leaf(self.profile, transaction.session, *timeout_ms, password);
                let session = Session { timeout_ms: *timeout_ms, password: *password, leaf };
                if self.sessions.insert(transaction.session, session).is_some() {
                    return Err(corrupt(None, "a session begins that was there already"));
                }
                self.digest.add(&leaf);
            }
            Body::CloseSession { paths } => {
                let Some(session) = self.sessions.remove(&transaction.session) else {
                    return Err(corrupt(None, "a session ends that was not there"));
                };
                self.digest.subtract(&session.leaf);
                for path in paths {
                    let deleted = self.delete(path, transaction.zxid, &mut touched, &mut applied);
                    deleted.map_err(|what| corrupt(Some(path), what))?;
                }
                if let Some(left) = self.ephemerals.get(&transaction.session).and_then(|left| left.paths.first()) {
                    return Err(corrupt(Some(left), "an ephemeral node outlives its session"));
                }
            }
        }
        if let Some((path, expected, found)) = touched.damaged.take() {
            let digests = Some(Box::new((expected, found)));
            return Err(Corruption { digests, ..corrupt(Some(&path), "a node that is to be changed does not hash to its leaf") });
        }
        for (path, before) in std::mem::take(&mut touched.leaves) {
            self.refresh(&path, before, touched.prepared(&path));
        }
        self.zxid = transaction.zxid;
        applied.compared = self.check_foreseen(transaction)?;
        Ok(applied)
    }

    /// Whether a transaction was applied: for whoever had that done, and is about to say what came of it. It does not take `apply`'s word for it.
    ///
    /// # Errors
    /// When it was not, or not with the digest that was foreseen.
    pub(crate) fn check_applied(&self, transaction: &Transaction, applied: &Applied) -> Result<(), Corruption> {
        let is_compared = self.is_realtime && self.profile != Profile::Off;
        if self.zxid == transaction.zxid && (!is_compared || applied.compared == transaction.foreseen || broken(Mutant::ApplyBelieved)) {
            return Ok(());
        }
        let what = "a transaction was not applied, or not with the digest that was foreseen".to_owned();
        let digests = Some(Box::new((transaction.foreseen, self.checksum())));
        Err(Corruption { zxid: transaction.zxid, path: None, what, digests })
    }

    /// Compares the digest with the one foreseen, and gives it where that is done.
    fn check_foreseen(&mut self, transaction: &Transaction) -> Result<Checksum, Corruption> {
        if self.profile == Profile::Off {
            return Ok(Checksum::default());
        }
        let is_logged = self.zxid % DIGEST_EVERY_ZXIDS == 0;
        let is_compared = self.is_realtime && transaction.foreseen != Checksum::default();
        if !is_logged && !is_compared {
            return Ok(Checksum::default());
        }
        let checksum = self.checksum();
        if is_compared && checksum != transaction.foreseen {
            let what = "the state has another digest after the transaction than was foreseen".to_owned();
            let path = match &transaction.body {
                Body::Changes(changes) => changes.first().map(|change| change.path().to_owned()),
                _ => None,
            };
            return Err(Corruption { zxid: self.zxid, path, what, digests: Some(Box::new((transaction.foreseen, checksum))) });
        }
        if is_logged {
            self.digest_log.push_back((self.zxid, checksum));
            if self.digest_log.len() > DIGEST_LOG_MAX {
                self.digest_log.pop_front();
            }
        }
        Ok(if is_compared { checksum } else { Checksum::default() })
    }

    fn change(
        &mut self,
        change: &Change,
        transaction: &Transaction,
        touched: &mut Touched<'_>,
        applied: &mut Applied,
    ) -> Result<(), &'static str> {
        let (zxid, time) = (transaction.zxid, transaction.time_ms);
        let stat = match change {
            Change::Check { path } => {
                let node = self.nodes.get(path).ok_or("a node is checked that is not there")?;
                // One that this transaction has touched was looked at then, and is hashed anew at its end.
                if !touched.leaves.contains_key(path) && self.look_at(path, Part::Head).is_err() {
                    return Err("a node that is checked does not hash to its leaf");
                }
                Some(node.stat())
            }
            Change::Delete { path } => self.delete(path, zxid, touched, applied).map(|()| None)?,
            Change::Create { path, data, acl, owner, parent_cversion } => {
                let stat =
                    Persisted { czxid: zxid, mzxid: zxid, ctime: time, mtime: time, owner: *owner, pzxid: zxid, ..Persisted::default() };
                let node = Node::new(self.profile, data.as_deref(), acl.clone(), stat, touched.prepared(path));
                Some(self.create(path, node, *parent_cversion, touched, applied)?)
            }
            Change::SetData { path, data, version } => {
                let (profile, prepared) = (self.profile, touched.prepared(path));
                let node = self.touch(touched, path).ok_or("data are written of a node that is not there")?;
                if next_version(node.stat.version) != *version {
                    return Err("data are written of a node with another version");
                }
                node.stat = Persisted { version: *version, mzxid: zxid, mtime: time, ..node.stat };
                let before = node.put_data(profile, data.as_deref(), prepared);
                let (stat, acl) = (node.stat(), node.acl.clone());
                self.data_bytes = self.data_bytes + length(data.as_deref()) - length(before.as_deref());
                self.count_usage(path, Usage::of_change(before.as_deref(), data.as_deref()), touched);
                applied.events.push(Event { kind: EventKind::DataChanged, path: path.clone(), acl });
                Some(stat)
            }
            Change::SetAcl { path, acl, version } => {
                let node = self.touch(touched, path).ok_or("a node gets an ACL that is not there")?;
                if next_version(node.stat.aversion) != *version {
                    return Err("a node gets an ACL whose ACL has another version");
                }
                node.stat.aversion = *version;
                node.acl = acl.clone();
                Some(node.stat())
            }
        };
        applied.stats.push(stat);
        Ok(())
    }

    fn create(
        &mut self,
        path: &str,
        mut node: Node,
        parent_cversion: i32,
        touched: &mut Touched<'_>,
        applied: &mut Applied,
    ) -> Result<Stat, &'static str> {
        let (parent_path, name) = split(path).filter(|_| is_valid(path)).ok_or("a node is created with an impossible path")?;
        if self.nodes.get(path).is_some() {
            return Err("a node is created that is there already");
        }
        let profile = self.profile;
        let parent = self.touch(touched, parent_path).ok_or("a node is created whose parent is not there")?;
        if parent.stat.cversion.wrapping_add(1) != parent_cversion {
            return Err("a node is created whose parent had another number of children");
        }
        if !parent.children.insert(name, profile) {
            return Err("a node is created whose parent lists it already");
        }
        parent.stat.cversion = parent_cversion;
        parent.stat.pzxid = node.stat.czxid;
        // Most nodes have their parent's ACL: they share it.
        if parent.acl == node.acl {
            node.acl = parent.acl.clone();
        }
        let (stat, acl, parent_acl) = (node.stat(), node.acl.clone(), parent.acl.clone());
        touched.new_node(path);
        let usage = Usage::of(node.data.as_deref());
        self.put(path, node);
        if let Some(counted) = quota::counted_by(path) {
            let record = Record::of(self.usage(counted));
            self.write_usage(path, &record, touched);
        }
        self.count_usage(path, usage, touched);
        applied.events.push(Event { kind: EventKind::Created, path: path.to_owned(), acl });
        applied.events.push(Event { kind: EventKind::ChildrenChanged, path: parent_path.to_owned(), acl: parent_acl });
        Ok(stat)
    }

    fn delete(&mut self, path: &str, zxid: i64, touched: &mut Touched<'_>, applied: &mut Applied) -> Result<(), &'static str> {
        let (parent_path, name) = split(path).ok_or("the root is deleted")?;
        let node = self.touch(touched, path).ok_or("a node is deleted that is not there")?;
        if node.children.len() > 0 {
            return Err("a node is deleted that has children");
        }
        let node = self.take(path).expect("it was there just now");
        let profile = self.profile;
        let parent = self.touch(touched, parent_path).ok_or("a node is deleted whose parent is not there")?;
        if !parent.children.remove(name, profile) {
            return Err("a node is deleted that its parent does not list");
        }
        parent.stat.pzxid = zxid;
        let parent_acl = parent.acl.clone();
        self.count_usage(path, Usage::default().minus(Usage::of(node.data.as_deref())), touched);
        applied.events.push(Event { kind: EventKind::Deleted, path: path.to_owned(), acl: node.acl });
        applied.events.push(Event { kind: EventKind::ChildrenChanged, path: parent_path.to_owned(), acl: parent_acl });
        Ok(())
    }

    /// How much there is at `path` and below; the root's path may be empty.
    pub(crate) fn usage(&self, path: &str) -> Usage {
        if path.is_empty() {
            // All there is: that is known without looking.
            return Usage { count: signed(self.nodes.len() as u64), bytes: signed(self.data_bytes) };
        }
        let mut usage = Usage::default();
        let mut unseen = vec![path.to_owned()];
        while let Some(next) = unseen.pop() {
            let Some(node) = self.nodes.get(&next) else { continue };
            usage = usage.plus(Usage::of(node.data.as_deref()));
            unseen.extend(node.children.names().map(|name| format!("{next}/{name}")));
        }
        usage
    }

    /// Counts what is used more at `path` for the nearest quota.
    fn count_usage(&mut self, path: &str, more: Usage, touched: &mut Touched<'_>) {
        if self.limited.is_empty() {
            return;
        }
        let Some(limited) = quota::candidates(path).find(|above| self.limited.contains(*above)) else { return };
        let stats = quota::stats_path(limited);
        let Some(node) = self.nodes.get(&stats) else { return };
        let record = Record::read(node.data.as_deref()).plus(more);
        self.write_usage(&stats, &record, touched);
    }

    /// Writes how much is used. That is no client's change: the node keeps its stat, and nobody is told.
    fn write_usage(&mut self, stats: &str, record: &Record, touched: &mut Touched<'_>) {
        let (profile, prepared) = (self.profile, touched.prepared(stats));
        let Some(node) = self.touch(touched, stats) else { return };
        let before = node.put_data(profile, Some(&record.write()), prepared);
        let after = length(node.data.as_deref());
        self.data_bytes = self.data_bytes + after - length(before.as_deref());
    }

    /// Puts a node where none is, with what is found from nodes.
    pub(crate) fn put(&mut self, path: &str, node: Node) {
        self.data_bytes += length(node.data.as_deref());
        match Lifetime::of_owner(node.stat.owner) {
            Lifetime::Persistent => {}
            Lifetime::Session(session) => {
                let ephemerals = self.ephemerals.entry(session).or_default();
                ephemerals.paths.insert(path.into());
                ephemerals.bytes += path.len() + EPHEMERAL_PATH_BYTES;
            }
            Lifetime::Container | Lifetime::Ttl(_) => {
                self.mortal.insert(path.into());
            }
        }
        if let Some(limited) = quota::limited_by(path) {
            self.limited.insert(limited.into());
        }
        let before = self.nodes.insert(path, node);
        assert!(before.is_none(), "nodes are put where none is");
    }

    fn take(&mut self, path: &str) -> Option<Node> {
        let node = self.nodes.remove(path)?;
        self.data_bytes -= length(node.data.as_deref());
        if let Some(limited) = quota::limited_by(path) {
            self.limited.remove(limited);
        }
        match Lifetime::of_owner(node.stat.owner) {
            Lifetime::Persistent => {}
            Lifetime::Session(session) => {
                if let Some(ephemerals) = self.ephemerals.get_mut(&session) {
                    ephemerals.paths.remove(path);
                    ephemerals.bytes -= path.len() + EPHEMERAL_PATH_BYTES;
                    if ephemerals.paths.is_empty() {
                        self.ephemerals.remove(&session);
                    }
                }
            }
            Lifetime::Container | Lifetime::Ttl(_) => {
                self.mortal.remove(path);
            }
        }
        Some(node)
    }

    /// Puts a session there, from a snapshot.
    pub(crate) fn put_session(&mut self, id: i64, timeout_ms: i32, password: [u8; PASSWORD_BYTES]) {
        let leaf = session_leaf(self.profile, id, timeout_ms, &password);
        self.digest.add(&leaf);
        self.sessions.insert(id, Session { timeout_ms, password, leaf });
    }

    /// The node at `path`, to be changed: its leaf is stale from now on. Whoever leads has foreseen the change from the same node, so damage
    /// that is there already has to be seen here, before it is hashed into a new leaf.
    fn touch(&mut self, touched: &mut Touched<'_>, path: &str) -> Option<&mut Node> {
        let is_realtime = self.is_realtime;
        let node = self.nodes.get_mut(path)?;
        if !touched.leaves.contains_key(path) {
            let is_looked_at = self.profile != Profile::Off && touched.damaged.is_none();
            let is_whole = |node: &Node| if is_realtime { node.is_as_sealed(path, Part::Head) } else { node.has_its_short_data() };
            if is_looked_at && !is_whole(node) {
                let found = node.recomputed_leaf(self.profile, path);
                touched.damaged = Some((path.to_owned(), Checksum(node.leaf.0), Checksum(found.0)));
            }
            touched.leaves.insert(path.to_owned(), Some(node.leaf));
        }
        Some(node)
    }

    /// Brings the digest up to date with the node at `path`, whose leaf was `before`. Of its data and its leaf now `prepared` was hashed, if anything was.
    pub(crate) fn refresh(&mut self, path: &str, before: Option<Leaf>, prepared: Option<Prepared>) {
        if self.profile == Profile::Off {
            return;
        }
        if let Some(before) = before {
            self.digest.subtract(&before);
        }
        if let Some(node) = self.nodes.get_mut(path) {
            node.seal(self.profile, path, prepared);
            self.digest.add(&node.leaf);
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn length(data: Option<&[u8]>) -> u64 {
    data.map_or(0, |data| data.len() as u64)
}

/// The version after this one. It is never −1, with which clients say that any version will do.
pub(crate) fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}
