//! The state as numbered pages, and its digest: a Merkle tree over them, kept up to date.
//!
//! Everything that the executor keeps stands in pages: rows in the order of their keys, each client's and each session's part, each
//! pending transaction. A page keeps its number as long as it lives, and the lowest free number is taken for a new one, so that the
//! numbers follow from what was executed. Whoever changes a page notes it; a checkpoint encodes and hashes those pages alone, and the
//! nodes above them. So what a checkpoint costs depends on what was changed since the last, and not on how much there is. Pages have
//! few rows (`PAGE_ROWS_MAX`), as all of a page is hashed for one row.
//!
//! A hash that is updated by adding and subtracting what changes (AdHash, LtHash) needs no pages, but to be collision-resistant it
//! needs some two microseconds for each value written. And parts of a state that is fetched could not be checked one by one.

use std::collections::BTreeSet;

use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{ClientId, ClusterId, Digest, Key};

/// The number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u32);

/// What a page holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nothing: its number is free.
    Free,
    /// The rows from this key on.
    Rows(Key),
    /// What is kept of a client.
    Client(ClientId),
    /// What is kept of a session.
    Session(ClientId, u64),
    /// A pending transaction.
    Pending,
}

/// Which pages there are, and which were changed since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pages: Vec<(Owner, bool)>,
    free: BTreeSet<PageNumber>,
    changed: Vec<PageNumber>,
}

impl Directory {
    /// A new page.
    pub fn make(&mut self, owner: Owner) -> PageNumber {
        let number = self.free.pop_first().unwrap_or_else(|| {
            self.pages.push((Owner::Free, false));
            PageNumber(u32::try_from(self.pages.len() - 1).expect("there is not as much memory"))
        });
        self.pages[index(number)].0 = owner;
        self.change(number);
        number
    }

    /// Notes that a page holds something else now.
    pub fn change(&mut self, number: PageNumber) {
        let (_, is_changed) = &mut self.pages[index(number)];
        if !std::mem::replace(is_changed, true) {
            self.changed.push(number);
        }
    }

    /// A page is not needed any more.
    pub fn free(&mut self, number: PageNumber) {
        self.change(number);
        self.pages[index(number)].0 = Owner::Free;
        self.free.insert(number);
    }

    /// Whether a page was changed since the last checkpoint.
    pub fn is_changed(&self, number: PageNumber) -> bool {
        self.pages[index(number)].1
    }

    pub fn owner(&self, number: PageNumber) -> &Owner {
        &self.pages[index(number)].0
    }

    /// The pages that were changed since this was last asked, in order.
    pub fn take_changed(&mut self) -> Vec<PageNumber> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        for number in &changed {
            self.pages[index(*number)].1 = false;
        }
        changed
    }

    /// How many numbers there are, free ones too.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// How many are in use.
    pub fn used(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// The directory of pages that were read back, none of them changed.
    pub fn of(owners: Vec<Owner>) -> Self {
        let number = |at: usize| PageNumber(u32::try_from(at).expect("pages were counted with 32 bits"));
        let free = owners.iter().enumerate().filter(|(_, owner)| **owner == Owner::Free).map(|(at, _)| number(at)).collect();
        Self { pages: owners.into_iter().map(|owner| (owner, false)).collect(), free, changed: Vec::new() }
    }
}

/// How many children a node of the tree has.
pub(crate) const FANOUT: usize = 16;
/// Stands for a page that is free, or that there never was.
pub(crate) const NO_PAGE: Digest = [0; 32];

/// A Merkle tree over the digests of pages.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    cluster: ClusterId,
    /// The digests of pages, then those of nodes over sixteen of them each, and so on to a level of one.
    levels: Vec<Vec<Digest>>,
    /// Which pages' digests were changed since the nodes were computed.
    changed: Vec<usize>,
}

