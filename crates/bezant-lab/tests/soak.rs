//! `bezant-lab soak` on real processes, as short as it gets: `cargo test -p bezant-lab --test all soak -- --ignored`.

use std::fs;

use serde_json::Value;

use crate::place::{Place, Said};

/// A window that is short, so that a replica that lost its data is not silent for long, and little load.
const SMALL: [&str; 12] =
    ["--fast-path", "0.1", "--rate", "50", "--keys", "500", "--window-ms", "8000", "--time-bound-ms", "200", "--seed", "3"];

/// What runs with a word of its command line in this folder.
fn processes(folder: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc").expect("Linux has it").flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(folder)).collect()
}

fn soak(place: &Place, options: &[&str]) -> (Said, Value) {
    let folder = place.path("soak");
    let said = place.run(&[&["soak", &folder.display().to_string(), "--json"], &SMALL[..], options].concat()).expect(0);
    let report = said.json();
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0), "{said:?}");
    assert!(report["acknowledged_transfers_found"].as_u64() > Some(0) && report["counts"]["audits"].as_u64() > Some(0), "{report}");
    assert!(report["counts"]["digests_compared"].as_u64() > Some(0), "{report}");
    for file in ["timeline.jsonl", "soak.svg", "soak.png", "report.json"] {
        assert!(fs::metadata(folder.join(file)).is_ok_and(|found| found.len() > 100), "{file}");
    }
    assert_eq!(processes(&folder.display().to_string()), Vec::<String>::new(), "nothing goes on running");
    (said, report)
}

#[test]
#[ignore = "it takes minutes"]
fn a_cluster_lives_through_faults_and_changes_and_keeps_its_promises() {
    let place = Place::finding_ports();
    let (_, report) = soak(&place, &["--minutes", "0.5"]);
    let faults = ["killed", "away", "data_deleted", "keys_and_certificates_renewed", "replaced"];
    assert!(faults.iter().any(|fault| report["counts"][fault].as_u64() > Some(0)), "{report}");
    assert!(report["counts"]["configurations"].as_u64() > Some(0), "{report}");
    let lines = fs::read_to_string(place.path("soak/timeline.jsonl")).expect("written");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["weak"].is_string()) && lines.iter().any(|line| line["committed_per_second"].is_number()));
    place.run(&["soak", &place.path("soak").display().to_string()]).expect(2).says("there is something here already");
}

#[test]
#[ignore = "it takes minutes"]
fn who_was_stopped_and_who_lost_its_data_rejoin_under_load() {
    let place = Place::finding_ports();
    let (_, report) = soak(&place, &["--rounds", "1", "--away-seconds", "10"]);
    assert_eq!((&report["counts"]["rounds"], &report["away_seconds"]), (&Value::from(1), &Value::from(10)), "{report}");
    assert!(report["counts"]["fast_path_back_within_ms"].as_u64() <= Some(60_000), "{report}");
}
