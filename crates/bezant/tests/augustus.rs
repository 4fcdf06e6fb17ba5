//! A cluster of Augustus as its user meets it: four processes, the same commands.

mod place;

use place::Place;

#[test]
fn four_replicas_run_transactions_and_scans() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0).says("committed");
    place.run(&["txn", "put b 2; put c 3; delete a"]).expect(0).says("committed");
    place.run(&["get", "b"]).expect(0).prints("2\n");
    place.run(&["scan", "a", "z"]).expect(0).prints("b = 2\nc = 3\n");
    place.run(&["scan", "a", "z", "--limit", "1"]).expect(0).prints("b = 2\n");
    let status = place.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["replicas"].as_array().map(Vec::len), Some(4), "{status}");
}

#[test]
fn it_has_one_shard_up_to_now() {
    let place = Place::new();
    place.run(&["init", "bezant-data", "--engine", "augustus", "--shards", "2"]).expect(2).says("no more shards than 1").says("--engine");
}

#[test]
fn workloads_run_and_their_conditions_hold() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    for workload in ["bank", "ring", "smallbank", "rw-u", "rw-z", "ycsb-e", "retwis", "tpcc"] {
        let keys: &[&str] = if workload == "tpcc" { &["--scale", "0.01"] } else { &["--keys", "100"] };
        let arguments: Vec<&str> = ["bench", workload, "--load", "--clients", "4", "--transactions", "40", "--warmup", "0", "--json"]
            .iter()
            .chain(keys)
            .copied()
            .collect();
        let report = place.run(&arguments).expect(0).json();
        assert!(report["committed"].as_u64() >= Some(20), "{report}");
        assert_ne!(report["invariant"]["held"], false, "{report}");
    }
}
