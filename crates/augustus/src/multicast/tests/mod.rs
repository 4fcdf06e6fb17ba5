//! Scripts: one rule each.

mod crashes;
mod messages;
mod ordering;
mod rules;
mod transfer;
mod views;
pub mod world;
