//! Makes transactions of requests: checks each against the state that it will meet, and fixes everything that could differ.
//!
//! That state is the present one and, on top of it, what has been prepared and not applied yet ([`Preparer::outstanding`]). A request
//! stages its changes above both; a multi that fails half-way drops what it has staged. When a request succeeds, the leaves of what
//! it staged give the digest that the state will have: the one that [`State::apply`] compares.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use jute::permissions::{ADMIN, CREATE, DELETE, READ, WRITE};
use jute::{Create, CreateMode, ErrorCode, Id, Operation, PASSWORD_BYTES};

use crate::acl::{self, Checks};
use crate::digest::{Checksum, Leaf, Profile, StateDigest};
use crate::limits::{EPHEMERAL_BYTES_MAX, EPHEMERAL_PATH_BYTES, EPHEMERALS_MAX, TRANSACTION_BYTES_MAX};
use crate::node::{Lifetime, Persisted, Prepared, Summary, TTL_MS_MAX, session_leaf};
use crate::path::{ROOT, is_fixed, is_valid, split};
use crate::quota::{self, Record, Usage};
use crate::state::{State, next_version};
use crate::transaction::{Body, Change, Transaction};

/// What is to become a transaction.
#[derive(Clone, Debug)]
pub enum Proposal {
    /// A session's single operation.
    One(Operation),
    /// A session's operations, of which all succeed or none.
    Multi(Vec<Operation>),
    /// A session sets an ACL.
    SetAcl {
        /// Of which node.
        path: String,
        /// Which.
        acl: Vec<jute::Acl>,
        /// The ACL's version before, or −1 for any.
        version: i32,
    },
    /// A session begins.
    CreateSession {
        /// For how long it may be unheard of.
        timeout_ms: i32,
        /// Its password.
        password: [u8; PASSWORD_BYTES],
    },
    /// A session ends.
    CloseSession,
    /// Nothing: the request fails for a reason that does not lie in the state.
    Refused(ErrorCode),
    /// The service deletes a container that has no children any more, or a node past its time.
    Reap {
        /// Which.
        path: String,
    },
}

/// Who proposes, and when.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The session; 0 for the service itself.
    pub session: i64,
    /// The number of its request.
    pub xid: i32,
    /// Who its client has shown to be.
    pub identities: &'a [Id],
    /// The time, in milliseconds since 1970.
    pub time_ms: i64,
}

/// A node as it will be: nothing when it will be gone.
type Future = Option<(Summary, Prepared)>;

/// Prepares transactions, one after the other.
#[derive(Debug)]
pub struct Preparer {
    zxid: i64,
    /// The digest after everything that was prepared.
    foreseen: StateDigest,
    /// What nodes will be after everything that was prepared, and the last transaction that touched each.
    futures: BTreeMap<String, (i64, Future)>,
    /// What each transaction touched that was not applied yet.
    outstanding: VecDeque<(i64, Vec<String>)>,
    /// Sessions that begin in what was prepared, and their leaves.
    opening: BTreeMap<i64, Leaf>,
    closing: BTreeSet<i64>,
    /// Whether hard quotas are kept.
    enforces_quotas: bool,
    /// Whether a quota is among what was prepared and not applied yet.
    is_quota_coming: bool,
    /// How many nodes were counted for new statistics of quotas.
    counted: usize,
    /// How many lines of ACLs were looked at.
    checked: usize,
}

impl Preparer {
    /// Prepares what comes after `state`.
    #[must_use]
    pub fn new(state: &State) -> Self {
        Self {
            zxid: state.zxid,
            foreseen: state.digest.clone(),
            futures: BTreeMap::new(),
            outstanding: VecDeque::new(),
            opening: BTreeMap::new(),
            closing: BTreeSet::new(),
            enforces_quotas: false,
            is_quota_coming: false,
            counted: 0,
            checked: 0,
        }
    }

