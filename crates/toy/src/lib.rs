//! The smallest engine there is, for tests of whatever runs engines: the tokio shell, the simulator, the neutral client.
//!
//! A replica ([`Doubler`]) answers each number with its double, under its signature. It numbers its answers, and keeps that
//! number in a store, so that a crash matters: **no replica ever gives two answers the same number**. A client ([`Asker`])
//! asks every replica of a shard and believes what `f + 1` of them say, so that `f` liars persuade nobody.
//!
//! ```text
//!   Asker ── Ask(21) ──▶ every Doubler:  count += 1, append it, sign
//!         ◀── Answer { 21, 42, count } ──   after the durable write
//!   f + 1 say 42 ⇒ Answered { 21, 42 }
//! ```
//!
//! A replica also says unasked, at every thousandth answer, how many it has given. [`Session`] is the toy behind the engine interface
//! ([`engine`]).
//!
//! Nothing here is linked into any product: only tests depend on this crate.

mod asker;
mod doubler;
pub mod fixture;
mod message;
pub mod session;

pub use asker::{Answered, Asker, RETRY_MS};
pub use doubler::{AskPeer, Doubler, Flaw, MILESTONE_ANSWERS};
pub use message::{Doubled, Message};
pub use session::{PROFILE, Session};
