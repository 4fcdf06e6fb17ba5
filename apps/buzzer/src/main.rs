//! `buzzer`: serves the social network.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use buzzer::{App, Behind, Block, Proxies};
use buzzer_model::{Clock, Keys, Network};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serves a social network whose data is in a Bezant cluster.
///
/// Example: `bezant dev & buzzer --cluster ./bezant-data --listen 127.0.0.1:8080`
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The cluster's folder, or that of a client, as `bezant dev` or `bezant init` made it
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    /// Where to listen; port 0 takes a free one. The address is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Requests come through a proxy that speaks HTTPS with browsers, and adds their addresses to X-Forwarded-For: cookies are
    /// marked for HTTPS alone, and rates are counted by those addresses
    #[arg(long)]
    behind_proxy: bool,
    /// A proxy whose X-Forwarded-For is believed, or a block of addresses such as 10.0.0.0/8; may be said several times. If none is said, the proxies on
    /// this machine are believed. What others send in that header is not
    #[arg(long, value_name = "ADDRESS", requires = "behind_proxy")]
    proxy: Vec<Block>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    let told = |what: String| move |error: std::io::Error| format!("cannot {what}: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(told("listen for signals".to_owned()))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(told("listen for signals".to_owned()))?;
    let config = bezant_client::load(&args.cluster).map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(args.listen).await.map_err(told(format!("listen at {}", args.listen)))?;
    let address = listener.local_addr().map_err(told("learn where this listens".to_owned()))?;
    let client = bezant_client::connect(config).await.map_err(|error| error.to_string())?;
    let behind = if args.behind_proxy { Behind::HttpsProxy } else { Behind::Nothing };
    let network = Network::new(client.clone(), Keys::under("buzzer"), Arc::new(Clock::default()));
    let mut app = App::new(network, behind).map_err(|error| error.to_string())?;
    if !args.proxy.is_empty() {
        app = app.believing(Proxies::new(args.proxy));
    }
    println!("http://{address}");
    if !address.ip().is_loopback() && !args.behind_proxy {
        eprintln!(
            "warning: whoever is on the way to {address} can read passwords: put a proxy with HTTPS before it, and say --behind-proxy"
        );
    }
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    buzzer::serve(listener, app, stop).await;
    client.close().await;
    Ok(())
}
