//! What operators do to a server, over real sockets and a real disk: commands over HTTP, clients over TLS, drills, audits of what runs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jute::{Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, Id, Numbered, Reply, Request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use zookeeper::{Config, Running, Verdict, audit_online, evidence, order_drill};

struct Server {
    runtime: tokio::runtime::Runtime,
    running: Running,
}

impl Server {
    fn start(folder: &Path, more: &str) -> Self {
        let text = format!("clientPort=0\nclientPortAddress=127.0.0.1\n4lw.commands.whitelist=*\ndataDir={}\n{more}", folder.display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let running = runtime.block_on(Running::start(Config::parse(&text).expect("it is a good file"))).expect("it starts");
        Self { runtime, running }
    }

    fn stop(self) {
        self.runtime.block_on(self.running.stop()).expect("it stops");
    }

    fn drill(&self, what: &str, path: &str) -> String {
        self.runtime.block_on(order_drill(&self.running.address().to_string(), what, path)).expect("it answers")
    }

    fn http(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.running.admin_address().expect("it was asked for")).expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in text");
        answer
    }
}

/// A client over any stream.
struct Client<S> {
    stream: S,
    xid: i32,
}

impl<S: std::io::Read + std::io::Write> Client<S> {
    fn begin(stream: S) -> Self {
        let mut client = Self { stream, xid: 0 };
        let mut body = Vec::new();
        ConnectRequest { timeout_ms: 20_000, password: vec![0; 16], ..Default::default() }.encode(&mut body);
        let answer = client.exchange(&body).expect("it answers");
        assert_ne!(ConnectResponse::decode(&answer).expect("a server answers so").session, 0);
        client
    }

    fn exchange(&mut self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let length = u32::try_from(body.len()).expect("frames are short");
        self.stream.write_all(&[&length.to_be_bytes(), body].concat())?;
        self.stream.flush()?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn ask(&mut self, request: Request) -> Result<Answer, ErrorCode> {
        self.xid += 1;
        let opcode = request.opcode();
        let mut body = Vec::new();
        Numbered { xid: self.xid, request }.encode(&mut body);
        let answer = self.exchange(&body).expect("it answers");
        Reply::decode(&answer, opcode).expect("a server answers so").answer
    }
}

fn connect(address: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    Client::begin(stream)
}

fn create(path: &str, acl: Vec<Acl>) -> Request {
    let data = Some(Bytes::from_static(b"data"));
    Request::Create(Create { path: path.into(), data, acl, mode: CreateMode::Persistent, sequential: false, wants_stat: false })
}

fn write(path: &str) -> Request {
    Request::SetData { path: path.into(), data: Some(Bytes::from_static(b"new")), version: -1 }
}

#[test]
fn commands_are_answered_over_http_as_zookeeper_names_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "admin.serverPort=0\nadmin.serverAddress=127.0.0.1\nmaxClientCnxns=7\n");
    let mut ann = connect(server.running.address());
    ann.ask(create("/a", vec![Acl::open()])).expect("it is new");
    let json = |path: &str| -> serde_json::Value {
        let answer = server.http(path);
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body follows");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    };
    let monitor = json("/commands/monitor");
    assert_eq!((monitor["server_state"].as_str(), monitor["znode_count"].as_i64()), (Some("standalone"), Some(5)));
    assert!(monitor["open_file_descriptor_count"].as_i64() > Some(3) && monitor["cnt_updatelatency"].as_i64() == Some(1));
    assert!(monitor["bytes_received_count"].as_i64() > Some(40));
    let stats = json("/commands/srvr");
    assert_eq!((stats["command"].as_str(), stats["error"].is_null()), (Some("server_stats"), true));
    assert_eq!(json("/commands/configuration")["max_client_cnxns"].as_i64(), Some(7));
    assert_eq!(json("/commands/connections")["connections"].as_array().map(Vec::len), Some(1));
    assert!(json("/commands/dirs")["datadir_size"].as_i64() > Some(0));
    assert_eq!(json("/commands/nope")["error"].as_str(), Some("Unknown command: nope"));
    assert!(server.http("/commands").contains("<a href=\"/commands/ruok\">ruok</a>"));
    assert!(server.http("/metrics").starts_with("HTTP/1.1 404"), "it has numbers of its own, in /commands/monitor");
    server.stop();
}

