//! Runs a workload with many clients at once and says how fast it was, what it cost, and whether its promises held.
//!
//! It runs *loop clients*, which work in a closed loop as in the paper (Basil §6): each starts a transaction when its last
//! one is done. One run looks like this; only what commits between the two marks is counted:
//!
//! ```text
//!   load (asked for)   warm-up   │◀────── seconds ──────▶│   cool-down   last transactions   check
//!                                mark                    mark
//! ```
//!
//! * A transaction's **latency** runs from its first attempt to its commit, its retries and their pauses included.
//! * **Attempted** counts every attempt, so `commit_rate` is what part of the work was not thrown away.
//! * **CPU time** is read at both marks: this process's own, and that of the replicas that `bezant up` started on this
//!   machine, by their process ids. Divided by what committed it is the cost of a transaction, which is what a
//!   user pays. Both ends run on one clock, the kernel's.
//! * In builds with the feature `lab` some of the loop clients may **cheat**, to try what that costs the others; then only the others count
//!   (see `byzantine.rs`).
//! * **Pools**: with `--pool`, the loop clients' transactions are joined into few, and still counted one by one.
//! * The **invariant** of a workload that has one is checked beside the loop clients and after them.
//!
//! [`run`] does all this for [`BenchArgs`] and gives a [`Report`].

mod args;
#[cfg(feature = "lab")]
mod byzantine;
#[cfg(not(feature = "lab"))]
#[path = "byzantine/none.rs"]
mod byzantine;
mod choose;
mod cpu;
mod error;
mod measure;
mod meter;
mod pool;
mod report;
#[cfg(feature = "lab")]
mod retwis_on_redis;
mod runner;
mod timeline;
pub mod zookeeper;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, Pool};
use config::Config;
use tokio::sync::watch;
use workload::{Verdict, Workload};

pub use args::{BenchArgs, MixArg, WorkloadName, WriteKeysArg};
#[cfg(feature = "lab")]
pub use byzantine::StrategyArg;
pub use byzantine::{ByzantineReport, CheatArgs};
pub use error::BenchError;
pub use pool::{Batch, BatchSizes, ChainArg, OrderArg, PoolArgs, PoolReport};
pub use report::{CpuSeconds, Invariant, JournalReport, LatencyUs, LoadReport, Report, RunReport};

pub use meter::Meter;

/// How long an interrupted run waits for its connections to close.
const INTERRUPTED_CLOSE_MAX: Duration = Duration::from_millis(500);

/// Does what `args` ask of the cluster in `cluster_dir`: loads, runs, or verifies a journal.
///
/// Progress goes to standard error where that is a terminal, and nowhere else. The caller prints the report, as text or
/// as JSON, and then exits with a failure if [`Report::failure`] says so. When `stop` turns true, a run ends as if its
/// time were over, with a report of what there was.
///
/// # Errors
/// [`BenchError`] when nothing could be measured: the settings make no sense, the cluster does not answer, or the
/// store holds another table.
pub async fn run(args: &BenchArgs, cluster_dir: &Path, stop: watch::Receiver<bool>) -> Result<Report, BenchError> {
    let workload = args.workload(cluster_dir)?;
    let config = bezant_client::load(cluster_dir)?;
    #[cfg(feature = "lab")]
    let config = match &args.regions {
        Some(map) => Config { regions: Some(config::Regions::load(map)?), ..config },
        None => config,
    };
    let plan = args.cheats.plan(args.clients)?;
    let mut clients = Vec::with_capacity(args.connections);
    for _ in 0..args.connections {
        clients.push(Arc::new(bezant_client::connect(config.clone()).await?));
    }
    if let Some(warning) = clients.first().and_then(|client| client.clock_warning()) {
        // Where nobody reads that, what is measured is measured all the same.
        drop(writeln!(std::io::stderr(), "warning: {warning}"));
    }
    let cheats = match plan {
        Some(plan) => Some((plan, plan.connect(cluster_dir, &config, args.seed).await?)),
        None => None,
    };
    let options = args.pool.options();
    let made = options.iter().flat_map(|options| clients.iter().map(|client| client.pool(*options)));
    let pools = made.collect::<Result<Vec<Pool>, _>>()?;
    let crew = Crew { config, clients, pools, cheats };
    let mut report = run_connected(args, cluster_dir, &workload, &crew, stop).await;
    let settings = match &mut report {
        Ok(Report::Run(report)) => Some(&mut report.settings),
        Ok(Report::Load(report)) => Some(&mut report.settings),
        Ok(Report::Journal(_)) | Err(_) => None,
    };
    if let (Some(settings), Some(regions)) = (settings, &crew.config.regions) {
        settings.insert("regions", regions.name().into());
    }
    // The last commits are acknowledged, but not all replicas need have heard of them yet. Whoever interrupts does not wait for that:
    // the replicas finish what is left.
    let closing = async {
        for client in crew.clients.iter().chain(crew.cheats.iter().map(|(_, client)| client)) {
            client.close().await;
        }
    };
    match report {
        Err(BenchError::Interrupted(_)) => drop(tokio::time::timeout(INTERRUPTED_CLOSE_MAX, closing).await),
        _ => closing.await,
    }
    report
}

