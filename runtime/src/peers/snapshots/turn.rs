//! One snapshot is received at a time. A node that is no member gives way to a member: it could
//! otherwise keep the turn for as long as it sends anything.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

/// How long a member's offer waits for the end of another transfer.
const WAIT: Duration = Duration::from_secs(2);

/// Who receives.
#[derive(Debug)]
pub(in crate::peers) struct Turns {
    one: Semaphore,
    /// The number of members whose offers wait.
    waiting: watch::Sender<usize>,
}

/// The turn of a peer to send its snapshot.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
    /// For a node that is no member.
    waiting: Option<watch::Receiver<usize>>,
}

impl Turns {
    pub(in crate::peers) fn new() -> Turns {
        Turns { one: Semaphore::new(1), waiting: watch::Sender::new(0) }
    }

    /// The turn of a peer, if no other peer has it.
    pub(super) async fn begin(&self, is_member: bool) -> Option<Turn<'_>> {
        let permit = match self.one.try_acquire() {
            Ok(permit) => permit,
            Err(_) if is_member => {
                self.waiting.send_modify(|waiting| *waiting += 1);
                let permit = timeout(WAIT, self.one.acquire()).await;
                self.waiting.send_modify(|waiting| *waiting -= 1);
                permit.ok()?.ok()?
            }
            Err(_) => return None,
        };
        Some(Turn { _permit: permit, waiting: (!is_member).then(|| self.waiting.subscribe()) })
    }
}

impl Turn<'_> {
    /// Resolves when the peer must give way.
    pub(super) async fn is_over(&mut self) {
        if let Some(waiting) = &mut self.waiting
            && waiting.wait_for(|&waiting| waiting > 0).await.is_ok()
        {
            return;
        }
        pending().await
    }
}
