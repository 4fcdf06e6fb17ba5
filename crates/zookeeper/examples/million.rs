//! What a million nodes of 100 bytes take of memory, and how long one step of a server takes at most while a snapshot of them is written beside it.
//!
//! `cargo run --release -p zookeeper --example million`
//!
//! It is the server's machine by itself, without sockets and without a disk: what it takes is the state's, and what it waits for is what
//! writing shares with the snapshot. A step is preempted where others want the processor, which is in the longest one.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use jute::{Acl, ConnectRequest, Create, CreateMode, Numbered, Request};
use sentinel::{ConnectionId, Input, Now, Outbox, Peer, Profile, Server, Settings, State};

// What `bezant` allocates with: linked, it takes the place of the system's `malloc`.
use mimalloc as _;

const NODES: u64 = 1_000_000;
const DATA_BYTES: usize = 100;
const SNAPSHOTS: usize = 3;
/// A pause after so many steps, so that the snapshot has its share of time.
const STEPS_A_PAUSE: u64 = 4;
const PAUSE: Duration = Duration::from_micros(200);
const CONNECTION: ConnectionId = ConnectionId(1);
const NOW: Now = Now { wall_ms: 1, steady_ms: 1 };

/// What this process takes of memory, in MB.
fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1_000
}

fn server() -> Server {
    let settings = Settings {
        server_id: 1,
        timeout_ms_min: 1,
        timeout_ms_max: i32::MAX,
        reap_every_ms: i64::MAX / 2,
        words: None,
        superuser: None,
        secret: [3; 32],
        configuration: Vec::new(),
    };
    let mut server = Server::new(State::new(Profile::default(), 1), settings, NOW);
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
    let request = ConnectRequest { timeout_ms: i32::MAX, password: vec![0; 16], ..Default::default() };
    server.step(NOW, Input::Opened { connection: CONNECTION, peer }, &mut Outbox::default());
    server.step(NOW, Input::Connect { connection: CONNECTION, request }, &mut Outbox::default());
    server
}

/// How long it took to answer.
fn ask(server: &mut Server, request: Request) -> Duration {
    let mut outbox = Outbox::default();
    let began = Instant::now();
    server.step(NOW, Input::Request { connection: CONNECTION, request: Ok(Numbered { xid: 1, request }) }, &mut outbox);
    began.elapsed()
}

fn create(path: String) -> Request {
    let data = Some(vec![7; DATA_BYTES].into());
    Request::Create(Create { path, data, acl: vec![Acl::open()], mode: CreateMode::Persistent, sequential: false, wants_stat: false })
}

/// Half reads, a quarter each of writes and of new nodes, all over the tree.
fn request(random: u64, round: usize, step: u64) -> Request {
    let path = format!("/n{}", (random >> 16) % NODES);
    match random >> 62 {
        0 => create(format!("/m{round}-{step}")),
        1 => Request::SetData { path, data: Some(vec![8; DATA_BYTES].into()), version: -1 },
        _ => Request::GetData { path, watch: false },
    }
}

fn main() {
    let mut server = server();
    println!("empty: {} MB", resident_mb());
    for number in 0..NODES {
        ask(&mut server, create(format!("/n{number}")));
    }
    println!("{} nodes of {DATA_BYTES} bytes: {} MB", server.state().node_count(), resident_mb());
    let mut random = 1_u64;
    for round in 1..=SNAPSHOTS {
        let began = Instant::now();
        let frozen = server.state().frozen();
        let copied = began.elapsed();
        let writing = std::thread::spawn(move || {
            let (began, mut bytes) = (Instant::now(), 0);
            let written = frozen.write_snapshot(|piece| {
                bytes += piece.len();
                Ok::<(), std::convert::Infallible>(())
            });
            assert!(written.is_ok(), "memory is whole");
            (bytes / 1_000_000, began.elapsed())
        });
        let (mut steps, mut longest) = (0_u64, Duration::ZERO);
        while !writing.is_finished() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            longest = longest.max(ask(&mut server, request(random, round, steps)));
            steps += 1;
            if steps.is_multiple_of(STEPS_A_PAUSE) {
                std::thread::sleep(PAUSE);
            }
        }
        let (megabytes, took) = writing.join().expect("it does not panic");
        println!(
            "snapshot {round}: {megabytes} MB in {took:?}, the copy took {copied:?}; {steps} steps meanwhile, the longest {longest:?}; {} MB",
            resident_mb()
        );
    }
}
