//! Transactions over keys, as servers see them.

use types::{ClientId, Direction, Key, KeyRange, Party, Permission, Session, Value};

use super::World;
use crate::Damage;
use crate::transactions::message::{Answer, Question, Reason, Seen, SeenRange, Version, Write};

const CLIENT: Party = Party::Client(ClientId(1), Session(7));

fn key(text: &str) -> Key {
    Key::from(text)
}

fn all() -> Permission {
    Permission { read_prefixes: vec![key("")], write_prefixes: vec![key("")], ..Permission::default() }
}

fn version(text: &str, version: i64) -> Version {
    Version { key: key(text), version }
}

fn write(text: &str, value: &str) -> Write {
    Write { key: key(text), value: Some(Value::from(value)) }
}

fn delete(text: &str) -> Write {
    Write { key: key(text), value: None }
}

fn range(low: &str, high: &str) -> KeyRange {
    KeyRange::new(key(low), key(high)).expect("it has keys")
}

fn keys_seen(keys: Vec<Version>) -> Seen {
    Seen { keys, ranges: Vec::new() }
}

fn settled(keys: &[&str]) -> Question {
    Question::Read { keys: keys.iter().map(|text| key(text)).collect(), is_settled: true }
}

/// A client's process, with a session that the servers know.
struct Process {
    session: i64,
    sequence: u64,
}

impl Process {
    fn commit(&mut self, seen: Seen, writes: Vec<Write>) -> Question {
        self.sequence += 1;
        self.again(seen, writes)
    }

    fn again(&self, seen: Seen, writes: Vec<Write>) -> Question {
        Question::Commit { session: self.session, slot: 0, sequence: self.sequence, seen, writes }
    }
}

impl World {
    fn question_as(&mut self, at: u16, rights: &Permission, question: Question) {
        self.step(at, |member, now| member.ask(now, CLIENT, Some(rights), 1, question));
    }

    fn question(&mut self, at: u16, question: Question) {
        self.question_as(at, &all(), question);
    }

    /// What clients were told since they were asked last.
    fn told(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.told).into_iter().map(|(_, _, answer)| answer).collect()
    }

    /// Asks the leader, and has it answered.
    fn answer(&mut self, question: Question) -> Answer {
        let leader = self.leader();
        self.question(leader, question);
        self.settle();
        self.pass(20);
        let told = self.told();
        assert_eq!(told.len(), 1, "{told:?}");
        told.into_iter().next().expect("there is one")
    }

    fn process(&mut self) -> Process {
        let Answer::Begun { session } = self.answer(Question::Begin) else { panic!("no session is begun") };
        Process { session, sequence: 0 }
    }

    /// Commits writes of what nobody has read.
    fn put(&mut self, process: &mut Process, writes: Vec<Write>) -> i64 {
        let question = process.commit(Seen::default(), writes);
        let Answer::Committed { zxid } = self.answer(question) else { panic!("it has read nothing") };
        zxid
    }

    fn values(&mut self, keys: &[&str]) -> Vec<(i64, Option<String>)> {
        let Answer::Found { rows, .. } = self.answer(settled(keys)) else { panic!("it can be read") };
        let text = |value: &Value| String::from_utf8_lossy(value.as_bytes()).into_owned();
        rows.iter().map(|row| (row.version, row.value.as_ref().map(text))).collect()
    }
}

#[test]
fn what_is_written_is_read_with_its_version() {
    let mut world = World::new();
    let mut process = world.process();
    assert_eq!(world.values(&["a"]), [(0, None)]);
    let zxid = world.put(&mut process, vec![write("a", "1"), write("b/\0", "2"), delete("c")]);
    assert_eq!(world.values(&["a", "b/\0", "c"]), [(zxid, Some("1".to_owned())), (zxid, Some("2".to_owned())), (0, None)]);
    let later = world.put(&mut process, vec![write("a", "3"), delete("b/\0")]);
    assert_eq!(world.values(&["a", "b/\0"]), [(later, Some("3".to_owned())), (0, None)]);
    for at in 0..3 {
        assert!(world.has(at, "/bezant/keys/a") && !world.has(at, "/bezant/keys/b%2F%00"), "at {at}");
        assert_eq!(world.machine(at).member.server().commits().committed, 2, "all servers count what they apply");
    }
}

