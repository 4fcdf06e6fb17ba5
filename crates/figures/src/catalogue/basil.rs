//! The figures of Basil (SOSP 2021, section 6).

use super::{bar, cluster, point, set};
use crate::plan::{Claim, Cluster, Effort, Figure, Layout, Panel, Point, Value};

/// Loop clients that keep the two shared cores of a small machine busy.
const CLIENTS: u32 = 128;
/// RW-Z is bound by contention: more loop clients than this only abort more.
const CLIENTS_SKEWED: u32 = 32;
/// TPC-C too: one loop client for each of its warehouses.
const WAREHOUSES: u32 = 20;
/// The number of loop clients of figures 7a and 7b, of which some cheat.
const CLIENTS_SOME_CHEAT: u32 = 20;

pub fn figures(effort: Effort) -> Vec<Figure> {
    vec![
        applications(effort),
        signatures(effort),
        read_quorums(effort),
        shards(effort),
        fast_path(effort),
        reply_batches(effort),
        cheating_clients(effort, "basil-7a", "Clients that cheat, all keys alike", "Basil, §6.4, figure 7a", &MIXES[0]),
        cheating_clients(effort, "basil-7b", "Clients that cheat, hot keys", "Basil, §6.4, figure 7b", &MIXES[1]),
    ]
}

/// The paper's microbenchmark (§6.2): uniform, and skewed by 0.9.
struct Mix {
    title: &'static str,
    /// What `bezant bench` calls it.
    workload: &'static str,
    clients: u32,
}

const MIXES: [Mix; 2] =
    [Mix { title: "RW-U", workload: "rw-u", clients: CLIENTS }, Mix { title: "RW-Z", workload: "rw-z", clients: CLIENTS_SKEWED }];

impl Mix {
    fn bench(&self, effort: Effort) -> String {
        format!("{} --keys {} --clients {}", self.workload, effort.keys, self.clients)
    }
}

fn table(effort: Effort) -> String {
    format!("rw-u --keys {}", effort.keys)
}

/// Bars over the two mixes, a series for each kind of cluster: its name in points, its name for people, and it.
fn over_mixes(effort: Effort, ways: [(&str, &str, Cluster); 2]) -> Vec<(String, Vec<Point>)> {
    let one =
        |id: &str, cluster: &Cluster, mix: &Mix| bar(format!("{} {id}", mix.workload), mix.title, cluster.clone(), &mix.bench(effort));
    ways.iter().map(|(id, name, cluster)| ((*name).to_owned(), MIXES.iter().map(|mix| one(id, cluster, mix)).collect())).collect()
}

const SIGNED_OR_NOT: [(&str, &str, &str); 2] = [("signed", "signatures on", ""), ("unsigned", "signatures off", "--signatures off")];

fn applications(effort: Effort) -> Figure {
    // A fifth of the rows of other tables: checking every row after every run would take longer than the run.
    let people = effort.keys / 5;
    let scale = (effort.keys as f64 / 1e6 * 0.02).max(0.002);
    let tables = [
        format!("tpcc --warehouses {WAREHOUSES} --scale {scale}"),
        format!("smallbank --keys {people} --hot 1000"),
        format!("retwis --keys {people}"),
    ];
    let all = [("TPC-C", "tpcc", WAREHOUSES), ("Smallbank", "smallbank", CLIENTS), ("Retwis", "retwis", CLIENTS)];
    let one = |id: &str, init: &str, at: usize| {
        let (name, workload, clients) = all[at];
        let cluster = cluster(init, &tables.each_ref().map(String::as_str));
        bar(format!("{workload} {id}"), name, cluster, &format!("{} --clients {clients}", tables[at]))
    };
    let series: Vec<(String, Vec<Point>)> =
        SIGNED_OR_NOT.iter().map(|(id, name, init)| ((*name).to_owned(), (0..all.len()).map(|at| one(id, init, at)).collect())).collect();
    let panel = |title, y| Panel { title, x: "", y, layout: Layout::Bars, series: series.clone() };
    Figure {
        name: "basil-4",
        title: "Three applications",
        source: "Basil, §6.1, figures 4a and 4b",
        about: "TPC-C with 20 warehouses and one client for each, Smallbank with 1,000 hot customers in nine of ten transactions, Retwis \
                by Zipf 0.75. The paper's text gives ratios to TAPIR, TxHotstuff and TxBFT-SMaRt, which are not measured here. The \
                baseline is our own mode without signatures, which tolerates no Byzantine replica. Tables are smaller than the paper's, \
                as the commands say; with fewer items, TPC-C has more conflicts. A transaction sends its reads together where it can; \
                the paper's sends them one by one. After each run, the consistency conditions of the data were checked.",
        panels: vec![
            panel("4a: throughput", Value::Throughput),
            panel("4b: latency", Value::LatencyMs),
            panel("Commit rate", Value::CommitRate),
        ],
        claims: vec![
            Claim::percent("decided in one round trip, TPC-C", "96 %", Value::FastPath, "tpcc signed"),
            Claim::percent("committed of attempted, Smallbank", "93 %", Value::CommitRate, "smallbank signed"),
            Claim::percent("committed of attempted, Retwis", "98 %", Value::CommitRate, "retwis signed"),
            Claim::times("without signatures, TPC-C", "not given", Value::Throughput, "tpcc unsigned", "tpcc signed"),
            Claim::times("without signatures, Smallbank", "not given", Value::Throughput, "smallbank unsigned", "smallbank signed"),
            Claim::times("without signatures, Retwis", "not given", Value::Throughput, "retwis unsigned", "retwis signed"),
        ],
    }
}

