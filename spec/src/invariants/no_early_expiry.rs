//! No early expiry: a session lives until its deadline, which never moves back. Before its deadline
//! it ends only by its own command, by an operator's break, or when the access rules deny it the one
//! claim for which it was opened; after it, the session is due: it cannot act, its locks are passed on
//! to the commands that ask for them, and it ends in turn.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Check, EntryStep, Property, keys_asked_for, side_by_side};
use crate::lock::{Command, Event, Holder, Key, Keys, LockTable, Session, SessionId};
use crate::raft::Stamp;
use crate::require;

const NAME: Property = Property::NoEarlyExpiry;

/// Compares the table before and after an entry, and its events.
pub fn no_early_expiry(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, at, command, outcome, after, .. } = *step;
    let events = outcome.events.as_slice();
    for event in events {
        if let Event::Expired { session, deadline } = event {
            let promised = before.session(*session).map(|session| session.deadline);
            require!(
                NAME,
                promised == Some(*deadline),
                "session {session} expired at {deadline}, not at {promised:?}"
            )?;
            require!(NAME, *deadline < at, "session {session} expired at {at}, not after its deadline {deadline}")?;
        }
        if let Event::Expired { session, .. } | Event::Closed { session } = event {
            let ended = before.session(*session).is_some() && after.session(*session).is_none();
            require!(NAME, ended, "session {session} was said to end, and did not")?;
        }
        if let Event::Withdrawn { key, session } = event {
            let is_due = before.session(*session).is_some_and(|session| session.deadline < at);
            require!(
                NAME,
                is_due == events.iter().any(|event| blames_deadline(event, *session)),
                "session {session} lost its queue position at {key}, and the events are wrong about whether it was due"
            )?;
        }
        if let Event::Granted { key, session, .. } = event {
            let is_due = before.session(*session).is_some_and(|session| session.deadline < at);
            require!(NAME, !is_due, "session {session} is due, and was granted {key}")?;
        }
    }
    for (&id, was, is) in side_by_side(before.sessions(), after.sessions()) {
        let Some(session) = was else { continue };
        if let Some(now) = is {
            stays(at, id, session, now)?;
            continue;
        }
        let expired = events.iter().any(|event| matches!(event, Event::Expired { session, .. } if *session == id));
        let closed = events.iter().filter(|event| matches!(event, Event::Closed { session } if *session == id)).count();
        require!(NAME, expired == (session.deadline < at), "session {id} is gone, and did not expire when it was due")?;
        require!(NAME, closed == usize::from(!expired), "session {id} was closed {closed} times")?;
        require!(
            NAME,
            expired || ends_itself(before, command, id) || ends_denied(events, id, session),
            "session {id} ended early, and not by its own command"
        )?;
    }
    sweep_is_in_order(before, at, command, events)?;
    command.map_or(Ok(()), |command| due_holders_end(before, at, command, events, after))
}

/// The due holders of the keys that a command acquires or releases end before it takes effect: key by
/// key, in the order of their grants, and at most as many as a sweep ends.
fn due_holders_end(before: &LockTable, at: Stamp, command: &Command, events: &[Event], after: &LockTable) -> Check {
    let is_due = |table: &LockTable, id| table.session(id).is_some_and(|session| session.deadline < at);
    let keys = keys_asked_for(command);
    let mut seen = BTreeSet::new();
    let is_first = |id: &SessionId| is_due(before, *id) && seen.insert(*id);
    let due: Vec<SessionId> = keys.iter().flat_map(|key| holders(before, key)).filter(is_first).collect();
    let ended = due.iter().take_while(|id| expired(events).any(|(_, expired)| expired == **id)).count();
    let is_full =
        |ids: &[SessionId]| ids.iter().map(|id| ending_cost(before, *id)).sum::<u64>() >= before.sweep_cost().max(1);
    let stays = keys.iter().flat_map(|key| holders(after, key)).find(|id| is_due(after, *id));
    let has_room = stays.is_some() && !is_full(&due[..ended]);
    require!(NAME, !has_room, "session {stays:?} is due, and holds what was asked for")?;
    let was_full = ended.checked_sub(1).is_some_and(|others| is_full(&due[..others]));
    require!(NAME, !was_full, "{ended} due holders of {keys:?} ended in one entry")
}

fn holders(table: &LockTable, key: &Key) -> impl Iterator<Item = SessionId> {
    table.lock(key).into_iter().flat_map(|lock| lock.holders.iter().map(|holder| holder.session))
}

/// The sessions that expired, in order, with their deadlines.
fn expired(events: &[Event]) -> impl Iterator<Item = (Stamp, SessionId)> {
    events.iter().filter_map(|event| match event {
        Event::Expired { session, deadline } => Some((*deadline, *session)),
        _ => None,
    })
}

/// Whether the event says that the deadline of the session has passed.
fn blames_deadline(event: &Event, id: SessionId) -> bool {
    matches!(event, Event::Expired { session, .. } | Event::Overdue { session, .. } if *session == id)
}

/// A session that remains keeps its promised deadline; a session that is due can only lose claims.
fn stays(at: Stamp, id: SessionId, session: &Session, now: &Session) -> Check {
    let (was, is) = (session.deadline, now.deadline);
    require!(NAME, is >= was, "the deadline of session {id} moved back to {is}")?;
    let does_nothing = is == was && now.last == session.last && now.claims().iter().all(|key| session.claims_key(key));
    require!(NAME, was >= at || does_nothing, "session {id} has acted after its deadline {was}")
}

