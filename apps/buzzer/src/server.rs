//! Connections: hyper reads requests under limits of size and time, the router answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::guard::SourceShares;
use crate::write_timeout::WriteTimeout;

/// The most connections that are served at a time; more wait.
pub const CONNECTIONS_MAX: usize = 1_024;
/// The most of them from one subnet that is no proxy's, and from its site four times as many: one more is closed at once. A browser has six.
pub const CONNECTIONS_OF_SUBNET_MAX: usize = 64;
/// The most bytes of a request's head; hyper accepts no smaller bound.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a request's head may take to come, and a connection may do nothing.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may wait for its reader to take more of it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long what is under way may go on when the server is told to stop.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long accepting pauses when the system refuses a connection, for want of file descriptors perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` at `listener` until `stop` is done; what is under way then is finished.
pub async fn serve(listener: TcpListener, app: App, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let (proxies, of_sources) = (app.proxies(), SourceShares::new(CONNECTIONS_OF_SUBNET_MAX));
    let router = app.router(stopped.clone());
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
            (place, listener.accept().await)
        };
        tokio::select! {
            () = &mut stop => break,
            (place, accepted) = accept => match accepted {
                Ok((stream, address)) => {
                    // Through a proxy come the connections of all.
                    let share = (!proxies.contains(address.ip())).then(|| of_sources.take(address.ip().into()));
                    if matches!(share, Some(None)) {
                        continue;
                    }
                    let (router, stopped) = (router.clone(), stopped.clone());
                    connections.spawn(async move {
                        converse(WriteTimeout::new(stream, WRITE_TIMEOUT), ConnectInfo(address), router, stopped).await;
                        drop((place, share));
                    });
                }
                Err(error) => {
                    eprintln!("a connection could not be accepted: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    stopping.send_replace(true);
    // Whoever takes longer is cut off.
    let _ = timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

/// Answers the requests of a connection, until it ends or the server stops.
async fn converse(stream: WriteTimeout, from: ConnectInfo<SocketAddr>, router: Router, mut stopped: watch::Receiver<bool>) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    // A browser that goes away in the middle, or sends what is no request, concerns nobody.
    tokio::select! {
        _ = &mut connection => {}
        () = has_stopped(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Waits until the server is told to stop, or is gone.
pub(crate) async fn has_stopped(stopped: &mut watch::Receiver<bool>) {
    // What it gives is a lock, which nobody may hold while waiting.
    drop(stopped.wait_for(|stopped| *stopped).await);
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    /// How long a test waits for what must come.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// A browser's side of a connection, and the server's, which ends when the conversation does.
    async fn conversation(limit: Duration) -> (TcpStream, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let browser = TcpStream::connect(listener.local_addr().expect("it listens")).await.expect("it listens");
        let (stream, address) = listener.accept().await.expect("somebody came");
        // More than the system keeps for a reader by a good deal.
        let router = Router::new().route("/", get(|| async { vec![b'x'; 64 << 20] }));
        let server = tokio::spawn(async move {
            let (_stopping, stopped) = watch::channel(false);
            converse(WriteTimeout::new(stream, limit), ConnectInfo(address), router, stopped).await;
        });
        (browser, server)
    }

    #[tokio::test]
    async fn who_asks_and_does_not_read_loses_the_connection() {
        let (mut browser, server) = conversation(Duration::from_millis(50)).await;
        browser.write_all(&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3)).await.expect("it is read");
        timeout(PATIENCE, server).await.expect("it ends").expect("it does not panic");
    }

    #[tokio::test]
    async fn who_reads_gets_all() {
        let (mut browser, _server) = conversation(PATIENCE).await;
        browser.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("it is read");
        let mut answer = Vec::new();
        timeout(PATIENCE, browser.read_to_end(&mut answer)).await.expect("it comes").expect("it comes");
        assert!(answer.len() > 64 << 20);
    }
}
