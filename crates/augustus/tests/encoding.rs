//! Each value has one encoding, and whatever else arrives is refused.

use augustus::certificate::{EndedStatement, SettledStatement, Vote};
use augustus::limits::{OPERATIONS_MAX, RANGE_ROWS_MAX, RANGES_MAX};
use augustus::{
    AbortReason, Answer, Found, Head, MomentAnswer, MomentPage, Operation, Question, Refusal, Request, Structural, Transaction, Verdict,
};
use crypto::Signatures;
use proptest::collection::vec;
use proptest::prelude::*;
use types::codec::{Decode, DecodeError, Encode};
use types::{ClusterId, Direction, Key, KeyRange, ShardId, Value};

use crate::harness::{ALICE, Harness, Random, key, put, range, read, read_range, value};

const CLUSTER: ClusterId = ClusterId::new([9; 16]);

fn keys() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 0..40).prop_map(|bytes| Key::new(bytes).expect("short"))
}

fn values() -> impl Strategy<Value = Value> {
    vec(any::<u8>(), 0..60).prop_map(|bytes| Value::new(bytes).expect("short"))
}

fn operations() -> impl Strategy<Value = Operation> {
    let ranges = (keys(), keys()).prop_filter_map("no keys", |(low, high)| KeyRange::new(low, high));
    prop_oneof![
        (keys(), proptest::option::of(values())).prop_map(|(key, value)| Operation::Compare(key, value)),
        keys().prop_map(Operation::Read),
        (ranges, any::<bool>(), 0..=RANGE_ROWS_MAX as u32).prop_map(|(range, is_up, rows_max)| {
            Operation::ReadRange(range, if is_up { Direction::Ascending } else { Direction::Descending }, rows_max)
        }),
        (keys(), values()).prop_map(|(key, value)| Operation::Insert(key, value)),
        (keys(), values()).prop_map(|(key, value)| Operation::Write(key, value)),
        (keys(), values()).prop_map(|(key, value)| Operation::Put(key, value)),
        keys().prop_map(Operation::Delete),
    ]
}

