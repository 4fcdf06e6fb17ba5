//! Replicas, clients, a clock that stands still, and a pool of messages that move only when told.
//!
//! It is a small shell around the real machines: each message is encoded, decoded and verified on its way; a replica's
//! turn ends with one durable write and one signed root, and only then does anything leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use basil::certificate::{Proof, ShardProof};
use basil::message::{Conflict, KeyVersion, PageVersion, PendingWrite, ReadResult, Subject, Unsigned};
use basil::recovery::{DecideStatement, SignedDecide, SignedElect, majority};
use basil::{
    Certificate, Command, Coordinator, CoordinatorOptions, Decision, Event, Failure, Message, Node, NodeEvent, Path, ReadFound, Refusal,
    Replica, ReplicaOptions, Transaction, Vote,
};
use bytes::Bytes;
use crypto::{Rejection, Verified, Verifier};
use machine::turn::{Bounds, NoSigner, Turns, Written};
use machine::{Input, InputOf, Time};
use store::{Crash, Memory, Options, Store};
use types::codec::{Decode, Encode};
use types::{ClientId, Key, KeyRange, Party, ReplicaId, Session, Timestamp, TransactionId, Value};

use super::lies::distort_page;
use super::members::{Members, members};
use super::words::{self, BEGINNING, Names, Notes};

/// Replicas open so long before the script begins that their restart floor lies behind it.
const OPENED_BEFORE_MS: u64 = 10_000;
/// What replicas' clocks show when a script begins, in milliseconds: nothing that it places before comes early. Clients' clocks show 0.
const AHEAD_MS: i64 = 1_000;
/// More rounds of delivery than any script needs: messages that go round for ever are a failure.
const ROUNDS_MAX: usize = 1_000;

/// What a message is, as scripts name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Prepare,
    Recover,
    Log,
    Writeback,
    CommitNotice,
    Reply,
    Vote,
    Logged,
    Decided,
    Refused,
    Invoke,
    Elect,
    Decide,
    StatusQuery,
    StatusReply,
    /// Whatever is said to catch up.
    CatchUp,
}

/// A message on its way, as bytes.
#[derive(Clone)]
pub struct Envelope {
    pub from: Party,
    pub to: Party,
    pub kind: Kind,
    pub about: Option<TransactionId>,
    bytes: Bytes,
}

/// What a replica does instead of the truth.
#[derive(Clone, Debug)]
pub enum Lie {
    /// It claims to have this version of a key.
    Says { key: Key, version: Timestamp, value: Value },
    /// It claims to have nothing of a key.
    Hides { key: Key },
    /// It claims that this transaction is prepared.
    Offers { key: Key, transaction: Transaction },
    /// What it says of a range is complete up to this key, whatever it has, and it names no key from there on.
    Stops { key: Key },
    /// It claims that what it names of a range is all there is.
    ClaimsAll,
    /// It votes so on everything.
    Votes(Vote),
    /// It votes everything down, and says that this transaction, which has committed, is in the way.
    Blames(Transaction),
}

struct Seat {
    medium: Memory,
    /// Nothing while it is down.
    node: Option<Turns<Node<Memory>>>,
    /// Whether its next durable write is to fail.
    crashes_at_write: bool,
    lies: Vec<Lie>,
    /// How far its clock is ahead of the world's, which is the clients', in milliseconds.
    ahead_ms: i64,
}

impl Seat {
    /// What its clock shows at `now`.
    fn clock(&self, now: Time) -> Time {
        Time(now.0.checked_add_signed(self.ahead_ms * 1_000_000).expect("scripts set clocks a little"))
    }

    /// When it wants its next turn, by the world's clock.
    fn deadline(&self) -> Option<Time> {
        let wakes_at = self.node.as_ref()?.wakes_at()?;
        Some(Time(wakes_at.0.saturating_add_signed(-self.ahead_ms * 1_000_000)))
    }
}

/// What must never happen, whatever a script does, is noticed here.
#[derive(Default)]
struct Witness {
    votes: BTreeMap<(ReplicaId, TransactionId), Vote>,
    logged: BTreeMap<(ReplicaId, TransactionId, u32), Decision>,
    /// By elector, and by leader, the view, and what was said there.
    elected: BTreeMap<(ReplicaId, TransactionId, u32), Decision>,
    led: BTreeMap<(ReplicaId, TransactionId, u32), Decision>,
    /// The highest view each has signed to be in.
    views: BTreeMap<(ReplicaId, TransactionId), u32>,
    decided: BTreeMap<TransactionId, Decision>,
    proofs: BTreeMap<TransactionId, Arc<Certificate>>,
    liars: BTreeSet<ReplicaId>,
}

pub struct World {
    pub members: Members,
    /// Proofs of commits on one shard go to relays.
    pub is_relayed: bool,
    pub now: Time,
    pub notes: Notes,
    pub names: Names,
    /// Which transaction an operation is for.
    pub operations: BTreeMap<u64, String>,
    /// What clients were told and the script has not taken in yet.
    pub events: Vec<Event>,
    pub pool: Vec<Envelope>,
    past: Vec<Envelope>,
    verifier: Verifier,
    seats: BTreeMap<ReplicaId, Seat>,
    pub clients: BTreeMap<ClientId, Turns<Coordinator>>,
    silenced: BTreeSet<ReplicaId>,
    keys_asked: BTreeMap<(Party, u64), Vec<Key>>,
    ranges_asked: BTreeMap<(Party, u64), KeyRange>,
    witness: Witness,
    pub options: ReplicaOptions,
}

