//! The fenced resource, where fencing takes effect, in O(n log n).
//!
//! # What it checks
//!
//! 1. Accepted tokens never fall: an access that begins after another was accepted is not accepted
//!    with a lower token.
//! 2. Only the client that was granted a token uses it, and not before it can have been granted.
//! 3. The resource refuses a token only if a higher one may have been presented before; otherwise
//!    it locked out the true holder.
//!
//! # Why it is sound
//!
//! The resource handles each access at a moment between its invocation and its completion. Check 1
//! compares accesses of which one was completed before the other began; check 2 compares an access
//! with the earliest moment of the grant, by `facts.rs`; check 3 looks for any access that
//! presented a higher token, whatever its outcome, and began before the refusal was answered.
//!
//! # What it does not find
//!
//! Accesses that are not recorded, and the order of accesses that overlap: if the resource itself
//! keeps the record, with one moment for both ends of an access, everything is in order.

use std::collections::HashMap;

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Call, Key, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "resource";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut resources: HashMap<&Key, Vec<(OperationIndex, u64)>> = HashMap::new();
    let mut accesses = 0;
    let mut violations = Vec::new();
    for (place, operation) in facts.history.operations.iter().enumerate() {
        if let Call::Access { key, token } = &operation.call {
            accesses += 1;
            resources.entry(key).or_default().push((place, *token));
            violations.extend(used_by_its_client(facts, place, *token, key));
        }
    }
    let mut names: Vec<_> = resources.keys().copied().collect();
    names.sort();
    for name in names {
        tokens_never_fall(facts, &resources[name], &mut violations);
        refusals_follow_higher_tokens(facts, &resources[name], &mut violations);
    }
    violations.truncate(MOST);
    let of = count(resources.len(), "resource");
    Verdict {
        checker: NAME,
        checked: format!("{accesses} access{} to {of}", if accesses == 1 { "" } else { "es" }),
        violations,
    }
}

fn tokens_never_fall(facts: &Facts<'_>, accesses: &[(OperationIndex, u64)], violations: &mut Vec<Violation>) {
    // The operations are in the order of their invocations.
    let accepted = || accesses.iter().filter(|(place, _)| facts.operation(*place).answer().is_some());
    let mut done: Vec<_> = accepted().copied().collect();
    done.sort_by_key(|(place, _)| facts.operation(*place).completed());
    let mut done = done.into_iter().peekable();
    let mut highest: Option<(u64, OperationIndex)> = None;
    for &(place, token) in accepted() {
        let access = facts.operation(place);
        while let Some((before, token)) =
            done.next_if(|(before, _)| facts.operation(*before).completed() < access.invoked)
        {
            highest = highest.max(Some((token, before)));
        }
        if let Some((_, before)) = highest.filter(|(highest, _)| *highest > token) {
            let before = facts.operation(before);
            violations.push(Violation(format!(
                "accepted tokens never fall, but token {token} passed after a higher one: {before}; {access}"
            )));
        }
    }
}

fn used_by_its_client(facts: &Facts<'_>, place: OperationIndex, token: u64, key: &Key) -> Option<Violation> {
    let access = facts.operation(place);
    let grant = facts.grant_of(token)?;
    let acquire = facts.operation(grant.acquire?);
    if facts.keys[grant.key] != key {
        return Some(Violation(format!(
            "a token is for the key that it was granted for, but {access} has the token of {acquire}"
        )));
    }
    if acquire.client != access.client {
        return Some(Violation(format!(
            "a token is used by the client that it was granted to, but {access} has the token of {acquire}"
        )));
    }
    // A client that presents a token has been granted it before.
    (access.invoked < grant.not_before).then(|| {
        Violation(format!("a token is used after it was granted, but {access} came before it was asked for: {acquire}"))
    })
}

fn refusals_follow_higher_tokens(
    facts: &Facts<'_>,
    accesses: &[(OperationIndex, u64)],
    violations: &mut Vec<Violation>,
) {
    let mut refused: Vec<_> =
        accesses.iter().filter(|(place, _)| facts.operation(*place).refusal() == Some(&Refusal::Refused)).collect();
    refused.sort_by_key(|(place, _)| facts.operation(*place).completed());
    let invoked = |place: OperationIndex| -> Time { facts.operation(place).invoked };
    let mut presented = accesses.iter().peekable();
    let mut highest = 0;
    for &&(place, token) in &refused {
        let access = facts.operation(place);
        while let Some((_, token)) = presented.next_if(|(place, _)| invoked(*place) <= access.completed()) {
            highest = highest.max(*token);
        }
        if highest <= token {
            violations.push(Violation(format!(
                "a token is refused only after a higher one, but none had been presented when it was refused: {access}"
            )));
        }
    }
}
