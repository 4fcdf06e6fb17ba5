//! What an executor does, request by request.

use augustus::certificate::{Certificate, EndedStatement, SettledStatement, Signers, Vote, VoteStatement};
use augustus::limits::{BATCH_CONFLICT_BYTES_MAX, BATCH_RESULT_BYTES_MAX, PENDING_MAX, PENDING_MIN, REPLIES_MAX, SESSIONS_MAX};
use augustus::{AbortReason, Answer, Operation, Ordered, Refusal, Reply, Request, Signed, Structural, Transaction, Unreadable, Verdict};
use crypto::Signatures;
use types::{ClientId, Direction, ShardId, Value};

use crate::harness::{ALICE, BOB, CAROL, Harness, found, is_conflict_with, key, put, range, read, read_range, signed_vote, value};

fn harness(shards: usize) -> Harness {
    Harness::new(shards, Structural::Intervals, Signatures::Ed25519)
}

#[test]
fn a_transaction_of_one_shard_ends_when_it_is_executed() {
    let mut harness = harness(1);
    let one = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), read("a"), read("b")]);
    let reply = harness.one(0, ALICE, Request::Run(one.clone()));
    assert_eq!(reply.statement, None, "nothing is signed for it");
    assert_eq!(
        reply.answer,
        Answer::Voted(one.id(), Verdict::Commit(Some(vec![augustus::Found::Value(Some(value("1"))), augustus::Found::Value(None)])))
    );
    assert_eq!((harness.value(0, "a"), harness.executors[0][0].pending().count()), (Some("1".to_owned()), 0));
}

#[test]
fn comparisons_come_first_and_see_the_state_before() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("a", "1")]);
    let compare = |text: &str, expected: Option<&str>| Operation::Compare(key(text), expected.map(value));
    let failing = harness.transaction(ALICE, 1, 1, vec![put("a", "2"), compare("a", Some("2"))]);
    assert_eq!(harness.run(0, &failing), Verdict::Abort(AbortReason::Mismatch(1)));
    let absent = harness.transaction(ALICE, 1, 2, vec![compare("a", None)]);
    assert_eq!(harness.run(0, &absent), Verdict::Abort(AbortReason::Mismatch(0)));
    assert_eq!(harness.value(0, "a").as_deref(), Some("1"), "nothing of it took place");
    let good = harness.transaction(ALICE, 1, 3, vec![put("a", "2"), compare("a", Some("1")), compare("b", None)]);
    assert_eq!((harness.run(0, &good).vote(), harness.value(0, "a").as_deref()), (Vote::Commit, Some("2")));
}

#[test]
fn a_range_is_compared_with_all_that_was_seen_of_it() {
    let mut harness = harness(2);
    harness.fill(0, 1, &[("b", "1"), ("d", "2"), ("f", "9")]);
    harness.fill(1, 2, &[("n", "3")]);
    let cluster = harness.cluster.clone();
    let seen = |rows: &[(&str, &str)]| {
        let rows: Vec<_> = rows.iter().map(|(row, text)| (key(row), value(text))).collect();
        Operation::compare_rows(&cluster, range("a", "e"), &rows)
    };
    let now = [("b", "1"), ("d", "2")];
    let others: [&[(&str, &str)]; 5] =
        [&[], &now[..1], &[("b", "1"), ("d", "3")], &[("b", "1"), ("c", "2")], &[now[0], ("c", "0"), now[1]]];
    for (number, rows) in (1..).zip(others) {
        let transaction = harness.transaction(ALICE, 1, number, vec![put("b", "5"), seen(rows)]);
        assert_eq!(harness.run(0, &transaction), Verdict::Abort(AbortReason::Mismatch(1)), "{rows:?}");
    }
    let good = harness.transaction(ALICE, 1, 6, vec![put("b", "5"), seen(&now)]);
    assert_eq!((harness.run(0, &good).vote(), harness.value(0, "b").as_deref()), (Vote::Commit, Some("5")));
    // With fewer shards' rows than there are shards in the range, it holds nowhere.
    let Operation::CompareRange(whole, rows) = Operation::compare_rows(&cluster, range("a", "z"), &[]) else { panic!("it compares") };
    let short = harness.transaction(ALICE, 1, 7, vec![Operation::CompareRange(whole, rows[..1].to_vec())]);
    assert_eq!([0, 1].map(|shard| harness.run(shard, &short)), [0, 1].map(|_| Verdict::Abort(AbortReason::Mismatch(0))));
}

#[test]
fn what_was_compared_of_a_range_stays_so_until_the_transaction_ends() {
    let mut harness = harness(2);
    harness.fill(0, 1, &[("b", "1")]);
    let rows = [(key("b"), value("1"))];
    let compare = Operation::compare_rows(&harness.cluster, range("a", "n"), &rows);
    let pending = harness.transaction(ALICE, 1, 1, vec![compare, put("z", "1")]);
    assert_eq!(harness.run(0, &pending), Verdict::Commit(Some(vec![])));
    for (number, phantom) in (1..).zip(["a", "c"]) {
        let phantom = harness.transaction(BOB, 7, number, vec![put(phantom, "1")]);
        assert!(is_conflict_with(&harness.run(0, &phantom), &pending), "it would lie in the range");
    }
    let certificate = harness.certificate(&pending, Vote::Commit, &[0, 1]);
    assert_eq!(harness.run(1, &pending).vote(), Vote::Commit);
    assert_eq!(harness.decide(0, &pending, certificate), Answer::Ended(pending.id(), Vote::Commit));
    let after = harness.transaction(BOB, 7, 3, vec![put("c", "1")]);
    assert_eq!(harness.run(0, &after).vote(), Vote::Commit);
}

