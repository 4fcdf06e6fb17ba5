//! Random histories: one shard against a plain interpreter, and several shards against the definition of strict serializability.

use std::collections::{BTreeMap, BTreeSet};

use augustus::certificate::{Certificate, Vote};
use augustus::{AbortReason, Answer, Executor, Fetch, Found, Operation, Piece, Reply, Request, Snapshot, Structural, Transaction, Verdict};
use bytes::Bytes;
use crypto::Signatures;
use types::{ClientId, Cluster, Direction, Key, KeyRange, TransactionId, Value};

use crate::harness::{Harness, Random, key, range, signed_vote, value};

const AUTHORS: [ClientId; 4] = [ClientId(1), ClientId(2), ClientId(4), ClientId(5)];

/// What a transaction does, in the plainest words.
fn interpret(cluster: &Cluster, rows: &mut BTreeMap<Key, Value>, operations: &[Operation]) -> Result<Vec<Found>, u32> {
    let mut after = rows.clone();
    let mut found = Vec::new();
    for (place, operation) in (0..).zip(operations) {
        let holds = match operation {
            Operation::Compare(key, expected) => rows.get(key) == expected.as_ref(),
            Operation::CompareRange(range, _) => *operation == Operation::compare_rows(cluster, range.clone(), &inside(rows, range)),
            _ => true,
        };
        if !holds {
            return Err(place);
        }
    }
    for (place, operation) in (0..).zip(operations) {
        match operation {
            Operation::Compare(..) | Operation::CompareRange(..) => {}
            Operation::Read(key) => found.push(Found::Value(after.get(key).cloned())),
            Operation::ReadRange(range, direction, rows_max) => {
                let inside = direction.of(after.range(range.low().clone()..range.high().clone())).take(*rows_max as usize);
                found.push(Found::Rows(inside.map(|(key, value)| (key.clone(), value.clone())).collect()));
            }
            Operation::Insert(key, _) if after.contains_key(key) => return Err(place),
            Operation::Write(key, _) if !after.contains_key(key) => return Err(place),
            Operation::Insert(key, value) | Operation::Write(key, value) | Operation::Put(key, value) => {
                after.insert(key.clone(), value.clone());
            }
            Operation::Delete(key) => {
                after.remove(key);
            }
        }
    }
    *rows = after;
    Ok(found)
}

fn inside(rows: &BTreeMap<Key, Value>, range: &KeyRange) -> Vec<(Key, Value)> {
    rows.range(range.low().clone()..range.high().clone()).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn random_key(random: &mut Random, prefix: &str, count: usize) -> Key {
    key(&format!("{prefix}{:03}", random.below(count)))
}

fn random_operation(random: &mut Random, prefix: &str, keys: usize, new: &str) -> Operation {
    let key = random_key(random, prefix, keys);
    match random.below(8) {
        0 => Operation::Compare(key, (random.below(2) == 0).then(|| value(new))),
        1 => Operation::Read(key),
        2 => {
            let other = random_key(random, prefix, keys);
            let (low, high) = if key < other { (key, other) } else { (other, key.successor().expect("short")) };
            let range = types::KeyRange::new(low, high).expect("the end is above the beginning");
            let direction = if random.below(2) == 0 { Direction::Ascending } else { Direction::Descending };
            Operation::ReadRange(range, direction, random.below(30) as u32)
        }
        3 => Operation::Insert(key, value(new)),
        4 => Operation::Write(key, value(new)),
        5 | 6 => Operation::Put(key, value(new)),
        _ => Operation::Delete(key),
    }
}

#[test]
fn one_shard_does_what_one_transaction_after_the_other_would() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let structural = if seed % 2 == 0 { Structural::Intervals } else { Structural::WholeShard };
        let mut harness = Harness::new(1, structural, Signatures::Ed25519);
        let (mut rows, keys) = (BTreeMap::new(), random.pick(&[5, 40, 400]));
        for number in 1..=150 {
            let count = 1 + random.below(8);
            let operations: Vec<_> = (0..count).map(|_| random_operation(&mut random, "k", keys, &(number % 7).to_string())).collect();
            let mut operations = operations;
            if random.below(3) == 0 {
                let range = range("k", &format!("k{:03}", 1 + random.below(keys)));
                let mut seen = inside(&rows, &range);
                if random.below(4) == 0 {
                    seen.pop();
                }
                operations.push(Operation::compare_rows(&harness.cluster, range, &seen));
            }
            let transaction = harness.transaction(random.pick(&AUTHORS), 1, number, operations);
            let expected = match interpret(&harness.cluster, &mut rows, transaction.operations()) {
                Ok(found) => Verdict::Commit(Some(found)),
                Err(place) => Verdict::Abort(AbortReason::Mismatch(place)),
            };
            assert_eq!(harness.run(0, &transaction), expected, "seed {seed}: {transaction:?}");
        }
        let whole = harness.transaction(AUTHORS[0], 2, 1, vec![Operation::ReadRange(range("a", "z"), Direction::Ascending, 4_096)]);
        assert_eq!(harness.run(0, &whole), Verdict::Commit(Some(vec![Found::Rows(rows.into_iter().collect())])));
    }
}