impl Tree {
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, levels: vec![Vec::new()], changed: Vec::new() }
    }

    pub fn set(&mut self, number: PageNumber, digest: Digest) {
        let at = index(number);
        let pages = &mut self.levels[0];
        if at >= pages.len() {
            pages.resize(at + 1, NO_PAGE);
        }
        pages[at] = digest;
        self.changed.push(at);
    }

    /// The digest at a place on a level: of a page, or of a node above.
    pub fn digest(&self, level: usize, at: usize) -> Option<&Digest> {
        self.levels.get(level)?.get(at)
    }

    /// Computes what lies above the pages that were changed, and gives the root's digest.
    pub fn root(&mut self) -> Digest {
        let mut changed = std::mem::take(&mut self.changed);
        for level in 0.. {
            changed.sort_unstable();
            let count = self.levels[level].len();
            if level > 0 && count <= 1 {
                break;
            }
            changed.iter_mut().for_each(|at| *at /= FANOUT);
            changed.dedup();
            if self.levels.len() == level + 1 {
                self.levels.push(Vec::new());
                changed = (0..count.div_ceil(FANOUT).max(1)).collect();
            }
            let above_count = count.div_ceil(FANOUT).max(1);
            if self.levels[level + 1].len() < above_count {
                let old = self.levels[level + 1].len();
                self.levels[level + 1].resize(above_count, NO_PAGE);
                changed.extend(old..above_count);
                changed.sort_unstable();
                changed.dedup();
            }
            for at in &changed {
                let digest = node_digest(self.cluster, self.children(level, *at));
                self.levels[level + 1][*at] = digest;
            }
        }
        self.levels.last().and_then(|top| top.first()).copied().expect("the topmost level has one node")
    }

    /// The children, on `level`, of the node at `at` above it.
    pub fn children(&self, level: usize, at: usize) -> &[Digest] {
        let children = self.levels.get(level).map_or(&[][..], Vec::as_slice);
        let low = at.saturating_mul(FANOUT).min(children.len());
        &children[low..(low + FANOUT).min(children.len())]
    }
}

/// How many levels a tree over so many pages has, the pages' own among them.
pub(crate) fn levels(pages: usize) -> usize {
    let (mut levels, mut count) = (2, pages.div_ceil(FANOUT));
    while count > 1 {
        (levels, count) = (levels + 1, count.div_ceil(FANOUT));
    }
    levels
}

/// The digest of a node over these children.
pub(crate) fn node_digest(cluster: ClusterId, children: &[Digest]) -> Digest {
    crypto::digest("augustus/node/1", cluster, &[children.as_flattened()])
}

/// The digest of a page that holds `bytes`; nothing is in a free one.
pub(crate) fn page_digest(cluster: ClusterId, number: PageNumber, bytes: &[u8]) -> Digest {
    if bytes.is_empty() {
        return NO_PAGE;
    }
    crypto::digest("augustus/page/1", cluster, &[&number.0.to_le_bytes(), bytes])
}

pub(crate) fn index(number: PageNumber) -> usize {
    number.0 as usize
}

impl Encode for PageNumber {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for PageNumber {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(u32::decode(reader)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_kept_up_to_date_is_the_tree_that_is_made_anew() {
        let cluster = ClusterId::new([7; 16]);
        let mut kept = Tree::new(cluster);
        let mut digests: Vec<Digest> = Vec::new();
        for step in 0u32..600 {
            // Grows by one page a step, and changes another.
            for number in [step, step * 7 % (step + 1)] {
                let digest = page_digest(cluster, PageNumber(number), &step.to_le_bytes());
                kept.set(PageNumber(number), digest);
                digests.resize(digests.len().max(number as usize + 1), NO_PAGE);
                digests[number as usize] = digest;
            }
            if step % 13 != 0 && ![15, 16, 17, 255, 256, 257].contains(&step) {
                continue;
            }
            let mut anew = Tree::new(cluster);
            for (at, digest) in digests.iter().enumerate() {
                anew.set(PageNumber(at as u32), *digest);
            }
            assert_eq!(kept.root(), anew.root(), "after step {step}");
            assert_eq!(kept.levels, anew.levels);
            assert_eq!(kept.levels.len(), levels(digests.len()));
        }
    }

    #[test]
    fn the_lowest_free_number_is_taken() {
        let mut directory = Directory::default();
        let numbers: Vec<PageNumber> = (0..4).map(|_| directory.make(Owner::Pending)).collect();
        directory.take_changed();
        directory.free(numbers[2]);
        directory.free(numbers[1]);
        assert_eq!(directory.make(Owner::Pending), numbers[1]);
        assert_eq!(directory.take_changed(), [numbers[1], numbers[2]]);
        assert_eq!((directory.make(Owner::Pending), directory.len()), (numbers[2], 4));
    }
}
