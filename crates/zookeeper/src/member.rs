//! A server among several as a machine ([`sentinel::ensemble`] with its disk), and what drives it.
//!
//! A turn takes what clients and other servers said, makes one durable write, and only then says what came of it ([`machine::turn`]). When a server
//! goes on from its disk, its clients have been disconnected.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use machine::turn::{Bounds, NoSigner, Said, Turns};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use runtime::LogLimit;
use sentinel::ensemble::Message;
use sentinel::{Input as Asked, Now};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use types::{Party, ReplicaId, ShardId};

use crate::clients::{Clients, Told};
use crate::config::{Config, EnsembleConfig, ServerConfig};
use crate::connection::{Batch, Counters, Event};
use crate::core::{Drive, StartError, last_words, measured, now_of, sleep_for, time_of, time_since};
use crate::drill;
use crate::durable::{DurableMember, End, Offer, Part};
use crate::limits::{PEER_WAITING_MAX, SCRUB_EVERY, STRANGERS_LOGGED_A_MINUTE_MAX, TURN_MAX, WAITING_AT_CORE_MAX, WAITING_MAX};
use crate::measure::Walks;
use crate::peers::{FromPeer, Link, Peers, places, resolve};
use crate::storage::{LOG, PARTIAL, VOTERS};
use crate::waiting::Waiting;

/// The other servers.
pub(crate) struct Others {
    part: Part,
    links: Vec<Arc<Link>>,
    heard: mpsc::Receiver<FromPeer>,
}

impl Others {
    /// Finds this server among the others, and begins to listen for them. What runs ends when the tasks are dropped.
    pub(crate) async fn start(config: &mut Config, ensemble: &EnsembleConfig) -> Result<(Self, JoinSet<()>), StartError> {
        let id = my_id(&config.data)?;
        let servers = places(ensemble);
        let found = (0..).zip(&servers).find(|(_, server)| server.id == id);
        let (me, own) = found.ok_or_else(|| StartError::MyId {
            path: config.data.join("myid"),
            why: format!("it says {id}, and the file has no server.{id} line"),
        })?;
        keep_voters(&config.data, config.log.join(LOG).exists(), &servers)?;
        if let (None, Some((address, port))) = (config.listen, own.client) {
            config.listen = Some(SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port));
        }
        let failed = |source: io::Error| StartError::ListenForPeers { host: own.host.clone(), port: own.port, source };
        let address = match ensemble.listens_everywhere {
            true => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), own.port),
            false => resolve(&own.host, own.port).await.map_err(failed)?,
        };
        let (tell, heard) = mpsc::channel(PEER_WAITING_MAX);
        let peers = Peers::new(me, ensemble, &digests(config), tell)?;
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let voters = servers.iter().filter(|server| !server.observes).count();
        let voters = u16::try_from(voters).expect("a file with more than SERVERS_MAX servers is refused");
        let links = peers.links();
        let names = servers.iter().map(|server| format!("server {}", server.id)).collect();
        let part = Part { me, voters, id, timeout_ms: ensemble.timeout_ms, names };
        Ok((Self { part, links, heard }, peers.start(listener)))
    }
}

/// Servers go by their places among those that decide, in their logs and in what they say. So one that has run remembers which those are, and does not start
/// among others: it would take them for servers that have lost their disks, and no leader would ever come.
fn keep_voters(data: &Path, has_run: bool, servers: &[ServerConfig]) -> Result<(), StartError> {
    let path = data.join(VOTERS);
    let deciding = servers.iter().filter(|server| !server.observes).map(|server| server.id.to_string());
    let now = deciding.collect::<Vec<_>>().join(", ");
    match fs::read_to_string(&path) {
        Ok(before) if has_run && before.trim() != now => Err(StartError::OtherVoters { path, before: before.trim().to_owned(), now }),
        Ok(before) if before.trim() == now => Ok(()),
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StartError::Voters { path, source }),
        Ok(_) | Err(_) => {
            let partial = data.join(format!("{VOTERS}-{PARTIAL}"));
            let write = || {
                let mut file = File::create(&partial)?;
                file.write_all(format!("{now}\n").as_bytes())?;
                file.sync_all()?;
                fs::rename(&partial, &path)?;
                File::open(data)?.sync_all()
            };
            write().map_err(|source| StartError::Voters { path: path.clone(), source })
        }
    }
}

