//! Fuzzing: builds what the crate `fuzz` has, and runs its targets.
//!
//! Where a C++ compiler is, libFuzzer is built and guides itself by what an input reaches; our own crates are then built a
//! second time, instrumented. Where there is none, inputs of the corpus are changed blindly: less is found, and nothing more is
//! needed than for everything else.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::ci::build_programs;
use crate::process::show;
use crate::workspace::{Workspace, cargo};

/// How long each target is run when nobody says.
const SECONDS: u64 = 60;
/// How long one input may take, in seconds: far more than any does on a busy computer.
const INPUT_SECONDS_MAX: u64 = 60;
/// How much memory one target may take, in MiB.
const MEMORY_MIB_MAX: u64 = 2_048;
/// The seed of what CI draws, so that it draws the same each time.
const SEED: u64 = 1;
/// How many inputs are changed blindly between two looks at the clock.
const BLIND_ROUND: u32 = 2_000;
/// The variable that tells the guided program its target.
const TARGET_VARIABLE: &str = "BEZANT_FUZZ_TARGET";

/// How long a target is run.
#[derive(Clone, Copy)]
enum Extent {
    /// As many inputs as it sets for CI, beginning from what is committed, the same each time.
    Runs,
    /// For a while, beginning from what earlier runs found.
    Seconds(u64),
}

/// Runs the targets named, or all.
pub fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (mut names, mut seconds) = (BTreeSet::new(), SECONDS);
    let mut words = arguments.iter();
    let mut only_list = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => seconds = words.next().and_then(|number| number.parse().ok()).context("--seconds takes a number")?,
            "--list" => only_list = true,
            flag if flag.starts_with('-') => bail!("`fuzz` takes a target's name, --seconds N and --list, not `{flag}`"),
            name => drop(names.insert(name.to_owned())),
        }
    }
    let fuzzer = Fuzzer::plain(workspace)?;
    if only_list {
        for target in &fuzzer.targets {
            println!("{:<14} {}", target.name, target.what);
        }
        return Ok(());
    }
    if let Some(unknown) = names.iter().find(|name| fuzzer.targets.iter().all(|target| target.name != **name)) {
        bail!("there is no target `{unknown}`; `cargo xtask fuzz --list` names them");
    }
    fuzzer.guided_if_possible()?.run(&names, Extent::Seconds(seconds))
}

/// Every target, for the number of inputs that it sets itself.
pub fn ci(workspace: &Workspace) -> Result<()> {
    let fuzzer = Fuzzer::plain(workspace)?;
    fuzzer.check_corpus()?;
    fuzzer.guided_if_possible()?.run(&BTreeSet::new(), Extent::Runs)
}

/// A line of what `fuzz list` prints.
struct Target {
    name: String,
    bytes_max: String,
    runs: u32,
    what: String,
}

struct Fuzzer<'a> {
    workspace: &'a Workspace,
    /// The program that needs nothing but cargo.
    plain: PathBuf,
    /// libFuzzer, if it could be built.
    guided: Option<PathBuf>,
    targets: Vec<Target>,
}

impl<'a> Fuzzer<'a> {
    fn plain(workspace: &'a Workspace) -> Result<Self> {
        build_programs(workspace)?;
        let plain = workspace.target.join("debug/fuzz");
        let listed = Command::new(&plain).arg("list").output().with_context(|| format!("cannot run {}", plain.display()))?;
        ensure!(listed.status.success(), "`fuzz list` failed: {}", String::from_utf8_lossy(&listed.stderr));
        let text = String::from_utf8(listed.stdout).context("`fuzz list` prints text")?;
        let targets = text.lines().map(parse).collect::<Option<Vec<_>>>().context("`fuzz list` prints four columns")?;
        Ok(Self { workspace, plain, guided: None, targets })
    }

    fn guided_if_possible(mut self) -> Result<Self> {
        if let Err(error) = try_compiler(&self.scratch()?) {
            println!("libFuzzer is not used: {error:#}; inputs are changed blindly instead");
            return Ok(self);
        }
        let instrument = self.workspace.root.join("fuzz/instrument");
        let mut build = Command::new(cargo());
        build.current_dir(&self.workspace.root).env("RUSTC_WORKSPACE_WRAPPER", instrument);
        show(build.args(["build", "--workspace", "--bin", "fuzz-guided", "--features", "fuzz/libfuzzer"]))?;
        self.guided = Some(self.workspace.target.join("debug/fuzz-guided"));
        Ok(self)
    }

