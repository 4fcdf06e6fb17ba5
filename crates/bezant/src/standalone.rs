//! `bezant zookeeper`: a server for ZooKeeper's clients, started from a `zoo.cfg`.

use std::fs;
use std::path::PathBuf;
use std::pin::pin;

use clap::Args;
use config::{LogFormat, LogLevel};
use zookeeper::{Config, Running, StartError};

use crate::failure::{Attempt as _, Done, Failure};
use crate::{confine, logs};

/// Serves ZooKeeper's clients from a zoo.cfg until it is asked to stop (SIGTERM or Ctrl-C): one server by itself, so far.
#[derive(Args, Debug)]
pub struct ZookeeperArgs {
    /// The file, as ZooKeeper has it
    #[arg(long, value_name = "zoo.cfg")]
    config: PathBuf,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    log_level: LogLevel,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Carries out `bezant zookeeper`.
pub async fn run(args: &ZookeeperArgs) -> Result<Done, Failure> {
    let place = args.config.display();
    let text = fs::read_to_string(&args.config).map_err(|error| Failure::wrong(format!("cannot read it: {error}")).at(&place))?;
    let config = Config::parse(&text).map_err(|error| Failure::wrong(error.to_string()).at(&place))?;
    logs::start(&args.log_level, args.log_format)?;
    confine::prepare_for_replicas()?;
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

fn failure(error: &StartError) -> Failure {
    match error {
        StartError::Listen { .. } => Failure::wrong(error.to_string()).help("stop what listens there, or take another clientPort"),
        _ => Failure::failed(error.to_string()),
    }
}
