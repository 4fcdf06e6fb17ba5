//! One of several servers for ZooKeeper's clients, with its disk, to whom anybody may say anything: clients over their connections, other servers, and
//! the power, which may go in any gap of a turn.
//!
//! Servers do not lie as far as Sentinel promises anything, so nothing is asked of what a server comes to believe of another one. Whoever speaks, it
//! never panics and never spins, keeps no more than was asked for, answers each request once at most and in order, can read what it says,
//! never promises an epoch to two servers or goes back behind what it promised, and says nothing of the order once it found itself wrong. After a crash it
//! comes back from what is durable, with all that it acknowledged to a leader; where it is alone, with all that it said to clients.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use bytes::Bytes;
use jute::{Acl, ConnectRequest, ConnectResponse, Create, CreateMode, EVENT_XID, NotARequest, Numbered, Operation, Reply, Request};
use machine::turn::{Bounds, NoSigner, Turn, Turns};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use sentinel::ensemble::{Member, MemberOptions, Message, Remedy, Snapshot};
use sentinel::order::{self, JournalOp, Options, Output, Replica, Zxid};
use sentinel::{Checksum, ConnectionId, Corruption, Damage, Input as Asked, Now, Peer, Profile, Server, Settings, State};
use store::{Crash, Memory, SegmentNumber, Store, StoreError};
use types::codec::{Decode as _, Encode as _};
use types::{Party, ReplicaId, ShardId};

use crate::Target;
use crate::fixture::{CLUSTER, MILLISECOND, NOW};

pub(super) const TARGET: Target = Target {
    name: "ensemble-server",
    what: "says anything to a server for ZooKeeper's clients, as a client or as another server, and cuts its power: it goes on, and keeps its word",
    bytes_max: 16_384,
    runs: 1_000,
    run,
    seeds: || (0..MODES.len()).flat_map(|mode| [1, 3].map(|rounds| input(mode, rounds))).collect(),
};

/// Which server it is, how many decide, and whether digests are compared with each transaction: the first byte says which of these.
const MODES: [(u16, u16, bool); 6] = [(0, 1, true), (0, 3, true), (1, 3, true), (2, 3, true), (3, 3, true), (0, 1, false)];
/// What a part begins with that is of a client: its connection is counted from here, and so are its words and its end.
const FRAME: u8 = 16;
const WORD: u8 = 32;
const CLOSE: u8 = 48;
/// What begins others that are of nobody.
const WAIT: u8 = 64;
const CRASH: u8 = 65;
const FAIL: u8 = 66;
const SNAPSHOT: u8 = 67;
const DAMAGE: u8 = 68;
const STOP: u8 = 69;
/// Added to any of these: the turn goes on.
const MORE: u8 = 128;
const CLIENTS: u8 = 4;
const TIMEOUT_MS: u64 = 300;
const SCRUB_MS: u64 = 100;
/// So often a server may be called at one moment before it is said to spin.
const SPINS_MAX: u32 = 100;
/// So often it is called while it waits once.
const CALLS_MAX: u32 = 200;
/// The most that one turn says to clients.
const SAID_BYTES_MAX: usize = 64 << 20;

/// Parts of a byte that says what it is, two for a length, and so many.
fn run(bytes: &[u8]) {
    let Some((mode, mut bytes)) = bytes.split_first() else { return };
    let mut life = Life::begin(usize::from(*mode) % MODES.len());
    while let Some(([kind, low, high], rest)) = bytes.split_first_chunk() {
        let length = u16::from_le_bytes([*low, *high]);
        let has_body = !matches!(kind & !MORE, WAIT..=FAIL);
        let (body, rest) = if has_body { rest.split_at(usize::from(length).min(rest.len())) } else { rest.split_at(0) };
        bytes = rest;
        life.part(*kind, length, body);
    }
    life.part(CRASH, 0, &[]);
    life.wait(2 * TIMEOUT_MS);
}

/// What its own side asks of a server.
enum Command {
    Client(Asked),
    Snapshot,
    Damage(Damage, String),
}

/// What a server says to clients.
enum Told {
    Bytes(ConnectionId, Vec<u8>),
    Close(ConnectionId),
    /// It goes on from its disk; with nothing of that, where it gives it up.
    Ends {
        forgets: bool,
    },
}

