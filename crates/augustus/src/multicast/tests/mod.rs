//! Scripts: one rule each.

mod ordering;
mod world;
