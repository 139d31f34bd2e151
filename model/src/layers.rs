//! The layers' models for given bounds, and the bounds that several models share.

use crate::cluster::{ClientBounds, Surroundings};
use crate::leases;
use crate::locks::{self, Compared, Operation, Share, Start, Wanted, What, Write};
use crate::membership::{Changes, Operators};
use crate::raft::{Proposals, Tape};
use crate::reads::Readers;
use crate::world::{Answers, Bounds, Delivery, Elections, Repeats, World};

/// Two clients that take a lock with a time-to-live of one tick.
pub(crate) const CLIENTS: ClientBounds = ClientBounds {
    sessions: 2,
    keys: 1,
    ticks: 2,
    ttl: 1,
    longer: 0,
    arrivals: 1,
    keepalives: 1,
    log: CLUSTER.log,
    births: false,
};

/// A blank cluster, and a client with a lease of one tick.
pub(crate) const LEASES: leases::Bounds = leases::Bounds {
    elections: 5,
    log: 4,
    ticks: 2,
    ttl: 1,
    clients: 1,
    acquires: 1,
    keepalives: 0,
    crashes: 0,
    delays: 0,
    losses: false,
};

/// A cluster that starts with an elected leader; the models of consensus cover late messages.
pub(crate) const CLUSTER: Bounds = Bounds {
    servers: 3,
    joiners: 0,
    terms: 2,
    log: 5,
    crashes: 0,
    forgets: false,
    snapshots: 0,
    repeats: Repeats::AtMost(0),
    heartbeats: None,
    delivery: Delivery::Prompt { losses: 0, cuts: 0 },
    appends: 1,
    batch: usize::MAX,
    inflight: 8192,
    commits: 8192,
    late: 0,
    apart: 1,
    elections: Elections::AtWill,
    starts_with_leader: true,
    symmetry: false,
};

/// Three servers, the first of which leads, and a fourth with a blank disk.
pub(crate) const JOINED: Bounds = Bounds { joiners: 1, ..CLUSTER };

/// A member loses its disk, and returns under a new identity.
pub(crate) const REPLACED: Changes = Changes { additions: 0, promotions: 0, removals: 0, replacements: 1 };

/// A server joins, becomes a voter, and a member goes.
pub(crate) const EACH: Changes = Changes { additions: 1, promotions: 1, removals: 1, replacements: 0 };

/// A leader that may transfer leadership. Whether a server hears the leader decides the outcome, so
/// every PreVote is a message.
pub(crate) const CALLED: Bounds = Bounds { elections: Elections::StepByStep, ..CLUSTER };

/// Three sessions with numbered operations of every kind that clients send.
pub(crate) const LOCKS: locks::Bounds = locks::Bounds {
    sessions: 3,
    openings: &[],
    opened: 3,
    keys: 1,
    wanted: &[],
    operations: 2,
    numbered: &[Operation::Wait, Operation::Try, Operation::Release, Operation::Withdraw],
    unnumbered: &[],
    grants: 6,
    ttl: 1,
    ticks: 2,
    sweep: 1,
    breaks: false,
    strangers: false,
    revisions: 0,
    writes: &[],
    versions: 0,
};

/// Two sessions with a numbered operation each, and one session that an acquire opens.
pub(crate) const NUMBERED_AND_ONCE: locks::Bounds = locks::Bounds {
    sessions: 2,
    openings: &[Start::Wait],
    operations: 1,
    numbered: &[Operation::Wait, Operation::Release],
    grants: 3,
    ..LOCKS
};

/// A claim on the first key: all of it, by a request that waits however many wait.
pub(crate) const WANTED: Wanted =
    Wanted { keys: &[0], share: Share::All, max_queue: u32::MAX, reentrant: false, value: None };

/// Requests without a number, of three sessions.
const UNNUMBERED: locks::Bounds = locks::Bounds { operations: 0, grants: 4, ..LOCKS };

