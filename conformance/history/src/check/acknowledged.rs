//! Acknowledged operations are not lost, in O(n log n).
//!
//! # What it checks
//!
//! 1. From the moment a client was shown a grant until something may have ended it, every
//!    linearizable read finds the grant: none may find the lock free.
//! 2. A release by the holder is not answered "not the holder" while nothing may have ended the
//!    grant; nor is a break of the grant.
//! 3. After each acknowledged sign of life a session lives for its time-to-live, unless a close was
//!    requested or a grant of the session may have been broken: no client is told earlier that the
//!    session is gone.
//! 4. A session that is gone has no further effect: none of its acquires, keepalives and releases
//!    succeeds; no acquire is refused because the session holds the lock; and after a close no read
//!    shows it.
//!
//! The checker counts the keys with a **final read**: a read invoked after every other operation on
//! the key. An acknowledged operation that no later read looks for can be lost unnoticed.
//!
//! # Why it is sound
//!
//! With the bounds of `facts.rs`: a read that found the lock free did so at a moment m, between its
//! invocation and its completion. If a grant u of the key was seen before, all grants with tokens t
//! ≤ u had begun: g(t) ≤ g(u) ≤ `seen(u)` < m. If one of them has `lasts(t)` > m, the lock was held
//! at m. So the read is accused if that is so for every possible m. Checks 2 to 4 compare an
//! answer's moment in the same way with moments that are certainly before, or certainly after, the
//! end of the session or grant.
//!
//! A session past its deadline is gone for every request, but until it is swept, reads may show it,
//! with no time left (docs/protocol.md, "Expiry"). Checks 2 and 4 allow for that.
//!
//! # What it does not find
//!
//! A lost grant that no operation looked for while it could not have ended; the loss of an
//! operation that was never answered.

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::{Answer, Call, Operation, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "acknowledged";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    let periods = Periods::of(facts);
    let mut reads = 0;
    for operation in &facts.history.operations {
        if violations.len() >= MOST {
            break;
        }
        if let Call::Read { stale: false, .. } = operation.call {
            reads += usize::from(operation.answer().is_some());
        }
        violations.extend(free_while_held(facts, &periods, operation));
        violations.extend(holder_refused(facts, operation));
        violations.extend(ended_early(facts, operation));
        violations.extend(acted_when_gone(facts, operation));
    }
    let (looked_at, touched) = final_reads(facts);
    let sessions = count(facts.sessions.len(), "session");
    let checked =
        format!("{}, {sessions}, {looked_at} of {} with a final read", count(reads, "read"), count(touched, "key"));
    Verdict { checker: NAME, checked, violations }
}

/// The grants of each key in the order of their tokens, with cumulative bounds.
struct Periods {
    keys: Vec<Vec<Period>>,
}

struct Period {
    /// This grant and all before it had begun by then.
    begun: Time,
    /// Of this grant and all before it: the latest moment up to which one certainly lasted, and
    /// that grant.
    longest: (Time, usize),
}

impl Periods {
    fn of(facts: &Facts<'_>) -> Periods {
        let mut keys: Vec<Vec<Period>> = facts.keys.iter().map(|_| Vec::new()).collect();
        for (place, grant) in facts.grants.iter().enumerate() {
            let periods = &mut keys[grant.key];
            let lasts = (grant.lasts(), place);
            let longest = periods.last().map_or(lasts, |before| before.longest.max(lasts));
            periods.push(Period { begun: grant.seen.0, longest });
        }
        for periods in &mut keys {
            let mut begun = Time::NEVER;
            for period in periods.iter_mut().rev() {
                begun = begun.min(period.begun);
                period.begun = begun;
            }
        }
        Periods { keys }
    }

    /// A grant that was held throughout `from..=to`.
    fn holding(&self, key: usize, from: Time, to: Time) -> Option<usize> {
        let periods = &self.keys[key];
        let begun = periods.partition_point(|period| period.begun < from);
        let (lasts, grant) = periods[..begun].last()?.longest;
        (lasts > to).then_some(grant)
    }
}

fn free_while_held(facts: &Facts<'_>, periods: &Periods, operation: &Operation) -> Option<Violation> {
    let Call::Read { key, stale: false } = &operation.call else { return None };
    let Some(Answer::Lock { holder: None, .. }) = operation.answer() else { return None };
    let grant = periods.holding(facts.key_named(key)?, operation.invoked, operation.completed())?;
    let grant = &facts.grants[grant];
    let shown = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
    Some(Violation(format!(
        "a grant stays until something ends it, but {operation} found the lock free, while token {}, shown by {}, could not have ended before {}: {shown}",
        grant.token,
        grant.seen.0,
        grant.lasts(),
    )))
}

