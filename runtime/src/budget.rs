//! Memory budgets that many connections share: for what unknown programs have sent to a port and the
//! node has not handled yet (at the port for nodes the unfinished frames of nodes that are no members,
//! at the port for clients the unfinished requests), and for large answers that clients have not read.
//!
//! Each connection has a limit of its own, but there may be thousands of connections. So those of a
//! port share a budget, of which those from one address may have a part. What one needs beyond that
//! is refused, what it held is free again at once, and deadlines end those that hold memory and do
//! nothing. A program that has proved its identity by a certificate is no unknown one: no number of
//! strangers ends one of its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::addresses::ClientAddress;
use crate::log_pause::LogPause;
use crate::per_address::{Entry, PerAddress, part};

/// Minimum time between two log lines about an exhausted budget.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// What a budget's memory is for, in words.
#[derive(Debug, PartialEq, Eq)]
pub struct Use {
    /// All of it.
    memory: &'static str,
    /// The part of one address.
    part: &'static str,
    /// What the node does when it is used up.
    then: &'static str,
    /// What the operator can do.
    advice: &'static str,
}

/// What unknown programs have sent to a port.
pub static SENT_BY_STRANGERS: Use = Use {
    memory: "the memory for what unknown programs have sent to this port",
    part: "the memory for what unknown programs at one address have sent to this port",
    then: "connections end",
    advice: "keep programs that do not belong to the cluster away from its ports",
};

/// Answers that clients have not read.
pub static UNREAD: Use = Use {
    memory: "the memory for large answers that clients have not read yet",
    part: "the memory for large answers that clients at one address have not read yet",
    then: "large answers are refused",
    advice: "clients should read one answer before they ask for the next one, or ask for smaller pages",
};

/// A number of bytes that many connections share.
#[derive(Debug)]
pub struct Budget {
    used_for: &'static Use,
    limit: usize,
    used: AtomicUsize,
    by_address: PerAddress<AtomicUsize>,
    log_pause: LogPause,
}

/// The budget has not as many bytes left as a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// All connections together have it.
    #[error("{} ({limit} bytes for all of them) is used up", .used_for.memory)]
    Budget {
        /// What the memory is for.
        used_for: &'static Use,
        /// Number of bytes.
        limit: usize,
    },
    /// Connections from the same address have their part of it.
    #[error("{} ({limit} bytes) is used up", .used_for.part)]
    Part {
        /// What the memory is for.
        used_for: &'static Use,
        /// Number of bytes.
        limit: usize,
    },
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(used_for: &'static Use, limit: usize) -> Arc<Budget> {
        let (used, by_address) = (AtomicUsize::new(0), PerAddress::default());
        Arc::new(Budget { used_for, limit, used, by_address, log_pause: LogPause::default() })
    }

    /// What a connection from this address holds: nothing yet.
    pub fn share(self: &Arc<Budget>, address: ClientAddress) -> Share {
        self.share_up_to(part(self.limit, address), address)
    }

    /// The same for a connection that may hold all of the budget, whatever its address.
    pub fn whole_share(self: &Arc<Budget>, address: ClientAddress) -> Share {
        self.share_up_to(self.limit, address)
    }

    fn share_up_to(self: &Arc<Budget>, part: usize, address: ClientAddress) -> Share {
        let of_address = self.by_address.enter(address, AtomicUsize::default);
        Share { budget: Arc::clone(self), of_address, part, held: AtomicUsize::new(0) }
    }

    fn report(&self, why: Exhausted, address: ClientAddress) {
        let kind = if matches!(why, Exhausted::Budget { .. }) { "all" } else { "one address" };
        if let Some(repeats) = self.log_pause.due(kind, REPORT_PAUSE, Instant::now()) {
            let Use { then, advice, .. } = self.used_for;
            warn!(%address, times = repeats + 1, "{then} because {why}: {advice}");
        }
    }
}

