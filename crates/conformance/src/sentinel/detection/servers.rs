//! Three servers and their clients in one thread: every message arrives at once, and time passes when that is said. So it is exact after how many
//! transactions something is noticed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use ::sentinel::ensemble::{Member, MemberOptions, Message, Remedy, TurnOutput, time};
use ::sentinel::order::{Options, Status};
use ::sentinel::{ConnectionId, Corruption, Input, Now, Peer, Server, Settings, State};
use jute::{Acl, Answer, ConnectRequest, Create, CreateMode, ErrorCode, Numbered, Reply, Request};

use super::disk::{Disk, Setup};
use super::{By, Mode};
use ::sentinel::Profile;

/// How much time passes with each transaction, as fast as the scrubber goes from one of its shards to the next.
pub const STEP_MS: i64 = 20;
/// After so long without a word servers look for another leader.
const TIMEOUT_MS: u64 = 1_000;
/// Servers say at least so often that they are there.
const TICK_MS: u64 = TIMEOUT_MS / 10;

/// A server, its disk, and what it said.
pub struct Station {
    pub member: Member,
    pub disk: Disk,
    said: BTreeMap<ConnectionId, Vec<u8>>,
    closed: BTreeSet<ConnectionId>,
    connections: u64,
    /// It was found wrong, and told to repair itself.
    is_told: bool,
    /// It was found wrong, or passed over a snapshot, and was compared since.
    pub is_repaired: bool,
}

/// The servers, and what is under way between them.
pub struct Servers {
    now: Now,
    mode: Mode,
    profile: Profile,
    pub stations: Vec<Station>,
    queue: VecDeque<(u16, u16, Message)>,
    /// What the servers do now, for whoever is found wrong by it.
    doing: By,
    /// Who was found wrong, by what.
    pub found: Vec<(u16, By, Corruption)>,
}

/// A client at one server.
#[derive(Clone, Copy)]
pub struct Client {
    at: u16,
    connection: ConnectionId,
}

fn setup(me: u16, profile: Profile, mode: Mode) -> Setup {
    let options = Options { tick_ms: TICK_MS, timeout_ms: TIMEOUT_MS, ..Options::default() };
    Setup { me, profile, is_realtime: mode == Mode::Realtime, options }
}

/// A server as it comes back from its disk: quarantined where that makes no sense. Gives what was found wrong then.
fn open(setup: Setup, disk: &mut Disk, now: Now) -> (Member, Option<Corruption>) {
    let settings = Settings {
        server_id: u8::try_from(setup.me + 1).expect("there are three"),
        timeout_ms_min: 1_000,
        timeout_ms_max: 10_000_000,
        reap_every_ms: 10_000_000,
        words: None,
        superuser: None,
        secret: [3; 32],
        configuration: Vec::new(),
    };
    let options = MemberOptions { me: setup.me, timeout_ms: TIMEOUT_MS, first_stream: now.steady_ms.unsigned_abs() << 20 };
    let server = |state: State| Server::new(state, settings.clone(), now);
    let seed = 1 + u64::from(setup.me) + now.steady_ms.unsigned_abs();
    let opened = disk.open(setup, seed, time(now));
    let come_back = opened.and_then(|opened| {
        let wrong = "a snapshot is not whole, and the one before it was read";
        let passed_over = opened.passed_over.then(|| Corruption { zxid: 0, path: None, what: wrong.to_owned(), digests: None });
        let member = Member::new(options, opened.replica, server(opened.state), opened.applied, opened.output, now)?;
        Ok((member, passed_over))
    });
    come_back.unwrap_or_else(|corruption| {
        let server = server(State::new(setup.profile, seed));
        (Member::quarantined(options, 3, server, corruption.clone(), now).expect("there are three"), Some(corruption))
    })
}

impl Servers {
    /// Three servers, one of which leads.
    pub fn new(profile: Profile, mode: Mode) -> Self {
        let now = Now { wall_ms: 1_700_000_000_000, steady_ms: 1 };
        let station = |me| {
            let mut disk = Disk::new(false);
            let (member, _) = open(setup(me, profile, mode), &mut disk, now);
            Station { member, disk, said: BTreeMap::new(), closed: BTreeSet::new(), connections: 0, is_told: false, is_repaired: false }
        };
        let stations = (0..3).map(station).collect();
        let mut servers = Self { now, mode, profile, stations, queue: VecDeque::new(), doing: By::Itself, found: Vec::new() };
        (0..3).for_each(|at| servers.conclude(at));
        while servers.leader().is_none() || (0..3).any(|at| servers.member(at).replica().status() == Status::Looking) {
            servers.pass();
        }
        servers
    }

    fn member(&mut self, at: u16) -> &mut Member {
        &mut self.stations[usize::from(at)].member
    }

    pub fn leader(&self) -> Option<u16> {
        let leads = |at: &u16| matches!(self.stations[usize::from(*at)].member.replica().status(), Status::Leading { .. });
        (0..3).find(|at| leads(at) && self.is_whole(*at))
    }

    pub fn is_whole(&self, at: u16) -> bool {
        self.stations[usize::from(at)].member.server().corruption().is_none()
    }

    pub fn state(&self, at: u16) -> &State {
        self.stations[usize::from(at)].member.server().state()
    }

    pub fn setup(&self, at: u16) -> Setup {
        setup(at, self.profile, self.mode)
    }

    pub fn step(&mut self, at: u16, doing: By, act: impl FnOnce(&mut Member, Now)) {
        let now = self.now;
        self.doing = doing;
        act(self.member(at), now);
        self.conclude(at);
        self.doing = By::Itself;
    }

    /// A crash, and another start from what is on the disk.
    pub fn restart(&mut self, at: u16) {
        self.queue.retain(|(from, to, _)| *from != at && *to != at);
        self.come_back(at, None);
    }

