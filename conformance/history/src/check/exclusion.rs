//! Mutual exclusion in long histories, in O(n log n) if few sessions hold a lock at once: every grant is
//! compared with the others that certainly hold its lock.
//!
//! # What it checks
//!
//! 1. A token belongs to one grant, of one key or several, to one session, in one mode, and only the
//!    holder's release succeeds.
//! 2. Tokens follow time, across all keys: a grant that was seen before another was requested has
//!    the lower token. And no grant is seen before it was requested.
//! 3. The holders of a key take at most all its permits, and are of one size: an exclusive grant is
//!    alone, shared ones may be together, and those of a semaphore of N permits take N at most. Once a
//!    grant has been seen, those with lower tokens that leave no room for it have ended. So no
//!    operation may find them there later, and the history must contain something that can have ended
//!    them (a release, a withdrawal, a close, a break, the time-to-live). And the holders that one read
//!    shows fit together.
//! 4. An ended grant stays ended: no operation finds a grant after its release, close or break was
//!    answered.
//! 5. A session holds a lock only if it requested it and at least one attempt was not refused.
//!
//! # Why it is sound
//!
//! In a correct service each grant of a key begins at a moment g and ends at a moment e ≥ g. The
//! tokens of all grants, across all keys, are in the order of their g, and at the moment of a grant
//! there is room for it beside those that have not ended. `facts.rs` has bounds of g and e that every
//! history of such a service satisfies. For tokens t ≤ u: `not_before(t)` ≤ g(t) ≤ g(u) ≤ `seen(u)`,
//! which is check 2. If they are of one key, and `seen(u)` < `lasts(t)` ≤ e(t), then g(t) ≤ g(u) < e(t):
//! t is a holder at the moment g(u). Check 3 adds up what all these t and u take. And `held(t)` ≤ e(t)
//! ≤ `ended(t)` is check 4. Each check accuses only if such a chain is broken, which no choice of
//! moments can repair. Of a grant whose mode is unknown the least is assumed.
//!
//! # What it does not find
//!
//! Violations within the bounds: two holders whose operations all overlap, a grant that no client
//! was told of, an answer that is impossible only together with two others. An unknown outcome
//! counts as possible: a release with an unknown outcome excuses the next grant.

use super::facts::{Facts, Grant};
use super::lasting::Lasting;
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Answer, Call, Time};

/// The checker's name.
pub const NAME: &str = "exclusion";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    one_grant_per_token(facts, &mut violations);
    modes_stay(facts, &mut violations);
    tokens_follow_time(facts, &mut violations);
    holders_fit_together(facts, &mut violations);
    shown_holders_fit_together(facts, &mut violations);
    ended_grants_stay_ended(facts, &mut violations);
    holders_have_asked(facts, &mut violations);
    violations.truncate(MOST);
    let bounded = facts.grants.iter().filter(|grant| grant.asked.is_some()).count();
    let (grants, keys) = (count(facts.grants.len(), "grant"), count(facts.keys.len(), "key"));
    let checked = format!("{grants} of {keys}, {bounded} with a known request");
    Verdict { checker: NAME, checked, violations }
}

fn one_grant_per_token(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for &(token, index) in facts.contradictions.iter().take(MOST) {
        let Some(grant) = facts.grant_of(token) else { continue };
        let operation = facts.operation(index);
        let first = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
        violations.push(Violation(match operation.call {
            Call::Release { .. } => format!(
                "only the holder can release a lock, but {operation} succeeded, and token {token} belongs to {first}"
            ),
            _ => format!("a token belongs to one grant, but token {token} came twice: {first}; {operation}"),
        }));
    }
}

