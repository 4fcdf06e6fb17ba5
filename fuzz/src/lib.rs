//! Fuzzing of everything that reads input from others.
//!
//! A [`Target`] takes bytes and must return. It panics when a property is violated: when a decoder panics or accepts a second
//! encoding of a value, when a certificate passes that the reference implementation refuses, when a replica contradicts itself.
//! Some targets take the bytes as they are; others read choices from them and build almost valid messages, since arbitrary
//! bytes never pass a signature check.
//!
//! Two programs run them. `fuzz-guided` is libFuzzer: it sees which parts of our code an input reaches, keeps inputs that
//! reach new ones and changes those further. `fuzz` needs nothing but cargo: it lists the targets, runs files, writes the
//! seeds of the corpus, and changes corpus files blindly where there is no C++ compiler for libFuzzer. `cargo xtask fuzz`
//! builds and runs whichever fits.
//!
//! Each finding becomes a test of the crate that was wrong; the corpus is only a starting point.

mod bank;
pub mod blind;
mod choices;
mod fixture;
mod generators;
mod reference;
mod targets;
mod tpcc;

// The workloads show nobody their rows; how they are read is tried all the same.
#[path = "../../crates/workload/src/row.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "only what reading needs is used here"))]
mod row;

// How scripts are read, without the whole program, which would be built once more for libFuzzer.
#[path = "../../crates/bezant/src/as_of.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "only what reading needs is used here"))]
mod as_of;
#[path = "../../crates/bezant/src/failure.rs"]
#[expect(dead_code, reason = "only what reading needs is used here")]
mod failure;
#[path = "../../crates/bezant/src/output.rs"]
#[expect(dead_code, reason = "only what reading needs is used here")]
mod output;
#[path = "../../crates/bezant/src/script.rs"]
#[expect(dead_code, reason = "only what reading needs is used here")]
mod script;

/// Something that takes arbitrary bytes.
pub struct Target {
    /// Its name, which is also its corpus folder's.
    pub name: &'static str,
    /// What it tries, in a line.
    pub what: &'static str,
    /// The longest input worth trying, in bytes.
    pub bytes_max: usize,
    /// How many inputs are tried in CI: about two seconds' worth.
    pub runs: u32,
    /// Takes the bytes, and panics when a property is violated.
    pub run: fn(&[u8]),
    /// Inputs from real encodings, with which the corpus begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The variable that tells `fuzz-guided` its target, since its command line is libFuzzer's.
pub const TARGET_VARIABLE: &str = "BEZANT_FUZZ_TARGET";

/// Every target.
#[must_use]
pub fn targets() -> &'static [Target] {
    targets::ALL
}

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}
