//! Exactly once, by the sessions: each records the greatest number of its operations.

use super::{Check, EntryStep, Property};
use crate::lock::{Command, Writer};
use crate::require;

/// Checks that a session records its greatest sequence number, without which the table could not
/// recognise a repetition.
pub fn sequences_are_recorded(step: &EntryStep<'_>) -> Check {
    let done = match step.command {
        Some(
            Command::Acquire { session, sequence, .. }
            | Command::Release { session, sequence, .. }
            | Command::Proclaim { session, sequence, .. }
            | Command::Transact { writer: Writer::Session { session, sequence }, .. },
        ) => Some((*session, *sequence)),
        _ => None,
    };
    for (id, known, session) in step.sessions_after() {
        let known = known.and_then(|known| known.last);
        let last =
            done.filter(|(does, _)| *does == id && step.lives(id)).map_or(known, |(_, sequence)| known.max(sequence));
        require!(
            Property::ExactlyOnce,
            session.last == last,
            "session {id} did operation {last:?}, and knows of {:?}",
            session.last
        )?;
    }
    Ok(())
}
