//! Measures servers of ZooKeeper's protocol, ZooKeeper itself among them, as the thesis on fault detection does (§5): clients that each keep a
//! fixed number of requests under way, which read or write nodes of one size.
//!
//! ```text
//!   nodes are made   warm-up   │◀────── seconds ──────▶│   last answers   nodes are removed
//! ```
//!
//! Each client is a connection and a session. It sends as many requests as were just answered, in one write, so that what is measured is
//! the server.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use jute::{Acl, ConnectRequest, ConnectResponse, Create, CreateMode, EVENT_XID, Numbered, Operation, Request};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::args::{interval as window, seconds};
use crate::cpu;

/// Under what the nodes lie.
const ROOT: &str = "/bezant-bench";
/// The longest latency that is told from longer ones.
const LATENCY_US_MAX: u64 = 60_000_000;
/// How many nodes one multi removes.
const REMOVED_AT_ONCE: usize = 500;
/// The longest answer that is read.
const FRAME_BYTES_MAX: usize = 8 << 20;
/// How much one client may have under way.
const OUTSTANDING_MAX: u64 = 10_000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct ZookeeperArgs {
    /// Where clients connect; clients are spread over several
    #[arg(long, value_name = "HOST:PORT", required = true)]
    server: Vec<String>,
    /// How many clients
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    /// How many requests each has under way
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=OUTSTANDING_MAX))]
    outstanding: u64,
    /// How many of a hundred requests read
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    reads: u8,
    /// How many bytes a node has
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    bytes: u64,
    /// How many nodes each client has
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    nodes: u64,
    /// For how many seconds, after the warm-up
    #[arg(long, default_value_t = 10.0, value_parser = window, value_name = "S")]
    seconds: f64,
    /// How long the warm-up is
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    warmup: f64,
    /// A server's process on this machine, whose CPU time is measured
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Leave the nodes there
    #[arg(long)]
    keep: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ZookeeperReport {
    /// Requests answered in the window.
    pub answered: u64,
    /// Of those, the ones that failed.
    pub failed: u64,
    /// Answers a second.
    pub per_second: f64,
    /// From a request's sending to its answer, in microseconds: the median.
    pub p50_us: u64,
    /// 99 of a hundred were faster.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
    /// CPU microseconds of the servers' processes for each answer, where their processes were named.
    pub server_cpu_us: Option<f64>,
    /// CPU microseconds of this process for each answer.
    pub client_cpu_us: f64,
    /// How many clients, and how many requests each had under way.
    pub clients: [u64; 2],
    /// How many of a hundred requests read.
    pub reads: u8,
    /// How many bytes a node has.
    pub bytes: u64,
    /// The length of the window.
    pub seconds: f64,
}

impl fmt::Display for ZookeeperReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [clients, outstanding] = self.clients;
        writeln!(
            formatter,
            "{clients} clients with {outstanding} requests each, {} % reads, {} bytes, {:.1} s",
            self.reads, self.bytes, self.seconds
        )?;
        writeln!(formatter, "answers a second   {:.0} ({} failed)", self.per_second, self.failed)?;
        writeln!(formatter, "latency            p50 {} µs, p99 {} µs, longest {} µs", self.p50_us, self.p99_us, self.max_us)?;
        if let Some(server) = self.server_cpu_us {
            writeln!(formatter, "servers' CPU       {server:.2} µs an answer")?;
        }
        write!(formatter, "this process' CPU  {:.2} µs an answer", self.client_cpu_us)
    }
}

/// What part of the run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    WarmUp = 0,
    Window = 1,
    Over = 2,
}

/// What one client has measured.
struct Measured {
    latency_us: Histogram<u64>,
    answered: u64,
    failed: u64,
}

