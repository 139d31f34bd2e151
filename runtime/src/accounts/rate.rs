//! A limit of requests a second: a token bucket that holds the requests of one second, as one number
//! (the "generic cell rate algorithm").

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// The requests that an account may send.
#[derive(Debug)]
pub(super) struct Rate {
    requests_per_second: u32,
    /// Time in which one request comes back, in nanoseconds; 0 without a limit.
    interval: u64,
    /// When all requests will have come back, in nanoseconds since the node's start.
    full_at: AtomicU64,
}

impl Rate {
    /// At most so many requests a second; 0 for no limit.
    pub(super) fn per_second(requests: u32) -> Rate {
        let interval = SECOND.checked_div(requests.into()).unwrap_or(0);
        Rate { requests_per_second: requests, interval, full_at: AtomicU64::new(0) }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.interval == 0
    }

    pub(super) fn requests_per_second(&self) -> u32 {
        self.requests_per_second
    }

    /// Whether all requests have come back.
    pub(super) fn is_full(&self, now: Duration) -> bool {
        self.full_at.load(Ordering::Relaxed) <= nanoseconds(now)
    }

    /// Takes a request; the error is the time until there is one.
    pub(super) fn take(&self, now: Duration) -> Result<(), Duration> {
        let now = nanoseconds(now);
        let after = |full_at: u64| full_at.max(now) + self.interval;
        let taken = |full_at| Some(after(full_at)).filter(|&after| after <= now + SECOND);
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        taken.map(drop).map_err(|full_at| Duration::from_nanos(after(full_at) - now - SECOND))
    }
}

/// 584 years fit.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_seconds_requests_at_once_and_then_one_by_one() {
        let rate = Rate::per_second(4);
        let taken = |now| (0..100).take_while(|_| rate.take(now).is_ok()).count();
        assert!(rate.is_full(ms(5_000)));
        assert_eq!(taken(ms(5_000)), 4);
        assert_eq!((rate.take(ms(5_000)), rate.take(ms(5_100))), (Err(ms(250)), Err(ms(150))));
        assert!(!rate.is_full(ms(5_999)) && rate.is_full(ms(6_000)));
        assert_eq!(taken(ms(5_250)), 1);
        assert_eq!(taken(ms(5_850)), 2, "600 ms bring two requests back, and a part of a third");
        assert_eq!(rate.take(ms(5_850)), Err(ms(150)));
        assert_eq!(taken(ms(60_000)), 4, "no more than a second's are kept");
    }

    #[test]
    fn extreme_rates() {
        let slow = Rate::per_second(1);
        assert_eq!((slow.take(ms(1)), slow.take(ms(1))), (Ok(()), Err(ms(1_000))));
        assert!(Rate::per_second(u32::MAX).is_unlimited(), "more than the clock can tell apart");
        assert!(Rate::per_second(0).is_unlimited());
    }
}
