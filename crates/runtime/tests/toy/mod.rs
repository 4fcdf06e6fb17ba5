//! A toy cluster for the tests: a replica that answers numbers with their doubles under its signature, a client
//! that asks, and a peer that speaks raw frames and so can say what no honest one would.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crypto::{Claim, Claims, Pack, Rejection, Seal, Sealable, Sealer, SecretKey, Signatures, Statement, Verified, Verifier};
use machine::{Input, InputOf, Machine, OutboxOf, Time};
use runtime::frame::{FRAME_VERSION, Greeting, HEADER_BYTES, Role};
use runtime::{Delays, Durable, Identity, Limits, Metrics, NoSeals, Node, Place, Plan, Sealing, make_certificate};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{ClientId, Cluster, ClusterId, Digest, Party, Permission, Placement, ReplicaId, Session, ShardId};

pub const CLUSTER: ClusterId = ClusterId::new([7; 16]);
/// How long anything may take before a test fails: far longer than anything takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

// ---------------------------------------------------------------------------------------------- what they say

/// What is said between toys.
#[derive(Clone, Debug)]
pub enum Word {
    /// Client to replica: double this.
    Ask(u64),
    /// Replica to client: a double, signed.
    Answer(Doubled, Box<Seal>),
    /// Client to replica: send me this many bytes.
    Fill(u32),
    /// Replica to client: useless bytes.
    Filling(Vec<u8>),
}

/// What a replica signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubled {
    pub signer: ReplicaId,
    pub number: u64,
    pub double: u64,
}

impl Statement for Doubled {
    const KIND: &'static str = "doubled";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.double.encode(out);
    }
}

impl Sealable for Doubled {
    type Message = Word;
    fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        crypto::leaf(cluster, signer, self)
    }
    fn sealed(self, seal: Seal) -> Word {
        Word::Answer(self, Box::new(seal))
    }
}

impl Claims for Word {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        if let Self::Answer(doubled, seal) = self {
            out.push(Claim { signer: doubled.signer, leaf: crypto::leaf(cluster.id(), doubled.signer, doubled), seal });
        }
        Ok(())
    }
}

impl Pack for Word {}

impl Encode for Word {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ask(number) => {
                out.push(1);
                number.encode(out);
            }
            Self::Answer(doubled, seal) => {
                out.push(2);
                doubled.signer.encode(out);
                doubled.encode_body(out);
                seal.encode(out);
            }
            Self::Fill(bytes) => {
                out.push(3);
                bytes.encode(out);
            }
            Self::Filling(bytes) => {
                out.push(4);
                types::codec::encode_sequence(bytes, out);
            }
        }
    }
}

impl Decode for Word {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Ask(u64::decode(reader)?)),
            2 => {
                let signer = ReplicaId::decode(reader)?;
                let doubled = Doubled { signer, number: u64::decode(reader)?, double: u64::decode(reader)? };
                Ok(Self::Answer(doubled, Box::new(Seal::decode(reader)?)))
            }
            3 => Ok(Self::Fill(u32::decode(reader)?)),
            4 => Ok(Self::Filling(reader.sequence("filling", 1 << 20)?)),
            _ => Err(DecodeError::UnknownTag("a word")),
        }
    }
}

// ---------------------------------------------------------------------------------------------- the machines

/// Answers numbers. Its "store" is a count of steps, which a persist copies.
#[derive(Debug)]
pub struct Doubler {
    pub me: ReplicaId,
    pub asked: u64,
    pub persisted: u64,
    /// From this many questions on, its disk is broken.
    pub breaks_at: u64,
}

impl Doubler {
    pub fn new(me: ReplicaId) -> Self {
        Self { me, asked: 0, persisted: 0, breaks_at: u64::MAX }
    }
}

/// The command of a doubler: ask another.
#[derive(Debug)]
pub struct AskPeer(pub ReplicaId, pub u64);

impl Machine for Doubler {
    type Command = AskPeer;
    type Received = Verified<Word>;
    type Message = Word;
    type Draft = Doubled;
    type Event = Doubled;

    fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(AskPeer(peer, number)) => outbox.send(Party::Replica(peer), Word::Ask(number)),
            Input::Message { from, message } => match message.into_inner() {
                Word::Ask(number) => {
                    self.asked += 1;
                    outbox.sign(from, Doubled { signer: self.me, number, double: number.wrapping_mul(2) });
                }
                Word::Fill(bytes) => outbox.send(from, Word::Filling(vec![0; bytes as usize])),
                Word::Answer(doubled, _) => outbox.emit(doubled),
                Word::Filling(_) => {}
            },
            Input::Tick => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

/// The toy's disk is full.
#[derive(Debug, thiserror::Error)]
#[error("the toy's disk is full")]
pub struct DiskFull;

impl Durable for Doubler {
    type Failure = DiskFull;
    fn persist(&mut self) -> Result<(), DiskFull> {
        if self.asked >= self.breaks_at {
            return Err(DiskFull);
        }
        self.persisted = self.asked;
        Ok(())
    }
}

/// Asks, and tells what it was answered.
#[derive(Debug, Default)]
pub struct Asker {
    alarm: Option<Time>,
}

/// What an asker is told to do.
#[derive(Debug)]
pub enum Order {
    Say(ReplicaId, Word),
    /// Ring once, this much later.
    RingAfterMs(u64),
}

/// What an asker tells.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    Answer(Doubled),
    Filled(usize),
    Rang,
}

impl Machine for Asker {
    type Command = Order;
    type Received = Verified<Word>;
    type Message = Word;
    type Draft = std::convert::Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(Order::Say(replica, word)) => outbox.send(Party::Replica(replica), word),
            Input::Command(Order::RingAfterMs(wait)) => self.alarm = Some(now.after_ms(wait)),
            Input::Message { message, .. } => match message.into_inner() {
                Word::Answer(doubled, _) => outbox.emit(Told::Answer(doubled)),
                Word::Filling(bytes) => outbox.emit(Told::Filled(bytes.len())),
                Word::Ask(_) | Word::Fill(_) => {}
            },
            Input::Tick => {
                assert!(self.alarm.take().is_some_and(|alarm| alarm <= now), "it ticks when it is due and not before");
                outbox.emit(Told::Rang);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.alarm
    }
}

impl Durable for Asker {
    type Failure = std::convert::Infallible;
    fn persist(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}

// ---------------------------------------------------------------------------------------------- the cluster

pub fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

pub fn replica_secret(index: u16) -> SecretKey {
    SecretKey::from_bytes([u8::try_from(index).expect("few replicas") + 1; 32])
}

pub fn client_secret(client: u8) -> SecretKey {
    SecretKey::from_bytes([100 + client; 32])
}

/// Six replicas, and clients 1 to `clients`.
pub fn cluster(id: ClusterId, clients: u8) -> Arc<Cluster> {
    let replicas = (0..6).map(|index| replica_secret(index).public()).collect();
    let clients = (1..=clients)
        .map(|client| {
            let permission = Permission { public_key: client_secret(client).public(), ..Permission::default() };
            (ClientId(u64::from(client)), permission)
        })
        .collect();
    Arc::new(Cluster::new(id, 1, Placement::Hash, vec![replicas], clients).expect("the toy cluster is well-formed"))
}

pub fn identity(party: Party, secret: &SecretKey) -> Identity {
    let certificate = make_certificate(secret, &party.to_string(), CLUSTER).expect("a certificate can be made");
    Identity::new(party, secret, certificate).expect("the certificate is for this key")
}

fn plan(
    identity: Identity,
    cluster: &Arc<Cluster>,
    listener: Option<TcpListener>,
    replicas: BTreeMap<ReplicaId, SocketAddr>,
    limits: Limits,
    delays: Option<Delays>,
) -> Plan {
    let verifier = Arc::new(Verifier::new(Arc::clone(cluster), Signatures::Ed25519, 1_024).expect("the toy keys are good"));
    let metrics = Metrics::default();
    metrics.show_verifier(Arc::clone(&verifier));
    let place = if listener.is_some() { Place::Thread } else { Place::Task };
    Plan { identity, cluster: Arc::clone(cluster), verifier, listener, replicas, limits, place, metrics, delays }
}

/// A running doubler.
pub struct Server {
    pub node: Node<Doubler, Word>,
    pub metrics: Metrics,
    pub events: mpsc::UnboundedReceiver<Doubled>,
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.node.local_address().expect("a server listens")
    }

