//! Breaks the rules of the protocol one at a time, and tells who notices.
//!
//! ```text
//! mutants check PAGE TESTS         every mutant is caught where the table in PAGE says
//! mutants write PAGE TESTS SEEDS   the same; where the table is wrong it hunts, and writes the table anew
//! mutants hunt SEEDS [NAME...]     hunts for these mutants, or for all, in so many seeds of each scenario
//! mutants tests TESTS [NAME...]    tells for these mutants, or for all, which tests fail
//! mutants one NAME SCENARIO SEED [WORD...]  one run, for those above: says who notices, and stops where an assertion fails
//! mutants sound SEEDS              runs every scenario over so many seeds with no rule broken: nobody may notice anything
//! ```
//!
//! TESTS is a list of programs with tests, which `cargo xtask mutants` builds and writes.

#![expect(
    clippy::disallowed_methods,
    reason = "this is no part of any world: it starts worlds and tests, reads and writes the page, and looks at the clock"
)]

mod apart;
mod table;
mod tests;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use apart::{Catch, hunt, run};
use conformance::mutants::{Ground, grounds};
use mutants::Mutant;
use table::{Place, Row};
use tests::{End, Tests, tellings};

/// How many runs go on at once.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check", page, tests] => check(page, tests),
        ["write", page, tests, seeds] => write(page, tests, seeds),
        ["hunt", seeds, names @ ..] => hunts(seeds, names),
        ["tests", tests, names @ ..] => failing(tests, names),
        ["one", mutant, scenario, seed, words @ ..] => one(mutant, scenario, seed, words),
        ["sound", seeds] => sound(seeds),
        _ => Err("usage: mutants check PAGE TESTS | write PAGE TESTS SEEDS | hunt SEEDS [NAME...] | tests TESTS [NAME...] | sound SEEDS"
            .to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

// What the table says.

/// Whether each mutant is caught where its row says, and nothing is caught there with no rule broken.
fn replay(rows: &[Option<Row>], tests: &Tests) -> Vec<bool> {
    let start = Instant::now();
    let mut whole: Vec<(Ground, u64)> = Vec::new();
    for row in rows.iter().flatten() {
        if let Place::Run(scenario, seed) = &row.place
            && !whole.contains(&(scenario.clone(), *seed))
        {
            whole.push((scenario.clone(), *seed));
        }
    }
    let reports = in_parallel(&whole, |_, (scenario, seed)| scenario.run(*seed));
    for report in reports.iter().filter(|report| !report.violations.is_empty()) {
        println!("with no rule broken: {}", report.text);
    }
    let is_clean = |scenario: &Ground, seed: u64| {
        let mut runs = whole.iter().zip(&reports);
        runs.any(|((other, at), report)| (other, *at) == (scenario, seed) && report.violations.is_empty())
    };
    let caught = in_parallel(Mutant::ALL, |at, mutant| match &rows[at].as_ref()?.place {
        Place::Run(scenario, seed) => run(*mutant, scenario, *seed).filter(|_| is_clean(scenario, *seed)).map(|_| ()),
        Place::Test(name) => notices(tests, name, *mutant).then_some(()),
        Place::Harmless(_) => Some(()),
    });
    let count = caught.iter().flatten().count();
    println!("{count} of {} mutants are caught where the table says, in {:.0} s", caught.len(), start.elapsed().as_secs_f64());
    caught.iter().map(Option::is_some).collect()
}

/// Whether a test that passes fails with the rule broken.
fn notices(tests: &Tests, name: &str, mutant: Mutant) -> bool {
    tests.run(name, Some(mutant)) == End::Failed && tests.run(name, None) == End::Passed
}

fn check(page: &str, tests: &str) -> Result<(), String> {
    let (_, rows) = table::read(page)?;
    let caught = replay(&rows, &Tests::read(tests)?);
    let missed: Vec<&str> = Mutant::ALL.iter().zip(&caught).filter(|(_, caught)| !**caught).map(|(mutant, _)| mutant.name()).collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("not caught where {page} says: {}; `cargo xtask mutants` hunts for them and writes the table anew", missed.join(", ")))
}

