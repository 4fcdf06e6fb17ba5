//! Mutants: each rule of the protocol is broken in turn, and a run of the simulator or a test must notice.

use std::path::PathBuf;
use std::process::Stdio;
use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ci::in_root;
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
    let tests = build_tests(workspace)?;
    show(in_root(workspace).args(EXAMPLE).args(["check", PAGE]).arg(tests))
}

/// Hunts for every mutant that is not, and writes the table anew.
pub fn hunt(workspace: &Workspace) -> Result<()> {
    let tests = build_tests(workspace)?;
    show(in_root(workspace).args(EXAMPLE).args(["write", PAGE]).arg(tests).arg(SEEDS))
}

/// Optimised, as whole runs of worlds take their time; what a mutant is made of is in no other build.
const EXAMPLE: [&str; 10] =
    ["run", "--profile", "quick", "--package", "conformance", "--features", "mutants", "--example", "mutants", "--"];

/// Builds the tests of those crates with the feature `mutants`, and gives a list of them: what the names of a program's tests
/// begin with, the program, and the folder it is to run in.
fn build_tests(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = in_root(workspace);
    build.args(["test", "--no-run", "--features", "mutants/enabled", "--message-format", "json-render-diagnostics"]);
    build.args(CRATES.iter().flat_map(|name| ["--package", name]));
    println!("building the tests of {} with mutants", CRATES.join(", "));
    let output = build.stderr(Stdio::inherit()).output().context("cannot run `cargo test`")?;
    ensure!(output.status.success(), "the tests cannot be built with mutants");
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("`cargo test` printed no JSON")?;
        if let Some((prefix, program, folder)) = program(&message) {
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
    let prefix = if target["kind"][0] == "lib" { format!("{package}::") } else { format!("{package}::{}::", target["name"].as_str()?) };
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
        assert_eq!(program(&built("test", "scripts", true)), Some(("basil::scripts::".to_owned(), "/t/one", folder)));
        assert_eq!(program(&built("example", "demo", false)), None);
    }
}
