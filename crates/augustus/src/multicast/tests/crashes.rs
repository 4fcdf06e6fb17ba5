//! What was said is on disk before.

use super::super::Message;
use super::world::{World, key, request, whole, without};

const ALL: &[u16] = &[0, 1, 2, 3];

/// Power goes at every point of a run: after each message, for all at once.
#[test]
fn what_was_answered_survives_the_end_of_all() {
    for messages in 0..140 {
        let mut world = World::new();
        for number in 1..=6 {
            world.ask_all(&request(1, number, "a"));
            world.ask_all(&request(2, number, "b"));
        }
        world.settle_some(messages);
        let answered: Vec<_> =
            (1..=6).flat_map(|number| [key(1, number), key(2, number)]).filter_map(|key| Some((key, world.answer(&key)?))).collect();
        let before: Vec<_> = ALL.iter().map(|index| world.delivered(*index)).collect();
        world.crash_all();
        world.run_ms(3_000);
        for index in ALL {
            let after = world.delivered(*index);
            let before = &before[usize::from(*index)];
            assert!(after.len() >= before.len() && after[..before.len()] == before[..], "after {messages} messages {index} forgets");
        }
        for (key, answer) in answered {
            world.answers.clear();
            world.ask_all(&request(key.client.0, key.number, if key.client.0 == 1 { "a" } else { "b" }));
            world.run_ms(1_000);
            assert_eq!(world.answer(&key), Some(answer), "after {messages} messages");
        }
        world.assert_agreement(ALL);
    }
}

/// A replica that lost power in a view change says the same afterwards, and no replica takes part again in a view that it has left.
#[test]
fn a_view_that_was_left_stays_left() {
    let mut world = World::new();
    world.bend = without(&[0]);
    world.ask(&request(1, 1, "a"), &[1, 2, 3]);
    world.run_ms(600);
    assert_eq!(world.node(1).replica().status().entered, 1);
    for index in 1..4 {
        world.crash(index);
        world.start(index);
    }
    assert_eq!(world.node(1).replica().leader(), 1);
    world.run_ms(2_000);
    world.ask(&request(1, 2, "b"), &[1, 2, 3]);
    world.run_ms(2_000);
    world.assert_delivered(&[1, 2, 3], vec![key(1, 1), key(1, 2)]);
}

/// They have accepted a list and heard of no vote but their own when they are started anew. One is away, so that the leader's is needed, and nobody asks again.
#[test]
fn a_leader_s_vote_is_heard_again_by_who_was_started_anew() {
    let mut world = World::new();
    world.bend = Box::new(|_, _, message| if matches!(message, Message::Prepare(_)) { Vec::new() } else { vec![message] });
    world.ask_all(&request(1, 1, "a"));
    world.settle();
    world.bend = whole();
    world.crash(3);
    for index in [1, 2] {
        world.crash(index);
        world.start(index);
    }
    world.run_ms(300);
    world.assert_delivered(&[0, 1, 2], vec![key(1, 1)]);
    assert_eq!(world.node(1).replica().status().entered, 0, "its leader is left alone");
}

/// A snapshot larger than one write may be cut short. What the next process writes is not a part of it.
#[test]
fn what_follows_a_snapshot_that_was_cut_short_is_kept() {
    let mut world = World::new();
    world.ask_all(&request(1, 1, "a"));
    world.run_ms(200);
    world.cut_snapshot(1);
    world.ask_all(&request(1, 2, "b"));
    world.run_ms(200);
    world.assert_delivered(ALL, vec![key(1, 1), key(1, 2)]);
    world.crash(1);
    world.start(1);
    assert_eq!(world.node(1).replica().slots[&2].prepared, Some(0), "it would tell nobody that it has prepared the second list");
}

/// The journal is written anew again and again, and stays small.
#[test]
fn the_journal_stays_small_and_replays_to_the_same() {
    let mut world = World::with(super::super::Options { journal_bytes_max: 4_096, ..super::world::FAST });
    for number in 1..=400 {
        world.ask_all(&request(1, number, "some bytes to be kept"));
        world.settle();
    }
    let keys: Vec<_> = (1..=400).map(|number| key(1, number)).collect();
    world.assert_delivered(ALL, keys);
    // What silent turns wrote is durable soon after.
    world.run_ms(100);
    assert!(ALL.iter().all(|index| world.node(*index).journal_bytes() < 64 << 10));
    let before: Vec<_> =
        ALL.iter().map(|index| (world.node(*index).replica().status(), world.node(*index).replica().last_checkpoint())).collect();
    world.crash_all();
    let after: Vec<_> =
        ALL.iter().map(|index| (world.node(*index).replica().status(), world.node(*index).replica().last_checkpoint())).collect();
    assert_eq!(before, after);
    for number in 401..=420 {
        world.ask_all(&request(1, number, "some more"));
    }
    world.run_ms(2_000);
    world.assert_delivered(ALL, (1..=420).map(|number| key(1, number)).collect());
}
