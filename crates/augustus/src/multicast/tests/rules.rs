//! Single replicas that are shown lies: what they say, and what they do not.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;

use super::super::Message;
use super::super::message::{Claim, NewView, Unsigned, ViewChange};
use super::super::request::list_digest;
use super::world::{CLUSTER, World, key, party, replica, request, whole, without};

/// Has a world in which everything that replica 1 says is written down, and nothing of 0, the leader, arrives but what a script injects.
fn overheard() -> (World, Rc<RefCell<Vec<Message>>>) {
    let mut world = World::new();
    let said = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&said);
    world.bend = Box::new(move |from, to, message| {
        if from == party(1) && to == party(2) {
            heard.borrow_mut().push(message.clone());
        }
        let is_leaders = from == party(0) && matches!(message, Message::Propose { .. } | Message::Status(_));
        if is_leaders { Vec::new() } else { vec![message] }
    });
    (world, said)
}

fn prepares(said: &Rc<RefCell<Vec<Message>>>) -> Vec<Claim> {
    said.borrow().iter().filter_map(|message| if let Message::Prepare(claim) = message { Some(*claim) } else { None }).collect()
}

#[test]
fn a_replica_accepts_one_list_a_number() {
    let (mut world, said) = overheard();
    let (a, b) = (request(1, 1, "a"), request(2, 1, "b"));
    world.ask_all(&a);
    world.ask_all(&b);
    world.settle();
    for request in [&a, &b, &a] {
        world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 1, ids: vec![request.id(CLUSTER)] });
    }
    world.settle();
    let claims = prepares(&said);
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(claims[0].digest, list_digest(CLUSTER, &[a.id(CLUSTER)]));
}

/// It is told that another list was decided, and must not vote for that one in the same view, not even after a restart.
#[test]
fn a_replica_that_accepted_another_list_than_the_one_decided_does_not_vote_again() {
    let (mut world, said) = overheard();
    let (a, b) = (request(1, 1, "a"), request(2, 1, "b"));
    world.ask_all(&a);
    world.ask_all(&b);
    world.settle();
    let propose = |request: &super::super::Request| Message::Propose { view: 0, sequence: 1, ids: vec![request.id(CLUSTER)] };
    let digest = list_digest(CLUSTER, &[b.id(CLUSTER)]);
    world.inject(party(0), 1, &propose(&a));
    world.inject(party(2), 1, &Message::Decided { sequence: 1, digest });
    world.inject(party(3), 1, &Message::Decided { sequence: 1, digest });
    world.inject(party(2), 1, &Message::List { sequence: 1, requests: vec![b.clone()] });
    world.inject(party(0), 1, &propose(&b));
    world.settle();
    assert_eq!((prepares(&said).len(), world.delivered(1)[0].key), (1, key(2, 1)));
    world.run_ms(100);
    world.crash(1);
    world.start(1);
    world.inject(party(0), 1, &propose(&b));
    world.settle();
    let claims = prepares(&said);
    assert!(claims.iter().all(|claim| claim.digest == list_digest(CLUSTER, &[a.id(CLUSTER)])), "{claims:?}");
}

#[test]
fn a_replica_accepts_nothing_twice() {
    let (mut world, said) = overheard();
    let a = request(1, 1, "a");
    world.ask_all(&a);
    world.settle();
    let ids = vec![a.id(CLUSTER)];
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 1, ids: ids.clone() });
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 2, ids: ids.clone() });
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 3, ids: [&ids[..], &ids[..]].concat() });
    world.settle();
    assert_eq!(prepares(&said).iter().map(|claim| claim.sequence).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_replica_accepts_only_what_its_leader_proposes_within_the_window() {
    let (mut world, said) = overheard();
    let ids: Vec<_> = (1..=4).map(|number| request(1, number, "a")).collect();
    ids.iter().for_each(|request| world.ask_all(request));
    world.settle();
    let ids: Vec<_> = ids.iter().map(|request| vec![request.id(CLUSTER)]).collect();
    world.inject(party(2), 1, &Message::Propose { view: 0, sequence: 1, ids: ids[0].clone() });
    world.inject(party(1), 1, &Message::Propose { view: 1, sequence: 1, ids: ids[0].clone() });
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 0, ids: ids[1].clone() });
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 9, ids: ids[2].clone() });
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 8, ids: ids[3].clone() });
    world.settle();
    assert_eq!(prepares(&said).iter().map(|claim| claim.sequence).collect::<Vec<_>>(), [8], "two intervals of four are the window");
}

