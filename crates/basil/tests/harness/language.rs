//! The language of scripts: one command a line, each as small as can be.
//!
//! ```text
//! shards 2                          begin anew with two shards
//! relays                            proofs of commits on one shard go to relays, too: as they do outside of scripts
//! limit 8                           all come back with room for eight undecided transactions
//! begin t1 at 100 [by c2]           a transaction at 100 ms, of client 1 unless told
//! follow c2                         its timestamps come from the replicas' clocks, once it has heard of these
//! begin t1 now by c2                a transaction at the time that it is for such a client
//! write t1 a 1 · delete t1 a        into its buffer
//! read t1 a b [-> r0 r1]            asks replicas and delivers their replies
//! read-only t1 a b [-> r0 r1]       the same, saying that nothing will be written
//! read-as-of t1 a [-> r0 r1]        the same, of the past: what is found is final, and t1 has nothing to commit
//! scan t1 a..c [first 2] [-> r0]    reads a range, or its first two keys that have values; scan-only and scan-as-of likewise
//! validate t1 [-> r0 r1]            commits t1, which has only read, without votes if it can be
//! claim t1 a @50 [from t9]          puts a read into t1 that never took place: the client lies
//! claim-range t1 a..c               the same of a range: nothing has a value there but what t1 has read
//! prepare t1 t2 [by c2] [-> r0-r2]  delivers ST1; the votes wait. With `by`, somebody else sends it
//! votes t1 [by c2] [<- r0-r2]       delivers votes, decisions and refusals to clients
//! log t1 · logged t1                the same for ST2 and its replies
//! invoke t1 · elect t1 · decide t1  the same for calls for a leader, election messages, leaders' decisions
//! mislead r2 t1 abort -> r0         the liar r2, elected, shows r0 those electors that let it decide so
//! writeback t1 [-> r0]              delivers certificates
//! relay t1 [-> r0]                  delivers the notices of a commit that replicas send one another
//! forge-notice r2 t1 -> r0          the liar r2 tells r0 that t1 has committed
//! commit t1                         all of it, until nothing about t1 is on its way
//! finish t1 by c2                   c2 sets out to finish t1; what it sends waits: `recover t1 [-> r0]` delivers it
//! show-votes t1 by c2 with r0 -> r1 c2 shows r0's vote on t1 to r1 as evidence of its author, whatever it is
//! replies · deliver                 delivers all reads and replies · everything
//! drop vote t1 [<- r0]              loses messages of a kind
//! again prepare t1 -> r0            a copy of such a message as was sent before, delivered to r0
//! silence r5 · hear r5              loses everything to and from it, until heard again
//! crash r5 · crash-at-write r5 · restart r5   power loss · at its next durable write · back from its disk
//! liar r0 says a = 9 @90 · liar r0 hides a · liar r0 offers t9 for a · liar r0 votes abort
//! liar r0 stops at b · liar r0 claims all   of a range it shows what is below b, or claims that it shows all
//! liar r0 blames t9                 it votes all down, and shows t9, which has committed, as the reason
//! clock r0 r1 -20s                  their clocks are so far behind, or +20s, ahead
//! flip r5 a 3                       bit 3 of the newest value of a flips at r5, and nobody tells it
//! wrong r5                          how often r5 has found its own state to be wrong, and where the last time
//! kill c1                           the client's process ends
//! wait 50ms · run 2s                lets time pass: messages wait · are delivered at once
//! look a at 300 [-> r0]             reads a at every replica as a bystander, client 8
//! receipt t1                        shows t1's certificate to somebody with only the public keys
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use basil::{Buffer, Certificate, Command, Decision, Event, RangeFound, ReadFound, Transaction, Vote};
use engine::ReadMode;
use machine::Voters;
use types::codec::{Decode, Encode};
use types::{ClientId, Direction, Key, KeyRange, Party, ReplicaId, Timestamp, TransactionId, Value};

use super::words::{self, instant};
use super::world::{Envelope, Kind, Lie, World, party};

/// The client that looks on.
const BYSTANDER: ClientId = ClientId(8);

