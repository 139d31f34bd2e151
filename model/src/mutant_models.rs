//! Small models, each made to find some of the mutants fast.
//!
//! They are also explored to the end without a mutant, so that a violation is the mutant's doing.
//! Their bounds are too small for some of the properties that must be possible: larger models show
//! those.

use std::io;
use std::net::TcpListener;

use palisade_spec::raft::NodeId;

use crate::check::verdict::{Effort, Verdict};
use crate::cluster::ClientBounds;
use crate::induction::Induction;
use crate::induction::consensus::{self, Consensus};
use crate::induction::tables::{self, Tables};
use crate::layers::{
    CALLED, CLIENTS, CLUSTER, EACH, EVERY_START, JOINED, LOCKS, STORE_NUMBERS, WITHOUT_WRITES, cluster, heard, late,
    membership, prompt, raft, reads, transfer, transfer_in_time,
};
use crate::locks::{self, Locks, Operation, Start};
use crate::membership::{Changes, addition};
use crate::named::{Named, Run, Tier, holds};
use crate::simulate::Walks;
use crate::trace::Trace;
use crate::world::{Bounds, Elections, Repeats};

/// A model whose bounds exclude some of the properties that must be possible in its layer.
struct Small {
    model: Box<dyn Run>,
    beyond: &'static [&'static str],
}

impl Small {
    fn has_room_for(&self, property: &str) -> bool {
        !self.beyond.contains(&property)
    }
}

impl Run for Small {
    fn attempt(&self, effort: &Effort) -> Verdict {
        let mut verdict = self.model.attempt(effort);
        verdict.unmet.retain(|property| self.has_room_for(property));
        verdict
    }

    fn properties(&self) -> Vec<(&'static str, bool)> {
        let properties = self.model.properties().into_iter();
        properties.filter(|(property, possible)| !possible || self.has_room_for(property)).collect()
    }

    fn trace(&self, property: &str) -> Option<Trace> {
        self.model.trace(property)
    }

    fn retrace(&self, property: &str, choices: &[usize]) -> Option<Trace> {
        self.model.retrace(property, choices)
    }

    fn witnesses(&self, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)> {
        self.model.witnesses(sought, most)
    }

    fn violated(&self, choices: &[usize]) -> Option<Vec<&'static str>> {
        self.model.violated(choices)
    }

    fn wander(&self, seed: u64, steps: usize) -> Option<Trace> {
        self.model.wander(seed, steps)
    }

    fn follow(&self, events: &[serde_json::Value]) -> Option<Trace> {
        self.model.follow(events)
    }

    fn walk(&self, seed: u64, states: usize) -> Walks {
        self.model.walk(seed, states)
    }

    fn search(&self, seed: u64, states: usize) -> Walks {
        self.model.search(seed, states)
    }

    fn explore(&self, name: &str, listener: TcpListener) -> io::Result<()> {
        self.model.explore(name, listener)
    }
}

