//! Bounds the number of an account's requests that are unanswered at once.
//!
//! A flood of requests does not slow the node's parts down one by one: it fills the queue before the
//! core and the log before the followers, and everything that comes later waits behind it. So the
//! bound is before both. While several accounts are active, each may have its share of unanswered
//! requests. Its further requests wait in a line of its own, in which each connection has at most one,
//! because nothing more is read from that connection. An account that is alone may have more, as many
//! as keep the core busy.
//!
//! **Beside a client that sends often and little, an account has a part of its share ([`PART`])**: each request of that client
//! waits for the whole share of each other account, and its next one is sent only then. An account that wants more than
//! a few at once is not such a client, and neither is one that asks now and then: for these, two busy clients would get
//! less than the node can do.
//!
//! A request of a client then waits for the share of each other active account, however many requests
//! these send. No rate is to be configured, and none is lost: a waiting request proceeds as soon as an
//! earlier one is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long an account counts as active after a request. Long against the pauses of a client that
/// sends its next request when the last one is answered.
const ACTIVE_FOR: Duration = Duration::from_secs(1);

/// What an account may use of its share beside a client that sends often and little: one of so many.
const PART: usize = 4;
/// So many requests in a second are often.
const OFTEN: u64 = 100;

/// One unanswered request of an account. Dropped when the request is answered, or waits in a lock's
/// queue.
pub type Turn = OwnedSemaphorePermit;

/// Which accounts have done something lately.
#[derive(Debug, Default)]
struct Lately {
    /// The latest account.
    latest: AtomicU64,
    /// When the latest one was another than the one before, in milliseconds since the start; 0 if none was.
    changed: AtomicU64,
}

impl Lately {
    fn came(&self, account: u64, now: impl Fn() -> u64) {
        // The usual case is a look at a number that no thread writes.
        if self.latest.load(Ordering::Relaxed) != account && self.latest.swap(account, Ordering::Relaxed) != 0 {
            self.changed.store(now().max(1), Ordering::Relaxed);
        }
    }

    /// Whether all were of one account for so many milliseconds.
    fn has_one(&self, now: u64, milliseconds: u64) -> bool {
        let changed = self.changed.load(Ordering::Relaxed);
        changed == 0 || now.saturating_sub(changed) >= milliseconds
    }
}

/// What all accounts of a node share.
#[derive(Debug)]
pub(super) struct Turns {
    /// For the account that is alone.
    surplus: Arc<Semaphore>,
    /// The accounts that have sent requests.
    active: Lately,
    /// Those that have wanted more than a few at once.
    busy: Lately,
    /// The second for which the next number counts, and the requests of other accounts than the latest busy one in it
    /// and in the second before.
    second: AtomicU64,
    light: [AtomicU64; 2],
    start: Instant,
    /// How long an account counts as active after a request.
    active_for: Duration,
    delayed: Counter,
}

