//! Certificates: a good one, damaged a few times. What still passes must still prove what it says.

use std::sync::Arc;

use basil::{Certificate, Message, Transaction};
use types::codec::{Decode, Encode};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLUSTER, fixture, verifier};
use crate::generators;
use crate::reference;

pub(super) const TARGET: Target = Target {
    name: "certificate",
    what: "damages a good certificate; whatever passes, enough distinct replicas have signed for exactly that",
    bytes_max: 256,
    runs: 8_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let number = generators::number(&mut choices);
    let mut certificate = generators::certificate(&mut choices, number);
    let mut transaction = &fixture().transactions[number];
    check(&certificate, transaction);
    for _ in 0..choices.below(6) {
        if choices.rarely(8) {
            transaction = &fixture().transactions[generators::number(&mut choices)];
        } else {
            generators::damage(&mut choices, &mut certificate);
        }
        check(&certificate, transaction);
    }
}

fn check(certificate: &Certificate, transaction: &Transaction) {
    let cluster = &fixture().cluster;
    let whole = Message::Writeback { transaction: Some(transaction.clone()), certificate: Arc::new(certificate.clone()), relay: false };
    let bare = Message::Decided { certificate: Arc::new(certificate.clone()) };
    let accepted = verifier().verify(whole.clone()).is_ok();
    // To the letter, and in what it means.
    assert_eq!(accepted, reference::accepts(cluster, &whole), "{certificate:?}");
    assert!(!accepted || reference::proves(cluster, certificate, transaction), "{certificate:?} of {transaction:?}");
    // Whoever has the transaction already comes to the same answer in two steps.
    let fits = certificate.fits(cluster, transaction).is_ok();
    assert_eq!(fits, reference::fits(cluster, certificate, transaction));
    assert_eq!(fits && verifier().verify(bare.clone()).is_ok(), accepted);
    // And so does whoever gets it as bytes.
    if generators::is_writable(&whole) {
        let received = Message::from_bytes(whole.to_bytes().into(), CLUSTER).expect("what can be written can be read");
        assert_eq!(received, whole);
        assert_eq!(verifier().verify(received).is_ok(), accepted);
    } else {
        assert!(!accepted, "what no bytes can say was accepted");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0],
        vec![4, 0, 2, 5, 0, 2, 1],
        vec![1, 1, 0, 2, 3, 0, 3, 2, 0],
        vec![2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 4, 1, 5, 2],
        vec![1, 3, 0, 0, 0, 1, 0, 2, 0, 4, 2, 0],
        vec![4, 3, 18, 1, 2, 0, 1, 0, 3, 2, 0, 0],
    ]
}