/// Takes so many bytes of a limit, if it has them. One step, so that two connections never get the
/// same bytes.
fn take(used: &AtomicUsize, bytes: usize, limit: usize) -> bool {
    let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// What one connection holds of a budget; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    of_address: Entry<AtomicUsize>,
    /// How much connections from this address may hold together.
    part: usize,
    held: AtomicUsize,
}

impl Share {
    /// Sets the number of bytes that the connection holds.
    ///
    /// # Errors
    /// If the budget has not as many left; the share stays as it was.
    pub fn hold(&self, bytes: usize) -> Result<(), Exhausted> {
        let held = self.held.load(Ordering::Relaxed);
        if let Some(more) = bytes.checked_sub(held) {
            return self.hold_more(more);
        }
        self.held.store(bytes, Ordering::Relaxed);
        self.give_back(held - bytes);
        Ok(())
    }

    /// Adds to the number of bytes that the connection holds.
    ///
    /// # Errors
    /// See [`Share::hold`].
    pub fn hold_more(&self, bytes: usize) -> Result<(), Exhausted> {
        let refused = if !take(&self.of_address, bytes, self.part) {
            Exhausted::Part { used_for: self.budget.used_for, limit: self.part }
        } else if !take(&self.budget.used, bytes, self.budget.limit) {
            self.of_address.fetch_sub(bytes, Ordering::Relaxed);
            Exhausted::Budget { used_for: self.budget.used_for, limit: self.budget.limit }
        } else {
            self.held.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        };
        self.budget.report(refused, self.of_address.address());
        Err(refused)
    }

    /// Gives everything back.
    pub fn release(&self) {
        let held = self.held.swap(0, Ordering::Relaxed);
        if held > 0 {
            self.give_back(held);
        }
    }

    fn give_back(&self, bytes: usize) {
        self.of_address.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
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

    fn address(text: &str) -> ClientAddress {
        ClientAddress::of(text.parse().unwrap())
    }

    #[test]
    fn shares_never_exceed_the_budget() {
        let budget = Budget::new(&UNREAD, 100);
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|it| budget.whole_share(address(it)));
        let full = Err(Exhausted::Budget { used_for: &UNREAD, limit: 100 });
        assert_eq!((one.hold(60), two.hold(40)), (Ok(()), Ok(())));
        assert_eq!((one.hold(61), two.hold_more(1)), (full, full));
        assert_eq!((one.hold(50), two.hold_more(10), one.hold(51)), (Ok(()), Ok(()), full));
        drop(one);
        assert_eq!(two.hold(100), Ok(()));
        assert!(two.hold_more(usize::MAX).is_err());
        two.release();
        assert_eq!(budget.whole_share(address("10.0.0.3")).hold(100), Ok(()), "what was dropped and released is free");
    }

    /// Goal: the connections from one address, or from one IPv6 network, leave seven eighths to all
    /// others.
    #[test]
    fn an_address_holds_an_eighth_at_most() {
        let budget = Budget::new(&UNREAD, 80);
        for (one, other) in [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::2")] {
            let [one, other] = [one, other].map(|it| budget.share(address(it)));
            assert_eq!((one.hold(6), other.hold(4)), (Ok(()), Ok(())));
            assert_eq!(other.hold(5), Err(Exhausted::Part { used_for: &UNREAD, limit: 10 }));
            assert_eq!((one.hold(5), other.hold(5)), (Ok(()), Ok(())));
        }
        let shares: Vec<Share> = (0..8).map(|host| budget.share(address(&format!("10.0.1.{host}")))).collect();
        assert!(shares.iter().all(|share| share.hold(10) == Ok(())), "what ended is free");
        let late = budget.share(address("10.0.2.1"));
        let full = Err(Exhausted::Budget { used_for: &UNREAD, limit: 80 });
        assert_eq!((late.hold(1), late.hold(1)), (full, full));
        drop(shares);
        assert_eq!(late.hold(10), Ok(()), "a refusal takes nothing from the address's part");
    }
}
