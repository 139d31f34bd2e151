//! No deadlock: no waiters wait for one another in a circle.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Check, Property};
use crate::lock::{Key, Lock, LockTable};
use crate::require;

/// Whether all waiters would be granted, one after the other, if every holder gave up its locks as soon as
/// it got them: the queues of all keys follow one order.
///
/// A session may still wait for a lock while it holds another one by another claim, and two such
/// sessions may wait for each other. That is a deadlock of the clients' making: this says that one claim
/// on several keys never makes one.
pub fn no_deadlock(table: &LockTable) -> Check {
    // How many waiters of each queue were granted.
    let mut granted: BTreeMap<&Key, usize> = table.locks().keys().map(|key| (key, 0)).collect();
    let mut open: Vec<&Key> = granted.keys().copied().collect();
    while let Some(key) = open.pop() {
        let first = |key: &Key| table.lock(key).and_then(|lock| lock.queue.get(*granted.get(key)?));
        let Some(waiter) = first(key) else { continue };
        let keys = waiter.all_keys(key);
        if keys.iter().all(|key| first(key).is_some_and(|other| other.session == waiter.session)) {
            for key in keys {
                granted.entry(key).and_modify(|count| *count += 1);
                open.push(key);
            }
        }
    }
    let is_left = |(key, lock): &(&Key, &Lock)| granted[key] < lock.queue.len();
    let left: Vec<&Key> = table.locks().iter().filter(is_left).map(|(key, _)| key).collect();
    require!(Property::NoDeadlock, left.is_empty(), "waiters for {left:?} wait for one another")
}

#[cfg(test)]
mod tests {
    use super::no_deadlock;
    use crate::invariants::states::{acquire, acquire_all, complaint, key, table};
    use crate::lock::Mode;
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k and l; 2, 3 and 4 wait for both, for k and m, and for l and m.
    #[test]
    fn circle_of_waiters_is_seen() {
        let mut table = table(5);
        let both = |session, names: &[&str]| acquire_all(session, names, Mode::EXCLUSIVE);
        for command in [both(1, &["k", "l"]), both(2, &["k", "l"]), both(3, &["k", "m"]), both(4, &["l", "m"])] {
            table.apply(Stamp(0), &command);
        }
        table.apply(Stamp(0), &acquire(5, 0, "m"));
        assert_eq!(complaint(no_deadlock(&table)), "");
        let mut swapped = |name| {
            table.parts().locks.get_mut(&key(name)).unwrap().queue.change(|queue| queue.swap(0, 1));
            complaint(no_deadlock(&table))
        };
        assert_eq!(swapped("m"), "", "3 waits for 4, and 4 for 2");
        assert!(swapped("k").starts_with("waiters for"), "2 waits for 3 at k, 3 for 4 at m, 4 for 2 at l");
        assert!(swapped("m").is_empty(), "3 comes first, then 2, then 4");
    }
}
