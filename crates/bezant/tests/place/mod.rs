//! A folder with a cluster of real processes in it, and the program that is tried on it.

// Each file of tests has its own copy, and uses a part of it.
#![allow(dead_code)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The program that is tried: that of the package whose tests these are.
const PROGRAM: &str = match (option_env!("CARGO_BIN_EXE_bezant"), option_env!("CARGO_BIN_EXE_bezant-lab")) {
    (Some(program), _) | (None, Some(program)) => program,
    (None, None) => panic!("cargo names the program to tests of its package"),
};

/// How long anything may take that is waited for. It decides only when a test that fails does so.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where tests' clusters listen: below the ports where `--base-port auto` looks, and those that systems hand out.
const PORTS: Range<u16> = 10_000..15_000;
/// How many ports one test has, and how many of them one cluster gets.
const PORTS_OF_TEST: u16 = 100;
const PORTS_OF_CLUSTER: u16 = 32;

/// Clusters whose ports the program finds are made one at a time: those of a replica that is down are free for another to find.
static FINDS_PORTS: Mutex<()> = Mutex::new(());

/// A folder for one test's clusters, and ports for them. What `up` started there is stopped when it goes.
pub struct Place {
    folder: TempDir,
    ports: Ports,
    _one_at_a_time: Option<MutexGuard<'static, ()>>,
}

/// Ports of this computer that no other test has, in this process or another: whoever looks for some finds the first one taken.
struct Ports {
    next: AtomicU16,
    end: u16,
    _first: TcpListener,
}

impl Ports {
    fn reserve() -> Self {
        static RESERVED: AtomicU16 = AtomicU16::new(0);
        let blocks = (PORTS.end - PORTS.start) / PORTS_OF_TEST;
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Those of a test that has ended come last.
            let turn = (std::process::id() as u16).wrapping_add(RESERVED.fetch_add(1, Ordering::Relaxed)) % blocks;
            let begin = PORTS.start + turn * PORTS_OF_TEST;
            let (next, end) = (begin + 1, begin + PORTS_OF_TEST);
            if let Ok(first) = listen(begin)
                && (next..end).all(|port| listen(port).is_ok())
            {
                return Self { next: AtomicU16::new(next), end, _first: first };
            }
            sleep(LOOK_EVERY);
        }
        panic!("no {PORTS_OF_TEST} ports are free between {} and {}", PORTS.start, PORTS.end);
    }

    fn take(&self, count: u16) -> u16 {
        let port = self.next.fetch_add(count, Ordering::Relaxed);
        assert!(port + count <= self.end, "a test has {PORTS_OF_TEST} ports");
        port
    }
}

impl Place {
    pub fn new() -> Self {
        Self::holding(None)
    }

