//! The microbenchmarks of Augustus' paper (section 4.3).

use super::{cluster, point};
use crate::plan::{Claim, Cluster, Effort, Figure, Layout, Panel, Point, Value};

/// Loop clients that keep two shared cores busy.
const CLIENTS: u32 = 128;
/// Which part of the transactions is on two shards, in percent.
const MIXES: [u32; 6] = [0, 20, 40, 60, 80, 100];
/// How many shards there are.
const SHARDS: [u32; 4] = [1, 2, 4, 8];
/// Which part of the clients cheats, in percent.
const CHEATS: [u32; 5] = [0, 8, 16, 24, 32];
/// How many shards they cheat.
const SHARDS_CHEATED: u32 = 4;

pub fn figures(effort: Effort) -> Vec<Figure> {
    vec![multi_shard(effort), cheats(effort)]
}

/// A workload of the paper's table 3.
#[derive(Clone, Copy)]
struct Load {
    letter: char,
    /// Whether its values have 1 KiB, and there are a quarter as many, where the paper has a third: they stay in memory.
    is_large: bool,
}

const A: Load = Load { letter: 'a', is_large: false };
const B: Load = Load { letter: 'b', is_large: true };
const C: Load = Load { letter: 'c', is_large: false };
const D: Load = Load { letter: 'd', is_large: true };

impl Load {
    fn bench(self, effort: Effort) -> String {
        let keys = if self.is_large { effort.keys / 4 } else { effort.keys };
        format!("augustus-{} --keys {keys}", self.letter)
    }

    fn id(self, shards: u32, percent: u32) -> String {
        let plural = if shards == 1 { "" } else { "s" };
        format!("{}, {shards} shard{plural}, {percent} % on two", self.letter.to_ascii_uppercase())
    }
}

fn on_shards(effort: Effort, shards: u32, table: Load, more: &str) -> Cluster {
    cluster(&format!("--engine augustus --shards {shards} {more}"), &[&table.bench(effort)])
}

fn multi_shard(effort: Effort) -> Figure {
    let one = |load: Load, shards: u32, percent: u32| -> Point {
        let share = f64::from(percent) / 100.0;
        let bench = format!("{} --clients {CLIENTS} --multi-shard {share}", load.bench(effort));
        // C and D read the tables of A and B, each of which is the only one in its cluster.
        let table = if load.is_large { B } else { A };
        point(load.id(shards, percent), f64::from(percent), on_shards(effort, shards, table, ""), &bench)
    };
    let line = |load: Load, shards: u32| -> (String, Vec<Point>) {
        let mixes = if shards == 1 { &MIXES[..1] } else { &MIXES[..] };
        let name = if shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") };
        (name, mixes.iter().map(|percent| one(load, shards, *percent)).collect())
    };
    let panel = |title, y, load: Load| Panel {
        title,
        x: "transactions on two shards, %",
        y,
        layout: Layout::Lines,
        series: SHARDS.iter().map(|shards| line(load, *shards)).collect(),
    };
    Figure {
        name: "augustus-3",
        title: "Transactions over several shards",
        source: "Augustus, §4.3, figures 3 and 4, table 4",
        about: "Workloads A (four reads, four writes), B (two and two), C (eight reads) and D (four reads); A and C with values of 4 bytes, B and D of \
                1 KiB. In the paper each replica has a machine of its own; here all of up to 32 share two cores with their clients. So the first charts \
                show what the replicas' CPU time would allow with a core for each, and latencies are those of two busy cores. Reads within one shard are \
                answered in one step here, without being ordered, which makes workloads C and D cheaper with no transaction on two shards than the \
                paper's, and the way from there to others longer. Tables are smaller than the paper's (3,000,000 and 1,000,000 rows), as the commands \
                say, and so transactions meet more often.",
        panels: vec![
            panel("Workload A", Value::CoreBound, A),
            panel("Workload B", Value::CoreBound, B),
            panel("Workload C", Value::CoreBound, C),
            panel("Workload D", Value::CoreBound, D),
            panel("Workload A: cost", Value::CpuUs, A),
            panel("Workload C: cost", Value::CpuUs, C),
            panel("Workload A: latency", Value::LatencyMs, A),
            panel("Workload A: table 4", Value::CommitRate, A),
            panel("Workload B: table 4", Value::CommitRate, B),
        ],
        claims: [flat(), falls(), table_4()].concat(),
    }
}

fn flat() -> Vec<Claim> {
    let more = |what, paper, value, shards| Claim::times(what, paper, value, &A.id(shards, 0), &A.id(1, 0));
    vec![
        more("A, none on two shards: throughput of eight shards, of one (a core for each replica)", "8×", Value::CoreBound, 8),
        more("the same: CPU a transaction with two shards, of one", "not given", Value::CpuUs, 2),
        more("with four shards, of one", "not given", Value::CpuUs, 4),
        more("with eight shards, of one", "not given", Value::CpuUs, 8),
        Claim::times("A on two shards: CPU of a transaction, of one on one shard", "3.6×", Value::CpuUs, &A.id(2, 100), &A.id(2, 0)),
    ]
}

