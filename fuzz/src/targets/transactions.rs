//! A server of Sentinel that runs transactions over keys, to whom anybody may say anything: clients their questions, and servers what servers say to
//! one another.
//!
//! Servers do not lie as far as the engine promises anything, so nothing is asked of what a server comes to believe of another one. Where only clients
//! speak, it must never find itself wrong, and come back from its journal. Whoever speaks, it never panics and never spins; it answers each question
//! once at most, can read what it says, and keeps no more than was asked for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

use bytes::Bytes;
use crypto::SecretKey;
use machine::Time;
use sentinel::ensemble::{self, Member, MemberOptions};
use sentinel::order::{JournalOp, Options, Output, Replica, Zxid};
use sentinel::transactions::{Answer, Message, Question, Seen, SeenRange, Version, Write};
use sentinel::{Now, Profile, Server, Settings, State};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, ClientLimits, Direction, Key, KeyRange, Party, Permission, Session, Value};

use super::codec;
use crate::Target;
use crate::fixture::{CLUSTER, MILLISECOND, NOW};

pub(super) const MESSAGE: Target = Target {
    name: "transactions-message",
    what: "decodes one of the messages of Sentinel's transactions, and of its servers",
    bytes_max: 4_096,
    runs: 40_000,
    run: run_message,
    seeds: || MODES.iter().flat_map(|mode| heard(*mode, 3)).filter_map(Part::into_message).take(2_000).collect(),
};

pub(super) const SERVER: Target = Target {
    name: "transactions-server",
    what: "asks a server of Sentinel anything, as a client or as another server, and starts it anew: it goes on",
    bytes_max: 16_384,
    runs: 1_000,
    run: run_server,
    seeds: || (0..MODES.len()).flat_map(|mode| [1, 4].map(|rounds| input(mode, rounds))).collect(),
};

/// Which server it is, and how many there are: the first byte says which of these.
const MODES: [(u16, u16); 3] = [(0, 1), (0, 3), (2, 3)];
/// What a byte means that is nobody: time passes, or the process starts anew.
const WAIT: u8 = 250;
const RESTART: u8 = 251;
const TIMEOUT_MS: u64 = 300;
/// So often a server may be called at one moment before it is said to spin.
const SPINS_MAX: u32 = 100;
/// So often it is called while it waits once.
const CALLS_MAX: u32 = 400;

fn run_message(bytes: &[u8]) {
    codec::check::<Message>(bytes);
    codec::check::<ensemble::Message>(bytes);
}

