//! Breaks the rules of the protocol one at a time, and tells who notices.
//!
//! ```text
//! mutants check PAGE           every mutant is caught where the table in PAGE says
//! mutants write PAGE SEEDS     the same; where the table is wrong it hunts over so many seeds, and writes the table anew
//! mutants hunt SEEDS [NAME...] hunts for these mutants, or for all, over so many seeds, and prints what it finds
//! mutants sound SEEDS          runs every scenario over so many seeds with no rule broken: nobody may notice anything
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "this is no part of any world: it starts worlds, reads and writes the page, and looks at the clock"
)]

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use simulator::mutants::{Catch, hunt, hush, run};
use simulator::{Scenario, Tracing};
use types::mutant::Mutant;

/// How many runs go on at once.
const THREADS: usize = 2;
/// The first line of the table.
const HEAD: &str = "| mutant | rule | what it does | noticed by | in |";

fn main() -> ExitCode {
    hush();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check", page] => check(page),
        ["write", page, seeds] => write(page, seeds),
        ["hunt", seeds, names @ ..] => hunts(seeds, names),
        ["sound", seeds] => sound(seeds),
        _ => Err("usage: mutants check PAGE | write PAGE SEEDS | hunt SEEDS [NAME...] | sound SEEDS".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A row of the table, as far as it says where to look.
struct Row {
    scenario: Scenario,
    seed: u64,
}

fn read(page: &str) -> Result<(String, Vec<Option<Row>>), String> {
    let text = std::fs::read_to_string(page).map_err(|error| format!("cannot read {page}: {error}"))?;
    let rows = Mutant::ALL.iter().map(|mutant| text.lines().find_map(|line| row(line, *mutant))).collect();
    Ok((text, rows))
}

fn row(line: &str, mutant: Mutant) -> Option<Row> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, _, _, _, place] = cells.as_slice() else { return None };
    let (scenario, seed) = place.split_once(", seed ")?;
    let scenario = Scenario::named(scenario.trim_matches('`'))?;
    (*name == format!("`{}`", mutant.name())).then_some(Row { scenario, seed: seed.parse().ok()? })
}

/// Every mutant that is caught where its row says.
fn replay(rows: &[Option<Row>]) -> Vec<Option<Catch>> {
    let start = Instant::now();
    let caught = in_parallel(Mutant::ALL, |at, mutant| {
        let row = rows[at].as_ref()?;
        run(*mutant, &row.scenario, row.seed)
    });
    let count = caught.iter().flatten().count();
    println!("{count} of {} mutants are caught where the table says, in {:.0} s", caught.len(), start.elapsed().as_secs_f64());
    caught
}

fn check(page: &str) -> Result<(), String> {
    let (_, rows) = read(page)?;
    let caught = replay(&rows);
    let all = || Mutant::ALL.iter().zip(rows.iter().zip(&caught));
    let open: Vec<&str> = all().filter(|(_, (row, _))| row.is_none()).map(|(mutant, _)| mutant.name()).collect();
    if !open.is_empty() {
        println!("nobody has noticed these yet, and each is a hole to be closed: {}", open.join(", "));
    }
    let missed: Vec<&str> = all().filter(|(_, (row, catch))| row.is_some() && catch.is_none()).map(|(mutant, _)| mutant.name()).collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("not caught where {page} says: {}; `cargo xtask mutants` hunts for them and writes the table anew", missed.join(", ")))
}

fn write(page: &str, seeds: &str) -> Result<(), String> {
    let seeds_max = count(seeds)?;
    let (text, rows) = read(page)?;
    let mut caught = replay(&rows);
    let missing: Vec<Mutant> = Mutant::ALL.iter().zip(&caught).filter(|(_, catch)| catch.is_none()).map(|(mutant, _)| *mutant).collect();
    let mut found = hunt_all(&missing, seeds_max).into_iter();
    for catch in caught.iter_mut().filter(|catch| catch.is_none()) {
        *catch = found.next().flatten();
    }
    let text = with_table(&text, &table(&caught)).ok_or(format!("{page} has no table that begins with `{HEAD}`"))?;
    std::fs::write(page, text).map_err(|error| format!("cannot write {page}: {error}"))?;
    survivors(&Mutant::ALL.iter().copied().zip(caught).collect::<Vec<_>>())
}

