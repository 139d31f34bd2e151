//! What is true of a lock table by itself, after every entry.

use alloc::collections::BTreeSet;

use super::{Check, require};
use crate::lock::LockTable;

/// Checks the table's parts against one another: they are redundant, so that every question is answered fast.
pub fn table_is_sound(table: &LockTable) -> Check {
    let name = "table soundness";
    for (key, lock) in table.locks() {
        let mut seen = BTreeSet::new();
        let everybody = core::iter::once(lock.holder.session).chain(lock.queue.iter().map(|waiter| waiter.session));
        for id in everybody {
            require!(name, seen.insert(id), "session {id} stands twice at {key}");
            let Some(session) = table.session(id) else {
                require!(name, false, "session {id} at {key} does not live");
                continue;
            };
            require!(name, session.claims_key(key), "session {id} does not know of its claim on {key}");
        }
        require!(name, lock.holder.token < table.next_token(), "the token of {key} was never drawn");
    }
    for (&id, session) in table.sessions() {
        require!(name, table.deadlines().contains(&(session.deadline, id)), "session {id} has no deadline");
        for key in session.claims() {
            let claimed = table.lock(key).is_some_and(|lock| lock.holder.session == id || lock.place_of(id).is_some());
            require!(name, claimed, "session {id} claims {key}, which knows nothing of it");
        }
    }
    require!(name, table.deadlines().len() == table.sessions().len(), "a deadline without a session");
    Ok(())
}