/// One transaction of a history.
struct Track {
    transaction: Transaction,
    participants: Vec<u16>,
    verdicts: BTreeMap<u16, Verdict>,
    begun: usize,
    /// When its author knew how it ends.
    known: Option<usize>,
    outcome: Option<Vote>,
    /// Where it has been ended.
    ended: BTreeSet<u16>,
    is_left: bool,
    /// Which version of which key it saw.
    reads: BTreeSet<(Key, usize)>,
}

struct World {
    harness: Harness,
    random: Random,
    now: usize,
    tracks: Vec<Track>,
    by_id: BTreeMap<TransactionId, usize>,
    /// Every vote that a shard's replicas were to sign.
    signed: BTreeMap<(u16, TransactionId), Vote>,
    /// Of each key, who wrote it and what, in the order in which that took place.
    versions: BTreeMap<Key, Vec<(usize, Option<Value>)>>,
    snapshots: Vec<Snapshot>,
    conflicts: usize,
}

const PREFIXES: [&str; 3] = ["a", "n", "u"];
const KEYS: usize = 4;

impl World {
    fn new(seed: u64, structural: Structural) -> Self {
        let harness = Harness::new(3, structural, Signatures::Ed25519);
        let snapshots = (0..3).map(|_| Snapshot::new(harness.cluster.id())).collect();
        Self {
            harness,
            random: Random(seed),
            now: 0,
            tracks: Vec::new(),
            by_id: BTreeMap::new(),
            signed: BTreeMap::new(),
            versions: BTreeMap::new(),
            snapshots,
            conflicts: 0,
        }
    }

    fn begin(&mut self) {
        let at = self.tracks.len();
        let shards = self.random.pick(&[1, 1, 2, 2, 2, 3]);
        let mut prefixes = PREFIXES;
        self.random.shuffle(&mut prefixes);
        let is_read_only = self.random.below(4) == 0;
        let (mut queries, mut updates) = (Vec::new(), Vec::new());
        for prefix in &prefixes[..shards] {
            for _ in 0..1 + self.random.below(3) {
                let operation = random_operation(&mut self.random, prefix, KEYS, &at.to_string());
                match operation {
                    // What the key has in truth, most of the time.
                    Operation::Compare(key, _) => {
                        let last = self.versions.get(&key).and_then(|versions| versions.last()).and_then(|(_, value)| value.clone());
                        queries.push(Operation::Compare(key, last));
                    }
                    operation if !operation.is_update() => queries.push(operation),
                    operation if is_read_only => queries.push(Operation::Read(operation.key().expect("an update has one").clone())),
                    operation => updates.push(operation),
                }
            }
        }
        queries.append(&mut updates);
        let transaction = self.harness.transaction(self.random.pick(&AUTHORS), 1, at as u64 + 1, queries);
        let participants = transaction.participants(&self.harness.cluster).into_iter().map(|shard| shard.0).collect();
        self.by_id.insert(transaction.id(), at);
        self.tracks.push(Track {
            transaction,
            participants,
            verdicts: BTreeMap::new(),
            begun: self.now,
            known: None,
            outcome: None,
            ended: BTreeSet::new(),
            is_left: false,
            reads: BTreeSet::new(),
        });
    }

