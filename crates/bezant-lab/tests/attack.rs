//! `bezant-lab attack` on real processes, as short as it gets.

use std::fs;

use serde_json::Value;

use crate::place::Place;

/// Every phase ends after so many honest transactions, however long they take.
const SMALL: [&str; 9] = ["attack", "--keys", "500", "--transactions", "50", "--rounds", "1", "silent-strangers", "tiny-frames"];

/// What runs with a word of its command line in this folder.
fn processes(folder: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc").expect("Linux has it").flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(folder)).collect()
}

#[test]
fn honest_clients_commit_under_attack_and_nothing_is_left_behind() {
    let place = Place::finding_ports();
    let folder = place.path("clusters");
    fs::create_dir(&folder).expect("made");
    let folder = folder.display().to_string();

    let report = place.run_with(&[&SMALL[..], &["--json"]].concat(), "TMPDIR", &folder).expect(0).json();
    let rows = report["attacks"].as_array().expect("a list");
    let names: Vec<&Value> = rows.iter().map(|row| &row["attack"]).collect();
    assert_eq!(names, ["tiny-frames", "silent-strangers"], "in the order of --list: {report}");
    for row in rows {
        assert_eq!(row["rounds"].as_array().map(Vec::len), Some(1), "{row}");
        let round = &row["rounds"][0];
        for (phase, load) in
            [("before", &row["before"]), ("during", &round["during"]), ("control", &round["control"]), ("after", &row["after"])]
        {
            assert!(load["committed_per_second"].as_f64() > Some(0.0), "{phase}: {row}");
            assert_eq!(load["failed"], Value::Null, "{phase}: {row}");
        }
        assert!(round["attacker"]["opened"].as_u64() > Some(0), "there was an attack: {row}");
        assert!(row["kept"].is_number() && row["kept_of_control"].is_number(), "{row}");
        assert!(round["during"]["largest_replica_mib"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(processes(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).expect("there").count(), 0, "the clusters' folders are gone");
}

#[test]
fn a_liar_runs_in_a_replicas_place_and_the_table_is_markdown() {
    let place = Place::finding_ports();
    let said = place.run(&["attack", "liar", "--keys", "500", "--transactions", "20", "--rounds", "2"]).expect(0);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 3, "{said:?}");
    let columns = |line: &str| line.matches('|').count();
    assert!(lines.iter().all(|line| line.starts_with('|') && columns(line) == columns(lines[0])), "{said:?}");
    assert!(lines[2].starts_with("| liar | "), "{said:?}");
    let kept_of_control = lines[2].split('|').nth(5).unwrap_or_default();
    assert_eq!(kept_of_control.matches('%').count(), 2, "of each round: {said:?}");
}

#[test]
fn attacks_are_listed_and_others_are_refused() {
    let place = Place::new();
    let listed = place.run(&["attack", "--list"]).expect(0);
    assert!(listed.out.lines().count() > 10 && listed.out.contains("slow-readers"), "{listed:?}");
    let beside_a_liar =
        ["tiny-frames", "large-reads", "prepares", "bad-signatures", "recoveries", "slow-readers", "reads-ahead", "silent-strangers"];
    for name in beside_a_liar {
        let is_listed = |name: &str| listed.out.lines().any(|line| line.split_whitespace().next() == Some(name));
        assert!(is_listed(name) && is_listed(&format!("liar-{name}")), "{name}: {listed:?}");
    }
    place.run(&["attack", "kindness"]).expect(2).says("kindness");
}
