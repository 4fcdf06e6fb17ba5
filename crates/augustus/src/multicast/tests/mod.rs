//! Scripts: one rule each.

mod crashes;
mod messages;
mod ordering;
mod queries;
mod rebuild;
mod rules;
mod transfer;
mod views;
pub mod world;