/// Properties that must be possible in larger models, and are not in these.
const BEYOND: &[(&str, &[&str])] = &[
    ("raft-votes", ONE_ENTRY),
    ("raft-even", ONE_ENTRY),
    ("raft-stale", &["every server has applied a proposal"]),
    ("raft-figure-3-7", &["every server has applied a proposal"]),
    (
        "raft-snapshot-overtaken",
        &[
            "two servers think they lead",
            "a leader inherits a committed entry",
            "two logs conflict",
            "an entry of an earlier term is committed",
        ],
    ),
    (
        "raft-clocks-overtaken",
        &[
            "two servers think they lead",
            "two servers gave their votes to different candidates",
            "a leader inherits a committed entry",
            "two logs conflict",
            "an entry of an earlier term is committed",
        ],
    ),
    (
        "raft-one",
        &[
            "two servers think they lead",
            "two servers gave their votes to different candidates",
            "two logs conflict",
            "an entry of an earlier term is committed",
            "a server has another one's snapshot",
            "a snapshot is on its way to a server that needs it no more",
            "a leader's log lacks what a follower needs",
        ],
    ),
    ("raft-five-late", &["every server has applied a proposal"]),
    ("raft-called", &["an entry of an earlier term is committed"]),
    (
        "raft-called-late",
        &["an entry of an earlier term is committed", "two servers gave their votes to different candidates"],
    ),
    (
        "raft-called-clocks",
        &[
            "two servers gave their votes to different candidates",
            "every server has applied a proposal",
            "an entry of an earlier term is committed",
        ],
    ),
    (
        "membership-snapshot-overtaken",
        &[
            "two leaders have different members",
            "two leaders have a change under way",
            "a change stands in a log where another entry is committed",
            "a change is gone from every log",
            "a removal is committed",
            "a leader that is no member leads on",
            "a leader removed itself, and leads no more",
            "a server that joined votes for itself or another",
            "a server that joined leads",
            "a server votes for one that it does not know as a member",
        ],
    ),
    ("membership-changes", ONE_TERM),
    ("membership-compacted", ONE_TERM),
    ("reads-cut", &["a read is answered from less than was acknowledged since", "two reads share a round"]),
    ("reads-lost", &["a read is answered from less than was acknowledged since", "two reads share a round"]),
    ("reads-late", &["two reads share a round"]),
    (
        "reads-learner",
        &[
            "a read is answered from less than was acknowledged since",
            "two reads share a round",
            "a read waits for the next round",
        ],
    ),
    ("clocks", NO_REQUEST),
    ("cluster-deposed", ONE_CLIENT),
    ("cluster-away", ONE_CLIENT),
    ("cluster-keepalives", ONE_CLIENT),
    ("cluster-late", ONE_CLIENT),
    ("cluster-snapshots", ONE_CLIENT),
    (
        "locks-try",
        &[
            "two wait for a lock",
            "a waiter is due, and one behind it lives",
            "a release may arrive when the lock is another's",
        ],
    ),
    (
        "locks-withdraw",
        &["two wait for a lock", "a waiter is due, and one behind it lives", "more sessions are due than a sweep ends"],
    ),
    ("locks-sweeps", &["more sessions are due than a sweep ends", "a release may arrive when the lock is another's"]),
    (
        "locks-three-keys",
        &[
            "two wait for a lock",
            "a session is due to expire",
            "more sessions are due than a sweep ends",
            "a waiter is due, and one behind it lives",
            "a waiter is due to be granted an expired holder's lock",
            "a release may arrive when the lock is another's",
        ],
    ),
    ("locks-asked", TWO_SESSIONS),
    ("locks-renumbered", TWO_SESSIONS),
    ("locks-once-keys", TWO_SESSIONS),
    ("induction-session", &["a sweep ends two sessions", "a sweep ends a holder, and a waiter is granted the lock"]),
];

/// Not possible with logs of one entry in one term.
const ONE_ENTRY: &[&str] = &[
    "two servers think they lead",
    "a leader inherits a committed entry",
    "a proposal is committed",
    "every server has applied a proposal",
    "two logs conflict",
    "an entry of an earlier term is committed",
    "a cluster goes on after a crash",
];

/// Properties that need three sessions.
const TWO_SESSIONS: &[&str] = &["two wait for a lock", "a waiter is due, and one behind it lives"];
/// Not possible without a second leader.
const ONE_TERM: &[&str] = &[
    "two leaders have different members",
    "two leaders have a change under way",
    "a change stands in a log where another entry is committed",
    "a change is gone from every log",
    "a server that joined votes for itself or another",
    "a server that joined leads",
    "a server votes for one that it does not know as a member",
    "two servers think they lead",
];

/// Properties that need two clients.
const ONE_CLIENT: &[&str] = &[
    "a client waits in the queue",
    "both clients wrote, one after the other",
    "a stale write is refused; without fencing it would be done",
];

