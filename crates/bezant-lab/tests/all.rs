//! The laboratory, on real processes. One program for all of them: it is linked once, and they run side by side.

mod attack;
mod cheats;
mod clocks;
mod figures;
#[path = "../../bezant/tests/place/mod.rs"]
mod place;
mod predict;
mod settings;
mod soak;
