//! A client: a session that moves between servers, requests one behind the other, and watches, as the clients of ZooKeeper have them.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use bytes::Bytes;
use crypto::Verified;
use jute::{
    Answer, ConnectRequest, ConnectResponse, ErrorCode, EventKind, Numbered, PASSWORD_BYTES, PING_XID, Reply, Request, SET_WATCHES_XID,
    SetWatches, WatchedEvent, Writer,
};
use machine::{Input, InputOf, Machine, OutboxOf, Time};
use types::{Party, ReplicaId};

use super::message::{Message, frames};
use super::server::bodies;
use super::stream::{OrderedStream, Segment};

/// After so long without an answer to its call a client calls another server, in milliseconds.
const DIAL_MS: u64 = 400;
/// A connection that says nothing for this part of the session's timeout is given up, of three.
const PATIENCE_THIRDS: u64 = 2;

/// What is to be asked, one behind the other.
#[derive(Clone, Debug)]
pub struct Task {
    pub requests: Vec<Request>,
    /// It waits for so long before, in milliseconds.
    pub after_ms: u64,
    /// The newest transaction that anybody was told of when it began.
    pub acknowledged: i64,
    /// It tries to come in with a session that is another's, and a wrong password, before.
    pub intrudes: Option<i64>,
    /// It calls another server first.
    pub moves: bool,
}

/// Which of the two kinds of one-shot watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchOn {
    /// The data, or that there is a node.
    Data,
    Children,
}

impl WatchOn {
    /// Which events it waits for.
    pub fn kinds(self) -> &'static [EventKind] {
        match self {
            Self::Data => &[EventKind::Created, EventKind::Deleted, EventKind::DataChanged],
            Self::Children => &[EventKind::Deleted, EventKind::ChildrenChanged],
        }
    }
}

/// What a client sees, to be judged in order.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A session begins.
    Began(i64),
    /// It comes back to its session, and is connected with another server perhaps.
    Resumed,
    /// Its session is no more, though it has not asked for that: the last answer came so many milliseconds before.
    Expired { session: i64, timeout_ms: u64, unheard_ms: u64 },
    /// Its session is no more, and it may have ended it itself.
    Ended(i64),
    /// It came in, or did not, with a wrong password.
    Intruded { session: i64, was_let_in: bool },
    /// The connection is gone.
    Lost,
    /// An answer.
    Answered(Box<Answered>),
    /// An event.
    Event { event: WatchedEvent, zxid: i64 },
    /// What the server that it is connected with says is not to be relied on from now on.
    Doubt,
    /// What must not be, whatever the servers' state.
    Broken(String),
}

/// An answer to a request.
#[derive(Clone, Debug)]
pub struct Answered {
    pub session: i64,
    pub xid: i32,
    pub request: Request,
    pub zxid: i64,
    pub answer: Result<Answer, ErrorCode>,
    /// The newest transaction that anybody was told of before it was asked.
    pub acknowledged: i64,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All was answered.
    Whole,
    /// The connection was lost, or the session.
    Lost,
}

/// Its connection.
enum ConnectionState {
    Down,
    Dialing { connection: u64, since: Time },
    Up { connection: u64, life: u64, stream: OrderedStream, is_ready: bool, is_doubtful: bool },
}

/// A client's session.
#[derive(Clone, Copy, Debug)]
struct Session {
    id: i64,
    password: [u8; PASSWORD_BYTES],
    timeout_ms: u64,
}

#[derive(Debug)]
struct Pending {
    xid: i32,
    request: Request,
    of_task: bool,
}

/// The machine.
pub struct SessionMachine {
    servers: Vec<ReplicaId>,
    timeout_ms: u64,
    server: usize,
    line: ConnectionState,
    connections: u64,
    session: Option<Session>,
    has_asked_to_end: bool,
    intrudes: Option<i64>,
    xid: i32,
    /// The newest state that it has seen.
    zxid: i64,
    pending: VecDeque<Pending>,
    task: Option<Task>,
    begin_at: Option<Time>,
    /// How many requests of the task are not answered.
    left: usize,
    heard_at: Time,
    /// When a server last answered within the session.
    replied_at: Time,
    said_at: Time,
    /// When it calls again after a connection was refused or lost.
    dial_at: Time,
    watches: BTreeMap<(WatchOn, String), bool>,
    seen: Vec<Seen>,
}

