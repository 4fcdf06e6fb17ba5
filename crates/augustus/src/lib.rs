//! Augustus (Padilha and Pedone, EuroSys 2013): shards of `3f+1` replicas, each of which orders short transactions and runs
//! them one after the other.
//!
//! A shard's replicas agree on an order of requests (the multicast), and each executes them in that order ([`Executor`]). The two meet
//! in [`Executor::deliver`]: the multicast does not know what a transaction is, and the executor not how the order came about.
//! A transaction over several shards is voted on by each, and its client brings the votes of all to each ([`certificate`]).
//!
//! ```text
//!   client ──Run──▶ multicast of shard 0 ──▶ Executor: locks, comparisons, operations ──▶ vote ──┐
//!     │                                                                                          ├──▶ certificate
//!     └────Run────▶ multicast of shard 1 ──▶ Executor: locks, comparisons, operations ──▶ vote ──┘        │
//!                                        ◀─────────────────────── Decide ─────────────────────────────────┘
//! ```
//!
//! What each operation does, which locks it takes, what proves what, and why all this is strictly serializable stands in
//! `docs/protocols/augustus.md`. Read `operation.rs`, `transaction.rs` and `request.rs` for what is said, then `executor.rs` and
//! the leaves below it: `locks.rs` (who excludes whom), `sessions.rs` (what is remembered), `rows.rs` and `pages.rs` (the state and its
//! digest), `state_transfer.rs` and `durable.rs` (checkpoints elsewhere, and on the disk). The client's side is `coordinator.rs`.

pub mod certificate;
mod coordinator;
mod durable;
mod executor;
mod held;
mod janitor;
pub mod limits;
mod locks;
mod moment;
pub mod multicast;
mod operation;
mod orders;
mod page_index;
mod pages;
mod past;
mod queries;
mod request;
mod rows;
mod server;
mod session;
mod sessions;
mod shard;
mod state_transfer;
mod transaction;

pub use coordinator::{Answered, CannotBegin, Coordinator, Order, Outcome, Output};
pub use durable::Keeper;
pub use executor::{Executor, Settings};
pub use locks::Structural;
pub use moment::{MomentAnswer, MomentPage, Question, cut};
pub use operation::{Found, Operation, RowsSeen};
pub use pages::PageNumber;
pub use request::{AbortReason, Answer, Ordered, Refusal, Reply, Request, Signed, Unreadable, Verdict};
pub use server::Server;
pub use session::{PROFILE, Session};
pub use shard::Shard;
pub use state_transfer::{Checkpoint, Fetch, Head, Piece, Snapshot, WrongPiece};
pub use transaction::{Name, Transaction, TransactionError};
