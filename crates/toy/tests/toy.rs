//! The toy's replica and client, stepped by hand.

use crypto::{BatchSigner, Signable, Signatures, Verified, Verifier};
use machine::{Durable, Input, Machine, Outbox, OutboxOf, Time};
use store::{Crash, Memory, Options};
use toy::fixture::{CLUSTER, cluster, replica, replica_secret};
use toy::{Answered, Asker, Doubled, Doubler, Flaw, Message};
use types::{ClientId, Party, Session, ShardId};

const CLIENT: Party = Party::Client(ClientId(1), Session(1));

fn verified(message: Message) -> Verified<Message> {
    let verifier = Verifier::new(cluster(CLUSTER, 1), Signatures::Ed25519, 16).expect("the keys are good");
    verifier.verify(message).expect("the signature is good")
}

fn answer(index: u16, number: u64, double: u64) -> Input<u64, Verified<Message>> {
    let batch_signer = BatchSigner::new(replica_secret(index), CLUSTER, replica(index), Signatures::Ed25519);
    let doubled = Doubled { signer: replica(index), number, double, count: 1 };
    let signature = batch_signer.sign(&[doubled.leaf(CLUSTER, replica(index))]).remove(0);
    Input::Message { from: Party::Replica(replica(index)), message: verified(doubled.with_signature(signature)) }
}

/// Asks a replica twice, the power going after the first answer is durable, and gives the numbers of both answers.
fn counts_around_a_crash(flaw: Flaw) -> (u64, u64) {
    let medium = Memory::new("a disk");
    let ask = || {
        let mut doubler = Doubler::open(replica(0), &medium, Options::default(), flaw).expect("the disk is whole");
        let mut outbox: OutboxOf<Doubler> = Outbox::default();
        doubler.step(Time(1), Input::Message { from: CLIENT, message: verified(Message::Ask(21)) }, &mut outbox);
        doubler.persist().expect("memory does not fail");
        assert_eq!(outbox.unsigned[0].1.double, 42);
        outbox.unsigned[0].1.count
    };
    let first = ask();
    medium.crash(Crash::default());
    (first, ask())
}

#[test]
fn a_replica_numbers_its_answers_on_after_a_crash() {
    assert_eq!(counts_around_a_crash(Flaw::None), (1, 2));
    assert_eq!(counts_around_a_crash(Flaw::Forgets), (1, 1));
    assert_eq!(counts_around_a_crash(Flaw::WritesLate), (1, 1));
}

#[test]
fn a_client_believes_what_one_more_replica_says_than_may_lie() {
    let mut asker = Asker::new(cluster(CLUSTER, 1), ShardId(0));
    let mut outbox: OutboxOf<Asker> = Outbox::default();
    asker.step(Time(1), Input::Command(21), &mut outbox);
    assert_eq!(outbox.sends.len(), 6);
    for input in [answer(0, 21, 43), answer(0, 21, 42), answer(1, 21, 42), answer(2, 22, 44)] {
        asker.step(Time(2), input, &mut outbox);
        assert!(outbox.events.is_empty(), "one replica said 43 and one 42");
    }
    asker.step(Time(3), answer(3, 21, 42), &mut outbox);
    assert_eq!(outbox.events, [Answered { number: 21, double: 42 }]);
    assert_eq!(asker.deadline(), None);
}