/// What servers must agree on of their digests: a leader that foresees none would have them compared by nobody.
fn digests(config: &Config) -> String {
    let detection = if config.is_realtime { "realtime" } else { "online" };
    format!("bezant.digest={} bezant.detection={detection}", config.profile.name())
}

/// Which server this is, as ZooKeeper has it: the file `myid` in the `dataDir`.
pub(crate) fn my_id(data: &std::path::Path) -> Result<u8, StartError> {
    let path = data.join("myid");
    let text = std::fs::read_to_string(&path);
    let id = text
        .map_err(|error| error.to_string())
        .and_then(|text| text.trim().parse().map_err(|_| format!("{:?} is no number from 0 to 255", text.trim())));
    id.map_err(|why| StartError::MyId { path, why: format!("{why}; it says the N of this server's server.N line, and nothing else") })
}

/// What the machine is told, beside what other servers say.
pub(crate) enum Command {
    /// Something of a client, or of an operator.
    Client(Event),
    /// A snapshot for other servers is finished.
    Offered(Offer),
}

/// One of several servers as a machine, with its disk ([`machine::turn`]).
pub(crate) struct MemberMachine {
    durable: DurableMember,
    counters: Arc<Counters>,
    walks: Walks,
    drills: LogLimit,
    /// What is left of a batch: the turn has done enough, or too much is under way.
    rest: Option<Batch>,
    /// Whether this turn has begun to do what clients ask: what other servers ask takes nothing of that.
    has_begun: bool,
    scrubs_at: Time,
    now: Time,
    /// Why it goes on from its disk with its next turn.
    ended: Option<End>,
    failure: Option<StartError>,
}

impl MemberMachine {
    /// Comes back from the disk.
    pub(crate) fn open(config: Config, part: Part, counters: Arc<Counters>, now: Time) -> Result<Self, StartError> {
        let walks = Walks::new([config.data.clone(), config.log.clone()]);
        let durable = DurableMember::open(config, part, now_of(now))?;
        let drills = LogLimit::new(STRANGERS_LOGGED_A_MINUTE_MAX);
        Ok(Self { durable, counters, walks, drills, rest: None, has_begun: false, scrubs_at: now, now, ended: None, failure: None })
    }

    /// Whether the member is gone, or will be when the turn is durable.
    fn is_ending(&self) -> bool {
        self.failure.is_some() || self.ended.is_some() || self.durable.is_ending()
    }

    fn is_congested(&self) -> bool {
        self.durable.member.is_congested()
    }

    /// Whether this turn takes more of what clients ask.
    fn may_take(&self) -> bool {
        self.rest.is_none() && (!self.has_begun || self.durable.member.server().may_do_more()) && !self.is_congested()
    }

    fn take(&mut self, now: Now, event: Event, outbox: &mut OutboxOf<Self>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.durable.member.server_mut().begin_turn();
        }
        match event {
            Event::Opened { connection, peer, .. } => self.durable.member.client(now, Asked::Opened { connection, peer }),
            Event::Inputs(Batch { connection, inputs, arrived, counted }) => {
                let mut inputs = inputs.into_iter();
                while self.may_take()
                    && let Some(input) = inputs.next()
                {
                    if let Asked::Word { word, .. } = &input
                        && self.durable.member.server().shows_measured(*word)
                    {
                        self.measure(now);
                    }
                    self.durable.member.client(now, input);
                }
                let inputs: Vec<Asked> = inputs.collect();
                if !inputs.is_empty() {
                    self.rest = Some(Batch { connection, inputs, arrived, counted });
                }
            }
            Event::Command { name, answer } => {
                self.measure(now);
                outbox.emit(Told::Command(answer, self.durable.member.server_mut().command(now, &name)));
            }
            Event::Drill { connection, order } => {
                let done = self.damage(&order);
                drill::log(&self.drills, &order, &done);
                outbox.emit(Told::Bytes(connection, drill::answer(done)));
                outbox.emit(Told::Close(connection));
            }
            Event::Closed(connection) => self.durable.member.client(now, Asked::Closed { connection }),
        }
    }

    fn damage(&mut self, order: &str) -> Result<String, String> {
        if order.starts_with("proposal") {
            self.durable.member.damage_proposal();
            return Ok("damaged: the next entry that this server proposes as the leader".to_owned());
        }
        drill::carry_out(self.durable.member.server_mut(), &self.walks.folders, order)
    }

    fn measure(&mut self, now: Now) {
        let mut measured = measured(&mut self.walks, now, &self.counters, &self.durable.syncs, &self.durable.snapshots);
        measured.extend(self.durable.repairs.fields());
        self.durable.member.server_mut().on_measured(measured);
        self.durable.member.show_others();
    }
}