    /// Whether requests fail that a hard quota forbids: not, unless this is said.
    #[must_use]
    pub fn with_quotas_enforced(mut self, enforces_quotas: bool) -> Self {
        self.enforces_quotas = enforces_quotas;
        self
    }

    /// How many transactions were prepared and not applied yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The next transaction has this zxid: those before it are not prepared here.
    pub(crate) fn go_on_before(&mut self, zxid: i64) {
        self.zxid = self.zxid.max(zxid - 1);
    }

    /// The zxid of what is prepared next.
    pub(crate) fn next_zxid(&self) -> i64 {
        self.zxid + 1
    }

    /// How many nodes were counted for new statistics of quotas since this was asked last.
    pub(crate) fn take_counted(&mut self) -> usize {
        std::mem::take(&mut self.counted)
    }

    /// How many lines of ACLs were looked at since this was asked last.
    pub(crate) fn take_checked(&mut self) -> usize {
        std::mem::take(&mut self.checked)
    }

    /// Whether a session begins in what was prepared.
    pub(crate) fn has_opening(&self, session: i64) -> bool {
        self.opening.contains_key(&session)
    }

    /// Makes a transaction, which fails where the request does. It must be applied to `state`, and then be [noted](Self::applied).
    pub fn prepare(&mut self, state: &State, proposal: Proposal, origin: Origin<'_>) -> Transaction {
        let zxid = self.zxid + 1;
        let mut staging = Staging {
            preparer: self,
            state,
            origin,
            zxid,
            staged: BTreeMap::new(),
            ephemerals: 0,
            ephemeral_bytes: 0,
            has_quota: false,
            counted: None,
            checks: Checks::new(origin.identities),
        };
        let prepared = staging.body(proposal).and_then(|body| if body.bytes() > TRANSACTION_BYTES_MAX { TOO_LARGE } else { Ok(body) });
        let (staged, has_quota, counted, lines) = (staging.staged, staging.has_quota, staging.counted, staging.checks.lines());
        self.is_quota_coming |= has_quota;
        self.counted += counted.unwrap_or(0);
        self.checked += lines;
        let body = match prepared {
            Ok(body) => {
                self.foresee(state, zxid, staged, &body, origin.session);
                body
            }
            Err((code, at)) => {
                self.outstanding.push_back((zxid, Vec::new()));
                Body::Failed { code, at }
            }
        };
        self.zxid = zxid;
        let foreseen = if state.is_realtime { self.foreseen.checksum() } else { Checksum::default() };
        Transaction { zxid, time_ms: origin.time_ms, session: origin.session, xid: origin.xid, body, foreseen }
    }

    /// Notes what a transaction will leave behind.
    fn foresee(&mut self, state: &State, zxid: i64, staged: BTreeMap<String, Option<Summary>>, body: &Body, session: i64) {
        let mut touched = Vec::with_capacity(staged.len());
        for (path, summary) in staged {
            let before = match self.futures.get(&path) {
                Some((_, future)) => future.as_ref().map(|(_, hashed)| hashed.leaf.hash),
                None => state.nodes.get(&path).map(|node| node.leaf),
            };
            let future = summary.map(|mut summary| {
                let hashed = summary.hashed(hashing(state), &path);
                (summary, hashed)
            });
            if hashing(state) != Profile::Off {
                before.iter().for_each(|leaf| self.foreseen.subtract(leaf));
                future.iter().for_each(|(_, hashed)| self.foreseen.add(&hashed.leaf.hash));
            }
            touched.push(path.clone());
            self.futures.insert(path, (zxid, future));
        }
        match body {
            Body::CreateSession { timeout_ms, password } => {
                let leaf = session_leaf(state.profile, session, *timeout_ms, password);
                self.foreseen.add(&leaf);
                self.opening.insert(session, leaf);
            }
            Body::CloseSession { .. } => {
                let leaf = self.opening.get(&session).copied().or_else(|| state.sessions.get(&session).map(|known| known.leaf));
                leaf.iter().for_each(|leaf| self.foreseen.subtract(leaf));
                self.closing.insert(session);
            }
            Body::Changes(_) | Body::Failed { .. } => {}
        }
        self.outstanding.push_back((zxid, touched));
    }

