//! `bezant-lab soak`: a cluster of real processes that lives, for as long as asked for.
//!
//! Under half of the load that it can carry, replicas are killed, stay away, lose their data, get other keys and are replaced; clients are added, limited and taken out; and some
//! clients lie, all the time. No more than `f` replicas are weak at once. What must hold is checked meanwhile and at the end:
//!
//! * the bank's money stays the same in sum, its balances are what its records say, and every transfer that was acknowledged is there;
//! * whoever was weak is whole again within minutes, and after the last fault transactions take the fast path within one;
//! * all replicas hold the same, as of the same time;
//! * a client that was taken out is cut off by every replica within two seconds, and refused; limits are kept;
//! * the largest replica's memory and disk, and latencies, level off.
//!
//! ```text
//!   faults   ──▶ replicas ◀── load (bench rw-u), bank (bench bank, with liars)
//!   members  ──▶ (one thread each; changes of the configuration one at a time)
//!   timeline ◀── what `bench` and the system say, a line a second
//! ```
//!
//! Everything stands in one folder, which stays: the cluster, the journals, `timeline.jsonl`, `soak.svg`, `report.json`. Time in which the whole run was paused, by SIGSTOP or by
//! a machine that slept, does not count.

mod cluster;
mod digest;
mod faults;
mod load;
mod members;
mod timeline;
mod visitor;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};
use types::ReplicaId;

use bezant::failure::{Attempt as _, Done, Failure};
use bezant::out;

use cluster::Cluster;
use load::Steady;
use timeline::Second;

/// How often something that goes on is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a run may last, in minutes: the load is one run of `bench`, which ends after a day.
const MINUTES: std::ops::RangeInclusive<f64> = 0.05..=1_380.0;
/// How long the peak is measured, in seconds, and how long the cluster does as much as it can before: what it does in its first seconds it does not keep up.
const PEAK_SECONDS: f64 = 20.0;
const PEAK_AFTER_SECONDS: f64 = 100.0;
/// Of the peak, so much is asked for.
const PART_OF_PEAK: f64 = 0.5;
/// How long one run of the bank is, in seconds; a shorter soak has shorter ones.
const BANK_SECONDS: f64 = 45.0;
/// The most violations that are told: more tell no more.
const VIOLATIONS_MAX: usize = 50;

/// Lets a cluster live through faults, changes and lies for as long as asked for, and checks that it keeps its promises.
#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// The folder to make: the cluster, its journals and what is found stay there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How long it lasts
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// What all choices are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of faults at random: so often, one replica is stopped for a while, then another loses its data, and all must be whole again
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// How long the stopped replica of a round is away
    #[arg(long, value_name = "S", default_value_t = 300, requires = "rounds")]
    away_seconds: u64,
    /// How many transactions a second are asked for; by default half of what the cluster is found to be able to do
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// How many keys the load's table has
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    keys: u64,
    /// The replicas' window: shorter, it takes them less time to be rebuilt
    #[arg(long, value_name = "MS", default_value_t = 20_000)]
    window_ms: u64,
    /// How far ahead of its clock a replica takes timestamps
    #[arg(long, value_name = "MS", default_value_t = 500)]
    time_bound_ms: u64,
    /// Which part of the transactions must take the fast path again within a minute after the last fault. That takes the word of all six replicas in time, which a machine with
    /// much else to do may not have
    #[arg(long, value_name = "R", default_value_t = 0.95)]
    fast_path: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    let wrong = || format!("minutes from {} to {} were expected", MINUTES.start(), MINUTES.end());
    text.parse().ok().filter(|number| MINUTES.contains(number)).ok_or_else(wrong)
}

/// What the threads of a run share.
struct Shared {
    cluster: Cluster,
    window_ms: u64,
    time_bound_ms: u64,
    fast_path: f64,
    /// The user wants an end, or something went so wrong that nothing more can be tried.
    stop: Arc<AtomicBool>,
    /// Nothing new begins any more.
    over: AtomicBool,
    /// The timeline ends.
    closed: AtomicBool,
    /// How many seconds have passed, pauses left out.
    seconds_passed: AtomicU64,
    seconds: Mutex<Vec<Second>>,
    /// Who is weak now, and what happened since the last line.
    weak: Mutex<(Option<String>, Vec<String>)>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    violations: Mutex<Vec<String>>,
    /// Held while the configuration changes: two changes at once would both be the next one.
    changing: Mutex<()>,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.is_stopped()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// How long a replica that lost its data is silent at least: ten time bounds, and the window.
    fn whole_ms(&self) -> u64 {
        self.window_ms + 10 * self.time_bound_ms
    }

    fn active_seconds(&self) -> u64 {
        self.seconds_passed.load(Ordering::Relaxed)
    }

