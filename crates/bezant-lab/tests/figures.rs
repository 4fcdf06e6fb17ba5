//! `bezant-lab figures` on real processes, as small as it gets.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::place::{Place, eventually};

/// One figure of two clusters, with every run as short as may be.
const SMALL: [&str; 10] = ["figures", "--quick", "--only", "6a", "--runs", "1", "--seconds", "1", "--keys", "1000"];

#[test]
fn a_figure_is_measured_goes_on_where_it_was_stopped_and_is_drawn_again() {
    let place = Place::finding_ports();
    let kept = || -> Value { serde_json::from_slice(&fs::read(place.path("figures/basil-6a.json")).expect("kept")).expect("JSON") };
    let reports = |results: &Value| -> Vec<usize> {
        let points = results["points"].as_array().expect("a list").iter();
        points.map(|point| point["reports"].as_array().expect("a list").len()).collect()
    };

    place.run(&SMALL).expect(0).says("basil-6a, run 1 of 1, rw-z logged");
    let first = kept();
    assert_eq!(reports(&first), [1, 1, 1, 1], "{first}");
    let report = |at: usize| &first["points"][at]["reports"][0];
    assert!(report(0)["fast_path_rate"].as_f64() > Some(0.0), "{first}");
    let logged = first["points"].as_array().expect("a list").iter().find(|point| point["id"] == "rw-u logged").expect("measured");
    assert_eq!(logged["reports"][0]["fast_path_rate"], 0.0, "{logged}");

    // What is missing is measured, and nothing else.
    let mut torn = first.clone();
    torn["points"].as_array_mut().expect("a list").retain(|point| point["id"] != "rw-u logged");
    fs::write(place.path("figures/basil-6a.json"), torn.to_string()).expect("written");
    place.run(&SMALL).expect(0);
    let again = kept();
    assert_eq!(reports(&again), [1, 1, 1, 1], "{again}");
    for point in torn["points"].as_array().expect("a list") {
        assert!(again["points"].as_array().expect("a list").contains(point), "{again}");
    }

    // Runs of another length do not mix with them, and drawing needs no runs at all.
    place.run(&["figures", "--quick", "--only", "6a"]).expect(2).says("cannot stand beside").says("--again");
    fs::remove_file(place.path("figures/basil-6a.svg")).expect("it was drawn");
    let drawn = place.run(&["figures", "--draw"]).expect(0);
    assert!(drawn.out.contains("basil-6a.svg") && drawn.out.contains("reproduction.md"), "{drawn:?}");
    assert!(place.path("figures/basil-6a.svg").exists() && place.path("figures/basil-6a.png").exists());
    assert_eq!(kept(), again);
    place.run(&["figures", "--only", "5d"]).expect(2).says("no figure \"5d\"").says("--list");
}

/// What servers for ZooKeeper's clients are set to in `sentinel-5.2`, as its points are called.
const WAYS: [&str; 15] = [
    "none",
    "online CRC-32",
    "online MD5",
    "online SHA-256",
    "online SHA-512",
    "online SHA-1",
    "online SHA-256 wide",
    "online LtHash16",
    "realtime CRC-32",
    "realtime MD5",
    "realtime SHA-256",
    "realtime SHA-512",
    "realtime SHA-1",
    "realtime SHA-256 wide",
    "realtime LtHash16",
];

#[test]
fn servers_for_zookeepers_clients_are_measured_and_gone_afterwards() {
    let place = Place::new();
    let small = ["figures", "--quick", "--only", "sentinel-5.3", "--runs", "1", "--seconds", "1", "--work", "work"];
    let file = place.path("figures/sentinel-5.2.json");
    let kept = || -> Option<Value> { serde_json::from_slice(&fs::read(&file).ok()?).ok() };
    let is_clean = || fs::read_dir(place.path("work")).is_ok_and(|mut entries| entries.next().is_none());

    // Stopped as soon as anything was measured, it leaves nothing but that.
    let running = place.spawn(&small);
    eventually("a point is measured", || kept().is_some());
    running.signal(Signal::TERM);
    running.wait().expect(3).says("22 points are left out, as no ZooKeeper was named").says("stopped");
    assert!(is_clean());

    // Of what is missing then only two points are left to do: a read and a write under two kinds of digest.
    let missing = ["none, 100 % reads", "realtime SHA-256 wide, 0 % reads"];
    let mut results = kept().expect("it was measured");
    let others = WAYS.iter().flat_map(|way| (0..=100).step_by(10).map(move |reads| format!("{way}, {reads} % reads")));
    let others = others.filter(|id| !missing.contains(&id.as_str()));
    let others: Vec<Value> =
        others.map(|id| json!({"id": id, "replicas": 3, "cluster": [], "command": "", "reports": [{"per_second": 1.0}]})).collect();
    results["points"] = Value::Array(others.clone());
    fs::write(&file, results.to_string()).expect("written");
    place.run(&small).expect(0).says("realtime SHA-256 wide, 0 % reads: ");
    assert!(is_clean());

    let results = kept().expect("it was measured");
    let points = results["points"].as_array().expect("a list");
    assert_eq!(points.len(), others.len() + missing.len());
    for id in missing {
        let point = points.iter().find(|point| point["id"] == id).expect("it was measured");
        let report = &point["reports"][0];
        assert!(report["per_second"].as_f64() > Some(0.0) && report["failed"] == 0, "{point}");
        assert!(report["server_cpu_us"].as_f64().is_some(), "{point}");
    }
    let page = fs::read_to_string(place.path("figures/reproduction.md")).expect("written");
    for part in ["`bezant.detection=realtime` `bezant.digest=sha256-wide` `dataDir on ", "Table 5.2: ", "](sentinel-5.2.svg)"] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    assert!(place.path("figures/sentinel-5.2.png").exists());

    fs::create_dir(place.path("empty")).expect("made");
    place.run(&["figures", "--only", "sentinel-5.7", "--zookeeper", "empty"]).expect(2).says("empty holds no ZooKeeper");
}