#[test]
fn what_is_asked_again_promises_nothing_new() {
    let mut harness = harness(2);
    let known = harness.transaction(ALICE, 1, 3, vec![put("a", "1"), put("n", "1")]);
    let first = harness.one(0, ALICE, Request::Run(known.clone()));
    let again = |harness: &Harness, client, request: &Request| harness.executors[0][0].answered(client, request);
    assert_eq!(again(&harness, ALICE, &Request::Run(known.clone())), first, "with its vote to sign");
    let too_old = Answer::Refused(Refusal::TooOld);
    assert_eq!(again(&harness, BOB, &Request::Run(known.clone())).answer, too_old);
    let unknown = harness.transaction(ALICE, 1, 4, vec![put("b", "1"), put("n", "1")]);
    for request in [Request::Run(unknown.clone()), Request::Finish(unknown, None)] {
        let reply = again(&harness, ALICE, &request);
        assert_eq!((reply.answer, reply.statement), (too_old.clone(), None), "it could still be executed");
    }
    let certificate = harness.certificate(&known, Vote::Commit, &[0, 1]);
    let decide = Request::Decide(known.name(), certificate);
    assert_eq!(again(&harness, ALICE, &decide).answer, too_old, "it is pending");
    let settled = |harness: &Harness| {
        let reply = again(harness, ALICE, &Request::Settle { session: 1, below: 9 });
        let Some(Signed::Settled(statement)) = reply.statement else { panic!("{reply:?}") };
        statement.below
    };
    assert!(settled(&harness) <= 3, "it is pending");
    assert_eq!(harness.one(0, BOB, decide.clone()).answer, Answer::Ended(known.id(), Vote::Commit));
    assert_eq!(again(&harness, ALICE, &decide).answer, Answer::Ended(known.id(), Vote::Commit));
    assert!(settled(&harness) <= 4, "a later one may still come");
    harness.one(0, ALICE, Request::Settle { session: 1, below: 9 });
    assert_eq!(settled(&harness), 9);
}

#[test]
fn an_update_that_finds_its_key_otherwise_aborts_all_of_its_transaction() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("there", "1")]);
    let (insert, write) = (|text: &str| Operation::Insert(key(text), value("2")), |text: &str| Operation::Write(key(text), value("2")));
    let delete = |text: &str| Operation::Delete(key(text));
    let cases = [
        (vec![put("x", "1"), insert("there")], Some(1)),
        (vec![put("x", "1"), write("away")], Some(1)),
        (vec![delete("away")], None),
        (vec![insert("away"), write("away"), insert("away")], Some(2)),
        (vec![delete("there"), write("there")], Some(1)),
        (vec![delete("there"), insert("there"), read("there")], None),
        (vec![insert("away"), delete("away"), read("away")], None),
    ];
    for (number, (operations, mismatch)) in (1..).zip(cases) {
        let transaction = harness.transaction(ALICE, 1, number, operations);
        let verdict = harness.run(0, &transaction);
        match mismatch {
            Some(place) => assert_eq!(verdict, Verdict::Abort(AbortReason::Mismatch(place)), "{transaction:?}"),
            None => assert_eq!(verdict.vote(), Vote::Commit, "{transaction:?}"),
        }
    }
    assert_eq!((harness.value(0, "x"), harness.value(0, "away"), harness.value(0, "there").as_deref()), (None, None, Some("2")));
}

#[test]
fn a_range_shows_what_its_transaction_did_before_and_no_more_rows_than_asked_for() {
    let mut harness = harness(1);
    harness.fill(0, 1, &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    let operations = vec![
        put("bb", "5"),
        Operation::Delete(key("c")),
        read_range("a", "d"),
        Operation::ReadRange(range("a", "z"), Direction::Ascending, 2),
        Operation::ReadRange(range("a", "d"), Direction::Descending, 2),
        Operation::ReadRange(range("a", "z"), Direction::Ascending, 0),
        put("b", "6"),
        read_range("b", "z"),
    ];
    let transaction = harness.transaction(ALICE, 1, 1, operations);
    let verdict = harness.run(0, &transaction);
    assert_eq!(found(&verdict), ["a=1 b=2 bb=5", "a=1 b=2", "bb=5 b=2", "", "b=6 bb=5 d=4"].map(|text| Some(text.to_owned())));
}

#[test]
fn an_update_of_two_shards_holds_its_locks_until_it_is_decided() {
    let mut harness = harness(2);
    let pending = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), put("n", "1"), read("b")]);
    let reply = harness.one(0, ALICE, Request::Run(pending.clone()));
    assert_eq!(signed_vote(&reply), Some(Vote::Commit));
    assert_eq!(harness.value(0, "a"), None, "its writes wait");
    for (number, operations) in [(1, vec![read("a")]), (2, vec![put("a", "2")]), (3, vec![put("b", "2")]), (4, vec![read_range("a", "b")])]
    {
        let other = harness.transaction(BOB, 1, number, operations);
        assert!(is_conflict_with(&harness.run(0, &other), &pending), "{other:?}");
    }
    for (number, operations) in [(5, vec![read("b")]), (6, vec![put("c", "2")]), (7, vec![read_range("aa", "l")])] {
        let other = harness.transaction(BOB, 1, number, operations);
        assert_eq!(harness.run(0, &other).vote(), Vote::Commit, "{other:?}");
    }
    assert_eq!(harness.run(1, &pending).vote(), Vote::Commit);
    let certificate = harness.certificate(&pending, Vote::Commit, &[0, 1]);
    for shard in [0, 1, 0] {
        assert_eq!(harness.decide(shard, &pending, certificate.clone()), Answer::Ended(pending.id(), Vote::Commit));
    }
    assert_eq!((harness.value(0, "a").as_deref(), harness.value(1, "n").as_deref()), (Some("1"), Some("1")));
    let after = harness.transaction(BOB, 1, 8, vec![read("a"), put("b", "3")]);
    assert_eq!(found(&harness.run(0, &after)), [Some("1".to_owned())]);
}

