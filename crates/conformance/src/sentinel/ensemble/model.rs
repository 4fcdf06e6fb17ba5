//! What the tree was after each transaction: another implementation than the servers', which keeps all of the past.
//!
//! It says what every read at any place must have shown, which event each watch waits for, and whether each transaction follows from what
//! was before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::sentinel::{Body, Change, Transaction};
use bytes::Bytes;
use jute::{ErrorCode, EventKind, Stat};

/// A node as it was for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub data: Option<Bytes>,
    pub children: BTreeSet<String>,
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    pub version: i32,
    pub aversion: i32,
    /// How many children it has ever had.
    created: i32,
    pub owner: i64,
}

impl Node {
    /// In what a stat differs from the one that this node must have, but for the times.
    pub fn is_shown_by(&self, stat: &Stat) -> bool {
        let children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        let length = self.data.as_ref().map_or(0, Bytes::len);
        let expected = Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: stat.ctime,
            mtime: stat.mtime,
            version: self.version,
            cversion: self.created.wrapping_mul(2).wrapping_sub(children),
            aversion: self.aversion,
            // Clients are not told that a node is a container.
            ephemeral_owner: self.owner.max(0),
            data_length: i32::try_from(length).unwrap_or(i32::MAX),
            num_children: children,
            pzxid: self.pzxid,
        };
        *stat == expected
    }
}

/// A transaction that was delivered, as far as clients are told of it.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub session: i64,
    pub xid: i32,
    /// Why it failed, if it did.
    pub failed: Option<ErrorCode>,
}

/// A session.
#[derive(Debug)]
struct Session {
    ephemerals: BTreeSet<String>,
    last_xid: i32,
}

/// What a path held from which transaction on.
type Past = Vec<(i64, Option<Arc<Node>>)>;

/// The tree's past.
#[derive(Debug)]
pub struct Model {
    nodes: BTreeMap<String, Past>,
    events: BTreeMap<String, Vec<(i64, EventKind)>>,
    transactions: BTreeMap<i64, Delivered>,
    sessions: BTreeMap<i64, Session>,
    last: i64,
    /// How many sessions have ended.
    closed: u64,
    /// What did not follow from what was before.
    pub wrong: Vec<String>,
}

/// The parent's path, and the name there.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

