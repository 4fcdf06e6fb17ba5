//! A replica that lost its disk is silent until it cannot contradict what it said before, and takes its data over from the others meanwhile.

use std::collections::BTreeMap;

use basil::message::{KeyVersion, PageVersion, Unsigned};
use basil::{Decision, Message, Read, Refusal, Replica, ReplicaOptions, Transaction, Vote, Write, rebuild};
use machine::{Durable as _, Input, Machine as _, Outbox, Time};
use store::{Memory, Options, Store};
use types::{ClientId, Direction, Key, KeyRange, Party, ReplicaId, Session, ShardId, Timestamp, Value};

use crate::harness::members::{Members, members};

const SHARD: ShardId = ShardId(0);
const ME: ReplicaId = ReplicaId { shard: SHARD, index: 0 };
const AUTHOR: Party = Party::Client(ClientId(1), Session(1));
/// When it begins with an empty disk, by all clocks, in milliseconds.
const BEGAN_MS: u64 = 100_000;
const WINDOW_MS: u64 = 4_000;
/// Ten time bounds.
const BOUND_MS: u64 = BEGAN_MS + 5_000;
const TIME_BOUND_MS: u64 = 500;

fn at(ms: u64) -> Timestamp {
    Timestamp::new(ms * 1_000_000, ClientId(1))
}

fn party(index: u16) -> Party {
    Party::Replica(ReplicaId { index, ..ME })
}

fn transaction(members: &Members, ms: u64, reads: &[&str], write: &str) -> Transaction {
    let reads = reads.iter().map(|key| Read { key: Key::from(*key), version: Timestamp::ZERO, dependency: None });
    let write = Write { key: Key::from(write), value: Some(Value::from("1")) };
    Transaction::new(members.cluster.id(), at(ms), reads.collect(), vec![write]).expect("small enough")
}

/// What another replica shows.
#[derive(Clone, Default)]
struct Other {
    is_silent: bool,
    /// It always says that there is more.
    never_ends: bool,
    undecided: Vec<Transaction>,
    versions: Vec<(&'static str, u64)>,
    /// What it remembers of how a transaction ended, and says to whoever asks.
    end: Option<Decision>,
}

/// A replica on its disk, and what it is told.
struct Lost {
    members: Members,
    medium: Memory,
    replica: Replica<Memory>,
    now_ms: u64,
    others: BTreeMap<u16, Other>,
}

fn open(members: &Members, medium: &Memory, now_ms: u64) -> Replica<Memory> {
    let store = Store::open(medium.clone(), Options::default()).expect("it opens");
    let options = ReplicaOptions { window_ms: WINDOW_MS, ..ReplicaOptions::default() };
    Replica::open(members.cluster.clone(), ME, options, store, Time(now_ms * 1_000_000)).expect("it comes back")
}

/// What is for whom.
type To<T> = Vec<(Party, T)>;

impl Lost {
    fn new() -> Self {
        Self::of(members(1))
    }

    fn of(members: Members) -> Self {
        let medium = Memory::new("lost");
        rebuild::mark(&mut Store::open(medium.clone(), Options::default()).expect("it is empty")).expect("memory does not fail");
        let replica = open(&members, &medium, BEGAN_MS);
        Self { members, medium, replica, now_ms: BEGAN_MS, others: (1..6).map(|index| (index, Other::default())).collect() }
    }

    fn other(&mut self, index: u16) -> &mut Other {
        self.others.get_mut(&index).expect("one of five")
    }

    /// What it says, unsigned and to be signed.
    fn step(&mut self, input: Option<(Party, Message)>) -> (To<Message>, To<Unsigned>) {
        let mut outbox = Outbox::default();
        let input = match input {
            None => Input::Tick,
            Some((from, message)) => {
                Input::Message { from, message: self.members.stranger().verify(message).expect("it is properly signed") }
            }
        };
        let now = Time(self.now_ms * 1_000_000);
        while let Some(from) = self.replica.take_due(now) {
            self.replica.serve_kept(now, from, &mut outbox);
        }
        self.replica.step(now, input, &mut outbox);
        self.replica.persist().expect("memory does not fail");
        (outbox.sends, outbox.unsigned)
    }

