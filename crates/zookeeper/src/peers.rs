//! The connections between servers: mutual TLS 1.3, each server known by its key.
//!
//! Each server dials every other and sends on that connection, and hears on those that others dial. Who dials says which server it is and how it
//! is set up; who is dialled checks that against the key that was shown and against its own file, and says why where it refuses. What is
//! sent while a connection is down, or faster than it takes, is dropped: the order asks again, and streams of requests begin anew.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use crypto::SecretKey;
use runtime::tls::{public_key_of, read_private_key};
use runtime::{HalfOpen, Identity, IdentityError, LogLimit, make_certificate};
use rustls::pki_types::ServerName;
use sentinel::ensemble::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use types::codec::{Decode as _, Encode as _};
use types::{ClusterId, Party, ReplicaId, ShardId};

use crate::config::{EnsembleConfig, ServerConfig};
use crate::limits::{
    GREETING_BYTES_MAX, PEER_FRAME_BYTES_MAX, PEER_GREETING_TIMEOUT, PEER_SILENCE, PEER_STRANGERS_MAX, PEER_UNSENT_BYTES_MAX,
    PEER_WRITE_TIMEOUT, READ_BYTES, REDIAL_EVERY, STRANGERS_LOGGED_A_MINUTE_MAX,
};

/// The version of what servers say to one another: to be raised with everything that a server of an earlier build would take for something else, or
/// not understand. Servers of different versions refuse one another. Builds before the second did not name theirs.
const VERSION: u32 = 2;
/// What a greeting begins with.
const VERSION_NAME: &str = "version=";

/// What another server said.
pub(crate) type FromPeer = (u16, Message);

/// What goes to another server.
#[derive(Default)]
pub(crate) struct Link {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    is_open: bool,
    /// Some of it has been taken, and is being sent.
    is_sending: bool,
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl Link {
    /// Sends a message, if there is a connection that takes it.
    pub(crate) fn put(&self, message: &Message) {
        let has_room = |waiting: &Waiting| waiting.is_open && waiting.bytes <= PEER_UNSENT_BYTES_MAX;
        if !has_room(&self.waiting()) {
            return;
        }
        let mut frame = vec![0; 4];
        message.encode(&mut frame);
        let length = u32::try_from(frame.len() - 4).expect("what is sent has a bound far below this");
        frame[..4].copy_from_slice(&length.to_be_bytes());
        let mut waiting = self.waiting();
        waiting.bytes += frame.len();
        waiting.frames.push_back(frame.into());
        drop(waiting);
        self.changed.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> VecDeque<Bytes> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        waiting.is_sending = !waiting.frames.is_empty();
        std::mem::take(&mut waiting.frames)
    }

    /// What was taken has been sent.
    fn sent(&self) {
        self.waiting().is_sending = false;
    }

    /// Whether all has been sent that there is, or is lost.
    pub(crate) fn has_sent_all(&self) -> bool {
        let waiting = self.waiting();
        !waiting.is_open || (waiting.frames.is_empty() && !waiting.is_sending)
    }

    fn open(&self, is_open: bool) {
        *self.waiting() = Waiting { is_open, ..Waiting::default() };
    }
}

/// The servers by their places in the order: those that decide first, by number, then those that observe.
pub(crate) fn places(ensemble: &EnsembleConfig) -> Vec<ServerConfig> {
    let (observers, voters): (Vec<_>, Vec<_>) = ensemble.servers.iter().cloned().partition(|server| server.observes);
    voters.into_iter().chain(observers).collect()
}

/// This server's side of all connections.
pub(crate) struct Peers {
    me: u16,
    servers: Vec<ServerConfig>,
    identity: Identity,
    /// What this server says first: the version that it speaks, and what has to be the same at all.
    greeting: String,
    links: Vec<Arc<Link>>,
    heard: mpsc::Sender<FromPeer>,
    /// What is logged of those that are refused.
    refusals: LogLimit,
}

/// Why the others cannot be spoken to.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what is wrong")]
pub enum PeersError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "bezant.key holds the key {found}, and bezant.server.{id} says {expected}: this is another server's key, or another server's myid"
    )]
    OtherKey { id: u8, found: String, expected: String },
}

