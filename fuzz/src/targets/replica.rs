//! A replica and its janitor, to whom anybody may say anything that is signed well.
//!
//! Far more than `f` may lie here: every secret key is the input's. So nothing is asked of what the replica comes to believe,
//! only of itself: it never panics, it never takes back what it said under its signature or let somebody read (nor when it
//! dies and comes back, with its disk torn and its clock set back), it says nothing that others would refuse, and it shows
//! nobody what they may not read.

use basil::message::{Conflict, PendingWrite, ReadResult, ScanRow, Unsigned};
use basil::{Coordinator, CoordinatorOptions, Message, Node, Read, Replica, ReplicaOptions, Transaction, Write};
use crypto::Verified;
use machine::turn::{Bounds, Turn, Turns};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{Crash, Memory, Options, Store, StoreError};
use types::codec::{Decode, Encode};
use types::{ClientId, Direction, Key, KeyRange, Party, ReplicaId, Session, Timestamp, Value};

use super::promises::Promises;
use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLIENTS, CLUSTER, MILLISECOND, NOW, fixture, replica, verifier};
use crate::generators::{self, KEYS};

pub(super) const TARGET: Target = Target {
    name: "replica",
    what: "says anything signed to a replica that also crashes: it keeps its word, and speaks what others accept",
    bytes_max: 1_024,
    runs: 500,
    run,
    seeds,
};

const ME: ReplicaId = replica(0, 2);
/// The most things that happen in one input.
const STEPS_MAX: usize = 96;
/// The most undecided transactions that the replica holds.
const UNDECIDED_MAX: usize = 60;

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut life = Life::begin();
    let mut steps = 0;
    while !choices.is_done() && steps < STEPS_MAX {
        life.step(&mut choices);
        steps += 1;
    }
    life.end();
}

/// A node that is overheard: whatever it says in a step is held against its word.
struct Overheard {
    node: Node<Memory>,
    promises: Promises,
    /// The statements that it has made and not signed.
    unsigned: Vec<Unsigned>,
}

impl Machine for Overheard {
    type Command = <Node<Memory> as Machine>::Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Unsigned;
    type Event = <Node<Memory> as Machine>::Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let (mut read, mut scan, mut queried) = (None, None, Timestamp::ZERO);
        if let Input::Message { from, message } = &input {
            self.promises.hears(*from, message);
            if let Message::Read { timestamp, keys, .. } = &**message {
                read = Some((*from, *timestamp, keys.clone()));
            }
            if let Message::Scan { timestamp, range, direction, .. } = &**message {
                scan = Some((*from, *timestamp, (range.clone(), *direction)));
            }
            if let Message::StatusQuery { timestamp, .. } = &**message {
                queried = *timestamp;
            }
        }
        let before = (outbox.sends.len(), outbox.unsigned.len());
        self.node.step(now, input, outbox);
        for (to, answer) in &outbox.sends[before.0..] {
            if let (Some((from, timestamp, keys)), Message::ReadReply { results, prepared, is_promised, .. }) = (&read, answer) {
                assert_eq!(to, from);
                check_read(*timestamp, keys, results, prepared);
                if *is_promised {
                    self.promises.lets_read(*timestamp, keys, results, prepared);
                }
            }
            if let (Some((from, timestamp, asked)), Message::ScanReply { direction, rows, end, prepared, is_promised, .. }) =
                (&scan, answer)
            {
                assert!(to == from && *direction == asked.1);
                let (keys, results) = told_of(asked, rows, end);
                check_read(*timestamp, &keys, &results, prepared);
                if *is_promised {
                    self.promises.lets_read(*timestamp, &keys, &results, prepared);
                }
            }
            if let Message::StatusReply { id, versions, .. } = answer {
                self.promises.lets_go(*id, queried, versions);
            }
        }
        self.has_stated(before.1, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        self.node.deadline()
    }

    fn take_due(&mut self, now: Time) -> Option<Party> {
        self.node.take_due(now)
    }

    fn serve_kept(&mut self, now: Time, from: Party, outbox: &mut OutboxOf<Self>) {
        let before = outbox.unsigned.len();
        self.node.serve_kept(now, from, outbox);
        self.has_stated(before, outbox);
    }
}

