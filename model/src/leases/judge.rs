//! Checks after a macro step.

use palisade_spec::invariants::{Check, Property, clock_monotonicity, node_is_sound};
use palisade_spec::lock::Holder;
use palisade_spec::require;

use super::key;
use super::{LockNode, State};
use crate::cluster::lease_is_honoured;

/// Checks that a client holds the lock while it relies on its lease, which it counts in real time
/// from its first request.
pub(super) fn leases_are_honoured(state: &State) -> Check {
    let holders: &[Holder] = state.truth.table.lock(&key()).map_or(&[], |lock| &lock.holders);
    for (number, client) in state.clients.iter().enumerate() {
        if state.relies(number) {
            lease_is_honoured(number, client.token.map(|token| (client.session, token)), holders)?;
        }
    }
    Ok(())
}

/// Whether no server's clock has advanced from an entry's stamp by more than the entry's age. The
/// exploration goes on where one has, to check whether a lease ends early because of it.
pub(super) fn time_never_runs_ahead(state: &State) -> bool {
    state.servers.iter().all(|server| {
        let (clock, log) = (server.node.clock().0, server.node.log());
        log.entries().iter().all(|entry| clock <= entry.stamp.0 + state.age(entry.position()))
    })
}

/// Checks of a single server over a step.
pub(super) fn stepped(old: &LockNode, new: &LockNode, crashed: bool) -> Check {
    node_is_sound(new)?;
    if crashed {
        return Ok(());
    }
    clock_monotonicity((old.clock(), old.log().last()), new)?;
    let (id, was, is) = (new.id(), old.clock(), new.clock());
    require!(
        Property::ElectionsLoseNoTime,
        !new.is_leader() || is >= was,
        "the clock of server {id} went from {was} back to {is} when it became leader"
    )
}
