//! Leaders that fail or lie are replaced, and what was decided stays decided.

use types::{Party, Session};

use super::super::request::{BATCH_REQUESTS_MAX, RequestId};
use super::super::{Message, Request, RequestKey};
use super::world::{CLUSTER, World, key, party, request, without};

const ALL: &[u16] = &[0, 1, 2, 3];
const HONEST: &[u16] = &[1, 2, 3];

fn entered(world: &World, index: u16) -> u64 {
    world.node(index).replica().status().entered
}

#[test]
fn a_leader_that_is_gone_is_replaced() {
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    world.crash(0);
    world.ask_all(&request(1, 2, "b"));
    world.run_ms(2_000);
    world.assert_delivered(HONEST, vec![key(1, 1), key(1, 2)]);
    world.start(0);
    world.run_ms(3_000);
    world.assert_delivered(ALL, vec![key(1, 1), key(1, 2)]);
    assert_eq!(entered(&world, 0), 1, "it hears how the view began");
}

/// Each in its turn, while no time passes; and it comes back as a follower.
#[test]
fn a_leader_that_is_stopped_hands_over() {
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    for index in 0..4 {
        world.stop(index);
        let others: Vec<u16> = (0..4).filter(|other| *other != index).collect();
        world.ask(&request(1, 2 + u64::from(index), "b"), &others);
        world.settle();
        assert!(others.iter().all(|other| entered(&world, *other) == 1 + u64::from(index)));
        world.assert_delivered(&others, (1..=2 + u64::from(index)).map(|number| key(1, number)).collect());
        world.start(index);
        world.run_ms(3_000);
    }
    world.assert_delivered(ALL, (1..=5).map(|number| key(1, number)).collect());
    assert!(ALL.iter().all(|index| entered(&world, *index) == 4));
}

/// As a whole cluster is, whether the others still hear of it or not. Then its next leader serves soon after they are back, though nobody has asked for anything.
#[test]
fn a_leader_that_is_stopped_with_all_others_costs_no_timeout() {
    for is_heard in [false, true] {
        let mut world = World::new();
        world.ask_all(&request(1, 1, "a"));
        world.settle();
        for index in 0..4 {
            world.stop(index);
            if is_heard {
                world.settle();
            }
        }
        ALL.iter().for_each(|index| world.start(*index));
        world.run_ms(300);
        let leads = |index: &u16| u64::from(world.node(*index).replica().leader());
        assert!(ALL.iter().all(|index| leads(index) == entered(&world, *index) % 4), "each is in its view, {is_heard}");
        world.ask_all(&request(1, 2, "b"));
        world.settle();
        world.assert_delivered(ALL, vec![key(1, 1), key(1, 2)]);
    }
}

#[test]
fn a_follower_that_is_stopped_stays_in_its_view() {
    let mut world = World::new();
    world.stop(2);
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    world.assert_delivered(&[0, 1, 3], vec![key(1, 1)]);
    world.start(2);
    assert_eq!(world.node(2).replica().leader(), 0);
    world.run_ms(3_000);
    assert!(ALL.iter().all(|index| entered(&world, *index) == 0));
    world.assert_delivered(ALL, vec![key(1, 1)]);
}

/// Replica 3 vouches for more requests of a client that comes before all others than are said again at a time.
#[test]
fn a_leader_that_is_gone_is_replaced_whatever_else_one_replica_vouches_for() {
    let mut world = World::new();
    let made_up: Vec<RequestId> = (1..=BATCH_REQUESTS_MAX as u64).map(|number| request(1, number, "made up").id(CLUSTER)).collect();
    for ids in made_up.chunks(BATCH_REQUESTS_MAX) {
        [1, 2].iter().for_each(|to| world.inject(party(3), *to, &Message::Vouch(ids.to_vec())));
    }
    world.crash(0);
    world.ask_all(&request(2, 1, "b"));
    world.run_ms(2_000);
    world.assert_delivered(HONEST, vec![key(2, 1)]);
}

