//! Every workload, small, on a real cluster: it loads, runs so many transactions, keeps its invariant, and notices
//! when somebody else breaks it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, eventually};

/// How many transactions each workload runs.
const TRANSACTIONS: u64 = 60;

/// Runs a workload to the end of its transactions, and gives its report.
#[track_caller]
fn run(place: &Place, arguments: &str) -> Value {
    let fixed = format!("--clients 4 --seconds 3600 --warmup 0 --cooldown 0 --transactions {TRANSACTIONS} --json");
    let line = format!("bench {arguments} {fixed}");
    let report = place.run(&line.split(' ').collect::<Vec<_>>()).expect(0).json();
    let count = |what: &str| report[what].as_u64().unwrap_or(0);
    // On a machine that is slow enough some are given up.
    let given_up: u64 = report["errors"].as_object().expect("by kind").values().filter_map(Value::as_u64).sum();
    assert_eq!(count("committed") + count("rolled_back") + given_up, TRANSACTIONS, "{report}");
    assert!(count("committed") > 0, "{report}");
    assert_eq!(report["settings"]["table_filled"], true, "{report}");
    report
}

/// Of a workload with several kinds of transactions: they make up the whole, and its promise held.
#[track_caller]
fn assert_whole(report: &Value, kinds: usize) {
    let transactions = report["transactions"].as_object().expect("by kind");
    let sum = |what: &str| transactions.values().filter_map(|kind| kind[what].as_u64()).sum::<u64>();
    assert_eq!(transactions.len(), kinds, "{report}");
    assert_eq!(Some(sum("committed")), report["committed"].as_u64(), "{report}");
    assert_eq!(Some(sum("attempted")), report["attempted"].as_u64(), "{report}");
    assert_eq!(sum("aborted") + sum("committed"), sum("attempted"), "{report}");
    assert_eq!(report["invariant"]["held"], true, "{report}");
}

#[test]
fn every_workload_runs_and_keeps_its_promise() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);

    place.run(&["bench", "ycsb-a", "--keys", "300"]).expect(2).says("300 keys that ycsb-a reads").says("--load");
    place.run(&["bench", "rw-u", "--keys", "300", "--read-share", "2"]).expect(2).says("rw-u does not take --read-share");

    // A load stops when it is told to, long before its end.
    let load = place.spawn(&["bench", "rw-u", "--keys", "5000000", "--load", "--seconds", "0"]);
    eventually("it loads", || place.count("s0-r0", "committed") > 3);
    load.signal(Signal::INT);
    let told = Instant::now();
    load.wait().expect(3).says("interrupted while loading");
    assert!(told.elapsed() < Duration::from_secs(3), "it took {:?}", told.elapsed());
    // What it left is finished by the replicas.
    eventually("all has ended", || (0..6).all(|index| place.count(&format!("s0-r{index}"), "undecided") == 0));

    // One table for all workloads of keys and values.
    run(&place, "rw-u --keys 300 --load");
    run(&place, "rw-z --keys 300");
    for name in ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f", "write-only", "write-heavy", "read-heavy", "read-modify-write"] {
        let report = run(&place, &format!("{name} --keys 300 --ops 4"));
        assert_eq!(report["workload"], name);
    }
    for name in ["ycsb-e", "scan-heavy", "scan-only"] {
        let report = run(&place, &format!("{name} --keys 300 --rows 20"));
        assert!(report["workload"] == name && report["committed"].as_u64() > Some(0), "{report}");
    }
    // Nobody writes beside it, so that replicas need not be asked for a vote.
    let report = run(&place, "ro-u --keys 300");
    assert!(report["read_only"].as_u64() > Some(0) && report["settings"]["reads"] == 10, "{report}");
    // What only reads has nothing signed or checked, but where replicas lag, or still have something of before to finish.
    let is_free = || {
        let before = place.signatures();
        let report = run(&place, "ro-u --keys 300");
        report["read_only"] == report["committed"] && place.signatures() == before
    };
    assert!((0..20).any(|_| is_free()), "signatures are made or checked for what only reads");
    place.run(&["bench", "rw-u", "--keys", "400"]).expect(2).says("was loaded with --keys 300 --value-bytes 100").says("--load");

    assert_whole(&run(&place, "smallbank --keys 200 --hot 20 --load"), 6);
    assert_whole(&run(&place, "smallbank --keys 200 --hot 20 --mix artifact"), 6);
    place.run(&["bench", "smallbank", "--keys", "100"]).expect(2).says("say --keys 200");
    assert_whole(&run(&place, "retwis --keys 200 --load"), 4);
    assert_whole(&run(&place, "retwis --keys 200"), 4);
    for name in ["buzzer --load", "buzzer", "buzzer-post", "buzzer-follow", "buzzer-timeline"] {
        assert_whole(&run(&place, &format!("{name} --keys 40")), 3);
    }
    place.run(&["bench", "buzzer", "--keys", "40", "--load"]).expect(2).says("new cluster");
    place.run(&["bench", "tpcc", "--warehouses", "1", "--scale", "0.001"]).expect(2).says("--load");
    let report = run(&place, "tpcc --warehouses 1 --scale 0.001 --load");
    assert_whole(&report, 5);
    assert!(report["tpmC"].as_f64() > Some(0.0), "{report}");
    assert_whole(&run(&place, "tpcc --warehouses 1 --scale 0.001 --seed 2"), 5);
    let again = ["bench", "tpcc", "--warehouses", "2", "--scale", "0.001", "--load"];
    place.run(&again).expect(2).says("--scale 0.001 --warehouses 1").says("new cluster");

    // Whoever writes past them breaks their promises, and they say so.
    for (key, workload, says) in [
        ("smallbank/savings/00000017", "smallbank --keys 200 --hot 20", "savings 17 is missing"),
        ("retwis/user/00000017", "retwis --keys 200", "retwis/user 00000017 is missing"),
        ("bench-buzzer/00000017n/account", "buzzer --keys 40", "00000017n has no account"),
        ("tpcc/history/1/3/7/1", "tpcc --warehouses 1 --scale 0.001", "tpcc/history 1/3/7/1 is missing"),
    ] {
        place.run(&["delete", key]).expect(0);
        let line = format!("bench {workload} --clients 4 --seconds 3600 --warmup 0 --transactions 1 --json");
        let said = place.run(&line.split(' ').collect::<Vec<_>>()).expect(1).says("the invariant is broken");
        assert_eq!(said.json()["invariant"]["held"], false);
        assert!(said.out.contains(says), "{said:?}");
    }
}
