//! No needless wait: a waiter whose turn has come at all its keys does not wait.

use super::{Check, Property};
use crate::lock::LockTable;
use crate::require;

/// After every entry: no waiter is the first in all its queues while the holders of every one of its keys
/// leave room for it. It would have been granted, or would have lost its positions.
pub fn no_needless_wait(table: &LockTable) -> Check {
    for (key, lock) in table.locks().iter() {
        let Some(first) = lock.queue.front() else { continue };
        let turn_has_come = first.all_keys(key).iter().filter_map(|key| table.lock(key)).all(|lock| {
            let permits: u64 = lock.holders.iter().map(|holder| u64::from(holder.mode.permits())).sum();
            let has_room = permits + u64::from(first.mode.permits()) <= u64::from(first.mode.of());
            has_room && lock.queue.front().is_some_and(|other| other.session == first.session)
        });
        require!(
            Property::NoNeedlessWait,
            !turn_has_come,
            "session {} waits for {key}, and its turn has come",
            first.session
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::no_needless_wait;
    use crate::invariants::states::{acquire, acquire_all, complaint, key, table};
    use crate::lock::{LockTable, Mode};
    use crate::raft::{Stamp, StateMachine};

    fn free(table: &mut LockTable, name: &str) {
        let lock = table.parts().locks.get_mut(&key(name)).unwrap();
        lock.holders = alloc::vec::Vec::new().into();
    }

    #[test]
    fn waiter_for_a_free_lock_is_seen() {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        table.apply(Stamp(0), &acquire(2, 0, "k"));
        assert_eq!(complaint(no_needless_wait(&table)), "");
        free(&mut table, "k");
        assert_eq!(complaint(no_needless_wait(&table)), "session 2.0 waits for k, and its turn has come");
    }

    #[test]
    fn waiter_beside_holders_that_leave_room_is_seen() {
        let mut table = table(3);
        for session in [1, 2] {
            table.apply(Stamp(0), &acquire_all(session, &["k"], Mode::semaphore(2, 5).unwrap()));
        }
        table.apply(Stamp(0), &acquire_all(3, &["k"], Mode::semaphore(2, 5).unwrap()));
        assert_eq!(complaint(no_needless_wait(&table)), "");
        let mut room = table.clone();
        room.parts().locks.get_mut(&key("k")).unwrap().holders.remove(0);
        assert_eq!(complaint(no_needless_wait(&room)), "session 3.0 waits for k, and its turn has come");
    }

    #[test]
    fn waiter_that_wants_more_than_is_left_waits() {
        let mut table = table(2);
        for (session, permits) in [(1, 1), (2, 2)] {
            table.apply(Stamp(0), &acquire_all(session, &["k"], Mode::semaphore(permits, 2).unwrap()));
        }
        assert_eq!(complaint(no_needless_wait(&table)), "");
    }

    /// Session 3 waits for k and l. At k it is the first, and k is free; session 1 holds l, session 2
    /// waits for it.
    #[test]
    fn waiter_for_several_keys_waits_for_all_of_them() {
        let mut table = table(4);
        for command in [acquire(1, 0, "l"), acquire(2, 0, "l"), acquire_all(3, &["k", "l"], Mode::EXCLUSIVE)] {
            table.apply(Stamp(0), &command);
        }
        assert_eq!(complaint(no_needless_wait(&table)), "");
        free(&mut table, "l");
        assert_eq!(complaint(no_needless_wait(&table)), "session 2.0 waits for l, and its turn has come");
        table.parts().locks.get_mut(&key("l")).unwrap().queue.change(|queue| queue.pop_front());
        assert_eq!(complaint(no_needless_wait(&table)), "session 3.0 waits for k, and its turn has come");
    }
}
