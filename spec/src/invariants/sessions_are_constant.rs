//! Table soundness, by the sessions: a session keeps what it was opened with, and one that was opened for a lock
//! ends with its last claim.

use super::{Check, EntryStep, Property};
use crate::lock::{Owner, Principal, Session, Ttl};
use crate::require;

/// Checks that a session keeps the attributes it was opened with, and that a session opened for a lock
/// ends with its last claim.
pub fn sessions_are_constant(step: &EntryStep<'_>) -> Check {
    for (id, known, session) in step.sessions_after() {
        let is_same = known.is_none_or(|known| attributes(known) == attributes(session));
        require!(Property::TableSoundness, is_same, "session {id} has become {session:?}")?;
        let has_reason = !session.once || !session.claims().is_empty();
        require!(Property::TableSoundness, has_reason, "session {id} lives on without the lock it was opened for")?;
    }
    Ok(())
}

fn attributes(session: &Session) -> (&Owner, &Principal, Ttl, bool) {
    (&session.owner, &session.principal, session.ttl, session.once)
}