    pub async fn start(index: u16, limits: Limits) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), Doubler::new(replica(index)), BTreeMap::new(), limits).await
    }

    pub async fn start_at(address: SocketAddr, machine: Doubler, peers: BTreeMap<ReplicaId, SocketAddr>, limits: Limits) -> Self {
        Self::start_apart(address, machine, peers, limits, None).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test asks a bounded number of questions")]
    pub async fn start_apart(
        address: SocketAddr,
        machine: Doubler,
        peers: BTreeMap<ReplicaId, SocketAddr>,
        limits: Limits,
        delays: Option<Delays>,
    ) -> Self {
        let (me, secret) = (machine.me, replica_secret(machine.me.index));
        let listener = runtime::listen(address).await.expect("the port is free");
        let batch_max = limits.batch_max;
        let plan = plan(identity(Party::Replica(me), &secret), &cluster(CLUSTER, 3), Some(listener), peers, limits, delays);
        let sealer = Sealer::new(secret, CLUSTER, me, Signatures::Ed25519);
        let sealing = Sealing::new(sealer, plan.verifier.clone(), me, batch_max);
        let metrics = plan.metrics.clone();
        let (tell, events) = mpsc::unbounded_channel();
        let node = runtime::start(plan, machine, sealing, move |event| {
            // A test that has seen enough stops listening.
            let _ = tell.send(event);
        })
        .expect("the plan is good");
        Self { node, metrics, events }
    }
}

/// A running asker.
pub struct Client {
    pub node: Node<Asker, Word>,
    pub metrics: Metrics,
    pub events: mpsc::UnboundedReceiver<Told>,
}

impl Client {
    /// Client 1, as everybody knows it.
    pub fn start(server: SocketAddr) -> Self {
        Self::start_as(1, Session(1), &cluster(CLUSTER, 3), server, Limits::default())
    }

    /// `client`, who believes in `cluster` and dials replica 0 at `server`.
    pub fn start_as(client: u8, session: Session, cluster: &Arc<Cluster>, server: SocketAddr, limits: Limits) -> Self {
        Self::start_apart(client, session, cluster, server, limits, None)
    }

    /// The same, with `delays` on what it says.
    #[expect(clippy::disallowed_methods, reason = "a test asks a bounded number of questions")]
    pub fn start_apart(
        client: u8,
        session: Session,
        cluster: &Arc<Cluster>,
        server: SocketAddr,
        limits: Limits,
        delays: Option<Delays>,
    ) -> Self {
        let party = Party::Client(ClientId(u64::from(client)), session);
        let replicas = BTreeMap::from([(replica(0), server)]);
        let plan = plan(identity(party, &client_secret(client)), cluster, None, replicas, limits, delays);
        let metrics = plan.metrics.clone();
        let (tell, events) = mpsc::unbounded_channel();
        let node = runtime::start(plan, Asker::default(), NoSeals, move |event| {
            // A test that has seen enough stops listening.
            let _ = tell.send(event);
        })
        .expect("the plan is good");
        Self { node, metrics, events }
    }

    pub async fn connected(&self) {
        self.peers_until(|state| *state == runtime::PeerState::Connected).await;
    }

    pub async fn peers_until(&self, wanted: impl Fn(&runtime::PeerState) -> bool) {
        let handle = self.node.handle();
        within(handle.peers_until(|peers| peers.get(&replica(0)).is_some_and(&wanted))).await;
    }

