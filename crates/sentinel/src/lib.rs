//! Sentinel: a coordination service that notices its own corruption (Mane, 2021), for every client of ZooKeeper.
//!
//! What is promised: a replica whose state is not the one that its transactions make, by a flipped bit, a bug or a damaged disk, notices
//! it before it answers from what it touched, and then answers nobody. It is for one organisation: clients and servers may fail, and do
//! not lie.
//!
//! ```text
//!   request ──▶ Preparer: checks, fixes versions, foresees the digest ──▶ Transaction ──▶ the log, synced
//!                                                                              │
//!   reply, events ◀── Server ◀── State::apply: changes nodes, compares the digest ◀┘
//!                                         └─▶ Corruption: nobody is answered any more
//! ```
//!
//! Everything here is pure: time comes with each input, and what leaves stands in an [`Outbox`] that the shell gives out after the
//! transactions in it are durable. Read `digest.rs` and `node.rs` for what is covered by digests, `transaction.rs` for what is ordered,
//! `prepare.rs` and `state.rs` for how it is made and applied, `server.rs` for what clients see. What a digest notices, and what it
//! does not, stands in `docs/protocols/sentinel.md`.

mod acl;
mod commands;
mod digest;
mod drill;
pub mod ensemble;
mod expiry;
mod four_letter_words;
pub mod limits;
mod node;
pub mod order;
mod path;
mod prepare;
mod quota;
mod reads;
mod replicated;
mod requests;
mod server;
mod snapshot;
mod state;
mod statistics;
mod text_map;
mod transaction;
pub mod transactions;
mod tree;
mod watches;
mod work;

#[cfg(test)]
mod detection;

pub use acl::digest_id;
pub use commands::{Fields, Value, latency_fields};
pub use digest::{Checksum, Leaf, Profile};
pub use drill::Damage;
pub use prepare::{Origin, Preparer, Proposal};
pub use replicated::Replicated;
pub use server::{ConnectionId, Input, Now, Outbox, Peer, Server, Settings};
pub use snapshot::{NotWritten, SnapshotError};
pub use state::{Applied, Corruption, Event, State};
pub use statistics::{Latency, Statistics};
pub use transaction::{Body, Change, Transaction};
pub use transactions::{Commits, PROFILE, Session};
