//! Servers that are stepped by scripts, with their clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use jute::{Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, Numbered, Operation, Reply, Request};
use types::codec::{Decode as _, Encode as _};

use super::{Member, MemberOptions, Message, Remedy, Repaired, time};
use crate::commands::Value;
use crate::order::{self, JournalOp, Options, Output, Replica, Status, Zxid};
use crate::{ConnectionId, Damage, Input, Now, Peer, Profile, Server, Settings, State};

mod repair;
mod transactions;

#[derive(Default)]
struct Disk {
    snapshot: Option<(Zxid, Bytes)>,
    records: Vec<Vec<u8>>,
    /// It is empty because what was on it was put aside.
    gave_up: bool,
}

struct Machine {
    member: Member,
    disk: Disk,
    said: BTreeMap<ConnectionId, Vec<u8>>,
    closed: BTreeSet<ConnectionId>,
    opened: u64,
    /// It was found wrong, and told to repair itself.
    is_told: bool,
    repaired: Vec<Repaired>,
}

/// Three servers and what is under way between them.
struct World {
    now: Now,
    machines: Vec<Machine>,
    queue: VecDeque<(u16, u16, Message)>,
    cut: Vec<(u16, u16)>,
    /// How many of the forwarded requests that are sent next get lost.
    lose_forwards: usize,
    /// Whether servers that are found wrong repair themselves.
    repairs: bool,
    /// Whose digests get lost.
    lose_digests: Vec<u16>,
    /// What clients of the engine were told.
    told: Vec<(types::Party, u64, crate::transactions::Answer)>,
}

fn bytes_of(state: &State) -> Bytes {
    let mut bytes = Vec::new();
    let written = state.frozen().write_snapshot(|piece| {
        bytes.extend_from_slice(piece);
        Ok::<(), std::convert::Infallible>(())
    });
    assert!(written.is_ok(), "memory is whole");
    bytes.into()
}

/// Comes back from a disk.
fn open(me: u16, disk: &Disk, now: Now) -> Member {
    open_of(3, me, disk, now)
}

/// The same, where so many decide.
fn open_of(voters: u16, me: u16, disk: &Disk, now: Now) -> Member {
    let (applied, state) = match &disk.snapshot {
        Some((zxid, bytes)) => (*zxid, State::read_snapshot(bytes, 1).expect("it was written")),
        None => (Zxid::default(), State::new(Profile::Sha256Wide, 1)),
    };
    let options = Options { tick_ms: 50, timeout_ms: 300, settle_ms: 20, kept_max: 24, ..Options::default() };
    let mut replica = Replica::new(me, voters, options, applied).expect("there are three").having_given_up(disk.gave_up);
    for record in &disk.records {
        replica.replay(record.clone().into()).expect("it wrote it");
    }
    let mut output = Output::default();
    replica.begin(time(now), 100 + u64::from(me) + now.steady_ms.unsigned_abs(), &mut output).expect("it has a head");
    let settings = Settings {
        server_id: u8::try_from(me).expect("small"),
        timeout_ms_min: 1_000,
        timeout_ms_max: 600_000,
        reap_every_ms: 600_000,
        words: None,
        superuser: None,
        secret: [3; 32],
        configuration: Vec::new(),
    };
    let server = |state| Server::new(state, settings.clone(), now);
    let options = MemberOptions { me, timeout_ms: 300, first_stream: now.steady_ms.unsigned_abs() << 20 };
    match Member::new(options, replica, server(state), applied, output, now) {
        Ok(member) => member,
        Err(corruption) => {
            let server = server(State::new(Profile::Sha256Wide, 1));
            Member::quarantined(options, voters, server, corruption, now).expect("there are three")
        }
    }
}

impl World {
    fn new() -> Self {
        let now = Now { wall_ms: 1_700_000_000_000, steady_ms: 1 };
        let machine = |me| {
            let disk = Disk::default();
            Machine {
                member: open(me, &disk, now),
                disk,
                said: BTreeMap::new(),
                closed: BTreeSet::new(),
                opened: 0,
                is_told: false,
                repaired: Vec::new(),
            }
        };
        let mut world = Self {
            now,
            machines: (0..3).map(machine).collect(),
            queue: VecDeque::new(),
            cut: Vec::new(),
            lose_forwards: 0,
            repairs: false,
            lose_digests: Vec::new(),
            told: Vec::new(),
        };
        world.pass(1_000);
        world
    }

