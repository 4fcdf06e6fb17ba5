//! A replica of the engine `sentinel`: one of several servers, driven by a node's loop ([`machine::turn`]).
//!
//! What its folders hold is what a server for ZooKeeper's clients has (`member_storage.rs`), and it repairs itself as such a server does. Other
//! replicas and clients come over the node's own connections ([`sentinel::transactions`]).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crypto::Verified;
use engine::{Instruction, Misbehavior, Statistics};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use sentinel::order::Status;
use sentinel::transactions::{Answer, Message, Question, Unsigned, path_of};
use sentinel::{Damage, Now};
use store::{Disk, DiskOptions, StorageBackend as _, StoreError};
use types::{Cluster, Party, ReplicaId, ShardId};

use crate::config::{Config, EnsembleConfig};
use crate::core::StartError;
use crate::durable::{DurableMember, Part};
use crate::limits::{ENGINE_TURN_NODES_MAX, ENGINE_WAITING_BYTES_MAX, ENGINE_WAITING_MAX, REPAIRS_AN_HOUR, SCRUB_EVERY};
use crate::member_storage::MemberStorage;
use crate::storage::{LOG, OpenError, SNAPSHOTS, failed, is_empty, note_begun};

/// After so long without a word, in milliseconds, another leader is looked for.
const TIMEOUT_MS: u64 = 1_000;
/// After so many entries a snapshot is taken.
const SNAPSHOT_EVERY: u64 = 100_000;
const SNAPSHOTS_KEPT: usize = 3;
/// How often containers and nodes past their time are deleted.
const REAP_EVERY_MS: i64 = 60_000;
/// When who is refused for want of room is to come again, in milliseconds.
const BUSY_MS: u32 = 100;
/// The file that says that this replica lost what it held before.
const LOST: &str = "lost";

/// Which replica it is, of whom, and where its data are.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// Its cluster.
    pub cluster: Arc<Cluster>,
    /// Which replica of it.
    pub me: ReplicaId,
    /// Where its data are: the folder was made for it.
    pub data: PathBuf,
    /// Whose data these are.
    pub owner: String,
}

/// What a replica tells its own side: nothing.
pub type Event = Infallible;

/// One replica's process as a machine.
pub struct Replica {
    cluster: Arc<Cluster>,
    me: ReplicaId,
    durable: DurableMember,
    /// The folder, which is its own while it runs.
    _folder: Disk,
    /// The file that says that it lost what it held, until it counts again.
    lost: Option<PathBuf>,
    /// What clients asked that waits until less is under way.
    waiting: VecDeque<(Party, u64, Question, usize)>,
    waiting_bytes: usize,
    /// How many nodes were looked at for clients in this turn.
    turn_nodes: usize,
    turned_away: u64,
    scrubs_at: Time,
    now: Time,
}

fn config(data: &Path) -> Config {
    Config {
        listen: None,
        secure: None,
        admin: None,
        data: data.to_owned(),
        log: data.to_owned(),
        timeout_ms_min: sentinel::limits::ENGINE_SESSION_MS,
        timeout_ms_max: sentinel::limits::ENGINE_SESSION_MS,
        connections_an_address_max: 0,
        connections_max: 0,
        frame_bytes_max: 0,
        snapshot_every: SNAPSHOT_EVERY,
        snapshots_kept: SNAPSHOTS_KEPT,
        reap_every_ms: REAP_EVERY_MS,
        words: None,
        superuser: None,
        superuser_certificate: None,
        enforces_quotas: false,
        allows_drills: false,
        is_realtime: true,
        profile: sentinel::Profile::default(),
        ensemble: Some(EnsembleConfig {
            servers: Vec::new(),
            key: PathBuf::new(),
            timeout_ms: TIMEOUT_MS,
            repairs_an_hour_max: REPAIRS_AN_HOUR,
            listens_everywhere: false,
        }),
        warnings: Vec::new(),
    }
}