impl World {
    pub fn new(shards: u8) -> Self {
        let members = members(shards);
        let verifier = members.stranger();
        let replicas: Vec<ReplicaId> = members.cluster.replicas().collect();
        let seat = |replica: &ReplicaId| {
            (
                *replica,
                Seat {
                    medium: Memory::new(&replica.to_string()),
                    node: None,
                    crashes_at_write: false,
                    lies: Vec::new(),
                    ahead_ms: AHEAD_MS,
                },
            )
        };
        let seats = replicas.iter().map(seat).collect();
        let mut world = Self {
            members,
            is_relayed: false,
            now: Time(BEGINNING.0 - OPENED_BEFORE_MS * 1_000_000),
            notes: Notes::default(),
            names: Names::default(),
            operations: BTreeMap::new(),
            events: Vec::new(),
            pool: Vec::new(),
            past: Vec::new(),
            verifier,
            seats,
            clients: BTreeMap::new(),
            silenced: BTreeSet::new(),
            keys_asked: BTreeMap::new(),
            ranges_asked: BTreeMap::new(),
            witness: Witness::default(),
            // Versions are checkpointed whenever they may be: scripts have few.
            options: ReplicaOptions { window_ms: 30_000, memtable_bytes_max: 0, catch_up_ms: 0, ..ReplicaOptions::default() },
        };
        for replica in replicas {
            world.restart(replica);
        }
        world.wait(OPENED_BEFORE_MS, |_| {});
        world
    }

    // What a script does to replicas and clients.

    /// The power goes: what was not durable is lost, and so is everything on the way to or from the replica.
    pub fn crash(&mut self, replica: ReplicaId) {
        let seat = self.seat(replica);
        seat.node = None;
        seat.medium.crash(Crash::default());
        let party = Party::Replica(replica);
        self.pool.retain(|envelope| envelope.from != party && envelope.to != party);
    }

    /// The next durable write fails, and the replica with it.
    pub fn crash_at_write(&mut self, replica: ReplicaId) {
        let seat = self.seat(replica);
        seat.crashes_at_write = true;
        seat.medium.fail_next_sync();
    }

    /// The replica comes back from its disk.
    pub fn restart(&mut self, replica: ReplicaId) {
        let (cluster, now, options) = (self.members.cluster.clone(), self.now, self.options);
        let seat = self.seat(replica);
        assert!(seat.node.is_none(), "only a replica that is down can be started");
        let store = Store::open(seat.medium.clone(), Options::default()).expect("memory does not fail unless told to");
        let machine = Replica::open(cluster.clone(), replica, options, store, seat.clock(now)).expect("it can read what it wrote");
        let node = Node::new(machine, Coordinator::new(cluster, CoordinatorOptions::default()));
        seat.node = Some(Turns::new(node, Party::Replica(replica), Bounds::default()));
    }

    /// A bit of the newest value of `key` flips, which nobody tells the replica.
    pub fn flip(&mut self, replica: ReplicaId, key: &Key, bit: usize) {
        let node = self.seat(replica).node.as_mut().expect("it is up").machine_mut();
        assert!(node.flip_bit_at_rest(key, bit).expect("memory does not fail"), "it has a value");
    }

    /// Says how often the replica has found its own state to be wrong, and where the last time.
    pub fn note_wrong(&mut self, replica: ReplicaId) {
        let found = self.seat(replica).node.as_ref().expect("it is up").machine().replica().divergences().clone();
        let last = found.recent().next_back().and_then(|last| last.place.split(" of ").next()).unwrap_or("nothing");
        let (name, noticed, mended) = (words::replica(replica), found.noticed(), found.mended());
        self.notes.note(format!("{name} found its own state wrong {noticed} times, and mended {mended}: {last}"));
    }

    /// The replica's clock jumps, so that it is so far ahead of the world's.
    pub fn set_clock(&mut self, replica: ReplicaId, ahead_ms: i64) {
        self.seat(replica).ahead_ms = AHEAD_MS + ahead_ms;
    }

    pub fn restart_all(&mut self) {
        for replica in self.members.cluster.replicas().collect::<Vec<_>>() {
            self.crash(replica);
            self.restart(replica);
        }
    }

    /// Everything to and from the replica is lost from now on.
    pub fn silence(&mut self, replica: ReplicaId) {
        self.silenced.insert(replica);
        let party = Party::Replica(replica);
        self.pool.retain(|envelope| envelope.from != party && envelope.to != party);
    }

    pub fn hear(&mut self, replica: ReplicaId) {
        self.silenced.remove(&replica);
    }

    pub fn lie(&mut self, replica: ReplicaId, lie: Lie) {
        self.witness.liars.insert(replica);
        self.seat(replica).lies.push(lie);
    }

    /// The client's process ends; the next one knows nothing.
    pub fn kill(&mut self, client: ClientId) {
        self.clients.remove(&client);
        self.pool.retain(|envelope| envelope.to != party(client));
    }

    /// Asks a client's coordinator for something. What it sends stays in the pool.
    pub fn command(&mut self, client: ClientId, command: Command) {
        self.client_turn(client, vec![Input::Command(command)]);
    }

    /// Shows what replicas have of `key` at `timestamp`, by reading it as a bystander would: their read timestamps rise.
    pub fn look(&mut self, replicas: &[ReplicaId], key: &Key, timestamp: Timestamp) {
        let from = Party::Client(timestamp.client, Session(u64::MAX));
        for replica in replicas {
            let message = Message::Read { request: 0, timestamp, keys: vec![key.clone()] };
            self.post(from, Party::Replica(*replica), &message);
        }
        self.deliver_all(|envelope| envelope.from == from);
        self.pool.retain(|envelope| envelope.to != from);
    }

