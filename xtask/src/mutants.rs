//! Mutants: the simulator breaks each rule of the protocol in turn, and must notice.

use anyhow::Result;

use crate::ci::in_root;
use crate::process::show;
use crate::workspace::Workspace;

/// The page with the table of who notices what.
const PAGE: &str = "docs/testing.md";

/// In so many seeds of each scenario a mutant must be caught.
const SEEDS: &str = "20";

/// Whether every mutant is caught by the run that the table names.
pub fn check(workspace: &Workspace) -> Result<()> {
    show(in_root(workspace).args(EXAMPLE).args(["check", PAGE]))
}

/// Hunts for every mutant that is not, and writes the table anew.
pub fn hunt(workspace: &Workspace) -> Result<()> {
    show(in_root(workspace).args(EXAMPLE).args(["write", PAGE, SEEDS]))
}

/// In release, as whole runs of worlds take their time; what a mutant is made of is in no other build.
const EXAMPLE: [&str; 9] = ["run", "--release", "--package", "simulator", "--features", "mutants", "--example", "mutants", "--"];
