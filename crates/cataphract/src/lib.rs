//! Cataphract: many transactions as one (Kida and Kawashima, IJNC 15(1), 2025).
//!
//! **The idea.** Most of a transaction's cost arises once for each transaction: round trips, signatures, messages. So a pool on
//! the client takes transactions from the application, builds one transaction from many, runs it, and returns to each its own
//! result.
//!
//! **The guarantee.** Every member of a batch commits at the batch's timestamp, in its place within the batch: its reads return
//! the values that executing all transactions before that timestamp, and then the members before it, one after the other, would
//! produce. Either all members of a batch commit or none. To the replicas a batch is one transaction like any other.
//!
//! ```text
//!   application            the pool                              the coordinator
//!   ───────────            ────────                              ───────────────
//!   T1: get a, put b ──┐
//!   T2: get b, put c ──┼─▶ a batch: read a, d        ──────────▶ Read at ts   (one round trip, if any)
//!   T3: interactive:   │            T2's b is T1's   ◀──────────
//!       read d, put e ─┘            write b, c, e
//!                                                    ──────────▶ Commit       (one round trip, as ever)
//!   T1, T2, T3 ◀────────── each its values, its place ◀─────────
//! ```
//!
//! **Beyond the paper.** Each read is resolved by itself; the paper orders all reads and all writes of a batch by two flags. A
//! member may read what an earlier one writes ([`ConflictRule::Chain`]); the paper's rule, to end the batch there, remains
//! available. Interactive transactions join when they commit. An aborted batch is retried in halves, so that one transaction does
//! not abort the others for long. The batch size adapts ([`BatchSize::Adaptive`]).
//!
//! **Where things are.** [`Pool`] is the machine, without clock or I/O: its owner carries its [`Ask`]s to a coordinator.
//! `batch_builder` decides which transactions join a batch, and in which order (Algorithm 2). `rebuild` builds one transaction from
//! them and gives each its results (Algorithm 3). `writes` remembers the writes of the pool's own batches, `size` adapts the size.
//! `engine_pool` is how the neutral client sees the pool ([`engine::Pool`]).

mod batch_builder;
mod engine_pool;
mod pool;
mod rebuild;
mod size;
mod work;
mod writes;

pub use engine::{BATCH_MAX, BatchSize, ConflictRule, NotTaken, Operation, Order, PoolCounts, PoolOptions};
pub use pool::{Ask, BatchedCommit, Failed, Output, Pool};
pub use work::Work;
