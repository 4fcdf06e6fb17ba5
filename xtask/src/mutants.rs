//! Mutants: each rule of the protocol is broken in turn, and a run of the simulator or a test must notice.

use std::path::PathBuf;
use std::process::Stdio;
use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ci::{build_programs, in_root, in_root_run};
use crate::process::show;
use crate::workspace::Workspace;

/// The page with the table of who notices what.
const PAGE: &str = "docs/testing.md";

/// In so many seeds of each scenario a mutant is looked for, before it is looked for in tests.
const SEEDS: &str = "2";

/// Whose tests may notice: those of the crates whose rules can be broken, the quickest first.
const CRATES: [&str; 7] = ["machine", "augustus", "basil", "crypto", "runtime", "sentinel", "store"];

/// Whether every mutant is caught by the run, or the test, that the table names.
pub fn check(workspace: &Workspace) -> Result<()> {
    let tests = build(workspace)?;
    show(in_root_run(workspace, EXAMPLE).args(["check", PAGE]).arg(tests))
}

/// Hunts for every mutant that is not, and writes the table anew.
pub fn hunt(workspace: &Workspace) -> Result<()> {
    let tests = build(workspace)?;
    show(in_root_run(workspace, EXAMPLE).args(["write", PAGE]).arg(tests).arg(SEEDS))
}

/// What breaks rules and sees who notices. It is optimised, as whole runs of worlds take their time.
const EXAMPLE: &str = "debug/examples/mutants";

/// What the program is called that has all tests in a crate's folder `tests`, each file of it as a module.
const ALL_TESTS: &str = "all";

/// Builds that, and the tests of those crates, and gives a list of these: what the names of a program's tests begin with, the program, and
/// the folder it is to run in. In a build of the whole workspace every rule can be broken, so they are the same as anybody's tests.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    build_programs(workspace)?;
    println!("building the tests");
    let mut build = in_root(workspace);
    build.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output().context("cannot run `cargo test`")?;
    ensure!(output.status.success(), "the tests cannot be built");
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("`cargo test` printed no JSON")?;
        let Some((prefix, program, folder)) = program(&message) else { continue };
        if CRATES.iter().any(|name| prefix.split("::").next() == Some(name)) {
            programs.push(format!("{prefix}\t{program}\t{}\n", folder.display()));
        }
    }
    let path = workspace.target.join("mutants-tests");
    programs.sort_by_key(|line| (CRATES.iter().position(|name| line.starts_with(name)), line.clone()));
    fs::write(&path, programs.concat()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// A program with tests, if that is what cargo says it built.
fn program(message: &Value) -> Option<(String, &str, &Path)> {
    let program = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    let target = &message["target"];
    let prefix = match target["name"].as_str()? {
        _ if target["kind"][0] == "lib" => format!("{package}::"),
        ALL_TESTS => format!("{package}::"),
        name => format!("{package}::{name}::"),
    };
    Some((prefix, program, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(kind: &str, name: &str, is_test: bool) -> Value {
        serde_json::json!({
            "executable": "/t/one", "manifest_path": "/r/crates/basil/Cargo.toml", "profile": {"test": is_test},
            "target": {"kind": [kind], "name": name},
        })
    }

    #[test]
    fn a_test_is_named_after_its_package_and_program() {
        let folder = Path::new("/r/crates/basil");
        assert_eq!(program(&built("lib", "basil", true)), Some(("basil::".to_owned(), "/t/one", folder)));
        assert_eq!(program(&built("test", "all", true)), Some(("basil::".to_owned(), "/t/one", folder)));
        assert_eq!(program(&built("test", "apart", true)), Some(("basil::apart::".to_owned(), "/t/one", folder)));
        assert_eq!(program(&built("example", "demo", false)), None);
    }
}
