//! Scripts: one rule each.

mod crashes;
mod ordering;
mod transfer;
mod views;
mod world;