/// A transaction that a script speaks of.
struct Work {
    client: ClientId,
    buffer: Buffer,
    /// Set once it is prepared or shown to anybody: then it cannot change any more.
    made: Option<(Transaction, Vec<Transaction>)>,
    /// Whether its client has lied about what it read.
    lies: bool,
    operation: Option<u64>,
    /// Whether it reads the past.
    is_as_of: bool,
    /// Whether it committed without votes.
    validated: bool,
    certificate: Option<Arc<Certificate>>,
}

pub struct Script {
    world: World,
    works: BTreeMap<String, Work>,
    operations_made: u64,
}

impl Default for Script {
    fn default() -> Self {
        Self { world: World::new(1), works: BTreeMap::new(), operations_made: 0 }
    }
}

/// A command taken apart: its plain words, `by c2`, and `-> r0` or `<- r0`.
struct Line<'a> {
    words: Vec<&'a str>,
    by: Option<ClientId>,
    replicas: Option<Vec<ReplicaId>>,
}

impl<'a> Line<'a> {
    fn parse(command: &'a str) -> Self {
        let words: Vec<&str> = command.split_whitespace().collect();
        let arrow = words.iter().position(|word| *word == "->" || *word == "<-");
        let replicas = arrow.map(|at| words::parse_replicas(&words[at + 1..]));
        let mut words = words[..arrow.unwrap_or(words.len())].to_vec();
        let by = words.iter().position(|word| *word == "by").map(|at| {
            let client = words::parse_client(words[at + 1]);
            words.drain(at..at + 2);
            client
        });
        Self { words, by, replicas }
    }

    fn word(&self, at: usize) -> &'a str {
        self.words.get(at).unwrap_or_else(|| panic!("`{}` lacks a word", self.words.join(" ")))
    }

    /// Whether `replica` is among those named, if any are.
    fn names(&self, replica: Party) -> bool {
        match (&self.replicas, replica) {
            (None, _) => true,
            (Some(named), Party::Replica(replica)) => named.contains(&replica),
            (Some(_), Party::Client(..)) => false,
        }
    }
}

impl Script {
    /// Does what `command` says, and tells what came of it.
    pub fn obey(&mut self, command: &str) -> Vec<String> {
        let line = Line::parse(command);
        match line.word(0) {
            "shards" => self.world = World::new(line.word(1).parse().expect("a number of shards")),
            "relays" => self.world.relay_one_shard(),
            "limit" => self.world.limit(line.word(1).parse().expect("a number of transactions")),
            "catch-up" => self.world.catch_up(milliseconds(line.word(1))),
            "begin" | "write" | "delete" | "claim" | "claim-range" | "read" | "read-only" | "read-as-of" | "scan" | "scan-only"
            | "scan-as-of" => self.build(&line),
            "follow" => self.world.follow_clocks(words::parse_client(line.word(1))),
            "validate" => self.confirm(&line),
            "prepare" => self.prepare(&line),
            "recover" => self.deliver_to_replicas(&line, &[Kind::Recover]),
            "log" => self.deliver_to_replicas(&line, &[Kind::Log]),
            "invoke" => self.deliver_to_replicas(&line, &[Kind::Invoke]),
            "elect" => self.deliver_to_replicas(&line, &[Kind::Elect]),
            "decide" => self.deliver_to_replicas(&line, &[Kind::Decide]),
            "mislead" => self.mislead(&line),
            "writeback" => self.deliver_to_replicas(&line, &[Kind::Writeback]),
            "relay" => self.deliver_to_replicas(&line, &[Kind::CommitNotice]),
            "forge-notice" => {
                let liar = words::parse_replicas(&[line.word(1)])[0];
                let id = self.transaction(line.word(2)).0.id();
                self.world.forge_notice(liar, id, line.replicas.as_deref().expect("`forge-notice` says to whom"));
            }
            "votes" => self.deliver_to_clients(&line, &[Kind::Vote, Kind::Decided, Kind::Refused]),
            "logged" => self.deliver_to_clients(&line, &[Kind::Logged]),
            "commit" => {
                let id = self.start(line.word(1));
                self.world.deliver_all(|envelope| envelope.about == Some(id));
            }
            "finish" => {
                let transaction = self.transaction(line.word(1)).0;
                let client = line.by.expect("`finish` says by whom");
                self.world.command(client, Command::Finish { transaction });
            }
            "show-votes" => {
                let transaction = self.transaction(line.word(1)).0;
                let client = line.by.expect("`show-votes` says by whom");
                let to = line.replicas.clone().expect("`show-votes` says to whom");
                self.world.show_votes(client, &transaction, &words::parse_replicas(&line.words[3..]), &to);
            }
            "replies" => self.world.deliver_all(|envelope| matches!(envelope.kind, Kind::Read | Kind::Reply)),
            "deliver" => self.world.deliver_all(|_| true),
            "drop" | "again" => self.meddle(&line),
            "silence" | "hear" | "crash" | "crash-at-write" | "restart" | "liar" | "kill" | "clock" => self.disturb(&line),
            "wait" => self.world.wait(milliseconds(line.word(1)), |_| {}),
            "run" => self.world.wait(milliseconds(line.word(1)), |world| world.deliver_all(|_| true)),
            "look" => {
                let at = Timestamp::new(instant(line.word(3).parse().expect("milliseconds")), BYSTANDER);
                let everyone = self.world.members.cluster.replicas();
                let key = Key::from(line.word(1));
                let holding = everyone.filter(|replica| self.world.members.cluster.shard_of(&key) == replica.shard);
                let replicas = line.replicas.clone().unwrap_or_else(|| holding.collect());
                self.world.look(&replicas, &key, at);
            }
            "flip" => {
                let replica = words::parse_replicas(&[line.word(1)])[0];
                self.world.flip(replica, &Key::from(line.word(2)), line.word(3).parse().expect("a bit's number"));
            }
            "wrong" => self.world.note_wrong(words::parse_replicas(&[line.word(1)])[0]),
            "receipt" => self.receipt(line.word(1)),
            other => panic!("scripts know no `{other}`"),
        }
        self.take_in();
        self.world.notes.take()
    }

