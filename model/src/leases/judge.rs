//! What must hold after a macro step.

use palisade_spec::invariants::{Check, Violation, clock_monotonicity, node_is_sound};

use super::{LockNode, Protocol, Server, State};
use crate::cluster::{key, session};

impl Protocol {
    /// What went wrong between two states, if anything did.
    pub(super) fn judge(&self, last: &State, next: &State) -> Option<&'static Violation> {
        let servers = last.servers.iter().zip(&next.servers);
        let changed = servers.filter(|(old, new)| old.node != new.node).map(|(_, Server { node, .. })| node);
        let mut checks = changed.map(|node| time_never_runs_ahead(next, node));
        let ahead = checks.find_map(Result::err);
        ahead.or_else(|| self.leases_are_honoured(next).err()).map(|violation| &*Box::leak(Box::new(violation)))
    }

    /// Whoever relies on a lease, counted by real time from the moment at which it first asked, holds the lock.
    fn leases_are_honoured(&self, state: &State) -> Check {
        let holder = state.truth.table.lock(&key()).map(|lock| (lock.holder.session, lock.holder.token));
        for (number, client) in state.clients.iter().enumerate() {
            let own = client.token.map(|token| (session(number), token));
            if client.relies(state.now, self.ttl) && holder != own {
                let detail = format!("client {} relies on {own:?}, but {holder:?} holds the lock", number + 1);
                return Err(Violation { property: "leases are honoured", detail });
            }
        }
        Ok(())
    }
}

/// A server's clock has moved on from an entry's stamp by no more than the entry's age.
fn time_never_runs_ahead(state: &State, node: &LockNode) -> Check {
    for entry in node.log().entries() {
        let (moved, age) = (node.clock().0 - entry.stamp.0, state.age(entry.position()));
        if moved > age {
            let detail = format!(
                "the clock of server {} has moved on by {moved} since entry {}, which is {age} old",
                node.id(),
                entry.index
            );
            return Err(Violation { property: "cluster time never runs ahead", detail });
        }
    }
    Ok(())
}

/// What must hold of a server over a step, by itself.
pub(super) fn stepped(old: &LockNode, new: &LockNode, crashed: bool) -> Check {
    node_is_sound(new)?;
    if crashed {
        return Ok(());
    }
    clock_monotonicity((old.clock(), old.log().last()), new)?;
    if new.is_leader() && new.clock() < old.clock() {
        let (id, was, is) = (new.id(), old.clock(), new.clock());
        let detail = format!("server {id} knew of {was}, and leads from {is}");
        return Err(Violation { property: "elections lose no time", detail });
    }
    Ok(())
}
