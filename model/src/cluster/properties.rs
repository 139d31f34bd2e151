//! The properties of the whole system.

use palisade_spec::invariants;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Stamp, Term};
use stateright::Property;

use super::{Client, ClientBounds, Surroundings};
use crate::world::{Environment, History, State, World, always};

type S = State<Surroundings>;

/// Every property of the layer.
pub(super) fn properties(bounds: &ClientBounds) -> Vec<Property<World<Surroundings>>> {
    let mut all = crate::raft::consensus();
    all.extend(locks_and_leases());
    all.extend([
        Property::sometimes("a client is told of its grant", |_, state: &S| {
            state.environment.clients.iter().any(|client| client.token.is_some())
        }),
        Property::sometimes("both clients were granted the lock, one after the other", |_, state: &S| {
            // Every session has a client for the first lock.
            let Surroundings { clients, resources, .. } = &*state.environment;
            clients.iter().filter(|client| client.key == resources[0].key).all(|client| client.token.is_some())
        }),
        Property::sometimes("a session expired", |_, state: &S| {
            let last = state.history.machines.last();
            last.is_some_and(|table| (table.sessions().len() as u64) < state.environment.bounds.sessions)
        }),
        Property::sometimes("a client waits in the queue", |_, state: &S| {
            let table = state.history.machines.last();
            table.is_some_and(|table| table.locks().values().any(|lock| !lock.queue.is_empty()))
        }),
        Property::sometimes("a lease outlives a leader", |_, state: &S| {
            let surroundings = &*state.environment;
            let last = state.history.leaders.keys().next_back().copied();
            let outlives = |client: &Client| surroundings.relies(client) && granted_in(&state.history, client) < last;
            surroundings.clients.iter().any(outlives)
        }),
        Property::sometimes("both clients wrote, one after the other", |_, state: &S| {
            state.environment.resources.iter().any(|resource| resource.accepted.len() > 1)
        }),
        Property::sometimes("a stale write is refused; without fencing it would be done", |_, state: &S| {
            state.environment.resources.iter().any(|resource| resource.refused)
        }),
    ]);
    if bounds.births {
        all.extend(clocks());
    }
    all
}

/// What must hold of locks, of their holders, and of a leader whose clock has passed a deadline.
pub(crate) fn locks_and_leases<E: Environment>() -> [Property<World<E>>; 19] {
    always![
        MutualExclusion,
        TokenMonotonicity,
        FifoOrder,
        NoEarlyExpiry,
        ExactlyOnce,
        NoForeignChange,
        NoDeniedGrant,
        BreaksAreReported,
        ChangesHaveEvents,
        NoNeedlessWait,
        NoDeadlock,
        HoldsAreCounted,
        ValuesAreKept,
        ReleaseByHolderOnly,
        RepliesMatchTable,
        TableSoundness,
        ExpiryIsOnItsWay,
        LeasesAreHonoured,
        NoStaleWrite,
    ]
}

/// What must hold of clocks, if the state records when each entry was stamped.
fn clocks() -> [Property<World<Surroundings>>; 2] {
    [
        Property::always(invariants::Property::ClusterTimeNeverRunsAhead.name(), |_, state: &S| {
            !state.environment.runs_ahead(&state.servers)
        }),
        Property::sometimes("a leader's clock is ahead of what a follower's entries allow", |_, state: &S| {
            let mut logs = state.servers.iter().map(|replica| replica.node.log());
            let leaders = state.servers.iter().map(|replica| &replica.node).filter(|node| node.is_leader());
            let clocks: Vec<Stamp> = leaders.map(|node| node.clock()).collect();
            logs.any(|log| clocks.iter().any(|&clock| state.environment.is_ahead(clock, log)))
        }),
    ]
}

/// The term in which a client's grant was committed.
fn granted_in(history: &History<LockTable>, client: &Client) -> Option<Term> {
    let token = client.token?;
    let holds = |table: &LockTable| table.lock(&client.key).is_some_and(|lock| lock.holder_with(token).is_some());
    let position = history.machines.iter().position(holds)?;
    history.committed_in.get(&Index(position as u64)).copied()
}
