//! The signals that end a program in good order.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at SIGTERM or SIGINT.
///
/// # Errors
/// The system refuses to report signals.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()>, String> {
    let failed = |error: std::io::Error| format!("cannot wait for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
