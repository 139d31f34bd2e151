//! Changes have events: the events of an entry are all that an observer needs to follow the holders and the
//! queues of the locks.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Check, EntryStep, Property, side_by_side};
use crate::lock::{Event, Key, LockTable, Mode, Owner, SessionId, Token, Value};
use crate::require;

const NAME: Property = Property::ChangesHaveEvents;

/// A grant as an observer knows it: session, token and mode, the session's owner, and the claim's value.
type Grant<'a> = (SessionId, Token, Mode, Option<&'a Owner>, Option<&'a Value>);

/// What an observer knows of a lock.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen<'a> {
    /// The holders, in the order of their grants.
    holders: Vec<Grant<'a>>,
    /// The waiters, first come first.
    queue: Vec<(SessionId, Mode, Option<&'a Owner>)>,
}

/// Follows the events of an entry from the locks before it, and compares the result with the locks after
/// it: sessions, owners, tokens, modes and values of the holders, and sessions, owners and modes of the
/// waiters, in their order. The result differs for a lock that changed without an event.
pub fn changes_have_events(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, outcome, after, .. } = *step;
    let mut followed = BTreeMap::<&Key, Seen<'_>>::new();
    for event in &outcome.events {
        match event {
            Event::Granted { key, session, token, mode, owner, value } => {
                let lock = followed.entry(key).or_insert_with(|| seen(before, key));
                lock.queue.retain(|(waiter, ..)| waiter != session);
                lock.holders.push((*session, *token, *mode, Some(owner), value.as_ref()));
            }
            Event::Proclaimed { key, session, token, value } => {
                let lock = followed.entry(key).or_insert_with(|| seen(before, key));
                let grant = lock.holders.iter_mut().find(|grant| (grant.0, grant.1) == (*session, *token));
                if let Some((.., current)) = grant {
                    *current = Some(value);
                }
            }
            Event::Released { key, session, token } => {
                let lock = followed.entry(key).or_insert_with(|| seen(before, key));
                lock.holders.retain(|grant| (grant.0, grant.1) != (*session, *token));
            }
            Event::Withdrawn { key, session } => {
                let lock = followed.entry(key).or_insert_with(|| seen(before, key));
                lock.queue.retain(|(waiter, ..)| waiter != session);
            }
            Event::Queued { key, session, mode, owner, ahead } => {
                let lock = followed.entry(key).or_insert_with(|| seen(before, key));
                let waiting = lock.queue.len() as u64;
                require!(NAME, *ahead == waiting, "{session} is said to wait for {key} behind {ahead}, not {waiting}")?;
                lock.queue.push((*session, *mode, Some(owner)));
            }
            // They say why something changes; what changes follows.
            Event::Broken { .. }
            | Event::Expired { .. }
            | Event::Closed { .. }
            | Event::Denied { .. }
            | Event::Overdue { .. } => {}
            // The property of transactions judges them.
            Event::Put { .. } | Event::Deleted { .. } => {}
        }
    }
    for (key, lock) in &followed {
        let is = seen(after, key);
        require!(NAME, *lock == is, "the events leave {lock:?} at {key}, and it is {is:?}")?;
    }
    let mut sessions = side_by_side(before.sessions(), after.sessions());
    let owners_are_same = sessions.all(|(_, was, is)| was.map(|was| &was.owner) == is.map(|is| &is.owner));
    for (key, was, is) in side_by_side(before.locks(), after.locks()) {
        if followed.contains_key(key) || owners_are_same && was == is {
            continue;
        }
        let (was, is) = (seen(before, key), seen(after, key));
        require!(NAME, was == is, "{key} changed without an event: it was {was:?}, and is {is:?}")?;
    }
    Ok(())
}

