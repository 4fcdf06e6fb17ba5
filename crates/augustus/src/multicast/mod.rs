//! The atomic multicast of one shard: all its replicas deliver the same requests in the same order (PBFT; Castro and Liskov, TOCS 2002).
//!
//! **The promise.** Of `n = 3f+1` replicas `f` may lie, and any number of clients. Honest replicas deliver the same requests in the same
//! order, each at most once and none that no client sent; what one of them has answered for is on the disks of enough of them; and once the network behaves,
//! what an honest client sends to all of them is delivered. Nothing here knows what a request means: that is the [`Application`]'s.
//!
//! ```text
//!   client      Request ─▶ every replica
//!   replica     Vouch ───▶ leader         it is its client's: I had it from itself, or f+1 of us say so
//!   leader      Propose ─▶ all            2f+1 vouch: list d has number n      (journal: the list, accepted)
//!   replica     Prepare ─▶ all            I accept it, and nothing else there  (journal: the list, accepted)
//!               Commit ──▶ all            2f+1 accept it                       (journal: prepared)
//!                                         2f+1 have prepared it: decided       (journal: decided)
//!               Reply ───▶ client         f+1 equal answers count
//! ```
//!
//! None of this is signed: channels prove who speaks. Signed are the digests of checkpoints, and what is said when a leader is replaced.
//!
//! **Where things are.** [`replica`] has the state and the dispatch; `ordering.rs`, `views.rs`, `checkpoints.rs`, `transfer.rs` and [`rebuild`] what
//! it does. Pure rules stand alone: [`choice`] says how a view begins, [`pool`] who vouches for what, [`windows`] what was delivered, [`quorum`] how many must
//! agree. What is said is in [`message`]. Why it is right is in the book, in *Augustus as built*.

mod application;
mod checkpoints;
pub mod choice;
#[cfg(any(test, feature = "lab"))]
pub mod history;
pub mod message;
mod node;
mod ordering;
mod paced;
pub mod pool;
mod queries;
pub mod quorum;
pub mod rebuild;
mod record;
pub mod replica;
pub mod request;
mod slot;
#[cfg(test)]
mod tests;
mod transfer;
mod views;
pub mod windows;

pub(crate) use checkpoints::PAGES_MAX;

pub use application::{Answer, Application, Said, WrongPart, page_digest};
pub use message::{Message, ReplySignature, Unsigned};
pub use node::{Node, NodeError};
pub use replica::{JournalOp, OpenError, Options, Replica};
pub use request::{Request, RequestId, RequestKey};
