//! A replica whose data were put back to what they once were notices it before it says anything, by what the others remember of it.

use std::collections::{BTreeMap, VecDeque};

use basil::message::{JournalEnd, Unsigned};
use basil::{Coordinator, CoordinatorOptions, Message, Node, Replica, ReplicaOptions, Transaction, Write, rebuild};
use crypto::Verifier;
use machine::{Durable as _, Input, Machine as _, Outbox, Time};
use store::{Memory, Options, Store, StoreError};
use types::{ClientId, Key, Party, ReplicaId, Session, ShardId, Timestamp, Value};

use crate::harness::members::{Members, members};

const AUTHOR: Party = Party::Client(ClientId(1), Session(1));
const BEGAN_MS: u64 = 1_000_000;
/// How often a replica tells the others how far its journal has come.
const TOLD_MS: u64 = 2_100;
/// How often they write that down.
const LOGGED_MS: u64 = 60_000;

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

/// One shard, all of whose replicas hear one another at once.
struct Shard {
    members: Members,
    disks: BTreeMap<u16, Memory>,
    nodes: BTreeMap<u16, Node<Memory>>,
    now_ms: u64,
    /// Why replicas ended.
    ended: BTreeMap<u16, StoreError>,
    /// How many votes each has given to the client.
    votes: BTreeMap<u16, usize>,
    verifier: Verifier,
}

impl Shard {
    fn new() -> Self {
        let disks = (0..6).map(|index| (index, Memory::new(&format!("disk {index}")))).collect();
        let (nodes, ended, votes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let members = members(1);
        let verifier = members.stranger();
        let mut shard = Self { members, disks, nodes, now_ms: BEGAN_MS, ended, votes, verifier };
        (0..6).for_each(|index| shard.start(index));
        shard.run(5_000);
        shard
    }

    /// The process of this replica begins, on its disk.
    fn start(&mut self, index: u16) {
        let (now, cluster) = (Time(self.now_ms * 1_000_000), self.members.cluster.clone());
        let store = Store::open(self.disks[&index].clone(), Options::default()).expect("it opens");
        let options = ReplicaOptions { window_ms: 4_000, ..ReplicaOptions::default() };
        let opened = Replica::open(cluster.clone(), replica(index), options, store, now).expect("it comes back");
        let janitor = Coordinator::new(cluster.clone(), CoordinatorOptions::default());
        self.nodes.insert(index, Node::with_peers(opened, janitor, &cluster, now));
        self.ended.remove(&index);
    }

    /// Its process dies, and begins anew on `disk`.
    fn start_on(&mut self, index: u16, disk: Memory) {
        self.nodes.remove(&index);
        self.disks.insert(index, disk);
        self.start(index);
    }

    fn step(&mut self, index: u16, input: Option<(Party, Message)>) -> Vec<(Party, Message)> {
        let Some(node) = self.nodes.get_mut(&index) else { return Vec::new() };
        let input = match input {
            None => Input::Tick,
            Some((from, message)) => Input::Message { from, message: self.verifier.verify(message).expect("it is sound") },
        };
        let (now, mut outbox) = (Time(self.now_ms * 1_000_000), Outbox::default());
        while let Some(from) = node.take_due(now) {
            node.serve_kept(now, from, &mut outbox);
        }
        node.step(now, input, &mut outbox);
        if let Err(error) = node.persist() {
            self.nodes.remove(&index);
            self.ended.insert(index, error);
            return Vec::new();
        }
        let is_vote = |(to, unsigned): &&(Party, Unsigned)| *to == AUTHOR && matches!(unsigned, Unsigned::Vote { .. });
        *self.votes.entry(index).or_default() += outbox.unsigned.iter().filter(is_vote).count();
        outbox.sends
    }

    fn run(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms += 10;
            for index in 0..6 {
                let due = self.nodes.get(&index).and_then(|node| node.deadline()).is_some_and(|due| due.0 <= self.now_ms * 1_000_000);
                let said = if due { self.step(index, None) } else { Vec::new() };
                let mut waiting: VecDeque<(u16, Party, Message)> = said.into_iter().map(|(to, message)| (index, to, message)).collect();
                while let Some((from, to, message)) = waiting.pop_front() {
                    let Party::Replica(to) = to else { continue };
                    let said = self.step(to.index, Some((Party::Replica(replica(from)), message)));
                    waiting.extend(said.into_iter().map(|(next, message)| (to.index, next, message)));
                }
            }
        }
    }

