//! The program as a newcomer meets it: the README's first command, and one short bench against real processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ci::build_programs;
use crate::process::{capture, show};
use crate::readme;
use crate::workspace::{Workspace, cargo};

/// A cold release build is inside it.
const FIRST_COMMAND_LIMIT: Duration = Duration::from_secs(40 * 60);
/// How long one command of the program may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How often a cluster that starts is asked whether it serves.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the README's first command as it stands there; a transaction must commit and be read back.
pub fn first_command(workspace: &Workspace) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join("README.md")).context("cannot read README.md")?;
    let command = readme::command(&text, readme::FIRST_COMMAND)?;
    // Inside the repository, so that cargo finds it; a folder of its own, so that nobody's data is touched.
    let folder = Folder::new(&workspace.root.join("target/smoke/first-command"))?;
    let output = capture(Command::new("bash").current_dir(&folder.0).args(["-c", command]), FIRST_COMMAND_LIMIT)?;
    judge_first_command(&output)
}

/// Some line must say that a transaction committed, and one that does not repeat the `put` must show the value.
fn judge_first_command(output: &str) -> Result<()> {
    ensure!(output.contains("committed"), "the README's first command committed nothing");
    let read_back = output.lines().any(|line| line.contains("hello") && !line.contains("put"));
    ensure!(read_back, "the README's first command did not read back what it wrote");
    Ok(())
}

/// Makes a cluster, starts it as processes, benches it for two seconds, and stops it, whatever happens.
pub fn bench(workspace: &Workspace) -> Result<()> {
    show(Command::new(cargo()).current_dir(&workspace.root).args(["build", "--release", "--package", "bezant"]))?;
    let bezant = workspace.target.join("release/bezant");
    let folder = Folder::new(&workspace.root.join("target/smoke/bench"))?;
    let cluster = folder.0.join("cluster").to_str().context("the repository's path is not text")?.to_owned();
    let run = |arguments: &[&str]| capture(Command::new(&bezant).current_dir(&folder.0).args(arguments), COMMAND_LIMIT);
    run(&["init", &cluster, "--engine", "basil", "--faults", "1", "--shards", "1", "--base-port", "auto"])?;
    let result = run(&["up", &cluster]).and_then(|_| {
        run(&["bench", "rw-u", "--cluster", &cluster, "--keys", "1000", "--load", "--clients", "4", "--seconds", "2", "--json"])
    });
    let down = run(&["down", &cluster]);
    judge(&result?)?;
    down.map(|_| ())
}

/// Runs each program of `examples/` against a cluster of `bezant dev`.
pub fn examples(workspace: &Workspace) -> Result<()> {
    show(Command::new(cargo()).current_dir(&workspace.root).args(["build", "--release", "--package", "bezant"]))?;
    build_programs(workspace)?;
    let folder = Folder::new(&workspace.root.join("target/smoke/examples"))?;
    let program = |path: &str| {
        let mut command = Command::new(workspace.target.join(path));
        command.current_dir(&folder.0);
        command
    };
    let bezant = || program("release/bezant");
    let mut dev = Dev(bezant().args(["dev", "--base-port", "auto"]).spawn().context("cannot start `bezant dev`")?);
    dev.serves(|| bezant().arg("status").stdout(Stdio::null()).stderr(Stdio::null()).status())?;
    let run = |name: &str| capture(&mut program(&format!("debug/{name}")), COMMAND_LIMIT);
    judge_examples(&run("bank-transfer")?, &run("queue")?, &run("report")?)
}

/// The bank's money is all there after the transfers, and each of the queue's jobs was taken once.
fn judge_examples(bank: &str, queue: &str, report: &str) -> Result<()> {
    ensure!(bank.contains(" transfers committed "), "`bank-transfer` does not say how many transfers committed");
    ensure!(queue.contains("30 jobs taken, 30 of them distinct"), "`queue` lost a job, or took one twice");
    ensure!(report.contains("total 1000 as of "), "`report` does not find the money that the accounts were opened with");
    Ok(())
}

/// A cluster in one process, which ends with its owner.
struct Dev(Child);

impl Dev {
    /// Waits until `status` says that all replicas serve.
    fn serves(&mut self, status: impl Fn() -> std::io::Result<ExitStatus>) -> Result<()> {
        let start = Instant::now();
        while !status().context("cannot run `bezant status`")?.success() {
            ensure!(self.0.try_wait()?.is_none(), "`bezant dev` has ended");
            ensure!(start.elapsed() < COMMAND_LIMIT, "`bezant dev` does not serve within {} s", COMMAND_LIMIT.as_secs());
            std::thread::sleep(STATUS_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Its data goes too, so nothing is lost by ending it at once. It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The object that `bench --json` prints must show that transactions were committed.
fn judge(output: &str) -> Result<()> {
    let report: Value = serde_json::from_str(output.trim()).context("`bench --json` did not print one JSON object")?;
    let committed = report["committed"].as_u64().context("the report has no number `committed`")?;
    ensure!(committed > 0, "the bench committed nothing");
    let rate = report["fast_path_rate"].as_f64().context("the report has no number `fast_path_rate`")?;
    ensure!((0.0..=1.0).contains(&rate), "`fast_path_rate` is a share of 1, not {rate}");
    ensure!(report["latency_us"]["p50"].as_f64().is_some(), "the report has no number `latency_us.p50`");
    Ok(())
}

/// A folder that begins empty and is gone at the end, also when a step fails.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(path).with_context(|| format!("cannot empty {}", path.display()))?;
        }
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path.to_path_buf()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is emptied again at the next run; a failure here must not hide the one that led here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_command_that_commits_nothing_or_reads_nothing_back_fails() {
        assert!(judge_first_command("get greeting: hello\ncommitted s0 fast\n").is_ok());
        for output in ["", "hello\n", "committed\n", "put greeting hello: committed\n"] {
            assert!(judge_first_command(output).is_err(), "{output}");
        }
    }

    #[test]
    fn an_example_that_loses_something_fails() {
        let (bank, queue, report) =
            ("9 transfers committed and 1 were refused", "30 jobs taken, 30 of them distinct", "total 1000 as of 1");
        assert!(judge_examples(bank, queue, report).is_ok());
        assert!(judge_examples("", queue, report).is_err());
        assert!(judge_examples(bank, "30 jobs taken, 29 of them distinct", report).is_err());
        assert!(judge_examples(bank, queue, "total 999 as of 1").is_err());
    }

    #[test]
    fn a_bench_that_commits_nothing_or_says_nothing_fails() {
        assert!(judge(r#"{"committed": 12, "fast_path_rate": 0.9, "latency_us": {"p50": 900.0}}"#).is_ok());
        for output in [
            "",
            "12 committed",
            r#"{"committed": 0, "fast_path_rate": 0.9, "latency_us": {"p50": 900.0}}"#,
            r#"{"committed": 12, "latency_us": {"p50": 900.0}}"#,
            r#"{"committed": 12, "fast_path_rate": 90, "latency_us": {"p50": 900.0}}"#,
            r#"{"committed": 12, "fast_path_rate": 0.9}"#,
        ] {
            assert!(judge(output).is_err(), "{output}");
        }
    }
}
