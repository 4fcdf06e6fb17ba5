//! What a browser, or anybody, asks of a node's HTTP server.

use std::sync::LazyLock;

use monitoring::server::{Page, REQUEST_BYTES_MAX, Site, serve_connection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "http",
    what: "answers an HTTP request, whole or in two pieces; the first two bytes say where it is cut",
    bytes_max: REQUEST_BYTES_MAX + 2,
    runs: 10_000,
    run,
    seeds,
};

/// The answers that there are; none is an answer too, to what is not a whole request.
const STATUSES: [&str; 7] = ["200", "400", "404", "405", "414", "421", "431"];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime without sockets can be made"));

fn run(bytes: &[u8]) {
    let Some((cut, request)) = bytes.split_first_chunk::<2>() else { return };
    let cut = usize::from(u16::from_le_bytes(*cut)) % (request.len() + 1);
    let whole = answer(&[request]);
    let (first, second) = request.split_at(cut);
    let method = request.trim_ascii_start();
    // Of a request without an end, nonsense may be answered or not.
    if method.windows(2).any(|end| end == b"\n\n") || method.windows(3).any(|end| end == b"\n\r\n") {
        assert_eq!(whole, answer(&[first, second]), "where the network cuts a request does not change its answer");
    }
    let Some(text) = whole else { return };
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).unwrap_or_default();
    assert!(STATUSES.contains(&status), "{text}");
    if status == "200" {
        assert!(method.starts_with(b"GET ") || method.starts_with(b"HEAD "), "nothing else is answered");
    }
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(!method.starts_with(b"HEAD ") || body.is_empty() || status == "400", "an answer to HEAD has no body");
    assert_eq!(head.contains("allow: GET, HEAD"), status == "405", "{head}");
}

/// The answer to a request that arrives in these pieces, without its date; `None` when there is none.
fn answer(pieces: &[&[u8]]) -> Option<String> {
    let site = Site {
        metrics: Some(runtime::Metrics::default()),
        pages: Box::new(|path| (path == "/status").then(|| Page::json("{}"))),
        names: vec!["a.example".to_owned()],
    };
    RUNTIME.block_on(async {
        let (mut browser, server) = tokio::io::duplex(REQUEST_BYTES_MAX);
        let asking = async {
            for piece in pieces {
                // A server that has answered already does not read on.
                let _ = browser.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            let _ = browser.shutdown().await;
            let mut answer = String::new();
            browser.read_to_string(&mut answer).await.expect("an answer is text");
            answer
        };
        let (answer, ()) = tokio::join!(asking, serve_connection(server, &site));
        let kept: Vec<&str> = answer.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect();
        (!answer.is_empty()).then(|| kept.concat())
    })
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /status HTTP/1.0\r\n\r\n",
        "HEAD /status HTTP/1.1\r\nhost: a.example:80\r\n\r\n",
        "GET /status?verbose=1 HTTP/1.1\r\naccept: */*\r\n\r\nbody",
        "GET http://evil.example/status HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /status HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        "POST /status HTTP/1.1\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "GET /../etc HTTP/1.1\r\nhost: [::1]\r\nhost: evil.example\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
    ]
    .map(|text| [&[9, 0], text.as_bytes()].concat())
    .to_vec()
}
