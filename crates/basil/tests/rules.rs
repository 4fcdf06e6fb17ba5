//! The pure rules, each alone: quorums, tallies, conflicts, and who logs.

use std::sync::Arc;

use basil::certificate::{Proof, VoteStatement, logging_shard};
use basil::check::conflict_at;
use basil::tally::{Outcome, Tally};
use basil::{Certificate, Decision, Quorums, Read, Transaction, Vote, Write};
use crypto::{BatchSignature, leaf};
use types::{ClientId, Key, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::harness::members::{Members, members};

const ONE_FAULT: Quorums = Quorums::new(1);

/// Some signature: the tally does not look into it.
fn signature(members: &Members) -> BatchSignature {
    let replica = ReplicaId { shard: ShardId(0), index: 0 };
    let statement = VoteStatement { id: TransactionId([1; 32]), vote: Vote::Commit };
    members.batch_signers[&replica].sign(&[leaf(members.cluster.id(), replica, &statement)]).remove(0)
}

fn tally(commits: u16, aborts: u16) -> Tally {
    let signature = signature(&members(1));
    let mut tally = Tally::new(ShardId(0));
    for index in 0..commits {
        assert!(tally.count(index, Vote::Commit, signature.clone()));
    }
    for index in commits..commits + aborts {
        assert!(tally.count(index, Vote::Abort, signature.clone()));
    }
    tally
}

fn key(text: &str) -> Key {
    Key::from(text)
}

/// A transaction of client 1 at `time`, with its reads as (key, version) and the keys it writes.
fn transaction(time: u64, reads: &[(&str, u64)], writes: &[&str]) -> Transaction {
    let version = |time| if time == 0 { Timestamp::ZERO } else { Timestamp::new(time, ClientId(1)) };
    let reads = reads.iter().map(|(name, time)| Read { key: key(name), version: version(*time), dependency: None });
    let writes = writes.iter().map(|name| Write { key: key(name), value: Some(Value::from("1")) });
    let cluster = members(1).cluster.id();
    Transaction::new(cluster, version(time), reads.collect(), writes.collect()).expect("small enough")
}

#[test]
fn quorums_are_those_of_the_paper() {
    let all = |f| {
        let q = Quorums::new(f);
        [q.replicas(), q.weak(), q.abort_slow(), q.commit_slow(), q.abort_fast(), q.logged(), q.commit_fast()]
    };
    assert_eq!(all(1), [6, 2, 2, 4, 4, 5, 6]);
    assert_eq!(all(2), [11, 3, 3, 7, 7, 9, 11]);
}

/// §4.2 (1) to (4), with one fault. Rows are votes to commit, columns votes to abort, each from none.
#[test]
fn votes_amount_to_what_the_paper_says() {
    let table = [
        "-  -  a  a  A  A  A", // `-` open, `a` abort slow, `A` abort fast
        "-  -  a  a  A  A",
        "-  -  a  a  A",
        "-  -  a  a",
        "c  c  c", // `c` commit slow, `C` commit fast
        "c  c",
        "C",
    ];
    for (commits, row) in (0..).zip(table) {
        for (aborts, cell) in (0..).zip(row.split_whitespace()) {
            let wanted = match cell {
                "-" => Outcome::Open,
                "a" => Outcome::AbortSlow,
                "A" => Outcome::AbortFast,
                "c" => Outcome::CommitSlow,
                _ => Outcome::CommitFast,
            };
            assert_eq!(tally(commits, aborts).outcome(ONE_FAULT), wanted, "{commits} to commit, {aborts} to abort");
        }
    }
}

/// §4.2 (5): a committed conflict decides as soon as it is shown, unless all have voted to commit, which then cannot be.
#[test]
fn a_committed_conflict_is_enough() {
    let other = transaction(200, &[("a", 0)], &[]);
    let proof = Proof::Fast(Vec::new());
    let certificate = Arc::new(Certificate { id: other.id(), decision: Decision::Commit, proof });
    for (commits, aborts) in [(0, 1), (1, 1), (4, 1), (5, 1), (5, 0)] {
        let mut tally = tally(commits, aborts);
        tally.conflicts_with(other.clone(), certificate.clone());
        assert_eq!(tally.outcome(ONE_FAULT), Outcome::AbortByConflict);
        assert!(tally.proof(ONE_FAULT).is_some());
        assert!(!tally.may_improve(ONE_FAULT, |_| true));
    }
}

#[test]
fn only_slow_outcomes_wait_for_better_votes_and_only_while_there_can_be_any() {
    let may = |commits, aborts| tally(commits, aborts).may_improve(ONE_FAULT, |_| true);
    assert!(may(4, 0) && may(5, 0), "six may still come together");
    assert!(!may(4, 1) && !may(5, 1) && !may(4, 2), "one vote to abort, and six never will");
    assert!(may(0, 2) && may(2, 2) && may(3, 2), "four to abort, or four to commit, may still come together");
    assert!(!may(3, 3), "all are heard");
    assert!(!may(6, 0) && !may(0, 4), "there is nothing better");
    assert!(may(3, 1) && may(0, 0), "nothing is decided yet");
}

#[test]
fn fast_outcomes_are_proved_and_slow_ones_are_not() {
    for (commits, aborts, proved) in [(6, 0, true), (0, 4, true), (2, 4, true), (5, 0, false), (4, 2, false), (3, 3, false), (0, 0, false)]
    {
        assert_eq!(tally(commits, aborts).proof(ONE_FAULT).is_some(), proved, "{commits} to commit, {aborts} to abort");
    }
}

#[test]
fn of_a_liar_who_says_both_the_first_counts() {
    let signature = signature(&members(1));
    let mut tally = Tally::new(ShardId(0));
    for index in [3, 1, 2] {
        assert!(tally.count(index, Vote::Commit, signature.clone()));
    }
    assert!(!tally.count(3, Vote::Abort, signature.clone()));
    assert!(!tally.count(3, Vote::Commit, signature.clone()));
    assert!(!tally.count(64, Vote::Commit, signature), "no shard has so many replicas");
    assert_eq!((tally.votes_to(Vote::Commit), tally.votes_to(Vote::Abort), tally.count_heard()), (3, 0, 3));
    let indices: Vec<u16> = tally.votes(Vote::Commit).voters.iter().map(|(index, _)| *index).collect();
    assert_eq!(indices, [1, 2, 3], "a set of votes stands in order");
}

#[test]
fn conflicts_are_missed_writes_and_reads_that_were_written_under() {
    let cluster = members(1).cluster;
    let conflict = |one: &Transaction, other: &Transaction| conflict_at(&cluster, ShardId(0), one, other);
    let reader = transaction(200, &[("a", 50)], &["b"]);

    assert!(conflict(&reader, &transaction(100, &[], &["a"])), "L7: it missed this write");
    assert!(!conflict(&reader, &transaction(50, &[], &["a"])), "that is the version it read");
    assert!(!conflict(&reader, &transaction(40, &[], &["a"])), "older than what it read");
    assert!(!conflict(&reader, &transaction(201, &[], &["a"])), "above the reader");
    assert!(!conflict(&reader, &transaction(100, &[], &["c"])), "another key");
    assert!(!conflict(&reader, &transaction(100, &[("a", 0)], &[])), "two readers");
    assert!(!conflict(&transaction(200, &[], &["a"]), &transaction(100, &[], &["a"])), "two writers who read nothing");
    assert!(!conflict(&reader, &reader), "nothing conflicts with itself");

    let writer = transaction(100, &[], &["a"]);
    assert!(conflict(&writer, &reader), "L10: the other read past what it writes");
    assert!(!conflict(&transaction(50, &[], &["a"]), &reader), "that is the version the other read");
    assert!(!conflict(&transaction(300, &[], &["a"]), &reader), "above the reader");
    assert!(!conflict(&transaction(100, &[], &["c"]), &reader), "another key");
}

#[test]
fn a_conflict_counts_on_its_own_shard_only() {
    let cluster = members(2).cluster;
    let (reader, writer) = (transaction(200, &[("a", 0), ("z", 150)], &[]), transaction(100, &[], &["a", "z"]));
    assert!(conflict_at(&cluster, ShardId(0), &reader, &writer));
    assert!(!conflict_at(&cluster, ShardId(1), &reader, &writer), "what it read of z is newer");
    assert!(conflict_at(&cluster, ShardId(0), &writer, &reader));
    assert!(!conflict_at(&cluster, ShardId(1), &writer, &reader));
}

#[test]
fn the_logging_shard_follows_from_the_name_and_is_a_participant() {
    let name = |prefix: u64| {
        let mut bytes = [9; 32];
        bytes[..8].copy_from_slice(&prefix.to_le_bytes());
        TransactionId(bytes)
    };
    let three = [ShardId(2), ShardId(5), ShardId(7)];
    assert_eq!(logging_shard(&three, name(3)), Some(ShardId(2)));
    assert_eq!(logging_shard(&three, name(4)), Some(ShardId(5)));
    assert_eq!(logging_shard(&three, name(u64::MAX)), Some(ShardId(2)));
    assert_eq!(logging_shard(&[], name(3)), None);
}