#[test]
fn a_transaction_whose_reads_have_changed_is_turned_down() {
    let mut world = World::new();
    let mut process = world.process();
    let zxid = world.put(&mut process, vec![write("a", "1")]);
    for (seen, is_right) in [(version("a", zxid), true), (version("a", 0), false), (version("a", zxid), false), (version("b", zxid), false)]
    {
        let question = process.commit(keys_seen(vec![seen]), vec![write("a", "2")]);
        assert_eq!(matches!(world.answer(question), Answer::Committed { .. }), is_right);
    }
    let [(now, _)] = world.values(&["a"])[..] else { panic!("one was asked for") };
    let check = |seen| Question::Check { seen: keys_seen(vec![seen]) };
    assert!(matches!(world.answer(check(version("a", now))), Answer::Committed { .. }));
    assert_eq!(world.answer(check(version("a", zxid))), Answer::Conflict);
}

#[test]
fn a_key_that_was_deleted_and_written_again_is_another() {
    let mut world = World::new();
    let mut process = world.process();
    let zxid = world.put(&mut process, vec![write("a", "1")]);
    world.put(&mut process, vec![delete("a")]);
    world.put(&mut process, vec![write("a", "1")]);
    // The version in the node's stat is 0 both times.
    let question = process.commit(keys_seen(vec![version("a", zxid)]), vec![write("b", "1")]);
    assert_eq!(world.answer(question), Answer::Conflict);
}

#[test]
fn no_key_comes_into_a_range_that_was_read() {
    let mut world = World::new();
    let mut process = world.process();
    let zxid = world.put(&mut process, vec![write("a", "1"), write("c", "3"), write("x", "9")]);
    let scan = Question::Scan { range: range("a", "d"), direction: Direction::Ascending, rows_max: 10, is_settled: false };
    let Answer::Found { rows, .. } = world.answer(scan.clone()) else { panic!("it can be read") };
    assert_eq!(rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), [key("a"), key("c")]);
    let rows = || vec![version("a", zxid), version("c", zxid)];
    let seen = || Seen { keys: Vec::new(), ranges: vec![SeenRange { range: range("a", "d"), rows: rows() }] };
    world.put(&mut process, vec![write("d", "4"), delete("x")]);
    let outside = process.commit(seen(), vec![write("e", "5")]);
    assert!(matches!(world.answer(outside), Answer::Committed { .. }), "the end of a range is not in it");
    world.put(&mut process, vec![write("b", "2")]);
    let phantom = process.commit(seen(), vec![write("e", "6")]);
    assert_eq!(world.answer(phantom), Answer::Conflict);
    world.put(&mut process, vec![delete("b")]);
    let gone = process.commit(seen(), vec![write("e", "7")]);
    assert!(matches!(world.answer(gone), Answer::Committed { .. }), "it is as it was seen");
    world.put(&mut process, vec![delete("c")]);
    let lost = process.commit(seen(), vec![write("e", "8")]);
    assert_eq!(world.answer(lost), Answer::Conflict);
}

#[test]
fn a_leader_that_is_cut_off_answers_nobody_who_only_reads() {
    let mut world = World::new();
    let mut process = world.process();
    let zxid = world.put(&mut process, vec![write("a", "1")]);
    let leader = world.leader();
    world.isolate(leader);
    world.question(leader, settled(&["a"]));
    world.question(leader, Question::Check { seen: keys_seen(vec![version("a", zxid)]) });
    world.question(leader, process.commit(Seen::default(), vec![write("a", "2")]));
    world.settle();
    assert_eq!(world.told(), [], "another may lead by now, and have acknowledged what is not here");
    world.pass(2_000);
    world.cut.clear();
    world.pass(1_000);
    assert_eq!(world.values(&["a"]), [(zxid, Some("1".to_owned()))]);
}

