//! A path as a sequence diagram: a lifeline for each server and each client.

use palisade_spec::raft::NodeId;

use super::state::server_index;
use super::{Action, Leases, State};
use crate::cluster::Request;
use crate::diagram::{Diagram, Fate, Tone};
use crate::presentation::Way;

/// Draws a path.
pub(super) fn draw(way: &Way<Leases>) -> Option<Diagram> {
    let (first, _) = way.first()?;
    let servers = first.servers.iter().map(|server| format!("server {}", server.node.id()));
    let clients = (1..=first.clients.len()).map(|client| format!("client {client}"));
    let mut diagram = Diagram::new(servers.chain(clients));
    for (number, steps) in way.windows(2).enumerate() {
        let [(last, Some(action)), (next, _)] = steps else { continue };
        let row = diagram.row((number + 1).to_string());
        step(&mut diagram, row, last, action, next);
        for (client, (was, is)) in last.clients.iter().zip(next.clients.iter()).enumerate() {
            if let (None, Some(token)) = (was.token, is.token) {
                diagram.note((next.servers.len() + client, row), format!("token {token}"), Tone::Good);
            }
        }
        if let Some(violation) = next.violation {
            let row = diagram.row("");
            diagram.line(row, format!("violated: {}", violation.property), Tone::Bad);
        }
    }
    Some(diagram)
}

fn step(diagram: &mut Diagram, row: usize, last: &State, action: &Action, next: &State) {
    let at = |server: NodeId| (server_index(server), row);
    let clock = |server: NodeId| format!("clock {}", next.server(server).node.clock());
    match *action {
        Action::Tick => diagram.line(row, format!("real time: {}", next.now), Tone::Plain),
        Action::Look { leader, .. } => diagram.note(at(leader), clock(leader), Tone::Plain),
        Action::Elect { candidate, voter } => {
            diagram.arrow(at(voter), at(candidate), "vote", Fate::Arrives);
            diagram.note(at(candidate), format!("leads t{}", next.server(candidate).node.term()), Tone::Good);
        }
        Action::Send { leader, follower, full } => {
            diagram.arrow(at(leader), at(follower), label(last, leader, full), Fate::Arrives);
            diagram.note(at(follower), clock(follower), Tone::Plain);
        }
        Action::Delay { leader, follower, full } => {
            diagram.arrow(at(leader), at(follower), label(last, leader, full), Fate::OnItsWay);
        }
        Action::Arrive(late) => {
            diagram.arrow(at(late.from), at(late.to), "delayed", Fate::Arrives);
            diagram.note(at(late.to), clock(late.to), Tone::Plain);
        }
        Action::Ask { client, request, leader } => {
            let request = if request == Request::Acquire { "acquire" } else { "keepalive" };
            diagram.arrow((next.servers.len() + client, row), at(leader), request, Fate::Arrives);
        }
        Action::Crash { server, .. } => diagram.note(at(server), "✕ crash", Tone::Bad),
    }
}

fn label(last: &State, leader: NodeId, full: bool) -> String {
    let (node, what) = (last.server(leader).node, if full { "Append" } else { "heartbeat" });
    format!("{what} t{} at {}", node.term(), node.clock())
}