/// Who takes part.
pub(crate) struct Crew {
    pub config: Config,
    /// The honest clients' connections.
    pub clients: Vec<Arc<Client>>,
    /// A pool on each of these, if there are to be any.
    pub pools: Vec<Pool>,
    /// Those that cheat, and their connection.
    pub cheats: Option<(byzantine::Plan, Arc<Client>)>,
}

async fn run_connected(
    args: &BenchArgs,
    cluster_dir: &Path,
    workload: &Arc<dyn Workload>,
    crew: &Crew,
    stop: watch::Receiver<bool>,
) -> Result<Report, BenchError> {
    let first = &crew.clients[0];
    let engine = crew.config.topology.engine.name;
    if let Some(journal) = &args.verify_journal {
        let meter = Meter::bytes("verifying");
        let progress = |done, total| meter.at(done, total);
        let verifying = workload::verify_journal(first, journal, &progress);
        let check = unless(stop, "while the journal was verified", verifying).await??;
        meter.finish();
        return Ok(Report::Journal(JournalReport::new(journal, check)));
    }
    let loaded = match args.load {
        true => Some(unless(stop.clone(), "while loading: the table is not whole", load(workload.as_ref(), first, engine)).await??),
        false => None,
    };
    if let Some(report) = loaded
        && args.seconds == 0.0
    {
        return Ok(Report::Load(report));
    }
    let mut measured = runner::run(args, workload, crew, cluster_dir, stop).await?;
    let marks = measured.marks.take();
    let mut report = RunReport::new(args, workload.as_ref(), engine, measured);
    if let (Some((plan, _)), Some((before, after))) = (&crew.cheats, marks) {
        let (rate, attempted) = (report.committed_per_second, report.attempted);
        report.byzantine = Some(plan.report(&crew.config, &before, &after, rate, attempted).await);
    }
    let meter = Meter::keys("checking");
    if let Some(check) = workload.check_end(first, &|done, total| meter.at(done, total)) {
        match check.await {
            Ok(verdict) => report.note_check(verdict),
            // What was measured is worth its report nevertheless.
            Err(error) => report.unchecked = Some(error.to_string()),
        }
        meter.finish();
    }
    Ok(Report::Run(Box::new(report)))
}

/// Does `work`, unless `stop` turns true before its end.
async fn unless<T>(mut stop: watch::Receiver<bool>, doing: &'static str, work: impl Future<Output = T>) -> Result<T, BenchError> {
    let stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            // Nobody is left who could stop it.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => Err(BenchError::Interrupted(doing)),
        done = work => Ok(done),
    }
}

async fn load(workload: &dyn Workload, client: &Arc<Client>, engine: &'static str) -> Result<LoadReport, BenchError> {
    let meter = Meter::keys("loading");
    let begin = Instant::now();
    let keys = workload.load(client, &|done, total| meter.at(done, total)).await?;
    meter.finish();
    Ok(LoadReport::new(workload, engine, keys, begin.elapsed()))
}

/// `number` with so many digits behind its point.
fn round(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

/// What a verdict adds to what was found before.
fn findings(verdict: Verdict) -> Vec<String> {
    match verdict {
        Verdict::Held => Vec::new(),
        Verdict::Broken(found) => found,
    }
}
