//! Bounds the number of an account's requests that are unanswered at once.
//!
//! A flood of requests does not slow the node's parts down one by one: it fills the queue before the
//! core and the log before the followers, and everything that comes later waits behind it. So the
//! bound is before both. An account that has as many unanswered requests as it may have waits in a line
//! of its own, in which each of its connections has at most one request, because nothing more is read
//! from that connection.
//!
//! **An account may have as many as all others have together**, on average over a second: then these wait
//! for no more requests of others than they make each other wait for. This is between a part of its share
//! ([`PART`]), which keeps the core busy, and the share. Others that ask only now and then ([`RARELY`]) take
//! nothing from it. An account that is alone may have a surplus.
//!
//! No rate is to be configured, and none is lost: a waiting request proceeds as soon as an earlier one is
//! answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;

use crate::sync::Mutex;

/// How long an account counts as active after a request. Long against the pauses of a client that
/// sends its next request when the last one is answered.
const ACTIVE_FOR: Duration = Duration::from_secs(1);

const MICROSECONDS: u64 = 1_000_000;

/// An account may always have one of so many parts of its share.
const PART: usize = 8;
/// Others ask rarely if they have an unanswered request for less than this time in a second, in microseconds.
const RARELY: u64 = MICROSECONDS / 10;

/// Which accounts have sent requests lately.
#[derive(Debug, Default)]
struct Lately {
    /// The latest account.
    latest: AtomicU64,
    /// When the latest one was another than the one before, in microseconds since the start; 0 if none was.
    changed: AtomicU64,
}

impl Lately {
    fn came(&self, account: u64, now: u64) {
        // The usual case is a look at a number that no thread writes.
        if self.latest.load(Ordering::Relaxed) != account && self.latest.swap(account, Ordering::Relaxed) != 0 {
            self.changed.store(now.max(1), Ordering::Relaxed);
        }
    }

    /// Whether all were of one account for so many microseconds.
    fn has_one(&self, now: u64, microseconds: u64) -> bool {
        let changed = self.changed.load(Ordering::Relaxed);
        changed == 0 || now.saturating_sub(changed) >= microseconds
    }
}

/// For how long requests were unanswered, in microseconds and all together, that were answered in a second: its
/// millionth part is how many there were at once, on average.
#[derive(Debug, Default)]
struct Unanswered {
    /// The second of `this`.
    second: AtomicU64,
    this: AtomicU64,
    last: AtomicU64,
}

impl Unanswered {
    fn add(&self, time: u64, now: u64) {
        let second = now / MICROSECONDS;
        let counted = self.second.load(Ordering::Relaxed);
        // The first of a second makes room for the others.
        if counted < second
            && self.second.compare_exchange(counted, second, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let before = self.this.swap(0, Ordering::Relaxed);
            self.last.store(if counted + 1 == second { before } else { 0 }, Ordering::Relaxed);
        }
        self.this.fetch_add(time, Ordering::Relaxed);
    }

    /// The times of this second and of the one before.
    fn times(&self, now: u64) -> [u64; 2] {
        let this = self.this.load(Ordering::Relaxed);
        match (now / MICROSECONDS).saturating_sub(self.second.load(Ordering::Relaxed)) {
            0 => [this, self.last.load(Ordering::Relaxed)],
            1 => [0, this],
            _ => [0, 0],
        }
    }
}

/// What all accounts of a node share.
#[derive(Debug)]
pub(super) struct Turns {
    /// What an account may have beyond its share while it is alone.
    surplus: usize,
    active: Lately,
    /// The requests of all accounts, while several are active.
    unanswered: Unanswered,
    start: Instant,
    /// How long an account counts as active after a request.
    active_for: Duration,
    delayed: Counter,
}

impl Turns {
    /// Turns with a surplus of so many requests for the account that is alone.
    pub(super) fn new(surplus: usize, start: Instant, delayed: &Counter) -> Turns {
        let (active, unanswered, delayed) = (Lately::default(), Unanswered::default(), delayed.clone());
        Turns { surplus, active, unanswered, start, active_for: ACTIVE_FOR, delayed }
    }

    /// Whether one account has sent all requests lately.
    fn has_one_account(&self, now: u64) -> bool {
        self.active.has_one(now, microseconds(self.active_for))
    }

