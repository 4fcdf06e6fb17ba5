//! Requests that nobody would send: whatever clients ask, a server answers each once, its digest stays right, and its log brings another
//! one to the same state.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use jute::{
    Acl, ConnectRequest, ConnectResponse, Create, CreateMode, Id, Numbered, Operation, ReadOperation, Request, SetWatches, WatchKind,
    WatchMode,
};
use proptest::collection::vec;
use proptest::prelude::*;
use sentinel::{ConnectionId, Input, Now, Outbox, Peer, Profile, Server, Settings, State};

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "/[ab]{1}(/[ab]){0,2}".prop_map(String::from),
        1 => Just("/".to_owned()),
        1 => Just("/zookeeper/config".to_owned()),
        1 => "[/.a\u{0}\u{1}ü\u{ffff}]{0,4}",
    ]
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    let line = prop_oneof![
        Just(Acl::open()),
        Just(Acl { permissions: 1, ..Acl::open() }),
        Just(Acl { permissions: 31, id: Id::new("auth", "") }),
        Just(Acl { permissions: -1, id: Id::new("ip", "127.0.0.0/8") }),
        Just(Acl { permissions: 3, id: Id::new("digest", "nobody:hash") }),
        ("[a-z]{0,6}", "[a-z:/.0-9]{0,6}").prop_map(|(scheme, id)| Acl { permissions: 31, id: Id { scheme, id } }),
    ];
    prop_oneof![4 => Just(vec![Acl::open()]), 1 => vec(line, 0..4)]
}