/// Parts of a byte that says who speaks, two for a length, and so many: a message, or how many milliseconds pass.
fn run_server(bytes: &[u8]) {
    let Some((mode, mut bytes)) = bytes.split_first() else { return };
    let (me, voters) = MODES[usize::from(*mode) % MODES.len()];
    let mut node = TestNode::new(me, voters);
    while let Some(([who, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        bytes = rest;
        let goes_on = match *who {
            WAIT => node.wait(length as u64),
            RESTART => node.restart(),
            _ => {
                let (part, rest) = rest.split_at(length.min(rest.len()));
                bytes = rest;
                match Message::from_bytes(Bytes::copy_from_slice(part), CLUSTER) {
                    Ok(message) => node.hear(party(*who), message),
                    Err(_) => continue,
                }
            }
        };
        if goes_on.is_none() {
            return;
        }
        node.check();
    }
}

fn party(who: u8) -> Party {
    match who {
        index @ 0..3 => Party::Replica(types::ReplicaId { shard: types::ShardId(0), index: u16::from(index) }),
        other => Party::Client(ClientId(u64::from(other % 3) + 1), Session(u64::from(other / 64))),
    }
}

/// The byte that stands for somebody.
fn who(party: Party) -> u8 {
    (0..=u8::MAX).find(|byte| self::party(*byte) == party).expect("everybody has a byte")
}

/// The first client may do everything, the second little, and the third is none of the cluster's.
fn rights(client: ClientId) -> Option<&'static Permission> {
    static RIGHTS: LazyLock<[Permission; 2]> = LazyLock::new(|| {
        ["", "k"].map(|prefix| Permission {
            public_key: SecretKey::from_bytes([9; 32]).public(),
            read_prefixes: vec![Key::from(prefix)],
            write_prefixes: vec![Key::from(prefix)],
            limits: ClientLimits::default(),
        })
    });
    RIGHTS.get(usize::try_from(client.0.wrapping_sub(1)).unwrap_or(usize::MAX))
}

/// A server with what it has written.
struct TestNode {
    me: u16,
    voters: u16,
    member: Member,
    journal: Vec<Bytes>,
    snapshots: BTreeMap<Zxid, Bytes>,
    now_ms: u64,
    /// Whether another server said anything: then the server may find itself wrong.
    has_heard_servers: bool,
    /// What each client asked and was not answered.
    open: BTreeMap<(Party, u64), u64>,
    written: usize,
}

impl TestNode {
    fn new(me: u16, voters: u16) -> Self {
        let (journal, snapshots, now_ms) = (Vec::new(), BTreeMap::new(), NOW / MILLISECOND);
        let member = open((me, voters), &journal, &snapshots, now_ms).expect("an empty disk is a good one");
        let open = BTreeMap::new();
        Self { me, voters, member, journal, snapshots, now_ms, has_heard_servers: false, open, written: 0 }
    }

    fn now(&self) -> Now {
        now(self.now_ms)
    }

    /// Comes back from its journal. Nothing where that cannot be, after what servers said that lie.
    fn restart(&mut self) -> Option<Vec<(Party, Message)>> {
        let opened = open((self.me, self.voters), &self.journal, &self.snapshots, self.now_ms);
        assert!(opened.is_some() || self.has_heard_servers, "it comes back from what it has written");
        self.member = opened?;
        // What was under way is not answered any more.
        self.open.clear();
        Some(Vec::new())
    }

    fn hear(&mut self, from: Party, message: Message) -> Option<Vec<(Party, Message)>> {
        match (from, message) {
            (Party::Replica(from), Message::Server(message)) if from.index < self.voters && from.index != self.me => {
                self.has_heard_servers = true;
                self.member.hear(self.now(), from.index, message);
            }
            (Party::Client(client, _), Message::Question { number, question }) if !self.member.is_congested() => {
                *self.open.entry((from, number)).or_default() += 1;
                self.written += if let Question::Commit { writes, .. } = &question { writes.len() + 1 } else { 0 };
                assert!(question.nodes() > 0 && question.bytes() > 0, "a question takes its room");
                self.member.ask(self.now(), from, rights(client), number, question);
            }
            _ => {}
        }
        self.turn()
    }

    /// Time passes. The server is called whenever it wants to be.
    fn wait(&mut self, ms: u64) -> Option<Vec<(Party, Message)>> {
        let (ends_at, mut said, mut spins) = (self.now_ms + ms, Vec::new(), 0);
        for _ in 0..CALLS_MAX {
            let due = self.member.deadline_ms();
            let Some(due) = u64::try_from(due.max(0)).ok().filter(|due| *due <= ends_at) else { break };
            spins = if due > self.now_ms { 0 } else { spins + 1 };
            assert!(spins < SPINS_MAX, "it wants to be called again and again");
            self.now_ms = self.now_ms.max(due);
            self.member.tick(self.now());
            said.extend(self.turn()?);
        }
        self.now_ms = ends_at;
        Some(said)
    }

    /// Ends a turn: everything is durable before anything leaves.
    fn turn(&mut self) -> Option<Vec<(Party, Message)>> {
        let turn = self.member.turn(self.now());
        for op in turn.journal {
            match op {
                JournalOp::Append(record) => self.journal.push(record.into()),
                JournalOp::Rotate(_) => {}
                JournalOp::Snapshot { zxid, bytes } => drop(self.snapshots.insert(zxid, bytes)),
            }
        }
        if let Some(offer) = turn.offer {
            match offer.state.snapshot() {
                Ok(bytes) => self.member.offer(self.now(), offer.zxid, Some(bytes)),
                Err(corruption) => self.member.stop(self.now(), corruption),
            }
        }
        let of_servers = turn.sends.into_iter().map(|(to, message)| (party(u8::try_from(to).unwrap_or(u8::MAX)), Message::Server(message)));
        let mut said: Vec<(Party, Message)> = of_servers.collect();
        for (to, number, answer) in turn.answers {
            let open = self.open.get_mut(&(to, number)).filter(|open| **open > 0);
            *open.expect("nobody is answered more often than it asked") -= 1;
            said.push((to, Message::Answer { number, answer }));
        }
        for (_, message) in &said {
            assert_eq!(Message::from_bytes(message.to_bytes().into(), CLUSTER).as_ref(), Ok(message), "it can read what it says");
        }
        if turn.reopen.is_some() {
            self.restart()?;
        }
        Some(said)
    }

    /// Nothing is kept that nobody asked for.
    fn check(&self) {
        if self.has_heard_servers {
            return;
        }
        let server = self.member.server();
        assert_eq!(server.corruption(), None, "no client makes a server wrong");
        let nodes = server.state().node_count();
        assert!(nodes <= NODES_AT_FIRST.saturating_add(3 + self.written), "there are {nodes} nodes");
    }
}

/// How many nodes there are before anybody has written any.
static NODES_AT_FIRST: LazyLock<usize> = LazyLock::new(|| State::new(Profile::Sha256Wide, 0).node_count());

fn now(ms: u64) -> Now {
    let ms = i64::try_from(ms).expect("times are small");
    Now { wall_ms: ms, steady_ms: ms }
}

/// Goes on from what is written.
fn open((me, voters): (u16, u16), journal: &[Bytes], snapshots: &BTreeMap<Zxid, Bytes>, now_ms: u64) -> Option<Member> {
    let seed = u64::from(me) + 7;
    let read = |(zxid, bytes): (&Zxid, &Bytes)| Some((*zxid, State::read_snapshot(bytes, seed).ok()?));
    let found = snapshots.iter().rev().find_map(read);
    let (applied, state) = found.unwrap_or_else(|| (Zxid::default(), State::new(Profile::Sha256Wide, seed)));
    let options = Options { tick_ms: TIMEOUT_MS / 10, timeout_ms: TIMEOUT_MS, kept_max: 64, ..Options::default() };
    let mut replica = Replica::new(me, voters, options, applied).ok()?;
    for record in journal {
        replica.replay(record.clone()).ok()?;
    }
    let mut output = Output::default();
    replica.begin(Time(now_ms * MILLISECOND), seed, &mut output).ok()?;
    let settings = Settings {
        server_id: u8::try_from(me + 1).expect("there are few"),
        timeout_ms_min: 100,
        timeout_ms_max: 2_000,
        reap_every_ms: 60_000,
        words: None,
        superuser: None,
        secret: [u8::try_from(me).expect("there are few"); 32],
        configuration: Vec::new(),
    };
    let server = Server::new(state, settings, now(now_ms));
    let options = MemberOptions { me, timeout_ms: TIMEOUT_MS, first_stream: now_ms << 20 };
    Member::new(options, replica, server, applied, output, now(now_ms)).ok()
}

// What is recorded of servers and clients that follow the protocol.

/// A part of an input.
#[derive(Clone, Debug)]
enum Part {
    Said(Party, Bytes),
    Waited(u16),
}

impl Part {
    fn into_message(self) -> Option<Vec<u8>> {
        if let Self::Said(_, bytes) = self { Some(bytes.to_vec()) } else { None }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Said(from, message) => {
                let length = u16::try_from(message.len()).unwrap_or(u16::MAX).to_le_bytes();
                [&[who(*from), length[0], length[1]][..], message].concat()
            }
            Self::Waited(ms) => [&[WAIT][..], &ms.to_le_bytes()].concat(),
        }
    }
}