/// Why it goes on from its disk.
#[derive(Clone, Copy)]
enum End {
    Reopen,
    Repair(Remedy),
}

/// What is on a disk beside the log, durable as soon as it is there.
#[derive(Default)]
struct Shelf {
    /// Under the entry after which each was taken, and the part of the log that goes on from there.
    snapshots: BTreeMap<(Zxid, u64), Bytes>,
    /// How it is being repaired, as a record says.
    repair: Option<Remedy>,
}

/// A server with its disk, as `zookeeper` has it.
struct Process {
    mode: usize,
    member: Member,
    medium: Memory,
    log: Option<Store<Memory>>,
    shelf: Shelf,
    part: (Zxid, u64),
    /// What its turns asked for, to be done once they are durable.
    snapshot: Option<Snapshot>,
    writing: Option<((Zxid, u64), State)>,
    offer: Option<Snapshot>,
    ended: Option<End>,
    is_ending: bool,
    is_noticed: bool,
    failure: Option<StoreError>,
    scrubs_at: Time,
    now: Time,
    /// How often it was found wrong, so that repairs end.
    repairs: u32,
}

fn now_of(time: Time) -> Now {
    let ms = i64::try_from(time.0 / MILLISECOND).expect("times are small");
    Now { wall_ms: ms, steady_ms: ms }
}

fn server(mode: usize, state: State, now: Now) -> Server {
    let (me, _, is_realtime) = MODES[mode];
    let me = u8::try_from(me).expect("there are few");
    let settings = Settings {
        server_id: me + 1,
        timeout_ms_min: 100,
        timeout_ms_max: 2_000,
        reap_every_ms: 1_000,
        words: None,
        superuser: None,
        secret: [me; 32],
        configuration: Vec::new(),
    };
    Server::new(state.with_realtime(is_realtime), settings, now)
}

impl Process {
    /// Comes back from what is on a disk.
    fn open(mode: usize, medium: Memory, shelf: Shelf, now: Time) -> Self {
        let (me, voters, _) = MODES[mode];
        let options = MemberOptions { me, timeout_ms: TIMEOUT_MS, first_stream: now.0 >> 4 };
        let (opened, log, part) = Self::come_back(mode, &medium, &shelf, options, now);
        let (member, log) = match opened {
            Ok(member) => (member, Some(log)),
            Err(corruption) => {
                let server = server(mode, State::new(Profile::Sha256Wide, 1), now_of(now));
                (Member::quarantined(options, voters, server, corruption, now_of(now)).expect("there are few"), None)
            }
        };
        let member = match shelf.repair {
            Some(remedy) if log.is_some() => member.to_be_compared(remedy),
            _ => member,
        };
        Self {
            mode,
            member,
            medium,
            log,
            shelf,
            part,
            snapshot: None,
            writing: None,
            offer: None,
            ended: None,
            is_ending: false,
            is_noticed: false,
            failure: None,
            scrubs_at: now,
            now,
            repairs: 0,
        }
    }

    /// The member that a disk makes, the log, and the part that this goes on with.
    fn come_back(
        mode: usize,
        medium: &Memory,
        shelf: &Shelf,
        options: MemberOptions,
        now: Time,
    ) -> (Result<Member, Corruption>, Store<Memory>, (Zxid, u64)) {
        let (me, voters, _) = MODES[mode];
        let seed = now.0 | 1;
        let mut log = Store::open(medium.clone(), store::Options { segment_bytes_max: 4_096, ..store::Options::default() })
            .expect("memory is whole after a crash");
        let (applied, state) = match shelf.snapshots.iter().next_back() {
            Some(((zxid, _), bytes)) => {
                (*zxid, State::read_snapshot(bytes, seed).expect("it was whole when it was taken over, or written"))
            }
            None => (Zxid::default(), State::new(Profile::Sha256Wide, seed)),
        };
        let order = Options { tick_ms: TIMEOUT_MS / 10, timeout_ms: TIMEOUT_MS, kept_max: 16, ..Options::default() };
        let replica = Replica::new(me, voters, order, applied).expect("there are few");
        let mut replica = replica.having_given_up(shelf.repair == Some(Remedy::Takeover));
        let mut output = Output::default();
        let mut read = || {
            while let Some(batch) = log.replay().expect("memory is whole after a crash") {
                batch.records.into_iter().try_for_each(|record| replica.replay(record))?;
            }
            replica.begin(now, seed, &mut output)
        };
        let read = read().map_err(|why| Corruption { zxid: 0, path: None, what: why.to_string(), digests: None });
        let part = (Zxid::default(), log.current_segment().0);
        let server = server(mode, state, now_of(now));
        (read.and_then(|()| Member::new(options, replica, server, applied, output, now_of(now))), log, part)
    }

