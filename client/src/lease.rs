//! How long a guard may trust its lock: the client's own, conservative view (docs: "Time is replicated data").
//!
//! The server puts a session's deadline at a full time-to-live when it *applies* an open, a grant or a keep-alive, which
//! is never before the request was *sent*. So the session lives at least until the moment of sending plus its
//! time-to-live, on any clock that runs at the right rate. Three rules follow, and everything here keeps to them:
//!
//! 1. A moment of sending is taken before the bytes leave, never after.
//! 2. An answer to one attempt extends the lease from that attempt's sending. A grant extends it from the *first*
//!    sending of the acquire with that number, for any of the attempts may be the one that was applied.
//! 3. What extends is the maximum; nothing shortens a lease but the word of the server that the session is gone.
//!
//! A guard gives up a **margin** before the end, so that its user has time to stop: a tenth of the time-to-live, at least
//! 20 ms, at most 1 s. A guard that has once been lost stays lost, whatever a late answer says: somebody may have
//! acted upon it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long before the end of its lease a guard counts as lost.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

/// What the background task tells a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// When the guard counts as lost unless it is renewed: the end of the lease less the margin.
    pub(crate) trusted_until: Instant,
    /// Lost for good.
    pub(crate) lost: bool,
}

impl Lease {
    pub(crate) fn remaining(self, now: Instant) -> Duration {
        if self.lost { Duration::ZERO } else { self.trusted_until.saturating_duration_since(now) }
    }
}

/// A renewal reaches a guard, unless it comes too late: what is lost stays lost.
pub(crate) fn extend(lease: &watch::Sender<Lease>, trusted_until: Instant, now: Instant) {
    lease.send_if_modified(|lease| {
        let before = *lease;
        lease.lost |= now >= lease.trusted_until;
        lease.trusted_until = lease.trusted_until.max(trusted_until);
        *lease != before
    });
}

/// Tells a guard that it is lost.
pub(crate) fn lose(lease: &watch::Sender<Lease>) {
    lease.send_modify(|lease| lease.lost = true);
}