#[test]
fn an_aborted_update_leaves_nothing() {
    let mut harness = harness(2);
    harness.fill(1, 7, &[("n", "0")]);
    let operations = vec![put("a", "1"), Operation::Insert(key("n"), value("1"))];
    let transaction = harness.transaction(ALICE, 1, 1, operations);
    assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    let reply = harness.one(1, ALICE, Request::Run(transaction.clone()));
    assert_eq!(signed_vote(&reply), Some(Vote::Abort), "its abort is a proof for the other shard");
    let certificate = harness.certificate(&transaction, Vote::Abort, &[1]);
    assert_eq!(harness.decide(0, &transaction, certificate), Answer::Ended(transaction.id(), Vote::Abort));
    assert_eq!(harness.value(0, "a"), None);
    assert_eq!(harness.run(0, &transaction), Verdict::Abort(AbortReason::VotedDown));
    let after = harness.transaction(BOB, 1, 8, vec![put("a", "3")]);
    assert_eq!(harness.run(0, &after).vote(), Vote::Commit);
}

#[test]
fn a_lock_is_upgraded_unless_somebody_else_reads() {
    let mut harness = harness(2);
    let both = harness.transaction(ALICE, 1, 1, vec![read("a"), put("a", "1"), put("n", "1")]);
    assert_eq!(harness.run(0, &both).vote(), Vote::Commit, "a transaction does not conflict with itself");
    let reads = harness.transaction(BOB, 1, 1, vec![read("b"), read("n")]);
    assert_eq!(harness.run(0, &reads).vote(), Vote::Commit);
    let upgrade = harness.transaction(ALICE, 1, 2, vec![read("b"), put("b", "1")]);
    assert!(is_conflict_with(&harness.run(0, &upgrade), &reads));
}

#[test]
fn a_phantom_is_kept_out_of_a_range() {
    for structural in [Structural::Intervals, Structural::WholeShard] {
        let mut harness = Harness::new(2, structural, Signatures::Ed25519);
        harness.fill(0, 7, &[("d", "1")]);
        let reader = harness.transaction(ALICE, 1, 1, vec![read_range("c", "f"), read("n")]);
        assert_eq!(harness.run(0, &reader).vote(), Vote::Commit);
        let insert = |text: &str| Operation::Insert(key(text), value("2"));
        for (number, operation) in
            [(1, insert("e")), (2, Operation::Delete(key("d"))), (3, put("c", "2")), (4, Operation::Write(key("d"), value("2")))]
        {
            let other = harness.transaction(BOB, 1, number, vec![operation]);
            assert!(is_conflict_with(&harness.run(0, &other), &reader), "{other:?}");
        }
        // Outside the range only whole-shard locks mind.
        let outside = harness.transaction(BOB, 1, 5, vec![insert("f")]);
        let verdict = harness.run(0, &outside);
        match structural {
            Structural::Intervals => assert_eq!(verdict.vote(), Vote::Commit),
            Structural::WholeShard => assert!(is_conflict_with(&verdict, &reader)),
        }
        let release = Request::Release(reader.name(), reader.id());
        assert_eq!(harness.one(0, ALICE, release).answer, Answer::Ended(reader.id(), Vote::Commit));
        let inside = harness.transaction(BOB, 1, 6, vec![insert("e")]);
        assert_eq!(harness.run(0, &inside).vote(), Vote::Commit);
    }
}

#[test]
fn a_pending_insertion_keeps_ranges_away() {
    for structural in [Structural::Intervals, Structural::WholeShard] {
        let mut harness = Harness::new(2, structural, Signatures::Ed25519);
        let insert = harness.transaction(ALICE, 1, 1, vec![put("d", "1"), put("n", "1")]);
        assert_eq!(harness.run(0, &insert).vote(), Vote::Commit);
        let around = harness.transaction(BOB, 1, 1, vec![read_range("c", "e")]);
        assert!(is_conflict_with(&harness.run(0, &around), &insert));
        let beside = harness.transaction(BOB, 1, 2, vec![read_range("e", "f")]);
        assert_eq!(is_conflict_with(&harness.run(0, &beside), &insert), structural == Structural::WholeShard);
    }
}

#[test]
fn a_request_that_is_repeated_is_answered_and_not_executed_again() {
    let mut harness = harness(1);
    let one = harness.transaction(ALICE, 1, 1, vec![read("a"), put("a", "1")]);
    let two = harness.transaction(BOB, 1, 1, vec![put("a", "2")]);
    let first = harness.run(0, &one);
    assert_eq!(found(&first), [None]);
    assert_eq!(harness.run(0, &two).vote(), Vote::Commit);
    assert_eq!(harness.run(0, &one), first);
    assert_eq!(harness.value(0, "a").as_deref(), Some("2"));
    // A large result is not kept, but that it committed is.
    let large =
        harness.transaction(ALICE, 1, 2, vec![Operation::Put(key("big"), types::Value::new(vec![7; 2_000]).expect("short")), read("big")]);
    assert_eq!(found(&harness.run(0, &large)).len(), 1);
    assert_eq!(harness.run(0, &large), Verdict::Commit(None));
}

