//! Logs: on standard error, as text or JSON, at a level.

use config::{LogFormat, LogLevel};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Failure;
use crate::tell;

/// Starts logging. Panics are logged too, since a release build ends right after one.
pub fn start(level: &LogLevel, format: LogFormat) -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(level.targets().clone());
    let started = match format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(%panic, %backtrace, "an invariant is broken, and the process ends: this is a bug in Bezant");
        // Logging may itself be what broke, or off.
        tell!("{panic}");
    }));
    Ok(())
}
