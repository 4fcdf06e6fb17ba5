//! Attacks by strangers, who have no key.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use bezant::failure::Failure;

use super::wire::{Speaker, Target};

/// How many silent connections a stranger keeps open to each replica.
const SILENT_CONNECTIONS: usize = 300;
/// How long it waits before it opens one again that was closed.
const SILENT_PAUSE: Duration = Duration::from_secs(1);
/// How many handshakes, and how many floods of HTTP requests, go on at each replica.
const HANDSHAKES: usize = 4;
const HTTP_CONNECTIONS: usize = 4;
/// How long a stranger waits after a connection failed or was closed.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections that say nothing, and are opened again when they are closed.
pub fn silent_strangers(target: &Arc<Target>) -> Result<(), Failure> {
    for (_, address) in target.replicas.clone() {
        for _ in 0..SILENT_CONNECTIONS {
            repeat(target, move |target| async move {
                let mut stream = open(&target, address).await?;
                // However it ends: what matters is that it says nothing for long.
                let _ = stream.read_u8().await;
                tokio::time::sleep(SILENT_PAUSE).await;
                Ok(())
            });
        }
    }
    Ok(())
}

/// TLS handshakes one after another, each brought to its end.
pub fn handshakes(target: &Arc<Target>) -> Result<(), Failure> {
    let speaker = target.speaker(None)?;
    for (_, address) in target.replicas.clone() {
        for _ in 0..HANDSHAKES {
            let speaker = speaker.clone();
            repeat(target, move |target| {
                let speaker = speaker.clone();
                async move { shake_hands(&target, &speaker, address).await }
            });
        }
    }
    Ok(())
}

/// Requests for `/status`, one after another on each connection.
pub fn http(target: &Arc<Target>) -> Result<(), Failure> {
    for address in target.http.clone() {
        for _ in 0..HTTP_CONNECTIONS {
            repeat(target, move |target| async move {
                let mut stream = open(&target, address).await?;
                let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\n\r\n");
                let mut answer = vec![0; 64 << 10];
                loop {
                    stream.write_all(request.as_bytes()).await?;
                    target.note_write(request.len());
                    let count = stream.read(&mut answer).await?;
                    target.counts.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    if count == 0 {
                        return Ok(());
                    }
                }
            });
        }
    }
    Ok(())
}

async fn shake_hands(target: &Target, speaker: &Speaker, address: SocketAddr) -> io::Result<()> {
    let done = target.shake_hands(speaker, address).await.map(drop);
    target.note_connection(&done);
    done
}

async fn open(target: &Target, address: SocketAddr) -> io::Result<TcpStream> {
    let opened = TcpStream::connect(address).await;
    target.note_connection(&opened);
    opened
}

/// Does the same again and again, for ever, whatever comes of it.
fn repeat<D>(target: &Arc<Target>, again: impl Fn(Arc<Target>) -> D + Send + 'static)
where
    D: Future<Output = io::Result<()>> + Send,
{
    let target = Arc::clone(target);
    tokio::spawn(async move {
        loop {
            if again(Arc::clone(&target)).await.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
}
