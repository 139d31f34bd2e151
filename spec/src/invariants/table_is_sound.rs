//! Invariants of a lock table, after every entry.

use alloc::collections::{BTreeMap, BTreeSet};

use super::{Check, Property};
use crate::lock::LockTable;
use crate::require;

/// Compares the table's parts, which are redundant for fast lookups.
pub fn table_is_sound(table: &LockTable) -> Check {
    let name = Property::TableSoundness;
    let mut stand = 0;
    for (key, lock) in table.locks().iter() {
        let mut seen = BTreeSet::new();
        let claimants = core::iter::once(lock.holder.session).chain(lock.queue.iter().map(|waiter| waiter.session));
        for id in claimants {
            require!(name, seen.insert(id), "session {id} stands twice at {key}")?;
            let Some(session) = table.session(id) else {
                require!(name, false, "session {id} at {key} does not live")?;
                continue;
            };
            require!(name, session.claims_key(key), "session {id} does not know of its claim on {key}")?;
        }
        stand += seen.len();
        require!(name, lock.holder.token < table.next_token(), "the token of {key} was never drawn")?;
    }
    // The loop above shows that every holder and waiter claims its key. If there are as many claims
    // as holders and waiters, the converse also holds.
    let claims: usize = table.sessions().values().map(|session| session.claims().len()).sum();
    for (&id, session) in table.sessions().iter() {
        require!(name, table.deadlines().contains_key(&(session.deadline, id)), "session {id} has no deadline")?;
        for key in session.claims().iter().filter(|_| claims != stand) {
            let claimed =
                table.lock(key).is_some_and(|lock| lock.holder.session == id || lock.queue_position(id).is_some());
            require!(name, claimed, "session {id} claims {key}, which knows nothing of it")?;
        }
    }
    require!(name, table.deadlines().len() == table.sessions().len(), "a deadline without a session")?;
    let mut contended = BTreeMap::new();
    for lock in table.locks().values().filter(|lock| !lock.queue.is_empty()) {
        let holder = lock.holder.session;
        *contended.entry((table.sessions()[&holder].deadline, holder)).or_insert(0) += 1;
    }
    require!(name, table.contended().iter().eq(&contended), "the holders of locks with waiters are {contended:?}")
}

#[cfg(test)]
mod tests {
    use super::table_is_sound;
    use crate::invariants::states::{acquire, complaint, id, key, table};
    use crate::lock::{LockTable, Token, Waiter};
    use crate::raft::{Stamp, StateMachine};

    /// Three sessions: 1 holds a and k, 2 and 3 wait for k.
    fn sound() -> LockTable {
        let mut table = table(3);
        for command in [acquire(1, 0, "k"), acquire(1, 0, "a"), acquire(2, 0, "k"), acquire(3, 0, "k")] {
            table.apply(Stamp(0), &command);
        }
        assert_eq!(complaint(table_is_sound(&table)), "");
        table
    }

    #[test]
    fn session_that_stands_twice_is_seen() {
        for twice in [1, 2] {
            let mut table = sound();
            let lock = table.parts().locks.get_mut(&key("k")).unwrap();
            lock.queue.push_back(Waiter { session: id(twice), sequence: None });
            assert_eq!(complaint(table_is_sound(&table)), alloc::format!("session {twice}.0 stands twice at k"));
        }
    }

    #[test]
    fn holder_of_a_lock_with_waiters_that_is_not_listed_as_such_is_seen() {
        let complains =
            |table: &LockTable| complaint(table_is_sound(table)).starts_with("the holders of locks with waiters");
        let entry = (Stamp(100), id(1));
        let (mut missing, mut miscounted, mut idle) = (sound(), sound(), sound());
        missing.parts().contended.remove(&entry);
        miscounted.parts().contended.insert(entry, 2);
        idle.parts().contended.insert((Stamp(100), id(2)), 1);
        assert!([missing, miscounted, idle].iter().all(complains));
    }

    #[test]
    fn claim_of_a_missing_session_is_seen() {
        for (dead, name) in [(1, "a"), (3, "k")] {
            let mut table = sound();
            table.parts().sessions.remove(&id(dead));
            assert_eq!(complaint(table_is_sound(&table)), alloc::format!("session {dead}.0 at {name} does not live"));
        }
    }

    #[test]
    fn claim_that_its_session_does_not_know_is_seen() {
        for session in [1, 2] {
            let mut table = sound();
            table.parts().claims(id(session)).drop(&key("k"));
            let complaint = complaint(table_is_sound(&table));
            assert_eq!(complaint, alloc::format!("session {session}.0 does not know of its claim on k"));
        }
    }

    #[test]
    fn claim_that_its_lock_does_not_know_is_seen() {
        for (session, name) in [(1, "free"), (2, "a")] {
            let mut table = sound();
            table.parts().claims(id(session)).add(&key(name));
            let complaint = complaint(table_is_sound(&table));
            assert_eq!(complaint, alloc::format!("session {session}.0 claims {name}, which knows nothing of it"));
        }
    }

    #[test]
    fn token_that_will_come_again_is_seen() {
        let mut table = sound();
        assert_eq!(table.next_token(), Token(3));
        *table.parts().next_token = Token(2);
        assert_eq!(complaint(table_is_sound(&table)), "the token of a was never drawn");
    }

    #[test]
    fn deadline_without_a_session_or_the_other_way_round_is_seen() {
        let mut table = sound();
        table.parts().deadlines.insert((Stamp(100), id(9)), ());
        assert_eq!(complaint(table_is_sound(&table)), "a deadline without a session");
        let mut table = sound();
        table.parts().deadlines.remove(&(Stamp(100), id(2)));
        assert_eq!(complaint(table_is_sound(&table)), "session 2.0 has no deadline");
        let mut table = sound();
        table.parts().sessions.get_mut(&id(2)).unwrap().deadline = Stamp(99);
        assert_eq!(complaint(table_is_sound(&table)), "session 2.0 has no deadline");
    }
}
