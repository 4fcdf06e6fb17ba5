//! The nouns of Bezant, and their one canonical encoding.
//!
//! Everything that is hashed, signed, stored or sent consists of these types. The crate has no protocol: it defines keys,
//! timestamps, clients and replicas, how each is encoded ([`codec`]), and how large each may be ([`limits`]).

pub mod codec;
pub mod limits;

mod bytes_like;
mod cluster;
mod direction;
mod identity;
mod key_range;

pub use bytes_like::{Key, Value};
pub use cluster::{ClientLimits, Cluster, ClusterError, Permission, Placement};
pub use direction::Direction;
pub use identity::{ClientId, ClusterId, Digest, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId};
pub use key_range::KeyRange;
