//! Cataphract: many transactions as one (Kida and Kawashima, IJNC 15(1), 2025).
//!
//! **The idea.** What a transaction costs is mostly what comes once for each: round trips, signatures, messages. So a
//! pool on the client takes transactions from the application, builds one from many, runs that, and hands each of the
//! many its own result.
//!
//! **The promise.** Every transaction of a batch commits at the batch's timestamp, in its place within the batch: its
//! reads give what would be there if all transactions before that timestamp, and then the members of the batch before
//! it, had run one after the other. Either all members of a batch take place or none. The store need not know: to it a
//! batch is one transaction like any other, checked like any other.
//!
//! ```text
//!   application            the pool                              the coordinator
//!   ───────────            ────────                              ───────────────
//!   T1: get a, put b ──┐
//!   T2: get b, put c ──┼─▶ a batch: read a, d        ──────────▶ Read at ts   (one round trip, if any)
//!   T3: ran by itself: │            T2's b is T1's   ◀──────────
//!       read d, put e ─┘            write b, c, e
//!                                                    ──────────▶ Commit       (one round trip, as ever)
//!   T1, T2, T3 ◀────────── each its values, its place ◀─────────
//! ```
//!
//! **Where it goes beyond the paper.** Each read is resolved by itself, where the paper orders all reads and all
//! writes of a batch by two flags. A later transaction may read what an earlier one writes ([`ConflictRule::Chain`]); the
//! paper's rule is to end the batch there, and remains to choose. Transactions that ran on their own, reading as they
//! went, join at their commit. A batch that was aborted is tried again in halves, so that one transaction does not sink
//! the rest for long. The size finds itself ([`BatchSize::Adaptive`]).
//!
//! **Where things are.** [`Pool`] is the whole, without clock or I/O: its owner carries its [`Ask`]s to a coordinator.
//! Inside, `builder` is who may be in a batch and where (Algorithm 2), `rebuild` how one transaction is made of them and
//! what each sees (Algorithm 3), `writes` what is known of our own batches' writes, `size` how large batches get.

mod batch_builder;
mod counts;
mod options;
mod pool;
mod rebuild;
mod size;
mod work;
mod writes;

pub use batch_builder::ConflictRule;
pub use counts::PoolCounts;
pub use options::{Order, PoolOptions};
pub use pool::{Ask, BatchedCommit, Failed, NotTaken, Pool, Turn};
pub use size::{BATCH_MAX, BatchSize};
pub use work::{Operation, Work};
