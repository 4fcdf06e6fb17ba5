//! What a figure is: which clusters and workloads it runs, how it shows their numbers, what its paper claims.

use std::collections::BTreeSet;

use serde_json::Value as Json;

/// For the guess how long a figure takes: a run's start and end, a cluster's start and end, and how fast tables are filled.
const RUN_SECONDS: f64 = 1.0;
const START_SECONDS: f64 = 2.0;
const KEYS_LOADED_A_SECOND: f64 = 40_000.0;

/// How many servers for ZooKeeper's clients there are.
pub const SERVERS: usize = 3;
/// The most seconds that they run before they are measured for the first time.
const SERVERS_WARMUP: f64 = 3.0;
/// The same of ZooKeeper, which Java compiles meanwhile.
const JAVA_WARMUP: f64 = 12.0;

/// How much is done for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// What it is called.
    pub name: &'static str,
    /// Keys of a table.
    pub keys: u64,
    /// How long one run is measured, in seconds.
    pub seconds: f64,
    /// How long it runs before, in seconds.
    pub warmup: f64,
    /// How much longer the first run after a cluster's start runs before, in seconds: connections, caches and the estimates
    /// of distance are cold then.
    pub start_warmup: f64,
    /// How long, in seconds, a table that was just filled may take to come to rest on disk. While it is folded and merged, the cores are
    /// busy with that, and what is measured says nothing.
    pub rest: f64,
    /// How often each point is measured.
    pub runs: usize,
}

impl Effort {
    /// About an hour for all figures.
    pub const QUICK: Self = Self { name: "quick", keys: 20_000, seconds: 0.8, warmup: 0.4, start_warmup: 1.0, rest: 0.0, runs: 2 };
    /// About six hours for all figures.
    pub const FULL: Self = Self { name: "full", keys: 1_000_000, seconds: 3.0, warmup: 0.8, start_warmup: 45.0, rest: 180.0, runs: 3 };
}

/// One figure of a paper, or the part of one that can be measured here.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is called on the command line and in file names.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where it stands: paper, section, number.
    pub source: &'static str,
    /// What is measured here, and how that differs from the paper.
    pub about: &'static str,
    /// Its charts.
    pub panels: Vec<Panel>,
    /// What the paper's text says of it in numbers.
    pub claims: Vec<Claim>,
}

/// One chart of a figure.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: &'static str,
    /// What is along it.
    pub x: &'static str,
    /// What goes up.
    pub y: Value,
    /// How it is drawn.
    pub layout: Layout,
    /// Its series, by name, each with its points.
    pub series: Vec<(String, Vec<Point>)>,
}

/// How a chart is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Bars in groups, a group for each label.
    Bars,
    /// Lines over the points' own numbers.
    Lines,
    /// The same, in even factors.
    LinesOverLog,
    /// Lines whose points go right with something measured.
    Over(Value),
    /// The same, in even factors both ways.
    OverLog(Value),
}

/// One thing to measure.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its name within the figure. Points of the same name are one, shown in several charts.
    pub id: String,
    /// Where it stands along the chart, for people.
    pub label: String,
    /// The same as a number.
    pub x: f64,
    /// What it runs on.
    pub cluster: Cluster,
    /// The arguments of `bezant bench`: the workload and its flags.
    pub bench: Vec<String>,
    /// How many times as long as others it is measured: more than once where little happens in a second.
    pub stretch: u32,
}

/// A cluster to measure. Points of equal ones share one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    /// Where its data is: clusters of equal ones are one, started anew.
    pub data: Data,
    /// What is changed in its files before it starts, and changed back afterwards.
    pub settings: Vec<Setting>,
    /// The map of injected latency that it runs under.
    pub regions: Option<&'static str>,
    /// The rule that its replicas break on purpose.
    pub broken_rule: Option<&'static str>,
    /// Three servers for ZooKeeper's clients, instead of all this.
    pub servers: Option<Servers>,
}

/// Three servers for ZooKeeper's clients, each started from a `zoo.cfg`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Servers {
    /// Whose they are.
    pub program: Program,
    /// What every `zoo.cfg` says besides which servers there are, and where: lines of `key=value`.
    pub lines: Vec<&'static str>,
}

/// A program that serves ZooKeeper's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Ours.
    Bezant,
    /// ZooKeeper itself, where somebody has it.
    ZooKeeper,
}

/// A line of a file of settings, in every folder of the cluster that has such a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// `node.toml` or `client.toml`.
    pub file: &'static str,
    /// The setting, as in `batch_max`.
    pub name: &'static str,
    /// Its value, as the file has it.
    pub value: String,
}

/// A cluster's folder, filled.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Data {
    /// Flags of `bezant init`.
    pub init: Vec<String>,
    /// Tables to fill: the workload of `bezant bench` and its flags.
    pub tables: Vec<Vec<String>>,
}

/// A number that the paper's text gives, and the same of ours.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What it is, as in "throughput without signatures, RW-U".
    pub what: &'static str,
    /// What the paper has.
    pub paper: &'static str,
    /// What is compared.
    pub value: Value,
    /// The point that it is of,
    pub of: String,
    /// divided by this one's, where it is a comparison.
    pub over: Option<String>,
    /// How it is written.
    pub form: Form,
    /// Where it stands in a table, which is then called `what`.
    pub cell: Option<Cell>,
}

