//! Verifies the signature claims of messages, each signature once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::vec;

use ed25519_zebra::{Signature, VerificationKey};
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::{Cluster, Digest, ReplicaId};

use crate::batch::{BatchChecker, SignedMessage};
use crate::batch_signature::{ROOT_STATEMENT_BYTES, root_statement};
use crate::key::check_replicas;
use crate::proven_tree::{self, ProvenTree};
use crate::root_cache::RootCache;
use crate::{BadMember, BatchSignature, Claim, Rejection, ReplicaKeys, SignatureClaims, Signatures, SignedRoot, Verified};

/// The most roots in one batch check. More gain little, and after a failed check all roots of its batch are checked again alone.
const BATCH_ROOTS_MAX: usize = 64;
/// The most memory for trees in one queue, in nodes: 1 MiB. The roots in it are not verified yet, so any sender could request as many and
/// as large trees as fit in a frame. Claims under further roots are hashed in full.
const QUEUE_TREES_NODES_MAX: usize = 32_768;
/// So many of the keys that a place had before are remembered, the last ones, to tell what an earlier key signed from what nobody did.
pub const EARLIER_KEYS_MAX: usize = 4;
/// How many of the last queued roots are searched linearly. Certificates have at most this many signers.
const RECENT_SUSPECTS: usize = 8;

/// Verifies messages for one cluster. Threads share one verifier and its cache.
///
/// Operators may give a replica's place another key while it runs ([`Verifier::reconfigure`]). What is being checked then is checked to its end
/// by the keys with which that began.
pub struct Verifier {
    cluster: Arc<Cluster>,
    signatures: Signatures,
    current: RwLock<Arc<Current>>,
    cache_capacity: usize,
    counters: Arc<Counters>,
    /// The keys that places had before, by slot, the newest first.
    earlier: RwLock<Vec<Vec<VerificationKey>>>,
}

/// The keys of one configuration, and the roots that were checked with them: where a key changes, nothing that the old one signed counts.
struct Current {
    cluster: Arc<Cluster>,
    signatures: Signatures,
    replica_keys: ReplicaKeys,
    /// Every replica's key, by shard and index: see [`Current::slot`].
    keys: Vec<VerificationKey>,
    /// The same keys in the same order.
    batches: BatchChecker,
    cache: RootCache,
    counters: Arc<Counters>,
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
    /// [`BadMember`] when a replica's key is one that [`check_public_key`](crate::check_public_key) refuses. Without
    /// signatures no key is looked at.
    pub fn new(cluster: Arc<Cluster>, signatures: Signatures, cache_capacity: usize) -> Result<Self, BadMember> {
        let (counters, earlier) = (Arc::default(), RwLock::default());
        let current = Current::new(Arc::clone(&cluster), signatures, cache_capacity, Arc::clone(&counters))?;
        Ok(Self { cluster, signatures, current: RwLock::new(Arc::new(current)), cache_capacity, counters, earlier })
    }

    /// Remembers the keys that places had in `before`, an earlier configuration, where they have others now; a later one than all so far. What these signed counts for
    /// nothing, and is told from what nobody signed ([`Rejection::EarlierKey`]).
    pub fn note_earlier(&self, before: &Cluster) {
        if self.signatures != Signatures::Ed25519 {
            return;
        }
        let current = self.current();
        let mut earlier = self.earlier.write().unwrap_or_else(PoisonError::into_inner);
        earlier.resize_with(current.keys.len(), Vec::new);
        for replica in before.replicas() {
            let key = before.replica_key(replica).filter(|key| current.cluster.replica_key(replica) != Some(key));
            let Some(key) = key.and_then(|key| VerificationKey::try_from(*key).ok()) else { continue };
            let known = &mut earlier[current.slot(replica)];
            if !known.contains(&key) {
                known.insert(0, key);
                known.truncate(EARLIER_KEYS_MAX);
            }
        }
    }

    /// Which of the suspects that nobody's present key signed an earlier key of their signer's place signed.
    fn check_earlier(&self, current: &Current, queue: &mut VerifyQueue) {
        let earlier = self.earlier.read().unwrap_or_else(PoisonError::into_inner);
        for suspect in queue.suspects.iter_mut().filter(|suspect| suspect.needed && !suspect.good) {
            let Some(keys) = earlier.get(current.slot(suspect.signer)) else { continue };
            let (signature, statement) = (Signature::from_bytes(&suspect.signed.signature), current.statement(suspect));
            let is_signed = keys.iter().any(|key| key.verify(&signature, &statement).is_ok());
            suspect.is_earlier = is_signed || (!keys.is_empty() && broken(Mutant::EarlierKeyUnchecked));
        }
    }