/// Writers and readers.
pub(crate) const LOCKS_SHARED: locks::Bounds = locks::Bounds {
    wanted: &[WANTED, Wanted { share: Share::Shared, ..WANTED }],
    unnumbered: &[Operation::Wait, Operation::Try, Operation::Release, Operation::Withdraw],
    ..UNNUMBERED
};

/// A semaphore of three permits, a request that takes two only in a queue of one, and a request for all of
/// the lock, which is of another size.
pub(crate) const LOCKS_PERMITS: locks::Bounds = locks::Bounds {
    wanted: &[
        Wanted { share: Share::Permits(2, 3), max_queue: 1, ..WANTED },
        Wanted { share: Share::Permits(1, 3), ..WANTED },
        WANTED,
    ],
    unnumbered: &[Operation::Wait, Operation::Release, Operation::Withdraw],
    ..UNNUMBERED
};

/// Claims on two keys together, and on each of them.
pub(crate) const LOCKS_SEVERAL: locks::Bounds = locks::Bounds {
    keys: 2,
    wanted: &[Wanted { keys: &[0, 1], ..WANTED }, WANTED, Wanted { keys: &[1], ..WANTED }],
    unnumbered: &[Operation::Wait, Operation::Try, Operation::Release, Operation::Withdraw],
    grants: 3,
    ..UNNUMBERED
};

/// Claims on two keys together, and on the first, by sessions of two clients; operators that break them, and access
/// rules.
pub(crate) const LOCKS_SEVERAL_DENIED: locks::Bounds = locks::Bounds {
    sessions: 1,
    openings: &[Start::Wait],
    keys: 2,
    wanted: &[Wanted { keys: &[0, 1], ..WANTED }, WANTED],
    unnumbered: &[Operation::Wait, Operation::Release],
    grants: 3,
    breaks: true,
    revisions: 2,
    ..UNNUMBERED
};

/// Claims of every kind, on up to three keys.
pub(crate) const ALL_KINDS: [Wanted; 8] = [
    WANTED,
    Wanted { share: Share::Shared, ..WANTED },
    Wanted { keys: &[1], share: Share::Permits(2, 3), ..WANTED },
    Wanted { keys: &[1], share: Share::Permits(1, 3), max_queue: 2, ..WANTED },
    Wanted { keys: &[2], reentrant: true, value: Some("old"), ..WANTED },
    Wanted { keys: &[0, 1], share: Share::Shared, ..WANTED },
    Wanted { keys: &[1, 2], value: Some("old"), ..WANTED },
    Wanted { keys: &[0, 1, 2], ..WANTED },
];

/// A session whose reentrant acquires and releases have numbers, so that they are late and repeated; and two
/// sessions that acquires open.
pub(crate) const LOCKS_REENTRANT: locks::Bounds = locks::Bounds {
    sessions: 1,
    openings: &[Start::Wait],
    operations: 4,
    wanted: &[Wanted { reentrant: true, ..WANTED }],
    numbered: &[Operation::Wait, Operation::Release],
    unnumbered: &[],
    grants: 3,
    ..LOCKS
};

/// A session that acquires with a value or without one and replaces it, numbered, so late and repeated; two
/// sessions that acquires open; and releases and new values of any past grant.
pub(crate) const LOCKS_VALUES: locks::Bounds = locks::Bounds {
    sessions: 1,
    openings: &[Start::Wait],
    wanted: &[Wanted { value: Some("old"), ..WANTED }, WANTED],
    operations: 3,
    numbered: &[Operation::Wait, Operation::Proclaim],
    unnumbered: &[Operation::Release, Operation::Proclaim],
    grants: 2,
    ..LOCKS
};

/// A transaction that changes nothing, and holds nothing.
const WRITE: Write = Write { changes: &[], held: &[], compared: None, limit: u64::MAX };