/// Nothing is said again by replicas themselves: it is their client who does.
#[test]
fn what_a_client_says_again_is_vouched_for_to_all() {
    let mut world = World::new();
    world.bend = Box::new(|from, to, message| match &message {
        Message::Vouch(_) if to == party(2) && from != party(2) => vec![message],
        Message::Vouch(_) => Vec::new(),
        _ => vec![message],
    });
    let request = request(1, 1, "a");
    world.ask(&request, &[1, 3]);
    world.settle();
    assert!(world.node(2).replica().unsettled().is_empty(), "the leader alone is told");
    world.ask(&request, &[1, 3]);
    world.settle();
    assert_eq!(world.node(2).replica().unsettled().len(), 1, "it knows of it now");
}

#[test]
fn a_leader_that_leaves_a_client_out_is_replaced() {
    let mut world = World::new();
    world.bend = Box::new(|from, _, message| match &message {
        Message::Propose { ids, .. } if from == party(0) && ids.iter().any(|id| id.key.client.0 == 1) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "left out"));
    for number in 1..=40 {
        world.ask_all(&request(2, number, "b"));
        world.run_ms(50);
    }
    world.run_ms(2_000);
    assert!(entered(&world, 1) >= 1);
    assert!(world.delivered(1).iter().any(|entry| entry.key == key(1, 1)));
    world.assert_agreement(ALL);
}

#[test]
fn a_leader_that_shows_different_lists_is_replaced_and_no_two_replicas_differ() {
    let mut world = World::new();
    // What it says to 3 is another order than what it says to the others.
    world.bend = Box::new(|from, to, message| match message {
        Message::Propose { view, sequence, mut ids } if from == party(0) && to != party(1) => {
            ids.reverse();
            vec![Message::Propose { view, sequence, ids }]
        }
        other => vec![other],
    });
    for number in 1..=100 {
        world.ask_all(&request(1, number, "a"));
    }
    world.run_ms(5_000);
    world.assert_delivered(HONEST, (1..=100).map(|number| key(1, number)).collect());
}

#[test]
fn a_leader_that_stops_after_its_first_list_is_replaced() {
    let mut world = World::new();
    world.bend = Box::new(|from, _, message| match &message {
        Message::Propose { view: 0, sequence, .. } if from == party(0) && *sequence > 1 => Vec::new(),
        _ => vec![message],
    });
    for number in 1..=30 {
        world.ask_all(&request(1, number, "a"));
    }
    world.run_ms(3_000);
    assert!(entered(&world, 1) >= 1);
    world.assert_delivered(HONEST, (1..=30).map(|number| key(1, number)).collect());
}

