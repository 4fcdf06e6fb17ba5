//! How much CPU time processes have used, by the kernel's own account.

use std::collections::BTreeMap;
use std::path::Path;

/// Ticks of CPU time a second in `/proc`. The kernel counts otherwise inside, but shows programs a hundred on every
/// architecture that this project runs on; it is part of its interface.
const TICKS_A_SECOND: f64 = 100.0;
/// The most processes whose time is read.
const PROCESSES_MAX: usize = 4_096;

/// CPU time used up to one moment, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    own: f64,
    replicas: BTreeMap<u32, f64>,
}

impl Sample {
    /// Reads the time of this process, and of the replicas whose process ids stand in `cluster_dir/run/*.pid`.
    pub(crate) fn take(cluster_dir: &Path) -> Self {
        let own = process_seconds("self").unwrap_or(0.0);
        let replicas = replica_pids(cluster_dir).into_iter().filter_map(|pid| Some((pid, process_seconds(&pid.to_string())?)));
        Self { own, replicas: replicas.collect() }
    }

    /// What was used since `before`: by this process, and by all replicas. The second is `None` when no replica was
    /// found, or when one ended meanwhile, for then nobody knows what it used.
    pub(crate) fn since(&self, before: &Self) -> (f64, Option<f64>) {
        let own = self.own - before.own;
        let ended = before.replicas.keys().any(|pid| !self.replicas.contains_key(pid));
        if ended || self.replicas.is_empty() {
            return (own, None);
        }
        // A replica that started meanwhile had used nothing before.
        let used = self.replicas.iter().map(|(pid, after)| after - before.replicas.get(pid).unwrap_or(&0.0));
        (own, Some(used.sum()))
    }
}

/// The process ids that stand in `cluster_dir/run/*.pid`.
pub(crate) fn replica_pids(cluster_dir: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(cluster_dir.join("run")).into_iter().flatten().flatten();
    let paths = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "pid")).take(PROCESSES_MAX);
    paths.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).collect()
}

/// CPU seconds that a process has used.
pub(crate) fn process_seconds(pid: &str) -> Option<f64> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in a line of `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
pub(crate) fn name(line: &str) -> Option<&str> {
    let (_, named) = line.split_once('(')?;
    named.rsplit_once(')').map(|(name, _)| name)
}

/// User and system time from the same.
pub(crate) fn parse_stat(line: &str) -> Option<f64> {
    // The second field is the program's name in brackets; it may hold blanks and brackets, so count from its end.
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_A_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(own: f64, replicas: &[(u32, f64)]) -> Sample {
        Sample { own, replicas: replicas.iter().copied().collect() }
    }

    #[test]
    fn a_stat_line_is_read_whatever_the_program_is_called() {
        let line = "17 (a) b (c)) S 1 17 17 0 -1 4194560 1 2 3 4 150 25 7 8 20 0 9 0 100 1000 10";
        assert_eq!(parse_stat(line), Some(1.75));
        assert_eq!(name(line), Some("a) b (c)"));
        assert_eq!(parse_stat("17 (a) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn only_what_was_used_between_counts() {
        let before = sample(1.0, &[(10, 5.0), (11, 6.0)]);
        assert_eq!(sample(1.5, &[(10, 7.0), (11, 6.5)]).since(&before), (0.5, Some(2.5)));
        assert_eq!(sample(1.5, &[(10, 7.0), (11, 6.5), (12, 0.25)]).since(&before), (0.5, Some(2.75)));
    }

    #[test]
    fn no_replicas_or_one_that_ended_give_no_number() {
        assert_eq!(sample(2.0, &[]).since(&sample(1.0, &[])), (1.0, None));
        assert_eq!(sample(2.0, &[(10, 5.0)]).since(&sample(1.0, &[(10, 4.0), (11, 1.0)])), (1.0, None));
    }

    #[test]
    fn replicas_are_found_by_their_pid_files() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Sample::take(folder.path()).replicas.is_empty());
        let run = folder.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        std::fs::write(run.join("s0-r0.pid"), format!("{}\n", std::process::id())).expect("a file");
        std::fs::write(run.join("s0-r1.pid"), "no number").expect("a file");
        std::fs::write(run.join("s0-r0.log"), "1").expect("a file");
        let sample = Sample::take(folder.path());
        if cfg!(target_os = "linux") {
            assert_eq!(sample.replicas.keys().copied().collect::<Vec<_>>(), [std::process::id()]);
        }
    }
}
