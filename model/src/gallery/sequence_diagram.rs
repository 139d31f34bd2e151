//! Sequence diagrams of the gallery: client A on the left, then the servers, then the other
//! clients.

use std::collections::HashMap;

use stateright::Expectation;

use super::show::Client;
use crate::diagram::{Diagram, Fate, Tone};
use crate::presentation::{Presentation, Way};

/// A model whose paths can be drawn.
pub(super) trait Pictured: Presentation {
    /// The servers' names, from left to right.
    fn servers(&self) -> Vec<String>;
    /// Number of clients.
    const CLIENTS: usize = 2;
    /// Draws the effect of `action`.
    fn draw(&self, before: &Self::State, action: &Self::Action, after: &Self::State, row: &mut Row<'_>);
}

/// A lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// A client's.
    Client(Client),
    /// A server's, by its index among the servers.
    Server(usize),
}

/// The drawing of one step.
pub(super) struct Row<'a> {
    diagram: &'a mut Diagram,
    number: usize,
    servers: usize,
    /// Messages that were sent in an earlier row and have not arrived.
    sent: &'a mut HashMap<Who, usize>,
}

impl Row<'_> {
    /// Adds a message. If its sender sent it in an earlier row, the arrow starts there.
    pub(super) fn message(&mut self, from: Who, to: Who, label: &str) {
        let sent = self.sent.remove(&from).unwrap_or(self.number);
        let (from, to) = (self.lifeline(from), self.lifeline(to));
        self.diagram.arrow((from, sent), (to, self.number), label, Fate::Arrives);
    }

    /// The next message from this lifeline is sent now, and arrives later.
    pub(super) fn sends(&mut self, from: Who) {
        self.sent.insert(from, self.number);
    }

    /// An event on one lifeline.
    pub(super) fn note(&mut self, at: Who, text: &str) {
        self.mark(at, text, Tone::Plain);
    }

    /// Progress on one lifeline.
    pub(super) fn good(&mut self, at: Who, text: &str) {
        self.mark(at, text, Tone::Good);
    }

    /// A failure on one lifeline.
    pub(super) fn bad(&mut self, at: Who, text: &str) {
        self.mark(at, text, Tone::Bad);
    }

    /// An event that concerns all participants.
    pub(super) fn line(&mut self, text: &str) {
        self.diagram.line(self.number, text, Tone::Plain);
    }

    fn mark(&mut self, at: Who, text: &str, tone: Tone) {
        let lifeline = self.lifeline(at);
        self.diagram.note((lifeline, self.number), text, tone);
    }

    fn lifeline(&self, who: Who) -> usize {
        match who {
            Who::Client(Client::A) => 0,
            Who::Server(index) => 1 + index,
            Who::Client(client) => self.servers + client.index(),
        }
    }
}

/// Draws a path, and the property that is violated at its end.
pub(super) fn diagram<M: Pictured>(model: &M, way: &Way<M>) -> Option<Diagram> {
    let servers = model.servers();
    let count = servers.len();
    let mut clients = Client::THREE[..M::CLIENTS].iter().map(|client| client.name());
    let first = clients.next();
    let mut diagram = Diagram::new(first.into_iter().chain(servers).chain(clients));
    let mut sent = HashMap::new();
    for (index, pair) in way.windows(2).enumerate() {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        let number = diagram.row((index + 1).to_string());
        model.draw(before, action, after, &mut Row { diagram: &mut diagram, number, servers: count, sent: &mut sent });
    }
    if let Some((last, _)) = way.last() {
        for property in model.properties() {
            if property.expectation == Expectation::Always && !(property.condition)(model, last) {
                let row = diagram.row("");
                diagram.line(row, format!("{} is violated", property.name), Tone::Bad);
            }
        }
    }
    Some(diagram)
}