impl Peers {
    /// `digests` says how they are computed and compared.
    pub(crate) fn new(me: u16, ensemble: &EnsembleConfig, digests: &str, heard: mpsc::Sender<FromPeer>) -> Result<Arc<Self>, PeersError> {
        let servers = places(ensemble);
        let secret: SecretKey = read_private_key(&ensemble.key)?;
        let own = &servers[usize::from(me)];
        if secret.public() != own.public_key {
            return Err(PeersError::OtherKey { id: own.id, found: hex::encode(secret.public()), expected: hex::encode(own.public_key) });
        }
        let certificate = make_certificate(&secret, &format!("server {}", own.id), ClusterId::new([0; 16]))?;
        let party = Party::Replica(ReplicaId { shard: ShardId(0), index: me });
        let identity = Identity::new(party, &secret, certificate)?;
        let each = servers
            .iter()
            .map(|server| format!(" {}{}={}", server.id, if server.observes { "o" } else { "" }, hex::encode(server.public_key)));
        let greeting = greeting(VERSION, &format!("{digests}{}", each.collect::<String>()));
        let links = servers.iter().map(|_| Arc::default()).collect();
        let refusals = LogLimit::new(STRANGERS_LOGGED_A_MINUTE_MAX);
        Ok(Arc::new(Self { me, servers, identity, greeting, links, heard, refusals }))
    }

