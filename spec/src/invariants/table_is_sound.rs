//! Invariants of a lock table, after every entry.

use alloc::collections::{BTreeMap, BTreeSet};

use super::transactions_are_whole::bytes;
use super::{Check, Property};
use crate::lock::{Holder, Key, Keys, Lock, LockTable, Mode, RECORD_BYTES, Record, Sequence, SessionId, Token, Value};
use crate::raft::StateMachine;
use crate::require;

const NAME: Property = Property::TableSoundness;

/// Compares the table's parts, which are redundant for fast lookups.
pub fn table_is_sound(table: &LockTable) -> Check {
    let mut stand = 0;
    let mut grants = BTreeMap::new();
    for (key, lock) in table.locks().iter() {
        stand += lock_is_sound(table, key, lock)?;
        for holder in lock.holders.iter() {
            let grant = (holder.session, holder.keys(key));
            let known = grants.insert(holder.token, grant.clone());
            let is_one = known.as_ref().is_none_or(|known| *known == grant);
            require!(NAME, is_one, "{known:?} and {grant:?} were granted with token {}", holder.token)?;
        }
    }
    // The loop above shows that every holder and waiter claims its key. If there are as many claims
    // as holders and waiters, the converse also holds.
    let claims: usize = table.sessions().values().map(|session| session.claims().len()).sum();
    for (&id, session) in table.sessions().iter() {
        require!(NAME, table.deadlines().contains_key(&(session.deadline, id)), "session {id} has no deadline")?;
        for key in session.claims().iter().filter(|_| claims != stand) {
            let claimed = table.lock(key).is_some_and(|lock| lock.claim_index(id).is_some());
            require!(NAME, claimed, "session {id} claims {key}, which knows nothing of it")?;
        }
    }
    require!(NAME, table.deadlines().len() == table.sessions().len(), "a deadline without a session")?;
    let (first, next) = (table.sessions().values().map(|session| session.deadline).min(), table.next_deadline());
    require!(NAME, next == first, "the next deadline is {first:?}, not {next:?}")?;
    let mut contended = BTreeMap::new();
    for lock in table.locks().values().filter(|lock| !lock.queue.is_empty()) {
        if let Some(holder) = lock.holders.first() {
            *contended.entry((table.sessions()[&holder.session].deadline, holder.session)).or_insert(0) += 1;
        }
    }
    let is_listed = table.contended().iter().eq(&contended);
    require!(NAME, is_listed, "the first holders of locks with waiters are {contended:?}")?;
    let (bytes, counted) = (claimed_bytes(table), table.claimed_bytes());
    require!(NAME, bytes == counted, "the claims have {bytes} bytes, and {counted} are counted")?;
    store_is_sound(table)
}

/// The bytes of all claims: of each, at each of its keys, that key, all its keys if there are several, its value,
/// and 64 more.
fn claimed_bytes(table: &LockTable) -> u64 {
    let length = |key: &Key| key.as_str().len();
    let of_claim = |key: &Key, keys: &[Key], value: Option<&Value>| {
        let several = if let [_] = keys { 0 } else { keys.iter().map(length).sum() };
        length(key) + several + value.map_or(0, |value| value.as_str().len()) + 64
    };
    let of_lock = |(key, lock): (&Key, &Lock)| {
        let holders = lock.holders.iter().map(|holder| of_claim(key, holder.all_keys(key), holder.value()));
        let waiters = lock.queue.iter().map(|waiter| of_claim(key, waiter.all_keys(key), waiter.value()));
        holders.chain(waiters).sum::<usize>()
    };
    table.locks().iter().map(of_lock).sum::<usize>() as u64
}

/// Checks that the records have versions and fences that were given, and are no larger than they may be;
/// and that their bytes are counted.
fn store_is_sound(table: &LockTable) -> Check {
    for (key, Record { bytes, version, fence, .. }) in table.records().iter() {
        require!(NAME, *version < table.next_version(), "the version {version} of {key} was never given")?;
        let is_drawn = fence.is_none_or(|fence| fence < table.next_token());
        require!(NAME, is_drawn, "the fence {fence:?} of {key} was never drawn")?;
        let length = bytes.as_slice().len();
        require!(NAME, length <= RECORD_BYTES, "{key} has {length} bytes")?;
    }
    let (bytes, counted) = (bytes(table), table.stored_bytes());
    require!(NAME, bytes == counted, "the records have {bytes} bytes, and {counted} are counted")
}