    /// Invariant 1: what committed, replayed in the order of timestamps, gives each read of an honest client.
    pub fn check_serial_order(&mut self) {
        let mut committed: Vec<(Transaction, bool)> = Vec::new();
        let past: Vec<String> = self.works.iter().filter(|(_, work)| work.is_as_of).map(|(name, _)| name.clone()).collect();
        committed.extend(past.iter().map(|name| (self.transaction(name).0, false)));
        for work in self.works.values() {
            if let Some((transaction, _)) = &work.made
                && (work.validated || self.world.has_committed(transaction.id()))
            {
                committed.push((transaction.clone(), work.lies));
            }
        }
        committed.sort_by_key(|(transaction, _)| transaction.timestamp());
        let mut newest: BTreeMap<Key, Timestamp> = BTreeMap::new();
        let mut live: BTreeSet<Key> = BTreeSet::new();
        for (transaction, lies) in committed {
            for read in transaction.reads().iter().filter(|_| !lies) {
                let alone = newest.get(&read.key).copied().unwrap_or(Timestamp::ZERO);
                assert_eq!(
                    read.version,
                    alone,
                    "{} read a version of {} it would not alone",
                    self.world.names.of(transaction.id()),
                    read.key
                );
            }
            for range in transaction.ranges().iter().filter(|_| !lies) {
                let unread = live.range(range.low()..range.high()).find(|key| transaction.read_of(key).is_none());
                assert_eq!(unread, None, "{} missed a key that it would find alone", self.world.names.of(transaction.id()));
            }
            for write in transaction.writes() {
                newest.insert(write.key.clone(), transaction.timestamp());
                match write.value {
                    Some(_) => live.insert(write.key.clone()),
                    None => live.remove(&write.key),
                };
            }
        }
    }

