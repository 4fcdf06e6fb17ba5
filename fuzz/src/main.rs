//! Lists targets, runs them on files, writes seeds, and changes inputs blindly. `cargo xtask fuzz` calls it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use fuzz::{Target, blind, target, targets};
use sha2::{Digest as _, Sha256};

const USAGE: &str = "\
usage: fuzz COMMAND

  list                               name, longest input, runs in CI and what it tries, of every target
  seeds FOLDER [TARGET...]           writes what the corpus begins with, a folder a target
  run TARGET PATH...                 runs files, or all files of folders
  blind TARGET RUNS SEED FILE PATH...  runs those, then changed copies of them; FILE holds the input under trial";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for target in targets() {
                println!("{}\t{}\t{}\t{}", target.name, target.bytes_max, target.runs, target.what);
            }
            Ok(())
        }
        ["seeds", folder, names @ ..] => write_seeds(Path::new(folder), names),
        ["run", name, paths @ ..] => {
            let target = named(name)?;
            for input in inputs(paths)? {
                (target.run)(&input);
            }
            Ok(())
        }
        ["blind", name, runs, seed, file, paths @ ..] => {
            let (runs, seed) = (runs.parse().context("RUNS is a number")?, seed.parse().context("SEED is a number")?);
            run_blindly(named(name)?, runs, seed, Path::new(file), &inputs(paths)?)
        }
        _ => bail!("{USAGE}"),
    }
}

fn named(name: &str) -> Result<&'static Target> {
    target(name).with_context(|| format!("there is no target `{name}`; `list` names them"))
}

/// The contents of files, and of all files of folders, in the order of their names.
fn inputs(paths: &[&str]) -> Result<Vec<Vec<u8>>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths.iter().map(Path::new) {
        if path.is_dir() {
            let entries = fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?;
            let mut names = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            names.sort_unstable();
            files.extend(names.into_iter().filter(|name| name.is_file()));
        } else {
            files.push(path.to_owned());
        }
    }
    files.iter().map(|file| fs::read(file).with_context(|| format!("cannot read {}", file.display()))).collect()
}

/// Runs every input, then `runs` changed ones. The one being tried lies in `file`, and stays there when it is the end of us.
fn run_blindly(target: &Target, runs: u32, seed: u64, file: &Path, inputs: &[Vec<u8>]) -> Result<()> {
    let started = Instant::now();
    let mut random = blind::Random::new(seed);
    let changed = (0..runs).map(|_| blind::change(inputs, target.bytes_max, &mut random));
    for input in inputs.iter().cloned().chain(changed) {
        fs::write(file, &input).with_context(|| format!("cannot write {}", file.display()))?;
        (target.run)(&input);
    }
    fs::remove_file(file).ok();
    println!("{}: {} inputs and {runs} changed ones in {:.1} s", target.name, inputs.len(), started.elapsed().as_secs_f64());
    Ok(())
}

/// Each seed of these targets, or of all, in a file named by its hash, as libFuzzer names what it finds.
fn write_seeds(folder: &Path, names: &[&str]) -> Result<()> {
    for target in targets().iter().filter(|target| names.is_empty() || names.contains(&target.name)) {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for seed in (target.seeds)() {
            let path = folder.join(hex::encode(&Sha256::digest(&seed)[..8]));
            fs::write(&path, &seed).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
