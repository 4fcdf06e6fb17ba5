//! What a session answers, and what it tells unasked.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use types::{Key, KeyRange, Timestamp, TransactionId, Value};

use crate::clock::ClusterClock;
use crate::opaque::{Evidence, Private};
use crate::refusal::Refusal;

/// What a session tells its own side.
#[derive(Debug)]
pub enum Tell {
    /// The answer to an [`Ask`](crate::Ask).
    Response {
        /// The asker's number for it.
        operation: u64,
        /// How it ended.
        outcome: Result<Response, Refusal>,
    },
    /// From now on timestamps are to come from this clock.
    Clock(ClusterClock),
    /// Something that a server said unasked.
    Notice(Notice),
}

/// What came of a request that was served.
#[derive(Debug)]
pub enum Response {
    /// What a [`Read`](crate::Request::Read) or a [`Scan`](crate::Request::Scan) found.
    Found(Found),
    /// A [`Commit`](crate::Request::Commit) took place, and lasts.
    Committed(Commit),
    /// A [`Submit`](crate::Request::Submit) took place, and lasts.
    Done {
        /// What its `Get`s found, in their order.
        values: Vec<Option<Value>>,
        /// The commit.
        commit: Commit,
    },
    /// What the engine's pool alone understands.
    Private(Private),
}

/// What reading found.
#[derive(Debug)]
pub struct Found {
    /// For a read every key asked for, each once; for a scan the keys that have values, in its direction.
    pub found: Vec<(Key, Option<Value>)>,
    /// To be handed back with the commit.
    pub evidence: Evidence,
}

impl Found {
    /// The bytes of all values.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.found.iter().filter_map(|(_, value)| value.as_ref()).map(|value| value.as_bytes().len()).sum()
    }
}

/// How a transaction came to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitPath {
    /// In as few round trips as the engine ever takes.
    Fast,
    /// With more.
    Slow,
    /// Another client or a replica finished it for this one.
    Recovered,
    /// It only read, and enough replicas vouch that what it read stays so: nothing had to be written anywhere.
    ReadOnly,
    /// It did nothing, so there was nothing to agree on.
    Empty,
}

/// A commit that the cluster has acknowledged: it lasts.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The transaction's id. Those that committed together in a [`Pool`](crate::Pool) share it.
    pub id: TransactionId,
    /// Its place in the serial order, on an engine that orders by timestamps; for any other a name.
    pub timestamp: Timestamp,
    /// Its place among those that share the timestamp: 0, but for those that committed together in a [`Pool`](crate::Pool).
    pub place: u32,
    /// How it came to be committed.
    pub path: CommitPath,
    /// The proof, where the engine gives one; none when there was nothing to vote on ([`CommitPath::ReadOnly`],
    /// [`CommitPath::Empty`]).
    pub receipt: Option<Receipt>,
}

/// Proof of a commit, which anyone with the cluster's public keys can check offline.
#[derive(Clone)]
pub struct Receipt(Arc<dyn Proof>);

/// What an engine proves a commit with.
pub trait Proof: Send + Sync + 'static {
    /// The proof as bytes, which begin with a format version and name the engine.
    fn to_bytes(&self) -> Bytes;

    /// Who vouches for the commit, in a few words for people.
    fn summary(&self) -> String;
}

impl Receipt {
    /// A receipt that is made into bytes when somebody wants them.
    #[must_use]
    pub fn new(proof: Arc<dyn Proof>) -> Self {
        Self(proof)
    }

    /// The proof as bytes, to be kept in a file and checked later.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.0.to_bytes()
    }

    /// Who vouches for the commit, in a few words for people.
    #[must_use]
    pub fn summary(&self) -> String {
        self.0.summary()
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Receipt({})", self.summary())
    }
}

/// A commit that a receipt proves.
#[derive(Clone, Debug)]
pub struct ProvenCommit {
    /// The transaction's id.
    pub id: TransactionId,
    /// Its place in the serial order.
    pub timestamp: Timestamp,
    /// The keys that it read, in key order, each with the version that it saw: its writer's timestamp, or [`Timestamp::ZERO`] where nothing was
    /// ever written.
    pub reads: Vec<(Key, Timestamp)>,
    /// The ranges that it read, in order and apart: in these, no key had a value but those that it read.
    pub ranges: Vec<KeyRange>,
    /// What it wrote, in key order; `None` where it deleted.
    pub writes: Vec<(Key, Option<Value>)>,
    /// Who vouches for it, in a few words for people.
    pub summary: String,
}

/// Something that a server tells a client unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What happened, in the engine's own word, such as `changed`.
    pub kind: &'static str,
    /// The key that it is about; an empty one when it is about the client itself.
    pub key: Key,
    /// What the engine adds, in its own encoding.
    pub detail: Bytes,
}
