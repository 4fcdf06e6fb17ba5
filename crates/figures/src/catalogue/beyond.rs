//! Figures of what no paper has.

use super::{bar, cluster, set};
use crate::plan::{Claim, Cluster, Effort, Figure, Layout, Panel, Point, Value};

pub fn figures(effort: Effort) -> Vec<Figure> {
    vec![read_only(effort)]
}

/// Where client and replicas are: for people, and the map.
const PLACES: [(&str, &str); 3] = [("one zone", "zone"), ("one region", "region"), ("the planet", "planet")];
/// How a transaction that only reads commits: for people, and the setting.
const WAYS: [(&str, &str); 2] = [("validated", "validated"), ("by votes", "voted")];

fn read_only(effort: Effort) -> Figure {
    let one = |(place, regions): (&str, &'static str), (name, setting): (&str, &str), clients: u32| {
        let here = set(cluster("", &[&format!("rw-u --keys {}", effort.keys)]), "client.toml", "read_only", format!("\"{setting}\""));
        let here = Cluster { regions: Some(regions), ..here };
        let bench = format!("ro-u --keys {} --clients {clients}", effort.keys);
        let stretch = if regions == "planet" { 3 } else { 1 };
        Point { stretch, ..bar(format!("{place}, {name}, {clients}"), place, here, &bench) }
    };
    let of = |clients: u32| -> Vec<(String, Vec<Point>)> {
        WAYS.iter().map(|way| (way.0.to_owned(), PLACES.iter().map(|place| one(*place, *way, clients)).collect())).collect()
    };
    let panel = |title, y, clients| Panel { title, x: "", y, layout: Layout::Bars, series: of(clients) };
    let latency = |what, place: &str| {
        Claim::change(what, "not in the papers", Value::LatencyMs, &format!("{place}, validated, 1"), &format!("{place}, by votes, 1"))
    };
    Figure {
        name: "bezant-read-only",
        title: "Transactions that only read",
        source: "Beyond the papers",
        about: "Ten reads a transaction, all requested together and declared beforehand to be all. Such a transaction commits when 3f+1 \
                replicas validate that no newer version is pending: in one round trip, with nothing signed, checked or written \
                (`validated`). The papers' way is `by votes`: one round trip to read, one to prepare (`read_only` in `client.toml`).",
        panels: vec![
            // Many clients first: they read the table into memory while the cluster warms up.
            panel("128 clients", Value::Throughput, 128),
            panel("One client", Value::LatencyMs, 1),
            panel("Cost, 128 clients", Value::CpuUs, 128),
        ],
        claims: vec![
            latency("latency of one client in one zone, validated against by votes", "one zone"),
            latency("the same in one region", "one region"),
            latency("the same over the planet", "the planet"),
            Claim::times(
                "throughput of 128 clients in one zone",
                "not in the papers",
                Value::Throughput,
                "one zone, validated, 128",
                "one zone, by votes, 128",
            ),
            Claim::times("CPU of the same", "not in the papers", Value::CpuUs, "one zone, validated, 128", "one zone, by votes, 128"),
        ],
    }
}
