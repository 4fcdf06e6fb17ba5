//! Figure 6 of Augustus' paper: Buzzer beside Retwis.

use super::{bar, cluster};
use crate::plan::{Claim, Cluster, Effort, Figure, Layout, Panel, Point, Value};

pub fn figures(effort: Effort) -> Vec<Figure> {
    vec![buzzer(effort)]
}

/// The benchmarks: for people, and of the program.
const MIXES: [(&str, &str); 4] = [("Post", "buzzer-post"), ("Follow", "buzzer-follow"), ("Timeline", "buzzer-timeline"), ("Mix", "buzzer")];
/// How many users there are in the paper.
const USERS: u64 = 100_000;
/// How many clients there are at once.
const CLIENTS: u32 = 64;
/// What is measured, as its points are called.
const REDIS: &str = "Retwis on Redis";
const ONE: &str = "Augustus, 1 shard";
const TWO: &str = "Augustus, 2 shards";
const FOUR: &str = "Augustus, 4 shards";
const BASIL: &str = "Basil, 1 shard";
const WHOLE: &str = "1 shard, whole-shard locks";
const WHOLE_TWO: &str = "2 shards, whole-shard locks";

fn buzzer(effort: Effort) -> Figure {
    // Each has some twenty rows.
    let users = effort.keys.min(USERS);
    let table = format!("buzzer --keys {users}");
    let on = |engine: &str, shards: u64, more: &str| -> Cluster {
        // Bounds that give each shard as many users.
        let bounds: Vec<String> = (1..shards).map(|shard| format!("bench-buzzer/{:08}", users * shard / shards)).collect();
        let placement = if shards == 1 { String::new() } else { format!("--shards {shards} --placement ranges:{}", bounds.join(",")) };
        cluster(&format!("--engine {engine} {placement} {more}"), &[&table])
    };
    let of = |series: &str, (label, workload): (&str, &str), cluster: Cluster, more: &str| -> Point {
        bar(format!("{series}, {label}"), label, cluster, &format!("{workload} --keys {users} --clients {CLIENTS}{more}"))
    };
    let series = |name: &'static str, cluster: &Cluster, more: &str| -> (String, Vec<Point>) {
        (name.to_owned(), MIXES.iter().map(|mix| of(name, *mix, cluster.clone(), more)).collect())
    };
    let [one, two, four] = [1, 2, 4].map(|shards| on("augustus", shards, ""));
    let basil = on("basil", 1, "");
    let all = vec![
        series(REDIS, &one, " --on-redis"),
        series(ONE, &one, ""),
        series(TWO, &two, ""),
        series(FOUR, &four, ""),
        series(BASIL, &basil, ""),
    ];
    let mix_alone = |name: &'static str, cluster: Cluster| (name.to_owned(), vec![of(name, MIXES[3], cluster, "")]);
    let whole = [
        mix_alone(WHOLE, on("augustus", 1, "--structural-locks whole-shard")),
        mix_alone(WHOLE_TWO, on("augustus", 2, "--structural-locks whole-shard")),
    ];
    let commits: Vec<(String, Vec<Point>)> = all[1..].iter().cloned().chain(whole).collect();
    let panel = |title, y, series: &[(String, Vec<Point>)]| Panel { title, x: "", y, layout: Layout::Bars, series: series.to_vec() };
    Figure {
        name: "augustus-6",
        title: "Buzzer, a social network, beside Retwis on Redis",
        source: "Augustus, §4.4, Figure 6",
        about: "The transactions of `apps/buzzer`, with 64 clients in one process. In the paper each shard has machines of its own, and a server of \
                Redis has one; here all share two cores, so that more shards cannot be faster. Redis keeps everything in memory, unreplicated, and \
                loses it with its process. Besides what the paper's *follow* does, ours reads that the other user is there, and keeps each user's \
                count, with its bound. The runs end with an audit: both sides of each edge, the counts, every acknowledged post, and timelines \
                against their parts; and each timeline that is read is checked for posts that were acknowledged before.",
        panels: vec![
            panel("Throughput", Value::Throughput, &all),
            panel("Latency", Value::LatencyMs, &all),
            panel("Committed of attempted", Value::CommitRate, &commits),
        ],
        claims: claims(),
    }
}

fn claims() -> Vec<Claim> {
    let id = |series: &str, mix: &str| format!("{series}, {mix}");
    let against =
        |what, paper, mix: &str, series: &str, over: &str| Claim::times(what, paper, Value::Throughput, &id(series, mix), &id(over, mix));
    let committed = |what, paper, series: &str| Claim::percent(what, paper, Value::CommitRate, &id(series, "Mix"));
    vec![
        against("posts with one shard, of Retwis", "better", "Post", ONE, REDIS),
        against("follows with one shard, of Retwis", "less", "Follow", ONE, REDIS),
        against("follows with two shards, of one (certificates)", "less", "Follow", TWO, ONE),
        against("follows with four shards, of two (machines of their own)", "2×", "Follow", FOUR, TWO),
        against("timelines with one shard, of Retwis", "better", "Timeline", ONE, REDIS),
        against("the mix with one shard, of Retwis", "better", "Mix", ONE, REDIS),
        committed("committed of attempted in the mix, whole-shard locks, one shard", "85 %", WHOLE),
        committed("the same with two shards", "85 %", WHOLE_TWO),
        committed("with interval locks, one shard", "not in the paper", ONE),
        committed("with interval locks, two shards", "not in the paper", TWO),
        committed("with interval locks, four shards", "not in the paper", FOUR),
        committed("on Basil", "not in the paper", BASIL),
    ]
}