    fn build(&mut self, line: &Line<'_>) {
        let name = line.word(1);
        if line.word(0) == "begin" {
            let client = line.by.unwrap_or(ClientId(1));
            let time = match line.word(2) {
                "now" => self.world.time_of(client),
                _ => instant(line.word(3).parse().expect("milliseconds")),
            };
            let buffer = Buffer::new(Timestamp::new(time, client));
            let work =
                Work { client, buffer, made: None, lies: false, is_as_of: false, operation: None, validated: false, certificate: None };
            self.works.insert(name.to_owned(), work);
            return;
        }
        assert!(self.work(name).made.is_none(), "{name} cannot change once it was prepared or shown");
        let key = Key::from(line.word(2));
        match line.word(0) {
            "write" => {
                let value = Value::from(line.word(3));
                self.work(name).buffer.write(key, Some(value));
            }
            "delete" => self.work(name).buffer.write(key, None),
            "claim-range" => {
                let work = self.work(name);
                work.lies = true;
                work.buffer.scanned(RangeFound { range: range(line.word(2)), found: Vec::new(), deleted: 0, is_validated: false });
            }
            "scan" | "scan-only" | "scan-as-of" => self.scan(name, line),
            "claim" => {
                let version = words::parse_version(line.word(3));
                let dependency = line.words.get(5).map(|other| self.transaction(other).0);
                let work = self.work(name);
                work.lies = true;
                work.buffer.found(ReadFound { key, version, value: None, dependency, validated: Voters::default(), is_withheld: false });
            }
            _ => self.read(name, line),
        }
    }

    fn read(&mut self, name: &str, line: &Line<'_>) {
        let operation = self.operation(name);
        let (client, timestamp) = (self.work(name).client, self.work(name).buffer.timestamp());
        let keys = line.words[2..].iter().map(|key| Key::from(*key)).collect();
        let mode = match line.word(0) {
            "read-only" => ReadMode::ReadOnly,
            "read-as-of" => ReadMode::AsOf,
            _ => ReadMode::Interactive,
        };
        self.work(name).is_as_of |= mode == ReadMode::AsOf;
        self.world.command(client, Command::Read { operation, timestamp, keys, mode });
        self.deliver_reads(client, line);
    }

    fn scan(&mut self, name: &str, line: &Line<'_>) {
        let operation = self.operation(name);
        let (client, timestamp) = (self.work(name).client, self.work(name).buffer.timestamp());
        let limit = line.words.get(4).map_or(100, |limit| limit.parse().expect("a number of keys"));
        let is_last = line.words.get(3).is_some_and(|word| *word == "last");
        let (range, direction) = (range(line.word(2)), if is_last { Direction::Descending } else { Direction::Ascending });
        let mode = match line.word(0) {
            "scan-only" => ReadMode::ReadOnly,
            "scan-as-of" => ReadMode::AsOf,
            _ => ReadMode::Interactive,
        };
        self.work(name).is_as_of |= mode == ReadMode::AsOf;
        self.world.command(client, Command::Scan { operation, timestamp, range, direction, limit, mode });
        self.deliver_reads(client, line);
    }