    /// Delivers a request at a shard, and notes what was signed, and what the transaction `at` has written by it.
    fn deliver(&mut self, shard: u16, client: ClientId, request: Request, at: usize) -> Reply {
        self.now += 1;
        let reply = self.harness.one(shard, client, request);
        let id = self.tracks[at].transaction.id();
        if let Some(vote) = signed_vote(&reply) {
            let before = self.signed.insert((shard, id), vote);
            // Who has heard that another shard has voted it down may say the same: it never commits.
            let is_down = vote == Vote::Abort && self.tracks[at].outcome == Some(Vote::Abort);
            assert!(before.is_none_or(|before| before == vote || is_down), "a shard has changed its vote");
        }
        for number in 0..KEYS {
            let key = key(&format!("{}{number:03}", PREFIXES[usize::from(shard)]));
            let present = self.harness.executors[usize::from(shard)][0].value(&key);
            let versions = self.versions.entry(key).or_insert_with(|| vec![(usize::MAX, None)]);
            if versions.last().is_some_and(|(_, value)| *value != present) {
                versions.push((at, present));
            }
        }
        reply
    }

    /// Notes which versions a transaction sees at `shard`, where it was just voted to commit, and that it was told these.
    fn note_reads(&mut self, shard: u16, at: usize) {
        let track = &mut self.tracks[at];
        let Some(Verdict::Commit(Some(found))) = track.verdicts.get(&shard) else { panic!("it was just executed") };
        let mut found = found.iter();
        let is_alone = track.participants.len() == 1;
        for (_, operation) in track.transaction.operations_at(&self.harness.cluster, types::ShardId(shard)) {
            let keys: Vec<Key> = match operation {
                Operation::Compare(key, _) | Operation::Read(key) => vec![key.clone()],
                Operation::ReadRange(range, ..) => self.versions.keys().filter(|key| range.contains(key)).cloned().collect(),
                _ => continue,
            };
            // Alone on its shard it has already written by now, so the version before its own.
            let seen = |key: &Key| {
                let versions = &self.versions[key];
                let own = usize::from(is_alone && versions.last().is_some_and(|(writer, _)| *writer == at));
                (versions.len() - 1 - own, versions[versions.len() - 1 - own].1.clone())
            };
            let expected = match operation {
                Operation::Compare(key, expected) => {
                    assert_eq!(seen(key).1, *expected);
                    None
                }
                Operation::Read(key) => Some(Found::Value(seen(key).1)),
                Operation::ReadRange(_, direction, rows_max) => {
                    let rows = direction.of(keys.iter()).filter_map(|key| Some((key.clone(), seen(key).1?)));
                    Some(Found::Rows(rows.take(*rows_max as usize).collect()))
                }
                _ => None,
            };
            if let Some(expected) = expected {
                assert_eq!(found.next(), Some(&expected), "transaction {at} at shard {shard}");
            }
            track.reads.extend(keys.into_iter().map(|key| (key.clone(), seen(&key).0)));
        }
    }

    /// The author asks another shard for its vote, or ends the transaction at another shard.
    fn go_on(&mut self, at: usize) {
        let track = &self.tracks[at];
        let author = track.transaction.name().client;
        if track.outcome.is_none() {
            let open: Vec<u16> = track.participants.iter().copied().filter(|shard| !track.verdicts.contains_key(shard)).collect();
            if open.is_empty() {
                // Somebody who set out to finish it has stopped, and the author has all votes.
                let is_aborted = track.verdicts.values().any(|verdict| verdict.vote() == Vote::Abort);
                let outcome = if is_aborted { Vote::Abort } else { Vote::Commit };
                let now = self.now;
                (self.tracks[at].outcome, self.tracks[at].known) = (Some(outcome), Some(now));
                return;
            }
            let shard = self.random.pick(&open);
            let was_new = !self.signed.contains_key(&(shard, track.transaction.id()));
            let request = Request::Run(track.transaction.clone());
            let reply = self.deliver(shard, author, request, at);
            let Answer::Voted(_, verdict) = reply.answer else { panic!("no verdict: {:?}", reply.answer) };
            self.vote(at, shard, verdict, was_new);
            return;
        }
        let decision = track.outcome.expect("checked above");
        let open: Vec<u16> = track.participants.iter().copied().filter(|shard| !track.ended.contains(shard)).collect();
        let Some(shard) = (!open.is_empty()).then(|| self.random.pick(&open)) else { return };
        if track.participants.len() > 1 && track.verdicts.get(&shard).is_some_and(|verdict| verdict.vote() == Vote::Commit) {
            let request = if track.transaction.is_update() {
                Request::Decide(track.transaction.name(), self.certificate(at, decision))
            } else {
                Request::Release(track.transaction.name(), track.transaction.id())
            };
            self.deliver(shard, author, request, at);
        }
        self.tracks[at].ended.insert(shard);
    }