fn hunts(seeds: &str, names: &[&str]) -> Result<(), String> {
    let seeds_max = count(seeds)?;
    let unknown = names.iter().find(|name| Mutant::ALL.iter().all(|mutant| mutant.name() != **name));
    if let Some(unknown) = unknown {
        return Err(format!("there is no mutant `{unknown}`"));
    }
    let chosen: Vec<Mutant> = Mutant::ALL.iter().copied().filter(|mutant| names.is_empty() || names.contains(&mutant.name())).collect();
    let caught = hunt_all(&chosen, seeds_max);
    survivors(&chosen.into_iter().zip(caught).collect::<Vec<_>>())
}

fn count(seeds: &str) -> Result<u64, String> {
    seeds.parse().map_err(|_| format!("`{seeds}` is no number of seeds"))
}

fn sound(seeds: &str) -> Result<(), String> {
    let runs: Vec<(Scenario, u64)> =
        (1..=count(seeds)?).flat_map(|seed| Scenario::all().into_iter().map(move |scenario| (scenario, seed))).collect();
    let reports = in_parallel(&runs, |_, (scenario, seed)| simulator::run(scenario, *seed, Tracing::Off));
    let broken: Vec<String> = reports.iter().filter(|report| !report.is_clean()).map(ToString::to_string).collect();
    println!("{} of {} runs are clean", runs.len() - broken.len(), runs.len());
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

/// Fails with the names of those whom nobody caught.
fn survivors(caught: &[(Mutant, Option<Catch>)]) -> Result<(), String> {
    let names: Vec<&str> = caught.iter().filter(|(_, catch)| catch.is_none()).map(|(mutant, _)| mutant.name()).collect();
    if names.is_empty() { Ok(()) } else { Err(format!("nobody noticed: {}", names.join(", "))) }
}

fn hunt_all(mutants: &[Mutant], seeds_max: u64) -> Vec<Option<Catch>> {
    let scenarios = Scenario::all();
    in_parallel(mutants, |_, mutant| {
        let start = Instant::now();
        let catch = hunt(*mutant, &scenarios, seeds_max);
        let seconds = start.elapsed().as_secs_f64();
        match &catch {
            Some(Catch { scenario, seed, violation }) => {
                println!("{:<24} {scenario} seed {seed}, {seconds:.1} s: {}: {}", mutant.name(), violation.checker, violation.what);
            }
            None => println!("{:<24} NOT CAUGHT, {seconds:.0} s", mutant.name()),
        }
        catch
    })
}

/// Does `work` for each of `all`, some at a time; each thread has its own switch.
fn in_parallel<A: Sync, T: Send>(all: &[A], work: impl Fn(usize, &A) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(at) else { break };
                    let result = work(at, one);
                    done.lock().expect("nobody panics while holding this lock").push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panicked while holding this lock");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn table(caught: &[Option<Catch>]) -> String {
    let mut table = format!("{HEAD}\n|---|---|---|---|---|\n");
    for (mutant, catch) in Mutant::ALL.iter().zip(caught) {
        let (checker, place) = match catch {
            Some(Catch { scenario, seed, violation }) => (violation.checker, format!("`{scenario}`, seed {seed}")),
            None => ("nobody", "nothing".to_owned()),
        };
        let (name, rule, broken) = (mutant.name(), mutant.rule(), mutant.broken());
        writeln!(table, "| `{name}` | {rule} | {broken} | {checker} | {place} |").expect("writing to a string does not fail");
    }
    table
}

/// The page with `table` in the place of its own.
fn with_table(text: &str, table: &str) -> Option<String> {
    let start = text.find(HEAD)?;
    let length: usize = text[start..].split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    Some(format!("{}{table}{}", &text[..start], &text[start + length..]))
}
