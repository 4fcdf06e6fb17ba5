//! What a seed decides: streams of random numbers ([`Random`]), and enumerations whose values can be drawn, and written by
//! name on a command line ([`Named`]).
//!
//! The simulator, the capacity model and Byzantine clients draw everything from here, so that a seed means the same run for ever.

mod names;
mod stream;

pub use names::Named;
pub use stream::Random;
