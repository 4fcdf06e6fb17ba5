//! One rule for signatures: the equation of ZIP 215, alone and in batches, whatever points of small order are mixed in.

use crypto::{BatchChecker, KeyError, SignedMessage, check_public_key};
use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT, EIGHT_TORSION};
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::Identity as _;
use ed25519_zebra::{Signature, VerificationKey};
use sha2::{Digest as _, Sha512};

use crate::Target;
use crate::choices::Choices;

pub(super) const TARGET: Target = Target {
    name: "signatures",
    what: "signatures with points of small order and odd encodings: alone, together and by the bare equation they are judged alike",
    bytes_max: 512,
    runs: 800,
    run,
    seeds,
};

/// A signature to be judged.
struct Case {
    key: [u8; 32],
    signature: [u8; 64],
    message: Vec<u8>,
}

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let cases: Vec<Case> = (0..1 + choices.below(4)).map(|_| case(&mut choices)).collect();
    let expected: Vec<bool> = cases.iter().map(is_valid).collect();
    for (case, expected) in cases.iter().zip(&expected) {
        check_key(&case.key);
        let signature = Signature::from_bytes(&case.signature);
        let alone = VerificationKey::try_from(case.key).is_ok_and(|key| key.verify(&signature, &case.message).is_ok());
        assert_eq!(alone, *expected, "alone");
    }
    // Among so many other keys, to come before and behind those that are tabled.
    let others = std::iter::repeat_n(ED25519_BASEPOINT_POINT.compress().0, choices.below(64));
    let first = others.len();
    let all_points = cases.iter().all(|case| CompressedEdwardsY(case.key).decompress().is_some());
    let together = BatchChecker::new(others.chain(cases.iter().map(|case| case.key)));
    assert_eq!(together.is_some(), all_points, "keys that are points make a checker");
    let Some(together) = together else { return };
    let signed = cases.iter().zip(first..);
    let signed = signed.map(|(case, key)| SignedMessage { key, signature: &case.signature, message: &case.message });
    let signed: Vec<SignedMessage<'_>> = signed.collect();
    assert_eq!(together.all_good(&signed), expected.iter().all(|valid| *valid), "together");
}

/// `[8][s]B = [8]R + [8][k]A`, with `s` canonical, and any encoding of `A` and `R` that is a point.
fn is_valid(case: &Case) -> bool {
    let (r_bytes, s_bytes) = case.signature.split_at(32);
    let point = |bytes: &[u8]| CompressedEdwardsY(bytes.try_into().expect("half of 64")).decompress();
    let s: Option<Scalar> = Scalar::from_canonical_bytes(s_bytes.try_into().expect("half of 64")).into();
    let (Some(a), Some(r), Some(s)) = (point(&case.key), point(r_bytes), s) else { return false };
    let k = challenge(r_bytes, &case.key, &case.message);
    let difference = ED25519_BASEPOINT_POINT * s - r - a * k;
    difference.mul_by_cofactor() == EdwardsPoint::identity()
}

fn challenge(r: &[u8], key: &[u8; 32], message: &[u8]) -> Scalar {
    let hash = Sha512::new().chain_update(r).chain_update(key).chain_update(message).finalize();
    Scalar::from_bytes_mod_order_wide(&hash.into())
}

/// A key is let in exactly when it is a point of the large group, not its neutral element, in its one encoding.
fn check_key(key: &[u8; 32]) {
    let judged = check_public_key(key);
    let Some(point) = CompressedEdwardsY(*key).decompress() else {
        assert_eq!(judged, Err(KeyError::NotAPoint));
        return;
    };
    let is_canonical = point.compress().0 == *key;
    let order = Scalar::ZERO - Scalar::ONE; // The group's order less one.
    let is_torsion_free = point * order == -point;
    let good = is_canonical && is_torsion_free && point != EdwardsPoint::identity();
    assert_eq!(judged.is_ok(), good, "{judged:?}");
}

fn case(choices: &mut Choices<'_>) -> Case {
    let secret = Scalar::from(choices.number()) + Scalar::ONE;
    let nonce = Scalar::from(u64::from(choices.byte())) + Scalar::ONE;
    let message = choices.take(usize::from(choices.clone().byte() % 4)).to_vec();
    let torsion = |choices: &mut Choices<'_>| EIGHT_TORSION[choices.below(8)];
    // A key of large, mixed or small order, or any bytes.
    let a = match choices.below(4) {
        0 => ED25519_BASEPOINT_POINT * secret,
        1 => ED25519_BASEPOINT_POINT * secret + torsion(choices),
        _ => torsion(choices),
    };
    let key = encoding(choices, &a);
    let r = match choices.below(3) {
        0 => ED25519_BASEPOINT_POINT * nonce,
        1 => ED25519_BASEPOINT_POINT * nonce + torsion(choices),
        _ => torsion(choices),
    };
    let r_bytes = encoding(choices, &r);
    let k = challenge(&r_bytes, &key, &message);
    let mut s = match choices.below(4) {
        0 | 1 => nonce + k * secret,
        2 => Scalar::ZERO,
        _ => Scalar::from(choices.number()),
    }
    .to_bytes();
    match choices.below(4) {
        0 | 1 => {}
        // The group's order more: the same number, in another form.
        2 => s = add_order(s),
        _ => s[choices.below(32)] ^= 1 << choices.below(8),
    }
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&r_bytes);
    signature[32..].copy_from_slice(&s);
    Case { key, signature, message }
}

/// A point's bytes: the canonical ones, one of the others where there are such, or some bytes.
fn encoding(choices: &mut Choices<'_>, point: &EdwardsPoint) -> [u8; 32] {
    let mut bytes = point.compress().0;
    match choices.below(6) {
        0..3 => {}
        3 => bytes[31] ^= 0x80,
        // p more, where that fits: only for y below 19.
        4 if bytes[1..31].iter().all(|byte| *byte == 0) && bytes[0] < 19 && bytes[31] & 0x7f == 0 => {
            let low = bytes[0];
            let sign = bytes[31] & 0x80;
            bytes = [0xff; 32];
            bytes[0] = 0xed + low;
            bytes[31] = 0x7f | sign;
        }
        4 => {}
        _ => {
            let taken = choices.take(32);
            bytes[..taken.len()].copy_from_slice(taken);
        }
    }
    bytes
}

/// The order of the large group, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0x10,
];

fn add_order(mut number: [u8; 32]) -> [u8; 32] {
    let mut carry = 0_u16;
    for (byte, more) in number.iter_mut().zip(ORDER) {
        carry += u16::from(*byte) + u16::from(more);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    number
}

fn seeds() -> Vec<Vec<u8>> {
    let honest = [7, 0, 0, 0, 0, 0, 0, 0, 9, 0];
    let case = |end: &[u8]| [&[0][..], &honest, end].concat();
    vec![
        case(&[0, 0, 0, 0, 0, 0]),
        case(&[0, 0, 1, 3, 0, 0, 0]),
        case(&[2, 1, 0, 2, 4, 0, 2, 0]),
        case(&[1, 5, 0, 0, 0, 2, 2]),
        [&[3][..], &honest, &[0, 0, 0, 0, 0, 0], &honest, &[1, 1, 0, 1, 2, 0, 0, 0], &honest, &[0, 0, 2, 0, 4, 2, 0], &honest, &[0]]
            .concat(),
    ]
}
