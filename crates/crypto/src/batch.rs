//! Checks many signatures with one equation.
//!
//! By ZIP 215 a signature `(R, s)` of a message by key `A` is good when `s` is below the group's order, `R` is a point in any
//! encoding, and `8 (s B - R - k A) = 0`, with `k = SHA-512(R, A, message)`. The equations of many signatures are added, each multiplied
//! with a random weight of 128 bits, so that invalid signatures cannot cancel out; the `k` of one key are added first.
//!
//! ed25519-zebra, which checks single signatures here, has batch checks, too, but decompresses every key and builds its table for each
//! batch. Here the keys are those of one cluster, and this is done once.

use std::collections::BTreeMap;

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint, VartimeEdwardsPrecomputation};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{IsIdentity as _, VartimePrecomputedMultiscalarMul as _};
use mutants::{Mutant, broken};
use sha2::{Digest as _, Sha512};

/// The most keys that get tables of their own: 10 KiB each. The first ones do; others are only decompressed ahead.
const TABLED_KEYS_MAX: usize = 48;

/// A signature that one of the keys of a [`BatchChecker`] is said to have made.
#[derive(Clone, Copy, Debug)]
pub struct SignedMessage<'a> {
    /// Which key: its place among them, from 0.
    pub key: usize,
    /// The signature, in 64 bytes that may be anything.
    pub signature: &'a [u8; 64],
    /// What was signed.
    pub message: &'a [u8],
}

/// Checks many signatures of a few keys together.
///
/// ```
/// use crypto::{BatchChecker, SecretKey, SignedMessage};
///
/// let secrets = [SecretKey::generate(), SecretKey::generate()];
/// let checker = BatchChecker::new(secrets.iter().map(SecretKey::public)).expect("they are points");
/// let signatures = secrets.each_ref().map(|secret| secret.sign(b"yes"));
/// let signed = [0, 1].map(|key| SignedMessage { key, signature: &signatures[key], message: b"yes" });
/// assert!(checker.all_good(&signed));
/// assert!(!checker.all_good(&[signed[0], SignedMessage { message: b"no", ..signed[1] }]));
/// ```
pub struct BatchChecker {
    keys: Vec<(CompressedEdwardsY, EdwardsPoint)>,
    /// Of the generator, then of the first keys.
    tables: VartimeEdwardsPrecomputation,
}

