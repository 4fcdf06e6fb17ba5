//! `bezant-lab figures` on real processes, as small as it gets.

use std::fs;

use serde_json::Value;

use crate::place::Place;

/// One figure of two clusters, with every run as short as may be.
const SMALL: [&str; 10] = ["figures", "--quick", "--only", "6a", "--runs", "1", "--seconds", "0.3", "--keys", "1000"];

#[test]
fn a_figure_is_measured_goes_on_where_it_was_stopped_and_is_drawn_again() {
    let place = Place::new();
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
