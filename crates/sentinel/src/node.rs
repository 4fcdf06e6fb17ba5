//! A node of the tree, and its leaf in the digest.

use std::hash::BuildHasher as _;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use jute::{Acl, Stat};
use mutants::{Mutant, broken};
use types::Direction;

use crate::digest::{Leaf, Profile, WideSum};
use crate::text_map::TextMap;

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

/// The names of a node's children, and the sum of their hashes. Most nodes have none, and take no room for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children(Option<Box<Names>>);

#[derive(Clone, Debug, Default)]
struct Names {
    names: TextMap<()>,
    sum: WideSum,
    /// The sum of short hashes of the names: for whoever reads all of them, and looks whether they are those that were put there.
    quick_sum: u64,
}

fn quick_hash(name: &str) -> u64 {
    FixedState::with_seed(0).hash_one(name)
}

impl Children {
    /// Adds a name; false when it is there already.
    pub(crate) fn insert(&mut self, name: &str, profile: Profile) -> bool {
        let names = self.0.get_or_insert_default();
        if names.names.contains(name) {
            return false;
        }
        names.names.insert(name.into(), ());
        names.sum.add(&profile.hash(name.as_bytes()));
        if profile != Profile::Off {
            names.quick_sum = names.quick_sum.wrapping_add(quick_hash(name));
        }
        true
    }

    /// Removes a name; false when it is not there.
    pub(crate) fn remove(&mut self, name: &str, profile: Profile) -> bool {
        let Some(names) = &mut self.0 else { return false };
        if names.names.remove(name).is_none() {
            return false;
        }
        names.sum.subtract(&profile.hash(name.as_bytes()));
        if profile != Profile::Off {
            names.quick_sum = names.quick_sum.wrapping_sub(quick_hash(name));
        }
        // A sum that is not that of no names shows that the names were damaged: it stays.
        if names.names.len() == 0 && names.sum == WideSum::default() {
            self.0 = None;
        }
        true
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.names.contains(name))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|names| names.names.iter()).map(|(name, ())| name)
    }

    /// The names from `low` (included) to `high` (excluded), in this direction.
    pub(crate) fn between(&self, low: &str, high: &str, direction: Direction) -> impl Iterator<Item = &str> + use<'_> {
        let names = self.0.as_ref().map(|names| direction.of(names.names.between(low, high)));
        names.into_iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |names| names.names.len())
    }

    fn sum(&self) -> WideSum {
        self.0.as_ref().map_or_else(WideSum::default, |names| names.sum)
    }

    fn has_the_same_names(&self, other: &Self) -> bool {
        self.len() == other.len() && self.names().all(|name| other.contains(name))
    }

    /// Computes the sum anew, for another profile.
    pub(crate) fn rehash(&mut self, profile: Profile) {
        let (sum, quick_sum) = (self.recomputed(profile), self.recomputed_quick_sum());
        if let Some(names) = &mut self.0 {
            (names.sum, names.quick_sum) = (sum, quick_sum);
        }
    }

    /// Whether the names are those that were put there.
    fn are_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|names| names.quick_sum == self.recomputed_quick_sum())
    }

    fn recomputed_quick_sum(&self) -> u64 {
        self.names().fold(0, |sum, name| sum.wrapping_add(quick_hash(name)))
    }

    /// The sum, computed from the names alone.
    fn recomputed(&self, profile: Profile) -> WideSum {
        let mut sum = WideSum::default();
        self.names().for_each(|name| sum.add(&profile.hash(name.as_bytes())));
        sum
    }
}

/// The lines of an ACL. Nodes share them, and each has one pointer to them.
pub(crate) type AclLines = Arc<Vec<Acl>>;

/// What clients wrote into a node, in memory of its own: not a part of the request that it came in, which would be kept with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data(Arc<[u8]>);

