//! Measures figures: makes clusters, starts them, runs workloads on them, all by commands of the program.

mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::FiguresError;
use crate::args::FiguresArgs;
use crate::machine::Machine;
use crate::plan::{Cluster, Data, Effort, Figure, Point, Program, Setting};
use crate::results::Results;
use servers::{Ensemble, ZooKeeper};

/// How much of what a failed command said is shown.
const SAID_BYTES_MAX: usize = 2_000;
/// Where the program hears which rule its replicas are to break.
const BROKEN_RULE: &str = "BEZANT_MUTANT";
/// How long everybody keeps running after a run was measured.
const COOLDOWN_SECONDS: &str = "0.3";

/// How old a version is when it may be folded, and a little more.
const WINDOW: Duration = Duration::from_secs(33);
/// How often it is looked how many are not.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A command cannot be started, or a folder not be made.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A command failed.
    #[error("`{command}` failed:\n{said}")]
    Command {
        /// The command.
        command: String,
        /// The end of what it said.
        said: String,
    },
    /// There is no ZooKeeper where somebody said.
    #[error("{folder} holds no ZooKeeper: there is no zookeeper-N.jar in it, nor in its lib")]
    NoZooKeeper {
        /// The folder.
        folder: String,
    },
    /// It was told to stop.
    #[error("stopped; what was measured is kept, and the same command goes on from there")]
    Stopped,
}

impl RunError {
    /// ZooKeeper was to be started, and nobody said where it is.
    fn without_zookeeper() -> Self {
        Self::NoZooKeeper { folder: "nothing".to_owned() }
    }
}

/// Measures with one program, in one folder.
pub(crate) struct Runner<'a> {
    program: &'a Path,
    effort: Effort,
    folder: TempDir,
    /// Filled folders of clusters, none of which runs.
    filled: BTreeMap<Data, PathBuf>,
    /// How many were made.
    made: usize,
    machine: Machine,
    /// The installation that is measured beside ours.
    zookeeper: Option<ZooKeeper>,
    stop: &'a AtomicBool,
}

/// What a point runs on; it is stopped when this goes.
enum Target<'a, 'b> {
    Cluster(Running<'a, 'b>),
    Servers(Ensemble),
}

/// A cluster that runs; it is stopped when this goes.
struct Running<'a, 'b> {
    runner: &'a Runner<'b>,
    folder: &'a Path,
    /// Files that were changed for it, as they were.
    before: Vec<(PathBuf, String)>,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        // What cannot be stopped is said by the command itself, and there is nothing else to be done about it here.
        let _ = self.runner.say(&["down".to_owned(), self.folder.display().to_string()]);
        for (path, text) in &self.before {
            if let Err(error) = fs::write(path, text) {
                eprintln!("{} could not be changed back: {error}", path.display());
            }
        }
    }
}

impl<'a> Runner<'a> {
    /// A runner whose clusters are gone when it is.
    pub fn new(program: &'a Path, args: &'a FiguresArgs, stop: &'a AtomicBool) -> Result<Self, FiguresError> {
        let folder = match &args.work {
            None => TempDir::with_prefix("bezant-figures-"),
            Some(work) => std::fs::create_dir_all(work).and_then(|()| TempDir::with_prefix_in("bezant-figures-", work)),
        };
        let folder = folder.map_err(|source| RunError::System { what: "make a folder for the clusters".to_owned(), source })?;
        let (filled, machine) = (BTreeMap::new(), Machine::default());
        let zookeeper = args.zookeeper.as_deref().map(ZooKeeper::find).transpose()?;
        let mut runner = Self { program, effort: args.effort(), folder, filled, made: 0, machine, zookeeper, stop };
        runner.machine = Machine::here(runner.say(&["--version".to_owned()])?.said.trim());
        if !runner.machine.is_optimised {
            eprintln!("warning: this program is a development build: for numbers, build it with `cargo build --release`");
        }
        Ok(runner)
    }

    /// What results that are begun now begin with.
    pub fn begin(&self, figure: &Figure) -> Results {
        Results::new(figure, self.effort, self.machine.clone())
    }

