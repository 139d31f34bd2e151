//! Models of the lock table.

use crate::layers::{
    EVERY_START, LOCKS, LOCKS_PERMITS, LOCKS_REENTRANT, LOCKS_SEVERAL, LOCKS_SEVERAL_DENIED, LOCKS_SHARED,
    LOCKS_VALUES, NUMBERED_AND_ONCE, STORE, STORE_HOSTILE, STORE_REPEATED, STORE_SIZES, STORE_WHOLE, WITHOUT_WRITES,
};
use crate::locks::{self, Locks, Operation, Start};
use crate::named::{Named, Tier, holds};

pub(super) fn models() -> Vec<Named> {
    vec![
        holds(
            Tier::Quick,
            "locks",
            "3 sessions, 1 key, 2 operations each, late, repeated and lost; keepalives, closes, expiry at any moment",
            || Locks::new(locks::Bounds { numbered: &[Operation::Wait, Operation::Release], ..LOCKS }),
        ),
        holds(Tier::Full, "locks-two-keys", "as locks, with 2 keys, and one operation of any kind each", || {
            Locks::new(locks::Bounds { keys: 2, operations: 1, ..LOCKS })
        }),
        holds(Tier::Full, "locks-without-session", "as locks, with 2 sessions, and 2 that acquires open", || {
            Locks::new(locks::Bounds {
                sessions: 2,
                openings: &[Start::Wait],
                opened: 4,
                numbered: &[Operation::Wait, Operation::Release],
                ..LOCKS
            })
        }),
        holds(
            Tier::Deep,
            "locks-unnumbered",
            "3 sessions, 2 keys, every request there is without a number, any number of times, 4 grants",
            || Locks::new(locks::Bounds { keys: 2, operations: 0, unnumbered: &WITHOUT_WRITES, grants: 4, ..LOCKS }),
        ),
        holds(
            Tier::Deep,
            "locks-once-all",
            "as locks-unnumbered, with 1 key, and 4 sessions that open at any moment, by themselves or for the lock",
            || {
                Locks::new(locks::Bounds {
                    sessions: 0,
                    openings: &EVERY_START,
                    opened: 4,
                    operations: 0,
                    unnumbered: &WITHOUT_WRITES,
                    grants: 4,
                    ..LOCKS
                })
            },
        ),
        holds(
            Tier::Full,
            "locks-mixed",
            "2 sessions with a numbered operation each, one that opens later, everything without a number, 3 grants",
            || {
                Locks::new(locks::Bounds {
                    sessions: 2,
                    openings: &EVERY_START,
                    operations: 1,
                    numbered: &[Operation::Wait, Operation::Release],
                    unnumbered: &WITHOUT_WRITES,
                    grants: 3,
                    ..LOCKS
                })
            },
        ),
        holds(
            Tier::Full,
            "locks-hostile",
            "2 sessions with a numbered operation each, one that an acquire opens; strangers that know all but a session's proof: every request in its name, 3 grants",
            || Locks::new(locks::Bounds { strangers: true, ..NUMBERED_AND_ONCE }),
        ),
        holds(
            Tier::Full,
            "locks-broken",
            "2 sessions, 2 keys, one session more that an acquire opens; acquires that wait, releases and withdrawals at any moment; operators that break any past grant, 3 grants",
            || {
                Locks::new(locks::Bounds {
                    sessions: 2,
                    openings: &[Start::Wait],
                    keys: 2,
                    operations: 0,
                    unnumbered: &[Operation::Wait, Operation::Release, Operation::Withdraw],
                    grants: 3,
                    breaks: true,
                    ..LOCKS
                })
            },
        ),
        holds(
            Tier::Full,
            "locks-denied",
            "as locks-hostile, with breaks, and access rules that any client sets twice at any moment, instead of strangers",
            || Locks::new(locks::Bounds { breaks: true, revisions: 2, ..NUMBERED_AND_ONCE }),
        ),
        holds(
            Tier::Full,
            "locks-once-denied",
            "a session, and 2 that acquires open; acquires, withdrawals and releases at any moment; access rules that any client sets twice, 3 grants",
            || {
                Locks::new(locks::Bounds {
                    sessions: 1,
                    openings: &[Start::Wait],
                    operations: 0,
                    unnumbered: &[Operation::Wait, Operation::Try, Operation::Release, Operation::Leave],
                    grants: 3,
                    revisions: 2,
                    ..LOCKS
                })
            },
        ),
        holds(
            Tier::Full,
            "locks-several-denied",
            "a session, and 2 that acquires open; 2 keys, claims on one and on both: acquires and releases at any moment; operators that break any past grant, access rules that any client sets twice, 3 grants",
            || Locks::new(LOCKS_SEVERAL_DENIED),
        ),
        holds(
            Tier::Full,
            "locks-shared",
            "3 sessions, 1 key, exclusive and shared claims: acquires, releases and withdrawals at any moment, 4 grants",
            || Locks::new(LOCKS_SHARED),
        ),
        holds(
            Tier::Full,
            "locks-permits",
            "as locks-shared, with claims of 1 and 2 permits of 3, and of another size; 2 permits only in a queue of 1",
            || Locks::new(LOCKS_PERMITS),
        ),
        holds(
            Tier::Full,
            "locks-several",
            "as locks-shared, with exclusive claims on 2 keys at once, and on each of them",
            || Locks::new(LOCKS_SEVERAL),
        ),
        holds(
            Tier::Full,
            "locks-reentrant",
            "a session with 4 numbered operations, 2 that acquires open, 1 key: reentrant acquires and releases, late and repeated",
            || Locks::new(LOCKS_REENTRANT),
        ),
        holds(
            Tier::Full,
            "locks-values",
            "a session with 3 numbered operations, 2 that acquires open, 1 key, claims with a value and without; new values, late and repeated, releases and new values of any past grant at any moment, 2 grants",
            || Locks::new(LOCKS_VALUES),
        ),
        holds(
            Tier::Full,
            "store",
            "2 sessions, 1 key, 1 record; acquires and releases, writes, appends and deletions with any past grant, with any version and without, by both sessions and by a client without one, at any moment; 3 grants, 4 transactions",
            || Locks::new(STORE),
        ),
        holds(
            Tier::Full,
            "store-repeated",
            "a session with 3 numbered operations, one that an acquire opens, 1 key, 2 records; transactions late and repeated, and with any past grant at any moment; 2 grants, 3 transactions",
            || Locks::new(STORE_REPEATED),
        ),
        holds(
            Tier::Full,
            "store-whole",
            "2 sessions of 2 clients, 2 keys, 2 records; transactions on both records, under both locks, at any moment, by every client; access rules that any client sets once; 2 grants, 3 transactions",
            || Locks::new(STORE_WHOLE),
        ),
        holds(
            Tier::Full,
            "store-sizes",
            "1 session, 2 records of up to 65,536 bytes, transactions that make one too long, that grow a full store, and that shrink it; 3 transactions",
            || Locks::new(STORE_SIZES),
        ),
        holds(
            Tier::Full,
            "store-hostile",
            "2 sessions, 1 key, 1 record; acquires, releases and transactions at any moment; strangers that know all but a session's proof: every request in its name, transactions too; 2 grants, 3 transactions",
            || Locks::new(STORE_HOSTILE),
        ),
        holds(Tier::Deep, "locks-all", "as locks, with operations of every kind", || Locks::new(LOCKS)),
    ]
}
