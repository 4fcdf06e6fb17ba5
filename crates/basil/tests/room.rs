//! What nobody voted on takes no more room than it should.

use std::collections::BTreeSet;
use std::sync::Arc;

use basil::certificate::{Proof, ShardProof, VoteSet, VoteStatement};
use basil::message::{Conflict, Subject, Unsigned};
use basil::{
    Certificate, ClientLimit, Command, Coordinator, CoordinatorOptions, Decision, Event, Failure, Message, Node, Read, Refusal, Replica,
    ReplicaOptions, Transaction, Vote, Write,
};
use crypto::{Verified, leaf};
use machine::turn::{ANSWER_BYTES_MAX, Bounds, Turns};
use machine::{Durable as _, Input, Machine as _, Outbox, Time};
use store::{Memory, Options, Store};
use types::codec::Encode as _;
use types::limits::VALUE_BYTES_MAX;
use types::{ClientId, Key, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId, Value};

use crate::harness::members::{Members, members};

const SHARD: ShardId = ShardId(0);
const ME: ReplicaId = ReplicaId { shard: SHARD, index: 0 };
const LIAR: Party = Party::Client(ClientId(2), Session(2));
const HONEST: Party = Party::Client(ClientId(1), Session(1));
/// The time by all clocks, in milliseconds.
const NOW_MS: u64 = 100_000;
const KNOWN_MAX: usize = 10;

fn transaction(members: &Members, client: ClientId, ms: u64, reads: &[&str], write: (&str, &str)) -> Transaction {
    let reads = reads.iter().map(|key| Read { key: Key::from(*key), version: Timestamp::ZERO, dependency: None });
    let write = Write { key: Key::from(write.0), value: Some(Value::from(write.1)) };
    let timestamp = Timestamp::new(ms * 1_000_000, client);
    Transaction::new(members.cluster.id(), timestamp, reads.collect(), vec![write]).expect("small enough")
}

/// The proof that `transaction`, which touches the first shard alone, committed.
fn committed(members: &Members, transaction: &Transaction) -> Certificate {
    committed_on(members, &[SHARD], transaction)
}

/// `transaction`, with the proof that it committed, as somebody shows it.
fn shown_committed(members: &Members, transaction: Transaction) -> Verified<Message> {
    let certificate = Arc::new(committed(members, &transaction));
    let writeback = Message::Writeback { transaction: Some(transaction), certificate, relay: false };
    members.stranger().verify(writeback).expect("it is signed")
}

/// What `shards` have to say for it that `transaction` committed.
fn committed_on(members: &Members, shards: &[ShardId], transaction: &Transaction) -> Certificate {
    let id = transaction.id();
    let of_shard = |shard: &ShardId| {
        let vote = |index| {
            let replica = ReplicaId { shard: *shard, index };
            let statement = VoteStatement { id, vote: Vote::Commit };
            (index, members.batch_signers[&replica].sign(&[leaf(members.cluster.id(), replica, &statement)]).remove(0))
        };
        ShardProof::Votes(VoteSet { shard: *shard, vote: Vote::Commit, voters: (0..6).map(vote).collect() })
    };
    Certificate { id, decision: Decision::Commit, proof: Proof::Fast(shards.iter().map(of_shard).collect()) }
}

/// What the replica says to `from` when it hears `message`.
fn answer(members: &Members, replica: &mut Replica<Memory>, from: Party, message: Message) -> Vec<Message> {
    let message = members.stranger().verify(message).expect("it is properly signed");
    let mut outbox = Outbox::default();
    replica.step(Time(NOW_MS * 1_000_000), Input::Message { from, message }, &mut outbox);
    outbox.sends.into_iter().map(|(_, message)| message).collect()
}

/// A replica's refusal of a transaction, as it arrives.
fn refused<C>(members: &Members, id: TransactionId, index: u16, refusal: Refusal) -> Input<C, Verified<Message>> {
    let refused = Message::Refused { subject: Subject::Transaction(id), refusal };
    let message = members.stranger().verify(refused).expect("nothing of it is signed");
    Input::Message { from: Party::Replica(ReplicaId { shard: SHARD, index }), message }
}

/// A liar makes up transactions that missed what `other` wrote, and so has the proofs that they aborted.
#[test]
fn fabricated_aborts_leave_capacity_for_others() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { tracked_max: KNOWN_MAX, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let other = transaction(&members, ClientId(2), NOW_MS - 50, &[], ("a", "1"));
    let certificate = Arc::new(committed(&members, &other));
    let aborted = |ms: u64| {
        let made_up = transaction(&members, ClientId(2), ms, &["a"], ("b", "1"));
        let proof = ShardProof::Conflict { shard: SHARD, transaction: other.clone(), certificate: certificate.clone() };
        let certificate = Certificate { id: made_up.id(), decision: Decision::Abort, proof: Proof::Fast(vec![proof]) };
        Message::Writeback { transaction: Some(made_up), certificate: Arc::new(certificate), relay: false }
    };
    let refused = |refusal: Refusal, answers: &[Message]| matches!(answers, [Message::Refused { subject: Subject::Transaction(_), refusal: found }] if *found == refusal);
    for number in 0..3 * KNOWN_MAX as u64 {
        let answers = answer(&members, &mut replica, LIAR, aborted(NOW_MS - 40 + number));
        let is_full = number >= KNOWN_MAX as u64 / 2;
        assert_eq!(refused(Refusal::Overloaded { after_ms: 100 }, &answers), is_full, "{answers:?}");
    }
    assert_eq!(replica.load(), (KNOWN_MAX / 2, 0));
    // What did commit is taken in all the same, and others still find room.
    let writeback = Message::Writeback { transaction: Some(other), certificate: certificate.clone(), relay: false };
    assert!(answer(&members, &mut replica, LIAR, writeback).is_empty());
    let honest = transaction(&members, ClientId(1), NOW_MS, &[], ("c", "1"));
    assert!(answer(&members, &mut replica, HONEST, Message::Prepare { transaction: honest }).is_empty());
    assert_eq!(replica.load(), (KNOWN_MAX / 2 + 2, 1));
    assert_eq!(replica.counts().votes_commit, 1);
}