/// Commit votes reach nobody but one replica, which delivers and answers alone. The next leader must come to the same.
#[test]
fn what_one_replica_delivered_survives_its_leader() {
    let mut world = World::new();
    world.bend = Box::new(|from, to, message| match &message {
        Message::Commit(_) if to != party(2) => Vec::new(),
        _ if from == party(0) && matches!(to, Party::Replica(_)) && matches!(message, Message::Status(_)) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    assert_eq!(world.delivered(2).len(), 1);
    assert_eq!(world.delivered(1).len() + world.delivered(3).len(), 0);
    // The leader is gone, and so is who delivered it.
    world.crash(0);
    world.bend = without(&[2]);
    world.ask_all(&request(2, 1, "b"));
    world.run_ms(1_000);
    world.bend = super::world::whole();
    world.run_ms(4_000);
    world.assert_delivered(HONEST, vec![key(1, 1), key(2, 1)]);
}

/// A liar claims that it prepared a list of its own where nothing was decided.
#[test]
fn a_liars_claim_is_not_what_a_view_begins_with() {
    use super::super::message::{Claim, Unsigned, ViewChange};
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    world.crash(0);
    let claim = Claim { sequence: 2, view: 0, digest: [9; 32] };
    for to in 1..3 {
        let lie = ViewChange { signer: super::world::replica(3), view: 1, stable: None, prepared: vec![claim], accepted: vec![claim] };
        let lie = world.signed(3, Unsigned::ViewChange(lie));
        world.inject(party(3), to, &lie);
    }
    let honest = |message: &Message| !matches!(message, Message::ViewChange(vote, _) if vote.signer.index == 3);
    world.bend = Box::new(move |_, _, message| if honest(&message) { vec![message] } else { Vec::new() });
    world.start(0);
    world.ask_all(&request(1, 2, "b"));
    world.run_ms(5_000);
    world.assert_delivered(&[0, 1, 2], vec![key(1, 1), key(1, 2)]);
}

#[test]
fn leaders_that_fail_one_after_the_other_are_all_replaced() {
    let mut world = World::new();
    world.bend = Box::new(|_, _, message| match &message {
        // In the first two views nobody learns that anything is prepared.
        Message::Commit(claim) if claim.view < 2 => Vec::new(),
        _ => vec![message],
    });
    for number in 1..=5 {
        world.ask_all(&request(1, number, "a"));
    }
    world.run_ms(10_000);
    assert!(entered(&world, 1) >= 2);
    world.assert_delivered(ALL, (1..=5).map(|number| key(1, number)).collect());
}

/// A replica that was away while a view began with another list where it had prepared one still makes its claim, and nobody backs it. It is shown
/// how that view began.
#[test]
fn a_claim_that_is_void_is_taken_back() {
    let mut world = World::new();
    // Only 3 prepares the list in view 0: the others hear of too few that accept it.
    world.bend = Box::new(|_, to, message| match &message {
        Message::Prepare(_) if to != party(3) => Vec::new(),
        Message::Commit(_) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    // View 1 begins without it, so that the number is free, and gets another list. Nobody prepares it.
    world.bend = Box::new(|from, to, message| match &message {
        Message::Prepare(_) | Message::Commit(_) => Vec::new(),
        _ if from == party(3) || to == party(3) => Vec::new(),
        _ => vec![message],
    });
    world.ask(&request(2, 1, "b"), &[0, 1, 2]);
    world.run_ms(700);
    assert_eq!((entered(&world, 0), entered(&world, 1), entered(&world, 2), entered(&world, 3)), (1, 1, 1, 0));
    // Its leader goes before 3 is back: 3 of 4 are left, and none of them backs what 3 claims.
    world.crash(1);
    world.bend = super::world::whole();
    world.ask(&request(2, 2, "c"), &[0, 2, 3]);
    world.run_ms(10_000);
    world.assert_delivered(&[0, 2, 3], vec![key(1, 1), key(2, 1), key(2, 2)]);
}

/// Clients that lie give each replica requests of its own, which are never due. The leader says nothing.
#[test]
fn a_silent_leader_is_replaced_however_much_nobody_else_vouches_for() {
    // At several points of the time in which all of it is said again.
    for later_ms in [0, 300, 600, 900] {
        let mut world = World::new();
        world.crash(0);
        for (client, session, number) in (1..=3).flat_map(|client| (1..=4_000).map(move |at| (client, at % 4 + 1, at / 4 + 1))) {
            for replica in HONEST {
                let key = RequestKey { session: Session(session), ..key(client, number) };
                world.ask(&Request { key, payload: vec![u8::try_from(*replica).expect("few")].into() }, &[*replica]);
            }
        }
        world.run_ms(5_000 + later_ms);
        assert!(HONEST.iter().all(|index| entered(&world, *index) == 0), "nobody else vouches for any of that");
        let honest = request(4, 1, "a");
        world.ask(&honest, HONEST);
        world.run_ms(1_500);
        assert!(HONEST.iter().all(|index| world.delivered(*index).iter().any(|entry| entry.key == honest.key)), "{later_ms}");
    }
}