    fn machine(&mut self, at: u16) -> &mut Machine {
        &mut self.machines[usize::from(at)]
    }

    fn step(&mut self, at: u16, act: impl FnOnce(&mut Member, Now)) {
        let now = self.now;
        act(&mut self.machine(at).member, now);
        self.conclude(at);
    }

    fn conclude(&mut self, at: u16) {
        let now = self.now;
        let machine = &mut self.machines[usize::from(at)];
        let turn = machine.member.turn(now);
        for op in turn.journal {
            match op {
                JournalOp::Append(record) => machine.disk.records.push(record),
                JournalOp::Rotate(_) => {}
                JournalOp::Snapshot { zxid, bytes } => machine.disk.snapshot = Some((zxid, bytes)),
            }
        }
        if let Some(snapshot) = turn.snapshot {
            machine.disk.snapshot = Some((snapshot.zxid, bytes_of(&snapshot.state)));
        }
        for (connection, bytes) in turn.bytes {
            machine.said.entry(connection).or_default().extend(bytes);
        }
        machine.closed.extend(turn.close);
        self.told.extend(turn.answers);
        machine.repaired.extend(turn.repaired);
        for (to, message) in turn.sends {
            let is_lost = matches!(message, Message::Forward { .. }) && self.lose_forwards > 0;
            self.lose_forwards -= usize::from(is_lost);
            let is_lost = is_lost || (matches!(message, Message::Digest { .. }) && self.lose_digests.contains(&at));
            if is_lost || usize::from(to) >= self.machines.len() {
                continue;
            }
            // As it comes over the wire.
            let message = Message::from_bytes(message.to_bytes().into(), types::ClusterId::new([0; 16])).expect("it was encoded");
            self.queue.push_back((at, to, message));
        }
        let machine = &mut self.machines[usize::from(at)];
        if let Some(remedy) = turn.repair {
            if remedy == Remedy::Takeover {
                machine.disk = Disk { gave_up: true, ..Disk::default() };
            }
            machine.member = open(at, &machine.disk, now).to_be_compared(remedy);
            machine.is_told = false;
            self.conclude(at);
        } else if turn.reopen.is_some() {
            machine.member = open(at, &machine.disk, now);
            self.conclude(at);
        } else if self.repairs && machine.member.server().corruption().is_some() && !machine.is_told {
            machine.is_told = true;
            machine.member.repair(now);
            self.conclude(at);
        } else if let Some(offer) = turn.offer {
            let bytes = bytes_of(&offer.state);
            self.step(at, |member, now| member.offer(now, offer.zxid, Some(bytes)));
        }
    }

    fn settle(&mut self) {
        for _ in 0..20_000 {
            let Some((from, to, message)) = self.queue.pop_front() else { return };
            if !self.cut.contains(&(from, to)) {
                self.step(to, |member, now| member.hear(now, from, message));
            }
        }
        panic!("they never stop talking");
    }

