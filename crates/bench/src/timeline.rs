//! What a run was like second by second, for `--timeline`: what a database does in its tenth minute is seldom what it did in its first.
//!
//! A file with one JSON object a line. What the processes used is read from `/proc`, for the replicas that `bezant up` started on this
//! machine; where there is none, it is left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use crate::cpu::{self, replica_pids};
use crate::error::BenchError;
use crate::measure::Counts;
use crate::round;

/// How often a line is written, in milliseconds.
pub(crate) const LINE_MS: u64 = 1_000;

/// The file, and what stood in `/proc` when its last line was written.
pub(crate) struct Timeline {
    path: PathBuf,
    file: File,
    cluster_dir: PathBuf,
    begun: Instant,
    last: (Instant, Usage),
}

/// What processes have used up to one moment.
#[derive(Clone, Debug, Default)]
struct Usage {
    /// CPU seconds of this process.
    clients: f64,
    replicas: BTreeMap<u32, ReplicaUsage>,
}

/// What one replica has used up to one moment.
#[derive(Clone, Debug, Default)]
struct ReplicaUsage {
    cpu_seconds: f64,
    /// The same by thread, as the system numbers these, with their kind.
    threads: BTreeMap<u32, (String, f64)>,
    memory_bytes: u64,
    written_bytes: u64,
}

