//! Mutual exclusion, by the tables: the events suffice to reconstruct who holds which lock.

use super::{Check, EntryStep, Holders, Property, mutual_exclusion};
use crate::lock::{Event, Key, LockTable, Mode, SessionId, Token};
use crate::require;

/// Checks that the events suffice to reconstruct the holders.
pub fn events_match_holders(step: &EntryStep<'_>) -> Check {
    let is_about_holders = |event: &Event| matches!(event, Event::Granted { .. } | Event::Released { .. });
    if !step.outcome.events.iter().any(is_about_holders) {
        let is_same = holders(step.before).eq(holders(step.after));
        return require!(Property::MutualExclusion, is_same, "the holders changed, and no event reports it");
    }
    let mut reported = Holders::new();
    for (key, grant) in holders(step.before) {
        reported.entry(key.clone()).or_default().push(grant);
    }
    mutual_exclusion(&mut reported, &step.outcome.events)?;
    let is = reported.iter().flat_map(|(key, grants)| grants.iter().map(move |grant| (key, *grant)));
    let events_match = holders(step.after).eq(is);
    require!(Property::MutualExclusion, events_match, "the events leave the holders {reported:?}")
}

/// The holders of all keys, in the order of their grants.
fn holders(table: &LockTable) -> impl Iterator<Item = (&Key, (SessionId, Token, Mode))> {
    table.locks().iter().flat_map(|(key, lock)| {
        lock.holders.iter().map(move |holder| (key, (holder.session, holder.token, holder.mode)))
    })
}
