//! What a browser, or anybody, asks of a node's HTTP window.

use std::sync::{Arc, LazyLock};

use runtime::Metrics;
use runtime::http::{Page, Pages, REQUEST_BYTES_MAX, respond};

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "http",
    what: "answers an HTTP request that arrives byte by byte",
    bytes_max: REQUEST_BYTES_MAX,
    runs: 20_000,
    run,
    seeds,
};

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::default);

fn run(bytes: &[u8]) {
    let pages: Pages = Arc::new(|path| (path == "/status").then(|| Page::json("{}")));
    let bytes = &bytes[..bytes.len().min(REQUEST_BYTES_MAX)];
    let ends = bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
    let page = respond(bytes, &METRICS, &pages);
    assert_eq!(page.is_some(), ends.is_some() || bytes.len() == REQUEST_BYTES_MAX, "an answer comes when the request is whole");
    let Some(page) = page else { return };
    assert!([200, 400, 404, 405, 431].contains(&page.status));
    if page.status == 200 {
        assert!(bytes.starts_with(b"GET /"), "nothing else is answered");
    }
    if let Some(end) = ends {
        // Nothing before the end is an answer, and nothing behind it changes it.
        assert_eq!(respond(&bytes[..end - 1], &METRICS, &pages), None);
        assert_eq!(respond(&bytes[..end], &METRICS, &pages).map(|page| page.status), Some(page.status));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.0\r\n\r\n",
        "GET /status?verbose=1 HTTP/1.1\r\naccept: */*\r\n\r\nbody",
        "POST /status HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        "GET /../etc HTTP/1.1\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
