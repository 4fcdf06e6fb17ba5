//! Mutual TLS 1.3, where the key *is* the identity.
//!
//! Every member has one Ed25519 key and a certificate that it signed itself. There is no certificate authority: the handshake
//! proves that the peer holds the key, and the cluster's configuration says whose key it is. So no authority has to be
//! protected, nothing expires, and no name has to match.
//!
//! * A dialler pins the one key of the replica it dials, and breaks off the handshake on any other.
//! * A listener accepts *any* Ed25519 key, or none, in the handshake, because it can send a reason only over an open channel.
//!   The owner of a key that is not in the cluster gets nothing but that reason.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crypto::SecretKey;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use types::{ClusterId, Party};

/// What stands before the 32 bytes of an Ed25519 public key in a certificate (RFC 8410).
const PUBLIC_KEY_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// What stands before the 32 bytes of an Ed25519 secret key in PKCS #8 (RFC 8410).
const SECRET_KEY_PREFIX: [u8; 16] = [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The longest key or certificate file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why an identity cannot be used. Retrying does not help: a file must be corrected.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may read the private key.
    #[error("{path}: the private key can be read by others (mode {mode:03o}); run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The certificate was made for another key.
    #[error("the certificate belongs to another private key: take both from the same folder")]
    Mismatch,
    /// The cluster knows the party by another key, or not at all.
    #[error("cluster {cluster} does not know {party} by this key: take key and configuration from the same folder")]
    NotMember {
        /// Who it is to be.
        party: Party,
        /// The cluster.
        cluster: ClusterId,
    },
    /// The certificate or key cannot be used for TLS.
    #[error("the certificate or key is of no use for TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The certificate could not be made.
    #[error("the certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// Who this node is on the wire: its key, the certificate that shows it, and its name in the cluster.
#[derive(Clone, Debug)]
pub struct Identity {
    party: Party,
    public_key: [u8; 32],
    server: Arc<ServerConfig>,
    provider: Arc<CryptoProvider>,
    certificate: CertificateDer<'static>,
    secret: SecretBytes,
}

/// A secret key in PKCS #8, never shown.
#[derive(Clone)]
struct SecretBytes(Arc<PrivatePkcs8KeyDer<'static>>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a secret key")
    }
}

impl Identity {
    /// `party`, who holds `secret` and shows `certificate` (DER, from [`make_certificate`]).
    ///
    /// # Errors
    /// [`IdentityError`] when the certificate was made for another key or cannot be used.
    pub fn new(party: Party, secret: &SecretKey, certificate: Vec<u8>) -> Result<Self, IdentityError> {
        let certificate = CertificateDer::from(certificate);
        let public_key = secret.public();
        if public_key_of(&certificate)? != public_key {
            return Err(IdentityError::Mismatch);
        }
        let provider = provider();
        let secret = SecretBytes(Arc::new(secret_to_pkcs8(secret)));
        let server = Arc::new(server_config(&provider, &certificate, &secret)?);
        Ok(Self { party, public_key, server, provider, certificate, secret })
    }

    /// `party`, from the two PEM files that [`write_private_key`] and [`write_certificate`] wrote.
    ///
    /// # Errors
    /// [`IdentityError`], naming the file and what to do about it.
    pub fn load(party: Party, key_path: &Path, certificate_path: &Path) -> Result<Self, IdentityError> {
        Self::new(party, &read_private_key(key_path)?, read_certificate(certificate_path)?)
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn party(&self) -> Party {
        self.party
    }

    /// The key that others know it by.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.public_key
    }

    /// How it accepts connections: of any key, or none, so that whoever accepts has to look at the one that was shown.
    #[must_use]
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// How it dials the one peer that holds `pinned`.
    ///
    /// # Errors
    /// [`IdentityError::Tls`] when the key or the certificate is of no use.
    pub fn client_config(&self, pinned: [u8; 32]) -> Result<Arc<ClientConfig>, IdentityError> {
        let verifier = Arc::new(PinnedServer { pinned, algorithms: self.provider.signature_verification_algorithms });
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(vec![self.certificate.clone()], PrivateKeyDer::Pkcs8(self.secret.0.clone_key()))?;
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Makes the certificate (DER) by which the holder of `secret` shows its key. `name` and the cluster's name are in
/// it for people who look; no decision rests on them.
///
/// # Errors
/// [`IdentityError::Make`] when the encoder refuses the name.
pub fn make_certificate(secret: &SecretKey, name: &str, cluster: ClusterId) -> Result<Vec<u8>, IdentityError> {
    let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&secret_to_pkcs8(secret), &rcgen::PKCS_ED25519)?;
    let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, format!("bezant {cluster}"));
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(9999, 12, 31);
    Ok(parameters.self_signed(&key)?.der().to_vec())
}