    /// Every target has its corpus, and every corpus its target.
    fn check_corpus(&self) -> Result<()> {
        let corpus = self.workspace.root.join("fuzz/corpus");
        for target in &self.targets {
            let folder = corpus.join(&target.name);
            let has_files = fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some());
            ensure!(has_files, "{} is empty; `cargo run -p fuzz -- seeds fuzz/corpus` fills it", folder.display());
        }
        for entry in fs::read_dir(&corpus).with_context(|| format!("cannot list {}", corpus.display()))? {
            let name = entry?.file_name();
            let is_known = self.targets.iter().any(|target| *target.name == *name);
            ensure!(is_known, "fuzz/corpus/{} is no target's: take it out", name.display());
        }
        Ok(())
    }

    /// Runs these targets, or all, as many at a time as there are cores. After the first that fails no other begins.
    fn run(&self, names: &BTreeSet<String>, extent: Extent) -> Result<()> {
        let is_meant = |target: &&Target| names.is_empty() || names.contains(&target.name);
        let targets = Mutex::new(self.targets.iter().filter(is_meant));
        let next = || targets.lock().unwrap_or_else(PoisonError::into_inner).next();
        let run_some = || {
            while let Some(target) = next() {
                if let Err(error) = self.run_one(target, extent) {
                    while next().is_some() {}
                    return Err(error);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(run_some)).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("it gives errors back, and does not panic"))
        })
    }

    fn run_one(&self, target: &Target, extent: Extent) -> Result<()> {
        let started = Instant::now();
        let done = match &self.guided {
            Some(program) => self.run_guided(program, target, extent),
            None => self.run_blindly(target, extent),
        };
        let done = done.with_context(|| format!("target `{}`", target.name))?;
        println!("{:<14} {done} in {:.1} s", target.name, started.elapsed().as_secs_f64());
        Ok(())
    }

    fn run_guided(&self, program: &Path, target: &Target, extent: Extent) -> Result<String> {
        let committed = self.workspace.root.join("fuzz/corpus").join(&target.name);
        let (folder, extent) = match extent {
            Extent::Runs => {
                let folder = self.scratch()?.join("ci").join(&target.name);
                let _ = fs::remove_dir_all(&folder); // What it found the last time would change what it finds now.
                (folder, vec![format!("-runs={}", target.runs), format!("-seed={SEED}")])
            }
            Extent::Seconds(seconds) => (self.scratch()?.join("corpus").join(&target.name), vec![format!("-max_total_time={seconds}")]),
        };
        let findings = self.scratch()?.join("findings");
        for folder in [&folder, &findings] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut command = Command::new(program);
        command.env(TARGET_VARIABLE, &target.name).args(extent).arg(format!("-max_len={}", target.bytes_max));
        command.arg(format!("-timeout={INPUT_SECONDS_MAX}")).arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        command.arg(format!("-artifact_prefix={}/{}-", findings.display(), target.name)).arg("-print_final_stats=1");
        let dictionary = self.workspace.root.join("fuzz/dictionaries").join(&target.name);
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        let log = self.logged(command.arg(folder).arg(committed), target)?;
        let executed = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).unwrap_or("?").trim();
        let covered = log.lines().rev().find_map(|line| line.split_once(" cov: ")).map_or("?", |(_, rest)| word(rest));
        Ok(format!("{executed} inputs, {covered} edges reached"))
    }

    fn run_blindly(&self, target: &Target, extent: Extent) -> Result<String> {
        let committed = self.workspace.root.join("fuzz/corpus").join(&target.name);
        let findings = self.scratch()?.join("findings");
        fs::create_dir_all(&findings).with_context(|| format!("cannot make {}", findings.display()))?;
        let trial = findings.join(format!("{}-blind", target.name));
        let (runs, time) = match extent {
            Extent::Runs => (target.runs, Duration::ZERO),
            Extent::Seconds(seconds) => (BLIND_ROUND, Duration::from_secs(seconds)),
        };
        let (started, mut rounds) = (Instant::now(), 0);
        loop {
            let seed = (SEED + rounds).to_string();
            let mut command = Command::new(&self.plain);
            command.args(["blind", &target.name, &runs.to_string(), &seed]).args([&trial, &committed]);
            self.logged(&mut command, target)?;
            rounds += 1;
            if started.elapsed() >= time {
                return Ok(format!("{} blindly changed inputs", u64::from(runs) * rounds));
            }
        }
    }

    /// Runs a program, and gives what it said; when it fails, says where the input lies that was the end of it.
    fn logged(&self, command: &mut Command, target: &Target) -> Result<String> {
        let path = self.scratch()?.join(format!("{}.log", target.name));
        let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let both = log.try_clone().context("cannot write one log from two places")?;
        let status = command.stdin(Stdio::null()).stdout(log).stderr(both).status().context("cannot run the fuzzer")?;
        let text = String::from_utf8_lossy(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?).into_owned();
        if !status.success() {
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
            bail!(
                "it failed with {status}; all it said is in {}, the input in {}: run it again with `cargo run -p fuzz -- run {} FILE`",
                path.display(),
                self.scratch()?.join("findings").display(),
                target.name
            );
        }
        Ok(text)
    }

    /// Where everything lies that is found and not committed.
    fn scratch(&self) -> Result<PathBuf> {
        let folder = self.workspace.target.join("fuzz");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }
}

fn parse(line: &str) -> Option<Target> {
    let mut columns = line.split('\t').map(str::to_owned);
    let (name, bytes_max, runs) = (columns.next()?, columns.next()?, columns.next()?.parse().ok()?);
    Some(Target { name, bytes_max, runs, what: columns.next()? })
}

fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("?")
}

/// Whether C++ can be compiled and linked here, by the compiler that would build libFuzzer.
fn try_compiler(scratch: &Path) -> Result<()> {
    let (source, program) = (scratch.join("try.cc"), scratch.join("try"));
    fs::write(&source, "#include <vector>\nint main() { return std::vector<int>().size(); }\n").context("cannot write a file")?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let tried = Command::new(&compiler).arg(&source).arg("-o").arg(&program).output();
    let tried = tried.with_context(|| format!("there is no C++ compiler ({compiler})"))?;
    ensure!(tried.status.success(), "the C++ compiler ({compiler}) does not work");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_four_columns() {
        let target = parse("codec\t2048\t40000\tdecodes a value").expect("four columns");
        assert_eq!((target.name.as_str(), target.bytes_max.as_str(), target.runs), ("codec", "2048", 40_000));
        assert_eq!(target.what, "decodes a value");
        assert!(parse("codec\t2048\tmany\tdecodes").is_none() && parse("codec").is_none());
    }

    #[test]
    fn a_compiler_that_is_not_there_is_said_to_be_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("no-such-folder");
        assert!(try_compiler(&missing).is_err());
    }
}
