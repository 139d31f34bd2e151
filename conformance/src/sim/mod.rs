//! Deterministic simulation: whole clusters in one thread and in virtual time, on a faulty network
//! and faulty disks.
//!
//! The simulation runs the server's own code: the driver with its pending requests, timers and
//! snapshots ([`palisade::core::Driver`]), the write-ahead log, its recovery and the snapshot files
//! ([`palisade::storage`]), and under them the protocol. It replaces the environment: the network,
//! the disks, the clocks, the clients, the operator, and their faults. One number, the **seed**,
//! determines the whole run, so every finding can be reproduced.
//!
//! The judge (`judge`, `client_facts`) checks every step, write, message and client answer. It
//! demands what the models demand of the protocol: the invariants of [`palisade_spec::invariants`];
//! no message before its state is durable; every disk recovers what it acknowledged; no lease ends
//! early by virtual time; answers follow commits; linearizable reads. After the faults stop, the
//! cluster must recover, serve all clients and converge.
//!
//! docs/conformance/simulation.md lists the bounds, the commands and what the simulation cannot detect.

mod call;
mod client;
mod client_facts;
mod clock;
mod command;
mod disk;
mod event_log;
mod history_recorder;
mod host;
mod judge;
mod network;
mod plan;
mod resource;
mod tally;
mod watcher;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use palisade_model::world::panicked;
use palisade_spec::invariants::{Property, Violation};
use parking_lot::Mutex;

pub use command::{Arguments, run};
pub use tally::Tally;

use event_log::EventLog;
use palisade_history::Event;
use world::World;

/// Result of one simulated cluster.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Counters. Empty if an assertion in the server ended the run.
    pub tally: Tally,
    /// Hash of all events: equal seeds give equal hashes.
    pub hash: u64,
    /// The first violation, if any.
    pub failure: Option<Failure>,
    /// The clients' history; empty if an assertion in the server ended the run.
    pub history: Vec<Event>,
}

/// A violated property.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The property.
    pub property: Property,
    /// What was observed.
    pub what: String,
    /// The last events before the violation, as text.
    pub events: String,
}

/// Runs a cluster for this much virtual time.
pub fn simulate(seed: u64, time: Duration) -> Outcome {
    let events = Arc::new(Mutex::new(EventLog::default()));
    let shared = Arc::clone(&events);
    // A panic of the server is reported as a violation like any other.
    let result = catch_unwind(AssertUnwindSafe(move || {
        let mut world = World::new(seed, shared);
        let result = world.run(time);
        (world.tally(), result, world.history())
    }));
    let (tally, broken, history) = match result {
        Ok((tally, Ok(()), history)) => (tally, None, history),
        Ok((tally, Err(Violation { property, detail }), history)) => (tally, Some((property, detail)), history),
        Err(panic) => {
            let Violation { property, detail } = panicked(panic);
            (Tally::default(), Some((property, detail)), Vec::new())
        }
    };
    let events = events.lock();
    let failure = broken.map(|(property, what)| Failure { property, what, events: events.last() });
    Outcome { seed, tally, hash: events.hash(), failure, history }
}
