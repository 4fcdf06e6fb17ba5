//! The kernel under the toy engine: every fault and every phase, a checker that notices, a seed that means one run.

mod toy;

use simulator::{BrokenRule, Report, Scenario, Tracing, run, run_broken, shrink};
use toy::{ReplicaStrategy, Toy};

/// In so many seeds a broken rule must be noticed.
const SEEDS: u64 = 4;

fn scenario(name: &str) -> Scenario<Toy> {
    Scenario::named(name).expect("the test names a scenario there is")
}

fn keeps_its_promises(name: &str) -> Vec<Report<()>> {
    let reports: Vec<Report<()>> = (1..=3).map(|seed| run(&scenario(name).lasting_ms(1_500), seed, Tracing::Off)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.committed > 0, "nothing was tried: {report}");
    }
    reports
}

/// The checker that first notices, in one of a few seeds.
fn noticed_by(words: &str, broken: Option<&BrokenRule<ReplicaStrategy>>, name: &str) -> Option<&'static str> {
    let scenario = scenario(name).lasting_ms(1_500).with(words).expect("the words are good");
    (1..=SEEDS).find_map(|seed| {
        let report = match broken {
            Some(broken) => run_broken(&scenario, seed, Tracing::Off, broken.clone()),
            None => run(&scenario, seed, Tracing::Off),
        };
        report.violations.first().map(|violation| violation.checker)
    })
}

#[test]
fn the_toy_keeps_its_promises_when_nothing_goes_wrong() {
    keeps_its_promises("calm");
}

#[test]
fn a_bad_network_breaks_no_promise() {
    assert!(keeps_its_promises("network").iter().any(|report| report.counts.network_faults > 0));
}

#[test]
fn crashes_and_torn_disks_break_no_promise() {
    let reports = keeps_its_promises("crashes");
    assert!(reports.iter().any(|report| report.counts.crashes > 0) && reports.iter().any(|report| report.counts.bit_flips > 0));
}

/// In the middle of what they do, not only when all is quiet.
#[test]
fn a_power_cut_of_all_replicas_breaks_no_promise() {
    let words =
        scenario("crashes").lasting_ms(1_500).with("shards=1 faults=1 faulty=none fault-kinds=cut-power").expect("the words are good");
    let report = run(&words, 1, Tracing::On);
    assert!(report.is_clean() && report.counts.committed > 0, "{report}");
    let trace = report.trace.unwrap_or_default();
    let crashes = trace.lines().take_while(|line| !line.contains("the faults are over")).filter(|line| line.ends_with(" crashes"));
    let at: Vec<&str> = crashes.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(at.chunk_by(|one, next| one == next).any(|together| together.len() == 6), "all at one time: {at:?}");
}

#[test]
fn upgrades_break_no_promise() {
    assert!(keeps_its_promises("upgrade").iter().any(|report| report.counts.upgraded > 0));
}

#[test]
fn no_lie_of_a_replica_breaks_a_promise() {
    keeps_its_promises("liars");
    for strategy in ["silent", "wrong-double", "two-doubles", "forget"] {
        let words = format!("shards=1 faults=1 clients=3 fault-phase-ms=500 faulty=s0-r2:{strategy}");
        let report = run(&scenario("liars").with(&words).expect("the words are good"), 1, Tracing::Off);
        assert!(report.is_clean() && report.counts.committed > 0, "{strategy}: {report}");
    }
}

#[test]
fn everything_at_once_breaks_no_promise() {
    keeps_its_promises("everything");
}

#[test]
fn a_replica_that_says_what_is_not_durable_is_noticed() {
    let words = "fault-kinds=crash-replica faulty=none";
    assert_eq!(noticed_by(&format!("{words} broken=writes-late"), None, "crashes"), Some("counts"));
    // A write that fails is mostly on the disk all the same: it takes some crashes until one is not.
    let longer = format!("{words} fault-phase-ms=6000");
    assert_eq!(noticed_by(&longer, Some(&BrokenRule::SendBeforeWriting), "crashes"), Some("counts"));
    assert_eq!(noticed_by(words, None, "crashes"), None);
}

#[test]
fn a_replica_that_forgets_is_noticed() {
    assert_eq!(noticed_by("faulty=none broken=forgets", None, "crashes"), Some("counts"));
    assert_eq!(noticed_by("faulty=none", Some(&BrokenRule::ForgetOnCrash), "crashes"), Some("counts"));
}

#[test]
fn one_liar_more_than_a_shard_survives_is_noticed() {
    let broken = BrokenRule::OneLiarTooMany(ReplicaStrategy::WrongDouble);
    assert_eq!(noticed_by("", Some(&broken), "liars"), Some("doubles"));
}

#[test]
fn a_replica_that_never_answers_some_questions_is_noticed() {
    assert_eq!(noticed_by("numbers=3 broken=ignores-some", None, "calm"), Some("progress"));
}

#[test]
fn a_run_that_fails_is_made_smaller() {
    let scenario =
        scenario("everything").with("broken=forgets clients=6 shards=2 faults=1 fault-phase-ms=1500").expect("the words are good");
    let seed = (1..=SEEDS).find(|seed| !run(&scenario, *seed, Tracing::Off).is_clean()).expect("it is noticed");
    let smallest = shrink(&scenario, seed, 40, |_, _| ()).expect("it fails");
    let words = smallest.report.words.join(" ");
    assert!(words.contains("shards=1") || words.contains("clients=1"), "{words}");
    let smaller = Scenario::<Toy>::named("everything").and_then(|scenario| scenario.with(&words).ok()).expect("its words can be read");
    assert_eq!(run(&smaller, smallest.report.seed, Tracing::Off).fingerprint, smallest.report.fingerprint, "its words replay it: {words}");
}

#[test]
fn a_seed_means_one_run_byte_for_byte() {
    for scenario in Scenario::<Toy>::all().into_iter().map(|scenario| scenario.lasting_ms(500)) {
        let (first, second) = (run(&scenario, 11, Tracing::On), run(&scenario, 11, Tracing::On));
        assert_eq!(first.trace, second.trace, "{}", scenario.name);
        assert_eq!((first.fingerprint, first.counts), (second.fingerprint, second.counts));
        assert!(first.trace.is_some_and(|trace| trace.lines().count() > 100), "{}", scenario.name);
        assert_ne!(run(&scenario, 12, Tracing::Off).fingerprint, first.fingerprint, "another seed is another run");
        assert_eq!(run(&scenario, 11, Tracing::Off).fingerprint, first.fingerprint, "nobody who reads along changes what happens");
    }
}
