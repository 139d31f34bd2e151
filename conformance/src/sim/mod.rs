//! A deterministic simulation: whole clusters in one thread, on a network and on disks that fail, in virtual time.
//!
//! What runs is the server's own code: the driver with its desk, timers and snapshots ([`palisade::core::Driver`]), the
//! write-ahead log, its recovery and the snapshot files ([`palisade::storage`]), and under them the protocol. What is made
//! up is what is around it: the network, the disks, the clocks, the clients, the operator, and the faults of them all. A
//! number, the **seed**, decides everything that happens; so whatever is found can be looked at again.
//!
//! The judge looks at every step, every write and every message, and at every answer that a client gets (`judge`, `ghost`).
//! What it demands is what the models demand of the protocol: the invariants of [`palisade_spec::invariants`]; that nothing
//! is said that is not durable; that every disk comes back with what it was told to keep; that no lease ends early by the
//! fair clock; that answers come after commits; that reads are linearizable. And, when faults stop, that the cluster
//! recovers, serves everybody, and agrees.
//!
//! docs/conformance.md has the bounds, the commands, and what this cannot see.

mod call;
mod client;
mod clock;
mod command;
mod disk;
mod event_log;
mod history_recorder;
mod host;
mod judge;
pub mod mutants;
mod network;
mod plan;
mod reference_state;
mod resource;
mod tally;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use palisade_spec::invariants::Violation;
use parking_lot::Mutex;

pub use command::{Arguments, run};
pub use tally::Tally;

use crate::history::Event;
use crate::panics::words;
use event_log::EventLog;
use world::World;

/// What a seed led to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What happened, in numbers. Empty if an assertion of the server's ended it.
    pub tally: Tally,
    /// A number that stands for all that happened: it is the same whenever the seed is.
    pub hash: u64,
    /// What was broken, if anything was.
    pub failure: Option<Failure>,
    /// What the clients saw; nothing if an assertion of the server's ended it.
    pub history: Vec<Event>,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The property's name, or `assertion`.
    pub property: String,
    /// What was seen.
    pub what: String,
    /// The last that happened before, in words.
    pub events: String,
}

/// Lets a cluster live for so much virtual time.
pub fn simulate(seed: u64, time: Duration) -> Outcome {
    let events = Arc::new(Mutex::new(EventLog::default()));
    let told = Arc::clone(&events);
    // A node that goes wrong stops with a panic; here that is a finding like any other.
    let lived = catch_unwind(AssertUnwindSafe(move || {
        let mut world = World::new(seed, told);
        let result = world.live(time);
        (world.tally(), result, world.history())
    }));
    let (tally, broken, history) = match lived {
        Ok((tally, Ok(()), history)) => (tally, None, history),
        Ok((tally, Err(Violation { property, detail }), history)) => {
            (tally, Some((property.to_owned(), detail)), history)
        }
        Err(panic) => (Tally::default(), Some(("assertion".to_owned(), words(&*panic))), Vec::new()),
    };
    let events = events.lock();
    let failure = broken.map(|(property, what)| Failure { property, what, events: events.last() });
    Outcome { seed, tally, hash: events.hash(), failure, history }
}
