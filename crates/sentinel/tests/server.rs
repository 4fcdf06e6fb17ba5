//! What clients of a server see, as a script over its inputs and outputs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use jute::{
    Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, EventKind, Id, NotARequest, Numbered, Operation,
    OperationResult, Reply, Request, SetWatches, Stat, WatchKind, WatchMode, permissions,
};
use sentinel::{Body, ConnectionId, Fields, Input, Now, Outbox, Peer, Profile, Server, Settings, State, Transaction, Value, digest_id};

/// A server and its clients.
struct Bench {
    server: Server,
    now: Now,
    log: Vec<Transaction>,
    /// What each connection was sent and has not read.
    received: BTreeMap<ConnectionId, Vec<u8>>,
    closed: BTreeSet<ConnectionId>,
    connections: u64,
}

/// A client's end of a connection.
#[derive(Clone, Copy)]
struct Client {
    connection: ConnectionId,
    session: i64,
    password: [u8; 16],
}

fn settings() -> Settings {
    Settings {
        server_id: 1,
        timeout_ms_min: 4_000,
        timeout_ms_max: 40_000,
        reap_every_ms: 60_000,
        words: None,
        superuser: Some(digest_id("super:secret").id),
        secret: [3; 32],
        configuration: vec![("clientPort".into(), "2181".into())],
    }
}

impl Bench {
    fn new() -> Self {
        Self::on(State::new(Profile::Sha256Wide, 1))
    }

    fn on(state: State) -> Self {
        let now = Now { wall_ms: 1_700_000_000_000, steady_ms: 0 };
        let server = Server::new(state, settings(), now);
        Self { server, now, log: Vec::new(), received: BTreeMap::new(), closed: BTreeSet::new(), connections: 0 }
    }

    fn step(&mut self, input: Input) {
        let mut outbox = Outbox::default();
        self.server.step(self.now, input, &mut outbox);
        self.log.extend(outbox.transactions);
        for (connection, bytes) in outbox.bytes {
            self.received.entry(connection).or_default().extend(bytes);
        }
        self.closed.extend(outbox.close);
    }

    fn pass(&mut self, milliseconds: i64) {
        self.now = Now { wall_ms: self.now.wall_ms + milliseconds, steady_ms: self.now.steady_ms + milliseconds };
        self.step(Input::Tick);
    }

    fn open(&mut self) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1_000, certificate: None };
        self.step(Input::Opened { connection, peer });
        connection
    }

    fn connect(&mut self, request: ConnectRequest) -> (ConnectionId, Option<ConnectResponse>) {
        let connection = self.open();
        self.step(Input::Connect { connection, request });
        let frame = self.frames(connection).pop_front();
        (connection, frame.map(|frame| ConnectResponse::decode(&frame).expect("a server answers so")))
    }

    fn client(&mut self) -> Client {
        let (connection, response) = self.connect(ConnectRequest { timeout_ms: 10_000, password: vec![0; 16], ..Default::default() });
        let response = response.expect("a new session is granted");
        assert_eq!(response.timeout_ms, 10_000);
        Client { connection, session: response.session, password: response.password }
    }

    /// The bodies of the frames that the connection was sent.
    fn frames(&mut self, connection: ConnectionId) -> VecDeque<Vec<u8>> {
        let mut bytes = &self.received.remove(&connection).unwrap_or_default()[..];
        let mut frames = VecDeque::new();
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let (frame, after) = rest.split_at(u32::from_be_bytes(*length) as usize);
            frames.push_back(frame.to_vec());
            bytes = after;
        }
        frames
    }

    /// Asks, and gives the events that came before the answer, and the answer.
    fn ask_and_hear(&mut self, client: Client, request: Request) -> (Vec<(EventKind, String)>, Result<Answer, ErrorCode>) {
        let opcode = request.opcode();
        self.step(Input::Request { connection: client.connection, request: Ok(Numbered { xid: 5, request }) });
        let mut events = Vec::new();
        for frame in self.frames(client.connection) {
            let reply = Reply::decode(&frame, opcode).expect("a server answers so");
            match reply.answer {
                Ok(Answer::Event(event)) => events.push((event.kind, event.path)),
                answer => return (events, answer),
            }
        }
        panic!("no answer");
    }

    fn ask(&mut self, client: Client, request: Request) -> Result<Answer, ErrorCode> {
        self.ask_and_hear(client, request).1
    }

    fn create(&mut self, client: Client, path: &str, mode: CreateMode) -> Result<Answer, ErrorCode> {
        self.ask(client, create(path, mode, false))
    }

    fn heard(&mut self, client: Client) -> Vec<(EventKind, String)> {
        let decode = |frame: Vec<u8>| match Reply::decode(&frame, 0).expect("a server says so").answer {
            Ok(Answer::Event(event)) => (event.kind, event.path),
            other => panic!("{other:?}"),
        };
        self.frames(client.connection).into_iter().map(decode).collect()
    }

    fn stat(&mut self, client: Client, path: &str) -> Stat {
        match self.ask(client, Request::Exists { path: path.into(), watch: false }) {
            Ok(Answer::Stat(stat)) => stat,
            other => panic!("{other:?}"),
        }
    }
}

