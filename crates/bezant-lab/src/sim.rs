//! `bezant-lab sim`: runs the simulator over seeds, and prints what it found.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use clap::Args;
use conformance::augustus::Order;
use conformance::augustus::whole::Augustus;
use conformance::basil::Basil;
use conformance::sentinel::Zab;
use conformance::sentinel::ensemble::Ensemble;
use conformance::sentinel::transactions::Transactions;
use serde_json::json;
use simulator::{Counts, EngineCounts as _, Report, Scenario, Smallest, System, Tracing};

use bezant::failure::{Done, Failure};

/// Tries the protocol in a simulated world of faults and liars.
#[derive(Args, Debug)]
pub struct SimArgs {
    /// What goes wrong: calm, faults, clocks, crashes, upgrade, rebuild, rebuild-liars, changes, rights, flips, liars, clients,
    /// elections, planet, network, everything; of Augustus' order: order-calm, order-faults, order-crashes, order-upgrade,
    /// order-rebuild, order-liars, order-clients, order; of whole clusters of Augustus: augustus-calm, augustus-crashes,
    /// augustus-rebuild, augustus-liars, augustus; of Sentinel's order: zab-calm, zab-faults, zab-crashes, zab-upgrade,
    /// zab-rebuild, zab; of whole servers of Sentinel: ensemble-calm, ensemble-faults, ensemble-crashes, ensemble-rebuild,
    /// ensemble-corruption, ensemble; of transactions on Sentinel: transactions-calm, transactions-crashes,
    /// transactions-rebuild; or all of them in turn
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// One seed, or a range with both ends
    #[arg(long, visible_alias = "seed", value_name = "A..B", default_value = "1..20", value_parser = seeds)]
    seeds: Seeds,
    /// How long things go wrong, in milliseconds of virtual time
    #[arg(long, value_name = "MS")]
    fault_phase_ms: Option<u64>,
    /// Set something by hand that the seed would draw, in words as "clients=3 fault-kinds=isolate+repair"
    #[arg(long, value_name = "WORDS", default_value = "")]
    with: String,
    /// Print every event
    #[arg(long)]
    trace: bool,
    /// Make each run that fails smaller, setting by setting, as long as it fails in the same way: some minutes each
    #[arg(long)]
    shrink: bool,
    /// Print one JSON object for each run
    #[arg(long)]
    json: bool,
    /// How many runs go on at once; as many as there are cores by default. What is printed does not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
}

/// The stack of a thread that runs worlds: as much as a program's first thread has.
const STACK_BYTES: usize = 8 << 20;
/// How many runs are tried to make one that fails smaller.
const SHRINK_RUNS_MAX: u64 = 600;

#[derive(Clone, Copy, Debug)]
struct Seeds {
    first: u64,
    last: u64,
}

fn seeds(text: &str) -> Result<Seeds, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is no seed: write one, as 7, or a range, as 1..20"));
    let seeds = Seeds { first: number(first)?, last: number(last)? };
    if seeds.last < seeds.first {
        return Err(format!("from {first} to {last} there is no seed"));
    }
    Ok(seeds)
}

/// Carries out `bezant-lab sim`. Whatever seeds break a promise, the rest are run too.
pub fn run(args: &SimArgs) -> Result<Done, Failure> {
    let (of_basil, of_order, of_augustus) = (scenarios::<Basil>(args)?, scenarios::<Order>(args)?, scenarios::<Augustus>(args)?);
    let (of_zab, of_ensemble, of_transactions) = (scenarios::<Zab>(args)?, scenarios::<Ensemble>(args)?, scenarios::<Transactions>(args)?);
    let has_sentinel = !(of_zab.is_empty() && of_ensemble.is_empty() && of_transactions.is_empty());
    if of_basil.is_empty() && of_order.is_empty() && of_augustus.is_empty() && !has_sentinel {
        let of_sentinel = names::<Zab>().chain(names::<Ensemble>()).chain(names::<Transactions>());
        let names = names::<Basil>().chain(names::<Order>()).chain(names::<Augustus>()).chain(of_sentinel).collect::<Vec<_>>().join(", ");
        return Err(Failure::wrong(format!("there is no scenario `{}`; there are {names}, and all", args.scenario)));
    }
    let of_others = [run_all(args, of_basil), run_all(args, of_order), run_all(args, of_augustus)].concat();
    let failed = [of_others, run_all(args, of_zab), run_all(args, of_ensemble), run_all(args, of_transactions)].concat();
    if failed.is_empty() {
        return Ok(Done::Well);
    }
    Err(Failure::failed(format!("{} runs broke a promise; each of these replays one:\n  {}", failed.len(), failed.join("\n  "))))
}

