//! A server by itself, which is given turns one by one.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use bytes::Bytes;
use jute::{Acl, ConnectRequest, Create, CreateMode, Numbered, Reply, Request};
use sentinel::limits::TURN_ANSWER_BYTES_MAX;
use sentinel::{ConnectionId, Peer};

use super::*;
use crate::connection::Outgoing;

const CLIENT: ConnectionId = ConnectionId(1);

fn alone(folder: &Path, more: &str) -> Alone {
    let text = format!("clientPort=0\ntickTime=500\ndataDir={}\n{more}", folder.display());
    Alone::open(&Config::parse(&text).expect("it is a good file"), Arc::default(), Time(0)).expect("the disk works")
}

fn at(ms: u64) -> Time {
    Time(0).after_ms(ms)
}

fn batch(inputs: Vec<Asked>) -> Event {
    Event::Inputs(Batch { connection: CLIENT, inputs, arrived: Instant::now(), counted: Vec::new() })
}

fn ask(xid: i32, request: Request) -> Asked {
    Asked::Request { connection: CLIENT, request: Ok(Numbered { xid, request }) }
}

/// What clients are told in a turn with these events.
fn turn(alone: &mut Alone, now: Time, events: Vec<Event>) -> Vec<u8> {
    let mut outbox = OutboxOf::<Alone>::default();
    events.into_iter().for_each(|event| alone.step(now, Input::Command(event), &mut outbox));
    alone.end_turn(now, &mut outbox);
    alone.persist().expect("the disk works");
    let bytes = outbox.events.into_iter().filter_map(|told| if let Told::Bytes(_, bytes) = told { Some(bytes) } else { None });
    bytes.flatten().collect()
}

/// Has a client begin a session of five seconds.
fn connect(alone: &mut Alone) {
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
    let request = ConnectRequest { timeout_ms: 5_000, password: vec![0; 16], ..ConnectRequest::default() };
    let opened = Event::Opened { connection: CLIENT, peer, outgoing: Arc::<Outgoing>::default() };
    let said = turn(alone, at(0), vec![opened, batch(vec![Asked::Connect { connection: CLIENT, request }])]);
    assert!(!said.is_empty(), "it is welcome");
}

/// The numbers of the replies in these bytes.
fn numbers(mut bytes: &[u8], opcode: i32) -> Vec<i32> {
    let mut numbers = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, after) = rest.split_at(u32::from_be_bytes(*length) as usize);
        numbers.push(Reply::decode(frame, opcode).expect("a server answers so").xid);
        bytes = after;
    }
    numbers
}

#[test]
fn what_a_turn_says_has_a_bound_within_a_batch_too_and_the_next_turn_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut alone = alone(folder.path(), "");
    connect(&mut alone);
    let data = Some(Bytes::from(vec![0; 1 << 20]));
    let mode = CreateMode::Persistent;
    let create = Create { path: "/a".into(), data, acl: vec![Acl::open()], mode, sequential: false, wants_stat: false };
    turn(&mut alone, at(1), vec![batch(vec![ask(1, Request::Create(create))])]);
    let mut next = Some(batch((0..32).map(|xid| ask(xid, Request::GetData { path: "/a".into(), watch: false })).collect()));
    let (mut turns, mut answered) = (0, Vec::new());
    while let Some(event) = next {
        assert!(alone.may_take());
        let said = turn(&mut alone, at(2 + turns), vec![event]);
        assert!(said.len() <= TURN_ANSWER_BYTES_MAX + (2 << 20), "{} bytes are said", said.len());
        answered.extend(numbers(&said, jute::opcode::GET_DATA));
        next = alone.take_rest().map(Event::Inputs);
        turns += 1;
    }
    assert_eq!((turns, answered), (4, (0..32).collect()), "all is answered once, in order");
}

#[test]
fn no_session_ends_while_there_is_more_to_hear_of_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut alone = alone(folder.path(), "maxSessionTimeout=10000");
    connect(&mut alone);
    let other = || vec![Event::Closed(ConnectionId(2))];
    // The disk took six seconds, and the client's word is behind all that came before it.
    alone.note_behind(true);
    turn(&mut alone, at(6_000), other());
    assert_eq!(alone.server.statistics().expired, 0);
    alone.note_behind(false);
    turn(&mut alone, at(6_001), vec![batch(vec![ask(-2, Request::Ping)])]);
    assert_eq!(alone.server.statistics().expired, 0, "it has not been silent");
    // But however much others send, it is waited for no longer than a session may be silent at most.
    for (ms, expired) in [(15_000, 0), (24_999, 0), (25_000, 1)] {
        alone.note_behind(true);
        turn(&mut alone, at(ms), other());
        assert_eq!(alone.server.statistics().expired, expired, "after {ms} ms");
    }
}

#[test]
fn a_session_ends_at_once_when_all_is_heard() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut alone = alone(folder.path(), "");
    connect(&mut alone);
    turn(&mut alone, at(5_001), Vec::new());
    assert_eq!(alone.server.statistics().expired, 1);
}

#[test]
fn folders_are_walked_only_for_words_that_are_answered_and_show_it() {
    for (allowed, word, is_walked) in
        [("srvr", b"mntr", false), ("*", b"ruok", false), ("*", b"srvr", false), ("*", b"mntr", true), ("dirs", b"dirs", true)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let mut alone = alone(folder.path(), &format!("4lw.commands.whitelist={allowed}"));
        turn(&mut alone, at(1), vec![batch(vec![Asked::Word { connection: CLIENT, word: *word }])]);
        assert_eq!(alone.walks.last.is_some(), is_walked, "{word:?} where {allowed} is allowed");
    }
}
