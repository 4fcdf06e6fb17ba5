//! A server: the machine that real servers run, with what `zookeeper` has around it (`member.rs`, `peers.rs`, `connection.rs`): a disk, a clock,
//! connections to clients and to other servers, and snapshots that are written beside the turns.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ::sentinel::ensemble::{Member, MemberOptions, Snapshot, TurnOutput};
use ::sentinel::order::{Status, Zxid};
use ::sentinel::transactions::{self, Answer, Question};
use ::sentinel::{ConnectionId, Input as ServerInput, Now, Peer, Settings};
use bytes::Bytes;
use crypto::Verified;
use jute::{ConnectRequest, Numbered, Reader};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use random::Random;
use store::{Memory, StoreError};
use types::{Cluster, Party, ReplicaId};

use super::damage::Injection;
use super::disk::{Disk, Opened, ServerIdentity};
use super::expiry::ExpiryWatch;
use super::link::Link;
use super::message::{Message, Report, frames};
use super::stream::{OrderedStream, Packet, Segment};
use super::{Nothing, ServerOptions};

/// How many of the tree's shards are hashed anew at once: a world does not last as long as all of them take one by one.
const SCRUBBED_AT_ONCE: usize = 256;

/// When who is refused for want of room is to come again, in milliseconds.
const BUSY_MS: u32 = 100;

/// A connection to a client.
struct ClientConnection {
    id: ConnectionId,
    stream: OrderedStream,
    has_begun: bool,
    is_last_said: bool,
}

/// What is written beside the turns, and when it is done.
struct Writing {
    done_at: Time,
    snapshot: Snapshot,
    segment: u64,
}

/// What of a process is gone when it begins anew from its disk.
struct Running {
    member: Member,
    disk: Disk,
    connections: BTreeMap<(Party, u64), ClientConnection>,
    by_id: BTreeMap<ConnectionId, (Party, u64)>,
    /// What clients asked that waits until less is under way.
    waiting: VecDeque<ServerInput>,
    writing: Option<Writing>,
    offers: Vec<(Time, Snapshot)>,
    injection: Injection,
    expiry: ExpiryWatch,
    is_stopped: bool,
    reopens: bool,
}

/// A server.
pub struct Server {
    cluster: Arc<Cluster>,
    me: ReplicaId,
    voters: u16,
    options: ServerOptions,
    medium: (Memory, store::Options),
    random: Random,
    /// Nothing where its disk makes another state than before, and it does not start.
    running: Option<Running>,
    refused: Option<String>,
    life: u64,
    next_connection: u64,
    /// The last connection that each client's process had here.
    dialed: BTreeMap<Party, u64>,
    /// The number of what each process of another server said last. Which process came first, their clocks do not tell.
    heard: BTreeMap<(u16, u64), u64>,
    said: BTreeMap<u16, u64>,
    /// The connections to the engine's clients, and what these asked that waits until less is under way.
    links: BTreeMap<Party, Link>,
    questions: VecDeque<(Party, u64, Question)>,
    scrub_at: Time,
    now: Time,
    delivered: Zxid,
    reports: Vec<Report>,
}

fn now_of(time: Time) -> Now {
    let ms = i64::try_from(time.0 / 1_000_000).unwrap_or(i64::MAX);
    Now { wall_ms: ms, steady_ms: ms }
}

impl Server {
    pub(in crate::sentinel) fn open(
        cluster: &Arc<Cluster>,
        me: ReplicaId,
        options: ServerOptions,
        medium: (&Memory, store::Options),
        now: Time,
    ) -> Result<Self, String> {
        let voters = u16::try_from(cluster.replicas_per_shard()).expect("there are few");
        let mut server = Self {
            cluster: cluster.clone(),
            me,
            voters,
            options,
            medium: (medium.0.clone(), medium.1),
            random: Random::stream(now.0, &format!("server {me}")),
            running: None,
            refused: None,
            life: now.0,
            next_connection: 0,
            dialed: BTreeMap::new(),
            heard: BTreeMap::new(),
            said: BTreeMap::new(),
            links: BTreeMap::new(),
            questions: VecDeque::new(),
            scrub_at: now.after_ms(options.scrub_ms),
            now,
            delivered: Zxid::default(),
            reports: Vec::new(),
        };
        server.come_back(now)?;
        Ok(server)
    }

