//! A small window for people and monitoring: `/health`, `/metrics`, and whatever pages the program adds.
//!
//! It answers GET and nothing else, reads at most [`REQUEST_BYTES_MAX`] of a request, serves one request a connection,
//! and changes nothing; so a few lines do, and no web framework comes into a node.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::metrics::Metrics;

/// The longest request, its headers included.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The most requests served at a time; further ones are closed.
pub const REQUESTS_MAX: usize = 64;
/// How long one request may take from its first byte to its answer's last.
pub const REQUEST_TIMEOUT_MS: u64 = 5_000;

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The status, such as 200.
    pub status: u16,
    /// The kind of the body, such as `application/json`.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Page {
    /// A page of JSON.
    #[must_use]
    pub fn json(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, content_type: "application/json", body: body.into() }
    }

    /// A page of plain text.
    #[must_use]
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// More pages: what to answer for a path (without its query), if there is such a page. `/status` is one by custom.
pub type Pages = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// Serves at `listener` until dropped: `/metrics` from `metrics`; then what `pages` knows; and `/health`, which says that
/// the process answers, unless `pages` knows better.
pub async fn serve(listener: TcpListener, metrics: Metrics, pages: Pages) {
    let room = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
                    let (metrics, pages) = (metrics.clone(), Arc::clone(&pages));
                    requests.spawn(async move {
                        // A browser that goes away in the middle concerns nobody.
                        let _ = timeout(Duration::from_millis(REQUEST_TIMEOUT_MS), answer(stream, &metrics, &pages)).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be accepted");
                    sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = requests.join_next() => {}
        }
    }
}

async fn answer(mut stream: TcpStream, metrics: &Metrics, pages: &Pages) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(1_024);
    let page = loop {
        if let Some(page) = respond(&request, metrics, pages) {
            break page;
        }
        let mut limited = (&mut stream).take((REQUEST_BYTES_MAX - request.len()) as u64);
        if limited.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    };
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n",
        page.status,
        reason(page.status),
        page.content_type,
        page.body.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&page.body).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// The answer, once `request` is complete or beyond hope.
#[must_use]
pub fn respond(request: &[u8], metrics: &Metrics, pages: &Pages) -> Option<Page> {
    if !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let full = request.len() >= REQUEST_BYTES_MAX;
        return full.then(|| Page::text(431, "the request is too long\n"));
    }
    let line = request.split(|byte| *byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) = (method, target, version, words.next()) else {
        return Some(Page::text(400, "this is not HTTP/1.1\n"));
    };
    if method != "GET" {
        return Some(Page::text(405, "only GET is answered here\n"));
    }
    let path = target.split('?').next().unwrap_or_default();
    if path == "/metrics" {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return Some(Page { status: 200, content_type, body: metrics.to_text().into_bytes() });
    }
    let known = pages(path).or_else(|| (path == "/health").then(|| Page::text(200, "ok\n")));
    Some(known.unwrap_or_else(|| Page::text(404, "there is no such page; try /health, /metrics or /status\n")))
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let pages: Pages = Arc::new(|path| (path == "/status").then(|| Page::json("{}")));
        let server = tokio::spawn(serve(listener, Metrics::default(), pages));
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers in text");
        server.abort();
        answer
    }

    #[tokio::test]
    async fn pages_are_served_and_everything_else_is_refused() {
        assert!(ask(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.ends_with("\r\n\r\nok\n"));
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").await.contains("bezant_turns_total 0"));
        assert!(ask(b"GET /status?x=1 HTTP/1.1\r\n\r\n").await.ends_with("\r\n\r\n{}"));
        assert!(ask(b"GET /../secret HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(b"POST /status HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        assert!(ask(b"\x16\x03\x01\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        assert!(ask(&[b'a'; REQUEST_BYTES_MAX]).await.starts_with("HTTP/1.1 431"));
    }
}