/// Changes of one record, by the lock's holder and by any client.
pub(crate) const FENCED: [Write; 8] = [
    Write { changes: &[(0, What::Put(1))], held: &[0], ..WRITE },
    Write { changes: &[(0, What::Append(1))], held: &[0], ..WRITE },
    Write { changes: &[(0, What::Delete)], held: &[0], ..WRITE },
    Write { changes: &[(0, What::Put(1))], ..WRITE },
    Write { changes: &[(0, What::Append(1))], ..WRITE },
    Write { changes: &[(0, What::Delete)], ..WRITE },
    Write { changes: &[(0, What::Put(1))], held: &[0], compared: Some((0, Compared::Absent)), ..WRITE },
    Write { changes: &[(0, What::Put(1))], compared: Some((0, Compared::Any)), ..WRITE },
];

/// Two sessions, a lock and a record; transactions with any past grant, with any version and without either.
pub(crate) const STORE: locks::Bounds = locks::Bounds {
    sessions: 2,
    opened: 2,
    unnumbered: &[Operation::Wait, Operation::Release, Operation::Write],
    grants: 3,
    writes: &FENCED,
    versions: 4,
    ..UNNUMBERED
};

/// A session that acquires and writes, numbered, so late and repeated; and another that acquires and writes at
/// any moment.
pub(crate) const STORE_REPEATED: locks::Bounds = locks::Bounds {
    sessions: 1,
    openings: &[Start::Wait],
    opened: 2,
    operations: 3,
    numbered: &[Operation::Wait, Operation::Write],
    unnumbered: &[Operation::Write],
    grants: 2,
    writes: &[
        Write { changes: &[(0, What::Put(1)), (1, What::Append(1))], held: &[0], ..WRITE },
        Write { changes: &[(0, What::Append(1))], ..WRITE },
        Write { changes: &[(0, What::Delete)], held: &[0], ..WRITE },
    ],
    versions: 3,
    ..LOCKS
};

/// Two sessions of two clients, two locks and two records; transactions that name both, and access rules.
pub(crate) const STORE_WHOLE: locks::Bounds = locks::Bounds {
    sessions: 2,
    opened: 2,
    keys: 2,
    unnumbered: &[Operation::Try, Operation::Write],
    grants: 2,
    ticks: 2,
    revisions: 1,
    writes: &[
        Write { changes: &[(0, What::Put(1)), (1, What::Put(1)), (0, What::Append(1))], held: &[0, 1], ..WRITE },
        Write { changes: &[(1, What::Put(1)), (0, What::Delete), (1, What::Delete), (1, What::Append(2))], ..WRITE },
        Write { changes: &[(1, What::Put(1))], held: &[1], ..WRITE },
        Write { changes: &[(0, What::Append(1))], compared: Some((1, Compared::Absent)), ..WRITE },
        Write { held: &[0], compared: Some((1, Compared::Any)), ..WRITE },
    ],
    versions: 3,
    ..UNNUMBERED
};

/// Records of the greatest length and longer ones, and a store that may not grow.
pub(crate) const STORE_SIZES: locks::Bounds = locks::Bounds {
    sessions: 1,
    opened: 1,
    unnumbered: &[],
    grants: 0,
    ticks: 0,
    writes: &[
        Write { changes: &[(0, What::Put(65_536))], ..WRITE },
        Write { changes: &[(0, What::Put(65_537)), (0, What::Delete)], ..WRITE },
        Write { changes: &[(0, What::Append(1)), (1, What::Put(1))], ..WRITE },
        Write { changes: &[(0, What::Put(1)), (1, What::Put(1))], limit: 100, ..WRITE },
        Write { changes: &[(0, What::Put(2))], limit: 66, ..WRITE },
        Write { changes: &[(1, What::Append(1))], limit: 133, ..WRITE },
        Write { changes: &[(1, What::Delete)], limit: 0, ..WRITE },
    ],
    versions: 3,
    ..UNNUMBERED
};

