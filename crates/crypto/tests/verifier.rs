//! What the verifier lets in and what it refuses, tried from outside.

use std::sync::Arc;

use crypto::{
    BatchSignature, BatchSigner, Claim, Rejection, SecretKey, SignatureClaims, Signatures, SignedRoot, Statement, Verifier, leaf,
};
use curve25519_dalek::constants::{ED25519_BASEPOINT_TABLE, EIGHT_TORSION};
use curve25519_dalek::scalar::Scalar;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sha2::{Digest as _, Sha512};
use types::codec::{Decode, Encode};
use types::limits::BATCH_STATEMENTS_MAX;
use types::{Cluster, ClusterId, Placement, ReplicaId, ShardId};

const CLUSTER: ClusterId = ClusterId::new([7; 16]);

/// Something a replica says.
#[derive(Clone, Debug, PartialEq)]
struct Note(Vec<u8>);

impl Statement for Note {
    const KIND: &'static str = "note";
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// A message that rests on what several replicas said, like a certificate.
#[derive(Clone, Debug, Default, PartialEq)]
struct Letter {
    notes: Vec<(ReplicaId, Note, BatchSignature)>,
    flaw: Option<Rejection>,
}

impl SignatureClaims for Letter {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        for (signer, note, signature) in &self.notes {
            out.push(Claim { signer: *signer, leaf: leaf(cluster.id(), *signer, note), signature });
        }
        self.flaw.map_or(Ok(()), Err)
    }
}

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

fn secret(index: u16) -> SecretKey {
    SecretKey::from_bytes([u8::try_from(index).expect("few replicas") + 1; 32])
}

fn cluster() -> Arc<Cluster> {
    let keys = (0..6).map(|index| secret(index).public()).collect();
    Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit"))
}

fn verifier() -> Verifier {
    Verifier::new(cluster(), Signatures::Ed25519, 1_000).expect("honest keys")
}

/// `count` notes of one replica, signed together. `topic` tells one batch from another.
fn batch(signer: u16, topic: u8, count: usize) -> Vec<(ReplicaId, Note, BatchSignature)> {
    let notes: Vec<Note> = (0..count).map(|at| Note(vec![topic, u8::try_from(at).expect("small batches")])).collect();
    let leaves: Vec<_> = notes.iter().map(|note| leaf(CLUSTER, replica(signer), note)).collect();
    let signatures = BatchSigner::new(secret(signer), CLUSTER, replica(signer), Signatures::Ed25519).sign(&leaves);
    notes.into_iter().zip(signatures).map(|(note, signature)| (replica(signer), note, signature)).collect()
}

fn letter(notes: Vec<(ReplicaId, Note, BatchSignature)>) -> Letter {
    Letter { notes, flaw: None }
}

fn refused(signer: u16) -> Rejection {
    Rejection::BadSignature { signer: replica(signer) }
}

/// What `verifier` makes of `letter`, in a form that compares.
fn judge(verifier: &Verifier, letter: &Letter) -> Result<Letter, Rejection> {
    verifier.verify(letter.clone()).map(crypto::Verified::into_inner)
}

fn with_bytes(one: &BatchSignature, signature: [u8; 64]) -> BatchSignature {
    BatchSignature { signed: Arc::new(SignedRoot { signature, ..(*one.signed).clone() }), ..one.clone() }
}

#[test]
fn valid_messages_pass_and_each_root_is_checked_once() {
    let verifier = verifier();
    let frame: Vec<Letter> = (0..6).flat_map(|signer| batch(signer, 0, 10)).map(|note| letter(vec![note])).collect();
    assert!(verifier.verify_all(frame.clone()).into_iter().zip(&frame).all(|(verified, sent)| verified.as_deref() == Ok(sent)));
    let counts = verifier.counts();
    assert_eq!((counts.roots_checked, counts.batches, counts.failures), (6, 1, 0));
    assert!(verifier.verify_all(frame).iter().all(Result::is_ok));
    let counts = verifier.counts();
    assert_eq!((counts.roots_checked, counts.batches, counts.cache_hits), (6, 1, 60));
}