fn signatures(effort: Effort) -> Figure {
    let series = over_mixes(effort, SIGNED_OR_NOT.map(|(id, name, init)| (id, name, cluster(init, &[&table(effort)]))));
    let panel = |title, y| Panel { title, x: "", y, layout: Layout::Bars, series: series.clone() };
    Figure {
        name: "basil-5a",
        title: "What signatures cost",
        source: "Basil, §6.2, figure 5a",
        about: "Two reads and two writes a transaction, uniform keys (RW-U) or keys by Zipf 0.9 (RW-Z), with and without Ed25519 \
                signatures on votes and decisions. The paper also signs replies to reads, and verifies each signature by itself. Here \
                replies need no signature, and roots are verified in batches and once. So there is less to save.",
        panels: vec![panel("Throughput", Value::Throughput), panel("Cost", Value::CpuUs)],
        claims: vec![
            Claim::times("throughput without signatures, RW-U", "3.7×", Value::Throughput, "rw-u unsigned", "rw-u signed"),
            Claim::times("throughput without signatures, RW-Z", "up to 4.6×", Value::Throughput, "rw-z unsigned", "rw-z signed"),
        ],
    }
}

fn read_quorums(effort: Effort) -> Figure {
    let bench = format!("ycsb-c --ops 24 --keys {} --clients {CLIENTS_SKEWED}", effort.keys);
    let quorums = ["1", "f+1", "2f+1"];
    let one = |quorum: &str| {
        let batches = set(cluster("", &[&table(effort)]), "node.toml", "batch_max", "16".to_owned());
        let cluster = set(batches, "client.toml", "read_quorum", format!("\"{quorum}\""));
        bar(format!("quorum {quorum}"), quorum, cluster, &bench)
    };
    let series = vec![("24 reads a transaction".to_owned(), quorums.map(one).to_vec())];
    let panel = |title, y| Panel { title, x: "replicas that a read asks", y, layout: Layout::Bars, series: series.clone() };
    Figure {
        name: "basil-5b",
        title: "How many replicas a read asks",
        source: "Basil, §6.2, figure 5b",
        about: "24 reads a transaction, reply batches of at most 16. Here a transaction sends its reads together in one message, and \
                replies carry no signature, so asking more replicas costs little; the paper's replicas sign each batch of replies. A \
                read-only transaction needs no vote here when 3f+1 replicas validate its reads. At its commit it asks those that it has \
                not asked yet, so a smaller read quorum leaves more to ask then.",
        panels: vec![panel("Throughput", Value::Throughput), panel("Cost", Value::CpuUs)],
        claims: vec![
            Claim::change("throughput asking f+1 replicas instead of one", "−20 %", Value::Throughput, "quorum f+1", "quorum 1"),
            Claim::change("asking 2f+1 instead of f+1", "−16 %", Value::Throughput, "quorum 2f+1", "quorum f+1"),
        ],
    }
}

