//! `bezant zookeeper`: a server for ZooKeeper's clients, started from a `zoo.cfg`, by itself or one of several.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;

use clap::Args;
use config::{LogFormat, LogLevel};
use crypto::SecretKey;
use zookeeper::{Config, Running, StartError};

use crate::failure::{Attempt as _, Done, Failure};
use crate::{Cores, confine, logs, out};

/// Serves ZooKeeper's clients from a zoo.cfg until it is asked to stop (SIGTERM or Ctrl-C): by itself, or as one of the servers that its
/// server.N lines name.
#[derive(Args, Debug)]
pub struct ZookeeperArgs {
    /// The file, as ZooKeeper has it
    #[arg(long, value_name = "zoo.cfg", required_unless_present = "make_key")]
    config: Option<PathBuf>,
    /// Makes a private key for a server among several in this new file, prints its public key, and serves nobody
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    make_key: Option<PathBuf>,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    log_level: LogLevel,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl ZookeeperArgs {
    /// The threads that the server is to have.
    pub fn cores(&self) -> Cores {
        // What is wrong with the file is said when it is served. A pipe is read once.
        let file = self.config.as_ref().filter(|file| file.is_file());
        let config = file.and_then(|file| Config::parse(&fs::read_to_string(file).ok()?).ok());
        config.map_or(Cores::Replicas, |config| Cores::of_one_among(config.servers_on_this_host()))
    }
}

/// Carries out `bezant zookeeper`.
pub async fn run(args: &ZookeeperArgs) -> Result<Done, Failure> {
    let Some(file) = &args.config else { return make_key(args.make_key.as_deref()) };
    let place = file.display();
    let text = fs::read_to_string(file).map_err(|error| Failure::wrong(format!("cannot read it: {error}")).at(&place))?;
    let config = Config::parse(&text).map_err(|error| Failure::wrong(error.to_string()).at(&place))?;
    logs::start(&args.log_level, args.log_format)?;
    confine::prepare_for_replicas()?;
    let config = config.with_connections_within(confine::connections_of_clients_max(1));
    for warning in &config.warnings {
        tracing::warn!(file = %place, "{warning}");
    }
    let data = config.data.clone();
    let profile = config.profile.name();
    // Listened for from the start: coming back from a long log can be interrupted too.
    let stop = runtime::shutdown::signal();
    let mut stop = pin!(stop);
    let mut running = tokio::select! {
        running = Running::start(config) => running.map_err(|error| failure(&error).at(data.display()))?,
        _ = &mut stop => return Ok(Done::Well),
    };
    tracing::info!(address = %running.address(), digest = profile, "serving");
    tokio::select! {
        cause = &mut stop => {
            let cause = cause.attempt("listen for signals", &place)?;
            tracing::info!("stopping, asked to by {cause}");
            running.stop().await.map_err(|error| failure(&error).at(data.display()))?;
            tracing::info!("stopped");
            Ok(Done::Well)
        }
        error = running.failed() => Err(failure(&error).at(data.display())),
    }
}

/// Makes the key of a server among several.
fn make_key(file: Option<&Path>) -> Result<Done, Failure> {
    let Some(file) = file else { return Err(Failure::wrong("name a zoo.cfg with --config")) };
    let secret = SecretKey::generate();
    runtime::tls::write_private_key(file, &secret).map_err(|error| Failure::wrong(error.to_string()))?;
    out!("{}", hex::encode(secret.public()));
    Ok(Done::Well)
}

fn failure(error: &StartError) -> Failure {
    match error {
        StartError::ListenForPeers { .. } | StartError::Peers(_) | StartError::MyId { .. } | StartError::OtherVoters { .. } => {
            Failure::wrong(error.to_string())
        }
        StartError::Listen { .. } => Failure::wrong(error.to_string()).help("stop what listens there, or take another clientPort"),
        _ => Failure::failed(error.to_string()),
    }
}
