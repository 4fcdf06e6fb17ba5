//! What stands above the multicast.

use bytes::Bytes;
use types::{ClientId, Digest};

use super::request::{Request, RequestKey};

/// What an application says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// Which request.
    pub key: RequestKey,
    /// What it says.
    pub answer: T,
}

/// What is said to a client, by an application in a [`Node`](super::Node).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The answer.
    pub bytes: Bytes,
    /// What stands for the statement that the replica signs for it ([`crypto::leaf`]), if the client will have to show it to others.
    pub leaf: Option<Digest>,
}

/// A deterministic state above the multicast: from the same requests in the same order it comes to the same state at every replica,
/// and to the same after each restart.
///
/// Its state at a checkpoint is a list of pages. Each has at most [`PAGE_BYTES_MAX`](super::message::PAGE_BYTES_MAX) bytes, and there are at most 2^17.
/// An application whose state is large keeps the digest of each page, and computes anew those of pages that changed.
pub trait Application {
    /// What it says of a request.
    type Answer;

    /// Runs the requests of list `sequence`, one after the other. Every request is delivered once at most.
    fn deliver(&mut self, sequence: u64, requests: &[Request], answers: &mut Vec<Answer<Self::Answer>>);

    /// What it says of a request that was delivered, or is too old to be: a client has asked again. Whether it is the request that was
    /// delivered under that name, only the application can know: it says nothing that is not so already.
    fn answered(&self, request: &Request) -> Option<Self::Answer>;

    /// What it says to a question of `client` from its state as it is, which that does not change (it may change what is no part of the state); nothing where
    /// the question has to be ordered. At most [`ANSWER_BYTES_MAX`](super::message::ANSWER_BYTES_MAX) bytes.
    fn query(&mut self, client: ClientId, question: &Bytes) -> Option<Bytes>;

    /// Keeps the state as it is after list `sequence`, beside the one that goes on changing. Gives the digest of each page.
    fn checkpoint(&mut self, sequence: u64) -> Vec<Digest>;

    /// A page of a state that it keeps.
    fn page(&self, sequence: u64, index: usize) -> Option<Bytes>;

    /// Keeps no state any longer that is earlier than this.
    fn release(&mut self, before: u64);

    /// Hashes anew about so many bytes of the state that nothing has changed since the last checkpoint, one part after the other, and gives the first
    /// that is not as it was then.
    fn scrub(&mut self, _bytes_max: usize) -> Option<WrongPart> {
        None
    }

    /// Has the next checkpoint hash a part anew.
    fn hash_again(&mut self, _part: u32) {}

    /// In which parts a state that it keeps, after list `sequence`, differs from this one; the first of them.
    fn differing(&self, _sequence: u64, _pages: &[Bytes]) -> Vec<WrongPart> {
        Vec::new()
    }

    /// Takes over this state in place of its own and all that it kept, and keeps it. `2f+1` replicas vouch for it.
    fn install(&mut self, sequence: u64, pages: &[Bytes]);
}

/// A part of the state that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongPart {
    /// Its number.
    pub part: u32,
    /// Which it is, for people.
    pub place: String,
    /// The digest of what is there.
    pub own: Digest,
    /// The digest of what should be there.
    pub agreed: Digest,
}

/// The digest of a page.
#[must_use]
pub fn page_digest(cluster: types::ClusterId, page: &[u8]) -> Digest {
    crypto::digest("augustus page", cluster, &[page])
}