impl Model {
    pub fn new() -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            events: BTreeMap::new(),
            transactions: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last: 0,
            closed: 0,
            wrong: Vec::new(),
        };
        let root = Node { data: Some(Bytes::new()), children: ["zookeeper".to_owned()].into(), ..Node::default() };
        model.put("/", Some(root));
        model
    }

    /// The last transaction.
    pub fn last(&self) -> i64 {
        self.last
    }

    /// What was at `path` after transaction `zxid`.
    pub fn at(&self, path: &str, zxid: i64) -> Option<Arc<Node>> {
        let past = self.nodes.get(path)?;
        past[..past.partition_point(|(from, _)| *from <= zxid)].last()?.1.clone()
    }

    /// The transaction at `zxid`.
    pub fn transaction(&self, zxid: i64) -> Option<&Delivered> {
        self.transactions.get(&zxid)
    }

    /// The first event at `path` after `since` up to `until` that one of these kinds of watches waits for.
    pub fn first_event(&self, path: &str, kinds: &[EventKind], (since, until): (i64, i64)) -> Option<(i64, EventKind)> {
        let past = self.events.get(path)?;
        let later = past[past.partition_point(|(zxid, _)| *zxid <= since)..].iter();
        later.take_while(|(zxid, _)| *zxid <= until).find(|(_, kind)| kinds.contains(kind)).copied()
    }

    /// Whether a session has begun and not ended.
    pub fn is_alive(&self, session: i64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// How many sessions have ended.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Sessions that have ephemeral nodes.
    pub fn owners(&self) -> impl Iterator<Item = i64> + '_ {
        self.sessions.iter().filter(|(_, session)| !session.ephemerals.is_empty()).map(|(id, _)| *id)
    }

    /// All nodes that are there now.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|(_, past)| past.last().is_some_and(|(_, node)| node.is_some())).map(|(path, _)| path.as_str())
    }

    fn put(&mut self, path: &str, node: Option<Node>) {
        let (last, past) = (self.last, self.nodes.entry(path.to_owned()).or_default());
        let node = node.map(Arc::new);
        match past.last_mut() {
            Some((zxid, there)) if *zxid == last => *there = node,
            _ => past.push((last, node)),
        }
    }

    fn now(&self, path: &str) -> Option<Node> {
        self.nodes.get(path)?.last()?.1.as_deref().cloned()
    }

    fn event(&mut self, path: &str, kind: EventKind) {
        self.events.entry(path.to_owned()).or_default().push((self.last, kind));
    }

    fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(format!("at {:#x} {}", self.last, what()));
        }
    }

    /// Takes in the next transaction that was delivered.
    pub fn apply(&mut self, transaction: &Transaction) {
        let Transaction { zxid, session, xid, body, .. } = transaction;
        self.demand(*zxid > self.last, || format!("{zxid:#x} comes next"));
        self.last = *zxid;
        let failed = if let Body::Failed { code, .. } = body { Some(*code) } else { None };
        self.transactions.insert(*zxid, Delivered { session: *session, xid: *xid, failed });
        match body {
            Body::Failed { .. } => {}
            Body::CreateSession { .. } => {
                let before = self.sessions.insert(*session, Session { ephemerals: BTreeSet::new(), last_xid: 0 });
                self.demand(before.is_none(), || format!("session {session:#x} begins, and was there"));
            }
            Body::CloseSession { paths } => {
                let ended = self.sessions.remove(session);
                self.closed += 1;
                let named: BTreeSet<String> = paths.iter().cloned().collect();
                let owned = ended.as_ref().map(|ended| ended.ephemerals.clone());
                self.demand(owned.as_ref() == Some(&named), || format!("session {session:#x} ends with {named:?}, and had {owned:?}"));
                paths.iter().for_each(|path| self.delete(path));
            }
            Body::Changes(changes) => {
                self.check_session(*session, *xid);
                changes.iter().for_each(|change| self.change(change));
            }
        }
    }

    /// A session's changes come while it is there, in the order in which its client asked for them; those of the engine's clients, which have no
    /// number there (0), in any order.
    fn check_session(&mut self, session: i64, xid: i32) {
        if session == 0 {
            return;
        }
        let before = self.sessions.get_mut(&session).map(|known| std::mem::replace(&mut known.last_xid, xid));
        self.demand(before.is_some_and(|before| before < xid || (before, xid) == (0, 0)), || {
            format!("session {session:#x} changes something by request {xid}; before that came {before:?}, or it is no more")
        });
    }

    fn change(&mut self, change: &Change) {
        let zxid = self.last;
        match change {
            Change::Create { path, data, owner, .. } => {
                let (parent_path, name) = split(path);
                let (there, parent) = (self.now(path), self.now(parent_path));
                self.demand(there.is_none(), || format!("{path} is created, and was there"));
                self.demand(parent.is_some(), || format!("{path} is created below nothing"));
                let mut parent = parent.unwrap_or_default();
                parent.children.insert(name.to_owned());
                (parent.created, parent.pzxid) = (parent.created + 1, zxid);
                self.put(parent_path, Some(parent));
                let node = Node { data: data.clone(), czxid: zxid, mzxid: zxid, pzxid: zxid, owner: *owner, ..Node::default() };
                self.put(path, Some(node));
                if *owner > 0 {
                    let owned = self.sessions.get_mut(owner).map(|session| session.ephemerals.insert(path.clone()));
                    self.demand(owned == Some(true), || format!("{path} belongs to session {owner:#x}, which is not there"));
                }
                self.event(path, EventKind::Created);
                self.event(parent_path, EventKind::ChildrenChanged);
            }
            Change::Delete { path } => self.delete(path),
            Change::SetData { path, data, version } => {
                let mut node = self.now(path).unwrap_or_default();
                self.demand(node.czxid > 0 && node.version + 1 == *version, || format!("{path} gets version {version} after {node:?}"));
                (node.data, node.version, node.mzxid) = (data.clone(), *version, zxid);
                self.put(path, Some(node));
                self.event(path, EventKind::DataChanged);
            }
            Change::SetAcl { path, version, .. } => {
                let mut node = self.now(path).unwrap_or_default();
                self.demand(node.aversion + 1 == *version, || format!("the ACL of {path} gets version {version}"));
                node.aversion = *version;
                self.put(path, Some(node));
            }
            Change::Check { path } => {
                let is_there = self.now(path).is_some();
                self.demand(is_there, || format!("{path} is checked, and is not there"));
            }
        }
    }

    fn delete(&mut self, path: &str) {
        let (parent_path, name) = split(path);
        let node = self.now(path);
        self.demand(node.as_ref().is_some_and(|node| node.children.is_empty()), || format!("{path} is deleted, and was {node:?}"));
        let node = node.unwrap_or_default();
        self.put(path, None);
        if let Some(mut parent) = self.now(parent_path) {
            parent.children.remove(name);
            parent.pzxid = self.last;
            self.put(parent_path, Some(parent));
        }
        if let Some(session) = self.sessions.get_mut(&node.owner) {
            session.ephemerals.remove(path);
        }
        self.event(path, EventKind::Deleted);
        self.event(parent_path, EventKind::ChildrenChanged);
    }
}
