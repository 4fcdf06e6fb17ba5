//! What a node tells its own side of others: who was seen to lie, what proves it, and who is refused for it; and who has brought a
//! transaction to its end.

use std::sync::Arc;

use basil::certificate::{LoggedStatement, Proof, ShardProof, SignedLogged, SignedVote, VoteSet, VoteStatement};
use basil::witness::{Contradiction, ContradictionError, Stated};
use basil::{
    Certificate, Coordinator, CoordinatorOptions, Decision, Message, Node, NodeEvent, Read, Refusal, Replica, ReplicaOptions, Transaction,
    Vote, Write,
};
use crypto::{Signatures, leaf};
use engine::{Instruction, Replica as _};
use machine::{Input, Machine as _, Outbox, Time};
use store::{Memory, Options, Store};
use types::{ClientId, Cluster, Key, Party, ReplicaId, Session, ShardId, Timestamp, TransactionId, Value};

use crate::harness::members::{Members, members};

const NOW: Time = Time(100_000_000_000);
const ME: ReplicaId = ReplicaId { shard: ShardId(0), index: 0 };
const SUSPECT: ReplicaId = ReplicaId { shard: ShardId(0), index: 3 };

fn party(client: u64) -> Party {
    Party::Client(ClientId(client), Session(1))
}

fn node(members: &Members) -> Node<Memory> {
    let store = Store::open(Memory::new("evidence"), Options::default()).expect("a new store opens");
    let replica = Replica::open(members.cluster.clone(), ME, ReplicaOptions::default(), store, NOW).expect("it is new");
    Node::new(replica, Coordinator::new(members.cluster.clone(), CoordinatorOptions::default()))
}

/// What a replica answers, and what it tells its own side.
fn hear(members: &Members, node: &mut Node<Memory>, from: Party, message: Message) -> (Vec<Message>, Vec<NodeEvent>) {
    let message = members.stranger().verify(message).expect("it is properly signed");
    let mut outbox = Outbox::default();
    node.step(NOW, Input::Message { from, message }, &mut outbox);
    (outbox.sends.into_iter().map(|(_, message)| message).collect(), outbox.events)
}

/// Whether a client's read is refused as a liar's.
fn is_refused(members: &Members, node: &mut Node<Memory>, client: u64) -> bool {
    let read = Message::Read { request: 1, timestamp: Timestamp::new(NOW.0, ClientId(client)), keys: vec![Key::from("a")] };
    let (answers, _) = hear(members, node, party(client), read);
    matches!(answers[..], [Message::Refused { refusal: Refusal::Liar, .. }])
}

/// A transaction of that client, of a moment ago and so many nanoseconds, that has read `key` in a version of its own future.
fn from_the_future(members: &Members, client: u64, later: u64) -> Transaction {
    let timestamp = Timestamp::new(NOW.0 - 1_000_000 + later, ClientId(client));
    let read = Read { key: Key::from("a"), version: Timestamp::new(timestamp.time + 9, ClientId(5)), dependency: None };
    let write = Write { key: Key::from("b"), value: Some(Value::from("1")) };
    Transaction::new(members.cluster.id(), timestamp, vec![read], vec![write]).expect("small enough")
}

