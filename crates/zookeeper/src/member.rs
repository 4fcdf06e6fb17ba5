//! The core of a server among several: one thread that owns the machine ([`sentinel::ensemble`]), its disk and its clock.
//!
//! A turn takes what clients and other servers said, makes one durable write, and only then says what came of it. A server that has to
//! [begin anew](sentinel::ensemble::Turn::reopen) reads its disk again, as after a crash; its clients have been disconnected by then. One
//! that is found wrong repairs itself (`repair.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sentinel::ensemble::{Member, MemberOptions, Remedy, Snapshot, Turn, time};
use sentinel::order::{JournalOp, Options, Zxid};
use sentinel::{ConnectionId, Corruption, Input, Latency, Now, State};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::{Config, EnsembleConfig};
use crate::connection::{Counters, Event, Outgoing};
use crate::core::{StartError, drawn, measured, ms_since, server, wall_ms};
use crate::drill;
use crate::limits::{PEER_WAITING_MAX, SCRUB_EVERY, TURN_MAX};
use crate::member_storage::{MemberStorage, Opened, Place};
use crate::peers::{FromPeer, Link, Peers, places, resolve};
use crate::repair::Repairs;
use crate::storage::OpenError;

/// How long a server sleeps that has nothing to do at any time.
const FOREVER: Duration = Duration::from_secs(3_600);
/// How often the order says again what was not answered, in parts of its timeout.
const TICKS_A_TIMEOUT: u64 = 10;

/// The other servers.
pub(crate) struct Others {
    me: u16,
    voters: u16,
    id: u8,
    timeout_ms: u64,
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
        Ok((Self { me, voters, id, timeout_ms: ensemble.timeout_ms, links, heard }, peers.start(listener)))
    }
}

/// What servers must agree on of their digests: a leader that foresees none would have them compared by nobody.
fn digests(config: &Config) -> String {
    let detection = if config.is_realtime { "realtime" } else { "online" };
    format!("bezant.digest={} bezant.detection={detection}", config.profile.name())
}

/// Which server this is, as ZooKeeper has it: the file `myid` in the `dataDir`.
fn my_id(data: &std::path::Path) -> Result<u8, StartError> {
    let path = data.join("myid");
    let text = std::fs::read_to_string(&path);
    let id = text
        .map_err(|error| error.to_string())
        .and_then(|text| text.trim().parse().map_err(|_| format!("{:?} is no number from 0 to 255", text.trim())));
    id.map_err(|why| StartError::MyId { path, why: format!("{why}; it says the N of this server's server.N line, and nothing else") })
}

/// The machine and all that it owns.
pub(crate) struct MemberTurns {
    config: Config,
    others: Others,
    member: Member,
    /// Nothing while it is opened anew, as a disk is open once at a time, and where what is on the disk makes no sense.
    storage: Option<MemberStorage>,
    repairs: Repairs,
    clients: BTreeMap<ConnectionId, Arc<Outgoing>>,
    /// What clients asked that waits until less is under way.
    waiting: VecDeque<Event>,
    counters: Arc<Counters>,
    folders: [PathBuf; 2],
    started: Instant,
    /// What was found to be wrong is in a record, and what is done about it is decided.
    is_noticed: bool,
    syncs: Latency,
    snapshots: Latency,
    snapshot_began: Instant,
    /// Snapshots for other servers, as they are finished.
    offers: (mpsc::Sender<Offer>, mpsc::Receiver<Offer>),
}

type Offer = (Zxid, Result<Bytes, Corruption>);

/// What ended a run of turns.
enum End {
    Stopped,
    Reopen(&'static str),
    Repair(Remedy),
}

fn now_since(started: Instant) -> Now {
    Now { wall_ms: wall_ms(), steady_ms: i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX) }
}