#[test]
fn reads_of_a_turn_are_settled_by_one_entry_or_by_a_commit() {
    let mut world = World::new();
    let mut process = world.process();
    world.put(&mut process, vec![write("a", "1")]);
    let leader = world.leader();
    let last = |world: &mut World| world.machine(leader).member.replica().last().counter();
    let before = last(&mut world);
    let read = |world: &mut World, commit: Option<Question>| {
        world.step(leader, |member, now| {
            for number in 0..5 {
                member.ask(now, CLIENT, Some(&all()), number, settled(&["a"]));
            }
            if let Some(commit) = commit {
                member.ask(now, CLIENT, Some(&all()), 5, commit);
            }
        });
        world.settle();
        world.told().len()
    };
    assert_eq!((read(&mut world, None), last(&mut world) - before), (5, 1));
    let commit = process.commit(Seen::default(), vec![write("a", "2")]);
    assert_eq!((read(&mut world, Some(commit)), last(&mut world) - before), (6, 2));
}

#[test]
fn a_commit_that_is_asked_for_again_takes_place_once() {
    let mut world = World::new();
    let mut process = world.process();
    let zxid = world.put(&mut process, vec![write("a", "1")]);
    let (session, seen, writes) = (process.session, Seen::default(), vec![write("a", "2")]);
    let between = Question::Commit { session, slot: 1, sequence: 1, seen, writes };
    assert!(matches!(world.answer(between), Answer::Committed { .. }));
    let again = process.again(Seen::default(), vec![write("a", "1")]);
    assert_eq!(world.answer(again.clone()), Answer::Committed { zxid });
    assert_eq!(world.values(&["a"])[0].1.as_deref(), Some("2"));
    // The same at the next leader.
    let before = world.leader();
    world.isolate(before);
    world.pass(2_000);
    let leader = (0..3).find(|at| *at != before && matches!(world.status(*at), crate::order::Status::Leading { .. })).expect("one leads");
    world.told();
    world.question(leader, again);
    world.settle();
    assert_eq!(world.told(), [Answer::Committed { zxid }]);
}

#[test]
fn a_commit_that_was_turned_down_stays_so() {
    let mut world = World::new();
    let mut process = world.process();
    let seen = keys_seen(vec![version("a", 5)]);
    let question = process.commit(seen, vec![write("b", "1")]);
    assert_eq!(world.answer(question), Answer::Conflict);
    // Now nothing would be in its way.
    let again = process.again(Seen::default(), vec![write("b", "1")]);
    assert_eq!(world.answer(again), Answer::Conflict);
    assert_eq!(world.values(&["b"]), [(0, None)]);
}

#[test]
fn a_commit_behind_a_later_one_of_its_slot_is_dropped() {
    let mut world = World::new();
    let mut process = world.process();
    process.sequence = 5;
    world.put(&mut process, vec![write("a", "1")]);
    process.sequence = 3;
    let late = process.commit(Seen::default(), vec![write("a", "2")]);
    let leader = world.leader();
    world.question(leader, late);
    world.settle();
    world.pass(100);
    assert_eq!(world.told(), []);
    assert_eq!(world.values(&["a"])[0].1.as_deref(), Some("1"));
}

#[test]
fn a_session_ends_with_its_slots_and_nothing_commits_in_it() {
    let mut world = World::new();
    let mut process = world.process();
    world.put(&mut process, vec![write("a", "1")]);
    assert_eq!(world.process().session, process.session, "a process has one session");
    let slot = format!("/bezant/commits/1-{:016x}-0", process.session);
    assert!(world.has(0, &slot));
    world.pass(70_000);
    assert!(!world.has(0, &slot) && world.has(0, "/bezant/keys/a"));
    let question = process.commit(Seen::default(), vec![write("a", "2")]);
    assert_eq!(world.answer(question), Answer::Expired);
    assert_eq!(world.values(&["a"])[0].1.as_deref(), Some("1"));
}

