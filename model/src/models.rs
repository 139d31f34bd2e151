//! All models by name, with their bounds.

use crate::cluster::{ClientBounds, Surroundings};
use crate::everything::AllLayers;
use crate::gallery;
use crate::induction::Induction;
use crate::induction::clocks::{self, Clocks};
use crate::induction::consensus::{self, Consensus};
use crate::induction::tables::{self, Tables};
use crate::layers::{
    ALL_KINDS, CALLED, CLIENTS, CLUSTER, EACH, EVERY_START, FENCED, JOINED, LEASES, LOCKS, LOCKS_PERMITS,
    LOCKS_REENTRANT, LOCKS_SEVERAL, LOCKS_SEVERAL_DENIED, LOCKS_SHARED, LOCKS_VALUES, NUMBERED_AND_ONCE, REPLACED,
    STORE, STORE_REPEATED, STORE_SIZES, STORE_WHOLE, WITHOUT_WRITES, cluster, heard, late, membership, prompt, raft,
    reads, transfer,
};
use crate::leases::{self, Leases};
use crate::locks::{self, Locks, Operation, Start};
use crate::membership::{Changes, Operators};
use crate::mutant_models;
use crate::named::{Named, Tier, holds};
use crate::raft::{Proposals, Tape};
use crate::reads::Readers;
use crate::world::{Answers, Bounds, Delivery, Elections, Repeats, World};

/// All models, with the gallery, the quick ones first.
pub fn models() -> Vec<Named> {
    let mut models = consensus();
    models.extend(changes());
    models.extend(reading());
    models.extend(lock_table());
    models.extend(whole());
    models.extend(time());
    models.extend(inductive());
    models.extend(wide());
    models.extend(gallery::models());
    models.extend(mutant_models::models());
    models.sort_by_key(|model| model.tier);
    models
}

fn consensus() -> Vec<Named> {
    vec![
        holds(Tier::Quick, "raft", "3 servers, 2 terms, logs of 2, a crash, 2 messages on their way", || {
            raft(0, Bounds { crashes: 1, delivery: late(2), ..Bounds::default() })
        }),
        holds(Tier::Full, "raft-late", "3 servers, 2 terms, logs of 2, 3 messages on their way", || {
            raft(0, Bounds { delivery: late(3), ..Bounds::default() })
        }),
        holds(Tier::Deep, "raft-repeats", "as raft-late, and every message may arrive any number of times", || {
            raft(0, Bounds { delivery: late(3), repeats: Repeats::Unlimited, ..Bounds::default() })
        }),
        holds(
            Tier::Deep,
            "raft-elections",
            "3 servers, 2 terms, logs of 2, a crash, 2 messages: PreVote and CheckQuorum step by step",
            || {
                let elections = Elections::StepByStep;
                raft(0, Bounds { crashes: 1, delivery: late(2), elections, ..Bounds::default() })
            },
        ),
        holds(
            Tier::Full,
            "raft-clocks",
            "3 servers, 2 terms, logs of 2, 2 messages, 2 ticks of leaders' clocks",
            || raft(2, Bounds { delivery: late(2), ..Bounds::default() }),
        ),
        holds(
            Tier::Full,
            "raft-snapshots",
            "3 servers, 2 terms, logs of 2, a crash, 2 messages on their way, a snapshot",
            || raft(0, Bounds { crashes: 1, snapshots: 1, delivery: late(2), ..Bounds::default() }),
        ),
        holds(
            Tier::Full,
            "raft-transfer",
            "a leader and 2 followers, 2 terms and one more by a call, logs of 3, a heartbeat, 2 messages: PreVote and CheckQuorum step by step",
            || transfer(1, Bounds { log: 3, delivery: late(2), heartbeats: Some(1), ..CALLED }),
        ),
        holds(Tier::Deep, "raft-snapshots-longer", "as raft-snapshots, with logs of 3", || {
            raft(0, Bounds { log: 3, crashes: 1, snapshots: 1, delivery: late(2), ..Bounds::default() })
        }),
        holds(Tier::Full, "raft-five", "5 servers, 2 terms, logs of 2, a crash, a server cut off", || {
            let delivery = Delivery::Prompt { losses: 0, cuts: 1 };
            raft(0, Bounds { servers: 5, log: 2, crashes: 1, delivery, ..Bounds::default() })
        }),
        holds(
            Tier::Deep,
            "raft-three-terms",
            "3 servers, 3 terms, logs of 3, a crash, a heartbeat, 2 messages on their way, answers at once or never",
            || {
                let (delivery, heartbeats) = (Delivery::AnyTime { most: 2, answers: Answers::AtOnce }, Some(1));
                raft(0, Bounds { terms: 3, log: 3, crashes: 1, heartbeats, delivery, ..Bounds::default() })
            },
        ),
        holds(
            Tier::Deep,
            "raft-three-terms-late",
            "as raft-three-terms, with any number of heartbeats, and answers that arrive at any time",
            || raft(0, Bounds { terms: 3, log: 3, crashes: 1, delivery: late(2), ..Bounds::default() }),
        ),
    ]
}