    /// What was hashed of the node at `path` as this transaction leaves it behind, unless a later one that was prepared touches it too.
    pub(crate) fn left_behind(&self, zxid: i64, path: &str) -> Option<Prepared> {
        let (last, future) = self.futures.get(path)?;
        future.as_ref().filter(|_| *last == zxid).map(|(_, hashed)| *hashed)
    }

    /// The transaction was applied: what it left behind is in the state now.
    pub fn applied(&mut self, transaction: &Transaction) {
        while self.outstanding.front().is_some_and(|(zxid, _)| *zxid <= transaction.zxid) {
            let (zxid, touched) = self.outstanding.pop_front().expect("there was one just now");
            for path in touched {
                if self.futures.get(&path).is_some_and(|(last, _)| *last == zxid) {
                    self.futures.remove(&path);
                }
            }
        }
        self.is_quota_coming &= !self.outstanding.is_empty();
        match transaction.body {
            Body::CreateSession { .. } => drop(self.opening.remove(&transaction.session)),
            Body::CloseSession { .. } => drop(self.closing.remove(&transaction.session)),
            Body::Changes(_) | Body::Failed { .. } => {}
        }
    }
}

/// Why a request fails, and at which of its operations.
type Failed = (ErrorCode, u32);

/// A request comes to more than a transaction may hold, as with many `auth` lines, which stand for all that a client has shown to be.
const TOO_LARGE: Result<Body, Failed> = Err((ErrorCode::MarshallingError, 0));

/// One request being prepared.
struct Staging<'a> {
    preparer: &'a Preparer,
    state: &'a State,
    origin: Origin<'a>,
    zxid: i64,
    staged: BTreeMap<String, Option<Summary>>,
    /// How many ephemeral nodes are among what was staged, those that are deleted again as well.
    ephemerals: usize,
    /// And how many bytes of their paths.
    ephemeral_bytes: usize,
    /// Whether a quota is among what was staged.
    has_quota: bool,
    /// How many nodes were counted for the statistics that are among what was staged, if some are.
    counted: Option<usize>,
    /// What it may do.
    checks: Checks<'a>,
}

