//! Batch signatures: one signature over many statements.

use std::sync::Arc;

use machine::turn::Signer;
use mutants::{Mutant, broken};
use sha2::{Digest as _, Sha256};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::limits::{BATCH_STATEMENTS_MAX, MERKLE_PATH_MAX};
use types::{ClusterId, Digest, Party, ReplicaId};

use crate::hash::TAG_LEAF;
use crate::merkle::{self, Tree};
use crate::{SecretKey, Signatures, Verifier};

/// Something a replica signs: a vote, a logged decision.
pub trait Statement {
    /// The kind of statement: at most 255 bytes, different for each kind.
    const KIND: &'static str;

    /// Appends the statement's body. It must be canonical: statements of different meaning have different bodies.
    fn encode_body(&self, out: &mut Vec<u8>);
}

/// The leaf that stands for `statement` by `signer` in a batch signature's tree.
#[must_use]
pub fn leaf<S: Statement>(cluster: ClusterId, signer: ReplicaId, statement: &S) -> Digest {
    let cluster = if broken(Mutant::ClusterUnnamed) { ClusterId::new([0; 16]) } else { cluster };
    let kind_bytes = u8::try_from(S::KIND.len()).expect("a kind is a short name that the code itself gives");
    let mut input = Vec::with_capacity(192);
    input.push(TAG_LEAF);
    input.push(kind_bytes);
    input.extend_from_slice(S::KIND.as_bytes());
    input.extend_from_slice(cluster.as_bytes());
    signer.encode(&mut input);
    statement.encode_body(&mut input);
    Sha256::digest(&input).into()
}

/// A root and its signature. It does not name the signer: each claim does, and the signature verifies for that signer only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignedRoot {
    /// The root of the tree of statements.
    pub root: Digest,
    /// How many statements there are, from 1 to [`BATCH_STATEMENTS_MAX`].
    pub count: u16,
    /// The signature over cluster, signer, count and root. Never use it as an identifier: there are many valid ones.
    pub signature: [u8; 64],
}

/// Proves one statement of a batch: the batch's signed root, and the Merkle path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSignature {
    /// The root, shared by all signatures of the batch.
    pub signed: Arc<SignedRoot>,
    /// The statement's index in the batch.
    pub index: u16,
    /// The siblings on the way up. Its length follows from `index` and the batch's count.
    pub path: Arc<[Digest]>,
}

impl BatchSignature {
    /// Whether the path has the length that index and count imply.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        merkle::path_length(usize::from(self.index), usize::from(self.signed.count)) == Some(self.path.len())
    }

    /// Whether the path leads from `leaf`, at this index, to the root. It does not check the root's signature.
    #[must_use]
    pub fn covers(&self, leaf: &Digest) -> bool {
        merkle::fold(leaf, usize::from(self.index), usize::from(self.signed.count), &self.path) == Some(self.signed.root)
            || broken(Mutant::PathUnchecked)
    }
}

const ROOT_DOMAIN: &[u8; 14] = b"bezant root v1";
/// Domain, cluster, shard and index of the signer, count, root.
pub(crate) const ROOT_STATEMENT_BYTES: usize = 14 + 16 + 2 + 2 + 2 + 32;

/// The bytes that are signed for a root. All parts have fixed lengths, so they can be read in one way only.
pub(crate) fn root_statement(cluster: ClusterId, signer: ReplicaId, count: u16, root: &Digest) -> [u8; ROOT_STATEMENT_BYTES] {
    let cluster = if broken(Mutant::ClusterUnnamed) { ClusterId::new([0; 16]) } else { cluster };
    let mut statement = [0; ROOT_STATEMENT_BYTES];
    statement[..14].copy_from_slice(ROOT_DOMAIN);
    statement[14..30].copy_from_slice(cluster.as_bytes());
    statement[30..32].copy_from_slice(&signer.shard.0.to_le_bytes());
    statement[32..34].copy_from_slice(&signer.index.to_le_bytes());
    statement[34..36].copy_from_slice(&count.to_le_bytes());
    statement[36..].copy_from_slice(root);
    statement
}

/// Signs one replica's statements.
#[derive(Debug)]
pub struct BatchSigner {
    key: SecretKey,
    cluster: ClusterId,
    signer: ReplicaId,
    signatures: Signatures,
    known_to: Option<Arc<Verifier>>,
}

impl BatchSigner {
    /// Signs with `key` for replica `signer` of `cluster`.
    #[must_use]
    pub fn new(key: SecretKey, cluster: ClusterId, signer: ReplicaId, signatures: Signatures) -> Self {
        Self { key, cluster, signer, signatures, known_to: None }
    }

