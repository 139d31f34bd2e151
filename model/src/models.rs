//! Every model there is, by name, with its bounds.

use stateright::Model;

use crate::check::{Verdict, exhaust};
use crate::locks::{self, Deed, Locks};
use crate::raft::{Proposals, Tape};
use crate::world::{Bounds, World};

/// A model with its bounds.
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// What it explores, in a line.
    pub about: &'static str,
    /// Whether it takes long.
    pub deep: bool,
    /// Explores it.
    pub check: fn(threads: usize) -> Verdict,
}

/// All of them, the quick ones first.
pub const MODELS: [Named; 5] = [
    Named {
        name: "raft",
        about: "3 servers, 2 terms, logs of 2, a crash at any output, 2 messages on their way",
        deep: false,
        check: |threads| raft(threads, Bounds { crashes: 1, network: 2, ..Bounds::default() }),
    },
    Named {
        name: "raft-late",
        about: "3 servers, 2 terms, logs of 2, 3 messages on their way: late and stale ones",
        deep: false,
        check: |threads| raft(threads, Bounds { network: 3, ..Bounds::default() }),
    },
    Named {
        name: "locks",
        about: "3 sessions, 1 key, 2 operations each, late, repeated and lost; keepalives, closes, expiry at any moment",
        deep: false,
        check: |threads| locks(threads, locks::Bounds { alphabet: &[Deed::Wait, Deed::Release], ..LOCKS }),
    },
    Named {
        name: "raft-three-terms",
        about: "3 servers, 3 terms, logs of 3, a crash at any output, 2 messages on their way",
        deep: true,
        check: |threads| raft(threads, Bounds { terms: 3, log: 3, crashes: 1, network: 2, ..Bounds::default() }),
    },
    Named {
        name: "locks-all",
        about: "3 sessions, 1 key, 2 operations of every kind each",
        deep: true,
        check: |threads| locks(threads, LOCKS),
    },
];

const LOCKS: locks::Bounds = locks::Bounds {
    sessions: 3,
    keys: 1,
    operations: 2,
    once: 0,
    ttl: 1,
    ticks: 2,
    alphabet: &[Deed::Wait, Deed::Try, Deed::Release, Deed::Withdraw],
};

fn raft(threads: usize, bounds: Bounds) -> Verdict {
    let bounds = Bounds { symmetry: true, ..bounds };
    let most = u8::try_from(bounds.log).expect("logs are short");
    let proposals = Proposals { made: 0, most, log: bounds.log };
    exhaust(World::new(bounds, Tape::default(), proposals).checker().symmetry_fn(World::representative), threads)
}

fn locks(threads: usize, bounds: locks::Bounds) -> Verdict {
    exhaust(Locks::new(bounds).checker(), threads)
}