impl Staging<'_> {
    fn body(&mut self, proposal: Proposal) -> Result<Body, Failed> {
        let alone = |code| (code, 0);
        match proposal {
            Proposal::One(operation) => Ok(Body::Changes(vec![self.operation(operation).map_err(alone)?])),
            Proposal::Multi(operations) => {
                let numbered = (0_u32..).zip(operations);
                let changes = numbered.map(|(at, operation)| self.operation(operation).map_err(|code| (code, at)));
                Ok(Body::Changes(changes.collect::<Result<_, _>>()?))
            }
            Proposal::SetAcl { path, acl, version } => Ok(Body::Changes(vec![self.set_acl(path, &acl, version).map_err(alone)?])),
            Proposal::CreateSession { timeout_ms, password } if !self.has_session() => Ok(Body::CreateSession { timeout_ms, password }),
            // Its number was drawn again, after a clock was set back.
            Proposal::CreateSession { .. } => Err(alone(ErrorCode::SessionMoved)),
            Proposal::Refused(code) => Err(alone(code)),
            Proposal::CloseSession => self.close_session().map_err(alone),
            Proposal::Reap { path } => Ok(Body::Changes(vec![self.reap(path).map_err(alone)?])),
        }
    }

    /// The node as the request meets it.
    fn get(&self, path: &str) -> Result<Summary, ErrorCode> {
        if let Some(staged) = self.staged.get(path) {
            return staged.clone().ok_or(ErrorCode::NoNode);
        }
        if let Some((_, future)) = self.preparer.futures.get(path) {
            return future.as_ref().map(|(summary, _)| summary.clone()).ok_or(ErrorCode::NoNode);
        }
        self.state.nodes.get(path).map(crate::node::Node::summary).ok_or(ErrorCode::NoNode)
    }

    fn may(&mut self, node: &Summary, permission: i32) -> Result<(), ErrorCode> {
        self.checks.check(&node.acl, permission)
    }

    fn has_session(&self) -> bool {
        let session = self.origin.session;
        self.state.sessions.contains_key(&session) || self.preparer.opening.contains_key(&session)
    }

    fn check_session(&self) -> Result<(), ErrorCode> {
        if self.has_session() && !self.preparer.closing.contains(&self.origin.session) { Ok(()) } else { Err(ErrorCode::SessionExpired) }
    }

    fn operation(&mut self, operation: Operation) -> Result<Change, ErrorCode> {
        self.check_session()?;
        match operation {
            Operation::Create(create) => self.create(create),
            Operation::Delete { path, version } => self.delete(path, version),
            Operation::SetData { path, data, version } => self.set_data(path, data, version),
            Operation::Check { path, version } => {
                let node = self.get(valid(&path)?)?;
                self.may(&node, READ)?;
                check_version(node.stat.version, version)?;
                Ok(Change::Check { path })
            }
        }
    }

    fn create(&mut self, create: Create) -> Result<Change, ErrorCode> {
        let Create { mut path, data, acl, mode, sequential, .. } = create;
        let lifetime = match mode {
            CreateMode::Persistent => Lifetime::Persistent,
            CreateMode::Ephemeral => Lifetime::Session(self.origin.session),
            CreateMode::Container => Lifetime::Container,
            CreateMode::Ttl { ttl_ms } if (1..=TTL_MS_MAX).contains(&ttl_ms) => Lifetime::Ttl(ttl_ms),
            CreateMode::Ttl { .. } => return Err(ErrorCode::BadArguments),
        };
        if path.contains('\0') || !path.contains('/') {
            return Err(ErrorCode::BadArguments);
        }
        let acl = acl::resolve(&acl, self.origin.identities)?;
        // What the root would be created in is the root itself.
        let parent_path = split(&path).map_or(ROOT, |(parent, _)| parent).to_owned();
        let mut parent = self.get(&parent_path)?;
        self.may(&parent, CREATE)?;
        if sequential {
            path = format!("{path}{:010}", parent.stat.cversion);
        }
        if self.get(valid(&path)?).is_ok() {
            return Err(ErrorCode::NodeExists);
        }
        if matches!(Lifetime::of_owner(parent.stat.owner), Lifetime::Session(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        let (_, name) = split(&path).ok_or(ErrorCode::BadArguments)?;
        let usage = Usage::of(data.as_deref());
        self.check_quota(&path, usage)?;
        if let Lifetime::Session(session) = lifetime {
            let before = self.state.ephemerals.get(&session).map_or((0, 0), |known| (known.paths.len(), known.bytes));
            self.ephemerals += 1;
            self.ephemeral_bytes += path.len() + EPHEMERAL_PATH_BYTES;
            if before.0 + self.ephemerals > EPHEMERALS_MAX || before.1 + self.ephemeral_bytes > EPHEMERAL_BYTES_MAX {
                return Err(ErrorCode::QuotaExceeded);
            }
        }
        parent.stat.cversion = parent.stat.cversion.wrapping_add(1);
        parent.stat.pzxid = self.zxid;
        parent.children += 1;
        parent.children_sum.add(&hashing(self.state).hash(name.as_bytes()));
        let parent_cversion = parent.stat.cversion;
        self.staged.insert(parent_path, Some(parent));
        let (zxid, time, owner) = (self.zxid, self.origin.time_ms, lifetime.owner());
        let stat = Persisted { czxid: zxid, mzxid: zxid, ctime: time, mtime: time, owner, pzxid: zxid, ..Persisted::default() };
        self.staged.insert(path.clone(), Some(Summary::new(data.clone(), acl.clone(), stat)));
        self.has_quota |= quota::limited_by(&path).is_some();
        if let Some(counted) = quota::counted_by(&path) {
            if self.counted.is_some() {
                // Each counts all that there is below, so that a multi of many would take minutes, here and with each replay.
                return Err(ErrorCode::BadArguments);
            }
            let usage = self.usage(counted);
            // The whole tree is not counted one by one.
            self.counted = Some(if counted.is_empty() { 0 } else { usize::try_from(usage.count).unwrap_or(0) });
            self.write_usage(path.clone(), &Record::of(usage));
        }
        self.count_usage(&path, usage);
        Ok(Change::Create { path, data, acl, owner, parent_cversion })
    }

    fn delete(&mut self, path: String, version: i32) -> Result<Change, ErrorCode> {
        if is_fixed(&path) || path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        let (parent, _) = split(&path).ok_or(ErrorCode::BadArguments)?;
        let parent = self.get(parent)?;
        self.may(&parent, DELETE)?;
        let node = self.get(&path)?;
        check_version(node.stat.version, version)?;
        self.stage_deletion(path, &node)
    }

    fn reap(&mut self, path: String) -> Result<Change, ErrorCode> {
        let node = self.get(&path)?;
        match Lifetime::of_owner(node.stat.owner) {
            Lifetime::Container | Lifetime::Ttl(_) => self.stage_deletion(path, &node),
            Lifetime::Persistent | Lifetime::Session(_) => Err(ErrorCode::BadVersion),
        }
    }

    fn stage_deletion(&mut self, path: String, node: &Summary) -> Result<Change, ErrorCode> {
        if node.children > 0 {
            return Err(ErrorCode::NotEmpty);
        }
        let (parent_path, name) = split(&path).ok_or(ErrorCode::BadArguments)?;
        let mut parent = self.get(parent_path)?;
        parent.stat.pzxid = self.zxid;
        parent.children = parent.children.saturating_sub(1);
        parent.children_sum.subtract(&hashing(self.state).hash(name.as_bytes()));
        self.staged.insert(parent_path.to_owned(), Some(parent));
        self.staged.insert(path.clone(), None);
        self.count_usage(&path, Usage::default().minus(Usage::of(node.data.as_deref())));
        Ok(Change::Delete { path })
    }

    fn set_data(&mut self, path: String, data: Option<Bytes>, version: i32) -> Result<Change, ErrorCode> {
        let mut node = self.get(valid(&path)?)?;
        self.may(&node, WRITE)?;
        let usage = Usage::of_change(node.data.as_deref(), data.as_deref());
        self.check_quota(&path, usage)?;
        let version = check_version(node.stat.version, version)?;
        node.stat = Persisted { version, mzxid: self.zxid, mtime: self.origin.time_ms, ..node.stat };
        node.set_data(data.clone());
        self.staged.insert(path.clone(), Some(node));
        self.count_usage(&path, usage);
        Ok(Change::SetData { path, data, version })
    }

    /// The nearest path with a quota that a node at `path` counts for.
    fn limited_above<'p>(&self, path: &'p str) -> Option<&'p str> {
        if self.state.limited.is_empty() && !self.preparer.is_quota_coming && !self.has_quota {
            return None;
        }
        quota::candidates(path).find(|above| self.get(&quota::limits_path(above)).is_ok())
    }

    fn check_quota(&self, path: &str, more: Usage) -> Result<(), ErrorCode> {
        if !self.preparer.enforces_quotas {
            return Ok(());
        }
        let Some(limited) = self.limited_above(path) else { return Ok(()) };
        let (Ok(limits), Ok(stats)) = (self.get(&quota::limits_path(limited)), self.get(&quota::stats_path(limited))) else {
            return Ok(());
        };
        let is_over = Record::read(limits.data.as_deref()).forbids(&Record::read(stats.data.as_deref()), more);
        if is_over { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }

    /// Stages what [`State::apply`] will count.
    fn count_usage(&mut self, path: &str, more: Usage) {
        let Some(limited) = self.limited_above(path) else { return };
        let stats = quota::stats_path(limited);
        let Ok(node) = self.get(&stats) else { return };
        let record = Record::read(node.data.as_deref()).plus(more);
        self.write_usage(stats, &record);
    }

    fn write_usage(&mut self, stats: String, record: &Record) {
        let Ok(mut node) = self.get(&stats) else { return };
        node.set_data(Some(record.write()));
        self.staged.insert(stats, Some(node));
    }

    /// How much there will be at `path` and below: what is there, and what was prepared and staged.
    fn usage(&self, path: &str) -> Usage {
        let is_within = |other: &str| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let prepared = self.preparer.futures.iter().map(|(path, (_, future))| (path, future.as_ref().map(|(summary, _)| summary)));
        let staged = self.staged.iter().map(|(path, summary)| (path, summary.as_ref()));
        let changed: BTreeMap<&String, Option<&Summary>> = prepared.chain(staged).filter(|(path, _)| is_within(path)).collect();
        let mut usage = self.state.usage(path);
        for (path, future) in changed {
            if let Some(node) = self.state.nodes.get(path) {
                usage = usage.minus(Usage::of(node.data.as_deref()));
            }
            if let Some(summary) = future {
                usage = usage.plus(Usage::of(summary.data.as_deref()));
            }
        }
        usage
    }

    fn set_acl(&mut self, path: String, acl: &[jute::Acl], version: i32) -> Result<Change, ErrorCode> {
        self.check_session()?;
        valid(&path)?;
        let acl = acl::resolve(acl, self.origin.identities)?;
        let mut node = self.get(&path)?;
        self.may(&node, ADMIN)?;
        let version = check_version(node.stat.aversion, version)?;
        node.stat.aversion = version;
        node.acl = acl.clone();
        self.staged.insert(path.clone(), Some(node));
        Ok(Change::SetAcl { path, acl, version })
    }

    fn close_session(&mut self) -> Result<Body, ErrorCode> {
        self.check_session()?;
        let session = self.origin.session;
        let mut paths: BTreeSet<String> = BTreeSet::new();
        if let Some(ephemerals) = self.state.ephemerals.get(&session) {
            paths.extend(ephemerals.paths.iter().map(|path| path.to_string()));
        }
        for (path, (_, future)) in &self.preparer.futures {
            match future {
                Some((summary, _)) if summary.stat.owner == session => paths.insert(path.clone()),
                _ => paths.remove(path),
            };
        }
        for path in &paths {
            let node = self.get(path)?;
            self.stage_deletion(path.clone(), &node)?;
        }
        Ok(Body::CloseSession { paths: paths.into_iter().collect() })
    }
}