/// The PEM files of an authority, a server of its, and a client with this subject.
struct Certificates {
    folder: tempfile::TempDir,
    authority: CertificateDer<'static>,
    client: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

/// Bytes as a file of PEM has them.
fn pem(label: &str, bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().chain([&0, &0]).take(3).fold(0, |word, byte| word << 8 | usize::from(*byte));
        let letters = (0..4).map(|place| if place <= chunk.len() { char::from(LETTERS[word >> (18 - 6 * place) & 63]) } else { '=' });
        body.extend(letters);
    }
    let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("letters")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn certificates() -> Certificates {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = CertificateParams::new(Vec::new()).expect("it has no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("randomness")).expect("it can be signed");
    let make = |mut params: CertificateParams, subject: &[(DnType, &str)]| {
        params.distinguished_name = rcgen::DistinguishedName::new();
        subject.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        let key = KeyPair::generate().expect("randomness");
        (params.signed_by(&key, &issuer).expect("it can be signed"), key)
    };
    let server = make(CertificateParams::new(vec!["localhost".to_owned()]).expect("a good name"), &[(DnType::CommonName, "server")]);
    let subject = [(DnType::CountryName, "DE"), (DnType::OrganizationName, "Ex, Ltd."), (DnType::CommonName, "ann")];
    let client = make(CertificateParams::new(Vec::new()).expect("it has no names"), &subject);
    std::fs::write(folder.path().join("server.pem"), pem("PRIVATE KEY", &server.1.serialize_der()) + &pem("CERTIFICATE", server.0.der()))
        .expect("it can be written");
    std::fs::write(folder.path().join("trust.pem"), pem("CERTIFICATE", issuer.der())).expect("it can be written");
    let key = PrivateKeyDer::try_from(client.1.serialize_der()).expect("it was just made");
    Certificates { folder, authority: issuer.der().clone(), client: (client.0.der().clone(), key) }
}

impl Certificates {
    fn lines(&self, auth: &str) -> String {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let (server, trust) = (path("server.pem"), path("trust.pem"));
        format!("secureClientPort=0\nssl.keyStore.location={server}\nssl.trustStore.location={trust}\nssl.clientAuth={auth}\n")
    }

    fn connect(&self, address: SocketAddr, shows: bool) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("it is one");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS 1.3");
        let config = config.with_root_certificates(roots);
        let config = match shows {
            true => config.with_client_auth_cert(vec![self.client.0.clone()], self.client.1.clone_key()).expect("they fit"),
            false => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("localhost").expect("a good name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a good configuration");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        StreamOwned::new(connection, stream)
    }
}

#[test]
fn a_client_over_tls_is_known_by_the_subject_of_its_certificate() {
    let (folder, certificates) = (tempfile::tempdir().expect("a folder"), certificates());
    let server = Server::start(folder.path(), &certificates.lines("need"));
    let secure = server.running.secure_address().expect("it was asked for");
    let mut ann = Client::begin(certificates.connect(secure, true));
    let subject = "CN=ann,O=Ex\\, Ltd.,C=DE";
    match ann.ask(Request::WhoAmI) {
        Ok(Answer::Clients(clients)) => assert!(clients.iter().any(|one| one.scheme == "x509" && one.user == subject), "{clients:?}"),
        other => panic!("{other:?}"),
    }
    ann.ask(create("/hers", vec![Acl { permissions: 31, id: Id::new("x509", subject) }])).expect("it is new");
    ann.ask(Request::Create(Create {
        path: "/auth".into(),
        data: None,
        acl: vec![Acl { permissions: 31, id: Id::new("auth", "") }],
        mode: CreateMode::Persistent,
        sequential: false,
        wants_stat: false,
    }))
    .expect("auth is who she has shown to be");
    let mut bob = connect(server.running.address());
    for path in ["/hers", "/auth"] {
        assert_eq!(bob.ask(Request::GetData { path: path.into(), watch: false }), Err(ErrorCode::NoAuth));
        assert!(ann.ask(Request::GetData { path: path.into(), watch: false }).is_ok());
    }
    // Long answers cross the bounds of TLS records.
    let long = Some(Bytes::from(vec![7; 900_000]));
    ann.ask(Request::SetData { path: "/hers".into(), data: long.clone(), version: -1 }).expect("it may be that long");
    assert!(matches!(ann.ask(Request::GetData { path: "/hers".into(), watch: false }), Ok(Answer::Data { data, .. }) if data == long));
    // Without a certificate nobody is served; plain bytes neither.
    let mut stranger = certificates.connect(secure, false);
    let refused = stranger.write_all(&[0; 8]).and_then(|()| stranger.flush()).and_then(|()| stranger.read(&mut [0; 8]));
    assert!(!matches!(refused, Ok(1..)), "{refused:?}");
    let mut plain = TcpStream::connect(secure).expect("it listens");
    plain.write_all(b"ruok").expect("it reads");
    drop(plain);
    server.stop();

    let server = Server::start(folder.path(), &(certificates.lines("want") + &format!("X509AuthenticationProvider.superUser={subject}\n")));
    let secure = server.running.secure_address().expect("it was asked for");
    let mut stranger = Client::begin(certificates.connect(secure, false));
    assert_eq!(stranger.ask(Request::GetData { path: "/hers".into(), watch: false }), Err(ErrorCode::NoAuth));
    let mut ann = Client::begin(certificates.connect(secure, true));
    ann.ask(create("/bobs", vec![Acl { permissions: 31, id: Id::new("ip", "10.1.1.1") }])).expect("it is new");
    assert!(ann.ask(Request::GetData { path: "/bobs".into(), watch: false }).is_ok(), "she may do everything");
    server.stop();
}

/// Asks until the server closes the connection, or answers no more.
fn is_silenced(client: &mut Client<TcpStream>, request: &Request) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let mut body = Vec::new();
        Numbered { xid: 99, request: request.clone() }.encode(&mut body);
        // In a drill an answer may be any.
        if client.exchange(&body).is_err() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_drill_silences_the_server_and_leaves_evidence() {
    for what in ["stat", "acl", "children", "drop", "double"] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::start(folder.path(), "bezant.drills=true\nadmin.serverPort=0\nadmin.serverAddress=127.0.0.1\n");
        let mut ann = connect(server.running.address());
        ann.ask(create("/a", vec![Acl::open()])).expect("it is new");
        let health = server.http("/health");
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nserving\n"), "{health}");
        assert!(server.drill(what, "/nowhere").starts_with(if ["drop", "double"].contains(&what) { "damaged" } else { "refused" }));
        assert!(server.drill(what, "/a").starts_with("damaged: "), "{what}");
        // It touches the node, and needs no permission that is damaged.
        assert!(is_silenced(&mut ann, &create("/a/b", vec![Acl::open()])), "{what}: nothing was noticed");
        let found = server.runtime.block_on(audit_online(&[server.running.address().to_string()]));
        assert!(matches!(&found.verdicts[0].2, Verdict::Quarantined(why) if !why.is_empty()), "{what}: {found:?}");
        let kept = evidence(folder.path()).expect("it can be read");
        assert_eq!((kept.len(), kept[0].noticed_by.as_str()), (1, "serving"), "{what}");
        let health = server.http("/health");
        assert!(health.starts_with("HTTP/1.1 503") && health.contains("this server serves nobody: "), "{what}: {health}");
        server.stop();
    }
}

#[test]
fn a_server_that_allows_no_drills_is_not_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "");
    assert!(server.drill("stat", "/").starts_with("refused: this server allows no drills"));
    let mut ann = connect(server.running.address());
    assert!(ann.ask(write("/")).is_ok());
    assert_eq!(evidence(folder.path()).expect("it can be read"), []);
    server.stop();
}

#[test]
fn an_audit_of_servers_that_run_names_the_one_that_differs() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let servers: Vec<Server> =
        folders.iter().map(|folder| Server::start(folder.path(), "bezant.detection=online\nbezant.drills=true\n")).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.running.address().to_string()).collect();
    // Servers by themselves have sessions of their own, and so digests of their own: nobody can say who is wrong.
    for server in &servers {
        let mut client = connect(server.running.address());
        (0..130).for_each(|number| drop(client.ask(create(&format!("/n{number}"), vec![Acl::open()])).expect("it is new")));
    }
    let audit = servers[0].runtime.block_on(audit_online(&addresses));
    assert!(audit.zxid.is_none() && !audit.is_clean(), "{audit:?}");
    let alone = servers[0].runtime.block_on(audit_online(&addresses[..1]));
    assert!(alone.is_clean() && alone.zxid == Some(128), "{alone:?}");
    servers.into_iter().for_each(Server::stop);
}