    fn come_back(&mut self, at: u16, remedy: Option<Remedy>) {
        let (setup, now) = (self.setup(at), self.now);
        let station = &mut self.stations[usize::from(at)];
        if remedy == Some(Remedy::Takeover) {
            station.disk = Disk::new(true);
        }
        station.closed.extend((1..=station.connections).map(ConnectionId));
        let (member, wrong) = open(setup, &mut station.disk, now);
        // Whoever passed a snapshot over is compared like one that reread.
        let remedy = remedy.or(wrong.as_ref().map(|_| Remedy::Reread)).filter(|_| member.server().corruption().is_none());
        station.member = if let Some(remedy) = remedy { member.to_be_compared(remedy) } else { member };
        station.is_told = station.member.server().corruption().is_some();
        station.member.repair(now);
        if let Some(corruption) = wrong {
            self.found.push((at, By::Start, corruption));
        }
        self.conclude(at);
    }

    /// As the end of a turn of a real server: everything durable, and then said.
    fn conclude(&mut self, at: u16) {
        let now = self.now;
        let station = &mut self.stations[usize::from(at)];
        if let Some(corruption) = station.member.server().corruption().filter(|_| !station.is_told) {
            station.is_told = true;
            let by = if corruption.what.contains("a majority of the servers comes") { By::Majority } else { self.doing };
            self.found.push((at, by, corruption.clone()));
            station.member.repair(now);
        }
        let TurnOutput { journal, sends, bytes, close, snapshot, offer, reopen, repair, repaired, notes: _, answers: _ } =
            station.member.turn(now);
        station.disk.write(journal);
        for (connection, bytes) in bytes {
            station.said.entry(connection).or_default().extend(bytes);
        }
        station.closed.extend(close);
        station.is_repaired |= repaired.is_some();
        self.queue.extend(sends.into_iter().filter(|(to, _)| *to < 3).map(|(to, message)| (at, to, message)));
        if let Some(snapshot) = snapshot {
            match snapshot.state.snapshot() {
                Ok(bytes) => self.stations[usize::from(at)].disk.keep_snapshot(snapshot.zxid, bytes),
                Err(corruption) => return self.step(at, By::Snapshot, |member, now| member.stop(now, corruption)),
            }
        }
        if let Some(remedy) = repair {
            self.come_back(at, Some(remedy));
        } else if reopen.is_some() {
            self.come_back(at, None);
        } else if let Some(offer) = offer {
            match offer.state.snapshot() {
                Ok(bytes) => self.step(at, By::Itself, |member, now| member.offer(now, offer.zxid, Some(bytes))),
                Err(corruption) => self.step(at, By::Snapshot, |member, now| member.stop(now, corruption)),
            }
        } else if self.stations[usize::from(at)].member.server().corruption().is_some() && !self.stations[usize::from(at)].is_told {
            self.conclude(at);
        }
    }

    /// Delivers everything that is under way.
    pub fn settle(&mut self) {
        while let Some((from, to, message)) = self.queue.pop_front() {
            self.step(to, By::Itself, |member, now| member.hear(now, from, message));
        }
    }

    /// A step of time: what is due, and a step of each scrubber where servers have one.
    pub fn pass(&mut self) {
        self.now.steady_ms += STEP_MS;
        self.now.wall_ms += STEP_MS;
        for at in 0..3 {
            if self.member(at).deadline_ms() <= self.now.steady_ms {
                self.step(at, By::Itself, Member::tick);
            }
            if self.mode != Mode::Offline {
                self.step(at, By::Scrubber, Member::scrub);
            }
        }
        self.settle();
    }

    // Clients.

    pub fn connect(&mut self, at: u16) -> Option<Client> {
        let station = &mut self.stations[usize::from(at)];
        station.connections += 1;
        let connection = ConnectionId(station.connections);
        let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
        self.step(at, By::Itself, |member, now| member.client(now, Input::Opened { connection, peer }));
        let request = ConnectRequest { timeout_ms: 10_000_000, password: vec![0; 16], ..Default::default() };
        self.step(at, By::Itself, |member, now| member.client(now, Input::Connect { connection, request }));
        self.settle();
        let client = Client { at, connection };
        self.frame(client).map(|_| client)
    }

    /// Asks, and gives the answer; nothing where there is none.
    pub fn ask(&mut self, client: Client, doing: By, request: &Request) -> Option<Result<Answer, ErrorCode>> {
        let Client { at, connection } = client;
        let numbered = Numbered { xid: 1, request: request.clone() };
        self.step(at, doing, |member, now| member.client(now, Input::Request { connection, request: Ok(numbered) }));
        self.settle();
        let frame = self.frame(client)?;
        Some(Reply::decode(&frame, request.opcode()).expect("servers answer so").answer)
    }

    pub fn is_closed(&self, client: Client) -> bool {
        self.stations[usize::from(client.at)].closed.contains(&client.connection)
    }

    /// Takes the next frame that a client was sent.
    fn frame(&mut self, client: Client) -> Option<Vec<u8>> {
        let said = self.stations[usize::from(client.at)].said.get_mut(&client.connection)?;
        let length = u32::from_be_bytes(*said.first_chunk()?) as usize;
        let frame = said.drain(..4 + length).skip(4).collect();
        Some(frame)
    }
}

pub fn create(path: &str) -> Request {
    let data = Some(vec![7; 100].into());
    Request::Create(Create {
        path: path.to_owned(),
        data,
        acl: vec![Acl::open()],
        mode: CreateMode::Persistent,
        sequential: false,
        wants_stat: false,
    })
}

pub fn write(path: &str) -> Request {
    Request::SetData { path: path.to_owned(), data: Some(vec![8; 100].into()), version: -1 }
}
