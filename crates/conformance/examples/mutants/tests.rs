//! Tests that notice a broken rule: programs in which rules can be broken, run with the name of a mutant in their environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mutants::{Mutant, VARIABLE};

/// How long a test may take: it neither passes nor fails when a broken rule keeps it going for ever.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a running test is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A program with tests.
struct Program {
    /// What its tests' names begin with, as `basil::scripts::`.
    prefix: String,
    path: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

/// All programs with tests.
pub struct Tests(Vec<Program>);

/// How a test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    /// It did not end, or is none.
    Neither,
}

impl Tests {
    /// Reads a list of programs, as `cargo xtask mutants` writes it: what their tests' names begin with, a path, a folder.
    pub fn read(list: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(list).map_err(|error| format!("cannot read {list}: {error}"))?;
        let program = |line: &str| {
            let mut columns = line.split('\t');
            let (prefix, path, folder) = (columns.next()?, columns.next()?, columns.next()?);
            Some(Program { prefix: prefix.to_owned(), path: path.into(), folder: folder.into() })
        };
        let programs: Option<Vec<Program>> = text.lines().map(program).collect();
        Ok(Self(programs.ok_or(format!("{list} does not have three columns"))?))
    }

    /// Runs one test, with one rule broken or none.
    pub fn run(&self, name: &str, mutant: Option<Mutant>) -> End {
        // What a library's tests begin with is also how those of its other programs begin, and one of these may be called as
        // a module of the library is: so the name alone does not say which program has the test.
        let fitting = self.0.iter().filter(|program| name.starts_with(&program.prefix));
        let mut ends = fitting.map(|program| program.run_one(&name[program.prefix.len()..], mutant));
        ends.find(|end| *end != End::Neither).unwrap_or(End::Neither)
    }

    /// Which tests of a program fail with a rule broken: of the first program that has any.
    pub fn failing(&self, mutant: Mutant) -> Vec<String> {
        let failing = self.0.iter().map(|program| {
            let said = program.run(&["--test-threads=1"], Some(mutant));
            let failed = |line: &str| {
                let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
                Some(format!("{}{}", program.prefix, name.trim_end_matches(" - should panic")))
            };
            said.iter().flat_map(|(_, said)| said.lines()).filter_map(failed).collect::<Vec<_>>()
        });
        failing.into_iter().find(|names| !names.is_empty()).unwrap_or_default()
    }
}

impl Program {
    /// Runs its test of that name, if it has one.
    fn run_one(&self, name: &str, mutant: Option<Mutant>) -> End {
        // One test, and not none at all.
        match self.run(&["--exact", name], mutant) {
            Some((true, said)) if said.contains(" 1 passed; 0 failed") => End::Passed,
            Some((false, said)) if said.contains(" 0 passed; 1 failed") => End::Failed,
            _ => End::Neither,
        }
    }

    /// Whether it succeeded, and what it said; nothing when it did not end.
    fn run(&self, arguments: &[&str], mutant: Option<Mutant>) -> Option<(bool, String)> {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(&self.folder);
        match mutant {
            Some(mutant) => command.env(VARIABLE, mutant.name()),
            None => command.env_remove(VARIABLE),
        };
        until(LIMIT, &mut command)
    }
}

/// Runs a program for no longer than that: whether it succeeded, and what it wrote; nothing when it had to be ended.
pub fn until(limit: Duration, command: &mut Command) -> Option<(bool, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut pipe = child.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut pipe, &mut said).map(|_| said)
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(POLL_INTERVAL),
            Ok(None) | Err(_) => {
                child.kill().ok();
                child.wait().ok();
                break None;
            }
        }
    };
    let said = reader.join().ok()?.ok()?;
    Some((status?.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Of tests that fail, for each of some mutants, the one that says most about it: the one that the fewest others fail.
pub fn tellings(failing: &[Vec<String>]) -> Vec<Option<String>> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    failing.iter().flatten().for_each(|name| *count.entry(name).or_default() += 1);
    let best = |names: &Vec<String>| names.iter().min_by_key(|name| (count[name.as_str()], *name)).cloned();
    failing.iter().map(best).collect()
}
