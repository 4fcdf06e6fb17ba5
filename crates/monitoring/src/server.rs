//! The HTTP server: answers GET and HEAD, one request a connection, within [`CONNECTION_TIMEOUT_MS`].
//!
//! hyper reads the request, under limits of size, and writes the answer. What is decided here, in `Site::respond`, is which page
//! an address has, and whom it may be shown to. A browser that was led here by another page sends that page's host name in
//! `Host` (DNS rebinding); only an IP address, `localhost` or one of the site's own names is answered.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::Full;
pub use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime::{LogLimit, LowPriority, Metrics};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The longest request, its headers included; hyper accepts no smaller bound.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The most headers of a request.
pub const HEADERS_MAX: usize = 64;
/// The most connections at a time. One more takes the place of another, so that whoever holds them open keeps nobody out: of one that is not being
/// answered, if there is any; of those from the address that has the most; of the oldest of these.
pub const CONNECTIONS_MAX: usize = 64;
/// How long one connection may take from its start to its end.
pub const CONNECTION_TIMEOUT_MS: u64 = 5_000;
/// How long accepting pauses when the system refuses a connection, for want of file descriptors perhaps.
const ACCEPT_PAUSE_MS: u64 = 50;
/// How many lines a minute go to the log about connections that could not be accepted.
const FAILURES_LOGGED_A_MINUTE_MAX: u32 = 8;
/// The content type of [`Metrics::to_text`].
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The status, such as 200.
    pub status: StatusCode,
    /// The kind of the body, such as `application/json`.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Page {
    /// A page of JSON.
    #[must_use]
    pub fn json(body: impl Into<Vec<u8>>) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: body.into() }
    }

    /// A page of plain text.
    #[must_use]
    pub fn text(status: StatusCode, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// More pages: what to answer for a path (without its query), if there is such a page. `/status` is one by custom.
pub type Pages = Box<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// Everything that one server shows.
pub struct Site {
    /// What `/metrics` shows, if there is such a page.
    pub metrics: Option<Metrics>,
    /// The other pages. `/health` says that the process answers, unless they know better.
    pub pages: Pages,
    /// The host names, without ports, by which this server may be called besides `localhost` and IP addresses.
    pub names: Vec<String>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Site").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Site {
    /// The answer to one request.
    fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        let page = self.page(request);
        *response.status_mut() = page.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if page.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        // hyper leaves the body of an answer to HEAD out and keeps its length.
        *response.body_mut() = Full::from(page.body);
        response
    }

    fn page<B>(&self, request: &Request<B>) -> Page {
        if !self.is_called_by_its_name(request) {
            return Page::text(StatusCode::MISDIRECTED_REQUEST, "this is not the host that the request names\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
        }
        let path = request.uri().path();
        if let Some(metrics) = self.metrics.as_ref().filter(|_| path == "/metrics") {
            return Page { status: StatusCode::OK, content_type: METRICS_TYPE, body: metrics.to_text().into_bytes() };
        }
        let known = (self.pages)(path).or_else(|| (path == "/health").then(|| Page::text(StatusCode::OK, "ok\n")));
        let others = if self.metrics.is_some() { ", /metrics or /status" } else { "" };
        known.unwrap_or_else(|| Page::text(StatusCode::NOT_FOUND, format!("there is no such page; try /health{others}\n")))
    }

    /// Whether the request names this host, or none at all: a browser always names one.
    fn is_called_by_its_name<B>(&self, request: &Request<B>) -> bool {
        let mut hosts = request.headers().get_all(HOST).iter();
        let named = match (request.uri().authority(), hosts.next()) {
            (Some(authority), _) => Some(authority.as_str()),
            (None, None) => None,
            (None, Some(host)) => match host.to_str() {
                Ok(host) => Some(host),
                Err(_) => return false,
            },
        };
        hosts.next().is_none() && named.is_none_or(|named| self.has_name(host_of(named)))
    }

    fn has_name(&self, host: &str) -> bool {
        let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        is_address || host.eq_ignore_ascii_case("localhost") || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The host of `host:port`, where the port may be left out and the host may be an IPv6 address in brackets.
#[must_use]
pub fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Serves at `listener` until what it returns is dropped, on a thread that lets all others go first: whoever asks can wait, and whoever
/// asks without end keeps nobody's transactions from a core.
///
/// # Errors
/// When the system gives no thread, or does not let it have the listener.
pub fn start(listener: TcpListener, site: Site) -> std::io::Result<LowPriority> {
    let thread = LowPriority::start()?;
    // Taken from the reactor of this thread's runtime, and given to that of the other.
    let listener = listener.into_std()?;
    thread.spawn(async move {
        match TcpListener::from_std(listener) {
            Ok(listener) => serve(listener, site).await,
            Err(error) => tracing::error!(%error, "nothing is answered over HTTP"),
        }
    });
    Ok(thread)
}

/// Serves at `listener` until dropped.
async fn serve(listener: TcpListener, site: Site) {
    let site = Arc::new(site);
    let failures = LogLimit::new(FAILURES_LOGGED_A_MINUTE_MAX);
    let mut connections = JoinSet::new();
    let mut open = OpenConnections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    open.make_place();
                    let (site, answering) = (Arc::clone(&site), Answering::default());
                    let served = answering.clone();
                    let task = connections.spawn(async move {
                        let serving = serve_and_say(stream, &site, &served);
                        let _ = timeout(Duration::from_millis(CONNECTION_TIMEOUT_MS), serving).await;
                    });
                    open.row.push_back(Connection { address: address.ip(), answering, task });
                }
                Err(error) => {
                    if let Some(left_out) = failures.admit(Instant::now()) {
                        tracing::warn!(%error, left_out = left_out.noted(), "an HTTP connection could not be accepted");
                    }
                    sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Whether a connection is being answered: its request has come, and its answer is not all written.
#[derive(Clone, Debug, Default)]
struct Answering(Arc<AtomicBool>);

impl Answering {
    fn set(&self, is_answering: bool) {
        self.0.store(is_answering, Ordering::SeqCst);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// One connection that is open.
struct Connection {
    address: IpAddr,
    answering: Answering,
    task: AbortHandle,
}

/// Those that are open, in the order in which they came.
#[derive(Default)]
struct OpenConnections {
    row: VecDeque<Connection>,
}

impl OpenConnections {
    /// Makes sure that there is a place for one more.
    fn make_place(&mut self) {
        self.row.retain(|connection| !connection.task.is_finished());
        if self.row.len() >= CONNECTIONS_MAX
            && let Some(given_up) = self.least_needed().and_then(|at| self.row.remove(at))
        {
            given_up.task.abort();
        }
    }

    /// The one that gives its place to another.
    fn least_needed(&self) -> Option<usize> {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for connection in &self.row {
            *of_address.entry(connection.address).or_default() += 1;
        }
        let need = |connection: &Connection| {
            let from_there = of_address.get(&connection.address).copied().unwrap_or_default();
            (connection.answering.get(), std::cmp::Reverse(from_there))
        };
        // Of several the first, which is the oldest.
        self.row.iter().map(need).enumerate().min_by_key(|(_, need)| *need).map(|(at, _)| at)
    }
}

/// Answers the one request of a connection, and waits until the other side has closed it too. How long that may take is for
/// the caller to bound.
pub async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, site: &Site) {
    serve_and_say(stream, site, &Answering::default()).await;
}

/// The same, and says while the request is being answered.
async fn serve_and_say(mut stream: impl AsyncRead + AsyncWrite + Unpin, site: &Site, answering: &Answering) {
    let answer = service_fn(|request: Request<Incoming>| async move {
        answering.set(true);
        Ok::<_, std::convert::Infallible>(site.respond(&request))
    });
    let mut http = http1::Builder::new();
    // A client that has said all and closed its side still gets its answer.
    http.half_close(true)
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(CONNECTION_TIMEOUT_MS));
    // A browser that goes away in the middle, or sends what is no request, concerns nobody.
    let _ = http.serve_connection(TokioIo::new(&mut stream), answer).await;
    answering.set(false);
    let farewell = async {
        stream.shutdown().await?;
        // A socket closed with bytes unread would take the answer with it.
        let mut rest = [0; 1_024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _ = farewell.await;
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// What a server with the name `a.example` and the page `/status` answers to these bytes.
    async fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let pages: Pages = Box::new(|path| (path == "/status").then(|| Page::json("{}")));
        let server = tokio::spawn(serve(listener, Site { metrics: Some(Metrics::default()), pages, names: vec!["a.example".to_owned()] }));
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers in text");
        server.abort();
        answer
    }

    #[tokio::test]
    async fn pages_are_served_until_the_server_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let pages: Pages = Box::new(|_| std::thread::current().name().map(|name| Page::text(StatusCode::OK, name)));
        let server =
            start(listener, Site { metrics: Some(Metrics::default()), pages, names: Vec::new() }).expect("the system gives a thread");
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers in text");
        assert!(answer.ends_with("\r\n\r\nlow priority"), "{answer}");
        drop(server);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn pages_are_served_and_everything_else_is_refused() {
        assert!(ask(b"GET /health HTTP/1.1\r\nhost: localhost:7400\r\n\r\n").await.ends_with("\r\n\r\nok\n"));
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").await.contains("bezant_turns_total 0"));
        assert!(ask(b"GET /status?x=1 HTTP/1.1\r\n\r\n").await.ends_with("\r\n\r\n{}"));
        assert!(ask(b"GET /../secret HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(b"\x16\x03\x01\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        assert!(ask(&[b'a'; REQUEST_BYTES_MAX]).await.starts_with("HTTP/1.1 4"));
    }

    #[tokio::test]
    async fn head_is_answered_like_get_without_the_body() {
        let answer = ask(b"HEAD /status HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("content-length: 2\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn another_method_is_told_which_are_allowed() {
        let answer = ask(b"POST /status HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello").await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
        assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn too_long_a_request_and_too_many_headers_are_refused() {
        let long = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(REQUEST_BYTES_MAX));
        assert!(ask(long.as_bytes()).await.starts_with("HTTP/1.1 431"));
        let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(HEADERS_MAX + 1));
        assert!(ask(many.as_bytes()).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn a_page_elsewhere_cannot_make_a_browser_read_this_one() {
        for host in ["evil.example", "evil.example:7400", "localhost.evil.example", "127.0.0.1.evil.example", "a.example.evil", "\u{7f}"] {
            let answer = ask(format!("GET /status HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 421") || answer.starts_with("HTTP/1.1 400"), "{host}: {answer}");
        }
        assert!(ask(b"GET /status HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n").await.starts_with("HTTP/1.1 421"));
        assert!(ask(b"GET http://evil.example/status HTTP/1.1\r\nhost: localhost\r\n\r\n").await.starts_with("HTTP/1.1 421"));
        for host in ["127.0.0.1:7400", "[::1]:7400", "[::1]", "10.1.2.3", "LOCALHOST", "a.example:80", "A.Example"] {
            let answer = ask(format!("GET /status HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        }
    }

    #[tokio::test]
    async fn whoever_is_being_answered_or_comes_from_elsewhere_keeps_its_place() {
        let mut tasks = JoinSet::new();
        let mut connection = |host: u8, is_answering| {
            let connection = Connection {
                address: [127, 0, 0, host].into(),
                answering: Answering::default(),
                task: tasks.spawn(std::future::pending::<()>()),
            };
            connection.answering.set(is_answering);
            connection
        };
        let mut open = OpenConnections::default();
        open.row.extend([connection(1, true), connection(2, false)]);
        open.row.extend((2..CONNECTIONS_MAX).map(|_| connection(3, false)));
        open.make_place();
        let left: Vec<(IpAddr, bool)> = open.row.iter().map(|connection| (connection.address, connection.answering.get())).collect();
        assert_eq!(left.len(), CONNECTIONS_MAX - 1);
        assert_eq!(left[..2], [([127, 0, 0, 1].into(), true), ([127, 0, 0, 2].into(), false)]);
        // Where all are being answered, the oldest of those from one address.
        open.row.iter().for_each(|connection| connection.answering.set(true));
        open.row.push_back(connection(4, true));
        open.make_place();
        assert_eq!(open.row.iter().filter(|connection| connection.address == IpAddr::from([127, 0, 0, 3])).count(), CONNECTIONS_MAX - 4);
    }

    #[tokio::test]
    async fn the_connection_whose_answer_is_written_is_not_being_answered() {
        let (mut client, server) = tokio::io::duplex(16);
        let answering = Answering::default();
        let site = Site { metrics: None, pages: Box::new(|_| None), names: Vec::new() };
        let mut serving = Box::pin(serve_and_say(server, &site, &answering));
        let asking = async {
            client.write_all(b"GET /health HTTP/1.1\r\n\r\n").await.expect("it reads");
            client.read_exact(&mut [0; 8]).await.expect("it answers");
        };
        tokio::select! { () = &mut serving => panic!("most of it is not read"), () = asking => {} }
        assert!(answering.get());
        let mut rest = String::new();
        tokio::select! {
            () = &mut serving => panic!("the other side has not closed"),
            read = client.read_to_string(&mut rest) => { read.expect("it is text"); }
        }
        assert!(!answering.get(), "{rest}");
    }

    #[tokio::test]
    async fn one_connection_too_many_takes_the_place_of_the_oldest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let site = Site { metrics: Some(Metrics::default()), pages: Box::new(|_| None), names: Vec::new() };
        let server = tokio::spawn(serve(listener, site));
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(TcpStream::connect(address).await.expect("it listens"));
        }
        let mut newest = TcpStream::connect(address).await.expect("it listens");
        newest.write_all(b"GET /health HTTP/1.1\r\n\r\n").await.expect("it reads");
        let mut answer = String::new();
        newest.read_to_string(&mut answer).await.expect("it answers in text");
        assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
        // Closed without a word.
        assert!(matches!(idle[0].read(&mut [0; 1]).await, Ok(0) | Err(_)));
        idle[1].write_all(b"GET /health HTTP/1.1\r\n\r\n").await.expect("it reads");
        assert!(matches!(idle[1].read(&mut [0; 1]).await, Ok(1)), "the second is served as before");
        server.abort();
    }
}