/// The Ed25519 public key that a certificate (DER) shows.
///
/// # Errors
/// [`rustls::Error::InvalidCertificate`] when it cannot be parsed or shows another kind of key.
pub fn public_key_of(certificate: &CertificateDer<'_>) -> Result<[u8; 32], rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    parsed
        .subject_public_key_info()
        .strip_prefix(&PUBLIC_KEY_PREFIX)
        .and_then(|key| key.try_into().ok())
        .ok_or_else(|| CertificateError::Other(rustls::OtherError(Arc::new(NotEd25519))).into())
}

/// Writes `secret` as PEM into a new file that only its owner may read.
///
/// # Errors
/// [`IdentityError::File`] when the file exists already or cannot be written.
pub fn write_private_key(path: &Path, secret: &SecretKey) -> Result<(), IdentityError> {
    let text = pem("PRIVATE KEY", secret_to_pkcs8(secret).secret_pkcs8_der());
    write_new(path, &text, 0o600).map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Writes a certificate (DER) as PEM into a new file.
///
/// # Errors
/// [`IdentityError::File`] when the file exists already or cannot be written.
pub fn write_certificate(path: &Path, certificate: &[u8]) -> Result<(), IdentityError> {
    write_new(path, &pem("CERTIFICATE", certificate), 0o644).map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Reads a private key that [`write_private_key`] wrote; refuses a file that others may read.
///
/// # Errors
/// [`IdentityError`], naming the file and what to do about it.
pub fn read_private_key(path: &Path) -> Result<SecretKey, IdentityError> {
    let content = |what| IdentityError::Content { path: path.to_owned(), what };
    let file = fs::File::open(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    refuse_exposed(path, &file)?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&read_small(path, file)?)
        .map_err(|_| content("this is not a private key in PEM form (PKCS #8)"))?;
    let secret: [u8; 32] = key
        .secret_pkcs8_der()
        .strip_prefix(&SECRET_KEY_PREFIX)
        .and_then(|secret| secret.try_into().ok())
        .ok_or_else(|| content("the private key is not an Ed25519 key as `bezant init` writes it"))?;
    Ok(SecretKey::from_bytes(secret))
}

/// Reads a certificate (DER) that [`write_certificate`] wrote.
///
/// # Errors
/// [`IdentityError`], naming the file.
pub fn read_certificate(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let file = fs::File::open(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    let certificate = CertificateDer::from_pem_slice(&read_small(path, file)?)
        .map_err(|_| IdentityError::Content { path: path.to_owned(), what: "this is not a certificate in PEM form" })?;
    Ok(certificate.to_vec())
}

fn read_small(path: &Path, file: fs::File) -> Result<Vec<u8>, IdentityError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    Ok(bytes)
}

#[cfg(unix)]
fn refuse_exposed(path: &Path, file: &fs::File) -> Result<(), IdentityError> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = file.metadata().map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(IdentityError::Exposed { path: path.to_owned(), mode }) }
}

/// On other systems, their own permissions protect the file.
#[cfg(not(unix))]
fn refuse_exposed(_path: &Path, _file: &fs::File) -> Result<(), IdentityError> {
    Ok(())
}

