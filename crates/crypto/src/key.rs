//! Keys: how they are made, and which are accepted.

use std::fmt;

use curve25519_dalek::edwards::CompressedEdwardsY;
use ed25519_zebra::SigningKey;
use types::Cluster;
use zeroize::Zeroize;

/// Whether statements are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// With Ed25519, by the rule of ZIP 215.
    Ed25519,
    /// Not at all: signatures carry zeros and every check passes. For measurement only; whoever reaches such a
    /// cluster owns it.
    #[cfg(feature = "lab")]
    Off,
}

/// A member's secret key. It is never printed, and it is wiped from memory when dropped.
#[derive(Clone)]
pub struct SecretKey(Box<SigningKey>);

impl SecretKey {
    /// A new key, from the operating system's randomness.
    ///
    /// # Panics
    /// When the operating system has no randomness to give: no key is better than a weak one.
    #[must_use]
    pub fn generate() -> Self {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("the operating system gives randomness");
        let key = Self::from_bytes(seed);
        seed.zeroize();
        key
    }

    /// The key with this seed.
    #[must_use]
    pub fn from_bytes(seed: [u8; 32]) -> Self {
        Self(Box::new(SigningKey::from_bytes(&seed)))
    }

    /// The key's seed, for who must store it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The half that others know.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        self.0.verification_key().into()
    }

    /// Signs `message`, which must name its own kind and cluster.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretKey(redacted)")
    }
}

/// Why a public key is refused. The remedy is always another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The bytes are no point of the curve.
    #[error("it is not a point of the curve")]
    NotAPoint,
    /// The bytes are a point, but not in its one canonical form.
    #[error("it is not in canonical form")]
    NotCanonical,
    /// The point is of small order: anybody can sign for it.
    #[error("it is of small order, so anybody could sign for it")]
    SmallOrder,
    /// The point has a component of small order: implementations of Ed25519 disagree about its signatures.
    #[error("it has a component of small order")]
    MixedOrder,
}

/// Checks a public key before it enters a configuration.
///
/// # Errors
/// [`KeyError`] says what is wrong with it.
///
/// ```
/// use crypto::{KeyError, SecretKey, check_public_key};
/// assert_eq!(check_public_key(&SecretKey::generate().public()), Ok(()));
/// assert_eq!(check_public_key(&[0; 32]), Err(KeyError::SmallOrder));
/// ```
pub fn check_public_key(key: &[u8; 32]) -> Result<(), KeyError> {
    let point = CompressedEdwardsY(*key).decompress().ok_or(KeyError::NotAPoint)?;
    if point.compress().as_bytes() != key {
        return Err(KeyError::NotCanonical);
    }
    if point.is_small_order() {
        return Err(KeyError::SmallOrder);
    }
    if !point.is_torsion_free() {
        return Err(KeyError::MixedOrder);
    }
    Ok(())
}

/// A member of the configuration whose public key is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the public key of {member} is refused: {reason}")]
pub struct BadMember {
    /// Which replica or client, as it is written elsewhere.
    pub member: String,
    /// What is wrong with its key.
    #[source]
    pub reason: KeyError,
}

/// Checks the key of every replica and every client; call it where a configuration is made or loaded.
///
/// # Errors
/// The first [`BadMember`].
pub fn check_members(cluster: &Cluster) -> Result<(), BadMember> {
    check_replicas(cluster)?;
    for (client, permission) in cluster.clients() {
        check_public_key(&permission.public_key).map_err(|reason| BadMember { member: client.to_string(), reason })?;
    }
    Ok(())
}

/// Checks the key of every replica.
pub(crate) fn check_replicas(cluster: &Cluster) -> Result<(), BadMember> {
    for replica in cluster.replicas() {
        let key = cluster.replica_key(replica).expect("a cluster has the key of each of its replicas");
        check_public_key(key).map_err(|reason| BadMember { member: replica.to_string(), reason })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use curve25519_dalek::constants::EIGHT_TORSION;
    use types::{ClientId, ClusterId, Permission, Placement};

    use super::*;

    #[test]
    fn a_key_survives_its_bytes_and_signs_the_same() {
        let key = SecretKey::from_bytes([3; 32]);
        let again = SecretKey::from_bytes(key.to_bytes());
        assert_eq!(key.public(), again.public());
        assert_eq!(key.sign(b"words"), again.sign(b"words"));
        assert_ne!(SecretKey::generate().public(), SecretKey::generate().public());
    }

    #[test]
    fn signatures_are_those_of_rfc_8032() {
        // RFC 8032 §7.1, test 2.
        let mut seed = [0; 32];
        hex::decode_to_slice("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", &mut seed).expect("64 hex digits");
        let key = SecretKey::from_bytes(seed);
        assert_eq!(hex::encode(key.public()), "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        assert_eq!(
            hex::encode(key.sign(&[0x72])),
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        );
    }

    #[test]
    fn a_secret_key_is_not_printed() {
        assert_eq!(format!("{:?}", SecretKey::from_bytes([3; 32])), "SecretKey(redacted)");
    }

    #[test]
    fn keys_of_small_or_mixed_order_are_refused() {
        let honest = CompressedEdwardsY(SecretKey::from_bytes([3; 32]).public()).decompress().expect("a public key is a point");
        for torsion in EIGHT_TORSION {
            assert_eq!(check_public_key(torsion.compress().as_bytes()), Err(KeyError::SmallOrder));
        }
        for torsion in &EIGHT_TORSION[1..] {
            assert_eq!(check_public_key((honest + torsion).compress().as_bytes()), Err(KeyError::MixedOrder));
        }
    }

    #[test]
    fn keys_that_are_no_points_or_not_canonical_are_refused() {
        let mut not_a_point = [0; 32];
        not_a_point[0] = 2;
        assert_eq!(check_public_key(&not_a_point), Err(KeyError::NotAPoint));
        // y = p + 1, which is 1 written with a carry: the identity again, not in canonical form.
        let mut carried = [0xff; 32];
        carried[0] = 0xee;
        carried[31] = 0x7f;
        assert_eq!(check_public_key(&carried), Err(KeyError::NotCanonical));
        // x = 0 with its sign bit set: "minus zero".
        let mut minus_zero = [0; 32];
        minus_zero[0] = 1;
        minus_zero[31] = 0x80;
        assert_eq!(check_public_key(&minus_zero), Err(KeyError::NotCanonical));
    }

    #[test]
    fn members_with_bad_keys_are_named() {
        let mut keys: Vec<[u8; 32]> = (1..=6).map(|seed| SecretKey::from_bytes([seed; 32]).public()).collect();
        let client = |public_key| vec![(ClientId(9), Permission { public_key, ..Permission::default() })];
        let cluster = |keys: &[[u8; 32]], clients| {
            Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, vec![keys.to_vec()], clients).expect("the parts fit")
        };
        assert_eq!(check_members(&cluster(&keys, client(SecretKey::from_bytes([8; 32]).public()))), Ok(()));
        let refused = check_members(&cluster(&keys, client([0; 32]))).expect_err("the client's key is of small order");
        assert_eq!((refused.member.as_str(), refused.reason), ("c9", KeyError::SmallOrder));
        keys[4] = [0; 32];
        let refused = check_members(&cluster(&keys, vec![])).expect_err("the replica's key is of small order");
        assert_eq!((refused.member.as_str(), refused.reason), ("s0-r4", KeyError::SmallOrder));
    }
}
