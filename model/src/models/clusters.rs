//! Models of whole clusters: consensus, the lock table, clients.

use crate::cluster::ClientBounds;
use crate::layers::{CLIENTS, CLUSTER, cluster};
use crate::named::{Named, Tier, holds};
use crate::world::{Bounds, Delivery, Repeats};

pub(super) fn models() -> Vec<Named> {
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