/// How what is foreseen is hashed: not at all where nobody compares it.
fn hashing(state: &State) -> Profile {
    if state.is_realtime { state.profile } else { Profile::Off }
}

fn valid(path: &str) -> Result<&str, ErrorCode> {
    if is_valid(path) { Ok(path) } else { Err(ErrorCode::BadArguments) }
}

/// The version after the present one, if that is the one expected.
fn check_version(present: i32, expected: i32) -> Result<i32, ErrorCode> {
    if expected == -1 || expected == present { Ok(next_version(present)) } else { Err(ErrorCode::BadVersion) }
}

#[cfg(test)]
mod tests {
    use jute::{Acl, permissions};

    use super::*;

    fn begun() -> (State, Preparer) {
        let mut state = State::new(Profile::Off, 1);
        let mut preparer = Preparer::new(&state);
        let proposal = Proposal::CreateSession { timeout_ms: 1_000, password: [1; PASSWORD_BYTES] };
        let transaction = preparer.prepare(&state, proposal, Origin { session: 1, xid: 0, identities: &[], time_ms: 1 });
        state.apply(&transaction).expect("it was prepared for this");
        preparer.applied(&transaction);
        (state, preparer)
    }

    fn create(path: String, mode: CreateMode, acl: Vec<Acl>) -> Operation {
        Operation::Create(Create { path, data: None, acl, mode, sequential: false, wants_stat: false })
    }