    // How messages move.

    /// Delivers every message that `matches`, once: those to one receiver in one turn.
    pub fn deliver(&mut self, matches: impl Fn(&Envelope) -> bool) -> bool {
        let (chosen, left) = std::mem::take(&mut self.pool).into_iter().partition::<Vec<_>, _>(|envelope| matches(envelope));
        self.pool = left;
        let mut by_receiver: BTreeMap<Party, Vec<Envelope>> = BTreeMap::new();
        for envelope in chosen {
            self.past.push(envelope.clone());
            by_receiver.entry(envelope.to).or_default().push(envelope);
        }
        let any = !by_receiver.is_empty();
        for (to, envelopes) in by_receiver {
            let mut inputs = Vec::new();
            for Envelope { from, bytes, .. } in envelopes {
                match self.open(bytes) {
                    Ok(message) => inputs.push((from, message)),
                    Err(rejection) => self.note_rejection(to, rejection),
                }
            }
            match to {
                Party::Replica(replica) => {
                    let inputs = inputs.into_iter().map(|(from, message)| Input::Message { from, message }).collect();
                    self.replica_turn(replica, inputs);
                }
                Party::Client(client, _) => {
                    let inputs = inputs.into_iter().map(|(from, message)| Input::Message { from, message }).collect();
                    self.client_turn(client, inputs);
                }
            }
        }
        any
    }

