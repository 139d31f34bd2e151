//! No early expiry: a session expires only after its deadline, and its deadline never moves back.

use super::{Check, require};
use crate::lock::{Event, LockTable};
use crate::raft::Stamp;

/// Compares a table before and after an entry at `at` with these events.
pub fn no_early_expiry(before: &LockTable, at: Stamp, events: &[Event], after: &LockTable) -> Check {
    let name = "no early expiry";
    for event in events {
        if let Event::Expired { session, deadline } = event {
            let promised = before.session(*session).map(|session| session.deadline);
            require!(name, promised == Some(*deadline), "session {session} expired at {deadline}, not at {promised:?}");
            require!(name, *deadline < at, "session {session} expired at {at}, not after its deadline {deadline}");
        }
    }
    for (&id, session) in before.sessions() {
        let Some(now) = after.session(id) else { continue };
        require!(name, now.deadline >= session.deadline, "the deadline of session {id} moved back to {}", now.deadline);
    }
    Ok(())
}