    fn settle_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            let (from, to, message) = self.queue.pop_front().expect("it comes to that");
            if !self.cut.contains(&(from, to)) {
                self.step(to, |member, now| member.hear(now, from, message));
            }
        }
    }

    fn pass(&mut self, milliseconds: i64) {
        for _ in 0..milliseconds / 10 {
            self.tick(10);
            self.settle();
        }
    }

    /// Lets so much time pass at once, in which nothing arrives.
    fn tick(&mut self, milliseconds: i64) {
        self.now.steady_ms += milliseconds;
        self.now.wall_ms += milliseconds;
        for at in 0..3 {
            if self.machine(at).member.deadline_ms() <= self.now.steady_ms {
                self.step(at, |member, now| member.tick(now));
            }
        }
    }

    fn status(&self, at: u16) -> Status {
        self.machines[usize::from(at)].member.replica().status()
    }

    fn leader(&self) -> u16 {
        (0..3).find(|at| self.is_whole(*at) && matches!(self.status(*at), Status::Leading { .. })).expect("somebody leads")
    }

    fn is_whole(&self, at: u16) -> bool {
        self.machines[usize::from(at)].member.server().corruption().is_none()
    }

    fn has(&self, at: u16, path: &str) -> bool {
        self.machines[usize::from(at)].member.server().state().nodes.get(path).is_some()
    }

    fn has_session(&self, at: u16, session: i64) -> bool {
        self.machines[usize::from(at)].member.server().state().sessions.contains_key(&session)
    }

    /// How many servers disagree, as a leader shows it.
    fn disagreeing(&mut self, at: u16) -> Option<Value> {
        let member = &mut self.machine(at).member;
        member.show_others();
        member.server().others.iter().find(|(name, _)| name == "disagreeing_followers").map(|(_, value)| value.clone())
    }

    fn isolate(&mut self, at: u16) {
        self.cut = (0..3).filter(|other| *other != at).flat_map(|other| [(at, other), (other, at)]).collect();
    }

    /// Takes away what a connection was told.
    fn heard(&mut self, client: Client) -> Vec<Vec<u8>> {
        let mut said = self.machine(client.at).said.remove(&client.connection).unwrap_or_default();
        let mut frames = Vec::new();
        while let Some((head, _)) = said.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*head) as usize;
            let rest = said.split_off(4 + length);
            frames.push(said.split_off(4));
            said = rest;
        }
        frames
    }

    fn open_session(&mut self, at: u16, session: i64, password: &[u8]) -> Client {
        self.open_session_for(at, session, password, 600_000)
    }

    fn open_session_for(&mut self, at: u16, session: i64, password: &[u8], timeout_ms: i32) -> Client {
        let machine = self.machine(at);
        machine.opened += 1;
        let connection = ConnectionId(machine.opened);
        let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
        self.step(at, |member, now| member.client(now, Input::Opened { connection, peer }));
        let request = ConnectRequest { session, password: password.to_vec(), timeout_ms, ..Default::default() };
        self.step(at, |member, now| member.client(now, Input::Connect { connection, request }));
        self.settle();
        let client = Client { at, connection, session, password: [0; 16] };
        let frames = self.heard(client);
        let answer = ConnectResponse::decode(frames.first().expect("it is answered")).expect("a server answers so");
        Client { session: answer.session, password: answer.password, ..client }
    }

    fn ask(&mut self, client: Client, xid: i32, request: Request) {
        let request = Ok(Numbered { xid, request });
        let connection = client.connection;
        self.step(client.at, |member, now| member.client(now, Input::Request { connection, request }));
    }

    fn answers(&mut self, client: Client, opcode: i32) -> Vec<(i32, Result<Answer, ErrorCode>)> {
        let decode = |frame: &Vec<u8>| Reply::decode(frame, opcode).expect("a server answers so");
        self.heard(client).iter().map(decode).map(|reply| (reply.xid, reply.answer)).collect()
    }
}

#[derive(Clone, Copy)]
struct Client {
    at: u16,
    connection: ConnectionId,
    session: i64,
    password: [u8; 16],
}

fn created() -> Create {
    let acl = vec![Acl::open()];
    Create { path: String::new(), data: None, acl, mode: CreateMode::Persistent, sequential: false, wants_stat: false }
}

fn create(path: &str) -> Request {
    Request::Create(Create { path: path.to_owned(), ..created() })
}

fn exists(path: &str) -> Request {
    Request::Exists { path: path.to_owned(), watch: false }
}

#[test]
fn nobody_is_told_what_a_majority_does_not_have() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.isolate(leader);
    world.ask(client, 1, create("/a"));
    world.ask(client, 2, exists("/a"));
    world.settle();
    assert!(world.heard(client).is_empty(), "only the leader has it");
    world.pass(2_000);
    assert!(world.machine(leader).closed.contains(&client.connection), "nobody knows what became of it");
    assert!(world.heard(client).is_empty());
    world.cut.clear();
    world.pass(1_000);
    for at in 0..3 {
        assert!(!world.has(at, "/a"), "it was taken back at {at}");
    }
    let again = world.open_session(leader, client.session, &client.password);
    assert_eq!(again.session, client.session, "the session is there");
}

#[test]
fn a_leader_that_is_cut_off_answers_no_sync() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.isolate(leader);
    world.ask(client, 1, Request::Sync { path: "/".to_owned() });
    world.settle();
    assert!(world.heard(client).is_empty(), "another may lead by now, and have acknowledged what is not here");
}