    fn go_on(&mut self, end: End) {
        if let Some(log) = &mut self.log {
            log.close().expect("memory does not fail unless told to");
        }
        self.log = None;
        let mut shelf = std::mem::take(&mut self.shelf);
        if let End::Repair(remedy) = end {
            if remedy == Remedy::Takeover {
                self.medium = Memory::new("fuzz");
                shelf.snapshots.clear();
            }
            shelf.repair = Some(remedy);
        }
        let repairs = self.repairs;
        *self = Self::open(self.mode, self.medium.clone(), shelf, self.now);
        self.repairs = repairs;
    }

    fn write(&mut self, journal: Vec<JournalOp>) -> Result<(), StoreError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        for op in journal {
            match op {
                JournalOp::Append(record) => log.append(&record),
                JournalOp::Rotate(zxid) => {
                    log.sync()?;
                    self.part = (zxid, log.rotate()?.0);
                }
                JournalOp::Snapshot { zxid, bytes } => {
                    log.sync()?;
                    assert_eq!(self.part.0, zxid, "the log goes on after the snapshot");
                    if self.shelf.repair.is_some() {
                        self.shelf.repair = Some(Remedy::Takeover);
                    }
                    self.shelf.snapshots.insert(self.part, bytes);
                    purge(log, &mut self.shelf)?;
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(log) = &mut self.log {
            log.sync()?;
        }
        if let Some(snapshot) = self.snapshot.take() {
            assert_eq!(self.part.0, snapshot.zxid, "the log goes on after the snapshot");
            self.writing = Some((self.part, snapshot.state));
        }
        Ok(())
    }

    /// The snapshot that is written beside the turns is finished.
    fn finish_snapshot(&mut self, at: Now) -> Result<(), StoreError> {
        let Some((name, state)) = self.writing.take() else { return Ok(()) };
        match (state.snapshot(), &mut self.log) {
            (Ok(bytes), Some(log)) => {
                self.shelf.snapshots.insert(name, bytes);
                purge(log, &mut self.shelf)?;
            }
            (Ok(_), None) => {}
            (Err(corruption), _) => self.member.stop(at, corruption),
        }
        Ok(())
    }
}

/// Removes all snapshots but two, and what the log has before those.
fn purge(log: &mut Store<Memory>, shelf: &mut Shelf) -> Result<(), StoreError> {
    while shelf.snapshots.len() > 2 {
        shelf.snapshots.pop_first();
    }
    let oldest = shelf.snapshots.keys().next().map_or(1, |(_, segment)| *segment);
    log.release(SegmentNumber(oldest.saturating_sub(1)))
}

impl Machine for Process {
    type Command = Command;
    type Received = Message;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, _: &mut OutboxOf<Self>) {
        self.now = now;
        let at = now_of(now);
        match input {
            Input::Tick => {
                if let Some(end) = self.ended.take() {
                    self.go_on(end);
                }
            }
            _ if self.is_ending => {}
            Input::Command(Command::Client(input)) => self.member.client(at, input),
            Input::Command(Command::Snapshot) => self.member.begin_snapshot(),
            Input::Command(Command::Damage(damage, path)) => {
                // There may be no such node.
                let _ = self.member.server_mut().damage(damage, &path);
            }
            Input::Message { from: Party::Replica(from), message } => self.member.hear(at, from.index, message),
            Input::Message { .. } => {}
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.now = now;
        let at = now_of(now);
        if self.is_ending {
            return;
        }
        // A snapshot belongs to the part of the log that was begun for it: before another can be begun, it is taken.
        let finished = if self.snapshot.is_some() { self.sync() } else { Ok(()) };
        if let Err(failure) = finished.and_then(|()| self.finish_snapshot(at)) {
            self.failure = Some(failure);
            return;
        }
        if let Some(offer) = self.offer.take() {
            match offer.state.snapshot() {
                Ok(bytes) => self.member.offer(at, offer.zxid, Some(bytes)),
                Err(corruption) => self.member.stop(at, corruption),
            }
        }
        if self.scrubs_at <= now {
            self.scrubs_at = now.after_ms(SCRUB_MS);
            self.member.scrub(at);
        }
        if at.steady_ms >= self.member.deadline_ms() {
            self.member.tick(at);
        }
        let turn = self.member.turn(at);
        let is_wrong = self.member.server().corruption().is_some();
        assert!(
            !is_wrong || !turn.sends.iter().any(|(_, message)| matches!(message, Message::Order(_))),
            "a server that found itself wrong says nothing of the order"
        );
        if let Err(failure) = self.write(turn.journal) {
            self.failure = Some(failure);
        }
        let party = |index: u16| Party::Replica(ReplicaId { shard: ShardId(0), index });
        turn.sends.into_iter().for_each(|(to, message)| outbox.send(party(to), message));
        turn.bytes.into_iter().for_each(|(connection, bytes)| outbox.emit(Told::Bytes(connection, bytes)));
        turn.close.into_iter().for_each(|connection| outbox.emit(Told::Close(connection)));
        self.snapshot = turn.snapshot.or(self.snapshot.take());
        self.offer = turn.offer.or(self.offer.take());
        if turn.repaired.is_some() {
            self.shelf.repair = None;
        }
        let reopen = turn.reopen.filter(|_| !is_wrong).map(|_| End::Reopen);
        self.ended = turn.repair.map(End::Repair).or(reopen);
        if self.ended.is_some() {
            self.is_ending = true;
            outbox.emit(Told::Ends { forgets: turn.repair == Some(Remedy::Takeover) });
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.ended.is_some() {
            return Some(Time(0));
        }
        let member = Time(self.member.deadline_ms().unsigned_abs().saturating_mul(MILLISECOND));
        Some(self.scrubs_at.min(member))
    }
}

impl Durable for Process {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.sync()?;
        if self.member.server().corruption().is_some() && !self.is_noticed {
            self.is_noticed = true;
            self.repairs += 1;
            if self.repairs <= 3 {
                self.member.repair(now_of(self.now));
            }
        }
        Ok(())
    }
}

/// A client's connection, as the client sees it.
#[derive(Default)]
struct Connection {
    id: u64,
    has_connected: bool,
    is_word: bool,
    /// It was told that its session has begun, or that it has none.
    has_begun: bool,
    /// It asks under the number that events have: nobody can tell what is an answer to it.
    is_odd: bool,
    /// The numbers and operations that are not answered.
    asked: VecDeque<(i32, i32)>,
}

/// A server over all its lives.
struct Life {
    mode: usize,
    /// Nothing while it is down.
    turns: Option<Turns<Process>>,
    now: u64,
    /// What it takes in with its next turn.
    inbox: Vec<InputOf<Process>>,
    connections: BTreeMap<u8, Connection>,
    opened: u64,
    /// Whether another server said anything, or its memory was damaged: then it may find itself wrong.
    may_be_wrong: bool,
    /// To whom it promised each epoch.
    promised: BTreeMap<u32, u16>,
    /// How far its log went when it told a leader, and was not told to take back anything since.
    acknowledged: Zxid,
    /// It was told to take back something in this turn.
    takes_back: bool,
    /// What its state was when it said something to a client, where nobody else decides.
    said: Option<(i64, Checksum)>,
    written: usize,
}

impl Life {
    fn begin(mode: usize) -> Self {
        let process = Process::open(mode, Memory::new("fuzz"), Shelf::default(), Time(NOW));
        Self {
            mode,
            turns: Some(turns(mode, process)),
            now: NOW,
            inbox: Vec::new(),
            connections: BTreeMap::new(),
            opened: 0,
            may_be_wrong: false,
            promised: BTreeMap::new(),
            acknowledged: Zxid::default(),
            takes_back: false,
            said: None,
            written: 0,
        }
    }

    fn process(&self) -> &Process {
        self.turns.as_ref().expect("it runs").machine()
    }

    /// One part of an input. Gives what the server says to others.
    fn part(&mut self, kind: u8, length: u16, body: &[u8]) -> Vec<(u16, Message)> {
        match kind & !MORE {
            from @ 0..FRAME => self.hear(u16::from(from), body),
            kind @ FRAME..WORD => self.frame(kind % CLIENTS, body),
            kind @ WORD..CLOSE => self.word(kind % CLIENTS, body),
            kind @ CLOSE..WAIT => self.close(kind % CLIENTS),
            WAIT => return self.wait(u64::from(length)),
            CRASH => {
                drop(self.heard());
                self.restart(Some(usize::from(length)));
            }
            FAIL => {
                let medium = self.process().medium.clone();
                medium.fail_next_sync();
                let now = Time(self.now);
                let has_failed = self.heard().stepped(now).persist().is_err();
                self.restart(Some(if has_failed { usize::from(length) } else { 0 }));
            }
            STOP => {
                let said = self.turn();
                self.restart(None);
                return said;
            }
            SNAPSHOT => self.inbox.push(Input::Command(Command::Snapshot)),
            DAMAGE => {
                let Some((what, path)) = body.split_first() else { return Vec::new() };
                self.may_be_wrong = true;
                let damage = Damage::ALL[usize::from(*what) % Damage::ALL.len()];
                self.inbox.push(Input::Command(Command::Damage(damage, String::from_utf8_lossy(path).into_owned())));
            }
            _ => {}
        }
        if kind & MORE == 0 { self.turn() } else { Vec::new() }
    }

    fn hear(&mut self, from: u16, body: &[u8]) {
        let (me, voters, _) = MODES[self.mode];
        let Ok(message) = Message::from_bytes(Bytes::copy_from_slice(body), CLUSTER) else { return };
        // Those who are known: one more than decide, who observes.
        if from != me && from <= voters {
            self.may_be_wrong = true;
            if let Message::Order(order::Message::Truncate { .. } | order::Message::Snapshot { .. } | order::Message::Page { .. }) = message
            {
                self.takes_back = true;
            }
            self.inbox.push(Input::Message { from: Party::Replica(ReplicaId { shard: ShardId(0), index: from }), message });
        }
    }

    /// The connection of a client, which is opened where there is none.
    fn connection(&mut self, client: u8) -> &mut Connection {
        let Self { connections, opened, inbox, .. } = self;
        connections.entry(client).or_insert_with(|| {
            *opened += 1;
            let peer = Peer { address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, client)), port: 1, certificate: None };
            inbox.push(Input::Command(Command::Client(Asked::Opened { connection: ConnectionId(*opened), peer })));
            Connection { id: *opened, ..Connection::default() }
        })
    }