fn shards(effort: Effort) -> Figure {
    let bench = format!("rw-u --reads 3 --writes 3 --keys {} --clients {CLIENTS}", effort.keys);
    let one = |id: &str, init: &str, shards: u32| {
        let shards_flag = if shards == 1 { String::new() } else { format!("--shards {shards}") };
        let cluster = cluster(&format!("{shards_flag} {init}"), &[&table(effort)]);
        bar(format!("shards {shards} {id}"), &shards.to_string(), cluster, &bench)
    };
    let series: Vec<(String, Vec<Point>)> =
        SIGNED_OR_NOT.iter().map(|(id, name, init)| ((*name).to_owned(), [1, 2, 3].map(|shards| one(id, init, shards)).to_vec())).collect();
    let panel = |title, y| Panel { title, x: "shards", y, layout: Layout::Bars, series: series.clone() };
    Figure {
        name: "basil-5c",
        title: "What more shards bring",
        source: "Basil, §6.2, figure 5c",
        about: "Three reads and three writes a transaction, one to three shards of six replicas. All replicas share this machine's \
                cores, so more shards bring no throughput here. The last chart shows what the replicas' CPU time would allow if each had \
                a core of its own and CPU were the only bottleneck.",
        panels: vec![
            panel("All on this machine", Value::Throughput),
            panel("Cost", Value::CpuUs),
            panel("With a core for each replica", Value::CoreBound),
        ],
        claims: vec![
            Claim::times(
                "three shards against one, with signatures, by CPU time",
                "1.3×",
                Value::CoreBound,
                "shards 3 signed",
                "shards 1 signed",
            ),
            Claim::times(
                "three shards against one, without signatures, by CPU time",
                "1.9×",
                Value::CoreBound,
                "shards 3 unsigned",
                "shards 1 unsigned",
            ),
            Claim::change("CPU a transaction, two shards against one", "not given", Value::CpuUs, "shards 2 signed", "shards 1 signed"),
            Claim::change("CPU a transaction, three shards against one", "not given", Value::CpuUs, "shards 3 signed", "shards 1 signed"),
        ],
    }
}

fn fast_path(effort: Effort) -> Figure {
    let plain = cluster("", &[&table(effort)]);
    let logged = set(plain.clone(), "client.toml", "fast_path", "\"off\"".to_owned());
    let series = over_mixes(effort, [("fast", "fast path on", plain), ("logged", "fast path off", logged)]);
    let panel = |title, y| Panel { title, x: "", y, layout: Layout::Bars, series: series.clone() };
    Figure {
        name: "basil-6a",
        title: "What the fast path brings",
        source: "Basil, §6.3, figure 6a",
        about: "The same transactions, decided by unanimous votes where possible, or always logged first.",
        panels: vec![panel("Throughput", Value::Throughput), panel("Latency", Value::LatencyMs)],
        claims: vec![
            Claim::change("throughput with the fast path, RW-U", "+19 %", Value::Throughput, "rw-u fast", "rw-u logged"),
            Claim::change("throughput with the fast path, RW-Z", "+49 %", Value::Throughput, "rw-z fast", "rw-z logged"),
        ],
    }
}

fn reply_batches(effort: Effort) -> Figure {
    let one = |mix: &Mix, size: u32| {
        let cluster = set(cluster("", &[&table(effort)]), "node.toml", "batch_max", size.to_string());
        point(format!("{} batches of {size}", mix.workload), f64::from(size), cluster, &mix.bench(effort))
    };
    let line = |mix: &Mix| (mix.title.to_owned(), [1, 2, 4, 8, 16, 32, 64].map(|size| one(mix, size)).to_vec());
    let series: Vec<(String, Vec<Point>)> = MIXES.iter().map(line).collect();
    let panel = |title, y| Panel { title, x: "most replies under one signature", y, layout: Layout::LinesOverLog, series: series.clone() };
    let claim = |what, paper, of: &str, over: &str| Claim::times(what, paper, Value::Throughput, of, over);
    Figure {
        name: "basil-6b",
        title: "What batches of replies bring",
        source: "Basil, §6.3, figure 6b",
        about: "The most replies that a replica signs at once. Here a batch has all replies of one turn of the replica's loop, and no \
                reply waits for a batch to fill. The paper's replicas wait, so under contention large batches reduce their throughput.",
        panels: vec![panel("Throughput", Value::Throughput), panel("Cost", Value::CpuUs)],
        claims: vec![
            claim("batches of 16 against none, RW-U", "4×, its best", "rw-u batches of 16", "rw-u batches of 1"),
            claim("batches of 32 against 16, RW-U", "no more", "rw-u batches of 32", "rw-u batches of 16"),
            claim("batches of 4 against none, RW-Z", "1.4×, its best", "rw-z batches of 4", "rw-z batches of 1"),
            claim("batches of 32 against 4, RW-Z", "less", "rw-z batches of 32", "rw-z batches of 4"),
        ],
    }
}

