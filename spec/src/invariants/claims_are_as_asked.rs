//! Replies match the table, by the claims: a claim has the mode and the keys of its request, and the number of the last
//! one.

use super::{Check, ClaimView, EntryStep, Property};
use crate::lock::{Command, Outcome, Reply};
use crate::require;

/// Checks that a claim, held or waiting, keeps its mode, its keys, and the number of the last request for
/// it, which identifies repetitions; a new claim has those of its request. A refused acquire changes no
/// claim. A claim that ends as time passes, before the command is executed, is none that is kept.
pub fn claims_are_as_asked(step: &EntryStep<'_>) -> Check {
    let request = match step.command {
        Some(Command::Acquire { request, .. } | Command::AcquireOnce { request, .. }) => Some(request),
        _ => None,
    };
    for key in step.after.locks().keys() {
        for claim in ClaimView::all(step.after, key) {
            let id = claim.session;
            let known = ClaimView::of(step.found(), id, key);
            let number = known.and_then(|known| known.sequence);
            let given = match step.command {
                Some(Command::Acquire { session, sequence, request })
                    if *session == id
                        && request.keys.iter().any(|asked| asked == key)
                        && step.lives(id)
                        && !step.is_repeated(id, *sequence)
                        && !is_refused(step.outcome) =>
                {
                    sequence.or(number)
                }
                _ => number,
            };
            require!(
                Property::RepliesMatchTable,
                claim.sequence == given,
                "the claim of {id} on {key} is that of operation {given:?}, not {:?}",
                claim.sequence
            )?;
            let asked = request.map(|request| (request.mode, request.keys.as_slice()));
            let asked = known.map(|known| (known.mode, known.keys)).or(asked);
            let is_as_asked = asked == Some((claim.mode, claim.keys));
            require!(Property::RepliesMatchTable, is_as_asked, "{id} asked for {asked:?} at {key}, and has {claim:?}")?;
        }
    }
    Ok(())
}

/// Whether the reply says that an acquire does not fit the rules, or the claims that there are.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome.reply, Some(Reply::Denied | Reply::OtherSize { .. } | Reply::OtherClaim { .. }))
}
