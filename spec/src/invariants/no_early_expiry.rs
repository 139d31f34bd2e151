//! No early expiry: a session lives until its deadline, which never moves back, and after that for no further entry.
//! Before that it ends only by its own wish.

use super::{Check, require};
use crate::lock::{Command, Event, LockTable, Session, SessionId};
use crate::raft::Stamp;

const NAME: &str = "no early expiry";

/// Compares a table before and after an entry at `at`, which did `command` (a no-op does none) and told `events`.
pub fn no_early_expiry(
    before: &LockTable,
    at: Stamp,
    command: Option<&Command>,
    events: &[Event],
    after: &LockTable,
) -> Check {
    for event in events {
        if let Event::Expired { session, deadline } = event {
            let promised = before.session(*session).map(|session| session.deadline);
            require!(NAME, promised == Some(*deadline), "session {session} expired at {deadline}, not at {promised:?}");
            require!(NAME, *deadline < at, "session {session} expired at {at}, not after its deadline {deadline}");
        }
        if let Event::Expired { session, .. } | Event::Closed { session } = event {
            let ended = before.session(*session).is_some() && after.session(*session).is_none();
            require!(NAME, ended, "session {session} was said to end, and did not");
        }
    }
    let expired = events.iter().filter_map(|event| match event {
        Event::Expired { session, deadline } => Some((*deadline, *session)),
        _ => None,
    });
    require!(NAME, expired.is_sorted_by(|a, b| a < b), "sessions did not expire in the order of their deadlines");
    for (&id, session) in before.sessions().iter() {
        if let Some(now) = after.session(id) {
            let (was, is) = (session.deadline, now.deadline);
            require!(NAME, is >= was, "the deadline of session {id} moved back to {is}");
            require!(NAME, was >= at, "session {id} outlived its deadline {was}");
            continue;
        }
        let expired = events.iter().any(|event| matches!(event, Event::Expired { session, .. } if *session == id));
        let closed = events.iter().filter(|event| matches!(event, Event::Closed { session } if *session == id)).count();
        require!(NAME, expired == (session.deadline < at), "session {id} is gone, and did not expire when it was due");
        require!(NAME, closed == usize::from(!expired), "session {id} was closed {closed} times");
        require!(NAME, expired || ends_itself(before, command, id), "session {id} was ended by somebody else");
    }
    Ok(())
}

