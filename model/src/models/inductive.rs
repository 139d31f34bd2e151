//! Models of induction: single steps, for runs of any depth.

use crate::induction::Induction;
use crate::induction::clocks::{self, Clocks};
use crate::induction::consensus::{self, Consensus};
use crate::induction::tables::{self, Tables};
use crate::named::{Named, Tier, holds};

pub(super) fn models() -> Vec<Named> {
    vec![
        holds(
            Tier::Deep,
            "induction-table",
            "any table of 3 sessions and a key, numbered operations: any entry",
            || Induction::new(Tables::new(tables::Bounds { sessions: 3, keys: 1, numbers: 1, sweep: 2, mixed: false })),
        ),
        holds(Tier::Deep, "induction-two-keys", "any table of 3 sessions and 2 keys: any entry", || {
            Induction::new(Tables::new(tables::Bounds { sessions: 3, keys: 2, numbers: 0, sweep: 3, mixed: false }))
        }),
        holds(
            Tier::Full,
            "induction-numbers",
            "any table of 2 sessions and 2 keys, numbered operations: any entry",
            || Induction::new(Tables::new(tables::Bounds { sessions: 2, keys: 2, numbers: 1, sweep: 3, mixed: false })),
        ),
        holds(
            Tier::Full,
            "induction-table-shared",
            "any table of 2 sessions and a key, claims in four modes, with one hold or two, with a value or without: any entry",
            || Induction::new(Tables::new(tables::Bounds { sessions: 2, keys: 1, numbers: 0, sweep: 2, mixed: true })),
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