    /// Comes back from the disk. A disk that cannot be read is an error; one that makes another state than before is that of a server that does
    /// not start.
    fn come_back(&mut self, now: Time) -> Result<(), String> {
        let ServerOptions { order, kept_snapshots, damage, .. } = self.options;
        let identity = ServerIdentity { me: self.me.index, voters: self.voters, options: order, kept: kept_snapshots, seed: now.0 };
        let Opened { disk, replica, state, applied, output, is_damaged } = Disk::open(&self.medium.0, self.medium.1, identity, now)?;
        let clock = now_of(now);
        let server = ::sentinel::Server::new(state, self.settings(now), clock);
        let options = MemberOptions { me: self.me.index, timeout_ms: order.timeout_ms, first_stream: clock.wall_ms.unsigned_abs() << 20 };
        self.delivered = Zxid::default();
        match Member::new(options, replica, server, applied, output, clock) {
            Ok(member) => {
                let injection = Injection::new(damage, is_damaged, now, &mut self.random);
                self.running = Some(Running {
                    member,
                    disk,
                    connections: BTreeMap::new(),
                    by_id: BTreeMap::new(),
                    waiting: VecDeque::new(),
                    writing: None,
                    offers: Vec::new(),
                    injection,
                    expiry: ExpiryWatch::default(),
                    is_stopped: false,
                    reopens: false,
                });
            }
            Err(corruption) => {
                self.running = None;
                self.refused = Some(corruption.to_string());
                self.reports.push(Report::Stopped(format!("at the start: {corruption}")));
            }
        }
        Ok(())
    }

