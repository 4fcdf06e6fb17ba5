//! A coordinator, to whom every replica may answer anything that is signed well.
//!
//! It must never panic, end everything it was asked to do, say only what replicas accept, read only what enough replicas
//! vouch for, and give its application no certificate that does not prove what it says.

use std::collections::{BTreeMap, BTreeSet};

use basil::certificate::{LoggedStatement, SignedLogged, SignedVote, VoteStatement};
use basil::message::{PendingWrite, ReadResult, ScanRow};
use basil::{
    Command, Coordinator, CoordinatorOptions, Decision, Event, FastPath, Message, RangeFound, Read, ReadFound, ReadQuorum, Transaction,
    Vote,
};
use engine::ReadMode;
use machine::{Input, Machine as _, Outbox, OutboxOf, Time, Voters};
use types::codec::{Decode, Encode};
use types::{Direction, Key, KeyRange, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId, Value};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLIENTS, CLUSTER, MILLISECOND, NOW, REPLICAS, Said, fixture, replica, verifier};
use crate::generators::{self, KEYS};
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "coordinator",
    what: "answers a coordinator with anything signed: what it tells its application is proven, and everything ends",
    bytes_max: 1_024,
    runs: 500,
    run,
    seeds,
};

/// The most things that happen in one input.
const STEPS_MAX: usize = 96;
/// After how long the coordinator gives up, in milliseconds.
const TIMEOUT_MS: u64 = 2_000;

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let quorums = [ReadQuorum::Majority, ReadQuorum::WeakQuorum, ReadQuorum::Commit, ReadQuorum::One];
    let read_quorum = choices.one_of(&quorums);
    let fast_path = choices.one_of(&[FastPath::On, FastPath::Off]);
    let options = CoordinatorOptions { read_quorum, fast_path, timeout_ms: TIMEOUT_MS, ..CoordinatorOptions::default() };
    let mut process = Process {
        coordinator: Coordinator::new(fixture().cluster.clone(), options),
        vouchers: if read_quorum == ReadQuorum::One { 1 } else { 2 },
        outbox: Outbox::default(),
        now: NOW,
        operations: 0,
        reads: BTreeMap::new(),
        scans: BTreeMap::new(),
        as_of: BTreeSet::new(),
        found: Vec::new(),
        readings: BTreeMap::new(),
        validated: BTreeSet::new(),
        commits: BTreeMap::new(),
        committed: Vec::new(),
        requests: BTreeMap::new(),
        pages: BTreeMap::new(),
    };
    let mut steps = 0;
    while !choices.is_done() && steps < STEPS_MAX {
        process.step(&mut choices);
        steps += 1;
    }
    process.end();
}

/// What was answered to all that was asked at one timestamp.
#[derive(Default)]
struct Reading {
    /// For each key: who answered what.
    committed: BTreeSet<(Key, Timestamp, Option<Vec<u8>>, u16)>,
    prepared: BTreeSet<(Key, TransactionId, u16)>,
}

struct Process {
    coordinator: Coordinator,
    /// How many replicas must say the same before it is believed.
    vouchers: usize,
    outbox: OutboxOf<Coordinator>,
    now: u64,
    operations: u64,
    /// Reads under way, each at a timestamp of its own.
    reads: BTreeMap<u64, (Timestamp, Vec<Key>)>,
    /// Scans under way, likewise.
    scans: BTreeMap<u64, (Timestamp, (KeyRange, Direction, usize))>,
    /// Which of these read the past.
    as_of: BTreeSet<u64>,
    /// Reads that have ended, and what they found.
    found: Vec<(Timestamp, Vec<ReadFound>)>,
    readings: BTreeMap<Timestamp, Reading>,
    /// For whom a version of a key is settled, read at which timestamp.
    validated: BTreeSet<(Timestamp, Key, Timestamp, u16)>,
    commits: BTreeMap<u64, Transaction>,
    /// What it has seen commit.
    committed: Vec<Transaction>,
    /// Requests that replicas have heard: at which timestamp, of which keys.
    requests: BTreeMap<u64, (Timestamp, Vec<Key>)>,
    /// The same of pages of ranges, and of which shard.
    pages: BTreeMap<u64, (Timestamp, ShardId, (KeyRange, Direction))>,
}

