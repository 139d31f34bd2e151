//! FIFO order: a released lock goes to the live waiter that has waited longest; a queue keeps its
//! order, and no waiter disappears from it without a cause.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Check, Property, permitted};
use crate::lock::{Command, Event, Key, LockTable, Right, Session, SessionId};
use crate::raft::Stamp;
use crate::require;

const NAME: Property = Property::FifoOrder;

/// Compares a table before and after an entry at `at` with `command` (`None` for a no-op) and its
/// `events`.
///
/// Each key has a line: the holder, then the waiters. Sessions that remain in a line keep their
/// order, precede all new sessions, and keep their grants. A new session is in the line because
/// of this very command. A
/// session that left either gave up its claim by this command, or its session ended, or it was due
/// or denied when the lock was passed on; and the events report it.
pub fn fifo_order(
    before: &LockTable,
    at: Stamp,
    command: Option<&Command>,
    events: &[Event],
    after: &LockTable,
) -> Check {
    for key in changed(before, after) {
        let (old, new) = (line(before, key), line(after, key));
        // One pass over both lines, because a line may be long. A session that is not next in the
        // new line has left it, and must not appear later.
        let (mut stayed, mut left) = (0, Vec::new());
        for session in &old {
            if new.get(stayed) == Some(session) {
                stayed += 1;
            } else {
                left.push(*session);
            }
        }
        let in_order = !new.iter().skip(stayed).any(|session| old.contains(session));
        require!(NAME, in_order, "the line at {key} was {old:?} and became {new:?}")?;
        let token = |table: &LockTable| table.lock(key).map(|lock| lock.holder.token);
        let stays = !new.is_empty() && new.first() == old.first();
        require!(NAME, !stays || token(before) == token(after), "the holder of {key} was granted it again")?;
        for (place, session) in new.iter().enumerate().skip(stayed) {
            let asked = has_asked(before, command, key, *session, place);
            require!(NAME, asked, "session {session} stands at {key} and has not asked for it")?;
        }
        for session in left {
            let ended = after.session(session).is_none();
            let is_due = before.session(session).is_some_and(|session| session.deadline < at);
            let is_denied = is_denied(before, events, key, session);
            let passed_over = (is_due || is_denied) && new.first() != old.first();
            let gave_up = ended || passed_over || gave_up(before, command, key, session);
            require!(NAME, gave_up, "session {session} left the line at {key} without a cause")?;
            let told = events.iter().any(|event| leaves(event, key, session));
            require!(NAME, told, "no event reports that session {session} left the line at {key}")?;
        }
    }
    withdrawn_once(before, events, after)
}

/// The keys whose locks differ, found in one pass over both tables: most locks are equal.
fn changed<'a>(before: &'a LockTable, after: &'a LockTable) -> Vec<&'a Key> {
    let (mut before, mut after) = (before.locks().iter().peekable(), after.locks().iter().peekable());
    let mut changed = Vec::new();
    while let Some(key) = before.peek().into_iter().chain(after.peek()).map(|(key, _)| *key).min() {
        let [was, is] = [&mut before, &mut after].map(|locks| locks.next_if(|(next, _)| *next == key));
        if was != is {
            changed.push(key);
        }
    }
    changed
}

/// The holder of a lock and its waiters, in order.
fn line(table: &LockTable, key: &Key) -> Vec<SessionId> {
    let Some(lock) = table.lock(key) else { return Vec::new() };
    core::iter::once(lock.holder.session).chain(lock.queue.iter().map(|waiter| waiter.session)).collect()
}

/// Whether the command puts this session at this position: an acquire without `wait` does not
/// queue.
fn has_asked(before: &LockTable, command: Option<&Command>, key: &Key, id: SessionId, place: usize) -> bool {
    match command {
        Some(Command::Acquire { session, key: asked, wait, .. }) => {
            (*session, asked) == (id, key) && (*wait || place == 0)
        }
        Some(Command::AcquireOnce { key: asked, wait, .. }) => {
            before.session(id).is_none() && asked == key && (*wait || place == 0)
        }
        _ => false,
    }
}

/// Whether the session's own command gives up its claim on the key, or its queue position; or the
/// command breaks its grant.
fn gave_up(before: &LockTable, command: Option<&Command>, key: &Key, id: SessionId) -> bool {
    match command {
        Some(Command::Break { key: broken, token, .. }) => {
            let held = before.lock(key).map(|lock| (lock.holder.session, lock.holder.token));
            broken == key && held == Some((id, *token))
        }
        Some(Command::Release { session, key: dropped, .. }) => (*session, dropped) == (id, key),
        Some(Command::Acquire { session, key: asked, wait, .. }) => (*session, asked) == (id, key) && !wait,
        _ => false,
    }
}

