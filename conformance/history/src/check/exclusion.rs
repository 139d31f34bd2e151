//! Mutual exclusion in long histories, in O(n log n).
//!
//! # What it checks
//!
//! 1. A token belongs to one grant, of one key to one session, and only the holder's release
//!    succeeds.
//! 2. Tokens follow time, across all keys: a grant that was seen before another was requested has
//!    the lower token. And no grant is seen before it was requested.
//! 3. Periods of one key do not overlap: once a grant has been seen, those with lower tokens have
//!    ended. So no operation may find them there later, and the history must contain something that
//!    can have ended them (a release, a withdrawal, a close, a break, the time-to-live).
//! 4. An ended grant stays ended: no operation finds a grant after its release, close or break was
//!    answered.
//! 5. A session holds a lock only if it requested it and at least one attempt was not refused.
//!
//! # Why it is sound
//!
//! In a correct service each grant of a key begins at a moment g and ends at a moment e ≥ g. The
//! tokens of all grants, across all keys, are in the order of their g, and the periods of one key
//! do not overlap. `facts.rs` has bounds of g and e that every history of such a service satisfies.
//! For tokens t ≤ u: `not_before(t)` ≤ g(t) ≤ g(u) ≤ `seen(u)`, which is check 2. If they are of
//! one key, then also `lasts(t)` ≤ e(t) ≤ g(u) ≤ `seen(u)`, which is check 3. And `held(t)` ≤ e(t)
//! ≤ `ended(t)` is check 4. Each check accuses only if such a chain is broken, which no choice of
//! moments can repair.
//!
//! # What it does not find
//!
//! Violations within the bounds: two holders whose operations all overlap, a grant that no client
//! was told of, an answer that is impossible only together with two others. An unknown outcome
//! counts as possible: a release with an unknown outcome excuses the next grant.

use std::collections::HashMap;

use super::facts::{Facts, Grant};
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Answer, Call, Time};

/// The checker's name.
pub const NAME: &str = "exclusion";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    one_grant_per_token(facts, &mut violations);
    tokens_follow_time(facts, &mut violations);
    periods_do_not_overlap(facts, &mut violations);
    ended_grants_stay_ended(facts, &mut violations);
    holders_have_asked(facts, &mut violations);
    violations.truncate(MOST);
    let bounded = facts.grants.iter().filter(|grant| grant.asked.is_some()).count();
    let (grants, keys) = (count(facts.grants.len(), "grant"), count(facts.keys.len(), "key"));
    let checked = format!("{grants} of {keys}, {bounded} with a known request");
    Verdict { checker: NAME, checked, violations }
}

fn one_grant_per_token(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for &(token, place) in facts.contradictions.iter().take(MOST) {
        let Some(grant) = facts.grant_of(token) else { continue };
        let operation = facts.operation(place);
        let first = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
        violations.push(Violation(match operation.call {
            Call::Release { .. } => format!(
                "only the holder can release a lock, but {operation} succeeded, and token {token} belongs to {first}"
            ),
            _ => format!("a token belongs to one grant, but token {token} came twice: {first}; {operation}"),
        }));
    }
}

fn tokens_follow_time(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    let mut latest: Option<(&Grant, OperationIndex)> = None;
    for grant in &facts.grants {
        // A grant is also compared with itself: no operation shows it before it was requested.
        if let Some(asked) = grant.asked
            && latest.is_none_or(|(latest, _)| grant.not_before > latest.not_before)
        {
            latest = Some((grant, asked));
        }
        let Some((lower, asked)) = latest.filter(|(lower, _)| lower.not_before > grant.seen.0) else { continue };
        let rule = if lower.token == grant.token {
            "a grant comes after its request"
        } else {
            "later grants have higher tokens"
        };
        violations.push(Violation(format!(
            "{rule}, but token {} was there by {} ({}), before token {} was asked for: {}",
            grant.token,
            grant.seen.0,
            facts.operation(grant.seen.1),
            lower.token,
            facts.operation(asked),
        )));
    }
}

fn periods_do_not_overlap(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    let mut longest: HashMap<usize, &Grant> = HashMap::new();
    for grant in &facts.grants {
        let before = longest.entry(grant.key).or_insert(grant);
        let lasts = before.lasts();
        // `tokens_follow_time` has already reported violations of the order of requests.
        if before.token < grant.token && lasts > grant.seen.0 && before.not_before <= grant.seen.0 {
            let holder = facts.operation(before.acquire.unwrap_or(before.seen.1));
            let next = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
            let why = match before.held {
                Some((held, place)) if held == lasts => {
                    format!("was still found there later by {}", facts.operation(place))
                }
                _ => format!("could not have ended before {lasts}"),
            };
            let since = if facts.operation(grant.seen.1).id == next.id {
                String::new()
            } else {
                format!(" (it was granted by {} because of {})", grant.seen.0, facts.operation(grant.seen.1))
            };
            violations.push(Violation(format!(
                "a key has one holder at a time, but token {} of {} was granted by {} while token {} {why}: {next}{since}; {holder}",
                grant.token, facts.keys[grant.key], grant.seen.0, before.token,
            )));
        }
        if grant.lasts() > lasts {
            *before = grant;
        }
    }
}

fn ended_grants_stay_ended(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for grant in &facts.grants {
        if let (Some((held, finder)), Some((ended, end))) = (grant.held, grant.ended)
            && held > ended
        {
            violations.push(Violation(format!(
                "an ended grant stays ended, but token {} of {}, which was gone by {ended}, was found there later: {}; {}",
                grant.token,
                facts.keys[grant.key],
                facts.operation(end),
                facts.operation(finder),
            )));
        }
    }
}

/// For sessions that are completely recorded: a read that shows the session as holder needs an
/// acquire that may have been granted.
fn holders_have_asked(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for grant in &facts.grants {
        let (Some(session), None) = (grant.session, grant.acquire) else { continue };
        if facts.may_be_nameless(session, grant.key, Time::NEVER) || facts.sessions[session].may_expire() == Time(0) {
            continue;
        }
        let operation = facts.operation(grant.seen.1);
        let Some(Answer::Lock { .. }) = operation.answer() else { continue };
        let acquires = facts.claims(session, grant.key).map(|claims| &claims.acquires);
        let may_be_granted = |place| facts.operation(place).refusal().is_none();
        let open =
            acquires.is_some_and(|acquires| acquires.overlapping(Time(0), operation.completed()).any(may_be_granted));
        if !open {
            violations.push(Violation(format!(
                "a session holds a lock only if it requested it, but session {} had no acquire of {} that could be granted: {operation}",
                facts.sessions[session].name, facts.keys[grant.key],
            )));
        }
    }
}