    /// For a test of what makes clusters whose ports it finds itself.
    pub fn finding_ports() -> Self {
        Self::holding(Some(FINDS_PORTS.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn holding(one_at_a_time: Option<MutexGuard<'static, ()>>) -> Self {
        Self { folder: TempDir::new().expect("a temporary folder"), ports: Ports::reserve(), _one_at_a_time: one_at_a_time }
    }

    /// A port that nothing else uses.
    pub fn port(&self) -> u16 {
        self.ports.take(1)
    }

    /// A `--base-port` for another cluster.
    pub fn base_port(&self) -> String {
        self.ports.take(PORTS_OF_CLUSTER).to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program in this folder.
    pub fn run(&self, arguments: &[&str]) -> Said {
        let output = self.command(arguments).output();
        Said::new(arguments, &output.expect("the program starts"))
    }

    /// Runs the program in this folder, with one more variable in its environment.
    pub fn run_with(&self, arguments: &[&str], name: &str, value: &str) -> Said {
        let output = self.command(arguments).env(name, value).output();
        Said::new(arguments, &output.expect("the program starts"))
    }

    /// Starts the program in this folder, and leaves it running.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        self.spawn_with(arguments, "UNUSED", "")
    }

    /// The same, with one more variable in its environment.
    pub fn spawn_with(&self, arguments: &[&str], name: &str, value: &str) -> Running {
        let mut command = self.command(arguments);
        let child = command.env(name, value).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        Running { asked: arguments.iter().map(|argument| (*argument).to_owned()).collect(), child: Some(child) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.folder.path()).env("HOME", self.folder.path());
        command
    }

    /// How many signatures the six replicas of the cluster's one shard have made, and how many they have checked.
    pub fn signatures(&self) -> (u64, u64) {
        let replicas = (0..6).map(|index| self.ask(&format!("s0-r{index}"), "/metrics").expect("it answers"));
        let count = |metrics: &str, name: &str| {
            let line = metrics.lines().find(|line| line.contains(name) && !line.starts_with('#')).expect("it is counted");
            line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok()).expect("a number")
        };
        replicas.fold((0, 0), |(made, checked), metrics| {
            (made + count(&metrics, "signatures_made"), checked + count(&metrics, "verify_roots_checked"))
        })
    }

    pub fn init(&self, more: &[&str]) {
        let base_port = self.base_port();
        let arguments: Vec<&str> = ["init", "bezant-data", "--base-port", &base_port].iter().chain(more).copied().collect();
        self.run(&arguments).expect(0);
    }

    /// Sends a signal to a replica that `up` started.
    pub fn signal(&self, replica: &str, signal: Signal) {
        let note = fs::read_to_string(self.path("bezant-data/run").join(format!("{replica}.pid"))).expect("noted");
        let pid = note.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
        kill_process(pid, signal).expect("it runs");
    }

    /// `kill -9` of a replica.
    pub fn kill(&self, replica: &str) {
        self.signal(replica, Signal::KILL);
    }

    /// Where a replica listens, for peers and clients or (`http`) for monitoring.
    pub fn address(&self, replica: &str, which: &str) -> SocketAddr {
        let cluster = fs::read_to_string(self.path("bezant-data/cluster.toml")).expect("made");
        let entry = cluster.split("[[replica]]").find(|entry| entry.contains(&format!("name = \"{replica}\""))).expect("listed");
        let line = entry.lines().find_map(|line| line.strip_prefix(&format!("{which} = "))).expect("it has one");
        line.trim_matches('"').parse().expect("an address")
    }

    /// What a replica answers to `GET path`; nothing when it does not.
    pub fn ask(&self, replica: &str, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address(replica, "http")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// One of a replica's counts of transactions, as `/status` has it.
    pub fn count(&self, replica: &str, name: &str) -> u64 {
        self.count_of(replica, "transactions", name)
    }

    /// The same of another group.
    pub fn count_of(&self, replica: &str, group: &str, name: &str) -> u64 {
        let status = self.ask(replica, "/status").unwrap_or_default();
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        status[group][name].as_u64().unwrap_or(0)
    }
}

/// A program that was left running; killed when it goes.
pub struct Running {
    asked: Vec<String>,
    child: Option<Child>,
}

impl Running {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it was not waited for");
        kill_process(Pid::from_child(child), signal).expect("it was not waited for");
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Said {
        let output = self.child.take().expect("waited for once").wait_with_output().expect("it ends");
        Said::new(&self.asked.iter().map(String::as_str).collect::<Vec<_>>(), &output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it may be killed");
            child.wait().expect("it ends");
        }
    }
}

/// Waits until `is_so`, for as long as a slow machine may need.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        sleep(LOOK_EVERY);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.path("bezant-data/run").exists() {
            self.run(&["down", "--seconds", "5"]);
        }
    }
}

/// What a command said, and how it ended.
pub struct Said {
    pub asked: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn new(arguments: &[&str], output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { asked: arguments.join(" "), code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub fn says(self, err: &str) -> Self {
        assert!(self.err.contains(err), "expected {err:?}: {self:#?}");
        self
    }

    #[track_caller]
    pub fn prints(self, out: &str) -> Self {
        assert_eq!(self.out, out, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// The whole of it, for a failed test.
impl fmt::Debug for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bezant {} ended with {:?}\n--- output\n{}\n--- errors\n{}", self.asked, self.code, self.out, self.err)
    }
}
