//! Augustus (Padilha and Pedone, EuroSys 2013): shards of `3f+1` replicas, each of which orders short transactions and runs
//! them one after the other.

pub mod certificate;
mod durable;
mod executor;
pub mod limits;
mod locks;
pub mod multicast;
mod operation;
mod pages;
mod request;
mod rows;
mod server;
mod session;
mod sessions;
mod shard;
mod state_transfer;
mod transaction;

pub use durable::Keeper;
pub use executor::{Executor, Settings};
pub use locks::Structural;
pub use operation::{Found, Operation};
pub use pages::PageNumber;
pub use request::{AbortReason, Answer, Ordered, Refusal, Reply, Request, Signed, Unreadable, Verdict};
pub use session::{PROFILE, Session};
pub use shard::Shard;
pub use state_transfer::{Checkpoint, Fetch, Head, Piece, Snapshot, WrongPiece};
pub use transaction::{Name, Transaction, TransactionError};
