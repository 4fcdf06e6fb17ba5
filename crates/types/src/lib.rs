//! The nouns of Bezant, and their one canonical encoding.
//!
//! Everything that is hashed, signed, stored or sent is built from what is here. The crate knows no
//! protocol: it says what a key, a timestamp, a client and a replica *are*, how each is written as
//! bytes ([`codec`]), and how large each may be ([`limits`]).

pub mod codec;
pub mod limits;

mod bytes_like;
mod cluster;
mod identity;

pub use bytes_like::{Key, Value};
pub use cluster::{Cluster, ClusterError, Permission, Placement};
pub use identity::{ClientId, ClusterId, Digest, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId};