    fn settings(&self, now: Time) -> Settings {
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&now.0.to_le_bytes());
        secret[8] = u8::try_from(self.me.index).expect("there are few");
        Settings {
            server_id: u8::try_from(self.me.index + 1).expect("there are few"),
            timeout_ms_min: 100,
            timeout_ms_max: self.options.session_ms_max,
            reap_every_ms: 700,
            words: None,
            superuser: None,
            secret,
            configuration: Vec::new(),
        }
    }

    pub(in crate::sentinel) fn close(&mut self) -> Result<(), String> {
        self.running.as_mut().map_or(Ok(()), |running| running.disk.close()).map_err(|error| error.to_string())
    }

    pub(in crate::sentinel) fn is_pending(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.disk.is_pending())
    }

    pub(in crate::sentinel) fn is_member(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.member.replica().is_member())
    }

    /// What its state comes to, computed anew, after which entry.
    fn state(&self) -> Option<(Zxid, ::sentinel::Checksum)> {
        let member = &self.running.as_ref()?.member;
        Some((member.replica().delivered(), member.server().state().recomputed_checksum()))
    }

    /// All that are whole have the same state.
    pub(in crate::sentinel) fn differences(replicas: &[(ReplicaId, &Self)]) -> Vec<String> {
        let Some(((first, one), others)) = replicas.split_first() else { return Vec::new() };
        let differing = others.iter().filter(|(_, other)| other.state() != one.state());
        differing.map(|(id, other)| format!("{first} has {:?}, and {id} {:?}", one.state(), other.state())).collect()
    }

    /// Why it is not done with what it does.
    pub(in crate::sentinel) fn unready(&self) -> Vec<String> {
        let Some(running) = &self.running else { return vec![format!("it does not start: {:?}", self.refused)] };
        let (replica, server) = (running.member.replica(), running.member.server());
        if let Some(corruption) = server.corruption() {
            return vec![corruption.to_string()];
        }
        if server.state().checksum() != server.state().recomputed_checksum() {
            return vec!["its state has another digest than it says".to_owned()];
        }
        let is_ready = replica.status() != Status::Looking && replica.delivered() == replica.last();
        if is_ready {
            return Vec::new();
        }
        vec![format!("{:?}, delivered {} of {}", replica.status(), replica.delivered(), replica.last())]
    }

    // Inputs.

    fn on_message(&mut self, now: Time, from: Party, message: Message, outbox: &mut OutboxOf<Self>) {
        match (from, message) {
            (Party::Replica(from), Message::Peer { life, number, message }) => {
                let is_next = self.heard.get(&(from.index, life)).is_none_or(|before| *before < number);
                if !is_next && self.options.has_ordered_links {
                    return;
                }
                self.heard.insert((from.index, life), number);
                if let Some(running) = &mut self.running {
                    running.expiry.hear(&message, now);
                    running.member.hear(now_of(now), from.index, message);
                }
            }
            (Party::Client(..), Message::Hello) => outbox.send(from, Message::Welcome { life: self.life }),
            (Party::Client(..), Message::Engine { life, number, message }) if life == self.life => {
                let is_new = self.links.entry(from).or_default().takes((life, number));
                if let (true, transactions::Message::Question { number, question }) = (is_new, message) {
                    self.on_question(now, from, number, question, outbox);
                }
            }
            // It was for a process that is no more.
            (Party::Client(..), Message::Engine { .. }) => outbox.send(from, Message::Welcome { life: self.life }),
            (Party::Client(..), Message::Dial(connection))
                if self.running.is_some() && self.dialed.get(&from).is_none_or(|last| *last < connection) =>
            {
                outbox.send(from, Message::Accepted { connection, life: self.life });
            }
            (Party::Client(..), Message::Up { connection, life, packet }) => self.on_packet(now, from, (connection, life), packet, outbox),
            (Party::Client(..), Message::Reset(connection)) => {
                if let Some(running) = &mut self.running {
                    running.drop_line(from, connection);
                }
            }
            _ => {}
        }
    }

    fn on_packet(&mut self, now: Time, from: Party, (connection, life): (u64, u64), packet: Packet, outbox: &mut OutboxOf<Self>) {
        let Some(running) = &mut self.running else { return };
        let is_new = life == self.life && self.dialed.get(&from).is_none_or(|last| *last < connection);
        if is_new {
            self.dialed.insert(from, connection);
            self.next_connection += 1;
            let id = ConnectionId(self.next_connection);
            let line = ClientConnection { id, stream: OrderedStream::new(), has_begun: false, is_last_said: false };
            running.connections.insert((from, connection), line);
            running.by_id.insert(id, (from, connection));
            let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
            running.waiting.push_back(ServerInput::Opened { connection: id, peer });
        }
        let Some(line) = running.connections.get_mut(&(from, connection)).filter(|_| life == self.life) else {
            outbox.send(from, Message::Reset(connection));
            return;
        };
        let (segments, ack) = line.stream.hear(now, packet);
        for bytes in segments.into_iter().filter_map(|segment| if let Segment::Frames { bytes, .. } = segment { Some(bytes) } else { None })
        {
            for body in bodies(&bytes) {
                let input = match std::mem::replace(&mut line.has_begun, true) {
                    true => ServerInput::Request { connection: line.id, request: Numbered::decode(&body) },
                    false => {
                        let request = ConnectRequest::decode(&body).expect("clients begin with what begins a session");
                        ServerInput::Connect { connection: line.id, request }
                    }
                };
                running.waiting.push_back(input);
            }
        }
        let ack = ack.filter(|_| !line.is_last_said);
        outbox.sends.extend(ack.map(|ack| (from, Message::Down { connection, packet: ack })));
    }

    // What the engine's clients ask: as `zookeeper`'s `replica.rs` has it.

    fn on_question(&mut self, now: Time, from: Party, number: u64, question: Question, outbox: &mut OutboxOf<Self>) {
        if self.questions.len() >= self.options.questions_max {
            self.answer(from, number, Answer::Busy { after_ms: BUSY_MS }, outbox);
            return;
        }
        self.questions.push_back((from, number, question));
        self.take_questions(now);
    }

    fn take_questions(&mut self, now: Time) {
        let Some(running) = self.running.as_mut().filter(|running| !running.reopens) else { return };
        while !running.member.is_congested()
            && let Some((from, number, question)) = self.questions.pop_front()
        {
            let rights = if let Party::Client(client, _) = from { self.cluster.permission(client) } else { None };
            running.member.ask(now_of(now), from, rights, number, question);
        }
    }

    fn answer(&mut self, to: Party, number: u64, answer: Answer, outbox: &mut OutboxOf<Self>) {
        let link = self.links.entry(to).or_default();
        let message = transactions::Message::Answer { number, answer };
        outbox.send(to, Message::Engine { life: self.life, number: link.next(), message });
    }

    // The end of a turn.

    /// As `conclude` of the real shell has it.
    fn conclude(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let clock = now_of(now);
        self.take_questions(now);
        let Some(running) = &mut self.running else { return };
        if now >= self.scrub_at {
            self.scrub_at = now.after_ms(self.options.scrub_ms);
            (0..SCRUBBED_AT_ONCE).for_each(|_| running.member.scrub(clock));
        }
        if let Some(what) = running.injection.inject(now, &mut running.member, &mut self.random) {
            running.disk.note_damage();
            self.reports.push(Report::Damaged(what));
        }
        running.take_waiting(clock);
        if clock.steady_ms >= running.member.deadline_ms() {
            running.member.tick(clock);
        }
        running.finish_writing(now, &mut self.reports);
        let is_due = running.writing.is_none() && running.disk.records_since() >= self.options.snapshot_every;
        if is_due {
            running.member.begin_snapshot();
        }
        // Nobody here is told to repair itself.
        let TurnOutput { journal, sends, bytes, close, snapshot, offer, reopen, notes: _, repair: _, repaired: _, answers } =
            running.member.turn(clock);
        running.expiry.look(&running.member, now, &mut self.reports);
        for op in journal {
            running.disk.write(op);
        }
        if let Some(snapshot) = snapshot {
            let done_at = now.after_ms(self.random.pick(&[0, 1, 20, 300]));
            // Its part of the log has its number once it is written.
            running.writing = Some(Writing { done_at, snapshot, segment: u64::MAX });
        }
        if let Some(offer) = offer {
            running.offers.push((now.after_ms(self.random.pick(&[0, 1, 20, 300])), offer));
        }
        say_to_servers(sends, self.me, self.life, &mut self.said, outbox);
        running.say(now, bytes, close, outbox);
        running.note_corruption(&mut self.reports);
        if let Some(why) = reopen {
            self.reports.push(Report::Reopens(why.to_owned()));
            running.reopens = true;
        }
        let delivered = running.member.replica().delivered();
        if delivered > self.delivered {
            self.delivered = delivered;
            self.reports.push(Report::Delivered(delivered));
        }
        for (to, number, answer) in answers {
            self.answer(to, number, answer, outbox);
        }
    }
}

