//! Checkpoints on a disk that crashes.

use augustus::certificate::Vote;
use augustus::{Executor, Head, Keeper, Operation, Request, Structural};
use crypto::Signatures;
use store::{Crash, Memory, Options, Store};
use types::Value;
use types::codec::{Decode as _, Encode as _};

use crate::harness::{ALICE, Harness, Random, key, put, read};

fn open(backend: &Memory) -> (Store<Memory>, Option<Vec<u8>>) {
    let options = Options { checkpoint_versions_max: 8, cache_bytes_max: 1 << 20, ..Options::default() };
    let mut store = Store::open(backend.clone(), options).expect("it opens");
    let mut last = None;
    while let Some(batch) = store.replay().expect("no damage") {
        last = batch.records.last().map(|record| record.to_vec()).or(last);
    }
    (store, last)
}

/// A random transaction of one shard, or over two, or the end of one of these.
fn random_request(harness: &Harness, random: &mut Random, number: u64) -> Request {
    let pending = harness.executors[0][0].pending().next().map(|(transaction, _)| transaction.clone());
    if let Some(transaction) = pending.filter(|_| random.below(3) == 0) {
        return Request::Decide(transaction.name(), harness.certificate(&transaction, Vote::Commit, &[0, 1]));
    }
    let text = format!("k{:03}", random.below(300));
    let mut operations = match random.below(40) {
        0 => vec![Operation::Put(key("large"), Value::new(vec![number as u8; 900_000]).expect("below the limit"))],
        1..10 => vec![Operation::Delete(key(&text))],
        _ => vec![put(&text, &number.to_string()), read(&text)],
    };
    if random.below(6) == 0 {
        operations.push(put("n", "1"));
    }
    Request::Run(harness.transaction(ALICE, 1, number, operations))
}

#[test]
fn after_any_crash_there_is_the_last_checkpoint_that_was_noted_and_no_other() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let mut harness = Harness::new(2, Structural::Intervals, Signatures::Ed25519);
        let backend = Memory::new("cluster 09 replica s0-r0");
        let (mut store, _) = open(&backend);
        let mut keeper = Keeper::default();
        // Every request ever ordered, as the multicast's journal has it.
        let mut journal: Vec<(types::ClientId, Request)> = Vec::new();
        let mut crashes = 0;
        for number in 1..=240 {
            let request = random_request(&harness, &mut random, number);
            journal.push((ALICE, request.clone()));
            harness.deliver(0, &[(ALICE, request)]);
            if random.below(10) == 0 {
                let checkpoint = harness.executors[0][0].checkpoint();
                keeper.keep(&checkpoint);
            }
            if random.below(8) == 0 {
                backend.hold_checkpoints();
            } else if random.below(3) == 0 {
                backend.release_checkpoints();
            }
            if let Some(head) = keeper.step(&mut store).expect("it writes") {
                store.append(&head.to_bytes());
                if random.below(2) == 0 {
                    store.sync().expect("it syncs");
                }
            }
            if random.below(15) > 0 {
                continue;
            }
            crashes += 1;
            drop(store);
            backend.crash(Crash { journal_bytes_kept: 0, checkpoint_rows_kept: random.below(12) });
            backend.release_checkpoints();
            let (reopened, last) = open(&backend);
            store = reopened;
            let settings = harness.settings(0);
            let (recovered, mut executor) = match last {
                None => (Keeper::default(), Executor::new(settings)),
                Some(head) => {
                    let head = Head::from_bytes(head.into(), harness.cluster.id()).expect("as it was appended");
                    let (keeper, pages) = Keeper::recover(&store, &head).expect("no damage").expect("all pages are there");
                    (keeper, Executor::install(settings, &head, &pages).expect("as it was kept"))
                }
            };
            keeper = recovered;
            for (client, request) in &journal[executor.sequence() as usize..] {
                let request = harness.read_request(request.to_bytes());
                executor.deliver(executor.sequence() + 1, &[augustus::Ordered { client: *client, request }]);
            }
            let own = executor.checkpoint();
            let [before, other] = &mut harness.executors[0];
            assert_eq!(own.digest, before.checkpoint().digest, "seed {seed}: the state is another after a crash");
            // What it said it changed since is what the next checkpoint on the disk lacks.
            keeper.keep(&own);
            *before = executor;
            assert_eq!(before.checkpoint().digest, other.checkpoint().digest);
        }
        assert!(crashes > 3, "this run shows little");
    }
}
