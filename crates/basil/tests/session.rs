//! Basil behind the engine interface: what a session refuses, and that a receipt is proof to anybody who holds the cluster's keys.

use std::sync::Arc;

use basil::certificate::{Proof, ShardProof, SignedVote, VoteSet, VoteStatement};
use basil::message::{PendingWrite, ReadResult, Subject};
use basil::receipt::ReceiptError;
use basil::{Certificate, Coordinator, CoordinatorOptions, Decision, Message, Receipt, Session, Transaction, Vote, Write};
use bytes::Bytes;
use crypto::leaf;
use engine::{
    Ask, Capability, ClusterClock, CommitPath, CommitRequest, Evidence, Found, Proof as _, ReadMode, Refusal, Request, Response, Tell,
};
use machine::{Input, Machine, Outbox, Time};
use types::{ClientId, Direction, Key, Party, ReplicaId, ShardId, Timestamp, Value};

use crate::harness::members::{Members, members};

const NOW: Timestamp = Timestamp::new(1_000, ClientId(1));

/// What a session answers at once.
fn answer(request: Request) -> Result<Response, Refusal> {
    let cluster = members(1).cluster;
    let mut session = Session::new(cluster.id(), Coordinator::new(cluster, CoordinatorOptions::default()));
    let mut outbox = Outbox::default();
    session.step(Time(NOW.time), Input::Command(Ask { operation: 3, request }), &mut outbox);
    match outbox.events.pop() {
        Some(Tell::Response { operation: 3, outcome }) => outcome,
        other => panic!("it answers at once: {other:?}"),
    }
}

#[test]
fn a_range_without_keys_has_nothing_in_it() {
    for (low, high, limit) in [("a", "a", 1), ("b", "a", 1), ("a", "b", 0)] {
        let (low, high, direction) = (Key::from(low), Key::from(high), Direction::Ascending);
        let scan = Request::Scan { timestamp: NOW, low, high, direction, limit, mode: ReadMode::ReadOnly };
        let Ok(Response::Found(found)) = answer(scan) else { panic!("it answers") };
        assert!(found.found.is_empty());
        let commit = CommitRequest { timestamp: NOW, reads: vec![found.evidence], writes: Vec::new() };
        assert!(matches!(answer(Request::Commit(commit)), Ok(Response::Committed(commit)) if commit.path == CommitPath::Empty));
    }
}

#[test]
fn one_shot_transactions_are_refused_by_type() {
    let submit = Request::Submit { timestamp: NOW, operations: Vec::new() };
    assert_eq!(answer(submit).expect_err("never"), Refusal::Unsupported(Capability::OneShot));
}

#[test]
fn evidence_of_another_engine_is_refused() {
    let commit = CommitRequest { timestamp: NOW, reads: vec![Evidence::new("another's")], writes: Vec::new() };
    assert!(matches!(answer(Request::Commit(commit)), Err(Refusal::Invalid(_))));
    assert!(matches!(answer(Request::Private(engine::Private::new(7_u8))), Err(Refusal::Invalid(_))));
}

#[test]
fn a_transaction_that_did_nothing_commits_without_asking_anybody() {
    let commit = CommitRequest { timestamp: NOW, reads: Vec::new(), writes: Vec::new() };
    let Ok(Response::Committed(commit)) = answer(Request::Commit(commit)) else { panic!("it commits") };
    assert_eq!((commit.path, commit.timestamp), (CommitPath::Empty, NOW));
}

/// A client's session among six replicas whose clocks show `NOW` and a second.
struct Client {
    members: Members,
    session: Session,
    now: Time,
    /// The cluster's clock that was told last.
    clock: Option<ClusterClock>,
    /// How many reads it has sent.
    requests: u64,
}

impl Client {
    fn new() -> Self {
        let members = members(1);
        let cluster = members.cluster.clone();
        let mut session = Session::new(cluster.id(), Coordinator::for_client(cluster.clone(), CoordinatorOptions::default()));
        let now = Time(NOW.time);
        session.step(now, Input::Tick, &mut Outbox::default());
        let mut client = Self { members, session, now, clock: None, requests: 0 };
        for replica in cluster.replicas() {
            let reply = Message::ClockReply { asked_at: NOW.time, clock: NOW.time + 1_000_000_000 };
            client.hears(replica, reply);
        }
        client
    }

