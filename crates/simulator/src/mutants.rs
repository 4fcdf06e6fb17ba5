//! Whether a broken rule is noticed: runs with one of the rules of [`Mutant`] broken for everybody.
//!
//! A mutant is caught when the run breaks a promise, or when a machine's own assertion stops it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use types::mutant::{Mutant, breaking};

use crate::checker::Violation;
use crate::{Scenario, Tracing};

/// Where a mutant was caught, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catch {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What was seen, and which checker saw it.
    pub violation: Violation,
}

/// What stands for a checker when a machine's own assertion stopped the run.
pub const ASSERTION: &str = "assertion";

/// Runs `scenario` with `seed` and one rule broken; nothing when nobody noticed.
#[must_use]
pub fn run(mutant: Mutant, scenario: &Scenario, seed: u64) -> Option<Catch> {
    // What panicked is gone with its world: nothing of it is looked at again.
    let outcome = catch_unwind(AssertUnwindSafe(|| breaking(mutant, || crate::run(scenario, seed, Tracing::Off))));
    let violation = match outcome {
        Ok(report) => report.violations.into_iter().next()?,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Violation { checker: ASSERTION, what: text.unwrap_or_else(|| "something panicked".to_owned()) }
        }
    };
    Some(Catch { scenario: scenario.name, seed, violation })
}

/// Looks for the first seed that catches `mutant`, up to `seeds_max` of each scenario.
#[must_use]
pub fn hunt(mutant: Mutant, scenarios: &[Scenario], seeds_max: u64) -> Option<Catch> {
    (1..=seeds_max).find_map(|seed| scenarios.iter().find_map(|scenario| run(mutant, scenario, seed)))
}