impl MemberTurns {
    pub(crate) fn open(config: Config, counters: Arc<Counters>, others: Others) -> Result<Self, StartError> {
        let started = Instant::now();
        let mut repairs = Repairs::open(&config).map_err(StartError::Evidence)?;
        let (member, storage) = begin(&config, &others, &mut repairs, now_since(started))?;
        let folders = [config.data.clone(), config.log.clone()];
        let now = Instant::now();
        Ok(Self {
            config,
            others,
            member,
            storage,
            repairs,
            clients: BTreeMap::new(),
            waiting: VecDeque::new(),
            counters,
            folders,
            started,
            is_noticed: false,
            syncs: Latency::default(),
            snapshots: Latency::default(),
            snapshot_began: now,
            offers: mpsc::channel(1),
        })
    }

    pub(crate) fn run(mut self, mut inbox: mpsc::Receiver<Event>, mut stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(StartError::Threads)?;
        loop {
            match runtime.block_on(self.turns(&mut inbox, &mut stopping))? {
                End::Stopped => return Ok(self.storage.as_mut().map_or(Ok(()), MemberStorage::close)?),
                End::Reopen(why) => {
                    tracing::warn!(why, "this server begins anew from its disk");
                    self.storage.as_mut().map_or(Ok(()), MemberStorage::close)?;
                    self.begin_anew()?;
                }
                End::Repair(remedy) => {
                    if let Some(Err(error)) = self.storage.as_mut().map(MemberStorage::close) {
                        tracing::warn!(%error, "the log of a server that is repaired was not closed");
                    }
                    drop(self.storage.take());
                    if remedy == Remedy::Takeover {
                        self.repairs.put_aside(wall_ms()).map_err(StartError::Evidence)?;
                    }
                    self.begin_anew()?;
                }
            }
        }
    }

    /// Goes on from the disk, which is closed.
    fn begin_anew(&mut self) -> Result<(), StartError> {
        drop(self.storage.take());
        let now = self.now();
        (self.member, self.storage) = begin(&self.config, &self.others, &mut self.repairs, now)?;
        // Those that came meanwhile are not known to the machine.
        self.clients.values().for_each(|client| client.close());
        self.offers = mpsc::channel(1);
        self.is_noticed = false;
        Ok(())
    }

