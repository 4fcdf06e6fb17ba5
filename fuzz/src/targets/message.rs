//! A message as it arrives: decoded, written again, and checked as a replica would.

use basil::Message;
use bytes::Bytes;
use types::codec::{Decode, Encode};

use super::codec;
use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLUSTER, fixture, verifier};
use crate::generators;
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "message",
    what: "decodes one of Basil's messages and checks its signatures; what passes, a plain reference accepts too",
    bytes_max: 8_192,
    runs: 20_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    codec::check::<Message>(bytes);
    let Ok(message) = Message::from_bytes(Bytes::copy_from_slice(bytes), CLUSTER) else { return };
    let accepted = verifier().verify(message.clone()).is_ok();
    assert_eq!(accepted, reference::accepts(&fixture().cluster, &message), "{message:?}");
}

/// One message of each kind, and some more where a kind has several forms.
fn seeds() -> Vec<Vec<u8>> {
    let requests = (1..12).map(|kind| generators::request(&mut Choices::new(&[kind, 2, 2, 2, 2, 2])));
    let replies = (2..8).map(|kind| generators::reply(&mut Choices::new(&[kind, 2, 0, 1])));
    let conflicts = [2, 3].map(|conflict| generators::reply(&mut Choices::new(&[0, 1, 0, 1, 1, conflict, 0, 0])));
    requests.chain(replies).chain(conflicts).map(|message| message.to_bytes()).collect()
}
