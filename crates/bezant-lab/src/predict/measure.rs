//! What things cost on this machine, one by one.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use basil::{Message, Transaction, Write};
use bytes::Bytes;
use capacity::{ClusterSpec, Costs, Hosting};
use conformance::basil::Basil;
use crypto::{BatchSignature, BatchSigner, Claim, Rejection, SecretKey, SignatureClaims, Signatures, Statement, Verifier};
use rustix::time::{ClockId, clock_gettime};
use types::{Cluster, ClusterId, Key, Placement, ReplicaId, ShardId, Timestamp, Value};

use types::codec::{Decode as _, Encode as _};

use bezant::failure::{Attempt as _, Failure};

const CLUSTER: ClusterId = ClusterId::new([5; 16]);
/// How often each thing is done.
const TIMES: u32 = 2_000;
/// In how many rounds.
const ROUNDS: u32 = 20;
/// How many roots are checked together, to learn what each more costs.
const BATCH: usize = 32;
/// How many writes to disk are timed.
const SYNCS: u32 = 200;
/// What is written at a time, about what a turn leaves in the journal.
const SYNC_BYTES: usize = 8 << 10;
/// What is sent through a connection at a time, about as long as what one replica has to say to one client.
const FRAME_BYTES: usize = 512;

/// Measures all prices but those that [`Costs`] says are set by hand. Steps are timed for transactions of `wanted`'s size.
/// `beside` is where the disk is tried.
pub fn costs(wanted: &ClusterSpec, beside: &Path) -> Result<Costs, Failure> {
    let mut costs = Costs::rough::<Basil>();
    signatures(&mut costs);
    messages(&mut costs);
    costs.wake_ns = waking();
    (costs.write_ns, costs.read_ns) = connection().attempt("try a connection", "127.0.0.1")?;
    (costs.sync_ns, costs.sync_cpu_ns) = disk(beside)?;
    let ClusterSpec { reads, writes, keys, .. } = *wanted;
    let hosting = Hosting::OneHost { cores: 2 };
    let spec =
        ClusterSpec { hosting, reads, writes, keys, closed_loop_clients: 128, warmup_ms: 200, measured_ms: 400, ..ClusterSpec::default() };
    // By CPU time, since whoever else is on the machine interrupts some steps. Looking at a watch takes time as well.
    let looking_ns = each_ns(TIMES, || {
        black_box(cpu_ns());
    });
    // Each has steps that the next does not take.
    for spec in [ClusterSpec { shards: 2, ..spec.clone() }, ClusterSpec { fast_path: false, ..spec.clone() }, spec] {
        for (step, ns) in capacity::time_steps::<Basil>(&spec, &costs, 1, &mut cpu_ns) {
            costs.steps.entry(step).and_modify(|price| *price = (ns - looking_ns).max(0.0));
        }
    }
    Ok(costs)
}

/// What `run` takes, in nanoseconds: the median of some rounds, so that who else is on the machine matters little.
fn each_ns(times: u32, mut run: impl FnMut()) -> f64 {
    let times = times / ROUNDS;
    let round = || {
        let begun = Instant::now();
        (0..times).for_each(|_| run());
        begun.elapsed().as_nanos() as f64 / f64::from(times)
    };
    median(std::iter::repeat_with(round).take(ROUNDS as usize).collect())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

struct Said(u64);

impl Statement for Said {
    const KIND: &'static str = "measured";
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
        out.extend_from_slice(&[7; 40]);
    }
}

/// A message that claims what it is told to.
struct Told {
    signer: ReplicaId,
    number: u64,
    signature: BatchSignature,
}

impl SignatureClaims for Told {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        out.push(Claim {
            signer: self.signer,
            leaf: crypto::leaf(cluster.id(), self.signer, &Said(self.number)),
            signature: &self.signature,
        });
        Ok(())
    }
}

