//! Whether a broken rule is noticed: runs with one of the rules of [`Mutant`] broken for everybody.

use mutants::{Mutant, breaking};

use simulator::{Tracing, Violation};

use super::Scenario;

/// Runs `scenario` with `seed` and one rule broken: the first promise that the run breaks, if it breaks any. A machine's own
/// assertion may stop it, so that whoever calls this does it in a process of its own.
#[must_use]
pub fn run(mutant: Mutant, scenario: &Scenario, seed: u64) -> Option<Violation> {
    breaking(mutant, || simulator::run(scenario, seed, Tracing::Off)).violations.into_iter().next()
}

/// Where mutants are looked for beside the scenarios themselves: with cheats and liars of one kind, each of which tries one
/// rule again and again. Short, as nothing else is to be seen there.
const GROUNDS: [(&str, &str); 10] = [
    ("clients", "fault-phase-ms=3000 byzantine-clients=forge-proofs+log-freely"),
    ("clients", "fault-phase-ms=3000 shards=2 byzantine-clients=forge-proofs+log-freely"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=decide-twice+forge-proofs faulty=s0-r3:equivocate-votes+equivocate-logs"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=vouch-for-lies faulty=s0-r1:commit-always"),
    ("liars", "fault-phase-ms=3000 shards=1 faulty=s0-r1:refuse-all"),
    ("liars", "fault-phase-ms=3000 shards=1 faulty=s0-r1:false-conflicts"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=hurry-leaders+decide-twice faulty=s0-r1:equivocate-votes+claim-views"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=equiv-split faulty=s0-r1:equivocate-votes+wrong-electors"),
    ("liars", "fault-phase-ms=3000 shards=1 verifiers=each faulty=s0-r1:impersonate+garble"),
    ("clients", "fault-phase-ms=3000 byzantine-clients=far-future+read-and-leave+invent-dependencies"),
];

/// Everywhere that mutants are looked for.
///
/// # Panics
/// When the words of a ground make no sense.
#[must_use]
pub fn grounds() -> Vec<Scenario> {
    let named = |name| Scenario::named(name).expect("grounds are our own scenarios");
    let narrow = GROUNDS.iter().map(|(name, words)| named(name).with(words).expect("the words of a ground make sense"));
    narrow.chain(Scenario::all()).collect()
}