    /// What it signatures, `verifier` need not check.
    #[must_use]
    pub fn known_to(self, verifier: Arc<Verifier>) -> Self {
        Self { known_to: Some(verifier), ..self }
    }

    /// A batch signature for each of `leaves`, in their order, all under one signed root.
    ///
    /// Without signatures nothing is hashed or signed: all share one signature of zeros.
    ///
    /// # Panics
    /// When there are more than [`BATCH_STATEMENTS_MAX`] leaves, which the caller's own batching excludes.
    #[must_use]
    pub fn sign(&self, leaves: &[Digest]) -> Vec<BatchSignature> {
        assert!(leaves.len() <= BATCH_STATEMENTS_MAX, "a batch has at most {BATCH_STATEMENTS_MAX} statements");
        if leaves.is_empty() {
            return Vec::new();
        }
        if self.signatures != Signatures::Ed25519 {
            let signed = Arc::new(SignedRoot { root: [0; 32], count: 1, signature: [0; 64] });
            return vec![BatchSignature { signed, index: 0, path: Arc::default() }; leaves.len()];
        }
        let tree = Tree::new(leaves);
        let count = u16::try_from(leaves.len()).expect("SEAL_STATEMENTS_MAX fits in u16");
        let root = tree.root();
        let signature = self.key.sign(&root_statement(self.cluster, self.signer, count, &root));
        let signed = Arc::new(SignedRoot { root, count, signature });
        (0..count)
            .map(|index| BatchSignature { signed: Arc::clone(&signed), index, path: tree.path(usize::from(index)).as_slice().into() })
            .collect()
    }
}

/// A message without its signature yet.
pub trait Signable {
    /// The message that travels.
    type Message;

    /// The leaf that stands for this statement when `signer` makes it.
    fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest;

    /// The message with its signature.
    fn with_signature(self, signature: BatchSignature) -> Self::Message;
}

impl<D: Signable> Signer<D, D::Message> for BatchSigner {
    type Signature = BatchSignature;

    fn sign_batch(&mut self, batch: &[(Party, D)]) -> Vec<BatchSignature> {
        let leaves: Vec<Digest> = batch.iter().map(|(_, unsigned)| unsigned.leaf(self.cluster, self.signer)).collect();
        let signatures = self.sign(&leaves);
        if let (Some(verifier), Some(signature)) = (&self.known_to, signatures.first()) {
            verifier.signed(self.signer, &self.key.public(), &signature.signed);
        }
        signatures
    }

    fn with_signature(&mut self, unsigned: D, signature: BatchSignature) -> D::Message {
        unsigned.with_signature(signature)
    }
}

impl Encode for SignedRoot {
    fn encode(&self, out: &mut Vec<u8>) {
        self.root.encode(out);
        self.count.encode(out);
        self.signature.encode(out);
    }
}

impl Decode for SignedRoot {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (root, count) = (reader.array()?, u16::decode(reader)?);
        if count == 0 {
            return Err(DecodeError::NotCanonical("a signed root's count"));
        }
        if usize::from(count) > BATCH_STATEMENTS_MAX {
            return Err(DecodeError::OverLimit("a signed root's count"));
        }
        Ok(Self { root, count, signature: reader.array()? })
    }
}

/// The path is encoded without its length, which index and count imply, so the length cannot be wrong.
impl Encode for BatchSignature {
    fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_well_formed(), "only well-formed signatures are made or decoded");
        self.signed.encode(out);
        self.index.encode(out);
        for sibling in self.path.iter() {
            out.extend_from_slice(sibling);
        }
    }
}

impl Decode for BatchSignature {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let signed = SignedRoot::decode(reader)?;
        let index = u16::decode(reader)?;
        let length = merkle::path_length(usize::from(index), usize::from(signed.count))
            .ok_or(DecodeError::OverLimit("a batch signature's index"))?;
        let mut path = [[0; 32]; MERKLE_PATH_MAX];
        let path = &mut path[..length]; // Bounded by the tree's size, which is at most BATCH_STATEMENTS_MAX.
        for sibling in path.iter_mut() {
            *sibling = reader.array()?;
        }
        let path: Arc<[Digest]> = Arc::from(&*path);
        Ok(Self { signed: Arc::new(signed), index, path })
    }
}

#[cfg(test)]
mod tests {
    use types::ShardId;

    use super::*;

