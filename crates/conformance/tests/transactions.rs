//! Transactions on Sentinel, in worlds of faults.

use conformance::sentinel::transactions::{Report, Scenario};
use simulator::{BrokenRule, Tracing, run, run_broken};

use crate::clean::clean;

fn scenario(name: &str, words: &str) -> Scenario {
    Scenario::named(name).expect("the test names a scenario there is").with(words).expect("the words are good")
}

fn runs(name: &str, words: &str, seeds: u64) -> Vec<Report> {
    clean(&scenario(name, words), seeds)
}

#[test]
fn no_fault_breaks_a_promise() {
    let calm = runs("transactions-calm", "fault-phase-ms=1000", 4);
    assert!(calm.iter().any(|report| report.counts.aborted > 0 && report.engine.read_alone > 0));
    let crashes = runs("transactions-crashes", "", 8);
    assert!(crashes.iter().any(|report| report.counts.crashes > 0));
    assert!(crashes.iter().any(|report| report.counts.unknown > 0));
    assert!(crashes.iter().any(|report| report.engine.reopened > 0));
    assert!(runs("transactions-rebuild", "", 8).iter().any(|report| report.counts.disks_lost > 0));
}

#[test]
fn sessions_that_end_while_commits_are_under_way_break_no_promise() {
    let reports = runs("transactions-crashes", "engine-session-ms=200 request-timeout-ms=60000", 8);
    assert!(reports.iter().any(|report| report.engine.sessions_ended > 0));
}

#[test]
fn a_server_that_refuses_most_questions_breaks_no_promise() {
    runs("transactions-crashes", "fault-phase-ms=3000 questions=1", 4);
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [1, 1].map(|seed| run(&scenario("transactions-crashes", "fault-phase-ms=1000"), seed, Tracing::Off).fingerprint);
    assert_eq!(one, other);
}

/// What the checkers of safety say first, in the first of some seeds in which they notice.
fn noticed(broken: &BrokenRule<conformance::sentinel::NoStrategy>, words: &str) -> Option<String> {
    let scenario = scenario("transactions-crashes", words);
    (1..=100).find_map(|seed| {
        let violations = run_broken(&scenario, seed, Tracing::Off, broken.clone()).violations;
        let first = violations.into_iter().find(|violation| violation.checker != "progress")?;
        Some(format!("seed {seed}: {}: {}", first.checker, first.what))
    })
}

#[test]
fn servers_that_forget_what_they_said_are_noticed() {
    println!("{}", noticed(&BrokenRule::ForgetOnCrash, "").expect("nobody noticed"));
}