    fn vote(&mut self, at: usize, shard: u16, verdict: Verdict, was_new: bool) {
        let track = &mut self.tracks[at];
        let vote = verdict.vote();
        track.verdicts.insert(shard, verdict.clone());
        let is_decided = vote == Vote::Abort || track.verdicts.len() == track.participants.len();
        if is_decided {
            (track.outcome, track.known) = (Some(vote), Some(self.now));
        }
        if was_new && matches!(verdict, Verdict::Commit(Some(_))) {
            self.note_reads(shard, at);
        }
        if let Verdict::Abort(AbortReason::Conflict(_, id, Some(shown))) = verdict {
            self.conflicts += 1;
            let in_the_way = self.by_id[&id];
            assert_eq!(*shown, self.tracks[in_the_way].transaction);
            if self.tracks[in_the_way].is_left || self.random.below(4) == 0 {
                self.finish(in_the_way, shard);
            }
        }
    }

    /// The certificate of what was signed, and of nothing else.
    fn certificate(&self, at: usize, decision: Vote) -> Certificate {
        let track = &self.tracks[at];
        let signed = |shard: &&u16| self.signed.get(&(**shard, track.transaction.id())) == Some(&decision);
        let mut shards: Vec<u16> = track.participants.iter().filter(signed).copied().collect();
        if decision == Vote::Abort {
            shards.truncate(1);
        }
        self.harness.certificate(&track.transaction, decision, &shards)
    }

    /// Somebody finishes a transaction that is pending at `shard`, and perhaps stops in the middle.
    fn finish(&mut self, at: usize, shard: u16) {
        let finisher = self.random.pick(&AUTHORS);
        let transaction = self.tracks[at].transaction.clone();
        let mut shards = self.tracks[at].participants.clone();
        self.random.shuffle(&mut shards);
        shards.sort_by_key(|other| *other != shard);
        for other in shards.clone() {
            if self.random.below(20) == 0 {
                return;
            }
            let evidence = (other != shard).then(|| self.harness.votes(shard, &transaction, Vote::Commit));
            let was_new = !self.is_known(other, at);
            let reply = self.deliver(other, finisher, Request::Finish(transaction.clone(), evidence), at);
            let vote = signed_vote(&reply).unwrap_or_else(|| panic!("no vote: {:?}", reply.answer));
            if was_new && vote == Vote::Commit {
                // What it read is known to its author only: the author asks again.
                let again = self.deliver(other, transaction.name().client, Request::Run(transaction.clone()), at);
                let Answer::Voted(_, verdict) = again.answer else { panic!("no verdict") };
                self.tracks[at].verdicts.insert(other, verdict);
                self.note_reads(other, at);
            }
        }
        let votes: Vec<Vote> = shards.iter().map(|shard| self.signed[&(*shard, transaction.id())]).collect();
        let decision = if votes.contains(&Vote::Abort) { Vote::Abort } else { Vote::Commit };
        let before = self.tracks[at].outcome.replace(decision);
        assert!(before.is_none_or(|before| before == decision), "two ends of one transaction");
        for other in shards {
            if self.random.below(20) > 0 {
                let certificate = self.certificate(at, decision);
                let answer = self.deliver(other, finisher, Request::Decide(transaction.name(), certificate), at).answer;
                // Where its author has released what it read, it is over, however others find that it ends.
                let is_read_only = !transaction.is_update() && answer == Answer::Ended(transaction.id(), Vote::Commit);
                assert!(is_read_only || answer == Answer::Ended(transaction.id(), decision), "{answer:?}");
            }
        }
    }

