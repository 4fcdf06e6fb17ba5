//! A commit's receipt: the transaction and its certificate, which anyone with the cluster's public keys can check.

use std::sync::Arc;

use bytes::Bytes;
use crypto::{BadMember, Rejection, Signatures, Verifier};
use engine::{Proof as _, ProvenCommit};

use crate::transaction::Transaction;
use types::Cluster;
use types::codec::{Decode as _, DecodeError, Encode as _};

use crate::certificate::{Certificate, Decision, Proof, ShardProof};
use crate::message::Message;

/// What the bytes of a receipt begin with: a format version, and the engine.
const HEADER: &[u8] = b"\x01basil\0";

/// How many checked roots are remembered while one receipt is checked.
const ROOTS_MAX: usize = 1_024;

/// Proof that a transaction committed.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The transaction.
    pub transaction: Transaction,
    /// Its certificate.
    pub certificate: Arc<Certificate>,
}

/// Why bytes are no receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// They do not begin as a receipt of this engine does.
    #[error("this is no receipt of basil's, or one in a newer format")]
    Header,
    /// They cannot be read.
    #[error("the receipt is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// They prove something other than a commit.
    #[error("the receipt is not about a commit")]
    NotACommit,
    /// The cluster's keys are no good keys.
    #[error("{0}")]
    Keys(#[from] BadMember),
    /// A signature or a quorum is missing, or the certificate is another transaction's.
    #[error("the receipt proves nothing: {0}")]
    Rejected(#[from] Rejection),
}

impl Receipt {
    /// Reads a receipt and checks all of it: every signature, every quorum, every shard that the transaction touches.
    ///
    /// # Errors
    /// [`ReceiptError`], when anything is missing.
    pub fn verify(bytes: &Bytes, verifier: &Verifier) -> Result<Self, ReceiptError> {
        if !bytes.starts_with(HEADER) {
            return Err(ReceiptError::Header);
        }
        let message = Message::from_bytes(bytes.slice(HEADER.len()..), verifier.cluster().id())?;
        if !matches!(&message, Message::Writeback { transaction: Some(_), certificate, relay: false } if certificate.decision == Decision::Commit)
        {
            return Err(ReceiptError::NotACommit);
        }
        match verifier.verify(message)?.into_inner() {
            Message::Writeback { transaction: Some(transaction), certificate, .. } => Ok(Self { transaction, certificate }),
            _ => Err(ReceiptError::NotACommit),
        }
    }

    /// The same for who has nothing but the cluster's public keys.
    ///
    /// # Errors
    /// [`ReceiptError`], when anything is missing.
    pub fn verify_by_keys(bytes: &Bytes, cluster: Arc<Cluster>, signatures: Signatures) -> Result<Self, ReceiptError> {
        let verifier = Verifier::new(cluster, signatures, ROOTS_MAX)?;
        Self::verify(bytes, &verifier)
    }
}

impl engine::Proof for Receipt {
    /// The rest is the message with which the commit is told to replicas: they check it in the same way.
    fn to_bytes(&self) -> Bytes {
        let mut bytes = HEADER.to_vec();
        let (transaction, certificate) = (Some(self.transaction.clone()), self.certificate.clone());
        Message::Writeback { transaction, certificate, relay: false }.encode(&mut bytes);
        bytes.into()
    }

    fn summary(&self) -> String {
        match &self.certificate.proof {
            Proof::Fast(shards) => {
                let counts = shards.iter().map(|shard| match shard {
                    ShardProof::Votes(votes) => votes.voters.len(),
                    ShardProof::Conflict { .. } => 0,
                });
                let voted: usize = counts.sum();
                // Only unanimous votes commit over the fast path.
                format!("{voted} of {voted} replicas")
            }
            Proof::Logged(logged) => format!("{} replicas of shard {}", logged.voters.len(), logged.shard),
        }
    }
}

impl From<&Receipt> for ProvenCommit {
    fn from(receipt: &Receipt) -> Self {
        let transaction = &receipt.transaction;
        Self {
            id: transaction.id(),
            timestamp: transaction.timestamp(),
            reads: transaction.reads().iter().map(|read| (read.key.clone(), read.version)).collect(),
            ranges: transaction.ranges().to_vec(),
            writes: transaction.writes().iter().map(|write| (write.key.clone(), write.value.clone())).collect(),
            summary: receipt.summary(),
        }
    }
}

impl From<Receipt> for engine::Receipt {
    fn from(receipt: Receipt) -> Self {
        Self::new(Arc::new(receipt))
    }
}