/// Two sessions that write one record, with one number each.
pub(crate) const STORE_NUMBERS: locks::Bounds = locks::Bounds {
    sessions: 2,
    opened: 2,
    operations: 1,
    numbered: &[Operation::Write],
    grants: 0,
    ticks: 0,
    writes: &[Write { changes: &[(0, What::Put(1))], ..WRITE }, Write { changes: &[(0, What::Delete)], ..WRITE }],
    versions: 3,
    ..LOCKS
};

/// Two sessions that acquire a lock, and write a record at any moment; strangers that know all but a session's
/// proof.
pub(crate) const STORE_HOSTILE: locks::Bounds = locks::Bounds {
    sessions: 2,
    opened: 2,
    unnumbered: &[Operation::Wait, Operation::Release, Operation::Write],
    grants: 2,
    writes: &[
        Write { changes: &[(0, What::Put(1))], held: &[0], ..WRITE },
        Write { changes: &[(0, What::Append(1))], ..WRITE },
        Write { changes: &[(0, What::Delete)], compared: Some((0, Compared::Any)), ..WRITE },
    ],
    versions: 3,
    strangers: true,
    ..UNNUMBERED
};

/// Operations of every kind on claims without values.
pub(crate) const WITHOUT_WRITES: [Operation; 5] =
    [Operation::Wait, Operation::Try, Operation::Release, Operation::Withdraw, Operation::Leave];

pub(crate) const EVERY_START: [Start; 3] = [Start::Open, Start::Wait, Start::Try];

/// Messages arrive at any time, at most this many in flight.
pub(crate) fn late(most: usize) -> Delivery {
    Delivery::AnyTime { most, answers: Answers::Messages }
}

/// Messages arrive at any time, at most this many in flight; answers arrive at once or never.
pub(crate) fn heard(most: usize) -> Delivery {
    Delivery::AnyTime { most, answers: Answers::AtOnce }
}

/// Messages arrive at once, except those that are lost or go from or to a server that is cut off.
pub(crate) fn prompt(losses: u8, cuts: u8) -> Delivery {
    Delivery::Prompt { losses, cuts }
}

/// States that differ in the servers' names only count as one, unless that is not exact or gains
/// nothing.
pub(crate) fn raft(ticks: u8, bounds: Bounds) -> World<Proposals> {
    let proposals = Proposals::new(bounds.log, ticks);
    World::new(Bounds { symmetry: takes_time(&bounds), ..bounds }, Tape::default(), proposals)
}

/// Consensus with this many leadership transfers.
pub(crate) fn transfer(transfers: u8, bounds: Bounds) -> World<Proposals> {
    transfer_in_time(transfers, 0, bounds)
}

/// Leadership transfers while leaders' clocks advance.
pub(crate) fn transfer_in_time(transfers: u8, ticks: u8, bounds: Bounds) -> World<Proposals> {
    let proposals = Proposals { transfers, ..Proposals::new(bounds.log, ticks) };
    World::new(Bounds { symmetry: takes_time(&bounds), ..bounds }, Tape::default(), proposals)
}

/// Members that change, and clients that propose this many entries.
pub(crate) fn membership(changes: Changes, proposals: u8, bounds: Bounds) -> World<Operators> {
    let operators = Operators::new(changes, proposals, bounds.log);
    World::new(Bounds { symmetry: takes_time(&bounds), ..bounds }, Tape::default(), operators)
}

/// Clients that read this many times, and propose this many entries.
pub(crate) fn reads(reads: u8, proposals: u8, bounds: Bounds) -> World<Readers> {
    let readers = Readers::new(reads, proposals, bounds.log);
    World::new(Bounds { symmetry: takes_time(&bounds), ..bounds }, Tape::default(), readers)
}

fn takes_time(bounds: &Bounds) -> bool {
    matches!(bounds.delivery, Delivery::AnyTime { .. })
}

/// Servers, clients, time and a resource within these bounds.
pub(crate) fn cluster(clients: ClientBounds, bounds: Bounds) -> World<Surroundings> {
    World::new(bounds, Surroundings::table(&clients), Surroundings::new(clients))
}