#[test]
fn a_client_that_was_seen_to_lie_is_refused_until_it_has_another_key() {
    let members = members(1);
    let mut node = node(&members);
    // Whatever another brings in its name is no reason.
    let made_up = Message::Recover { transaction: from_the_future(&members, 1, 0), evidence: Vec::new() };
    let (_, events) = hear(&members, &mut node, party(2), made_up);
    assert!(events.is_empty() && !is_refused(&members, &mut node, 1), "{events:?}");
    let lie = Message::Prepare { transaction: from_the_future(&members, 2, 1) };
    let (_, events) = hear(&members, &mut node, party(2), lie);
    assert!(matches!(events[..], [NodeEvent::Misbehavior { client: ClientId(2), .. }]), "{events:?}");
    assert!(is_refused(&members, &mut node, 2) && !is_refused(&members, &mut node, 1));
    let again = Message::Prepare { transaction: from_the_future(&members, 2, 2) };
    let (answers, events) = hear(&members, &mut node, party(2), again);
    assert!(events.is_empty() && matches!(answers[..], [Message::Refused { refusal: Refusal::Liar, .. }]), "{answers:?}");
    // Operators give it another key, and it is a client like any other.
    let keys = vec![members.cluster.replicas().map(|replica| *members.cluster.replica_key(replica).expect("it has one")).collect()];
    let mut clients = members.cluster.clients().to_vec();
    let earlier = clients[1].1.public_key;
    clients[1].1.public_key = crypto::SecretKey::from_bytes([99; 32]).public();
    let changed = Cluster::new(members.cluster.id(), 1, members.cluster.placement().clone(), keys, clients).expect("the parts fit");
    node.step(NOW, Input::Command(Instruction::Reconfigure(Arc::new(changed))), &mut Outbox::default());
    assert!(!is_refused(&members, &mut node, 2));
    // What was kept of the earlier key does not count against it when the process starts anew.
    node.refuse_liar(ClientId(2), earlier);
    assert!(!is_refused(&members, &mut node, 2));
    node.refuse_liar(ClientId(1), members.cluster.permission(ClientId(1)).expect("listed").public_key);
    assert!(is_refused(&members, &mut node, 1));
}

fn voted(members: &Members, vote: Vote, id: TransactionId) -> Message {
    let statement = VoteStatement { id, vote };
    let signature = members.batch_signers[&SUSPECT].sign(&[leaf(members.cluster.id(), SUSPECT, &statement)]).remove(0);
    Message::Voted { vote: SignedVote { replica: SUSPECT, statement, signature }, conflict: None }
}

#[test]
fn two_votes_of_one_replica_prove_to_everybody_that_it_lies() {
    let members = members(1);
    let mut node = node(&members);
    let (one, other) = (TransactionId([1; 32]), TransactionId([2; 32]));
    // The same again, and another vote on another transaction, prove nothing.
    for message in [voted(&members, Vote::Commit, one), voted(&members, Vote::Commit, one), voted(&members, Vote::Abort, other)] {
        let (_, events) = hear(&members, &mut node, Party::Replica(SUSPECT), message);
        assert!(events.is_empty(), "{events:?}");
    }
    let (_, events) = hear(&members, &mut node, Party::Replica(SUSPECT), voted(&members, Vote::Abort, one));
    let proof = Node::<Memory>::signed_proof(&events[0]).expect("it is signed");
    let lie = Node::<Memory>::misbehavior(&events[0]).expect("it is a lie");
    assert_eq!((events.len(), lie.who), (1, engine::Liar::Replica(SUSPECT)));
    let verify = |bytes: Vec<u8>| Contradiction::verify(&bytes.into(), members.cluster.clone(), Signatures::Ed25519);
    assert_eq!(verify(proof.to_vec()).map(|found| (found.replica, found.id)), Ok((SUSPECT, one)));
    for at in 0..proof.len() {
        let mut altered = proof.to_vec();
        altered[at] ^= 1;
        assert!(verify(altered).is_err(), "byte {at}");
    }
    assert_eq!(verify(Vec::new()), Err(ContradictionError::Header));
    // Once is enough.
    drop(hear(&members, &mut node, Party::Replica(SUSPECT), voted(&members, Vote::Commit, other)));
    let (_, events) = hear(&members, &mut node, Party::Replica(SUSPECT), voted(&members, Vote::Abort, other));
    assert!(events.is_empty(), "{events:?}");
}