impl Overheard {
    /// It has said what `outbox` has beyond the first `before` statements; and holds no more than it may.
    fn has_stated(&mut self, before: usize, outbox: &OutboxOf<Self>) {
        for (_, unsigned) in &outbox.unsigned[before..] {
            self.promises.votes(&fixture().cluster, unsigned);
            self.unsigned.push(unsigned.clone());
        }
        let (known, undecided) = self.node.replica().load();
        // Beside what is prepared, a quarter as much that is to be finished.
        assert!(undecided <= UNDECIDED_MAX + UNDECIDED_MAX / 4 && undecided <= known, "{undecided} of {known} undecided");
    }
}

impl Durable for Overheard {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.node.persist()?;
        self.promises.is_out();
        self.unsigned.drain(..).for_each(|unsigned| self.promises.signs(&unsigned));
        Ok(())
    }
}

/// A replica over all its lives.
struct Life {
    /// Nothing while it is down.
    turns: Option<Turns<Overheard>>,
    medium: Memory,
    now: u64,
    /// What it hears in its next turn.
    inbox: Vec<(Party, Verified<Message>)>,
}

impl Life {
    fn begin() -> Self {
        let medium = Memory::new("fuzz");
        let turns = Some(start(&medium, NOW, Promises::new(ME)));
        Self { turns, medium, now: NOW, inbox: Vec::new() }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(16) {
            0..10 => {
                let message = if choices.rarely(4) { generators::reply(choices) } else { generators::request(choices) };
                let from = any_party(choices);
                self.receive(choices, from, &message);
            }
            10 => {
                let transaction = any_transaction(choices);
                let from = Party::Client(transaction.timestamp().client, Session(1));
                self.receive(choices, from, &Message::Prepare { transaction });
            }
            11 => self.turn(),
            12 | 13 => {
                let later = choices.one_of(&[1, 60, 500, 1_100, 2_500, 6_000, 12_000, 40_000]);
                self.now += later * MILLISECOND;
                self.turn();
            }
            14 => {
                let back = choices.one_of(&[0, 0, 1, 1_000, 12_000, 30_000]);
                drop(self.heard());
                self.restart(Crash::default(), back);
            }
            _ => {
                self.medium.fail_next_sync();
                let kept = usize::from(choices.byte()) * 4;
                let now = Time(self.now);
                if self.heard().stepped_last(now).persist().is_err() {
                    self.restart(Crash { journal_bytes_kept: kept, checkpoint_rows_kept: usize::from(choices.byte() % 4) }, 0);
                } else {
                    self.restart(Crash::default(), 0);
                }
            }
        }
    }

    /// A message arrives as bytes, and is checked as by the shell.
    fn receive(&mut self, choices: &mut Choices<'_>, from: Party, message: &Message) {
        let ends_turn = !choices.rarely(4);
        let mut received = message.clone();
        if generators::is_writable(message) {
            let mut bytes = message.to_bytes();
            if choices.rarely(16) {
                let at = choices.below(bytes.len().min(65_536));
                bytes[at] ^= 1 << choices.below(8);
            }
            let Ok(decoded) = Message::from_bytes(bytes.into(), CLUSTER) else { return };
            received = decoded;
        }
        self.hear(from, received);
        if ends_turn {
            self.turn();
        }
    }

    fn hear(&mut self, from: Party, message: Message) {
        self.inbox.extend(verifier().verify(message).map(|message| (from, message)));
    }

    /// A turn that has heard everything, and has written none of it.
    fn heard(&mut self) -> Turn<'_, Overheard> {
        let now = Time(self.now);
        let mut turn = self.turns.as_mut().expect("it runs").begin(now);
        self.inbox.drain(..).for_each(|(from, message)| turn.step(now, Input::Message { from, message }));
        turn
    }

    /// A turn, and more of them as long as it says something to itself.
    fn turn(&mut self) {
        let now = Time(self.now);
        let written = self.heard().stepped(now).persist().expect("memory does not fail unless told to");
        let said = written.sign(&mut fixture().batch_signer(ME));
        let (sends, own) = (std::mem::take(said.sends), std::mem::take(said.own));
        drop(said);
        for (to, message) in sends {
            check_rights(to, &message);
            others_accept(&message);
        }
        for message in own {
            self.inbox.push((Party::Replica(ME), others_accept(&message)));
        }
        if !self.inbox.is_empty() {
            self.turn();
        }
    }

    /// It dies with all that it has not said, and comes back, its clock set back by some milliseconds.
    fn restart(&mut self, crash: Crash, back: u64) {
        let mut promises = self.turns.take().expect("it runs").into_machine().promises;
        promises.is_lost();
        self.medium.crash(crash);
        self.inbox.clear();
        self.now -= back * MILLISECOND;
        self.turns = Some(start(&self.medium, self.now, promises));
    }

    /// The power goes, and all authors ask again. Time goes on for a while; then the power goes once more, and others ask.
    fn end(mut self) {
        self.turn();
        self.restart(Crash::default(), 0);
        for transaction in &fixture().transactions {
            let author = Party::Client(transaction.timestamp().client, Session(1));
            self.hear(author, Message::Prepare { transaction: transaction.clone() });
            self.turn();
        }
        for _ in 0..40 {
            let wakes_at = self.turns.as_ref().expect("it runs").wakes_at();
            let Some(wakes_at) = wakes_at.filter(|at| at.0 < self.now + 20_000 * MILLISECOND) else { break };
            self.now = self.now.max(wakes_at.0);
            self.turn();
        }
        self.restart(Crash::default(), 0);
        for transaction in &fixture().transactions {
            let message = Message::Recover { transaction: transaction.clone(), evidence: Vec::new() };
            self.hear(Party::Client(CLIENTS[2], Session(7)), message);
            self.turn();
        }
    }
}

