//! What it costs to check claims, in nanoseconds each.
//!
//! ```sh
//! cargo run --release -p crypto --example verify
//! ```
//!
//! Six replicas each sign batches of 1, 4, 16 or 64 statements. Of every statement there is a certificate, six claims,
//! one from each replica. Certificates are checked sixteen to a frame, as a replica checks those it receives:
//!
//! - `cold`: by a verifier that has seen nothing. Signatures are checked, one for each batch and replica.
//! - `first sight`: by one that has seen a neighbour from each batch, but not these statements.
//! - `again`: by one that has seen all of them.
//! - `covers`: what one claim's whole path takes to hash, without any verifier.
//!
//! `leaf`, `signature`, `encode` and `decode` are what else is done for each claim, by its maker and its receiver. Each figure is the
//! best of several runs. On a machine that does other work, compare figures of one run, or builds run in turns.

use std::hint::black_box;
use std::sync::Arc;

use crypto::{BatchSignature, BatchSigner, Claim, Rejection, SecretKey, SignatureClaims, Signatures, Statement, Verifier, leaf};
use types::codec::{Decode, Encode};
use types::{Cluster, ClusterId, Digest, Placement, ReplicaId, ShardId};

const CLUSTER: ClusterId = ClusterId::new([7; 16]);
const REPLICAS: u16 = 6;
const BATCHES: u64 = 64;
const FRAME_CERTIFICATES: usize = 16;
const RUNS: usize = 9;

/// As long as a vote.
struct Vote([u8; 34]);

impl Statement for Vote {
    const KIND: &'static str = "example/vote";
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// Six replicas' word on one statement, with the leaves already computed: they are measured apart.
struct Certificate(Vec<(ReplicaId, Digest, BatchSignature)>);

impl SignatureClaims for &Certificate {
    fn claims<'a>(&'a self, _: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        out.extend(self.0.iter().map(|(signer, leaf, signature)| Claim { signer: *signer, leaf: *leaf, signature }));
        Ok(())
    }
}

fn main() {
    println!(
        "{:>12} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "batch", "cold", "first sight", "again", "covers", "leaf", "sign", "encode", "decode"
    );
    for size in [1, 4, 16, 64] {
        let batches = batches(size);
        let first: Vec<&Certificate> = batches.iter().map(|batch| &batch[0]).collect();
        let others: Vec<&Certificate> = batches.iter().flat_map(|batch| &batch[usize::from(size > 1)..]).collect();
        let all: Vec<&Certificate> = batches.iter().flatten().collect();
        let claims = all.len() * usize::from(REPLICAS);

        let cold = best(claims, verifier, |verifier| check(verifier, &all));
        let known = || {
            let verifier = verifier();
            check(&verifier, &first);
            verifier
        };
        let sight = best(others.len() * usize::from(REPLICAS), known, |verifier| check(verifier, &others));
        let seen = verifier();
        check(&seen, &all);
        let again = best(claims, || (), |()| check(&seen, &all));
        let signatures = || all.iter().flat_map(|certificate| &certificate.0);
        let covers = best(claims, || (), |()| signatures().for_each(|(_, leaf, signature)| assert!(signature.covers(black_box(leaf)))));

        let hash = best(
            claims,
            || (),
            |()| {
                (0..claims).for_each(|_| {
                    black_box(leaf(CLUSTER, replica(1), black_box(&Vote([1; 34]))));
                })
            },
        );
        let leaves: Vec<Digest> = (0..size).map(|at| leaf(CLUSTER, replica(1), &vote(0, at))).collect();
        let batch_signer = BatchSigner::new(secret(1), CLUSTER, replica(1), Signatures::Ed25519);
        let signature = best(size as usize * 20, || (), |()| (0..20).for_each(|_| drop(black_box(batch_signer.sign(&leaves)))));
        let mut out = Vec::new();
        let encode = best(
            claims,
            || (),
            |()| {
                out.clear();
                signatures().for_each(|(_, _, signature)| signature.encode(&mut out));
            },
        );
        let mut reader = types::codec::Reader::new(Vec::new().into(), CLUSTER);
        let bytes = bytes::Bytes::from(out);
        let decode = best(
            claims,
            || (),
            |()| {
                reader = types::codec::Reader::new(bytes.clone(), CLUSTER);
                (0..claims).for_each(|_| drop(black_box(BatchSignature::decode(&mut reader).expect("what was just encoded"))));
            },
        );
        println!("{size:>12} {cold:>10} {sight:>12} {again:>10} {covers:>10} {hash:>10} {signature:>10} {encode:>10} {decode:>10}");
    }
}

/// The shortest of several runs, in nanoseconds for each of `parts`. What `prepare` does is not counted.
#[expect(clippy::disallowed_methods, reason = "it is the time that is looked for")]
fn best<T>(parts: usize, prepare: impl Fn() -> T, mut run: impl FnMut(&T)) -> u128 {
    let mut best = u128::MAX;
    for _ in 0..RUNS {
        let prepared = prepare();
        let start = std::time::Instant::now();
        run(&prepared);
        best = best.min(start.elapsed().as_nanos() / parts as u128);
    }
    best
}

fn check(verifier: &Verifier, certificates: &[&Certificate]) {
    for frame in certificates.chunks(FRAME_CERTIFICATES) {
        assert!(verifier.verify_all(frame.to_vec()).iter().all(Result::is_ok), "these are all good");
    }
}

/// Certificates by batch, their signatures as they come from the wire: no two share a root in memory.
fn batches(size: u64) -> Vec<Vec<Certificate>> {
    let batch_signers: Vec<BatchSigner> =
        (0..REPLICAS).map(|at| BatchSigner::new(secret(at), CLUSTER, replica(at), Signatures::Ed25519)).collect();
    let batch = |batch: u64| {
        let mut certificates: Vec<Certificate> = (0..size).map(|_| Certificate(Vec::new())).collect();
        for (signer, batch_signer) in (0..REPLICAS).map(replica).zip(&batch_signers) {
            let leaves: Vec<Digest> = (0..size).map(|at| leaf(CLUSTER, signer, &vote(batch, at))).collect();
            for ((signature, leaf), certificate) in batch_signer.sign(&leaves).into_iter().zip(leaves).zip(&mut certificates) {
                let signature = BatchSignature::from_bytes(signature.to_bytes().into(), CLUSTER).expect("what was just encoded");
                certificate.0.push((signer, leaf, signature));
            }
        }
        certificates
    };
    (0..BATCHES).map(batch).collect()
}

fn vote(batch: u64, at: u64) -> Vote {
    let mut body = [1; 34];
    body[..8].copy_from_slice(&batch.to_le_bytes());
    body[8..16].copy_from_slice(&at.to_le_bytes());
    Vote(body)
}

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

fn secret(index: u16) -> SecretKey {
    SecretKey::from_bytes([index.to_le_bytes()[0] + 1; 32])
}

fn verifier() -> Verifier {
    let keys = (0..REPLICAS).map(|index| secret(index).public()).collect();
    let cluster = Cluster::new(CLUSTER, 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit");
    Verifier::new(Arc::new(cluster), Signatures::Ed25519, 65_536).expect("honest keys")
}