    /// Delivers what `matches`, and what comes of it, until nothing more does.
    pub fn deliver_all(&mut self, matches: impl Fn(&Envelope) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if !self.deliver(&matches) {
                return;
            }
        }
        panic!("messages go round for ever");
    }

    /// Copies of the newest message that `matches`, on its way, delivered or lost: to each of `to` its own, or else somebody else's.
    pub fn again(&mut self, matches: impl Fn(&Envelope) -> bool, to: &[ReplicaId]) {
        for replica in to {
            let to = Party::Replica(*replica);
            let sent = || self.past.iter().chain(&self.pool).filter(|envelope| matches(envelope));
            let found = sent().rfind(|envelope| envelope.to == to).or_else(|| sent().next_back());
            let envelope = found.cloned().expect("there was such a message");
            self.pool.push(Envelope { to, ..envelope });
        }
    }

    /// Lets time pass; machines whose timers are due get their turns at the right moment, and then `between` runs.
    pub fn wait(&mut self, ms: u64, between: impl Fn(&mut Self)) {
        let until = self.now.after_ms(ms);
        for _ in 0..ROUNDS_MAX {
            between(self);
            let nodes = self.seats.values().filter_map(Seat::deadline);
            let clients = self.clients.values().filter_map(Turns::wakes_at);
            match nodes.chain(clients).min() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.tick();
                }
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("timers go off for ever");
    }

    fn tick(&mut self) {
        let now = self.now;
        let is_due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        let nodes: Vec<ReplicaId> = self.seats.iter().filter(|(_, seat)| is_due(seat.deadline())).map(|(id, _)| *id).collect();
        let clients: Vec<ClientId> = self.clients.iter().filter(|(_, client)| is_due(client.wakes_at())).map(|(id, _)| *id).collect();
        for replica in nodes {
            self.replica_turn(replica, Vec::new());
        }
        for client in clients {
            self.client_turn(client, Vec::new());
        }
    }

    fn open(&self, bytes: Bytes) -> Result<Verified<Message>, Rejection> {
        let message = Message::from_bytes(bytes, self.members.cluster.id()).expect("our own messages can be decoded");
        self.verifier.verify(message)
    }

    fn note_rejection(&mut self, to: Party, rejection: Rejection) {
        match to {
            Party::Replica(replica) => self.notes.does(replica, format!("turn{{s}} a message away: {rejection}")),
            Party::Client(client, _) => self.notes.note(format!("{client} turns a message away: {rejection}")),
        }
    }

    /// `client` shows the newest votes of `voters` on `transaction` to replicas as evidence of its author, whatever they are.
    pub fn show_votes(&mut self, client: ClientId, transaction: &Transaction, voters: &[ReplicaId], to: &[ReplicaId]) {
        let vote_of = |voter: &ReplicaId| {
            let of = |one: &&Envelope| one.kind == Kind::Vote && one.about == Some(transaction.id()) && one.from == Party::Replica(*voter);
            let envelope = self.past.iter().chain(&self.pool).rfind(of).expect("it has voted");
            match self.open(envelope.bytes.clone()).expect("a replica's vote is good").into_inner() {
                Message::Voted { vote, .. } => vote,
                other => panic!("a vote is a vote, not {other:?}"),
            }
        };
        let evidence = voters.iter().map(vote_of).collect();
        let message = Message::Recover { transaction: transaction.clone(), evidence };
        for replica in to {
            self.post(party(client), Party::Replica(*replica), &message);
        }
        self.deliver(|envelope| envelope.kind == Kind::Recover && envelope.from == party(client));
    }

    /// The liar `relay` tells others that a transaction committed.
    pub fn forge_notice(&mut self, relay: ReplicaId, id: TransactionId, to: &[ReplicaId]) {
        self.witness.liars.insert(relay);
        for replica in to {
            self.post(Party::Replica(relay), Party::Replica(*replica), &Message::CommitNotice { id });
        }
        self.deliver(|envelope| envelope.kind == Kind::CommitNotice && envelope.from == Party::Replica(relay));
    }

    /// The leader `leader`, being a liar, shows `to` those of the replicas that elected it in its newest view that
    /// say `decision` as far as there are any, and decides what then most of them say.
    pub fn mislead(&mut self, leader: ReplicaId, id: TransactionId, decision: Decision, to: &[ReplicaId]) {
        let for_it = |one: &&Envelope| one.kind == Kind::Elect && one.about == Some(id) && one.to == Party::Replica(leader);
        let sent: Vec<Envelope> = self.past.iter().chain(&self.pool).filter(for_it).cloned().collect();
        let elects = sent.into_iter().map(|envelope| match self.open(envelope.bytes).expect("replicas elect properly").into_inner() {
            Message::ElectFallback { elect } => elect,
            other => panic!("an election message is one, not {other:?}"),
        });
        let mut elects: Vec<SignedElect> = elects.collect();
        let view = elects.iter().map(|elect| elect.statement.view).max().unwrap_or_default();
        elects.retain(|elect| elect.statement.view == view);
        elects.sort_by_key(|elect| (elect.statement.decision != decision, elect.replica));
        elects.dedup_by_key(|elect| elect.replica);
        elects.truncate(5);
        if elects.len() < 5 {
            return; // Nobody would believe it.
        }
        elects.sort_by_key(|elect| elect.replica);
        let electors: Vec<_> = elects.into_iter().map(|elect| (elect.replica.index, elect.statement.decision, elect.signature)).collect();
        let statement = DecideStatement { id, decision: majority(electors.iter().map(|(_, decision, _)| *decision)), view };
        let leaf = crypto::leaf(self.members.cluster.id(), leader, &statement);
        let signature = self.members.batch_signers[&leader].sign(&[leaf]).remove(0);
        let message = Message::DecideFallback { decide: SignedDecide { leader, statement, signature }, electors };
        for replica in to {
            self.post(Party::Replica(leader), Party::Replica(*replica), &message);
        }
        self.deliver(|envelope| envelope.kind == Kind::Decide && envelope.from == Party::Replica(leader));
    }

    fn post(&mut self, from: Party, to: Party, message: &Message) {
        let lost = |party: Party| matches!(party, Party::Replica(replica) if self.silenced.contains(&replica) || self.seats[&replica].node.is_none());
        let (kind, about) = kind_of(message);
        let envelope = Envelope { from, to, kind, about, bytes: message.to_bytes().into() };
        if lost(from) || lost(to) {
            self.past.push(envelope);
        } else {
            self.pool.push(envelope);
        }
    }

    fn seat(&mut self, replica: ReplicaId) -> &mut Seat {
        self.seats.get_mut(&replica).expect("scripts name replicas that are there")
    }

    fn client_turn(&mut self, client: ClientId, inputs: Vec<InputOf<Coordinator>>) {
        let (cluster, now) = (self.members.cluster.clone(), self.now);
        let options = self.coordinator_options();
        let coordinator = || Coordinator::new(cluster, options);
        let turns = self.clients.entry(client).or_insert_with(|| Turns::new(coordinator(), party(client), Bounds::default()));
        let mut turn = turns.begin(now);
        inputs.into_iter().for_each(|input| turn.step(now, input));
        let Ok(written) = turn.stepped(now).persist();
        let said = written.sign(&mut NoSigner);
        let (sends, events) = (std::mem::take(said.sends), std::mem::take(said.events));
        drop(said);
        for event in events {
            self.note_event(&event);
            self.events.push(event);
        }
        let mut noted = BTreeSet::new();
        for (to, message) in sends {
            self.witness_certificate(&message);
            if let Some(words) = self.words_of_coordinator(&message)
                && noted.insert(words.clone())
            {
                self.notes.note(format!("{client} {}", words.replace("{s}", "s")));
            }
            self.post(party(client), to, &message);
        }
    }

    fn replica_turn(&mut self, replica: ReplicaId, inputs: Vec<InputOf<Node<Memory>>>) {
        let now = self.seats[&replica].clock(self.now);
        let Some(mut turns) = self.seat(replica).node.take() else { return };
        let mut turn = turns.begin(now);
        for input in inputs {
            self.remember_question(&input);
            let asks_vote = asks_vote(&input);
            let ends = ends(&input);
            let before = (turn.machine().replica().counts().clone(), turn.said());
            turn.step(now, input);
            let after = turn.machine().replica().counts();
            if let Some(id) = asks_vote
                && turn.said() == before.1
            {
                self.notes.does(replica, format!("hold{{s}} back the vote on {}", self.names.of(id)));
            }
            if let Some(id) = ends {
                if after.committed > before.0.committed {
                    self.notes.does(replica, format!("learn{{s}} that {} committed", self.names.of(id)));
                }
                if after.aborted > before.0.aborted {
                    self.notes.does(replica, format!("learn{{s}} that {} aborted", self.names.of(id)));
                }
            }
        }
        match turn.stepped(now).persist() {
            Ok(written) => self.say(replica, written),
            Err(failure) => {
                assert!(std::mem::take(&mut self.seat(replica).crashes_at_write), "{replica} died, and nobody meant it to: {failure}");
                self.notes.does(replica, "fail{s} to write, and die{s} before saying anything".to_owned());
                drop(turns);
                self.crash(replica);
                return;
            }
        }
        // Whatever it says was posted while it was out of its seat: put back before anything is delivered.
        self.seat(replica).node = Some(turns);
    }

    /// Signs what a turn said, or what a liar says instead, and posts everything.
    fn say(&mut self, replica: ReplicaId, mut written: Written<'_, Node<Memory>>) {
        let silenced = self.silenced.contains(&replica);
        let mut outbox = std::mem::take(written.outbox());
        for event in outbox.events.drain(..) {
            let NodeEvent::Misbehavior { client, transaction, .. } = event else { continue };
            self.notes.does(replica, format!("keep{{s}} {} as proof that {client} lies", self.names.of(transaction.id())));
        }
        for (_, unsigned) in &mut outbox.unsigned {
            self.distort_unsigned(replica, unsigned);
            if !silenced {
                self.note_unsigned(replica, written.machine(), unsigned);
            }
            self.witness_unsigned(replica, unsigned);
        }
        for (to, message) in &mut outbox.sends {
            self.distort_reply(replica, *to, message);
            if !silenced {
                self.note_send(replica, *to, message);
            }
            self.witness_certificate(message);
            if let Message::CommitNotice { id } = &message {
                assert!(self.has_committed(*id), "{replica} says that {} committed, and nobody has the proof", self.names.of(*id));
            }
        }
        *written.outbox() = outbox;
        let said = written.sign(self.members.batch_signers.get_mut(&replica).expect("every replica has its key"));
        let own = std::mem::take(said.own).into_iter().map(|message| (said.me, message));
        for (to, message) in std::mem::take(said.sends).into_iter().chain(own) {
            if !self.witness.liars.contains(&replica) {
                self.witness_rights(to, &message);
            }
            self.post_from_seat(replica, to, &message);
        }
    }

    /// As [`World::post`], for a replica that is having its turn.
    fn post_from_seat(&mut self, replica: ReplicaId, to: Party, message: &Message) {
        let (kind, about) = kind_of(message);
        let envelope = Envelope { from: Party::Replica(replica), to, kind, about, bytes: message.to_bytes().into() };
        let down = |other: ReplicaId| other != replica && self.seats[&other].node.is_none();
        let to_nobody = matches!(to, Party::Replica(other) if self.silenced.contains(&other) || down(other));
        if self.silenced.contains(&replica) || to_nobody {
            self.past.push(envelope);
        } else {
            self.pool.push(envelope);
        }
    }

    fn remember_question(&mut self, input: &InputOf<Node<Memory>>) {
        if let Input::Message { from, message } = input
            && let Message::Read { request, keys, .. } = &**message
        {
            self.keys_asked.insert((*from, *request), keys.clone());
        }
        if let Input::Message { from, message } = input
            && let Message::Scan { request, range, .. } = &**message
        {
            self.ranges_asked.insert((*from, *request), range.clone());
        }
    }

    // Lies.

    fn distort_unsigned(&mut self, replica: ReplicaId, unsigned: &mut Unsigned) {
        for lie in &self.seats[&replica].lies {
            let Unsigned::Vote { statement, conflict, .. } = &mut *unsigned else { return };
            match lie {
                Lie::Votes(vote) => (statement.vote, *conflict) = (*vote, None),
                Lie::Blames(transaction) => {
                    let certificate = self.witness.proofs.get(&transaction.id()).expect("it has committed").clone();
                    statement.vote = Vote::Abort;
                    *conflict = Some(Conflict::Committed { transaction: transaction.clone(), certificate });
                }
                _ => {}
            }
        }
    }

    fn distort_reply(&mut self, replica: ReplicaId, to: Party, message: &mut Message) {
        for lie in &self.seats[&replica].lies {
            match (lie, &mut *message) {
                (Lie::Says { key, version, value }, Message::VersionsReply { versions, .. }) => {
                    versions.retain(|one| one.key != *key);
                    let version = KeyVersion { version: *version, value: Some(value.clone()) };
                    versions.push(PageVersion { key: key.clone(), version });
                    versions.sort_by(|one, other| one.key.cmp(&other.key));
                }
                (Lie::Offers { transaction, .. }, Message::CommitsReply { ids }) => ids.push(transaction.id()),
                (Lie::Offers { transaction, .. }, Message::TransactionsReply { transactions }) => transactions.push(transaction.clone()),
                _ => {}
            }
        }
        if let Message::ScanReply { request, direction, rows, end, prepared, .. } = message {
            let range = self.ranges_asked.get(&(to, *request)).cloned().expect("it was asked");
            for lie in &self.seats[&replica].lies {
                distort_page(lie, (&range, *direction), rows, end, prepared);
            }
        }
        let Message::ReadReply { request, results, prepared, .. } = message else { return };
        let keys = self.keys_asked.get(&(to, *request)).cloned().unwrap_or_default();
        for (asked, result) in keys.iter().zip(results) {
            for lie in &self.seats[&replica].lies {
                match lie {
                    Lie::Says { key, version, value } if key == asked => {
                        *result = ReadResult { version: *version, value: Some(value.clone()), pending: PendingWrite::None };
                    }
                    Lie::Hides { key } if key == asked => {
                        *result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
                    }
                    Lie::Offers { key, transaction } if key == asked => {
                        result.pending = PendingWrite::Prepared(u16::try_from(prepared.len()).expect("scripts read few keys"));
                        prepared.push(transaction.clone());
                    }
                    _ => {}
                }
            }
        }
    }

    // What must never happen.

    fn witness_unsigned(&mut self, replica: ReplicaId, unsigned: &Unsigned) {
        if self.witness.liars.contains(&replica) {
            return;
        }
        match unsigned {
            Unsigned::Vote { statement, .. } => {
                let first = *self.witness.votes.entry((replica, statement.id)).or_insert(statement.vote);
                assert_eq!(first, statement.vote, "{replica} changed its vote");
            }
            Unsigned::Logged { statement, .. } => {
                let at = (replica, statement.id, statement.view_decision);
                let first = *self.witness.logged.entry(at).or_insert(statement.decision);
                assert_eq!(first, statement.decision, "{replica} changed its logged decision");
                self.witness_view(replica, statement.id, statement.view_current);
            }
            Unsigned::Elect { statement, .. } => {
                let at = (replica, statement.id, statement.view);
                let first = *self.witness.elected.entry(at).or_insert(statement.decision);
                assert_eq!(first, statement.decision, "{replica} elected with two decisions in one view");
                self.witness_view(replica, statement.id, statement.view);
            }
            Unsigned::Decide { statement, .. } => {
                let at = (replica, statement.id, statement.view);
                let first = *self.witness.led.entry(at).or_insert(statement.decision);
                assert_eq!(first, statement.decision, "{replica} decided both ways in one view");
            }
        }
    }

    /// Whoever has signed to be in a view never signs to be in a lower one.
    fn witness_view(&mut self, replica: ReplicaId, id: TransactionId, view: u32) {
        let highest = self.witness.views.entry((replica, id)).or_insert(view);
        assert!(*highest <= view, "{replica} went back to a lower view");
        *highest = view;
    }

    /// Clients are shown no transaction but their own, and such as they may read all of.
    fn witness_rights(&self, to: Party, message: &Message) {
        let Party::Client(client, _) = to else { return };
        let shown: Vec<&Transaction> = match message {
            Message::ReadReply { prepared, .. } | Message::ScanReply { prepared, .. } => prepared.iter().collect(),
            Message::Voted { conflict, .. } => conflict.iter().map(Conflict::transaction).collect(),
            Message::Decided { certificate } | Message::Writeback { certificate, .. } => certificate.shows().into_iter().collect(),
            _ => Vec::new(),
        };
        let permission = self.members.cluster.permission(client).expect("the cluster knows it");
        for transaction in shown {
            let may_see = transaction.timestamp().client == client || transaction.keys().all(|key| permission.may_read(key));
            assert!(may_see, "{client} is shown {}", self.names.of(transaction.id()));
        }
    }

    fn witness_certificate(&mut self, message: &Message) {
        if let Message::Writeback { certificate, .. } | Message::Decided { certificate } = message {
            let first = *self.witness.decided.entry(certificate.id).or_insert(certificate.decision);
            assert_eq!(first, certificate.decision, "one transaction was decided both ways");
            self.witness.proofs.entry(certificate.id).or_insert_with(|| certificate.clone());
        }
    }

    /// Every transaction of which a certificate to commit was seen.
    pub fn has_committed(&self, id: TransactionId) -> bool {
        self.witness.decided.get(&id) == Some(&Decision::Commit)
    }

    // How it reads.

    fn note_unsigned(&mut self, replica: ReplicaId, node: &Node<Memory>, unsigned: &Unsigned) {
        let words = match unsigned {
            Unsigned::Vote { statement, conflict, .. } => {
                let name = self.names.of(statement.id);
                let cause = node.replica().abort_reason_of(statement.id).map(|cause| match cause.conflicting() {
                    Some(other) => format!(": {}, {}", cause.label(), self.names.of(other)),
                    None => format!(": {}", cause.label()),
                });
                let lied = self.seats[&replica].lies.iter().any(|lie| matches!(lie, Lie::Votes(_) | Lie::Blames(_)));
                let shown = match conflict {
                    Some(Conflict::Committed { .. }) => ", which has committed",
                    Some(Conflict::Stalled { .. }) => ", which is stalled",
                    None => "",
                };
                let cause = if lied { ", whatever it thinks".to_owned() } else { cause.unwrap_or_default() };
                format!("vote{{s}} {} on {name}{cause}{shown}", vote(statement.vote))
            }
            Unsigned::Logged { statement, .. } => {
                let (decision, name) = (decision(statement.decision), self.names.of(statement.id));
                match (statement.view_decision, statement.view_current) {
                    (0, 0) => format!("log{{s}} {decision} of {name}"),
                    (decided, current) if decided == current => format!("log{{s}} {decision} of {name} in view {decided}"),
                    (decided, current) => format!("log{{s}} {decision} of {name} in view {decided}, being in view {current}"),
                }
            }
            Unsigned::Elect { statement, .. } => {
                let (decision, name) = (decision(statement.decision), self.names.of(statement.id));
                format!("elect{{s}} the leader of view {} for {name}, having logged {decision}", statement.view)
            }
            Unsigned::Decide { statement, electors, .. } => {
                let (decision, name) = (decision(statement.decision), self.names.of(statement.id));
                let count = electors.iter().filter(|(_, elector, _)| *elector == statement.decision).count();
                format!("decide{{s}} {decision} of {name} in view {}, as {count} of {} electors say", statement.view, electors.len())
            }
        };
        self.notes.does(replica, words);
    }

    fn note_send(&mut self, replica: ReplicaId, to: Party, message: &Message) {
        let words = match message {
            Message::ReadReply { request, results, prepared, is_promised, .. } => {
                let keys = self.keys_asked.get(&(to, *request)).cloned().unwrap_or_default();
                let each = keys.iter().zip(results).map(|(key, result)| self.words_of_result(key, result, prepared)).collect::<Vec<_>>();
                Some(format!("answer{{s}} {}{}", each.join("; "), words::unpromised(*is_promised)))
            }
            Message::ScanReply { direction, rows, end, prepared, is_promised, .. } => {
                let mut each: Vec<String> = rows.iter().map(|row| self.words_of_result(&row.key, &row.result, prepared)).collect();
                each.push(words::all_up_to(*direction, end));
                Some(format!("answer{{s}} {}{}", each.join("; "), words::unpromised(*is_promised)))
            }
            Message::Decided { certificate } => {
                let end = if certificate.decision == Decision::Commit { "committed" } else { "aborted" };
                Some(format!("answer{{s}} that {} has {end}", self.names.of(certificate.id)))
            }
            Message::Refused { subject: Subject::Request(_), refusal } => Some(format!("refuse{{s}} to read: {}", refused(*refusal))),
            Message::Refused { subject: Subject::Transaction(id), refusal } => {
                Some(format!("refuse{{s}} {}: {}", self.names.of(*id), refused(*refusal)))
            }
            Message::StatusQuery { id, .. } => Some(format!("ask{{s}} who still holds {}", self.names.of(*id))),
            Message::StatusReply { id, end, versions } => {
                let versions: Vec<String> = versions.iter().map(|one| words::version(one.version)).collect();
                let end = match end {
                    Some(Decision::Commit) => " since it committed",
                    Some(Decision::Abort) => " since it aborted",
                    None => "",
                };
                Some(format!("hold{{s}} {} no more{end}, and its keys at {}", self.names.of(*id), versions.join(" ")))
            }
            Message::Writeback { certificate, .. } => Some(format!("end{{s}} {}", self.names.of(certificate.id))),
            Message::CommitNotice { id } => Some(format!("send{{s}} notices that {} committed", self.names.of(*id))),
            other => self.words_of_coordinator(other),
        };
        if let Some(words) = words {
            self.notes.does(replica, words);
        }
    }

    fn words_of_result(&self, key: &Key, result: &ReadResult, prepared: &[Transaction]) -> String {
        let committed = found(key, result.version, result.value.as_ref());
        let shown = match result.pending {
            PendingWrite::None => return committed,
            PendingWrite::Hidden => None,
            PendingWrite::Prepared(at) => prepared.get(usize::from(at)),
        };
        match shown {
            None => format!("{committed}, and something prepared that is not shown"),
            Some(transaction) => {
                let value = words::value(transaction.write_of(key).and_then(|write| write.value.as_ref()));
                let at = words::version(transaction.timestamp());
                format!("{committed}, and {value} {at} prepared by {}", self.names.of(transaction.id()))
            }
        }
    }

    fn words_of_coordinator(&self, message: &Message) -> Option<String> {
        match message {
            Message::Recover { transaction, evidence } => {
                let shown = if evidence.is_empty() { String::new() } else { format!(", showing {} votes", evidence.len()) };
                Some(format!("ask{{s}} for votes to finish {}{shown}", self.names.of(transaction.id())))
            }
            Message::Log { transaction, decision: wanted, .. } => {
                let participants = transaction.participants(&self.members.cluster);
                let shard = basil::certificate::logging_shard(&participants, transaction.id()).expect("it touches a shard");
                Some(format!("ask{{s}} {} to log {} of {}", words::shard(shard), decision(*wanted), self.names.of(transaction.id())))
            }
            Message::InvokeFallback { transaction, views, .. } => {
                let shown: Vec<String> = views.iter().map(|logged| logged.statement.view_current.to_string()).collect();
                Some(format!("call{{s}} for a leader to end {}, showing views {}", self.names.of(transaction.id()), shown.join(" ")))
            }
            _ => None,
        }
    }

    fn note_event(&mut self, event: &Event) {
        match event {
            Event::Read { operation, result } => {
                let name = self.operations.get(operation).cloned().unwrap_or_default();
                match result {
                    Ok(all) => {
                        for one in all {
                            let words = self.words_of_found(one);
                            self.notes.note(format!("{name} reads {words}"));
                        }
                    }
                    Err(failure) => self.notes.note(format!("{name} cannot read: {}", failed(*failure))),
                }
            }
            Event::Scanned { operation, result } => {
                let name = self.operations.get(operation).cloned().unwrap_or_default();
                match result {
                    Ok(scan) => {
                        let each: Vec<String> = scan.found.iter().map(|one| self.words_of_found(one)).collect();
                        let each = if each.is_empty() { "nothing".to_owned() } else { each.join("; ") };
                        let validated = if scan.is_validated { ", and nobody will write there" } else { "" };
                        self.notes.note(format!("{name} finds in {}: {each}{validated}", scan.range));
                    }
                    Err(failure) => self.notes.note(format!("{name} cannot scan: {}", failed(*failure))),
                }
            }
            Event::Validated { operation } => {
                let name = self.operations.get(operation).cloned().unwrap_or_default();
                self.notes.note(format!("{name} commits without a vote, having only read"));
            }
            Event::Ended { operation, result } => {
                let name = self.operations.get(operation).cloned().unwrap_or_default();
                let words = match result {
                    Ok((certificate, path)) => {
                        let end = if certificate.decision == Decision::Commit { "commits" } else { "aborts" };
                        let path = match path {
                            Path::Fast => "over the fast path",
                            Path::Slow => "over the slow path",
                            Path::Recovered => "as others have found",
                        };
                        format!("{end} {path}, by {}", self.proof(certificate))
                    }
                    Err(failure) => format!("does not end: {}", failed(*failure)),
                };
                self.notes.note(format!("{name} {words}"));
            }
        }
    }

    fn words_of_found(&self, one: &ReadFound) -> String {
        let found = found(&one.key, one.version, one.value.as_ref());
        match &one.dependency {
            Some(transaction) => format!("{found}, only prepared, by {}", self.names.of(transaction.id())),
            None => found,
        }
    }

    /// What a certificate rests on.
    pub fn proof(&self, certificate: &Arc<Certificate>) -> String {
        match &certificate.proof {
            Proof::Logged(set) => format!("{} logs of {}", set.voters.len(), words::shard(set.shard)),
            Proof::Fast(proofs) => {
                let each = proofs.iter().map(|proof| match proof {
                    ShardProof::Votes(set) => format!("{} votes of {}", set.voters.len(), words::shard(set.shard)),
                    ShardProof::Conflict { shard, transaction, .. } => {
                        format!("its conflict on {} with {}, which committed", words::shard(*shard), self.names.of(transaction.id()))
                    }
                });
                each.collect::<Vec<_>>().join(" and ")
            }
        }
    }
}

