//! A node that breaks a rule of the protocol on purpose, for experiments with replicas that are wrong (docs/performance.md has
//! one). It takes `bezant-lab` and, in the node's environment, the rule's name:
//!
//! ```sh
//! BEZANT_MUTANT=DecisionUnjustified bezant-lab up ./cluster
//! ```
//!
//! The product does not look at that, and has nothing in it that could break a rule.

use crate::failure::Failure;

/// The rule that the environment names, and that is broken in this process from its start.
#[cfg(feature = "lab")]
pub fn from_environment() -> Result<Option<&'static str>, Failure> {
    use mutants::{Mutant, VARIABLE};

    let Some(name) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let Some(mutant) = Mutant::ALL.iter().find(|mutant| name == mutant.name()) else {
        return Err(Failure::wrong(format!("{VARIABLE} names no rule: {name:?}")).help("take a name from the table in docs/testing.md"));
    };
    tracing::warn!(rule = mutant.rule(), "BROKEN ON PURPOSE: {}", mutant.broken());
    Ok(Some(mutant.name()))
}

/// No rule is broken in this build.
#[cfg(not(feature = "lab"))]
pub fn from_environment() -> Result<Option<&'static str>, Failure> {
    Ok(None)
}