impl Process {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(17) {
            0 => self.read(choices),
            1 | 2 => {
                let transaction = fixture().transactions[generators::number(choices)].clone();
                let dependencies = (0..choices.below(2)).map(|_| fixture().transactions[generators::number(choices)].clone()).collect();
                self.operations += 1;
                self.commits.insert(self.operations, transaction.clone());
                self.command(Command::Commit { operation: self.operations, transaction, dependencies });
            }
            3 => {
                let transaction = fixture().transactions[generators::number(choices)].clone();
                self.command(Command::Finish { transaction });
            }
            4 | 5 => self.many_votes(choices),
            6 | 7 => self.many_logged(choices),
            8 => self.many_read_replies(choices),
            9..12 => {
                let message = if choices.rarely(8) { generators::request(choices) } else { generators::reply(choices) };
                let from = speaker(choices, &message);
                self.hear(from, message);
            }
            12 => {
                let from = Party::Client(CLIENTS[0], Session(1));
                self.hear(from, generators::message(choices));
            }
            13 => self.commit_reads(choices),
            15 => self.scan(choices),
            16 => self.many_scan_replies(choices),
            _ => {
                self.now += choices.one_of(&[1, 5, 25, 110, 400, 900, 2_100]) * MILLISECOND;
                self.tick();
            }
        }
    }

    fn read(&mut self, choices: &mut Choices<'_>) {
        let mask = choices.byte();
        let keys: Vec<Key> = KEYS.into_iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, key)| Key::from(key)).collect();
        self.operations += 1;
        let timestamp = Timestamp::new(NOW + self.operations, CLIENTS[0]);
        self.reads.insert(self.operations, (timestamp, keys.clone()));
        let mode = self.read_mode(choices);
        self.command(Command::Read { operation: self.operations, timestamp, keys, mode });
    }

    fn read_mode(&mut self, choices: &mut Choices<'_>) -> ReadMode {
        let mode = choices.one_of(&[ReadMode::Interactive, ReadMode::ReadOnly, ReadMode::AsOf]);
        if mode == ReadMode::AsOf {
            self.as_of.insert(self.operations);
        }
        mode
    }

    fn scan(&mut self, choices: &mut Choices<'_>) {
        let Some(range) = generators::range(choices) else { return };
        self.operations += 1;
        let timestamp = Timestamp::new(NOW + self.operations, CLIENTS[0]);
        let (limit, mode, direction) = (1 + choices.below(4), self.read_mode(choices), generators::direction(choices));
        self.scans.insert(self.operations, (timestamp, (range.clone(), direction, limit)));
        self.command(Command::Scan { operation: self.operations, timestamp, range, direction, limit, mode });
    }

    /// Commits a transaction that has read what an earlier read found, and nothing else.
    fn commit_reads(&mut self, choices: &mut Choices<'_>) {
        let at = choices.below(self.found.len());
        let Some((timestamp, found)) = self.found.get(at).cloned() else { return };
        let read = |found: &ReadFound| Read {
            key: found.key.clone(),
            version: found.version,
            dependency: found.dependency.as_ref().map(Transaction::id),
        };
        let reads = found.iter().map(read).collect();
        let transaction = Transaction::new(CLUSTER, timestamp, reads, Vec::new()).expect("keys are distinct and few");
        let of = |read: &Read| found.iter().find(|found| found.key == read.key).map_or(Voters::default(), |found| found.validated);
        let validated = transaction.reads().iter().map(of).collect();
        self.operations += 1;
        self.commits.insert(self.operations, transaction.clone());
        self.command(Command::CommitReads { operation: self.operations, transaction, validated });
    }

    /// The votes of several replicas of one shard, in one go.
    fn many_votes(&mut self, choices: &mut Choices<'_>) {
        let (number, who, sides) = (generators::number(choices), choices.byte(), choices.byte());
        let id = fixture().transactions[number].id();
        let shards = reference::shards_of(&fixture().cluster, &fixture().transactions[number]);
        let Some(shard) = shards.get(choices.below(shards.len())).copied() else { return };
        for index in (0..REPLICAS).filter(|index| who >> index & 1 == 0) {
            let (signer, vote) = (ReplicaId { shard, index }, if sides >> index & 1 == 0 { Vote::Commit } else { Vote::Abort });
            let statement = VoteStatement { id, vote };
            let vote = SignedVote { replica: signer, statement, signature: fixture().signature(signer, number, &Said::Vote(statement)) };
            self.hear(Party::Replica(signer), Message::Voted { vote, conflict: None });
        }
    }

    /// The decisions that several replicas of the logging shard have written down.
    fn many_logged(&mut self, choices: &mut Choices<'_>) {
        let (number, who, sides) = (generators::number(choices), choices.byte(), choices.byte());
        let id = fixture().transactions[number].id();
        let shards = reference::shards_of(&fixture().cluster, &fixture().transactions[number]);
        let Some(shard) = reference::logging_shard(&shards, id) else { return };
        let view_decision = u32::from(choices.byte() % 3);
        for index in (0..REPLICAS).filter(|index| who >> index & 1 == 0) {
            let (signer, decision) = (ReplicaId { shard, index }, if sides >> index & 1 == 0 { Decision::Commit } else { Decision::Abort });
            let view_current = view_decision.max(u32::from(who / 64));
            let statement = LoggedStatement { id, decision, view_decision, view_current: view_current.min(2) };
            let logged =
                SignedLogged { replica: signer, statement, signature: fixture().signature(signer, number, &Said::Logged(statement)) };
            self.hear(Party::Replica(signer), Message::Logged { logged });
        }
    }

    /// The same answer to a read from several replicas.
    fn many_read_replies(&mut self, choices: &mut Choices<'_>) {
        let open: Vec<u64> = self.requests.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let (request, who) = (choices.one_of(&open), choices.byte());
        let (_, keys) = &self.requests[&request];
        let shard = keys.first().map_or(ShardId(0), |key| fixture().cluster.shard_of(key));
        let writer = fixture().transactions[generators::number(choices)].clone();
        let kinds = choices.byte();
        let results = keys.iter().enumerate().map(|(at, _)| match kinds >> (at % 4 * 2) & 3 {
            0 => ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None },
            1 => ReadResult { version: writer.timestamp(), value: Some(Value::from("1")), pending: PendingWrite::None },
            2 => ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::Prepared(0) },
            _ => ReadResult { version: Timestamp::new(7, CLIENTS[0]), value: None, pending: PendingWrite::Hidden },
        });
        let (results, prepared) = (results.collect(), vec![writer]);
        let message = Message::ReadReply { request, clock: self.now, results, prepared, is_promised: who >> REPLICAS < 3 };
        for index in (0..REPLICAS).filter(|index| who >> index & 1 == 0) {
            self.hear(Party::Replica(ReplicaId { shard, index }), message.clone());
        }
    }

    /// The same page from several replicas.
    fn many_scan_replies(&mut self, choices: &mut Choices<'_>) {
        let open: Vec<u64> = self.pages.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let (request, who) = (choices.one_of(&open), choices.byte());
        let (_, shard, (range, asked)) = self.pages[&request].clone();
        let direction = if choices.rarely(16) { generators::direction(choices) } else { asked };
        let (rows, prepared) = generators::scan_rows(direction, choices);
        let somewhere = Key::from(choices.one_of(&KEYS));
        let end = choices.one_of(&[range.high().clone(), somewhere, range.low().clone()]);
        let inside = rows.into_iter().filter(|row| range.contains(&row.key) && direction.has_passed(&row.key, &end));
        let rows = inside.collect();
        let message = Message::ScanReply { request, clock: self.now, direction, rows, end, prepared, is_promised: who >> REPLICAS < 3 };
        for index in (0..REPLICAS).filter(|index| who >> index & 1 == 0) {
            self.hear(Party::Replica(ReplicaId { shard, index }), message.clone());
        }
    }

    fn command(&mut self, command: Command) {
        self.coordinator.step(Time(self.now), Input::Command(command), &mut self.outbox);
        self.look();
    }

    fn hear(&mut self, from: Party, message: Message) {
        if let (Party::Replica(from), Message::ReadReply { request, results, prepared, is_promised, .. }) = (from, &message) {
            self.note_reply(from, *request, results, prepared, *is_promised);
        }
        if let (Party::Replica(from), Message::ScanReply { request, direction, rows, end, prepared, is_promised, .. }) = (from, &message) {
            self.note_page(from, *request, (*direction, rows, end), prepared, *is_promised);
        }
        let received = if generators::is_writable(&message) {
            Message::from_bytes(message.to_bytes().into(), CLUSTER).expect("what can be written can be read")
        } else {
            message
        };
        let Ok(message) = verifier().verify(received) else { return };
        self.coordinator.step(Time(self.now), Input::Message { from, message }, &mut self.outbox);
        self.look();
    }

    fn note_reply(&mut self, from: ReplicaId, request: u64, results: &[ReadResult], prepared: &[Transaction], is_promised: bool) {
        let Some((timestamp, keys)) = self.requests.get(&request).cloned() else { return };
        self.note(from, timestamp, keys.iter().zip(results.iter().cloned()), prepared, is_promised);
    }

    /// A page also says that there is nothing of the keys that it does not name.
    fn note_page(
        &mut self,
        from: ReplicaId,
        request: u64,
        (direction, rows, end): (Direction, &[ScanRow], &Key),
        prepared: &[Transaction],
        is_promised: bool,
    ) {
        let Some((timestamp, _, (range, asked))) = self.pages.get(&request).cloned() else { return };
        if direction != asked {
            return;
        }
        let keys = KEYS.into_iter().map(Key::from).filter(|key| range.contains(key) && direction.has_passed(key, end));
        let keys: Vec<Key> = keys.collect();
        let result = |key: &Key| {
            let named = rows.iter().find(|row| row.key == *key).map(|row| row.result.clone());
            named.unwrap_or(ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None })
        };
        self.note(from, timestamp, keys.iter().map(|key| (key, result(key))), prepared, is_promised);
    }

    fn note<'a>(
        &mut self,
        from: ReplicaId,
        timestamp: Timestamp,
        results: impl Iterator<Item = (&'a Key, ReadResult)>,
        prepared: &[Transaction],
        is_promised: bool,
    ) {
        let reading = self.readings.entry(timestamp).or_default();
        for (key, result) in results {
            let value = result.value.as_ref().map(|value| value.as_bytes().to_vec());
            if fixture().cluster.shard_of(key) == from.shard {
                reading.committed.insert((key.clone(), result.version, value, from.index));
                let last = match result.pending {
                    PendingWrite::Prepared(place) => {
                        let Some(writer) = prepared.get(usize::from(place)) else { continue };
                        reading.prepared.insert((key.clone(), writer.id(), from.index));
                        Some(writer.timestamp())
                    }
                    PendingWrite::None => Some(result.version),
                    PendingWrite::Hidden => None,
                };
                if let Some(last) = last.filter(|_| is_promised) {
                    self.validated.insert((timestamp, key.clone(), last, from.index));
                }
            }
        }
    }

    fn tick(&mut self) {
        self.coordinator.step(Time(self.now), Input::Tick, &mut self.outbox);
        self.look();
    }

    /// Looks at what the coordinator said and told.
    fn look(&mut self) {
        assert!(self.outbox.unsigned.is_empty(), "a coordinator signs nothing");
        for (to, message) in std::mem::take(&mut self.outbox.sends) {
            let Party::Replica(to) = to else { panic!("a coordinator speaks to replicas") };
            assert!(fixture().cluster.replica_key(to).is_some());
            if let Message::Read { request, timestamp, keys } = &message {
                assert!(keys.iter().all(|key| fixture().cluster.shard_of(key) == to.shard));
                self.requests.insert(*request, (*timestamp, keys.clone()));
            }
            if let Message::Scan { request, timestamp, range, direction, .. } = &message {
                assert_eq!(fixture().cluster.part_of(to.shard, range).as_ref(), Some(range), "a shard is asked for its part");
                self.pages.insert(*request, (*timestamp, to.shard, (range.clone(), *direction)));
            }
            let received = Message::from_bytes(message.to_bytes().into(), CLUSTER).expect("what it says can be read");
            if let Err(rejection) = verifier().verify(received) {
                panic!("replicas refuse what it says: {rejection}: {message:?}");
            }
        }
        for event in std::mem::take(&mut self.outbox.events) {
            match event {
                Event::Read { operation, result } => {
                    let (timestamp, keys) = self.reads.remove(&operation).expect("a read ends once");
                    if let Ok(found) = result {
                        self.check_read(timestamp, &keys, &found);
                        let is_final = |found: &ReadFound| found.dependency.is_none() && found.validated.count() >= 4;
                        assert!(!self.as_of.contains(&operation) || found.iter().all(is_final), "what is read of the past is settled");
                        self.found.push((timestamp, found));
                    }
                }
                Event::Scanned { operation, result } => {
                    let (timestamp, range) = self.scans.remove(&operation).expect("a scan ends once");
                    if let Ok(found) = result {
                        self.check_scan(timestamp, &range, &found);
                        assert!(!self.as_of.contains(&operation) || found.is_validated, "what is read of the past is settled");
                    }
                }
                Event::Validated { operation } => {
                    let transaction = self.commits.remove(&operation).expect("a commit ends once");
                    for Read { key, version, .. } in transaction.reads() {
                        let validated = |index: &u16| self.is_validated(transaction.timestamp(), key, *version, *index);
                        assert!((0..REPLICAS).filter(validated).count() >= 4, "{key} is not settled at {version}");
                    }
                }
                Event::Ended { operation, result } => {
                    let transaction = self.commits.remove(&operation).expect("a commit ends once");
                    if let Ok((certificate, _)) = result {
                        let message =
                            Message::Writeback { transaction: Some(transaction.clone()), certificate: certificate.clone(), relay: false };
                        assert!(reference::accepts(&fixture().cluster, &message), "{certificate:?}");
                        assert!(reference::proves(&fixture().cluster, &certificate, &transaction), "{certificate:?}");
                        self.committed.extend((certificate.decision == Decision::Commit).then_some(transaction));
                    }
                }
            }
        }
    }

    /// Enough replicas of the key's shard said it.
    fn check_read(&self, timestamp: Timestamp, keys: &[Key], found: &[ReadFound]) {
        assert!(found.iter().map(|found| &found.key).eq(keys), "every key asked for, in order");
        let nothing = Reading::default();
        let reading = self.readings.get(&timestamp).unwrap_or(&nothing);
        for ReadFound { key, version, value, dependency, validated, is_withheld: _ } in found {
            let validated = (0..REPLICAS).filter(|index| validated.contains(*index));
            validated.for_each(|index| assert!(self.is_validated(timestamp, key, *version, index)));
            let value = value.as_ref().map(|value| value.as_bytes().to_vec());
            let vouchers = match dependency {
                Some(writer) => {
                    assert_eq!(writer.timestamp(), *version);
                    let written = writer.write_of(key).expect("a writer writes the key").value.as_ref();
                    assert_eq!(written.map(|value| value.as_bytes().to_vec()), value);
                    (0..REPLICAS).filter(|index| reading.prepared.contains(&(key.clone(), writer.id(), *index))).count()
                }
                None => {
                    let said = |index: &u16| reading.committed.contains(&(key.clone(), *version, value.clone(), *index));
                    let committed = (0..REPLICAS).filter(said).count();
                    // Or it is prepared, and this process has seen its writer commit.
                    let own = self.committed.iter().filter(|writer| writer.timestamp() == *version && writer.write_of(key).is_some());
                    let prepared = own
                        .map(|writer| (0..REPLICAS).filter(|index| reading.prepared.contains(&(key.clone(), writer.id(), *index))).count());
                    prepared.fold(committed, usize::max)
                }
            };
            assert!(vouchers >= self.vouchers, "{vouchers} replicas vouch for {key} at {version}");
        }
    }

    /// Enough replicas said of each key found that it has this value, and of each other key of what counts as read that it has none.
    fn check_scan(&self, timestamp: Timestamp, (range, direction, limit): &(KeyRange, Direction, usize), scan: &RangeFound) {
        assert!(direction.begin(&scan.range) == direction.begin(range));
        assert!(direction.order(direction.end(&scan.range), direction.end(range)).is_le());
        let live = scan.found.iter().filter(|found| found.value.is_some()).count();
        assert!(if scan.range == *range { live <= *limit } else { live == *limit }, "{live} of {limit} in {} of {range}", scan.range);
        let keys: Vec<Key> = scan.found.iter().map(|found| found.key.clone()).collect();
        assert!(keys.is_sorted_by(|key, next| direction.order(key, next).is_lt()) && keys.iter().all(|key| scan.range.contains(key)));
        self.check_read(timestamp, &keys, &scan.found);
        let nothing = Reading::default();
        let reading = self.readings.get(&timestamp).unwrap_or(&nothing);
        for key in KEYS.into_iter().map(Key::from).filter(|key| scan.range.contains(key)) {
            let found = scan.found.iter().find(|found| found.key == key);
            let absent =
                reading.committed.iter().filter(|(one, _, value, _)| *one == key && value.is_none()).map(|(_, version, ..)| *version);
            let erased = self.committed.iter().filter(|writer| writer.write_of(&key).is_some_and(|write| write.value.is_none()));
            let versions: BTreeSet<Timestamp> = match found {
                Some(found) => BTreeSet::from([found.version]),
                None => absent.chain(erased.clone().map(Transaction::timestamp)).collect(),
            };
            let said = |version: &Timestamp, index: &u16| {
                reading.committed.contains(&(key.clone(), *version, None, *index))
                    || erased
                        .clone()
                        .any(|writer| writer.timestamp() == *version && reading.prepared.contains(&(key.clone(), writer.id(), *index)))
            };
            let vouched = |version: &Timestamp| (0..REPLICAS).filter(|index| said(version, index)).count() >= self.vouchers;
            assert!(found.is_some() || versions.iter().any(vouched), "nobody says that {key} has no value");
            let validated =
                |version: &Timestamp| (0..REPLICAS).filter(|index| self.is_validated(timestamp, &key, *version, *index)).count();
            assert!(!scan.is_validated || versions.iter().any(|version| validated(version) >= 4), "{key} is not settled");
        }
    }

    /// Whether a replica of the key's shard has said that nothing newer than this version will be there.
    fn is_validated(&self, timestamp: Timestamp, key: &Key, version: Timestamp, index: u16) -> bool {
        self.validated.contains(&(timestamp, key.clone(), version, index))
    }

    /// Nobody answers any more: everything ends.
    fn end(mut self) {
        let mut ticks = 0;
        while let Some(deadline) = self.coordinator.deadline() {
            self.now = self.now.max(deadline.0);
            self.tick();
            ticks += 1;
            assert!(ticks < 10_000, "timers go on for ever");
        }
        assert_eq!(self.coordinator.load(), (0, 0), "something never ends");
        assert!(self.reads.is_empty() && self.scans.is_empty() && self.commits.is_empty(), "somebody was never told");
    }
}

