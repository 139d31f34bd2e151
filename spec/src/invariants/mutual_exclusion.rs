//! Mutual exclusion: a lock is granted only when no session holds it.

use alloc::collections::BTreeMap;

use super::{Check, Property};
use crate::lock::{Event, Key, SessionId, Token};
use crate::require;

/// The holder of each lock, according to the events alone.
pub type Holders = BTreeMap<Key, (SessionId, Token)>;

/// Follows the events of one entry; fails at a grant of a held lock, or at a release by a session
/// other than the holder. Uses only the events, which are what an observer can see.
pub fn mutual_exclusion(holders: &mut Holders, events: &[Event]) -> Check {
    let name = Property::MutualExclusion;
    for event in events {
        match event {
            Event::Granted { key, session, token } => {
                let before = holders.insert(key.clone(), (*session, *token));
                require!(name, before.is_none(), "{key} went to session {session} while {before:?} held it")?;
            }
            Event::Released { key, session, token } => {
                let before = holders.remove(key);
                require!(
                    name,
                    before == Some((*session, *token)),
                    "{key} was released by {session} but {before:?} held it"
                )?;
            }
            Event::Broken { .. }
            | Event::Withdrawn { .. }
            | Event::Expired { .. }
            | Event::Closed { .. }
            | Event::Denied { .. } => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Holders, mutual_exclusion};
    use crate::invariants::states::{complaint, id, key};
    use crate::lock::{Event, Token};

    fn granted(session: u64, token: u64) -> Event {
        Event::Granted { key: key("k"), session: id(session), token: Token(token) }
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
}
