//! The attacker's connections: real TLS, shown a member's key or none, and then whatever an attack sends.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use basil::Message;
use config::Topology;
use crypto::SecretKey;
use runtime::Configuration;
use runtime::frame::{Frames, GREETING_BYTES_MAX, Greeting, HEADER_BYTES, Role};
use runtime::tls::read_private_key;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use types::codec::Decode as _;
use types::{ClientId, Cluster, ReplicaId, Session};

use bezant::failure::{Attempt as _, Failure};

use super::liar::LIAR;

/// How long an attacker waits before it connects again: it is thrown out often.
const RECONNECT: Duration = Duration::from_millis(10);
/// How much is read at a time.
const READ_BYTES: usize = 64 << 10;

/// The cluster, as the attacker knows it: everything that a member knows.
pub struct Target {
    /// The cluster's folder.
    pub folder: PathBuf,
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// How the attacker says that it knows it.
    pub configuration: Configuration,
    /// Where replicas listen for members.
    pub replicas: Vec<(ReplicaId, SocketAddr)>,
    /// Where they answer HTTP.
    pub http: Vec<SocketAddr>,
    /// The attacker's own number.
    pub client: ClientId,
    /// The number of the client that it harms.
    pub honest: ClientId,
    /// The key of the replica in whose place a liar runs.
    pub liar: SecretKey,
    /// How many keys the honest clients' table has.
    pub keys: u64,
    /// What the attacker did.
    pub counts: Counts,
    sessions: AtomicU64,
}

/// What the attacker did, to see that there was an attack at all.
#[derive(Default)]
pub struct Counts {
    /// Connections that were opened.
    pub opened: AtomicU64,
    /// Connections that were not.
    pub refused: AtomicU64,
    /// Frames or requests written; a batch of frames counts once.
    pub writes: AtomicU64,
    /// Bytes written.
    pub sent_bytes: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
}

impl Counts {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "opened": read(&self.opened),
            "refused": read(&self.refused),
            "writes": read(&self.writes),
            "sent_bytes": read(&self.sent_bytes),
            "read_bytes": read(&self.read_bytes),
        })
    }
}

/// Who an attacker is on a connection.
#[derive(Clone)]
pub struct Speaker {
    tls: Arc<ClientConfig>,
    is_replica: bool,
}

/// How fast a flood goes.
#[derive(Clone, Copy)]
pub enum Pace {
    /// As fast as it is taken; a batch's number counts them.
    Full,
    /// At these intervals. A batch's number is its time in nanoseconds, the same on all connections, so that all send the same.
    Every(Duration),
    /// So many are unanswered at a time; each is one request.
    Answered(usize),
    /// As fast as it is taken, and answers are never read.
    Unread,
}

impl Target {
    /// The cluster in `folder`, whose attacker has the second client's key. Only a cluster on this computer is attacked.
    pub fn load(folder: &Path, keys: u64) -> Result<Self, Failure> {
        let liar = read_private_key(&folder.join(LIAR.to_string()).join("key")).attempt("read the key of", LIAR)?;
        Ok(Self { liar, keys, ..Self::of_member(folder, "client-2")? })
    }

    /// The cluster in `folder`, as the client `member` of it knows it, with no liar in it.
    pub fn of_member(folder: &Path, member: &str) -> Result<Self, Failure> {
        let config = bezant_client::load(folder.join(member))?;
        let Topology { cluster, signatures, endpoints, .. } = config.topology.as_ref();
        let local = |address: &str| -> Result<SocketAddr, Failure> {
            let address: SocketAddr = address.parse().attempt("read the address", address)?;
            if address.ip().is_loopback() {
                Ok(address)
            } else {
                Err(Failure::wrong("only clusters on this computer's loopback are attacked").at(address))
            }
        };
        let replicas = endpoints.iter().map(|(replica, endpoint)| Ok((*replica, local(&endpoint.address)?)));
        Ok(Self {
            folder: folder.to_owned(),
            configuration: Configuration::of(cluster, *signatures, config.topology.chain.version()),
            replicas: replicas.collect::<Result<_, Failure>>()?,
            http: endpoints.values().map(|endpoint| local(&endpoint.http)).collect::<Result<_, _>>()?,
            cluster: Arc::clone(cluster),
            client: config.client,
            honest: cluster.clients().iter().map(|(client, _)| *client).find(|client| *client != config.client).unwrap_or(config.client),
            liar: SecretKey::generate(),
            keys: 0,
            counts: Counts::default(),
            sessions: AtomicU64::new(u64::from(std::process::id()) << 32),
        })
    }

