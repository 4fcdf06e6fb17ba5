//! `bezant zookeeper` and `bezant audit offline`, as their users meet them: a file, a process, `kill -9`, and the folders afterwards.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jute::{Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, Numbered, Reply, Request};
use rustix::process::Signal;

use crate::place::{Place, Running, eventually};

/// A server's file, and where it will listen.
fn write_config(place: &Place, name: &str) -> SocketAddr {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, place.port()));
    let data = place.path(name);
    let text = format!(
        "tickTime=2000\ninitLimit=10\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nsnapCount=100\nmystery=1\n",
        data.display(),
        address.port()
    );
    fs::write(place.path("zoo.cfg"), text).expect("it can be written");
    address
}

fn start(place: &Place, address: SocketAddr) -> Running {
    let running = place.spawn(&["zookeeper", "--config", "zoo.cfg"]);
    eventually("it serves", || word(address, "srvr").contains("Mode: standalone"));
    running
}

fn word(address: SocketAddr, word: &str) -> String {
    let mut said = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(word.as_bytes())?;
        stream.read_to_string(&mut said)
    });
    asked.map(|_| said).unwrap_or_default()
}

fn exchange(stream: &mut TcpStream, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).expect("frames are short");
    stream.write_all(&[&length.to_be_bytes(), body].concat()).ok()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let mut body = Vec::new();
    ConnectRequest { timeout_ms: 30_000, password: vec![0; 16], ..Default::default() }.encode(&mut body);
    let answer = exchange(&mut stream, &body).expect("a session is granted");
    assert_ne!(ConnectResponse::decode(&answer).expect("a server answers so").session, 0);
    stream
}

fn ask(stream: &mut TcpStream, request: Request) -> Option<Reply> {
    let opcode = request.opcode();
    let mut body = Vec::new();
    Numbered { xid: 1, request }.encode(&mut body);
    Some(Reply::decode(&exchange(stream, &body)?, opcode).expect("a server answers so"))
}

fn create(path: String) -> Request {
    Request::Create(Create { path, data: None, acl: vec![Acl::open()], mode: CreateMode::Persistent, sequential: false, wants_stat: false })
}

#[test]
fn nothing_acknowledged_is_lost_to_kill_9_under_load() {
    let place = Place::new();
    let address = write_config(&place, "data");
    let mut expected = Vec::new();
    for round in 0..3 {
        let running = start(&place, address);
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let acknowledged = acknowledged.clone();
                std::thread::spawn(move || {
                    let mut stream = connect(address);
                    let paths = (0..).map(|number| format!("/{round}-{writer}-{number}"));
                    let is_done = |path: &String| ask(&mut stream, create(path.clone())).is_some_and(|reply| reply.answer.is_ok());
                    let count = |_: &String| {
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    };
                    paths.take_while(is_done).inspect(count).count()
                })
            })
            .collect();
        eventually("writes are under way", || acknowledged.load(Ordering::Relaxed) > 120);
        running.signal(Signal::KILL);
        running.wait();
        for (writer, acknowledged) in writers.into_iter().map(|writer| writer.join().expect("it ends")).enumerate() {
            expected.extend((0..acknowledged).map(|number| format!("/{round}-{writer}-{number}")));
        }
    }
    assert!(expected.len() > 360, "only {} were acknowledged", expected.len());
    let running = start(&place, address);
    let mut stream = connect(address);
    for path in &expected {
        let reply = ask(&mut stream, Request::Exists { path: path.clone(), watch: false }).expect("it answers");
        assert!(matches!(reply.answer, Ok(Answer::Stat(_))), "{path} was acknowledged, and is lost");
    }
    running.signal(Signal::TERM);
    running.wait().expect(0).says("line 7: mystery is not known here").says("initLimit has no effect here").says("stopped");
    let clean = place.run(&["audit", "offline", "data", "--json"]).expect(0).json();
    assert_eq!(clean["folders"][0]["found"]["state"], "agrees", "{clean}");
}

#[test]
fn an_audit_of_folders_says_which_of_them_is_wrong() {
    let place = Place::new();
    let address = write_config(&place, "one");
    let running = start(&place, address);
    let mut stream = connect(address);
    for number in 0..20 {
        let reply = ask(&mut stream, create(format!("/n{number}"))).expect("it answers");
        assert!(reply.answer.is_ok());
    }
    running.signal(Signal::TERM);
    running.wait().expect(0);
    for other in ["two", "three"] {
        copy(&place.path("one"), &place.path(other));
    }
    place.run(&["audit", "offline", "one", "two", "three"]).expect(0);
    for file in fs::read_dir(place.path("two/sentinel-snapshots")).expect("it is there") {
        let path = file.expect("it can be read").path();
        let mut bytes = fs::read(&path).expect("it can be read");
        if bytes.is_empty() {
            continue; // It only says that a log was begun.
        }
        bytes[60] ^= 1;
        fs::write(&path, bytes).expect("it can be written");
    }
    let found = place.run(&["audit", "offline", "one", "two", "three", "--json"]).expect(1).json();
    let states: Vec<_> = (0..3).map(|at| found["folders"][at]["found"]["state"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(states, ["agrees", "broken", "agrees"], "{found}");
    place.run(&["audit", "offline", "nowhere"]).expect(1);
    assert!(!place.path("nowhere").exists(), "an audit makes nothing");
}

#[test]
fn a_file_that_asks_for_more_than_there_is_is_refused() {
    let place = Place::new();
    write_config(&place, "data");
    let text = fs::read_to_string(place.path("zoo.cfg")).expect("it was written") + "server.1=a:2888:3888\n";
    fs::write(place.path("zoo.cfg"), text).expect("it can be written");
    place.run(&["zookeeper", "--config", "zoo.cfg"]).expect(2).says("line 8: server.N lines need bezant.key").says("--make-key");
    place.run(&["zookeeper", "--config", "nowhere.cfg"]).expect(2).says("nowhere.cfg");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}