fn write(page: &str, tests: &str, seeds: &str) -> Result<(), String> {
    let (seeds_max, tests) = (count(seeds)?, Tests::read(tests)?);
    let (text, mut rows) = table::read(page)?;
    let caught = replay(&rows, &tests);
    rows.iter_mut().zip(caught).filter(|(_, caught)| !caught).for_each(|(row, _)| *row = None);
    let missing = |rows: &[Option<Row>]| -> Vec<usize> { (0..rows.len()).filter(|at| rows[*at].is_none()).collect() };
    let found = |at: usize| Mutant::ALL[at];
    // First in the simulator, where whole clusters show what a broken rule leads to; then in tests.
    let open = missing(&rows);
    let catches = hunt_all(&open.iter().map(|at| found(*at)).collect::<Vec<_>>(), seeds_max);
    for (at, catch) in open.into_iter().zip(catches) {
        rows[at] = catch.map(|Catch { scenario, seed, by, .. }| Row { by, place: Place::Run(scenario, seed) });
    }
    let open = missing(&rows);
    let failing = in_parallel(&open, |_, at| tests.failing(found(*at)));
    for (at, name) in open.into_iter().zip(tellings(&failing)) {
        rows[at] = name
            .filter(|name| notices(&tests, name, found(at)))
            .map(|name| Row { by: Place::kind_of_test(&name), place: Place::Test(name) });
    }
    std::fs::write(page, table::with_rows(page, &text, &rows)?).map_err(|error| format!("cannot write {page}: {error}"))?;
    survivors(missing(&rows).into_iter().map(found))
}

// Hunting.

fn chosen(names: &[&str]) -> Result<Vec<Mutant>, String> {
    let unknown = names.iter().find(|name| Mutant::ALL.iter().all(|mutant| mutant.name() != **name));
    if let Some(unknown) = unknown {
        return Err(format!("there is no mutant `{unknown}`"));
    }
    Ok(Mutant::ALL.iter().copied().filter(|mutant| names.is_empty() || names.contains(&mutant.name())).collect())
}

fn hunts(seeds: &str, names: &[&str]) -> Result<(), String> {
    let (seeds_max, chosen) = (count(seeds)?, chosen(names)?);
    let caught = hunt_all(&chosen, seeds_max);
    survivors(chosen.into_iter().zip(caught).filter(|(_, catch)| catch.is_none()).map(|(mutant, _)| mutant))
}

fn failing(tests: &str, names: &[&str]) -> Result<(), String> {
    let (tests, chosen) = (Tests::read(tests)?, chosen(names)?);
    let failing = in_parallel(&chosen, |_, mutant| {
        let failing = tests.failing(*mutant);
        println!("{:<24} {}", mutant.name(), if failing.is_empty() { "NOT CAUGHT".to_owned() } else { failing.join(" ") });
        failing
    });
    survivors(chosen.into_iter().zip(failing).filter(|(_, failing)| failing.is_empty()).map(|(mutant, _)| mutant))
}

fn count(seeds: &str) -> Result<u64, String> {
    seeds.parse().map_err(|_| format!("`{seeds}` is no number of seeds"))
}

/// One run with one rule broken.
fn one(mutant: &str, scenario: &str, seed: &str, words: &[&str]) -> Result<(), String> {
    let [mutant] = chosen(&[mutant])?[..] else { return Err(format!("`{mutant}` names no single mutant")) };
    let scenario = Ground::named(scenario).ok_or(format!("there is no scenario `{scenario}`"))?.with(&words.join(" "))?;
    apart::tell(mutant, &scenario, count(seed)?);
    Ok(())
}

fn sound(seeds: &str) -> Result<(), String> {
    let runs: Vec<(Ground, u64)> =
        (1..=count(seeds)?).flat_map(|seed| grounds().into_iter().map(move |scenario| (scenario, seed))).collect();
    let reports = in_parallel(&runs, |_, (scenario, seed)| {
        let start = Instant::now();
        let report = scenario.run(*seed);
        let place = Place::Run(scenario.clone(), *seed).text();
        println!("{place}, {:.1} s: {} violations", start.elapsed().as_secs_f64(), report.violations.len());
        report
    });
    let broken: Vec<String> = reports.into_iter().filter(|report| !report.violations.is_empty()).map(|report| report.text).collect();
    println!("{} of {} runs are clean", runs.len() - broken.len(), runs.len());
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

/// Fails with the names of those whom nobody caught.
fn survivors(mutants: impl Iterator<Item = Mutant>) -> Result<(), String> {
    let names: Vec<&str> = mutants.map(Mutant::name).collect();
    if names.is_empty() { Ok(()) } else { Err(format!("nobody noticed: {}", names.join(", "))) }
}

fn hunt_all(mutants: &[Mutant], seeds_max: u64) -> Vec<Option<Catch>> {
    let scenarios = grounds();
    in_parallel(mutants, |_, mutant| {
        let start = Instant::now();
        let catch = hunt(*mutant, &scenarios, seeds_max);
        let seconds = start.elapsed().as_secs_f64();
        match &catch {
            Some(Catch { scenario, seed, by, what }) => {
                let place = Place::Run(scenario.clone(), *seed).text();
                println!("{:<24} {place}, {seconds:.1} s: {by}: {what}", mutant.name());
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