/// Numbers what goes to other servers, in the order in which it is said.
fn say_to_servers(
    sends: Vec<(u16, ::sentinel::ensemble::Message)>,
    me: ReplicaId,
    life: u64,
    said: &mut BTreeMap<u16, u64>,
    outbox: &mut OutboxOf<Server>,
) {
    for (to, message) in sends {
        let number = said.entry(to).or_default();
        *number += 1;
        outbox.send(Party::Replica(ReplicaId { index: to, ..me }), Message::Peer { life, number: *number, message });
    }
}

/// The bodies of whole frames.
pub(super) fn bodies(bytes: &Bytes) -> Vec<Bytes> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while reader.remaining() > 0 {
        found.push(reader.buffer().expect("frames are whole").unwrap_or_default());
    }
    found
}

impl Running {
    fn drop_line(&mut self, client: Party, connection: u64) {
        if let Some(line) = self.connections.remove(&(client, connection)) {
            self.by_id.remove(&line.id);
            self.waiting.push_back(ServerInput::Closed { connection: line.id });
        }
    }

    fn take_waiting(&mut self, clock: Now) {
        while !self.member.is_congested()
            && let Some(input) = self.waiting.pop_front()
        {
            self.member.client(clock, input);
        }
    }

    /// Takes in the snapshots that are finished by now.
    fn finish_writing(&mut self, now: Time, reports: &mut Vec<Report>) {
        if let Some(Writing { segment, .. }) = &mut self.writing
            && *segment == u64::MAX
        {
            *segment = self.disk.part().1;
        }
        if let Some(writing) = self.writing.take_if(|writing| writing.done_at <= now && writing.segment != u64::MAX) {
            match writing.snapshot.state.snapshot() {
                Ok(bytes) => self.disk.write_snapshot((writing.snapshot.zxid, writing.segment), bytes),
                Err(corruption) => self.member.stop(now_of(now), corruption),
            }
        }
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.offers).into_iter().partition(|(at, _)| *at <= now);
        self.offers = waiting;
        for (_, Snapshot { zxid, state }) in done {
            match state.snapshot() {
                Ok(bytes) => self.member.offer(now_of(now), zxid, Some(bytes)),
                Err(corruption) => self.member.stop(now_of(now), corruption),
            }
        }
        self.note_corruption(reports);
    }

    fn note_corruption(&mut self, reports: &mut Vec<Report>) {
        if let Some(corruption) = self.member.server().corruption().filter(|_| !self.is_stopped) {
            reports.push(Report::Stopped(corruption.to_string()));
            self.is_stopped = true;
        }
    }

    /// Sends what is for clients, and ends the connections that are to be closed.
    fn say(
        &mut self,
        now: Time,
        bytes: BTreeMap<ConnectionId, Vec<u8>>,
        close: std::collections::BTreeSet<ConnectionId>,
        outbox: &mut OutboxOf<Server>,
    ) {
        let is_damaged = self.injection.has_damaged();
        let said = bytes.into_iter().map(|(id, bytes)| (id, frames(bytes, is_damaged)));
        let ended = close.into_iter().map(|id| (id, Segment::Last));
        for (id, segment) in said.chain(ended) {
            let Some(key) = self.by_id.get(&id).copied() else { continue };
            let Some(line) = self.connections.get_mut(&key).filter(|line| !line.is_last_said) else { continue };
            if segment == Segment::Last {
                line.is_last_said = true;
                self.waiting.push_back(ServerInput::Closed { connection: id });
            }
            let packet = line.stream.send(now, segment);
            outbox.send(key.0, Message::Down { connection: key.1, packet });
        }
        let mut dead = Vec::new();
        for (key, line) in &mut self.connections {
            for packet in line.stream.resend(now) {
                outbox.send(key.0, Message::Down { connection: key.1, packet });
            }
            if line.stream.is_dead() || (line.is_last_said && line.stream.deadline().is_none()) {
                dead.push(*key);
            }
        }
        dead.into_iter().for_each(|(client, connection)| self.drop_line(client, connection));
    }

    fn deadline(&self) -> Time {
        let of_member = self.member.deadline_ms();
        let of_member = if of_member == i64::MAX { u64::MAX } else { of_member.unsigned_abs().saturating_mul(1_000_000) };
        let connections = self.connections.values().filter_map(|line| line.stream.deadline());
        let writing = self.writing.as_ref().map(|writing| writing.done_at);
        let offers = self.offers.iter().map(|(at, _)| *at);
        let all = connections.chain(writing).chain(offers).chain(self.injection.deadline());
        all.min().unwrap_or(Time(u64::MAX)).min(Time(of_member))
    }
}

impl Machine for Server {
    type Command = Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Nothing;
    type Event = Infallible;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.now = now;
        match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.on_message(now, from, message.into_inner(), outbox),
            Input::Tick => {}
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.conclude(now, outbox);
        let me = Party::Replica(self.me);
        for report in std::mem::take(&mut self.reports) {
            outbox.send(me, Message::Report(report));
        }
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.reopens) {
            say_to_servers(running.member.leave(now_of(now)), self.me, self.life, &mut self.said, outbox);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let running = self.running.as_ref()?;
        Some(running.deadline().min(self.scrub_at))
    }
}

impl Durable for Server {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        running.disk.persist()?;
        if running.reopens {
            running.disk.close()?;
            self.running = None;
            if let Err(why) = self.come_back(self.now) {
                self.reports.push(Report::Broken(format!("it cannot come back from its disk: {why}")));
                self.refused = Some(why);
            }
        }
        Ok(())
    }
}