    /// Whether the shard has ever been asked for its vote.
    fn is_known(&self, shard: u16, at: usize) -> bool {
        let track = &self.tracks[at];
        track.verdicts.contains_key(&shard) || self.signed.contains_key(&(shard, track.transaction.id()))
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let active: Vec<usize> = (0..self.tracks.len()).filter(|at| !self.is_over(*at)).collect();
            match self.random.below(20) {
                0..4 if active.len() < 6 => self.begin(),
                4 => self.replace_replica(),
                5 if !active.is_empty() => {
                    let at = self.random.pick(&active);
                    self.tracks[at].is_left |= self.random.below(3) == 0;
                }
                _ if !active.is_empty() => {
                    let at = self.random.pick(&active);
                    self.go_on(at);
                }
                _ => {}
            }
        }
    }

    fn is_over(&self, at: usize) -> bool {
        let track = &self.tracks[at];
        track.is_left || (track.outcome.is_some() && track.ended.len() == track.participants.len())
    }

    /// A shard makes a checkpoint, and one of its replicas is replaced by one that has fetched it.
    fn replace_replica(&mut self) {
        let shard = self.random.below(3);
        let [one, other] = &mut self.harness.executors[shard];
        let (checkpoint, same) = (one.checkpoint(), other.checkpoint());
        assert_eq!((checkpoint.digest, checkpoint.head), (same.digest, same.head));
        let own = self.snapshots[shard].clone();
        self.snapshots[shard].apply(&checkpoint);
        let served = &self.snapshots[shard];
        let mut fetch = Fetch::new(self.harness.cluster.id(), checkpoint.digest, checkpoint.head, &own).expect("its own head");
        loop {
            let pieces = fetch.ask(3);
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                let bytes = served.piece(piece).expect("it has all pieces");
                let mut flipped = bytes.to_vec();
                flipped.push(0);
                assert!(fetch.take(piece, Bytes::from(flipped)).is_err(), "what is not the piece is refused");
                fetch.take(piece, bytes).expect("the piece that was asked for");
            }
        }
        let (head, pages) = fetch.finish().expect("nothing is missing");
        let installed = Executor::install(self.harness.settings(shard as u16), &head, &pages).expect("a checkpoint");
        self.harness.executors[shard][1] = installed;
    }

    /// Whatever was left is finished, and then nothing is in anybody's way.
    fn finish_all(&mut self) {
        for _ in 0..100 {
            for shard in 0..3 {
                let next = self.harness.executors[usize::from(shard)][0].pending().next().map(|(transaction, _)| transaction.id());
                if let Some(id) = next {
                    let at = self.by_id[&id];
                    if !self.signed.contains_key(&(shard, id)) {
                        let request = Request::Finish(self.tracks[at].transaction.clone(), None);
                        self.deliver(shard, AUTHORS[0], request, at);
                    }
                    self.finish(at, shard);
                }
            }
        }
        for shard in 0..3 {
            assert_eq!(self.harness.executors[usize::from(shard)][0].pending().count(), 0, "something cannot be finished");
            let prefix = PREFIXES[usize::from(shard)];
            let operations = (0..KEYS).map(|number| Operation::Delete(key(&format!("{prefix}{number:03}"))));
            let all = self.harness.transaction(AUTHORS[0], 9, 1, operations.collect());
            assert_eq!(self.harness.run(shard, &all).vote(), Vote::Commit, "a lock has outlived its holder");
        }
    }

    /// Whether some order of the committed transactions explains all they read and wrote, and goes with the order in which they ended
    /// and began: no transaction comes before itself.
    fn check(&self) {
        let count = self.tracks.len();
        let is_committed = |at: usize| self.tracks[at].outcome == Some(Vote::Commit);
        let mut after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
        for versions in self.versions.values() {
            for pair in versions.windows(2) {
                assert!(is_committed(pair[1].0), "transaction {} has written and not committed", pair[1].0);
                if pair[0].0 < count {
                    after[pair[0].0].insert(pair[1].0);
                }
            }
        }
        for reader in (0..count).filter(|at| is_committed(*at)) {
            for (key, version) in &self.tracks[reader].reads {
                let versions = &self.versions[key];
                let (writer, next) = (versions[*version].0, versions.get(version + 1));
                if writer < count && writer != reader {
                    after[writer].insert(reader);
                }
                if let Some((overwriter, _)) = next.filter(|(overwriter, _)| *overwriter != reader) {
                    after[reader].insert(*overwriter);
                }
            }
            for later in (0..count).filter(|at| is_committed(*at)) {
                if self.tracks[reader].known.is_some_and(|known| known < self.tracks[later].begun) {
                    after[reader].insert(later);
                }
            }
        }
        let mut left: BTreeSet<usize> = (0..count).collect();
        while let Some(first) = left.iter().copied().find(|at| !left.iter().any(|other| other != at && after[*other].contains(at))) {
            left.remove(&first);
        }
        assert!(left.is_empty(), "transactions {left:?} come before one another");
    }
}

