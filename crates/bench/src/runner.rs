//! The loop clients, the clock, and what is checked beside them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use client::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use workload::{Error, LoopClient, Readiness, Workload};

use crate::Crew;
use crate::args::BenchArgs;
use crate::byzantine::Mark;
use crate::cpu::Sample;
use crate::error::BenchError;
use crate::findings;
use crate::measure::{Counts, Tally, Window};
use crate::meter::Meter;
use crate::pool::{self, PoolReport};
use crate::timeline::{self, Timeline};

/// The pause of a loop client after the client gave up on a transaction, at first.
const PAUSE_MS_MIN: u64 = 20;
/// And at most; it doubles in between.
const PAUSE_MS_MAX: u64 = 1_000;
/// How long the last transactions may take after the end. It is longer than a client tries by itself.
const DRAIN_MS_MAX: u64 = 60_000;
/// How often the line of progress is renewed.
const PROGRESS_MS: u64 = 500;
/// An honest loop client's attempt counts for so much less with each one after it.
const ATTEMPTS_REMEMBERED: u64 = 64;
/// How many broken promises are told; more of them tell no more.
const BROKEN_MAX: usize = 20;

/// What a run gave.
pub(crate) struct Measured {
    pub(crate) tally: Tally,
    /// How long was measured: less than was asked for when the run was stopped.
    pub(crate) seconds: f64,
    /// CPU seconds of this process in the window.
    pub(crate) cpu_clients: f64,
    /// CPU seconds of all replicas in the window, where known.
    pub(crate) cpu_replicas: Option<f64>,
    pub(crate) readiness: Readiness,
    /// What the pools did in the window, if there are any.
    pub(crate) pool: Option<PoolReport>,
    /// How often the invariant was checked.
    pub(crate) checked: u64,
    /// What was found broken.
    pub(crate) broken: Vec<String>,
    /// What everybody had done when measuring began and when it ended, where some cheat.
    pub(crate) marks: Option<(Mark, Mark)>,
}

/// What the loop clients share.
struct Shared {
    workload: Arc<dyn Workload>,
    window: Window,
    tally: Mutex<Tally>,
    /// The same of the second under way, where a timeline is written.
    second: Option<Mutex<Counts>>,
    /// All commits, in the window or not, for the line of progress.
    commits: AtomicU64,
    /// How long an honest loop client's attempt takes, in nanoseconds: an average that forgets.
    attempt_ns: AtomicU64,
    checked: AtomicU64,
    broken: Mutex<Vec<String>>,
    failure: Mutex<Option<Error>>,
    /// How many transactions may still begin, and how many may still end, where that is limited.
    allowance: Option<Allowance>,
    /// When transactions may begin, where their rate is limited.
    pace: Option<Pace>,
    /// Whether the run is to end before its time.
    end: watch::Sender<End>,
}

/// Whether a run is to end before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is not.
    NotYet,
    /// All transactions that were asked for have ended.
    Done,
    /// It cannot go on, or somebody stopped it: what ends from now on does not count.
    Halted,
}

/// A number of transactions to run.
struct Allowance {
    begun: AtomicU64,
    ended: AtomicU64,
    wanted: u64,
}

/// Turns at which transactions begin, at even distances. What could not begin in time is not made up for: a cluster that stood still is not
/// asked for more afterwards.
struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    fn new(per_second: f64) -> Self {
        Self { interval: Duration::from_secs_f64(1.0 / per_second), next: Mutex::new(Instant::now()) }
    }

    /// The next turn for who asks `now`.
    fn turn(&self, now: Instant) -> Instant {
        let mut next = lock(&self.next);
        let turn = (*next).max(now);
        *next = turn + self.interval;
        turn
    }
}

