//! Text, JSON and labels for reads and proposals.

use serde_json::{Value, json};

use super::{Move, Readers};
use crate::diagram::Tone;
use crate::state_table::{LIST, StateTable};
use crate::world::{DescribeEnvironment, DescribeMove};

impl DescribeEnvironment for Readers {
    fn table(&self, table: &mut StateTable) {
        let open = self.open.iter().enumerate().map(|(read, due)| match due {
            Some(due) => format!("read {read} open, not before {due}"),
            None => format!("read {read} answered"),
        });
        let proposed = format!("{} of {}", self.writers.made, self.writers.most);
        let fields = [
            ("proposed", proposed),
            ("acknowledged up to", self.acknowledged.to_string()),
            ("", open.collect::<Vec<_>>().join(LIST)),
            ("may read", self.left.to_string()),
        ];
        table.fields("clients", fields);
    }

    fn lifelines(&self) -> Vec<String> {
        vec!["clients".to_string()]
    }

    fn notes(&self, before: &Readers) -> Vec<(usize, String, Tone)> {
        let was_open = |read: usize| before.open.get(read).is_some_and(Option::is_some);
        let answered = self.open.iter().enumerate().filter(|(read, due)| due.is_none() && was_open(*read));
        answered.map(|(read, _)| (0, format!("read {read} is answered"), Tone::Good)).collect()
    }
}

impl DescribeMove for Move {
    fn sentence(&self) -> String {
        match self {
            Move::Propose(server) => format!("a client's proposal arrives at server {server}"),
            Move::Read(server) => format!("a client asks server {server} to read"),
        }
    }

    fn event(&self) -> Value {
        match self {
            Move::Propose(server) => json!({ "propose": server }),
            Move::Read(server) => json!({ "read": server }),
        }
    }

    fn participant(&self) -> Option<usize> {
        Some(0)
    }

    fn label(&self) -> String {
        match self {
            Move::Propose(_) => "propose".to_string(),
            Move::Read(_) => "read".to_string(),
        }
    }
}
