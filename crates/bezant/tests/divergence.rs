//! A bit that flips silently in what a running replica holds is noticed without anybody's reading it, named, kept, and mended.

use crate::place::{Place, eventually};

/// The last of this name in a replica's metrics.
fn metric(place: &Place, replica: &str, name: &str) -> u64 {
    let metrics = place.ask(replica, "/metrics").unwrap_or_default();
    let line = metrics.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.rsplit_once(' ')).and_then(|(_, count)| count.parse().ok()).unwrap_or(0)
}

/// `s0-r1` has a wrong value, which nobody reads.
fn is_noticed_named_and_mended(place: &Place, others: &[&str], named: &str) {
    place.run(&["drill", "flip", "s0-r1", "drilled"]).expect(0);
    eventually("it notices and mends that", || place.count_of("s0-r1", "divergences", "mended") > 0);
    let noticed = place.count_of("s0-r1", "divergences", "noticed");
    assert_eq!((metric(place, "s0-r1", "bezant_divergences_total"), place.count_of("s0-r1", "divergences", "mended")), (noticed, noticed));
    let health = place.ask("s0-r1", "/health").expect("it answers");
    assert!(health.starts_with("serving\n") && health.contains(&format!("own state wrong {noticed} times, {noticed} mended")), "{health}");
    eventually("it is told", || place.run(&["status"]).err.contains("warning: s0-r1: own state wrong"));
    let evidence = || place.run(&["evidence", "bezant-data/s0-r1", "--json"]).json()["divergences"].clone();
    eventually("it is kept", || evidence()[0]["mended_ms"].is_u64());
    let kept = evidence();
    let is_named = |one: &serde_json::Value| one["place"].as_str().is_some_and(|place| place.contains(named));
    let differ = |one: &serde_json::Value| one["own_digest"].as_str().is_some_and(|own| own.len() == 64 && one["agreed_digest"] != own);
    assert!(kept.as_array().is_some_and(|all| all.iter().any(is_named) && all.iter().all(differ)), "{kept:#}");
    let shown = place.run(&["evidence", "bezant-data/s0-r1"]).expect(1);
    assert!(shown.out.contains("this replica's own state was wrong") && shown.out.contains("not signed"), "{shown:?}");
    assert!(!shown.out.contains("nobody was ever seen to lie"), "{shown:?}");
    assert!(others.iter().all(|replica| place.count_of(replica, "divergences", "noticed") == 0), "nobody else was wrong");
    place.run(&["get", "drilled"]).expect(0).prints("1\n");
    // What it has now is on its disk.
    place.kill("s0-r1");
    place.run(&["up"]).expect(0);
    place.run(&["txn", "get drilled; put drilled 2"]).expect(0);
    assert_eq!(evidence(), kept, "what was kept outlives the process");
}

#[test]
fn a_replica_of_basil_finds_a_value_that_flipped_and_mends_it() {
    let place = Place::new();
    place.init(&["--window-ms", "4000", "--drills"]);
    place.run(&["up"]).expect(0);
    place.run(&["txn", "put drilled 1; put other 1"]).expect(0).says("by 6 of 6 replicas");
    place.run(&["put", "other", "2"]).expect(0);
    is_noticed_named_and_mended(&place, &["s0-r0", "s0-r2", "s0-r3", "s0-r4", "s0-r5"], "the value of drilled");
}

#[test]
fn a_replica_of_augustus_finds_a_row_that_flipped_and_mends_it() {
    let place = Place::new();
    place.init(&["--engine", "augustus", "--drills"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "drilled", "1"]).expect(0);
    // These lie between it and what is written below, so that its page stays as it is.
    for key in ["c1", "c2", "c3"] {
        place.run(&["put", key, &"x".repeat(5_000)]).expect(0);
    }
    // The state after so many lists is what the replicas agree on.
    let bench = "bench bank --keys 40 --clients 4 --transactions 400 --warmup 0 --load --json";
    place.run(&bench.split(' ').collect::<Vec<_>>()).expect(0);
    eventually("there is a stable checkpoint", || place.count_of("s0-r1", "order", "stable") > 0);
    is_noticed_named_and_mended(&place, &["s0-r0", "s0-r2", "s0-r3"], "the rows from");
}

#[test]
fn nothing_is_damaged_where_the_cluster_was_not_made_for_it() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "drilled", "1"]).expect(0);
    place.run(&["drill", "flip", "s0-r1", "drilled"]).expect(2).says("drills = true");
    place.run(&["drill", "flip", "s0-r9", "drilled"]).expect(2).says("no replica s0-r9");
}