/// Runs `workload` as `args` say, the loop clients spread over the crew's connections or their pools, until `stop` turns true at the latest.
pub(crate) async fn run(
    args: &BenchArgs,
    workload: &Arc<dyn Workload>,
    crew: &Crew,
    cluster_dir: &Path,
    mut stop: watch::Receiver<bool>,
) -> Result<Measured, BenchError> {
    let clients = &crew.clients;
    let mut timeline = args.timeline.as_deref().map(|path| Timeline::create(path, cluster_dir)).transpose()?;
    let readiness = workload.start(&clients[0], args.clients).await?;
    let shared = Arc::new(Shared {
        workload: Arc::clone(workload),
        window: Window::new(Instant::now(), args.warmup, args.seconds, args.cooldown),
        tally: Mutex::new(Tally::new(workload.kinds())),
        second: timeline.is_some().then(|| Mutex::new(Counts::new())),
        commits: AtomicU64::new(0),
        attempt_ns: AtomicU64::new(0),
        checked: AtomicU64::new(0),
        broken: Mutex::new(Vec::new()),
        failure: Mutex::new(None),
        allowance: args.transactions.map(|wanted| Allowance { begun: AtomicU64::new(0), ended: AtomicU64::new(0), wanted }),
        pace: args.rate.map(Pace::new),
        end: watch::Sender::new(End::NotYet),
    });
    let mut tasks = start_loop_clients(args, crew, &shared);
    tasks.spawn(watch_invariant(Arc::clone(&shared), Arc::clone(&clients[0]), args.check_interval));
    let stopping = tokio::spawn({
        let shared = Arc::clone(&shared);
        async move {
            // Who can stop the run may also have gone without doing so.
            if stop.wait_for(|stop| *stop).await.is_ok() {
                shared.end.send_replace(End::Halted);
            }
        }
    });

    let meter = Meter::line();
    wait_until(&shared, &meter, "warming up", shared.window.from).await;
    let mark_before = mark(crew).await;
    let (before, pools_before) = (Sample::take(cluster_dir), pool::sample(&crew.pools));
    match &mut timeline {
        Some(timeline) => wait_writing(&shared, &meter, timeline).await?,
        None => wait_until(&shared, &meter, "measuring", shared.window.until).await,
    }
    let (after, pools_after) = (Sample::take(cluster_dir), pool::sample(&crew.pools));
    let mark_after = mark(crew).await;
    let seconds = shared.window.measured_seconds(Instant::now());
    let pool = (!crew.pools.is_empty()).then(|| PoolReport::between(&pools_before, &pools_after, seconds));
    wait_until(&shared, &meter, "cooling down", shared.window.stop).await;
    stopping.abort();
    drain(&mut tasks, &shared).await;
    meter.finish();

    if let Some(failure) = lock(&shared.failure).take() {
        return Err(failure.into());
    }
    let (cpu_clients, cpu_replicas) = after.since(&before);
    let tally = std::mem::replace(&mut *lock(&shared.tally), Tally::new(&[]));
    let broken = std::mem::take(&mut *lock(&shared.broken));
    let checked = shared.checked.load(Ordering::Relaxed);
    let marks = mark_before.zip(mark_after);
    Ok(Measured { tally, seconds, cpu_clients, cpu_replicas, readiness, pool, checked, broken, marks })
}

/// Starts every loop client, the last ones as cheats where some are asked for.
fn start_loop_clients(args: &BenchArgs, crew: &Crew, shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let pooled: Vec<Arc<Client>> = crew.pools.iter().map(|pool| Arc::new(pool.client())).collect();
    let of_loop_clients = if pooled.is_empty() { &crew.clients } else { &pooled };
    let honest = crew.cheats.as_ref().map_or(args.clients, |(plan, _)| plan.honest());
    for index in 0..args.clients {
        let mut loop_client = LoopClient::new(args.seed, index);
        loop_client.is_cheat = index >= honest;
        match &crew.cheats {
            Some((plan, cheat)) if index >= honest => {
                drop(tasks.spawn(drive_cheat(Arc::clone(shared), Arc::clone(cheat), loop_client, plan.hurries())));
            }
            _ => {
                let client = Arc::clone(&of_loop_clients[index as usize % of_loop_clients.len()]);
                drop(tasks.spawn(drive(Arc::clone(shared), client, loop_client)));
            }
        }
    }
    tasks
}

async fn mark(crew: &Crew) -> Option<Mark> {
    let (plan, cheat) = crew.cheats.as_ref()?;
    Some(plan.mark(&crew.config, &crew.clients, cheat).await)
}

