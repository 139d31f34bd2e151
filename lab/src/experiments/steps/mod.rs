//! Clients of a lock as processes that do one step at a time: the experiment decides what happens between two steps. Only a
//! process can be stopped by SIGSTOP.

mod client;
mod process;

pub use client::StepClient;
pub(super) use client::{HELD, Order, Report, Stage, connect, now_us};
pub(super) use process::Process;

use std::time::Duration;

/// Asks again and again whether a server has no holder, until that is so.
///
/// # Errors
/// The server does not answer, or still has one after `limit`.
pub(super) async fn await_free(
    server: &str,
    limit: Duration,
    mut free: impl AsyncFnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let asked = async {
        while !free().await? {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    };
    let late = |_| format!("{server} still has a holder after {limit:?}");
    tokio::time::timeout(limit, asked).await.map_err(late)?
}