fn signatures(costs: &mut Costs) {
    let secrets: Vec<SecretKey> = (0..6).map(|_| SecretKey::generate()).collect();
    let keys = vec![secrets.iter().map(SecretKey::public).collect()];
    let cluster = Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, keys, Vec::new()).expect("six keys are a shard"));
    let replica = |index: u16| ReplicaId { shard: ShardId(0), index };
    let batch_signer = |index: u16| BatchSigner::new(secrets[usize::from(index)].clone(), CLUSTER, replica(index), Signatures::Ed25519);
    let first = batch_signer(0);
    let leaves: Vec<types::Digest> = (0..64).map(|number| crypto::leaf(CLUSTER, replica(0), &Said(number))).collect();
    let one_ns = each_ns(TIMES / 4, || drop(black_box(first.sign(&leaves[..1]))));
    let many_ns = each_ns(TIMES / 4, || drop(black_box(first.sign(&leaves))));
    let leaf_ns = each_ns(TIMES, || {
        black_box(crypto::leaf(CLUSTER, replica(0), &Said(black_box(1))));
    });
    costs.sign_ns = one_ns;
    costs.leaf_ns = leaf_ns + (many_ns - one_ns).max(0.0) / 63.0;

    let told = |number: u64| {
        let index = u16::try_from(number % 6).expect("below six");
        let signature = batch_signer(index).sign(&[crypto::leaf(CLUSTER, replica(index), &Said(number))]).remove(0);
        Told { signer: replica(index), number, signature }
    };
    let check_ns = |together: usize| {
        let each = (0..TIMES / 20).map(|_| {
            // A fresh one each time: nothing is known yet.
            let verifier = Verifier::new(cluster.clone(), Signatures::Ed25519, 4_096).expect("keys just drawn are good");
            let told = (0..together as u64).map(told).collect();
            let begun = Instant::now();
            black_box(verifier.verify_all(told));
            begun.elapsed().as_nanos() as f64
        });
        median(each.collect())
    };
    let (one_ns, batch_ns) = (check_ns(1), check_ns(BATCH));
    costs.check_root_ns = (batch_ns - one_ns).max(0.0) / (BATCH - 1) as f64;
    costs.check_batch_ns = (one_ns - costs.check_root_ns).max(0.0);

    // Claims are read from bytes, then checked: the first under a root that has yet to be, the others under one that is known.
    let verifier = Verifier::new(cluster, Signatures::Ed25519, 4_096).expect("keys just drawn are good");
    let mut spent_ns = Vec::new();
    for batch in 0..u64::from(TIMES / 64) {
        // Other statements each time, so that nothing of their tree is known.
        let numbers: Vec<u64> = (batch * 64..(batch + 1) * 64).collect();
        let leaves: Vec<types::Digest> = numbers.iter().map(|number| crypto::leaf(CLUSTER, replica(0), &Said(*number))).collect();
        let encoded: Vec<Bytes> = first.sign(&leaves).iter().map(|signature| Bytes::from(signature.to_bytes())).collect();
        let mut read = numbers.iter().zip(encoded).map(|(number, bytes)| {
            let signature = BatchSignature::from_bytes(bytes, CLUSTER).expect("it was just written");
            Told { signer: replica(0), number: *number, signature }
        });
        black_box(verifier.verify_all(read.by_ref().take(1).collect()));
        let begun = Instant::now();
        black_box(verifier.verify_all(read.collect()));
        spent_ns.push(begun.elapsed().as_nanos() as f64 / 63.0);
    }
    costs.claim_ns = median(spent_ns);
}

fn messages(costs: &mut Costs) {
    let write = |at: u8| Write { key: Key::from(format!("key{at:013}").as_str()), value: Some(Value::from("v".repeat(100).as_str())) };
    let transaction = Transaction::new(CLUSTER, Timestamp::new(1, types::ClientId(1)), Vec::new(), vec![write(1), write(2)]);
    let message = Message::Prepare { transaction: transaction.expect("two writes are far below any limit") };
    let mut bytes = Vec::new();
    costs.encode_ns = each_ns(TIMES, || {
        bytes.clear();
        message.encode(&mut bytes);
    });
    let bytes = Bytes::from(bytes);
    costs.decode_ns = each_ns(TIMES, || drop(black_box(Message::from_bytes(bytes.clone(), CLUSTER))));
}

/// What it takes of both sides' cores when one thread wakes another.
fn waking() -> f64 {
    let ((to, at), (back, answers)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    let other = thread::spawn(move || {
        let before = cpu_ns();
        at.into_iter().for_each(|()| back.send(()).expect("the first thread listens"));
        cpu_ns() - before
    });
    let before = cpu_ns();
    for _ in 0..TIMES {
        to.send(()).expect("the other thread listens");
        answers.recv().expect("and answers");
    }
    drop(to);
    let spent_ns = cpu_ns() - before + other.join().expect("it only answers");
    // There and back are two.
    spent_ns as f64 / f64::from(2 * TIMES)
}

/// What a write to a connection takes, and a read of what has come. They are not encrypted: [`Costs::byte_ns`] has that.
fn connection() -> io::Result<(f64, f64)> {
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(door.local_addr()?)?;
    let (mut far, _) = door.accept()?;
    near.set_nodelay(true)?;
    let mut frame = [7; FRAME_BYTES];
    let (mut writes_ns, mut reads_ns) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let begun = Instant::now();
        near.write_all(&frame)?;
        let written = Instant::now();
        far.read_exact(&mut frame)?;
        writes_ns.push((written - begun).as_nanos() as f64);
        reads_ns.push(written.elapsed().as_nanos() as f64);
    }
    Ok((median(writes_ns), median(reads_ns)))
}

/// For how long a small write waits for the disk at its quickest, and how much CPU time it takes beside. Slower ones had to wait for a
/// core or for somebody else's write as well.
fn disk(beside: &Path) -> Result<(f64, f64), Failure> {
    let path = beside.with_extension("disk-trial");
    let mut file = File::create(&path).attempt("try the disk", path.display())?;
    // As in a journal, whose segments are recycled: the place is there, and only bytes change.
    let bytes = vec![1; SYNC_BYTES];
    let all = vec![0; SYNC_BYTES * SYNCS as usize];
    file.write_all(&all).and_then(|()| file.sync_all()).and_then(|()| file.rewind()).attempt("try the disk", path.display())?;
    let (mut quickest_ns, mut each_cpu_ns) = (f64::INFINITY, Vec::new());
    for _ in 0..SYNCS {
        let (begun, cpu) = (Instant::now(), cpu_ns());
        file.write_all(&bytes).and_then(|()| file.sync_data()).attempt("try the disk", path.display())?;
        let (took_ns, took_cpu_ns) = (begun.elapsed().as_nanos() as f64, (cpu_ns() - cpu) as f64);
        quickest_ns = quickest_ns.min((took_ns - took_cpu_ns).max(0.0));
        each_cpu_ns.push(took_cpu_ns);
    }
    std::fs::remove_file(&path).attempt("remove the file", path.display())?;
    Ok((quickest_ns, median(each_cpu_ns)))
}

/// CPU time of this thread so far, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