    /// Who holds the key in this folder of the cluster, or nobody known without one.
    pub fn speaker(&self, folder: Option<&str>) -> Result<Speaker, Failure> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .attempt("speak TLS 1.3", "this program")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible));
        let tls = match folder {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let (certificate, key) = self.credentials(name)?;
                builder.with_client_auth_cert(vec![certificate], key).attempt("use the key", name)?
            }
        };
        Ok(Speaker { tls: Arc::new(tls), is_replica: folder.is_some_and(|name| name.starts_with('s')) })
    }

    /// Certificate and key of a member.
    pub fn credentials(&self, name: &str) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Failure> {
        let folder = self.folder.join(name);
        let certificate =
            CertificateDer::from_pem_file(folder.join("certificate.pem")).attempt("read the certificate", folder.display())?;
        let key = PrivateKeyDer::from_pem_file(folder.join("key")).attempt("read the key", folder.display())?;
        Ok((certificate, key))
    }

    /// Connects, and is greeted as whoever the key belongs to.
    pub async fn connect(&self, speaker: &Speaker, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let connected = async {
            let mut stream = self.shake_hands(speaker, address).await?;
            let role = match speaker.is_replica {
                true => Role::Replica,
                false => Role::Client(Session(self.sessions.fetch_add(1, Ordering::Relaxed))),
            };
            let hello = Greeting::Hello { cluster: self.cluster.id(), configuration: self.configuration, role };
            stream.write_all(&hello.to_frame()).await?;
            stream.flush().await?;
            let mut header = [0; HEADER_BYTES];
            stream.read_exact(&mut header).await?;
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let mut body = vec![0; length.min(GREETING_BYTES_MAX)];
            stream.read_exact(&mut body).await?;
            match Greeting::from_bytes(body.into(), self.cluster.id()) {
                Ok(Greeting::Welcome(_)) => Ok(stream),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        };
        let connected = connected.await;
        self.note_connection(&connected);
        connected
    }

    /// Connects as far as the end of the TLS handshake.
    pub async fn shake_hands(&self, speaker: &Speaker, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(Arc::clone(&speaker.tls)).connect(ServerName::from(address.ip()), stream).await
    }

    /// Notes whether a connection was opened.
    pub fn note_connection<S>(&self, opened: &io::Result<S>) {
        let count = if opened.is_ok() { &self.counts.opened } else { &self.counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that so many bytes were written at once.
    pub fn note_write(&self, bytes: usize) {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        self.counts.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What a flood sends: the bytes of its batch of this number.
pub type Make = fn(&Target, u64) -> Vec<u8>;

/// Floods all `replicas` over so many connections each, for ever; connects again whenever it is thrown out.
pub fn flood(target: &Arc<Target>, speaker: &Speaker, replicas: &[(ReplicaId, SocketAddr)], connections: usize, pace: Pace, make: Make) {
    for (_, address) in replicas {
        for _ in 0..connections {
            let (target, speaker, address) = (Arc::clone(target), speaker.clone(), *address);
            tokio::spawn(async move {
                loop {
                    if let Ok(stream) = target.connect(&speaker, address).await {
                        talk(&target, stream, pace, make).await;
                    }
                    tokio::time::sleep(RECONNECT).await;
                }
            });
        }
    }
}

/// Sends on one connection until it ends.
async fn talk(target: &Target, stream: TlsStream<TcpStream>, pace: Pace, make: Make) {
    let (read, write) = tokio::io::split(stream);
    let allowed = Semaphore::new(if let Pace::Answered(allowed) = pace { allowed } else { 0 });
    let mut send = pin!(send(target, write, pace, make, &allowed));
    if matches!(pace, Pace::Unread) {
        // Held, so that the connection stays open.
        let _read = read;
        let _ = send.await;
        return;
    }
    tokio::select! {
        _ = &mut send => {}
        _ = receive(target, read, &allowed) => {}
    }
}

async fn send(target: &Target, mut write: WriteHalf<TlsStream<TcpStream>>, pace: Pace, make: Make, allowed: &Semaphore) -> io::Result<()> {
    let mut number = 0;
    loop {
        match pace {
            Pace::Full | Pace::Unread => number += 1,
            Pace::Answered(_) => {
                allowed.acquire().await.map_err(io::Error::other)?.forget();
                number += 1;
            }
            Pace::Every(interval) => {
                let interval_ns = interval.as_nanos() as u64;
                number = now_ns() / interval_ns * interval_ns + interval_ns;
                tokio::time::sleep(Duration::from_nanos(number.saturating_sub(now_ns()))).await;
            }
        }
        let bytes = make(target, number);
        write.write_all(&bytes).await?;
        write.flush().await?;
        target.note_write(bytes.len());
    }
}

/// Reads and forgets what comes; allows a request more for each message.
async fn receive(target: &Target, mut read: ReadHalf<TlsStream<TcpStream>>, allowed: &Semaphore) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut frames = FrameCounter::default();
    loop {
        let count = read.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        target.counts.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        allowed.add_permits(frames.messages(&buffer[..count]));
    }
}

/// Counts the messages of a stream of frames without keeping it.
#[derive(Default)]
struct FrameCounter {
    /// What has come of the header and the counts of the next frame.
    head: Vec<u8>,
    /// How much of the present frame's messages is still to come.
    rest: usize,
}

impl FrameCounter {
    /// How many messages begin in these bytes.
    fn messages(&mut self, mut bytes: &[u8]) -> usize {
        const HEAD_BYTES: usize = HEADER_BYTES + 8;
        let mut messages = 0;
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            bytes = &bytes[skipped..];
            self.rest -= skipped;
            let missing = (HEAD_BYTES - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.head.len() == HEAD_BYTES {
                let number = |at: usize| u32::from_le_bytes(self.head[at..at + 4].try_into().expect("four bytes")) as usize;
                self.rest = (number(0) + HEADER_BYTES).saturating_sub(HEAD_BYTES);
                messages += number(HEADER_BYTES + 4);
                self.head.clear();
            }
        }
        messages
    }
}

/// The frames of these messages; a frame of its own for each if they are `apart`.
pub fn frames(messages: impl IntoIterator<Item = Message>, apart: Apart) -> Vec<u8> {
    let mut frames = Frames::default();
    for message in messages {
        // One that fits into no frame is left out.
        let _ = frames.add(&message);
        if apart == Apart::Each {
            frames.finish();
        }
    }
    frames.bytes().to_vec()
}

/// How messages share frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Apart {
    /// Each has its own.
    Each,
    /// As many as fit share one.
    Full,
}

/// The time of day, in nanoseconds.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Believes any server.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_the_stream_is_split() {
        let query = |asked_at| Message::ClockQuery { asked_at, journal: None };
        let bytes = [frames((0..3).map(query), Apart::Full), frames((0..4).map(query), Apart::Each)].concat();
        for split in 1..=bytes.len() {
            let mut counter = FrameCounter::default();
            assert_eq!(bytes.chunks(split).map(|part| counter.messages(part)).sum::<usize>(), 7, "in parts of {split}");
        }
    }
}
