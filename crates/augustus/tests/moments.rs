//! Moments that replicas hold, request by request. What sessions make of them is in `clusters.rs`.

use augustus::certificate::Vote;
use augustus::limits::MOMENT_LOOKED_AT_MAX;
use augustus::{AbortReason, Answer, MomentAnswer, MomentPage, Operation, Question, Request, Structural, Transaction, Verdict, cut};
use crypto::Signatures;
use types::{ClientId, Direction, KeyRange};

use crate::harness::{ALICE, BOB, CAROL, Harness, key, put, range, value};

const DAVE: ClientId = ClientId(4);

fn harness(shards: usize) -> Harness {
    Harness::new(shards, Structural::Intervals, Signatures::Ed25519)
}

/// The answer of both replicas, which must agree.
fn ask(harness: &mut Harness, shard: u16, client: ClientId, cut: &Transaction, operation: Operation) -> Option<MomentAnswer> {
    let question = Question::Page { name: cut.name(), id: cut.id(), operation };
    let [one, other] = &mut harness.executors[usize::from(shard)];
    let answer = one.answer_moment(client, &question);
    assert_eq!(answer, other.answer_moment(client, &question), "the replicas of a shard agree");
    answer
}

fn text(answer: Option<MomentAnswer>) -> (String, Option<String>) {
    let Some(MomentAnswer::Page(MomentPage { rows, last })) = answer else { panic!("no page: {answer:?}") };
    let rows: Vec<String> = rows.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (rows.join(" "), last.map(|last| last.to_string()))
}

fn rows(direction: Direction, rows_max: u32) -> Operation {
    Operation::ReadRange(range("a", "m"), direction, rows_max)
}

fn delete(text: &str) -> Operation {
    Operation::Delete(key(text))
}

#[test]
fn a_moment_shows_nothing_of_what_comes_after_it() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("b", "1"), ("d", "1"), ("f", "1"), ("h", "1")]);
    let moment = harness.transaction(ALICE, 1, 1, cut());
    let change = |harness: &Harness, number: u64, operations: Vec<Operation>| Request::Run(harness.transaction(BOB, 2, number, operations));
    // The first change in the same list.
    let first = change(&harness, 1, vec![put("b", "2"), put("c", "2"), delete("d")]);
    let replies = harness.deliver(0, &[(ALICE, Request::Run(moment.clone())), (BOB, first)]);
    assert!(replies.iter().all(|reply| matches!(reply.answer, Answer::Voted(_, Verdict::Commit(_)))), "{replies:?}");
    let second = change(&harness, 2, vec![put("b", "3"), put("d", "3"), delete("c"), put("a", "3"), delete("h"), put("i", "3")]);
    harness.deliver(0, &[(BOB, second)]);
    let (up, down) = (Direction::Ascending, Direction::Descending);
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, rows(up, 100))), ("b=1 d=1 f=1 h=1".to_owned(), None));
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, rows(down, 100))), ("h=1 f=1 d=1 b=1".to_owned(), None));
    // Page by page. A key that came after may be where a page ends.
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, rows(up, 3))), ("b=1 d=1 f=1".to_owned(), Some("f".to_owned())));
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, rows(down, 1))), ("h=1".to_owned(), Some("h".to_owned())));
    for (read, expected) in [("b", "b=1"), ("c", ""), ("d", "d=1"), ("f", "f=1"), ("i", "")] {
        assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, Operation::Read(key(read)))), (expected.to_owned(), None));
    }
}

#[test]
fn a_moment_over_several_shards_is_before_all_that_its_locks_hold_off() {
    let mut harness = harness(2);
    harness.fill(0, 1, &[("a", "1")]);
    harness.fill(1, 2, &[("n", "1")]);
    let transfer = harness.transaction(BOB, 3, 1, vec![put("a", "2"), put("n", "2")]);
    let early = harness.transaction(ALICE, 1, 1, cut());
    assert_eq!(harness.run(0, &transfer).vote(), Vote::Commit);
    assert!(crate::harness::is_conflict_with(&harness.run(0, &early), &transfer), "a change is pending");
    assert_eq!(harness.executors[0][0].moments(), 0);
    assert_eq!(harness.run(1, &early).vote(), Vote::Commit);
    assert_eq!((harness.executors[1][0].moments(), harness.run(1, &transfer).vote()), (1, Vote::Abort));
    for (shard, pending) in [(0, &transfer), (1, &early)] {
        let by = if shard == 0 { 1 } else { 0 };
        let certificate = harness.certificate(pending, Vote::Abort, &[by]);
        assert_eq!(harness.decide(shard, pending, certificate), Answer::Ended(pending.id(), Vote::Abort));
    }
    assert_eq!(harness.executors[1][0].moments(), 0, "it is no moment");
    let moment = harness.transaction(ALICE, 1, 2, cut());
    assert_eq!([0, 1].map(|shard| harness.run(shard, &moment).vote()), [Vote::Commit; 2]);
    let held_off = harness.transaction(BOB, 3, 2, vec![put("a", "3")]);
    assert!(crate::harness::is_conflict_with(&harness.run(0, &held_off), &moment));
    for shard in [0, 1] {
        let released = harness.one(shard, ALICE, Request::Release(moment.name(), moment.id()));
        assert_eq!(released.answer, Answer::Ended(moment.id(), Vote::Commit));
    }
    let after = harness.transaction(BOB, 3, 3, vec![put("a", "4")]);
    assert_eq!(harness.run(0, &after).vote(), Vote::Commit);
    let all = || Operation::ReadRange(range("a", "z"), Direction::Ascending, 10);
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, all())).0, "a=1");
    assert_eq!(text(ask(&mut harness, 1, ALICE, &moment, all())).0, "n=1");
}

