//! First come, first served, in O(n log n).
//!
//! # What it checks
//!
//! If acquire A stood in a key's queue before acquire B of the same key was asked for, or stood before B in the queue that a
//! read showed, then B is not granted while A waits.
//!
//! A client learns that it stands in the queue from the service itself ([`Note::Queued`](crate::history::Note::Queued); the wire does not say it, the simulation
//! does) or from a linearizable read that shows its session there. Without such a sign nobody can say who came first: a
//! request that was sent earlier may have arrived later.
//!
//! # Why it is sound
//!
//! A, once it is in the queue, stays there until it is granted or until something takes it out: its own timeout, a
//! withdrawal, the end of its session, a connection that broke. If A was granted and nothing may have taken it out before, it
//! stood in the queue all the time, and B, who came after it, was granted after it: its token is higher. If A was never
//! granted, it stood there until the first of those things at the earliest (`leaves`); a B that was seen to be granted before that has
//! overtaken it. Where two acquires of one session for one key were under way together, or one whose session nobody knows, nothing is concluded from
//! either: they share a place.
//!
//! # What it does not find
//!
//! Waiters that were overtaken before anybody saw them wait, and those whose connection broke. In a read's queue it compares neighbours only.

use super::facts::{Facts, OperationIndex};
use super::{MOST, Verdict, Violation, count};
use crate::history::{Call, End, Operation, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "fifo";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    let waiters: Vec<Option<Waiter>> =
        (0..facts.history.operations.len()).map(|place| Waiter::of(facts, place)).collect();
    let mut by_key: Vec<Line> = facts.keys.iter().map(|_| Line::default()).collect();
    for waiter in waiters.iter().flatten() {
        by_key[waiter.key].waiters.push(waiter);
    }
    for (place, grant) in facts.grants.iter().enumerate() {
        if grant.acquire.is_some() {
            by_key[grant.key].grants.push(place);
        }
    }
    for line in &mut by_key {
        line.overtaken(facts, &mut violations);
    }
    let mut neighbours = 0;
    for operation in &facts.history.operations {
        neighbours += out_of_line(facts, &waiters, operation, &mut violations);
    }
    violations.truncate(MOST);
    let waiting = count(waiters.iter().flatten().count(), "waiter");
    Verdict { checker: NAME, checked: format!("{waiting}, {} in queues", count(neighbours, "pair")), violations }
}

/// An acquire that was certainly in a queue.
struct Waiter {
    place: OperationIndex,
    key: usize,
    queued: Time,
    /// Its token, if it was granted.
    token: Option<u64>,
    /// It cannot have left the queue before, but for a grant.
    leaves: Time,
}

impl Waiter {
    fn of(facts: &Facts<'_>, place: OperationIndex) -> Option<Waiter> {
        let queued = facts.queued[place]?;
        let operation = facts.operation(place);
        let Call::Acquire { key, wait_ms, .. } = &operation.call else { return None };
        if operation.was_disconnected() {
            return None;
        }
        let key = facts.key_named(key)?;
        let session = facts.session_of(operation);
        let mut leaves = Time::NEVER;
        if let Some(session) = session {
            let to = operation.completed();
            let claims = facts.claims(session, key)?;
            let alone = claims.acquires.one_overlaps(operation.invoked, to);
            if !alone || facts.may_be_nameless(session, key, to) {
                return None;
            }
            for withdrawal in claims.withdrawals.overlapping(operation.invoked, to) {
                leaves = leaves.min(facts.operation(withdrawal).invoked);
            }
        }
        let gives_up = Time(operation.invoked.0.saturating_add(facts.history.at_least(*wait_ms)));
        match &operation.end {
            // What might have taken it out of the queue makes it useless; what ended its session did not, for it was granted.
            Some((_, End::Ok(_))) if leaves < Time::NEVER => return None,
            Some((_, End::Ok(_))) => {}
            None => leaves = leaves.min(gives_up),
            Some((answered, End::Fail(Refusal::Timeout))) => leaves = leaves.min(gives_up).min(*answered),
            Some((_, End::Fail(_) | End::Info(_))) => return None,
        }
        let token = facts.granted(place);
        if token.is_none() {
            // Without a session of its own it lives as long as a session that shows no other sign of life.
            let ends = session.map_or_else(|| anonymous(facts, operation), |session| facts.sessions[session].may_end());
            leaves = leaves.min(ends);
        }
        Some(Waiter { place, key, queued, token, leaves })
    }

    /// Whether it still waited when somebody had been granted `token` by `seen`.
    fn waits_past(&self, token: u64, seen: Time) -> bool {
        match self.token {
            Some(own) => own > token,
            None => self.leaves > seen,
        }
    }
}

fn anonymous(facts: &Facts<'_>, operation: &Operation) -> Time {
    match operation.call {
        Call::Acquire { session: None, ttl_ms, .. } => {
            let ttl = facts.history.at_least(ttl_ms.unwrap_or(crate::history::event::DEFAULT_TTL_MS));
            Time(operation.invoked.0.saturating_add(ttl))
        }
        _ => Time(0),
    }
}

/// One key's waiters and grants.
#[derive(Default)]
struct Line<'w> {
    waiters: Vec<&'w Waiter>,
    grants: Vec<usize>,
}

impl Line<'_> {
    /// For each grant, in the order of asking: has somebody been in the queue before, and waits still? Two maxima answer it: of
    /// the tokens of those who were granted, and of the moments until which the others wait.
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
                let overtaken = facts.operation(first.place);
                let asked = facts.operation(grant.acquire.expect("only grants with an acquire are compared"));
                violations.push(Violation(format!(
                    "who waits first is served first, but token {} was granted by {} to who asked after {}, while {overtaken} stood in the queue since {}: {asked}",
                    grant.token, grant.seen.0, first.queued, first.queued,
                )));
            }
        }
    }
}

/// Neighbours in the queue that a read showed. Returns how many pairs could be compared.
fn out_of_line(
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
                "who waits first is served first, but {} was granted before {}, which stood before it in the queue: {read}",
                facts.operation(second),
                facts.operation(first.place),
            )));
        }
    }
    pairs
}
