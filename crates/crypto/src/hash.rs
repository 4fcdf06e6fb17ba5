//! Hashes with domain separation.
//!
//! Every input begins with one byte for its kind. Every part except the last has a fixed length or carries its length. So two
//! different things never have the same input.

use sha2::{Digest as _, Sha256};
use types::{ClusterId, Digest};

/// Begins the hash of a statement: a leaf of a batch signature's tree.
pub(crate) const TAG_LEAF: u8 = 0;
/// Begins the hash of two children: an inner node of a batch signature's tree.
pub(crate) const TAG_NODE: u8 = 1;
/// Begins every other hash.
const TAG_DIGEST: u8 = 2;

/// The hash of `parts`, in the sense `domain` gives them, in `cluster`.
///
/// Each part carries its length, so moving bytes from one part to the next changes the hash.
///
/// ```
/// let cluster = types::ClusterId::new([7; 16]);
/// let together = crypto::digest("pair", cluster, &[b"ab", b"c"]);
/// assert_ne!(together, crypto::digest("pair", cluster, &[b"a", b"bc"]));
/// ```
#[must_use]
pub fn digest(domain: &str, cluster: ClusterId, parts: &[&[u8]]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update([TAG_DIGEST]);
    hasher.update(length(domain.as_bytes()));
    hasher.update(domain.as_bytes());
    hasher.update(cluster.as_bytes());
    for part in parts {
        hasher.update(length(part));
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_fixed() {
        let digest = digest("test", ClusterId::new([7; 16]), &[b"one", b"", b"three"]);
        assert_eq!(hex::encode(digest), "469da57eec93bf02c6fc3e5aae31bea16114d9d1ac463d1be5e7ea1e389a353b");
    }

    #[test]
    fn domain_cluster_and_part_lengths_change_the_hash() {
        let cluster = ClusterId::new([7; 16]);
        let digests = [
            digest("test", cluster, &[b"ab"]),
            digest("tesu", cluster, &[b"ab"]),
            digest("test", ClusterId::new([8; 16]), &[b"ab"]),
            digest("test", cluster, &[b"a", b"b"]),
            digest("test", cluster, &[b"ab", b""]),
            digest("test", cluster, &[]),
        ];
        for (at, one) in digests.iter().enumerate() {
            assert!(digests[at + 1..].iter().all(|other| one != other), "digest {at} occurs twice");
        }
    }
}