/// Runs the clients, and says how fast the servers were.
///
/// # Errors
/// When a server cannot be reached, refuses, or closes a connection.
pub async fn run(args: &ZookeeperArgs) -> io::Result<ZookeeperReport> {
    let mut first = Client::begin(&args.server[0]).await?;
    // It may be there from before.
    first.exchange(&create(ROOT.to_owned(), Vec::new())).await?;
    let phase = Arc::new(AtomicU8::new(Phase::WarmUp as u8));
    let mut preparing = JoinSet::new();
    for number in 0..args.clients {
        let (args, server) = (args.clone(), pick(&args.server, number).to_owned());
        preparing.spawn(async move {
            let mut client = Client::begin(&server).await?;
            let paths: Vec<String> = (0..args.nodes).map(|node| format!("{ROOT}/{number}-{node}")).collect();
            let data = vec![b'x'; usize::try_from(args.bytes).unwrap_or(0)];
            for path in &paths {
                client.exchange(&create(path.clone(), data.clone())).await?;
            }
            Ok::<_, io::Error>((number, client, paths, data))
        });
    }
    let mut ready = Vec::new();
    while let Some(prepared) = preparing.join_next().await {
        ready.push(prepared.map_err(io::Error::other)??);
    }
    let mut clients = JoinSet::new();
    for (number, client, paths, data) in ready {
        let lane = Lane { paths, data, reads: args.reads, outstanding: args.outstanding, random: SmallRng::seed_from_u64(number) };
        clients.spawn(lane.run(client, phase.clone()));
    }
    let set = |to: Phase| phase.store(to as u8, Ordering::Release);
    tokio::time::sleep(Duration::from_secs_f64(args.warmup)).await;
    let (began, cpu) = (Instant::now(), CpuSample::take(&args.pid));
    set(Phase::Window);
    let failed = tokio::select! {
        () = tokio::time::sleep(Duration::from_secs_f64(args.seconds)) => None,
        ended = clients.join_next() => ended,
    };
    set(Phase::Over);
    let (seconds, used) = (began.elapsed().as_secs_f64(), CpuSample::take(&args.pid).since(&cpu));
    if let Some(ended) = failed {
        ended.map_err(io::Error::other)??;
    }
    let mut all = Measured { latency_us: histogram(), answered: 0, failed: 0 };
    while let Some(ended) = clients.join_next().await {
        let (measured, mut client, paths) = ended.map_err(io::Error::other)??;
        all.latency_us.add(&measured.latency_us).map_err(io::Error::other)?;
        all.answered += measured.answered;
        all.failed += measured.failed;
        if !args.keep {
            client.remove(&paths).await?;
        }
    }
    if !args.keep {
        first.remove(&[ROOT.to_owned()]).await?;
    }
    let an_answer = |seconds: f64| seconds * 1e6 / (all.answered.max(1) as f64);
    Ok(ZookeeperReport {
        answered: all.answered,
        failed: all.failed,
        per_second: all.answered as f64 / seconds,
        p50_us: all.latency_us.value_at_quantile(0.5),
        p99_us: all.latency_us.value_at_quantile(0.99),
        max_us: all.latency_us.max(),
        server_cpu_us: used.1.map(an_answer),
        client_cpu_us: an_answer(used.0),
        clients: [args.clients, args.outstanding],
        reads: args.reads,
        bytes: args.bytes,
        seconds,
    })
}

fn pick(servers: &[String], number: u64) -> &str {
    &servers[usize::try_from(number).unwrap_or(0) % servers.len()]
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order")
}

/// CPU seconds of this process, and of the servers' where all are known.
struct CpuSample(f64, Option<f64>);

impl CpuSample {
    fn take(pids: &[u32]) -> Self {
        let servers: Option<f64> = pids.iter().map(|pid| cpu::process_seconds(&pid.to_string())).sum();
        Self(cpu::process_seconds("self").unwrap_or(0.0), servers.filter(|_| !pids.is_empty()))
    }

    fn since(&self, before: &Self) -> (f64, Option<f64>) {
        (self.0 - before.0, self.1.zip(before.1).map(|(after, before)| after - before))
    }
}

fn create(path: String, data: Vec<u8>) -> Request {
    let (acl, mode) = (vec![Acl::open()], CreateMode::Persistent);
    Request::Create(Create { path, data: Some(data.into()), acl, mode, sequential: false, wants_stat: false })
}

/// A connection with a session.
struct Client {
    stream: TcpStream,
    /// What was received and not looked at yet.
    received: Vec<u8>,
    xid: i32,
}