fn falls() -> Vec<Claim> {
    let claim = |what, paper, load: Load, percent| Claim::change(what, paper, Value::CoreBound, &load.id(2, percent), &load.id(2, 0));
    vec![
        claim("A, two shards: 20 % of transactions on both, of none (a core for each replica)", "−50 %", A, 20),
        claim("the same, 40 %", "−60 %", A, 40),
        claim("the same, 100 %", "−72 %", A, 100),
        claim("B, two shards: 60 %", "−18 %", B, 60),
        claim("the same, 100 %", "−37 %", B, 100),
        claim("C, two shards: 20 %", "−33 %", C, 20),
        claim("the same, 40 %", "−45 %", C, 40),
        claim("the same, 60 %", "−52 %", C, 60),
        claim("the same, 100 %", "−66 %", C, 100),
        claim("D, two shards: 60 %", "−5 %", D, 60),
        claim("the same, 100 %", "−15 %", D, 100),
    ]
}

fn table_4() -> Vec<Claim> {
    let claim = |what, paper, load: Load, shards, percent| Claim::percent(what, paper, Value::CommitRate, &load.id(shards, percent));
    vec![
        claim("table 4: committed of attempted, A, 20 % on two of two shards", "99.74 %", A, 2, 20),
        claim("the same, of four shards", "99.58 %", A, 4, 20),
        claim("of eight", "97.98 %", A, 8, 20),
        claim("A, 100 % on two of two shards", "99.13 %", A, 2, 100),
        claim("of four", "98.87 %", A, 4, 100),
        claim("of eight", "96.72 %", A, 8, 100),
        claim("B, 20 % on two of two shards", "99.85 %", B, 2, 20),
        claim("of four", "99.70 %", B, 4, 20),
        claim("of eight", "99.04 %", B, 8, 20),
        claim("B, 100 % on two of two shards", "99.34 %", B, 2, 100),
        claim("of four", "99.20 %", B, 4, 100),
        claim("of eight", "97.84 %", B, 8, 100),
    ]
}

fn cheats(effort: Effort) -> Figure {
    let id = |load: Load, on_two: u32, cheats: u32| format!("{}, {on_two} % on two, {cheats} % cheat", load.letter.to_ascii_uppercase());
    let one = |load: Load, on_two: u32, cheats: u32| -> Point {
        let (share, part) = (f64::from(on_two) / 100.0, f64::from(cheats) / 100.0);
        let bench =
            format!("{} --clients {CLIENTS} --multi-shard {share} --byzantine-clients {part} --strategy stall-early", load.bench(effort));
        point(id(load, on_two, cheats), f64::from(cheats), on_shards(effort, SHARDS_CHEATED, A, "--clients 2"), &bench)
    };
    let line = |load: Load, on_two: u32| (format!("{on_two} % on two shards"), CHEATS.map(|cheats| one(load, on_two, cheats)).to_vec());
    let panel = |title, y, load: Load| Panel {
        title,
        x: "clients that cheat, %",
        y,
        layout: Layout::Lines,
        series: [20, 60, 100].iter().map(|on_two| line(load, *on_two)).collect(),
    };
    let claim = |what, paper, value, load: Load, on_two| Claim::change(what, paper, value, &id(load, on_two, 32), &id(load, on_two, 0));
    Figure {
        name: "augustus-5",
        title: "Clients that leave their transactions",
        source: "Augustus, §4.3, figure 5",
        about: "Four shards; 128 clients (320 in the paper), of which some cheat: their transactions are all over two shards, and they never end one \
                (attack a.2). They begin as many as honest clients do. Whoever meets such a transaction finishes it; what nobody meets, replicas finish \
                after some seconds, which the paper's do not. Cheats have room for 16 pending transactions on a shard together, once others had to end some \
                dozens for them; the paper's submit one at a time each. The paper's text gives no numbers for throughput; honest clients alone would fall to \
                68 % where 32 % of the clients cheat.",
        panels: vec![
            panel("Workload A", Value::Throughput, A),
            panel("Workload C", Value::Throughput, C),
            panel("Workload A: latency", Value::LatencyMs, A),
            panel("Workload C: latency", Value::LatencyMs, C),
            panel("Workload A, of each honest client", Value::Honest, A),
            panel("Workload C, of each honest client", Value::Honest, C),
        ],
        claims: vec![
            claim(
                "A, 20 % on two shards: throughput of the honest, 32 % cheat, of nobody",
                "as the part that cheats: −32 %",
                Value::Throughput,
                A,
                20,
            ),
            claim("the same, 60 % on two", "as the part that cheats: −32 %", Value::Throughput, A, 60),
            claim("the same, 100 % on two", "as the part that cheats: −32 %", Value::Throughput, A, 100),
            claim("C, 20 % on two", "as the part that cheats: −32 %", Value::Throughput, C, 20),
            claim("the same, 100 % on two", "as the part that cheats: −32 %", Value::Throughput, C, 100),
            claim("A, 20 % on two: latency, 32 % cheat, of nobody", "+35 %", Value::LatencyMs, A, 20),
            claim("A, 100 % on two", "+3 %", Value::LatencyMs, A, 100),
            claim("C, 20 % on two", "+38 %", Value::LatencyMs, C, 20),
            claim("C, 100 % on two", "+13 %", Value::LatencyMs, C, 100),
        ],
    }
}
