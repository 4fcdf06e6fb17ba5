//! Keys, signatures over batches of statements, and the proof that a message was checked.
//!
//! A replica makes many statements in one turn (votes, logged decisions). Signing each of them would cost more than all its
//! other work, so it signs them together (Basil §4.4): the statements are the leaves of a Merkle tree, and one signature
//! covers the root. Each statement travels with a [`BatchSignature`], which is the signed root and the path from the leaf to
//! it. A receiver of several statements of one batch checks one signature and some hashes.
//!
//! ```text
//!                 root ── signature of the replica over (cluster, signer, count, root)
//!                /    \
//!            node      node            a batch signature = the signed root, the leaf's index,
//!           /    \    /    \                    and the siblings on the way up
//!        leaf  leaf  leaf  leaf
//!          |     |     |     |
//!        vote  vote  decision vote     leaf = hash of (kind, cluster, signer, body)
//! ```
//!
//! Invariants:
//!
//! - **One meaning.** A signature names its cluster, its signer and the size of its batch; a leaf names its kind.
//!   Leaves, nodes and other hashes begin with different bytes. So no statement can be replayed as another.
//! - **One rule.** A signature is valid exactly if ZIP 215 says so, alone and in a batch, so no two participants ever
//!   disagree about a certificate. Public keys with a component of small order are refused ([`check_public_key`]).
//! - **One way in.** Only [`Verifier`] makes a [`Verified<T>`], and a machine takes no other messages.
//! - **Signatures do not identify.** The holder of a key can make many signatures over one root, so signature bytes never
//!   identify anything. The cache of checked roots compares them only to tell good from bad.
//! - **The cache changes no verdict.** A verifier caches good roots and the proven parts of their trees, which makes the next
//!   claim of a batch cheap. With or without the cache, every claim gets the same verdict. Otherwise a Byzantine participant
//!   could make certificates that some accept and others refuse.
//!
//! ```
//! use std::sync::Arc;
//! use crypto::{Claim, SignatureClaims, Rejection, BatchSignature, BatchSigner, SecretKey, Signatures, Statement, Verifier, leaf};
//! use types::{Cluster, ClusterId, Placement, ReplicaId, ShardId};
//!
//! // Something a replica may say.
//! struct Greeting(String);
//! impl Statement for Greeting {
//!     const KIND: &'static str = "greeting";
//!     fn encode_body(&self, out: &mut Vec<u8>) {
//!         out.extend_from_slice(self.0.as_bytes());
//!     }
//! }
//!
//! // The same with its signature, as it travels.
//! struct Signed { signer: ReplicaId, greeting: Greeting, signature: BatchSignature }
//! impl SignatureClaims for Signed {
//!     fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
//!         let leaf = leaf(cluster.id(), self.signer, &self.greeting);
//!         out.push(Claim { signer: self.signer, leaf, signature: &self.signature });
//!         Ok(())
//!     }
//! }
//!
//! let secrets: Vec<SecretKey> = (0..6).map(|_| SecretKey::generate()).collect();
//! let keys = secrets.iter().map(SecretKey::public).collect();
//! let cluster = Arc::new(Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, vec![keys], vec![])?);
//!
//! let signer = ReplicaId { shard: ShardId(0), index: 2 };
//! let batch_signer = BatchSigner::new(secrets[2].clone(), cluster.id(), signer, Signatures::Ed25519);
//! let greeting = Greeting("hello".into());
//! let signature = batch_signer.sign(&[leaf(cluster.id(), signer, &greeting)]).remove(0);
//!
//! let verifier = Verifier::new(cluster, Signatures::Ed25519, 1_024)?;
//! let verified = verifier.verify(Signed { signer, greeting, signature: signature.clone() })?;
//! assert_eq!(verified.greeting.0, "hello");
//! assert!(verifier.verify(Signed { signer, greeting: Greeting("hullo".into()), signature }).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod batch_signature;
mod compression;
pub mod configuration;
mod fork;
mod hash;
mod key;
mod merkle;
mod proven_tree;
mod root_cache;
pub mod takeover;
mod verified;
mod verifier;

pub use batch::{BatchChecker, SignedMessage};
pub use batch_signature::{BatchSignature, BatchSigner, Signable, SignedRoot, Statement, leaf};
pub use compression::{Compress, SignatureCompression};
pub use configuration::{Chain, ChainError, Configuration, Holder, Operators, SignedConfiguration};
pub use fork::{Fork, ForkError};
pub use hash::digest;
pub use key::{BadMember, KeyError, SecretKey, Signatures, check_members, check_public_key};
pub use takeover::{PeerVersions, Takeover};
pub use verified::{Claim, Rejection, ReplicaKeys, SignatureClaims, Verified};
pub use verifier::{EARLIER_KEYS_MAX, Verifier, VerifierCounts};
