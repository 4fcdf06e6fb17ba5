//! What came out: one object for programs, one table for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value as Json, json};
use workload::{JournalCheck, Readiness, Verdict, Workload};

use crate::args::BenchArgs;
use crate::byzantine::ByzantineReport;
use crate::findings;
use crate::measure::{Counts, Tally};
use crate::pool::PoolReport;
use crate::round;
use crate::runner::Measured;

/// What [`crate::run`] gives. As JSON it is the object inside.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// A workload was run.
    Run(Box<RunReport>),
    /// A table was filled, and nothing else was asked.
    Load(LoadReport),
    /// A journal was verified.
    Journal(JournalReport),
}

/// What a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The workload's name.
    pub workload: &'static str,
    /// The cluster's protocol.
    pub engine: &'static str,
    /// How many loop clients ran at once.
    pub clients: u32,
    /// How long was measured.
    pub seconds: f64,
    /// How many transactions committed in that time.
    pub committed: u64,
    /// The same a second.
    pub committed_per_second: f64,
    /// How many attempts that took, those given up included.
    pub attempted: u64,
    /// Committed of attempted; 0 when nothing was attempted.
    pub commit_rate: f64,
    /// How many transactions were to roll back, and did; they are neither committed nor attempted.
    #[serde(skip_serializing_if = "is_zero")]
    pub rolled_back: u64,
    /// Commits a minute of one kind of transaction, under the name that the workload has for it.
    #[serde(flatten)]
    pub per_minute: BTreeMap<&'static str, f64>,
    /// The share decided in one round trip; none when there was nothing to decide on.
    pub fast_path_rate: Option<f64>,
    /// Of the committed, those that only read and needed no vote.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_only: u64,
    /// From first attempt to commit.
    pub latency_us: LatencyUs,
    /// CPU time used in the window.
    pub cpu_seconds: CpuSeconds,
    /// CPU time of clients and replicas together for one committed transaction, where the replicas' is known.
    pub cpu_us_per_transaction: Option<f64>,
    /// Transactions given up in the window, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// The same by kind of transaction, for workloads that have several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub transactions: BTreeMap<&'static str, KindReport>,
    /// What the pools did, if there were any. `committed` counts the transactions in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolReport>,
    /// Whether the promise held, for workloads that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invariant: Option<Invariant>,
    /// Why its last check could not be made, if it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
    /// What clients that cheat did meanwhile, where some were asked to; all else is about the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byzantine: Option<ByzantineReport>,
    /// What was chosen.
    pub settings: BTreeMap<&'static str, Json>,
}

/// What was measured of one kind of transaction.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    /// How many committed.
    pub committed: u64,
    /// How many attempts that took, those given up included.
    pub attempted: u64,
    /// How many attempts were aborted or failed.
    pub aborted: u64,
    /// How many were to roll back, and did.
    pub rolled_back: u64,
    /// The share decided in one round trip; none when there was nothing to decide on.
    pub fast_path_rate: Option<f64>,
    /// Of the committed, those that only read and needed no vote.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_only: u64,
    /// From first attempt to commit.
    pub latency_us: LatencyUs,
    /// Those given up, by the kind of error.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<&'static str, u64>,
}

/// Latencies in microseconds; all 0 when nothing committed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyUs {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 95 of a hundred were faster.
    pub p95: u64,
    /// 99 of a hundred were faster.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// CPU time in seconds, user and system together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuSeconds {
    /// Of the process that ran the clients.
    pub clients: f64,
    /// Of all replicas started by `bezant up` on this machine; none when there are none, or one ended meanwhile.
    pub replicas: Option<f64>,
}

/// Whether a workload's promise held.
#[derive(Clone, Debug, Serialize)]
pub struct Invariant {
    /// How often it was checked.
    pub checked: u64,
    /// Whether it always held.
    pub held: bool,
    /// What was found otherwise, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<String>,
}

/// What filling a table took.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The workload's name.
    pub workload: &'static str,
    /// The cluster's protocol.
    pub engine: &'static str,
    /// How many keys were written.
    pub loaded_keys: u64,
    /// How long it took.
    pub seconds: f64,
    /// Keys a second.
    pub keys_per_second: f64,
    /// What was chosen.
    pub settings: BTreeMap<&'static str, Json>,
}

