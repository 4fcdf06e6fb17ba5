//! The cluster that is attacked, the honest clients, and what the system says of their processes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use bezant::failure::{Attempt as _, Failure};

use super::BEGUN;
use super::liar::LIAR;

/// How many honest transactions are under way at a time.
const HONEST_CLIENTS: &str = "16";
/// How often processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the honest clients run before it counts, in seconds; under attack it is longer, so that the attack has begun.
const WARMUP_SECONDS: f64 = 1.0;
/// How long a replica that is stopped may take.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Ticks of CPU time a second in `/proc`, on every architecture that this project runs on.
const TICKS_A_SECOND: f64 = 100.0;

/// How long each phase is measured.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// So many seconds, beside a warm-up.
    Seconds(f64),
    /// So many transactions of honest clients, however long they take.
    Transactions(u64),
}

/// What the honest clients had of a phase.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Transactions committed a second.
    pub rate: f64,
    /// Of a hundred, 99 were faster than this, in milliseconds; none when none committed.
    pub p99_ms: Option<f64>,
    /// How many were given up.
    pub errors: u64,
    /// Cores that the clients kept busy.
    pub clients_cores: f64,
    /// Cores that the replicas kept busy, where that is known.
    pub replicas_cores: Option<f64>,
    /// Cores that the attacker kept busy.
    pub attacker_cores: f64,
    /// The most memory that any replica had, in MiB.
    pub memory_mib: f64,
    /// Why there is no load, where the clients could not even begin.
    pub failed: Option<String>,
}

/// A cluster of processes in a temporary folder; stopped and removed when it goes.
pub struct Cluster<'a> {
    program: &'a Path,
    folder: TempDir,
    keys: u64,
    stop: &'a AtomicBool,
}

impl<'a> Cluster<'a> {
    /// Six replicas and two clients, made and started, and a table for the honest ones.
    pub fn start(program: &'a Path, keys: u64, stop: &'a AtomicBool) -> Result<Self, Failure> {
        let folder = TempDir::with_prefix("bezant-attack-").attempt("make a folder", std::env::temp_dir().display())?;
        let cluster = Self { program, folder, keys, stop };
        cluster.run(&["init", &cluster.path(), "--clients", "2", "--base-port", "auto"])?;
        cluster.up()?;
        let keys = keys.to_string();
        cluster.run(&["bench", "rw-u", "--load", "--keys", &keys, "--seconds", "0", "--json", "--cluster", &cluster.path()])?;
        Ok(cluster)
    }

    /// Its folder.
    pub fn path(&self) -> String {
        self.folder.path().join("cluster").display().to_string()
    }

    /// Starts every replica that does not run.
    pub fn up(&self) -> Result<(), Failure> {
        self.run(&["up", &self.path()])
    }

    /// Stops all replicas.
    pub fn down(&self) -> Result<(), Failure> {
        self.run(&["down", &self.path()])
    }

