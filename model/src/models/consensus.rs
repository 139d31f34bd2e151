//! Models of consensus: elections, replication, membership, reads.

use crate::layers::{CALLED, CLUSTER, EACH, JOINED, REPLACED, heard, late, membership, prompt, raft, reads, transfer};
use crate::membership::Changes;
use crate::named::{Named, Tier, holds};
use crate::world::{Answers, Bounds, Delivery, Elections, Repeats};

pub(super) fn models() -> Vec<Named> {
    [elections_and_logs(), changes(), reading()].into_iter().flatten().collect()
}

fn elections_and_logs() -> Vec<Named> {
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
            "membership-one",
            "a server, and one that joins, 3 terms, logs of 5, an addition, 2 promotions, a removal, a crash, 2 heartbeats, 2 messages on their way: PreVote and CheckQuorum step by step",
            || {
                let changes = Changes { promotions: 2, ..EACH };
                let (delivery, heartbeats, elections) = (late(2), Some(2), Elections::StepByStep);
                let bounds = Bounds { servers: 1, joiners: 1, terms: 3, log: 5, crashes: 1, ..Bounds::default() };
                membership(changes, 0, Bounds { delivery, heartbeats, elections, ..bounds })
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