/// What verifying a journal found.
#[derive(Clone, Debug, Serialize)]
pub struct JournalReport {
    /// The workload that wrote it.
    pub workload: &'static str,
    /// The journal.
    pub journal: String,
    /// How many transfers it says were acknowledged.
    pub acknowledged: u64,
    /// How many of them are in the store as they were acknowledged.
    pub found: u64,
    /// How many transfers the store's records hold, over all runs.
    pub recorded: u64,
    /// Whether all were found and the balances agree with the records.
    pub invariant: Invariant,
}

impl Report {
    /// What shows that the workload's invariant does not hold, if it was checked and does not.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        let invariant = match self {
            Self::Run(report) => report.invariant.as_ref()?,
            Self::Load(_) => return None,
            Self::Journal(report) => &report.invariant,
        };
        (!invariant.held).then(|| format!("the invariant is broken: {}", invariant.broken.first().map_or("see above", String::as_str)))
    }

    /// Why it says nothing of the cluster, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let Self::Run(report) = self else { return None };
        let unchecked = report.unchecked.as_ref().map(|why| format!("the check at the end could not be made: {why}"));
        unchecked.or_else(|| (report.committed == 0).then(|| "nothing committed while it was measured".to_owned()))
    }
}

impl RunReport {
    pub(crate) fn new(args: &BenchArgs, workload: &dyn Workload, engine: &'static str, measured: Measured) -> Self {
        let Measured { tally, seconds, cpu_clients, cpu_replicas, readiness, pool, checked, broken, marks: _ } = measured;
        let mut settings = workload.settings();
        settings.insert("connections", json!(args.connections));
        settings.extend(args.pool.settings());
        settings.insert("warmup_seconds", json!(args.warmup));
        settings.insert("cooldown_seconds", json!(args.cooldown));
        if let Some(transactions) = args.transactions {
            settings.insert("transactions", json!(transactions));
        }
        settings.insert("table_filled", json!(readiness == Readiness::Filled));
        let Tally { all, kinds } = tally;
        let committed = all.committed;
        let per_minute = |(name, kind): (&'static str, usize)| {
            let committed = kinds.get(kind).map_or(0, |(_, counts)| counts.committed);
            (name, if seconds > 0.0 { round(committed as f64 * 60.0 / seconds, 1) } else { 0.0 })
        };
        let cpu_us = |replicas: f64| (cpu_clients + replicas) * 1e6 / committed as f64;
        let noted = checked > 0 || !broken.is_empty();
        Self {
            workload: workload.name(),
            engine,
            clients: args.clients,
            seconds: round(seconds, 3),
            committed,
            committed_per_second: if seconds > 0.0 { round(committed as f64 / seconds, 1) } else { 0.0 },
            attempted: all.attempted,
            commit_rate: if all.attempted == 0 { 0.0 } else { round(committed as f64 / all.attempted as f64, 4) },
            rolled_back: all.rolled_back,
            per_minute: workload.per_minute().map(per_minute).into_iter().collect(),
            fast_path_rate: fast_path_rate(&all),
            read_only: all.read_only,
            latency_us: LatencyUs::of(&all),
            cpu_seconds: CpuSeconds { clients: round(cpu_clients, 2), replicas: cpu_replicas.map(|seconds| round(seconds, 2)) },
            cpu_us_per_transaction: cpu_replicas.filter(|_| committed > 0).map(|seconds| round(cpu_us(seconds), 1)),
            errors: all.errors,
            transactions: kinds.iter().map(|(name, counts)| (*name, KindReport::of(counts))).collect(),
            pool,
            invariant: noted.then_some(Invariant { checked, held: broken.is_empty(), broken }),
            unchecked: None,
            byzantine: None,
            settings,
        }
    }

    /// Adds one more check of the invariant.
    pub(crate) fn note_check(&mut self, verdict: Verdict) {
        let invariant = self.invariant.get_or_insert_with(|| Invariant { checked: 0, held: true, broken: Vec::new() });
        invariant.checked += 1;
        invariant.broken.extend(findings(verdict));
        invariant.held = invariant.broken.is_empty();
    }
}

