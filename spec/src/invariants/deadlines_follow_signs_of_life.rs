//! No early expiry, by the sessions: a sign of life moves a deadline to a full TTL from now, and nothing else moves it.

use super::{Check, EntryStep, Property};
use crate::lock::{Command, Event, Reply};
use crate::require;

/// Checks that a deadline moves only for signs of life of its own session (a grant, an acquire of
/// what it holds, a keepalive), and then to a full TTL from now.
pub fn deadlines_follow_signs_of_life(step: &EntryStep<'_>) -> Check {
    let EntryStep { at, command, outcome, .. } = step;
    let is_granted =
        |id| outcome.events.iter().any(|event| matches!(event, Event::Granted { session, .. } if *session == id));
    let asks = |id| match command {
        Some(Command::KeepAlive { sessions }) => sessions.contains(&id),
        Some(Command::Acquire { session, sequence, .. }) => {
            let is_granted_now = matches!(outcome.reply, Some(Reply::Granted { .. }));
            *session == id && is_granted_now && !step.is_repeated(id, *sequence)
        }
        _ => false,
    };
    for (id, known, session) in step.sessions_after() {
        let anew = at.plus(session.ttl.0);
        let deadline = match known {
            Some(known) if !is_granted(id) && !asks(id) || !step.lives(id) => known.deadline,
            _ => anew,
        };
        require!(
            Property::NoEarlyExpiry,
            session.deadline == deadline,
            "session {id} should live until {deadline}, not until {}",
            session.deadline
        )?;
    }
    Ok(())
}
