//! Clients over TLS 1.3: the server's key and certificates, and what a client's certificate says of whose it is.
//!
//! What ZooKeeper calls stores are files of PEM here, as it accepts them too: `ssl.keyStore.location` has the private key and the
//! certificates that lead to a known authority, `ssl.trustStore.location` the authorities of clients. A client is known in ACLs of the
//! scheme `x509` by its certificate's subject, written as Java writes it (RFC 2253), which is what ZooKeeper compares.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked for one.
    None,
    /// One that is shown must be good.
    Want,
    /// They must.
    #[default]
    Need,
}

impl ClientAuth {
    /// `none`, `want` or `need`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "none" => Some(Self::None),
            "want" => Some(Self::Want),
            "need" => Some(Self::Need),
            _ => None,
        }
    }
}

/// How clients are served over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The private key and the certificates.
    pub key_store: PathBuf,
    /// The authorities of clients.
    pub trust_store: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub client_auth: ClientAuth,
}

/// Why nobody can be served over TLS.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what is wrong")]
pub enum TlsError {
    #[error("cannot read {}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("{} is no file of PEM; make one with: openssl pkcs12 -in store.p12 -nodes -out store.pem (and keytool -importkeystore for a JKS)", .0.display())]
    NotPem(PathBuf),
    #[error("the private key in {} is encrypted: take the passphrase off (openssl pkey), and let nobody else read the file", .0.display())]
    Encrypted(PathBuf),
    #[error("{} has no {what}", path.display())]
    Missing { path: PathBuf, what: &'static str },
    #[error("ssl.trustStore.location is missing: without it nobody's certificate can be checked (or set ssl.clientAuth=none)")]
    NoTrust,
    #[error("of no use for TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let bytes = std::fs::read(path).map_err(|error: io::Error| TlsError::File { path: path.to_owned(), why: error.to_string() })?;
    if !bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        return Err(TlsError::NotPem(path.to_owned()));
    }
    Ok(bytes)
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| TlsError::File { path: path.to_owned(), why: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::Missing { path: path.to_owned(), what: "certificate" });
    }
    Ok(found)
}

impl TlsConfig {
    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be read, or does not hold what it should.
    pub fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let path = &self.key_store;
        let bytes = read(path)?;
        let chain = certificates(path, &bytes)?;
        if bytes.windows(9).any(|window| window == b"ENCRYPTED") {
            return Err(TlsError::Encrypted(path.clone()));
        }
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| TlsError::Missing { path: path.clone(), what: "private key" })?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&rustls::version::TLS13])?;
        let config = match self.verifier(&provider)? {
            None => config.with_no_client_auth(),
            Some(verifier) => config.with_client_cert_verifier(verifier),
        };
        Ok(TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key)?)))
    }

    fn verifier(&self, provider: &Arc<rustls::crypto::CryptoProvider>) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        if self.client_auth == ClientAuth::None {
            return Ok(None);
        }
        let path = self.trust_store.as_ref().ok_or(TlsError::NoTrust)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path, &read(path)?)? {
            roots.add(certificate)?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = if self.client_auth == ClientAuth::Want { builder.allow_unauthenticated() } else { builder };
        let built = builder.build().map_err(|error| TlsError::File { path: path.clone(), why: error.to_string() })?;
        Ok(Some(built))
    }
}

/// The subject of a certificate, as ZooKeeper's ACLs name it; nothing when there is none that can be read.
pub(crate) fn subject(certificate: &[u8]) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(name_of(parsed.subject()))
}

/// RFC 2253: the last part first, parts between commas, values of one part between plus signs.
fn name_of(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name.iter().map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+")).collect();
    parts.reverse();
    parts.join(",")
}

/// The kinds of values that have a name in RFC 2253; others are written as numbers.
const KEYWORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let kind = attribute.attr_type().to_id_string();
    let keyword = KEYWORDS.iter().find(|(number, _)| *number == kind).map(|(_, keyword)| *keyword);
    match (keyword, attribute.as_str()) {
        (Some(keyword), Ok(text)) => format!("{keyword}={}", escaped(text)),
        (keyword, _) => {
            let value = attribute.attr_value();
            let mut out = format!("{}=#", keyword.unwrap_or(&kind));
            for byte in [u8::try_from(value.header.tag().0).unwrap_or(0)].iter().chain(&length(value.data.len())).chain(value.data) {
                let _ = write!(out, "{byte:02x}");
            }
            out
        }
    }
}

/// A length as DER has it.
fn length(bytes: usize) -> Vec<u8> {
    let significant: Vec<u8> = bytes.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let count = u8::try_from(significant.len()).expect("a length has eight bytes");
    if bytes < 0x80 { vec![significant.first().copied().unwrap_or(0)] } else { [vec![0x80 | count], significant].concat() }
}

/// A value with a backslash before what would end it, and before spaces at its ends.
fn escaped(text: &str) -> String {
    let last = text.trim_end_matches(' ').len();
    let first = text.len() - text.trim_start_matches(' ').len();
    let mut out = String::new();
    for (at, letter) in text.char_indices() {
        if matches!(letter, ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\') || at < first || at >= last {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_java_writes_it() {
        assert_eq!(escaped("a b"), "a b");
        assert_eq!(escaped(" a,b=\"c\" "), "\\ a\\,b\\=\\\"c\\\"\\ ");
        assert_eq!((length(5), length(200), length(300)), (vec![5], vec![0x81, 200], vec![0x82, 1, 44]));
    }

    #[test]
    fn a_store_that_is_none_says_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.jks");
        std::fs::write(&path, [0xfe, 0xed, 0xfe, 0xed]).expect("it can be written");
        let config = TlsConfig { key_store: path.clone(), trust_store: None, client_auth: ClientAuth::None };
        assert!(config.acceptor().err().expect("it is none").to_string().contains("openssl pkcs12"));
        std::fs::write(&path, "-----BEGIN X-----\nAAAA\n-----END X-----\n").expect("it can be written");
        assert!(config.acceptor().err().expect("it is empty").to_string().contains("has no certificate"));
    }
}