#[test]
fn a_lone_root_is_checked_without_a_batch() {
    let verifier = verifier();
    assert!(verifier.verify(letter(batch(1, 0, 3))).is_ok());
    let counts = verifier.counts();
    assert_eq!((counts.roots_checked, counts.batches), (1, 0));
}

/// Whoever sends a frame full of signatures has them checked in portions, between which others come.
#[test]
fn a_portion_checks_no_more_than_it_may() {
    let verifier = verifier();
    let frame: Vec<Letter> = (0..10).map(|topic| letter(batch(0, topic, 1))).collect();
    let mut left = frame.into_iter();
    for (judged, roots) in [(3, 3), (3, 6), (3, 9), (1, 10), (0, 10)] {
        let portion = verifier.verify_next(&mut left, 3);
        assert!(portion.len() == judged && portion.iter().all(Result::is_ok));
        assert_eq!(verifier.counts().roots_checked, roots);
    }
}

#[test]
fn a_message_without_claims_passes_and_an_empty_frame_is_empty() {
    assert!(verifier().verify(Letter::default()).is_ok());
    assert!(verifier().verify_all(Vec::<Letter>::new()).is_empty());
}

/// A liar pairs a root that everybody knows with garbage: were it let in on the strength of the root, it would go
/// into certificates that whoever has not cached the root must refuse.
#[test]
fn a_verifier_does_not_check_its_own_signatures() {
    let verifier = verifier();
    let notes = batch(1, 0, 3);
    verifier.signed(replica(1), &secret(1).public(), &notes[0].2.signed);
    assert!(verifier.verify(letter(notes.clone())).is_ok());
    assert_eq!(verifier.counts().roots_checked, 0);
    let forged = vec![(replica(1), Note(vec![0, 9]), notes[0].2.clone())];
    assert_eq!(judge(&verifier, &letter(forged)), Err(refused(1)), "only what was signed");
    let others = vec![(replica(2), notes[0].1.clone(), notes[0].2.clone())];
    assert_eq!(judge(&verifier, &letter(others)), Err(refused(2)), "only as who signed it");
}

