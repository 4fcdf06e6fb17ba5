//! The order of Augustus' shards in worlds of faults, liars and cheats.

use conformance::augustus::{ClientStrategy, ReplicaStrategy, Report, Scenario};
use random::Named as _;

use crate::clean::clean;

fn scenario(name: &str, words: &str) -> Scenario {
    Scenario::named(name).expect("the test names a scenario there is").with(words).expect("the words are good")
}

fn runs(name: &str, words: &str, seeds: u64) -> Vec<Report> {
    clean(&scenario(name, words), seeds)
}

#[test]
fn no_fault_breaks_a_promise() {
    for name in ["order-calm", "order-faults", "order-upgrade", "order-clients"] {
        runs(name, "fault-phase-ms=2000", 2);
    }
    assert!(runs("order-crashes", "fault-phase-ms=4000", 3).iter().any(|report| report.counts.crashes > 0));
    runs("order", "fault-phase-ms=4000", 3);
}

/// Of each way to lie, the first leader in one run, and a follower in another.
#[test]
fn no_lie_of_a_replica_breaks_a_promise() {
    for strategy in ReplicaStrategy::ALL {
        for liar in ["s0-r0", "s0-r2"] {
            let name = strategy.name();
            runs("order-liars", &format!("shards=1 faults=1 clients=3 fault-phase-ms=1500 faulty={liar}:{name}"), 1);
        }
    }
}

#[test]
fn no_cheating_client_breaks_a_promise() {
    for strategy in ClientStrategy::ALL {
        let name = strategy.name();
        runs("order-clients", &format!("shards=1 faults=1 clients=2 fault-phase-ms=1500 byzantine-clients={name}"), 1);
    }
}

#[test]
fn a_shard_that_survives_two_liars_does() {
    let lies = "faulty=s0-r0:equivocate+vote-for-all,s0-r1:lie-in-view-changes+two-new-views";
    runs("order-liars", &format!("shards=1 faults=2 clients=3 fault-phase-ms=2000 {lies}"), 2);
}

/// In the middle of what they do, not only when all is quiet.
#[test]
fn a_power_cut_of_all_replicas_breaks_no_promise() {
    let reports = runs("order-crashes", "shards=1 faults=1 faulty=none fault-kinds=cut-power fault-phase-ms=3000", 3);
    assert!(reports.iter().any(|report| report.counts.crashes >= 4));
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [1, 1].map(|_| runs("order", "fault-phase-ms=1000", 1).remove(0).fingerprint);
    assert_eq!(one, other);
}