/// One loop client: transaction after transaction, until the end.
async fn drive(shared: Arc<Shared>, client: Arc<Client>, mut loop_client: LoopClient) {
    let mut pause_ms = PAUSE_MS_MIN;
    while shared.goes_on() && shared.begins() && shared.has_turn().await {
        let begin = Instant::now();
        let outcome = shared.workload.transact(&client, &mut loop_client).await;
        let end = Instant::now();
        match outcome {
            Ok(done) => {
                pause_ms = PAUSE_MS_MIN;
                shared.commits.fetch_add(1, Ordering::Relaxed);
                shared.note_attempts(done.attempts.into(), end - begin);
                if shared.counts(end) {
                    lock(&shared.tally).note_done(loop_client.kind, &done, end - begin);
                    if let Some(second) = &shared.second {
                        lock(second).note_done(&done, end - begin);
                    }
                }
                shared.note_broken(done.broken);
                shared.ends();
            }
            Err(error) => {
                if shared.counts(end) {
                    lock(&shared.tally).note_error(loop_client.kind, label(&error));
                    if let Some(second) = &shared.second {
                        lock(second).note_error(label(&error));
                    }
                }
                if !shared.survives(error) {
                    return;
                }
                shared.ends();
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
            }
        }
    }
}

/// One loop client that cheats: it hears nothing of what it left, and goes on with the next, at once if it is to `hurry`. None of it
/// counts.
async fn drive_cheat(shared: Arc<Shared>, client: Arc<Client>, mut loop_client: LoopClient, hurry: bool) {
    while shared.goes_on() && shared.has_turn().await {
        let begin = tokio::time::Instant::now();
        match shared.workload.transact(&client, &mut loop_client).await {
            Ok(_) | Err(Error::Client(client::Error::OutcomeUnknown { .. } | client::Error::Conflict)) => {}
            // Overload, for example, which a cheat may well bring upon itself.
            Err(Error::Client(_)) => tokio::time::sleep(Duration::from_millis(PAUSE_MS_MIN)).await,
            Err(error) => {
                shared.survives(error);
                return;
            }
        }
        if !hurry {
            let attempt = Duration::from_nanos(shared.attempt_ns.load(Ordering::Relaxed));
            tokio::time::sleep_until(begin + attempt).await;
        }
    }
}

/// Checks the invariant now and then, until the end.
async fn watch_invariant(shared: Arc<Shared>, client: Arc<Client>, interval_seconds: f64) {
    let interval = Duration::from_secs_f64(interval_seconds);
    let mut end = shared.end.subscribe();
    loop {
        let pause = interval.min(shared.window.stop.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = end.wait_for(|end| *end != End::NotYet) => {}
        }
        if !shared.goes_on() {
            return;
        }
        let Some(check) = shared.workload.check_running(&client) else { return };
        match check.await {
            Ok(verdict) => {
                shared.checked.fetch_add(1, Ordering::Relaxed);
                shared.note_broken(findings(verdict));
            }
            Err(error) => {
                if !shared.survives(error) {
                    return;
                }
            }
        }
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        *self.end.borrow() == End::NotYet && Instant::now() < self.window.stop
    }

    /// Whether one more transaction may begin.
    fn begins(&self) -> bool {
        self.allowance.as_ref().is_none_or(|allowance| allowance.begun.fetch_add(1, Ordering::Relaxed) < allowance.wanted)
    }

    /// Waits for the next turn, where there are turns; gives whether the run still goes on then.
    async fn has_turn(&self) -> bool {
        let Some(pace) = &self.pace else { return true };
        let turn = pace.turn(Instant::now());
        let mut end = self.end.subscribe();
        tokio::select! {
            () = tokio::time::sleep_until(turn.min(self.window.stop).into()) => {}
            _ = end.wait_for(|end| *end != End::NotYet) => {}
        }
        self.goes_on()
    }

    /// One more has ended, and is counted.
    fn ends(&self) {
        if let Some(allowance) = &self.allowance
            && allowance.ended.fetch_add(1, Ordering::Relaxed) + 1 == allowance.wanted
        {
            self.end.send_if_modified(|end| {
                let was_running = *end == End::NotYet;
                *end = if was_running { End::Done } else { *end };
                was_running
            });
        }
    }

    /// A transaction of an honest loop client took so many attempts, and so long.
    fn note_attempts(&self, attempts: u64, took: Duration) {
        let one = took.as_nanos() as u64 / attempts.max(1);
        // A sum lost to another loop client that adds at the same moment does not matter to an average.
        let average = self.attempt_ns.load(Ordering::Relaxed);
        let next = if average == 0 { one } else { average - average / ATTEMPTS_REMEMBERED + one / ATTEMPTS_REMEMBERED };
        self.attempt_ns.store(next, Ordering::Relaxed);
    }

    /// Whether a transaction that ended at `end` counts.
    fn counts(&self, end: Instant) -> bool {
        self.window.counts(end) && *self.end.borrow() != End::Halted
    }

    /// Whether the run goes on after `error`. If not, everybody is told to stop.
    fn survives(&self, error: Error) -> bool {
        if let Error::Client(error) = &error {
            // Who is refused from the start will be refused to the end; later it means that the replicas have too much
            // to do, which is a finding of the run and no reason to end it.
            let refused_late = matches!(error, client::Error::Refused(_)) && self.commits.load(Ordering::Relaxed) > 0;
            if refused_late || workload::passes(error) {
                return true;
            }
        }
        lock(&self.failure).get_or_insert(error);
        self.end.send_replace(End::Halted);
        false
    }

    fn note_broken(&self, found: impl IntoIterator<Item = String>) {
        let mut broken = None;
        for finding in found {
            let broken = broken.get_or_insert_with(|| lock(&self.broken));
            if broken.len() < BROKEN_MAX && !broken.contains(&finding) {
                broken.push(finding);
            }
        }
    }
}