impl SessionMachine {
    pub fn new(servers: Vec<ReplicaId>, timeout_ms: u64, server: usize) -> Self {
        Self {
            servers,
            timeout_ms,
            server,
            line: ConnectionState::Down,
            connections: 0,
            session: None,
            has_asked_to_end: false,
            intrudes: None,
            xid: 0,
            zxid: 0,
            pending: VecDeque::new(),
            task: None,
            begin_at: None,
            left: 0,
            heard_at: Time(0),
            replied_at: Time(0),
            said_at: Time(0),
            dial_at: Time(0),
            watches: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    /// What was seen since this was last asked.
    pub fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    /// The process is another one, which knows nothing.
    pub fn forget(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        *self = Self { connections: self.connections, ..Self::new(servers, self.timeout_ms, self.server + 1) };
    }

    /// The session's number, if there is one.
    pub fn id(&self) -> Option<i64> {
        self.session.map(|session| session.id)
    }

    fn to(&self) -> Party {
        Party::Replica(self.servers[self.server % self.servers.len()])
    }

    fn session_timeout_ms(&self) -> u64 {
        self.session.map_or(self.timeout_ms, |session| session.timeout_ms)
    }

    // The connection.

    fn dial(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.connections += 1;
        self.line = ConnectionState::Dialing { connection: self.connections, since: now };
        outbox.send(self.to(), Message::Dial(self.connections));
    }

    /// Gives up the connection: what was asked over it is not known to have happened.
    fn hang_up(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        match &self.line {
            ConnectionState::Down => return,
            ConnectionState::Up { connection, .. } | ConnectionState::Dialing { connection, .. } => {
                outbox.send(self.to(), Message::Reset(*connection))
            }
        }
        (self.line, self.intrudes) = (ConnectionState::Down, None);
        self.server += 1;
        self.dial_at = now.after_ms(10);
        let is_lost = self.pending.iter().any(|pending| pending.of_task);
        self.pending.clear();
        self.seen.push(Seen::Lost);
        if is_lost {
            self.end_task(Ended::Lost, outbox);
        }
    }

    fn end_task(&mut self, ended: Ended, outbox: &mut OutboxOf<Self>) {
        if self.task.take().is_some() {
            (self.begin_at, self.left) = (None, 0);
            outbox.emit(ended);
        }
    }

    /// Says a frame.
    fn say(&mut self, now: Time, body: &[u8], outbox: &mut OutboxOf<Self>) {
        let to = self.to();
        let ConnectionState::Up { connection, life, stream, .. } = &mut self.line else { return };
        let mut frame = Vec::new();
        Writer::new(&mut frame).buffer(Some(body));
        let packet = stream.send(now, frames(frame, false));
        outbox.send(to, Message::Up { connection: *connection, life: *life, packet });
        self.said_at = now;
    }

    fn connect(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let intrudes = self.task.as_mut().and_then(|task| task.intrudes.take());
        let (session, password) = match (intrudes, self.session) {
            (Some(other), _) => {
                self.intrudes = Some(other);
                (other, [0x5a; PASSWORD_BYTES])
            }
            (None, Some(session)) => (session.id, session.password),
            (None, None) => (0, [0; PASSWORD_BYTES]),
        };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.zxid,
            timeout_ms: i32::try_from(self.timeout_ms).unwrap_or(i32::MAX),
            session,
            password: password.to_vec(),
            read_only: None,
        };
        let mut body = Vec::new();
        request.encode(&mut body);
        self.say(now, &body, outbox);
    }

    fn ask(&mut self, now: Time, xid: i32, request: Request, of_task: bool, outbox: &mut OutboxOf<Self>) {
        let numbered = Numbered { xid, request };
        let mut body = Vec::new();
        numbered.encode(&mut body);
        self.pending.push_back(Pending { xid, request: numbered.request, of_task });
        self.say(now, &body, outbox);
    }

    /// Asks what the task wants, once there is a session.
    fn begin_task(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let ConnectionState::Up { is_ready: true, .. } = self.line else { return };
        if self.begin_at.is_none_or(|at| now < at) {
            return;
        }
        let Some(requests) = self.task.as_mut().map(|task| std::mem::take(&mut task.requests)) else { return };
        (self.begin_at, self.left) = (None, requests.len());
        for request in requests {
            self.xid += 1;
            self.has_asked_to_end |= matches!(request, Request::CloseSession);
            self.ask(now, self.xid, request, true, outbox);
        }
    }

    // What servers say.

    fn on_frame(&mut self, now: Time, body: &Bytes, is_damaged: bool, outbox: &mut OutboxOf<Self>) {
        self.heard_at = now;
        let ConnectionState::Up { is_ready, is_doubtful, .. } = &mut self.line else { return };
        if is_damaged && !std::mem::replace(is_doubtful, true) {
            self.seen.push(Seen::Doubt);
        }
        if !*is_ready {
            match ConnectResponse::decode(body) {
                Ok(response) => self.on_connected(now, response, outbox),
                Err(why) => self.seen.push(Seen::Broken(format!("what answers a beginning is not readable: {why}"))),
            }
            return;
        }
        let is_event = body.starts_with(&jute::EVENT_XID.to_be_bytes());
        let opcode = if is_event { 0 } else { self.pending.front().map_or(0, |pending| pending.request.opcode()) };
        match Reply::decode(body, opcode) {
            Ok(Reply { zxid, answer: Ok(Answer::Event(event)), .. }) => self.on_event(event, zxid),
            Ok(reply) => self.on_reply(now, reply, outbox),
            Err(why) => self.seen.push(Seen::Broken(format!("an answer is not readable: {why}"))),
        }
    }

    fn on_connected(&mut self, now: Time, response: ConnectResponse, outbox: &mut OutboxOf<Self>) {
        let was_let_in = response.session != 0;
        if let Some(session) = self.intrudes.take() {
            self.seen.push(Seen::Intruded { session, was_let_in });
            self.hang_up(now, outbox);
            return;
        }
        if !was_let_in {
            if let Some(Session { id, timeout_ms, .. }) = self.session.take() {
                let unheard_ms = now.since(self.replied_at) / 1_000_000;
                let expired = Seen::Expired { session: id, timeout_ms, unheard_ms };
                self.seen.push(if self.has_asked_to_end { Seen::Ended(id) } else { expired });
            }
            self.has_asked_to_end = false;
            self.watches.clear();
            self.zxid = 0;
            self.hang_up(now, outbox);
            return;
        }
        let timeout_ms = u64::from(response.timeout_ms.unsigned_abs());
        let before = self.session.replace(Session { id: response.session, password: response.password, timeout_ms });
        self.replied_at = now;
        match before {
            None => self.seen.push(Seen::Began(response.session)),
            Some(before) if before.id != response.session => {
                self.seen.push(Seen::Broken(format!("session {:#x} comes back as {:#x}", before.id, response.session)));
            }
            Some(_) => self.seen.push(Seen::Resumed),
        }
        if let ConnectionState::Up { is_ready, .. } = &mut self.line {
            *is_ready = true;
        }
        if !self.watches.is_empty() {
            let of = |on: WatchOn, exists: bool| {
                let wanted = self.watches.iter().filter(|((of, _), is_for_creation)| *of == on && **is_for_creation == exists);
                wanted.map(|((_, path), _)| path.clone()).collect()
            };
            let watches = SetWatches {
                relative_zxid: self.zxid,
                data: of(WatchOn::Data, false),
                exist: of(WatchOn::Data, true),
                child: of(WatchOn::Children, false),
                ..SetWatches::default()
            };
            self.ask(now, SET_WATCHES_XID, Request::SetWatches(watches), false, outbox);
        }
        self.begin_task(now, outbox);
    }

    fn on_event(&mut self, event: WatchedEvent, zxid: i64) {
        for on in [WatchOn::Data, WatchOn::Children] {
            if on.kinds().contains(&event.kind) {
                self.watches.remove(&(on, event.path.clone()));
            }
        }
        self.seen.push(Seen::Event { event, zxid });
    }

    fn on_reply(&mut self, now: Time, reply: Reply, outbox: &mut OutboxOf<Self>) {
        self.replied_at = now;
        let Some(Pending { xid, request, of_task }) = self.pending.pop_front() else {
            self.seen.push(Seen::Broken(format!("an answer to nothing: {reply:?}")));
            return;
        };
        if xid != reply.xid {
            self.seen.push(Seen::Broken(format!("request {xid} is next to be answered, and {} is", reply.xid)));
        }
        self.zxid = self.zxid.max(reply.zxid);
        if let Some((key, is_for_creation)) = watched(&request, &reply.answer) {
            self.watches.insert(key, is_for_creation);
        }
        let is_last = matches!(request, Request::CloseSession) && reply.answer.is_ok();
        let session = self.session.map_or(0, |session| session.id);
        let acknowledged = self.task.as_ref().filter(|_| of_task).map_or(0, |task| task.acknowledged);
        let answered = Answered { session, xid, request, zxid: reply.zxid, answer: reply.answer, acknowledged };
        self.seen.push(Seen::Answered(Box::new(answered)));
        if is_last {
            self.session = None;
            (self.has_asked_to_end, self.zxid) = (false, 0);
            self.watches.clear();
        }
        if of_task {
            self.left -= 1;
            if self.left == 0 {
                self.end_task(Ended::Whole, outbox);
            }
        }
    }

    fn on_packet(&mut self, now: Time, number: u64, packet: super::stream::Packet, outbox: &mut OutboxOf<Self>) {
        let to = self.to();
        let ConnectionState::Up { connection, life, stream, .. } = &mut self.line else { return };
        if *connection != number {
            return;
        }
        let (segments, ack) = stream.hear(now, packet);
        outbox.sends.extend(ack.map(|packet| (to, Message::Up { connection: *connection, life: *life, packet })));
        for segment in segments {
            match segment {
                Segment::Frames { bytes, is_damaged } => {
                    for body in bodies(&bytes) {
                        self.on_frame(now, &body, is_damaged, outbox);
                    }
                }
                Segment::Last => self.hang_up(now, outbox),
            }
        }
    }

    fn on_tick(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let (to, timeout_ms) = (self.to(), self.session_timeout_ms());
        let wants_line = self.task.is_some() || self.session.is_some();
        match &mut self.line {
            ConnectionState::Down if wants_line && now >= self.dial_at => self.dial(now, outbox),
            ConnectionState::Down => {}
            ConnectionState::Dialing { since, .. } if since.after_ms(DIAL_MS) <= now => {
                self.server += 1;
                self.dial(now, outbox);
            }
            ConnectionState::Dialing { .. } => {}
            ConnectionState::Up { connection, life, stream, is_ready, .. } => {
                let again = stream.resend(now);
                outbox.sends.extend(again.into_iter().map(|packet| (to, Message::Up { connection: *connection, life: *life, packet })));
                let is_over = self.heard_at.after_ms(timeout_ms * PATIENCE_THIRDS / 3) <= now;
                let is_ready = *is_ready;
                if is_over || stream.is_dead() {
                    self.hang_up(now, outbox);
                } else if is_ready && self.said_at.after_ms(timeout_ms / 3) <= now {
                    self.ask(now, PING_XID, Request::Ping, false, outbox);
                }
            }
        }
        self.begin_task(now, outbox);
    }
}

/// Which watch a read that was answered so has set, and whether it waits for a node to be created.
pub fn watched(request: &Request, answer: &Result<Answer, ErrorCode>) -> Option<((WatchOn, String), bool)> {
    match request {
        Request::Exists { path, watch: true } => match answer {
            Ok(_) => Some(((WatchOn::Data, path.clone()), false)),
            Err(ErrorCode::NoNode) => Some(((WatchOn::Data, path.clone()), true)),
            Err(_) => None,
        },
        Request::GetData { path, watch: true } => answer.is_ok().then(|| ((WatchOn::Data, path.clone()), false)),
        Request::GetChildren { path, watch: true } | Request::GetChildren2 { path, watch: true } => {
            answer.is_ok().then(|| ((WatchOn::Children, path.clone()), false))
        }
        _ => None,
    }
}

impl Machine for SessionMachine {
    type Command = Task;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Ended;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(task) => {
                if task.moves || task.intrudes.is_some() {
                    self.hang_up(now, outbox);
                }
                self.begin_at = Some(now.after_ms(task.after_ms));
                self.task = Some(task);
                if let ConnectionState::Down = self.line {
                    self.dial(now, outbox);
                }
                self.begin_task(now, outbox);
            }
            Input::Message { from, message } => match message.into_inner() {
                Message::Accepted { connection, life }
                    if matches!(self.line, ConnectionState::Dialing { connection: own, .. } if own == connection) && from == self.to() =>
                {
                    self.line = ConnectionState::Up { connection, life, stream: OrderedStream::new(), is_ready: false, is_doubtful: false };
                    self.heard_at = now;
                    self.connect(now, outbox);
                }
                Message::Down { connection, packet } if from == self.to() => self.on_packet(now, connection, packet, outbox),
                Message::Reset(connection)
                    if from == self.to() && matches!(self.line, ConnectionState::Up { connection: own, .. } if own == connection) =>
                {
                    self.hang_up(now, outbox);
                }
                _ => {}
            },
            Input::Tick => self.on_tick(now, outbox),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let wants_line = self.task.is_some() || self.session.is_some();
        let of_line = match &self.line {
            ConnectionState::Down => wants_line.then_some(self.dial_at),
            ConnectionState::Dialing { since, .. } => Some(since.after_ms(DIAL_MS)),
            ConnectionState::Up { stream, is_ready, .. } => {
                let timeout_ms = self.session_timeout_ms();
                let gives_up = self.heard_at.after_ms(timeout_ms * PATIENCE_THIRDS / 3);
                let pings = if *is_ready { self.said_at.after_ms(timeout_ms / 3) } else { gives_up };
                [Some(gives_up), Some(pings), stream.deadline()].into_iter().flatten().min()
            }
        };
        let is_ready = matches!(self.line, ConnectionState::Up { is_ready: true, .. });
        [of_line, self.begin_at.filter(|_| is_ready)].into_iter().flatten().min()
    }
}