    /// Microseconds since the start.
    fn now(&self) -> u64 {
        microseconds(self.start.elapsed())
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The unanswered requests of one account, if they are limited.
#[derive(Debug)]
pub(super) struct Share(Option<Arc<Own>>);

#[derive(Debug)]
struct Own {
    /// The account's number, from 1.
    account: u64,
    share: usize,
    semaphore: Semaphore,
    /// Number of permits that there are, those of unanswered requests included.
    permits: Mutex<usize>,
    /// The account's own part of [`Turns::unanswered`].
    unanswered: Unanswered,
    turns: Arc<Turns>,
}

impl Share {
    /// The share of the account with this number: so many requests, or 0 for no limit.
    pub(super) fn new(account: u64, requests: usize, turns: &Arc<Turns>) -> Share {
        if requests == 0 {
            return Share(None);
        }
        let share = requests.min(Semaphore::MAX_PERMITS - turns.surplus);
        let (semaphore, permits) = (Semaphore::new(share), Mutex::new(share));
        let (unanswered, turns) = (Unanswered::default(), Arc::clone(turns));
        Share(Some(Arc::new(Own { account, share, semaphore, permits, unanswered, turns })))
    }

    /// Waits until the account may have one more unanswered request. `None` without a limit.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let own = self.0.as_ref()?;
        let came = own.came();
        let permit = match own.semaphore.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                own.turns.delayed.inc();
                // No semaphore is ever closed.
                own.semaphore.acquire().await.ok()?
            }
        };
        // The turn gives it back.
        permit.forget();
        Some(Turn { own: Arc::clone(own), came })
    }
}

impl Own {
    /// A request has come: makes as many permits as the account may have. Returns the time.
    fn came(&self) -> u64 {
        let now = self.turns.now();
        self.turns.active.came(self.account, now);
        let (limit, mut permits) = (self.limit(now), self.permits.lock());
        if *permits < limit {
            self.semaphore.add_permits(limit - *permits);
            *permits = limit;
        } else if *permits > limit {
            // The others leave with the requests that have them.
            *permits -= self.semaphore.forget_permits(*permits - limit);
        }
        now
    }

    /// How many unanswered requests the account may have now.
    fn limit(&self, now: u64) -> usize {
        if self.turns.has_one_account(now) {
            return self.share + self.turns.surplus;
        }
        let (all, own) = (self.turns.unanswered.times(now), self.unanswered.times(now));
        let of_others = all.iter().zip(own).map(|(all, own)| all.saturating_sub(own)).max().unwrap_or(0);
        if of_others < RARELY {
            return self.share;
        }
        let requests = usize::try_from(of_others.div_ceil(MICROSECONDS)).unwrap_or(usize::MAX);
        requests.clamp((self.share / PART).max(1), self.share)
    }
}

/// One unanswered request of an account. Dropped when the request is answered, or waits in a lock's queue.
#[derive(Debug)]
pub struct Turn {
    own: Arc<Own>,
    /// When the request came.
    came: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (own, now) = (&self.own, self.own.turns.now());
        // What an account has while it is alone bounds no other one.
        if !own.turns.has_one_account(now) {
            let time = now.saturating_sub(self.came);
            own.unanswered.add(time, now);
            own.turns.unanswered.add(time, now);
        }
        let (limit, mut permits) = (own.limit(now), own.permits.lock());
        if *permits > limit {
            *permits -= 1;
        } else {
            own.semaphore.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn shares(requests: usize, surplus: usize, active_for: Duration) -> ([Share; 2], Counter) {
        let delayed = Counter::default();
        let turns = Arc::new(Turns { active_for, ..Turns::new(surplus, Instant::now(), &delayed) });
        ([1, 2].map(|number| Share::new(number, requests, &turns)), delayed)
    }

    /// No account becomes idle during a test.
    const LONG: Duration = Duration::from_secs(3_600);

    /// The turns that the account gets at once.
    fn at_once(share: &Share) -> Vec<Turn> {
        std::iter::from_fn(|| share.turn().now_or_never().flatten()).take(1_000).collect()
    }

    /// Goal: an account that is alone fills the node, and still leaves another one its whole share; from
    /// then on it gets no more than a share itself.
    #[test]
    fn flood_leaves_others_their_share() {
        let ([flood, polite], delayed) = shares(4, 10, LONG);
        let unanswered = at_once(&flood);
        assert_eq!((unanswered.len(), delayed.get()), (14, 1));
        assert_eq!(at_once(&polite).len(), 4);
        drop(unanswered);
        assert_eq!(at_once(&flood).len(), 4, "the other account is active");
        assert_eq!(at_once(&polite).len(), 4);
    }

    /// Goal: the request that waits proceeds when one is answered, in the order of arrival.
    #[tokio::test]
    async fn waiting_requests_proceed_in_order() {
        let ([flood, polite], _) = shares(2, 10, LONG);
        drop(at_once(&polite));
        let mut unanswered = at_once(&flood);
        assert_eq!(unanswered.len(), 2);
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(flood.turn())).collect();
        for turn in &mut waiting {
            assert!(turn.as_mut().now_or_never().is_none());
        }
        drop(unanswered.pop());
        let mut waiting = waiting.into_iter();
        let first = waiting.next().unwrap().await;
        assert!(first.is_some());
        assert!(waiting.next().unwrap().now_or_never().is_none(), "one was answered, and one has proceeded");
        drop(first);
        assert!(waiting.next().unwrap().await.is_some());
    }

