//! The normal case, and who may have what ordered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::message::Status;
use super::super::replica::TICK_MS;
use super::super::request::name_of;
use super::super::{Message, Request, RequestKey};
use super::world::{CLUSTER, World, key, party, replica, request, without};

const ALL: &[u16] = &[0, 1, 2, 3];

#[test]
fn what_clients_ask_is_delivered_everywhere_in_one_order() {
    let mut world = World::new();
    for number in 1..=50 {
        world.ask_all(&request(1, number, "a"));
        world.ask_all(&request(2, number, "b"));
        world.settle();
    }
    world.assert_delivered(ALL, (1..=50).flat_map(|number| [key(1, number), key(2, number)]).collect());
    assert!(world.answer(&key(2, 50)).is_some());
    assert!(world.node(0).replica().status().stable >= 40, "checkpoints become stable: {:?}", world.node(0).replica().status());
}

#[test]
fn a_request_said_again_is_answered_and_not_delivered_again() {
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    world.answers.clear();
    world.ask_all(&request(1, 1, "a"));
    world.run_ms(1_000);
    world.assert_delivered(ALL, vec![key(1, 1)]);
    assert!(world.answer(&key(1, 1)).is_some());
}

#[test]
fn a_silent_follower_stops_nobody() {
    let mut world = World::new();
    world.bend = without(&[3]);
    for number in 1..=3 {
        world.ask(&request(1, number, "a"), &[0, 1, 2]);
    }
    world.settle();
    world.assert_delivered(&[0, 1, 2], (1..=3).map(|number| key(1, number)).collect());
}

#[test]
fn a_request_said_to_two_honest_replicas_is_delivered_everywhere() {
    let mut world = World::new();
    world.ask(&request(1, 1, "a"), &[1, 2]);
    world.run_ms(1_000);
    world.assert_delivered(ALL, vec![key(1, 1)]);
}

#[test]
fn a_request_said_to_one_replica_stops_nobody() {
    let mut world = World::new();
    for at in [0, 3] {
        world.ask(&request(1, u64::from(at) + 1, "left"), &[at]);
    }
    world.ask_all(&request(2, 1, "b"));
    world.run_ms(5_000);
    world.assert_delivered(ALL, vec![key(2, 1)]);
    assert_eq!(world.node(1).replica().status().entered, 0, "no leader is blamed for it");
}

#[test]
fn of_two_requests_of_one_name_one_is_delivered() {
    let mut world = World::new();
    world.ask(&request(1, 1, "a"), &[0, 1]);
    world.ask(&request(1, 1, "b"), &[2, 3]);
    world.ask_all(&request(1, 2, "c"));
    world.run_ms(3_000);
    world.assert_agreement(ALL);
    let keys: Vec<_> = world.delivered(0).iter().map(|entry| entry.key).collect();
    assert!(keys.iter().filter(|one| **one == key(1, 1)).count() <= 1);
    assert!(keys.contains(&key(1, 2)));
    world.ask_all(&request(1, 1, "b"));
    world.run_ms(3_000);
    assert!(world.delivered(0).iter().filter(|entry| entry.key == key(1, 1)).count() <= 1);
}

#[test]
fn nobody_speaks_in_a_clients_name() {
    let mut world = World::new();
    let of = |index, payload| Request { key: RequestKey { client: name_of(replica(index)), ..key(1, 1) }, ..request(1, 1, payload) };
    for to in 0..4 {
        world.inject(key(2, 1).origin(), to, &Message::Request(request(1, 1, "forged")));
        world.inject(key(2, 1).origin(), to, &Message::Request(of(1, "forged")));
        world.inject(party(0), to, &Message::Request(of(1, "forged")));
    }
    world.run_ms(1_000);
    world.assert_delivered(ALL, vec![]);
    // A replica in its own name is heard like any client.
    let own = of(1, "its own");
    world.ask_all(&own);
    world.run_ms(1_000);
    world.assert_delivered(ALL, vec![own.key]);
}

