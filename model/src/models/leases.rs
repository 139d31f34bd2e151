//! Models of leases: time and elections, in the smallest cluster that has both.

use crate::layers::LEASES;
use crate::leases::{self, Leases};
use crate::named::{Named, Tier, holds};

pub(super) fn models() -> Vec<Named> {
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
