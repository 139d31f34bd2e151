//! Checks after a macro step.

use palisade_spec::invariants::{Check, Property, Violation, clock_monotonicity, node_is_sound};
use palisade_spec::lock::Holder;

use super::key;
use super::{LockNode, State};

/// Checks that a client holds the lock while it relies on its lease, which it counts in real time
/// from its first request.
pub(super) fn leases_are_honoured(state: &State) -> Check {
    let holders: &[Holder] = state.truth.table.lock(&key()).map_or(&[], |lock| &lock.holders);
    for (number, client) in state.clients.iter().enumerate() {
        let own = client.token.map(|token| (client.session, token));
        // All clients take the lock alone.
        if state.relies(number) && !holders.iter().map(|holder| (holder.session, holder.token)).eq(own) {
            let detail = format!("client {} relies on {own:?}, but {holders:?} hold the lock", number + 1);
            return Err(Violation { property: Property::LeasesAreHonoured, detail });
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
    if new.is_leader() && new.clock() < old.clock() {
        let (id, was, is) = (new.id(), old.clock(), new.clock());
        let detail = format!("the clock of server {id} went from {was} back to {is} when it became leader");
        return Err(Violation { property: Property::ElectionsLoseNoTime, detail });
    }
    Ok(())
}