#[test]
fn two_commits_decide_nothing() {
    let mut world = World::new();
    world.bend = Box::new(|from, to, message| match &message {
        Message::Commit(_) if from != party(1) || to != party(2) => Vec::new(),
        Message::Status(_) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    assert_eq!(world.delivered(2).len(), 0);
}

#[test]
fn one_replica_that_calls_a_list_decided_is_not_believed() {
    let mut world = World::new();
    world.bend = Box::new(|from, _, message| match &message {
        Message::List { .. } if from != party(3) => Vec::new(),
        _ => vec![message],
    });
    let forged = request(1, 1, "forged");
    let digest = list_digest(CLUSTER, &[forged.id(CLUSTER)]);
    world.inject(party(3), 1, &Message::Decided { sequence: 1, digest });
    world.inject(party(3), 1, &Message::List { sequence: 1, requests: vec![forged] });
    world.run_ms(500);
    assert_eq!(world.delivered(1).len(), 0);
}

#[test]
fn a_list_that_was_fetched_is_checked() {
    let mut world = World::new();
    // 3 hears nothing of clients, and of lists only what 0 makes of them.
    world.bend = Box::new(|from, to, message| match message {
        Message::Vouch(_) if to == party(3) => Vec::new(),
        Message::List { sequence, mut requests } if from == party(0) && to == party(3) => {
            requests.iter_mut().for_each(|request| request.payload = Bytes::from_static(b"other"));
            vec![Message::List { sequence, requests }]
        }
        Message::List { .. } if to == party(3) => Vec::new(),
        other => vec![other],
    });
    world.ask(&request(1, 1, "a"), &[0, 1, 2]);
    world.run_ms(1_000);
    assert_eq!((world.delivered(0).len(), world.delivered(3).len()), (1, 0));
    world.bend = whole();
    world.run_ms(1_000);
    world.assert_delivered(&[0, 1, 2, 3], vec![key(1, 1)]);
}

fn view_change(world: &World, index: u16, view: u64) -> Message {
    let statement = ViewChange { signer: replica(index), view, stable: None, prepared: Vec::new(), accepted: Vec::new() };
    world.signed(index, Unsigned::ViewChange(statement))
}

#[test]
fn two_that_leave_a_view_are_followed_and_one_is_not() {
    let mut world = World::new();
    world.bend = without(&[0, 1, 2, 3]);
    let lie = view_change(&world, 3, 2);
    world.inject(party(3), 1, &lie);
    world.settle();
    assert_eq!(world.node(1).replica().leader(), 0);
    let other = view_change(&world, 2, 2);
    world.inject(party(2), 1, &other);
    world.settle();
    assert_eq!(world.node(1).replica().leader(), 2);
}

#[test]
fn a_leader_that_leaves_its_view_is_followed_though_nobody_asks_for_anything() {
    let mut world = World::new();
    world.bend = without(&[0, 1, 2, 3]);
    let left = view_change(&world, 0, 3);
    world.inject(party(0), 2, &left);
    world.settle();
    assert_eq!(world.node(2).replica().leader(), 1, "to the next view, whichever that leader likes");
}

#[test]
fn what_another_said_long_ago_has_nothing_sent_to_it() {
    let mut world = World::new();
    world.crash(0);
    world.ask(&request(1, 1, "a"), &[1, 2, 3]);
    world.run_ms(3_000);
    assert_eq!(world.node(1).replica().status().entered, 1);
    let shown = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&shown);
    world.bend = Box::new(move |from, to, message| {
        *counted.borrow_mut() += usize::from(from == party(1) && to == party(2) && matches!(message, Message::NewView(..)));
        vec![message]
    });
    let old = view_change(&world, 2, 1);
    (0..10).for_each(|_| world.inject(party(3), 1, &old));
    world.settle();
    assert_eq!(*shown.borrow(), 0);
    (0..10).for_each(|_| world.inject(party(2), 1, &old));
    world.settle();
    assert_eq!(*shown.borrow(), 1);
}

#[test]
fn a_view_that_was_left_is_not_entered_again_after_a_restart() {
    let mut world = World::new();
    world.bend = Box::new(|from, to, message| match &message {
        Message::NewView(..) => Vec::new(),
        _ if from == party(0) || to == party(0) => Vec::new(),
        _ => vec![message],
    });
    world.ask(&request(1, 1, "a"), &[1, 2, 3]);
    world.run_ms(600);
    assert_eq!((world.node(2).replica().leader(), world.node(2).replica().status().entered), (1, 0));
    world.crash(2);
    world.start(2);
    assert_eq!(world.node(2).replica().leader(), 1);
}

/// One replica delivers, then all lose power. The others prepared it, and must know that still when they leave the view.
#[test]
fn what_was_prepared_is_known_after_a_restart() {
    let mut world = World::new();
    world.bend = Box::new(|_, to, message| match &message {
        Message::Commit(_) if to != party(2) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    assert_eq!((world.delivered(1).len(), world.delivered(2).len()), (0, 1));
    world.crash_all();
    world.bend = Box::new(|from, to, message| match &message {
        Message::Prepare(claim) | Message::Commit(claim) if claim.view == 0 => Vec::new(),
        Message::Propose { view: 0, .. } => Vec::new(),
        _ if from == party(2) || to == party(2) => Vec::new(),
        _ => vec![message],
    });
    world.ask(&request(2, 1, "b"), &[0, 1, 3]);
    world.run_ms(3_000);
    assert!(world.delivered(1).len() > 1);
    world.bend = whole();
    world.run_ms(3_000);
    world.assert_delivered(&[0, 1, 2, 3], vec![key(1, 1), key(2, 1)]);
}

/// The leader of view 1 lets 3 begin with what 3 alone prepared, and the others without it.
#[test]
fn two_beginnings_of_one_view_are_reconciled() {
    let mut world = World::new();
    let changes = Rc::new(RefCell::new(std::collections::BTreeMap::new()));
    let heard = Rc::clone(&changes);
    world.bend = Box::new(move |_, to, message| match &message {
        Message::Prepare(_) if to != party(3) => Vec::new(),
        Message::Commit(_) | Message::NewView(..) => Vec::new(),
        Message::ViewChange(vote, signature) if vote.view == 1 => {
            heard.borrow_mut().insert(vote.signer.index, (vote.clone(), signature.clone()));
            Vec::new()
        }
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.run_ms(700);
    let changes: Vec<_> = changes.borrow().values().cloned().collect();
    assert_eq!(changes.len(), 4);
    assert_eq!(changes.iter().map(|(vote, _)| vote.prepared.len()).collect::<Vec<_>>(), [0, 0, 0, 1]);
    world.crash(1);
    let begin = |votes: &[usize]| {
        let votes = votes.iter().map(|at| changes[*at].clone()).collect();
        world.signed(1, Unsigned::NewView(NewView { signer: replica(1), view: 1, votes }))
    };
    let (without_it, with_it) = (begin(&[0, 1, 2]), begin(&[0, 1, 3]));
    world.inject(party(1), 0, &without_it);
    world.inject(party(1), 2, &without_it);
    world.inject(party(1), 3, &with_it);
    world.bend = whole();
    world.ask(&request(2, 1, "b"), &[0, 2, 3]);
    world.run_ms(10_000);
    world.assert_delivered(&[0, 2, 3], vec![key(1, 1), key(2, 1)]);
}

/// Replica 3 alone prepares a list in view 0. View 1 begins without it, which 3 does not hear; view 2, whose leader lies and then says nothing more, with
/// it, which the others hear when they have left it.
#[test]
fn what_an_earlier_view_showed_to_be_void_is_known_when_a_later_one_has_begun() {
    let mut world = World::new();
    let changes = Rc::new(RefCell::new(std::collections::BTreeMap::new()));
    let heard = Rc::clone(&changes);
    let arrive = Rc::new(RefCell::new(false));
    let arrives = Rc::clone(&arrive);
    world.bend = Box::new(move |from, to, message| match &message {
        Message::Prepare(_) if to != party(3) => Vec::new(),
        Message::Propose { .. } if from != party(0) => Vec::new(),
        Message::Commit(_) | Message::NewView(..) => Vec::new(),
        Message::ViewChange(vote, signature) => {
            heard.borrow_mut().insert((vote.view, vote.signer.index), (vote.clone(), signature.clone()));
            if *arrives.borrow() { vec![message] } else { Vec::new() }
        }
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.run_ms(700);
    let change = |view: u64, index: u16| changes.borrow().get(&(view, index)).expect("it has left for that view").clone();
    let begin = |world: &World, leader: u16, votes: Vec<_>| {
        world.signed(leader, Unsigned::NewView(NewView { signer: replica(leader), view: leader.into(), votes }))
    };
    let claim = change(1, 3).0.prepared[0];
    world.crash(2);
    // So that view 1's leader makes another list of it.
    world.ask(&request(2, 1, "b"), &[0, 1, 3]);
    world.settle();
    let first = begin(&world, 1, [0, 1, 2].map(|index| change(1, index)).into());
    [0, 1].into_iter().for_each(|to| world.inject(party(1), to, &first));
    world.settle();
    assert_eq!([0, 1, 3].map(|index| world.node(index).replica().status().entered), [1, 1, 0]);
    world.run_ms(3_000);
    let lie = ViewChange { signer: replica(2), view: 2, stable: None, prepared: Vec::new(), accepted: vec![claim] };
    let Message::ViewChange(lie, signature) = world.signed(2, Unsigned::ViewChange(lie)) else { panic!("it is one") };
    // Who was not shown how view 1 began goes on to view 2 when the others do.
    *arrive.borrow_mut() = true;
    world.run_ms(20_000);
    assert_eq!([0, 1, 3].map(|index| world.node(index).replica().status().entered), [1, 1, 0]);
    let second = begin(&world, 2, vec![change(2, 0), (lie, signature), change(2, 3)]);
    for index in [0, 1] {
        world.inject(party(2), index, &second);
        world.run_ms(300);
        world.crash(index);
        world.start(index);
    }
    assert_eq!([0, 1, 3].map(|index| world.node(index).replica().status().entered), [1, 1, 0], "they had left it");
    world.bend = whole();
    [(1, "a"), (2, "b"), (3, "c")].into_iter().for_each(|(client, payload)| world.ask(&request(client, 1, payload), &[0, 1, 3]));
    world.run_ms(60_000);
    world.assert_delivered(&[0, 1, 3], vec![key(1, 1), key(2, 1), key(3, 1)]);
}
