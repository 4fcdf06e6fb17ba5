//! A server over real sockets and a real disk, and a client that speaks ZooKeeper's protocol.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use jute::{Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, EventKind, Numbered, Operation, Reply, Request};
use zookeeper::{Audit, Config, Finding, Running, audit_offline};

fn config(folder: &Path, more: &str) -> Config {
    let text =
        format!("clientPort=0\nclientPortAddress=127.0.0.1\ntickTime=500\n4lw.commands.whitelist=*\ndataDir={}\n{more}", folder.display());
    Config::parse(&text).expect("it is a good file")
}

/// A server in a thread of its own runtime, so that clients are plain.
struct Server {
    runtime: tokio::runtime::Runtime,
    running: Option<Running>,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path, more: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let running = runtime.block_on(Running::start(config(folder, more))).expect("it starts");
        let address = running.address();
        Self { runtime, running: Some(running), address }
    }

    fn stop(mut self) {
        let running = self.running.take().expect("it runs");
        self.runtime.block_on(running.stop()).expect("it stops");
    }

    fn word(&self, word: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.write_all(word.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }
}

struct Client {
    stream: TcpStream,
    session: ConnectResponse,
    xid: i32,
}

fn send(stream: &mut TcpStream, body: &[u8]) {
    let length = u32::try_from(body.len()).expect("frames are short");
    stream.write_all(&[&length.to_be_bytes(), body].concat()).expect("it reads");
}

fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

impl Client {
    fn connect(address: SocketAddr, request: &ConnectRequest) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut body = Vec::new();
        request.encode(&mut body);
        send(&mut stream, &body);
        let session = ConnectResponse::decode(&receive(&mut stream)?).expect("a server answers so");
        Ok(Self { stream, session, xid: 0 })
    }

    fn begin(address: SocketAddr) -> Self {
        let request = ConnectRequest { timeout_ms: 5_000, password: vec![0; 16], read_only: Some(false), ..Default::default() };
        Self::connect(address, &request).expect("a session is granted")
    }

    fn resume(&self, address: SocketAddr) -> Self {
        let request = ConnectRequest { session: self.session.session, password: self.session.password.to_vec(), ..Default::default() };
        Self::connect(address, &request).expect("it is answered")
    }

    fn ask(&mut self, request: Request) -> Result<Answer, ErrorCode> {
        let opcode = request.opcode();
        self.say(request);
        self.hear(opcode).answer
    }

    fn say(&mut self, request: Request) {
        self.xid += 1;
        let mut body = Vec::new();
        Numbered { xid: self.xid, request }.encode(&mut body);
        send(&mut self.stream, &body);
    }

    fn hear(&mut self, opcode: i32) -> Reply {
        Reply::decode(&receive(&mut self.stream).expect("it answers"), opcode).expect("a server answers so")
    }
}

fn create(path: &str, mode: CreateMode) -> Request {
    let data = Some(Bytes::copy_from_slice(path.as_bytes()));
    Request::Create(Create { path: path.into(), data, acl: vec![Acl::open()], mode, sequential: false, wants_stat: false })
}

fn data_of(client: &mut Client, path: &str) -> Option<Bytes> {
    match client.ask(Request::GetData { path: path.into(), watch: false }) {
        Ok(Answer::Data { data, .. }) => data,
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_and_sessions_live_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "snapCount=10\n");
    let mut ann = Client::begin(server.address);
    for number in 0..55 {
        ann.ask(create(&format!("/n{number}"), CreateMode::Persistent)).expect("it is new");
    }
    ann.ask(create("/mine", CreateMode::Ephemeral)).expect("it is new");
    let digest = |server: &Server| server.word("mntr").lines().find(|line| line.starts_with("zk_digest\t")).map(str::to_owned);
    let before = digest(&server);
    server.stop();
    for profile in ["sha256-wide", "lthash16", "crc32"] {
        let server = Server::start(folder.path(), &format!("snapCount=10\nbezant.digest={profile}\n"));
        assert_eq!(digest(&server) == before, profile == "sha256-wide");
        let mut again = ann.resume(server.address);
        assert_eq!(again.session.session, ann.session.session);
        assert_eq!(data_of(&mut again, "/n54").as_deref(), Some(&b"/n54"[..]));
        assert!(again.ask(Request::Exists { path: "/mine".into(), watch: false }).is_ok());
        server.stop();
    }
    let files = std::fs::read_dir(folder.path().join("sentinel-snapshots")).expect("it is there").flatten();
    let names = files.filter(|file| file.file_name() != "log-begun").count();
    assert!((2..=4).contains(&names), "{names} snapshots are kept");
}