    fn asks(&mut self, request: Request) -> Vec<Transaction> {
        let mut outbox = Outbox::default();
        self.session.step(self.now, Input::Command(Ask { operation: 3, request }), &mut outbox);
        prepared(outbox.sends)
    }

    fn hears(&mut self, from: ReplicaId, message: Message) -> (Vec<Transaction>, Vec<Tell>) {
        let message = self.members.stranger().verify(message).expect("it is well signed");
        let mut outbox = Outbox::default();
        self.now = Time(self.now.0 + 1_000_000);
        self.session.step(self.now, Input::Message { from: Party::Replica(from), message }, &mut outbox);
        for event in &outbox.events {
            if let Tell::Clock(clock) = event {
                self.clock = Some(*clock);
            }
        }
        (prepared(outbox.sends), outbox.events)
    }

    /// All replicas are asked now, and their clocks are so much ahead of the client's. The cluster's clock, as it is then.
    fn hears_clocks(&mut self, ahead_ns: u64) -> ClusterClock {
        for replica in self.members.cluster.clone().replicas() {
            let asked_at = self.now.0;
            self.hears(replica, Message::ClockReply { asked_at, clock: asked_at + ahead_ns });
        }
        self.clock.expect("it is told")
    }

    /// All replicas vote `transaction` down: what is prepared then, and what the application is told.
    fn is_voted_down(&mut self, transaction: &Transaction) -> (Vec<Transaction>, Vec<Tell>) {
        let statement = VoteStatement { id: transaction.id(), vote: Vote::Abort };
        let (mut again, mut told) = (Vec::new(), Vec::new());
        for replica in self.members.cluster.clone().replicas() {
            let leaf = leaf(self.members.cluster.id(), replica, &statement);
            let signature = self.members.batch_signers[&replica].sign(&[leaf]).remove(0);
            let vote = SignedVote { replica, statement, signature };
            let (sent, events) = self.hears(replica, Message::Voted { vote, conflict: None });
            again.extend(sent);
            told.extend(events.into_iter().filter(|event| matches!(event, Tell::Response { .. })));
        }
        (again, told)
    }
}

/// The transactions that replicas are asked to prepare, each once.
fn prepared(sends: Vec<(Party, Message)>) -> Vec<Transaction> {
    let mut all: Vec<Transaction> = Vec::new();
    for (_, message) in sends {
        if let Message::Prepare { transaction } = message
            && !all.contains(&transaction)
        {
            all.push(transaction);
        }
    }
    all
}

#[test]
fn what_is_voted_down_is_tried_at_a_later_timestamp_and_not_for_ever() {
    let mut client = Client::new();
    let writes = vec![(Key::from("a"), Some(Value::from("1")))];
    let commit = CommitRequest { timestamp: Timestamp { time: NOW.time + 2_000_000_000, ..NOW }, reads: Vec::new(), writes };
    let mut prepared = client.asks(Request::Commit(commit));
    for _ in 0..2 {
        let [transaction] = prepared.as_slice() else { panic!("one transaction is prepared: {prepared:?}") };
        let (again, told) = client.is_voted_down(transaction);
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(again.len(), 1, "{again:?}");
        assert!(again[0].timestamp() > transaction.timestamp());
        assert_eq!((again[0].reads(), again[0].writes()), (transaction.reads(), transaction.writes()));
        prepared = again;
    }
    let (again, told) = client.is_voted_down(&prepared[0]);
    assert!(again.is_empty(), "{again:?}");
    assert!(matches!(told[..], [Tell::Response { operation: 3, outcome: Err(Refusal::Conflict) }]), "{told:?}");
}

