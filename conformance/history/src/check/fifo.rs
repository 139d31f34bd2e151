//! First come, first served, in O(n log n).
//!
//! # What it checks
//!
//! If acquire A was in the queue of a key before acquire B of that key was invoked, or was ahead of
//! B in the queue that a read showed, then B is not granted while A waits. That holds in all modes, also
//! where the lock has room for B and not for A, and for claims on several keys in the queue of each.
//!
//! A client learns that it is in the queue from the service itself
//! ([`Note::Queued`](crate::Note::Queued); the simulation reports it, the wire does not)
//! or from a linearizable read that shows its session there. Without such a sign the order is
//! unknown: a request that was sent earlier may have arrived later.
//!
//! # Why it is sound
//!
//! Once A is in the queue, it stays there until it is granted or something removes it: its own
//! timeout, a withdrawal, the end of its session, a broken connection, access rules that deny it
//! the lock. If A was granted and nothing can have removed it before, it was in the queue all the
//! time, and B, which came later, was granted later: B's token is higher. If A was never granted,
//! it was in the queue until the first of those events at the earliest (`leaves`); a B that was
//! seen to be granted before that has overtaken A. Where two acquires of one session for one key
//! were under way together, or one with an unknown session, the checker concludes nothing from
//! either: they share a queue position.
//!
//! # What it does not find
//!
//! Waiters that were overtaken before any operation showed them waiting, and waiters whose
//! connection broke. In a read's queue the checker compares neighbours only.

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Call, End, Operation, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "fifo";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    let waiters: Vec<Option<Waiter>> =
        (0..facts.history.operations.len()).map(|index| Waiter::of(facts, index)).collect();
    let mut by_key: Vec<KeyQueue> = facts.keys.iter().map(|_| KeyQueue::default()).collect();
    for waiter in waiters.iter().flatten() {
        for &key in &waiter.keys {
            by_key[key].waiters.push(waiter);
        }
    }
    for (index, grant) in facts.grants.iter().enumerate() {
        if grant.acquire.is_some() {
            for &key in &grant.keys {
                by_key[key].grants.push(index);
            }
        }
    }
    for line in &mut by_key {
        line.overtaken(facts, &mut violations);
    }
    let mut neighbours = 0;
    for operation in &facts.history.operations {
        neighbours += overtaken_in_read(facts, &waiters, operation, &mut violations);
    }
    violations.truncate(MOST);
    let waiting = count(waiters.iter().flatten().count(), "waiter");
    Verdict { checker: NAME, checked: format!("{waiting}, {} in queues", count(neighbours, "pair")), violations }
}

/// An acquire that was certainly in a queue.
struct Waiter {
    index: OperationIndex,
    keys: Vec<usize>,
    queued: Time,
    /// Its token, if it was granted.
    token: Option<u64>,
    /// Except for a grant, it cannot have left the queue before this time.
    leaves: Time,
}

impl Waiter {
    fn of(facts: &Facts<'_>, index: OperationIndex) -> Option<Waiter> {
        let queued = facts.queued[index]?;
        let operation = facts.operation(index);
        let Call::Acquire { wait_ms, .. } = &operation.call else { return None };
        if operation.was_disconnected() {
            return None;
        }
        let keys = facts.keys_of(operation);
        let session = facts.session_of(operation);
        let mut leaves = Time::NEVER;
        if let Some(session) = session {
            let to = operation.completed();
            for &key in &keys {
                let claims = facts.claims(session, key)?;
                let alone = claims.acquires.one_overlaps(operation.invoked, to);
                if !alone || facts.may_be_nameless(session, key, to) {
                    return None;
                }
                for withdrawal in claims.withdrawals.overlapping(operation.invoked, to) {
                    let withdrawal = facts.operation(withdrawal);
                    if facts.keys_of(withdrawal) == keys {
                        leaves = leaves.min(withdrawal.invoked);
                    }
                }
            }
        }
        let gives_up = Time(operation.invoked.0.saturating_add(facts.history.at_least(*wait_ms)));
        match &operation.end {
            // If a withdrawal may have removed it from the queue, it proves nothing. The end of its
            // session cannot have: it was granted.
            Some((_, End::Ok(_))) if leaves < Time::NEVER => return None,
            Some((_, End::Ok(_))) => {}
            // When its turn came, the access rules may have denied it the lock.
            None => leaves = leaves.min(gives_up).min(facts.denies_since),
            Some((answered, End::Fail(Refusal::Timeout))) => leaves = leaves.min(gives_up).min(*answered),
            Some((_, End::Fail(_) | End::Info(_))) => return None,
        }
        let token = facts.granted(index);
        if token.is_none() {
            // An acquire without a session waits at least as long as a session without any other
            // sign of life lives.
            let ends =
                session.map_or_else(|| earliest_expiry(facts, operation), |session| facts.sessions[session].may_end());
            leaves = leaves.min(ends);
        }
        Some(Waiter { index, keys, queued, token, leaves })
    }

