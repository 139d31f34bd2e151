//! The fenced resource, where fencing takes effect, in O(n log n).
//!
//! # What it checks
//!
//! 1. Accepted tokens never fall: an access that begins after another was accepted is not accepted
//!    with a lower token, unless both only read.
//! 2. Only the client that was granted a token uses it, for a key of the grant, and not before it can
//!    have been granted. A client with a shared grant only reads.
//! 3. The resource refuses a token only if a higher one may have been presented before, for reads one of
//!    a write; otherwise it locked out the true holder.
//!
//! So the resource keeps two numbers for each key: the highest token, and the highest of a write
//! (docs/fencing.md, "Several holders"). Permits of a semaphore fence nothing.
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
use crate::{Call, Key, Mode, Refusal};

/// The checker's name.
pub const NAME: &str = "resource";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut resources: HashMap<&Key, Vec<Presented>> = HashMap::new();
    let mut accesses = 0;
    let mut violations = Vec::new();
    for (index, operation) in facts.history.operations.iter().enumerate() {
        if let Call::Access { key, token, reads } = &operation.call {
            accesses += 1;
            let presented = Presented { index, token: *token, reads: *reads };
            resources.entry(key).or_default().push(presented);
            violations.extend(used_by_its_client(facts, presented, key));
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

/// An access to a resource.
#[derive(Clone, Copy)]
struct Presented {
    index: OperationIndex,
    token: u64,
    reads: bool,
}

/// The highest tokens of some accesses, each with its operation.
#[derive(Clone, Copy, Default)]
struct Highest {
    of_all: Option<(u64, OperationIndex)>,
    of_writes: Option<(u64, OperationIndex)>,
}

impl Highest {
    fn add(&mut self, Presented { index, token, reads }: Presented) {
        self.of_all = self.of_all.max(Some((token, index)));
        if !reads {
            self.of_writes = self.of_writes.max(Some((token, index)));
        }
    }

    /// The access with a higher token that fences this one.
    fn fences(self, Presented { token, reads, .. }: Presented) -> Option<OperationIndex> {
        let highest = if reads { self.of_writes } else { self.of_all };
        highest.filter(|(highest, _)| *highest > token).map(|(_, index)| index)
    }
}

fn tokens_never_fall(facts: &Facts<'_>, accesses: &[Presented], violations: &mut Vec<Violation>) {
    // The operations are in the order of their invocations.
    let accepted = || accesses.iter().filter(|access| facts.operation(access.index).answer().is_some());
    let mut done: Vec<_> = accepted().copied().collect();
    done.sort_by_key(|access| facts.operation(access.index).completed());
    let mut done = done.into_iter().peekable();
    let mut highest = Highest::default();
    for &presented in accepted() {
        let access = facts.operation(presented.index);
        while let Some(before) = done.next_if(|before| facts.operation(before.index).completed() < access.invoked) {
            highest.add(before);
        }
        if let Some(before) = highest.fences(presented) {
            let (token, before) = (presented.token, facts.operation(before));
            violations.push(Violation(format!(
                "accepted tokens never fall, but token {token} passed after a higher one: {before}; {access}"
            )));
        }
    }
}

fn used_by_its_client(facts: &Facts<'_>, presented: Presented, key: &Key) -> Option<Violation> {
    let Presented { index, token, reads } = presented;
    let access = facts.operation(index);
    let grant = facts.grant_of(token)?;
    let acquire = facts.operation(grant.acquire?);
    let is_of_key = facts.key_named(key).is_some_and(|key| grant.keys.contains(&key));
    if !is_of_key {
        return Some(Violation(format!(
            "a token is for the key that it was granted for, but {access} has the token of {acquire}"
        )));
    }
    if acquire.client != access.client {
        return Some(Violation(format!(
            "a token is used by the client that it was granted to, but {access} has the token of {acquire}"
        )));
    }
    if !reads && matches!(acquire.call, Call::Acquire { mode: Mode::Shared, .. }) {
        return Some(Violation(format!("a shared grant is for reading, but {access} has the token of {acquire}")));
    }
    // A client that presents a token has been granted it before.
    (access.invoked < grant.not_before).then(|| {
        Violation(format!("a token is used after it was granted, but {access} came before it was asked for: {acquire}"))
    })
}

fn refusals_follow_higher_tokens(facts: &Facts<'_>, accesses: &[Presented], violations: &mut Vec<Violation>) {
    let is_refused = |access: &&Presented| facts.operation(access.index).refusal() == Some(&Refusal::Refused);
    let mut refused: Vec<Presented> = accesses.iter().filter(is_refused).copied().collect();
    refused.sort_by_key(|access| facts.operation(access.index).completed());
    let mut presented = accesses.iter().peekable();
    let mut highest = Highest::default();
    for access in refused {
        let operation = facts.operation(access.index);
        while let Some(before) =
            presented.next_if(|before| facts.operation(before.index).invoked <= operation.completed())
        {
            highest.add(*before);
        }
        if highest.fences(access).is_none() {
            violations.push(Violation(format!(
                "a token is refused only after a higher one, but none had been presented when it was refused: {operation}"
            )));
        }
    }
}
