//! What is said can be read, in one way only, and arbitrary bytes harm nobody.

use bytes::Bytes;
use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use types::ShardId;
use types::codec::{Decode as _, Encode as _};

use super::super::Message;
use super::super::message::{Certificate, CheckpointVote, Claim, NewView, Status, Unsigned, ViewChange};
use super::world::{CLUSTER, World, cluster, replica, request};

fn all() -> Vec<Message> {
    let world = World::new();
    let request = request(1, 1, "payload");
    let id = request.id(CLUSTER);
    let claim = Claim { sequence: 5, view: 1, digest: [3; 32] };
    let vote = CheckpointVote { signer: replica(2), sequence: 4, digest: [1; 32] };
    let votes = (0..3).map(|index| (index, signature(&world, index, 4)));
    let certificate = Certificate { shard: ShardId(0), sequence: 4, digest: [1; 32], votes: votes.collect() };
    let change = |index| {
        let statement =
            ViewChange { signer: replica(index), view: 2, stable: Some(certificate.clone()), prepared: vec![claim], accepted: vec![claim] };
        match world.signed(index, Unsigned::ViewChange(statement)) {
            Message::ViewChange(vote, signature) => (vote, signature),
            other => panic!("{other:?}"),
        }
    };
    let new_view = NewView { signer: replica(2), view: 2, votes: (0..3).map(change).collect() };
    let (one, signed) = change(1);
    vec![
        Message::Request(request.clone()),
        Message::Vouch(vec![id, id]),
        Message::Propose { view: 1, sequence: 2, ids: vec![id] },
        Message::Prepare(claim),
        Message::Commit(claim),
        Message::Decided { sequence: 3, digest: [4; 32] },
        world.signed(2, Unsigned::Checkpoint(vote)),
        Message::Stable(certificate.clone()),
        Message::ViewChange(one, signed),
        world.signed(2, Unsigned::NewView(new_view)),
        Message::Status(Status { entered: 1, stable: 2, delivered: 3 }),
        Message::FetchRequests(vec![id]),
        Message::Requests(vec![request.clone()]),
        Message::FetchList { sequence: 1, digest: [9; 32] },
        Message::List { sequence: 1, requests: vec![request] },
        Message::FetchHead(7),
        Message::Head { sequence: 7, head: Bytes::from_static(b"head") },
        Message::FetchPage { sequence: 7, index: 1 },
        Message::Page { sequence: 7, index: 1, bytes: Bytes::from_static(b"page") },
        Message::FetchReached(9),
        Message::Reached { question: 9, view: 1, delivered: 4 },
        Message::Reply { number: 1, answer: Bytes::from_static(b"answer"), signed: None },
        world.signed(2, Unsigned::Reply { signer: replica(2), number: 1, answer: Bytes::from_static(b"answer"), leaf: [4; 32] }),
    ]
}

fn signature(world: &World, index: u16, sequence: u64) -> crypto::BatchSignature {
    match world.signed(index, Unsigned::Checkpoint(CheckpointVote { signer: replica(index), sequence, digest: [1; 32] })) {
        Message::Checkpoint(_, signature) => signature,
        other => panic!("{other:?}"),
    }
}

fn verifier() -> Verifier {
    Verifier::new(cluster(1), Signatures::Ed25519, 100).expect("good keys")
}

#[test]
fn every_message_is_read_as_it_was_written_and_passes() {
    for message in all() {
        let bytes: Bytes = message.to_bytes().into();
        let read = Message::from_bytes(bytes.clone(), CLUSTER).expect("its own bytes");
        assert_eq!((&read, read.to_bytes()), (&message, bytes.to_vec()));
        assert!(verifier().verify(read).is_ok(), "{message:?}");
    }
}

