//! Many signatures, checked in one equation.
//!
//! By ZIP 215 a signature `(R, s)` of a message by key `A` is good when `s` is below the group's order, `R` is a point however it is
//! written, and `8 (s B - R - k A) = 0`, with `k = SHA-512(R, A, message)`. Of many signatures the equations are added up, each weighed
//! with a random number of 128 bits, so that what one lacks no other can make up for; the `k` of one key are added up first.
//!
//! ed25519-zebra, which checks single signatures here, has this sum too, and decompresses and tables every key anew for each. Here the
//! keys are those of one cluster, and this is done once.

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint, VartimeEdwardsPrecomputation};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{IsIdentity as _, VartimePrecomputedMultiscalarMul as _};
use sha2::{Digest as _, Sha512};
use types::mutant::{Mutant, broken};

/// The most keys that get tables of their own: 10 KiB each. The first ones do; others are only decompressed ahead.
const TABLED_KEYS_MAX: usize = 48;

/// A signature by one of the keys.
pub(crate) struct Signed<'a> {
    /// Which key: its place among them.
    pub key: usize,
    pub signature: &'a [u8; 64],
    pub message: &'a [u8],
}

/// The keys whose signatures are checked.
pub(crate) struct BatchChecker {
    keys: Vec<(CompressedEdwardsY, EdwardsPoint)>,
    /// Of the generator, then of the first keys.
    tables: VartimeEdwardsPrecomputation,
}

impl BatchChecker {
    /// For `keys`, or nothing where one of them is no point.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Option<Self> {
        let key = |bytes| Some((CompressedEdwardsY(bytes), CompressedEdwardsY(bytes).decompress()?));
        let keys: Vec<(CompressedEdwardsY, EdwardsPoint)> = keys.into_iter().map(key).collect::<Option<_>>()?;
        let tabled = keys.iter().take(TABLED_KEYS_MAX).map(|(_, point)| *point);
        let tables = VartimeEdwardsPrecomputation::new(std::iter::once(ED25519_BASEPOINT_POINT).chain(tabled));
        Some(Self { keys, tables })
    }

    /// Whether all are good; what is not so is found with a chance of 1 - 2^-128. When the system has no randomness, none is.
    pub fn all_good(&self, signatures: &[Signed<'_>]) -> bool {
        let mut random = vec![0; 16 * signatures.len()];
        getrandom::fill(&mut random).is_ok() && self.sum(signatures, &random).is_some_and(|sum| sum.mul_by_cofactor().is_identity())
    }

    /// The weighed sum of what each signature lacks, or nothing where one has not the form.
    fn sum(&self, signatures: &[Signed<'_>], random: &[u8]) -> Option<EdwardsPoint> {
        let mut of_base = Scalar::ZERO;
        let mut of_keys = vec![Scalar::ZERO; self.keys.len()];
        let mut others = Vec::with_capacity(signatures.len());
        for (signed, weight) in signatures.iter().zip(random.as_chunks().0) {
            let (r, s) = signed.signature.split_first_chunk()?;
            let s = Option::<Scalar>::from(Scalar::from_canonical_bytes(s.try_into().ok()?))?;
            let (key, _) = self.keys.get(signed.key)?;
            let hash = Sha512::new().chain_update(r).chain_update(key.as_bytes()).chain_update(signed.message).finalize();
            let weight = if broken(Mutant::BatchUnweighed) { Scalar::ONE } else { Scalar::from(u128::from_le_bytes(*weight)) };
            of_base += weight * s;
            of_keys[signed.key] += weight * Scalar::from_bytes_mod_order_wide(&hash.into());
            others.push((-weight, Some(CompressedEdwardsY(*r).decompress()?)));
        }
        // Keys stand on the other side of the equation.
        of_keys.iter_mut().for_each(|scalar| *scalar = -*scalar);
        let rest = of_keys.split_off(of_keys.len().min(TABLED_KEYS_MAX));
        let untabled = rest.iter().zip(&self.keys[of_keys.len()..]).filter(|(scalar, _)| **scalar != Scalar::ZERO);
        others.extend(untabled.map(|(scalar, (_, point))| (*scalar, Some(*point))));
        // Those behind the last that signed need not be looked at.
        let used = of_keys.iter().rposition(|scalar| *scalar != Scalar::ZERO).map_or(0, |last| last + 1);
        let tabled = std::iter::once(&of_base).chain(&of_keys[..used]);
        let (scalars, points): (Vec<Scalar>, Vec<Option<EdwardsPoint>>) = others.into_iter().unzip();
        self.tables.optional_mixed_multiscalar_mul(tabled, scalars, points)
    }
}

#[cfg(test)]
mod tests {
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
        let signed = keys.iter().zip(&messages).zip(&signatures).map(|((key, message), signature)| Signed { key: *key, signature, message });
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

    #[test]
    fn two_bad_signatures_do_not_make_up_for_one_another() {
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