#[test]
fn one_replicas_word_makes_no_request() {
    let mut world = World::new();
    let forged = request(1, 1, "forged");
    for to in 1..4 {
        world.inject(super::world::party(0), to, &Message::Vouch(vec![forged.id(super::world::CLUSTER)]));
    }
    world.settle();
    // Not even that of the leader, who proposes it.
    let ids = vec![forged.id(super::world::CLUSTER)];
    for to in 1..4 {
        world.inject(super::world::party(0), to, &Message::Propose { view: 0, sequence: 1, ids: ids.clone() });
        world.inject(super::world::party(0), to, &Message::Requests(vec![forged.clone()]));
        world.inject(super::world::party(0), to, &Message::List { sequence: 1, requests: vec![forged.clone()] });
    }
    world.run_ms(3_000);
    world.assert_delivered(&[1, 2, 3], vec![]);
}

/// The leader proposes three requests at once, each of which two other replicas have, so that none of these believes all three.
#[test]
fn replicas_that_believe_parts_of_a_list_tell_each_other_which() {
    let mut world = World::new();
    let told = Rc::new(RefCell::new(BTreeMap::new()));
    let heard = Rc::clone(&told);
    world.bend = Box::new(move |from, to, message| match &message {
        Message::Vouch(ids) if to != party(0) => {
            heard.borrow_mut().insert((from, to), ids.len());
            vec![message]
        }
        Message::Propose { .. } if from == party(0) => Vec::new(),
        _ => vec![message],
    });
    // Of the ticks every second one says again what is vouched for: two are over.
    world.run_ms(1_005);
    let requests: Vec<_> = (1..=3).map(|number| request(number, 1, "payload")).collect();
    for (request, to) in requests.iter().zip([[1, 2], [2, 3], [1, 3]]) {
        world.ask(request, &to);
    }
    world.settle();
    let ids: Vec<_> = requests.iter().map(|request| request.id(CLUSTER)).collect();
    (1..=3).for_each(|to| world.inject(party(0), to, &Message::Propose { view: 0, sequence: 1, ids: ids.clone() }));
    // The third tick.
    world.run_ms(60);
    assert_eq!((told.borrow().len(), told.borrow().values().all(|count| *count == 2)), (6, true), "{told:?}");
    world.run_ms(200);
    world.assert_delivered(&[1, 2, 3], requests.iter().map(|request| request.key).collect());
}

/// Three requests that are due, and together longer than a list may be, in one list of the leader's.
#[test]
fn a_list_that_could_not_be_read_back_is_nobodys() {
    let mut world = World::new();
    world.crash(0);
    let payload = "x".repeat(960 << 10);
    let requests: Vec<Request> = (1..=3).map(|client| request(client, 1, &payload)).collect();
    requests.iter().for_each(|request| world.ask(request, &[1, 2, 3]));
    world.settle();
    let ids = requests.iter().map(|request| request.id(CLUSTER)).collect();
    let list = Message::Propose { view: 0, sequence: 1, ids };
    (1..=3).for_each(|to| world.inject(party(0), to, &list));
    world.settle();
    assert_eq!(world.delivered(1), []);
    world.run_ms(5_000);
    (1..=3).for_each(|index| world.crash(index));
    (1..=3).for_each(|index| world.start(index));
    world.run_ms(1_000);
    world.assert_delivered(&[1, 2, 3], requests.iter().map(|request| request.key).collect());
}

#[test]
fn who_says_again_and_again_how_far_it_is_is_told_once_a_tick_what_it_lacks() {
    let mut world = World::new();
    let told = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&told);
    world.bend = Box::new(move |from, to, message| {
        *counted.borrow_mut() += usize::from(from == party(1) && to == party(3) && matches!(message, Message::Commit(_)));
        if to == party(3) { Vec::new() } else { vec![message] }
    });
    (1..=3).for_each(|number| world.ask(&request(1, number, "a"), &[0, 1, 2]));
    world.settle();
    let told_of = |world: &mut World, times: usize| {
        *told.borrow_mut() = 0;
        let behind = Message::Status(Status { entered: 0, stable: 0, delivered: 0 });
        (0..times).for_each(|_| world.inject(party(3), 1, &behind));
        world.settle();
        *told.borrow()
    };
    let once = told_of(&mut world, 1);
    assert!(once > 0);
    world.now = world.now.after_ms(TICK_MS);
    assert_eq!((told_of(&mut world, 50), told_of(&mut world, 50)), (once, 0));
}
