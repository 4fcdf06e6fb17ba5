//! The core of a server among several: one thread that owns the machine ([`sentinel::ensemble`]), its disk and its clock.
//!
//! A turn takes what clients and other servers said, makes one durable write, and only then says what came of it (`durable.rs`). When a server goes on
//! from its disk, its clients have been disconnected.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sentinel::{ConnectionId, Input, Now};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::{Config, EnsembleConfig};
use crate::connection::{Counters, Event, Outgoing};
use crate::core::{StartError, measured, wall_ms};
use crate::drill;
use crate::durable::{DurableMember, End, Part};
use crate::limits::{PEER_WAITING_MAX, SCRUB_EVERY, TURN_MAX};
use crate::peers::{FromPeer, Link, Peers, places, resolve};

/// How long a server sleeps that has nothing to do at any time.
const FOREVER: Duration = Duration::from_secs(3_600);

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
        let part = Part { me, voters, id, timeout_ms: ensemble.timeout_ms };
        Ok((Self { part, links, heard }, peers.start(listener)))
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
    durable: DurableMember,
    others: Others,
    clients: BTreeMap<ConnectionId, Arc<Outgoing>>,
    /// What clients asked that waits until less is under way.
    waiting: VecDeque<Event>,
    counters: Arc<Counters>,
    folders: [PathBuf; 2],
    started: Instant,
}

/// What ended a run of turns.
enum Ended {
    Stopped,
    Begins(End),
}

fn now_since(started: Instant) -> Now {
    Now { wall_ms: wall_ms(), steady_ms: i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX) }
}

impl MemberTurns {
    pub(crate) fn open(config: Config, counters: Arc<Counters>, others: Others) -> Result<Self, StartError> {
        let started = Instant::now();
        let folders = [config.data.clone(), config.log.clone()];
        let durable = DurableMember::open(config, others.part, now_since(started))?;
        Ok(Self { durable, others, clients: BTreeMap::new(), waiting: VecDeque::new(), counters, folders, started })
    }

    pub(crate) fn run(mut self, mut inbox: mpsc::Receiver<Event>, mut stopping: oneshot::Receiver<()>) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(StartError::Threads)?;
        loop {
            match runtime.block_on(self.turns(&mut inbox, &mut stopping))? {
                Ended::Stopped => return Ok(self.durable.close()?),
                Ended::Begins(end) => {
                    let now = self.now();
                    self.durable.go_on(end, now)?;
                    // Those that came meanwhile are not known to the machine.
                    self.clients.values().for_each(|client| client.close());
                }
            }
        }
    }

    async fn turns(&mut self, inbox: &mut mpsc::Receiver<Event>, stopping: &mut oneshot::Receiver<()>) -> Result<Ended, StartError> {
        let mut events = Vec::with_capacity(TURN_MAX);
        let mut peers = Vec::with_capacity(PEER_WAITING_MAX);
        let mut scrubbing = tokio::time::interval(SCRUB_EVERY);
        scrubbing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if let Some(end) = self.conclude()? {
                return Ok(Ended::Begins(end));
            }
            let may_take = self.waiting.is_empty() && !self.durable.member.is_congested();
            let due = u64::try_from(self.durable.member.deadline_ms() - self.now().steady_ms).unwrap_or(0);
            let mut is_scrub_due = false;
            let mut offered = None;
            tokio::select! {
                biased;
                _ = &mut *stopping => return Ok(Ended::Stopped),
                count = self.others.heard.recv_many(&mut peers, PEER_WAITING_MAX) => {
                    if count == 0 {
                        return Ok(Ended::Stopped);
                    }
                }
                offer = self.durable.offered() => offered = offer,
                _ = scrubbing.tick() => is_scrub_due = true,
                count = inbox.recv_many(&mut events, TURN_MAX), if may_take => {
                    if count == 0 {
                        return Ok(Ended::Stopped);
                    }
                }
                // Last: what is overdue may have to wait for what others say.
                () = tokio::time::sleep(Duration::from_millis(due).min(FOREVER)) => {}
            }
            let now = self.now();
            if let Some(offer) = offered {
                self.durable.offer(now, offer);
            }
            if is_scrub_due {
                self.durable.member.scrub(now);
            }
            for (from, message) in peers.drain(..) {
                self.durable.member.hear(now, from, message);
            }
            self.waiting.extend(events.drain(..));
            self.take_waiting();
            if now.steady_ms >= self.durable.member.deadline_ms() {
                self.durable.member.tick(now);
            }
        }
    }

    fn now(&self) -> Now {
        now_since(self.started)
    }

    fn take_waiting(&mut self) {
        while !self.durable.member.is_congested()
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
                self.durable.member.client(now, Input::Opened { connection, peer });
            }
            Event::Inputs(inputs, _arrived, _counted) => {
                for input in inputs {
                    if let Input::Word { .. } = &input {
                        self.measure();
                    }
                    self.durable.member.client(now, input);
                }
            }
            Event::Command { name, answer } => {
                self.measure();
                // Whoever asked may have stopped waiting.
                let _ = answer.try_send(self.durable.member.server_mut().command(now, &name));
            }
            Event::Drill { order, answer } => {
                let done = match self.durable.config().allows_drills {
                    true if order.starts_with("proposal") => {
                        self.durable.member.damage_proposal();
                        "damaged: the next entry that this server proposes as the leader".to_owned()
                    }
                    true => {
                        let done = drill::carry_out(self.durable.member.server_mut(), &self.folders, &order);
                        done.unwrap_or_else(|why| format!("refused: {why}"))
                    }
                    false => "refused: this server allows no drills; its file would have to say bezant.drills=true".to_owned(),
                };
                tracing::warn!(order, done, "a drill");
                let _ = answer.send(done);
            }
            Event::Closed(connection) => {
                self.clients.remove(&connection);
                self.durable.member.client(now, Input::Closed { connection });
            }
        }
    }

    fn measure(&mut self) {
        let mut measured = measured(&self.folders, &self.counters, &self.durable.syncs, &self.durable.snapshots);
        measured.extend(self.durable.repairs.fields());
        self.durable.member.server_mut().on_measured(measured);
        self.durable.member.show_others();
    }

    /// Makes durable what is to be, and only then says what is to be said. Gives why the run ends, if it has to.
    fn conclude(&mut self) -> Result<Option<End>, StartError> {
        let now = self.now();
        let mut turn = self.durable.write(now)?;
        let end = self.durable.sync(&mut turn, now)?;
        for (to, message) in turn.sends {
            if let Some(link) = self.others.links.get(usize::from(to)) {
                link.put(&message);
            }
        }
        for (connection, bytes) in turn.bytes {
            if let Some(client) = self.clients.get(&connection) {
                client.put(bytes);
            }
        }
        for connection in turn.close {
            if let Some(client) = self.clients.get(&connection) {
                client.close();
            }
        }
        Ok(end)
    }
}