fn changes() -> Vec<Named> {
    vec![
        holds(
            Tier::Full,
            "membership",
            "a leader, 2 followers, a server that joins, 3 terms, logs of 5, a change of each kind, a message lost, one cut off",
            || membership(EACH, 0, Bounds { terms: 3, log: 5, delivery: prompt(1, 1), ..JOINED }),
        ),
        holds(
            Tier::Deep,
            "membership-late",
            "a leader, 2 followers, a server that joins, 2 terms, logs of 5, a change of each kind, 3 messages on their way",
            || membership(EACH, 0, Bounds { log: 5, delivery: heard(3), heartbeats: Some(1), ..JOINED }),
        ),
        holds(
            Tier::Deep,
            "membership-crash",
            "a leader, 2 followers, a server that joins, 2 terms, logs of 5, a change of each kind, a proposal, a crash, one cut off",
            || membership(EACH, 1, Bounds { log: 5, crashes: 1, delivery: prompt(0, 1), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-snapshots",
            "a leader, 2 followers, a server that joins, 2 terms, logs of 5, a change of each kind, a snapshot, one cut off",
            || membership(EACH, 0, Bounds { log: 5, snapshots: 1, delivery: prompt(0, 1), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-rivals",
            "a leader and 3 followers, 3 terms, logs of 4, 2 removals, a message lost, a server cut off",
            || {
                let two = Changes { removals: 2, ..Changes::default() };
                let delivery = prompt(1, 1);
                membership(two, 0, Bounds { servers: 4, joiners: 0, terms: 3, log: 4, delivery, ..JOINED })
            },
        ),
        holds(
            Tier::Full,
            "membership-replaced",
            "a leader, 2 followers, one of which loses its disk and comes back as another server, 3 terms, logs of 5, a message lost, one cut off",
            || membership(REPLACED, 0, Bounds { terms: 3, log: 5, delivery: prompt(1, 1), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-replaced-late",
            "as membership-replaced, with 2 terms, 3 messages on their way",
            || membership(REPLACED, 0, Bounds { log: 5, delivery: heard(3), heartbeats: Some(2), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-replaced-twice",
            "as membership-replaced, with 2 terms, two disks lost, and a crash",
            || {
                let twice = Changes { replacements: 2, ..REPLACED };
                let delivery = prompt(0, 1);
                membership(twice, 0, Bounds { joiners: 2, log: 6, crashes: 1, delivery, ..JOINED })
            },
        ),
    ]
}

fn reading() -> Vec<Named> {
    vec![holds(
        Tier::Full,
        "reads",
        "a leader and 2 followers, 2 terms, logs of 3, 2 reads, a proposal, 3 messages on their way, a heartbeat",
        || reads(2, 1, Bounds { log: 3, delivery: late(3), heartbeats: Some(1), ..CLUSTER }),
    )]
}

fn lock_table() -> Vec<Named> {
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
        holds(Tier::Deep, "locks-all", "as locks, with operations of every kind", || Locks::new(LOCKS)),
    ]
}

fn whole() -> Vec<Named> {
    vec![
        holds(
            Tier::Quick,
            "cluster",
            "3 servers, 2 clients, 1 key, 2 terms, logs of 5, 2 ticks, keepalives, a crash, a resource",
            || cluster(CLIENTS, Bounds { crashes: 1, ..CLUSTER }),
        ),
        holds(Tier::Deep, "cluster-cut", "as cluster, with a server cut off instead of the crash", || {
            cluster(CLIENTS, Bounds { delivery: Delivery::Prompt { losses: 0, cuts: 1 }, ..CLUSTER })
        }),
        holds(Tier::Deep, "cluster-loss", "as cluster, and a message lost between servers", || {
            cluster(CLIENTS, Bounds { crashes: 1, delivery: Delivery::Prompt { losses: 1, cuts: 0 }, ..CLUSTER })
        }),
        holds(Tier::Deep, "cluster-retries", "as cluster, and acquires and releases may arrive twice", || {
            cluster(ClientBounds { arrivals: 2, ..CLIENTS }, Bounds { crashes: 1, ..CLUSTER })
        }),
        holds(
            Tier::Deep,
            "cluster-repeats",
            "3 servers, 3 terms, logs of 5, a tick, a message lost, one that arrives twice; a session that takes 2 locks, and \
             one that takes the first of them",
            || {
                let clients = ClientBounds { keys: 2, ticks: 1, ttl: 0, longer: 1, keepalives: 0, ..CLIENTS };
                let (repeats, delivery) = (Repeats::AtMost(1), Delivery::Prompt { losses: 1, cuts: 0 });
                cluster(clients, Bounds { terms: 3, repeats, delivery, symmetry: true, ..CLUSTER })
            },
        ),
        holds(
            Tier::Deep,
            "cluster-combined",
            "3 servers, 3 terms, logs of 5, a crash, a tick, a message lost, one that arrives twice; a session that takes 2 locks, \
             and one that takes the first of them, every request twice",
            || {
                let clients =
                    ClientBounds { keys: 2, ticks: 1, ttl: 0, longer: 1, arrivals: 2, keepalives: 0, ..CLIENTS };
                let (repeats, delivery) = (Repeats::AtMost(1), Delivery::Prompt { losses: 1, cuts: 0 });
                cluster(clients, Bounds { terms: 3, crashes: 1, repeats, delivery, symmetry: true, ..CLUSTER })
            },
        ),
    ]
}

fn time() -> Vec<Named> {
    vec![
        holds(Tier::Full, "leases-four", "as leases, with 4 terms", || {
            Leases::new(leases::Bounds { elections: 4, ..LEASES })
        }),
        holds(Tier::Deep, "leases", "3 servers, 5 terms, a client, logs of 4, 2 ticks, a lease of a tick", || {
            Leases::new(LEASES)
        }),
        holds(Tier::Deep, "leases-crash", "as leases, with 2 clients, and a crash", || {
            Leases::new(leases::Bounds { clients: 2, crashes: 1, ..LEASES })
        }),
        holds(Tier::Deep, "leases-late", "as leases, with 4 terms, and a message that arrives late", || {
            Leases::new(leases::Bounds { elections: 4, delays: 1, ..LEASES })
        }),
    ]
}

/// Models of induction: single steps, for runs of any depth.
fn inductive() -> Vec<Named> {
    vec![
        holds(
            Tier::Deep,
            "induction-table",
            "any table of 3 sessions and a key, numbered operations: any entry",
            || Induction::new(Tables::new(tables::Bounds { sessions: 3, keys: 1, numbers: 1, sweep: 2 })),
        ),
        holds(Tier::Deep, "induction-two-keys", "any table of 3 sessions and 2 keys: any entry", || {
            Induction::new(Tables::new(tables::Bounds { sessions: 3, keys: 2, numbers: 0, sweep: 3 }))
        }),
        holds(
            Tier::Deep,
            "induction-numbers",
            "any table of 2 sessions and 2 keys, numbered operations: any entry",
            || Induction::new(Tables::new(tables::Bounds { sessions: 2, keys: 2, numbers: 1, sweep: 3 })),
        ),
        holds(
            Tier::Full,
            "induction-clocks",
            "any node with a clock and a log of 2, any leader's log of 3, 3 terms, stamps to 2, ages to 3: any step",
            || Induction::new(Clocks::new(clocks::Bounds { terms: 3, log: 2, leaders_log: 3, stamps: 2, ages: 3 })),
        ),
        holds(Tier::Full, "induction-consensus", "any node of 3 servers, 3 terms, logs of 4: any step", || {
            Induction::new(Consensus::new(consensus::Bounds { servers: 3, terms: 3, log: 4 }))
        }),
        holds(Tier::Full, "induction-consensus-five", "any node of 5 servers, 3 terms, logs of 2: any step", || {
            Induction::new(Consensus::new(consensus::Bounds { servers: 5, terms: 3, log: 2 }))
        }),
    ]
}

/// Models for random walks.
fn wide() -> Vec<Named> {
    let raft = |bounds: Bounds| World::new(bounds.clone(), Tape::default(), Proposals::new(bounds.log, 6));
    vec![
        holds(
            Tier::Random,
            "raft-wide",
            "5 servers, 6 terms, logs of 12, 3 crashes, 5 repeats, 16 messages, 3 AppendEntries on a link",
            move || {
                let (repeats, delivery) = (Repeats::AtMost(5), late(16));
                raft(Bounds {
                    servers: 5,
                    terms: 6,
                    log: 12,
                    crashes: 3,
                    repeats,
                    delivery,
                    appends: 3,
                    ..Bounds::default()
                })
            },
        ),
        holds(
            Tier::Random,
            "raft-wide-elections",
            "3 servers, 8 terms, logs of 12, 3 crashes, 5 repeats, 3 transfers, 10 messages, PreVote and CheckQuorum step by step",
            move || {
                let (repeats, delivery, elections) = (Repeats::AtMost(5), late(10), Elections::StepByStep);
                transfer(
                    3,
                    Bounds {
                        terms: 8,
                        log: 12,
                        crashes: 3,
                        repeats,
                        delivery,
                        appends: 2,
                        elections,
                        ..Bounds::default()
                    },
                )
            },
        ),
        holds(
            Tier::Random,
            "membership-wide",
            "4 servers and one that joins, 6 terms, logs of 12, 4 changes, 3 crashes, 2 snapshots, 5 repeats, 14 messages",
            || {
                let many = Changes { removals: 2, ..EACH };
                let (repeats, delivery) = (Repeats::AtMost(5), late(14));
                let bounds = Bounds { servers: 4, terms: 6, log: 12, crashes: 3, snapshots: 2, ..JOINED };
                membership(many, 4, Bounds { repeats, delivery, appends: 2, ..bounds })
            },
        ),
        holds(
            Tier::Random,
            "reads-wide",
            "5 servers, 6 terms, logs of 12, 8 reads, 6 proposals, 3 crashes, 5 repeats, 14 messages, 2 AppendEntries on a link",
            || {
                let (repeats, delivery) = (Repeats::AtMost(5), late(14));
                let bounds =
                    Bounds { servers: 5, terms: 6, log: 12, crashes: 3, repeats, delivery, ..Bounds::default() };
                reads(8, 6, Bounds { appends: 2, ..bounds })
            },
        ),
        holds(
            Tier::Random,
            "locks-wide",
            "4 sessions, 4 that open later, 3 keys, claims in all modes, on up to 3 keys, reentrant, and with values, 5 numbered operations each, everything without a number, breaks, access rules that change 4 times, transactions on a record, 9 ticks",
            || {
                Locks::new(locks::Bounds {
                    sessions: 4,
                    openings: &EVERY_START,
                    opened: 8,
                    keys: 3,
                    wanted: &ALL_KINDS,
                    operations: 5,
                    numbered: &Operation::ALL,
                    unnumbered: &Operation::ALL,
                    grants: 20,
                    ttl: 3,
                    ticks: 9,
                    breaks: true,
                    revisions: 4,
                    writes: &FENCED,
                    versions: 20,
                    ..LOCKS
                })
            },
        ),
        holds(
            Tier::Random,
            "cluster-wide",
            "3 servers, 3 clients, 5 terms, logs of 16, 9 ticks, 3 crashes, 3 repeats, 10 messages, every request thrice",
            || {
                let clients = ClientBounds {
                    sessions: 3,
                    keys: 1,
                    ticks: 9,
                    ttl: 3,
                    longer: 0,
                    arrivals: 3,
                    keepalives: 3,
                    log: 16,
                    births: true,
                };
                let (repeats, delivery) = (Repeats::AtMost(3), late(10));
                let bounds = Bounds { terms: 5, log: 16, crashes: 3, repeats, delivery, appends: 2, ..CLUSTER };
                cluster(clients, bounds)
            },
        ),
        holds(
            Tier::Random,
            "cluster-wide-prompt",
            "3 servers, 3 sessions, 2 keys, 6 terms, logs of 16, 6 ticks, 2 crashes, 6 messages lost, 2 late, 2 repeated, 2 \
             snapshots, 2 servers at a time cut off 6 times, every request thrice",
            || cluster(WIDE_CLIENTS, WIDE),
        ),
        holds(
            Tier::Random,
            "everything-wide",
            "as cluster-wide-prompt, with a server that joins, an addition, a promotion, a removal, 3 transfers and 4 reads",
            || {
                let operators = Operators::new(EACH, 0, WIDE.log);
                let (clients, readers) = (Surroundings::new(WIDE_CLIENTS), Readers::new(4, 0, 0));
                let layers = AllLayers { clients, operators, transfers: 3, readers };
                World::new(Bounds { joiners: 1, ..WIDE }, Surroundings::table(&WIDE_CLIENTS), layers)
            },
        ),
    ]
}

/// Clients and time, far past the bounds of exhaustive exploration.
const WIDE_CLIENTS: ClientBounds = ClientBounds {
    sessions: 3,
    keys: 2,
    ticks: 6,
    ttl: 1,
    longer: 1,
    arrivals: 3,
    keepalives: 3,
    log: 16,
    births: true,
};

/// Three servers with prompt messages and repeated faults of every kind.
const WIDE: Bounds = Bounds {
    terms: 6,
    log: 16,
    crashes: 2,
    snapshots: 2,
    repeats: Repeats::AtMost(2),
    delivery: Delivery::Prompt { losses: 6, cuts: 6 },
    late: 2,
    apart: 2,
    ..CLUSTER
};