/// Waits, telling what is going on, until `deadline` or until the run cannot go on.
async fn wait_until(shared: &Shared, meter: &Meter, phase: &str, deadline: Instant) {
    let mut end = shared.end.subscribe();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || *end.borrow() != End::NotYet {
            return;
        }
        let before = (Instant::now(), shared.commits.load(Ordering::Relaxed));
        tokio::select! {
            () = tokio::time::sleep(left.min(Duration::from_millis(PROGRESS_MS))) => {}
            _ = end.wait_for(|end| *end != End::NotYet) => return,
        }
        let commits = shared.commits.load(Ordering::Relaxed) - before.1;
        let rate = commits as f64 / before.0.elapsed().as_secs_f64();
        meter.say(format!("{phase}: {rate:.0} transactions/s, {:.0} s left", left.as_secs_f64()));
    }
}

/// Waits until measuring ends, and writes a line of the timeline each second.
async fn wait_writing(shared: &Shared, meter: &Meter, timeline: &mut Timeline) -> Result<(), BenchError> {
    timeline.begin();
    let mut next = Instant::now();
    while Instant::now() < shared.window.until && *shared.end.borrow() == End::NotYet {
        next += Duration::from_millis(timeline::LINE_MS);
        wait_until(shared, meter, "measuring", next.min(shared.window.until)).await;
        if let Some(second) = &shared.second {
            let counts = std::mem::replace(&mut *lock(second), Counts::new());
            timeline.write(&counts)?;
        }
    }
    Ok(())
}

/// Lets the last transactions end, and stops those that do not.
async fn drain(tasks: &mut JoinSet<()>, shared: &Shared) {
    let all_end = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_millis(DRAIN_MS_MAX), all_end).await.is_err() {
        let unfinished = tasks.len() as u64;
        tasks.shutdown().await;
        *lock(&shared.tally).all.errors.entry("unfinished").or_default() += unfinished;
    }
}

/// A short and stable name for the kind of an error.
fn label(error: &Error) -> &'static str {
    match error {
        Error::Client(error) => error.label(),
        _ => "workload",
    }
}

/// The lock, also after a loop client that held it has panicked: counts are whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_evenly_apart_and_none_is_made_up_for() {
        let pace = Pace::new(100.0);
        let begin = Instant::now();
        let first = pace.turn(begin);
        assert_eq!((pace.turn(begin) - first, pace.turn(begin) - first), (Duration::from_millis(10), Duration::from_millis(20)));
        let late = begin + Duration::from_secs(5);
        assert_eq!((pace.turn(late), pace.turn(late)), (late, late + Duration::from_millis(10)));
    }
}