    fn frame(&mut self, client: u8, body: &[u8]) {
        let connection = self.connection(client);
        let id = ConnectionId(connection.id);
        if connection.is_word {
            return;
        }
        if !connection.has_connected {
            let Ok(request) = ConnectRequest::decode(body) else { return self.close(client) };
            connection.has_connected = true;
            self.written += 1;
            self.inbox.push(Input::Command(Command::Client(Asked::Connect { connection: id, request })));
            return;
        }
        let request = Numbered::decode(body);
        let asked = match &request {
            Ok(numbered) => Some((numbered.xid, numbered.request.opcode())),
            Err(NotARequest::Unknown { xid, opcode } | NotARequest::Record { xid, opcode, .. }) => Some((*xid, *opcode)),
            Err(NotARequest::Head) => None,
        };
        connection.is_odd |= asked.is_some_and(|(xid, _)| xid == EVENT_XID);
        connection.asked.extend(asked);
        self.written += match &request {
            Ok(Numbered { request: Request::Multi(operations), .. }) => operations.len(),
            _ => 1,
        };
        self.inbox.push(Input::Command(Command::Client(Asked::Request { connection: id, request })));
    }

    fn word(&mut self, client: u8, body: &[u8]) {
        let Some(word) = body.first_chunk().copied().filter(|word| Server::is_word(*word)) else { return };
        let connection = self.connection(client);
        let id = ConnectionId(connection.id);
        if !connection.has_connected && !connection.is_word {
            connection.is_word = true;
            self.inbox.push(Input::Command(Command::Client(Asked::Word { connection: id, word })));
        }
    }