/// One line.
#[derive(Debug, Serialize)]
struct Line {
    /// Since measuring began.
    seconds: f64,
    committed_per_second: f64,
    /// Of attempts, those that committed.
    commit_rate: Option<f64>,
    fast_path_rate: Option<f64>,
    latency_us: Option<Latencies>,
    /// Cores in use: CPU seconds a second.
    cores: Cores,
    /// Of all replicas together, and of the one that has most.
    memory_mib: Option<Memory>,
    /// What all replicas together gave to the disk, in MiB a second.
    written_mib_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Latencies {
    p50: u64,
    p95: u64,
    p99: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct Cores {
    clients: f64,
    /// All replicas together.
    replicas: Option<f64>,
    /// The same by kind of thread. Threads that came and went within the second are missing.
    by_thread: BTreeMap<String, f64>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Memory {
    all: f64,
    largest: f64,
}

impl Timeline {
    /// Begins a file, over one that is there.
    ///
    /// # Errors
    /// [`BenchError::Settings`] when it cannot be written.
    pub(crate) fn create(path: &Path, cluster_dir: &Path) -> Result<Self, BenchError> {
        let file = File::create(path).map_err(|error| unwritable(path, &error))?;
        let now = Instant::now();
        Ok(Self { path: path.to_owned(), file, cluster_dir: cluster_dir.to_owned(), begun: now, last: (now, Usage::default()) })
    }

    /// Measuring begins.
    pub(crate) fn begin(&mut self) {
        let now = Instant::now();
        (self.begun, self.last) = (now, (now, Usage::take(&self.cluster_dir)));
    }

    /// Writes what was counted since the last line.
    ///
    /// # Errors
    /// [`BenchError::Settings`] when it cannot be written.
    pub(crate) fn write(&mut self, counts: &Counts) -> Result<(), BenchError> {
        let (now, usage) = (Instant::now(), Usage::take(&self.cluster_dir));
        let (then, before) = std::mem::replace(&mut self.last, (now, usage));
        let line = Line::new((now - self.begun).as_secs_f64(), (now - then).as_secs_f64(), counts, &before, &self.last.1);
        let written = serde_json::to_string(&line).map_err(std::io::Error::other).and_then(|line| writeln!(self.file, "{line}"));
        written.map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> BenchError {
    BenchError::Settings(format!("the timeline {} cannot be written: {error}", path.display()))
}

impl Line {
    /// What was counted and used within `passed` seconds.
    fn new(seconds: f64, passed: f64, counts: &Counts, before: &Usage, after: &Usage) -> Self {
        let rate = |part: u64, of: u64| (of > 0).then(|| round(part as f64 / of as f64, 4));
        let at = |quantile: f64| counts.latency_us.value_at_quantile(quantile);
        let latencies = || Latencies { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: counts.latency_us.max() };
        let a_second = |used: f64| round(used / passed.max(f64::MIN_POSITIVE), 3);
        let (mut replicas, mut written, mut by_thread) = (0.0, 0, BTreeMap::<String, f64>::new());
        for (pid, replica) in &after.replicas {
            // One that was not there before had used nothing.
            let none = ReplicaUsage::default();
            let earlier = before.replicas.get(pid).unwrap_or(&none);
            replicas += replica.cpu_seconds - earlier.cpu_seconds;
            written += replica.written_bytes.saturating_sub(earlier.written_bytes);
            for (thread, (kind, used)) in &replica.threads {
                let used_before = earlier.threads.get(thread).map_or(0.0, |(_, used)| *used);
                *by_thread.entry(kind.clone()).or_default() += used - used_before;
            }
        }
        by_thread.values_mut().for_each(|used| *used = a_second(*used));
        let known = !after.replicas.is_empty();
        Self {
            seconds: round(seconds, 3),
            committed_per_second: round(counts.committed as f64 / passed.max(f64::MIN_POSITIVE), 1),
            commit_rate: rate(counts.committed, counts.attempted),
            fast_path_rate: rate(counts.fast, counts.decided),
            latency_us: (counts.committed > 0).then(latencies),
            cores: Cores { clients: a_second(after.clients - before.clients), replicas: known.then(|| a_second(replicas)), by_thread },
            memory_mib: Memory::of(after.replicas.values().map(|replica| replica.memory_bytes)),
            written_mib_per_second: known.then(|| a_second(mib(written))),
        }
    }
}

impl Memory {
    fn of(replicas: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        let largest = replicas.clone().max()?;
        Some(Self { all: round(mib(replicas.sum()), 1), largest: round(mib(largest), 1) })
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Usage {
    fn take(cluster_dir: &Path) -> Self {
        let replicas = replica_pids(cluster_dir).into_iter().filter_map(|pid| Some((pid, ReplicaUsage::take(pid)?))).collect();
        Self { clients: cpu::process_seconds("self").unwrap_or(0.0), replicas }
    }
}

impl ReplicaUsage {
    fn take(pid: u32) -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let mut threads = BTreeMap::new();
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let Some(number) = thread.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let stat = read(&format!("task/{number}/stat"));
            if let Some((name, used)) = stat.as_deref().and_then(|stat| Some((cpu::name(stat)?, cpu::parse_stat(stat)?))) {
                threads.insert(number, (kind(name), used));
            }
        }
        Some(Self {
            cpu_seconds: cpu::process_seconds(&pid.to_string())?,
            threads,
            memory_bytes: read("status").as_deref().and_then(|text| field(text, "VmRSS:")).unwrap_or(0) << 10,
            written_bytes: read("io").as_deref().and_then(|text| field(text, "write_bytes:")).unwrap_or(0),
        })
    }
}

/// The first number after `name` in one of the files of `/proc` that have a field a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// What threads of one kind have in common in their names: what stands before a replica's name or a number.
fn kind(name: &str) -> String {
    let kind = name.split_once(" s").map_or(name, |(kind, _)| kind);
    kind.trim_end_matches(|end: char| end.is_ascii_digit() || matches!(end, '-' | '#' | ' ')).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use client::CommitPath;
    use workload::Done;

    use super::*;

    fn replica(cpu_seconds: f64, threads: &[(u32, &str, f64)], memory_bytes: u64, written_bytes: u64) -> ReplicaUsage {
        let threads = threads.iter().map(|(number, name, used)| (*number, (kind(name), *used))).collect();
        ReplicaUsage { cpu_seconds, threads, memory_bytes, written_bytes }
    }

    fn usage(clients: f64, replicas: Vec<(u32, ReplicaUsage)>) -> Usage {
        Usage { clients, replicas: replicas.into_iter().collect() }
    }

    #[test]
    fn a_line_has_what_came_since_the_last() {
        let mut counts = Counts::new();
        for path in [CommitPath::Fast, CommitPath::Fast, CommitPath::Slow] {
            counts.note_done(&Done { path: Some(path), attempts: 2, broken: None }, Duration::from_millis(3));
        }
        let before = usage(1.0, vec![(10, replica(5.0, &[(11, "loop s0-r0", 3.0), (12, "worker-1", 1.0)], 1 << 20, 10 << 20))]);
        let threads = [(11, "loop s0-r0", 4.0), (12, "worker-1", 1.5), (13, "worker-2", 0.5)];
        let joined = replica(1.0, &[(21, "loop s0-r1", 1.0)], 4 << 20, 1 << 20);
        let after = usage(1.5, vec![(10, replica(7.0, &threads, 2 << 20, 13 << 20)), (20, joined)]);
        let line = Line::new(9.0, 2.0, &counts, &before, &after);
        assert_eq!((line.committed_per_second, line.commit_rate, line.fast_path_rate), (1.5, Some(0.5), Some(0.6667)));
        assert_eq!(line.latency_us.map(|latencies| latencies.p50 / 100), Some(30));
        assert_eq!((line.cores.clients, line.cores.replicas), (0.25, Some(1.5)));
        assert_eq!(line.cores.by_thread, BTreeMap::from([("loop".to_owned(), 1.0), ("worker".to_owned(), 0.5)]));
        assert_eq!(line.memory_mib, Some(Memory { all: 6.0, largest: 4.0 }));
        assert_eq!(line.written_mib_per_second, Some(2.0));
    }

    #[test]
    fn what_is_not_known_is_left_open() {
        let line = Line::new(1.0, 1.0, &Counts::new(), &Usage::default(), &Usage::default());
        assert!(line.commit_rate.is_none() && line.latency_us.is_none() && line.cores.replicas.is_none() && line.memory_mib.is_none());
    }

    #[test]
    fn fields_and_kinds_of_threads_are_read_as_the_system_shows_them() {
        assert_eq!(field("Name:\tx\nVmRSS:\t  1234 kB\n", "VmRSS:"), Some(1_234));
        assert_eq!(field("rchar: 5\nwrite_bytes: 7\n", "write_bytes:"), Some(7));
        assert_eq!(field("rchar: 5\n", "write_bytes:"), None);
        assert_eq!(
            ["loop s0-r5", "tokio-rt-worker", "store-spare", "pool #3", "low priority"].map(kind),
            ["loop", "tokio-rt-worker", "store-spare", "pool", "low priority"]
        );
        if cfg!(target_os = "linux") {
            let own = ReplicaUsage::take(std::process::id()).expect("this process runs");
            assert!(own.memory_bytes > 0 && !own.threads.is_empty());
        }
    }
}