impl KindReport {
    fn of(counts: &Counts) -> Self {
        Self {
            committed: counts.committed,
            attempted: counts.attempted,
            aborted: counts.attempted - counts.committed,
            rolled_back: counts.rolled_back,
            fast_path_rate: fast_path_rate(counts),
            read_only: counts.read_only,
            latency_us: LatencyUs::of(counts),
            errors: counts.errors.clone(),
        }
    }

    /// What people read of it.
    fn line(&self) -> String {
        let [p50, p99] = [self.latency_us.p50, self.latency_us.p99].map(|us| us as f64 / 1e3);
        let mut line =
            format!("{} committed, {} aborted, p50 {p50:.2} ms, p99 {p99:.2} ms", grouped(self.committed), grouped(self.aborted));
        if self.rolled_back > 0 {
            write!(line, ", {} rolled back", grouped(self.rolled_back)).expect("writing to a string succeeds");
        }
        line
    }
}

fn fast_path_rate(counts: &Counts) -> Option<f64> {
    (counts.decided > 0).then(|| round(counts.fast as f64 / counts.decided as f64, 4))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LatencyUs {
    fn of(counts: &Counts) -> Self {
        let histogram = &counts.latency_us;
        let at = |quantile| histogram.value_at_quantile(quantile);
        if histogram.is_empty() {
            return Self { mean: 0.0, p50: 0, p95: 0, p99: 0, max: 0 };
        }
        Self { mean: round(histogram.mean(), 1), p50: at(0.50), p95: at(0.95), p99: at(0.99), max: histogram.max() }
    }
}

impl LoadReport {
    pub(crate) fn new(workload: &dyn Workload, engine: &'static str, loaded_keys: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self {
            workload: workload.name(),
            engine,
            loaded_keys,
            seconds: round(seconds, 3),
            keys_per_second: round(loaded_keys as f64 / seconds.max(1e-9), 1),
            settings: workload.settings(),
        }
    }
}

impl JournalReport {
    pub(crate) fn new(journal: &Path, check: JournalCheck) -> Self {
        let broken = findings(check.verdict);
        Self {
            workload: "bank",
            journal: journal.display().to_string(),
            acknowledged: check.acknowledged,
            found: check.found,
            recorded: check.recorded,
            invariant: Invariant { checked: 1, held: broken.is_empty(), broken },
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(report) => report.fmt(formatter),
            Self::Load(report) => report.fmt(formatter),
            Self::Journal(report) => report.fmt(formatter),
        }
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LatencyUs { mean, p50, p95, p99, max } = self.latency_us;
        let milliseconds = |us: f64| format!("{:.2}", us / 1e3);
        let mut rows = vec![
            ("workload", format!("{} on {}, {} clients, {} s", self.workload, self.engine, self.clients, self.seconds)),
            ("committed", format!("{} ({} a second)", grouped(self.committed), grouped(self.committed_per_second.round() as u64))),
            ("attempted", format!("{} ({:.1} % committed)", grouped(self.attempted), self.commit_rate * 100.0)),
        ];
        if self.rolled_back > 0 {
            rows.push(("rolled back", format!("{}, as they were to", grouped(self.rolled_back))));
        }
        rows.extend(self.per_minute.iter().map(|(name, rate)| (*name, format!("{rate:.0}"))));
        if let Some(rate) = self.fast_path_rate {
            rows.push(("fast path", format!("{:.1} %", rate * 100.0)));
        }
        if self.read_only > 0 {
            rows.push(("without a vote", format!("{}, which only read", grouped(self.read_only))));
        }
        let [mean, p50, p95, p99, max] = [mean, p50 as f64, p95 as f64, p99 as f64, max as f64].map(milliseconds);
        rows.push(("latency, ms", format!("mean {mean}   p50 {p50}   p95 {p95}   p99 {p99}   max {max}")));
        let replicas = self.cpu_seconds.replicas.map_or("unknown".to_owned(), |seconds| format!("{seconds:.2} s"));
        rows.push(("CPU time", format!("clients {:.2} s, replicas {replicas}", self.cpu_seconds.clients)));
        if let Some(cost) = self.cpu_us_per_transaction {
            rows.push(("CPU a transaction", format!("{cost:.0} µs, clients and replicas together")));
        }
        rows.extend(self.transactions.iter().map(|(kind, report)| (*kind, report.line())));
        if let Some(pool) = &self.pool {
            rows.extend(pool.rows());
        }
        for (kind, count) in &self.errors {
            rows.push(("given up", format!("{} {kind}", grouped(*count))));
        }
        if let Some(invariant) = &self.invariant {
            rows.extend(invariant.rows());
        }
        if let Some(why) = &self.unchecked {
            rows.push(("not checked", why.clone()));
        }
        if let Some(byzantine) = &self.byzantine {
            rows.extend(byzantine.rows());
        }
        if self.settings.get("table_filled") == Some(&Json::Bool(false)) {
            rows.push(("note", "the table was not filled before: use --load to write over keys that are there".to_owned()));
        }
        rows.push(("settings", settings_line(&self.settings)));
        write_rows(formatter, rows)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, rate) = (grouped(self.loaded_keys), grouped(self.keys_per_second.round() as u64));
        write_rows(
            formatter,
            vec![
                ("workload", format!("{} on {}", self.workload, self.engine)),
                ("loaded", format!("{keys} keys in {:.1} s ({rate} a second)", self.seconds)),
                ("settings", settings_line(&self.settings)),
            ],
        )
    }
}

