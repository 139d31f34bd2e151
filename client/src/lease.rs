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

/// How long a guard may trust its lock.
pub(crate) fn left(lease: &watch::Receiver<Lease>) -> Duration {
    let lease = lease.borrow();
    lease.remaining(Instant::now())
}

/// A renewal reaches a guard, unless it comes too late: what is lost stays lost.
///
/// The clock is read while nobody else can look at the lease, and who looks reads it while nobody can change the lease
/// ([`left`]). So either the guard has not seen the end yet, or this sees it too.
pub(crate) fn extend(lease: &watch::Sender<Lease>, trusted_until: Instant) {
    lease.send_if_modified(|lease| {
        let before = *lease;
        lease.lost |= Instant::now() >= lease.trusted_until;
        lease.trusted_until = lease.trusted_until.max(trusted_until);
        *lease != before
    });
}

/// Tells a guard that it is lost.
pub(crate) fn lose(lease: &watch::Sender<Lease>) {
    lease.send_modify(|lease| lease.lost = true);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    /// Goal: an answer that comes after the end changes nothing, however long it lay there unread.
    #[test]
    fn a_late_renewal_does_not_bring_a_guard_back() {
        let (lease, guard) = watch::channel(Lease { trusted_until: Instant::now() + SHORT, lost: false });
        std::thread::sleep(2 * SHORT);
        assert_eq!(left(&guard), Duration::ZERO);
        extend(&lease, Instant::now() + Duration::from_secs(60));
        assert_eq!(left(&guard), Duration::ZERO);
    }
}