#[test]
fn only_the_leader_answers_and_only_what_a_client_may_ask() {
    let mut world = World::new();
    let mut process = world.process();
    let leader = world.leader();
    let follower = (leader + 1) % 3;
    world.question(follower, settled(&["a"]));
    assert_eq!(world.told(), [Answer::NotLeading { leader: Some(leader) }]);
    let few = Permission { read_prefixes: vec![key("a")], write_prefixes: vec![key("a/w")], ..Permission::default() };
    let refused = [
        settled(&["b"]),
        Question::Scan { range: range("a", "c"), direction: Direction::Descending, rows_max: 1, is_settled: true },
        Question::Check { seen: keys_seen(vec![version("b", 0)]) },
        process.commit(keys_seen(vec![version("b", 0)]), Vec::new()),
        process.commit(Seen::default(), vec![write("a/r", "1")]),
    ];
    for question in refused {
        world.question_as(leader, &few, question);
        assert_eq!(world.told(), [Answer::Refused(Reason::NotPermitted)]);
    }
    world.question_as(leader, &few, process.commit(keys_seen(vec![version("a/r", 0)]), vec![write("a/w", "1")]));
    world.settle();
    assert!(matches!(world.told()[..], [Answer::Committed { .. }]));
}

#[test]
fn what_the_tree_does_not_take_is_refused_and_stays_so() {
    let mut world = World::new();
    let mut process = world.process();
    world.put(&mut process, vec![write("a", "1"), write("z", "1")]);
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.ask(client, 1, super::create("/bezant/keys/a/below"));
    world.settle();
    world.told();
    let question = process.commit(Seen::default(), vec![delete("a"), write("z", "2")]);
    assert_eq!(world.answer(question), Answer::Refused(Reason::Occupied));
    let again = process.again(Seen::default(), vec![write("z", "2")]);
    assert_eq!(world.answer(again), Answer::Refused(Reason::Occupied));
    assert_eq!(world.values(&["z"])[0].1.as_deref(), Some("1"));
    // Nodes that are nobody's key are in no range.
    world.ask(client, 2, super::create("/bezant/keys/b c"));
    world.settle();
    let scan = Question::Scan { range: range("a", "zz"), direction: Direction::Ascending, rows_max: 10, is_settled: true };
    let Answer::Found { rows, .. } = world.answer(scan) else { panic!("it can be read") };
    assert_eq!(rows.len(), 2);
}