/// The one process of a client.
pub fn party(client: ClientId) -> Party {
    Party::Client(client, Session(client.0))
}

fn kind_of(message: &Message) -> (Kind, Option<TransactionId>) {
    match message {
        Message::Read { .. } | Message::Scan { .. } | Message::ClockQuery { .. } => (Kind::Read, None),
        Message::StatusQuery { id, .. } => (Kind::StatusQuery, Some(*id)),
        Message::StatusReply { id, .. } => (Kind::StatusReply, Some(*id)),
        Message::CommitsQuery { .. }
        | Message::CommitsReply { .. }
        | Message::TransactionsQuery { .. }
        | Message::TransactionsReply { .. }
        | Message::VersionsQuery { .. }
        | Message::VersionsReply { .. }
        | Message::UndecidedQuery { .. }
        | Message::UndecidedReply { .. } => (Kind::CatchUp, None),
        Message::Prepare { transaction } => (Kind::Prepare, Some(transaction.id())),
        Message::Recover { transaction, .. } => (Kind::Recover, Some(transaction.id())),
        Message::Log { transaction, .. } => (Kind::Log, Some(transaction.id())),
        Message::Writeback { certificate, .. } => (Kind::Writeback, Some(certificate.id)),
        Message::CommitNotice { id } => (Kind::CommitNotice, Some(*id)),
        Message::ReadReply { .. }
        | Message::ScanReply { .. }
        | Message::ClockReply { .. }
        | Message::JournalKnown { .. }
        | Message::ClockProposal { .. }
        | Message::Refused { subject: Subject::Request(_), .. } => (Kind::Reply, None),
        Message::Voted { vote, .. } => (Kind::Vote, Some(vote.statement.id)),
        Message::Logged { logged } => (Kind::Logged, Some(logged.statement.id)),
        Message::Decided { certificate } => (Kind::Decided, Some(certificate.id)),
        Message::Refused { subject: Subject::Transaction(id), .. } => (Kind::Refused, Some(*id)),
        Message::InvokeFallback { transaction, .. } => (Kind::Invoke, Some(transaction.id())),
        Message::ElectFallback { elect } => (Kind::Elect, Some(elect.statement.id)),
        Message::DecideFallback { decide, .. } => (Kind::Decide, Some(decide.statement.id)),
    }
}

