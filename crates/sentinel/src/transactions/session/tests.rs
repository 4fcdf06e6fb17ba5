use types::limits::KEY_BYTES_MAX;
use types::{ClientId, ClusterId, Direction, Key, Permission, Placement, Value};

use super::*;

fn cluster() -> Cluster {
    let keys = (1..=3).map(|byte| [byte; 32]).collect();
    let client = Permission { public_key: [9; 32], ..Permission::default() };
    Cluster::new(ClusterId::new([5; 16]), 1, Placement::Hash, vec![keys], vec![(ClientId(1), client)]).expect("it fits")
}

/// A session whose servers are played by hand.
struct Script {
    session: Session,
    now: Time,
    outbox: OutboxOf<Session>,
    next: u64,
}

impl Script {
    fn new() -> Self {
        Self { session: Session::new(&cluster(), 10_000), now: Time(1), outbox: OutboxOf::<Session>::default(), next: 0 }
    }

    fn ask(&mut self, request: Request) -> u64 {
        self.next += 1;
        self.session.step(self.now, Input::Command(Ask { operation: self.next, request }), &mut self.outbox);
        self.next
    }

    fn commit(&mut self, reads: Vec<Evidence>, write: Option<&str>) -> u64 {
        let writes = write.map(|key| (Key::from(key), Some(Value::from("1")))).into_iter().collect();
        self.ask(Request::Commit(CommitRequest { timestamp: timestamp(), reads, writes }))
    }

    fn read(&mut self, mode: ReadMode) -> u64 {
        self.ask(Request::Read { timestamp: timestamp(), keys: vec![Key::from("a")], mode })
    }

    /// What was sent: to which server, under which number.
    fn sent(&mut self) -> Vec<(u16, u64, Question)> {
        let sends = std::mem::take(&mut self.outbox.sends);
        let one = |(to, message)| match (to, message) {
            (Party::Replica(to), Message::Question { number, question }) => (to.index, number, question),
            other => panic!("a client says no such thing: {other:?}"),
        };
        sends.into_iter().map(one).collect()
    }

    fn only(&mut self) -> (u16, u64, Question) {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.into_iter().next().expect("there is one")
    }

    fn answer(&mut self, from: u16, number: u64, answer: Answer) {
        let from = ReplicaId { shard: ShardId(0), index: from };
        self.session.on_answer(self.now, from, number, answer, &mut self.outbox);
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        if self.session.deadline().is_some_and(|at| at <= self.now) {
            self.session.step(self.now, Input::Tick, &mut self.outbox);
        }
    }

    fn outcome(&mut self, of: u64) -> Result<Response, Refusal> {
        let mut events = std::mem::take(&mut self.outbox.events);
        assert_eq!(events.len(), 1);
        match events.remove(0) {
            Tell::Response { operation, outcome } if operation == of => outcome,
            other => panic!("something else was answered: {other:?}"),
        }
    }

    /// Has a session begun, and its first commit sent.
    fn begun(&mut self, session: i64) -> (u64, u16, u64) {
        let operation = self.commit(Vec::new(), Some("a"));
        let (to, number, question) = self.only();
        assert_eq!(question, Question::Begin);
        self.answer(to, number, Answer::Begun { session });
        let (to, number, question) = self.only();
        assert!(matches!(question, Question::Commit { session: of, sequence: 1, .. } if of == session));
        (operation, to, number)
    }
}

fn timestamp() -> Timestamp {
    Timestamp::new(7, ClientId(1))
}

fn row(version: i64) -> Row {
    Row { key: Key::from("a"), version, value: (version != 0).then(|| Value::from("1")) }
}

#[test]
fn one_settled_read_commits_by_itself_and_others_are_checked() {
    let mut script = Script::new();
    let read = |script: &mut Script, mode| {
        let operation = script.read(mode);
        let (to, number, _) = script.only();
        script.answer(to, number, Answer::Found { zxid: 8, rows: vec![row(5)] });
        let Ok(Response::Found(found)) = script.outcome(operation) else { panic!("it was found") };
        found.evidence
    };
    let alone = read(&mut script, ReadMode::ReadOnly);
    let operation = script.commit(vec![alone], None);
    assert!(matches!(script.outcome(operation), Ok(Response::Committed(Commit { path: CommitPath::ReadOnly, .. }))));
    for mode in [ReadMode::Interactive, ReadMode::ReadOnly] {
        let reads = vec![read(&mut script, ReadMode::ReadOnly), read(&mut script, mode)];
        let reads = if mode == ReadMode::Interactive { reads.into_iter().skip(1).collect() } else { reads };
        let operation = script.commit(reads, None);
        let (to, number, question) = script.only();
        let Question::Check { seen } = question else { panic!("it only reads") };
        assert!(seen.keys.iter().all(|seen| seen.version == 5));
        script.answer(to, number, Answer::Conflict);
        assert_eq!(script.outcome(operation).err(), Some(Refusal::Conflict));
    }
}