#[test]
fn a_follower_answers_in_order_and_knows_what_it_has_answered() {
    let mut world = World::new();
    let follower = (world.leader() + 1) % 3;
    let client = world.open_session(follower, 0, &[]);
    world.ask(client, 1, create("/a"));
    world.ask(client, 2, exists("/a"));
    world.ask(client, 3, create("/b"));
    world.ask(client, 4, exists("/b"));
    assert!(world.heard(client).is_empty(), "the leader has not said anything");
    world.settle();
    world.pass(100);
    let mut xids = Vec::new();
    for frame in world.heard(client) {
        let xid = i32::from_be_bytes(*frame.first_chunk().expect("a reply has a head"));
        let is_read = xid % 2 == 0;
        let opcode = if is_read { exists("/").opcode() } else { create("/").opcode() };
        assert!(Reply::decode(&frame, opcode).expect("a server answers so").answer.is_ok(), "request {xid}");
        xids.push(xid);
    }
    assert_eq!(xids, [1, 2, 3, 4]);
}

#[test]
fn a_session_moves_and_its_server_before_lets_it_go() {
    let mut world = World::new();
    let leader = world.leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let client = world.open_session(one, 0, &[]);
    let moved = world.open_session(other, client.session, &client.password);
    assert_eq!(moved.session, client.session);
    world.pass(100);
    assert!(world.machine(one).closed.contains(&client.connection));
    let thief = world.open_session(leader, client.session, &[9; 16]);
    assert_eq!(thief.session, 0, "whoever has not its password does not get it");
}

#[test]
fn a_server_that_a_session_has_left_gets_nothing_ordered_for_it() {
    let mut world = World::new();
    let leader = world.leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let client = world.open_session(one, 0, &[]);
    world.cut = vec![(leader, one)];
    let moved = world.open_session(other, client.session, &client.password);
    assert_eq!(moved.session, client.session);
    // It does not know yet, and passes on what had waited there.
    world.ask(client, 1, create("/late"));
    world.settle();
    assert!(!world.machine(one).closed.contains(&client.connection));
    world.cut.clear();
    world.ask(moved, 1, create("/new"));
    world.pass(200);
    assert!((0..3).all(|at| world.has(at, "/new") && !world.has(at, "/late")));
}

#[test]
fn a_session_that_only_pings_at_a_follower_of_an_idle_leader_goes_on() {
    let mut world = World::new();
    let follower = (world.leader() + 1) % 3;
    let client = world.open_session_for(follower, 0, &[], 2_000);
    for xid in 0..40 {
        world.pass(500);
        world.ask(client, xid, Request::Ping);
    }
    assert!((0..3).all(|at| world.has_session(at, client.session)));
    world.pass(4_000);
    assert!(!(0..3).any(|at| world.has_session(at, client.session)), "and ends when nothing is heard of it");
}

#[test]
fn writes_behind_an_authentication_are_ordered_and_answered_as_they_were_asked() {
    let mut world = World::new();
    let follower = (world.leader() + 1) % 3;
    let client = world.open_session(follower, 0, &[]);
    world.ask(client, 0, create("/0"));
    world.ask(client, -4, Request::Auth { scheme: "digest".to_owned(), credentials: b"ann:secret".to_vec().into() });
    world.ask(client, 1, create("/1"));
    world.ask(client, 2, create("/2"));
    world.settle_until(|world| world.has(follower, "/0"));
    world.ask(client, 3, create("/3"));
    world.settle();
    world.pass(100);
    let mut answered = Vec::new();
    for frame in world.heard(client) {
        let xid = i32::from_be_bytes(*frame.first_chunk().expect("a reply has a head"));
        if xid >= 0 {
            let reply = Reply::decode(&frame, create("/").opcode()).expect("a server answers so");
            assert_eq!(reply.answer, Ok(Answer::Path(format!("/{xid}"))));
        }
        answered.push(xid);
    }
    assert_eq!(answered, [0, -4, 1, 2, 3]);
}

