//! Checkpoints of the state, and how a replica that fell behind fetches one from others.
//!
//! The digest of a checkpoint is agreed on by the multicast. Everything below it is checked piece by piece as it comes: the head against
//! the digest, each node of the tree against the one above, each page against its node. So pieces may be fetched from anybody, a liar's
//! is noticed at once and costs one piece, and what the replica has already, from an older checkpoint, is not fetched again.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{ClusterId, Digest, ShardId};

use crate::limits::ENCODED_PAGE_BYTES_MAX;
use crate::locks::Structural;
use crate::pages::{FANOUT, NO_PAGE, PageNumber, Tree, index, levels, node_digest, page_digest};

/// What a checkpoint's digest is the digest of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose state it is.
    pub shard: ShardId,
    /// What structural locks are on there.
    pub structural: Structural,
    /// The last batch executed.
    pub sequence: u64,
    /// How many pages there are.
    pub pages: u32,
    /// The root of the tree over them.
    pub root: Digest,
}

impl Head {
    /// The checkpoint's digest.
    #[must_use]
    pub fn digest(&self, cluster: ClusterId) -> Digest {
        crypto::digest("augustus/checkpoint/1", cluster, &[&self.to_bytes()])
    }
}

/// A checkpoint: its digest, and what has changed since the one before.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The digest of the whole state.
    pub digest: Digest,
    /// What that is the digest of.
    pub head: Head,
    /// The pages that changed, with what they hold; those that are free now are empty.
    pub pages: Vec<(PageNumber, Bytes)>,
}

/// All of one checkpoint, for those who ask for it, and for the disk.
#[derive(Clone, Debug)]
pub struct Snapshot {
    cluster: ClusterId,
    head: Option<Head>,
    pages: Vec<Bytes>,
    tree: Tree,
}

/// A piece of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// The digests of the children, on this level (0 is that of pages), of the node at this place above it.
    Node(u8, u32),
    /// A page.
    Page(PageNumber),
}

impl Snapshot {
    /// Of nothing yet.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, head: None, pages: Vec::new(), tree: Tree::new(cluster) }
    }

    /// Becomes the next checkpoint.
    pub fn apply(&mut self, checkpoint: &Checkpoint) {
        for (number, bytes) in &checkpoint.pages {
            if self.pages.len() <= index(*number) {
                self.pages.resize(index(*number) + 1, Bytes::new());
            }
            self.pages[index(*number)] = bytes.clone();
            self.tree.set(*number, page_digest(self.cluster, *number, bytes));
        }
        let root = self.tree.root();
        assert_eq!(root, checkpoint.head.root, "a checkpoint has all pages that changed since the one before");
        self.head = Some(checkpoint.head);
    }

    /// Its head, if there was a checkpoint.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// All its pages, by number.
    #[must_use]
    pub fn pages(&self) -> &[Bytes] {
        &self.pages
    }

    /// A piece for somebody who asks; nothing when there is no such piece.
    #[must_use]
    pub fn piece(&self, piece: Piece) -> Option<Bytes> {
        match piece {
            Piece::Node(level, at) => {
                let children = self.tree.children(usize::from(level), at as usize);
                (!children.is_empty()).then(|| Bytes::copy_from_slice(children.as_flattened()))
            }
            Piece::Page(number) => self.pages.get(index(number)).cloned(),
        }
    }
}

/// Fetches one checkpoint, whose digest is known.
#[derive(Debug)]
pub struct Fetch {
    cluster: ClusterId,
    head: Head,
    /// Pieces to ask for, and the digest that each must have.
    wanted: VecDeque<(Piece, Digest)>,
    asked: BTreeMap<Piece, Digest>,
    pages: Vec<Bytes>,
    /// What the replica has itself.
    own: Snapshot,
}

/// A piece is not what was asked for, or was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a piece of a checkpoint is not what was asked for")]
pub struct WrongPiece;

impl Fetch {
    /// Fetches the checkpoint of this digest, which `head` is said to be of. What `own` has of it is not fetched.
    ///
    /// # Errors
    /// When it is another's head.
    pub fn new(cluster: ClusterId, digest: Digest, head: Head, own: &Snapshot) -> Result<Self, WrongPiece> {
        if head.digest(cluster) != digest {
            return Err(WrongPiece);
        }
        let top = levels(head.pages as usize) - 2;
        let mut fetch = Self {
            cluster,
            head,
            wanted: VecDeque::new(),
            asked: BTreeMap::new(),
            pages: vec![Bytes::new(); head.pages as usize],
            own: own.clone(),
        };
        let level = u8::try_from(top).expect("a tree over 32 bits of pages has few levels");
        fetch.want(Piece::Node(level, 0), head.root);
        Ok(fetch)
    }