#[test]
fn shortened_lengthened_and_changed_bytes_are_refused_or_mean_something_else() {
    let verifier = verifier();
    for message in all() {
        let bytes = message.to_bytes();
        for length in 0..bytes.len() {
            assert!(Message::from_bytes(bytes[..length].to_vec().into(), CLUSTER).is_err(), "{message:?} of {length} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Message::from_bytes(longer.into(), CLUSTER).is_err());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            if let Ok(read) = Message::from_bytes(changed.clone().into(), CLUSTER) {
                assert_eq!(read.to_bytes(), changed, "there is one encoding");
                assert_ne!(read, message);
                // Nothing that it claims may stop who checks it.
                let _ = verifier.verify(read);
            }
        }
    }
}

/// The last of these once stopped whoever checked it.
#[test]
fn a_view_change_claims_what_lies_above_its_checkpoint_and_before_its_view() {
    let world = World::new();
    let votes = (0..3).map(|index| (index, signature(&world, index, 4))).collect();
    let stable = Certificate { shard: ShardId(0), sequence: 4, digest: [1; 32], votes };
    let passes = |claims: &[(u64, u64)]| {
        let prepared = claims.iter().map(|(sequence, view)| Claim { sequence: *sequence, view: *view, digest: [2; 32] }).collect();
        let vote = ViewChange { signer: replica(1), view: 3, stable: Some(stable.clone()), prepared, accepted: Vec::new() };
        verifier().verify(world.signed(1, Unsigned::ViewChange(vote))).is_ok()
    };
    assert!(passes(&[]) && passes(&[(5, 0), (6, 2)]));
    for claims in [&[(5, 3)][..], &[(6, 0), (5, 0)], &[(5, 0), (5, 1)], &[(u64::MAX, 0)], &[(4, 0)], &[(1, 0)]] {
        assert!(!passes(claims), "{claims:?}");
    }
}

#[test]
fn a_certificate_needs_three_votes_of_distinct_replicas() {
    let world = World::new();
    let with = |indices: &[u16]| {
        let votes = indices.iter().map(|index| (*index, signature(&world, (*index).min(3), 4))).collect();
        Message::Stable(Certificate { shard: ShardId(0), sequence: 4, digest: [1; 32], votes })
    };
    assert!(verifier().verify(with(&[0, 2, 3])).is_ok());
    for indices in [&[][..], &[0], &[0, 1], &[0, 1, 1], &[1, 0, 2], &[0, 1, 9]] {
        assert!(verifier().verify(with(indices)).is_err(), "{indices:?}");
    }
    let Message::Stable(certificate) = with(&[0, 1, 2]) else { unreachable!("it is one") };
    assert!(verifier().verify(Message::Stable(Certificate { sequence: 8, ..certificate })).is_err(), "they have not said that");
}

#[test]
fn a_view_begins_with_three_votes_of_distinct_replicas_for_it() {
    let key = SecretKey::from_bytes([3; 32]);
    let signer = BatchSigner::new(key, CLUSTER, replica(2), Signatures::Ed25519);
    let world = World::new();
    let change = |index: u16, view| {
        let statement = ViewChange { signer: replica(index), view, stable: None, prepared: Vec::new(), accepted: Vec::new() };
        match world.signed(index, Unsigned::ViewChange(statement)) {
            Message::ViewChange(vote, signature) => (vote, signature),
            other => panic!("{other:?}"),
        }
    };
    let new_view = |votes: Vec<_>, view| {
        use crypto::Signable as _;
        let statement = Unsigned::NewView(NewView { signer: replica(2), view, votes });
        let signature = signer.sign(&[statement.leaf(CLUSTER, replica(2))]).remove(0);
        verifier().verify(statement.with_signature(signature)).is_ok()
    };
    assert!(new_view(vec![change(0, 2), change(1, 2), change(3, 2)], 2));
    assert!(!new_view(vec![change(0, 2), change(1, 2)], 2), "too few");
    assert!(!new_view(vec![change(0, 2), change(1, 2), change(1, 2)], 2), "one twice");
    assert!(!new_view(vec![change(0, 2), change(1, 2), change(3, 6)], 2), "another view's");
    assert!(!new_view(vec![change(0, 3), change(1, 3), change(3, 3)], 3), "another leader's");
}
