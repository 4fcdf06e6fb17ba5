//! What applications use to reach a Bezant cluster: connect, run transactions, read what went wrong. No engine shows through, but in a commit's certificate.
//!
//! [`config::Config::load`] reads the folder that `bezant init` or `bezant dev` made; [`Client::connect`] connects;
//! [`Client::transact`] runs a closure in a transaction, and again when it met another. A process that runs many
//! transactions at once lets a [`Pool`] join them.

#[cfg(feature = "lab")]
pub mod adversary;
#[cfg(not(feature = "lab"))]
#[path = "adversary/none.rs"]
mod adversary;
mod client;
mod connection;
mod error;
mod metrics;
mod mind;
mod pool;
mod transaction;

pub use client::{Client, Committed};
pub use error::{Advice, ConnectError, Error};
pub use mind::Counts;
pub use pool::{BATCH_MAX, BatchSize, ConflictRule, Operation, Order, Pool, PoolCounts, PoolOptions};
pub use transaction::{Commit, CommitPath, Transaction};