    /// The next pieces to ask for, as long as fewer than `under_way_max` have been asked for and have not come.
    pub fn ask(&mut self, under_way_max: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while self.asked.len() < under_way_max
            && let Some((piece, digest)) = self.wanted.pop_front()
        {
            self.asked.insert(piece, digest);
            pieces.push(piece);
        }
        pieces
    }

    /// Asks again for what was asked for and has not come.
    pub fn ask_again(&mut self) {
        self.wanted.extend(std::mem::take(&mut self.asked));
    }

    /// Takes a piece that was asked for.
    ///
    /// # Errors
    /// When it is not what it should be. It is still asked for.
    pub fn take(&mut self, piece: Piece, bytes: Bytes) -> Result<(), WrongPiece> {
        let digest = *self.asked.get(&piece).ok_or(WrongPiece)?;
        match piece {
            Piece::Node(level, at) => {
                let (children, rest) = bytes.as_chunks::<32>();
                let is_node = rest.is_empty() && children.len() <= FANOUT;
                if !is_node || (node_digest(self.cluster, children) != digest && !broken(Mutant::PieceUnchecked)) {
                    return Err(WrongPiece);
                }
                self.want_children(level, at, children);
            }
            Piece::Page(number) => {
                let is_page = bytes.len() <= ENCODED_PAGE_BYTES_MAX && page_digest(self.cluster, number, &bytes) == digest;
                if !is_page && !broken(Mutant::PieceUnchecked) {
                    return Err(WrongPiece);
                }
                self.pages[index(number)] = Bytes::copy_from_slice(&bytes);
            }
        }
        self.asked.remove(&piece);
        Ok(())
    }

    fn want_children(&mut self, level: u8, at: u32, children: &[Digest]) {
        for (place, digest) in (at.saturating_mul(FANOUT as u32)..).zip(children) {
            match level.checked_sub(1) {
                Some(below) => self.want(Piece::Node(below, place), *digest),
                None => self.want(Piece::Page(PageNumber(place)), *digest),
            }
        }
    }

    /// Asks for a piece with this digest, unless the replica has all that is in it or below it.
    fn want(&mut self, piece: Piece, digest: Digest) {
        // A digest names the page, so that none is taken for another. A node stands one level above its children.
        let (level, place) = match piece {
            Piece::Node(level, at) => (usize::from(level) + 1, at as usize),
            Piece::Page(number) => (0, index(number)),
        };
        if digest == NO_PAGE {
            return;
        }
        if self.own.tree.digest(level, place) == Some(&digest) {
            let width = FANOUT.pow(u32::try_from(level).expect("there are few levels"));
            for at in place * width..((place + 1) * width).min(self.pages.len()) {
                self.pages[at] = self.own.pages.get(at).cloned().unwrap_or_default();
            }
            return;
        }
        match piece {
            // Pages first: else those of all nodes might be waiting at once.
            Piece::Page(number) if index(number) < self.pages.len() => self.wanted.push_front((piece, digest)),
            Piece::Page(_) => {}
            Piece::Node(..) => self.wanted.push_back((piece, digest)),
        }
    }

    /// The checkpoint's head and all its pages, once nothing is missing.
    ///
    /// # Errors
    /// This fetch, while something is.
    pub fn finish(self) -> Result<(Head, Vec<Bytes>), Box<Self>> {
        if self.wanted.is_empty() && self.asked.is_empty() { Ok((self.head, self.pages)) } else { Err(Box::new(self)) }
    }
}

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>) {
        self.shard.encode(out);
        out.push(match self.structural {
            Structural::Intervals => 1,
            Structural::WholeShard => 2,
        });
        self.sequence.encode(out);
        self.pages.encode(out);
        self.root.encode(out);
    }
}

impl Decode for Head {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let shard = ShardId::decode(reader)?;
        let structural = match u8::decode(reader)? {
            1 => Structural::Intervals,
            2 => Structural::WholeShard,
            _ => return Err(DecodeError::UnknownTag("structural locks")),
        };
        Ok(Self { shard, structural, sequence: u64::decode(reader)?, pages: u32::decode(reader)?, root: reader.array()? })
    }
}