impl Data {
    /// The same, to be sent.
    pub(crate) fn to_bytes(&self) -> Bytes {
        if self.is_empty() { Bytes::new() } else { Bytes::from_owner(self.clone()) }
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Self {
        // All that are empty are the same one.
        if bytes.is_empty() { Self::default() } else { Self(bytes.into()) }
    }
}

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Of data as long as this the hash is kept, so that a change of the rest does not hash them again. Shorter ones are not
/// worth the room: SHA-256 takes 44 ns for 64 bytes.
const HASH_KEPT_FROM: usize = 256;

/// A node. There may be millions, so it holds nothing that is found fast enough from the rest.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: Option<Data>,
    pub(crate) acl: AclLines,
    pub(crate) stat: Persisted,
    pub(crate) children: Children,
    /// The hash of long data.
    kept_hash: Option<Box<Leaf>>,
    /// The checksum of the data. Like the other one, it costs little enough to be looked at before every read and change.
    data_crc: u32,
    /// The checksum of all else that the leaf covers, of the hash of long data, and of the leaf.
    head_crc: u32,
    /// The node's leaf, as it is in the digest of the state.
    pub(crate) leaf: Leaf,
}

/// What of a node is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Its stat or its ACL; with short data, these too.
    Head,
    /// Its data, and the head.
    Data,
    /// The names of its children, and the head.
    Children,
}

/// Everything that a leaf covers, with children as a hash.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) stat: Persisted,
    pub(crate) acl: AclLines,
    pub(crate) children: usize,
    pub(crate) children_sum: WideSum,
    pub(crate) data: Option<Bytes>,
    /// The hash of the data, where it is known.
    data_hash: Option<Hashed>,
}

/// What was hashed of a node when a transaction was prepared that changes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    pub(crate) data: Hashed,
    pub(crate) leaf: Hashed,
}

/// A hash, and a checksum of what it is the hash of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hashed {
    pub(crate) crc: u32,
    pub(crate) hash: Leaf,
}

impl Hashed {
    fn new(profile: Profile, bytes: &[u8]) -> Self {
        if profile == Profile::Off { Self::default() } else { Self { crc: crc32fast::hash(bytes), hash: profile.hash(bytes) } }
    }

    /// Its hash, if it is of what has the checksum `crc`.
    fn of(self, crc: u32) -> Option<Leaf> {
        (self.crc == crc || broken(Mutant::PreparedBelieved)).then_some(self.hash)
    }
}

impl Summary {
    /// Of a node that is to be created.
    pub(crate) fn new(data: Option<Bytes>, acl: AclLines, stat: Persisted) -> Self {
        Self { stat, acl, children: 0, children_sum: WideSum::default(), data, data_hash: None }
    }

    /// Puts other data there.
    pub(crate) fn set_data(&mut self, data: Option<Bytes>) {
        (self.data, self.data_hash) = (data, None);
    }

    /// The hashes of the data and of the node at `path`. The first is kept.
    pub(crate) fn hashed(&mut self, profile: Profile, path: &str) -> Prepared {
        let data = *self.data_hash.get_or_insert_with(|| Hashed::new(profile, self.data.as_deref().unwrap_or_default()));
        if profile == Profile::Off {
            return Prepared { data, leaf: Hashed::default() };
        }
        let mut input = self.head(path);
        input.extend_from_slice(&data.hash.0);
        Prepared { data, leaf: Hashed::new(profile, &input) }
    }

    fn head(&self, path: &str) -> Vec<u8> {
        head(path, &self.stat, &self.acl, self.children, &self.children_sum, self.data.as_deref())
    }
}

