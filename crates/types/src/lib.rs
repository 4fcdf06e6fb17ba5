//! The nouns of Bezant, and their one canonical encoding.
//!
//! Everything that is hashed, signed, stored or sent is built from what is here. The crate knows no
//! protocol: it says what a key, a timestamp, a transaction and a replica *are*, how each is written as
//! bytes ([`codec`]), and how large each may be ([`limits`]).
//!
//! ```
//! use types::{ClientId, ClusterId, Key, Timestamp, Transaction, Value, Write};
//!
//! let cluster = ClusterId::new([7; 16]);
//! let transaction = Transaction::new(
//!     cluster,
//!     Timestamp::new(1_000, ClientId(1)),
//!     vec![],
//!     vec![Write { key: Key::from("account/1"), value: Some(Value::from("100")) }],
//! )?;
//! assert_eq!(transaction.writes().len(), 1);
//! # Ok::<(), types::TransactionError>(())
//! ```

pub mod codec;
pub mod limits;

mod bytes_like;
mod cluster;
mod identity;
mod transaction;

pub use bytes_like::{Key, Value};
pub use cluster::{Cluster, ClusterError, Permission, Placement};
pub use identity::{ClientId, ClusterId, Digest, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId};
pub use transaction::{Read, Transaction, TransactionError, Write};
