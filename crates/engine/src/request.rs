//! What is asked of a session.

use types::{Direction, Key, Timestamp, Value};

use crate::offer::Capability;
use crate::opaque::{Evidence, Private};

/// One request, under the asker's number for it. Every ask is answered by one [`Tell::Response`](crate::Tell::Response), also when
/// no replica answers.
#[derive(Debug)]
pub struct Ask {
    /// The asker's number, which no other request under way has.
    pub operation: u64,
    /// What is asked.
    pub request: Request,
}

/// What may be asked.
///
/// A `timestamp` is drawn by the client when a transaction begins, above all that it drew before, unless it reads [as
/// of](ReadMode::is_as_of) a time of the application's choice. A transaction that reads all again takes another. An engine that orders
/// transactions by timestamps runs the transaction there; for any other it is only a name.
#[derive(Debug)]
pub enum Request {
    /// Read keys for an interactive transaction. Answered by [`Response::Found`](crate::Response::Found).
    Read {
        /// The transaction's timestamp.
        timestamp: Timestamp,
        /// The keys, each once.
        keys: Vec<Key>,
        /// What is known of the transaction: some engines then ask in another way.
        mode: ReadMode,
    },
    /// Read the keys of a range that have values, from one of its ends. Answered by [`Response::Found`](crate::Response::Found).
    Scan {
        /// The transaction's timestamp.
        timestamp: Timestamp,
        /// The first key of the range.
        low: Key,
        /// The first key after the range.
        high: Key,
        /// From which end to read it.
        direction: Direction,
        /// How many keys to give at most.
        limit: usize,
        /// What is known of the transaction.
        mode: ReadMode,
    },
    /// Commit an interactive transaction. Answered by [`Response::Committed`](crate::Response::Committed).
    Commit(CommitRequest),
    /// Run these operations in one step of the engine's order: comparisons first, then all others in their order; none when a
    /// comparison fails. Answered by [`Response::Done`](crate::Response::Done).
    Submit {
        /// The transaction's timestamp.
        timestamp: Timestamp,
        /// What to do.
        operations: Vec<Operation>,
    },
    /// What the engine's own [`Pool`](crate::Pool) asks. Answered by [`Response::Private`](crate::Response::Private).
    Private(Private),
}

/// What is known of a transaction when it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// It may write.
    #[default]
    Interactive,
    /// It writes nothing.
    ReadOnly,
    /// It writes nothing, and its timestamp is one that the asker chose: it reads the past. What is found is final, as nothing more
    /// commits below that timestamp: whoever reads there again finds the same. A [`Request::Commit`] of such reads alone changes nothing.
    AsOf,
    /// The same, of a time so long before the present: the cluster's clock showed `now` when the timestamp was chosen. Whatever was
    /// acknowledged before that lies below `now`; where this clock may have shown too little, the read is refused
    /// ([`Refusal::TooOld`](crate::Refusal::TooOld)).
    Ago {
        /// What the cluster's clock showed, in nanoseconds.
        now: u64,
    },
}

impl ReadMode {
    /// Whether the transaction is known to write nothing.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        self != Self::Interactive
    }

    /// Whether it reads the past.
    #[must_use]
    pub fn is_as_of(self) -> bool {
        matches!(self, Self::AsOf | Self::Ago { .. })
    }
}

/// An interactive transaction that has run, and is to commit.
#[derive(Debug)]
pub struct CommitRequest {
    /// The transaction's timestamp.
    pub timestamp: Timestamp,
    /// The evidence of its reads, in the order in which they returned: of two reads of one key the first counts.
    pub reads: Vec<Evidence>,
    /// What it writes, each key once, in key order; `None` deletes.
    pub writes: Vec<(Key, Option<Value>)>,
}

impl CommitRequest {
    /// Whether it neither reads nor writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

impl Request {
    /// What an engine must be capable of to serve it.
    #[must_use]
    pub fn capability(&self) -> Capability {
        match self {
            Self::Read { mode, .. } | Self::Scan { mode, .. } if mode.is_as_of() => Capability::AsOf,
            Self::Read { .. } | Self::Commit(_) => Capability::Interactive,
            Self::Scan { .. } => Capability::Ranges,
            Self::Submit { .. } => Capability::OneShot,
            Self::Private(_) => Capability::Pool,
        }
    }
}

/// One operation of a transaction that knows all of them beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a key.
    Get(Key),
    /// Writes a key.
    Put(Key, Value),
    /// Deletes a key.
    Delete(Key),
    /// Lets the transaction take place only if the key has this value before it, or none.
    Compare(Key, Option<Value>),
}

impl Operation {
    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Get(key) | Self::Put(key, _) | Self::Delete(key) | Self::Compare(key, _) => key,
        }
    }

    /// What it writes, if it writes: the key, and its value or its deletion.
    #[must_use]
    pub fn write(&self) -> Option<(&Key, Option<&Value>)> {
        match self {
            Self::Get(_) | Self::Compare(..) => None,
            Self::Put(key, value) => Some((key, Some(value))),
            Self::Delete(key) => Some((key, None)),
        }
    }
}