/// A process that comes back from what `medium` holds, and is still bound by its word.
fn start(medium: &Memory, now: u64, promises: Promises) -> Turns<Overheard> {
    let (segment_bytes_max, cache_bytes_max, deleted_keys_min) = (2_048, 4_096, 1);
    let options = Options { segment_bytes_max, cache_bytes_max, checkpoint_versions_max: 4, checkpoint_step: 2, deleted_keys_min };
    let store = Store::open(medium.clone(), options).expect("memory is whole after a crash");
    let settings = ReplicaOptions {
        window_ms: 10_000,
        checkpoint_ms: 1_000,
        undecided_max: UNDECIDED_MAX,
        memtable_bytes_max: 400,
        journal_bytes_max: 4_096,
        ..ReplicaOptions::default()
    };
    let cluster = fixture().cluster.clone();
    let replica = Replica::open(cluster.clone(), ME, settings, store, Time(now)).expect("it reads what it wrote");
    let node = Node::new(replica, Coordinator::new(cluster, CoordinatorOptions::default()));
    Turns::new(Overheard { node, promises, unsigned: Vec::new() }, Party::Replica(ME), Bounds::default())
}

/// What a replica says can be read, and others accept it.
fn others_accept(message: &Message) -> Verified<Message> {
    let received = Message::from_bytes(message.to_bytes().into(), CLUSTER).expect("what it says can be read");
    match verifier().verify(received) {
        Ok(message) => message,
        Err(rejection) => panic!("others refuse what it says: {rejection}: {message:?}"),
    }
}

/// What a page says of each key of this replica's shard, also that there is nothing.
fn told_of((range, direction): &(KeyRange, Direction), rows: &[ScanRow], end: &Key) -> (Vec<Key>, Vec<ReadResult>) {
    let is_read = |key: &Key| range.contains(key) && direction.has_passed(key, end);
    assert!(rows.iter().all(|row| is_read(&row.key)) && direction.order(direction.begin(range), end).is_lt());
    assert!(rows.is_sorted_by(|row, next| direction.order(&row.key, &next.key).is_lt()));
    let is_told = |key: &Key| is_read(key) && fixture().cluster.shard_of(key) == ME.shard;
    let keys: Vec<Key> = KEYS.into_iter().map(Key::from).filter(is_told).collect();
    assert!(rows.iter().all(|row| keys.contains(&row.key)), "nobody else wrote a key");
    let nothing = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
    let result = |key: &Key| rows.iter().find(|row| row.key == *key).map_or(nothing.clone(), |row| row.result.clone());
    let results = keys.iter().map(result).collect();
    (keys, results)
}

/// An answer shows, below the reader's time, a version of each key, and writers of it.
fn check_read(timestamp: Timestamp, keys: &[Key], results: &[ReadResult], prepared: &[Transaction]) {
    assert_eq!(results.len(), keys.len());
    for (key, result) in keys.iter().zip(results) {
        assert!(result.version < timestamp || result.version == Timestamp::ZERO);
        if let PendingWrite::Prepared(place) = result.pending {
            let writer = &prepared[usize::from(place)];
            assert!(writer.write_of(key).is_some() && writer.timestamp() < timestamp && writer.timestamp() > result.version);
        }
    }
}

