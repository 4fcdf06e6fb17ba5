//! Logs: on standard error, as text or JSON, at a level.

use std::str::FromStr;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Failure;

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// As it is written in `node.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// What is logged: a level, or levels by module, as in `info` or `warn,runtime=debug`.
#[derive(Clone, Debug)]
pub struct LogLevel {
    text: String,
    targets: Targets,
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Targets>() {
            Ok(targets) if !text.is_empty() => Ok(Self { text: text.to_owned(), targets }),
            _ => Err(format!(
                "a log level is error, warn, info, debug, trace or off, alone or by module as in warn,runtime=debug; not {text:?}"
            )),
        }
    }
}

/// Starts logging. Panics are logged too, since a release build ends right after one.
pub fn start(level: &LogLevel, format: LogFormat) -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(level.targets.clone());
    let started = match format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(%panic, %backtrace, "an invariant is broken, and the process ends: this is a bug in Bezant");
        // Logging may itself be what broke, or off.
        eprintln!("{panic}");
    }));
    Ok(())
}