#[test]
fn a_server_whose_log_is_gone_does_not_begin_another() {
    let start = |folder: &Path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
        runtime.block_on(Running::start(config(folder, ""))).map(drop).map_err(|error| error.to_string())
    };
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "");
    Client::begin(server.address).ask(create("/acknowledged", CreateMode::Persistent)).expect("it is new");
    server.stop();
    let (log, snapshots) = (folder.path().join("sentinel-log"), folder.path().join("sentinel-snapshots"));
    std::fs::remove_dir_all(&log).expect("it was there");
    for _ in 0..2 {
        let why = start(folder.path()).expect_err("what it acknowledged is forgotten");
        assert!(why.contains("sentinel-log is missing") && why.contains("restore it"), "{why}");
        assert!(!log.exists());
        assert!(matches!(audit_offline(&[folder.path().to_owned()]).findings[0].1, Finding::Broken(_)), "an audit says so too");
    }
    // Without the snapshots it is a server that has nothing.
    std::fs::remove_dir_all(&snapshots).expect("it was there");
    let server = Server::start(folder.path(), "");
    let gone = Client::begin(server.address).ask(Request::Exists { path: "/acknowledged".into(), watch: false });
    assert_eq!(gone, Err(ErrorCode::NoNode));
    server.stop();
}

#[test]
fn many_requests_under_way_are_answered_in_order_and_share_syncs() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "");
    let mut ann = Client::begin(server.address);
    let mut watcher = Client::begin(server.address);
    watcher.ask(Request::GetChildren { path: "/".into(), watch: true }).expect("the root is there");
    for number in 0..500 {
        ann.say(create(&format!("/n{number}"), CreateMode::Persistent));
    }
    for number in 0..500 {
        let reply = ann.hear(jute::opcode::CREATE);
        assert_eq!((reply.xid, reply.answer), (number + 1, Ok(Answer::Path(format!("/n{number}")))));
    }
    match watcher.hear(0).answer {
        Ok(Answer::Event(event)) => assert_eq!((event.kind, event.path.as_str()), (EventKind::ChildrenChanged, "/")),
        other => panic!("{other:?}"),
    }
    let all = Request::Multi((0..500).map(|number| Operation::Delete { path: format!("/n{number}"), version: 0 }).collect());
    assert!(matches!(ann.ask(all), Ok(Answer::Results(results)) if results.len() == 500));
    assert!(server.word("srvr").contains("Node count: 4\n"));
    server.stop();
}

#[test]
fn nonsense_ends_its_connection_and_nobody_elses() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "jute.maxbuffer=4096\nmaxClientCnxns=8\n");
    let mut ann = Client::begin(server.address);
    let gone = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut rest = Vec::new();
        matches!(stream.read_to_end(&mut rest), Ok(0)) || rest.is_empty()
    };
    for nonsense in [&[0xff; 64][..], &[0, 0, 0x10, 1], &[0, 0, 0, 4, 1, 2, 3, 4], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        stream.write_all(nonsense).expect("it reads");
        assert!(gone(stream), "{nonsense:?}");
    }
    let mut too_long = Client::begin(server.address);
    send(&mut too_long.stream, &[1; 5_000]);
    assert!(receive(&mut too_long.stream).is_err());
    let held: Vec<TcpStream> = (0..12).map(|_| TcpStream::connect(server.address).expect("it listens")).collect();
    assert!(gone(held.into_iter().next_back().expect("there are twelve")), "one address has no more than its share");
    assert_eq!(ann.ask(Request::Ping), Ok(Answer::Empty));
    server.stop();
}