/// The time as the machine has it: the loop's clock never goes back.
fn now_of(now: Time) -> Now {
    let ms = i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX);
    Now { wall_ms: ms, steady_ms: ms }
}

fn time_of(ms: i64) -> Time {
    Time(ms.unsigned_abs().saturating_mul(1_000_000))
}

/// A folder that was used had a log and snapshots. Where neither is there any more, the log is noted as begun, so that it is missed.
fn note_lost_log(data: &Path, was_used: bool) -> Result<(), OpenError> {
    let snapshots = data.join(SNAPSHOTS);
    if !was_used || !is_empty(&snapshots)? || !is_empty(&data.join(LOG))? {
        return Ok(());
    }
    fs::create_dir_all(&snapshots).map_err(failed("make", &snapshots))?;
    note_begun(&snapshots)
}

impl Replica {
    /// Comes back from its disk.
    ///
    /// # Errors
    /// When the disk, or what is on it, cannot be used.
    pub fn open(options: ReplicaOptions, now: Time) -> Result<Self, StartError> {
        let ReplicaOptions { cluster, me, data, owner } = options;
        let mut folder = Disk::open(&data, &owner, DiskOptions::default())?;
        // Not before it is open: that says best what is wrong with a folder, and what to do.
        note_lost_log(&data, !Disk::is_unused(&data, &owner)?)?;
        let voters = u16::try_from(cluster.replicas_per_shard()).expect("SHARD_REPLICAS_MAX fits in u16");
        let id = u8::try_from(me.index).expect("SHARD_REPLICAS_MAX fits in u8");
        let names = (0..voters).map(|index| ReplicaId { index, ..me }.to_string()).collect();
        let part = Part { me: me.index, voters, id, timeout_ms: TIMEOUT_MS, names };
        let durable = DurableMember::open(config(&data), part, now_of(now))?;
        folder.opened()?;
        let lost = Some(data.join(LOST)).filter(|lost| lost.exists());
        Ok(Self {
            cluster,
            me,
            durable,
            _folder: folder,
            lost,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            turn_nodes: 0,
            turned_away: 0,
            scrubs_at: now,
            now,
        })
    }

