//! Rules broken on purpose, to see that the checkers notice. A test's world, and no other, can be told to break one.

use crate::checker::Violation;
use crate::scenario::Scenario;
use crate::setting::Setting;
use crate::shrink::{Smallest, shrink_with};
use crate::trace::Tracing;
use crate::world::World;

/// A rule of the shell that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Honest replicas come back from an empty disk.
    ForgetOnCrash,
    /// What was said before a failed write leaves all the same: the law is broken.
    SpeakBeforeWriting,
    /// Two of a shard's six replicas lie, though it survives one.
    InventTogether,
    /// Bits flip on disks anywhere, whoever may be at fault.
    RotAnywhere,
}

/// What the checkers say of the first of `seeds` in which they notice.
fn noticed(sabotage: Sabotage, name: &str, trouble_ms: u64, seeds: std::ops::RangeInclusive<u64>) -> (u64, Vec<Violation>) {
    let scenario = Scenario::named(name).expect("it is one of ours").lasting_ms(trouble_ms);
    for seed in seeds {
        let report = World::sabotaged(&scenario, seed, Tracing::Off, sabotage).run();
        if !report.is_clean() {
            return (seed, report.violations);
        }
    }
    (0, Vec::new())
}

#[test]
fn a_run_that_fails_is_made_smaller_and_still_fails_in_the_same_way() {
    let scenario = Scenario::named("liars").and_then(|scenario| scenario.with("trouble-ms=1000 clients=6 shards=2").ok());
    let scenario = scenario.expect("the words are good");
    let run = |scenario: &Scenario, seed| World::sabotaged(scenario, seed, Tracing::Off, Sabotage::InventTogether).run();
    let checker = run(&scenario, 1).violations.first().expect("it is noticed").checker;
    let mut steps = 0;
    let smallest = shrink_with(&scenario, 1, 60, |_, _| steps += 1, run).expect("it fails");
    let Smallest { report, runs } = smallest;
    assert!(steps > 3 && runs <= 60, "{steps} steps in {runs} runs");
    assert_eq!(report.violations.first().map(|violation| violation.checker), Some(checker));
    let (before, after) = (Setting::draw(&scenario, 1), report.words.join(" "));
    let smaller = Scenario::named("liars").and_then(|scenario| scenario.with(&after).ok()).expect("its words can be read");
    let setting = Setting::draw(&smaller, report.seed);
    assert!(setting.trouble_ms < before.trouble_ms && setting.clients < before.clients && setting.shards == 1, "{after}");
    assert_eq!(run(&smaller, report.seed).fingerprint, report.fingerprint, "its words replay it: {after}");
    assert!(shrink_with(&smaller, 1, 60, |_, _| (), |scenario, seed| crate::run(scenario, seed, Tracing::Off)).is_none(), "unbroken");
}

#[test]
fn replicas_that_forget_their_votes_are_noticed() {
    let (seed, violations) = noticed(Sabotage::ForgetOnCrash, "crashes", 4_000, 1..=5);
    assert!(!violations.is_empty(), "nobody noticed");
    println!("seed {seed}: {violations:?}");
}

#[test]
fn a_replica_that_speaks_before_it_wrote_is_noticed() {
    let (seed, violations) = noticed(Sabotage::SpeakBeforeWriting, "crashes", 8_000, 1..=30);
    assert!(!violations.is_empty(), "nobody noticed");
    println!("seed {seed}: {violations:?}");
}

#[test]
fn one_liar_more_than_a_shard_survives_is_noticed() {
    let (seed, violations) = noticed(Sabotage::InventTogether, "liars", 1_000, 1..=5);
    for checker in ["independence", "faults"] {
        assert!(violations.iter().any(|violation| violation.checker == checker), "seed {seed}: {violations:?}");
    }
}

#[test]
fn a_fault_that_a_shard_does_not_survive_does_not_happen() {
    let scenario =
        Scenario::named("crashes").and_then(|scenario| scenario.with("shards=2 faults=1 mishaps=flip-bits trouble-ms=4000").ok());
    let scenario = scenario.expect("the words are good");
    let (mut flips, mut spared) = (0, 0);
    for seed in 1..=3 {
        let report = World::sabotaged(&scenario, seed, Tracing::On, Sabotage::RotAnywhere).run();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.faulty, 1, "{report}");
        flips += report.counts.bit_flips;
        spared += report.trace.map_or(0, |trace| trace.lines().filter(|line| line.contains("is spared")).count());
    }
    assert!(flips >= 3 && spared >= 10, "bits flipped {flips} times, and {spared} times somebody was spared");
}
