//! Identifiers of clusters, replicas, clients and transactions, and timestamps.

use std::fmt;

use crate::codec::{Decode, DecodeError, Encode, Reader};

/// A SHA-256 hash.
pub type Digest = [u8; 32];

/// The cluster's name: 16 random bytes, drawn once by `bezant init`.
///
/// Everything hashed or signed names it, so that no statement of one cluster is valid in another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId([u8; 16]);

impl ClusterId {
    /// The cluster with these bytes for its name.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The name's bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cluster-{self}")
    }
}

/// A shard: a group of replicas that hold the same keys. Counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "s{}", self.0)
    }
}

/// A replica: its shard, and its index there, counted from 0. Written `s0-r3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The shard it belongs to.
    pub shard: ShardId,
    /// Its index in the shard.
    pub index: u16,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-r{}", self.shard, self.index)
    }
}

/// A client, as the cluster's configuration numbers it. One client may run many processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The least number that a client may have. Timestamps of no transaction have the one below ([`Timestamp::above_all_before`]).
    pub const MIN: Self = Self(1);
    /// The greatest. Above it are the names under which replicas ask for something as clients do.
    pub const MAX: Self = Self(u64::MAX - (1 << 32));

    /// Whether a client may have this number.
    #[must_use]
    pub fn is_of_client(self) -> bool {
        (Self::MIN..=Self::MAX).contains(&self)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "c{}", self.0)
    }
}

/// One process of a client, by a number it drew at its start: where replies are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// Someone who sends or receives messages, as the channel proved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A replica of the cluster.
    Replica(ReplicaId),
    /// One process of a client.
    Client(ClientId, Session),
}

impl fmt::Display for Party {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(replica) => replica.fmt(formatter),
            Self::Client(client, session) => write!(formatter, "{client}#{:x}", session.0),
        }
    }
}

/// A transaction's place in the serial order: nanoseconds since the Unix epoch by its client's clock, ties
/// broken by the client's number (Basil §4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// Whose transaction it is, if it is one's ([`Timestamp::author`]).
    pub client: ClientId,
}

impl Timestamp {
    /// Before every transaction. As a version it means that nothing was ever written.
    pub const ZERO: Self = Self::above_all_before(0);

    /// The instant `time` (nanoseconds since the Unix epoch) of `client`.
    #[must_use]
    pub const fn new(time: u64, client: ClientId) -> Self {
        Self { time, client }
    }

    /// Above all transactions of before `time`, and below all of `time` and later. It is no transaction's own.
    #[must_use]
    pub const fn above_all_before(time: u64) -> Self {
        Self::new(time, ClientId(0))
    }

    /// The client whose transaction has this timestamp; `None` where it lies between those of transactions.
    #[must_use]
    pub fn author(self) -> Option<ClientId> {
        (self.client >= ClientId::MIN).then_some(self.client)
    }

    /// The newest timestamp before this one; [`Timestamp::ZERO`] has none and stays.
    #[must_use]
    pub const fn predecessor(self) -> Self {
        match (self.client.0.checked_sub(1), self.time.checked_sub(1)) {
            (Some(client), _) => Self::new(self.time, ClientId(client)),
            (None, Some(time)) => Self::new(time, ClientId(u64::MAX)),
            (None, None) => self,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.time, self.client)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A transaction's identifier: the hash of its canonical encoding, so that two transactions never share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub Digest);

impl TransactionId {
    /// The first eight bytes as a number: what deterministic choices (logging shard, fallback leader) are made from.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(bytes)
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(&self.0[..8]))
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "t-{self}")
    }
}

impl Encode for ShardId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for ShardId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(u16::decode(reader)?))
    }
}

impl Encode for ReplicaId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.shard.encode(out);
        self.index.encode(out);
    }
}

impl Decode for ReplicaId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { shard: ShardId::decode(reader)?, index: u16::decode(reader)? })
    }
}

impl Encode for Timestamp {
    fn encode(&self, out: &mut Vec<u8>) {
        self.time.encode(out);
        self.client.0.encode(out);
    }
}

impl Decode for Timestamp {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { time: u64::decode(reader)?, client: ClientId(u64::decode(reader)?) })
    }
}

impl Encode for TransactionId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for TransactionId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.array()?))
    }
}