    /// Goal: an account that has waited alone does not use the surplus once another one is active.
    #[tokio::test]
    async fn surplus_ends_when_another_account_is_active() {
        let ([flood, polite], _) = shares(1, 1, LONG);
        let mut unanswered = at_once(&flood);
        assert_eq!(unanswered.len(), 2);
        let mut waiting = Box::pin(flood.turn());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(at_once(&polite));
        let (own, surplus) = (unanswered.remove(0), unanswered.remove(0));
        drop(surplus);
        assert!(waiting.as_mut().now_or_never().is_none(), "the surplus is for an account that is alone");
        drop(own);
        assert!(waiting.await.is_some());
    }

    /// Goal: an account that has become idle takes nothing from the other one.
    #[test]
    fn surplus_comes_back_when_the_other_account_is_idle() {
        let ([busy, idle], _) = shares(4, 10, Duration::ZERO);
        drop(at_once(&idle));
        assert_eq!(at_once(&busy).len(), 14);
    }

    /// Goal: a flood has as many requests at once as the other clients have on average, but a part of its share if these
    /// have fewer, and its share if they ask only now and then.
    #[test]
    fn flood_has_as_many_requests_at_once_as_others_have() {
        const SECOND: u64 = MICROSECONDS;
        let ([flood, polite], _) = shares(32, 10, LONG);
        let (flood, polite) = (flood.0.unwrap(), polite.0.unwrap());
        flood.came();
        polite.came();
        let answered = |account: &Own, time, now| {
            account.unanswered.add(time, now);
            account.turns.unanswered.add(time, now);
        };
        answered(&flood, 500 * SECOND, 5 * SECOND);
        answered(&polite, SECOND / 20, 5 * SECOND);
        assert_eq!(flood.limit(6 * SECOND), 32, "the other one asks now and then");
        answered(&polite, SECOND / 20, 5 * SECOND);
        assert_eq!(flood.limit(5 * SECOND), 4, "the other one has a request unanswered for a tenth of the time");
        for (unanswered, few) in [(1, 4), (4, 4), (5, 5), (16, 16), (31, 31), (64, 32)] {
            let now = (10 + 10 * unanswered) * SECOND;
            answered(&flood, 500 * SECOND, now);
            answered(&polite, unanswered * SECOND, now);
            for later in [0, SECOND, 2 * SECOND - 1] {
                assert_eq!(flood.limit(now + later), few, "beside {unanswered} at once, {later} us later");
            }
            assert_eq!(flood.limit(now + 2 * SECOND), 32, "the second is long past");
            assert_eq!(polite.limit(now + SECOND), 32, "the flood has more");
            answered(&polite, 0, now + SECOND);
            assert_eq!(flood.limit(now + SECOND), few, "the second before counts until this one has more");
        }
    }

    /// Goal: a flood that has its share gives back what it may not have any more, request by request.
    #[tokio::test]
    async fn flood_gives_back_what_it_may_not_have_any_more() {
        let ([flood, polite], _) = shares(32, 10, LONG);
        let mut unanswered = at_once(&flood);
        assert_eq!(unanswered.len(), 42);
        let mut waiting = Box::pin(flood.turn());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(at_once(&polite));
        let turns = &polite.0.as_ref().unwrap().turns;
        turns.unanswered.add(9 * MICROSECONDS / 2, turns.now());
        drop(unanswered.drain(5..));
        assert!(waiting.as_mut().now_or_never().is_none(), "five are as many as the others have");
        drop(unanswered.pop());
        assert!(waiting.await.is_some());
        assert_eq!(at_once(&flood).len(), 1);
    }

    #[test]
    fn share_without_a_limit() {
        let ([one, other], delayed) = shares(0, 1, LONG);
        for _ in 0..100 {
            assert!(one.turn().now_or_never().is_some_and(|turn| turn.is_none()));
            assert!(other.turn().now_or_never().is_some_and(|turn| turn.is_none()));
        }
        assert_eq!(delayed.get(), 0);
    }
}