#[test]
fn whoever_leads_is_found_and_silence_goes_to_the_next() {
    let mut script = Script::new();
    let operation = script.read(ReadMode::ReadOnly);
    let (to, number, _) = script.only();
    script.answer(to, number, Answer::NotLeading { leader: Some(2) });
    assert_eq!(script.only().0, 2);
    script.answer(2, number, Answer::NotLeading { leader: None });
    assert_eq!(script.sent(), []);
    script.pass(LEADERLESS_MS);
    assert_eq!(script.only().0, 0);
    script.pass(SILENCE_MS);
    assert_eq!(script.only().0, 1);
    script.answer(1, number, Answer::NotLeading { leader: Some(77) });
    script.pass(20_000);
    assert_eq!(script.outcome(operation).err(), Some(Refusal::Unavailable));
    assert!(script.session.under_way.is_empty() && script.session.timers.is_empty());
}

#[test]
fn what_was_asked_of_a_server_that_is_gone_is_asked_again_at_once_and_of_none_that_is_gone() {
    let mut script = Script::new();
    let (_, to, number) = script.begun(7);
    let connected = |script: &mut Script, servers: &[u16]| {
        let servers = servers.iter().map(|index| ReplicaId { shard: ShardId(0), index: *index }).collect();
        let request = <Session as engine::Session>::connected(servers).expect("it minds");
        script.session.step(script.now, Input::Command(Ask { operation: 0, request }), &mut script.outbox);
        script.pass(0);
    };
    connected(&mut script, &[0, 1, 2]);
    assert_eq!((to, script.sent().len()), (0, 0));
    connected(&mut script, &[2]);
    assert_eq!(script.only().0, 2);
    script.answer(2, number, Answer::NotLeading { leader: Some(0) });
    assert_eq!(script.sent(), [], "it has not heard of the end of that one");
    script.pass(LEADERLESS_MS);
    assert_eq!(script.only().0, 2, "nobody else is there");
    connected(&mut script, &[1, 2]);
    script.answer(2, number, Answer::NotLeading { leader: Some(1) });
    assert_eq!(script.only().0, 1);
    connected(&mut script, &[]);
    assert_eq!(script.only().0, 2, "one of them has to be asked");
}

#[test]
fn a_commit_keeps_its_number_and_its_end_may_be_unknown() {
    let mut script = Script::new();
    let (operation, to, number) = script.begun(40);
    script.pass(SILENCE_MS);
    let (next, same, question) = script.only();
    assert!(next != to && same == number && matches!(question, Question::Commit { sequence: 1, .. }));
    script.pass(20_000);
    script.sent();
    assert_eq!(script.outcome(operation).err(), Some(Refusal::OutcomeUnknown));
    // Its slot is taken under a higher number.
    let operation = script.commit(Vec::new(), Some("b"));
    let (to, number, question) = script.only();
    assert!(matches!(question, Question::Commit { slot: 0, sequence: 2, .. }), "{question:?}");
    script.answer(to, number, Answer::Committed { zxid: 9 });
    assert!(matches!(script.outcome(operation), Ok(Response::Committed(_))));
}

#[test]
fn a_commit_that_nobody_can_have_carried_out_is_unavailable() {
    let mut script = Script::new();
    let (operation, to, number) = script.begun(40);
    script.answer(to, number, Answer::NotLeading { leader: None });
    script.now = script.now.after_ms(20_000);
    script.session.step(script.now, Input::Tick, &mut script.outbox);
    assert_eq!(script.outcome(operation).err(), Some(Refusal::Unavailable));
}

#[test]
fn a_commit_goes_on_in_another_session_where_it_was_sent_once() {
    let mut script = Script::new();
    let (operation, to, number) = script.begun(40);
    script.answer(to, number, Answer::Expired);
    let (to, begin, question) = script.only();
    assert_eq!(question, Question::Begin);
    script.answer(to, begin, Answer::Begun { session: 41 });
    let (to, same, question) = script.only();
    assert!(same == number && matches!(question, Question::Commit { session: 41, sequence: 2, .. }), "{question:?}");
    script.answer(to, number, Answer::Committed { zxid: 9 });
    assert!(matches!(script.outcome(operation), Ok(Response::Committed(_))));
}

#[test]
fn a_commit_that_may_have_taken_place_in_a_session_that_is_gone_is_unknown() {
    let mut script = Script::new();
    let (operation, _, number) = script.begun(40);
    script.pass(SILENCE_MS);
    let (to, _, _) = script.only();
    script.answer(to, number, Answer::Expired);
    assert_eq!(script.outcome(operation).err(), Some(Refusal::OutcomeUnknown));
}

