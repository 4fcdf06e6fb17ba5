//! Replicas that lose their disks: they come back, and contradict nothing that they said before.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::super::message::{Claim, Unsigned, ViewChange};
use super::super::{Message, Options};
use super::world::{CLUSTER, FAST, World, key, party, replica, request, whole};

const ALL: &[u16] = &[0, 1, 2, 3];

fn ask(world: &mut World, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        world.ask_all(&request(1, number, "some bytes to be kept"));
        world.settle();
    }
}

/// Everything that replica 1 says to 2 is written down.
fn overhear(world: &mut World) -> Rc<RefCell<Vec<Message>>> {
    let said = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&said);
    world.bend = Box::new(move |from, to, message| {
        if from == party(1) && to == party(2) {
            heard.borrow_mut().push(message.clone());
        }
        vec![message]
    });
    said
}

fn prepares(said: &Rc<RefCell<Vec<Message>>>) -> Vec<Claim> {
    said.borrow().iter().filter_map(|message| if let Message::Prepare(claim) = message { Some(*claim) } else { None }).collect()
}

#[test]
fn a_replica_that_lost_its_disk_is_whole_again_while_the_others_go_on() {
    for lost in 0..4 {
        let mut world = World::new();
        ask(&mut world, 1..=30);
        world.lose_disk(lost);
        ask(&mut world, 31..=60);
        world.run_ms(20_000);
        assert!(!world.node(lost).replica().is_rebuilding(), "{lost}: {:?}", world.node(lost).replica().unsettled());
        ask(&mut world, 61..=70);
        world.run_ms(3_000);
        world.assert_delivered(ALL, (1..=70).map(|number| key(1, number)).collect());
        // It counts like any other: now another may be gone.
        let gone = (lost + 1) % 4;
        world.crash(gone);
        for number in 71..=75 {
            world.ask_all(&request(1, number, "more"));
        }
        world.run_ms(5_000);
        let left: Vec<u16> = ALL.iter().copied().filter(|index| *index != gone).collect();
        world.assert_delivered(&left, (1..=75).map(|number| key(1, number)).collect());
    }
}

#[test]
fn where_no_client_asks_anything_it_is_whole_again_all_the_same() {
    let mut world = World::new();
    ask(&mut world, 1..=5);
    world.lose_disk(2);
    world.run_ms(5_000);
    assert!(!world.node(2).replica().is_rebuilding());
    let lists = world.node(0).replica().status().delivered;
    world.run_ms(20_000);
    assert_eq!(world.node(0).replica().status().delivered, lists, "nobody asks for empty lists any more");
    world.assert_delivered(ALL, (1..=5).map(|number| key(1, number)).collect());
}

#[test]
fn a_list_that_it_may_have_accepted_is_not_voted_on() {
    let mut world = World::new();
    let said = overhear(&mut world);
    let (a, b) = (request(1, 1, "a"), request(2, 1, "b"));
    world.ask(&a, &[1, 2, 3]);
    world.settle();
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 1, ids: vec![a.id(CLUSTER)] });
    world.settle();
    assert_eq!(prepares(&said).len(), 1);
    world.lose_disk(1);
    world.ask(&a, &[1, 2, 3]);
    world.ask(&b, &[1, 2, 3]);
    world.settle();
    world.inject(party(0), 1, &Message::Propose { view: 0, sequence: 1, ids: vec![b.id(CLUSTER)] });
    world.settle();
    assert_eq!(prepares(&said).len(), 1, "it has forgotten which list it accepted");
}

#[test]
fn it_takes_part_above_every_number_that_it_may_have_used() {
    let mut world = World::new();
    ask(&mut world, 1..=10);
    let bound = world.node(0).replica().status().delivered + 2 * FAST.checkpoint_interval;
    // Asked once, the others answer and propose few empty lists.
    let mut asked = BTreeSet::new();
    world.bend = Box::new(move |_, to, message| {
        let is_again = matches!(message, Message::FetchReached(_)) && !asked.insert(to);
        if is_again { Vec::new() } else { vec![message] }
    });
    world.lose_disk(1);
    world.run_ms(1_000);
    let mut number = 11;
    while world.node(0).replica().status().delivered < bound {
        assert!(world.node(1).replica().is_rebuilding(), "it may have used {bound}");
        ask(&mut world, number..=number);
        world.run_ms(1_000);
        number += 1;
    }
    ask(&mut world, number..=number + FAST.checkpoint_interval);
    world.run_ms(1_000);
    assert!(!world.node(1).replica().is_rebuilding());
}

