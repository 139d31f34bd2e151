//! The values of grants: each is the one that its holder gave it last.
//!
//! # What it checks
//!
//! 1. A read shows a grant with a value that it was given: by its acquire, or by a proclamation under its
//!    token, which began before the read was answered. It shows none if the acquire gave it none.
//! 2. A read that is not stale shows no value that was replaced before it began: by a value that was given
//!    after that one was answered, and answered itself. A grant that has a value does not lose it.
//! 3. While the grant certainly lasts, its holder's proclamation is not refused.
//!
//! # Why it is sound
//!
//! The service gives a grant a value at one moment between the request's invocation and its completion;
//! a request that was sent more than once without a number may do so at any later moment, again. An acquire
//! without an answer may have made the grant if it may be of the same session, and gives its value at any
//! later moment. An acquire without a value of what is held keeps the value. Check 3 has the bounds of
//! grants from `facts.rs`.
//!
//! # What it does not find
//!
//! Stale reads that are too old, values that appear at one of several keys only, and a value that a read
//! shows again after another read has shown its successor.

use std::collections::HashMap;

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::{Answer, Call, Holder, Key, Operation, Refusal, Session, Time};

/// The checker's name.
pub const NAME: &str = "values";

/// A request that gave a grant a value, or may have: `None` if an acquire gave it none.
#[derive(Clone, Copy, Debug)]
struct Given<'h> {
    value: Option<&'h str>,
    from: Time,
    /// When it was answered; [`Time::NEVER`] without an answer.
    to: Time,
}

/// The values that grants were given.
#[derive(Default)]
struct Values<'h> {
    by_token: HashMap<u64, Vec<Given<'h>>>,
    /// By acquires of each key that may have been granted without an answer; `None` stands for a session that
    /// is not known.
    unanswered: HashMap<(&'h Key, Option<&'h Session>), Vec<Given<'h>>>,
}

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let values = Values::of(facts);
    let (mut given, mut shown, mut violations) = (0, 0, Vec::new());
    for operation in &facts.history.operations {
        match (&operation.call, operation.answer()) {
            (Call::Proclaim { key, session, token, .. }, _) => {
                given += 1;
                violations.extend(holder_is_not_refused(facts, key, session, *token, operation));
            }
            (Call::Acquire { value: Some(_), .. }, _) => given += 1,
            (Call::Read { key, stale }, Some(Answer::Lock { holders, .. })) => {
                shown += holders.iter().filter(|holder| holder.value.is_some()).count();
                violations
                    .extend(holders.iter().filter_map(|holder| values.judge(facts, key, holder, operation, *stale)));
            }
            _ => {}
        }
    }
    violations.truncate(MOST);
    let checked = format!("{} that were given, and {shown} in reads", count(given, "value"));
    Verdict { checker: NAME, checked, violations }
}

impl<'h> Values<'h> {
    fn of(facts: &Facts<'h>) -> Values<'h> {
        let mut values = Values::default();
        for operation in &facts.history.operations {
            if operation.refusal().is_some() {
                continue;
            }
            let given = |value| Given { value, from: operation.invoked, to: operation.completed() };
            match (&operation.call, operation.answer()) {
                (Call::Proclaim { token, value, number, .. }, _) => {
                    let may_be_done_again = operation.was_disconnected() && number.is_none();
                    let to = if may_be_done_again { Time::NEVER } else { operation.completed() };
                    values.by_token.entry(*token).or_default().push(Given { to, ..given(Some(&**value)) });
                }
                (Call::Acquire { keys, session, number, value, .. }, answer) => {
                    let given = given(value.as_deref());
                    if let Some(Answer::Granted { token, .. }) = answer {
                        values.by_token.entry(*token).or_default().push(given);
                    }
                    let is_done_once = session.is_some() && number.is_some();
                    if answer.is_none() || operation.was_disconnected() && !is_done_once {
                        // Each sending may have made another grant, at any time.
                        let given = Given { to: Time::NEVER, ..given };
                        for key in keys.as_slice() {
                            values.unanswered.entry((key, session.as_ref())).or_default().push(given);
                        }
                    }
                }
                _ => {}
            }
        }
        values
    }

    /// What is wrong with the value of a holder that a read shows.
    fn judge(
        &self,
        facts: &Facts<'_>,
        key: &Key,
        holder: &Holder,
        read: &Operation,
        is_stale: bool,
    ) -> Option<Violation> {
        let known = self.by_token.get(&holder.token).map(Vec::as_slice).unwrap_or_default();
        let ids = facts.session_named(&holder.session).zip(facts.key_named(key));
        let may_be_nameless = ids.is_none_or(|(session, key)| facts.may_be_nameless(session, key, read.completed()));
        let sessions = [Some(Some(&holder.session)), may_be_nameless.then_some(None)];
        let unanswered =
            sessions.iter().flatten().filter_map(|session| self.unanswered.get(&(key, *session))).flatten();
        let mut requests = known.iter().chain(unanswered).filter(|given| given.from <= read.completed()).peekable();
        // Others judge a grant that nothing asked for.
        let is_asked_for = requests.peek().is_some();
        let mut sources = requests.filter(|given| given.value == holder.value.as_deref()).peekable();
        if sources.peek().is_none() {
            return (holder.value.is_some() || is_asked_for).then(|| {
                Violation(format!(
                    "a grant has the value that its holder gave it, but nothing gave that of token {} this one: {read}",
                    holder.token
                ))
            });
        }
        let replaces = |source: &Given<'_>, other: &Given<'_>| {
            other.value.is_some() && source.to < other.from && other.to < read.invoked
        };
        let is_replaced = |source: &Given<'_>| known.iter().any(|other| replaces(source, other));
        let was_given = |other: &Given<'_>| other.value.is_some() && other.to < read.invoked;
        let is_lost = holder.value.is_none() && known.iter().any(was_given);
        (!is_stale && (is_lost || sources.all(is_replaced))).then(|| {
            Violation(format!(
                "a read shows the value that was given last, but that of token {} had been replaced: {read}",
                holder.token
            ))
        })
    }
}

fn holder_is_not_refused(
    facts: &Facts<'_>,
    key: &Key,
    session: &Session,
    token: u64,
    proclamation: &Operation,
) -> Option<Violation> {
    let grant = facts.grant_of(token)?;
    let is_own = grant.session == facts.session_named(session) && grant.keys.contains(&facts.key_named(key)?);
    let is_refused = is_own
        && proclamation.refusal() == Some(&Refusal::NotHolder)
        && grant.seen.0 < proclamation.invoked
        && proclamation.completed() < grant.may_end;
    is_refused.then(|| {
        Violation(format!(
            "a holder's proclamation is not refused, but this one was, although its grant could not have ended before \
             {}: {proclamation}",
            grant.may_end
        ))
    })
}

#[cfg(test)]
mod tests;