    /// What it says to `from`, and how it votes.
    fn hear(&mut self, from: Party, message: Message) -> (Vec<Message>, Vec<Vote>) {
        let (sends, unsigned) = self.step(Some((from, message)));
        let vote = |(_, unsigned)| match unsigned {
            Unsigned::Vote { statement, .. } => Some(statement.vote),
            _ => None,
        };
        (sends.into_iter().map(|(_, message)| message).collect(), unsigned.into_iter().filter_map(vote).collect())
    }

    /// The others answer for so long. Whether it was rebuilt by then.
    fn run(&mut self, ms: u64) -> bool {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms && self.replica.is_rebuilding() {
            self.now_ms += 20;
            let mut sends = self.step(None).0;
            while let Some((to, message)) = sends.pop() {
                let Some(answer) = self.answer(to, message) else { continue };
                let more = self.step(Some((to, answer))).0;
                sends.extend(more);
            }
        }
        !self.replica.is_rebuilding()
    }

    /// Time passes until it may have seen every version that there was when it was rebuilt.
    fn pass_time_bound(&mut self) {
        self.now_ms += TIME_BOUND_MS + 1;
        self.step(None);
    }

    fn answer(&self, of: Party, message: Message) -> Option<Message> {
        let Party::Replica(ReplicaId { shard: SHARD, index }) = of else { return None };
        let other = self.others.get(&index).filter(|other| !other.is_silent)?;
        match message {
            Message::UndecidedQuery { up_to, after } => {
                assert!(self.now_ms * 1_000_000 >= up_to + WINDOW_MS * 1_000_000, "nobody would answer yet");
                let place = |transaction: &Transaction| (transaction.timestamp(), transaction.id());
                let is_left = |one: &&Transaction| after.is_none_or(|after| place(one) > (after.timestamp, after.id));
                let transactions: Vec<Transaction> = match (other.never_ends, after) {
                    (true, after) => {
                        let next = after.map_or(1, |after| after.timestamp.time / 1_000_000 + 1);
                        (next < 200).then(|| transaction(&self.members, next, &[], "junk")).into_iter().collect()
                    }
                    (false, _) => other.undecided.iter().filter(is_left).cloned().collect(),
                };
                Some(Message::UndecidedReply { up_to, after, transactions, is_last: !other.never_ends })
            }
            Message::VersionsQuery { query } => {
                let version = |(key, ms): &(&str, u64)| PageVersion {
                    key: Key::from(*key),
                    version: KeyVersion { version: at(*ms), value: Some(Value::from("shown")) },
                };
                Some(Message::VersionsReply { page: query.page, versions: other.versions.iter().map(version).collect(), next: None })
            }
            // Of what only reads here: of all else the others' versions would say how it ended.
            Message::StatusQuery { id, keys, .. } if keys.is_empty() => {
                Some(Message::StatusReply { id, end: other.end, versions: Vec::new() })
            }
            _ => None,
        }
    }

