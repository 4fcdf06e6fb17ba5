//! The shell around the pure machines: the only crate with sockets, threads and the time of day.
//!
//! A machine (a replica, or a client's coordinator) is started with [`start`]. From then on:
//!
//! ```text
//! socket → TLS → frames → messages → signatures checked ┐            (tokio workers)
//!                                                       ├→ mailbox → steps → one durable write → one signed root
//! commands of its own side ─────────────────────────────┘            (the node loop)                    │
//!                                                                                                       │
//! socket ← TLS ← frames, much queued in one write ←─────────── one push a party ←───────────────────────┘
//! ```
//!
//! Invariants:
//!
//! - **The law.** Nothing a step says leaves the node before everything written up to then is durable ([`node`]).
//! - **Verified input.** A machine receives only messages whose every signature was checked, from a party whose key the
//!   channel proved ([`tls`], [`transport`]).
//! - **Bounded resources.** Every queue, buffer, count and wait has a bound in [`Limits`] or `types::limits`. A member's
//!   messages use only that member's quota. Whatever a peer sends can at worst close its own connection.
//! - **Floods go last.** Whoever takes far more of this node's time than any other client is served at low priority. While there are no
//!   cores to spare, the loop takes up what it sent only now and then.
//! - **Messages may be lost.** A message to a party that is not connected, or that does not read, is dropped and counted;
//!   machines have timers for that.

mod alarm;
mod changes;
pub mod clock;
mod conduct;
mod configuration;
mod connection;
pub mod frame;
mod half_open;
mod halves;
mod inbox;
#[cfg(feature = "lab")]
pub mod injected_latency;
#[cfg(not(feature = "lab"))]
#[path = "injected_latency/none.rs"]
pub mod injected_latency;
mod limits;
mod link;
mod log_limit;
mod lookup;
mod mailbox;
mod member;
pub mod metrics;
pub mod node;
mod priority;
mod quota;
mod read_buffer;
pub mod shutdown;
pub mod tls;
pub mod transport;
mod worked;

pub use changes::{ChangeOptions, Control, KeepChain, Newest, NotTakenOver, TellOfFork};
pub use configuration::Configuration;
pub use connection::Wire;
pub use half_open::{HalfOpen, Network, Place, network};
#[cfg(feature = "lab")]
pub use injected_latency::Delay;
pub use injected_latency::Delays;
pub use limits::Limits;
pub use log_limit::{LeftOut, LogLimit};
pub use metrics::Metrics;
pub use node::{Durable, Node, NodeError, NodeHandle, NodeOptions, NotTaken, RunOn, StartError, Stopped, start};
pub use priority::LowPriority;
pub use tls::{Identity, IdentityError, make_certificate};
pub use transport::{ListenError, PeerState, dials, listen};
