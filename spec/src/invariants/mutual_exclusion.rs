//! Mutual exclusion: a lock is granted only when nobody holds it.

use alloc::collections::BTreeMap;

use super::{Check, require};
use crate::lock::{Event, Key, SessionId, Token};

/// Who holds what, as told by the events alone.
pub type Holders = BTreeMap<Key, (SessionId, Token)>;

/// Follows the events of one entry, and fails at a grant of a lock that somebody holds, or at a release by somebody
/// who does not hold it. Nothing but the events is looked at: this is what somebody who watches can see.
pub fn mutual_exclusion(holders: &mut Holders, events: &[Event]) -> Check {
    let name = "mutual exclusion";
    for event in events {
        match event {
            Event::Granted { key, session, token } => {
                let before = holders.insert(key.clone(), (*session, *token));
                require!(name, before.is_none(), "{key} went to session {session} while {before:?} held it");
            }
            Event::Released { key, session, token } => {
                let before = holders.remove(key);
                require!(
                    name,
                    before == Some((*session, *token)),
                    "{key} was released by {session} but {before:?} held it"
                );
            }
            Event::Withdrawn { .. } | Event::Expired { .. } | Event::Closed { .. } => {}
        }
    }
    Ok(())
}
