//! Text, JSON and labels for clients, their leases, time and resources.

use serde_json::{Value, json};

use super::{Client, Move, Request, Resource, Surroundings};
use crate::diagram::Tone;
use crate::state_table::{Field, StateTable};
use crate::world::{DescribeEnvironment, DescribeMove};

impl DescribeEnvironment for Surroundings {
    fn table(&self, table: &mut StateTable) {
        for (number, client) in self.clients.iter().enumerate() {
            table.fields(name(number), self.client(client));
        }
        for resource in &self.resources {
            let highest = resource.highest.map(|token| token.to_string());
            let writers = resource.accepted.iter().map(|writer| format!("session {}", writer.number));
            let refused = if resource.refused { "yes" } else { "" }.to_string();
            let fields = [
                ("highest token", highest.unwrap_or_default()),
                ("written by", writers.collect::<Vec<_>>().join(", ")),
                ("refused a write", refused),
            ];
            table.fields(protected(resource), fields);
        }
        let looked = self.looked.iter().map(|(server, at)| format!("{server} at {at}")).collect::<Vec<_>>();
        table.fields("time", [("", self.now.to_string()), ("leaders looked", looked.join(", "))]);
    }

    fn lifelines(&self) -> Vec<String> {
        (0..self.clients.len()).map(name).chain(self.resources.iter().map(protected)).collect()
    }

    fn notes(&self, before: &Surroundings) -> Vec<(usize, String, Tone)> {
        let mut notes = Vec::new();
        for (number, (was, is)) in before.clients.iter().zip(&self.clients).enumerate() {
            if let (None, Some(token)) = (was.token, is.token) {
                notes.push((number, format!("token {token}"), Tone::Good));
            }
            if before.relies(was) && !self.relies(is) && is.arrivals[1] == 0 {
                notes.push((number, "lease over".to_string(), Tone::Bad));
            }
        }
        for (number, (was, is)) in before.resources.iter().zip(&self.resources).enumerate() {
            let lifeline = self.clients.len() + number;
            if is.refused && !was.refused {
                notes.push((lifeline, "refused".to_string(), Tone::Bad));
            }
            if let (Some(token), true) = (is.highest, is.highest != was.highest) {
                notes.push((lifeline, format!("takes token {token}"), Tone::Good));
            }
        }
        notes
    }
}

impl Surroundings {
    fn client(&self, client: &Client) -> Vec<Field> {
        let count = |request: Request| match client.arrivals[request as usize] {
            0 => String::new(),
            count => format!("{count}×"),
        };
        let token = client.token.map_or(String::new(), |token| token.to_string());
        let lease = match (client.token, self.relies(client)) {
            (None, _) => String::new(),
            (Some(_), true) => format!("relied on, from {}", client.lease),
            (Some(_), false) => format!("over, from {}", client.lease),
        };
        vec![
            ("session", client.session.number.to_string()),
            ("key", client.key.to_string()),
            ("asked", count(Request::Acquire)),
            ("at", if client.arrivals[0] > 0 { client.asked.to_string() } else { String::new() }),
            ("token", token),
            ("lease", lease),
            ("kept alive", count(Request::KeepAlive)),
            ("unanswered since", client.keepalives.first().map_or(String::new(), |first| first.sent.to_string())),
            ("released", count(Request::Release)),
            ("", if client.wrote { "wrote" } else { "" }.to_string()),
        ]
    }
}

/// The resource that the lock of this name protects.
fn protected(resource: &Resource) -> String {
    format!("resource {}", resource.key)
}

/// Clients are indexed from 0 and named from 1, as in violations.
fn name(number: usize) -> String {
    format!("client {}", number + 1)
}

impl DescribeMove for Move {
    fn sentence(&self) -> String {
        match self {
            Move::Tick => "time passes".to_string(),
            Move::Look(server) => format!("server {server} looks at its clock"),
            Move::Arrive(number, request, server) => {
                let request = match request {
                    Request::Acquire => "the request for the lock",
                    Request::Release => "the release",
                    Request::KeepAlive => "a keepalive",
                };
                format!("{request} of {} arrives at server {server}", name(*number))
            }
            Move::Write(number) => format!("{} writes to the resource with its token", name(*number)),
        }
    }

    fn event(&self) -> Value {
        match self {
            Move::Tick => json!({ "tick": 1 }),
            Move::Look(server) => json!({ "look": server }),
            Move::Arrive(number, request, server) => {
                json!({ "arrive": { "client": number, "request": request.name(), "server": server } })
            }
            Move::Write(number) => json!({ "write": { "client": number } }),
        }
    }

    fn participant(&self) -> Option<usize> {
        match self {
            Move::Tick | Move::Look(_) => None,
            Move::Arrive(number, ..) | Move::Write(number) => Some(*number),
        }
    }

    fn label(&self) -> String {
        match self {
            Move::Tick => "time passes".to_string(),
            Move::Look(_) => "looks at its clock".to_string(),
            Move::Arrive(_, request, _) => request.name().to_string(),
            Move::Write(_) => "writes".to_string(),
        }
    }
}

impl Request {
    fn name(self) -> &'static str {
        match self {
            Request::Acquire => "acquire",
            Request::Release => "release",
            Request::KeepAlive => "keepalive",
        }
    }
}
