//! Rules broken on purpose, to see that the checkers notice.

use conformance::basil::{ReplicaStrategy, Scenario, Setting};
use mutants::{Mutant, breaking};
use simulator::{BrokenRule, Smallest, Tracing, Violation, run_broken, shrink_with};

type Broken = BrokenRule<ReplicaStrategy>;

/// What the checkers say of the first of `seeds` in which they notice.
fn noticed(broken: &Broken, name: &str, fault_phase_ms: u64, seeds: std::ops::RangeInclusive<u64>) -> (u64, Vec<Violation>) {
    let scenario = Scenario::named(name).expect("it is one of ours").lasting_ms(fault_phase_ms);
    for seed in seeds {
        let report = run_broken(&scenario, seed, Tracing::Off, broken.clone());
        if !report.is_clean() {
            return (seed, report.violations);
        }
    }
    (0, Vec::new())
}

#[test]
fn a_run_that_fails_is_made_smaller_and_still_fails_in_the_same_way() {
    let scenario = Scenario::named("liars").and_then(|scenario| scenario.with("fault-phase-ms=1000 clients=6 shards=2").ok());
    let scenario = scenario.expect("the words are good");
    let run =
        |scenario: &Scenario, seed| run_broken(scenario, seed, Tracing::Off, BrokenRule::OneLiarTooMany(ReplicaStrategy::InventVersions));
    let checker = run(&scenario, 1).violations.first().expect("it is noticed").checker;
    let mut steps = 0;
    let smallest = shrink_with(&scenario, 1, 60, |_, _| steps += 1, run).expect("it fails");
    let Smallest { report, runs } = smallest;
    assert!(steps > 3 && runs <= 60, "{steps} steps in {runs} runs");
    assert_eq!(report.violations.first().map(|violation| violation.checker), Some(checker));
    let (before, after) = (Setting::new(&scenario, 1), report.words.join(" "));
    let smaller = Scenario::named("liars").and_then(|scenario| scenario.with(&after).ok()).expect("its words can be read");
    let setting = Setting::new(&smaller, report.seed);
    assert!(setting.fault_phase_ms < before.fault_phase_ms && setting.clients < before.clients && setting.shards == 1, "{after}");
    assert_eq!(run(&smaller, report.seed).fingerprint, report.fingerprint, "its words replay it: {after}");
    assert!(shrink_with(&smaller, 1, 60, |_, _| (), |scenario, seed| simulator::run(scenario, seed, Tracing::Off)).is_none(), "unbroken");
}

/// Who forgot something finds that its data are an older copy, as others remember how far its journal had come, and ends.
#[test]
fn replicas_that_forget_their_votes_notice_it_themselves() {
    let (seed, violations) = noticed(&Broken::ForgetOnCrash, "crashes", 4_000, 1..=5);
    let is_older_copy = |violation: &Violation| violation.checker == "disk" && violation.what.contains("an older copy");
    assert!(violations.first().is_some_and(is_older_copy), "seed {seed}: {violations:?}");
}

/// Those that do not find it contradict what they said before.
#[test]
fn replicas_that_forget_their_votes_and_do_not_notice_it_are_noticed() {
    let of_votes = ["votes", "validated", "views"];
    let noticed_by = |seeds| breaking(Mutant::OlderCopyUnnoticed, || noticed(&Broken::ForgetOnCrash, "crashes", 4_000, seeds));
    let all: Vec<(u64, Vec<Violation>)> = (1..=5).map(|seed| noticed_by(seed..=seed)).collect();
    let is_of_votes = |(_, violations): &(u64, Vec<Violation>)| violations.iter().any(|violation| of_votes.contains(&violation.checker));
    assert!(all.iter().any(is_of_votes), "{all:?}");
}

#[test]
fn a_replica_that_speaks_before_it_wrote_is_noticed() {
    let (seed, violations) = noticed(&Broken::SendBeforeWriting, "crashes", 8_000, 1..=30);
    assert!(!violations.is_empty(), "nobody noticed");
    println!("seed {seed}: {violations:?}");
}

/// A rule about rights that is broken shows in what replicas vote for, or answer.
#[test]
fn what_clients_have_no_right_to_is_noticed() {
    for mutant in [Mutant::RightsIgnored, Mutant::SecretRead, Mutant::SecretRange, Mutant::SecretShown, Mutant::RightsKept] {
        let scenario = Scenario::named("rights").expect("it is one of ours").lasting_ms(6_000);
        let first = |seed| breaking(mutant, || simulator::run(&scenario, seed, Tracing::Off)).violations.into_iter().next();
        let noticed = (1..=4).find_map(first);
        assert!(noticed.as_ref().is_some_and(|violation| violation.checker == "rights"), "{mutant:?}: {noticed:?}");
    }
}

#[test]
fn one_liar_more_than_a_shard_survives_is_noticed() {
    let (seed, violations) = noticed(&BrokenRule::OneLiarTooMany(ReplicaStrategy::InventVersions), "liars", 1_000, 1..=5);
    for checker in ["independence", "faults"] {
        assert!(violations.iter().any(|violation| violation.checker == checker), "seed {seed}: {violations:?}");
    }
}

#[test]
fn a_fault_that_a_shard_does_not_survive_does_not_happen() {
    let scenario =
        Scenario::named("crashes").and_then(|scenario| scenario.with("shards=2 faults=1 fault-kinds=flip-bits fault-phase-ms=4000").ok());
    let scenario = scenario.expect("the words are good");
    let (mut flips, mut spared) = (0, 0);
    for seed in 1..=3 {
        let report = run_broken(&scenario, seed, Tracing::On, Broken::DamageAnyDisk);
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.faulty, 1, "{report}");
        flips += report.counts.bit_flips;
        spared += report.trace.map_or(0, |trace| trace.lines().filter(|line| line.contains("is spared")).count());
    }
    assert!(flips >= 3 && spared >= 10, "bits flipped {flips} times, and {spared} times somebody was spared");
}
