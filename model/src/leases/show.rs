//! Text, JSON and labels for states and steps.

use std::fmt;

use palisade_spec::lock::LockTable;
use serde_json::{Value, json};

use super::{Action, Birth, Leases, Server, State};
use crate::presentation::Presentation;
use crate::state_table::{Field, LIST, StateTable};
use crate::world::{Notation, Ref, entries, message};
use stateright::Model;

/// The state as a table.
pub(super) fn table(state: &State) -> StateTable {
    let mut table = StateTable::default();
    for server in &state.servers {
        table.fields(format!("server {}", server.node.id()), fields(server));
    }
    table.items("delayed", state.delayed.iter().map(delayed_message));
    for (number, client) in state.clients.iter().enumerate() {
        let count = |count: u8| if count > 0 { format!("{count}×") } else { String::new() };
        let open = client.keepalives.iter().map(|keepalive| keepalive.sent.to_string());
        let granted = client.token.is_some();
        let fields = [
            ("asked", count(client.arrivals[0])),
            ("at", if client.arrivals[0] > 0 { client.asked.to_string() } else { String::new() }),
            ("token", client.token.map_or(String::new(), |token| token.to_string())),
            ("lease from", if granted { client.lease.to_string() } else { String::new() }),
            ("kept alive", count(client.arrivals[2])),
            ("unanswered since", open.collect::<Vec<_>>().join(", ")),
        ];
        table.fields(format!("client {}", number + 1), fields);
    }
    let committed = entries::<LockTable>(state.truth.committed.values());
    table.fields("committed", std::iter::once(("", committed)).chain(state.truth.table.content()));
    let born = state.births.iter().filter(|birth| birth.at > 0);
    let born = born.map(|Birth { entry, at }| format!("{}@{} at {at}", entry.index, entry.term)).collect::<Vec<_>>();
    table.fields("real time", [("", state.now.to_string()), ("entries born", born.join(LIST))]);
    let left = [("elections", state.elections), ("crashes", state.crashes), ("delays", state.delays)];
    table.fields("left", left.map(|(name, count)| (name, count.to_string())));
    let violation = state.violation.map_or(String::new(), |violation| violation.to_string());
    table.fields("VIOLATED", [("", violation)]);
    table
}

fn fields(server: &Server) -> Vec<Field> {
    let node = &*server.node;
    let log = entries::<LockTable>(node.log().entries());
    vec![
        ("term", node.term().to_string()),
        ("", if node.is_leader() { "LEADER" } else { "follower" }.to_string()),
        ("log", if log.is_empty() { "empty".to_string() } else { log }),
        ("commit", node.commit().to_string()),
        ("clock", node.clock().to_string()),
        ("looked at", if node.is_leader() { server.looked.to_string() } else { String::new() }),
    ]
}

fn delayed_message(late: &Ref<palisade_spec::raft::Message<LockTable>>) -> String {
    format!("{} → {} {}", late.from, late.to, message(late))
}

/// The sentence for an action in the state in which it is taken.
pub(super) fn sentence(model: &Leases, last: &State, action: &Action) -> String {
    match action {
        Action::Elect { candidate, voter } => {
            let term = model.next_state(last, *action).map(|next| next.server(*candidate).node.term());
            let term = term.map_or("an election".to_string(), |term| format!("term {term}"));
            format!("server {candidate} wins {term} with the vote of server {voter}")
        }
        Action::Send { leader, .. } | Action::Delay { leader, .. } => {
            format!("{}; its clock reads {}", action.sentence(), last.server(*leader).node.clock())
        }
        Action::Arrive(late) => format!("{}: {}", action.sentence(), message(late)),
        Action::Tick => format!("real time passes: it is {}", last.now + 1),
        Action::Look { .. } | Action::Ask { .. } | Action::Crash { .. } => action.sentence(),
    }
}

/// An action as JSON, with each server's term and clock after it.
pub(super) fn event(model: &Leases, last: &State, action: &Action) -> Value {
    let step = match *action {
        Action::Tick => json!({ "tick": 1 }),
        Action::Look { leader, lost } => json!({ "look": leader, "lost": lost }),
        Action::Elect { candidate, voter } => json!({ "elect": candidate, "voter": voter }),
        Action::Send { leader, follower, full } => json!({ "send": leader, "to": follower, "full": full }),
        Action::Delay { leader, follower, full } => json!({ "delay": leader, "to": follower, "full": full }),
        Action::Arrive(late) => json!({ "arrive": *late }),
        Action::Ask { client, request, leader } => {
            json!({ "client": client, "request": request as u8, "at": leader })
        }
        Action::Crash { server, lost, heard } => json!({ "crash": server, "lost": lost, "heard": heard }),
    };
    let after = model.next_state(last, *action).map(|next| {
        next.servers.iter().map(|server| json!({ "term": server.node.term(), "clock": server.node.clock() })).collect()
    });
    json!({ "kind": "leases", "move": step, "sentence": model.sentence(last, action), "after": after.unwrap_or(Value::Null) })
}

/// Formats the state as a table.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&table(self), f)
    }
}