    /// Where to put what is for each server.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.links.clone()
    }

    /// Listens and dials until what it returns is dropped.
    pub(crate) fn start(self: &Arc<Self>, listener: TcpListener) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(self).listen(listener));
        for (place, server) in (0..).zip(&self.servers) {
            if place != self.me {
                tasks.spawn(Arc::clone(self).dial(place, server.clone()));
            }
        }
        tasks
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let strangers = Arc::new(HalfOpen::unseen(PEER_STRANGERS_MAX));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let peers = Arc::clone(&self);
                        let mut place = strangers.enter(address.ip());
                        connections.spawn(async move {
                            let greeted = tokio::select! {
                                greeted = timeout(PEER_GREETING_TIMEOUT, peers.greet(stream)) => greeted,
                                () = place.taken() => {
                                    tracing::debug!(%address, "too many connections have not shown yet which servers they are");
                                    return;
                                }
                            };
                            drop(place);
                            match greeted {
                                Ok(Ok((from, reader))) => peers.hear(from, reader).await,
                                Ok(Err(error)) => {
                                    if let Some(left_out) = peers.refusals.admit(Instant::now()) {
                                        tracing::warn!(%address, %error, left_out = left_out.noted(), "a connection of a server is refused");
                                    }
                                }
                                Err(_) => tracing::debug!(%address, "a connection did not show in time which server it is"),
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of a server");
                        sleep(REDIAL_EVERY).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Finds out which server dialled.
    async fn greet(&self, stream: TcpStream) -> io::Result<(u16, impl AsyncRead + Unpin + Send + use<>)> {
        stream.set_nodelay(true)?;
        let mut stream = TlsAcceptor::from(self.identity.server_config()).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let key = shown.ok_or_else(|| io::Error::other("it shows no key"))?;
        let key = public_key_of(key).map_err(io::Error::other)?;
        let greeting = read_text(&mut stream).await?;
        let refused = self.who(&greeting, key);
        write_text(&mut stream, refused.as_ref().err().map_or("", |why| why)).await?;
        match refused {
            Ok(from) => Ok((from, BufReader::with_capacity(READ_BYTES, stream))),
            Err(why) => {
                let _ = stream.shutdown().await;
                Err(io::Error::other(why))
            }
        }
    }

    fn who(&self, greeting: &str, key: [u8; 32]) -> Result<u16, String> {
        let found = (0..).zip(&self.servers).find(|(_, server)| server.public_key == key);
        let (from, server) = found.ok_or_else(|| format!("no server of this ensemble has the key {}", hex::encode(key)))?;
        if from == self.me {
            return Err("it shows this server's own key".to_owned());
        }
        check_greeting(server.id, greeting, &self.greeting).map(|()| from)
    }

    async fn hear(&self, from: u16, mut reader: impl AsyncRead + Unpin) {
        while let Ok(Ok(body)) = timeout(PEER_SILENCE, read_frame(&mut reader, PEER_FRAME_BYTES_MAX)).await {
            if body.is_empty() {
                continue;
            }
            match Message::from_bytes(body.into(), ClusterId::new([0; 16])) {
                Ok(message) => {
                    if self.heard.send((from, message)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(from, %error, "another server says something that cannot be read");
                    return;
                }
            }
        }
    }

    async fn dial(self: Arc<Self>, place: u16, server: ServerConfig) {
        let link = Arc::clone(&self.links[usize::from(place)]);
        let mut said = String::new();
        loop {
            let failed = match timeout(PEER_GREETING_TIMEOUT, self.reach(&server)).await {
                Ok(Ok(stream)) => {
                    tracing::info!(server = server.id, "connected");
                    said.clear();
                    link.open(true);
                    let failed = send(stream, &link).await;
                    link.open(false);
                    failed
                }
                Ok(Err(error)) => error,
                Err(_) => io::Error::other("it does not answer in time"),
            };
            let why = failed.to_string();
            if why != said {
                tracing::warn!(server = server.id, host = server.host, port = server.port, %why, "not connected");
                said = why;
            }
            sleep(REDIAL_EVERY).await;
        }
    }

    async fn reach(&self, server: &ServerConfig) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let address = resolve(&server.host, server.port).await?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let config = self.identity.client_config(server.public_key).map_err(io::Error::other)?;
        let mut stream = TlsConnector::from(config).connect(ServerName::from(address.ip()), stream).await?;
        write_text(&mut stream, &self.greeting).await?;
        match read_text(&mut stream).await? {
            why if why.is_empty() => Ok(stream),
            why => Err(io::Error::other(format!("it refuses this server: {why}"))),
        }
    }
}

fn greeting(version: u32, setup: &str) -> String {
    format!("{VERSION_NAME}{version} {setup}")
}

/// Whether server `id` speaks as this one does, and is set up as it is.
fn check_greeting(id: u8, greeting: &str, own: &str) -> Result<(), String> {
    // Builds that did not name their version began with something else.
    let version = |greeting: &str| greeting.strip_prefix(VERSION_NAME)?.split_once(' ')?.0.parse::<u32>().ok();
    let (theirs, ours) = (version(greeting).unwrap_or(1), version(own).unwrap_or(1));
    if theirs != ours {
        return Err(format!(
            "server {id} speaks version {theirs} of the protocol between servers, and this one version {ours}: have all run the same build of bezant"
        ));
    }
    if greeting != own {
        return Err(format!(
            "server {id} is set up in another way than this one: bezant.digest, bezant.detection, the servers' numbers and roles, and their keys must be the same at all"
        ));
    }
    Ok(())
}

/// The first address of a host.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    lookup_host((host, port)).await?.next().ok_or_else(|| io::Error::other("the host has no address"))
}

/// Sends what there is until the connection fails.
async fn send(stream: impl AsyncRead + AsyncWrite + Unpin, link: &Link) -> io::Error {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut nothing = [0; 1];
    let closed = reader.read(&mut nothing);
    tokio::pin!(closed);
    loop {
        for frame in link.take() {
            let written = match timeout(PEER_WRITE_TIMEOUT, writer.write_all(&frame)).await {
                Ok(written) => written,
                Err(_) => Err(io::Error::other("it takes nothing more")),
            };
            if let Err(error) = written {
                return error;
            }
        }
        if let Err(error) = writer.flush().await {
            return error;
        }
        link.sent();
        tokio::select! {
            () = link.changed.notified() => {}
            // An empty frame says that it is there.
            () = sleep(PEER_SILENCE / 5) => {
                if let Err(error) = writer.write_all(&[0; 4]).await {
                    return error;
                }
            }
            ended = &mut closed => return ended.err().unwrap_or_else(|| io::Error::other("it closed the connection")),
        }
    }
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = reader.read_u32().await? as usize;
    if length > bytes_max {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut body = Vec::with_capacity(length.min(64 << 10));
    // Memory is taken as bytes arrive, not as the head promises.
    if reader.take(length as u64).read_to_end(&mut body).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

async fn read_text(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    String::from_utf8(read_frame(reader, GREETING_BYTES_MAX).await?).map_err(io::Error::other)
}

async fn write_text(writer: &mut (impl AsyncWrite + Unpin), text: &str) -> io::Result<()> {
    writer.write_u32(u32::try_from(text.len()).map_err(io::Error::other)?).await?;
    writer.write_all(text.as_bytes()).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Both servers of an ensemble of two, the second of which listens at `port`.
    fn peers(folder: &Path, port: u16) -> [Arc<Peers>; 2] {
        let secrets = [1, 2].map(|id| (id, folder.join(format!("{id}.pem")), SecretKey::generate()));
        let server = |(id, key, secret): &(u8, std::path::PathBuf, SecretKey)| {
            runtime::tls::write_private_key(key, secret).expect("it is new");
            ServerConfig { id: *id, host: "127.0.0.1".into(), port, observes: false, public_key: secret.public(), client: None }
        };
        let servers: Vec<ServerConfig> = secrets.iter().map(server).collect();
        let of = |me: u16| {
            let key = secrets[usize::from(me)].1.clone();
            let ensemble =
                EnsembleConfig { servers: servers.clone(), key, timeout_ms: 1_000, repairs_an_hour_max: 3, listens_everywhere: false };
            Peers::new(me, &ensemble, "bezant.digest=sha256-wide", mpsc::channel(1).0).expect("the keys are theirs")
        };
        [of(0), of(1)]
    }

    /// What the second server says to the first, whose greeting is this.
    async fn refusal(greeting: impl FnOnce(&str) -> String) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let [mut one, other] = peers(folder.path(), listener.local_addr().expect("it is bound").port());
        let server = other.servers[1].clone();
        let own = Arc::get_mut(&mut one).expect("nobody else has it");
        own.greeting = greeting(&own.greeting);
        let accepts = async {
            let (stream, _) = listener.accept().await.expect("it is dialled");
            other.greet(stream).await.map(|(from, _)| from).map_err(|error| error.to_string())
        };
        let (reached, greeted) = tokio::join!(one.reach(&server), accepts);
        assert_eq!(reached.is_ok(), greeted == Ok(0), "both know why: {greeted:?}");
        reached.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_server_of_another_version_is_refused_in_words_that_name_both() {
        assert_eq!(refusal(str::to_owned).await, Ok(()));
        let newer = refusal(|greeting| greeting.replacen("version=2", "version=3", 1)).await.expect_err("it is another");
        assert!(newer.contains("speaks version 3") && newer.contains("this one version 2"), "{newer}");
        let older = refusal(|greeting| greeting.split_once(' ').expect("the version is before that").1.to_owned()).await;
        let older = older.expect_err("it names none");
        assert!(older.contains("speaks version 1") && older.contains("this one version 2"), "{older}");
        let other = refusal(|greeting| format!("{greeting} 3=00")).await.expect_err("it has another server");
        assert!(other.contains("set up in another way"), "{other}");
    }

    #[tokio::test]
    async fn who_is_silent_keeps_no_server_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let [one, other] = peers(folder.path(), address.port());
        let _listening = other.clone().start(listener);
        let mut silent = Vec::new();
        for _ in 0..2 * PEER_STRANGERS_MAX {
            silent.push(TcpStream::connect(address).await.expect("it listens"));
        }
        let server = other.servers[1].clone();
        one.reach(&server).await.map(drop).expect("the others make way");
    }
}