fn operation(path: &str, mode: CreateMode, sequential: bool) -> Create {
    Create { path: path.into(), data: Some(Bytes::from_static(b"x")), acl: vec![Acl::open()], mode, sequential, wants_stat: false }
}

fn create(path: &str, mode: CreateMode, sequential: bool) -> Request {
    Request::Create(operation(path, mode, sequential))
}

fn set(path: &str, version: i32) -> Request {
    Request::SetData { path: path.into(), data: Some(Bytes::from_static(b"new")), version }
}

fn delete(path: &str) -> Request {
    Request::Delete { path: path.into(), version: -1 }
}

use CreateMode::{Container, Ephemeral, Persistent};

#[test]
fn nodes_are_created_written_and_deleted_with_the_stats_that_zookeeper_gives() {
    let mut bench = Bench::new();
    let ann = bench.client();
    assert_eq!(bench.create(ann, "/a", Persistent), Ok(Answer::Path("/a".into())));
    assert_eq!(bench.create(ann, "/a", Persistent), Err(ErrorCode::NodeExists));
    assert_eq!(bench.create(ann, "/x/y", Persistent), Err(ErrorCode::NoNode));
    assert_eq!(bench.create(ann, "/a/b", Ephemeral), Ok(Answer::Path("/a/b".into())));
    assert_eq!(bench.create(ann, "/a/b/c", Persistent), Err(ErrorCode::NoChildrenForEphemerals));
    assert_eq!(bench.ask(ann, delete("/a")), Err(ErrorCode::NotEmpty));
    assert_eq!(bench.ask(ann, set("/a", 3)), Err(ErrorCode::BadVersion));
    bench.ask(ann, set("/a", 0)).expect("the version is 0");
    let time = bench.now.wall_ms;
    // Requests that fail have their place in the order too.
    let expected = Stat {
        czxid: 2,
        mzxid: 9,
        ctime: time,
        mtime: time,
        version: 1,
        cversion: 1,
        data_length: 3,
        num_children: 1,
        pzxid: 5,
        ..Stat::default()
    };
    assert_eq!(bench.stat(ann, "/a"), expected);
    assert_eq!(bench.stat(ann, "/a/b").ephemeral_owner, ann.session);
    bench.ask(ann, delete("/a/b")).expect("it is there");
    let after = bench.stat(ann, "/a");
    assert_eq!((after.cversion, after.num_children, after.pzxid), (2, 0, 10));
    assert_eq!(bench.stat(ann, "/").cversion, 0, "one child was created, and there are /a and /zookeeper");
    assert_eq!(bench.ask(ann, delete("/zookeeper")), Err(ErrorCode::BadArguments));
    assert_eq!(bench.ask(ann, Request::GetAllChildrenNumber { path: "/zookeeper".into() }), Ok(Answer::Count(2)));
}

#[test]
fn sequential_nodes_are_numbered_by_the_children_their_parent_ever_had() {
    let mut bench = Bench::new();
    let ann = bench.client();
    bench.create(ann, "/q", Persistent).expect("it is new");
    for number in ["/q/n-0000000000", "/q/n-0000000001"] {
        assert_eq!(bench.ask(ann, create("/q/n-", Persistent, true)), Ok(Answer::Path(number.into())));
    }
    bench.ask(ann, delete("/q/n-0000000001")).expect("it is there");
    assert_eq!(bench.ask(ann, create("/q/", Ephemeral, true)), Ok(Answer::Path("/q/0000000002".into())));
    let names = vec!["0000000002".to_owned(), "n-0000000000".to_owned()];
    assert_eq!(bench.ask(ann, Request::GetChildren { path: "/q".into(), watch: false }), Ok(Answer::Names(names)));
    assert_eq!(bench.ask(ann, Request::GetEphemerals { prefix: "/q".into() }), Ok(Answer::Names(vec!["/q/0000000002".into()])));
}