    fn crash(&mut self, now_ms: u64) {
        self.replica = open(&self.members, &self.medium, now_ms);
        self.now_ms = now_ms;
    }
}

/// Everything that is asked about `transaction`.
fn asked(transaction: &Transaction) -> [(Party, Message); 2] {
    let recover = Message::Recover { transaction: transaction.clone(), evidence: vec![] };
    [(AUTHOR, Message::Prepare { transaction: transaction.clone() }), (party(3), recover)]
}

#[test]
fn a_replica_that_lost_its_disk_is_silent_until_it_is_rebuilt() {
    let mut lost = Lost::new();
    assert!(!lost.run(BOUND_MS + WINDOW_MS - BEGAN_MS - 100), "the others may still vote for what it has voted for");
    let (now_ms, now) = (lost.now_ms, at(lost.now_ms));
    let read = || Message::Read { request: 1, timestamp: now, keys: vec![Key::from("a")] };
    let all = KeyRange::new(Key::from("a"), Key::from("z")).expect("not empty");
    let scan = || Message::Scan { request: 2, timestamp: now, range: all.clone(), direction: Direction::Ascending, limit: 9 };
    for asked in [read(), scan()] {
        let (said, _) = lost.hear(AUTHOR, asked);
        assert!(matches!(said.as_slice(), [Message::Refused { refusal: Refusal::Overloaded { .. }, .. }]), "{said:?}");
    }
    let early = transaction(&lost.members, now_ms, &[], "a");
    for (from, message) in asked(&early) {
        assert_eq!(lost.hear(from, message), (vec![], vec![]));
    }
    assert!(lost.run(60_000));
    lost.pass_time_bound();
    let now = at(lost.now_ms);
    let read = || Message::Read { request: 1, timestamp: now, keys: vec![Key::from("a")] };
    let scan = || Message::Scan { request: 2, timestamp: now, range: all.clone(), direction: Direction::Ascending, limit: 9 };
    let (said, _) = lost.hear(AUTHOR, read());
    assert!(matches!(said.as_slice(), [Message::ReadReply { .. }]), "{said:?}");
    let (said, _) = lost.hear(AUTHOR, scan());
    assert!(matches!(said.as_slice(), [Message::ScanReply { .. }]), "{said:?}");
    let late = transaction(&lost.members, lost.now_ms, &[], "b");
    assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: late }).1, [Vote::Commit]);
}

#[test]
fn it_never_speaks_of_what_it_may_have_spoken_of() {
    let mut lost = Lost::new();
    let held = transaction(&lost.members, BEGAN_MS - 1_000, &[], "a");
    lost.other(2).undecided = vec![held.clone()];
    assert!(lost.run(60_000));
    for ms in [BEGAN_MS - 500, BEGAN_MS + 400, BOUND_MS] {
        let unknown = transaction(&lost.members, ms, &[], "b");
        for (from, message) in asked(&unknown).into_iter().chain(asked(&held)) {
            assert_eq!(lost.hear(from, message), (vec![], vec![]), "not even a refusal, of {ms}");
        }
    }
    // Nor does it after a crash.
    lost.crash(lost.now_ms + 10);
    assert!(!lost.replica.is_rebuilding());
    assert!(asked(&held).into_iter().all(|(from, message)| lost.hear(from, message) == (vec![], vec![])));
}

#[test]
fn what_any_of_the_others_holds_prepared_is_in_the_way() {
    let mut lost = Lost::new();
    let held = transaction(&lost.members, BEGAN_MS - 1_000, &[], "a");
    lost.other(4).undecided = vec![held];
    assert!(lost.run(60_000));
    lost.pass_time_bound();
    // It may have voted for the one, so it does not vote for the other.
    let missed = transaction(&lost.members, lost.now_ms, &["a"], "b");
    assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: missed.clone() }).1, [Vote::Abort]);
    // Nor after a crash.
    lost.crash(lost.now_ms + 10);
    let missed = transaction(&lost.members, lost.now_ms, &["a"], "c");
    assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: missed }).1, [Vote::Abort]);
}

