//! A path as a sequence diagram, with a lifeline for each server and each participant of the
//! environment.

use palisade_spec::raft::{Message, Role};

use super::action::Action;
use super::action_parts::{MessageFate, Turn};
use super::describe::DescribeMove;
use super::environment::Environment;
use super::intern::Ref;
use super::notation;
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;
use crate::diagram::{Cell, Diagram, Fate, Tone};

/// A message in flight, and where it was sent.
struct Flight<E: Environment> {
    message: Ref<Message<E::Machine>>,
    sent: Cell,
}

struct Drawing<'a, E: Environment> {
    world: &'a World<E>,
    diagram: Diagram,
    flights: Vec<Flight<E>>,
    servers: usize,
    row: usize,
}

impl<E: Environment> World<E> {
    /// Draws a path.
    pub(super) fn draw(&self, way: &[(State<E>, Option<Action<E>>)]) -> Option<Diagram> {
        let (first, _) = way.first()?;
        let servers = first.servers.iter().map(|replica| format!("server {}", replica.node.id()));
        let mut diagram = Diagram::new(servers.chain(first.environment.lifelines()));
        let row = diagram.row("");
        let mut drawing = Drawing { world: self, diagram, flights: Vec::new(), servers: first.servers.len(), row };
        drawing.begin(first);
        for (number, steps) in way.windows(2).enumerate() {
            let [(last, Some(action)), (next, _)] = steps else { continue };
            drawing.row = drawing.diagram.row((number + 1).to_string());
            drawing.step(last, action, next);
        }
        drawing.end(&way.last()?.0);
        Some(drawing.diagram)
    }
}

