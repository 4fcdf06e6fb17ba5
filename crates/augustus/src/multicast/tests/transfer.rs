//! Who fell behind takes over a state.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use super::super::{Message, Options};
use super::world::{FAST, World, key, party, request, whole, without};

const ALL: &[u16] = &[0, 1, 2, 3];

fn behind(world: &mut World, requests: u64) {
    world.bend = without(&[3]);
    for number in 1..=requests {
        world.ask(&request(1, number, "a"), &[0, 1, 2]);
        world.settle();
    }
    assert_eq!(world.delivered(3).len(), 0);
}

#[test]
fn a_replica_that_was_away_catches_up() {
    let mut world = World::new();
    behind(&mut world, 203);
    world.bend = whole();
    world.run_ms(5_000);
    world.assert_delivered(ALL, (1..=203).map(|number| key(1, number)).collect());
    // And is a full part of the shard again, also after a crash.
    world.crash(3);
    world.start(3);
    world.crash(2);
    world.ask(&request(1, 204, "b"), &[0, 1, 3]);
    world.run_ms(3_000);
    world.assert_delivered(&[0, 1, 3], (1..=204).map(|number| key(1, number)).collect());
}

#[test]
fn a_replica_that_was_away_catches_up_though_checkpoints_keep_coming() {
    let mut world = World::with(Options { checkpoint_interval: 1, ..FAST });
    behind(&mut world, 20);
    world.bend = whole();
    for number in 21..=60 {
        world.ask_all(&request(1, number, "a"));
        world.run_ms(50);
    }
    assert!(world.delivered(3).len() > 40, "{:?}", world.node(3).replica().status());
}

#[test]
fn a_liars_pages_are_found_out() {
    let mut world = World::new();
    behind(&mut world, 203);
    world.bend = Box::new(|from, to, message| match message {
        Message::Page { sequence, index, bytes } if from == party(0) && to == party(3) => {
            let mut bytes = bytes.to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            vec![Message::Page { sequence, index, bytes: bytes.into() }]
        }
        Message::Head { sequence, .. } if from == party(1) && to == party(3) => {
            vec![Message::Head { sequence, head: Bytes::from_static(&[0; 8]) }]
        }
        other => vec![other],
    });
    world.run_ms(5_000);
    world.assert_delivered(ALL, (1..=203).map(|number| key(1, number)).collect());
}

/// A replica that lies sends pages and heads all the time, while the others' do not arrive.
#[test]
fn what_nobody_asked_for_has_nothing_asked_for() {
    let mut world = World::new();
    behind(&mut world, 203);
    let asked = Rc::new(Cell::new(0));
    let counted = Rc::clone(&asked);
    world.bend = Box::new(move |from, to, message| {
        counted.set(counted.get() + u32::from(from == party(3) && matches!(message, Message::FetchPage { .. } | Message::FetchHead(_))));
        if to == party(3) && matches!(message, Message::Page { .. }) { Vec::new() } else { vec![message] }
    });
    let sequence = world.node(1).replica().status().stable;
    for _ in 0..100 {
        for index in 0..8 {
            world.inject(party(0), 3, &Message::Page { sequence, index, bytes: Bytes::from_static(&[0; 8]) });
        }
        world.inject(party(0), 3, &Message::Head { sequence, head: Bytes::from_static(&[0; 8]) });
        world.run_ms(10);
    }
    assert!((1..=200).contains(&asked.get()), "{} times", asked.get());
    world.bend = whole();
    world.run_ms(5_000);
    world.assert_delivered(ALL, (1..=203).map(|number| key(1, number)).collect());
}

/// Others go on meanwhile, so that the state it asks for is gone before it has all of it.
#[test]
fn a_replica_catches_up_while_the_others_go_on() {
    let mut world = World::new();
    behind(&mut world, 100);
    world.bend = whole();
    for number in 101..=400 {
        world.ask_all(&request(1, number, "a"));
        world.run_ms(5);
    }
    world.run_ms(5_000);
    world.assert_delivered(ALL, (1..=400).map(|number| key(1, number)).collect());
}