    /// Another second has passed.
    fn tick(&self) -> u64 {
        self.seconds_passed.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn note(&self, second: Second) {
        lock(&self.seconds).push(second);
    }

    fn fast_path_rate_since(&self, since: u64) -> Option<f64> {
        timeline::fast_path_rate_since(&lock(&self.seconds), since)
    }

    fn pause(&self, milliseconds: u64) -> Result<(), Failure> {
        self.cluster.pause(milliseconds)
    }

    /// Changes the configuration, one change at a time.
    fn change(&self, edit: impl FnOnce(&str) -> Result<String, Failure>) -> Result<(), Failure> {
        let _one_at_a_time = lock(&self.changing);
        self.cluster.change(edit)?;
        self.count("configurations", 1);
        Ok(())
    }

    fn count(&self, what: &'static str, more: u64) {
        *lock(&self.counts).entry(what).or_default() += more;
    }

    /// Notes how long something took, if that was the longest up to now.
    fn longest(&self, what: &'static str, took: Duration) {
        let mut counts = lock(&self.counts);
        let longest = counts.entry(what).or_default();
        *longest = (*longest).max(took.as_millis() as u64);
    }

    fn begin(&self, what: &str, replica: ReplicaId) {
        lock(&self.weak).0 = Some(replica.to_string());
        self.say(&format!("{replica}: {what}"));
    }

    fn finish(&self) {
        lock(&self.weak).0 = None;
    }

    /// Tells whoever waits, and the timeline.
    fn say(&self, what: &str) {
        eprintln!("{:>5} s  {what}", self.active_seconds());
        lock(&self.weak).1.push(what.to_owned());
    }

    fn take_events(&self) -> (Option<String>, Vec<String>) {
        let mut weak = lock(&self.weak);
        (weak.0.clone(), std::mem::take(&mut weak.1))
    }

    fn violated(&self, what: String) {
        let what = what.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        self.say(&format!("VIOLATED: {what}"));
        let mut violations = lock(&self.violations);
        if violations.len() < VIOLATIONS_MAX {
            violations.push(what);
        }
    }
}

/// Carries out `bezant-lab soak`.
pub async fn run(args: &SoakArgs) -> Result<Done, Failure> {
    let program = std::env::current_exe().attempt("find this program", "this process")?;
    let stop = crate::stop_on_signal();
    let args = args.clone();
    tokio::task::spawn_blocking(move || soak(&args, &program, stop)).await.attempt("soak", "this process")?
}

fn soak(args: &SoakArgs, program: &Path, stop: Arc<AtomicBool>) -> Result<Done, Failure> {
    let folder = &args.folder;
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::wrong("there is something here already").at(folder.display()).help("name a folder that is to be made"));
    }
    let settings =
        ["--window-ms", &args.window_ms.to_string(), "--time-bound-ms", &args.time_bound_ms.to_string()].map(str::to_owned).to_vec();
    let cluster = Cluster::start(program, folder, settings, Arc::clone(&stop))?;
    let shared = Shared {
        cluster,
        window_ms: args.window_ms,
        time_bound_ms: args.time_bound_ms,
        fast_path: args.fast_path,
        stop,
        over: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        seconds_passed: AtomicU64::new(0),
        seconds: Mutex::new(Vec::new()),
        weak: Mutex::new((None, Vec::new())),
        counts: Mutex::new(BTreeMap::new()),
        violations: Mutex::new(Vec::new()),
        changing: Mutex::new(()),
    };
    let (peak, rate) = match args.rate {
        Some(rate) => load::fill(&shared.cluster, args.keys).map(|()| (None, rate))?,
        None => {
            let peak = measure_peak(args, &shared)?;
            (Some(peak), (peak * PART_OF_PEAK).max(1.0))
        }
    };
    shared.say(&format!(
        "{rate:.0} transactions a second are asked for{}",
        peak.map_or_else(String::new, |peak| format!(", of a peak of {peak:.0}"))
    ));
    let acknowledged = live(args, &shared, rate)?;
    let report = report(args, &shared, peak, rate, acknowledged)?;
    let path = folder.join("report.json");
    fs::write(&path, format!("{report:#}\n")).attempt("write the file", path.display())?;
    if args.json {
        out!("{report}");
    } else {
        out!("{report:#}");
    }
    let violations = lock(&shared.violations);
    match violations.first() {
        _ if shared.is_stopped() => Err(Failure::failed("stopped").at(folder.display())),
        None => Ok(Done::Well),
        Some(first) => Err(Failure::failed(format!("{} violations; the first: {first}", violations.len()))
            .at(path.display())
            .help("the cluster's folder and its logs are still there")),
    }
}

