//! Acknowledged operations are not lost, in O(n log n) if few sessions hold a lock at once.
//!
//! # What it checks
//!
//! 1. From the moment a client was shown a grant until something may have ended it, every
//!    linearizable read of a key of the grant finds it among the holders.
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
//! With the bounds of `facts.rs`: a read found the holders that it shows at a moment m, between its
//! invocation and its completion. If a grant u of the key was seen before, all grants with tokens t
//! ≤ u had begun: g(t) ≤ g(u) ≤ `seen(u)` < m. If one of them has `lasts(t)` > m, it was a holder
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

use super::facts::{Facts, Grant};
use super::lasting::Lasting;
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
        violations.extend(holder_not_shown(facts, &periods, operation));
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

/// The grants of each key in the order of their tokens.
struct Periods<'f> {
    keys: Vec<PeriodsOfKey<'f>>,
}

struct PeriodsOfKey<'f> {
    grants: Vec<&'f Grant>,
    /// By when each grant, and all before it, had begun.
    begun: Vec<Time>,
    lasting: Lasting,
}

impl<'f> Periods<'f> {
    fn of(facts: &'f Facts<'_>) -> Periods<'f> {
        let keys = facts.grants_by_key().into_iter().map(|grants| {
            let mut latest = Time::NEVER;
            let mut begun: Vec<Time> = grants.iter().map(|grant| grant.seen.0).collect();
            for begun in begun.iter_mut().rev() {
                latest = latest.min(*begun);
                *begun = latest;
            }
            let lasting = Lasting::new(grants.iter().map(|grant| grant.lasts()));
            PeriodsOfKey { grants, begun, lasting }
        });
        Periods { keys: keys.collect() }
    }

    /// The grants that were held throughout `from..=to`.
    fn holding(&self, key: usize, from: Time, to: Time) -> impl Iterator<Item = &'f Grant> {
        let periods = &self.keys[key];
        let begun = periods.begun.partition_point(|begun| *begun < from);
        periods.lasting.past(begun, to).map(|index| periods.grants[index])
    }
}

fn holder_not_shown(facts: &Facts<'_>, periods: &Periods<'_>, operation: &Operation) -> Option<Violation> {
    let Call::Read { key, stale: false } = &operation.call else { return None };
    let Some(Answer::Lock { holders, .. }) = operation.answer() else { return None };
    let mut holding = periods.holding(facts.key_named(key)?, operation.invoked, operation.completed());
    let grant = holding.find(|grant| holders.iter().all(|holder| holder.token != grant.token))?;
    let found = if holders.is_empty() { "found the lock free" } else { "did not find it" };
    let shown = facts.operation(grant.acquire.unwrap_or(grant.seen.1));
    Some(Violation(format!(
        "a grant stays until something ends it, but {operation} {found}, while token {}, shown by {}, could not have ended before {}: {shown}",
        grant.token,
        grant.seen.0,
        grant.lasts(),
    )))
}

fn holder_refused(facts: &Facts<'_>, operation: &Operation) -> Option<Violation> {
    let Some(Refusal::NotHolder) = operation.refusal() else { return None };
    let (token, session) = match &operation.call {
        Call::Release { token, session, .. } => (token, Some(session)),
        Call::Break { token, .. } => (token, None),
        _ => return None,
    };
    let grant = facts.grant_of(*token)?;
    let keys = facts.keys_of(operation);
    // A release names all keys of the grant, a break one of them.
    let same = match session {
        Some(session) => {
            grant.session == facts.session_named(session)
                && keys == grant.keys
                && (grant.is_whole || !facts.has_several)
        }
        None => keys.iter().all(|key| grant.keys.contains(key)),
    };
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
        facts.sessions[session].gone.filter(|(gone, _)| *gone < operation.invoked).map(|(_, index)| (session, index))
    };
    let closed_before = |session: usize| {
        facts.sessions[session]
            .closed
            .filter(|(closed, _)| *closed < operation.invoked)
            .map(|(_, index)| (session, index))
    };
    let (session, index) = match (&operation.call, operation.answer(), operation.refusal()) {
        (Call::Acquire { .. } | Call::KeepAlive { .. } | Call::Release { .. } | Call::Proclaim { .. }, Some(_), _) => {
            gone_before(facts.session_of(operation)?)?
        }
        (Call::Acquire { .. }, _, Some(Refusal::Held { token: Some(token) })) => {
            let grant = facts.grant_of(*token)?;
            // Of many due holders that share a lock, a refusal may name one.
            gone_before(grant.session.filter(|_| facts.is_exclusive(grant))?)?
        }
        (Call::Read { stale: false, .. }, Some(Answer::Lock { holders, queue, .. }), _) => {
            let mut shown = holders.iter().map(|holder| &holder.session).chain(queue);
            shown.find_map(|session| closed_before(facts.session_named(session)?))?
        }
        _ => return None,
    };
    Some(Violation(format!(
        "a session that is gone stays gone, but session {} was there again: {}; {operation}",
        facts.sessions[session].name,
        facts.operation(index),
    )))
}

/// Number of keys whose last operation is a read, and number of keys.
fn final_reads(facts: &Facts<'_>) -> (usize, usize) {
    let mut last = vec![(Time(0), None); facts.keys.len()];
    for operation in &facts.history.operations {
        for key in facts.keys_of(operation) {
            let (done, read) = &mut last[key];
            match (&operation.call, &operation.end) {
                (Call::Access { .. } | Call::Read { stale: true, .. }, _) => {}
                (Call::Read { .. }, Some(_)) if operation.answer().is_some() => {
                    *read = (*read).max(Some(operation.invoked))
                }
                (_, end) => *done = (*done).max(end.as_ref().map_or(operation.invoked, |(time, _)| *time)),
            }
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