/// What the leaf of the node at `path` is the hash of, but for its end, which is the hash of the data. Each field has a fixed width or stands
/// behind its length, so that no two nodes have one input.
fn head(path: &str, stat: &Persisted, acl: &[Acl], children: usize, children_sum: &WideSum, data: Option<&[u8]>) -> Vec<u8> {
    let mut head = Vec::with_capacity(256 + path.len());
    head.push(NODE_LEAF);
    put_text(&mut head, path);
    for long in [stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.owner, stat.pzxid] {
        head.extend_from_slice(&long.to_be_bytes());
    }
    for int in [stat.version, stat.cversion, stat.aversion] {
        head.extend_from_slice(&int.to_be_bytes());
    }
    put_length(&mut head, acl.len());
    for acl in acl {
        head.extend_from_slice(&acl.permissions.to_be_bytes());
        put_text(&mut head, &acl.id.scheme);
        put_text(&mut head, &acl.id.id);
    }
    put_length(&mut head, children);
    head.extend_from_slice(&children_sum.to_bytes());
    head.push(u8::from(data.is_some()));
    put_length(&mut head, data.map_or(0, <[u8]>::len));
    head
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
    /// With data of which `prepared` was hashed, if anything was.
    pub(crate) fn new(profile: Profile, data: Option<&[u8]>, acl: AclLines, stat: Persisted, prepared: Option<Prepared>) -> Self {
        let data = data.map(Data::from);
        let mut node =
            Self { data, acl, stat, children: Children::default(), kept_hash: None, data_crc: 0, head_crc: 0, leaf: Leaf::default() };
        node.note_data(profile, prepared);
        node
    }

    /// Puts other data there, of which `prepared` was hashed, if anything was. Gives those that were there.
    pub(crate) fn put_data(&mut self, profile: Profile, data: Option<&[u8]>, prepared: Option<Prepared>) -> Option<Data> {
        let before = std::mem::replace(&mut self.data, data.map(Data::from));
        self.note_data(profile, prepared);
        before
    }

    fn bytes(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }

    /// The data are what is to be there from now on.
    fn note_data(&mut self, profile: Profile, prepared: Option<Prepared>) {
        if profile == Profile::Off {
            return;
        }
        self.data_crc = crc32fast::hash(self.bytes());
        let is_long = self.bytes().len() >= HASH_KEPT_FROM;
        // Not the one of the data before.
        self.kept_hash = None;
        if is_long {
            self.kept_hash = Some(Box::new(self.data_hash(profile, prepared)));
        }
    }

    fn data_hash(&self, profile: Profile, prepared: Option<Prepared>) -> Leaf {
        match &self.kept_hash {
            Some(hash) => **hash,
            None => prepared.and_then(|prepared| prepared.data.of(self.data_crc)).unwrap_or_else(|| profile.hash(self.bytes())),
        }
    }

    /// Of what the leaf covers but the data, of their hash where it is kept, and of the leaf.
    fn head_crc_of(&self, head: &[u8]) -> u32 {
        let kept = self.kept_hash.as_ref().map_or(0, |hash| crc32fast::hash(&hash.0).rotate_left(1));
        crc32fast::hash(head) ^ kept ^ crc32fast::hash(&self.leaf.0)
    }

    /// Hashes what there is for another profile.
    pub(crate) fn rehash(&mut self, profile: Profile) {
        (self.leaf, self.kept_hash, self.data_crc, self.head_crc) = (Leaf::default(), None, 0, 0);
        self.note_data(profile, None);
        self.children.rehash(profile);
    }

    /// Hashes the node as it is now, of which `prepared` was hashed, if anything was.
    pub(crate) fn seal(&mut self, profile: Profile, path: &str, prepared: Option<Prepared>) {
        if profile == Profile::Off {
            return;
        }
        let mut input = self.head(path);
        let head = input.len();
        input.extend_from_slice(&self.data_hash(profile, prepared).0);
        let known = prepared.and_then(|prepared| prepared.leaf.of(crc32fast::hash(&input)));
        self.leaf = known.unwrap_or_else(|| profile.hash(&input));
        self.head_crc = self.head_crc_of(&input[..head]);
    }

    fn head(&self, path: &str) -> Vec<u8> {
        head(path, &self.stat, &self.acl, self.children.len(), &self.children.sum(), self.data.as_deref())
    }

    /// Whether what is read of the node is as it was when it was hashed, under any profile but `Off`.
    pub(crate) fn is_as_sealed(&self, path: &str, part: Part) -> bool {
        let is_whole = match part {
            Part::Children => self.children.are_whole(),
            Part::Head | Part::Data => true,
        };
        let has_its_data = if part == Part::Data { self.has_its_data() } else { self.has_its_short_data() };
        is_whole && has_its_data && self.head_crc == self.head_crc_of(&self.head(path))
    }

    fn has_its_data(&self) -> bool {
        self.data_crc == crc32fast::hash(self.bytes())
    }

    /// Whether the data are those that were put there, if no hash of them is kept: they are hashed with every change of the node, which would take
    /// damage into its leaf.
    pub(crate) fn has_its_short_data(&self) -> bool {
        self.kept_hash.is_some() || self.has_its_data()
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            stat: self.stat,
            acl: self.acl.clone(),
            children: self.children.len(),
            children_sum: self.children.sum(),
            data: self.data.as_ref().map(Data::to_bytes),
            data_hash: self.kept_hash.as_ref().map(|hash| Hashed { crc: self.data_crc, hash: **hash }),
        }
    }

    /// The leaf, computed from the node alone and from nothing that was kept of it.
    pub(crate) fn recomputed_leaf(&self, profile: Profile, path: &str) -> Leaf {
        let sum = self.children.recomputed(profile);
        let mut input = head(path, &self.stat, &self.acl, self.children.len(), &sum, self.data.as_deref());
        input.extend_from_slice(&profile.hash(self.bytes()).0);
        profile.hash(&input)
    }

    /// What differs between this node and the one at the same path elsewhere.
    pub(crate) fn difference(&self, other: Option<&Self>) -> Option<&'static str> {
        let Some(other) = other else { return Some("only one of them has the node") };
        let fields = [
            (self.data == other.data, "the data"),
            (self.stat == other.stat, "the stat"),
            (self.acl == other.acl, "the ACL"),
            (self.children.has_the_same_names(&other.children), "the set of children"),
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
    fn many_children_are_found_in_order_whoever_copied_them() {
        let (mut many, profile) = (Children::default(), Profile::Sha256Wide);
        for number in 0..8_000 {
            assert!(many.insert(&number.to_string(), profile) && !many.insert(&number.to_string(), profile));
        }
        let copy = many.clone();
        assert_eq!((many.len(), many.names().count(), many.sum()), (8_000, 8_000, many.recomputed(profile)));
        assert!(many.remove("17", profile) && !many.remove("17", profile));
        assert!(copy.names().any(|name| name == "17") && !many.has_the_same_names(&copy));
        let some: Vec<&str> = many.between("17", "1720", Direction::Ascending).collect();
        let mut down: Vec<&str> = many.between("17", "1720", Direction::Descending).collect();
        down.reverse();
        assert!(some.len() > 20 && some.is_sorted() && some == down && some.iter().all(|name| ("17".."1720").contains(name)));
        for number in 0..8_000 {
            assert_eq!(many.remove(&number.to_string(), profile), number != 17);
        }
        assert!(many.0.is_none());
    }

    #[test]
    fn damage_of_what_is_kept_of_a_node_is_seen() {
        let (profile, path) = (Profile::Sha256Wide, "/a");
        let damages: [fn(&mut Node); 4] = [
            |node| node.data_crc ^= 1,
            |node| node.head_crc ^= 1,
            |node| node.leaf.0[31] ^= 1,
            |node| node.kept_hash.iter_mut().for_each(|hash| hash.0[0] ^= 1),
        ];
        for length in [0, 1, HASH_KEPT_FROM] {
            let mut node = Node::new(profile, Some(&vec![7; length]), crate::acl::open(), Persisted::default(), None);
            node.seal(profile, path, None);
            assert!(node.is_as_sealed(path, Part::Data) && node.leaf == node.recomputed_leaf(profile, path));
            for (number, damage) in damages.iter().enumerate().filter(|(number, _)| *number < 3 || length == HASH_KEPT_FROM) {
                let mut damaged = node.clone();
                damage(&mut damaged);
                assert!(!damaged.is_as_sealed(path, Part::Data), "{number} of {length}");
                // Whatever else changes is not hashed with it, or it is seen before.
                let is_hashed = number > 0 || length < HASH_KEPT_FROM;
                assert_eq!(damaged.is_as_sealed(path, Part::Head), !is_hashed, "{number} of {length}");
            }
        }
    }

    /// With its two counters it takes 160 bytes; the allocator's next size is 192.
    #[test]
    fn a_node_takes_eighteen_words() {
        assert_eq!(size_of::<Node>(), 18 * size_of::<u64>());
    }

    #[test]
    fn an_owner_says_how_long_a_node_lives() {
        for lifetime in [Lifetime::Persistent, Lifetime::Container, Lifetime::Ttl(1), Lifetime::Ttl(TTL_MS_MAX), Lifetime::Session(7)] {
            assert_eq!(Lifetime::of_owner(lifetime.owner()), lifetime);
        }
        assert_eq!(Lifetime::Ttl(5_000).owner(), 0xff00_0000_0000_1388_u64.cast_signed());
    }
}
