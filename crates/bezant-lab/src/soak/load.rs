//! What asks the cluster for transactions meanwhile: a steady load, and a bank whose money and whose journals are audited, with clients that lie beside its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use bezant::failure::{Attempt as _, Failure};

use super::Shared;
use super::cluster::Cluster;

/// How many transactions of the steady load are under way at a time, at most.
const CLIENTS: &str = "32";
/// How many accounts the bank has, and how many move money between them, those included that lie.
const ACCOUNTS: &str = "200";
const TELLERS: &str = "8";
/// Which part of them lies.
const LIARS: &str = "0.25";
/// How many transfers a second begin: each leaves a record for ever, and the disk is to level off.
const TRANSFERS: &str = "20";
/// The workload, which changes keys and adds none.
const WORKLOAD: &str = "rw-u";
/// How clients lie: each run of the bank in another way. Nothing: nobody does.
const STRATEGIES: [Option<&str>; 5] = [None, Some("stall-early"), Some("stall-late"), Some("equiv-real"), Some("equiv-split")];

/// What all that is read of a run comes from: how it ended, what it printed, and its last words.
type Ended = (Option<i32>, String, String);

/// A bench that runs.
pub struct Bench {
    child: Child,
    /// Read by threads, so that nobody waits for a pipe that is full.
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Bench {
    fn start(cluster: &Cluster, words: &[&str]) -> Result<Self, Failure> {
        let mut command = cluster.command(&[words, &["--cluster", &cluster.path("cluster"), "--json"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().attempt("start", words.join(" "))?;
        let out = child.stdout.take().map(reader::<ChildStdout>).ok_or_else(|| Failure::failed("no output"))?;
        let err = child.stderr.take().map(reader::<ChildStderr>).ok_or_else(|| Failure::failed("no errors"))?;
        Ok(Self { child, out, err })
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().ok().flatten()?;
        Some((status.code(), self.out.recv().unwrap_or_default(), self.err.recv().unwrap_or_default()))
    }

    /// Asks it to end, and to report.
    fn ask_to_end(&self) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reader<R: std::io::Read + Send + 'static>(mut from: R) -> Receiver<String> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        let mut text = String::new();
        // What is no text is no report.
        let _ = from.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    receiver
}

/// Fills the table, and gives how many transactions a second the cluster can do, once it has done as many as it can for `after` seconds.
pub fn measure_peak(cluster: &Cluster, keys: u64, after: f64, seconds: f64) -> Result<f64, Failure> {
    let (keys, after, seconds, place) = (keys.to_string(), after.to_string(), seconds.to_string(), cluster.path("cluster"));
    let words = ["bench", WORKLOAD, "--load", "--keys", &keys, "--clients", CLIENTS, "--warmup", &after, "--seconds", &seconds];
    let run = cluster.must(&[&words[..], &["--cluster", &place, "--json"]].concat())?;
    let report: Json = serde_json::from_str(&run.out).attempt("read the report of", "bench")?;
    Ok(report["committed_per_second"].as_f64().unwrap_or(0.0))
}

/// Only fills the table.
pub fn fill(cluster: &Cluster, keys: u64) -> Result<(), Failure> {
    let (keys, place) = (keys.to_string(), cluster.path("cluster"));
    cluster.must(&["bench", WORKLOAD, "--load", "--keys", &keys, "--seconds", "0", "--cluster", &place, "--json"]).map(drop)
}

/// The load that goes on from the beginning to the end.
pub struct Steady(Bench);

impl Steady {
    /// Begins it, at so many transactions a second; the file gets a line each second.
    pub fn start(cluster: &Cluster, keys: u64, rate: f64, timeline: &str) -> Result<Self, Failure> {
        let (keys, rate) = (keys.to_string(), rate.to_string());
        let words = ["bench", WORKLOAD, "--keys", &keys, "--clients", CLIENTS, "--rate", &rate, "--seconds", "86400", "--warmup", "0"];
        Bench::start(cluster, &[&words[..], &["--cooldown", "0", "--timeline", timeline]].concat()).map(Self)
    }

    /// Says why it ended too early, if it did.
    pub fn check(&mut self) -> Result<(), String> {
        match self.0.ended() {
            None => Ok(()),
            Some((code, _, err)) => Err(format!("the load ended by itself, with {code:?}: {}", err.trim())),
        }
    }

    /// Ends it; gives its report.
    pub fn end(mut self) -> Result<Json, String> {
        self.0.ask_to_end();
        loop {
            if let Some((code, out, err)) = self.0.ended() {
                let report = serde_json::from_str(&out).unwrap_or_default();
                return if code == Some(0) { Ok(report) } else { Err(format!("the load ended with {code:?}: {}", err.trim())) };
            }
            thread::sleep(super::LOOK_EVERY);
        }
    }
}

/// Runs the bank again and again until `is_over`, each time with other lies beside it. Each run audits the sum of all money each second, and at its end
/// replays all records and looks for every transfer that was acknowledged.
pub fn run_bank(shared: &Shared, seconds: f64, is_over: impl Fn() -> bool) -> Result<(), Failure> {
    let cluster = &shared.cluster;
    let journals = cluster.path("journals");
    fs::create_dir_all(&journals).attempt("make the folder", &journals)?;
    let earlier = fs::read_dir(&journals).attempt("read the folder", &journals)?.count();
    for number in earlier.. {
        if is_over() {
            break;
        }
        let strategy = STRATEGIES[number % STRATEGIES.len()];
        let (journal, seed, seconds) = (format!("{journals}/{number:04}"), number.to_string(), seconds.to_string());
        let mut words = vec!["bench", "bank", "--keys", ACCOUNTS, "--clients", TELLERS, "--rate", TRANSFERS, "--seconds", &seconds];
        words.extend(["--warmup", "0", "--cooldown", "0", "--journal", &journal, "--seed", &seed]);
        if let Some(strategy) = strategy {
            words.extend(["--byzantine-clients", LIARS, "--strategy", strategy]);
        }
        let mut bench = Bench::start(cluster, &words)?;
        let mut is_cut_short = false;
        let (code, out, err) = loop {
            // Asked twice, it would end without a report.
            if is_over() && !is_cut_short {
                bench.ask_to_end();
                is_cut_short = true;
            }
            if let Some(ended) = bench.ended() {
                break ended;
            }
            thread::sleep(super::LOOK_EVERY);
        };
        let report: Json = serde_json::from_str(&out).unwrap_or_default();
        let lies = strategy.unwrap_or("nobody lies");
        if report["invariant"]["held"] == true && code == Some(0) {
            shared.count("audits", report["invariant"]["checked"].as_u64().unwrap_or(0));
            shared.count("lies", report["byzantine"]["faulty"].as_u64().unwrap_or(0));
        } else if !(shared.is_stopped() || is_cut_short && report["invariant"].is_null()) {
            // Who was cut short before there was anything to audit is left to the check of all journals.
            let last = err.lines().rev().take(4).collect::<Vec<_>>().join(" | ");
            shared.violated(format!("run {number} of the bank ({lies}) ended with {code:?}: {}: {last}", report["invariant"]));
        }
    }
    Ok(())
}

/// Looks for every transfer of every journal. Gives how many were acknowledged.
pub fn verify_journals(shared: &Shared) -> Result<u64, Failure> {
    let cluster = &shared.cluster;
    let folder = PathBuf::from(cluster.path("journals"));
    let entries = fs::read_dir(&folder).attempt("read the folder", folder.display())?;
    let mut journals: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    journals.sort();
    let mut acknowledged = 0;
    for journal in journals {
        let name = journal.display().to_string();
        let lines = fs::read(&journal).attempt("read the journal", &name)?.iter().filter(|byte| **byte == b'\n').count() as u64;
        // The first line is its head; without one, it was ended before it began.
        let Some(written) = lines.checked_sub(1) else { continue };
        let said = cluster.run(&["bench", "bank", "--verify-journal", &name, "--cluster", &cluster.path("cluster"), "--json"])?;
        let check: Json = serde_json::from_str(&said.out).unwrap_or_default();
        acknowledged += written;
        if check["acknowledged"].as_u64() != Some(written) || check["found"] != check["acknowledged"] || check["invariant"]["held"] != true
        {
            shared.violated(format!("of {written} transfers that {name} says were acknowledged: {check} {}", said.why()));
        }
    }
    Ok(acknowledged)
}