impl fmt::Display for JournalReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![
            ("journal", self.journal.clone()),
            ("acknowledged", grouped(self.acknowledged)),
            ("found again", grouped(self.found)),
            ("recorded in all", grouped(self.recorded)),
        ];
        rows.extend(self.invariant.rows());
        write_rows(formatter, rows)
    }
}

impl Invariant {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let checked = if self.checked == 1 { "once".to_owned() } else { format!("{} times", grouped(self.checked)) };
        let mut rows =
            vec![("invariant", if self.held { format!("held, checked {checked}") } else { format!("BROKEN, checked {checked}") })];
        rows.extend(self.broken.iter().map(|finding| ("broken", finding.clone())));
        rows
    }
}

fn write_rows(formatter: &mut fmt::Formatter<'_>, rows: Vec<(&'static str, String)>) -> fmt::Result {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    write!(formatter, "{}", table.trim_fmt())
}

fn settings_line(settings: &BTreeMap<&'static str, Json>) -> String {
    let shown = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    settings.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect::<Vec<_>>().join(" ")
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use client::{CommitPath, PoolCounts};
    use workload::Done;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn report(name: &str, committed: u64, checked: u64) -> RunReport {
        let line = ["bench", name, "--clients", "4", "--seconds", "2", "--warmup", "0.5", "--cooldown", "0.25", "--keys", "1000"];
        let args = Program::parse_from(line).bench;
        let workload = args.workload(Path::new(".")).expect("a workload");
        let mut tally = Tally::new(workload.kinds());
        for number in 0..committed {
            let path = Some(if number % 4 == 0 { CommitPath::Slow } else { CommitPath::Fast });
            tally.note_done(0, &Done { path, attempts: 1 + (number % 2) as u32, broken: None }, Duration::from_micros(1_000));
        }
        tally.note_error(0, "unavailable");
        let measured = Measured {
            tally,
            seconds: 2.0,
            cpu_clients: 0.004,
            cpu_replicas: Some(0.01),
            readiness: Readiness::Filled,
            pool: None,
            checked,
            broken: Vec::new(),
            marks: None,
        };
        RunReport::new(&args, workload.as_ref(), "toy", measured)
    }

    #[test]
    fn the_object_for_programs_has_this_shape() {
        let json = serde_json::to_value(Report::Run(Box::new(report("rw-u", 8, 0)))).expect("JSON");
        assert_eq!(
            json,
            json!({
                "workload": "rw-u",
                "engine": "toy",
                "clients": 4,
                "seconds": 2.0,
                "committed": 8,
                "committed_per_second": 4.0,
                "attempted": 13,
                "commit_rate": 0.6154,
                "fast_path_rate": 0.75,
                "latency_us": { "mean": 1000.0, "p50": 1000, "p95": 1000, "p99": 1000, "max": 1000 },
                "cpu_seconds": { "clients": 0.0, "replicas": 0.01 },
                "cpu_us_per_transaction": 1750.0,
                "errors": { "unavailable": 1 },
                "settings": {
                    "connections": 1,
                    "cooldown_seconds": 0.25,
                    "distribution": "uniform",
                    "keys": 1000,
                    "reading": "together",
                    "reads": 2,
                    "seed": 1,
                    "table_filled": true,
                    "value_bytes": 100,
                    "warmup_seconds": 0.5,
                    "write_keys": "others",
                    "writes": 2
                }
            })
        );
    }

    #[test]
    fn a_run_in_which_nothing_committed_is_a_failure_and_still_a_report() {
        let report = report("rw-u", 0, 0);
        assert_eq!((report.commit_rate, report.fast_path_rate, report.cpu_us_per_transaction), (0.0, None, None));
        let report = Report::Run(Box::new(report));
        assert_eq!(report.failure().as_deref(), Some("nothing committed while it was measured"));
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!((&json["fast_path_rate"], &json["latency_us"]["p99"]), (&Json::Null, &json!(0)));
    }

    #[test]
    fn a_broken_invariant_is_told_from_one_that_could_not_be_checked() {
        let mut run = report("ring", 8, 3);
        run.note_check(Verdict::Held);
        assert_eq!(serde_json::to_value(&run).expect("JSON")["invariant"], json!({ "checked": 4, "held": true }));
        let held = Report::Run(Box::new(run.clone()));
        assert_eq!((held.broken(), held.failure()), (None, None));
        let unchecked = RunReport { unchecked: Some("nobody answers".to_owned()), ..run.clone() };
        assert!(unchecked.to_string().contains("nobody answers"), "{unchecked}");
        assert!(Report::Run(Box::new(unchecked)).failure().expect("a failure").contains("could not be made: nobody answers"));
        run.note_check(Verdict::Broken(vec!["nodes 1 and 2 both name node 3".to_owned()]));
        assert_eq!(
            serde_json::to_value(&run).expect("JSON")["invariant"],
            json!({ "checked": 5, "held": false, "broken": ["nodes 1 and 2 both name node 3"] })
        );
        let text = run.to_string();
        assert!(text.contains("BROKEN, checked 5 times") && text.contains("both name node 3"), "{text}");
        let report = Report::Run(Box::new(run));
        assert!(report.broken().expect("it is broken").contains("both name node 3") && report.failure().is_none());
    }

    #[test]
    fn a_verified_journal_is_reported_whole() {
        let check = JournalCheck { acknowledged: 10, found: 9, recorded: 12, verdict: Verdict::Broken(vec!["one is gone".to_owned()]) };
        let report = Report::Journal(JournalReport::new(Path::new("a.journal"), check));
        assert_eq!(
            serde_json::to_value(&report).expect("JSON"),
            json!({
                "workload": "bank", "journal": "a.journal", "acknowledged": 10, "found": 9, "recorded": 12,
                "invariant": { "checked": 1, "held": false, "broken": ["one is gone"] }
            })
        );
        assert!(report.broken().is_some());
    }

    #[test]
    fn what_the_pools_did_is_in_the_report() {
        let mut run = report("rw-u", 8, 0);
        let counts = PoolCounts { committed: 8, sizes: vec![0, 0, 1, 2], aborted: 1, chained_reads: 5, ..PoolCounts::default() };
        run.pool = Some(PoolReport::between(&PoolCounts::default(), &counts, 2.0));
        let json = serde_json::to_value(&run).expect("JSON");
        assert_eq!((&json["pool"]["batches_per_second"], &json["pool"]["batch_abort_rate"]), (&json!(1.5), &json!(0.25)));
        assert_eq!(json["pool"]["batch_size"]["up_to_powers_of_two"], json!([0, 1, 2]));
        let text = run.to_string();
        for part in ["3 (2 a second), 25.0 % aborted, 0 split", "mean 2.7   p50 3   p95 3   max 3", "5 chained"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn people_read_a_table() {
        let text = Report::Run(Box::new(report("rw-u", 8, 0))).to_string();
        for part in ["rw-u on toy, 4 clients, 2 s", "8 (4 a second)", "61.5 % committed", "75.0 %", "p50 1.00", "1750 µs", "1 unavailable"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