/// Nobody is shown another's transaction with keys that it may not read.
fn check_rights(to: Party, message: &Message) {
    let shown: Vec<&Transaction> = match message {
        Message::ReadReply { prepared, .. } | Message::ScanReply { prepared, .. } => prepared.iter().collect(),
        Message::Voted { conflict: Some(Conflict::Committed { transaction, .. } | Conflict::Stalled { transaction }), .. } => {
            vec![transaction]
        }
        Message::Decided { certificate } | Message::Writeback { certificate, .. } => certificate.shows().into_iter().collect(),
        _ => Vec::new(),
    };
    let Party::Client(client, _) = to else { return };
    let permission = fixture().cluster.permission(client);
    for transaction in shown {
        let may_read = permission.is_some_and(|permission| {
            transaction.keys().all(|key| permission.may_read(key))
                && transaction.ranges().iter().all(|range| permission.may_read_range(range))
        });
        assert!(may_read || transaction.timestamp().client == client, "{client} is shown {transaction:?}");
    }
}

fn any_party(choices: &mut Choices<'_>) -> Party {
    let byte = choices.byte();
    match byte % 3 {
        0 | 1 => Party::Client(CLIENTS[usize::from(byte / 3) % CLIENTS.len()], Session(u64::from(byte / 128))),
        _ => {
            let other = replica(u16::from(byte / 3 % 3), u16::from(byte / 9 % 6));
            Party::Replica(if other == ME { replica(0, 3) } else { other })
        }
    }
}

/// A transaction that the fixture has not seen.
fn any_transaction(choices: &mut Choices<'_>) -> Transaction {
    let client = choices.one_of(&CLIENTS);
    let timestamp = timestamp(choices, client);
    let (mut reads, mut writes): (Vec<Read>, Vec<Write>) = (Vec::new(), Vec::new());
    for key in KEYS.into_iter().take(1 + choices.below(KEYS.len())) {
        let key = Key::from(key);
        let byte = choices.byte();
        if byte & 3 == 0 {
            let seen = &fixture().transactions[generators::number(choices)];
            let version = if byte & 4 == 0 { Timestamp::ZERO } else { seen.timestamp() };
            reads.push(Read { key: key.clone(), version, dependency: (byte & 24 == 24).then(|| seen.id()) });
        }
        if byte & 32 != 0 {
            writes.push(Write { key, value: (byte & 1 == 1).then(|| Value::from("fuzz")) });
        }
    }
    let ranges = (0..choices.below(3)).filter_map(|_| generators::range(choices)).collect();
    Transaction::with_ranges(CLUSTER, timestamp, reads, ranges, writes).expect("keys are distinct and few")
}

fn timestamp(choices: &mut Choices<'_>, client: ClientId) -> Timestamp {
    let other = fixture().transactions[generators::number(choices)].timestamp();
    match choices.below(3) {
        0 => Timestamp::new(other.time, client),
        1 => Timestamp::new(NOW - u64::from(choices.byte()) * 10 * MILLISECOND, client),
        _ => Timestamp::new(NOW + choices.number() % (50_000 * MILLISECOND), client),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    // A message: its step, whether it is a reply, what it is made of, who says it, whether the turn ends and it is damaged.
    let say = |made: &[u8], from: u8| [&[0, 0][..], made, &[from, 0, 0]].concat();
    let ordinary = [say(&[0, 0], 0), say(&[4, 0, 0, 0, 0, 0, 0], 0), say(&[8, 0, 0, 0, 0], 0)].concat();
    let chain = [say(&[0, 0], 0), say(&[0, 2], 6), say(&[0, 15], 6), say(&[8, 0, 0, 0, 0], 0), vec![14, 0], say(&[0, 2], 6)].concat();
    let divergent = [
        say(&[0, 0], 0),
        say(&[4, 0, 0, 0, 0, 0], 0),
        say(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0),
        say(&[6, 0, 1, 0, 0], 2),
        say(&[7, 0, 0, 0, 3, 0], 2),
        vec![14, 2],
        say(&[7, 0, 1, 0, 255, 0], 2),
    ];
    let stormy = [
        say(&[3, 12, 0, 0, 3], 0),
        vec![12, 4],
        say(&[2, 0, 0, 0, 2, 0, 1], 3),
        vec![15, 9, 1],
        vec![13, 6],
        say(&[1, 18], 0),
        vec![12, 7],
    ];
    vec![ordinary, chain, divergent.concat(), stormy.concat()]
}