#[test]
fn of_what_only_reads_nothing_may_take_place_that_nobody_answers() {
    let told = |writes: Vec<(Key, Option<Value>)>| {
        let mut client = Client::new();
        let result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
        let clock = NOW.time + 1_000_000_000;
        let read = |request| Message::ReadReply { request, clock, results: vec![result.clone()], prepared: Vec::new(), is_promised: false };
        let timestamp = Timestamp { time: clock, ..NOW };
        let found = read_in(&mut client, ReadMode::Interactive, timestamp.time, read).expect("it is found");
        let commit = CommitRequest { timestamp, reads: vec![found.evidence], writes };
        assert_eq!(client.asks(Request::Commit(commit)).len(), 1, "it is not validated");
        let mut outbox = Outbox::default();
        client.session.step(Time(client.now.0 + 60_000_000_000), Input::Tick, &mut outbox);
        outbox.events.into_iter().find_map(|tell| if let Tell::Response { outcome, .. } = tell { outcome.err() } else { None })
    };
    assert_eq!(told(Vec::new()), Some(Refusal::Unavailable));
    assert_eq!(told(vec![(Key::from("b"), None)]), Some(Refusal::OutcomeUnknown));
}

/// The time at which a write of `a` is prepared that began at `time`, after these reads.
fn write_of(client: &mut Client, time: u64, reads: Vec<Evidence>) -> u64 {
    let writes = vec![(Key::from("a"), Some(Value::from("1")))];
    let commit = CommitRequest { timestamp: Timestamp { time, ..NOW }, reads, writes };
    match client.asks(Request::Commit(commit)).as_slice() {
        [transaction] => transaction.timestamp().time,
        other => panic!("one transaction is prepared: {other:?}"),
    }
}

#[test]
fn a_write_is_prepared_above_later_reads_of_its_session_unless_what_it_read_was_written() {
    const AHEAD_NS: u64 = 1_000_000_000;
    let mut client = Client::new();
    let clock = client.hears_clocks(AHEAD_NS);
    let read = |client: &mut Client, mode: ReadMode, time: u64| {
        let clock = client.now.0 + AHEAD_NS;
        let result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
        let nothing =
            |request| Message::ReadReply { request, clock, results: vec![result.clone()], prepared: Vec::new(), is_promised: true };
        read_in(client, mode, time, nothing).expect("it is found").evidence
    };
    let before = clock.read(client.now);
    let own = read(&mut client, ReadMode::Interactive, before);
    // A read of the past changes nothing, and a reader above the clock would have to be waited for.
    read(&mut client, ReadMode::AsOf, before + 2);
    assert_eq!(write_of(&mut client, before, Vec::new()), before);
    read(&mut client, ReadMode::Interactive, before + 2);
    let moved = write_of(&mut client, before, vec![own]);
    assert!(moved > before + 2 && moved <= clock.read(client.now) + 1, "{moved} of {before}");
    let after = clock.read(client.now) + 2;
    let own = read(&mut client, ReadMode::Interactive, after);
    let other = write_of(&mut client, after + 2, Vec::new());
    assert_eq!(write_of(&mut client, after, vec![own]), after, "what it read was written at {other}");
    let ahead = clock.read(client.now) + 500_000_000;
    read(&mut client, ReadMode::Interactive, ahead);
    assert_eq!(write_of(&mut client, ahead - 2, Vec::new()), ahead - 2, "that is ahead of the clock");
}

/// What the application is told of a read of `a` as of `time` when all replicas answer with what `answer` gives for the request's number.
fn read_of_the_past(client: &mut Client, time: u64, answer: impl Fn(u64) -> Message) -> Result<Found, Refusal> {
    read_in(client, ReadMode::AsOf, time, answer)
}