#[test]
fn a_key_that_changed_without_a_transaction_is_never_answered() {
    let scan = || Question::Scan { range: range("a", "b"), direction: Direction::Ascending, rows_max: 10, is_settled: true };
    let unsettled = || Question::Read { keys: vec![key("a")], is_settled: false };
    let seen = |version| keys_seen(vec![version]);
    let in_range = |version| Seen { keys: Vec::new(), ranges: vec![SeenRange { range: range("a", "b"), rows: vec![version] }] };
    type Asked<'a> = &'a dyn Fn(&mut Process, i64) -> Question;
    let cases: [(Damage, &str, Asked<'_>); 9] = [
        (Damage::Data, "/bezant/keys/a", &|_, _| settled(&["a"])),
        (Damage::Data, "/bezant/keys/a", &|_, _| unsettled()),
        (Damage::Data, "/bezant/keys/a", &|_, _| scan()),
        (Damage::Stat, "/bezant/keys/a", &|_, zxid| Question::Check { seen: seen(version("a", zxid)) }),
        (Damage::Stat, "/bezant/keys/a", &|process, zxid| process.commit(seen(version("a", zxid)), vec![write("b", "1")])),
        (Damage::Stat, "/bezant/keys/a", &|process, zxid| process.commit(in_range(version("a", zxid)), vec![write("b", "1")])),
        (Damage::Stat, "/bezant/keys", &|_, _| settled(&["c"])),
        (Damage::Stat, "/bezant/keys", &|_, _| scan()),
        (Damage::Data, "SLOT", &|process, _| process.again(Seen::default(), vec![write("a", "1")])),
    ];
    for (number, (damage, path, question)) in cases.into_iter().enumerate() {
        let mut world = World::new();
        let mut process = world.process();
        let zxid = world.put(&mut process, vec![write("a", "1")]);
        let slot = format!("/bezant/commits/1-{:016x}-0", process.session);
        let path = if path == "SLOT" { &slot } else { path };
        let leader = world.leader();
        world.machine(leader).member.server_mut().damage(damage, path).expect("it is there");
        let question = question(&mut process, zxid);
        world.question(leader, question.clone());
        assert!(!world.is_whole(leader), "case {number}: it is quarantined");
        world.settle();
        assert_eq!(world.told(), [], "case {number}");
        world.pass(3_000);
        assert_eq!(world.told(), [], "case {number}");
        // Whoever leads then has it as it was written.
        let answer = world.answer(question);
        let is_right = match &answer {
            Answer::Found { rows, .. } => rows.iter().all(|row| row.value == (row.key == key("a")).then(|| Value::from("1"))),
            answer => matches!(answer, Answer::Committed { .. }),
        };
        assert!(is_right, "case {number}: {answer:?}");
    }
}

#[test]
fn who_may_write_nothing_and_slots_beyond_the_last_leave_nothing_in_the_tree() {
    let mut world = World::new();
    let mut process = world.process();
    world.put(&mut process, vec![write("a", "1")]);
    let leader = world.leader();
    let nodes = |world: &World| world.machines[usize::from(leader)].member.server().state().node_count();
    let before = nodes(&world);
    let empty = |slot| Question::Commit { session: process.session, slot, sequence: 9, seen: Seen::default(), writes: Vec::new() };
    let beyond =
        |slot| Question::Commit { session: process.session, slot, sequence: 9, seen: Seen::default(), writes: vec![write("a", "2")] };
    let nobody = Permission::default();
    for question in [empty(0), empty(3), beyond(1_024), beyond(u16::MAX)] {
        for rights in [&nobody, &all()] {
            world.question_as(leader, rights, question.clone());
            world.settle();
            assert_eq!(world.told(), [Answer::Refused(Reason::NotPermitted)], "{question:?}");
        }
    }
    assert_eq!(nodes(&world), before);
    assert!(matches!(world.answer(beyond(1_023)), Answer::Committed { .. }));
}

#[test]
fn an_end_that_cannot_be_noted_is_not_told() {
    let mut world = World::new();
    let mut process = world.process();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.ask(client, 1, super::create("/bezant"));
    // No node can be below this one.
    let commits = jute::Create { path: "/bezant/commits".to_owned(), mode: jute::CreateMode::Ephemeral, ..super::created() };
    world.ask(client, 2, jute::Request::Create(commits));
    world.settle();
    let turned_down = process.commit(keys_seen(vec![version("a", 5)]), vec![write("a", "1")]);
    let refused = process.commit(Seen::default(), vec![write("a", "1")]);
    for question in [turned_down, refused] {
        world.question(leader, question);
        world.settle();
        world.pass(100);
        assert_eq!(world.told(), [], "the next leader could carry it out");
    }
    assert_eq!(world.values(&["a"]), [(0, None)]);
}

#[test]
fn nobody_commits_in_the_session_of_another() {
    let mut world = World::new();
    let mut process = world.process();
    world.put(&mut process, vec![write("a", "1")]);
    let leader = world.leader();
    let question = process.commit(Seen::default(), vec![write("a", "2")]);
    for other in [Party::Client(ClientId(2), Session(7)), Party::Client(ClientId(1), Session(8))] {
        world.step(leader, |member, now| member.ask(now, other, Some(&all()), 1, question.clone()));
        world.settle();
        assert_eq!(world.told(), [Answer::Expired]);
    }
    // A client of the tree has a session, too, that is nobody's process.
    let client = world.open_session(leader, 0, &[]);
    let Question::Commit { slot, sequence, seen, writes, .. } = question.clone() else { panic!("it is a commit") };
    assert_eq!(world.answer(Question::Commit { session: client.session, slot, sequence, seen, writes }), Answer::Expired);
    // Nor is the session kept alive so.
    for _ in 0..8 {
        world.pass(10_000);
        let leader = world.leader();
        world.step(leader, |member, now| {
            member.ask(now, Party::Client(ClientId(2), Session(7)), Some(&all()), 1, question.clone());
        });
    }
    assert!(!world.has_session(leader, process.session));
}
