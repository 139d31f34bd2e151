//! Nothing that was acknowledged is lost, in O(n log n).
//!
//! # What it checks
//!
//! 1. A grant that was shown to somebody is there for every linearizable read, until something may have ended it: none may
//!    find the lock free meanwhile.
//! 2. A release by the holder, while nothing may have ended the grant, is not answered "not the holder".
//! 3. A session that was acknowledged lives for its time-to-live after each acknowledged sign of life, unless a close was
//!    asked for: nobody is told before that it is gone.
//! 4. A session that is gone does nothing any more: no acquire, keepalive or release of it succeeds; nobody is refused a lock
//!    because it holds it; and after a close, no read shows it.
//!
//! How many keys have a **final read**, one that was asked after everything else about the key, is counted: what was
//! acknowledged and nobody looked at later cannot be missed.
//!
//! # Why it is sound
//!
//! With the bounds of `facts.rs`: a read that found the lock free did so at a moment m, between its invocation and its
//! completion. If a grant u of the key was seen before, all grants with tokens t ≤ u had begun: g(t) ≤ g(u) ≤ `seen(u)` < m. If one of them has
//! `lasts(t)` > m, it was held at m. So a read may be accused if that is so for all m that it may have. Checks 2 to 4 compare
//! in the same way an answer's moment with moments that are certainly before the session's or the grant's end, or after it.
//!
//! A session that is past its deadline is gone for all who ask; but until it is swept, reads may show it, with no time
//! left (docs/protocol.md, "Expiry"). Checks 2 and 4 leave room for that.
//!
//! # What it does not find
//!
//! A lost grant that nobody looked for while it could not have ended; losses of what was never answered.

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::history::{Answer, Call, Operation, Refusal, Time};

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

/// The grants of each key in the order of their tokens, with what is known of all up to one.
struct Periods {
    keys: Vec<Vec<Period>>,
}

struct Period {
    /// It and all before it had begun by then.
    begun: Time,
    /// The grant among it and all before it that lasts longest, and until when.
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

    /// A grant that was held all the while.
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
    let (Call::Release { token, session, key, .. }, Some(Refusal::NotHolder)) = (&operation.call, operation.refusal())
    else {
        return None;
    };
    let grant = facts.grant_of(*token)?;
    let same = grant.session == facts.session_named(session) && facts.key_named(key) == Some(grant.key);
    let held = same && grant.seen.0 < operation.invoked && grant.acts() > operation.completed();
    held.then(|| {
        let shown = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
        Violation(format!(
            "the holder can give its lock back, but {operation} failed, although the grant was there by {} and could not have ended before {}: {shown}",
            grant.seen.0,
            grant.acts(),
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

/// How many keys were read after everything else that concerned them, of how many.
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
    use crate::history::History;

    /// Goal: a's library uses its session again for an acquire that a gives up. It is granted, c sees that, and the library
    /// gives it back in the background, which is on no record: nothing is lost.
    #[test]
    fn what_was_given_up_may_be_given_back_under_no_name() {
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