    /// A client asks this replica for its vote on something new, and it gives it unless it is silent.
    fn vote(&mut self, index: u16) {
        let write = Write { key: Key::from(format!("key {}", self.now_ms).as_str()), value: Some(Value::from("1")) };
        let timestamp = Timestamp::new(self.now_ms * 1_000_000, ClientId(1));
        let transaction = Transaction::new(self.members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
        self.step(index, Some((AUTHOR, Message::Prepare { transaction })));
    }

    fn is_older_copy(&self, index: u16) -> bool {
        matches!(self.ended.get(&index), Some(StoreError::OlderCopy { .. }))
    }
}

/// Whether replica 0 of a shard notices that it was put back to before its last vote. `then` happens after that vote.
fn notices(then: impl FnOnce(&mut Shard)) -> bool {
    let mut shard = Shard::new();
    let copy = shard.disks[&0].copied();
    shard.vote(0);
    then(&mut shard);
    shard.votes.insert(0, 1);
    shard.start_on(0, copy);
    // It is asked all the while, by a client that would like to have another vote.
    for _ in 0..300 {
        shard.run(10);
        shard.vote(0);
    }
    let has_voted = shard.votes[&0] > 1;
    assert_ne!(shard.is_older_copy(0), has_voted, "{:?}", shard.ended);
    !has_voted
}

#[test]
fn an_older_copy_is_noticed_before_anything_is_said() {
    assert!(notices(|shard| shard.run(TOLD_MS)));
}

#[test]
fn nobody_stops_who_comes_back_with_all_that_it_had() {
    let mut shard = Shard::new();
    for _ in 0..3 {
        shard.vote(0);
        shard.run(TOLD_MS);
        let disk = shard.disks[&0].clone();
        shard.start_on(0, disk);
        shard.run(6_000);
        shard.vote(0);
    }
    assert!(shard.ended.is_empty() && shard.votes[&0] == 6, "{:?} {:?}", shard.ended, shard.votes);
}

#[test]
fn what_others_remember_outlives_their_processes() {
    let restart_others = |shard: &mut Shard| (1..6).for_each(|index| shard.start_on(index, shard.disks[&index].clone()));
    assert!(notices(|shard| {
        // Once it is written down.
        shard.run(LOGGED_MS + TOLD_MS);
        shard.vote(0);
        shard.run(LOGGED_MS + TOLD_MS);
        restart_others(shard);
    }));
}

#[test]
fn one_liar_stops_nobody() {
    let mut shard = Shard::new();
    let known = JournalEnd { lost_up_to: u64::MAX, batches: u64::MAX };
    for _ in 0..3 {
        shard.step(0, Some((Party::Replica(replica(3)), Message::JournalKnown { known })));
        shard.step(0, Some((AUTHOR, Message::JournalKnown { known })));
    }
    shard.vote(0);
    assert!(shard.ended.is_empty() && shard.votes[&0] == 1);
    shard.step(0, Some((Party::Replica(replica(4)), Message::JournalKnown { known })));
    assert!(shard.is_older_copy(0), "two cannot both lie");
}

#[test]
fn who_lied_of_how_far_it_had_come_is_not_held_to_that_once_it_begins_anew() {
    let mut shard = Shard::new();
    for end in [JournalEnd { lost_up_to: u64::MAX, batches: 1 }, JournalEnd { lost_up_to: 0, batches: u64::MAX }] {
        let asked_at = shard.now_ms * 1_000_000;
        for index in 1..6 {
            shard.step(index, Some((Party::Replica(replica(0)), Message::ClockQuery { asked_at, journal: Some(end) })));
        }
    }
    let empty = Memory::new("disk 0");
    rebuild::mark(&mut Store::open(empty.clone(), Options::default()).expect("it is empty")).expect("memory does not fail");
    shard.start_on(0, empty);
    shard.run(60_000);
    assert!(shard.ended.is_empty() && !shard.nodes[&0].replica().is_rebuilding(), "{:?}", shard.ended);
}

#[test]
fn who_is_put_back_to_the_middle_of_its_rebuilding_begins_that_anew() {
    let mut shard = Shard::new();
    let disk = Memory::new("disk 0");
    rebuild::mark(&mut Store::open(disk.clone(), Options::default()).expect("it is empty")).expect("memory does not fail");
    shard.start_on(0, disk);
    shard.run(3_000);
    let copy = shard.disks[&0].copied();
    shard.run(60_000);
    assert!(!shard.nodes[&0].replica().is_rebuilding());
    shard.vote(0);
    shard.run(TOLD_MS);
    shard.start_on(0, copy);
    // One lies of how much it has forgotten.
    let known = JournalEnd { lost_up_to: u64::MAX, batches: u64::MAX };
    shard.step(0, Some((Party::Replica(replica(3)), Message::JournalKnown { known })));
    shard.run(6_000);
    // It would be over by now with the bound of then, from before its vote.
    assert!(shard.nodes[&0].replica().is_rebuilding() && shard.ended.is_empty(), "{:?}", shard.ended);
    shard.run(60_000);
    assert!(!shard.nodes[&0].replica().is_rebuilding() && shard.ended.is_empty(), "{:?}", shard.ended);
    let before = shard.votes[&0];
    shard.vote(0);
    assert_eq!(shard.votes[&0], before + 1, "it is held to no more than what a correct one told");
}

#[test]
fn who_begins_anew_as_it_should_is_not_taken_for_an_older_copy() {
    let mut shard = Shard::new();
    shard.vote(0);
    shard.run(TOLD_MS);
    let empty = Memory::new("disk 0");
    rebuild::mark(&mut Store::open(empty.clone(), Options::default()).expect("it is empty")).expect("memory does not fail");
    shard.start_on(0, empty);
    shard.run(60_000);
    assert!(shard.ended.is_empty() && !shard.nodes[&0].replica().is_rebuilding(), "{:?}", shard.ended);
    // From then on that is what it is held to; of one that begins anew without the mark, nothing is.
    let copy = shard.disks[&0].copied();
    shard.vote(0);
    shard.run(TOLD_MS);
    for disk in [copy, Memory::new("disk 0")] {
        shard.start_on(0, disk);
        shard.run(3_000);
        assert!(shard.is_older_copy(0), "{:?}", shard.ended);
    }
}