    /// Measures what `results` lack of `figure`, each point once before any a second time, and has every run `kept`. What `later`
    /// figures need no more is removed.
    pub fn measure(
        &mut self,
        figure: &Figure,
        later: &[&Figure],
        mut results: Results,
        kept: impl Fn(&Results) -> Result<(), FiguresError>,
    ) -> Result<(), FiguresError> {
        let (points, left_out): (Vec<&Point>, Vec<&Point>) = figure.points().into_iter().partition(|point| self.lacks(point).is_none());
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in left_out.into_iter().filter_map(|point| self.lacks(point)) {
            *reasons.entry(reason).or_default() += 1;
        }
        for (reason, count) in reasons {
            eprintln!("{}: {count} points are left out, as {reason}", figure.name);
        }
        for run in 0..self.effort.runs {
            let mut left: Vec<&Point> = points.iter().copied().filter(|point| results.tries_of(&point.id) <= run).collect();
            while let Some(first) = left.first() {
                let cluster = first.cluster.clone();
                let (mut here, others): (Vec<&Point>, _) = left.into_iter().partition(|point| point.cluster == cluster);
                left = others;
                // Whatever comes first meets a cluster that has just started: each time that is another point.
                let first = run * here.len() / self.effort.runs;
                here.rotate_left(first);
                if cluster.servers.is_none() {
                    self.fill(&cluster.data)?;
                }
                let target = self.target(&cluster)?;
                let mut warmup = self.effort.warmup + cluster.start_warmup(self.effort);
                for point in here {
                    let (command, outcome) = self.bench(point, warmup, &target)?;
                    warmup = self.effort.warmup;
                    let said = outcome.as_ref().map_or_else(|said| format!("FAILED: {said}"), shown);
                    eprintln!("{}, run {} of {}, {}: {said}", figure.name, run + 1, self.effort.runs, point.id);
                    let commands =
                        cluster.servers.as_ref().map_or_else(|| commands_of(&cluster), |servers| servers::commands_of(self, servers));
                    results.note(point, &commands, &command, outcome);
                    kept(&results)?;
                }
            }
        }
        let is_needed = |data: &Data| later.iter().any(|figure| figure.points().iter().any(|point| point.cluster.data == *data));
        let done: Vec<Data> = self.filled.keys().filter(|data| !is_needed(data)).cloned().collect();
        for folder in done.iter().filter_map(|data| self.filled.remove(data)) {
            fs::remove_dir_all(folder).map_err(|source| RunError::System { what: "remove a cluster's folder".to_owned(), source })?;
        }
        Ok(())
    }

    /// Makes a cluster and fills its tables, with nobody far away, unless that is done.
    fn fill(&mut self, data: &Data) -> Result<(), RunError> {
        if self.filled.contains_key(data) {
            return Ok(());
        }
        self.made += 1;
        let folder = self.folder.path().join(format!("cluster-{}", self.made));
        let path = folder.display().to_string();
        let init = ["init", &path, "--base-port", "auto"].map(str::to_owned);
        self.say(&[init.as_slice(), &data.init].concat())?.well()?;
        self.filled.insert(data.clone(), folder);
        if data.tables.is_empty() {
            return Ok(());
        }
        let cluster = Cluster { data: data.clone(), ..Cluster::default() };
        eprintln!("filling a cluster: {}", commands_of(&cluster).join("; "));
        let running = self.start(&cluster)?;
        for table in &data.tables {
            let load = ["--load", "--seconds", "0", "--json", "--cluster", &path].map(str::to_owned);
            self.say(&[&["bench".to_owned()], table.as_slice(), &load].concat())?.well()?;
        }
        self.rest(&path)?;
        drop(running);
        Ok(())
    }

    /// Waits until a cluster folds nothing any more, or as long as the effort allows. It does not begin to fold before its window is over,
    /// and keeps some versions in memory.
    fn rest(&self, path: &str) -> Result<(), RunError> {
        let begun = Instant::now();
        let words = ["status", "--json", "--cluster", path].map(str::to_owned);
        let mut before = None;
        while begun.elapsed().as_secs_f64() < self.effort.rest {
            std::thread::sleep(LOOK_EVERY);
            let status = serde_json::from_str(&self.say(&words)?.said).ok();
            let held = status.as_ref().map(in_memory);
            if begun.elapsed() > WINDOW && held.is_some() && held == before {
                break;
            }
            before = held;
        }
        Ok(())
    }