    async fn turns(&mut self, inbox: &mut mpsc::Receiver<Event>, stopping: &mut oneshot::Receiver<()>) -> Result<End, StartError> {
        let mut events = Vec::with_capacity(TURN_MAX);
        let mut peers = Vec::with_capacity(PEER_WAITING_MAX);
        let mut scrubbing = tokio::time::interval(SCRUB_EVERY);
        scrubbing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if let Some(end) = self.conclude()? {
                return Ok(end);
            }
            let may_take = self.waiting.is_empty() && !self.member.is_congested();
            let due = u64::try_from(self.member.deadline_ms() - self.now().steady_ms).unwrap_or(0);
            tokio::select! {
                biased;
                _ = &mut *stopping => return Ok(End::Stopped),
                count = self.others.heard.recv_many(&mut peers, PEER_WAITING_MAX) => {
                    if count == 0 {
                        return Ok(End::Stopped);
                    }
                }
                Some((zxid, written)) = self.offers.1.recv() => self.offer(zxid, written),
                _ = scrubbing.tick() => self.member.scrub(self.now()),
                count = inbox.recv_many(&mut events, TURN_MAX), if may_take => {
                    if count == 0 {
                        return Ok(End::Stopped);
                    }
                }
                // Last: what is overdue may have to wait for what others say.
                () = tokio::time::sleep(Duration::from_millis(due).min(FOREVER)) => {}
            }
            let now = self.now();
            for (from, message) in peers.drain(..) {
                self.member.hear(now, from, message);
            }
            self.waiting.extend(events.drain(..));
            self.take_waiting();
            if now.steady_ms >= self.member.deadline_ms() {
                self.member.tick(now);
            }
        }
    }

    fn now(&self) -> Now {
        now_since(self.started)
    }

    fn take_waiting(&mut self) {
        while !self.member.is_congested()
            && let Some(event) = self.waiting.pop_front()
        {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Opened { connection, peer, outgoing } => {
                self.clients.insert(connection, outgoing);
                self.member.client(now, Input::Opened { connection, peer });
            }
            Event::Inputs(inputs, _arrived, _counted) => {
                for input in inputs {
                    if let Input::Word { .. } = &input {
                        self.measure();
                    }
                    self.member.client(now, input);
                }
            }
            Event::Command { name, answer } => {
                self.measure();
                // Whoever asked may have stopped waiting.
                let _ = answer.try_send(self.member.server_mut().command(now, &name));
            }
            Event::Drill { order, answer } => {
                let done = match self.config.allows_drills {
                    true if order.starts_with("proposal") => {
                        self.member.damage_proposal();
                        "damaged: the next entry that this server proposes as the leader".to_owned()
                    }
                    true => {
                        let done = drill::carry_out(self.member.server_mut(), &self.folders, &order);
                        done.unwrap_or_else(|why| format!("refused: {why}"))
                    }
                    false => "refused: this server allows no drills; its file would have to say bezant.drills=true".to_owned(),
                };
                tracing::warn!(order, done, "a drill");
                let _ = answer.send(done);
            }
            Event::Closed(connection) => {
                self.clients.remove(&connection);
                self.member.client(now, Input::Closed { connection });
            }
        }
    }

    fn measure(&mut self) {
        let mut measured = measured(&self.folders, &self.counters, &self.syncs, &self.snapshots);
        measured.extend(self.repairs.fields());
        self.member.server_mut().on_measured(measured);
        self.member.show_others();
    }

    fn offer(&mut self, zxid: Zxid, written: Result<Bytes, Corruption>) {
        let now = self.now();
        match written {
            Ok(bytes) => self.member.offer(now, zxid, Some(bytes)),
            Err(corruption) => self.member.stop(now, corruption),
        }
    }

    /// Makes durable what is to be, and only then says what is to be said. Gives why the run ends, if it has to.
    fn conclude(&mut self) -> Result<Option<End>, StartError> {
        let now = self.now();
        match self.storage.as_mut().map_or(Ok(false), MemberStorage::check_snapshot) {
            Err(OpenError::Corrupt(corruption)) => self.member.stop(now, corruption),
            checked => {
                if checked? {
                    self.snapshots.add(ms_since(self.snapshot_began));
                }
            }
        }
        let every = self.config.snapshot_every;
        if self.storage.as_ref().is_some_and(|storage| storage.is_snapshot_due(every)) {
            self.member.begin_snapshot();
        }
        let Turn { journal, sends, bytes, close, snapshot, offer, notes, reopen, repair, repaired } = self.member.turn(now);
        // Without one the server is quarantined, and writes nothing.
        if let Some(storage) = &mut self.storage {
            for op in journal {
                if let JournalOp::Snapshot { .. } = op {
                    self.repairs.take_over(wall_ms()).map_err(StartError::Evidence)?;
                }
                storage.write(op)?;
            }
            let syncing = Instant::now();
            if storage.sync()? {
                self.syncs.add(ms_since(syncing));
            }
            if let Some(snapshot) = snapshot {
                self.snapshot_began = Instant::now();
                storage.begin_snapshot(snapshot)?;
            }
        }
        if let Some(offer) = offer {
            self.begin_offer(offer)?;
        }
        for note in notes {
            tracing::info!("{note}");
        }
        if let Some(repaired) = repaired {
            self.repairs.finish(repaired, wall_ms()).map_err(StartError::Evidence)?;
            self.member.show_repair(self.repairs.text());
        }
        self.notice()?;
        for (to, message) in sends {
            if let Some(link) = self.others.links.get(usize::from(to)) {
                link.put(&message);
            }
        }
        for (connection, bytes) in bytes {
            if let Some(client) = self.clients.get(&connection) {
                client.put(bytes);
            }
        }
        for connection in close {
            if let Some(client) = self.clients.get(&connection) {
                client.close();
            }
        }
        Ok(repair.map(End::Repair).or(reopen.map(End::Reopen)))
    }

    /// Keeps a record of what was found to be wrong, and has it repaired, where that may be.
    fn notice(&mut self) -> Result<(), StartError> {
        let Some(corruption) = self.member.server().corruption().filter(|_| !self.is_noticed) else { return Ok(()) };
        self.is_noticed = true;
        // What was found at the start is in a record already.
        if self.storage.is_some() {
            let state = self.member.server().state();
            self.repairs.notice(corruption, "serving", Some(state), wall_ms()).map_err(StartError::Evidence)?;
        }
        let remedy = self.member.remedy();
        if self.repairs.begin(remedy, wall_ms()).map_err(StartError::Evidence)? {
            self.member.repair(self.now());
        }
        self.member.show_repair(self.repairs.text());
        Ok(())
    }

    /// Writes a snapshot for other servers, beside the turns.
    fn begin_offer(&self, offer: Snapshot) -> Result<(), StartError> {
        let finished = self.offers.0.clone();
        let writing = std::thread::Builder::new().name("offer".to_owned()).spawn(move || {
            let bytes = offer.state.snapshot();
            // Nobody wants it any more once the server has begun anew.
            let _ = finished.blocking_send((offer.zxid, bytes));
        });
        writing.map(drop).map_err(StartError::Threads)
    }
}

