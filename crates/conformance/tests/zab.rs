//! The order among Sentinel's servers in worlds of faults.

use conformance::sentinel::{NoStrategy, Report, Scenario};
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
    for name in ["zab-calm", "zab-faults", "zab-upgrade", "zab"] {
        runs(name, "fault-phase-ms=2000", 4);
    }
    assert!(runs("zab-crashes", "fault-phase-ms=4000", 8).iter().any(|report| report.counts.crashes > 0));
    assert!(runs("zab-rebuild", "fault-phase-ms=4000", 8).iter().any(|report| report.counts.disks_lost > 0));
}

/// Logs that keep nothing in memory, so that whoever lags behind takes over a snapshot, and journals that begin anew all the time.
#[test]
fn snapshots_take_the_place_of_logs() {
    runs("zab-crashes", "fault-phase-ms=3000 kept=0 journal-bytes=1024", 4);
    runs("zab-faults", "fault-phase-ms=3000 kept=4 journal-bytes=1024", 4);
}

/// In the middle of what they do, not only when all is quiet.
#[test]
fn a_power_cut_of_all_servers_breaks_no_promise() {
    let reports = runs("zab-crashes", "faults=1 faulty=none fault-kinds=cut-power fault-phase-ms=3000", 4);
    assert!(reports.iter().any(|report| report.counts.crashes >= 3));
}

/// Each of these runs has shown a mistake that was mended.
#[test]
fn mistakes_of_the_past_stay_mended() {
    // Two servers with the same epoch in mind sent each other back and forth.
    assert!(simulator::run(&scenario("zab-crashes", "fault-phase-ms=4000"), 39, Tracing::Off).is_clean());
    // A follower that knows more than its leader voted for it again and again.
    assert!(simulator::run(&scenario("zab-rebuild", "fault-phase-ms=4000"), 5, Tracing::Off).is_clean());
    // A leader that gave up for one with a newer history was elected again at once, by what another had said long before.
    assert!(simulator::run(&scenario("zab", ""), 203, Tracing::Off).is_clean());
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [1, 1].map(|_| runs("zab", "fault-phase-ms=1000", 1).remove(0).fingerprint);
    assert_eq!(one, other);
}

#[test]
fn servers_that_speak_before_they_wrote_or_forget_without_saying_so_are_noticed() {
    // Two must die with one entry told and not written. Far apart, more entries are under way at any time.
    let far = "faults=1 faulty=none fault-kinds=crash-many delay-us=8000..12000 fault-phase-ms=8000";
    for (broken, words) in [(BrokenRule::<NoStrategy>::SendBeforeWriting, far), (BrokenRule::ForgetOnCrash, "fault-phase-ms=4000")] {
        let scenario = scenario("zab-crashes", words);
        let noticed = (1..=40).any(|seed| !run_broken(&scenario, seed, Tracing::Off, broken.clone()).is_clean());
        assert!(noticed, "nobody noticed {broken:?}");
    }
}
