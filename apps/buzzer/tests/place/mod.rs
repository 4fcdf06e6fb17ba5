//! A cluster in this process, with real TLS on loopback and a real disk; and the site on it.

// Each file of tests has its own copy, and uses a part of it.
#![allow(dead_code)]

pub mod account;
pub mod browser;
pub mod limits;
pub mod network;
pub mod site;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bezant_client::Client;
use buzzer::{App, Behind};
use buzzer_model::{Clock, Keys, Name, Network};
use clap::Parser;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long anything may take that is waited for. It decides only when a test that fails does so.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program's command line.
#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: bezant::Command,
}

/// What runs on a cluster.
pub struct Place {
    folder: TempDir,
}

impl Place {
    /// A client with connections of its own.
    pub async fn client(&self) -> Client {
        let begun = Instant::now();
        loop {
            // The configuration is there before the replicas are.
            let error = match bezant_client::load(self.folder.path().join("cluster")) {
                Ok(config) => match bezant_client::connect(config).await {
                    Ok(client) => return client,
                    Err(error) => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            assert!(begun.elapsed() < PATIENCE, "no connection: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A network as one server has it.
    pub async fn network(&self) -> Network {
        Network::new(self.client().await, Keys::under("buzzer"), Arc::new(Clock::default()))
    }

    /// The site, served by a server of its own.
    pub async fn site(&self) -> Site {
        self.site_and_its_client().await.0
    }

    /// The same, behind something.
    pub async fn site_behind(&self, behind: Behind) -> Site {
        self.site_with(|app| app, behind).await
    }

    /// The same, with an application that is changed first.
    pub async fn site_with(&self, change: impl FnOnce(App) -> App, behind: Behind) -> Site {
        Site::of(change(App::new(self.network().await, behind).expect("the system has randomness"))).await
    }

    /// The same, and its client, without which it has no cluster.
    pub async fn site_and_its_client(&self) -> (Site, Client) {
        let client = self.client().await;
        let network = Network::new(client.clone(), Keys::under("buzzer"), Arc::new(Clock::default()));
        (Site::of(App::new(network, Behind::Nothing).expect("the system has randomness")).await, client)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A server of the site.
pub struct Site {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Site {
    async fn of(app: App) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(buzzer::serve(listener, app, async move { drop(stopped.await) }));
        Self { address, stop, server }
    }

    /// Tells it to stop, and waits until it has.
    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(PATIENCE, self.server).await.expect("it stops").expect("it does not panic");
    }
}

/// Runs `work` on a cluster of `engine`, of which there may be one in a process.
pub fn on_cluster(engine: &str, more: &[&str], work: impl AsyncFnOnce(Place)) {
    let folder = TempDir::new().expect("a temporary folder");
    let cluster = folder.path().join("cluster").display().to_string();
    let words = ["bezant", "dev", &cluster, "--engine", engine, "--base-port", "auto"];
    let program = Program::parse_from(words.iter().chain(more));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("the system gives threads");
    runtime.block_on(async {
        let mut running = Box::pin(program.command.run());
        let mut work = Box::pin(work(Place { folder }));
        tokio::select! {
            ended = &mut running => panic!("the cluster has ended: {:?}", ended.map(drop)),
            () = &mut work => {}
        }
    });
}

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}