#[test]
fn any_interleaving_over_several_shards_is_strictly_serializable() {
    let (mut committed, mut conflicts) = (0, 0);
    for seed in 0..120 {
        let structural = if seed % 2 == 0 { Structural::Intervals } else { Structural::WholeShard };
        let mut world = World::new(seed, structural);
        world.run(300);
        world.finish_all();
        world.check();
        committed += world.tracks.iter().filter(|track| track.outcome == Some(Vote::Commit)).count();
        conflicts += world.conflicts;
    }
    assert!(committed > 1_500 && conflicts > 300, "these histories show too little: {committed} committed, {conflicts} conflicts");
}

#[test]
fn a_piece_that_was_not_asked_for_is_refused() {
    let mut harness = Harness::new(1, Structural::Intervals, Signatures::Ed25519);
    for number in 1..=200 {
        let operations = (0..8).map(|at| Operation::Put(key(&format!("k{:05}", number * 8 + at)), value("1"))).collect();
        let transaction = harness.transaction(AUTHORS[0], 1, number, operations);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    let cluster = harness.cluster.id();
    let checkpoint = harness.executors[0][0].checkpoint();
    let mut snapshot = Snapshot::new(cluster);
    snapshot.apply(&checkpoint);
    let nothing = Snapshot::new(cluster);
    assert!(Fetch::new(cluster, [1; 32], checkpoint.head, &nothing).is_err(), "a head of another checkpoint");
    let mut fetch = Fetch::new(cluster, checkpoint.digest, checkpoint.head, &nothing).expect("its own head");
    assert!(fetch.take(Piece::Page(augustus::PageNumber(0)), snapshot.pages()[0].clone()).is_err(), "nobody asked for it yet");
    let mut lies = 0;
    loop {
        let pieces = fetch.ask(8);
        if pieces.is_empty() {
            break;
        }
        for (at, piece) in pieces.iter().enumerate() {
            // Each liar sends another piece in its place, or one with a bit flipped.
            let other = pieces[(at + 1) % pieces.len()];
            if other != *piece {
                lies += 1;
                assert!(fetch.take(*piece, snapshot.piece(other).expect("there is one")).is_err());
            }
            let mut bytes = snapshot.piece(*piece).expect("there is one").to_vec();
            let bit = at % bytes.len();
            bytes[bit] ^= 1;
            assert!(fetch.take(*piece, bytes.into()).is_err());
            fetch = *fetch.finish().expect_err("something is missing");
            fetch.take(*piece, snapshot.piece(*piece).expect("there is one")).expect("it was asked for");
        }
    }
    assert!(lies > 50);
    let (head, pages) = fetch.finish().expect("all is there");
    let settings = harness.settings(0);
    let mut installed = Executor::install(settings.clone(), &head, &pages).expect("a checkpoint");
    assert_eq!(installed.checkpoint().digest, checkpoint.digest);
    // What is not whole is refused without a panic, whatever it is.
    for at in 0..pages.len() {
        let mut damaged = pages.clone();
        damaged[at] = Bytes::new();
        assert!(Executor::install(settings.clone(), &head, &damaged).is_err());
        let mut shorter = pages[at].to_vec();
        shorter.pop();
        damaged[at] = shorter.into();
        assert!(Executor::install(settings.clone(), &head, &damaged).is_err());
    }
}