    /// What points of this cluster run on, started; a cluster of `bezant init` has been filled.
    fn target<'b>(&'b self, cluster: &Cluster) -> Result<Target<'b, 'a>, RunError> {
        match &cluster.servers {
            None => self.start(cluster).map(Target::Cluster),
            Some(servers) => Ensemble::start(self, servers).map(Target::Servers),
        }
    }

    fn start<'b>(&'b self, cluster: &Cluster) -> Result<Running<'b, 'a>, RunError> {
        let folder = &self.filled[&cluster.data];
        let mut words = vec!["up".to_owned(), folder.display().to_string()];
        if let Some(regions) = cluster.regions {
            words.extend(["--regions".to_owned(), regions.to_owned()]);
        }
        // Made first: what has started when `up` fails or is interrupted is stopped too.
        let mut running = Running { runner: self, folder, before: Vec::new() };
        for setting in &cluster.settings {
            change(folder, setting, &mut running.before)?;
        }
        match cluster.broken_rule {
            Some(rule) => self.run(Command::new(self.program).env(BROKEN_RULE, rule), &words)?.well()?,
            None => self.say(&words)?.well()?,
        }
        Ok(running)
    }

    /// Runs a point; gives the command without what differs from run to run, and what it reported or else said.
    fn bench(&self, point: &Point, warmup: f64, target: &Target<'_, '_>) -> Result<(String, Result<Json, String>), RunError> {
        let seconds = (self.effort.seconds * f64::from(point.stretch)).to_string();
        let (bench, place, more) = match target {
            Target::Cluster(running) => {
                let folder = running.folder.display().to_string();
                let more = ["--cooldown", COOLDOWN_SECONDS, "--cluster", &folder].map(str::to_owned).to_vec();
                ("bench", folder, more)
            }
            Target::Servers(ensemble) => ("bench-zookeeper", ensemble.place(), ensemble.flags()),
        };
        let words = [&[bench.to_owned()], point.bench.as_slice(), &["--seconds".to_owned(), seconds]].concat();
        let command = format!("bezant {}", words.join(" "));
        let all = [words.as_slice(), &["--warmup".to_owned(), warmup.to_string(), "--json".to_owned()], &more].concat();
        let said = self.say(&all)?;
        let outcome = if said.is_well {
            serde_json::from_str(&said.said).map_err(|error| error.to_string()).and_then(|report| answered(report, target))
        } else {
            Err(said.complaint.replace(&place, "DIR"))
        };
        Ok((command, outcome))
    }

    /// Runs the program to its end.
    fn say(&self, words: &[String]) -> Result<Said, RunError> {
        self.run(&mut Command::new(self.program), words)
    }

    fn run(&self, program: &mut Command, words: &[String]) -> Result<Said, RunError> {
        let is_down = words.first().is_some_and(|word| word == "down");
        if !is_down {
            self.check_stop()?;
        }
        let command = format!("bezant {}", words.join(" "));
        let output = program.args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|source| RunError::System { what: format!("run `{command}`"), source })?;
        if !is_down {
            // A signal from the terminal reaches the command as well: then it is no fault of its own that it ended.
            self.check_stop()?;
        }
        Ok(Said {
            command,
            is_well: output.status.success(),
            said: String::from_utf8_lossy(&output.stdout).into_owned(),
            complaint: end_of(&String::from_utf8_lossy(&output.stderr)),
        })
    }

    fn check_stop(&self) -> Result<(), RunError> {
        if self.stop.load(Ordering::Relaxed) { Err(RunError::Stopped) } else { Ok(()) }
    }

    /// What a point needs beside the program and is not there, as a sentence's end.
    fn lacks(&self, point: &Point) -> Option<&'static str> {
        let is_on_path = |name: &str| {
            std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
        };
        let needs_redis = point.bench.iter().any(|word| word == "--on-redis");
        let needs_zookeeper = point.cluster.servers.as_ref().is_some_and(|servers| servers.program == Program::ZooKeeper);
        if needs_redis && !is_on_path("redis-server") {
            Some("there is no `redis-server` here")
        } else if needs_zookeeper && self.zookeeper.is_none() {
            Some("no ZooKeeper was named (--zookeeper DIR)")
        } else {
            None
        }
    }
}

/// What a command did.
struct Said {
    command: String,
    is_well: bool,
    said: String,
    /// The end of what it said on standard error.
    complaint: String,
}

impl Said {
    /// Whether it did what it was asked.
    fn well(self) -> Result<(), RunError> {
        if self.is_well { Ok(()) } else { Err(RunError::Command { command: self.command, said: self.complaint }) }
    }
}

/// The end of what a command said.
fn end_of(said: &str) -> String {
    let from = (said.len().saturating_sub(SAID_BYTES_MAX)..=said.len()).find(|at| said.is_char_boundary(*at));
    said[from.unwrap_or(0)..].trim().to_owned()
}

