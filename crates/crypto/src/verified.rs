//! What a message claims, and the proof that its claims were checked.

use std::ops::Deref;

use types::{Cluster, Digest, ReplicaId};

use crate::BatchSignature;

/// A message whose every claim was checked. Only [`Verifier`](crate::Verifier) makes one.
///
/// It keeps the message as it came, signatures and all, so that a vote can travel on as evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// To be called where all of `message`'s claims were found good, and nowhere else.
    pub(crate) fn vouch(message: T) -> Self {
        Self(message)
    }

    /// The message itself.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// That `signer` said what `leaf` stands for.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Who is said to have said it.
    pub signer: ReplicaId,
    /// What: see [`leaf`](crate::leaf). Computed here, by the receiver, from the message; never received.
    pub leaf: Digest,
    /// The word for it.
    pub signature: &'a BatchSignature,
}

/// A message that can be checked.
pub trait SignatureClaims {
    /// Appends every claim the message rests on, and checks everything about it that needs no signature: that its
    /// signers are distinct and enough, and belong to the shard in question.
    ///
    /// # Errors
    /// The [`Rejection`] of a message that no signature could mend.
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection>;
}

/// Why a message from outside was refused. A lie is normal input: drop the message, count the refusal, go on.
/// Asking the same sender for the same message again does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// A statement is not covered by a good signature of its signer.
    #[error("no good signature of {signer} covers what it is said to have said")]
    BadSignature {
        /// Whose signature it should be.
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
            Self::UnknownSigner { .. } => "unknown_signer",
            Self::TooFewSigners { .. } => "too_few_signers",
            Self::NotDistinct { .. } => "not_distinct",
            Self::Structure(_) => "structure",
        }
    }
}