    /// Stops the one replica in whose place a liar runs.
    pub fn stop_liar(&self) -> Result<(), Failure> {
        let note = PathBuf::from(self.path()).join("run").join(format!("{LIAR}.pid"));
        let pid = fs::read_to_string(&note).attempt("read the file", note.display())?.trim().to_owned();
        let process = pid.parse().ok().and_then(Pid::from_raw).ok_or_else(|| Failure::failed("this is no process").at(note.display()))?;
        kill_process(process, Signal::TERM).attempt("stop the process", &pid)?;
        let begun = Instant::now();
        while runs(&pid) {
            if begun.elapsed() > STOP_MAX {
                return Err(Failure::failed(format!("{LIAR} does not stop")).at(format!("pid {pid}")));
            }
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Starts a process that attacks this cluster, or only burns so many cores, and waits until it does.
    pub fn attacker(&self, name: &str, burn: Option<f64>) -> Result<Attacker, Failure> {
        let mut command = Command::new(self.program);
        command.args(["attacker", name, "--cluster", &self.path(), "--keys", &self.keys.to_string()]);
        if let Some(cores) = burn {
            command.args(["--burn", &cores.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().attempt("start the attacker", name)?;
        let said = child.stdout.take().map(BufReader::new);
        let mut attacker = Attacker { child, said };
        let mut line = String::new();
        let read = attacker.said.as_mut().map_or(Ok(0), |said| said.read_line(&mut line));
        read.attempt("read from the attacker", name)?;
        if line.trim_end() == BEGUN { Ok(attacker) } else { Err(Failure::failed("the attacker could not begin").at(name)) }
    }

    /// Runs the honest clients for a phase, and looks at everybody meanwhile.
    pub fn honest(&self, length: Length, attacker: Option<&Attacker>) -> Result<Load, Failure> {
        let warmup = if attacker.is_some() { 2.0 * WARMUP_SECONDS } else { WARMUP_SECONDS };
        let (warmup, options) = match length {
            Length::Seconds(seconds) => {
                (warmup, vec!["--seconds".to_owned(), seconds.to_string(), "--warmup".to_owned(), warmup.to_string()])
            }
            Length::Transactions(count) => {
                (0.0, ["--transactions", &count.to_string(), "--seconds", "3600", "--warmup", "0"].map(str::to_owned).to_vec())
            }
        };
        let mut command = Command::new(self.program);
        command.args(["bench", "rw-u", "--clients", HONEST_CLIENTS, "--keys", &self.keys.to_string(), "--cooldown", "0", "--json"]);
        command.args(options).args(["--cluster", &self.path()]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut bench = Running(command.spawn().attempt("start the honest clients", "bezant bench")?);
        let (begun, mut from, mut memory_mib) = (Instant::now(), None, 0.0_f64);
        while bench.0.try_wait().attempt("wait for", "bezant bench")?.is_none() {
            self.check_stop()?;
            if from.is_none() && begun.elapsed().as_secs_f64() >= warmup {
                from = attacker.map(|attacker| (Instant::now(), attacker.cpu_seconds()));
            }
            memory_mib = memory_mib.max(self.memory_mib());
            sleep(LOOK_EVERY);
        }
        let burnt =
            |(at, cpu): (Instant, f64)| attacker.map_or(0.0, |attacker| (attacker.cpu_seconds() - cpu) / at.elapsed().as_secs_f64());
        let attacker_cores = from.map_or(0.0, burnt);
        let (mut said, mut complaint) = (String::new(), String::new());
        if let (Some(out), Some(err)) = (&mut bench.0.stdout, &mut bench.0.stderr) {
            out.read_to_string(&mut said).and_then(|_| err.read_to_string(&mut complaint)).attempt("read from", "bezant bench")?;
        }
        let load = match serde_json::from_str(&said) {
            Ok(report) => Load::of(&report),
            Err(_) => Load { failed: Some(complaint.lines().next().unwrap_or("it said nothing").to_owned()), ..Load::default() },
        };
        Ok(Load { attacker_cores, memory_mib, ..load })
    }

    /// Leaves it alone for so long, or until everything is to stop.
    pub fn rest(&self, duration: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            self.check_stop()?;
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// The memory of the replica that has most of it, in MiB.
    fn memory_mib(&self) -> f64 {
        let notes = fs::read_dir(Path::new(&self.path()).join("run")).into_iter().flatten().flatten();
        let pids = notes.map(|note| note.path()).filter(|note| note.extension().is_some_and(|end| end == "pid"));
        pids.filter_map(|note| memory_mib(fs::read_to_string(note).ok()?.trim())).fold(0.0, f64::max)
    }

    fn run(&self, words: &[&str]) -> Result<(), Failure> {
        let output = Command::new(self.program).args(words).stdin(Stdio::null()).output();
        let output = output.attempt("run", format!("bezant {}", words.join(" ")))?;
        if words.first() != Some(&"down") {
            self.check_stop()?;
        }
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(Failure::failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()).at(format!("bezant {}", words.join(" "))))
            }
        }
    }

    fn check_stop(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::failed("stopped")) } else { Ok(()) }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.down() {
            eprintln!("{failure}");
        }
    }
}

impl Load {
    /// From what `bezant bench --json` printed.
    fn of(report: &Json) -> Self {
        let number = |value: &Json| value.as_f64().unwrap_or(0.0);
        let seconds = number(&report["seconds"]).max(f64::MIN_POSITIVE);
        let cpu = &report["cpu_seconds"];
        Self {
            rate: number(&report["committed_per_second"]),
            p99_ms: report["latency_us"]["p99"].as_f64().filter(|us| *us > 0.0).map(|us| us / 1e3),
            errors: report["errors"].as_object().map_or(0, |errors| errors.values().filter_map(Json::as_u64).sum()),
            clients_cores: number(&cpu["clients"]) / seconds,
            replicas_cores: cpu["replicas"].as_f64().map(|used| used / seconds),
            ..Self::default()
        }
    }

    /// As `attack --json` prints it.
    pub fn to_json(&self) -> Json {
        json!({
            "committed_per_second": self.rate,
            "p99_ms": self.p99_ms,
            "errors": self.errors,
            "failed": self.failed,
            "cores": { "replicas": self.replicas_cores, "attacker": self.attacker_cores, "clients": self.clients_cores },
            "largest_replica_mib": self.memory_mib,
        })
    }
}

/// A process that attacks, and ends when this goes.
pub struct Attacker {
    child: Child,
    said: Option<BufReader<ChildStdout>>,
}

impl Attacker {
    /// Ends it; gives what it says that it did.
    pub fn end(mut self) -> Json {
        drop(self.child.stdin.take());
        let mut said = String::new();
        let read = self.said.take().map(|mut out| out.read_to_string(&mut said));
        if matches!(read, Some(Ok(_))) { serde_json::from_str(&said).unwrap_or_default() } else { Json::Null }
    }

    fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The second field is the program's name in brackets, and may hold anything.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let ticks: u64 = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        ticks as f64 / TICKS_A_SECOND
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A process that is ended when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Whether this process runs: one that has ended may wait for its parent to notice.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

fn memory_mib(pid: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<f64>().ok()? / 1_024.0)
}
