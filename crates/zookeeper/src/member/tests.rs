//! One of several servers, which is given turns one by one.

use std::net::Ipv4Addr;
use std::path::Path;

use bytes::Bytes;
use jute::{Acl, ConnectRequest, Create, CreateMode, Numbered, Request};
use sentinel::limits::TURN_ANSWER_BYTES_MAX;
use sentinel::{ConnectionId, Peer};

use super::*;
use crate::connection::Outgoing;

const CLIENT: ConnectionId = ConnectionId(1);

fn config(folder: &Path) -> Config {
    let key = "ab".repeat(32);
    let text = format!("clientPort=0\nbezant.key=k\nbezant.server.1={key}\nserver.1=127.0.0.1:1:2\ndataDir={}\n", folder.display());
    Config::parse(&text).expect("it is a good file")
}

fn opened() -> Event {
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
    Event::Opened { connection: CLIENT, peer, outgoing: Arc::<Outgoing>::default() }
}

fn batch(inputs: Vec<Asked>) -> Event {
    Event::Inputs(Batch { connection: CLIENT, inputs, arrived: Instant::now(), counted: Vec::new() })
}

fn ask(xid: i32, request: Request) -> Asked {
    Asked::Request { connection: CLIENT, request: Ok(Numbered { xid, request }) }
}

/// What clients are told in a turn with these inputs.
fn turn(member: &mut MemberMachine, now: Time, inputs: Vec<InputOf<MemberMachine>>) -> usize {
    let mut outbox = OutboxOf::<MemberMachine>::default();
    inputs.into_iter().for_each(|input| member.step(now, input, &mut outbox));
    member.end_turn(now, &mut outbox);
    member.persist().expect("the disk works");
    outbox.events.iter().map(|told| if let Told::Bytes(_, bytes) = told { bytes.len() } else { 0 }).sum()
}

#[tokio::test]
async fn a_turn_takes_of_other_servers_and_of_clients_however_much_there_is_of_either() {
    let folder = tempfile::tempdir().expect("a folder");
    let part = Part { me: 0, voters: 3, id: 1, timeout_ms: 1_000, names: Vec::new() };
    let (tell, heard) = mpsc::channel(PEER_WAITING_MAX);
    let (events, mut inbox) = mpsc::channel(TURN_MAX);
    let (_stop, mut stopping) = oneshot::channel();
    let others = Others { part, links: Vec::new(), heard };
    let mut driver = MemberDriver::open(config(folder.path()), Arc::default(), others).expect("the disk works");
    let mut taken = Heard { peers: Vec::new(), offered: None };
    for round in 0..3 {
        while tell.try_send((1, Message::LeadsWithout)).is_ok() {}
        events.try_send(opened()).expect("there is room");
        assert!(driver.gather(&mut taken, &mut inbox, &mut stopping).await);
        assert_eq!((taken.peers.len(), driver.waiting.len()), (PEER_WAITING_MAX, 1), "in round {round}");
        driver.turn(&mut taken).expect("the disk works");
        assert!(taken.peers.is_empty() && driver.waiting.is_empty());
    }
}

#[test]
fn what_a_turn_says_has_a_bound_within_a_batch_too_and_the_next_turn_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let part = Part { me: 0, voters: 1, id: 1, timeout_ms: 1_000, names: Vec::new() };
    let mut member = MemberMachine::open(config(folder.path()), part, Arc::default(), Time(0)).expect("the disk works");
    let client = |event| Input::Command(Command::Client(event));
    let mut ms = 0;
    let mut later = move || {
        ms += 100;
        Time(0).after_ms(ms)
    };
    for _ in 0..100 {
        turn(&mut member, later(), vec![Input::Tick]);
    }
    let request = ConnectRequest { timeout_ms: 60_000, password: vec![0; 16], ..ConnectRequest::default() };
    let connect = batch(vec![Asked::Connect { connection: CLIENT, request }]);
    let data = Some(Bytes::from(vec![0; 1 << 20]));
    let mode = CreateMode::Persistent;
    let create = Create { path: "/a".into(), data, acl: vec![Acl::open()], mode, sequential: false, wants_stat: false };
    let create = batch(vec![ask(1, Request::Create(create))]);
    assert!(turn(&mut member, later(), vec![client(opened()), client(connect), client(create)]) > 0, "it leads itself");
    let mut next = Some(batch((0..32).map(|xid| ask(xid, Request::GetData { path: "/a".into(), watch: false })).collect()));
    let mut all = Vec::new();
    while let Some(event) = next {
        assert!(member.may_take());
        all.push(turn(&mut member, later(), vec![client(event)]));
        next = member.rest.take().map(Event::Inputs);
    }
    assert!(all.iter().all(|said| *said <= TURN_ANSWER_BYTES_MAX + (2 << 20)), "{all:?} bytes are said");
    assert!(all.len() == 4 && all.iter().sum::<usize>() >= 32 << 20, "{all:?}");
}

#[test]
fn a_server_that_has_run_starts_only_among_those_that_decided_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = |id: u8, observes: bool| ServerConfig {
        id,
        host: "localhost".to_owned(),
        port: 2888,
        observes,
        public_key: [id; 32],
        client: None,
    };
    let three = [1, 2, 3].map(|id| server(id, false));
    let keep = |has_run: bool, servers: &[ServerConfig]| keep_voters(folder.path(), has_run, servers);
    keep(false, &[server(5, false)]).expect("it has not run");
    keep(false, &three).expect("it has not run");
    keep(true, &three).expect("they are the same");
    let with_observer: Vec<ServerConfig> = three.iter().cloned().chain([server(9, true)]).collect();
    keep(true, &with_observer).expect("one that observes decides nothing");
    let others = [2, 3, 4].map(|id| server(id, false));
    let refused = keep(true, &others).expect_err("one took another's place under another number").to_string();
    assert!(refused.contains("were 1, 2, 3 when") && refused.contains("are 2, 3, 4 now"), "{refused}");
    keep(true, &three).expect("they are the same again");
}