/// Properties that need a client's request.
const NO_REQUEST: &[&str] = &[
    "a client is told of its grant",
    "both clients were granted the lock, one after the other",
    "a session expired",
    "a client waits in the queue",
    "a lease outlives a leader",
    "both clients wrote, one after the other",
    "a stale write is refused; without fencing it would be done",
];

/// All small models.
pub(crate) fn models() -> Vec<Named> {
    let models = [
        consensus(
            "raft-votes",
            "3 servers, 1 term, logs of 1, a crash at any output, 3 messages on their way",
            Bounds { terms: 1, log: 1, crashes: 1, ..Bounds::default() },
        ),
        consensus(
            "raft-even",
            "4 servers, 1 term, logs of 1, 4 messages on their way, answers at once",
            Bounds { servers: 4, terms: 1, log: 1, delivery: heard(4), ..Bounds::default() },
        ),
        consensus(
            "raft-prompt",
            "3 servers, 3 terms, logs of 3, 2 messages lost, one server at a time cut off, twice",
            Bounds { terms: 3, log: 3, delivery: prompt(2, 2), ..Bounds::default() },
        ),
        consensus(
            "raft-pipelined",
            "a leader and 2 followers, 2 terms, logs of 3, a heartbeat, a link has room for 2 AppendEntries",
            Bounds { log: 3, appends: 2, starts_with_leader: true, heartbeats: Some(1), ..Bounds::default() },
        ),
        consensus(
            "raft-stale",
            "3 servers, 3 terms, logs of 2, 3 messages on their way, answers at once, no heartbeats",
            Bounds { terms: 3, heartbeats: Some(0), delivery: heard(3), ..Bounds::default() },
        ),
        consensus(
            "raft-heartbeat",
            "3 servers, 3 terms, logs of 2, 2 messages on their way, answers at once, a heartbeat",
            Bounds { terms: 3, heartbeats: Some(1), delivery: heard(2), ..Bounds::default() },
        ),
        consensus(
            "raft-figure-3-7",
            "3 servers, 4 terms, logs of 2, 2 messages on their way, answers at once, no heartbeats, an entry a message",
            Bounds { terms: 4, heartbeats: Some(0), batch: 1, delivery: heard(2), ..Bounds::default() },
        ),
        consensus(
            "raft-snapshot-overtaken",
            "3 servers, 1 term, logs of 2, 2 messages on their way, a snapshot",
            Bounds { terms: 1, snapshots: 1, delivery: late(2), ..Bounds::default() },
        ),
        clocks(
            "raft-clocks-overtaken",
            "a leader and 2 followers, 1 term, logs of 2, a tick, 2 heartbeats, a link has room for 2 AppendEntries",
            Bounds { terms: 1, appends: 2, starts_with_leader: true, heartbeats: Some(2), ..Bounds::default() },
        ),
        clocks(
            "raft-one",
            "a server, 2 terms, logs of 3, a tick, a crash, a snapshot: elections step by step",
            Bounds {
                servers: 1,
                log: 3,
                crashes: 1,
                snapshots: 1,
                delivery: prompt(0, 0),
                elections: Elections::StepByStep,
                ..Bounds::default()
            },
        ),
        consensus(
            "raft-limits",
            "a leader and 2 followers, 2 terms, logs of 4, 2 messages on their way, a heartbeat, an entry a step: sent, and committed",
            Bounds { log: 4, delivery: late(2), heartbeats: Some(1), inflight: 1, commits: 1, ..CLUSTER },
        ),
        clocks(
            "raft-snapshots-clocks",
            "3 servers, 2 terms, logs of 2, a tick, 2 messages on their way, answers at once, a snapshot, a heartbeat",
            Bounds { snapshots: 1, heartbeats: Some(1), delivery: heard(2), ..Bounds::default() },
        ),
        holds(
            Tier::Full,
            "raft-five-late",
            "a leader and 4 followers, 3 terms, logs of 3, a message lost, a server cut off beside one that is: its answer is late",
            || {
                let bounds =
                    Bounds { servers: 5, terms: 3, log: 3, heartbeats: Some(0), delivery: prompt(1, 1), ..CLUSTER };
                raft(0, Bounds { late: 1, apart: 2, ..bounds }).with_a_late_answer()
            },
        ),
        holds(
            Tier::Full,
            "raft-called",
            "a leader and 2 followers that campaign only if they are called, twice, logs of 3, 2 messages on their way",
            || transfer(2, Bounds { terms: 1, log: 3, delivery: late(2), heartbeats: Some(1), ..CALLED }),
        ),
        holds(
            Tier::Full,
            "raft-called-late",
            "as raft-called, with one call, 3 messages on their way, and no heartbeats",
            || transfer(1, Bounds { terms: 1, log: 3, delivery: late(3), heartbeats: Some(0), ..CALLED }),
        ),
        holds(
            Tier::Full,
            "raft-called-clocks",
            "as raft-called, with one call, logs of 2, a tick, and no heartbeats",
            || {
                let bounds = Bounds { terms: 1, log: 2, delivery: late(2), heartbeats: Some(0), ..CALLED };
                transfer_in_time(1, 1, bounds)
            },
        ),
        holds(
            Tier::Full,
            "membership-snapshot-overtaken",
            "a leader and a follower, a server that joins, 1 term, logs of 3, an addition, a snapshot, a crash, 2 messages on their way, one of them twice, answers at once, 2 heartbeats",
            || {
                let one = Changes { additions: 1, ..Changes::default() };
                let (delivery, heartbeats, repeats) = (heard(2), Some(2), Repeats::AtMost(1));
                let bounds = Bounds { servers: 2, terms: 1, log: 3, snapshots: 1, crashes: 1, ..JOINED };
                membership(one, 0, Bounds { delivery, heartbeats, repeats, ..bounds })
            },
        ),
        holds(
            Tier::Full,
            "membership-changes",
            "a leader, 2 followers, a server that joins, 1 term, logs of 4, a change of each kind, a server cut off",
            || membership(EACH, 0, Bounds { terms: 1, log: 4, delivery: prompt(0, 1), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-elections",
            "a leader, 2 followers, a server that joins, 2 terms, logs of 4, a change of each kind, a message lost, one cut off",
            || membership(EACH, 0, Bounds { log: 4, delivery: prompt(1, 1), ..JOINED }),
        ),
        holds(
            Tier::Full,
            "membership-removals",
            "a leader and 3 followers, 3 terms, logs of 3, 2 removals, a message lost, a server cut off",
            || {
                let two = Changes { removals: 2, ..Changes::default() };
                membership(
                    two,
                    0,
                    Bounds { servers: 4, joiners: 0, terms: 3, log: 3, delivery: prompt(1, 1), ..JOINED },
                )
            },
        ),
        holds(
            Tier::Deep,
            "membership-removed",
            "a leader and 3 followers, 2 terms, logs of 3, 2 removals, 3 messages on their way, answers at once, a heartbeat",
            || {
                let two = Changes { removals: 2, ..Changes::default() };
                let (delivery, heartbeats) = (heard(3), Some(1));
                membership(two, 0, Bounds { servers: 4, joiners: 0, log: 3, heartbeats, delivery, ..JOINED })
            },
        ),
        holds(
            Tier::Deep,
            "reads-lost",
            "a leader and 2 followers, 3 terms, logs of 4, 2 reads, a proposal, a message lost, a server cut off, twice",
            || reads(2, 1, Bounds { terms: 3, log: 4, delivery: prompt(1, 2), ..CLUSTER }),
        ),
        holds(
            Tier::Full,
            "reads-cut",
            "a leader and 2 followers, 2 terms, logs of 3, 2 reads, a proposal, a message lost, a server cut off",
            || reads(2, 1, Bounds { delivery: prompt(1, 1), log: 3, ..CLUSTER }),
        ),
        holds(
            Tier::Full,
            "reads-late",
            "a leader and 2 followers, 2 terms, logs of 2, 2 reads, 3 messages on their way, a heartbeat",
            || reads(2, 0, Bounds { log: 2, delivery: late(3), heartbeats: Some(1), ..CLUSTER }),
        ),
        holds(
            Tier::Full,
            "reads-learner",
            "a leader, 2 followers and a learner, 2 terms, logs of 3, a read, 4 messages on their way, answers at once",
            || {
                let (delivery, heartbeats) = (heard(4), Some(0));
                reads(1, 0, Bounds { log: 3, delivery, heartbeats, ..JOINED }).changed(&[addition(NodeId(4))])
            },
        ),
        holds(
            Tier::Full,
            "membership-compacted",
            "a leader, 2 followers, a server that joins, 1 term, logs of 4, a change of each kind, a snapshot, one cut off",
            || membership(EACH, 0, Bounds { terms: 1, log: 4, snapshots: 1, delivery: prompt(0, 1), ..JOINED }),
        ),
        whole(
            "cluster-deposed",
            "3 servers, a client, 3 terms, logs of 5, 2 ticks, a server cut off",
            SINGLE_CLIENT,
            Bounds { terms: 3, delivery: prompt(0, 1), ..CLUSTER },
        ),
        whole(
            "clocks",
            "3 servers, a session, 3 terms, logs of 5, a tick, 3 messages lost, a server cut off twice; when entries were stamped",
            ClientBounds { ticks: 1, arrivals: 0, births: true, ..SINGLE_CLIENT },
            Bounds { terms: 3, delivery: prompt(3, 2), ..CLUSTER },
        ),
        whole(
            "cluster-away",
            "3 servers, a client, 2 terms, logs of 5, 2 ticks, a crash, a server cut off: the one that crashes or another",
            SINGLE_CLIENT,
            Bounds { crashes: 1, delivery: prompt(0, 1), ..CLUSTER },
        ),
        holds(
            Tier::Deep,
            "cluster-keepalives",
            "3 servers, a client with 2 keepalives, 2 terms, logs of 5, 3 ticks, a server cut off",
            || {
                let clients = ClientBounds { keepalives: 2, ticks: 3, ..SINGLE_CLIENT };
                cluster(clients, Bounds { delivery: prompt(0, 1), ..CLUSTER })
            },
        ),
        whole(
            "cluster-late",
            "3 servers, a client whose lease ends with the tick, 2 terms, logs of 5, a tick, a message between servers that is late, a server cut off",
            ClientBounds { ticks: 1, ttl: 0, ..SINGLE_CLIENT },
            Bounds { late: 1, delivery: prompt(0, 1), ..CLUSTER },
        ),
        holds(
            Tier::Full,
            "cluster-snapshots",
            "a leader that is cut off and 2 followers, a client whose lease ends with the tick, 3 terms, logs of 4, a tick, a snapshot, a heartbeat",
            || {
                let clients = ClientBounds { ticks: 1, ttl: 0, log: 4, ..SINGLE_CLIENT };
                let bounds = Bounds { terms: 3, log: 4, snapshots: 1, heartbeats: Some(1), ..CLUSTER };
                cluster(clients, bounds).with_its_leader_cut_off()
            },
        ),
        lock_table(
            "locks-try",
            "2 sessions, 1 key, 2 acquires each, that wait or do not",
            locks::Bounds { sessions: 2, opened: 2, numbered: &[Operation::Wait, Operation::Try], ..LOCKS },
        ),
        lock_table(
            "locks-withdraw",
            "2 sessions, 1 key, 2 operations each: acquires that wait, and releases of whatever there is; sweeps that end both",
            locks::Bounds {
                sessions: 2,
                opened: 2,
                numbered: &[Operation::Wait, Operation::Withdraw],
                sweep: 4,
                ..LOCKS
            },
        ),
        lock_table(
            "locks-sweeps",
            "3 sessions, 2 keys, acquires that wait, any number of times, 3 grants; sweeps that end all",
            locks::Bounds { keys: 2, operations: 0, unnumbered: &[Operation::Wait], grants: 3, sweep: 16, ..LOCKS },
        ),
        lock_table(
            "locks-three-keys",
            "2 sessions, 3 keys, acquires that wait and releases of whatever there is, any number of times, 4 grants",
            locks::Bounds {
                sessions: 2,
                opened: 2,
                keys: 3,
                operations: 0,
                unnumbered: &[Operation::Wait, Operation::Withdraw],
                grants: 4,
                ticks: 0,
                ..LOCKS
            },
        ),
        lock_table(
            "locks-once",
            "a session with 2 operations, and 2 that acquires open",
            locks::Bounds {
                sessions: 1,
                openings: &[Start::Wait],
                opened: 3,
                numbered: &[Operation::Wait, Operation::Release],
                ..LOCKS
            },
        ),
        lock_table(
            "locks-asked",
            "2 sessions, 1 key, every request there is without a number, any number of times, 3 grants",
            locks::Bounds { sessions: 2, opened: 2, operations: 0, unnumbered: &WITHOUT_WRITES, grants: 3, ..LOCKS },
        ),
        lock_table(
            "locks-renumbered",
            "as locks-asked, and 2 numbered acquires each",
            locks::Bounds {
                sessions: 2,
                opened: 2,
                numbered: &[Operation::Wait],
                unnumbered: &WITHOUT_WRITES,
                grants: 3,
                ..LOCKS
            },
        ),
        lock_table(
            "locks-once-keys",
            "as locks-asked, with 2 keys, 4 grants, and sessions that open at any moment, by themselves or for a lock",
            locks::Bounds {
                sessions: 0,
                openings: &EVERY_START,
                opened: 2,
                keys: 2,
                operations: 0,
                unnumbered: &WITHOUT_WRITES,
                grants: 4,
                ..LOCKS
            },
        ),
        lock_table(
            "store-numbers",
            "2 sessions with a numbered transaction each, and a client without a session; a record that they write and delete, 3 transactions",
            STORE_NUMBERS,
        ),
        holds(Tier::Full, "induction-session", "any table of a session and a key: any entry", || {
            Induction::new(Tables::new(tables::Bounds { sessions: 1, keys: 1, numbers: 0, sweep: 2, mixed: false }))
        }),
        holds(Tier::Full, "induction-two-terms", "any node of 3 servers, 2 terms, logs of 2: any step", || {
            Induction::new(Consensus::new(consensus::Bounds { servers: 3, terms: 2, log: 2 }))
        }),
    ];
    let small = |named: Named| {
        let beyond = BEYOND.iter().find(|(name, _)| *name == named.name).map_or(&[][..], |(_, beyond)| beyond);
        Named { model: Box::new(Small { model: named.model, beyond }), ..named }
    };
    models.into_iter().map(small).collect()
}

fn consensus(name: &'static str, about: &'static str, bounds: Bounds) -> Named {
    holds(Tier::Full, name, about, move || raft(0, bounds.clone()))
}

fn clocks(name: &'static str, about: &'static str, bounds: Bounds) -> Named {
    holds(Tier::Full, name, about, move || raft(1, bounds.clone()))
}

/// One client that takes a lock and does not renew its session.
const SINGLE_CLIENT: ClientBounds = ClientBounds { sessions: 1, keepalives: 0, ..CLIENTS };

fn whole(name: &'static str, about: &'static str, clients: ClientBounds, bounds: Bounds) -> Named {
    holds(Tier::Full, name, about, move || cluster(clients.clone(), bounds.clone()))
}

fn lock_table(name: &'static str, about: &'static str, bounds: locks::Bounds) -> Named {
    holds(Tier::Full, name, about, move || Locks::new(bounds.clone()))
}