    /// Whether it still waited when `token` had been granted, by `seen`.
    fn waits_past(&self, token: u64, seen: Time) -> bool {
        match self.token {
            Some(own) => own > token,
            None => self.leaves > seen,
        }
    }
}

fn earliest_expiry(facts: &Facts<'_>, operation: &Operation) -> Time {
    match operation.call {
        Call::Acquire { session: None, ttl_ms, .. } => {
            let ttl = facts.history.at_least(ttl_ms.unwrap_or(crate::event::DEFAULT_TTL_MS));
            Time(operation.invoked.0.saturating_add(ttl))
        }
        _ => Time(0),
    }
}

/// One key's waiters and grants.
#[derive(Default)]
struct KeyQueue<'w> {
    waiters: Vec<&'w Waiter>,
    grants: Vec<usize>,
}

impl KeyQueue<'_> {
    /// For each grant, in the order of the requests: finds an acquire that was in the queue before
    /// and still waits. Two maxima decide it: of the tokens of granted waiters, and of the times
    /// until which the others wait.
    fn overtaken(&mut self, facts: &Facts<'_>, violations: &mut Vec<Violation>) {
        self.waiters.sort_by_key(|waiter| waiter.queued);
        self.grants.sort_by_key(|&grant| facts.grants[grant].not_before);
        let mut came = self.waiters.iter().peekable();
        let (mut granted, mut waiting): (Option<&Waiter>, Option<&Waiter>) = (None, None);
        for &grant in &self.grants {
            let grant = &facts.grants[grant];
            while let Some(waiter) = came.next_if(|waiter| waiter.queued < grant.not_before) {
                if waiter.token.is_some() {
                    granted = granted.into_iter().chain([*waiter]).max_by_key(|waiter| waiter.token);
                } else {
                    waiting = waiting.into_iter().chain([*waiter]).max_by_key(|waiter| waiter.leaves);
                }
            }
            let first =
                [granted, waiting].into_iter().flatten().find(|first| first.waits_past(grant.token, grant.seen.0));
            if let Some(first) = first {
                let overtaken = facts.operation(first.index);
                let asked = facts.operation(grant.acquire.expect("compared grants have an acquire"));
                violations.push(Violation(format!(
                    "waiters are served in queue order, but token {} was granted by {} to an acquire invoked after {}, while {overtaken} was in the queue since {}: {asked}",
                    grant.token, grant.seen.0, first.queued, first.queued,
                )));
            }
        }
    }
}

/// Checks the neighbours in the queue that a read showed. Returns the number of pairs that could be
/// compared.
fn overtaken_in_read(
    facts: &Facts<'_>,
    waiters: &[Option<Waiter>],
    read: &Operation,
    violations: &mut Vec<Violation>,
) -> usize {
    let shown = facts.waiters(read);
    let mut pairs = 0;
    for pair in shown.windows(2) {
        let [Some(first), Some(second)] = *pair else { continue };
        let (Some(first), Some(token)) = (&waiters[first], facts.granted(second)) else { continue };
        let Some(grant) = facts.grant_of(token) else { continue };
        pairs += 1;
        if first.waits_past(token, grant.seen.0) {
            violations.push(Violation(format!(
                "waiters are served in queue order, but {} was granted before {}, which was ahead of it in the queue: {read}",
                facts.operation(second),
                facts.operation(first.index),
            )));
        }
    }
    pairs
}