impl Machine for MemberMachine {
    type Command = Command;
    type Received = Message;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.now = now;
        let at = now_of(now);
        match input {
            Input::Tick => {
                if let Some(end) = self.ended.take()
                    && let Err(failure) = self.durable.go_on(end, at)
                {
                    self.failure = Some(failure);
                }
            }
            // As if it had come before the member was gone, or was lost on its way.
            _ if self.is_ending() => {}
            Input::Command(Command::Client(event)) => self.take(at, event, outbox),
            Input::Command(Command::Offered(offer)) => self.durable.offer(at, offer),
            Input::Message { from: Party::Replica(from), message } => self.durable.member.hear(at, from.index, message),
            // Clients do not come this way.
            Input::Message { .. } => {}
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.has_begun = false;
        if self.is_ending() {
            return;
        }
        self.now = now;
        let at = now_of(now);
        if self.scrubs_at <= now {
            self.scrubs_at = now.after_ms(u64::try_from(SCRUB_EVERY.as_millis()).unwrap_or(u64::MAX));
            self.durable.member.scrub(at);
        }
        // Last: what is overdue may have to wait for what others say.
        if at.steady_ms >= self.durable.member.deadline_ms() {
            self.durable.member.tick(at);
        }
        let turn = self.durable.end_turn(at);
        turn.sends.into_iter().for_each(|(to, message)| outbox.send(party(to), message));
        turn.bytes.into_iter().for_each(|(connection, bytes)| outbox.emit(Told::Bytes(connection, bytes)));
        turn.close.into_iter().for_each(|connection| outbox.emit(Told::Close(connection)));
        if self.durable.is_ending() {
            outbox.emit(Told::CloseAll);
        }
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        if !self.is_ending() {
            let sends = self.durable.member.leave(now_of(now));
            sends.into_iter().for_each(|(to, message)| outbox.send(party(to), message));
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.ended.is_some() {
            return Some(Time(0));
        }
        // One that ends is called when that is durable.
        (!self.is_ending()).then(|| self.scrubs_at.min(time_of(self.durable.member.deadline_ms())))
    }
}

impl Durable for MemberMachine {
    type Failure = StartError;

    fn persist(&mut self) -> Result<(), StartError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.ended = self.durable.persist(now_of(self.now))?.or(self.ended.take());
        Ok(())
    }
}

fn party(server: u16) -> Party {
    Party::Replica(ReplicaId { shard: ShardId(0), index: server })
}

impl Drive for MemberDriver {
    async fn run(mut self, inbox: mpsc::Receiver<Event>, stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        self.turns(inbox, stopping).await?;
        let now = time_since(self.started);
        let last = self.turns.begin(now).stepped_last(now).persist()?.sign(&mut NoSigner);
        hand_on(last, &self.others.links, &mut self.clients);
        last_words(|| self.clients.have_all() && self.others.links.iter().all(|link| link.has_sent_all())).await;
        Ok(self.turns.into_machine().durable.close()?)
    }
}

/// Hands on what a turn said.
fn hand_on(said: Said<'_, MemberMachine>, links: &[Arc<Link>], clients: &mut Clients) {
    debug_assert!(said.own.is_empty(), "a server sends nothing to itself");
    for (to, message) in said.sends.drain(..) {
        if let Party::Replica(to) = to
            && let Some(link) = links.get(usize::from(to.index))
        {
            link.put(&message);
        }
    }
    said.events.drain(..).for_each(|told| clients.tell(told));
}

