//! A node of the tree, and its leaf in the digest.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use jute::{Acl, Stat};

use crate::digest::{Leaf, Profile, WideSum};

/// What a leaf's input begins with, so that no two kinds of parts have the same.
const NODE_LEAF: u8 = 1;
const SESSION_LEAF: u8 = 2;
/// The owner of a container.
pub(crate) const CONTAINER: i64 = i64::MIN;
/// What the owner of a node with a time to live begins with; the time is in the lowest five bytes.
const TTL_MASK: i64 = -1 << 56;
/// The bits of an owner that say what is extended: none for a time to live.
const TTL_RESERVED: i64 = 0x00ff_ff00_0000_0000;
/// The longest time to live: some 34 years.
pub(crate) const TTL_MS_MAX: i64 = (1 << 40) - 1;

/// What becomes of a node in the end, as its `ephemeral_owner` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Persistent,
    Session(i64),
    Container,
    Ttl(i64),
}

impl Lifetime {
    pub(crate) fn of_owner(owner: i64) -> Self {
        match owner {
            0 => Self::Persistent,
            CONTAINER => Self::Container,
            owner if owner & TTL_MASK == TTL_MASK && owner & TTL_RESERVED == 0 => Self::Ttl(owner & TTL_MS_MAX),
            owner => Self::Session(owner),
        }
    }

    pub(crate) fn owner(self) -> i64 {
        match self {
            Self::Persistent => 0,
            Self::Container => CONTAINER,
            Self::Ttl(ttl_ms) => TTL_MASK | ttl_ms,
            Self::Session(session) => session,
        }
    }
}

/// The part of a node's stat that is kept; the rest follows from its data and children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Persisted {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    /// How many children were ever created; clients are told creations and deletions.
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    pub(crate) owner: i64,
    pub(crate) pzxid: i64,
}

/// The names of a node's children, and the sum of their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Children {
    names: BTreeSet<Box<str>>,
    sum: WideSum,
}

impl Children {
    /// Adds a name; false when it is there already.
    pub(crate) fn insert(&mut self, name: &str, profile: Profile) -> bool {
        let is_new = self.names.insert(name.into());
        if is_new {
            self.sum.add(&profile.hash(name.as_bytes()));
        }
        is_new
    }

    /// Removes a name; false when it is not there.
    pub(crate) fn remove(&mut self, name: &str, profile: Profile) -> bool {
        let was_there = self.names.remove(name);
        if was_there {
            self.sum.subtract(&profile.hash(name.as_bytes()));
        }
        was_there
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Computes the sum anew, for another profile.
    pub(crate) fn rehash(&mut self, profile: Profile) {
        self.sum = self.recomputed(profile);
    }

    /// The sum, computed from the names alone.
    fn recomputed(&self, profile: Profile) -> WideSum {
        let mut sum = WideSum::default();
        self.names.iter().for_each(|name| sum.add(&profile.hash(name.as_bytes())));
        sum
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) stat: Persisted,
    pub(crate) children: Children,
    /// The hash of the data, so that a change of the rest does not hash them again.
    pub(crate) data_hash: Leaf,
    /// The node's leaf, as it is in the digest of the state.
    pub(crate) leaf: Leaf,
}

/// Everything that a leaf covers, with children as a hash.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) stat: Persisted,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) children: usize,
    pub(crate) children_sum: WideSum,
    pub(crate) data: Option<Bytes>,
    /// The hash of the data.
    pub(crate) data_hash: Leaf,
}

/// The hash of a node's data.
pub(crate) fn data_hash(profile: Profile, data: Option<&Bytes>) -> Leaf {
    profile.hash(data.map_or(&[], |data| &data[..]))
}

impl Summary {
    /// Puts other data there.
    pub(crate) fn set_data(&mut self, profile: Profile, data: Option<Bytes>) {
        self.data_hash = data_hash(profile, data.as_ref());
        self.data = data;
    }