/// As much of what was heard as one input holds, and a start at its end.
fn input(mode: usize, rounds: u64) -> Vec<u8> {
    let mut input = vec![u8::try_from(mode).expect("there are few")];
    for part in heard(MODES[mode], rounds).iter().map(Part::to_bytes) {
        if input.len() + part.len() + 6 > SERVER.bytes_max {
            break;
        }
        input.extend(part);
    }
    input.extend([RESTART, 0, 0, WAIT, 200, 3]);
    input
}

/// What a server hears while two clients read and commit, so many times each.
fn heard((me, voters): (u16, u16), rounds: u64) -> Vec<Part> {
    let mut nodes: Vec<TestNode> = (0..voters).map(|server| TestNode::new(server, voters)).collect();
    let (mut heard, mut queue) = (Vec::new(), VecDeque::<(Party, Party, Message)>::new());
    let replica = |index: u16| party(u8::try_from(index).expect("there are few"));
    let clients = [1, 2].map(|number| Party::Client(ClientId(number), Session(number)));
    let (mut session, mut version) = ([0, 0], 0);
    let (mut number, mut committed) = (0, 0);
    for step in 0..60 + 40 * rounds {
        if step >= 60 && step % 8 == 0 {
            let at = usize::from(step % 16 == 0);
            number += 1;
            let question = question(step / 8, session[at], number, version);
            (0..voters).for_each(|server| {
                queue.push_back((clients[at], replica(server), Message::Question { number, question: question.clone() }));
            });
        }
        while let Some((from, to, message)) = queue.pop_front() {
            let Party::Replica(to) = to else {
                if let Message::Answer { answer, .. } = &message {
                    let at = usize::from(to == clients[1]);
                    match answer {
                        Answer::Begun { session: begun } => session[at] = *begun,
                        Answer::Committed { .. } => committed += 1,
                        Answer::Found { rows, .. } => version = rows.first().map_or(0, |row| row.version),
                        _ => {}
                    }
                }
                continue;
            };
            if to.index == me {
                heard.push(Part::Said(from, message.to_bytes().into()));
            }
            let said = nodes[usize::from(to.index)].hear(from, message).unwrap_or_default();
            queue.extend(said.into_iter().map(|(other, message)| (Party::Replica(to), other, message)));
        }
        for server in 0..voters {
            let said = nodes[usize::from(server)].wait(10).unwrap_or_default();
            queue.extend(said.into_iter().map(|(other, message)| (replica(server), other, message)));
        }
        match heard.last_mut() {
            Some(Part::Waited(ms)) => *ms += 10,
            _ => heard.push(Part::Waited(10)),
        }
    }
    assert!(rounds < 3 || committed > 0, "something is committed");
    heard
}

