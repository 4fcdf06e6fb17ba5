//! A peer that speaks TLS and then says whatever a test likes.

// Each file of tests has its own copy, and uses a part of it.
#![allow(dead_code)]

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use runtime::frame::{GREETING_BYTES_MAX, Greeting, HEADER_BYTES};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use types::ClusterId;
use types::codec::Decode as _;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What stands before the 32 bytes of an Ed25519 secret key in PKCS #8 (RFC 8410).
const SECRET_KEY_PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Which certificate is shown.
#[derive(Debug)]
pub enum Shows {
    Nothing,
    This(Arc<CertifiedKey>),
}

impl Shows {
    /// The one in this client's folder.
    pub fn member(folder: &Path) -> Self {
        let secret = runtime::tls::read_private_key(&folder.join("key")).expect("a key");
        let certificate = runtime::tls::read_certificate(&folder.join("certificate.pem")).expect("a certificate");
        let pkcs8 = [SECRET_KEY_PREFIX.as_slice(), &secret.to_bytes()].concat();
        let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).expect("an Ed25519 key");
        Self::This(Arc::new(CertifiedKey::new(vec![CertificateDer::from(certificate)], key)))
    }

    /// Only the first `bytes` of it.
    pub fn cut_to(self, bytes: usize) -> Self {
        let Self::This(whole) = self else { return self };
        let certificate = CertificateDer::from(whole.cert[0][..bytes].to_vec());
        Self::This(Arc::new(CertifiedKey::new(vec![certificate], whole.key.clone())))
    }
}

/// The connection.
pub struct Raw(StreamOwned<ClientConnection, TcpStream>);

impl Raw {
    /// Connects, believing any server. The handshake is done with the first bytes that go either way.
    pub fn connect(address: SocketAddr, shows: Shows) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3 is compiled in")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible));
        let config = match shows {
            Shows::Nothing => builder.with_no_client_auth(),
            shows @ Shows::This(_) => builder.with_client_cert_resolver(Arc::new(shows)),
        };
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        let session = ClientConnection::new(Arc::new(config), ServerName::from(address.ip())).expect("a good name");
        Self(StreamOwned::new(session, stream))
    }

    /// Sends these bytes. The other side may have closed already.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
        let _ = self.0.flush();
    }

    /// Sends these bytes, and waits until the other side has closed the connection.
    pub fn send_last(&mut self, bytes: &[u8]) {
        self.send(bytes);
        wait_for_end(&mut self.0);
    }

    /// The next greeting; nothing when there is none.
    pub fn greeting(&mut self) -> Option<Greeting> {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).ok()?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        assert!(length <= GREETING_BYTES_MAX);
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        // No answer depends on the cluster it is read for.
        Greeting::from_bytes(body.into(), ClusterId::new([0; 16])).ok()
    }
}

/// Reads until there is no more.
#[track_caller]
pub fn wait_for_end(stream: &mut impl Read) {
    let mut rest = [0; 1_024];
    loop {
        match stream.read(&mut rest) {
            Ok(1..) => {}
            Ok(0) => return,
            Err(error) => {
                let waited = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                assert!(!waited, "the connection stays open");
                return;
            }
        }
    }
}

impl rustls::client::ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Nothing => None,
            Self::This(certificate) => Some(certificate.clone()),
        }
    }

    fn has_certs(&self) -> bool {
        matches!(self, Self::This(_))
    }
}

#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
