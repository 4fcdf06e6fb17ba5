//! Clocks that are wrong, at real processes: each takes its machine's clock to be off as `BEZANT_CLOCK_SET_OFF` says.

#[path = "../../bezant/tests/place/mod.rs"]
mod place;

use place::Place;

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
