//! A server among several: the order ([`crate::order`]) and what clients see ([`crate::Server`]) as one machine.
//!
//! **The promise.** Clients of any server see one history: what one of them was told is on the disks of a majority, and no server says anything
//! that depends on what is not. A server acknowledges nothing that makes another digest than the leader foresaw.
//!
//! ```text
//!   client ──▶ leader     checks, applies, proposes ─────────▶ followers   apply, compare the digest, append, acknowledge
//!   client ──▶ follower   Forward ──▶ leader, and as above
//!                         what is said to clients is held until the order has delivered all that it depends on
//! ```
//!
//! **Every server's state is that after the last entry of its log**, delivered or not: the leader applies what it proposes, a follower what it
//! appends, before it acknowledges it. So a digest that differs is seen before it counts for a majority. What was seen of the state is *held*, as
//! answers and events, until the entry is delivered ([`Member::turn`]). A log that is truncated leaves the state ahead of it: then the server is
//! [reopened](TurnOutput::reopen) from its disk, as after a crash, which happens only where a leader fails.
//!
//! **Who is wrong when two disagree.** A follower that gets another digest tells the leader ([`Message::Disagree`]), keeps nothing of the entry,
//! and serves nobody. If the entry is delivered all the same, a majority has it: the follower is wrong. If a majority of the
//! servers disagrees, the leader is wrong: it leads no more, and they elect another among themselves, and go on from their disks.
//!
//! **Who is wrong** says nothing of the order any more, gets a state again from its disk or from the others, and serves nobody before that was
//! compared with a majority's (`repair.rs`).
//!
//! **Requests of one follower** go to the leader as a stream without gaps: should one get lost, the leader takes none behind it, and the
//! follower closes its clients' connections, which tells them that they do not know what became of what they asked.

mod follower;
mod member;
pub mod message;
mod questions;
mod repair;
#[cfg(test)]
mod tests;

pub use member::{Member, MemberOptions, Snapshot, TurnOutput, apply_payload, ordered_transaction, time};
pub use message::Message;
pub use repair::{Remedy, Repaired, describe_node};
