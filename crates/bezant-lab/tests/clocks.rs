//! Clocks that are wrong, at real processes: each takes its machine's clock to be off as `BEZANT_CLOCK_SET_OFF` says.

use std::fs;

use crate::place::{Place, Running, Said, eventually};

const SET_OFF: &str = "BEZANT_CLOCK_SET_OFF";

/// What was acknowledged first stays below, though its client's clock was ahead by nearly what replicas grant timestamps.
#[test]
fn a_write_acknowledged_later_stays_whatever_the_clock_of_the_first_writer_showed() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    for (key, ahead_ms) in [("k", "450"), ("l", "-450"), ("m", "10000"), ("n", "-3600000")] {
        place.run_with(&["put", key, "first"], SET_OFF, ahead_ms).expect(0);
        place.run(&["put", key, "second", "--cluster", "bezant-data/client-2"]).expect(0);
        place.run(&["get", key]).expect(0).prints("second\n");
        std::thread::sleep(std::time::Duration::from_secs(1));
        place.run(&["get", key]).expect(0).prints("second\n");
        place.run_with(&["get", key], SET_OFF, ahead_ms).expect(0).prints("second\n");
    }
}

#[test]
fn a_client_whose_clock_is_wrong_is_told_so_once_and_works() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    for (ahead_ms, side) in [(10_000, "ahead of"), (-3_600_000, "behind")] {
        for command in [&["txn", "put a 1; get a"][..], &["shell"]] {
            let told = place.run_with(command, SET_OFF, &ahead_ms.to_string()).expect(0);
            let said: Vec<&str> = told.err.lines().filter(|line| line.contains("this machine's clock is ")).collect();
            let [said] = said[..] else { panic!("it is told once: {told:?}") };
            let (off, rest) = said.split_once("clock is ").and_then(|(_, rest)| rest.split_once(" s ")).expect("by how much");
            let off: f64 = off.parse().expect("seconds");
            assert!((off - f64::from(i32::abs(ahead_ms)) / 1_000.0).abs() < 1.0, "{said}");
            assert!(rest.starts_with(side), "{said}");
        }
    }
    assert!(!place.run(&["get", "a"]).expect(0).err.contains("clock"), "this one is right");
    place.run_with(&["get", "a"], SET_OFF, "a bit").expect(2).says("BEZANT_CLOCK_SET_OFF is no number of milliseconds: \"a bit\"");
}

/// What a replica says of its clock.
fn clock(place: &Place, replica: &str) -> serde_json::Value {
    let status = place.ask(replica, "/status").unwrap_or_default();
    serde_json::from_str::<serde_json::Value>(&status).unwrap_or_default()["clock"].clone()
}

/// Three of six machines' clocks are ten minutes ahead for a while, as after a glitch of the hosts they share: as it happens, as replicas are
/// started, and as all are.
#[test]
fn machines_whose_clocks_are_ten_minutes_ahead_for_a_while_stop_nobody() {
    let place = Place::new();
    let (wrong, right) = (["s0-r0", "s0-r1", "s0-r2"], ["s0-r3", "s0-r4", "s0-r5"]);
    let set_off = |ms: &str| fs::write(place.path("set-off"), ms).expect("written");
    let variable = format!("@{}", place.path("set-off").display());
    let up_wrong = || place.run_with(&["up"], SET_OFF, &variable).expect(0);
    let kill_wrong = || {
        wrong.iter().for_each(|replica| place.kill(replica));
        eventually("they have ended", || wrong.iter().all(|replica| place.ask(replica, "/health").is_none()));
    };
    let commits = |key: &str, value: &str| -> Said {
        place.run(&["put", key, value]).expect(0);
        place.run(&["get", key]).expect(0).prints(&format!("{value}\n"))
    };
    place.init(&[]);
    place.run(&["up"]).expect(0);
    kill_wrong();
    set_off("0");
    up_wrong();
    assert!(!commits("k", "before").err.contains("clock"));

    set_off("600000");
    eventually("they notice", || wrong.iter().all(|replica| clock(&place, replica)["machine_error_ms"].as_i64() > Some(599_960)));
    assert!(!commits("k", "while they are wrong").err.contains("clock"), "no client notices");
    place.run(&["status"]).expect(0).says("warning: s0-r1: machine's clock ahead by 600.");
    assert!(place.ask("s0-r1", "/health").is_some_and(|health| health.starts_with("serving\nmachine's clock ahead by 600.")));
    assert!(place.ask("s0-r1", "/metrics").is_some_and(|metrics| metrics.contains("machine_clock_error_seconds ")));

    kill_wrong();
    up_wrong();
    commits("k", "after they were started wrong");
    place.run(&["down"]).expect(0);
    let node = |replica: &&str| format!("bezant-data/{replica}");
    let mut nodes: Vec<Running> = wrong.iter().map(|replica| place.spawn_with(&["node", &node(replica)], SET_OFF, &variable)).collect();
    nodes.extend(right.iter().map(|replica| place.spawn(&["node", &node(replica)])));
    eventually("they serve", || {
        wrong.iter().chain(&right).all(|replica| place.ask(replica, "/health").is_some_and(|it| it.starts_with("serving")))
    });
    commits("k", "after all were started");
    let error_ms = |replica: &&str| clock(&place, replica)["error_ms"].as_i64();
    eventually("they agree", || wrong.iter().chain(&right).all(|replica| error_ms(replica).is_some_and(|error| error.abs() < 500)));

    set_off("0");
    eventually("they are right again", || wrong.iter().all(|replica| clock(&place, replica)["words"].is_null()));
    assert!(!commits("k", "after").err.contains("clock"));
}
