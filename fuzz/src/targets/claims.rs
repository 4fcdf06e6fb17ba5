//! Claims: which statements a signed root covers, asked in any order of a verifier that forgets most of what it learned.

use crypto::{BatchSignature, Claim, Rejection, SignatureClaims, Statement, leaf};
use types::codec::{Decode, Encode};
use types::{Cluster, Digest, ReplicaId};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLUSTER, fixture, replica};
use crate::generators::damage_signature;
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "claims",
    what: "claims under a few signed trees, some damaged: known or new, alone or in a frame, each is judged as if seen first",
    bytes_max: 512,
    runs: 300,
    run,
    seeds,
};

/// Something a replica may say, known to nobody else.
struct Note(u8);

const KIND: &str = "fuzz/note/1";

impl Statement for Note {
    const KIND: &'static str = KIND;
    fn encode_body(&self, out: &mut Vec<u8>) {
        out.push(self.0);
    }
}

/// A message of several notes, each with its signature.
#[derive(Clone)]
struct Notes(Vec<(ReplicaId, u8, BatchSignature)>);

impl SignatureClaims for Notes {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        for (signer, note, signature) in &self.0 {
            out.push(Claim { signer: *signer, leaf: leaf(cluster.id(), *signer, &Note(*note)), signature });
        }
        Ok(())
    }
}

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let fixture = fixture();
    // Room for two roots of each signer, so that much is forgotten.
    let verifier = fixture.stranger(0);
    let batches: Vec<(ReplicaId, Vec<BatchSignature>)> = (0..1 + choices.below(4)).map(|_| batch(&mut choices)).collect();
    let mut messages = Vec::new();
    while !choices.is_done() && messages.len() < 24 {
        messages.push(notes(&mut choices, &batches));
    }
    let mut rest = &messages[..];
    while !rest.is_empty() {
        let (frame, later) = rest.split_at((1 + choices.below(5)).min(rest.len()));
        rest = later;
        let judged = match frame {
            [alone] => vec![verifier.verify(alone.clone()).map(|_| ())],
            _ => verifier.verify_all(frame.to_vec()).into_iter().map(|judged| judged.map(|_| ())).collect(),
        };
        for (message, judged) in frame.iter().zip(judged) {
            let good =
                message.0.iter().all(|(signer, note, signature)| reference::is_said(&fixture.cluster, *signer, signature, KIND, &[*note]));
            assert_eq!(judged.is_ok(), good, "{judged:?}");
        }
    }
}

/// A replica's signatures over the notes 0, 1, 2 and so on.
fn batch(choices: &mut Choices<'_>) -> (ReplicaId, Vec<BatchSignature>) {
    let signer = replica(u16::from(choices.byte() % 3), u16::from(choices.byte() % 2));
    let count = choices.one_of(&[1, 2, 3, 4, 5, 7, 8, 33, 64, 255, 256]);
    let leaves: Vec<Digest> = (0..=255).take(count).map(|note| leaf(CLUSTER, signer, &Note(note))).collect();
    (signer, fixture().batch_signer(signer).sign(&leaves))
}

fn notes(choices: &mut Choices<'_>, batches: &[(ReplicaId, Vec<BatchSignature>)]) -> Notes {
    let count = 1 + choices.below(3);
    let notes = (0..count).map(|_| {
        let (mut signer, signatures) = batches[choices.below(batches.len())].clone();
        let at = choices.below(signatures.len());
        let (mut note, mut signature) = (u8::try_from(at).expect("there are at most 256"), signatures[at].clone());
        match choices.below(6) {
            0..3 => {}
            3 => note = choices.byte(),
            4 => signer = replica(u16::from(choices.byte() % 4), u16::from(choices.byte() % 7)),
            _ => {
                for _ in 0..1 + choices.below(2) {
                    damage_signature(choices, signer.shard, &mut signature);
                }
                check_form(&signature);
            }
        }
        (signer, note, signature)
    });
    Notes(notes.collect())
}

/// What has the right form can be written and read again; what has not leads nowhere.
fn check_form(signature: &BatchSignature) {
    if signature.is_well_formed() {
        assert_eq!(BatchSignature::from_bytes(signature.to_bytes().into(), CLUSTER).as_ref(), Ok(signature));
    }
    assert_eq!(signature.is_well_formed(), reference::climb([7; 32], signature).is_some());
    assert_eq!(signature.covers(&[7; 32]), reference::climb([7; 32], signature) == Some(signature.signed.root));
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0, 0, 8, 0, 0, 5, 0, 1, 0, 6, 0, 0, 0, 5, 0, 0, 0, 7, 3, 9, 2, 0, 1, 0, 0, 2, 0, 0, 3, 0],
        vec![3, 0, 0, 10, 1, 1, 5, 0, 1, 0, 2, 0, 3, 1, 0, 0, 0, 2, 4, 0, 1, 2, 5, 1, 7, 3, 3, 0, 200, 5, 0, 2, 1, 3],
        vec![1, 0, 0, 9, 0, 0, 9, 0, 0, 17, 5, 0, 2, 3, 0, 9, 0, 17, 0, 1, 17, 0, 0, 0, 17, 5, 0, 6, 9],
    ]
}
