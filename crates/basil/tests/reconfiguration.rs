//! The operators give a replica's place another key while somebody collects votes.

use std::sync::Arc;

use basil::certificate::{Certificate, Decision, Proof, ShardProof, SignedVote, VoteSet, VoteStatement};
use basil::{Command, Coordinator, CoordinatorOptions, Event, Message, Transaction, Vote, Write};
use crypto::{BatchSigner, SecretKey, Signatures, Verified, Verifier, leaf};
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
    /// The cluster in which replica 1 has another key, and perhaps more.
    changed: Arc<Cluster>,
    /// The shell goes by it, and checks by its keys.
    is_changed: bool,
    coordinator: Coordinator,
    transaction: Transaction,
}

fn new_secret(index: u16) -> SecretKey {
    SecretKey::from_bytes([if index == 1 { 99 } else { 98 }; 32])
}

/// The cluster in which these have another key.
fn changed(members: &Members, places: &[u16]) -> Arc<Cluster> {
    let cluster = &members.cluster;
    let key = |replica: ReplicaId| match replica.index {
        index if places.contains(&index) => new_secret(index).public(),
        _ => *cluster.replica_key(replica).expect("it has one"),
    };
    let keys = vec![cluster.replicas().map(key).collect()];
    let changed = Cluster::new(cluster.id(), 1, cluster.placement().clone(), keys, cluster.clients().to_vec());
    Arc::new(changed.expect("it fits"))
}

impl Collecting {
    fn begin() -> Self {
        let members = members(1);
        let (cluster, changed) = (&members.cluster, changed(&members, &[1]));
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(cluster.id(), Timestamp::new(NOW.0, ClientId(1)), vec![], vec![write]).expect("small enough");
        let coordinator = Coordinator::new(cluster.clone(), CoordinatorOptions::default());
        let mut collecting = Self { changed, is_changed: false, coordinator, transaction: transaction.clone(), members };
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
        self.is_changed = true;
        self.command(Command::Reconfigure { cluster })
    }

    /// The vote of replica `index` comes, signed by its first key or a new one. One by a first key that is no more was checked before the change.
    fn hear(&mut self, index: u16, is_new: bool) -> OutboxOf<Coordinator> {
        let vote = self.vote(index, is_new);
        let has_key = is_new || self.changed.replica_key(replica(index)) == self.members.cluster.replica_key(replica(index));
        let checked_by = if self.is_changed && has_key { self.verifier() } else { self.members.stranger() };
        let message = checked_by.verify(Message::Voted { vote, conflict: None }).expect("it is properly signed");
        self.take_in(index, message)
    }

    fn take_in(&mut self, index: u16, message: Verified<Message>) -> OutboxOf<Coordinator> {
        let mut outbox = Outbox::default();
        self.coordinator.step(NOW, Input::Message { from: Party::Replica(replica(index)), message }, &mut outbox);
        outbox
    }

    fn vote(&self, index: u16, is_new: bool) -> SignedVote {
        let (from, id) = (replica(index), self.transaction.id());
        let statement = VoteStatement { id, vote: Vote::Commit };
        let leaves = [leaf(self.changed.id(), from, &statement)];
        let newer = BatchSigner::new(new_secret(index), self.changed.id(), from, Signatures::Ed25519);
        let signer = if is_new { &newer } else { &self.members.batch_signers[&from] };
        SignedVote { replica: from, statement, signature: signer.sign(&leaves).remove(0) }
    }

