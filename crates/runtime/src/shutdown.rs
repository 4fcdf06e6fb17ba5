//! When to stop.

use tokio::signal::unix::{SignalKind, signal as listen};

/// Waits until the process is asked to stop, by SIGTERM or from the keyboard. Says which. From this call on no signal is lost, also
/// while nobody waits yet. Needs a tokio runtime around it.
///
/// # Errors
/// When the system does not let the process listen for signals.
pub fn signal() -> impl Future<Output = std::io::Result<&'static str>> {
    let listeners = listen(SignalKind::terminate()).and_then(|terminate| Ok((terminate, listen(SignalKind::interrupt())?)));
    async move {
        let (mut terminate, mut interrupt) = listeners?;
        tokio::select! {
            _ = terminate.recv() => Ok("SIGTERM"),
            _ = interrupt.recv() => Ok("an interrupt"),
        }
    }
}