    struct Note(&'static [u8]);

    impl Statement for Note {
        const KIND: &'static str = "note";
        fn encode_body(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(self.0);
        }
    }

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);
    const SIGNER: ReplicaId = ReplicaId { shard: ShardId(1), index: 2 };

    fn leaves(count: usize) -> Vec<Digest> {
        (0..count).map(|at| crate::digest("leaf", CLUSTER, &[&(at as u64).to_le_bytes()])).collect()
    }

    fn batch_signer(signatures: Signatures) -> BatchSigner {
        BatchSigner::new(SecretKey::from_bytes([1; 32]), CLUSTER, SIGNER, signatures)
    }

    #[test]
    fn leaves_and_signatures_are_fixed() {
        assert_eq!(hex::encode(leaf(CLUSTER, SIGNER, &Note(b"body"))), "c6cfb8e893aa28e89a07d2290f8fb7743f1f0997e090b901fb01d10696bd0985");
        let signatures = batch_signer(Signatures::Ed25519).sign(&leaves(3));
        assert_eq!(
            hex::encode(crate::digest("seal", CLUSTER, &[&signatures[1].to_bytes()])),
            "839b54f23d48b319b1e2272fbfd8e14a83ef425b67243a99200bc7372d9cbd6b"
        );
        assert_eq!(signatures[1].to_bytes().len(), 32 + 2 + 64 + 2 + 2 * 32);
    }

    #[test]
    fn a_leaf_names_cluster_signer_and_kind() {
        struct Other(&'static [u8]);
        impl Statement for Other {
            const KIND: &'static str = "not";
            fn encode_body(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.0);
            }
        }
        let one = leaf(CLUSTER, SIGNER, &Note(b"body"));
        assert_ne!(one, leaf(ClusterId::new([8; 16]), SIGNER, &Note(b"body")));
        assert_ne!(one, leaf(CLUSTER, ReplicaId { index: 3, ..SIGNER }, &Note(b"body")));
        assert_ne!(one, leaf(CLUSTER, SIGNER, &Note(b"bodz")));
        assert_ne!(one, leaf(CLUSTER, SIGNER, &Other(b"body")));
    }

    #[test]
    fn every_signature_of_a_batch_covers_its_own_leaf_and_survives_its_encoding() {
        for count in [1, 2, 3, 7, 64, 255, 256] {
            let leaves = leaves(count);
            let signatures = batch_signer(Signatures::Ed25519).sign(&leaves);
            assert_eq!(signatures.len(), count);
            for (at, signature) in signatures.iter().enumerate() {
                assert!(signature.is_well_formed() && signature.covers(&leaves[at]));
                assert!(count == 1 || !signature.covers(&leaves[(at + 1) % count]));
                assert_eq!(BatchSignature::from_bytes(signature.to_bytes().into(), CLUSTER).as_ref(), Ok(signature));
            }
        }
        assert!(batch_signer(Signatures::Ed25519).sign(&[]).is_empty());
    }

    #[test]
    fn decoding_refuses_what_no_signer_makes() {
        let bytes = batch_signer(Signatures::Ed25519).sign(&leaves(3))[2].to_bytes();
        let decode = |bytes: Vec<u8>| BatchSignature::from_bytes(bytes.into(), CLUSTER).map(|_| ());
        let with = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            decode(changed)
        };
        assert_eq!(decode(bytes.clone()), Ok(()));
        assert_eq!(with(32, 0), Err(DecodeError::NotCanonical("a signed root's count")));
        assert_eq!(with(33, 2), Err(DecodeError::OverLimit("a signed root's count")));
        assert_eq!(with(98, 3), Err(DecodeError::OverLimit("a batch signature's index")));
        assert_eq!(with(98, 1), Err(DecodeError::Truncated));
        assert_eq!(decode([&bytes[..], &[0]].concat()), Err(DecodeError::Trailing));
        assert_eq!(decode(bytes[..bytes.len() - 1].to_vec()), Err(DecodeError::Truncated));
    }

    #[cfg(feature = "lab")]
    #[test]
    fn without_signatures_batch_signatures_are_well_formed_zeros() {
        let signatures = batch_signer(Signatures::Off).sign(&leaves(64));
        assert_eq!(signatures.len(), 64);
        assert!(signatures.iter().all(|signature| signature.is_well_formed() && signature.signed.signature == [0; 64]));
    }

    #[test]
    #[should_panic(expected = "at most 256 statements")]
    fn signing_more_statements_than_the_limit_panics() {
        let _ = batch_signer(Signatures::Ed25519).sign(&leaves(257));
    }
}