    /// From now on checks by the keys that the replicas have in `cluster`, which has the shape of the first one.
    ///
    /// # Errors
    /// As [`Verifier::new`]; then nothing has changed.
    pub fn reconfigure(&self, cluster: Arc<Cluster>) -> Result<(), BadMember> {
        let before = self.current();
        let is_same = cluster.replicas().all(|replica| cluster.replica_key(replica) == before.cluster.replica_key(replica));
        if is_same || broken(Mutant::GoneKeyBelieved) {
            return Ok(());
        }
        let next = Current::new(cluster, self.signatures, self.cache_capacity, Arc::clone(&self.counters))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.note_earlier(&before.cluster);
        Ok(())
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks one message.
    ///
    /// # Errors
    /// The first [`Rejection`], in the order of the message's claims; those about form come before those about signatures.
    pub fn verify<T: SignatureClaims>(&self, message: T) -> Result<Verified<T>, Rejection> {
        let (current, mut queue) = (self.current(), VerifyQueue::default());
        let needs = current.enqueue(&message, &mut Vec::new(), &mut queue)?;
        current.check_queued(&mut queue);
        self.check_earlier(&current, &mut queue);
        queue.judge(&needs)?;
        Ok(Verified::vouch(message, current.replica_keys))
    }

    /// Checks the messages of one frame, the signatures of all together. Each gets the verdict that [`Verifier::verify`] would give.
    pub fn verify_all<T: SignatureClaims>(&self, messages: Vec<T>) -> Vec<Result<Verified<T>, Rejection>> {
        self.verify_next(&mut messages.into_iter(), usize::MAX)
    }

    /// Checks the first of `messages`: so many that no further one is begun once `roots_max` signatures have to be checked. What one
    /// call costs is bounded by that and by what one message may contain, so that whoever calls can let others go first in between.
    pub fn verify_next<T: SignatureClaims>(
        &self,
        messages: &mut vec::IntoIter<T>,
        roots_max: usize,
    ) -> Vec<Result<Verified<T>, Rejection>> {
        let (current, mut queue) = (self.current(), VerifyQueue::default());
        let mut surveys = Vec::with_capacity(messages.len());
        let mut claims = Vec::new();
        for message in messages.as_slice() {
            if queue.suspects.len() >= roots_max {
                break;
            }
            surveys.push(current.enqueue(message, &mut claims, &mut queue));
        }
        drop(claims);
        current.check_queued(&mut queue);
        self.check_earlier(&current, &mut queue);
        // The verdicts come first: else one message too many would be taken to find that there are no more.
        let judged = surveys.into_iter().zip(messages).map(|(enqueue, message)| (message, enqueue));
        let vouch = |message| Verified::vouch(message, current.replica_keys);
        judged.map(|(message, enqueue)| enqueue.and_then(|needs| queue.judge(&needs)).map(|()| vouch(message))).collect()
    }

    /// Caches a root that this process has just signed as `signer` with the secret half of `key`, because it comes back in certificates.
    pub fn signed(&self, signer: ReplicaId, key: &[u8; 32], signed: &SignedRoot) {
        let current = self.current();
        if self.signatures == Signatures::Ed25519 && current.cluster.replica_key(signer) == Some(key) {
            current.cache.keep(current.part(signer), signed, None);
        }
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

    /// Whether it asks for signatures.
    #[must_use]
    pub fn signatures(&self) -> Signatures {
        self.signatures
    }

    /// The cluster whose messages it checks, as it was at first: its name and shape stay.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}

impl Current {
    fn new(cluster: Arc<Cluster>, signatures: Signatures, cache_capacity: usize, counters: Arc<Counters>) -> Result<Self, BadMember> {
        let mut keys = Vec::new();
        if signatures == Signatures::Ed25519 {
            check_replicas(&cluster)?;
            keys.extend(cluster.replicas().map(|replica| {
                let bytes = *cluster.replica_key(replica).expect("a cluster has the key of each of its replicas");
                VerificationKey::try_from(bytes).expect("a key that passed its check is a point")
            }));
        }
        let batches = BatchChecker::new(keys.iter().map(|key| (*key).into())).expect("keys that passed their check are points");
        let cache = RootCache::new(keys.len(), cache_capacity);
        let replica_keys = ReplicaKeys::of(&cluster);
        Ok(Self { cluster, signatures, replica_keys, keys, batches, cache, counters })
    }

    /// Checks everything of `message` except signatures. Roots that are not cached go into the queue; returns their indices.
    fn enqueue<'a, T: SignatureClaims>(
        &self,
        message: &'a T,
        claims: &mut Vec<Claim<'a>>,
        queue: &mut VerifyQueue,
    ) -> Result<Needs, Rejection> {
        claims.clear();
        message.claims(&self.cluster, claims)?;
        let (mut needs, mut cache_hits) = (Needs::new(), 0);
        for claim in claims.iter() {
            match self.enqueue_claim(claim, queue)? {
                SignatureState::Good => cache_hits += 1,
                SignatureState::Queued(at) => needs.push(at),
                SignatureState::Unsigned => {}
            }
        }
        // Not earlier, so that a malformed message causes no signature check.
        for at in &needs {
            queue.suspects[*at].needed = true;
        }
        if cache_hits > 0 {
            self.counters.cache_hits.fetch_add(cache_hits, Ordering::Relaxed);
        }
        Ok(needs)
    }

    /// Checks everything of one claim except the signature, and says whether that is cached as good or queued.
    fn enqueue_claim(&self, claim: &Claim<'_>, queue: &mut VerifyQueue) -> Result<SignatureState, Rejection> {
        let &Claim { signer, leaf, signature } = claim;
        if self.cluster.replica_key(signer).is_none() {
            return Err(Rejection::UnknownSigner { signer });
        }
        if !signature.is_well_formed() {
            return Err(Rejection::Structure("a batch signature's index, count and path do not fit"));
        }
        if self.signatures != Signatures::Ed25519 {
            return Ok(SignatureState::Unsigned);
        }
        // Most claims of a frame with new roots are under the last ones queued; for other frames the queue is empty.
        let queued = match queue.find_recent(signer, &signature.signed) {
            Some(at) => Some(at),
            None => match self.cache.covers(self.part(signer), signature, &leaf) {
                Some(true) => return Ok(SignatureState::Good),
                Some(false) => return Err(Rejection::BadSignature { signer }),
                None => queue.find_earlier(signer, &signature.signed),
            },
        };
        let index = match queued {
            Some(at) => queue.suspects[at].covers(signature, &leaf).then_some(at),
            None => queue.enter(signer, signature, &leaf),
        };
        index.map(SignatureState::Queued).ok_or(Rejection::BadSignature { signer })
    }

    /// Checks every needed signature in the queue and caches the good roots.
    fn check_queued(&self, queue: &mut VerifyQueue) {
        let mut needed: Vec<&mut Suspect> = queue.suspects.iter_mut().filter(|suspect| suspect.needed).collect();
        for suspects in needed.chunks_mut(BATCH_ROOTS_MAX) {
            // A batch of one costs more than a single check.
            let all_good = suspects.len() > 1 && self.check_together(suspects);
            for suspect in suspects {
                suspect.good = all_good || self.check_alone(suspect);
                if suspect.good || broken(Mutant::RootCachedUnchecked) {
                    self.cache.keep(self.part(suspect.signer), &suspect.signed, suspect.tree.take());
                } else {
                    bump(&self.counters.failures);
                }
                bump(&self.counters.roots_checked);
            }
        }
    }

    /// Whether all are good, with an error probability of 2^-128.
    fn check_together(&self, suspects: &[&mut Suspect]) -> bool {
        bump(&self.counters.batches);
        let statements: Vec<[u8; ROOT_STATEMENT_BYTES]> = suspects.iter().map(|suspect| self.statement(suspect)).collect();
        let signed = suspects.iter().zip(&statements).map(|(suspect, statement)| SignedMessage {
            key: self.slot(suspect.signer),
            signature: &suspect.signed.signature,
            message: statement,
        });
        self.batches.all_good(&signed.collect::<Vec<_>>()) || broken(Mutant::SignatureUnchecked)
    }

    fn check_alone(&self, suspect: &Suspect) -> bool {
        let key = &self.keys[self.slot(suspect.signer)];
        key.verify(&Signature::from_bytes(&suspect.signed.signature), &self.statement(suspect)).is_ok()
            || broken(Mutant::SignatureUnchecked)
    }

    fn statement(&self, suspect: &Suspect) -> [u8; ROOT_STATEMENT_BYTES] {
        root_statement(self.cluster.id(), suspect.signer, suspect.signed.count, &suspect.signed.root)
    }

    /// The part of the cache for a replica's roots.
    fn part(&self, signer: ReplicaId) -> usize {
        if broken(Mutant::RootOfAnyone) { 0 } else { self.slot(signer) }
    }

    /// A replica's index among all replicas of the cluster.
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

/// Indices in the queue, in the order of a message's claims.
type Needs = SmallVec<[usize; 8]>;

/// The state of a claim's signature.
#[derive(Clone, Copy)]
enum SignatureState {
    /// It is good.
    Good,
    /// It must be checked, and is queued at this index.
    Queued(usize),
    /// The cluster has no signatures.
    Unsigned,
}

/// A root whose signature must be checked, and the result.
struct Suspect {
    signer: ReplicaId,
    signed: Arc<SignedRoot>,
    /// The proven part of the root's tree, if it is kept. It is valid whether or not the signature is.
    tree: Option<ProvenTree>,
    /// Whether some message depends on this signature only.
    needed: bool,
    good: bool,
    /// Whether a key that its signer's place had before signed it.
    is_earlier: bool,
}

impl Suspect {
    fn covers(&mut self, signature: &BatchSignature, leaf: &Digest) -> bool {
        self.tree.as_mut().map_or_else(|| signature.covers(leaf), |tree| tree.admits(leaf, signature))
    }
}

/// The roots that one call must check, each once. Except for its trees, which have their own limit, it is no larger than the
/// frame that named them.
#[derive(Default)]
struct VerifyQueue {
    suspects: Vec<Suspect>,
    indices: HashMap<(ReplicaId, Arc<SignedRoot>), usize>,
    trees_nodes: usize,
}

impl VerifyQueue {
    /// The index of a recently queued root, found without hashing.
    fn find_recent(&self, signer: ReplicaId, signed: &SignedRoot) -> Option<usize> {
        let start = self.suspects.len().saturating_sub(RECENT_SUSPECTS);
        let recent = self.suspects[start..].iter().rposition(|suspect| suspect.signer == signer && *suspect.signed == *signed)?;
        Some(start + recent)
    }

    /// The index of a root that was queued before those.
    fn find_earlier(&self, signer: ReplicaId, signed: &Arc<SignedRoot>) -> Option<usize> {
        if self.suspects.len() <= RECENT_SUSPECTS {
            return None;
        }
        self.indices.get(&(signer, Arc::clone(signed))).copied()
    }

    /// Queues a new root, if `leaf` is under it.
    fn enter(&mut self, signer: ReplicaId, signature: &BatchSignature, leaf: &Digest) -> Option<usize> {
        let memory_nodes = proven_tree::memory_nodes(usize::from(signature.signed.count));
        let with_tree = signature.signed.count > 1 && self.trees_nodes + memory_nodes <= QUEUE_TREES_NODES_MAX;
        let tree = with_tree.then(|| ProvenTree::new(&signature.signed));
        let mut suspect = Suspect { signer, signed: Arc::clone(&signature.signed), tree, needed: false, good: false, is_earlier: false };
        if !suspect.covers(signature, leaf) {
            return None;
        }
        if with_tree {
            self.trees_nodes += memory_nodes;
        }
        let at = self.suspects.len();
        self.indices.insert((signer, Arc::clone(&signature.signed)), at);
        self.suspects.push(suspect);
        Some(at)
    }

    /// The verdict on a message that needs these roots to be good.
    fn judge(&self, needs: &Needs) -> Result<(), Rejection> {
        let bad = || needs.iter().map(|at| &self.suspects[*at]).filter(|suspect| !suspect.good);
        // What nobody signed counts for more than what an earlier key signed.
        match bad().find(|suspect| !suspect.is_earlier).or_else(|| bad().next()) {
            Some(Suspect { signer, is_earlier: true, .. }) => Err(Rejection::EarlierKey { signer: *signer }),
            Some(Suspect { signer, .. }) => Err(Rejection::BadSignature { signer: *signer }),
            None => Ok(()),
        }
    }
}
