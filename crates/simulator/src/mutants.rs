//! Whether a broken rule is noticed: runs with one of the rules of [`Mutant`] broken for everybody.
//!
//! A mutant is caught when the run breaks a promise, or when a machine's own assertion stops it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use types::mutant::{Mutant, breaking};

use crate::checker::Violation;
use crate::{Scenario, Tracing};

/// Where a mutant was caught, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catch {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed.
    pub seed: u64,
    /// What was seen, and which checker saw it.
    pub violation: Violation,
}

/// What stands for a checker when a machine's own assertion stopped the run.
pub const ASSERTION: &str = "assertion";

thread_local! {
    /// The last thing that a panic on this thread said, and where.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on nobody hears of panics but whoever catches them: mutants make machines' own assertions fail.
pub fn hush() {
    std::panic::set_hook(Box::new(|panic| PANICKED.set(panic.to_string().replace('\n', " "))));
}

/// Runs `scenario` with `seed` and one rule broken; nothing when nobody noticed.
#[must_use]
pub fn run(mutant: Mutant, scenario: &Scenario, seed: u64) -> Option<Catch> {
    // What panicked is gone with its world: nothing of it is looked at again.
    let outcome = catch_unwind(AssertUnwindSafe(|| breaking(mutant, || crate::run(scenario, seed, Tracing::Off))));
    let violation = match outcome {
        Ok(report) => report.violations.into_iter().next()?,
        Err(_) => Violation { checker: ASSERTION, what: PANICKED.take() },
    };
    Some(Catch { scenario: scenario.clone(), seed, violation })
}

/// Where mutants are looked for.
#[must_use]
pub fn grounds() -> Vec<Scenario> {
    Scenario::all()
}

/// Looks for the first seed that catches `mutant`, up to `seeds_max` of each scenario.
#[must_use]
pub fn hunt(mutant: Mutant, scenarios: &[Scenario], seeds_max: u64) -> Option<Catch> {
    (1..=seeds_max).find_map(|seed| scenarios.iter().find_map(|scenario| run(mutant, scenario, seed)))
}
