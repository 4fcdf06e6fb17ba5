//! When to stop.

/// Waits until the process is asked to stop, by SIGTERM or from the keyboard. Says which.
///
/// # Errors
/// When the system does not let the process listen for signals.
pub async fn signal() -> std::io::Result<&'static str> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => Ok("SIGTERM"),
            _ = interrupt.recv() => Ok("an interrupt"),
        }
    }
    #[cfg(not(unix))]
    {
        tokio::signal::ctrl_c().await?;
        Ok("an interrupt")
    }
}