/// Who says a message: mostly its signer, now and then somebody else.
fn speaker(choices: &mut Choices<'_>, message: &Message) -> Party {
    let other = replica(u16::from(choices.byte() % 3), u16::from(choices.byte() % 6));
    let signer = match message {
        Message::Voted { vote, .. } => vote.replica,
        Message::Logged { logged } => logged.replica,
        _ => other,
    };
    Party::Replica(if choices.rarely(8) { other } else { signer })
}

fn seeds() -> Vec<Vec<u8>> {
    let commit = |number: u8| vec![1, number, 0];
    let votes = |number: u8, who: u8, sides: u8, shard: u8| vec![4, number, who, sides, shard];
    let logged = |number: u8, who: u8, sides: u8, view: u8| vec![6, number, who, sides, view];
    let life = |steps: &[Vec<u8>]| [&[0, 0][..], &steps.concat()].concat();
    vec![
        life(&[commit(0), votes(0, 0, 0, 0)]),
        life(&[commit(0), votes(0, 32, 0, 0), vec![14, 2], logged(0, 0, 0, 0)]),
        life(&[commit(2), votes(2, 0, 0, 0), votes(2, 0, 30, 1), logged(2, 0, 7, 0), vec![14, 4], logged(2, 0, 0, 1)]),
        life(&[vec![0, 0b0000_1011, 0], vec![8, 0, 0, 0, 0], vec![8, 1, 0, 0, 0b01], vec![8, 2, 0, 0, 0b10]]),
        life(&[vec![0, 0b0000_1011, 1], vec![8, 0, 0, 0, 0], vec![8, 1, 56, 0, 0b01], vec![13, 0], vec![8, 2, 0, 0, 0]]),
        life(&[commit(1), vec![9, 0, 0, 1, 0, 3, 0, 1, 3, 0, 0, 0, 0, 0], vec![9, 0, 0, 1, 0, 4, 1, 1, 2, 0, 0, 0, 0], vec![14, 6]]),
        life(&[vec![3, 4], vec![14, 3], votes(4, 0, 63, 1), vec![14, 5]]),
        life(&[vec![15, 0, 7, 3, 1, 0], vec![16, 0, 0, 0, 1, 0, 0], vec![16, 1, 0, 0, 2, 0, 1, 0, 0], vec![14, 2]]),
        life(&[vec![15, 0, 7, 3, 1, 1], vec![16, 0, 0, 0, 1, 0, 0], vec![16, 1, 0, 0, 2, 0, 1, 0, 0], vec![14, 2]]),
        life(&[vec![15, 0, 3, 0, 0, 0], vec![16, 0, 48, 0, 1, 0, 1, 1], vec![16, 0, 15, 0, 0, 1], vec![14, 3]]),
    ]
}