/// Runs these scenarios. Gives what replays each run that broke a promise.
fn run_all<S: System<Counts: Send> + Sync>(args: &SimArgs, scenarios: Vec<Scenario<S>>) -> Vec<String> {
    let mut failed: Vec<String> = Vec::new();
    for scenario in scenarios {
        let (start, mut total, mut runs) = (Instant::now(), Counts::default(), 0_u64);
        for_each_seed(args, &scenario, |report| {
            show(args, &report);
            total.add(&report.counts);
            runs += 1;
            if !report.is_clean() {
                eprintln!("{report}");
                failed.push(replay(&if args.shrink { smaller(&scenario, report) } else { report }));
            }
        });
        if !args.json {
            let Counts { virtual_ms, committed, aborted, crashes, messages, .. } = total;
            let (minutes, seconds) = (virtual_ms / 60_000, virtual_ms % 60_000 / 1_000);
            bezant::out!(
                "{:<10} {runs} seeds, {minutes} min {seconds} s virtual in {} s: {committed} committed, {aborted} aborted, {crashes} crashes, {messages} messages",
                scenario.name,
                start.elapsed().as_secs()
            );
        }
    }
    failed
}

/// Runs every seed, some at a time, and gives `take` the reports in the order of the seeds.
fn for_each_seed<S: System<Counts: Send> + Sync>(args: &SimArgs, scenario: &Scenario<S>, mut take: impl FnMut(Report<S::Counts>)) {
    let tracing = if args.trace { Tracing::On } else { Tracing::Off };
    let seeds = Mutex::new(args.seeds.first..=args.seeds.last);
    let run_some = |done: SyncSender<(u64, Report<S::Counts>)>| {
        let next = || seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(seed) = next() {
            if done.send((seed, simulator::run(scenario, seed, tracing))).is_err() {
                return;
            }
        }
    };
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or_else(cores, usize::from);
    thread::scope(|scope| {
        let (done, reports) = sync_channel(jobs);
        for _ in 0..jobs {
            let (run_some, done) = (&run_some, done.clone());
            let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || run_some(done));
            thread.expect("the system gives a thread");
        }
        drop(done);
        let (mut due, mut early) = (args.seeds.first, BTreeMap::new());
        for (seed, report) in reports {
            early.insert(seed, report);
            while let Some(report) = early.remove(&due) {
                take(report);
                due = due.saturating_add(1);
            }
        }
    });
}

/// The smallest run like `report`'s that can be found with some patience. Shows how far it is, since it takes its time.
fn smaller<S: System>(scenario: &Scenario<S>, report: Report<S::Counts>) -> Report<S::Counts> {
    let show = |report: &Report<S::Counts>, runs: u64| {
        eprintln!("  after {runs} runs: --seed {} --with \"{}\"", report.seed, report.words.join(" "))
    };
    match simulator::shrink(scenario, report.seed, SHRINK_RUNS_MAX, show) {
        Some(Smallest { report, runs }) => {
            eprintln!("  nothing more can be left out, after {runs} runs:\n{report}");
            report
        }
        None => report,
    }
}

fn names<S: System>() -> impl Iterator<Item = &'static str> {
    S::SCENARIOS.iter().map(|kind| kind.name)
}

/// The scenarios of `S` that were asked for.
fn scenarios<S: System>(args: &SimArgs) -> Result<Vec<Scenario<S>>, Failure> {
    let set = |scenario: Scenario<S>| {
        let scenario = match args.fault_phase_ms {
            Some(fault_phase_ms) => scenario.lasting_ms(fault_phase_ms),
            None => scenario,
        };
        scenario.with(&args.with).map_err(Failure::wrong)
    };
    Scenario::<S>::all().into_iter().filter(|one| args.scenario == "all" || one.name == args.scenario).map(set).collect()
}

fn show<C: simulator::EngineCounts>(args: &SimArgs, report: &Report<C>) {
    if let Some(trace) = &report.trace {
        print!("{trace}");
    }
    if args.json {
        let violations: Vec<_> = report.violations.iter().map(|one| json!({ "checker": one.checker, "what": one.what })).collect();
        let mut run = json!({
            "scenario": report.scenario,
            "seed": report.seed,
            "fingerprint": format!("{:016x}", report.fingerprint),
            "violations": violations,
        });
        for (name, count) in report.counts.named().into_iter().chain(report.engine.named()) {
            run[name] = count.into();
        }
        bezant::out!("{run}");
    }
}

/// The one command that runs the same again, and shows it.
fn replay<C>(report: &Report<C>) -> String {
    let with = if report.words.is_empty() { String::new() } else { format!(" --with \"{}\"", report.words.join(" ")) };
    format!("bezant-lab sim {} --seed {}{with} --trace", report.scenario, report.seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_one_or_a_range_and_anything_else_is_refused() {
        assert!(seeds("7").is_ok_and(|seeds| (seeds.first, seeds.last) == (7, 7)));
        assert!(seeds("1..20").is_ok_and(|seeds| (seeds.first, seeds.last) == (1, 20)));
        for text in ["", "..", "a", "3..1", "1..=3"] {
            assert!(seeds(text).is_err(), "{text}");
        }
    }
}