/// The same for this kind of a reader.
fn read_in(client: &mut Client, mode: ReadMode, time: u64, answer: impl Fn(u64) -> Message) -> Result<Found, Refusal> {
    let timestamp = Timestamp { time, ..NOW };
    client.asks(Request::Read { timestamp, keys: vec![Key::from("a")], mode });
    let replicas: Vec<ReplicaId> = client.members.cluster.replicas().collect();
    client.requests += 1;
    let number = client.requests;
    let events = replicas.into_iter().flat_map(|replica| client.hears(replica, answer(number)).1);
    let told: Vec<Tell> = events.filter(|event| matches!(event, Tell::Response { .. })).collect();
    match <[Tell; 1]>::try_from(told).expect("it is told once") {
        [Tell::Response { outcome: Ok(Response::Found(found)), .. }] => Ok(found),
        [Tell::Response { outcome: Err(refusal), .. }] => Err(refusal),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_past_is_read_though_a_reader_of_the_present_would_begin_again() {
    let mut client = Client::new();
    let nothing = |clock| {
        let result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
        move |request| Message::ReadReply { request, clock, results: vec![result.clone()], prepared: Vec::new(), is_promised: true }
    };
    // All clocks are found to be ten seconds ahead: what was begun before may be too low.
    let step = NOW.time + 11_000_000_000;
    for replica in client.members.cluster.clone().replicas() {
        client.hears(replica, Message::ClockReply { asked_at: client.now.0, clock: step });
    }
    let found = read_of_the_past(&mut client, NOW.time, nothing(step)).expect("it is found");
    assert_eq!(found.found, [(Key::from("a"), None)]);
    // Nothing is left to be decided: it has committed, and nobody is asked.
    let (reads, asked) = (vec![found.evidence], Input::Command);
    let commit = Request::Commit(CommitRequest { timestamp: NOW, reads, writes: Vec::new() });
    let mut outbox = Outbox::default();
    client.session.step(client.now, asked(Ask { operation: 4, request: commit }), &mut outbox);
    assert!(outbox.sends.is_empty(), "{:?}", outbox.sends);
    let is_committed = |tell: &Tell| matches!(tell, Tell::Response { outcome: Ok(Response::Committed(commit)), .. } if commit.path == CommitPath::ReadOnly);
    assert!(outbox.events.iter().any(is_committed), "{:?}", outbox.events);
}

#[test]
fn what_was_so_long_ago_is_not_counted_from_a_clock_that_showed_too_little() {
    let mut client = Client::new();
    let mut ahead_ns = 1_000_000_000;
    let old = client.hears_clocks(ahead_ns);
    let read = |client: &mut Client, mode: ReadMode, time: u64, ahead_ns: u64| {
        let clock = client.now.0 + ahead_ns;
        let result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
        let nothing =
            |request| Message::ReadReply { request, clock, results: vec![result.clone()], prepared: Vec::new(), is_promised: true };
        read_in(client, mode, time, nothing).map(|found| found.found.len())
    };
    let now = old.read(client.now);
    assert_eq!(read(&mut client, ReadMode::Ago { now }, now, ahead_ns), Ok(1), "its clock is right");
    // It stood still for ten seconds. What it took for the present was the past, and what was a while ago was longer ago.
    let now = old.read(client.now);
    ahead_ns += 10_000_000_000;
    client.hears_clocks(ahead_ns);
    for ago_ns in [0, 500_000_000] {
        assert_eq!(read(&mut client, ReadMode::Ago { now }, now - ago_ns, ahead_ns), Err(Refusal::TooOld));
        assert_eq!(read(&mut client, ReadMode::AsOf, now - ago_ns, ahead_ns), Ok(1), "of a time that it names it may be told");
    }
    let now = client.hears_clocks(ahead_ns).read(client.now);
    assert_eq!(read(&mut client, ReadMode::Ago { now }, now, ahead_ns), Ok(1), "it begins again");
}

#[test]
fn what_begins_by_the_old_clock_before_the_new_one_is_told_begins_again() {
    let mut client = Client::new();
    let old = client.hears_clocks(1_000_000_000);
    let end_turn = |client: &mut Client| client.session.end_turn(client.now, &mut Outbox::default());
    end_turn(&mut client);
    let commit = |client: &mut Client, time: u64| {
        let writes = vec![(Key::from("a"), Some(Value::from("1")))];
        let request = Request::Commit(CommitRequest { timestamp: Timestamp { time, ..NOW }, reads: Vec::new(), writes });
        let mut outbox = Outbox::default();
        client.session.step(client.now, Input::Command(Ask { operation: 5, request }), &mut outbox);
        match outbox.events.pop() {
            Some(Tell::Response { outcome: Err(refusal), .. }) => Some(refusal),
            _ => None,
        }
    };
    // It stood still for 20 ms, and found that out. The turn takes long, and its application has not been told yet.
    client.hears_clocks(1_020_000_000);
    let new = client.hears_clocks(1_020_000_000);
    client.now = client.now.after_ms(50);
    let taken = old.read(client.now);
    assert_eq!(commit(&mut client, taken), Some(Refusal::TooOld));
    client.now = client.now.after_ms(50);
    let (taken, told) = (old.read(client.now), client.now);
    end_turn(&mut client);
    assert!(client.session.deadline().is_some_and(|due| due <= told), "another turn follows at once");
    client.now = Time(told.0 + 10_000);
    client.session.step(client.now, Input::Tick, &mut Outbox::default());
    end_turn(&mut client);
    client.now = client.now.after_ms(50);
    assert_eq!(commit(&mut client, taken), Some(Refusal::TooOld), "it is heard of later");
    assert_eq!(commit(&mut client, new.read(Time(told.0 + 10_000))), None);
}

#[test]
fn a_past_that_is_not_kept_or_has_not_come_is_refused_in_words() {
    let mut client = Client::new();
    let refused = |refusal| move |number| Message::Refused { subject: Subject::Request(number), refusal };
    let mut told = |refusal| read_of_the_past(&mut client, NOW.time, refused(refusal)).err();
    let kept = told(basil::Refusal::NotKept { kept_ms: 30_000 }).expect("it is refused");
    assert_eq!(kept, Refusal::NotKept { kept_ms: 30_000 });
    assert!(kept.to_string().contains("older than what the replicas keep: 30 s; "), "{kept}");
    assert_eq!(Refusal::NotKept { kept_ms: 1_500 }.to_string().matches("keep: 1.5 s;").count(), 1);
    assert_eq!(told(basil::Refusal::TooNew), Some(Refusal::NotPast));
    assert_eq!(told(basil::Refusal::NotPermitted), Some(Refusal::NotPermitted));
}

/// A transaction of both shards, and the votes on it.
fn receipt(members: &Members, decision: Decision, shards: &[u16]) -> Receipt {
    let vote = if decision == Decision::Commit { Vote::Commit } else { Vote::Abort };
    let writes = ["a", "z"].map(|key| Write { key: Key::from(key), value: Some(Value::from("1")) });
    let transaction = Transaction::new(members.cluster.id(), NOW, Vec::new(), writes.into()).expect("small enough");
    let id = transaction.id();
    let votes = |shard: &u16| {
        let shard = ShardId(*shard);
        let voter = |index| {
            let replica = ReplicaId { shard, index };
            let leaf = leaf(members.cluster.id(), replica, &VoteStatement { id, vote });
            (index, members.batch_signers[&replica].sign(&[leaf]).remove(0))
        };
        ShardProof::Votes(VoteSet { shard, vote, voters: (0..6).map(voter).collect() })
    };
    let certificate = Certificate { id, decision, proof: Proof::Fast(shards.iter().map(votes).collect()) };
    Receipt { transaction, certificate: Arc::new(certificate) }
}

#[test]
fn a_receipt_is_proof_to_who_holds_the_keys() {
    let members = members(2);
    let receipt = receipt(&members, Decision::Commit, &[0, 1]);
    let read = Receipt::verify(&receipt.to_bytes(), &members.stranger()).expect("it is whole");
    assert_eq!((read.transaction, read.certificate), (receipt.transaction.clone(), receipt.certificate.clone()));
    assert_eq!(receipt.summary(), "12 of 12 replicas");
}

#[test]
fn a_receipt_that_lacks_anything_proves_nothing() {
    let members = members(2);
    let stranger = members.stranger();
    let verify = |receipt: &Receipt| Receipt::verify(&receipt.to_bytes(), &stranger).map(|_| ());
    assert!(matches!(verify(&receipt(&members, Decision::Commit, &[0])), Err(ReceiptError::Rejected(_))), "a shard is missing");
    assert_eq!(verify(&receipt(&members, Decision::Abort, &[0])), Err(ReceiptError::NotACommit));
    let whole = receipt(&members, Decision::Commit, &[0, 1]).to_bytes();
    assert_eq!(Receipt::verify(&Bytes::from_static(b"\x02basil\0"), &stranger).map(|_| ()), Err(ReceiptError::Header));
    assert!(matches!(Receipt::verify(&whole.slice(..whole.len() - 1), &stranger), Err(ReceiptError::Damaged(_))));
    for at in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 1;
        assert!(Receipt::verify(&damaged.into(), &stranger).is_err(), "a receipt with byte {at} changed passed");
    }
}
