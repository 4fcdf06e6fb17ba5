//! Checks what messages claim, and each signature once.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ed25519_zebra::{Signature, VerificationKey, VerificationKeyBytes, batch};
use getrandom::SysRng;
use getrandom::rand_core::UnwrapErr;
use smallvec::SmallVec;
use types::{Cluster, ReplicaId};

use crate::key::check_replicas;
use crate::root_cache::RootCache;
use crate::seal::{ROOT_STATEMENT_BYTES, root_statement};
use crate::{BadMember, Claim, Claims, Rejection, Seal, Signatures, SignedRoot, Verified};

/// The most roots in one batch check. More gain little, and when a check fails all of its batch are checked again alone.
const BATCH_ROOTS_MAX: usize = 64;

/// Checks messages for one cluster. Threads share one verifier, and so its cache.
pub struct Verifier {
    cluster: Arc<Cluster>,
    signatures: Signatures,
    /// Every replica's key, by shard and index: see [`Verifier::slot`].
    keys: Vec<VerificationKey>,
    cache: RootCache,
    counters: Counters,
}

/// What a verifier has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifierCounts {
    /// Signed roots whose signature was checked, alone or in a batch.
    pub roots_checked: u64,
    /// Claims under a root already known to be good.
    pub cache_hits: u64,
    /// Batch checks of two roots or more.
    pub batches: u64,
    /// Signed roots whose signature was bad.
    pub failures: u64,
}

#[derive(Default)]
struct Counters {
    roots_checked: AtomicU64,
    cache_hits: AtomicU64,
    batches: AtomicU64,
    failures: AtomicU64,
}

impl Verifier {
    /// A verifier for `cluster` that remembers about `cache_capacity` good roots, the same share for each replica.
    ///
    /// # Errors
    /// [`BadMember`] when a replica's key is one that [`check_public_key`](crate::check_public_key) refuses. With
    /// [`Signatures::Off`] no key is looked at.
    pub fn new(cluster: Arc<Cluster>, signatures: Signatures, cache_capacity: usize) -> Result<Self, BadMember> {
        let mut keys = Vec::new();
        if signatures == Signatures::Ed25519 {
            check_replicas(&cluster)?;
            keys.extend(cluster.replicas().map(|replica| {
                let bytes = *cluster.replica_key(replica).expect("a cluster has the key of each of its replicas");
                VerificationKey::try_from(bytes).expect("a key that passed its check is a point")
            }));
        }
        let cache = RootCache::new(keys.len(), cache_capacity);
        Ok(Self { cluster, signatures, keys, cache, counters: Counters::default() })
    }

    /// Checks one message.
    ///
    /// # Errors
    /// The first [`Rejection`], in the order of the message's claims; those about form come before those about signatures.
    pub fn verify<T: Claims>(&self, message: T) -> Result<Verified<T>, Rejection> {
        let mut docket = Docket::default();
        let needs = self.survey(&message, &mut Vec::new(), &mut docket)?;
        self.settle(&mut docket);
        docket.judge(&needs)?;
        Ok(Verified::vouch(message))
    }

    /// Checks the messages of one frame, the signatures of all together. Each is judged as [`Verifier::verify`] would.
    pub fn verify_all<T: Claims>(&self, messages: Vec<T>) -> Vec<Result<Verified<T>, Rejection>> {
        let mut docket = Docket::default();
        let mut surveys = Vec::with_capacity(messages.len());
        let mut claims = Vec::new();
        for message in &messages {
            surveys.push(self.survey(message, &mut claims, &mut docket));
        }
        drop(claims);
        self.settle(&mut docket);
        let judged = messages.into_iter().zip(surveys);
        judged.map(|(message, survey)| survey.and_then(|needs| docket.judge(&needs)).map(|()| Verified::vouch(message))).collect()
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> VerifierCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        VerifierCounts {
            roots_checked: read(&self.counters.roots_checked),
            cache_hits: read(&self.counters.cache_hits),
            batches: read(&self.counters.batches),
            failures: read(&self.counters.failures),
        }
    }