impl<E: Environment> Drawing<'_, E> {
    fn here(&self, server: palisade_spec::raft::NodeId) -> Cell {
        (usize::from(server.number()) - 1, self.row)
    }

    fn begin(&mut self, state: &State<E>) {
        for replica in &state.servers {
            if let Some((text, tone)) = role_note(replica) {
                self.diagram.note(self.here(replica.node.id()), text, tone);
            }
        }
        self.send(&state.network);
    }

    fn send(&mut self, messages: &[Ref<Message<E::Machine>>]) {
        let flights = messages.iter().map(|&message| Flight { message, sent: self.here(message.from) });
        let flights: Vec<_> = flights.collect();
        self.flights.extend(flights);
    }

    fn step(&mut self, last: &State<E>, action: &Action<E>, next: &State<E>) {
        let turns = self.world.turns(last, action);
        match action {
            Action::Step { stimulus: Stimulus::Deliver(message), again, .. } => self.deliver(*message, *again),
            Action::Step { .. } | Action::Lose(_) => {}
            Action::Crash(server) => self.diagram.note(self.here(*server), "✕ crash", Tone::Bad),
            Action::Cut(server) => self.diagram.note(self.here(*server), "cut off", Tone::Bad),
            Action::Snapshot(server) => self.diagram.note(self.here(*server), "snapshot", Tone::Plain),
            Action::Heal(server) => self.diagram.note(self.here(*server), "connected", Tone::Plain),
            Action::Move { chosen, .. } => match (chosen.participant(), turns.first()) {
                (Some(participant), Some(turn)) => {
                    let from = (self.servers + participant, self.row);
                    self.diagram.arrow(from, self.here(turn.server), chosen.label(), Fate::Arrives);
                }
                (Some(participant), None) => {
                    self.diagram.note((self.servers + participant, self.row), chosen.label(), Tone::Plain);
                }
                (None, Some(turn)) => self.diagram.note(self.here(turn.server), chosen.label(), Tone::Plain),
                (None, None) => self.diagram.line(self.row, chosen.label(), Tone::Plain),
            },
        }
        let mut rows = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            if index > 0 {
                self.row = self.diagram.row("");
            }
            rows.push(self.row);
            if let (Some(cause), Stimulus::Deliver(message)) = (turn.cause, turn.stimulus) {
                let sent = (usize::from(message.from.number()) - 1, rows[cause]);
                self.arrow(message, sent, self.here(message.to), Fate::Arrives);
            }
            self.turn(turn);
        }
        self.discard(action, &turns, next);
        for (participant, text, tone) in next.environment.notes(&last.environment) {
            self.diagram.note((self.servers + participant, self.row), text, tone);
        }
        if let Some(violation) = next.violation {
            self.row = self.diagram.row("");
            self.diagram.line(self.row, format!("violated: {}", violation.property), Tone::Bad);
        }
    }

    fn deliver(&mut self, message: Ref<Message<E::Machine>>, again: bool) {
        let index = self.flights.iter().position(|flight| flight.message == message);
        let sent = index.map_or((usize::from(message.from.number()) - 1, 0), |index| self.flights[index].sent);
        self.arrow(message, sent, self.here(message.to), Fate::Arrives);
        if let Some(index) = index.filter(|_| !again) {
            self.flights.remove(index);
        }
    }

    fn arrow(&mut self, message: Ref<Message<E::Machine>>, from: Cell, to: Cell, fate: Fate) {
        let detail = super::show::in_flight::<E>(&message);
        self.diagram.detailed_arrow(from, to, notation::label(&message), detail, fate);
    }

    /// Draws what a server became, what it sent and what it answered.
    fn turn(&mut self, turn: &Turn<E>) {
        let here = self.here(turn.server);
        let (before, after) = (&turn.before, &turn.after);
        if turn.crash.is_some() {
            self.diagram.note(here, if turn.stays_away() { "✕ crash, stays away" } else { "✕ crash" }, Tone::Bad);
        } else {
            if role_note(before) != role_note(after)
                && let Some((text, tone)) = role_note(after)
            {
                self.diagram.note(here, text, tone);
            } else if before.node.is_leader() && !after.node.is_leader() {
                self.diagram.note(here, format!("steps down, t{}", after.node.term()), Tone::Plain);
            }
            if after.node.commit() > before.node.commit() {
                self.diagram.note(here, format!("commit {}", after.node.commit()), Tone::Good);
            }
        }
        for &(message, fate) in &turn.sent {
            match fate {
                MessageFate::Travels | MessageFate::ArrivesAndTravels => self.send(&[message]),
                MessageFate::Arrives => {}
                MessageFate::Lost | MessageFate::CutOff => self.arrow(message, here, self.here(message.to), Fate::Lost),
            }
        }
    }

    /// Ends the arrows of messages that left the network without arriving.
    fn discard(&mut self, action: &Action<E>, turns: &[Turn<E>], next: &State<E>) {
        let mut left: Vec<_> = next.network.to_vec();
        let flights = std::mem::take(&mut self.flights);
        // The newest flights are matched first: of several equal messages, the oldest one left the
        // network.
        let mut kept = Vec::new();
        for flight in flights.into_iter().rev() {
            if let Some(index) = left.iter().position(|message| *message == flight.message) {
                left.swap_remove(index);
                kept.push(flight);
                continue;
            }
            let message = flight.message;
            let link = |sent: &Ref<Message<E::Machine>>| (sent.from, sent.to) == (message.from, message.to);
            let is_lost = *action == Action::Lose(message)
                || turns.iter().flat_map(|turn| &turn.sent).any(|(sent, _)| link(sent) && *sent != message);
            let fate = if is_lost { Fate::Lost } else { Fate::Spent };
            self.arrow(message, flight.sent, self.here(message.to), fate);
        }
        kept.reverse();
        self.flights = kept;
    }

    fn end(&mut self, last: &State<E>) {
        for flight in std::mem::take(&mut self.flights) {
            let fate = if last.violation.is_some() { Fate::Spent } else { Fate::OnItsWay };
            self.arrow(flight.message, flight.sent, self.here(flight.message.to), fate);
        }
    }
}

/// The note for a server that is a candidate or a leader.
fn role_note<S: palisade_spec::raft::StateMachine>(replica: &Replica<S>) -> Option<(String, Tone)> {
    let term = replica.node.term();
    match replica.node.role() {
        Role::Follower { .. } | Role::PreCandidate { .. } => None,
        Role::Candidate { .. } => Some((format!("campaigns, t{term}"), Tone::Plain)),
        Role::Leader(_) => Some((format!("leads t{term}"), Tone::Good)),
    }
}