#[test]
fn a_vote_is_final_and_a_number_is_used_once() {
    let mut harness = harness(2);
    harness.fill(0, 7, &[("a", "0")]);
    let downed = harness.transaction(ALICE, 1, 1, vec![Operation::Insert(key("a"), value("1")), put("n", "1")]);
    assert_eq!(harness.run(0, &downed), Verdict::Abort(AbortReason::Mismatch(0)));
    let delete = harness.transaction(BOB, 1, 1, vec![Operation::Delete(key("a"))]);
    assert_eq!(harness.run(0, &delete).vote(), Vote::Commit);
    assert_eq!(harness.run(0, &downed), Verdict::Abort(AbortReason::Mismatch(0)), "it could be had now, and was voted down");
    // (a.1): other operations under the same number are another transaction.
    let other = harness.transaction(ALICE, 1, 1, vec![put("b", "1"), put("n", "1")]);
    let reply = harness.one(0, ALICE, Request::Run(other.clone()));
    assert_eq!(reply.answer, Answer::Voted(other.id(), Verdict::Abort(AbortReason::NumberReused)));
    assert_eq!(signed_vote(&reply), Some(Vote::Abort), "whoever holds its locks elsewhere can release them");
}

#[test]
fn what_is_forgotten_is_never_executed() {
    let mut harness = harness(2);
    let count = REPLIES_MAX as u64;
    for number in 2..=count + 2 {
        let transaction = harness.transaction(ALICE, 1, number, vec![put("a", "1")]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    // Number 2 was forgotten, and with it all before.
    for number in [1, 2] {
        let transaction = harness.transaction(ALICE, 1, number, vec![put("b", "1"), put("n", "1")]);
        let reply = harness.one(0, ALICE, Request::Run(transaction.clone()));
        assert_eq!(reply.answer, Answer::Voted(transaction.id(), Verdict::Abort(AbortReason::Forgotten)));
        assert_eq!(signed_vote(&reply), Some(Vote::Abort));
    }
    let kept = harness.transaction(ALICE, 1, 3, vec![put("a", "1")]);
    assert_eq!(harness.run(0, &kept), Verdict::Commit(Some(vec![])));
    // Sessions likewise.
    for session in 2..SESSIONS_MAX as u64 + 2 {
        let transaction = harness.transaction(ALICE, session, 1, vec![put("a", "1")]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    let transaction = harness.transaction(ALICE, 1, count + 3, vec![put("b", "1")]);
    assert_eq!(harness.run(0, &transaction), Verdict::Abort(AbortReason::Forgotten));
    assert_eq!(harness.value(0, "b"), None);
}

#[test]
fn a_session_in_use_is_not_forgotten_for_others_that_come_and_go() {
    let mut harness = harness(1);
    for session in 2..3 * SESSIONS_MAX as u64 {
        for (session, number) in [(session, 1), (1, session)] {
            let transaction = harness.transaction(ALICE, session, number, vec![put("a", "1")]);
            assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
        }
    }
    let gone = harness.transaction(ALICE, 2, 2, vec![put("a", "1")]);
    assert_eq!(harness.run(0, &gone), Verdict::Abort(AbortReason::Forgotten));
}

#[test]
fn anybody_may_have_a_commit_forgotten_once_it_is_pending_nowhere() {
    let mut harness = harness(2);
    let transaction = harness.transaction(ALICE, 1, 3, vec![put("a", "1"), put("n", "1")]);
    let mut asked = EndedStatement::none(ALICE, 1, 3);
    [3, 4].into_iter().for_each(|number| asked.add(number));
    let gone = |harness: &mut Harness, shard| {
        let reply = harness.one(shard, BOB, Request::CheckEnded(asked));
        let Some(Signed::Gone(said)) = reply.statement else { panic!("{reply:?}") };
        assert_eq!(
            (&reply.answer, harness.executors[0][0].answered(BOB, &Request::CheckEnded(asked)).statement.is_some()),
            (&Answer::Gone(said), true)
        );
        said.numbers().collect::<Vec<u64>>()
    };
    assert!(gone(&mut harness, 1).is_empty(), "both may still come");
    assert_eq!([0, 1].map(|shard| harness.run(shard, &transaction).vote()), [Vote::Commit; 2]);
    let certificate = harness.certificate(&transaction, Vote::Commit, &[0, 1]);
    harness.decide(0, &transaction, certificate.clone());
    assert!(gone(&mut harness, 1).is_empty(), "it is pending");
    harness.decide(1, &transaction, certificate);
    assert_eq!(gone(&mut harness, 1), [3]);
    let mut ended = EndedStatement::none(ALICE, 1, 3);
    ended.add(3);
    let unsettled =
        |harness: &Harness| harness.executors[0][0].unsettled().map(|(statement, others)| (statement, others.to_vec())).collect::<Vec<_>>();
    assert_eq!(unsettled(&harness), [(ended, vec![ShardId(1)])]);
    for (shard, left) in [(0, 1), (1, 0)] {
        let signers = harness.signers(shard, &[0, 2], &ended);
        harness.one(0, BOB, Request::ForgetEnded(ended, vec![signers]));
        assert_eq!(unsettled(&harness).len(), left, "it needs the word of all other shards");
    }
}

#[test]
fn the_answers_of_a_batch_are_bounded_for_each_client() {
    let mut harness = harness(1);
    let large = Value::new(vec![7; 500_000]).expect("within the limit");
    for number in [1, 2] {
        let key = key(&format!("k{number}"));
        let transaction = harness.transaction(BOB, 1, number, vec![Operation::Put(key, large.clone())]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    let count = BATCH_RESULT_BYTES_MAX / 1_000_000;
    let scan = |client, number: usize| {
        let transaction = harness.transaction(client, 2, number as u64, vec![read_range("k", "l")]);
        (client, Request::Run(transaction))
    };
    let mut batch: Vec<_> = (1..=count + 5).map(|number| scan(ALICE, number)).collect();
    batch.push(scan(BOB, 1));
    let replies = harness.deliver(0, &batch);
    let is_given = |reply: &Reply| matches!(&reply.answer, Answer::Voted(_, Verdict::Commit(Some(_))));
    let given = replies[..count + 5].iter().filter(|reply| is_given(reply)).count();
    assert!((count - 1..=count).contains(&given), "{given}");
    assert!(is_given(&replies[count + 5]), "another client has its own room");
    let next = harness.transaction(ALICE, 2, 1_000, vec![read_range("k", "l")]);
    assert!(is_given(&harness.one(0, ALICE, Request::Run(next))), "and so has the next batch");
}

#[test]
fn what_is_in_the_way_is_shown_to_each_client_within_bounds() {
    let mut harness = harness(2);
    let large = Value::new(vec![7; 500_000]).expect("within the limit");
    let pending = harness.transaction(BOB, 1, 1, vec![Operation::Put(key("a"), large), put("n", "1")]);
    assert_eq!(harness.run(0, &pending).vote(), Vote::Commit);
    let count = BATCH_CONFLICT_BYTES_MAX / 500_000;
    let meets = |harness: &Harness, client, number| (client, Request::Run(harness.transaction(client, 2, number, vec![put("a", "2")])));
    let mut batch: Vec<_> = (1..=count as u64 + 5).map(|number| meets(&harness, ALICE, number)).collect();
    batch.push(meets(&harness, BOB, 1));
    let replies = harness.deliver(0, &batch);
    let is_shown = |reply: &Reply| {
        let Answer::Voted(_, Verdict::Abort(AbortReason::Conflict(name, id, shown))) = &reply.answer else { panic!("{reply:?}") };
        assert_eq!((*name, *id), (pending.name(), pending.id()));
        shown.is_some()
    };
    let shown = replies[..count + 5].iter().filter(|reply| is_shown(reply)).count();
    assert!((count - 1..=count).contains(&shown), "{shown}");
    assert!(is_shown(&replies[count + 5]), "another client has its own room");
}

#[test]
fn no_session_with_something_pending_is_forgotten() {
    let mut harness = harness(2);
    for session in 1..=SESSIONS_MAX as u64 {
        let transaction = harness.transaction(ALICE, session, 1, vec![read("a"), read("n")]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    let late = harness.transaction(ALICE, 1_000, 1, vec![read("a"), read("n")]);
    assert_eq!(harness.run(0, &late), Verdict::Abort(AbortReason::TooMuchPending));
    let first = harness.transaction(ALICE, 1, 1, vec![read("a"), read("n")]);
    assert_eq!(harness.run(0, &first).vote(), Vote::Commit);
    harness.one(0, ALICE, Request::Release(first.name(), first.id()));
    assert_eq!(harness.run(0, &late), Verdict::Abort(AbortReason::Forgotten), "the vote was final");
}

#[test]
fn what_was_forgotten_stays_voted_down_though_its_session_is_settled() {
    let mut harness = harness(2);
    for session in 1..=SESSIONS_MAX as u64 + 2 {
        let transaction = harness.transaction(ALICE, session, 1, vec![put("b", "1")]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    // One that was never known, and is not later than those that were; and two of which there were too many.
    for session in [0, 1, 2] {
        let transaction = harness.transaction(ALICE, session, 2, vec![put("a", "1"), put("n", "1")]);
        let forgotten = Verdict::Abort(AbortReason::Forgotten);
        assert_eq!(harness.run(0, &transaction), forgotten);
        let settled = harness.one(0, ALICE, Request::Settle { session, below: 1 });
        assert!(matches!(settled.statement, Some(Signed::Settled(statement)) if statement.below == 1));
        assert_eq!(harness.run(0, &transaction), forgotten, "the vote was final");
    }
}

#[test]
fn a_certificate_proves_only_its_own_transaction_and_needs_all_its_shards() {
    let mut harness = harness(3);
    let transaction = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), put("n", "1")]);
    let other = harness.transaction(ALICE, 1, 2, vec![put("b", "1"), put("n", "1")]);
    assert_eq!((harness.run(0, &transaction).vote(), harness.run(0, &other).vote()), (Vote::Commit, Vote::Commit));
    let refused = [
        (harness.certificate(&transaction, Vote::Commit, &[0]), Refusal::Unproven),
        (harness.certificate(&transaction, Vote::Commit, &[1]), Refusal::Unproven),
        (harness.certificate(&transaction, Vote::Commit, &[0, 1, 2]), Refusal::Unproven),
        (harness.certificate(&transaction, Vote::Commit, &[1, 0]), Refusal::Unreadable),
        (harness.certificate(&transaction, Vote::Abort, &[2]), Refusal::Unproven),
        (harness.certificate(&transaction, Vote::Abort, &[0, 1]), Refusal::Unreadable),
        (harness.certificate(&transaction, Vote::Abort, &[]), Refusal::Unreadable),
        (harness.certificate(&other, Vote::Commit, &[0, 1]), Refusal::Unknown),
    ];
    for (certificate, refusal) in refused {
        assert_eq!(harness.decide(0, &transaction, certificate.clone()), Answer::Refused(refusal), "{certificate:?}");
    }
    let good = harness.certificate(&transaction, Vote::Commit, &[0, 1]);
    assert_eq!(harness.decide(0, &transaction, good), Answer::Ended(transaction.id(), Vote::Commit));
    assert_eq!((harness.value(0, "a").as_deref(), harness.value(0, "b")), (Some("1"), None));
}

#[test]
fn a_shards_vote_takes_f_plus_1_distinct_replicas_that_signed_it() {
    let mut harness = harness(2);
    let transaction = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), put("n", "1")]);
    assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    let statement = |vote| VoteStatement { id: transaction.id(), vote };
    let commit = statement(Vote::Commit);
    let own = harness.votes(0, &transaction, Vote::Commit);
    let mut forged = harness.signers(1, &[0, 1], &commit);
    forged.signatures[1].1 = harness.signers(1, &[0], &commit).signatures.remove(0).1;
    let bad = [
        harness.signers(1, &[0], &commit),
        harness.signers(1, &[], &commit),
        harness.signers(1, &[0, 0], &commit),
        harness.signers(1, &[1, 0], &commit),
        harness.signers(1, &[0, 1], &statement(Vote::Abort)),
        Signers { shard: ShardId(1), ..harness.signers(0, &[0, 1], &commit) },
        forged,
    ];
    for votes in bad {
        let certificate = Certificate { id: transaction.id(), decision: Vote::Commit, votes: vec![own.clone(), votes] };
        assert_eq!(harness.decide(0, &transaction, certificate.clone()), Answer::Refused(Refusal::Unreadable), "{certificate:?}");
    }
    let certificate = Certificate { id: transaction.id(), decision: Vote::Commit, votes: vec![own, harness.signers(1, &[1, 3], &commit)] };
    assert_eq!(harness.decide(0, &transaction, certificate), Answer::Ended(transaction.id(), Vote::Commit));
}

#[test]
fn only_the_author_releases_what_it_reads_and_nobody_what_it_writes() {
    let mut harness = harness(2);
    let reads = harness.transaction(ALICE, 1, 1, vec![read("a"), read("n")]);
    let reply = harness.one(0, ALICE, Request::Run(reads.clone()));
    assert_eq!(reply.statement, None, "nothing is signed for it (§3.5.2)");
    let writes = harness.transaction(ALICE, 1, 2, vec![read("b"), put("n", "1")]);
    assert_eq!(harness.run(0, &writes).vote(), Vote::Commit);
    let release = |harness: &mut Harness, client, transaction: &augustus::Transaction| {
        harness.one(0, client, Request::Release(transaction.name(), transaction.id())).answer
    };
    assert_eq!(release(&mut harness, BOB, &reads), Answer::Refused(Refusal::Unproven));
    assert_eq!(release(&mut harness, ALICE, &writes), Answer::Refused(Refusal::Unproven), "it changes something on the other shard");
    assert_eq!(harness.executors[0][0].pending().count(), 2);
    assert_eq!(release(&mut harness, ALICE, &reads), Answer::Ended(reads.id(), Vote::Commit));
    // Others may end what only reads, with its certificate.
    let left = harness.transaction(ALICE, 1, 3, vec![read("a"), read("n")]);
    assert_eq!(harness.run(0, &left).vote(), Vote::Commit);
    let reply = harness.one(0, BOB, Request::Finish(left.clone(), None));
    assert_eq!((signed_vote(&reply), reply.answer), (Some(Vote::Commit), Answer::Voted(left.id(), Verdict::Commit(None))));
    let certificate = harness.certificate(&left, Vote::Commit, &[0, 1]);
    assert_eq!(harness.decide(0, &left, certificate), Answer::Ended(left.id(), Vote::Commit));
}

#[test]
fn whoever_meets_an_unfinished_transaction_finishes_it() {
    let mut harness = harness(2);
    let left = harness.transaction(ALICE, 1, 1, vec![read("a"), put("a", "1"), put("n", "1")]);
    assert_eq!(harness.run(0, &left).vote(), Vote::Commit);
    let meets = harness.transaction(BOB, 1, 1, vec![read("a")]);
    let Verdict::Abort(AbortReason::Conflict(name, id, Some(shown))) = harness.run(0, &meets) else { panic!("it meets the other") };
    assert_eq!((name, id, *shown), (left.name(), left.id(), left.clone()));
    // (a.2): Bob brings it to the other shard, with the first one's votes.
    assert_eq!(harness.one(1, BOB, Request::Finish(left.clone(), None)).answer, Answer::Refused(Refusal::NotTheAuthor));
    assert_eq!(harness.one(1, BOB, Request::Run(left.clone())).answer, Answer::Refused(Refusal::NotTheAuthor));
    let reply = harness.one(0, BOB, Request::Finish(left.clone(), None));
    assert_eq!(signed_vote(&reply), Some(Vote::Commit));
    let evidence = Some(harness.votes(0, &left, Vote::Commit));
    let reply = harness.one(1, BOB, Request::Finish(left.clone(), evidence));
    assert_eq!(
        (signed_vote(&reply), reply.answer),
        (Some(Vote::Commit), Answer::Voted(left.id(), Verdict::Commit(None))),
        "Bob is not told what it read"
    );
    let certificate = harness.certificate(&left, Vote::Commit, &[0, 1]);
    for shard in [0, 1] {
        assert_eq!(harness.decide(shard, &left, certificate.clone()), Answer::Ended(left.id(), Vote::Commit));
    }
    let again = harness.transaction(BOB, 1, 2, vec![read("a")]);
    assert_eq!(found(&harness.run(0, &again)), [Some("1".to_owned())]);
    assert_eq!(harness.run(0, &left), Verdict::Commit(None), "its author learns that it committed");
}

#[test]
fn evidence_is_of_a_shard_that_takes_part() {
    let mut harness = harness(3);
    let made_up = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), put("n", "1")]);
    for evidence in
        [harness.votes(2, &made_up, Vote::Commit), harness.signers(1, &[0], &VoteStatement { id: made_up.id(), vote: Vote::Commit })]
    {
        let answer = harness.one(0, BOB, Request::Finish(made_up.clone(), Some(evidence))).answer;
        assert!(matches!(answer, Answer::Refused(Refusal::NotTheAuthor | Refusal::Unreadable)));
    }
    assert_eq!(harness.executors[0][0].pending().count(), 0);
}

#[test]
fn rights_are_kept_and_hidden_transactions_are_only_named() {
    let mut harness = harness(2);
    harness.fill(0, 7, &[("b", "secret")]);
    for (number, operations) in
        [(1, vec![read("b")]), (2, vec![put("b", "1")]), (3, vec![read_range("a", "c")]), (4, vec![put("a", "1"), read("n")])]
    {
        let transaction = harness.transaction(CAROL, 1, number, operations);
        assert_eq!(harness.run(0, &transaction), Verdict::Abort(AbortReason::NotPermitted));
    }
    let hidden = harness.transaction(ALICE, 1, 1, vec![put("a", "1"), put("n", "1")]);
    assert_eq!(harness.run(0, &hidden).vote(), Vote::Commit);
    let meets = harness.transaction(CAROL, 1, 5, vec![read("a")]);
    assert_eq!(harness.run(0, &meets), Verdict::Abort(AbortReason::Conflict(hidden.name(), hidden.id(), None)));
    let stranger = harness.transaction(types::ClientId(99), 1, 1, vec![read("a")]);
    assert_eq!(harness.one(0, types::ClientId(99), Request::Run(stranger)).answer, Answer::Refused(Refusal::UnknownClient));
}

#[test]
fn who_leaves_transactions_to_others_has_room_for_fewer() {
    let mut harness = harness(2);
    let mut number = 0;
    let mut begin = |harness: &mut Harness, client| {
        number += 1;
        let transaction = harness.transaction(client, 1, number, vec![put(&format!("a{number}"), "1"), put("n", "1")]);
        let verdict = harness.run(0, &transaction);
        (transaction, verdict)
    };
    let end = |harness: &mut Harness, transaction: &Transaction, by| {
        let certificate = harness.certificate(transaction, Vote::Commit, &[0, 1]);
        let reply = harness.one(0, by, Request::Decide(transaction.name(), certificate));
        assert_eq!(reply.answer, Answer::Ended(transaction.id(), Vote::Commit));
    };
    // Until no more are voted for.
    let room = |harness: &mut Harness, begin: &mut dyn FnMut(&mut Harness, ClientId) -> (Transaction, Verdict)| {
        let mut pending = Vec::new();
        loop {
            match begin(harness, ALICE) {
                (transaction, Verdict::Commit(_)) => pending.push(transaction),
                (_, verdict) => {
                    assert_eq!(verdict, Verdict::Abort(AbortReason::TooMuchPending));
                    return pending;
                }
            }
        }
    };
    let left = room(&mut harness, &mut begin);
    assert_eq!(left.len(), PENDING_MAX);
    // It is a part of the state, and each change of it one of its page.
    let mut pages = Vec::new();
    harness.reinstall(0, &mut pages);
    for (at, transaction) in left.iter().enumerate() {
        end(&mut harness, transaction, if at < 10 { BOB } else { ALICE });
    }
    let left = room(&mut harness, &mut begin);
    assert_eq!(left.len(), PENDING_MAX, "it has ended more since than others had to");
    left.iter().for_each(|transaction| end(&mut harness, transaction, BOB));
    let left = room(&mut harness, &mut begin);
    assert_eq!(left.len(), PENDING_MIN);
    let others = begin(&mut harness, BOB).1;
    assert_eq!(others.vote(), Vote::Commit, "that is nothing to others");
    harness.reinstall(0, &mut pages);
    assert_eq!(begin(&mut harness, ALICE).1, Verdict::Abort(AbortReason::TooMuchPending));
    left.iter().for_each(|transaction| end(&mut harness, transaction, ALICE));
    assert_eq!(room(&mut harness, &mut begin).len(), 2 * PENDING_MIN, "it grows as it ends its own");
}

#[test]
fn a_client_has_a_bounded_number_of_transactions_pending() {
    let mut harness = harness(2);
    for number in 1..=PENDING_MAX as u64 {
        let transaction = harness.transaction(ALICE, 1, number, vec![read("a"), read("n")]);
        assert_eq!(harness.run(0, &transaction).vote(), Vote::Commit);
    }
    let many = harness.transaction(ALICE, 1, 5_000, vec![read("a"), read("n")]);
    assert_eq!(harness.run(0, &many), Verdict::Abort(AbortReason::TooMuchPending));
    let alone = harness.transaction(ALICE, 1, 5_001, vec![read("a")]);
    assert_eq!(harness.run(0, &alone).vote(), Vote::Commit, "what ends at once may run");
    let others = harness.transaction(BOB, 1, 1, vec![read("a"), read("n")]);
    assert_eq!(harness.run(0, &others).vote(), Vote::Commit);
}

/// Commits `count` transactions over both shards at shard 0 alone, and gives them.
fn left_at_the_other_shard(harness: &mut Harness, count: u64) -> Vec<augustus::Transaction> {
    let left = (1..=count).map(|number| harness.transaction(ALICE, 1, number, vec![put("a", "1"), put("n", "1")]));
    let left: Vec<_> = left.collect();
    for transaction in &left {
        assert_eq!(harness.run(0, transaction).vote(), Vote::Commit);
        let certificate = harness.certificate(transaction, Vote::Commit, &[0, 1]);
        assert_eq!(harness.decide(0, transaction, certificate), Answer::Ended(transaction.id(), Vote::Commit));
    }
    left
}

#[test]
fn a_commit_is_remembered_until_the_other_shards_need_it_no_more() {
    let mut harness = Harness::new(3, Structural::Intervals, Signatures::Ed25519);
    let count = REPLIES_MAX as u64 + 10;
    let left = left_at_the_other_shard(&mut harness, count);
    let first = &left[0];
    assert_eq!(harness.run(0, first), Verdict::Commit(None), "another shard may hold it pending");
    let statement = SettledStatement { client: ALICE, session: 1, below: count + 1 };
    let stranger = harness.settled(2, statement);
    harness.one(0, BOB, Request::Forget(statement, vec![stranger]));
    assert_eq!(harness.run(0, first), Verdict::Commit(None), "the other shard has not said that it needs it no more");
    let few = harness.signers(1, &[2], &statement);
    assert_eq!(harness.one(0, BOB, Request::Forget(statement, vec![few])).answer, Answer::Refused(Refusal::Unreadable));
    let settled = harness.settled(1, statement);
    assert_eq!(harness.one(0, BOB, Request::Forget(statement, vec![settled])).answer, Answer::Settled(statement));
    assert_eq!(harness.run(0, first), Verdict::Abort(AbortReason::Forgotten));
    assert_eq!(harness.run(0, &left[left.len() - 1]), Verdict::Commit(None), "the last ones are remembered anyway");
}

#[test]
fn a_session_is_settled_up_to_what_is_pending() {
    let mut harness = harness(2);
    let pending = harness.transaction(ALICE, 1, 5, vec![put("a", "1"), put("n", "1")]);
    assert_eq!(harness.run(1, &pending).vote(), Vote::Commit);
    let settle = Request::Settle { session: 1, below: 10 };
    let reply = harness.one(1, ALICE, settle.clone());
    let statement = SettledStatement { client: ALICE, session: 1, below: 5 };
    assert_eq!((reply.answer, reply.statement), (Answer::Settled(statement), Some(Signed::Settled(statement))));
    // What was not seen before is aborted from now on.
    let unseen = harness.transaction(ALICE, 1, 4, vec![put("b", "1"), put("o", "1")]);
    assert_eq!(harness.run(1, &unseen), Verdict::Abort(AbortReason::Forgotten));
    let later = harness.transaction(ALICE, 1, 6, vec![put("b", "1"), put("o", "1")]);
    assert_eq!(harness.run(1, &later).vote(), Vote::Commit);
}

#[test]
fn requests_that_are_none_are_refused_alike() {
    let mut harness = harness(2);
    let elsewhere = harness.transaction(ALICE, 1, 1, vec![put("n", "1")]);
    assert_eq!(harness.one(0, ALICE, Request::Run(elsewhere.clone())).answer, Answer::Refused(Refusal::WrongShard));
    let certificate = harness.certificate(&elsewhere, Vote::Abort, &[1]);
    assert_eq!(harness.decide(0, &elsewhere, certificate), Answer::Refused(Refusal::Unknown));
    let [executor, _] = &mut harness.executors[0];
    let replies = executor.deliver(executor.sequence() + 1, &[Ordered { client: ALICE, request: Err(Unreadable) }]);
    assert_eq!(replies[0].answer, Answer::Refused(Refusal::Unreadable));
}

#[test]
fn a_shard_that_is_full_takes_no_new_keys_and_goes_on() {
    let mut harness = harness(1);
    let of_shard = harness.executors.remove(0).map(|executor| executor.with_pages_max(24));
    harness.executors.insert(0, of_shard);
    let mut run = |number: u64, operations| {
        let transaction = harness.transaction(ALICE, 1, number, operations);
        match harness.run(0, &transaction) {
            Verdict::Abort(reason) => Err(reason),
            Verdict::Commit(_) => Ok(Vote::Commit),
        }
    };
    let full =
        (1..2_000).find(|number| run(*number, vec![put(&format!("key{number:04}"), "1")]) == Err(AbortReason::Full)).expect("it ends");
    assert!(full > 100, "{full}");
    assert_eq!(run(full + 1, vec![put("key0001", "2")]), Ok(Vote::Commit), "what is there may change");
    let gone = (1..full).map(|number| Operation::Delete(key(&format!("key{number:04}")))).collect();
    assert_eq!(run(full + 2, gone), Ok(Vote::Commit));
    assert_eq!(run(full + 3, vec![put("new", "1")]), Ok(Vote::Commit), "there is room again");
}
