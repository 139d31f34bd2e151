//! What is checked of the whole.

use palisade_spec::lock::{LockTable, Token};
use palisade_spec::raft::{Index, Term};
use stateright::Property;

use super::{Client, Surroundings, key};
use crate::world::{Ghost, State, World, always};

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
            let last = state.ghost.leaders.keys().next_back().copied();
            let outlives = |client: &Client| {
                surroundings.relies(client) && client.token.and_then(|token| granted_in(&state.ghost, token)) < last
            };
            surroundings.clients.iter().any(outlives)
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

/// The term in which a grant was committed.
fn granted_in(ghost: &Ghost<LockTable>, token: Token) -> Option<Term> {
    let holds = |table: &LockTable| table.lock(&key()).is_some_and(|lock| lock.holder.token == token);
    let place = ghost.machines.iter().position(holds)?;
    ghost.committed_in.get(&Index(place as u64)).copied()
}
