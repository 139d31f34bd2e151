//! The properties of time and leases, and the situations that must be reachable.

use std::collections::BTreeSet;

use palisade_spec::invariants;
use palisade_spec::lock::Command;
use palisade_spec::raft::Payload;
use stateright::Property;

use super::key;
use super::{Leases, Server, State, judge};
use crate::world::violates;

/// Properties that must always hold, named like their violations.
macro_rules! always {
    ($($name:ident),* $(,)?) => {
        [$(Property::always(invariants::Property::$name.name(), |_: &Leases, state: &State| {
            !violates(state.violation, invariants::Property::$name)
        })),*]
    };
}

/// Every property of the layer.
pub(super) fn properties() -> Vec<Property<Leases>> {
    let mut all = Vec::from(always![
        LeasesAreHonoured,
        ElectionsLoseNoTime,
        ClockMonotonicity,
        NodeSoundness,
        StateMachineSafety,
        Assertions,
    ]);
    all.extend([
        Property::always(invariants::Property::ClusterTimeNeverRunsAhead.name(), |_, state: &State| {
            judge::time_never_runs_ahead(state)
        }),
        Property::sometimes("entries of four terms are in the logs", |_, state: &State| {
            let entries = state.servers.iter().flat_map(|server| server.node.log().entries());
            entries.map(|entry| entry.term).collect::<BTreeSet<_>>().len() >= 4
        }),
        Property::sometimes("a lease outlives a leader", |_, state: &State| {
            let latest = state.leader().map(|leader| leader.node.term());
            let acquired = |client: usize| {
                state.truth.committed.values().find(|entry| match &entry.payload {
                    Payload::Command(Command::Acquire { session: asked, .. }) => {
                        *asked == state.clients[client].session
                    }
                    _ => false,
                })
            };
            let outlives = |client: usize| acquired(client).is_some_and(|entry| Some(entry.term) < latest);
            (0..state.clients.len()).any(|client| state.relies(client) && outlives(client))
        }),
        Property::sometimes("every client was granted the lock, one after the other", |_, state: &State| {
            state.clients.iter().all(|client| client.token.is_some())
        }),
        Property::sometimes("a session ended", |_, state: &State| {
            state.truth.table.sessions().len() < state.clients.len()
        }),
        Property::sometimes("an outage lengthens a lease", |_, state: &State| {
            let holds = |id| state.truth.table.lock(&key()).is_some_and(|lock| lock.holder(id).is_some());
            state.clients.iter().enumerate().any(|(number, client)| {
                let is_over =
                    client.token.is_some() && !state.relies(number) && client.open_keepalives().next().is_none();
                is_over && holds(client.session) && lives_on(state, number)
            })
        }),
        Property::sometimes("a deposed leader has measured more than its successor", |_, state: &State| {
            let leaders = || state.servers.iter().map(|server| &server.node).filter(|node| node.is_leader());
            leaders().any(|old| leaders().any(|new| old.term() < new.term() && old.clock() > new.clock()))
        }),
        Property::sometimes("a leader's clock is ahead of what a follower's entries allow", |_, state: &State| {
            let Some(Server { node: leader, .. }) = state.leader() else { return false };
            let others = state.servers.iter().filter(|server| server.node.id() != leader.id());
            others.flat_map(|server| server.node.log().entries()).any(|entry| {
                let moved = leader.clock().0.saturating_sub(entry.stamp.0);
                moved > state.age(entry.position())
            })
        }),
    ]);
    all
}

/// Whether a session is not due by the clock of the present leader, which has just read it.
fn lives_on(state: &State, client: usize) -> bool {
    let Some(leader) = state.leader().filter(|leader| leader.looked == state.now) else { return false };
    let known = state.truth.table.session(state.clients[client].session);
    known.is_some_and(|known| !known.is_due(leader.node.clock()))
}