    /// The leaf of the node at `path`. Each field has a fixed width or stands behind its length, so that no two nodes have one input.
    pub(crate) fn leaf(&self, profile: Profile, path: &str) -> Leaf {
        if profile == Profile::Off {
            return Leaf::default();
        }
        let mut input = Vec::with_capacity(256 + path.len());
        input.push(NODE_LEAF);
        put_text(&mut input, path);
        let stat = &self.stat;
        for long in [stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.owner, stat.pzxid] {
            input.extend_from_slice(&long.to_be_bytes());
        }
        for int in [stat.version, stat.cversion, stat.aversion] {
            input.extend_from_slice(&int.to_be_bytes());
        }
        put_length(&mut input, self.acl.len());
        for acl in self.acl.iter() {
            input.extend_from_slice(&acl.permissions.to_be_bytes());
            put_text(&mut input, &acl.id.scheme);
            put_text(&mut input, &acl.id.id);
        }
        put_length(&mut input, self.children);
        input.extend_from_slice(&self.children_sum.to_bytes());
        input.push(u8::from(self.data.is_some()));
        put_length(&mut input, self.data.as_ref().map_or(0, Bytes::len));
        input.extend_from_slice(&self.data_hash.0);
        profile.hash(&input)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// The leaf of a session.
pub(crate) fn session_leaf(profile: Profile, id: i64, timeout_ms: i32, password: &[u8; 16]) -> Leaf {
    let mut input = vec![SESSION_LEAF];
    input.extend_from_slice(&id.to_be_bytes());
    input.extend_from_slice(&timeout_ms.to_be_bytes());
    input.extend_from_slice(password);
    profile.hash(&input)
}

impl Node {
    pub(crate) fn new(profile: Profile, data: Option<Bytes>, acl: Arc<[Acl]>, stat: Persisted) -> Self {
        let data_hash = data_hash(profile, data.as_ref());
        Self { data, acl, stat, children: Children::default(), data_hash, leaf: Leaf::default() }
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            stat: self.stat,
            acl: self.acl.clone(),
            children: self.children.len(),
            children_sum: self.children.sum,
            data: self.data.clone(),
            data_hash: self.data_hash,
        }
    }

    /// The leaf, computed from the node alone and from nothing that was kept of it.
    pub(crate) fn recomputed_leaf(&self, profile: Profile, path: &str) -> Leaf {
        let mut summary = self.summary();
        summary.data_hash = data_hash(profile, self.data.as_ref());
        summary.children_sum = self.children.recomputed(profile);
        summary.leaf(profile, path)
    }

    /// What differs between this node and the one at the same path elsewhere.
    pub(crate) fn difference(&self, other: Option<&Self>) -> Option<&'static str> {
        let Some(other) = other else { return Some("only one of them has the node") };
        let fields = [
            (self.data == other.data, "the data"),
            (self.stat == other.stat, "the stat"),
            (self.acl == other.acl, "the ACL"),
            (self.children.names == other.children.names, "the set of children"),
        ];
        fields.into_iter().find(|(is_same, _)| !is_same).map(|(_, field)| field)
    }

    /// What clients are told.
    pub(crate) fn stat(&self) -> Stat {
        let length = |length: usize| i32::try_from(length).unwrap_or(i32::MAX);
        let stat = &self.stat;
        let num_children = length(self.children.len());
        Stat {
            czxid: stat.czxid,
            mzxid: stat.mzxid,
            ctime: stat.ctime,
            mtime: stat.mtime,
            version: stat.version,
            cversion: stat.cversion.wrapping_mul(2).wrapping_sub(num_children),
            aversion: stat.aversion,
            ephemeral_owner: match Lifetime::of_owner(stat.owner) {
                Lifetime::Session(session) => session,
                // Clients take a node with an owner for one that ends with a session.
                Lifetime::Persistent | Lifetime::Container | Lifetime::Ttl(_) => 0,
            },
            data_length: self.data.as_ref().map_or(0, |data| length(data.len())),
            num_children,
            pzxid: stat.pzxid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_says_how_long_a_node_lives() {
        for lifetime in [Lifetime::Persistent, Lifetime::Container, Lifetime::Ttl(1), Lifetime::Ttl(TTL_MS_MAX), Lifetime::Session(7)] {
            assert_eq!(Lifetime::of_owner(lifetime.owner()), lifetime);
        }
        assert_eq!(Lifetime::Ttl(5_000).owner(), 0xff00_0000_0000_1388_u64.cast_signed());
    }
}
