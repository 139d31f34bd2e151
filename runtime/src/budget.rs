//! One memory budget for what unknown programs have sent and the node has not handled yet: the
//! unfinished frames of nodes that are no members, and the unfinished requests of clients.
//!
//! Each connection has a limit of its own, but there may be thousands of connections. So they share
//! a budget, and a connection that needs more than is left ends. What it held is free again at once,
//! and deadlines end those that hold memory and send nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::log_pause::LogPause;

/// Minimum time between two log lines about an exhausted budget.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// A number of bytes that many connections share.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    log_pause: LogPause,
}

/// The budget has not as many bytes left as a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory for unfinished frames and requests of unknown programs ({limit} bytes for all of them) is used up")]
pub struct Exhausted {
    limit: usize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0), log_pause: LogPause::default() })
    }

    /// A part of the budget, with nothing in it yet.
    pub fn share(self: &Arc<Budget>) -> Share {
        Share { budget: Arc::clone(self), held: 0 }
    }

    fn report(&self) {
        if let Some(repeats) = self.log_pause.due("exhausted", REPORT_PAUSE, Instant::now()) {
            let (limit, ended) = (self.limit, repeats + 1);
            warn!(
                limit,
                ended,
                "connections end because the memory for unfinished frames and requests is used up: keep programs that do not \
                 belong to the cluster away from its ports"
            );
        }
    }
}

/// What one connection holds of a budget; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    held: usize,
}

impl Share {
    /// Sets the number of bytes that the connection holds.
    ///
    /// # Errors
    /// If the budget has not as many left; the share stays as it was.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let Budget { limit, used, .. } = &*self.budget;
        let Some(more) = bytes.checked_sub(self.held) else {
            used.fetch_sub(self.held - bytes, Ordering::Relaxed);
            self.held = bytes;
            return Ok(());
        };
        // One step, so that two connections never get the same bytes.
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|used| used <= limit)
        });
        if taken.is_err() {
            self.budget.report();
            return Err(Exhausted { limit: *limit });
        }
        self.held = bytes;
        Ok(())
    }

    /// Sets the number of bytes that the connection holds to so many more.
    ///
    /// # Errors
    /// See [`Share::hold`].
    pub fn hold_more(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.hold(self.held.saturating_add(bytes))
    }

    /// Gives everything back.
    pub fn release(&mut self) {
        self.budget.used.fetch_sub(std::mem::take(&mut self.held), Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert_eq!((one.hold(60), two.hold(40)), (Ok(()), Ok(())));
        assert_eq!((one.hold(61), two.hold_more(1)), (Err(Exhausted { limit: 100 }), Err(Exhausted { limit: 100 })));
        assert_eq!((one.hold(50), two.hold_more(10), one.hold(51)), (Ok(()), Ok(()), Err(Exhausted { limit: 100 })));
        drop(one);
        assert_eq!(two.hold(100), Ok(()));
        assert_eq!(two.hold_more(usize::MAX), Err(Exhausted { limit: 100 }));
        two.release();
        assert_eq!(budget.share().hold(100), Ok(()), "what was dropped and released is free");
    }
}
