//! What applications use to reach a Bezant cluster. No engine shows through.
//!
//! [`Config::load`] reads the folder that `bezant init` or `bezant dev` made.

pub mod config;

pub use config::Config;
