//! What a client's coordinator does when it knows with which replicas its process is connected. No test here lets time pass: what needs no
//! waiting needs no timer.

use basil::certificate::{SignedVote, VoteStatement};
use basil::message::{PendingWrite, ReadResult};
use basil::{Command, Coordinator, CoordinatorOptions, Event, Message, Transaction, Vote, Write};
use crypto::leaf;
use engine::ReadMode;
use machine::{Input, Machine as _, Outbox, OutboxOf, Time};
use types::{ClientId, Direction, Key, KeyRange, Party, ReplicaId, ShardId, Timestamp, Value};

use crate::harness::members::{Members, members};

const NOW: Time = Time(100_000_000_000);
const TIMESTAMP: Timestamp = Timestamp::new(NOW.0, ClientId(1));

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

/// A client's coordinator among six replicas.
struct Client {
    members: Members,
    coordinator: Coordinator,
    now: Time,
}

impl Client {
    fn new() -> Self {
        let members = members(1);
        Self { coordinator: Coordinator::for_client(members.cluster.clone(), CoordinatorOptions::default()), members, now: NOW }
    }

    fn command(&mut self, command: Command) -> OutboxOf<Coordinator> {
        let mut outbox = Outbox::default();
        self.coordinator.step(self.now, Input::Command(command), &mut outbox);
        outbox
    }

    /// It is connected with these and no others.
    fn connected(&mut self, indexes: impl IntoIterator<Item = u16>) -> OutboxOf<Coordinator> {
        self.now = Time(self.now.0 + 1);
        let replicas = indexes.into_iter().map(replica).collect();
        self.command(Command::Connected { replicas })
    }

    fn hears(&mut self, index: u16, message: Message) -> OutboxOf<Coordinator> {
        let (from, mut outbox) = (Party::Replica(replica(index)), Outbox::default());
        let message = self.members.stranger().verify(message).expect("it is well signed");
        self.coordinator.step(self.now, Input::Message { from, message }, &mut outbox);
        outbox
    }

