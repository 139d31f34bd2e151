//! What is checked of consensus. Figure 3.2's names where it has one.

use stateright::Property;

use super::Proposals;
use crate::world::{Environment, State, World, always};

type S = State<Proposals>;

/// What must hold of consensus, whatever is replicated.
pub fn consensus<E: Environment>() -> Vec<Property<World<E>>> {
    always![
        "election safety",
        "leader append-only",
        "log matching",
        "leader completeness",
        "state machine safety",
        "applied alike",
        "node soundness",
        "assertions",
        "all is written",
        "terms only grow",
        "one vote a term",
        "commit only grows",
        "clocks only advance",
        "stamps only grow",
    ]
    .to_vec()
}

/// Every property of the layer.
pub(super) fn properties() -> Vec<Property<World<Proposals>>> {
    let mut all = consensus();
    all.extend([
        Property::sometimes("a leader is elected", |_, state: &S| {
            state.servers.iter().any(|seat| seat.node.is_leader())
        }),
        Property::sometimes("two servers think they lead", |_, state: &S| {
            state.servers.iter().filter(|seat| seat.node.is_leader()).count() > 1
        }),
        Property::sometimes("a proposal is committed", |_, state: &S| {
            state.ghost.machines.last().is_some_and(|tape| !tape.0.is_empty())
        }),
        Property::sometimes("every server has applied a proposal", |_, state: &S| {
            state.servers.iter().all(|seat| !seat.node.machine().0.is_empty())
        }),
        Property::sometimes("two logs conflict", |_, state: &S| {
            let logs = || state.servers.iter().map(|seat| seat.node.log());
            logs().any(|a| logs().any(|b| a.entries().iter().zip(b.entries()).any(|(x, y)| x.term != y.term)))
        }),
        Property::sometimes("an entry of an earlier term is committed", |_, state: &S| {
            state.ghost.committed.values().any(|entry| state.ghost.committed_in[&entry.index] > entry.term)
        }),
    ]);
    all
}