/// Whether the events report that the rules in force denied the session the lock, and they do.
fn is_denied(before: &LockTable, events: &[Event], key: &Key, id: SessionId) -> bool {
    let told = |event: &Event| matches!(event, Event::Denied { key: of, session, .. } if (of, *session) == (key, id));
    let rules = before.access().rules().map(|rules| &**rules);
    let may_acquire = |session: &Session| permitted(rules, &session.principal, Right::Acquire, key.as_str());
    events.iter().any(told) && before.session(id).is_some_and(|session| !may_acquire(session))
}

/// Whether the event reports that the session has no claim on the key any more.
fn leaves(event: &Event, key: &Key, id: SessionId) -> bool {
    match event {
        Event::Released { key: left, session, .. } | Event::Withdrawn { key: left, session } => {
            (left, *session) == (key, id)
        }
        Event::Granted { .. }
        | Event::Broken { .. }
        | Event::Expired { .. }
        | Event::Closed { .. }
        | Event::Denied { .. } => false,
    }
}

/// A session that is reported as withdrawn had a queue position, has none, and is reported once.
fn withdrawn_once(before: &LockTable, events: &[Event], after: &LockTable) -> Check {
    let mut told = BTreeSet::new();
    for event in events {
        let Event::Withdrawn { key, session } = event else { continue };
        let waited = before.lock(key).is_some_and(|lock| lock.queue_position(*session).is_some());
        require!(NAME, waited, "session {session} lost a place at {key} that it never had")?;
        require!(NAME, !line(after, key).contains(session), "session {session} lost its place at {key} and is there")?;
        require!(NAME, told.insert((key, session)), "session {session} lost its place at {key} twice")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::lock::{Claim, Opening, Owner, Principal, Proof, Token, Ttl};
    use crate::raft::{Stamp, StateMachine};

    fn id(number: u64) -> SessionId {
        SessionId { number, proof: Proof::default() }
    }

    fn key() -> Key {
        Key::from("k")
    }

    fn acquire(number: u64, wait: bool) -> Command {
        Command::Acquire { session: id(number), sequence: None, key: key(), wait }
    }

    fn release(number: u64) -> Command {
        Command::Release { session: id(number), sequence: None, key: key(), claim: Claim::Either }
    }

    fn opening() -> Opening {
        Opening { proof: Proof::default(), owner: Owner::from(""), principal: Principal::default(), ttl: Ttl(10) }
    }

    fn opened(sessions: u64) -> LockTable {
        let mut table = LockTable::default();
        for _ in 0..sessions {
            table.apply(Stamp(0), &Command::Open { opening: opening() });
        }
        table
    }

    /// Five sessions, of which the named ones acquired the lock in this order.
    fn in_line(sessions: &[u64]) -> LockTable {
        let mut table = opened(5);
        for &number in sessions {
            table.apply(Stamp(0), &acquire(number, true));
        }
        table
    }

    /// Applies `done`, and checks its effect against the command `told` and these events, or its
    /// own.
    fn judged(before: &LockTable, done: &Command, told: Option<&Command>, events: Option<&[Event]>) -> Check {
        let mut after = before.clone();
        let outcome = after.apply(Stamp(0), done);
        fifo_order(before, Stamp(0), told, events.unwrap_or(&outcome.events), &after)
    }

    #[track_caller]
    fn refused(check: Check, words: &str) {
        let violation = check.expect_err("this is no order").to_string();
        assert!(violation.starts_with("FIFO order is violated") && violation.contains(words), "{violation}");
    }

    #[test]
    fn what_the_table_does_is_in_order() {
        let before = in_line(&[1, 2, 3]);
        let once = Command::AcquireOnce { opening: opening(), key: key(), wait: true };
        let close = Command::Close { session: id(1) };
        for command in [acquire(4, true), acquire(4, false), acquire(2, false), release(1), release(3), once, close] {
            assert_eq!(judged(&before, &command, Some(&command), None), Ok(()), "{command:?}");
        }
        let free = in_line(&[]);
        assert_eq!(judged(&free, &acquire(4, false), Some(&acquire(4, false)), None), Ok(()));
        assert_eq!(fifo_order(&before, Stamp(0), None, &[], &before), Ok(()));
    }

    #[test]
    fn queue_keeps_its_order_and_a_new_waiter_is_last() {
        let (before, asks) = (in_line(&[1, 2, 3]), acquire(4, true));
        for other in [&[1, 3, 2][..], &[2, 1, 3], &[1, 4, 2, 3], &[4, 1, 2, 3], &[1, 2, 4, 3]] {
            refused(fifo_order(&before, Stamp(0), Some(&asks), &[], &in_line(other)), "and became");
        }
    }

    #[test]
    fn new_session_must_have_acquired() {
        let before = in_line(&[1]);
        for told in [None, Some(&acquire(3, true)), Some(&acquire(2, false)), Some(&release(2))] {
            refused(judged(&before, &acquire(2, true), told, None), "has not asked");
        }
        let elsewhere = Command::Acquire { session: id(2), sequence: None, key: Key::from("l"), wait: true };
        refused(judged(&before, &acquire(2, true), Some(&elsewhere), None), "has not asked");
    }

    #[test]
    fn a_session_that_is_opened_for_a_lock_stands_there_and_no_other() {
        let before = in_line(&[1]);
        let once = |key, wait| Command::AcquireOnce { opening: opening(), key, wait };
        let asks = once(key(), true);
        for told in [once(key(), false), once(Key::from("l"), true)] {
            refused(judged(&before, &asks, Some(&told), None), "has not asked");
        }
        refused(judged(&before, &acquire(2, true), Some(&asks), None), "has not asked");
        assert_eq!(judged(&in_line(&[]), &once(key(), false), Some(&once(key(), false)), None), Ok(()));
        refused(judged(&in_line(&[]), &acquire(2, true), Some(&once(key(), false)), None), "has not asked");
    }

    #[test]
    fn loss_of_a_claim_requires_a_cause() {
        let before = in_line(&[1, 2, 3]);
        let elsewhere = Command::Release { session: id(2), sequence: None, key: Key::from("l"), claim: Claim::Either };
        let elsewhere_now = Command::Acquire { session: id(2), sequence: None, key: Key::from("l"), wait: false };
        for told in [None, Some(&release(1)), Some(&acquire(2, true)), Some(&elsewhere), Some(&elsewhere_now)] {
            refused(judged(&before, &release(2), told, None), "without a cause");
        }
        refused(judged(&before, &release(1), Some(&release(2)), None), "without a cause");
        refused(judged(&before, &acquire(2, false), Some(&acquire(3, false)), None), "without a cause");
        refused(fifo_order(&before, Stamp(0), None, &[], &in_line(&[])), "without a cause");
    }

    #[test]
    fn due_waiter_is_passed_over_with_the_lock() {
        let (before, at) = (in_line(&[1, 2, 3]), Stamp(12));
        let mut due = before.clone();
        due.apply(Stamp(5), &Command::KeepAlive { sessions: vec![id(1), id(3)] });
        // Session 1 closes, session 2 is due, and session 3 is granted the lock.
        let mut after = due.clone();
        let events = after.apply(at, &release(1)).events;
        assert_eq!((line(&after, &key()), after.session(id(2)).is_some()), (vec![id(3)], true));
        assert_eq!(fifo_order(&due, at, Some(&release(1)), &events, &after), Ok(()));
        refused(fifo_order(&due, Stamp(10), Some(&release(1)), &events, &after), "without a cause");
        // While the holder stays, its waiters stay.
        let mut gone = due.clone();
        let events = gone.apply(Stamp(10), &release(2)).events;
        refused(fifo_order(&due, at, None, &events, &gone), "without a cause");
    }

    #[test]
    fn a_holder_that_stays_holds_what_it_held() {
        let before = in_line(&[1, 2]);
        let mut after = opened(5);
        for command in [acquire(1, true), release(1), acquire(1, true), acquire(2, true)] {
            after.apply(Stamp(0), &command);
        }
        refused(fifo_order(&before, Stamp(0), None, &[], &after), "granted it again");
    }

    #[test]
    fn departure_must_be_reported() {
        let (before, key) = (in_line(&[1, 2, 3]), key());
        refused(judged(&before, &release(2), Some(&release(2)), Some(&[])), "no event reports");
        let granted = [Event::Granted { key: key.clone(), session: id(2), token: Token(2) }];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&granted)), "no event reports");
        let other = [Event::Released { key: key.clone(), session: id(3), token: Token(1) }];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&other)), "no event reports");
        let elsewhere = [Event::Released { key: Key::from("l"), session: id(2), token: Token(1) }];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&elsewhere)), "no event reports");
        let closed = Command::Close { session: id(2) };
        refused(judged(&before, &closed, Some(&closed), Some(&[])), "no event reports");
    }

    #[test]
    fn withdrawal_is_reported_once_and_only_for_waiters() {
        let before = in_line(&[1, 2]);
        let lost = |number| Event::Withdrawn { key: key(), session: id(number) };
        let released = Event::Released { key: key(), session: id(1), token: Token(1) };
        let twice = vec![lost(2), lost(2)];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&twice)), "twice");
        refused(fifo_order(&before, Stamp(0), None, &[lost(2)], &before), "and is there");
        refused(fifo_order(&before, Stamp(0), None, &[lost(3)], &before), "never had");
        refused(judged(&before, &release(1), Some(&release(1)), Some(&[released, lost(1)])), "never had");
    }
}