    fn close(&mut self, client: u8) {
        if let Some(connection) = self.connections.remove(&client) {
            self.inbox.push(Input::Command(Command::Client(Asked::Closed { connection: ConnectionId(connection.id) })));
        }
    }

    /// A turn that has taken in everything, and has written none of it.
    fn heard(&mut self) -> Turn<'_, Process> {
        let now = Time(self.now);
        let mut turn = self.turns.as_mut().expect("it runs").begin(now);
        let mut wait = Vec::new();
        for input in self.inbox.drain(..) {
            // Clients wait until less is under way.
            let is_client = matches!(input, Input::Command(Command::Client(_)));
            if is_client && (!wait.is_empty() || turn.machine().member.is_congested()) {
                wait.push(input);
            } else {
                turn.step(now, input);
            }
        }
        self.inbox = wait;
        turn
    }

    fn turn(&mut self) -> Vec<(u16, Message)> {
        let now = Time(self.now);
        let said = self.heard().stepped(now).persist().expect("memory does not fail unless told to").sign(&mut NoSigner);
        assert!(said.own.is_empty(), "it says nothing to itself");
        let (sends, events) = (std::mem::take(said.sends), std::mem::take(said.events));
        drop(said);
        let to = |party| if let Party::Replica(to) = party { to.index } else { panic!("it knows no clients of the engine") };
        let sends: Vec<(u16, Message)> = sends.into_iter().map(|(party, message)| (to(party), message)).collect();
        sends.iter().for_each(|(to, message)| self.check_message(*to, message));
        let bytes: usize = events.iter().map(|told| if let Told::Bytes(_, bytes) = told { bytes.len() } else { 0 }).sum();
        assert!(bytes <= SAID_BYTES_MAX, "{bytes} bytes are said in one turn");
        events.into_iter().for_each(|told| self.hear_told(told));
        if std::mem::take(&mut self.takes_back) {
            self.acknowledged = Zxid::default();
        }
        self.check_state();
        sends
    }

    /// Time passes. The server is called whenever it wants to be.
    fn wait(&mut self, ms: u64) -> Vec<(u16, Message)> {
        let mut said = self.turn();
        let (ends_at, mut spins) = (self.now + ms * MILLISECOND, 0);
        for _ in 0..CALLS_MAX {
            let wakes_at = self.turns.as_ref().expect("it runs").wakes_at();
            let Some(due) = wakes_at.filter(|due| due.0 <= ends_at) else { break };
            spins = if due.0 > self.now { 0 } else { spins + 1 };
            assert!(spins < SPINS_MAX, "it wants to be called again and again");
            self.now = self.now.max(due.0);
            said.extend(self.turn());
        }
        self.now = ends_at;
        said
    }

    /// It dies with all that it has not said, or stops in good order, and comes back.
    fn restart(&mut self, kept: Option<usize>) {
        let mut process = self.turns.take().expect("it runs").into_machine();
        let (medium, repairs) = (process.medium.clone(), process.repairs);
        if let (None, Some(log)) = (kept, &mut process.log) {
            log.close().expect("memory does not fail unless told to");
        }
        let shelf = std::mem::take(&mut process.shelf);
        drop(process);
        medium.crash(Crash { journal_bytes_kept: kept.unwrap_or_default(), checkpoint_rows_kept: 0 });
        self.inbox.clear();
        self.connections.clear();
        // No two processes draw the same numbers.
        self.now += MILLISECOND;
        let mut process = Process::open(self.mode, medium, shelf, Time(self.now));
        process.repairs = repairs;
        let last = process.member.replica().last();
        let is_wrong = process.member.server().corruption().is_some();
        assert!(!is_wrong || self.may_be_wrong, "it comes back from what it has written: {:?}", process.member.server().corruption());
        assert!(is_wrong || last >= self.acknowledged, "it acknowledged {}, and has {last}", self.acknowledged);
        if let Some((zxid, digest)) = self.said.filter(|_| !self.may_be_wrong) {
            let state = process.member.server().state();
            assert!(state.zxid() >= zxid, "what was said is forgotten: {zxid:#x}, and there is {:#x}", state.zxid());
            assert!(state.zxid() > zxid || state.checksum() == digest, "it comes back to another state");
        }
        self.turns = Some(turns(self.mode, process));
    }

    /// What it says to other servers can be read, and is no more than its word.
    fn check_message(&mut self, to: u16, message: &Message) {
        assert_eq!(Message::from_bytes(message.to_bytes().into(), CLUSTER).as_ref(), Ok(message), "it can read what it says");
        let (me, voters, _) = MODES[self.mode];
        let Message::Order(message) = message else { return };
        let promise = match message {
            order::Message::Promise { epoch, .. } => Some((*epoch, to)),
            order::Message::NewEpoch { epoch } => Some((*epoch, me)),
            order::Message::Ack { last, .. } => {
                self.acknowledged = *last;
                None
            }
            _ => None,
        };
        // On what an observer promises nothing rests; and whoever lost its disk is another.
        if let Some((epoch, leader)) = promise.filter(|_| me < voters) {
            assert_eq!(*self.promised.entry(epoch).or_insert(leader), leader, "epoch {epoch} is promised to two");
            let last = self.promised.keys().next_back().copied();
            assert_eq!(last, Some(epoch), "it goes back behind what it promised");
        }
    }

    fn hear_told(&mut self, told: Told) {
        match told {
            Told::Bytes(id, bytes) => {
                let (me, voters, _) = MODES[self.mode];
                if (me, voters) == (0, 1) {
                    let state = self.process().member.server().state();
                    self.said = Some((state.zxid(), state.checksum()));
                }
                let may_be_wrong = self.may_be_wrong;
                if let Some(connection) = self.connections.values_mut().find(|connection| connection.id == id.0) {
                    connection.hear(&bytes, may_be_wrong);
                }
            }
            Told::Close(id) => {
                let found = self.connections.iter().find(|(_, connection)| connection.id == id.0).map(|(client, _)| *client);
                found.into_iter().for_each(|client| self.close(client));
            }
            Told::Ends { forgets } => {
                self.connections.clear();
                if forgets {
                    self.promised.clear();
                    self.acknowledged = Zxid::default();
                }
            }
        }
    }

    /// Nothing is kept that nobody asked for.
    fn check_state(&self) {
        if self.may_be_wrong {
            return;
        }
        let server = self.process().member.server();
        assert_eq!(server.corruption(), None, "no client makes a server wrong");
        let nodes = server.state().node_count();
        assert!(nodes <= NODES_AT_FIRST.saturating_add(self.written), "there are {nodes} nodes");
    }
}

