//! `bezant-lab predict`: no cluster, no processes, virtual time only.

use std::fs;

use serde_json::Value;

use crate::place::Place;

/// A shape that is stepped in no time.
const SMALL: [&str; 8] = ["predict", "--one-machine", "--cores", "2", "--clients", "16", "--virtual-ms", "100"];

#[test]
fn prices_are_measured_kept_and_used() {
    let place = Place::new();
    place.run(&["predict", "--measure", "costs.json"]).expect(0);
    let measured: Value = serde_json::from_slice(&fs::read(place.path("costs.json")).expect("kept")).expect("JSON");
    for name in ["sign_ns", "check_root_ns", "claim_ns", "decode_ns", "wake_ns", "write_ns", "read_ns", "sync_cpu_ns"] {
        assert!(measured[name].as_f64() > Some(0.0), "{name} in {measured}");
    }
    assert!(measured["steps_ns"]["prepare"].as_f64() > Some(0.0), "{measured}");

    let predict = |costs: &str| -> Value {
        let said = place.run(&[&SMALL[..], &["--costs", costs, "--json"]].concat()).expect(0);
        serde_json::from_str(&said.out).expect("JSON")
    };
    // Any disk will do for the test.
    let mut quick = measured.clone();
    quick["sync_ns"] = 80_000.into();
    fs::write(place.path("quick.json"), quick.to_string()).expect("written");
    let (first, again) = (predict("quick.json"), predict("quick.json"));
    assert_eq!(first, again, "the same seed and prices predict the same");
    assert!(first["committed_per_second"].as_f64() > Some(0.0), "{first}");
    assert_eq!(first["attempts"]["under_way"], 0, "{first}");

    // A disk that takes ten milliseconds is waited for.
    let mut slow = measured;
    slow["sync_ns"] = 10_000_000.into();
    fs::write(place.path("slow.json"), slow.to_string()).expect("written");
    assert!(predict("slow.json")["latency_us"]["p50"].as_f64() > Some(10_000.0));
    assert!(!place.path("costs.disk-trial").exists(), "the disk's trial leaves nothing behind");
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let place = Place::new();
    place.run(&["predict", "--costs", "nowhere.json"]).expect(2).says("nowhere.json").says("--measure");
    fs::write(place.path("half.json"), r#"{"wake_ns": -1}"#).expect("written");
    place.run(&["predict", "--costs", "half.json"]).expect(2).says("wake_ns");
    place.run(&["predict", "--shards", "60", "--keys", "100"]).expect(2).says("--keys");
    // Four ways of a tenth of a second each do not fit into a hundredth.
    let too_short = ["predict", "--clients", "1", "--network-us", "100000", "--virtual-ms", "10"];
    place.run(&too_short).expect(2).says("nothing was committed").says("--virtual-ms");
}
