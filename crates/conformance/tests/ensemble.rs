//! Whole servers of Sentinel, with clients, in worlds of faults.

use conformance::sentinel::ensemble::{Report, Scenario};
use simulator::{Tracing, run};

use crate::clean::clean;

fn scenario(name: &str, words: &str) -> Scenario {
    Scenario::named(name).expect("the test names a scenario there is").with(words).expect("the words are good")
}

fn runs(name: &str, words: &str, seeds: u64) -> Vec<Report> {
    clean(&scenario(name, words), seeds)
}

#[test]
fn no_fault_breaks_a_promise() {
    let calm = runs("ensemble-calm", "fault-phase-ms=1000", 4);
    assert!(calm.iter().any(|report| report.engine.events > 0 && report.engine.moved > 0 && report.engine.sessions_ended > 0));
    runs("ensemble-faults", "fault-phase-ms=3000", 4);
    assert!(runs("ensemble-crashes", "fault-phase-ms=4000", 6).iter().any(|report| report.counts.crashes > 0));
    assert!(runs("ensemble-rebuild", "fault-phase-ms=4000", 6).iter().any(|report| report.counts.disks_lost > 0));
}

#[test]
fn damage_in_memory_breaks_no_promise_and_is_noticed() {
    let reports = runs("ensemble-corruption", "fault-phase-ms=3000", 8);
    assert!(reports.iter().any(|report| report.engine.damaged > 0));
    assert!(reports.iter().any(|report| report.engine.stopped > 0));
}

/// Each of these runs has shown a mistake that was mended.
#[test]
fn mistakes_of_the_past_stay_mended() {
    // What was appended and delivered in one step was gone from the log before the state had it.
    assert!(run(&scenario("ensemble-calm", "kept=0"), 1, Tracing::Off).is_clean());
    // A leader whose log's end nobody had delivered waited for that before it gave its state to those whom it needed to deliver it.
    assert!(run(&scenario("ensemble-rebuild", "kept=16384"), 8, Tracing::Off).is_clean());
    // The same while it led.
    assert!(run(&scenario("ensemble", ""), 42, Tracing::Off).is_clean());
    assert!(run(&scenario("ensemble-rebuild", ""), 97, Tracing::Off).is_clean());
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [1, 1].map(|seed| run(&scenario("ensemble", "fault-phase-ms=1000"), seed, Tracing::Off).fingerprint);
    assert_eq!(one, other);
}