#[test]
fn it_takes_part_in_no_view_that_it_may_have_left() {
    let mut world = World::new();
    ask(&mut world, 1..=10);
    // Replica 1 leaves view 0 alone, and nobody else does.
    let statement = ViewChange { signer: replica(3), view: 1, stable: None, prepared: Vec::new(), accepted: Vec::new() };
    let votes = [3, 2].map(|index| world.signed(index, Unsigned::ViewChange(ViewChange { signer: replica(index), ..statement.clone() })));
    for (from, vote) in [3, 2].into_iter().zip(votes) {
        world.inject(party(from), 1, &vote);
    }
    world.settle();
    assert_eq!(world.node(1).replica().leader(), 1, "it is on its way to view 1");
    let said = overhear(&mut world);
    world.lose_disk(1);
    ask(&mut world, 11..=60);
    world.run_ms(5_000);
    assert!(!world.node(1).replica().is_rebuilding());
    ask(&mut world, 61..=70);
    world.run_ms(500);
    let claims = prepares(&said);
    assert!(claims.iter().all(|claim| claim.view > 0), "it had left view 0: {claims:?}");
}

#[test]
fn one_answer_is_not_enough() {
    let mut world = World::new();
    ask(&mut world, 1..=10);
    world.bend = Box::new(|from, to, message| {
        let is_answer = matches!(message, Message::Reached { .. }) && to == party(1) && from != party(3);
        if is_answer { Vec::new() } else { vec![message] }
    });
    world.lose_disk(1);
    ask(&mut world, 11..=40);
    world.run_ms(10_000);
    assert!(world.node(1).replica().is_rebuilding(), "only one has answered");
    world.bend = whole();
    world.run_ms(10_000);
    assert!(!world.node(1).replica().is_rebuilding());
}

#[test]
fn an_answer_to_another_question_does_not_count() {
    let mut world = World::new();
    ask(&mut world, 1..=10);
    world.bend = Box::new(|_, _, message| if matches!(message, Message::Reached { .. }) { Vec::new() } else { vec![message] });
    world.lose_disk(1);
    for index in [0, 2, 3] {
        world.inject(party(index), 1, &Message::Reached { question: 1, view: 0, delivered: 0 });
    }
    ask(&mut world, 11..=40);
    world.run_ms(10_000);
    assert!(world.node(1).replica().is_rebuilding(), "these were answers to a process before it");
}

#[test]
fn a_crash_on_the_way_back_does_not_end_it() {
    let mut world = World::with(Options { journal_bytes_max: 1, ..FAST });
    ask(&mut world, 1..=20);
    world.bend = Box::new(|_, _, message| if matches!(message, Message::Reached { .. }) { Vec::new() } else { vec![message] });
    world.lose_disk(1);
    ask(&mut world, 21..=60);
    world.run_ms(5_000);
    let reached = world.node(1).replica().status();
    assert!(reached.stable >= 20, "it has taken over a state, and written it: {reached:?}");
    world.crash(1);
    world.start(1);
    assert!(world.node(1).replica().is_rebuilding());
    world.bend = whole();
    world.run_ms(10_000);
    assert!(!world.node(1).replica().is_rebuilding());
    world.crash(1);
    world.start(1);
    assert!(!world.node(1).replica().is_rebuilding(), "that it takes part again is on its disk");
}

/// Empty lists are accepted one a tick, so that a leader keeps nobody busy with them.
#[test]
fn a_leader_that_proposes_nothing_again_and_again_is_followed_slowly() {
    let mut world = World::new();
    world.run_ms(10);
    let said = overhear(&mut world);
    for sequence in 1..=8 {
        world.inject(party(0), 1, &Message::Propose { view: 0, sequence, ids: Vec::new() });
    }
    world.settle();
    assert_eq!(prepares(&said).len(), 1);
    world.run_ms(120);
    let claims: std::collections::BTreeSet<Claim> = prepares(&said).into_iter().collect();
    assert_eq!(claims.len(), 3, "50 ms are a tick");
}