fn seen<'a>(table: &'a LockTable, key: &Key) -> Seen<'a> {
    let Some(lock) = table.lock(key) else { return Seen::default() };
    let owner = |id: SessionId| table.session(id).map(|session| &session.owner);
    let holders =
        lock.holders.iter().map(|held| (held.session, held.token, held.mode, owner(held.session), held.value()));
    let queue = lock.queue.iter().map(|waiter| (waiter.session, waiter.mode, owner(waiter.session)));
    Seen { holders: holders.collect(), queue: queue.collect() }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::{EntryStep, changes_have_events};
    use crate::invariants::states::{acquire, acquire_all, complaint, id, key, table};
    use crate::lock::{Claim, Command, Event, LockRequest, LockTable, Mode, Owner, Token, Value};
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k with a value, sessions 2 and 3 wait for it, session 3 for l, too.
    fn held() -> LockTable {
        let mut table = table(4);
        let request = LockRequest { value: Some("here".into()), ..LockRequest::exclusive("k", true) };
        let first = Command::Acquire { session: id(1), sequence: None, request };
        for command in [first, acquire(2, 0, "k"), acquire_all(3, &["k", "l"], Mode::EXCLUSIVE)] {
            table.apply(Stamp(0), &command);
        }
        table
    }

    fn release(session: u64, token: u64) -> Command {
        Command::Release { session: id(session), sequence: None, keys: "k".into(), claim: Claim::Held(Token(token)) }
    }

    /// The complaint about a command's events after a change of them.
    fn judge(command: &Command, change: impl Fn(&mut Vec<Event>)) -> String {
        let (before, mut after) = (held(), held());
        let mut outcome = after.apply(Stamp(0), command);
        change(&mut outcome.events);
        complaint(changes_have_events(&EntryStep::new(&before, Stamp(0), Some(command), &outcome, &after)))
    }

    #[test]
    fn events_of_the_table_are_enough() {
        let proclaim =
            Command::Proclaim { session: id(1), sequence: None, key: key("k"), token: Token(1), value: "there".into() };
        let close = |session| Command::Close { session: id(session) };
        for command in [release(1, 1), proclaim, close(1), close(2), close(3), acquire(4, 0, "k"), acquire(4, 0, "m")] {
            assert_eq!(judge(&command, |_| {}), "", "{command:?}");
        }
        let (before, mut after) = (held(), held());
        let outcome = after.advance(Stamp(101));
        assert!(outcome.events.len() > 4);
        let step = EntryStep::new(&before, Stamp(101), None, &outcome, &after);
        assert_eq!(complaint(changes_have_events(&step)), "");
    }

    #[test]
    fn change_without_an_event_is_seen() {
        for command in [release(1, 1), Command::Close { session: id(2) }, acquire(4, 0, "k"), acquire(4, 0, "m")] {
            let silent = judge(&command, Vec::clear);
            assert!(silent.contains("changed without an event"), "{command:?}: {silent}");
        }
        let half = judge(&release(1, 1), |events| events.truncate(1));
        assert!(half.starts_with("the events leave"), "{half}");
    }

    #[test]
    fn other_event_is_seen() {
        let change =
            |command: &Command, change: fn(&mut Event)| judge(command, |events| events.iter_mut().for_each(change));
        for (command, wrong) in [
            (
                acquire(4, 0, "k"),
                (|event| {
                    if let Event::Queued { owner, .. } = event {
                        *owner = Owner::from("b")
                    }
                }) as fn(&mut Event),
            ),
            (acquire(4, 0, "k"), |event| {
                if let Event::Queued { mode, .. } = event {
                    *mode = Mode::SHARED
                }
            }),
            (acquire(4, 0, "m"), |event| {
                if let Event::Granted { owner, .. } = event {
                    *owner = Owner::from("b")
                }
            }),
            (acquire(4, 0, "m"), |event| {
                if let Event::Granted { value, .. } = event {
                    *value = Some(Value::from("v"))
                }
            }),
            (release(1, 1), |event| {
                if let Event::Granted { token, .. } = event {
                    *token = Token(9)
                }
            }),
        ] {
            let found = change(&command, wrong);
            assert!(found.starts_with("the events leave"), "{command:?}: {found}");
        }
        let ahead = change(&acquire(4, 0, "k"), |event| {
            if let Event::Queued { ahead, .. } = event {
                *ahead += 1
            }
        });
        assert!(ahead.contains("behind 3, not 2"), "{ahead}");
    }
}