    pub async fn ask(&self, number: u64) {
        self.node.handle().command(Order::Say(replica(0), Word::Ask(number))).await.expect("the client runs");
    }

    /// Asks for one double, over a connection that works.
    pub async fn asks_and_is_answered(&mut self, number: u64) {
        self.connected().await;
        self.ask(number).await;
        let told = within(self.events.recv()).await.expect("the client runs");
        assert_eq!(told, Told::Answer(Doubled { signer: replica(0), number, double: number * 2 }));
    }
}

/// Fails the test when `future` takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes far less time than this")
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

// ---------------------------------------------------------------------------------------------- the raw peer

/// A connection on which anything can be said.
pub struct Raw(tokio_rustls::client::TlsStream<TcpStream>);

/// Which certificate a raw peer shows.
pub enum Shows {
    Nothing,
    Key(SecretKey),
    CutCertificate(SecretKey),
}

impl Raw {
    /// Shakes hands, believing any server.
    pub async fn connect(address: SocketAddr, shows: Shows) -> std::io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3 is compiled in")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible));
        let config = match shows {
            Shows::Nothing => builder.with_no_client_auth(),
            Shows::Key(secret) => builder.with_client_cert_resolver(Arc::new(ShowsOne::new(&secret, usize::MAX))),
            Shows::CutCertificate(secret) => builder.with_client_cert_resolver(Arc::new(ShowsOne::new(&secret, 100))),
        };
        let stream = TcpStream::connect(address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        Ok(Self(connector.connect(ServerName::from(address.ip()), stream).await?))
    }

    /// Client 1, past the greeting.
    pub async fn welcomed(address: SocketAddr) -> Self {
        let mut raw = Self::connect(address, Shows::Key(client_secret(1))).await.expect("the server accepts members");
        raw.send(&Greeting::Hello { cluster: CLUSTER, role: Role::Client(Session(99)) }.to_frame()).await;
        assert_eq!(raw.greeting().await, Greeting::Welcome);
        raw
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The server may close at any moment, since what is sent here is often wrong.
        let _ = self.0.write_all(bytes).await;
        let _ = self.0.flush().await;
    }

    pub async fn greeting(&mut self) -> Greeting {
        let mut header = [0; HEADER_BYTES];
        within(self.0.read_exact(&mut header)).await.expect("a greeting comes");
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let mut body = vec![0; length];
        within(self.0.read_exact(&mut body)).await.expect("a greeting comes");
        Greeting::from_bytes(body.into(), CLUSTER).expect("the server's greeting is well-formed")
    }

    /// Waits until the server has closed the connection.
    pub async fn is_closed(&mut self) {
        let mut rest = [0; 1_024];
        within(async { while matches!(self.0.read(&mut rest).await, Ok(1..)) {} }).await;
    }
}

/// A frame with this version and body.
pub fn frame(version: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).expect("a small body").to_le_bytes().to_vec();
    frame.push(version);
    frame.extend_from_slice(body);
    frame
}

/// A good frame with these messages.
pub fn messages(words: &[Word]) -> Vec<u8> {
    let mut body = vec![0; 4];
    types::codec::encode_sequence(words, &mut body);
    frame(FRAME_VERSION, &body)
}

#[derive(Debug)]
struct ShowsOne(Arc<rustls::sign::CertifiedKey>);

impl ShowsOne {
    fn new(secret: &SecretKey, length: usize) -> Self {
        let mut certificate = make_certificate(secret, "raw", CLUSTER).expect("a certificate can be made");
        certificate.truncate(length);
        let mut key = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        key.extend_from_slice(&secret.to_bytes());
        let key = rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).expect("an Ed25519 key");
        Self(Arc::new(rustls::sign::CertifiedKey::new(vec![CertificateDer::from(certificate)], key)))
    }
}

impl rustls::client::ResolvesClientCert for ShowsOne {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
    fn has_certs(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Gullible;

impl rustls::client::danger::ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ED25519]
    }
}