#[test]
fn nobody_without_its_password_moves_a_session_or_keeps_it() {
    let mut world = World::new();
    let leader = world.leader();
    for (at, thief_at) in [(leader, leader + 1), (leader + 1, leader), (leader + 1, leader + 2)].map(|(at, thief)| (at % 3, thief % 3)) {
        let client = world.open_session(at, 0, &[]);
        for password in [&[9; 16][..], &[], &[9; 40]] {
            assert_eq!(world.open_session(thief_at, client.session, password).session, 0);
            world.pass(100);
        }
        assert!(!world.machine(at).closed.contains(&client.connection), "it stays where it was: at {at}");
        let path = format!("/{at}-{thief_at}");
        world.ask(client, 1, create(&path));
        world.settle();
        world.pass(100);
        assert_eq!(world.answers(client, create("/").opcode()), [(1, Ok(Answer::Path(path)))]);
    }
    let left = world.open_session_for((leader + 1) % 3, 0, &[], 2_000);
    for _ in 0..12 {
        world.pass(500);
        world.open_session((leader + 2) % 3, left.session, &[9; 16]);
    }
    assert!(!world.has_session(leader, left.session), "its client is gone");
    let known: Vec<i64> = world.machine(leader).member.server().owners.keys().copied().collect();
    assert!(known.into_iter().all(|session| world.has_session(leader, session)), "no more is kept than there are sessions");
}

#[test]
fn a_follower_that_takes_over_a_snapshot_serves_clients() {
    let mut world = World::new();
    let leader = world.leader();
    let follower = (leader + 1) % 3;
    let client = world.open_session(leader, 0, &[]);
    world.cut = vec![(leader, follower), (follower, leader)];
    for number in 0..40 {
        world.ask(client, number, create(&format!("/{number}")));
        world.settle();
    }
    world.cut.clear();
    assert!(matches!(world.status(follower), Status::Following { .. }), "it has not noticed anything");
    world.pass(1_000);
    assert!(world.machine(follower).disk.snapshot.is_some(), "what it lacks is in no log");
    assert!(world.has(follower, "/39"));
    let near = world.open_session(follower, 0, &[]);
    world.ask(near, 1, create("/near"));
    world.settle();
    world.pass(100);
    assert_eq!(world.answers(near, create("/").opcode()), [(1, Ok(Answer::Path("/near".to_owned())))]);
}

#[test]
fn a_leader_whose_beginning_is_wrong_stops_and_the_others_go_on() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    // Only the leader has what is wrong; it is elected again for it.
    world.cut = (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).collect();
    world.machine(leader).member.damage_proposal();
    world.ask(client, 1, create("/a"));
    world.pass(2_000);
    world.cut.clear();
    world.pass(6_000);
    assert!(!world.is_whole(leader), "it is outvoted");
    let next = world.leader();
    assert!((0..3).filter(|at| *at != leader).all(|at| world.is_whole(at) && !world.has(at, "/a")));
    let again = world.open_session(next, client.session, &client.password);
    world.ask(again, 1, create("/b"));
    world.settle();
    world.pass(100);
    assert_eq!(world.answers(again, create("/").opcode()), [(1, Ok(Answer::Path("/b".to_owned())))]);
}

#[test]
fn a_server_that_disagrees_does_not_blame_itself_for_what_it_applied_in_part() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.ask(client, 0, create("/b"));
    world.settle();
    world.ask(client, 1, create("/a"));
    world.settle();
    for other in [(leader + 1) % 3, (leader + 2) % 3] {
        world.machine(other).member.server_mut().damage(Damage::Stat, "/a").expect("it was created");
    }
    // The first of these fits, and the second meets what is damaged.
    let first = Operation::SetData { path: "/b".to_owned(), data: Some(Bytes::from_static(b"b")), version: -1 };
    let second = Operation::Create(Create { path: "/a/b".to_owned(), ..created() });
    world.ask(client, 2, Request::Multi(vec![first, second]));
    let disagrees = |world: &World| world.queue.iter().find(|(_, _, said)| matches!(said, Message::Disagree { .. })).map(|said| said.0);
    world.settle_until(|world| disagrees(world).is_some());
    let follower = disagrees(&world).expect("it was found");
    for _ in 0..4_096 {
        world.step(follower, Member::scrub);
    }
    assert!(world.is_whole(follower), "what is half applied does not hash to its leaves");
}