    /// The cluster whose messages it checks.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Checks all of `message` but the signatures; those not known yet go on the docket, and the answer says which.
    fn survey<'a, T: Claims>(&self, message: &'a T, claims: &mut Vec<Claim<'a>>, docket: &mut Docket) -> Result<Needs, Rejection> {
        claims.clear();
        message.claims(&self.cluster, claims)?;
        for claim in claims.iter() {
            if self.cluster.replica_key(claim.signer).is_none() {
                return Err(Rejection::UnknownSigner { signer: claim.signer });
            }
            if !claim.seal.is_well_formed() {
                return Err(Rejection::Structure("a seal's index, count and path do not fit"));
            }
            if self.signatures == Signatures::Ed25519 && !claim.seal.covers(&claim.leaf) {
                return Err(Rejection::BadSignature { signer: claim.signer });
            }
        }
        let mut needs = Needs::new();
        if self.signatures == Signatures::Off {
            return Ok(needs);
        }
        for claim in claims.iter() {
            match self.standing(claim.signer, claim.seal, docket) {
                Standing::Good => bump(&self.counters.cache_hits),
                Standing::OnDocket(at) => needs.push(at),
            }
        }
        Ok(needs)
    }

    /// Whether the seal's root is known to be good; when it is not, it goes on the docket, once.
    fn standing(&self, signer: ReplicaId, seal: &Seal, docket: &mut Docket) -> Standing {
        // Neighbours in a frame mostly come from one batch: the commonest answer costs one comparison.
        if let Some((last_signer, last_signed, standing)) = &docket.last
            && *last_signer == signer
            && (Arc::ptr_eq(last_signed, &seal.signed) || *last_signed == seal.signed)
        {
            return *standing;
        }
        let standing = if self.cache.knows(self.slot(signer), &seal.signed) {
            Standing::Good
        } else {
            Standing::OnDocket(docket.enter(signer, &seal.signed))
        };
        docket.last = Some((signer, Arc::clone(&seal.signed), standing));
        standing
    }

    /// Checks every signature on the docket and keeps the good ones.
    fn settle(&self, docket: &mut Docket) {
        for suspects in docket.suspects.chunks_mut(BATCH_ROOTS_MAX) {
            // A batch of one costs more than a single check.
            let all_good = suspects.len() > 1 && self.check_together(suspects);
            for suspect in suspects {
                suspect.good = all_good || self.check_alone(suspect);
                if suspect.good {
                    self.cache.keep(self.slot(suspect.signer), &suspect.signed);
                } else {
                    bump(&self.counters.failures);
                }
                bump(&self.counters.roots_checked);
            }
        }
    }

    /// Whether all are good. By ZIP 215 that is the same as that each is, but for a chance of 2^-128.
    fn check_together(&self, suspects: &[Suspect]) -> bool {
        bump(&self.counters.batches);
        let mut verifier = batch::Verifier::new();
        for suspect in suspects {
            let key = VerificationKeyBytes::from(self.keys[self.slot(suspect.signer)]);
            verifier.queue((key, Signature::from_bytes(&suspect.signed.signature), &self.statement(suspect)[..]));
        }
        verifier.verify(UnwrapErr(SysRng)).is_ok()
    }

    fn check_alone(&self, suspect: &Suspect) -> bool {
        let key = &self.keys[self.slot(suspect.signer)];
        key.verify(&Signature::from_bytes(&suspect.signed.signature), &self.statement(suspect)).is_ok()
    }

    fn statement(&self, suspect: &Suspect) -> [u8; ROOT_STATEMENT_BYTES] {
        root_statement(self.cluster.id(), suspect.signer, suspect.signed.count, &suspect.signed.root)
    }

    /// Where a replica of the cluster stands among all replicas.
    fn slot(&self, signer: ReplicaId) -> usize {
        usize::from(signer.shard.0) * self.cluster.replicas_per_shard() + usize::from(signer.index)
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Verifier").field("signatures", &self.signatures).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Places on the docket, in the order of a message's claims.
type Needs = SmallVec<[usize; 8]>;

#[derive(Clone, Copy)]
enum Standing {
    Good,
    OnDocket(usize),
}

/// A root whose signature must be checked, and how that went.
struct Suspect {
    signer: ReplicaId,
    signed: Arc<SignedRoot>,
    good: bool,
}

/// The roots that one call must check, each once. It is no larger than the frame that named them.
#[derive(Default)]
struct Docket {
    suspects: Vec<Suspect>,
    places: HashMap<(ReplicaId, Arc<SignedRoot>), usize>,
    last: Option<(ReplicaId, Arc<SignedRoot>, Standing)>,
}

impl Docket {
    /// The place of a root, which is new or there already.
    fn enter(&mut self, signer: ReplicaId, signed: &Arc<SignedRoot>) -> usize {
        let suspects = &mut self.suspects;
        *self.places.entry((signer, Arc::clone(signed))).or_insert_with(|| {
            suspects.push(Suspect { signer, signed: Arc::clone(signed), good: false });
            suspects.len() - 1
        })
    }

    /// The judgement over a message that needs these roots to be good.
    fn judge(&self, needs: &Needs) -> Result<(), Rejection> {
        match needs.iter().find(|at| !self.suspects[**at].good) {
            Some(at) => Err(Rejection::BadSignature { signer: self.suspects[*at].signer }),
            None => Ok(()),
        }
    }
}