    fn confirm(&mut self, line: &Line<'_>) {
        let name = line.word(1);
        let (transaction, dependencies) = self.transaction(name);
        let operation = self.operation(name);
        let work = self.work(name);
        work.operation = Some(operation);
        let (client, validated) = (work.client, work.buffer.validated());
        let command = match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        };
        self.world.command(client, command);
        self.deliver_reads(client, line);
    }

    fn deliver_reads(&mut self, client: ClientId, line: &Line<'_>) {
        let here = |envelope: &Envelope| match envelope.kind {
            Kind::Read => envelope.from == party(client) && line.names(envelope.to),
            Kind::Reply => envelope.to == party(client),
            _ => false,
        };
        self.world.deliver_all(here);
    }

    fn prepare(&mut self, line: &Line<'_>) {
        let mut ids = Vec::new();
        for name in &line.words[1..] {
            let id = match line.by {
                None => self.start(name),
                Some(client) => {
                    let (transaction, dependencies) = self.transaction(name);
                    let (id, operation) = (transaction.id(), self.operation(name));
                    self.world.command(client, Command::Commit { operation, transaction, dependencies });
                    id
                }
            };
            ids.push(id);
        }
        self.world.deliver(|envelope| {
            envelope.kind == Kind::Prepare && envelope.about.is_some_and(|id| ids.contains(&id)) && line.names(envelope.to)
        });
    }

    fn deliver_to_replicas(&mut self, line: &Line<'_>, kinds: &[Kind]) {
        let id = self.transaction(line.word(1)).0.id();
        self.world.deliver(|envelope| {
            let from = line.by.is_none_or(|client| envelope.from == party(client));
            kinds.contains(&envelope.kind) && envelope.about == Some(id) && line.names(envelope.to) && from
        });
    }

    fn deliver_to_clients(&mut self, line: &Line<'_>, kinds: &[Kind]) {
        let id = self.transaction(line.word(1)).0.id();
        self.world.deliver(|envelope| {
            let to = match (line.by, envelope.to) {
                (Some(client), to) => to == party(client),
                (None, Party::Client(..)) => true,
                (None, Party::Replica(_)) => false,
            };
            kinds.contains(&envelope.kind) && envelope.about == Some(id) && line.names(envelope.from) && to
        });
    }

    fn meddle(&mut self, line: &Line<'_>) {
        let kind = match line.word(1) {
            "prepare" => Kind::Prepare,
            "recover" => Kind::Recover,
            "log" => Kind::Log,
            "writeback" => Kind::Writeback,
            "relay" => Kind::CommitNotice,
            "vote" => Kind::Vote,
            "logged" => Kind::Logged,
            "invoke" => Kind::Invoke,
            "elect" => Kind::Elect,
            "decide" => Kind::Decide,
            other => panic!("scripts know no message `{other}`"),
        };
        let id = self.transaction(line.word(2)).0.id();
        let by = |envelope: &Envelope| line.by.is_none_or(|client| [envelope.from, envelope.to].contains(&party(client)));
        if line.word(0) == "drop" {
            let meant = |envelope: &Envelope| line.names(envelope.from) || line.names(envelope.to);
            self.world.pool.retain(|envelope| envelope.kind != kind || envelope.about != Some(id) || !meant(envelope) || !by(envelope));
        } else {
            let to = line.replicas.as_deref().expect("`again` says to whom");
            self.world.again(|envelope| envelope.kind == kind && envelope.about == Some(id) && by(envelope), to);
            self.world.deliver(|envelope| envelope.kind == kind && envelope.about == Some(id) && line.names(envelope.to));
        }
    }

    fn disturb(&mut self, line: &Line<'_>) {
        match line.word(0) {
            "kill" => return self.world.kill(words::parse_client(line.word(1))),
            "liar" => return self.lie(line),
            "clock" => return self.set_clocks(line),
            _ => {}
        }
        for replica in words::parse_replicas(&line.words[1..]) {
            match line.word(0) {
                "silence" => self.world.silence(replica),
                "hear" => self.world.hear(replica),
                "crash" => self.world.crash(replica),
                "crash-at-write" => self.world.crash_at_write(replica),
                _ => self.world.restart(replica),
            }
        }
    }

    fn set_clocks(&mut self, line: &Line<'_>) {
        let (shift, replicas) = line.words[1..].split_last().expect("`clock` says whose, and how far it is off");
        let ms = i64::try_from(milliseconds(&shift[1..])).expect("scripts set clocks a little");
        for replica in words::parse_replicas(replicas) {
            self.world.set_clock(replica, if shift.starts_with('-') { -ms } else { ms });
        }
    }

    fn lie(&mut self, line: &Line<'_>) {
        let lie = match line.word(2) {
            "says" => {
                let (key, value) = (Key::from(line.word(3)), Value::from(line.word(5)));
                Lie::Says { key, value, version: words::parse_version(line.word(6)) }
            }
            "hides" => Lie::Hides { key: Key::from(line.word(3)) },
            "offers" => Lie::Offers { transaction: self.transaction(line.word(3)).0, key: Key::from(line.word(5)) },
            "stops" => Lie::Stops { key: Key::from(line.word(4)) },
            "claims" => Lie::ClaimsAll,
            "blames" => Lie::Blames(self.transaction(line.word(3)).0),
            "votes" if line.word(3) == "abort" => Lie::Votes(Vote::Abort),
            "votes" => Lie::Votes(Vote::Commit),
            other => panic!("scripts know no lie `{other}`"),
        };
        for replica in words::parse_replicas(&[line.word(1)]) {
            self.world.lie(replica, lie.clone());
        }
    }

    fn mislead(&mut self, line: &Line<'_>) {
        let leader = words::parse_replicas(&[line.word(1)])[0];
        let id = self.transaction(line.word(2)).0.id();
        let decision = if line.word(3) == "commit" { Decision::Commit } else { Decision::Abort };
        self.world.mislead(leader, id, decision, line.replicas.as_deref().expect("`mislead` says whom"));
    }

    fn receipt(&mut self, name: &str) {
        let transaction = self.transaction(name).0;
        let certificate = self.work(name).certificate.clone().expect("its client was told how it ended");
        let bytes = certificate.to_bytes();
        let cluster = self.world.members.cluster.clone();
        let received = Certificate::from_bytes(bytes.into(), cluster.id()).expect("a certificate can be decoded");
        let judged = self.world.members.stranger().verify(received).and_then(|good| good.fits(&cluster, &transaction));
        let end = if certificate.decision == Decision::Commit { "committed" } else { "aborted" };
        let line = match judged {
            Ok(()) => format!("a stranger is convinced that {name} {end}, by {}", self.world.proof(&certificate)),
            Err(rejection) => format!("a stranger is not convinced: {rejection}"),
        };
        self.world.notes.note(line);
    }

    /// The transaction of this name, made now out of its buffer if it was not before.
    fn transaction(&mut self, name: &str) -> (Transaction, Vec<Transaction>) {
        let cluster = self.world.members.cluster.id();
        let work = self.work(name);
        if let Some(made) = &work.made {
            return made.clone();
        }
        let made = work.buffer.clone().finish(cluster).expect("scripts keep to the limits");
        work.made = Some(made.clone());
        self.world.names.give(made.0.id(), name);
        made
    }

    /// Its own client sets out to commit it, if it has not yet.
    fn start(&mut self, name: &str) -> TransactionId {
        let (transaction, dependencies) = self.transaction(name);
        let id = transaction.id();
        if self.work(name).operation.is_none() {
            let operation = self.operation(name);
            let work = self.work(name);
            work.operation = Some(operation);
            let client = work.client;
            self.world.command(client, Command::Commit { operation, transaction, dependencies });
        }
        id
    }

    fn operation(&mut self, name: &str) -> u64 {
        self.operations_made += 1;
        self.world.operations.insert(self.operations_made, name.to_owned());
        self.operations_made
    }

    /// Takes in what clients were told.
    fn take_in(&mut self) {
        for event in std::mem::take(&mut self.world.events) {
            match event {
                Event::Read { operation, result: Ok(found) } => {
                    let name = self.world.operations[&operation].clone();
                    for one in found {
                        self.work(&name).buffer.found(one);
                    }
                }
                Event::Ended { operation, result: Ok((certificate, _)) } => {
                    let name = self.world.operations[&operation].clone();
                    self.work(&name).certificate = Some(certificate);
                }
                Event::Validated { operation } => {
                    let name = self.world.operations[&operation].clone();
                    self.work(&name).validated = true;
                }
                Event::Scanned { operation, result: Ok(scan) } => {
                    let name = self.world.operations[&operation].clone();
                    self.work(&name).buffer.scanned(scan);
                }
                Event::Read { .. } | Event::Scanned { .. } | Event::Ended { .. } => {}
            }
        }
    }

    fn work(&mut self, name: &str) -> &mut Work {
        self.works.get_mut(name).unwrap_or_else(|| panic!("no transaction {name} has begun"))
    }
}

/// `a..c`.
fn range(text: &str) -> KeyRange {
    let (low, high) = text.split_once("..").expect("a range is two keys with .. between them");
    KeyRange::new(Key::from(low), Key::from(high)).expect("it holds keys")
}

fn milliseconds(text: &str) -> u64 {
    let number = |digits: &str| digits.parse::<u64>().expect("a number of ms or s");
    match text.strip_suffix("ms") {
        Some(digits) => number(digits),
        None => number(text.strip_suffix('s').expect("a duration ends in ms or s")) * 1_000,
    }
}