    /// That `outbox` ends the transaction, with a proof that is good by the new keys.
    fn assert_proven(&self, outbox: OutboxOf<Coordinator>) {
        assert!(matches!(&outbox.events[..], [Event::Ended { operation: 1, result: Ok(_) }]), "{:?}", outbox.events);
        let shown = outbox.sends.into_iter().map(|(_, message)| message).collect::<Vec<_>>();
        assert!(!shown.is_empty() && self.verifier().verify_all(shown).iter().all(Result::is_ok));
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
    collecting.assert_proven(ended);
}

#[test]
fn a_vote_that_was_checked_by_an_earlier_key_and_comes_after_the_change_does_not_count() {
    let mut collecting = Collecting::begin();
    [0, 2, 3, 4, 5].into_iter().for_each(|index| assert!(collecting.hear(index, false).events.is_empty()));
    assert_eq!(
        asked(&collecting.reconfigure()),
        [Party::Replica(replica(1))],
        "it may have sent by the earlier key what nobody takes any more"
    );
    assert!(collecting.hear(1, false).events.is_empty(), "that would be a proof of which no configuration has all keys");
    let ended = collecting.hear(1, true);
    collecting.assert_proven(ended);
}

#[test]
fn nor_does_it_after_a_second_change() {
    let mut collecting = Collecting::begin();
    [0, 3, 4, 5].into_iter().for_each(|index| drop(collecting.hear(index, false)));
    drop(collecting.reconfigure());
    collecting.changed = changed(&collecting.members, &[1, 2]);
    drop(collecting.reconfigure());
    for (index, is_new) in [(1, false), (2, false), (2, true), (1, false)] {
        assert!(collecting.hear(index, is_new).events.is_empty(), "{index}");
    }
    let ended = collecting.hear(1, true);
    collecting.assert_proven(ended);
}

#[test]
fn votes_that_were_checked_by_different_keys_make_no_certificate_before_the_news_of_the_change() {
    let mut collecting = Collecting::begin();
    collecting.changed = changed(&collecting.members, &[1, 2]);
    [0, 2, 3, 4, 5].into_iter().for_each(|index| drop(collecting.hear(index, false)));
    collecting.is_changed = true;
    let mixed = collecting.hear(1, true);
    assert!(mixed.events.is_empty(), "the shell goes by the new keys, and what replica 2 has said is by the earlier one");
    assert_eq!(asked(&mixed).len(), 6);
    assert!(asked(&collecting.reconfigure()).is_empty(), "they were asked again");
    [0, 2, 3, 4].into_iter().for_each(|index| assert!(collecting.hear(index, index == 2).events.is_empty()));
    let ended = collecting.hear(5, false);
    collecting.assert_proven(ended);
}

#[test]
fn what_was_checked_by_keys_that_the_news_passed_over_does_not_silence_the_newest() {
    let mut collecting = Collecting::begin();
    let between = Verifier::new(changed(&collecting.members, &[1]), Signatures::Ed25519, 16).expect("the keys are good");
    collecting.changed = changed(&collecting.members, &[1, 2]);
    drop(collecting.reconfigure());
    let vote = collecting.vote(3, false);
    let message = between.verify(Message::Voted { vote, conflict: None }).expect("its key is the same in all three");
    drop(collecting.take_in(3, message));
    for index in [0, 1, 2, 3, 4] {
        drop(collecting.hear(index, [1, 2].contains(&index)));
    }
    let ended = collecting.hear(5, false);
    collecting.assert_proven(ended);
}

#[test]
fn a_proof_that_was_checked_by_an_earlier_key_and_comes_after_the_change_is_not_handed_on() {
    let mut collecting = Collecting::begin();
    let voters = (0..6).map(|index| (index, collecting.vote(index, false).signature)).collect();
    let votes = ShardProof::Votes(VoteSet { shard: ShardId(0), vote: Vote::Commit, voters });
    let certificate = Certificate { id: collecting.transaction.id(), decision: Decision::Commit, proof: Proof::Fast(vec![votes]) };
    let decided = Message::Decided { certificate: Arc::new(certificate) };
    let checked_before = collecting.members.stranger().verify(decided).expect("it was good");
    drop(collecting.reconfigure());
    let outbox = collecting.take_in(3, checked_before);
    assert!(outbox.events.is_empty() && outbox.sends.is_empty(), "{:?}", outbox.sends);
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
    // One by the earlier key that was checked before the change, and comes after it, does not count; it is asked for once more.
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