/// Checks one lock, and counts its claims.
fn lock_is_sound(table: &LockTable, key: &Key, lock: &Lock) -> Result<usize, super::Violation> {
    let mut seen = BTreeSet::new();
    let size = claims(key, lock).next().map(|claim| claim.mode.of());
    require!(NAME, size.is_some(), "{key} is neither held nor waited for")?;
    for claim in claims(key, lock) {
        let id = claim.session;
        require!(NAME, seen.insert(id), "session {id} stands twice at {key}")?;
        let Some(session) = table.session(id) else {
            require!(NAME, false, "session {id} at {key} does not live")?;
            continue;
        };
        require!(NAME, session.claims_key(key), "session {id} does not know of its claim on {key}")?;
        require!(NAME, Some(claim.mode.of()) == size, "{key} has claims of two sizes")?;
        let is_here = claim.keys.iter().any(|claimed| claimed == key);
        require!(NAME, is_here, "session {id} stands at {key} with a claim on other keys")?;
        for other in claim.keys.iter().filter(|other| *other != key) {
            let mut there = table.lock(other).into_iter().flat_map(|lock| claims(other, lock));
            require!(
                NAME,
                there.any(|there| there == claim),
                "session {id} has another claim on {other} than on {key}"
            )?;
        }
    }
    let in_order = lock.holders.windows(2).all(|pair| pair[0].token < pair[1].token);
    require!(NAME, in_order, "the holders of {key} are not in the order of their grants")?;
    for Holder { token, holds, .. } in lock.holders.iter() {
        require!(NAME, *token < table.next_token(), "the token of {key} was never drawn")?;
        require!(NAME, *holds > 0, "a holder of {key} has no hold")?;
    }
    let permits: u64 = lock.holders.iter().map(|holder| u64::from(holder.mode.permits())).sum();
    require!(NAME, size.is_some_and(|size| permits <= u64::from(size)), "{permits} permits of {key} are taken")?;
    Ok(seen.len())
}

/// A claim, as each of its keys shows it.
#[derive(PartialEq, Eq)]
struct Shown {
    session: SessionId,
    sequence: Option<Sequence>,
    mode: Mode,
    keys: Keys,
    /// The token and the holds of a holder.
    grant: Option<(Token, u32)>,
}