fn asks_vote(input: &InputOf<Node<Memory>>) -> Option<TransactionId> {
    let Input::Message { message, .. } = input else { return None };
    match &**message {
        Message::Prepare { transaction } | Message::Recover { transaction, .. } => Some(transaction.id()),
        _ => None,
    }
}

fn ends(input: &InputOf<Node<Memory>>) -> Option<TransactionId> {
    let Input::Message { message, .. } = input else { return None };
    match &**message {
        Message::Writeback { certificate, .. } => Some(certificate.id),
        Message::CommitNotice { id } => Some(*id),
        _ => None,
    }
}

fn found(key: &Key, version: Timestamp, value: Option<&Value>) -> String {
    format!("{key} = {} {}", words::value(value), words::version(version))
}

fn vote(vote: Vote) -> &'static str {
    if vote == Vote::Commit { "commit" } else { "abort" }
}

fn decision(decision: Decision) -> &'static str {
    if decision == Decision::Commit { "commit" } else { "abort" }
}

fn failed(failure: Failure) -> String {
    match failure {
        Failure::Refused(refusal) => format!("refused as {}", refused(refusal)),
        Failure::TooLow => "too low".to_owned(),
        Failure::TimedOut(None) => "timed out".to_owned(),
        Failure::TimedOut(Some(why)) => format!("timed out, refused as {}", refused(why)),
    }
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::TooOld | Refusal::NotKept { .. } => "too old",
        Refusal::TooNew => "too new",
        Refusal::NotPermitted => "not permitted",
        Refusal::WrongShard => "of another shard",
        Refusal::Overloaded { .. } => "too much",
        Refusal::AbandonLimit { .. } => "left too much",
        Refusal::ClientLimit { .. } => "over its limit",
        Refusal::Liar => "a liar's",
        Refusal::TooLarge => "too large",
        Refusal::Unknown => "unknown",
    }
}