#[test]
fn a_cached_root_does_not_validate_another_signature() {
    let verifier = verifier();
    let good = batch(2, 0, 4).remove(1);
    assert!(verifier.verify(letter(vec![good.clone()])).is_ok());
    let forged = (good.0, good.1.clone(), with_bytes(&good.2, [0x11; 64]));
    for _ in 0..2 {
        assert_eq!(judge(&verifier, &letter(vec![forged.clone()])), Err(refused(2)));
        let both = verifier.verify_all(vec![letter(vec![good.clone()]), letter(vec![forged.clone()]), letter(vec![good.clone()])]);
        assert_eq!(both.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }
}

#[test]
fn a_cached_root_does_not_validate_another_count_or_signer() {
    let verifier = verifier();
    let good = batch(2, 0, 1).remove(0);
    assert!(verifier.verify(letter(vec![good.clone()])).is_ok());
    // The same root as the left child of a larger tree: the count is signed, so this is another root.
    let mut larger = good.2.clone();
    larger.signed = Arc::new(SignedRoot { count: 2, ..(*good.2.signed).clone() });
    larger.path = [[0; 32]].into_iter().collect();
    assert_eq!(judge(&verifier, &letter(vec![(good.0, good.1.clone(), larger)])), Err(refused(2)));
    assert_eq!(judge(&verifier, &letter(vec![(replica(3), good.1, good.2)])), Err(refused(3)));
}

/// A liar signs a leaf that stands for another's words beside its own, and names the other as its signer.
#[test]
fn a_claim_for_another_signer_is_refused() {
    let (own, others) = (Note(vec![1]), Note(vec![2]));
    let leaves = [leaf(CLUSTER, replica(1), &own), leaf(CLUSTER, replica(2), &others)];
    let mut signatures = BatchSigner::new(secret(1), CLUSTER, replica(1), Signatures::Ed25519).sign(&leaves).into_iter();
    let mut next = || signatures.next().expect("two leaves, two signatures");
    let own = letter(vec![(replica(1), own, next())]);
    let others = letter(vec![(replica(2), others, next())]);
    for frame in [[own.clone(), others.clone()], [others.clone(), own.clone()]] {
        let verifier = verifier();
        for _ in 0..2 {
            let judged: Vec<_> = verifier.verify_all(frame.to_vec()).into_iter().map(|one| one.map(crypto::Verified::into_inner)).collect();
            for (judged, sent) in judged.into_iter().zip(&frame) {
                assert_eq!(judged, if *sent == own { Ok(own.clone()) } else { Err(refused(2)) });
            }
        }
    }
    let both = letter([own.notes, others.notes].concat());
    assert_eq!(judge(&verifier(), &both), Err(refused(2)));
}

#[test]
fn any_flipped_bit_of_a_signature_or_a_statement_is_refused() {
    let (signer, note, signature) = batch(4, 0, 5).remove(1);
    let (fresh, knowing) = (Verifier::new(cluster(), Signatures::Ed25519, 0).expect("honest keys"), verifier());
    assert!(knowing.verify(letter(vec![(signer, note.clone(), signature.clone())])).is_ok());
    let bytes = signature.to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(changed) = BatchSignature::from_bytes(changed.into(), CLUSTER) else { continue };
        let letter = letter(vec![(signer, note.clone(), changed)]);
        assert_eq!(judge(&fresh, &letter), Err(refused(4)), "bit {bit} of the signature");
        assert_eq!(judge(&knowing, &letter), Err(refused(4)), "bit {bit} of the signature, its root known");
    }
    for bit in 0..note.0.len() * 8 {
        let mut changed = note.clone();
        changed.0[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(judge(&knowing, &letter(vec![(signer, changed, signature.clone())])), Err(refused(4)), "bit {bit} of the note");
    }
}

#[test]
fn a_signature_from_another_cluster_is_refused() {
    let note = Note(vec![1]);
    for (leaf_cluster, root_cluster) in [(CLUSTER, ClusterId::new([8; 16])), (ClusterId::new([8; 16]), CLUSTER)] {
        let batch_signer = BatchSigner::new(secret(0), root_cluster, replica(0), Signatures::Ed25519);
        let signature = batch_signer.sign(&[leaf(leaf_cluster, replica(0), &note)]).remove(0);
        assert_eq!(judge(&verifier(), &letter(vec![(replica(0), note.clone(), signature)])), Err(refused(0)));
    }
}

#[test]
fn rejections_come_in_the_order_of_the_claims_and_form_comes_first() {
    let (first, second) = (batch(1, 0, 1).remove(0), batch(2, 0, 1).remove(0));
    let bad = |note: &(ReplicaId, Note, BatchSignature)| (note.0, note.1.clone(), with_bytes(&note.2, [0; 64]));
    assert_eq!(judge(&verifier(), &letter(vec![bad(&first), bad(&second)])), Err(refused(1)));
    assert_eq!(judge(&verifier(), &letter(vec![first.clone(), bad(&second)])), Err(refused(2)));

    let nobody = ReplicaId { shard: ShardId(3), index: 1 };
    let stranger = (nobody, first.1.clone(), first.2.clone());
    assert_eq!(judge(&verifier(), &letter(vec![bad(&first), stranger])), Err(Rejection::UnknownSigner { signer: nobody }));
    let seventh = (replica(6), first.1.clone(), first.2.clone());
    assert_eq!(judge(&verifier(), &letter(vec![seventh])), Err(Rejection::UnknownSigner { signer: replica(6) }));

    let flaw = Rejection::TooFewSigners { found: 1, needed: 5 };
    assert_eq!(judge(&verifier(), &Letter { notes: vec![bad(&first)], flaw: Some(flaw) }), Err(flaw));
    assert_eq!(flaw.label(), "too_few_signers");
}

#[test]
fn signatures_that_no_decoder_would_make_are_refused_too() {
    let (signer, note, signature) = batch(1, 0, 3).remove(0);
    for (index, count, path) in [(0, 0, 0), (3, 3, 2), (0, 3, 1), (0, 3, 9), (0, 257, 9), (u16::MAX, u16::MAX, 16)] {
        let signed = Arc::new(SignedRoot { count, ..(*signature.signed).clone() });
        let signature = BatchSignature { signed, index, path: vec![[0; 32]; path].into_iter().collect() };
        let judged = judge(&verifier(), &letter(vec![(signer, note.clone(), signature)]));
        assert!(matches!(judged, Err(Rejection::Structure(_))), "{index} of {count} with {path}: {judged:?}");
    }
}

#[cfg(feature = "lab")]
#[test]
fn without_signatures_every_well_formed_message_passes() {
    let verifier = Verifier::new(cluster(), Signatures::Off, 1_000).expect("no key is looked at");
    let signature = BatchSigner::new(secret(0), CLUSTER, replica(0), Signatures::Off).sign(&[[1; 32]]).remove(0);
    let note = Note(vec![1]);
    assert!(verifier.verify(letter(vec![(replica(0), note.clone(), signature.clone())])).is_ok());
    assert!(verifier.verify(letter(vec![batch(1, 0, 5).remove(3)])).is_ok());
    let stranger = verifier.verify(letter(vec![(replica(9), note.clone(), signature.clone())]));
    assert!(matches!(stranger, Err(Rejection::UnknownSigner { .. })));
    let malformed = BatchSignature { index: 1, ..signature.clone() };
    assert!(matches!(verifier.verify(letter(vec![(replica(0), note, malformed)])), Err(Rejection::Structure(_))));
    assert_eq!(verifier.counts(), crypto::VerifierCounts::default());
    // And a verifier that checks does not take a batch signature of zeros.
    assert_eq!(judge(&self::verifier(), &letter(vec![(replica(0), Note(vec![1]), signature)])), Err(refused(0)));
}

#[test]
fn a_cluster_with_a_key_of_small_or_mixed_order_is_refused() {
    let honest: Vec<[u8; 32]> = (0..6).map(|index| secret(index).public()).collect();
    let point = curve25519_dalek::edwards::CompressedEdwardsY(honest[3]).decompress().expect("a public key is a point");
    for bad in [EIGHT_TORSION[0], EIGHT_TORSION[1], EIGHT_TORSION[4], point + EIGHT_TORSION[4], point + EIGHT_TORSION[1]] {
        let mut keys = honest.clone();
        keys[3] = bad.compress().to_bytes();
        let cluster = Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit"));
        let refusal = Verifier::new(cluster, Signatures::Ed25519, 10).expect_err("such a key blurs who signed");
        assert_eq!(refusal.member, "s0-r3");
    }
}

#[test]
fn a_frame_with_more_roots_than_a_batch_is_judged_one_by_one_where_it_must_be() {
    let mut frame: Vec<Letter> = (0..150).map(|topic| letter(batch(u16::from(topic) % 6, topic, 1))).collect();
    frame[70].notes[0].2 = with_bytes(&frame[70].notes[0].2, [9; 64]);
    let verifier = verifier();
    for (at, judged) in verifier.verify_all(frame).into_iter().enumerate() {
        assert_eq!(judged.is_ok(), at != 70, "letter {at}");
    }
    let counts = verifier.counts();
    assert_eq!((counts.roots_checked, counts.batches, counts.failures), (150, 3, 1));
}

/// More new roots than are looked through one by one, and larger trees than one frame has room for.
#[test]
fn a_frame_of_many_new_roots_checks_each_once_and_each_path_in_full() {
    let batches: Vec<_> = (0..70).map(|topic| batch(u16::from(topic) % 6, topic, 200)).collect();
    let mut frame: Vec<Letter> = [3, 150].iter().flat_map(|at| batches.iter().map(|batch| letter(vec![batch[*at].clone()]))).collect();
    for spoilt in [75, 139] {
        Arc::make_mut(&mut frame[spoilt].notes[0].2.path)[7][0] ^= 1;
    }
    let verifier = verifier();
    for (at, judged) in verifier.verify_all(frame).into_iter().enumerate() {
        assert_eq!(judged.is_ok(), at != 75 && at != 139, "letter {at}");
    }
    assert_eq!(verifier.counts().roots_checked, 70);
}

#[test]
fn a_malformed_message_costs_no_signature_check() {
    let (good, other) = (batch(1, 0, 3).remove(0), batch(2, 0, 3).remove(0));
    let spoilt = (other.0, Note(vec![9]), other.2);
    let verifier = verifier();
    let judged = verifier.verify_all(vec![letter(vec![good.clone(), spoilt.clone()]), letter(vec![spoilt])]);
    assert!(judged.iter().all(|judged| judged.as_ref().is_err_and(|rejection| *rejection == refused(2))));
    assert_eq!(verifier.counts(), crypto::VerifierCounts::default());
    // Its good part counts where another letter stands on it.
    assert!(verifier.verify(letter(vec![good])).is_ok());
    assert_eq!(verifier.counts().roots_checked, 1);
}

/// Ways to sign, honest and crafted. What counts is not which of them pass but that one and all say the same.
#[derive(Clone, Copy, Debug)]
enum Craft {
    /// As it should be.
    Honest,
    /// R with a component of small order: good by ZIP 215, bad by rules that do not clear the cofactor.
    TorsionInR(usize),
    /// R itself of small order.
    SmallR(usize),
    /// s over the group's order: the same number written otherwise.
    LargeS,
    /// Bytes that are no signature at all.
    Garbage(u8),
    /// A good signature of another replica.
    Borrowed,
    /// A good signature over another root.
    Elsewhere,
}

/// Signs `message` with a nonce point that is off by a point of small order, honestly otherwise: only a signer can.
fn sign_off_curve(key: &SecretKey, message: &[u8], torsion: usize, nonce: u64) -> [u8; 64] {
    let expanded = Sha512::digest(key.to_bytes());
    let mut half = [0; 32];
    half.copy_from_slice(&expanded[..32]);
    let secret = Scalar::from_bytes_mod_order(curve25519_dalek::scalar::clamp_integer(half));
    let nonce = Scalar::from(nonce);
    let point = (&nonce * ED25519_BASEPOINT_TABLE + EIGHT_TORSION[torsion]).compress();
    let mut wide = [0; 64];
    wide.copy_from_slice(&Sha512::new().chain_update(point.as_bytes()).chain_update(key.public()).chain_update(message).finalize());
    let challenge = Scalar::from_bytes_mod_order_wide(&wide);
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(point.as_bytes());
    signature[32..].copy_from_slice((nonce + challenge * secret).as_bytes());
    signature
}

/// The bytes that are signed for a root, written down once more and apart from the crate, so that a change is noticed.
fn signed_bytes(signer: ReplicaId, signed: &SignedRoot) -> Vec<u8> {
    let mut bytes = b"bezant root v1".to_vec();
    bytes.extend_from_slice(CLUSTER.as_bytes());
    (signer.shard.0, signer.index, signed.count).encode_all(&mut bytes);
    bytes.extend_from_slice(&signed.root);
    bytes
}

trait EncodeAll {
    fn encode_all(&self, out: &mut Vec<u8>);
}

impl EncodeAll for (u16, u16, u16) {
    fn encode_all(&self, out: &mut Vec<u8>) {
        for number in [self.0, self.1, self.2] {
            number.encode(out);
        }
    }
}

fn crafted(signer: u16, topic: u8, craft: Craft) -> (ReplicaId, Note, BatchSignature) {
    let (id, note, signature) = batch(signer, topic, 3).remove(usize::from(topic) % 3);
    let message = signed_bytes(id, &signature.signed);
    let bytes = match craft {
        Craft::Honest => signature.signed.signature,
        Craft::TorsionInR(torsion) => sign_off_curve(&secret(signer), &message, torsion, 1 + u64::from(topic)),
        Craft::SmallR(torsion) => sign_off_curve(&secret(signer), &message, torsion, 0),
        Craft::LargeS => add_group_order(signature.signed.signature),
        Craft::Garbage(byte) => [byte; 64],
        Craft::Borrowed => secret((signer + 1) % 6).sign(&message),
        Craft::Elsewhere => batch(signer, topic.wrapping_add(1), 3)[0].2.signed.signature,
    };
    (id, note, with_bytes(&signature, bytes))
}

fn add_group_order(mut signature: [u8; 64]) -> [u8; 64] {
    let below = (Scalar::ZERO - Scalar::ONE).to_bytes();
    let mut carry = 1;
    for (byte, add) in signature[32..].iter_mut().zip(below) {
        let sum = u16::from(*byte) + u16::from(add) + carry;
        *byte = (sum & 0xff) as u8;
        carry = sum >> 8;
    }
    signature
}

#[test]
fn the_rule_is_zip_215() {
    for torsion in 0..8 {
        for craft in [Craft::TorsionInR(torsion), Craft::SmallR(torsion)] {
            assert!(verifier().verify(letter(vec![crafted(0, 5, craft)])).is_ok(), "{craft:?}");
        }
    }
    for craft in [Craft::LargeS, Craft::Garbage(0), Craft::Garbage(0xff), Craft::Borrowed, Craft::Elsewhere] {
        assert_eq!(judge(&verifier(), &letter(vec![crafted(0, 5, craft)])), Err(refused(0)), "{craft:?}");
    }
}

fn any_craft() -> impl Strategy<Value = Craft> {
    prop_oneof![
        6 => Just(Craft::Honest),
        2 => (0..8usize).prop_map(Craft::TorsionInR),
        1 => (0..8usize).prop_map(Craft::SmallR),
        1 => Just(Craft::LargeS),
        1 => any::<u8>().prop_map(Craft::Garbage),
        1 => Just(Craft::Borrowed),
        1 => Just(Craft::Elsewhere),
    ]
}

/// Letters of a few notes each; some notes share a batch, and some of those differ in their signature alone.
fn any_frame() -> impl Strategy<Value = Vec<Letter>> {
    let note = (0..6u16, 0..8u8, any_craft()).prop_map(|(signer, topic, craft)| crafted(signer, topic, craft));
    let flaw = prop_oneof![12 => Just(None), 1 => Just(Some(Rejection::Structure("flawed")))];
    let letter = (prop::collection::vec(note, 0..4), flaw).prop_map(|(notes, flaw)| Letter { notes, flaw });
    prop::collection::vec(letter, 0..12)
}

fn any_signature() -> impl Strategy<Value = BatchSignature> {
    (1..=BATCH_STATEMENTS_MAX, any::<[u8; 32]>(), any::<u16>(), any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(
        |(count, root, index, left, right)| {
            let leaves: Vec<[u8; 32]> = (0..count).map(|at| [at.to_le_bytes()[0]; 32]).collect();
            let index = usize::from(index) % count;
            let mut signature = BatchSigner::new(secret(0), CLUSTER, replica(0), Signatures::Ed25519).sign(&leaves).swap_remove(index);
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&left);
            bytes[32..].copy_from_slice(&right);
            signature.signed = Arc::new(SignedRoot { root, count: signature.signed.count, signature: bytes });
            signature
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(215), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn a_frame_gets_the_verdicts_of_its_messages_alone(frame in any_frame()) {
        let alone: Vec<_> = frame.iter().map(|letter| judge(&verifier(), letter)).collect();
        let shared = verifier();
        // Twice: the second time from the cache.
        for _ in 0..2 {
            let together = shared.verify_all(frame.clone()).into_iter();
            prop_assert_eq!(&together.map(|judged| judged.map(crypto::Verified::into_inner)).collect::<Vec<_>>(), &alone);
        }
        let one_by_one: Vec<_> = frame.iter().map(|letter| judge(&shared, letter)).collect();
        prop_assert_eq!(one_by_one, alone);
    }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn a_signature_survives_its_encoding(signature in any_signature()) {
        prop_assert_eq!(BatchSignature::from_bytes(signature.to_bytes().into(), CLUSTER), Ok(signature));
    }

    #[test]
    fn bytes_that_decode_are_the_signatures_own(mut bytes in prop::collection::vec(any::<u8>(), 100..400), count in 0..260u16, index in 0..260u16) {
        bytes[32..34].copy_from_slice(&count.to_le_bytes());
        bytes[98..100].copy_from_slice(&index.to_le_bytes());
        let mut reader = types::codec::Reader::new(bytes.clone().into(), CLUSTER);
        if let Ok(signature) = BatchSignature::decode(&mut reader) {
            prop_assert_eq!(&signature.to_bytes()[..], &bytes[..bytes.len() - reader.remaining()]);
        }
    }
}

/// What is done to an honest note on its way. Numbers are taken modulo what there is; what cannot be done is left undone.
#[derive(Clone, Copy, Debug)]
enum Harm {
    None,
    Note,
    Sibling(usize, u8),
    /// A sibling is replaced by one of another signature of the same batch.
    Borrowed(usize, usize),
    Index(u16),
    Count(u16),
    Root(u8),
    Signature(usize),
    /// The signature of another note of the same batch.
    SignatureOf(usize),
    Signer(u16),
    Shorter,
    Longer,
}

fn any_harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        12 => Just(Harm::None),
        1 => Just(Harm::Note),
        4 => (0..8usize, any::<u8>()).prop_map(|(level, bit)| Harm::Sibling(level, bit)),
        2 => (0..8usize, any::<usize>()).prop_map(|(level, other)| Harm::Borrowed(level, other)),
        1 => any::<u16>().prop_map(Harm::Index),
        1 => (0..260u16).prop_map(Harm::Count),
        1 => any::<u8>().prop_map(Harm::Root),
        2 => (0..512usize).prop_map(Harm::Signature),
        1 => any::<usize>().prop_map(Harm::SignatureOf),
        1 => (0..8u16).prop_map(Harm::Signer),
        1 => Just(Harm::Shorter),
        1 => Just(Harm::Longer),
    ]
}

fn harmed(batch: &[(ReplicaId, Note, BatchSignature)], at: usize, harm: Harm) -> (ReplicaId, Note, BatchSignature) {
    let (mut signer, mut note, mut signature) = batch[at % batch.len()].clone();
    let mut signed = (*signature.signed).clone();
    let levels = signature.path.len();
    match harm {
        Harm::None => {}
        Harm::Note => note.0[0] ^= 1,
        Harm::Sibling(level, bit) if levels > 0 => {
            Arc::make_mut(&mut signature.path)[level % levels][usize::from(bit) / 8] ^= 1 << (bit % 8)
        }
        Harm::Borrowed(level, other) if levels > 0 => {
            let others = &batch[other % batch.len()].2.path;
            Arc::make_mut(&mut signature.path)[level % levels] = others[level % others.len()];
        }
        Harm::Sibling(..) | Harm::Borrowed(..) => {}
        Harm::Index(index) => signature.index = index % (signed.count + 1),
        Harm::Count(count) => signed.count = count,
        Harm::Root(bit) => signed.root[usize::from(bit) / 8] ^= 1 << (bit % 8),
        Harm::Signature(bit) => signed.signature[bit / 8] ^= 1 << (bit % 8),
        Harm::SignatureOf(other) => return (signer, note, batch[other % batch.len()].2.clone()),
        Harm::Signer(other) => signer.index = other,
        Harm::Shorter => signature.path = signature.path.split_last().map_or(&[][..], |(_, rest)| rest).into(),
        Harm::Longer => signature.path = [&signature.path[..], &[signed.root]].concat().into(),
    }
    signature.signed = Arc::new(signed);
    (signer, note, signature)
}

/// The judgement as it is defined: every path in full, every signature by itself, nothing remembered.
fn plain_judgement(letter: &Letter) -> Result<(), Rejection> {
    for (signer, note, signature) in &letter.notes {
        if signer.index >= 6 {
            return Err(Rejection::UnknownSigner { signer: *signer });
        }
        if !signature.is_well_formed() {
            return Err(Rejection::Structure("a batch signature's index, count and path do not fit"));
        }
        if !signature.covers(&leaf(CLUSTER, *signer, note)) {
            return Err(refused(signer.index));
        }
    }
    for (signer, _, signature) in &letter.notes {
        let key = ed25519_zebra::VerificationKey::try_from(secret(signer.index).public()).expect("an honest key");
        let bytes = ed25519_zebra::Signature::from_bytes(&signature.signed.signature);
        key.verify(&bytes, &signed_bytes(*signer, &signature.signed)).map_err(|_| refused(signer.index))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(200))]

    /// Frames of letters from a few batches, some honest and some not: whatever a verifier has seen before and whatever
    /// it has forgotten since, it judges as the definition does.
    #[test]
    fn the_cache_never_changes_a_verdict(
        counts in prop::array::uniform4(prop_oneof![1..9usize, Just(64), 1..200usize]),
        frames in prop::collection::vec(
            prop::collection::vec(prop::collection::vec((0..4usize, any::<usize>(), any_harm()), 1..4), 1..6), 1..8),
    ) {
        let batches: Vec<_> = (0..4u8).map(|at| batch(u16::from(at % 3), at, counts[usize::from(at)])).collect();
        let forgetful = Verifier::new(cluster(), Signatures::Ed25519, 0).expect("honest keys");
        let mindful = verifier();
        for frame in frames {
            let note = |(from, at, harm): &(usize, usize, Harm)| harmed(&batches[*from], *at, *harm);
            let frame: Vec<Letter> = frame.iter().map(|notes| letter(notes.iter().map(note).collect())).collect();
            let plain: Vec<_> = frame.iter().map(plain_judgement).collect();
            for verifier in [&forgetful, &mindful] {
                let judged: Vec<_> = verifier.verify_all(frame.clone()).into_iter().map(|judged| judged.map(|_| ())).collect();
                prop_assert_eq!(&judged, &plain);
            }
            let again: Vec<_> = frame.iter().map(|letter| judge(&mindful, letter).map(|_| ())).collect();
            prop_assert_eq!(again, plain);
        }
    }
}

