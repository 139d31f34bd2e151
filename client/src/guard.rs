//! A held lock, as its holder sees it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::Error;
use crate::engine::Command;
use crate::lease::{self, Lease};
use crate::wire::SessionId;

/// A held lock. Its session is kept alive in the background until the guard is released, dropped or lost.
///
/// Dropping it releases the lock in the background, without blocking; [`Guard::release`] also tells what came of it.
#[must_use = "the lock is held as long as its guard lives: a guard that is dropped releases it at once"]
pub struct Guard {
    pub(crate) claim: u64,
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) session: SessionId,
    pub(crate) lease: watch::Receiver<Lease>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) released: bool,
}

impl Guard {
    /// The lock's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The fencing token: greater than that of every earlier grant in the cluster. Hand it to the resource that the
    /// lock protects; the resource refuses a token lower than the highest it has seen.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The session that holds the lock. Only this guard uses it.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the lock is certainly still held: the clock is compared now, so the answer is right even after the
    /// process was stopped and all timers are late.
    ///
    /// Not after the *machine* was asleep: the clock that programs are given (`CLOCK_MONOTONIC`) stands still meanwhile,
    /// and the lease does not. The token protects from that, see [`Guard::token`].
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lock is certainly still held if nobody can be reached from now on; zero once it is lost. What is left
    /// of the lease after that is the safety margin: a tenth of the time-to-live, at least 20 ms, at most 1 s.
    ///
    /// A sleep of the machine is not counted, see [`Guard::is_valid`].
    pub fn remaining(&self) -> Duration {
        lease::left(&self.lease)
    }

    /// Resolves when the lock can no longer be trusted: a safety margin (see [`Guard::remaining`]) before the lease
    /// could end, or as soon as the server says that the session is gone. Meant for `tokio::select!` beside the work.
    ///
    /// The future borrows nothing. After [`Guard::release`] it resolves when the lease would have ended.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut lease = self.lease.clone();
        async move {
            loop {
                let trusted_until = {
                    let lease = lease.borrow_and_update();
                    if lease.remaining(Instant::now()).is_zero() {
                        return;
                    }
                    lease.trusted_until
                };
                tokio::select! {
                    () = sleep_until(trusted_until) => {}
                    changed = lease.changed() => if changed.is_err() {
                        // The background task is gone: nobody extends the lease any more.
                        sleep_until(trusted_until).await;
                    }
                }
            }
        }
    }

    /// Gives the lock back, exactly once, and tells whether it was still held.
    ///
    /// Dropping the future half-way releases all the same, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the session had ended or no longer held the lock: what was done under it may have been done
    /// beside another holder. [`Error::Unreachable`] if nobody answered in time; the release goes on in the background
    /// until the session must have expired. [`Error::Refused`] and [`Error::Closed`] as everywhere.
    pub async fn release(mut self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.released = true;
        self.commands.send(Command::Release { claim: self.claim, reply: Some(reply) }).map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            // If the background task is gone, the session expires.
            let _ = self.commands.send(Command::Release { claim: self.claim, reply: None });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guard { key, token, session, .. } = self;
        f.debug_struct("Guard")
            .field("key", key)
            .field("token", token)
            .field("session", session)
            .field("remaining", &self.remaining())
            .finish()
    }
}