impl Connection {
    /// What it is told can be read, and answers what it asked, in order.
    fn hear(&mut self, mut bytes: &[u8], may_be_wrong: bool) {
        while !self.is_word && !self.is_odd && !bytes.is_empty() {
            let (head, rest) = bytes.split_first_chunk::<4>().expect("a frame has a length");
            let (frame, rest) = rest.split_at(u32::from_be_bytes(*head) as usize);
            bytes = rest;
            if !std::mem::replace(&mut self.has_begun, true) {
                ConnectResponse::decode(frame).expect("it is said as clients read it");
                continue;
            }
            let xid = i32::from_be_bytes(*frame.first_chunk().expect("a reply has a number"));
            let at = self.asked.iter().position(|(asked, _)| *asked == xid);
            let opcode = match at {
                _ if xid == EVENT_XID => 0,
                Some(at) => self.asked.remove(at).expect("it was found").1,
                None => panic!("{xid} is answered more often than it was asked"),
            };
            let reply = Reply::decode(frame, opcode);
            // A leader that lies may have ordered something else than was asked of it.
            assert!(
                reply.is_ok() || may_be_wrong,
                "it is said as clients read it: {reply:?} to {xid} of operation {opcode}, before {:?}: {frame:?}",
                self.asked
            );
        }
    }
}