/// A report, unless it is of servers that refused requests or answered none.
fn answered(report: Json, target: &Target<'_, '_>) -> Result<Json, String> {
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    match target {
        Target::Servers(_) if count("failed") > 0 => Err(format!("{} of {} requests failed", count("failed"), count("answered"))),
        Target::Servers(_) if count("answered") == 0 => Err("nothing was answered".to_owned()),
        _ => Ok(report),
    }
}

/// How many versions the replicas of a status report hold in memory, together.
fn in_memory(status: &Json) -> u64 {
    match status {
        Json::Object(fields) => fields
            .iter()
            .map(|(name, value)| if name == "memtable_versions" { value.as_u64().unwrap_or(0) } else { in_memory(value) })
            .sum(),
        Json::Array(items) => items.iter().map(in_memory).sum(),
        _ => 0,
    }
}

fn shown(report: &Json) -> String {
    let number = |value: &Json| value.as_f64().unwrap_or(0.0);
    if let Some(rate) = report["per_second"].as_f64() {
        return format!("{rate:.0} requests/s, {:.1} ms, {:.1} µs", number(&report["p50_us"]) / 1e3, number(&report["server_cpu_us"]));
    }
    let latency_ms = number(&report["latency_us"]["mean"]) / 1e3;
    format!("{:.0} tx/s, {latency_ms:.1} ms", number(&report["committed_per_second"]))
}

/// Changes a setting in every folder of a cluster that has its file; notes what was there before.
fn change(folder: &Path, setting: &Setting, before: &mut Vec<(PathBuf, String)>) -> Result<(), RunError> {
    let failed = |source| RunError::System { what: format!("set {} in {}", setting.name, setting.file), source };
    let begin = format!("{} = ", setting.name);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path().join(setting.file);
        if !path.exists() {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let Some(old) = text.lines().find(|line| line.starts_with(&begin)) else {
            return Err(failed(std::io::Error::other("there is no such setting")));
        };
        fs::write(&path, text.replace(old, &format!("{begin}{}", setting.value))).map_err(failed)?;
        // A file that is changed twice is changed back in the opposite order: its first text is written last.
        before.insert(0, (path, text));
    }
    Ok(())
}

/// How a cluster is made, filled and started, in words.
fn commands_of(cluster: &Cluster) -> Vec<String> {
    let mut commands = vec![format!("bezant init {}", cluster.data.init.join(" ")).trim_end().to_owned()];
    commands.extend(cluster.data.tables.iter().map(|table| format!("bezant bench {} --load --seconds 0", table.join(" "))));
    let change = |Setting { file, name, value }: &Setting| format!("sed -i 's/^{name} = .*/{name} = {value}/' */{file}");
    commands.extend(cluster.settings.iter().map(change));
    let regions = cluster.regions.map(|regions| format!(" --regions {regions}")).unwrap_or_default();
    let broken = cluster.broken_rule.map(|rule| format!("{BROKEN_RULE}={rule} ")).unwrap_or_default();
    commands.push(format!("{broken}bezant up{regions}"));
    commands
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_in_memory_are_found_wherever_they_are_told() {
        let replica = |versions: u64| json!({"up": true, "status": {"store": {"memtable_versions": versions, "memtable_bytes": 7}}});
        assert_eq!(in_memory(&json!({"replicas": [replica(3), replica(40)], "engine": "basil"})), 43);
    }

    #[test]
    fn settings_are_changed_where_they_are_and_can_be_changed_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name).join("node.toml");
        let text = "# batch_max = of old\nbatch_max = 64\nwindow_ms = 5\n";
        for name in ["s0-r0", "s0-r1", "run"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        fs::write(file("s0-r0"), text).and_then(|()| fs::write(file("s0-r1"), text)).expect("written");
        let set = |name, value: &str| Setting { file: "node.toml", name, value: value.to_owned() };
        let mut before = Vec::new();
        for setting in [set("batch_max", "4"), set("window_ms", "6")] {
            change(folder.path(), &setting, &mut before).expect("changed");
        }
        for name in ["s0-r0", "s0-r1"] {
            let changed = fs::read_to_string(file(name)).expect("read");
            assert_eq!(changed, "# batch_max = of old\nbatch_max = 4\nwindow_ms = 6\n");
        }
        for (path, text) in before {
            fs::write(path, text).expect("written");
        }
        assert_eq!(fs::read_to_string(file("s0-r1")).expect("read"), text);
        assert!(change(folder.path(), &set("nonsense", "1"), &mut Vec::new()).is_err());
    }
}
