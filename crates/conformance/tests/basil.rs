//! Runs of the world: each scenario keeps every promise, and a seed means one run.

use conformance::basil::{Counts, Report, Scenario, Setting};
use simulator::{Tracing, run};

fn scenario(name: &str) -> Scenario {
    Scenario::named(name).expect("the test names a scenario there is")
}

/// All take the word of one verifier for a signature, which is checked once and not by each of them: for runs that take long.
fn with_one_verifier(name: &str) -> Scenario {
    scenario(name).with("verifiers=shared").expect("the words are good")
}

/// Runs a few seeds for a short while; the long runs are `bezant-lab sim`'s.
fn keeps_its_promises(name: &str) -> Vec<Report> {
    let reports: Vec<Report> = (1..=3).map(|seed| run(&scenario(name).lasting_ms(1_500), seed, Tracing::Off)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.committed > 0, "nothing was tried: {report}");
    }
    reports
}

#[test]
fn when_nothing_goes_wrong_nothing_breaks_and_most_commits_take_one_round_trip() {
    let reports = keeps_its_promises("calm");
    for report in &reports {
        let Counts { fast, validated, .. } = report.engine;
        let committed = report.counts.committed;
        assert!(validated > 0 && 2 * (fast + validated) > committed, "{report}");
    }
    // Sessions have several transactions beside one another, and choose their timestamps with what they know of all of them.
    let chosen = |count: fn(&Counts) -> u64| reports.iter().any(|report| count(&report.engine) > 0);
    assert!(chosen(|counts| counts.moved) && chosen(|counts| counts.refreshed), "{reports:?}");
}

#[test]
fn a_bad_network_breaks_no_promise() {
    assert!(keeps_its_promises("faults").iter().any(|report| report.counts.network_faults > 0));
}

#[test]
fn crashes_break_no_promise() {
    assert!(keeps_its_promises("crashes").iter().any(|report| report.counts.crashes > 0));
}

#[test]
fn lost_disks_break_no_promise() {
    // Long enough for a replica to be rebuilt, and the next to be lost.
    let reports: Vec<Report> = (1..=2).map(|seed| run(&scenario("rebuild").lasting_ms(20_000), seed, Tracing::Off)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
    }
    assert!(reports.iter().all(|report| report.counts.committed > 0) && reports.iter().any(|report| report.counts.disks_lost > 1));
}

/// While one that lost its disk is rebuilt, another of the shard lies to it: shards survive two here, and the two together are as many.
#[test]
fn disks_lost_beside_liars_break_no_promise() {
    let scenario = scenario("rebuild-liars").with("shards=1 clients=4").expect("the words are good");
    let mut most_lost = 0;
    for seed in 1..=3 {
        let report = run(&scenario, seed, Tracing::On);
        assert!(report.is_clean(), "{report}");
        let Report { counts, .. } = report;
        assert!(counts.committed > 0 && counts.disks_lost > 0 && counts.faulty == 1, "{counts:?}: {report}");
        most_lost = most_lost.max(counts.disks_lost);
        let trace = report.trace.as_deref().unwrap_or_default();
        for liar in Setting::new(&scenario, seed).faulty.keys() {
            assert!(!trace.contains(&format!("{liar} loses")), "{liar} is at fault already: {report}");
        }
    }
    assert!(most_lost > 1, "one after the other");
}

/// When these were found, replicas waited for good: three of six for the end of what they had voted down, as the two others had lost their
/// disks; and others for the word of one that said nothing for some seconds after each of many starts.
#[test]
fn what_replicas_have_forgotten_ends_all_the_same() {
    for seed in [2056, 2063] {
        let report = run(&scenario("rebuild"), seed, Tracing::Off);
        assert!(report.is_clean(), "{report}");
    }
}

/// A replica that lacks a newer commit when the last bit flips takes it over, and goes by the value with that bit no more.
#[test]
fn a_bit_in_a_value_that_is_overwritten_need_not_be_noticed() {
    let report = run(&scenario("flips"), 2012, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// Keys, replicas, limits and clients change while processes crash and links fail, and liars hand over other configurations.
#[test]
fn changes_of_the_cluster_break_no_promise() {
    let reports: Vec<Report> = (1..=3).map(|seed| run(&scenario("changes").lasting_ms(4_000), seed, Tracing::Off)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.committed > 0 && report.counts.configurations > 1, "nothing was changed: {report}");
    }
}

/// Some clients ask for what they have no right to and are refused, and operators change what they may do meanwhile.
#[test]
fn rights_that_change_break_no_promise_and_are_kept() {
    let reports: Vec<Report> = (1..=3).map(|seed| run(&scenario("rights").lasting_ms(4_000), seed, Tracing::On)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.committed > 0 && report.counts.configurations > 1, "nothing was changed: {report}");
    }
    let told = |what: &str| reports.iter().any(|report| report.trace.as_deref().is_some_and(|trace| trace.contains(what)));
    assert!(told("refusal: NotPermitted") && told(": Rights("), "nobody was refused anything, or no right was changed");
}

#[test]
fn lying_replicas_break_no_promise() {
    keeps_its_promises("liars");
}

#[test]
fn cheating_clients_break_no_promise() {
    assert!(keeps_its_promises("clients").iter().any(|report| report.counts.byzantine_ended > 0));
}

#[test]
fn what_honest_replicas_were_led_to_log_differently_is_settled_by_election() {
    let scenario = scenario("clients").with("byzantine-clients=equiv-split,equiv-split,equiv-split fault-phase-ms=4000");
    let report = run(&scenario.expect("the words are good"), 7, Tracing::Off);
    assert!(report.is_clean(), "{report}");
    assert!(report.engine.divided > 0, "its Byzantine clients log both ends: {report}");
    assert!(report.engine.elections > 0 && report.engine.view_max > 0, "leaders are elected for that: {report}");
}