    /// Asks all for votes.
    fn prepares(&mut self, operation: u64) -> Transaction {
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let timestamp = Timestamp { time: TIMESTAMP.time + operation, ..TIMESTAMP };
        let transaction = Transaction::new(self.members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
        let asked = self.command(Command::Commit { operation, transaction: transaction.clone(), dependencies: vec![] });
        assert_eq!(asked.sends.len(), 6, "also who is not connected: it may be by then");
        transaction
    }

    fn votes(&mut self, index: u16, transaction: &Transaction) -> OutboxOf<Coordinator> {
        let (replica, statement) = (replica(index), VoteStatement { id: transaction.id(), vote: Vote::Commit });
        let leaf = leaf(self.members.cluster.id(), replica, &statement);
        let signature = self.members.batch_signers[&replica].sign(&[leaf]).remove(0);
        self.hears(index, Message::Voted { vote: SignedVote { replica, statement, signature }, conflict: None })
    }

    /// Whether the votes of replicas 0 to 4 are enough for the decision to be logged.
    fn logs_without_5(&mut self, transaction: &Transaction) -> bool {
        (0..5).any(|index| logs(&self.votes(index, transaction)))
    }
}

/// Whether all are asked to log.
fn logs(outbox: &OutboxOf<Coordinator>) -> bool {
    outbox.sends.iter().filter(|(_, message)| matches!(message, Message::Log { .. })).count() == 6
}

/// Who is asked for clocks.
fn asked_for_clocks(outbox: &OutboxOf<Coordinator>) -> Vec<Party> {
    outbox.sends.iter().filter(|(_, message)| matches!(message, Message::ClockQuery { .. })).map(|(to, _)| *to).collect()
}

#[test]
fn the_vote_of_who_is_not_connected_is_not_waited_for() {
    let mut client = Client::new();
    client.connected(0..5);
    let transaction = client.prepares(1);
    assert!(client.logs_without_5(&transaction), "nothing else may come in time");
}

#[test]
fn the_vote_of_who_is_connected_is_waited_for_and_so_is_everybodys_until_anything_is_told() {
    let mut client = Client::new();
    let transaction = client.prepares(1);
    assert!(!client.logs_without_5(&transaction));
    client.connected(0..5);
    client.connected(0..6);
    let transaction = client.prepares(2);
    assert!(!client.logs_without_5(&transaction));
    let ended = client.votes(5, &transaction);
    assert!(matches!(&ended.events[..], [Event::Ended { operation: 2, result: Ok((_, basil::Path::Fast)) }]), "{:?}", ended.events);
}

#[test]
fn a_vote_asked_for_before_the_connection_was_there_is_not_waited_for_and_counts_if_it_comes() {
    let mut client = Client::new();
    client.connected(0..5);
    let transaction = client.prepares(1);
    client.connected(0..6);
    (0..3).for_each(|index| drop(client.votes(index, &transaction)));
    assert!(logs(&client.votes(3, &transaction)));
    client.votes(4, &transaction);
    assert_eq!(client.votes(5, &transaction).events.len(), 1, "all have voted");
}

#[test]
fn who_loses_its_connection_while_its_vote_is_waited_for_is_waited_for_no_longer() {
    let mut client = Client::new();
    client.connected(0..6);
    for operation in 1..=4 {
        let transaction = client.prepares(operation);
        assert!(!client.logs_without_5(&transaction), "it is connected");
        assert!(logs(&client.connected(0..5)));
        client.connected(0..6);
    }
    // It has kept them waiting again and again: that it is connected anew is not enough.
    let transaction = client.prepares(5);
    assert!(client.logs_without_5(&transaction));
}

#[test]
fn a_connection_that_comes_and_goes_elsewhere_changes_nothing() {
    let mut client = Client::new();
    client.connected(0..6);
    let transaction = client.prepares(1);
    assert!(!client.logs_without_5(&transaction));
    client.connected([0, 1, 2, 3, 5]);
    assert!(!logs(&client.connected([0, 1, 2, 3, 5])), "its vote is here");
    assert_eq!(client.votes(5, &transaction).events.len(), 1);
}

#[test]
fn whoever_is_not_connected_is_asked_last() {
    for gone in 0..6 {
        let mut client = Client::new();
        client.connected((0..6).filter(|index| *index != gone));
        let absent = |outbox: &OutboxOf<Coordinator>| outbox.sends.iter().any(|(to, _)| *to == Party::Replica(replica(gone)));
        for operation in 1..=6 {
            let (timestamp, keys, mode) = (TIMESTAMP, vec![Key::from("a")], ReadMode::ReadOnly);
            let asked = client.command(Command::Read { operation, timestamp, keys, mode });
            assert!(asked.sends.len() == 4 && !absent(&asked), "{:?}", asked.sends);
            let (range, direction) = (KeyRange::new(Key::from("a"), Key::from("b")).expect("a range"), Direction::Ascending);
            let asked = client.command(Command::Scan { operation: operation + 10, timestamp, range, direction, limit: 1, mode });
            assert!(asked.sends.len() == 4 && !absent(&asked), "{:?}", asked.sends);
        }
    }
}

#[test]
fn when_all_have_answered_that_can_nobody_else_is_waited_for() {
    let mut client = Client::new();
    client.connected(0..5);
    let read = Command::Read { operation: 1, timestamp: TIMESTAMP, keys: vec![Key::from("a")], mode: ReadMode::Interactive };
    let asked = |outbox: OutboxOf<Coordinator>| -> Vec<u16> {
        let index = |(to, _): &(Party, Message)| if let Party::Replica(to) = to { to.index } else { panic!("only replicas are asked") };
        outbox.sends.iter().map(index).collect()
    };
    let first = asked(client.command(read));
    assert_eq!(first.len(), 3);
    let reply = |version: u64| {
        let version = if version == 0 { Timestamp::ZERO } else { Timestamp { time: version, ..TIMESTAMP } };
        let result = ReadResult { version, value: (version != Timestamp::ZERO).then(|| Value::from("1")), pending: PendingWrite::None };
        Message::ReadReply { request: 1, clock: NOW.0, results: vec![result], prepared: vec![], is_promised: true }
    };
    // Two name versions that nobody else has, so all are asked.
    let answers: Vec<_> = first.iter().zip([7, 8, 0]).map(|(index, version)| client.hears(*index, reply(version))).collect();
    let others = answers.into_iter().flat_map(asked).collect::<Vec<u16>>();
    assert_eq!(others.len(), 3);
    let answers = others.into_iter().filter(|index| *index != 5).map(|index| client.hears(index, reply(0)));
    let events: Vec<Event> = answers.flat_map(|outbox| outbox.events).collect();
    let [Event::Read { operation: 1, result: Ok(found) }] = &events[..] else { panic!("the five that can have answered: {events:?}") };
    assert_eq!(found[0].version, Timestamp::ZERO);
}

#[test]
fn who_is_newly_connected_is_asked_for_its_clock_at_once() {
    let mut client = Client::new();
    client.coordinator.step(client.now, Input::Tick, &mut Outbox::default());
    assert!(asked_for_clocks(&client.connected([])).is_empty());
    for count in 1..=6_u16 {
        let asked = client.connected(0..count);
        assert_eq!(asked_for_clocks(&asked), [Party::Replica(replica(count - 1))]);
        assert_eq!(client.coordinator.clock().is_some(), count > 5, "five have said what time it is");
        let reply = Message::ClockReply { asked_at: client.now.0, clock: client.now.0 };
        client.hears(count - 1, reply);
    }
    assert!(asked_for_clocks(&client.connected(0..6)).is_empty(), "nothing has changed");
}