/// Others may have released what it voted for, as they know a newer version; that may be newer than what it was shown, as their clocks may be ahead of its own.
#[test]
fn it_judges_nothing_below_a_version_that_others_may_have() {
    let mut lost = Lost::new();
    (1..6).for_each(|index| lost.other(index).versions = vec![("a", 50_000)]);
    assert!(lost.run(60_000));
    let (cluster, newest_ms) = (lost.members.cluster.id(), lost.now_ms + TIME_BOUND_MS);
    let reader = |ms: u64| {
        let read = Read { key: Key::from("a"), version: at(50_000), dependency: None };
        let write = Write { key: Key::from("b"), value: Some(Value::from("1")) };
        Message::Prepare { transaction: Transaction::new(cluster, at(ms), vec![read], vec![write]).expect("small enough") }
    };
    let read = |ms: u64| Message::Read { request: ms, timestamp: at(ms), keys: vec![Key::from("a")] };
    for ms in [lost.now_ms - 1_000, lost.now_ms, newest_ms] {
        lost.now_ms = lost.now_ms.max(ms);
        let (said, votes) = lost.hear(AUTHOR, reader(ms));
        assert!(votes.is_empty() && matches!(said[..], [Message::Refused { refusal: Refusal::TooOld, .. }]), "{said:?}, {votes:?}");
        let (said, _) = lost.hear(AUTHOR, read(ms));
        assert!(matches!(said[..], [Message::Refused { refusal: Refusal::NotKept { .. }, .. }]), "{said:?}");
    }
    // Nor after a crash; but from then on it reads and votes.
    lost.crash(lost.now_ms);
    assert_eq!(lost.hear(AUTHOR, reader(newest_ms)).1, []);
    lost.now_ms += 1;
    let (said, _) = lost.hear(AUTHOR, read(newest_ms + 1));
    assert!(matches!(said[..], [Message::ReadReply { .. }]), "{said:?}");
    assert_eq!(lost.hear(AUTHOR, reader(newest_ms + 1)).1, [Vote::Commit]);
}

#[test]
fn what_one_other_holds_prepared_is_not_enough() {
    let mut lost = Lost::new();
    (2..6).for_each(|index| lost.other(index).is_silent = true);
    assert!(!lost.run(60_000), "any of the others may hold what it voted for");
    (2..5).for_each(|index| lost.other(index).is_silent = false);
    assert!(lost.run(60_000));
}

#[test]
fn it_waits_for_the_end_of_what_others_hold_undecided() {
    // These only read here, a key and a range, so nobody here needs them to end; but the other shard may need what is said of them here.
    let cluster = members(2).cluster.id();
    let read = Read { key: Key::from("a"), version: Timestamp::ZERO, dependency: None };
    let range = KeyRange::new(Key::from("a"), Key::from("b")).expect("not empty");
    let write = || vec![Write { key: Key::from("z"), value: Some(Value::from("1")) }];
    let of_key = Transaction::with_ranges(cluster, at(BEGAN_MS - 1_000), vec![read], vec![], write()).expect("small enough");
    let of_range = Transaction::with_ranges(cluster, at(BEGAN_MS - 999), vec![], vec![range], write()).expect("small enough");
    for held in [of_key, of_range] {
        let shown_by = |count: u16| {
            let mut lost = Lost::of(members(2));
            (1..=count).for_each(|index| lost.other(index).undecided = vec![held.clone()]);
            lost
        };
        let mut lost = shown_by(2);
        assert!(!lost.run(30_000), "a second replica that lost its disk would leave too few to end it");
        (1..4).for_each(|index| lost.other(index).end = Some(Decision::Abort));
        assert!(lost.run(60_000) && lost.now_ms < BOUND_MS + 10 * WINDOW_MS, "{}", lost.now_ms);
        // It has forgotten what it said of it, but not how it ended.
        (0..100).for_each(|_| {
            lost.now_ms += 1_000;
            lost.step(None);
        });
        let query = Message::StatusQuery { id: held.id(), timestamp: held.timestamp(), keys: vec![Key::from("a")] };
        let (said, _) = lost.hear(party(3), query);
        assert!(matches!(said.as_slice(), [Message::StatusReply { end: Some(Decision::Abort), .. }]), "{said:?}");
        // What never ends keeps it silent for ten windows; but not if one alone says that there is such a thing.
        let mut lost = shown_by(2);
        assert!(lost.run(60_000) && lost.now_ms >= BOUND_MS + 11 * WINDOW_MS, "{}", lost.now_ms);
        assert!(shown_by(1).run(30_000));
    }
}

