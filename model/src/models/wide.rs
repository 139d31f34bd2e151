//! Models for random walks, far past the bounds of exhaustive exploration.

use crate::cluster::{ClientBounds, Surroundings};
use crate::everything::AllLayers;
use crate::layers::{
    ALL_KINDS, CLUSTER, EACH, EVERY_START, FENCED, JOINED, LOCKS, cluster, late, membership, reads, transfer,
};
use crate::locks::{self, Locks, Operation};
use crate::membership::{Changes, Operators};
use crate::named::{Named, Tier, holds};
use crate::raft::{Proposals, Tape};
use crate::reads::Readers;
use crate::world::{Bounds, Delivery, Elections, Repeats, World};

pub(super) fn models() -> Vec<Named> {
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