/// A thousand small requests fit into one turn, and their answers may be of megabytes each.
#[test]
fn a_turn_ends_when_its_answers_are_long() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let now = Time(NOW_MS * 1_000_000);
    let mut replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
    let long = "v".repeat(VALUE_BYTES_MAX);
    let written = transaction(&members, ClientId(1), NOW_MS - 1, &[], ("a", &long));
    let certificate = Arc::new(committed(&members, &written));
    assert!(
        answer(&members, &mut replica, HONEST, Message::Writeback { transaction: Some(written), certificate, relay: false }).is_empty()
    );
    let mut turns = Turns::new(replica, Party::Replica(ME), Bounds::default());
    let mut turn = turns.begin(now);
    while turn.room() > 0 {
        let read = Message::Read { request: 1, timestamp: Timestamp::new(now.0, ClientId(1)), keys: vec![Key::from("a")] };
        turn.step(now, Input::Message { from: HONEST, message: members.stranger().verify(read).expect("it is well-formed") });
    }
    assert_eq!(turn.inputs(), ANSWER_BYTES_MAX / VALUE_BYTES_MAX);
}

/// Below the window nothing is voted on, so that nobody needs to be told that something there aborted.
#[test]
fn an_abort_that_is_too_old_is_not_taken_in() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let now = Time(NOW_MS * 1_000_000);
    let mut replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
    let other = transaction(&members, ClientId(2), 50_000, &[], ("a", "1"));
    let made_up = transaction(&members, ClientId(2), 50_001, &["a"], ("b", "1"));
    let proof = ShardProof::Conflict { shard: SHARD, transaction: other.clone(), certificate: Arc::new(committed(&members, &other)) };
    let certificate = Certificate { id: made_up.id(), decision: Decision::Abort, proof: Proof::Fast(vec![proof]) };
    let writeback = Message::Writeback { transaction: Some(made_up), certificate: Arc::new(certificate), relay: false };
    let answers = answer(&members, &mut replica, LIAR, writeback);
    assert!(matches!(answers.as_slice(), [Message::Refused { refusal: Refusal::TooOld, .. }]), "{answers:?}");
    assert_eq!(replica.load(), (0, 0));
}

/// Else one client could hold writers off, and it would be the other that is promised nothing then.
#[test]
fn who_reads_in_the_name_of_another_is_promised_nothing() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let now = Time(NOW_MS * 1_000_000);
    let mut replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
    let mut is_promised = |ms: u64, client: u64| {
        let read = Message::Read { request: 1, timestamp: Timestamp::new(ms * 1_000_000, ClientId(client)), keys: vec![Key::from("a")] };
        match answer(&members, &mut replica, HONEST, read).as_slice() {
            [Message::ReadReply { is_promised, .. }] => *is_promised,
            other => panic!("it is answered once: {other:?}"),
        }
    };
    assert_eq!([1, 2, 0].map(|client| is_promised(NOW_MS, client)), [true, false, true], "nobody's name is as good as the reader's own");
    assert!(is_promised(NOW_MS - 1_001, 2), "the past is everybody's");
}

/// What is asked ahead of time is answered when it is due, also where it was taken out to be served later; but not where operators have changed the
/// key under which it came: whoever has the next one did not ask for it.
#[test]
fn what_was_asked_ahead_of_time_under_an_earlier_key_is_not_answered() {
    let members = members(1);
    let (now, due) = (Time(NOW_MS * 1_000_000), Time((NOW_MS + 1) * 1_000_000));
    let keys = members.cluster.replicas().map(|replica| *members.cluster.replica_key(replica).expect("it has one")).collect();
    let mut clients = members.cluster.clients().to_vec();
    let changed = clients.iter_mut().find(|(client, _)| *client == ClientId(2)).expect("it is a client");
    changed.1.public_key = [77; 32];
    let (id, placement) = (members.cluster.id(), members.cluster.placement().clone());
    let next = Arc::new(types::Cluster::new(id, 1, placement, vec![keys], clients).expect("the parts fit"));
    for is_taken_out_first in [false, true] {
        let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
        let mut replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
        for (from, client) in [(LIAR, 2), (HONEST, 1)] {
            let read = Message::Read { request: 1, timestamp: Timestamp::new(due.0, ClientId(client)), keys: vec![Key::from("a")] };
            assert!(answer(&members, &mut replica, from, read).is_empty(), "it is too early");
        }
        assert_eq!((replica.take_due(now), replica.deadline()), (None, Some(due)));
        let mut taken = Vec::new();
        if is_taken_out_first {
            taken.extend(std::iter::from_fn(|| replica.take_due(due)));
            assert_eq!(taken, [LIAR, HONEST]);
        }
        replica.reconfigure(next.clone());
        taken.extend(std::iter::from_fn(|| replica.take_due(due)));
        let mut outbox = Outbox::default();
        taken.iter().for_each(|from| replica.serve_kept(due, *from, &mut outbox));
        assert!(matches!(outbox.sends.as_slice(), [(HONEST, Message::ReadReply { .. })]), "{:?}", outbox.sends);
    }
}

