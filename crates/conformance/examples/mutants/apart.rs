//! Runs of the simulator with a rule broken, each in a process of its own: machines' own assertions may stop them, and a broken
//! rule may keep them going for ever.

use std::process::Command;
use std::time::Duration;

use conformance::mutants::Ground;
use mutants::Mutant;

use crate::tests::until;

/// How long a run may take; a whole one takes seconds.
const LIMIT: Duration = Duration::from_secs(240);
/// What stands for a checker when a machine's own assertion stopped the run.
const ASSERTION: &str = "assertion";

/// Where a mutant was caught, and by whom.
#[derive(Clone, Debug)]
pub struct Catch {
    pub scenario: Ground,
    pub seed: u64,
    /// Which checker noticed.
    pub by: String,
    /// What it saw.
    pub what: String,
}

/// Runs `scenario` with `seed` and one rule broken, in this process, and writes down who notices.
pub fn tell(mutant: Mutant, scenario: &Ground, seed: u64) {
    std::panic::set_hook(Box::new(|panic| println!("{ASSERTION}\t{}", panic.to_string().replace('\n', " "))));
    if let Some(violation) = scenario.hunt(mutant, seed) {
        println!("{}\t{}", violation.checker, violation.what);
    }
}

/// The same in a process of its own; nothing when nobody noticed.
pub fn run(mutant: Mutant, scenario: &Ground, seed: u64) -> Option<Catch> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["one", mutant.name(), scenario.name(), &seed.to_string()]).args(scenario.words());
    let (_, said) = until(LIMIT, &mut command)?;
    let (by, what) = said.lines().next()?.split_once('\t')?;
    Some(Catch { scenario: scenario.clone(), seed, by: by.to_owned(), what: what.to_owned() })
}

/// Looks for the first seed that catches `mutant`, up to `seeds_max` of each scenario.
pub fn hunt(mutant: Mutant, scenarios: &[Ground], seeds_max: u64) -> Option<Catch> {
    (1..=seeds_max).find_map(|seed| scenarios.iter().find_map(|scenario| run(mutant, scenario, seed)))
}