/// A place in a table of a paper's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What the row is called.
    pub row: String,
    /// What the column is called.
    pub column: &'static str,
}

impl Claim {
    /// So many times as much.
    pub fn times(what: &'static str, paper: &'static str, value: Value, of: &str, over: &str) -> Self {
        Self { what, paper, value, of: of.to_owned(), over: Some(over.to_owned()), form: Form::Times, cell: None }
    }

    /// More or less by such a part.
    pub fn change(what: &'static str, paper: &'static str, value: Value, of: &str, over: &str) -> Self {
        Self { form: Form::Change, ..Self::times(what, paper, value, of, over) }
    }

    /// Such a part of a whole.
    pub fn percent(what: &'static str, paper: &'static str, value: Value, of: &str) -> Self {
        Self { what, paper, value, of: of.to_owned(), over: None, form: Form::Percent, cell: None }
    }

    /// So much.
    pub fn number(what: &'static str, paper: &'static str, value: Value, of: &str) -> Self {
        Self { form: Form::Number, ..Self::percent(what, paper, value, of) }
    }

    /// Less by such a part, in a table's cell.
    pub fn less(cell: Cell, table: &'static str, paper: &'static str, value: Value, of: &str, over: &str) -> Self {
        Self { form: Form::Less, cell: Some(cell), ..Self::times(table, paper, value, of, over) }
    }
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `3.7×`
    Times,
    /// `+19 %`: a ratio less one.
    Change,
    /// `96 %`: a part of one.
    Percent,
    /// `20`: by how many percent a ratio is less than one.
    Less,
    /// `30,294`
    Number,
}

/// One number of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Committed transactions a second.
    Throughput,
    /// The mean latency in milliseconds.
    LatencyMs,
    /// CPU time of all processes for one transaction, in microseconds.
    CpuUs,
    /// Committed of attempted.
    CommitRate,
    /// Decided in one round trip.
    FastPath,
    /// Committed transactions a second of each client that does not cheat.
    Honest,
    /// Which part of all transactions was faulty, in percent.
    Faulty,
    /// Transactions a second if each replica had one core of its own, and nothing else were in the way: from the CPU
    /// time of the replicas.
    CoreBound,
    /// Requests that servers for ZooKeeper's clients answered a second.
    Requests,
    /// The median time from such a request to its answer, in milliseconds.
    AnswerMs,
    /// CPU time of the servers for such a request, in microseconds.
    ServerCpuUs,
    /// CPU time of the load for the same.
    LoadCpuUs,
}

impl Value {
    /// What it is, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Self::Throughput => "committed transactions a second",
            Self::LatencyMs => "mean latency, ms",
            Self::CpuUs => "CPU time a transaction, µs",
            Self::CommitRate => "committed of attempted",
            Self::FastPath => "decided in one round trip",
            Self::Honest => "tx/s of an honest client",
            Self::Faulty => "faulty transactions, % of all processed",
            Self::CoreBound => "tx/s with a core for each replica (from CPU time)",
            Self::Requests => "requests a second",
            Self::AnswerMs => "median latency, ms",
            Self::ServerCpuUs => "servers' CPU time a request, µs",
            Self::LoadCpuUs => "load's CPU time a request, µs",
        }
    }

    /// The same in a table's head.
    pub fn short(self) -> &'static str {
        match self {
            Self::Throughput => "tx/s",
            Self::CpuUs => "CPU µs a tx",
            Self::CoreBound => "tx/s with a core each",
            Self::Faulty => "faulty, %",
            value => value.title(),
        }
    }

    /// The number in a report of `bezant bench --json` on a cluster of `replicas`, or of `bezant bench-zookeeper --json`; none when it is
    /// not there.
    pub fn of(self, report: &Json, replicas: u64) -> Option<f64> {
        match self {
            Self::Throughput => report["committed_per_second"].as_f64(),
            Self::LatencyMs => Some(report["latency_us"]["mean"].as_f64()? / 1e3),
            Self::CpuUs => report["cpu_us_per_transaction"].as_f64(),
            Self::CommitRate => report["commit_rate"].as_f64(),
            Self::FastPath => report["fast_path_rate"].as_f64(),
            Self::Honest => report["byzantine"]["committed_per_second_per_honest_client"].as_f64(),
            Self::Faulty => Some(report["byzantine"]["faulty_fraction"].as_f64()? * 100.0),
            Self::CoreBound => {
                let (seconds, committed) = (report["cpu_seconds"]["replicas"].as_f64()?, report["committed"].as_f64()?);
                (seconds > 0.0).then(|| committed * replicas as f64 / seconds)
            }
            Self::Requests => report["per_second"].as_f64(),
            Self::AnswerMs => Some(report["p50_us"].as_f64()? / 1e3),
            Self::ServerCpuUs => report["server_cpu_us"].as_f64(),
            Self::LoadCpuUs => report["client_cpu_us"].as_f64(),
        }
    }
}

