//! The signature claims of a message, and the proof that they were checked.

use std::ops::Deref;

use sha2::{Digest as _, Sha256};
use types::{Cluster, Digest, ReplicaId};

use crate::BatchSignature;

/// Which keys the replicas of a cluster have: the first bytes of a hash of all of them. Whoever made two sets alike, with keys of its own in both, would
/// gain a certificate that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaKeys(u64);

impl ReplicaKeys {
    /// Those in `cluster`.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let mut hasher = Sha256::new();
        cluster.replicas().filter_map(|replica| cluster.replica_key(replica)).for_each(|key| hasher.update(key));
        let hash: [u8; 32] = hasher.finalize().into();
        Self(hash.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

/// A message whose every claim was checked. Only [`Verifier`](crate::Verifier) makes one.
///
/// It keeps the message as it came, signatures and all, so that a vote can travel on as evidence. It says by which keys it was checked: when these are
/// changed, what is on its way to who asked for it may have been checked by the earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T> {
    message: T,
    checked_by: ReplicaKeys,
}

impl<T> Verified<T> {
    /// Call this only where all claims of `message` were found good.
    pub(crate) fn vouch(message: T, checked_by: ReplicaKeys) -> Self {
        Self { message, checked_by }
    }

    /// By which keys it was checked.
    #[must_use]
    pub fn checked_by(&self) -> ReplicaKeys {
        self.checked_by
    }

    /// The message itself.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.message
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.message
    }
}

/// A claim that `signer` made the statement that `leaf` stands for.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The claimed signer.
    pub signer: ReplicaId,
    /// The statement's [`leaf`](crate::leaf). The receiver computes it from the message.
    pub leaf: Digest,
    /// The signature that should cover it.
    pub signature: &'a BatchSignature,
}

/// A message that can be checked.
pub trait SignatureClaims {
    /// Appends every claim that the message contains, and checks everything that needs no signature: that its signers are
    /// distinct and enough, and belong to the right shard.
    ///
    /// # Errors
    /// The [`Rejection`] of a malformed message.
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection>;
}

/// Why a message from outside was refused. Invalid messages are normal input: drop the message and count the refusal.
/// Requesting the same message again does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// A statement is not covered by a good signature of its signer.
    #[error("no good signature of {signer} covers what it is said to have said")]
    BadSignature {
        /// Whose signature it should be.
        signer: ReplicaId,
    },
    /// A statement is signed by a key that its signer's place had before the operators gave it another. It counts no more, but a member that does
    /// not know that yet may pass it on.
    #[error("what {signer} is said to have said is signed by a key that its place had before")]
    EarlierKey {
        /// Whose signature it is.
        signer: ReplicaId,
    },
    /// The cluster has no such replica.
    #[error("the cluster has no replica {signer}")]
    UnknownSigner {
        /// The replica named.
        signer: ReplicaId,
    },
    /// A certificate has fewer signers than its quorum.
    #[error("{found} signers where {needed} are needed")]
    TooFewSigners {
        /// How many there are.
        found: usize,
        /// How many there must be.
        needed: usize,
    },
    /// A certificate counts one signer twice.
    #[error("{signer} is counted twice")]
    NotDistinct {
        /// Who is counted twice.
        signer: ReplicaId,
    },
    /// The parts of the message contradict one another.
    #[error("{0}")]
    Structure(&'static str),
}

impl Rejection {
    /// A short name that does not change, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::BadSignature { .. } => "bad_signature",
            Self::EarlierKey { .. } => "earlier_key",
            Self::UnknownSigner { .. } => "unknown_signer",
            Self::TooFewSigners { .. } => "too_few_signers",
            Self::NotDistinct { .. } => "not_distinct",
            Self::Structure(_) => "structure",
        }
    }
}