/// The claims on a key: those of its holders, then those of its waiters.
fn claims(key: &Key, lock: &Lock) -> impl Iterator<Item = Shown> {
    let holders = lock.holders.iter().map(move |holder| {
        let Holder { session, sequence, mode, token, holds, .. } = *holder;
        Shown { session, sequence, mode, keys: holder.keys(key), grant: Some((token, holds)) }
    });
    let waiters = lock.queue.iter().map(move |waiter| Shown {
        session: waiter.session,
        sequence: waiter.sequence,
        mode: waiter.mode,
        keys: waiter.keys(key),
        grant: None,
    });
    holders.chain(waiters)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::table_is_sound;
    use crate::invariants::states::{acquire, complaint, id, key, put, table, under, written};
    use crate::lock::{Bytes, Command, Keys, LockRequest, LockTable, Mode, Sequence, Token, Version, Waiter};
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
            let waiter = Waiter::new(id(twice), None, &LockRequest::exclusive("k", true));
            lock.queue.change(|queue| queue.push_back(waiter));
            assert_eq!(complaint(table_is_sound(&table)), alloc::format!("session {twice}.0 stands twice at k"));
        }
    }

    #[test]
    fn holders_that_are_not_in_the_order_of_their_grants_are_seen() {
        let mut table = table(2);
        for session in [1, 2] {
            let request = LockRequest { mode: Mode::SHARED, ..LockRequest::exclusive("k", true) };
            table.apply(Stamp(0), &Command::Acquire { session: id(session), sequence: None, request });
        }
        let complaint = |tokens: [u64; 2]| {
            let mut table = table.clone();
            let lock = table.parts().locks.get_mut(&key("k")).unwrap();
            tokens.into_iter().enumerate().for_each(|(at, token)| lock.holders.at(at).token = Token(token));
            complaint(table_is_sound(&table))
        };
        assert_eq!(complaint([1, 2]), "");
        for wrong in [[2, 1], [1, 1]] {
            assert_eq!(complaint(wrong), "the holders of k are not in the order of their grants", "{wrong:?}");
        }
    }

    #[test]
    fn claim_that_differs_from_key_to_key_is_seen() {
        let both =
            LockRequest { keys: Keys::new(vec![key("a"), key("b")]).unwrap(), ..LockRequest::exclusive("a", true) };
        let damaged = |name: &str, claim: Waiter| {
            let mut table = table(2);
            let holder = Command::Acquire { session: id(1), sequence: None, request: both.clone() };
            let waiter = Command::Acquire { session: id(2), sequence: None, request: both.clone() };
            table.apply(Stamp(0), &holder);
            table.apply(Stamp(0), &waiter);
            assert_eq!(complaint(table_is_sound(&table)), "");
            table.parts().locks.get_mut(&key(name)).unwrap().queue.change(|queue| queue[0] = claim);
            complaint(table_is_sound(&table))
        };
        let numbered = Waiter::new(id(2), Sequence::new(1), &both);
        assert_eq!(damaged("b", numbered), "session 2.0 has another claim on b than on a");
        let alone = Waiter::new(id(2), None, &LockRequest::exclusive("b", true));
        assert_eq!(damaged("b", alone), "session 2.0 has another claim on b than on a");
        let elsewhere = LockRequest { keys: Keys::new(vec![key("b"), key("c")]).unwrap(), ..both.clone() };
        let elsewhere = Waiter::new(id(2), None, &elsewhere);
        assert_eq!(damaged("a", elsewhere), "session 2.0 stands at a with a claim on other keys");
    }

    #[test]
    fn holder_of_a_lock_with_waiters_that_is_not_listed_as_such_is_seen() {
        let complains = |table: &LockTable| complaint(table_is_sound(table)).starts_with("the first holders of locks");
        let entry = (Stamp(100), id(1));
        let (mut missing, mut miscounted, mut idle) = (sound(), sound(), sound());
        missing.parts().contended.remove(&entry);
        miscounted.parts().contended.insert(entry, 2);
        idle.parts().contended.insert((Stamp(100), id(2)), 1);
        assert!([missing, miscounted, idle].iter().all(complains));
    }

    #[test]
    fn claims_that_do_not_add_up_are_seen() {
        for (counted, change) in [(261, 1), (259, -1)] {
            let mut table = sound();
            let claimed = table.parts().claimed;
            *claimed = claimed.wrapping_add_signed(change);
            let complaint = complaint(table_is_sound(&table));
            assert_eq!(complaint, alloc::format!("the claims have 260 bytes, and {counted} are counted"));
        }
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
    fn store_that_does_not_add_up_is_seen() {
        let stored = |damage: fn(&mut LockTable)| {
            let mut table = sound();
            written(&mut table, 0, under(&[put("r", "x")], &[("k", 1)]));
            damage(&mut table);
            complaint(table_is_sound(&table))
        };
        assert_eq!(stored(|_| ()), "");
        for (damage, complaint) in [
            (
                (|table| *table.store_parts().bytes += 1) as fn(&mut LockTable),
                "the records have 66 bytes, and 67 are counted",
            ),
            (|table| *table.store_parts().next_version = Version(1), "the version 1 of r was never given"),
            (
                |table| table.store_parts().record("r").fence = Some(Token(3)),
                "the fence Some(Token(3)) of r was never drawn",
            ),
            (
                |table| table.store_parts().record("r").bytes = Bytes::from("x".repeat(65_537).as_str()),
                "r has 65537 bytes",
            ),
        ] {
            assert_eq!(stored(damage), complaint);
        }
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
