//! All liveness checks by name, with their bounds.

use super::healing::{Healing, UNLIMITED, Until};
use super::queue::{self, Queue};
use super::{Live, Report, Unfinished, check};
use crate::layers::{CLUSTER, JOINED, LOCKS_SEVERAL, LOCKS_SHARED, REPLACED, WANTED, prompt};
use crate::locks::{Share, Wanted};
use crate::membership::{Changes, Operators};
use crate::named::Tier;
use crate::raft::{Proposals, Tape};
use crate::world::{Bounds, Elections, World};

/// A check by name.
pub struct Check {
    /// The check's name.
    pub name: &'static str,
    /// When it runs: quick checks run with the tests.
    pub tier: Tier,
    /// What it explores, in one line.
    pub about: &'static str,
    properties: Box<dyn Fn() -> Vec<&'static str> + Send + Sync>,
    run: Box<dyn Fn(usize) -> Result<Report, Unfinished> + Send + Sync>,
}

impl Check {
    /// The model that it checks.
    pub fn properties(&self) -> Vec<&'static str> {
        (self.properties)()
    }

    /// Runs the check on a graph of at most `most` states.
    ///
    /// # Errors
    /// If the graph has more states, or the model's bounds cut it.
    pub fn run(&self, most: usize) -> Result<Report, Unfinished> {
        (self.run)(most)
    }
}

fn named<M: Live>(name: &'static str, tier: Tier, about: &'static str, make: fn() -> M) -> Check {
    let properties = move || {
        let mut properties: Vec<_> = make().responses().iter().map(|response| response.property).collect();
        properties.dedup();
        properties
    };
    Check { name, tier, about, properties: Box::new(properties), run: Box::new(move |most| check(&make(), most)) }
}

/// All checks.
pub fn checks() -> Vec<Check> {
    vec![
        named("queue", Tier::Quick, "3 clients, 1 key, leases of 2 ticks, sessions that acquires open", || {
            Queue::new(queue::Bounds { ttl: 2, once: true, ..QUEUE })
        }),
        named("queue-sweeps", Tier::Quick, "as queue, leases of a tick, a sweep ends one session", || {
            Queue::new(queue::Bounds { sweep: 1, once: true, sweeps_catch_up: true, ..QUEUE })
        }),
        named("queue-keys", Tier::Full, "3 clients, 2 keys, leases of a tick", || {
            Queue::new(queue::Bounds { keys: 2, ..QUEUE })
        }),
        named("queue-shared", Tier::Full, "3 clients, exclusive and shared claims on a key, leases of a tick", || {
            Queue::new(queue::Bounds { wanted: LOCKS_SHARED.wanted, ..QUEUE })
        }),
        named("queue-permits", Tier::Full, "3 clients, claims on 1 and 2 permits of 2, leases of a tick", || {
            Queue::new(queue::Bounds { wanted: PERMITS, ..QUEUE })
        }),
        named("queue-several", Tier::Full, "3 clients, claims on 2 keys and on each of them, leases of a tick", || {
            Queue::new(queue::Bounds { keys: 2, wanted: LOCKS_SEVERAL.wanted, ..QUEUE })
        }),
        named("queue-mixed", Tier::Full, "3 clients, shared claims on each of 2 keys, exclusive ones on both", || {
            Queue::new(queue::Bounds { keys: 2, wanted: MIXED, ..QUEUE })
        }),
        named(
            "queue-holds",
            Tier::Full,
            "3 clients, 1 key, grants to which a hold is added, shared claims that wait only if no one does",
            || Queue::new(queue::Bounds { wanted: HOLDS, ..QUEUE }),
        ),
        named("queue-four", Tier::Deep, "4 clients, 1 key, leases of a tick, a sweep ends one session", || {
            Queue::new(queue::Bounds { clients: 4, sweep: 1, sweeps_catch_up: true, ..QUEUE })
        }),
        named("healing", Tier::Quick, "3 servers, 2 terms, logs of 2, a crash, a server cut off", || {
            healing(Until { terms: 2, log: 2 }, Bounds { crashes: 1, delivery: prompt(0, 1), ..BLANK })
        }),
        named("healing-losses", Tier::Deep, "3 servers, 3 terms, logs of 3, 2 messages lost, a server cut off", || {
            healing(Until { terms: 3, log: 3 }, Bounds { delivery: prompt(2, 1), ..BLANK })
        }),
        named(
            "healing-late",
            Tier::Full,
            "a leader and 2 followers, 2 terms, logs of 2, 2 messages late, a server cut off",
            || {
                healing(
                    Until { terms: 2, log: 2 },
                    Bounds { late: 2, delivery: prompt(0, 1), starts_with_leader: true, ..BLANK },
                )
            },
        ),
        named(
            "healing-snapshots",
            Tier::Full,
            "a leader and 2 followers, 2 terms, logs of 3, a snapshot, a message lost, a server cut off",
            || {
                let delivery = prompt(1, 1);
                healing(
                    Until { terms: 2, log: 3 },
                    Bounds { snapshots: 1, delivery, starts_with_leader: true, ..BLANK },
                )
            },
        ),
        named(
            "healing-returning",
            Tier::Full,
            "a leader, 2 followers, one of which loses its disk and comes back as another server, 2 terms, logs of 5, a message lost, one cut off",
            || returning(REPLACED, Until { terms: 2, log: 5 }, Bounds { delivery: prompt(1, 1), ..RETURNING }),
        ),
    ]
}

/// Default maximum number of states: about 4 GiB.
pub const STATES: usize = 10_000_000;

pub(super) const QUEUE: queue::Bounds = queue::Bounds {
    clients: 3,
    keys: 1,
    wanted: &[],
    ttl: 1,
    sweep: 250,
    once: false,
    sweeps_catch_up: false,
    flaw: None,
};

/// A semaphore of two permits, of which two clients can keep one from a third that wants both.
pub(super) const PERMITS: &[Wanted] =
    &[Wanted { share: Share::Permits(2, 2), ..WANTED }, Wanted { share: Share::Permits(1, 2), ..WANTED }];

/// Readers of each of two keys, and a writer of both.
pub(super) const MIXED: &[Wanted] = &[
    Wanted { share: Share::Shared, ..WANTED },
    Wanted { keys: &[0, 1], ..WANTED },
    Wanted { keys: &[1], share: Share::Shared, ..WANTED },
];

/// Claims whose holders add holds: exclusive ones, and shared ones that bound the queue.
pub(super) const HOLDS: &[Wanted] =
    &[Wanted { reentrant: true, ..WANTED }, Wanted { share: Share::Shared, max_queue: 1, reentrant: true, ..WANTED }];

/// A blank cluster, whose elections proceed step by step.
pub(super) const BLANK: Bounds =
    Bounds { terms: UNLIMITED, log: UNLIMITED, elections: Elections::StepByStep, starts_with_leader: false, ..CLUSTER };

/// The same cluster with a leader, and a server with a blank disk.
pub(super) const RETURNING: Bounds =
    Bounds { terms: UNLIMITED, log: UNLIMITED, elections: Elections::StepByStep, ..JOINED };

pub(super) fn healing(until: Until, bounds: Bounds) -> Healing<Proposals> {
    Healing::new(World::new(bounds, Tape::default(), Proposals::new(until.log, 0)), until)
}

pub(super) fn returning(changes: Changes, until: Until, bounds: Bounds) -> Healing<Operators> {
    Healing::new(World::new(bounds, Tape::default(), Operators::new(changes, 0, until.log)), until)
}