#[test]
fn a_request_behind_one_that_is_lost_is_not_ordered() {
    let mut world = World::new();
    let follower = (world.leader() + 1) % 3;
    let client = world.open_session(follower, 0, &[]);
    world.lose_forwards = 1;
    world.ask(client, 1, create("/first"));
    world.ask(client, 2, create("/second"));
    world.settle();
    world.pass(300);
    assert!(!world.has(follower, "/second"), "what was asked before it is missing");
    assert!(world.machine(follower).closed.contains(&client.connection), "the client is to find out");
    let again = world.open_session(follower, client.session, &client.password);
    world.ask(again, 1, create("/third"));
    world.settle();
    world.pass(100);
    assert!((0..3).all(|at| world.has(at, "/third")));
}

#[test]
fn a_follower_that_always_has_something_at_its_leader_keeps_its_clients() {
    let mut world = World::new();
    let follower = (world.leader() + 1) % 3;
    let client = world.open_session(follower, 0, &[]);
    world.ask(client, 1, create("/1"));
    for number in 2..=200 {
        world.ask(client, number, create(&format!("/{number}")));
        // This one is still on its way when the one before it is back.
        world.settle_until(|world| world.has(follower, &format!("/{}", number - 1)));
        world.tick(10);
    }
    world.settle();
    assert!(!world.machine(follower).closed.contains(&client.connection));
    assert_eq!(world.answers(client, create("/").opcode()).len(), 200);
}

#[test]
fn a_follower_with_another_digest_acknowledges_nothing_and_is_the_one_that_stops() {
    let mut world = World::new();
    let leader = world.leader();
    let follower = (leader + 1) % 3;
    let client = world.open_session(leader, 0, &[]);
    let near = world.open_session(follower, 0, &[]);
    world.machine(follower).member.server_mut().damage(Damage::Drop, "/").expect("there is a root");
    world.ask(client, 1, create("/a"));
    world.settle();
    let before = world.machine(follower).disk.records.len();
    world.ask(client, 2, create("/b"));
    world.settle();
    assert_eq!(world.machine(follower).disk.records.len(), before, "what differs is not kept");
    assert!(world.machine(follower).closed.contains(&near.connection), "it serves nobody");
    world.pass(1_000);
    assert!(!world.is_whole(follower), "a majority has what it refused");
    assert_eq!(world.leader(), leader);
    assert_eq!(world.answers(client, create("/").opcode()).len(), 2);
    assert_eq!(world.disagreeing(leader), Some(Value::from(1_usize)));
    // It is brought back with an empty disk.
    let now = world.now;
    let machine = world.machine(follower);
    machine.disk = Disk::default();
    machine.member = open(follower, &machine.disk, now);
    world.conclude(follower);
    world.pass(2_000);
    assert!(world.is_whole(follower) && world.has(follower, "/b"));
    assert_eq!(world.disagreeing(leader), Some(Value::from(0_usize)));
}

#[test]
fn a_follower_that_lost_a_transaction_says_nothing_of_it() {
    let mut world = World::new();
    let leader = world.leader();
    let follower = (leader + 1) % 3;
    let client = world.open_session(leader, 0, &[]);
    let near = world.open_session(follower, 0, &[]);
    world.settle();
    world.heard(near);
    let before = world.machine(follower).disk.records.len();
    world.machine(follower).member.server_mut().damage(Damage::Drop, "/").expect("there is a root");
    world.ask(client, 1, create("/a"));
    world.settle();
    world.ask(near, 1, Request::Exists { path: "/a".to_owned(), watch: false });
    world.settle();
    assert_eq!(world.machine(follower).disk.records.len(), before, "it acknowledges nothing of it");
    assert!(world.heard(near).is_empty(), "it would say that there is no such node");
    assert_eq!(world.answers(client, create("/").opcode()).len(), 1, "the others go on");
}

