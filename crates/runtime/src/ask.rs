//! The little of HTTP that asking a node needs: one GET, one answer, with limits on both.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks `address` (`host:port`) for `path`. Gives the body of a 200, or what went wrong.
pub async fn get(address: &str, path: &str) -> Result<String, String> {
    timeout(ANSWER_TIMEOUT, ask(address, path)).await.map_err(|_| format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))?
}

async fn ask(address: &str, path: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    // HTTP/1.0, so that the answer ends where the connection does and is not sent in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
    body(&String::from_utf8_lossy(&answer))
}

fn body(answer: &str) -> Result<String, String> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some(_) => Err(format!("{status}: {}", body.trim())),
        None => Err("the answer is not HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_is_an_answer() {
        assert_eq!(body("HTTP/1.1 200 OK\r\nA: b\r\n\r\nhello"), Ok("hello".to_owned()));
        assert_eq!(
            body("HTTP/1.1 503 Service Unavailable\r\n\r\ncatching up\n"),
            Err("HTTP/1.1 503 Service Unavailable: catching up".to_owned())
        );
        assert!(body("nonsense").is_err() && body("\r\n\r\n").is_err());
    }
}
