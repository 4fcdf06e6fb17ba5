//! The operators give a replica's place another key while somebody collects votes.

use std::sync::Arc;

use basil::certificate::{SignedVote, VoteStatement};
use basil::{Command, Coordinator, CoordinatorOptions, Event, Message, Transaction, Vote, Write};
use crypto::{BatchSigner, SecretKey, Signatures, Verifier, leaf};
use machine::{Input, Machine as _, Outbox, OutboxOf, Time};
use types::{ClientId, Cluster, Key, Party, ReplicaId, ShardId, Timestamp, Value};

use crate::harness::members::{Members, members};

const NOW: Time = Time(100_000_000_000);

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

/// A client's coordinator that has asked six replicas for votes, and is about to hear them.
struct Collecting {
    members: Members,
    /// The cluster in which replica 1 has another key.
    changed: Arc<Cluster>,
    coordinator: Coordinator,
    transaction: Transaction,
}

fn new_secret() -> SecretKey {
    SecretKey::from_bytes([99; 32])
}

impl Collecting {
    fn begin() -> Self {
        let members = members(1);
        let cluster = &members.cluster;
        let key =
            |replica| if replica == self::replica(1) { new_secret().public() } else { *cluster.replica_key(replica).expect("it has one") };
        let keys = vec![cluster.replicas().map(key).collect()];
        let changed = Cluster::new(cluster.id(), 1, cluster.placement().clone(), keys, cluster.clients().to_vec()).expect("it fits");
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(cluster.id(), Timestamp::new(NOW.0, ClientId(1)), vec![], vec![write]).expect("small enough");
        let coordinator = Coordinator::new(cluster.clone(), CoordinatorOptions::default());
        let mut collecting = Self { changed: Arc::new(changed), coordinator, transaction: transaction.clone(), members };
        let asked = collecting.command(Command::Commit { operation: 1, transaction, dependencies: vec![] });
        assert_eq!(asked.sends.len(), 6);
        collecting
    }

    fn command(&mut self, command: Command) -> OutboxOf<Coordinator> {
        let mut outbox = Outbox::default();
        self.coordinator.step(NOW, Input::Command(command), &mut outbox);
        outbox
    }

    fn reconfigure(&mut self) -> OutboxOf<Coordinator> {
        let cluster = self.changed.clone();
        self.command(Command::Reconfigure { cluster })
    }

    /// The vote of replica `index` comes, signed by its first key, or the new one of replica 1.
    fn hear(&mut self, index: u16, is_new: bool) -> OutboxOf<Coordinator> {
        let (from, id) = (replica(index), self.transaction.id());
        let statement = VoteStatement { id, vote: Vote::Commit };
        let leaves = [leaf(self.changed.id(), from, &statement)];
        let newer = BatchSigner::new(new_secret(), self.changed.id(), from, Signatures::Ed25519);
        let signer = if is_new { &newer } else { &self.members.batch_signers[&from] };
        let vote = SignedVote { replica: from, statement, signature: signer.sign(&leaves).remove(0) };
        let checked_by = if is_new { self.verifier() } else { self.members.stranger() };
        let message = checked_by.verify(Message::Voted { vote, conflict: None }).expect("it is properly signed");
        let mut outbox = Outbox::default();
        self.coordinator.step(NOW, Input::Message { from: Party::Replica(from), message }, &mut outbox);
        outbox
    }

    fn tick(&mut self) -> OutboxOf<Coordinator> {
        let (mut outbox, at) = (Outbox::default(), self.coordinator.deadline().expect("it waits for something"));
        self.coordinator.step(at, Input::Tick, &mut outbox);
        outbox
    }

    /// Whoever goes by the new configuration.
    fn verifier(&self) -> Verifier {
        Verifier::new(self.changed.clone(), Signatures::Ed25519, 16).expect("the keys are good")
    }
}

/// Whom `outbox` asks for votes.
fn asked(outbox: &OutboxOf<Coordinator>) -> Vec<Party> {
    outbox.sends.iter().filter(|(_, message)| matches!(message, Message::Prepare { .. })).map(|(to, _)| *to).collect()
}

#[test]
fn a_vote_by_an_earlier_key_is_asked_for_again_and_the_proof_is_good_by_the_new_keys() {
    let mut collecting = Collecting::begin();
    (0..5).for_each(|index| assert!(collecting.hear(index, false).events.is_empty()));
    assert_eq!(asked(&collecting.reconfigure()), [1, 5].map(|index| Party::Replica(replica(index))), "and who was not heard yet");
    let mut ended = collecting.hear(5, false);
    if ended.events.is_empty() {
        ended = collecting.hear(1, true);
    }
    assert!(matches!(&ended.events[..], [Event::Ended { operation: 1, result: Ok(_) }]), "{:?}", ended.events);
    let shown = ended.sends.into_iter().map(|(_, message)| message).collect::<Vec<_>>();
    assert!(!shown.is_empty() && collecting.verifier().verify_all(shown).iter().all(Result::is_ok));
}

#[test]
fn what_is_being_logged_is_justified_anew_when_a_vote_for_it_counts_no_more() {
    let mut collecting = Collecting::begin();
    (0..4).for_each(|index| drop(collecting.hear(index, false)));
    let logs = |outbox: &OutboxOf<Coordinator>| {
        outbox
            .sends
            .iter()
            .filter(|(_, message)| matches!(message, Message::Log { .. }))
            .map(|(_, message)| message.clone())
            .collect::<Vec<_>>()
    };
    let mut logged = collecting.tick();
    while logs(&logged).is_empty() {
        logged = collecting.tick();
    }
    assert_eq!(asked(&collecting.reconfigure()), [1, 4, 5].map(|index| Party::Replica(replica(index))));
    // One by the earlier key that was checked before the change, and comes after it, may be used, in vain; then it is asked for once more.
    drop(collecting.hear(1, false));
    let mut again = collecting.tick();
    while !asked(&again).contains(&Party::Replica(replica(1))) {
        again = collecting.tick();
        assert!(again.events.is_empty(), "{:?}", again.events);
    }
    assert!(logs(&again).is_empty(), "{:?}", again.sends);
    let mut justified = collecting.hear(1, true);
    while logs(&justified).is_empty() {
        justified = collecting.tick();
    }
    assert!(collecting.verifier().verify_all(logs(&justified)).iter().all(Result::is_ok));
}