impl Client {
    async fn begin(server: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream, received: Vec::new(), xid: 0 };
        let mut body = vec![0; 4];
        ConnectRequest { timeout_ms: 30_000, password: vec![0; 16], read_only: Some(false), ..ConnectRequest::default() }.encode(&mut body);
        end_frame(&mut body, 0);
        client.stream.write_all(&body).await?;
        let frame = client.next_frame().await?;
        let response = ConnectResponse::decode(&frame).map_err(io::Error::other)?;
        if response.session == 0 { Err(io::Error::other("the server grants no session")) } else { Ok(client) }
    }

    /// Asks, and gives the error code of the answer.
    async fn exchange(&mut self, request: &Request) -> io::Result<i32> {
        let mut out = Vec::new();
        self.put(request, &mut out);
        self.stream.write_all(&out).await?;
        loop {
            let frame = self.next_frame().await?;
            let (xid, code) = head(&frame)?;
            if xid != EVENT_XID {
                return Ok(code);
            }
        }
    }

    async fn remove(&mut self, paths: &[String]) -> io::Result<()> {
        for chunk in paths.chunks(REMOVED_AT_ONCE) {
            let operations = chunk.iter().map(|path| Operation::Delete { path: path.clone(), version: -1 });
            self.exchange(&Request::Multi(operations.collect())).await?;
        }
        Ok(())
    }

    fn put(&mut self, request: &Request, out: &mut Vec<u8>) -> i32 {
        self.xid = self.xid.wrapping_add(1) & i32::MAX;
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        Numbered { xid: self.xid, request: request.clone() }.encode(out);
        end_frame(out, start);
        self.xid
    }

    async fn next_frame(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(frame) = split_frame(&self.received, 0)? {
                let frame = self.received[frame].to_vec();
                self.received.drain(..frame.len() + 4);
                return Ok(frame);
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.received).await? == 0 {
            Err(io::Error::other("the server closed the connection"))
        } else {
            Ok(())
        }
    }
}

/// Writes the length of the frame that begins at `start`.
fn end_frame(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start - 4).expect("requests are shorter than a gigabyte");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Where the body of the frame at `at` lies, if it is whole.
fn split_frame(received: &[u8], at: usize) -> io::Result<Option<std::ops::Range<usize>>> {
    let Some(head) = received.get(at..at + 4) else { return Ok(None) };
    let length = u32::from_be_bytes(head.try_into().expect("four bytes")) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("an answer is too long"));
    }
    let body = at + 4..at + 4 + length;
    Ok((body.end <= received.len()).then_some(body))
}

/// Number and error code of an answer.
fn head(frame: &[u8]) -> io::Result<(i32, i32)> {
    let int = |at: usize| frame.get(at..at + 4).map(|bytes| i32::from_be_bytes(bytes.try_into().expect("four bytes")));
    int(0).zip(int(12)).ok_or_else(|| io::Error::other("an answer has no head"))
}

/// What one client does.
struct Lane {
    paths: Vec<String>,
    data: Vec<u8>,
    reads: u8,
    outstanding: u64,
    random: SmallRng,
}

impl Lane {
    async fn run(mut self, mut client: Client, phase: Arc<AtomicU8>) -> io::Result<(Measured, Client, Vec<String>)> {
        let mut measured = Measured { latency_us: histogram(), answered: 0, failed: 0 };
        let mut sent = std::collections::VecDeque::new();
        let mut out = Vec::new();
        let mut due = self.outstanding;
        loop {
            let now = phase.load(Ordering::Acquire);
            if now != Phase::Over as u8 {
                let at = Instant::now();
                for _ in 0..due {
                    let request = self.next();
                    client.put(&request, &mut out);
                    sent.push_back(at);
                }
                client.stream.write_all(&out).await?;
                out.clear();
            } else if sent.is_empty() {
                return Ok((measured, client, self.paths));
            }
            client.receive().await?;
            due = 0;
            let (mut at, arrived) = (0, Instant::now());
            while let Some(frame) = split_frame(&client.received, at)? {
                at = frame.end;
                let (xid, code) = head(&client.received[frame])?;
                if xid == EVENT_XID {
                    continue;
                }
                due += 1;
                let began: Instant = sent.pop_front().ok_or_else(|| io::Error::other("an answer to nothing"))?;
                if now == Phase::Window as u8 {
                    measured.answered += 1;
                    measured.failed += u64::from(code != 0);
                    let took = u64::try_from((arrived - began).as_micros()).unwrap_or(LATENCY_US_MAX);
                    measured.latency_us.saturating_record(took.max(1));
                }
            }
            client.received.drain(..at);
        }
    }

    fn next(&mut self) -> Request {
        let path = self.paths[self.random.random_range(0..self.paths.len())].clone();
        if self.random.random_range(0..100) < self.reads {
            Request::GetData { path, watch: false }
        } else {
            Request::SetData { path, data: Some(self.data.clone().into()), version: -1 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_as_they_arrive() {
        let bytes = [&[0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 1, 9, 0]].concat();
        assert_eq!(split_frame(&bytes, 0).expect("it is short"), Some(4..6));
        assert_eq!(split_frame(&bytes, 6).expect("it is short"), Some(10..11));
        assert_eq!(split_frame(&bytes[..5], 0).expect("it is short"), None);
        assert!(split_frame(&[0xff; 4], 0).is_err());
    }
}
