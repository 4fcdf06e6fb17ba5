//! What applications use to reach a Bezant cluster: connect, run transactions, read what went wrong, hear what servers say
//! unasked. It knows no engine: everything goes through the engine interface ([`engine`]).
//!
//! Applications take `bezant-client`, which adds [`Client`]'s way in: it reads the cluster's folder and starts the session of the
//! engine that `cluster.toml` names. [`Client::start`] takes any [`engine::Session`]; the crate's wiring, tests and experiments
//! use it. [`Client::transact`] runs a closure in a transaction, and again when it met another. A process that runs many
//! transactions at once lets a [`Pool`] join them. In an application, write `bezant_client::` where the examples here say `client::` or `types::`: that crate
//! re-exports all of it.

mod admission;
mod client;
mod connection;
mod error;
mod metrics;
mod notices;
mod pages;
mod pool;
mod session_handle;
mod transaction;
mod turns;

pub use client::{AsOf, Client, Committed};
pub use engine::{
    Advice, BATCH_MAX, BatchSize, Capabilities, Capability, Commit, CommitPath, ConflictRule, Notice, Operation, Order, PoolCounts,
    PoolOptions, Receipt, Refusal, Statistic, StatisticKind, Statistics,
};
pub use error::{ConnectError, Error};
pub use notices::{Heard, NOTICES_MAX, Notices};
pub use pages::Pages;
pub use pool::Pool;
pub use transaction::Transaction;
