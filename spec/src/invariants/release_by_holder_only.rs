//! Release by holder only: a release or a break drops the claim that it names, and no other one.

use super::{Check, ClaimView, EntryStep, Property};
use crate::lock::Command;
use crate::require;

/// Checks that a release or a break drops only the claim that it names: if the session has no such claim
/// on exactly these keys, all claims on all keys stay as they are. Otherwise the other claims stay,
/// as the order of the queues demands.
pub fn release_by_holder_only(step: &EntryStep<'_>) -> Check {
    let meant = match step.command {
        Some(Command::Release { session, keys, claim, .. }) => {
            EntryStep::has_claim(&step.found, *session, keys, *claim)
        }
        Some(Command::Break { key, token, .. }) => {
            ClaimView::all(&step.found, key).any(|claim| claim.token == Some(*token))
        }
        _ => return Ok(()),
    };
    require!(
        Property::ReleaseByHolderOnly,
        meant || step.found.locks() == step.after.locks(),
        "{:?} means no claim, and made {:?} into {:?}",
        step.command,
        step.found.locks(),
        step.after.locks()
    )
}