/// Whether the command is the session's own end: it is closed, or was opened for one lock and drops its last claim.
fn ends_itself(before: &LockTable, command: Option<&Command>, id: SessionId) -> bool {
    match command {
        Some(Command::Close { session }) => *session == id,
        Some(Command::Release { session, key, .. } | Command::Acquire { session, key, wait: false, .. }) => {
            let is_last = |session: &Session| session.once && session.claims() == [key.clone()];
            *session == id && before.session(id).is_some_and(is_last)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;
    use crate::lock::{Claim, Key, Opening, Owner, Token, Ttl};
    use crate::raft::StateMachine;

    fn id(number: u64) -> SessionId {
        SessionId { number, nonce: 0 }
    }

    fn opening(ttl: u64) -> Opening {
        Opening { nonce: 0, owner: Owner::from(""), ttl: Ttl(ttl) }
    }

    /// A session with a deadline for each of these, none of which is opened for a lock.
    fn sessions(deadlines: &[u64]) -> LockTable {
        let mut table = LockTable::default();
        for &ttl in deadlines {
            table.apply(Stamp(0), &Command::Open { opening: opening(ttl) });
        }
        table
    }

    /// Session 1 was opened for `k` and has it; it waits for `l`, too, if `two`. Session 2 has `l`.
    fn once(two: bool) -> LockTable {
        let (k, l) = (Key::from("k"), Key::from("l"));
        let mut table = LockTable::default();
        table.apply(Stamp(0), &Command::AcquireOnce { opening: opening(5), key: k, wait: true });
        table.apply(Stamp(0), &Command::Open { opening: opening(5) });
        table.apply(Stamp(0), &Command::Acquire { session: id(2), sequence: None, key: l.clone(), wait: true });
        if two {
            table.apply(Stamp(0), &Command::Acquire { session: id(1), sequence: None, key: l, wait: true });
        }
        table
    }

    fn without(table: &LockTable, gone: &[u64]) -> LockTable {
        let mut table = table.clone();
        for &number in gone {
            table.apply(Stamp(0), &Command::Close { session: id(number) });
        }
        table
    }

    fn expired(number: u64, deadline: u64) -> Event {
        Event::Expired { session: id(number), deadline: Stamp(deadline) }
    }

    fn closed(number: u64) -> Event {
        Event::Closed { session: id(number) }
    }

    fn release(number: u64, key: &str) -> Command {
        Command::Release { session: id(number), sequence: None, key: Key::from(key), claim: Claim::Held(Token(1)) }
    }

    #[track_caller]
    fn refused(check: Check, words: &str) {
        let violation = check.expect_err("this is no time to end").to_string();
        assert!(violation.starts_with("no early expiry is violated") && violation.contains(words), "{violation}");
    }

    #[test]
    fn a_session_expires_after_its_deadline() {
        let (before, at) = (sessions(&[3, 5, 4]), Stamp(5));
        let after = without(&before, &[1, 3]);
        assert_eq!(no_early_expiry(&before, at, None, &[expired(1, 3), expired(3, 4)], &after), Ok(()));
        let mut really = before.clone();
        let outcome = really.advance(at);
        assert_eq!(no_early_expiry(&before, at, None, &outcome.events, &really), Ok(()));
    }

    #[test]
    fn not_at_its_deadline_nor_before() {
        let before = sessions(&[5]);
        for at in [Stamp(4), Stamp(5)] {
            refused(no_early_expiry(&before, at, None, &[expired(1, 5)], &without(&before, &[1])), "not after");
        }
        refused(no_early_expiry(&before, Stamp(6), None, &[expired(1, 4)], &without(&before, &[1])), "expired at 4");
        refused(no_early_expiry(&before, Stamp(6), None, &[expired(2, 5)], &without(&before, &[1])), "not at None");
    }

    #[test]
    fn nobody_outlives_its_deadline() {
        let before = sessions(&[5]);
        assert_eq!(no_early_expiry(&before, Stamp(5), None, &[], &before), Ok(()));
        refused(no_early_expiry(&before, Stamp(6), None, &[], &before), "outlived");
    }

    #[test]
    fn sessions_expire_in_the_order_of_their_deadlines_and_once() {
        let (before, at) = (sessions(&[5, 3, 3]), Stamp(9));
        let after = without(&before, &[1, 2, 3]);
        let told = |order: &[usize]| -> Vec<Event> {
            order.iter().map(|&which| [expired(1, 5), expired(2, 3), expired(3, 3)][which].clone()).collect()
        };
        assert_eq!(no_early_expiry(&before, at, None, &told(&[1, 2, 0]), &after), Ok(()));
        for order in [&[0, 1, 2][..], &[2, 1, 0], &[1, 2, 2, 0]] {
            refused(no_early_expiry(&before, at, None, &told(order), &after), "order of their deadlines");
        }
    }

    #[test]
    fn a_deadline_does_not_move_back() {
        refused(no_early_expiry(&sessions(&[5]), Stamp(0), None, &[], &sessions(&[4])), "moved back");
        assert_eq!(no_early_expiry(&sessions(&[5]), Stamp(0), None, &[], &sessions(&[6])), Ok(()));
    }

    #[test]
    fn nobody_vanishes() {
        let before = sessions(&[5, 5]);
        let (after, close) = (without(&before, &[1]), Command::Close { session: id(1) });
        let judge = |at, command: &Command, events: &[Event]| {
            no_early_expiry(&before, Stamp(at), Some(command), events, &after)
        };
        assert_eq!(judge(0, &close, &[closed(1)]), Ok(()));
        refused(judge(0, &close, &[]), "closed 0 times");
        refused(judge(0, &close, &[closed(1), closed(1)]), "closed 2 times");
        refused(judge(0, &Command::Close { session: id(2) }, &[closed(1)]), "by somebody else");
        refused(judge(0, &Command::KeepAlive { sessions: [id(1)].into() }, &[closed(1)]), "by somebody else");
        refused(no_early_expiry(&before, Stamp(0), None, &[closed(1)], &after), "by somebody else");
        // When it is due it expires, whatever else was asked.
        let gone = without(&before, &[1, 2]);
        let both = [expired(1, 5), expired(2, 5)];
        assert_eq!(no_early_expiry(&before, Stamp(6), Some(&close), &both, &gone), Ok(()));
        refused(no_early_expiry(&before, Stamp(6), Some(&close), &[closed(1), expired(2, 5)], &gone), "it was due");
        let twice = [expired(1, 5), expired(2, 5), closed(1)];
        refused(no_early_expiry(&before, Stamp(6), Some(&close), &twice, &gone), "closed 1 times");
    }

    #[test]
    fn whoever_is_said_to_end_ends() {
        let before = sessions(&[5]);
        for event in [closed(1), closed(2), expired(1, 5)] {
            refused(no_early_expiry(&before, Stamp(6), None, &[event], &before), "and did not");
        }
    }

    #[test]
    fn a_session_for_one_lock_ends_with_its_last_claim() {
        let judge = |before: &LockTable, command: &Command, number| {
            no_early_expiry(before, Stamp(0), Some(command), &[closed(number)], &without(before, &[number]))
        };
        assert_eq!(judge(&once(false), &release(1, "k"), 1), Ok(()));
        refused(judge(&once(false), &release(2, "k"), 1), "by somebody else");
        refused(judge(&once(false), &release(1, "l"), 1), "by somebody else");
        refused(judge(&once(false), &release(2, "l"), 2), "by somebody else");
        refused(judge(&once(true), &release(1, "k"), 1), "by somebody else");
        let mut waits = once(true);
        waits.apply(Stamp(0), &release(1, "k"));
        let asks = |wait| Command::Acquire { session: id(1), sequence: None, key: Key::from("l"), wait };
        assert_eq!(judge(&waits, &asks(false), 1), Ok(()));
        refused(judge(&waits, &asks(true), 1), "by somebody else");
    }
}
