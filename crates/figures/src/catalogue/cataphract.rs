//! The figures of Cataphract (section 4).

use super::{cluster, point};
use crate::plan::{Claim, Cluster, Effort, Figure, Layout, Panel, Point, Value};

/// How many of the paper's clients run at once.
const CLIENTS: [u32; 3] = [1, 4, 12];
/// The paper's workloads.
const WORKLOADS: [(&str, &str); 3] = [("YCSB-A", "ycsb-a"), ("YCSB-B", "ycsb-b"), ("YCSB-C", "ycsb-c")];

pub fn figures(effort: Effort) -> Vec<Figure> {
    vec![in_a_zone(effort), in_a_region(effort), over_the_planet(effort), workloads(effort), skew(effort), order(effort)]
}

/// How transactions are run.
#[derive(Clone, Copy)]
enum Way {
    /// One at a time, reads one after the other: the paper's original Basil.
    Alone,
    /// Each client has a pool, and one batch under way.
    Batch(u32),
    /// One pool for all, in batches as large as do well: what an application gets.
    Whole,
}

/// So many transactions of each client are in the pool when there is one for all.
const WHOLE_SIZE: u32 = 12;

impl Way {
    fn name(self) -> String {
        match self {
            Self::Alone => "one at a time".to_owned(),
            Self::Batch(size) => format!("batch {size}"),
            Self::Whole => "one pool".to_owned(),
        }
    }

    /// The flags of `bezant bench`. One client of the paper runs one batch after another: as many loop clients as a batch has, over one
    /// connection with one batch under way.
    fn flags(self, clients: u32) -> String {
        match self {
            Self::Alone => format!("--clients {clients} --connections {clients} --interactive-reads"),
            Self::Batch(size) => format!("--clients {} --connections {clients} --pool --batch {size} --in-flight 1", clients * size),
            Self::Whole => format!("--clients {} --pool", clients * WHOLE_SIZE),
        }
    }
}

fn place(effort: Effort, regions: Option<&'static str>) -> Cluster {
    // The table of all workloads of keys and values is one.
    Cluster { regions, ..cluster("", &[&format!("rw-u --keys {}", effort.keys)]) }
}

/// A line over the number of clients, measured `stretch` times as long as others.
fn line(cluster: &Cluster, name: &str, workload: &str, way: Way, stretch: impl Fn(u32) -> u32) -> (String, Vec<Point>) {
    let one = |clients: u32| {
        let id = format!("{name}, {clients} {}", if clients == 1 { "client" } else { "clients" });
        let run = point(id, f64::from(clients), cluster.clone(), &format!("{workload} {}", way.flags(clients)));
        Point { stretch: stretch(clients), ..run }
    };
    (name.to_owned(), CLIENTS.map(one).to_vec())
}

/// Throughput and latency of the three workloads: figures 5 to 7.
fn at_distance(effort: Effort, regions: &'static str, ways: &[Way], stretch: fn(Way, u32) -> u32) -> Vec<Panel> {
    let place = place(effort, Some(regions));
    let series = |workload: &str| {
        let bench = format!("{workload} --keys {}", effort.keys);
        let of_way = |way: &Way| {
            let (name, points) = line(&place, &way.name(), &bench, *way, |clients| stretch(*way, clients));
            let points = points.into_iter().map(|point| Point { id: format!("{workload} {}", point.id), ..point });
            (name, points.collect())
        };
        ways.iter().map(of_way).collect()
    };
    let panel = |(title, workload): &(&'static str, &str)| {
        let (y, layout) = (Value::LatencyMs, Layout::OverLog(Value::Throughput));
        Panel { title, x: "", y, layout, series: series(workload) }
    };
    WORKLOADS.iter().map(panel).collect()
}

const ABOUT: &str = "Ten operations a transaction, uniform keys; 1, 4 and 12 of the paper's clients, each with one batch in flight. `one \
                     at a time` is what the paper calls Basil: no batches, and reads one after the other. Here a read-only batch needs \
                     no vote, and neither does a single read-only transaction.";