/// Limits that the operators set for one client are kept, and follow a new configuration at once, as rights do.
#[test]
fn a_client_is_held_to_its_limits_and_rights_as_the_operators_change_them() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let mut replica =
        Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let of = |number: u64, reads: &[&str]| transaction(&members, ClientId(1), NOW_MS - 900 + number, reads, ("a", "1"));
    let prepare = |replica: &mut Replica<Memory>, transaction: Transaction| -> Option<Refusal> {
        match answer(&members, replica, HONEST, Message::Prepare { transaction }).as_slice() {
            [] => None,
            [Message::Refused { refusal, .. }] => Some(*refusal),
            other => panic!("a vote is signed, and so no answer yet: {other:?}"),
        }
    };
    let read = |replica: &mut Replica<Memory>, keys: &[&str]| -> Option<Refusal> {
        let timestamp = Timestamp::new(NOW_MS * 1_000_000, ClientId(1));
        let keys = keys.iter().map(|key| Key::from(*key)).collect();
        match answer(&members, replica, HONEST, Message::Read { request: 1, timestamp, keys }).as_slice() {
            [Message::ReadReply { .. }] => None,
            [Message::Refused { refusal, .. }] => Some(*refusal),
            other => panic!("it is answered once: {other:?}"),
        }
    };
    let changed = |change: &dyn Fn(&mut types::Permission)| {
        let keys = members.cluster.replicas().map(|replica| *members.cluster.replica_key(replica).expect("it has one")).collect();
        let mut clients = members.cluster.clients().to_vec();
        change(&mut clients[0].1);
        let cluster = types::Cluster::new(members.cluster.id(), 1, members.cluster.placement().clone(), vec![keys], clients);
        Arc::new(cluster.expect("the parts fit"))
    };
    let over = |limit: ClientLimit, after_ms: u32| Refusal::ClientLimit { limit, after_ms };
    assert_eq!((prepare(&mut replica, of(1, &["b", "c"])), read(&mut replica, &["b", "c"])), (None, None));
    replica.reconfigure(changed(&|permission| permission.limits.keys = Some(2)));
    assert_eq!(prepare(&mut replica, of(2, &["b", "c"])), Some(over(ClientLimit::Keys, 0)));
    assert_eq!(prepare(&mut replica, of(3, &["b"])), None);
    replica.reconfigure(changed(&|permission| permission.limits.bytes = Some(10)));
    assert_eq!(prepare(&mut replica, of(4, &[])), Some(over(ClientLimit::Bytes, 0)));
    replica.reconfigure(changed(&|permission| permission.limits.transactions = Some(2)));
    assert_eq!(prepare(&mut replica, of(5, &[])), Some(over(ClientLimit::Transactions, 0)), "two are under way");
    replica.reconfigure(changed(&|permission| permission.limits.reads_per_second = Some(1)));
    assert_eq!((read(&mut replica, &["b", "c"]), read(&mut replica, &["b"])), (None, Some(over(ClientLimit::ReadsPerSecond, 2_000))));
    replica.reconfigure(changed(&|permission| permission.read_prefixes = vec![Key::from("b")]));
    assert_eq!((read(&mut replica, &["b"]), read(&mut replica, &["c"])), (None, Some(Refusal::NotPermitted)));
}

/// A limit that a client is over for now does not show that its transaction never happens: others vote on it, and finish it. Once its time is over, its
/// application is told why it was not judged, at a time that no liar draws out.
#[test]
fn what_was_refused_for_a_limit_may_still_commit() {
    let members = members(1);
    let (mut coordinator, mut outbox) = (Coordinator::new(members.cluster.clone(), CoordinatorOptions::default()), Outbox::default());
    let transaction = transaction(&members, ClientId(1), NOW_MS, &[], ("a", "1"));
    let now = Time(NOW_MS * 1_000_000);
    let commit = Command::Commit { operation: 1, transaction: transaction.clone(), dependencies: Vec::new() };
    coordinator.step(now, Input::Command(commit), &mut outbox);
    let over = |after_ms: u32| Refusal::ClientLimit { limit: ClientLimit::Transactions, after_ms };
    for index in 0..6 {
        let input = refused(&members, transaction.id(), index, over(if index == 0 { u32::MAX } else { 20 }));
        coordinator.step(now, input, &mut outbox);
    }
    assert!(outbox.events.is_empty(), "it is asked again: {:?}", outbox.events);
    while outbox.events.is_empty() {
        coordinator.step(coordinator.deadline().expect("it asks again"), Input::Tick, &mut outbox);
    }
    let [Event::Ended { operation: 1, result: Err(Failure::TimedOut(Some(why))) }] = outbox.events.as_slice() else {
        panic!("it is told why: {:?}", outbox.events)
    };
    assert_eq!(*why, over(20));
}

/// A client leaves what it began to others, until it is refused; what it ends itself after all does not count.
#[test]
fn a_client_over_its_abandonment_limit_is_refused() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { abandoned_per_second: 1, abandoned_burst_seconds: 3, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let of = |client: u64, number: u64| transaction(&members, ClientId(client), NOW_MS - 900 + number, &[], ("a", "1"));
    let is_refused = |replica: &mut Replica<Memory>, party: Party, transaction: Transaction| {
        let answers = answer(&members, replica, party, Message::Prepare { transaction });
        assert!(
            matches!(answers.as_slice(), [] | [Message::Refused { refusal: Refusal::AbandonLimit { after_ms: 1_000.. }, .. }]),
            "{answers:?}"
        );
        !answers.is_empty()
    };
    let end = |replica: &mut Replica<Memory>, party: Party, transaction: &Transaction| {
        let certificate = Arc::new(committed(&members, transaction));
        assert!(answer(&members, replica, party, Message::Writeback { transaction: None, certificate, relay: false }).is_empty());
    };
    let left: Vec<Transaction> = (0..5).map(|number| of(2, number)).collect();
    for transaction in &left {
        assert!(!is_refused(&mut replica, LIAR, transaction.clone()));
    }
    left[..3].iter().for_each(|transaction| end(&mut replica, HONEST, transaction));
    assert!(!is_refused(&mut replica, LIAR, of(2, 5)), "so many it may leave");
    end(&mut replica, HONEST, &left[3]);
    assert!(is_refused(&mut replica, LIAR, of(2, 6)));
    assert!(!is_refused(&mut replica, HONEST, of(1, 7)), "it is nobody else's fault");
    // It comes to end one of them after all, which counts once.
    end(&mut replica, LIAR, &left[0]);
    assert!(!is_refused(&mut replica, LIAR, of(2, 8)));
    end(&mut replica, HONEST, &left[4]);
    end(&mut replica, LIAR, &left[0]);
    assert!(is_refused(&mut replica, LIAR, of(2, 9)));
    assert_eq!(replica.counts().abandoned, 5);
}