#[test]
fn a_leader_with_which_a_majority_disagrees_stops_and_the_others_go_on() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.machine(leader).member.damage_proposal();
    world.ask(client, 1, create("/a"));
    world.settle();
    world.pass(3_000);
    assert!(!world.is_whole(leader), "it is outvoted");
    // Operators are answered, however many ask at once.
    let now = world.now;
    for connection in [ConnectionId(90), ConnectionId(91)] {
        world.machine(leader).member.client(now, Input::Word { connection, word: *b"mntr" });
    }
    world.conclude(leader);
    for connection in [ConnectionId(90), ConnectionId(91)] {
        assert!(world.machine(leader).said.contains_key(&connection) && world.machine(leader).closed.contains(&connection));
    }
    assert!(world.heard(client).is_empty(), "nobody was told of it");
    let next = world.leader();
    assert_ne!(next, leader);
    assert!((0..3).filter(|at| *at != leader).all(|at| world.is_whole(at) && !world.has(at, "/a")));
    let again = world.open_session(next, client.session, &client.password);
    world.ask(again, 1, create("/b"));
    world.settle();
    world.pass(100);
    assert_eq!(world.answers(again, create("/").opcode()), [(1, Ok(Answer::Path("/b".to_owned())))]);
}

#[test]
fn a_server_with_an_empty_disk_takes_over_a_snapshot() {
    let mut world = World::new();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    for number in 0..40 {
        world.ask(client, number, create(&format!("/{number}")));
        world.settle();
        world.pass(20);
    }
    world.machine(leader).member.begin_snapshot();
    world.pass(100);
    let (lost, now) = ((leader + 1) % 3, world.now);
    let machine = world.machine(lost);
    machine.disk = Disk::default();
    machine.member = open(lost, &machine.disk, now);
    world.conclude(lost);
    world.pass(2_000);
    assert!(world.machine(lost).disk.snapshot.is_some(), "what it lacks is in no log");
    assert!((0..40).all(|number| world.has(lost, &format!("/{number}"))));
    assert!(world.machine(lost).member.replica().is_member());
}

#[test]
fn no_message_of_another_server_stops_one() {
    let mut world = World::new();
    let zxid = Zxid(u64::MAX >> 1);
    for from in 0..5 {
        for at in 0..3 {
            let forward = super::message::Forward {
                session: 7,
                identities: Vec::new(),
                what: super::message::Forwarded::Barrier { password: [0; 16] },
            };
            // Only who has no voice goes as far as that: the others go on from what they have said.
            let stream = if from > 2 { u64::MAX } else { 1 };
            let epoch = u32::from(from > 2);
            let messages = [
                Message::Forward { stream, number: 0, forward: forward.clone() },
                Message::Forward { stream, number: 7, forward },
                Message::Refused { stream: 0, known: 3 },
                Message::Heard { sessions: vec![1, -1] },
                Message::Disagree { epoch, zxid, found: Default::default() },
                Message::Compare,
                Message::Digest { zxid, found: Default::default() },
                Message::WhoLeads,
                Message::LeadsWithout,
                Message::Order(order::Message::NewEpoch { epoch: 1 }),
            ];
            for message in messages {
                world.step(at, |member, now| member.hear(now, from, message));
            }
        }
    }
    world.pass(1_000);
    let client = world.open_session((world.leader() + 1) % 3, 0, &[]);
    assert_ne!(client.session, 0);
}

#[test]
fn who_decides_alone_comes_back_though_its_log_is_longer_than_what_it_keeps_in_memory() {
    let now = Now { wall_ms: 1_700_000_000_000, steady_ms: 1 };
    let mut disk = Disk::default();
    let mut member = open_of(1, 0, &disk, now);
    let connection = ConnectionId(1);
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
    let later = Now { wall_ms: now.wall_ms + 1_000, steady_ms: now.steady_ms + 1_000 };
    member.tick(later);
    let mut inputs = vec![
        Input::Opened { connection, peer },
        Input::Connect { connection, request: ConnectRequest { timeout_ms: 10_000, password: vec![0; 16], ..Default::default() } },
    ];
    let creates = (0..100).map(|number| Numbered { xid: number, request: create(&format!("/n{number}")) });
    inputs.extend(creates.map(|request| Input::Request { connection, request: Ok(request) }));
    for input in inputs {
        member.client(later, input);
        let journal = member.turn(later).journal.into_iter();
        disk.records.extend(journal.filter_map(|op| if let JournalOp::Append(record) = op { Some(record) } else { None }));
    }
    assert!(member.server().state().node_count() > 100, "it leads, and was asked");
    let again = open_of(1, 0, &disk, later);
    assert_eq!(again.server().corruption(), None, "all that was delivered is applied, in memory or not");
    assert_eq!(again.server().state().checksum(), member.server().state().checksum());
}