/// What a turn is given beside what clients ask.
struct Heard {
    /// What other servers said.
    peers: Vec<FromPeer>,
    /// A snapshot for them that is finished.
    offered: Option<Offer>,
}

/// Drives one of several servers.
pub(crate) struct MemberDriver {
    turns: Turns<MemberMachine>,
    others: Others,
    clients: Clients,
    /// What clients asked that waits for its turn, or until less is under way.
    waiting: Waiting,
    started: Instant,
}

impl MemberDriver {
    pub(crate) fn open(config: Config, counters: Arc<Counters>, others: Others) -> Result<Self, StartError> {
        let started = Instant::now();
        let machine = MemberMachine::open(config, others.part.clone(), counters, time_since(started))?;
        let turns = Turns::new(machine, party(others.part.me), Bounds::default());
        Ok(Self { turns, others, clients: Clients::default(), waiting: Waiting::default(), started })
    }

    async fn turns(&mut self, mut inbox: mpsc::Receiver<Event>, mut stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let mut heard = Heard { peers: Vec::with_capacity(PEER_WAITING_MAX), offered: None };
        while self.gather(&mut heard, &mut inbox, &mut stopping).await {
            self.turn(&mut heard)?;
            // Others of this thread have their turn.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Waits until there is something to do, and takes all that there is of it for one turn; false when there is nothing to do any more.
    async fn gather(&mut self, heard: &mut Heard, inbox: &mut mpsc::Receiver<Event>, stopping: &mut oneshot::Receiver<()>) -> bool {
        let is_congested = self.turns.machine().is_congested();
        let room = if is_congested { 0 } else { WAITING_AT_CORE_MAX.saturating_sub(self.waiting.len()).min(WAITING_MAX) };
        let goes_on = !self.waiting.is_empty() && !is_congested;
        let wait = sleep_for(self.turns.wakes_at(), time_since(self.started));
        let mut events = Vec::new();
        tokio::select! {
            biased;
            _ = stopping => return false,
            count = self.others.heard.recv_many(&mut heard.peers, PEER_WAITING_MAX) => {
                if count == 0 {
                    return false;
                }
            }
            offer = self.turns.machine_mut().durable.offered() => heard.offered = offer,
            count = inbox.recv_many(&mut events, room), if room > 0 => {
                if count == 0 {
                    return false;
                }
            }
            () = std::future::ready(()), if goes_on => {}
            () = tokio::time::sleep(wait) => {}
        }
        // Of all others too what there is: where one of them always has something, the rest would never be heard.
        while heard.peers.len() < PEER_WAITING_MAX
            && let Ok(said) = self.others.heard.try_recv()
        {
            heard.peers.push(said);
        }
        heard.offered = heard.offered.take().or_else(|| self.turns.machine_mut().durable.offered_by_now());
        while events.len() < room
            && let Ok(event) = inbox.try_recv()
        {
            events.push(event);
        }
        events.into_iter().for_each(|event| self.waiting.push(event));
        true
    }

    fn turn(&mut self, heard: &mut Heard) -> Result<(), StartError> {
        let now = time_since(self.started);
        let mut turn = self.turns.begin(now);
        if let Some(offer) = heard.offered.take() {
            turn.step(now, Input::Command(Command::Offered(offer)));
        }
        for (from, message) in heard.peers.drain(..) {
            turn.step(now, Input::Message { from: party(from), message });
        }
        let mut taken = 0;
        while taken < TURN_MAX
            && turn.machine().may_take()
            && let Some(event) = self.waiting.pop()
        {
            if self.clients.has_given_up(&event) {
                continue;
            }
            self.clients.note(&event);
            turn.step(now, Input::Command(Command::Client(event)));
            taken += 1;
        }
        hand_on(turn.stepped(now).persist()?.sign(&mut NoSigner), &self.others.links, &mut self.clients);
        if let Some(rest) = self.turns.machine_mut().rest.take() {
            self.waiting.push_rest(rest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
