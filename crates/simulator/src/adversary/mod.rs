//! Those who cheat. Each way of cheating is a named strategy; one liar may combine several.
//!
//! Liars hold their own keys and nobody else's: whatever they sign goes through the same sealer and the same check of
//! signatures as everybody's words. What they may do beyond honest participants is to say anything, to anyone, at any time,
//! and to know who the other liars are.

mod leader;
mod replica;

pub use ::adversary::ClientStrategy;
pub(crate) use ::adversary::{AttackConfig, ByzantineClient, ByzantineEvent};
pub use replica::ReplicaStrategy;
pub(crate) use replica::{Heard, Liar, Lies};
