//! The product alone: what `bezant` is built from, what is in the program, and what it refuses.
//!
//! Cargo builds a crate once for a whole workspace, with every feature that anybody asks for. So nothing that is seen of a
//! build of the workspace says what a user gets; here `bezant` is built by itself, as a user builds it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use mutants::Mutant;

use crate::ci::in_root;
use crate::process::show;
use crate::smoke::Folder;
use crate::workspace::Workspace;

/// Crates that the product must not reach, and why.
const KEPT_OUT: &[(&str, &str)] = &[
    ("adversary", "clients that cheat are for the laboratory"),
    ("bezant-lab", "the laboratory stands over the product"),
    ("capacity", "predictions are for the laboratory"),
    ("conformance", "simulation is for the laboratory"),
    ("figures", "figures are for the laboratory"),
    ("simulator", "simulation is for the laboratory"),
    ("toy", "the toy engine is for tests"),
    ("proptest", "tests stay tests"),
    ("plotters", "nothing is drawn"),
    ("resvg", "nothing is drawn"),
    ("ttf-noto-sans", "nothing is drawn"),
];

/// Features of our crates that the product is built without.
const FEATURES_OFF: &[&str] = &["enabled", "lab", "mutants"];

/// What no byte of the program may spell, beside the names of all mutants: names that only the laboratory's code has, and the folders that it
/// is compiled from.
const UNSPOKEN: &[&str] = &[
    "BEZANT_CLOCK_SET_OFF",
    "BEZANT_MUTANT",
    "byzantine-clients",
    "BROKEN ON PURPOSE",
    "ap-northeast-1",
    "crates/adversary/src",
    "crates/bezant-lab/src",
    "crates/capacity/src",
    "crates/conformance/src",
    "crates/figures/src",
    "crates/simulator/src",
    "crates/toy/src",
];

/// Command lines that only `bezant-lab` takes, and what the refusal names.
const REFUSED_COMMANDS: &[(&[&str], &str)] = &[
    (&["sim", "calm"], "'sim'"),
    (&["figures"], "'figures'"),
    (&["predict"], "'predict'"),
    (&["init", "other", "--signatures", "off"], "'--signatures'"),
    (&["init", "other", "--fast-path", "off"], "'--fast-path'"),
    (&["init", "other", "--structural-locks", "whole-shard"], "'--structural-locks'"),
    (&["init", "other", "--read-quorum", "1"], "only `bezant-lab` takes it"),
    (&["dev", "other", "--regions", "planet"], "'--regions'"),
    (&["up", "cluster", "--regions", "planet"], "'--regions'"),
    (&["node", "cluster/s0-r0", "--regions", "planet"], "'--regions'"),
    (&["get", "a", "--cluster", "cluster", "--regions", "planet"], "'--regions'"),
    (&["bench", "rw-u", "--cluster", "cluster", "--byzantine-clients", "0.3"], "'--byzantine-clients'"),
    (&["bench", "rw-u", "--cluster", "cluster", "--hurry"], "'--hurry'"),
    (&["bench", "buzzer", "--cluster", "cluster", "--on-redis"], "'--on-redis'"),
];

/// Lines of files that only `bezant-lab` takes: the file, the line, and who reads it.
const REFUSED_LINES: &[(&str, &str, &[&str])] = &[
    ("cluster/client/client.toml", "fast_path = \"off\"", GET),
    ("cluster/client/client.toml", "read_only = \"voted\"", GET),
    ("cluster/client/client.toml", "read_quorum = \"1\"", GET),
    ("cluster/client/cluster.toml", "signatures = \"off\"", GET),
    ("cluster/s0-r0/cluster.toml", "signatures = \"off\"", &["node", "cluster/s0-r0"]),
    ("cluster/run/regions.toml", "regions = []", GET),
];

const GET: &[&str] = &["get", "a", "--cluster", "cluster"];

/// The exit code for what was asked or configured wrongly.
const WRONG: i32 = 2;

/// Builds the product by itself and looks at it.
pub fn run(workspace: &Workspace) -> Result<()> {
    let parts = tree(workspace)?;
    let ours: Vec<&str> = workspace.members.keys().map(String::as_str).collect();
    refuse(judge_parts(&parts, &ours))?;
    // What is compiled only without the laboratory is linted only here.
    show(in_root(workspace).args(["clippy", "--package", "bezant", "--", "-D", "warnings"]))?;
    show(in_root(workspace).args(["build", "--release", "--package", "bezant"]))?;
    let program = workspace.target.join("release/bezant");
    let bytes = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    refuse(judge_bytes(&bytes))?;
    refuse_laboratory(workspace, &program)?;
    println!("product: {} crates, {} bytes with line tables, and nothing of the laboratory", parts.len(), bytes.len());
    Ok(())
}

fn refuse(breaches: Vec<String>) -> Result<()> {
    for breach in &breaches {
        eprintln!("product: {breach}");
    }
    if breaches.is_empty() { Ok(()) } else { bail!("{} things in the product that do not belong there", breaches.len()) }
}