/// Creates the file with its final permissions, so that others can never open it.
fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// PEM is base64 in lines of 64 between two marks (RFC 7468); too little to take a dependency for.
fn pem(label: &str, bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in bytes.chunks(48) {
        for three in line.chunks(3) {
            let word = three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
            for digit in 0..4 {
                let sextet = (word >> (18 - 6 * digit)) & 63;
                text.push(if digit <= three.len() { char::from(ALPHABET[sextet as usize]) } else { '=' });
            }
        }
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn secret_to_pkcs8(secret: &SecretKey) -> PrivatePkcs8KeyDer<'static> {
    let mut bytes = SECRET_KEY_PREFIX.to_vec();
    bytes.extend_from_slice(&secret.to_bytes());
    PrivatePkcs8KeyDer::from(bytes)
}

/// One cipher preference for everybody: AES-128-GCM first, which this hardware does fastest.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    certificate: &CertificateDer<'static>,
    secret: &SecretBytes,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = Arc::new(AnyClient { algorithms: provider.signature_verification_algorithms });
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(secret.0.clone_key()))?;
    // Nothing is resumed: each connection proves its key anew, and no ticket outlives a removed member.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// A certificate shows a key that no member can have.
#[derive(Debug, thiserror::Error)]
#[error("the certificate does not show an Ed25519 key")]
struct NotEd25519;

/// Accepts exactly one server key.
#[derive(Debug)]
struct PinnedServer {
    pinned: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

/// The server showed another key than the one the cluster's configuration gives to the replica at that address.
#[derive(Debug, thiserror::Error)]
#[error("the peer there holds the key {found}, not {expected}: another cluster's node listens there, or an address is wrong")]
pub(crate) struct WrongKey {
    found: String,
    expected: String,
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = public_key_of(end_entity)?;
        if found == self.pinned {
            return Ok(ServerCertVerified::assertion());
        }
        let error = WrongKey { found: hex::encode(found), expected: hex::encode(self.pinned) };
        Err(CertificateError::Other(rustls::OtherError(Arc::new(error))).into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Accepts every client that proves to hold the Ed25519 key it shows, and those that show none: who may speak is
/// decided after the handshake, by key, where a refusal can be put into words.
#[derive(Debug)]
struct AnyClient {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        public_key_of(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T>(result: Result<T, IdentityError>) -> String {
        result.err().map(|error| error.to_string()).expect("it is refused")
    }

    #[test]
    fn a_certificate_shows_its_makers_key() {
        let secret = SecretKey::from_bytes([1; 32]);
        let certificate = make_certificate(&secret, "s0-r3", ClusterId::new([7; 16])).expect("it can be made");
        assert_eq!(public_key_of(&CertificateDer::from(certificate)).expect("it shows an Ed25519 key"), secret.public());
    }

    #[test]
    fn every_cut_of_a_certificate_is_refused() {
        let secret = SecretKey::from_bytes([1; 32]);
        let certificate = make_certificate(&secret, "s0-r3", ClusterId::new([7; 16])).expect("it can be made");
        for length in 0..certificate.len() {
            let cut = CertificateDer::from(certificate[..length].to_vec());
            assert!(public_key_of(&cut).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn keys_and_certificates_come_back_from_their_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (key, certificate) = (folder.path().join("key.pem"), folder.path().join("certificate.pem"));
        let secret = SecretKey::from_bytes([9; 32]);
        write_private_key(&key, &secret).expect("it is new");
        let made = make_certificate(&secret, "c1", ClusterId::new([7; 16])).expect("it can be made");
        write_certificate(&certificate, &made).expect("it is new");
        assert_eq!(read_private_key(&key).expect("it was just written").to_bytes(), secret.to_bytes());
        assert_eq!(read_certificate(&certificate).expect("it was just written"), made);
        assert!(refused(write_private_key(&key, &secret)).contains("key.pem"));
    }

    #[cfg(unix)]
    #[test]
    fn a_private_key_that_others_may_read_is_refused_with_the_cure() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("key.pem");
        write_private_key(&path, &SecretKey::from_bytes([9; 32])).expect("it is new");
        let mode = fs::metadata(&path).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
        assert!(refused(read_private_key(&path)).contains("chmod 600"));
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let made = make_certificate(&SecretKey::from_bytes([1; 32]), "c1", ClusterId::new([7; 16])).expect("it can be made");
        let party = Party::Client(types::ClientId(1), types::Session(1));
        assert!(refused(Identity::new(party, &SecretKey::from_bytes([2; 32]), made)).contains("another private key"));
    }
}
