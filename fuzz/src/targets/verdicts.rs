//! Verdicts: messages of every kind, in any order and any frames. What a verifier remembers changes none of them.

use basil::Message;
use types::codec::{Decode, Encode};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLUSTER, fixture};
use crate::generators;
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "verdicts",
    what: "judges messages one by one and in frames, with a memory that is small, fresh or full: always alike",
    bytes_max: 512,
    runs: 250,
    run,
    seeds,
};

/// The most messages in one input.
const MESSAGES_MAX: usize = 16;

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let small = fixture().stranger(0);
    let mut messages = Vec::new();
    while !choices.is_done() && messages.len() < MESSAGES_MAX {
        let message = if choices.rarely(4) && !messages.is_empty() {
            Message::clone(&messages[choices.below(messages.len())])
        } else {
            generators::message(&mut choices)
        };
        messages.push(message);
    }
    let expected: Vec<bool> = messages.iter().map(|message| reference::accepts(&fixture().cluster, message)).collect();
    let frame = 1 + choices.below(messages.len());
    let mut judged = Vec::with_capacity(messages.len());
    for (part, frame) in messages.chunks(frame).enumerate() {
        if part % 2 == 0 {
            judged.extend(small.verify_all(frame.to_vec()).into_iter().map(|judged| judged.map(|_| ())));
        } else {
            judged.extend(frame.iter().map(|message| small.verify(message.clone()).map(|_| ())));
        }
    }
    for ((message, judged), expected) in messages.iter().zip(&judged).zip(expected) {
        assert_eq!(judged.is_ok(), expected, "{judged:?} for {message:?}");
        if generators::is_writable(message) {
            let received = Message::from_bytes(message.to_bytes().into(), CLUSTER).expect("what can be written can be read");
            assert_eq!(received, *message);
        }
    }
    // Once more, backwards, all known by now or forgotten again: the same, down to the reason.
    for (message, judged) in messages.iter().zip(&judged).rev() {
        assert_eq!(small.verify(message.clone()).map(|_| ()), *judged, "{message:?}");
    }
    let fresh = fixture().stranger(1_000);
    let all: Vec<_> = fresh.verify_all(messages).into_iter().map(|judged| judged.map(|_| ())).collect();
    assert_eq!(all, judged);
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0, 3, 0, 3, 0, 0, 1, 0, 0, 3, 2, 0, 0, 0, 0, 0, 4, 0, 0, 0],
        vec![0, 0, 5, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1, 3, 2, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0],
        vec![0, 1, 4, 0, 0, 0, 0, 1, 4, 1, 1, 0, 0, 200, 2, 3, 0, 3, 0, 0, 1, 0, 1, 0, 1, 3, 2, 0],
        vec![0, 0, 8, 4, 3, 1, 0, 0, 0, 0, 0, 0, 9, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 255, 5, 6, 1, 3, 1],
    ]
}