    /// Makes the folder of a replica that lost its data: it begins with an empty disk, and takes over what the others hold.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn mark_lost(data: &Path) -> Result<(), StoreError> {
        let lost = data.join(LOST);
        let failed = |source| StoreError::Io { doing: format!("write {}", lost.display()), source };
        fs::File::create(&lost).and_then(|file| file.sync_all()).and_then(|()| fs::File::open(data)?.sync_all()).map_err(failed)
    }

    /// Whether a replica's folder is as it was made, for one that had nothing before.
    ///
    /// # Errors
    /// When that cannot be told: nothing is there, another's, or it is damaged.
    pub fn is_unused(data: &Path, owner: &str) -> Result<bool, StoreError> {
        Ok(Disk::is_unused(data, owner)? && !data.join(LOST).exists())
    }

    /// Reads all that a replica has on its disk, as its start would.
    ///
    /// # Errors
    /// Why it could not start, or would begin with a repair.
    pub fn check_data(data: &Path, owner: &str) -> Result<(), StoreError> {
        let _folder = Disk::open(data, owner, DiskOptions::default())?;
        let corrupt = |reason: String| StoreError::Corrupt { location: data.display().to_string(), offset: 0, reason };
        match MemberStorage::read(data, data, i64::MAX) {
            Ok(_) => Ok(()),
            Err(OpenError::Store(error)) => Err(error),
            Err(error) => Err(error.damage().map_or_else(|| StoreError::Closed(error.to_string()), |damage| corrupt(damage.what))),
        }
    }

    fn server(&self, index: u16) -> Party {
        Party::Replica(ReplicaId { shard: self.me.shard, index })
    }

    /// Whether what clients ask need not wait.
    fn has_room(&self) -> bool {
        !self.durable.is_ending() && !self.durable.member.is_congested()
    }

    /// Takes in what clients asked, as far as there is room, and as this turn may do so much.
    fn take_waiting(&mut self, now: Now) {
        while self.turn_nodes < ENGINE_TURN_NODES_MAX
            && self.has_room()
            && let Some((from, number, question, bytes)) = self.waiting.pop_front()
        {
            self.waiting_bytes -= bytes;
            self.turn_nodes += question.nodes();
            let rights = if let Party::Client(client, _) = from { self.cluster.permission(client) } else { None };
            self.durable.member.ask(now, from, rights, number, question);
        }
    }

    fn on_question(&mut self, now: Now, from: Party, number: u64, question: Question, outbox: &mut OutboxOf<Self>) {
        let bytes = question.bytes();
        if self.waiting.len() >= ENGINE_WAITING_MAX || self.waiting_bytes + bytes > ENGINE_WAITING_BYTES_MAX {
            self.turned_away += 1;
            outbox.send(from, Message::Answer { number, answer: Answer::Busy { after_ms: BUSY_MS } });
            return;
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back((from, number, question, bytes));
        self.take_waiting(now);
    }

    /// Removes what marks a loss that is made good.
    fn note_made_good(&mut self) -> Result<(), StartError> {
        if self.durable.member.replica().is_member()
            && let Some(lost) = self.lost.take_if(|_| !matches!(self.durable.member.replica().status(), Status::Looking))
        {
            match fs::remove_file(&lost) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(StartError::Evidence(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Machine for Replica {
    type Command = Instruction;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Unsigned;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.now = now;
        let at = now_of(now);
        match input {
            Input::Command(Instruction::Reconfigure(cluster)) => self.cluster = cluster,
            // As if it had come before the member was gone, or was lost on its way; what clients ask waits.
            Input::Command(Instruction::FlipBit { .. }) | Input::Message { from: Party::Replica(_), .. } | Input::Tick
                if self.durable.is_ending() => {}
            Input::Command(Instruction::FlipBit { key, .. }) => {
                // There may be no such node, and then nothing is done.
                let _ = self.durable.member.server_mut().damage(Damage::Data, &path_of(&key));
            }
            Input::Message { from, message } => match (from, message.into_inner()) {
                (Party::Replica(ReplicaId { shard: ShardId(0), index }), Message::Server(message)) => {
                    self.durable.member.hear(at, index, message);
                }
                (Party::Client(..), Message::Question { number, question }) => self.on_question(at, from, number, question, outbox),
                // Nobody correct says this.
                _ => {}
            },
            Input::Tick => {
                if self.scrubs_at <= now {
                    self.scrubs_at = now.after_ms(u64::try_from(SCRUB_EVERY.as_millis()).unwrap_or(u64::MAX));
                    self.durable.member.scrub(at);
                    self.durable.offer_finished(at);
                }
                if at.steady_ms >= self.durable.member.deadline_ms() {
                    self.durable.member.tick(at);
                }
            }
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.now = now;
        if self.durable.is_ending() {
            return;
        }
        let at = now_of(now);
        self.take_waiting(at);
        self.turn_nodes = 0;
        let turn = self.durable.end_turn(at);
        for (to, message) in turn.sends {
            outbox.send(self.server(to), Message::Server(message));
        }
        for (to, number, answer) in turn.answers {
            let bytes = answer.bytes();
            outbox.send_large(to, Message::Answer { number, answer }, bytes);
        }
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        if !self.durable.is_ending() {
            let sends = self.durable.member.leave(now_of(now));
            sends.into_iter().for_each(|(to, message)| outbox.send(self.server(to), Message::Server(message)));
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.durable.is_ending() {
            // It is called when that is durable.
            return None;
        }
        if !self.waiting.is_empty() && self.has_room() {
            return Some(self.now);
        }
        Some(self.scrubs_at.min(time_of(self.durable.member.deadline_ms())))
    }

    fn refuse(&mut self, _from: Party, message: &Verified<Message>, after_ms: u32) -> Option<Message> {
        match **message {
            Message::Question { number, .. } => {
                self.turned_away += 1;
                Some(Message::Answer { number, answer: Answer::Busy { after_ms } })
            }
            Message::Server(_) | Message::Answer { .. } => None,
        }
    }
}

impl Durable for Replica {
    type Failure = StartError;

    fn persist(&mut self) -> Result<(), StartError> {
        let now = now_of(self.now);
        if let Some(end) = self.durable.persist(now)? {
            self.durable.go_on(end, now)?;
        }
        self.note_made_good()
    }
}

impl engine::Replica for Replica {
    fn statistics(&self, out: &mut Statistics) {
        let (member, server) = (&self.durable.member, self.durable.member.server());
        let (commits, order) = (server.commits(), member.replica());
        out.counter("transactions_committed", "Commits applied since this process started", commits.committed)
            .in_status("transactions.committed");
        out.counter("transactions_aborted", "Commits turned down since this process started", commits.conflicts)
            .in_status("transactions.aborted");
        out.gauge("questions_waiting", "Questions of clients that wait until less is under way", self.waiting.len() as u64)
            .in_status("transactions.waiting");
        out.counter("questions_turned_away", "Questions of clients turned away because there was too much to do", self.turned_away)
            .in_status("transactions.refused");
        let leads = u64::from(matches!(order.status(), Status::Leading { .. }));
        out.gauge("leads", "Whether this replica leads the others", leads).in_status("order.leads");
        let follows = u64::from(matches!(order.status(), Status::Following { .. }));
        out.gauge("follows", "Whether this replica follows another", follows).in_status("order.follows");
        out.gauge("delivered", "The last entry of the order that was delivered", order.delivered().0).in_status("order.delivered");
        out.gauge("nodes", "Nodes of the tree", server.state().node_count() as u64).in_status("tree.nodes");
        let begins = server.state().checksum().0.first_chunk().copied().map_or(0, u64::from_be_bytes);
        out.state("tree.zxid", "The last transaction that the tree has", server.state().zxid().cast_unsigned());
        out.state("tree.digest", "How the digest of the tree begins after that", begins);
        let is_damaged = u64::from(server.corruption().is_some());
        out.gauge("damaged", "Whether this replica found its own state to be wrong, and serves nobody", is_damaged)
            .in_status("tree.damaged");
        let repairs = self.durable.repairs.counts();
        out.counter("repairs", "Repairs begun since this process started", repairs.begun).in_status("repairs.begun");
        out.counter("repairs_finished", "Repairs finished since this process started", repairs.finished).in_status("repairs.finished");
        out.gauge(
            "rebuilding",
            "Whether it lost its disk, or found its state to be wrong, and does not serve yet",
            u64::from(self.rebuilding().is_some()),
        );
        out.gauge("store_journal_bytes", "Size of the log", self.durable.log_bytes()).in_status("store.journal_bytes");
    }

    fn misbehavior(event: &Event) -> Option<Misbehavior> {
        match *event {}
    }

    fn rebuilding(&self) -> Option<String> {
        let repair = self.durable.repairs.text();
        if let Some(corruption) = self.durable.member.server().corruption() {
            let repair = repair.map_or_else(String::new, |repair| format!("; {repair}"));
            return Some(format!("found its state to be wrong: {corruption}{repair}"));
        }
        repair.or_else(|| self.lost.is_some().then(|| "takes over what the others hold".to_owned()))
    }

    fn waits(&self) -> Option<&'static str> {
        let order = self.durable.member.replica();
        if order.status() != Status::Looking || self.rebuilding().is_some() {
            return None;
        }
        // Before the first leader serves, two of three may follow the third again and again: there is nothing to take over yet.
        Some(match order.leader() {
            _ if !order.has_begun() && !order.is_led() => "waits for a leader: for the first one all replicas have to be up",
            Some(_) => "takes over from its leader what it has missed",
            None => "waits for a leader: more than half of the replicas have to be up",
        })
    }

    fn close(&mut self) -> Result<(), StartError> {
        Ok(self.durable.close()?)
    }
}

#[cfg(test)]
mod tests;
