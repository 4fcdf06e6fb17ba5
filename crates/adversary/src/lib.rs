//! Clients that cheat: each runs an honest client's machine for what it does not cheat about, and stands between it and the
//! network. The simulator tries them against every rule; a benchmark tries what they cost the honest ones of a real cluster.
//!
//! A client's lie is ordinary input to a replica, which is made for it, so nothing here is a secret or a danger: a cheating
//! client holds its own key and nobody else's, and may do what its rights allow.

mod client;
pub mod random;

pub use client::{ClientStrategy, Rogue};
pub use random::Random;