#[test]
fn leaders_that_lie_break_no_promise() {
    for strategy in ["claim-views", "elect-twice", "decide-nothing", "decide-both", "decide-twice", "decide-late", "wrong-electors"] {
        let words = format!(
            "shards=1 faults=1 byzantine-clients=equiv-split,equiv-split plans=increment+transfer fault-phase-ms=2500 fault-kinds=none lost=0 late=2/3000 delay-us=80..250 \
             janitor-timeout-ms=250 faulty=s0-r2:{strategy}+equivocate-votes"
        );
        let scenario = scenario("elections").with(&words).expect("the words are good");
        let report = run(&scenario, 3, Tracing::Off);
        assert!(report.is_clean(), "{strategy}: {report}");
        assert!(report.engine.elections > 0, "{strategy}: nobody was elected: {report}");
    }
}

/// Whatever is stopped in good order, with those that lie no more than `f` of a shard are away, and nobody waits in vain.
#[test]
fn an_upgrade_of_shards_that_work_breaks_no_promise() {
    assert!(keeps_its_promises("upgrade").iter().any(|report| report.counts.upgraded > 0));
    for (seed, faults) in [(2, 1), (3, 2)] {
        let words = format!(
            "shards=1 faults={faults} clients=3 clock-good-ms=200 faulty=none clocks=skewed verifiers=shared fault-phase-ms={}",
            12_000 * faults
        );
        let report = run(&scenario("upgrade").with(&words).expect("the words are good"), seed, Tracing::On);
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.upgraded > 5 * faults, "each is stopped once at least: {report}");
        let (mut away, mut most) = (0_u64, 0);
        for line in report.trace.unwrap_or_default().lines().take_while(|line| !line.contains("the faults are over")) {
            away += u64::from(line.ends_with("stops in good order"));
            away = away.saturating_sub(u64::from(line.ends_with(" starts")));
            most = most.max(away);
        }
        assert!((1..=faults).contains(&most), "{most} were away at once");
    }
}

#[test]
fn a_network_that_is_late_where_it_hurts_breaks_no_promise() {
    assert!(keeps_its_promises("network").iter().all(|report| report.counts.delayed > 0));
}

#[test]
fn every_way_of_the_network_to_be_late_breaks_no_promise_and_is_used() {
    let attacks = ["starve-quorums", "divide-votes", "ends-at-half", "begins-at-half", "leaders-last", "cross-prepares", "slow-next"];
    for attack in attacks {
        let words = format!("shards=1 faults=1 clients=4 byzantine-clients=equiv-split fault-phase-ms=4000 delay-attacks={attack}");
        let report = run(&scenario("network").with(&words).expect("the words are good"), 1, Tracing::Off);
        assert!(report.is_clean(), "{attack}: {report}");
        assert!(report.counts.delayed > 0 && report.counts.committed > 0, "{attack}: {report}");
    }
}

#[test]
fn everything_at_once_breaks_no_promise() {
    keeps_its_promises("everything");
}

/// A client that left its task numbered its requests from 1 again, and took an answer to an earlier task for one to its next: it
/// wrote a sum that nobody had.
#[test]
fn no_answer_reaches_a_process_that_did_not_ask() {
    let report = run(&scenario("everything"), 13, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// A client that reads a range is shown a key that a cheat had a right to delete, though it never was there. The checker did not know that honest replicas
/// may say so.
#[test]
fn a_key_that_a_cheat_deleted_may_be_shown() {
    let report = run(&scenario("rights"), 4, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// A replica went back to an earlier view of what it was about to forget.
#[test]
fn what_is_about_to_be_forgotten_stays_in_its_view() {
    let report = run(&scenario("changes"), 205, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// A replica that had logged otherwise stated a proven outcome as the first in the next view, which is its right.
#[test]
fn who_goes_by_a_proven_outcome_breaks_no_promise() {
    let report = run(&scenario("network"), 113, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// Two upgrades in a hurry, one soon after the other, had all of a shard begin anew within seconds, and so silent for some time: whoever
/// waited for it had a reason.
#[test]
fn who_waits_for_a_shard_that_was_upgraded_in_a_hurry_breaks_no_promise() {
    let report = run(&with_one_verifier("upgrade"), 2063, Tracing::Off);
    assert!(report.is_clean(), "{report}");
}

/// What only some replicas saw, and was cut off for longer than the window, was refused by the others as too old: it stayed
/// undecided in these runs, or what was begun later waited for it.
#[test]
fn what_was_cut_off_for_longer_than_the_window_ends() {
    for (name, seed) in [
        ("crashes", 33),
        ("everything", 8),
        ("everything", 15),
        ("everything", 33),
        ("everything", 47),
        ("everything", 102),
        ("everything", 237),
    ] {
        let report = run(&with_one_verifier(name), seed, Tracing::Off);
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn a_seed_means_one_run_byte_for_byte() {
    for name in ["faults", "upgrade", "network", "everything"] {
        let scenario = scenario(name).lasting_ms(1_000);
        let (first, second) = (run(&scenario, 11, Tracing::On), run(&scenario, 11, Tracing::On));
        assert_eq!(first.trace, second.trace, "{name}");
        assert_eq!(first.fingerprint, second.fingerprint);
        assert_eq!(first.counts, second.counts);
        assert!(first.trace.is_some_and(|trace| trace.lines().count() > 100), "{name}");
        let other = run(&scenario, 12, Tracing::Off);
        assert_ne!(other.fingerprint, first.fingerprint, "another seed is another run");
        let silent = run(&scenario, 11, Tracing::Off);
        assert_eq!(silent.fingerprint, first.fingerprint, "nobody who reads along changes what happens");
    }
}