fn turns(mode: usize, process: Process) -> Turns<Process> {
    let me = Party::Replica(ReplicaId { shard: ShardId(0), index: MODES[mode].0 });
    Turns::new(process, me, Bounds::default())
}

/// How many nodes there are before anybody has written any.
static NODES_AT_FIRST: LazyLock<usize> = LazyLock::new(|| State::new(Profile::Sha256Wide, 0).node_count());

// What is recorded of servers and clients that follow the protocol.

fn said(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes();
    [&[kind, length[0], length[1]][..], body].concat()
}

/// As much of what was heard as one input holds, and a crash at its end.
fn input(mode: usize, rounds: u32) -> Vec<u8> {
    let mut input = vec![u8::try_from(mode).expect("there are few")];
    for part in heard(mode, rounds) {
        if input.len() + part.len() + 64 > TARGET.bytes_max {
            break;
        }
        input.extend(part);
    }
    input.extend([said(SNAPSHOT, &[]), vec![WAIT, 50, 0, FAIL, 9, 0, WAIT, 200, 1], said(DAMAGE, b"\x01/a"), vec![WAIT, 44, 1]].concat());
    input
}

/// What a server hears while two clients write and read, so many times each.
fn heard(mode: usize, rounds: u32) -> Vec<Vec<u8>> {
    let (me, voters, _) = MODES[mode];
    let mode_of = |index: u16| MODES.iter().position(|other| *other == (index, voters, true)).expect("each of those who decide has one");
    // Those who decide, and the server itself where it observes.
    let mut lives: BTreeMap<u16, Life> =
        (0..voters).filter(|index| *index != me).map(|index| (index, Life::begin(mode_of(index)))).collect();
    lives.insert(me, Life::begin(mode));
    let (mut heard, mut queue) = (Vec::new(), VecDeque::<(u16, u16, Message)>::new());
    for step in 0..(60 + 16 * rounds) {
        let mut parts: Vec<(u16, Vec<u8>)> = Vec::new();
        if step >= 50 {
            let client = u8::try_from(step % 2).expect("small");
            let body = if step < 52 { connect() } else { request(step - 52) };
            parts.push((me, said(FRAME + client, &body)));
        }
        while let Some((from, to, message)) = queue.pop_front() {
            parts.push((to, said(u8::try_from(from).expect("there are few"), &message.to_bytes())));
        }
        for server in lives.keys() {
            parts.push((*server, vec![WAIT, 10, 0]));
        }
        for (to, part) in parts {
            let Some(life) = lives.get_mut(&to) else { continue };
            let length = u16::from_le_bytes([part[1], part[2]]);
            for (other, message) in life.part(part[0], length, &part[3..]) {
                queue.push_back((to, other, message));
            }
            if to == me {
                heard.push(part);
            }
        }
    }
    // Waits beside one another are one.
    let mut shorter: Vec<Vec<u8>> = Vec::new();
    for part in heard {
        match shorter.last_mut() {
            Some(last) if last[0] == WAIT && part[0] == WAIT => {
                let ms = u16::from_le_bytes([last[1], last[2]]) + u16::from_le_bytes([part[1], part[2]]);
                *last = [&[WAIT][..], &ms.to_le_bytes()].concat();
            }
            _ => shorter.push(part),
        }
    }
    shorter
}