/// How many transactions a second the cluster can do, with the bank and its liars beside, as they will be.
fn measure_peak(args: &SoakArgs, shared: &Shared) -> Result<f64, Failure> {
    eprintln!("measuring the peak");
    let after = if args.rounds.is_some() { PEAK_AFTER_SECONDS } else { PEAK_AFTER_SECONDS.min(quarter(args)) };
    let is_measured = AtomicBool::new(false);
    thread::scope(|scope| {
        let bank = scope.spawn(|| load::run_bank(shared, bank_seconds(args), || shared.is_over() || is_measured.load(Ordering::Relaxed)));
        let peak = load::measure_peak(&shared.cluster, args.keys, after, PEAK_SECONDS);
        is_measured.store(true, Ordering::Relaxed);
        joined(bank).and(peak)
    })
}

/// A quarter of the run, in seconds.
fn quarter(args: &SoakArgs) -> f64 {
    args.minutes * 60.0 / 4.0
}

fn bank_seconds(args: &SoakArgs) -> f64 {
    BANK_SECONDS.min(quarter(args).max(2.0))
}

/// Everything from the first transaction to the last check. Gives how many transfers were acknowledged.
fn live(args: &SoakArgs, shared: &Shared, rate: f64) -> Result<u64, Failure> {
    let (load_file, timeline_file) = (shared.cluster.path("load.jsonl"), args.folder.join("timeline.jsonl"));
    let mut steady = Steady::start(&shared.cluster, args.keys, rate, &load_file)?;
    let verified = thread::scope(|scope| {
        let timeline = scope.spawn(|| timeline::run(shared, Path::new(&load_file), &timeline_file));
        let bank = scope.spawn(|| load::run_bank(shared, bank_seconds(args), || shared.is_over()));
        let others = match args.rounds {
            Some(rounds) => vec![scope.spawn(move || {
                let done = faults::run_rounds(shared, rounds, args.away_seconds, args.seed);
                shared.over.store(true, Ordering::Relaxed);
                done
            })],
            None => vec![scope.spawn(|| faults::run(shared, args.seed)), scope.spawn(|| members::run(shared, args.seed))],
        };
        let until = if args.rounds.is_some() { u64::MAX } else { (args.minutes * 60.0) as u64 };
        while !shared.is_over() && shared.active_seconds() < until {
            if let Err(why) = steady.check() {
                shared.violated(why);
                shared.over.store(true, Ordering::Relaxed);
            }
            sleep(LOOK_EVERY);
        }
        shared.over.store(true, Ordering::Relaxed);
        let mut ended: Vec<Result<(), Failure>> = others.into_iter().chain([bank]).map(joined).collect();
        let checked = if shared.is_stopped() { Ok(0) } else { check_end(shared, steady) };
        shared.closed.store(true, Ordering::Relaxed);
        ended.push(joined(timeline));
        ended.into_iter().collect::<Result<(), Failure>>().and(checked)
    });
    match verified {
        // What stopped it is told by the report.
        Err(_) if shared.is_stopped() => Ok(0),
        verified => verified,
    }
}

fn joined(thread: thread::ScopedJoinHandle<'_, Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::failed("a thread of this program panicked")))
}

/// What must hold when no more faults come.
fn check_end(shared: &Shared, steady: Steady) -> Result<u64, Failure> {
    for found in [faults::fast_again(shared), digest::compare(shared)] {
        if let Err(failure) = found {
            shared.violated(failure.to_string());
        }
    }
    match steady.end() {
        Ok(report) => {
            let count = |value: &Json| value.as_u64().unwrap_or(0);
            shared.count("committed", count(&report["committed"]));
            let errors = report["errors"].as_object().map_or(0, |errors| errors.values().map(count).sum());
            shared.count("given_up", errors);
        }
        Err(why) => shared.violated(why),
    }
    load::verify_journals(shared)
}

fn report(args: &SoakArgs, shared: &Shared, peak: Option<f64>, rate: f64, acknowledged: u64) -> Result<Json, Failure> {
    let seconds = lock(&shared.seconds);
    let (levels, grown) = timeline::levels(&seconds);
    grown.into_iter().for_each(|grown| shared.violated(grown));
    let counts = lock(&shared.counts).clone();
    let lasted = seconds.iter().filter(|second| !second.is_paused).count() as f64 / 60.0;
    let title = format!("{lasted:.0} minutes of a cluster's life at {rate:.0} transactions a second");
    let listed: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    let foot = format!("Medians, with the second lowest and highest tenth of the seconds. Seed {}; {}", args.seed, listed.join(", "));
    timeline::draw(&seconds, &title, &foot, &args.folder, "soak")?;
    Ok(json!({
        "minutes": (lasted * 100.0).round() / 100.0,
        "seed": args.seed,
        "rounds": args.rounds,
        "away_seconds": args.rounds.map(|_| args.away_seconds),
        "peak_per_second": peak,
        "rate_per_second": rate,
        "counts": counts,
        "acknowledged_transfers_found": acknowledged,
        "levels_by_quarter": levels,
        "paused_seconds": seconds.iter().filter(|second| second.is_paused).count(),
        "violations": *lock(&shared.violations),
    }))
}

/// The lock, also after a thread that held it has panicked: what is shared is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
