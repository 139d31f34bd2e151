//! Text, JSON and labels for proposals and the state machine.

use serde_json::{Value, json};

use super::{Move, Proposals, Tape};
use crate::diagram::Tone;
use crate::state_table::{Field, LIST, StateTable};
use crate::world::{DescribeEnvironment, DescribeMove, Notation};

impl Notation for Tape {
    fn command(command: &u8) -> String {
        command.to_string()
    }

    fn content(&self) -> Vec<Field> {
        vec![("applied", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(LIST))]
    }

    fn data(&self) -> Value {
        json!(self)
    }
}

impl DescribeEnvironment for Proposals {
    fn table(&self, table: &mut StateTable) {
        table.fields("clients", [("proposed", format!("{} of {}", self.clients.made, self.clients.most))]);
        let ticks = if self.ticks > 0 { format!("{}×", self.ticks) } else { String::new() };
        table.fields("clocks", [("may advance", ticks)]);
        let transfers = if self.transfers > 0 { format!("{}×", self.transfers) } else { String::new() };
        table.fields("operators", [("may request transfers", transfers)]);
    }

    fn lifelines(&self) -> Vec<String> {
        vec!["clients".to_string()]
    }

    fn notes(&self, _: &Proposals) -> Vec<(usize, String, Tone)> {
        Vec::new()
    }
}

impl DescribeMove for Move {
    fn sentence(&self) -> String {
        match self {
            Move::Propose(server) => format!("a client's proposal arrives at server {server}"),
            Move::Tick(server) => format!("the clock of server {server} advances"),
            Move::Transfer(server, to) => {
                format!("an operator asks server {server} to transfer leadership to server {to}")
            }
        }
    }

    fn event(&self) -> Value {
        match self {
            Move::Propose(server) => json!({ "propose": server }),
            Move::Tick(server) => json!({ "tick": server }),
            Move::Transfer(server, to) => json!({ "transfer": server, "to": to }),
        }
    }

    fn participant(&self) -> Option<usize> {
        match self {
            Move::Propose(_) => Some(0),
            Move::Tick(_) | Move::Transfer(..) => None,
        }
    }

    fn label(&self) -> String {
        match self {
            Move::Propose(_) => "propose".to_string(),
            Move::Tick(_) => "clock advances".to_string(),
            Move::Transfer(_, to) => format!("transfer to {to}"),
        }
    }
}