    fn prepared(operations: Vec<Operation>, identities: &[Id]) -> Body {
        let (mut state, mut preparer) = begun();
        let transaction = preparer.prepare(&state, Proposal::Multi(operations), Origin { session: 1, xid: 1, identities, time_ms: 2 });
        let mut encoded = Vec::new();
        transaction.encode(&mut encoded);
        assert!(encoded.len() <= TRANSACTION_BYTES_MAX + 128);
        state.apply(&transaction).expect("whatever came of it");
        transaction.body
    }

    #[test]
    fn a_request_that_comes_to_too_much_fails() {
        let shown: Vec<Id> = (0..8).map(|at| Id::new("digest", &format!("{at}{}:hash", "x".repeat(240)))).collect();
        let auth = |permissions| Acl { permissions, id: Id::new("auth", "") };
        let acl: Vec<Acl> = (0..100).map(|more| auth(permissions::ALL | more << 8)).collect();
        let create = |at: usize| create(format!("/{at}"), CreateMode::Persistent, acl.clone());
        assert!(matches!(prepared((0..70).map(create).collect(), &shown), Body::Changes(_)));
        assert_eq!(prepared((0..90).map(create).collect(), &shown), Body::Failed { code: ErrorCode::MarshallingError, at: 0 });
    }

    #[test]
    fn what_a_multi_stages_counts_among_the_ephemeral_nodes_of_its_session() {
        let create = |at: usize| create(format!("/{at}{}", "x".repeat(1 << 20)), CreateMode::Ephemeral, vec![Acl::open()]);
        assert!(matches!(prepared((0..7).map(create).collect(), &[]), Body::Changes(_)));
        assert_eq!(prepared((0..8).map(create).collect(), &[]), Body::Failed { code: ErrorCode::QuotaExceeded, at: 7 });
    }

