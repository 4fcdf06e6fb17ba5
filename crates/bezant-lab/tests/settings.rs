//! What only experiments ask of a cluster: injected latency, and settings that cost speed or safety.

use std::fs;

use crate::place::Place;

#[test]
fn injected_latency_applies_to_all_processes_and_all_warn_about_it() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    let far = "regions = ['here', 'there']\none_way_ms = [[0, 30], [40, 0]]\nreplicas = ['there']\nclients = 'here'\n\
               [placed]\nc2 = 'there'\n";
    fs::write(place.path("far.toml"), far).expect("written");
    place.run(&["up", "--regions", "nowhere.toml"]).expect(2).says("zone, region, planet");
    place.run(&["up", "--regions", "far.toml"]).expect(0).says("warning: latency is injected (regions far)");
    // Over one way and back, once.
    let put = place.run(&["put", "a", "1", "--json"]).expect(0).says("injected (regions far): this client is in here").json();
    assert!(put["ms"].as_f64() >= Some(70.0), "{put}");
    place.run(&["get", "a", "--cluster", "bezant-data/client-2"]).expect(0).says("this client is in there").prints("1\n");
    place.run(&["status"]).expect(0).says("s0-r5 in there (far)");
    let load = ["bench", "rw-u", "--keys", "10", "--load", "--seconds", "0", "--json"];
    let report = place.run(&load).expect(0).says("injected (regions far)").json();
    assert_eq!(report["settings"]["regions"], "far");
    // All of a cluster lives on one map, also who comes later.
    place.run(&["up", "--regions", "zone"]).expect(2).says("with other injected latency").says("bezant down");
    place.kill("s0-r3");
    place.run(&["up"]).expect(0).says("(regions far)");
    place.run(&["status"]).expect(0).says("s0-r3 in there (far)");
    place.run(&["down"]).expect(0);
    let up = place.run(&["up"]).expect(0);
    assert!(!up.err.contains("injected"), "{up:#?}");
    let get = place.run(&["get", "a"]).expect(0).prints("1\n");
    assert!(!get.err.contains("injected"), "{get:#?}");
}

#[test]
fn settings_that_cost_speed_or_safety_do_what_they_say() {
    let place = Place::new();
    place.init(&["--signatures", "off", "--fast-path", "off", "--read-quorum", "1"]);
    place.run(&["up"]).expect(0);
    let run = |line: &str| {
        let line = format!("bench {line} --keys 300 --clients 4 --seconds 1 --warmup 0 --cooldown 0 --json");
        place.run(&line.split(' ').collect::<Vec<_>>()).expect(0).json()
    };
    let report = run("rw-u --load");
    assert!(report["committed"].as_u64() > Some(0) && report["fast_path_rate"] == 0.0, "{report}");
    assert_eq!(place.signatures().1, 0, "none is checked");
    let report = run("ro-u");
    assert!(report["read_only"].as_u64() > Some(0), "{report}");
    let settings = place.path("bezant-data/client/client.toml");
    let text = fs::read_to_string(&settings).expect("there is one");
    assert!(text.contains("read_quorum = \"1\""), "{text}");
    fs::write(&settings, text.replace("read_only = \"validated\"", "read_only = \"voted\"")).expect("written");
    let report = run("ro-u");
    assert!(report["committed"].as_u64() > Some(0) && report["read_only"].is_null(), "{report}");
}