impl BatchChecker {
    /// For `keys`; `None` when one of them is not a point. [`check_public_key`](crate::check_public_key) says which keys are
    /// acceptable.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Option<Self> {
        let key = |bytes| Some((CompressedEdwardsY(bytes), CompressedEdwardsY(bytes).decompress()?));
        let keys: Vec<(CompressedEdwardsY, EdwardsPoint)> = keys.into_iter().map(key).collect::<Option<_>>()?;
        let tabled = keys.iter().take(TABLED_KEYS_MAX).map(|(_, point)| *point);
        let tables = VartimeEdwardsPrecomputation::new(std::iter::once(ED25519_BASEPOINT_POINT).chain(tabled));
        Some(Self { keys, tables })
    }

    /// Whether all signatures are good, with an error probability of 2^-128; `true` for none. It is `false` when the system has no
    /// randomness or a key index is out of range.
    #[must_use]
    pub fn all_good(&self, signatures: &[SignedMessage<'_>]) -> bool {
        let mut random = vec![0; 16 * signatures.len()];
        getrandom::fill(&mut random).is_ok() && self.sum(signatures, &random).is_some_and(|sum| sum.mul_by_cofactor().is_identity())
    }

    /// The weighted sum of the equations; `None` when a signature is malformed.
    fn sum(&self, signatures: &[SignedMessage<'_>], random: &[u8]) -> Option<EdwardsPoint> {
        debug_assert_eq!(random.len(), 16 * signatures.len(), "each has its weight");
        let mut of_base = Scalar::ZERO;
        let mut of_keys = BTreeMap::new();
        let mut others = Vec::with_capacity(signatures.len());
        for (signed, weight) in signatures.iter().zip(random.as_chunks().0) {
            let (r, s) = signed.signature.split_first_chunk()?;
            let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(s.try_into().ok()?))?;
            let (key, _) = self.keys.get(signed.key)?;
            let hash = Sha512::new().chain_update(r).chain_update(key.as_bytes()).chain_update(signed.message).finalize();
            let weight = if broken(Mutant::BatchUnweighed) { Scalar::ONE } else { Scalar::from(u128::from_le_bytes(*weight)) };
            // All of it negated, so that the weights of the many points stay short.
            of_base -= weight * s;
            *of_keys.entry(signed.key).or_insert(Scalar::ZERO) += weight * Scalar::from_bytes_mod_order_wide(&hash.into());
            others.push((weight, Some(CompressedEdwardsY(*r).decompress()?)));
        }
        let untabled = of_keys.split_off(&TABLED_KEYS_MAX);
        others.extend(untabled.iter().map(|(key, scalar)| (*scalar, Some(self.keys[*key].1))));
        // Tables of keys behind the last one that signed need not be looked at.
        let used = of_keys.last_key_value().map_or(0, |(last, _)| last + 1);
        let tabled = std::iter::once(of_base).chain((0..used).map(|key| of_keys.get(&key).copied().unwrap_or(Scalar::ZERO)));
        let (scalars, points): (Vec<Scalar>, Vec<Option<EdwardsPoint>>) = others.into_iter().unzip();
        self.tables.optional_mixed_multiscalar_mul(tabled, scalars, points)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use curve25519_dalek::constants::EIGHT_TORSION;
    use curve25519_dalek::scalar::clamp_integer;
    use ed25519_zebra::VerificationKey;

    use super::*;
    use crate::SecretKey;

    fn secret(index: usize) -> SecretKey {
        SecretKey::from_bytes([u8::try_from(index).expect("few keys") + 1; 32])
    }

    fn checker(keys: usize) -> BatchChecker {
        BatchChecker::new((0..keys).map(|index| secret(index).public())).expect("they are points")
    }

    /// What `check` says of a message signed by each of `keys`.
    fn check(checker: &BatchChecker, keys: &[usize], spoil: impl FnOnce(&mut Vec<[u8; 64]>)) -> bool {
        let messages: Vec<[u8; 3]> = (0..keys.len()).map(|at| [7, at as u8, 1]).collect();
        let mut signatures = keys.iter().zip(&messages).map(|(key, message)| secret(*key).sign(message)).collect();
        spoil(&mut signatures);
        let signed =
            keys.iter().zip(&messages).zip(&signatures).map(|((key, message), signature)| SignedMessage { key: *key, signature, message });
        checker.all_good(&signed.collect::<Vec<_>>())
    }

    #[test]
    fn keys_with_and_without_tables_are_alike() {
        let count = TABLED_KEYS_MAX + 3;
        let (few, many) = (checker(6), checker(count));
        assert!(check(&few, &[], |_| {}));
        assert!(check(&few, &[0, 5, 0, 3, 3], |_| {}));
        let all: Vec<usize> = (0..count).chain([count - 1, 0]).collect();
        assert!(check(&many, &all, |_| {}));
        for spoiled in [0, TABLED_KEYS_MAX - 1, TABLED_KEYS_MAX, count - 1] {
            for byte in [0, 31, 32, 63] {
                assert!(!check(&many, &all, |signatures| signatures[spoiled][byte] ^= 1), "signature {spoiled}, byte {byte}");
            }
        }
        assert!(!check(&few, &[0, 1], |signatures| signatures.swap(0, 1)));
        assert!(!check(&few, &[6], |_| {}), "there is no such key");
    }

    /// Nonce points of every order, in every way they can be written, by tabled keys and others: as if each were checked alone.
    #[test]
    fn points_of_small_order_get_the_same_verdict_in_a_batch_and_alone() {
        let many = checker(TABLED_KEYS_MAX + 1);
        assert_eq!(ways_to_write(&EIGHT_TORSION[0]).len(), 4, "of one y twice, and of either sign");
        for key in [0, TABLED_KEYS_MAX] {
            for torsion in EIGHT_TORSION {
                let public = secret(key).public();
                let expanded = Sha512::digest(secret(key).to_bytes());
                let scalar = Scalar::from_bytes_mod_order(clamp_integer(*expanded.first_chunk().expect("half of it")));
                for nonce in [Scalar::ZERO, Scalar::from(7_u8)] {
                    for r in ways_to_write(&(ED25519_BASEPOINT_POINT * nonce + torsion)) {
                        let hash = Sha512::new().chain_update(r).chain_update(public).chain_update(b"odd").finalize();
                        let s = nonce + Scalar::from_bytes_mod_order_wide(&hash.into()) * scalar;
                        for s in [s, s + Scalar::ONE] {
                            let signature: [u8; 64] = [r, s.to_bytes()].concat().try_into().expect("two halves");
                            let alone = VerificationKey::try_from(public).expect("a point").verify(&signature.into(), b"odd").is_ok();
                            let signed = SignedMessage { key, signature: &signature, message: b"odd" };
                            assert_eq!(many.all_good(&[signed]), alone);
                            assert_eq!(many.all_good(&[signed, signed]), alone);
                        }
                    }
                }
            }
        }
    }

    /// A point's own encoding, and what else decodes to it: with its y over the field's size, or its x, being 0, called negative.
    fn ways_to_write(point: &EdwardsPoint) -> BTreeSet<[u8; 32]> {
        let canonical = point.compress().to_bytes();
        let mut ways = BTreeSet::from([canonical]);
        for sign in [0, 0x80] {
            for low in 0..19 {
                let mut over = [0xff; 32];
                (over[0], over[31]) = (0xed + low, 0x7f | sign);
                ways.insert(over);
            }
            let mut other_sign = canonical;
            other_sign[31] = (other_sign[31] & 0x7f) | sign;
            ways.insert(other_sign);
        }
        ways.retain(|bytes| CompressedEdwardsY(*bytes).decompress().as_ref() == Some(point));
        ways
    }

    #[test]
    fn two_bad_signatures_do_not_cancel_out() {
        let scalar = |bytes: &[u8]| Scalar::from_bytes_mod_order(bytes.try_into().expect("the second half"));
        let spoil = |signatures: &mut Vec<[u8; 64]>| {
            for (at, more) in [(0, Scalar::ONE), (1, -Scalar::ONE)] {
                let moved = scalar(&signatures[at][32..]) + more;
                signatures[at][32..].copy_from_slice(moved.as_bytes());
            }
        };
        assert!(!check(&checker(2), &[0, 1], spoil));
        assert!(!check(&checker(2), &[1, 1], spoil));
    }
}
