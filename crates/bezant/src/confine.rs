//! What this program gives up, and what it needs, from its first moment.

#[cfg(target_os = "linux")]
use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, get_scheduler, set_scheduler};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::failure::Failure;

/// How many files a node must be able to have open: [`FILES_BESIDE_CLIENTS`], and one or a few for each
/// client.
const FILES_MIN: u64 = 1_024;
/// Of these, what a replica has beside the connections of clients: its base's tables (256), journal and other files, connections whose
/// owner is not known yet (256) or that are being closed, its links, and HTTP (64).
const FILES_BESIDE_CLIENTS: u64 = 768;
/// However few files there are, so many connections of clients are taken.
const CLIENTS_MIN: u64 = 64;
/// More than this is of no use, and makes some systems reserve memory for it.
const FILES_MAX: u64 = 1 << 20;

/// Nobody but this user may read what this program writes: keys, data, logs.
pub fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// For a program that runs replicas, before it starts a thread: a thread that wakes up does not interrupt one that runs. Where replicas
/// share cores, each then does more in a turn. A policy that whoever started the program has chosen stays. Where the system does not allow
/// it, replicas are slower, and that is all.
pub fn run_undisturbed() {
    #[cfg(target_os = "linux")]
    if matches!(get_scheduler(Pid::current_thread()), Ok(Scheduler::SCHED_NORMAL)) {
        let _ = set_scheduler(Pid::current_thread(), Scheduler::SCHED_BATCH, SchedulerParams { priority: 0 });
    }
}

/// For a program that runs replicas: no dump of its memory, which holds secret keys, and enough files.
///
/// # Errors
/// When the system allows too few open files, and says how to allow more.
pub fn prepare_for_replicas() -> Result<(), Failure> {
    // Not 0: Linux still pipes a dump to whoever collects them when it is 0, and never when it is 1.
    let no_dump = Rlimit { current: Some(1), maximum: Some(1) };
    if let Err(error) = setrlimit(Resource::Core, no_dump) {
        tracing::warn!(%error, "core dumps cannot be turned off: one would hold secret keys");
    }
    let files = getrlimit(Resource::Nofile);
    let allowed = files.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    if files.current.is_some_and(|current| current < allowed) {
        // What counts is what there is in the end.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: files.maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) if current < FILES_MIN => {
            Err(Failure::failed(format!("this process may have {current} files open, and a replica needs {FILES_MIN}"))
                .help("raise the limit: `ulimit -Hn`, LimitNOFILE= of a service, --ulimit nofile= of a container"))
        }
        _ => Ok(()),
    }
}

/// How many connections clients may have to each of `replicas` in this process: they are refused before the journal lacks a file.
pub fn connections_of_clients_max(replicas: usize) -> usize {
    connections_within(getrlimit(Resource::Nofile).current.unwrap_or(FILES_MAX), replicas)
}

fn connections_within(files: u64, replicas: usize) -> usize {
    let each = files.min(FILES_MAX) / (replicas.max(1) as u64);
    usize::try_from(each.saturating_sub(FILES_BESIDE_CLIENTS).max(CLIENTS_MIN)).expect("it is below FILES_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_left_undisturbed_unless_somebody_chose_otherwise() {
        let policy = || get_scheduler(Pid::current_thread()).expect("a thread has a policy");
        let chosen = |policy: Scheduler| set_scheduler(Pid::current_thread(), policy, SchedulerParams { priority: 0 });
        // Each in a thread of its own, as a policy is a thread's and passes to those that it starts.
        let after = move |before: Scheduler| {
            let thread = std::thread::spawn(move || {
                chosen(before).expect("nobody needs rights for less");
                run_undisturbed();
                std::thread::spawn(policy).join().expect("it does not panic")
            });
            thread.join().expect("it does not panic")
        };
        assert_eq!(after(Scheduler::SCHED_NORMAL), Scheduler::SCHED_BATCH);
        assert_eq!(after(Scheduler::SCHED_IDLE), Scheduler::SCHED_IDLE);
    }

    #[test]
    fn the_journal_keeps_its_files_however_many_clients_come() {
        assert_eq!(connections_within(FILES_MIN, 1), 256);
        assert_eq!(connections_within(20_000, 2), 9_232);
        assert_eq!(connections_within(FILES_MIN, 6), 64);
        assert_eq!(connections_within(u64::MAX, 1), (FILES_MAX - FILES_BESIDE_CLIENTS) as usize);
    }
}