/// What an earlier key signed counts no more, also where it was checked before; what the others signed does.
#[test]
fn a_signature_by_a_key_that_has_gone_counts_no_more() {
    let verifier = verifier();
    let (gone, stays) = (letter(batch(1, 0, 3)), letter(batch(2, 0, 3)));
    assert!(verifier.verify_all(vec![gone.clone(), stays.clone()]).iter().all(Result::is_ok));
    let keys = (0..6).map(|index| secret(if index == 1 { 11 } else { index }).public()).collect();
    let next = Cluster::new(CLUSTER, 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit");
    verifier.reconfigure(Arc::new(next)).expect("the key is good");
    let by_earlier_key = Err(Rejection::EarlierKey { signer: replica(1) });
    assert_eq!(judge(&verifier, &gone), by_earlier_key);
    assert_eq!(judge(&verifier, &stays), Ok(stays));
    // What nobody signed is not forgiven because the key was changed.
    let mut forged = batch(1, 0, 3);
    for (_, _, signature) in &mut forged {
        *signature = with_bytes(signature, [5; 64]);
    }
    assert_eq!(judge(&verifier, &letter(forged.clone())), Err(refused(1)));
    forged.extend(batch(1, 0, 3));
    assert_eq!(judge(&verifier, &letter(forged)), Err(refused(1)), "one that nobody signed is enough");
    // What a process signed by the earlier key meanwhile is not good because it was its own.
    let late = batch(1, 1, 1);
    verifier.signed(replica(1), &secret(1).public(), &late[0].2.signed);
    assert_eq!(judge(&verifier, &letter(late)), by_earlier_key);
    let own = leaf(CLUSTER, replica(1), &Note(vec![7]));
    let signature = BatchSigner::new(secret(11), CLUSTER, replica(1), Signatures::Ed25519).sign(&[own]).remove(0);
    assert!(verifier.verify(letter(vec![(replica(1), Note(vec![7]), signature)])).is_ok());
}