/// What a client asks, one thing after the other.
fn question(place: u64, session: i64, number: u64, version: i64) -> Question {
    let key = Key::from(format!("k{}", place % 2).as_str());
    let range = KeyRange::new(Key::from("k"), Key::from("l")).expect("it has keys");
    let seen_key = Version { key: key.clone(), version };
    let row = SeenRange { range: range.clone(), rows: vec![seen_key.clone()] };
    let seen = Seen { keys: vec![seen_key], ranges: if place.is_multiple_of(3) { vec![row] } else { Vec::new() } };
    match place % 7 {
        0 | 1 => Question::Begin,
        2 | 5 => {
            let writes = vec![Write { key, value: (!place.is_multiple_of(4)).then(|| Value::from("v")) }];
            let seen = if place.is_multiple_of(2) { Seen::default() } else { seen };
            Question::Commit { session, slot: u16::try_from(place % 2).expect("small"), sequence: number, seen, writes }
        }
        3 => Question::Read { keys: vec![key, Key::from("k9")], is_settled: place.is_multiple_of(2) },
        4 => {
            let direction = if place.is_multiple_of(3) { Direction::Descending } else { Direction::Ascending };
            Question::Scan { range, direction, rows_max: 3, is_settled: place.is_multiple_of(2) }
        }
        _ => Question::Check { seen },
    }
}