fn holder_refused(facts: &Facts<'_>, operation: &Operation) -> Option<Violation> {
    let Some(Refusal::NotHolder) = operation.refusal() else { return None };
    let (token, key, session) = match &operation.call {
        Call::Release { token, key, session, .. } => (token, key, Some(session)),
        Call::Break { token, key } => (token, key, None),
        _ => return None,
    };
    let grant = facts.grant_of(*token)?;
    let is_its = session.is_none_or(|session| grant.session == facts.session_named(session));
    let same = is_its && facts.key_named(key) == Some(grant.key);
    // A holder that is past its deadline cannot release the lock, and can still be broken.
    let (rule, until) = match session {
        Some(_) => ("the holder can release its lock", grant.acts()),
        None => ("an operator can break a grant", grant.lasts()),
    };
    let held = same && grant.seen.0 < operation.invoked && until > operation.completed();
    held.then(|| {
        let shown = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
        Violation(format!(
            "{rule}, but {operation} failed, although the grant was there by {} and could not have ended before {until}: {shown}",
            grant.seen.0,
        ))
    })
}

fn ended_early(facts: &Facts<'_>, operation: &Operation) -> Option<Violation> {
    let Some(Refusal::NoSession) = operation.refusal() else { return None };
    let session = &facts.sessions[facts.session_named(operation.call.session()?)?];
    let may_end = session.may_end();
    (operation.completed() < may_end).then(|| {
        Violation(format!(
            "a session lives for its time-to-live after a sign of life, but session {}, which could not have ended before {may_end}, was gone: {operation}",
            session.name,
        ))
    })
}

fn acted_when_gone(facts: &Facts<'_>, operation: &Operation) -> Option<Violation> {
    let gone_before = |session: usize| {
        facts.sessions[session].gone.filter(|(gone, _)| *gone < operation.invoked).map(|(_, place)| (session, place))
    };
    let closed_before = |session: usize| {
        facts.sessions[session]
            .closed
            .filter(|(closed, _)| *closed < operation.invoked)
            .map(|(_, place)| (session, place))
    };
    let (session, place) = match (&operation.call, operation.answer(), operation.refusal()) {
        (Call::Acquire { .. } | Call::KeepAlive { .. } | Call::Release { .. }, Some(_), _) => {
            gone_before(facts.session_of(operation)?)?
        }
        (Call::Acquire { .. }, _, Some(Refusal::Held { token })) => gone_before(facts.grant_of(*token)?.session?)?,
        (Call::Read { stale: false, .. }, Some(Answer::Lock { holder, queue, .. }), _) => {
            let mut shown = holder.iter().map(|holder| &holder.session).chain(queue);
            shown.find_map(|session| closed_before(facts.session_named(session)?))?
        }
        _ => return None,
    };
    Some(Violation(format!(
        "a session that is gone stays gone, but session {} was there again: {}; {operation}",
        facts.sessions[session].name,
        facts.operation(place),
    )))
}

/// Number of keys whose last operation is a read, and number of keys.
fn final_reads(facts: &Facts<'_>) -> (usize, usize) {
    let mut last = vec![(Time(0), None); facts.keys.len()];
    for operation in &facts.history.operations {
        let Some(key) = operation.call.key().and_then(|key| facts.key_named(key)) else { continue };
        let (done, read) = &mut last[key];
        match (&operation.call, &operation.end) {
            (Call::Access { .. } | Call::Read { stale: true, .. }, _) => {}
            (Call::Read { .. }, Some(_)) if operation.answer().is_some() => {
                *read = (*read).max(Some(operation.invoked))
            }
            (_, end) => *done = (*done).max(end.as_ref().map_or(operation.invoked, |(time, _)| *time)),
        }
    }
    (last.iter().filter(|(done, read)| read.is_some_and(|read| read > *done)).count(), last.len())
}

#[cfg(test)]
mod tests {
    use super::super::check_fast;
    use crate::History;

    /// Goal: client a gives up an acquire for which its library reuses a session. The acquire is
    /// granted, client c reads that, and the library releases the lock in the background, which is
    /// not recorded: nothing is lost.
    #[test]
    fn unrecorded_release_of_abandoned_acquire_is_accepted() {
        let record = r#"
            {"type":"invoke","op":1,"client":"a","time":0,"call":{"acquire":{"key":"k","wait_ms":500,"ttl_ms":5000}}}
            {"type":"ok","op":1,"time":1000000,"value":{"granted":{"session":"s1","token":1}}}
            {"type":"invoke","op":2,"client":"a","time":10000000,"call":{"release":{"key":"k","session":"s1","token":1}}}
            {"type":"ok","op":2,"time":11000000,"value":"released"}
            {"type":"invoke","op":3,"client":"a","time":12000000,"call":{"acquire":{"key":"k","wait_ms":500,"ttl_ms":5000}}}
            {"type":"info","op":3,"time":13000000,"why":"the client gave it up"}
            {"type":"invoke","op":4,"client":"c","time":14000000,"call":{"read":{"key":"k"}}}
            {"type":"ok","op":4,"time":15000000,"value":{"lock":{"holder":{"session":"s1","token":2},"queue":[]}}}
            {"type":"invoke","op":5,"client":"c","time":20000000,"call":{"read":{"key":"k"}}}
            {"type":"ok","op":5,"time":21000000,"value":{"lock":{"holder":null,"queue":[]}}}
        "#;
        let history = History::read(record.as_bytes()).unwrap();
        for verdict in check_fast(&history) {
            assert!(verdict.violations.is_empty(), "{verdict:?}");
        }
    }
}
