//! Whole clusters of Augustus in worlds of faults, liars and cheats.

use conformance::augustus::whole::{Report, Scenario};
use conformance::augustus::{ClientStrategy, ReplicaStrategy};
use random::Named as _;
use simulator::{BrokenRule, Tracing, run_broken};

use crate::clean::clean;

fn scenario(name: &str, words: &str) -> Scenario {
    Scenario::named(name).expect("the test names a scenario there is").with(words).expect("the words are good")
}

fn runs(name: &str, words: &str, seeds: u64) -> Vec<Report> {
    clean(&scenario(name, words), seeds)
}

#[test]
fn no_fault_breaks_a_promise() {
    runs("augustus-calm", "fault-phase-ms=1000", 1);
    assert!(runs("augustus-crashes", "fault-phase-ms=3000", 3).iter().any(|report| report.counts.crashes > 0));
    runs("augustus", "fault-phase-ms=3000", 3);
}

#[test]
fn no_lie_of_a_leader_and_no_cheat_of_a_client_breaks_a_promise() {
    let lies = ReplicaStrategy::ALL.iter().map(|lie| format!("faulty=s0-r0:{}", lie.name()));
    let cheats = ClientStrategy::ALL.iter().map(|cheat| format!("faulty=none byzantine-clients={}", cheat.name()));
    for words in lies.chain(cheats) {
        runs("augustus-liars", &format!("shards=1 faults=1 clients=2 fault-phase-ms=600 {words}"), 1);
    }
}

#[test]
fn replicas_that_lose_their_disks_come_back_and_break_no_promise() {
    let reports = runs("augustus-rebuild", "fault-phase-ms=3000 checkpoint-interval=4", 3);
    assert!(reports.iter().any(|report| report.counts.disks_lost > 0));
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [1, 1].map(|_| runs("augustus", "fault-phase-ms=500", 1).remove(0).fingerprint);
    assert_eq!(one, other);
}

/// What the checkers of safety say first, in the first of some seeds in which they notice.
fn noticed(broken: &BrokenRule<ReplicaStrategy>, name: &str, words: &str) -> Option<String> {
    let scenario = Scenario::named(name).expect("the test names a scenario there is").with(words).expect("the words are good");
    (1..=10).find_map(|seed| {
        let violations = run_broken(&scenario, seed, Tracing::Off, broken.clone()).violations;
        let first = violations.into_iter().find(|violation| violation.checker != "progress")?;
        Some(format!("seed {seed}: {}: {}", first.checker, first.what))
    })
}

#[test]
fn replicas_that_forget_what_they_said_are_noticed() {
    let what = noticed(&BrokenRule::ForgetOnCrash, "augustus-crashes", "fault-phase-ms=3000");
    println!("{}", what.expect("nobody noticed"));
}

#[test]
fn a_replica_that_speaks_before_it_wrote_is_noticed() {
    let what = noticed(&BrokenRule::SendBeforeWriting, "augustus-crashes", "fault-phase-ms=6000");
    println!("{}", what.expect("nobody noticed"));
}