/// What the product is linked with: each a crate's name, and the features it is built with, separated by commas.
fn tree(workspace: &Workspace) -> Result<BTreeSet<(String, String)>> {
    let mut command = in_root(workspace);
    command.args(["tree", "--package", "bezant", "--edges", "normal,build", "--prefix", "none", "--no-dedupe", "--format", "{p}|{f}"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run `cargo tree`")?;
    ensure!(output.status.success(), "`cargo tree` failed");
    let parts: BTreeSet<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(part).collect();
    ensure!(parts.iter().any(|(name, _)| name == "bezant"), "`cargo tree` does not name the product");
    Ok(parts)
}

fn part(line: &str) -> Option<(String, String)> {
    let (package, features) = line.split_once('|')?;
    Some((package.split(' ').next()?.to_owned(), features.trim_end_matches(" (*)").to_owned()))
}

fn judge_parts(parts: &BTreeSet<(String, String)>, ours: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, features) in parts {
        if let Some((_, why)) = KEPT_OUT.iter().find(|(kept_out, _)| kept_out == name) {
            breaches.push(format!("`bezant` reaches `{name}`: {why}"));
        }
        if let Some(on) = features.split(',').find(|feature| ours.contains(&name.as_str()) && FEATURES_OFF.contains(feature)) {
            breaches.push(format!("`{name}` is built for `bezant` with its feature `{on}`, which is for the laboratory"));
        }
    }
    breaches
}

fn judge_bytes(program: &[u8]) -> Vec<String> {
    let words = UNSPOKEN.iter().copied().chain(Mutant::ALL.iter().map(|mutant| mutant.name()));
    spelled(program, words).into_iter().map(|word| format!("the program spells `{word}`, which is the laboratory's")).collect()
}

/// Which of `words` the program spells, all looked for in one pass: a program is large.
fn spelled<'a>(program: &[u8], words: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let start = |bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut by_start: Vec<Vec<&str>> = vec![Vec::new(); 1 << 16];
    for word in words {
        by_start[start(word.as_bytes())].push(word);
    }
    let mut found = BTreeSet::new();
    for (at, bytes) in program.windows(2).enumerate() {
        found.extend(by_start[start(bytes)].iter().filter(|word| program[at..].starts_with(word.as_bytes())));
    }
    found
}

/// Every command, option and setting of the laboratory is refused, and named.
fn refuse_laboratory(workspace: &Workspace, program: &Path) -> Result<()> {
    let folder = Folder::new(&workspace.root.join("target/product"))?;
    let run = |arguments: &[&str]| {
        let output = Command::new(program).current_dir(&folder.0).args(arguments).stdin(Stdio::null()).output();
        output.with_context(|| format!("cannot run `bezant {}`", arguments.join(" ")))
    };
    let refuses = |arguments: &[&str], named: &str| -> Result<()> {
        let output = run(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let line = arguments.join(" ");
        ensure!(output.status.code() == Some(WRONG), "`bezant {line}` ends with {}, not with exit code {WRONG}: {said}", output.status);
        ensure!(said.contains(named), "`bezant {line}` does not name {named}: {said}");
        Ok(())
    };
    let made = run(&["init", "cluster", "--base-port", "auto"])?;
    ensure!(made.status.success(), "`bezant init` failed: {}", String::from_utf8_lossy(&made.stderr));
    for (arguments, named) in REFUSED_COMMANDS {
        refuses(arguments, named)?;
    }
    for (file, line, reader) in REFUSED_LINES {
        let path = folder.0.join(file);
        let before = fs::read_to_string(&path).ok();
        let key = line.split(' ').next().unwrap_or_default();
        // In the place of the same setting, if the file has it; else first, where no table has begun yet.
        let rest = before.iter().flat_map(|text| text.lines()).filter(|other| !other.starts_with(&format!("{key} =")));
        let text: String = std::iter::once(*line).chain(rest).flat_map(|line| [line, "\n"]).collect();
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        refuses(reader, "only `bezant-lab` takes it").with_context(|| format!("with `{line}` in {file}"))?;
        match before {
            Some(before) => fs::write(&path, before)?,
            None => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &[&str] = &["backup", "bezant", "mutants", "simulator"];

    fn parts(lines: &[&str]) -> BTreeSet<(String, String)> {
        lines.iter().filter_map(|line| part(line)).collect()
    }

    #[test]
    fn a_product_by_itself_has_nothing_of_the_laboratory() {
        let product = parts(&["bezant v0.1.0 (/r/crates/bezant)|", "mutants v0.1.0 (/r/crates/mutants)| (*)", "toml v1.2.0|display,parse"]);
        assert_eq!((product.len(), judge_parts(&product, OURS)), (3, Vec::<String>::new()));
    }

    #[test]
    fn a_crate_or_a_feature_of_the_laboratory_is_a_breach() {
        let linked = ["backup v0.1.0 (/r)|lab", "bezant v0.1.0 (/r)|default,lab", "simulator v0.1.0 (/r)|", "mutants v0.1.0 (/r)|enabled"];
        let found = judge_parts(&parts(&linked), OURS);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("its feature `lab`") && found[3].contains("reaches `simulator`"), "{found:?}");
        assert!(judge_parts(&parts(&["indexmap v2.0.0|enabled"]), OURS).is_empty(), "others may call features what they like");
    }

    #[test]
    fn a_word_of_the_laboratory_in_the_program_is_a_breach() {
        assert_eq!(judge_bytes(b"\0crates/client/src/lib.rs\0"), Vec::<String>::new());
        assert_eq!(judge_bytes(b"\0crates/simulator/src/lib.rs\0BEZANT_MUTANT").len(), 2);
        for mutant in Mutant::ALL {
            let found = judge_bytes(format!("\0before{}", mutant.name()).as_bytes());
            assert!(found.iter().any(|breach| breach.contains(mutant.name())), "{}: {found:?}", mutant.name());
        }
    }
}