/// Which part of the clients cheats. The paper's claim is about three in ten.
const PARTS: [f64; 3] = [0.1, 0.3, 0.5];
/// The rule that replicas must break for equivocation that is forced.
const GULLIBLE: &str = "DecisionUnjustified";
/// How they cheat: a name, the flags, and at which replicas.
const CHEATS: [(&str, &str, At); 8] = [
    // The same clients with the same connections, but honest: what the others are compared with.
    ("they behave", "stall-late --faulty-share 0", At::Patient),
    ("they behave, limited", "stall-late --faulty-share 0", At::Ordinary),
    ("stall-early", "stall-early", At::Patient),
    ("stall-late", "stall-late", At::Patient),
    ("equiv-real", "equiv-real", At::Patient),
    ("equiv-forced", "equiv-forced", At::Gullible),
    ("stall-early, hurried", "stall-early --hurry", At::Patient),
    ("stall-early, hurried, limited", "stall-early --hurry", At::Ordinary),
];

/// The replicas that clients cheat.
#[derive(Clone, Copy)]
enum At {
    /// As they come: a client that leaves too much to others is refused.
    Ordinary,
    /// As in the paper, without that limit.
    Patient,
    /// Without that limit, and breaking a rule.
    Gullible,
}

impl At {
    fn cluster(self, effort: Effort) -> Cluster {
        let flags = if matches!(self, Self::Ordinary) { "--clients 2" } else { "--clients 2 --abandoned-per-second 1000000" };
        let broken_rule = matches!(self, Self::Gullible).then_some(GULLIBLE);
        Cluster { broken_rule, ..cluster(flags, &[&table(effort)]) }
    }

    /// The run in which nobody cheats.
    fn nobody(self) -> &'static str {
        match self {
            Self::Ordinary => "nobody, limited",
            Self::Patient => "nobody",
            Self::Gullible => "nobody, rule broken",
        }
    }
}

fn cheating_clients(effort: Effort, name: &'static str, title: &'static str, source: &'static str, mix: &Mix) -> Figure {
    let bench = format!("{} --keys {} --clients {CLIENTS_SOME_CHEAT}", mix.workload, effort.keys);
    let one = |id: String, part: f64, flags: &str, at: At| {
        point(id, part, at.cluster(effort), &format!("{bench} --byzantine-clients {part} --strategy {flags}"))
    };
    let line = |(name, flags, at): (&str, &str, At)| {
        // Nobody cheats: the same run, whatever the strategy would have been.
        let nobody = one(at.nobody().to_owned(), 0.0, "stall-late", at);
        let some = PARTS.map(|part| one(format!("{name} {part}"), part, flags, at));
        (name.to_owned(), std::iter::once(nobody).chain(some).collect())
    };
    let series: Vec<(String, Vec<Point>)> = CHEATS.map(line).to_vec();
    let panel = |title, y, layout| Panel { title, x: "part of the clients that cheats", y, layout, series: series.clone() };
    let claim = |what, of| Claim::change(what, "less than −25 % in the worst case", Value::Honest, of, "they behave 0.3");
    Figure {
        name,
        title,
        source,
        about: "20 clients, some of which misbehave with every transaction: they request votes and abandon it (stall-early), decide it \
                and inform no replica (stall-late), log both decisions where the votes happen to justify both (equiv-real), or always, \
                at replicas that are broken on purpose and accept that (equiv-forced). A client that meets an abandoned transaction must \
                finish it. As in the paper, the horizontal axis is the share of all processed transactions that was faulty. Byzantine \
                clients begin as many transactions as correct ones, which wait for the outcome of each. The paper's begin the next one \
                at once, and so does the series `hurried`; then a few clients cause most transactions. Byzantine clients have keys of \
                their own. Replicas refuse a client that abandons too many transactions (`abandoned_per_second`); this limit is off in \
                all series that are not `limited`. Byzantine clients are a process with connections of its own, which alone costs the \
                others throughput. So the baseline is the same setup with these clients behaving correctly.",
        panels: vec![
            panel("Over faulty transactions", Value::Honest, Layout::Over(Value::Faulty)),
            panel("Over clients that cheat", Value::Honest, Layout::Lines),
            panel("Latency of the honest", Value::LatencyMs, Layout::Lines),
        ],
        claims: vec![
            claim("an honest client's throughput, 30 % of clients stall-early", "stall-early 0.3"),
            claim("the same, stall-late", "stall-late 0.3"),
            claim("the same, equiv-real", "equiv-real 0.3"),
            claim("the same, stall-early, hurried", "stall-early, hurried 0.3"),
            Claim::change(
                "the same, with the limit",
                "less than −25 % in the worst case",
                Value::Honest,
                "stall-early, hurried, limited 0.3",
                "they behave, limited 0.3",
            ),
            Claim::change(
                "the same, equiv-forced, over nobody at the same replicas",
                "a significant drop under skew",
                Value::Honest,
                "equiv-forced 0.3",
                "nobody, rule broken",
            ),
        ],
    }
}
