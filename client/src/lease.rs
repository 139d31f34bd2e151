//! The time for which a guard may trust its lock: the client's own, conservative view (docs/protocol.md, "Cluster
//! time").
//!
//! The server puts a session's deadline at a full time-to-live when it *applies* an open, a grant or a keep-alive, which
//! is never before the request was *sent*. So the session lives at least until the moment of sending plus its
//! time-to-live, on any clock that runs at the right rate. Three rules follow, and everything here keeps to them:
//!
//! 1. A moment of sending is taken before the bytes leave, never after.
//! 2. An answer to one attempt extends the lease from that attempt's sending. A grant extends it from the *first*
//!    sending of the acquire with that number, for any of the attempts may be the one that was applied.
//! 3. What extends is the maximum; only the server's answer that the session is gone shortens a lease.
//!
//! Moments are of a clock that goes on while the machine sleeps ([`crate::clock`]). A guard gives up a [`margin`] before
//! the end. A guard that is lost stays lost, whatever a late answer says: its holder may have acted upon that.

use std::future::{Future, pending};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{BootInstant, Clock, sleep_until_by};
use crate::wire::SessionId;

/// How long before the nominal end of its lease (the moment of sending plus the time-to-live) a guard counts as lost:
///
/// > margin = `ttl` / 10, at least 20 ms and at most 1 s, + `ttl` / 50
///
/// The first part is the **reaction time**: what the guard's user has to stop. The second, 2% of the time-to-live, is the
/// **allowance for clock rates**, and is not capped. It covers a leader's clock that runs 1% fast together with a
/// client's that runs 1% slow: a time-to-live on the first is 0.99 / 1.01 of one on the second, which is 1.98% less.
///
/// | `ttl` | reaction time | allowance | margin |
/// |---|---|---|---|
/// | 100 ms | 20 ms | 2 ms | 22 ms |
/// | 1 s | 100 ms | 20 ms | 120 ms |
/// | 30 s | 1 s | 600 ms | 1.6 s |
/// | 24 h | 1 s | 28 min 48 s | 28 min 49 s |
///
/// A program that counts a lease without a [`Guard`](crate::Guard) should use the same margin.
#[must_use]
pub fn margin(ttl: Duration) -> Duration {
    let reaction_time = (ttl / 10).clamp(Duration::from_millis(20), Duration::from_secs(1));
    reaction_time + ttl / 50
}

/// A session as its client counts it, used by one claim at a time.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl: Duration,
    /// The number of the last operation that was begun.
    pub(crate) number: u64,
    /// The session certainly lives until then.
    pub(crate) good_until: BootInstant,
}

impl Session {
    /// An attempt that renewed the session was sent at `sent`.
    pub(crate) fn renewed(&mut self, sent: BootInstant) {
        self.good_until = self.good_until.max(sent + self.ttl);
    }

    /// When a guard of the session counts as lost, unless the session is renewed.
    pub(crate) fn trusted_until(&self) -> BootInstant {
        self.good_until.saturating_sub(margin(self.ttl))
    }
}

/// What the background task tells a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    /// When the guard counts as lost unless it is renewed: the end of the lease less the margin.
    trusted_until: BootInstant,
    /// Lost for good.
    lost: bool,
    /// Given back before it was lost.
    released: bool,
}

/// The background task's end of a guard's lease.
pub(crate) struct LeaseWriter {
    lease: watch::Sender<Lease>,
    clock: Clock,
}

/// The guard's end.
#[derive(Clone)]
pub(crate) struct LeaseReader {
    lease: watch::Receiver<Lease>,
    clock: Clock,
}

/// A lease that is trusted until then, unless it is extended.
pub(crate) fn lease(clock: Clock, trusted_until: BootInstant) -> (LeaseWriter, LeaseReader) {
    let (sender, receiver) = watch::channel(Lease { trusted_until, lost: false, released: false });
    (LeaseWriter { lease: sender, clock }, LeaseReader { lease: receiver, clock })
}

impl LeaseWriter {
    /// Extends a guard's lease, unless the renewal comes too late: a lost guard stays lost.
    ///
    /// This reads the clock while no reader can see the lease, and readers read the clock while the lease cannot change
    /// ([`LeaseReader::remaining`]). So either the guard has not seen the end yet, or this sees it too.
    pub(crate) fn extend(&self, trusted_until: BootInstant) {
        self.lease.send_if_modified(|lease| {
            let before = *lease;
            lease.lost |= (self.clock)() >= lease.trusted_until;
            lease.trusted_until = lease.trusted_until.max(trusted_until);
            *lease != before
        });
    }

    /// Tells a guard that it is lost.
    pub(crate) fn lose(&self) {
        self.lease.send_modify(|lease| lease.lost = true);
    }

    /// The guard gives its lock back: it is never told that it is lost, unless it was before.
    pub(crate) fn release(&self) {
        self.lease.send_modify(|lease| lease.released = !lease.lost && (self.clock)() < lease.trusted_until);
    }

    /// Whether the guard was told so, or saw that a renewal came too late.
    pub(crate) fn is_lost(&self) -> bool {
        self.lease.borrow().lost
    }
}

impl LeaseReader {
    /// How long a guard may trust its lock.
    pub(crate) fn remaining(&self) -> Duration {
        let lease = self.lease.borrow();
        if lease.lost { Duration::ZERO } else { lease.trusted_until.saturating_duration_since((self.clock)()) }
    }

    /// Until when; `None` once it is lost.
    pub(crate) fn trusted_until(&self) -> Option<BootInstant> {
        let lease = self.lease.borrow();
        Some(lease.trusted_until).filter(|&until| !lease.lost && (self.clock)() < until)
    }

    /// Resolves when the lease is lost; never, if it is released before.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut reader = self.clone();
        async move {
            loop {
                let trusted_until = reader.renewed();
                if reader.lease.borrow().released {
                    return pending().await;
                }
                let Some(trusted_until) = trusted_until else { return };
                let ended = sleep_until_by(reader.clock, trusted_until);
                tokio::select! {
                    () = ended => {}
                    changed = reader.lease.changed() => if changed.is_err() && !reader.lease.borrow().released {
                        // The background task is gone: nothing extends the lease any more.
                        sleep_until_by(reader.clock, trusted_until).await;
                    }
                }
            }
        }
    }

    /// [`LeaseReader::trusted_until`], and [`watch::Receiver::changed`] waits for what comes after that.
    fn renewed(&mut self) -> Option<BootInstant> {
        self.lease.mark_unchanged();
        self.trusted_until()
    }
}

#[cfg(test)]
mod tests;