fn connect() -> Vec<u8> {
    let mut body = Vec::new();
    ConnectRequest { timeout_ms: 2_000, password: vec![0; 16], ..ConnectRequest::default() }.encode(&mut body);
    body
}

/// What a client asks, one thing after the other.
fn request(place: u32) -> Vec<u8> {
    let path = |name: &str| format!("/{name}");
    let create = |path: String, mode, sequential| Create {
        path,
        data: Some(Bytes::from_static(b"data")),
        acl: vec![Acl::open()],
        mode,
        sequential,
        wants_stat: place.is_multiple_of(2),
    };
    let request = match place % 13 {
        0 => Request::Create(create(path("a"), CreateMode::Persistent, false)),
        1 => Request::Create(create(path("a/s-"), CreateMode::Ephemeral, true)),
        2 => Request::GetData { path: path("a"), watch: true },
        3 => Request::SetData { path: path("a"), data: Some(Bytes::from_static(b"more")), version: -1 },
        4 => Request::GetChildren { path: path("a"), watch: true },
        5 => Request::Multi(vec![
            Operation::Check { path: path("a"), version: -1 },
            Operation::Create(create(path("b"), CreateMode::Container, false)),
            Operation::SetData { path: path("a"), data: None, version: -1 },
        ]),
        6 => Request::Sync { path: path("a") },
        7 => Request::Exists { path: path("c"), watch: true },
        8 => Request::Create(create(path("c"), CreateMode::Ephemeral, false)),
        9 => Request::Ping,
        10 => Request::WhoAmI,
        11 => Request::Delete { path: path("b"), version: -1 },
        _ => Request::CloseSession,
    };
    let xid = if request == Request::Ping { jute::PING_XID } else { i32::try_from(place).expect("small") + 1 };
    let mut body = Vec::new();
    Numbered { xid, request }.encode(&mut body);
    body
}
