//! What is checked of the whole.

use stateright::Property;

use super::Surroundings;
use crate::world::{State, World, always};

type S = State<Surroundings>;

/// Every property of the layer.
pub(super) fn properties() -> Vec<Property<World<Surroundings>>> {
    let mut all = crate::raft::consensus();
    all.extend(always![
        "mutual exclusion",
        "token monotonicity",
        "FIFO order",
        "no early expiry",
        "exactly once",
        "release is one's own",
        "answers are true",
        "table soundness",
        "leases are honoured",
        "no stale write",
    ]);
    all.extend([
        Property::sometimes("a client is told of its grant", |_, state: &S| {
            state.environment.clients.iter().any(|client| client.token.is_some())
        }),
        Property::sometimes("both clients were granted the lock, one after the other", |_, state: &S| {
            state.environment.clients.iter().all(|client| client.token.is_some())
        }),
        Property::sometimes("a session expired", |_, state: &S| {
            state.ghost.machines.last().is_some_and(|table| table.sessions().len() < state.environment.clients.len())
        }),
        Property::sometimes("a client waits in the queue", |_, state: &S| {
            let table = state.ghost.machines.last();
            table.is_some_and(|table| table.locks().values().any(|lock| !lock.queue.is_empty()))
        }),
        Property::sometimes("a lease outlives a leader", |_, state: &S| {
            let surroundings = &*state.environment;
            state.ghost.leaders.len() > 1 && surroundings.clients.iter().any(|client| surroundings.relies(client))
        }),
        Property::sometimes("both clients wrote, one after the other", |_, state: &S| {
            state.environment.resource.accepted.len() > 1
        }),
        Property::sometimes("a stale write is refused; without fencing it would be done", |_, state: &S| {
            state.environment.resource.refused
        }),
    ]);
    all
}