#[test]
fn a_scan_sees_as_far_as_it_was_answered() {
    let rows = |texts: &[&str]| -> Vec<Row> {
        texts.iter().map(|text| Row { key: Key::from(*text), version: 1, value: Some(Value::from("1")) }).collect()
    };
    let scan = |direction: Direction, limit: usize, found: Vec<Row>| {
        let mut script = Script::new();
        let operation = script.ask(Request::Scan {
            timestamp: timestamp(),
            low: Key::from("a"),
            high: Key::from("m"),
            direction,
            limit,
            mode: ReadMode::Interactive,
        });
        let (to, number, _) = script.only();
        script.answer(to, number, Answer::Found { zxid: 1, rows: found });
        match script.outcome(operation) {
            Ok(Response::Found(found)) => {
                let seen = found.evidence.take::<Evident>().expect("it is this engine's").seen;
                assert!(seen.ranges[0].rows.is_sorted_by(|one, next| one.key < next.key), "it is compared in the order of keys");
                Ok(seen.ranges[0].range.to_string())
            }
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal),
        }
    };
    let whole = KeyRange::new(Key::from("a"), Key::from("m")).expect("it has keys").to_string();
    let (up, down) = (Direction::Ascending, Direction::Descending);
    assert_eq!(scan(up, 3, rows(&["a", "b"])), Ok(whole.clone()));
    assert_eq!(scan(down, 3, rows(&["b", "a"])), Ok(whole.clone()));
    assert_ne!(scan(up, 2, rows(&["a", "b"])), Ok(whole), "nothing is known of what comes after b");
    assert_eq!(scan(down, 2, rows(&["l", "c"])), Ok("c..m".to_owned()), "nothing is known of what comes before c");
    for wrong in [&["b", "a"][..], &["a", "z"], &["a", "b", "c", "d"]] {
        assert_eq!(scan(up, 3, rows(wrong)), Err(Refusal::Unavailable));
        let reversed: Vec<&str> = wrong.iter().rev().copied().collect();
        assert_eq!(scan(down, 3, rows(&reversed)), Err(Refusal::Unavailable));
    }
    let many: Vec<String> = (0..TRANSACTION_READS_MAX).map(|number| format!("b{number:05}")).collect();
    let many = || rows(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(scan(up, usize::MAX, many()), Err(Refusal::AnswerTooLarge));
    assert!(scan(up, TRANSACTION_READS_MAX, many()).is_ok());
}

#[test]
fn what_is_over_a_limit_is_refused() {
    let mut script = Script::new();
    let long = |number: u16| Key::new(format!("{number:0KEY_BYTES_MAX$}")).expect("it is just short enough");
    let value = Value::new(vec![0; types::limits::VALUE_BYTES_MAX]).expect("it is just short enough");
    let writes = (0..4).map(|number| (long(number), Some(value.clone()))).collect();
    let operation = script.ask(Request::Commit(CommitRequest { timestamp: timestamp(), reads: Vec::new(), writes }));
    assert!(matches!(script.outcome(operation), Err(Refusal::Invalid(_))));
    let operation = script.ask(Request::Submit { timestamp: timestamp(), operations: Vec::new() });
    assert!(matches!(script.outcome(operation), Err(Refusal::Unsupported(_))));
    assert_eq!(script.sent(), []);
}

#[test]
fn a_commit_that_was_sent_more_than_once_and_is_not_permitted_then_may_have_taken_place() {
    let mut script = Script::new();
    let (operation, to, number) = script.begun(40);
    script.answer(to, number, Answer::Refused(Reason::NotPermitted));
    assert_eq!(script.outcome(operation).err(), Some(Refusal::NotPermitted));
    let operation = script.commit(Vec::new(), Some("a"));
    let (_, number, _) = script.only();
    script.pass(SILENCE_MS);
    let (to, _, _) = script.only();
    script.answer(to, number, Answer::Refused(Reason::NotPermitted));
    assert_eq!(script.outcome(operation).err(), Some(Refusal::OutcomeUnknown), "its rights may have been taken after that");
}

#[test]
fn who_is_told_to_begin_a_session_later_waits_so_long() {
    let mut script = Script::new();
    let operation = script.commit(Vec::new(), Some("a"));
    let (to, number, question) = script.only();
    assert_eq!(question, Question::Begin);
    script.answer(to, number, Answer::Busy { after_ms: 300 });
    script.pass(299);
    assert_eq!(script.sent(), []);
    script.pass(1);
    let (again, number, question) = script.only();
    assert_eq!((again, question), (to, Question::Begin), "it is the same server");
    // Nor does any other answer have it ask at once.
    script.answer(to, number, Answer::Refused(Reason::NotPermitted));
    assert_eq!(script.sent(), []);
    script.pass(LEADERLESS_MS);
    let (to, number, _) = script.only();
    script.answer(to, number, Answer::Begun { session: 40 });
    let (to, number, _) = script.only();
    script.answer(to, number, Answer::Committed { zxid: 9 });
    assert!(matches!(script.outcome(operation), Ok(Response::Committed(_))));
}
