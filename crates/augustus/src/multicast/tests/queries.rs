//! Questions that are answered without being ordered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use types::codec::Encode as _;

use super::super::Message;
use super::world::{World, key, party, request, whole};

/// Client 2 asks all replicas how much they have delivered. Gives what each has answered.
fn ask(world: &mut World, number: u64) -> BTreeMap<u16, Option<u64>> {
    let message = Message::Query { number, question: Bytes::new() };
    (0..4).for_each(|index| world.inject(key(2, 1).origin(), index, &message));
    world.settle();
    answers(world, number)
}

fn answers(world: &World, number: u64) -> BTreeMap<u16, Option<u64>> {
    let read = |answer: &Bytes| u64::from_le_bytes(*answer.first_chunk().expect("a number"));
    let found = world.found.get(&number).cloned().unwrap_or_default();
    found.into_iter().map(|(index, answer)| (index, answer.as_ref().map(read))).collect()
}

fn all(count: u64) -> BTreeMap<u16, Option<u64>> {
    (0..4).map(|index| (index, Some(count))).collect()
}

/// One replica alone has delivered and answered, as the acknowledgement of `f+1` may rest on one honest replica: what the others say then
/// must not be older.
#[test]
fn who_has_prepared_something_answers_when_it_is_delivered() {
    let mut world = World::new();
    assert_eq!(ask(&mut world, 1), all(0));
    world.bend = Box::new(|_, to, message| match &message {
        Message::Commit(_) if to != party(0) => Vec::new(),
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    assert_eq!((world.delivered(0).len(), world.delivered(1).len()), (1, 0));
    assert_eq!(ask(&mut world, 2), [(0, Some(1))].into(), "the others have prepared it");
    // What they have prepared they know after a restart, too.
    (1..4).for_each(|index| world.crash(index));
    (1..4).for_each(|index| world.start(index));
    assert_eq!(ask(&mut world, 3), [(0, Some(1))].into());
    world.bend = whole();
    world.run_ms(1_000);
    assert_eq!(answers(&world, 3), all(1));
}

#[test]
fn who_lost_its_disk_answers_no_question_before_it_takes_part() {
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.run_ms(100);
    world.lose_disk(1);
    assert_eq!(ask(&mut world, 1).get(&1), Some(&None));
    (2..=20).for_each(|number| world.ask_all(&request(1, number, "a")));
    world.run_ms(20_000);
    assert_eq!(ask(&mut world, 2), all(20));
}

#[test]
fn a_stranger_is_not_answered_and_what_is_too_long_neither() {
    let mut world = World::new();
    let message = Message::Query { number: 1, question: Bytes::new() };
    world.inject(key(9, 1).origin(), 0, &message);
    world.inject(party(1), 0, &message);
    world.settle();
    assert!(world.found.is_empty());
    let long = Message::Query { number: 1, question: vec![0; super::super::message::QUESTION_BYTES_MAX + 1].into() };
    assert!(<Message as types::codec::Decode>::from_bytes(long.to_bytes().into(), super::world::CLUSTER).is_err());
}

#[test]
fn what_waited_is_answered_turn_by_turn() {
    let mut world = World::new();
    // The votes that would have replica 1 deliver are kept back.
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    world.bend = Box::new(move |from, to, message| match &message {
        Message::Commit(_) if to == party(1) => {
            keep.borrow_mut().push((from, message));
            Vec::new()
        }
        _ => vec![message],
    });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    for client in 1..=4 {
        for number in 0..200 {
            let message = Message::Query { number: client * 1_000 + number, question: Bytes::new() };
            world.inject(key(client, 1).origin(), 1, &message);
        }
    }
    world.settle();
    assert!(world.found.is_empty(), "they wait");
    for (from, message) in kept.take() {
        world.inject(from, 1, &message);
    }
    world.settle();
    // Two turns at most: that of the last vote that was needed, and that of the one after it.
    let answered = world.found.len();
    assert!(answered == 256 || answered == 512, "{answered} at once");
    world.run_ms(1);
    assert_eq!(world.found.len(), 800, "nobody waits for more than its turn");
}