#[test]
fn the_bound_survives_a_crash_and_a_clock_that_was_set_back() {
    let mut lost = Lost::new();
    assert!(!lost.run(1_000));
    lost.crash(BEGAN_MS - 10_000);
    assert!(lost.replica.is_rebuilding() && lost.run(60_000));
    assert!(lost.now_ms >= BOUND_MS + WINDOW_MS, "{}", lost.now_ms);
}

#[test]
fn a_page_counts_when_no_more_than_one_shows_something_newer() {
    let mut lost = Lost::new();
    (1..6).for_each(|index| lost.other(index).versions = vec![("a", 50_000)]);
    // Two have seen different commits of late.
    lost.other(1).versions = vec![("a", 60_000)];
    lost.other(2).versions = vec![("a", 70_000)];
    assert!(!lost.run(60_000), "either may have rested on a vote of this one");
    lost.other(1).versions = vec![("a", 70_000)];
    assert!(lost.run(10_000));
    let newest = Timestamp::new(u64::MAX, ClientId(u64::MAX));
    let versions = lost.replica.versions(newest).expect("memory does not fail");
    assert_eq!(versions.iter().map(|(_, version)| version.timestamp).collect::<Vec<_>>(), [at(70_000)]);
}

#[test]
fn one_that_is_silent_or_lies_stops_nobody() {
    let mut lost = Lost::new();
    lost.other(1).is_silent = true;
    assert!(lost.run(60_000));
    let mut lost = Lost::new();
    let versions = vec![("a", 99_000), ("b", 99_000)];
    *lost.other(1) = Other { never_ends: true, versions, ..Other::default() };
    assert!(lost.run(60_000));
    assert_eq!(lost.replica.versions(at(99_999)).expect("memory does not fail"), [], "nobody else shows that");
    // With two there are too few to know.
    let mut lost = Lost::new();
    (lost.other(1).is_silent, lost.other(2).is_silent) = (true, true);
    assert!(!lost.run(60_000));
    lost.other(2).is_silent = false;
    assert!(lost.run(10_000));
}

#[test]
fn what_is_prepared_is_shown_once_nothing_comes_to_it_any_more() {
    let (members, medium) = (members(1), Memory::new("whole"));
    let replica = open(&members, &medium, BEGAN_MS);
    let mut whole = Lost { members, medium, replica, now_ms: BEGAN_MS, others: BTreeMap::new() };
    let prepared = transaction(&whole.members, BEGAN_MS, &[], "a");
    assert_eq!(whole.hear(AUTHOR, Message::Prepare { transaction: prepared.clone() }).1, [Vote::Commit]);
    let query = || Message::UndecidedQuery { up_to: BEGAN_MS * 1_000_000 + 5, after: None };
    whole.now_ms += WINDOW_MS;
    assert_eq!(whole.hear(party(3), query()).0, [], "it could still vote for more");
    whole.now_ms += 1_000;
    let (said, _) = whole.hear(party(3), query());
    assert!(
        matches!(said.as_slice(), [Message::UndecidedReply { transactions, is_last: true, .. }] if *transactions == [prepared]),
        "{said:?}"
    );
    // It keeps to that, though it crashes and its clock is set back.
    whole.crash(BEGAN_MS + 100);
    let late = transaction(&whole.members, BEGAN_MS - 1, &[], "b");
    let (said, votes) = whole.hear(AUTHOR, Message::Prepare { transaction: late });
    assert!(votes.is_empty() && matches!(said.as_slice(), [Message::Refused { refusal: Refusal::TooOld, .. }]), "{said:?}");
}

/// Each key's newest version.
fn held(lost: &mut Lost) -> Vec<(Key, Timestamp)> {
    let versions = lost.replica.versions(Timestamp::new(u64::MAX, ClientId(u64::MAX))).expect("memory does not fail");
    versions.iter().map(|(key, version)| (key.clone(), version.timestamp)).collect()
}

