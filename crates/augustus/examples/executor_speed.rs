//! What the executor costs: workload A of the paper (table 3), four reads and four writes of small values on one shard.
//!
//! `cargo run --release -p augustus --example executor_speed [ROWS]`

use std::sync::Arc;

use augustus::{Executor, Name, Operation, Ordered, Request, Settings, Structural, Transaction};
use crypto::{SecretKey, Signatures, Verifier};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, ClusterId, Key, Permission, Placement, ShardId, Value};

const BATCH: u64 = 64;
const CHECKPOINT: u64 = 256;

/// The processor time of this thread, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "it measures, and is no machine")]
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("its first number")
}

#[expect(clippy::disallowed_methods, reason = "it is a program")]
fn main() {
    let rows: u32 = std::env::args().nth(1).map_or(1_000_000, |rows| rows.parse().expect("a number of rows"));
    let keys = (0..4).map(|index| SecretKey::from_bytes([index + 1; 32]).public()).collect();
    let permission = Permission {
        public_key: [0; 32],
        read_prefixes: vec![Key::default()],
        write_prefixes: vec![Key::default()],
        limits: types::ClientLimits::default(),
    };
    let cluster = Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, vec![keys], vec![(ClientId(1), permission)]);
    let cluster = Arc::new(cluster.expect("its parts fit"));
    let verifier = Verifier::new(Arc::clone(&cluster), Signatures::Ed25519, 64).expect("good keys");
    let settings = Settings { cluster: Arc::clone(&cluster), shard: ShardId(0), structural: Structural::Intervals };
    let (mut executor, mut number, mut sequence) = (Executor::new(settings), 0, 0);
    let mut random = 1u64;
    let mut draw = |bound: u32| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((random >> 33) % u64::from(bound)) as u32
    };
    let key = |at: u32| Key::new(at.to_be_bytes().to_vec()).expect("short");
    let value = |at: u32| Value::new(at.to_le_bytes().to_vec()).expect("short");
    let mut encode = |operations: Vec<Operation>| {
        number += 1;
        let name = Name { client: ClientId(1), session: 1 + number % 32, number: 1 + number / 32 };
        Request::Run(Transaction::new(cluster.id(), name, operations).expect("within limits")).to_bytes()
    };
    let load: Vec<Vec<u8>> = (0..rows)
        .step_by(1_024)
        .map(|low| encode((low..rows.min(low + 1_024)).map(|at| Operation::Put(key(at), value(at))).collect()))
        .collect();
    let count: usize = 200_000;
    let requests: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let reads = (0..4).map(|_| draw(rows)).collect::<Vec<_>>().into_iter().map(|at| Operation::Read(key(at)));
            let mut operations: Vec<Operation> = reads.collect();
            operations.extend((0..4).map(|_| draw(rows)).collect::<Vec<_>>().into_iter().map(|at| Operation::Write(key(at), value(at))));
            encode(operations)
        })
        .collect();
    let read = |bytes: &Vec<u8>| {
        let request = Request::from_bytes(bytes.clone().into(), cluster.id()).expect("its own bytes");
        Ordered { client: ClientId(1), request: Ok(verifier.verify(request).expect("nothing is signed")) }
    };
    for bytes in &load {
        sequence += 1;
        executor.deliver(sequence, &[read(bytes)]);
    }
    executor.checkpoint();
    let (mut reading, mut executing, mut checkpointing) = (0, 0, 0);
    for batch in requests.chunks(BATCH as usize) {
        let begun = cpu();
        let batch: Vec<Ordered> = batch.iter().map(read).collect();
        reading += cpu() - begun;
        let begun = cpu();
        sequence += 1;
        let replies = executor.deliver(sequence, &batch);
        executing += cpu() - begun;
        assert!(replies.iter().all(|reply| matches!(&reply.answer, augustus::Answer::Voted(_, augustus::Verdict::Commit(_)))));
        let begun = cpu();
        if sequence.is_multiple_of(CHECKPOINT) {
            executor.checkpoint();
        }
        checkpointing += cpu() - begun;
    }
    let each = |nanoseconds: u64| nanoseconds as f64 / count as f64 / 1_000.0;
    println!(
        "{rows} rows, µs of CPU a transaction: read {:.2}, execute {:.2}, checkpoint (one in {CHECKPOINT} batches of {BATCH}) {:.2}",
        each(reading),
        each(executing),
        each(checkpointing)
    );
}