fn in_a_zone(effort: Effort) -> Figure {
    let ways = [Way::Alone, Way::Batch(1), Way::Batch(4), Way::Batch(12), Way::Whole];
    Figure {
        name: "cataphract-5",
        title: "Batches of transactions, in one zone",
        source: "Cataphract, §4.2.1, figure 5",
        about: "All processes are within a round trip of 0.25 ms (`--regions zone`). Ten operations a transaction, uniform keys; 1, 4 \
                and 12 of the paper's clients, each with one batch in flight. `one at a time` is what the paper calls Basil: no batches, \
                and reads one after the other. `one pool` is what an application gets: 12 transactions of each client in one pool, with \
                adaptive batch sizes. Here a read-only batch needs no vote, and neither does a single read-only transaction.",
        panels: at_distance(effort, "zone", &ways, |_, _| 1),
        claims: headlines(["5.6×", "−55 %"], "ycsb-c batch 1, 1 client", "ycsb-c one at a time, 1 client"),
    }
}

fn in_a_region(effort: Effort) -> Figure {
    Figure {
        name: "cataphract-6",
        title: "Batches of transactions, in one region",
        source: "Cataphract, §4.2.1, figure 6",
        about: ABOUT,
        panels: at_distance(effort, "region", &[Way::Alone, Way::Batch(1), Way::Batch(4), Way::Batch(12)], |_, _| 1),
        claims: headlines(["13.8× (abstract), 8.6× (§4.2.1)", "−74 %"], "ycsb-c batch 1, 1 client", "ycsb-c one at a time, 1 client"),
    }
}

fn over_the_planet(effort: Effort) -> Figure {
    // A transaction takes a second: few of them end in a window, unless it is long.
    let stretch = |way: Way, clients: u32| match (way, clients) {
        (Way::Alone, 1) => 8,
        (Way::Alone, _) => 4,
        (_, 1) => 3,
        _ => 2,
    };
    Figure {
        name: "cataphract-7",
        title: "Batches of transactions, over the planet",
        source: "Cataphract, §4.2.2, figure 7",
        about: ABOUT,
        panels: at_distance(effort, "planet", &[Way::Alone, Way::Batch(1), Way::Batch(4), Way::Batch(12)], stretch),
        claims: headlines(["80.4×", "−76 %"], "ycsb-c batch 1, 12 clients", "ycsb-c one at a time, 12 clients"),
    }
}