    #[test]
    fn a_session_has_so_many_ephemeral_nodes() {
        let (mut state, mut preparer) = begun();
        let mut make = |numbers: std::ops::Range<usize>| {
            let operations = numbers.map(|at| create(format!("/{at}"), CreateMode::Ephemeral, vec![Acl::open()])).collect();
            let origin = Origin { session: 1, xid: 1, identities: &[], time_ms: 2 };
            let transaction = preparer.prepare(&state, Proposal::Multi(operations), origin);
            state.apply(&transaction).expect("whatever came of it");
            preparer.applied(&transaction);
            transaction.body
        };
        assert!(matches!(make(0..EPHEMERALS_MAX / 2), Body::Changes(_)));
        assert_eq!(make(EPHEMERALS_MAX / 2..EPHEMERALS_MAX + 1), Body::Failed { code: ErrorCode::QuotaExceeded, at: 10_000 });
        assert!(matches!(make(EPHEMERALS_MAX / 2..EPHEMERALS_MAX), Body::Changes(_)));
        assert_eq!(make(EPHEMERALS_MAX..EPHEMERALS_MAX + 1), Body::Failed { code: ErrorCode::QuotaExceeded, at: 0 });
    }

    #[test]
    fn a_multi_counts_what_there_is_for_one_quota_at_most() {
        for counted in ["", "/a"] {
            let stats = quota::stats_path(counted);
            let create = |path: &str| create(path.to_owned(), CreateMode::Persistent, vec![Acl::open()]);
            let delete = || Operation::Delete { path: stats.clone(), version: -1 };
            let made = ["/a", "/zookeeper/quota/a"].map(create);
            let with = |more: Vec<Operation>| prepared(made.iter().cloned().chain(more).collect(), &[]);
            assert!(matches!(with(vec![create(&stats), delete()]), Body::Changes(_)));
            let second = Body::Failed { code: ErrorCode::BadArguments, at: 4 };
            assert_eq!(with(vec![create(&stats), delete(), create(&stats)]), second, "{stats}");
        }
    }
}