fn logged(members: &Members, id: TransactionId, decision: Decision, view_decision: u32, view_current: u32) -> SignedLogged {
    let statement = LoggedStatement { id, decision, view_decision, view_current };
    let signature = members.batch_signers[&SUSPECT].sign(&[leaf(members.cluster.id(), SUSPECT, &statement)]).remove(0);
    SignedLogged { replica: SUSPECT, statement, signature }
}

#[test]
fn two_logged_decisions_of_one_view_prove_to_everybody_that_their_replica_lies() {
    let members = members(1);
    let mut node = node(&members);
    let id = TransactionId([1; 32]);
    let says =
        |decision, view_decision, view_current| Message::Logged { logged: logged(&members, id, decision, view_decision, view_current) };
    // It says so again as it has come to another view, and follows a later leader to another decision.
    for honest in [says(Decision::Commit, 0, 0), says(Decision::Commit, 0, 1), says(Decision::Abort, 1, 1), says(Decision::Abort, 1, 3)] {
        let (_, events) = hear(&members, &mut node, Party::Replica(SUSPECT), honest);
        assert!(events.is_empty(), "{events:?}");
    }
    let (_, events) = hear(&members, &mut node, Party::Replica(SUSPECT), says(Decision::Commit, 1, 2));
    let [NodeEvent::Contradiction(found)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(found.stated, Stated::Logged { view_decision: 1, views_current: (2, 1) });
    let proof = Node::<Memory>::signed_proof(&events[0]).expect("it is signed");
    let verify = |bytes: Vec<u8>| Contradiction::verify(&bytes.into(), members.cluster.clone(), Signatures::Ed25519);
    assert_eq!(verify(proof.to_vec()), Ok(found.clone()));
    for at in 0..proof.len() {
        let mut altered = proof.to_vec();
        altered[at] ^= 1;
        assert!(verify(altered).is_err(), "byte {at}");
    }
}

#[test]
fn a_commit_is_told_of_once_and_when_its_author_ends_it() {
    let members = members(1);
    // Who is told to have ended one of that long ago, when these clients say so one after the other.
    let told = |ago_ms: u64, is_prepared: bool, clients: &[u64]| {
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let timestamp = Timestamp::new(NOW.0 - ago_ms * 1_000_000, ClientId(1));
        let transaction = Transaction::new(members.cluster.id(), timestamp, vec![], vec![write]).expect("small enough");
        let id = transaction.id();
        let voters = (0..6).map(|index| {
            let replica = ReplicaId { index, ..ME };
            let leaf = leaf(members.cluster.id(), replica, &VoteStatement { id, vote: Vote::Commit });
            (index, members.batch_signers[&replica].sign(&[leaf]).remove(0))
        });
        let votes = VoteSet { shard: ME.shard, vote: Vote::Commit, voters: voters.collect() };
        let proof = Proof::Fast(vec![ShardProof::Votes(votes)]);
        let certificate = Arc::new(Certificate { id, decision: Decision::Commit, proof });
        let mut node = node(&members);
        if is_prepared {
            drop(hear(&members, &mut node, party(1), Message::Prepare { transaction: transaction.clone() }));
        }
        let mut told = Vec::new();
        for client in clients {
            let (transaction, certificate) = (Some(transaction.clone()), certificate.clone());
            let (_, events) = hear(&members, &mut node, party(*client), Message::Writeback { transaction, certificate, relay: false });
            told.push(events.iter().filter_map(Node::<Memory>::committed_by).collect::<Vec<_>>());
        }
        told
    };
    assert_eq!(told(1, true, &[1, 1]), [vec![ClientId(1)], vec![]]);
    assert_eq!(told(1, true, &[2, 1, 1]), [vec![], vec![ClientId(1)], vec![]], "another was faster, and the author came all the same");
    assert_eq!(told(1, false, &[1, 1]), [vec![ClientId(1)], vec![]], "the end overtook the beginning");
    assert_eq!(told(60_000, false, &[1, 1]), [vec![], vec![]], "it may have been told of, and forgotten");
}
