//! What a connection brings: frames cut out of a stream, and the greeting that opens it.

use basil::Message;
use bytes::{Buf, Bytes, BytesMut};
use runtime::Configuration;
use runtime::frame::{self, Frames, GREETING_BYTES_MAX, Greeting, HEADER_BYTES, REASON_BYTES_MAX, Role};
use types::Session;
use types::codec::{Decode, Encode};
use types::limits::FRAME_BYTES_MAX;

use crate::Target;
use crate::choices::Choices;
use crate::fixture::CLUSTER;
use crate::generators;

pub(super) const TARGET: Target = Target {
    name: "frames",
    what: "cuts frames of messages out of a stream that arrives in pieces; the first byte says in which",
    bytes_max: 8_192,
    runs: 20_000,
    run,
    seeds,
};

pub(super) const GREETING: Target = Target {
    name: "greeting",
    what: "reads a connection's first frame",
    bytes_max: 1_100,
    runs: 40_000,
    run: greeting,
    seeds: greeting_seeds,
};

fn run(bytes: &[u8]) {
    let Some((piece, stream)) = bytes.split_first() else { return };
    let mut whole = Vec::new();
    let all = cut(&mut BytesMut::from(stream), &mut whole);
    // However the stream is cut by the network, the same messages come out of it, and it ends the same way.
    let (mut buffer, mut pieces, mut cut_short) = (BytesMut::new(), Vec::new(), Ok(()));
    for piece in stream.chunks(usize::from(*piece) + 1) {
        buffer.extend_from_slice(piece);
        cut_short = cut(&mut buffer, &mut pieces);
        if cut_short.is_err() {
            break;
        }
    }
    assert_eq!(pieces, whole);
    assert_eq!(cut_short, all);
}

/// Takes complete frames out of `buffer`, as a connection's reader does.
fn cut(buffer: &mut BytesMut, messages: &mut Vec<Message>) -> Result<(), frame::FrameError> {
    while let Some(length) = frame::body_length(buffer, FRAME_BYTES_MAX)? {
        let Some(needed) = frame::room_needed(buffer)? else { break };
        assert!(length <= needed && needed <= FRAME_BYTES_MAX, "there is room for every frame");
        if buffer.len() < HEADER_BYTES + length {
            break;
        }
        let received = buffer.split_to(HEADER_BYTES + length).freeze();
        let mut of_frame: Vec<Message> = Vec::new();
        let mut body = received.clone();
        body.advance(HEADER_BYTES);
        let count = frame::decode_messages(body, CLUSTER, &mut of_frame)?.messages;
        assert_eq!(count, of_frame.len());
        // What says the same is the same frame.
        let mut again = Frames::default();
        if of_frame.is_empty() {
            again.add_heartbeat();
        }
        assert!(of_frame.iter().all(|message| again.add(message)), "what fitted into a frame fits again");
        assert_eq!(again.bytes(), received);
        messages.append(&mut of_frame);
    }
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let messages: Vec<Message> = (0..4).map(|kind| generators::request(&mut Choices::new(&[kind, 1, 0, 0, 2]))).collect();
    let mut frames = Frames::default();
    frames.add_heartbeat();
    assert!(messages.iter().all(|message| frames.add(message)), "small messages fit");
    let both = [&[6][..], frames.bytes(), frames.bytes()].concat();
    let answers: Vec<Message> = (3..7).map(|kind| generators::reply(&mut Choices::new(&[kind, 2]))).collect();
    frames.clear(0);
    assert!(answers.iter().all(|message| frames.add(message)), "small messages fit");
    let half = frames.bytes().len() - 1;
    // Votes of one batch, which leave out what they share.
    let votes: Vec<Message> = (0..6).map(|number| generators::reply(&mut Choices::new(&[0, number, 0, 1]))).collect();
    let mut shared = Frames::default();
    assert!(votes.iter().chain(&votes).all(|message| shared.add(message)), "small messages fit");
    assert!(shared.bytes()[HEADER_BYTES..][..4] != [0; 4], "something is left out");
    vec![both, [&[40][..], shared.bytes()].concat(), [&[255][..], frames.bytes()].concat(), [&[0][..], &frames.bytes()[..half]].concat()]
}

fn greeting(bytes: &[u8]) {
    let Ok(Some(length)) = frame::body_length(bytes, GREETING_BYTES_MAX) else { return };
    let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + length) else { return };
    let Ok(greeting) = Greeting::from_bytes(Bytes::copy_from_slice(body), CLUSTER) else { return };
    if let Greeting::Refused(reason) = &greeting {
        assert!(reason.len() <= 2 * REASON_BYTES_MAX && !reason.chars().any(char::is_control), "a reason is printed as it is");
    } else {
        assert_eq!(greeting.to_bytes(), body, "what is no text has one encoding");
    }
    // What was read can be said again, and then means the same.
    let frame = greeting.to_frame();
    assert!(frame.len() <= HEADER_BYTES + GREETING_BYTES_MAX);
    let again = Greeting::from_bytes(Bytes::copy_from_slice(&frame[HEADER_BYTES..]), CLUSTER).expect("what was read can be said");
    assert!(again == greeting || matches!(again, Greeting::Refused(_)));
}

/// As good as any.
fn configuration() -> Configuration {
    Configuration::from_text(&"07".repeat(56)).expect("three parts of 16 bytes, and a version of 8")
}

fn greeting_seeds() -> Vec<Vec<u8>> {
    [
        Greeting::Hello { cluster: CLUSTER, configuration: configuration(), role: Role::Replica },
        Greeting::Hello { cluster: CLUSTER, configuration: configuration(), role: Role::Client(Session(7)) },
        Greeting::Welcome(configuration()),
        Greeting::Refused("this is another cluster: check the addresses".to_owned()),
    ]
    .iter()
    .map(Greeting::to_frame)
    .collect()
}