/// Decodes to itself; and what is not quite it decodes to nothing, or to something of those very bytes.
fn check<T: Encode + Decode + PartialEq + std::fmt::Debug>(original: &T, seed: u64) {
    let bytes = original.to_bytes();
    assert_eq!(T::from_bytes(bytes.clone().into(), CLUSTER).as_ref(), Ok(original));
    let mut random = Random(seed);
    for _ in 0..50 {
        let mut damaged = bytes.clone();
        match random.below(4) {
            0 => damaged.truncate(random.below(bytes.len())),
            1 => damaged.push(random.below(256) as u8),
            2 => {
                let at = random.below(bytes.len());
                damaged[at] ^= 1 << random.below(8);
            }
            _ => {
                let at = random.below(bytes.len());
                damaged.splice(at..at, [0xff; 4]);
            }
        }
        if let Ok(other) = T::from_bytes(damaged.clone().into(), CLUSTER) {
            assert_eq!(other.to_bytes(), damaged);
            assert!(other != *original, "two encodings of one value");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_transaction_has_one_encoding(operations in vec(operations(), 1..12), session: u64, number: u64) {
        let name = augustus::Name { client: ALICE, session, number };
        let transaction = Transaction::new(CLUSTER, name, operations).expect("within limits");
        check(&transaction, number);
        let elsewhere = Transaction::from_bytes(transaction.to_bytes().into(), ClusterId::new([8; 16])).expect("its own bytes");
        prop_assert_ne!(elsewhere.id(), transaction.id(), "the id names the cluster");
    }

    #[test]
    fn arbitrary_bytes_are_refused_in_peace(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Transaction::from_bytes(bytes.clone().into(), CLUSTER);
        let _ = Answer::from_bytes(bytes.clone().into(), CLUSTER);
        let _ = Head::from_bytes(bytes.clone().into(), CLUSTER);
        let _ = Question::from_bytes(bytes.clone().into(), CLUSTER);
        let _ = MomentAnswer::from_bytes(bytes.clone().into(), CLUSTER);
        let _ = Request::from_bytes(bytes.into(), CLUSTER);
    }
}

#[test]
fn every_request_and_every_answer_has_one_encoding() {
    let harness = Harness::new(3, Structural::Intervals, Signatures::Ed25519);
    let transaction = harness.transaction(ALICE, 1, 2, vec![put("a", "1"), read("n"), read_range("o", "u")]);
    let compare = Operation::compare_rows(&harness.cluster, range("a", "u"), &[(key("b"), value("1"))]);
    check(&harness.transaction(ALICE, 1, 3, vec![compare]), 7);
    let statement = SettledStatement { client: ALICE, session: 1, below: 7 };
    let mut ended = EndedStatement::none(ALICE, 1, 3);
    [3, 66, 258, 259, 2].into_iter().for_each(|number| ended.add(number));
    assert!(ended.numbers().eq([3, 66, 258]), "those before the first, and far from it, have no place");
    assert!(EndedStatement { which: [u64::MAX; 4], ..EndedStatement::none(ALICE, 1, u64::MAX) }.numbers().eq([u64::MAX]));
    let requests = [
        Request::Run(transaction.clone()),
        Request::Finish(transaction.clone(), None),
        Request::Finish(transaction.clone(), Some(harness.votes(1, &transaction, Vote::Commit))),
        Request::Decide(transaction.name(), harness.certificate(&transaction, Vote::Commit, &[0, 1, 2])),
        Request::Decide(transaction.name(), harness.certificate(&transaction, Vote::Abort, &[2])),
        Request::Release(transaction.name(), transaction.id()),
        Request::Settle { session: 1, below: 9 },
        Request::CheckEnded(ended),
        Request::ForgetEnded(ended, vec![harness.signers(1, &[0, 1], &ended)]),
        Request::Forget(statement, vec![harness.settled(1, statement), harness.settled(2, statement)]),
    ];
    for (seed, request) in (0..).zip(&requests) {
        check(request, seed);
    }
    let found = vec![Found::Value(None), Found::Value(Some(value("1"))), Found::Rows(vec![(key("a"), value("1"))])];
    let aborts = [
        AbortReason::Conflict(transaction.name(), transaction.id(), None),
        AbortReason::Conflict(transaction.name(), transaction.id(), Some(Box::new(transaction.clone()))),
        AbortReason::Mismatch(3),
        AbortReason::NotPermitted,
        AbortReason::AnswerTooLarge,
        AbortReason::TooMuchPending,
        AbortReason::Unsettled,
        AbortReason::VotedDown,
        AbortReason::NumberReused,
        AbortReason::Forgotten,
        AbortReason::Full,
    ];
    let verdicts = aborts.into_iter().map(Verdict::Abort).chain([Verdict::Commit(None), Verdict::Commit(Some(found))]);
    let refusals = [
        Refusal::Unreadable,
        Refusal::NotTheAuthor,
        Refusal::WrongShard,
        Refusal::UnknownClient,
        Refusal::Unknown,
        Refusal::Unproven,
        Refusal::TooOld,
    ];
    let mut answers: Vec<Answer> = verdicts.map(|verdict| Answer::Voted(transaction.id(), verdict)).collect();
    answers.extend(refusals.map(Answer::Refused));
    answers.extend([Answer::Ended(transaction.id(), Vote::Abort), Answer::Settled(statement), Answer::Gone(ended)]);
    for (seed, answer) in (0..).zip(&answers) {
        check(answer, seed);
    }
    let (name, id) = (transaction.name(), transaction.id());
    let operations = [read("a"), read_range("a", "c")];
    let questions = operations.map(|operation| Question::Page { name, id, operation });
    for (seed, question) in (0..).zip(questions.into_iter().chain([Question::Drop(id)])) {
        check(&question, seed);
    }
    let write = Question::Page { name, id, operation: put("a", "1") };
    assert!(Question::from_bytes(write.to_bytes().into(), CLUSTER).is_err(), "only what reads is asked");
    let rows = vec![(key("a"), value("1")), (key("b"), value("2"))];
    let pages = [None, Some(key("b"))].map(|last| MomentAnswer::Page(MomentPage { rows: rows.clone(), last }));
    for (seed, answer) in (0..).zip(pages.iter().chain([&MomentAnswer::Gone])) {
        check(answer, seed);
    }
    check(&Head { shard: ShardId(1), structural: Structural::WholeShard, sequence: 4, pages: 5, root: [6; 32] }, 1);
}

#[test]
fn a_transaction_is_within_its_limits() {
    let name = augustus::Name { client: ALICE, session: 1, number: 1 };
    let make = |operations: Vec<Operation>| Transaction::new(CLUSTER, name, operations);
    assert!(make(vec![]).is_err());
    assert!(make(vec![read("a"); OPERATIONS_MAX]).is_ok() && make(vec![read("a"); OPERATIONS_MAX + 1]).is_err());
    assert!(make(vec![read_range("a", "b"); RANGES_MAX]).is_ok() && make(vec![read_range("a", "b"); RANGES_MAX + 1]).is_err());
    let megabyte = Value::new(vec![0; 1 << 20]).expect("the limit");
    assert!(make(vec![Operation::Put(key("a"), megabyte); 4]).is_err(), "4 MiB of values, and their keys");
    // The decoder holds to them, too.
    let mut bytes = make(vec![read("a")]).expect("within limits").to_bytes();
    bytes.truncate(25);
    bytes.extend(0u32.to_le_bytes());
    assert_eq!(Transaction::from_bytes(bytes.into(), CLUSTER), Err(DecodeError::OverLimit("a transaction")));
    let too_long = Operation::ReadRange(range("a", "b"), Direction::Ascending, RANGE_ROWS_MAX as u32 + 1);
    let bytes = make(vec![too_long]).expect("only its decoder counts").to_bytes();
    assert_eq!(Transaction::from_bytes(bytes.into(), CLUSTER), Err(DecodeError::OverLimit("the rows of a range")));
}

/// Journals and snapshots of earlier builds hold it.
#[test]
fn a_range_read_from_its_beginning_is_written_as_before_there_were_directions() {
    let bytes = [&[3][..], &range("a", "b").to_bytes(), &100u32.to_bytes()].concat();
    assert_eq!(read_range("a", "b").to_bytes(), bytes);
    let from_end = Operation::ReadRange(range("a", "b"), Direction::Descending, 100);
    assert_eq!(from_end.to_bytes(), [&[9], &bytes[1..]].concat());
}