/// A read shows a grant in the mode that its acquire asked for.
fn modes_stay(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for &(token, index) in facts.other_modes.iter().take(MOST) {
        let Some(grant) = facts.grant_of(token) else { continue };
        let first = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
        violations.push(Violation(format!(
            "a grant keeps its mode, but token {token} was shown in two: {first}; {}",
            facts.operation(index)
        )));
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

/// For each grant: what it takes of its lock, and what the earlier ones take that certainly hold it still.
fn holders_fit_together(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for (key, grants) in facts.grants_by_key().iter().enumerate() {
        let lasting = Lasting::new(grants.iter().map(|grant| grant.lasts()));
        for (index, grant) in grants.iter().enumerate() {
            let share = facts.share(grant, key);
            let mut taken = share.map_or(1, |(takes, _)| takes);
            for holder in lasting.past(index, grant.seen.0).map(|index| grants[index]) {
                // `tokens_follow_time` has already reported violations of the order of requests.
                if holder.not_before > grant.seen.0 {
                    continue;
                }
                let has_room = match (share, facts.share(holder, key)) {
                    (Some((_, of)), Some((takes, of_too))) => {
                        taken += takes;
                        of == of_too && taken <= of
                    }
                    // Of one of them only the lock is known: an exclusive one is alone.
                    (Some((takes, of)), None) | (None, Some((takes, of))) => takes < of,
                    (None, None) => true,
                };
                if !has_room {
                    violations.push(no_room(facts, key, grant, holder, taken));
                    break;
                }
            }
            if violations.len() >= MOST {
                return;
            }
        }
    }
}

/// A grant that leaves no room for a later one, but lasts.
fn no_room(facts: &Facts<'_>, key: usize, grant: &Grant, holder: &Grant, taken: u64) -> Violation {
    let first = facts.operation(holder.acquire.unwrap_or(holder.seen.1));
    let next = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
    let why = match holder.held {
        Some((held, index)) if held == holder.lasts() => {
            format!("was still found there later by {}", facts.operation(index))
        }
        _ => format!("could not have ended before {}", holder.lasts()),
    };
    let since = if facts.operation(grant.seen.1).id == next.id {
        String::new()
    } else {
        format!(" (it was granted by {} because of {})", grant.seen.0, facts.operation(grant.seen.1))
    };
    let rule = match (facts.share(grant, key), facts.share(holder, key)) {
        (Some((takes, of)), Some((takes_too, of_too))) if of == of_too && takes < of && takes_too < of => {
            format!("the holders of a key take at most its {of} permits, and these took {taken}")
        }
        _ => "a key has one holder at a time".to_owned(),
    };
    Violation(format!(
        "{rule}, but token {} of {} was granted by {} while token {} {why}: {next}{since}; {first}",
        grant.token, facts.keys[key], grant.seen.0, holder.token,
    ))
}

fn shown_holders_fit_together(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    for operation in &facts.history.operations {
        let Some(Answer::Lock { holders, .. }) = operation.answer() else { continue };
        let Some((_, of)) = holders.first().map(|holder| holder.mode.share()) else { continue };
        let taken: u64 = holders.iter().map(|holder| holder.mode.share().0).sum();
        if taken > of || holders.iter().any(|holder| holder.mode.share().1 != of) {
            violations.push(Violation(format!("the holders of a key fit together, but {operation} showed others")));
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
                facts.names(grant),
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
        if facts.grant_may_be_nameless(session, grant, Time::NEVER) || facts.sessions[session].may_expire() == Time(0) {
            continue;
        }
        let operation = facts.operation(grant.seen.1);
        let Some(Answer::Lock { .. }) = operation.answer() else { continue };
        let acquires = facts.claims(session, grant.keys[0]).map(|claims| &claims.acquires);
        let may_have_made = |index| facts.may_have_made(facts.operation(index), grant);
        let open =
            acquires.is_some_and(|acquires| acquires.overlapping(Time(0), operation.completed()).any(may_have_made));
        if !open {
            violations.push(Violation(format!(
                "a session holds a lock only if it requested it, but session {} had no acquire of {} that could be granted: {operation}",
                facts.sessions[session].name, facts.names(grant),
            )));
        }
    }
}