impl Cluster {
    /// The value of a flag of `init`.
    fn flag(&self, name: &str) -> Option<u64> {
        let at = self.data.init.iter().position(|word| word == name)?;
        self.data.init.get(at + 1)?.parse().ok()
    }

    /// How many replicas it has.
    pub fn replicas(&self) -> u64 {
        if self.servers.is_some() {
            return SERVERS as u64;
        }
        let times = if self.data.init.iter().any(|word| word == "augustus") { 3 } else { 5 };
        (times * self.flag("--faults").unwrap_or(1) + 1) * self.flag("--shards").unwrap_or(1)
    }

    /// How much longer, in seconds, the first run after its start runs before it is measured.
    pub fn start_warmup(&self, effort: Effort) -> f64 {
        match self.servers.as_ref().map(|servers| servers.program) {
            None => effort.start_warmup,
            // They have no table to fold, nor distances to find out.
            Some(Program::Bezant) => effort.start_warmup.min(SERVERS_WARMUP),
            Some(Program::ZooKeeper) => JAVA_WARMUP,
        }
    }

    /// Whether it is of a program that is measured only where somebody has it.
    fn is_foreign(&self) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.program == Program::ZooKeeper)
    }
}

impl Figure {
    /// Every point once, in order.
    pub fn points(&self) -> Vec<&Point> {
        let mut points: Vec<&Point> = Vec::new();
        for point in self.panels.iter().flat_map(|panel| panel.series.iter().flat_map(|(_, points)| points)) {
            if points.iter().all(|known| known.id != point.id) {
                points.push(point);
            }
        }
        points
    }

    /// Whether it is about servers for ZooKeeper's clients.
    pub fn is_of_servers(&self) -> bool {
        self.points().iter().any(|point| point.cluster.servers.is_some())
    }

    /// About how long measuring it takes, in seconds, on a machine like ours, without ZooKeeper.
    pub fn seconds(&self, effort: Effort) -> f64 {
        let points: Vec<&Point> = self.points().into_iter().filter(|point| !point.cluster.is_foreign()).collect();
        let clusters: BTreeSet<&Cluster> = points.iter().map(|point| &point.cluster).collect();
        let tables: usize =
            clusters.iter().map(|cluster| &cluster.data).collect::<BTreeSet<_>>().iter().map(|data| data.tables.len()).sum();
        let window: f64 = points.iter().map(|point| effort.seconds * f64::from(point.stretch) + effort.warmup + RUN_SECONDS).sum();
        let starts: f64 = clusters.iter().map(|cluster| cluster.start_warmup(effort) + START_SECONDS).sum();
        let filling = effort.keys as f64 / KEYS_LOADED_A_SECOND + effort.rest / 3.0;
        effort.runs as f64 * (window + starts) + tables as f64 * filling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_found_in_a_report() {
        let report = json!({
            "committed": 1_000, "committed_per_second": 250.0, "commit_rate": 0.5, "fast_path_rate": null,
            "latency_us": {"mean": 1_500.0}, "cpu_us_per_transaction": 400.0, "cpu_seconds": {"clients": 0.1, "replicas": 3.0},
        });
        assert_eq!(Value::Throughput.of(&report, 6), Some(250.0));
        assert_eq!(Value::LatencyMs.of(&report, 6), Some(1.5));
        assert_eq!(Value::FastPath.of(&report, 6), None);
        assert_eq!(Value::CoreBound.of(&report, 6), Some(2_000.0));
        assert_eq!((Value::Honest.of(&report, 6), Value::Faulty.of(&report, 6)), (None, None));
        let report = json!({"byzantine": {"committed_per_second_per_honest_client": 12.5, "faulty_fraction": 0.25}});
        assert_eq!((Value::Honest.of(&report, 6), Value::Faulty.of(&report, 6)), (Some(12.5), Some(25.0)));
        let report = json!({"per_second": 40_000.0, "p50_us": 1_500, "server_cpu_us": null, "client_cpu_us": 6.5});
        let values = [Value::Requests, Value::AnswerMs, Value::ServerCpuUs, Value::LoadCpuUs].map(|value| value.of(&report, 3));
        assert_eq!(values, [Some(40_000.0), Some(1.5), None, Some(6.5)]);
    }

    #[test]
    fn a_cluster_knows_its_size() {
        let init = |text: &str| {
            let init = text.split_whitespace().map(str::to_owned).collect();
            Cluster { data: Data { init, ..Data::default() }, ..Cluster::default() }
        };
        assert_eq!([init("").replicas(), init("--shards 3").replicas(), init("--faults 2 --shards 2").replicas()], [6, 18, 22]);
        assert_eq!(init("--engine augustus --shards 2").replicas(), 8);
        let servers = |program| Cluster { servers: Some(Servers { program, lines: Vec::new() }), ..Cluster::default() };
        assert_eq!(servers(Program::Bezant).replicas(), 3);
        let warmups = [init(""), servers(Program::Bezant), servers(Program::ZooKeeper)].map(|cluster| cluster.start_warmup(Effort::FULL));
        assert_eq!(warmups, [45.0, 3.0, 12.0]);
    }
}