#[test]
fn who_may_not_read_everything_has_no_moment_and_nobody_reads_anothers() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("b", "1")]);
    let refused = harness.transaction(CAROL, 1, 1, cut());
    assert_eq!(harness.run(0, &refused), Verdict::Abort(AbortReason::NotPermitted));
    assert_eq!(harness.executors[0][0].moments(), 0);
    assert_eq!(ask(&mut harness, 0, CAROL, &refused, rows(Direction::Ascending, 9)), Some(MomentAnswer::Gone));
    let moment = harness.transaction(ALICE, 1, 1, cut());
    assert_eq!(ask(&mut harness, 0, ALICE, &moment, rows(Direction::Ascending, 9)), None, "it may still come");
    assert_eq!(harness.run(0, &moment).vote(), Vote::Commit);
    for other in [BOB, CAROL] {
        assert_eq!(ask(&mut harness, 0, other, &moment, rows(Direction::Ascending, 9)), Some(MomentAnswer::Gone));
        assert!(harness.executors[0][0].answer_moment(other, &Question::Drop(moment.id())).is_none());
    }
    assert_eq!(text(ask(&mut harness, 0, ALICE, &moment, rows(Direction::Ascending, 9))).0, "b=1");
    harness.executors[0].iter_mut().for_each(|executor| _ = executor.answer_moment(ALICE, &Question::Drop(moment.id())));
    assert_eq!(ask(&mut harness, 0, ALICE, &moment, rows(Direction::Ascending, 9)), Some(MomentAnswer::Gone));
}

#[test]
fn a_replica_that_holds_a_moment_has_the_state_of_one_that_does_not() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("b", "1"), ("d", "1")]);
    let moment = harness.transaction(ALICE, 1, 1, cut());
    assert_eq!(harness.run(0, &moment).vote(), Vote::Commit);
    harness.executors[0][1].answer_moment(ALICE, &Question::Drop(moment.id()));
    harness.fill(0, 2, &[("b", "2"), ("c", "2")]);
    let held = |harness: &Harness| [0, 1].map(|replica: usize| harness.executors[0][replica].moments());
    assert_eq!(held(&harness), [1, 0]);
    let [one, other] = &mut harness.executors[0];
    assert_eq!(one.checkpoint().digest, other.checkpoint().digest);
    // One that took over a state holds none, and says so.
    let mut pages = Vec::new();
    let mut anew = self::harness(1);
    anew.fill(0, 1, &[("b", "1")]);
    let moment = anew.transaction(ALICE, 1, 1, cut());
    anew.run(0, &moment);
    anew.reinstall(0, &mut pages);
    assert_eq!(held(&anew), [1, 0]);
    let question = Question::Page { name: moment.name(), id: moment.id(), operation: rows(Direction::Ascending, 9) };
    assert_eq!(anew.executors[0][1].answer_moment(ALICE, &question), Some(MomentAnswer::Gone));
}

#[test]
fn three_clients_moments_are_not_held_at_once() {
    let mut harness = harness(1);
    for client in [ALICE, BOB, DAVE] {
        let moment = harness.transaction(client, 9, 1, cut());
        assert_eq!(harness.run(0, &moment).vote(), Vote::Commit);
    }
    assert_eq!(harness.executors[0][0].moments(), 2);
}

#[test]
fn one_page_looks_at_a_bounded_number_of_keys_that_came_later() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("b", "1"), ("x", "1")]);
    let moment = harness.transaction(ALICE, 1, 1, cut());
    assert_eq!(harness.run(0, &moment).vote(), Vote::Commit);
    for number in 0..3 {
        let puts = (0..MOMENT_LOOKED_AT_MAX / 2).map(|row| put(&format!("c{number}{row:05}"), "2")).collect();
        let later = harness.transaction(BOB, 2, 1 + number, puts);
        assert_eq!(harness.run(0, &later).vote(), Vote::Commit);
    }
    let (mut left, mut found, mut pages) = (Some(KeyRange::new(key("a"), key("y")).expect("it has keys")), Vec::new(), 0);
    while let Some(range) = left {
        let asked = Operation::ReadRange(range.clone(), Direction::Ascending, 100);
        let Some(MomentAnswer::Page(page)) = ask(&mut harness, 0, ALICE, &moment, asked) else { panic!("it is held") };
        found.extend(page.rows);
        left = page.last.and_then(|last| KeyRange::new(last.successor()?, range.high().clone()));
        pages += 1;
    }
    assert_eq!(found, [(key("b"), value("1")), (key("x"), value("1"))]);
    assert_eq!(pages, 2);
}