#[test]
fn a_client_that_is_silent_loses_its_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "minSessionTimeout=1000\nmaxSessionTimeout=1000\n");
    let (mut ann, mut bob) = (Client::begin(server.address), Client::begin(server.address));
    assert_eq!(ann.session.timeout_ms, 1_000);
    ann.ask(create("/mine", CreateMode::Ephemeral)).expect("it is new");
    bob.ask(Request::Exists { path: "/mine".into(), watch: true }).expect("it is there");
    let event = loop {
        std::thread::sleep(Duration::from_millis(200));
        bob.say(Request::Ping);
        match bob.hear(jute::opcode::PING).answer {
            Ok(Answer::Event(event)) => break event,
            answer => assert_eq!(answer, Ok(Answer::Empty)),
        }
    };
    assert_eq!((event.kind, event.path.as_str()), (EventKind::Deleted, "/mine"));
    assert_eq!(ann.resume(server.address).session.session, 0);
    server.stop();
}

/// Three servers that were asked the same, each in its folder.
fn three_alike() -> Vec<tempfile::TempDir> {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let server = Server::start(folders[0].path(), "");
    let mut ann = Client::begin(server.address);
    for number in 0..20 {
        ann.ask(create(&format!("/n{number}"), CreateMode::Persistent)).expect("it is new");
    }
    server.stop();
    // Replicas apply the same transactions; a copy of the folder has exactly these.
    for folder in &folders[1..] {
        copy(folders[0].path(), folder.path());
    }
    folders
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

fn audit(folders: &[tempfile::TempDir]) -> Audit {
    audit_offline(&folders.iter().map(|folder| folder.path().to_owned()).collect::<Vec<_>>())
}

#[test]
fn an_audit_names_the_folder_that_differs_and_the_node() {
    let folders = three_alike();
    assert!(audit(&folders).is_clean());
    // One replica goes on by itself; what all have in common is the same.
    let server = Server::start(folders[1].path(), "");
    Client::begin(server.address).ask(create("/more", CreateMode::Persistent)).expect("it is new");
    server.stop();
    let found = audit(&folders);
    assert!(found.is_clean(), "{found:?}");
    // Another one goes on otherwise, and then as far as the first.
    for at in [0, 2] {
        let server = Server::start(folders[at].path(), "");
        Client::begin(server.address).ask(create("/other", CreateMode::Persistent)).expect("it is new");
        server.stop();
    }
    let found = audit(&folders);
    let differing: Vec<usize> = found
        .findings
        .iter()
        .enumerate()
        .filter(|(_, (_, finding))| matches!(finding, Finding::Differs { .. }))
        .map(|(at, _)| at)
        .collect();
    assert!(!differing.is_empty() && !found.is_clean(), "{found:?}");
}

#[test]
fn a_flipped_bit_in_the_log_or_the_snapshot_is_found_by_audit_and_at_the_start() {
    let folders = three_alike();
    let log = folders[2].path().join("sentinel-log/journal");
    let place = |bytes: &[u8]| bytes.windows(4).position(|window| window == b"/n13");
    let files = std::fs::read_dir(&log).expect("it is there").flatten().map(|file| (file.path(), std::fs::read(file.path())));
    let mut whole = files.filter_map(|(path, bytes)| Some((path, bytes.ok()?)));
    let (segment, mut bytes) = whole.find(|(_, bytes)| place(bytes).is_some()).expect("a transaction names it");
    let at = place(&bytes).expect("it was just found");
    bytes[at] ^= 4;
    std::fs::write(&segment, bytes).expect("it can be written");
    let found = audit(&folders);
    assert!(matches!(found.findings[2].1, Finding::Broken(_)) && found.has_majority, "{found:?}");
    assert!(matches!(found.findings[0].1, Finding::Agrees(_)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    let refused = runtime.block_on(Running::start(config(folders[2].path(), ""))).err().expect("it does not start").to_string();
    assert!(refused.contains("damaged"), "{refused}");
}