#[test]
fn a_multi_succeeds_as_a_whole_or_changes_nothing() {
    let mut bench = Bench::new();
    let ann = bench.client();
    let many = |last: Operation| {
        Request::Multi(vec![
            Operation::Create(operation("/m", Persistent, false)),
            Operation::Create(operation("/m/n", Persistent, false)),
            Operation::SetData { path: "/m".into(), data: None, version: 0 },
            Operation::Check { path: "/m".into(), version: 1 },
            last,
        ])
    };
    let failed = bench.ask(ann, many(Operation::Delete { path: "/m".into(), version: -1 }));
    let errors = [0, 0, 0, 0, ErrorCode::NotEmpty.number()].map(OperationResult::Error).to_vec();
    assert_eq!(failed, Ok(Answer::Results(errors)));
    let checksum = bench.server.state().checksum();
    let failed = bench.ask(
        ann,
        Request::Multi(vec![Operation::Check { path: "/m".into(), version: 0 }, Operation::Delete { path: "/x".into(), version: 0 }]),
    );
    let errors = vec![OperationResult::Error(ErrorCode::NoNode.number()), OperationResult::Error(ErrorCode::RuntimeInconsistency.number())];
    assert_eq!(failed, Ok(Answer::Results(errors)));
    assert_eq!(bench.server.state().checksum(), checksum);
    match bench.ask(ann, many(Operation::Delete { path: "/m/n".into(), version: -1 })) {
        Ok(Answer::Results(results)) => {
            assert_eq!(results.len(), 5);
            assert_eq!(results[0], OperationResult::Create { path: "/m".into() });
            assert!(matches!(results[2], OperationResult::SetData { stat: Stat { version: 1, num_children: 1, data_length: 0, .. } }));
            assert_eq!(results[4], OperationResult::Delete);
        }
        other => panic!("{other:?}"),
    }
    let read = Request::MultiRead(vec![
        jute::ReadOperation::GetData { path: "/m".into() },
        jute::ReadOperation::GetChildren { path: "/gone".into() },
    ]);
    match bench.ask(ann, read) {
        Ok(Answer::Results(results)) => {
            assert!(matches!(results[0], OperationResult::GetData { data: None, .. }), "no data are not empty data");
            assert_eq!(results[1], OperationResult::Error(ErrorCode::NoNode.number()));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watch_is_heard_before_the_answer_that_shows_the_change() {
    let mut bench = Bench::new();
    let (ann, bob) = (bench.client(), bench.client());
    assert_eq!(bench.ask(ann, Request::Exists { path: "/a".into(), watch: true }), Err(ErrorCode::NoNode));
    assert_eq!(bench.ask(ann, Request::GetChildren { path: "/".into(), watch: true }).map(|_| ()), Ok(()));
    bench.create(bob, "/a", Persistent).expect("it is new");
    assert_eq!(bench.heard(ann), [(EventKind::Created, "/a".into()), (EventKind::ChildrenChanged, "/".into())]);
    bench.ask(ann, Request::GetData { path: "/a".into(), watch: true }).expect("it is there");
    let (events, answer) = bench.ask_and_hear(ann, set("/a", -1));
    assert_eq!(events, [(EventKind::DataChanged, "/a".into())]);
    assert!(answer.is_ok());
    bench.ask(bob, set("/a", -1)).expect("it is there");
    assert_eq!(bench.heard(ann), [], "one-shot watches fire once");
}

#[test]
fn lasting_watches_stay_and_are_checked_and_removed() {
    let mut bench = Bench::new();
    let (ann, bob) = (bench.client(), bench.client());
    bench.create(bob, "/a", Persistent).expect("it is new");
    assert_eq!(bench.ask(ann, Request::AddWatch { path: "/a".into(), mode: WatchMode::PersistentRecursive }), Ok(Answer::Count(0)));
    bench.create(bob, "/a/b", Persistent).expect("it is new");
    bench.ask(bob, set("/a/b", -1)).expect("it is there");
    bench.ask(bob, delete("/a/b")).expect("it is there");
    let below = "/a/b".to_owned();
    let expected = [EventKind::Created, EventKind::DataChanged, EventKind::Deleted].map(|kind| (kind, below.clone()));
    assert_eq!(bench.heard(ann), expected);
    let check = |kind| Request::CheckWatches { path: "/a".into(), kind };
    assert_eq!(bench.ask(ann, check(WatchKind::PersistentRecursive)), Ok(Answer::Empty));
    assert_eq!(bench.ask(ann, check(WatchKind::Data)), Err(ErrorCode::NoWatcher));
    assert_eq!(bench.ask(ann, Request::RemoveWatches { path: "/a".into(), kind: WatchKind::Any }), Ok(Answer::Empty));
    bench.ask(bob, set("/a", -1)).expect("it is there");
    assert_eq!(bench.heard(ann), []);
}

#[test]
fn a_client_that_comes_back_hears_of_what_it_missed_and_watches_on() {
    let mut bench = Bench::new();
    let (ann, bob) = (bench.client(), bench.client());
    for path in ["/changed", "/same", "/gone", "/parent"] {
        bench.create(bob, path, Persistent).expect("it is new");
    }
    let seen = bench.server.state().zxid();
    bench.step(Input::Closed { connection: ann.connection });
    bench.ask(bob, set("/changed", -1)).expect("it is there");
    bench.ask(bob, delete("/gone")).expect("it is there");
    bench.create(bob, "/parent/child", Persistent).expect("it is new");
    bench.create(bob, "/new", Persistent).expect("it is new");
    let again = ConnectRequest { session: ann.session, password: ann.password.to_vec(), last_zxid_seen: seen, ..Default::default() };
    let (connection, response) = bench.connect(again);
    assert_eq!(response.map(|response| response.session), Some(ann.session));
    let ann = Client { connection, ..ann };
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    let watches = SetWatches {
        relative_zxid: seen,
        data: paths(&["/changed", "/same", "/gone"]),
        exist: paths(&["/new", "/never"]),
        child: paths(&["/parent", "/same"]),
        persistent: paths(&["/lasting"]),
        persistent_recursive: paths(&["/tree"]),
    };
    let (events, answer) = bench.ask_and_hear(ann, Request::SetWatches(watches));
    let expected = [
        (EventKind::DataChanged, "/changed"),
        (EventKind::Deleted, "/gone"),
        (EventKind::Created, "/new"),
        (EventKind::ChildrenChanged, "/parent"),
    ];
    assert_eq!(events, expected.map(|(kind, path)| (kind, path.to_owned())));
    assert_eq!(answer, Ok(Answer::Empty));
    bench.ask(bob, set("/same", -1)).expect("it is there");
    bench.create(bob, "/never", Persistent).expect("it is new");
    bench.create(bob, "/lasting", Persistent).expect("it is new");
    let heard: Vec<String> = bench.heard(ann).into_iter().map(|(_, path)| path).collect();
    assert_eq!(heard, ["/same", "/never", "/lasting"]);
}

#[test]
fn a_session_ends_with_its_ephemeral_nodes_when_it_is_closed_or_not_heard_of() {
    let mut bench = Bench::new();
    let (ann, bob, eve) = (bench.client(), bench.client(), bench.client());
    bench.create(ann, "/ann", Ephemeral).expect("it is new");
    bench.create(bob, "/bob", Ephemeral).expect("it is new");
    bench.ask(eve, Request::Exists { path: "/ann".into(), watch: true }).expect("it is there");
    assert_eq!(bench.ask(ann, Request::CloseSession), Ok(Answer::Empty));
    assert!(bench.closed.contains(&ann.connection));
    assert_eq!(bench.heard(eve), [(EventKind::Deleted, "/ann".into())]);
    bench.pass(6_000);
    bench.ask(eve, Request::Ping).expect("it is alive");
    bench.pass(4_000);
    assert_eq!(bench.ask(eve, Request::Exists { path: "/bob".into(), watch: false }), Err(ErrorCode::NoNode));
    assert!(bench.closed.contains(&bob.connection) && !bench.closed.contains(&eve.connection));
    assert_eq!(bench.server.statistics().expired, 1);
    let resume =
        |client: Client, password: [u8; 16]| ConnectRequest { session: client.session, password: password.to_vec(), ..Default::default() };
    let (connection, response) = bench.connect(resume(bob, bob.password));
    assert_eq!(response, Some(ConnectResponse::expired(None)));
    assert!(bench.closed.contains(&connection));
    let (_, response) = bench.connect(resume(eve, [1; 16]));
    assert_eq!(response, Some(ConnectResponse::expired(None)), "without its password a session is not resumed");
    let (_, response) = bench.connect(resume(eve, eve.password));
    assert_eq!(response.map(|response| response.session), Some(eve.session));
    assert!(bench.closed.contains(&eve.connection), "a session is at one connection");
}

#[test]
fn a_client_that_has_seen_more_is_turned_away() {
    let mut bench = Bench::new();
    let (connection, response) = bench.connect(ConnectRequest { last_zxid_seen: 50, password: vec![0; 16], ..Default::default() });
    assert_eq!(response, None);
    assert!(bench.closed.contains(&connection));
}

#[test]
fn acls_are_kept_and_events_are_told_to_those_who_may_read() {
    let mut bench = Bench::new();
    let (ann, eve) = (bench.client(), bench.client());
    let auth = |text: &'static str| Request::Auth { scheme: "digest".into(), credentials: Bytes::from_static(text.as_bytes()) };
    assert_eq!(bench.ask(ann, auth("ann:pw")), Ok(Answer::Empty));
    let acl = vec![Acl { permissions: permissions::ALL, id: Id::new("auth", "") }];
    let mine = Create { acl, ..operation("/mine", Persistent, false) };
    assert!(bench.ask(ann, Request::Create(mine)).is_ok());
    bench.ask(eve, Request::AddWatch { path: "/mine".into(), mode: WatchMode::Persistent }).expect("anybody may try");
    for forbidden in [
        Request::GetData { path: "/mine".into(), watch: false },
        Request::GetChildren2 { path: "/mine".into(), watch: false },
        Request::GetAcl { path: "/mine".into() },
        set("/mine", -1),
        create("/mine/x", Persistent, false),
        Request::SetAcl { path: "/mine".into(), acl: vec![Acl::open()], version: -1 },
    ] {
        assert_eq!(bench.ask(eve, forbidden.clone()), Err(ErrorCode::NoAuth), "{forbidden:?}");
    }
    bench.ask(ann, set("/mine", -1)).expect("it is hers");
    assert_eq!(bench.heard(eve), []);
    assert_eq!(bench.ask(eve, auth("super:secret")), Ok(Answer::Empty));
    bench.ask(ann, set("/mine", -1)).expect("it is hers");
    assert_eq!(bench.heard(eve), [(EventKind::DataChanged, "/mine".into())]);
    let kerberos = Request::Auth { scheme: "kerberos".into(), credentials: Bytes::new() };
    assert_eq!(bench.ask(eve, kerberos), Err(ErrorCode::AuthFailed));
    assert!(bench.closed.contains(&eve.connection));
}

#[test]
fn containers_and_nodes_past_their_time_are_reaped() {
    let mut bench = Bench::new();
    let ann = bench.client();
    let ttl = CreateMode::Ttl { ttl_ms: 90_000 };
    for (path, mode) in [("/used", Container), ("/unused", Container), ("/used/x", Persistent), ("/late", ttl)] {
        bench.create(ann, path, mode).expect("it is new");
    }
    assert_eq!(bench.create(ann, "/bad", CreateMode::Ttl { ttl_ms: 0 }), Err(ErrorCode::BadArguments));
    bench.ask(ann, delete("/used/x")).expect("it is there");
    let mut there = |seconds: i64| {
        for _ in 0..seconds / 3 {
            bench.pass(3_000);
            bench.ask(ann, Request::Ping).expect("it is alive");
        }
        ["/used", "/unused", "/late"].map(|path| bench.ask(ann, Request::Exists { path: path.into(), watch: false }).is_ok())
    };
    assert_eq!(there(57), [true, true, true]);
    assert_eq!(there(6), [false, true, true]);
    assert_eq!(there(60), [false, true, false]);
}

#[test]
fn what_cannot_be_read_is_refused_and_the_rest_goes_on() {
    let mut bench = Bench::new();
    let ann = bench.client();
    let malformed = NotARequest::Record { xid: 9, opcode: 4, reason: jute::Malformed::Truncated };
    bench.step(Input::Request { connection: ann.connection, request: Err(malformed) });
    let frame = bench.frames(ann.connection).pop_front().expect("it is answered");
    assert_eq!(Reply::decode(&frame, 4).expect("a server answers so").answer, Err(ErrorCode::MarshallingError));
    assert_eq!(bench.ask(ann, Request::Ping), Ok(Answer::Empty));
    bench.step(Input::Request { connection: ann.connection, request: Err(NotARequest::Unknown { xid: 9, opcode: 77 }) });
    assert!(bench.closed.contains(&ann.connection));
    let stranger = bench.open();
    bench.step(Input::Request { connection: stranger, request: Ok(Numbered { xid: 1, request: Request::Ping }) });
    assert!(bench.closed.contains(&stranger), "a connection begins with a session");
}

#[test]
fn a_quota_counts_its_subtree_without_a_new_version_and_a_hard_one_is_kept_where_that_is_asked_for() {
    for enforces_quotas in [false, true] {
        let mut bench = Bench::new();
        bench.server = bench.server.with_quotas_enforced(enforces_quotas);
        let ann = bench.client();
        for path in ["/a", "/a/b", "/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_limits", "/zookeeper/quota/a/zookeeper_stats"] {
            bench.create(ann, path, Persistent).expect("it is new");
        }
        let limits = Bytes::from_static(b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3");
        let write = |path: &str, data: Bytes| Request::SetData { path: path.into(), data: Some(data), version: -1 };
        bench.ask(ann, write("/zookeeper/quota/a/zookeeper_limits", limits)).expect("anybody may");
        let counted =
            |bench: &mut Bench| match bench.ask(ann, Request::GetData { path: "/zookeeper/quota/a/zookeeper_stats".into(), watch: true }) {
                Ok(Answer::Data { data: Some(data), stat }) => (String::from_utf8(data.to_vec()).expect("it is text"), stat.version),
                other => panic!("{other:?}"),
            };
        let before = counted(&mut bench).0;
        bench.ask(ann, write("/a/b", Bytes::from_static(b"12345"))).expect("it is there");
        assert_ne!(counted(&mut bench).0, before);
        bench.create(ann, "/a/c", Ephemeral).expect("it is new");
        let (text, version) = counted(&mut bench);
        assert_eq!(text, "count=3,bytes=7");
        assert_eq!(version, 0, "nobody wrote it");
        let fourth = bench.create(ann, "/a/d", Persistent);
        assert_eq!(fourth == Err(ErrorCode::QuotaExceeded), enforces_quotas, "{fourth:?}");
        bench.ask(ann, Request::CloseSession).expect("it ends");
        let bob = bench.client();
        let left = bench.ask(bob, Request::GetData { path: "/zookeeper/quota/a/zookeeper_stats".into(), watch: false });
        let expected = if enforces_quotas { "count=2," } else { "count=3," };
        assert!(matches!(left, Ok(Answer::Data { data: Some(data), .. }) if data.starts_with(expected.as_bytes())));
    }
}

#[test]
fn the_quota_of_the_root_counts_all_there_is() {
    let mut bench = Bench::new();
    let ann = bench.client();
    for path in ["/a", "/a/b", "/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_stats", "/zookeeper/quota/zookeeper_stats"] {
        bench.create(ann, path, Persistent).expect("it is new");
    }
    let counted = |bench: &mut Bench, of: &str| match bench.ask(ann, Request::GetData { path: of.into(), watch: false }) {
        Ok(Answer::Data { data: Some(data), .. }) => String::from_utf8(data.to_vec()).expect("it is text"),
        other => panic!("{other:?}"),
    };
    let below = counted(&mut bench, "/zookeeper/quota/a/zookeeper_stats");
    assert_eq!(below, "count=2,bytes=2");
    // Four that are always there and without data, four with one byte each, and the other statistics.
    assert_eq!(counted(&mut bench, "/zookeeper/quota/zookeeper_stats"), format!("count=9,bytes={}", 4 + below.len()));
    assert!(bench.server.corruption().is_none());
}

/// How many requests one turn takes, of many that are all the same.
fn taken(bench: &mut Bench, client: Client, request: impl Fn(usize) -> Request) -> usize {
    bench.server.begin_turn();
    let mut taken = 0;
    while bench.server.may_do_more() {
        let _ = bench.ask(client, request(taken));
        taken += 1;
        assert!(taken < 10_000, "a turn never ends");
    }
    bench.server.begin_turn();
    assert!(bench.server.may_do_more(), "another turn goes on");
    taken
}

#[test]
fn a_turn_ends_when_it_has_looked_at_much() {
    let mut bench = Bench::on(State::new(Profile::Off, 1));
    let ann = bench.client();
    bench.create(ann, "/a", Persistent).expect("it is new");
    let many = (0..2_000).map(|number| Operation::Create(operation(&format!("/a/{number}"), Persistent, false)));
    bench.ask(ann, Request::Multi(many.collect())).expect("it fits");
    bench.create(ann, "/zookeeper/quota/a", Persistent).expect("it is new");
    let path = || "/a".to_owned();
    let stats = "/zookeeper/quota/a/zookeeper_stats";
    let expected = sentinel::limits::TURN_NODES_MAX / 2_000;
    let few = expected / 2..=2 * expected;
    assert!(few.contains(&taken(&mut bench, ann, |_| Request::GetAllChildrenNumber { path: path() })));
    assert!(few.contains(&taken(&mut bench, ann, |_| Request::GetChildren2 { path: path(), watch: false })));
    let line = |address: &str| Acl { permissions: permissions::ALL, id: Id::new("ip", address) };
    let acl = (0..1_000).map(|number| line(&format!("10.0.{}.{}", number / 256, number % 256)));
    let acl: Vec<Acl> = acl.chain([line("127.0.0.1")]).collect();
    bench.ask(ann, Request::Create(Create { acl, ..operation("/guarded", Persistent, false) })).expect("it is new");
    let guarded = || "/guarded".to_owned();
    let few_lines = sentinel::limits::TURN_NODES_MAX / 2_000..=sentinel::limits::TURN_NODES_MAX / 500;
    assert!(few_lines.contains(&taken(&mut bench, ann, |_| Request::GetData { path: guarded(), watch: false })));
    assert!(few_lines.contains(&taken(&mut bench, ann, |_| Request::SetData { path: guarded(), data: None, version: -1 })));
    let checks = || Request::Multi((0..2_000).map(|_| Operation::Check { path: path(), version: -1 }).collect());
    assert!(few.contains(&taken(&mut bench, ann, |_| checks())));
    let counts = |number: usize| if number.is_multiple_of(2) { create(stats, Persistent, false) } else { delete(stats) };
    assert!(few.contains(&taken(&mut bench, ann, counts)), "what a quota counts is counted");
    let all = |_: usize| Request::GetAllChildrenNumber { path: "/".into() };
    bench.server.begin_turn();
    (0..100).for_each(|number| drop(bench.ask(ann, all(number))));
    assert!(bench.server.may_do_more(), "how many there are in all is known");
}

#[test]
fn a_turn_counts_the_watches_that_it_sets_and_forgets() {
    let mut bench = Bench::on(State::new(Profile::Off, 1));
    let clients: Vec<Client> = (0..2).map(|_| bench.client()).collect();
    let paths = |number: usize| (0..20_000).map(|at| format!("/{number}-{at}")).collect();
    for list in [
        |watches: &mut SetWatches, paths| watches.persistent = paths,
        |watches: &mut SetWatches, paths| {
            watches.persistent_recursive = paths;
        },
    ] {
        let set = |number: usize| {
            let mut watches = SetWatches::default();
            list(&mut watches, paths(number));
            Request::SetWatches(watches)
        };
        assert_eq!(taken(&mut bench, clients[0], set), 4, "20,000 nodes each");
    }
    bench.ask(clients[1], Request::AddWatch { path: "/".into(), mode: WatchMode::Persistent }).expect("there is room");
    bench.server.begin_turn();
    bench.step(Input::Closed { connection: clients[1].connection });
    assert!(bench.server.may_do_more(), "it had one watch");
    bench.step(Input::Closed { connection: clients[0].connection });
    assert!(!bench.server.may_do_more(), "it had many");
}

#[test]
fn sessions_end_in_one_turn_until_it_has_done_much() {
    let mut bench = Bench::on(State::new(Profile::Off, 1));
    let clients: Vec<Client> = (0..6).map(|_| bench.client()).collect();
    for (number, client) in clients.iter().enumerate() {
        let many = (0..16_000).map(|at| Operation::Create(operation(&format!("/{number}-{at}"), Ephemeral, false)));
        bench.ask(*client, Request::Multi(many.collect())).expect("it fits");
    }
    let left = |bench: &Bench| bench.server.state().node_count();
    let (before, mut ended) = (left(&bench), Vec::new());
    bench.now = Now { wall_ms: bench.now.wall_ms + 11_000, steady_ms: bench.now.steady_ms + 11_000 };
    while bench.server.deadline_ms() <= bench.now.steady_ms {
        bench.server.begin_turn();
        bench.pass(0);
        ended.push((before - left(&bench)) / 16_000);
    }
    assert_eq!(ended, [5, 6], "the last one ends in the turn after the others");
}

#[test]
fn a_turn_ends_when_it_has_said_much() {
    let mut bench = Bench::new();
    let ann = bench.client();
    let data = Some(Bytes::from(vec![1; 1 << 20]));
    bench.ask(ann, Request::Create(Create { data, ..operation("/a", Persistent, false) })).expect("it is new");
    assert_eq!(taken(&mut bench, ann, |_| Request::GetData { path: "/a".into(), watch: false }), 8);
}

#[test]
fn names_that_are_more_than_an_answer_may_hold_are_refused() {
    let mut bench = Bench::on(State::new(Profile::Off, 1));
    let ann = bench.client();
    bench.create(ann, "/a", Persistent).expect("it is new");
    let path = |number: usize| format!("/a/{number}{}", "x".repeat(1 << 20));
    let grow = |bench: &mut Bench, numbers: std::ops::Range<usize>| {
        numbers.for_each(|number| drop(bench.create(ann, &path(number), Persistent).expect("it is new")));
    };
    let requests = [Request::GetChildren { path: "/a".into(), watch: false }, Request::GetChildren2 { path: "/a".into(), watch: false }];
    grow(&mut bench, 0..31);
    for request in requests.clone() {
        bench.ask(ann, request).expect("it fits");
    }
    grow(&mut bench, 31..33);
    for request in requests {
        assert_eq!(bench.ask(ann, request), Err(ErrorCode::MarshallingError));
    }
    let read = Request::MultiRead(vec![jute::ReadOperation::GetChildren { path: "/a".into() }]);
    let refused = vec![OperationResult::Error(ErrorCode::MarshallingError.number())];
    assert_eq!(bench.ask(ann, read), Ok(Answer::Results(refused)));
    assert_eq!(bench.ask(ann, Request::GetAllChildrenNumber { path: "/a".into() }), Ok(Answer::Count(33)));
}

#[test]
fn descendants_are_counted_up_to_so_many() {
    let mut bench = Bench::on(State::new(Profile::Off, 1));
    let ann = bench.client();
    bench.create(ann, "/a", Persistent).expect("it is new");
    let at_once = 4_096;
    for batch in 0..sentinel::limits::DESCENDANTS_MAX / at_once {
        let many = (0..at_once).map(|number| Operation::Create(operation(&format!("/a/{batch}-{number}"), Persistent, false)));
        bench.ask(ann, Request::Multi(many.collect())).expect("it fits");
    }
    let count = |bench: &mut Bench, path: &str| bench.ask(ann, Request::GetAllChildrenNumber { path: path.into() });
    assert_eq!(count(&mut bench, "/a"), Ok(Answer::Count(1 << 17)));
    bench.create(ann, "/a/more", Persistent).expect("it is new");
    assert_eq!(count(&mut bench, "/a"), Err(ErrorCode::MarshallingError));
    assert!(matches!(count(&mut bench, "/"), Ok(Answer::Count(_))), "how many there are in all is known");
}

#[test]
fn who_shows_more_than_is_kept_is_told_so() {
    let mut bench = Bench::new();
    let (ann, bob) = (bench.client(), bench.client());
    let auth = |number: usize| Request::Auth { scheme: "digest".into(), credentials: format!("user{number}:pw").into() };
    // Its address is one of those that are kept.
    for number in 1..sentinel::limits::IDENTITIES_MAX {
        for client in [ann, bob] {
            assert_eq!(bench.ask(client, auth(number)), Ok(Answer::Empty));
        }
    }
    assert_eq!(bench.ask(ann, auth(100)), Err(ErrorCode::AuthFailed), "it is not taken for that user");
    assert!(bench.closed.contains(&ann.connection));
    assert_eq!(bench.ask(bob, auth(3)), Ok(Answer::Empty), "that is known");
    assert!(!bench.closed.contains(&bob.connection));
}

#[test]
fn operators_ask_in_four_letters() {
    let mut bench = Bench::new();
    bench.client();
    let mut say = |word: &[u8; 4]| {
        let connection = bench.open();
        bench.step(Input::Word { connection, word: *word });
        assert!(bench.closed.contains(&connection));
        String::from_utf8(bench.received.remove(&connection).unwrap_or_default()).expect("words are text")
    };
    assert_eq!(say(b"ruok"), "imok");
    assert_eq!(say(b"isro"), "rw");
    assert!(say(b"srvr").contains("Mode: standalone\nNode count: 4\n"));
    assert!(say(b"mntr").contains("zk_znode_count\t4\n"));
    assert_eq!(say(b"conf"), "clientPort=2181\n");
    assert!(say(b"stat").contains("recved=0"));
    assert!(say(b"srvr").contains("Latency min/avg/max: 0/0.0000/0\n"));
    assert_eq!(say(b"wchp"), "");
    assert_eq!((say(b"crst").as_str(), say(b"srst").as_str()), ("Connection stats reset.\n", "Server stats reset.\n"));
    assert_eq!(say(b"dirs"), "datadir_size: 0\nlogdir_size: 0\n");
}

#[test]
fn operators_ask_for_values_with_names() {
    let mut bench = Bench::new();
    let ann = bench.client();
    bench.ask(ann, Request::Exists { path: "/a".into(), watch: true }).expect_err("it is not there, and watched for");
    bench.server.on_answered(false, 4);
    bench.server.on_answered(true, 8);
    let mut ask = |name: &str| bench.server.command(bench.now, name);
    let value = |fields: Option<Fields>, name: &str| {
        let fields = fields.expect("there is such a command");
        fields.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    };
    for name in Server::commands() {
        assert_eq!(value(ask(name), "command"), Some(Value::from(name)));
    }
    assert_eq!(ask("nope"), None);
    assert_eq!(value(ask("srvr"), "command"), Some(Value::from("server_stats")));
    assert_eq!(value(ask("mntr"), "avg_latency"), Some(Value::Decimal(0.0)), "the reset among the commands forgot it");
    bench.server.on_answered(true, 8);
    let monitored = bench.server.command(bench.now, "monitor");
    assert_eq!(value(monitored, "max_updatelatency"), Some(Value::Integer(8)));
    let watches = bench.server.command(bench.now, "wchp");
    let session = Value::from(format!("{:#x}", ann.session));
    assert_eq!(value(watches, "path_to_session_ids"), Some(Value::Map(vec![("/a".into(), Value::List(vec![session]))])));
}

#[test]
fn the_log_brings_another_server_to_the_same_state_and_its_sessions_live_on() {
    let mut bench = Bench::new();
    let ann = bench.client();
    bench.create(ann, "/a", Ephemeral).expect("it is new");
    assert!(matches!(bench.log[1].body, Body::Changes(_)));
    let mut state = State::new(Profile::Sha256Wide, 9);
    for transaction in &bench.log {
        state.apply(transaction).expect("it was applied once");
    }
    assert_eq!(state.checksum(), bench.server.state().checksum());
    let mut bench = Bench::on(state);
    let resume = ConnectRequest { session: ann.session, password: ann.password.to_vec(), last_zxid_seen: 2, ..Default::default() };
    assert_eq!(bench.connect(resume).1.map(|response| response.session), Some(ann.session));
    bench.pass(10_000);
    assert_eq!(bench.server.state().node_count(), 4, "unheard of, it ends");
}

#[test]
fn a_server_whose_state_is_wrong_answers_no_client_any_more() {
    let mut bench = Bench::new();
    let ann = bench.client();
    let corruption = sentinel::Corruption { zxid: 1, path: Some("/a".into()), what: "it is wrong".into(), digests: None };
    let mut outbox = Outbox::default();
    bench.step(Input::Request { connection: ann.connection, request: Ok(Numbered { xid: 1, request: Request::Ping }) });
    bench.server.stop(corruption, &mut outbox);
    assert!(outbox.close.contains(&ann.connection) && outbox.bytes.is_empty());
    let (connection, response) = bench.connect(ConnectRequest { password: vec![0; 16], ..Default::default() });
    assert_eq!(response, None);
    assert!(bench.closed.contains(&connection));
    assert_eq!(bench.server.deadline_ms(), i64::MAX);
    let operator = bench.open();
    bench.step(Input::Word { connection: operator, word: *b"srvr" });
    let said = String::from_utf8(bench.received.remove(&operator).unwrap_or_default()).expect("words are text");
    assert!(said.contains("not currently serving requests: at zxid 0x1: it is wrong at \"/a\""), "{said}");
}