/// Comes back from the disk, or is quarantined where what is on it makes no sense.
fn begin(config: &Config, others: &Others, repairs: &mut Repairs, now: Now) -> Result<(Member, Option<MemberStorage>), StartError> {
    repairs.resume(wall_ms()).map_err(StartError::Evidence)?;
    let (mut member, storage) = match come_back(config, others, repairs, now) {
        Ok((member, storage)) => (member, Some(storage)),
        Err(StartError::Open(error)) => {
            let corruption = error.damage().ok_or(error)?;
            repairs.notice(&corruption, "start", None, wall_ms()).map_err(StartError::Evidence)?;
            let (secret, seed) = drawn()?;
            let server = server(config, State::new(config.profile, seed), others.id, secret, now);
            let order = |source| OpenError::Order { log: config.log.clone(), snapshots: config.data.clone(), source };
            (Member::quarantined(member_options(others), others.voters, server, corruption, now).map_err(order)?, None)
        }
        Err(error) => return Err(error),
    };
    member.show_repair(repairs.text());
    Ok((member, storage))
}

fn member_options(others: &Others) -> MemberOptions {
    MemberOptions { me: others.me, timeout_ms: others.timeout_ms, first_stream: wall_ms().unsigned_abs() << 20 }
}

fn come_back(config: &Config, others: &Others, repairs: &mut Repairs, now: Now) -> Result<(Member, MemberStorage), StartError> {
    let (secret, seed) = drawn()?;
    let tick_ms = others.timeout_ms / TICKS_A_TIMEOUT;
    let options = Options { tick_ms, timeout_ms: others.timeout_ms, ..Options::default() };
    let place =
        Place { me: others.me, voters: others.voters, options, profile: config.profile, seed, has_given_up: repairs.has_given_up() };
    let opened = MemberStorage::open(&config.data, &config.log, config.snapshots_kept, place, time(now))?;
    let Opened { storage, replica, state, applied, output, damaged } = opened;
    let server = server(config, state, others.id, secret, now);
    let member = Member::new(member_options(others), replica, server, applied, output, now).map_err(OpenError::Corrupt)?;
    for (snapshot, corruption) in damaged {
        repairs.notice(&corruption, "start", None, wall_ms()).map_err(StartError::Evidence)?;
        repairs.put_snapshot_aside(&snapshot, wall_ms()).map_err(StartError::Evidence)?;
    }
    repairs.came_back(member.server().state(), wall_ms()).map_err(StartError::Evidence)?;
    let member = match repairs.uncompared() {
        Some(remedy) => member.to_be_compared(remedy),
        None => member,
    };
    let (state, order) = (member.server().state(), member.replica());
    tracing::info!(last = %order.last(), nodes = state.node_count(), digest = %state.checksum(), "came back from the disk");
    Ok((member, storage))
}
