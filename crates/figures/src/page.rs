//! The page: each figure's picture, the paper's claims beside ours, and every number behind it.

use std::fmt::Write as _;

use crate::draw::number as shown;
use crate::plan::{Claim, Figure, Form, Layout, Value};
use crate::results::{Measured, Results, Spread};

const HEAD: &str = "# The papers' figures, measured

`bezant-lab figures` measures each figure below, with real processes over mutual TLS, on a real disk with sync on, by commands
that anybody can run; where the data of servers for ZooKeeper's clients lay is said there. The papers used machines that we do not have, so only
shapes can be compared: ratios, and where curves bend. Each number that a paper's text claims is followed by ours.

```sh
bezant-lab figures --quick             # all of them, roughly, in an hour
bezant-lab figures                     # all of them, in about six hours; stopped, the same command goes on
bezant-lab figures --only 5a,7b        # some of them
bezant-lab figures --only sentinel --work /dev/shm --zookeeper DIR    # the ZooKeeper thesis', in memory, beside ZooKeeper's own servers
bezant-lab figures --list              # which there are, and how long each takes
bezant-lab figures --draw              # draw again what was measured
```

This page, its pictures and its raw reports are written by `bezant-lab figures --out docs/figures --page docs/reproduction.md`, and
not edited by hand. Values are medians over the runs, with the lowest and the highest run in brackets. One machine runs
all clients and replicas: differences within the spread are noise.

Not measured are the systems that Basil's figure 4 compares with (TAPIR, TxHotstuff, TxBFT-SMaRt), and ZooKeeper as the thesis changed it, which
was never published.

";

/// What every figure's table has.
const COLUMNS: [Value; 5] = [Value::Throughput, Value::LatencyMs, Value::CpuUs, Value::CommitRate, Value::FastPath];
/// The same of a figure about servers for ZooKeeper's clients.
const COLUMNS_OF_SERVERS: [Value; 4] = [Value::Requests, Value::AnswerMs, Value::ServerCpuUs, Value::LoadCpuUs];
/// How such a figure's commands are shown that say what stands in each server's `zoo.cfg`.
pub const ZOO_CFG: &str = "zoo.cfg: ";

/// The whole page: every figure, and what was measured for it; `pictures` is the way from the page to the pictures.
pub fn page(figures: &[(&Figure, Option<Results>)], pictures: &str) -> String {
    let mut out = HEAD.to_owned();
    for (figure, results) in figures {
        put(&mut out, &format!("## {}: {}\n", figure.source, figure.title));
        put(&mut out, &format!("{}\n", figure.about));
        match results {
            None => put(&mut out, &format!("Not measured yet: `bezant-lab figures --only {}`.\n", figure.name)),
            Some(_) => put(&mut out, &format!("![{}]({pictures}{}.svg)\n", figure.title, figure.name)),
        }
        claims(&mut out, figure, results.as_ref());
        if let Some(results) = results {
            numbers(&mut out, figure, results, pictures);
        }
    }
    out.truncate(out.trim_end().len() + 1);
    out
}

fn put(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("writing to a string succeeds");
}

/// What the paper says in numbers, and ours beside it.
fn claims(out: &mut String, figure: &Figure, results: Option<&Results>) {
    let (cells, claims): (Vec<&Claim>, Vec<&Claim>) = figure.claims.iter().partition(|claim| claim.cell.is_some());
    if !claims.is_empty() {
        put(out, "| claim | paper | here | from |\n|---|---|---|---|");
        for claim in claims {
            let (here, from) =
                results.and_then(|results| claimed(claim, results)).unwrap_or_else(|| ("not measured".to_owned(), String::new()));
            put(out, &format!("| {} | {} | {here} | {from} |", claim.what, claim.paper));
        }
        put(out, "");
    }
    for table in cells.chunk_by(|one, next| one.what == next.what) {
        grid(out, table, results);
    }
}