/// With the proof and at its author's wish the others are told, once. Who is told so knows that the author has not left it.
#[test]
fn a_commit_relayed_for_its_author_is_not_abandoned() {
    let members = members(2);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { abandoned_per_second: 1, abandoned_burst_seconds: 1, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    // Those who are to tell stay the same for an eighth of a second. In this one they are r5, r0 and r1.
    let of = |number: u64| {
        let written = |key: &str| Write { key: Key::from(key), value: Some(Value::from("1")) };
        let timestamp = Timestamp::new((740 << 27) + number, ClientId(2));
        Transaction::new(members.cluster.id(), timestamp, vec![], vec![written("a"), written("z")]).expect("small enough")
    };
    let proof = |transaction: &Transaction, relay| {
        let certificate = Arc::new(committed_on(&members, &[SHARD, ShardId(1)], transaction));
        Message::Writeback { transaction: None, certificate, relay }
    };
    let told_by = |index| Party::Replica(ReplicaId { shard: SHARD, index });
    let transactions: Vec<Transaction> = (0..4).map(of).collect();
    for transaction in &transactions {
        assert!(answer(&members, &mut replica, LIAR, Message::Prepare { transaction: transaction.clone() }).is_empty());
    }
    // Somebody else ends two of them, and cannot have it passed on. Nor can the author with half a proof.
    for transaction in &transactions[..2] {
        assert!(answer(&members, &mut replica, HONEST, proof(transaction, true)).is_empty());
    }
    assert_eq!(replica.counts().abandoned, 2);
    let one_shards = Arc::new(committed_on(&members, &[SHARD], &transactions[0]));
    let unproven = Message::Writeback { transaction: None, certificate: one_shards, relay: true };
    assert!(answer(&members, &mut replica, LIAR, unproven).is_empty());
    let is_refused =
        |replica: &mut Replica<Memory>, number| !answer(&members, replica, LIAR, Message::Prepare { transaction: of(number) }).is_empty();
    assert!(is_refused(&mut replica, 4));
    // Of the first, others say that its author had it passed on. One of them is not believed, nor is who is not to tell.
    let told = Message::CommitNotice { id: transactions[0].id() };
    for index in [1, 1, 2, 3, 4] {
        assert!(answer(&members, &mut replica, told_by(index), told.clone()).is_empty());
    }
    assert!(is_refused(&mut replica, 5));
    assert!(answer(&members, &mut replica, told_by(5), told).is_empty());
    assert!(!is_refused(&mut replica, 6));
    // The third ends as others say, the fourth as its author shows, who has it passed on, once.
    for index in [1, 5] {
        assert!(answer(&members, &mut replica, told_by(index), Message::CommitNotice { id: transactions[2].id() }).is_empty());
    }
    assert_eq!(replica.counts().committed, 3);
    let said = answer(&members, &mut replica, LIAR, proof(&transactions[3], true));
    let id = transactions[3].id();
    assert!(said.len() == 11 && said.iter().all(|message| *message == Message::CommitNotice { id }), "{said:?}");
    assert!(answer(&members, &mut replica, LIAR, proof(&transactions[3], true)).is_empty());
    assert_eq!((replica.counts().committed, replica.counts().abandoned), (4, 2));
}

/// The key of one replica was stolen, and is changed; then another one lies. Never do both lie at the same time, and what they say does not count together.
#[test]
fn what_was_said_under_an_earlier_key_counts_no_more() {
    let members = members(2);
    let store = Store::open(Memory::new("keys"), Options::default()).expect("a new store opens");
    let mut replica =
        Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let written = |key: &str| Write { key: Key::from(key), value: Some(Value::from("1")) };
    // Its relays are r5, r0 and r1.
    let timestamp = Timestamp::new(740 << 27, ClientId(2));
    let transaction = Transaction::new(members.cluster.id(), timestamp, vec![], vec![written("a"), written("z")]).expect("small enough");
    assert!(answer(&members, &mut replica, LIAR, Message::Prepare { transaction: transaction.clone() }).is_empty());
    let committed_once_told_by = |replica: &mut Replica<Memory>, index| {
        let from = Party::Replica(ReplicaId { shard: SHARD, index });
        assert!(answer(&members, replica, from, Message::CommitNotice { id: transaction.id() }).is_empty());
        replica.counts().committed
    };
    assert_eq!(committed_once_told_by(&mut replica, 1), 0);
    let key = |shard: ShardId, index: u16| *members.cluster.replica_key(ReplicaId { shard, index }).expect("it has one");
    let mut keys: Vec<Vec<[u8; 32]>> = members.cluster.shards().map(|shard| (0..6).map(|index| key(shard, index)).collect()).collect();
    keys[0][1] = [77; 32];
    let (id, placement, clients) = (members.cluster.id(), members.cluster.placement().clone(), members.cluster.clients().to_vec());
    replica.reconfigure(Arc::new(types::Cluster::new(id, 1, placement, keys, clients).expect("the parts fit")));
    assert_eq!(committed_once_told_by(&mut replica, 5), 0, "of the two, one said so under another key");
    assert_eq!(committed_once_told_by(&mut replica, 1), 1);
}

/// One client may hold so many undecided transactions, and so many keys; others find room beside it.
#[test]
fn one_client_holds_few_undecided_transactions_and_few_keys() {
    let members = members(1);
    let now = Time(NOW_MS * 1_000_000);
    let verifier = members.stranger();
    let held = |keys: u64, others: u64| {
        let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
        let mut replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
        let mut prepare = |client: u64, number: u64| {
            let write = |key: u64| Write { key: Key::from(format!("{client}/{number}/{key}").as_str()), value: None };
            let timestamp = Timestamp::new((NOW_MS - 1) * 1_000_000 + number, ClientId(client));
            let transaction =
                Transaction::new(members.cluster.id(), timestamp, vec![], (0..keys).map(write).collect()).expect("small enough");
            let message = verifier.verify(Message::Prepare { transaction }).expect("it is well-formed");
            let mut outbox = Outbox::default();
            replica.step(now, Input::Message { from: Party::Client(ClientId(client), Session(1)), message }, &mut outbox);
            assert!(
                outbox.sends.iter().all(|(_, message)| matches!(message, Message::Refused { refusal: Refusal::Overloaded { .. }, .. }))
            );
            outbox.sends.is_empty()
        };
        let held = (0..3_000).take_while(|number| prepare(2, *number)).count();
        assert!((0..others).all(|number| prepare(1, number)), "others find room");
        held
    };
    assert_eq!(held(1, 100), 2_048);
    assert_eq!(held(4_096, 1), 15);
}

/// What was written has become versions, if not all of them here; of decided transactions a bounded part keeps its values, of aborted ones none.
#[test]
fn values_of_decided_transactions_are_let_go() {
    const DECIDED_BYTES_MAX: usize = 300_000;
    const SHARDS: [ShardId; 2] = [SHARD, ShardId(1)];
    let members = members(2);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { decided_bytes_max: DECIDED_BYTES_MAX, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let long = "v".repeat(100_000);
    let on_both = |number: u64| {
        let write = |key: String| Write { key: Key::from(&*key), value: Some(Value::from(&*long)) };
        let timestamp = Timestamp::new((NOW_MS - 100 + number) * 1_000_000, ClientId(1));
        let writes = vec![write(number.to_string()), write(format!("x{number}"))];
        Transaction::new(members.cluster.id(), timestamp, vec![], writes).expect("small enough")
    };
    for number in 0..20 {
        let written = on_both(number);
        let certificate = Arc::new(committed_on(&members, &SHARDS, &written));
        assert!(answer(&members, &mut replica, HONEST, Message::Prepare { transaction: written.clone() }).is_empty());
        let writeback = Message::Writeback { transaction: None, certificate, relay: false };
        assert!(answer(&members, &mut replica, HONEST, writeback).is_empty());
        assert!(replica.decided_bytes() <= DECIDED_BYTES_MAX, "{} bytes", replica.decided_bytes());
        // Who asks for the first again is answered as ever.
        assert!(answer(&members, &mut replica, HONEST, Message::Prepare { transaction: on_both(0) }).len() <= 1);
    }
    let read = Message::Read { request: 1, timestamp: Timestamp::new(NOW_MS * 1_000_000, ClientId(1)), keys: vec![Key::from("0")] };
    let answers = answer(&members, &mut replica, HONEST, read);
    assert!(matches!(&answers[..], [Message::ReadReply { results, .. }] if results[0].value == Some(Value::from(&*long))));
    // One that missed what is committed is voted down, and keeps nothing from the first.
    let before = replica.decided_bytes();
    let aborted = transaction(&members, ClientId(2), NOW_MS - 10, &["0"], ("b", &long));
    assert!(answer(&members, &mut replica, LIAR, Message::Prepare { transaction: aborted.clone() }).is_empty());
    let other = on_both(0);
    let certificate = Arc::new(committed_on(&members, &SHARDS, &other));
    let proof = ShardProof::Conflict { shard: SHARD, transaction: other, certificate };
    let certificate = Arc::new(Certificate { id: aborted.id(), decision: Decision::Abort, proof: Proof::Fast(vec![proof]) });
    assert!(answer(&members, &mut replica, LIAR, Message::Writeback { transaction: None, certificate, relay: false }).is_empty());
    assert_eq!(replica.counts().aborted, 1);
    assert!(replica.decided_bytes() < before + 1_000);
}

/// Where this replica has all that it wrote, that is kept at its keys alone. It is told whole all the same.
#[test]
fn a_committed_transaction_is_made_whole_again_by_what_it_wrote() {
    let of_shards = [vec![SHARD], vec![SHARD, ShardId(1)]];
    for (shards, keys) in of_shards.into_iter().zip([["0", "1"], ["0", "x"]]) {
        let members = members(2);
        let memory = Memory::new("room");
        let open = || {
            let store = Store::open(memory.clone(), Options::default()).expect("it opens");
            let (cluster, now) = (members.cluster.clone(), Time(NOW_MS * 1_000_000));
            Replica::open(cluster, ME, ReplicaOptions::default(), store, now).expect("it opens")
        };
        let mut replica = open();
        let writes = keys.into_iter().zip([Some(Value::from(&*"v".repeat(10_000))), None]);
        let writes: Vec<Write> = writes.map(|(key, value)| Write { key: Key::from(key), value }).collect();
        let timestamp = Timestamp::new((NOW_MS - 100) * 1_000_000, ClientId(1));
        let written = Transaction::new(members.cluster.id(), timestamp, vec![], writes).expect("small enough");
        let certificate = Arc::new(committed_on(&members, &shards, &written));
        // It ends before this replica has voted.
        let writeback = Message::Writeback { transaction: Some(written.clone()), certificate, relay: false };
        assert!(answer(&members, &mut replica, HONEST, writeback).is_empty());
        assert_eq!(replica.decided_bytes() > 10_000, shards.len() == 2, "{} bytes", replica.decided_bytes());
        // To another replica that lacks it.
        let other = Party::Replica(ReplicaId { shard: SHARD, index: 1 });
        let told = answer(&members, &mut replica, other, Message::TransactionsQuery { ids: vec![written.id()] });
        let [Message::TransactionsReply { transactions }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(transactions.iter().map(Transaction::to_bytes).collect::<Vec<_>>(), [written.to_bytes()]);
        // To one that has missed what it wrote, with the proof.
        let stale = Message::Prepare { transaction: transaction(&members, ClientId(2), NOW_MS - 10, &["0"], ("b", "1")) };
        let message = members.stranger().verify(stale).expect("it is properly signed");
        let mut outbox = Outbox::default();
        replica.step(Time(NOW_MS * 1_000_000), Input::Message { from: LIAR, message }, &mut outbox);
        let [(_, Unsigned::Vote { conflict: Some(Conflict::Committed { transaction, .. }), .. })] = &outbox.unsigned[..] else {
            panic!("{:?}", outbox.unsigned)
        };
        assert_eq!(transaction.to_bytes(), written.to_bytes());
        // With the vote on it, which is asked for when its proof is not at hand any more, it is written down, and is there after a restart.
        replica.step(Time((NOW_MS + 5_000) * 1_000_000), Input::Tick, &mut Outbox::default());
        answer(&members, &mut replica, HONEST, Message::Recover { transaction: written.clone(), evidence: Vec::new() });
        assert_eq!(replica.counts().votes_commit, 1);
        replica.persist().expect("memory does not fail");
        drop(replica);
        let mut replica = open();
        answer(&members, &mut replica, HONEST, Message::Recover { transaction: written.clone(), evidence: Vec::new() });
        assert_eq!((replica.counts().votes_commit, replica.counts().votes_repeated), (0, 1));
    }
}

/// It aborted before this replica had voted, its values were let go, and its proof is not kept any more: it is not judged.
#[test]
fn what_ended_and_lost_its_values_is_not_voted_on() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { decided_bytes_max: 1, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let long = "v".repeat(100_000);
    let other = transaction(&members, ClientId(1), NOW_MS - 100, &[], ("0", "1"));
    let aborted = transaction(&members, ClientId(2), NOW_MS - 10, &["0"], ("b", &long));
    let certificate = Arc::new(committed(&members, &other));
    let proof = ShardProof::Conflict { shard: SHARD, transaction: other, certificate };
    let certificate = Arc::new(Certificate { id: aborted.id(), decision: Decision::Abort, proof: Proof::Fast(vec![proof]) });
    let writeback = Message::Writeback { transaction: Some(aborted.clone()), certificate, relay: false };
    assert!(answer(&members, &mut replica, LIAR, writeback).is_empty());
    assert_eq!(replica.counts().aborted, 1);
    replica.step(Time((NOW_MS + 5_000) * 1_000_000), Input::Tick, &mut Outbox::default());
    assert!(answer(&members, &mut replica, LIAR, Message::Prepare { transaction: aborted }).is_empty());
    assert_eq!(replica.counts().votes_commit + replica.counts().votes_abort, 0);
}

/// What others bring to finish it has room of its own.
#[test]
fn what_is_to_be_finished_finds_room_where_much_is_prepared() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { undecided_max: 8, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let of = |client: u64, number: u64| transaction(&members, ClientId(client), NOW_MS - 900 + number, &[], ("a", "1"));
    let is_full = |answers: &[Message]| matches!(answers, [Message::Refused { refusal: Refusal::Overloaded { .. }, .. }]);
    for client in 1..=6 {
        let party = Party::Client(ClientId(client), Session(client));
        (0..2).for_each(|number| {
            drop(answer(&members, &mut replica, party, Message::Prepare { transaction: of(client, 10 * client + number) }))
        });
    }
    let late = Party::Client(ClientId(8), Session(8));
    let refused = (0..8).any(|number| is_full(&answer(&members, &mut replica, late, Message::Prepare { transaction: of(8, number) })));
    assert!(refused, "no more is prepared");
    let recover = |number: u64| Message::Recover { transaction: of(8, 100 + number), evidence: Vec::new() };
    assert!(answer(&members, &mut replica, HONEST, recover(0)).is_empty());
    assert!(is_full(&answer(&members, &mut replica, HONEST, recover(1))), "one party has a part of that room, too");
    assert!(answer(&members, &mut replica, LIAR, recover(1)).is_empty());
}

/// Somebody leaves a chain of many transactions, of which each read from the one before. All but the first wait for others: the janitor leaves its places
/// to the first, and to what somebody else left later.
#[test]
fn a_long_chain_leaves_the_janitors_free() {
    const LINKS: u64 = 14_000;
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let now = Time(NOW_MS * 1_000_000);
    let replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
    let mut node = Node::new(replica, Coordinator::new(members.cluster.clone(), CoordinatorOptions::default()));
    // Seven bring the links in turn, as no client may bring so many.
    let client = |link: u64| ClientId([1, 2, 3, 4, 5, 6, 8][link as usize % 7]);
    let verifier = members.stranger();
    let mut prepare = |transaction: &Transaction| {
        let message = verifier.verify(Message::Prepare { transaction: transaction.clone() }).expect("it is well-formed");
        let author = transaction.timestamp().client;
        node.step(now, Input::Message { from: Party::Client(author, Session(1)), message }, &mut Outbox::default());
    };
    let mut last: Option<Transaction> = None;
    for link in 0..LINKS {
        let timestamp = Timestamp::new((NOW_MS - 1) * 1_000_000 + link, client(link));
        let read = |last: &Transaction| Read { key: Key::from("c"), version: last.timestamp(), dependency: Some(last.id()) };
        let write = Write { key: Key::from("c"), value: Some(Value::from("1")) };
        let link = Transaction::new(members.cluster.id(), timestamp, last.iter().map(read).collect(), vec![write]).expect("small enough");
        prepare(&link);
        last = Some(link);
    }
    let alone = transaction(&members, ClientId(9), NOW_MS, &[], ("x", "1"));
    prepare(&alone);
    assert_eq!(node.replica().load(), (LINKS as usize + 1, LINKS as usize + 1));
    let mut finished = BTreeSet::new();
    for ms in (0..4_000).step_by(50) {
        let mut outbox = Outbox::default();
        node.step(Time(now.0 + ms * 1_000_000), Input::Tick, &mut outbox);
        finished.extend(outbox.sends.iter().filter_map(|(_, message)| match message {
            Message::Recover { transaction, .. } => Some(transaction.id()),
            _ => None,
        }));
    }
    assert!(finished.len() == 2 && finished.contains(&alone.id()), "{} are being finished", finished.len());
}

/// What nobody has touched for longer than the window lies in the base table, so that whoever starts again has nothing to replay.
#[test]
fn a_replica_with_nothing_to_do_folds_what_it_has() {
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions::default();
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let other = transaction(&members, ClientId(2), NOW_MS - 50, &[], ("a", "1"));
    let certificate = Arc::new(committed(&members, &other));
    assert!(answer(&members, &mut replica, LIAR, Message::Writeback { transaction: Some(other), certificate, relay: false }).is_empty());
    let mut held_at = |ms: u64| {
        replica.step(Time(ms * 1_000_000), Input::Tick, &mut Outbox::default());
        let statistics = replica.store().statistics();
        (statistics.memtable_versions, statistics.checkpoints)
    };
    for ms in (NOW_MS..NOW_MS + options.window_ms - 100).step_by(50) {
        assert_eq!(held_at(ms), (1, 0), "it may still be asked for what was before");
    }
    let end = NOW_MS + 3 * options.window_ms;
    for ms in (NOW_MS + options.window_ms..end).step_by(50) {
        held_at(ms);
    }
    assert_eq!(held_at(end), (0, 1), "once, and then never again for nothing");
}

/// However fast transactions come and however long a turn takes, what is old is forgotten, a part at a time, and the journal let go.
#[test]
fn what_is_old_is_forgotten_in_steps_that_come_to_an_end() {
    const TURN_MS: u64 = 50;
    const A_TURN: u64 = 80;
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { window_ms: 1_000, checkpoint_ms: 500, memtable_bytes_max: 1 << 10, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let (mut most_known, mut most_at_once, mut checkpoints_before) = (0, 0, 0);
    for turn in 0..60 {
        let now_ms = NOW_MS + turn * TURN_MS;
        let before = replica.load().0;
        replica.step(Time(now_ms * 1_000_000), Input::Tick, &mut Outbox::default());
        replica.persist().expect("memory does not fail");
        most_at_once = most_at_once.max(before - replica.load().0);
        for number in 0..A_TURN {
            let timestamp = Timestamp::new(now_ms * 1_000_000 + number, ClientId(2));
            let write = Write { key: Key::from(number.to_string().as_str()), value: Some(Value::from("1")) };
            let transaction = Transaction::new(members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
            let message = shown_committed(&members, transaction);
            replica.step(Time(now_ms * 1_000_000), Input::Message { from: LIAR, message }, &mut Outbox::default());
        }
        most_known = most_known.max(replica.load().0);
        if turn == 40 {
            checkpoints_before = replica.store().statistics().checkpoints;
        }
    }
    // In a window there are 1,600; two checkpoints let as many again grow old.
    assert!(most_known <= 3_200, "{most_known} were known at once");
    assert!((1..=400).contains(&most_at_once), "{most_at_once} were forgotten at once");
    assert!(replica.store().statistics().checkpoints > checkpoints_before, "checkpoints go on");
}

/// A checkpoint is made when there is enough for one, and releases whole segments. Whoever starts again reads what is left: the window, and what comes
/// between two checkpoints, but not that twice.
#[test]
fn the_journal_is_released_in_short_parts() {
    const TURN_MS: u64 = 100;
    const A_TURN: u64 = 100;
    let members = members(1);
    let options = Options { checkpoint_versions_max: 4_000, ..Options::default() };
    let store = Store::open(Memory::new("room"), options).expect("a new store opens");
    let options = ReplicaOptions { window_ms: 1_000, checkpoint_ms: 500, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let value = Value::new(vec![7; 2_000]).expect("it is short");
    let (mut written, mut longest) = (0, 0);
    for turn in 0..150 {
        let now_ms = NOW_MS + turn * TURN_MS;
        replica.step(Time(now_ms * 1_000_000), Input::Tick, &mut Outbox::default());
        for number in 0..A_TURN {
            let timestamp = Timestamp::new(now_ms * 1_000_000 + number, ClientId(2));
            let write = Write { key: Key::from(number.to_string().as_str()), value: Some(value.clone()) };
            let transaction = Transaction::new(members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
            let message = shown_committed(&members, transaction);
            replica.step(Time(now_ms * 1_000_000), Input::Message { from: LIAR, message }, &mut Outbox::default());
        }
        replica.persist().expect("memory does not fail");
        written = replica.store().statistics().journal_bytes_written;
        longest = longest.max(replica.store().journal_bytes());
    }
    // A checkpoint takes four seconds' worth, which with a window of one second and two looks at it makes six.
    let seconds = longest as f64 / (written as f64 / 15.0);
    assert!(seconds < 7.5, "{seconds} seconds' worth of the journal were left");
}

/// Whoever reads other keys each time, and shows that it has committed, has their readers noted: for a window, and as long again as it takes to go around them.
#[test]
fn keys_that_were_only_read_leave_memory_with_their_readers() {
    const TURN_MS: u64 = 100;
    const KEYS: u64 = 50;
    let members = members(1);
    let store = Store::open(Memory::new("room"), Options::default()).expect("a new store opens");
    let options = ReplicaOptions { window_ms: 1_000, checkpoint_ms: 500, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let mut most = 0;
    for turn in 0..200 {
        let now_ms = NOW_MS + turn * TURN_MS;
        for _ in 0..20 {
            replica.step(Time(now_ms * 1_000_000), Input::Tick, &mut Outbox::default());
        }
        let key = |number: u64| Key::from(format!("{turn} {number}").as_str());
        let reads = (0..KEYS).map(|number| Read { key: key(number), version: Timestamp::ZERO, dependency: None }).collect();
        let write = Write { key: Key::from("written"), value: Some(Value::from("1")) };
        let timestamp = Timestamp::new(now_ms * 1_000_000, ClientId(2));
        let transaction = Transaction::new(members.cluster.id(), timestamp, reads, vec![write]).expect("small enough");
        let message = shown_committed(&members, transaction);
        replica.step(Time(now_ms * 1_000_000), Input::Message { from: LIAR, message }, &mut Outbox::default());
        replica.persist().expect("memory does not fail");
        most = most.max(replica.store().keys_in_memory());
    }
    let a_window = (1_000 / TURN_MS * KEYS) as usize;
    assert!(most > a_window && most <= 4 * a_window, "{most} keys were in memory, and {a_window} are read in a window");
}

/// With little to do there is never enough for a checkpoint, but the journal grows by a segment with each look at it: its segments are bounded all the
/// same.
#[test]
fn a_replica_with_little_to_do_keeps_few_segments() {
    const TURN_MS: u64 = 500;
    const A_TURN: u64 = 60;
    let members = members(1);
    let options = Options { checkpoint_versions_max: 1 << 20, ..Options::default() };
    let store = Store::open(Memory::new("room"), options).expect("a new store opens");
    let options = ReplicaOptions { window_ms: 1_000, checkpoint_ms: 500, ..ReplicaOptions::default() };
    let mut replica = Replica::open(members.cluster.clone(), ME, options, store, Time(NOW_MS * 1_000_000)).expect("it is new");
    let value = Value::new(vec![7; 20_000]).expect("it is short");
    let mut most = 0;
    for turn in 0..60 {
        let now_ms = NOW_MS + turn * TURN_MS;
        // Checkpoints end in steps.
        for _ in 0..20 {
            replica.step(Time(now_ms * 1_000_000), Input::Tick, &mut Outbox::default());
            replica.persist().expect("memory does not fail");
        }
        for number in 0..A_TURN {
            let timestamp = Timestamp::new(now_ms * 1_000_000 + number, ClientId(2));
            let write = Write { key: Key::from(number.to_string().as_str()), value: Some(value.clone()) };
            let transaction = Transaction::new(members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
            let message = shown_committed(&members, transaction);
            replica.step(Time(now_ms * 1_000_000), Input::Message { from: LIAR, message }, &mut Outbox::default());
        }
        replica.persist().expect("memory does not fail");
        most = most.max(replica.store().segments().count());
    }
    // 16 that are closed, the one that is written to, and what closes while the checkpoint of the oldest is under way.
    assert!((10..=22).contains(&most), "{most} segments");
}

/// A turn of a node that has had more to do than time.
#[test]
fn with_too_much_to_do_reads_are_refused_before_anything_is_done_and_what_has_begun_goes_on() {
    let members = members(1);
    let store = Store::open(Memory::new("busy"), Options::default()).expect("a new store opens");
    let now = Time(NOW_MS * 1_000_000);
    let replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, now).expect("it is new");
    let janitor = Coordinator::new(members.cluster.clone(), CoordinatorOptions::default());
    let mut turns = Turns::new(Node::new(replica, janitor), Party::Replica(ME), Bounds { inputs_max: 8, batch_max: 8 });
    let mut turn = turns.begin(now);
    let before = turn.inputs();
    let timestamp = Timestamp::new((NOW_MS - 1) * 1_000_000, ClientId(1));
    let read = Message::Read { request: 7, timestamp, keys: vec![Key::from("a")] };
    let prepare = Message::Prepare { transaction: transaction(&members, ClientId(1), NOW_MS - 1, &[], ("a", "1")) };
    for message in [read, prepare] {
        turn.refuse_or_step(now, HONEST, members.stranger().verify(message).expect("nothing of it is signed"), 300);
    }
    assert_eq!(turn.inputs() - before, 2);
    let mut written = turn.stepped(now).persist().expect("memory does not fail");
    assert_eq!(written.machine().replica().counts().keys_read, 0);
    let refusal = Refusal::Overloaded { after_ms: 300 };
    let told: Vec<&Message> = written.outbox().sends.iter().filter(|(to, _)| *to == HONEST).map(|(_, message)| message).collect();
    assert_eq!(told, [&Message::Refused { subject: Subject::Request(7), refusal }]);
    assert_eq!(written.outbox().unsigned.len(), 1, "its vote");
}
