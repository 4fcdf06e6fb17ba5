//! What a replica finds in its journal when it comes back: records of whatever kind, in batches that are whole.

use basil::{Message, Replica, ReplicaOptions};
use machine::{Durable as _, Input, Machine as _, Outbox, Time};
use store::{Memory, Options, Store};
use types::Party;

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLIENTS, NOW, fixture, replica, verifier};
use crate::generators;

pub(super) const TARGET: Target = Target {
    name: "records",
    what: "opens a replica on a journal of arbitrary records; if it opens, it goes on, and opens again",
    bytes_max: 2_048,
    runs: 3_000,
    run,
    seeds,
};

/// The longest record read from the input.
const RECORD_BYTES_MAX: usize = 1_024;

fn run(bytes: &[u8]) {
    let medium = Memory::new("fuzz");
    let mut store = open_store(&medium);
    let mut choices = Choices::new(bytes);
    while !choices.is_done() {
        let (length, ends_batch) = (choices.below(RECORD_BYTES_MAX), choices.byte() % 2 == 1);
        store.append(choices.take(length));
        if ends_batch {
            store.sync().expect("memory does not fail");
        }
    }
    store.sync().expect("memory does not fail");
    drop(store);
    let Some(mut replica) = open(&medium) else { return };
    let known = replica.load();
    let mut outbox = Outbox::default();
    for transaction in &fixture().transactions {
        let message = verifier().verify(Message::Prepare { transaction: transaction.clone() }).expect("a request is not signed");
        let from = Party::Client(CLIENTS[0], types::Session(1));
        replica.step(Time(NOW), Input::Message { from, message }, &mut outbox);
    }
    for seconds in 1..4 {
        replica.step(Time(NOW).after_ms(seconds * 5_000), Input::Tick, &mut outbox);
        replica.persist().expect("memory does not fail");
    }
    drop(replica);
    let again = open(&medium).expect("what could be read with less behind it can be read with more");
    assert!(again.load().0 <= known.0 + fixture().transactions.len());
}

fn open_store(medium: &Memory) -> Store<Memory> {
    let options = Options { segment_bytes_max: 4_096, cache_bytes_max: 4_096, ..Options::default() };
    let mut store = Store::open(medium.clone(), options).expect("the backend works");
    while store.replay().expect("the backend works").is_some() {}
    store
}

fn open(medium: &Memory) -> Option<Replica<Memory>> {
    let options = Options { segment_bytes_max: 4_096, cache_bytes_max: 4_096, ..Options::default() };
    let store = Store::open(medium.clone(), options).expect("the backend works");
    let settings = ReplicaOptions { memtable_bytes_max: 512, journal_bytes_max: 2_048, ..ReplicaOptions::default() };
    Replica::open(fixture().cluster.clone(), replica(0, 0), settings, store, Time(NOW)).ok()
}

/// What a replica writes down in an ordinary life, and in a stormy one.
fn seeds() -> Vec<Vec<u8>> {
    let lives: [&[&[u8]]; 3] = [
        &[&[0, 0], &[0, 1], &[9, 0, 0]],
        &[&[4, 0, 0, 0], &[5, 0, 3, 0], &[7, 0, 0, 0]],
        &[&[4, 2, 0, 0, 0], &[5, 2, 0], &[7, 2, 1, 0], &[9, 2, 2, 0, 0], &[0, 16], &[0, 18]],
    ];
    lives.map(journal).to_vec()
}

/// The records that a replica writes when it hears these requests.
fn journal(requests: &[&[u8]]) -> Vec<u8> {
    let medium = Memory::new("fuzz");
    let mut node = open(&medium).expect("an empty journal can be read");
    let mut outbox = Outbox::default();
    for request in requests {
        let message = verifier().verify(generators::request(&mut Choices::new(request))).expect("undamaged requests are in order");
        node.step(Time(NOW), Input::Message { from: Party::Client(CLIENTS[0], types::Session(1)), message }, &mut outbox);
        node.persist().expect("memory does not fail");
    }
    drop(node);
    let mut store = Store::open(medium, Options::default()).expect("the backend works");
    let mut input = Vec::new();
    while let Some(batch) = store.replay().expect("the backend works") {
        for record in batch.records {
            let length = u16::try_from(record.len()).expect("the fixture's transactions are small");
            assert!(record.len() < RECORD_BYTES_MAX);
            input.extend_from_slice(&length.to_le_bytes());
            input.push(1);
            input.extend_from_slice(&record);
        }
    }
    assert!(!input.is_empty(), "the replica wrote something down");
    input
}
