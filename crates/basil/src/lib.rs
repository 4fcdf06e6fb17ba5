//! Basil: leaderless, interactive, serializable transactions among replicas and clients of which some lie
//! (Suri-Payer et al., SOSP '21).
//!
//! **The promise.** What correct clients see is what a serial execution of correct clients' transactions would
//! show them; what was acknowledged lasts; no group of liars alone decides the fate of a correct client's
//! transaction; and once the network behaves, everything ends.
//!
//! **The model.** A shard has `n = 5f + 1` replicas, of which `f` may lie; any number of clients may. Nobody is in
//! charge: the client that began a transaction drives it, and whoever is stopped by one that was left may finish it.
//!
//! ```text
//!   client                                 every replica of every shard touched
//!   ──────                                 ────────────────────────────────────
//!   execute   Read ──────────────────────▶ newest version below ts; RTS rises
//!             ◀────────────────── ReadReply  (f+1 agree, or it does not count)
//!   prepare   Prepare (ST1) ─────────────▶ Algorithm 1, once; the vote on disk
//!             ◀─────────────── Voted (ST1R)
//!             all 5f+1 commit, or 3f+1 abort, or a committed conflict: done in one round trip
//!             else Log (ST2) ────────────▶ the logging shard writes the decision down
//!             ◀────────────── Logged (ST2R)  4f+1 equal ones: done in two
//!   writeback Writeback ─────────────────▶ writes become versions; who waited votes
//! ```
//!
//! **When it stalls** (§5), anyone asks the same replicas how far it came, and continues from there. When replicas of the
//! logging shard have logged different decisions, they elect one of them to reconcile them: [`recovery`].
//!
//! **Where things are.** [`replica`] and [`coordinator`] are the two machines. Each of these files has a transaction's whole way on
//! its side, and its folder the rest. [`node`] puts a replica and its janitor together. What a replica knows is in
//! `transaction_table.rs` and `transaction_state.rs`. Pure rules stand alone and import no machine: [`check`] is Algorithm 1,
//! [`tally`] what votes amount to, [`reading`] what replies amount to, [`read_only`] when reading alone commits, [`recovery`] how
//! views and leaders go, [`quorum`] the numbers and why. [`certificate`] is proof for third parties, [`message`] what is said,
//! [`witness`] what proves that a replica lies, [`transaction`] what is voted on, [`refresh`] when what was voted down is tried again, [`buffer`] a transaction before it is prepared.

mod adaptive_timeout;
pub mod buffer;
pub mod certificate;
pub mod check;
mod commit_relay;
pub mod coordinator;
mod doubts;
mod key_times;
mod lost_reads;
pub mod message;
pub mod node;
mod peer_clocks;
mod proofs;
pub mod quorum;
mod range_timestamps;
pub mod read_only;
mod read_timestamps;
pub mod reading;
pub mod receipt;
mod record;
pub mod recovery;
pub mod refresh;
pub mod replica;
mod replica_clocks;
mod round_trip;
pub mod session;
pub mod tally;
#[cfg(test)]
mod testing;
mod timestamp_index;
mod tombstones;
pub mod transaction;
mod transaction_state;
mod transaction_table;
pub mod witness;

pub use buffer::Buffer;
pub use certificate::{Certificate, Decision, Vote};
pub use coordinator::{Command, Coordinator, CoordinatorOptions, Event, Failure, FastPath, Path, ReadOnly};
pub use engine::ClusterClock;
pub use message::{ClientLimit, Message, Refusal};
pub use node::{Node, NodeEvent};
pub use quorum::Quorums;
pub use reading::{RangeFound, ReadFound, ReadQuorum};
pub use receipt::Receipt;
pub use replica::{Replica, ReplicaOptions, catch_up, orphan_resolution, rebuild};
pub use session::{PROFILE, Session};
pub use transaction::{Read, Transaction, TransactionError, Write};