/// A no-op ends due sessions, at least one, and skips none: first the first holders of locks with
/// waiters, then the others, in the order of their deadlines. A command ends only the sessions that
/// block it. Sessions opened for one lock also end when that lock passes them over.
fn sweep_is_in_order(before: &LockTable, at: Stamp, command: Option<&Command>, events: &[Event]) -> Check {
    let due = before.sessions().iter().filter(|(_, session)| session.deadline < at);
    let mut due: Vec<_> = due.map(|(&id, session)| (session.deadline, id)).collect();
    due.sort_unstable_by_key(|&(deadline, id)| (!is_contended_holder(before, id), deadline, id));
    let is_in_turn = |position: usize, id: SessionId| match command {
        None => position < in_turn(&due, events),
        Some(command) => is_blocking(before, command, id),
    };
    if command.is_none() {
        let ended = in_turn(&due, events);
        require!(NAME, ended > 0 || due.is_empty(), "no session expired, but {due:?} are due")?;
        let work: u64 = due[..ended].iter().map(|&(_, id)| ending_cost(before, id)).sum();
        let is_full = ended == due.len() || work >= before.sweep_cost();
        require!(NAME, is_full, "a sweep ended {ended} of {due:?}, and had room for more")?;
    }
    for (position, (_, id)) in expired(events).enumerate() {
        let was_withdrawn =
            events.iter().any(|event| matches!(event, Event::Withdrawn { session, .. } if *session == id));
        let is_once = before.session(id).is_some_and(|session| session.once);
        let may_end = is_in_turn(position, id) || was_withdrawn && is_once;
        require!(NAME, may_end, "session {id} expired, and it was not its turn")?;
    }
    let times = |id| expired(events).filter(|(_, expired)| *expired == id).count();
    require!(NAME, expired(events).all(|(_, id)| times(id) == 1), "a session expired twice")
}

/// How many of the due sessions expired in their order, before any other.
fn in_turn(due: &[(Stamp, SessionId)], events: &[Event]) -> usize {
    expired(events).zip(due).take_while(|(expired, due)| expired == *due).count()
}

/// The work of ending a session: the session, its claims, and the waiters for its locks.
pub(super) fn ending_cost(table: &LockTable, id: SessionId) -> u64 {
    let claims = table.sessions()[&id].claims();
    let holds = |key: &&Key| holders(table, key).any(|holder| holder == id);
    let held = claims.iter().filter(holds).filter_map(|key| table.lock(key));
    (1 + claims.len() + held.map(|lock| lock.queue.len()).sum::<usize>()) as u64
}

/// Whether the session is the first holder of a lock that others wait for.
fn is_contended_holder(table: &LockTable, id: SessionId) -> bool {
    let has_waiters = |key: &&Key| table.lock(key).is_some_and(|lock| !lock.queue.is_empty());
    let mut contended = table.sessions()[&id].claims().iter().filter(has_waiters);
    contended.any(|key| holders(table, key).next() == Some(id))
}

/// Whether the command closes the session, acquires or releases a key that the session holds, or
/// breaks its grant.
fn is_blocking(before: &LockTable, command: &Command, id: SessionId) -> bool {
    let held = || keys_asked_for(command).iter().any(|key| holders(before, key).any(|holder| holder == id));
    let breaks = || broken(before, command).is_some_and(|held| held.session == id);
    held() || breaks() || matches!(command, Command::Close { session } if *session == id)
}

/// Whether the command ends the session itself: it closes the session, drops the last claim of a
/// session opened for one lock, or breaks the only claim of any session.
fn ends_itself(before: &LockTable, command: Option<&Command>, id: SessionId) -> bool {
    let is_last =
        |keys: &Keys| before.session(id).is_some_and(|session| session.once && session.claims() == keys.as_slice());
    match command {
        Some(Command::Close { session }) => *session == id,
        Some(Command::Release { session, keys, .. }) => *session == id && is_last(keys),
        Some(Command::Acquire { session, request, .. }) => *session == id && !request.waits() && is_last(&request.keys),
        Some(Command::Break { key, .. }) => {
            let claims = before.session(id).map_or(0, |session| session.claims().len());
            command
                .and_then(|command| broken(before, command))
                .is_some_and(|held| held.session == id && held.all_keys(key).len() == claims)
        }
        _ => false,
    }
}

/// Whether the rules denied the session a claim, after which it had none: the events report that it left
/// every one of its keys.
fn ends_denied(events: &[Event], id: SessionId, session: &Session) -> bool {
    let is_denied = |event: &Event| matches!(event, Event::Denied { session: denied, .. } if *denied == id);
    let has_left = |key: &Key| {
        events.iter().any(|event| match event {
            Event::Withdrawn { key: left, session } | Event::Released { key: left, session, .. } => {
                (left, *session) == (key, id)
            }
            _ => false,
        })
    };
    session.once && events.iter().any(is_denied) && session.claims().iter().all(has_left)
}

/// The grant that the command breaks.
fn broken<'a>(before: &'a LockTable, command: &Command) -> Option<&'a Holder> {
    let Command::Break { key, token, .. } = command else { return None };
    before.lock(key)?.holder_with(*token)
}

#[cfg(test)]
mod tests;