/// The paper's two headlines at a distance: throughput of batches of 12 with one client, and latency of batches of one.
fn headlines([throughput, latency]: [&'static str; 2], of: &str, over: &str) -> Vec<Claim> {
    let ratio = |what, paper, workload: &str| {
        let [of, over] = ["batch 12", "one at a time"].map(|way| format!("{workload} {way}, 1 client"));
        Claim::times(what, paper, Value::Throughput, &of, &over)
    };
    vec![
        ratio("throughput, YCSB-C, 1 client, batches of 12 against one at a time", throughput, "ycsb-c"),
        ratio("the same, YCSB-B", "less", "ycsb-b"),
        ratio("the same, YCSB-A", "less", "ycsb-a"),
        Claim::change("latency, YCSB-C, batches of 1 against one at a time", latency, Value::LatencyMs, of, over),
    ]
}

/// Panels of lines over the number of clients.
fn over_clients(series: &[(String, Vec<Point>)], shown: &[(&'static str, Value)]) -> Vec<Panel> {
    let panel = |(title, y): &(&'static str, Value)| {
        let (x, layout) = ("clients", Layout::LinesOverLog);
        Panel { title, x, y: *y, layout, series: series.to_vec() }
    };
    shown.iter().map(panel).collect()
}

fn workloads(effort: Effort) -> Figure {
    let place = place(effort, Some("zone"));
    let all = ["write-only", "write-heavy", "read-modify-write", "read-heavy", "ycsb-c"];
    let one = |workload: &str| {
        let name = if workload == "ycsb-c" { "read-only" } else { workload };
        line(&place, name, &format!("{workload} --keys {}", effort.keys), Way::Batch(4), |_| 1)
    };
    let series = all.map(one).to_vec();
    let claim = |what, of, over| Claim::times(what, "about 1×", Value::Throughput, of, over);
    Figure {
        name: "cataphract-8a",
        title: "Batches of four, by workload",
        source: "Cataphract, §4.3.1, figure 8a",
        about: "Ten operations a transaction, uniform keys, batches of four. The paper sees three groups: only writes; writes with \
                reads; and mostly reads, which are slowest there. Here mostly reads are fastest: reads go out together, their replies \
                carry no signature, and read-only transactions need no vote.",
        panels: over_clients(&series, &[("Throughput", Value::Throughput), ("Latency", Value::LatencyMs)]),
        claims: vec![
            claim("read-modify-write against write-heavy, 12 clients", "read-modify-write, 12 clients", "write-heavy, 12 clients"),
            claim("read-only against read-heavy, 12 clients", "read-only, 12 clients", "read-heavy, 12 clients"),
        ],
    }
}

fn skew(effort: Effort) -> Figure {
    let place = place(effort, Some("zone"));
    let bench = |more: &str| format!("ycsb-a --keys {} {more}", effort.keys);
    let series = vec![
        line(&place, "alike, batch 1", &bench(""), Way::Batch(1), |_| 1),
        line(&place, "alike, batch 4", &bench(""), Way::Batch(4), |_| 1),
        line(&place, "Zipf, batch 1", &bench("--zipf 0.9"), Way::Batch(1), |_| 1),
        line(&place, "Zipf, batch 4, the paper's rule", &bench("--zipf 0.9 --chain paper"), Way::Batch(4), |_| 1),
        line(&place, "Zipf, batch 4", &bench("--zipf 0.9"), Way::Batch(4), |_| 1),
        line(&place, "Zipf, batch 12", &bench("--zipf 0.9"), Way::Batch(12), |_| 1),
        line(&place, "Zipf, one pool", &bench("--zipf 0.9"), Way::Whole, |_| 1),
    ];
    let claim = |what, paper, of, over| Claim::times(what, paper, Value::Throughput, of, over);
    Figure {
        name: "cataphract-8b",
        title: "Batches of transactions, under skew",
        source: "Cataphract, §4.3.2, figure 8b",
        about: "YCSB-A, ten operations a transaction, uniform keys or keys by Zipf 0.9. In the paper a batch ends before a transaction \
                that conflicts with an earlier member, and batches of four are slower than none under skew. Here such a transaction \
                joins and reads what the earlier one writes. `one pool` is 12 transactions of each client in one pool, as an application \
                would use it.",
        panels: over_clients(
            &series,
            &[("Throughput", Value::Throughput), ("Latency", Value::LatencyMs), ("Commit rate", Value::CommitRate)],
        ),
        claims: vec![
            claim(
                "Zipf, batches of 4 by the paper's rule against 1, 12 clients",
                "less",
                "Zipf, batch 4, the paper's rule, 12 clients",
                "Zipf, batch 1, 12 clients",
            ),
            claim(
                "Zipf, batches of 4, chained, against 1, 12 clients",
                "not in the paper",
                "Zipf, batch 4, 12 clients",
                "Zipf, batch 1, 12 clients",
            ),
            claim(
                "Zipf, batches of 12, chained, against 1, 12 clients",
                "not in the paper",
                "Zipf, batch 12, 12 clients",
                "Zipf, batch 1, 12 clients",
            ),
            claim(
                "Zipf, one pool for all against batches of 1, 12 clients",
                "not in the paper",
                "Zipf, one pool, 12 clients",
                "Zipf, batch 1, 12 clients",
            ),
        ],
    }
}

fn order(effort: Effort) -> Figure {
    let place = place(effort, Some("zone"));
    let one = |(keys, zipf): (&str, &str), order: &str| {
        let bench = format!("ycsb-b --keys {} {zipf} --order {order}", effort.keys);
        line(&place, &format!("{keys}, {order}"), &bench, Way::Batch(12), |_| 1)
    };
    let keys = [("alike", ""), ("Zipf", "--zipf 0.9")];
    let series: Vec<_> = keys.iter().flat_map(|keys| ["read-after-write", "write-after-read"].map(|order| one(*keys, order))).collect();
    let claim = |what, paper, of, over| Claim::times(what, paper, Value::Throughput, of, over);
    Figure {
        name: "cataphract-8c",
        title: "When a batch reads",
        source: "Cataphract, §4.3.3, figure 8c",
        about: "YCSB-B, batches of 12: a batch reads right before it commits (read-after-write), or first, while others are in flight \
                (write-after-read), so that more of the versions it read are overwritten by then. The paper's keys are uniform; those by \
                Zipf 0.9 are ours.",
        panels: over_clients(
            &series,
            &[("Throughput", Value::Throughput), ("Latency", Value::LatencyMs), ("Commit rate", Value::CommitRate)],
        ),
        claims: vec![
            claim(
                "reads last against reads first, 12 clients",
                "more",
                "alike, read-after-write, 12 clients",
                "alike, write-after-read, 12 clients",
            ),
            claim("the same under skew", "not in the paper", "Zipf, read-after-write, 12 clients", "Zipf, write-after-read, 12 clients"),
        ],
    }
}