fn create() -> impl Strategy<Value = Create> {
    let mode = prop_oneof![
        Just(CreateMode::Persistent),
        Just(CreateMode::Ephemeral),
        Just(CreateMode::Container),
        any::<i64>().prop_map(|ttl_ms| CreateMode::Ttl { ttl_ms }),
        Just(CreateMode::Ttl { ttl_ms: 5 }),
    ];
    let data = proptest::option::of(vec(any::<u8>(), 0..4).prop_map(Bytes::from));
    (path(), data, acl(), mode, any::<bool>(), any::<bool>()).prop_map(|(path, data, acl, mode, sequential, wants_stat)| Create {
        path,
        data,
        acl,
        mode,
        sequential,
        wants_stat,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let version = || prop_oneof![3 => Just(-1), 1 => 0..3, 1 => any::<i32>()];
    prop_oneof![
        3 => create().prop_map(Operation::Create),
        1 => (path(), version()).prop_map(|(path, version)| Operation::Delete { path, version }),
        1 => (path(), version()).prop_map(|(path, version)| Operation::SetData { path, data: None, version }),
        1 => (path(), version()).prop_map(|(path, version)| Operation::Check { path, version }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let kind =
        prop_oneof![Just(WatchKind::Any), Just(WatchKind::Children), Just(WatchKind::Persistent), Just(WatchKind::PersistentRecursive)];
    let paths = || vec(path(), 0..3);
    prop_oneof![
        8 => operation().prop_map(Request::from),
        2 => vec(operation(), 0..6).prop_map(Request::Multi),
        1 => (path(), acl()).prop_map(|(path, acl)| Request::SetAcl { path, acl, version: -1 }),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        1 => path().prop_map(|path| Request::GetAcl { path }),
        1 => path().prop_map(|path| Request::GetAllChildrenNumber { path }),
        1 => vec(path().prop_map(|path| ReadOperation::GetChildren { path }), 0..4).prop_map(Request::MultiRead),
        1 => path().prop_map(|path| Request::AddWatch { path, mode: WatchMode::PersistentRecursive }),
        1 => path().prop_map(|path| Request::AddWatch { path, mode: WatchMode::Persistent }),
        1 => (path(), kind).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        1 => (any::<i64>(), paths(), paths(), paths(), paths()).prop_map(|(relative_zxid, data, exist, child, persistent)| {
            Request::SetWatches(SetWatches { relative_zxid, data, exist, child, persistent, persistent_recursive: Vec::new() })
        }),
        1 => vec(any::<u8>(), 0..12).prop_map(|bytes| Request::Auth { scheme: "digest".into(), credentials: Bytes::from(bytes) }),
        1 => Just(Request::WhoAmI),
        1 => Just(Request::Reconfig),
        1 => Just(Request::Sasl),
        1 => Just(Request::CloseSession),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64, Request),
    /// A connection goes without a word, and comes again.
    Drop(u64),
    Pass(i64),
    Garbage(u64, Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..3_u64, request()).prop_map(|(client, request)| Step::Ask(client, request)),
        1 => (0..3_u64).prop_map(Step::Drop),
        1 => (1..9_000_i64).prop_map(Step::Pass),
        1 => (0..3_u64, vec(any::<u8>(), 0..24)).prop_map(|(client, bytes)| Step::Garbage(client, bytes)),
    ]
}

struct World {
    server: Server,
    replica: State,
    now: Now,
    /// Of each client: its connection, whether that is closed, and its session.
    clients: BTreeMap<u64, (ConnectionId, bool, ConnectResponse)>,
    connections: u64,
}

impl World {
    fn step(&mut self, input: Input) -> Outbox {
        let mut outbox = Outbox::default();
        self.server.step(self.now, input, &mut outbox);
        assert_eq!(self.server.corruption(), None);
        for transaction in &outbox.transactions {
            self.replica.apply(transaction).expect("another replica finds what was foreseen");
        }
        for (connection, is_closed, _) in self.clients.values_mut() {
            *is_closed |= outbox.close.contains(connection);
        }
        outbox
    }

    /// The client's connection: a new one, and if need be a new session, where it has none.
    fn connection(&mut self, client: u64) -> ConnectionId {
        if let Some((connection, false, _)) = self.clients.get(&client) {
            return *connection;
        }
        let mut session = self.clients.remove(&client).map(|(connection, _, session)| {
            self.step(Input::Closed { connection });
            session
        });
        loop {
            self.connections += 1;
            let connection = ConnectionId(self.connections);
            let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
            self.step(Input::Opened { connection, peer });
            let (id, password) =
                session.take().map_or((0, vec![0; 16]), |session: ConnectResponse| (session.session, session.password.to_vec()));
            let request = ConnectRequest { session: id, password, timeout_ms: 5_000, ..Default::default() };
            let outbox = self.step(Input::Connect { connection, request });
            let granted = ConnectResponse::decode(&outbox.bytes[&connection][4..]).expect("a server answers so");
            if granted.session != 0 {
                self.clients.insert(client, (connection, false, granted));
                return connection;
            }
            self.step(Input::Closed { connection });
        }
    }
}

/// How many frames with this xid there are.
fn answers(outbox: &Outbox, connection: ConnectionId, xid: i32) -> usize {
    let mut bytes = outbox.bytes.get(&connection).map_or(&[][..], |bytes| bytes);
    let mut count = 0;
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, after) = rest.split_at(u32::from_be_bytes(*length) as usize);
        count += usize::from(frame[..4] == xid.to_be_bytes());
        bytes = after;
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn whatever_clients_ask_is_answered_once_and_the_state_stays_right(steps in vec(step(), 1..80)) {
        let settings = Settings {
            server_id: 0,
            timeout_ms_min: 5_000,
            timeout_ms_max: 5_000,
            reap_every_ms: 1_000,
            words: None,
            superuser: None,
            secret: [1; 32],
            configuration: Vec::new(),
        };
        let now = Now { wall_ms: 1_000_000, steady_ms: 0 };
        let server = Server::new(State::new(Profile::Sha256Wide, 1), settings, now);
        let replica = State::new(Profile::Sha256Wide, 2);
        let mut world = World { server, replica, now, clients: BTreeMap::new(), connections: 0 };
        for (xid, step) in (1..).zip(steps) {
            match step {
                Step::Ask(client, request) => {
                    let connection = world.connection(client);
                    let outbox = world.step(Input::Request { connection, request: Ok(Numbered { xid, request }) });
                    prop_assert_eq!(answers(&outbox, connection, xid), 1);
                }
                Step::Garbage(client, bytes) => {
                    let connection = world.connection(client);
                    world.step(Input::Request { connection, request: Numbered::decode(&bytes) });
                }
                Step::Drop(client) => {
                    if let Some((connection, is_closed, _)) = world.clients.get_mut(&client) {
                        *is_closed = true;
                        let connection = *connection;
                        world.step(Input::Closed { connection });
                    }
                }
                Step::Pass(milliseconds) => {
                    world.now.wall_ms += milliseconds;
                    world.now.steady_ms += milliseconds;
                    world.step(Input::Tick);
                }
            }
        }
        let state = world.server.state();
        prop_assert_eq!(state.checksum(), state.recomputed_checksum());
        prop_assert_eq!(state.checksum(), world.replica.checksum());
        prop_assert_eq!(state.first_difference(&world.replica), None);
    }
}