impl Turns {
    /// Turns with a surplus of so many requests for the account that is alone.
    pub(super) fn new(surplus: usize, start: Instant, delayed: &Counter) -> Turns {
        let (surplus, delayed) = (Arc::new(Semaphore::new(surplus)), delayed.clone());
        let (active, busy) = (Lately::default(), Lately::default());
        let (second, light) = (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
        Turns { surplus, active, busy, second, light, start, active_for: ACTIVE_FOR, delayed }
    }

    /// A request of this account has come.
    fn came(&self, account: u64) {
        self.active.came(account, || self.now());
        if !self.has_one_account() && self.busy.latest.load(Ordering::Relaxed) != account {
            self.count_light();
        }
    }

    /// This account wants more requests at once than a few.
    fn wants_many(&self, account: u64) {
        self.busy.came(account, || self.now());
    }

    /// Whether one account has sent all requests lately.
    fn has_one_account(&self) -> bool {
        self.active.has_one(self.now(), self.active_milliseconds())
    }

    /// Whether this busy account is beside one that sends often and little, and beside no other busy one.
    fn is_beside_light(&self) -> bool {
        let [this, last] = &self.light;
        let age = (self.now() / 1000).saturating_sub(self.second.load(Ordering::Relaxed));
        let often = |count: &AtomicU64| count.load(Ordering::Relaxed) >= OFTEN;
        let is_often = match age {
            0 => often(this) || often(last),
            1 => often(this),
            _ => false,
        };
        is_often && self.busy.has_one(self.now(), self.active_milliseconds())
    }

    fn count_light(&self) {
        let (second, [this, last]) = (self.now() / 1000, &self.light);
        let counted = self.second.swap(second, Ordering::Relaxed);
        if counted != second {
            let before = this.swap(0, Ordering::Relaxed);
            last.store(if counted + 1 == second { before } else { 0 }, Ordering::Relaxed);
        }
        this.fetch_add(1, Ordering::Relaxed);
    }

    fn active_milliseconds(&self) -> u64 {
        u64::try_from(self.active_for.as_millis()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The unanswered requests of one account.
#[derive(Debug)]
pub(super) struct Share {
    /// The account's number, from 1.
    number: u64,
    /// `None` without a limit.
    own: Option<Own>,
    turns: Arc<Turns>,
}

/// The requests that an account may have at once while others are active.
#[derive(Debug)]
struct Own {
    few: Arc<Semaphore>,
    /// The others of its share.
    more: Arc<Semaphore>,
}

impl Share {
    /// The share of the account with this number: so many requests, or 0 for no limit.
    pub(super) fn new(number: u64, requests: usize, turns: &Arc<Turns>) -> Share {
        let own = (requests > 0).then(|| {
            let few = (requests / PART).max(1);
            let more = (requests - few).min(Semaphore::MAX_PERMITS);
            Own { few: Arc::new(Semaphore::new(few)), more: Arc::new(Semaphore::new(more)) }
        });
        Share { number, own, turns: Arc::clone(turns) }
    }

    /// Waits until the account may have one more unanswered request. `None` without a limit.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let (Own { few, more }, turns) = (self.own.as_ref()?, &self.turns);
        turns.came(self.number);
        if let Ok(turn) = Arc::clone(few).try_acquire_owned() {
            return Some(turn);
        }
        turns.wants_many(self.number);
        let has_more = || turns.has_one_account() || !turns.is_beside_light();
        if has_more()
            && let Ok(turn) = Arc::clone(more).try_acquire_owned()
        {
            return Some(turn);
        }
        let is_alone = turns.has_one_account();
        if is_alone && let Ok(turn) = Arc::clone(&turns.surplus).try_acquire_owned() {
            return Some(turn);
        }
        turns.delayed.inc();
        // No semaphore is ever closed.
        let (turn, is_surplus) = tokio::select! {
            turn = Arc::clone(few).acquire_owned() => return turn.ok(),
            turn = Arc::clone(more).acquire_owned(), if has_more() => (turn.ok(), false),
            turn = Arc::clone(&turns.surplus).acquire_owned(), if is_alone => (turn.ok(), true),
        };
        let may_keep_it = if is_surplus { turns.has_one_account() } else { has_more() };
        if may_keep_it {
            return turn;
        }
        drop(turn);
        Arc::clone(few).acquire_owned().await.ok()
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

    /// Goal: beside a client that sends often and little, a flood has few requests at once; beside one that asks now and
    /// then, or one that wants many itself, it keeps its share.
    #[test]
    fn flood_has_few_requests_beside_a_client_that_sends_often_and_little() {
        let ([flood, polite], _) = shares(32, 10, LONG);
        assert_eq!(at_once(&flood).len(), 42, "it is alone");
        let ask = |times: u64| (0..times).for_each(|_| drop(polite.turn().now_or_never()));
        ask(1);
        assert_eq!(at_once(&flood).len(), 32, "the other one has asked once");
        ask(2 * OFTEN);
        let few = at_once(&flood);
        assert_eq!(few.len(), 32 / PART);
        let mut waiting = Box::pin(flood.turn());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(few);
        assert!(waiting.now_or_never().flatten().is_some());
        assert_eq!(at_once(&polite).len(), 32, "it wants many itself");
        assert_eq!(at_once(&flood).len(), 32);
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
