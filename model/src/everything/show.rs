//! Text, JSON and labels for clients, operators and readers.

use serde_json::{Value, json};

use super::{AllLayers, Move};
use crate::diagram::Tone;
use crate::state_table::StateTable;
use crate::world::{DescribeEnvironment, DescribeMove};

impl DescribeEnvironment for AllLayers {
    fn table(&self, table: &mut StateTable) {
        self.clients.table(table);
        let (operators, readers) = (&self.operators, &self.readers);
        let asked = [("changes", operators.changed.to_string()), ("may request transfers", self.transfers.to_string())];
        table.fields("operators", asked);
        let open = readers.open.iter().filter(|read| read.is_some()).count();
        table.fields("readers", [("open", open.to_string()), ("may read", readers.left.to_string())]);
    }

    fn lifelines(&self) -> Vec<String> {
        let mut all = self.clients.lifelines();
        all.extend(["operators".to_string(), "readers".to_string()]);
        all
    }

    fn notes(&self, before: &AllLayers) -> Vec<(usize, String, Tone)> {
        let mut notes = self.clients.notes(&before.clients);
        let readers = self.clients.lifelines().len() + 1;
        notes.extend(self.readers.notes(&before.readers).into_iter().map(|(_, note, tone)| (readers, note, tone)));
        notes
    }
}

impl DescribeMove for Move {
    fn sentence(&self) -> String {
        match self {
            Move::Client(chosen) => chosen.sentence(),
            Move::Change(chosen) => chosen.sentence(),
            Move::Transfer(server, to) => {
                format!("an operator asks server {server} to transfer leadership to server {to}")
            }
            Move::Read(server) => format!("a client asks server {server} to read"),
        }
    }

    fn event(&self) -> Value {
        match self {
            Move::Client(chosen) => chosen.event(),
            Move::Change(chosen) => chosen.event(),
            Move::Transfer(server, to) => json!({ "transfer": server, "to": to }),
            Move::Read(server) => json!({ "read": server }),
        }
    }

    fn participant(&self) -> Option<usize> {
        // The lifelines of operators and readers follow those of the clients and resources, whose
        // number varies, so their index is unknown here.
        match self {
            Move::Client(chosen) => chosen.participant(),
            Move::Change(_) | Move::Transfer(..) | Move::Read(_) => None,
        }
    }

    fn label(&self) -> String {
        match self {
            Move::Client(chosen) => chosen.label(),
            Move::Change(chosen) => chosen.label(),
            Move::Transfer(_, to) => format!("transfer to {to}"),
            Move::Read(_) => "read".to_string(),
        }
    }
}
