//! What a stranger shows before anything is known of it: a certificate. And the two files that hold our own.

use std::fs;
use std::path::Path;

use crypto::SecretKey;
use runtime::make_certificate;
use runtime::tls::{public_key_of, read_certificate, read_private_key, write_certificate, write_private_key};
use rustls::pki_types::CertificateDer;

use super::config::in_file;
use crate::Target;
use crate::fixture::CLUSTER;

pub(super) const TARGET: Target = Target {
    name: "tls",
    what: "reads a certificate, a certificate's file or a key's file; the first byte says which",
    bytes_max: 2_048,
    runs: 10_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 3 {
        0 => drop(public_key_of(&CertificateDer::from(bytes.to_vec()))),
        1 => in_file("certificate.pem", bytes, 0o600, |path| {
            if let Ok(certificate) = read_certificate(path) {
                let _ = public_key_of(&CertificateDer::from(certificate));
            }
        }),
        _ => in_file("key", bytes, 0o600, |path| {
            if let Ok(key) = read_private_key(path) {
                assert_eq!(SecretKey::from_bytes(key.to_bytes()).public(), key.public());
            }
        }),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let secret = SecretKey::from_bytes([3; 32]);
    let certificate = make_certificate(&secret, "s0-r0", CLUSTER).expect("the name is plain");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let read = |which: u8, path: &Path| [&[which][..], &fs::read(path).expect("it was just written")].concat();
    let (key_path, certificate_path) = (folder.path().join("key"), folder.path().join("certificate.pem"));
    write_private_key(&key_path, &secret).expect("the folder is new");
    write_certificate(&certificate_path, &certificate).expect("the folder is new");
    vec![[&[0][..], &certificate].concat(), read(1, &certificate_path), read(2, &key_path)]
}