/// A table of the paper's, with ours in the same cells.
fn grid(out: &mut String, table: &[&Claim], results: Option<&Results>) {
    let cells: Vec<(&str, &str, &Claim)> =
        table.iter().filter_map(|claim| claim.cell.as_ref().map(|cell| (cell.row.as_str(), cell.column, *claim))).collect();
    let (mut rows, mut columns): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (row, column, _) in &cells {
        rows.extend((!rows.contains(row)).then_some(*row));
        columns.extend((!columns.contains(column)).then_some(*column));
    }
    let title = table.first().map_or("", |claim| claim.what);
    put(out, &format!("{title}; first the paper's number, then ours:\n"));
    put(out, &format!("| | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len())));
    for row in rows {
        let of_column = |column: &&str| {
            let (_, _, claim) = cells.iter().find(|(of, at, _)| *of == row && at == column)?;
            let here = results.and_then(|results| claimed(claim, results)).map_or_else(|| "–".to_owned(), |(here, _)| here);
            Some(format!("{} / {here}", claim.paper))
        };
        let line: Vec<String> = columns.iter().map(|column| of_column(column).unwrap_or_default()).collect();
        put(out, &format!("| {row} | {} |", line.join(" | ")));
    }
    put(out, "");
}

/// Every point, how it was run, and what came out.
fn numbers(out: &mut String, figure: &Figure, results: &Results, pictures: &str) {
    let (mut columns, bench) =
        if figure.is_of_servers() { (COLUMNS_OF_SERVERS.to_vec(), "bezant bench-zookeeper") } else { (COLUMNS.to_vec(), "bezant bench") };
    for panel in &figure.panels {
        let along = match panel.layout {
            Layout::Over(value) | Layout::OverLog(value) => Some(value),
            _ => None,
        };
        columns.extend(std::iter::once(panel.y).chain(along).filter(|value| !columns.contains(value)).collect::<Vec<_>>());
    }
    let heads: Vec<&str> = columns.iter().map(|value| value.short()).collect();
    put(out, &format!("| point | {} | `{bench}` | cluster |\n|---|{}---|---|", heads.join(" | "), "---|".repeat(heads.len())));
    for point in &results.points {
        let cell = |value: &Value| results.value(&point.id, *value).map_or_else(|| "–".to_owned(), |spread| spread_of(spread, *value));
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let flags = point.command.strip_prefix(bench).unwrap_or(&point.command).trim_start();
        put(out, &format!("| {} | {} | `{flags}` | {} |", point.id, cells.join(" | "), cluster(point)));
    }
    let mut fills: Vec<&str> = results.points.iter().flat_map(|point| &point.cluster).map(String::as_str).collect();
    fills.retain(|command| command.contains("--load"));
    fills.sort_unstable();
    fills.dedup();
    let fills: Vec<String> = fills.iter().map(|fill| format!("`{fill}`")).collect();
    let runs = results.points.iter().map(|point| point.reports.len());
    let (least, most) = (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0));
    let runs = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let machine = results.machine.line();
    let tables = if figure.is_of_servers() { String::new() } else { format!("; tables: {}", fills.join(", ")) };
    let made = format!("{machine}; effort: {}; {runs} runs of each point, in turns{tables}", results.effort);
    put(out, &format!("\n{made}. [Every report]({pictures}{0}.json), [as PNG]({pictures}{0}.png).\n", figure.name));
    for point in results.points.iter().filter(|point| !point.failures.is_empty()) {
        let said = point.failures.iter().map(|said| said.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("; ");
        put(out, &format!("**{} of the runs of {} failed:** {said}\n", point.failures.len(), point.id));
    }
}

/// What is special about the cluster that a point ran on.
fn cluster(point: &Measured) -> String {
    let special = point.cluster.iter().filter_map(|command| {
        let changed = || command.strip_prefix("sed ")?.split('/').nth(2);
        let broken = || command.strip_suffix(" bezant up");
        let plain = ["bezant init ", "bezant up ", ZOO_CFG].iter().find_map(|begin| command.strip_prefix(begin));
        plain.or_else(changed).or_else(broken)
    });
    special.map(|special| format!("`{special}`")).collect::<Vec<_>>().join(" ")
}

/// The claim's number as it is here, and what it was computed from.
fn claimed(claim: &Claim, results: &Results) -> Option<(String, String)> {
    let of = results.value(&claim.of, claim.value)?;
    let Some(over) = &claim.over else {
        return Some((written(of.median, claim.form), spread_of(of, claim.value)));
    };
    let over = results.value(over, claim.value)?;
    let from = format!("{} over {}", spread_of(of, claim.value), spread_of(over, claim.value));
    (over.median > 0.0).then(|| (written(of.median / over.median, claim.form), from))
}

fn written(number: f64, form: Form) -> String {
    match form {
        Form::Times => format!("{number:.2}×"),
        Form::Change => format!("{:+.0} %", (number - 1.0) * 100.0),
        Form::Percent => format!("{:.1} %", number * 100.0),
        Form::Less => format!("{:.0}", (1.0 - number) * 100.0),
        Form::Number => shown(number),
    }
}

fn spread_of(Spread { median, low, high }: Spread, value: Value) -> String {
    let digits = match value {
        Value::CommitRate | Value::FastPath => 4,
        Value::LatencyMs | Value::AnswerMs => 2,
        _ if median < 100.0 => 1,
        _ => 0,
    };
    let [median, low, high] = [median, low, high].map(|number| format!("{number:.digits$}"));
    if low == high { median } else { format!("{median} ({low} – {high})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::plan::{Cell, Cluster, Data, Effort, Panel, Point, Program, Servers};
    use serde_json::json;

    #[test]
    fn a_claim_stands_beside_our_number_or_says_that_there_is_none() {
        let figure = Figure {
            name: "f",
            title: "A figure",
            source: "A paper, §1",
            about: "What it is.",
            panels: Vec::new(),
            claims: vec![
                Claim::times("more", "3.7×", Value::Throughput, "b", "a"),
                Claim::change("more", "3.7×", Value::Throughput, "b", "a"),
                Claim::percent("more", "3.7×", Value::Throughput, "c"),
            ],
        };
        let mut results = Results::new(&figure, Effort::QUICK, Machine::default());
        for (id, rate) in [("a", 1_000.0), ("b", 1_400.0), ("b", 1_600.0)] {
            let data = Data { init: vec!["--shards".to_owned(), "2".to_owned()], tables: Vec::new() };
            let cluster = Cluster { data, regions: Some("zone"), ..Cluster::default() };
            let point = Point { id: id.to_owned(), label: String::new(), x: 0.0, cluster, bench: Vec::new(), stretch: 1 };
            let set = "sed -i 's/^batch_max = .*/batch_max = 4/' */node.toml";
            let fill = "bezant bench rw-u --load --seconds 0";
            let commands = ["bezant init --shards 2", fill, set, "bezant up --regions zone"].map(str::to_owned);
            results.note(&point, &commands, "bezant bench rw-u --seconds 1", Ok(json!({"committed_per_second": rate})));
            if rate > 1_500.0 {
                results.note(&point, &commands, "bezant bench rw-u --seconds 1", Err("nothing\ncommitted".to_owned()));
            }
        }
        let text = page(&[(&figure, Some(results)), (&figure, None)], "figures/");
        for line in [
            "| more | 3.7× | 1.50× | 1500 (1400 – 1600) over 1000 |",
            "| more | 3.7× | +50 % | 1500 (1400 – 1600) over 1000 |",
            "| more | 3.7× | not measured |  |",
            "| a | 1000 | – | – | – | – | `rw-u --seconds 1` | `--shards 2` `batch_max = 4` `--regions zone` |",
            "1 to 2 runs of each point, in turns; tables: `bezant bench rw-u --load --seconds 0`. [Every report](figures/f.json)",
            "**1 of the runs of b failed:** nothing committed",
            "Not measured yet: `bezant-lab figures --only f`.",
            "![A figure](figures/f.svg)",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_papers_table_has_ours_in_its_cells() {
        let cluster =
            Cluster { servers: Some(Servers { program: Program::Bezant, lines: vec!["bezant.digest=off"] }), ..Cluster::default() };
        let point =
            |id: &str| Point { id: id.to_owned(), label: String::new(), x: 0.0, cluster: cluster.clone(), bench: Vec::new(), stretch: 1 };
        let less = |row: &str, column, of: &str| {
            Claim::less(Cell { row: row.to_owned(), column }, "Table 1: so much less", "20", Value::Requests, of, "none")
        };
        let panel =
            Panel { title: "", x: "", y: Value::Requests, layout: Layout::Lines, series: vec![(String::new(), vec![point("none")])] };
        let figure = Figure {
            name: "f",
            title: "A figure",
            source: "A paper, §1",
            about: "What it is.",
            panels: vec![panel],
            claims: vec![
                Claim::number("so many", "30,000", Value::Requests, "none"),
                less("0 %", "CRC-32", "a"),
                less("0 %", "MD5", "b"),
                less("10 %", "MD5", "a"),
            ],
        };
        let mut results = Results::new(&figure, Effort::QUICK, Machine::default());
        for (id, rate) in [("none", 40_000.0), ("a", 36_000.0)] {
            let commands = ["bezant zookeeper --make-key key-N.pem", "zoo.cfg: bezant.digest=off", "bezant zookeeper --config zoo.cfg"];
            let report = json!({"per_second": rate, "p50_us": 1_500, "server_cpu_us": 30.0, "client_cpu_us": 6.0});
            results.note(&point(id), &commands.map(str::to_owned), "bezant bench-zookeeper --reads 0 --seconds 1", Ok(report));
        }
        let text = page(&[(&figure, Some(results))], "");
        for lines in [
            "| so many | 30,000 | 40,000 | 40000 |\n\nTable 1: so much less; ",
            "| | CRC-32 | MD5 |\n|---|---|---|\n| 0 % | 20 / 10 | 20 / – |\n| 10 % |  | 20 / 10 |\n",
            "| point | requests a second | median latency, ms | servers' CPU time a request, µs | load's CPU time a request, µs | \
             `bezant bench-zookeeper` | cluster |",
            "| none | 40000 | 1.50 | 30.0 | 6.0 | `--reads 0 --seconds 1` | `bezant.digest=off` |",
            "1 runs of each point, in turns. [Every report]",
        ] {
            assert!(text.contains(lines), "{lines} is missing in\n{text}");
        }
    }
}
