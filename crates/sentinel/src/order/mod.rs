//! The order among several servers (Zab; Junqueira, Reed and Serafini, DSN 2011): all of them deliver the same entries in the same order.
//!
//! **The promise.** Of `2f+1` servers `f` may be down, and none lies. Servers deliver the same entries in the same order; an entry that one of
//! them has delivered is on the disks of a majority, and is never lost; all entries of an epoch come from its one leader, in the order in which
//! that proposed them; and while a majority can talk to one another, what is proposed is delivered. Nothing here knows what an entry means.
//!
//! ```text
//!   election         everyone   Vote ─────▶ all          for whoever has the newest history
//!   discovery        follower   Follow ───▶ leader       how far I have promised
//!                    leader     NewEpoch ─▶ followers    an epoch above all that a majority has promised   (journal: its own promise)
//!                    follower   Promise ──▶ leader       I obey no lower epoch; my history is this         (journal: promise)
//!   synchronization  leader     Entries, Truncate or Snapshot ─▶ followers, until their log is a prefix of its own
//!                    follower   Ack ──────▶ leader       all that you began with is on my disk              (journal: entries, accepted)
//!                    leader     a majority has it: the epoch is established
//!   broadcast        leader     Entries ──▶ followers    many under way at once                             (journal: entries)
//!                    follower   Ack ──────▶ leader       up to here it is on my disk
//!                    leader     a majority has it: it is delivered, and the next Entries say so
//! ```
//!
//! The network may lose, double and reorder: each message says what it builds on, and what is missing is asked for again at the next tick.
//!
//! **Where things are.** `replica.rs` has the state and the dispatch, `leader.rs` and `follower.rs` the two parts that are played. Pure rules
//! stand alone: `election.rs` says who is voted for, `log.rs` what a log is, [`servers`] whose promises and acknowledgements count. What is
//! said is in [`message`], what is written in `record.rs`. Why it is right is in the book, in *Sentinel as built*.

mod election;
mod follower;
mod leader;
mod log;
pub mod message;
mod node;
mod record;
mod replica;
pub mod servers;
#[cfg(test)]
mod tests;

pub use message::{Body, Entry, History, Message, Zxid};
pub use node::{Application, Node, NodeError};
pub use replica::{Event, JournalOp, Options, Output, Refused, ReplayError, Replica, Status};