#[test]
fn what_it_knows_to_have_committed_is_not_lost_with_the_row_though_nobody_else_knows() {
    // Of transactions of two shards, some tell the others that they have committed.
    let mut lost = Lost::of(members(2));
    assert!(lost.run(60_000));
    lost.pass_time_bound();
    let commit = |lost: &mut Lost, keys: &[&str]| {
        let writes = keys.iter().map(|key| Write { key: Key::from(*key), value: Some(Value::from("1")) }).collect();
        let transaction = Transaction::new(lost.members.cluster.id(), at(lost.now_ms), vec![], writes).expect("small enough");
        assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: transaction.clone() }).1, [Vote::Commit]);
        let others: Vec<ReplicaId> = lost.members.cluster.replicas().filter(|other| *other != ME).collect();
        for other in others {
            lost.hear(Party::Replica(other), Message::CommitNotice { id: transaction.id() });
        }
        transaction
    };
    let committed = commit(&mut lost, &["a", "b", "z"]);
    lost.now_ms += 1_000;
    let later = commit(&mut lost, &["b", "z"]);
    let all = held(&mut lost);
    assert_eq!(all, [(Key::from("a"), committed.timestamp()), (Key::from("b"), later.timestamp())]);
    for _ in 0..100 {
        lost.now_ms += 1_000;
        lost.step(None);
    }
    // It has forgotten the transactions but for their ends, and loses a row; others hold the first prepared all this time.
    assert_eq!(lost.replica.load(), (0, 0));
    lost.medium.lose_row(&Key::from("a"));
    (1..5).for_each(|index| lost.other(index).undecided = vec![committed.clone()]);
    lost.crash(lost.now_ms + 10);
    lost.step(None);
    assert!(lost.replica.is_rebuilding() && held(&mut lost) == all[1..]);
    assert!(lost.run(60_000));
    // What was written over the other key since is in its row, and stays there.
    assert_eq!(held(&mut lost), all);
}

#[test]
fn a_replica_that_gave_up_rows_is_silent_until_it_has_made_up_for_them() {
    let mut lost = Lost::new();
    // Three keys are in the base table, in the order of time, and nothing else was ever there.
    let versions = [("a", 10_000), ("b", 20_000), ("c", 30_000)];
    (1..6).for_each(|index| lost.other(index).versions = versions.to_vec());
    assert!(lost.run(60_000));
    let all = held(&mut lost);
    for _ in 0..100 {
        lost.now_ms += 1_000;
        lost.step(None);
    }
    assert_eq!(lost.medium.rows().len(), versions.len());
    let voted = transaction(&lost.members, lost.now_ms, &[], "d");
    assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: voted.clone() }).1, [Vote::Commit]);
    // One cannot be read any more, and is given up.
    lost.medium.lose_row(&Key::from("b"));
    lost.crash(lost.now_ms + 10);
    let began_ms = lost.now_ms;
    lost.step(None);
    assert!(lost.replica.is_rebuilding() && !held(&mut lost).contains(&all[1]));
    for (from, message) in asked(&voted).into_iter().chain(asked(&transaction(&lost.members, began_ms, &["b"], "e"))) {
        assert_eq!(lost.hear(from, message), (vec![], vec![]), "it would not object to what read past the row");
    }
    // Nor after a crash; then it has it again, and what it held is in the way of others as before.
    lost.crash(lost.now_ms + 10);
    assert!(lost.replica.is_rebuilding() && lost.run(60_000) && lost.now_ms >= began_ms + WINDOW_MS);
    assert_eq!(held(&mut lost), all);
    lost.pass_time_bound();
    let late = transaction(&lost.members, lost.now_ms, &["d"], "f");
    assert_eq!(lost.hear(AUTHOR, Message::Prepare { transaction: late }).1, [Vote::Abort]);
    lost.crash(lost.now_ms + 10);
    assert!(!lost.replica.is_rebuilding());
}
