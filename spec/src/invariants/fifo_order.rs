//! FIFO order: a released lock goes to whoever has waited longest and still lives, and a queue keeps its order.

use alloc::vec::Vec;

use super::{Check, require};
use crate::lock::{LockTable, SessionId};

/// Compares a table before and after one entry. Of the line at each key, the holder first, those who are still there
/// must stand in the same order, before everybody who is new.
pub fn fifo_order(before: &LockTable, after: &LockTable) -> Check {
    for (key, lock) in after.locks() {
        let line = |table: &LockTable| -> Vec<(SessionId, bool)> {
            let Some(lock) = table.lock(key) else { return Vec::new() };
            let queue = lock.queue.iter().map(|waiter| (waiter.session, false));
            core::iter::once((lock.holder.session, true)).chain(queue).collect()
        };
        let old = line(before);
        let new: Vec<SessionId> = line(after).into_iter().map(|(session, _)| session).collect();
        // Whoever held the lock before and was granted it again went to the back in between.
        let regranted = before.lock(key).is_some_and(|before| before.holder.token != lock.holder.token);
        let stayed: Vec<SessionId> = old
            .into_iter()
            .filter(|&(session, held)| new.contains(&session) && !(held && regranted))
            .map(|(session, _)| session)
            .collect();
        let kept = new.starts_with(&stayed);
        require!("FIFO order", kept, "the line at {key} was {stayed:?} and became {new:?}");
    }
    Ok(())
}
