//! Mutual exclusion: no two claims that conflict hold a lock. The holders of a lock have together at most
//! all its permits: so an exclusive holder is alone, and a semaphore is not exceeded.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Check, Property};
use crate::lock::{Event, Key, Mode, SessionId, Token};
use crate::require;

/// Who holds which lock, by which grant, according to the events alone.
pub type Holders = BTreeMap<Key, Vec<(SessionId, Token, Mode)>>;

/// Follows the events of an entry: a grant leaves at most all permits of the lock taken, and a release
/// is by a holder.
pub fn mutual_exclusion(holders: &mut Holders, events: &[Event]) -> Check {
    let name = Property::MutualExclusion;
    for event in events {
        match event {
            Event::Granted { key, session, token, mode, .. } => {
                let held = holders.entry(key.clone()).or_default();
                let permits = held.iter().map(|(.., mode)| u64::from(mode.permits())).sum::<u64>();
                let is_free = permits + u64::from(mode.permits()) <= u64::from(mode.of())
                    && held.iter().all(|(holder, _, other)| other.of() == mode.of() && holder != session);
                require!(name, is_free, "{key} went to session {session} while {held:?} held it")?;
                held.push((*session, *token, *mode));
            }
            Event::Released { key, session, token } => {
                let held = holders.entry(key.clone()).or_default();
                let position = held.iter().position(|(holder, held, _)| (holder, held) == (session, token));
                require!(name, position.is_some(), "{key} was released by {session} but {held:?} held it")?;
                position.map(|position| held.remove(position));
                if held.is_empty() {
                    holders.remove(key);
                }
            }
            Event::Broken { .. }
            | Event::Proclaimed { .. }
            | Event::Withdrawn { .. }
            | Event::Expired { .. }
            | Event::Closed { .. }
            | Event::Denied { .. }
            | Event::Put { .. }
            | Event::Deleted { .. }
            | Event::Queued { .. }
            | Event::Overdue { .. } => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Holders, mutual_exclusion};
    use crate::invariants::states::{self, complaint, id, key};
    use crate::lock::{Event, Mode, Token};

    fn granted(session: u64, token: u64) -> Event {
        granted_in(Mode::EXCLUSIVE, session, token)
    }

    fn granted_in(mode: Mode, session: u64, token: u64) -> Event {
        states::granted("k", session, token, mode)
    }

    fn released(session: u64, token: u64) -> Event {
        Event::Released { key: key("k"), session: id(session), token: Token(token) }
    }

    fn follow(events: &[Event]) -> alloc::string::String {
        complaint(mutual_exclusion(&mut Holders::new(), events))
    }

    #[test]
    fn second_holder_is_seen() {
        assert_eq!(follow(&[granted(1, 1), released(1, 1), granted(2, 2), released(2, 2)]), "");
        assert!(follow(&[granted(1, 1), granted(2, 2)]).starts_with("k went to session 2.0 while"));
    }

    #[test]
    fn release_by_another_is_seen() {
        for released in [released(2, 1), released(1, 2)] {
            assert!(follow(&[granted(1, 1), released]).starts_with("k was released by"));
        }
        assert!(follow(&[released(1, 1)]).starts_with("k was released by"));
    }

    #[test]
    fn holders_are_remembered_from_entry_to_entry() {
        let mut holders = Holders::new();
        let closed = Event::Closed { session: id(1) };
        assert_eq!(complaint(mutual_exclusion(&mut holders, &[granted(1, 1), closed])), "");
        assert!(complaint(mutual_exclusion(&mut holders, &[granted(2, 2)])).starts_with("k went to session 2.0 while"));
    }

    #[test]
    fn claims_that_conflict_are_seen() {
        let semaphore = |permits, of| Mode::semaphore(permits, of).unwrap();
        for (first, second, conflict) in [
            (Mode::SHARED, Mode::SHARED, false),
            (Mode::SHARED, Mode::EXCLUSIVE, true),
            (Mode::EXCLUSIVE, Mode::SHARED, true),
            (semaphore(2, 5), semaphore(3, 5), false),
            (semaphore(3, 5), semaphore(3, 5), true),
            (semaphore(2, 5), semaphore(2, 6), true),
        ] {
            let complaint = follow(&[granted_in(first, 1, 1), granted_in(second, 2, 2)]);
            assert_eq!(complaint.starts_with("k went to session 2.0"), conflict, "{first}, {second}");
            assert!(follow(&[granted_in(first, 1, 1), released(1, 1), granted_in(second, 2, 2)]).is_empty());
        }
        assert!(follow(&[granted_in(Mode::SHARED, 1, 1), granted_in(Mode::SHARED, 1, 2)]).starts_with("k went to"));
    }
}
