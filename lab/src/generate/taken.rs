//! What is counted while locks are acquired, and the history of a sample of them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_history::{Answer, Call, Client, Key, Pending, Recorder, Session};
use parking_lot::Mutex;

use super::fill::Fill;
use crate::event::millis;
use crate::metrics::Metrics;

/// What was taken so far.
#[derive(Debug)]
pub struct Taken {
    locks: AtomicU64,
    refused: AtomicU64,
    metrics: Arc<Metrics>,
    sample: Option<Sample>,
}

/// Records the acquires of some of a fill's keys.
pub struct Sample {
    /// Each key whose number is a multiple of this.
    pub every: u64,
    /// The clients' names begin with it: one client for each key.
    pub owner: &'static str,
    /// Whether other clients hold the locks, so that a lock that is found held is never this client's own.
    pub rival: bool,
    /// Where they are recorded.
    pub recorder: Recorder,
    /// Numbers the grants whose tokens the client does not get. Fills of the same keys share it.
    pub grants: Arc<AtomicU64>,
    /// Acquires without an answer.
    pub pending: Mutex<HashMap<u64, Pending>>,
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").field("every", &self.every).field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Taken {
    /// Counts in these metrics, and records a sample, if there is one.
    #[must_use]
    pub fn new(metrics: &Arc<Metrics>, sample: Option<Sample>) -> Arc<Taken> {
        Arc::new(Taken { locks: AtomicU64::new(0), refused: AtomicU64::new(0), metrics: metrics.clone(), sample })
    }

    /// Locks that were acquired.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }

    /// Acquires that found the lock held by another owner.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The locks with these numbers are about to be asked for.
    pub(super) fn ask(&self, fill: &Fill, numbers: Range<u64>) {
        self.metrics.attempts.inc_by(numbers.end - numbers.start);
        let Some(sample) = &self.sample else { return };
        let first = numbers.start.next_multiple_of(sample.every);
        for number in (first..numbers.end).step_by(usize::try_from(sample.every).unwrap_or(usize::MAX)) {
            let key = Key::from(fill.key(number).as_str());
            let call = Call::acquire_one(key, 0, Some(millis(fill.lasts.ttl())));
            let pending = sample.recorder.invoke(&Client::from(sample.client(number).as_str()), call);
            sample.pending.lock().insert(number, pending);
        }
    }

    /// A lock was granted, with this token, if the client got one.
    pub(super) fn grant(&self, number: u64, token: Option<u64>) {
        self.add();
        let Some((sample, pending)) = self.pending(number) else { return };
        let token = token.unwrap_or_else(|| sample.grants.fetch_add(1, Ordering::Relaxed));
        pending.ok(Answer::Granted { session: Session::from(sample.client(number).as_str()), token });
    }

    /// A lock is held, by an earlier attempt of this client whose answer was lost, unless the client is a rival.
    pub(super) fn find(&self, number: u64) {
        if self.sample.as_ref().is_some_and(|sample| sample.rival) {
            return self.refuse(number);
        }
        self.add();
        if let Some((_, pending)) = self.pending(number) {
            pending.info("the answer was lost");
        }
    }

    /// A lock is held by another owner.
    pub(super) fn refuse(&self, number: u64) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.metrics.timeouts.inc();
        if let Some((_, pending)) = self.pending(number) {
            // An acquire that does not wait would have to name the holder's token, which backends do not tell.
            pending.info("the lock is held");
        }
    }

    fn add(&self) {
        self.locks.fetch_add(1, Ordering::Relaxed);
        self.metrics.acquired.inc();
    }

    fn pending(&self, number: u64) -> Option<(&Sample, Pending)> {
        let sample = self.sample.as_ref().filter(|sample| number.is_multiple_of(sample.every))?;
        Some((sample, sample.pending.lock().remove(&number)?))
    }
}

impl Sample {
    fn client(&self, number: u64) -> String {
        format!("{}-{number}", self.owner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::dlock::Backend;
    use crate::generate::fill::Lasts;
    use crate::history::{Judgement, by_key};

    fn fill(step: u64) -> Fill {
        Fill {
            backend: Backend::Redis,
            endpoints: Vec::new(),
            keys: 30,
            prefix: "sample".to_owned(),
            seed: 1,
            step,
            lasts: Lasts::Until(Instant::now() + Duration::from_secs(60)),
            share: 1,
            rate: None,
            until: None,
        }
    }

    /// Every tenth key is recorded; the second client asks for these alone. `tell`: what the second one is told of each.
    fn judged(tell: fn(&Taken, u64)) -> (usize, usize, u64) {
        let (metrics, recorder, grants) = (Arc::default(), Recorder::in_memory(), Arc::new(AtomicU64::new(1)));
        let taken = |owner, every| {
            let (recorder, grants, pending) = (recorder.clone(), grants.clone(), Mutex::default());
            let rival = owner == "second";
            Taken::new(&metrics, Some(Sample { every, owner, rival, recorder, grants, pending }))
        };
        let (first, second) = (taken("first", 10), taken("second", 1));
        first.ask(&fill(1), 5..30);
        (5..30).for_each(|number| first.grant(number, None));
        assert_eq!((first.count(), metrics.attempts.get(), metrics.acquired.get()), (25, 25, 25));
        second.ask(&fill(10), 1..3);
        (1..3).for_each(|number| tell(&second, number));
        assert_eq!(second.count() + second.refused(), 2);
        let keys = by_key(recorder.history().unwrap());
        let found = keys.values().map(|history| Judgement::without_search(history).service.len()).sum();
        (keys.len(), found, second.refused())
    }

    #[test]
    fn second_grant_of_a_held_key_of_the_sample_is_found() {
        assert_eq!(judged(Taken::refuse), (2, 0, 2));
        assert_eq!(judged(|taken, number| taken.grant(number, None)), (2, 2, 0));
    }

    #[test]
    fn lock_that_a_rival_finds_held_is_never_its_own() {
        assert_eq!(judged(Taken::find), (2, 0, 2));
    }
}
