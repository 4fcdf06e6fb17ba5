//! Asks a node for one page, with limits on how long the answer may take and be.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks `address` (`host:port`) for `path`. Gives the body of a 200, or what went wrong.
///
/// # Errors
/// A sentence that says why there is no answer, or the status and the body of one that is not a 200.
pub async fn get(address: &str, path: &str) -> Result<String, String> {
    timeout(ANSWER_TIMEOUT, ask(address, path)).await.map_err(|_| format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))?
}

async fn ask(address: &str, path: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let not_http = |error: hyper::Error| format!("the answer is not HTTP: {error}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(not_http)?;
    // Ends with the sender, and so with this function.
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, address).body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(not_http)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    if status == StatusCode::OK { Ok(body) } else { Err(format!("{status}: {}", body.trim())) }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// What is made of this answer.
    async fn made_of(answer: Vec<u8>) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens").to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("somebody asks");
            // Whoever has read enough hangs up.
            let _ = stream.write_all(&answer).await;
        });
        get(&address, "/").await
    }

    #[tokio::test]
    async fn only_a_200_is_an_answer() {
        assert_eq!(made_of(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_vec()).await, Ok("hello".to_owned()));
        let refused = made_of(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 11\r\n\r\ncatching up".to_vec()).await;
        assert_eq!(refused, Err("503 Service Unavailable: catching up".to_owned()));
        assert!(made_of(b"nonsense\r\n\r\n".to_vec()).await.is_err());
        assert!(made_of(Vec::new()).await.is_err());
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_given_up() {
        let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        answer.resize(ANSWER_BYTES_MAX + 100, b'x');
        assert!(made_of(answer).await.is_err());
    }
}
